"""Streams: every face is covered in time, whatever the detector's pace; few frames are held; recordings are whole."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from clips import frames_of, make_clip, number_of
from numpy.typing import ArrayLike, NDArray
from stand_ins import Fixed, Reader
from worlds import RATE, Actor, World, covered, face_at

from ficgan import video as module
from ficgan.errors import InputError, UsageError
from ficgan.faces import Face
from ficgan.video import Rules, VideoSettings, VideoTools
from ficgan.video.film import process_film
from ficgan.video.live import Stream, StreamResult, stream
from ficgan.video.rendered import VideoResult
from ficgan.video.tracks import Track

Image = NDArray[np.uint8]
HEIGHT, WIDTH = 96, 192


class Eyes:
    """A detector that reads the number of a frame out of its first pixels and knows the world; it takes its time."""

    name = "eyes"

    def __init__(self, world: World, pause: Callable[[int], float] = lambda frame: 0.0) -> None:
        self.world, self.pause, self.looks = world, pause, []  # type: World, Callable[[int], float], list[int]

    def detect(self, image: Image) -> list[Face]:
        frame = int(image[0, 0, 0]) + 256 * int(image[0, 0, 1])
        self.looks.append(frame)
        CLOCK.now += self.pause(frame)
        return self.world.detect(frame)


class Faces(Reader):
    """A recogniser that tells people by where they stand: the left and the right half of the picture."""

    def __init__(self, who: Callable[[NDArray[np.float32]], int]) -> None:
        super().__init__()
        self.who = who

    def embed(self, image: Image, landmarks: ArrayLike) -> NDArray[np.float32]:
        return np.stack([np.eye(8, dtype=np.float32)[self.who(one)] for one in np.asarray(landmarks)])


def picture(frame: int, scene: int = 0) -> Image:
    """Noise that is the same throughout a scene, with the frame's number in its first pixel."""
    rng = np.random.default_rng(scene)
    blocks = rng.integers(0, 256, (6, 8, 3), dtype=np.uint8) // (1 + 2 * (scene % 2))
    image = np.kron(blocks, np.ones((HEIGHT // 6, WIDTH // 8, 1), np.uint8))
    image[0, 0, :2] = frame % 256, frame // 256
    return image


def pictures(world: World) -> Iterator[Image]:
    for frame in range(world.length):
        yield picture(frame, sum(frame >= cut for cut in world.cuts))


class Clock:
    """Time that passes only where a test says so, and a little at each look at the clock."""

    now = 0.0

    def perf_counter(self) -> float:
        self.now += 1e-5
        return self.now


CLOCK = Clock()


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    clocks = SimpleNamespace(perf_counter=CLOCK.perf_counter, monotonic=time.monotonic)
    monkeypatch.setattr("ficgan.video.live.time", clocks)


def run(
    world: World,
    *,
    pause: Callable[[int], float] = lambda frame: 0.0,
    look_ahead: int | None = None,
    budget: float | None = None,
    recognizer: Any = None,
    **changes: Any,
) -> tuple[list[StreamResult], Stream, Eyes]:
    eyes = Eyes(world, pause)
    settings = VideoSettings(**{"mode": "solid", **changes})
    flow = stream(
        VideoTools(eyes, recognizer), pictures(world), RATE, settings=settings, look_ahead=look_ahead, budget=budget
    )
    return list(flow), flow, eyes


def uncovered(world: World, results: list[StreamResult], frames: range | None = None) -> list[tuple[int, int]]:
    """Frames and actors of whom something can be seen."""
    bare = []
    for result in results:
        frame = result.frame.index
        ones, seen = np.ones(1, np.float32), np.zeros(1, np.uint8)
        faces = [(one.track, one.face.box[None], one.face.landmarks[None]) for one in result.faces]
        tracks = [Track(number, frame, box, marks, ones, seen) for number, box, marks in faces]
        for number, actor in enumerate(world.actors):
            box = actor.box(frame)
            if box is not None and (frames is None or frame in frames) and not covered(box, tracks, frame):
                bare.append((frame, number))
    return bare


def walking(frames: tuple[int, int] = (0, 10_000), **more: object) -> Actor:
    return Actor(lambda t: (50 + 12 * t, 48 + 3 * np.sin(3 * t), 36), frames, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("stride", [5, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 3, 10))])
def test_a_face_is_covered_from_its_first_frame_to_its_last_at_any_stride(stride: int) -> None:
    """It comes at the worst moment, right after a look, and is away right after another."""
    world = World([walking((stride + 1, 6 * stride + 40))], 7 * stride + 90, noise=0.01)
    results, flow, eyes = run(world, stride=stride, pad=0.0)
    assert [result.frame.index for result in results] == list(range(world.length))
    assert uncovered(world, results) == []
    assert flow.look_ahead == stride - 1 and eyes.looks == list(range(0, world.length, stride))


@pytest.mark.parametrize("look_ahead", [4, *(pytest.param(n, marks=pytest.mark.slow) for n in (0, 9))])
def test_before_the_first_sighting_it_is_covered_as_far_as_the_look_ahead_reaches(look_ahead: int) -> None:
    world = World([walking((0, 99), hidden=(range(20),))], 60, noise=0.01)
    results, _, _ = run(world, stride=1, look_ahead=look_ahead)
    shown = [result.frame.index for result in results if result.faces]
    assert shown == list(range(20 - look_ahead, 60))


def test_after_the_last_sighting_it_is_covered_for_the_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PATIENCE", 1.2)
    world = World([walking((0, 200), hidden=(range(30, 200),))], 120, noise=0.01)
    results, _, _ = run(world, stride=1)
    assert [result.frame.index for result in results if result.faces] == list(range(30 + 30))
    # The detector was blind for 18 frames only: covered in all of them, on the way it really went.
    world = World([walking(hidden=(range(30, 48),))], 80, noise=0.01)
    assert uncovered(world, run(world, stride=3)[0]) == []


@pytest.mark.parametrize("look_ahead", [pytest.param(0, marks=pytest.mark.slow), 10])
def test_at_a_cut_nobody_shows_and_nobody_stays(look_ahead: int) -> None:
    lost, second = Actor(lambda t: (24, 20, 24), (0, 20)), Actor(lambda t: (140, 50, 34), (43, 99))
    world = World([walking((0, 42)), lost, second], 90, cuts=(43,), noise=0.01)
    results, _, eyes = run(world, stride=7, look_ahead=look_ahead)
    assert 43 in eyes.looks and uncovered(world, results) == []
    for result in results:
        for one in result.faces:
            assert (one.face.box[0] > 100) == (result.frame.index >= 43)


@pytest.mark.slow
def test_a_slow_detector_looks_less_often_and_nobody_shows() -> None:
    """Slow for a while: the stride grows at once, up to the look-ahead, and falls again."""
    budget = 0.04
    actors = [walking(), Actor(lambda t: (150, 40 + 4 * t, 30), (57, 131))]
    world = World(actors, 220, noise=0.01)
    results, flow, eyes = run(world, pause=lambda n: 0.12 if n < 120 else 0.0, stride=1, budget=budget)
    assert uncovered(world, results) == []
    steps = np.diff(eyes.looks)
    assert steps.max() >= 3 and steps.max() <= flow.look_ahead + 1 and steps[-1] == 1
    summary = flow.summary()
    assert summary["largest_stride"] == steps.max() and summary["late"] >= 10 and summary["frames"] == 220
    assert summary["stride"] == 1


@pytest.mark.parametrize("look_ahead", [3, *(pytest.param(n, marks=pytest.mark.slow) for n in (0, 12))])
def test_frames_are_taken_one_at_a_time_and_let_go(look_ahead: int) -> None:
    world, held, taken = World([walking()], 80), [], 0

    class Shown(np.ndarray):  # an array that can be referred to weakly
        pass

    def frames() -> Iterator[Image]:
        nonlocal taken
        for n in range(80):
            taken += 1
            image = picture(n).view(Shown)
            held.append(weakref.ref(image))
            yield image
            del image

    flow = stream(VideoTools(Eyes(world)), frames(), RATE, settings=VideoSettings(mode="solid"), look_ahead=look_ahead)
    most = 0
    for count, result in enumerate(flow, start=1):
        assert result.frame.index == count - 1 and taken <= count + look_ahead + 2
        most = max(most, sum(one() is not None for one in held))
    assert count == 80 and most <= look_ahead + 5


def test_no_frames_and_no_picture() -> None:
    settings, tools = VideoSettings(mode="solid"), VideoTools(Eyes(World([], 1)))
    assert list(stream(tools, [], settings=settings)) == []
    with pytest.raises(InputError, match="uint8"):
        list(stream(tools, [np.zeros((4, 4, 3))], settings=settings))  # type: ignore[list-item]
    for bad in ({"fps": 0.0}, {"budget": 0.0}, {"look_ahead": -1}):
        with pytest.raises(UsageError):
            stream(tools, [], settings=settings, **bad)


def coming_and_going() -> World:
    """One on the left who goes and comes back, one on the right who stays."""
    left = [Actor(lambda t: (50, 48, 36), (0, 30)), Actor(lambda t: (60, 48, 36), (110, 200))]
    return World([*left, Actor(lambda t: (140, 48, 36))], 160, noise=0.0)


@pytest.mark.slow
@pytest.mark.parametrize("link", ["file", "none"])
def test_who_comes_back_has_the_same_identity_where_linked(link: str) -> None:
    results, flow, _ = run(coming_and_going(), recognizer=Faces(lambda marks: int(marks[:, 0].mean() > 96)), link=link)
    people = {one.track: one.person for result in results for one in result.faces}
    assert flow.summary()["tracks"] == 3 and len(set(people.values())) == len(flow.people) == (
        2 if link == "file" else 3
    )
    at = {result.frame.index: {one.face.box[0] > 96: one.person for one in result.faces} for result in results}
    assert (at[0][False] == at[150][False]) == (link == "file")
    assert at[0][True] == at[150][True] != at[150][False]


# A face at the top left of every picture, wherever one looks.
STEADY = VideoTools(Fixed([face_at(np.array([4.0, 2, 24, 26]))]))


def record(tmp_path: Path, **more: Any) -> VideoResult:
    make_clip(tmp_path / "in.mkv", 50, size=(192, 128), codec="ffv1")
    return process_film(
        STEADY, f"file://{tmp_path / 'in.mkv'}", tmp_path / "out.mkv", settings=VideoSettings(mode="solid"), **more
    )


def numbers(path: Path) -> list[int]:
    return [number_of(image) for image in frames_of(path)]


def test_a_recording_is_the_whole_stream_redacted(tmp_path: Path) -> None:
    told = []
    result = record(tmp_path, progress=lambda done, total, stage: told.append((done, total, stage)))
    assert numbers(tmp_path / "out.mkv") == list(range(50))
    assert all(image[8:20, 8:20].max() < 30 for image in frames_of(tmp_path / "out.mkv"))
    assert result.frames == 50 and result.tracks == 1 and result.people == 1 and result.faces == {"solid": 50}
    assert told == [(n, None, "recording") for n in range(1, 51)]
    assert result.account["live"]["frames"] == 50


def test_a_recording_is_whole_when_it_is_interrupted(tmp_path: Path) -> None:
    def interrupt(done: int, total: int | None, stage: str) -> None:
        if done == 20:
            raise KeyboardInterrupt

    result = record(tmp_path, progress=interrupt)
    assert numbers(tmp_path / "out.mkv") == list(range(20)) and result.frames == 20
    assert any("interrupt" in note for note in result.notes)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.mkv", "out.mkv"]


@pytest.mark.slow
def test_a_recording_that_fails_has_no_result(tmp_path: Path) -> None:
    def fail(done: int, total: int | None, stage: str) -> None:
        raise RuntimeError("no")

    with pytest.raises(RuntimeError):
        record(tmp_path, progress=fail)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".out.mkv.ficgan-work", "in.mkv"]
    record(tmp_path)
    assert numbers(tmp_path / "out.mkv") == list(range(50)), "nothing of the recording that failed"


def test_what_needs_two_passes_is_refused_and_a_missing_camera_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="record it first"):
        record(tmp_path, rules=Rules(spans=[(0, 1)]))
    with pytest.raises(InputError, match="camera:73"):
        process_film(STEADY, "camera:73", tmp_path / "x.mkv", settings=VideoSettings(mode="solid"))
    assert not (tmp_path / "x.mkv").exists()
