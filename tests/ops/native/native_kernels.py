"""The kernels of ops/csrc, compiled by g++ against cuda_on_cpu.h, called with NumPy arrays inside guard bands."""

from __future__ import annotations

import ctypes
import mmap
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
SOURCES = HERE.parents[2] / "ops" / "csrc"
LIBRARY = "kernels_on_cpu.so"
KERNELS = ("bias_act", "upfirdn2d", "style")

# Of hypothesis: the same examples every time.
SETTINGS = {"derandomize": True}
TYPES = {"f16": 0, "bf16": 1, "f32": 2, "f64": 3}
ACTIVATIONS = ("linear", "relu", "lrelu", "sigmoid", "tanh", "swish", "softplus")
# Half a unit in the last place, relative; with some more for float32 and float64, which round at every step.
ROUNDING = {"f16": 2.0**-11, "bf16": 2.0**-8, "f32": 3e-6, "f64": 1e-13}
_BITS = {"f16": np.uint16, "bf16": np.uint16, "f32": np.uint32, "f64": np.uint64}
_FLOAT = {"f16": np.float16, "f32": np.float32, "f64": np.float64}
# Not-a-numbers that no computation makes: around an input they poison every result that they enter. Those of outputs
# are one higher, so that a copy of the first over them shows too.
_CANARY = {"f16": 0x7E2A, "bf16": 0x7FEA, "f32": 0x7FC0BEEF, "f64": 0x7FF80000DEADBEEF}
_BAND = 512  # elements

# "start" or "end": new arrays begin or end at a page that may not be read, in place of the bands. A process that reads
# there is killed, so this is for child processes.
FENCE: str | None = None


class BiasAct(ctypes.Structure):
    _fields_ = (
        ("act", ctypes.c_int),
        *((name, ctypes.c_double) for name in ("alpha", "gain", "limit")),
        *((name, ctypes.c_int64) for name in ("size", "channels", "inner")),
    )


class Upfirdn2d(ctypes.Structure):
    _fields_ = (
        ("layout", ctypes.c_int),
        *((name, ctypes.c_int64) for name in ("batch", "channels")),
        *((name, ctypes.c_int64) for name in ("in_height", "in_width", "out_height", "out_width")),
        *((name, ctypes.c_int) for name in ("filter_height", "filter_width", "up_x", "up_y", "down_x", "down_y")),
        *((name, ctypes.c_int64) for name in ("pad_x0", "pad_y0")),
        ("flip", ctypes.c_int),
        ("gain", ctypes.c_double),
    )


class Style(ctypes.Structure):
    _fields_ = (
        ("layout", ctypes.c_int),
        *((name, ctypes.c_int64) for name in ("batch", "channels", "pixels")),
        *((name, ctypes.c_double) for name in ("alpha", "gain", "eps")),
    )


def accumulator(dtype: str) -> str:
    """The type of sums and filters."""
    return "f64" if dtype == "f64" else "f32"


def _to_bits(values: np.ndarray, dtype: str) -> np.ndarray:
    if dtype != "bf16":
        return values.astype(_FLOAT[dtype]).view(_BITS[dtype])
    # Through float32: two roundings, which is no harm, because the tests take what comes out as the input.
    bits = values.astype(np.float32).view(np.uint32).astype(np.uint64)
    rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return np.where(np.isnan(values), np.uint16(0x7FC0), rounded)


def _from_bits(bits: np.ndarray, dtype: str) -> np.ndarray:
    if dtype == "bf16":
        return (bits.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    return bits.view(_FLOAT[dtype]).astype(np.float64)


def rounded(values: np.ndarray, dtype: str) -> np.ndarray:
    """`values` as float64 after a rounding to `dtype`."""
    return _from_bits(_to_bits(np.ascontiguousarray(values, np.float64), dtype), dtype)


def _fenced(size: int, side: str) -> np.ndarray:
    page = mmap.PAGESIZE
    inner = -(-size // page) * page
    memory = mmap.mmap(-1, inner + 2 * page)
    raw = np.frombuffer(memory, np.uint8)
    for fence in (0, page + inner):
        address = ctypes.c_void_p(raw.ctypes.data + fence)
        assert ctypes.CDLL(None).mprotect(address, ctypes.c_size_t(page), 0) == 0
    start = page if side == "start" else page + inner - size
    return raw[start : start + size]


class Array:
    """A tensor in memory: [shape] between two guard bands, `shift` elements behind a multiple of 16 bytes.

    With `values` an input, else an output full of not-a-numbers. 4-D tensors may be channels-last.
    """

    def __init__(
        self,
        dtype: str,
        shape: Sequence[int],
        values: np.ndarray | None = None,
        *,
        channels_last: bool = False,
        shift: int = 0,
    ) -> None:
        self.dtype, self.channels_last = dtype, channels_last
        self.shape = tuple(shape)
        size, item = int(np.prod(self.shape)), np.dtype(_BITS[dtype]).itemsize
        if FENCE:
            self._memory, band, shift = _fenced(size * item, FENCE).view(_BITS[dtype]), 0, 0
        else:
            band = _BAND
            raw = np.zeros((size + 2 * band + shift) * item + 16, np.uint8)
            start = -raw.ctypes.data % 16
            end = start + (size + 2 * band + shift) * item
            self._memory = raw[start:end].view(_BITS[dtype])
        self._canary = _CANARY[dtype] + (values is None)
        self._memory[:] = self._canary
        self._first, self._size = band + shift, size
        self._input: np.ndarray | None = None
        if values is not None:
            stored = np.moveaxis(values, 1, -1) if channels_last else values
            self._input = _to_bits(np.ascontiguousarray(stored, np.float64).ravel(), dtype)
            self._memory[self._first : self._first + size] = self._input

    @property
    def pointer(self) -> int:
        return self._memory.ctypes.data + self._first * self._memory.itemsize

    def values(self) -> np.ndarray:
        """float64 in the shape, whatever the layout."""
        flat = _from_bits(self._memory[self._first : self._first + self._size], self.dtype)
        if not self.channels_last:
            return flat.reshape(self.shape)
        n, c, *space = self.shape
        return np.moveaxis(flat.reshape(n, *space, c), -1, 1)

    def check(self) -> None:
        """Raises if anything around it, or an input itself, was written."""
        before, after = self._memory[: self._first], self._memory[self._first + self._size :]
        assert (before == self._canary).all() and (after == self._canary).all(), "written outside of the tensor"
        if self._input is not None:
            body = self._memory[self._first : self._first + self._size]
            assert np.array_equal(body, self._input), "an input was written"


def compile_library(folder: Path, compiler: str) -> None:
    """Compiles the kernels and the emulator to `LIBRARY` in `folder`."""
    flags = [
        *("-std=c++17", "-DFICGAN_ON_CPU", "-O1", "-fPIC", "-fno-strict-aliasing", "-fsanitize=undefined"),
        *("-Wall", "-Wextra", "-Werror", "-Wno-unknown-pragmas", f"-I{SOURCES}", f"-I{HERE}"),
    ]
    sources = {name: SOURCES / f"{name}.cu" for name in KERNELS} | {"entry": HERE / "entry.cpp"}

    def run(*command: str) -> None:
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr

    def compile_one(name: str) -> str:
        target = str(folder / f"{name}.o")
        run(compiler, *flags, "-x", "c++", "-c", str(sources[name]), "-o", target)
        return target

    with ThreadPoolExecutor(2) as pool:
        objects = list(pool.map(compile_one, sources))
    run(compiler, "-shared", "-fsanitize=undefined", *objects, "-o", str(folder / LIBRARY))


class Native:
    """The launchers. Every call checks the result code, the sanitizer and the guard bands."""

    def __init__(self, library: Path) -> None:
        self.library = ctypes.CDLL(str(library))

    def set(self, order: int = 0, most_grid: int = 0) -> None:
        """Order of the threads (0 upwards, 1 downwards, 2 shuffled); most blocks of a grid (0: as launched)."""
        self.library.emulator_set(order, most_grid)

    def call(self, name: str, dtype: str, sizes: ctypes.Structure, *arrays: Array | None) -> None:
        pointers = [None if a is None else ctypes.c_void_p(a.pointer) for a in arrays]
        code = getattr(self.library, f"call_{name}")(TYPES[dtype], ctypes.byref(sizes), *pointers)
        assert code == 0, f"{name} returned {code}"
        assert self.library.emulator_reports() == 0, f"{name}: undefined behaviour, see stderr"
        for array in arrays:
            if array is not None:
                array.check()


def assert_close(actual: np.ndarray, expected: np.ndarray, dtype: str, scale: float | np.ndarray = 0.0) -> None:
    """|actual − expected| ≤ rounding · (|expected| + scale) where `scale` is the size of what was added up.

    Halves accumulate in float32 and are rounded once: the terms' part of their error is that of float32.
    """
    inner = ROUNDING[accumulator(dtype)] * (scale + np.abs(expected))
    tiny = {"f16": 2.0**-25, "bf16": 1e-40, "f32": 1e-37, "f64": 1e-300}[dtype]  # below the smallest normal number
    allowed = ROUNDING[dtype] * np.abs(expected) + inner + tiny
    allowed = np.broadcast_to(allowed * (1 + 1e-6), np.shape(expected))
    wrong = ~(np.abs(actual - expected) <= allowed)  # a NaN is wrong
    first = tuple(np.argwhere(wrong)[0]) if wrong.any() else ()
    assert not wrong.any(), (
        f"{wrong.sum()} of {wrong.size} are off, the first at {first}: {actual[first]} for {expected[first]}, "
        f"allowed {allowed[first]:.3g}"
    )
