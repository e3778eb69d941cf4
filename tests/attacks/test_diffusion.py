"""The noise of the diffusion, what the U-Net is given, and the sampling, against loops and exact answers."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from ficgan.errors import UsageError
from ficgan.lab.attacks.diffusion import (
    PRESETS,
    SCHEDULES,
    Architecture,
    Sampler,
    Schedule,
    UNet,
    levels,
    sample,
    scheduler_of,
)

LINEAR = Schedule(50, 1e-3, 0.2)


# -- the schedule ------------------------------------------------------------------------------------------------------


def test_schedules_are_those_of_the_papers() -> None:
    product = 1.0
    for t in range(1, LINEAR.steps + 1):
        product *= 1 - (LINEAR.first + (t - 1) / (LINEAR.steps - 1) * (LINEAR.last - LINEAR.first))
        assert LINEAR.gammas[t] == pytest.approx(product, rel=1e-12)
    assert LINEAR.gammas[0] == 1
    assert SCHEDULES["sr3"] == Schedule(2000, 1e-6, 1e-2)
    assert SCHEDULES["palette-test"] == Schedule(1000, 1e-4, 0.09)
    assert SCHEDULES["small"] == Schedule(200, 1e-5, 0.1)  # as little is left of the image: Σβ = 10


def test_levels_lie_within_their_steps_and_cover_all() -> None:
    spots = torch.rand(20_000, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    roots = np.sqrt(LINEAR.gammas)
    found = levels(LINEAR, spots).numpy()
    # Every step is as likely, and within it √γ is uniform: its distribution function is linear between the steps.
    for t in range(1, LINEAR.steps + 1):
        middle = (roots[t] + roots[t - 1]) / 2
        assert (found >= roots[t]).mean() == pytest.approx(t / LINEAR.steps, abs=0.015)
        assert (found >= middle).mean() == pytest.approx((t - 0.5) / LINEAR.steps, abs=0.015)
    assert levels(LINEAR, torch.tensor([0.0, 1.0])).tolist() == pytest.approx([1.0, roots[-1]])


@given(count=st.integers(1, 80))
def test_times_fall_from_the_end_to_zero(count: int) -> None:
    times = LINEAR.times(count)
    assert times[0] == LINEAR.steps and times[-1] == 0 and (np.diff(times) < 0).all()
    assert len(times) == min(count, LINEAR.steps) + 1 and np.ptp(np.diff(times)) <= 1


# -- the U-Net ---------------------------------------------------------------------------------------------------------

TINY = Architecture(8, (1, 2), blocks=1)  # attention lies at 16 pixels


def awake(network: torch.nn.Module) -> torch.nn.Module:
    """With random weights in the layers that begin at zero."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weights in network.parameters():
            if not weights.any():
                weights.normal_(0, 0.2, generator=generator)
    return network.eval()


@pytest.mark.parametrize(
    ("architecture", "size"), [(TINY, 16), pytest.param(PRESETS["patched"], 16, marks=pytest.mark.slow)]
)
def test_an_answer_has_the_shape_of_its_image(architecture: Architecture, size: int) -> None:
    noisy, seen = torch.randn(2, 2, 3, size, size)
    with torch.no_grad():
        assert UNet(architecture, size)(noisy, seen, torch.rand(2)).shape == noisy.shape
    with pytest.raises(UsageError, match="multiple of 16"):
        UNet(PRESETS["sr3"], 40)


def test_sr3_has_the_layers_of_the_paper() -> None:
    with torch.device("meta"):
        network = UNet(PRESETS["sr3"], 256)
    assert max(m.in_channels for m in network.modules() if isinstance(m, torch.nn.Conv2d)) == 1024
    assert len(network.attention()) == 2 + 1 + 3  # at 16, on the way down, in the middle, on the way up
    assert 90e6 < sum(weights.numel() for weights in network.parameters()) < 110e6


def test_every_weight_is_used_and_the_level_enters_as_sines_of_5000_times_it() -> None:
    network: Any = awake(UNet(TINY, 16)).train()
    entered: list[Tensor] = []
    network.unet.time_embedding.register_forward_pre_hook(lambda module, inputs: entered.append(inputs[0]))
    root = torch.tensor([0.25, 0.9])
    network(*torch.randn(2, 2, 3, 16, 16), root).square().mean().backward()
    assert not [name for name, one in network.named_parameters() if one.grad is None or not one.grad.any()]
    for row, level in enumerate(root.tolist()):
        angles = [5000 * level * 1e4 ** (-i / 4) for i in range(4)]
        expected = [math.sin(a) for a in angles] + [math.cos(a) for a in angles]
        np.testing.assert_allclose(entered[0][row], expected, atol=2e-3)


# -- sampling ----------------------------------------------------------------------------------------------------------

MEAN, DEVIATION = 0.3, 0.2
FULL = SCHEDULES["small"]


def exact(predicts: str) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """What a perfect network answers where every pixel is N(MEAN, DEVIATION²), apart from what it is shown."""

    def answer(noisy: Tensor, seen: Tensor, root: Tensor) -> Tensor:
        root = root.reshape(-1, 1, 1, 1).double()
        gamma = root**2
        variance = gamma * DEVIATION**2 + 1 - gamma
        clear = MEAN + root * DEVIATION**2 / variance * (noisy - root * MEAN)
        return (clear if predicts == "clear" else (noisy - root * clear) / (1 - gamma).sqrt()).float()

    return answer


@pytest.mark.parametrize(("kind", "predicts"), [("ddim", "clear"), ("ddim", "noise"), ("ancestral-beta", "noise")])
def test_sampling_arrives_at_the_distribution(kind: str, predicts: str) -> None:
    sampler = Sampler(FULL, kind, FULL.steps, predicts, clip=False)
    images = sample(exact(predicts), torch.zeros(4, 3, 32, 32), sampler, range(4))
    assert float(images.mean()) == pytest.approx(MEAN, abs=0.02)
    assert float(images.std()) == pytest.approx(DEVIATION, rel=0.15)


@pytest.mark.parametrize("count", [7, 50])
def test_steps_are_those_of_the_papers(count: int) -> None:
    """Against Bayes' posterior (eq. 3) with its own variance, and with the larger one of eq. 5."""
    gammas = LINEAR.gammas[LINEAR.times(count)]
    y, clear = torch.randn(2, 1, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    made = {kind: scheduler_of(Sampler(LINEAR, kind, count, "clear")) for kind in ("ddim", "ancestral-beta")}
    for t, (gamma, before) in enumerate(pairwise(gammas)):
        alpha = gamma / before
        mean = before**0.5 * (1 - alpha) / (1 - gamma) * clear.clamp(-1, 1)
        mean = mean + alpha**0.5 * (1 - before) / (1 - gamma) * y
        small = (1 - before) * (1 - alpha) / (1 - gamma)
        for kind, variance in (("ddim", small), ("ancestral-beta", (1 - alpha) * (before < 1))):
            scheduler, more = made[kind]
            noise = torch.randn(y.shape, generator=torch.Generator().manual_seed(5))
            found = scheduler.step(
                clear, len(gammas) - 2 - t, y, generator=[torch.Generator().manual_seed(5)], **more
            ).prev_sample
            torch.testing.assert_close(found, mean + variance**0.5 * noise, atol=2e-4, rtol=1e-3)
