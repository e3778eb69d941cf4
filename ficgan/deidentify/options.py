"""Options of `Deidentifier`, in groups: whose face is drawn, what hides a face, which faces are found, how results are
checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from ficgan.errors import UsageError
from ficgan.faces import FaceDetector, Recognizer
from ficgan.policy import Policy

if TYPE_CHECKING:
    from ficgan.anonymizers import Anonymizer, Faces

__all__ = ["FALLBACKS", "Box", "Checking", "Diversity", "Finding", "Hiding", "Identity", "Image"]

Image = NDArray[np.uint8]
Diversity = float | Literal["auto"]
Box = tuple[float, float, float, float]
FALLBACKS: tuple[str, ...] = ("solid", "blur", "mosaic", "average")
"""What may cover a face that cannot be generated; average: one patch in the mean colour of the face."""


@dataclass(frozen=True)
class Identity:
    """Who takes a face's place. The model itself holds k, the band, attributes and directions.

    Args:
        layer: i; style layers 1..i keep the source's code, 0 is strongest. Up to L − 1.
        psi: diversity ψ of the variance-restored mean; "auto": what the model does best with.
        seed: of the draws of anonymisers; None: a random one that is not kept.
        exemplar: uint8 [H,W,3] RGB with one face, given by the user.
    """

    layer: int = 0
    psi: Diversity = "auto"
    seed: int | None = None
    exemplar: Image | None = None


@dataclass(frozen=True)
class Hiding:
    """What hides a face.

    Args:
        mode: "ficgan"; "blur", "mosaic" (both reversible), "solid"; NAME or NAME:PARAMETER=VALUE,… of
            `ficgan.anonymizers.ANONYMIZERS`; or an anonymiser.
        fallback: what covers a face in a photo that cannot be generated, one of `FALLBACKS`. A cover that leaves the
            face recognisable is replaced by a solid one.
        mask_scale: size of the replaced region, 1 covers hairline to chin.
        background: other people's aligned faces, for the anonymisers that need them.

    Raises:
        UsageError: a value that cannot work.
    """

    mode: str | Anonymizer = "ficgan"
    fallback: str = "solid"
    mask_scale: float = 1.0
    background: Faces | None = None

    def __post_init__(self) -> None:
        if not self.mask_scale > 0:
            raise UsageError(f"mask scale {self.mask_scale} must be above 0; 1 covers hairline to chin")
        if self.fallback not in FALLBACKS:
            raise UsageError(f"fallback {self.fallback!r} is unknown; it is one of {', '.join(FALLBACKS)}")


@dataclass(frozen=True)
class Finding:
    """Which faces are found, and which of them stay.

    Args:
        detector: a back end, or a name for `get_detector`.
        threshold: lowest score that the detector reports.
        scale: factor of the picture that is searched, see `get_detector`.
        thorough: every photo is searched at all scales, and so is every frame of a film that the detector looks at.
        min_score: finds with a lower score are taken for no faces and stay as they are.
        strict: doubtful finds (low score, cut by the border) get the fallback in place of a new face, and so do places
            whose score is somewhat below the threshold, which are otherwise named in the account and left.
        keep: photos of people who stay as they are, by name.
        only: photos of people who are hidden, and nobody else, by name.
        boxes: faces that lie inside one of these boxes stay, x0, y0, x1, y1 in pixels.
    """

    detector: FaceDetector | str = "auto"
    threshold: float | None = None
    scale: float | None = None
    thorough: bool = False
    min_score: float | None = None
    strict: bool = False
    keep: Mapping[str, Image] = field(default_factory=dict)
    only: Mapping[str, Image] = field(default_factory=dict)
    boxes: Sequence[Box] = ()


@dataclass(frozen=True)
class Checking:
    """How each new face is checked.

    Args:
        recognizer: a back end, a name for `get_recognizer`, or several: a face passes only where none of them takes it
            for its source. The first also tells people apart.
        policy: verification, retries and coverage.
    """

    recognizer: Recognizer | str | Sequence[Recognizer | str] | None = "auto"
    policy: Policy = field(default_factory=Policy)

    @property
    def recognizers(self) -> tuple[Recognizer | str, ...]:
        """All of them."""
        if self.recognizer is None:
            return ()
        several = isinstance(self.recognizer, Sequence) and not isinstance(self.recognizer, str)
        return tuple(self.recognizer) if several else (self.recognizer,)  # type: ignore[arg-type, return-value]
