"""Telling people apart: the protocol of recognisers, and back ends. They are gates and judges, never losses."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ficgan.arrays import blocks
from ficgan.device import embedded_file, insightface_file, missing_pack, onnx_session
from ficgan.errors import InputError, UsageError, reason
from ficgan.faces.crops import ARCFACE_POINTS, Points, crop, similarity
from ficgan.faces.detection import FaceDetector, Image, check_image

RECOGNIZERS = ("dlib", "insightface")  # "onnx:PATH" besides

Embeddings = NDArray[np.float32]
Metric = Literal["cosine", "euclidean"]

_GATE_FILE = "gate.onnx"  # in pretrained/; tools/make_networks.py
# Where the five landmarks lie in the 150-pixel chips of dlib: the mean over 40 portraits it aligned, made symmetric.
# Aligning by them separates people as well as dlib's own 68-point shape does, and needs no second predictor.
_DLIB_POINTS: Points = np.array([[47.0, 47.1], [102.0, 47.1], [74.5, 74.5], [50.6, 102.8], [98.4, 102.8]])
_BATCH = 16  # faces; bounds the memory of a crowd


@runtime_checkable
class Recognizer(Protocol):
    """Embeddings that are near for one person and far for two; `distance` is Euclidean, or 1 - cosine."""

    name: str
    metric: Metric
    match_threshold: float

    def embed(self, image: Image, landmarks: ArrayLike) -> Embeddings:
        """Embeddings float32 [N, D] of the faces at landmarks [N, 5, 2] of an H×W×3 uint8 RGB image, in one batch."""
        ...

    def distance(self, a: ArrayLike, b: ArrayLike) -> float: ...

    def is_match(self, a: ArrayLike, b: ArrayLike) -> bool:
        """Whether two embeddings [D] count as one person: their distance is below `match_threshold`."""
        ...


def get_recognizer(name: str | Recognizer = "auto", *, device: str = "cpu") -> Recognizer:
    """A face recogniser; a UsageError where it is not available here.

    Args:
        name: "insightface", "onnx:PATH" (any ArcFace-style network, N×3×112×112), or "dlib", which is "auto"; or a
            recogniser, which is given back.
    """
    if not isinstance(name, str):
        return name
    if name.startswith("onnx:"):
        path = Path(name.removeprefix("onnx:")).expanduser()
        if not path.is_file():
            raise UsageError(f"There is no recogniser at {path}: give onnx: followed by the path of an ONNX file.")
        return OnnxRecognizer(path, name=name, device=device)
    if name in ("auto", "dlib"):
        return DlibRecognizer(device=device)
    if missing := recognizer_missing(name):
        raise UsageError(missing)
    pack = insightface_file(*INSIGHTFACE_FILES)
    assert pack is not None  # recognizer_missing() looked
    return OnnxRecognizer(pack, name=name, device=device)


class Gate:
    """Several recognisers as one: a face passes only where none of them takes it for its source.

    The distance is the least of all, in units of each one's threshold.
    """

    metric: Metric = "euclidean"
    match_threshold = 1.0

    def __init__(self, recognizers: Sequence[Recognizer]) -> None:
        self.recognizers = tuple(recognizers)
        self.name = ", ".join(recognizer.name for recognizer in self.recognizers)
        self._ends: list[int] = []  # of the parts of an embedding, once there was one

    def embed(self, image: Image, landmarks: ArrayLike) -> Embeddings:
        parts = [recognizer.embed(image, landmarks) for recognizer in self.recognizers]
        if parts[0].size:
            self._ends = np.cumsum([part.shape[1] for part in parts])[:-1].tolist()
        return np.concatenate(parts, axis=1)

    def _pairs(self, a: ArrayLike, b: ArrayLike) -> list[tuple[Recognizer, Any, Any]]:
        x, y = np.split(np.asarray(a), self._ends), np.split(np.asarray(b), self._ends)
        return list(zip(self.recognizers, x, y, strict=True))

    def distance(self, a: ArrayLike, b: ArrayLike) -> float:
        """Least distance of two embeddings, in units of the thresholds; NaN where one of them is."""
        return float(np.min([one.distance(x, y) / max(one.match_threshold, 1e-9) for one, x, y in self._pairs(a, b)]))

    def is_match(self, a: ArrayLike, b: ArrayLike) -> bool:
        return bool(self.matching(a, b))

    def matching(self, a: ArrayLike, b: ArrayLike, share: float = 1.0) -> list[str]:
        return [name for one, x, y in self._pairs(a, b) for name in matching(one, x, y, share)]


def make_gate(recognizers: Sequence[Recognizer]) -> Recognizer | None:
    """The check of every new face: None, the only recogniser, or several as one."""
    if len({recognizer.name for recognizer in recognizers}) < len(recognizers):
        raise UsageError("Name each recogniser once: a second one must be another network.")
    return Gate(recognizers) if len(recognizers) > 1 else next(iter(recognizers), None)


def matching(recognizer: Recognizer, a: ArrayLike, b: ArrayLike, share: float = 1.0) -> list[str]:
    """Public names of the recognisers that take two embeddings for one person; none where they are two people.

    Args:
        share: of their thresholds that counts, see `match_share`.
    """
    if isinstance(recognizer, Gate):
        return recognizer.matching(a, b, share)
    apart = share < 1 and recognizer.distance(a, b) >= share * recognizer.match_threshold
    return [public_name(recognizer)] if recognizer.is_match(a, b) and not apart else []


def embed_largest(photo: Image, name: str, detector: FaceDetector, recognizer: Recognizer) -> NDArray[np.float32]:
    """Embedding of the largest face of a reference photo; a UsageError that names it where it shows none."""
    faces = detector.detect(photo)
    if not faces:
        raise UsageError(f"{name}: no face was found in it; give a photo with one clear face")
    largest = max(faces, key=lambda face: float(np.prod(face.box[2:] - face.box[:2])))
    if np.ptp(largest.landmarks, axis=0).min() <= 0:
        raise UsageError(f"{name}: {detector.name} finds no landmarks in it, so it cannot be recognised; use another")
    return recognizer.embed(photo, largest.landmarks[None])[0]


def public_name(recognizer: Recognizer) -> str:
    """The name without folders of this machine; of several the names, with commas."""
    parts = recognizer.recognizers if isinstance(recognizer, Gate) else (recognizer,)
    return ", ".join(f"onnx:{Path(part.name).name}" if part.name.startswith("onnx:") else part.name for part in parts)


INSIGHTFACE_FILES = ("w600k*.onnx", "glintr*.onnx")


def recognizer_missing(name: str) -> str | None:
    """None where a recogniser is available here, else a sentence that says what to install or where to put a file."""
    if name == "dlib":
        return None
    if name == "insightface":
        return missing_pack("recogniser insightface", *INSIGHTFACE_FILES)
    raise UsageError(f"Unknown face recogniser {name!r}: use auto, {', '.join(RECOGNIZERS)} or onnx:PATH.")


class _Embedder(ABC):
    """Aligned crops in, embeddings out; what all recognisers share."""

    name: str
    metric: Metric
    match_threshold: float
    points: Points  # where landmarks lie in its crops
    size: int  # of the crops, pixels

    def embed(self, image: Image, landmarks: ArrayLike) -> Embeddings:
        """Embeddings float32 [N, D] of the faces at landmarks [N, 5, 2] of an image [H, W, 3]; [0, 0] where N is 0."""
        marks = np.asarray(landmarks, dtype=np.float64)
        return self.embed_each([check_image(image)] * len(marks), marks)

    def embed_each(self, images: Sequence[Image] | NDArray[np.uint8], landmarks: ArrayLike) -> Embeddings:
        """Embeddings as of `embed` of N images with one face each, in one batch."""
        if not len(images):
            return np.zeros((0, 0), dtype=np.float32)
        pairs = zip(images, np.asarray(landmarks, dtype=np.float64), strict=True)
        return self.embed_aligned(np.stack([crop(x, similarity(m, self.points), self.size) for x, m in pairs]))

    @abstractmethod
    def embed_aligned(self, crops: NDArray[np.uint8]) -> Embeddings:
        """Embeddings float32 [N, D] of crops uint8 [N, S, S, 3] that are already in this recogniser's own alignment."""

    def distance(self, a: ArrayLike, b: ArrayLike) -> float:
        """Distance of two embeddings [D]: Euclidean, or 1 - cosine."""
        x, y = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
        if self.metric == "euclidean":
            return float(np.linalg.norm(x - y))
        norm = float(np.linalg.norm(x) * np.linalg.norm(y))
        return 1.0 if norm == 0 else 1.0 - float(x @ y) / norm

    def is_match(self, a: ArrayLike, b: ArrayLike) -> bool:
        """Whether two embeddings [D] count as one person; an embedding that is not finite always does (fail closed)."""
        return not self.distance(a, b) >= self.match_threshold


class DlibRecognizer(_Embedder):
    name, points, size = "dlib", _DLIB_POINTS, 150
    metric: Metric = "euclidean"
    match_threshold = 0.6  # customary; FAR 1e-3 lies at .43 to .51, so a gate at .6 errs on the side of privacy

    def __init__(self, *, device: str = "cpu"):
        self._session = onnx_session(embedded_file(_GATE_FILE), device)

    def embed_aligned(self, crops: NDArray[np.uint8]) -> Embeddings:
        parts = (np.ascontiguousarray(crops[rows]) for rows in blocks(len(crops), _BATCH))
        return np.concatenate([self._session.run(None, {"images": part})[0] for part in parts])


class OnnxRecognizer(_Embedder):
    """Any ArcFace-style ONNX network: N×3×112×112 RGB in the public five-point template, one embedding out."""

    points, size = ARCFACE_POINTS, 112
    metric: Metric = "cosine"
    match_threshold = 1.0 - 0.33  # such networks reach FAR 1e-3 near a cosine of .33

    def __init__(self, path: Path, *, name: str, device: str = "cpu"):
        self.name, self.path, self._session = name, path, onnx_session(path, device)
        entry, *others = self._session.get_inputs()
        self._batch, *shape = (side if isinstance(side, int) else None for side in entry.shape)
        if others or shape[:1] != [3] or not set(shape[1:]) <= {112, None}:
            raise InputError(f"{path} is no face recogniser: its input is {entry.shape} and must be N×3×112×112.")
        self._input, self._normalise = entry.name, not _normalises(path)
        self._probe(path)

    def embed_aligned(self, crops: NDArray[np.uint8]) -> Embeddings:
        x = crops.astype(np.float32).transpose(0, 3, 1, 2)  # [N, 3, 112, 112]
        x = (x - 127.5) / 127.5 if self._normalise else np.ascontiguousarray(x)
        step, parts = self._batch or len(x), []
        for start in range(0, len(x), step):
            part = x[start : start + step]
            full = np.concatenate([part, np.zeros((step - len(part), *part.shape[1:]), part.dtype)])
            parts.append(self._session.run(None, {self._input: full})[0][: len(part)].reshape(len(part), -1))
        return np.concatenate(parts).astype(np.float32, copy=False)

    def _probe(self, path: Path) -> None:
        """Refuse a network that says the same of two mosaics: as a gate it would pass any face, or none."""
        small = np.random.default_rng(0).integers(0, 256, (2, 7, 7, 3), dtype=np.uint8)
        try:
            first, second = self.embed_aligned(small.repeat(16, 1).repeat(16, 2))
        except Exception as error:  # onnxruntime's errors have no common base
            why = reason(error)[:200]
            raise InputError(f"{path} cannot be run as a face recogniser ({why}): check the file.") from None
        if not np.isfinite([first, second]).all() or np.allclose(first, second, rtol=1e-4):
            raise InputError(f"{path} is no face recogniser: it says the same of two different pictures.")


def _normalises(path: Path) -> bool:
    """Whether a network scales 0..255 by itself: arithmetic or a batch norm comes before its first convolution."""
    import onnx

    graph = onnx.load(str(path), load_external_data=False).graph
    weights = {value.name for value in graph.initializer}
    reached = {value.name for value in graph.input if value.name not in weights}
    for node in graph.node:  # ONNX nodes are in topological order
        if not reached.intersection(node.input):
            continue
        if node.op_type in ("Sub", "Mul", "Div", "Add", "BatchNormalization"):
            return True
        if node.op_type in ("Conv", "Gemm", "MatMul"):
            return False
        reached.update(node.output)
    return False
