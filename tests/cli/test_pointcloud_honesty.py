"""What `ficgan pointcloud` says of its results: what it skipped, left out, doubts, and what its records hold."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from ficgan.cli.main import main
from ficgan.pointcloud import Cloud, read_cloud, write_cloud
from ficgan.pointcloud.heads import EXPRESSIONS

SMALL = ("--method", "smooth-knn", "--points", 1000)


def call(*words: object) -> tuple[int, dict[str, Any], str]:
    result = CliRunner().invoke(main, ["pointcloud", *map(str, words)])
    return result.exit_code, json.loads(result.stdout or "{}"), result.stderr


@pytest.fixture(scope="module")
def heads(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("heads")
    for name in ("a", "b"):
        assert call("make-head", "-o", folder / f"{name}.ply", "--seed", ord(name), "--points", 4000)[0] == 0
    return folder


@pytest.fixture
def scans(heads: Path, tmp_path: Path) -> Path:
    """One scan with its landmarks, to be changed."""
    (tmp_path / "in").mkdir()
    for name in ("a.ply", "a.landmarks.txt"):
        (tmp_path / "in" / name).write_bytes((heads / name).read_bytes())
    return tmp_path / "in"


def test_results_are_skipped_only_where_they_would_be_made_again(scans: Path, heads: Path, tmp_path: Path) -> None:
    def run(*words: object) -> tuple[int, dict[str, Any], str]:
        return call("anonymise", scans, "-o", tmp_path / "out", *words, "--skip-existing")

    seeded = ("--method", "uniform-noise", "--points", 1000, "--degree", 20, "--seed", 3)
    assert run(*seeded)[0] == 0
    code, said, err = run(*seeded)
    assert code == 0 and said["skipped"] == 1 and said["scans"] == 0 and "1 skipped" in err
    for other, what in (
        ((*seeded[:5], 21, *seeded[6:]), "degree or setting"),
        ((*seeded[:-1], 4), "seed"),
        (seeded[:-2], "seed"),
        ((*seeded, "--rest", "drop"), "rest"),
        (("--method", "tapering", *seeded[2:]), "method"),
        ((*seeded[:3], 900, *seeded[4:]), "number of points"),
    ):
        code, said, err = run(*other)
        assert code == 3 and said["failed"] == 1 and said["skipped"] == 0 and f"another {what}" in err, what
    code, said, _ = run(*seeded[:4], "--set", "b=0.0128", "--seed", 3)  # the same, otherwise said
    assert code == 0 and said["skipped"] == 1


def test_a_changed_source_or_target_is_no_result_of_this_run(scans: Path, heads: Path, tmp_path: Path) -> None:
    target = tmp_path / "target.ply"
    target.write_bytes((heads / "b.ply").read_bytes())
    (tmp_path / "target.landmarks.txt").write_bytes((heads / "b.landmarks.txt").read_bytes())
    words = (
        "anonymise",
        scans,
        "-o",
        tmp_path / "out",
        "--method",
        "merge-2-faces",
        "--degree",
        20,
        "--points",
        1000,
        "--target",
        target,
        "--skip-existing",
    )
    assert call(*words)[0] == 0 and call(*words)[1]["skipped"] == 1
    head = read_cloud(target)
    write_cloud(target, Cloud(head.points + 1e-5, head.colors), overwrite=True)
    code, _, err = call(*words)
    assert code == 3 and "another target;" in err
    head = read_cloud(scans / "a.ply")
    write_cloud(scans / "a.ply", Cloud(head.points + 1e-5, head.colors), overwrite=True)
    code, _, err = call(*words)
    assert code == 3 and "another source and another target;" in err
    before = (tmp_path / "out/a.ply").read_bytes()
    code, said, _ = call(*words, "--overwrite")
    assert code == 0 and said["scans"] == 1 and (tmp_path / "out/a.ply").read_bytes() != before
    assert call(*words, "--overwrite")[1]["skipped"] == 1


def test_a_file_without_a_record_is_not_taken_for_a_result(scans: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    for name in ("a.ply", "a.ply.json"):
        (tmp_path / "out" / name).write_text("{}")
    code, _, err = call("anonymise", scans, "-o", tmp_path / "out", *SMALL, "--degree", 5, "--skip-existing")
    assert code == 3 and "without a record" in err


def test_a_result_that_is_hardly_changed_is_counted_and_recorded(scans: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    code, said, err = call("anonymise", scans, "-o", out, *SMALL, "--set", "k=2")
    assert code == 0, err
    words = ("anonymise", scans, "-o", out / "2", "--method", "uniform-noise", "--set", "b=0.0002", "--points", 1000)
    code, said, err = call(*words)
    record = json.loads((out / "2/a.ply.json").read_text())
    assert code == 3 and said["hardly_changed"] == 1 and said["failed"] == said["doubtful"] == 0 and "hardly" in err
    assert record["hardly_changed"] and record["warnings"] == said["results"][0]["warnings"] != []
    code, said, _ = call(*words, "--skip-existing")  # as long as it is there, it is no success
    assert code == 3 and said["skipped"] == said["hardly_changed"] == 1


def test_links_to_one_scan_are_counted_and_said(scans: Path, tmp_path: Path) -> None:
    for name in ("b.ply", "c.ply"):
        (scans / name).symlink_to("a.ply")
    code, said, err = call("anonymise", scans, "-o", tmp_path / "out", *SMALL, "--degree", 5)
    assert code == 0 and said["scans"] == 1 and said["same_file"] == 2
    assert "2 left out: the same file" in err and "b.ply" in err
    code, said, err = call("project", scans / "a.ply", scans / "a.ply", "-o", tmp_path / "pictures")
    assert code == 0 and said["scans"] == 1 and said["same_file"] == 0 and "same file" not in err


def test_points_without_coordinates_are_told_and_recorded(scans: Path, tmp_path: Path) -> None:
    points = read_cloud(scans / "a.ply").points
    np.savetxt(scans / "a.xyz", np.where(np.arange(4000)[:, None] % 8 == 0, np.nan, points))
    (scans / "a.ply").unlink()
    code, said, err = call("anonymise", scans, "-o", tmp_path / "out", *SMALL, "--degree", 5)
    note = "500 of 4,000 points have no coordinates (NaN) and were left out"
    assert code == 0 and note in err and said["results"][0]["notes"] == [note]
    assert json.loads((tmp_path / "out/a.xyz.json").read_text())["notes"] == [note]


def test_a_scan_of_the_wrong_scale_is_counted(tmp_path: Path) -> None:
    head = tmp_path / "head.ply"
    assert call("make-head", "-o", head, "--points", 12_000)[0] == 0
    for scale, count in ((1.5, "doubtful"), (2.0, "failed")):
        write_cloud(tmp_path / f"{scale}.ply", Cloud(scale * read_cloud(head).points))
        code, said, err = call("anonymise", tmp_path / f"{scale}.ply", "-o", tmp_path / "out", *SMALL, "--degree", 5)
        assert code == 3 and said[count] == 1 and "times as large" in err, err
        assert (tmp_path / f"out/{scale}.ply").exists() == (count == "doubtful")


def test_comparison_uses_the_record_and_sees_exchanged_scans(scans: Path, tmp_path: Path) -> None:
    out = tmp_path / "a.ply"
    words = ("anonymise", scans / "a.ply", "-o", out, "--method", "tapering", "--degree", 12, "--points", 1000)
    assert call(*words, "--rest", "keep")[0] == 0
    (tmp_path / "a.landmarks.txt").write_bytes((scans / "a.landmarks.txt").read_bytes())
    code, said, err = call("compare", scans / "a.ply", out)
    assert code == 0 and said["points"]["anonymised"] == 1000 and said["points"]["outside"] > 30
    assert not said["warnings"] and not err
    code, said, err = call("compare", out, scans / "a.ply")
    assert code == 0 and len(said["warnings"]) == 2 and "by the record" in err and "exchanged" in err


def test_help_names_what_there_is() -> None:
    said = " ".join(CliRunner().invoke(main, ["pointcloud", "make-head", "--help"]).stdout.split())
    for name in EXPRESSIONS:
        assert name in said
    assert "smile" not in said
    said = " ".join(CliRunner().invoke(main, ["pointcloud", "anonymise", "--help"]).stdout.split())
    assert "FILE.json" in said and "NAME.json" not in said and "consents" in said
    assert "consents" in call("anonymise", __file__, "-o", "x.ply", "--method", "merge-2-faces", "--degree", "3")[2]
