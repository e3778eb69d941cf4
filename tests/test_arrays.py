"""ficgan.arrays against SciPy, which the light install does without, and its files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from scipy.ndimage import binary_dilation, gaussian_filter, maximum_filter1d, uniform_filter1d
from scipy.optimize import linear_sum_assignment

from ficgan.arrays import assignment, blurred, carried, read_arrays, windows, write_arrays


@pytest.mark.parametrize("shape", [(1, 1), (1, 6), (5, 1), (7, 7), (4, 9), (12, 3), (40, 60)])
def test_assignment_is_the_cheapest(shape: tuple[int, int], rng: np.random.Generator) -> None:
    for kind in range(6):
        cost = rng.normal(size=shape) if kind < 3 else rng.integers(0, 4, shape).astype(float)
        if kind == 5:
            cost = np.minimum(cost, 1.0)  # many pairs at a limit, as a film has them
        rows, columns = assignment(cost)
        wanted = linear_sum_assignment(cost)
        assert (np.diff(rows) > 0).all() and len(set(columns.tolist())) == len(columns) == min(shape)
        assert cost[rows, columns].sum() == pytest.approx(cost[wanted].sum(), abs=1e-9)
        if kind < 3:  # no two assignments cost the same
            np.testing.assert_array_equal(rows, wanted[0])
            np.testing.assert_array_equal(columns, wanted[1])


@pytest.mark.parametrize(("length", "reach"), [(1, 0), (1, 4), (5, 1), (7, 9), (50, 3)])
def test_windows_are_filters_of_one_dimension(length: int, reach: int, rng: np.random.Generator) -> None:
    values, size = rng.normal(size=length), 2 * reach + 1
    np.testing.assert_array_equal(windows(values, reach).max(1), maximum_filter1d(values, size, mode="nearest"))
    np.testing.assert_allclose(windows(values, reach).mean(1), uniform_filter1d(values, size, mode="nearest"))
    flags = values > 0.8
    np.testing.assert_array_equal(windows(flags, reach).any(1), binary_dilation(flags, np.ones(size, bool)))


def test_the_same_arrays_are_the_same_file(tmp_path: Path) -> None:
    """safetensors itself orders metadata by chance."""
    arrays = {"a": np.arange(6.0).reshape(2, 3), "b": np.uint8([7])}
    written = set()
    for _ in range(12):
        write_arrays(tmp_path / "it", arrays, {"é": 1}, kind="bank")
        written.add((tmp_path / "it").read_bytes())
    assert len(written) == 1
    found, header = read_arrays(tmp_path / "it", kind="bank")
    assert header == {"é": 1} and all(np.array_equal(found[name], arrays[name]) for name in arrays)


@pytest.mark.parametrize("sigma", [1.0, 4.0, 9.0, 20.0])
def test_a_wide_blur_is_nearly_the_exact_one(sigma: float, rng: np.random.Generator) -> None:
    picture = gaussian_filter(rng.standard_normal((96, 128, 3)), (2, 2, 0)).astype(np.float32)
    exact = gaussian_filter(picture, (sigma, sigma, 0), mode="mirror")
    inner = np.s_[32:-32, 32:-32]
    assert np.abs(blurred(picture, sigma) - exact)[inner].max() < 0.05 * picture.std()
    assert blurred(picture[..., 0], sigma).shape == (96, 128)


def test_values_are_carried_on_where_nothing_is_known() -> None:
    known = np.zeros((64, 64), np.float32)
    known[:, :16] = 1
    picture = np.where(known[..., None] > 0, np.float32([0.2, 0.4]), np.float32(9))
    wanted = np.broadcast_to(np.float32([0.2, 0.4]), (64, 64, 2))
    np.testing.assert_allclose(carried(picture, known, 4.0), wanted, rtol=1e-3)
