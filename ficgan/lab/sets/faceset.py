"""Face sets as they were downloaded: people, attributes, groups; and the split into background, attacker and test."""

from __future__ import annotations

import csv
import hashlib
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ficgan.data import Blob, Labels, agreed, is_number, list_blobs, recorded
from ficgan.errors import InputError, UsageError

Attributes = dict[str, NDArray[np.uint8]]  # Name → [N], 0 or 1
Groups = dict[str, tuple[str, ...]]  # Name → N texts, "" where unknown
Row = Mapping[str, str]  # Column → cell

_MOST_FOLDERS = 32  # A folder with more folders in it is full of people, not of parts of a download
_MOST_VALUES = 32  # A text column with more values than this is a name or a note, not a category
_LICENCES = ("licence", "license", "licence.txt", "license.txt", "licence.md", "license.md")

_CELEBA_FILES = ("identity_CelebA.txt", "list_attr_celeba.txt", "list_eval_partition.txt")
_MAPPING, _HQ_ATTRIBUTES = "CelebA-HQ-to-CelebA-mapping.txt", "CelebAMask-HQ-attribute-anno.txt"
_LABEL_FILES = (*_CELEBA_FILES, _MAPPING, _HQ_ATTRIBUTES)
_FFHQ_FOLDERS = ("images1024x1024", "thumbnails128x128")
_LONDON = r"(?:^|/)(\d{3})_[^/]*$"

# FairFace's bands, so that sets can be compared, and the years at which they begin
_AGE_BANDS = ("0-2", "3-9", "10-19", "20-29", "30-39", "40-49", "50-59", "60-69", "more than 70")
_AGES_FROM = (0, 3, 10, 20, 30, 40, 50, 60, 70)
_SAME = {"sex": "gender", "ethnicity": "race", "eth": "race", "age_band": "age", "age_group": "age"}
_NOTHING = frozenset({"", "na", "n/a", "nan", "none", "null", "unknown", "?"})
_WORDS = {"m": "Male", "man": "Male", "f": "Female", "woman": "Female"}
_NO_GROUPS = frozenset(
    {"file", "person", "identity", "split", "alignment", "shard", "source", "path", "face", "box", "score"}
)


@dataclass(frozen=True)
class FaceSet:
    """N images, opened by `open_set`, not decoded yet."""

    name: str
    layout: str  # A name in `LAYOUTS`
    blobs: tuple[Blob, ...]  # Their names are unique, and sorted by code point
    people: NDArray[np.int64]  # [N], one number per person, −1 where unknown
    attributes: Attributes = field(default_factory=dict)
    groups: Groups = field(default_factory=dict)
    splits: tuple[str, ...] | None = None  # N names such as "test", of the set's own division
    licence: str | None = None  # A sentence, or the text of the licence file
    alignment: str | None = None  # As `ficgan.data.alignment_name` says it, where a table says it

    def __len__(self) -> int:
        return len(self.blobs)

    @cached_property
    def names(self) -> tuple[str, ...]:
        return tuple(blob.name for blob in self.blobs)

    @cached_property
    def digest(self) -> str:
        """sha256 over names, encoded sizes and, in zips, checksums, 64 hex digits; the bytes are not read."""
        digest = hashlib.sha256()
        for name, blob in zip(self.names, self.blobs, strict=True):
            digest.update(f"{name}\0{blob.size}\0{blob.crc}\n".encode())
        return digest.hexdigest()

    @property
    def identities(self) -> int:
        return len(np.unique(self.people[self.people >= 0]))

    def take(self, rows: Sequence[int] | NDArray[np.integer]) -> FaceSet:
        """The images at `rows`, in that order."""
        index = np.asarray(rows, np.int64)
        return replace(
            self,
            blobs=tuple(self.blobs[i] for i in index),
            people=self.people[index],
            attributes={name: values[index] for name, values in self.attributes.items()},
            groups={name: tuple(values[i] for i in index) for name, values in self.groups.items()},
            splits=None if self.splits is None else tuple(self.splits[i] for i in index),
        )

    def only(self, split: str) -> FaceSet:
        """The images of one part of the set's own division."""
        rows = [row for row, part in enumerate(self.splits or ()) if part == split]
        if not rows:
            parts = ", ".join(sorted(set(self.splits or ()))) or "no parts"
            raise InputError(f"{self.name} has no part {split!r}; it has {parts}")
        return self.take(rows)

    def facts(self) -> dict[str, Any]:
        """The set in a report, JSON-ready."""
        groups = {
            name: {value or "unknown": count for value, count in sorted(Counter(values).items())}
            for name, values in sorted(self.groups.items())
        }
        return {
            "name": self.name,
            "layout": self.layout,
            "images": len(self),
            "identities": self.identities,
            "images_of_unknown_people": int((self.people < 0).sum()),
            "attributes": sorted(self.attributes),
            "groups": groups,
            "licence": self.licence,
            "digest": self.digest,
        }


def open_set(
    path: Path | str,
    *,
    layout: str = "auto",
    labels: Path | str | None = None,
    identity: str | None = None,
    name: str | None = None,
    limit_people: int | None = None,
) -> FaceSet:
    """Open a folder, zip or tar of face images, or a folder of such archives, as it was downloaded.

    Args:
        layout: a name in `LAYOUTS`, or "auto": recognised by its files.
        labels: a CSV with a `file` column or a row per person, one of CelebA's label files, or a folder of those.
        identity: regular expression searched in each name; its first group is the person.
        limit_people: only the people with the most images.
    """
    path, labels = Path(path).absolute(), None if labels is None else Path(labels)
    if layout != "auto" and layout not in LAYOUTS:
        raise UsageError(f"there is no layout {layout!r}; use auto, {', '.join(LAYOUTS)}")
    if labels is not None and not labels.exists():
        raise InputError(f"labels {labels} are not there; name a file or a folder")
    blobs = _blobs(path)
    nobody = np.full(len(blobs), -1, np.int64)
    every = FaceSet(name or path.stem, "", blobs, nobody, alignment=agreed(recorded([path])))
    table = labels if labels is not None and labels.suffix.lower() == ".csv" else None
    found = SetFiles(path, every, _label_files(path, labels), table, identity)
    chosen = LAYOUTS.get(layout) or next((each for each in LAYOUTS.values() if each.fits(found)), None)
    if chosen is None:
        shapes = "; ".join(f"{each.name}: {each.what}" for each in LAYOUTS.values())
        raise InputError(f"{path}, with images such as {every.names[0]}, is of no known layout; name labels ({shapes})")
    faces = chosen.read(found)
    if not len(faces):
        raise InputError(f"{path} has no image of layout {chosen.name}, {chosen.what}")
    faces = replace(faces, layout=chosen.name, licence=faces.licence or _licence(path))
    if limit_people is None:
        return faces
    who, images = np.unique(faces.people[faces.people >= 0], return_counts=True)
    most = who[np.argsort(-images, kind="stable")[:limit_people]]
    return faces.take(np.flatnonzero(np.isin(faces.people, most)))


def _blobs(path: Path) -> tuple[Blob, ...]:
    """The images, sorted by name."""
    try:
        blobs = list_blobs(path)
    except InputError:
        archives = [each for each in sorted(path.rglob("*")) if each.suffix.lower() in (".zip", ".tar")]
        if not archives:
            raise
        blobs = [
            replace(blob, name=f"{archive.stem}/{blob.name.removeprefix(archive.stem + '/')}")
            for archive in archives
            for blob in list_blobs(archive)
        ]
    twice = [name for name, count in Counter(blob.name for blob in blobs).items() if count > 1]
    if twice:
        raise InputError(f"two images are called {twice[0]}; rename one, or open their folders one by one")
    return tuple(sorted(blobs, key=lambda blob: blob.name))


def _label_files(path: Path, labels: Path | None) -> dict[str, Path]:
    """Name → label file: the one named, then those in and beside the set; the first of a name counts."""
    beside = path.parent
    places = [] if labels is None else [labels, *_subfolders(labels)] if labels.is_dir() else [labels.parent]
    places += [path, *_subfolders(path), beside, beside / "Anno", beside / "Eval"]
    found = {labels.name: labels} if labels is not None and labels.is_file() else {}
    for place in dict.fromkeys(places):
        for file in (*sorted(place.glob("*.csv")), *sorted(place.glob("*.txt"))):
            # Beside the set may lie anything: only what is known by its name, and its own table.
            # celeba_crops.tar has celeba_crops.csv, faces128-val.tar has faces128.csv.
            own = place != beside or re.match(re.escape(file.stem) + r"($|[-_.])", path.stem)
            if file.name in _LABEL_FILES or (own and file.suffix == ".csv"):
                found.setdefault(file.name, file)
    return found


def _subfolders(path: Path) -> list[Path]:
    folders = [each for each in sorted(path.iterdir()) if each.is_dir()] if path.is_dir() else []
    return folders if len(folders) <= _MOST_FOLDERS else []


def _licence(path: Path) -> str | None:
    files = sorted(path.iterdir()) if path.is_dir() else []
    file = next((each for each in files if each.name.lower() in _LICENCES), None)
    return None if file is None else file.read_text(encoding="utf-8", errors="replace").strip() or None


def _table(path: Path, *, strict: bool = True) -> list[dict[str, str]]:
    """The rows of a CSV; `strict`: all as long as the first line."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            header, *body = [[cell.strip() for cell in row] for row in csv.reader(file) if row]
        return [dict(zip(header, cells, strict=strict)) for cells in body]
    except (OSError, csv.Error, ValueError) as error:
        raise InputError(f"{path} cannot be read as a table of equal lines ({error}); mend it") from error


def _columns(path: Path) -> tuple[str, ...]:
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            return tuple(cell.strip() for cell in next(csv.reader(file), []))
    except (OSError, UnicodeDecodeError, csv.Error):
        return ()


def _people_of(path: Path) -> dict[str, Row]:
    """Person → row, of a CSV whose first column says who."""
    return {_person_key(next(iter(row.values()))): row for row in _table(path)}


def _described(rows: Sequence[Row], columns: Iterable[str]) -> tuple[Attributes, Groups]:
    """Attributes and groups of N images by their rows of a table: columns of 0 and 1, and of few texts or ages."""
    attributes, groups = Attributes(), Groups()
    for column in columns:
        cells = [row.get(column, "") for row in rows]
        known = {cell for cell in cells if cell.casefold() not in _NOTHING}
        group = column.casefold().removeprefix("face_").replace(" ", "_")
        group = _SAME.get(group, group)
        if known and known <= {"-1", "0", "1"}:
            attributes[column] = np.array([cell == "1" for cell in cells], np.uint8)
        elif known and (group == "age" or (len(known) <= _MOST_VALUES and not all(map(is_number, known)))):
            groups[group] = tuple(_group_value(group, cell) for cell in cells)
    return attributes, groups


def _group_value(group: str, cell: str) -> str:
    """A cell as a group's value: "west_asian" → "West Asian", age 34 → "30-39", NA → ""."""
    text = cell.replace("_", " ")
    if text.casefold() in _NOTHING:
        return ""
    if group == "age" and is_number(text):
        years = float(text)
        return _AGE_BANDS[int(np.searchsorted(_AGES_FROM, years, side="right")) - 1] if 0 <= years < 150 else ""
    if group == "gender" and text.casefold() in _WORDS:
        return _WORDS[text.casefold()]
    return text.title() if group in ("gender", "race") and text.islower() else text


def _person_key(text: str) -> str:
    return str(int(text)) if text.strip().isdecimal() else text.strip()


@dataclass(frozen=True)
class SetFiles:
    path: Path  # The folder or archive
    faces: FaceSet  # All its images, of which nothing is known yet
    files: Mapping[str, Path]  # Label files in and beside it, by name
    labels: Path | None = None  # The CSV that was named
    identity: str | None = None  # Regular expression whose first group is the person

    def all_match(self, pattern: str) -> bool:
        """Whether every image's name, below the name of its folder or archive, has the pattern."""
        find = re.compile(pattern).search
        return all(find(f"{self.path.stem}/{name}") for name in self.faces.names)

    def below(self, folder: str) -> list[int]:
        """Rows of the images somewhere below a folder of that name."""
        if folder == self.path.stem:
            return list(range(len(self.faces)))
        return [row for row, name in enumerate(self.faces.names) if folder in PurePosixPath(name).parts[:-1]]

    @property
    def table(self) -> Path | None:
        """The CSV of images: the one named, else the only one inside, else the one beside of the longest name."""
        own = self._tables(of_images=True)
        inside = [path for path in own if self.path in path.parents]
        if self.labels is None and len(inside) > 1:
            listed = " and ".join(sorted(path.name for path in inside))
            raise UsageError(f"{self.path} has several tables, {listed}; name one as labels")
        return next(iter(inside or sorted(own, key=lambda path: len(path.stem), reverse=True)), None)

    @property
    def person_table(self) -> Path | None:
        """The CSV with a row per person: the one named, else the only one inside."""
        tables = self._tables(of_images=False)
        inside = [path for path in tables if self.path in path.parents or path == self.labels]
        return inside[0] if len(inside) == 1 else None

    def _tables(self, of_images: bool) -> list[Path]:
        """CSVs with a `file` column, or without one."""
        paths = self.files.values() if self.labels is None else [self.labels]
        read = {path: _columns(path) for path in paths if path.suffix.lower() == ".csv"}
        return [path for path, columns in read.items() if columns and ("file" in columns) == of_images]


@dataclass(frozen=True)
class Layout:
    """One way in which sets lie: its name, what it looks like, whether files are recognised as it, what it says."""

    name: str
    what: str
    fits: Callable[[SetFiles], bool]
    read: Callable[[SetFiles], FaceSet]


def _celeba_labels(found: SetFiles, names: Sequence[str]) -> Labels:
    merged = Labels(tuple(names), None, np.zeros((len(names), 0), np.uint8), ())
    for path in (found.files[name] for name in _CELEBA_FILES if name in found.files):
        labels = Labels.read(path).match(names, source=str(path))
        merged = replace(merged, people=merged.people if labels.people is None else labels.people)
        merged = replace(merged, splits=labels.splits or merged.splits)
        if labels.attribute_names:
            merged = replace(merged, attributes=labels.attributes, attribute_names=labels.attribute_names)
    return merged


def _labelled(faces: FaceSet, labels: Labels, groups: Groups | None = None, **more: Any) -> FaceSet:
    """People, splits and columns of 0 and 1; CelebA's Male and Young stand in for gender and age."""
    columns = labels.attribute_columns or labels.attribute_names
    named = zip(columns, labels.attribute_names, labels.attributes.T, strict=True)
    attributes = {name: values for column, name, values in named if column == name}
    groups = dict(groups or {})
    for group, attribute, *words in (("gender", "Male", "Female", "Male"), ("age", "Young", "not young", "young")):
        if attribute in attributes and group not in groups:
            groups[group] = tuple(words[value] for value in attributes[attribute])
    people = faces.people if labels.people is None else labels.people
    return replace(faces, people=people, attributes=attributes, groups=groups, splits=labels.splits, **more)


def _celeba(found: SetFiles) -> FaceSet:
    faces = found.faces.take(found.below("img_align_celeba") or range(len(found.faces)))
    terms = "CelebA: non-commercial research only, no redistribution"
    return _labelled(faces, _celeba_labels(found, faces.names), licence=terms)


def _celeba_hq(found: SetFiles) -> FaceSet:
    """People and the division through the mapping to CelebA, whose label files are found or named."""
    faces = found.faces.take(found.below("CelebA-HQ-img"))
    names = faces.names
    labels = Labels(names, None, np.zeros((len(names), 0), np.uint8), ())
    if _MAPPING in found.files and set(found.files) & set(_CELEBA_FILES):
        path = found.files[_MAPPING]
        try:
            lines = [line.split() for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
            origin = {number: file for number, _, file in lines[1:]}  # idx, orig_idx, orig_file
            labels = _celeba_labels(found, [origin[PurePosixPath(name).stem] for name in names])
        except (OSError, ValueError, KeyError) as error:
            raise InputError(f"{path} is not the mapping of all these images ({error}); copy it again") from error
    if _HQ_ATTRIBUTES in found.files:
        path = found.files[_HQ_ATTRIBUTES]
        own = Labels.read(path).match(names, source=str(path))
        labels = replace(labels, attributes=own.attributes, attribute_names=own.attribute_names)
    return _labelled(faces, labels, licence="CelebAMask-HQ: non-commercial research and education only")


def _ffhq(found: SetFiles) -> FaceSet:
    """Nobody is named in FFHQ: every image counts as a person of its own."""
    faces = found.faces.take(next(filter(None, map(found.below, _FFHQ_FOLDERS)), range(len(found.faces))))
    terms = "FFHQ: CC BY-NC-SA 4.0 as a set; each image has the licence its metadata names"
    return replace(faces, people=np.arange(len(faces), dtype=np.int64), licence=terms)


def _csv(found: SetFiles) -> FaceSet:
    path = found.table
    if path is None:
        raise InputError(f"{found.path} has no table beside it; name a CSV with the columns file and person as labels")
    labels = Labels.read(path).match(found.faces.names, source=str(path))
    rows = {row.get("file", ""): row for row in _table(path, strict=False)}
    columns = [column for column in _columns(path) if column not in _NO_GROUPS]
    return _labelled(found.faces, labels, _described([rows[file.strip()] for file in labels.files], columns)[1])


def _london(found: SetFiles) -> FaceSet:
    ours = found.person_table is not None and "face_eth" in _columns(found.person_table)
    terms = "Face Research Lab London Set: CC BY 4.0 (DeBruine & Jones)" if ours else None
    return replace(_by_name(found, _LONDON), licence=terms)


def _folders(found: SetFiles) -> FaceSet:
    return _labelled(found.faces, Labels.from_folders(found.faces.names))


def _by_name(found: SetFiles, identity: str | None = None) -> FaceSet:
    identity = identity or found.identity
    if identity is None:
        raise UsageError(r"layout pattern needs an identity, a regular expression such as (\d{3})_ with one group")
    try:
        find = re.compile(identity)
    except re.error as error:
        raise UsageError(f"identity {identity!r} is no regular expression ({error})") from error
    if not find.groups:
        raise UsageError(rf"identity {identity!r} has no group; put brackets round the person, as in (\d{{3}})_")
    hits = [find.search(name) for name in found.faces.names]
    keys = [_person_key(hit[1]) if hit and hit[1] else "" for hit in hits]
    known = sorted({*keys} - {""})
    if not known:
        raise InputError(f"identity {identity!r} is found in no name of {found.path}, such as {found.faces.names[0]}")
    whole = all(key.isdecimal() and len(key) < 19 for key in known)
    number = {key: int(key) if whole else index for index, key in enumerate(known)}
    people = np.array([number.get(key, -1) for key in keys], np.int64)
    faces = replace(found.faces, people=people)
    if found.person_table is None:
        return faces
    rows, columns = _people_of(found.person_table), _columns(found.person_table)[1:]
    attributes, groups = _described([rows.get(key, {}) for key in keys], columns)
    return replace(faces, attributes=attributes, groups=groups)


def _is_celeba(found: SetFiles) -> bool:
    numbered = found.all_match(r"/\d{6}\.jpg$")
    return bool(found.below("img_align_celeba")) or (numbered and bool(set(found.files) & set(_CELEBA_FILES)))


def _is_london(found: SetFiles) -> bool:
    if found.person_table is None or not found.all_match(_LONDON):
        return False
    hits = (re.search(_LONDON, name) for name in found.faces.names)
    return {_person_key(hit[1]) for hit in hits if hit} <= set(_people_of(found.person_table))


_ALL = (
    Layout("pattern", "the person in the name, found by `identity`", lambda f: f.identity is not None, _by_name),
    Layout("celeba-hq", "CelebAMask-HQ: CelebA-HQ-img/0.jpg", lambda f: bool(f.below("CelebA-HQ-img")), _celeba_hq),
    Layout("ffhq", "images1024x1024/00000/00000.png", lambda f: any(map(f.below, _FFHQ_FOLDERS)), _ffhq),
    Layout("celeba", "img_align_celeba/000001.jpg, identity_CelebA.txt, list_attr_celeba.txt", _is_celeba, _celeba),
    Layout("csv", "images and a CSV with the columns file and person", lambda f: f.table is not None, _csv),
    Layout("london", "001_neutral.jpg and a CSV with a row per person", _is_london, _london),
    Layout("folders", "a folder per person", lambda f: all("/" in name for name in f.faces.names), _folders),
)
LAYOUTS: dict[str, Layout] = {layout.name: layout for layout in _ALL}  # By name, in the order in which they are tried
