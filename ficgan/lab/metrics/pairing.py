"""Who is compared with whom: genuine pairs, strangers, and an image with itself."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ficgan.errors import InputError

from .comparison import Index

__all__ = ["Columns", "acquired_of", "columns_of", "gallery_kept", "people_of"]


@dataclass(frozen=True)
class Columns:
    """Where the columns of the score matrix, sorted by person, belong.

    Args:
        people: [E] the enrolled people, ascending.
        first: [E] their first columns.
        images: [E] how many columns each has.
        of: [P] the probe's person among them; any number where nobody of theirs is enrolled.
        genuine: [P] enrolled images of the probe's person; its own image, if left out, is not among them.
        own: [P] column that holds the probe itself and is left out; −1 where there is none.
    """

    people: NDArray[np.int64]
    first: Index
    images: Index
    of: Index
    genuine: NDArray[np.int64]
    own: Index

    @property
    def total(self) -> int:
        """Columns altogether."""
        return int(self.images.sum())

    def strangers(self, rows: Index) -> int:
        """Impostor scores of these probes."""
        return len(rows) * self.total - int(self.genuine[rows].sum()) - int(np.count_nonzero(self.own[rows] >= 0))

    def not_strangers(self, rows: Index) -> tuple[Index, Index, NDArray[np.bool_]]:
        """Row in the block and column of everything that is no impostor score, and which of that is genuine."""
        lengths = self.genuine[rows] + (self.own[rows] >= 0)
        row = np.repeat(np.arange(len(rows)), lengths)
        begin = np.repeat(self.first[self.of[rows]] - np.cumsum(lengths) + lengths, lengths)
        column = begin + np.arange(len(row))
        return row, column, column != self.own[rows][row]


def people_of(given: ArrayLike, images: int, what: str) -> NDArray[np.int64]:
    """[N] who is in each image; refused where somebody is not known."""
    people = np.asarray(given)
    if people.shape != (images,) or people.dtype.kind not in "iu":
        raise InputError(f"{images} {what} images need as many whole numbers for their people, not {people.dtype} "
                         f"{list(people.shape)}")  # fmt: skip
    if (people < 0).any():
        raise InputError(
            f"{int((people < 0).sum())} {what} images show people who are not known (number −1); leave them out"
        )
    return people.astype(np.int64)


def acquired_of(given: ArrayLike | None, probes: int) -> NDArray[np.bool_]:
    """[P] which probes have an embedding."""
    if given is None:
        return np.ones(probes, np.bool_)
    acquired = np.asarray(given)
    if acquired.shape != (probes,) or acquired.dtype != bool:
        raise InputError(f"{probes} probes need as many booleans for what was acquired, not {acquired.dtype} "
                         f"{list(acquired.shape)}")  # fmt: skip
    return acquired


def gallery_kept(
    people: NDArray[np.int64], enrolled: NDArray[np.int64], acquired: NDArray[np.bool_], same: bool
) -> Index:
    """Gallery images that take part; refused where there is nobody to find, or nobody to mistake for another."""
    if same and not np.array_equal(people, enrolled):
        raise InputError("to leave every image's own out, probes and gallery must show the same people in one order")
    kept = np.flatnonzero(acquired) if same else np.arange(len(enrolled))
    here = np.unique(enrolled)
    if len(here) < 2:
        raise InputError(f"the gallery holds {len(here)} person; with fewer than two, whoever guesses is right")
    mates = np.bincount(np.searchsorted(here, enrolled)) > (1 if same else 0)
    if not np.isin(people, here[mates]).any():
        reason = "no person has two images" if same else "none of the probes' people is in the gallery"
        raise InputError(f"{reason}, so there is nothing to find; check the split")
    return kept


def columns_of(people: NDArray[np.int64], enrolled: NDArray[np.int64], order: Index, same: bool) -> Columns:
    """The columns in `order`, which is by person."""
    here, first, images = np.unique(enrolled[order], return_index=True, return_counts=True)
    own = np.full(len(people), -1, np.intp)
    if same:
        own[order] = np.arange(len(order))
    of = np.searchsorted(here, people).clip(0, max(0, len(here) - 1))
    known = here[of] == people if len(here) else np.zeros(len(people), np.bool_)
    genuine = np.where(known, images[of] if len(here) else 0, 0).astype(np.int64)
    return Columns(here, first.astype(np.intp), images.astype(np.intp), of, genuine - (own >= 0), own)
