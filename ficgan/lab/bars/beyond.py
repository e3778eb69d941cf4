"""Beyond single outputs: training faces that come back, films that hold still, figures by group."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ficgan.anonymizers import Anonymizer, Faces
from ficgan.deidentify import Deidentifier
from ficgan.faces import Face
from ficgan.lab.bars.identity import cosines, similarities
from ficgan.lab.bars.lab import Eyes, Lab, Look, mean_of
from ficgan.lab.bars.lines import Control, Figures
from ficgan.lab.metrics.geometry import box_iou, eye_distance, landmark_distance
from ficgan.lab.readers import Embeddings, Reader
from ficgan.lab.results import Figure

__all__ = ["LEAST_GROUP", "by_group", "nearest", "steadiness"]

LEAST_GROUP = 20
"""Faces that a group needs for figures of its own."""
_SAME = 0.5
"""Least intersection over union of a face's boxes in neighbouring frames."""


def nearest(
    lab: Lab, train: Faces, reader: Reader, outputs: Anonymizer, sticker: Anonymizer, known: Embeddings | None = None
) -> tuple[Figures, Figures, dict[tuple[str, str], Control]]:
    """Row memorised: how like its nearest training face each output is, the sticker's, and that of clear faces.

    Args:
        lab: held-out faces of different people.
        train: faces of the training set.
        reader: a recogniser.
        outputs, sticker: what makes them.
        known: embeddings of the training faces, where they are read already.

    Returns:
        Figures of the model, of the sticker, and the control.
    """
    held = reader.embed(train) if known is None else known
    key = ("memorised", reader.name)

    def figure(faces: Faces) -> Figure:
        best = similarities(lab.embed(reader, faces), held, "cosine").max(1)
        return mean_of(lab, "memorised", best, f"to {len(train)} training faces; the nearest of all {best.max():.3f}")

    control = Control("held-out clear faces", figure(lab.faces))
    return {key: figure(lab.composed(outputs))}, {key: figure(lab.composed(sticker))}, {key: control}


def steadiness(
    frames: Sequence[NDArray[np.uint8]], deid: Deidentifier, layer: int, eyes: Eyes, rate: float = 25.0
) -> tuple[Figures, dict[tuple[str, str], Control]]:
    """Row stability: cosine of each face to itself in the next frame, in the output and, as a control, in the source.

    Faces are looked for in the source, and read at the same landmarks in both.

    Args:
        frames: H×W×3 uint8 RGB, in order.
        deid: verification off.
        layer: i.
        eyes: recognisers.
        rate: frames per second.
    """
    deid.layer = layer
    outputs = [one.image for one in deid.stream(frames, rate)]
    once = getattr(deid.detector, "once", None)
    detector = once() if once else deid.detector
    faces = [detector.detect(frame) for frame in frames]
    pairs = [_followed(a, b) for a, b in pairwise(faces)]
    count = sum(len(some) for some in pairs)
    figures: Figures = {}
    controls = {}
    for reader in eyes.readers:
        key = ("stability", reader.name)
        values = [_neighbours(reader, film, faces, pairs) for film in (outputs, frames)]
        note = f"{len(frames)} frames; neighbours are no independent trials, so there is no interval"
        told = [
            Figure("stability", float(some.mean()) if count else None, n=count, unit="pairs of frames", note=note)
            for some in values
        ]
        figures[key], controls[key] = told[0], Control("the source's own", told[1])
    return figures, controls


def by_group(lab: Lab, setting: str, look: Look, columns: Sequence[str] = ("gender", "race")) -> list[dict[str, Any]]:
    """Flat rows: what single groups of people get, with intervals; groups of fewer than 20 faces are left out."""
    values = _by_image(lab, look)
    out = []
    for column in columns:
        told = np.array(lab.prepared.groups.get(column, ()))
        for group in sorted(set(told.tolist()) - {""}):
            rows = np.flatnonzero(told == group)
            if len(rows) < LEAST_GROUP:
                continue
            part = lab.take(rows)
            row: dict[str, Any] = {"set": lab.name, "setting": setting, "group": f"{column}={group}", "n": len(rows)}
            for name, some in values.items():
                figure = mean_of(part, name, some[rows])
                row[name] = [figure.value, figure.low, figure.high]
            out.append(row)
    return out


def _by_image(lab: Lab, look: Look) -> dict[str, NDArray[Any]]:
    out: dict[str, NDArray[Any]] = {}
    for reader in lab.eyes.readers:
        clear, made = lab.clear.embeddings[reader.name], look.embeddings[reader.name]
        cosine = cosines(clear, made)
        score = cosine if reader.metric == "cosine" else -np.linalg.norm(clear.astype(np.float64) - made, axis=1)
        out[f"cosine {reader.name}"] = cosine
        out[f"matched {reader.name}"] = score > reader.threshold
    for name, seen in look.detections.items():
        out[f"detected {name}"] = seen.found
    before, after = lab.clear.readings, look.readings
    if before.detections is not None and after.detections is not None:
        a, b = before.detections.landmarks, after.detections.landmarks
        out["landmarks"] = landmark_distance(a, b) / eye_distance(a).clip(1e-9)
    if before.males is not None and after.males is not None:
        out["gender"] = (before.males >= 0.5) == (after.males >= 0.5)
    return out


def _followed(before: Sequence[Face], after: Sequence[Face]) -> list[tuple[int, int]]:
    """Faces of two frames that overlap most, and by half at least."""
    out = []
    for index, face in enumerate(before):
        if not after:
            break
        overlap = box_iou(np.repeat(face.box[None], len(after), 0), np.stack([one.box for one in after]))
        if overlap.max() >= _SAME:
            out.append((index, int(overlap.argmax())))
    return out


def _neighbours(
    reader: Reader, film: Sequence[NDArray[np.uint8]], faces: Sequence[Sequence[Face]],
    pairs: Sequence[Sequence[tuple[int, int]]],
) -> NDArray[np.float64]:  # fmt: skip
    """Cosine of each followed pair."""
    seen = [
        reader.recognizer.embed(image, np.stack([face.landmarks for face in some])) if some else None
        for image, some in zip(film, faces, strict=True)
    ]
    out = []
    for first, second, some in zip(seen, seen[1:], pairs, strict=False):
        if first is not None and second is not None and some:
            out.append(cosines(first[[i for i, _ in some]], second[[j for _, j in some]]))
    return np.concatenate(out) if out else np.zeros(0)
