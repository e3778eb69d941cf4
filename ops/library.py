"""Which implementation carries the ops: CUDA kernels, if `python -m ficgan.ops build` compiled them, or plain torch."""

from __future__ import annotations

import functools
import hashlib
import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import ParamSpec, TypeVar

import torch
from platformdirs import user_cache_path
from torch import Tensor

from ficgan.errors import FicganError, UsageError

CHOICES = ("auto", "native", "ref")
CSRC = Path(__file__).resolve().parent / "csrc"
NAME = "ficgan_ops"
ARCHS = "8.0;9.0+PTX"  # A100, H100 and, translated by the driver when first used, everything newer
HINT = "`python -m ficgan.ops build` makes one (needs nvcc and a torch with CUDA)"

P = ParamSpec("P")
R = TypeVar("R")


def constant(function: Callable[P, R]) -> Callable[P, R]:
    """Tell torch.compile to call the function once and keep its result.

    This sets the mark that `torch.compiler.assume_constant_result` sets, which would import all of torch._dynamo.
    """
    vars(function)["_dynamo_marked_constant"] = True
    return function


@constant
def backend() -> str:
    """Name the implementation that tensors on a GPU get: "native" or "ref"; those on the CPU always get the reference.

    The environment variable FICGAN_OPS chooses: `auto` (the default) takes the compiled ops where there is a library
    and a GPU, `native` insists on the library, `ref` never uses it.
    """
    choice = os.environ.get("FICGAN_OPS") or "auto"
    if choice not in CHOICES:
        raise UsageError(f"the environment variable FICGAN_OPS is {choice!r}; use one of {', '.join(CHOICES)}")
    if choice == "auto":
        return "native" if torch.cuda.is_available() and load() is None else "ref"
    if choice == "native" and (problem := load()):
        raise UsageError(f"FICGAN_OPS=native asks for compiled ops, but {problem}; {HINT}")
    return choice


def use_native(x: Tensor, impl: str) -> bool:
    """Resolve the `impl` argument of an op for its input `x`: whether the compiled op is to be called."""
    if impl == "auto":
        return backend() == "native" and x.is_cuda and works_on(x.device.index) is None
    if impl not in CHOICES:
        raise UsageError(f"impl is {impl!r}; use one of {', '.join(CHOICES)}")
    if impl == "ref":
        return False
    if not x.is_cuda:
        raise UsageError(f"impl asks for the compiled ops, which run on CUDA tensors, but x is on {x.device}; use auto")
    if problem := load() or works_on(x.device.index):
        raise UsageError(f"impl asks for the compiled ops, but {problem}; {HINT}, or use auto")
    return True


@functools.cache
def folder() -> Path:
    """Where the library of this torch, CUDA and state of csrc/ is built and looked for."""
    text = hashlib.sha256()
    for path in sorted(path for path in CSRC.iterdir() if path.is_file()):
        text.update(f"{path.name}\n".encode() + path.read_bytes() + b"\0")
    key = f"torch-{torch.__version__}-cuda-{torch.version.cuda or 'none'}-{text.hexdigest()[:16]}"
    return user_cache_path("ficgan", appauthor=False) / "ops" / key


@functools.cache
def load() -> str | None:
    """Load the library; why there is none that can be used, as half a sentence, or None."""
    path = folder() / f"{NAME}.so"
    if not path.is_file():
        return "none was built for this torch"
    try:
        torch.ops.load_library(str(path))
    except (OSError, RuntimeError) as error:
        problem = f"{path} does not load ({str(error).splitlines()[0]})"
        warnings.warn(f"The compiled ops are not used: {problem}; {HINT}", RuntimeWarning, stacklevel=2)
        return problem
    return None


@constant
def works_on(device: int) -> str | None:
    """Why the library does not run on this GPU, as half a sentence, or None; tried once, with one warning."""
    return _trial(device)


@functools.cache
def _trial(device: int) -> str | None:
    try:
        torch.ops.ficgan_ops.bias_act(torch.zeros(1, 1, device=f"cuda:{device}"), None, 1.0, 1.0).item()
    except RuntimeError as error:
        problem = f"they were built for other GPUs than cuda:{device} ({str(error).splitlines()[0]}; see --arch)"
        warnings.warn(f"The compiled ops are not used: {problem}", RuntimeWarning, stacklevel=2)
        return problem
    return None


def build(archs: str | None = None) -> Path:
    """Compile csrc/ with nvcc and ninja into `folder()`.

    `archs` are compute capabilities, such as "8.0;9.0+PTX"; None takes $TORCH_CUDA_ARCH_LIST, else `ARCHS` where torch
    sees no GPU, else those of the GPUs here.
    """
    from torch.utils import cpp_extension

    if torch.version.cuda is None:
        raise FicganError("The compiled ops cannot be built: this torch is built without CUDA.")
    if archs or not torch.cuda.is_available():
        archs = archs or os.environ.get("TORCH_CUDA_ARCH_LIST") or ARCHS
        os.environ["TORCH_CUDA_ARCH_LIST"] = archs
    folder().mkdir(parents=True, exist_ok=True)
    try:
        cpp_extension.load(
            NAME,
            [str(path) for path in sorted(CSRC.iterdir()) if path.suffix in (".cu", ".cpp")],
            build_directory=str(folder()),
            extra_cflags=["-O3"],
            extra_cuda_cflags=["-O3"],
            is_python_module=False,
            verbose=True,
        )
    except (RuntimeError, OSError, ImportError) as error:
        raise FicganError(f"The compiled ops cannot be built: {error}") from error
    load.cache_clear()
    return folder() / f"{NAME}.so"
