"""What was still recognised is covered, there and around, and only there."""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from ficgan.faces import Alignment
from ficgan.video.media import Frame, VideoInfo
from ficgan.video.plan import Finding, Plan
from ficgan.video.project import Project, Source
from ficgan.video.settings import VideoSettings
from ficgan.video.tracks import SEEN, Track

FRAMES = 60


def track(id: int, x: float) -> Track:
    boxes = np.tile(np.array([x, 40, x + 60, 100], np.float32), (FRAMES, 1))
    landmarks = np.tile((Alignment().points(60) + np.array([x, 40])).astype(np.float32), (FRAMES, 1, 1))
    ones = np.ones(FRAMES, np.float32)
    return Track(id, 0, boxes, landmarks, ones, np.full(FRAMES, SEEN, np.uint8), person=id)


def plan() -> Plan:
    info = VideoInfo(320, 160, Fraction(1, 25), Fraction(25), FRAMES, FRAMES / 25)
    film = Project(Source.of("film.mp4", info), np.arange(FRAMES), [track(1, 20), track(2, 200)])
    return Plan(film, VideoSettings(hold=0.08))


def modes(plan: Plan, number: int) -> list[str]:
    image = np.zeros((160, 320, 3), np.uint8)
    found = []
    for index in range(FRAMES):
        (one,) = [a for a in plan.job(Frame(index, index, index / 25, image)).appearances if a.track == number]
        found.append(one.mode)
    return found


def finding(frame: int, x: float) -> Finding:
    return Finding(frame, frame / 25, (x, 45, x + 50, 95), 0.5)


def test_a_finding_on_a_generated_face_covers_it_and_a_moment_around() -> None:
    made = plan()
    assert made.cover([finding(30, 25), finding(32, 25)]) == 7  # 0.08 s are 2 frames
    assert [n for n, mode in enumerate(modes(made, 1)) if mode == "plain"] == list(range(28, 35))
    assert set(modes(made, 2)) == {"ficgan"}
    assert made.fallbacks["still recognised"] == 7


def test_between_two_findings_less_than_a_second_apart_nothing_is_shown() -> None:
    made = plan()
    assert made.cover([finding(10, 25), finding(30, 25), finding(59, 25)]) == 25 + 3  # 29 frames are more than a second
    assert [n for n, mode in enumerate(modes(made, 1)) if mode == "plain"] == [*range(8, 33), *range(57, 60)]


def test_a_person_is_lost_where_half_of_the_faces_or_more_would_be_covered() -> None:
    made = plan()
    assert made.lost([finding(30, 25)]) == set() == made.lost([])
    seen = [finding(n, 25) for n in range(12, 38)]  # 26 frames and 2 on either side, of 60
    assert made.lost(seen) == {made.person[1]}
    assert made.lost(seen[:25]) == set() and set(modes(made, 1)) == {"ficgan"}, "nothing is covered yet"


def test_a_cover_ends_at_the_track() -> None:
    made = plan()
    assert made.cover([finding(0, 205), finding(59, 205)]) == 3 + 3
    assert modes(made, 2)[3:57] == ["ficgan"] * 54


def test_a_finding_beside_all_faces_changes_nothing() -> None:
    made = plan()
    assert made.cover([finding(30, 120)]) == 0
    assert "still recognised" not in made.fallbacks
