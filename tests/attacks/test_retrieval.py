"""Identity retrieval against slow loops and scikit-learn's ROC; the guessing attack on programs that keep a share."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn import metrics

from ficgan.errors import FicganError, UsageError
from ficgan.lab.attacks import retrieval
from ficgan.lab.attacks.retrieval import (
    RULES,
    Metric,
    Rule,
    choose_threshold,
    combined,
    confirmation,
    far_from_source,
    near,
    ood_curve,
    repeated,
    retrieve,
)


def distance(a: np.ndarray, b: np.ndarray, metric: str) -> float:
    if metric == "euclidean":
        return float(np.sqrt(((a - b) ** 2).sum()))
    return float(1 - a @ b / np.sqrt((a @ a) * (b @ b)))


def slow(candidates: np.ndarray, gallery: np.ndarray, people: np.ndarray, metric: str, rule: str) -> list[int]:
    found = []
    for several in candidates:
        table = [[distance(c, g, metric) for g in gallery] for c in several if np.isfinite(c).all()]
        nearest = [(people[int(np.argmin(row))], min(row)) for row in table]
        if not nearest:
            found.append(-1)
        elif rule == "vote":
            counts = Counter(person for person, _ in nearest)
            found.append(min((-counts[person], gap, person) for person, gap in nearest)[2])
        elif rule == "shortest":
            found.append(min(nearest, key=lambda one: one[1])[0])
        else:
            means = {
                p: np.mean([[g for g, q in zip(row, people, strict=True) if q == p] for row in table]) for p in people
            }
            found.append(min(means, key=means.__getitem__))
    return [int(one) for one in found]


@given(
    probes=st.integers(1, 5), n=st.integers(1, 7), size=st.integers(1, 12), names=st.integers(1, 4),
    metric=st.sampled_from(["euclidean", "cosine"]), rule=st.sampled_from(RULES), seed=st.integers(0, 99),
    unread=st.floats(0, 0.6),
)  # fmt: skip
def test_retrieval_is_the_slow_loop(
    probes: int, n: int, size: int, names: int, metric: Metric, rule: Rule, seed: int, unread: float
) -> None:
    rng = np.random.default_rng(seed)
    candidates, gallery = rng.normal(size=(probes, n, 6)), rng.normal(size=(size, 6))
    candidates[rng.random((probes, n)) < unread] = np.nan
    people = rng.integers(0, names, size) * 7
    got = retrieve(candidates, gallery, people, metric, rule)
    assert got.found.tolist() == slow(candidates, gallery, people, metric, rule)
    for i, several in enumerate(candidates):
        for j, one in enumerate(several):
            gaps = [distance(one, g, metric) for g in gallery]
            if np.isnan(one).any():
                assert got.winners[i, j] == -1 and np.isinf(got.distances[i, j])
            else:
                assert got.winners[i, j] == people[int(np.argmin(gaps))]
                assert got.distances[i, j] == pytest.approx(min(gaps), abs=1e-5)
    assert np.array_equal(got.lowest, got.distances.min(axis=1))


def test_blocks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(3)
    candidates, gallery, people = rng.normal(size=(23, 5, 8)), rng.normal(size=(40, 8)), rng.integers(0, 9, 40)
    for rule in RULES:
        whole = retrieve(candidates, gallery, people, rule=rule)
        monkeypatch.setattr(retrieval, "_BLOCK", 700)
        parts = retrieve(candidates, gallery, people, rule=rule)
        monkeypatch.undo()
        assert np.array_equal(whole.found, parts.found) and np.allclose(whole.distances, parts.distances)


def test_a_tied_vote_goes_to_the_nearest() -> None:
    gallery, people = np.eye(3), np.array([5, 6, 7])
    candidates = np.array([[[0.7, 0, 0], [0, 0.8, 0], [0, 0, 0.6], [0, 0.7, 0], [0.99, 0, 0]]])
    assert retrieve(candidates, gallery, people).found.tolist() == [5]  # 5 and 6 twice, 5 came nearer
    assert retrieve(candidates[:, :4], gallery, people).found.tolist() == [6]
    assert retrieve(candidates[:, 2], gallery, people).found.tolist() == [7]  # [N,D]: one candidate each


def test_a_few_lucky_candidates_outvote_the_mean() -> None:
    """Section 4.3: memorisation hits in some rounds only; the mean is drawn off by the others."""
    gallery = np.array([[1.0, 0.0], [0.0, 1.0], [-0.5, 0.7]])
    people = np.array([0, 1, 2])
    candidates = np.array([[[0.9, 0.1], [0.8, 0.1], [0.2, 1.2], [-0.9, 0.8], [-2.6, 1.5]]])
    assert retrieve(candidates, gallery, people, rule="shortest").found.tolist() == [0]
    assert retrieve(candidates[:, [0, 1, 2, 4]], gallery, people).found.tolist() == [0]
    assert retrieve(candidates, gallery, people, rule="mean").found.tolist() == [1]


@pytest.mark.parametrize(
    "call",
    [
        lambda: retrieve(np.zeros((2, 3, 4)), np.zeros((5, 3)), np.zeros(5, int)),
        lambda: retrieve(np.zeros((2, 3, 4)), np.zeros((0, 4)), np.zeros(0, int)),
        lambda: retrieve(np.zeros((2, 3, 4)), np.zeros((5, 4)), np.zeros(4, int)),
        lambda: retrieve(np.zeros((2, 3, 4)), np.zeros((5, 4)), np.full(5, -1)),
        lambda: retrieve(np.zeros((2, 3, 4)), np.full((5, 4), np.nan), np.zeros(5, int)),
        lambda: retrieve(np.zeros((2, 3, 4)), np.zeros((5, 4)), np.zeros(5, int), "manhattan"),  # type: ignore[arg-type]
        lambda: retrieve(np.zeros((2, 3, 4)), np.zeros((5, 4)), np.zeros(5, int), rule="first"),  # type: ignore[arg-type]
        lambda: ood_curve(np.zeros(0), np.ones(2)),
        lambda: ood_curve(np.ones(2), np.array([np.nan])),
    ],
)
def test_what_cannot_be_is_refused(call: object) -> None:
    with pytest.raises(FicganError):
        call()  # type: ignore[operator]


@given(st.lists(st.integers(0, 9), min_size=1, max_size=30), st.lists(st.integers(0, 9), min_size=1, max_size=30))
def test_the_curve_is_scikit_learn_s(known: list[int], unknown: list[int]) -> None:
    curve = ood_curve(np.array(known, float), np.array(unknown, float))
    truth, scores = np.repeat([0, 1], [len(known), len(unknown)]), np.array(known + unknown, float)
    assert curve.auc == pytest.approx(metrics.roc_auc_score(truth, scores))
    fpr, tpr, _ = metrics.roc_curve(truth, scores, drop_intermediate=False)
    assert np.allclose(np.sort(curve.tpr), tpr) and np.allclose(np.sort(curve.fpr), fpr)
    for d, t, f in zip(curve.thresholds, curve.tpr, curve.fpr, strict=True):
        flagged = scores > d
        assert t == pytest.approx(flagged[truth == 1].mean()) and f == pytest.approx(flagged[truth == 0].mean())


def test_the_chosen_threshold_is_the_best_and_between_distances() -> None:
    rng = np.random.default_rng(1)
    known, unknown = rng.normal(0.35, 0.05, 200), rng.normal(0.5, 0.05, 100)
    d = choose_threshold(known, unknown)
    assert 0.4 < d < 0.45 and d not in np.concatenate([known, unknown])
    curve = ood_curve(known, unknown)
    assert np.mean(unknown > d) - np.mean(known > d) == pytest.approx(np.max(curve.tpr - curve.fpr))
    assert choose_threshold(np.array([1.0, 2.0]), np.array([3.0, np.inf])) == 2.5
    assert choose_threshold(np.array([1.0]), np.array([np.inf])) >= 1.0



SIDE, COUNT = 12, 30
WEIGHT = np.zeros((SIDE, SIDE), np.float32)
WEIGHT[3:9, 3:9] = 1


def leaky(share: float):
    """Puts noise of the seed into the middle, and this share of the source; the surroundings stay."""

    def run(images: np.ndarray, seed: int) -> np.ndarray:
        rng = np.random.default_rng(seed)
        out = images.copy()
        noise = rng.integers(0, 256, (len(images), 6, 6, 3))
        out[:, 3:9, 3:9] = (share * images[:, 3:9, 3:9] + (1 - share) * noise).astype(np.uint8)
        return out

    return run


@pytest.fixture
def faces(rng: np.random.Generator) -> np.ndarray:
    return rng.integers(0, 256, (COUNT, SIDE, SIDE, 3), dtype=np.uint8)


def test_averaging_draws_confirms_what_a_program_keeps(faces: np.ndarray) -> None:
    order = np.random.default_rng(1).permutation(COUNT)
    found = {}
    for share in (0.0, 0.4):
        published = leaky(share)(faces[order], 999)
        scores = repeated(published, faces, leaky(share), seeds=range(8), weight=WEIGHT)
        found[share] = confirmation(scores, order)
    assert found[0.4].rank1[0] > 0.9 and found[0.4].auc[0] > 0.98
    assert found[0.0].rank1[1] <= 1 / COUNT + 0.1 and found[0.0].auc[1] < 0.5 < found[0.0].auc[2]


def test_surroundings_do_not_count(faces: np.ndarray) -> None:
    """A candidate whose surroundings are the published ones and whose face is another's is no better for that."""
    published = leaky(0.4)(faces[:1], 5)
    swapped = faces[0].copy()
    swapped[3:9, 3:9] = faces[1, 3:9, 3:9]
    scores = repeated(published, np.stack([faces[0], swapped, faces[2]]), leaky(0.4), seeds=range(4), weight=WEIGHT)
    assert scores[0, 0] > scores[0, 1] and scores[0].argmax() == 0


def test_the_choice_of_the_least_alike_draw_is_found(rng: np.random.Generator) -> None:
    source = rng.normal(size=(COUNT, 8))
    draws = rng.normal(size=(COUNT, 12, 8))
    cosine = np.einsum("nd,nkd->nk", source, draws) / np.linalg.norm(draws, axis=2)
    chosen = draws[np.arange(COUNT), cosine.argmin(1)]
    told = confirmation(far_from_source(chosen, source), np.arange(COUNT))
    assert told.auc[1] > 0.8
    blind = confirmation(far_from_source(draws[:, 0], source), np.arange(COUNT))
    assert blind.auc[0] < told.auc[1]


def test_readings_and_their_sum(rng: np.random.Generator) -> None:
    source = rng.normal(size=(COUNT, 5)) * [1, 1, 1, 1, 100]
    kept = source + rng.normal(size=source.shape) * [0.5, 0.5, 0.5, 0.5, 50]
    alone = near(kept, source)
    assert confirmation(alone, np.arange(COUNT)).auc[0] > 0.9
    empty = rng.normal(size=alone.shape)
    assert confirmation(combined(alone, alone * 3 + 7), np.arange(COUNT)) == confirmation(alone, np.arange(COUNT))
    assert confirmation(combined(alone, empty), np.arange(COUNT)).auc[0] > confirmation(empty, np.arange(COUNT)).auc[0]


def test_scores_that_say_nothing_are_at_chance() -> None:
    told = confirmation(np.zeros((20, 10)), np.arange(20) % 10)
    assert told.rank1[0] == pytest.approx(0.1) and told.auc[0] == 0.5 and told.confirmed[0] == 0.0
    with pytest.raises(UsageError):
        confirmation(np.zeros((3, 4)), [0, 1])
    with pytest.raises(UsageError):
        repeated(np.zeros((1, 4, 4, 3), np.uint8), np.zeros((1, 4, 4, 3), np.uint8), leaky(0), seeds=[], weight=WEIGHT)
