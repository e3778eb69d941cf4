"""Find and load the compiled ops: the library of `pip install`, else that of `python -m ficgan.ops build`."""

from __future__ import annotations

import functools
import json
import warnings
from dataclasses import dataclass
from pathlib import Path

import torch
from platformdirs import user_cache_path

from . import build

BUILD_HINT = "`python -m ficgan.ops build` makes one (needs nvcc and a torch with CUDA)"

PREBUILT = "_native*.so"  # beside this file, where `pip install` puts it


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
