"""What a person reads in a face: age, gender, expression, attributes, and how far two readings agree."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ficgan.anonymizers import Faces
from ficgan.faces import ARCFACE_POINTS, crop, similarity
from ficgan.lab.metrics.geometry import eye_distance

__all__ = ["AgeGender", "agreement", "balanced_agreement", "by_attribute", "kept", "mouth"]

Floats = NDArray[np.floating[Any]]
_BATCH = 32


class AgeGender:
    """Age and gender as a network reads them.

    Args:
        path: ONNX file: RGB 0..255 at ArcFace's five points in 112×112 → years [B], P(male) [B].

    Raises:
        InputError: a file that is no such network.
    """

    def __init__(self, path: Path) -> None:
        from ficgan.faces.models import onnx_session

        self._session = onnx_session(path)
        self._input: str = self._session.get_inputs()[0].name

    def predict(self, faces: Faces) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Age in years [N] and probability of male [N]; faces are taken at the landmarks they came with."""
        ages, males = [np.zeros(0, np.float32)], [np.zeros(0, np.float32)]
        for begin in range(0, len(faces), _BATCH):
            rows = slice(begin, begin + _BATCH)
            batch = np.stack(
                [
                    crop(image, similarity(marks, ARCFACE_POINTS), 112)
                    for image, marks in zip(faces.images[rows], faces.landmarks[rows], strict=True)
                ]
            )
            age, male = self._session.run(None, {self._input: batch.transpose(0, 3, 1, 2).astype(np.float32)})
            ages.append(age.ravel())
            males.append(male.ravel())
        return np.concatenate(ages), np.concatenate(males)


def mouth(landmarks: Floats) -> NDArray[np.float64]:
    """Width of the mouth in eye distances, which a smile widens: landmarks [N,5,2] → [N]; NaN where there are none.

    A weak sign: on the London set it tells smiling from neutral portraits with an AUC of .68.
    """
    marks = np.asarray(landmarks, np.float64)
    return np.linalg.norm(marks[:, 4] - marks[:, 3], axis=1) / eye_distance(marks).clip(1e-9)


def agreement(clear: ArrayLike, anonymised: ArrayLike) -> NDArray[np.float64]:
    """Share of attributes decided alike, for each image.

    Args:
        clear, anonymised: [N,A] probabilities; the decision is p ≥ .5. Labels 0 and 1 will do for `clear`.

    Returns:
        float64 [N] in [0, 1]. Most attributes are rare, and whoever always says no agrees often: see
        `balanced_agreement`.

    Source: FICGAN, section 4.2 ("preservation accuracy of total attributes").
    """
    return ((np.asarray(clear) >= 0.5) == (np.asarray(anonymised) >= 0.5)).mean(1)


def by_attribute(
    clear: Floats, anonymised: Floats, weights: Floats | None = None
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Share of the images with, and of those without each attribute, that are decided so again.

    Args:
        clear, anonymised: [N,A] probabilities, as of `agreement`.
        weights: [R,N], how often each image counts; None: once.

    Returns:
        Two float64 [A], or [R,A] where weights were given; NaN where there is no such image.
    """
    before, after = np.asarray(clear) >= 0.5, np.asarray(anonymised) >= 0.5
    counted = np.ones((1, len(before))) if weights is None else weights
    out = []
    for wanted in (before, ~before):
        hits = counted @ (wanted & (before == after)).astype(counted.dtype)
        cases = counted @ wanted.astype(counted.dtype)
        share = np.divide(hits, cases, out=np.full(hits.shape, np.nan), where=cases > 0, dtype=np.float64)
        out.append(share[0] if weights is None else share)
    return out[0], out[1]


def balanced_agreement(
    clear: Floats, anonymised: Floats, weights: Floats | None = None, *, least: int = 5
) -> NDArray[np.float64]:
    """Mean over attributes of the mean of the two shares of `by_attribute`: .5 for whoever always says the same.

    Args:
        clear, anonymised: [N,A] probabilities, as of `agreement`.
        weights: [R,N], how often each image counts; None: once.
        least: attributes that fewer clear images have, or lack, are left out.

    Returns:
        float64, a number or [R]; NaN where every attribute is left out.
    """
    count = (np.asarray(clear) >= 0.5).sum(0)
    used = np.minimum(count, len(clear) - count) >= least
    if not used.any():
        return np.full(() if weights is None else len(weights), np.nan)
    having, lacking = by_attribute(np.asarray(clear)[:, used], np.asarray(anonymised)[:, used], weights)
    # In a resample an attribute may have lost all its images: it then sits out.
    both = (having + lacking) / 2
    told = np.isfinite(both)
    return np.where(told, both, 0).sum(-1) / np.where(told.any(-1), told.sum(-1), np.nan)


def kept(
    clear: Floats, anonymised: Floats, names: tuple[str, ...]
) -> dict[str, tuple[float | None, float | None, float]]:
    """How far each attribute survives, for tables by attribute.

    Args:
        clear, anonymised: [N,A] probabilities, as of `agreement`.
        names: A names.

    Returns:
        name → share kept of the images that have it, share kept of those that lack it (None where there are none), and
        share of all images decided alike.

    Source: FICGAN, figure 4 (c) and figure B.
    """
    having, lacking = by_attribute(clear, anonymised)
    alike = ((np.asarray(clear) >= 0.5) == (np.asarray(anonymised) >= 0.5)).mean(0)
    rows = zip(names, having, lacking, alike, strict=True)
    return {name: (_told(a), _told(b), float(c)) for name, a, b, c in rows}


def _told(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None
