"""Scene cuts in made films: found at cuts, quiet at flashes, fades, pans, zooms and noise."""

from __future__ import annotations

import time

import numpy as np
import pytest
from numpy.typing import NDArray

from ficgan.errors import InputError
from ficgan.video.look import CutDetector

Image = NDArray[np.uint8]


def scene(seed: int, width: int = 1280, height: int = 360) -> Image:
    """A picture of patches of several sizes, in colours of its own."""
    import cv2

    rng = np.random.default_rng(seed)
    tint = rng.uniform(0.3, 1.0, 3)
    picture = np.zeros((height, width, 3))
    for cells in (4, 9, 24):
        patch = rng.random((cells, cells * width // height, 3)) * tint
        picture += cv2.resize(patch, (width, height), interpolation=cv2.INTER_CUBIC)
    return np.clip(picture / 3 * 255, 0, 255).astype(np.uint8)


def cuts(frames: list[Image]) -> list[int]:
    detector = CutDetector()
    return [number for number, frame in enumerate(frames) if detector.step(frame)]


def noisy(frame: Image, seed: int, deviation: float = 6.0) -> Image:
    noise = np.random.default_rng(seed).normal(size=frame.shape) * deviation
    return np.clip(frame + noise, 0, 255).astype(np.uint8)


def test_cuts_are_found_where_they_are() -> None:
    """Eight scenes of three to twelve noisy frames that pan a little."""
    rng = np.random.default_rng(0)
    frames: list[Image] = []
    expected: list[int] = []
    for number in range(8):
        picture = scene(number)
        if number:
            expected.append(len(frames))
        frames += [noisy(picture[:, 4 * i : 4 * i + 640], i) for i in range(int(rng.integers(3, 13)))]
    assert cuts(frames) == expected


@pytest.mark.parametrize("kind", ["still", "pan", "fast pan", "flash", "fade", "gain", "zoom"])
def test_what_is_no_cut(kind: str) -> None:
    import cv2

    picture = scene(len(kind))
    frames: list[Image] = []
    for i in range(20):
        view = picture[:, :640].astype(np.float64)
        if kind == "pan":
            view = picture[:, 8 * i : 8 * i + 640].astype(np.float64)
        elif kind == "fast pan":  # nine tenths of the picture stay in view from frame to frame, from a standing start
            start = 64 * max(0, min(i - 8, 10))
            view = picture[:, start : start + 640].astype(np.float64)
        elif kind == "flash" and i == 10:
            view = view * 0.5 + 110
        elif kind == "fade":
            view = view * (1 - i / 20)
        elif kind == "gain" and i >= 10:
            view = view * 0.6
        elif kind == "zoom":
            side = 1 - 0.02 * i
            crop = picture[: int(360 * side), : int(640 * side)]
            view = cv2.resize(crop, (640, 360)).astype(np.float64)
        frames.append(noisy(np.clip(view, 0, 255).astype(np.uint8), i))
    assert cuts(frames) == []


def test_a_cut_after_wild_motion_and_two_cuts_in_a_row() -> None:
    pan = [scene(1)[:, 16 * i : 16 * i + 640] for i in range(12)]
    assert cuts([*pan, scene(2)[:, :640], scene(3)[:, :640], scene(3)[:, :640]]) == [12, 13]


def test_what_it_is_said_to_miss() -> None:
    """A picture of the same colours, and a change that is no larger than those before it by far."""
    assert cuts([scene(1)[:, :640], scene(1)[:, 639::-1]]) == []
    wild = [(0.55 * scene(1)[:, :640] + 0.45 * scene(10 + i)[:, :640]).astype(np.uint8) for i in range(8)]
    assert cuts([scene(1)[:, :640], scene(2)[:, :640]]) == [1]
    assert cuts([*wild, scene(2)[:, :640]]) == []


def test_size_may_change_and_one_colour_is_no_structure() -> None:
    big = scene(1)
    assert cuts([big[:, :640], big[::2, :640:2], big[:, :640]]) == []
    black = np.zeros((360, 640, 3), np.uint8)
    assert cuts([black, noisy(black, 1, 2.0), black, black + 200]) == []


def test_a_picture_may_be_tiny_and_must_be_a_picture() -> None:
    assert cuts([np.zeros((1, 1, 3), np.uint8)] * 3) == []
    with pytest.raises(InputError):
        CutDetector().step(np.zeros((4, 4), np.uint8))


def test_it_is_quick() -> None:
    """Under a millisecond for a frame of 1280×720, the best of many (measured: .2 ms)."""
    frame, detector = np.random.default_rng(0).integers(0, 255, (720, 1280, 3), dtype=np.uint8), CutDetector()
    best = 1.0
    for _ in range(60):
        start = time.perf_counter()
        detector.step(frame)
        best = min(best, time.perf_counter() - start)
    assert best < 1e-3
