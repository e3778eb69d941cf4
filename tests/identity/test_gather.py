"""Sums of half-precision codes against exact arithmetic."""

from __future__ import annotations

import struct
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from ficgan.identity import gather
from ficgan.identity.gather import all_finite, distances_to, mean_of, rows, single

EVERY_HALF = np.arange(2**16, dtype=np.uint16).view(np.float16)
FINITE = EVERY_HALF[np.isfinite(EVERY_HALF)]


@pytest.fixture(params=[False, True], ids=["subnormals", "flushed to zero"])
def flush(request):
    """With the processor's usual treatment of subnormal numbers, and as some libraries set it."""
    if request.param and not torch.set_flush_denormal(True):
        pytest.skip("this processor cannot flush subnormal numbers")
    assert request.param == (np.float32(2**-120) * np.float32(2**-20) == 0)
    yield
    torch.set_flush_denormal(False)


def test_every_half_is_converted_exactly(flush):
    expected = struct.unpack(f"{len(FINITE)}e", FINITE.tobytes())  # Python's own reading of half precision
    found = single(FINITE)
    torch.set_flush_denormal(False)  # or the comparison would flush too
    assert found.dtype == np.float32 and len(FINITE) == 63488
    assert np.array_equal(found.view(np.uint32), np.array(expected, np.float64).astype(np.float32).view(np.uint32))


def test_infinity_and_nan_stay():
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(single(EVERY_HALF), EVERY_HALF.astype(np.float64))
    assert all_finite(FINITE) and all_finite(FINITE[:0])
    for bad in (np.inf, -np.inf, np.nan):
        assert not all_finite(np.array([1, bad, 2], np.float16))


halves = hnp.arrays(
    np.float16,
    st.tuples(st.integers(1, 40), st.integers(1, 4)),
    elements=st.floats(-65504, 65504, width=16),
)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(codes=halves, data=st.data())
def test_mean_is_the_exact_sum_divided_once(codes, data):
    everybody = range(len(codes))
    chosen = data.draw(st.lists(st.sampled_from(everybody), min_size=1, unique=True))
    for index in (None, np.array(chosen, np.int64)):
        of = everybody if index is None else chosen
        sums = [sum(Fraction(float(codes[i, j])) for i in of) for j in range(codes.shape[1])]
        assert mean_of(codes, index).tolist() == [float(s) / len(of) for s in sums]
    assert mean_of(codes, np.array(chosen)).tolist() == mean_of(codes, np.array(chosen[::-1])).tolist()


@pytest.mark.parametrize("chunk", [1, 7, 512, 5000])
def test_pieces_do_not_matter(rng, monkeypatch, chunk):
    codes = (rng.normal(size=(3000, 5)) * 10.0 ** rng.integers(-6, 4, (3000, 5))).astype(np.float16)
    index = np.sort(rng.choice(3000, 1700, replace=False))
    means = mean_of(codes), mean_of(codes, index)
    away = [distances_to(means[0], codes), distances_to(means[1], codes, index)]
    monkeypatch.setattr(gather, "CHUNK", chunk)
    assert np.array_equal(mean_of(codes), means[0]) and np.array_equal(mean_of(codes, index), means[1])
    assert np.array_equal(distances_to(means[0], codes), away[0])
    assert np.array_equal(distances_to(means[1], codes, index), away[1])
    assert np.array_equal(np.concatenate(list(rows(codes, index))), codes[index].astype(np.float32))
    exact = np.linalg.norm(codes[index].astype(np.float64) - means[1], axis=1)
    np.testing.assert_allclose(away[1], exact, rtol=1e-13)


def test_subnormals_count_in_a_mean(flush):
    codes = np.full((600, 3), 2**-24, np.float16)  # the smallest half there is
    found = mean_of(codes)
    torch.set_flush_denormal(False)
    assert found.tolist() == [2**-24] * 3
