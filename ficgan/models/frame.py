"""FICGAN in the canonical frame: the networks of the paper, which add to a linear model's texture and shape.

The generator is given the linear model's texture at every resolution, and the numbers that say the moment beside w. Its
RGB outputs and the shape's last layer start at zero, so an untrained network is the linear model.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrizations import spectral_norm

from ficgan import ops
from ficgan.config import DiscriminatorConfig, FrameNetworkConfig, ModelConfig
from ficgan.models.ficgan import Conv2d, Linear, MappingNetwork, StyleLayer, down_blocks

LOOK = 32  # side of the small copy of a texture that linear maps read; `ficgan.frame.appearance.SMALL` for torch

CONDITIONS = 10  # conditions of a detail network: the kind, and how much detail the photo has

Layer = TypeVar("Layer", Conv2d, Linear)


class FrameOutput(NamedTuple):
    """What the generator adds to the linear model."""

    texture: Tensor  # [B,3,R,R], in units of the texture's contrast
    shape: Tensor  # [B,I], standard deviations of the shape's identity coefficients


class FrameEncoder(nn.Module):
    """Texture in the frame → learned part of the identity code, which is taught to be what V sees of the person.

    A linear map of a small copy reads most of it; training fits it at the start. A residual trunk from R/2 to 4×4 adds
    to it and starts at zero. Its first step folds 2×2 pixels into channels: full resolution would cost as much as all
    the rest.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        resolution = config.resolution // 2
        self.stem = Conv2d(12, config.channels(resolution), 3)
        channels = config.channels(4)
        self.trunk = nn.Sequential(*down_blocks(config, resolution))
        self.identity_conv = Conv2d(channels, 2 * channels, 3)
        self.identity_head = _zeroed(Linear(2 * channels, config.id_dim))
        self.reader = _zeroed(Linear(3 * LOOK * LOOK, config.id_dim))

    def forward(self, texture: Tensor) -> Tensor:  # [B,3,R,R] → [B,id_dim]
        trunk = self.trunk(self.stem(F.pixel_unshuffle(texture, 2)))
        learned = self.identity_head(self.identity_conv(trunk).mean((2, 3)))
        return learned + self.reader(even_look(texture).to(learned.dtype))


class FrameGenerator(nn.Module):
    """Synthesis network with L = 2·(log2 R − 2) style layers, given the linear model's texture.

    It starts from a constant. In the frame z_non is the moment, a few numbers of known meaning: nothing else of the
    source reaches the network beside its code (FICGAN, Table 2, "w/o spatial code").
    """

    taps: Tensor

    def __init__(self, config: ModelConfig, frame: FrameNetworkConfig) -> None:
        super().__init__()
        self.config, self.limit = config, frame.shape_limit
        styled = config.model_copy(update={"w_dim": config.w_dim + frame.moment_dim})
        self.constant = nn.Parameter(torch.randn(1, config.channels(4), 4, 4))
        layers, to_rgb, given = [], [], []
        resolution = 4
        while resolution < config.resolution:
            narrow, wide = config.channels(resolution), config.channels(2 * resolution)
            given.append(Conv2d(3, narrow, 3, activation="linear"))
            layers += [StyleLayer(narrow, wide, styled, up=True), StyleLayer(wide, wide, styled, up=False)]
            to_rgb.append(_zeroed(Conv2d(wide, 3, 1, activation="linear")))
            resolution *= 2
        self.layers, self.to_rgb, self.given = nn.ModuleList(layers), nn.ModuleList(to_rgb), nn.ModuleList(given)
        self.shape_hidden = Linear(styled.w_dim, 128, activation="lrelu")
        self.shape_head = _zeroed(Linear(128, frame.shape_dim))
        self.num_layers = len(layers)
        self.register_buffer("taps", ops.setup_filter(), persistent=False)

    def forward(self, w: Tensor, moment: Tensor, linear: Tensor) -> FrameOutput:
        """What is added to the linear model's texture [B,3,R,R], from w [B,w_dim] or [B,L,w_dim] and moment [B,M]."""
        per_layer = w.unbind(1) if w.ndim == 3 else [w] * self.num_layers
        moments = [torch.cat([one, moment.to(one.dtype)], 1) for one in per_layer]
        smaller = [linear]
        while smaller[-1].shape[2] > 4:
            smaller.append(F.avg_pool2d(smaller[-1], 2))
        x = self.constant.to(w.dtype)
        image: Tensor | None = None
        for index, (to_rgb, given) in enumerate(zip(self.to_rgb, self.given, strict=True)):
            x = x + given(smaller[-1 - index].to(x.dtype))
            for number in (2 * index, 2 * index + 1):
                layer = self.layers[number]
                x = layer(x, layer.affine(moments[number]))  # type: ignore[operator]
            rgb = to_rgb(x)
            image = rgb if image is None else rgb + ops.upsample2d(image, self.taps)
        assert image is not None
        whole = torch.cat([w.mean(1) if w.ndim == 3 else w, moment.to(w.dtype)], 1)
        shape = self.limit * torch.tanh(self.shape_head(self.shape_hidden(whole)).float() / max(self.limit, 1e-6))
        return FrameOutput(image.float(), shape)


class FrameFICGAN(nn.Module):
    """Encoder, mapping network and generator in the canonical frame."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        assert config.frame is not None
        self.config = config
        self.encoder = FrameEncoder(config)
        self.mapping = MappingNetwork(config.model_copy(update={"id_dim": config.frame.code_dim + config.id_dim}))
        self.generator = FrameGenerator(config, config.frame)
        self.num_layers = self.generator.num_layers

    def encode(self, textures: Tensor, code: Tensor) -> Tensor:
        """z_id [B,C] of textures [B,3,R,R] in [−1, 1]: the linear model's code [B,code_dim], then E's."""
        learned = self.encoder(textures)
        return torch.cat([code.to(learned.dtype), learned], 1)


# What a texture has above its mean over 5×5 pixels, and lent detail, are multiplied by for the detail network.
SHOWN = 8.0


class DetailNetwork(nn.Module):
    """Fits the detail that another face lends to a face of twice the frame's size: what is to be added to luminance.

    A residual network at half the frame's size, 2×2 pixels folded into channels, and two layers at the frame's size. It
    learns a map of the frame, and is given the kind of face and how much detail the photo has. Untrained it leaves
    lent detail as it is. Each place in a 2×2 block is taken less its mean over 9×9 blocks: so the tone stays as it is,
    and no pattern of the blocks' size is left.

    Source: Shi et al. 2016 (folded output); Lim et al. 2017 (blocks); Perez et al. 2018 (scale and shift).
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        assert config.detail is not None
        self.config, self.size = config, config.resolution // 2
        channels, fine, blocks = config.detail.channels, config.detail.fine_channels, config.detail.blocks
        self.start = Conv2d(2 * 4 * 3 + 16, channels, 3)
        self.places = nn.Parameter(torch.zeros(1, channels, self.size // 2, self.size // 2))
        self.condition = nn.Sequential(Linear(CONDITIONS, 64, activation="lrelu"), Linear(64, 64, activation="lrelu"))
        self.styles = _zeroed(Linear(64, 2 * channels * blocks))
        self.first = nn.ModuleList(Conv2d(channels, channels, 3) for _ in range(blocks))
        self.last = nn.ModuleList(Conv2d(channels, channels, 3, activation="linear", gain=0.4) for _ in range(blocks))
        self.wide = Conv2d(channels, 4 * fine, 3)
        self.fine = Conv2d(fine, fine, 3)
        self.end = _zeroed(Conv2d(fine, 4, 3, activation="linear", gain=0.4))

    def forward(self, texture: Tensor, condition: Tensor, lent: Tensor) -> Tensor:
        """Luminances [B,1,2R,2R], of [0, 1], to be added to lent ones [B,1,2R,2R] of textures [B,3,R,R] in [−1, 1].

        `condition` [B,10] is of `detail_conditions`.
        """
        styles = self.styles(self.condition(condition)).reshape(len(condition), len(self.first), 2, -1, 1, 1)
        # Detail is small beside colours: untrained layers would hardly see it.
        given = [F.pixel_unshuffle(one, 2) for one in (texture, SHOWN * (texture - local_mean(texture, 5)))]
        x = self.start(torch.cat([*given, SHOWN * F.pixel_unshuffle(lent, 4)], 1)) + self.places
        for number, (first, last) in enumerate(zip(self.first, self.last, strict=True)):
            scale, shift = styles[:, number].unbind(1)
            x = x + last(first(x) * (1 + scale) + shift)
        blocks = self.end(self.fine(F.pixel_shuffle(self.wide(x), 2)))
        return F.pixel_shuffle(blocks - local_mean(blocks, 9), 2)


def even_look(textures: Tensor) -> Tensor:
    """Small copies [B,32·32·3] of textures [B,3,R,R], of even brightness and contrast; colours stand side by side."""
    flat = F.avg_pool2d(textures.float(), textures.shape[2] // LOOK).movedim(1, 3).flatten(1)
    flat = flat - flat.mean(1, keepdim=True)
    return flat / flat.std(1, keepdim=True, correction=0).clamp_min(2 / 255)


def local_mean(x: Tensor, side: int) -> Tensor:
    """Mean over side×side pixels (`side` odd) of images [B,C,H,W], by running sums: pooling is five times slower."""
    for dim in (2, 3):
        count, half = x.shape[dim], side // 2
        place = torch.arange(count, device=x.device)
        there = (place + half).clamp_max(count - 1) - (place - half).clamp_min(0) + 1
        ends = (half + 1, half) if dim == 3 else (0, 0, half + 1, half)
        sums = F.pad(x, ends).cumsum(dim)
        total = sums.narrow(dim, side, count) - sums.narrow(dim, 0, count)
        x = total / there.to(x.dtype).reshape((-1, 1) if dim == 2 else (-1,))
    return x


def _zeroed(layer: Layer) -> Layer:
    with torch.no_grad():
        layer.weight.zero_()
    return layer


_GAIN = 4.0  # of the logits of what is held by its spectral norm


class FrameDiscriminator(nn.Module):
    """Judges V's feature maps of what is published, place by place, held by their judges' spectral norm.

    On whole crops, whose surroundings are real in both kinds, a discriminator needs hundreds of steps to see a
    difference.

    Source: Sauer et al. 2021, Projected GANs (frozen features); Isola et al. 2017 (places); Miyato et al. 2018.
    """

    def __init__(self, config: DiscriminatorConfig) -> None:
        super().__init__()
        self.heads = nn.ModuleList(_judge([(taps, 64, 4, 2), (64, 64, 3, 1)]) for taps in config.taps)
        for head in self.heads:
            for layer in head.children():
                if isinstance(layer, nn.Conv2d):
                    spectral_norm(layer)

    def forward(self, maps: Sequence[Tensor]) -> list[Tensor]:
        """Logits [B,1,h,w], higher for real, of the last of V's maps, which come finest first."""
        judged = maps[len(maps) - len(self.heads) :]
        return [(_GAIN * head(one)).float() for head, one in zip(self.heads, judged, strict=True)]


class DetailDiscriminator(nn.Module):
    """Judges patches of detail at known places, weighed by a detail network's conditions (Miyato and Koyama 2018)."""

    places: Tensor

    def __init__(self, config: DiscriminatorConfig, resolution: int) -> None:
        super().__init__()
        fine, middle, coarse = (config.channels(resolution // side) for side in (2, 4, 8))
        layers = [(8, fine, 4, 2), (fine, middle, 4, 2), (middle, coarse, 4, 2), (coarse, coarse, 3, 1)]
        self.patches = _judge(layers, 1 + CONDITIONS)
        at = torch.linspace(-1, 1, resolution)
        places = torch.stack(torch.meshgrid(at, at, indexing="xy"))[None]
        self.register_buffer("places", places, persistent=False)

    def forward(self, seen: Tensor, mask: Tensor, condition: Tensor) -> list[Tensor]:
        """Logits [B,1,h,w], higher for real, of tone and detail [B,5,2R,2R] under a mask [B,1,2R,2R]."""
        maps = self.patches(torch.cat([seen * mask, mask, self.places.expand(len(seen), -1, -1, -1)], 1)).float()
        return [maps[:, :1] + (maps[:, 1:] * condition[:, :, None, None]).sum(1, keepdim=True)]


def _judge(layers: Sequence[tuple[int, int, int, int]], out: int = 1) -> nn.Sequential:
    modules: list[nn.Module] = []
    for inside, outside, kernel, stride in layers:
        modules += [nn.Conv2d(inside, outside, kernel, stride, padding=1), nn.LeakyReLU(0.2)]
    judge = nn.Sequential(*modules, nn.Conv2d(layers[-1][1], out, 3, padding=1))
    for module in judge:
        if isinstance(module, nn.Conv2d):  # torch's own start shrinks what passes, and five layers see nothing
            nn.init.kaiming_normal_(module.weight, 0.2)
            nn.init.zeros_(module.bias)  # type: ignore[arg-type]
    return judge
