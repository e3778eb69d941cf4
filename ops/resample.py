"""Resampling of feature maps with FIR filters: zero-insert, pad, filter, keep every n-th sample."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ficgan.errors import UsageError

from .backend import use_native
from .fir import Geometry, apply
from .formulas import wide
from .registry import operators

Scale = int | Sequence[int]
Padding = int | Sequence[int]
# One-dimensional filters up to here are made two-dimensional for the compiled op; longer ones take two passes.
LONGEST_OUTER = 8


def setup_filter(
    taps: Sequence[float] | Sequence[Sequence[float]] | Tensor = (1, 3, 3, 1),
    *,
    separable: bool | None = None,
    device: torch.device | str | None = None,
) -> Tensor:
    """Make a filter of `taps`, scaled to sum 1.

    Args:
        taps: [n] one-dimensional, used along both axes, or [h,w].
        separable: True keeps [n], False makes the outer product [n,n]; None keeps what was given.
        device: where the filter goes.

    Returns:
        float32 [n] or [h,w], sum 1.

    Raises:
        UsageError: no taps, over two dimensions, a sum of 0, or `separable=True` with two-dimensional taps.
    """
    f = torch.as_tensor(taps, dtype=torch.float64)
    if f.ndim not in (1, 2) or f.numel() == 0:
        raise UsageError(f"setup_filter: taps of shape {list(f.shape)} are no filter; give [n] or [h,w]")
    if f.ndim == 2 and separable:
        raise UsageError("setup_filter: two-dimensional taps cannot be kept separable; give them as [n]")
    if f.ndim == 1 and separable is False:
        f = torch.outer(f, f)
    total = f.sum()
    if total == 0:
        raise UsageError("setup_filter: the taps sum to 0 and cannot be scaled to sum 1")
    return (f / total).to(device=device, dtype=torch.float32)


def upfirdn2d(
    x: Tensor,
    f: Tensor,
    *,
    up: Scale = 1,
    down: Scale = 1,
    padding: Padding = 0,
    flip_filter: bool = False,
    gain: float = 1.0,
    impl: str = "auto",
) -> Tensor:
    """Upsample by zero insertion, pad, filter, downsample, per channel.

    1. Insert `up` − 1 zeros after every sample. 2. Pad with zeros; a negative padding crops. 3. Convolve with `f` (with
    `flip_filter` correlate) and keep the samples where the filter lies inside. 4. Keep every `down`-th sample, from the
    first on, times `gain`. Every order of derivative with respect to `x` exists; `f` is a constant.

    Args:
        x: [N,C,H,W], floating point, contiguous or channels-last.
        f: [h,w], or [n] applied along both axes.
        up, down: ≥ 1, one number or (x, y).
        padding: one number, (x, y) or (x0, x1, y0, y1), in samples after the zero insertion.
        flip_filter: correlate instead of convolve.
        gain: factor on the output.
        impl: "auto", "native" or "ref".

    Returns:
        [N,C,H′,W′] with H′ = ⌊(H·up + y0 + y1 − h) / down⌋ + 1, dtype and memory layout of `x`.

    Raises:
        UsageError: shapes or factors that leave nothing to compute, or impl="native" where that is not to be had.
    """
    native = use_native(x, impl)
    if x.ndim != 4 or not x.is_floating_point():
        raise UsageError(f"upfirdn2d: x is {x.dtype} {list(x.shape)}; give floating point [N,C,H,W]")
    if f.ndim not in (1, 2) or f.numel() == 0:
        raise UsageError(f"upfirdn2d: f has shape {list(f.shape)}; give [n] or [h,w]")
    g = Geometry(_pair(up, "up"), _pair(down, "down"), _four(padding), bool(flip_filter), float(gain))
    h, w = g.output_size(x.shape[2:], _taps(f))
    if h < 1 or w < 1:
        raise UsageError(f"upfirdn2d: padding {g.padding} leaves an output of {h}×{w}; the filter does not fit")
    return _native(x, f, g) if native else apply(x, f, g)


def _native(x: Tensor, f: Tensor, g: Geometry) -> Tensor:
    f = f.to(device=x.device, dtype=wide(x.dtype))
    passes: list[tuple[Tensor, Geometry]]
    if f.ndim == 2:
        passes = [(f, g)]
    elif f.shape[0] <= LONGEST_OUTER:
        passes = [(torch.outer(f, f), g)]
    else:
        passes = [(f[None, :], g.across()), (f[:, None], g.along())]
    for taps, (up, down, padding, flip, gain) in passes:
        x = operators.upfirdn2d(x, taps, up, down, padding, flip, gain)
    return x


def upsample2d(x: Tensor, f: Tensor, *, up: Scale = 2, padding: Padding = 0, gain: float = 1.0) -> Tensor:
    """Enlarge by `up`, the filter centred on the samples and the brightness kept.

    Args:
        x: [N,C,H,W], floating point.
        f: [h,w] or [n], sum 1.
        up: ≥ 1, one number or (x, y).
        padding: extra padding of the output, in output samples.
        gain: factor on the output, beside the up·up that makes good for the inserted zeros.

    Returns:
        [N,C,H·up,W·up] when `padding` is 0.
    """
    (ux, uy), (h, w), (x0, x1, y0, y1) = _pair(up, "up"), _taps(f), _four(padding)
    p = (x0 + (w + ux - 1) // 2, x1 + (w - ux) // 2, y0 + (h + uy - 1) // 2, y1 + (h - uy) // 2)
    return upfirdn2d(x, f, up=(ux, uy), padding=p, gain=gain * ux * uy)


def downsample2d(x: Tensor, f: Tensor, *, down: Scale = 2, padding: Padding = 0, gain: float = 1.0) -> Tensor:
    """Shrink by `down`, the filter centred on the samples.

    Args:
        x: [N,C,H,W], floating point.
        f: [h,w] or [n], sum 1.
        down: ≥ 1, one number or (x, y).
        padding: extra padding of the input, in input samples.
        gain: factor on the output.

    Returns:
        [N,C,H/down,W/down] when `padding` is 0 and `down` divides the size.
    """
    (dx, dy), (h, w), (x0, x1, y0, y1) = _pair(down, "down"), _taps(f), _four(padding)
    p = (x0 + (w - dx + 1) // 2, x1 + (w - dx) // 2, y0 + (h - dy + 1) // 2, y1 + (h - dy) // 2)
    return upfirdn2d(x, f, down=(dx, dy), padding=p, gain=gain)


def filter2d(x: Tensor, f: Tensor, *, padding: Padding = 0, flip_filter: bool = False, gain: float = 1.0) -> Tensor:
    """Filter without a change of size.

    Args:
        x: [N,C,H,W], floating point.
        f: [h,w] or [n].
        padding: extra padding of the output.
        flip_filter: correlate instead of convolve.
        gain: factor on the output.

    Returns:
        [N,C,H,W] when `padding` is 0.
    """
    (h, w), (x0, x1, y0, y1) = _taps(f), _four(padding)
    p = (x0 + w // 2, x1 + (w - 1) // 2, y0 + h // 2, y1 + (h - 1) // 2)
    return upfirdn2d(x, f, padding=p, flip_filter=flip_filter, gain=gain)


def _taps(f: Tensor) -> tuple[int, int]:
    return (f.shape[0], f.shape[0]) if f.ndim == 1 else (f.shape[0], f.shape[1])


def _pair(value: Scale, name: str) -> tuple[int, int]:
    x, y = (value, value) if isinstance(value, int) else value
    if x < 1 or y < 1:
        raise UsageError(f"upfirdn2d: {name} is {value}; it must be at least 1")
    return x, y


def _four(padding: Padding) -> tuple[int, int, int, int]:
    p = (padding,) * 4 if isinstance(padding, int) else tuple(padding)
    p = (p[0], p[0], p[1], p[1]) if len(p) == 2 else p
    if len(p) != 4:
        raise UsageError(f"upfirdn2d: padding has {len(p)} numbers; give one, (x, y) or (x0, x1, y0, y1)")
    return p[0], p[1], p[2], p[3]
