"""FICGAN: encoder E, mapping network and generator G, the three as one module, and the discriminator D."""

from __future__ import annotations

import itertools
import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ficgan import ops
from ficgan.config import DiscriminatorConfig, ModelConfig

SQRT_HALF = math.sqrt(0.5)
SLOPE = 0.2  # of leaky ReLUs below 0
_MEAN_MOMENTUM = 0.995  # of the running mean of w, a batch


def normalise_rms(x: Tensor) -> Tensor:
    """Scale x to a root mean square of 1 along its channels."""
    return x * (x.float().square().mean(1, keepdim=True) + 1e-8).rsqrt().to(x.dtype)


class Linear(nn.Module):
    """Equalised linear layer, optionally with a leaky ReLU; `lr_multiplier` is relative to the other layers."""

    folded = False

    def __init__(
        self, in_features: int, out_features: int, *, activation: str = "linear", lr_multiplier: float = 1.0
    ) -> None:
        super().__init__()
        self.activation = activation
        self.weight = nn.Parameter(torch.randn(out_features, in_features) / lr_multiplier)
        self.bias = nn.Parameter(torch.zeros(out_features))
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
        self.gain = (math.sqrt(2) if activation == "lrelu" else 1.0) * gain  # of the output
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


def down_blocks(config: ModelConfig | DiscriminatorConfig, resolution: int) -> list[nn.Module]:
    """Blocks from a resolution down to 4×4."""
    sides = [resolution >> n for n in range(resolution.bit_length() - 3)]
    return [DownBlock(config.channels(side), config.channels(side // 2)) for side in sides]


class Codes(NamedTuple):
    """What the encoder reads from an image."""

    z_id: Tensor  # identity code [B,id_dim]
    z_non: Tensor  # spatial code [B,C,4,4]: pose, background, light


class Encoder(nn.Module):
    """Residual trunk from R×R to 4×4; the spatial code is read from the trunk, the identity code from a pooled branch.

    Pooling takes the positions out of the identity code, so that pose can only go through the spatial code.

    Source: FICGAN, "Encoder"; the exact shape is not in the paper, the nearest is the Swapping Autoencoder's.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        blocks, channels = down_blocks(config, config.resolution), config.channels(4)
        self.from_rgb = Conv2d(3, config.channels(config.resolution), 1)
        self.trunk = nn.Sequential(*blocks)
        self.identity_conv = Conv2d(channels, 2 * channels, 3)
        self.identity_head = Linear(2 * channels, config.id_dim)
        if config.spatial_code == "encoded":
            self.spatial_conv: nn.Module | None = Conv2d(channels, channels, 3)
            self.spatial_head: nn.Module | None = Conv2d(channels, config.spatial_channels, 1, activation="linear")
            self.register_parameter("spatial_constant", None)
        else:
            self.spatial_conv = self.spatial_head = None
            self.spatial_constant = nn.Parameter(torch.randn(1, config.spatial_channels, 4, 4))

    def forward(self, x: Tensor) -> Codes:
        """Codes of images [B,3,R,R] in [−1, 1]."""
        trunk = self.trunk(self.from_rgb(x))  # [B,C4,4,4]
        z_id = self.identity_head(self.identity_conv(trunk).mean((2, 3)))
        if self.spatial_conv is None or self.spatial_head is None:
            assert self.spatial_constant is not None
            z_non = self.spatial_constant.to(trunk.dtype).expand(x.shape[0], -1, -1, -1)
        else:
            z_non = self.spatial_head(self.spatial_conv(trunk))
        if self.config.spatial_norm:
            z_non = normalise_rms(z_non)
        return Codes(z_id, z_non)


class MappingNetwork(nn.Module):
    """MLP on the normalised identity code, with a running mean of its outputs (FICGAN, "Generator")."""

    w_mean: Tensor

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        sizes, slow = [config.id_dim] + [config.w_dim] * config.mapping_layers, config.mapping_lr_multiplier
        layers = [Linear(a, b, activation="lrelu", lr_multiplier=slow) for a, b in itertools.pairwise(sizes)]
        self.layers = nn.Sequential(*layers)
        self.register_buffer("w_mean", torch.zeros(config.w_dim))

    def forward(self, z_id: Tensor) -> Tensor:  # [B,id_dim] → [B,w_dim]
        return self.layers(normalise_rms(z_id))

    @torch.no_grad()
    def track_mean(self, w: Tensor) -> None:
        """Move the running mean towards the mean of a batch of w [B,w_dim]."""
        self.w_mean.lerp_(w.detach().float().mean(0), 1 - _MEAN_MOMENTUM)


class StyleLayer(nn.Module):
    """3×3 convolution whose feature statistics are set by w, optionally with ×2 upsampling.

    `adain` (the paper) instance-normalises and scales and shifts by the style after bias and leaky ReLU; `demodulate`
    (StyleGAN2) scales the input channels and divides by the norm the scaled kernel has: activations rather than weights
    are scaled, so that faces with different w share one convolution.
    """

    taps: Tensor
    power: Tensor | None
    folded = False

    def __init__(self, in_channels: int, out_channels: int, config: ModelConfig, *, up: bool) -> None:
        super().__init__()
        self.up, self.modulation = up, config.modulation
        self.weight = nn.Parameter(torch.randn(out_channels, in_channels, 3, 3))
        self.bias = nn.Parameter(torch.zeros(out_channels))
        self.weight_gain = 1 / math.sqrt(in_channels * 9)
        scales, shifts = (out_channels, out_channels) if self.modulation == "adain" else (in_channels, 0)
        self.affine = Linear(config.w_dim, scales + shifts)
        nn.init.ones_(self.affine.bias[:scales].detach())  # without an effect at first
        self.register_buffer("taps", ops.setup_filter(), persistent=False)
        self.register_buffer("power", None, persistent=False)

    def fold(self, dtype: torch.dtype) -> None:
        """Multiply the gain into the weight, for use without training; `dtype` is that of the features."""
        weight = self.weight.float() * self.weight_gain
        if self.modulation == "demodulate":
            self.power = weight.square().sum((2, 3))
        weight = weight.to(dtype).contiguous(memory_format=torch.channels_last)
        self.weight = nn.Parameter(weight, requires_grad=False)
        self.bias = nn.Parameter(self.bias.to(dtype), requires_grad=False)
        self.folded = True

    def forward(self, x: Tensor, style: Tensor) -> Tensor:
        """Features [B,out,H,W], or [B,out,2H,2W] when `up`, of features [B,in,H,W] and a style.

        The style, `affine` of w [B,w_dim], is [B,2·out] for `adain` and [B,in] for `demodulate`.
        """
        weight = self.weight if self.folded else (self.weight * self.weight_gain).to(x.dtype)
        bias = self.bias.to(x.dtype)
        if self.modulation == "adain":
            scale, shift = style.to(x.dtype).chunk(2, dim=1)
            y = ops.adain(F.conv2d(x, weight, padding=1), bias, scale, shift)
        else:
            power = self.power  # [out,in], at least float32
            if power is None:
                power = (self.weight * self.weight_gain).square().sum((2, 3))
            norm = (style.to(power.dtype).square() @ power.t() + 1e-8).rsqrt()
            y = F.conv2d(x * style.to(x.dtype)[:, :, None, None], weight, padding=1)
            y = ops.scale_bias_lrelu(y, norm, bias)
        # Upsampling comes after the convolution, which so costs a quarter; the layer that follows works at full size.
        return ops.upsample2d(y, self.taps) if self.up else y


class Generator(nn.Module):
    """L = 2·(log2 R − 2) style layers, and a sum of RGB outputs, one for each resolution.

    Source: FICGAN, "Generator"; StyleGAN for the style layers; StyleGAN2 for the summed RGB outputs.
    """

    taps: Tensor

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.start = Conv2d(config.spatial_channels, config.channels(4), 1)
        layers, to_rgb = [], []
        resolution = 4
        while resolution < config.resolution:
            narrow, wide = config.channels(resolution), config.channels(2 * resolution)
            layers += [StyleLayer(narrow, wide, config, up=True), StyleLayer(wide, wide, config, up=False)]
            to_rgb.append(Conv2d(wide, 3, 1, activation="linear"))
            resolution *= 2
        self.layers, self.to_rgb, self.num_layers = nn.ModuleList(layers), nn.ModuleList(to_rgb), len(layers)
        self.register_buffer("taps", ops.setup_filter(), persistent=False)

    def styles(self, w: Tensor) -> list[Tensor]:
        """Styles of all layers, each [B, …], from w [B,w_dim] or [B,L,w_dim]."""
        per_layer = w.unbind(1) if w.ndim == 3 else [w] * self.num_layers
        return [layer.affine(w_layer) for layer, w_layer in zip(self.layers, per_layer, strict=True)]  # type: ignore

    def synthesise(self, styles: list[Tensor], z_non: Tensor) -> Tensor:
        """Image [B,3,R,R] from the styles of `styles` and the spatial code [B,C,4,4]."""
        x = self.start(z_non)
        image: Tensor | None = None
        for index, to_rgb in enumerate(self.to_rgb):
            x = self.layers[2 * index](x, styles[2 * index])
            x = self.layers[2 * index + 1](x, styles[2 * index + 1])
            rgb = to_rgb(x)
            image = rgb if image is None else rgb + ops.upsample2d(image, self.taps)
        assert image is not None
        return image

    def forward(self, w: Tensor, z_non: Tensor) -> Tensor:
        """Images [B,3,R,R] in about [−1, 1] from w [B,w_dim] or [B,L,w_dim] and z_non [B,C,4,4]."""
        return self.synthesise(self.styles(w), z_non)


class FICGAN(nn.Module):
    """The controllable de-identification model; FICGAN, "Overall Framework", Figure 2."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.encoder = Encoder(config)
        self.mapping = MappingNetwork(config)
        self.generator = Generator(config)
        self.num_layers, self.resolution = self.generator.num_layers, config.resolution

    def forward(self, x: Tensor) -> Tensor:
        """Reconstruction G(E(x)) of images [B,3,R,R]."""
        codes = self.encoder(x)
        return self.generator(self.mapping(codes.z_id), codes.z_non)


def minibatch_std(x: Tensor, group: int) -> Tensor:
    """Append to features [B,C,H,W] a channel: their standard deviation over groups of images, one mean for each group.

    The largest divisor of B up to `group` is a group's size. Source: Karras et al. 2018, section 3.
    """
    batch, _, height, width = x.shape
    size = next(size for size in range(min(group, batch), 0, -1) if batch % size == 0)
    grouped = x.float().reshape(size, batch // size, -1)  # images i, i + B/size, … make a group
    spread = (grouped.var(0, unbiased=False) + 1e-8).sqrt().mean(1)  # [B/size]
    channel = spread.repeat(size).to(x.dtype)[:, None, None, None].expand(-1, 1, height, width)
    return torch.cat([x, channel], 1)


class Discriminator(nn.Module):
    """Residual StyleGAN2 discriminator for images of side R."""

    def __init__(self, config: DiscriminatorConfig, resolution: int) -> None:
        super().__init__()
        self.group = config.minibatch_std_group
        channels = config.channels(4)
        self.from_rgb = Conv2d(3, config.channels(resolution), 1)
        self.blocks = nn.ModuleList(down_blocks(config, resolution))
        self.conv = Conv2d(channels + (1 if self.group else 0), channels, 3)
        self.hidden = Linear(channels * 16, channels, activation="lrelu")
        self.head = Linear(channels, 1)

    def forward(self, x: Tensor, *, parts: int = 1) -> Tensor:
        """Logits [B] of images [B,3,R,R], higher for real.

        `parts` are equal parts of the batch (real, reconstructed, mixed) whose deviations are taken apart: a group that
        holds several kinds would hide the collapse of one.
        """
        x = self.from_rgb(x)
        for block in self.blocks:
            x = block(x)
        if self.group:
            x = torch.cat([minibatch_std(part, self.group) for part in x.chunk(parts)])
        return self.head(self.hidden(self.conv(x).flatten(1))).squeeze(1)
