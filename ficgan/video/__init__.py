"""Moving pictures: reading and writing, tracks without gaps, redaction, projects to review.

Every name is imported when it is first used, so `import ficgan.video` does not load FFmpeg.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

# Public name → the module that offers it.
_MODULES = {
    "Assembled": "ficgan.video.write",
    "Cancelled": "ficgan.video.film",
    "EncodeOptions": "ficgan.video.media",
    "Frame": "ficgan.video.media",
    "People": "ficgan.video.people",
    "Project": "ficgan.video.project",
    "Rules": "ficgan.video.settings",
    "SegmentWriter": "ficgan.video.write",
    "Stream": "ficgan.video.live",
    "StreamResult": "ficgan.video.live",
    "VideoInfo": "ficgan.video.media",
    "VideoResult": "ficgan.video.plan",
    "VideoSettings": "ficgan.video.settings",
    "VideoSource": "ficgan.video.read",
    "VideoTools": "ficgan.video.render",
    "VideoWriter": "ficgan.video.write",
    "analyse_film": "ficgan.video.film",
    "assemble": "ficgan.video.write",
    "check_output": "ficgan.video.write",
    "finished_segments": "ficgan.video.write",
    "open_video": "ficgan.video.read",
    "process_film": "ficgan.video.film",
    "record_live": "ficgan.video.live",
    "render_film": "ficgan.video.film",
    "stream": "ficgan.video.live",
}

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
    from ficgan.video.film import Cancelled, analyse_film, process_film, render_film
    from ficgan.video.live import Stream, StreamResult, record_live, stream
    from ficgan.video.media import EncodeOptions, Frame, VideoInfo
    from ficgan.video.people import People
    from ficgan.video.plan import VideoResult
    from ficgan.video.project import Project
    from ficgan.video.read import VideoSource, open_video
    from ficgan.video.render import VideoTools
    from ficgan.video.settings import Rules, VideoSettings
    from ficgan.video.write import Assembled, SegmentWriter, VideoWriter, assemble, check_output, finished_segments


def __getattr__(name: str) -> object:
    """Import the public name `name` from its module and keep it."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_MODULES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
