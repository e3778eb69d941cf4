"""What of the face is kept and how it looks: likeness, sharpness, border, reconstruction, real faces, groups."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from ficgan.anonymizers import Faces, Images
from ficgan.lab.bars.bench import DETECTORS, MeasuredSet, Observation
from ficgan.lab.bars.table import Control, Controls, Figures
from ficgan.lab.bench import squared_errors
from ficgan.lab.metrics.pictures import eye_distance, frechet_distance, landmark_distance
from ficgan.lab.metrics.utility import compare
from ficgan.lab.readers import cosines, paired
from ficgan.lab.results import Figure
from ficgan.lab.sets.formats import AGE_BANDS, age_band

Values = NDArray[np.float64]
GLASSES = "Eyeglasses"
LEAST_GROUP = 20  # Faces that a group needs for figures of its own
RING = 0.15  # Width of what counts as around the mask, of the side of the replaced square
_LEAST = 50  # pixels; a variance of fewer says nothing
_HIDDEN = 0.999
_METRICS = {"landmarks": "landmarks", "yaw-r": "yaw-r", "smile-r": "smile-r", "gender": "gender-kept"}
"""Row → metric of `metrics.utility`."""
_COLUMNS = {"gender": "gender", "age-band": "age", "race": "race"}  # Row → the set's column of labels


# -- likeness ---------------------------------------------------------------------------------------------------------


def likeness(bench: MeasuredSet, seen: Observation) -> Figures:
    """Rows detected, landmarks, smile-r, yaw-r, gender, age-band, race and glasses of outputs against clear faces."""
    compared = {one.metric: one for one in compare(bench.clear.readings, seen.readings, bootstrap=bench.bootstrap)}
    out, judges = detected(bench, seen), _judges(bench)
    for row, metric in _METRICS.items():
        out[row, judges[row]] = replace(compared[metric], metric=row)
    smile, mouth = compared["smile-r"], compared["mouth-r"]
    if smile.value is None and mouth.value is not None:
        note = f"by the width of the mouth, a weak sign, for {smile.note}"
        del out["smile-r", judges["smile-r"]]
        out["smile-r", "mouth width"] = replace(mouth, metric="smile-r", note=note)
    missing, before, after = bench.panel.judges.missing, _read(bench, bench.clear), _read(bench, seen)
    reasons = {
        "age-band": missing.get("age_gender", "it was not read"),
        "race": "no judge here reads race",
        "glasses": missing.get("attributes", f"the attribute classifier does not know {GLASSES}"),
    }
    for row, why in reasons.items():
        if row in before and row in after:
            note = f"majority {_majority(before[row])} of clear faces"
            out[row, judges[row]] = bench.mean(row, before[row] == after[row], note)
        else:
            out[row, judges[row]] = Figure(row, None, unit="images", note=why)
    return out


def detected(bench: MeasuredSet, seen: Observation) -> Figures:
    """Row detected, by each detector."""
    out: Figures = {}
    for name in DETECTORS:
        if name in seen.detections:
            out["detected", name] = bench.mean("detected", seen.detections[name].found)
        else:
            out["detected", name] = Figure("detected", None, note=bench.panel.missing.get(name, "it is not here"))
    return out


def likeness_controls(bench: MeasuredSet) -> Controls:
    """The clear faces at the model's resolution, and how the judge does on clear faces where there are labels."""
    out = {}
    same = bench.softened is bench.clear
    what = "clear, read twice" if same else f"clear at {bench.resolution} px"
    for (row, judge), figure in likeness(bench, bench.softened).items():
        competence = _competence(bench, row) if row in _COLUMNS and figure.value is not None else ""
        out[row, judge] = Control(f"{what}; {competence}" if competence else what, figure)
    return out


def _judges(bench: MeasuredSet) -> dict[str, str]:
    """Row → who reads it."""
    attributes = bench.panel.judges.attributes
    detector = next(iter(bench.panel.detectors), "no detector")
    learnt = None if attributes is None else attributes.training.get("source", {}).get("name")
    classifier = "attribute classifier" + (f" ({learnt})" if learnt else "")
    return {
        "landmarks": detector,
        "yaw-r": detector,
        "smile-r": f"{classifier}: Smiling",
        "gender": "age_gender",
        "age-band": "age_gender",
        "race": classifier,
        "glasses": f"{classifier}: {GLASSES}",
    }


def _read(bench: MeasuredSet, seen: Observation) -> dict[str, NDArray[Any]]:
    """Row → what is read in each face [N]; rows that nobody can read are left out."""
    readings, out = seen.readings, {}
    if readings.ages is not None:
        out["age-band"] = np.array([age_band(max(0.0, float(years))) for years in readings.ages])
    if readings.males is not None:
        out["gender"] = np.where(readings.males >= 0.5, "Male", "Female")
    if readings.attributes is not None:
        columns = dict(zip(readings.attribute_names, readings.attributes.T, strict=True))
        races = sorted(set(bench.prepared.groups.get("race", ())) - {""})
        if len(races) > 1 and set(races) <= set(columns):
            out["race"] = np.array(races)[np.stack([columns[race] for race in races]).argmax(0)]
        if GLASSES in columns:
            out["glasses"] = columns[GLASSES] >= 0.5
    return out


def _competence(bench: MeasuredSet, row: str) -> str:
    labels = np.array(bench.prepared.groups.get(_COLUMNS[row], ()))
    read, known = _read(bench, bench.clear).get(row), labels != ""
    if read is None or not len(labels) or not known.any():
        return ""
    if row == "age-band" and not set(labels[known]) <= set(AGE_BANDS):
        return ""
    share = float(np.mean(read[known] == labels[known]))
    return f"clear against its label {share:.3f}, majority {_majority(labels[known])}"


def _majority(values: NDArray[Any]) -> str:
    counts = np.unique(values, return_counts=True)[1]
    return f"{counts.max() / counts.sum():.3f}"


# -- appearance -------------------------------------------------------------------------------------------------------


def sharpness_at(images: Images, weights: NDArray[np.float32], ring: int) -> tuple[Values, Values]:
    """Variance of the grey images' Laplacian where a face was pasted, and around it (LAPV, Pech-Pacheco et al. 2000).

    Args:
        images: [N,S,S,3] uint8 RGB.
        weights: [N,S,S], how much of each pixel was replaced.

    Returns:
        Two float64 [N], grey levels squared: inside (weight 1) and around (weight 0), each a pixel away from the edge.
        NaN where fewer than 50 pixels are left.
    """
    out = np.full((2, len(images)), np.nan)
    wide, small = np.ones((2 * ring + 1, 2 * ring + 1), np.uint8), np.ones((3, 3), np.uint8)
    for index, (image, weight) in enumerate(zip(images, weights, strict=True)):
        laplacian = cv2.Laplacian(cv2.cvtColor(image, cv2.COLOR_RGB2GRAY), cv2.CV_32F)
        touched = (weight > 0).astype(np.uint8)
        inside = cv2.erode((weight >= _HIDDEN).astype(np.uint8), small) > 0
        around = (cv2.dilate(touched, wide) > 0) & (cv2.dilate(touched, small) == 0)
        for place, where in enumerate((inside, around)):
            if where.sum() >= _LEAST:
                out[place, index] = laplacian[where].var(dtype=np.float64)
    return out[0], out[1]


def border_gradient(images: Images, weights: NDArray[np.float32]) -> Values:
    """Mean length of the grey gradient (Sobel) where the weight is between 0 and 1: float64 [N]; NaN where nowhere."""
    out = np.full(len(images), np.nan)
    for index, (image, weight) in enumerate(zip(images, weights, strict=True)):
        grey = cv2.cvtColor(image, cv2.COLOR_RGB2GRAY)
        length = np.hypot(cv2.Sobel(grey, cv2.CV_32F, 1, 0), cv2.Sobel(grey, cv2.CV_32F, 0, 1))
        band = (weight > 0) & (weight < _HIDDEN)
        if band.any():
            out[index] = length[band].mean(dtype=np.float64)
    return out


class RealFaces:
    """Real faces that outputs are compared with, and how far as many other real faces are from them.

    Without training faces one half of the set's people is the reference of the other half.
    """

    def __init__(self, bench: MeasuredSet) -> None:
        self.side = bench.inner.faces.images.shape[1]
        self.network = bench.panel.judges.squeezenet
        self.missing = bench.panel.judges.missing.get("squeezenet", "")
        people, train = bench.people, bench.train
        count = len(np.unique(people))
        if self.network is None or count < 4:
            self.missing = self.missing or f"{count} people are too few for a Fréchet distance; give at least 4"
            return
        clear = self.network.read(bench.inner.faces.images).features
        if train is not None and len(train) >= len(people):
            self.rows = np.arange(len(people))
            self.reference, self.what = self.network.read(train.images[: len(people)]).features, "training faces"
        else:
            self.rows, other = _halves(people)
            self.reference, self.what = clear[other], "faces of the set's other people"
        self.floor = frechet_distance(clear[self.rows], self.reference)

    def ratio(self, faces: Faces) -> Figure:
        """Row fd of outputs of the whole crops."""
        if self.missing or self.network is None:
            return Figure("fd", None, unit="images", note=self.missing)
        begin = (faces.images.shape[1] - self.side) // 2
        square = slice(begin, begin + self.side)
        inner = np.ascontiguousarray(faces.images[self.rows, square, square])
        value = frechet_distance(self.network.read(inner).features, self.reference)
        note = f"{value:.3g} against {self.floor:.3g}, to {len(self.rows)} {self.what}"
        return Figure("fd", value / self.floor if self.floor else None, n=len(inner), unit="images", note=note)


def appearance(bench: MeasuredSet, faces: Faces, real: RealFaces) -> Figures:
    """Rows sharpness, sharpness-kept, border and fd of finished crops; means of logarithms where they are ratios."""
    x0, _, x1, _ = bench.prepared.region
    ring, weights = max(2, round(RING * (x1 - x0))), bench.weights
    inside, around = sharpness_at(faces.images, weights, ring)
    before, _ = sharpness_at(bench.faces.images, weights, ring)
    edge, clear = (border_gradient(one.images, weights) for one in (faces, bench.faces))
    return {
        ("sharpness", ""): _ratio(bench, "sharpness", inside, around),
        ("sharpness-kept", ""): _ratio(bench, "sharpness-kept", inside, before),
        ("border", ""): _ratio(bench, "border", edge, clear),
        ("fd", ""): real.ratio(faces),
    }


def fidelity(bench: MeasuredSet, seen: Observation) -> Figures:
    """Rows rec-mse, rec-cosine by each recogniser, and rec-lpips."""
    out: Figures = {("rec-mse", ""): bench.mean("rec-mse", squared_errors(bench.faces.images, seen.faces.images))}
    for name, made in seen.embeddings.items():
        out["rec-cosine", name] = bench.mean("rec-cosine", cosines(bench.clear.embeddings[name], made))
    perceived, missing = seen.readings.perception, bench.panel.judges.missing
    if perceived is None or perceived.distances is None:
        why = missing.get("squeezenet") or missing.get("distances", "it was not read")
        out["rec-lpips", ""] = Figure("rec-lpips", None, unit="images", note=why)
    else:
        out["rec-lpips", ""] = bench.mean("rec-lpips", perceived.distances, "not the published LPIPS")
    return out


def _halves(people: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    who = np.random.default_rng(0).permutation(np.unique(people))
    first = np.isin(people, who[: len(who) // 2])
    a, b = np.flatnonzero(first), np.flatnonzero(~first)
    count = min(len(a), len(b))
    return a[:count], b[:count]


def _ratio(bench: MeasuredSet, row: str, above: Values, below: Values) -> Figure:
    return bench.sample.mean(row, np.log((above + 1) / (below + 1)), then=np.exp)


# -- groups -------------------------------------------------------------------------------------------------


def by_group(
    bench: MeasuredSet, setting: str, seen: Observation, columns: Sequence[str] = ("gender", "race")
) -> list[dict[str, Any]]:
    """Flat rows: what single groups of people get, with intervals; groups of fewer than 20 faces are left out."""
    values = _by_image(bench, seen)
    out = []
    for column in columns:
        labels = np.array(bench.prepared.groups.get(column, ()))
        for group in sorted(set(labels.tolist()) - {""}):
            rows = np.flatnonzero(labels == group)
            if len(rows) < LEAST_GROUP:
                continue
            part = bench.take(rows)
            figures = {name: part.mean(name, some[rows]) for name, some in values.items()}
            row = {"set": bench.name, "setting": setting, "group": f"{column}={group}", "n": len(rows)}
            out.append(row | {name: [one.value, one.low, one.high] for name, one in figures.items()})
    return out


def _by_image(bench: MeasuredSet, seen: Observation) -> dict[str, NDArray[Any]]:
    out: dict[str, NDArray[Any]] = {}
    for reader in bench.readers:
        clear, made = bench.clear.embeddings[reader.name], seen.embeddings[reader.name]
        out[f"cosine {reader.name}"] = cosines(clear, made)
        out[f"matched {reader.name}"] = paired(reader, clear, made) > reader.threshold
    for name, found in seen.detections.items():
        out[f"detected {name}"] = found.found
    before, after = bench.clear.readings, seen.readings
    if before.detections is not None and after.detections is not None:
        a, b = before.detections.landmarks, after.detections.landmarks
        out["landmarks"] = landmark_distance(a, b) / eye_distance(a).clip(1e-9)
    if before.males is not None and after.males is not None:
        out["gender"] = (before.males >= 0.5) == (after.males >= 0.5)
    return out
