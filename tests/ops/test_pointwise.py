"""bias_act, scale_bias_lrelu and adain against NumPy, and their derivatives against finite differences."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from ops_oracle import LAYOUTS, adain_oracle, bias_act_oracle, close, demodulate_oracle, random
from torch.autograd import gradcheck, gradgradcheck

from ficgan import ops
from ficgan.errors import UsageError

GAINS = {"linear": 1.0, "lrelu": math.sqrt(2)}


# --- bias_act -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("act", GAINS)
def test_bias_act_equals_numpy(place, act):
    shapes = itertools.cycle([(0, 3), (2, 3), (4, 0, 2), (2, 3, 4), (2, 3, 2, 2), (1, 4, 3, 1)])
    for gain, biased, layout in itertools.product([None, 0.5, 3.0], [True, False], LAYOUTS.values()):
        shape = next(shapes)
        x = random(*shape, seed=1, place=place)
        x = x.contiguous(memory_format=layout) if len(shape) == 4 else x
        b = torch.linspace(-1, 1, shape[1], dtype=torch.float64, device=place) if biased else None
        kept = x.clone()
        y = ops.bias_act(x, b, act=act, gain=gain)
        close(y, bias_act_oracle(x, b, act, GAINS[act] if gain is None else gain), 1e-12)
        assert torch.equal(x, kept), "the input was changed"


@pytest.mark.parametrize("act", GAINS)
def test_derivatives_of_bias_act(place, act):
    for gain, biased in ((None, True), (1.0, False)):
        x = random(2, 3, 2, 2, place=place).requires_grad_()
        b = torch.tensor([0.01, -0.02, 0.03], dtype=torch.float64, device=place, requires_grad=True)
        inputs = (x, b) if biased else (x,)

        def op(*inputs, gain=gain):
            return ops.bias_act(*inputs, act=act, gain=gain)

        assert gradcheck(op, inputs)
        assert gradgradcheck(lambda *inputs, op=op: op(*inputs).square(), inputs)


def test_dtypes_and_layouts_of_bias_act(place):
    for dtype, tolerance in ((torch.float32, 1e-6), (torch.bfloat16, 3e-2), (torch.float16, 3e-3)):
        x = random(2, 4, 3, 5, place=place, dtype=dtype).contiguous(memory_format=torch.channels_last)
        y = ops.bias_act(x, torch.ones(4, device=place), act="lrelu")
        assert y.dtype == dtype and y.is_contiguous(memory_format=torch.channels_last)
        close(y, bias_act_oracle(x, np.ones(4), "lrelu", GAINS["lrelu"]), tolerance)
    strided, b = random(4, 6, 8, 5, place=place)[::2, ::2, ::2], torch.linspace(-1, 1, 3, device=place).double()
    close(ops.bias_act(strided, b, act="lrelu"), bias_act_oracle(strided, b, "lrelu", GAINS["lrelu"]))


def test_autograd_keeps_one_tensor(place):
    """It keeps the output of bias + lrelu and nothing else."""
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
        x = torch.randn(2, 3, 4, 4, device=place, requires_grad=True)
        y = ops.bias_act(x, torch.randn(3, device=place, requires_grad=True), act="lrelu")
    assert {t.data_ptr() for t in saved if t.numel() >= y.numel()} == {y.data_ptr()}


# --- the tail of a style layer --------------------------------------------------------------------------------------


def inputs(shape, place="cpu", layout=torch.contiguous_format):
    """The bias is at most 0.03, so that x + b stays away from the kink."""
    x = random(*shape, seed=1, place=place).contiguous(memory_format=layout)
    b = torch.linspace(-0.03, 0.03, shape[1], dtype=torch.float64, device=place)
    scale = random(*shape[:2], seed=2, place=place)
    return x, b, scale + scale.sign(), random(*shape[:2], seed=3, place=place)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_style_ops_equal_numpy(place, layout):
    for shape in ((2, 3, 4, 5), (1, 1, 1, 1), (3, 2, 1, 7), (0, 3, 4, 4), (2, 17, 9, 9), (1, 5, 33, 31)):
        x, b, scale, shift = inputs(shape, place, LAYOUTS[layout])
        y = ops.scale_bias_lrelu(x, scale, b)
        close(y, demodulate_oracle(x, scale, b), 1e-12)
        z = ops.adain(x, b, scale, shift)
        close(z, adain_oracle(x, b, scale, shift), 1e-9)
        for result in (y, z):
            assert result.dtype == x.dtype
            assert result.is_contiguous(memory_format=LAYOUTS[layout]) or not result.numel()
    # The float32 statistics of 1,000 pixels far from 0 keep five digits; half types round input and output.
    for dtype, tolerance in ((torch.float32, 1e-4), (torch.bfloat16, 4e-2), (torch.float16, 6e-3)):
        x, b, scale, shift = (t.to(dtype) for t in inputs((2, 8, 32, 33), place, LAYOUTS[layout]))
        y, z = ops.scale_bias_lrelu(x, scale, b), ops.adain(x + 4, b, scale, shift)
        assert y.dtype == z.dtype == dtype
        close(y, demodulate_oracle(x, scale, b), tolerance)
        close(z, adain_oracle(x + 4, b, scale, shift), 2 * tolerance)


@pytest.mark.parametrize("layout", [pytest.param("contiguous", marks=pytest.mark.slow), "channels-last"])
def test_derivatives_of_style_ops(place, layout):
    x, b, scale, shift = (t.requires_grad_() for t in inputs((2, 3, 2, 3), place, LAYOUTS[layout]))
    for op, given in ((ops.scale_bias_lrelu, (x, scale, b)), (ops.adain, (x, b, scale, shift))):
        assert gradcheck(op, given)
        assert gradgradcheck(lambda *given, op=op: op(*given).square(), given)


def test_strided_and_empty_inputs(place):
    x, b, _, _ = inputs((2, 6, 4, 5), place)
    scale, shift = random(2, 12, seed=5, place=place).chunk(2, dim=1)
    view = x.transpose(2, 3)
    assert not scale.is_contiguous() and not view.is_contiguous()
    close(ops.adain(view, b, scale, shift), adain_oracle(view, b, scale, shift), 1e-9)
    close(ops.scale_bias_lrelu(view, scale, b), demodulate_oracle(view, scale, b))
    x, b, scale, shift = (t.requires_grad_() for t in inputs((0, 3, 4, 4), place))
    (ops.adain(x, b, scale, shift).sum() + ops.scale_bias_lrelu(x, scale, b).sum()).backward()
    assert x.grad.shape == x.shape and torch.equal(b.grad, torch.zeros_like(b))


X, B, STYLE = torch.zeros(2, 3, 4, 4), torch.zeros(3), torch.ones(2, 3)


@pytest.mark.parametrize(
    ("op", "changes"),
    [
        (ops.bias_act, ({"act": "gelu"}, {"b": torch.zeros(4)})),
        (ops.scale_bias_lrelu, ({"scale": B}, {"x": X[0]}, {"x": X.int()})),
        (ops.adain, ({"scale": B}, {"shift": STYLE[:, :1]}, {"b": torch.zeros(4)})),
    ],
)
def test_what_is_refused(op, changes):
    styles = {"bias_act": (), "scale_bias_lrelu": ("scale",), "adain": ("scale", "shift")}[op.__name__]
    for change in (*changes, {"impl": "cuda"}, {"impl": "native"}):
        with pytest.raises(UsageError):
            op(**({"x": X, "b": B} | dict.fromkeys(styles, STYLE) | change))
