"""Which implementation carries the ops: the compiled one, or the reference in plain torch."""

from __future__ import annotations

import os

from ficgan.errors import UsageError

CHOICES = ("auto", "native", "ref")


def backend() -> str:
    """Name the implementation in use: "native" or "ref".

    The environment variable FICGAN_OPS chooses: `auto` (the default) takes the compiled back end where there is one,
    `native` insists on it, `ref` never uses it.

    Returns:
        "native" or "ref".

    Raises:
        UsageError: FICGAN_OPS has an unknown value, or asks for a back end that is not there.
    """
    return _resolve(os.environ.get("FICGAN_OPS", "auto") or "auto", "the environment variable FICGAN_OPS")


def choose(impl: str) -> str:
    """Resolve the `impl` argument of an op: "auto" defers to `backend()`."""
    return backend() if impl == "auto" else _resolve(impl, "impl")


def _resolve(choice: str, where: str) -> str:
    if choice not in CHOICES:
        raise UsageError(f"{where} is {choice!r}; use one of {', '.join(CHOICES)}")
    if choice == "native":
        raise UsageError(f"{where} asks for the compiled ops, but this installation has none; use auto or ref")
    return "ref"
