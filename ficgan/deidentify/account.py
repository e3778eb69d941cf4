"""What is said of a photo that was de-identified, and what may not judge it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ficgan.errors import UsageError
from ficgan.results import FaceResult
from ficgan.video.hiding import shown, without_folders

if TYPE_CHECKING:
    from ficgan.deidentify.photos import Photos
    from ficgan.face_model import ModelInfo

__all__ = ["account_of", "refuse_trainer"]


def account_of(deid: Photos, faces: Sequence[FaceResult]) -> dict[str, Any]:
    """JSON-ready: versions, mode and its settings, detector, gate, every face; no secrets, no folders."""
    from ficgan import __version__

    gate, model = deid.recognizer, deid._face_model
    account = {
        "ficgan": __version__,
        "mode": deid.mode if deid.method is None else shown(deid.mode, deid.method),
        **deid.methods.accounts([deid.mode]),
        "detector": deid.detector.name,
        "gate": None if gate is None else without_folders(gate.name),
        "gate_threshold": None if gate is None else float(gate.match_threshold),
        "checkpoint": deid.digests.get("checkpoint"),
        "data_licence": None if deid.header is None else deid.header.data.get("licence"),
        "precision": None if model is None else model.precision,
        "faces": [face.to_dict() for face in faces],
    }
    if notes := list(dict.fromkeys(face.note for face in faces if face.note)):
        account["notes"] = [f"A face became a solid mask, for {note}" for note in notes]
    return account


def refuse_trainer(header: ModelInfo | None, recognizer: str) -> None:
    """A UsageError where a recogniser is the network V that the model was trained against: it would only flatter.

    Args:
        header: of the checkpoint; its training record holds V's sha256; None: no network was trained.
        recognizer: name for `get_recognizer`, such as "onnx:PATH".
    """
    if header is None:
        return
    from ficgan.identity.file import file_digest

    kind, _, path = recognizer.partition(":")
    trainer = header.training.get("verifier_sha256")
    if kind == "onnx" and trainer and Path(path).is_file() and file_digest(path) == trainer:
        raise UsageError(f"recogniser {recognizer} is the network this model was trained against; take another one")

