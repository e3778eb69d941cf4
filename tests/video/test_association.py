"""Detections become tracklets: worlds with known owners, and what a step promises."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from worlds import RATE, Actor, World, box_at, covered, face_at

from ficgan.video.association import CAME, LOST, ONCE, WEAK, Associator, abrupt_ends, chains, with_weak
from ficgan.video.tracks import UNSURE, Sighting, Tracklet, fill_tracks, fill_weak

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


def halting(x: float, y: float, speed: float, size: float = 60.0) -> Path:
    """Half a second of walking, half a second of rest."""
    return lambda t: (x + speed * (math.floor(t) + min(t % 1, 0.5) * 2) / 2, y, size)


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
        Actor(halting(100, 900, 120), hidden=(range(50, 68),)),
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
    assert (ended.id, ended.notes, ended.first, ended.last) == (1, [], 0, 4)
    (rest,) = tracker.finish()
    assert (rest.id, rest.notes) == (2, [ONCE]) and tracker.finish() == []


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
    assert (found.person, found.notes) == (7, [WEAK])
    more = fill_weak([found], tracks, [], CLOCK, 0.4)
    assert [one.id for one in more] == [2, 3][: len(more)] and all(one.first > 9 and one.last < 30 for one in more)
    assert all((one.origin == UNSURE).all() for one in more)  # no new face of what is hardly seen
    assert all(covered(box_at(*way(n / RATE)), [*tracks, *more], n) for n in range(40))


@pytest.mark.parametrize(
    ("way", "frames"),
    [
        (straight(400, 100, 0, 0), [10]),
        (straight(130, 100, 0, 0, 120.0), [10]),
        (straight(100, 100, 0, 0), [59]),
        (straight(130, 100, 0, 0), [4]),
    ],
    ids=["far", "another size", "late", "while the face is seen elsewhere"],
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
        (straight(100, 300, 600, 0), [10, 11, 12], [(10, CAME), (12, LOST)]),
        (straight(100, 300, 60, 0), [10, 11], []),
        (straight(-140, 300, 600, 0), [6, 7, 8], [(8, LOST)]),
        (straight(405, 300, 600, 0), [7, 8, 9], [(7, CAME)]),
        (straight(100, 300, 600, 0), [0, 1, 2], [(2, LOST)]),
        (straight(-900, 300, 600, 0), [57, 58, 59], [(57, CAME)]),
        (straight(100, 300, 600, 0), [10], []),
        (straight(0, 300, 600, 0), [20, 21, 22], [(22, LOST)]),
    ],
    ids=[
        "in mid-picture",
        "slow",
        "came from the left",
        "left to the right",
        "the film begins",
        "the film ends",
        "seen once",
        "a scene begins",
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
