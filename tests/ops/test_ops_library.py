"""Finding, choosing and building the compiled ops; what runs where there are none."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
import torch

from ficgan import ops
from ficgan.errors import UsageError
from ficgan.ops import __main__ as program
from ficgan.ops import library

KERNELS = sorted(path.name for path in library.CSRC.glob("*.cu"))


@pytest.fixture(autouse=True)
def no_library(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A cache folder of its own, in which nothing was built."""
    monkeypatch.setattr(library, "folder", lambda: tmp_path)
    library.load.cache_clear()
    yield tmp_path
    library.load.cache_clear()


def test_without_a_library_the_reference_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FICGAN_OPS", raising=False)
    assert ops.backend() == "ref"
    x = torch.ones(1, 2, 4, 4)
    assert torch.equal(ops.bias_act(x, act="lrelu", gain=1.0), x)
    for variable, impl in (("odd", "auto"), ("native", "auto"), ("auto", "native"), ("auto", "odd")):
        monkeypatch.setenv("FICGAN_OPS", variable)
        with pytest.raises(UsageError):
            ops.bias_act(x, impl=impl)


def test_a_library_that_does_not_load_is_named_once(no_library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (no_library / "ficgan_ops.so").write_bytes(b"no library")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setenv("FICGAN_OPS", "auto")
    with pytest.warns(RuntimeWarning, match="not used"):
        assert ops.backend() == "ref"
    assert ops.backend() == "ref"


def test_the_program_refuses_to_build_without_cuda(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.version, "cuda", None)
    assert program.main(["build"]) == 1 and "without CUDA" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("kernel", KERNELS)
def test_nvcc_accepts_the_kernels(kernel: str, tmp_path: Path) -> None:
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        pytest.skip("needs nvcc to compile the kernels for a GPU; there is none on PATH")
    command = [nvcc, "-c", "-std=c++17", "-Xcompiler", "-fPIC,-Wall,-Wextra,-Werror", "-arch=sm_90"]
    subprocess.run([*command, str(library.CSRC / kernel), "-o", str(tmp_path / "made.o")], check=True)
