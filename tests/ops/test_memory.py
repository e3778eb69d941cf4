"""keep_freed_memory, in a process of its own so that the others keep their allocator."""

from __future__ import annotations

import subprocess
import sys

import pytest

CODE = """
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


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="sets an option of glibc")
def test_large_tensors_are_not_mapped_anew():
    result = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
    took_effect, faults = map(int, result.stdout.split())
    if not took_effect:
        pytest.skip("the C library here is not glibc")
    assert faults <= 4 * 16384, "64 MiB are 16,384 pages, and eight such tensors were mapped anew"
