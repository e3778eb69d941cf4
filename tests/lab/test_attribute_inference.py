"""Attribute inference against scikit-learn, and where there is nothing to infer."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score

from ficgan.lab.attributes import _auc, binary_labels, infer


@given(st.integers(0, 10_000), st.integers(2, 40))
def test_the_area_is_scikit_learns(seed: int, distinct: int) -> None:
    rng = np.random.default_rng(seed)
    score, truth, weight = rng.integers(0, distinct, 60), rng.random(60) < 0.4, rng.integers(1, 4, 60)
    truth[:2] = (True, False)
    assert np.isclose(_auc(score, truth), roc_auc_score(truth, score))
    assert np.isclose(_auc(score, truth, weight), roc_auc_score(truth, score, sample_weight=weight))


def test_what_is_there_is_told_and_what_is_not_is_chance() -> None:
    rng = np.random.default_rng(0)
    train, test = rng.normal(size=(400, 32)), rng.normal(size=(300, 32))
    people = np.repeat(np.arange(100), 3)
    labels = {"told": train[:, 0] + 0.3 * train[:, 1] > 0, "noise": rng.random(400) < 0.5, "rare": np.arange(400) < 50}
    truth = {"told": test[:, 0] + 0.3 * test[:, 1] > 0, "noise": rng.random(300) < 0.5, "rare": np.arange(300) < 24}
    labels, truth = ({name: values.astype(np.int8) for name, values in some.items()} for some in (labels, truth))
    # Where nobody knows, nothing is learnt or asked: these answers are wrong, and must not count.
    labels["told"][:40] = -1
    train_people = np.repeat(np.arange(200), 2)
    figures = {figure.metric: figure for figure in infer(train, labels, test, truth, train_people, people)}
    told, noise = figures["inference of told"], figures["inference of noise"]
    assert told.value > 0.95 and told.low <= told.value <= told.high
    assert noise.low < 0.5 < noise.high
    assert "inference of rare" not in figures
    assert np.isclose(figures["inference (mean AUC)"].value, (told.value + noise.value) / 2)


def test_two_values_are_one_question_and_more_are_many() -> None:
    smiles = {"Smiling": np.array([0, 1, 1], np.uint8)}
    labels = binary_labels(smiles, {"gender": ("a", "b", ""), "age": ("1", "2", "3")})
    assert set(labels) == {"Smiling", "gender=a", "age=1", "age=2", "age=3"}
    assert labels["gender=a"].tolist() == [1, 0, -1]
