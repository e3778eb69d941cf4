"""Scores against scikit-learn and SciPy, Grad-CAM against its closed form."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score, top_k_accuracy_score

from ficgan.errors import InputError
from ficgan.lab.study import pearson
from ficgan.lab.study.training import average_precision, class_precisions, hits, spread


@given(st.lists(st.tuples(st.integers(0, 6), st.booleans()), min_size=1, max_size=40))
def test_average_precision_is_the_sum_of_its_steps(pairs: list[tuple[int, bool]]) -> None:
    scores, positive = np.array([p[0] for p in pairs]) / 7, np.array([p[1] for p in pairs])
    if not positive.any():
        assert average_precision(scores, positive) is None
    else:
        area = recalled = 0.0
        for threshold in np.unique(scores)[::-1]:
            taken = scores >= threshold
            recall = positive[taken].sum() / positive.sum()
            area, recalled = area + (recall - recalled) * positive[taken].mean(), recall
        assert average_precision(scores, positive) == pytest.approx(area)


def test_class_precisions_are_of_the_softmax(rng: np.random.Generator) -> None:
    logits, labels = rng.normal(size=(200, 4)).astype(np.float32) * 3, rng.integers(0, 3, 200)
    chance = np.exp(logits.astype(float)) / np.exp(logits.astype(float)).sum(1, keepdims=True)
    found = class_precisions(logits, labels)
    assert found[3] is None
    assert found[:3] == pytest.approx([average_precision_score(labels == c, chance[:, c]) for c in range(3)])


@pytest.mark.parametrize("k", [1, 5])
def test_hits_are_sklearns_top_k(rng: np.random.Generator, k: int) -> None:
    logits, labels = rng.normal(size=(300, 12)).astype(np.float32), rng.integers(0, 12, 300)
    assert hits(logits, labels, k).mean() == pytest.approx(top_k_accuracy_score(labels, logits, k=k))


def test_pearson_of_what_does_not_vary_is_none() -> None:
    assert pearson([0.1] * 10, np.arange(10))["r"] is None
    assert pearson(np.arange(10), [1 / 3] * 10)["r"] is None
    few = pearson([1, 2, 3], [3, 5, 4])
    assert few["r"] is not None and few["low"] is None and few["p"] is None
    assert pearson([1, 2, 3, 4], [2, 4, 6, 8])["r"] == 1.0


def test_spread_is_scipys_sem(rng: np.random.Generator) -> None:
    values = rng.normal(size=3)
    found = spread(values)
    assert (found["mean"], found["sem"]) == pytest.approx((values.mean(), scipy.stats.sem(values)))
    # What the published table prints of three seeds is √2 times that.
    assert scipy.stats.sem(values, ddof=2) == pytest.approx(math.sqrt(2) * (found["sem"] or 0))
    assert spread([0.5])["sem"] is None


def test_what_is_not_finite_is_refused() -> None:
    with pytest.raises(InputError, match="finite"):
        spread([0.1, float("nan")])
    with pytest.raises(InputError, match="finite"):
        average_precision(np.array([0.1, np.nan]), np.array([True, False]))
    with pytest.raises(InputError, match="diverged"), warnings.catch_warnings():
        hits(np.array([[np.nan, 0.0]], np.float32), np.array([0]))
