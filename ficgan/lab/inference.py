"""Attribute inference: what can be told of a person from an anonymised face, without knowing who it is (WP216)."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from ficgan.lab.results import Figure

__all__ = ["binary_labels", "infer"]

LEAST = 10
"""People with and without an attribute that training and test each need."""
RIDGE = 1.0
"""Penalty relative to the mean variance of the embeddings."""


def binary_labels(
    attributes: Mapping[str, NDArray[np.uint8]], groups: Mapping[str, tuple[str, ...]]
) -> dict[str, NDArray[np.int8]]:
    """Everything known about the images as yes-or-no questions: attributes as they are, categories one by one.

    Returns:
        Name → int8 [N]: 1, 0, or −1 where nobody knows.
    """
    out = {name: (np.asarray(values) > 0).astype(np.int8) for name, values in attributes.items()}
    for column, values in groups.items():
        told = np.array(values, dtype=object)
        known = sorted({value for value in values if value})
        for value in known[:1] if len(known) == 2 else known:
            out[f"{column}={value}"] = np.where(told == "", -1, told == value).astype(np.int8)
    return out


def infer(
    train: NDArray[np.floating],
    train_labels: Mapping[str, NDArray[np.int8]],
    test: NDArray[np.floating],
    test_labels: Mapping[str, NDArray[np.int8]],
    train_people: NDArray[np.integer],
    people: NDArray[np.integer],
    *,
    resamples: int = 200,
    seed: int = 0,
) -> tuple[Figure, ...]:
    """AUC with which a classifier, trained on anonymised faces of other people, tells each attribute.

    Args:
        train: [M,D] embeddings of the attacker's anonymised faces.
        test: [N,D] embeddings of anonymised probes.
        train_labels, test_labels: of `binary_labels`, [M] and [N].
        train_people: [M] of the attacker's faces.
        people: [N] of the probes; resampled as wholes for the interval.
        resamples: of the bootstrap; 0 for no interval.
        seed: of the bootstrap.

    Returns:
        A figure "inference of NAME" for each attribute that ten people on both sides have, and ten have not; .5 is
        chance. Last their mean, "inference (mean AUC)".
    """
    mean, spread = train.mean(0), train.std(0).mean() + 1e-12
    x, t = (train - mean) / spread, (test - mean) / spread
    values, index = np.unique(people, return_inverse=True)
    rng = np.random.default_rng(seed)
    weights = rng.multinomial(len(values), np.full(len(values), 1 / len(values)), size=resamples)[:, index]
    out, drawn = [], []
    for name, wanted in train_labels.items():
        truth = test_labels.get(name)
        if truth is None or min(_people(wanted, train_people) + _people(truth, people)) < LEAST:
            continue
        learnt, asked = wanted >= 0, truth >= 0
        score = t[asked] @ _ridge(x[learnt], wanted[learnt] > 0)
        yes, draws = truth[asked] > 0, weights[:, asked]
        value, sample = _auc(score, yes), np.array([_auc(score, yes, row) for row in draws])
        low, high = np.nanquantile(sample, (0.025, 0.975)) if resamples else (None, None)
        out.append(Figure(f"inference of {name}", float(value), _float(low), _float(high), len(values)))
        drawn.append(sample)
    if out:
        low, high = np.nanquantile(np.mean(drawn, axis=0), (0.025, 0.975)) if resamples else (None, None)
        total = float(np.mean([figure.value for figure in out if figure.value is not None]))
        out.append(Figure("inference (mean AUC)", total, _float(low), _float(high), len(values)))
    return tuple(out)


def _people(labels: NDArray[np.int8], people: NDArray[np.integer]) -> list[int]:
    """How many people have it, and how many have not."""
    return [len(np.unique(people[labels == value])) for value in (1, 0)]


def _ridge(x: NDArray[np.floating], wanted: NDArray[np.bool_]) -> NDArray[np.float64]:
    """[D] weights of a ridge classifier in which both answers weigh alike."""
    gram = (x.T @ x + RIDGE * len(x) * np.eye(x.shape[1])).astype(np.float64)
    target = np.where(wanted, 0.5 / wanted.mean(), -0.5 / (1 - wanted.mean()))
    solved: NDArray[np.float64] = np.linalg.solve(gram, x.T @ target)
    return solved


def _auc(
    score: NDArray[np.floating], truth: NDArray[np.bool_], weight: NDArray[np.integer] | None = None
) -> np.floating | float:
    """Area under the ROC, ties half; each image counted `weight` times."""
    counted = np.ones(len(score)) if weight is None else weight.astype(np.float64)
    values, index = np.unique(score, return_inverse=True)
    positive = np.bincount(index, counted * truth, len(values))
    negative = np.bincount(index, counted * ~truth, len(values))
    pairs = positive.sum() * negative.sum()
    if pairs == 0:
        return float("nan")
    below = np.cumsum(negative) - negative
    return float((positive * (below + negative / 2)).sum() / pairs)


def _float(value: object) -> float | None:
    return None if value is None else float(value)  # type: ignore[arg-type]
