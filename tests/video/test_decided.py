"""What happens to each face: the rules against an oracle that reads docs/video-project.md, fallbacks, findings."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from stand_ins import face

from ficgan.anonymizers.modes import HIDING
from ficgan.errors import InputError, UsageError
from ficgan.folders import checked
from ficgan.video import decided as module
from ficgan.video.decided import FilmFinding, FilmPlan, FoundFaces, cover_findings, decide
from ficgan.video.decisions import BoxRule, Decider, Decision, Decisions, Region, SpanRule, edits_of
from ficgan.video.project import Project, Source
from ficgan.video.settings import VideoSettings
from ficgan.video.source import Frame, VideoInfo
from ficgan.video.tracks import SEEN, Track

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


@pytest.mark.parametrize("memory", [module.FOUND, 100])
def test_what_was_found_is_given_back_from_memory_and_from_a_file(
    memory: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "FOUND", memory)
    rng, tracks, kept = np.random.default_rng(3), [a_track(), a_track(id=4, first=9)], {}
    with FoundFaces(tmp_path) as found:
        for track, row in [(tracks[number], row) for number in (0, 1, 0) for row in rng.permutation(5)]:
            kept[track.id, row] = rng.normal(size=30).astype(np.float32)
            found.keep(track, row, kept[track.id, row])
        for track, row in itertools.product(tracks, range(6)):
            again = found.at(track, row)
            assert (again is None) == (row == 5)
            assert again is None or np.array_equal(again, kept[track.id, row])
        assert found.at(a_track(id=2), 0) is None
        assert not list(tmp_path.iterdir())  # the file has no name
