"""Scores against loops over the whole matrix: ties, failures, a set with itself, groups, bad input."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from score_oracle import pairs, rank_odds

from ficgan.errors import InputError
from ficgan.lab.metrics.privacy import Scores, hits, vertices

People = NDArray[np.int64]


@st.composite
def cases(draw: Any) -> tuple[NDArray[np.float64], People, People, NDArray[np.bool_], bool]:
    """Few values, so that many scores are equal."""
    some_people = st.lists(st.integers(0, 4), min_size=1, max_size=9).map(np.array)
    same = draw(st.booleans())
    people = draw(some_people)
    enrolled = people if same else draw(some_people)
    acquired = np.array(draw(st.lists(st.booleans(), min_size=len(people), max_size=len(people))))
    seed = draw(st.integers(0, 2**16))
    matrix = np.random.default_rng(seed).integers(0, draw(st.sampled_from([1, 3, 50])), (len(people), len(enrolled)))
    return matrix.astype(np.float64), people, enrolled, acquired, same


@given(st.lists(cases(), min_size=12, max_size=12))
def test_everything_read_off_a_matrix_is_what_loops_find(many: list[Any]) -> None:
    for matrix, people, enrolled, acquired, same in many:
        count = {person: int((enrolled == person).sum()) for person in enrolled}
        findable = [count.get(person, 0) > same for person in people]
        if len(count) < 2 or not any(findable):
            with pytest.raises(InputError):
                Scores.from_matrix(matrix, people, enrolled, acquired=acquired, exclude_same=same)
            continue
        scores = Scores.from_matrix(matrix, people, enrolled, acquired=acquired, exclude_same=same)
        genuine, impostor = pairs(matrix, people, enrolled, acquired, same)
        values = np.array([score for *_, score in impostor])
        assert sorted(zip(scores.genuine_probe, scores.genuine, strict=True)) == sorted(genuine)
        assert scores.impostors.tolist() == sorted(values)
        thresholds = np.unique([score for _, score in genuine])[::-1]
        x, y = vertices(scores)
        mine = np.array([score for _, score in genuine])
        for corner, (side, who) in enumerate([(x, values), (y, mine)] if len(mine) else []):
            above = [int((who > t).sum()) for t in thresholds]
            at_least = [int((who >= t).sum()) for t in thresholds]
            assert side[1:-1:2].tolist() == above and side[2:-1:2].tolist() == at_least, corner
        assert scores.enrolled == len(np.unique(enrolled[acquired] if same else enrolled))
        for i, person in enumerate(people):
            check_probe(scores, i, person, genuine, impostor)


def check_probe(scores: Scores, i: int, person: int, genuine: list[Any], impostor: list[Any]) -> None:
    """One probe's figures, from lists of all pairs."""
    own = [score for probe, score in genuine if probe == i]
    others: dict[int, float] = {}
    for probe, other, score in impostor:
        if probe == i:
            others[other] = max(score, others.get(other, -np.inf))
    assert bool(scores.mated[i]) == bool(own)
    assert scores.best_genuine[i] == max(own) if own else np.isnan(scores.best_genuine[i])
    assert scores.impostors_of[i] == sum(probe == i for probe, *_ in impostor)
    for k in (1, 2, 3):
        assert hits(scores, k)[i] == pytest.approx(rank_odds(i, genuine, impostor, k))
    for threshold in (-1.0, 1.0, 7.5):
        assert scores.impostors_over(threshold)[i] == sum(p == i and s > threshold for p, _, s in impostor)
        above, at = scores.strangers(np.full(len(scores), threshold))
        assert above[i] == sum(score > threshold for score in others.values())
        assert at[i] == sum(score == threshold for score in others.values())


@pytest.mark.parametrize("metric", ["cosine", "euclidean"])
def test_embeddings_are_compared_as_the_formula_says(rng: np.random.Generator, metric: Any) -> None:
    people, enrolled = rng.integers(0, 30, 90), np.concatenate([np.arange(30), rng.integers(0, 30, 47)])
    probe, gallery = rng.normal(2, 3, (90, 24)), rng.normal(2, 3, (77, 24))
    if metric == "cosine":
        unit = [x / np.linalg.norm(x, axis=1, keepdims=True) for x in (probe, gallery)]
        matrix = unit[0] @ unit[1].T
    else:
        matrix = -np.sqrt(((probe[:, None] - gallery[None]) ** 2).sum(2))
    whole = Scores.from_matrix(matrix, people, enrolled, metric=metric)
    scores = Scores.compare(probe, gallery, people, enrolled, metric=metric)
    assert (scores.rivals[0] == whole.rivals[0]).all() and (scores.rivals[1] == 0).all()
    for name in ("similarity", "best_genuine", "impostors"):
        np.testing.assert_allclose(getattr(scores, name), getattr(whole, name), atol=3e-6 * np.abs(matrix).max())
    assert (vertices(scores)[0] == vertices(whole)[0]).all()


@pytest.mark.parametrize("metric", ["cosine", "euclidean"])
@pytest.mark.parametrize("size", [3, 128, 512])
def test_constant_embeddings_tie_exactly(rng: np.random.Generator, metric: Any, size: int) -> None:
    """A matrix product alone gives equal rows unequal scores: BLAS adds up the edges of a matrix in another order."""
    people = np.arange(101)
    probe = np.tile(rng.normal(size=size), (101, 1))
    for gallery in (probe, np.tile(rng.normal(size=size), (101, 1))):
        scores = Scores.compare(probe, gallery, people, people, metric=metric)
        assert (scores.rivals[0] == 0).all() and (scores.rivals[1] == 100).all()
        assert len(np.unique(scores.genuine)) == 1 and (scores.impostors == scores.genuine[0]).sum() == 101 * 100
    many = Scores.compare(
        np.tile(rng.normal(size=(3, 40)), (19, 1)), rng.normal(size=(57, 40)), people[:57], people[:57], metric=metric
    )
    for first in range(3):
        assert (many.similarity[first::3] == many.similarity[first]).all()


@pytest.mark.parametrize("same", [False, True])
def test_some_probes_are_what_they_would_be_alone(rng: np.random.Generator, same: bool) -> None:
    people = rng.integers(0, 12, 60)
    matrix = rng.integers(0, 40, (60, 60)).astype(float)
    acquired = rng.random(60) < 0.9
    scores = Scores.from_matrix(matrix, people, people, acquired=acquired, exclude_same=same)
    mask = rng.random(60) < 0.5
    some = scores.take(mask)
    seen = [(i, j) for i in np.flatnonzero(acquired & mask) for j in range(60) if not same or (i != j and acquired[j])]
    assert sorted(some.genuine) == sorted(matrix[i, j] for i, j in seen if people[i] == people[j])
    assert some.impostors.tolist() == sorted(matrix[i, j] for i, j in seen if people[i] != people[j])
    assert (some.rivals[0] == scores.rivals[0][mask]).all() and (some.people == people[mask]).all()
    assert (some.genuine_probe < mask.sum()).all()
    inner = rng.random(mask.sum()) < 0.5
    again = some.take(inner)
    assert (again.rivals[0] == some.rivals[0][inner]).all() and len(again) == inner.sum()
    assert (again.impostors_over(20) == some.impostors_over(20)[inner]).all()
    assert len(scores.take(np.zeros(60, bool))) == 0


GOOD = np.eye(4)
WHO = np.array([0, 0, 1, 1])


@pytest.mark.parametrize(
    "change",
    [
        {"gallery": GOOD[:0]},
        {"probe": GOOD[:, :3]},
        {"probe": np.where(GOOD > 0, np.nan, 0)},
        {"gallery": np.diag([1, 1, 0, 1])},
        {"gallery_people": np.array([0, 0, 1, -1])},
        {"gallery_people": np.zeros(4, int)},
        {"gallery_people": WHO + 7},
        {"exclude_same": True, "probe_people": np.arange(4), "gallery_people": np.arange(4)},
        {"probe": GOOD * 1e30, "metric": "euclidean"},  # too large for float32
    ],
)
def test_bad_input_is_refused(change: dict[str, Any]) -> None:
    arguments: dict[str, Any] = {"probe": GOOD, "gallery": GOOD, "probe_people": WHO, "gallery_people": WHO}
    with pytest.raises(InputError):
        Scores.compare(**{**arguments, "metric": "cosine", **change})
