"""Which device torch computes on."""

from __future__ import annotations

from ficgan.errors import UsageError

__all__ = ["resolve_device"]


def resolve_device(name: str) -> str:
    """Check a device name.

    Args:
        name: "auto" (a CUDA GPU where there is one), "cpu", "cuda" or "cuda:N".

    Returns:
        "cpu", "cuda" or "cuda:N".

    Raises:
        UsageError: unknown, or a GPU that is not there.
    """
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
