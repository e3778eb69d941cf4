"""`ficgan pointcloud` as its user meets it: files and trees, records, doubts, wrong input, what is skipped."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from stand_ins import invoke

from ficgan.cli.main import main
from ficgan.pointcloud import CLOUD_ANONYMIZERS, read_cloud, write_cloud

SMALL = ("--method", "smooth-knn", "--points", 1000)


def call(*words: object) -> tuple[int, dict[str, Any], str]:
    """Exit code, what stdout says as JSON, and stderr, which has no traceback."""
    code, said, err = invoke(main, "pointcloud", *words)
    return code, json.loads(said or "{}"), err


def anonymise(inputs: object, out: Path, *more: object) -> tuple[int, dict[str, Any], str]:
    given = more if "--method" in more else ("--method", "uniform-noise", *more)
    return call("anonymise", inputs, "-o", out, "--points", 1000, *given)


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two made heads with landmarks in two folders, and a file that is no scan."""
    folder = tmp_path_factory.mktemp("scans")
    for place, seed in (("a/one.ply", 1), ("b/two.ply", 2)):
        (folder / place).parent.mkdir()
        code, said, _ = call("make-head", "-o", folder / place, "--seed", seed, "--points", 4000)
        assert code == 0 and said["points"] == 4000
    (folder / "a" / "notes.md").write_text("no scan")
    return folder


@pytest.fixture
def scans(tree: Path, tmp_path: Path) -> Path:
    """One scan with its landmarks, to be changed."""
    (tmp_path / "in").mkdir()
    for name in ("one.ply", "one.landmarks.txt"):
        (tmp_path / "in" / name).write_bytes((tree / "a" / name).read_bytes())
    return tmp_path / "in"


def test_a_tree_becomes_a_tree_with_a_record_beside_each_result(tree: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    code, said, err = anonymise(tree, out, "--strength", 20)
    assert code == 0 and "Error" not in err and said["scans"] == 2 and said["failed"] == 0
    names = {str(path.relative_to(out)) for path in out.rglob("*") if path.is_file()}
    assert names == {f"{n}{e}" for n in ("a/one.ply", "b/two.ply") for e in ("", ".json")}
    record = json.loads((out / "a/one.ply.json").read_text())
    assert record["method"] == "uniform-noise" and record["strength"] == 20 and record["frame"] == "landmarks"
    assert record["settings"] == {"b": pytest.approx(0.0128)} and "seed" not in record
    assert len(read_cloud(out / "a/one.ply")) == record["points"]["written"]


@pytest.mark.parametrize(
    "method", ["smooth-knn", "uniform-noise", pytest.param("merge-2-faces", marks=pytest.mark.slow)]
)
def test_what_is_said_of_a_method(tree: Path, tmp_path: Path, method: str) -> None:
    target = ("--target", tree / "b/two.ply") if method == "merge-2-faces" else ()
    words = ("--method", method, "--strength", 25, "--seed", 1, *target)
    code, said, err = anonymise(tree / "a/one.ply", tmp_path / "x.ply", *words)
    assert code == 0, err
    record = json.loads((tmp_path / "x.ply.json").read_text())
    assert bool(record["reversible_by"]) == ("undone" in err) == bool(CLOUD_ANONYMIZERS[method].reversible_by)
    assert ("registration" in said["results"][0]) == bool(target)
    assert 0.3 < record["from_clear_mm"]["median"] < record["from_clear_mm"]["largest"] < 200


@pytest.mark.slow
def test_draws_repeat_with_a_seed_and_scans_of_one_name_share_none(tree: Path, tmp_path: Path) -> None:
    def points(name: str, *more: object) -> np.ndarray:
        code, _, err = anonymise(tree / "a/one.ply", tmp_path / f"{name}.ply", "--strength", 9, *more)
        assert code == 0, err
        return read_cloud(tmp_path / f"{name}.ply").points

    assert np.array_equal(points("a", "--seed", 4), points("b", "--seed", 4))
    assert not np.array_equal(points("c"), points("d"))
    for folder in ("in/p", "in/q"):
        (tmp_path / folder).mkdir(parents=True)
        for name in ("one.ply", "one.landmarks.txt"):
            (tmp_path / folder / name).write_bytes((tree / "a" / name).read_bytes())
    code, _, err = call(
        "anonymise", tmp_path / "in/p", tmp_path / "in/q", "-o", tmp_path / "out", *SMALL, "--strength", 9
    )
    assert code == 2 and "both become" in err
    code, _, err = anonymise(tmp_path / "in", tmp_path / "out", "--strength", 9, "--seed", 5)
    assert code == 0, err
    first, second = (read_cloud(tmp_path / "out" / folder / "one.ply").points[:1000] for folder in "pq")
    assert np.abs(first - second).max() > 1e-3


def test_the_unit_of_the_scan_is_kept_and_a_wrong_one_is_named(tree: Path, tmp_path: Path) -> None:
    metres, marks = read_cloud(tree / "a/one.ply"), tree / "a/one.landmarks.txt"
    write_cloud(tmp_path / "mm.ply", metres, unit="mm")
    code, said, err = anonymise(tmp_path / "mm.ply", tmp_path / "wrong.ply", "--strength", 5)
    assert code == 3 and "--unit mm" in err and err.count("\n") == 1 and not (tmp_path / "wrong.ply").exists()
    assert "error" in said["results"][0]
    words = ("--strength", 5, "--unit", "mm", "--landmarks", marks)
    code, _, err = anonymise(tmp_path / "mm.ply", tmp_path / "right.ply", *words)
    assert code == 0, err
    right = read_cloud(tmp_path / "right.ply", unit="mm").points
    assert np.abs(np.median(right, axis=0) - np.median(metres.points, axis=0)).max() < 0.03


def test_a_bad_scan_among_good_ones_is_said_and_the_others_go_on(scans: Path, tmp_path: Path) -> None:
    (scans / "bad.ply").write_bytes((scans / "one.ply").read_bytes()[:3000])
    code, said, err = anonymise(scans, tmp_path / "out", "--strength", 5)
    assert code == 3 and said["scans"] == 2 and said["failed"] == 1 and "bad.ply" in err
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"one.ply", "one.ply.json"}


def test_what_is_read_is_never_overwritten(tree: Path, scans: Path, tmp_path: Path) -> None:
    marks, scan = scans / "one.landmarks.txt", scans / "one.ply"
    for words in (
        (scan, marks, "--landmarks", marks, "--strength", 5),
        (tree / "b/two.ply", scan, "--strength", 20, "--target", scan, "--method", "merge-2-faces"),
        (scans, scans, "--strength", 1),
    ):
        before = marks.read_bytes(), scan.read_bytes()
        code, _, _ = anonymise(*words, "--overwrite")
        assert code == 2 and (marks.read_bytes(), scan.read_bytes()) == before


def test_nothing_is_overwritten_unasked(tree: Path, tmp_path: Path) -> None:
    (tmp_path / "one.ply.json").write_text("mine")
    code, _, err = anonymise(tree / "a", tmp_path, "--strength", 1)
    assert code == 2 and "exists" in err and (tmp_path / "one.ply.json").read_text() == "mine"
    code, _, err = anonymise(tree / "a", tmp_path, "--strength", 5, "--overwrite")
    assert code == 0 and (tmp_path / "one.ply").exists(), err
    for inputs, out in ((tree, "y.ply"), (tree / "a/one.ply", "y.jpg")):
        code, _, err = anonymise(inputs, tmp_path / out, "--strength", 1)
        assert code == 2 and not (tmp_path / out).exists(), err


@pytest.mark.slow
def test_a_face_that_stays_as_it_is_is_refused_and_one_that_hardly_changes_is_counted(
    scans: Path, tmp_path: Path
) -> None:
    for setting in (
        ("smooth-knn", "--set", "k=1"),
        ("uniform-noise", "--set", "b=0"),
        ("merge-2-faces", "--strength", 20, "--target", scans / "one.ply"),
    ):
        code, said, err = anonymise(scans, tmp_path / setting[0], "--method", *setting)
        assert code == 3 and said["failed"] == 1 and not list((tmp_path / setting[0]).iterdir()), err
    words = ("--method", "uniform-noise", "--set", "b=0.0002", "--skip-existing")
    for skipped in (0, 1):  # as long as it is there, it is no success
        code, said, err = anonymise(scans, tmp_path / "out", *words)
        assert code == 3 and said["hardly_changed"] == 1 and said["failed"] == 0 and said["skipped"] == skipped
    assert json.loads((tmp_path / "out/one.ply.json").read_text())["warnings"]


@pytest.mark.parametrize(
    ("words", "key"),
    [
        (("--method", "tapering"), "--strength"),
        (("--method", "tapering", "--strength", "3", "--set", "r=1"), "--strength"),
        (("--method", "taperin", "--strength", "3"), "tapering"),
        (("--method", "tapering", "--set", "rr=3"), "r="),
        (("--method", "smooth-knn", "--set", "k=0"), "k"),
        (("--method", "merge-2-faces", "--strength", "3"), "--target"),
        (("--method", "tapering", "--strength", "3", "--target", "HEAD"), "--target"),
        (("--method", "uniform-noise", "--set", "b=.01", "--set", "seed=3"), "--seed"),
    ],
)
def test_wrong_options_are_one_sentence(words: tuple[str, ...], key: str, tree: Path, tmp_path: Path) -> None:
    given = [str(tree / "b/two.ply") if word == "HEAD" else word for word in words]
    code, said, err = anonymise(tree / "a/one.ply", tmp_path / "x.ply", *given)
    assert code == 2 and not said and key in err and not (tmp_path / "x.ply").exists()


@pytest.mark.slow
def test_pictures_of_every_kind(tree: Path, tmp_path: Path) -> None:
    for name, words, size in (("front", (), (389, 515)), ("turned", ("--yaw", 30), (389, 515))):
        code, _, err = call("project", tree / "a/one.ply", "-o", tmp_path / f"{name}.png", *words)
        assert code == 0, err
        with Image.open(tmp_path / f"{name}.png") as picture:
            assert picture.size == size and np.asarray(picture).std() > 15
    assert call("project", tree, "-o", tmp_path / "tree")[0] == 0 and (tmp_path / "tree/b/two.png").exists()
