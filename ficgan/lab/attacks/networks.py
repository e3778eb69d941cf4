"""The networks of the learned attackers, their losses and their schedules: two auto-encoders and Pix2Pix."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ficgan.anonymizers.cloak import ssim
from ficgan.lab.attacks.training import AdamLearner, Learner


class AutoEncoderNetwork(nn.Module):
    """[B,3,S,S] in [0, 1] → the same, S a multiple of 4; see `AutoEncoder` for the arguments.

    Source: Fantômas, figure 3.
    """

    def __init__(self, size: int, features: int = 9, linear: str = "full", rank: int = 1024) -> None:
        super().__init__()
        self.side, self.features = size // 4, features
        self.down1 = nn.Conv2d(3, features, 3, padding=1)
        self.down2 = nn.Conv2d(features, features, 3, padding=1)
        width = features * self.side**2
        self.linear: nn.Module | None = None
        if linear == "full":
            self.linear = nn.Linear(width, width)
        elif linear == "factorised":
            narrow = min(rank, width)
            self.linear = nn.Sequential(nn.Linear(width, narrow, bias=False), nn.Linear(narrow, width))
        self.up1 = nn.ConvTranspose2d(features, features, 2, stride=2)
        self.up2 = nn.ConvTranspose2d(features, features, 2, stride=2)
        self.out = nn.Conv2d(features, 3, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.leaky_relu(self.down1(x)), 2)
        x = F.max_pool2d(F.leaky_relu(self.down2(x)), 2)
        if self.linear is not None:
            x = F.leaky_relu(self.linear(x.flatten(1))).view(-1, self.features, self.side, self.side)
        x = F.leaky_relu(self.up1(x))
        return torch.sigmoid(self.out(F.leaky_relu(self.up2(x))))


class SsimLearner(AdamLearner):
    """100·(1 − SSIM) under Adam; on a plateau the rate is multiplied by 0.75 (Fantômas, appendix B)."""

    def __init__(self, network: nn.Module, lr: float, plateau: int) -> None:
        super().__init__(network, lr)
        self.plateau = plateau

    def loss(self, seen: Tensor, clear: Tensor) -> Tensor:
        return 100 * (1 - ssim(self.network(seen).float(), clear.float()).mean())

    def after_epoch(self, factor: float, done: float, stale: int) -> float:
        return factor * 0.75 if stale and stale % (self.plateau + 1) == 0 else factor


class ThesisAutoEncoderNetwork(nn.Module):
    """[B,3,S,S] in [0, 1] → the same, S a multiple of 8; the middle is [B,8,S/8,S/8]; `width` channels at first.

    Source: Point-cloud thesis, §4.3.5.2.
    """

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        down, up = (3, width, width // 2, 8), (8, width // 2, width, 3)
        self.down = nn.ModuleList(nn.Conv2d(down[i], down[i + 1], 3, padding=1) for i in range(3))
        self.up = nn.ModuleList(nn.ConvTranspose2d(up[i], up[i + 1], 2, stride=2) for i in range(3))

    def encode(self, x: Tensor) -> Tensor:
        """The compressed representation."""
        for layer in self.down:
            x = F.max_pool2d(F.relu(layer(x)), 2)
        return x

    def forward(self, x: Tensor) -> Tensor:
        x = self.encode(x)
        for layer in self.up[:-1]:
            x = F.relu(layer(x))
        return torch.sigmoid(self.up[-1](x))


class SquaredErrorLearner(AdamLearner):
    """Mean squared error under Adam at a constant rate (point-cloud thesis, §4.3.5.3)."""

    def loss(self, seen: Tensor, clear: Tensor) -> Tensor:
        return F.mse_loss(self.network(seen), clear)


_WIDEST = 8
"""Most filters of a Pix2Pix layer, as a multiple of those of the first."""
_NOISY = 3
"""Layers up that have dropout, from the deepest."""
_SLOPE = 0.2


class Pix2PixUNet(nn.Module):
    """[B,3,S,S] in [0, 1] → the same; halved down to one pixel and doubled again, with skips between equal sizes.

    Args:
        size: S = 2^d; there are d layers down and d up.
        base: filters of the first layer.
        norm: "instance" or "batch".
        dropout: share dropped in the three deepest layers up.

    Source: Isola et al. 2017, §6.1.1.
    """

    def __init__(self, size: int, base: int = 64, norm: str = "instance", dropout: float = 0.5) -> None:
        super().__init__()
        depth = size.bit_length() - 1
        widths = [base * min(2**level, _WIDEST) for level in range(depth)]
        self.dropout = dropout
        self.down, self.up = nn.ModuleList(), nn.ModuleList()
        for level, width in enumerate(widths):
            # The first layer has no normalisation, and at one pixel it would leave nothing but its shift.
            normed = 0 < level < depth - 1
            conv = nn.Conv2d(widths[level - 1] if level else 3, width, 4, 2, 1)
            self.down.append(nn.Sequential(conv, _normalise(width, norm) if normed else nn.Identity()))
        for level in reversed(range(depth)):
            inside = widths[level] * (1 if level == depth - 1 else 2)
            out = widths[level - 1] if level else 3
            conv_up = nn.ConvTranspose2d(inside, out, 4, 2, 1)
            self.up.append(nn.Sequential(conv_up, _normalise(out, norm) if level else nn.Identity()))
        self.apply(_initialise)

    def forward(self, x: Tensor, seeds: list[int] | None = None) -> Tensor:
        """Restored images of x [B,3,S,S] in [0, 1]; `seeds` [B] draw each image's dropout, None drops nothing."""
        skips: list[Tensor] = []
        x = 2 * x - 1
        for level, block in enumerate(self.down):
            x = block(F.leaky_relu(x, _SLOPE) if level else x)
            skips.append(x)
        streams = None if seeds is None else [torch.Generator().manual_seed(seed) for seed in seeds]
        for step, block in enumerate(self.up):
            below = skips.pop()
            x = block(F.relu(x if step == 0 else torch.cat([x, below], dim=1)))
            if step < _NOISY and step < len(self.up) - 1:
                x = self._drop(x, streams)
        return (torch.tanh(x) + 1) / 2

    def _drop(self, x: Tensor, streams: list[torch.Generator] | None) -> Tensor:
        if self.training:
            return F.dropout(x, self.dropout)
        if streams is None:
            return x
        # Drawn image by image on the CPU: a candidate depends neither on its batch nor on the device.
        kept = torch.stack([torch.rand(x.shape[1:], generator=stream) for stream in streams]) >= self.dropout
        return x * kept.to(x) / (1 - self.dropout)


class PatchGAN(nn.Module):
    """Logits [B,1,P,P] of pairs of images, one per patch (Isola et al. 2017, §3.2.2, §6.1.2)."""

    def __init__(self, base: int = 64, halvings: int = 3, norm: str = "instance") -> None:
        super().__init__()
        layers: list[nn.Module] = []
        before = 6
        for index in range(halvings + 1):
            width = base * min(2**index, _WIDEST)
            layers.append(nn.Conv2d(before, width, 4, 2 if index < halvings else 1, 1))
            layers += [_normalise(width, norm)] if index else []
            layers.append(nn.LeakyReLU(_SLOPE))
            before = width
        self.layers = nn.Sequential(*layers, nn.Conv2d(before, 1, 4, 1, 1))
        self.apply(_initialise)

    def forward(self, seen: Tensor, other: Tensor) -> Tensor:
        """`seen`, `other`: [B,3,S,S] in [0, 1]."""
        logits: Tensor = self.layers(2 * torch.cat([seen, other], dim=1) - 1)
        return logits


def halvings_for(size: int) -> int:
    """As many as leave more than one patch in an image: 3 from 128 pixels (70×70), 2 from 64, else 1."""
    return 3 if size >= 128 else 2 if size >= 64 else 1


def discriminator_loss(real: Tensor, fake: Tensor) -> Tensor:
    """−½·(log D(x, y) + log(1 − D(x, G(x)))), means over patches, from logits (Isola et al. 2017, eq. 1 and §3.3)."""
    return (F.softplus(-real).mean() + F.softplus(fake).mean()) / 2


def generator_loss(fake: Tensor, guess: Tensor, clear: Tensor, weight: float) -> tuple[Tensor, Tensor]:
    """−log D(x, G(x)) from logits, and λ·‖y − G(x)‖₁ as a mean over values of images in [−1, 1].

    Source: Isola et al. 2017, eqs. 3 and 4, in the non-saturating form of §3.3.
    """
    return F.softplus(-fake).mean(), weight * 2 * F.l1_loss(guess, clear)  # images here are in [0, 1]


class Pix2PixLearner(Learner):
    """Adam for both, β = (.5, .999); the rate is constant in the first half and falls linearly to 0 in the second.

    Source: Isola et al. 2017, §3.3 and §6.2.
    """

    def __init__(self, network: nn.Module, judge: nn.Module, lr: float, weight: float) -> None:
        modules = {"network": network, "discriminator": judge}
        on_gpu = next(network.parameters()).is_cuda
        adam = {
            name: torch.optim.Adam(module.parameters(), lr, betas=(0.5, 0.999), fused=on_gpu)
            for name, module in modules.items()
        }
        super().__init__(modules, adam)
        self.network, self.judge, self.weight = network, judge, weight

    def step(self, seen: Tensor, clear: Tensor, images: int) -> dict[str, Tensor]:
        guess = self.network(seen)
        judged = discriminator_loss(self.judge(seen, clear), self.judge(seen, guess.detach()))
        self.descend("discriminator", judged)
        self.judge.requires_grad_(False)
        fools, far = generator_loss(self.judge(seen, guess), guess, clear, self.weight)
        self.descend("network", fools + far)
        self.judge.requires_grad_(True)
        return {"discriminator": judged.detach(), "adversarial": fools.detach(), "l1": far.detach()}

    def loss(self, seen: Tensor, clear: Tensor) -> Tensor:
        return F.l1_loss(self.network(seen), clear)

    def after_epoch(self, factor: float, done: float, stale: int) -> float:
        return min(1.0, 2 * (1 - done))


def _normalise(width: int, norm: str) -> nn.Module:
    return nn.BatchNorm2d(width) if norm == "batch" else nn.InstanceNorm2d(width, affine=True)


def _initialise(module: nn.Module) -> None:
    if isinstance(module, (nn.Conv2d, nn.ConvTranspose2d)):
        nn.init.normal_(module.weight, 0.0, 0.02)
        if module.bias is not None:
            nn.init.zeros_(module.bias)
    elif isinstance(module, (nn.BatchNorm2d, nn.InstanceNorm2d)):
        nn.init.normal_(module.weight, 1.0, 0.02)
        nn.init.zeros_(module.bias)
