"""Figures of a study of clouds, against slow loops, scipy and scikit-learn."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score

from ficgan.lab.clouds import tables as room
from ficgan.lab.clouds.study import ClearShape
from ficgan.lab.clouds.tables import METRICS, mu_privacy, mu_utility, privacy, value_of
from ficgan.lab.metrics import Bootstrap, Sample
from ficgan.lab.metrics.scores import Scores
from ficgan.pointcloud.cloud import Cloud
from ficgan.pointcloud.geometry import cloud_distances, curvature_error, normal_error

DTYPE: Any = np.dtype(
    [
        ("made", bool),
        ("found", bool),
        ("box", np.float32, (4,)),
        ("marks", np.float32, (5, 2)),
        ("ssim", np.float32),
        ("seconds", np.float32),
        ("features", np.float16, (6,)),
    ]
)
FEW = Bootstrap(200, 0)


def records(count: int, seed: int = 0) -> Any:
    rng = np.random.default_rng(seed)
    out = np.zeros(count, DTYPE)
    out["made"] = out["found"] = True
    out["box"] = [100, 120, 200, 260]
    out["marks"] = rng.uniform(100, 200, (5, 2))
    out["ssim"], out["seconds"] = 1, 0.5
    out["features"] = rng.standard_normal((count, 6))
    return out


def utility(clear: Any, made: Any) -> Any:
    sample = Sample(np.arange(len(clear)), FEW, "clouds")
    return room.utility(clear, made, sample, 0.5, 40.0, name="s", method="m 1").figures


@pytest.mark.parametrize(
    ("area", "first", "expected"),
    [(1.0, 1.0, 0.0), (0.5, 0.0, 1.0), (0.75, 0.5, 0.5), (0.4, 0.0, 1.0), (0.6, 0.1, 0.85)],
)
def test_mean_privacy_is_equation_5_1(area: float, first: float, expected: float) -> None:
    assert mu_privacy(area, first) == pytest.approx(expected)


def test_mean_utility_is_equation_5_2() -> None:
    assert mu_utility(0.4, 0.8) == pytest.approx(0.6)


@settings(max_examples=6)
@given(st.integers(3, 12), st.integers(0, 1000))
def test_privacy_is_that_of_all_pairs(people: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    gallery, noise = rng.standard_normal((people, 8)), rng.standard_normal((people, 8))
    probes = gallery + 1.5 * noise
    who = np.arange(people)
    figures = privacy(Scores.compare(probes, gallery, who, who, metric="cosine"), None, FEW)
    unit = [x / np.linalg.norm(x, axis=1, keepdims=True) for x in (probes, gallery)]
    matrix = unit[0] @ unit[1].T
    area = roc_auc_score(np.eye(people).ravel(), matrix.ravel())
    first = float(np.mean([row.argmax() == i for i, row in enumerate(matrix)]))
    assert value_of(figures, "AUC") == pytest.approx(area)
    assert value_of(figures, "rank-1") == pytest.approx(first)
    mean = 1 - (max(0, 2 * (area - 0.5)) + first) / 2
    assert value_of(figures, "mu-privacy") == pytest.approx(mean)


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
    assert room.landmark_distances(clear, made, 40.0) == pytest.approx([40, 40, 5, 5, np.nan], nan_ok=True)
    left = utility(clear, made)
    assert value_of(left, "landmark-distance") == pytest.approx((5 + 40) / 2)


def test_equal_projections_are_no_distance_apart_and_every_metric_is_told() -> None:
    clear = records(8)
    left = utility(clear, clear)
    assert value_of(left, "fd-squeezenet") == pytest.approx(0, abs=1e-4)
    assert value_of(left, "delta-detection") == value_of(left, "mu-utility") == 1
    assert {one.metric for one in left} <= set(METRICS)


def test_times_of_some_people_are_of_those() -> None:
    made = records(6)
    made["seconds"] = [0.1, 0.3, np.nan, np.nan, np.nan, np.nan]
    left = utility(records(6), made)
    assert value_of(left, "seconds") == pytest.approx(0.2)
    assert value_of(left, "seconds-sd") == pytest.approx(0.1)
    made["seconds"] = np.nan
    left = utility(records(6), made)
    assert value_of(left, "seconds") is None


def test_no_embedding_is_no_privacy() -> None:
    rng = np.random.default_rng(0)
    gallery = rng.standard_normal((4, 8))
    acquired = np.array([True, True, False, True])
    scores = Scores.compare(gallery, gallery, range(4), range(4), metric="cosine", acquired=acquired)
    figures = privacy(scores, None, FEW)
    assert value_of(figures, "rank-1") == 1
    assert value_of(figures, "rank-1 (failures as misses)") == pytest.approx(3 / 4)


def test_a_trial_counts_what_was_not_detected() -> None:
    gallery = np.eye(4)
    scores = Scores.compare(gallery, gallery, range(4), range(4), metric="cosine")
    figures = privacy(scores, np.array([True, False, False, True]), FEW)
    assert value_of(figures, "failures to acquire") == pytest.approx(0.5)


@given(st.lists(st.floats(-100, 100), min_size=1, max_size=30), st.integers(1, 6))
def test_means_and_medians_lie_in_their_intervals(values: list[float], people: int) -> None:
    sample = Sample(np.arange(len(values)) % people, FEW)
    for one, plain in ((sample.mean("m", values), np.mean(values)), (sample.median("m", values), np.median(values))):
        assert one.value == pytest.approx(plain)
        if one.low is not None and one.high is not None:
            assert one.low <= one.high
            assert min(values) - 1e-3 <= one.low and one.high <= max(values) + 1e-3


def test_resampled_medians_are_medians() -> None:
    rng = np.random.default_rng(3)
    values, people = rng.standard_normal(12), np.repeat(np.arange(4), 3)
    weights = Bootstrap(50, 1).weights(4)
    plain = [np.median(np.repeat(values, row[people].astype(int))) for row in weights]
    found = Sample(people, Bootstrap(50, 1)).median("m", values)
    assert [found.low, found.high] == pytest.approx(np.quantile(plain, [0.025, 0.975]))


def test_values_that_are_missing_leave_no_figure() -> None:
    sample = Sample(np.arange(3), FEW)
    assert sample.mean("m", [np.nan] * 3).value is None
    assert sample.median("m", [np.nan] * 3).value is None
    assert sample.share("m", []).value is None


@pytest.fixture
def ball(rng: np.random.Generator) -> Cloud:
    points = rng.standard_normal((600, 3))
    return Cloud(0.1 * points / np.linalg.norm(points, axis=1, keepdims=True))


def test_distortion_is_what_the_room_of_clouds_measures(ball: Cloud, rng: np.random.Generator) -> None:
    other = ball.with_points(ball.points + 0.002 * rng.standard_normal((600, 3)))
    apart, turned, bent = ClearShape.of(ball).measure(other)
    assert apart == pytest.approx(1000 * cloud_distances(other, ball).chamfer)
    assert turned == pytest.approx(normal_error(other, ball))
    assert bent == pytest.approx(curvature_error(other, ball))


def test_a_cloud_is_no_distance_from_itself_and_a_shift_is_its_length(ball: Cloud) -> None:
    assert ClearShape.of(ball).measure(ball) == pytest.approx((0, 0, 0), abs=1e-4)
    larger = ball.with_points(1.01 * ball.points)
    assert ClearShape.of(ball).measure(larger)[0] == pytest.approx(1.0, rel=1e-6)


def test_points_on_a_line_have_no_surface(ball: Cloud) -> None:
    line = Cloud(np.linspace([0, 0, 0], [0.1, 0, 0], 50))
    apart, turned, bent = ClearShape.of(ball).measure(line)
    assert apart > 0 and np.isnan(turned) and np.isnan(bent)
