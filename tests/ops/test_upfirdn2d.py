"""upfirdn2d and its relatives against SciPy, and the derivatives against finite differences."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from ops_oracle import LAYOUTS, close, random, upfirdn2d_oracle
from torch.autograd import gradcheck, gradgradcheck

from ficgan import ops
from ficgan.errors import UsageError

FILTERS = {
    "1331": [1.0, 3.0, 3.0, 1.0],
    "odd": [1.0, -2.0, 4.0],
    "one": [2.0],
    "long": [1.0, 2.0, 5.0, 3.0, 2.0, 1.0, -1.0],
}
PADDINGS = [(0, 0, 0, 0), (2, 1, 2, 1), (3, 5, 0, 4), (-1, 2, 1, -1), (-1, -1, -2, 0), (1, 2, 4, 1)]
FACTORS = [(1, 1), (2, 1), (1, 2), (3, 1), (2, 3)]


@pytest.mark.parametrize("name", FILTERS)
def test_equals_scipy(place, name):
    f = torch.tensor(FILTERS[name], dtype=torch.float64)
    for (up, down), layout in itertools.product(FACTORS, LAYOUTS.values()):
        x = random(1, 2, 6, 5, place=place).contiguous(memory_format=layout)
        for padding, flip in itertools.product(PADDINGS, (False, True)):
            expected = upfirdn2d_oracle(x, f, up, down, padding, flip, 1.5)
            arguments = {"up": up, "down": down, "padding": padding, "flip_filter": flip, "gain": 1.5}
            if not expected.size:
                with pytest.raises(UsageError, match="does not fit"):
                    ops.upfirdn2d(x, f, **arguments)
                continue
            actual = ops.upfirdn2d(x, f, **arguments)
            close(actual, expected)
            assert actual.is_contiguous(memory_format=layout)


@pytest.mark.parametrize(
    ("op", "up", "down", "padding", "gain"),
    [("upsample2d", 2, 1, (2, 1, 2, 1), 4.0), ("downsample2d", 1, 2, (1, 1, 1, 1), 1.0)],
)
def test_dtypes_and_relatives(place, op, up, down, padding, gain):
    f = ops.setup_filter()
    # A result may be off by the half type's own rounding of it (and of one intermediate).
    tolerances = {torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 3e-3}
    for (dtype, tolerance), layout in itertools.product(tolerances.items(), LAYOUTS.values()):
        x = random(2, 3, 8, 6, dtype=dtype, place=place).contiguous(memory_format=layout)
        actual = getattr(ops, op)(x, f)
        assert actual.dtype == dtype and actual.shape[2:] == (8 * up // down, 6 * up // down)
        expected = upfirdn2d_oracle(x, f, up, down, padding, False, gain)
        close(actual, expected, tolerance)


@pytest.mark.parametrize(
    ("name", "up", "down", "padding", "layout"),
    [
        ("1331", 2, 1, (2, 1, 2, 1), "channels-last"),
        ("1331", 1, 2, (1, 1, 1, 1), "contiguous"),
        pytest.param("odd", 3, 2, (-1, 2, 1, -1), "channels-last", marks=pytest.mark.slow),
    ],
)
def test_derivatives(place, name, up, down, padding, layout):
    f = torch.tensor(FILTERS[name], dtype=torch.float64)
    x = random(1, 2, 4, 5, place=place).contiguous(memory_format=LAYOUTS[layout]).requires_grad_()

    def op(x):
        return ops.upfirdn2d(x, f, up=up, down=down, padding=padding, gain=1.3)

    assert gradcheck(op, x)
    # The map is linear, so its own second derivative vanishes; squared it does not.
    assert gradgradcheck(lambda x: op(x).square(), x)


@settings(derandomize=True)
@given(data=st.data())
def test_adjoint_identity(place, data):
    """⟨Ax, y⟩ = ⟨x, Aᵀy⟩ for any geometry, and A agrees with SciPy."""
    number = st.integers
    n, c, h, w = (data.draw(number(1, m)) for m in (2, 3, 6, 6))
    f = random(data.draw(st.sampled_from([1, 4, 5, 8])), seed=5)
    up, down = (data.draw(number(1, 3)) for _ in range(2))
    padding = data.draw(st.tuples(*[number(-2, 5)] * 4))
    flip = data.draw(st.booleans())
    x = random(n, c, h, w, seed=6, place=place).requires_grad_()
    expected = upfirdn2d_oracle(x, f, up, down, padding, flip)
    if not expected.size:
        return
    y = ops.upfirdn2d(x, f, up=up, down=down, padding=padding, flip_filter=flip)
    close(y, expected, 1e-10)
    v = random(*y.shape, seed=7, place=place)
    (adjoint,) = torch.autograd.grad(y, x, v)
    assert torch.isclose((y * v).sum(), (x * adjoint).sum(), rtol=1e-9, atol=1e-9)


def test_empty_batch_and_strided_input(place):
    f = ops.setup_filter()
    empty = torch.zeros(0, 3, 8, 8, device=place, requires_grad=True)
    y = ops.upsample2d(empty, f)
    assert y.shape == (0, 3, 16, 16)
    y.sum().backward()
    assert empty.grad is not None and empty.grad.shape == empty.shape
    x = random(2, 3, 9, 14, place=place)[:, :, ::2, 3::2].transpose(2, 3)
    assert not x.is_contiguous()
    torch.testing.assert_close(ops.upsample2d(x, f), ops.upsample2d(x.contiguous(), f))
    expanded = random(1, 1, 4, 4, place=place).expand(2, 3, 4, 4)
    torch.testing.assert_close(ops.downsample2d(expanded, f), ops.downsample2d(expanded.contiguous(), f))


X = torch.zeros(1, 1, 8, 8)


@pytest.mark.parametrize(
    "wrong", [{"x": X[0]}, {"x": X.long()}, {"x": X[..., :2]}, {"up": 0}, {"f": X}, {"impl": "native"}]
)
def test_refusals(wrong):
    with pytest.raises(UsageError):
        ops.upfirdn2d(**({"x": X, "f": ops.setup_filter()} | wrong))


@pytest.mark.slow
def test_compiles_in_one_graph(place):
    f, x = ops.setup_filter(device=place), random(1, 2, 6, 6, dtype=torch.float32, place=place).requires_grad_()

    def op(x):
        return ops.bias_act(ops.downsample2d(ops.upsample2d(x, f), f), act="lrelu").square().sum()

    (expected,) = torch.autograd.grad(op(x), x)
    (actual,) = torch.autograd.grad(torch.compile(op, backend="aot_eager", fullgraph=True)(x), x)
    torch.testing.assert_close(actual, expected)
