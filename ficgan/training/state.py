"""What a run resumes from, as one safetensors file, and what it shows: means of the losses, sheets of pictures."""

from __future__ import annotations

import copy
import json
import resource
import sys
import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ficgan.arrays import to_pixels
from ficgan.config import AugmentConfig, Config, OptimizerConfig
from ficgan.errors import FicganError, Progress, unheard
from ficgan.files import atomic_write
from ficgan.models import load_tensors, save_tensors

KIND = "training state"


class TrainingState:
    """Networks, optimisers, average and counters of a run; `networks` makes the networks and the discriminator."""

    def __init__(
        self, config: Config, device: torch.device, networks: Callable[[Config], tuple[nn.Module, nn.Module]]
    ) -> None:
        self.config = config
        torch.manual_seed(config.seed)
        model, discriminator = networks(config)
        for module in (model, discriminator):
            module.to(device=device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.model: Any = model  # of the task's own kind
        self.discriminator: Any = discriminator
        self.judge: Callable[..., Any] = discriminator  # D as losses call it; a run may compile it
        self.averaged: Any = copy.deepcopy(model).eval().requires_grad_(False)
        self.augment = Augment(config.augment)
        rates, own = config.optimizer, config.loss.r1_interval / (config.loss.r1_interval + 1)
        self.optimizer_g = _adam(model, rates, rates.lr)
        # R1 comes every n steps as a step of its own: lr·c and β^c with c = n/(n+1).
        self.optimizer_d = _adam(discriminator, rates, rates.lr_discriminator or rates.lr, own)
        self.modules = {"model": model, "discriminator": discriminator, "ema": self.averaged}
        self.optimizers = {"adam_g": self.optimizer_g, "adam_d": self.optimizer_d}
        self.step = 0
        self.d_step = 0
        self.seconds = 0.0
        self.start_images = 0  # seen before this run, when it began from the weights of another
        self.data = ""  # fingerprint of the training images: a run resumes with the same images only

    @property
    def images(self) -> int:
        return self.step * self.config.optimizer.batch

    @property
    def kimg(self) -> float:
        """Thousands of images the weights have seen, those of an earlier run included: the clock of all schedules."""
        return (self.images + self.start_images) / 1000

    def set_learning_rate(self, factor: float) -> None:
        for optimizer in self.optimizers.values():
            for group in optimizer.param_groups:
                group["lr"] = group["base_lr"] * factor

    @torch.no_grad()
    def average(self) -> None:
        """Fold weights and buffers into their average after a step."""
        config, half_life = self.config.ema, self.config.ema.half_life_kimg * 1000
        if config.ramp > 0:
            half_life = min(half_life, self.images * config.ramp)
        keep = 0.5 ** (self.config.optimizer.batch / max(half_life, 1e-8))
        averages, news = ([*one.parameters(), *one.buffers()] for one in (self.averaged, self.model))
        for own, new in zip(averages, news, strict=True):
            own.lerp_(new.detach(), 1 - keep)

    def save(self, path: Path) -> None:
        tensors = packed(self.modules, self.optimizers) | {"augment.sign_sum": self.augment.sign_sum}
        counters = {"d_step": self.d_step, "seconds": self.seconds, "augment_sign_steps": self.augment.sign_steps}
        self._write(path, tensors, counters)

    def save_start(self, path: Path) -> None:
        """Write what another run can begin from: the averaged model and D in half precision, an eighth of a state."""
        tensors = packed({"model": self.averaged, "discriminator": self.discriminator}, {})
        halves = {name: value.half() for name, value in tensors.items()}
        self._write(path, {name: half if half.isfinite().all() else tensors[name] for name, half in halves.items()}, {})

    def _write(self, path: Path, tensors: Mapping[str, Tensor], more: Mapping[str, float]) -> None:
        counters = {"step": self.step, "start_images": self.start_images, "augment_p": self.augment.p, **more}
        header = {"config": self.config.model_dump(mode="json"), "data": self.data, "counters": counters}
        save_tensors(path, tensors, header, kind=KIND)

    def load(self, path: Path) -> None:
        tensors, header = load_tensors(path, kind=KIND)
        was, now, counters = header["config"], self.config.model_dump(mode="json"), header["counters"]
        for name in ("optimizer.batch", "optimizer.accumulate", "seed"):
            section, _, key = name.rpartition(".")
            before, after = ((tree[section] if section else tree)[key] for tree in (was, now))
            if before != after:
                raise FicganError(f"{path} is of a run with {name}={before}, not {after}; keep it or use another --out")
        if self.data and header.get("data") and header["data"] != self.data:
            raise FicganError(f"{path} is of a run on other images; keep the data, or use another --out (with --start)")
        try:
            unpack(tensors, self.modules, self.optimizers)
        except RuntimeError:
            raise FicganError(f"{path} is of a run with other networks; use another --out folder") from None
        self.step, self.d_step = counters["step"], counters["d_step"]
        self.seconds, self.start_images = counters["seconds"], counters["start_images"]
        self.augment.p, self.augment.sign_steps = counters["augment_p"], counters.get("augment_sign_steps", 0)
        self.augment.sign_sum = tensors.get("augment.sign_sum", self.augment.sign_sum)

    def begin_from(self, path: Path) -> None:
        """Take the networks of another run's state or start file (E, G, D and their average); Adam starts afresh."""
        tensors, header = load_tensors(path, kind=KIND)
        try:
            for name, module in self.modules.items():
                module.load_state_dict(below(tensors, name) or below(tensors, "model"))
        except RuntimeError:
            raise FicganError(f"{path} is of a run with other networks; use its configuration") from None
        counters = header["counters"]
        self.augment.p = counters["augment_p"]
        batch = header["config"]["optimizer"]["batch"]
        self.start_images = counters["start_images"] + counters["step"] * batch


def packed(modules: Mapping[str, nn.Module], optimizers: Mapping[str, torch.optim.Optimizer]) -> dict[str, Tensor]:
    """Tensors by name of networks and of optimisers: "name.parameter" and "name.index.slot"."""
    tensors = {f"{name}.{key}": value for name, one in modules.items() for key, value in one.state_dict().items()}
    for name, optimizer in optimizers.items():
        for index, slots in optimizer.state_dict()["state"].items():
            tensors |= {f"{name}.{index}.{slot}": torch.as_tensor(value) for slot, value in slots.items()}
    return tensors


def unpack(
    tensors: Mapping[str, Tensor], modules: Mapping[str, nn.Module], optimizers: Mapping[str, torch.optim.Optimizer]
) -> None:
    for name, module in modules.items():
        module.load_state_dict(below(tensors, name))
    for name, optimizer in optimizers.items():
        slots: dict[int, dict[str, Any]] = {}
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        for key, value in below(tensors, name).items():
            index, _, slot = key.partition(".")
            like = parameters[int(index)]
            if value.shape == like.shape:  # in the layout of its parameter, or Adam's fast path is lost
                value = torch.empty_like(like, memory_format=torch.preserve_format).copy_(value)
            slots.setdefault(int(index), {})[slot] = value
        optimizer.load_state_dict({"state": slots, "param_groups": optimizer.state_dict()["param_groups"]})


def below(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {key.removeprefix(prefix + "."): value for key, value in tensors.items() if key.startswith(prefix + ".")}


def _adam(module: nn.Module, config: OptimizerConfig, lr: float, c: float = 1.0) -> torch.optim.Adam:
    group = {"params": list(module.parameters()), "lr": lr * c, "base_lr": lr * c}
    return torch.optim.Adam([group], betas=tuple(beta**c for beta in config.betas), eps=config.eps)


class Augment:
    """Random geometry and colour (kornia), each with probability p; p follows the discriminator's r_t.

    Without `config.adaptive` it hands images through. Source: Karras et al. 2020, section 3.2.
    """

    def __init__(self, config: AugmentConfig) -> None:
        self.config = config
        self.p = 0.0
        # Sum of r_t since p last moved, on the device; with `sign_steps` part of what a run resumes from.
        self.sign_sum = torch.zeros(())
        self.sign_steps = 0

    def observe(self, r_t: Tensor, batch: int, kimg: float) -> None:
        """Count one discriminator step with r_t, the mean sign of real logits; p follows every `interval` steps."""
        if not self.config.adaptive or kimg < self.config.start_kimg:
            return
        self.sign_sum, self.sign_steps = self.sign_sum.to(r_t.device) + r_t, self.sign_steps + 1
        if self.sign_steps >= self.config.interval:  # a resumed run may have a shorter one
            direction = 1 if self.sign_sum.item() / self.sign_steps > self.config.target else -1
            step = direction * self.sign_steps * batch / (self.config.speed_kimg * 1000)
            self.p = min(max(self.p + step, 0.0), self.config.max_p)
            self.sign_sum, self.sign_steps = torch.zeros_like(self.sign_sum), 0

    def __call__(self, x: Tensor) -> Tensor:  # [B,3,H,W] in [−1, 1] → the same, augmented
        if not self.config.adaptive or not self.p > 0:
            return x
        return _pipeline(round(self.p, 2))(x.float() * 0.5 + 0.5) * 2 - 1


@lru_cache(maxsize=1)
def _pipeline(p: float) -> nn.Module:
    from kornia import augmentation as K

    return K.AugmentationSequential(
        K.RandomHorizontalFlip(p=p / 2),
        K.RandomAffine(degrees=10, translate=(0.1, 0.1), scale=(0.85, 1.15), padding_mode="reflection", p=p),
        K.RandomBrightness((0.8, 1.2), p=p),
        K.RandomContrast((0.7, 1.3), p=p),
        K.RandomSaturation((0.5, 1.5), p=p),
        K.RandomHue((-0.05, 0.05), p=p),
        data_keys=["input"],
    )


# -- what a run shows --------------------------------------------------------------------------------------------------


class Means:
    """Sums of named scalars, kept on their device until they are read."""

    def __init__(self) -> None:
        self._sums: dict[str, Tensor] = {}
        self._counts: dict[str, int] = {}

    def add(self, terms: dict[str, Tensor]) -> None:
        for name, value in terms.items():
            self._sums[name] = self._sums[name] + value if name in self._sums else value.clone()
            self._counts[name] = self._counts.get(name, 0) + 1

    def finite(self) -> bool:
        return not self._sums or bool(torch.stack([s.float() for s in self._sums.values()]).isfinite().all())

    def take(self, average: Callable[[Tensor], Tensor]) -> dict[str, float]:
        names = sorted(self._sums)
        if not names:
            return {}
        values = average(torch.stack([self._sums[n].float() / self._counts[n] for n in names]))
        self._sums, self._counts = {}, {}
        return dict(zip(names, (float(v) for v in values), strict=True))


def reading_lines(progress: str) -> Progress:
    """A line on stderr when a stage begins, every 30 seconds, and when it ends; none if `progress` is none."""
    if progress == "none":
        return unheard
    from tqdm import tqdm

    last, at = "", 0.0

    def line(done: int, total: int | None, stage: str) -> None:
        nonlocal last, at
        now = time.monotonic()
        if stage != last or done == total or now - at >= 30:
            tqdm.write(f"{stage}: {done} of {total}", file=sys.stderr)
            last, at = stage, now

    return line


class Reporter:
    """Writes the numbers of every tick: a bar or lines, `stats.jsonl` (less its ticks after `done`), tensorboard."""

    def __init__(self, out: Path, total: int, done: int, progress: str = "auto") -> None:
        from torch.utils.tensorboard import SummaryWriter
        from tqdm import tqdm

        self.total = total
        if (out / "stats.jsonl").exists():
            lines = (out / "stats.jsonl").read_text(encoding="utf-8").splitlines()
            kept = [line for line in lines if line.endswith("}") and json.loads(line)["kimg"] <= done / 1000]
            with atomic_write(out / "stats.jsonl", overwrite=True) as file:
                file.write("".join(line + "\n" for line in kept).encode())
        self._file = open(out / "stats.jsonl", "a", encoding="utf-8")  # noqa: SIM115 (closed by `close`)
        self._board = SummaryWriter(str(out / "tensorboard"), purge_step=done)
        bar = progress == "auto" and sys.stderr.isatty()
        self._bar = tqdm(total=total, initial=done, unit="img", disable=not bar, dynamic_ncols=True, file=sys.stderr)
        self._lines = progress != "none"

    def advance(self, images: int) -> None:
        self._bar.update(images)

    def tick(self, images: int, seconds_per_kimg: float, numbers: dict[str, float], elapsed: float) -> None:
        memory = peak_memory_mib()
        record = {"kimg": images / 1000, "sec_per_kimg": seconds_per_kimg, "seconds": elapsed, "memory_mib": memory}
        for name, value in (record | numbers).items():
            self._board.add_scalar(name, value, images)
        self._board.flush()
        self._file.write(json.dumps({**record, "time": time.time(), **numbers}) + "\n")
        self._file.flush()
        left = timedelta(seconds=round(max(self.total - images, 0) / 1000 * seconds_per_kimg))
        shown = "  ".join(f"{name} {value:.3f}" for name, value in numbers.items() if name != "total")
        speed = f"sec/kimg {seconds_per_kimg:<8.2f} mem {memory:.0f} MiB"
        self.say(f"kimg {images / 1000:<9.2f} {speed}  left {left}  {shown}")

    def judged(self, images: int, figures: dict[str, float]) -> None:
        """Figures of a snapshot, for tensorboard."""
        for name, value in figures.items():
            self._board.add_scalar(f"held out/{name}", value, images)

    def say(self, text: str) -> None:
        if self._lines:
            self._bar.write(text, file=sys.stderr)

    def close(self) -> None:
        self._bar.close()
        self._board.close()
        self._file.close()


def peak_memory_mib() -> float:
    """Peak memory of the GPU where there is one, else of the process."""
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        return torch.cuda.max_memory_allocated() / 2**20
    scale = 2**20 if sys.platform == "darwin" else 2**10  # ru_maxrss is in bytes there, in KiB elsewhere
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / scale


def save_grid(images: Tensor, path: Path) -> None:
    """Write images [rows,columns,3,R,R] in [−1, 1] as one PNG, whole or not at all."""
    from PIL import Image

    rows, columns, _, height, width = images.shape
    sheet = to_pixels(images.flatten(0, 1)).reshape(rows, columns, height, width, 3).swapaxes(1, 2)
    with atomic_write(path, overwrite=True) as file:
        Image.fromarray(sheet.reshape(rows * height, columns * width, 3)).save(file, format="PNG")
