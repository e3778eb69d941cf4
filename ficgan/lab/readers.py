"""Recognisers as judges: many faces in batches, the threshold as a similarity, and a name that tells no folders."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ficgan.anonymizers import Faces
from ficgan.errors import UsageError
from ficgan.faces import Recognizer, get_recognizer

__all__ = ["Embeddings", "Reader", "get_judge", "get_readers"]

Embeddings = NDArray[np.float32]
BATCH = 64
"""Faces read together: bounds memory."""


@dataclass(frozen=True)
class Reader:
    """A recogniser that judges.

    Args:
        recognizer: the back end.
        name: for tables; a file's name without its folder.
        given: as the configuration names it.
        digest: of the network's file; the name where it is not one file.
    """

    recognizer: Recognizer
    name: str
    given: str
    digest: str

    @property
    def metric(self) -> Any:
        """ "cosine" or "euclidean"."""
        return self.recognizer.metric

    @property
    def threshold(self) -> float:
        """Similarity (cosine, or minus the distance) above which two faces count as one person."""
        limit = self.recognizer.match_threshold
        return 1.0 - limit if self.metric == "cosine" else -limit

    def embed(self, faces: Faces) -> Embeddings:
        """Embeddings [N,D] float32 at the landmarks given, whether or not a detector would find a face there."""
        parts = []
        for begin in range(0, len(faces), BATCH):
            images, marks = faces.images[begin : begin + BATCH], faces.landmarks[begin : begin + BATCH]
            each = getattr(self.recognizer, "embed_each", None)
            if each is not None:
                parts.append(each(images, marks))
            else:
                pairs = zip(images, marks, strict=True)
                parts.append(np.stack([self.recognizer.embed(image, one[None])[0] for image, one in pairs]))
        return np.concatenate(parts) if parts else np.zeros((0, 0), np.float32)

    def unread(self, embeddings: Embeddings) -> int:
        """How many of these embeddings [N,D] stand for faces that the recogniser could not read."""
        count = getattr(self.recognizer, "unread", None)
        return 0 if count is None else int(count(embeddings))


def get_judge(given: str, device: str = "cpu") -> Recognizer:
    """A recogniser by name, or the one that sees shapes alone.

    Args:
        given: dlib, insightface, shape or onnx:PATH.
        device: as of `get_recognizer`; dlib stays on the CPU.

    Raises:
        UsageError: unknown, or not available here.
    """
    if given == "shape":
        from ficgan.lab.shape import ShapeRecognizer

        return ShapeRecognizer(device=device)
    return get_recognizer(given, device="cpu" if given == "dlib" else device)


def get_readers(names: list[str] | tuple[str, ...], device: str = "cpu") -> list[Reader]:
    """Judges by name.

    Args:
        names: dlib, insightface, shape or onnx:PATH.
        device: as of `get_judge`.

    Raises:
        UsageError: unknown, not available here, or two of one name.
    """
    readers = []
    for given in names:
        recognizer = get_judge(given, device)
        kind, colon, file = given.partition(":")
        name = Path(file).stem if colon else kind
        digest = hashlib.sha256(Path(file).read_bytes()).hexdigest() if colon else getattr(recognizer, "digest", name)
        readers.append(Reader(recognizer, name, given, digest))
    if len({reader.name for reader in readers}) < len(readers):
        raise UsageError("two judges have the same name; give each one once, and onnx files different names")
    return readers
