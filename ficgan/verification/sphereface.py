"""SphereFace-20: the network, its angular-margin loss, its training from images with identities, its file."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from ficgan.data import FaceData, Labels, ResumableSampler
from ficgan.errors import FicganError, InputError, UsageError
from ficgan.faces.crops import ARCFACE_POINTS, Alignment
from ficgan.models import load_tensors, save_tensors
from ficgan.verification import AlignedInput, Verifier, load_onnx

Sizes = tuple[int, ...]
MARGIN = 4
SCHEMA = 1
_KIND, _STATE_KIND = "verifier", "verifier training state"

# Where SphereFace's 112×96 (height × width) crops hold the five landmarks, pixels (x, y).
SPHEREFACE_POINTS: NDArray[np.float64] = np.array(
    [[30.2946, 51.6963], [65.5318, 51.5014], [48.0252, 71.7366], [33.5493, 92.3655], [62.7299, 92.2041]]
)
SPHEREFACE_POINTS.setflags(write=False)
SPHEREFACE_SIZE = (112, 96)
_MEAN, _SCALE = 127.5, 128.0


class ResidualUnit(nn.Module):
    """Two 3×3 convolutions with PReLU around an identity: [N,C,H,W] → [N,C,H,W]."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels, channels, 3, padding=1),
            nn.PReLU(channels),
            nn.Conv2d(channels, channels, 3, padding=1),
            nn.PReLU(channels),
        )

    def forward(self, x: Tensor) -> Tensor:
        return x + self.body(x)


class SphereFace20(nn.Module):
    """Face embedding network of 20 convolutions in four stages (SphereFace, Table 2)."""

    def __init__(
        self, channels: Sizes = (64, 128, 256, 512), units: Sizes = (1, 2, 4, 1), dimensions: int = 512
    ) -> None:
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
        # As published: Gaussian .01 inside the residual units (they start near the identity), Xavier elsewhere.
        for name, module in self.named_modules():
            if isinstance(module, nn.Conv2d | nn.Linear):
                if ".body." in name:
                    nn.init.normal_(module.weight, std=0.01)
                else:
                    nn.init.xavier_uniform_(module.weight)
                nn.init.zeros_(module.bias)  # type: ignore[arg-type]

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
        embeddings, weight: [B, D], not normalised; [P, D], one row per person, normalised here.
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


def save_sphereface(path: Path, network: SphereFace20, training: Mapping[str, Any]) -> None:
    """Write a network and how it was made (data, people, steps, accuracy, as JSON values), whole or not at all."""
    shape = {"channels": network.channels, "units": network.units, "dimensions": network.dimensions}
    header = {"schema": SCHEMA, "network": shape, "training": dict(training)}
    path.parent.mkdir(parents=True, exist_ok=True)
    save_tensors(path, network.state_dict(), header, kind=_KIND)


def load_sphereface(path: Path) -> SphereFace20:
    state, header = load_tensors(path, kind=_KIND)
    if header.get("schema") != SCHEMA:
        raise FicganError(f"{path} has schema {header.get('schema')}, this version reads {SCHEMA}; upgrade ficgan")
    try:
        shape = header["network"]
        network = SphereFace20(tuple(shape["channels"]), tuple(shape["units"]), int(shape["dimensions"]))
        network.load_state_dict(state)
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise FicganError(f"{path} is damaged: its weights do not fit its header; train it again") from error
    if not all(torch.isfinite(value).all() for value in state.values()):
        raise FicganError(f"{path} holds weights that are not finite; train it again")
    return network.eval()


@dataclass(frozen=True)
class VerifierTraining:
    """Numbers of a training run, the paper's where it gives them; `base`, `gamma`, `least` are of λ."""

    steps: int = 28_000
    batch: int = 128
    learning_rate: float = 0.1
    momentum: float = 0.9
    weight_decay: float = 5e-4
    clip: float = 5.0
    base: float = 1000.0
    gamma: float = 0.12
    least: float = 5.0
    held_out: float = 0.1
    seed: int = 0
    channels: Sizes = (64, 128, 256, 512)
    units: Sizes = (1, 2, 4, 1)
    dimensions: int = 512

    def __post_init__(self) -> None:
        if min(self.steps, self.batch) < 1 or not self.learning_rate > 0 or not 0 < self.held_out < 1 or self.seed < 0:
            raise UsageError("Steps, batch and learning rate must be above 0, the held-out fraction between 0 and 1.")

    def rate(self, step: int) -> float:
        return self.learning_rate * 0.1 ** ((7 * step >= 4 * self.steps) + (7 * step >= 6 * self.steps))


@dataclass(frozen=True)
class Accuracy:
    """How well pairs of held-out people are separated, at the best threshold of the cosine."""

    accuracy: float
    auc: float


class VerifierTrainer:
    """SphereFace-20 with its angular-margin head on one set; resumes from its state exactly."""

    def __init__(self, data: FaceData, *, alignment: Alignment, config: VerifierTraining, device: str = "cpu") -> None:
        self.data, self.config, self.device = data, config, torch.device(device)
        labels = data.labels if data.labels is not None else Labels.from_folders(data.names)
        if labels.people is None:
            raise InputError("The labels name no people; add a person or identity column.")
        self.train_rows, self.test_rows, self.train_people, self.test_people = _split(labels.people, config)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(config.seed)
            self.network = SphereFace20(config.channels, config.units, config.dimensions).to(self.device)
            head = nn.init.xavier_uniform_(torch.empty(int(self.train_people.max()) + 1, config.dimensions))
        self.head = nn.Parameter(head.to(self.device))  # the class weights W [P, D]
        self.aligned = AlignedInput(alignment, data.resolution, SPHEREFACE_POINTS, SPHEREFACE_SIZE).to(self.device)
        self.parameters = {f"network.{name}": value for name, value in self.network.named_parameters()}
        self.parameters["head.weight"] = self.head
        self.optimizer = torch.optim.SGD(
            self.parameters.values(), config.learning_rate, momentum=config.momentum, weight_decay=config.weight_decay
        )
        # SGD would make these at its first step; made here, a state is whole at any step.
        for parameter in self.parameters.values():
            self.optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
        self.sampler = ResumableSampler(len(self.train_rows), config.batch, config.seed)
        self.alignment = alignment
        self.step = 0

    @cached_property
    def images(self) -> Tensor:
        """All of the set, uint8 [N,3,R,R], decoded when first asked for."""
        return self.data.resident()

    def advance(self) -> float:
        """One step of training; returns its loss."""
        config = self.config
        chosen = self.sampler.batch(self.step)
        x = self._input(self.train_rows[chosen])
        # The mirror of each image follows from seed and step alone, so that a resumed run repeats it.
        seed = hashlib.sha256(f"{config.seed}/{self.step}".encode()).digest()[:8]
        flips = torch.Generator().manual_seed(int.from_bytes(seed, "big") >> 1)
        mirrored = torch.rand(len(x), generator=flips).to(self.device) < 0.5
        x = torch.where(mirrored[:, None, None, None], x.flip(3), x)
        for group in self.optimizer.param_groups:
            group["lr"] = config.rate(self.step)
        embeddings, people = self.network.train()(x)[0], self.train_people[chosen].to(self.device)
        balance = max(config.least, config.base * (1 + config.gamma * self.step) ** -1)
        loss = angular_margin_loss(embeddings, self.head, people, weight_of_softmax=balance)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        value = float(loss.detach())
        if not math.isfinite(value):
            raise FicganError(f"The loss is {value} at step {self.step}; start again with a lower learning rate.")
        # Embeddings are not normalised, so a step into longer ones can feed itself: bounded.
        torch.nn.utils.clip_grad_norm_(self.parameters.values(), config.clip)
        self.optimizer.step()
        self.step += 1
        return value

    @torch.no_grad()
    def measure(self) -> Accuracy:
        """Same/different decisions on 3,000 pairs of held-out people."""
        self.network.eval()
        embeddings = torch.cat([self.network(self._input(rows))[0].cpu() for rows in self.test_rows.split(256)])
        return verification_accuracy(embeddings, self.test_people, pairs=3000, seed=self.config.seed)

    def _input(self, rows: Tensor) -> Tensor:
        x = self.images[rows].to(self.device).float() / 127.5 - 1
        return (self.aligned(x) - _MEAN) / _SCALE

    def record(self) -> dict[str, Any]:
        """What a run must share with another to be its continuation."""
        config = json.loads(json.dumps(asdict(self.config)))  # as a file has it
        return {"config": config, "data": self.data.fingerprint, "alignment": self.alignment.to_dict()}

    def save_state(self, path: Path) -> None:
        """Weights, momenta and step as safetensors with a JSON header, whole or not at all."""
        path.parent.mkdir(parents=True, exist_ok=True)
        save_tensors(path, self._tensors(), {"schema": SCHEMA, "step": self.step, **self.record()}, kind=_STATE_KIND)

    def load_state(self, path: Path) -> None:
        """Continue a run; a FicganError where the file is damaged, or of a run with other data or numbers."""
        tensors, header = load_tensors(path, kind=_STATE_KIND)
        ours = {"schema": SCHEMA, **self.record()}
        wrong = [key for key, value in ours.items() if header.get(key) != value]
        if wrong:
            raise InputError(f"{path} is of a run with another {wrong[0]}; use the same, or another output folder.")
        with torch.no_grad():
            for name, value in self._tensors().items():
                value.copy_(tensors[name])
        self.step = int(header["step"])

    def _tensors(self) -> dict[str, Tensor]:
        momenta = {name: self.optimizer.state[value]["momentum_buffer"] for name, value in self.parameters.items()}
        return {**self.parameters, **{f"momentum.{name}": value for name, value in momenta.items()}}

    def save_verifier(self, path: Path, accuracy: Accuracy) -> None:
        """Write the network for `load_verifier("sphereface20:PATH")`, with how it was made and what it reached."""
        people = int(self.train_people.max()) + 1
        reached = {"step": self.step, "people": people, "held_out": asdict(accuracy)}
        save_sphereface(path, self.network, {**self.record(), **reached})


def verification_accuracy(embeddings: Tensor, people: NDArray[np.int64], *, pairs: int, seed: int) -> Accuracy:
    """Separate pairs of one person from pairs of two by the cosine of embeddings [N, D]."""
    from sklearn.metrics import roc_auc_score, roc_curve

    unit = F.normalize(embeddings.double()).numpy()
    rng = np.random.default_rng(seed)
    order = np.argsort(people, kind="stable")
    groups = np.split(order, np.flatnonzero(np.diff(people[order])) + 1)
    couples = [np.stack([group[i] for i in np.triu_indices(len(group), 1)], 1) for group in groups if len(group) > 1]
    same = np.concatenate(couples)
    same = same[rng.permutation(len(same))[:pairs]]
    different = np.empty((0, 2), np.int64)
    while len(different) < len(same):
        draw = rng.integers(0, len(people), (2 * len(same) + 16, 2))
        different = np.concatenate([different, draw[people[draw[:, 0]] != people[draw[:, 1]]]])[: len(same)]
    scores = np.concatenate([(unit[p[:, 0]] * unit[p[:, 1]]).sum(1) for p in (same, different)])
    truth = np.arange(len(scores)) < len(same)
    false, right, _ = roc_curve(truth, scores, drop_intermediate=False)
    return Accuracy(accuracy=float((right + 1 - false).max() / 2), auc=float(roc_auc_score(truth, scores)))


def _split(people: NDArray[np.int64], config: VerifierTraining) -> tuple[Tensor, Tensor, Tensor, NDArray[np.int64]]:
    known = np.unique(people[people >= 0])
    shuffled = known[np.random.default_rng(config.seed).permutation(len(known))]
    count = max(2, round(config.held_out * len(known)))
    held_out, kept = shuffled[:count], np.sort(shuffled[count:])
    train, test = np.flatnonzero(np.isin(people, kept)), np.flatnonzero(np.isin(people, held_out))
    if len(kept) < 2:
        raise InputError(f"{len(known)} people are too few: at least 2 to train on and 2 to measure on are needed.")
    if len(np.unique(people[test])) == len(test):
        raise InputError("No held-out person has two images; give more images per person, or hold out more people.")
    numbered = torch.from_numpy(np.searchsorted(kept, people[train]))
    return torch.from_numpy(train), torch.from_numpy(test), numbered, people[test]


def load_verifier(spec: str, *, alignment: Alignment, resolution: int, device: str = "cpu") -> Verifier:
    """Load a verification network: "sphereface20:PATH", or "onnx:PATH" (ArcFace's template, 112×112)."""
    kind, _, file = spec.partition(":")
    if kind not in ("sphereface20", "onnx") or not file:
        raise UsageError(f"Verifier {spec!r} is not known; write sphereface20:PATH or onnx:PATH.")
    path = Path(file)
    if not path.is_file():
        raise InputError(f"Verifier file {path} does not exist; give the path of a recogniser.")
    if kind == "onnx":
        network, size, mean, scale = load_onnx(path)
        # Recognisers of another input size were trained on the same template, scaled.
        points = (ARCFACE_POINTS + 0.5) * (size[0] / 112) - 0.5
    else:
        network = load_sphereface(path)
        size, points, mean, scale = SPHEREFACE_SIZE, SPHEREFACE_POINTS, _MEAN, _SCALE
    aligned = AlignedInput(alignment, resolution, points, size)
    verifier = Verifier(network, aligned, mean=mean, scale=scale, name=f"{kind}:{path.name}")
    return verifier.to(device).to(memory_format=torch.channels_last)
