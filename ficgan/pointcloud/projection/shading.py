"""Light for clouds without colour, so that what finds and knows faces in photos can look at them.

What is shaded before it is anonymised carries the relief of the untouched face along in its colours, whatever becomes
of its points: a leak. `project` shades what it is given, after all that was done to it. To measure the leak, call
`shaded` first and anonymise its result.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import gaussian_filter

from ficgan.errors import InputError, UsageError
from ficgan.pointcloud.cloud import Cloud
from ficgan.pointcloud.registration import oriented, pca_normals

__all__ = ["ShadingConfig", "shaded"]

Floats = NDArray[np.float64]
CELL = 0.002
"""Metres; of the relief that cavities are read from."""
WIDEST = 8.0
"""Metres of a cloud; that relief then has 16 million cells."""
MOST_NEIGHBOURS = 500
DEEP = 0.003
"""Metres behind the smoothed face at which the cavity's full darkening is reached; it may double, no more."""


@dataclass(frozen=True)
class ShadingConfig:
    """A lamp in front of and above the face, light from everywhere, and less light in cavities.

    The numbers were chosen by how sure YuNet, a detector, was of twelve scans without colour: a lamp above the viewer's
    eyes does more than one at them, cavities add little. No recogniser was asked.

    Args:
        towards: direction of the lamp in the canonical frame, of any length.
        ambient: share of the light that comes from everywhere, 0…1.
        cavity: how much a point `DEEP` behind the smoothed face is darkened, as an exponent; 0: not at all.
        reach: metres; standard deviation of the Gaussian that smooths the face for that.
        tone: RGB of fully lit skin; None: the cloud's own colours are darkened.
        neighbours: points that a normal is estimated from.

    Raises:
        UsageError: numbers that cannot work.
    """

    towards: tuple[float, float, float] = (1.0, 0.6, 0.0)
    ambient: float = 0.2
    cavity: float = 0.3
    reach: float = 0.008
    tone: tuple[int, int, int] | None = (224, 186, 160)
    neighbours: int = 20

    def __post_init__(self) -> None:
        length = np.linalg.norm(self.towards)
        if len(self.towards) != 3 or not np.isfinite(length) or length == 0:
            raise UsageError(f"the lamp's direction is {self.towards}; give three numbers that are not all 0")
        if not 0 <= self.ambient <= 1:
            raise UsageError(f"the ambient share of light is {self.ambient}; give 0 to 1")
        if not (np.isfinite(self.cavity) and self.cavity >= 0 and CELL / 2 <= self.reach <= 0.1):
            raise UsageError(
                f"cavities are darkened by {self.cavity} over {self.reach} m; give 0 or more, over {CELL / 2} to 0.1 m"
            )
        if self.tone is not None and (len(self.tone) != 3 or not 0 <= min(self.tone) <= max(self.tone) <= 255):
            raise UsageError(f"the tone of skin is {self.tone}; give three numbers from 0 to 255")
        if not 3 <= self.neighbours <= MOST_NEIGHBOURS:
            raise UsageError(f"normals from {self.neighbours} neighbours; give 3 to {MOST_NEIGHBOURS}")


def shaded(cloud: Cloud, config: ShadingConfig | None = None) -> Cloud:
    """The cloud with colours as if a lamp shone on it; each colour comes from the cloud's own geometry.

    Args:
        cloud: in the canonical frame, at least three points not on one line; its normals are used where it has some.
        config: None: the defaults.

    Returns:
        The same points, with colours and with normals that look to the viewer's side.

    Raises:
        InputError: a cloud that has no surface or is wider than `WIDEST`, or no colours where they are to be darkened.

    Source:
        Lambert's cosine law.
    """
    config = config or ShadingConfig()
    if config.tone is None and cloud.colors is None:
        raise InputError("the cloud has no colours to be darkened; give the shading a tone")
    if len(cloud) and (wide := float(np.ptp(cloud.points, axis=0).max())) > WIDEST:
        raise InputError(
            f"the cloud is {wide:.3g} m wide, and {WIDEST:g} m is the most that is shaded; remove stray points, or "
            "check its unit"
        )
    estimated = cloud.normals is None
    normals = pca_normals(cloud.points, neighbours=config.neighbours) if cloud.normals is None else cloud.normals
    normals = oriented(cloud.points, normals, "front")
    lamp = np.asarray(config.towards, np.float64)
    lit = np.clip(normals @ (lamp / np.linalg.norm(lamp)), 0, 1)
    light = config.ambient + (1 - config.ambient) * lit
    if config.cavity:
        deep = -_relief(cloud.points, config.reach) / DEEP
        light = np.minimum(light * np.exp(-config.cavity * np.clip(deep, -0.3, 2)), 1)
    base = cloud.colors if config.tone is None else np.array(config.tone, np.float64)
    assert base is not None
    colors = np.round(light[:, None] * base).astype(np.uint8)
    return replace(cloud, colors=colors, normals=normals if estimated else cloud.normals)


def _relief(points: Floats, reach: float) -> Floats:
    """[N] metres by which points lie in front of the face smoothed over `reach`, seen along x."""
    low = points[:, 1:].min(axis=0) - 3 * reach
    rows, columns = np.floor((points[:, 1:] - low) / CELL).astype(np.intp).T
    shape = (int(rows.max() + 3 * reach / CELL) + 2, int(columns.max() + 3 * reach / CELL) + 2)
    flat = rows * shape[1] + columns
    count = np.bincount(flat, minlength=shape[0] * shape[1]).reshape(shape)
    total = np.bincount(flat, weights=points[:, 0], minlength=shape[0] * shape[1]).reshape(shape)
    mean = total / np.maximum(count, 1)
    weight = gaussian_filter((count > 0).astype(np.float64), reach / CELL)
    smooth = gaussian_filter(mean, reach / CELL)
    return points[:, 0] - smooth[rows, columns] / weight[rows, columns]
