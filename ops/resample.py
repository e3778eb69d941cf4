"""Resampling of feature maps with FIR filters: zero-insert, pad, filter, keep every n-th sample.

First the public functions, then the linear map behind them: its geometry, its adjoint, and the reference computation.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ficgan.errors import UsageError

from .library import use_native

Padding = tuple[int, int, int, int]  # x0, x1, y0, y1


def setup_filter(taps: Sequence[float] = (1, 3, 3, 1), *, device: torch.device | str | None = None) -> Tensor:
    """Make a filter of `taps`, used along both axes: float32 [n], scaled to sum 1."""
    f = torch.tensor(taps, dtype=torch.float64)
    if f.ndim != 1 or f.sum() == 0:
        raise UsageError(f"setup_filter: taps {taps} cannot be scaled to sum 1")
    return (f / f.sum()).to(device=device, dtype=torch.float32)


def upfirdn2d(
    x: Tensor,
    f: Tensor,
    *,
    up: int = 1,
    down: int = 1,
    padding: Padding = (0, 0, 0, 0),
    flip_filter: bool = False,
    gain: float = 1.0,
    impl: str = "auto",
) -> Tensor:
    """Upsample by zero insertion, pad, filter, downsample, per channel and along both axes.

    1. Insert `up` − 1 zeros after every sample. 2. Pad with zeros; a negative padding crops. 3. Convolve with f ⊗ f
    (with `flip_filter` correlate) and keep the samples where the filter lies inside. 4. Keep every `down`-th sample,
    from the first on, times `gain`. Every order of derivative with respect to `x` exists; `f` is a constant.

    Args:
        x: [N,C,H,W], floating point, contiguous or channels-last.
        f: [n].
        up, down: ≥ 1.
        padding: (x0, x1, y0, y1), in samples after the zero insertion.
        impl: "auto", "native" or "ref".

    Returns:
        [N,C,H′,W′] with H′ = ⌊(H·up + y0 + y1 − n) / down⌋ + 1, dtype and memory layout of `x`.

    Raises:
        UsageError: shapes or factors that leave nothing to compute, or impl="native" where that is not to be had.
    """
    native = use_native(x, impl)
    if x.ndim != 4 or not x.is_floating_point() or f.ndim != 1 or up < 1 or down < 1:
        raise UsageError(f"upfirdn2d: x {x.dtype} {list(x.shape)}, f {list(f.shape)}, up {up}, down {down} do not fit")
    g = Geometry(up, down, padding, bool(flip_filter), float(gain))
    h, w = g.output_size(x.shape[2:], len(f))
    if h < 1 or w < 1:
        raise UsageError(f"upfirdn2d: padding {padding} leaves an output of {h}×{w}; the filter does not fit")
    if not native:
        return apply(x, f, g)
    return torch.ops.ficgan_ops.upfirdn2d(x, f.to(device=x.device, dtype=wide(x.dtype)), *g)


def upsample2d(x: Tensor, f: Tensor) -> Tensor:
    """Enlarge [N,C,H,W] to twice the size by a filter [n] of sum 1, centred on the samples; brightness is kept."""
    first, last = (len(f) + 1) // 2, (len(f) - 2) // 2
    return upfirdn2d(x, f, up=2, padding=(first, last, first, last), gain=4)


def downsample2d(x: Tensor, f: Tensor) -> Tensor:
    """Shrink [N,C,H,W] to half the size by a filter [n] of sum 1, centred on the samples."""
    first, last = (len(f) - 1) // 2, (len(f) - 2) // 2
    return upfirdn2d(x, f, down=2, padding=(first, last, first, last))


# --- the linear map -------------------------------------------------------------------------------------------------


class Geometry(NamedTuple):
    """Everything of an upfirdn2d but the signal and the taps."""

    up: int
    down: int
    padding: Padding
    flip_filter: bool
    gain: float

    def output_size(self, size: Sequence[int], taps: int) -> tuple[int, int]:
        """(H, W) of the output for an input of (H, W) and so many taps; below 1 when nothing is left."""
        x0, x1, y0, y1 = self.padding
        h, w = (
            (side * self.up + pad - taps) // self.down + 1 for side, pad in zip(size, (y0 + y1, x0 + x1), strict=True)
        )
        return h, w

    def adjoint(self, size: Sequence[int], taps: int) -> Geometry:
        """The transposed map: up and down change places, the filter is mirrored, the padding makes the sizes meet."""
        h, w = self.output_size(size, taps)
        x0, _, y0, _ = self.padding
        x1, y1 = (
            side * self.up - out * self.down + first - self.up + 1
            for side, out, first in ((size[1], w, x0), (size[0], h, y0))
        )
        padding = (taps - 1 - x0, x1, taps - 1 - y0, y1)
        return Geometry(self.down, self.up, padding, not self.flip_filter, self.gain)


def apply(x: Tensor, f: Tensor, geometry: Geometry) -> Tensor:
    """Apply the map to x [N,C,H,W] with taps f [n]; differentiable in x to any order."""
    if not (torch.is_grad_enabled() and x.requires_grad):
        return compute(x, f, geometry)  # without the autograd engine's own work, which small pictures notice
    return _Upfirdn.apply(x, f, geometry)


class _Upfirdn(torch.autograd.Function):
    # The map is linear: its gradient is its adjoint, which is a map of the same kind. So nothing but the taps is kept
    # for the backward pass, both directions use the fastest forward code, and every higher derivative comes for free.

    @staticmethod
    def forward(ctx: Any, x: Tensor, f: Tensor, geometry: Geometry) -> Tensor:
        ctx.f, ctx.geometry, ctx.size = f, geometry, x.shape[2:]
        return compute(x, f, geometry)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        return apply(grads[0], ctx.f, ctx.geometry.adjoint(ctx.size, len(ctx.f))), None, None


def compute(x: Tensor, f: Tensor, g: Geometry) -> Tensor:
    """The reference computation, not differentiable by itself.

    Bilinear doubling (in channels-last near the speed of memory) has the taps 1 3 3 1 but another border.
    """
    if x.numel() == 0:
        return x.new_zeros(*x.shape[:2], *g.output_size(x.shape[2:], len(f)))
    with torch.autocast(x.device.type, enabled=False):
        # Transposed convolutions of half types are an order of magnitude slower on the CPU than those of float32.
        slow = g.up != 1 and x.device.type == "cpu" and x.dtype in (torch.bfloat16, torch.float16)
        if _is_bilinear(x, f, g):
            return _bilinear(x, sum(f.tolist()) ** 2 * g.gain / 4)
        y = x.float() if slow else x
        f = f.to(device=y.device, dtype=y.dtype)
        return _filter(y, torch.outer(f, f * g.gain), g).to(x.dtype)


def _filter(x: Tensor, f: Tensor, g: Geometry) -> Tensor:
    """One depthwise convolution with f [n,n] (the gain already in it), transposed where the signal is enlarged."""
    c, n = x.shape[1], len(f)
    x0, x1, y0, y1 = g.padding
    kernel = (f.flip(0, 1) if g.flip_filter == (g.up != 1) else f).expand(c, 1, n, n)
    if g.up == 1:
        # The convolution itself pads both sides of an axis alike, without a copy.
        px, py = max(min(x0, x1), 0), max(min(y0, y1), 0)
        x = _pad(x, (x0 - px, x1 - px, y0 - py, y1 - py))
        return F.conv2d(x, kernel, stride=g.down, padding=(py, px), groups=c)
    # A transposed convolution scatters the taps at every up-th sample: it is the full convolution of the zero-inserted
    # signal, short of the up − 1 zeros after the last sample. Crop or pad that to the wanted window.
    left, right, top, bottom = n - 1 - x0, n - g.up - x1, n - 1 - y0, n - g.up - y1
    # What both sides lose is left to the convolution, as long as it keeps a sample, and costs no copy.
    cx = max(min(left, right, ((x.shape[3] - 1) * g.up + n - 1) // 2), 0)
    cy = max(min(top, bottom, ((x.shape[2] - 1) * g.up + n - 1) // 2), 0)
    y = F.conv_transpose2d(x, kernel, stride=g.up, padding=(cy, cx), groups=c)
    y = _pad(y, (cx - left, cx - right, cy - top, cy - bottom))
    return y if g.down == 1 else like(y[:, :, :: g.down, :: g.down], x)


def _pad(x: Tensor, padding: tuple[int, int, int, int]) -> Tensor:
    """Pad with zeros, then crop where negative: one side may crop into what the other pads."""
    for part in ([max(p, 0) for p in padding], [min(p, 0) for p in padding]):
        x = F.pad(x, part) if any(part) else x
    return x


def like(y: Tensor, x: Tensor) -> Tensor:
    """Make `y` dense in the memory layout of `x`."""
    return y.contiguous(memory_format=torch.channels_last if is_channels_last(x) else torch.contiguous_format)


def is_channels_last(x: Tensor) -> bool:
    """Whether `x` is channels-last and not contiguous as well."""
    return x.is_contiguous(memory_format=torch.channels_last) and not x.is_contiguous()


def _is_bilinear(x: Tensor, f: Tensor, g: Geometry) -> bool:
    """Whether the map is the doubling with taps in the proportions 1 3 3 1, where that has a fast kernel."""
    if g.up != 2 or g.down != 1 or g.padding != (2, 1, 2, 1) or len(f) != 4 or not is_channels_last(x):
        return False
    if x.device.type != "cpu" or torch.compiler.is_compiling():
        return False  # reading the taps would wait for the GPU, or break the graph
    a, b, c, d = f.tolist()
    return a != 0 and (b, c, d) == (3 * a, 3 * a, a)


def _bilinear(x: Tensor, scale: float) -> Tensor:
    # Bilinear doubling repeats the outermost samples where the filter meets zeros: there it gives x, wanted is 3/4 x.
    y = F.interpolate(x if scale == 1 else x * scale, scale_factor=2, mode="bilinear", align_corners=False)
    for edge in (y[:, :, 0], y[:, :, -1], y[:, :, :, 0], y[:, :, :, -1]):
        edge.mul_(0.75)
    return y


def wide(dtype: torch.dtype) -> torch.dtype:
    """The type that is computed in: float32, for float64 itself."""
    return torch.float64 if dtype == torch.float64 else torch.float32
