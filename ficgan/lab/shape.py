"""Who tells people apart by the shape of the face in a picture alone: neither skin nor colours count.

A mesh is read at the known landmarks and its pose is taken out by a rigid fit. What is left are 1,404 coordinates, each
in standard deviations from those of a mean face. The mean face is the embedded model's, whatever model is attacked: it
is a yardstick and decides nothing (on the London set a mean of the set's own clear photos gives the same figures).
`ShapeRecognizer` is a judge like any other; `ficgan.lab.shape_attack` learns first what tells people apart.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ficgan import pretrained
from ficgan.errors import InputError, UsageError
from ficgan.faces import FaceMesh, MediaPipeMesh, find_meshes
from ficgan.frame import NUMBERS, FaceShape, rigid_fit
from ficgan.identity.file import file_digest

__all__ = ["ShapeRecognizer", "Shapes"]

READABLE = 0.0
"""Least presence of a mesh that is compared: a poor one costs the attacker nothing, none at all would help nobody."""
_MATCH = 1 - 0.85
"""1 − cosine. Of 703,882 pairs of strangers among FairFace's validation faces one in a thousand is nearer."""


@dataclass(frozen=True)
class Shapes:
    """Shapes of N faces.

    Args:
        points: float32 [N,1404], coordinates without pose, in standard deviations from the mean face; 0 without a mesh.
        readable: bool [N], whether there is a mesh.
    """

    points: NDArray[np.float32]
    readable: NDArray[np.bool_]

    def take(self, rows: Any) -> Shapes:
        """The same of some faces."""
        return Shapes(self.points[rows], self.readable[rows])

    def __add__(self, other: Shapes) -> Shapes:
        readable = np.concatenate([self.readable, other.readable])
        return Shapes(np.concatenate([self.points, other.points]), readable)


class ShapeRecognizer:
    """A recogniser that sees nothing but the shape of a face.

    Args:
        mesh: reads meshes; None: MediaPipe's.
        device: of the mesh.
        match_threshold: of 1 − cosine; None: that of FAR 1e-3 among strangers.
    """

    name = "shape"
    metric: Literal["cosine", "euclidean"] = "cosine"

    def __init__(
        self, mesh: FaceMesh | None = None, *, device: str = "cpu", match_threshold: float | None = None
    ) -> None:
        self.mesh: FaceMesh = mesh or MediaPipeMesh(device="cpu" if device == "cpu" else "auto")
        self.match_threshold = _MATCH if match_threshold is None else match_threshold

    @property
    def digest(self) -> str:
        """Of what the embeddings depend on besides the pictures."""
        mean, spread = _yardstick()
        state = hashlib.sha256(mean.tobytes() + spread.tobytes())
        state.update(file_digest(pretrained.path("mesh")).encode())
        return f"shape {state.hexdigest()}"

    def read(self, images: Sequence[NDArray[np.uint8]] | NDArray[np.uint8], landmarks: ArrayLike) -> Shapes:
        """Shapes of N pictures [H,W,3] uint8 RGB with a face each, at landmarks [N,5,2]."""
        mean, spread = _yardstick()
        points = np.zeros((len(images), *mean.shape))
        readable = np.zeros(len(images), bool)
        for row, (image, marks) in enumerate(zip(images, np.asarray(landmarks, np.float64), strict=True)):
            try:
                (found,) = find_meshes(self.mesh, image, marks[None])
            except InputError:  # landmarks in one point or on a line
                continue
            if found.presence >= READABLE and np.isfinite(found.points).all():
                points[row], readable[row] = found.points[: len(mean)], True
        if readable.any():
            seen = points[readable]
            points[readable] = (rigid_fit(mean, seen).unposed(seen) - mean) / spread
        return Shapes(points.reshape(len(images), -1).astype(np.float32), readable)

    def embed(self, image: NDArray[np.uint8], landmarks: ArrayLike) -> NDArray[np.float32]:
        """Embeddings [N,1405] of the faces of one picture."""
        return self.embed_each([image] * len(np.asarray(landmarks)), landmarks)

    def embed_each(
        self, images: Sequence[NDArray[np.uint8]] | NDArray[np.uint8], landmarks: ArrayLike
    ) -> NDArray[np.float32]:
        """Embeddings [N,1405] of pictures with a face each.

        The last number is a small constant: the mean face, which stands where no mesh is readable, has a direction,
        too, and one that is nobody's.
        """
        if not len(images):
            return np.zeros((0, 0), np.float32)
        points = self.read(images, landmarks).points
        return np.concatenate([points, np.full((len(points), 1), 1e-3, np.float32)], 1)

    @staticmethod
    def unread(embeddings: NDArray[np.floating[Any]]) -> int:
        """How many of these embeddings are of faces without a readable mesh."""
        return int((~embeddings[:, :-1].any(1)).sum()) if embeddings.size else 0

    def distance(self, a: ArrayLike, b: ArrayLike) -> float:
        """1 − cosine of two embeddings."""
        x, y = np.asarray(a, np.float64), np.asarray(b, np.float64)
        return 1.0 - float(x @ y / (np.linalg.norm(x) * np.linalg.norm(y)))

    def is_match(self, a: ArrayLike, b: ArrayLike) -> bool:
        """Whether two embeddings count as one person's."""
        return not self.distance(a, b) >= self.match_threshold


@lru_cache(maxsize=1)
def _yardstick() -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Mean mesh [468,3], and how much its coordinates vary with people and expressions."""
    from safetensors.numpy import load_file

    try:
        shape = FaceShape.from_arrays(load_file(pretrained.path("model")))
    except (FileNotFoundError, KeyError):
        raise UsageError("shapes are measured by the embedded appearance model's mean face; it has none here") from None
    moved = np.concatenate([shape.basis, shape.moves[1 : 1 + len(NUMBERS)]]).astype(np.float64)
    return shape.mean.astype(np.float64), np.sqrt(np.square(moved).sum(0)).clip(1e-6)
