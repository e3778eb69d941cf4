"""Compile the CUDA sources in csrc/ to one library; for `pip install` (setup.py) and `python -m ficgan.ops build`.

nvcc compiles and links everything, so that its own headers and runtime are used wherever it is installed, and the
library depends on torch alone. Stands by itself: setup.py loads this file before the package exists.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

import torch

from ficgan.errors import FicganError, UsageError

CSRC = Path(__file__).resolve().parent / "csrc"
ARCHS = ("8.0", "9.0+PTX")  # A100, H100 and, translated by the driver when first used, everything newer
STAMP = b"ficgan.ops build "  # in the library (csrc/bind.cpp), before the JSON that `stamp` makes


def nvcc() -> str | None:
    """Path of the CUDA compiler, or None."""
    home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH")
    return shutil.which("nvcc", path=os.path.join(home, "bin")) if home else shutil.which("nvcc")


def nvcc_release(compiler: str) -> str:
    """Release of a CUDA compiler, such as "13.0"; empty when it does not say."""
    done = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=False)
    match = re.search(r"release (\d+\.\d+)", done.stdout)
    return match[1] if match else ""


def digest() -> str:
    """Of all files in csrc/: a library made from other sources is not used."""
    text = hashlib.sha256()
    for path in sorted(CSRC.iterdir()):
        if path.suffix in (".cpp", ".cu", ".h", ".cuh"):
            text.update(f"{path.name}\n".encode() + path.read_bytes() + b"\0")
    return text.hexdigest()[:16]


def stamp(archs: Sequence[str]) -> dict[str, object]:
    """What a library is built from and for; it carries this inside."""
    return {"torch": torch.__version__, "cuda": torch.version.cuda, "sources": digest(), "archs": list(archs)}


def parse_archs(text: str) -> tuple[str, ...]:
    """Compute capabilities as TORCH_CUDA_ARCH_LIST writes them, such as "8.0;9.0+PTX".

    Raises:
        UsageError: something else.
    """
    archs = tuple(text.replace(";", " ").replace(",", " ").split())
    wrong = [arch for arch in archs if not re.fullmatch(r"\d+\.\d[af]?(\+PTX)?", arch)]
    if wrong or not archs:
        raise UsageError(f"{text!r} is no list of compute capabilities; write them as in 8.0;9.0+PTX")
    return archs


def default_archs() -> tuple[str, ...]:
    """$TORCH_CUDA_ARCH_LIST, else `ARCHS` and the GPUs here that those leave out."""
    wanted = os.environ.get("TORCH_CUDA_ARCH_LIST")
    if wanted:
        return parse_archs(wanted)
    here = {torch.cuda.get_device_capability(i) for i in range(torch.cuda.device_count())}
    return tuple(f"{major}.{minor}" for major, minor in sorted(here) if not covers(ARCHS, (major, minor))) + ARCHS


def covers(archs: Sequence[str], capability: tuple[int, int]) -> bool:
    """Whether a library for `archs` runs on a GPU of this compute capability.

    Code for x.y runs on x.z with z ≥ y (unless it ends in "a"), and what has +PTX on everything from x.y on.
    """
    for arch in archs:
        name = arch.removesuffix("+PTX")
        major, minor = map(int, name.rstrip("af").split("."))
        if name[-1] in "af":
            fits = capability == (major, minor)
        elif arch.endswith("+PTX"):
            fits = capability >= (major, minor)
        else:
            fits = capability[0] == major and capability[1] >= minor
        if fits:
            return True
    return False


def gencode(archs: Sequence[str]) -> list[str]:
    """The options of nvcc for these compute capabilities."""
    flags = []
    for arch in archs:
        number = arch.removesuffix("+PTX").replace(".", "")
        flags.append(f"-gencode=arch=compute_{number},code=sm_{number}")
        if arch.endswith("+PTX"):
            flags.append(f"-gencode=arch=compute_{number},code=compute_{number}")
    return flags


def why_not() -> str | None:
    """Why nothing can be compiled here, as half a sentence; None when it can."""
    if torch.version.cuda is None:
        return "this torch is built without CUDA"
    compiler = nvcc()
    if compiler is None:
        return "no CUDA compiler was found (set CUDA_HOME, or put nvcc on PATH)"
    release = nvcc_release(compiler)
    if release.split(".")[0] != torch.version.cuda.split(".")[0]:
        return (
            f"{compiler} is of CUDA {release or 'unknown'}, torch of CUDA {torch.version.cuda}; the majors must agree"
        )
    return None


def jobs() -> int:
    """How many compilers run at a time: $MAX_JOBS, else one a processor."""
    wanted = os.environ.get("MAX_JOBS", "")
    return max(int(wanted), 1) if wanted.isdigit() else len(os.sched_getaffinity(0))


def build(target: Path, archs: Sequence[str] | None = None, say: Callable[[str], None] = print) -> Path:
    """Compile the library. It appears under `target` whole or not at all; what was there is replaced.

    Args:
        target: the file to make; its folder is made if need be.
        archs: compute capabilities; None takes `default_archs()`.
        say: called with a line for each file compiled.

    Returns:
        `target`.

    Raises:
        FicganError: no compiler, one that does not fit, or one that failed.
    """
    problem = why_not()
    if problem:
        raise FicganError(f"The compiled ops cannot be built: {problem}.")
    archs = default_archs() if archs is None else tuple(archs)
    sources = sorted(path for path in CSRC.iterdir() if path.suffix in (".cu", ".cpp"))
    target.parent.mkdir(parents=True, exist_ok=True)
    # One folder for each build: two at a time do not meet, and what is left after a kill stands in nobody's way.
    with tempfile.TemporaryDirectory(prefix=f".{target.name}-", dir=target.parent) as folder:
        (Path(folder) / "stamp.h").write_text(f"#define FICGAN_STAMP {json.dumps(json.dumps(stamp(archs)))}\n")
        commands = {source.name: _compile(source, Path(folder) / f"{source.name}.o", archs) for source in sources}
        tool = ninja()
        if tool:
            _with_ninja(tool, Path(folder), commands, say)
        else:
            for done, (name, command) in enumerate(commands.items(), 1):
                _run(command, name)
                say(f"compiled {name} ({done}/{len(commands)})")
        objects = [Path(folder) / f"{name}.o" for name in commands]
        made = Path(folder) / target.name
        _run(_link(objects, made, archs), target.name)
        os.replace(made, target)
    return target


def ninja() -> str | None:
    """Path of the build tool that runs the compilers side by side, or None: then they run one after another."""
    try:
        from ninja import BIN_DIR
    except ImportError:
        return shutil.which("ninja")
    return shutil.which("ninja", path=BIN_DIR) or shutil.which("ninja")


def _with_ninja(tool: str, folder: Path, commands: dict[str, list[str]], say: Callable[[str], None]) -> None:
    """Run the compilers, as many at a time as `jobs()` says; the first failure ends the build."""

    def escaped(text: str) -> str:
        return text.replace("$", "$$").replace(" ", "$ ").replace(":", "$:")

    lines = ["rule compile", "  command = $run", "  description = $name"]
    for name, command in commands.items():
        lines += [f"build {escaped(str(folder / f'{name}.o'))}: compile"]
        lines += [f"  run = {shlex.join(command).replace('$', '$$')}", f"  name = {name}"]
    (folder / "build.ninja").write_text("\n".join(lines) + "\n")
    environment = {**os.environ, "NINJA_STATUS": "[%f/%t] "}
    with subprocess.Popen(
        [tool, "-C", str(folder), "-j", str(jobs())],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment,
    ) as process:
        assert process.stdout is not None
        output = []
        for line in process.stdout:
            output.append(line)
            step = re.match(r"\[(\d+/\d+)\] (\S+)$", line.strip())
            if step:
                say(f"compiled {step[2]} ({step[1]})")
    if process.returncode:
        _failed("".join(output), "a source file", process.returncode)


def _compile(source: Path, made: Path, archs: Sequence[str]) -> list[str]:
    command = [nvcc() or "nvcc", "-c", str(source), "-o", str(made), "-O3", "-std=c++20"]
    command += ["-Xcompiler", "-fPIC,-fvisibility=hidden", *gencode(archs)]
    if source.suffix == ".cpp":
        command += [
            "-include",
            str(made.with_name("stamp.h")),
            "-isystem",
            str(Path(torch.__file__).parent / "include"),
        ]
        command += [f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}"]
    return command


def _link(objects: Sequence[Path], made: Path, archs: Sequence[str]) -> list[str]:
    libraries = [f"-L{Path(torch.__file__).parent / 'lib'}", "-lc10", "-lc10_cuda", "-ltorch_cpu", "-ltorch"]
    return [nvcc() or "nvcc", "-shared", *map(str, objects), "-o", str(made), *gencode(archs), *libraries]


def _run(command: list[str], what: str) -> None:
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode:
        _failed(done.stdout, what, done.returncode)


def _failed(output: str, what: str, code: int) -> NoReturn:
    print(output, file=sys.stderr)
    lines = [line.strip() for line in output.splitlines() if "error" in line or "fatal" in line]
    first = lines[0] if lines else f"exit code {code}"
    raise FicganError(f"The compiled ops cannot be built: nvcc failed at {what}, its output is above: {first}")
