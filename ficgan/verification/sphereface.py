"""SphereFace-20: the twenty-layer residual network, its angular-margin loss, and its weights on disk."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from torch.nn import functional as F

from ficgan.errors import InputError
from ficgan.models.io import write_safetensors

MARGIN = 4
SCHEMA = 1
_KIND = "ficgan.verification.sphereface20"

# Where SphereFace's 112×96 (height × width) crops hold the five landmarks, pixels (x, y).
SPHEREFACE_POINTS: NDArray[np.float64] = np.array(
    [[30.2946, 51.6963], [65.5318, 51.5014], [48.0252, 71.7366], [33.5493, 92.3655], [62.7299, 92.2041]]
)
SPHEREFACE_POINTS.setflags(write=False)
SPHEREFACE_SIZE = (112, 96)


class ResidualUnit(nn.Module):
    """Two 3×3 convolutions with PReLU around an identity: [N,C,H,W] → [N,C,H,W]."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels, channels, 3, padding=1), nn.PReLU(channels),
            nn.Conv2d(channels, channels, 3, padding=1), nn.PReLU(channels),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        return x + self.body(x)


class SphereFace20(nn.Module):
    """Face embedding network of 20 convolutions in four stages (SphereFace, Table 2)."""

    def __init__(
        self, channels: tuple[int, ...] = (64, 128, 256, 512), units: tuple[int, ...] = (1, 2, 4, 1),
        dimensions: int = 512,
    ) -> None:  # fmt: skip
        super().__init__()
        self.channels, self.units, self.dimensions = tuple(channels), tuple(units), dimensions
        stages, width = [], 3
        for wide, count in zip(channels, units, strict=True):
            head = [nn.Conv2d(width, wide, 3, stride=2, padding=1), nn.PReLU(wide)]
            stages.append(nn.Sequential(*head, *(ResidualUnit(wide) for _ in range(count))))
            width = wide
        self.stages = nn.ModuleList(stages)
        height, breadth = (-(-side // 2 ** len(stages)) for side in SPHEREFACE_SIZE)
        self.embed = nn.Linear(width * height * breadth, dimensions)
        self._initialise()

    def _initialise(self) -> None:
        # As published: Gaussian .01 inside the residual units (they start near the identity), Xavier elsewhere.
        for name, module in self.named_modules():
            if isinstance(module, nn.Conv2d | nn.Linear):
                if ".body." in name:
                    nn.init.normal_(module.weight, std=0.01)
                else:
                    nn.init.xavier_uniform_(module.weight)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)

    def forward(self, x: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Embeddings [B, D] of x [B, 3, 112, 96], (grey level − 127.5) / 128, and maps of three stages."""
        maps = []
        for stage in self.stages:
            x = stage(x)
            maps.append(x)
        return self.embed(x.flatten(1)), maps[:3]


def angular_margin_loss(embeddings: Tensor, weight: Tensor, people: Tensor, *, weight_of_softmax: float) -> Tensor:
    """A-Softmax: the own class is reached only at a quarter of the angle (SphereFace, eqs. 6–7, m = 4).

    L = mean −log softmax(f)_y with f_j = ‖x‖ cos θ_j for the other classes and, for the own class, f_y = ‖x‖ (λ cos θ_y
    + ψ(θ_y)) / (1 + λ), ψ(θ) = (−1)^k cos(4θ) − 2k for θ in [kπ/4, (k+1)π/4].

    Args:
        embeddings: [B, D], not normalised.
        weight: [P, D], one row per person, normalised here.
        people: int64 [B], 0..P−1.
        weight_of_softmax: λ ≥ 0; annealed from large (plain softmax) to small (the full margin).
    """
    norm = embeddings.norm(dim=1, keepdim=True)
    cosine = F.linear(embeddings / norm.clamp_min(1e-12), F.normalize(weight)).clamp(-1, 1)
    own = cosine.gather(1, people[:, None])
    psi = margin(own)
    target = (weight_of_softmax * own + psi) / (1 + weight_of_softmax)
    return F.cross_entropy(norm * cosine.scatter(1, people[:, None], target), people)


def margin(cosine: Tensor) -> Tensor:
    """ψ(θ) from cos θ, for m = 4, falling from 1 to −7; by the Chebyshev polynomial of cos 4θ."""
    # k = number of quarter turns passed; constant between its jumps, where ψ itself is continuous.
    turn = torch.arccos(cosine.detach().clamp(-1, 1)) * (MARGIN / math.pi)
    k = turn.floor().clamp(0, MARGIN - 1)
    sign = 1 - 2 * (k % 2)
    square = cosine.square()
    return sign * (8 * square * (square - 1) + 1) - 2 * k


def annealed(step: int, *, base: float = 1000.0, gamma: float = 0.12, power: float = 1.0, least: float = 5.0) -> float:
    """λ at a step: max(least, base · (1 + gamma · step)^−power), as SphereFace was trained."""
    return max(least, base * (1 + gamma * step) ** -power)


class AngularMarginHead(nn.Module):
    """The class weights W [P, D] of the angular-margin softmax: P people, embeddings of D numbers."""

    def __init__(self, dimensions: int, people: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(nn.init.xavier_uniform_(torch.empty(people, dimensions)))

    def forward(self, embeddings: Tensor, people: Tensor, weight_of_softmax: float) -> Tensor:
        return angular_margin_loss(embeddings, self.weight, people, weight_of_softmax=weight_of_softmax)


def save_sphereface(path: Path, network: SphereFace20, training: Mapping[str, Any]) -> None:
    """Write a network and how it was made (data, people, steps, accuracy, as JSON values), whole or not at all."""
    shape = {"channels": network.channels, "units": network.units, "dimensions": network.dimensions}
    header = {"kind": _KIND, "schema": SCHEMA, "network": shape, "training": dict(training)}
    save_whole(path, network.state_dict(), header)


def save_whole(path: Path, tensors: Mapping[str, Tensor], header: Mapping[str, Any]) -> None:
    """Write tensors and a JSON header as safetensors, whole or not at all; replaces `path`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_safetensors(path, tensors, {"ficgan": json.dumps(header)})


def load_whole(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors and header of a file of `save_whole`; errors are the library's."""
    with safe_open(str(path), framework="pt") as file:
        header = json.loads((file.metadata() or {}).get("ficgan", "{}"))
        return {name: file.get_tensor(name) for name in file.keys()}, header  # noqa: SIM118 (not a dict)


def load_sphereface(path: Path) -> tuple[SphereFace20, dict[str, Any]]:
    """A network and its header; InputError where the file is missing, damaged, foreign, or of a newer schema."""
    try:
        state, header = load_whole(path)
    except (OSError, SafetensorError, ValueError) as error:
        raise InputError(f"{path} is not a readable safetensors file ({error}); copy or train it again.") from error
    if header.get("kind") != _KIND:
        raise InputError(f"{path} holds no SphereFace-20; give a file made by `ficgan train-verifier`.")
    if header.get("schema") != SCHEMA:
        raise InputError(f"{path} has schema {header.get('schema')}, this version reads {SCHEMA}; update ficgan.")
    try:
        shape = header["network"]
        network = SphereFace20(tuple(shape["channels"]), tuple(shape["units"]), int(shape["dimensions"]))
        network.load_state_dict(state)
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"{path} is damaged: its weights do not fit its header; train it again.") from error
    if not all(torch.isfinite(value).all() for value in state.values()):
        raise InputError(f"{path} holds weights that are not finite; train it again.")
    return network.eval(), header
