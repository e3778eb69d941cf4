"""Scores against loops over the whole matrix, whatever the block; ties, failures, bad input; speed and memory."""

from __future__ import annotations

import time
import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from score_oracle import pairs, rank_odds

from ficgan.errors import InputError, UsageError
from ficgan.lab.metrics import comparison
from ficgan.lab.metrics.counting import BINS, bins_of
from ficgan.lab.metrics.identification import hits
from ficgan.lab.metrics.scores import Scores, similarity_threshold

People = NDArray[np.int64]


def people_with_mates(draw: Any, size: int) -> People:
    return np.array(draw(st.lists(st.integers(0, 4), min_size=size, max_size=size)))


@st.composite
def cases(draw: Any) -> tuple[NDArray[np.float64], People, People, NDArray[np.bool_], bool]:
    """Few values, so that many scores are equal."""
    same = draw(st.booleans())
    people = people_with_mates(draw, draw(st.integers(1, 9)))
    enrolled = people if same else people_with_mates(draw, draw(st.integers(1, 9)))
    acquired = np.array(draw(st.lists(st.booleans(), min_size=len(people), max_size=len(people))))
    seed = draw(st.integers(0, 2**16))
    matrix = np.random.default_rng(seed).integers(0, draw(st.sampled_from([1, 3, 50])), (len(people), len(enrolled)))
    return matrix.astype(np.float64), people, enrolled, acquired, same


@settings(max_examples=250, deadline=None)
@given(cases(), st.sampled_from([1, 2, 1024]))
def test_everything_kept_of_a_matrix_is_what_loops_find(case: Any, block: int) -> None:
    matrix, people, enrolled, acquired, same = case
    count = {person: int((enrolled == person).sum()) for person in enrolled}
    findable = [count.get(person, 0) > same for person in people]
    if len(count) < 2 or not any(findable):
        with pytest.raises(InputError):
            Scores.from_matrix(matrix, people, enrolled, acquired=acquired, exclude_same=same)
        return
    scores = Scores.from_matrix(matrix, people, enrolled, acquired=acquired, exclude_same=same, block=block)
    genuine, impostor = pairs(matrix, people, enrolled, acquired, same)
    values = np.array([score for *_, score in impostor])
    assert sorted(zip(scores.genuine_probe, scores.genuine, strict=True)) == sorted(genuine)
    assert scores.impostors == len(impostor)
    assert [int((values > t).sum()) for t in scores.thresholds] == scores.impostors_above.tolist()
    assert [int((values >= t).sum()) for t in scores.thresholds] == scores.impostors_at_least.tolist()
    for i, person in enumerate(people):
        own = [score for probe, score in genuine if probe == i]
        others: dict[int, float] = {}
        for probe, other, score in impostor:
            if probe == i:
                others[other] = max(score, others.get(other, -np.inf))
        assert bool(scores.mated[i]) == bool(own)
        if own:
            assert scores.best_genuine[i] == max(own)
        else:
            assert np.isnan(scores.best_genuine[i])
        for k in (1, 2, 3):
            assert hits(scores, k)[i] == pytest.approx(rank_odds(i, genuine, impostor, k))
        ranked = sorted(others.values(), reverse=True)
        if not acquired[i]:
            assert np.isnan(scores.best_impostor[i])
        elif ranked:
            assert scores.best_impostor[i] == ranked[0] == others[int(scores.impostor_person[i])]
            assert scores.second_impostor[i] == (ranked[1] if len(ranked) > 1 else -np.inf)
        for threshold in (-1.0, 1.0, 7.5):
            assert scores.impostors_over(threshold)[i] == sum(p == i and s > threshold for p, _, s in impostor)
        where = list(scores.identities).index(person)
        mine = np.array([s for p, _, s in impostor if people[p] == person])
        expected = np.bincount(bins_of(mine, scores.span), minlength=BINS)
        assert (scores.impostor_histogram[where] == expected).all()


@pytest.mark.parametrize("metric", ["cosine", "euclidean"])
@pytest.mark.parametrize("block", [1, 7, 1024])
def test_embeddings_are_compared_as_the_whole_matrix_is(rng: np.random.Generator, metric: Any, block: int) -> None:
    people, enrolled = rng.integers(0, 30, 90), np.concatenate([np.arange(30), rng.integers(0, 30, 47)])
    probe, gallery = rng.normal(2, 3, (90, 24)), rng.normal(2, 3, (77, 24))
    if metric == "cosine":
        unit = [x / np.linalg.norm(x, axis=1, keepdims=True) for x in (probe, gallery)]
        matrix = unit[0] @ unit[1].T
    else:
        matrix = -np.sqrt(((probe[:, None] - gallery[None]) ** 2).sum(2))
    whole = Scores.from_matrix(matrix, people, enrolled, metric=metric)
    scores = Scores.compare(probe, gallery, people, enrolled, metric=metric, block=block)
    assert (scores.better == whole.better).all() and (scores.tied == 0).all()
    for name in ("best_genuine", "best_impostor", "second_impostor", "tail", "span"):
        np.testing.assert_allclose(getattr(scores, name), getattr(whole, name), atol=3e-6 * np.abs(matrix).max())
    assert (scores.impostors_above == whole.impostors_above).all()
    assert (scores.impostor_person == whole.impostor_person).all()


def test_blocks_that_memory_forces_change_nothing(rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    people = np.arange(40) // 2
    probe, gallery = rng.integers(-2, 3, (40, 3)), rng.integers(-2, 3, (40, 3))
    probe[(probe == 0).all(1)] = gallery[(gallery == 0).all(1)] = 1
    one = Scores.compare(probe, gallery, people, people, metric="cosine")
    monkeypatch.setattr(comparison, "_ENTRIES", 120)  # three probes at a time
    many = Scores.compare(probe, gallery, people, people, metric="cosine")
    assert one.tied.sum() > 0
    for name in ("better", "tied", "impostors_above", "impostors_at_least", "impostor_histogram", "best_genuine"):
        assert (getattr(one, name) == getattr(many, name)).all(), name


def test_the_tail_is_the_top_of_the_impostors(rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    matrix = rng.normal(size=(700, 700)).astype(np.float32)
    people = np.arange(700)
    scores = Scores.from_matrix(matrix, people, people, block=50)
    impostor = np.sort(matrix[~np.eye(700, dtype=bool)])[::-1]
    assert (scores.tail == impostor[: len(scores.tail)]).all()
    for far in (1e-2, 1e-3, 1e-4):
        threshold = scores.threshold_at(far)
        assert threshold is not None
        assert (impostor > threshold).mean() <= far < (impostor >= threshold).mean()
    assert scores.threshold_at(6e-5) is None  # 30/far are 500,000 pairs, and there are 489,300
    with pytest.raises(UsageError, match="out of reach"):
        scores.threshold_at(0.02)


@pytest.mark.parametrize("metric", ["cosine", "euclidean"])
@pytest.mark.parametrize("size", [3, 16, 128, 512])
def test_constant_embeddings_tie_exactly(rng: np.random.Generator, metric: Any, size: int) -> None:
    """A matrix product alone gives equal rows unequal scores: BLAS adds up the edges of a matrix in another order."""
    people = np.arange(101)
    probe = np.tile(rng.normal(size=size), (101, 1))
    for gallery in (probe, np.tile(rng.normal(size=size), (101, 1))):
        scores = Scores.compare(probe, gallery, people, people, metric=metric)
        assert (scores.better == 0).all() and (scores.tied == 100).all()
        assert len(scores.thresholds) == 1 and scores.impostors_at_least[0] == 101 * 100
        assert scores.twins == 101


def test_equal_probes_have_equal_scores(rng: np.random.Generator) -> None:
    people = np.arange(57)
    probe = np.tile(rng.normal(size=(3, 40)), (19, 1))
    scores = Scores.compare(probe, rng.normal(size=(57, 40)), people, people, metric="cosine", block=4)
    for first in range(3):
        assert len(np.unique(np.maximum(scores.best_genuine, scores.best_impostor)[first::3])) == 1


def test_twins_are_counted(rng: np.random.Generator) -> None:
    gallery = rng.normal(size=(6, 8))
    gallery[4] = 2 * gallery[1]  # another person, and the same direction
    gallery[5] = gallery[0]  # the same person again
    people = np.array([0, 1, 2, 3, 4, 0])
    assert Scores.compare(gallery, gallery, people, people, metric="cosine").twins == 2
    assert Scores.compare(gallery, gallery, people, people, metric="euclidean").twins == 0


def test_what_was_not_acquired_may_hold_anything(rng: np.random.Generator) -> None:
    people = np.arange(20) // 2
    probe = rng.normal(size=(20, 8))
    acquired = rng.random(20) < 0.7
    broken = probe.copy()
    broken[~acquired] = np.nan
    for same in (False, True):
        kept = np.flatnonzero(acquired)
        part = people if not same else people[kept]
        gallery = rng.normal(size=(20, 8)) if not same else broken
        left = Scores.compare(
            probe[kept], gallery if not same else probe[kept], people[kept], part, metric="cosine", exclude_same=same
        )
        scores = Scores.compare(broken, gallery, people, people, metric="cosine", acquired=acquired, exclude_same=same)
        assert (scores.better[kept] == left.better).all()
        np.testing.assert_allclose(np.sort(scores.genuine), np.sort(left.genuine), atol=1e-6)
        assert scores.impostors == left.impostors
        assert np.isnan(scores.best_impostor[~acquired]).all() and not scores.mated[~acquired].any()


@pytest.mark.parametrize("same", [False, True])
def test_some_probes_are_what_they_would_be_alone(rng: np.random.Generator, same: bool) -> None:
    people = rng.integers(0, 12, 60)
    matrix = rng.integers(0, 40, (60, 60)).astype(float)
    acquired = rng.random(60) < 0.9
    scores = Scores.from_matrix(matrix, people, people, acquired=acquired, exclude_same=same, block=9)
    mask = rng.random(60) < 0.5
    some = scores.take(mask)
    genuine, impostor = pairs(matrix, people, people, acquired & mask, False)
    if same:
        seen = [(i, j) for i in range(60) for j in range(60) if i != j and acquired[i] and acquired[j] and mask[i]]
        genuine = [(i, matrix[i, j]) for i, j in seen if people[i] == people[j]]
        impostor = [(i, people[j], matrix[i, j]) for i, j in seen if people[i] != people[j]]
    assert sorted(some.genuine) == sorted(score for _, score in genuine)
    assert some.impostors == len(impostor)
    values = np.array([score for *_, score in impostor])
    assert [int((values > t).sum()) for t in some.thresholds] == some.impostors_above.tolist()
    assert (some.better == scores.better[mask]).all() and (some.people == people[mask]).all()
    assert (some.genuine_probe < mask.sum()).all()
    inner = mask[mask] & (rng.random(mask.sum()) < 0.5)
    again = some.take(inner)
    assert (again.better == some.better[inner]).all() and len(again) == inner.sum()
    assert (again.impostors_over(20) == some.impostors_over(20)[inner]).all()
    assert len(scores.take(np.zeros(60, bool))) == 0
    for bad in (np.ones(59, bool), np.ones(60, int)):
        with pytest.raises(UsageError, match="mask"):
            scores.take(bad)


def test_everything_failed() -> None:
    people = np.array([0, 0, 1, 1])
    for same in (False, True):
        scores = Scores.compare(
            np.full((4, 3), np.nan), np.ones((4, 3)), people, people,
            metric="euclidean", acquired=np.zeros(4, bool), exclude_same=same,
        )  # fmt: skip
        assert scores.impostors == len(scores.genuine) == 0 and not scores.mated.any()


def test_thresholds_of_recognisers() -> None:
    assert similarity_threshold("cosine", 0.67) == pytest.approx(0.33)
    assert similarity_threshold("euclidean", 0.6) == -0.6


GOOD = np.eye(4)
WHO = np.array([0, 0, 1, 1])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"probe": GOOD[:0]}, "probe embeddings"),
        ({"gallery": GOOD[:0]}, "gallery embeddings"),
        ({"gallery": np.zeros(4)}, "gallery embeddings"),
        ({"probe": GOOD.astype(str)}, "probe embeddings"),
        ({"probe": GOOD[:, :3]}, "one recogniser"),
        ({"probe": np.where(GOOD > 0, np.nan, 0)}, "4 of 4 probe embeddings are not finite"),
        ({"gallery": np.where(GOOD > 0, np.inf, 0)}, "gallery embeddings are not finite"),
        ({"probe": np.zeros((4, 4))}, "probe embedding number 0 is all zeros"),
        ({"gallery": np.diag([1, 1, 0, 1])}, "gallery embedding number 2 is all zeros"),
        ({"probe_people": WHO[:3]}, "4 probe images"),
        ({"gallery_people": WHO / 2}, "4 gallery images"),
        ({"gallery_people": np.array([0, 0, 1, -1])}, "not known"),
        ({"gallery_people": np.zeros(4, int)}, "holds 1 person"),
        ({"gallery_people": WHO + 7}, "none of the probes' people"),
        ({"acquired": np.ones(3, bool)}, "booleans"),
        ({"acquired": np.ones(4)}, "booleans"),
        ({"exclude_same": True, "gallery_people": WHO[::-1]}, "in one order"),
        ({"exclude_same": True, "probe_people": np.arange(4), "gallery_people": np.arange(4)}, "no person has two"),
    ],
)
def test_bad_input_is_refused(change: dict[str, Any], message: str) -> None:
    arguments: dict[str, Any] = {"probe": GOOD, "gallery": GOOD, "probe_people": WHO, "gallery_people": WHO}
    with pytest.raises(InputError, match=message):
        Scores.compare(**{**arguments, "metric": "cosine", **change})


def test_bad_options_are_refused() -> None:
    with pytest.raises(UsageError, match="no metric 'cos'"):
        Scores.compare(GOOD, GOOD, WHO, WHO, metric="cos")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="block of 0"):
        Scores.compare(GOOD, GOOD, WHO, WHO, metric="cosine", block=0)


def test_scores_that_are_not_finite_are_refused() -> None:
    matrix = np.ones((4, 4))
    matrix[2, 1] = np.nan
    with pytest.raises(InputError, match="probe number 2 are not finite"):
        Scores.from_matrix(matrix, WHO, WHO)
    acquired = np.array([True, True, False, True])
    assert Scores.from_matrix(matrix, WHO, WHO, acquired=acquired).impostors == 6
    with pytest.raises(InputError, match="not finite"):  # too large for float32
        Scores.compare(GOOD * 1e30, GOOD, WHO, WHO, metric="euclidean")
    assert Scores.compare(GOOD * 1e300, GOOD * 1e-300, WHO, WHO, metric="cosine").span == (0.0, 1.0)


def test_memory_does_not_grow_with_the_probes(rng: np.random.Generator) -> None:
    peaks = []
    gallery, enrolled = rng.normal(size=(2000, 16)).astype(np.float32), np.arange(2000)
    for probes in (2000, 8000):
        probe, people = rng.normal(size=(probes, 16)).astype(np.float32), np.arange(probes) % 200
        tracemalloc.start()
        Scores.compare(probe, gallery, people, enrolled, metric="cosine", block=256)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < peaks[0] + 6000 * 16 * 4 * 4 + 6e6  # the embeddings and their copies, not the 48 MB of scores
    assert peaks[1] < 8000 * 2000 * 4 / 2


@pytest.mark.slow
def test_ten_thousand_by_ten_thousand_takes_seconds_and_less_memory_than_the_matrix(rng: np.random.Generator) -> None:
    people = np.arange(10_000)
    centres = rng.standard_normal((10_000, 512), np.float32)
    probe, gallery = (centres + 2 * rng.standard_normal((10_000, 512), np.float32) for _ in range(2))
    start, used = time.perf_counter(), time.process_time()
    scores = Scores.compare(probe, gallery, people, people, metric="cosine")
    seconds, used = time.perf_counter() - start, time.process_time() - used
    print(f"10,000 × 10,000 × 512: {seconds:.1f} s, {used:.1f} s of processors")
    assert used < 60  # of processors, since other work on the machine does not count
    unit = [x / np.linalg.norm(x, axis=1, keepdims=True) for x in (probe, gallery)]
    whole = unit[0] @ unit[1].T
    assert np.mean(whole.argmax(1) == people) == pytest.approx(hits(scores, 1).mean(), abs=1e-4)
    impostor = np.sort(whole[~np.eye(10_000, dtype=bool)])
    above = len(impostor) - impostor.searchsorted(scores.thresholds, "right")
    assert np.abs(above - scores.impostors_above).max() <= 1e-6 * len(impostor)  # float32, added up in another order
    del whole, impostor
    tracemalloc.start()
    Scores.compare(probe, gallery, people, people, metric="cosine")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 200e6  # the matrix would be 400 MB, and sorting it as much again
