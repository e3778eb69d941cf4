"""A head and what it means to be the same, for the tests of files."""

from __future__ import annotations

import numpy as np

from ficgan.pointcloud.cloud import Cloud


def head(count: int = 500, colors: bool = True, normals: bool = True, seed: int = 3) -> Cloud:
    """Points on an ellipsoid .18 × .24 × .2 m."""
    rng = np.random.default_rng(seed)
    away = rng.normal(size=(count, 3))
    away /= np.linalg.norm(away, axis=1, keepdims=True)
    colours = rng.integers(0, 256, (count, 3)).astype(np.uint8)
    return Cloud(away * [0.09, 0.12, 0.1], colours if colors else None, away if normals else None)


def assert_same(got: Cloud, expected: Cloud, loss: float = 1e-7) -> None:
    assert np.abs(got.points - expected.points).max() <= loss + 1e-9 * np.abs(expected.points).max()
    assert (got.colors is None) == (expected.colors is None)
    assert (got.normals is None) == (expected.normals is None)
    if expected.colors is not None:
        np.testing.assert_array_equal(got.colors, expected.colors)
    if expected.normals is not None:
        np.testing.assert_allclose(got.normals, expected.normals, atol=1e-6)
