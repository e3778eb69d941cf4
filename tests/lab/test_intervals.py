"""Intervals against scipy, published figures, and the truth they should cover."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.stats

from ficgan.errors import UsageError
from ficgan.lab.metrics import Bootstrap, proportion, wilson


def test_wilson_is_scipys_and_revelios() -> None:
    for trials in (1, 2, 10, 97, 1000):
        for successes in {0, 1, trials // 2, trials - 1, trials}:
            reference = scipy.stats.binomtest(successes, trials).proportion_ci(method="wilson")
            assert wilson(successes, trials) == pytest.approx((reference.low, reference.high), abs=1e-12)
    assert [round(end, 3) for end in wilson(93, 97)] == [0.899, 0.984]
    for bad in ((3, 2), (-1, 2), (0, 0)):
        with pytest.raises(UsageError):
            wilson(*bad)


def test_the_bootstrap_by_identity_is_scipys() -> None:
    rng = np.random.default_rng(11)
    hit, count = rng.integers(0, 5, 80).astype(float), np.full(80, 8.0)
    count += rng.integers(0, 30, 80)
    low, high = proportion(Bootstrap(4000).weights(80), hit, count)
    reference = scipy.stats.bootstrap(
        (hit, count),
        lambda a, b, axis: a.sum(axis) / b.sum(axis),
        paired=True,
        vectorized=True,
        method="percentile",
        n_resamples=4000,
        rng=np.random.default_rng(1),
    ).confidence_interval
    assert low == pytest.approx(reference.low, rel=0.03) and high == pytest.approx(reference.high, rel=0.03)


def test_intervals_cover_the_truth() -> None:
    """Of 200 sets of 60 people with a rate of their own, some 95 % have an interval that holds the mean rate."""
    rng = np.random.default_rng(12)
    covered = 0
    for trial in range(200):
        hit = rng.binomial(6, rng.beta(2, 3, 60))
        low, high = proportion(Bootstrap(300, trial).weights(60), hit.astype(float), np.full(60, 6.0))
        assert low is not None and high is not None
        covered += low <= 0.4 <= high
    assert 0.88 <= covered / 200 <= 0.99
