"""Moving pictures: reading and writing, tracks without gaps, redaction, projects to review.

Every name is imported when it is first used, so `import ficgan.video` does not load FFmpeg.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

# Public name → the module that offers it.
_MODULES = {
    "Assembled": "ficgan.video.mux",
    "EncodeOptions": "ficgan.video.media",
    "Frame": "ficgan.video.media",
    "SegmentWriter": "ficgan.video.write",
    "VideoInfo": "ficgan.video.media",
    "VideoSource": "ficgan.video.read",
    "VideoWriter": "ficgan.video.write",
    "assemble": "ficgan.video.mux",
    "check_output": "ficgan.video.mux",
    "finished_segments": "ficgan.video.write",
    "open_video": "ficgan.video.read",
}

__all__ = [
    "Assembled",
    "EncodeOptions",
    "Frame",
    "SegmentWriter",
    "VideoInfo",
    "VideoSource",
    "VideoWriter",
    "assemble",
    "check_output",
    "finished_segments",
    "open_video",
]

if TYPE_CHECKING:
    from ficgan.video.media import EncodeOptions, Frame, VideoInfo
    from ficgan.video.mux import Assembled, assemble, check_output
    from ficgan.video.read import VideoSource, open_video
    from ficgan.video.write import SegmentWriter, VideoWriter, finished_segments


def __getattr__(name: str) -> object:
    """Import the public name `name` from its module and keep it."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_MODULES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
