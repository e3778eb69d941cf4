"""The formats of public face sets: how each is recognised by its files, and what its names and tables say."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath

import numpy as np
from numpy.typing import NDArray

from ficgan.data.dataset import Labels
from ficgan.errors import InputError, UsageError

AGE_BANDS = ("0-2", "3-9", "10-19", "20-29", "30-39", "40-49", "50-59", "60-69", "more than 70")
"""FairFace's, so that sets can be compared."""
_FROM = (0, 3, 10, 20, 30, 40, 50, 60, 70)
_SAME = {"sex": "gender", "ethnicity": "race", "eth": "race", "age_band": "age", "age_group": "age"}
_NOTHING = frozenset({"", "na", "n/a", "nan", "none", "null", "unknown", "?"})
_WORDS = {"m": "Male", "man": "Male", "f": "Female", "woman": "Female"}
_MOST = 32  # a text column with more values than this is a name or a note, not a category

_IDENTITY, _ATTRIBUTES, _PARTS = "identity_CelebA", "list_attr_celeba", "list_eval_partition"
_MAPPING, _HQ_ATTRIBUTES = "CelebA-HQ-to-CelebA-mapping.txt", "CelebAMask-HQ-attribute-anno.txt"
_PART_NAMES = {"0": "train", "1": "val", "2": "test"}
CELEBA_FILES = frozenset(f"{stem}.{end}" for stem in (_IDENTITY, _ATTRIBUTES, _PARTS) for end in ("txt", "csv"))
LABEL_FILES = CELEBA_FILES | {_MAPPING, _HQ_ATTRIBUTES}

_FFHQ_FOLDERS = ("images1024x1024", "thumbnails128x128")
_LONDON = r"(?:^|/)(\d{3})_[^/]*$"

# -- tables -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Categories:
    """Of N images: attributes name → uint8 [N], and groups name → N texts."""

    attributes: dict[str, NDArray[np.uint8]] = field(default_factory=dict)
    groups: dict[str, tuple[str, ...]] = field(default_factory=dict)

    @classmethod
    def of_labels(cls, labels: Labels, table: Path | None = None) -> Categories:
        """Attributes and groups of labels, ages as bands; CelebA's Male and Young stand in for gender and age."""
        columns = labels.attribute_columns or labels.attribute_names
        attributes: dict[str, NDArray[np.uint8]] = {}
        groups: dict[str, list[str]] = {}
        for index, (column, name) in enumerate(zip(columns, labels.attribute_names, strict=True)):
            values = labels.attributes[:, index]
            if column == name:
                attributes[name] = values
                continue
            group, word = _group_name(column), name.removeprefix(f"{column}=")
            cells = groups.setdefault(group, [""] * len(labels))
            for row in np.flatnonzero(values):
                cells[row] = _group_value(group, word)
        if table is not None and "age" not in groups and (ages := _ages(table)):
            groups["age"] = [_group_value("age", ages.get(file, "")) for file in labels.files]
        for group, attribute, *words in (("gender", "Male", "Female", "Male"), ("age", "Young", "not young", "young")):
            if attribute in attributes and group not in groups:
                groups[group] = [words[value] for value in attributes[attribute]]
        return cls(attributes, {name: tuple(cells) for name, cells in groups.items()})

    @classmethod
    def of_people(cls, table: Path, keys: Sequence[str | None]) -> Categories:
        """What a CSV with a row per person says of images, by the person each shows; None is unknown."""
        rows = _person_rows(table)
        attributes: dict[str, NDArray[np.uint8]] = {}
        groups: dict[str, tuple[str, ...]] = {}
        for column in next(iter(rows.values()), {}):
            cells = ["" if key is None else rows.get(key, {}).get(column, "") for key in keys]
            known = {cell for cell in cells if cell.casefold() not in _NOTHING}
            group = _group_name(column)
            if known and known <= {"-1", "0", "1"}:
                attributes[column] = np.array([cell == "1" for cell in cells], np.uint8)
            elif known and (group == "age" or (not all(map(_is_number, known)) and len(known) <= _MOST)):
                groups[group] = tuple(_group_value(group, cell) for cell in cells)
        return cls(attributes, groups)


def age_band(years: float) -> str:
    """The band of an age in years, one of `AGE_BANDS`; "" for numbers that are no age."""
    return AGE_BANDS[int(np.searchsorted(_FROM, years, side="right")) - 1] if 0 <= years < 150 else ""


def _person_rows(path: Path) -> dict[str, dict[str, str]]:
    """Person → column → cell, of a CSV whose first column says who."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            header, *body = [[cell.strip() for cell in row] for row in csv.reader(file) if row]
    except (OSError, UnicodeDecodeError, csv.Error, ValueError) as error:
        raise InputError(f"{path} cannot be read as a table of people ({error}); give a CSV") from error
    rows: dict[str, dict[str, str]] = {}
    for line, cells in enumerate(body, start=2):
        if len(cells) != len(header):
            raise InputError(f"{path} line {line} has not the {len(header)} columns of its first line; correct it")
        key = _person_key(cells[0])
        if key in rows:
            raise InputError(f"{path} has two rows for {cells[0]!r}; keep one")
        rows[key] = dict(zip(header[1:], cells[1:], strict=True))
    return rows


def _columns(path: Path) -> tuple[str, ...]:
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            return tuple(cell.strip() for cell in next(csv.reader(file), []))
    except (OSError, UnicodeDecodeError, csv.Error):
        return ()


def _ages(table: Path) -> dict[str, str]:
    """File → age, of a CSV whose column of ages holds numbers; `Labels` reads no numbers."""
    header = _columns(table)
    column = next((name for name in header if _group_name(name) == "age"), None)
    if column is None or "file" not in header or len(set(header)) < len(header):
        return {}
    with table.open(encoding="utf-8-sig", newline="") as file:
        return {row["file"].strip(): row[column] or "" for row in csv.DictReader(file)}


def _person_key(text: str) -> str:
    return str(int(text)) if text.strip().isdecimal() else text.strip()


def _group_name(column: str) -> str:
    """ "face_eth" → "race": one name for what sets call differently."""
    name = column.strip().casefold().removeprefix("face_").replace(" ", "_")
    return _SAME.get(name, name)


def _group_value(group: str, cell: str) -> str:
    """A cell as a group's value: "west_asian" → "West Asian", age 34 → "30-39", NA → ""."""
    text = cell.strip().replace("_", " ")
    if text.casefold() in _NOTHING:
        return ""
    if group == "age" and _is_number(text):
        return age_band(float(text))
    if group == "gender" and text.casefold() in _WORDS:
        return _WORDS[text.casefold()]
    return text.title() if group in ("gender", "race") and text.islower() else text


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _numbered(keys: Iterable[str | None]) -> NDArray[np.int64]:
    keys = list(keys)
    known = sorted({key for key in keys if key is not None})
    whole = all(key.isdecimal() and len(key) < 19 for key in known)
    number = {key: int(key) if whole else index for index, key in enumerate(known)}
    return np.array([-1 if key is None else number[key] for key in keys], np.int64).reshape(len(keys))


# -- CelebA and CelebAMask-HQ -----------------------------------------------------------------------------------------


def _celeba_labels(files: Mapping[str, Path], names: Sequence[str]) -> Labels:
    merged = Labels(tuple(names), None, np.zeros((len(names), 0), np.uint8), ())
    for stem in (_IDENTITY, _ATTRIBUTES, _PARTS):
        path = files.get(f"{stem}.txt") or files.get(f"{stem}.csv")
        if path is None:
            continue
        labels = (Labels.read(path) if path.suffix == ".txt" else _celeba_csv(path)).match(names, source=str(path))
        merged = replace(
            merged,
            people=merged.people if labels.people is None else labels.people,
            attributes=labels.attributes if labels.attribute_names else merged.attributes,
            attribute_names=labels.attribute_names or merged.attribute_names,
            splits=labels.splits or merged.splits,
        )
    return merged


def _hq_labels(files: Mapping[str, Path], names: Sequence[str]) -> Labels:
    merged = Labels(tuple(names), None, np.zeros((len(names), 0), np.uint8), ())
    if _MAPPING in files and set(files) & CELEBA_FILES:
        path = files[_MAPPING]
        try:
            lines = [line.split() for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
            origin = {number: file for number, _, file in lines[1:]}  # idx, orig_idx, orig_file
        except (OSError, ValueError) as error:
            raise InputError(f"{path} is not the mapping of CelebAMask-HQ ({error}); copy it again") from error
        missing = [name for name in names if PurePosixPath(name).stem not in origin]
        if missing:
            raise InputError(f"{path} has no line for {missing[0]}; it needs one for each image")
        merged = _celeba_labels(files, [origin[PurePosixPath(name).stem] for name in names])
    if _HQ_ATTRIBUTES in files:
        own = Labels.read(files[_HQ_ATTRIBUTES]).match(names, source=str(files[_HQ_ATTRIBUTES]))
        merged = replace(merged, attributes=own.attributes, attribute_names=own.attribute_names)
    return replace(merged, files=tuple(names))


def _celeba_csv(path: Path) -> Labels:
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


# -- layouts ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SetFiles:
    path: Path  # the folder or archive
    names: tuple[str, ...]  # of its N images, sorted
    files: Mapping[str, Path]  # label files in and beside it, by name
    labels: Path | None = None  # the label file that was named
    identity: str | None = None  # regular expression whose first group is the person

    def all_match(self, pattern: str) -> bool:
        """Whether every image's name, below the name of its folder or archive, has the pattern."""
        find = re.compile(pattern).search
        return all(find(f"{self.path.stem}/{name}") for name in self.names)

    def below(self, folder: str) -> list[int]:
        """Rows of the images somewhere below a folder of that name."""
        if folder == self.path.stem:
            return list(range(len(self.names)))
        return [row for row, name in enumerate(self.names) if folder in PurePosixPath(name).parts[:-1]]

    @property
    def table(self) -> Path | None:
        """The CSV of images (it has a `file` column): the one named, else the one of the archive's or folder's own."""
        own = [path for path in self._tables() if "file" in _columns(path)]
        if self.labels is not None:
            return next(iter(own), None)
        inside = [path for path in own if self.path in path.parents]
        if len(inside) > 1:
            listed = " and ".join(sorted(path.name for path in inside))
            raise UsageError(f"{self.path} has several tables, {listed}; name one as labels")
        # celeba_crops.tar has celeba_crops.csv, faces128-val.tar has faces128.csv.
        stem = self.path.stem
        beside = [p for p in own if p.parent == self.path.parent and re.match(re.escape(p.stem) + r"($|[-_.])", stem)]
        return next(iter(inside or sorted(beside, key=lambda path: len(path.stem), reverse=True)), None)

    @property
    def person_table(self) -> Path | None:
        """The CSV with a row per person: the one named, else the only one in the folder."""
        tables = [path for path in self._tables() if _columns(path) and "file" not in _columns(path)]
        inside = [path for path in tables if self.path in path.parents or path == self.labels]
        return inside[0] if len(inside) == 1 else None

    def _tables(self) -> list[Path]:
        paths = [self.labels] if self.labels is not None else list(self.files.values())
        return [path for path in paths if path.suffix.lower() == ".csv"]


@dataclass(frozen=True)
class Known:
    """What a layout tells of the M images that belong to the set."""

    people: NDArray[np.int64]  # [M], −1 where unknown
    rows: Sequence[int] | None = None  # [M]; None: all
    categories: Categories = field(default_factory=Categories)
    splits: tuple[str, ...] | None = None
    licence: str | None = None


@dataclass(frozen=True)
class Layout:
    """One way in which sets lie: its name, what it looks like, whether files are recognised as it, what it tells."""

    name: str
    what: str
    fits: Callable[[SetFiles], bool]
    read: Callable[[SetFiles], Known]


def _of_labels(
    labels: Labels, rows: Sequence[int] | None = None, table: Path | None = None, licence: str | None = None
) -> Known:
    people = np.full(len(labels), -1, np.int64) if labels.people is None else labels.people
    return Known(people, rows, Categories.of_labels(labels, table), labels.splits, licence)


def _celeba(found: SetFiles) -> Known:
    rows = found.below("img_align_celeba") or list(range(len(found.names)))
    labels = _celeba_labels(found.files, [found.names[row] for row in rows])
    return _of_labels(labels, rows, licence="CelebA: non-commercial research only, no redistribution")


def _celeba_hq(found: SetFiles) -> Known:
    rows = found.below("CelebA-HQ-img")
    labels = _hq_labels(found.files, [found.names[row] for row in rows])
    return _of_labels(labels, rows, licence="CelebAMask-HQ: non-commercial research and education only")


def _ffhq(found: SetFiles) -> Known:
    rows = next((rows for folder in _FFHQ_FOLDERS if (rows := found.below(folder))), list(range(len(found.names))))
    folder = next((place / "json" for place in (found.path, found.path.parent) if (place / "json").is_dir()), None)
    groups = {}
    if folder is not None:
        faces = [_ffhq_face(folder / f"{PurePosixPath(found.names[row]).stem}.json") for row in rows]
        groups = {key: tuple(_group_value(key, str(face.get(key, ""))) for face in faces) for key in ("gender", "age")}
    terms = "FFHQ: CC BY-NC-SA 4.0 as a set; each image has the licence its metadata names"
    # Nobody is named in FFHQ: every image counts as a person of its own.
    return Known(np.arange(len(rows), dtype=np.int64), rows, Categories(groups=groups), licence=terms)


def _ffhq_face(path: Path) -> Mapping[str, object]:
    try:
        faces = json.loads(path.read_text(encoding="utf-8"))
        return faces[0]["faceAttributes"] if faces else {}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise InputError(f"{path} is not a file of the FFHQ features set ({error}); correct or remove it") from error


def _by_folder(licence: str, prefix: str = "") -> Callable[[SetFiles], Known]:
    def read(found: SetFiles) -> Known:
        people = _numbered(PurePosixPath(name).parent.name.removeprefix(prefix) for name in found.names)
        return Known(people, licence=licence)

    return read


def _csv(found: SetFiles) -> Known:
    if found.table is None:
        raise InputError(f"{found.path} has no table beside it; name a CSV with the columns file and person as labels")
    return _of_labels(Labels.read(found.table).match(found.names, source=str(found.table)), table=found.table)


def _pattern(found: SetFiles) -> Known:
    if found.identity is None:
        raise UsageError(r"layout pattern needs an identity, a regular expression such as (\d{3})_ with one group")
    return _by_name(found, found.identity)


def _london(found: SetFiles) -> Known:
    header = () if found.person_table is None else _columns(found.person_table)
    terms = "Face Research Lab London Set: CC BY 4.0 (DeBruine & Jones)" if "face_eth" in header else None
    return replace(_by_name(found, found.identity or _LONDON), licence=terms)


def _by_name(found: SetFiles, identity: str) -> Known:
    try:
        find = re.compile(identity)
    except re.error as error:
        raise UsageError(f"identity {identity!r} is no regular expression ({error})") from error
    if not find.groups:
        raise UsageError(rf"identity {identity!r} has no group; put brackets round the person, as in (\d{{3}})_")
    hits = [find.search(name) for name in found.names]
    keys = [_person_key(hit[1]) if hit is not None and hit[1] else None for hit in hits]
    if not any(keys):
        raise InputError(f"identity {identity!r} is found in no name of {found.path}, such as {found.names[0]}")
    table = found.person_table
    return Known(_numbered(keys), categories=Categories.of_people(table, keys) if table else Categories())


def _is_celeba(found: SetFiles) -> bool:
    numbered = found.all_match(r"/\d{6}\.jpg$")
    return bool(found.below("img_align_celeba")) or (numbered and bool(set(found.files) & CELEBA_FILES))


def _is_london(found: SetFiles) -> bool:
    if found.person_table is None or not found.all_match(_LONDON):
        return False
    with found.person_table.open(encoding="utf-8-sig", newline="") as file:
        known = {_person_key(row[0]) for row in csv.reader(file) if row}
    hits = (re.search(_LONDON, name) for name in found.names)
    return {_person_key(hit[1]) for hit in hits if hit} <= known


def _is_att(found: SetFiles) -> bool:
    if not found.all_match(r"/s0*\d{1,2}/\d{1,2}\.(pgm|png)$"):
        return False
    people = {PurePosixPath(name).parent for name in found.names}
    return len(people) <= 40 and len(found.names) <= 10 * len(people)


_ALL = (
    Layout("pattern", "the person in the name, found by `identity`", lambda f: f.identity is not None, _pattern),
    Layout("celeba-hq", "CelebAMask-HQ: CelebA-HQ-img/0.jpg", lambda f: bool(f.below("CelebA-HQ-img")), _celeba_hq),
    Layout("ffhq", "images1024x1024/00000/00000.png", lambda f: any(map(f.below, _FFHQ_FOLDERS)), _ffhq),
    Layout("celeba", "img_align_celeba/000001.jpg, identity_CelebA.txt, list_attr_celeba.txt", _is_celeba, _celeba),
    Layout("csv", "images and a CSV with the columns file and person", lambda f: f.table is not None, _csv),
    Layout(
        "lfw",
        "Name/Name_0001.jpg",
        lambda f: f.all_match(r"/([^/]+)/\1_\d{4}\.\w+$"),
        lambda f: Known(_numbered(PurePosixPath(name).name.rpartition("_")[0] for name in f.names)),
    ),
    Layout("london", "001_neutral.jpg and a CSV with a row per person", _is_london, _london),
    Layout(
        "att",
        "s1/1.pgm",
        _is_att,
        _by_folder("AT&T (ORL) Database of Faces: free with credit to AT&T Laboratories Cambridge", "s"),
    ),
    Layout(
        "digiface",
        "subjects_0-1999_72_imgs/0/0.png",
        # Plain numbered folders may be anybody's: the set is known by the names of its archives or its own.
        lambda f: f.all_match(r"(?i)(subjects_\d+-\d+|digiface).*/\d+/\d+\.png$"),
        _by_folder("DigiFace-1M: non-commercial research only"),
    ),
    Layout(
        "folders",
        "a folder per person",
        lambda f: all("/" in name for name in f.names),
        lambda f: _of_labels(Labels.from_folders(f.names)),
    ),
)
LAYOUTS: dict[str, Layout] = {layout.name: layout for layout in _ALL}  # By name, in the order in which they are tried
