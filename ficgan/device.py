"""Which processors there are, and in which floating type torch computes on them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ficgan.errors import UsageError

if TYPE_CHECKING:
    import torch

PRECISIONS = ("auto", "float32", "bfloat16", "float16")


def cpus() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def first_process() -> bool:
    """Whether this is the only process of a training, or the first of those that torchrun started."""
    return os.environ.get("RANK", "0") == "0"


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
        name: "float32", "bfloat16", "float16" (GPU only), or "auto": bfloat16 on a GPU that supports it, else float32.
        device: "cpu", "cuda" or "cuda:N".
    """
    import torch

    if name not in PRECISIONS:
        raise UsageError(f"precision {name!r} is unknown; it is one of {', '.join(PRECISIONS)}")
    if name == "auto":
        if device.startswith("cuda"):
            return torch.bfloat16 if torch.cuda.is_bf16_supported(including_emulation=False) else torch.float32
        return torch.float32
    if name == "float16" and device == "cpu":
        raise UsageError("precision float16 needs a GPU; on the CPU use float32 or bfloat16")
    return {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}[name]
