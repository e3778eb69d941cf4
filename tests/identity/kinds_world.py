"""People of known kinds."""

from __future__ import annotations

import numpy as np

from ficgan.identity.kind import AGES, CELLS, ETHNICITIES, GENDERS

NAMES = (*ETHNICITIES, *GENDERS, *AGES)


def people(count: int, rng: np.random.Generator) -> tuple[np.ndarray, tuple[np.ndarray, ...], np.ndarray]:
    """Cells of so many people; ethnic group, gender and age of each; the table of their bank."""
    cell = rng.integers(0, CELLS, count)
    parts = np.unravel_index(cell, (7, 2, 9))
    table = np.zeros((count, len(NAMES)), np.uint8)
    for first, part in zip((0, 7, 9), parts, strict=True):
        table[np.arange(count), first + part] = 1
    return cell, parts, table
