"""scale_bias_lrelu and adain against loops over single numbers, and their derivatives."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

from ficgan import ops
from ficgan.errors import UsageError

LAYOUTS = {"contiguous": torch.contiguous_format, "channels-last": torch.channels_last}
SHAPES = [(2, 3, 4, 5), (1, 1, 1, 1), (3, 2, 1, 7), (0, 3, 4, 4), (2, 17, 9, 9), (1, 5, 33, 31)]


def random(*shape: int, seed: int, place: str = "cpu") -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(place)


def inputs(shape, place="cpu", layout=torch.contiguous_format):
    """x at least 0.1 from 0 and a bias of at most 0.03, so that a finite difference stays on one side of the kink."""
    x = random(*shape, seed=1)
    x = (x + 0.1 * x.sign()).to(place).contiguous(memory_format=layout)
    b = torch.linspace(-0.03, 0.03, shape[1], dtype=torch.float64, device=place)
    scale = random(*shape[:2], seed=2, place=place)
    scale = scale + scale.sign()
    return x, b, scale, random(*shape[:2], seed=3, place=place)


def lrelu(value, alpha, gain):
    return gain * (value if value > 0 else alpha * value)


def demodulate_loop(x, scale, b, alpha, gain):
    out = np.zeros(x.shape)
    for n, c, i, j in np.ndindex(*x.shape):
        out[n, c, i, j] = lrelu(x[n, c, i, j] * scale[n, c] + b[c], alpha, gain)
    return out


def adain_loop(x, b, scale, shift, alpha, gain, eps):
    out = np.zeros(x.shape)
    for n, c in np.ndindex(*x.shape[:2]):
        a = [lrelu(value + b[c], alpha, gain) for value in x[n, c].ravel()]
        mean = math.fsum(a) / len(a)
        variance = math.fsum((value - mean) ** 2 for value in a) / len(a)
        normal = [(value - mean) / math.sqrt(variance + eps) for value in a]
        out[n, c] = np.reshape([scale[n, c] * value + shift[n, c] for value in normal], x.shape[2:])
    return out


def numpy(*tensors):
    return [t.detach().double().cpu().numpy() for t in tensors]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shape", SHAPES)
def test_equals_loop(place, shape, layout):
    x, b, scale, shift = inputs(shape, place, LAYOUTS[layout])
    y = ops.scale_bias_lrelu(x, scale, b, alpha=0.3, gain=1.7)
    np.testing.assert_allclose(y.cpu(), demodulate_loop(*numpy(x, scale, b), 0.3, 1.7), rtol=1e-12, atol=1e-12)
    z = ops.adain(x, b, scale, shift, alpha=0.3, gain=1.7, eps=1e-3)
    np.testing.assert_allclose(z.cpu(), adain_loop(*numpy(x, b, scale, shift), 0.3, 1.7, 1e-3), rtol=1e-9, atol=1e-11)
    for result in (y, z):
        assert result.dtype == x.dtype
        assert result.is_contiguous(memory_format=LAYOUTS[layout]) or not result.numel()


# The float32 statistics of 1,000 pixels far from 0 keep five digits; half types round input and output.
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-4), (torch.bfloat16, 4e-2), (torch.float16, 6e-3)])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_dtypes(place, dtype, tolerance, layout):
    x, b, scale, shift = (t.to(dtype) for t in inputs((2, 8, 32, 33), place, LAYOUTS[layout]))
    y = ops.scale_bias_lrelu(x, scale, b)
    z = ops.adain(x + 4, b, scale, shift)
    assert y.dtype == z.dtype == dtype
    exact = demodulate_loop(*numpy(x, scale, b), 0.2, math.sqrt(2))
    np.testing.assert_allclose(numpy(y)[0], exact, rtol=tolerance, atol=tolerance)
    exact = adain_loop(*numpy(x + 4, b, scale, shift), 0.2, math.sqrt(2), 1e-5)
    np.testing.assert_allclose(numpy(z)[0], exact, rtol=tolerance, atol=2 * tolerance)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_derivatives(place, layout):
    x, b, scale, shift = (t.requires_grad_() for t in inputs((2, 3, 2, 3), place, LAYOUTS[layout]))
    for op, given in ((ops.scale_bias_lrelu, (x, scale, b)), (ops.adain, (x, b, scale, shift))):
        assert gradcheck(op, given)
        assert gradgradcheck(lambda *given, op=op: op(*given).square(), given)


@pytest.mark.parametrize("wanted", range(4))
def test_one_input_alone_has_a_gradient(place, wanted):
    given = list(inputs((2, 3, 2, 3), place))
    given[wanted].requires_grad_()
    assert gradcheck(ops.adain, given)
    assert gradgradcheck(lambda *given: ops.adain(*given).square(), given)
    if wanted < 3:
        x, b, scale, _ = given
        assert gradcheck(ops.scale_bias_lrelu, (x, scale, b))


def test_a_strided_style_and_input(place):
    x, b, _, _ = inputs((2, 6, 4, 5), place)
    scale, shift = random(2, 12, seed=5, place=place).chunk(2, dim=1)
    assert not scale.is_contiguous()
    view = x.transpose(2, 3)
    for layout in LAYOUTS.values():
        dense = view.contiguous(memory_format=layout)
        torch.testing.assert_close(
            ops.adain(view, b, scale, shift), ops.adain(dense, b, scale.contiguous(), shift.contiguous())
        )
        torch.testing.assert_close(
            ops.scale_bias_lrelu(view, scale, b), ops.scale_bias_lrelu(dense, scale.contiguous(), b)
        )


def test_empty_images_have_gradients(place):
    x, b, scale, shift = (t.requires_grad_() for t in inputs((0, 3, 4, 4), place))
    (ops.adain(x, b, scale, shift).sum() + ops.scale_bias_lrelu(x, scale, b).sum()).backward()
    assert x.grad.shape == x.shape and torch.equal(b.grad, torch.zeros_like(b))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": torch.zeros(3, 4, 4)}, "N,C,H,W"),
        ({"x": torch.zeros(2, 3, 4, 4, dtype=torch.int32)}, "floating point"),
        ({"b": torch.zeros(4)}, "bias of shape"),
        ({"scale": torch.zeros(3)}, "scale has shape"),
        ({"alpha": 0.0}, "above 0"),
        ({"gain": -1.0}, "above 0"),
        ({"impl": "cuda"}, "auto, native, ref"),
        ({"impl": "native"}, "compiled ops"),
    ],
)
def test_refusals(change, message):
    given = {"x": torch.zeros(2, 3, 4, 4), "b": torch.zeros(3), "scale": torch.ones(2, 3)} | change
    with pytest.raises(UsageError, match=message):
        ops.scale_bias_lrelu(**given)
    with pytest.raises(UsageError, match=message):
        ops.adain(**given, shift=torch.ones(2, 3))
    if not {"x", "scale"} & set(change):
        with pytest.raises(UsageError):
            ops.adain(torch.zeros(2, 3, 4, 4), torch.zeros(3), torch.ones(2, 3), torch.ones(2, 1))
        with pytest.raises(UsageError, match="eps"):
            ops.adain(torch.zeros(2, 3, 4, 4), torch.zeros(3), torch.ones(2, 3), torch.ones(2, 3), eps=0)
