"""The tail of a style layer, fused: what comes after its convolution, for either modulation."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from ficgan.errors import UsageError

from . import formulas
from .backend import use_native
from .fir import is_channels_last, like
from .registry import operators


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
    _check("scale_bias_lrelu", x, b, alpha, gain, scale=scale)
    scale, b = scale.to(x.dtype), b.to(x.dtype)
    if native:
        return operators.scale_bias_lrelu(x, scale, b, alpha, gain)
    # lrelu(g·x) = g·lrelu(x) for g > 0: with the gain in scale and bias the layer is two passes over x, one in place.
    y = torch.addcmul((b * gain)[:, None, None], x, (scale * gain)[:, :, None, None])
    return F.leaky_relu(y, alpha, inplace=True)


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
    _check("adain", x, b, alpha, gain, scale=scale, shift=shift)
    if eps <= 0:
        raise UsageError(f"adain: eps {eps} must be above 0")
    b, scale, shift = b.to(x.dtype), scale.to(x.dtype), shift.to(x.dtype)
    if native:
        return operators.adain(x, b, scale, shift, alpha, gain, eps)[0]
    if x.numel() == 0:
        return formulas.adain(x, b, scale, shift, alpha, gain, eps)
    a = F.leaky_relu(torch.add((b * gain)[:, None, None], x, alpha=gain), alpha, inplace=True)
    differentiated = torch.is_grad_enabled() and any(t.requires_grad for t in (x, b, scale, shift))
    if differentiated and not is_channels_last(x):
        # One batch normalisation of N·C channels, with scale and shift in it: backward it takes half of the time of the
        # formula below (two CPU cores), which is faster forward, and in channels-last.
        flat = a.reshape(1, -1, *x.shape[2:])
        y = torch.batch_norm(flat, scale.reshape(-1), shift.reshape(-1), None, None, True, 0.0, eps, True)
        return like(y.reshape(x.shape), x)
    wide = torch.promote_types(x.dtype, torch.float32)
    a = a - a.mean((2, 3), keepdim=True, dtype=wide).to(x.dtype)
    variance = a.square().mean((2, 3), keepdim=True, dtype=wide)
    factor = scale[:, :, None, None] * (variance + eps).rsqrt().to(x.dtype)
    return torch.addcmul(shift[:, :, None, None], a, factor)


def _check(op: str, x: Tensor, b: Tensor, alpha: float, gain: float, **styles: Tensor) -> None:
    if x.ndim != 4 or not x.is_floating_point():
        raise UsageError(f"{op}: x is {x.dtype} {list(x.shape)}; give floating point [N,C,H,W]")
    if b.shape != x.shape[1:2]:
        raise UsageError(f"{op}: a bias of shape {list(b.shape)} does not fit {list(x.shape)}; give [C]")
    for name, style in styles.items():
        if style.shape != x.shape[:2]:
            raise UsageError(f"{op}: {name} has shape {list(style.shape)}, x {list(x.shape)}; give [N,C]")
    if alpha <= 0 or gain <= 0:
        raise UsageError(f"{op}: alpha {alpha} and gain {gain} must be above 0")
