"""The first figures of a model: reconstruction, identity after de-identification, detection; retries are off."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ficgan.deidentify import Deidentifier
from ficgan.errors import UsageError
from ficgan.faces import Face, FaceDetector, Recognizer

__all__ = ["LEAST_SIDE", "Row", "fidelity", "measure_aligned", "measure_photos", "reconstruct"]

LEAST_SIDE = 128  # Of aligned crops that judges see, px; models of more see and are judged at their own size
Image = NDArray[np.uint8]
Outputs = Mapping[str, Callable[[], Sequence[Image] | NDArray[np.uint8]]]  # Setting → what makes its pictures


@dataclass
class Row:
    """Figures of one setting ("clear": strangers, "reconstruction", or "i = N") on one set; `mse` is on [−1, 1]."""

    setting: str
    images: int
    similarity: dict[str, float] = field(default_factory=dict)
    matched: dict[str, float] = field(default_factory=dict)
    detected: float | None = None
    mse: float | None = None
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
) -> list[Row]:
    """Figures on aligned crops [N,S,S,3] uint8 RGB of different people: strangers, reconstruction, then each i."""
    if len(crops) < 2:
        raise UsageError(f"{len(crops)} faces are too few to measure with; give at least 2")
    outputs: dict[str, Any] = {"reconstruction": partial(reconstruct, deid, crops)}
    outputs |= {f"i = {layer}": lambda layer=layer: deid.aligned(crops, layer=layer)[0] for layer in layers}
    marks = [deid.alignment.points(crops.shape[1]).astype(np.float32)] * len(crops)
    return _rows(crops, marks, outputs, judges, detector)


def measure_photos(
    deid: Deidentifier, photos: Iterable[Image], *, layers: Sequence[int], judges: Sequence[Recognizer]
) -> list[Row]:
    """Figures on whole photos, each of another person: strangers, then each i; undetected faces are left out of
    similarities.
    """
    photos = list(photos)
    found = [deid.detector.detect(photo) for photo in photos]
    marks = [faces[0].landmarks if faces else None for faces in found]
    usable = len(marks) - sum(mark is None for mark in marks)
    if usable < 2:
        found_in = f"{deid.detector.name} found a face in {usable} of {len(photos)} photos"
        raise UsageError(f"{found_in}; give at least 2 with one")

    def published(layer: int) -> list[Image]:
        return [deid(photo, key=str(index), layer=layer).image for index, photo in enumerate(photos)]

    outputs = {f"i = {layer}": partial(published, layer) for layer in layers}
    return _rows(photos, marks, outputs, judges, deid.detector, usable / len(photos))


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


def _rows(
    images: Sequence[Image] | NDArray[np.uint8], marks: Sequence[NDArray[Any] | None], outputs: Outputs,
    judges: Sequence[Recognizer], detector: FaceDetector | None, detected: float | None = None,
) -> list[Row]:  # fmt: skip
    def seen(pictures: Sequence[Image] | NDArray[np.uint8]) -> dict[str, NDArray[np.float64]]:
        pairs = [(picture, mark[None]) for picture, mark in zip(pictures, marks, strict=True) if mark is not None]
        return {judge.name: np.stack([judge.embed(*pair)[0] for pair in pairs]).astype(np.float64) for judge in judges}

    def row(setting: str, pictures: Sequence[Image] | NDArray[np.uint8], made: dict[str, NDArray[np.float64]]) -> Row:
        out = Row(setting, len(images))
        for judge in judges:
            x, y = clear[judge.name], made[judge.name]
            cosine = (x * y).sum(1) / (np.linalg.norm(x, axis=1) * np.linalg.norm(y, axis=1)).clip(1e-12)
            out.similarity[judge.name] = float(cosine.mean())
            out.matched[judge.name] = float(np.mean([judge.is_match(p, q) for p, q in zip(x, y, strict=True)]))
        if setting == "clear" and detected is not None:
            out.detected = detected
        elif detector is not None:
            out.detected = float(np.mean([bool(detector.detect(picture)) for picture in pictures]))
        return out

    clear = seen(images)
    rows = [row("clear", images, {name: np.roll(codes, 1, 0) for name, codes in clear.items()})]
    for setting, make in outputs.items():
        made = make()
        rows.append(row(setting, made, seen(made)))
        if setting == "reconstruction":
            rows[-1].mse, rows[-1].ssim = fidelity(np.asarray(images), np.asarray(made))
    return rows
