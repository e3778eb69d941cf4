"""Times of the point-cloud room, each beside Open3D's equivalent step where it imports; both in turn, CPU seconds.

python tools/bench_pointcloud.py [--scan SCAN --target SCAN] [--rounds 7]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from ficgan.cli._console import handle_errors
from ficgan.pointcloud import CLOUD_ANONYMIZERS, Cloud, merged, methods, read_cloud
from ficgan.pointcloud.cloud import farthest_point_sample, with_normals, without_outliers
from ficgan.pointcloud.frame import Placed, canonical
from ficgan.pointcloud.geometry import cloud_distances, register
from ficgan.pointcloud.heads import made_head
from ficgan.pointcloud.landmarks import landmark_file_beside, read_landmarks
from ficgan.pointcloud.projection import project, shaded
from ficgan.pointcloud.scan import prepare

Work = Callable[[], object]


def main() -> None:
    """Print one row a step."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--scan", type=Path, help="a scan with landmarks beside it; a made head without")
    parser.add_argument("--target", type=Path, help="another, to register and to merge with")
    parser.add_argument("--rounds", type=int, default=7)
    given = parser.parse_args()
    scan = placed(given.scan, 1)
    face, target = prepare(scan), prepare(placed(given.target, 2)).inner
    try:
        import open3d
    except ImportError as error:
        print(f"open3d cannot be imported ({error}): times alone")
        open3d = None
    print(f"{len(face.inner):,} points in the face, {len(face.outer):,} around it; the least of {given.rounds} rounds")
    print(f"{'step':34s} {'ms':>9s} {'open3d ms':>10s} {'ratio':>6s}")
    theirs = {} if open3d is None else by_open3d(open3d, scan.cloud.points, face.inner.points, target.points)
    for name, work in steps(scan, face.inner, target, face.outer):
        both = [work, *([theirs[name]] if name in theirs else [])]
        times = [float(row) for row in np.min([[cpu(one) for one in both] for _ in range(given.rounds)], axis=0)]
        other = f"{1e3 * times[1]:10.2f} {times[0] / times[1]:6.2f}" if len(times) > 1 else ""
        print(f"{name:34s} {1e3 * times[0]:9.2f} {other}", flush=True)


def placed(scan: Path | None, seed: int) -> Placed:
    """A scan, or a made head, in the canonical frame, without colours."""
    if scan is None:
        return Placed(Cloud(made_head(seed).cloud.points), np.eye(4), "given")
    marks = landmark_file_beside(scan)
    return canonical(read_cloud(scan), None if marks is None else read_landmarks(marks))


def cpu(work: Work) -> float:
    """CPU seconds of one call, no tetrahedra remembered."""
    methods._tetrahedra.cache_clear()
    begin = time.process_time()
    work()
    return time.process_time() - begin


def steps(scan: Placed, face: Cloud, target: Cloud, outer: Cloud) -> Iterator[tuple[str, Work]]:
    """Names of steps and what they do."""
    bare, lit, around = Cloud(face.points), shaded(face), shaded(outer) if len(outer) > 3 else outer
    yield "farthest points, to 10,500", lambda: farthest_point_sample(scan.cloud.points, 10_500)
    yield "outliers (50, 4.0)", lambda: without_outliers(face)
    yield "preparation after the frame", lambda: prepare(scan)
    yield "automatic frame", lambda: canonical(scan.cloud)
    for name, degree in (
        ("centroid-voxel", 35),
        ("uniform-noise", 35),
        ("tapering", 35),
        ("smooth-knn", 1),
        ("smooth-knn", 35),
        ("pmp", 35),
    ):
        method = CLOUD_ANONYMIZERS[name].of_degree(degree, seed=1)
        yield f"{name}, degree {degree}", lambda method=method: method(face)
    yield "normals, 30 neighbours", lambda: with_normals(bare)
    yield "registration with normals", lambda: register(bare, target)
    merge = CLOUD_ANONYMIZERS["merge-2-faces"].of_degree(20).with_target(target)
    merge(face)
    yield "merge-2-faces, registered", lambda: merge(face)
    yield "shading", lambda: shaded(bare)
    yield "projection", lambda: project(merged(lit, around))
    yield "distances, both directions", lambda: cloud_distances(face, target)


def by_open3d(open3d: Any, scan: np.ndarray, face: np.ndarray, target: np.ndarray) -> dict[str, Work]:
    """Open3D's equivalents, by the names of `steps`."""
    geometry = open3d.geometry

    def cloud(points: np.ndarray) -> Any:
        return geometry.PointCloud(open3d.utility.Vector3dVector(points))

    whole, inner, other = cloud(scan), cloud(face), cloud(target)

    def nearest(count: int) -> np.ndarray:
        search = open3d.core.nns.NearestNeighborSearch(open3d.core.Tensor(face))
        search.knn_index()
        found: np.ndarray = search.knn_search(open3d.core.Tensor(face), count)[0].numpy()
        return found

    def resampled() -> None:
        geometry.TriangleMesh.create_from_point_cloud_alpha_shape(inner, 0.07525).sample_points_uniformly(10_352)

    return {
        "farthest points, to 10,500": lambda: whole.farthest_point_down_sample(10_500),
        "outliers (50, 4.0)": lambda: inner.remove_statistical_outlier(50, 4.0),
        "centroid-voxel, degree 35": lambda: geometry.VoxelGrid.create_from_point_cloud(inner, 0.00875).get_voxels(),
        "smooth-knn, degree 1": lambda: face[nearest(8)].mean(axis=1),
        "smooth-knn, degree 35": lambda: face[nearest(280)].mean(axis=1),
        "pmp, degree 35": resampled,
        "normals, 30 neighbours": lambda: cloud(face).estimate_normals(geometry.KDTreeSearchParamKNN(30)),
        "distances, both directions": lambda: (
            inner.compute_point_cloud_distance(other),
            other.compute_point_cloud_distance(inner),
        ),
    }


if __name__ == "__main__":
    handle_errors(main)()
