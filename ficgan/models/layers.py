"""Equalised convolutions, linear layers and the residual down-block shared by the encoder and the discriminator.

Weights are drawn from N(0, 1) and scaled by 1/√fan_in when used, so that Adam moves all of them at the same relative
speed (Karras et al. 2018, section 4.1).
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ficgan import ops

SQRT_HALF = math.sqrt(0.5)
# Of leaky ReLUs below 0.
SLOPE = 0.2


def normalise_rms(x: Tensor, dim: int = 1) -> Tensor:
    """Scale x to a root mean square of 1 along `dim`."""
    return x * (x.float().square().mean(dim, keepdim=True) + 1e-8).rsqrt().to(x.dtype)


class Linear(nn.Module):
    """Equalised linear layer, optionally with a leaky ReLU; `lr_multiplier` is relative to the other layers."""

    folded = False

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        activation: str = "linear",
        bias_init: float = 0.0,
        lr_multiplier: float = 1.0,
    ) -> None:
        super().__init__()
        self.activation = activation
        self.weight = nn.Parameter(torch.randn(out_features, in_features) / lr_multiplier)
        self.bias = nn.Parameter(torch.full((out_features,), bias_init / lr_multiplier))
        self.weight_gain = lr_multiplier / math.sqrt(in_features)
        self.bias_gain = lr_multiplier

    def fold(self) -> None:
        """Multiply all gains into weight and bias, for use without training; it then computes in float32."""
        gain = math.sqrt(2) if self.activation == "lrelu" else 1.0
        self.weight = nn.Parameter(self.weight.float() * (self.weight_gain * gain), requires_grad=False)
        self.bias = nn.Parameter(self.bias.float() * (self.bias_gain * gain), requires_grad=False)
        self.folded = True

    def forward(self, x: Tensor) -> Tensor:  # [B,in] → [B,out]
        if self.folded:
            y = F.linear(x.float(), self.weight, self.bias)
            return F.leaky_relu_(y, SLOPE) if self.activation == "lrelu" else y
        weight = (self.weight * self.weight_gain).to(x.dtype)
        bias = (self.bias * self.bias_gain).to(x.dtype)
        if self.activation == "linear":
            return F.linear(x, weight, bias)
        return ops.bias_act(F.linear(x, weight), bias, act=self.activation)


class Conv2d(nn.Module):
    """Equalised convolution, odd kernel; `down` filters with (1,3,3,1) and keeps every second pixel before it."""

    taps: Tensor
    folded = False

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel: int,
        *,
        down: bool = False,
        activation: str = "lrelu",
        bias: bool = True,
        gain: float = 1.0,
    ) -> None:
        super().__init__()
        self.kernel, self.down, self.activation = kernel, down, activation
        self.weight = nn.Parameter(torch.randn(out_channels, in_channels, kernel, kernel))
        self.bias = nn.Parameter(torch.zeros(out_channels)) if bias else None
        self.weight_gain = 1 / math.sqrt(in_channels * kernel * kernel)
        # Of the output.
        self.gain = (math.sqrt(2) if activation == "lrelu" else 1.0) * gain
        self.register_buffer("taps", ops.setup_filter(), persistent=False)

    def fold(self, dtype: torch.dtype) -> None:
        """Multiply all gains into weight and bias, for use without training; `dtype` is that of the features."""
        weight = (self.weight.float() * (self.weight_gain * self.gain)).to(dtype)
        self.weight = nn.Parameter(weight.contiguous(memory_format=torch.channels_last), requires_grad=False)
        if self.bias is not None:
            self.bias = nn.Parameter((self.bias.float() * self.gain).to(dtype), requires_grad=False)
        self.folded = True

    def forward(self, x: Tensor) -> Tensor:  # [B,in,H,W] → [B,out,H,W] or [B,out,H/2,W/2]
        if self.down:
            x = ops.downsample2d(x, self.taps)
        padding = self.kernel // 2
        if self.folded and not x.is_cuda:
            y = F.conv2d(x, self.weight, self.bias, padding=padding)
            return F.leaky_relu_(y, SLOPE) if self.activation == "lrelu" else y
        if self.folded:  # cuDNN would add the bias in a pass of its own; the compiled op does both in one
            return ops.bias_act(F.conv2d(x, self.weight, padding=padding), self.bias, act=self.activation, gain=1.0)
        weight = (self.weight * self.weight_gain).to(x.dtype)
        bias = None if self.bias is None else self.bias.to(x.dtype)
        return ops.bias_act(F.conv2d(x, weight, padding=padding), bias, act=self.activation, gain=self.gain)


class DownBlock(nn.Module):
    """Residual block that halves the resolution: (3×3, 3×3 ↓2) + (1×1 ↓2), over √2 (Karras et al. 2020, appendix B)."""

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__()
        self.conv0 = Conv2d(in_channels, in_channels, 3)
        self.conv1 = Conv2d(in_channels, out_channels, 3, down=True, gain=SQRT_HALF)
        self.skip = Conv2d(in_channels, out_channels, 1, down=True, activation="linear", bias=False, gain=SQRT_HALF)

    def forward(self, x: Tensor) -> Tensor:  # [B,in,H,W] → [B,out,H/2,W/2]
        return self.conv1(self.conv0(x)) + self.skip(x)
