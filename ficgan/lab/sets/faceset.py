"""A set of face images with what is known about each: who, which attributes, which groups of people."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ficgan.data.dataset import Blob
from ficgan.errors import InputError

__all__ = ["FaceSet"]


@dataclass(frozen=True)
class FaceSet:
    """N images, opened by `open_set`; nothing is decoded yet.

    Args:
        name: as a report says it.
        layout: how the files lay; a name in `LAYOUTS`.
        blobs: where the N images lie.
        names: N unique names, sorted by code point.
        people: int64 [N], one number per person, −1 where unknown.
        attributes: name → uint8 [N], 0 or 1, such as CelebA's forty.
        groups: name → N texts, "" where unknown: "gender", "age" and "race" wherever the set has them.
        splits: N names such as "test", of the set's own division; None where it has none.
        licence: the set's terms, one sentence or the text of its licence file; None where nothing says.
        alignment: how the faces are aligned, as `ficgan.data.alignment_name` says it; None where no table says.
    """

    name: str
    layout: str
    blobs: tuple[Blob, ...]
    names: tuple[str, ...]
    people: NDArray[np.int64]
    attributes: dict[str, NDArray[np.uint8]] = field(default_factory=dict)
    groups: dict[str, tuple[str, ...]] = field(default_factory=dict)
    splits: tuple[str, ...] | None = None
    licence: str | None = None
    alignment: str | None = None

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
                    continue  # `prepare` says so of each file that cannot be read
        return tuple(sorted(tuple(self.names[row] for row in rows) for rows in same.values() if len(rows) > 1))

    @property
    def identities(self) -> int:
        """How many people are known."""
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
        """The images of one part of the set's own division.

        Raises:
            InputError: the set has no division, or no such part.
        """
        rows = [row for row, part in enumerate(self.splits or ()) if part == split]
        if not rows:
            parts = ", ".join(sorted(set(self.splits or ()))) or "no parts"
            raise InputError(f"{self.name} has no part {split!r}; it has {parts}")
        return self.take(rows)

    def facts(self) -> dict[str, Any]:
        """What a report says of the set, JSON-ready."""
        return {
            "name": self.name,
            "layout": self.layout,
            "images": len(self),
            "identities": self.identities,
            "images_of_unknown_people": int((self.people < 0).sum()),
            "attributes": sorted(self.attributes),
            "groups": {name: _counts(values) for name, values in sorted(self.groups.items())},
            "repeated_files": sum(len(names) - 1 for names in self.repeated),
            "licence": self.licence,
            "digest": self.digest,
        }


def _counts(values: Sequence[str]) -> dict[str, int]:
    known, counts = np.unique(list(values), return_counts=True)
    return {str(value) or "unknown": int(count) for value, count in zip(known, counts, strict=True)}
