"""Sets of faces: archives, order, labels, damage; and the sampler that resumes."""

from __future__ import annotations

import io
import struct
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from media import encoded, write_folder, write_tar, write_zip
from PIL import Image

from ficgan.data import Labels, ResumableSampler, open_faces
from ficgan.errors import InputError, UsageError


@pytest.fixture
def members(rng: np.random.Generator) -> dict[str, bytes]:
    return {f"{person}/{i}.png": encoded(rng, (20 + i, 16)) for person in ("bo", "al") for i in range(3)}


def test_every_container_gives_the_same_set(tmp_path: Path, members: dict[str, bytes]) -> None:
    sources = [
        write_folder(tmp_path / "folder", members),
        write_tar(tmp_path / "a.tar", dict(reversed(members.items()))),
        write_zip(tmp_path / "a.zip", members),
        write_zip(tmp_path / "b.zip", members, zipfile.ZIP_STORED),
    ]
    sets = [open_faces([source], resolution=8) for source in sources]
    assert sets[0].names == ("al/0.png", "al/1.png", "al/2.png", "bo/0.png", "bo/1.png", "bo/2.png")
    for other in sets[1:]:
        assert other.names == sets[0].names
        assert torch.equal(other.resident(), sets[0].resident())
    assert sets[0].fingerprint == sets[1].fingerprint == sets[3].fingerprint


def test_fingerprint_changes_with_names_and_sizes(tmp_path: Path, members: dict[str, bytes]) -> None:
    base = open_faces([write_tar(tmp_path / "a.tar", members)], resolution=8).fingerprint
    first, *rest = members.items()
    for k, changed in enumerate(([("x.png", first[1])], [(first[0], first[1] + b"\0")], [])):
        packed = write_tar(tmp_path / f"{k}.tar", dict([*changed, *rest]))
        assert open_faces([packed], resolution=8).fingerprint != base


@pytest.mark.parametrize("size", [(20, 16), (16, 21), (8, 8), (5, 9)])
def test_decoding_is_centre_crop_and_antialiased_resize(
    tmp_path: Path, rng: np.random.Generator, size: tuple[int, int]
) -> None:
    data = encoded(rng, size)
    image = Image.open(io.BytesIO(data)).convert("RGB")
    side = min(size)
    left, top = (size[0] - side) // 2, (size[1] - side) // 2
    expected = image.crop((left, top, left + side, top + side)).resize((8, 8), Image.Resampling.LANCZOS)
    got = open_faces([write_folder(tmp_path, {"a.png": data})], resolution=8).load(0)
    assert got.dtype == torch.uint8 and got.is_contiguous()
    assert np.abs(got.permute(1, 2, 0).numpy().astype(int) - np.asarray(expected)).max() <= 1


def test_modes_and_orientation(tmp_path: Path) -> None:
    deep = (np.arange(64, dtype=np.uint16).reshape(8, 8) * 1000).astype(np.uint16)
    Image.fromarray(deep).save(tmp_path / "deep.png")
    tall = np.zeros((8, 8, 3), np.uint8)
    tall[0] = 255
    exif = Image.Exif()
    exif[0x0112] = 6  # shown turned by 90° clockwise: the first row becomes the last column
    Image.fromarray(tall).save(tmp_path / "turned.png", exif=exif)
    Image.fromarray(tall).convert("CMYK").save(tmp_path / "ink.tif")
    data = open_faces([tmp_path], resolution=8)
    images = dict(zip(data.names, data.resident(), strict=True))
    assert np.array_equal(images["deep.png"][0].numpy(), (deep >> 8).astype(np.uint8))
    assert (images["turned.png"][:, :, -1] == 255).all() and (images["turned.png"][:, :, :-1] == 0).all()
    assert (images["ink.tif"][:, 0] >= 250).all()


def test_names_shared_by_two_sources_are_told_apart(tmp_path: Path, rng: np.random.Generator) -> None:
    one = write_tar(tmp_path / "one.tar", {"x.png": encoded(rng), "y.png": encoded(rng)})
    two = write_tar(tmp_path / "two.tar", {"x.png": encoded(rng)})
    assert open_faces([one, two], resolution=8).names == ("one.tar/x.png", "two.tar/x.png", "y.png")
    with pytest.raises(InputError, match="same name"):
        open_faces([one, one], resolution=8)


@pytest.mark.parametrize("pack", [write_tar, write_zip])
def test_a_damaged_image_is_named_with_its_archive(tmp_path: Path, members: dict[str, bytes], pack) -> None:  # type: ignore[no-untyped-def]
    bad = members | {"bo/1.png": members["bo/1.png"][:200]}
    path = pack(tmp_path / "set.pack", bad)
    data = open_faces([path], resolution=8)
    with pytest.raises(InputError, match=r"bo/1\.png in .*set\.pack"):
        data.load(data.names.index("bo/1.png"))
    with pytest.raises(InputError, match=r"bo/1\.png"):
        data.resident()


def test_a_zip_whose_bytes_rot_fails_its_checksum(tmp_path: Path, rng: np.random.Generator) -> None:
    path = write_zip(tmp_path / "a.zip", {"a.png": encoded(rng)}, zipfile.ZIP_STORED)
    raw = bytearray(path.read_bytes())
    name_length, extra_length = struct.unpack_from("<HH", raw, 26)
    raw[30 + name_length + extra_length + 60] ^= 0xFF
    path.write_bytes(raw)
    with pytest.raises(InputError, match=r"a\.png"):
        open_faces([path], resolution=8).load(0)


def test_paths_that_cannot_be_used(tmp_path: Path, members: dict[str, bytes]) -> None:
    (tmp_path / "none").mkdir()
    (tmp_path / "text.tar").write_text("this is no archive" * 100)
    whole = write_tar(tmp_path / "whole.tar", members).read_bytes()
    (tmp_path / "cut.tar").write_bytes(whole[:2100])
    for name in ("missing", "none", "text.tar", "cut.tar"):
        with pytest.raises(InputError, match=name):
            open_faces([tmp_path / name], resolution=8)
    for paths, options in (([], {}), ([tmp_path], {"resolution": 0}), ([tmp_path], {"split": "train"})):
        with pytest.raises(UsageError):
            open_faces(paths, **{"resolution": 8, **options})  # type: ignore[arg-type]


def test_system_files_are_not_images(tmp_path: Path, rng: np.random.Generator) -> None:
    junk = {"._a.png": b"x", "__MACOSX/a.png": b"x", "a.png": encoded(rng)}
    assert open_faces([write_zip(tmp_path / "a.zip", junk)], resolution=8).names == ("a.png",)


def test_labels_and_split_follow_the_images(tmp_path: Path, members: dict[str, bytes]) -> None:
    table = tmp_path / "labels.csv"
    rows = [f"{name},{'val' if name.endswith('2.png') else 'train'},{name[:2]}" for name in members]
    table.write_text("\n".join(["file,split,person", *reversed(rows)]))
    source = write_tar(tmp_path / "a.tar", members)
    data = open_faces([source], resolution=8, labels=table)
    assert data.labels is not None and data.labels.files == data.names
    assert data.labels.people is not None and data.labels.people.tolist() == [0, 0, 0, 1, 1, 1]
    val = open_faces([source], resolution=8, labels=table, split="val")
    assert val.names == ("al/2.png", "bo/2.png") and val.labels is not None and val.labels.splits == ("val", "val")
    assert torch.equal(val.load(1), data.load(5))
    with pytest.raises(InputError, match="it has train, val"):
        open_faces([source], resolution=8, labels=table, split="test")


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def test_columns_become_what_they_hold(tmp_path: Path) -> None:
    table = """file,person,Smiling,Hat,gender,yaw,age,split,shard
a.png,7,1,-1,Female,0.25,20-29,train,s.tar
b.png,3,0,1,Male,1.5,30-39,val,s.tar
c.png,,0,-1,Male,2,,train,t.tar
"""
    labels = Labels.read(write(tmp_path / "t.csv", table))
    assert labels.attribute_names == ("Smiling", "Hat", "Female", "Male", "20-29", "30-39")
    assert labels.attribute_columns == ("Smiling", "Hat", "gender", "gender", "age", "age")
    assert labels.take([0]).attribute_columns == labels.attribute_columns
    expected = [[1, 0, 1, 0, 1, 0], [0, 1, 0, 1, 0, 1], [0, 0, 0, 1, 0, 0]]
    assert labels.attributes.dtype == np.uint8 and labels.attributes.tolist() == expected
    assert labels.people is not None and labels.people.dtype == np.int64 and labels.people.tolist() == [7, 3, -1]
    assert labels.splits == ("train", "val", "train")


def test_match_by_full_name_then_base_name(tmp_path: Path) -> None:
    labels = Labels.read(write(tmp_path / "t.csv", "file,person\nx/1.png,1\ny/1.png,2\n3.png,3\n"))
    matched = labels.match(["deep/3.png", "y/1.png", "x/1.png"])
    assert matched.people is not None and matched.people.tolist() == [3, 2, 1]
    with pytest.raises(InputError, match=r"1 of 1 images, such as z/1\.png"):
        labels.match(["z/1.png"])  # two rows have this base name


@pytest.mark.parametrize("text", ["", "name,person\na,1\n", "file,person\na.png,1\nb.png\n", "file,p,p\na.png,1,2\n"])
def test_tables_that_cannot_be_used(tmp_path: Path, text: str) -> None:
    with pytest.raises(InputError):
        Labels.read(write(tmp_path / "t.csv", text))


def test_missing_and_foreign_files(tmp_path: Path) -> None:
    (tmp_path / "binary.csv").write_bytes(b"\xff\xfe\x00")
    for path in (tmp_path / "none.csv", tmp_path / "binary.csv", write(tmp_path / "list.txt", "a b c d\n"), tmp_path):
        with pytest.raises(InputError):
            Labels.read(path)


LOCKED = [6, 3, 4, 9, 0, 2, 8, 7, 5, 1]
numbers = {"n": st.integers(1, 40), "size": st.integers(1, 12), "seed": st.integers(0, 2**32)}


@given(**numbers)
def test_each_epoch_is_a_permutation(n: int, size: int, seed: int) -> None:
    sampler = ResumableSampler(n, size, seed)
    stream = torch.cat([sampler.batch(step) for step in range(-(-3 * n // size))])[: 3 * n]
    for epoch in stream.view(3, n):
        assert epoch.sort().values.tolist() == list(range(n))


@given(n=st.integers(1, 40), share=st.integers(1, 4), world=st.integers(1, 4), step=st.integers(0, 50))
def test_ranks_share_the_batch_of_one_process(n: int, share: int, world: int, step: int) -> None:
    whole = ResumableSampler(n, share * world, 3).batch(step)
    parts = [ResumableSampler(n, share * world, 3, rank=rank, world=world).batch(step) for rank in range(world)]
    assert torch.equal(torch.cat(parts), whole)


def test_the_order_is_the_same_on_every_machine() -> None:
    assert ResumableSampler(10, 10, 7).batch(0).tolist() == LOCKED
