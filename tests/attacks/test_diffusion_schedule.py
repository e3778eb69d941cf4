"""The noise of the diffusion against loops, brute-force Bayes, and the process itself run step by step."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ficgan.errors import UsageError
from ficgan.lab.attacks.diffusion.schedule import (
    PREDICTIONS,
    SCHEDULES,
    Schedule,
    clear_of,
    noised,
    posterior,
    target,
)

LINEAR = Schedule(50, 1e-3, 0.2)


def test_gamma_is_the_product_of_alphas() -> None:
    product = 1.0
    for t in range(1, LINEAR.steps + 1):
        beta = LINEAR.first + (t - 1) / (LINEAR.steps - 1) * (LINEAR.last - LINEAR.first)
        product *= 1 - beta
        assert LINEAR.gammas[t] == pytest.approx(product, rel=1e-12)
    assert LINEAR.gammas[0] == 1


def test_presets_are_those_of_the_papers() -> None:
    assert SCHEDULES["sr3"] == Schedule(2000, 1e-6, 1e-2)
    assert SCHEDULES["palette-test"] == Schedule(1000, 1e-4, 0.09)
    for name in ("sr3", "palette", "small"):
        assert SCHEDULES[name].betas.sum() == pytest.approx(10, rel=1e-3)
    assert SCHEDULES["small"].steps == 200


def test_fewer_steps_leave_as_little_of_the_image() -> None:
    whole = SCHEDULES["sr3"]
    for steps in (1000, 100, 30):
        assert whole.shrunk(steps).betas.sum() == pytest.approx(whole.betas.sum())
    with pytest.raises(UsageError, match="at least 21"):
        whole.shrunk(20)
    whole.shrunk(21)


@pytest.mark.parametrize("bad", [(0, 0.1, 0.2), (5, 0.0, 0.2), (5, 0.1, 1.0)])
def test_what_is_no_schedule_is_refused(bad: tuple[int, float, float]) -> None:
    with pytest.raises(UsageError, match="schedule"):
        Schedule(*bad)


def test_the_noisy_image_is_where_the_steps_lead() -> None:
    """Eq. 2 run one step at a time, against the closed form's mean and variance."""
    rng, y0 = np.random.default_rng(1), 0.7
    y = np.full(200_000, y0)
    for beta in LINEAR.betas[:20]:
        y = math.sqrt(1 - beta) * y + math.sqrt(beta) * rng.normal(size=y.shape)
    root = torch.tensor([LINEAR.gammas[20] ** 0.5])
    mean = float(noised(torch.full((1, 1, 1, 1), y0, dtype=torch.float64), root, torch.zeros(1, 1, 1, 1)))
    scale = float(noised(torch.zeros(1, 1, 1, 1), root, torch.ones(1, 1, 1, 1, dtype=torch.float64)))
    assert y.mean() == pytest.approx(mean, abs=0.01)
    assert y.std() == pytest.approx(scale, rel=0.01)


@settings(max_examples=20, deadline=None)
@given(t=st.integers(2, 50), back=st.integers(1, 49), y0=st.floats(-1, 1), yt=st.floats(-2, 2))
def test_posterior_is_bayes(t: int, back: int, y0: float, yt: float) -> None:
    """q(y_s | y_0, y_t) ∝ q(y_t | y_s)·q(y_s | y_0) on a grid."""
    s = max(t - back, 1)
    before, gamma = LINEAR.gammas[s], LINEAR.gammas[t]
    alpha = gamma / before
    grid = np.linspace(-8, 8, 200_001)
    log = -((grid - math.sqrt(before) * y0) ** 2) / (2 * (1 - before))
    log -= (yt - math.sqrt(alpha) * grid) ** 2 / (2 * (1 - alpha))
    weights = np.exp(log - log.max())
    weights /= weights.sum()
    mean = float(weights @ grid)
    q = posterior(float(gamma), float(before))
    assert q.clear * y0 + q.noisy * yt == pytest.approx(mean, abs=1e-5)
    assert q.variance == pytest.approx(float(weights @ (grid - mean) ** 2), rel=1e-4)


def test_the_first_step_has_no_choice() -> None:
    q = posterior(0.9, 1.0)
    assert (q.clear, q.noisy, q.variance) == pytest.approx((1, 0, 0))


def test_levels_lie_within_their_steps_and_cover_all() -> None:
    spots = torch.rand(20_000, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    roots = np.sqrt(LINEAR.gammas)
    levels = LINEAR.levels(spots).numpy()
    # Every step is as likely, and within it √γ is uniform: its distribution function is linear between the steps.
    for t in range(1, LINEAR.steps + 1):
        middle = (roots[t] + roots[t - 1]) / 2
        assert (levels >= roots[t]).mean() == pytest.approx(t / LINEAR.steps, abs=0.015)
        assert (levels >= middle).mean() == pytest.approx((t - 0.5) / LINEAR.steps, abs=0.015)
    ends = LINEAR.levels(torch.tensor([0.0, 1.0]))
    assert ends.tolist() == pytest.approx([1.0, roots[-1]])


def test_levels_never_leave_their_device() -> None:
    """On a device that holds no numbers every copy to the processor is an error."""
    levels = LINEAR.levels(torch.empty(5, device="meta"))
    assert levels.device.type == "meta" and levels.shape == (5,) and levels.dtype == torch.float32


@settings(max_examples=20, deadline=None)
@given(count=st.integers(1, 80))
def test_times_fall_from_the_end_to_zero(count: int) -> None:
    times = LINEAR.times(count)
    assert times[0] == LINEAR.steps and times[-1] == 0
    assert (np.diff(times) < 0).all()
    assert len(times) == min(count, LINEAR.steps) + 1
    assert np.ptp(np.diff(times)) <= 1


@pytest.mark.parametrize("predicts", PREDICTIONS)
def test_every_answer_leads_back_to_the_clear_image(predicts: str) -> None:
    generator = torch.Generator().manual_seed(3)
    clear, noise = torch.randn(2, 4, 3, 5, 5, generator=generator, dtype=torch.float64)
    for gamma in (0.99, 0.5, 1e-3):
        root = torch.full((4,), gamma**0.5, dtype=torch.float64)
        answer = target(predicts, clear, noise, root)  # type: ignore[arg-type]
        found = clear_of(predicts, answer, noised(clear, root, noise), gamma)  # type: ignore[arg-type]
        torch.testing.assert_close(found, clear, atol=1e-9, rtol=1e-9)
