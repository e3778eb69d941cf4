"""The operators `torch.ops.ficgan_ops.*`: schemas, shapes, derivatives, and their computation on the CPU.

csrc/bind.cpp adds the CUDA kernels when the library is loaded. The formulas at the end are the definition that those
kernels are tested against, and let shapes, derivatives and torch.compile be tested where there is no GPU; the public
functions use other, faster code for tensors on the CPU. Every operator returns new, dense tensors: channels-last when
the input is, contiguous otherwise.

Formulas compute half types in float32, as the kernels do. `act` is the number of an activation in `NAMES`; `limit`
below 0 does not clamp; a slope at a kink is the one below it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ficgan.errors import FicganError

from . import resample
from .resample import Geometry, is_channels_last, wide

# In the order of ficgan::Activation in csrc/kernels.h.
NAMES = ("linear", "relu", "lrelu", "sigmoid", "tanh", "swish", "softplus")
SMOOTH = frozenset({"sigmoid", "tanh", "swish", "softplus"})

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
    layout = torch.channels_last if x.ndim == 4 and is_channels_last(x) else torch.contiguous_format
    return torch.empty(x.shape if shape is None else shape, dtype=x.dtype, device=x.device, memory_format=layout)


def _per_channel(x: Tensor) -> Tensor:
    """A new [N,C] of the type that sums are kept in."""
    return x.new_empty(x.shape[:2], dtype=wide(x.dtype))


# --- bias_act -------------------------------------------------------------------------------------------------------


def _bias_act_setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, b, dim, act, alpha, gain, limit = inputs
    ctx.settings, ctx.biased = (dim, act, alpha, gain, limit), b is not None
    # The slope of the piecewise linear ones is read off the output; nothing is kept where it is the same everywhere.
    ctx.scaled = NAMES[act] == "linear" and limit < 0
    smooth = NAMES[act] in SMOOTH
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
    ctx.settings, ctx.smooth = tuple(settings), NAMES[settings[1]] in SMOOTH
    ctx.save_for_backward(dy if ctx.smooth else None, saved, b)


def _bias_act_grad_backward(ctx: Any, ddx: Tensor) -> tuple[Tensor | None, ...]:
    dy, saved, b = ctx.saved_tensors
    ddy = operators.bias_act_grad(ddx, saved, b, *ctx.settings)
    if not ctx.smooth:
        return ddy, None, None, *[None] * 5
    dx = operators.bias_act_grad2(ddx, dy, saved, b, *ctx.settings)
    return ddy, dx, None if b is None else _bias_gradient(dx, ctx.settings[0]), *[None] * 5


# --- upfirdn2d ------------------------------------------------------------------------------------------------------


def _geometry(up: Sequence[int], down: Sequence[int], padding: Sequence[int], flip: bool, gain: float) -> Geometry:
    (ux, uy), (dx, dy), (x0, x1, y0, y1) = up, down, padding
    return Geometry((ux, uy), (dx, dy), (x0, x1, y0, y1), flip, gain)


def _upfirdn2d(x: Tensor, f: Tensor, *settings: Any) -> Tensor:
    y = resample.compute(x, f, _geometry(*settings))
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
        return *_differentiable(demodulate, (x, scale, b), ctx.settings, dy), None, None
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
        return *_differentiable(adain, (x, b, scale, shift), ctx.settings, dy), None, None, None
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
    _implement("bias_act", bias_act, lambda x, *_: _like(x))
    _implement("bias_act_grad", bias_act_grad, lambda dy, saved, *_: _like(saved))
    _implement("bias_act_grad2", bias_act_grad2, lambda ddx, dy, x, *_: _like(x))
    _implement("scale_bias_lrelu", demodulate, lambda x, *_: _like(x))
    _implement("scale_bias_lrelu_grad", demodulate_grad, lambda dy, x, *_: (_like(x), _per_channel(x), _per_channel(x)))
    _implement("adain", adain_and_statistics, lambda x, *_: (_like(x), _per_channel(x), _per_channel(x)))
    _implement(
        "adain_grad", adain_grad, lambda dy, x, *_: (_like(x), _per_channel(x), _per_channel(x), _per_channel(x))
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


def _wide(*tensors: Tensor) -> tuple[Tensor, ...]:
    return tuple(t.to(wide(t.dtype)) for t in tensors)


# --- formulas: bias_act ---------------------------------------------------------------------------------------------


def bias_act(
    x: Tensor, b: Tensor | None, dim: int, act: int, alpha: float, gain: float, limit: float
) -> Tensor:  # clamp(gain · act(x + b), ±limit)
    t = _argument(x, b, dim)
    value = {
        "linear": lambda: t,
        "relu": lambda: F.relu(t),
        "lrelu": lambda: F.leaky_relu(t, alpha),
        "sigmoid": lambda: torch.sigmoid(t),
        "tanh": lambda: torch.tanh(t),
        "swish": lambda: F.silu(t),
        "softplus": lambda: F.softplus(t),
    }[NAMES[act]]()
    y = (value * gain).to(x.dtype)
    return y.clamp(-limit, limit) if limit >= 0 else y


def bias_act_grad(
    dy: Tensor, saved: Tensor, b: Tensor | None, dim: int, act: int, alpha: float, gain: float, limit: float
) -> Tensor:  # dy · gain · act′(x + b); `saved` is the output, of smooth activations the input x
    name = NAMES[act]
    if name in SMOOTH:
        y = bias_act(saved, b, dim, act, alpha, gain, -1.0)
        t = _argument(saved, b, dim)
        s = torch.sigmoid(t)
        slope = {
            "sigmoid": lambda: s * (1 - s),
            "tanh": lambda: 1 - torch.tanh(t).square(),
            "swish": lambda: s * (1 + t * (1 - s)),
            "softplus": lambda: s,
        }[name]()
        dx = _wide(dy)[0] * slope
    else:
        y = saved
        dx = _sloped(_wide(dy)[0], y > 0, {"linear": 1.0, "relu": 0.0, "lrelu": alpha}[name])
    return (_unclamped(dx, y, limit) * gain).to(saved.dtype)


def bias_act_grad2(
    ddx: Tensor, dy: Tensor, x: Tensor, b: Tensor | None, dim: int, act: int, alpha: float, gain: float, limit: float
) -> Tensor:  # ddx · dy · gain · act″(x + b)
    y = bias_act(x, b, dim, act, alpha, gain, -1.0)
    t = _argument(x, b, dim)
    s = torch.sigmoid(t)
    curvature = {
        "sigmoid": lambda: s * (1 - s) * (1 - 2 * s),
        "tanh": lambda: -2 * torch.tanh(t) * (1 - torch.tanh(t).square()),
        "swish": lambda: s * (1 - s) * (2 + t * (1 - 2 * s)),
        "softplus": lambda: s * (1 - s),
    }.get(NAMES[act], lambda: torch.zeros_like(t))()
    first, second = _wide(dy, ddx)
    return (_unclamped(first, y, limit) * second * curvature * gain).to(x.dtype)


def _argument(x: Tensor, b: Tensor | None, dim: int) -> Tensor:
    (t,) = _wide(x)
    if b is None:
        return t
    shape = [1] * x.ndim
    shape[dim] = -1
    return t + b.to(t.dtype).reshape(shape)


def _sloped(gradient: Tensor, positive: Tensor, alpha: float) -> Tensor:
    return torch.where(positive, gradient, gradient * alpha)


def _unclamped(gradient: Tensor, y: Tensor, limit: float) -> Tensor:
    return torch.where(y.abs() < limit, gradient, 0.0) if limit >= 0 else gradient


# --- formulas: the tail of a style layer; scale, shift [N,C] --------------------------------------------------------


def demodulate(x: Tensor, scale: Tensor, b: Tensor, alpha: float, gain: float) -> Tensor:  # gain · lrelu(x · scale + b)
    u, s, c = _wide(x, scale, b)
    return (F.leaky_relu(u * _over(s) + c[:, None, None], alpha) * gain).to(x.dtype)


def demodulate_grad(
    dy: Tensor, x: Tensor, y: Tensor, scale: Tensor, alpha: float, gain: float
) -> tuple[Tensor, Tensor, Tensor]:  # by x, by scale, and Σ over pixels of the one by b
    v, u, s = _wide(dy, x, scale)
    v = _sloped(v, y > 0, alpha) * gain
    return (v * _over(s)).to(x.dtype), (v * u).sum((2, 3)), v.sum((2, 3))


def adain(
    x: Tensor, b: Tensor, scale: Tensor, shift: Tensor, alpha: float, gain: float, eps: float
) -> Tensor:  # scale · (a − mean(a)) / sqrt(var(a) + eps) + shift, a = gain · lrelu(x + b)
    return adain_and_statistics(x, b, scale, shift, alpha, gain, eps)[0]


def adain_and_statistics(
    x: Tensor, b: Tensor, scale: Tensor, shift: Tensor, alpha: float, gain: float, eps: float
) -> tuple[Tensor, Tensor, Tensor]:  # also mean and 1 / sqrt(var + eps), [N,C]
    u, c, s, t = _wide(x, b, scale, shift)
    a = F.leaky_relu(u + c[:, None, None], alpha) * gain
    pixels = max(x.shape[2] * x.shape[3], 1)
    mean = a.sum((2, 3)) / pixels
    rstd = ((a - _over(mean)).square().sum((2, 3)) / pixels + eps).rsqrt()
    return ((a - _over(mean)) * _over(rstd * s) + _over(t)).to(x.dtype), mean, rstd


def adain_grad(
    dy: Tensor, x: Tensor, b: Tensor, scale: Tensor, mean: Tensor, rstd: Tensor, alpha: float, gain: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # by x, by scale, by shift, and Σ over pixels of the one by b
    v, u, c, s = _wide(dy, x, b, scale)
    u = u + c[:, None, None]
    normal = (F.leaky_relu(u, alpha) * gain - _over(mean)) * _over(rstd)
    pixels = max(x.shape[2] * x.shape[3], 1)
    dshift, dscale = v.sum((2, 3)), (v * normal).sum((2, 3))
    da = (v - _over(dshift / pixels) - normal * _over(dscale / pixels)) * _over(s * rstd)
    dx = _sloped(da, u > 0, alpha) * gain
    return dx.to(x.dtype), dscale, dshift, dx.sum((2, 3))


def _over(s: Tensor) -> Tensor:
    """[N,C] along the pixels of [N,C,H,W]."""
    return s[:, :, None, None]


_register()
