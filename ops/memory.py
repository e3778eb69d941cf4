"""Keep freed memory in the process: large CPU tensors then cost no page faults."""

from __future__ import annotations

import ctypes
import sys

_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4


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
