"""Films whose every face pixel is known: what is left uncovered."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from clips import frames_of, make_clip
from compositor import Actor, Area, Bar, Head, Image, Scene, astronaut, uncovered

from ficgan.faces import FaceDetector, Recognizer, get_detector, get_recognizer
from ficgan.video.film import process_film
from ficgan.video.settings import VideoSettings, VideoTools


@pytest.fixture(scope="module")
def detector() -> FaceDetector:
    pytest.importorskip("onnxruntime")
    return get_detector("centerface", scale=1.0)


@pytest.fixture(scope="module")
def recognizer() -> Recognizer:
    return get_recognizer("dlib")


# -- films -------------------------------------------------------------------------------------------------------------


def occluded(head: Head) -> Scene:
    """A bar before eyes and nose for 18 frames, while the face moves on; then it dashes off."""

    def path(n: int) -> tuple[float, float, float]:
        return (120 + 2.4 * n, 170 + 10 * np.sin(n / 9), 84) if n < 60 else (264 + 14 * (n - 60), 170, 84)

    def bar(n: int) -> tuple[float, float, float, float]:
        x, y, size = path(n)
        return x - 0.75 * size, y - 0.42 * size, x + 0.75 * size, y + 0.12 * size

    return Scene(82, [Actor(head, path, shutter=9)], bars=[Bar(24, 42, bar)], seed=1)


def behind_a_post(head: Head) -> Scene:
    """The face passes wholly behind a post, 18 frames long."""
    return Scene(
        90, [Actor(head, lambda n: (60 + 6 * n, 180, 90))], bars=[Bar(0, 90, lambda n: (262, 0, 372, 360))], seed=2
    )


def fast(head: Head) -> Scene:
    """To and fro, with motion blur, up to 38 px a frame."""
    return Scene(
        75, [Actor(head, lambda n: (320 + 240 * np.sin(n * 0.16), 170 + 30 * np.cos(n * 0.3), 80), 11)], seed=3
    )


def speeding_up(head: Head) -> Scene:
    """Enters at the left border, speeds up, leaves at the right."""
    return Scene(80, [Actor(head, lambda n: (-50 + 0.12 * n * n, 190, 100), 9)], seed=4)


def after_a_cut(head: Head) -> Scene:
    """Another scene, another place, the same person."""
    return Scene(80, [Actor(head, lambda n: (200 + n, 150, 80) if n < 41 else (460 - n, 220, 110))], cuts=[41], seed=6)


def glimpse(head: Head) -> Scene:
    """Three frames between two looks."""
    return Scene(40, [Actor(head, lambda n: (330, 170, 80) if 21 <= n < 24 else None)], seed=7)


# -- runs --------------------------------------------------------------------------------------------------------------


def left_open(
    areas: Sequence[Sequence[Area]], source: Sequence[Image], result: Sequence[Image], mode: str
) -> list[tuple[int, int]]:
    assert len(source) == len(result) == len(areas)
    return [
        (area.actor, number)
        for number, (shown, before, after) in enumerate(zip(areas, source, result, strict=True))
        for area in shown
        if uncovered(before, after, area, mode)
    ]


def run(scene: Scene, folder: Path, mode: str, detector: FaceDetector, recognizer: Recognizer) -> list[tuple[int, int]]:
    """Actors and frames that are left uncovered."""
    folder.mkdir(exist_ok=True)
    images, areas = scene.play()
    clip, out = folder / "clip.mp4", folder / f"{mode}.mp4"
    make_clip(clip, scene.frames, size=scene.size, time_base=Fraction(1, scene.rate), pictures=images)
    settings = VideoSettings(mode=mode, verify="off")
    process_film(VideoTools(detector, recognizer), clip, out, settings=settings)
    assert sum(map(len, areas)) > 2
    return left_open(areas, frames_of(clip), frames_of(out), mode)


# -- tests -------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def head() -> Head:
    return astronaut()


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["solid", "blur"])
@pytest.mark.parametrize("film", [occluded, behind_a_post, fast, speeding_up, after_a_cut, glimpse])
def test_every_film_is_covered(
    film: Callable[[Head], Scene], mode: str, head: Head, tmp_path: Path, detector: FaceDetector, recognizer: Recognizer
) -> None:
    assert not run(film(head), tmp_path / film.__name__, mode, detector, recognizer)


def test_the_measure_sees_what_is_left_open(head: Head) -> None:
    """The source itself is all uncovered; black and a wide blur are not."""
    import cv2

    image, (area,) = fast(head).frame(10)
    blurred = np.asarray(cv2.GaussianBlur(image, (0, 0), 12), np.uint8)
    for mode in ("solid", "blur"):
        assert uncovered(image, image, area, mode)
    assert not uncovered(image, np.zeros_like(image), area, "solid")
    assert not uncovered(image, blurred, area, "blur")
