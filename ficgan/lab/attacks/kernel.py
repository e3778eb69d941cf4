"""How strong was the blur? A regression of the Gaussian kernel's size from a blurred face."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from ficgan.anonymizers import Images
from ficgan.device import resolve_device
from ficgan.errors import FicganError, InputError, UsageError
from ficgan.lab.attacks.base import Progress
from ficgan.lab.attacks.blurs import blurred, spectrum
from ficgan.models import load_tensors, save_tensors

KIND = "kernel estimator"
VERSION = 1
After = Callable[[Images], Images]

NETWORKS = ("windowed", "cosine", "efficientnet-v2-s", "efficientnet-v2-l")
"""windowed, cosine: a perceptron on a `log_spectrum`, which a blur shifts by its transfer function; seconds on a CPU.
The cosine transform is the sharper where the crop itself was blurred, and misled where a photo was and then cropped.
efficientnet-v2-l: the published one; with weights of ImageNet and 256 px it is the full protocol."""

_SPECTRAL = ("windowed", "cosine")
_ROWS = 256
"""Images of one pass when sizes are read."""
_NOISE_FLOOR = 1e-2
"""Below the power of rounding to bytes, 1/12, so that what lies under it differs little."""


@dataclass(frozen=True)
class KernelEstimator:
    """Odd kernel sizes K of Gaussian blurs in crops of side `side`; made by `train` or `load`."""

    network: str
    module: nn.Module = field(repr=False, compare=False)
    side: int
    kernels: tuple[int, ...]
    rule: str = "opencv"
    trained: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def train(
        cls, images: Images, kernels: Sequence[int], *, validation: Images | None = None, rule: str = "opencv",
        after: After | None = None, network: str = "windowed", weights: str | Path | None = None,
        epochs: int | None = None, batch: int | None = None, rate: float | None = None, seed: int = 0,
        device: str = "auto", progress: Progress | None = None,
    ) -> KernelEstimator:  # fmt: skip
        """Train on clear faces [N,S,S,3] uint8, each blurred with each kernel (Revelio, §4.2 and §5.4).

        Args:
            kernels: odd widths in pixels of these images, at least two.
            validation: faces of other people: the epoch of the smallest error on them is kept; None: the last.
            after: what happens to blurred images before they are seen, such as JPEG (uint8 in and out).
            weights: of an EfficientNet, torchvision's as a safetensors file.
            epochs, batch, rate: of AdamW under a one-cycle rate; None: as the network needs.
        """
        kernels = _checked(images, kernels)
        torch.manual_seed(seed)
        where = torch.device(resolve_device(device))
        usual = (30, 256, 2e-3) if network in _SPECTRAL else (10, 16, 2e-4)
        module = _module(network, images.shape[1], weights)
        examples = _Examples(images, kernels, rule, after, network)
        if isinstance(module, _Perceptron) and examples.kept is not None:
            module.standardise(examples.kept)
        module.to(where)
        made = cls(network, module, images.shape[1], kernels, rule)
        held = None if validation is None else _Examples(validation, kernels, rule, after, network)
        plan = (epochs or usual[0], batch or usual[1], rate or usual[2])
        error = _fit(made, examples, held, *plan, seed, progress)
        story = {"images": len(images), "epochs": plan[0], "seed": seed, "validation_mae": error}
        return cls(network, module.eval(), images.shape[1], kernels, rule, story)

    def regress(self, images: Images) -> NDArray[np.float64]:
        """[N] sizes before rounding, within the range it was trained on."""
        if images.ndim != 4 or images.shape[1:] != (self.side, self.side, 3):
            raise InputError(f"this estimator reads crops [N,{self.side},{self.side},3], not {list(images.shape)}")
        parts = (_inputs(images[start : start + _ROWS], self.network) for start in range(0, len(images), _ROWS))
        return self._sizes(parts)

    def estimate(self, images: Images) -> NDArray[np.int64]:
        """[N] kernel sizes of blurred images [N,S,S,3]: the nearest odd ones of the trained range."""
        return (2 * np.rint((self.regress(images) - 1) / 2) + 1).astype(np.int64)

    def save(self, path: str | Path) -> None:
        header = {
            "version": VERSION, "network": self.network, "side": self.side, "kernels": list(self.kernels),
            "rule": self.rule, "trained": self.trained,
        }  # fmt: skip
        save_tensors(path, self.module.state_dict(), header, kind=KIND)

    @classmethod
    def load(cls, path: str | Path, *, device: str = "auto") -> KernelEstimator:
        """Read what `save` wrote."""
        tensors, header = load_tensors(path, kind=KIND)
        if header.get("version") != VERSION:
            raise FicganError(f"{path} is of version {header.get('version')}, not {VERSION}; train the estimator again")
        module = _module(header["network"], header["side"], None)
        try:
            module.load_state_dict(tensors)
        except RuntimeError:
            raise FicganError(f"{path} does not hold the weights its header tells of; train it again") from None
        module.to(torch.device(resolve_device(device))).eval()
        return cls(
            header["network"], module, header["side"], tuple(header["kernels"]), header["rule"], header["trained"]
        )

    @torch.no_grad()
    def _sizes(self, parts: Iterable[Tensor]) -> NDArray[np.float64]:
        where = next(self.module.parameters()).device
        low, high = self.kernels[0], self.kernels[-1]
        out = [self.module(part.to(where))[:, 0].double().cpu().numpy() for part in parts]
        found = np.concatenate(out) if out else np.zeros(0)
        return np.clip((found + 1) / 2 * (high - low) + low, low, high)


class _Examples:
    def __init__(self, images: Images, kernels: tuple[int, ...], rule: str, after: After | None, network: str) -> None:
        self.images, self.kernels, self.rule, self.after, self.network = images, kernels, rule, after, network
        sizes = np.repeat(np.array(kernels, np.float64), len(images))
        self.sizes = sizes
        self.targets = torch.tensor((sizes - kernels[0]) / (kernels[-1] - kernels[0]) * 2 - 1, dtype=torch.float32)
        self.kept = torch.cat([self._seen(images, k) for k in kernels]) if network in _SPECTRAL else None

    def __len__(self) -> int:
        return len(self.sizes)

    def at(self, rows: Tensor) -> Tensor:
        if self.kept is not None:
            return self.kept[rows]
        which, kernel = rows.numpy() % len(self.images), rows.numpy() // len(self.images)
        parts = [self._seen(self.images[i : i + 1], self.kernels[k]) for i, k in zip(which, kernel, strict=True)]
        return torch.cat(parts)

    def _seen(self, images: Images, kernel: int) -> Tensor:
        soft = blurred(images, kernel, self.rule)
        return _inputs(soft if self.after is None else self.after(soft), self.network)


def _fit(
    made: KernelEstimator, examples: _Examples, held: _Examples | None, epochs: int, batch: int, rate: float,
    seed: int, progress: Progress | None,
) -> float | None:  # fmt: skip
    module = made.module
    where = next(module.parameters()).device
    steps = -(-len(examples) // batch)
    optimiser = torch.optim.AdamW(module.parameters(), rate, weight_decay=1e-2)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, rate, total_steps=epochs * steps)
    order = torch.Generator().manual_seed(seed)
    best: tuple[float, dict[str, Tensor]] | None = None
    for epoch in range(epochs):
        module.train()
        for rows in torch.randperm(len(examples), generator=order).split(batch):
            loss = F.smooth_l1_loss(
                module(examples.at(rows).to(where))[:, 0], examples.targets[rows].to(where), beta=0.05
            )
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            schedule.step()
        if held is not None:
            module.eval()
            parts = (held.at(rows) for rows in torch.arange(len(held)).split(_ROWS))
            error = mean_absolute_error(held.sizes, made._sizes(parts))
            if best is None or error < best[0]:
                best = error, copy.deepcopy(module.state_dict())
        if progress is not None:
            progress(epoch + 1, epochs, "kernel estimator")
    if best is None:
        return None
    module.load_state_dict(best[1])
    return best[0]


def log_spectrum(images: Images, windowed: bool = False) -> NDArray[np.float32]:
    """Log power by radial frequency, [N,B] float32, of images [N,S,S,3]: a blur adds to it twice its log gain.

    The cosine transform continues a crop over its edges as the blur does; `windowed` takes Fourier's under Hann's
    window.
    """
    order, counts = _rings(images.shape[1], windowed)
    out = np.empty((len(images), len(counts)), np.float32)
    for start in range(0, len(images), 64):
        planes = np.moveaxis(images[start : start + 64], 3, 1).astype(np.float32)
        power = np.mean((_fourier if windowed else _cosine)(planes), axis=1)
        logs = np.log(power + np.float32(_NOISE_FLOOR)).reshape(len(planes), -1)[:, order]
        out[start : start + 64] = np.add.reduceat(logs, np.cumsum(counts) - counts, axis=1) / counts
    return out


def _cosine(planes: NDArray[np.float32]) -> NDArray[np.float32]:
    """Power [N,C,S,S] of planes [N,C,S,S]; of white noise its variance, save at the edges."""
    return (spectrum(planes) / np.float32(2 * (planes.shape[-1] - 1))) ** 2


def _fourier(planes: NDArray[np.float32]) -> NDArray[np.float32]:
    side = planes.shape[-1]
    window = np.outer(np.hanning(side + 2)[1:-1], np.hanning(side + 2)[1:-1])
    mean = np.sum(planes * window, axis=(2, 3), keepdims=True) / window.sum()
    return np.abs(np.fft.rfft2((planes - mean) * window)).astype(np.float32) ** 2 / np.float32(np.sum(window**2))


@lru_cache(maxsize=8)
def _rings(side: int, windowed: bool) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    along = np.arange(float(side))
    rows, columns = (np.fft.fftfreq(side, 1 / side), along[: side // 2 + 1]) if windowed else (along, along)
    radius = np.hypot(rows[:, None], columns[None]).astype(np.int64).ravel()
    return np.argsort(radius, kind="stable"), np.bincount(radius)


def _inputs(images: Images, network: str) -> Tensor:
    """What a network takes of uint8 images: [N,B] log spectra, or [N,3,S,S] as ImageNet's are normalised."""
    if network in _SPECTRAL:
        return torch.from_numpy(log_spectrum(images, network == "windowed"))
    pixels = torch.from_numpy(np.ascontiguousarray(np.moveaxis(images, 3, 1))).float() / 255
    mean, deviation = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    return (pixels - mean[:, None, None]) / deviation[:, None, None]


class _Perceptron(nn.Module):
    mean: Tensor
    scale: Tensor

    def __init__(self, width: int, hidden: int = 256) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(width))
        self.register_buffer("scale", torch.ones(width))
        layers = [nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, hidden), nn.GELU(), nn.Linear(hidden, 1)]
        self.layers = nn.Sequential(*layers)

    def standardise(self, inputs: Tensor) -> None:
        self.mean.copy_(inputs.mean(dim=0))
        self.scale.copy_(inputs.std(dim=0).clamp_min(1e-3))

    def forward(self, inputs: Tensor) -> Tensor:
        out: Tensor = self.layers((inputs - self.mean) / self.scale)
        return out


def _module(network: str, side: int, weights: str | Path | None) -> nn.Module:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    if network not in NETWORKS:
        raise UsageError(f"there is no network {network!r} for kernel sizes; there are {', '.join(NETWORKS)}")
    if network in _SPECTRAL:
        if weights is not None:
            raise UsageError(f"the network {network} has no pretrained weights; leave them out")
        return _Perceptron(len(_rings(side, network == "windowed")[1]))
    import torchvision

    module: nn.Module = getattr(torchvision.models, network.replace("-", "_"))(weights=None)
    if weights is not None:
        try:
            module.load_state_dict(load_file(weights))
        except (OSError, SafetensorError, RuntimeError) as error:
            raise InputError(
                f"{weights} does not hold torchvision's weights of this network ({str(error).splitlines()[0]}); "
                "save its state dict as safetensors"
            ) from None
    module.classifier = nn.Sequential(nn.Dropout(0.2), nn.Linear(1280, 1))
    return module


def _checked(images: Images, kernels: Sequence[int]) -> tuple[int, ...]:
    if images.ndim != 4 or images.shape[1] != images.shape[2] or images.shape[3] != 3 or not len(images):
        raise InputError(f"faces to learn from must be [N,S,S,3] with N at least 1, not {list(images.shape)}")
    found = tuple(sorted({int(kernel) for kernel in kernels}))
    if len(found) < 2 or found[0] < 1 or any(kernel % 2 == 0 for kernel in found):
        raise InputError("kernels must be at least two different odd widths from 1; give such as 1, 3, … 81")
    return found


def mean_absolute_error(true: NDArray[Any], estimated: NDArray[Any]) -> float:
    """MAE of kernel sizes, pixels; of `estimate` as the paper reports it (§5.4), of `regress` without rounding."""
    return float(np.mean(np.abs(np.asarray(true, np.float64) - np.asarray(estimated, np.float64))))


def confusion(true: NDArray[np.integer], estimated: NDArray[np.integer], kernels: Sequence[int]) -> NDArray[np.int64]:
    """How often each size was taken for each: [K,K] counts, rows true, columns estimated (Revelio, Figure 13)."""
    order = np.sort(np.asarray(kernels))
    if not (np.isin(true, order).all() and np.isin(estimated, order).all()):
        raise InputError("a kernel size is not among those the confusion is counted for; give all kernels")
    counts = np.zeros((len(order), len(order)), np.int64)
    np.add.at(counts, (np.searchsorted(order, true), np.searchsorted(order, estimated)), 1)
    return counts
