"""What the compiled ops compute, in plain torch: values, first and second derivatives, straight from the definitions.

Half types are computed in float32, as the kernels do. `act` is the number of an activation in `NAMES`; `limit` below 0
does not clamp; a slope at a kink is the one below it.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

# In the order of ficgan::Activation in csrc/kernels.h.
NAMES = ("linear", "relu", "lrelu", "sigmoid", "tanh", "swish", "softplus")
SMOOTH = frozenset({"sigmoid", "tanh", "swish", "softplus"})


def wide(dtype: torch.dtype) -> torch.dtype:
    """The type that is computed in: float32, for float64 itself."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def _wide(*tensors: Tensor) -> tuple[Tensor, ...]:
    return tuple(t.to(wide(t.dtype)) for t in tensors)


# --- bias_act -------------------------------------------------------------------------------------------------------


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


# --- the tail of a style layer; scale, shift [N,C] ------------------------------------------------------------------


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
