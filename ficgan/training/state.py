"""What a run resumes from, as one safetensors file, and what it shows.

The file holds networks, optimisers, average, augmentation and counters. Shown are running means of the losses, in three
places, and sheets of pictures.
"""

from __future__ import annotations

import copy
import json
import sys
import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn

from ficgan.config import AugmentConfig, Config, EmaConfig
from ficgan.errors import FicganError, Progress, unheard
from ficgan.files import atomic_write
from ficgan.models import load_tensors, save_tensors

KIND = "training state"

# The networks that a run trains.
M = TypeVar("M", bound=nn.Module)
# Its discriminator.
D = TypeVar("D", bound=nn.Module)


class TrainingState(Generic[M, D]):
    """Networks, optimisers, average and counters of a run; `networks` makes the networks and the discriminator."""

    def __init__(self, config: Config, device: torch.device, networks: Callable[[Config], tuple[M, D]]) -> None:
        self.config = config
        torch.manual_seed(config.seed)
        self.model, self.discriminator = networks(config)
        for module in (self.model, self.discriminator):
            module.to(device=device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        # D as losses call it; a run may compile it.
        self.judge: Callable[..., Any] = self.discriminator
        self.ema = Ema(self.model, config.ema)
        self.augment = Augment(config.augment)
        self.optimizer_g = _adam(self.model, config, config.optimizer.lr, interval=None)
        self.optimizer_d = _adam(
            self.discriminator,
            config,
            config.optimizer.lr_discriminator or config.optimizer.lr,
            interval=config.loss.r1_interval,
        )
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
        for optimizer in (self.optimizer_g, self.optimizer_d):
            for group in optimizer.param_groups:
                group["lr"] = group["base_lr"] * factor

    def save(self, path: Path) -> None:
        tensors = packed(self._modules(), self._optimizers())
        tensors["augment.sign_sum"] = self.augment.sign_sum
        counters = {
            "step": self.step,
            "d_step": self.d_step,
            "seconds": self.seconds,
            "start_images": self.start_images,
            "augment_p": self.augment.p,
            "augment_sign_steps": self.augment.sign_steps,
        }
        header = {"config": self.config.model_dump(mode="json"), "data": self.data, "counters": counters}
        save_tensors(path, tensors, header, kind=KIND)

    def save_start(self, path: Path) -> None:
        """Write what another run can begin from: the averaged model and D in half precision, an eighth of a state."""
        tensors = packed({"model": self.ema.model, "discriminator": self.discriminator}, {})
        halves = {name: value.half() for name, value in tensors.items()}
        tensors = {name: half if half.isfinite().all() else tensors[name] for name, half in halves.items()}
        counters = {"step": self.step, "start_images": self.start_images, "augment_p": self.augment.p}
        header = {"config": self.config.model_dump(mode="json"), "data": self.data, "counters": counters}
        save_tensors(path, tensors, header, kind=KIND)

    def load(self, path: Path) -> None:
        tensors, header = load_tensors(path, kind=KIND)
        counters = header["counters"]
        self._require_same_run(path, header)
        self.augment.sign_sum = tensors.get("augment.sign_sum", self.augment.sign_sum)
        self.augment.sign_steps = counters.get("augment_sign_steps", 0)
        try:
            unpack(tensors, self._modules(), self._optimizers())
        except RuntimeError:
            raise FicganError(
                f"{path} is of a run with other networks; start the run in another --out folder"
            ) from None
        self.step, self.d_step = counters["step"], counters["d_step"]
        self.seconds, self.start_images = counters["seconds"], counters["start_images"]
        self.augment.p = counters["augment_p"]

    def begin_from(self, path: Path) -> None:
        """Take the networks of another run's state or start file (E, G, D and their average); Adam starts afresh."""
        tensors, header = load_tensors(path, kind=KIND)
        try:
            for name, module in self._modules().items():
                module.load_state_dict(below(tensors, name) or below(tensors, "model"))
        except RuntimeError:
            raise FicganError(f"{path} is of a run with other networks; use its configuration") from None
        counters = header["counters"]
        self.augment.p = counters["augment_p"]
        batch = header["config"]["optimizer"]["batch"]
        self.start_images = counters["start_images"] + counters["step"] * batch

    def _require_same_run(self, path: Path, header: dict[str, Any]) -> None:
        was, now = header["config"], self.config.model_dump(mode="json")
        for section, key in (("optimizer", "batch"), ("optimizer", "accumulate"), ("", "seed")):
            before, after = ((tree[section] if section else tree)[key] for tree in (was, now))
            if before != after:
                name = f"{section}.{key}" if section else key
                raise FicganError(f"{path} is of a run with {name}={before}, not {after}; keep it or use another --out")
        if self.data and header.get("data") and header["data"] != self.data:
            raise FicganError(f"{path} is of a run on other images; keep the data, or use another --out (with --start)")

    def _optimizers(self) -> dict[str, torch.optim.Optimizer]:
        return {"adam_g": self.optimizer_g, "adam_d": self.optimizer_d}

    def _modules(self) -> dict[str, nn.Module]:
        return {"model": self.model, "discriminator": self.discriminator, "ema": self.ema.model}


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


def _adam(module: nn.Module, config: Config, lr: float, interval: int | None) -> torch.optim.Adam:
    """Adam; where a regulariser comes every `interval` steps as a step of its own, lr·c and β^c with c = n/(n+1)."""
    c = 1.0 if interval is None else interval / (interval + 1)
    betas = tuple(beta**c for beta in config.optimizer.betas)
    group = {"params": list(module.parameters()), "lr": lr * c, "base_lr": lr * c}
    return torch.optim.Adam([group], betas=betas, eps=config.optimizer.eps)


class Ema(Generic[M]):
    """Averaged copy of a model, in evaluation mode."""

    def __init__(self, model: M, config: EmaConfig) -> None:
        self.config = config
        self.model = copy.deepcopy(model).eval().requires_grad_(False)

    @torch.no_grad()
    def update(self, model: M, batch: int, images: int) -> None:
        """Fold in weights and buffers after a step of `batch` images, `images` seen so far."""
        half_life = self.config.half_life_kimg * 1000
        if self.config.ramp > 0:
            half_life = min(half_life, images * self.config.ramp)
        keep = 0.5 ** (batch / max(half_life, 1e-8))
        averaged = [*self.model.parameters(), *self.model.buffers()]
        for own, other in zip(averaged, [*model.parameters(), *model.buffers()], strict=True):
            own.lerp_(other.detach(), 1 - keep)


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
        self._pipeline: tuple[float, nn.Module] | None = None

    @property
    def active(self) -> bool:
        return self.config.adaptive and self.p > 0

    def observe(self, r_t: Tensor, batch: int, kimg: float) -> None:
        """Count one discriminator step with r_t, the mean sign of real logits; p follows every `interval` steps."""
        if not self.config.adaptive or kimg < self.config.start_kimg:
            return
        self.sign_sum, self.sign_steps = self.sign_sum.to(r_t.device) + r_t, self.sign_steps + 1
        if self.sign_steps < self.config.interval:
            return
        direction = 1 if self.sign_sum.item() / self.sign_steps > self.config.target else -1
        step = direction * self.sign_steps * batch / (self.config.speed_kimg * 1000)
        self.p = min(max(self.p + step, 0.0), self.config.max_p)
        self.sign_sum, self.sign_steps = torch.zeros_like(self.sign_sum), 0

    def __call__(self, x: Tensor) -> Tensor:  # [B,3,H,W] in [−1, 1] → the same, augmented
        if not self.active:
            return x
        p = round(self.p, 2)
        if self._pipeline is None or self._pipeline[0] != p:
            self._pipeline = (p, _pipeline(p))
        return self._pipeline[1](x.float() * 0.5 + 0.5) * 2 - 1


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
    """Writes the numbers of every tick: a bar or lines, `stats.jsonl`, and tensorboard events."""

    def __init__(self, out: Path, total: int, done: int, progress: str = "auto") -> None:
        from torch.utils.tensorboard import SummaryWriter
        from tqdm import tqdm

        self.total = total
        _forget_after(out / "stats.jsonl", done / 1000)
        self._file = open(out / "stats.jsonl", "a", encoding="utf-8")  # noqa: SIM115 (closed by `close`)
        self._board = SummaryWriter(str(out / "tensorboard"), purge_step=done)
        bar = progress == "auto" and sys.stderr.isatty()
        self._bar = tqdm(total=total, initial=done, unit="img", disable=not bar, dynamic_ncols=True, file=sys.stderr)
        self._lines = progress != "none"

    def advance(self, images: int) -> None:
        self._bar.update(images)

    def tick(self, images: int, seconds_per_kimg: float, numbers: dict[str, float], elapsed: float) -> None:
        memory = peak_memory_mib()
        left = (self.total - images) / 1000 * seconds_per_kimg
        record: dict[str, Any] = {
            "kimg": images / 1000,
            "sec_per_kimg": seconds_per_kimg,
            "seconds": elapsed,
            "memory_mib": memory,
            "time": time.time(),
            **numbers,
        }
        self._file.write(json.dumps(record) + "\n")
        self._file.flush()
        for name, value in record.items():
            if name != "time":
                self._board.add_scalar(name, value, images)
        self._board.flush()
        if self._lines:
            shown = "  ".join(f"{name} {value:.3f}" for name, value in numbers.items() if name != "total")
            self._bar.write(
                f"kimg {images / 1000:<9.2f} sec/kimg {seconds_per_kimg:<8.2f} mem {memory:.0f} MiB  "
                f"left {timedelta(seconds=round(left))}  {shown}",
                file=sys.stderr,
            )

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


def _forget_after(path: Path, kimg: float) -> None:
    if not path.exists():
        return
    lines = path.read_text(encoding="utf-8").splitlines()
    kept = [line for line in lines if line.endswith("}") and json.loads(line)["kimg"] <= kimg]
    if len(kept) < len(lines):
        with atomic_write(path, overwrite=True) as file:
            file.write("".join(line + "\n" for line in kept).encode())


def peak_memory_mib() -> float:
    """Peak memory of the GPU where there is one, else of the process."""
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        return torch.cuda.max_memory_allocated() / 2**20
    import resource

    scale = 2**20 if sys.platform == "darwin" else 2**10  # ru_maxrss is in bytes there, in KiB elsewhere
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / scale


def save_grid(images: Tensor, path: Path) -> None:
    """Write images [rows,columns,3,R,R] in [−1, 1] as one PNG, whole or not at all."""
    from PIL import Image

    rows, columns, _, height, width = images.shape
    pixels = ((images.float().clamp(-1, 1) + 1) * 127.5).round().to(torch.uint8).cpu()
    sheet = pixels.permute(0, 3, 1, 4, 2).reshape(rows * height, columns * width, 3)
    with atomic_write(path, overwrite=True) as file:
        Image.fromarray(sheet.numpy()).save(file, format="PNG")
