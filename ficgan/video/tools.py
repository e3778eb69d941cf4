"""What redacts a film, what all films of one engine share, and one film at work."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ficgan.anonymizers.modes import Methods
from ficgan.errors import FicganError, UsageError
from ficgan.face_model import FaceModel
from ficgan.faces import FaceDetector, Recognizer, get_recognizer
from ficgan.faces.detection import PyramidDetector
from ficgan.policy import Policy
from ficgan.video.people import People
from ficgan.video.settings import VideoSettings

if TYPE_CHECKING:
    from ficgan.video.read import VideoSource

__all__ = ["Cancelled", "FilmEngine", "FilmTask", "VideoTools"]

PathLike = str | os.PathLike[str]
Progress = Callable[[int, int | None, str], None]
"""progress(frames done, frames in all or None, "analysing" | "choosing faces" | "rendering" | "checking")"""
IsCancelled = Callable[[], bool]
JobIdentities = dict[str, tuple[NDArray[np.float32], int, NDArray[np.float32] | None]]
"""Person → source's code, number of the attempt and kind in earlier films of a job."""


@dataclass(frozen=True, eq=False)
class VideoTools:
    """What redacts a film.

    Args:
        recognizer: tells people apart, to link tracks; None: nothing does, and nothing checks new faces.
        face_model: None where no face is generated.
        psi: diversity, so that the people of a film do not become clones of one mean face.
        methods: anonymisers for the modes that name one.
        gate: checks new faces and the result: one recogniser, or several as one; if not given, `recognizer` does.
        job_identities: where people are linked over the films of a job.
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

    def __post_init__(self) -> None:
        if self.gate is None:
            object.__setattr__(self, "gate", self.recognizer)

    @property
    def verifies(self) -> bool:
        """Whether a gate checks new faces."""
        return self.gate is not None and self.policy.verify


@dataclass(eq=False)
class FilmEngine:
    """What all films of one `Deidentifier` share: settings, tools, and the people known from earlier films.

    Args:
        model: None where nothing is generated.
        detector, recognizer, policy, mode, methods, mask_scale: as of the `Deidentifier`.
        layer: i of new faces.
        psi: diversity ψ; None: what the model does best with.
        thorough: search frames at all scales.
        gate: checks new faces; None: `recognizer` does.
    """

    model: FaceModel | None
    detector: FaceDetector
    recognizer: Recognizer | None
    policy: Policy
    mode: str
    methods: Methods
    mask_scale: float
    layer: int
    psi: float | None
    thorough: bool = False
    gate: Recognizer | None = None
    _people: People | None = None
    _identities: JobIdentities = field(default_factory=dict)

    def settings(self, **changes: Any) -> VideoSettings:
        """The usual settings with this mode, and what is changed."""
        verify = "sampled" if self.policy.verify else "off"
        return VideoSettings(**{"mode": self.mode, "mask_scale": self.mask_scale, "verify": verify, **changes})

    def tools(self, settings: VideoSettings, *, generate: bool = True, trusted: bool = False) -> VideoTools:
        """Detector, recogniser and model for a film.

        Args:
            settings: whose mode says whether the model is needed.
            generate: False where faces are only looked for.
            trusted: whether the mode comes from the caller; one from a file may not run programs.

        Raises:
            UsageError: faces are to be generated and there is no model.
        """
        if self.recognizer is None:  # people are told apart even where results are not verified
            self.recognizer = get_recognizer("auto")
        if generate and settings.mode == "ficgan" and self.model is None:
            raise UsageError(f"this Deidentifier was made for mode {self.mode} and has no model; make one for ficgan")
        psi = self.psi if self.psi is not None else 0.0 if self.model is None else self.model.auto_psi(2)
        # A photo is searched at several scales; a film has many looks at the same face.
        once = isinstance(self.detector, PyramidDetector) and not self.thorough
        detector = self.detector.once() if once else self.detector  # type: ignore[attr-defined]
        methods = self.methods.trusting(settings.mode) if trusted else self.methods
        return VideoTools(
            detector, self.recognizer, self.model, self.policy, self.layer, psi, methods, self.gate, self._identities
        )

    def linked(self, settings: VideoSettings) -> People | None:
        """People known from the earlier films, where they are to be linked."""
        if settings.link != "job":
            return None
        if self._people is None:
            recognizer = self.tools(settings, generate=False).recognizer
            assert recognizer is not None
            self._people = People.of(recognizer, "job")
        return self._people


class Cancelled(FicganError):
    """`is_cancelled` returned True; nothing was left behind."""

    def __init__(self, name: str) -> None:
        super().__init__(f"{name}: cancelled; nothing was written")


@dataclass(frozen=True, eq=False)
class FilmTask:
    """A film at work: what its stages have in common."""

    tools: VideoTools
    path: PathLike
    source: VideoSource
    settings: VideoSettings
    progress: Progress | None = None
    is_cancelled: IsCancelled | None = None

    def step(self, stage: str, total: int | None) -> Callable[[int], None]:
        """To be called with the number of each frame done; reports progress, or raises `Cancelled`."""

        def step(frame: int) -> None:
            if self.is_cancelled is not None and self.is_cancelled():
                raise Cancelled(self.source.name)
            if self.progress is not None:
                self.progress(frame + 1, None if total is None else max(total, frame + 1), stage)

        return step
