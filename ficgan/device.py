"""Which processors there are, and in which floating type torch computes on them: what is fast, found by trying."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from ficgan.errors import UsageError

if TYPE_CHECKING:
    import torch

__all__ = ["PRECISIONS", "cpus", "resolve_device", "resolve_precision"]

PRECISIONS = ("auto", "float32", "bfloat16", "float16")
GAIN = 1.25
"""Lower precision is taken only where it is at least this much faster, so that noise does not decide."""


def cpus() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def resolve_device(name: str) -> str:
    """The device of a name: "auto" (a CUDA GPU where there is one), "cpu", "cuda" or "cuda:N"."""
    if name == "cpu":
        return name
    import torch

    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    kind, colon, number = name.partition(":")
    if kind != "cuda" or (colon and not number.isdigit()):
        raise UsageError(f"device {name!r} is unknown; it is auto, cpu, cuda or cuda:N")
    if not torch.cuda.is_available():
        raise UsageError(f"device {name} was asked for, but torch sees no CUDA GPU here; use --device cpu")
    if number and int(number) >= torch.cuda.device_count():
        raise UsageError(f"device {name} was asked for, but there are {torch.cuda.device_count()} GPUs, counted from 0")
    return name


def resolve_precision(name: str, device: str) -> torch.dtype:
    """The type to run the networks in.

    Args:
        name: "float32", "bfloat16", "float16" (GPU only), or "auto": bfloat16 where the device is faster in it. A GPU
            says whether it supports it; a CPU must have the instructions (AVX512-BF16 or AMX) and win a short trial,
            for some that have them are slower with them.
        device: "cpu", "cuda" or "cuda:N".
    """
    import torch

    if name not in PRECISIONS:
        raise UsageError(f"precision {name!r} is unknown; it is one of {', '.join(PRECISIONS)}")
    if name == "auto":
        if device.startswith("cuda"):
            return torch.bfloat16 if torch.cuda.is_bf16_supported(including_emulation=False) else torch.float32
        return torch.bfloat16 if has_bf16_instructions() and bf16_speedup() >= GAIN else torch.float32
    if name == "float16" and device == "cpu":
        raise UsageError("precision float16 needs a GPU; on the CPU use float32 or bfloat16")
    return {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}[name]


def has_bf16_instructions(cpuinfo: Path = Path("/proc/cpuinfo")) -> bool:
    """Whether the processor multiplies bfloat16 matrices in hardware."""
    try:
        lines = cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return False
    flags = next((line.partition(":")[2].split() for line in lines if line.startswith(("flags", "Features"))), [])
    return bool({"avx512_bf16", "amx_bf16", "bf16"} & set(flags))


@lru_cache(maxsize=1)
def bf16_speedup() -> float:
    """How many times faster a convolution of a face network is in bfloat16 than in float32 on this CPU; ~20 ms."""
    import torch
    import torch.nn.functional as F

    def trial(dtype: torch.dtype) -> Callable[[], float]:
        x = torch.ones(2, 64, 32, 32, dtype=dtype).contiguous(memory_format=torch.channels_last)
        weight = torch.ones(64, 64, 3, 3, dtype=dtype).contiguous(memory_format=torch.channels_last)

        def once() -> float:
            begin = time.perf_counter()
            F.conv2d(x, weight, padding=1)
            return time.perf_counter() - begin

        return once

    # In turn, on one thread, and the fastest of many: what the machine can do when nobody disturbs it.
    trials, threads = (trial(torch.float32), trial(torch.bfloat16)), torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        with torch.inference_mode():
            times = [[once() for once in trials] for _ in range(30)]
    finally:
        torch.set_num_threads(threads)
    single, half = (min(column) for column in zip(*times, strict=True))
    return single / half
