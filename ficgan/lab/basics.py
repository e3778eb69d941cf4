"""The first figures of a model: reconstruction, identity after de-identification, detection.

The recognisers given here are judges: never the network that trained the model. The policy's retries are off, so that
the figures are the model's own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ficgan.deidentify import Deidentifier
from ficgan.errors import UsageError
from ficgan.faces import Face, FaceDetector, Recognizer

__all__ = ["Row", "measure_aligned", "measure_photos"]

LEAST_SIDE = 128
"""Of aligned crops that judges see, px; models of more see and are judged at their own size."""
Image = NDArray[np.uint8]
Progress = Callable[[int, int], None]


@dataclass
class Row:
    """Figures of one setting on one set."""

    setting: str
    """"clear" (strangers), "reconstruction", or "i = N"."""
    images: int
    similarity: dict[str, float] = field(default_factory=dict)
    """Mean cosine of source and output by each judge (dlib too: the cosine of its embeddings)."""
    matched: dict[str, float] = field(default_factory=dict)
    """Share of outputs each judge takes for the source, at its own threshold."""
    detected: float | None = None
    """Share of images in which the detector finds a face."""
    mse: float | None = None
    """Mean squared error on [−1, 1]."""
    ssim: float | None = None

    def to_dict(self) -> dict[str, Any]:
        flat: dict[str, Any] = {"setting": self.setting, "images": self.images}
        for name in ("mse", "ssim", "detected"):
            value = getattr(self, name)
            if value is not None:
                flat[name] = round(float(value), 4)
        flat["similarity"] = {name: round(value, 3) for name, value in self.similarity.items()}
        flat["matched"] = {name: round(value, 3) for name, value in self.matched.items()}
        return flat


def measure_aligned(
    deid: Deidentifier,
    crops: NDArray[np.uint8],
    *,
    layers: Sequence[int],
    judges: Sequence[Recognizer],
    detector: FaceDetector | None = None,
    progress: Progress | None = None,
) -> list[Row]:
    """Figures on aligned crops.

    Args:
        deid: its model and bank are used, with k and ψ as set; retries must be off.
        crops: [N,S,S,3] uint8 RGB, aligned as the checkpoint's, of different people.
        layers: values of i to measure.
        judges: recognisers that had no part in training.
        detector: for the detection rate; None leaves it out.
        progress: called as progress(done, total) after each setting.

    Returns:
        Rows: strangers (each crop against the next one), reconstruction, then one for each i.

    Raises:
        UsageError: fewer than two crops.
    """
    if len(crops) < 2:
        raise UsageError(f"{len(crops)} faces are too few to measure with; give at least 2")
    points = deid.alignment.points(crops.shape[1]).astype(np.float32)[None]
    source = _embeddings(judges, crops, points)
    rows = [_compare(Row("clear", len(crops)), judges, source, {n: np.roll(e, 1, 0) for n, e in source.items()})]
    rows[0].detected = _detection_rate(detector, crops)
    outputs: list[tuple[str, Callable[[], Image]]] = [("reconstruction", lambda: reconstruct(deid, crops))]
    outputs += [(f"i = {layer}", lambda layer=layer: deid.aligned(crops, layer=layer)[0]) for layer in layers]  # type: ignore
    for done, (setting, make) in enumerate(outputs):
        made = make()
        row = _compare(Row(setting, len(crops)), judges, source, _embeddings(judges, made, points))
        row.detected = _detection_rate(detector, made)
        if setting == "reconstruction":
            row.mse, row.ssim = fidelity(crops, made)
        rows.append(row)
        if progress:
            progress(done + 1, len(outputs))
    return rows


def measure_photos(
    deid: Deidentifier,
    photos: Iterable[Image],
    *,
    layers: Sequence[int],
    judges: Sequence[Recognizer],
    progress: Progress | None = None,
) -> list[Row]:
    """Figures on whole photos, each of another person: detect, replace, paste back, read again.

    Args:
        deid: with retries off.
        photos: H×W×3 uint8 RGB.
        layers: values of i to measure.
        judges: recognisers that had no part in training.
        progress: called as progress(done, total) after each setting.

    Returns:
        Rows: strangers, then one for each i. Photos without a detected face count as not detected and are left out
        of the similarities.

    Raises:
        UsageError: fewer than two photos in which a face is found.
    """
    photos = list(photos)
    found = [deid.detector.detect(photo) for photo in photos]
    marks = [faces[0].landmarks if faces else None for faces in found]
    source = [_embed_one(judges, photo, mark) for photo, mark in zip(photos, marks, strict=True)]
    usable = [index for index, mark in enumerate(marks) if mark is not None]
    if len(usable) < 2:
        raise UsageError(
            f"{deid.detector.name} found a face in {len(usable)} of {len(photos)} photos; give at least 2 with one"
        )
    clear = {judge.name: np.stack([source[i][judge.name] for i in usable]) for judge in judges}
    rows = [_compare(Row("clear", len(photos)), judges, clear, {n: np.roll(e, 1, 0) for n, e in clear.items()})]
    rows[0].detected = len(usable) / len(photos)
    for done, layer in enumerate(layers):
        outs = [deid(photo, key=str(index), layer=layer).image for index, photo in enumerate(photos)]
        again = [_embed_one(judges, out, mark) for out, mark in zip(outs, marks, strict=True)]
        made = {judge.name: np.stack([again[i][judge.name] for i in usable]) for judge in judges}
        row = _compare(Row(f"i = {layer}", len(photos)), judges, clear, made)
        row.detected = _detection_rate(deid.detector, outs)
        rows.append(row)
        if progress:
            progress(done + 1, len(layers))
    return rows


def reconstruct(deid: Deidentifier, crops: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """G(E(x)) of aligned crops, at their own size: [N,S,S,3] uint8 → the same; what the model cannot make is grey."""
    model, size = deid.face_model, crops.shape[1]
    face = Face(np.array([0, 0, size, size], np.float32), deid.alignment.points(size).astype(np.float32), 1.0)
    out = np.full_like(crops, 127)
    for begin in range(0, len(crops), 32):
        rows = range(begin, min(begin + 32, len(crops)))
        sights = dict(zip(rows, model.see([(crops[n], face) for n in rows]), strict=True))
        good = [n for n in rows if not sights[n].problem]
        for n, made in zip(good, model.reconstruct([sights[n] for n in good]) if good else [], strict=True):
            out[n] = model.on_crop(crops[n], sights[n], made)[0]
    return out


def fidelity(a: NDArray[np.uint8], b: NDArray[np.uint8]) -> tuple[float, float]:
    """Mean squared error on [−1, 1] and mean SSIM (Wang et al. 2004, Gaussian window) of pairs [N,S,S,3] uint8."""
    from skimage.metrics import structural_similarity

    difference = (a.astype(np.float64) - b.astype(np.float64)) / 127.5
    options = {"channel_axis": 2, "gaussian_weights": True, "sigma": 1.5, "use_sample_covariance": False}
    ssim = [structural_similarity(x, y, data_range=255, **options) for x, y in zip(a, b, strict=True)]
    return float((difference**2).mean()), float(np.mean(ssim))


def _embed_one(judges: Sequence[Recognizer], image: Image, mark: NDArray[Any] | None) -> dict[str, NDArray[np.float32]]:
    return {} if mark is None else {judge.name: judge.embed(image, mark[None])[0] for judge in judges}


def _embeddings(
    judges: Sequence[Recognizer], images: NDArray[np.uint8], points: NDArray[np.float32]
) -> dict[str, NDArray[np.float32]]:
    return {judge.name: np.stack([judge.embed(image, points)[0] for image in images]) for judge in judges}


def _compare(row: Row, judges: Sequence[Recognizer], a: dict[str, Any], b: dict[str, Any]) -> Row:
    for judge in judges:
        x, y = a[judge.name].astype(np.float64), b[judge.name].astype(np.float64)
        cosine = (x * y).sum(1) / (np.linalg.norm(x, axis=1) * np.linalg.norm(y, axis=1)).clip(1e-12)
        row.similarity[judge.name] = float(cosine.mean())
        row.matched[judge.name] = float(np.mean([judge.is_match(p, q) for p, q in zip(x, y, strict=True)]))
    return row


def _detection_rate(detector: FaceDetector | None, images: Sequence[Image] | NDArray[np.uint8]) -> float | None:
    if detector is None:
        return None
    return float(np.mean([bool(detector.detect(image)) for image in images]))
