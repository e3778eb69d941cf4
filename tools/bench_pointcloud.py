"""Times of the point-cloud room, each beside Open3D's equivalent steps where it imports; both in turn, CPU seconds.

python tools/bench_pointcloud.py [--scan SCAN --target SCAN] [--rounds 7]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
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
Row = tuple[str, Work, Work | None]


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
    for name, ours, theirs in rows(scan, face.inner, target, face.outer, open3d):
        times = least([ours, *([theirs] if theirs else [])], given.rounds)
        other = f"{1e3 * times[1]:10.2f} {times[0] / times[1]:6.2f}" if len(times) > 1 else ""
        print(f"{name:34s} {1e3 * times[0]:9.2f} {other}", flush=True)


def placed(scan: Path | None, seed: int) -> Placed:
    """A scan, or a made head, in the canonical frame, without colours."""
    if scan is None:
        return Placed(Cloud(made_head(seed).cloud.points), np.eye(4), "made")
    marks = landmark_file_beside(scan)
    return canonical(read_cloud(scan), None if marks is None else read_landmarks(marks))


def least(works: list[Work], rounds: int) -> list[float]:
    """The least CPU seconds of each, taken in turn."""
    times = np.empty((rounds, len(works)))
    for row in times:
        for index, work in enumerate(works):
            begin = time.process_time()
            work()
            row[index] = time.process_time() - begin
    return [float(one) for one in times.min(axis=0)]


def rows(scan: Placed, face: Cloud, target: Cloud, outer: Cloud, open3d: Any) -> Iterator[Row]:
    """Name of a step, our way, Open3D's."""
    theirs = None if open3d is None else Theirs(open3d, scan.cloud, face, target)

    def pair(name: str, ours: Work, method: str = "", *given: Any) -> Row:
        return name, ours, (lambda: getattr(theirs, method)(*given)) if theirs and method else None

    yield pair("farthest points, to 10,500", lambda: farthest_point_sample(scan.cloud.points, 10_500), "sampled")
    yield pair("outliers (50, 4.0)", lambda: without_outliers(face), "outliers")
    yield pair("preparation after the frame", lambda: prepare(scan))
    if scan.how != "landmarks":
        yield pair("automatic frame", lambda: canonical(scan.cloud))
    for degree in (1, 35):
        yield pair(f"centroid-voxel, degree {degree}", work("centroid-voxel", degree, face), "voxels", 0.00025 * degree)
    yield pair("uniform-noise, degree 35", work("uniform-noise", 35, face), "noise", 0.0224)
    yield pair("tapering, degree 35", work("tapering", 35, face))
    for degree in (1, 10, 35):
        yield pair(f"smooth-knn, k = {8 * degree}", work("smooth-knn", degree, face), "smoothed", 8 * degree)
    for degree in (5, 35):
        yield pair(f"pmp, degree {degree}", cold(work("pmp", degree, face)), "resampled", 0.00215 * degree)
    yield pair("pmp, degree 35, in a sweep", work("pmp", 35, face))
    bare = Cloud(face.points)
    yield pair("normals, 30 neighbours", lambda: with_normals(bare), "normals")
    yield pair("registration with normals", lambda: register(bare, target), "registered")
    merge = CLOUD_ANONYMIZERS["merge-2-faces"].of_degree(20).with_target(target)
    merge(face)
    yield pair("merge-2-faces, registered", lambda: merge(face), "merged")
    lit, around = shaded(face), shaded(outer) if len(outer) > 3 else outer
    yield pair("shading", lambda: shaded(bare))
    yield pair("projection", lambda: project(merged(lit, around)))
    yield pair("distances, both directions", lambda: cloud_distances(face, target), "distances")


def work(name: str, degree: int, face: Cloud) -> Work:
    """One anonymisation."""
    method = replace(CLOUD_ANONYMIZERS[name].of_degree(degree), seed=1)
    return lambda: method(face)


def cold(work: Work) -> Work:
    """The same with no tetrahedra remembered."""

    def forgotten() -> object:
        methods._tetrahedra.cache_clear()
        return work()

    return forgotten


class Theirs:
    """Open3D's steps, on arrays and tensors, not point by point.

    Args:
        open3d: the module.
        scan, face, target: clouds.
    """

    def __init__(self, open3d: Any, scan: Cloud, face: Cloud, target: Cloud) -> None:
        self.open3d, self.points, self.others = open3d, face.points, target.points
        self.scan, self.face, self.target = (self.cloud(one.points) for one in (scan, face, target))

    def cloud(self, points: np.ndarray) -> Any:
        """Points as Open3D's cloud."""
        return self.open3d.geometry.PointCloud(self.open3d.utility.Vector3dVector(points))

    def sampled(self) -> None:
        self.scan.farthest_point_down_sample(10_500)

    def outliers(self) -> None:
        self.face.remove_statistical_outlier(50, 4.0)

    def voxels(self, size: float) -> None:
        grid = self.open3d.geometry.VoxelGrid.create_from_point_cloud(self.face, size)
        places = np.array([voxel.grid_index for voxel in grid.get_voxels()])
        (places + 0.5) * size + grid.origin

    def noise(self, size: float) -> None:
        self.cloud(self.points + np.random.default_rng(1).uniform(0, size, self.points.shape) - size / 2)

    def smoothed(self, count: int) -> None:
        self.points[self._nearest(self.points, self.points, count)].mean(axis=1)

    def resampled(self, alpha: float) -> None:
        mesh = self.open3d.geometry.TriangleMesh.create_from_point_cloud_alpha_shape(self.face, alpha)
        mesh.sample_points_uniformly(10_352)

    def normals(self) -> None:
        self.cloud(self.points).estimate_normals(self.open3d.geometry.KDTreeSearchParamKNN(30))

    def registered(self) -> None:
        steps = self.open3d.pipelines.registration
        fixed = self.cloud(self.points)
        fixed.estimate_normals(self.open3d.geometry.KDTreeSearchParamKNN(30))
        steps.evaluate_registration(self.target, fixed, 0.005)
        found = steps.registration_icp(
            self.target,
            fixed,
            0.02,
            np.eye(4),
            steps.TransformationEstimationPointToPlane(),
            steps.ICPConvergenceCriteria(1e-6, 1e-6, 30),
        )
        steps.evaluate_registration(self.target, fixed, 0.005, found.transformation)

    def merged(self) -> None:
        0.5 * self.points + 0.5 * self.others[self._nearest(self.others, self.points, 1)[:, 0]]

    def distances(self) -> None:
        self.face.compute_point_cloud_distance(self.target)
        self.target.compute_point_cloud_distance(self.face)

    def _nearest(self, points: np.ndarray, queries: np.ndarray, count: int) -> np.ndarray:
        tensor = self.open3d.core.Tensor
        search = self.open3d.core.nns.NearestNeighborSearch(tensor(points))
        search.knn_index()
        found: np.ndarray = search.knn_search(tensor(queries), count)[0].numpy()
        return found


if __name__ == "__main__":
    handle_errors(main)()
