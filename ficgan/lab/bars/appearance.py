"""How it looks: sharpness inside and around the mask, its border, reconstruction, distance to real faces."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ficgan.anonymizers import Faces, Images
from ficgan.deidentify import Deidentifier
from ficgan.lab.bars.identity import cosines
from ficgan.lab.bars.lab import Lab, Look, mean_of
from ficgan.lab.bars.lines import Control, Controls, Figures
from ficgan.lab.basics import reconstruct
from ficgan.lab.metrics.perceptual import frechet_distance
from ficgan.lab.results import Figure

__all__ = [
    "RealFaces",
    "appearance",
    "appearance_controls",
    "border_gradient",
    "fidelity",
    "rebuilt",
    "sharpness_at",
]

Values = NDArray[np.float64]
RING = 0.15
"""Width of what counts as around the mask, of the side of the replaced square."""
_LEAST = 50  # pixels; a variance of fewer says nothing
_HIDDEN = 0.999


def sharpness_at(images: Images, weights: NDArray[np.float32], ring: int) -> tuple[Values, Values]:
    """Variance of the grey images' Laplacian where a face was pasted, and around it.

    Args:
        images: [N,S,S,3] uint8 RGB.
        weights: [N,S,S], how much of each pixel was replaced.
        ring: pixels beyond the mask that count as around it.

    Returns:
        Two float64 [N], grey levels squared: inside (weight 1) and around (weight 0), each a pixel away from where the
        weight changes, so that no Laplacian sees both sides. NaN where fewer than 50 pixels are left.

    Source: Pech-Pacheco et al. 2000 (the measure LAPV).
    """
    import cv2

    out = np.full((2, len(images)), np.nan)
    wide, small = np.ones((2 * ring + 1, 2 * ring + 1), np.uint8), np.ones((3, 3), np.uint8)
    for index, (image, weight) in enumerate(zip(images, weights, strict=True)):
        lap = cv2.Laplacian(cv2.cvtColor(image, cv2.COLOR_RGB2GRAY), cv2.CV_32F)
        touched = (weight > 0).astype(np.uint8)
        inside = cv2.erode((weight >= _HIDDEN).astype(np.uint8), small) > 0
        around = (cv2.dilate(touched, wide) > 0) & (cv2.dilate(touched, small) == 0)
        for place, where in enumerate((inside, around)):
            if where.sum() >= _LEAST:
                out[place, index] = lap[where].var(dtype=np.float64)
    return out[0], out[1]


def border_gradient(images: Images, weights: NDArray[np.float32]) -> Values:
    """Mean length of the grey gradient (Sobel) where the weight is between 0 and 1: float64 [N]; NaN where nowhere."""
    import cv2

    out = np.full(len(images), np.nan)
    for index, (image, weight) in enumerate(zip(images, weights, strict=True)):
        grey = cv2.cvtColor(image, cv2.COLOR_RGB2GRAY)
        length = np.hypot(cv2.Sobel(grey, cv2.CV_32F, 1, 0), cv2.Sobel(grey, cv2.CV_32F, 0, 1))
        band = (weight > 0) & (weight < _HIDDEN)
        if band.any():
            out[index] = length[band].mean(dtype=np.float64)
    return out


class RealFaces:
    """Real faces that outputs are compared with, and how far other real faces of the same number are from them.

    With training faces these are the reference and the set's own clear faces the others; else one half of the
    set's people is the reference of the other half.

    Args:
        lab: the set; of photos, the replaced squares.
        train: other real faces, cut as these; None: there are none.
    """

    def __init__(self, lab: Lab, train: Faces | None) -> None:
        self.lab, net = lab.inner, lab.eyes.judges.squeezenet
        self.missing = lab.eyes.judges.missing.get("squeezenet", "")
        count = len(self.lab.faces)
        people = len(np.unique(self.lab.people))
        if net is None or people < 4:
            self.missing = self.missing or f"{people} people are too few for a Fréchet distance; give at least 4"
            return
        clear = net.read(self.lab.faces.images).features
        if train is not None and len(train) >= count:
            self.rows = np.arange(count)
            self.reference, self.what = net.read(train.images[:count]).features, "training faces"
        else:
            self.rows, other = _halves(self.lab.people)
            self.reference, self.what = clear[other], "faces of the set's other people"
        self.floor = frechet_distance(clear[self.rows], self.reference)

    def ratio(self, faces: Faces) -> Figure:
        """Row fd of outputs of the whole crops."""
        net = self.lab.eyes.judges.squeezenet
        if self.missing or net is None:
            return Figure("fd", None, unit="images", note=self.missing)
        x0, y0, x1, y1 = self._region(faces)
        inner = np.ascontiguousarray(faces.images[self.rows, y0:y1, x0:x1])
        value = frechet_distance(net.read(inner).features, self.reference)
        note = f"{value:.3g} against {self.floor:.3g}, to {len(self.rows)} {self.what}"
        return Figure("fd", value / self.floor if self.floor else None, n=len(inner), unit="images", note=note)

    def _region(self, faces: Faces) -> tuple[int, int, int, int]:
        margin = (faces.images.shape[1] - self.lab.faces.images.shape[1]) // 2
        return margin, margin, margin + self.lab.faces.images.shape[1], margin + self.lab.faces.images.shape[1]


def appearance(lab: Lab, look: Look, real: RealFaces) -> Figures:
    """Rows sharpness, sharpness-kept, border and fd of finished crops; means of logarithms where they are ratios."""
    x0, _, x1, _ = lab.prepared.region
    ring = max(2, round(RING * (x1 - x0)))
    inside, around = sharpness_at(look.faces.images, lab.weights, ring)
    before, _ = sharpness_at(lab.faces.images, lab.weights, ring)
    edge, clear = (border_gradient(one.images, lab.weights) for one in (look.faces, lab.faces))
    return {
        ("sharpness", ""): _ratio(lab, "sharpness", inside, around),
        ("sharpness-kept", ""): _ratio(lab, "sharpness-kept", inside, before),
        ("border", ""): _ratio(lab, "border", edge, clear),
        ("fd", ""): real.ratio(look.faces),
    }


def appearance_controls(lab: Lab, real: RealFaces) -> Controls:
    """What the clear faces have."""
    return {key: Control("clear", figure) for key, figure in appearance(lab, lab.clear, real).items()}


def rebuilt(lab: Lab, deid: Deidentifier) -> Look:
    """G(E(x)) of the inner squares, which lie as the model's own crops do; nothing is blended."""
    return lab.look(lab.faces.with_images(reconstruct(deid, lab.faces.images)))


def fidelity(lab: Lab, look: Look) -> Figures:
    """Rows rec-mse, rec-cosine by each recogniser, and rec-lpips."""
    pairs = zip(lab.faces.images, look.faces.images, strict=True)
    error = np.array([np.square(a.astype(np.float32) - b).mean(dtype=np.float64) / 127.5**2 for a, b in pairs])
    out: Figures = {("rec-mse", ""): mean_of(lab, "rec-mse", error)}
    for name, made in look.embeddings.items():
        out["rec-cosine", name] = mean_of(lab, "rec-cosine", cosines(lab.clear.embeddings[name], made))
    seen, judges = look.readings.perception, lab.eyes.judges
    if seen is None or seen.distances is None:
        why = judges.missing.get("squeezenet") or judges.missing.get("distances", "it was not read")
        out["rec-lpips", ""] = Figure("rec-lpips", None, unit="images", note=why)
    else:
        out["rec-lpips", ""] = mean_of(lab, "rec-lpips", seen.distances, "not the published LPIPS")
    return out


def _halves(people: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Rows of two equally large sets of which nobody is in both."""
    who = np.random.default_rng(0).permutation(np.unique(people))
    first = np.isin(people, who[: len(who) // 2])
    a, b = np.flatnonzero(first), np.flatnonzero(~first)
    count = min(len(a), len(b))
    return a[:count], b[:count]


def _ratio(lab: Lab, row: str, above: Values, below: Values) -> Figure:
    """exp of the mean of log((above + 1) / (below + 1)): one grey level squared keeps flat images finite."""
    figure = mean_of(lab, row, np.log((above + 1) / (below + 1)))
    value, low, high = (None if x is None else float(np.exp(x)) for x in (figure.value, figure.low, figure.high))
    return replace(figure, value=value, low=low, high=high)
