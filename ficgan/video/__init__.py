"""Moving pictures: reading and writing, tracks without gaps, redaction, projects to review.

Every name is imported when it is first used, so `import ficgan.video` does not load FFmpeg.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

_NAMES = {
    "encode": "VideoWriter",
    "film": "Cancelled analyse_film process_film render_film",
    "live": "Stream StreamResult record_live stream",
    "media": "EncodeOptions Frame VideoInfo",
    "people": "People",
    "plan": "VideoResult",
    "project": "Project",
    "read": "VideoSource open_video",
    "tools": "VideoTools",
    "settings": "Rules VideoSettings",
    "write": "Assembled SegmentWriter assemble check_output finished_segments",
}
"""Public names by the module that offers them."""
_MODULES = {name: f"ficgan.video.{module}" for module, names in _NAMES.items() for name in names.split()}

__all__ = [
    "Assembled",
    "Cancelled",
    "EncodeOptions",
    "Frame",
    "People",
    "Project",
    "Rules",
    "SegmentWriter",
    "Stream",
    "StreamResult",
    "VideoInfo",
    "VideoResult",
    "VideoSettings",
    "VideoSource",
    "VideoTools",
    "VideoWriter",
    "analyse_film",
    "assemble",
    "check_output",
    "finished_segments",
    "open_video",
    "process_film",
    "record_live",
    "render_film",
    "stream",
]

if TYPE_CHECKING:
    from ficgan.video.encode import VideoWriter
    from ficgan.video.film import Cancelled, analyse_film, process_film, render_film
    from ficgan.video.live import Stream, StreamResult, record_live, stream
    from ficgan.video.media import EncodeOptions, Frame, VideoInfo
    from ficgan.video.people import People
    from ficgan.video.plan import VideoResult
    from ficgan.video.project import Project
    from ficgan.video.read import VideoSource, open_video
    from ficgan.video.settings import Rules, VideoSettings
    from ficgan.video.tools import VideoTools
    from ficgan.video.write import Assembled, SegmentWriter, assemble, check_output, finished_segments


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_MODULES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
