"""A-Softmax against NumPy in float64, from the definitions of the paper."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ficgan.verification import AngularMarginHead, angular_margin_loss
from ficgan.verification.angular_margin import annealed, margin


def psi(theta: np.ndarray) -> np.ndarray:
    """ψ(θ) = (−1)^k cos(4θ) − 2k on [kπ/4, (k+1)π/4]."""
    k = np.minimum(np.floor(theta * 4 / np.pi), 3)
    return (-1.0) ** k * np.cos(4 * theta) - 2 * k


def oracle(x: np.ndarray, w: np.ndarray, y: np.ndarray, lam: float) -> float:
    losses = []
    for row, person in zip(x, y, strict=True):
        logits = []
        for j, centre in enumerate(w):
            theta = np.arccos(np.clip(row @ centre / np.linalg.norm(row) / np.linalg.norm(centre), -1, 1))
            value = np.cos(theta) if j != person else (lam * np.cos(theta) + psi(theta)) / (1 + lam)
            logits.append(np.linalg.norm(row) * value)
        losses.append(np.log(np.exp(logits).sum()) - logits[person])
    return float(np.mean(losses))


@settings(deadline=None, max_examples=40)
@given(
    batch=st.integers(1, 6),
    people=st.integers(1, 7),
    dimensions=st.integers(2, 9),
    lam=st.floats(0, 1500),
    seed=st.integers(0, 2**31),
)
def test_equals_the_definition(batch: int, people: int, dimensions: int, lam: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    x, w = rng.normal(size=(batch, dimensions)), rng.normal(size=(people, dimensions))
    y = rng.integers(0, people, batch)
    got = angular_margin_loss(*map(torch.from_numpy, (x, w, y)), weight_of_softmax=lam)
    assert got.dtype == torch.float64
    assert float(got) == pytest.approx(oracle(x, w, y, lam), rel=1e-9, abs=1e-9)


def test_margin_is_the_piecewise_cosine_and_falls() -> None:
    theta = np.linspace(0, np.pi, 4001)
    got = margin(torch.from_numpy(np.cos(theta))).numpy()
    np.testing.assert_allclose(got, psi(theta), atol=1e-9)
    assert (np.diff(got) < 1e-12).all() and got[0] == pytest.approx(1) and got[-1] == pytest.approx(-7)


def test_gradients() -> None:
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(4, 5, generator=generator, dtype=torch.float64, requires_grad=True)
    w = torch.randn(6, 5, generator=generator, dtype=torch.float64, requires_grad=True)
    y = torch.tensor([0, 5, 2, 2])
    assert torch.autograd.gradcheck(lambda a, b: angular_margin_loss(a, b, y, weight_of_softmax=3.0), (x, w))


def test_gradients_are_finite_on_and_against_the_class_axis() -> None:
    w = torch.eye(3)
    x = torch.stack([w[0], -w[0]]).requires_grad_()
    angular_margin_loss(x, w, torch.tensor([0, 0]), weight_of_softmax=0.0).backward()
    assert x.grad is not None and torch.isfinite(x.grad).all()


def test_without_the_margin_it_is_softmax_on_normalised_weights() -> None:
    head = AngularMarginHead(5, 7)
    x, y = torch.randn(4, 5), torch.tensor([0, 1, 2, 6])
    plain = torch.nn.functional.cross_entropy(x @ torch.nn.functional.normalize(head.weight).T, y)
    torch.testing.assert_close(head(x, y, 1e9), plain, rtol=1e-5, atol=1e-6)
    assert head(x, y, 0.0) > plain


def test_annealing() -> None:
    values = [annealed(step) for step in range(0, 5000, 100)]
    assert values[0] == 1000 and values[-1] == 5 and values == sorted(values, reverse=True)
