"""Bias, activation, gain and clamp in one call, and the tails of style layers: what comes after their convolution."""

from __future__ import annotations

import math

from torch import Tensor

from ficgan.errors import UsageError

from .library import use_native
from .operators import FUNCTIONS, adain_reference, bias_act_reference, demodulate_reference, operators

# Default gain of each activation: it keeps the second moment of a unit normal roughly where it was (He initialisation).
ACTIVATIONS = {"linear": 1.0, "sigmoid": 1.0, "tanh": 1.0, "softplus": 1.0}
ACTIVATIONS |= dict.fromkeys(("relu", "lrelu", "swish"), math.sqrt(2))
_SLOPES = {"linear": 1.0, "relu": 0.0}  # below 0; lrelu's is `alpha`


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

    Differentiable to any order. The compiled op is for linear, relu and lrelu; the others are torch's everywhere.

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
    gain = ACTIVATIONS[act] if gain is None else float(gain)
    alpha = 0.2 if alpha is None else float(alpha)
    if gain <= 0 or (clamp is not None and clamp < 0) or (act == "lrelu" and alpha <= 0):
        raise UsageError(f"bias_act: gain {gain} and alpha {alpha} must be above 0 and clamp {clamp} not below it")
    limit = -1.0 if clamp is None else float(clamp)
    if native and act not in FUNCTIONS:
        bias = None if b is None else b.to(x.dtype)
        return operators.bias_act(x, bias, dim % max(x.ndim, 1), _SLOPES.get(act, alpha), gain, limit)
    return bias_act_reference(x, b, dim, act, alpha, gain, limit)


def scale_bias_lrelu(
    x: Tensor, scale: Tensor, b: Tensor, *, alpha: float = 0.2, gain: float = math.sqrt(2), impl: str = "auto"
) -> Tensor:
    """Compute gain·lrelu(x·scale + b): demodulation, bias and leaky ReLU.

    Differentiable to any order in `x`, `scale` and `b`; beyond the first without a kernel.

    Args:
        x: [N,C,H,W], floating point, contiguous or channels-last.
        scale: [N,C], of each image and channel.
        b: [C] bias.
        alpha: negative slope, > 0.
        gain: > 0.
        impl: "auto", "native" or "ref".

    Returns:
        Shape, dtype and memory layout of `x`.

    Raises:
        UsageError: shapes that do not fit, `alpha` or `gain` not above 0, or an `impl` that is not to be had.

    Source: StyleGAN2 (Karras et al. 2020), eq. 3, on activations instead of weights.
    """
    native = use_native(x, impl)
    _check_style("scale_bias_lrelu", x, b, alpha, gain, scale=scale)
    scale, b = scale.to(x.dtype), b.to(x.dtype)
    if native:
        return operators.scale_bias_lrelu(x, scale, b, alpha, gain)
    return demodulate_reference(x, scale, b, alpha, gain)


def adain(
    x: Tensor,
    b: Tensor,
    scale: Tensor,
    shift: Tensor,
    *,
    alpha: float = 0.2,
    gain: float = math.sqrt(2),
    eps: float = 1e-5,
    impl: str = "auto",
) -> Tensor:
    """Compute a = gain·lrelu(x + b), normalise it per image and channel, then scale and shift.

    y = scale·(a − mean(a)) / √(var(a) + eps) + shift, mean and biased variance over the pixels. Differentiable to any
    order in `x`, `b`, `scale` and `shift`; beyond the first without a kernel.

    Args:
        x: [N,C,H,W], floating point, contiguous or channels-last.
        b: [C] bias.
        scale, shift: [N,C], of each image and channel.
        alpha: negative slope, > 0.
        gain: > 0.
        eps: added to the variance, > 0.
        impl: "auto", "native" or "ref".

    Returns:
        Shape, dtype and memory layout of `x`.

    Raises:
        UsageError: shapes that do not fit, `alpha`, `gain` or `eps` not above 0, or an `impl` that is not to be had.

    Source: AdaIN (Huang and Belongie 2017), eq. 8; StyleGAN (Karras et al. 2019), eq. 1.
    """
    native = use_native(x, impl)
    _check_style("adain", x, b, alpha, gain, scale=scale, shift=shift)
    if eps <= 0:
        raise UsageError(f"adain: eps {eps} must be above 0")
    b, scale, shift = b.to(x.dtype), scale.to(x.dtype), shift.to(x.dtype)
    if native:
        return operators.adain(x, b, scale, shift, alpha, gain, eps)[0]
    return adain_reference(x, b, scale, shift, alpha, gain, eps)


def _check_style(op: str, x: Tensor, b: Tensor, alpha: float, gain: float, **styles: Tensor) -> None:
    if x.ndim != 4 or not x.is_floating_point():
        raise UsageError(f"{op}: x is {x.dtype} {list(x.shape)}; give floating point [N,C,H,W]")
    if b.shape != x.shape[1:2]:
        raise UsageError(f"{op}: a bias of shape {list(b.shape)} does not fit {list(x.shape)}; give [C]")
    for name, style in styles.items():
        if style.shape != x.shape[:2]:
            raise UsageError(f"{op}: {name} has shape {list(style.shape)}, x {list(x.shape)}; give [N,C]")
    if alpha <= 0 or gain <= 0:
        raise UsageError(f"{op}: alpha {alpha} and gain {gain} must be above 0")
