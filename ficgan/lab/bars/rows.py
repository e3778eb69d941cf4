"""The rows of `ficgan measure`: what judges read in outputs, beside what they read in the clear faces."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import combinations
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from ficgan.anonymizers import Anonymizer, Faces, Images
from ficgan.deidentify import Deidentifier, Ficgan
from ficgan.faces import FaceDetector, detector_missing, get_detector
from ficgan.lab.bench import anonymised, squared_errors
from ficgan.lab.metrics import Bootstrap, Sample
from ficgan.lab.metrics import privacy as metrics
from ficgan.lab.metrics.pictures import Detections, detect_faces, quick
from ficgan.lab.metrics.utility import Judges, UtilityReadings, compare
from ficgan.lab.readers import Embeddings, Reader, cosines, get_readers, paired, similarities
from ficgan.lab.results import Figure
from ficgan.lab.sets import GREY, KIND, Prepared

Values = NDArray[np.float64]
Key = tuple[str, str]  # Row and judge
Figures = dict[Key, Figure]
Controls = Mapping[Key, tuple[str, Figure]]  # What a figure is to be read beside: its name and its figure
Seen = Mapping[str, Embeddings]  # Name of a recogniser → [N,D]

DETECTORS = ("yunet", "centerface")  # Whose detection rate is measured
FAR = 1e-3
ENOUGH, LEAST = 30, 10  # Pairs of strangers that should lie above a threshold, and that must
MOST = 3000  # Clear faces whose pairs stand for strangers; more take memory and change nothing
PSI = 0.6  # Diversity at which draws are compared: what photos of several people and films have
DRAWS = 4  # Draws of each source
_LEAST_PIXELS = 50  # A variance of fewer says nothing
_HIDDEN = 0.999  # Weight from which a pixel counts as replaced


@dataclass(frozen=True)
class Panel:
    """All who judge; `missing` says why a detector is not there."""

    readers: Sequence[Reader]
    judges: Judges
    detectors: Mapping[str, FaceDetector] = field(default_factory=dict)
    missing: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def find(cls, readers: Sequence[str], attributes: Path | None, device: str = "cpu") -> Panel:
        """All judges whose files are here."""
        missing = {name: why for name in DETECTORS if (why := detector_missing(name)) is not None}
        detectors = {name: quick(get_detector(name)) for name in DETECTORS if name not in missing}
        judges = Judges.find(attributes=attributes)
        judges.lpips = judges.inception = None  # The bars are set for SqueezeNet's
        if detectors:
            judges.detector = next(iter(detectors.values()))
        return cls(get_readers(tuple(readers), device), judges, detectors, missing)


@dataclass(frozen=True)
class Observation:
    """What the judges read in N faces: embeddings by recogniser, and where each detector found each face."""

    faces: Faces
    readings: UtilityReadings
    embeddings: Seen
    detections: Mapping[str, Detections]


@dataclass
class MeasuredSet:
    """A set, its judges, and the model whose faces are pasted in."""

    prepared: Prepared
    panel: Panel
    model: Ficgan
    bootstrap: Bootstrap = field(default_factory=Bootstrap)

    @property
    def name(self) -> str:
        return str(self.prepared.source["name"])

    @property
    def faces(self) -> Faces:
        return self.prepared.faces

    @property
    def people(self) -> NDArray[np.int64]:
        return self.prepared.people

    @property
    def readers(self) -> Sequence[Reader]:
        return self.panel.readers

    def mean(self, metric: str, values: NDArray[Any], note: str = "", **how: Any) -> Figure:
        """Mean of the finite values [N], with an interval over people."""
        return Sample(self.people, self.bootstrap).mean(metric, values, note, **how)

    def take(self, rows: Sequence[int] | NDArray[np.integer]) -> MeasuredSet:
        return replace(self, prepared=self.prepared.part(rows))

    def one_each(self, most: int) -> MeasuredSet:
        """The first image of each person, of at most so many, with nobody named: neighbours are strangers."""
        _, first = np.unique(self.people, return_index=True)
        prepared = self.prepared.part(np.sort(first)[:most])
        return replace(self, prepared=replace(prepared, faces=replace(prepared.faces, people=None)))

    @cached_property
    def inner(self) -> MeasuredSet:
        """The replaced squares as a set of their own, aligned as the model's crops; itself where they are all."""
        if self.prepared.whole:
            return self
        regions = self.prepared.regions()
        side = regions.images.shape[1]
        return replace(self, prepared=replace(self.prepared, faces=regions, region=(0, 0, side, side)))

    def composed(self, anonymizer: Anonymizer) -> Faces:
        return self.prepared.with_regions(anonymised(anonymizer, self.prepared.regions()))

    @cached_property
    def weights(self) -> NDArray[np.float32]:
        """float32 [N,S,S]: how much of each pixel a pasted face replaces."""
        x0, y0, x1, y1 = self.prepared.region
        regions = self.prepared.regions()
        out = np.zeros(self.faces.images.shape[:3], np.float32)
        chunks = np.array_split(np.arange(len(out)), len(out) // 64 + 1)
        out[:, y0:y1, x0:x1] = np.concatenate([self.model.composed(regions.take(rows))[1] for rows in chunks])
        return out

    def region_alone(self, faces: Faces) -> Faces:
        """The same faces with all grey but what a pasted face replaces."""
        images = faces.images.copy()
        images[self.weights < _HIDDEN] = GREY
        return faces.with_images(images)

    # -- what judges read ---------------------------------------------------------------------------------------------

    @cached_property
    def clear(self) -> Observation:
        return self._observe(self.faces, None)

    def observe(self, faces: Faces) -> Observation:
        """What is read in other pixels of the same faces."""
        return self._observe(faces, self.clear.readings)

    def recognised(self, faces: Faces) -> dict[str, Embeddings]:
        """Embeddings [N,D] by recogniser of pixels of the same faces."""
        return {reader.name: reader.embed(faces) for reader in self.readers}

    @cached_property
    def clear_region(self) -> dict[str, Embeddings]:
        return self.recognised(self.region_alone(self.faces))

    def _observe(self, faces: Faces, against: UtilityReadings | None) -> Observation:
        readings = self.panel.judges.read(faces, against=against)
        found: dict[str, Detections] = {}
        for name, detector in self.panel.detectors.items():
            known = readings.detections if detector is self.panel.judges.detector else None
            found[name] = known or detect_faces(detector, faces.images, faces.landmarks)
        return Observation(faces, readings, self.recognised(faces), found)


# -- identity: is the source still known, by cosine and at thresholds? ------------------------------------------------


@dataclass(frozen=True)
class Strangers:
    """A recogniser on strangers: mean `cosine`, shares above its `own` threshold and that of FAR 1e-3 (`far`)."""

    cosine: Figure
    own: Figure
    far: Figure
    everybody: Figure
    threshold: float | None


def threshold_of(scores: NDArray[np.floating[Any]], far: float = FAR) -> float | None:
    """The score of strangers [P] above which a share `far` lies; None of fewer than 10/far."""
    above = far * len(scores) + 1e-9
    if above < LEAST:
        return None
    place = len(scores) - 1 - above
    low, high = int(np.floor(place)), int(np.ceil(place))
    a, b = np.partition(scores, [low, high])[[low, high]].astype(np.float64)
    return float(b if above >= ENOUGH else b + (high - place) * (a - b))


def strangers(bench: MeasuredSet, reader: Reader) -> Strangers:
    """Each clear face against the clear faces of other people; outputs have no part in the threshold."""
    part = bench.take(np.arange(min(len(bench.faces), MOST)))
    seen = bench.clear.embeddings[reader.name][:MOST]
    group = _groups(part)
    score, cosine = similarities(seen, seen, reader.metric), similarities(seen, seen, "cosine")
    others = part.people[:, None] != part.people
    alike = others & (group[:, None] == group)
    pool = score[np.triu(others, 1)]
    threshold = threshold_of(pool)
    pairs = f"{int(alike.sum()) // 2} pairs" + ("" if len(np.unique(group)) > 1 else "; groups are not known here")

    def mean(values: NDArray[Any], where: NDArray[np.bool_], note: str) -> Figure:
        counts = where.sum(1)
        return part.mean("strangers", np.where(where, values, 0).sum(1) / np.where(counts, counts, np.nan), note)

    if threshold is None:
        few = f"{len(pool)} pairs of strangers are too few for a FAR of {FAR:g}; {LEAST / FAR:.0f} are needed"
        far = Figure("strangers", None, note=few)
    else:
        doubt = "" if FAR * len(pool) >= ENOUGH else f", interpolated between {len(pool)} pairs of strangers"
        far = mean(score > threshold, alike, f"{pairs}; threshold {threshold:.3f}{doubt}")
    own = mean(score > reader.threshold, alike, pairs)
    return Strangers(mean(cosine, alike, pairs), own, far, mean(cosine, others, "all strangers"), threshold)


def identity(bench: MeasuredSet, seen: Seen, known: Mapping[str, Strangers]) -> Figures:
    """Rows id-cosine, match and tar, by each recogniser, from embeddings [N,D] at source landmarks."""
    out: Figures = {}
    for reader in bench.readers:
        name, here = reader.name, known[reader.name]
        clear, made = bench.clear.embeddings[name], seen[name]
        score = paired(reader, clear, made)
        note = "" if reader.metric == "cosine" else "cosine of embeddings that are compared by distance"
        out["id-cosine", name] = bench.mean("id-cosine", cosines(clear, made), note)
        out["match", name] = bench.mean("match", score > reader.threshold, f"threshold {reader.threshold:.3f}")
        if here.threshold is None:
            out["tar", name] = Figure("tar", None, note=here.far.note)
        else:
            out["tar", name] = bench.mean("tar", score > here.threshold, here.far.note.partition("; ")[2])
    return out


def identity_controls(known: Mapping[str, Strangers]) -> Controls:
    """Strangers of the same group beside each row."""
    out = {}
    for name, here in known.items():
        everybody = "" if here.everybody.value is None else f" (all strangers {here.everybody.value:.3f})"
        out["id-cosine", name] = (f"same-group strangers{everybody}", here.cosine)
        out["match", name] = ("same-group strangers", here.own)
        out["tar", name] = ("same-group strangers", here.far)
    return out


def strangers_beside(known: Mapping[str, Strangers], row: str) -> Controls:
    """The cosine of all strangers beside this row of each recogniser."""
    return {(row, name): ("all strangers", here.everybody) for name, here in known.items()}


def _groups(bench: MeasuredSet) -> NDArray[np.int64]:
    """int64 [N]: who shares gender and race, as far as these are known; all one group where nothing is."""
    columns = [bench.prepared.groups[name] for name in KIND if name in bench.prepared.groups]
    if not columns:
        return np.zeros(len(bench.faces), np.int64)
    _, number = np.unique(["/".join(values) for values in zip(*columns, strict=True)], return_inverse=True)
    return number.reshape(-1).astype(np.int64)


def within_kinds(bench: MeasuredSet, faces: Faces, seen: Seen) -> Figures:
    """AUC of outputs among people of the same ethnicity and gender: of the picture, and of the region, the rest grey.

    Rows within-kind and within-kind (region).
    """
    assert bench.prepared.kinds is not None
    who, kinds, out = bench.people[:MOST], bench.prepared.kinds[:MOST], Figures()
    alone = bench.recognised(bench.region_alone(faces))
    parts = {"within-kind": (seen, bench.clear.embeddings), "within-kind (region)": (alone, bench.clear_region)}
    for row, (made, clear) in parts.items():
        for reader in bench.readers:
            score = similarities(made[reader.name][:MOST], clear[reader.name][:MOST], reader.metric)
            sources = np.arange(len(who))
            figure = metrics.within_kind(score, who, kinds, who, kinds, sources=sources, bootstrap=bench.bootstrap)
            out[row, reader.name] = replace(figure, metric=row)
    return out


# -- swaps, draws and the policy --------------------------------------------------------------------------------------


def targets(bench: MeasuredSet) -> dict[str, Embeddings]:
    """What each recogniser reads in the clear face of the next person."""
    return {name: np.roll(seen, -1, axis=0) for name, seen in bench.recognised(bench.faces).items()}


def swap(bench: MeasuredSet, anonymizer: Anonymizer, wanted: Seen) -> Figures:
    """Row swap: mean cosine of each output to the clear face of the next person, its target."""
    seen = bench.recognised(bench.prepared.anonymise(anonymizer))  # All at once: the next row is the target
    return {("swap", name): bench.mean("swap", cosines(made, wanted[name])) for name, made in seen.items()}


def draws(bench: MeasuredSet, draw: Callable[[int], Anonymizer], count: int = DRAWS) -> Figures:
    """Row draws: mean cosine of all pairs of `count` outputs of each source; `draw` gives the anonymiser of a seed."""
    seen = [bench.recognised(bench.composed(draw(seed))) for seed in range(count)]
    note = f"{count} draws of each of {len(bench.faces)} sources"
    out: Figures = {}
    for reader in bench.readers:
        pairs = np.stack([cosines(a[reader.name], b[reader.name]) for a, b in combinations(seen, 2)])
        out["draws", reader.name] = bench.mean("draws", pairs.mean(0), note)
    return out


def policy(bench: MeasuredSet, deid: Deidentifier, layer: int) -> tuple[Figures, Faces]:
    """Rows retried and masked, of the gate's own judgement, and the published pictures."""
    gate = "" if deid.recognizer is None else deid.recognizer.name
    names, images = bench.faces.names, bench.faces.images
    actions: list[str | None]
    if bench.prepared.whole:
        published, results = deid.aligned(images, keys=names, layer=layer)
        actions = [result.action for result in results]
    else:
        photos = [deid(image, key=name, layer=layer) for image, name in zip(images, names, strict=True)]
        published = np.stack([photo.image for photo in photos])
        actions = [photo.faces[0].action if photo.faces else None for photo in photos]
    lost = actions.count(None)
    note = f"{lost} photos in which no face was found are left out" if lost else ""
    out: Figures = {}
    for row, counted in (("retried", ("retried", "masked")), ("masked", ("masked",))):  # Who is masked was retried
        values = np.array([np.nan if action is None else action in counted for action in actions])
        out[row, f"{gate} (the gate)"] = bench.mean(row, values, note)
    return out, bench.faces.with_images(published)


# -- what of the face is kept -----------------------------------------------------------------------------------------


def detected(bench: MeasuredSet, seen: Observation) -> Figures:
    """Row detected, by each detector."""
    out: Figures = {}
    for name in DETECTORS:
        if name in seen.detections:
            out["detected", name] = bench.mean("detected", seen.detections[name].found)
        else:
            out["detected", name] = Figure("detected", None, note=bench.panel.missing.get(name, "it is not here"))
    return out


def likeness(bench: MeasuredSet, seen: Observation) -> Figures:
    """Rows detected, landmarks, yaw-r, smile-r and gender of outputs against clear faces."""
    kept = {each.metric: each for each in compare(bench.clear.readings, seen.readings, bootstrap=bench.bootstrap)}
    detector = next(iter(bench.panel.detectors), "no detector")
    attributes = bench.panel.judges.attributes
    learnt = None if attributes is None else attributes.training.get("source", {}).get("name")
    smile, judge = kept["smile-r"], f"attribute classifier{f' ({learnt})' if learnt else ''}: Smiling"
    if smile.value is None and kept["mouth-r"].value is not None:
        note = f"by the width of the mouth, a weak sign, for {smile.note}"
        smile, judge = replace(kept["mouth-r"], note=note), "mouth width"
    rows = {
        ("landmarks", detector): kept["landmarks"],
        ("yaw-r", detector): kept["yaw-r"],
        ("gender", "age_gender"): kept["gender-kept"],
        ("smile-r", judge): smile,
    }
    return detected(bench, seen) | {key: replace(figure, metric=key[0]) for key, figure in rows.items()}


def sharpness(images: Images, weights: NDArray[np.float32]) -> Values:
    """Variance of the grey images' Laplacian where a face was pasted (LAPV, Pech-Pacheco et al. 2000).

    Args:
        images: [N,S,S,3] uint8 RGB.
        weights: [N,S,S], how much of each pixel was replaced.

    Returns:
        float64 [N], grey levels squared, a pixel away from the edge; NaN where fewer than 50 pixels are left.
    """
    out = np.full(len(images), np.nan)
    for index, (image, weight) in enumerate(zip(images, weights, strict=True)):
        laplacian = cv2.Laplacian(cv2.cvtColor(image, cv2.COLOR_RGB2GRAY), cv2.CV_32F)
        inside = cv2.erode((weight >= _HIDDEN).astype(np.uint8), np.ones((3, 3), np.uint8)) > 0
        if inside.sum() >= _LEAST_PIXELS:
            out[index] = laplacian[inside].var(dtype=np.float64)
    return out


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


def appearance(bench: MeasuredSet, faces: Faces) -> Figures:
    """Rows sharpness-kept and border of finished crops: ratios, by the mean of their logarithms."""
    rows = {"sharpness-kept": sharpness, "border": border_gradient}
    out: Figures = {}
    for row, measure in rows.items():
        made, clear = (measure(each.images, bench.weights) for each in (faces, bench.faces))
        out[row, ""] = bench.mean(row, np.log((made + 1) / (clear + 1)), then=np.exp)
    return out


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
