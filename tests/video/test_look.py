"""Where the detector looks: every n-th frame of a calm film, the ends of scenes, and between looks that differ."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray
from worlds import box_at, face_at

from ficgan.faces import Face
from ficgan.video.found import FACES, PENDING, FieldSearch, Finds, look
from ficgan.video.source import Frame, with_cuts

Image = NDArray[np.uint8]
Where = Callable[[int], float | None]


def looked(count: int, stride: int, where: Where, size: float = 60, cut: int | None = None) -> list[int]:
    """Frames in which the detector looked at a film with one face."""
    grounds = [np.random.default_rng(seed).integers(0, 256, (6, 9, 3), dtype=np.uint8) for seed in (1, 2)]
    images = [np.kron(ground, np.ones((30, 30, 1), np.uint8)) for ground in grounds]
    images[1] = images[1] // 2
    asked: list[int] = []

    def find(frame: Frame) -> Finds:
        asked.append(frame.index)
        x = where(frame.index)
        return {FACES: [] if x is None else [face_at(box_at(x, 100, size))]}

    frames = (Frame(n, n, n / 25, images[cut is not None and n >= cut]) for n in range(count))
    seen = list(look(frames, find, stride))
    assert [frame.index for frame, _, _ in seen] == list(range(count))
    assert sorted(asked) == [frame.index for frame, faces, _ in seen if faces is not None] and len(set(asked)) == len(
        asked
    )
    assert [frame.index for frame, _, new in seen if new] == ([] if cut is None else [cut])
    return sorted(asked)


@pytest.mark.parametrize("where", [lambda n: None, lambda n: 100 + n / 2], ids=["nobody", "calm"])
def test_a_calm_film_costs_one_look_in_n_and_one_at_the_end(where: Where) -> None:
    assert looked(23, 5, where) == [0, 5, 10, 15, 20, 22]
    assert looked(4, 1, where) == [0, 1, 2, 3]
    assert looked(1, 5, where) == [0]
    assert looked(2 * PENDING + 9, 2 * PENDING, where) == [0, 2 * PENDING, 2 * PENDING + 8]


def test_a_dash_is_looked_at_frame_by_frame() -> None:
    def where(n: int) -> float:
        return 100 + 50 * np.clip(n - 10, 0, 8)  # .83 sizes a frame

    asked = looked(31, 5, where)
    assert set(range(10, 19)) <= set(asked)
    assert len(asked) < 31 / 5 + 2 + 10


@pytest.mark.parametrize("first", range(6, 12))
def test_the_first_and_the_last_frame_of_a_face_are_found(first: int) -> None:
    asked = looked(41, 5, lambda n: 100.0 if first <= n < first + 13 else None)
    assert {first - 1, first, first + 12, first + 13} <= set(asked)
    assert len(asked) <= 9 + 6


def painted(count: int, shown: range, pan: int = 0) -> list[int]:
    """Frames looked at of a film in which a bright square shows up for some frames, over a picture that may pan."""
    rng = np.random.default_rng(3)
    ground = np.kron(rng.integers(60, 150, (6, 40, 3), dtype=np.uint8), np.ones((30, 30, 1), np.uint8))
    asked: list[int] = []

    def image(n: int) -> Image:
        picture = ground[:, pan * n : pan * n + 320].copy()
        if n in shown:
            picture[60:110, 100:150] = 240
        return picture

    def find(frame: Frame) -> Finds:
        asked.append(frame.index)
        return {FACES: [face_at(box_at(125, 85, 50))] if frame.index in shown else []}

    list(look((Frame(n, n, n / 25, image(n)) for n in range(count)), find, 5))
    return sorted(asked)


@pytest.mark.parametrize("length", [1, 2, 3, 4])
def test_what_flashes_up_between_two_looks_is_seen_from_its_first_frame_to_its_last(length: int) -> None:
    asked = painted(31, range(11, 11 + length))
    assert {10, 11, 10 + length, 11 + length} <= set(asked)
    assert len(asked) <= 7 + 4


def test_a_pan_costs_no_looks() -> None:
    assert painted(31, range(0), pan=6) == [0, 5, 10, 15, 20, 25, 30]


def test_both_sides_of_a_cut_are_looked_at() -> None:
    assert looked(21, 5, lambda n: 100.0 if n < 8 else 200.0, cut=8) == [0, 5, 7, 8, 13, 18, 20]
    assert looked(16, 5, lambda n: 100.0, cut=6) == [0, 5, 6, 11, 15]


class WholeFaces:
    """Finds a bright square, unless it is torn into rows."""

    name = "whole"

    def __init__(self) -> None:
        self.looks = 0

    def detect(self, image: Image) -> list[Face]:
        self.looks += 1
        rows, columns = np.nonzero(image[:, :, 1] > 200)
        box = (columns.min(), rows.min(), columns.max() + 1, rows.max() + 1)
        inside = image[box[1] : box[3], box[0] : box[2], 1] > 200
        return [face_at(np.array(box, np.float32))] if inside.mean() > 0.95 else []


def moment(x: int) -> Image:
    image = np.full((200, 320, 3), 60, np.uint8)
    image[60:140, x : x + 80] = 250
    return image


@pytest.mark.parametrize("move", [20, 50, 120])
def test_a_face_torn_by_interlacing_is_found_where_it_is_in_both_fields(move: int) -> None:
    """Without the look at the fields made films left such faces uncovered."""
    image, detector = moment(40), WholeFaces()
    image[1::2] = moment(40 + move)[1::2]
    assert not detector.detect(image)
    boxes = [face.box for face in FieldSearch(detector).detect(image)]
    assert detector.looks == 4
    for x in (40, 40 + move):
        assert any(box[0] <= x and x + 80 <= box[2] and box[1] <= 60 and box[3] >= 140 for box in boxes)


def test_a_picture_of_one_moment_is_looked_at_once() -> None:
    detector = WholeFaces()
    noisy = (moment(40).astype(int) + np.random.default_rng(0).integers(-5, 6, (200, 320, 3))).clip(0, 255)
    assert len(FieldSearch(detector).detect(noisy.astype(np.uint8))) == 1
    assert detector.looks == 1


# -- scene cuts --------------------------------------------------------------------------------------------------------


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


def cuts_in(frames: list[Image]) -> list[int]:
    film = [Frame(number, number, number / 25, image) for number, image in enumerate(frames)]
    seen = list(with_cuts(film))
    assert [frame.index for frame, _, _ in seen] == list(range(len(frames)))
    return [frame.index for frame, _, cut in seen if cut]


def noisy(frame: Image, seed: int, deviation: float = 6.0) -> Image:
    noise = np.random.default_rng(seed).normal(size=frame.shape) * deviation
    return np.clip(frame + noise, 0, 255).astype(np.uint8)


def test_cuts_are_found_where_they_are() -> None:
    """Three scenes of three to twelve noisy frames that pan a little."""
    rng = np.random.default_rng(0)
    frames: list[Image] = []
    expected: list[int] = []
    for number in range(3):
        picture = scene(number)
        if number:
            expected.append(len(frames))
        frames += [noisy(picture[:, 4 * i : 4 * i + 640], i) for i in range(int(rng.integers(3, 13)))]
    assert cuts_in(frames) == expected


@pytest.mark.parametrize(
    "kind", ["flash", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("fast pan", "fade"))]
)
def test_what_is_no_cut(kind: str) -> None:

    picture = scene(len(kind))
    frames: list[Image] = []
    for i in range(20):
        view = picture[:, :640].astype(np.float64)
        if kind == "fast pan":  # nine tenths of the picture stay in view from frame to frame, from a standing start
            start = 64 * max(0, min(i - 8, 10))
            view = picture[:, start : start + 640].astype(np.float64)
        elif kind == "flash" and i == 10:
            view = view * 0.5 + 110
        elif kind == "fade":
            view = view * (1 - i / 20)
        frames.append(noisy(np.clip(view, 0, 255).astype(np.uint8), i))
    assert cuts_in(frames) == []
