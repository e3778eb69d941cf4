"""The identity probe: what it finds where something is hidden, that it finds nothing where nothing is, and its rows."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.decomposition import PCA
from sklearn.preprocessing import StandardScaler

from ficgan.lab.metrics.privacy import auc
from ficgan.lab.metrics.scores import Scores
from ficgan.lab.readers import SHAPE_JUDGES, fit_probe, whitening

EACH, WIDTH = 6, 24


def codes(seed: int, people: int, signal: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    """Four weak coordinates tell people apart, the others are loud noise; all of it turned by one rotation."""
    rng = np.random.default_rng(seed)
    index = np.repeat(np.arange(people), EACH)
    own = signal * rng.normal(size=(people, WIDTH)) * (np.arange(WIDTH) < 4)
    x = own[index] + rng.normal(size=(len(index), WIDTH)) * np.where(np.arange(WIDTH) < 4, 0.3, 3.0)
    turn = np.linalg.qr(np.random.default_rng(99).normal(size=(WIDTH, WIDTH)))[0]
    return (x @ turn).astype(np.float32), index


def area(x: np.ndarray, people: np.ndarray) -> float:
    """AUC, every image against every other."""
    scores = Scores.compare(x, x, people, people, metric="cosine", exclude_same=True)
    value = auc(scores).value
    assert value is not None
    return value


def test_whitening_is_that_of_the_textbook() -> None:
    x, _ = codes(0, 60)
    ours = whitening(x)(x)
    scaled = StandardScaler().fit_transform(x.astype(np.float64))
    theirs = PCA(n_components=WIDTH, whiten=True).fit_transform(scaled)
    assert ours.shape == theirs.shape and np.allclose(ours.T @ ours / len(x), np.eye(WIDTH), atol=1e-3)
    np.testing.assert_allclose(ours @ ours.T, theirs @ theirs.T * len(x) / (len(x) - 1), rtol=1e-3, atol=1e-3)


def test_whitening_learns_no_more_than_the_images_bear_and_no_constant_column() -> None:
    x, _ = codes(0, 8)
    assert whitening(x)(x).shape == (48, 6)
    flat = np.concatenate([codes(0, 60)[0], np.full((360, 2), 7, np.float32)], axis=1)
    assert whitening(flat)(flat).shape == (360, WIDTH)
    assert np.isfinite(whitening(np.ones((20, 5), np.float32))(np.ones((2, 5), np.float32))).all()


@pytest.mark.slow
def test_learnt_probes_find_what_the_cosine_does_not() -> None:
    x, people = codes(1, 80)
    unseen, others = codes(2, 40)
    found = {kind: area(fit_probe(kind, x, people)(unseen), others) for kind in SHAPE_JUDGES.values()}
    assert found["linear"] > 0.9 and found["network"] > 0.8
    assert found["cosine"] < found["linear"] - 0.1


@pytest.mark.parametrize("kind", SHAPE_JUDGES.values())
def test_where_there_is_no_identity_nothing_is_found(kind: str) -> None:
    x, people = codes(3, 60, signal=0.0)
    unseen, others = codes(4, 80, signal=0.0)
    assert area(fit_probe(kind, x, people)(unseen), others) == pytest.approx(0.5, abs=0.05)  # type: ignore[arg-type]
