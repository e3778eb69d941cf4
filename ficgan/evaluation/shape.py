"""Who tells people apart by the shape of the face in a picture alone: neither skin nor colours count.

A mesh is read at the known landmarks and its pose is taken out by a rigid fit. What is left are 1,404 coordinates, each
in standard deviations from those of a mean face. The mean face is the embedded model's, whatever model is attacked: it
is a yardstick and decides nothing (on the London set a mean of the set's own clear photos gives the same figures).
`ShapeRecognizer` is a judge like any other; `ShapeAttack` learns first what tells other people apart.

The figures are lower bounds: who has a better mesh, or more photos to learn from, names more people.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ficgan import pretrained
from ficgan.errors import InputError, UsageError
from ficgan.evaluation.metrics.identification import rank
from ficgan.evaluation.metrics.intervals import Bootstrap
from ficgan.evaluation.metrics.scores import Scores
from ficgan.evaluation.probe import Change, Kind, Probe, fit_probe, whitening
from ficgan.evaluation.results import Figure
from ficgan.evaluation.retrain import LEAST_PEOPLE
from ficgan.faces import FaceMesh, MediaPipeMesh, find_meshes
from ficgan.frame import NUMBERS, FaceShape, rigid_fit
from ficgan.identity.file import file_digest

__all__ = ["JUDGES", "ShapeAttack", "ShapeRecognizer", "Shapes", "several", "standardised"]

Rows = Sequence[int] | NDArray[np.integer]
JUDGES: Mapping[str, Kind] = {"nearest": "cosine", "LDA": "linear", "network": "network"}
"""How shapes are compared → the probe that does it."""
READABLE = 0.0
"""Least presence of a mesh that is compared: a poor one costs the attacker nothing, none at all would help nobody."""
_MATCH = 1 - 0.85
"""1 − cosine. Of 703,882 pairs of strangers among FairFace's validation faces one in a thousand is nearer."""
_IMAGES_EACH = 3
"""Clear photos that each component needs that the network sees: shapes have few, and little noise."""
_NOBODY = -2.0
"""Below every cosine: such a pair is not compared."""


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
    metric: Literal["cosine"] = "cosine"

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


@dataclass(frozen=True)
class _Part:
    """People who are compared with each other.

    Args:
        gallery, probe: places among the enrolled and among those who are looked for.
        heads: judge → what it makes of shapes.
        taught: how many people the heads have learnt from.
    """

    gallery: NDArray[np.intp]
    probe: NDArray[np.intp]
    heads: Mapping[str, Probe]
    taught: int


class ShapeAttack:
    """Judges who name people by the shape in published pictures, with a clear photo of each enrolled.

    They learn from other people's clear photos: "nearest" what is usual, the others what tells people apart. Without
    lessons, half of the people teach while the other half are enrolled and looked for, and the other way round.

    Args:
        clear: shapes of N clear photos.
        people: [N], who they are.
        gallery, probe: rows of the enrolled photos, and of those whose published pictures are looked for.
        lessons: shapes of clear photos of other people, and who these are.
        also: shapes of N published pictures; without lessons those of the teaching people teach, too.
        judges: names of `JUDGES`.
        seed: of the halves and of the network.

    Raises:
        UsageError: too few people to learn from.
    """

    def __init__(
        self, clear: Shapes, people: NDArray[np.integer], gallery: Rows, probe: Rows, *,
        lessons: tuple[Shapes, NDArray[np.integer]] | None = None, also: Shapes | None = None,
        judges: Sequence[str] = tuple(JUDGES), seed: int = 0,
    ) -> None:  # fmt: skip
        self.clear, self.people, self.judges = clear, people, tuple(judges)
        self.gallery, self.probe = np.asarray(gallery, np.intp), np.asarray(probe, np.intp)
        everybody = np.arange(len(self.gallery)), np.arange(len(self.probe))
        if lessons is not None:
            self.parts = [_Part(*everybody, *self._learnt(*lessons, seed))]
            return
        half = self._halves(seed)
        self.parts = []
        for number in (0, 1):
            rows = np.flatnonzero(half != number)
            shapes, who = clear.take(rows), people[rows]
            if also is not None:
                shapes, who = shapes + also.take(rows), np.concatenate([who, who])
            here, there = (np.flatnonzero(half[some] == number) for some in (self.gallery, self.probe))
            self.parts.append(_Part(here, there, *self._learnt(shapes, who, seed)))

    def ranks(self, published: Shapes, bootstrap: Bootstrap) -> dict[str, Figure]:
        """Judge → rank-1 of published pictures.

        Args:
            published: shapes of the N pictures; only those of the probes count.
            bootstrap: draws people.
        """
        enrolled, seen = self.clear.take(self.gallery), published.take(self.probe)
        unread = int((~seen.readable).sum()), int((~enrolled.readable).sum())
        sizes = [len(part.gallery) for part in self.parts]
        note = f"chance {np.mean([1 / max(size, 1) for size in sizes]):.3f}; {_spelled(sizes)} people enrolled, "
        note += f"learnt on {_spelled([part.taught for part in self.parts])} others"
        if any(unread):
            note += f"; no mesh in {unread[0]} published and {unread[1]} enrolled pictures"
        out = {}
        for judge in self.judges:
            table = np.full((len(self.probe), len(self.gallery)), _NOBODY)
            for part in self.parts:
                a, b = seen.points[part.probe], enrolled.points[part.gallery]
                found = _cosines(part.heads[judge]((a,)), part.heads[judge]((b,)))
                found[:, ~enrolled.readable[part.gallery]] = _NOBODY
                found[~seen.readable[part.probe]] = 0.0  # all alike: a lot is drawn
                table[np.ix_(part.probe, part.gallery)] = found
            scores = Scores.from_matrix(table, self.people[self.probe], self.people[self.gallery])
            out[judge] = replace(rank(scores, 1, bootstrap=bootstrap), note=note)
        return out

    def _learnt(self, shapes: Shapes, people: NDArray[np.integer], seed: int) -> tuple[dict[str, Probe], int]:
        """A head of each judge, and of how many people it learnt."""
        rows = np.flatnonzero(shapes.readable)
        rows = rows[np.isin(people[rows], several(people[rows]))]
        x, who = shapes.points[rows], people[rows]
        if (count := len(np.unique(who))) < LEAST_PEOPLE:
            needed = f"{LEAST_PEOPLE} people with two readable photos"
            raise UsageError(f"shapes are told apart by who has learnt from {needed}, and there are {count}")
        whiten = {judge: standardised for judge in self.judges} | {"network": partial(whitening, each=_IMAGES_EACH)}
        return {one: fit_probe(JUDGES[one], (x,), who, seed=seed, whiten=whiten[one]) for one in self.judges}, count

    def _halves(self, seed: int) -> NDArray[np.intp]:
        """[N], 0 or 1: two halves of the people, with as many in each who have several photos."""
        who, index, counts = np.unique(self.people, return_inverse=True, return_counts=True)
        order = np.random.default_rng(seed).permutation(len(who))
        order = order[np.argsort(counts[order] < 2, kind="stable")]
        half = np.empty(len(who), np.intp)
        half[order] = np.arange(len(who)) % 2
        return half[index.reshape(-1)]


def several(people: NDArray[np.integer]) -> NDArray[np.integer]:
    """Those of whom there are two images or more."""
    who, counts = np.unique(people, return_counts=True)
    return who[counts > 1]


def standardised(codes: NDArray[np.floating]) -> Change:
    """Each number in standard deviations from its mean over codes [N,D]; those that never vary count for nothing."""
    mean, spread = codes.mean(0, dtype=np.float64), codes.std(0, dtype=np.float64)
    scale = np.divide(1, spread, out=np.zeros_like(spread), where=spread > 1e-6 * spread.max(initial=0))
    return lambda given: ((given - mean) * scale).astype(np.float32)


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


def _cosines(a: NDArray[np.floating], b: NDArray[np.floating]) -> NDArray[np.float64]:
    """Of all pairs [N,D] × [M,D]; 0 with what has no direction."""
    x, y = (np.asarray(one, np.float64) for one in (a, b))
    x, y = (one / np.linalg.norm(one, axis=1, keepdims=True).clip(1e-12) for one in (x, y))
    return x @ y.T


def _spelled(numbers: Sequence[int]) -> str:
    return "/".join(map(str, dict.fromkeys(numbers)))
