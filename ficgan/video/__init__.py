"""Moving pictures: reading and writing, tracks without gaps, redaction, projects to review.

A film goes through three stages that hand each other plain data: `found` (a `Project`), `decided` (a `FilmPlan`) and
`rendered`; then comes the `check`. Every name is imported when it is first used, so `import ficgan.video` does not load
FFmpeg.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ficgan.video.encode import VideoWriter
    from ficgan.video.film import analyse_film, process_film, render_film
    from ficgan.video.live import Stream, StreamResult, stream
    from ficgan.video.media import EncodeOptions, Frame, VideoInfo
    from ficgan.video.people import People
    from ficgan.video.project import Project
    from ficgan.video.read import VideoSource, open_video
    from ficgan.video.result import VideoResult
    from ficgan.video.settings import Rules, VideoSettings
    from ficgan.video.tools import Cancelled, VideoTools

__all__ = [
    "Cancelled",
    "EncodeOptions",
    "Frame",
    "People",
    "Project",
    "Rules",
    "Stream",
    "StreamResult",
    "VideoInfo",
    "VideoResult",
    "VideoSettings",
    "VideoSource",
    "VideoTools",
    "VideoWriter",
    "analyse_film",
    "open_video",
    "process_film",
    "render_film",
    "stream",
]

# Public names by the module that offers them.
_NAMES = {
    "encode": "VideoWriter",
    "film": "analyse_film process_film render_film",
    "live": "Stream StreamResult stream",
    "media": "EncodeOptions Frame VideoInfo",
    "people": "People",
    "project": "Project",
    "read": "VideoSource open_video",
    "result": "VideoResult",
    "settings": "Rules VideoSettings",
    "tools": "Cancelled VideoTools",
}
_MODULES = {name: f"ficgan.video.{module}" for module, names in _NAMES.items() for name in names.split()}


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_MODULES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES})
