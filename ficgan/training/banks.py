"""Identity banks: the people of a set, as a model reads their faces."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ficgan.arrays import ModelInfo, file_header
from ficgan.data import FaceData, check_alignment
from ficgan.errors import Progress, unheard
from ficgan.faces import Alignment, MediaPipeMesh
from ficgan.files import file_digest
from ficgan.frame.file import load_appearance
from ficgan.frame.fit import FitConfig, codes_of
from ficgan.frame_model import FrameModel
from ficgan.identity import IdentityBank
from ficgan.models import load_checkpoint
from ficgan.models.io import encode_faces
from ficgan.training.frame_faces import MOST_K, learn_showing

# Decoded pictures in memory: 200 MB at 256².
_AT_ONCE = 1024


def build_bank(
    checkpoint: Path,
    faces: FaceData,
    out: Path,
    *,
    licence: str = "",
    device: str = "cpu",
    progress: Progress = unheard,
) -> IdentityBank:
    """Encode the clear faces of a set with a model and write the bank of its people.

    Args:
        faces: of the model's resolution; with an appearance model 128².
        licence: of the set; "": the model's where the set is what it was made from.
    """
    info = ModelInfo.of(checkpoint)
    check_alignment(faces, Alignment.from_dict(info.alignment), str(checkpoint))
    if file_header(checkpoint)[0] == "appearance":
        model, _, _, network = load_appearance(checkpoint)
        presence = info.training.get("fit", {}).get("presence", FitConfig().presence)
        codes, rows = codes_of(model, faces, MediaPipeMesh(device), presence, network, progress)
        return with_showing(save_bank(out, checkpoint, faces, codes, licence, rows), out, checkpoint, faces, progress)
    crops, _ = load_checkpoint(checkpoint, device)
    parts = []
    for begin in range(0, len(faces), _AT_ONCE):
        end = min(begin + _AT_ONCE, len(faces))
        parts.append(encode_faces(crops, faces.subset(range(begin, end)).resident(), device=device))
        progress(end, len(faces), "encoding")
    return save_bank(out, checkpoint, faces, np.concatenate(parts), licence)


def save_bank(
    out: Path,
    checkpoint: Path,
    faces: FaceData,
    codes: NDArray[Any],
    licence: str,
    rows: NDArray[np.int64] | None = None,
) -> IdentityBank:
    """One code per person of a set, from codes float [N,D], in a file that says where they come from.

    Args:
        checkpoint: the model that read the codes.
        rows: which of the set's images were read; None: all.
    """
    info, marks = ModelInfo.of(checkpoint), faces.labels
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


def with_showing(
    bank: IdentityBank, out: Path, checkpoint: Path, faces: FaceData, progress: Progress = unheard
) -> IdentityBank:
    """The bank of a model in the frame with how its new faces show their kind, written to `out`.

    The bank itself where it does not know kinds, or too few faces are clear.
    """
    if bank.kinds is None:
        return bank
    model, config, _, network = load_appearance(checkpoint)
    k = max(2, min(MOST_K, len(bank) // 8))
    makes = FrameModel(model, config, replace(bank, showing=None), network=network, k=k, seed=0)
    showing = learn_showing(makes, faces, progress)
    return bank if showing is None else replace(bank, showing=showing).save(out)
