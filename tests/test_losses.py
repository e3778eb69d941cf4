"""Every equation of the paper against float64 NumPy."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ficgan import losses


def _pair(seed: int, batch: int = 5, dim: int = 7) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.normal(size=(batch, dim)), rng.normal(size=(batch, dim))


def _cos(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return (a * b).sum(1) / (np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1))


def _t(a: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(a).float()


@given(seed=st.integers(0, 2**32 - 1))
def test_equations_1_and_2(seed: int) -> None:
    a, b = _pair(seed)
    np.testing.assert_allclose(losses.negative(_t(a), _t(b)).numpy(), _cos(a, b), atol=1e-5)
    np.testing.assert_allclose(losses.positive(_t(a), _t(b)).numpy(), 1 - _cos(a, b), atol=1e-5)


@given(seed=st.integers(0, 2**32 - 1), margin=st.floats(-0.5, 0.5))
def test_hinge(seed: int, margin: float) -> None:
    source, target = _pair(seed)
    mix, _ = _pair(seed + 1)
    expected = np.maximum(0, _cos(source, mix) - np.maximum(margin, _cos(source, target)))
    actual = losses.negative_hinge(_t(source), _t(target), _t(mix), margin)
    np.testing.assert_allclose(actual.numpy(), expected, atol=1e-5)


def test_hinge_floor_without_a_target() -> None:
    source, target, mix = (torch.randn(4, 3, generator=torch.Generator().manual_seed(i)) for i in range(3))
    near = source + 0.1 * target  # a target that looks like the source excuses a swap, not a mix towards a mean
    has = torch.tensor([True, False, True, False])
    excused = losses.negative_hinge(source, near, source, 0.05, has)
    assert (excused[has] < 0.1).all() and (excused[~has] > 0.9).all()
    torch.testing.assert_close(
        losses.negative_hinge(source, target, mix, 0.05, torch.ones(4, dtype=torch.bool)),
        losses.negative_hinge(source, target, mix, 0.05),
    )


@pytest.mark.parametrize("norm", ["l2-norm", "l2-mean", "l1-mean"])
def test_equation_3(norm: str) -> None:
    rng = np.random.default_rng(0)
    x, y = rng.uniform(-1, 1, (3, 3, 4, 4)), rng.uniform(-1, 1, (3, 3, 4, 4))
    d = (x - y).reshape(3, -1)
    expected = {"l2-norm": np.linalg.norm(d, axis=1), "l2-mean": (d**2).mean(1), "l1-mean": np.abs(d).mean(1)}[norm]
    np.testing.assert_allclose(losses.reconstruction(_t(x), _t(y), norm).numpy(), expected, rtol=1e-5)


def test_only_a_mean_over_pixels_lets_the_verifier_weigh() -> None:
    """At 256² and an error of .09 RMS (MSE .008) λ2·|∇V| ≈ .0017 is more than the mean's gradient, not the norm's."""
    gradients = {}
    for norm in ("l2-mean", "l2-norm"):
        x = torch.full((1, 3, 256, 256), 0.09, requires_grad=True)
        losses.reconstruction(torch.zeros_like(x), x, norm).sum().backward()
        assert x.grad is not None
        gradients[norm] = float(x.grad.norm())
    assert gradients == pytest.approx({"l2-mean": 2 * 0.09 / (3 * 256**2) ** 0.5, "l2-norm": 1}, rel=1e-3)
    assert gradients["l2-mean"] < 0.0017 < gradients["l2-norm"] / 500


def test_equation_3_has_a_gradient_where_both_agree() -> None:
    x = torch.zeros(1, 3, 2, 2, requires_grad=True)
    losses.reconstruction(torch.zeros_like(x), x).sum().backward()
    assert x.grad is not None and x.grad.isfinite().all()


def test_equation_4_and_its_discriminator() -> None:
    logits = np.linspace(-30, 30, 13)
    minus_log_sigmoid = np.logaddexp(0, -logits)
    np.testing.assert_allclose(losses.adversarial_generator(_t(logits)).numpy(), minus_log_sigmoid, rtol=1e-5)
    real, rec, mix = np.split(np.random.default_rng(0).normal(size=12), 3)

    def log_sigmoid(v: np.ndarray) -> np.ndarray:
        return np.log(1 / (1 + np.exp(-v)))

    expected = -log_sigmoid(real).mean() - 0.5 * log_sigmoid(-rec).mean() - 0.5 * log_sigmoid(-mix).mean()
    actual = losses.adversarial_discriminator(_t(real), _t(rec), _t(mix))
    np.testing.assert_allclose(actual.item(), expected, rtol=1e-5)


def test_r1_of_a_quadratic() -> None:
    # D(x) = a·Σx² has gradient 2ax, so R1 = ½·4a²·Σx², and its derivative by a is 4a·Σx².
    a = torch.tensor(0.3, requires_grad=True)
    x = torch.randn(4, 3, 5, 5, generator=torch.Generator().manual_seed(0), requires_grad=True)
    penalty = losses.r1_penalty(a * x.square().flatten(1).sum(1), x)
    energy = x.detach().double().square().flatten(1).sum(1)
    torch.testing.assert_close(penalty.double(), 2 * 0.09 * energy, rtol=1e-5, atol=0)
    penalty.sum().backward()
    assert a.grad is not None
    assert a.grad.item() == pytest.approx(4 * 0.3 * energy.sum().item(), rel=1e-5)


def test_feature_distance_keeps_the_target_fixed() -> None:
    target = [torch.ones(2, 1, 2, 2, requires_grad=True), torch.zeros(2, 3, 1, 1, requires_grad=True)]
    made = [torch.full((2, 1, 2, 2), 3.0, requires_grad=True), torch.full((2, 3, 1, 1), -0.5, requires_grad=True)]
    value = losses.feature_distance(target, made)
    assert value.item() == pytest.approx((2 + 0.5) / 2)
    value.backward()
    assert target[0].grad is None and made[0].grad is not None


def test_structure_sees_blocks_only() -> None:
    rng = np.random.default_rng(1)
    x = rng.uniform(-1, 1, (2, 3, 8, 8))
    detail = np.tile(np.array([[1.0, -1.0], [-1.0, 1.0]]), (4, 4)) * 0.2  # averages to 0 in every 2×2 block
    assert losses.structure(_t(x), _t(x + detail), 4).abs().max() < 1e-6
    y = rng.uniform(-1, 1, (2, 3, 8, 8))
    blocks = (x - y).reshape(2, 3, 4, 2, 4, 2).mean((3, 5))
    np.testing.assert_allclose(losses.structure(_t(x), _t(y), 4).numpy(), np.abs(blocks).mean((1, 2, 3)), rtol=1e-4)


def test_what_a_linear_model_can_say_is_free_up_to_a_standard_deviation() -> None:
    rng = torch.Generator().manual_seed(0)
    components = torch.randn(5, 40, generator=rng)
    inverse = torch.linalg.pinv(components)
    said = torch.tensor([[0.9, -1.0, 0.0, 0.5, 0.2], [3.0, 0.0, 0.0, -2.0, 1.0]])
    beyond, rest = losses.manifold(said @ components, components, inverse)
    torch.testing.assert_close(beyond, torch.tensor([0.0, (4.0 + 1.0) / 5]), atol=1e-5, rtol=1e-4)
    assert rest.abs().max() < 1e-4
    other = torch.randn(1, 40, generator=rng)
    beside = other - other @ inverse @ components
    beyond, rest = losses.manifold(beside + said[:1] @ components, components, inverse)
    torch.testing.assert_close(rest, beside, atol=1e-4, rtol=1e-3)
    assert beyond.item() == pytest.approx(0, abs=1e-5)


def test_excess_detail_counts_only_what_a_reconstruction_has_not_at_that_place() -> None:
    rec = torch.zeros(1, 3, 8, 8)
    rec[..., :4, :4] = 0.5
    mix = torch.zeros(1, 3, 8, 8, requires_grad=True)
    with torch.no_grad():
        mix[..., :4, :4] = -0.4  # weaker than the reconstruction, and of the other sign
        mix[:, 0, 4:, 4:] = -0.6  # a mark where it has none: mean of three channels .2, in one place of four
    excess = losses.excess_detail(rec, mix, 2)
    assert excess.item() == pytest.approx(0.2 / 4)
    (gradient,) = torch.autograd.grad(excess.sum(), mix)
    assert (gradient[:, 0, 4:, 4:] < 0).all() and not gradient[..., :4, :].any()
