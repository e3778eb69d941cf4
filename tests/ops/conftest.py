"""`place`: where and how the ops run, so that every test meets the reference, the operators, and the GPU."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from ficgan.ops import build, library, pointwise, resample

OPERATORS = (
    *("bias_act", "bias_act_grad", "bias_act_grad2", "upfirdn2d"),
    *("scale_bias_lrelu", "scale_bias_lrelu_grad", "adain", "adain_grad"),
)
EMULATOR = Path(__file__).parent / "native"


@pytest.fixture(scope="session")
def emulated(made_once: Callable[[str, Callable[[Path], None]], Path]) -> object:
    """The operators of csrc/bind.cpp over the kernels, both compiled by g++, on tensors in the CPU's memory."""
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("needs g++ to compile the kernels for the CPU; there is none on PATH")

    def compile_all(folder: Path) -> None:
        torch_folder = Path(torch.__file__).parent
        flags = ["-c", "-O1", "-std=c++20", "-fPIC", "-DFICGAN_ON_CPU", f"-I{EMULATOR}"]
        flags += [f"-isystem{torch_folder / 'include'}"]
        flags += [f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}"]
        objects = []
        for source in sorted(path for path in build.CSRC.iterdir() if path.suffix in (".cu", ".cpp")):
            objects.append(folder / f"{source.name}.o")
            subprocess.run([compiler, *flags, "-xc++", source, "-o", objects[-1]], check=True)
        libraries = [f"-L{torch_folder / 'lib'}", "-lc10", "-ltorch_cpu", "-ltorch"]
        subprocess.run([compiler, "-shared", *objects, "-o", folder / "emulated.so", *libraries], check=True)

    torch.ops.load_library(str(made_once("emulated", compile_all) / "emulated.so"))
    return torch.ops.ficgan_ops_emulated


@pytest.fixture(params=["ref", "operators", pytest.param("emulated", marks=pytest.mark.slow), "native"])
def place(request: pytest.FixtureRequest) -> Iterator[str]:
    """A device; on it the public functions are carried by what the parameter names.

    `ref` is the reference. `operators` calls `torch.ops.ficgan_ops` on the CPU: schemas, shapes and derivatives are
    those of the compiled ops, the kernels are not. `emulated` is the compiled ops but for nvcc, GPU and stream: the
    operators run the kernels' source on the CPU. `native` is the compiled ops on a GPU.
    """
    kernels = None
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "native":
            if not torch.cuda.is_available():
                pytest.skip("needs a GPU: the compiled ops run on CUDA tensors")
            if library.search().library is None:
                pytest.skip(f"needs the compiled ops: {library.search().why_not()}; {library.BUILD_HINT}")
            patch.setenv("FICGAN_OPS", "native")
        elif request.param in ("operators", "emulated"):
            if request.param == "emulated":
                kernels = _on_the_cpu(request.getfixturevalue("emulated"))
            for module in (pointwise, resample):
                patch.setattr(module, "use_native", lambda x, impl: True)
        else:
            patch.setenv("FICGAN_OPS", "ref")
        yield "cuda" if request.param == "native" else "cpu"
    del kernels  # and with them the registration


def _on_the_cpu(emulated: object) -> torch.library.Library:
    kernels = torch.library.Library("ficgan_ops", "IMPL")
    for name in OPERATORS:
        kernels.impl(name, getattr(emulated, name).default, "CPU", allow_override=True)
    return kernels
