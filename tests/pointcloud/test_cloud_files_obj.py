"""OBJ files: every form of faces, colours from textures and materials, and what is said where those are missing."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from ficgan.errors import InputError
from ficgan.pointcloud.files import read_cloud
from ficgan.pointcloud.files.obj import bilinear

SQUARE = "v 0 0 0\nv .2 0 0\nv .2 .2 0\nv 0 .2 0\n"
PLACES = "vt 0 0\nvt 1 0\nvt 1 1\nvt 0 1\n"
TURNED = "vn 0 0 2\nvn 0 1 0\nvn 1 0 0\nvn 0 0 1\n"

pytestmark = pytest.mark.filterwarnings("ignore:.*not kept. a point cloud has none")


def made(folder: Path, text: str, library: str | None = None, picture: np.ndarray | None = None) -> Path:
    (folder / "head.obj").write_text(text)
    if library is not None:
        (folder / "head.mtl").write_text(library)
    if picture is not None:
        Image.fromarray(picture).save(folder / "skin.png")
    return folder / "head.obj"


def quadrants() -> np.ndarray:
    """Red and green above, blue and white below."""
    return np.array([[[255, 0, 0], [0, 255, 0]], [[0, 0, 255], [255, 255, 255]]], np.uint8).repeat(8, 0).repeat(8, 1)


AT_CORNERS = [[0, 0, 255], [255, 255, 255], [0, 255, 0], [255, 0, 0]]  # v goes up


@pytest.mark.parametrize(
    "faces",
    [
        "f 1/1 2/2 3/3 4/4",
        "f 1/1/1 2/2/2 3/3/3\nf 3/3/3 4/4/4 1/1/1",
        "f -4/-4 -3/-3 -2/-2 -1/-1",
        "f 1/1 2/2 \\\n3/3 4/4",
        "f\t1/1/4 2/2/ 3/3 -1/4",
        "s off\ng a\nf 4/4 1/1 2/2\nf 2/2 3/3 4/4",
    ],
)
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_texture_by_every_form_of_a_face(tmp_path: Path, faces: str, newline: str) -> None:
    text = f"mtllib head.mtl\n{SQUARE}{PLACES}{TURNED}usemtl skin\n{faces}\n"
    path = made(tmp_path, text.replace("\n", newline), "newmtl skin\nKd 0 0 0\nmap_Kd skin.png\n", quadrants())
    notes: list[str] = []
    np.testing.assert_array_equal(read_cloud(path, notes=notes).colors, AT_CORNERS)
    assert len(notes) == 1 and "not kept: a point cloud has none" in notes[0]


def test_negative_indices_count_from_where_the_face_stands(tmp_path: Path) -> None:
    second = SQUARE.replace("v 0", "v .1")
    text = f"{SQUARE}vn 1 0 0\nf -4//-1 -3//-1 -2//-1 -1//-1\n{second}vn 0 1 0\nf -4//-1 -3//-1 -2//-1 -1//-1\n"
    normals = read_cloud(made(tmp_path, text)).normals
    np.testing.assert_array_equal(normals, [[1, 0, 0]] * 4 + [[0, 1, 0]] * 4)


def test_normals(tmp_path: Path) -> None:
    expected = [[0, 0, 1], [0, 1, 0], [1, 0, 0], [0, 0, 1]]
    np.testing.assert_array_equal(read_cloud(made(tmp_path, SQUARE + TURNED)).normals, expected)
    faces = "f 4//1 3//2 2//3 1//4\n"
    np.testing.assert_array_equal(read_cloud(made(tmp_path, SQUARE + TURNED + faces)).normals, expected[::-1])
    assert read_cloud(made(tmp_path, SQUARE + TURNED + "f 1//1 2//2 3\n")).normals is None  # vertex 4 has none


def test_vertices_that_no_face_names_are_kept(tmp_path: Path) -> None:
    assert len(read_cloud(made(tmp_path, SQUARE + "f 1 2 3\n"))) == 4


def test_plain_colours_of_several_materials(tmp_path: Path) -> None:
    library = "# two\nnewmtl red\nKa 1 1 1\nKd 1 0 0.2\n\nnewmtl grey 1\nKd .5\n"
    text = f"mtllib head.mtl\n{SQUARE}usemtl red\nf 1 2 3\nusemtl grey 1\nf 1 3 4\n"
    colors = read_cloud(made(tmp_path, text, library)).colors
    np.testing.assert_array_equal(colors, [[255, 0, 51]] * 3 + [[128] * 3])


def test_own_colours_come_first(tmp_path: Path) -> None:
    text = "mtllib none.mtl\n" + "".join(f"v {x} 0 0 1 0.2 0\n" for x in (0, 0.1, 0.2)) + "usemtl a\nf 1 2 3\n"
    notes: list[str] = []
    np.testing.assert_array_equal(read_cloud(made(tmp_path, text), notes=notes).colors, [[255, 51, 0]] * 3)
    assert len(notes) == 1 and "not kept: a point cloud has none" in notes[0]


@pytest.mark.parametrize(
    ("library", "picture", "note"),
    [
        (None, False, "material library 'head.mtl' is not there"),
        ("newmtl skin\nmap_Kd skin.png\n", False, "texture 'skin.png' is not there"),
        ("newmtl skin\nmap_Kd head.mtl\n", False, "texture cannot be read"),
        ("newmtl other\nKd 1 1 1\n", False, "material 'skin' is in no library"),
    ],
)
def test_missing_parts_leave_coordinates_and_a_note(
    tmp_path: Path, library: str | None, picture: bool, note: str
) -> None:
    path = made(tmp_path, f"mtllib head.mtl\n{SQUARE}{PLACES}usemtl skin\nf 1/1 2/2 3/3 4/4\n", library)
    notes: list[str] = []
    cloud = read_cloud(path, notes=notes)
    assert len(cloud) == 4 and cloud.colors is None
    assert len(notes) == 2 and note in notes[0] and "colours were left out" in notes[0] and "not kept" in notes[1]
    with pytest.warns(UserWarning, match=r"head\.obj: its "):
        read_cloud(path)


@pytest.mark.parametrize(
    "said",
    [
        "skin.png",
        "C:\\scans\\skin.png",
        "/elsewhere/skin.png",
        "./skin.png",
        "textures/skin.png",
        "-clamp on skin.png",
        "-o 0 0 0 -s 1 1 1 skin.png",
    ],
)
def test_textures_are_found_beside_the_file(tmp_path: Path, said: str) -> None:
    text = f"mtllib head.mtl\n{SQUARE}{PLACES}usemtl skin\nf 1/1 2/2 3/3 4/4\n"
    path = made(tmp_path, text, f"newmtl skin\nmap_Kd {said}\n", quadrants())
    np.testing.assert_array_equal(read_cloud(path).colors, AT_CORNERS)


def test_names_with_blanks(tmp_path: Path) -> None:
    text = f"mtllib my head.mtl\n{SQUARE}{PLACES}usemtl my skin\nf 1/1 2/2 3/3 4/4\n"
    (tmp_path / "my head.mtl").write_text("newmtl my skin\nmap_Kd 1 my skin.png\n")
    Image.fromarray(quadrants()).save(tmp_path / "1 my skin.png")
    np.testing.assert_array_equal(read_cloud(made(tmp_path, text)).colors, AT_CORNERS)


def test_vertices_without_colour_take_the_nearest(tmp_path: Path) -> None:
    text = f"mtllib head.mtl\n{SQUARE}v .21 0 0\n{PLACES}usemtl skin\nf 1/1 2/2 3/3 4/4\n"
    notes: list[str] = []
    path = made(tmp_path, text, "newmtl skin\nmap_Kd skin.png\n", quadrants())
    np.testing.assert_array_equal(read_cloud(path, notes=notes).colors[4], AT_CORNERS[1])
    assert "1 of 5 vertices have no colour" in notes[0]


def test_bilinear_against_scipy_and_a_slow_loop(rng: np.random.Generator) -> None:
    ndimage = pytest.importorskip("scipy.ndimage")
    picture = rng.integers(0, 256, (7, 11, 3)).astype(np.uint8)
    places = np.concatenate([rng.random((200, 2)), [[0, 0], [1, 1], [0, 1], [1, 0], [0.5, 0.5]]])
    u, v = places.T
    at = np.stack([(1 - v) * 7 - 0.5, u * 11 - 0.5])
    expected = [ndimage.map_coordinates(picture[..., c].astype(float), at, order=1, mode="nearest") for c in range(3)]
    got = bilinear(picture, places)
    assert np.abs(got - np.stack(expected, axis=1)).max() <= 0.5 + 1e-9
    np.testing.assert_array_equal(bilinear(picture, places[:200] + np.array([3, -2])), got[:200])  # it repeats
    np.testing.assert_array_equal(bilinear(picture[:1, :1], places), np.tile(picture[0, 0], (205, 1)))


def test_trimesh_finds_the_same_colours(tmp_path: Path) -> None:
    """In the middle of pixels, where nearest (trimesh) and bilinear agree."""
    trimesh = pytest.importorskip("trimesh")
    picture = np.random.default_rng(1).integers(0, 256, (8, 8, 3)).astype(np.uint8)
    centres = "".join(f"vt {(i + 0.5) / 8} {(j + 0.5) / 8}\n" for i, j in ((1, 2), (5, 0), (7, 7), (0, 6)))
    text = f"mtllib head.mtl\n{SQUARE}{centres}usemtl skin\nf 1/1 2/2 3/3\nf 1/1 3/3 4/4\n"
    path = made(tmp_path, text, "newmtl skin\nmap_Kd skin.png\n", picture)
    mesh = trimesh.load(path, process=False, maintain_order=True)
    by_place = {tuple(p): c for p, c in zip(mesh.vertices, mesh.visual.to_color().vertex_colors[:, :3], strict=True)}
    cloud = read_cloud(path)
    assert cloud.colors is not None
    for point, color in zip(cloud.points, cloud.colors, strict=True):
        np.testing.assert_allclose(by_place[tuple(point)], color, atol=1)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "empty"),
        ("# nothing\n", "holds no points"),
        ("v 0 0\n", "3 coordinates"),
        ("v 0 0 0\nv\n", "line 2 has 0 columns instead of 3"),
        ("v 0 0 0\nv 1 x 0\n", "line 2 has 'x' where a number should be"),
        ("v 0 0 0\n\nv 1 0\n", "line 3 has 2 columns instead of 3"),
        (SQUARE + TURNED + "f 1//1 2//2 9//3\n", "face 1 names vertex 9, and there are 4"),
        (SQUARE + TURNED + "f 1//1 2//2 -5//3\n", "face 1 names vertex -5"),
        (SQUARE + TURNED + "f 0//1 2//2 3//3\n", "names vertex 0"),
        (SQUARE + TURNED + "f 1//1 2//2 3//7\n", "names normal 7"),
        (SQUARE + TURNED + "f 1//1 2//2 3//x\n", "a face is '1//1 2//2 3//x'"),
        (SQUARE + TURNED + "f 1//1 2//2 3/-\n", "a face is '1//1 2//2 3/-'"),
        (SQUARE + "vn 1 2\n", "normals have 2 numbers"),
        ("v -inf 0 0\nv 0 inf 0\nv 0 0 0\n", "2 of 3 points have .* not finite, the first is point 0"),
    ],
)
def test_damage_is_named(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        read_cloud(made(tmp_path, text))
    assert "head.obj: " in str(caught.value) and "\n" not in str(caught.value)
