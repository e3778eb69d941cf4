"""Scores against scikit-learn and SciPy, Grad-CAM against its closed form."""

from __future__ import annotations

import math
import warnings
from pathlib import Path

import numpy as np
import pytest
import scipy.stats
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score, top_k_accuracy_score
from torch import nn

from ficgan.errors import InputError, UsageError
from ficgan.lab.study import grad_cam, panel
from ficgan.lab.study.networks import make_network
from ficgan.lab.study.scores import average_precision, class_precisions, hits, pearson, spread


@settings(max_examples=10, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 6), st.booleans()), min_size=1, max_size=40))
def test_average_precision_is_sklearns_with_ties(pairs: list[tuple[int, bool]]) -> None:
    scores, positive = np.array([p[0] for p in pairs]) / 7, np.array([p[1] for p in pairs])
    if not positive.any():
        assert average_precision(scores, positive) is None
    else:
        assert average_precision(scores, positive) == pytest.approx(average_precision_score(positive, scores))


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


def test_a_network_that_says_one_thing_of_all_classes_hits_nothing() -> None:
    assert not hits(np.zeros((3, 2), np.float32), np.array([0, 1, 1])).any()


@pytest.mark.parametrize("n", [4, 9, 200])
def test_pearson_is_scipys(rng: np.random.Generator, n: int) -> None:
    x = rng.normal(size=n)
    y = 0.4 * x + rng.normal(size=n)
    oracle = scipy.stats.pearsonr(x, y)
    interval = oracle.confidence_interval(0.95)
    found = pearson(x, y)
    assert (found["r"], found["p"]) == pytest.approx((oracle.statistic, oracle.pvalue))
    assert (found["low"], found["high"]) == pytest.approx((interval.low, interval.high))
    assert found["n"] == n


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


def linear(classes: int = 3) -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Conv2d(3, 5, 3, padding=1), nn.Tanh(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(5, classes)
    )


def test_of_a_network_that_ends_in_a_mean_and_a_linear_layer_it_is_the_class_activation_map() -> None:
    network, images = linear(), torch.randn(4, 3, 7, 9)
    maps = grad_cam(network, images, [0, 2, 1, 1])
    with torch.no_grad():
        features = network[1](network[0](images))
        weights = network[4].weight[[0, 2, 1, 1]] / (7 * 9)
        expected = torch.einsum("bk,bkhw->bhw", weights, features).relu()
    assert maps.shape == (4, 7, 9)
    torch.testing.assert_close(maps, expected)
    assert expected.max() > 0


def test_without_a_class_it_explains_the_answer_and_a_named_layer_is_taken() -> None:
    network, images = linear(), torch.randn(3, 3, 6, 6)
    answers = network(images).argmax(1).tolist()
    torch.testing.assert_close(grad_cam(network, images), grad_cam(network, images, answers))
    with torch.no_grad():
        before = network[0](images)
        slope = 1 - network[1](before) ** 2
        alpha = (network[4].weight[answers][:, :, None, None] * slope / 36).mean((2, 3), keepdim=True)
    torch.testing.assert_close(grad_cam(network, images, answers, "0"), (alpha * before).sum(1).relu())
    with pytest.raises(UsageError, match="no layer 'nine'"):
        grad_cam(network, images, layer="nine")
    with pytest.raises(UsageError, match="no feature map"):
        grad_cam(network, images, layer="4")


@pytest.mark.parametrize(("name", "size"), [("narrow-resnet", 3), ("squeezenet1_1", 5), ("mobilenet_v3_small", 3)])
def test_it_finds_the_last_layer_with_positions_of_any_classifier(name: str, size: int) -> None:
    network, images = make_network(name, 4, seed=0), torch.randn(2, 3, 96, 96)
    maps = grad_cam(network, images)
    assert maps.shape == (2, size, size) and torch.isfinite(maps).all()
    torch.testing.assert_close(grad_cam(network, images[1:])[0], maps[1], rtol=1e-3, atol=1e-6)
    assert all(not module._forward_hooks for module in network.modules())
    assert all(parameter.grad is None for parameter in network.parameters())


def test_a_panel_is_drawn(tmp_path: Path, rng: np.random.Generator) -> None:
    pytest.importorskip("matplotlib")
    pictures = list(rng.integers(0, 256, (2, 32, 32, 3), dtype=np.uint8))
    network = make_network("narrow-resnet", 2, seed=0).eval()
    panel([("original", network, pictures), ("blurred", network, pictures)], tmp_path / "panel.png", class_names="ab")
    assert (tmp_path / "panel.png").read_bytes()[:4] == b"\x89PNG"
