"""The loop that trains every attacker: epochs, people held out to watch it on, early end, state on disk, statistics."""

from __future__ import annotations

import copy
import hashlib
import math
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.optim import Optimizer

from ficgan import ops
from ficgan.anonymizers import Images
from ficgan.device import resolve_device
from ficgan.errors import FicganError, stop_asked
from ficgan.lab.attacks.base import Pairs, Progress
from ficgan.lab.attacks.learned import check_pairs, held_out, load_attacker, resized, to_tensor
from ficgan.models import load_tensors, save_tensors
from ficgan.training.state import below, packed, unpack

if TYPE_CHECKING:
    from ficgan.lab.attacks.learned import Learned

    L = TypeVar("L", bound=Learned)

STATE = "state.safetensors"
WEIGHTS = "attacker.safetensors"
"""Files of a workspace: a training under way, and what it came to."""
_KIND = "attacker training state"
Rows = NDArray[np.int64]
REPORT_EVERY = 0.5  # Seconds between two reports of a training
_SAVE_EVERY = 60.0
_SAVE_SHARE = 20
"""Seconds between two states, and how many times as long as one takes to be written at least."""
_RESERVED = 1000
"""Seeds of the steps differ by this many from those of the weights."""


class Learner:
    """What one kind of attacker gives to the training loop: modules and optimisers by name, and its precision."""

    precision = "float32"

    def __init__(self, modules: Mapping[str, nn.Module], optimizers: Mapping[str, Optimizer]) -> None:
        self.modules, self.optimizers = dict(modules), dict(optimizers)
        for optimizer in self.optimizers.values():
            for group in optimizer.param_groups:
                group.setdefault("base_lr", group["lr"])

    @property
    def result(self) -> nn.Module:
        """The network that is used in the end, such as an average; "network" unless overridden."""
        return self.modules["network"]

    def step(self, seen: Tensor, clear: Tensor, images: int) -> dict[str, Tensor]:
        """One step of the optimisers; losses by name, detached. `images`: seen before."""
        raise NotImplementedError

    def loss(self, seen: Tensor, clear: Tensor) -> Tensor:
        """Mean loss of a batch of people held out, by which the best epoch is chosen; no gradients."""
        raise NotImplementedError

    def after_epoch(self, factor: float, done: float, stale: int) -> float:
        """The rate's next factor, from the last one, the share of epochs done, and epochs since the least loss."""
        return factor

    def descend(self, optimizer: str, loss: Tensor) -> None:
        """One step of an optimiser down a loss."""
        self.optimizers[optimizer].zero_grad(set_to_none=True)
        loss.backward()
        self.optimizers[optimizer].step()

    def set_rate(self, factor: float) -> None:
        for optimizer in self.optimizers.values():
            for group in optimizer.param_groups:
                group["lr"] = group["base_lr"] * factor


class AdamLearner(Learner):
    """One network under Adam, which lessens one loss; a subclass gives `loss`."""

    def __init__(self, network: nn.Module, lr: float) -> None:
        super().__init__({"network": network}, {"adam": torch.optim.Adam(network.parameters(), lr, fused=True)})
        self.network = network

    def step(self, seen: Tensor, clear: Tensor, images: int) -> dict[str, Tensor]:
        loss = self.loss(seen, clear)
        self.descend("adam", loss)
        return {"loss": loss.detach()}


def train(attacker: L, pairs: Pairs, *, workspace: Path | None, progress: Progress | None) -> L:
    """See `Learned.fit`."""
    check_pairs(pairs, attacker.name)
    plan = digest_of(attacker, pairs)
    if workspace is not None and (workspace / WEIGHTS).exists():
        path = workspace / WEIGHTS
        found = load_attacker(path, device=attacker.device)
        if type(found) is not type(attacker) or found.record.get("plan") != plan:
            raise FicganError(f"{path} was trained on other pairs or with other settings; use another folder")
        return found
    device = torch.device(resolve_device(attacker.device))
    if device.type == "cpu":
        ops.keep_freed_memory()
    torch.manual_seed(attacker.seed)
    network = attacker.network().to(device=device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    run = _Run(attacker, attacker.learner(network, device), pairs, plan, device, workspace)
    run.go(progress)
    return run.finish()


def digest_of(attacker: Learned, pairs: Pairs) -> str:
    """Of everything that a training's outcome depends on: settings, pixels of the pairs, who is who."""
    state = hashlib.sha256(repr((attacker.name, sorted(attacker.settings().items()))).encode())
    for faces in (pairs.anonymised, pairs.clear):
        state.update(repr(faces.images.shape).encode())
        state.update(np.ascontiguousarray(faces.images).data)
    people = pairs.clear.people
    state.update(b"" if people is None else np.ascontiguousarray(people).data)
    if pairs.enrolled is not None:
        state.update(repr(["enrolled", *np.unique(pairs.enrolled).tolist()]).encode())
    return state.hexdigest()[:32]


@dataclass
class Counters:
    """How far a training has come: steps, seconds, the least loss on the people held out and its epoch, the rate."""

    step: int = 0
    seconds: float = 0.0
    best: float | None = None
    best_epoch: int = 0
    factor: float = 1.0


class _Run:
    def __init__(
        self, attacker: Learned, learner: Learner, pairs: Pairs, plan: str, device: torch.device, folder: Path | None
    ) -> None:
        self.attacker, self.learner, self.plan, self.device, self.folder = attacker, learner, plan, device, folder
        held = held_out(pairs.clear.people, len(pairs.clear), attacker.held, attacker.seed, pairs.enrolled)
        self.seen, self.clear = (resized(faces.images, attacker.size) for faces in (pairs.anonymised, pairs.clear))
        self.rows, self.held = np.flatnonzero(~held), np.flatnonzero(held)
        self.batch = min(attacker.batch, len(self.rows))
        self.steps = len(self.rows) // self.batch
        """Of an epoch; what is left over comes in the next one, whose order is another."""
        self.at = Counters()
        self.kept: dict[str, Tensor] | None = None
        self.ended = ""
        self.order: tuple[int, Rows] = -1, self.rows
        self.sums: dict[str, Tensor] = {}
        self.summed = 0
        self.whole = True
        self.reporter: Any = None

    @property
    def epoch(self) -> int:
        return self.at.step // self.steps

    @property
    def images(self) -> int:
        return self.at.step * self.batch

    def go(self, progress: Progress | None) -> None:
        total = self.attacker.epochs * self.steps
        if self.folder is not None:
            from ficgan.training.stats import Reporter

            self._resume(self.folder)
            self.reporter = Reporter(self.folder, total * self.batch, self.images, progress="none")
        saved = time.monotonic()
        began, took, reported = saved - self.at.seconds, 0.0, -math.inf
        try:
            with stop_asked() as asked:
                while not self.ended and self.at.step < total:
                    self._one_step()
                    self.at.seconds = time.monotonic() - began
                    over = 0 < self.attacker.minutes * 60 <= self.at.seconds
                    if self.at.step % self.steps == 0 or over:
                        self._close_epoch(over=over)
                    if asked.is_set():
                        raise KeyboardInterrupt
                    start = time.monotonic()
                    if start - saved > max(_SAVE_EVERY, _SAVE_SHARE * took):
                        self._save()
                        saved = time.monotonic()
                        took = saved - start
                    if progress and (self.at.step == total or start - reported >= REPORT_EVERY):
                        reported = start
                        epoch = min(self.epoch + 1, self.attacker.epochs)
                        progress(self.at.step, total, f"training {self.attacker.name}, epoch {epoch}")
        except KeyboardInterrupt:
            if self.whole:
                self._save()
            raise
        finally:
            if self.reporter:
                self.reporter.close()

    def _one_step(self) -> None:
        if self.order[0] != self.epoch:
            self.order = self.epoch, np.random.default_rng([self.attacker.seed, self.epoch]).permutation(self.rows)
        place = self.at.step % self.steps
        rows = self.order[1][place * self.batch : (place + 1) * self.batch]
        torch.manual_seed(self.attacker.seed + _RESERVED * (self.at.step + 1))
        self.whole = False  # a second Ctrl-C may come within it, and half a step is not worth keeping
        losses = self.learner.step(self._batch(self.seen, rows), self._batch(self.clear, rows), self.images)
        self.at.step += 1
        self.whole = True
        for name, value in losses.items():
            self.sums[name] = self.sums[name] + value if name in self.sums else value
        self.summed += 1
        if self.reporter:
            self.reporter.advance(self.batch)

    def _batch(self, images: Images, rows: Rows) -> Tensor:
        return to_tensor(images[rows], self.device)

    def _close_epoch(self, *, over: bool) -> None:
        self._check()
        numbers = {name: float(value) / self.summed for name, value in self.sums.items()}
        self.sums, self.summed = {}, 0
        if len(self.held):
            numbers["held_out"] = value = self._watch()
            if self.at.best is None or value < self.at.best:
                self.at.best, self.at.best_epoch = value, self.epoch
                self.kept = {key: tensor.detach().clone() for key, tensor in self.learner.result.state_dict().items()}
        else:
            self.at.best_epoch = self.epoch
        stale = self.epoch - self.at.best_epoch
        self.at.factor = self.learner.after_epoch(self.at.factor, self.epoch / self.attacker.epochs, stale)
        self.learner.set_rate(self.at.factor)
        numbers["lr_factor"] = self.at.factor
        if self.attacker.patience and stale >= self.attacker.patience:
            self.ended = f"no better loss for {stale} epochs"
        elif over:
            self.ended = f"{self.attacker.minutes:g} minutes were over"
        if self.reporter:
            self.reporter.tick(self.images, 1000 * self.at.seconds / max(1, self.images), numbers, self.at.seconds)

    def _check(self) -> None:
        weights = (weight.detach() for module in self.learner.modules.values() for weight in module.parameters())
        every = [*self.sums.values(), *(weight.float().sum() for weight in weights)]
        if not bool(torch.stack([value.float().to(self.device) for value in every]).isfinite().all()):
            path = None if self.folder is None else self.folder / STATE
            hint = f"; the last good state is {path}" if path is not None and path.exists() else ""
            raise FicganError(f"{self.attacker.name} ran into a loss that is not finite; lower lr{hint}")

    def _watch(self) -> float:
        total, modules = 0.0, self.learner.modules
        modes = {name: module.training for name, module in modules.items()}
        for module in modules.values():
            module.eval()
        with torch.no_grad():
            for start in range(0, len(self.held), self.batch):
                part = self.held[start : start + self.batch]
                torch.manual_seed(self.attacker.seed + start + 1)  # the same noise every time, or losses cannot compare
                loss = self.learner.loss(self._batch(self.seen, part), self._batch(self.clear, part))
                total += float(loss) * len(part)
        for name, module in modules.items():
            module.train(modes[name])
        return total / len(self.held)

    def _save(self) -> None:
        if self.folder is None:
            return
        self._check()
        tensors = packed(*self._parts()) | {f"kept.{key}": value for key, value in (self.kept or {}).items()}
        header = {"plan": self.plan, "counters": asdict(self.at), "precision": self.learner.precision}
        save_tensors(self.folder / STATE, tensors, header, kind=_KIND)

    def _resume(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / STATE
        if not path.exists():
            return
        tensors, header = load_tensors(path, kind=_KIND)
        if header["plan"] != self.plan:
            raise FicganError(f"{path} is of a training on other pairs or with other settings; use another folder")
        unpack(tensors, *self._parts())
        self.learner.precision = header.get("precision", self.learner.precision)
        self.at = Counters(**header["counters"])
        self.learner.set_rate(self.at.factor)
        self.kept = {key: value.to(self.device) for key, value in below(tensors, "kept").items()} or None

    def _parts(self) -> tuple[dict[str, nn.Module], dict[str, Optimizer]]:
        modules, optimizers = self.learner.modules.items(), self.learner.optimizers.items()
        return {f"module.{k}": v for k, v in modules}, {f"optimizer.{k}": v for k, v in optimizers}

    def finish(self) -> Any:
        network = copy.deepcopy(self.learner.result)
        if self.kept is not None:
            network.load_state_dict(self.kept)
        with torch.no_grad():  # rounded as the file keeps them: a network just trained and one read back are the same
            for tensor in (*network.parameters(), *network.buffers()):
                if tensor.is_floating_point():
                    tensor.copy_(tensor.half())
        record = {
            "plan": self.plan,
            "pairs": len(self.clear),
            "pairs_held": len(self.held),
            "epochs": self.epoch,
            "images": self.images,
            "best_epoch": self.at.best_epoch,
            "seconds": round(self.at.seconds, 1),
            "held_out_loss": self.at.best,
            "ended": self.ended or "all epochs",
            "device": self.device.type,
            "precision": self.learner.precision,
        }
        trained = self.attacker.with_network(network, record)
        if self.folder is not None:
            trained.save(self.folder / WEIGHTS)
            (self.folder / STATE).unlink(missing_ok=True)
        return trained
