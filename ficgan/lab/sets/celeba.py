"""CelebA's and CelebAMask-HQ's label files, as downloaded from their pages or as CSV copies of them."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath

import numpy as np

from ficgan.data.labels import Labels
from ficgan.errors import InputError

__all__ = ["CELEBA_FILES", "HQ_FILES", "read_celeba", "read_hq"]

_IDENTITY, _ATTRIBUTES, _PARTS = "identity_CelebA", "list_attr_celeba", "list_eval_partition"
_MAPPING, _HQ_ATTRIBUTES = "CelebA-HQ-to-CelebA-mapping.txt", "CelebAMask-HQ-attribute-anno.txt"
CELEBA_FILES = frozenset(f"{stem}.{end}" for stem in (_IDENTITY, _ATTRIBUTES, _PARTS) for end in ("txt", "csv"))
HQ_FILES = frozenset({_MAPPING, _HQ_ATTRIBUTES})
_PART_NAMES = {"0": "train", "1": "val", "2": "test"}


def read_celeba(files: Mapping[str, Path], names: Sequence[str]) -> Labels:
    """What CelebA's files say of images; people None and no attributes where the files are not there.

    Args:
        files: label files by name.
        names: of the images, such as img_align_celeba/000001.jpg.
    """
    merged = Labels(tuple(names), None, np.zeros((len(names), 0), np.uint8), ())
    for stem in (_IDENTITY, _ATTRIBUTES, _PARTS):
        path = files.get(f"{stem}.txt") or files.get(f"{stem}.csv")
        if path is None:
            continue
        labels = (Labels.read(path) if path.suffix == ".txt" else _kaggle(path)).match(names, source=str(path))
        merged = replace(
            merged,
            people=merged.people if labels.people is None else labels.people,
            attributes=labels.attributes if labels.attribute_names else merged.attributes,
            attribute_names=labels.attribute_names or merged.attribute_names,
            splits=labels.splits or merged.splits,
        )
    return merged


def read_hq(files: Mapping[str, Path], names: Sequence[str]) -> Labels:
    """What CelebAMask-HQ's files say of images such as CelebA-HQ-img/0.jpg.

    The people and the parts are CelebA's: they are known where the mapping and identity_CelebA.txt or
    list_eval_partition.txt are there too.
    """
    merged = Labels(tuple(names), None, np.zeros((len(names), 0), np.uint8), ())
    if _MAPPING in files and set(files) & CELEBA_FILES:
        origin = _mapping(files[_MAPPING])
        missing = [name for name in names if PurePosixPath(name).stem not in origin]
        if missing:
            raise InputError(f"{files[_MAPPING]} has no line for {missing[0]}; it needs one for each image")
        merged = read_celeba(files, [origin[PurePosixPath(name).stem] for name in names])
    if _HQ_ATTRIBUTES in files:
        own = Labels.read(files[_HQ_ATTRIBUTES]).match(names, source=str(files[_HQ_ATTRIBUTES]))
        merged = replace(merged, attributes=own.attributes, attribute_names=own.attribute_names)
    return replace(merged, files=tuple(names))


def _mapping(path: Path) -> dict[str, str]:
    """Number in CelebA-HQ → file in CelebA, of a text with the columns idx, orig_idx, orig_file."""
    try:
        lines = [line.split() for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
        return {number: file for number, _, file in lines[1:]}
    except (OSError, ValueError) as error:
        raise InputError(f"{path} is not the mapping of CelebAMask-HQ ({error}); copy it again") from error


def _kaggle(path: Path) -> Labels:
    """The same tables as CSV, with the column image_id."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            header, *body = [row for row in csv.reader(file) if row]
        files, none = tuple(row[0] for row in body), np.zeros((len(body), 0), np.uint8)
        if header[1:] == ["partition"]:
            return Labels(files, None, none, (), tuple(_PART_NAMES[row[1]] for row in body))
        if len(header) == 2:
            return Labels(files, np.array([int(row[1]) for row in body], np.int64), none, ())
        matrix = np.array([[int(cell) > 0 for cell in row[1:]] for row in body], np.uint8)
        if matrix.shape != (len(body), len(header) - 1):
            raise ValueError("rows of different lengths")
        return Labels(files, None, matrix, tuple(header[1:]))
    except (OSError, ValueError, LookupError) as error:
        raise InputError(f"{path} is not one of CelebA's tables ({error}); copy it again") from error
