"""What the user asks for: the numbers of video redaction, exemptions and selections."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from fractions import Fraction
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ficgan.anonymizers.modes import COVERS, HIDING, check_mode, shown
from ficgan.errors import UsageError

__all__ = ["LINKS", "VERIFY", "Link", "Rules", "Verify", "VideoSettings"]

Link = Literal["none", "file", "job"]
Verify = Literal["full", "sampled", "off"]
LINKS: tuple[Link, ...] = ("none", "file", "job")
VERIFY: tuple[Verify, ...] = ("full", "sampled", "off")


@dataclass(frozen=True)
class VideoSettings:
    """How a film is searched, followed, redacted and checked.

    Args:
        detect_size: longest side in pixels at which frames are searched; larger ones are reduced.
        stride: the detector looks at every n-th frame, and at the first after a cut; below 25 frames a second as often
            in a second, so that nobody crosses the picture between two looks.
        pad: seconds covered before a track's first and after its last sighting.
        patience: seconds without a sighting after which a track ends.
        link: which tracks get one identity: those of one person in a file, in all files of a job, or none.
        mode: what takes a face's place where no rule says otherwise; see `ficgan.anonymizers.modes.check_mode`.
        fallback: covers a face that cannot be generated: too small, turned away, still recognised.
        pad_mode: covers a generated face's pads, where the detector saw nothing.
        small: sides in pixels below which a face counts as too small to generate.
        turned: ratio of eye distance to eye–mouth distance under which (or over its inverse) a face counts as turned
            away; a frontal face has about 1, one turned by 60° 0.5.
        hold: seconds for which a fallback lasts at least on either side, so that modes do not flicker.
        mask_scale: size of the replaced region.
        blur: standard deviation of the blur as a fraction of the face's longer side.
        margin: factor of the match threshold under which a generated face counts as still recognised; above 1, as
        frames
            between two readings may come nearer to the source.
        check: seconds between two readings of a generated face by the gate while rendering.
        verify: the check of the result: every frame, about one frame a second, or none.
        segment: seconds of film in one part; an interrupted film resumes after its last whole part.
        chunk: frames rendered together.
        embeddings: sightings of a track that are read to tell people apart.
    """

    detect_size: int = 960
    stride: int = 5
    pad: float = 0.4
    patience: float = 1.5
    link: Link = "file"
    mode: str = "ficgan"
    fallback: str = "solid"
    pad_mode: str = "blur"
    small: float = 24.0
    turned: float = 0.45
    hold: float = 0.25
    mask_scale: float = 1.0
    blur: float = 0.15
    margin: float = 1.1
    check: float = 0.5
    verify: Verify = "sampled"
    segment: float = 10.0
    chunk: int = 8
    embeddings: int = 3

    def __post_init__(self) -> None:
        if self.detect_size < 1 or self.stride < 1 or self.chunk < 1 or self.embeddings < 1:
            raise UsageError("detect_size, stride, chunk and embeddings must be at least 1")
        for name in ("pad", "patience", "small", "turned", "hold", "check"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise UsageError(f"{name} is {value}; give a number of 0 or more")
        for name in ("mask_scale", "blur", "segment", "margin"):
            if not (math.isfinite(getattr(self, name)) and getattr(self, name) > 0):
                raise UsageError(f"{name} is {getattr(self, name)}; give a number above 0")
        check_mode(self.mode)
        if self.fallback == "ficgan":
            raise UsageError("a face that cannot be generated cannot fall back to ficgan; use solid, blur or mosaic")
        for name, known in (("fallback", COVERS), ("pad_mode", HIDING), ("link", LINKS), ("verify", VERIFY)):
            if getattr(self, name) not in known:
                raise UsageError(f"{name} {getattr(self, name)!r} is unknown; it is one of {', '.join(known)}")

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready, as others may read them: no key of a method."""
        return {**asdict(self), "mode": shown(self.mode)}

    def stride_at(self, rate: float | Fraction | None) -> int:
        """Frames from one look to the next at this number of frames a second."""
        return max(1, round(self.stride * min(1.0, float(rate or 25) / 25)))


@dataclass(frozen=True, eq=False)
class Rules:
    """Exemptions and selections.

    Args:
        keep: photos of people who stay as they are, by name.
        only: photos of people who are hidden, and nobody else, by name.
        boxes: faces that lie inside one of these boxes stay, x0, y0, x1, y1 in pixels.
        spans: all faces stay from one second to another; None: from the beginning, to the end.
    """

    keep: Mapping[str, NDArray[np.uint8]] = field(default_factory=dict)
    only: Mapping[str, NDArray[np.uint8]] = field(default_factory=dict)
    boxes: Sequence[tuple[float, float, float, float]] = ()
    spans: Sequence[tuple[float | None, float | None]] = ()
