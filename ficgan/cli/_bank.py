"""A bank of a set's codes, whatever model read them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from ficgan.data import FaceData
    from ficgan.face_model import ModelInfo
    from ficgan.identity import IdentityBank

__all__ = ["save_bank"]


def save_bank(
    out: Path, checkpoint: Path, info: ModelInfo, faces: FaceData, codes: NDArray[Any], licence: str,
    rows: NDArray[np.int64] | None = None,
) -> IdentityBank:  # fmt: skip
    """One code per person of a set, in a file that says where they come from.

    Args:
        out: bank to write.
        checkpoint: model that read the codes.
        info: what its header says.
        faces: the set.
        codes: float [N,D].
        licence: of the set; "": the model's where the set is what it was made from.
        rows: which of the set's images were read; None: all.
    """
    from ficgan.identity import IdentityBank
    from ficgan.identity.file import file_digest

    marks = faces.labels
    if marks is not None and rows is not None:
        marks = marks.take(rows)
    if not licence and faces.fingerprint == info.data.get("fingerprint"):
        licence = info.data.get("licence", "")
    made = IdentityBank.from_codes(
        codes,
        None if marks is None else marks.people,
        None if marks is None else marks.attributes,
        () if marks is None else marks.attribute_names,
        {
            "checkpoint": file_digest(checkpoint),
            "data": {"licence": licence, "fingerprint": faces.fingerprint},
            "alignment": info.alignment,
        },
        columns=() if marks is None else marks.attribute_columns,
    )
    made.save(out)
    return made
