"""`place`: where and how the ops run, so that every test meets the reference, the kernels' source, and the GPU."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from ficgan.ops import library, pointwise, resample

HERE = Path(__file__).parent


@pytest.fixture(scope="session")
def emulated(made_once: Callable[[str, Callable[[Path], None]], Path]) -> None:
    """csrc/ compiled by g++ against cuda_on_cpu.h: the kernels of the operators for tensors in the CPU's memory."""
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("needs g++ to compile the kernels for the CPU; there is none on PATH")

    def compile_all(folder: Path) -> None:
        torch_folder = Path(torch.__file__).parent
        flags = ["-O1", "-std=c++20", "-fPIC", "-DFICGAN_ON_CPU", f"-I{HERE}", f"-isystem{torch_folder / 'include'}"]
        sources = sorted(path for path in library.CSRC.iterdir() if path.suffix in (".cu", ".cpp"))
        libraries = [f"-L{torch_folder / 'lib'}", "-lc10", "-ltorch_cpu", "-ltorch"]
        command = [compiler, "-shared", *flags, "-xc++", *sources, "-xnone", "-o", folder / "emulated.so", *libraries]
        subprocess.run(command, check=True)

    torch.ops.load_library(str(made_once("emulated", compile_all) / "emulated.so"))


KERNELS = [pytest.param("emulated", marks=pytest.mark.slow), *(["native"] if torch.cuda.is_available() else [])]


@pytest.fixture(params=["ref", *KERNELS])
def place(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A device; on it the public functions are carried by what the parameter names.

    `ref` is the reference. `emulated` is the compiled ops but for nvcc, GPU and stream: the operators run the kernels'
    source on the CPU. `native` is the compiled ops on a GPU.
    """
    if request.param == "native":
        if problem := library.load():
            pytest.skip(f"needs the compiled ops: {problem}; {library.HINT}")
        monkeypatch.setenv("FICGAN_OPS", "native")
    elif request.param == "emulated":
        request.getfixturevalue("emulated")
        for module in (pointwise, resample):
            monkeypatch.setattr(module, "use_native", lambda x, impl: True)
    else:
        monkeypatch.setenv("FICGAN_OPS", "ref")
    yield "cuda" if request.param == "native" else "cpu"
