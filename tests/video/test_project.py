"""Projects: what is saved is what is loaded, nobody else can read it, and damage is named."""

from __future__ import annotations

import copy
import hashlib
import json
import os
import stat
from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from ficgan.errors import FicganError, InputError
from ficgan.video.folders import MARKER, hold, kind_of, make_private_folder, work_folder
from ficgan.video.media import VideoInfo
from ficgan.video.project import Project, Source, fingerprint
from ficgan.video.settings import BoxRule, Decision, Decisions, Region, SpanRule
from ficgan.video.tracks import Track

KEYS = ({"frame": 10, "box": (0, 0, 10, 10)}, {"frame": 20, "box": (10, 0, 20, 40)})
INFO = VideoInfo(640, 360, Fraction(1, 15360), Fraction(30000, 1001), 100, 3.3, notes=("a subtitle was left out",))


def a_track(id: int = 1, first: int = 0, count: int = 10, person: int = 1) -> Track:
    steps = np.arange(count)[:, None]
    boxes = np.array([10.04, 20, 60, 90]) + steps * 1.23
    landmarks = np.array([[20, 40], [50, 40], [35, 60], [25, 75], [45, 75]]) + steps[..., None]
    return Track(
        id,
        first,
        boxes.astype(np.float32),
        landmarks.astype(np.float32),
        np.linspace(0, 1, count, dtype=np.float32),
        (np.arange(count) % 3).astype(np.uint8),
        person,
        ["a note"],
    )


def a_project(**changes: Any) -> Project:
    parts: dict[str, Any] = {
        "source": Source.of("film.mp4", INFO),
        "pts": np.arange(100) * 512,
        "tracks": [a_track(1), a_track(2, 30, 5, 2), a_track(3, 90, 10, 2)],
        "settings": {"detector": "yunet", "threshold": 0.6, "stride": 5},
        "cuts": (30, 90),
        "decisions": Decisions(
            default="blur",
            only=(1, 2),
            people={2: Decision(mode="keep", reason="matches keep.jpg")},
            tracks={3: Decision(mode="solid")},
            spans=(SpanRule(mode="keep", start=0.5, end=1, track=1, reason="consent"),),
            boxes=(BoxRule(box=(0, 0, 100, 100)),),
        ),
        "regions": (
            Region(first=3, last=9, box=(1, 2, 3, 4), reason="a poster"),
            Region(first=0, last=50, mode="blur", keys=KEYS),
        ),
    }
    return Project(**{**parts, **changes})


def same(first: Project, second: Project) -> bool:
    arrays = ("boxes", "landmarks", "scores", "origin")
    return (
        all(
            getattr(first, name) == getattr(second, name)
            for name in ("source", "settings", "cuts", "decisions", "regions", "analysis")
        )
        and np.array_equal(first.pts, second.pts)
        and len(first.tracks) == len(second.tracks)
        and all(
            (a.id, a.first, a.person, a.notes) == (b.id, b.first, b.person, b.notes)
            and all(
                getattr(a, n).dtype == getattr(b, n).dtype and np.array_equal(getattr(a, n), getattr(b, n))
                for n in arrays
            )
            for a, b in zip(first.tracks, second.tracks, strict=True)
        )
    )


def test_what_is_saved_is_what_is_loaded(tmp_path: Path) -> None:
    project = a_project()
    project.save(tmp_path / "p")
    assert same(Project.load(tmp_path / "p"), project)
    assert same(Project.load(tmp_path / "p" / "project.json"), project)


@st.composite
def tracks(draw: st.DrawFn) -> list[Track]:
    found = []
    for id in draw(st.lists(st.integers(1, 10_000), unique=True, max_size=3)):
        count = draw(st.integers(1, 12))
        coordinates = st.floats(-5000, 5000, width=32)
        corner = draw(hnp.arrays(np.float32, (count, 2), elements=coordinates))
        sides = draw(hnp.arrays(np.float32, (count, 2), elements=st.floats(0, 4000, width=32)))
        found.append(
            Track(
                id,
                draw(st.integers(0, 20)),
                np.concatenate([corner, corner + sides], axis=1),
                draw(hnp.arrays(np.float32, (count, 5, 2), elements=coordinates)),
                draw(hnp.arrays(np.float32, count, elements=st.floats(-10, 10, width=32))),
                draw(hnp.arrays(np.uint8, count, elements=st.integers(0, 2))),
                draw(st.integers(0, 3)),
                draw(st.lists(st.text(max_size=9), max_size=2)),
            )
        )
    return found


@given(given=tracks(), pts=st.lists(st.integers(-(2**40), 2**40), min_size=33, max_size=33), per_line=st.integers(1, 5))
def test_any_track_comes_back_to_a_tenth(
    given: list[Track], pts: list[int], per_line: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ficgan.video.project._ROWS_PER_LINE", per_line)
        project = a_project(tracks=given, pts=pts, cuts=(), decisions=Decisions(), regions=())
        folder = tmp_path_factory.mktemp("p")
        project.save(folder)
        loaded = Project.load(folder)
    assert same(loaded, project)
    for before, after in zip(given, loaded.tracks, strict=True):
        assert np.abs(before.boxes.astype(float) - after.boxes).max() < 0.151  # a box without area gets a tenth
        assert np.abs(before.boxes.astype(float) - after.boxes)[:, :2].max() < 0.051
        assert np.abs(before.landmarks.astype(float) - after.landmarks).max() < 0.051
        assert np.abs(before.scores.astype(float) - after.scores).max() < 0.00051


def test_nobody_else_can_read_it_whatever_the_umask(tmp_path: Path) -> None:
    for mask in (0o000, 0o777):
        folder = tmp_path / f"p{mask}"
        before = os.umask(mask)
        try:
            a_project().save(folder)
        finally:
            os.umask(before)
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert {p.name for p in folder.iterdir()} == {MARKER, "project.json", "tracks.jsonl"}
        assert {stat.S_IMODE(p.stat().st_mode) for p in folder.iterdir()} == {0o600}


def test_a_folder_that_was_opened_is_closed_again(tmp_path: Path) -> None:
    a_project().save(tmp_path / "p")
    (tmp_path / "p").chmod(0o755)
    a_project().save(tmp_path / "p", overwrite=True)
    assert stat.S_IMODE((tmp_path / "p").stat().st_mode) == 0o700


def test_a_row_takes_less_than_100_bytes(tmp_path: Path, rng: np.random.Generator) -> None:
    count = 3000
    centre = np.cumsum(rng.normal(0, 4, (count, 2)), axis=0) + 800
    half = 60 + rng.normal(0, 1, (count, 2))
    track = Track(
        1,
        0,
        np.concatenate([centre - half, centre + half], axis=1).astype(np.float32),
        (centre[:, None] + rng.normal(0, 30, (1, 5, 2)) + rng.normal(0, 1, (count, 5, 2))).astype(np.float32),
        rng.uniform(0.5, 1, count).astype(np.float32),
        np.zeros(count, np.uint8),
        1,
    )
    a_project(tracks=[track], pts=np.arange(count) * 512, decisions=Decisions()).save(tmp_path)
    assert (tmp_path / "tracks.jsonl").stat().st_size < 100 * count


def test_a_project_is_not_overwritten_unasked(tmp_path: Path) -> None:
    first, second = a_project(), a_project(cuts=())
    first.save(tmp_path / "p")
    with pytest.raises(InputError, match="holds a project already"):
        second.save(tmp_path / "p")
    assert same(Project.load(tmp_path / "p"), first)
    second.save(tmp_path / "p", overwrite=True)
    assert same(Project.load(tmp_path / "p"), second)


def test_a_folder_of_others_is_not_taken(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(InputError, match="was not made by ficgan"):
        a_project().save(tmp_path)
    assert {p.name for p in tmp_path.iterdir()} == {"thesis.txt"}


def test_a_new_folder_that_fails_disappears(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("ficgan.video.project.write_tracks", full)
    with pytest.raises(OSError, match="No space"):
        a_project().save(tmp_path / "p")
    assert list(tmp_path.iterdir()) == []


def edit(folder: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """As a person with a text editor would."""
    path = folder / "project.json"
    tree = json.loads(path.read_text())
    change(tree)
    path.write_text(json.dumps(tree, indent=4))


def test_what_a_person_edits_is_what_is_loaded(tmp_path: Path) -> None:
    a_project().save(tmp_path)

    def change(tree: dict[str, Any]) -> None:
        tree["decisions"]["people"]["1"] = "mosaic"
        tree["decisions"]["spans"].append({"mode": "solid", "from": 2.5})
        tree["tracks"][0]["person"] = 2
        tree["tracks"][1]["person"] = 1
        tree["regions"].append({"first": 5, "last": 5, "box": [0, 0, 9.5, 9]})
        tree["cuts"] = [31]

    edit(tmp_path, change)
    project = Project.load(tmp_path)
    assert project.decisions.people[1] == Decision(mode="mosaic")
    assert project.decisions.spans[-1] == SpanRule(mode="solid", start=2.5)
    assert [track.person for track in project.tracks] == [2, 1, 2] and project.cuts == (31,)
    assert project.regions_at(5)[-1][1] == "plain"
    project.save_document(tmp_path)
    assert same(Project.load(tmp_path), project)


def test_the_file_is_laid_out_for_people(tmp_path: Path) -> None:
    a_project(cuts=tuple(range(1, 100))).save(tmp_path)
    lines = (tmp_path / "project.json").read_text().splitlines()
    assert max(map(len, lines)) <= 120 and len(lines) < 60
    assert '  {"id": 2, "person": 2, "first": 30, "last": 34, "notes": ["a note"]},' in lines
    assert '  "people": {"2": {"mode": "keep", "reason": "matches keep.jpg"}},' in lines


def listed(tree: dict[str, Any], index: int, **changes: Any) -> None:
    tree["tracks"][index].update(changes)


def ruled(tree: dict[str, Any], **changes: Any) -> None:
    tree["decisions"].update(changes)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda t: t.update(schema="ficgan-video-project/2"), "written by a newer ficgan"),
        (lambda t: t.update(schema="ficgan-video-project/0"), "unknown version"),
        (lambda t: t.update(schema="something"), "is another kind of file"),
        (lambda t: t.pop("schema"), "is another kind of file"),
        (lambda t: t.pop("source"), "source is missing"),
        (lambda t: t.update(decision={}), "unknown key 'decision'; did you mean 'decisions'?"),
        (lambda t: t["source"].update(heigth=3), "unknown key 'source.heigth'; did you mean 'source.height'?"),
        (lambda t: t["source"].update(time_base="1/0"), "source.time_base"),
        (lambda t: t["source"].update(width=0), "source.width"),
        (lambda t: listed(t, 0, persn=1), "unknown key 'tracks.0.persn'; did you mean 'tracks.0.person'?"),
        (lambda t: listed(t, 0, id=2), "track 2 is listed twice"),
        (lambda t: listed(t, 0, id=9), "track 1 is not"),
        (lambda t: listed(t, 0, last=10), "track 1 is not in frames 0…9 here"),
        (lambda t: t["tracks"].append({"id": 7, "first": 0, "last": 1}), "track 7 has no rows"),
        (lambda t: t.update(cuts=[5, 3]), "cuts must ascend"),
        (lambda t: t.update(cuts=[100]), "cuts must ascend and lie between 1 and 99"),
        (lambda t: t.update(cuts=[-1]), "cuts.0"),
        (lambda t: t.update(analysis="other"), "does not belong to the tracks.jsonl"),
        (lambda t: ruled(t, default="keep"), "decisions.default"),
        (lambda t: ruled(t, people={"1": "bluur"}), "'bluur'"),
        (lambda t: ruled(t, people={"9": "blur"}), "speaks of person 9, which is not in the project; there are 1…2"),
        (lambda t: ruled(t, only=[4]), "person 4"),
        (lambda t: ruled(t, tracks={"4": "solid"}), "speaks of track 4"),
        (lambda t: ruled(t, spans=[{"mode": "keep", "from": 1, "track": 8}]), "track 8"),
        (lambda t: ruled(t, boxes=[{"box": [0, 0, float("nan"), 5]}]), "decisions.boxes.0.box.2"),
        (lambda t: t["regions"][0].update(mode="keep"), "write it under decisions.boxes"),
        (lambda t: t["regions"][0].update(mode="ficgan"), "no landmarks"),
        (lambda t: t["regions"][0].update(mode="solidd"), "regions.0.mode"),
        (lambda t: t["regions"][0].update(last=100), "region 1 reaches frame 100"),
        (lambda t: t["regions"][0].update(last=1), "from frame 3 to 1 is empty"),
        (lambda t: t["regions"][0].pop("box"), "either `box` or `keys`"),
        (lambda t: t["regions"][0].update(box=[3, 0, 3, 5]), "x0 < x1"),
        (lambda t: t["regions"][1]["keys"].reverse(), "must ascend"),
        (lambda t: t["regions"][1].update(first=15), "between 15 and 50"),
        (lambda t: t["regions"][1]["keys"][0].update(bx=1), "did you mean 'regions.1.keys.0.box'?"),
    ],
)
def test_a_mistake_in_the_file_is_one_sentence(
    change: Callable[[dict[str, Any]], Any], said: str, tmp_path: Path
) -> None:
    a_project().save(tmp_path)
    edit(tmp_path, change)
    with pytest.raises(InputError) as error:
        Project.load(tmp_path)
    message = str(error.value)
    assert said in message and message.startswith(str(tmp_path / "project.json")) and "\n" not in message


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"", "not valid JSON"),
        (b'{"schema": "ficgan-video-project/1", ', "line 1: is not valid JSON"),
        (b"[1, 2]", "is another kind of file"),
        (b"\xff\xfe", "not UTF-8"),
        (b"[" * 100_000, "not valid JSON"),
        (b'{"schema": "ficgan-video-project/1", "cuts": [1], "cuts": []}', "'cuts' stands there twice"),
        (b'{"schema": ' + b"9" * 5000 + b"}", "JSON"),
    ],
)
def test_damaged_text_is_one_sentence(text: bytes, said: str, tmp_path: Path) -> None:
    a_project().save(tmp_path)
    (tmp_path / "project.json").write_bytes(text)
    with pytest.raises(InputError, match=said):
        Project.load(tmp_path)


def test_no_project_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="No such file"):
        Project.load(tmp_path / "nowhere")
    a_project().save(tmp_path)
    (tmp_path / "tracks.jsonl").unlink()
    with pytest.raises(InputError, match=r"tracks\.jsonl: cannot be read"):
        Project.load(tmp_path)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda head, track: head.update(schema="ficgan-video-tracks/2"), "newer"),
        (lambda head, track: head.pop("pts"), "line 1: pts is missing"),
        (lambda head, track: head.update(pts=[[0], [[1, 10**12]]]), "line 1: pts.1.0.1"),
        (lambda head, track: head.update(pts=[[0], [[1, 0]]]), "line 1: pts.1.0.1"),
        (lambda head, track: head.update(pts=[[0], [[1, 5 * 10**7]] * 2]), "lengths of the runs"),
        (lambda head, track: head.update(pts=[[0], [[2**52, 40_000]]]), "a time is too large"),
        (lambda head, track: head.update(pts=[[0], [[1, 5]]]), "reaches frame 9 of a film of 6"),
        (lambda head, track: head.update(pts=[[], []]), "of a film of 0 frames"),
        (lambda head, track: track.update(box=[]), "unknown key 'box'; did you mean 'boxes'?"),
        (lambda head, track: track["boxes"][0].pop(), "line 2"),
        (lambda head, track: track["boxes"].pop(), "line 2"),
        (lambda head, track: track["landmarks"].pop(), "line 2: landmarks"),
        (lambda head, track: track["scores"].append(0), "different lengths"),
        (lambda head, track: track["scores"].__setitem__(0, None), "line 2: scores.0"),
        (lambda head, track: track["scores"].__setitem__(0, 0.5), "line 2: scores.0"),
        (lambda head, track: track["boxes"][0].__setitem__(0, float("nan")), "line 2: boxes.0.0"),
        (lambda head, track: track["boxes"][0].__setitem__(0, 10**30), "line 2: boxes.0.0"),
        (lambda head, track: track["boxes"][0].__setitem__(0, -(2**63)), "line 2: boxes.0.0"),
        (lambda head, track: track["boxes"][0].__setitem__(0, 10_000_001), "px away"),
        (lambda head, track: track["boxes"][0].__setitem__(3, 5000), "box of frame 3 has no area"),
        (lambda head, track: track.update(origin=[[3, 10]]), "line 2: origin.0.0"),
        (lambda head, track: track.update(origin=[[0, 9]]), "different lengths"),
        (lambda head, track: track.update(id=True), "line 2: id"),
        (lambda head, track: track.update(id=0), "line 2: id"),
        (lambda head, track: track.update(first=-1), "line 2: first"),
        (lambda head, track: track.update(id=2), "track 2"),
    ],
)
def test_damaged_rows_are_one_sentence(change: Callable[..., Any], said: str, tmp_path: Path) -> None:
    a_project().save(tmp_path)
    path = tmp_path / "tracks.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    change(lines[0], lines[1])
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(InputError) as error:
        Project.load(tmp_path)
    assert said in str(error.value) and "\n" not in str(error.value)


@given(name=st.sampled_from(["project.json", "tracks.jsonl"]), data=st.data())
def test_any_damage_is_an_error_of_ours(name: str, data: st.DataObject, tmp_path: Path) -> None:
    a_project().save(tmp_path, overwrite=True)
    text = bytearray((tmp_path / name).read_bytes())
    if data.draw(st.booleans()):
        text = text[: data.draw(st.integers(0, len(text) - 1))]
    for place, value in data.draw(st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), max_size=4)):
        if text:
            text[place % len(text)] = value
    (tmp_path / name).write_bytes(text)
    try:
        Project.load(tmp_path)
    except FicganError as error:
        assert "\n" not in str(error)


@pytest.mark.parametrize("damage", ["nan", "inside out", "short", "empty", "twice", "beyond"])
def test_damaged_tracks_are_refused_before_they_are_saved(damage: str) -> None:
    track, more = a_track(), []
    if damage == "nan":
        track.landmarks[3, 1, 0] = np.nan
    elif damage == "inside out":
        track.boxes[2, 2] = 0
    elif damage == "short":
        track.scores = track.scores[:-1]
    elif damage == "empty":
        track = a_track(count=0)
    elif damage == "twice":
        more = [a_track()]
    else:
        track.first = 91
    with pytest.raises(InputError):
        a_project(tracks=[track, *more], decisions=Decisions())


def test_making_a_project_leaves_the_given_tracks_alone() -> None:
    track = a_track()
    before = copy.deepcopy(track)
    project = a_project(tracks=[track], decisions=Decisions())
    assert np.array_equal(track.boxes, before.boxes) and project.tracks[0] is not track
    assert project.tracks[0].boxes[0, 0] == np.float32(10.0)


def test_times_are_those_of_the_frames() -> None:
    project = a_project(pts=np.r_[100, 200, 700, np.arange(97) * 512 + 1000])
    assert np.array_equal(project.times[:3], [0, 100 / 15360, 600 / 15360])


def test_a_moving_region_moves_in_straight_lines() -> None:
    region = a_project().regions[1]
    for frame in range(51):
        share = min(max((frame - 10) / 10, 0), 1)
        assert np.allclose(region.box_at(frame), [10 * share, 0, 10 + 10 * share, 10 + 30 * share])
    assert region.box_at(51) is None
    places = a_project().regions_at(3)
    assert [place[1:] for place in places] == [("plain", 0), ("blur", 1)] and places[0][0].tolist() == [1, 2, 3, 4]


def test_another_film_is_refused(tmp_path: Path) -> None:
    film, other = tmp_path / "film.mp4", tmp_path / "other.mp4"
    film.write_bytes(b"a" * 3_000_000)
    other.write_bytes(b"a" * 2_999_999 + b"b")
    project = a_project(source=Source.of(film, INFO))
    assert (project.source.name, project.source.size) == ("film.mp4", 3_000_000)
    project.check_source(film)
    with pytest.raises(InputError, match=r"is not the film this project is of \(film\.mp4"):
        project.check_source(other)
    with pytest.raises(InputError, match="cannot be read"):
        project.check_source(tmp_path / "gone.mp4")
    project.check_source(other, force=True)


@pytest.mark.parametrize("size", [0, 5, 1 << 20, (1 << 20) + 7, 3 << 20])
def test_the_fingerprint_is_that_of_the_ends_and_the_size(size: int, tmp_path: Path, rng: np.random.Generator) -> None:
    data = rng.bytes(size)
    (tmp_path / "f").write_bytes(data)
    ends = size.to_bytes(8, "big") + data[: 1 << 20] + data[max(0, size - (1 << 20)) :]
    assert fingerprint(tmp_path / "f") == hashlib.sha256(ends).hexdigest()


def test_names_of_any_bytes_can_be_saved(tmp_path: Path) -> None:
    name = os.fsdecode(b"caf\xe9.mp4")
    track = a_track()
    track.notes = [name]
    rules = Decisions(people={1: Decision(mode="keep", reason=f"matches {name}")})
    a_project(source=Source.of(name, INFO), tracks=[track], settings={"keep": [name]}, decisions=rules).save(tmp_path)
    project = Project.load(tmp_path)
    assert (project.source.name, project.tracks[0].notes) == ("caf?.mp4", ["caf?.mp4"])
    assert project.decisions.people[1].reason == "matches caf?.mp4"


def test_an_address_does_not_give_its_password_away() -> None:
    source = Source.of("rtsp://user:secret@10.0.0.7/hall", INFO)
    assert source.name == "rtsp stream" and source.fingerprint is None
    with pytest.raises(InputError, match="cannot be told apart"):
        a_project(source=source).check_source("film.mp4")


@pytest.fixture
def decide(tmp_path: Path) -> Iterator[Callable[..., Project]]:
    def apply(**tree: Any) -> Project:
        path = tmp_path / "decisions.json"
        path.write_text(json.dumps({"schema": "ficgan-video-decisions/1", **tree}))
        return a_project(analysis="a1").apply_decisions(path)

    yield apply


def test_decisions_of_a_file_are_merged(decide: Callable[..., Project]) -> None:
    before = a_project().decisions
    assert decide().decisions == before
    after = decide(people={"1": "solid"}, tracks={"3": None}, only=None, spans=[], analysis="a1")
    assert after.decisions.people == {1: Decision(mode="solid"), 2: before.people[2]}
    assert (after.decisions.tracks, after.decisions.only, after.decisions.spans) == ({}, None, ())
    assert (after.decisions.default, after.decisions.boxes) == (before.default, before.boxes)


def test_tracks_are_linked_anew(decide: Callable[..., Project]) -> None:
    assert [track.person for track in decide(link={"3": 1, "2": 7}, people={"2": None}, only=[1]).tracks] == [1, 7, 1]
    with pytest.raises(InputError, match="person 2"):  # decided upon, and gone
        decide(link={"3": 1, "2": 1})
    with pytest.raises(InputError, match="track 8"):
        decide(link={"8": 1})


@pytest.mark.parametrize(
    ("tree", "said"),
    [
        ({"analysis": "b2"}, "another project"),
        ({"schema": "ficgan-video-decisions/3"}, "newer"),
        ({"schema": "ficgan-video-project/1"}, "is another kind of file"),
        ({"default": None}, "default"),
        ({"default": "keep"}, "default"),
        ({"peple": {}}, "did you mean 'people'?"),
        ({"people": {"5": "keep"}}, "person 5"),
        ({"tracks": {"1": "kep"}}, "tracks.1"),
        ({"link": {"1": -1}}, "link.1"),
    ],
)
def test_bad_decisions_are_one_sentence(tree: dict[str, Any], said: str, decide: Callable[..., Project]) -> None:
    with pytest.raises(InputError) as error:
        decide(**tree)
    assert said in str(error.value) and "decisions.json" in str(error.value)


@pytest.mark.parametrize("written", [0, 20, None])
def test_a_folder_whose_marking_was_killed_is_marked_again(tmp_path: Path, written: int | None) -> None:
    whole, folder = tmp_path / "whole", tmp_path / "work"
    make_private_folder(whole, "work")
    folder.mkdir()
    (folder / ".ficgan-0123456789abcdef.tmp").write_bytes((whole / MARKER).read_bytes()[:written])
    assert make_private_folder(folder, "work") and kind_of(folder) == "work"
    assert [path.name for path in folder.iterdir()] == [MARKER]


@pytest.mark.parametrize("name", [".ficgan-0123456789abcdef.tmp", "notes.txt"])
def test_a_folder_with_files_of_others_is_not_marked(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"somebody's")
    with pytest.raises(InputError, match="not made by ficgan"):
        make_private_folder(tmp_path, "work")
    assert (tmp_path / name).read_bytes() == b"somebody's"


def test_a_folder_in_use_is_held_for_one(tmp_path: Path) -> None:
    folder = work_folder(tmp_path / "out.mp4")
    assert folder == tmp_path / ".out.mp4.ficgan-work"
    assert make_private_folder(folder, "work") and not make_private_folder(folder, "work")
    assert kind_of(folder) == "work"
    with pytest.raises(InputError, match="for something else"):
        make_private_folder(folder, "project")
    with hold(folder), pytest.raises(InputError, match="in use"), hold(folder):
        pass
    with hold(folder):
        pass
