"""`ficgan pointcloud` as its user meets it: files and trees, records, wrong input, one sentence for every mistake."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from PIL import Image

from ficgan.cli.main import main
from ficgan.pointcloud import Cloud, read_cloud, write_cloud

POINTS = 4000


def call(*words: object) -> tuple[int, str, str]:
    result = CliRunner().invoke(main, ["pointcloud", *map(str, words)])
    return result.exit_code, result.stdout, result.stderr


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two made heads with landmarks in two folders, and a file that is no scan."""
    folder = tmp_path_factory.mktemp("scans")
    for place, seed in (("a/one.ply", 1), ("b/two.ply", 2)):
        (folder / place).parent.mkdir()
        code, out, _ = call("make-head", "-o", folder / place, "--seed", seed, "--points", POINTS)
        assert code == 0 and json.loads(out)["points"] == POINTS
    (folder / "a" / "notes.md").write_text("no scan")
    return folder


def anonymise(inputs: object, out: Path, *more: object, method: str = "uniform-noise") -> tuple[int, str, str]:
    return call("anonymise", inputs, "-o", out, "--method", method, "--points", 1000, *more)


def test_a_tree_becomes_a_tree_with_a_record_beside_each_result(tree: Path, tmp_path: Path) -> None:
    code, out, err = anonymise(tree, tmp_path / "out", "--degree", 20, "--pictures")
    assert code == 0 and "Error" not in err
    said = json.loads(out)
    assert said["scans"] == 2 and said["failed"] == 0
    names = {str(path.relative_to(tmp_path / "out")) for path in (tmp_path / "out").rglob("*") if path.is_file()}
    assert names == {f"{n}{e}" for n in ("a/one.ply", "b/two.ply") for e in ("", ".json", ".png")}
    record = json.loads((tmp_path / "out/a/one.ply.json").read_text())
    assert record["method"] == "uniform-noise" and record["degree"] == 20 and record["frame"] == "landmarks"
    assert record["settings"] == {"b": pytest.approx(0.0128)}
    assert "seed" not in record
    with Image.open(tmp_path / "out/a/one.ply.png") as picture:
        assert picture.size == (389, 515)
    assert len(read_cloud(tmp_path / "out/a/one.ply")) == record["points"]["written"]


def test_draws_repeat_with_a_seed_alone(tree: Path, tmp_path: Path) -> None:
    def points(name: str, *more: object) -> np.ndarray:
        code, _, err = anonymise(tree / "a/one.ply", tmp_path / f"{name}.ply", "--degree", 9, *more)
        assert code == 0, err
        return read_cloud(tmp_path / f"{name}.ply").points

    assert np.array_equal(points("a", "--seed", 4), points("b", "--seed", 4))
    assert not np.array_equal(points("c"), points("d"))


def test_scans_of_one_name_share_no_noise(tree: Path, tmp_path: Path) -> None:
    for folder in ("p", "q"):
        (tmp_path / folder).mkdir()
        for name in ("one.ply", "one.landmarks.txt"):
            (tmp_path / folder / name).write_bytes((tree / "a" / name).read_bytes())
    for words in ((), ("--seed", 5)):
        out = tmp_path / f"out{len(words)}"
        code, _, err = call(
            "anonymise", tmp_path / "p", tmp_path / "q", "-o", out, "--method", "uniform-noise", "--degree", 9, *words
        )
        assert code == 2 and "both become" in err
        code, _, err = anonymise(tmp_path, out, "--degree", 9, *words)
        assert code == 0, err
        first, second = (read_cloud(out / folder / "one.ply").points[:1000] for folder in ("p", "q"))
        assert np.abs(first - second).max() > 1e-3


def test_the_unit_of_the_scan_is_kept_and_a_wrong_one_is_named(tree: Path, tmp_path: Path) -> None:
    metres = read_cloud(tree / "a/one.ply")
    write_cloud(tmp_path / "mm.ply", Cloud(metres.points * 1000, metres.colors))
    code, out, err = anonymise(tmp_path / "mm.ply", tmp_path / "wrong.ply", "--degree", 5)
    assert code == 3 and "--unit mm" in err and err.count("\n") == 1 and not (tmp_path / "wrong.ply").exists()
    assert "error" in json.loads(out)["results"][0]
    marks = tree / "a/one.landmarks.txt"
    code, _, err = anonymise(
        tmp_path / "mm.ply", tmp_path / "right.ply", "--degree", 5, "--unit", "mm", "--landmarks", marks
    )
    assert code == 0, err
    right = read_cloud(tmp_path / "right.ply", unit="mm").points
    assert np.abs(np.median(right, axis=0) - np.median(metres.points, axis=0)).max() < 0.03


def test_merging_needs_a_target_and_says_how_well_it_fits(tree: Path, tmp_path: Path) -> None:
    code, out, err = anonymise(
        tree / "a/one.ply", tmp_path / "m.ply", "--degree", 35, "--target", tree / "b/two.ply", method="merge-2-faces"
    )
    assert code == 0, err
    assert 0 < json.loads(out)["results"][0]["registration"]["fitness"] <= 1
    code, _, err = anonymise(tree / "a/one.ply", tmp_path / "n.ply", "--degree", 35, method="merge-2-faces")
    assert code == 2 and "--target" in err and err.count("\n") == 1


def test_a_bad_scan_among_good_ones_is_said_and_the_others_go_on(tree: Path, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in/bad.ply").write_bytes((tree / "a/one.ply").read_bytes()[:3000])
    for name in ("one.ply", "one.landmarks.txt"):
        (tmp_path / "in" / name).write_bytes((tree / "a" / name).read_bytes())
    code, out, err = anonymise(tmp_path / "in", tmp_path / "out", "--degree", 5)
    said = json.loads(out)
    assert code == 3 and said["scans"] == 2 and said["failed"] == 1 and "bad.ply" in err
    assert (tmp_path / "out/one.ply").exists() and not (tmp_path / "out/bad.ply").exists()
    assert not [path for path in (tmp_path / "out").iterdir() if path.name.startswith(".")]


def test_what_is_read_is_never_overwritten(tree: Path, tmp_path: Path) -> None:
    scan = tmp_path / "scan.ply"
    scan.write_bytes((tree / "a/one.ply").read_bytes())
    marks = tmp_path / "marks.txt"
    marks.write_bytes((tree / "a/one.landmarks.txt").read_bytes())
    before = marks.read_bytes()
    code, _, err = anonymise(scan, marks, "--landmarks", marks, "--degree", 5, "--overwrite")
    assert code == 2 and "input" in err and marks.read_bytes() == before
    code, _, err = anonymise(
        tree / "a/one.ply", scan, "--degree", 20, "--target", scan, "--overwrite", method="merge-2-faces"
    )
    assert code == 2 and "input" in err


def test_a_face_that_stays_as_it_is_is_refused(tree: Path, tmp_path: Path) -> None:
    code, _, err = anonymise(
        tree / "a", tmp_path / "own", "--degree", 20, "--target", tree / "a/one.ply", method="merge-2-faces"
    )
    assert code == 3 and "another target" in err and not list((tmp_path / "own").iterdir())
    for method, setting in (("smooth-knn", "k=1"), ("uniform-noise", "b=0"), ("tapering", "r=0")):
        code, _, err = anonymise(tree / "a", tmp_path / method, "--set", setting, method=method)
        assert code in (2, 3) and not list(tmp_path.glob(f"{method}/*.ply"))


def test_what_can_be_taken_back_is_said(tree: Path, tmp_path: Path) -> None:
    code, _, err = anonymise(tree / "a", tmp_path, "--degree", 20, method="tapering")
    assert code == 0 and "undone" in err
    assert json.loads((tmp_path / "one.ply.json").read_text())["reversible_by"]
    code, out, _ = call("list")
    assert next(line for line in out.splitlines() if line.startswith("tapering")).count("undone") == 1


def test_an_interrupted_tree_goes_on(tree: Path, tmp_path: Path) -> None:
    assert anonymise(tree / "a/one.ply", tmp_path / "a/one.ply", "--degree", 9)[0] == 0
    before = (tmp_path / "a/one.ply").read_bytes()
    code, out, err = anonymise(tree, tmp_path, "--degree", 9, "--skip-existing")
    assert code == 0 and json.loads(out)["scans"] == 1 and "1 skipped" in err
    assert (tmp_path / "a/one.ply").read_bytes() == before and (tmp_path / "b/two.ply").exists()
    (tmp_path / "scan.ply").write_bytes((tree / "a/one.ply").read_bytes())
    (tmp_path / "scan.landmarks.txt").write_bytes((tree / "a/one.landmarks.txt").read_bytes())
    code, out, err = anonymise(tmp_path, tmp_path / "again", "--degree", 9)
    assert code == 0 and json.loads(out)["scans"] == 1 and "earlier run" in err


def test_the_picture_shows_what_was_written(tree: Path, tmp_path: Path) -> None:
    for rest in ("keep", "drop"):
        code, _, err = anonymise(tree / "a", tmp_path / rest, "--degree", 9, "--rest", rest, "--pictures", "--seed", 1)
        assert code == 0, err
    drawn = []
    for rest in ("keep", "drop"):
        with Image.open(tmp_path / rest / "one.ply.png") as picture:
            drawn.append((np.asarray(picture) < 250).any(axis=2).sum())
    assert drawn[1] < 0.95 * drawn[0]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--method", "tapering"), "--degree"),
        (("--method", "tapering", "--degree", "3", "--set", "r=1"), "leave out"),
        (("--method", "taperin", "--degree", "3"), "did you mean tapering"),
        (("--method", "tapering", "--set", "rr=3"), "--set r="),
        (("--method", "tapering", "--set", "r=1", "--set", "q=1"), "no parameter"),
        (("--method", "smooth-knn", "--set", "k=0"), "at least"),
        (("--method", "tapering", "--degree", "3", "--target", "HEAD"), "no use"),
        (("--method", "tapering", "--degree", "36"), "36"),
        (("--method", "uniform-noise", "--set", "b=.01", "--set", "seed=3"), "--seed"),
    ],
)
def test_wrong_options_are_one_sentence(words: tuple[str, ...], said: str, tree: Path, tmp_path: Path) -> None:
    named = {"HEAD": str(tree / "b/two.ply")}
    code, out, err = call(
        "anonymise", tree / "a/one.ply", "-o", tmp_path / "x.ply", "--points", 1000, *(named.get(w, w) for w in words)
    )
    assert code == 2 and not out and said in err and not (tmp_path / "x.ply").exists()


def test_nothing_is_overwritten(tree: Path, tmp_path: Path) -> None:
    code, _, err = anonymise(tree / "a", tree / "a", "--degree", 1)
    assert code == 2 and "input" in err
    (tmp_path / "one.ply.json").write_text("mine")
    code, _, err = anonymise(tree / "a", tmp_path, "--degree", 1)
    assert code == 2 and "exists" in err and (tmp_path / "one.ply.json").read_text() == "mine"
    code, _, err = anonymise(tree / "a", tmp_path, "--degree", 1, "--overwrite")
    assert code == 0 and (tmp_path / "one.ply").exists()
    code, _, err = anonymise(tree, tmp_path / "y.ply", "--degree", 1)
    assert code == 2 and "one file" in err
    code, _, err = anonymise(tree / "a/one.ply", tmp_path / "y.jpg", "--degree", 1)
    assert code == 2 and ".jpg" in err and not (tmp_path / "y.jpg").exists()
    (tmp_path / "mixed").mkdir()
    for name in ("a.ply", "b.xyzrgb"):
        (tmp_path / "mixed" / name).write_bytes(b"")
    code, _, err = anonymise(tmp_path / "mixed", tmp_path / "z", "--degree", 1)
    assert code == 2 and "only read" in err and not (tmp_path / "z").exists()


def test_pictures_of_every_kind(tree: Path, tmp_path: Path) -> None:
    sizes = {}
    for name, words in {
        "front": (),
        "turned": ("--yaw", 30),
        "near": ("--view", "perspective"),
        "row": ("--views",),
    }.items():
        code, _, err = call("project", tree / "a/one.ply", "-o", tmp_path / f"{name}.png", *words)
        assert code == 0, err
        with Image.open(tmp_path / f"{name}.png") as picture:
            sizes[name] = picture.size
            assert np.asarray(picture).std() > 20
    assert sizes["front"] == (389, 515) and sizes["row"] == (11 * 389, 515)
    code, _, err = call("project", tree, "-o", tmp_path / "tree")
    assert code == 0 and (tmp_path / "tree/a/one.png").exists() and (tmp_path / "tree/b/two.png").exists()
    code, _, err = call("project", tree / "a/one.ply", "-o", tmp_path / "no.png", "--view", "perspective", "--views")
    assert code == 2 and "leave out" in err


def test_comparison_in_three_dimensions(tree: Path, tmp_path: Path) -> None:
    anonymise(tree / "a/one.ply", tmp_path / "x.ply", "--degree", 25, "--seed", 1)
    code, out, err = call("compare", tree / "a/one.ply", tmp_path / "x.ply")
    assert code == 0, err
    assert 0.5 < json.loads(out)["chamfer_mm"] < 20


def test_the_methods_are_listed_with_their_degrees() -> None:
    code, out, _ = call("list")
    rows = dict(line.split("\t") for line in out.splitlines())
    assert code == 0 and len(rows) == 6 and "k 8 to 280" in rows["smooth-knn"]
