"""What is known about each image: the person, boolean attributes, the split."""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

import numpy as np

from ficgan.errors import InputError

_CELEBA = (
    "5_o_Clock_Shadow Arched_Eyebrows Attractive Bags_Under_Eyes Bald Bangs Big_Lips Big_Nose Black_Hair Blond_Hair "
    "Blurry Brown_Hair Bushy_Eyebrows Chubby Double_Chin Eyeglasses Goatee Gray_Hair Heavy_Makeup High_Cheekbones Male "
    "Mouth_Slightly_Open Mustache Narrow_Eyes No_Beard Oval_Face Pale_Skin Pointy_Nose Receding_Hairline Rosy_Cheeks "
    "Sideburns Smiling Straight_Hair Wavy_Hair Wearing_Earrings Wearing_Hat Wearing_Lipstick Wearing_Necklace "
    "Wearing_Necktie Young"
)
CELEBA_ATTRIBUTES = tuple(_CELEBA.split())
_PERSON, _SPLIT, ALIGNMENT = ("person", "identity"), "split", "alignment"
_NOT_ATTRIBUTES = frozenset({"file", "shard", "source", "path", "face", "box", "score", _SPLIT, ALIGNMENT, *_PERSON})
# One age under two names: "more than 70" is "70+".
_OVER = re.compile(r"^(?:more than|over) (\d+)$")
_MOST_CATEGORIES = 32  # a text column with more values than this is a name or a note, not a category


@dataclass(frozen=True)
class Labels:
    """Labels of N images.

    Attributes:
        files: N file names.
        people: int64 [N], one number per person, −1 where unknown; None when the file names no people.
        attributes: uint8 [N, A], 0 or 1.
        attribute_names: A names.
        splits: N names such as "train", or None.
        attribute_columns: A names of the columns they came from: of the attributes of one column an image has one at
            most. Empty: each is a column of its own.
        alignments: N names such as "ffhq", or None; see `alignment_name`.
    """

    files: tuple[str, ...]
    people: np.ndarray | None
    attributes: np.ndarray
    attribute_names: tuple[str, ...]
    splits: tuple[str, ...] | None = None
    attribute_columns: tuple[str, ...] = ()
    alignments: tuple[str, ...] | None = None

    def __len__(self) -> int:
        return len(self.files)

    @classmethod
    def read(cls, path: Path | str) -> Labels:
        """Read a CSV with a `file` column, one of CelebA's text files, or a folder that holds those.

        In a CSV, `person` or `identity` gives `people`; a column of 0/1 or −1/1 is one attribute; a column of a few
        texts is one attribute per text, named by it ("Female", "20-29"); other numbers are ignored.
        """
        path = Path(path)
        try:
            if path.is_dir():
                return _celeba_folder(path)
            text = path.read_text(encoding="utf-8-sig")
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"Labels {path} cannot be read ({error}); name a CSV with a file column.") from error
        if path.suffix.lower() == ".txt":
            return _celeba_text(text, path)
        return _csv(text, path)

    @classmethod
    def from_folders(cls, names: Sequence[str]) -> Labels:
        """Labels of a folder per person: the images of one folder show one person; InputError for one in none."""
        folders = [str(PurePosixPath(name).parent) for name in names]
        if "." in folders:
            stray = names[folders.index(".")]
            raise InputError(f"{stray} lies in no person's folder; sort images into one folder per person.")
        return cls(tuple(names), _numbered(folders), np.zeros((len(names), 0), np.uint8), ())

    def take(self, rows: Sequence[int] | np.ndarray) -> Labels:
        """The labels of the images at `rows`, in that order."""
        index = np.asarray(rows, dtype=np.int64)
        people = None if self.people is None else self.people[index]
        splits = None if self.splits is None else tuple(self.splits[i] for i in index)
        alignments = None if self.alignments is None else tuple(self.alignments[i] for i in index)
        files, attributes = tuple(self.files[i] for i in index), self.attributes[index]
        return replace(self, files=files, people=people, attributes=attributes, splits=splits, alignments=alignments)

    def match(self, names: Sequence[str], *, source: str = "The label file") -> Labels:
        """The labels of the images called `names`, in that order: by full name, else by a single base name."""
        full = {file: row for row, file in enumerate(self.files)}
        base = {PurePosixPath(file).name: row for row, file in enumerate(self.files)}
        repeated = {name for name, count in Counter(PurePosixPath(f).name for f in self.files).items() if count > 1}
        rows, missing = [], []
        for name in names:
            row = full.get(name)
            if row is None and (stem := PurePosixPath(name).name) not in repeated:
                row = base.get(stem)
            missing.append(name) if row is None else rows.append(row)
        if missing:
            raise InputError(
                f"{source} has no single row for {len(missing)} of {len(names)} images, such as {missing[0]}; "
                "add rows, or name only the data it describes."
            )
        return self.take(rows)


def _csv(text: str, path: Path) -> Labels:
    rows = [row for row in csv.reader(text.splitlines()) if row]
    if not rows or "file" not in rows[0]:
        raise InputError(f"Labels {path} has no file column; its first line must name the columns.")
    header, body = _repair(rows[0]), rows[1:]
    if not body or any(len(row) != len(header) for row in body):
        bad = next((i + 2 for i, row in enumerate(body) if len(row) != len(header)), 1)
        raise InputError(f"Labels {path} line {bad} has not the {len(header)} columns of its first line; mend it.")
    repeated = sorted(name for name, count in Counter(header).items() if count > 1)
    if repeated:
        raise InputError(f"Labels {path} names the column {repeated[0]!r} more than once; rename one.")
    columns = {name: [row[i].strip() for row in body] for i, name in enumerate(header)}
    person = next((name for name in _PERSON if name in columns), None)
    table: list[tuple[str, str, np.ndarray]] = []
    for name, cells in columns.items():
        if name not in _NOT_ATTRIBUTES:
            table += _attributes_of(name, cells)
    count = Counter(value for _, value, _ in table)
    names = tuple(value if count[value] == 1 else f"{column}={value}" for column, value, _ in table)
    matrix = np.stack([v for *_, v in table], 1) if table else np.zeros((len(body), 0), np.uint8)
    people = None if person is None else _numbered(columns[person])
    splits = tuple(columns[_SPLIT]) if _SPLIT in columns else None
    alignments = tuple(columns[ALIGNMENT]) if ALIGNMENT in columns else None
    return Labels(
        tuple(columns["file"]), people, matrix, names, splits, tuple(column for column, *_ in table), alignments
    )


def _repair(header: list[str]) -> list[str]:
    """Column names; where CelebA's first row stands in place of its forty names, the published names in their order."""
    names = [name.strip() for name in header]
    values = len(CELEBA_ATTRIBUTES)
    if len(names) > values and names[-values - 1].endswith(".jpg") and set(names[-values:]) <= {"-1", "1"}:
        return [*names[: -values - 1], *CELEBA_ATTRIBUTES]
    return names


def _attributes_of(column: str, cells: Sequence[str]) -> list[tuple[str, str, np.ndarray]]:
    """(column, attribute name, uint8 [N]) for each attribute a column holds: one, several or none."""
    cells = [_OVER.sub(r"\1+", cell) for cell in cells]
    values = sorted(set(cells) - {""})
    if values and set(values) <= {"-1", "0", "1", "-1.0", "0.0", "1.0"}:
        return [(column, column, np.array([cell in ("1", "1.0") for cell in cells], np.uint8))]
    if not values or len(values) > _MOST_CATEGORIES or all(_is_number(value) for value in values):
        return []
    return [(column, value, np.array([cell == value for cell in cells], np.uint8)) for value in values]


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _numbered(cells: Iterable[str]) -> np.ndarray:
    cells = list(cells)
    try:
        return np.array([int(cell) if cell else -1 for cell in cells], np.int64)
    except (ValueError, OverflowError):  # names, also numbers that no array holds
        number = {name: i for i, name in enumerate(sorted(set(cells) - {""}))}
        return np.array([number.get(cell, -1) for cell in cells], np.int64)


def _celeba_text(text: str, path: Path) -> Labels:
    rows = [line.split() for line in text.splitlines() if line.strip()]
    try:
        if len(rows) > 2 and len(rows[0]) == 1:  # count, names, then a row of ±1 per file
            names, body = tuple(rows[1]), rows[2:]
            matrix = np.array([[int(v) > 0 for v in row[1:]] for row in body], np.uint8)
            if matrix.shape != (len(body), len(names)):
                raise ValueError(f"{matrix.shape[-1]} values for {len(names)} names")
            return Labels(tuple(row[0] for row in body), None, matrix, names)
        numbers = np.array([int(value) for _, value in rows], np.int64)
    except ValueError as error:
        raise InputError(f"Labels {path} is not one of CelebA's text files ({error}); give a CSV instead.") from error
    files, none = tuple(row[0] for row in rows), np.zeros((len(rows), 0), np.uint8)
    if "partition" in path.name:
        return Labels(files, None, none, (), tuple(("train", "val", "test")[n] for n in numbers))
    return Labels(files, numbers, none, ())


def _celeba_folder(folder: Path) -> Labels:
    known = ("list_attr_celeba.txt", "identity_CelebA.txt", "list_eval_partition.txt")
    parts = [Labels.read(folder / name) for name in known if (folder / name).is_file()]
    if not parts:
        raise InputError(f"Labels folder {folder} has none of {', '.join(known)}; give a CSV or CelebA's Anno folder.")
    merged, *others = (part.match(parts[0].files, source=str(folder)) for part in parts)
    for part in others:
        people = merged.people if part.people is None else part.people
        merged = replace(merged, people=people, splits=part.splits or merged.splits)
    return merged
