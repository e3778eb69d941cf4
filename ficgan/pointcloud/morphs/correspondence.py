"""Which place of one face is which of another: a template's points laid on a scan by landmarks, then by nearness."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.interpolate import RBFInterpolator
from scipy.sparse import csr_array

from ficgan.pointcloud.neighbours import Tree, search

__all__ = ["Fitting", "Sheet", "fitted"]

Array = NDArray[Any]
NEIGHBOURS = 10


@dataclass(frozen=True)
class Fitting:
    """How a template is laid on a scan.

    Args:
        rounds: for each round, how often displacements are averaged over neighbours: from stiff to soft.
        reach: metres; nearest points farther than this in the first round, and half of it in the last, do not pull.
        slant: cosine between normals below which they do not pull.
    """

    rounds: tuple[int, ...] = (160, 80, 40, 20, 10, 6)
    reach: float = 0.012
    slant: float = 0.6


@dataclass(frozen=True)
class Sheet:
    """A cloud with what is needed to smooth over it.

    Args:
        points: [N,3] metres.
        normals: [N,3] unit, x ≥ 0 mostly: away from `INSIDE`.
        average: [N,N] sparse, rows sum to 1: the mean over a point's neighbours.
        neighbours: [N,k] indices.
    """

    points: Array
    normals: Array
    average: csr_array
    neighbours: Array

    @classmethod
    def of(cls, points: Array) -> Sheet:
        """Of points [N,3] of a head in the canonical frame."""
        _, near = search(points, points, NEIGHBOURS)
        count = len(points)
        columns = near.ravel()
        rows = np.repeat(np.arange(count), NEIGHBOURS)
        one = csr_array((np.ones(count * NEIGHBOURS, np.float32), (rows, columns)), shape=(count, count))
        both = one + one.T  # else points that nobody names would not take part
        share = csr_array((1.0 / both.sum(axis=1), (np.arange(count), np.arange(count))), shape=(count, count))
        return cls(points, normals_of(points, near), (share @ both).astype(np.float32), near[:, 1:])


INSIDE = np.array([-0.10, 0.01, 0.0])
"""Within a head in the canonical frame; normals point away from here."""


def normals_of(points: Array, near: Array) -> Array:
    """Unit normals [N,3] of the planes through points' neighbours, away from `INSIDE`.

    Args:
        points: [N,3].
        near: [N,k] neighbours' indices.
    """
    patch = points[near] - points[near].mean(axis=1, keepdims=True)
    _, axes = np.linalg.eigh(np.einsum("nki,nkj->nij", patch, patch))
    normals = axes[:, :, 0]
    return np.asarray(normals * np.where(np.einsum("nc,nc->n", normals, points - INSIDE) < 0, -1.0, 1.0)[:, None])


def fitted(template: Sheet, marks: Array, scan: Sheet, goals: Array, how: Fitting = Fitting()) -> Array:
    """The template's points, moved onto a scan.

    Args:
        template: in the canonical frame.
        marks: [L,3] its landmarks.
        scan: in the canonical frame.
        goals: [L,3] the scan's landmarks, in the same order.
        how: settings.

    Returns:
        [N,3]: point i is where the template's point i is on the scan. Where the scan has no surface nearby, the points
        follow their neighbours.

    Source:
        Thin plate: Bookstein, "Principal Warps", 1989. The rounds: a light form of Amberg et al., "Optimal Step
        Nonrigid ICP Algorithms for Surface Registration", 2007, diffusion in place of the linear system.
    """
    warp = RBFInterpolator(marks, goals - marks, kernel="thin_plate_spline", smoothing=1e-6)
    moved = template.points + warp(template.points)
    tree = Tree(scan.points)
    for number, steps in enumerate(how.rounds):
        reach = how.reach * (1.0 - 0.5 * number / max(len(how.rounds) - 1, 1))
        away, near = (found[:, 0] for found in tree.nearest(moved, within=reach))
        pulled = np.flatnonzero(np.isfinite(away))
        at = near[pulled]
        faces = normals_of(moved, np.column_stack([np.arange(len(moved)), template.neighbours]))
        alike = np.einsum("nc,nc->n", faces[pulled], scan.normals[at]) > how.slant
        pulled, at = pulled[alike], at[alike]
        pull = np.zeros((len(moved), 4), np.float32)
        off = np.einsum("nc,nc->n", scan.points[at] - moved[pulled], scan.normals[at])
        pull[pulled] = np.column_stack([off[:, None] * scan.normals[at], np.ones(len(at))])
        for _ in range(steps):
            pull = template.average @ pull
        moved = moved + pull[:, :3] / np.maximum(pull[:, 3:], 0.05)
    return moved
