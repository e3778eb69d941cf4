"""What redacts a film, and what all films of one engine share."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ficgan.anonymizers.modes import Methods
from ficgan.errors import UsageError
from ficgan.face_model import FaceModel
from ficgan.faces import FaceDetector, Recognizer, get_recognizer
from ficgan.faces.detection import PyramidDetector
from ficgan.policy import Policy
from ficgan.video.people import People
from ficgan.video.settings import VideoSettings

__all__ = ["Films", "VideoTools"]


@dataclass(frozen=True, eq=False)
class VideoTools:
    """What redacts a film."""

    detector: FaceDetector
    recognizer: Recognizer | None = None
    """Tells people apart, to link tracks; None: nothing does, and nothing checks new faces."""
    face_model: FaceModel | None = None
    """None where no face is generated."""
    policy: Policy = field(default_factory=Policy)
    layer: int = 0
    psi: float = 0.6
    """Diversity, so that the people of a film do not become clones of one mean face."""
    methods: Methods = field(default_factory=Methods)
    """Anonymisers for the modes that name one."""
    gate: Recognizer | None = None
    """Checks new faces and the result: one recogniser, or several as one; if not given, `recognizer` does."""

    casts_of_job: dict[str, tuple[NDArray[np.float32], int, NDArray[np.float32] | None]] = field(default_factory=dict)
    """Person → source's code, rung of the ladder and kind in earlier films, where they are linked."""

    def __post_init__(self) -> None:
        if self.gate is None:
            object.__setattr__(self, "gate", self.recognizer)


@dataclass(eq=False)
class Films:
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
    _casts: dict[str, tuple[NDArray[np.float32], int, NDArray[np.float32] | None]] = field(default_factory=dict)

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
            detector, self.recognizer, self.model, self.policy, self.layer, psi, methods, self.gate, self._casts
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
