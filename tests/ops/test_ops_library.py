"""Which back end is taken, how a library is found, refused and built; `python -m ficgan.ops`; the allocator."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from ficgan import ops
from ficgan.errors import FicganError, UsageError
from ficgan.ops import __main__ as commands
from ficgan.ops import build, library


@pytest.fixture
def fresh(monkeypatch, tmp_path):
    """An empty cache folder, no prebuilt library, nothing remembered, FICGAN_OPS unset."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("FICGAN_OPS", raising=False)
    monkeypatch.setattr(library, "PREBUILT", "nothing.so")
    memories = (library.search, library.covers)
    for memory in memories:
        memory.cache_clear()
    yield
    for memory in memories:
        memory.cache_clear()


def put(**changes: object) -> Path:
    """A file at the place of the built library that says what it was built for, and is no library."""
    path = library.cache_path()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"\x7fELF\0" + build.STAMP + json.dumps(build.stamp(["8.0"]) | changes).encode() + b"\0rest")
    return path


def test_without_a_library(fresh, monkeypatch):
    assert ops.backend() == "ref"
    monkeypatch.setenv("FICGAN_OPS", "native")
    for call in (ops.backend, lambda: ops.bias_act(torch.zeros(2), dim=0)):
        with pytest.raises(UsageError, match=r"FICGAN_OPS asks.*none was built.*python -m ficgan\.ops build"):
            call()
    monkeypatch.setenv("FICGAN_OPS", "fast")
    with pytest.raises(UsageError, match="'fast'; use one of auto, native, ref"):
        ops.bias_act(torch.zeros(2), dim=0)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({}, "does not load"),
        ({"torch": "1.0"}, "was built for torch 1.0"),
        ({"sources": "0"}, "was built from other sources"),
        (None, "does not say"),
    ],
)
def test_a_library_that_cannot_be_used_is_named_once(fresh, monkeypatch, changes, problem):
    path = put(**(changes or {}))
    if changes is None:
        path.write_bytes(b"something else")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with pytest.warns(RuntimeWarning, match=problem) as caught:
        assert [ops.backend() for _ in range(3)] == ["ref"] * 3
    assert len(caught) == 1 and str(path) in str(caught[0].message)
    monkeypatch.setenv("FICGAN_OPS", "native")
    with pytest.raises(UsageError, match=problem):
        ops.backend()


def test_the_choice_with_a_library(fresh, monkeypatch):
    found = library.Search(library.Library(Path("x.so"), ("8.0",)), ())
    monkeypatch.setattr(library, "search", lambda: found)
    assert ops.backend() == ("native" if torch.cuda.is_available() else "ref")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert ops.backend() == "native"
    monkeypatch.setenv("FICGAN_OPS", "ref")
    assert ops.backend() == "ref"
    monkeypatch.setenv("FICGAN_OPS", "native")
    assert ops.backend() == "native"
    x = torch.ones(2, 3)
    assert torch.equal(ops.bias_act(x), x), "tensors on the CPU get the reference"
    with pytest.raises(UsageError, match="x is on cpu"):
        ops.bias_act(x, impl="native")


def test_a_gpu_that_the_library_has_no_code_for(fresh, monkeypatch):
    found = library.Search(library.Library(Path("x.so"), ("8.0", "9.0")), ())
    monkeypatch.setattr(library, "search", lambda: found)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: {0: (8, 6), 1: (7, 5)}[device])
    assert library.covers(0)
    with pytest.warns(RuntimeWarning, match=r"GPU 1 has 7\.5.*--arch 7\.5") as caught:
        assert not library.covers(1) and not library.covers(1)
    assert len(caught) == 1
    on = {i: SimpleNamespace(is_cuda=True, device=torch.device("cuda", i)) for i in (0, 1)}
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert library.use_native(on[0], "auto") and library.use_native(on[0], "native")
    assert not library.use_native(on[1], "auto") and not library.use_native(on[0], "ref")
    with pytest.raises(UsageError, match=r"impl asks for the compiled ops, but x\.so was built for"):
        library.use_native(on[1], "native")
    monkeypatch.setenv("FICGAN_OPS", "native")
    assert library.use_native(on[0], "auto")
    with pytest.raises(UsageError, match=r"FICGAN_OPS asks for the compiled ops, but x\.so was built for"):
        library.use_native(on[1], "auto")


@pytest.mark.parametrize(
    ("archs", "runs", "does_not"),
    [
        (("8.0", "9.0+PTX"), [(8, 0), (8, 6), (9, 0), (10, 0), (12, 1)], [(7, 5)]),
        (("8.6",), [(8, 6), (8, 9)], [(8, 0), (9, 0)]),
        (("9.0a",), [(9, 0)], [(9, 1), (10, 0)]),
        ((), [], [(8, 0)]),
    ],
)
def test_which_gpus_a_library_covers(archs, runs, does_not):
    assert all(build.covers(archs, gpu) for gpu in runs) and not any(build.covers(archs, gpu) for gpu in does_not)


def test_archs(monkeypatch):
    assert build.parse_archs("8.0;9.0+PTX") == build.parse_archs("8.0 9.0+PTX") == ("8.0", "9.0+PTX")
    assert build.gencode(("8.0", "9.0+PTX")) == [
        "-gencode=arch=compute_80,code=sm_80",
        "-gencode=arch=compute_90,code=sm_90",
        "-gencode=arch=compute_90,code=compute_90",
    ]
    for wrong in ("", "Hopper", "8", "80"):
        with pytest.raises(UsageError):
            build.parse_archs(wrong)
    monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", "8.6")
    assert build.default_archs() == ("8.6",)
    monkeypatch.delenv("TORCH_CUDA_ARCH_LIST")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: ((7, 5), (12, 0))[device])
    assert build.default_archs() == ("7.5", *build.ARCHS)
    monkeypatch.setenv("MAX_JOBS", "3")
    assert build.jobs() == 3


def test_build_without_a_compiler(fresh, monkeypatch, capsys):
    monkeypatch.setattr(build, "nvcc", lambda: None)
    assert commands.main(["build"]) == 1
    assert "cannot be built: " in capsys.readouterr().err
    assert commands.main(["build", "--arch", "Hopper"]) == 1
    assert "'Hopper'" in capsys.readouterr().err


def test_a_build_that_is_interrupted_says_so(fresh, monkeypatch, capsys):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(build, "build", interrupted)
    assert commands.main(["build"]) == 130
    assert capsys.readouterr().err == "Interrupted.\n"


def pretended_nvcc(folder: Path, body: str) -> Path:
    path = folder / "nvcc"
    path.write_text(
        f"#!/bin/sh\nif [ \"$1\" = --version ]; then echo 'release {torch.version.cuda}, V'; exit; fi\n{body}\n"
    )
    path.chmod(0o755)
    return path


@pytest.mark.skipif(torch.version.cuda is None, reason="needs a torch built for CUDA")
def test_a_failed_build_leaves_what_was_there(fresh, monkeypatch, tmp_path, capfd):
    path = put()
    before = path.read_bytes()
    compiler = pretended_nvcc(tmp_path, "echo 'x.cu(3): error: no such thing'; exit 1")
    monkeypatch.setattr(build, "nvcc", lambda: str(compiler))
    with pytest.raises(FicganError, match=r"nvcc failed at .*: x\.cu\(3\): error: no such thing"):
        build.build(path)
    assert path.read_bytes() == before and [p.name for p in path.parent.iterdir()] == [path.name]
    compiler = pretended_nvcc(tmp_path, 'while [ "$1" != -o ]; do shift; done; echo made > "$2"')
    build.build(path, ["8.0"], say=lambda line: None)
    assert path.read_text() == "made\n" and [p.name for p in path.parent.iterdir()] == [path.name]
    assert "no such thing" in capfd.readouterr().err


@pytest.mark.skipif(torch.version.cuda is None, reason="needs a torch built for CUDA")
def test_a_compiler_of_another_major_version_is_refused(monkeypatch, tmp_path):
    compiler = pretended_nvcc(tmp_path, "")
    compiler.write_text("#!/bin/sh\necho 'release 9.2, V9.2.1'\n")
    monkeypatch.setattr(build, "nvcc", lambda: str(compiler))
    assert "majors must agree" in (build.why_not() or "")


# --- python -m ficgan.ops --------------------------------------------------------------------------------------------


@pytest.fixture
def no_library(monkeypatch):
    monkeypatch.delenv("FICGAN_OPS", raising=False)
    monkeypatch.setattr(library, "search", lambda: library.Search(None, ()))


def test_reports_and_passes(no_library, capsys):
    assert commands.main() == 0
    out = capsys.readouterr().out
    assert "back end       ref" in out and "self-check     passed" in out
    assert "library        none: none was built; `python -m ficgan.ops build` makes one" in out


def test_says_what_is_wrong_with_each_library(no_library, capsys, monkeypatch):
    monkeypatch.setattr(library, "search", lambda: library.Search(None, ("a.so does not load", "b.so is old")))
    assert commands.main() == 0
    assert "library        none: a.so does not load; b.so is old" in capsys.readouterr().out


def test_native_that_is_not_there(no_library, capsys, monkeypatch):
    monkeypatch.setenv("FICGAN_OPS", "native")
    assert commands.main() == 2
    assert "FICGAN_OPS" in capsys.readouterr().err


def test_self_check_notices_a_wrong_result(no_library, capsys, monkeypatch):
    right = commands.upfirdn2d
    monkeypatch.setattr(commands, "upfirdn2d", lambda *a, **k: right(*a, **k) * 1.001)
    assert commands.main() == 1
    assert "FAILED" in capsys.readouterr().out


def test_native_check(place, no_library, monkeypatch):
    """On the CPU it compares the operators with the reference; one wrong gradient is enough to fail."""
    if place == "cuda":
        assert commands.native_check() < 1e-11
        return
    for name in ("upfirdn2d", "bias_act", "adain", "scale_bias_lrelu"):
        function = getattr(commands, name)
        monkeypatch.setattr(commands, name, lambda *a, impl, function=function, **k: function(*a, impl="auto", **k))
    assert commands.native_check("cpu") < 1e-11
    right = commands.adain
    monkeypatch.setattr(
        commands, "adain", lambda x, b, s, t, impl: right(x, b, s.detach() if impl == "native" else s, t, impl=impl)
    )
    assert commands.native_check("cpu") > 1e-3


def test_no_gpu_is_named(no_library, capsys, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert commands.main() == 0
    assert "back end       ref (no GPU)" in capsys.readouterr().out


@pytest.mark.parametrize("home", [None, "/nowhere"])
def test_compiler_missing(home, monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("CUDA_PATH", raising=False)
    monkeypatch.setenv("CUDA_HOME", home) if home else monkeypatch.delenv("CUDA_HOME", raising=False)
    assert build.nvcc() is None


# --- memory and the whole build --------------------------------------------------------------------------------------


ALLOCATIONS = """
import ctypes, resource, torch
from ficgan import ops
took_effect = ops.keep_freed_memory()
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(8):  # the heap grows a few times before it has settled
    torch.zeros(16 << 20).add_(1)  # 64 MiB
before = faults()
for _ in range(8):
    torch.zeros(16 << 20).add_(1)
print(int(took_effect), faults() - before)
"""


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="sets an option of glibc")
def test_large_tensors_are_not_mapped_anew():
    result = subprocess.run([sys.executable, "-c", ALLOCATIONS], capture_output=True, text=True, check=True)
    took_effect, faults = map(int, result.stdout.split())
    if not took_effect:
        pytest.skip("the C library here is not glibc")
    assert faults <= 4 * 16384, "64 MiB are 16,384 pages, and eight such tensors were mapped anew"


LOADED = """
import torch
from ficgan import ops
from ficgan.ops.registry import operators
assert ops.backend() == "native"
x = torch.ones(1, 2, 3, 3)
assert torch.equal(ops.bias_act(x), x)
for name in ("bias_act", "bias_act_grad", "bias_act_grad2", "upfirdn2d", "scale_bias_lrelu", "scale_bias_lrelu_grad",
             "adain", "adain_grad"):
    assert torch._C._dispatch_has_kernel_for_dispatch_key(f"ficgan_ops::{name}", "CUDA"), name
print("all there")
"""


@pytest.mark.slow
def test_builds_and_loads(tmp_path):
    """The whole library, really compiled; loaded in a process of its own, since a library cannot be unloaded."""
    if shutil.which("nvcc") is None and build.nvcc() is None:
        pytest.skip("needs nvcc to compile the CUDA kernels; there is none on PATH")
    if build.why_not():
        pytest.skip(f"cannot compile the CUDA kernels: {build.why_not()}")
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path), "FICGAN_OPS": "native"}

    def python(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *arguments], env=environment, capture_output=True, text=True, check=False
        )

    made = python("-m", "ficgan.ops", "build", "--arch", "9.0+PTX")
    assert made.returncode == 0, made.stdout + made.stderr
    path = Path(made.stdout.splitlines()[-1])
    assert path.is_relative_to(tmp_path) and [p.name for p in path.parent.iterdir()] == [path.name]
    assert library.read_stamp(path) == build.stamp(["9.0+PTX"])
    loaded = python("-c", LOADED)
    assert loaded.stdout == "all there\n", loaded.stderr
    diagnosis = python("-m", "ficgan.ops")
    assert diagnosis.returncode == 0, diagnosis.stderr
    assert "back end       native" in diagnosis.stdout and "for compute capabilities 9.0+PTX" in diagnosis.stdout
