"""Recognisers as judges: in batches, and retrained on anonymised faces."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ficgan.anonymizers import Faces
from ficgan.errors import UsageError
from ficgan.faces import Recognizer, get_recognizer
from ficgan.files import file_digest

Embeddings = NDArray[np.float32]
BATCH = 64  # Faces read together: bounds memory


@dataclass(frozen=True)
class Reader:
    """A recogniser that judges; `digest` is of the network's file, or the name."""

    recognizer: Recognizer
    name: str
    given: str
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
        parts = []
        each = getattr(self.recognizer, "embed_each", None)
        for begin in range(0, len(faces), BATCH):
            images, marks = faces.images[begin : begin + BATCH], faces.landmarks[begin : begin + BATCH]
            if each is not None:
                parts.append(each(images, marks))
            else:
                pairs = zip(images, marks, strict=True)
                parts.append(np.stack([self.recognizer.embed(image, face[None])[0] for image, face in pairs]))
        return np.concatenate(parts) if parts else np.zeros((0, 0), np.float32)


def get_readers(names: Sequence[str], device: str = "cpu") -> list[Reader]:
    """Judges by name: dlib (on the CPU), insightface, or onnx:PATH."""
    readers = []
    for given in names:
        recognizer = get_recognizer(given, device="cpu" if given == "dlib" else device)
        kind, colon, file = given.partition(":")
        name = Path(file).stem if colon else kind
        path = getattr(recognizer, "path", None)  # of a network that the user brought
        digest = file_digest(path) if path else getattr(recognizer, "digest", name)
        readers.append(Reader(recognizer, name, given, digest))
    if len({reader.name for reader in readers}) < len(readers):
        raise UsageError("two judges have the same name; give each one once, and onnx files different names")
    return readers


def cosines(a: Embeddings, b: Embeddings) -> NDArray[np.float64]:
    """Of pairs [N,D], one by one: float64 [N]."""
    return (_unit(a) * _unit(b)).sum(1)


def similarities(a: Embeddings, b: Embeddings, metric: str) -> NDArray[np.float64]:
    """Of all pairs [N,D] × [M,D]: float64 [N,M], a cosine or minus the distance."""
    if metric == "cosine":
        return _unit(a) @ _unit(b).T
    x, y = np.asarray(a, np.float64), np.asarray(b, np.float64)
    return -np.sqrt(((x * x).sum(1)[:, None] + (y * y).sum(1) - 2 * x @ y.T).clip(0))


def paired(reader: Reader, clear: Embeddings, made: Embeddings) -> NDArray[np.float64]:
    """[N] similarities of sources and outputs, by the recogniser's own metric."""
    if reader.metric == "cosine":
        return cosines(clear, made)
    return -np.linalg.norm(clear.astype(np.float64) - made, axis=1)


def _unit(x: Embeddings) -> NDArray[np.float64]:
    wide = np.asarray(x, np.float64)
    return wide / np.linalg.norm(wide, axis=1, keepdims=True).clip(1e-12)


# -- parrots: judges that have learnt from anonymised faces of people who are in no gallery and no probe --------------

LEAST_PEOPLE = 10  # People with two images or more; fewer teach nothing


def discriminant(
    embeddings: NDArray[np.floating], people: NDArray[np.integer], *, shrinkage: float = 0.1
) -> NDArray[np.float64]:
    """Fisher's linear discriminant [D,K] of embeddings [N,D] of people [N] (Fisher 1936; Ioffe 2006): compare x @ M.

    One person's embeddings get unit covariance, with `shrinkage` of the mean variance mixed in; directions in which
    people hardly differ are weakened (Wiener).
    """
    x = np.asarray(embeddings, np.float64)
    values, index, counts = np.unique(people, return_inverse=True, return_counts=True)
    several = counts[index] > 1
    if (counts > 1).sum() < LEAST_PEOPLE:
        raise UsageError(
            f"retraining needs {LEAST_PEOPLE} people with two images among the attacker's, and there are "
            f"{(counts > 1).sum()}"
        )
    x, index, size = x[several], index[several], x.shape[1]
    basis = None
    if len(x) < size:  # all that can be learnt lies in the span of the images: elsewhere the gain is 0
        _, spans, vectors = np.linalg.svd(x - x.mean(0), full_matrices=False)
        basis = vectors[spans > 1e-10 * spans[0]].T
        x = x @ basis
    means = np.zeros((len(values), x.shape[1]))
    np.add.at(means, index, x)
    means = means[counts > 1] / counts[counts > 1, None]
    lookup = np.cumsum(counts > 1) - 1
    inside = x - means[lookup[index]]
    within = inside.T @ inside / (len(x) - len(means))
    if np.trace(within) <= 1e-12 * max(1.0, float((x**2).sum(1).mean())):
        return np.eye(size)  # one person's embeddings are all alike: there is nothing to weigh
    within += shrinkage * np.trace(within) / size * np.eye(len(within))
    spread = means - means.mean(0)
    between = spread.T @ spread / (len(means) - 1) - within / counts[counts > 1].mean()
    values_w, vectors_w = np.linalg.eigh(within)
    whiten = vectors_w / np.sqrt(values_w.clip(1e-9 * values_w[-1]))
    strength, directions = np.linalg.eigh(whiten.T @ between @ whiten)
    gain = np.sqrt((strength / (1 + strength)).clip(0))
    matrix = whiten @ directions * gain
    return matrix if basis is None else basis @ matrix


def retrain_head(seen: Embeddings, people: NDArray[np.integer]) -> tuple[Callable[[Embeddings], Embeddings], str]:
    """A linear map of a judge's embeddings learnt from anonymised faces [N,D], to compare by cosine, and a note."""
    matrix, mean = discriminant(seen, people), seen.mean(0)
    return lambda embeddings: ((embeddings - mean) @ matrix).astype(np.float32), (
        "Linear head retrained on anonymised faces, network fixed."
    )
