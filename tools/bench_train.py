"""Time of a training step beside the least that its convolutions and matrix products allow, and where the rest goes.

    python tools/bench_train.py [--config NAME] [--device cuda] [--batch 4 8 16] [--resolution 64 128] [--steps 10]
                                [key=value ...]

The step is the training loop's own, with data (`--data`, or noise; `--run` is the folder of a run, with what it has
read), optimisers, average and R1, at a moment when all losses take part. One step with R1 is weighed once in
`loss.r1_interval`. Two floors, of the layers (convolutions and matrix products, V's included, resampling filters left
out) of one uncompiled step, counted operator by operator:

    arithmetic   Σ FLOPs / rate
    roofline     Σ over layers of max(FLOPs / rate, bytes / bandwidth)

Rates (the better of a large convolution and a large matrix product in the layer's dtype) and bandwidth (a large copy)
are measured in turn with the steps; ratios are medians of the rounds' ratios. With compile=true the account cannot tell
the reference's resampling from other convolutions, nor parts of a compiled kernel from each other; on a CPU these
kernels count as overhead.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from _counting import CLASSES, Account, Counter, Executed, Scopes, account, floors, scoped
from _timing import arithmetic, copy_of, interleaved, machine, median, peak_memory, release
from PIL import Image

from ficgan import ops
from ficgan.config import Config, load_config
from ficgan.device import resolve_device
from ficgan.errors import FicganError, UsageError
from ficgan.training.loop import Team, _Run

AUGMENT_P = 0.2
"""Where an adaptive augmentation is held unless told: what it reaches in the middle of a training."""
COPY_BYTES = {"cuda": 2.0**30, "cpu": 2.0**27}


class Trainer:
    """The loop's own step, with or without R1, at a fixed moment of the schedule.

    Args:
        run: of `ficgan.training.loop`.
        augment_p: probability of the augmentation, held there.
    """

    def __init__(self, run: _Run, augment_p: float) -> None:
        self.run, self.augment_p = run, augment_p
        config = run.config
        ramps = (
            config.loss.adversarial_start_kimg + config.loss.adversarial_ramp_kimg,
            config.loss.verification_ramp_kimg[1],
            config.augment.start_kimg,
        )
        run.state.start_images = int(max(ramps) * 1000) + 1
        run.state.model.train()
        run.state.discriminator.train()
        judged = config.loss.adversarial > 0
        self.interval = config.loss.r1_interval if judged and config.loss.r1_gamma > 0 else 0
        """Every so many steps there is R1; 0: never."""

    def step(self, *, r1: bool) -> None:
        self.run.state.augment.p = self.augment_p
        self.run.state.d_step = 0 if r1 else 1
        self.run._step()

    def kinds(self) -> dict[str, tuple[Callable[[], None], float]]:
        """The kinds of step there are, each with its share of all steps."""

        def plain() -> None:
            self.step(r1=False)

        def with_r1() -> None:
            self.step(r1=True)

        if not self.interval:
            return {"plain": (plain, 1.0)}
        if self.interval == 1:
            return {"R1": (with_r1, 1.0)}
        return {"plain": (plain, 1 - 1 / self.interval), "R1": (with_r1, 1 / self.interval)}


@contextmanager
def trainer(
    config: Config, device: str, data: Sequence[Path], augment_p: float | None, folder_of: Path | None = None
) -> Iterator[Trainer]:
    """A run whose files, and whose noise images where no data is given, are gone afterwards.

    In the folder of a run, `folder_of`, it begins with that run's state and writes nothing.
    """
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that V is untrained
        team = Team(_device(device))
        try:
            paths = list(data) or [_noise(Path(folder) / "faces", config)]
            run = _Run(config, paths, folder_of or Path(folder) / "run", team, None, None, None, "none")
            held = AUGMENT_P if augment_p is None else augment_p
            yield Trainer(run, held if config.augment.adaptive else 0.0)
        finally:
            team.leave()


def _device(name: str) -> str:
    """The device with its number, which torch.cuda.set_device wants."""
    resolved = resolve_device(name)
    return f"cuda:{torch.cuda.current_device()}" if resolved == "cuda" else resolved


def _noise(folder: Path, config: Config) -> Path:
    folder.mkdir()
    rng = np.random.default_rng(0)
    for index in range(config.optimizer.batch):
        pixels = rng.integers(0, 256, (config.model.resolution, config.model.resolution, 3), np.uint8)
        Image.fromarray(pixels).save(folder / f"{index:04d}.png", compress_level=1)
    return folder


def count(subject: Trainer) -> list[tuple[float, list[Executed]]]:
    """The operators of each kind of step, with its share of all steps."""
    found = []
    for step, share in subject.kinds().values():
        scopes = Scopes()
        with scoped(subject.run, scopes), Counter(scopes) as counter:
            step()
        found.append((share, counter.executed))
    return found


@dataclass(frozen=True)
class Measured:
    """One configuration on one machine; seconds of a mean step."""

    step: float
    arithmetic: float
    roofline: float
    beside_arithmetic: float
    beside_roofline: float
    rates: dict[str, float]
    """FLOP/s by what reached them."""
    bandwidth: float
    peak_mib: float
    counted: list[tuple[float, list[Executed]]]
    accounts: list[tuple[float, Account]]


def measure(config: Config, options: argparse.Namespace) -> Measured:
    """Count, time and profile the training step of `config`."""
    uncompiled = config.model_copy(update={"compile": False})
    with trainer(uncompiled, options.device, options.data, options.augment_p, options.run) as subject:
        for step, _ in subject.kinds().values():
            step()
        counted = count(subject)
    with trainer(config, options.device, options.data, options.augment_p, options.run) as subject:
        device = subject.run.team.device
        release()
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
        kinds = subject.kinds()
        for step, _ in kinds.values():
            step()
            step()
        peak = peak_memory(device)
        dtypes = {e.dtype for _, executed in counted for e in executed if e.is_layer and e.dtype is not None}
        rates = {name: (dtype, *value) for dtype in dtypes for name, value in arithmetic(dtype, device).items()}
        moved = COPY_BYTES[device.type]
        works: dict[str, Callable[[], object]] = {"copy": copy_of(moved, device)}
        works |= {name: work for name, (_, _, work) in rates.items()}
        works |= {name: step for name, (step, _) in kinds.items()}
        rounds = interleaved(works, device, options.seconds, warm_up=1)
        while len(rounds) < options.steps:
            rounds += interleaved(works, device, 0, warm_up=0)
        rows = []
        for times in rounds:
            rate: dict[torch.dtype, float] = defaultdict(float)
            for name, (dtype, flops, _) in rates.items():
                rate[dtype] = max(rate[dtype], flops / times[name])
            both = [(share, floors(executed, rate, moved / times["copy"])) for share, executed in counted]
            rows.append(
                {
                    "step": sum(share * times[name] for name, (_, share) in kinds.items()),
                    "arithmetic": sum(share * floor.arithmetic for share, floor in both),
                    "roofline": sum(share * floor.roofline for share, floor in both),
                }
            )
        with scoped(subject.run, Scopes()):
            for step, _ in kinds.values():
                step()
            accounts = [(share, account(step, device)) for step, share in kinds.values()]
    return Measured(
        median(rows, lambda r: r["step"]),
        median(rows, lambda r: r["arithmetic"]),
        median(rows, lambda r: r["roofline"]),
        median(rows, lambda r: r["step"] / r["arithmetic"]),
        median(rows, lambda r: r["step"] / r["roofline"]),
        {name: median(rounds, lambda r, n=name, f=flops: f / r[n]) for name, (_, flops, _) in rates.items()},  # type: ignore[misc]
        median(rounds, lambda r: moved / r["copy"]),
        peak,
        counted,
        accounts,
    )


HEAD = (
    "| config | R | batch | s/kimg | GFLOP/image | arithmetic floor s/kimg | roofline s/kimg | step / arithmetic "
    "| step / roofline | peak MiB |\n|-|-|-|-|-|-|-|-|-|-|"
)


def row(config: Config, found: Measured) -> str:
    """A line of the first table."""
    batch = config.optimizer.batch
    flops = sum(share * e.flops for share, executed in found.counted for e in executed if e.is_layer)
    cells = [
        config.name + (", compiled" if config.compile else ""),
        str(config.model.resolution),
        str(batch),
        *(f"{value / batch * 1000:.3g}" for value in (found.step,)),
        f"{flops / batch / 1e9:.3g}",
        *(f"{value / batch * 1000:.3g}" for value in (found.arithmetic, found.roofline)),
        f"{found.beside_arithmetic:.2f}",
        f"{found.beside_roofline:.2f}",
        f"{found.peak_mib:.0f}",
    ]
    return f"| {' | '.join(cells)} |"


def details(found: Measured, top: int) -> Iterator[str]:
    """Rates, the account by class, and the operators that take most."""
    yield "Rates: " + "; ".join(f"{name} {rate / 1e9:.4g} GFLOP/s" for name, rate in found.rates.items())
    yield f"copy {found.bandwidth / 1e9:.3g} GB/s (read + written)."
    seconds: dict[str, float] = defaultdict(float)
    operators: dict[tuple[str, str], float] = defaultdict(float)
    for share, each in found.accounts:
        for kind, value in each.seconds.items():
            seconds[kind] += share * value
        for key, value in each.operators.items():
            operators[key] += share * value
    total = sum(seconds.values())
    work: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0])
    for share, executed in found.counted:
        for e in executed:
            for index, value in enumerate((1, e.flops, e.bytes)):
                work[e.kind][index] += share * value
    beside = total / found.step
    yield f"\nAccount of a profiled step of {total * 1000:.4g} ms ({beside:.2f} of a step without profiler):\n"
    yield "| class | ms | share | operators | GFLOP | GB as executed | GB / bandwidth, ms |\n|-|-|-|-|-|-|-|"
    for kind in CLASSES:
        if kind in seconds or kind in work:
            calls, flops, moved = work[kind]
            yield (
                f"| {kind} | {seconds[kind] * 1000:.4g} | {seconds[kind] / total:.1%} | {calls:.0f} "
                f"| {flops / 1e9:.3g} | {moved / 1e9:.3g} | {moved / found.bandwidth * 1000:.4g} |"
            )
    if top:
        yield "\n| class | operator | ms | share |\n|-|-|-|-|"
        for (kind, name), value in sorted(operators.items(), key=lambda item: -item[1])[:top]:
            yield f"| {kind} | `{name}` | {value * 1000:.4g} | {value / total:.1%} |"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", default="tiny", help="name or YAML file")
    parser.add_argument("--device", default="auto", help="cpu, cuda or auto")
    parser.add_argument("--batch", type=int, nargs="+", help="images of a step, one row each")
    parser.add_argument("--resolution", type=int, nargs="+", help="side of the images, rows for each")
    parser.add_argument("--steps", type=int, default=10, help="rounds at least")
    parser.add_argument("--seconds", type=float, default=5.0, help="time of the rounds at least, for each row")
    parser.add_argument("--data", type=Path, nargs="+", default=[], help="aligned faces; noise if not given")
    parser.add_argument("--run", type=Path, help="folder of a run on the same data: what it has read is not read again")
    parser.add_argument("--augment-p", type=float, help=f"hold the adaptive augmentation there (default {AUGMENT_P})")
    parser.add_argument("--threads", type=int, help="torch threads on a CPU; all cores if not given")
    parser.add_argument("--top", type=int, default=15, help="operators in the last table of each row")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="of the configuration")
    arguments = sys.argv[1:] if arguments is None else arguments
    # Taken out beforehand: argparse would give those after `--batch 4 8` to it.
    overrides = [argument for argument in arguments if "=" in argument and not argument.startswith("-")]
    options = parser.parse_args([argument for argument in arguments if argument not in overrides])
    options.overrides += overrides
    try:
        bench(options)
    except FicganError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


def bench(options: argparse.Namespace) -> None:
    ops.keep_freed_memory()
    if options.threads:
        torch.set_num_threads(options.threads)
    if options.steps < 1:
        raise UsageError(f"--steps {options.steps} measures nothing; give at least 1")
    configs = [
        load_config(options.config, [*options.overrides, *side, *batch])
        for side in [[f"model.resolution={n}"] for n in options.resolution or []] or [[]]
        for batch in [[f"optimizer.batch={n}"] for n in options.batch or []] or [[]]
    ]
    print(f"{machine(torch.device(_device(options.device)))}\n\n{HEAD}", flush=True)
    results = []
    for config in configs:
        results.append(measure(config, options))
        print(row(config, results[-1]), flush=True)
    for config, found in zip(configs, results, strict=True):
        print(f"\n### {config.name}, {config.model.resolution}², batch {config.optimizer.batch}\n")
        for line in details(found, options.top):
            print(line)


if __name__ == "__main__":
    sys.exit(main())
