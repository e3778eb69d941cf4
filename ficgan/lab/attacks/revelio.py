"""Revelio (Zhai et al.): a conditional diffusion that restores blurred faces, and names by several guesses."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.spatial.distance import cdist
from torch import Tensor, nn

from ficgan.anonymizers import Faces
from ficgan.device import PRECISIONS, resolve_precision
from ficgan.errors import FicganError
from ficgan.lab.attacks.base import FROM_PAIRS, REVERSERS, ReverserTraits, resized, to_tensor
from ficgan.lab.attacks.diffusion import PRESETS, SCHEDULES, DiffusionLearner, Sampler, UNet, sample
from ficgan.lab.attacks.learned import Learned
from ficgan.registry import param

Which = Literal["attention", "all"]


@REVERSERS.add
@dataclass(frozen=True)
class Revelio(Learned):
    """A U-Net learns to denoise a guess at the face, the anonymised one beside it (Revelio, §4.2; SR3; Palette).

    The paper's attacker is
    `preset=sr3,schedule=sr3,predicts=noise,sampler=ancestral-beta,samples=2000,lr=5e-5,size=256`.
    """

    name = "revelio"
    traits = ReverserTraits("Conditional diffusion (Revelio)", "Revelio, §4.2", FROM_PAIRS, several=True)

    # The paper wants the training set remembered: nobody is held out, and the last weights are kept.
    held: float = param(0.0, "share of the people held out to watch the training on", low=0, high=0.5)
    patience: int = param(0, "epochs without a better loss on the people held out before it ends; 0: never", low=0)
    batch: int = param(16, "pairs in a step", low=1)
    lr: float = param(5e-4, "learning rate; Palette: 5e-5", low=0)

    preset: str = param("small", "the U-Net", choices=("sr3", "palette", "small", "patched", "tiny"))
    schedule: str = param("small", "noise of the training", choices=("sr3", "small"))
    test_schedule: str = param("same", "noise at use", choices=("same", "palette-test"))
    predicts: str = param("clear", "what the network answers; the paper: noise", choices=("noise", "clear"))
    flip: bool = param(False, "pairs are mirrored half of the time; only where the method treats both sides alike")
    sampler: str = param("ddim", "way from noise to a face; the paper: the other", choices=("ddim", "ancestral-beta"))
    samples: int = param(20, "steps of that way, at most those of the schedule; the paper: all", low=1)
    precision: str = param("auto", "floating type of the network; auto: what it was trained in", choices=PRECISIONS)

    @property
    def way(self) -> Sampler:
        """From noise to a face."""
        schedule = SCHEDULES[self.schedule if self.test_schedule == "same" else self.test_schedule]
        return Sampler(schedule, self.sampler, self.samples, self.predicts)

    def network(self) -> nn.Module:
        return UNet(PRESETS[self.preset], self.size)

    def learner(self, network: nn.Module, device: torch.device) -> DiffusionLearner:
        dtype = self._dtype(device)
        return DiffusionLearner(network, self.lr, SCHEDULES[self.schedule], self.predicts, flip=self.flip, dtype=dtype)

    def in_use(self, network: nn.Module) -> nn.Module:
        weights = next(network.parameters())
        dtype = self._dtype(weights.device)
        return network if dtype == weights.dtype else copy.deepcopy(network).to(dtype)

    def _dtype(self, device: torch.device) -> torch.dtype:
        name = self.precision if self.precision != "auto" else self.record.get("precision", "auto")
        return resolve_precision(name, device.type)

    def pass_size(self, device: torch.device) -> int:
        return min(256, max(16, 2**20 // self.size**2)) if device.type == "cuda" else 16

    def restore(self, network: nn.Module, seen: Tensor, seeds: list[int]) -> Tensor:
        return sample(network, seen * 2 - 1, self.way, seeds).add(1).div_(2)


def fine_tune(
    attacker: Revelio,
    anonymised: Faces,
    clear: Faces,
    *,
    steps: int,
    lr: float,
    which: Which = "attention",
    seed: int = 0,
) -> Revelio:
    """The attacker trained on further; the given one is unchanged (Revelio, §4.4 and §6).

    `which` "attention" freezes all but the attention blocks (§4.4), "all" nothing (the adaptive attack, §6).
    """
    network: Any = copy.deepcopy(attacker.trained_network()).requires_grad_(which == "all")
    for module in network.attention():
        module.requires_grad_(True)
    device = next(network.parameters()).device
    learner = replace(attacker, lr=lr).learner(network, device)
    pictures = [resized(faces.images, attacker.size) for faces in (anonymised, clear)]
    batch = min(attacker.batch, len(clear))
    rng, epochs = np.random.default_rng(seed), -(-steps * batch // len(clear))
    order = np.concatenate([rng.permutation(len(clear)) for _ in range(epochs)])[: steps * batch]
    losses = []
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        for step, rows in enumerate(order.reshape(steps, batch)):
            seen, wanted = (to_tensor(images[rows], device) for images in pictures)
            losses.append(learner.step(seen, wanted, step * batch)["loss"])
    if not bool(torch.stack(losses).isfinite().all()):
        raise FicganError(f"fine-tuning of {attacker.name} ran into a loss that is not finite; lower lr")
    tuned: dict[str, Any] = {"which": which, "steps": steps, "lr": lr, "pairs": len(clear), "seed": seed}
    record = {**attacker.record, "fine_tuned": [*attacker.record.get("fine_tuned", []), tuned]}
    return attacker.with_network(learner.result, record)


# -- who is it? --------------------------------------------------------------------------------------------------------

Float = NDArray[np.floating]
_BLOCK = 1 << 24  # Distances that are in memory at once


@dataclass(frozen=True)
class Retrieved:
    """What `retrieve` found; −1 and infinite where no candidate was read."""

    winners: NDArray[np.int64]  # [N,n] int64, person of the gallery image nearest to each candidate
    distances: NDArray[np.float64]  # [N,n] float64, to that image

    @property
    def lowest(self) -> NDArray[np.float64]:
        """[N], smallest distance of any candidate to any gallery image; ld_x in Revelio, §4.3."""
        return self.distances.min(axis=1)

    @property
    def found(self) -> NDArray[np.int64]:
        """[N], the most frequent winner; of several, the one at the smallest distance; of those, the lower number."""
        counts = (self.winners[:, :, None] == self.winners[:, None, :]).sum(axis=2) * (self.winners >= 0)
        most = counts.max(axis=1, keepdims=True)
        first = np.lexsort((self.winners, np.where(counts == most, self.distances, np.inf)), axis=1)[:, 0]
        return np.where(most[:, 0] > 0, self.winners[np.arange(len(self.winners)), first], -1)


def retrieve(candidates: Float, gallery: Float, people: NDArray[np.integer], metric: str = "euclidean") -> Retrieved:
    """The person behind each probe, by the vote of its candidates (Revelio, §4.3), "euclidean" or by 1 − "cosine".

    Of [N,n,D] or [N,D] embeddings of guesses; rows of NaN have no vote. The gallery's are [M,D], of people [M] ≥ 0.
    """
    candidates = candidates[:, None] if candidates.ndim == 2 else candidates
    whose = np.asarray(people, np.int64)
    read: NDArray[np.bool_] = np.all(np.isfinite(candidates), axis=2)
    rows = np.where(read[..., None], candidates, 0).astype(np.float64)
    if metric == "cosine":  # half the squared distance of unit vectors
        rows, gallery = (x / np.linalg.norm(x, axis=-1, keepdims=True).clip(1e-30) for x in (rows, gallery))
    winners, distances = np.empty(read.shape, np.int64), np.empty(read.shape)
    step = max(1, _BLOCK // (read.shape[1] * len(gallery)))
    for start in range(0, len(rows), step):
        part = slice(start, start + step)
        flat = rows[part].reshape(-1, rows.shape[2])
        table = cdist(flat, gallery) if metric == "euclidean" else cdist(flat, gallery, "sqeuclidean") / 2
        table = table.reshape(-1, read.shape[1], len(gallery))
        winners[part], distances[part] = whose[table.argmin(axis=2)], table.min(axis=2)
    return Retrieved(np.where(read, winners, -1), np.where(read, distances, np.inf))


# -- strangers ("out of distribution") ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class OodCurve:
    """How well the lowest distance separates unknown people ("OOD", positive) from known ones."""

    thresholds: NDArray[np.float64]  # [T] float64 rising; a probe is flagged where ld_x > d
    # tpr, fpr: [T]
    tpr: NDArray[np.float64]
    fpr: NDArray[np.float64]
    auc: float  # Chance that an unknown person's ld_x is the larger of two, ties count half


def ood_curve(known: Float, unknown: Float) -> OodCurve:
    """The detector at every threshold, from ld_x of known [A] and unknown [B] probes (Revelio, §4.3, §5.5)."""
    known, unknown = (np.sort(np.asarray(some, np.float64)) for some in (known, unknown))
    at = np.concatenate([[-np.inf], np.unique(np.concatenate([known, unknown]))])
    tpr, fpr = (1 - np.searchsorted(some, at, side="right") / len(some) for some in (unknown, known))
    below, upto = (np.searchsorted(known, unknown, side=side) for side in ("left", "right"))
    return OodCurve(at, tpr, fpr, float(np.mean((below + upto) / 2) / len(known)))


def choose_threshold(known: Float, unknown: Float) -> float:
    """The threshold d of the best TPR − FPR, halfway to the next distance; choose it on other people."""
    curve = ood_curve(known, unknown)
    best = int(np.argmax(curve.tpr - curve.fpr))
    here, after = curve.thresholds[best], curve.thresholds[min(best + 1, len(curve.thresholds) - 1)]
    if not np.isfinite(here):
        return float(np.nextafter(after, -np.inf))
    return float((here + after) / 2 if np.isfinite(after) else here)
