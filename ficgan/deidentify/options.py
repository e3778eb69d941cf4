"""What a `Deidentifier` makes of its options: the model with its bank, and the rules about who stays."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ficgan.errors import FicganError, UsageError
from ficgan.face_model import FaceModel, ModelInfo
from ficgan.faces import Face, FaceDetector, Recognizer, get_recognizer
from ficgan.faces.models import check_onnx_device, insightface_file
from ficgan.faces.recognition import INSIGHTFACE_FILES, embed_largest
from ficgan.files import file_digest, file_header
from ficgan.identity import IdentityBank
from ficgan.options import Box, Finding

__all__ = ["Exemptions", "Image", "doubts", "load_face_model", "refuse_trainer"]


Image = NDArray[np.uint8]
log = logging.getLogger(__name__)


def load_face_model(
    checkpoint: str | Path | None = None,
    bank: str | Path | None = None,
    *,
    device: str = "cpu",
    precision: str = "auto",
    **controls: Any,
) -> tuple[FaceModel, ModelInfo, str]:
    """The embedded default model, or the given files, ready for use.

    Args:
        checkpoint: appearance model or network; None: the embedded one.
        bank: identity bank made with it; None: the embedded one (or, for another checkpoint, an error).
        device: what computes: "cpu", "cuda", "cuda:N", "auto".
        precision: see `Computing`.
        controls: k, band, seed, alpha, attributes, add, swap, keep_kind, see `Identity`.

    Returns:
        The model, what its header says, and the sha256 of its file.

    Raises:
        FicganError: missing or damaged files, or a bank of another model.
        UsageError: a value that cannot work.
    """
    from ficgan import pretrained

    if checkpoint is not None and bank is None:
        raise UsageError("a checkpoint of your own needs the bank built with it; give --bank (see `ficgan bank`)")
    try:
        checkpoint = Path(checkpoint) if checkpoint is not None else pretrained.path("model")
        bank = Path(bank) if bank is not None else pretrained.path("bank")
    except (FileNotFoundError, KeyError):
        raise FicganError("this copy of ficgan holds no embedded model; give --checkpoint and --bank") from None
    for file in (checkpoint, bank):
        if file.parent == pretrained.FOLDER and (wrong := pretrained.check(file.name)):
            raise FicganError(f"the embedded file {file.name} is {wrong}: install ficgan again")
    kind = file_header(checkpoint)[0]
    if kind == "appearance" and precision not in ("auto", "float32"):
        raise UsageError(f"{checkpoint.name} computes in float32; precision is for networks on crops")
    if kind == "appearance":
        check_onnx_device(device)
    loaded, digest = IdentityBank.load(bank), file_digest(checkpoint)
    if loaded.provenance.get("checkpoint") not in (None, digest):
        raise UsageError(
            f"the bank {bank} was built with another model than {checkpoint}; build one with `ficgan bank`"
        )
    log.info("model %s (%s), bank of %d codes", checkpoint.name, kind, len(loaded))
    if kind == "appearance":
        from ficgan.faces import MediaPipeMesh
        from ficgan.frame.file import load_appearance
        from ficgan.frame_model import FrameModel

        appearance, config, info, network = load_appearance(checkpoint)
        _ = appearance.warp  # made once, before several threads want it
        mesh = MediaPipeMesh(device)
        network = None if network is None else replace(network, device=device)
        made = FrameModel(
            appearance, config, loaded, network=network, mesh=mesh, sha256=digest, device=device, **controls
        )
        return made, info, digest
    from ficgan.face_model import CropModel
    from ficgan.models import load_checkpoint

    trained, header = load_checkpoint(checkpoint)
    info = ModelInfo(header.alignment, header.data, header.training)
    crops = CropModel(trained, info, loaded, device=device, precision=precision, **controls)
    return crops, info, digest


def refuse_trainer(header: ModelInfo | None, recognizer: str) -> None:
    """A UsageError where a recogniser is the network V that the model was trained against: it would only flatter.

    Args:
        header: of the checkpoint; its training record holds V's sha256; None: no network was trained.
        recognizer: name for `get_recognizer`, such as "onnx:PATH" or "insightface".
    """
    trainer = None if header is None else header.training.get("verifier_sha256")
    kind, _, path = recognizer.partition(":")
    if kind == "insightface":
        path = str(insightface_file(*INSIGHTFACE_FILES) or "")
    if trainer and kind in ("onnx", "insightface") and Path(path).is_file() and file_digest(path) == trainer:
        raise UsageError(f"recogniser {recognizer} is the network this model was trained against; take another one")


# Detection scores under which a find is doubtful, by detector; portraits have .95. None is known for the others.
DOUBTFUL_SCORE = {"centerface": 0.6}
# Factor of the recogniser's match threshold for leaving a person as is: a photo is a single look.
_STRICTNESS = 0.8


def doubts(face: Face, shape: Sequence[int], detector: str) -> str:
    """Why a find of a detector may be no face in a photo of this shape; "" where it is clear."""
    height, width = shape[:2]
    x0, y0, x1, y1 = (float(value) for value in face.box)
    out = []
    if face.score < DOUBTFUL_SCORE.get(detector, 0.0):
        out.append(f"low score {face.score:.2f}")
    if x0 <= 0 or y0 <= 0 or x1 >= width or y1 >= height:
        out.append("cut by the border")
    return ", ".join(out)


@dataclass(eq=False)
class Exemptions:
    """The rules about people and places, ready for use. In doubt a face is hidden.

    Args:
        recognizer: tells people apart; None: no rule needs it.
        keep: embeddings of people who stay, by the name of their photo.
        only: embeddings of the people who are hidden, where nobody else is.
        boxes: places in which faces stay.
    """

    recognizer: Recognizer | None
    keep: Mapping[str, NDArray[np.float32]]
    only: Mapping[str, NDArray[np.float32]]
    boxes: Sequence[Box]

    @classmethod
    def of(cls, finding: Finding, detector: FaceDetector, recognizer: Recognizer | str) -> Exemptions:
        """Read the reference photos. The recogniser tells people apart, even where nothing is verified; or its name."""
        if not (finding.keep or finding.only):
            return cls(None, {}, {}, finding.boxes)
        teller = get_recognizer(recognizer) if isinstance(recognizer, str) else recognizer

        def read(photos: Mapping[str, Image]) -> dict[str, NDArray[np.float32]]:
            return {name: embed_largest(photo, name, detector, teller) for name, photo in photos.items()}

        return cls(teller, read(finding.keep), read(finding.only), finding.boxes)

    def __call__(self, image: Image, faces: Sequence[Face]) -> list[str]:
        """Why each face stays as it is; "" where it is hidden."""
        readings: list[NDArray[np.float32] | None] = [None] * len(faces)
        if self.recognizer is not None:
            rows = [n for n, face in enumerate(faces) if np.ptp(face.landmarks, axis=0).min() > 0]
            if rows:
                found = self.recognizer.embed(image, np.stack([faces[n].landmarks for n in rows]))
                for n, reading in zip(rows, found, strict=True):
                    readings[n] = reading
        return [self._why(face, reading) for face, reading in zip(faces, readings, strict=True)]

    def _why(self, face: Face, reading: NDArray[np.float32] | None) -> str:
        x0, y0, x1, y1 = (float(value) for value in face.box)
        chosen = bool(self.only) and self._near(reading, self.only, 1.0) is not None
        if chosen:
            return ""
        if any(x0 >= box[0] and y0 >= box[1] and x1 <= box[2] and y1 <= box[3] for box in self.boxes):
            return "it lies in a given box"
        if self.keep and (name := self._near(reading, self.keep, _STRICTNESS)) is not None:
            return f"it matches {Path(name).name}"
        # A face that cannot be read may be the one that is meant.
        return "it is none of those to be hidden" if self.only and reading is not None else ""

    def _near(
        self, reading: NDArray[np.float32] | None, people: Mapping[str, NDArray[np.float32]], factor: float
    ) -> str | None:
        if reading is None or self.recognizer is None or not np.isfinite(reading).all():
            return None
        apart = {name: self.recognizer.distance(reading, known) for name, known in people.items()}
        nearest = min(apart, key=lambda name: apart[name])
        return nearest if apart[nearest] < factor * self.recognizer.match_threshold else None
