"""`ficgan align`, with a detector that finds what the test painted, and once with a real one."""

from __future__ import annotations

import csv
import json
import tarfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result
from media import write_tar
from PIL import Image

import ficgan.faces
from ficgan.cli.train import align
from ficgan.data import alignment_name, check_alignment, open_faces
from ficgan.errors import InputError, UsageError
from ficgan.faces import Alignment, Face, similarity, transform_points

CYAN, MAGENTA = (0, 255, 255), (255, 0, 255)


def photo(faces: list[tuple[float, float, float, float]], side: int = 200) -> Image.Image:
    """Grey, with a coloured spot at each landmark of faces given as (x, y, scale, degrees)."""
    image = np.full((side, side, 3), 128, np.uint8)
    y, x = np.mgrid[:side, :side]
    for face in faces:
        points = landmarks(*face)
        radius = max(1.5, face[2] * 0.04)
        for i, (u, v) in enumerate(points):
            image[(x - u) ** 2 + (y - v) ** 2 <= radius**2] = CYAN if i < 2 else MAGENTA
    return Image.fromarray(image)


def landmarks(x: float, y: float, scale: float, degrees: float) -> np.ndarray:
    points = Alignment(eye_distance=0.4, eye_y=0.4).points(100) / 100 - 0.5
    a = scale * np.exp(1j * np.radians(degrees))
    turned = (points[:, 0] + 1j * points[:, 1]) * a + (x + 1j * y)
    return np.stack([turned.real, turned.imag], 1)


class Painted:
    """Knows the faces of exactly the photos it painted."""

    name = "painted"

    def __init__(self) -> None:
        self.known: dict[bytes, list[tuple[float, float, float, float]]] = {}

    def add(self, path: Path, faces: list[tuple[float, float, float, float]]) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        image = photo(faces)
        image.save(path)
        self.known[np.asarray(image).tobytes()] = faces
        return path

    def detect(self, image: np.ndarray) -> list[Face]:
        found = []
        for rank, face in enumerate(self.known[image.tobytes()]):
            points = landmarks(*face).astype(np.float32)
            box = np.array([*points.min(0) - face[2] / 3, *points.max(0) + face[2] / 3], np.float32)
            found.append(Face(box, points, 0.9 - rank / 10))
        return found


@pytest.fixture
def painted(monkeypatch: pytest.MonkeyPatch) -> Iterator[Painted]:
    detector = Painted()
    monkeypatch.setattr(ficgan.faces, "get_detector", lambda name, **_: detector)
    yield detector


def run(*arguments: object) -> Result:
    return CliRunner().invoke(align, [str(a) for a in arguments])


def table(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_landmarks_land_on_the_template(tmp_path: Path, painted: Painted) -> None:
    painted.add(tmp_path / "in/b/turned.png", [(100, 90, 80, 25)])
    painted.add(tmp_path / "in/a.png", [(80, 100, 60, -10)])
    result = run(tmp_path / "in", "-o", tmp_path / "set.tar", "--resolution", 128, "--format", "png")
    assert result.exit_code == 0, result.output
    data = open_faces([tmp_path / "set.tar"], resolution=128)
    assert data.names == ("a.png", "b/turned.png")
    target = Alignment().points(128)
    for i, face in enumerate([(80, 100, 60, -10), (100, 90, 80, 25)]):
        image = data.load(i).permute(1, 2, 0).numpy().astype(int)
        cyan = np.argwhere((image[..., 0] < 60) & (image[..., 1] > 190))[:, ::-1]
        left = cyan[cyan[:, 0] < 64].mean(0)
        where = transform_points(similarity(landmarks(*face), target), landmarks(*face))[0]
        assert np.abs(left - where).max() < 1.0
    done = json.loads(result.stdout)
    assert done["photos"] == done["written"] == 2 and done["failed"] == 0 and done["alignment"]["eye_distance"] == 0.37
    rows = table(tmp_path / "set.csv")
    assert [row["file"] for row in rows] == ["a.png", "b/turned.png"]
    assert rows[0]["source"].endswith("in/a.png") and float(rows[0]["score"]) == 0.9
    assert len(rows[0]["box"].split()) == 4


def test_largest_or_all_and_least_size(tmp_path: Path, painted: Painted) -> None:
    faces = [(50.0, 50.0, 30.0, 0.0), (130.0, 120.0, 70.0, 0.0), (160.0, 30.0, 8.0, 0.0)]
    source = painted.add(tmp_path / "group.png", faces)
    largest = json.loads(run(source, "-o", tmp_path / "one", "--resolution", 32).stdout)
    assert (largest["written"], largest["too_small"]) == (1, 2)
    every = run(source, "-o", tmp_path / "all", "--faces", "all", "--min-size", 0, "--resolution", 32)
    assert json.loads(every.stdout)["written"] == 3
    made = {path.name for path in (tmp_path / "all").iterdir()}
    assert made == {"faces.csv", "group.webp", "group_2.webp", "group_3.webp"}
    assert [row["face"] for row in table(tmp_path / "all/faces.csv")] == ["0", "1", "2"]


def test_photos_without_faces_and_damaged_ones_are_counted(tmp_path: Path, painted: Painted) -> None:
    painted.add(tmp_path / "in/good.png", [(100, 100, 80, 0)])
    empty = painted.add(tmp_path / "in/empty.png", [])
    (tmp_path / "in/cut.png").write_bytes(empty.read_bytes()[:150])
    result = run(tmp_path / "in", "-o", tmp_path / "out.tar")
    assert result.exit_code == 3 and "cut.png" in result.stderr and "Traceback" not in result.stderr
    done = json.loads(result.stdout)
    assert (done["photos"], done["written"], done["without_face"], done["failed"]) == (3, 1, 1, 1)
    assert open_faces([tmp_path / "out.tar"], resolution=256).names == ("good.webp",)


def test_archives_are_read_and_the_same_bytes_come_out(tmp_path: Path, painted: Painted) -> None:
    source = painted.add(tmp_path / "x.png", [(100, 100, 80, 0)])
    archive = write_tar(tmp_path / "in.tar", {"p/x.png": source.read_bytes(), "q/x.png": source.read_bytes()})
    for name in ("one", "two"):
        assert run(archive, "-o", tmp_path / f"{name}.tar", "--resolution", 64).exit_code == 0
    assert (tmp_path / "one.tar").read_bytes() == (tmp_path / "two.tar").read_bytes()
    with tarfile.open(tmp_path / "one.tar") as made:
        assert made.getnames() == ["p/x.webp", "q/x.webp"]


def test_names_never_collide(tmp_path: Path, painted: Painted) -> None:
    for name in ("in/x.png", "in/x.bmp", "other/x.png"):
        painted.add(tmp_path / name, [(100, 100, 80, 0)])
    result = run(tmp_path / "in", tmp_path / "other", "-o", tmp_path / "out", "--resolution", 16)
    assert json.loads(result.stdout)["written"] == len(open_faces([tmp_path / "out"], resolution=16)) == 3


def test_nothing_is_overwritten_and_nothing_partial_left(tmp_path: Path, painted: Painted) -> None:
    source = painted.add(tmp_path / "x.png", [(100, 100, 80, 0)])
    empty = painted.add(tmp_path / "y.png", [])
    (tmp_path / "there.tar").write_text("mine")
    (tmp_path / "beside.csv").write_text("mine")
    (tmp_path / "full").mkdir()
    (tmp_path / "full/file").write_text("mine")
    before = sorted(str(p) for p in tmp_path.rglob("*"))
    for out in ("there.tar", "beside.tar", "full"):
        result = run(source, "-o", tmp_path / out)
        assert result.exit_code == 3 and "exists already" in result.stderr
    result = run(empty, "-o", tmp_path / "new.tar")
    assert result.exit_code == 3 and "No face was found" in result.stderr
    assert sorted(str(p) for p in tmp_path.rglob("*")) == before
    assert (tmp_path / "there.tar").read_text() == (tmp_path / "beside.csv").read_text() == "mine"


def test_the_set_says_how_it_is_aligned(tmp_path: Path, painted: Painted) -> None:
    source = painted.add(tmp_path / "x.png", [(100, 100, 80, 0)])
    assert run(source, "-o", tmp_path / "a.tar", "--resolution", 16, "--alignment", "ffhq").exit_code == 0
    assert run(source, "-o", tmp_path / "b", "--resolution", 16, "--alignment", "template:0.4").exit_code == 0
    ffhq, template = Alignment("ffhq"), Alignment(eye_distance=0.4)
    first, second = (open_faces([tmp_path / name], resolution=16) for name in ("a.tar", "b"))
    assert (first.alignment, second.alignment) == ("ffhq", "template(0.4,0.31)")
    assert alignment_name(Alignment("canonical")) == alignment_name(Alignment()), "its crops are the same"
    labelled = open_faces([tmp_path / "a.tar"], resolution=16, labels=tmp_path / "a.csv")
    assert labelled.alignment == "ffhq" and labelled.labels is not None and not labelled.labels.attribute_names
    check_alignment(first, ffhq)
    for faces, other in ((first, template), (second, ffhq), (second, Alignment())):
        with pytest.raises(UsageError, match=r"aligned as .* needs"):
            check_alignment(faces, other)
    with pytest.raises(InputError, match="different ways"):
        open_faces([tmp_path / "a.tar", tmp_path / "b"], resolution=16)
    (tmp_path / "a.csv").unlink()
    check_alignment(open_faces([tmp_path / "a.tar"], resolution=16), template)  # says nothing


def test_person_folders_become_people(tmp_path: Path, painted: Painted) -> None:
    for name in ("ann/1", "ann/2", "bob/1", "stray"):
        painted.add(tmp_path / f"in/{name}.png", [(100, 100, 80, 0)])
    assert run(tmp_path / "in", "-o", tmp_path / "s.tar", "--resolution", 16, "--person-folders").exit_code == 0
    data = open_faces([tmp_path / "s.tar"], resolution=16, labels=tmp_path / "s.csv")
    assert data.names == ("ann/1.webp", "ann/2.webp", "bob/1.webp", "stray.webp")
    assert data.labels is not None and data.labels.people is not None
    assert data.labels.people.tolist() == [0, 0, 1, -1]
