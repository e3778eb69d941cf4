"""Bias, activation, gain and clamp in one call."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ficgan.errors import UsageError

from .backend import use_native
from .formulas import NAMES, SMOOTH
from .registry import operators


class _Defaults(NamedTuple):
    gain: float
    alpha: float = 0.0


# The gains keep the second moment of a unit normal roughly where it was (He initialisation).
ACTIVATIONS = {
    "linear": _Defaults(1.0),
    "relu": _Defaults(math.sqrt(2)),
    "lrelu": _Defaults(math.sqrt(2), 0.2),
    "sigmoid": _Defaults(1.0),
    "tanh": _Defaults(1.0),
    "swish": _Defaults(math.sqrt(2)),
    "softplus": _Defaults(1.0),
}

_FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "swish": F.silu,
    "softplus": F.softplus,
}


def bias_act(
    x: Tensor,
    b: Tensor | None = None,
    *,
    dim: int = 1,
    act: str = "linear",
    alpha: float | None = None,
    gain: float | None = None,
    clamp: float | None = None,
    impl: str = "auto",
) -> Tensor:
    """Compute clamp(act(x + b)·gain), elementwise.

    Differentiable to any order; the compiled op to the second, and to any order where `act` is piecewise linear.

    Args:
        x: any shape, floating point.
        b: [x.shape[dim]] bias, or None.
        dim: the dimension of `x` that `b` runs along.
        act: "linear", "relu", "lrelu", "sigmoid", "tanh", "swish" (x·sigmoid(x)) or "softplus".
        alpha: negative slope of "lrelu", > 0 (default 0.2).
        gain: > 0; default √2 for relu, lrelu and swish, otherwise 1.
        clamp: limit of the absolute value, ≥ 0; None does not clamp.
        impl: "auto", "native" or "ref".

    Returns:
        Same shape, dtype and memory layout as `x`.

    Raises:
        UsageError: unknown `act` or `impl`, a bias that does not fit, or impl="native" where that is not to be had.
    """
    if act not in ACTIVATIONS:
        raise UsageError(f"bias_act: unknown activation {act!r}; use one of {', '.join(ACTIVATIONS)}")
    if b is not None and (b.ndim != 1 or not -x.ndim <= dim < x.ndim or b.shape[0] != x.shape[dim]):
        raise UsageError(f"bias_act: a bias of shape {list(b.shape)} does not fit dimension {dim} of {list(x.shape)}")
    native = use_native(x, impl)
    gain = ACTIVATIONS[act].gain if gain is None else float(gain)
    alpha = ACTIVATIONS[act].alpha if alpha is None else float(alpha)
    if gain <= 0 or (clamp is not None and clamp < 0) or (act == "lrelu" and alpha <= 0):
        raise UsageError(f"bias_act: gain {gain} and alpha {alpha} must be above 0 and clamp {clamp} not below it")
    if native:
        bias = None if b is None else b.to(x.dtype)
        limit = -1.0 if clamp is None else float(clamp)
        return operators.bias_act(x, bias, dim % max(x.ndim, 1), NAMES.index(act), alpha, gain, limit)
    if act in SMOOTH:
        y = _smooth(x, b, dim, act)
        y = y if gain == 1 else y * gain
    else:
        y = _piecewise_linear(x, b, dim, act, alpha, gain)
    return y if clamp is None else y.clamp(-clamp, clamp)


def _along(b: Tensor, x: Tensor, dim: int) -> Tensor:
    shape = [1] * x.ndim
    shape[dim] = -1
    return b.to(x.dtype).reshape(shape)


def _piecewise_linear(x: Tensor, b: Tensor | None, dim: int, act: str, alpha: float, gain: float) -> Tensor:
    # These activations are positively homogeneous, act(g·x) = g·act(x): with the gain folded into the sum the result of
    # the activation is the output itself, computed in place and the only tensor that autograd keeps.
    if b is not None:
        b = _along(b, x, dim)
        y = torch.add(b * gain, x, alpha=gain) if gain != 1 else x + b
    else:
        y = x * gain if gain != 1 else x
    if act == "linear":
        return y
    in_place = y is not x
    return F.leaky_relu(y, alpha, inplace=in_place) if act == "lrelu" else F.relu(y, inplace=in_place)


def _smooth(x: Tensor, b: Tensor | None, dim: int, act: str) -> Tensor:
    x = x if b is None else x + _along(b, x, dim)
    return _FUNCTIONS[act](x)
