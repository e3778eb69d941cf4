"""The operators as torch sees them: schemas, shapes, layouts, derivatives (opcheck), and torch.compile."""

from __future__ import annotations

import pytest
import torch
from ops_oracle import random
from torch.library import opcheck

from ficgan import ops
from ficgan.errors import FicganError
from ficgan.ops.operators import operators
from ficgan.ops.resample import wide

# Calls of the operators themselves: there is no reference beside them.
pytestmark = [pytest.mark.slow, pytest.mark.parametrize("place", ["emulated"], indirect=True)]


def sample(name: str, place: str, layout: torch.memory_format, dtype: torch.dtype) -> tuple:
    """Arguments for an operator; those of one that has derivatives require them."""
    differentiable = name in ("bias_act", "bias_act_grad", "upfirdn2d", "scale_bias_lrelu", "adain")

    def made(*shape: int) -> torch.Tensor:
        x = random(*shape, place=place, dtype=dtype)
        return (x.contiguous(memory_format=layout) if x.ndim == 4 else x).requires_grad_(differentiable)

    image, styles, bias = (2, 3, 4, 5), (2, 3), (3,)
    statistics = (random(2, 3, place=place, dtype=wide(dtype)).abs(),) * 2
    taps = random(4, place=place, dtype=wide(dtype))
    return {
        "bias_act": (made(*image), made(*bias), 0.2, 1.5),
        "bias_act_grad": (made(*image), made(*image).detach(), 0.2, 1.5),
        "upfirdn2d": (made(*image), taps, 2, 1, (1, 2, -1, 4), False, 1.3),
        "scale_bias_lrelu": (made(*image), made(*styles), made(*bias), 0.2, 1.4),
        "scale_bias_lrelu_grad": (*(made(*image) for _ in range(3)), made(*styles), 0.2, 1.4),
        "adain": (made(*image), made(*bias), made(*styles), made(*styles), 0.2, 1.4, 1e-5),
        "adain_grad": (made(*image), made(*image), made(*bias), made(*styles), *statistics, 0.2, 1.4),
    }[name]


NAMES = ["bias_act", "bias_act_grad", "upfirdn2d", "scale_bias_lrelu", "scale_bias_lrelu_grad", "adain", "adain_grad"]


@pytest.mark.parametrize("name", NAMES)
def test_opcheck(place, name):
    operator = getattr(operators, name).default
    opcheck(operator, sample(name, place, torch.channels_last, torch.float64))
    half = sample(name, place, torch.contiguous_format, torch.bfloat16)
    opcheck(operator, half, atol=1e-2, rtol=2e-2)


@pytest.mark.parametrize("name", ["scale_bias_lrelu_grad", "adain_grad"])
def test_a_derivative_that_is_not_there_is_refused(place, name):
    x, *others = sample(name, place, torch.contiguous_format, torch.float64)
    result = getattr(operators, name)(x.requires_grad_(), *others)
    with pytest.raises(FicganError, match="impl='ref'"):
        (result if isinstance(result, torch.Tensor) else result[0]).sum().backward()


def test_a_style_layer_compiles_in_one_graph(place):
    x, scale, b = (random(*s, place=place).requires_grad_() for s in ((2, 3, 8, 8), (2, 3), (3,)))
    f = ops.setup_filter(device=place)

    def layer(x, scale, b):
        y = ops.scale_bias_lrelu(x, scale, b)
        y = ops.upsample2d(ops.adain(y, b, scale, scale), f)
        return ops.bias_act(y, b, act="lrelu").square().sum()

    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    actual, expected = (torch.autograd.grad(one(x, scale, b), (x, scale, b)) for one in (compiled, layer))
    torch.testing.assert_close(actual, expected)
