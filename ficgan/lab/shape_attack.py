"""Who names people by the shape of the face in their published pictures, having learnt from other people's photos.

The figures are lower bounds: who has a better mesh, or more photos to learn from, names more people.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from ficgan.errors import UsageError
from ficgan.lab.metrics.intervals import Bootstrap
from ficgan.lab.metrics.privacy import rank
from ficgan.lab.metrics.scores import Scores
from ficgan.lab.probe import Change, Kind, Probe, fit_probe, whitening
from ficgan.lab.results import Figure
from ficgan.lab.retrain import LEAST_PEOPLE
from ficgan.lab.shape import Shapes

__all__ = ["JUDGES", "ShapeAttack", "several", "standardised"]

Rows = Sequence[int] | NDArray[np.integer]
JUDGES: Mapping[str, Kind] = {"nearest": "cosine", "LDA": "linear", "network": "network"}
"""How shapes are compared → the probe that does it."""
_IMAGES_EACH = 3
"""Clear photos that each component needs that the network sees: shapes have few, and little noise."""
_NOBODY = -2.0
"""Below every cosine: such a pair is not compared."""


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
        whiten = dict.fromkeys(self.judges, standardised) | {"network": partial(whitening, each=_IMAGES_EACH)}
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


def _cosines(a: NDArray[np.floating], b: NDArray[np.floating]) -> NDArray[np.float64]:
    """Of all pairs [N,D] × [M,D]; 0 with what has no direction."""
    x, y = (np.asarray(one, np.float64) for one in (a, b))
    x, y = (one / np.linalg.norm(one, axis=1, keepdims=True).clip(1e-12) for one in (x, y))
    return x @ y.T


def _spelled(numbers: Sequence[int]) -> str:
    return "/".join(map(str, dict.fromkeys(numbers)))
