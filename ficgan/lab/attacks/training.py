"""Training of the lab's networks: a loop with an early end, exact resume and statistics, and a plain one."""

from __future__ import annotations

import copy
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from ficgan.errors import FicganError, Progress, stop_asked
from ficgan.lab.attacks.base import Pairs, held_out, resized, to_tensor
from ficgan.models import load_tensors, save_tensors
from ficgan.training import Team
from ficgan.training.state import Reporter, below, packed, unpack

STATE = "state.safetensors"  # In an attacker's workspace: a training under way
KIND = "attacker training state"
REPORT_EVERY = 0.5  # Seconds between two reports of a training
_SAVE_EVERY = 300.0  # Seconds between two states; those of a GPU's attackers take half a minute to be written
_RESERVED = 1000  # Seeds of the steps differ by this many from those of the weights
Loss = Callable[[nn.Module, Any, Any], Tensor]  # Of a network, what it sees, and what is wanted
NextRate = (
    Callable[[float, int, int], float] | None
)  # From the last factor, the epochs done, and epochs since the least loss


def minimise(
    module: nn.Module,
    loss: Callable[[Tensor], Tensor],
    order: Callable[[], Tensor],
    batch: int,
    schedule: LRScheduler,
    epochs: int,
    error: Callable[[], float | None] = lambda: None,
    tell: Callable[[int], object] = lambda done: None,
) -> tuple[int, float | None]:
    """Train a small network in place; the epoch of the least `error` is kept, the last one where there is none.

    `order` gives the rows of an epoch, for batches of which `loss` is lessened by the optimiser of `schedule`; `tell`
    hears of each epoch. Returns the kept epoch and its error.
    """
    best: tuple[int, float | None] = (0, None)
    state: dict[str, Tensor] | None = None
    for epoch in range(1, epochs + 1):
        module.train()
        for rows in order().split(batch):
            value = loss(rows)
            schedule.optimizer.zero_grad()
            value.backward()
            schedule.optimizer.step()
            schedule.step()
        module.eval()
        found = error()
        if found is not None and (best[1] is None or found < best[1]):
            best, state = (epoch, found), copy.deepcopy(module.state_dict())
        tell(epoch)
    if state is not None:
        module.load_state_dict(state)
    return best


class Learner(ABC):
    """What is trained: modules and optimisers by name, and a precision; "network" is used in the end."""

    precision = "float32"
    team: Any = None  # The processes that share each batch, see `ficgan.training.Team`; None: this one alone

    def __init__(
        self, modules: Mapping[str, nn.Module], optimizers: Mapping[str, Optimizer], rate: NextRate = None
    ) -> None:
        self.modules, self.optimizers = dict(modules), dict(optimizers)
        self.next_rate = rate or (lambda last, *_: last)
        for group in self._groups():
            group.setdefault("base_lr", group["lr"])

    def _groups(self) -> Iterator[dict[str, Any]]:
        for optimizer in self.optimizers.values():
            yield from optimizer.param_groups

    @property
    def result(self) -> nn.Module:
        """The network that is used in the end, such as an average."""
        return self.modules["network"]

    @abstractmethod
    def step(self, seen: Any, wanted: Any, images: int) -> dict[str, Tensor]:
        """One step of the optimisers on a batch; losses by name, detached. `images`: seen before."""

    @abstractmethod
    def loss(self, seen: Any, wanted: Any) -> Tensor:
        """Mean loss of a batch, by which the best epoch is chosen on people held out; no gradients there."""

    def descend(self, optimizer: str, loss: Tensor) -> None:
        """One step of an optimiser down a loss."""
        self.optimizers[optimizer].zero_grad(set_to_none=True)
        loss.backward()
        if self.team is not None:
            self.team.average_gradients(weight for group in self._groups() for weight in group["params"])
        self.optimizers[optimizer].step()

    def set_rate(self, factor: float) -> None:
        for group in self._groups():
            group["lr"] = group["base_lr"] * factor


class LossLearner(Learner):
    """One network under one optimiser, Adam unless given, which lessens a loss of network, seen and wanted."""

    def __init__(
        self, network: nn.Module, loss: Loss, lr: float, optimizer: Optimizer | None = None, rate: NextRate = None
    ) -> None:
        optimizer = optimizer or torch.optim.Adam(network.parameters(), lr, fused=True)
        super().__init__({"network": network}, {"adam": optimizer}, rate)
        self.network, self._loss = network, loss

    def step(self, seen: Any, wanted: Any, images: int) -> dict[str, Tensor]:
        loss = self._of(self.network, seen, wanted)
        self.descend("adam", loss)
        return {"loss": loss.detach()}

    def loss(self, seen: Any, wanted: Any) -> Tensor:
        return self._of(self.result, seen, wanted)

    def _of(self, network: nn.Module, seen: Any, wanted: Any) -> Tensor:
        dtype = getattr(torch, self.precision)
        with torch.autocast(next(network.parameters()).device.type, dtype, enabled=dtype != torch.float32):
            return self._loss(network, seen, wanted)


class Batches(ABC):
    """What is learnt from: `steps` batches of about `batch` examples an epoch, the same for the same number."""

    steps: int
    batch: int

    @abstractmethod
    def epoch(self, number: int, first: int) -> Iterator[tuple[Any, Any]]:
        """The batches of an epoch from the step `first` on."""

    def held_out(self) -> Iterator[tuple[Any, Any]]:
        """Batches of the examples by which the best epoch is chosen; none where the last one is kept."""
        return iter(())


@dataclass
class Counters:
    """How far a training has come: steps, seconds, the least loss on the people held out and its epoch, the rate."""

    step: int = 0
    seconds: float = 0.0
    best: float | None = None
    best_epoch: int = 0
    factor: float = 1.0


@dataclass
class TrainingLoop:
    """A training of a learner on batches; `minutes` and `patience` of 0 are no limits."""

    learner: Learner
    batches: Batches
    name: str  # In messages
    key: str  # Of everything that the outcome depends on; only a state of the same key is resumed
    epochs: int
    state: Path | None  # The file from which it resumes
    stats: Path | None = None  # A folder for figures
    seed: int = 0
    minutes: float = 0.0
    patience: int = 0  # Epochs without a better loss

    def __post_init__(self) -> None:
        self.at = Counters()
        self.kept: dict[str, Tensor] | None = None
        self.ended = ""
        self.reporter: Any = None
        self._losses: list[dict[str, Tensor]] = []
        self._whole = True
        self.team = self.learner.team or Team("cpu")
        optimizers = {f"optimizer.{name}": optimizer for name, optimizer in self.learner.optimizers.items()}
        self._parts = {f"module.{name}": module for name, module in self.learner.modules.items()}, optimizers

    @property
    def epoch(self) -> int:
        return self.at.step // self.batches.steps

    @property
    def images(self) -> int:
        return self.at.step * self.batches.batch

    def run(self, progress: Progress | None = None) -> None:
        """Train to the end; the learner's networks are those of the last step, `kept` is the best result."""
        devices = sorted({p.device.index or 0 for p in self.learner.result.parameters() if p.is_cuda})
        if self.state is not None:
            self._resume(self.state)
        if self.stats is not None:
            total = self.epochs * self.batches.steps * self.batches.batch
            self.reporter = Reporter(self.stats, total, self.images, progress="none")
        try:
            with stop_asked() as asked, torch.random.fork_rng(devices):
                self._steps(asked, progress)
        except KeyboardInterrupt:
            if self._whole:
                self._save()
            raise
        finally:
            if self.reporter:
                self.reporter.close()

    def _steps(self, asked: Any, progress: Progress | None) -> None:
        steps, total = self.batches.steps, self.epochs * self.batches.steps
        saved = time.monotonic()
        began, reported = saved - self.at.seconds, -math.inf
        while not self.ended and self.at.step < total:
            for batch in self.batches.epoch(self.epoch, self.at.step % steps):
                torch.manual_seed(self.seed + _RESERVED * (self.at.step + 1) + self.team.rank)
                self._whole = False  # a second Ctrl-C may come within the step, and half of one is not worth keeping
                self._losses.append(self.learner.step(*batch, self.images))
                self.at.step += 1
                self._whole = True
                if self.reporter:
                    self.reporter.advance(self.batches.batch)
                now = time.monotonic()
                self.at.seconds = now - began
                over = self.team.any(0 < self.minutes * 60 <= self.at.seconds)
                if self.at.step % steps == 0 or over:
                    self._close_epoch(over=over)
                if self.team.any(asked.is_set()):
                    raise KeyboardInterrupt
                if now - saved > _SAVE_EVERY:
                    self._save()
                    saved = now
                if progress and (self.at.step == total or now - reported >= REPORT_EVERY):
                    reported = now
                    progress(self.at.step, total, f"training {self.name}, epoch {min(self.epoch + 1, self.epochs)}")
                if self.ended:
                    break

    def _close_epoch(self, *, over: bool) -> None:
        self._check(self.team.any)
        numbers = {name: float(torch.stack([step[name] for step in self._losses]).mean()) for name in self._losses[0]}
        self._losses = []
        loss = self._held_out_loss()
        if loss is None or self.at.best is None or loss < self.at.best:
            self.at.best, self.at.best_epoch = loss, self.epoch
            if loss is not None:
                self.kept = {key: tensor.detach().clone() for key, tensor in self.learner.result.state_dict().items()}
        stale = self.epoch - self.at.best_epoch
        self.at.factor = self.learner.next_rate(self.at.factor, self.epoch, stale)
        self.learner.set_rate(self.at.factor)
        if self.patience and stale >= self.patience:
            self.ended = f"no better loss for {stale} epochs"
        elif over:
            self.ended = f"{self.minutes:g} minutes were over"
        if self.reporter:
            numbers |= {"lr_factor": self.at.factor, **({} if loss is None else {"held_out": loss})}
            self.reporter.tick(self.images, 1000 * self.at.seconds / max(1, self.images), numbers, self.at.seconds)

    def _check(self, anywhere: Callable[[bool], bool] = bool) -> None:
        numbers = [value for loss in self._losses for value in loss.values()]
        for module in self.learner.modules.values():
            numbers += [weight.detach().float().sum() for weight in module.parameters()]
        if anywhere(not all(bool(number.isfinite()) for number in numbers)):
            hint = f"; the last good state is {self.state}" if self.state is not None and self.state.exists() else ""
            raise FicganError(f"{self.name} ran into a loss that is not finite; lower lr{hint}")

    def _held_out_loss(self) -> float | None:
        total, count, modules = 0.0, 0, self.learner.modules
        modes = {name: module.training for name, module in modules.items()}
        for module in modules.values():
            module.eval()
        with torch.no_grad():
            for batch in self.batches.held_out():
                torch.manual_seed(self.seed + count + 1)  # the same noise every time, or losses cannot compare
                total += float(self.learner.loss(*batch)) * len(batch[0])
                count += len(batch[0])
        for name, module in modules.items():
            module.train(modes[name])
        if not count:
            return None
        # All processes decide alike.
        return float(self.team.average(torch.tensor(total, dtype=torch.float64, device=self.team.device))) / count

    def _save(self) -> None:
        if self.state is None or not self.team.first:
            return
        self._check()
        tensors = packed(*self._parts) | {f"kept.{key}": value for key, value in (self.kept or {}).items()}
        header = {"plan": self.key, "counters": asdict(self.at), "precision": self.learner.precision}
        save_tensors(self.state, tensors, header, kind=KIND)

    def _resume(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            return
        tensors, header = load_tensors(path, kind=KIND)
        if header["plan"] != self.key:
            raise FicganError(f"{path} is of a training on other data or with other settings; use another folder")
        unpack(tensors, *self._parts)
        self.learner.precision = header["precision"]
        self.at = Counters(**header["counters"])
        self.learner.set_rate(self.at.factor)
        device = next(self.learner.result.parameters()).device
        self.kept = {key: value.to(device) for key, value in below(tensors, "kept").items()} or None


class PairBatches(Batches):
    """Pairs in random order; what is left over of an epoch comes in the next one, whose order is another."""

    def __init__(self, pairs: Pairs, attacker: Any, team: Any) -> None:
        held = held_out(pairs.clear, attacker.held, attacker.seed)
        self.seen, self.clear = (resized(faces.images, attacker.size) for faces in (pairs.anonymised, pairs.clear))
        self.rows, self.held_rows = np.flatnonzero(~held), np.flatnonzero(held)
        self.rank, self.world = team.rank, team.world
        self.batch = max(1, min(attacker.batch, len(self.rows)) // self.world) * self.world
        self.steps = len(self.rows) // self.batch
        self.seed, self.device = attacker.seed, team.device

    def epoch(self, number: int, first: int) -> Iterator[tuple[Tensor, Tensor]]:
        order = np.random.default_rng([self.seed, number]).permutation(self.rows)
        for step in range(first, self.steps):
            yield self._at(order[step * self.batch + self.rank : (step + 1) * self.batch : self.world])

    def held_out(self) -> Iterator[tuple[Tensor, Tensor]]:
        for start in range(0, len(self.held_rows), self.batch):
            yield self._at(self.held_rows[start : start + self.batch])

    def _at(self, rows: Any) -> tuple[Tensor, Tensor]:
        return to_tensor(self.seen[rows], self.device), to_tensor(self.clear[rows], self.device)
