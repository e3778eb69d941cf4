"""bias_act against a loop over single numbers, and its derivatives."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ops_oracle import act_loop
from torch.autograd import gradcheck, gradgradcheck

from ficgan import ops
from ficgan.errors import UsageError

ONE_PLACE_FOR_ALL = HealthCheck.function_scoped_fixture  # `place` is meant to last for all examples
GAINS = {
    "linear": 1,
    "relu": math.sqrt(2),
    "lrelu": math.sqrt(2),
    "sigmoid": 1,
    "tanh": 1,
    "swish": math.sqrt(2),
    "softplus": 1,
}


def away_from_kinks(*shape: int) -> torch.Tensor:
    """Numbers at least 0.1 from 0, so that a finite difference stays on one side of a kink."""
    x = torch.randn(*shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    return x + 0.1 * x.sign()


def loop(x, b, dim, act, alpha, gain, clamp):
    out = np.zeros(x.shape)
    for index in np.ndindex(*x.shape):
        value = float(x[index]) + (0.0 if b is None else float(b[index[dim]]))
        value = act_loop(value, act, alpha) * gain
        out[index] = value if clamp is None else min(max(value, -clamp), clamp)
    return out


@settings(max_examples=80, deadline=None, derandomize=True, suppress_health_check=[ONE_PLACE_FOR_ALL])
@given(
    shape=st.lists(st.integers(0, 4), min_size=1, max_size=4),
    act=st.sampled_from(sorted(GAINS)),
    alpha=st.sampled_from([None, 0.01, 0.5]),
    gain=st.sampled_from([None, 0.5, 1.0, 3.0]),
    clamp=st.sampled_from([None, 0.0, 0.7]),
    bias=st.booleans(),
    data=st.data(),
)
def test_equals_loop(place, shape, act, alpha, gain, clamp, bias, data):
    dim = data.draw(st.integers(0, len(shape) - 1))
    x = torch.randn(*shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    b = torch.linspace(-1, 1, shape[dim], dtype=torch.float64) if bias else None
    x, b = x.to(place), None if b is None else b.to(place)
    kept = x.clone()
    y = ops.bias_act(x, b, dim=dim, act=act, alpha=alpha, gain=gain, clamp=clamp)
    expected = loop(x, b, dim, act, 0.2 if alpha is None else alpha, GAINS[act] if gain is None else gain, clamp)
    np.testing.assert_allclose(y.cpu().numpy(), expected, rtol=1e-12, atol=1e-12)
    assert torch.equal(x, kept), "the input was changed"


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("gain", [None, 1.0])
@pytest.mark.parametrize("act", sorted(GAINS))
@pytest.mark.parametrize("clamp", [50.0, 0.7])
def test_derivatives(place, act, gain, bias, clamp):
    x = away_from_kinks(2, 3, 2, 2).to(place).requires_grad_()
    b = torch.tensor([0.01, -0.02, 0.03], dtype=torch.float64, device=place, requires_grad=True) if bias else None
    inputs = (x, b) if bias else (x,)

    def op(*inputs):
        return ops.bias_act(*inputs, act=act, gain=gain, clamp=clamp)

    assert gradcheck(op, inputs)
    assert gradgradcheck(lambda *inputs: op(*inputs).square(), inputs)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.bfloat16, 3e-2), (torch.float16, 3e-3)])
def test_dtype_and_layout(place, dtype, tolerance):
    exact = away_from_kinks(2, 4, 3, 5)
    x = exact.to(place, dtype).contiguous(memory_format=torch.channels_last)
    y = ops.bias_act(x, torch.ones(4, device=place), act="lrelu")
    assert y.dtype == dtype and y.is_contiguous(memory_format=torch.channels_last)
    np.testing.assert_allclose(
        y.double().cpu(), loop(x.double(), np.ones(4), 1, "lrelu", 0.2, math.sqrt(2), None), atol=tolerance
    )


@pytest.mark.parametrize("dim", [0, 1, 2, 3])
def test_bias_along_any_dimension_of_any_layout(place, dim):
    x = away_from_kinks(2, 3, 4, 5).to(place)
    b = torch.linspace(-1, 1, x.shape[dim], dtype=torch.float64, device=place)
    expected = loop(x, b, dim, "tanh", 0, 1, None)
    strided = away_from_kinks(4, 6, 8, 5).to(place)[::2, ::2, ::2]
    strided.copy_(x)
    for view in (x, x.contiguous(memory_format=torch.channels_last), strided):
        np.testing.assert_allclose(ops.bias_act(view, b, dim=dim, act="tanh").cpu(), expected, atol=1e-12)


def test_saves_one_tensor(place):
    """Autograd keeps the output of bias + lrelu and nothing else."""
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
        x = torch.randn(2, 3, 4, 4, device=place, requires_grad=True)
        y = ops.bias_act(x, torch.randn(3, device=place, requires_grad=True), act="lrelu")
    large = {t.data_ptr() for t in saved if t.numel() >= y.numel()}
    assert large == {y.data_ptr()}


@pytest.mark.parametrize(
    "kwargs",
    [
        {"act": "gelu"},
        {"b": torch.zeros(4)},
        {"dim": 5, "b": torch.zeros(3)},
        {"gain": 0},
        {"clamp": -1},
        {"impl": "x"},
        {"impl": "native"},
    ],
)
def test_refusals(kwargs):
    with pytest.raises(UsageError):
        ops.bias_act(torch.zeros(2, 3, 4, 4), **kwargs)
