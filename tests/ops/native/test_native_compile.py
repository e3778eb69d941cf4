"""nvcc accepts every kernel for the architectures that are shipped. No GPU is needed for that."""

from __future__ import annotations

import re
import shutil
import subprocess

import pytest
from native_kernels import KERNELS, SOURCES

TARGETS = {"sm_80": "arch=compute_80,code=sm_80", "sm_90": "arch=compute_90,code=sm_90"}
PTX = "arch=compute_90,code=compute_90"
# What a thread may keep in memory for want of registers: some words around a call of the 64-bit division.
MOST_SPILL = 64


def compile_kernel(name, folder, *codes):
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        pytest.skip("needs nvcc to compile the kernels for a GPU; there is none on PATH")
    command = [nvcc, "-c", "-std=c++17", "-Xcompiler", "-fPIC,-Wall,-Wextra,-Werror", "-Xptxas", "-v", "--Werror"]
    command += ["all-warnings", *(part for code in codes for part in ("-gencode", code))]
    command += [str(SOURCES / f"{name}.cu"), "-o", str(folder / f"{name}.o")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stderr


def check_resources(log):
    spills = [int(n) for n in re.findall(r"(\d+) bytes spill stores", log)]
    shared = [int(n) for n in re.findall(r"(\d+) bytes smem", log)]
    assert spills and max(spills) <= MOST_SPILL
    assert max(shared, default=0) <= 48 * 1024, "more static shared memory than a block may have"


@pytest.mark.parametrize("name", KERNELS)
def test_compiles_for_sm_90(name, tmp_path):
    check_resources(compile_kernel(name, tmp_path, TARGETS["sm_90"]))


@pytest.mark.parametrize("name", KERNELS)
def test_compiles_for_all(name, tmp_path):
    check_resources(compile_kernel(name, tmp_path, *TARGETS.values(), PTX))
