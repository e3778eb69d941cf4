"""Retrained judges: the linear head against what it must and must not learn."""

from __future__ import annotations

import numpy as np
from scipy.linalg import eigh

from ficgan.lab.readers import discriminant

PEOPLE, EACH, WIDTH = 80, 6, 16


def embeddings(seed: int, people: int = PEOPLE) -> tuple[np.ndarray, np.ndarray]:
    """Four coordinates tell people apart, twelve are loud noise."""
    rng = np.random.default_rng(seed)
    index = np.repeat(np.arange(people), EACH)
    signal = rng.normal(size=(people, WIDTH)) * (np.arange(WIDTH) < 4)
    return signal[index] + rng.normal(size=(len(index), WIDTH)) * np.where(np.arange(WIDTH) < 4, 0.2, 2.0), index


def nearest(x: np.ndarray, people: np.ndarray) -> float:
    unit = x / np.linalg.norm(x, axis=1, keepdims=True)
    score = unit @ unit.T
    np.fill_diagonal(score, -np.inf)
    return float((people[score.argmax(1)] == people).mean())


def test_the_head_finds_what_tells_other_people_apart() -> None:
    x, people = embeddings(0)
    unseen, others = embeddings(1)
    matrix = discriminant(x, people)
    best = nearest(unseen[:, :4], others)
    assert nearest(unseen, others) < 0.2 * best
    assert nearest((unseen - x.mean(0)) @ matrix, others) > 0.8 * best


def test_fewer_images_than_numbers_change_nothing() -> None:
    """The same map, in the span of the images, as from the whole covariance."""
    x, people = embeddings(4)
    wide = (x[:60] @ np.random.default_rng(5).normal(size=(WIDTH, 90))) + np.random.default_rng(6).normal(size=(60, 90))
    people = people[:60]
    ours = discriminant(wide, people)
    means = np.stack([wide[people == one].mean(0) for one in range(10)])
    inside, spread = wide - means[people], means - means.mean(0)
    within = inside.T @ inside / 50
    within += 0.1 * np.trace(within) / 90 * np.eye(90)
    between = spread.T @ spread / 9 - within / EACH
    values, vectors = eigh(between, within)
    whole = vectors * np.sqrt((values / (1 + values)).clip(0))
    assert ours.shape[0] == 90 and ours.shape[1] < 60
    np.testing.assert_allclose(ours @ ours.T, whole @ whole.T, rtol=1e-6, atol=1e-9 * np.abs(whole @ whole.T).max())
