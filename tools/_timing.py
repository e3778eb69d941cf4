"""Timing for the benchmark tools: interleaved rounds, and the rates of this machine measured in the same rounds."""

from __future__ import annotations

import math
import resource
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path

import torch
import torch.nn.functional as F

from ficgan import ops

Work = Callable[[], object]
LEAST_ROUNDS = 5
LEAST_ON_GPU = 2e-3
"""Seconds a timed window lasts at least on a GPU: its events are exact to about half a microsecond."""


def timed(work: Work, device: torch.device, repeats: int = 1) -> float:
    """Seconds of one call, the GPU's work included; with one thread of a CPU those that it computed.

    What else runs on a shared core is then left out.

    Args:
        work: what to time.
        device: where it computes.
        repeats: calls in one window, of which the mean is taken.
    """
    if device.type != "cuda":
        clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
        begin = clock()
        for _ in range(repeats):
            work()
        return (clock() - begin) / repeats
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    # Filling a buffer larger than any L2 cache empties the cache, and keeps the GPU busy while the host gets ahead.
    _spacer(device).zero_()
    start.record()
    for _ in range(repeats):
        work()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / 1000 / repeats


@lru_cache(maxsize=1)
def _spacer(device: torch.device) -> torch.Tensor:
    return torch.empty(2**28, dtype=torch.uint8, device=device)


def release() -> None:
    """Give back the memory that timing on a GPU holds, before memory is measured."""
    _spacer.cache_clear()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def repeats_of(work: Work, device: torch.device) -> int:
    """Calls that fill a window which the device's clock can tell apart; `work` must be warm."""
    if device.type != "cuda":
        return 1
    return max(1, math.ceil(LEAST_ON_GPU / max(timed(work, device), 1e-7)))


def interleaved(
    works: Mapping[str, Work], device: torch.device, seconds: float, *, warm_up: int = 3
) -> list[dict[str, float]]:
    """Time all works in turn, round after round, so that a change of the machine's speed meets all of them.

    Args:
        works: by name.
        device: where they compute.
        seconds: rounds go on for so long, at least five of them.
        warm_up: rounds before, not counted.

    Returns:
        For each round the seconds of one call by name.
    """
    for _ in range(warm_up):
        for work in works.values():
            work()
    repeats = {name: repeats_of(work, device) for name, work in works.items()}
    rounds: list[dict[str, float]] = []
    until = time.perf_counter() + seconds
    while len(rounds) < LEAST_ROUNDS or time.perf_counter() < until:
        rounds.append({name: timed(work, device, repeats[name]) for name, work in works.items()})
    return rounds


def median(rounds: Sequence[Mapping[str, float]], of: Callable[[Mapping[str, float]], float]) -> float:
    """Median over rounds of what `of` makes of each: ratios are taken within a round."""
    return statistics.median(of(each) for each in rounds)


def copy_of(bytes_moved: float, device: torch.device) -> Work:
    """A copy that reads and writes `bytes_moved` bytes in all, half of them each way."""
    source = torch.zeros(max(int(bytes_moved / 2), 1), dtype=torch.uint8, device=device)
    target = torch.zeros_like(source)
    return lambda: target.copy_(source)


def arithmetic(dtype: torch.dtype, device: torch.device) -> dict[str, tuple[float, Work]]:
    """What reaches this device's best arithmetic rate in a dtype, under the settings in force (TF32 or not).

    Returns:
        FLOPs and work of a large matrix product and of a large 3×3 convolution, by a description of each.
    """
    n, (batch, channels, side) = (8192, (64, 512, 64)) if device.type == "cuda" else (1024, (8, 128, 32))
    a, b = (torch.rand(n, n, device=device).to(dtype) for _ in range(2))
    layout = {"memory_format": torch.channels_last}
    x = torch.rand(batch, channels, side, side, device=device).to(dtype).contiguous(**layout)
    weight = torch.rand(channels, channels, 3, 3, device=device).to(dtype).contiguous(**layout)
    flops = 2.0 * batch * side * side * channels * channels * 9

    def convolve() -> torch.Tensor:
        with torch.no_grad():
            return F.conv2d(x, weight, padding=1)

    short = str(dtype).removeprefix("torch.")
    return {
        f"{short} matmul {n}³": (2.0 * n**3, lambda: a @ b),
        f"{short} conv 3×3 {channels}→{channels} on {batch}×{side}²": (flops, convolve),
    }


def extra_memory(work: Work, device: torch.device) -> float | None:
    """Most MiB that one call allocates beside what is there already, its result included; None on the CPU."""
    if device.type != "cuda":
        return None
    torch.cuda.synchronize(device)
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    work()
    torch.cuda.synchronize(device)
    return (torch.cuda.max_memory_allocated(device) - before) / 2**20


def peak_memory(device: torch.device) -> float:
    """Most MiB in use so far: allocated on the GPU since the last reset, or resident in this process since it began."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**20
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def machine(device: torch.device) -> str:
    """One line for the head of a table."""
    where = torch.cuda.get_device_name(device) if device.type == "cuda" else f"{_processor()}, {_threads()}"
    return f"{where}, torch {torch.__version__}, ops {ops.backend()}"


def _threads() -> str:
    count = torch.get_num_threads()
    return f"{count} thread{'s' * (count > 1)}"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return "CPU"
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "CPU")
