"""How public face sets lie on disk as downloaded: recognised by their files, and read where they lie."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

import numpy as np
from numpy.typing import NDArray

from ficgan.data.labels import Labels
from ficgan.errors import InputError, UsageError
from ficgan.lab.sets.celeba import CELEBA_FILES, HQ_FILES, read_celeba, read_hq
from ficgan.lab.sets.tables import Categories, PersonTable, columns_of, from_labels, numbered, same_key, value_of

__all__ = ["LAYOUTS", "Found", "Known", "Layout"]

_FFHQ_FOLDERS = ("images1024x1024", "thumbnails128x128")
_LONDON = r"(?:^|/)(\d{3})_[^/]*$"


@dataclass(frozen=True)
class Found:
    """What lies at a path.

    Attributes:
        path: the folder or archive.
        names: of its N images, sorted.
        files: label files in and beside it, by name.
        labels: the label file that was named; None where none was.
        identity: regular expression whose first group is the person; None where none was given.
    """

    path: Path
    names: tuple[str, ...]
    files: Mapping[str, Path]
    labels: Path | None = None
    identity: str | None = None

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
        own = [path for path in self._tables() if "file" in columns_of(path)]
        stem = self.path.stem
        # celeba_crops.tar has celeba_crops.csv, faces128-val.tar has faces128.csv.
        beside = [p for p in own if p.parent == self.path.parent and re.match(re.escape(p.stem) + r"($|[-_.])", stem)]
        inside = [path for path in own if self.path in path.parents]
        if self.labels is None and len(inside) > 1:
            listed = " and ".join(sorted(path.name for path in inside))
            raise UsageError(f"{self.path} has several tables, {listed}; name one as labels")
        chosen = inside or sorted(beside, key=lambda path: len(path.stem), reverse=True)
        return next(iter(own if self.labels is not None else chosen), None)

    @property
    def person_table(self) -> Path | None:
        """The CSV with a row per person: the one named, else the only one in the folder."""
        tables = [path for path in self._tables() if columns_of(path) and "file" not in columns_of(path)]
        inside = [path for path in tables if self.path in path.parents or path == self.labels]
        return inside[0] if len(inside) == 1 else None

    def _tables(self) -> list[Path]:
        paths = [self.labels] if self.labels is not None else list(self.files.values())
        return [path for path in paths if path.suffix.lower() == ".csv"]


@dataclass(frozen=True)
class Known:
    """What a layout tells of its images.

    Attributes:
        people: int64 [M], −1 where unknown.
        rows: of the images that belong to the set, [M]; None: all.
        told: attributes and groups of those M.
        splits: of those M; None where there is no division.
        licence: the set's terms in a sentence.
    """

    people: NDArray[np.int64]
    rows: Sequence[int] | None = None
    told: Categories = field(default_factory=lambda: Categories({}, {}))
    splits: tuple[str, ...] | None = None
    licence: str | None = None


@dataclass(frozen=True)
class Layout:
    """One way in which sets lie.

    Attributes:
        name: by which it is asked for.
        what: what it looks like, in a phrase.
        fits: whether files are recognised as this.
        read: what it tells.
    """

    name: str
    what: str
    fits: Callable[[Found], bool]
    read: Callable[[Found], Known]


def _people(labels: Labels) -> NDArray[np.int64]:
    return np.full(len(labels), -1, np.int64) if labels.people is None else labels.people


def _folders(found: Found) -> Known:
    return Known(_people(Labels.from_folders(found.names)))


def _lfw(found: Found) -> Known:
    return Known(numbered(PurePosixPath(name).name.rpartition("_")[0] for name in found.names))


def _celeba(found: Found) -> Known:
    rows = found.below("img_align_celeba") or list(range(len(found.names)))
    labels = read_celeba(found.files, [found.names[row] for row in rows])
    terms = "CelebA: non-commercial research only, no redistribution"
    return Known(_people(labels), rows, from_labels(labels).with_celeba(), labels.splits, terms)


def _celeba_hq(found: Found) -> Known:
    rows = found.below("CelebA-HQ-img")
    labels = read_hq(found.files, [found.names[row] for row in rows])
    terms = "CelebAMask-HQ: non-commercial research and education only"
    return Known(_people(labels), rows, from_labels(labels).with_celeba(), labels.splits, terms)


def _ffhq(found: Found) -> Known:
    rows = next((rows for folder in _FFHQ_FOLDERS if (rows := found.below(folder))), list(range(len(found.names))))
    folder = next((place / "json" for place in (found.path, found.path.parent) if (place / "json").is_dir()), None)
    told = Categories({}, {})
    if folder is not None:
        faces = [_ffhq_face(folder / f"{PurePosixPath(found.names[row]).stem}.json") for row in rows]
        groups = {key: tuple(value_of(key, str(face.get(key, ""))) for face in faces) for key in ("gender", "age")}
        told = Categories({}, groups)
    terms = "FFHQ: CC BY-NC-SA 4.0 as a set; each image has the licence its metadata names"
    # Nobody is named in FFHQ: every image counts as a person of its own.
    return Known(np.arange(len(rows), dtype=np.int64), rows, told, licence=terms)


def _ffhq_face(path: Path) -> Mapping[str, object]:
    """`faceAttributes` of one file of the FFHQ features set; empty where no face was found there."""
    try:
        faces = json.loads(path.read_text(encoding="utf-8"))
        return faces[0]["faceAttributes"] if faces else {}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise InputError(f"{path} is not a file of the FFHQ features set ({error}); mend or remove it") from error


def _digiface(found: Found) -> Known:
    people = numbered(PurePosixPath(name).parent.name for name in found.names)
    return Known(people, licence="DigiFace-1M: non-commercial research only")


def _att(found: Found) -> Known:
    people = numbered(PurePosixPath(name).parent.name.removeprefix("s") for name in found.names)
    return Known(people, licence="AT&T (ORL) Database of Faces: free with credit to AT&T Laboratories Cambridge")


def _csv(found: Found) -> Known:
    if found.table is None:
        raise InputError(f"{found.path} has no table beside it; name a CSV with the columns file and person as labels")
    labels = Labels.read(found.table).match(found.names, source=str(found.table))
    return Known(_people(labels), told=from_labels(labels, found.table).with_celeba(), splits=labels.splits)


def _pattern(found: Found) -> Known:
    if found.identity is None:
        raise UsageError(r"layout pattern needs an identity, a regular expression such as (\d{3})_ with one group")
    return _by_name(found, found.identity)


def _london(found: Found) -> Known:
    known = _by_name(found, found.identity or _LONDON)
    header = () if found.person_table is None else columns_of(found.person_table)
    terms = "Face Research Lab London Set: CC BY 4.0 (DeBruine & Jones)" if "face_eth" in header else None
    return Known(known.people, told=known.told, licence=terms)


def _by_name(found: Found, identity: str) -> Known:
    try:
        find = re.compile(identity)
    except re.error as error:
        raise UsageError(f"identity {identity!r} is no regular expression ({error})") from error
    if not find.groups:
        raise UsageError(rf"identity {identity!r} has no group; put brackets round the person, as in (\d{{3}})_")
    hits = [find.search(name) for name in found.names]
    keys = [same_key(hit[1]) if hit is not None and hit[1] else None for hit in hits]
    if not any(keys):
        raise InputError(f"identity {identity!r} is found in no name of {found.path}, such as {found.names[0]}")
    table = found.person_table
    return Known(numbered(keys), told=PersonTable.read(table).categories(keys) if table else Categories({}, {}))


def _is_celeba(found: Found) -> bool:
    numbered_files = found.all_match(r"/\d{6}\.jpg$")
    return bool(found.below("img_align_celeba")) or (numbered_files and bool(set(found.files) & CELEBA_FILES))


def _is_london(found: Found) -> bool:
    if found.person_table is None or not found.all_match(_LONDON):
        return False
    with found.person_table.open(encoding="utf-8-sig", newline="") as file:
        known = {same_key(row[0]) for row in csv.reader(file) if row}
    hits = (re.search(_LONDON, name) for name in found.names)
    return {same_key(hit[1]) for hit in hits if hit} <= known


def _is_att(found: Found) -> bool:
    if not found.all_match(r"/s0*\d{1,2}/\d{1,2}\.(pgm|png)$"):
        return False
    people = {PurePosixPath(name).parent for name in found.names}
    return len(people) <= 40 and len(found.names) <= 10 * len(people)


_ALL = (
    Layout("pattern", "the person in the name, found by `identity`", lambda f: f.identity is not None, _pattern),
    Layout("celeba-hq", "CelebAMask-HQ: CelebA-HQ-img/0.jpg", lambda f: bool(f.below("CelebA-HQ-img")), _celeba_hq),
    Layout("ffhq", "images1024x1024/00000/00000.png", lambda f: any(map(f.below, _FFHQ_FOLDERS)), _ffhq),
    Layout(
        "celeba",
        "img_align_celeba/000001.jpg, identity_CelebA.txt, list_attr_celeba.txt",
        _is_celeba,
        _celeba,
    ),
    Layout("csv", "images and a CSV with the columns file and person", lambda f: f.table is not None, _csv),
    Layout("lfw", "Name/Name_0001.jpg", lambda f: f.all_match(r"/([^/]+)/\1_\d{4}\.\w+$"), _lfw),
    Layout("london", "001_neutral.jpg and a CSV with a row per person", _is_london, _london),
    Layout("att", "s1/1.pgm", _is_att, _att),
    Layout(
        "digiface",
        "subjects_0-1999_72_imgs/0/0.png",
        # Plain numbered folders may be anybody's: the set is known by the names of its archives or its own.
        lambda f: f.all_match(r"(?i)(subjects_\d+-\d+|digiface).*/\d+/\d+\.png$"),
        _digiface,
    ),
    Layout("folders", "a folder per person", lambda f: all("/" in name for name in f.names), _folders),
)
LAYOUTS: dict[str, Layout] = {layout.name: layout for layout in _ALL}
"""By name, in the order in which they are tried."""

LABEL_FILES = CELEBA_FILES | HQ_FILES
