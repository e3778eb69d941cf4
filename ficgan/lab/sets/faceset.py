"""A set of face images at a path, in a fixed order, with what is known about each: who, attributes, groups."""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ficgan.data.dataset import Blob, agreed, list_blobs, recorded
from ficgan.errors import InputError, UsageError
from ficgan.lab.sets.formats import LABEL_FILES, LAYOUTS, Found

__all__ = ["FaceSet", "open_set"]

_ARCHIVES = (".zip", ".tar")
_MOST_FOLDERS = 32  # a folder with more folders in it is full of people, not of parts of a download
_LICENCES = ("licence", "license", "licence.txt", "license.txt", "licence.md", "license.md")


@dataclass(frozen=True)
class FaceSet:
    """N images, opened by `open_set`, not decoded yet. Attributes are 0 or 1; groups are texts, "" where unknown."""

    name: str
    layout: str  # a name in `formats.LAYOUTS`
    blobs: tuple[Blob, ...]
    names: tuple[str, ...]  # unique, sorted by code point
    people: NDArray[np.int64]  # [N], one number per person, −1 where unknown
    attributes: dict[str, NDArray[np.uint8]] = field(default_factory=dict)  # name → [N]
    groups: dict[str, tuple[str, ...]] = field(default_factory=dict)  # name → N texts
    splits: tuple[str, ...] | None = None  # N names such as "test", of the set's own division
    licence: str | None = None  # a sentence, or the text of the licence file
    alignment: str | None = None  # as `ficgan.data.alignment_name` says it, where a table says it

    def __len__(self) -> int:
        return len(self.blobs)

    @cached_property
    def digest(self) -> str:
        """sha256 over names, encoded sizes and, in zips, checksums, 64 hex digits; the bytes are not read."""
        digest = hashlib.sha256()
        for name, blob in zip(self.names, self.blobs, strict=True):
            digest.update(f"{name}\0{blob.size}\0{blob.crc}\n".encode())
        return digest.hexdigest()

    @cached_property
    def repeated(self) -> tuple[tuple[str, ...], ...]:
        """Names of files that hold the same bytes, a tuple for each such content; files of equal size are read once."""
        alike: dict[tuple[int, int | None], list[int]] = defaultdict(list)
        for row, blob in enumerate(self.blobs):
            alike[blob.size, blob.crc].append(row)
        same: dict[bytes, list[int]] = defaultdict(list)
        for rows in alike.values():
            for row in rows if len(rows) > 1 else ():
                try:
                    same[hashlib.sha256(self.blobs[row].read()).digest()].append(row)
                except InputError:
                    continue  # `prepare` reports each file that cannot be read
        return tuple(sorted(tuple(self.names[row] for row in rows) for rows in same.values() if len(rows) > 1))

    @property
    def identities(self) -> int:
        return len(np.unique(self.people[self.people >= 0]))

    def take(self, rows: Sequence[int] | NDArray[np.integer]) -> FaceSet:
        """The images at `rows`, in that order."""
        index = np.asarray(rows, np.int64)
        return replace(
            self,
            blobs=tuple(self.blobs[i] for i in index),
            names=tuple(self.names[i] for i in index),
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
        groups = {}
        for name, values in sorted(self.groups.items()):
            known, counts = np.unique(list(values), return_counts=True)
            groups[name] = {str(v) or "unknown": int(count) for v, count in zip(known, counts, strict=True)}
        return {
            "name": self.name,
            "layout": self.layout,
            "images": len(self),
            "identities": self.identities,
            "images_of_unknown_people": int((self.people < 0).sum()),
            "attributes": sorted(self.attributes),
            "groups": groups,
            "repeated_files": sum(len(names) - 1 for names in self.repeated),
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
    images_per_person: int | None = None,
) -> FaceSet:
    """Open a folder, zip or tar of face images, or a folder of such archives, as it was downloaded.

    Args:
        layout: a name in `formats.LAYOUTS`, or "auto": recognised by its files.
        labels: a CSV with a `file` column, a CSV with a row per person, one of CelebA's label files, or a folder of
            those; None: what lies in and beside `path`.
        identity: regular expression searched in each name; its first group is the person.
        limit_people: only the people with the most images.
        images_per_person: only the first images of each person, in order of names.
    """
    path, labels = Path(path), None if labels is None else Path(labels)
    for option, value in (("limit_people", limit_people), ("images_per_person", images_per_person)):
        if value is not None and value < 1:
            raise UsageError(f"{option} is {value}; give at least 1")
    if layout != "auto" and layout not in LAYOUTS:
        raise UsageError(f"there is no layout {layout!r}; use auto, {', '.join(LAYOUTS)}")
    if labels is not None and not labels.exists():
        raise InputError(f"labels {labels} are not there; name a file or a folder")
    blobs = _sorted_by_name(_blobs(path))
    # A folder, and CelebA's texts, stand among the label files; a CSV has the last word.
    table = labels if labels is not None and labels.suffix.lower() == ".csv" else None
    found = Found(path.absolute(), tuple(blobs), _label_files(path.absolute(), labels), table, identity)
    chosen = LAYOUTS.get(layout) or next((each for each in LAYOUTS.values() if each.fits(found)), None)
    if chosen is None:
        shapes = "; ".join(f"{each.name}: {each.what}" for each in LAYOUTS.values())
        raise InputError(f"{path}, with images such as {found.names[0]}, is of no known layout; name labels ({shapes})")
    known = chosen.read(found)
    names = found.names if known.rows is None else tuple(found.names[row] for row in known.rows)
    if not names:
        raise InputError(f"{path} has no image of layout {chosen.name}, {chosen.what}")
    faces = FaceSet(
        name or path.absolute().stem,
        chosen.name,
        tuple(blobs[each] for each in names),
        names,
        known.people,
        known.categories.attributes,
        known.categories.groups,
        known.splits,
        known.licence or _licence(path),
        agreed(recorded([path])),
    )
    keep = np.ones(len(faces), bool)
    if limit_people is not None:
        who, images = np.unique(faces.people[faces.people >= 0], return_counts=True)
        if not len(who):
            raise InputError("limit_people needs a set in which people are known; this one names nobody")
        keep &= np.isin(faces.people, who[np.argsort(-images, kind="stable")[:limit_people]])
    if images_per_person is not None:
        keep &= (_occurrence(faces.people) < images_per_person) | (faces.people < 0)
    return faces if keep.all() else faces.take(np.flatnonzero(keep))


def _blobs(path: Path) -> list[Blob]:
    try:
        return list_blobs(path)
    except InputError:
        archives = sorted(each for each in path.rglob("*") if each.suffix.lower() in _ARCHIVES) if path.is_dir() else []
        if not archives:
            raise
    return [
        # Inside, DigiFace-1M's archives are numbered folders: the archive's name belongs to what is recognised.
        replace(blob, name=f"{archive.stem}/{blob.name.removeprefix(archive.stem + '/')}")
        for archive in archives
        for blob in list_blobs(archive)
    ]


def _sorted_by_name(blobs: list[Blob]) -> dict[str, Blob]:
    twice = [name for name, count in Counter(blob.name for blob in blobs).items() if count > 1]
    if twice:
        raise InputError(f"two images are called {twice[0]}; rename one, or open their folders one by one")
    return {blob.name: blob for blob in sorted(blobs, key=lambda blob: blob.name)}


def _label_files(path: Path, labels: Path | None) -> dict[str, Path]:
    beside = path.parent
    places: list[Path] = []
    if labels is not None:
        places += [labels, *_subfolders(labels)] if labels.is_dir() else [labels.parent]
    if path.is_dir():
        places += [path, *_subfolders(path)]
    places += [beside, beside / "Anno", beside / "Eval"]
    found: dict[str, Path] = {}
    if labels is not None and labels.is_file():
        found[labels.name] = labels
    for place in dict.fromkeys(places):
        for file in (*sorted(place.glob("*.csv")), *sorted(place.glob("*.txt"))):
            # Beside the path may lie anything: only what is known by its name, and its own table.
            own = place != beside or file.name in LABEL_FILES or path.stem.startswith(file.stem)
            if own and (file.suffix.lower() == ".csv" or file.name in LABEL_FILES):
                found.setdefault(file.name, file)
    return found


def _subfolders(path: Path) -> list[Path]:
    folders = [each for each in sorted(path.iterdir()) if each.is_dir()]
    return folders if len(folders) <= _MOST_FOLDERS else []


def _licence(path: Path) -> str | None:
    files = sorted(path.iterdir()) if path.is_dir() else []
    file = next((each for each in files if each.name.lower() in _LICENCES), None)
    return None if file is None else file.read_text(encoding="utf-8", errors="replace").strip() or None


def _occurrence(people: NDArray[np.int64]) -> NDArray[np.int64]:
    seen: Counter[int] = Counter()
    out = np.empty(len(people), np.int64)
    for row, person in enumerate(people.tolist()):
        out[row] = seen[person]
        seen[person] += 1
    return out
