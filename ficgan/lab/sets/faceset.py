"""A set of faces with people, attributes and groups; and its split into background, attacker, gallery and probe."""

from __future__ import annotations

import hashlib
import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ficgan.anonymizers import generator
from ficgan.data.dataset import Blob, agreed, list_blobs, recorded
from ficgan.errors import InputError, UsageError
from ficgan.lab.sets.formats import LABEL_FILES, LAYOUTS, SetFiles

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
    found = SetFiles(path.absolute(), tuple(blobs), _label_files(path.absolute(), labels), table, identity)
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
    """[N] how many earlier images show the same person."""
    order = np.argsort(people, kind="stable")
    out = np.empty(len(people), np.int64)
    out[order] = np.arange(len(people)) - np.searchsorted(people[order], people[order])
    return out


Rows = NDArray[np.int64]
PARTS = ("background", "attacker", "gallery", "probe", "unused")
_PRIORITY = ("gallery", "probe", "attacker", "background")  # Of equal pictures the first in this order stays


@dataclass(frozen=True)
class Split:
    """Rows of a set, each in one part. The manifest says how it was drawn and what each part holds, with hashes."""

    background: Rows  # images of people that anonymisers may mix in
    attacker: Rows  # images of people from whom attackers learn
    gallery: Rows  # enrolled images of the people of the evaluation
    probe: Rows  # the other images of the same people
    unused: Rows
    manifest: dict[str, Any] = field(default_factory=dict)

    @property
    def digest(self) -> str:
        """sha256 of who and what is in which part."""
        return str(self.manifest["sha256"])


def split(
    people: NDArray[np.integer] | Sequence[int],
    *,
    background: int = 200,
    attacker: int = 4500,
    test: int = 300,
    enrolment: float = 0.75,
    seed: int = 0,
    names: Sequence[str] | None = None,
) -> Split:
    """Draw people for background, attacker and evaluation from those with the most images (Fantômas, §7.3, §7.4).

    Args:
        people: [N], one number per person, −1 where unknown: those images stay unused.
        background, attacker, test: how many people of each, scaled down alike where there are too few.
        enrolment: share of each evaluated person's images that is enrolled, between 0 and 1.
    """
    people = np.asarray(people, np.int64).reshape(-1)
    wanted = {"background": background, "attacker": attacker, "test": test}
    who, counts = np.unique(people[people >= 0], return_counts=True)
    sizes, scale = _sizes(wanted, len(who), int((counts >= 2).sum()))
    drawn = _draw(who, counts, sizes, seed)
    sides = [np.flatnonzero(np.isin(people, drawn[part])) for part in ("background", "attacker")]
    gallery, probe = _enrol(drawn["test"], people, enrolment, seed)
    unused = np.setdiff1d(np.arange(len(people)), np.concatenate([*sides, gallery, probe]))
    how = {
        "seed": seed,
        "enrolment": enrolment,
        "wanted": wanted,
        "scale": scale,
        "people_with_one_image": int((counts == 1).sum()),
        "images_of_unknown_people": int((people < 0).sum()),
    }
    return written(Split(sides[0], sides[1], gallery, probe, unused), people, how, names)


def written(
    split: Split, people: NDArray[np.integer], how: dict[str, Any], names: Sequence[str] | None = None
) -> Split:
    """A split with its manifest: `how` it was made, then what is in it."""
    parts: dict[str, dict[str, Any]] = {}
    for part in PARTS:
        rows = getattr(split, part)
        lines = [f"{people[row]}\0{names[row] if names is not None else row}" for row in rows]
        digest = hashlib.sha256("\n".join(lines).encode()).hexdigest()
        known = people[rows][people[rows] >= 0]
        parts[part] = {"people": len(np.unique(known)), "images": len(rows), "sha256": digest}
    # What was drawn, not what was asked for: two ways to one division have one hash.
    total = hashlib.sha256("".join(parts[part]["sha256"] for part in PARTS).encode()).hexdigest()
    return replace(split, manifest={**how, "parts": parts, "sha256": total})


def _sizes(wanted: dict[str, int], people: int, several: int) -> tuple[dict[str, int], float]:
    if several < 2:
        raise InputError(
            f"{several} of {people} people have two images or more; an evaluation needs at least 2 such people, "
            "each with an image to enrol and another to look for"
        )
    factor = min(1.0, people / sum(wanted.values()), several / wanted["test"])
    # No part vanishes by scaling alone; what rounding up has added is taken from the largest part.
    sizes = {part: max(min(count, 1), math.floor(count * factor + 1e-9)) for part, count in wanted.items()}
    sizes["test"] = max(2, sizes["test"])
    largest = max(("background", "attacker"), key=lambda part: sizes[part])
    sizes[largest] -= min(sizes[largest], max(0, sum(sizes.values()) - people))
    if sum(sizes.values()) > people or sizes["test"] > several:
        raise InputError(
            f"{sum(sizes.values())} people are needed, {sizes['test']} of them with two images or more, but there "
            f"are {people} and {several}; ask for fewer"
        )
    return sizes, factor


def _draw(who: Rows, counts: Rows, sizes: dict[str, int], seed: int) -> dict[str, Rows]:
    pool = np.sort(np.argsort(-counts, kind="stable")[: sum(sizes.values())])
    shuffled = generator(seed, "split").permutation(pool)
    test = shuffled[counts[shuffled] >= 2][: sizes["test"]]
    rest = shuffled[~np.isin(shuffled, test)]
    background, attacker, _ = np.split(rest, np.cumsum([sizes["background"], sizes["attacker"]]))
    drawn = {"background": background, "attacker": attacker, "test": test}
    return {part: np.sort(who[index]) for part, index in drawn.items()}


def _enrol(who: Rows, people: Rows, enrolment: float, seed: int) -> tuple[Rows, Rows]:
    gallery, probe = [], []
    for person in who.tolist():
        rows = generator(seed, "enrolment", person).permutation(np.flatnonzero(people == person))
        count = min(max(1, math.floor(enrolment * len(rows) + 0.5)), len(rows) - 1)
        gallery.append(rows[:count])
        probe.append(rows[count:])
    return np.sort(np.concatenate(gallery)), np.sort(np.concatenate(probe))


def without_repeats(split: Split, people: Rows, names: Sequence[str] | None, digests: Sequence[str]) -> Split:
    """The split without pictures (equal `digests`) that stand in two parts or twice: they would flatter its figures.

    Gallery comes before probe, attacker and background. People who lose their last enrolled or probe image are left
    out.
    """
    first: dict[str, tuple[int, str]] = {}
    gone: set[int] = set()
    for part in _PRIORITY:
        for row in getattr(split, part).tolist():
            kept, where = first.setdefault(digests[row], (row, part))
            # What attackers learn from and what is mixed in may repeat itself.
            if kept != row and not (where == part and part in ("attacker", "background")):
                gone.add(row)
    if not gone:
        return split
    count = len(gone)
    gallery, probe = (set(people[[r for r in part if r not in gone]]) for part in (split.gallery, split.probe))
    lost = gallery ^ probe  # whoever has lost one side leaves the evaluation with the other
    gone |= {int(row) for row in np.concatenate([split.gallery, split.probe]) if people[row] in lost}
    if not gallery & probe:
        raise InputError("no picture of the evaluation is left that stands in one part only; give another set")
    removed = np.array(sorted(gone), np.int64)
    parts: dict[str, Any] = {part: np.setdiff1d(getattr(split, part), removed) for part in _PRIORITY}
    unused = np.sort(np.concatenate([split.unused, removed]))
    how = {key: value for key, value in split.manifest.items() if key not in ("parts", "sha256")}
    how |= {"duplicates_removed": count, "people_lost_by_it": len(lost)}
    return written(replace(split, **parts, unused=unused), people, how, names)
