"""Bias, activation and gain in one call, and the tails of style layers: what comes after their convolution."""

from __future__ import annotations

import math

from torch import Tensor

from ficgan.errors import UsageError

from .library import use_native
from .operators import adain_reference, bias_act_reference, demodulate_reference, operators

SLOPE, GAIN, EPS = 0.2, math.sqrt(2), 1e-5
# Slope below 0, and the default gain: it keeps the second moment of a unit normal roughly where it was.
ACTIVATIONS = {"linear": (1.0, 1.0), "lrelu": (SLOPE, GAIN)}


def bias_act(
    x: Tensor, b: Tensor | None = None, *, act: str = "linear", gain: float | None = None, impl: str = "auto"
) -> Tensor:
    """Compute act(x + b)·gain, elementwise; differentiable to any order.

    Args:
        x: [N,C,…], floating point.
        b: [C] bias, or None.
        act: "linear", or "lrelu" with a slope of 0.2 below 0.
        gain: > 0; default √2 for lrelu, otherwise 1.
        impl: "auto", "native" or "ref".

    Returns:
        Same shape, dtype and memory layout as `x`.

    Raises:
        UsageError: unknown `act` or `impl`, a bias that does not fit, or impl="native" where that is not to be had.
    """
    if act not in ACTIVATIONS:
        raise UsageError(f"bias_act: unknown activation {act!r}; use one of {', '.join(ACTIVATIONS)}")
    if b is not None and b.shape != x.shape[1:2]:
        raise UsageError(f"bias_act: a bias of shape {list(b.shape)} does not fit {list(x.shape)}; give [C]")
    slope, usual = ACTIVATIONS[act]
    gain = usual if gain is None else float(gain)
    if use_native(x, impl):
        return operators.bias_act(x, None if b is None else b.to(x.dtype), slope, gain)
    return bias_act_reference(x, b, slope, gain)


def scale_bias_lrelu(x: Tensor, scale: Tensor, b: Tensor, *, impl: str = "auto") -> Tensor:
    """Compute √2·lrelu(x·scale + b): demodulation, bias and leaky ReLU.

    Differentiable to any order in `x`, `scale` and `b`; beyond the first without a kernel.

    Args:
        x: [N,C,H,W], floating point, contiguous or channels-last.
        scale: [N,C], of each image and channel.
        b: [C] bias.
        impl: "auto", "native" or "ref".

    Returns:
        Shape, dtype and memory layout of `x`.

    Source: StyleGAN2 (Karras et al. 2020), eq. 3, on activations instead of weights.
    """
    native = use_native(x, impl)
    _check_style("scale_bias_lrelu", x, b, scale)
    scale, b = scale.to(x.dtype), b.to(x.dtype)
    return (operators.scale_bias_lrelu if native else demodulate_reference)(x, scale, b, SLOPE, GAIN)


def adain(x: Tensor, b: Tensor, scale: Tensor, shift: Tensor, *, impl: str = "auto") -> Tensor:
    """Compute a = √2·lrelu(x + b), normalise it per image and channel, then scale and shift.

    y = scale·(a − mean(a)) / √(var(a) + 1e-5) + shift, mean and biased variance over the pixels. Differentiable to any
    order in `x`, `b`, `scale` and `shift`; beyond the first without a kernel.

    Args:
        x: [N,C,H,W], floating point, contiguous or channels-last.
        b: [C] bias.
        scale, shift: [N,C], of each image and channel.
        impl: "auto", "native" or "ref".

    Returns:
        Shape, dtype and memory layout of `x`.

    Source: AdaIN (Huang and Belongie 2017), eq. 8; StyleGAN (Karras et al. 2019), eq. 1.
    """
    native = use_native(x, impl)
    _check_style("adain", x, b, scale, shift)
    b, scale, shift = b.to(x.dtype), scale.to(x.dtype), shift.to(x.dtype)
    if native:
        return operators.adain(x, b, scale, shift, SLOPE, GAIN, EPS)[0]
    return adain_reference(x, b, scale, shift, SLOPE, GAIN, EPS)


def _check_style(op: str, x: Tensor, b: Tensor, *styles: Tensor) -> None:
    fits = x.ndim == 4 and x.is_floating_point() and b.shape == x.shape[1:2]
    if not fits or any(style.shape != x.shape[:2] for style in styles):
        shapes = [list(style.shape) for style in styles]
        raise UsageError(f"{op}: x {x.dtype} {list(x.shape)}, bias {list(b.shape)} and styles {shapes} do not fit")
