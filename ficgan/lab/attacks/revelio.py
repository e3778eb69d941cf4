"""Revelio (Zhai et al.): a conditional diffusion (diffusers) restores blurred faces; names by several guesses."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from scipy.spatial.distance import cdist
from torch import Tensor, nn

from ficgan.arrays import blocks
from ficgan.device import PRECISIONS, resolve_precision
from ficgan.errors import FicganError, UsageError
from ficgan.lab.attacks.base import FROM_PAIRS, REVERSERS, Pairs, ReverserTraits, resized, to_tensor
from ficgan.lab.attacks.learned import Learned
from ficgan.lab.attacks.training import LossLearner
from ficgan.registry import param

# -- the diffusion -----------------------------------------------------------------------------------------------------

# (y_t [B,3,S,S], x [B,3,S,S], √γ_t [1]) → what it predicts, [B,3,S,S]
Denoise = Callable[[Tensor, Tensor, Tensor], Tensor]
Which = Literal["attention", "all"]  # What is trained on further
_FREQUENCY = 5000.0  # The noise level √γ in [0, 1] enters as sines of 5000 times it (WaveGrad, §3.2; SR3, §2.4)


@dataclass(frozen=True)
class Schedule:
    """Variances β_t of steps 1…T, linear in t; α_t = 1 − β_t, γ_t = Π α_s (Revelio, eq. 2; SR3, §2)."""

    steps: int
    first: float
    last: float

    @cached_property
    def gammas(self) -> NDArray[np.float64]:
        """[T+1], γ_0 = 1 … γ_T."""
        return np.cumprod([1.0, *(1 - np.linspace(self.first, self.last, self.steps))])

    def times(self, count: int) -> NDArray[np.int64]:
        """A falling sub-sequence T…0 of at most `count` steps, evenly spaced (all of them where count ≥ T)."""
        return np.unique(np.linspace(0, self.steps, min(count, self.steps) + 1).round().astype(np.int64))[::-1]


# By name: SR3's; the shorter one with which Palette is tested (Σβ = 45, so that nothing at all is left of the image);
# SR3's in fewer steps.
SCHEDULES = {
    "sr3": Schedule(2000, 1e-6, 1e-2),
    "palette-test": Schedule(1000, 1e-4, 0.09),
    "small": Schedule(200, 1e-5, 0.1),
}


@dataclass(frozen=True)
class Sampler:
    """How noise becomes an image."""

    schedule: Schedule
    # "ancestral-beta": y_s is drawn from q(y_s | ŷ_0, y_t) (Revelio's eq. 3, whose roots are misprinted; SR3, eq. 4)
    # with the variance 1 − α of eq. 5; "ddim": with its own smaller variance (Song et al. 2021, eq. 12, η = 1), which
    # suits few steps
    kind: str = "ddim"
    count: int = 20  # Steps, an evenly spaced sub-sequence of the schedule's
    predicts: str = "noise"  # "noise" or "clear"
    clip: bool = True  # Whether ŷ_0 is kept in [−1, 1]


@dataclass(frozen=True)
class Architecture:
    """Numbers of a U-Net: `mults` of `base` channels by level; `head` 0 is one head; `patch` 1 is SR3."""

    base: int
    mults: tuple[int, ...]
    blocks: int = 2
    head: int = 0
    dropout: float = 0.0
    patch: int = 1


# By name: the bases of the paper, for a GPU; two for a CPU, at 64 pixels; and one to try the software with.
PRESETS = {
    "sr3": Architecture(64, (1, 2, 4, 8, 8), dropout=0.2),
    "palette": Architecture(64, (1, 2, 4, 8), head=32, dropout=0.2),
    "small": Architecture(32, (1, 2, 2, 4)),
    "patched": Architecture(48, (1, 2, 2), patch=2),
    "tiny": Architecture(16, (1, 2), blocks=1),
}
_ATTENDS = 16  # Side of the levels that have attention


class UNet(nn.Module):
    """f(x, y_t, √γ): noise or clear image; its training decides which. Untrained it answers zero."""

    def __init__(self, architecture: Architecture, size: int) -> None:
        from diffusers import UNet2DModel

        super().__init__()
        a = self.architecture = architecture
        factor = a.patch * 2 ** (len(a.mults) - 1)
        if size % factor:
            raise UsageError(f"this U-Net of {len(a.mults)} levels needs a size that is a multiple of {factor}")
        attends = [size == _ATTENDS * a.patch * 2**level for level in range(len(a.mults))]
        self.unet: Any = UNet2DModel(
            in_channels=6 * a.patch**2,
            out_channels=3 * a.patch**2,
            block_out_channels=tuple(a.base * mult for mult in a.mults),
            down_block_types=tuple("AttnDownBlock2D" if attend else "DownBlock2D" for attend in attends),
            up_block_types=tuple("AttnUpBlock2D" if attend else "UpBlock2D" for attend in reversed(attends)),
            layers_per_block=a.blocks,
            attention_head_dim=a.head or None,
            dropout=a.dropout,
            norm_num_groups=math.gcd(a.base, min(32, max(a.base // 4, 1))),
            resnet_time_scale_shift="scale_shift",
            flip_sin_to_cos=False,
        )
        for name, module in self.named_modules():
            if name.endswith(("conv2", "to_out.0", "conv_out")):
                nn.init.zeros_(module.weight)
                nn.init.zeros_(module.bias)
        self.to(memory_format=torch.channels_last)

    def attention(self) -> list[nn.Module]:
        """Its attention blocks."""
        from diffusers.models.attention_processor import Attention

        return [module for module in self.modules() if isinstance(module, Attention)]

    def forward(self, noisy: Tensor, seen: Tensor, root: Tensor) -> Tensor:
        """y_t and the anonymised face x, both [B,3,S,S], and √γ_t in [0, 1], [B] or [1] → an answer [B,3,S,S]."""
        h = F.pixel_unshuffle(torch.cat([seen, noisy], 1), self.architecture.patch)
        h = h.to(self.unet.dtype, memory_format=torch.channels_last)
        answer: Tensor = self.unet(h, _FREQUENCY * root.float(), return_dict=False)[0]
        return F.pixel_shuffle(answer, self.architecture.patch)


def levels(schedule: Schedule, spots: Tensor) -> Tensor:
    """Noise levels √γ for training: `spots` [B], uniform on [0, 1), choose a step t, and √γ within it (SR3, §2.4)."""
    roots = torch.from_numpy(np.sqrt(schedule.gammas)).to(spots.device)
    place = spots.double() * schedule.steps
    t = place.long().clamp(max=schedule.steps - 1)
    return torch.lerp(roots[t], roots[t + 1], place - t).to(spots)


def diffusion_loss(schedule: Schedule, predicts: str, network: nn.Module, seen: Tensor, clear: Tensor) -> Tensor:
    """E‖f(x, y_t, √γ) − ε‖², or − y_0 where the clear image is predicted (Revelio, eq. 4; Palette, §3)."""
    # One spot in each of as many equal parts: each is uniform, their mean varies less.
    count = len(seen)
    spots = (torch.arange(count, device=seen.device) + torch.rand(count, device=seen.device)) / count
    seen, clear = 2 * seen - 1, 2 * clear - 1
    noise, root = torch.randn_like(clear), levels(schedule, spots)
    wide = root.reshape(-1, 1, 1, 1)
    noisy = wide * clear + (1 - wide * wide).sqrt() * noise  # y_t = √γ·y_0 + √(1−γ)·ε
    return F.mse_loss(network(noisy, seen, root).float(), noise if predicts == "noise" else clear)


class DiffusionLearner(LossLearner):
    """The diffusion's loss under Adam; the running average of the weights is used in the end."""

    keep = 0.9999  # Share of the average that a step keeps; less at first

    def __init__(self, network: nn.Module, lr: float, schedule: Schedule, predicts: str, flip: bool = False) -> None:
        self.average, self.flip = copy.deepcopy(network).eval().requires_grad_(False), flip
        averages = dict(self.average.named_parameters())
        learnt = {name: weights for name, weights in network.named_parameters() if weights.requires_grad}
        self._now = [weights.detach() for weights in learnt.values()]
        self._averages: list[Tensor] = [averages[name] for name in learnt]
        adam = torch.optim.Adam(learnt.values(), lr, fused=True)
        super().__init__(network, partial(diffusion_loss, schedule, predicts), lr, adam)
        self.modules["average"] = self.average

    @property
    def result(self) -> nn.Module:
        return self.average

    def step(self, seen: Tensor, clear: Tensor, images: int) -> dict[str, Tensor]:
        self.network.train()
        if self.flip:
            turned = (torch.rand(len(seen), device=seen.device) < 0.5)[:, None, None, None]
            seen, clear = (torch.where(turned, x.flip(3), x) for x in (seen, clear))
        losses = super().step(seen, clear, images)
        # The weights as they are into their average, of which the beginning is forgotten faster.
        steps = images // len(seen)
        with torch.no_grad():
            torch._foreach_lerp_(self._averages, self._now, 1 - min(self.keep, (1 + steps) / (10 + steps)))
        return losses


def scheduler_of(sampler: Sampler) -> tuple[Any, dict[str, Any]]:
    """A scheduler of diffusers whose steps are those of the sub-sequence, and arguments of its `step`."""
    from diffusers import DDIMScheduler, DDPMScheduler

    gammas = sampler.schedule.gammas[sampler.schedule.times(sampler.count)][::-1]
    given: dict[str, Any] = {
        "num_train_timesteps": len(gammas) - 1,
        "trained_betas": 1 - gammas[1:] / gammas[:-1],
        "prediction_type": "epsilon" if sampler.predicts == "noise" else "sample",
        "clip_sample": sampler.clip,
    }
    made: Any
    if sampler.kind == "ddim":
        made, more = DDIMScheduler(**given), {"eta": 1.0, "use_clipped_model_output": True}
    else:
        made, more = DDPMScheduler(**given, variance_type="fixed_large"), {}
    made.set_timesteps(len(gammas) - 1)
    return made, more


@torch.no_grad()
def sample(denoise: Denoise, seen: Tensor, sampler: Sampler, seeds: Sequence[int]) -> Tensor:
    """A candidate for each anonymised face `seen` [B,3,S,S] in [−1, 1], drawn by its seed: the same shape and range."""
    from diffusers.utils.torch_utils import randn_tensor

    scheduler, more = scheduler_of(sampler)
    streams = [torch.Generator(seen.device).manual_seed(seed) for seed in seeds]
    seen = seen.contiguous(memory_format=torch.channels_last)
    y = randn_tensor(seen.shape, generator=streams, device=seen.device).contiguous(memory_format=torch.channels_last)
    roots = scheduler.alphas_cumprod.sqrt().to(seen.device)  # at once: each copy would wait
    for t in scheduler.timesteps.tolist():
        answer = denoise(y, seen, roots[t : t + 1]).float()
        y = scheduler.step(answer, t, y, generator=streams, **more).prev_sample
    return y


# -- the attacker ------------------------------------------------------------------------------------------------------


@REVERSERS.add
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
        learner = DiffusionLearner(network, self.lr, SCHEDULES[self.schedule], self.predicts, self.flip)
        learner.precision = str(self._dtype(device)).removeprefix("torch.")
        return learner

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
    attacker: Revelio, pairs: Pairs, *, steps: int, lr: float, which: Which = "attention", seed: int = 0
) -> Revelio:
    """The attacker trained on, in its attention blocks (Revelio, §4.4) or whole (§6); the given one is unchanged."""
    network: Any = copy.deepcopy(attacker.trained_network()).requires_grad_(which == "all")
    for module in network.attention():
        module.requires_grad_(True)
    device = next(network.parameters()).device
    learner = replace(attacker, lr=lr).learner(network, device)
    pictures = [resized(faces.images, attacker.size) for faces in (pairs.anonymised, pairs.clear)]
    count = len(pairs.clear)
    batch = min(attacker.batch, count)
    rng, epochs = np.random.default_rng(seed), -(-steps * batch // count)
    order = np.concatenate([rng.permutation(count) for _ in range(epochs)])[: steps * batch]
    losses = []
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        for step, rows in enumerate(order.reshape(steps, batch)):
            seen, wanted = (to_tensor(images[rows], device) for images in pictures)
            losses.append(learner.step(seen, wanted, step * batch)["loss"])
    if not bool(torch.stack(losses).isfinite().all()):
        raise FicganError(f"fine-tuning of {attacker.name} ran into a loss that is not finite; lower lr")
    tuned: dict[str, Any] = {"which": which, "steps": steps, "lr": lr, "pairs": count, "seed": seed}
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
    for part in blocks(len(rows), max(1, _BLOCK // (read.shape[1] * len(gallery)))):
        flat = rows[part].reshape(-1, rows.shape[2])
        table = cdist(flat, gallery) if metric == "euclidean" else cdist(flat, gallery, "sqeuclidean") / 2
        table = table.reshape(-1, read.shape[1], len(gallery))
        winners[part], distances[part] = whose[table.argmin(axis=2)], table.min(axis=2)
    return Retrieved(np.where(read, winners, -1), np.where(read, distances, np.inf))


# -- strangers ("out of distribution") ---------------------------------------------------------------------------------


class OodCurve(NamedTuple):
    """How well the lowest distance separates unknown people ("OOD", positive) from known ones."""

    thresholds: NDArray[np.float64]  # [T] rising; a probe is flagged where ld_x > d
    tpr: NDArray[np.float64]  # [T], as fpr
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
