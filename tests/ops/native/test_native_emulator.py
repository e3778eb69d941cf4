"""The emulator notices what it is there for, and the arithmetic below the kernels is right."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from native_kernels import SETTINGS, Array, BiasAct, rounded


def test_notices_a_barrier_that_some_threads_miss(native):
    assert native.library.emulator_hangs() != 0


def test_notices_an_index_beyond_shared_memory(native):
    native.library.emulator_overruns(7)
    assert native.library.emulator_reports() == 0
    native.library.emulator_overruns(8)
    assert native.library.emulator_reports() > 0


def test_orders_of_threads_differ_where_a_barrier_is_missing(native):
    results = set()
    for order in range(2):
        native.set(order=order)
        results.add(native.library.emulator_race())
    assert len(results) == 2


def test_guard_bands_notice_a_write_and_a_read(native):
    x = Array("f32", (4,), np.ones(4))
    y = Array("f32", (4,))
    sizes = BiasAct(0, 0.0, 1.0, -1.0, 5, 1, 1)  # one element too many
    with pytest.raises(AssertionError, match="written outside"):
        native.call("bias_act", "f32", sizes, x, None, y)
    large = Array("f32", (5,))
    native.call("bias_act", "f32", sizes, x, None, large)
    assert np.isnan(large.values()[4]), "what lies beyond an input is not a number"


@settings(max_examples=200, **SETTINGS)
@given(
    divisor=st.one_of(st.integers(1, 100), st.integers(1, 2**31 + 5), st.integers(1, 2**40)),
    numbers=st.lists(st.one_of(st.integers(0, 2**31), st.integers(0, 2**62)), min_size=1, max_size=20),
)
def test_division(native, divisor, numbers):
    near = [divisor * k + d for k in (1, 2, (2**31 - 1) // divisor) for d in (-1, 0, 1)] + [2**31 - 1, 2**31, 2**31 - 2]
    n = np.array(numbers + [v for v in near if v >= 0], np.int64)
    quotient = np.zeros_like(n)
    native.library.call_divide(
        ctypes.c_int64(divisor), ctypes.c_void_p(n.ctypes.data), ctypes.c_void_p(quotient.ctypes.data), len(n)
    )
    np.testing.assert_array_equal(quotient, n // divisor)


@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32", "f64"])
def test_rounding_of_types(native, rng, dtype):
    """Times 1.1 and back to the type, against NumPy's float16 and a bfloat16 made of bits."""
    x = rounded(np.concatenate([rng.standard_normal(500), rng.standard_normal(500) * 1e-6, [0.0, np.inf]]), dtype)
    y = Array(dtype, x.shape)
    native.call("bias_act", dtype, BiasAct(0, 0.0, 1.1, -1.0, x.size, 1, 1), Array(dtype, x.shape, x), None, y)
    product = x * 1.1 if dtype == "f64" else (x.astype(np.float32) * np.float32(1.1)).astype(np.float64)
    np.testing.assert_array_equal(y.values(), rounded(product, dtype))
