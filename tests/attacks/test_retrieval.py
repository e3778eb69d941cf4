"""Identity retrieval against slow loops and scikit-learn's ROC."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn import metrics
from stand_ins import cosine

from ficgan.lab.attacks.revelio import choose_threshold, ood_curve, retrieve


def distance(a: np.ndarray, b: np.ndarray, metric: str) -> float:
    if metric == "euclidean":
        return float(np.sqrt(((a - b) ** 2).sum()))
    return 1 - cosine(a, b)


def slow(candidates: np.ndarray, gallery: np.ndarray, people: np.ndarray, metric: str) -> list[int]:
    found = []
    for several in candidates:
        table = [[distance(c, g, metric) for g in gallery] for c in several if np.isfinite(c).all()]
        nearest = [(people[int(np.argmin(row))], min(row)) for row in table]
        if not nearest:
            found.append(-1)
        else:
            counts = Counter(person for person, _ in nearest)
            found.append(min((-counts[person], gap, person) for person, gap in nearest)[2])
    return [int(one) for one in found]


@given(
    probes=st.integers(1, 5),
    n=st.integers(1, 7),
    size=st.integers(1, 12),
    names=st.integers(1, 4),
    metric=st.sampled_from(["euclidean", "cosine"]),
    seed=st.integers(0, 99),
    unread=st.floats(0, 0.6),
)
def test_retrieval_is_the_slow_loop(
    probes: int, n: int, size: int, names: int, metric: str, seed: int, unread: float
) -> None:
    rng = np.random.default_rng(seed)
    candidates, gallery = rng.normal(size=(probes, n, 6)), rng.normal(size=(size, 6))
    candidates[rng.random((probes, n)) < unread] = np.nan
    people = rng.integers(0, names, size) * 7
    got = retrieve(candidates, gallery, people, metric)
    assert got.found.tolist() == slow(candidates, gallery, people, metric)
    for several, lowest in zip(candidates, got.lowest, strict=True):
        gaps = [distance(one, other, metric) for one in several if np.isfinite(one).all() for other in gallery]
        assert lowest == pytest.approx(min(gaps, default=np.inf), abs=1e-5)


def test_a_tied_vote_goes_to_the_nearest() -> None:
    gallery, people = np.eye(3), np.array([5, 6, 7])
    candidates = np.array([[[0.7, 0, 0], [0, 0.8, 0], [0, 0, 0.6], [0, 0.7, 0], [0.99, 0, 0]]])
    assert retrieve(candidates, gallery, people).found.tolist() == [5]  # 5 and 6 twice, 5 came nearer
    assert retrieve(candidates[:, :4], gallery, people).found.tolist() == [6]
    assert retrieve(candidates[:, 2], gallery, people).found.tolist() == [7]  # [N,D]: one candidate each


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
