"""Figures of a study of clouds, sweeps and the auto-encoder's parts: against slow loops, scipy and scikit-learn."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.lib.recfunctions import repack_fields
from sklearn.metrics import roc_auc_score

from ficgan.errors import InputError, UsageError
from ficgan.lab.clouds import report as room
from ficgan.lab.clouds import study as room_study
from ficgan.lab.clouds.report import METRICS, mu_privacy, mu_utility, needs_cloud, privacy, strongest
from ficgan.lab.clouds.study import INVERSES, anonymiser, sweep
from ficgan.lab.metrics import Bootstrap, Sample
from ficgan.lab.metrics.privacy import Scores
from ficgan.lab.report.tables import value_of
from ficgan.lab.results import Figure, Results, Trial
from ficgan.pointcloud import segmented
from ficgan.pointcloud.cloud import Cloud
from ficgan.pointcloud.face import made_head
from ficgan.pointcloud.methods import CLOUD_ANONYMIZERS

FIELDS = "made:?, found:?, box:4f4, marks:(5,2)f4, ssim:f4, features:6f2"
DTYPE: Any = np.dtype([tuple(one.split(":")) for one in FIELDS.split(", ")])  # type: ignore[misc]
FEW = Bootstrap(200, 0)


def records(count: int, seed: int = 0) -> Any:
    rng = np.random.default_rng(seed)
    out = np.zeros(count, DTYPE)
    out["made"] = out["found"] = True
    out["box"] = [100, 120, 200, 260]
    out["marks"] = rng.uniform(100, 200, (5, 2))
    out["ssim"] = 1
    out["features"] = rng.standard_normal((count, 6))
    return out


def utility(clear: Any, made: Any, seconds: Any = 0.5) -> Any:
    times = np.broadcast_to(np.asarray(seconds, float), len(clear))
    return room.utility(clear, made, times, Sample(np.arange(len(clear)), FEW, "clouds"))


@pytest.mark.parametrize(
    ("area", "first", "expected"),
    [(1.0, 1.0, 0.0), (0.5, 0.0, 1.0), (0.75, 0.5, 0.5), (0.4, 0.0, 1.0), (0.6, 0.1, 0.85)],
)
def test_means_are_equations_5_1_and_5_2(area: float, first: float, expected: float) -> None:
    assert mu_privacy(area, first) == pytest.approx(expected)
    assert mu_utility(0.4, 0.8) == pytest.approx(0.6)


@settings(max_examples=6)
@given(st.integers(3, 12), st.integers(0, 1000))
def test_privacy_is_that_of_all_pairs(people: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    gallery, noise = rng.standard_normal((2, people, 8))
    probes, who = gallery + 1.5 * noise, np.arange(people)
    figures = privacy(Scores.compare(probes, gallery, who, who, metric="cosine"), None, FEW)
    unit = [x / np.linalg.norm(x, axis=1, keepdims=True) for x in (probes, gallery)]
    matrix = unit[0] @ unit[1].T
    area = roc_auc_score(np.eye(people).ravel(), matrix.ravel())
    first = float(np.mean([row.argmax() == i for i, row in enumerate(matrix)]))
    assert value_of(figures, "AUC") == pytest.approx(area) and value_of(figures, "rank-1") == pytest.approx(first)
    assert value_of(figures, "mu-privacy") == pytest.approx(1 - (max(0, 2 * (area - 0.5)) + first) / 2)


def test_detection_asks_for_the_place() -> None:
    clear, made = records(8), records(8)
    made["found"][0] = False  # lost
    made["box"][0] = np.nan
    made["box"][1] = [150, 120, 250, 260]  # half beside: IoU 1/3
    made["box"][2] = [110, 120, 210, 260]  # a tenth beside: IoU 9/11
    clear["found"][3] = False  # nothing to compare with
    left = utility(clear, made)
    assert value_of(left, "delta-detection") == pytest.approx(5 / 8)
    assert value_of(left, "detection-drop") == pytest.approx(7 / 8 - 5 / 8)
    assert value_of(left, "box-iou") == pytest.approx((0 + 1 / 3 + 9 / 11 + 4) / 7)
    assert value_of(left, "mu-utility") == pytest.approx((5 / 8 + 1) / 2)


def test_a_lost_face_is_forty_pixels_away() -> None:
    clear, made = records(5), records(5)
    made["marks"] = clear["marks"] + np.array([3, 4], np.float32)
    made["found"][:2] = False
    made["marks"][:2] = np.nan
    clear["found"][4] = False
    assert room.landmark_distances(clear, made) == pytest.approx([40, 40, 5, 5, np.nan], nan_ok=True)
    assert value_of(utility(clear, made), "landmark-distance") == pytest.approx((5 + 40) / 2)


def test_equal_projections_are_no_distance_apart_and_times_are_of_some() -> None:
    clear = records(6)
    left = utility(clear, clear, [0.1, 0.3, *[np.nan] * 4])
    assert value_of(left, "fid") == pytest.approx(0, abs=1e-4)
    assert value_of(left, "delta-detection") == value_of(left, "mu-utility") == 1
    assert value_of(left, "seconds") == pytest.approx(0.2) and value_of(left, "seconds-sd") == pytest.approx(0.1)
    assert value_of(utility(clear, clear, np.nan), "seconds") is None
    assert {one.metric for one in left} <= set(METRICS)
    bare = repack_fields(clear[["made", "found", "box", "marks", "ssim"]])
    assert value_of(utility(bare, bare), "fid") is None
    squeezed = np.zeros(6, [*bare.dtype.descr, ("features", "f2", (512,))])
    assert value_of(utility(squeezed, squeezed), "fd-squeezenet") == 0


def test_the_headline_is_the_strongest_attacker() -> None:
    def trial(attacker: str, mean: float, name: str = "s", control: str = "", people: int = 40) -> Trial:
        figures = (Figure("mu-privacy", mean), Figure("AUC", 0.5), Figure("rank-1", 0.5, n=people))
        return Trial(name, "pmp 1", "naive", "r", attacker, figures, control=control)

    results = Results("t", sets={"s": {"probe_people": 40}, "part": {"probe_people": 3}})
    results.trials = [trial("", 0.9), trial("a", 0.4), trial("c", 0.1, "part"), trial("d", 0.0, control="ceiling")]
    results.trials.append(replace(trial("lucky", 0.0, people=2), scenario="reversed"))
    found = strongest(results, "pmp 1")
    assert found is not None and found.attacker == "a" and strongest(results, "pmp 2") is None
    cloud = [Trial("s", "m 1", "inverse", "r", attacker) for attacker in INVERSES]
    assert all(map(needs_cloud, [*cloud, Trial("s", "m 1", "naive", "depth (3D)")])) and not needs_cloud(found)


# -- treatments -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def faces() -> tuple[Cloud, Cloud]:
    first, other = (segmented(made_head(seed, points=1500).cloud)[0] for seed in (1, 2))
    return first, other


@pytest.mark.parametrize("method", list(CLOUD_ANONYMIZERS))
def test_a_sweep_is_the_method_strength_by_strength(method: str, faces: tuple[Cloud, Cloud]) -> None:
    cloud, other = faces
    target = other if method == "merge-2-faces" else None
    strengths = (1, 9, 20)
    every = sweep(method, strengths, cloud, seed=3, target=target, name="a")
    for strength, made in zip(strengths, every, strict=True):
        try:
            plain = anonymiser(method, strength, seed=3, target=target)(cloud, name="a")
        except InputError:
            assert made is None
            continue
        assert made is not None and made.colors is not None and plain.colors is not None
        np.testing.assert_allclose(made.points, plain.points, atol=1e-12)
        assert np.abs(made.colors.astype(int) - plain.colors).max() <= 1
    small = cloud.take(np.arange(100))
    assert sweep("smooth-knn", (35, 1), small)[0] is None


# -- the auto-encoder -------------------------------------------------------------------------------------------------


def test_nobody_is_learnt_from_and_tried() -> None:
    people = np.repeat(np.arange(200), 2)
    taught, tried = room_study.split(people, 0)
    assert len(taught) == 180 and len(tried) == 20 and not set(taught) & set(tried)
    assert list(room_study.split(people, 1)[1]) != list(tried)
    with pytest.raises(UsageError):
        room_study.split(np.array([0, 0, 1]), 0)
