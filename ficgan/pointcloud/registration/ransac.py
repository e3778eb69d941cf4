"""Global registration: from any pose to where ICP can begin."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ficgan.errors import InputError, UsageError
from ficgan.pointcloud.cloud import Cloud
from ficgan.pointcloud.neighbours import search
from ficgan.pointcloud.registration.fpfh import fpfh
from ficgan.pointcloud.registration.icp import Icp, alignment_of, icp
from ficgan.pointcloud.registration.normals import with_normals

__all__ = ["Ransac", "global_registration", "matches", "rigid_fits", "thinned"]

Floats = NDArray[np.float64]
Rows = NDArray[np.int64]


@dataclass(frozen=True)
class Ransac:
    """Settings of the global registration.

    Args:
        voxel: side of the cubes that both clouds are thinned by, metres.
        feature_radius: neighbourhood of an FPFH feature, metres.
        draws: triples of correspondences drawn.
        similar_edges: least ratio of the shorter to the longer of two edges that correspond.
        similar_normals: least cosine between normals that correspond.
        inlier: distance within which a correspondence agrees with a motion, metres.
        candidates: motions, best first by correspondences, that are tried on the clouds.
        refined: of those, best first by points within `inlier`, that ICP refines.

    Raises:
        UsageError: values that cannot work.
    """

    voxel: float = 0.007
    feature_radius: float = 0.03
    draws: int = 30_000
    similar_edges: float = 0.85
    similar_normals: float = 0.8
    inlier: float = 0.01
    candidates: int = 32
    refined: int = 3

    def __post_init__(self) -> None:
        if not (self.voxel > 0 and self.feature_radius > self.voxel and self.inlier > 0):
            raise UsageError(
                "global registration needs a voxel and inlier distance above 0 and a larger feature radius"
            )
        if min(self.draws, self.candidates, self.refined) < 1:
            raise UsageError("global registration needs at least one draw, one candidate and one to refine")


def global_registration(moving: Cloud, fixed: Cloud, *, seed: int = 0, setting: Ransac | None = None) -> Floats:
    """The motion that lays a cloud roughly on another, wherever both are.

    Triples of matches between FPFH features are drawn, those pruned whose triangles or normals do not fit, the motions
    of the others ranked by how many matches agree with them, then by how many points; ICP on the thinned clouds decides
    among the last few.

    Args:
        moving: the cloud to move.
        fixed: the cloud that stays. Normals of either are made anew, independent of the pose.
        seed: of the draws; the same seed gives the same motion.
        setting: None: the defaults.

    Returns:
        [4,4], of the moving cloud.

    Raises:
        InputError: a cloud too small, flat or uniform for three matches that fit.

    Source:
        Fischler, Bolles, "Random sample consensus" (1981); Rusu et al., ICRA 2009, §IV; point-cloud thesis, §3.2.2.4.
    """
    setting = setting or Ransac()
    a, b = (with_normals(thinned(cloud, setting.voxel), side="outwards") for cloud in (moving, fixed))
    pairs = matches(*(fpfh(one, radius=setting.feature_radius, most=100) for one in (a, b)))
    rotations, shifts = _hypotheses(a, b, pairs, np.random.default_rng(seed), setting)
    if not len(rotations):
        raise InputError(
            f"no three of {len(pairs)} matches between the clouds fit one motion; are both faces, in metres?"
        )
    rough = [(rotations[i], shifts[i]) for i in _ranked(a, b, pairs, rotations, shifts, setting)]
    reach = Icp(reach=4 * setting.voxel, iterations=10)
    tries = [icp(a, b, _matrix(*motion), reach).transform for motion in rough]
    scores = [alignment_of(a, b, one, within=setting.inlier) for one in tries]
    best = max(range(len(tries)), key=lambda i: (scores[i].fitness - scores[i].rmse / setting.inlier, -i))
    return tries[best]


def thinned(cloud: Cloud, voxel: float) -> Cloud:
    """One point in every occupied cube of a grid: the mean of those inside. Colours and normals are dropped.

    Args:
        cloud: any.
        voxel: side of the cubes, metres.
    """
    cubes = np.floor((cloud.points - cloud.points.min(axis=0, initial=np.inf)) / voxel).astype(np.int64)
    spans = cubes.max(axis=0, initial=0) + 1
    keys = (cubes[:, 0] * spans[1] + cubes[:, 1]) * spans[2] + cubes[:, 2]
    _, inverse, counts = np.unique(keys, return_inverse=True, return_counts=True)
    sums = [np.bincount(inverse, axis, minlength=len(counts)) for axis in cloud.points.T]
    return Cloud(np.stack(sums, axis=1) / counts[:, None])


def matches(first: Floats, second: Floats) -> Rows:
    """Pairs of features that are each other's nearest.

    Args:
        first: [N,D].
        second: [M,D].

    Returns:
        [K,2] rows of first and second.
    """
    first, second = first.astype(np.float32), second.astype(np.float32)
    gaps = (second**2).sum(axis=1) - 2 * first @ second.T
    there = gaps.argmin(axis=1)
    back = (gaps + (first**2).sum(axis=1)[:, None]).argmin(axis=0)
    own = np.arange(len(first))
    mutual = back[there] == own
    return np.stack([own[mutual], there[mutual]], axis=1)


def rigid_fits(moving: Floats, fixed: Floats) -> tuple[Floats, Floats]:
    """The rigid motions that bring sets of points nearest to their partners, all sets at once.

    Args:
        moving, fixed: [H,K,3], K at least 3.

    Returns:
        rotations [H,3,3] of determinant 1, and shifts [H,3]: fixed ≈ moving · Rᵀ + shift.

    Source:
        Kabsch, "A solution for the best rotation to relate two sets of vectors" (1976).
    """
    from_middle, to_middle = moving.mean(axis=1), fixed.mean(axis=1)
    spread = (moving - from_middle[:, None]).transpose(0, 2, 1) @ (fixed - to_middle[:, None])
    u, _, vt = np.linalg.svd(spread)
    u[:, :, 2] *= np.sign(np.linalg.det(u @ vt))[:, None]
    rotations = (u @ vt).transpose(0, 2, 1)
    return rotations, to_middle - np.einsum("hij,hj->hi", rotations, from_middle)


def _hypotheses(a: Cloud, b: Cloud, pairs: Rows, rng: np.random.Generator, setting: Ransac) -> tuple[Floats, Floats]:
    """Motions by triples of matches whose triangles and normals fit."""
    if len(pairs) < 3:
        return np.empty((0, 3, 3)), np.empty((0, 3))
    assert a.normals is not None and b.normals is not None
    triples = pairs[rng.integers(0, len(pairs), (setting.draws, 3))]
    corners = a.points[triples[..., 0]], b.points[triples[..., 1]]
    sides, others = (np.linalg.norm(one - np.roll(one, 1, axis=1), axis=2) for one in corners)
    # Short edges say little about a rotation.
    long = np.minimum(sides, others).min(axis=1) > 4 * setting.voxel
    fits = long & (np.minimum(sides, others) >= setting.similar_edges * np.maximum(sides, others)).all(axis=1)
    rotations, shifts = rigid_fits(corners[0][fits], corners[1][fits])
    turned = a.normals[triples[fits][..., 0]] @ rotations.transpose(0, 2, 1)
    agree = ((turned * b.normals[triples[fits][..., 1]]).sum(axis=2) >= setting.similar_normals).all(axis=1)
    return rotations[agree], shifts[agree]


def _ranked(a: Cloud, b: Cloud, pairs: Rows, rotations: Floats, shifts: Floats, setting: Ransac) -> list[int]:
    """The motions worth refining, best first."""
    here, there = a.points[pairs[:, 0]], b.points[pairs[:, 1]]
    votes = np.empty(len(rotations), np.int64)
    for i in range(0, len(rotations), 256):
        part = slice(i, i + 256)
        gaps = here @ rotations[part].transpose(0, 2, 1) + shifts[part, None] - there
        votes[part] = (np.einsum("hkd,hkd->hk", gaps, gaps) < setting.inlier**2).sum(axis=1)
    top = np.argsort(-votes, kind="stable")[: setting.candidates]
    some = a.points[:: max(1, len(a) // 400)]
    laid = some @ rotations[top].transpose(0, 2, 1) + shifts[top, None]
    distances, _ = search(b.points, laid.reshape(-1, 3), within=setting.inlier)
    closeness = 1 - np.minimum(distances, setting.inlier).reshape(len(top), -1) / setting.inlier
    best = np.argsort(-closeness.sum(axis=1), kind="stable")
    return [int(top[i]) for i in best[: setting.refined]]


def _matrix(rotation: Floats, shift: Floats) -> Floats:
    matrix = np.eye(4)
    matrix[:3, :3], matrix[:3, 3] = rotation, shift
    return matrix
