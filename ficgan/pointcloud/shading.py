"""Light for clouds without colours, so that detectors and recognisers of photos can read them.

A cloud shaded before it is anonymised keeps the light of the clear face in its colours, a leak; `project` shades last.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import gaussian_filter

from ficgan.errors import InputError
from ficgan.pointcloud.cloud import Cloud
from ficgan.pointcloud.registration import oriented, pca_normals

__all__ = ["shaded"]

# Chosen by the scores of YuNet, a detector, on twelve scans without colours. No recogniser was asked.
LAMP = np.array([1.0, 0.6, 0.0]) / np.linalg.norm([1.0, 0.6, 0.0])
"""Direction of the lamp in the canonical frame: in front of and above the face."""
AMBIENT = 0.2
"""Share of the light that comes from everywhere."""
CAVITY = 0.3
"""How much a point `DEEP` behind the smoothed face is darkened, as an exponent."""
DEEP = 0.003
"""Metres behind the smoothed face at which a cavity has its full darkening; it may double, no more."""
REACH = 0.008
"""Metres; standard deviation of the Gaussian that smooths the face."""
SKIN = (224, 186, 160)
"""RGB of fully lit skin."""
NEIGHBOURS = 20
CELL = 0.002
"""Metres; of the relief that cavities are read from."""
WIDEST = 8.0
"""Metres of a cloud; its relief then has 16 million cells."""


def shaded(cloud: Cloud, tone: tuple[int, int, int] | None = SKIN, *, cavity: float = CAVITY) -> Cloud:
    """The cloud with colours as if a lamp shone on it (Lambert's cosine law), and with normals.

    `tone` is the RGB of fully lit skin (None: its own colours are darkened); `cavity`: see `CAVITY`.
    """
    if tone is None and cloud.colors is None:
        raise InputError("the cloud has no colours to be darkened; give the shading a tone")
    if len(cloud) and (wide := float(np.ptp(cloud.points, axis=0).max())) > WIDEST:
        raise InputError(
            f"the cloud is {wide:.3g} m wide, and {WIDEST:g} m is the most that is shaded; remove stray points, or "
            "check its unit"
        )
    normals = pca_normals(cloud.points, neighbours=NEIGHBOURS) if cloud.normals is None else cloud.normals
    normals = oriented(cloud.points, normals, "front")
    light = AMBIENT + (1 - AMBIENT) * np.clip(normals @ LAMP, 0, 1)
    if cavity:
        deep = -_relief(cloud.points) / DEEP
        light = np.minimum(light * np.exp(-cavity * np.clip(deep, -0.3, 2)), 1)
    base = cloud.colors if tone is None else np.array(tone, np.float64)
    assert base is not None
    colors = np.round(light[:, None] * base).astype(np.uint8)
    return replace(cloud, colors=colors, normals=normals if cloud.normals is None else cloud.normals)


def _relief(points: NDArray[np.float64]) -> NDArray[np.float64]:
    """[N] metres by which points lie in front of the face smoothed over `REACH`, seen along x."""
    low = points[:, 1:].min(axis=0) - 3 * REACH
    rows, columns = np.floor((points[:, 1:] - low) / CELL).astype(np.intp).T
    shape = (int(rows.max() + 3 * REACH / CELL) + 2, int(columns.max() + 3 * REACH / CELL) + 2)
    flat = rows * shape[1] + columns
    count, total = (np.bincount(flat, of, shape[0] * shape[1]).reshape(shape) for of in (None, points[:, 0]))
    weight = gaussian_filter((count > 0).astype(np.float64), REACH / CELL)
    smooth = gaussian_filter(total / np.maximum(count, 1), REACH / CELL)
    return points[:, 0] - smooth[rows, columns] / weight[rows, columns]
