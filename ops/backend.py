"""Which implementation carries the ops: compiled CUDA kernels, or the reference in plain torch."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch
from torch import Tensor

from ficgan.errors import UsageError

from . import library

CHOICES = ("auto", "native", "ref")
_VARIABLE = "the environment variable FICGAN_OPS"

P = ParamSpec("P")
R = TypeVar("R")


def constant(function: Callable[P, R]) -> Callable[P, R]:
    """Tell torch.compile to call the function once and keep its result.

    torch.compile cannot trace how a library is found, and the choice does not change within a process. This sets the
    mark that `torch.compiler.assume_constant_result` sets, which would import all of torch._dynamo for it.
    """
    vars(function)["_dynamo_marked_constant"] = True
    return function


@constant
def backend() -> str:
    """Name the implementation that tensors on a GPU get: "native" or "ref"; those on the CPU always get the reference.

    The environment variable FICGAN_OPS chooses: `auto` (the default) takes the compiled ops where there is a library
    and a GPU, `native` insists on the library, `ref` never uses it. It is looked for when first needed, and once.

    Returns:
        "native" or "ref".

    Raises:
        UsageError: FICGAN_OPS has an unknown value, or asks for compiled ops that are not there.
    """
    choice = os.environ.get("FICGAN_OPS") or "auto"
    _check(choice, _VARIABLE)
    if choice == "auto":
        return "native" if torch.cuda.is_available() and library.search().library else "ref"
    if choice == "native":
        _insist(_VARIABLE)
    return choice


def use_native(x: Tensor, impl: str) -> bool:
    """Resolve the `impl` argument of an op for its input `x`: whether the compiled op is to be called.

    Raises:
        UsageError: `impl` or FICGAN_OPS is unknown or asks for compiled ops that are not there, or impl="native" comes
            with a tensor that is not on a GPU.
    """
    if impl == "auto":
        # Also on the CPU FICGAN_OPS is looked at, so that a wrong value does not go unnoticed.
        return backend() == "native" and x.is_cuda and _covers(x.device.index)
    _check(impl, "impl")
    if impl == "ref":
        return False
    _insist("impl")
    if not x.is_cuda:
        raise UsageError(f"impl asks for the compiled ops, which run on CUDA tensors, but x is on {x.device}; use auto")
    _insist("impl", x.device.index)
    return True


@constant
def _covers(device: int) -> bool:
    if os.environ.get("FICGAN_OPS") == "native":
        _insist(_VARIABLE, device)
    return library.covers(device)


@constant
def _insist(where: str, device: int | None = None) -> None:
    found = library.search()
    if found.library is None:
        raise UsageError(
            f"{where} asks for the compiled ops, but this installation has none that works ({found.why_not()}); "
            f"{library.BUILD_HINT}, or use auto or ref"
        )
    problem = None if device is None else library.problem_on(device)
    if problem:
        raise UsageError(f"{where} asks for the compiled ops, but {problem}, or use auto or ref")


def _check(choice: str, where: str) -> None:
    if choice not in CHOICES:
        raise UsageError(f"{where} is {choice!r}; use one of {', '.join(CHOICES)}")
