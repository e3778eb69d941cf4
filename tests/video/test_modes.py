"""Where a generated face cannot stand, its fallback does, and modes do not flicker."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from ficgan.errors import UsageError
from ficgan.faces import Alignment
from ficgan.video.plan import effective_modes, frontality
from ficgan.video.settings import VideoSettings
from ficgan.video.tracks import PADDED, SEEN, Track

RATE = 20.0


def track(sides: list[float], widths: list[float] | None = None, padded: int = 0) -> Track:
    """A face at rest whose box has these sides, its eyes' distance scaled by `widths`."""
    n = len(sides)
    boxes = np.array([[100, 100, 100 + side, 100 + side] for side in sides], np.float32)
    landmarks = np.stack([Alignment().points(int(max(side, 8))) + 100 for side in sides]).astype(np.float32)
    for row, width in enumerate(widths or [1.0] * n):
        centre = landmarks[row, :, 0].mean()
        landmarks[row, :, 0] = centre + (landmarks[row, :, 0] - centre) * width
    origin = np.full(n, SEEN, np.uint8)
    origin[:padded] = PADDED
    return Track(1, 0, boxes, landmarks, np.ones(n, np.float32), origin)


def modes(track: Track, mode: str = "ficgan", **changes: object) -> tuple[list[str], dict[str, int]]:
    settings = VideoSettings(**changes)  # type: ignore[arg-type]
    found, reasons = effective_modes(track, np.array([mode] * len(track)), settings, RATE)
    return list(found), reasons


def test_frontality_is_about_one_from_the_front_and_falls_with_the_turn() -> None:
    points = Alignment().points(100)[None].repeat(2, 0)
    points[1, :, 0] = 50 + (points[1, :, 0] - 50) * 0.3
    front, side = frontality(points)
    assert 0.9 < front < 1.1 and side == pytest.approx(0.3 * front)
    assert np.isfinite(frontality(np.zeros((1, 5, 2)))).all()


def test_large_frontal_faces_are_generated() -> None:
    assert modes(track([60] * 10)) == (["ficgan"] * 10, {})


def test_small_faces_fall_back_and_stay_so_for_a_while() -> None:
    found, reasons = modes(track([60] * 20 + [20] + [60] * 20), hold=0.25)  # 5 frames at 20 per second
    small = [n for n, mode in enumerate(found) if mode == "plain"]
    assert small == list(range(15, 26)) and reasons == {"small": 11}


def test_faces_that_turn_away_fall_back() -> None:
    found, reasons = modes(track([60] * 30, [1.0] * 14 + [0.3] * 2 + [1.0] * 14), hold=0.1)
    assert {n for n, mode in enumerate(found) if mode == "plain"} == set(range(12, 18))
    assert reasons == {"turned away": 6}


def test_a_short_pause_between_two_fallbacks_is_closed() -> None:
    sides = [60] * 10 + [20] + [60] * 12 + [20] + [60] * 10
    found, _ = modes(track(sides), hold=0.25)
    changes = sum(a != b for a, b in itertools.pairwise(found))
    assert changes == 2 and "plain" in found


def test_pads_get_the_fallback() -> None:
    assert modes(track([60] * 6, padded=2)) == (["plain"] * 2 + ["ficgan"] * 4, {"pad": 2})
    assert modes(track([60] * 6, padded=2), fallback="solid")[0] == ["black"] * 2 + ["ficgan"] * 4


def test_other_modes_have_no_fallback() -> None:
    for mode in ("plain", "blur", "mosaic", "solid", "keep"):
        assert modes(track([10] * 4, padded=2), mode) == ([mode] * 4, {})


@pytest.mark.parametrize(
    "wrong",
    [
        {"stride": 0},
        {"pad": -1.0},
        {"pad": float("nan")},
        {"link": "all"},
        {"fallback": "ficgan"},
        {"fallback": "keep"},
        {"mode": "keep"},
        {"verify": "yes"},
        {"mask_scale": 0.0},
    ],
)
def test_settings_that_cannot_work(wrong: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        VideoSettings(**wrong)  # type: ignore[arg-type]
