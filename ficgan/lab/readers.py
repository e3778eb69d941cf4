"""Recognisers as judges: in batches, by the shape of the face alone, and retrained on anonymised faces."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
import yaml
from numpy.typing import ArrayLike, NDArray

from ficgan import configs, pretrained
from ficgan.anonymizers import Faces
from ficgan.errors import InputError, UsageError
from ficgan.faces import MediaPipeMesh, Recognizer, find_meshes, get_recognizer
from ficgan.faces.models import insightface_file, model_folders
from ficgan.faces.recognition import INSIGHTFACE_FILES
from ficgan.files import file_digest
from ficgan.frame.geometry import NUMBERS, FaceShape, rigid_fit

Embeddings = NDArray[np.float32]
BATCH = 64  # Faces read together: bounds memory


@dataclass(frozen=True)
class Reader:
    """A recogniser that judges; `digest` is of the network's file, or the name."""

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
        each = getattr(self.recognizer, "embed_each", None)
        for begin in range(0, len(faces), BATCH):
            images, marks = faces.images[begin : begin + BATCH], faces.landmarks[begin : begin + BATCH]
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
    """A recogniser by name: dlib (on the CPU), insightface, onnx:PATH, or shape, which sees shapes alone."""
    if given == "shape":
        return ShapeRecognizer(device=device)
    return get_recognizer(given, device="cpu" if given == "dlib" else device)


# Among a matrix's judges: a recogniser of another make than dlib from the model folders, where there is one
INSTALLED = "installed"


def installed_judges() -> list[Path]:
    """Recognisers in the model folders: insightface's pack, then `recogni*.onnx` by name.

    Left out is what a configuration of ours trains networks against: it would flatter them.
    """
    verifiers = [yaml.safe_load(configs.read(name)).get("verifier") or {} for name in configs.names()]
    trainers = {Path(str(verifier.get("spec")).partition(":")[2]).name for verifier in verifiers}
    pack = insightface_file(*INSIGHTFACE_FILES)
    named = [path for folder in model_folders() for path in sorted(folder.glob("recogni*.onnx"))]
    return [path for path in ([pack] if pack else []) + named if path.name not in trainers]


def get_readers(names: Sequence[str], device: str = "cpu") -> list[Reader]:
    """Judges by name, as of `get_judge`."""
    readers = []
    for given in names:
        recognizer = get_judge(given, device)
        kind, colon, file = given.partition(":")
        name = Path(file).stem if colon else kind
        path = getattr(recognizer, "path", None)  # of a network that the user brought
        digest = file_digest(path) if path else getattr(recognizer, "digest", name)
        readers.append(Reader(recognizer, name, given, digest))
    if len({reader.name for reader in readers}) < len(readers):
        raise UsageError("two judges have the same name; give each one once, and onnx files different names")
    return readers


# -- the shape of the face alone --------------------------------------------------------------------------------------
# A mesh is read at the known landmarks and its pose is taken out by a rigid fit. What is left are 1,404 coordinates, in
# standard deviations from the embedded model's mean face, whatever model is attacked. The judge also takes out what
# expressions and turned heads add to a mesh: a smile outweighs who it is.

READABLE = 0.0  # Least presence of a mesh that is compared: a poor one costs the attacker nothing
_MATCH = 1 - 0.717  # 1 − cosine; one in a thousand pairs of strangers among FairFace's validation faces is nearer


def cosines(a: Embeddings, b: Embeddings) -> NDArray[np.float64]:
    """Of pairs [N,D], one by one: float64 [N]."""
    return (_unit(a) * _unit(b)).sum(1)


def similarities(a: Embeddings, b: Embeddings, metric: str) -> NDArray[np.float64]:
    """Of all pairs [N,D] × [M,D]: float64 [N,M], a cosine or minus the distance."""
    if metric == "cosine":
        return _unit(a) @ _unit(b).T
    x, y = np.asarray(a, np.float64), np.asarray(b, np.float64)
    return -np.sqrt(((x * x).sum(1)[:, None] + (y * y).sum(1) - 2 * x @ y.T).clip(0))


def paired(reader: Reader, clear: Embeddings, made: Embeddings) -> NDArray[np.float64]:
    """[N] similarities of sources and outputs, by the recogniser's own metric."""
    if reader.metric == "cosine":
        return cosines(clear, made)
    return -np.linalg.norm(clear.astype(np.float64) - made, axis=1)


def _unit(x: Embeddings) -> NDArray[np.float64]:
    wide = np.asarray(x, np.float64)
    return wide / np.linalg.norm(wide, axis=1, keepdims=True).clip(1e-12)


@dataclass(frozen=True)
class Shapes:
    """Shapes of N faces.

    Args:
        points: float32 [N,1404], coordinates without pose, in standard deviations from the mean face; 0 without a mesh.
        readable: bool [N], whether there is a mesh.
    """

    points: NDArray[np.float32]
    readable: NDArray[np.bool_]


class ShapeRecognizer:
    """A recogniser that sees nothing but the shape of a face; `match_threshold` is of 1 − cosine."""

    name = "shape"
    metric: Literal["cosine", "euclidean"] = "cosine"

    def __init__(
        self, mesh: MediaPipeMesh | None = None, *, device: str = "cpu", match_threshold: float | None = None
    ) -> None:
        self.mesh: MediaPipeMesh = mesh or MediaPipeMesh(device="cpu" if device == "cpu" else "auto")
        self.match_threshold = _MATCH if match_threshold is None else match_threshold

    @property
    def digest(self) -> str:
        """Depends on the mesh network, on the mean face and on what moves it."""
        state = hashlib.sha256(b"".join(part.tobytes() for part in _yardstick()))
        state.update(file_digest(pretrained.path("mesh")).encode())
        return f"shape {state.hexdigest()}"

    def read(self, images: Sequence[NDArray[np.uint8]] | NDArray[np.uint8], landmarks: ArrayLike) -> Shapes:
        """Shapes of N pictures [H,W,3] uint8 RGB with a face each, at landmarks [N,5,2]."""
        mean, spread, _ = _yardstick()
        points = np.zeros((len(images), *mean.shape))
        readable = np.zeros(len(images), bool)
        for row, (image, marks) in enumerate(zip(images, np.asarray(landmarks, np.float64), strict=True)):
            try:
                (found,) = find_meshes(self.mesh, image, marks[None])
            except InputError:  # landmarks in one point or on a line
                continue
            if found.presence >= READABLE and np.isfinite(found.points).all():
                points[row], readable[row] = found.points[: len(mean)], True
        if readable.any():
            seen = points[readable]
            points[readable] = (rigid_fit(mean, seen).unposed(seen) - mean) / spread
        return Shapes(points.reshape(len(images), -1).astype(np.float32), readable)

    def embed(self, image: NDArray[np.uint8], landmarks: ArrayLike) -> NDArray[np.float32]:
        """Embeddings [N,1405] of the faces of one picture."""
        return self.embed_each([image] * len(np.asarray(landmarks)), landmarks)

    def embed_each(
        self, images: Sequence[NDArray[np.uint8]] | NDArray[np.uint8], landmarks: ArrayLike
    ) -> NDArray[np.float32]:
        """Embeddings [N,1405] of pictures with a face each; the last number gives missing meshes a direction."""
        if not len(images):
            return np.zeros((0, 0), np.float32)
        points, moving = self.read(images, landmarks).points, _yardstick()[2].astype(np.float32)
        points -= points @ moving @ moving.T
        return np.concatenate([points, np.full((len(points), 1), 1e-3, np.float32)], 1)

    @staticmethod
    def unread(embeddings: NDArray[np.floating[Any]]) -> int:
        """How many of these embeddings are of faces without a readable mesh."""
        return int((~embeddings[:, :-1].any(1)).sum()) if embeddings.size else 0

    def distance(self, a: ArrayLike, b: ArrayLike) -> float:
        """1 − cosine of two embeddings."""
        x, y = np.asarray(a, np.float64), np.asarray(b, np.float64)
        return 1.0 - float(x @ y / (np.linalg.norm(x) * np.linalg.norm(y)))

    def is_match(self, a: ArrayLike, b: ArrayLike) -> bool:
        return not self.distance(a, b) >= self.match_threshold


@lru_cache(maxsize=1)
def _yardstick() -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Mean mesh [468,3]; how much its coordinates vary with people and expressions; and, in these units, orthonormal
    directions [1404,10] of what numbers of expression and turned heads add to it.
    """
    from safetensors.numpy import load_file

    try:
        shape = FaceShape.from_arrays(load_file(pretrained.path("model")))
    except (FileNotFoundError, KeyError):
        raise UsageError("shapes are measured by the embedded appearance model's mean face; it has none here") from None
    moves = shape.moves[1:].astype(np.float64)
    moved = np.concatenate([shape.basis, moves[: len(NUMBERS)]]).astype(np.float64)
    spread = np.sqrt(np.square(moved).sum(0)).clip(1e-6)
    moving, _ = np.linalg.qr((moves / spread).reshape(len(moves), -1).T)
    return shape.mean.astype(np.float64), spread, moving


# -- parrots: judges that have learnt from anonymised faces of people who are in no gallery and no probe --------------

LEAST_PEOPLE = 10  # People with two images or more; fewer teach nothing


def discriminant(
    embeddings: NDArray[np.floating], people: NDArray[np.integer], *, shrinkage: float = 0.1
) -> NDArray[np.float64]:
    """Fisher's linear discriminant [D,K] of embeddings [N,D] of people [N] (Fisher 1936; Ioffe 2006): compare x @ M.

    One person's embeddings get unit covariance, with `shrinkage` of the mean variance mixed in; directions in which
    people hardly differ are weakened (Wiener).
    """
    x = np.asarray(embeddings, np.float64)
    values, index, counts = np.unique(people, return_inverse=True, return_counts=True)
    several = counts[index] > 1
    if (counts > 1).sum() < LEAST_PEOPLE:
        raise UsageError(
            f"retraining needs {LEAST_PEOPLE} people with two images among the attacker's, and there are "
            f"{(counts > 1).sum()}"
        )
    x, index, size = x[several], index[several], x.shape[1]
    basis = None
    if len(x) < size:  # all that can be learnt lies in the span of the images: elsewhere the gain is 0
        _, spans, vectors = np.linalg.svd(x - x.mean(0), full_matrices=False)
        basis = vectors[spans > 1e-10 * spans[0]].T
        x = x @ basis
    means = np.zeros((len(values), x.shape[1]))
    np.add.at(means, index, x)
    means = means[counts > 1] / counts[counts > 1, None]
    lookup = np.cumsum(counts > 1) - 1
    inside = x - means[lookup[index]]
    within = inside.T @ inside / (len(x) - len(means))
    if np.trace(within) <= 1e-12 * max(1.0, float((x**2).sum(1).mean())):
        return np.eye(size)  # one person's embeddings are all alike: there is nothing to weigh
    within += shrinkage * np.trace(within) / size * np.eye(len(within))
    spread = means - means.mean(0)
    between = spread.T @ spread / (len(means) - 1) - within / counts[counts > 1].mean()
    values_w, vectors_w = np.linalg.eigh(within)
    whiten = vectors_w / np.sqrt(values_w.clip(1e-9 * values_w[-1]))
    strength, directions = np.linalg.eigh(whiten.T @ between @ whiten)
    gain = np.sqrt((strength / (1 + strength)).clip(0))
    matrix = whiten @ directions * gain
    return matrix if basis is None else basis @ matrix


def retrain_head(seen: Embeddings, people: NDArray[np.integer]) -> tuple[Callable[[Embeddings], Embeddings], str]:
    """A linear map of a judge's embeddings learnt from anonymised faces [N,D], to compare by cosine, and a note."""
    matrix, mean = discriminant(seen, people), seen.mean(0)
    return lambda embeddings: ((embeddings - mean) @ matrix).astype(np.float32), (
        "Linear head retrained on anonymised faces, network fixed."
    )
