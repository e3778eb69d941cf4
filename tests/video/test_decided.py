"""What happens to each face: the rules against an oracle that reads docs/video-project.md, findings, whole tracks."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from fractions import Fraction
from io import BytesIO
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from stand_ins import face
from worlds import crop_model

from ficgan.anonymizers.modes import HIDING
from ficgan.errors import InputError, UsageError
from ficgan.faces.mesh import Mesh
from ficgan.folders import checked
from ficgan.frame_model import FrameModel
from ficgan.video import VideoSettings, treatment
from ficgan.video import decided as module
from ficgan.video.decided import FilmFinding, FilmPlan, FoundFaces, cover_findings, decide
from ficgan.video.decisions import BoxRule, Decider, Decision, Decisions, Region, SpanRule, edits_of
from ficgan.video.project import Project, Source
from ficgan.video.source import Frame, VideoInfo
from ficgan.video.tracks import FILLED, PADDED, SEEN, UNSURE, Track
from ficgan.video.treatment import TrackSurvey

SIZE = (100, 80)
TIMES = np.arange(12) * 0.5


def a_track(id: int = 1, person: int = 1, first: int = 0, boxes: object = None) -> Track:
    places = np.tile([10, 10, 20, 20], (6, 1)) if boxes is None else np.asarray(boxes)
    n = len(places)
    marks, ones = np.zeros((n, 5, 2), np.float32), np.ones(n, np.float32)
    return Track(id, first, places.astype(np.float32), marks, ones, np.zeros(n, np.uint8), person)


# -- rules ------------------------------------------------------------------------------------------------------------


def by_the_book(rules: Decisions, track: Track, time: float, box: list[float]) -> str:
    """The mode of one face: all rules that fit, by level; in a level hiding first, then the last."""

    def now(rule: SpanRule | BoxRule) -> bool:
        return (rule.start is None or time >= rule.start) and (rule.end is None or time < rule.end)

    def inside(rule: BoxRule) -> bool:
        x0, x1 = (min(max(value, 0), SIZE[0]) for value in (box[0], box[2]))
        y0, y1 = (min(max(value, 0), SIZE[1]) for value in (box[1], box[3]))
        left, top, right, bottom = rule.box
        if rule.mode == "keep":
            return left <= x0 and x1 <= right and top <= y0 and y1 <= bottom
        return left <= (x0 + x1) / 2 <= right and top <= (y0 + y1) / 2 <= bottom

    spans = [rule for rule in rules.spans if now(rule)]
    own, person = rules.tracks.get(track.id), rules.people.get(track.person)
    levels: list[list[str]] = [
        [*([own.mode] if own else []), *(rule.mode for rule in spans if rule.track == track.id)],
        [*([person.mode] if person else []), *(rule.mode for rule in spans if rule.person == track.person)],
        [
            *(rule.mode for rule in rules.boxes if now(rule) and inside(rule)),
            *(rule.mode for rule in spans if rule.track is None and rule.person is None),
        ],
    ]
    for modes in levels:
        if modes:
            return ([mode for mode in modes if mode != "keep"] or ["keep"])[-1]
    unselected = rules.only is not None and track.person != 0 and track.person not in rules.only
    return "keep" if unselected else rules.default


seconds = st.integers(0, 12).map(lambda n: n / 2)
modes = st.sampled_from([*HIDING, "keep"])
sides = st.tuples(st.integers(-10, 110), st.integers(1, 60), st.integers(-10, 90), st.integers(1, 60))
boxes = sides.map(lambda s: [float(s[0]), float(s[2]), float(s[0] + s[1]), float(s[2] + s[3])])
bounds = st.tuples(st.none() | seconds, st.none() | seconds.filter(bool)).filter(
    lambda pair: pair[0] is None or pair[1] is None or pair[0] < pair[1]
)
decision = st.builds(Decision, mode=modes)


@st.composite
def span(draw: st.DrawFn) -> SpanRule:
    start, end = draw(bounds.filter(lambda pair: pair != (None, None)))
    subject = draw(st.sampled_from([{}, {"track": 1}, {"track": 2}, {"person": 1}, {"person": 2}]))
    return SpanRule(mode=draw(modes), start=start, end=end, **subject)


@st.composite
def region(draw: st.DrawFn) -> BoxRule:
    start, end = draw(bounds)
    return BoxRule(mode=draw(modes), box=draw(boxes), start=start, end=end)


rule_sets = st.builds(
    Decisions,
    default=st.sampled_from(HIDING),
    only=st.none() | st.lists(st.integers(1, 3), min_size=1).map(tuple),
    people=st.dictionaries(st.integers(1, 3), decision, max_size=2),
    tracks=st.dictionaries(st.integers(1, 3), decision, max_size=2),
    spans=st.lists(span(), max_size=4).map(tuple),
    boxes=st.lists(region(), max_size=3).map(tuple),
)


@given(rule_sets, st.integers(1, 3), st.integers(0, 3), st.integers(0, 8), st.lists(boxes, min_size=1, max_size=4))
def test_every_face_is_decided_by_the_book(
    rules: Decisions, id: int, person: int, first: int, places: list[list[float]]
) -> None:
    track, decider = a_track(id, person, first, places), Decider(rules, TIMES, SIZE)
    expected = [by_the_book(rules, track, TIMES[first + row], box) for row, box in enumerate(places)]
    assert decider.decide(track).tolist() == expected
    assert decider.decide(track).tolist() == expected


@given(rule_sets, st.lists(st.tuples(st.integers(0, 3), boxes), min_size=1, max_size=3))
def test_exemptions_account_for_every_kept_face(rules: Decisions, people: list[tuple[int, list[float]]]) -> None:
    tracks = [a_track(n, person, 0, [box] * 3) for n, (person, box) in enumerate(people, start=1)]
    decider = Decider(rules, TIMES, SIZE)
    exemptions = decider.exemptions(tracks)
    kept = [int((decider.decide(track) == "keep").sum()) for track in tracks]
    assert sum(exemption["rows"] for exemption in exemptions) == sum(kept)
    assert {id for exemption in exemptions for id in exemption["tracks"]} == {n for n, k in enumerate(kept, 1) if k}
    given_rules = [*rules.people.values(), *rules.tracks.values(), *rules.spans, *rules.boxes]
    keeping = sum(rule.mode == "keep" for rule in given_rules) + (rules.only is not None)
    assert len(exemptions) == keeping and (keeping or not sum(kept)), "nobody is kept without a rule"


def test_an_exemption_by_photo_names_its_reason() -> None:
    rules = Decisions(people={2: Decision(mode="keep", reason="matches keep.jpg")})
    (exemption,) = Decider(rules, TIMES).exemptions([a_track(1, 1), a_track(2, 2), a_track(3, 2)])
    who = {"rule": "person 2", "reason": "matches keep.jpg", "start": None, "end": None}
    assert exemption == {**who, "tracks": [2, 3], "people": [2], "rows": 12}


@pytest.mark.parametrize(
    ("tree", "said"),
    [
        ({"default": "keep"}, "default"),
        ({"default": "blurr"}, "blur"),
        ({"people": {"1": "hide"}}, "people.1"),
        ({"people": {"0": "keep"}}, "people.0"),
        ({"person": {"1": "solid"}}, "person"),
        ({"tracks": {"1": {"mode": "solid", "resaon": "x"}}}, "tracks.1.resaon"),
        ({"only": []}, "only"),
        ({"spans": [{"mode": "keep"}]}, "spans"),
        ({"spans": [{"mode": "keep", "from": 3, "to": 2}]}, "spans"),
        ({"spans": [{"mode": "keep", "from": math.nan}]}, "spans.0.from"),
        ({"spans": [{"mode": "keep", "from": 1, "track": 1, "person": 1}]}, "spans"),
        ({"boxes": [{"box": [10, 0, 5, 5]}]}, "boxes.0.box"),
        ({"boxes": [{"box": [0, 0, 1, math.inf]}]}, "boxes.0.box"),
    ],
)
def test_bad_rules_are_one_sentence(tree: dict[str, object], said: str) -> None:
    with pytest.raises(InputError) as error:
        checked(Decisions, tree, "project.json")
    assert said in str(error.value) and str(error.value).startswith("project.json: ") and "\n" not in str(error.value)


def test_a_bare_mode_will_do() -> None:
    short = checked(Decisions, {"people": {"1": "keep"}, "spans": [{"mode": "solid", "from": 1.5}]}, "x")
    assert short.people == {1: Decision(mode="keep")} and short.spans == (SpanRule(mode="solid", start=1.5),)
    assert short.model_dump(mode="json", by_alias=True)["spans"] == [{"mode": "solid", "from": 1.5}]


def test_edits_of_a_reviewed_film_are_sentences_without_keys() -> None:
    rules = Decisions(
        spans=(SpanRule(mode="keep", start=1, end=2.5, reason="consent"),),
        boxes=(BoxRule(mode="block-permutation:key=hush", box=(0, 0, 9, 9)),),
    )
    assert edits_of(rules, [Region(first=3, last=9, box=(1, 2, 3, 4))]) == (
        "Box [0, 0, 9, 9]: hidden, mode block-permutation.",
        "Span on everybody from 1 s to 2.5 s: kept as it was (consent).",
        "In frames 3 to 9 the box [1, 2, 3, 4]: hidden, mode plain.",
    )
    with pytest.raises(InputError, match="did you mean block") as error:
        checked(Decisions, {"default": "block-permutation:key=hush,blok=3"}, "project.json")
    assert "hush" not in str(error.value)


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


# -- findings of the check --------------------------------------------------------------------------------------------

FRAMES = 60


@pytest.fixture
def plan(monkeypatch: pytest.MonkeyPatch) -> FilmPlan:
    """Two people at rest for 60 frames."""
    monkeypatch.setattr(module, "HOLD", 0.08)  # 2 frames
    info = VideoInfo(320, 160, Fraction(1, 25), Fraction(25), FRAMES, FRAMES / 25)
    tracks = []
    for number, x in ((1, 20), (2, 200)):
        one, n = face(x, 40, 60), FRAMES
        columns = np.tile(one.box, (n, 1)), np.tile(one.landmarks, (n, 1, 1)), np.ones(n, np.float32)
        tracks.append(Track(number, 0, *columns, np.full(n, SEEN, np.uint8), person=number))
    return decide(Project(Source.of("film.mp4", info), np.arange(FRAMES), tracks), VideoSettings())


def covered(plan: FilmPlan, number: int) -> list[int]:
    image = np.zeros((160, 320, 3), np.uint8)
    jobs = [plan.job(Frame(n, n, n / 25, image)) for n in range(FRAMES)]
    return [n for n, job in enumerate(jobs) for one in job.appearances if (one.track, one.mode) == (number, "plain")]


def finding(frame: int, x: float) -> FilmFinding:
    return FilmFinding(frame, frame / 25, (x, 45, x + 50, 95), 0.5)


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        ([(30, 25), (32, 25)], {1: range(28, 35)}),
        ([(10, 25), (30, 25), (59, 25)], {1: [*range(8, 33), *range(57, 60)]}),  # 29 frames are more than a second
        ([(0, 205), (59, 205)], {2: [0, 1, 2, 57, 58, 59]}),
        ([(30, 120)], {}),
    ],
    ids=["a moment", "less than a second apart", "the ends", "beside all faces"],
)
def test_what_is_still_recognised_is_covered_and_a_moment_around(
    plan: FilmPlan, found: list[tuple[int, float]], expected: dict[int, list[int]]
) -> None:
    made, rows = cover_findings(plan, [finding(*one) for one in found], "plain")
    assert {n: covered(made, n) for n in (1, 2)} == {1: [], 2: []} | {n: list(frames) for n, frames in expected.items()}
    assert rows == made.fallbacks.get("still recognised", 0) == sum(map(len, expected.values()))
    assert covered(plan, 1) == covered(plan, 2) == [], "the first plan stays"


# -- what was found ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("memory", [True, False])
def test_what_was_found_is_given_back_from_memory_and_from_a_file(memory: bool, tmp_path: Path) -> None:
    rng, tracks, kept = np.random.default_rng(3), [a_track(), a_track(id=4, first=9)], {}
    with BytesIO() if memory else TemporaryFile(dir=tmp_path) as file:
        found = FoundFaces(file)
        for track, row in [(tracks[number], row) for number in (0, 1, 0) for row in rng.permutation(5)]:
            kept[track.id, row] = rng.normal(size=30).astype(np.float32)
            found.keep(track, row, kept[track.id, row])
        for track, row in itertools.product(tracks, range(6)):
            again = found.at(track, row)
            assert (again is None) == (row == 5)
            assert again is None or np.array_equal(again, kept[track.id, row])
        assert found.at(a_track(id=2), 0) is None
        assert not list(tmp_path.iterdir())  # the file has no name


# -- one treatment a head ----------------------------------------------------------------------------------------------


RATE = 20


class ByRow:
    """A model whose findings are numbers."""

    def of_row(self, row: NDArray[np.float32]) -> float:
        return float(row[0])

    def between(self, before: float, after: float, share: float, moves: NDArray[Any]) -> tuple[float, float]:
        return (1 - share) * before + share * after, float(((1 - share) * moves[0] + share * moves[1])[0])


def rows_of(*parts: tuple[str, float]) -> list[str]:
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
    """A plan of tracks on whose rows their numbers were found."""
    count, found = max(len(one) for one in tracks), FoundFaces(BytesIO())
    info = VideoInfo(2000, 160, Fraction(1, RATE), Fraction(RATE), count, count / RATE)
    for one in tracks:
        for row in range(len(one)):
            found.keep(one, row, np.float32([row]))
    plan = decide(Project(Source.of("film.mp4", info), np.arange(count), list(tracks)), VideoSettings())
    return replace(plan, found=found)


def surveyed(readable: list[bool], refused: list[bool] | None = None, number: int = 1) -> dict[int, TrackSurvey]:
    return {number: TrackSurvey(np.array(readable), np.array(refused or [False] * len(readable)))}


def shown(rows: list[str], readable: list[bool], refused: list[bool] | None = None) -> tuple[str, FilmPlan]:
    """A letter a row: F for a new face, h for a bridged one, C for a cover."""
    plan = treatment._one_treatment(planned(track(rows)), "plain", ByRow(), surveyed(readable, refused))  # type: ignore[arg-type]
    held = plan.bridged.get(1, {})
    letters = ["C" if mode == "plain" else "h" if row in held else "F" for row, mode in enumerate(plan.modes[1])]
    return "".join(letters), plan


def changes(letters: str) -> int:
    return sum((a == "C") != (b == "C") for a, b in pairwise(letters))


def test_a_face_is_held_over_a_short_gap_and_moves_with_its_box() -> None:
    rows = rows_of(("seen", 4))
    letters, plan = shown(rows, [not 30 <= n < 45 for n in range(80)])
    assert letters == "F" * 30 + "h" * 15 + "F" * 35
    found, moved = plan.bridged[1][37]
    assert found == pytest.approx(37) and moved == pytest.approx(0.5 * (2 * 8) + 0.5 * (2 * -8))
    assert plan.fallbacks == {}


@pytest.mark.parametrize(
    ("rows", "unread", "expected"),
    [
        # A long gap in which the detector saw a face: it is covered as a whole unless that spares seconds of a face.
        (rows_of(("seen", 6)), range(40, 70), "C" * 120),
        (rows_of(("seen", 40)), range(400, 440), "F" * 400 + "C" * 40 + "F" * 360),
        # Nobody saw a face in it: the head is turned away or hidden.
        (rows_of(("seen", 2), ("filled", 1.5), ("seen", 2)), range(40, 70), "F" * 40 + "C" * 30 + "F" * 40),
        # An end: a short one is held, before a pad in which there is nothing.
        (rows_of(("seen", 3), ("pad", 0.3)), range(55, 66), "F" * 55 + "h" * 5 + "C" * 6),
        (rows_of(("pad", 0.3), ("seen", 3)), range(3), "C" * 3 + "F" * 63),
        # In a pad a new face does not come and go.
        (rows_of(("pad", 0.3), ("seen", 3)), range(3, 5), "C" * 5 + "F" * 61),
        (rows_of(("seen", 3), ("pad", 0.3)), range(62, 64), "F" * 62 + "C" * 4),
        (rows_of(("seen", 3), ("unsure", 0.5)), range(0), "F" * 60 + "C" * 10),
        (rows_of(("seen", 3)), range(60), "C" * 60),
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
    assert changes(letters) <= len(letters) / RATE / treatment.CHANGE + 1


def test_a_small_face_and_one_behind_another_are_covered() -> None:
    small = track(["seen"] * 60, side=20)
    assert set(treatment._one_treatment(planned(small), "plain").modes[1]) == {"plain"}
    behind, before = track(["seen"] * 60), track(["seen"] * 60, number=2, x=30)
    surveys = surveyed([not 20 <= n < 50 for n in range(60)]) | surveyed([True] * 60, number=2)
    plan = treatment._one_treatment(planned(behind, before), "plain", ByRow(), surveys)  # type: ignore[arg-type]
    assert [n for n, mode in enumerate(plan.modes[1]) if mode == "plain"] == list(range(20, 50))
    assert plan.hidden[1] == set(range(20, 50)) and not plan.hidden[2]
    assert set(plan.modes[2]) == {"ficgan"}


def test_refused_readings_are_followed_by_one_of_the_next_frame_and_near_ones_by_more() -> None:
    def asked(known: int) -> tuple[list[int], list[int]]:
        seen, rows = TrackSurvey(np.ones(40, bool), np.zeros(40, bool)), []
        for row in range(40):
            if row >= seen.due:
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
