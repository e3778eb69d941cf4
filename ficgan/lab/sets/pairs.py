"""LFW's protocol: pairs of images of which one asks whether they show one person, in folds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import numpy as np
from numpy.typing import NDArray

from ficgan.errors import InputError

__all__ = ["FacePairs", "read_pairs"]


@dataclass(frozen=True, eq=False)
class FacePairs:
    """M pairs of rows.

    Attributes:
        first, second: int64 [M], rows of the set.
        same: bool [M], whether they show one person.
        fold: int64 [M], from 0.
        missed: pairs of the file of which an image is not in the set, such as those without a face.
    """

    first: NDArray[np.int64]
    second: NDArray[np.int64]
    same: NDArray[np.bool_]
    fold: NDArray[np.int64]
    missed: tuple[tuple[str, str], ...]

    def __len__(self) -> int:
        return len(self.first)


def read_pairs(path: Path, names: Sequence[str]) -> FacePairs:
    """Pairs of LFW's pairs.txt, or pairsDevTrain.txt and pairsDevTest.txt, which have one fold.

    Args:
        path: of the text: folds and pairs of each kind, then "Name 1 4" or "Name 1 Other 2" a line, tabs between.
        names: of the set's images, such as lfw/Name/Name_0001.jpg.

    Raises:
        InputError: not such a file, or none of its images is in the set.

    Source: Huang et al., Labeled Faces in the Wild, 2007, View 2.
    """
    rows = {PurePosixPath(name).stem: row for row, name in enumerate(names)}
    try:
        head, *body = [line.split("\t") for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
        folds, each = (int(head[0]), int(head[1])) if len(head) == 2 else (1, int(head[0]))
        if len(body) != 2 * folds * each:
            raise ValueError(f"{len(body)} pairs instead of {2 * folds * each}")
        found: list[tuple[int, int, bool, int]] = []
        missed: list[tuple[str, str]] = []
        for index, cells in enumerate(body):
            same = len(cells) == 3
            name, number, other, other_number = (*cells[:2], cells[0], cells[2]) if same else cells
            pair = f"{name}_{int(number):04d}", f"{other}_{int(other_number):04d}"
            if pair[0] in rows and pair[1] in rows:
                found.append((rows[pair[0]], rows[pair[1]], same, index // (2 * each)))
            else:
                missed.append(pair)
    except (OSError, ValueError, IndexError) as error:
        raise InputError(f"{path} is no list of pairs as LFW has it ({error}); copy it again") from error
    if not found:
        raise InputError(f"none of the {len(body)} pairs of {path} is in the set; open the set they were made for")
    first, second, same_, fold = zip(*found, strict=True)
    rows_ = np.array(first, np.int64), np.array(second, np.int64)
    return FacePairs(*rows_, np.array(same_, bool), np.array(fold, np.int64), tuple(missed))
