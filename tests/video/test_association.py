"""Detections become tracklets, gaps are filled, landmarks smoothed: worlds with known owners, dense linear algebra."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.signal import savgol_filter
from worlds import MARKS, RATE, Actor, World, box_at, covered, face_at

from ficgan.faces.mesh import SmoothConfig, smooth_landmarks, smooth_middle
from ficgan.video.association import CAME, LOST, Associator, abrupt_ends, chains, with_weak
from ficgan.video.tracks import (
    FILLED,
    PADDED,
    SEEN,
    UNSURE,
    WEAK,
    Motion,
    Sighting,
    Track,
    Tracklet,
    fill_tracks,
    fill_weak,
    smooth,
    without_double_pads,
)

Path = Callable[[float], tuple[float, float, float]]


def straight(x: float, y: float, vx: float, vy: float, size: float = 60.0) -> Path:
    return lambda t: (x + vx * t, y + vy * t, size)


def swaying(x: float, y: float, far: float, often: float, size: float = 60.0, phase: float = 0.0) -> Path:
    """To and fro, a little up and down, nearer and farther."""
    turn = 2 * math.pi * often
    return lambda t: (
        x + far * math.sin(turn * t + phase),
        y + 0.3 * far * math.sin(1.3 * turn * t),
        size * math.exp(0.2 * math.sin(t)),
    )


def uncovered(world: World, stride: int) -> tuple[int, int, int]:
    """Frames of a true face between its first and last sighting that no track covers; switches; extra tracklets."""
    tracklets = world.follow(stride)
    tracks = fill_tracks(tracklets, world.cuts, np.arange(world.length) / RATE, 0.4)
    bare = extra = 0
    for number, actor in enumerate(world.actors):
        mine = [one for one in tracklets if number in world.owners(one)]
        seen = [s.frame for one in mine for s in one.sightings if world.owner[id(s.face)] == number]
        assert seen, "the world must show every face"
        extra += len(mine) - 1
        for frame in range(min(seen), max(seen) + 1):
            box = actor.box(frame)
            bare += box is not None and not covered(box, tracks, frame)
    return bare, world.switches(tracklets), extra


WORLDS = {
    "walking": lambda: [
        Actor(straight(100, 300, 120, 0)),
        Actor(straight(900, 500, -60, 20)),
        Actor(straight(400, 600, 0, 40)),
    ],
    "crossing": lambda: [Actor(straight(100, 300, 150, 0)), Actor(straight(600, 360, -150, 0))],
    "swaying": lambda: [
        Actor(swaying(300, 300, 60, 0.7)),
        Actor(swaying(600, 300, 50, 1.0, 50, 1)),
        Actor(swaying(450, 600, 90, 0.5, 80, 2)),
    ],
    "occluded for 18 frames": lambda: [
        Actor(straight(100, 300, 60, 0), hidden=(range(40, 58),)),
        Actor(swaying(500, 300, 50, 0.5), hidden=(range(60, 78),)),
        Actor(straight(100, 600, 150, 0), hidden=(range(30, 48),)),
        # Half a second of walking, half a second of rest.
        Actor(lambda t: (100 + 120 * (math.floor(t) / 2 + min(t % 1, 0.5)), 900, 60), hidden=(range(50, 68),)),
    ],
    "coming and going": lambda: [
        Actor(straight(-20, 300, 100, 0), frames=(5, 70)),
        Actor(straight(800, 500, 90, 0), frames=(31, 80)),
        Actor(straight(300, 700, 0, 60), frames=(0, 41)),
    ],
}


@pytest.mark.parametrize("stride", [5, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 2, 3, 4, 6, 7, 8))])
@pytest.mark.parametrize("name", WORLDS)
def test_no_face_is_uncovered_between_its_first_and_last_sighting(name: str, stride: int) -> None:
    assert uncovered(World(WORLDS[name](), 110, seed=stride % 2), stride) == (0, 0, 0)


@pytest.mark.parametrize("stride", [1, 3, 7])
def test_no_tracklet_crosses_a_cut(stride: int) -> None:
    """The face of the new scene stands where that of the old one stood."""
    world = World([Actor(straight(300, 300, 0, 0), (0, 49)), Actor(straight(310, 300, 0, 0), (50, 99))], 100, (50,))
    tracklets = world.follow(stride)
    assert [(one.scene, set(world.owners(one))) for one in tracklets] == [(0, {0}), (1, {1})]
    assert tracklets[1].first == 50
    tracks = fill_tracks(tracklets, world.cuts, np.arange(100) / RATE, 0.4)
    assert [(one.first, one.last) for one in tracks] == [(0, 49), (50, 99)]


def test_a_tracklet_ends_after_patience_and_frames_without_a_look_lose_nothing() -> None:
    tracker, face = Associator(patience=0.5), face_at(box_at(100, 100, 40))
    assert tracker.step(0, 0.0, [face])[0] == [1]
    assert all(tracker.step(frame, frame / 10, None)[1] == [] for frame in range(1, 4))
    assert tracker.step(4, 0.4, [face])[0] == [1]
    assert all(tracker.step(frame, frame / 10, [])[1] == [] for frame in range(5, 10))
    (ended,) = tracker.step(10, 1.0, [face])[1]
    assert (ended.id, ended.first, ended.last) == (1, 0, 4)
    (rest,) = tracker.finish()
    assert (rest.id, len(rest.sightings)) == (2, 1) and tracker.finish() == []


# -- weaker finds ----------------------------------------------------------------------------------------------------

CLOCK = np.arange(60) / RATE


def tracklet(way: Path, frames: list[int], *, number: int = 1, scene: int = 0, person: int = 0) -> Tracklet:
    return Tracklet(number, [Sighting(n, face_at(box_at(*way(n / RATE)))) for n in frames], scene, person=person)


def likely(faint: list[Tracklet], sure: list[Tracklet], cuts: list[int], patience: float = 1.5) -> list[Tracklet]:
    """What half-seen faces there are, the detector having looked at every frame."""
    found = chains(sure, faint, range(60), CLOCK, patience)
    return [chain.tracklet() for chain in with_weak(found, sure, cuts, CLOCK)]


def frames_of(found: Tracklet) -> list[int]:
    return [sighting.frame for sighting in found.sightings]


def test_weaker_finds_cover_a_face_between_two_sightings() -> None:
    """A face that turned back while the detector did not see it was left uncovered."""
    way = swaying(400, 300, 300, 0.7, phase=0.5)
    seen = tracklet(way, [*range(10), *range(30, 40)], person=7)
    faint = tracklet(way, list(range(10, 30)))
    tracks = fill_tracks([seen], [], CLOCK, 0.4)
    bare = [n for n in range(40) if not covered(box_at(*way(n / RATE)), tracks, n)]
    assert bare, "the world must show what was missed"
    (found,) = likely([faint], [seen], [])
    assert frames_of(found) == list(range(40))
    assert (found.person, found.weak) == (7, True)
    more = fill_weak([found], tracks, [], CLOCK, 0.4)
    assert {(one.person, *one.notes) for one in more} == {(7, WEAK)}
    assert [one.id for one in more] == [2, 3][: len(more)] and all(one.first > 9 and one.last < 30 for one in more)
    assert all((one.origin == UNSURE).all() for one in more)  # no new face of what is hardly seen
    assert all(covered(box_at(*way(n / RATE)), [*tracks, *more], n) for n in range(40))


@pytest.mark.parametrize(
    ("way", "frames"),
    [
        (straight(400, 100, 0, 0), [10]),  # far
        (straight(130, 100, 0, 0, 120.0), [10]),  # of another size
        (straight(100, 100, 0, 0), [59]),  # late
        (straight(130, 100, 0, 0), [4]),  # while the face is seen elsewhere
    ],
)
def test_weaker_finds_that_no_face_explains_are_none(way: Path, frames: list[int]) -> None:
    seen = tracklet(straight(100, 100, 0, 0), list(range(10)))
    assert likely([tracklet(way, frames)], [seen], []) == []
    assert likely([tracklet(straight(130, 100, 0, 0), [12], scene=1)], [seen], [11]) == []


def test_a_weaker_find_counts_where_a_scene_begins_with_fewer_faces() -> None:
    """In the only frame before a head went behind another one the detector was just below its threshold."""
    first = [tracklet(straight(x, 100, 0, 0), list(range(10)), number=x) for x in (100, 300)]
    second = [tracklet(straight(500, 100, 0, 0), list(range(10, 20)), number=3, scene=1)]
    faint = Tracklet(4, [Sighting(10, face_at(box_at(90, 300, 60), 0.3))], scene=1)
    assert [found.person for found in likely([faint], [*first, *second], [10])] == [0]
    both = [*second, tracklet(straight(700, 100, 0, 0), [10], number=5, scene=1)]
    assert likely([faint], [*first, *both], [10]) == []  # as many as before
    weaker = Tracklet(4, [Sighting(10, face_at(box_at(90, 300, 60), 0.12))], scene=1)
    assert likely([weaker], [*first, *second], [10]) == []


def test_a_weaker_find_counts_in_a_flash_that_looks_like_a_cut() -> None:
    way = straight(100, 100, 60, 0)
    before, after = tracklet(way, list(range(10)), person=3), tracklet(way, list(range(11, 20)), number=2, scene=2)
    flash = tracklet(way, [10], scene=1)
    for sure in ([before, after], [before], [after]):
        (found,) = likely([flash], sure, [10, 11])
        assert found.person == 0  # whoever it is, no rule for person 3 keeps it
    assert likely([tracklet(way, [12], scene=1)], [before], [10]) == []


# -- ways that nobody saw --------------------------------------------------------------------------------------------


def dash(t: float) -> tuple[float, float, float]:
    """To the right, 20 sizes a second."""
    return 60 + 1200 * t, 300, 60


def blind(way: Path, first: list[int], second: list[int], faint: list[list[int]]) -> tuple[list[Tracklet], list[int]]:
    """What joins two tracklets of a face, and the frames from the first to the last one that stay uncovered."""
    sure = [tracklet(way, first, number=1, person=1), tracklet(way, second, number=2, person=1)]
    sure = [one for one in sure if one.sightings]
    tracks = fill_tracks(sure, [], CLOCK, 0.4)
    found = likely([tracklet(way, frames, number=n) for n, frames in enumerate(faint)], sure, [])
    tracks += fill_weak(found, tracks, [], CLOCK, 0.4)
    seen = sorted({*first, *second, *(n for frames in faint for n in frames)})
    return found, [n for n in range(seen[0], seen[-1] + 1) if not covered(box_at(*way(n / RATE)), tracks, n)]


@pytest.mark.parametrize("faint", [[], [[9], [13]], [[9], [12], [17]], [[17]]], ids=str)
def test_the_way_of_a_face_that_dashes_is_covered(faint: list[list[int]]) -> None:
    """Over 10 frames and 8 sizes: no look saw it, or some weaker finds, which no tracklet joins."""
    first, second = list(range(8)), list(range(18, 26))
    (found,), bare = blind(dash, first, second, faint)
    assert found.person == 1 and set(frames_of(found)) == {*first, *second, *(n for one in faint for n in one)}
    assert bare == []


def test_of_two_ways_the_likelier_one_is_taken() -> None:
    """Two faces pass each other unseen: each goes on as it went."""
    ways = straight(100, 300, 600, 0), straight(600, 320, -600, 0)
    sure = [
        tracklet(way, list(frames), number=2 * n + late)
        for n, way in enumerate(ways)
        for late, frames in enumerate((range(6), range(14, 20)))
    ]
    found = likely([], sure, [])
    assert len(found) == 2
    for one, way in zip(sorted(found, key=lambda one: float(one.sightings[0].face.box[0])), ways, strict=True):
        assert frames_of(one) == [*range(6), *range(14, 20)]
        assert all(np.allclose(seen.face.box, box_at(*way(seen.frame / RATE))) for seen in one.sightings)


@pytest.mark.parametrize(
    ("way", "frames", "expected"),
    [
        (straight(100, 300, 600, 0), [10, 11, 12], [(10, CAME), (12, LOST)]),  # in mid-picture
        (straight(100, 300, 60, 0), [10, 11], []),  # slow
        (straight(-140, 300, 600, 0), [6, 7, 8], [(8, LOST)]),  # came from the left
        (straight(405, 300, 600, 0), [7, 8, 9], [(7, CAME)]),  # left to the right
        (straight(100, 300, 600, 0), [0, 1, 2], [(2, LOST)]),  # the film begins
        (straight(-900, 300, 600, 0), [57, 58, 59], [(57, CAME)]),  # the film ends
        (straight(100, 300, 600, 0), [10], []),  # seen once
        (straight(0, 300, 600, 0), [20, 21, 22], [(22, LOST)]),  # a scene begins
    ],
)
def test_a_fast_face_without_a_beginning_or_an_end_is_named(
    way: Path, frames: list[int], expected: list[tuple[int, str]]
) -> None:
    seen = tracklet(way, frames)
    found = chains([seen], [], range(60), CLOCK, 1.5)
    doubts = abrupt_ends(found, [20], range(60), CLOCK, 0.4, (640, 480))
    assert [(sighting.frame, reason) for sighting, reason in doubts] == expected
    faint = chains([], [seen], range(60), CLOCK, 1.5)
    assert abrupt_ends(faint, [20], range(60), CLOCK, 0.4, (640, 480)) == []


# -- gaps and smoothing ------------------------------------------------------------------------------------------------


def sighting(frame: int, x: float, y: float = 200.0, size: float = 60.0) -> Sighting:
    return Sighting(frame, face_at(box_at(x, y, size)))


def dense(motion: Motion, times: NDArray, seen: NDArray, wanted: NDArray, scale: float) -> tuple[NDArray, NDArray]:
    """The same by Gaussian process regression: half the variogram of the integrated process, place unknown before."""

    def covariance(a: NDArray, b: NDArray) -> NDArray:
        lag, tau = np.abs(a[:, None] - b), motion.memory
        return -((motion.speed * scale) ** 2) * (tau * lag - tau**2 * -np.expm1(-lag / tau))

    m, n = len(times), len(wanted)
    # Kriging with an unknown mean: the weights sum to 1.
    system = np.ones((m + 1, m + 1))
    system[:m, :m] = covariance(times, times) + np.eye(m) * (motion.noise * scale) ** 2
    system[m, m] = 0.0
    right = np.ones((m + 1, n))
    right[:m] = covariance(times, wanted)
    weights = np.linalg.solve(system, right)
    return weights[:m].T @ seen, np.sqrt(np.maximum(-(weights * right).sum(0), 0.0))


@given(st.integers(0, 10**6), st.integers(1, 15), st.floats(0.1, 5.0), st.floats(0.1, 2.0), st.floats(0.5, 100.0))
def test_the_smoother_is_the_dense_least_squares_solution(
    seed: int, count: int, speed: float, memory: float, scale: float
) -> None:
    rng = np.random.default_rng(seed)
    motion = Motion(0.05, speed, memory)
    times = np.cumsum(rng.uniform(0.04, 0.5, count))
    seen = rng.normal(size=(count, 2)) * scale
    wanted = np.sort(np.concatenate([times, rng.uniform(times[0] - 1, times[-1] + 1, 40)]))
    mean, deviation = smooth(motion, times, seen, wanted, scale)
    expected, spread = dense(motion, times, seen, wanted, scale)
    np.testing.assert_allclose(mean, expected, atol=1e-6 * scale)
    np.testing.assert_allclose(deviation, spread, atol=1e-5 * scale)


def filled(sightings: list[Sighting], times: NDArray[np.float64], pad: float) -> Track:
    return fill_tracks([Tracklet(1, sightings)], (), times, pad)[0]


@pytest.mark.parametrize("stride", [1, 4, 10])
def test_every_frame_has_a_row_and_says_how_it_is_known(stride: int) -> None:
    frames = list(range(20, 61, stride))
    track = filled([sighting(f, 100 + 2 * f) for f in frames], np.arange(100) / RATE, 0.4)
    assert (track.first, track.last, len(track)) == (10, frames[-1] + 10, frames[-1] + 1)
    expected = np.full(len(track), FILLED)
    expected[:10], expected[-10:] = PADDED, PADDED
    expected[[f - 10 for f in frames]] = SEEN
    assert track.origin.tolist() == expected.tolist()
    assert (track.scores > 0).tolist() == (expected == SEEN).tolist()
    assert (track.boxes[:, 2:] > track.boxes[:, :2]).all() and np.isfinite(track.landmarks).all()


def test_pads_and_gaps_follow_the_clock_of_a_film_with_variable_rate() -> None:
    """Two frames of the gap are shown late: the face is farther on there, and the pads have fewer frames."""
    times = np.cumsum([0.04] * 10 + [0.04, 0.04, 0.2, 0.04] + [0.1] * 20)
    x = 100 + 100 * times
    seen = [sighting(f, x[f]) for f in (4, 6, 8, 10, 14, 16, 18)]
    track = filled(seen, times, 0.25)
    assert (track.first, track.last) == (0, 20)
    centre = (track.boxes[:, 0] + track.boxes[:, 2]) / 2
    np.testing.assert_allclose(centre[4:19], x[4:19], atol=1.5)


@given(st.integers(0, 10**6), st.floats(10, 200))
def test_a_seen_box_lies_inside_and_a_gap_is_never_narrower_than_its_ends(seed: int, size: float) -> None:
    rng = np.random.default_rng(seed)
    frames = np.cumsum(rng.integers(1, 20, 8))
    seen = [
        sighting(int(f), 300 + rng.normal() * size, 300 + rng.normal() * size, size * math.exp(rng.normal() * 0.1))
        for f in frames
    ]
    track = filled(seen, np.arange(1000) / RATE, 0.4)
    for one in seen:
        box = track.boxes[one.frame - track.first]
        assert (box[:2] <= one.face.box[:2] + 1e-2).all() and (box[2:] >= one.face.box[2:] - 1e-2).all()
    sides = track.boxes[:, 2:] - track.boxes[:, :2]
    for a, b in itertools.pairwise(seen):
        least = np.minimum(*(one.face.box[2:] - one.face.box[:2] for one in (a, b)))
        assert (sides[a.frame - track.first : b.frame - track.first + 1] >= least - 1e-2).all()


def test_landmarks_move_with_the_box() -> None:
    """A face that comes nearer: in the gap the landmarks keep their places inside the true box."""
    size = {f: 60 * math.exp(0.02 * f) for f in range(41)}
    seen = [sighting(f, 100 + 3 * f, size=size[f]) for f in range(0, 41, 4)]
    track = filled(seen, np.arange(41) / RATE, 0.0)
    for f in range(41):
        truth = box_at(100 + 3 * f, 200, size[f])
        marks = truth[:2] + MARKS * (truth[2:] - truth[:2])
        assert np.abs(track.landmarks[f] - marks).max() < 0.03 * size[f]


def walk(n: int = 80, speed: float = 2.0, noise: float = 0.0, seed: int = 0) -> NDArray[np.float64]:
    """Landmarks [n,5,2] of a face of 100 px (eyes 40 px apart) that goes to the right."""
    marks = MARKS * 100 + 50 + np.arange(n)[:, None, None] * np.array([speed, 0.3 * speed])
    return marks + np.random.default_rng(seed).normal(size=marks.shape) * noise


def test_inside_it_is_savitzky_golay() -> None:
    marks = walk(noise=1.0)
    config = SmoothConfig(bound=1e9)
    reach = config.frames(RATE)
    expected = savgol_filter(marks, 2 * reach + 1, 2, axis=0)
    np.testing.assert_allclose(smooth_landmarks(marks, RATE, config)[reach:-reach], expected[reach:-reach], atol=1e-9)


@given(
    st.integers(0, 10**6),
    st.integers(1, 60),
    st.floats(0.2, 2.5),
    st.floats(-8, 8),
    st.sampled_from([10.0, 25.0, 60.0]),
)
def test_less_jitter_and_never_far_from_what_was_seen(
    seed: int, n: int, noise: float, speed: float, rate: float
) -> None:
    marks = walk(n, speed, noise, seed)
    smoothed = smooth_landmarks(marks, rate)
    assert smoothed.shape == marks.shape
    eyes = np.linalg.norm(marks[:, 1] - marks[:, 0], axis=-1)
    if n > 2:
        # second differences, in eye distances
        before, after = (
            np.square(np.diff(one, 2, axis=0) / eyes[1:-1, None, None]).mean() for one in (marks, smoothed)
        )
        assert np.sqrt(after) <= np.sqrt(before) * (1 + 1e-3) + 1e-9
    away = np.linalg.norm(smoothed - marks, axis=-1).max(1)
    assert (away <= SmoothConfig().bound * np.maximum(eyes, 30) + 1e-6).all()


@given(st.integers(1, 12), st.integers(0, 11), st.integers(0, 99))
def test_one_row_of_a_window_is_smoothed_as_in_the_whole(n: int, at: int, seed: int) -> None:
    """A window that reaches as far as the smoother looks says all about its middle; no row moves beyond the limit."""
    marks, reach = walk(n + 8, noise=1.0, seed=seed), SmoothConfig().frames(RATE)
    row = min(at, n + 7)
    first = max(0, row - reach)
    alone = smooth_middle(marks[first : row + reach + 1], row - first, np.inf)
    eyes = np.linalg.norm(marks[row, 1] - marks[row, 0])
    if np.linalg.norm(alone - marks[row], axis=-1).max() <= SmoothConfig().bound * eyes:
        np.testing.assert_allclose(alone, smooth_landmarks(marks, RATE)[row], atol=1e-9)
    near = smooth_middle(marks[first : row + reach + 1], row - first, 0.5)
    assert np.linalg.norm(near - marks[row], axis=-1).max() <= 0.5 + 1e-9


def test_a_pad_in_the_box_of_another_track_is_left_out() -> None:
    """One head whose track ended and began again has one cover; a pad elsewhere stays."""

    def line(number: int, first: int, last: int, x: float) -> Track:
        sightings = [Sighting(frame, face_at(box_at(x, 100, 60))) for frame in range(first, last + 1)]
        return replace(filled(sightings, np.arange(100) / RATE, 0.4), id=number)

    early, late, beside = line(1, 20, 40, 100), line(2, 43, 60, 102), line(3, 43, 60, 300)
    made = {track.id: track for track in without_double_pads([early, late, beside])}
    assert (made[1].first, made[1].last) == (10, 42) and (made[2].first, made[2].last) == (41, 70)
    assert (made[3].first, made[3].last) == (33, 70)
    assert all(len(track.boxes) == len(track.origin) == len(track.landmarks) for track in made.values())
