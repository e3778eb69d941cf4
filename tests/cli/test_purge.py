"""`ficgan purge` removes what is ficgan's, and nothing else."""

from __future__ import annotations

import json
import os
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from stand_ins import invoke

from ficgan.cli.review import purge
from ficgan.folders import MARKER, hold, make_private_folder, work_folder
from ficgan.video.project import Project, Source, thumbnail
from ficgan.video.source import VideoInfo


def call(*arguments: Any, code: int = 0) -> tuple[dict[str, Any], str]:
    found, said, err = invoke(purge, *arguments)
    assert found == code, err
    return json.loads(said or "{}"), err


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder with all that the package writes into one."""
    folder = tmp_path / "film-project"
    made = Project(Source.of("film.mp4", VideoInfo(64, 48, Fraction(1, 25), None, 1, None)), np.array([0]), [])
    made.save(folder)
    for after in (False, True):
        path = thumbnail(folder, 1, after)
        path.parent.mkdir(exist_ok=True)
        path.touch()
    (folder / "decisions.json").write_text('{"schema": "ficgan-video-decisions/1"}')
    (folder / ".ficgan-0123456789abcdef.tmp").write_bytes(b"left by a killed process")
    return folder


@pytest.fixture
def work(tmp_path: Path) -> Path:
    folder = work_folder(tmp_path / "out.mp4")
    make_private_folder(folder, "work")
    for name in ("ficgan-part-0001.mkv", "ficgan-state.json", "project.json", "tracks.jsonl"):
        (folder / name).write_bytes(b"x")
    return folder


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


def test_projects_and_work_folders_go_away(project: Path, work: Path) -> None:
    neighbour = project.parent / "film.mp4"
    neighbour.write_bytes(b"the film")
    before = files(project.parent)
    summary, said = call("--dry-run", project, work)
    assert (summary["files"], summary["removed"], summary["dry_run"]) == (12, 0, True)
    assert files(project.parent) == before and "would remove 7 files" in said
    summary, said = call(project, work, project)
    counts = {"folders": 2, "removed": 2, "failed": 0, "files": 7 + 5, "left": [], "dry_run": False}
    assert {name: summary[name] for name in counts} == counts and "removed 7 files" in said
    assert list(project.parent.iterdir()) == [neighbour] and neighbour.read_bytes() == b"the film"


@pytest.mark.parametrize("name", ["project.json.bak", "thumbs/holiday.jpg", ".ficgan-folder2", "deep/project.json"])
def test_files_of_others_stay(project: Path, name: str) -> None:
    (project / name).parent.mkdir(exist_ok=True)
    (project / name).write_bytes(b"mine")
    summary, said = call(project, code=3)
    left = project / name.split("/")[0] if name.startswith("deep") else project / name
    assert summary["left"] == [str(left)] and summary["removed"] == 0 and str(left) in said
    assert (project / name).read_bytes() == b"mine"
    assert files(project) == {name, str(Path(name).parent), MARKER} - {"."}
    (project / name).unlink()
    if name.startswith("deep"):
        (project / "deep").rmdir()
    summary, _ = call(project)  # the marker stayed, so it can be finished
    assert summary["removed"] == 1 and not project.exists()


def test_folders_without_the_marker_are_refused(project: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "project.json").write_text('{"schema": "ficgan-video-project/1"}')
    summary, said = call(other, tmp_path / "nowhere", project / "project.json", project, code=3)
    assert (summary["folders"], summary["failed"], summary["removed"]) == (4, 3, 1)
    assert said.count("Error: ") == 3
    assert f"{other}: was not made by ficgan" in said and "no such folder" in said and "is no folder" in said
    assert files(other) == {"project.json"} and not project.exists()


def test_links_are_not_followed(project: Path, tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "track-0001.jpg").write_bytes(b"mine")
    for path in (project / "thumbs").iterdir():
        path.unlink()
    (project / "thumbs").rmdir()
    (project / "thumbs").symlink_to(precious)
    (project / "decisions.json").unlink()
    (project / "decisions.json").symlink_to(precious / "track-0001.jpg")
    summary, _ = call(project, code=3)
    assert summary["left"] == [str(project / "decisions.json"), str(project / "thumbs")]
    assert (precious / "track-0001.jpg").read_bytes() == b"mine"
    link = tmp_path / "link"
    link.symlink_to(project)
    _, said = call(link, code=3)
    assert "is a link" in said and link.is_symlink()
    (project / MARKER).rename(tmp_path / "marker")
    (project / MARKER).symlink_to(tmp_path / "marker")
    assert "was not made by ficgan" in call(project, code=3)[1]


def test_a_folder_in_use_is_left_alone(work: Path) -> None:
    before = files(work)
    with hold(work):
        _, said = call(work, code=3)
    assert "in use" in said and files(work) == before
    call(work)
    assert not work.exists()


def test_what_cannot_be_removed_is_named(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unlink(path: Path, missing_ok: bool = False) -> None:
        if path.suffix == ".jpg":
            raise PermissionError(13, "Permission denied", str(path))
        os.unlink(path)

    monkeypatch.setattr(Path, "unlink", unlink)
    summary, said = call(project, code=3)
    thumbnails = sorted(str(path) for path in (project / "thumbs").iterdir())
    assert len(thumbnails) == 2 and sorted(summary["left"]) == thumbnails and thumbnails[0] in said
    assert files(project) == {MARKER, "thumbs", "thumbs/track-0001.jpg", "thumbs/track-0001-after.jpg"}
