"""The diffusion attacker's network: multiplications, time of a forward pass and of a training step, time of candidates.

    python tools/bench_attacks.py [--device cuda] [--preset small patched] [--size 64] [--dtype float32 bfloat16]
                                  [--batch 16] [--candidates 50] [--samples 20] [--threads 1] [--seconds 5] [--profile]

The floor is what the multiplications alone would take at the best rate that a large matrix product or convolution
reaches on this device in the same rounds; "%" is that floor over the time. A training step counts three forward passes.
In bfloat16 the forward pass has its weights in it, the training step computes in it under autocast. The step includes
Adam and the average of the weights.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from _timing import arithmetic, interleaved, machine, median
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from ficgan import ops
from ficgan.device import resolve_device
from ficgan.errors import FicganError, UsageError
from ficgan.lab.attacks.diffusion import PRESETS, DiffusionLearner, Sampler, UNet, sample
from ficgan.lab.attacks.revelio import SCHEDULES

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
FORWARD, TRAIN = "forward", "train"
HEAD = (
    f"{'network':<10}{'dtype':<10}{'weights M':>10}{'GMAC':>8}{'best GFLOP/s':>14}{'forward ms':>12}{'%':>5}"
    f"{'train ms':>10}{'%':>5}{'candidates s':>14}{'%':>5}"
)


@dataclass(frozen=True)
class Measured:
    """One network in one dtype; times in seconds, of an image where nothing else is said."""

    weights: int
    macs: float
    rate: float
    """Best FLOP/s of the device."""
    forward: float
    train: float
    candidates: float
    """All candidates of one face."""
    shares: tuple[float, float, float]
    """Floor over time: forward, train, candidates."""


def macs_of(network: UNet, size: int, device: torch.device) -> float:
    """Multiplications and additions of one image's forward pass."""
    noisy, root = torch.zeros(1, 3, size, size, device=device), torch.ones(1, device=device)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        network(noisy, noisy, root)
    return counter.get_total_flops() / 2


def works_of(
    network: UNet, dtype: torch.dtype, batch: int, size: int, device: torch.device
) -> dict[str, Callable[[], object]]:
    """A forward pass and a training step of a batch."""
    learner = DiffusionLearner(network, 1e-4, SCHEDULES["small"], "velocity", dtype=dtype)
    user = UNet(network.architecture, size).to(device, dtype).eval()
    seen, clear = torch.rand(2, batch, 3, size, size, device=device)
    root = torch.full((1,), 0.5, device=device)

    def forward() -> Tensor:
        with torch.inference_mode():
            return user(clear, seen, root)

    return {FORWARD: forward, TRAIN: lambda: learner.step(seen, clear, 0)}


def measure(preset: str, dtype: torch.dtype, options: argparse.Namespace, device: torch.device) -> Measured:
    size, batch = options.size, options.batch
    network = UNet(PRESETS[preset], size).to(device)
    works = works_of(network, dtype, batch, size, device)
    if options.profile:
        for name, work in works.items():
            print(f"\n{preset}, {dtype}, {name}\n{profile(work)}")
    peaks = arithmetic(dtype, device)
    rounds = interleaved(works | {name: work for name, (_, work) in peaks.items()}, device, options.seconds)
    macs = macs_of(network, size, device)

    def rate(times: dict[str, float]) -> float:
        return max(flops / times[name] for name, (flops, _) in peaks.items())

    best = median(rounds, rate)  # type: ignore[arg-type]
    forward, train = (median(rounds, lambda each, name=name: each[name]) for name in (FORWARD, TRAIN))
    candidates = time_of_candidates(UNet(PRESETS[preset], size).to(device, dtype).eval(), options, device)
    floor = 2 * macs * batch
    shares = (
        median(rounds, lambda each: floor / rate(dict(each)) / each[FORWARD]),
        median(rounds, lambda each: 3 * floor / rate(dict(each)) / each[TRAIN]),
        2 * macs * options.candidates * options.samples / best / candidates,
    )
    weights = sum(p.numel() for p in network.parameters())
    return Measured(weights, macs, best, forward / batch, train / batch, candidates, shares)


def time_of_candidates(network: UNet, options: argparse.Namespace, device: torch.device) -> float:
    """Seconds for all candidates of one face."""
    sampler = Sampler(SCHEDULES["small"], "ddim", options.samples, predicts="velocity")
    seen, count = torch.zeros(1, 3, options.size, options.size, device=device), options.candidates
    begin = time.perf_counter()
    with torch.inference_mode():
        sample(network, seen, sampler, n=count, seeds=range(count), batch=options.batch).sum().item()
    return time.perf_counter() - begin


def profile(work: Callable[[], object]) -> str:
    """Operators by their own time, the longest first."""
    work()
    with torch.profiler.profile() as profiler:
        work()
    return profiler.key_averages().table(sort_by="self_cpu_time_total", row_limit=12, max_name_column_width=45)


def row(preset: str, dtype: str, found: Measured) -> str:
    times = (found.forward * 1e3, found.train * 1e3, found.candidates)
    columns = "".join(
        f"{value:>{width}.2f}{100 * share:>5.0f}"
        for value, width, share in zip(times, (12, 10, 14), found.shares, strict=True)
    )
    return (
        f"{preset:<10}{dtype:<10}{found.weights / 1e6:>10.2f}{found.macs / 1e9:>8.3f}{found.rate / 1e9:>14.0f}{columns}"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="auto", help="cpu, cuda or auto")
    parser.add_argument("--preset", nargs="+", choices=PRESETS, default=["small", "patched"])
    parser.add_argument("--size", type=int, default=64, help="side of the images, pixels")
    parser.add_argument("--dtype", nargs="+", choices=DTYPES, default=list(DTYPES))
    parser.add_argument("--batch", type=int, default=16, help="images of a pass and of a step")
    parser.add_argument("--candidates", type=int, default=50, help="of one face")
    parser.add_argument("--samples", type=int, default=20, help="DDIM steps of a candidate")
    parser.add_argument("--threads", type=int, help="torch threads on a CPU; all cores if not given")
    parser.add_argument("--seconds", type=float, default=5.0, help="time for each row, candidates apart")
    parser.add_argument("--profile", action="store_true", help="print where the time goes, too")
    options = parser.parse_args(arguments)
    try:
        bench(options)
    except FicganError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


def bench(options: argparse.Namespace) -> None:
    if min(options.size, options.batch, options.candidates, options.samples) < 1:
        raise UsageError("--size, --batch, --candidates and --samples must be at least 1; give larger ones")
    device = torch.device(resolve_device(options.device))
    ops.keep_freed_memory()
    if options.threads:
        torch.set_num_threads(options.threads)
    print(
        f"{options.size}², batches of {options.batch}, {options.candidates} candidates in {options.samples} steps; "
        f"{machine(device)}\n\n{HEAD}",
        flush=True,
    )
    for preset in options.preset:
        for name in options.dtype:
            print(row(preset, name, measure(preset, DTYPES[name], options, device)), flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
