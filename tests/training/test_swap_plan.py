"""Whose identity goes where."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from ficgan.config import SwapConfig
from ficgan.training.task import mixed_code, plan_swap


@given(batch=st.integers(2, 12), seed=st.integers(0, 2**31), mean=st.floats(0, 1), crossover=st.floats(0, 1))
def test_a_plan_never_gives_a_face_its_own_identity(batch: int, seed: int, mean: float, crossover: float) -> None:
    config = SwapConfig(mean_fraction=mean, crossover=crossover)
    plan = plan_swap(batch, 8, config, torch.Generator().manual_seed(seed))
    assert (plan.target != torch.arange(batch)).all()
    assert sorted(plan.target.tolist()) == list(range(batch))
    assert not plan.members.diagonal().any()
    torch.testing.assert_close(plan.members.sum(1), torch.ones(batch))
    assert ((plan.kept >= 0) & (plan.kept < 8)).all()


@given(seed=st.integers(0, 2**31))
def test_mixed_codes_against_a_loop(seed: int) -> None:
    rng = torch.Generator().manual_seed(seed)
    plan = plan_swap(5, 6, SwapConfig(mean_fraction=0.5, crossover=0.5), rng)
    w, centre = torch.randn(5, 3, generator=rng), torch.randn(3, generator=rng)
    mixed = mixed_code(w, centre, plan, 6)
    mixed = mixed if mixed.ndim == 3 else mixed[:, None].expand(-1, 6, -1)
    for b in range(5):
        if plan.to_mean[b]:
            small = sum(plan.members[b, j] * w[j] for j in range(5))
            new = centre + plan.pull[b] * (small - centre)
        else:
            new = w[plan.target[b]]
        for layer in range(6):
            expected = w[b] if layer < plan.kept[b] else new
            torch.testing.assert_close(mixed[b, layer], expected)
