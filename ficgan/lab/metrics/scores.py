"""The similarity of every probe to every enrolled image. All privacy metrics are computed from it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ficgan.errors import InputError
from ficgan.lab.metrics import Floats

Index = NDArray[np.intp]
Booleans = NDArray[np.bool_]
Metric = Literal["cosine", "euclidean"]


@dataclass(frozen=True, eq=False)
class Scores:
    """Probes against a gallery; made by `compare`, `from_matrix` or `take`.

    A *genuine* score compares two images of one person, an *impostor* score two people.
    """

    similarity: Floats  # [P,G], higher is more alike; NaN where an image is not compared with another
    people: NDArray[np.int64]  # [P], who is in each probe
    gallery: NDArray[np.int64]  # [G] ascending, who is in each enrolled image
    acquired: Booleans  # [P]; a probe that was not acquired (no face found) has no scores
    metric: Metric  # "euclidean": negative distances
    same: bool = False  # the probes were compared with themselves; every pair counts twice

    @classmethod
    def compare(
        cls,
        probe: ArrayLike,
        gallery: ArrayLike,
        probe_people: ArrayLike,
        gallery_people: ArrayLike,
        *,
        metric: Metric,
        acquired: ArrayLike | None = None,
        exclude_same: bool = False,
    ) -> Scores:
        """Compare embeddings [P,D] with [G,D] by "cosine", or by negative "euclidean" distance.

        Args:
            probe_people, gallery_people: [P] and [G] integers ≥ 0, one per person.
            acquired: [P] bool, which probes have an embedding; None: all.
            exclude_same: image i of the probes is image i of the gallery and is not compared with itself (linkability).
        """
        x, y = np.asarray(probe), np.asarray(gallery)
        if x.ndim != 2 or y.ndim != 2 or not x.size or not y.size or x.shape[1] != y.shape[1]:
            shapes = f"{list(x.shape)} and those of the gallery {list(y.shape)}"
            raise InputError(f"probe embeddings are {shapes}; read at least one face of each with one recogniser")
        seen = np.ones(len(x), bool) if acquired is None else np.asarray(acquired)
        kept = np.flatnonzero(seen) if exclude_same else np.arange(len(y))
        for what, rows, used in (("probe", x, np.flatnonzero(seen)), ("gallery", y, kept)):
            _check_embeddings(rows, used, what, metric)
        scores = np.full((len(x), len(y)), np.nan, np.float32)
        enrolled = np.asarray(gallery_people)
        scores[np.ix_(seen, kept)] = _similarities(x[seen], y[kept], metric)
        return cls._of(scores, probe_people, enrolled, seen, metric, exclude_same)

    @classmethod
    def from_matrix(
        cls,
        matrix: ArrayLike,
        probe_people: ArrayLike,
        gallery_people: ArrayLike,
        *,
        metric: Metric = "cosine",
        acquired: ArrayLike | None = None,
        exclude_same: bool = False,
    ) -> Scores:
        """From similarities [P,G], higher is more alike; the rest as in `compare`."""
        given = np.asarray(matrix)
        scores = given.astype(given.dtype if given.dtype in (np.float32, np.float64) else np.float64)
        seen = np.ones(len(scores), bool) if acquired is None else np.asarray(acquired)
        scores[~seen] = np.nan
        return cls._of(scores, probe_people, np.asarray(gallery_people), seen, metric, exclude_same)

    @classmethod
    def _of(
        cls,
        scores: Floats,
        probe_people: ArrayLike,
        gallery_people: NDArray[Any],
        acquired: Booleans,
        metric: Metric,
        same: bool,
    ) -> Scores:
        people, enrolled = np.asarray(probe_people, np.int64), np.asarray(gallery_people, np.int64)
        for what, who in (("probe", people), ("gallery", enrolled)):
            if (who < 0).any():
                unknown = f"{int((who < 0).sum())} {what} images"
                raise InputError(f"{unknown} show people who are not known (number −1); leave them out")
        who, images = np.unique(enrolled, return_counts=True)
        if len(who) < 2:
            raise InputError(f"the gallery holds {len(who)} person; with fewer than two, every guess is right")
        if not np.isin(people, who[images > same]).any():
            reason = "no person has two images" if same else "none of the probes' people is in the gallery"
            raise InputError(f"{reason}, so there is nothing to find; check the split")
        kept = np.flatnonzero(acquired) if same else np.arange(len(enrolled))
        bad = np.flatnonzero(acquired)[~np.isfinite(scores[np.ix_(acquired, kept)]).all(1)]
        if len(bad):
            raise InputError(f"scores of probe number {bad[0]} are not finite; check its embedding, or leave it out")
        if same:
            np.fill_diagonal(scores, np.nan)
        order = kept[np.argsort(enrolled[kept], kind="stable")]
        return cls(scores[:, order], people, enrolled[order], acquired, metric, same)

    def take(self, mask: Booleans) -> Scores:
        """The scores of the probes where `mask` [P] is true, against the whole gallery."""
        return replace(self, similarity=self.similarity[mask], people=self.people[mask], acquired=self.acquired[mask])

    def __len__(self) -> int:
        return len(self.people)

    # -- people -------------------------------------------------------------------------------------------------------

    @cached_property
    def _first(self) -> Index:
        """[E] the first column of each enrolled person."""
        return np.flatnonzero(np.diff(self.gallery, prepend=-1))

    @property
    def enrolled(self) -> int:
        return len(self._first)

    @cached_property
    def genuine_pairs(self) -> NDArray[np.int64]:
        """[P] enrolled images of the probe's person, its own image left out; also of probes not acquired."""
        first, last = (np.searchsorted(self.gallery, self.people, side) for side in ("left", "right"))
        return np.asarray(last - first - (self.acquired & self.same), np.int64)

    @property
    def enrolled_probes(self) -> Booleans:
        """[P] probes whose person is in the gallery, acquired or not."""
        return self.genuine_pairs > 0

    @property
    def mated(self) -> Booleans:
        """[P] probes that have a genuine score."""
        return self.acquired & self.enrolled_probes

    @cached_property
    def identities(self) -> NDArray[np.int64]:
        """[I] the people of all probes, ascending."""
        return np.unique(self.people)

    @cached_property
    def identity(self) -> Index:
        """[P] which of the identities a probe shows."""
        return np.searchsorted(self.identities, self.people)

    def sums(self, values: NDArray[Any]) -> NDArray[np.float64]:
        """Values of the probes [P] added up for each identity [I]."""
        added = np.bincount(self.identity, weights=values.astype(np.float64), minlength=len(self.identities))
        return added.astype(np.float64)  # without any probe NumPy gives integers

    # -- scores -------------------------------------------------------------------------------------------------------

    @cached_property
    def _pairs(self) -> tuple[Booleans, Booleans]:
        """[P,G] where the genuine and where the impostor scores are."""
        alike, compared = self.people[:, None] == self.gallery, ~np.isnan(self.similarity)
        return alike & compared, ~alike & compared

    @cached_property
    def genuine(self) -> Floats:
        """[N] all genuine scores, probe by probe."""
        return self.similarity[self._pairs[0]]

    @cached_property
    def genuine_probe(self) -> Index:
        """[N] the probe of each genuine score."""
        return np.nonzero(self._pairs[0])[0]

    @cached_property
    def impostors(self) -> Floats:
        """[M] all impostor scores, ascending."""
        scores = self.similarity[self._pairs[1]]
        scores.sort()
        return scores

    @cached_property
    def impostors_of(self) -> NDArray[np.int64]:
        """[P] how many impostor scores each probe has."""
        return np.count_nonzero(self._pairs[1], axis=1)

    @property
    def distinct_impostors(self) -> int:
        """Impostor pairs; half of the scores where a set was compared with itself."""
        return len(self.impostors) // 2 if self.same else len(self.impostors)

    def impostors_over(self, threshold: float) -> NDArray[np.int64]:
        """[P] impostor scores of each probe above a threshold."""
        return np.count_nonzero((self.similarity > threshold) & self._pairs[1], axis=1)

    @cached_property
    def best_genuine(self) -> Floats:
        """[P] the most similar enrolled image of the probe's person; NaN without a genuine score."""
        best = np.full(len(self), np.nan, self.similarity.dtype)
        np.fmax.at(best, self.genuine_probe, self.genuine)
        return best

    def strangers(self, limit: Floats) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """[P] how many other people have their best image above, and how many at, a limit [P]; none at NaN."""
        best = np.fmax.reduceat(self.similarity, self._first, axis=1)  # [P,E]
        best[self.people[:, None] == self.gallery[self._first]] = np.nan
        return np.count_nonzero(best > limit[:, None], axis=1), np.count_nonzero(best == limit[:, None], axis=1)

    @cached_property
    def rivals(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """[P] how many other people lie above the best genuine score, and how many at it."""
        return self.strangers(self.best_genuine)


def _similarities(probe: NDArray[Any], gallery: NDArray[Any], metric: Metric) -> NDArray[np.float32]:
    """[P,G]; equal embeddings have equal similarities, to the bit."""
    if metric == "cosine":
        x, y = _unit(probe), _unit(gallery)
    else:  # about the gallery's mean, where float32 cancels least
        centre = gallery.mean(0, dtype=np.float64) if len(gallery) else 0.0
        with np.errstate(over="ignore"):
            x, y = ((rows - centre).astype(np.float32) for rows in (probe, gallery))
    (x, x_of), (y, y_of) = _distinct(x), _distinct(y)
    with np.errstate(over="ignore", invalid="ignore"):  # the caller refuses what is not finite
        scores = x @ y.T
        if metric == "euclidean":
            scores *= -2
            scores += np.einsum("nd,nd->n", x, x)[:, None]
            scores += np.einsum("nd,nd->n", y, y)
            np.sqrt(np.maximum(scores, 0, out=scores), out=scores)
            np.negative(scores, out=scores)
    scores = scores if len(x) == len(x_of) else scores[x_of]
    return scores if len(y) == len(y_of) else scores[:, y_of]


def _unit(array: NDArray[Any]) -> NDArray[np.float32]:
    rows = array / np.abs(array).max(1, keepdims=True).astype(np.float64)
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


def _distinct(array: NDArray[np.float32]) -> tuple[NDArray[np.float32], Index]:
    array = array + 0.0  # −0 becomes 0, so that equal rows have equal bytes
    rows = array.view(np.dtype((np.void, array.dtype.itemsize * array.shape[1]))).ravel()
    _, first, of = np.unique(rows, return_index=True, return_inverse=True)
    return (array, np.arange(len(array))) if len(first) == len(array) else (array[first], of.ravel())


def _check_embeddings(array: NDArray[Any], rows: Index, what: str, metric: Metric) -> None:
    for wrong, bad in (
        ("are not finite", ~np.isfinite(array[rows]).all(1)),
        ("are all zeros, which has no cosine", ~array[rows].any(1) & (metric == "cosine")),
    ):
        if bad.any():
            first = f"{bad.sum()} of {len(rows)} {what} embeddings, such as number {rows[bad][0]},"
            raise InputError(f"{first} {wrong}; leave these faces out")
