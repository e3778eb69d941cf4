"""Units and sizes of point clouds, what is written and what is lost, and how fast they are read."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path

import files_world
import numpy as np
import pytest

from ficgan.errors import InputError, UsageError
from ficgan.pointcloud.cloud import Cloud
from ficgan.pointcloud.files import FORMATS, check_size, check_writable, read_cloud, write_cloud

WRITABLE = [suffix for suffix, form in FORMATS.items() if form.write]

pytestmark = pytest.mark.filterwarnings("ignore:.*not kept. a point cloud has none")


@pytest.mark.parametrize(("unit", "scale"), [("m", 1), ("cm", 100), ("mm", 1000)])
def test_units(tmp_path: Path, unit: str, scale: float) -> None:
    cloud = files_world.head()
    write_cloud(tmp_path / "a.ply", Cloud(cloud.points * scale, cloud.colors))
    np.testing.assert_allclose(read_cloud(tmp_path / "a.ply", unit=unit).points, cloud.points, atol=1e-6)
    if unit != "m":
        with pytest.raises(InputError, match=rf"a\.ply: the cloud is .* m across; .* give --unit {unit}$"):
            read_cloud(tmp_path / "a.ply")
    else:
        with pytest.raises(InputError, match=r"is 0\.2.. mm across, read in mm; a face is some 0.2 m: give --unit m$"):
            read_cloud(tmp_path / "a.ply", unit="mm")


@pytest.mark.parametrize(
    ("extent", "message"),
    [
        (2e-4, "0.2 mm across.*bring its coordinates to metres"),
        (200, "200 m across.*--unit mm"),
        (20, "20 m.*--unit cm"),
        (9.8, "9.8 m across.*none of m, cm, mm makes it one"),  # a head in inches, of which cm would make 10 cm
        (1750, "1.75e.03 m across.*none of"),  # a whole person in mm; only whoever has the file knows
    ],
)
def test_a_size_that_no_face_has_is_named(extent: float, message: str) -> None:
    points = np.linspace(0, extent / 0.98, 101)[:, None] * [1.0, 0.5, 0.2]
    with pytest.raises(InputError, match=rf"^here: the cloud is {message}"):
        check_size(Cloud(points), "here")


def test_a_few_strays_do_not_decide_the_size() -> None:
    cloud = files_world.head(1000)
    check_size(Cloud(np.concatenate([cloud.points, [[50.0, 0, 0]] * 5])))
    with pytest.raises(InputError, match="cloud has all its points at one place"):
        check_size(Cloud(np.ones((9, 3))))
    check_size(Cloud(cloud.points * 8))  # a person from head to foot: the face is looked for


def test_nothing_is_overwritten_unasked_and_nothing_half_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_cloud(tmp_path / "a.ply", files_world.head(5))
    before = (tmp_path / "a.ply").read_bytes()
    with pytest.raises(InputError, match=r"a\.ply: exists already"):
        write_cloud(tmp_path / "a.ply", files_world.head(6))
    from ficgan.pointcloud.files import ply

    def breaks(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(ply, "coordinates_kind", breaks)
    with pytest.raises(KeyboardInterrupt):
        write_cloud(tmp_path / "a.ply", files_world.head(6), overwrite=True)
    assert [one.name for one in tmp_path.iterdir()] == ["a.ply"] and (tmp_path / "a.ply").read_bytes() == before
    monkeypatch.undo()
    write_cloud(tmp_path / "a.ply", files_world.head(6), overwrite=True)
    assert len(read_cloud(tmp_path / "a.ply")) == 6


def test_what_cannot_be_written_is_said(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"did you mean \.ply\?"):
        write_cloud(tmp_path / "a.plyy", files_world.head(5))
    with pytest.raises(InputError, match="without points"):
        write_cloud(tmp_path / "a.ply", Cloud(np.zeros((0, 3))))
    with pytest.raises(UsageError, match="unit is 'inch'; use one of m, cm, mm"):
        read_cloud(tmp_path / "a.ply", unit="inch")
    assert not any(tmp_path.iterdir())


def test_reading_needs_neither_torch_nor_cv2_nor_trimesh() -> None:
    heavy = ["torch", "cv2", "trimesh"]
    code = f"import sys, ficgan.pointcloud.files; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.slow
def test_speed_against_numpy_in_the_same_run(tmp_path: Path) -> None:
    """Text in a few times the time in which NumPy converts it; binary in less than that, on a busy machine too."""
    import time

    cloud = files_world.head(45_000, colors=False, normals=False)
    write_cloud(tmp_path / "a.xyz", cloud)
    write_cloud(tmp_path / "a.ply", cloud)
    text = (tmp_path / "a.xyz").read_bytes()

    def best(work: object) -> float:
        times = []
        for _ in range(3):
            start = time.process_time()
            work()  # type: ignore[operator]
            times.append(time.process_time() - start)
        return min(times)

    oracle = best(lambda: np.loadtxt(io.BytesIO(text)))
    assert best(lambda: read_cloud(tmp_path / "a.xyz")) < 5 * oracle
    assert best(lambda: read_cloud(tmp_path / "a.ply")) < oracle


@pytest.mark.parametrize("unit", ["m", "cm", "mm"])
@pytest.mark.parametrize("suffix", sorted(suffix for suffix, form in FORMATS.items() if form.write))
def test_a_unit_there_and_back(tmp_path: Path, suffix: str, unit: str) -> None:
    cloud = files_world.head(200, colors=suffix != ".npy", normals=suffix != ".npy")
    write_cloud(tmp_path / f"a{suffix}", cloud, unit=unit)
    files_world.assert_same(read_cloud(tmp_path / f"a{suffix}", unit=unit, check=False), cloud)


def test_the_unit_is_in_the_comment_and_does_not_make_numbers_longer(tmp_path: Path) -> None:
    cloud = Cloud(files_world.head(50).points.astype(np.float32))
    for unit, name in (("m", b"metres"), ("cm", b"centimetres"), ("mm", b"millimetres")):
        for suffix, start in ((".ply", b"\ncomment "), (".obj", b"# ")):
            write_cloud(tmp_path / f"{unit}{suffix}", cloud, unit=unit)
            data = (tmp_path / f"{unit}{suffix}").read_bytes()
            assert start + name + b"\n" in data and b"double" not in data
    far = Cloud(np.array([[20.0 + 1e-6, 0, 0]] * 3))
    write_cloud(tmp_path / "far.ply", far, unit="mm")
    assert b"property double x" in (tmp_path / "far.ply").read_bytes()
    with pytest.raises(UsageError, match="unit is 'inch'"):
        write_cloud(tmp_path / "a.ply", cloud, unit="inch")


@pytest.mark.parametrize(
    ("name", "has", "says"),
    [
        ("a.xyzrgb", {}, r"a\.xyzrgb: \.xyzrgb files are only read; write one of \.ply, "),
        ("a.XYZN", {}, r"\.xyzn files are only read"),
        ("a.plx", {}, "of no known point cloud; did you mean .ply"),
        ("a.npy", {"colors": True}, "holds points only, and the cloud has colours;"),
        ("a.npy", {"colors": True, "normals": True}, "colours and normals"),
    ],
)
def test_what_cannot_be_written_is_known_before(name: str, has: dict[str, bool], says: str) -> None:
    check_writable("a.npy")
    check_writable("a.npz", colors=True, normals=True)
    with pytest.raises(UsageError, match=says):
        check_writable(name, **has)
