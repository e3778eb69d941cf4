"""Damaged files: each is an InputError of one sentence that begins with the file's name, quickly, in little memory."""

from __future__ import annotations

import io
import os
import struct
import time
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ficgan.errors import InputError
from ficgan.pointcloud.cloud import Cloud
from ficgan.pointcloud.files import FORMATS, MAX_POINTS, read_cloud, write_cloud
from ficgan.pointcloud.files.pcd import unpack

XYZ = "".join(f"property float {axis}\n" for axis in "xyz")


def small(suffix: str, binary: bool = True) -> bytes:
    points = np.random.default_rng(1).normal(size=(4, 3)) * 0.1
    colors = (np.arange(12) * 20).reshape(4, 3).astype(np.uint8)
    cloud = (
        Cloud(points) if suffix == ".npy" else Cloud(points, colors, points / np.linalg.norm(points, axis=1)[:, None])
    )
    form, file = FORMATS[suffix], io.BytesIO()
    assert form.write is not None
    form.write(file, cloud, binary)
    return file.getvalue()


def packed_pcd() -> bytes:
    """A compressed file made of new bytes and one copy."""
    head = b"VERSION 0.7\nFIELDS x y z\nSIZE 4 4 4\nTYPE F F F\nWIDTH 4\nHEIGHT 1\nDATA binary_compressed\n"
    body = bytes([7]) + struct.pack("<2f", 0.1, 0.2) + bytes([7 << 5, 40 - 2 - 7, 7])
    return head + struct.pack("<II", len(body), 48) + body


MESH = (
    "ply\nformat ascii 1.0\nelement face 1\nproperty list uchar int i\nelement vertex 2\nproperty list uchar int l\n"
    f"{XYZ}property uchar red\nproperty uchar green\nproperty uchar blue\nend_header\n"
    "3 0 1 1\n2 8 9 .1 .2 .3 1 2 3\n0 .4 .5 .6 4 5 6\n"
).encode()
LISTS = b"".join(
    [
        MESH[: MESH.index(b"end_header\n") + 11].replace(b"ascii", b"binary_big_endian"),
        struct.pack(">B3i", 3, 0, 1, 1),
        struct.pack(">B2i3f3B", 2, 8, 9, 0.1, 0.2, 0.3, 1, 2, 3),
        struct.pack(">B3f3B", 0, 0.1, 0.2, 0.3, 1, 2, 3),
    ]
)
FACES = b"mtllib a.mtl\nv 0 0 0\nv .1 0 0\nv 0 .2 0\nvt 0 0\nvn 0 0 1\nusemtl a\nf 1/1/1 2//1 -1\n"
SAMPLES = {
    **{f"{suffix[1:]}": (suffix, small(suffix)) for suffix, form in FORMATS.items() if form.write},
    "ply-text": (".ply", small(".ply", False)),
    "pcd-text": (".pcd", small(".pcd", False)),
    "pcd-packed": (".pcd", packed_pcd()),
    "ply-mesh": (".ply", MESH),
    "ply-lists": (".ply", LISTS),
    "obj-faces": (".obj", FACES),
}


def read_bytes(suffix: str, data: bytes) -> int:
    """Points that were read within two seconds; 0 where the data were refused as they should be."""
    notes: list[str] = []
    start = time.process_time()
    try:
        return len(FORMATS[suffix].read(data, Path(f"any{suffix}"), notes).cloud(1.0, notes))
    except InputError as error:
        assert "\n" not in str(error) and len(str(error)) < 400
        return 0
    finally:
        assert time.process_time() - start < 2


@pytest.mark.parametrize("name", SAMPLES)
def test_samples_are_whole(name: str) -> None:
    assert read_bytes(*SAMPLES[name]) > 0


@pytest.mark.parametrize("name", SAMPLES)
def test_cut_at_every_byte(name: str) -> None:
    suffix, data = SAMPLES[name]
    whole = read_bytes(suffix, data)
    counted = suffix in (".ply", ".pcd", ".npy", ".npz")
    for end in range(len(data)):
        got = read_bytes(suffix, data[:end])
        assert got <= whole
        if counted and suffix != ".npz" and data[:end].count(b"\n") < data.count(b"\n") and not data.isascii():
            assert got == 0 or end > data.rindex(b"\n")


@pytest.mark.slow
@pytest.mark.parametrize("name", SAMPLES)
@settings(max_examples=25)
@given(data=st.data())
def test_bytes_changed_at_random(name: str, data: st.DataObject) -> None:
    suffix, whole = SAMPLES[name]
    changed = bytearray(whole)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(whole) - 1))
        kind = data.draw(st.sampled_from(["set", "insert", "drop"]))
        new = data.draw(st.sampled_from([*b"0123456789-+.eE \n\r\t/#;,_\0\xff"]) | st.integers(0, 255))
        changed[at : at + (kind != "insert")] = b"" if kind == "drop" else bytes([new])
        at = min(at, len(changed) - 1)
    read_bytes(suffix, bytes(changed))


@pytest.mark.slow
@pytest.mark.parametrize("suffix", FORMATS)
@settings(max_examples=15)
@given(data=st.binary(max_size=200), text=st.text("0123456789.-+eE \n#/;,xyznarf_", max_size=80))
def test_anything_at_all(suffix: str, data: bytes, text: str) -> None:
    read_bytes(suffix, data)
    read_bytes(suffix, text.encode())
    read_bytes(suffix, b"ply\nformat ascii 1.0\n" + data)


def ply(*lines: str, body: bytes = b"") -> bytes:
    return "\n".join(["ply", *lines, ""]).encode() + body


LITTLE = "format binary_little_endian 1.0"
THREE = ("property float x", "property float y", "property float z")


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("a.ply", b"", r"it is empty \(0 bytes\)"),
        ("a.ply", b"solid", "does not begin with the line 'ply'"),
        ("a.ply", ply(LITTLE, "element vertex 3"), "header has no end"),
        ("a.ply", ply("element vertex 3", *THREE, "end_header"), "no line 'format'"),
        ("a.ply", ply("format binary 2.0", "end_header"), "its format is 'binary 2.0'"),
        (
            "a.ply",
            ply(LITTLE, "element vertex 3", "property half x", "end_header"),
            "'x' is of the unknown kind 'half'",
        ),
        ("a.ply", ply(LITTLE, "element vertex 3", "property list float int x", "end_header"), "no kind of integers"),
        ("a.ply", ply(LITTLE, "element vertex 3", *THREE[:2], "end_header"), "no property z"),
        ("a.ply", ply(LITTLE, "element face 3", "end_header"), "no element vertex"),
        ("a.ply", ply(LITTLE, "element vertex many", "end_header"), "'many', which is no count"),
        ("a.ply", ply(LITTLE, "elephant vertex 3", "end_header"), "line 3 of its header is 'elephant vertex 3'"),
        ("a.ply", ply(LITTLE, "element vertex 0", *THREE, "end_header"), "holds no points"),
        (
            "a.ply",
            ply(LITTLE, f"element vertex {10**15}", *THREE, "end_header"),
            "1,000,000,000,000,000 points, and 50,000,000",
        ),
        (
            "a.ply",
            ply(LITTLE, "element vertex 45000", *THREE, "end_header", body=bytes(44120 * 12 + 5)),
            "says 45,000 points and it holds 44,120",
        ),
        (
            "a.ply",
            ply("format ascii 1.0", "element vertex 3", *THREE, "end_header", body=b"0 0 0\n1 1 1\n"),
            "says 3 points and it holds 2",
        ),
        (
            "a.ply",
            ply("format ascii 1.0", "element vertex 2", *THREE, "end_header", body=b"0 0 0\n1 1\n"),
            "line 9 has 2 columns instead of 3",
        ),
        (
            "a.ply",
            ply("format ascii 1.0", "element vertex 2", *THREE, "end_header", body=b"0 0 0\n1 1 1_0\n"),
            "line 9 has '1_0' where",
        ),
        (
            "a.ply",
            ply(LITTLE, "element vertex 2", *THREE, "end_header", body=struct.pack("<6f", 0, 0, 0, np.inf, 0, 0)),
            "1 of 2 points .* not finite, the first is point 1",
        ),
        (
            "a.ply",
            ply(LITTLE, "element vertex 9", *THREE, "property list char int l", "end_header", body=bytes(12) + b"\xff"),
            "has -1 entries",
        ),
        ("a.xyz", b"0 0 0\n1 inf 1\n", "1 of 2 points"),
        ("a.xyz", b"# x\n0 0 0\n\n1 1 abc\n", "line 4 has 'abc' where"),
        ("a.xyz", b"0 0 0\n1 1 1 1\n", "line 2 has 4 columns instead of 3"),
        ("a.xyz", b"1 2\n3 4\n", "it has 2 columns"),
        ("a.xyz", b"\0\1\2", "is not text"),
        ("a.xyz", b"# nothing\n", "holds no points"),
        ("a.xyz", b"x y z r g b\n0 0 0 300 0 0\n", "colours go from 0 to 300"),
        ("a.pts", b"45000\n0 0 0\n1 1 1\n", "says 45,000 points and it holds 2"),
        ("a.pcd", b"VERSION .7\n", "header has no end"),
        ("a.pcd", b"FIELDS x y z\nSIZE 4 4 4\nTYPE F F Q\nPOINTS 1\nDATA ascii\n", "'z' is of the unknown kind 'Q4'"),
        ("a.pcd", b"FIELDS x y z\nSIZE 4 4\nTYPE F F F\nPOINTS 1\nDATA ascii\n", "names 3 FIELDS and gives 2 of SIZE"),
        ("a.pcd", b"FIELDS x y\nSIZE 4 4\nTYPE F F\nPOINTS 1\nDATA ascii\n", "no field z"),
        (
            "a.pcd",
            b"FIELDS x y z\nSIZE 4 4 4\nTYPE F F F\nWIDTH 100000000\nHEIGHT 10000000\nDATA binary\n",
            "50,000,000 is the limit",
        ),
        ("a.pcd", b"FIELDS x y z\nSIZE 4 4 4\nTYPE F F F\nPOINTS 1\nDATA ascii\nnan nan nan\n", "all are NaN"),
        ("a.pcd", b"FIELDS x y z\nSIZE 4 4 4\nTYPE F F F\nPOINTS 1\nDATA ascii\ninf 0 0\n", "not finite"),
        ("a.pcd", packed_pcd()[:-1], "truncated or damaged"),
        ("a.npy", small(".npy")[:-30], "says 4 points and it holds 2"),
        ("a.npy", b"\x93NUMPY\x01\x00", "damaged or truncated"),
        ("a.npz", small(".npz")[:-30], "damaged or truncated"),
    ],
)
def test_damage_is_named(tmp_path: Path, name: str, data: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(InputError, match=message) as caught:
        read_cloud(tmp_path / name)
    assert str(caught.value).startswith(f"{tmp_path / name}: ") and "\n" not in str(caught.value)


def test_what_is_no_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "folder.ply").mkdir()
    os.mkfifo(tmp_path / "pipe.ply")
    for name, message in (("none.ply", "no such file"), ("folder.ply", "a folder"), ("pipe.ply", "no regular file")):
        with pytest.raises(InputError, match=rf"{name}: .*{message}"):
            read_cloud(tmp_path / name)
    with pytest.raises(InputError, match=r"suffix '\.plx' is of no known point cloud; did you mean \.ply\?"):
        read_cloud(tmp_path / "a.plx")
    with pytest.raises(InputError, match=r"suffix '\.jpeg' .*there are \.ply, \.obj"):
        read_cloud(tmp_path / "a.jpeg")


@pytest.mark.parametrize("kind", ["object", "complex128", "U3"])
def test_arrays_of_other_things(tmp_path: Path, kind: str) -> None:
    np.save(tmp_path / "a.npy", np.zeros((2, 3)).astype(kind), allow_pickle=True)
    with pytest.raises(InputError, match="numbers are needed"):
        read_cloud(tmp_path / "a.npy")


def test_arrays_of_other_shapes_and_names(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", points=np.zeros((2, 3)), colors=np.zeros((3, 3)))
    np.savez(tmp_path / "b.npz", xyz=np.zeros((2, 3)))
    np.save(tmp_path / "c.npy", np.zeros((3, 2)))
    for name, message in (
        ("a.npz", "colors are"),
        ("b.npz", "no array 'points'"),
        ("c.npy", "is .3, 2.; .N,3. is needed"),
    ):
        with pytest.raises(InputError, match=message):
            read_cloud(tmp_path / name)


@pytest.mark.parametrize("count", [MAX_POINTS + 1, 10**15])
def test_a_header_that_boasts_allocates_nothing(tmp_path: Path, count: int) -> None:
    boasts = {
        "a.ply": ply(LITTLE, f"element vertex {count}", *THREE, "end_header"),
        "b.ply": ply(LITTLE, f"element face {count}", "element vertex 1", *THREE, "end_header"),
        "c.ply": ply(
            LITTLE, f"element face {count}", "property list char int l", "element vertex 1", *THREE, "end_header"
        ),
        "a.pcd": f"FIELDS x y z\nSIZE 4 4 4\nTYPE F F F\nPOINTS {count}\nDATA binary\n".encode(),
        "a.pts": f"{count}\n0 0 0\n1 1 1\n".encode(),
        "a.npy": small(".npy").replace(b"(4, 3), }" + b" " * 15, f"({count}, 3), }}".encode().ljust(24)),
    }
    for name, data in boasts.items():
        (tmp_path / name).write_bytes(data)
        start = time.process_time()
        tracemalloc.start()
        with pytest.raises(InputError):
            read_cloud(tmp_path / name)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 5e6 and time.process_time() - start < 2, name


def test_compressed_data_cannot_boast() -> None:
    with pytest.raises(InputError, match="cannot hold"):
        unpack(b"\0" * 100, 1 << 40)
    with pytest.raises(InputError, match="from before its beginning"):
        unpack(bytes([0, 65, 1 << 5, 9]), 10)


def test_the_file_is_as_it_was_after_reading(tmp_path: Path) -> None:
    write_cloud(tmp_path / "a.npz", Cloud(np.random.default_rng(0).normal(size=(50, 3)) * 0.1))
    before = (tmp_path / "a.npz").read_bytes()
    read_cloud(tmp_path / "a.npz")
    assert (tmp_path / "a.npz").read_bytes() == before
