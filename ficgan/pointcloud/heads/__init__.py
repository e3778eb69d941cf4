"""Heads made of formulas: skull and jaw with relief and paint, for tests, pictures, and runs without scans.

Nothing of them was scanned or learnt.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ficgan.anonymizers.base import generator
from ficgan.errors import UsageError
from ficgan.pointcloud.cloud import Cloud
from ficgan.pointcloud.frame import landmark_frame
from ficgan.pointcloud.heads.features import EXPRESSIONS, Expression, Features
from ficgan.pointcloud.heads.marks import marked
from ficgan.pointcloud.heads.paint import painted
from ficgan.pointcloud.heads.sheets import mesh, scanned
from ficgan.pointcloud.heads.surface import Surface
from ficgan.pointcloud.landmarks import FaceLandmarks

__all__ = ["EXPRESSIONS", "Expression", "Features", "MadeHead", "made_head"]

FEWEST = 100


@dataclass(frozen=True)
class MadeHead:
    """A made head, as if scanned.

    Args:
        cloud: in the canonical frame, with normals, and with colours unless they were not asked for.
        landmarks: [68,3] metres, canonical frame; jaw 0–16 from the person's right, brows 17–26, nose 27–35 (30 is the
            tip), eyes 36–47, outer lips 48–59, inner lips 60–67.
        features: who it is.
        expression: what the face does.
    """

    cloud: Cloud
    landmarks: NDArray[np.float64]
    features: Features
    expression: Expression


def made_head(
    seed: int = 0,
    *,
    expression: float | str | Expression = 0.0,
    points: int = 45_000,
    colour: bool = True,
    scan: int = 0,
    noise: float = 0.0,
    holes: int = 0,
) -> MadeHead:
    """A parametric, cartoonish human head in the canonical frame, sampled as a scanner in front of it would.

    Args:
        seed: who it is.
        expression: −1 (corners of the mouth down) … 1 (a smile), a name in `EXPRESSIONS`, or an `Expression`.
        points: how many, 100 or more.
        colour: painted and softly lit; otherwise the cloud has no colours.
        scan: seed of the sampling: another one gives other points of the same surface.
        noise: standard deviation along the normal, metres.
        holes: how many round places of 4–9 mm radius stay empty; the number of points is the same.

    Returns:
        The head; its nose tip is the origin.

    Raises:
        UsageError: an unknown expression, too few points, negative noise or holes.
    """
    if points < FEWEST or noise < 0 or holes < 0:
        raise UsageError(
            f"a made head has {FEWEST} points or more, and noise and holes of 0 or more, not {points}, {noise}, {holes}"
        )
    face = Surface(Features.drawn(seed), Expression.of(expression))
    rng = generator("scan of a made head", seed, scan)
    spots, normals, parts = scanned(*mesh(face), points, rng, holes)
    colors = painted(face, spots, normals, parts, rng) if colour else None
    spots = spots + 1000.0 * noise * rng.standard_normal((points, 1)) * normals
    marks = marked(face) / 1000.0
    upright = landmark_frame(FaceLandmarks.of_points(marks))
    cloud = Cloud(spots / 1000.0, colors, normals).moved(upright)
    return MadeHead(cloud, marks @ upright[:3, :3].T + upright[:3, 3], face.who, face.mood)
