"""What is said of a photo that was de-identified, and what may not judge it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ficgan.anonymizers.modes import shown, without_folders
from ficgan.errors import UsageError
from ficgan.results import FaceResult

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
    if notes := _notes(faces):
        account["notes"] = notes
    return account


def _notes(faces: Sequence[FaceResult]) -> list[str]:
    """What a user should know without opening the audit: faces that are masked, and settings that were not kept."""
    masked = Counter(face.note or "no new face passed the check" for face in faces if face.action == "masked")
    notes = [f"{_count(number)} masked: {why}" for why, number in masked.items()]
    lowered = Counter(face.layer for face in faces if face.action == "retried" and face.layer is not None)
    if lowered:
        layers = ", ".join(str(layer) for layer in sorted(lowered))
        number = sum(lowered.values())
        notes.append(f"{_count(number)} still recognised at first and tried again, with layer {layers}")
    seen = Counter(face.note for face in faces if face.note and face.action in ("generated", "retried"))
    notes += [f"{'1 face' if number == 1 else f'{number} faces'}: {what}" for what, number in seen.items()]
    return notes


def _count(number: int) -> str:
    return "1 face was" if number == 1 else f"{number} faces were"


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
