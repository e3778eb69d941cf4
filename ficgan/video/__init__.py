"""Moving pictures: reading and writing, tracks without gaps, redaction, projects to review.

A film goes through three stages that hand each other plain data: `found` (a `Project`), `decided` (a `FilmPlan`) and
`rendered`; `film` runs them and checks the result.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ficgan.anonymizers.modes import Methods, check_mode, shown
from ficgan.errors import Progress, UsageError, unheard
from ficgan.options import HIDING, FilmEncoding, FilmSearch, Hiding, check, check_cover, option
from ficgan.policy import Policy

if TYPE_CHECKING:
    from ficgan.face_model import FaceModel
    from ficgan.faces import FaceDetector, Recognizer
    from ficgan.faces.covers import ObjectDetector
    from ficgan.video.decisions import Drawing
    from ficgan.video.read import VideoSource


PathLike = str | os.PathLike[str]
# Person → source's code, number of the attempt and kind in earlier films of a job.
JobIdentities = dict[str, tuple[NDArray[np.float32], int, NDArray[np.float32] | None]]

# Seconds without a sighting after which a track ends.
PATIENCE = 1.5
# Seconds for which a cover lasts at least on either side, so that modes do not flicker.
HOLD = 0.25
# Frames rendered together.
CHUNK = 8


class Pace(NamedTuple):
    """How often the detector looks at a film, in frames, and how long its tracks reach, in seconds."""

    stride: int
    pad: float
    patience: float


@dataclass(frozen=True)
class VideoSettings(FilmSearch):
    """How a film is searched, followed, redacted and checked.

    Args:
        mode: what takes a face's place where no rule says otherwise; see `ficgan.anonymizers.modes.check_mode`.
        fallback: covers a face that cannot be generated.
    """

    mode: str = str(Hiding.mode)
    fallback: str = Hiding.fallback
    mask_scale: float = option(Hiding.mask_scale, "Size of the replaced region.", low=0, above=True)
    detect_size: int = option(
        960, "Longest side in pixels at which frames are searched; larger ones are reduced.", low=1
    )
    segment: float = option(
        10.0, "Seconds of film in one part; an interrupted film resumes after its last whole part.", low=0, above=True
    )

    def __post_init__(self) -> None:
        check(self)
        check_mode(self.mode)
        if self.fallback == "ficgan":
            raise UsageError("a face that cannot be generated cannot fall back to ficgan; use plain, black or another")
        object.__setattr__(self, "fallback", check_cover(self.fallback))

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready, as others may read them: no key of a method."""
        return {**asdict(self), "mode": shown(self.mode)}

    def at(self, rate: float | Fraction | None) -> Pace:
        """For a film of this many frames a second.

        Below 25 the detector looks as often in a second as at 25, so that nobody crosses the picture between two looks.
        Below 12.5 pads and patience are as many frames as at 12.5: there a missed look is a large part of a second.
        """
        frames = float(rate or 25)
        stride, longer = max(1, round(self.stride * min(1.0, frames / 25))), max(1.0, 12.5 / frames)
        return Pace(stride, self.pad * longer, PATIENCE * longer)


@dataclass(frozen=True, eq=False)
class Rules:
    """Who stays (`keep`) or is alone hidden (`only`), by photos; boxes in pixels, spans in seconds, where all stay."""

    keep: Mapping[str, NDArray[np.uint8]] = field(default_factory=dict)
    only: Mapping[str, NDArray[np.uint8]] = field(default_factory=dict)
    boxes: Sequence[tuple[float, float, float, float]] = ()
    spans: Sequence[tuple[float | None, float | None]] = ()

    def __bool__(self) -> bool:
        return bool(self.keep or self.only or self.boxes or self.spans)


@dataclass(frozen=True)
class EncodeOptions(FilmEncoding):
    """How a result is encoded; `tag` marks new faces as synthetic, `options` are further ones of FFmpeg's encoder."""

    tag: bool = True
    options: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class VideoTools:
    """What redacts a film.

    Args:
        recognizer: tells people apart, to link tracks; None: nothing does, and nothing checks new faces.
        methods: anonymisers for the modes that name one.
        gate: checks new faces and the result; if not given, `recognizer` does.
        job_identities: where people are linked over the films of a job.
        objects: detectors of what is no face and is covered, too.
        redrawn: the same for faces that are drawn in a way of their own.
    """

    detector: FaceDetector
    recognizer: Recognizer | None = None
    face_model: FaceModel | None = None
    policy: Policy = field(default_factory=Policy)
    layer: int = 0
    psi: float = 0.6
    methods: Methods = field(default_factory=Methods)
    gate: Recognizer | None = None
    job_identities: JobIdentities = field(default_factory=dict)
    objects: Sequence[ObjectDetector] = ()
    redrawn: Callable[[Drawing], VideoTools] | None = None

    def __post_init__(self) -> None:
        if self.gate is None:
            object.__setattr__(self, "gate", self.recognizer)

    def prepare(self, modes: Iterable[str]) -> None:
        """Make the anonymisers of some modes, so that what is wrong with one is said at once."""
        for mode in set(modes) - set(HIDING):
            self.methods(mode)

    @property
    def verifies(self) -> bool:
        """Whether a gate checks new faces."""
        return self.gate is not None and self.policy.verify


@dataclass(frozen=True, eq=False)
class FilmTask:
    """A film at work: what its stages have in common."""

    tools: VideoTools
    path: PathLike
    source: VideoSource
    settings: VideoSettings
    progress: Progress = unheard
    output: Path = Path()
    encode: EncodeOptions = EncodeOptions()
    overwrite: bool = False

    def step(self, stage: str, total: int | None) -> Callable[[int], None]:
        """To be called with the number of each frame done; reports progress."""

        def step(frame: int) -> None:
            self.progress(frame + 1, None if total is None else max(total, frame + 1), stage)

        return step
