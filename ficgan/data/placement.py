"""How the faces of a set were placed: said in the table of `ficgan align`, compared with what a model needs."""

from __future__ import annotations

import csv
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from ficgan.errors import InputError, UsageError

if TYPE_CHECKING:
    from ficgan.data.dataset import FaceData
    from ficgan.faces import Alignment

__all__ = ["alignment_name", "check_alignment"]

COLUMN = "alignment"
_TABLE = "faces.csv"


def alignment_name(alignment: Alignment) -> str:
    """`ffhq`, or `template(0.37,0.31)`: eye distance and height of the eyes as fractions of the crop's side.

    Crops for the canonical frame are the default template's, and called so.
    """
    if alignment.kind == "ffhq":
        return "ffhq"
    return f"template({alignment.eye_distance:g},{alignment.eye_y:g})"


def check_alignment(faces: FaceData, alignment: Alignment, who: str = "the model") -> None:
    """Refuse a set that says it was aligned otherwise; a set that says nothing passes.

    Args:
        faces: of `open_faces`.
        alignment: what the faces must be aligned as.
        who: whose alignment that is, for the sentence.

    Raises:
        UsageError: the set was aligned otherwise.
    """
    wanted = alignment_name(alignment)
    if faces.alignment not in (None, wanted):
        raise UsageError(
            f"these faces are aligned as {faces.alignment}, {who} needs {wanted}; "
            f"make the set anew with {_options(alignment)}"
        )


def recorded(sources: Iterable[Path]) -> set[str]:
    """What the tables that `ficgan align` left beside archives and in folders say."""
    found: set[str] = set()
    for source in sources:
        table = source / _TABLE if source.is_dir() else source.with_suffix(".csv")
        try:
            with table.open(encoding="utf-8-sig", newline="") as file:
                rows = csv.DictReader(file)
                if rows.fieldnames and {"file", COLUMN} <= set(rows.fieldnames):
                    found |= {row[COLUMN].strip() for row in rows if (row[COLUMN] or "").strip()}
        except (OSError, UnicodeDecodeError, csv.Error):
            continue  # no table, or not ours
    return found


def agreed(names: set[str]) -> str | None:
    """The one alignment of a set, or None where nothing is said.

    Raises:
        InputError: there are several.
    """
    if len(names) > 1:
        several = " and ".join(sorted(names))
        raise InputError(f"These faces are aligned in different ways ({several}); take sets aligned alike.")
    return next(iter(names), None)


def _options(alignment: Alignment) -> str:
    if alignment.kind == "ffhq":
        return "`ficgan align --alignment ffhq`"
    return f"`ficgan align --eye-distance {alignment.eye_distance:g} --eye-y {alignment.eye_y:g}`"
