"""The operators `torch.ops.ficgan_ops.*` of the compiled library, and the same in plain torch: the reference.

csrc/bind.cpp adds the CUDA kernels when the library is loaded; schemas, shapes and derivatives are here. Every operator
returns new, dense tensors: channels-last when the input is, contiguous otherwise. Half types are computed in float32;
the slope at a kink is the one below it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ficgan.errors import FicganError

from .resample import Geometry, is_channels_last, like, wide

# --- reference ------------------------------------------------------------------------------------------------------


def bias_act_reference(x: Tensor, b: Tensor | None, slope: float, gain: float) -> Tensor:
    """gain · act(x + b) of x [N,C,…] and b [C], where act(v) is v, or slope · v below 0."""
    # act(g·x) = g·act(x): with the gain folded into the sum the result of the activation is the output itself, computed
    # in place and the only tensor that autograd keeps.
    if b is not None:
        b = b.to(x.dtype).reshape(-1, *[1] * (x.ndim - 2))
        y = torch.add(b * gain, x, alpha=gain) if gain != 1 else x + b
    else:
        y = x * gain if gain != 1 else x
    return y if slope == 1 else F.leaky_relu(y, slope, inplace=y is not x)


def demodulate_reference(x: Tensor, scale: Tensor, b: Tensor, alpha: float, gain: float) -> Tensor:
    """gain · lrelu(x · scale + b) of x [N,C,H,W], scale [N,C] and b [C]."""
    # lrelu(g·x) = g·lrelu(x) for g > 0: with the gain in scale and bias the layer is two passes over x, one in place.
    y = torch.addcmul((b * gain)[:, None, None], x, (scale * gain)[:, :, None, None])
    return F.leaky_relu(y, alpha, inplace=True)


def adain_reference(
    x: Tensor, b: Tensor, scale: Tensor, shift: Tensor, alpha: float, gain: float, eps: float
) -> Tensor:
    """scale · (a − mean(a)) / √(var(a) + eps) + shift with a = gain · lrelu(x + b); x [N,C,H,W], scale, shift [N,C]."""
    a = F.leaky_relu(torch.add((b * gain)[:, None, None], x, alpha=gain), alpha, inplace=True)
    if x.numel() == 0:
        return a * scale[:, :, None, None] + shift[:, :, None, None]
    differentiated = torch.is_grad_enabled() and any(t.requires_grad for t in (x, b, scale, shift))
    if differentiated and not is_channels_last(x):
        # One batch normalisation of N·C channels, with scale and shift in it: backward it takes half of the time of the
        # formula below (two CPU cores), which is faster forward, and in channels-last.
        flat = a.reshape(1, -1, *x.shape[2:])
        y = torch.batch_norm(flat, scale.reshape(-1), shift.reshape(-1), None, None, True, 0.0, eps, True)
        return like(y.reshape(x.shape), x)
    wider = torch.promote_types(x.dtype, torch.float32)
    a = a - a.mean((2, 3), keepdim=True, dtype=wider).to(x.dtype)
    variance = a.square().mean((2, 3), keepdim=True, dtype=wider)
    factor = scale[:, :, None, None] * (variance + eps).rsqrt().to(x.dtype)
    return torch.addcmul(shift[:, :, None, None], a, factor)


# --- schemas and shapes ---------------------------------------------------------------------------------------------

_library = torch.library.Library("ficgan_ops", "DEF")
operators = torch.ops.ficgan_ops


def _like(x: Tensor, shape: Sequence[int] | None = None) -> Tensor:
    """A new tensor of `x`'s dtype and layout, by default of its shape."""
    layout = torch.channels_last if x.ndim == 4 and is_channels_last(x) else torch.contiguous_format
    return torch.empty(x.shape if shape is None else shape, dtype=x.dtype, device=x.device, memory_format=layout)


def _sums(x: Tensor, count: int) -> tuple[Tensor, ...]:
    """A new tensor as `x`, and so many [N,C] of the type that sums are kept in."""
    return _like(x), *(x.new_empty(x.shape[:2], dtype=wide(x.dtype)) for _ in range(count))


def _upfirdn2d_shape(x: Tensor, f: Tensor, *settings: Any) -> Tensor:
    return _like(x, (*x.shape[:2], *Geometry(*settings).output_size(x.shape[2:], len(f))))


_SHAPES: dict[str, Callable[..., Any]] = {
    "bias_act(Tensor x, Tensor? b, float slope, float gain) -> Tensor": lambda x, *_: _like(x),
    "bias_act_grad(Tensor dy, Tensor y, float slope, float gain) -> Tensor": lambda dy, y, *_: _like(y),
    "upfirdn2d(Tensor x, Tensor f, int up, int down, SymInt[] padding, bool flip_filter, float gain) -> Tensor": (
        _upfirdn2d_shape
    ),
    "scale_bias_lrelu(Tensor x, Tensor scale, Tensor b, float alpha, float gain) -> Tensor": lambda x, *_: _like(x),
    "scale_bias_lrelu_grad(Tensor dy, Tensor x, Tensor y, Tensor scale, float alpha, float gain)"
    " -> (Tensor, Tensor, Tensor)": lambda dy, x, *_: _sums(x, 2),
    "adain(Tensor x, Tensor b, Tensor scale, Tensor shift, float alpha, float gain, float eps)"
    " -> (Tensor, Tensor, Tensor)": lambda x, *_: _sums(x, 2),
    "adain_grad(Tensor dy, Tensor x, Tensor b, Tensor scale, Tensor mean, Tensor rstd, float alpha, float gain)"
    " -> (Tensor, Tensor, Tensor, Tensor)": lambda dy, x, *_: _sums(x, 3),
}

# --- derivatives ----------------------------------------------------------------------------------------------------


def _bias_act_setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, b, *ctx.settings = inputs
    ctx.others = None if b is None else [0, *range(2, x.ndim)]
    # The slope is read off the output; nothing is kept where it is the same everywhere.
    ctx.save_for_backward(None if ctx.settings[0] == 1 else output)


def _bias_act_backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
    (y,) = ctx.saved_tensors
    dx = dy * ctx.settings[1] if y is None else operators.bias_act_grad(dy, y, *ctx.settings)
    return dx, None if ctx.others is None else dx.sum(ctx.others), None, None


def _bias_act_grad_setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    _, y, *ctx.settings = inputs
    ctx.save_for_backward(y)


def _bias_act_grad_backward(ctx: Any, ddx: Tensor) -> tuple[Tensor | None, ...]:
    return operators.bias_act_grad(ddx, *ctx.saved_tensors, *ctx.settings), None, None, None


def _upfirdn2d_setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, f, *settings = inputs
    ctx.geometry, ctx.size = Geometry(*settings), x.shape[2:]
    ctx.save_for_backward(f)


def _upfirdn2d_backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
    (f,) = ctx.saved_tensors
    return operators.upfirdn2d(dy, f, *ctx.geometry.adjoint(ctx.size, len(f))), *[None] * 6


def _demodulate_setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, scale, b, *ctx.settings = inputs
    ctx.save_for_backward(x, scale, b, output)


def _demodulate_backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
    x, scale, b, y = ctx.saved_tensors
    if torch.is_grad_enabled():
        return *_differentiable(demodulate_reference, (x, scale, b), ctx.settings, dy), None, None
    dx, dscale, db = operators.scale_bias_lrelu_grad(dy, x, y, scale, *ctx.settings)
    return dx, dscale.to(scale.dtype), db.sum(0).to(b.dtype), None, None


def _adain_setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    x, b, scale, shift, *ctx.settings = inputs
    _, mean, rstd = output
    ctx.mark_non_differentiable(mean, rstd)
    ctx.save_for_backward(x, b, scale, shift, mean, rstd)


def _adain_backward(ctx: Any, dy: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
    x, b, scale, shift, mean, rstd = ctx.saved_tensors
    if torch.is_grad_enabled():
        return *_differentiable(adain_reference, (x, b, scale, shift), ctx.settings, dy), None, None, None
    dx, dscale, dshift, db = operators.adain_grad(dy, x, b, scale, mean, rstd, *ctx.settings[:2])
    return dx, db.sum(0).to(b.dtype), dscale.to(scale.dtype), dshift.to(shift.dtype), None, None, None


def _differentiable(
    formula: Callable[..., Tensor], inputs: tuple[Tensor, ...], settings: list[float], dy: Tensor
) -> list[Tensor | None]:
    """The gradient in plain torch, for a backward pass that is itself differentiated: rare, so it has no kernel."""
    wanted = [x for x in inputs if x.requires_grad]
    found = iter(torch.autograd.grad(formula(*inputs, *settings), wanted, dy, create_graph=True))
    return [next(found) if x.requires_grad else None for x in inputs]


def _refuse(*_: Any) -> None:
    raise FicganError("The compiled ops have no derivative of this order; call the op with impl='ref'.")


_DERIVATIVES: dict[str, tuple[Callable[..., Any], Callable[..., Any] | None]] = {
    "bias_act": (_bias_act_backward, _bias_act_setup),
    "bias_act_grad": (_bias_act_grad_backward, _bias_act_grad_setup),
    "upfirdn2d": (_upfirdn2d_backward, _upfirdn2d_setup),
    "scale_bias_lrelu": (_demodulate_backward, _demodulate_setup),
    "scale_bias_lrelu_grad": (_refuse, None),
    "adain": (_adain_backward, _adain_setup),
    "adain_grad": (_refuse, None),
}

for _schema, _shape in _SHAPES.items():
    _name = _schema.partition("(")[0]
    _backward, _setup = _DERIVATIVES[_name]
    _library.define(_schema)
    torch.library.register_fake(f"ficgan_ops::{_name}", _shape, lib=_library)
    torch.library.register_autograd(f"ficgan_ops::{_name}", _backward, setup_context=_setup, lib=_library)
