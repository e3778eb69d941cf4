"""The preparation: the thesis' counts, what is kept untouched, sparse scans, outliers, refusals."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.spatial import cKDTree

from ficgan.errors import InputError, UsageError
from ficgan.pointcloud import Cloud, merged
from ficgan.pointcloud.frame import Placed
from ficgan.pointcloud.heads import MadeHead, made_head
from ficgan.pointcloud.landmarks import FaceLandmarks
from ficgan.pointcloud.prepare import PreparationConfig, prepare, prepare_placed


@pytest.fixture(scope="module")
def head() -> MadeHead:
    return made_head(1, points=45_000)


def _placed(cloud: Cloud) -> Placed:
    return Placed(cloud, np.eye(4), "landmarks")


def test_the_numbers_of_the_thesis(head: MadeHead) -> None:
    turn = np.array([[0, -1, 0, 0.3], [1, 0, 0, 2.0], [0, 0, 1, -1.0], [0, 0, 0, 1.0]])
    landmarks = FaceLandmarks.of_points(head.landmarks @ turn[:3, :3].T + turn[:3, 3])
    ready = prepare(head.cloud.moved(turn), landmarks)
    assert list(ready.counts) == ["scan", "box", "inner", "first sampling", "outliers", "last sampling"]
    counts = list(ready.counts.values())
    assert counts == sorted(counts, reverse=True)
    assert ready.counts["first sampling"] == 10_500 and ready.counts["last sampling"] == 10_352 == len(ready.inner)
    assert ready.counts["box"] - ready.counts["inner"] == len(ready.outer) > 1000
    assert not ready.sparse and ready.how == "landmarks"
    assert ready.inner.colors is not None and ready.outer.colors is not None
    near, far = (np.linalg.norm(part.points, axis=1) for part in (ready.inner, ready.outer))
    assert near.max() <= 0.14 < far.min()
    scan = cKDTree(head.cloud.moved(ready.transform @ turn).points)
    assert scan.query(merged(ready.inner, ready.outer).points)[0].max() < 1e-9  # points are chosen, never moved


def test_a_sparse_scan_is_kept_and_said_to_be_sparse(head: MadeHead) -> None:
    ready = prepare_placed(_placed(head.cloud.take(np.arange(4000))))
    assert ready.sparse and ready.wanted == 10_352
    assert len(ready.inner) == ready.counts["outliers"] <= ready.counts["inner"] < 4000


def test_points_on_each_other_do_not_make_a_face_dense(head: MadeHead) -> None:
    few = head.cloud.take(np.arange(3000))
    ready = prepare_placed(_placed(few.take(np.repeat(np.arange(3000), 10))))
    alone = prepare_placed(_placed(few))
    assert ready.sparse and ready.duplicates == 27_000 and ready.counts["scan"] == 30_000 and alone.duplicates == 0
    np.testing.assert_array_equal(ready.inner.points, alone.inner.points)


def test_outliers_go(head: MadeHead) -> None:
    stray = np.array([[-0.12, 0.05, 0.0], [-0.001, 0.1, 0.06], [-0.002, -0.1, -0.07]])
    dirty = Cloud(np.concatenate([head.cloud.points, stray]))
    ready = prepare_placed(_placed(dirty))
    apart = cKDTree(ready.inner.points).query(stray)[0]
    assert (apart[1:] > 1e-6).all()
    assert ready.counts["outliers"] < ready.counts["first sampling"]


def test_many_outliers_are_made_up_for(head: MadeHead) -> None:
    """A strict limit takes more points than the first sampling has to spare; the scan has others."""
    ready = prepare_placed(_placed(head.cloud), PreparationConfig(ratio=0.5))
    assert ready.counts["first sampling"] > 10_500 and len(ready.inner) == 10_352 and not ready.sparse


def test_other_numbers(head: MadeHead) -> None:
    ready = prepare_placed(_placed(head.cloud), PreparationConfig(first=2000, neighbours=20, ratio=3.0, last=1500))
    assert ready.counts["first sampling"] == 2000 and len(ready.inner) == 1500
    with pytest.raises(UsageError, match="no more at last than at first"):
        PreparationConfig(first=1000, last=2000)


def test_refusals(head: MadeHead) -> None:
    with pytest.raises(InputError, match=r"120 points.*a face within its sphere.*500"):
        prepare_placed(_placed(head.cloud.take(np.flatnonzero(np.linalg.norm(head.cloud.points, axis=1) < 0.14)[:120])))
    with pytest.raises(InputError, match="has 0 points"):
        prepare(Cloud(np.zeros((0, 3))))
    with pytest.raises(InputError, match="nose tip"):
        prepare_placed(_placed(Cloud(head.cloud.points + 2.0)))
