"""The operators `torch.ops.ficgan_ops.*`: schemas, shapes, derivatives, and their computation on the CPU.

csrc/bind.cpp adds the CUDA kernels when the library is loaded. The computation here is the definition those kernels
are tested against, and lets shapes, derivatives and torch.compile be tested where there is no GPU; the public functions
use other, faster code for tensors on the CPU. Every operator returns new, dense tensors: channels-last when the input
is, contiguous otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ficgan.errors import FicganError

from . import fir, formulas

_library = torch.library.Library("ficgan_ops", "DEF")
operators = torch.ops.ficgan_ops

_ACT = "int dim, int act, float alpha, float gain, float limit"
_SCHEMAS = (
    f"bias_act(Tensor x, Tensor? b, {_ACT}) -> Tensor",
    f"bias_act_grad(Tensor dy, Tensor saved, Tensor? b, {_ACT}) -> Tensor",
    f"bias_act_grad2(Tensor ddx, Tensor dy, Tensor x, Tensor? b, {_ACT}) -> Tensor",
    "upfirdn2d(Tensor x, Tensor f, int[] up, int[] down, SymInt[] padding, bool flip_filter, float gain) -> Tensor",
    "scale_bias_lrelu(Tensor x, Tensor scale, Tensor b, float alpha, float gain) -> Tensor",
    "scale_bias_lrelu_grad(Tensor dy, Tensor x, Tensor y, Tensor scale, float alpha, float gain)"
    " -> (Tensor, Tensor, Tensor)",
    "adain(Tensor x, Tensor b, Tensor scale, Tensor shift, float alpha, float gain, float eps)"
    " -> (Tensor, Tensor, Tensor)",
    "adain_grad(Tensor dy, Tensor x, Tensor b, Tensor scale, Tensor mean, Tensor rstd, float alpha, float gain)"
    " -> (Tensor, Tensor, Tensor, Tensor)",
)


def _like(x: Tensor, shape: Sequence[int] | None = None) -> Tensor:
    """A new tensor of `x`'s dtype and layout, by default of its shape."""
    layout = torch.channels_last if x.ndim == 4 and fir.is_channels_last(x) else torch.contiguous_format
    return torch.empty(x.shape if shape is None else shape, dtype=x.dtype, device=x.device, memory_format=layout)


def _per_channel(x: Tensor) -> Tensor:
    """A new [N,C] of the type that sums are kept in."""
    return x.new_empty(x.shape[:2], dtype=formulas.wide(x.dtype))


# --- bias_act -------------------------------------------------------------------------------------------------------


def _bias_act_setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, b, dim, act, alpha, gain, limit = inputs
    ctx.settings, ctx.biased = (dim, act, alpha, gain, limit), b is not None
    # The slope of the piecewise linear ones is read off the output; nothing is kept where it is the same everywhere.
    ctx.scaled = formulas.NAMES[act] == "linear" and limit < 0
    smooth = formulas.NAMES[act] in formulas.SMOOTH
    ctx.save_for_backward(None if ctx.scaled else x if smooth else output, b if smooth else None)


def _bias_act_backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
    saved, b = ctx.saved_tensors
    dx = dy * ctx.settings[3] if ctx.scaled else operators.bias_act_grad(dy, saved, b, *ctx.settings)
    return dx, _bias_gradient(dx, ctx.settings[0]) if ctx.biased else None, *[None] * 5


def _bias_gradient(dx: Tensor, dim: int) -> Tensor:
    others = [d for d in range(dx.ndim) if d != dim]
    return dx.sum(others) if others else dx


def _bias_act_grad_setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    dy, saved, b, *settings = inputs
    ctx.settings, ctx.smooth = tuple(settings), formulas.NAMES[settings[1]] in formulas.SMOOTH
    ctx.save_for_backward(dy if ctx.smooth else None, saved, b)


def _bias_act_grad_backward(ctx: Any, ddx: Tensor) -> tuple[Tensor | None, ...]:
    dy, saved, b = ctx.saved_tensors
    ddy = operators.bias_act_grad(ddx, saved, b, *ctx.settings)
    if not ctx.smooth:
        return ddy, None, None, *[None] * 5
    dx = operators.bias_act_grad2(ddx, dy, saved, b, *ctx.settings)
    return ddy, dx, None if b is None else _bias_gradient(dx, ctx.settings[0]), *[None] * 5


# --- upfirdn2d ------------------------------------------------------------------------------------------------------


def _geometry(up: Sequence[int], down: Sequence[int], padding: Sequence[int], flip: bool, gain: float) -> fir.Geometry:
    (ux, uy), (dx, dy), (x0, x1, y0, y1) = up, down, padding
    return fir.Geometry((ux, uy), (dx, dy), (x0, x1, y0, y1), flip, gain)


def _upfirdn2d(x: Tensor, f: Tensor, *settings: Any) -> Tensor:
    y = fir.compute(x, f, _geometry(*settings))
    return _like(x, y.shape).copy_(y)


def _upfirdn2d_fake(x: Tensor, f: Tensor, *settings: Any) -> Tensor:
    return _like(x, (*x.shape[:2], *_geometry(*settings).output_size(x.shape[2:], (f.shape[0], f.shape[1]))))


def _upfirdn2d_setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, f, *settings = inputs
    ctx.geometry, ctx.size = _geometry(*settings), x.shape[2:]
    ctx.save_for_backward(f)


def _upfirdn2d_backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
    (f,) = ctx.saved_tensors
    return operators.upfirdn2d(dy, f, *ctx.geometry.adjoint(ctx.size, (f.shape[0], f.shape[1]))), *[None] * 6


# --- the tail of a style layer --------------------------------------------------------------------------------------


def _demodulate_setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, scale, b, *ctx.settings = inputs
    ctx.save_for_backward(x, scale, b, output)


def _demodulate_backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
    x, scale, b, y = ctx.saved_tensors
    if torch.is_grad_enabled():
        return *_differentiable(formulas.demodulate, (x, scale, b), ctx.settings, dy), None, None
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
        return *_differentiable(formulas.adain, (x, b, scale, shift), ctx.settings, dy), None, None, None
    dx, dscale, dshift, db = operators.adain_grad(dy, x, b, scale, mean, rstd, *ctx.settings[:2])
    return dx, db.sum(0).to(b.dtype), dscale.to(scale.dtype), dshift.to(shift.dtype), None, None, None


def _differentiable(
    formula: Callable[..., Tensor], inputs: tuple[Tensor, ...], settings: list[float], dy: Tensor
) -> list[Tensor | None]:
    """The gradient in plain torch, for a backward pass that is itself differentiated: rare, so it has no kernel."""
    wanted = [x for x in inputs if x.requires_grad]
    found = iter(torch.autograd.grad(formula(*inputs, *settings), wanted, dy, create_graph=True))
    return [next(found) if x.requires_grad else None for x in inputs]


# --- registration ---------------------------------------------------------------------------------------------------


def _refuse(*_: Any) -> None:
    raise FicganError("The compiled ops have no derivative of this order; call the op with impl='ref'.")


def _register() -> None:
    for schema in _SCHEMAS:
        _library.define(schema)
    _implement("bias_act", formulas.bias_act, lambda x, *_: _like(x))
    _implement("bias_act_grad", formulas.bias_act_grad, lambda dy, saved, *_: _like(saved))
    _implement("bias_act_grad2", formulas.bias_act_grad2, lambda ddx, dy, x, *_: _like(x))
    _implement("scale_bias_lrelu", formulas.demodulate, lambda x, *_: _like(x))
    _implement(
        "scale_bias_lrelu_grad",
        formulas.demodulate_grad,
        lambda dy, x, *_: (_like(x), _per_channel(x), _per_channel(x)),
    )
    _implement("adain", formulas.adain_and_statistics, lambda x, *_: (_like(x), _per_channel(x), _per_channel(x)))
    _implement(
        "adain_grad",
        formulas.adain_grad,
        lambda dy, x, *_: (_like(x), _per_channel(x), _per_channel(x), _per_channel(x)),
    )
    _library.impl("upfirdn2d", _upfirdn2d, "CPU")
    torch.library.register_fake("ficgan_ops::upfirdn2d", _upfirdn2d_fake, lib=_library)

    derivatives: dict[str, tuple[Callable[..., Any], Callable[..., Any] | None]] = {
        "bias_act": (_bias_act_backward, _bias_act_setup),
        "bias_act_grad": (_bias_act_grad_backward, _bias_act_grad_setup),
        "bias_act_grad2": (_refuse, None),
        "upfirdn2d": (_upfirdn2d_backward, _upfirdn2d_setup),
        "scale_bias_lrelu": (_demodulate_backward, _demodulate_setup),
        "scale_bias_lrelu_grad": (_refuse, None),
        "adain": (_adain_backward, _adain_setup),
        "adain_grad": (_refuse, None),
    }
    for name, (backward, setup) in derivatives.items():
        torch.library.register_autograd(f"ficgan_ops::{name}", backward, setup_context=setup, lib=_library)


def _implement(name: str, formula: Callable[..., Any], empty: Callable[..., Any]) -> None:
    """Register `empty` as the shape of the results, and on the CPU `formula`, written into such results."""

    def compute(*args: Any) -> Any:
        results, values = empty(*args), formula(*args)
        if isinstance(results, Tensor):
            return results.copy_(values)
        return tuple(result.copy_(value) for result, value in zip(results, values, strict=True))

    _library.impl(name, compute, "CPU")
    torch.library.register_fake(f"ficgan_ops::{name}", empty, lib=_library)


_register()
