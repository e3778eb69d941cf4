"""Projects: what is saved is what is loaded, nobody else can read it, and damage is named."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.numpy import save

from ficgan.errors import FicganError, InputError
from ficgan.folders import MARKER, kind_of, make_private_folder
from ficgan.video.decisions import BoxRule, Decision, Decisions, Region, SpanRule
from ficgan.video.project import Project, Source
from ficgan.video.source import VideoInfo
from ficgan.video.tracks import BoxKey, Track, TrackSet

INFO = VideoInfo(640, 360, Fraction(1, 15360), Fraction(30000, 1001), 100, 3.3, notes=("a subtitle was left out",))


def a_track(id: int = 1, first: int = 0, count: int = 10, person: int = 1) -> Track:
    steps = np.arange(count)[:, None]
    boxes = np.array([10, 20, 60, 90]) + steps * 1.2
    landmarks = np.array([[20, 40], [50, 40], [35, 60], [25, 75], [45, 75]]) + steps[..., None]
    return Track(
        id,
        first,
        boxes.astype(np.float32),
        landmarks.astype(np.float32),
        np.linspace(0, 1, count).round(3).astype(np.float32),
        (np.arange(count) % 3).astype(np.uint8),
        person,
        ("a note",),
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
            Region(
                first=0,
                last=50,
                mode="blur",
                keys=(BoxKey(frame=0, box=(9, 9, 20, 20)), BoxKey(frame=50, box=(19, 9, 40, 20))),
            ),
        ),
    }
    return Project(**{**parts, **changes})


def same(first: Project, second: Project) -> bool:
    def parts(project: Project) -> list[Any]:
        plain = [getattr(project, name) for name in ("source", "settings", "cuts", "decisions", "regions", "analysis")]
        tracks = [(one.id, one.first, one.person, one.notes) for one in project.tracks]
        columns = [(one.boxes, one.landmarks, one.scores, one.origin) for one in project.tracks]
        arrays = [project.pts, *(array for arrays in columns for array in arrays)]
        return [*plain, tracks, [(array.dtype, array.tolist()) for array in arrays]]

    return parts(first) == parts(second)


def test_what_is_saved_is_what_is_loaded(tmp_path: Path) -> None:
    project = a_project()
    project.save(tmp_path / "p")
    assert same(Project.load(tmp_path / "p"), project)
    assert same(Project.load(tmp_path / "p" / "project.json"), project)
    assert np.array_equal(project.times[:3], [0, 512 / 15360, 1024 / 15360]) and project.rate == 30


def test_only_a_folder_of_ours_is_taken_and_a_killed_marking_is_made_up_for(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(InputError, match="was not made by ficgan"):
        a_project().save(tmp_path)
    assert {p.name for p in tmp_path.iterdir()} == {"thesis.txt"}
    half = tmp_path / "half"
    half.mkdir()
    (half / ".ficgan-0123456789abcdef.tmp").write_bytes(b"{")
    assert make_private_folder(half, "work") and kind_of(half) == "work"


def test_nobody_else_can_read_it_whatever_the_umask(tmp_path: Path) -> None:
    for mask in (0o000, 0o777):
        folder = tmp_path / f"p{mask}"
        before = os.umask(mask)
        try:
            a_project().save(folder)
        finally:
            os.umask(before)
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert {p.name for p in folder.iterdir()} == {MARKER, "project.json", "tracks.safetensors"}
        assert {stat.S_IMODE(p.stat().st_mode) for p in folder.iterdir()} == {0o600}


def test_a_project_is_not_overwritten_unasked(tmp_path: Path) -> None:
    first, second = a_project(), a_project(cuts=())
    first.save(tmp_path / "p")
    with pytest.raises(InputError, match="holds a project already"):
        second.save(tmp_path / "p")
    assert same(Project.load(tmp_path / "p"), first)
    second.save(tmp_path / "p", overwrite=True)
    assert same(Project.load(tmp_path / "p"), second)


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
    moving = {
        "first": 4,
        "last": 20,
        "keys": [{"frame": 10, "box": [0, 0, 10, 10]}, {"frame": 20, "box": [10, 0, 30, 10]}],
    }
    region = Region.model_validate(moving)
    assert region.box_at(3) is None and region.box_at(5).tolist() == [0, 0, 10, 10]  # type: ignore[union-attr]
    assert region.box_at(15).tolist() == [5, 0, 20, 10]  # type: ignore[union-attr]
    project.save_document(tmp_path)
    assert same(Project.load(tmp_path), project)


@settings(max_examples=15)
@given(name=st.sampled_from(["project.json", "tracks.safetensors"]), data=st.data())
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


def test_another_film_is_refused(tmp_path: Path) -> None:
    film, other = tmp_path / "film.mp4", tmp_path / "other.mp4"
    film.write_bytes(b"a" * 3_000_000)
    other.write_bytes(b"a" * 2_999_999 + b"b")
    project = a_project(source=Source.of(film, INFO))
    assert (project.source.name, project.source.size) == ("film.mp4", 3_000_000)
    project.check_source(film)
    with pytest.raises(InputError, match=r"is not the film this project is of \(film\.mp4"):
        project.check_source(other)
    assert Source.of("rtsp://user:secret@10.0.0.7/hall", INFO).name == "rtsp stream"


PROJECT_MISTAKES: list[tuple[Callable[[dict[str, Any]], Any], str]] = [
    (lambda t: t.update(schema="ficgan-video-project/2"), "newer"),
    (lambda t: t.update(schema="something"), "schema"),
    (lambda t: t.pop("source"), "source"),
    (lambda t: t["source"].update(time_base="1/0"), "source.time_base"),
    (lambda t: t["tracks"][0].update(persn=1), "tracks.0.persn"),
    (lambda t: t["tracks"][0].update(id=2), "tracks.safetensors"),
    (lambda t: t.update(cuts=[5, 3]), "cuts"),
    (lambda t: t.update(analysis="other"), "tracks.safetensors"),
    (lambda t: t["decisions"].update(people={"9": "blur"}), "person 9"),
    (lambda t: t["decisions"].update(tracks={"4": "solid"}), "track 4"),
    (lambda t: t["decisions"].update(spans=[{"mode": "keep", "from": 1, "track": 8}]), "track 8"),
    (lambda t: t["regions"][0].update(mode="keep"), "decisions.boxes"),
    (lambda t: t["regions"][0].update(mode="ficgan"), "landmarks"),
    (lambda t: t["regions"][0].update(last=100), "frame 100"),
    (lambda t: t["regions"][0].pop("box"), "regions.0"),
]
ROW_MISTAKES: list[tuple[Callable[[dict[str, Any], dict[str, str]], Any], str]] = [
    (lambda parts, head: head.update(schema="ficgan-video-tracks/3"), "newer"),
    (lambda parts, head: parts.pop("pts"), "damaged"),
    (lambda parts, head: parts.update(pts=parts["pts"][:5]), "frame 9"),
    (lambda parts, head: parts.update(rows=parts["rows"][:, 1:]), "damaged"),
    (lambda parts, head: parts.update(rows=parts["rows"][1:]), "damaged"),
    (lambda parts, head: parts["rows"].__setitem__((0, 0), 10_000_001), "damaged"),
    (lambda parts, head: parts["rows"].__setitem__((3, 0), 5000), "damaged"),
    (lambda parts, head: parts["origin"].__setitem__(0, 4), "damaged"),
    (lambda parts, head: parts["tracks"].__setitem__((0, 1), -1), "damaged"),
]


@pytest.mark.parametrize(("change", "said"), PROJECT_MISTAKES)
def test_a_mistake_in_the_project_is_one_sentence(
    change: Callable[[dict[str, Any]], Any], said: str, tmp_path: Path
) -> None:
    a_project().save(tmp_path)
    edit(tmp_path, change)
    with pytest.raises(InputError) as error:
        Project.load(tmp_path)
    message = str(error.value)
    assert said in message and message.startswith(str(tmp_path / "project.json")) and "\n" not in message


@pytest.mark.parametrize(("change", "said"), ROW_MISTAKES)
def test_damaged_rows_are_one_sentence(change: Callable[..., Any], said: str, tmp_path: Path) -> None:
    a_project().save(tmp_path)
    path = tmp_path / "tracks.safetensors"
    with safe_open(str(path), framework="np") as file:
        head, parts = dict(file.metadata()), {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    change(parts, head)
    path.write_bytes(save({name: np.ascontiguousarray(part) for name, part in parts.items()}, metadata=head))
    with pytest.raises(InputError) as error:
        Project.load(tmp_path)
    assert said in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    "tree",
    [
        {"analysis": "b2"},
        {"schema": "ficgan-video-decisions/3"},
        {"default": None},
        {"peple": {}},
        {"people": {"5": "keep"}},
        {"tracks": {"1": "kep"}},
        {"link": {"1": -1}},
    ],
)
def test_bad_decisions_are_one_sentence(tree: dict[str, Any], decide: Callable[..., Project]) -> None:
    with pytest.raises(InputError, match=r"decisions\.json: [^\n]+$"):
        decide(**tree)


@pytest.fixture
def decide(tmp_path: Path) -> Callable[..., Project]:
    def apply(**tree: Any) -> Project:
        path = tmp_path / "decisions.json"
        path.write_text(json.dumps({"schema": "ficgan-video-decisions/1", **tree}))
        return a_project(analysis="a1").apply_decisions(path)

    return apply


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


def test_boxes_that_a_person_sets_move_a_track_evenly_and_come_back(tmp_path: Path) -> None:
    before = a_project(analysis="a1")
    track = before.tracks[0]
    first, last = track.first, track.last
    old, shift = track.boxes[0], np.array([8, 4, 10, 6], np.float32)
    keys = [{"frame": first, "box": old.tolist()}, {"frame": last, "box": (track.boxes[-1] + shift).tolist()}]
    before.save(tmp_path / "film")
    before.changed({"keys": {str(track.id): keys}}, "the test").save_document(tmp_path / "film")
    after = Project.load(tmp_path / "film")
    share = (np.arange(len(track)) / max(1, len(track) - 1))[:, None]
    placed = TrackSet(after.tracks).tracks[0]
    assert np.allclose(placed.boxes, track.boxes + share * shift, atol=0.11)
    inside = (track.landmarks - track.boxes[:, None, :2]) / np.ptp(track.boxes.reshape(-1, 2, 2), axis=1)[:, None]
    moved = placed.boxes
    place = moved[:, None, :2] + inside * (moved[:, None, 2:] - moved[:, None, :2])
    assert np.allclose(placed.landmarks, place, atol=0.2)
    back = after.changed({"keys": {str(track.id): None}}, "the test")
    assert np.array_equal(back.tracks[0].boxes, track.boxes) and not back.tracks[0].keys
    export = after.decisions_tree()
    again = before.changed({"keys": export["keys"]}, "the test")
    assert np.array_equal(TrackSet(again.tracks).tracks[0].boxes, moved)
