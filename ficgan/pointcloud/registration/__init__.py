"""Rigid registration of two clouds: normals, features, a global start where one is needed, point-to-plane ICP.

Source:
    Point-cloud thesis, §3.2.2.4 and §4.3.3.4 (the first stage of Merge2Faces).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ficgan.errors import InputError, UsageError
from ficgan.pointcloud.cloud import Cloud
from ficgan.pointcloud.registration.fpfh import fpfh
from ficgan.pointcloud.registration.icp import Alignment, Icp, alignment_of, icp
from ficgan.pointcloud.registration.normals import with_normals
from ficgan.pointcloud.registration.ransac import Ransac, global_registration

__all__ = [
    "Alignment",
    "Icp",
    "Ransac",
    "Registering",
    "Registration",
    "alignment_of",
    "fpfh",
    "global_registration",
    "icp",
    "register",
    "with_normals",
]

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Registering:
    """Settings of `register`.

    Args:
        icp: of the local registration.
        ransac: of the global one.
        neighbours: that a normal of the source is fitted to.
        poor: with "auto", the global registration is tried where ICP alone ends with less fitness than this.

    Raises:
        UsageError: values that cannot work.
    """

    icp: Icp = field(default_factory=Icp)
    ransac: Ransac = field(default_factory=Ransac)
    neighbours: int = 30
    poor: float = 0.75

    def __post_init__(self) -> None:
        if self.neighbours < 3:
            raise UsageError(f"registration fits normals to {self.neighbours} neighbours; give 3 or more")


@dataclass(frozen=True)
class Registration:
    """How a target was laid on a source.

    Args:
        transform: [4,4], that brings the target into the source's frame.
        fitness: share of the *target's* points that have a point of the source within `Icp.inlier`.
        rmse: root mean square distance of those points to their nearest of the source, metres; 0 where there are none.
        before: fitness and RMSE of the target as it lay.
        iterations: of the ICP that gave the transform.
        coarse: the transform came by way of the global registration.

    Source:
        Point-cloud thesis, §4.3.3.4. Its target is what Open3D calls the source: the cloud that moves.
    """

    transform: Floats
    fitness: float
    rmse: float
    before: tuple[float, float]
    iterations: int
    coarse: bool


def register(
    source: Cloud,
    target: Cloud,
    *,
    coarse: Literal["auto", "always", "never"] = "auto",
    seed: int = 0,
    setting: Registering | None = None,
) -> Registration:
    """Lay a target on a source.

    Args:
        source: stays. Its normals are made where it has none.
        target: moves.
        coarse: the global registration before ICP: always, never, or where ICP from where the target lies ends poorly;
            then the better of both is taken.
        seed: of the global registration.
        setting: None: the defaults.

    Raises:
        InputError: a cloud of fewer than three points, a source on one line, clouds that no motion lays on one another.
        UsageError: `coarse` is none of the three.

    Source:
        Point-cloud thesis, algorithm 4, lines 1–2.
    """
    if coarse not in ("auto", "always", "never"):
        raise UsageError(f"coarse is {coarse!r}; use auto, always or never")
    setting = setting or Registering()
    for cloud in (source, target):
        cloud.need(3, "registration")
    fixed = source if source.normals is not None else with_normals(source, neighbours=setting.neighbours)

    def refined(start: Floats | None, before: tuple[float, float] | None, *, coarse: bool) -> Registration:
        moved = icp(target, fixed, start, setting.icp)
        return Registration(
            moved.transform, moved.fitness, moved.rmse, before or moved.before, moved.iterations, coarse
        )

    if coarse == "always":
        start = global_registration(target, fixed, seed=seed, setting=setting.ransac)
        lay = alignment_of(target, fixed, within=setting.icp.inlier)
        return refined(start, (lay.fitness, lay.rmse), coarse=True)
    local = refined(None, None, coarse=False)
    if coarse == "never" or local.fitness >= setting.poor:
        return local
    try:
        start = global_registration(target, fixed, seed=seed, setting=setting.ransac)
    except InputError:
        return local  # nothing better is to be had, and "auto" promises no more
    return max(local, refined(start, local.before, coarse=True), key=lambda one: one.fitness)
