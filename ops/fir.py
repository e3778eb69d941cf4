"""The linear map behind upfirdn2d: its geometry, its adjoint, and the reference computation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor


class Geometry(NamedTuple):
    """Everything of an upfirdn2d but the signal and the taps; pairs are (x, y), padding is (x0, x1, y0, y1)."""

    up: tuple[int, int]
    down: tuple[int, int]
    padding: tuple[int, int, int, int]
    flip_filter: bool
    gain: float

    def output_size(self, size: Sequence[int], taps: tuple[int, int]) -> tuple[int, int]:
        """(H, W) of the output for an input of (H, W) and a filter of (h, w) taps; below 1 when nothing is left."""
        x0, x1, y0, y1 = self.padding
        return (
            (size[0] * self.up[1] + y0 + y1 - taps[0]) // self.down[1] + 1,
            (size[1] * self.up[0] + x0 + x1 - taps[1]) // self.down[0] + 1,
        )

    def adjoint(self, size: Sequence[int], taps: tuple[int, int]) -> Geometry:
        """The transposed map: up and down change places, the filter is mirrored, the padding makes the sizes meet."""
        out = self.output_size(size, taps)
        x0, _, y0, _ = self.padding
        return Geometry(
            up=self.down,
            down=self.up,
            padding=(
                taps[1] - 1 - x0,
                size[1] * self.up[0] - out[1] * self.down[0] + x0 - self.up[0] + 1,
                taps[0] - 1 - y0,
                size[0] * self.up[1] - out[0] * self.down[1] + y0 - self.up[1] + 1,
            ),
            flip_filter=not self.flip_filter,
            gain=self.gain,
        )


def apply(x: Tensor, f: Tensor, geometry: Geometry) -> Tensor:
    """Apply the map to x [N,C,H,W] with taps f [n] or [h,w]; differentiable in x to any order."""
    return _Upfirdn.apply(x, f, geometry)  # type: ignore[no-untyped-call, no-any-return]


class _Upfirdn(torch.autograd.Function):
    # The map is linear: its gradient is its adjoint, which is a map of the same kind. So nothing but the taps is kept
    # for the backward pass, both directions use the fastest forward code, and every higher derivative comes for free.

    @staticmethod
    def forward(ctx: Any, x: Tensor, f: Tensor, geometry: Geometry) -> Tensor:
        ctx.f, ctx.geometry, ctx.size = f, geometry, x.shape[2:]
        return compute(x, f, geometry)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        taps = (ctx.f.shape[0], ctx.f.shape[-1])
        return apply(grads[0], ctx.f, ctx.geometry.adjoint(ctx.size, taps)), None, None


@torch.no_grad()
def compute(x: Tensor, f: Tensor, g: Geometry) -> Tensor:
    """The reference computation, one pass per axis when f is one-dimensional."""
    with torch.autocast(x.device.type, enabled=False):
        f = f.to(device=x.device, dtype=x.dtype)
        if f.ndim == 2:
            return _pass(x, f * g.gain, g)
        x0, x1, y0, y1 = g.padding
        h = Geometry((g.up[0], 1), (g.down[0], 1), (x0, x1, 0, 0), g.flip_filter, 1.0)
        v = Geometry((1, g.up[1]), (1, g.down[1]), (0, 0, y0, y1), g.flip_filter, 1.0)
        return _pass(_pass(x, f[None, :] * g.gain, h), f[:, None], v)


def _pass(x: Tensor, f: Tensor, g: Geometry) -> Tensor:
    """One depthwise (transposed) convolution; f is [h,w], the gain already in it."""
    if x.numel() == 0:
        return x.new_zeros(*x.shape[:2], *g.output_size(x.shape[2:], (f.shape[0], f.shape[1])))
    c, (h, w) = x.shape[1], f.shape
    x0, x1, y0, y1 = g.padding
    weight = f.expand(c, 1, h, w)
    if g.up == (1, 1):
        weight = weight if g.flip_filter else weight.flip(2, 3)
        return F.conv2d(F.pad(x, (x0, x1, y0, y1)), weight, stride=(g.down[1], g.down[0]), groups=c)
    # A transposed convolution scatters the taps at every up-th sample: the full convolution of the zero-inserted signal,
    # short of the up − 1 zeros after the last sample. Pad or crop that to the wanted window.
    weight = weight.flip(2, 3) if g.flip_filter else weight
    y = F.conv_transpose2d(x, weight, stride=(g.up[1], g.up[0]), groups=c)
    y = F.pad(y, (x0 - w + 1, x1 - w + g.up[0], y0 - h + 1, y1 - h + g.up[1]))
    return y[:, :, :: g.down[1], :: g.down[0]]
