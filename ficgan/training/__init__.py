"""The training loop: data, phases, optimisers, and the files of a run (docs/training.md)."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from ficgan import losses
from ficgan.config import Config
from ficgan.data import ResumableSampler
from ficgan.device import keep_freed_memory, resolve_device
from ficgan.errors import FicganError, TakenError, UsageError, stop_asked
from ficgan.files import alone_in, atomic_write, file_digest
from ficgan.models import MappingNetwork
from ficgan.training.crops import CropTask
from ficgan.training.detail import DetailTask
from ficgan.training.frame import FrameTask
from ficgan.training.state import Means, Reporter, TrainingState, reading_lines, save_grid
from ficgan.training.task import TrainingTask, weights_at

__all__ = ["Interrupted", "train"]


STATE, START, NETWORK, CONFIG = "state.safetensors", "start.safetensors", "network.safetensors", "config.json"


class Interrupted(KeyboardInterrupt):
    """Ctrl-C or SIGTERM; the state is saved, and the same command resumes the run."""


def train(
    config: Config,
    data: Sequence[Path | str],
    out: Path | str,
    *,
    device: str = "auto",
    start: Path | str | None = None,
    split: str | None = None,
    labels: Path | str | None = None,
    progress: str = "auto",
    max_seconds: float | None = None,
) -> Path:
    """Train, or resume training; returns the path of the averaged model.

    Args:
        start: state file of another run whose weights to begin from (ignored when this run has a state already).
        split, labels: use only images whose row in the label file has this split.
        max_seconds: save and return after so many seconds; the same call resumes.

    Raises Interrupted at Ctrl-C or SIGTERM, after saving.
    """
    team = Team(device)
    if team.device.type == "cpu":
        keep_freed_memory()
    try:
        return TrainingRun(config, data, Path(out), team, start, split, labels, progress).run(max_seconds)
    finally:
        team.leave()


class TrainingRun:
    def __init__(
        self,
        config: Config,
        data: Sequence[Path | str],
        out: Path,
        team: Team,
        start: Path | str | None = None,
        split: str | None = None,
        labels: Path | str | None = None,
        progress: str = "none",
    ) -> None:
        self.config, self.out, self.team = config, out, team
        rounds = config.optimizer.accumulate
        share = config.optimizer.batch // (rounds * team.world)
        if config.optimizer.batch % (rounds * team.world) or share < 2:
            what = f"{rounds} rounds on {team.world} processes of at least 2 images each"
            raise UsageError(f"optimizer.batch={config.optimizer.batch} does not split into {what}")
        kind = DetailTask if config.model.detail else FrameTask if config.model.frame else CropTask
        # Models before data, data before files: a mistake is found at once and leaves no file.
        self.state = TrainingState(config, team.device, kind.networks)
        self.progress = progress if team.first else "none"
        self.task: TrainingTask = kind(config, data, labels, split, team.device)
        self.state.data = self.task.faces.fingerprint
        if (out / STATE).exists():
            self.state.load(out / STATE)
        elif start is not None:
            self.state.begin_from(Path(start))
        team.share([self.state.model, self.state.discriminator, self.state.averaged])
        out.mkdir(parents=True, exist_ok=True)
        self.task.prepare(out, [self.state.model, self.state.averaged], reading_lines(self.progress))
        count, batch = len(self.task), config.optimizer.batch
        self.sampler = ResumableSampler(count, batch, config.seed, rank=team.rank, world=team.world)
        self.total = round(config.schedule.total_kimg * 1000)
        self.means = Means()
        self.reporter: Reporter | None = None  # of the first process alone, while it runs
        if config.compile:
            self._compile()

    def run(self, max_seconds: float | None) -> Path:
        try:
            with alone_in(self.out, wait=False) if self.team.first else nullcontext(), stop_asked() as asked:
                if self.team.first:
                    self._begin()
                self._steps(asked, max_seconds)
        except TakenError as error:
            raise FicganError(str(error)) from None
        finally:
            if self.reporter:
                self.reporter.close()
        return self.out / NETWORK

    def _begin(self) -> None:
        config, state = self.config, self.state
        self.reporter = Reporter(self.out, self.total, state.images, self.progress)
        self.reporter.say(self._summary())
        with atomic_write(self.out / CONFIG, overwrite=True) as file:
            file.write(json.dumps(config.model_dump(mode="json"), indent=2).encode() + b"\n")
        if not (self.out / "reals.png").exists():
            side = min(8, int(len(self.task) ** 0.5))
            save_grid(self.task.first(side * side).unflatten(0, (side, side)), self.out / "reals.png")
        if state.images >= self.total:  # an error or a kill may have left only the state
            self._save_model(grid=True)

    def _steps(self, asked: Event, max_seconds: float | None) -> None:
        state, team, schedule, batch = self.state, self.team, self.config.schedule, self.config.optimizer.batch
        state.model.train()
        state.discriminator.train()
        began = tick_began = saved_at = time.monotonic()
        tick_images = state.images
        while state.images < self.total:
            self._step()
            if self.reporter:
                self.reporter.advance(batch)
            now, last = time.monotonic(), state.images >= self.total
            interrupted = team.any(asked.is_set())
            stop = interrupted or team.any(max_seconds is not None and now - began > max_seconds)
            if last or stop or _crossed(state.images, batch, schedule.tick_kimg):
                seen = state.images - tick_images
                self._tick(now - tick_began, seen)
                tick_began, tick_images = now, state.images
                due = _crossed(state.images, seen, schedule.checkpoint_kimg)
                late = now - saved_at > schedule.checkpoint_minutes * 60
                grid = last or _crossed(state.images, seen, schedule.snapshot_kimg)
                if team.any(last or stop or due or late or grid):
                    if self.reporter:
                        state.save(self.out / STATE)
                        self._save_model(grid=grid)
                    saved_at = time.monotonic()
            if interrupted and not last:
                raise Interrupted(f"stopped at {state.images / 1000:.1f} kimg; the same command resumes")
            if stop:
                break

    def _tick(self, seconds: float, seen: int) -> None:
        """Report the means of the last `seen` images."""
        state = self.state
        self._require_finite()
        numbers = self.means.take(self.team.average)
        if self.config.augment.adaptive:
            numbers["augment_p"] = state.augment.p
        state.seconds += seconds
        if self.reporter:
            self.reporter.tick(state.images, seconds / max(seen, 1) * 1000, numbers, state.seconds)

    def _step(self) -> None:
        """One optimiser step of G, then one of D where it takes part."""
        config, state, team = self.config, self.state, self.team
        weights = weights_at(config.loss, state.kimg)
        warm_up = config.optimizer.warmup_steps
        state.set_learning_rate(min(1.0, (state.step + 1) / warm_up) if warm_up else 1.0)
        # All randomness of a step follows from (seed, step, rank): nothing of it needs saving.
        seed = np.random.SeedSequence([config.seed, state.step, team.rank]).generate_state(1, np.uint64)
        rng = torch.Generator().manual_seed(int(seed[0]) >> 1)
        torch.manual_seed(int(torch.randint(2**62, (), generator=rng)))
        rounds = self.sampler.batch(state.step).chunk(config.optimizer.accumulate)
        kept: list[Any] = []

        state.discriminator.requires_grad_(False)
        for indices in rounds:
            with self._autocast():
                made, terms = self.task.generator_loss(state, indices, weights, rng)
                self._backward(terms["total"] / len(rounds), terms)
            kept.append(made)
        self._apply("g", state.optimizer_g, state.model)
        for module in state.model.modules():
            if isinstance(module, MappingNetwork):
                team.average(module.w_mean)
        state.discriminator.requires_grad_(True)

        if weights.adversarial > 0:
            signs = []
            for made in kept:
                with self._autocast():
                    terms = self.task.discriminator_loss(state, made)
                    self._backward(terms["d"] / len(rounds), terms)
                signs.append(terms["r_t"].detach())
            self._apply("d", state.optimizer_d, state.discriminator)
            if config.loss.r1_gamma > 0 and state.d_step % config.loss.r1_interval == 0:
                weight = config.loss.r1_gamma * config.loss.r1_interval / len(rounds)
                for made in kept:
                    if (found := self.task.real_logits(state, made)) is not None:
                        real, logits = found
                        penalty = losses.r1_penalty(logits, real).mean()
                        # The logits at weight 0 give every parameter a gradient: all processes reduce the same list.
                        self._backward(penalty * weight + 0.0 * logits.sum(), {"r1": penalty})
                self._apply("d", state.optimizer_d, state.discriminator)
            state.d_step += 1
            if config.augment.adaptive:
                state.augment.observe(team.average(torch.stack(signs).mean()), config.optimizer.batch, state.kimg)

        state.step += 1
        state.average()
        if state.step % 16 == 0:
            self._require_finite()

    def _backward(self, loss: Tensor, terms: dict[str, Tensor]) -> None:
        """Accumulate the gradients of a loss; its terms join the statistics."""
        loss.backward()
        self.means.add({name: term.detach() for name, term in terms.items()})

    def _apply(self, name: str, optimizer: torch.optim.Optimizer, module: nn.Module) -> None:
        """Step with the gradients averaged over all processes; their norm joins the statistics and the NaN guard."""
        self.team.average_gradients(module.parameters())
        norm = torch.nn.utils.clip_grad_norm_(module.parameters(), float("inf"))  # clips nothing
        self.means.add({f"grad_{name}": norm})
        if self.team.device.type == "cpu":  # free here; on a GPU it would wait, so the check comes before files
            self._require_finite()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    def _autocast(self) -> torch.autocast:
        return torch.autocast(self.team.device.type, torch.bfloat16, enabled=self.config.precision == "bf16")

    def _compile(self) -> None:
        """Compile E, G, V and the D of most steps; R1 needs the plain one's second derivative."""
        for module in self.state.model.children():
            if not isinstance(module, MappingNetwork):
                module.compile()
        if self.task.verify is not None:
            self.task.verify.network.compile()
        self.state.judge = torch.compile(self.state.discriminator)

    def _save_model(self, *, grid: bool) -> None:
        model, training = self.state.averaged, self._record()
        self.task.save(self.out / NETWORK, model, training)
        if grid:
            self.state.save_start(self.out / START)
            stamp = f"{round(self.state.kimg):06d}"
            self.task.save(self.out / f"network-{stamp}.safetensors", model, training)
            self.task.snapshot(model, self.out / f"grid-{stamp}.png")
            if self.reporter and (figures := self.task.judge(model)):
                self.reporter.judged(self.state.images, figures)
                record = {"kimg": self.state.kimg, **{name: round(value, 5) for name, value in figures.items()}}
                line = json.dumps(record) + "\n"
                with open(self.out / "snapshots.jsonl", "a+", encoding="utf-8") as file:
                    file.seek(0)
                    if line not in file:
                        file.write(line)

    def _record(self) -> dict[str, object]:
        config, state = self.config, self.state
        verifier = Path(config.verifier.spec.partition(":")[2])
        return {
            "images_seen": state.images + state.start_images,
            "seconds": round(state.seconds, 1),
            "device": str(self.team.device.type),
            "config": _without_paths(config),
            "verifier_sha256": file_digest(verifier) if verifier.is_file() else None,
        }

    def _summary(self) -> str:
        state, config = self.state, self.config
        layers = "detail" if config.model.detail else f"L = {config.model.num_layers} style layers"
        images = f"{len(self.task)} images, on {self.team.device}"
        lines = [f"{config.name}: {config.model.resolution}², {layers}, V = {config.verifier.spec}, {images}"]
        for name, module in [*state.model.named_children(), ("discriminator", state.discriminator)]:
            lines.append(f"  {name:<14}{sum(p.numel() for p in module.parameters()) / 1e6:8.2f} M parameters")
        if state.step:
            lines.append(f"resuming at {state.images / 1000:.1f} kimg after {timedelta(seconds=round(state.seconds))}")
        return "\n".join(lines)

    def _require_finite(self) -> None:
        if self.team.any(not self.means.finite()):
            good = self.out / STATE
            where = f"the last good state is {good}" if good.exists() else "no state was saved yet"
            raise FicganError(
                f"a loss is not finite at step {self.state.step} ({self.state.images / 1000:.1f} kimg); {where}; "
                "lower optimizer.lr or the weight of the loss that grew in stats.jsonl"
            )


def _without_paths(config: Config) -> dict[str, object]:
    """The configuration for a checkpoint that goes to others: V by its file's name, without this machine's folders."""
    record = config.model_dump(mode="json")
    kind, colon, path = config.verifier.spec.partition(":")
    record["verifier"]["spec"] = f"{kind}{colon}{Path(path).name}"
    return record


def _crossed(images: int, batch: int, every_kimg: float) -> bool:
    every = max(1, round(every_kimg * 1000))
    return images // every > (images - batch) // every


class Team:
    """The processes that torchrun started, or just this one; with several each takes its own GPU."""

    def __init__(self, device: str = "auto") -> None:
        self.world = int(os.environ.get("WORLD_SIZE", "1"))
        self.rank = int(os.environ.get("RANK", "0"))
        self.first = self.rank == 0
        name = resolve_device(device)
        cuda = name != "cpu"
        if cuda and self.world > 1:
            name = f"cuda:{os.environ.get('LOCAL_RANK', '0')}"
        elif name == "cuda":  # set_device wants a number
            name = f"cuda:{torch.cuda.current_device()}"
        self.device = torch.device(name)
        if cuda:
            torch.cuda.set_device(self.device)
        self._own_group = self.world > 1 and not dist.is_initialized()
        if self._own_group:
            dist.init_process_group("nccl" if cuda else "gloo")

    def share(self, modules: Iterable[nn.Module]) -> None:
        if self.world > 1:
            for module in modules:
                for tensor in [*module.parameters(), *module.buffers()]:
                    dist.broadcast(tensor.detach(), src=0)

    def average_gradients(self, parameters: Iterable[Tensor]) -> None:
        """Replace each gradient by its mean over all processes, in one reduction."""
        if self.world == 1:
            return
        gradients = [p.grad for p in parameters if p.grad is not None]
        flat = self.average(torch.cat([gradient.flatten() for gradient in gradients]))
        for gradient, mean in zip(gradients, flat.split([gradient.numel() for gradient in gradients]), strict=True):
            gradient.copy_(mean.view_as(gradient))

    def average(self, tensor: Tensor) -> Tensor:
        if self.world > 1:
            dist.all_reduce(tensor)
            tensor /= self.world
        return tensor

    def any(self, flag: bool) -> bool:
        """Whether the flag is set in any process; all must ask at the same step."""
        if self.world == 1:
            return flag
        return bool(self.average(torch.tensor([float(flag)], device=self.device)).item())

    def leave(self) -> None:
        if self._own_group:
            dist.destroy_process_group()
