"""The one score matrix from which every privacy metric is made."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ficgan.errors import InputError, UsageError

from .comparison import (
    Comparison,
    EmbeddingComparison,
    Index,
    Likeness,
    MatrixComparison,
    ScoreArray,
    embeddings,
    finite,
)
from .counting import BINS, bins_of, count, look, over
from .intervals import Bootstrap, Floats
from .pairing import Columns, acquired_of, columns_of, gallery_kept, people_of

__all__ = ["Scores", "similarity_threshold"]


@dataclass(frozen=True, eq=False)
class Scores:
    """Probes against a gallery: what identification and verification need, without the matrix itself.

    A *genuine* score compares two images of one person, an *impostor* score two people. Higher is more alike: a
    cosine, or a negative distance. Counts of impostor scores are exact. Made by `compare`, `from_matrix`, `take`.

    Attributes:
        metric: "cosine" or "euclidean".
        people: [P] int64, who is in each probe.
        acquired: [P] bool; a probe that was not acquired (no face found) has no scores.
        enrolled: how many people the gallery holds.
        same: the probes were compared with themselves, each one's own image left out; every pair counts twice.
        twins: gallery images that have the very embedding of another person's image.
        genuine_pairs: [P] int64, enrolled images of the probe's person, also of probes that were not acquired.
        best_genuine: [P] float64; NaN for probes that were not acquired or whose person is not enrolled.
        best_impostor, impostor_person: [P] the most similar stranger, and who it is; NaN where not acquired.
        second_impostor: [P] the most similar image of any further stranger; −∞ where there is none.
        better, tied: [P] int64, how many strangers (people) lie above the best genuine score, and how many at it.
        genuine, genuine_probe: [N] all genuine scores, and the probe of each.
        thresholds: [T] the different genuine scores, ascending.
        impostors_above, impostors_at_least: [T] int64, impostor scores > and ≥ each threshold.
        impostors: how many impostor scores there are.
        tail: the highest 1 % of the impostor scores, descending.
        span: lowest and highest score of all.
        identities: [I] int64 ascending, the people of all probes.
        identity: [P] which of them a probe shows.
        impostor_histogram: [I,1000] int32, impostor scores of each identity's probes in equal bins over `span`.
    """

    metric: Likeness
    people: NDArray[np.int64]
    acquired: NDArray[np.bool_]
    enrolled: int
    same: bool
    twins: int
    genuine_pairs: NDArray[np.int64]
    best_genuine: NDArray[np.float64]
    best_impostor: NDArray[np.float64]
    impostor_person: NDArray[np.int64]
    second_impostor: NDArray[np.float64]
    better: NDArray[np.int64]
    tied: NDArray[np.int64]
    genuine: ScoreArray
    genuine_probe: Index
    thresholds: ScoreArray
    impostors_above: NDArray[np.int64]
    impostors_at_least: NDArray[np.int64]
    impostors: int
    tail: ScoreArray
    span: tuple[float, float]
    identities: NDArray[np.int64]
    identity: Index
    impostor_histogram: NDArray[np.int32]
    _comparison: Comparison = field(repr=False)
    _columns: Columns = field(repr=False)
    _chosen: Index = field(repr=False)
    _block: int = field(repr=False)
    _memory: dict[tuple[str, Bootstrap], tuple[Floats, Floats]] = field(default_factory=dict, repr=False)

    # -- making -----------------------------------------------------------------------------------------------------

    @classmethod
    def compare(
        cls,
        probe: ArrayLike,
        gallery: ArrayLike,
        probe_people: ArrayLike,
        gallery_people: ArrayLike,
        *,
        metric: Likeness,
        acquired: ArrayLike | None = None,
        exclude_same: bool = False,
        block: int = 1024,
    ) -> Scores:
        """Compare embeddings.

        Args:
            probe: [P,D] numbers.
            gallery: [G,D] numbers.
            probe_people: [P] integers ≥ 0, one per person.
            gallery_people: [G] the same.
            metric: "cosine", or "euclidean" for negative distances.
            acquired: [P] bool, where a probe has an embedding at all; the others may hold anything. None: everywhere.
            exclude_same: image i of the probes is image i of the gallery and is not compared with itself; images that
                were not acquired leave the gallery too. Linkability within one set.
            block: probes at a time at most; fewer where the gallery is large.

        Raises:
            InputError: shapes that do not fit, embeddings that are not finite, people who are not known, a gallery of
                fewer than two people, or none of the probes' people in it.
            UsageError: an unknown metric, or a block below 1.
        """
        probe, gallery = embeddings(probe, "probe"), embeddings(gallery, "gallery")
        if probe.shape[1] != gallery.shape[1]:
            raise InputError(
                f"probe embeddings have {probe.shape[1]} numbers and those of the gallery {gallery.shape[1]}; "
                "read both with one recogniser"
            )
        if metric not in ("cosine", "euclidean"):
            raise UsageError(f"there is no metric {metric!r}; use cosine or euclidean")
        people = people_of(probe_people, len(probe), "probe")
        enrolled = people_of(gallery_people, len(gallery), "gallery")
        seen = acquired_of(acquired, len(probe))
        kept = gallery_kept(people, enrolled, seen, exclude_same)
        finite(probe[seen], "probe")
        finite(gallery[kept], "gallery")
        order = kept[np.argsort(enrolled[kept], kind="stable")]
        columns = columns_of(people, enrolled, order, exclude_same)
        rows = np.where(seen[:, None], probe, probe.dtype.type(1))  # what was not acquired is never compared
        comparison = EmbeddingComparison(rows, gallery[order], metric)
        twins = comparison.twins(enrolled[order])
        return cls._of(comparison, columns, people, seen, exclude_same, twins, metric, block)

    @classmethod
    def from_matrix(
        cls,
        matrix: ArrayLike,
        probe_people: ArrayLike,
        gallery_people: ArrayLike,
        *,
        metric: Likeness = "cosine",
        acquired: ArrayLike | None = None,
        exclude_same: bool = False,
        block: int = 1024,
    ) -> Scores:
        """From similarities [P,G] that are there already, higher is more alike; the rest as in `compare`.

        Raises:
            InputError: as `compare`, and for scores that are not finite in the row of a probe that was acquired.
        """
        scores = embeddings(matrix, "matrix of")
        scores = scores if scores.dtype in (np.float32, np.float64) else scores.astype(np.float64)
        people = people_of(probe_people, len(scores), "probe")
        enrolled = people_of(gallery_people, scores.shape[1], "gallery")
        seen = acquired_of(acquired, len(scores))
        kept = gallery_kept(people, enrolled, seen, exclude_same)
        order = kept[np.argsort(enrolled[kept], kind="stable")]
        columns = columns_of(people, enrolled, order, exclude_same)
        return cls._of(MatrixComparison(scores, order), columns, people, seen, exclude_same, 0, metric, block)

    @classmethod
    def _of(
        cls,
        comparison: Comparison,
        columns: Columns,
        people: NDArray[np.int64],
        acquired: NDArray[np.bool_],
        same: bool,
        twins: int,
        metric: Likeness,
        block: int,
        chosen: Index | None = None,
    ) -> Scores:
        if block < 1:
            raise UsageError(f"a block of {block} probes cannot be compared; give at least 1")
        chosen = np.arange(len(people)) if chosen is None else chosen
        rows = chosen[acquired[chosen]]
        identities, of = np.unique(people[chosen], return_inverse=True)
        group = np.zeros(len(people), np.intp)
        group[chosen] = of.ravel()
        looks = look(comparison, columns, rows, block)
        thresholds = np.unique(looks.genuine)
        span, groups = looks.span, len(identities)
        exact = count(comparison, columns, rows, block, thresholds=thresholds, span=span, group=group, groups=groups)
        place = np.empty(len(people), np.intp)
        place[chosen] = np.arange(len(chosen))
        return cls(
            metric=metric,
            people=people[chosen],
            acquired=acquired[chosen],
            enrolled=len(columns.people),
            same=same,
            twins=twins,
            genuine_pairs=columns.genuine[chosen],
            best_genuine=looks.best_genuine[chosen],
            best_impostor=looks.best_impostor[chosen],
            impostor_person=looks.impostor_person[chosen],
            second_impostor=looks.second_impostor[chosen],
            better=looks.better[chosen],
            tied=looks.tied[chosen],
            genuine=looks.genuine,
            genuine_probe=place[looks.genuine_probe],
            thresholds=thresholds,
            impostors_above=exact.above,
            impostors_at_least=exact.at_least,
            impostors=columns.strangers(rows),
            tail=exact.tail,
            span=looks.span,
            identities=identities,
            identity=of.ravel(),
            impostor_histogram=exact.histogram,
            _comparison=comparison,
            _columns=columns,
            _chosen=chosen,
            _block=block,
        )

    def take(self, mask: ArrayLike) -> Scores:
        """The scores of some probes, such as those of one gender, against the whole gallery; compared again.

        Args:
            mask: [P] bool; all false is allowed, and every figure of it is then None.

        Raises:
            UsageError: another shape or kind.
        """
        wanted = np.asarray(mask)
        if wanted.shape != self.people.shape or wanted.dtype != bool:
            raise UsageError(f"a mask of {wanted.dtype} {list(wanted.shape)} chooses none of {len(self.people)} probes")
        people = np.zeros(len(self._columns.of), np.int64)
        acquired = np.zeros(len(self._columns.of), np.bool_)
        people[self._chosen], acquired[self._chosen] = self.people, self.acquired
        chosen = self._chosen[wanted]
        return self._of(
            self._comparison, self._columns, people, acquired, self.same, self.twins, self.metric, self._block, chosen
        )

    # -- reading ----------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self.people)

    @property
    def enrolled_probes(self) -> NDArray[np.bool_]:
        """[P] probes whose person is in the gallery, acquired or not."""
        return self.genuine_pairs > 0

    @property
    def mated(self) -> NDArray[np.bool_]:
        """[P] probes that have a genuine score."""
        return self.acquired & self.enrolled_probes

    @property
    def distinct_impostors(self) -> int:
        """Impostor pairs; half of the scores where a set was compared with itself."""
        return self.impostors // 2 if self.same else self.impostors

    @cached_property
    def genuine_counts(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """[T] genuine scores > and ≥ each threshold."""
        _, times = np.unique(self.genuine, return_counts=True)
        at_least = np.cumsum(times[::-1])[::-1].astype(np.int64)
        return at_least - times, at_least

    def sums(self, values: NDArray[Any]) -> NDArray[np.float64]:
        """Values of the probes [P] added up for each identity [I]."""
        added = np.bincount(self.identity, weights=values.astype(np.float64), minlength=len(self.identities))
        return added.astype(np.float64)  # of no probes at all it is whole numbers

    def genuine_over(self, threshold: float) -> NDArray[np.float64]:
        """[I] genuine scores above a threshold, for each identity."""
        who = self.identity[self.genuine_probe[self.genuine > threshold]]
        return np.bincount(who, minlength=len(self.identities)).astype(np.float64)

    def impostors_over(self, threshold: float) -> NDArray[np.int64]:
        """[P] impostor scores of each probe above a threshold, exactly; the probes are compared once more."""
        if not len(self.tail) or threshold >= self.tail[0]:
            return np.zeros(len(self), np.int64)
        rows = self._chosen[self.acquired]
        return over(self._comparison, self._columns, rows, self._block, threshold)[self._chosen]

    def impostor_counts(self) -> NDArray[np.float64]:
        """[I] impostor scores of each identity's probes."""
        return self.impostor_histogram.sum(1, dtype=np.float64)

    def resampled(self, bootstrap: Bootstrap) -> tuple[Floats, Floats]:
        """Histograms of genuine and of impostor scores over `span`: [1+R,1000] each, the first of all, then resamples.

        The gallery stays as it is: what is resampled are the people who are looked for.
        """
        return self._remembered("histograms", bootstrap, self._resample)

    def resampled_roc(self, bootstrap: Bootstrap) -> tuple[Floats, Floats]:
        """False and true accept rate [1+R,1001] at the edges of the bins, from the highest; NaN without scores."""
        return self._remembered("roc", bootstrap, self._resample_roc)

    def _resample(self, bootstrap: Bootstrap) -> tuple[Floats, Floats]:
        people = len(self.identities)
        at = self.identity[self.genuine_probe] * BINS + bins_of(self.genuine, self.span)
        genuine = np.bincount(at, minlength=people * BINS).reshape(people, BINS).astype(np.float32)
        impostor, drawn = self.impostor_histogram.astype(np.float32), bootstrap.weights(people)
        first, second = (np.concatenate([one.sum(0, np.float64)[None], drawn @ one]) for one in (genuine, impostor))
        return first, second

    def _resample_roc(self, bootstrap: Bootstrap) -> tuple[Floats, Floats]:
        rates = []
        for one in reversed(self.resampled(bootstrap)):
            total = np.zeros((len(one), BINS + 1))
            np.cumsum(one[:, ::-1], axis=1, out=total[:, 1:])
            whole = total[:, -1:].copy()
            rates.append(np.divide(total, whole, out=total, where=whole > 0))
            total[whole[:, 0] == 0] = np.nan
        return rates[0], rates[1]

    def _remembered(
        self, what: str, bootstrap: Bootstrap, make: Callable[[Bootstrap], tuple[Floats, Floats]]
    ) -> tuple[Floats, Floats]:
        """Of one bootstrap at a time: several metrics read the same resamples."""
        if (what, bootstrap) not in self._memory:
            for other in [key for key in self._memory if key[1] != bootstrap]:
                del self._memory[other]
            self._memory[what, bootstrap] = make(bootstrap)
        return self._memory[what, bootstrap]

    def threshold_at(self, far: float) -> float | None:
        """The impostor score above which at most a share `far` of the impostor scores lies.

        Args:
            far: above 0, at most .01.

        Returns:
            A threshold for `>`; None where there are fewer than 30/far pairs of strangers to know it from.

        Raises:
            UsageError: far out of range.
        """
        if not 0 < far <= 0.01:
            raise UsageError(f"a false accept rate of {far:g} is out of reach here; give one above 0, at most .01")
        if self.distinct_impostors * far < 30 - 1e-9:
            return None
        return float(self.tail[math.floor(far * self.impostors + 1e-9)])


def similarity_threshold(metric: Likeness, distance: float) -> float:
    """A recogniser's `match_threshold`, a distance, as a similarity: two faces match where the score is above it.

    Args:
        metric: the recogniser's: "cosine" (distances are 1 − cosine) or "euclidean".
        distance: its `match_threshold`.
    """
    return 1.0 - distance if metric == "cosine" else -distance
