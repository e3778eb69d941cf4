"""Decisions against an oracle that reads the rules one by one, as docs/video-project.md words them."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from ficgan.anonymizers.modes import HIDING
from ficgan.errors import InputError
from ficgan.video.folders import checked
from ficgan.video.settings import MODES, BoxRule, Decider, Decision, Decisions, SpanRule
from ficgan.video.tracks import Track

SIZE = (100, 80)
TIMES = np.arange(12) * 0.5


def a_track(id: int = 1, person: int = 1, first: int = 0, boxes: object = None) -> Track:
    places = np.tile([10, 10, 20, 20], (6, 1)) if boxes is None else np.asarray(boxes)
    count = len(places)
    return Track(
        id,
        first,
        places.astype(np.float32),
        np.zeros((count, 5, 2), np.float32),
        np.ones(count, np.float32),
        np.zeros(count, np.uint8),
        person,
    )


def by_the_book(rules: Decisions, track: Track, time: float, box: list[float]) -> str:
    """The mode of one face: all rules that fit, by strength; in a strength hiding first, then the last."""

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
    everybody: list[BoxRule | SpanRule] = [rule for rule in rules.boxes if now(rule) and inside(rule)]
    everybody += [rule for rule in spans if rule.track is None and rule.person is None]
    levels = [
        [rule.mode for rule in spans if rule.track == track.id],
        [own.mode] if own else [],
        [rule.mode for rule in spans if rule.person is not None and rule.person == track.person],
        [person.mode] if person else [],
        [rule.mode for rule in everybody],
    ]
    for modes in levels:
        if modes:
            return ([mode for mode in modes if mode != "keep"] or ["keep"])[-1]
    if rules.only is not None and track.person != 0 and track.person not in rules.only:
        return "keep"
    return rules.default


seconds = st.integers(0, 12).map(lambda n: n / 2)
modes = st.sampled_from(MODES)
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
    track = a_track(id, person, first, places)
    decider = Decider(rules, TIMES, SIZE)
    decided = decider.decide(track)
    for row, box in enumerate(places):
        frame = first + row
        expected = by_the_book(rules, track, TIMES[frame], box)
        assert decided[row] == expected
        assert decider.mode_of(track, frame) == expected


@given(rule_sets, st.lists(st.tuples(st.integers(0, 3), boxes), min_size=1, max_size=3))
def test_exemptions_account_for_every_kept_face(rules: Decisions, people: list[tuple[int, list[float]]]) -> None:
    tracks = [a_track(n, person, 0, [box] * 3) for n, (person, box) in enumerate(people, start=1)]
    decider = Decider(rules, TIMES, SIZE)
    exemptions = decider.exemptions(tracks)
    kept = [int((decider.decide(track) == "keep").sum()) for track in tracks]
    assert sum(exemption.rows for exemption in exemptions) == sum(kept)
    assert {id for exemption in exemptions for id in exemption.tracks} == {n for n, k in enumerate(kept, 1) if k}
    given_rules = [*rules.people.values(), *rules.tracks.values(), *rules.spans, *rules.boxes]
    assert len(exemptions) == sum(rule.mode == "keep" for rule in given_rules) + (rules.only is not None)


@given(rule_sets, st.integers(0, 3))
def test_nobody_is_kept_without_a_rule_that_keeps(rules: Decisions, person: int) -> None:
    def hiding(rule: object) -> bool:
        return rule.mode != "keep"  # type: ignore[attr-defined]

    hidden = Decisions(
        default=rules.default,
        people={n: rule for n, rule in rules.people.items() if hiding(rule)},
        tracks={n: rule for n, rule in rules.tracks.items() if hiding(rule)},
        spans=tuple(filter(hiding, rules.spans)),
        boxes=tuple(filter(hiding, rules.boxes)),
    )
    track = a_track(1, person)
    assert "keep" not in Decider(hidden, TIMES, SIZE).decide(track)
    assert Decider(hidden, TIMES, SIZE).exemptions([track]) == []


def test_each_strength_beats_the_next() -> None:
    """One rule of each strength, taken away from the strongest on."""
    track = a_track()
    everything = {
        "spans": (
            SpanRule(mode="solid", start=0, track=1),
            SpanRule(mode="mosaic", start=0, person=1),
            SpanRule(mode="blur", start=0),
        ),
        "tracks": {1: Decision(mode="blur")},
        "people": {1: Decision(mode="solid")},
        "only": (2,),
    }
    spans = everything["spans"]
    for change, mode in [
        ({}, "solid"),
        ({"spans": spans[1:]}, "blur"),
        ({"tracks": {}}, "mosaic"),
        ({"spans": spans[2:]}, "solid"),
        ({"people": {}}, "blur"),
        ({"spans": ()}, "keep"),
        ({"only": None}, "ficgan"),
    ]:
        everything.update(change)
        assert set(Decider(Decisions(**everything), TIMES).decide(track)) == {mode}


def test_a_span_begins_with_its_first_second_and_ends_before_its_last() -> None:
    rules = Decisions(spans=(SpanRule(mode="solid", start=0.5, end=1.5, track=1),))
    assert list(Decider(rules, TIMES).decide(a_track())) == ["ficgan", "solid", "solid", "ficgan", "ficgan", "ficgan"]


def test_variable_frame_times_are_what_counts() -> None:
    rules = Decisions(spans=(SpanRule(mode="solid", start=1.0),))
    modes = Decider(rules, [0, 0.1, 0.2, 5, 5.1, 9]).decide(a_track())
    assert list(modes) == ["ficgan"] * 3 + ["solid"] * 3


def test_a_face_that_reaches_out_of_the_region_is_not_kept() -> None:
    decider = Decider(Decisions(boxes=(BoxRule(box=(0, 0, 50, 50)),)), TIMES, SIZE)
    track = a_track(boxes=[[10, 10, 50, 50], [10, 10, 51, 50], [-5, -5, 20, 20]])
    assert list(decider.decide(track)) == ["keep", "ficgan", "keep"]  # the last is cut at the edge of the picture


def test_a_track_of_nobody_known_is_hidden_under_a_selection() -> None:
    decider = Decider(Decisions(only=(1,)), TIMES)
    assert [str(decider.decide(a_track(n, n))[0]) for n in (1, 2)] == ["ficgan", "keep"]
    assert set(decider.decide(a_track(3, person=0))) == {"ficgan"}


def test_the_array_has_room_for_every_mode() -> None:
    decided = Decider(Decisions(default="blur"), TIMES).decide(a_track())
    for mode in MODES:
        decided[0] = mode
        assert decided[0] == mode


def test_an_exemption_by_photo_names_its_reason() -> None:
    rules = Decisions(people={2: Decision(mode="keep", reason="matches keep.jpg")})
    (exemption,) = Decider(rules, TIMES).exemptions([a_track(1, 1), a_track(2, 2), a_track(3, 2)])
    assert exemption.to_dict() == {
        "rule": "person 2",
        "reason": "matches keep.jpg",
        "start": None,
        "end": None,
        "tracks": [2, 3],
        "people": [2],
        "rows": 12,
    }


def test_a_person_linked_anew_is_decided_anew() -> None:
    decider, track = Decider(Decisions(people={2: Decision(mode="keep")}), TIMES), a_track()
    assert decider.mode_of(track, 0) == "ficgan"
    track.person = 2
    assert decider.mode_of(track, 0) == "keep"


@pytest.mark.parametrize(
    ("tree", "said"),
    [
        ({"default": "keep"}, "default: "),
        ({"default": "blurr"}, "there is no mode 'blurr'; did you mean blur?"),
        ({"people": {"1": "hide"}}, "people.1"),
        ({"people": {"one": "solid"}}, "people.one"),
        ({"people": {"0": "keep"}}, "people.0"),
        ({"person": {"1": "solid"}}, "unknown key 'person'; did you mean 'people'?"),
        ({"tracks": {"1": {"mode": "solid", "resaon": "x"}}}, "did you mean 'tracks.1.reason'?"),
        ({"only": []}, "only"),
        ({"spans": [{"mode": "keep"}]}, "`from` or `to`"),
        ({"spans": [{"mode": "keep", "from": 3, "to": 2}]}, "empty"),
        ({"spans": [{"mode": "keep", "from": math.nan}]}, "spans.0.from"),
        ({"spans": [{"mode": "keep", "from": 1, "track": 1, "person": 1}]}, "not on both"),
        ({"boxes": [{"box": [10, 0, 5, 5]}]}, "x0 < x1"),
        ({"boxes": [{"box": [1, 2, 3]}]}, "boxes.0.box"),
        ({"boxes": [{"box": [0, 0, 1, math.inf]}]}, "boxes.0.box"),
    ],
)
def test_bad_rules_are_one_sentence(tree: dict[str, object], said: str) -> None:
    with pytest.raises(InputError) as error:
        checked(Decisions, tree, "project.json")
    assert said in str(error.value) and str(error.value).startswith("project.json: ") and "\n" not in str(error.value)


def test_a_bare_mode_will_do() -> None:
    short = checked(Decisions, {"people": {"1": "keep"}, "spans": [{"mode": "solid", "from": 1.5}]}, "x")
    assert short.people == {1: Decision(mode="keep")}
    assert short.spans == (SpanRule(mode="solid", start=1.5),)
    assert short.model_dump(mode="json", by_alias=True)["spans"] == [{"mode": "solid", "from": 1.5}]
    with pytest.raises(ValidationError):
        short.people[1].mode = "solid"  # type: ignore[misc]


@pytest.mark.parametrize("first", MODES)
@pytest.mark.parametrize("second", MODES)
def test_of_the_same_strength_hiding_wins_then_the_later(first: str, second: str) -> None:
    expected = first if second == "keep" else second
    for subject in ({"track": 1}, {"person": 1}, {}):
        spans = tuple(SpanRule(mode=mode, start=0, **subject) for mode in (first, second))
        assert set(Decider(Decisions(spans=spans), TIMES).decide(a_track())) == {expected}
    regions = tuple(BoxRule(mode=mode, box=(0, 0, 50, 50)) for mode in (first, second))
    assert set(Decider(Decisions(boxes=regions), TIMES).decide(a_track())) == {expected}
