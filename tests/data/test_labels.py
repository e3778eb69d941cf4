"""Labels from CSVs and CelebA's text files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ficgan.data import CELEBA_ATTRIBUTES, Labels
from ficgan.errors import InputError


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


def test_one_value_in_two_columns_is_told_apart(tmp_path: Path) -> None:
    labels = Labels.read(write(tmp_path / "t.csv", "file,hair,skin\na.png,dark,dark\nb.png,fair,dark\n"))
    assert labels.attribute_names == ("hair=dark", "fair", "skin=dark")


def test_named_people_are_numbered_in_sorted_order(tmp_path: Path) -> None:
    labels = Labels.read(write(tmp_path / "t.csv", "file,identity\na.png,zoe\nb.png,ann\nc.png,zoe\n"))
    assert labels.people is not None and labels.people.tolist() == [1, 0, 1]


def test_match_by_full_name_then_base_name(tmp_path: Path) -> None:
    labels = Labels.read(write(tmp_path / "t.csv", "file,person\nx/1.png,1\ny/1.png,2\n3.png,3\n"))
    matched = labels.match(["deep/3.png", "y/1.png", "x/1.png"])
    assert matched.people is not None and matched.people.tolist() == [3, 2, 1]
    with pytest.raises(InputError, match=r"1 of 1 images, such as z/1\.png"):
        labels.match(["z/1.png"])  # two rows have this base name


def test_celeba_folder(tmp_path: Path) -> None:
    names = " ".join(CELEBA_ATTRIBUTES)
    row = " ".join("1" if i % 3 == 0 else "-1" for i in range(40))
    write(tmp_path / "list_attr_celeba.txt", f"2\n{names}\n000001.jpg {row}\n000002.jpg  {row.replace('-1', '1')}\n")
    write(tmp_path / "identity_CelebA.txt", "000002.jpg 9\n000001.jpg 5\n")
    write(tmp_path / "list_eval_partition.txt", "000001.jpg 0\n000002.jpg 2\n")
    labels = Labels.read(tmp_path)
    assert labels.attribute_names == CELEBA_ATTRIBUTES and labels.splits == ("train", "test")
    assert labels.people is not None and labels.people.tolist() == [5, 9]
    assert labels.attributes.tolist() == [[int(i % 3 == 0) for i in range(40)], [1] * 40]


def test_folders_are_people() -> None:
    labels = Labels.from_folders(["zoe/1.png", "ann/1.png", "zoe/2.png"])
    assert labels.people is not None and labels.people.tolist() == [1, 0, 1]
    with pytest.raises(InputError, match=r"2\.png lies in no"):
        Labels.from_folders(["zoe/1.png", "2.png"])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no file column"),
        ("name,person\na,1\n", "no file column"),
        ("file,person\na.png,1\nb.png\n", "line 3"),
        ("file,person,person\na.png,1,2\n", "more than once"),
    ],
)
def test_tables_that_cannot_be_used(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        Labels.read(write(tmp_path / "t.csv", text))


def test_missing_and_foreign_files(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        Labels.read(tmp_path / "none.csv")
    (tmp_path / "binary.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="cannot be read"):
        Labels.read(tmp_path / "binary.csv")
    with pytest.raises(InputError, match="CelebA"):
        Labels.read(write(tmp_path / "list.txt", "a b c d\n"))
    with pytest.raises(InputError, match="none of"):
        Labels.read(tmp_path)
