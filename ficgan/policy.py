"""When a face may leave (covered, verified, else retried, else masked: fail closed), and the record of each face."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import cv2
import numpy as np
from numpy.typing import ArrayLike, NDArray

CORE = 0.3  # Half-axes of the ellipse that must be hidden, as a share of the detector's box: eyes, nose and mouth
# How far from a landmark the cover may end where a mesh was found, as a share of the box's width. The far eye of a
# turned head lies on its outline, and detectors misplace it by more than that.
NEAR = 0.06
INNER = 0.7  # The same as a share of a mesh's outline, which is the face itself and needs no allowance for a loose box


@dataclass(frozen=True)
class Attempt:
    """One setting to try for a face."""

    layer: int  # i; style layers 1..i keep the source's code (unless `band` is given)
    band: tuple[int, int] | None = None  # first and last style layer that take the new code
    draw: int = 0  # number of the k-same draw; another one gives another face
    psi: float = 0.0  # least diversity ψ: with the plain mean (0) all draws are one face
    bare: bool = False  # a fringe or a hat before the forehead is drawn over, too: a recogniser may know a face by it


@dataclass(frozen=True)
class Policy:
    """Number and strength of attempts for a face before it is masked.

    Args:
        verify: whether an independent recogniser reads each face again.
        retries: most attempts after the first.
        coverage: blend weight that the landmarks and the core of the box need, in (0, 1].
    """

    verify: bool = True
    retries: int = 6
    coverage: float = 0.9

    def attempts(self, layer: int, band: tuple[int, int] | None = None, *, drawn: bool = True) -> list[Attempt]:
        """The ladder for a first setting: less of the source's code each time, then faces farther from the mean.

        The first has the layer index i, or the layers of `band`. An exemplar's own code, which is not `drawn` from the
        bank, has no other draws.
        """
        ladder = [Attempt(layer, band)]
        if band is None and layer > 1:
            ladder.append(Attempt(layer // 2, draw=1 if drawn else 0))
        if drawn:
            spread = (0.6, 1.0, 1.0, 1.0, 1.2, 1.2)
            ladder += [Attempt(0, draw=number, psi=psi, bare=psi > 1) for number, psi in enumerate(spread, 2)]
        elif band is not None or layer > 0:
            ladder.append(Attempt(0))
        return ladder[: self.retries + 1]


def covered(
    mask: NDArray[np.float32], landmarks: ArrayLike, box: ArrayLike, least: float, outline: ArrayLike | None = None
) -> bool:
    """Whether the blend mask hides the face.

    Args:
        mask: [H,W], 0 (untouched) to 1 (replaced).
        landmarks: five points (x, y) in pixels; those outside the image need no cover.
        box: x0, y0, x1, y1 of the detector; an ellipse over its middle must be hidden too.
        least: weight wanted at every landmark (near it where there is an outline) and at 19 of 20 pixels of the
            ellipse, in (0, 1].
        outline: [n,2], convex outline of the face where a mesh of it was found. Its inner part may take the place
            of the ellipse, as a tilted or turned face does not fill its box.
    """
    height, width = mask.shape
    points = np.rint(np.asarray(landmarks)).astype(int)
    inside = (points >= 0).all(1) & (points[:, 0] < width) & (points[:, 1] < height)
    x0, y0, x1, y1 = (float(value) for value in np.asarray(box))
    near = 0 if outline is None else round(NEAR * (x1 - x0))
    for x, y in points[inside]:
        if mask[max(y - near, 0) : y + near + 1, max(x - near, 0) : x + near + 1].max() < least:
            return False
    if outline is not None and inside.any():  # the landmarks say that it is this face's
        inner = _weights_inside(mask, np.asarray(outline, np.float64))
        if inner.size and (inner >= least).mean() >= 0.95:
            return True  # else the ellipse decides: hair over the forehead, which stays, may reach into the outline
    centre, half = ((x0 + x1) / 2, (y0 + y1) / 2), (max(CORE * (x1 - x0), 0.5), max(CORE * (y1 - y0), 0.5))
    columns = np.arange(max(0, round(centre[0] - half[0])), min(width, round(centre[0] + half[0]) + 1))
    rows = np.arange(max(0, round(centre[1] - half[1])), min(height, round(centre[1] + half[1]) + 1))
    ellipse = ((columns - centre[0]) / half[0]) ** 2 + ((rows[:, None] - centre[1]) / half[1]) ** 2 <= 1
    weights = mask[rows[:, None], columns][ellipse] if ellipse.any() else np.ones(1)
    return bool((weights >= least).mean() >= 0.95)


def _weights_inside(mask: NDArray[np.float32], outline: NDArray[np.float64]) -> NDArray[np.float32]:
    middle = (outline.min(0) + outline.max(0)) / 2
    inner = np.rint(middle + INNER * (outline - middle)).astype(np.int32)
    height, width = mask.shape
    low, high = inner.min(0).clip(0), inner.max(0).clip(-1, (width - 1, height - 1))
    region = mask[low[1] : high[1] + 1, low[0] : high[0] + 1]
    if not region.size:  # outside the picture
        return region.ravel()
    return region[cv2.fillConvexPoly(np.zeros(region.shape, np.uint8), inner - low.astype(np.int32), 1) > 0]


@dataclass
class FaceResult:
    """The record of one face.

    Args:
        box, landmarks, score: of the detector.
        action: generated, retried (a stronger setting), masked (nothing else passed), kept (left as found), plain,
            black, solid, blurred, mosaic, or an anonymiser's name.
        attempts: how many were tried.
        layer: i of the last attempt.
        k: people behind the new identity code; None where there is none (masked, swapped, other modes).
        psi: diversity ψ of the draw.
        members_digest: of the draw, see `KSameCode`.
        kind: of the group that keeps the source's kind, see `KindGroup.record`; None where nothing was kept.
        distance: between source and output, by the gate, of children divided by their `match_share`; None where it was
            not asked. With several recognisers the least of all, in units of each one's threshold.
        matched: whether the gate takes the output for the source.
        matched_by: recognisers that took the output, or an attempt before it, for the source.
        covered: whether the mask hides the face.
        square: x0, y0, side of the hard-edged square that an anonymiser was given; None for others.
        name: of the face for a method with a key, whose holder can invert it; None for others.
        note: why a cover took a face's place, why it was kept, or a remark on the new face.
        doubt: why the find may be no face, or only a part of one; "" where it is clear.
    """

    box: NDArray[np.float32]
    landmarks: NDArray[np.float32]
    score: float
    action: str = "generated"
    attempts: int = 1
    layer: int | None = None
    k: int | None = None
    psi: float | None = None
    members_digest: str | None = None
    kind: dict[str, Any] | None = None
    distance: float | None = None
    matched: bool = False
    matched_by: list[str] = field(default_factory=list)
    covered: bool = True
    square: tuple[int, int, int] | None = None
    name: str | None = None
    note: str = ""
    doubt: str = ""

    def mask(self, why: str = "") -> None:
        """Record that a cover took the place of the generated face."""
        self.action, self.matched, self.note = "masked", False, why
        self.layer = self.k = self.psi = self.members_digest = self.kind = self.distance = None
        self.square = self.name = None

    def keep(self, why: str) -> None:
        """Record that the face stays as it was found."""
        self.action, self.note, self.attempts, self.covered = "kept", why, 0, False

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready, without embeddings."""
        names = ("action", "attempts", "layer", "k", "psi", "members_digest", "matched", "covered")
        record: dict[str, Any] = {name: getattr(self, name) for name in names} | {
            "box": [round(float(value), 1) for value in self.box],
            "landmarks": [[round(float(value), 1) for value in point] for point in self.landmarks],
            "score": round(float(self.score), 4),
            "distance": None if self.distance is None else round(self.distance, 4),
        }
        for name in ("matched_by", "note", "doubt", "kind", "square", "name"):
            if value := getattr(self, name):
                record[name] = list(value) if name == "square" else value
        return record


@dataclass
class Result:
    """A de-identified image and its account.

    Args:
        image: a new array with the channels, the depth and the colour space of the input.
        faces: their records.
        audit: JSON-ready account.
        mask: float32 [H,W], how much of each pixel was replaced; where it is 0 the image is bit-identical to the input.
    """

    image: NDArray[Any]
    faces: list[FaceResult]
    audit: dict[str, Any]
    mask: NDArray[np.float32]

    @property
    def uncovered(self) -> int:
        """Faces that should be hidden, and neither the blend nor a cover hides."""
        return sum(not face.covered and face.action != "kept" for face in self.faces)

    @property
    def reidentified(self) -> int:
        """Faces the gate still recognises; 0 says nothing where `audit["gate"]` is None."""
        return sum(face.matched for face in self.faces)
