"""One treatment a head: what a survey reads decides on whole tracks, and short gaps are bridged."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from stand_ins import face
from worlds import crop_model

from ficgan.faces.mesh import Mesh
from ficgan.frame_model import FrameModel
from ficgan.video import treatment as module
from ficgan.video.decided import FilmPlan, decide
from ficgan.video.project import Project, Source
from ficgan.video.settings import VideoSettings
from ficgan.video.source import VideoInfo
from ficgan.video.tracks import FILLED, PADDED, SEEN, UNSURE, Track
from ficgan.video.treatment import TrackSurvey

RATE = 20


class ByRow:
    """A model whose findings are numbers."""

    def between(self, before: float, after: float, share: float, moves: NDArray[Any]) -> tuple[float, float]:
        return (1 - share) * before + share * after, float(((1 - share) * moves[0] + share * moves[1])[0])


def seconds(*parts: tuple[str, float]) -> list[str]:
    return [kind for kind, length in parts for _ in range(round(length * RATE))]


def track(rows: list[str], number: int = 1, x: float = 20, side: float = 60) -> Track:
    """A face that moves by 2 px a frame; a row is of "seen", "filled", "pad" or "unsure"."""
    origins = {"seen": SEEN, "filled": FILLED, "pad": PADDED, "unsure": UNSURE}
    faces = [face(x + 2 * n, 40, side) for n in range(len(rows))]
    return Track(
        number,
        0,
        np.stack([one.box for one in faces]),
        np.stack([one.landmarks for one in faces]),
        np.ones(len(rows), np.float32),
        np.array([origins[row] for row in rows], np.uint8),
        person=number,
    )


def planned(*tracks: Track) -> FilmPlan:
    count = max(len(one) for one in tracks)
    info = VideoInfo(2000, 160, Fraction(1, RATE), Fraction(RATE), count, count / RATE)
    return decide(Project(Source.of("film.mp4", info), np.arange(count), list(tracks)), VideoSettings())


def surveyed(readable: list[bool], refused: list[bool] | None = None, number: int = 1) -> dict[int, TrackSurvey]:
    seen = TrackSurvey(np.zeros(len(readable), bool), np.array(refused or [False] * len(readable)))
    for row, can in enumerate(readable):
        seen.see(row, float(row), can)
    seen.end()
    return {number: seen}


def shown(rows: list[str], readable: list[bool], refused: list[bool] | None = None) -> tuple[str, FilmPlan]:
    """A letter a row: F for a new face, h for a bridged one, C for a cover."""
    plan = module._one_treatment(planned(track(rows)), "plain", ByRow(), surveyed(readable, refused))  # type: ignore[arg-type]
    held = plan.bridged.get(1, {})
    letters = ["C" if mode == "plain" else "h" if row in held else "F" for row, mode in enumerate(plan.modes[1])]
    return "".join(letters), plan


def changes(letters: str) -> int:
    return sum((a == "C") != (b == "C") for a, b in pairwise(letters))


def test_a_face_is_held_over_a_short_gap_and_moves_with_its_box() -> None:
    rows = seconds(("seen", 4))
    letters, plan = shown(rows, [not 30 <= n < 45 for n in range(80)])
    assert letters == "F" * 30 + "h" * 15 + "F" * 35
    found, moved = plan.bridged[1][37]
    assert found == pytest.approx(37) and moved == pytest.approx(0.5 * (2 * 8) + 0.5 * (2 * -8))
    assert plan.fallbacks == {}


@pytest.mark.parametrize(
    ("rows", "unread", "expected"),
    [
        # A long gap in which the detector saw a face: it is covered as a whole unless that spares seconds of a face.
        (seconds(("seen", 6)), range(40, 70), "C" * 120),
        (seconds(("seen", 40)), range(400, 440), "F" * 400 + "C" * 40 + "F" * 360),
        # Nobody saw a face in it: the head is turned away or hidden.
        (seconds(("seen", 2), ("filled", 1.5), ("seen", 2)), range(40, 70), "F" * 40 + "C" * 30 + "F" * 40),
        # An end: a short one is held, before a pad in which there is nothing.
        (seconds(("seen", 3), ("pad", 0.3)), range(55, 66), "F" * 55 + "h" * 5 + "C" * 6),
        (seconds(("pad", 0.3), ("seen", 3)), range(3), "C" * 3 + "F" * 63),
        # In a pad a new face does not come and go.
        (seconds(("pad", 0.3), ("seen", 3)), range(3, 5), "C" * 5 + "F" * 61),
        (seconds(("seen", 3), ("pad", 0.3)), range(62, 64), "F" * 62 + "C" * 4),
        (seconds(("seen", 3), ("unsure", 0.5)), range(0), "F" * 60 + "C" * 10),
        (seconds(("seen", 3)), range(60), "C" * 60),
    ],
    ids=[
        "long gap",
        "long track",
        "nobody there",
        "end",
        "pad with a face",
        "before",
        "after",
        "another person",
        "never",
    ],
)
def test_whole_tracks_are_decided(rows: list[str], unread: range, expected: str) -> None:
    letters, plan = shown(rows, [n not in unread for n in range(len(rows))])
    assert letters == expected
    assert sum(plan.fallbacks.values()) == letters.count("C")


def test_where_the_gate_knows_a_face_it_is_covered_and_never_held() -> None:
    refused = [150 <= n < 154 for n in range(400)]
    letters, _ = shown(["seen"] * 400, [True] * 400, refused)
    assert letters[150:154] == "CCCC" and changes(letters) == 2 and "h" not in letters
    letters, _ = shown(["seen"] * 70, [True] * 70, refused[100:170])
    assert letters == "C" * 70, "one treatment of a short track"


@pytest.mark.parametrize("seed", range(4))
def test_changes_are_rare_and_what_cannot_stand_is_covered(seed: int) -> None:
    """Random reading: no row without a face that could be read, or held between two, and seconds between changes."""
    rng = np.random.default_rng(seed)
    readable = np.repeat(rng.random(300) < 0.7, rng.integers(1, 25, 300))[:2000].tolist()
    letters, plan = shown(["seen"] * len(readable), readable)
    assert all(can for can, letter in zip(readable, letters, strict=True) if letter == "F")
    assert all(not readable[row] for row in plan.bridged[1])
    assert changes(letters) <= len(letters) / RATE / module.CHANGE + 1


def test_a_small_face_and_one_behind_another_are_covered() -> None:
    small = track(["seen"] * 60, side=20)
    assert set(module._one_treatment(planned(small), "plain").modes[1]) == {"plain"}
    behind, before = track(["seen"] * 60), track(["seen"] * 60, number=2, x=30)
    surveys = surveyed([not 20 <= n < 50 for n in range(60)]) | surveyed([True] * 60, number=2)
    plan = module._one_treatment(planned(behind, before), "plain", ByRow(), surveys)  # type: ignore[arg-type]
    assert [n for n, mode in enumerate(plan.modes[1]) if mode == "plain"] == list(range(20, 50))
    assert plan.hidden[1] == set(range(20, 50)) and not plan.hidden[2]
    assert set(plan.modes[2]) == {"ficgan"}


def test_refused_readings_are_followed_by_one_of_the_next_frame_and_near_ones_by_more() -> None:
    def asked(known: int) -> tuple[list[int], list[int]]:
        seen, rows = TrackSurvey(np.ones(40, bool), np.zeros(40, bool)), []
        for row in range(40):
            if seen.is_due(row):
                rows.append(row)
                seen.tried(row, 10, shown=row != known, near=row in (20, known))
        return rows, np.flatnonzero(seen.refused).tolist()

    assert asked(-1) == ([0, 10, 20, *range(23, 40, 3)], [])
    rows, refused = asked(23)
    assert rows == [0, 10, 20, 23, 24, *range(27, 40, 3)] and refused == [22, 23]


def test_a_mesh_between_two_moves_with_them() -> None:
    rng, model = np.random.default_rng(0), object.__new__(FrameModel)  # no weights are needed
    a, b = (Mesh(rng.normal(size=(478, 3)).astype(np.float32), presence) for presence in (20.0, 5.0))
    made = model.between(a, b, 0.25, np.array([[8.0, 0.0], [0.0, 4.0]]))
    expected = 0.75 * a.points + 0.25 * b.points + np.array([6, 1, 0])
    np.testing.assert_allclose(made.points, expected, atol=1e-5)
    assert made.presence == 5.0


def test_models_without_meshes_hold_nothing() -> None:
    model = crop_model()
    assert not model.is_sure(None) and model.problem(face(10, 10, 40), None) == ""
