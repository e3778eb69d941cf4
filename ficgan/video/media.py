"""What a moving picture is, whatever it was read from: its properties and its frames."""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

__all__ = ["EncodeOptions", "Frame", "VideoInfo"]


@dataclass(frozen=True)
class VideoInfo:
    """Properties of one video stream."""

    width: int
    """Of the upright picture, after rotation, pixels."""
    height: int
    time_base: Fraction
    """Seconds of one tick of `Frame.pts`."""
    rate: Fraction | None
    """Average frames per second; None where unknown (a stream, a camera). Frames carry their own times."""
    frames: int | None
    """Number of frames as the file states or as counted; an estimate, None where unknown."""
    duration: float | None
    """Seconds, None where unknown."""
    pixel_format: str = "yuv420p"
    """FFmpeg's name, of the stored picture."""
    colour_range: int = 0
    colour_space: int = 0
    colour_primaries: int = 0
    colour_transfer: int = 0
    """The four as FFmpeg numbers them; 0 or 2 is unspecified."""
    rotation: int = 0
    """Degrees the stored picture was turned by (0, 90, 180, 270), already applied to the frames."""
    sample_aspect_ratio: Fraction = Fraction(1)
    codec: str = ""
    audio_streams: int = 0
    notes: tuple[str, ...] = field(default=())
    """What was noticed and what was left out (cover art, a second video stream, subtitles), each a sentence."""


@dataclass(frozen=True, eq=False)
class Frame:
    """One upright frame."""

    index: int
    """Number in the order of showing, from 0."""
    pts: int
    """Time of showing in ticks of `VideoInfo.time_base`."""
    time: float
    """The same in seconds from the first frame on."""
    image: NDArray[np.uint8]
    """H×W×3 RGB, not to be changed in place."""
    duration: int | None = None
    """Ticks it is shown for, as the file states; None where it does not."""


@dataclass(frozen=True)
class EncodeOptions:
    """How a result is encoded."""

    codec: str = "h264"
    """An encoder FFmpeg has: h264 (libx264), hevc, vp9, av1, mpeg4, ffv1 … or its own name."""
    crf: int | None = None
    """Constant quality; lower is better. None: 18 for H.264."""
    preset: str | None = None
    """The encoder's speed preset; None: its faster one."""
    pixel_format: str | None = None
    """None: the source's where the encoder takes it, otherwise the nearest that keeps depth and colour resolution."""
    audio: str = "copy"
    """copy or drop."""
    threads: int = 0
