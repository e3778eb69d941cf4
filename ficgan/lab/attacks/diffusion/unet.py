"""The U-Net that reads an anonymised face and a noisy guess at the clear one, after SR3."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ficgan.errors import UsageError

__all__ = ["PRESETS", "Architecture", "Attention", "UNet"]

L = TypeVar("L", nn.Conv2d, nn.Linear)


@dataclass(frozen=True)
class Architecture:
    """Numbers of a U-Net.

    Args:
        base: channels at full size.
        mults: channels of each level as multiples of `base`; each level has half the side of the one before.
        blocks: residual blocks per level on the way down; one more on the way up.
        attention: sides with attention; the middle has it always.
        head: channels of an attention head, at most all of a level; 0: one head.
        dropout: within residual blocks.
        patch: pixels joined into one position at the ends (their channels are put side by side): 1 is SR3, 2 leaves
            out the level that costs most.
    """

    base: int = 64
    mults: tuple[int, ...] = (1, 2, 4, 8, 8)
    blocks: int = 2
    attention: tuple[int, ...] = (16,)
    head: int = 0
    dropout: float = 0.0
    patch: int = 1

    def sides(self, size: int) -> list[int]:
        """Sides of the levels for images of `size`, falling.

        Raises:
            UsageError: the size cannot be halved so often.
        """
        factor = self.patch * 2 ** (len(self.mults) - 1)
        if size % factor or size < factor:
            raise UsageError(
                f"a U-Net of {len(self.mults)} levels needs a size that is a multiple of {factor}: not {size}"
            )
        return [size // self.patch // 2**level for level in range(len(self.mults))]


PRESETS = {
    "sr3": Architecture(64, (1, 2, 4, 8, 8), dropout=0.2),
    "palette": Architecture(64, (1, 2, 4, 8), head=32, dropout=0.2),
    "small": Architecture(32, (1, 2, 2, 4)),
    "patched": Architecture(48, (1, 2, 2), patch=2),
}
"""By name: the bases of the paper, for a GPU; and two for a CPU, at 64 pixels."""


class UNet(nn.Module):
    """f(x, y_t, √γ): noise, clear image or velocity; its training decides which.

    Args:
        architecture: its numbers.
        size: side of the images, pixels; attention lies where the architecture says for this side.
    """

    def __init__(self, architecture: Architecture, size: int) -> None:
        super().__init__()
        a = self.architecture = architecture
        sides, widths = a.sides(size), [a.base * mult for mult in a.mults]
        self.level = NoiseLevel(a.base)
        self.first = nn.Conv2d(6 * a.patch**2, a.base, 3, padding=1)

        def block(inner: int, outer: int, side: int) -> Block:
            return Block(inner, outer, 4 * a.base, a.dropout, a.head if side in a.attention else None)

        self.down, self.up = nn.ModuleList(), nn.ModuleList()
        channels, kept = a.base, [a.base]
        for level, (side, width) in enumerate(zip(sides, widths, strict=True)):
            if level:
                self.down.append(nn.Conv2d(channels, channels, 3, stride=2, padding=1))
                kept.append(channels)
            for _ in range(a.blocks):
                self.down.append(block(channels, width, side))
                channels = width
                kept.append(channels)
        self.middle = nn.ModuleList(Block(channels, channels, 4 * a.base, a.dropout, head) for head in (a.head, None))
        for level, (side, width) in reversed(list(enumerate(zip(sides, widths, strict=True)))):
            for _ in range(a.blocks + 1):
                self.up.append(block(channels + kept.pop(), width, side))
                channels = width
            if level:
                self.up.append(Up(channels))
        self.norm = Norm(channels)
        self.last = _zero(nn.Conv2d(channels, 3 * a.patch**2, 3, padding=1))
        self.to(memory_format=torch.channels_last)

    def forward(self, noisy: Tensor, seen: Tensor | None, root: Tensor) -> Tensor:
        """One answer for each image.

        Args:
            noisy: y_t, [B,3,S,S], variance about 1.
            seen: the anonymised face x, [B,3,S,S] in [−1, 1]; None: unknown, which is zeros.
            root: √γ_t in [0, 1], [B], or [1] where it is the same for all.

        Returns:
            [B,3,S,S].
        """
        level = self.level(root)
        h = torch.cat([torch.zeros_like(noisy) if seen is None else seen, noisy], 1)
        if self.architecture.patch > 1:
            h = F.pixel_unshuffle(h, self.architecture.patch)
        h = self.first(h.to(self.first.weight.dtype, memory_format=torch.channels_last))
        kept = [h]
        for part in self.down:
            h = part(h, level) if isinstance(part, Block) else part(h)
            kept.append(h)
        for part in self.middle:
            h = part(h, level)
        for part in self.up:
            h = part(torch.cat([h, kept.pop()], 1), level) if isinstance(part, Block) else part(h)
        h = self.last(_silu(self.norm(h)))
        return F.pixel_shuffle(h, self.architecture.patch) if self.architecture.patch > 1 else h


class NoiseLevel(nn.Module):
    """√γ → [B, 4·width]: sines and cosines of the continuous level, then two layers.

    Source:
        WaveGrad, §3.2 (the level times 5000 takes the place of a step's number); SR3, §2.4.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.waves = width // 2
        self.enter, self.leave = nn.Linear(2 * self.waves, 4 * width), nn.Linear(4 * width, 4 * width)

    def forward(self, root: Tensor) -> Tensor:
        # Made here and no buffer: in half precision it would be another function.
        frequencies = torch.exp(torch.arange(self.waves, device=root.device) * (-math.log(1e4) / self.waves))
        angles = 5000 * root[:, None].float() * frequencies
        waves = torch.cat([angles.sin(), angles.cos()], 1).to(self.enter.weight.dtype)
        return F.silu(self.leave(F.silu(self.enter(waves))))


class Block(nn.Module):
    """Two convolutions beside the identity; the noise level scales and shifts between them; attention at its end."""

    def __init__(self, inner: int, outer: int, level: int, dropout: float, head: int | None) -> None:
        super().__init__()
        self.norm, self.conv = Norm(inner), nn.Conv2d(inner, outer, 3, padding=1)
        self.affine = nn.Linear(level, 2 * outer)
        self.second_norm, self.second_conv = Norm(outer), _zero(nn.Conv2d(outer, outer, 3, padding=1))
        self.skip = Pointwise(inner, outer) if inner != outer else nn.Identity()
        self.dropout = dropout
        self.attention = Attention(outer, head) if head is not None else None

    def forward(self, x: Tensor, level: Tensor) -> Tensor:
        h = self.conv(_silu(self.norm(x)))
        h = _silu(self.second_norm(h, self.affine(level)))
        if self.training and self.dropout:
            h = F.dropout(h, self.dropout)
        h = self.skip(x) + self.second_conv(h)
        return h if self.attention is None else self.attention(h)


class Norm(nn.GroupNorm):
    """Group normalisation in at most 32 groups of four channels or more; its affine part may come from outside too."""

    def __init__(self, channels: int) -> None:
        super().__init__(math.gcd(channels, min(32, max(channels // 4, 1))), channels)

    def forward(self, x: Tensor, affine: Tensor | None = None) -> Tensor:
        """x·(1 + scale) + shift of the normalised x [B,C,H,W], affine [B,2C] = (scale, shift)."""
        if x.dtype == torch.bfloat16 and x.device.type == "cpu" and torch.is_grad_enabled():
            # torch's derivative in bfloat16 takes up to four times as long as there and back in float32.
            normed = F.group_norm(x.float(), self.num_groups, self.weight, self.bias, self.eps).to(x.dtype)
        else:
            normed = F.group_norm(x, self.num_groups, self.weight, self.bias, self.eps)
        if affine is None:
            return normed
        scale, shift = affine[:, :, None, None].chunk(2, 1)
        return torch.addcmul(shift, normed, scale + 1)


class Attention(nn.Module):
    """Every position looks at every other one, beside the identity."""

    def __init__(self, channels: int, head: int = 0) -> None:
        super().__init__()
        self.heads = channels // math.gcd(channels, head) if head else 1
        self.norm = Norm(channels)
        self.qkv = nn.Linear(channels, 3 * channels)
        self.out = _zero(nn.Linear(channels, channels))

    def forward(self, x: Tensor) -> Tensor:
        batch, channels, height, width = x.shape
        # Channels last: positions are rows already, and these are views.
        rows = self.norm(x).permute(0, 2, 3, 1).reshape(batch, height * width, channels)
        q, k, v = self.qkv(rows).view(batch, height * width, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(batch, height, width, channels)
        return x + self.out(mixed).permute(0, 3, 1, 2)


class Pointwise(nn.Linear):
    """A 1×1 convolution as one matrix product, for channels last; torch's own is far slower on a CPU."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class Up(nn.Module):
    """Twice the side: nearest neighbour, then a convolution."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(F.interpolate(x, scale_factor=2, mode="nearest"))


def _silu(x: Tensor) -> Tensor:
    """In place where nothing is learnt; else autograd would keep a copy for it."""
    return F.silu(x, inplace=not torch.is_grad_enabled())


def _zero(layer: L) -> L:
    """A layer that answers zero until it has learnt."""
    nn.init.zeros_(layer.weight)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)
    return layer
