"""The networks of the learned attackers: auto-encoders, Pix2Pix, Revelio's estimator of a blur, and its parrots."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn
from torchvision import models
from torchvision.transforms.functional import normalize

from ficgan.anonymizers import Faces, Images
from ficgan.arrays import blocks
from ficgan.device import resolve_device
from ficgan.errors import Progress, unheard
from ficgan.faces import ARCFACE_POINTS
from ficgan.lab.attacks.base import one_each_unknown, upright
from ficgan.lab.attacks.deconvolution import blurred
from ficgan.lab.attacks.training import Learner, minimise
from ficgan.verification import load_onnx


class AutoEncoderNetwork(nn.Module):
    """[B,3,S,S] in [0, 1] → the same, S a multiple of 4 (Fantômas, figure 3)."""

    def __init__(self, size: int, features: int = 9, linear: bool = True) -> None:
        super().__init__()
        self.side, self.features = size // 4, features
        self.down1 = nn.Conv2d(3, features, 3, padding=1)
        self.down2 = nn.Conv2d(features, features, 3, padding=1)
        width = features * self.side**2
        self.linear = nn.Linear(width, width) if linear else None
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


def plateau(factor: float, done: int, stale: int) -> float:
    """After each six epochs without a better loss the rate is multiplied by 0.75 (Fantômas, appendix B)."""
    return factor * 0.75 if stale and stale % 6 == 0 else factor


class ThesisAutoEncoderNetwork(nn.Module):
    """[B,3,S,S] in [0, 1] → the same by way of [B,8,S/8,S/8], S a multiple of 8 (point-cloud thesis, §4.3.5.2)."""

    def __init__(self) -> None:
        super().__init__()
        down, up = (3, 32, 16, 8), (8, 16, 32, 3)
        self.down = nn.ModuleList(nn.Conv2d(down[i], down[i + 1], 3, padding=1) for i in range(3))
        self.up = nn.ModuleList(nn.ConvTranspose2d(up[i], up[i + 1], 2, stride=2) for i in range(3))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.down:
            x = F.max_pool2d(F.relu(layer(x)), 2)
        for layer in self.up[:-1]:
            x = F.relu(layer(x))
        return torch.sigmoid(self.up[-1](x))


# -- Pix2Pix -----------------------------------------------------------------------------------------------------------

_WIDEST = 8  # Most filters of a layer, as a multiple of those of the first
_NOISY = 3  # Layers up that have dropout, from the deepest
_SLOPE = 0.2


class Pix2PixUNet(nn.Module):
    """[B,3,S,S], S = 2^d, in [0, 1] → the same; d times halved and doubled, with skips (Isola et al. 2017, §6.1.1)."""

    dropout = 0.5

    def __init__(self, size: int, base: int = 64) -> None:
        super().__init__()
        depth = size.bit_length() - 1
        widths = [base * min(2**level, _WIDEST) for level in range(depth)]
        self.down, self.up = nn.ModuleList(), nn.ModuleList()
        for level, (before, width) in enumerate(pairwise([3, *widths])):
            # The first layer has no normalisation, and at one pixel it would leave nothing but its shift. With one pair
            # in a step the paper's batch normalisation is of one image, too.
            norm = nn.InstanceNorm2d(width, affine=True) if 0 < level < depth - 1 else nn.Identity()
            self.down.append(nn.Sequential(nn.Conv2d(before, width, 4, 2, 1), norm))
        for level, (out, width) in reversed(list(enumerate(pairwise([3, *widths])))):
            inside = width if level == depth - 1 else 2 * width
            norm = nn.InstanceNorm2d(out, affine=True) if level else nn.Identity()
            self.up.append(nn.Sequential(nn.ConvTranspose2d(inside, out, 4, 2, 1), norm))
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

    def __init__(self, base: int = 64, halvings: int = 3) -> None:
        super().__init__()
        widths = [6, *(base * min(2**index, _WIDEST) for index in range(halvings + 1))]
        layers: list[nn.Module] = []
        for index, (before, width) in enumerate(pairwise(widths)):
            layers.append(nn.Conv2d(before, width, 4, 2 if index < halvings else 1, 1))
            layers += [nn.InstanceNorm2d(width, affine=True)] if index else []
            layers.append(nn.LeakyReLU(_SLOPE))
        self.layers = nn.Sequential(*layers, nn.Conv2d(widths[-1], 1, 4, 1, 1))
        self.apply(_initialise)

    def forward(self, seen: Tensor, other: Tensor) -> Tensor:
        """`seen`, `other`: [B,3,S,S] in [0, 1]."""
        return self.layers(2 * torch.cat([seen, other], dim=1) - 1)


def discriminator_loss(real: Tensor, fake: Tensor) -> Tensor:
    """−½·(log D(x, y) + log(1 − D(x, G(x)))), means over patches, from logits (Isola et al. 2017, eq. 1 and §3.3)."""
    return (F.softplus(-real).mean() + F.softplus(fake).mean()) / 2


def generator_loss(fake: Tensor, guess: Tensor, clear: Tensor) -> tuple[Tensor, Tensor]:
    """−log D(x, G(x)) from logits, and 100·‖y − G(x)‖₁, a mean on [−1, 1] (Isola et al. 2017, eqs. 3, 4, §3.3)."""
    return F.softplus(-fake).mean(), 100 * 2 * F.l1_loss(guess, clear)  # images here are in [0, 1]


class Pix2PixLearner(Learner):
    """Adam, β = (.5, .999); the rate falls linearly to 0 in the second half (Isola et al. 2017, §3.3, §6.2)."""

    def __init__(self, network: nn.Module, judge: nn.Module, lr: float, epochs: int) -> None:
        modules, on_gpu = {"network": network, "discriminator": judge}, next(network.parameters()).is_cuda
        adam = partial(torch.optim.Adam, lr=lr, betas=(0.5, 0.999), fused=on_gpu)
        adams = {name: adam(module.parameters()) for name, module in modules.items()}
        super().__init__(modules, adams, lambda last, done, stale: min(1.0, 2 * (1 - done / epochs)))
        self.network, self.judge = network, judge

    def step(self, seen: Tensor, clear: Tensor, images: int) -> dict[str, Tensor]:
        guess = self.network(seen)
        judged = discriminator_loss(self.judge(seen, clear), self.judge(seen, guess.detach()))
        self.descend("discriminator", judged)
        self.judge.requires_grad_(False)
        fools, far = generator_loss(self.judge(seen, guess), guess, clear)
        self.descend("network", fools + far)
        self.judge.requires_grad_(True)
        return {"discriminator": judged.detach(), "adversarial": fools.detach(), "l1": far.detach()}

    def loss(self, seen: Tensor, clear: Tensor) -> Tensor:
        return F.l1_loss(self.network(seen), clear)


def _initialise(module: nn.Module) -> None:
    if isinstance(module, (nn.Conv2d, nn.ConvTranspose2d, nn.InstanceNorm2d)):
        nn.init.normal_(module.weight, float(isinstance(module, nn.InstanceNorm2d)), 0.02)
        nn.init.zeros_(module.bias)  # type: ignore[arg-type]


# -- the kernel of a blur ----------------------------------------------------------------------------------------------

_BATCH = 256  # Pictures that are read at once
_NOISE_FLOOR = 1e-2  # Below the power of rounding to bytes, 1/12, so that what lies under it differs little


@dataclass(frozen=True)
class KernelEstimator:
    """Odd kernel sizes K of Gaussian blurs; made by `train`.

    An EfficientNetV2 of torchvision (Revelio, §4.2), or a perceptron on a `log_spectrum`, which a blur shifts by its
    transfer function. `error`: mean absolute error on the validation faces, pixels; None where there were none.
    """

    module: nn.Module = field(repr=False, compare=False)
    kernels: tuple[int, ...]
    error: float | None = None

    @classmethod
    def train(
        cls,
        images: Images,
        kernels: Sequence[int],
        *,
        validation: Images | None = None,
        network: str = "perceptron",
        pretrained: bool = False,
        epochs: int = 0,
        seed: int = 0,
        progress: Progress = unheard,
    ) -> KernelEstimator:
        """Train on clear faces [N,S,S,3] uint8, each blurred with each kernel, of odd widths (Revelio, §4.2 and §5.4).

        The epoch of the smallest error on the `validation` faces, of other people, is kept; else the last.
        """
        kernels = tuple(sorted({int(kernel) for kernel in kernels}))
        torch.manual_seed(seed)
        kind = _Perceptron if network == "perceptron" else _EfficientNet
        device = torch.device("cpu" if kind is _Perceptron else resolve_device("auto"))
        seen = torch.cat([kind.inputs(blurred(images, kernel)) for kernel in kernels])
        sizes = torch.tensor(kernels, dtype=torch.float32).repeat_interleave(len(images))
        wanted = (sizes - kernels[0]) / (kernels[-1] - kernels[0]) * 2 - 1
        module: Any = (_Perceptron(seen) if kind is _Perceptron else _EfficientNet(network, pretrained)).to(device)
        epochs, batch, rate = epochs or kind.epochs, kind.batch, kind.rate
        optimiser = torch.optim.AdamW(module.parameters(), rate, weight_decay=1e-2)
        steps = epochs * -(-len(seen) // batch)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, rate, total_steps=steps)
        order = partial(torch.randperm, len(seen), generator=torch.Generator().manual_seed(seed))
        made = cls(module, kernels)
        validated = [] if validation is None else [(blurred(validation, kernel), kernel) for kernel in kernels]

        def loss(rows: Tensor) -> Tensor:
            return F.smooth_l1_loss(module(seen[rows].to(device))[:, 0], wanted[rows].to(device), beta=0.05)

        def error() -> float | None:
            errors = [np.abs(made.regress(images) - kernel) for images, kernel in validated]
            return float(np.mean(errors)) if validated else None

        tell = lambda done: progress(done, epochs, "kernel estimator")  # noqa: E731
        _, least = minimise(module, loss, order, batch, schedule, epochs, error, tell)
        return cls(module, kernels, least)

    @torch.no_grad()
    def regress(self, images: Images) -> NDArray[np.float64]:
        """[N] sizes before rounding, within the range it was trained on."""
        low, high = self.kernels[0], self.kernels[-1]
        module: Any = self.module
        device = next(module.parameters()).device
        parts = [module(module.inputs(images[part]).to(device))[:, 0] for part in blocks(len(images), _BATCH)]
        found = torch.cat(parts).double().cpu().numpy()
        return np.clip((found + 1) / 2 * (high - low) + low, low, high)

    def estimate(self, images: Images) -> NDArray[np.int64]:
        """[N] kernel sizes of blurred images [N,S,S,3]: the nearest odd ones of the trained range."""
        return (2 * np.rint((self.regress(images) - 1) / 2) + 1).astype(np.int64)


def log_spectrum(images: Images) -> NDArray[np.float32]:
    """Log power by radial frequency, [N,B] float32, of images [N,S,S,3] under Hann's window."""
    side = images.shape[1]
    radius = np.hypot(np.fft.fftfreq(side, 1 / side)[:, None], np.arange(side // 2 + 1)).astype(np.int64).ravel()
    order, counts = np.argsort(radius, kind="stable"), np.bincount(radius)
    window = np.outer(np.hanning(side + 2)[1:-1], np.hanning(side + 2)[1:-1])
    out = np.empty((len(images), len(counts)), np.float32)
    for part in blocks(len(images), 64):
        planes = np.moveaxis(images[part], 3, 1).astype(np.float32)
        mean = np.sum(planes * window, axis=(2, 3), keepdims=True) / window.sum()
        waves = np.abs(np.fft.rfft2((planes - mean) * window)).astype(np.float32) ** 2
        power = np.mean(waves / np.float32(np.sum(window**2)), axis=1)
        logs = np.log(power + np.float32(_NOISE_FLOOR)).reshape(len(planes), -1)[:, order]
        out[part] = np.add.reduceat(logs, np.cumsum(counts) - counts, axis=1) / counts
    return out


class _EfficientNet(nn.Module):
    """Torchvision's network of that name with one output, ImageNet's weights in the rest of it (Revelio, §4.2)."""

    epochs, batch, rate = 10, 32, 3e-4  # Ours: the paper does not say

    def __init__(self, name: str, pretrained: bool) -> None:
        super().__init__()
        self.network = models.get_model(name, weights="DEFAULT" if pretrained else None)
        self.network.classifier[-1] = nn.Linear(self.network.classifier[-1].in_features, 1)
        self.transforms = models.get_model_weights(name).DEFAULT.transforms()

    @staticmethod
    def inputs(images: Images) -> Tensor:
        return torch.from_numpy(images.transpose(0, 3, 1, 2).copy())

    def forward(self, images: Tensor) -> Tensor:
        return self.network(normalize(images.float() / 255, self.transforms.mean, self.transforms.std))


class _Perceptron(nn.Module):
    epochs, batch, rate = 30, 256, 2e-3
    mean: Tensor
    scale: Tensor

    def __init__(self, spectra: Tensor, hidden: int = 256) -> None:
        super().__init__()
        self.register_buffer("mean", spectra.mean(dim=0))
        self.register_buffer("scale", spectra.std(dim=0).clamp_min(1e-3))
        widths = (spectra.shape[1], hidden, hidden)
        layers = [layer for i in range(2) for layer in (nn.Linear(widths[i], widths[i + 1]), nn.GELU())]
        self.layers = nn.Sequential(*layers, nn.Linear(hidden, 1))

    @staticmethod
    def inputs(images: Images) -> Tensor:
        return torch.from_numpy(log_spectrum(images))

    def forward(self, inputs: Tensor) -> Tensor:
        return self.layers((inputs - self.mean) / self.scale)


# -- parrots: a recogniser's network trained on with anonymised faces (Revelio, §5.2: ArcFace on blurred images) -------

_SCALE, _MARGIN = 64.0, 0.5  # of ArcFace (Deng et al. 2019, eq. 3)
_FACES, _RATE = 64, 1e-3  # Ours: the paper does not say


def additive_margin_loss(embeddings: Tensor, weight: Tensor, people: Tensor) -> Tensor:
    """Cross-entropy of s·cos(θ + m), others s·cos θ (Deng et al. 2019, eq. 3); [B,D], weight [P,D], people [B]."""
    cosine = F.linear(F.normalize(embeddings), F.normalize(weight)).clamp(-1 + 1e-6, 1 - 1e-6)
    own = F.one_hot(people, len(weight)).bool()
    return F.cross_entropy(_SCALE * torch.where(own, torch.cos(torch.arccos(cosine) + _MARGIN), cosine), people)


def retrained(
    path: Path, training: Faces, others: Faces, *, epochs: int, seed: int, say: Callable[[str], object]
) -> NDArray[np.float32]:
    """Embeddings [N+M,D] of `training`, faces of known people, and of others, by the network trained on with these."""
    device, (network, size, mean, scale) = torch.device(resolve_device("auto")), load_onnx(path)
    module = network.requires_grad_(True).to(device)

    def inputs(faces: Faces) -> Tensor:
        return torch.from_numpy(upright(faces, ARCFACE_POINTS, size[0]).transpose(0, 3, 1, 2).copy())

    def embed(crops: Tensor) -> Tensor:
        return module((crops.to(device).float() - mean) / scale)[0]

    @torch.no_grad()
    def every(crops: Tensor) -> Tensor:
        return torch.cat([embed(some) for some in crops.split(_FACES)])

    torch.manual_seed(seed)
    _, whose = np.unique(one_each_unknown(training.people, len(training)), return_inverse=True)
    crops, people = inputs(training), torch.from_numpy(whose.ravel())
    begun, people = F.normalize(every(crops)), people.to(device)
    # A person's weights begin as the mean of their embeddings.
    head = nn.Parameter(begun.new_zeros(int(people.max()) + 1, begun.shape[1]).index_add(0, people, begun))
    optimiser = torch.optim.AdamW([*module.parameters(), head], _RATE)
    steps = epochs * -(-len(crops) // _FACES)
    minimise(
        module,
        lambda rows: additive_margin_loss(embed(crops[rows]), head, people[rows.to(device)]),
        partial(torch.randperm, len(crops)),
        _FACES,
        torch.optim.lr_scheduler.OneCycleLR(optimiser, _RATE, total_steps=steps),
        epochs,
        tell=lambda done: say(f"the parrot {path.stem}, epoch {done} of {epochs}"),
    )
    return every(torch.cat([crops, inputs(others)])).cpu().numpy()
