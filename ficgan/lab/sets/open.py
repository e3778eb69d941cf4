"""Opening a face set: images at a path, in a locked order, with what their layout tells of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ficgan.data.dataset import Blob, agreed, list_blobs, recorded
from ficgan.errors import InputError, UsageError
from ficgan.lab.sets.faceset import FaceSet
from ficgan.lab.sets.layouts import LABEL_FILES, LAYOUTS, Found

__all__ = ["open_set"]

_ARCHIVES = (".zip", ".tar")
_MOST_FOLDERS = 32  # a folder with more folders in it is full of people, not of parts of a download
_LICENCES = ("licence", "license", "licence.txt", "license.txt", "licence.md", "license.md")


def open_set(
    path: Path | str,
    *,
    layout: str = "auto",
    labels: Path | str | None = None,
    identity: str | None = None,
    name: str | None = None,
    limit_people: int | None = None,
    images_per_person: int | None = None,
    licence: str | None = None,
) -> FaceSet:
    """Open a folder, zip or tar of face images, or a folder of such archives, as it was downloaded.

    Label files are read beside an archive, not in it.

    Args:
        path: of the images.
        layout: a name in `LAYOUTS`, or "auto": recognised by its files; the set's `layout` says as which.
        labels: a CSV with a `file` column, a CSV with a row per person (with `identity` or layout "london"), one of
            CelebA's label files, or a folder of those; None: what lies in and beside `path`.
        identity: regular expression searched in each name; its first group is the person.
        name: of the set; None: of the folder or archive.
        limit_people: only the so many people with the most images; images of unknown people are then left out.
        images_per_person: only the first so many images of each person, in order of names.
        licence: the set's terms; None: what is known of the layout, else the text of a licence file in the folder.

    Raises:
        UsageError: an option that cannot work, such as an unknown layout.
        InputError: the path or the labels cannot be read, or no layout fits.
    """
    path, labels = Path(path), None if labels is None else Path(labels)
    for option, value in (("limit_people", limit_people), ("images_per_person", images_per_person)):
        if value is not None and value < 1:
            raise UsageError(f"{option} is {value}; give at least 1")
    if layout != "auto" and layout not in LAYOUTS:
        raise UsageError(f"there is no layout {layout!r}; use auto, {', '.join(LAYOUTS)}")
    if labels is not None and not labels.exists():
        raise InputError(f"labels {labels} are not there; name a file or a folder")
    blobs = _named(_blobs(path))
    # A folder, and CelebA's texts, stand among the label files; a CSV has the last word.
    table = labels if labels is not None and labels.suffix.lower() == ".csv" else None
    found = Found(path.absolute(), tuple(blobs), _label_files(path.absolute(), labels), table, identity)
    chosen = LAYOUTS.get(layout) or next((one for one in LAYOUTS.values() if one.fits(found)), None)
    if chosen is None:
        shapes = "; ".join(f"{one.name}: {one.what}" for one in LAYOUTS.values())
        raise InputError(f"{path}, with images such as {found.names[0]}, is of no known layout; name labels ({shapes})")
    known = chosen.read(found)
    names = found.names if known.rows is None else tuple(found.names[row] for row in known.rows)
    if not names:
        raise InputError(f"{path} has no image of layout {chosen.name}, {chosen.what}")
    faces = FaceSet(
        name or path.absolute().stem,
        chosen.name,
        tuple(blobs[one] for one in names),
        names,
        known.people,
        known.told.attributes,
        known.told.groups,
        known.splits,
        licence or known.licence or _licence(path),
        agreed(recorded([path])),
    )
    return _limited(faces, limit_people, images_per_person)


def _blobs(path: Path) -> list[Blob]:
    """Images at a path; of a folder without images, those in the archives that lie in it."""
    try:
        return list_blobs(path)
    except InputError:
        archives = sorted(one for one in path.rglob("*") if one.suffix.lower() in _ARCHIVES) if path.is_dir() else []
        if not archives:
            raise
    return [
        # Inside, DigiFace-1M's archives are numbered folders: the archive's name belongs to what is recognised.
        replace(blob, name=f"{archive.stem}/{blob.name.removeprefix(archive.stem + '/')}")
        for archive in archives
        for blob in list_blobs(archive)
    ]


def _named(blobs: list[Blob]) -> dict[str, Blob]:
    """By name, sorted by code point: the same order on every machine."""
    twice = [name for name, count in Counter(blob.name for blob in blobs).items() if count > 1]
    if twice:
        raise InputError(f"two images are called {twice[0]}; rename one, or open their folders one by one")
    return {blob.name: blob for blob in sorted(blobs, key=lambda blob: blob.name)}


def _label_files(path: Path, labels: Path | None) -> dict[str, Path]:
    """Label files by name, the nearest first: at `labels`, in the path and its parts, beside it."""
    places = [] if labels is None else [labels if labels.is_dir() else labels.parent]
    if labels is not None and labels.is_dir():
        places += _subfolders(labels)
    if path.is_dir():
        places += [path, *_subfolders(path)]
    beside = path.parent
    places += [beside, *(beside / part for part in ("Anno", "Eval"))]
    found: dict[str, Path] = {}
    if labels is not None and labels.is_file():
        found[labels.name] = labels
    for place in dict.fromkeys(places):
        for file in _tables(place):
            # Beside the path may lie anything: only what is known by its name, and its own table.
            own = place != beside or file.name in LABEL_FILES or path.stem.startswith(file.stem)
            if own and (file.suffix.lower() == ".csv" or file.name in LABEL_FILES):
                found.setdefault(file.name, file)
    return found


def _tables(place: Path) -> Iterator[Path]:
    for pattern in ("*.csv", "*.txt"):
        yield from sorted(place.glob(pattern))


def _subfolders(path: Path) -> list[Path]:
    folders = [one for one in sorted(path.iterdir()) if one.is_dir()]
    return folders if len(folders) <= _MOST_FOLDERS else []


def _licence(path: Path) -> str | None:
    """The text of a licence file in the folder."""
    if not path.is_dir():
        return None
    file = next((one for one in sorted(path.iterdir()) if one.name.lower() in _LICENCES), None)
    return None if file is None else file.read_text(encoding="utf-8", errors="replace").strip() or None


def _limited(faces: FaceSet, people: int | None, images: int | None) -> FaceSet:
    keep = np.ones(len(faces), bool)
    if people is not None:
        keep &= np.isin(faces.people, _largest(faces.people, people))
    if images is not None:
        keep &= (_occurrence(faces.people) < images) | (faces.people < 0)
    return faces if keep.all() else faces.take(np.flatnonzero(keep))


def _largest(people: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    """The people with the most images; of equal ones the lower number."""
    who, images = np.unique(people[people >= 0], return_counts=True)
    if not len(who):
        raise InputError("limit_people needs a set in which people are known; this one names nobody")
    return who[np.argsort(-images, kind="stable")[:count]]


def _occurrence(people: NDArray[np.int64]) -> NDArray[np.int64]:
    """Which image of its person each is, counted from 0."""
    order = np.argsort(people, kind="stable")
    in_order = people[order]
    starts = np.flatnonzero(np.r_[True, in_order[1:] != in_order[:-1]])
    lengths = np.diff(np.r_[starts, len(people)])
    which = np.empty(len(people), np.int64)
    which[order] = np.arange(len(people)) - np.repeat(starts, lengths)
    return which
