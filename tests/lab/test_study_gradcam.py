"""Grad-CAM against its closed form."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from ficgan.errors import UsageError
from ficgan.lab.study import grad_cam, panel
from ficgan.lab.study.networks import make_network


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
