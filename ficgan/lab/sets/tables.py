"""Tables beside images: categories for breakdowns by gender, age band and race, attributes, people by number."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ficgan.data.labels import Labels
from ficgan.errors import InputError

__all__ = ["AGE_BANDS", "Categories", "PersonTable", "age_band", "columns_of", "from_labels", "numbered"]

AGE_BANDS = ("0-2", "3-9", "10-19", "20-29", "30-39", "40-49", "50-59", "60-69", "more than 70")
"""Of FairFace, so that sets can be set side by side."""
_FROM = (0, 3, 10, 20, 30, 40, 50, 60, 70)
_SAME = {"sex": "gender", "ethnicity": "race", "eth": "race", "age_band": "age", "age_group": "age"}
_NOTHING = frozenset({"", "na", "n/a", "nan", "none", "null", "unknown", "?"})
_WORDS = {"m": "Male", "man": "Male", "f": "Female", "woman": "Female"}
_MOST = 32  # a text column with more values than this is a name or a note, not a category


@dataclass(frozen=True)
class Categories:
    """Of N images: attributes name → uint8 [N], and groups name → N texts."""

    attributes: dict[str, NDArray[np.uint8]]
    groups: dict[str, tuple[str, ...]]

    def with_celeba(self) -> Categories:
        """With gender and age as groups where CelebA's Male and Young say them and no column does."""
        groups = dict(self.groups)
        told = (("gender", "Male", ("Female", "Male")), ("age", "Young", ("not young", "young")))
        for group, attribute, words in told:
            if attribute in self.attributes and group not in groups:
                groups[group] = tuple(words[value] for value in self.attributes[attribute])
        return Categories(self.attributes, groups)


@dataclass(frozen=True)
class PersonTable:
    """A CSV with a row per person: the first column says who.

    Attributes:
        path: of the file.
        rows: key of the person → column → cell.
    """

    path: Path
    rows: Mapping[str, Mapping[str, str]]

    @classmethod
    def read(cls, path: Path) -> PersonTable:
        """Read it.

        Raises:
            InputError: not a CSV, or a person has two rows.
        """
        try:
            with path.open(encoding="utf-8-sig", newline="") as file:
                header, *body = [[cell.strip() for cell in row] for row in csv.reader(file) if row]
        except (OSError, UnicodeDecodeError, csv.Error, ValueError) as error:
            raise InputError(f"{path} cannot be read as a table of people ({error}); give a CSV") from error
        rows: dict[str, Mapping[str, str]] = {}
        for line, cells in enumerate(body, start=2):
            if len(cells) != len(header):
                raise InputError(f"{path} line {line} has not the {len(header)} columns of its first line; mend it")
            key = same_key(cells[0])
            if key in rows:
                raise InputError(f"{path} has two rows for {cells[0]!r}; keep one")
            rows[key] = dict(zip(header[1:], cells[1:], strict=True))
        return cls(path, rows)

    def categories(self, keys: Sequence[str | None]) -> Categories:
        """What it says of images, by the person each shows; None and people without a row are unknown."""
        attributes: dict[str, NDArray[np.uint8]] = {}
        groups: dict[str, tuple[str, ...]] = {}
        for column in next(iter(self.rows.values()), {}):
            cells = [self.rows.get(same_key(key), {}).get(column, "") if key is not None else "" for key in keys]
            known = {cell for cell in cells if cell.casefold() not in _NOTHING}
            group = group_name(column)
            if known and known <= {"-1", "0", "1"}:
                attributes[column] = np.array([cell == "1" for cell in cells], np.uint8)
            elif known and (group == "age" or (not all(map(_is_number, known)) and len(known) <= _MOST)):
                groups[group] = tuple(value_of(group, cell) for cell in cells)
        return Categories(attributes, groups)


def same_key(text: str) -> str:
    """The form in which keys of people are compared: 001 and 1 are one person."""
    return str(int(text)) if text.strip().isdecimal() else text.strip()


def columns_of(path: Path) -> tuple[str, ...]:
    """The first line of a CSV; empty where it cannot be read."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            return tuple(cell.strip() for cell in next(csv.reader(file), []))
    except (OSError, UnicodeDecodeError, csv.Error):
        return ()


def from_labels(labels: Labels, table: Path | None = None) -> Categories:
    """Attributes and groups of labels; ages in years from the CSV `table` they were read from, as bands."""
    columns = labels.attribute_columns or labels.attribute_names
    attributes: dict[str, NDArray[np.uint8]] = {}
    groups: dict[str, list[str]] = {}
    for index, (column, name) in enumerate(zip(columns, labels.attribute_names, strict=True)):
        values = labels.attributes[:, index]
        if column == name:
            attributes[name] = values
            continue
        group, word = group_name(column), name.removeprefix(f"{column}=")
        cells = groups.setdefault(group, [""] * len(labels))
        for row in np.flatnonzero(values):
            cells[row] = value_of(group, word)
    if table is not None and "age" not in groups:
        ages = _ages(table)
        if ages:
            groups["age"] = [value_of("age", ages.get(file, "")) for file in labels.files]
    return Categories(attributes, {name: tuple(cells) for name, cells in groups.items()})


def group_name(column: str) -> str:
    """ "face_eth" → "race": one name for what sets call differently."""
    name = column.strip().casefold().removeprefix("face_").replace(" ", "_")
    return _SAME.get(name, name)


def value_of(group: str, cell: str) -> str:
    """A cell as a group's value: "west_asian" → "West Asian", age 34 → "30-39", NA → ""."""
    text = cell.strip().replace("_", " ")
    if text.casefold() in _NOTHING:
        return ""
    if group == "age" and _is_number(text):
        return age_band(float(text))
    if group == "gender" and text.casefold() in _WORDS:
        return _WORDS[text.casefold()]
    return text.title() if group in ("gender", "race") and text.islower() else text


def age_band(years: float) -> str:
    """The band of an age in years, one of `AGE_BANDS`; "" for numbers that are no age."""
    if not 0 <= years < 150:
        return ""
    return AGE_BANDS[int(np.searchsorted(_FROM, years, side="right")) - 1]


def numbered(keys: Iterable[str | None]) -> NDArray[np.int64]:
    """People as int64: keys that are all numbers stay, others are numbered in sorted order; None is −1."""
    keys = list(keys)
    known = sorted({key for key in keys if key is not None})
    whole = all(key.isdecimal() and len(key) < 19 for key in known)
    number = {key: int(key) if whole else index for index, key in enumerate(known)}
    return np.array([-1 if key is None else number[key] for key in keys], np.int64).reshape(len(keys))


def _ages(table: Path) -> dict[str, str]:
    """File → age, of a CSV whose column of ages holds numbers; `Labels` reads no numbers."""
    header = columns_of(table)
    column = next((name for name in header if group_name(name) == "age"), None)
    if column is None or "file" not in header or len(set(header)) < len(header):
        return {}
    with table.open(encoding="utf-8-sig", newline="") as file:
        return {row["file"].strip(): row[column] or "" for row in csv.DictReader(file)}


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
