"""Which implementation carries the ops: compiled CUDA kernels, where a library is found and loaded, or plain torch.

A library comes from `pip install`, else from `python -m ficgan.ops build`.
"""

from __future__ import annotations

import ctypes
import functools
import json
import os
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import ParamSpec, TypeVar

import torch
from platformdirs import user_cache_path
from torch import Tensor

from ficgan.errors import UsageError

from . import build

CHOICES = ("auto", "native", "ref")
_VARIABLE = "the environment variable FICGAN_OPS"
BUILD_HINT = "`python -m ficgan.ops build` makes one (needs nvcc and a torch with CUDA)"

PREBUILT = "_native*.so"  # beside this file, where `pip install` puts it
_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4


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
        return "native" if torch.cuda.is_available() and search().library else "ref"
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
    return covers(device)


@constant
def _insist(where: str, device: int | None = None) -> None:
    found = search()
    if found.library is None:
        raise UsageError(
            f"{where} asks for the compiled ops, but this installation has none that works ({found.why_not()}); "
            f"{BUILD_HINT}, or use auto or ref"
        )
    problem = None if device is None else problem_on(device)
    if problem:
        raise UsageError(f"{where} asks for the compiled ops, but {problem}, or use auto or ref")


def _check(choice: str, where: str) -> None:
    if choice not in CHOICES:
        raise UsageError(f"{where} is {choice!r}; use one of {', '.join(CHOICES)}")


@dataclass(frozen=True)
class Library:
    """A compiled library that can be used: where it lies, and the compute capabilities it was built for."""

    path: Path
    archs: tuple[str, ...]


@dataclass(frozen=True)
class Search:
    """Outcome of the search: the library, or what is wrong with those that are there (half sentences)."""

    library: Library | None
    problems: tuple[str, ...]

    def why_not(self) -> str:
        """Why there is no library to use, as half a sentence."""
        return self.problems[0] if self.problems else "none was built"


def cache_path() -> Path:
    """Where `python -m ficgan.ops build` puts its library: one place per torch, CUDA and state of csrc/."""
    key = f"torch-{torch.__version__}-cuda-{torch.version.cuda or 'none'}-{build.digest()}"
    return user_cache_path("ficgan", appauthor=False) / "ops" / key / "ficgan_ops.so"


def candidates() -> list[Path]:
    """The libraries that are there, best first."""
    prebuilt = sorted(Path(__file__).resolve().parent.glob(PREBUILT))
    return [path for path in (*prebuilt, cache_path()) if path.is_file()]


def read_stamp(path: Path) -> dict[str, object] | None:
    """What a library was built from and for (`build.stamp`), read without loading it; None when it does not say."""
    content = path.read_bytes()
    start = content.find(build.STAMP)
    if start < 0:
        return None
    start += len(build.STAMP)
    try:
        found = json.loads(content[start : content.index(b"\0", start)])
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


@functools.cache
def search() -> Search:
    """Find the library and load it; done once in a process. Warns when libraries exist, but none can be used."""
    problems = []
    for path in candidates():
        problem = load(path)
        if problem is None:
            found = read_stamp(path) or {}
            archs = found.get("archs")
            return Search(Library(path, tuple(archs) if isinstance(archs, list) else ()), ())
        problems.append(problem)
    if problems:
        warnings.warn(
            f"The compiled ops are not used, the reference is: {problems[0]}; {BUILD_HINT}",
            RuntimeWarning,
            stacklevel=2,
        )
    return Search(None, tuple(problems))


def load(path: Path) -> str | None:
    """Load a library; what is wrong with it, or None."""
    try:
        found = read_stamp(path)
        if found is None:
            return f"{path} does not say what it was built for"
        if (found.get("torch"), found.get("cuda")) != (torch.__version__, torch.version.cuda):
            return f"{path} was built for torch {found.get('torch')}, this is {torch.__version__}"
        if found.get("sources") != build.digest():
            return f"{path} was built from other sources"
        torch.ops.load_library(str(path))
    except (OSError, RuntimeError) as error:
        return f"{path} does not load ({str(error).splitlines()[0]})"
    return None


def problem_on(device: int) -> str | None:
    """Why the library that was found cannot run on this GPU, as half a sentence; None when it can."""
    library = search().library
    capability = torch.cuda.get_device_capability(device)
    if library is None or build.covers(library.archs, capability):
        return None
    gpu = ".".join(map(str, capability))
    return (
        f"{library.path} was built for compute capabilities {', '.join(library.archs)}, and GPU {device} has {gpu}; "
        f"`python -m ficgan.ops build --arch {gpu}` makes one that fits"
    )


@functools.cache
def covers(device: int) -> bool:
    """Whether the library runs on this GPU; asked once for each, with one warning when it does not."""
    problem = problem_on(device)
    if problem:
        warnings.warn(f"The compiled ops are not used, the reference is: {problem}", RuntimeWarning, stacklevel=2)
    return problem is None


def keep_freed_memory() -> bool:
    """Let glibc reuse the memory of freed tensors instead of giving it back to the system; for training on the CPU.

    By default every tensor above 32 MiB is mapped anew, and its first touch costs a page fault for each 4 KiB, which in
    a virtual machine may take longer than the arithmetic. Measured on a busy one of two cores, forward pass of
    `upsample2d` on [16,32,64,64]: 130 → 36 ms contiguous, 51 → 14 ms channels-last. The process stays as large as it
    once was. Call it before the first large tensor is made.

    Returns:
        Whether it took effect; False where the C library is not glibc.
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return False
    return bool(mallopt(_M_MMAP_MAX, 0)) and bool(mallopt(_M_TRIM_THRESHOLD, 2**31 - 1))
