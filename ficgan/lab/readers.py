"""Recognisers as judges: in batches, by the shape of the face alone, and retrained on anonymised faces."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file
from scipy.linalg import eigh

from ficgan import pretrained
from ficgan.anonymizers import Faces
from ficgan.arrays import blocks
from ficgan.errors import InputError, UsageError
from ficgan.faces import MediaPipeMesh, find_meshes, get_recognizer
from ficgan.files import file_digest
from ficgan.frame import NUMBERS, FaceShape, rigid_fit

Embeddings = NDArray[np.float32]
BATCH = 64  # Faces read together: bounds memory


@dataclass(frozen=True)
class Reader:
    """A recogniser that judges; `digest` is of the network's file, or the name."""

    recognizer: Any  # A `Recognizer`, or a `ShapeRecognizer`
    name: str
    digest: str

    @property
    def metric(self) -> Any:
        """ "cosine" or "euclidean"."""
        return self.recognizer.metric

    @property
    def threshold(self) -> float:
        """Similarity (cosine, or minus the distance) above which two faces count as one person."""
        limit = self.recognizer.match_threshold
        return 1.0 - limit if self.metric == "cosine" else -limit

    def embed(self, faces: Faces) -> Embeddings:
        """Embeddings [N,D] float32 at the landmarks given, whether or not a detector would find a face there."""
        rows = blocks(len(faces), BATCH)
        parts = [self.embed_each(faces.images[some], faces.landmarks[some]) for some in rows]
        return np.concatenate(parts) if parts else np.zeros((0, 0), np.float32)

    def embed_each(self, images: NDArray[np.uint8], landmarks: NDArray[Any]) -> Embeddings:
        """Embeddings [N,D] of the face of each picture, all in one batch where the recogniser can."""
        if (each := getattr(self.recognizer, "embed_each", None)) is not None:
            return np.asarray(each(images, landmarks))
        pairs = zip(images, landmarks, strict=True)
        return np.stack([self.recognizer.embed(image, face[None])[0] for image, face in pairs])

    def unread(self, embeddings: Embeddings) -> int:
        """How many of these embeddings [N,D] are of faces that the judge could not read."""
        return int((~embeddings[:, :-1].any(1)).sum()) if isinstance(self.recognizer, ShapeRecognizer) else 0


def get_readers(names: Sequence[str], device: str = "cpu") -> list[Reader]:
    """Judges by name: dlib (on the CPU), insightface, onnx:PATH, or shape."""
    readers = []
    for given in names:
        where = "cpu" if given == "dlib" else device
        of: Any = ShapeRecognizer(where) if given == "shape" else get_recognizer(given, device=where)
        name = Path(given.removeprefix("onnx:")).stem if given.startswith("onnx:") else given
        path = getattr(of, "path", None)  # of a network that the user brought
        readers.append(Reader(of, name, file_digest(path) if path else getattr(of, "digest", name)))
    if len({reader.name for reader in readers}) < len(readers):
        raise UsageError("two judges have the same name; give each one once, and onnx files different names")
    return readers


def unit(x: Embeddings) -> NDArray[np.float64]:
    """Rows [N,D] of length 1; zeros stay."""
    wide = np.asarray(x, np.float64)
    return wide / np.linalg.norm(wide, axis=1, keepdims=True).clip(1e-12)


def cosines(a: Embeddings, b: Embeddings) -> NDArray[np.float64]:
    """Of pairs [N,D], one by one: float64 [N]."""
    return (unit(a) * unit(b)).sum(1)


def paired(reader: Reader, clear: Embeddings, made: Embeddings) -> NDArray[np.float64]:
    """[N] similarities of sources and outputs, by the recogniser's own metric."""
    if reader.metric == "cosine":
        return cosines(clear, made)
    return -np.linalg.norm(clear.astype(np.float64) - made, axis=1)


def read_meshes(mesh: MediaPipeMesh, images: NDArray[np.uint8], landmarks: NDArray[Any]) -> NDArray[np.float64]:
    """[N,478,3] the mesh of the face at the landmarks of each picture; NaN where there is none."""
    out = np.full((len(images), 478, 3), np.nan)
    for row, (image, marks) in enumerate(zip(images, landmarks, strict=True)):
        with suppress(InputError):  # landmarks in one point or on a line
            (found,) = find_meshes(mesh, image, np.asarray(marks, np.float64)[None])
            if found.presence >= 0:
                out[row] = found.points
    return out


class ShapeRecognizer:
    """A recogniser that sees nothing but the mesh at the known landmarks, without pose and expression."""

    name = "shape"
    metric = "cosine"
    match_threshold = 1 - 0.717  # one in a thousand pairs of strangers among FairFace's validation faces is nearer

    def __init__(self, device: str = "cpu") -> None:
        self._mesh = MediaPipeMesh(device="cpu" if device == "cpu" else "auto")
        self.digest = f"shape {file_digest(pretrained.path('mesh'))} {file_digest(pretrained.path('linear'))}"

    def embed_each(self, images: NDArray[np.uint8], landmarks: NDArray[Any]) -> Embeddings:
        """Embeddings [N,1405] of pictures with a face each; the last number gives missing meshes a direction."""
        mean, spread, moving = _yardstick()
        points = read_meshes(self._mesh, images, landmarks)[:, : len(mean)]
        found = np.isfinite(points).all((1, 2))
        points[~found] = 0
        if found.any():
            points[found] = (rigid_fit(mean, points[found]).unposed(points[found]) - mean) / spread
        flat = points.reshape(len(images), mean.size).astype(np.float32)
        flat -= flat @ moving @ moving.T
        return np.pad(flat, [(0, 0), (0, 1)], constant_values=1e-3)


@lru_cache(maxsize=1)
def _yardstick() -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float32]]:
    """Mean mesh [468,3], spread of its coordinates, and, in these units, what expressions and turns add [1404,10]."""
    shape = FaceShape.from_arrays(load_file(pretrained.path("linear")))
    moves = shape.moves[1:].astype(np.float64)
    moved = np.concatenate([shape.basis, moves[: len(NUMBERS)]]).astype(np.float64)
    spread = np.sqrt(np.square(moved).sum(0)).clip(1e-6)
    moving, _ = np.linalg.qr((moves / spread).reshape(len(moves), -1).T)
    return shape.mean.astype(np.float64), spread, moving.astype(np.float32)


RETRAINED = "Linear head retrained on anonymised faces, network fixed."  # Note of figures
LEAST_PEOPLE = 10  # People with two images or more; fewer teach nothing
_SHRINKAGE = 0.1  # Share of the mean variance in the covariance of one person's embeddings


def discriminant(embeddings: NDArray[np.floating], people: NDArray[np.integer]) -> NDArray[np.float64]:
    """Fisher's linear discriminant [D,K] of embeddings [N,D] of people [N] (Fisher 1936; Ioffe 2006): compare x @ M.

    One person's embeddings get unit covariance, with a tenth of the mean variance mixed in; directions in which
    people hardly differ are weakened (Wiener).
    """
    x = np.asarray(embeddings, np.float64)
    _, index, counts = np.unique(people, return_inverse=True, return_counts=True)
    x, people = x[counts[index] > 1], people[counts[index] > 1]
    values, index, counts = np.unique(people, return_inverse=True, return_counts=True)
    if len(values) < LEAST_PEOPLE:
        asked = f"retraining needs {LEAST_PEOPLE} people with two images among the attacker's"
        raise UsageError(f"{asked}, and there are {len(values)}")
    means = np.zeros((len(values), x.shape[1]))
    np.add.at(means, index, x)
    means /= counts[:, None]
    inside, spread = x - means[index], means - means.mean(0)
    within = inside.T @ inside / (len(x) - len(means))
    if np.trace(within) <= 1e-12 * max(1.0, float((x**2).sum(1).mean())):
        return np.eye(x.shape[1])  # one person's embeddings are all alike: there is nothing to weigh
    within += _SHRINKAGE * np.trace(within) / len(within) * np.eye(len(within))
    between = spread.T @ spread / (len(means) - 1) - within / counts.mean()
    strength, directions = eigh(between, within)
    return np.asarray(directions * np.sqrt((strength / (1 + strength)).clip(0)))


def retrain_head(seen: Embeddings, people: NDArray[np.integer]) -> Callable[[Embeddings], Embeddings]:
    """A linear map of a judge's embeddings learnt from anonymised faces [N,D], to compare by cosine."""
    matrix, mean = discriminant(seen, people), seen.mean(0)
    return lambda embeddings: ((embeddings - mean) @ matrix).astype(np.float32)
