"""What a de-identification returns: the picture, and an account of every face."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["FaceResult", "Result"]


@dataclass
class FaceResult:
    """What was done to one face."""

    box: NDArray[np.float32]
    landmarks: NDArray[np.float32]
    score: float
    action: str = "generated"
    """One of: generated, retried (a stronger setting), masked (nothing else passed), kept (left as found), blurred,
    mosaic, solid, or an anonymiser's name."""
    attempts: int = 1
    layer: int | None = None
    k: int | None = None
    """People behind the new identity code; None where there is none (masked, swapped, other modes)."""
    psi: float | None = None
    members_digest: str | None = None
    distance: float | None = None
    """Between source and output, by the gate; None where it was not asked. With several recognisers the least of all,
    in units of each one's threshold."""
    matched: bool = False
    """Whether the gate takes the output for the source."""
    matched_by: list[str] = field(default_factory=list)
    """Recognisers that took the output, or an attempt before it, for the source."""
    covered: bool = True
    square: tuple[int, int, int] | None = None
    """x0, y0, side of the hard-edged square that an anonymiser was given; None for others."""
    name: str | None = None
    """Of the face for a method with a key, who has which inverts it; None for others."""
    note: str = ""
    """Why a cover took a face's place, why it was kept, or what a person who looks at the new face should know."""
    doubt: str = ""
    """Why the find may be no face, or only a part of one; "" where it is clear."""

    def mask(self, why: str = "") -> None:
        """Record that a cover took the place of the generated face."""
        self.action, self.matched, self.note = "masked", False, why
        self.layer = self.k = self.psi = self.members_digest = self.distance = self.square = self.name = None

    def keep(self, why: str) -> None:
        """Record that the face stays as it was found."""
        self.action, self.note, self.attempts, self.covered = "kept", why, 0, False

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready, without embeddings."""
        told = {
            "box": [round(float(v), 1) for v in self.box],
            "landmarks": [[round(float(v), 1) for v in point] for point in self.landmarks],
            "score": round(float(self.score), 4),
            "action": self.action,
            "attempts": self.attempts,
            "layer": self.layer,
            "k": self.k,
            "psi": self.psi,
            "members_digest": self.members_digest,
            "distance": None if self.distance is None else round(self.distance, 4),
            "matched": self.matched,
            "covered": self.covered,
        }
        if self.matched_by:
            told["matched_by"] = self.matched_by
        if self.note:
            told["note"] = self.note
        if self.doubt:
            told["doubt"] = self.doubt
        if self.square is not None:
            told["square"] = list(self.square)
        if self.name is not None:
            told["name"] = self.name
        return told


@dataclass
class Result:
    """A de-identified image and its account."""

    image: NDArray[Any]
    """A new array with the channels and the depth of the input."""
    faces: list[FaceResult]
    audit: dict[str, Any]
    mask: NDArray[np.float32]
    """[H,W]: how much of each pixel was replaced; where it is 0 the image is bit-identical to the input."""

    @property
    def uncovered(self) -> int:
        """Faces that should be hidden, and neither the blend nor a cover hides."""
        return sum(not face.covered and face.action != "kept" for face in self.faces)

    @property
    def reidentified(self) -> int:
        """Faces the gate still recognises; 0 says nothing where `audit["gate"]` is None."""
        return sum(face.matched for face in self.faces)
