"""The network that reads attributes from a small face, and its training."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

__all__ = ["MARGIN", "SIZE", "AttributeNetwork", "fit", "probabilities"]

SIZE = 64
"""Side of the network's input."""
MARGIN = 4
"""Pixels that a training image has around it, so that it can be shifted."""

_BATCH = 64
_RATE, _DECAY, _WARM = 2e-3, 1e-2, 50
_JITTER = 0.1  # of contrast, and of each channel's brightness, in units of the range −1..1

Progress = Callable[[int, int], None]


class AttributeNetwork(nn.Module):
    """Residual network: [B,3,64,64] in [−1, 1] → one logit for each attribute.

    Args:
        attributes: how many.
        width: channels of the first layer.
    """

    def __init__(self, attributes: int, width: int = 24) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, 2, 1, bias=False)
        self.norm = nn.BatchNorm2d(width)
        self.blocks = nn.Sequential(*(_Block(width << level) for level in range(3)))
        self.drop = nn.Dropout(0.3)
        # Positions are kept: a hat is above and a necktie below.
        self.head = nn.Linear((width << 3) * (SIZE // 16) ** 2, attributes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.blocks(F.relu(self.norm(self.stem(x))))
        logits: Tensor = self.head(self.drop(x.flatten(1)))
        return logits


class _Block(nn.Module):
    """Half the side, twice the channels."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        wide = 2 * channels
        self.first, self.first_norm = nn.Conv2d(channels, wide, 3, 2, 1, bias=False), nn.BatchNorm2d(wide)
        self.second, self.second_norm = nn.Conv2d(wide, wide, 3, 1, 1, bias=False), nn.BatchNorm2d(wide)
        self.skip = nn.Conv2d(channels, wide, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        inner = F.relu(self.first_norm(self.first(x)))
        return F.relu(self.second_norm(self.second(inner)) + self.skip(F.avg_pool2d(x, 2)))


def probabilities(network: AttributeNetwork, images: NDArray[np.uint8]) -> NDArray[np.float32]:
    """[N,A] of images [N,64,64,3] uint8 RGB."""
    out = [np.zeros((0, network.head.out_features), np.float32)]
    device = network.head.weight.device
    network.eval()
    with torch.inference_mode():
        for begin in range(0, len(images), _BATCH):
            batch = torch.from_numpy(images[begin : begin + _BATCH]).to(device).permute(0, 3, 1, 2).float() / 127.5 - 1
            out.append(network(batch.contiguous(memory_format=torch.channels_last)).sigmoid().cpu().numpy())
    return np.concatenate(out)


def fit(
    network: AttributeNetwork,
    images: NDArray[np.uint8],
    labels: NDArray[np.uint8],
    held: tuple[NDArray[np.uint8], NDArray[np.uint8]],
    *,
    epochs: int,
    seed: int,
    progress: Progress | None = None,
) -> tuple[int, float]:
    """Train with binary cross-entropy on shifted, mirrored, recoloured images; keep the epoch that was best on others.

    Args:
        network: trained in place, on the device where it is.
        images: [N,72,72,3] uint8 RGB: SIZE with MARGIN all around.
        labels: [N,A], 0 or 1.
        held: images [M,64,64,3] and labels [M,A] of other people, by whose cross-entropy the epoch is chosen.
        epochs: passes over the images.
        seed: of order, shifts and dropout.
        progress: called as progress(done, total) with steps.

    Returns:
        The epoch that was kept, counted from 1, and its cross-entropy.
    """
    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    network.to(memory_format=torch.channels_last)
    device = network.head.weight.device
    optimiser = torch.optim.AdamW(network.parameters(), _RATE, weight_decay=_DECAY)
    steps = math.ceil(len(images) / _BATCH)
    best, chosen, state = math.inf, 0, copy.deepcopy(network.state_dict())
    for epoch in range(epochs):
        network.train()
        for step, rows in enumerate(np.array_split(rng.permutation(len(images)), steps)):
            done = epoch * steps + step
            rate = min(1.0, (done + 1) / _WARM) * (1 + math.cos(math.pi * done / (epochs * steps))) / 2
            for group in optimiser.param_groups:
                group["lr"] = _RATE * rate
            batch = _varied(images[rows], rng).to(device, memory_format=torch.channels_last)
            wanted = torch.from_numpy(labels[rows]).float().to(device)
            loss = F.binary_cross_entropy_with_logits(network(batch), wanted)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            if progress:
                progress(done + 1, epochs * steps)
        read = probabilities(network, held[0]).astype(np.float64).clip(1e-7, 1 - 1e-7)
        error = float(-np.where(held[1] > 0, np.log(read), np.log(1 - read)).mean())
        if error < best:
            best, chosen, state = error, epoch + 1, copy.deepcopy(network.state_dict())
    network.load_state_dict(state)
    network.eval()
    return chosen, best


def _varied(images: NDArray[np.uint8], rng: np.random.Generator) -> Tensor:
    """[B,72,72,3] uint8 → [B,3,64,64] in about [−1, 1]."""
    out = np.empty((len(images), SIZE, SIZE, 3), np.uint8)
    for index, image in enumerate(images):
        top, left = rng.integers(0, 2 * MARGIN + 1, 2)
        square = image[top : top + SIZE, left : left + SIZE]
        out[index] = square[:, ::-1] if rng.random() < 0.5 else square
    contrast = 1 + rng.uniform(-_JITTER, _JITTER, (len(images), 1, 1, 1))
    brightness = rng.uniform(-_JITTER, _JITTER, (len(images), 3, 1, 1))
    x = torch.from_numpy(out).permute(0, 3, 1, 2).float() / 127.5 - 1
    return x * torch.from_numpy(contrast).float() + torch.from_numpy(brightness).float()
