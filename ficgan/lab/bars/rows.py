"""The rows of `ficgan measure`: what judges read in outputs, beside what they read in the clear faces."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ficgan.anonymizers import Anonymizer, Faces
from ficgan.deidentify import Deidentifier
from ficgan.lab.bench import anonymised, squared_errors
from ficgan.lab.metrics import Bootstrap, Sample
from ficgan.lab.metrics.privacy import within_kind
from ficgan.lab.metrics.utility import Judges, UtilityReadings, compare
from ficgan.lab.readers import Embeddings, Reader, cosines, paired, similarities
from ficgan.lab.results import Figure
from ficgan.lab.sets import Prepared

Key = tuple[str, str]  # Row and judge
Figures = dict[Key, Figure]
Controls = Mapping[Key, tuple[str, Figure]]  # What a figure is to be read beside: its name and its figure
Seen = Mapping[str, Embeddings]  # Name of a recogniser → [N,D]

FAR = 1e-3
LEAST = 10  # Pairs of strangers that must lie above a threshold
MOST = 3000  # Clear faces whose pairs stand for strangers; more take memory and change nothing
DRAWS = 4  # Draws of each source
# Row → metric of `metrics.utility`
_KEPT = {
    "detected": "detected",
    "landmarks": "landmarks",
    "yaw-r": "yaw-r",
    "smile-r": "smile-r",
    "gender": "gender-kept",
    "sharpness-kept": "sharpness",
}


@dataclass
class MeasuredSet:
    """A set and its judges."""

    prepared: Prepared
    readers: Sequence[Reader]
    judges: Judges
    bootstrap: Bootstrap = field(default_factory=Bootstrap)

    @property
    def name(self) -> str:
        return str(self.prepared.source["name"])

    @property
    def faces(self) -> Faces:
        return self.prepared.faces

    def mean(self, metric: str, values: NDArray[Any], note: str = "") -> Figure:
        """Mean of the finite values [N], with an interval over people."""
        return Sample(self.prepared.people, self.bootstrap).mean(metric, values, note)

    def take(self, rows: Sequence[int] | NDArray[np.integer]) -> MeasuredSet:
        return replace(self, prepared=self.prepared.part(rows))

    def one_each(self, most: int) -> MeasuredSet:
        """The first image of each person, of at most so many, with nobody named: neighbours are strangers."""
        _, first = np.unique(self.prepared.people, return_index=True)
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

    def recognised(self, faces: Faces) -> dict[str, Embeddings]:
        """Embeddings [N,D] by recogniser of pixels of the same faces, at their landmarks."""
        return {reader.name: reader.embed(faces) for reader in self.readers}

    def region_alone(self, faces: Faces) -> Faces:
        """The same faces with all grey but the replaced square."""
        return replace(self.prepared, faces=faces).inside()

    @cached_property
    def clear(self) -> Seen:
        return self.recognised(self.faces)

    @cached_property
    def clear_region(self) -> Seen:
        return self.recognised(self.region_alone(self.faces))

    @cached_property
    def readings(self) -> UtilityReadings:
        return self.judges.read(self.faces)


# -- identity ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Strangers:
    """A recogniser on strangers of a kind: mean cosine, shares above its own threshold and that of FAR 1e-3."""

    cosine: Figure
    own: Figure
    far: Figure
    threshold: float | None


def threshold_of(scores: NDArray[np.floating[Any]], far: float = FAR) -> float | None:
    """The score of strangers [P] above which a share `far` lies; None of fewer than 10/far."""
    above = int(far * len(scores) + 1e-9)
    return None if above < LEAST else float(np.sort(scores)[-1 - above])


def strangers(bench: MeasuredSet, reader: Reader) -> Strangers:
    """Each clear face against the clear faces of other people; outputs have no part in the threshold."""
    part = bench.take(np.arange(min(len(bench.faces), MOST)))
    seen, people = bench.clear[reader.name][:MOST], part.prepared.people
    kinds = np.zeros(len(people)) if part.prepared.kinds is None else part.prepared.kinds
    score = similarities(seen, seen, reader.metric)
    others = people[:, None] != people
    alike = others & (kinds[:, None] == kinds)
    pool = score[np.triu(others, 1)]
    threshold = threshold_of(pool)
    pairs = f"{int(alike.sum()) // 2} pairs"

    def mean(values: NDArray[Any], note: str = pairs) -> Figure:
        counts = alike.sum(1)
        return part.mean("strangers", np.where(alike, values, 0).sum(1) / np.where(counts, counts, np.nan), note)

    few = f"{len(pool)} pairs of strangers are too few for a FAR of {FAR:g}; {LEAST / FAR:.0f} are needed"
    far = Figure("strangers", None, note=few)
    if threshold is not None:
        far = mean(score > threshold, f"{pairs}; threshold {threshold:.3f}")
    return Strangers(mean(similarities(seen, seen, "cosine")), mean(score > reader.threshold), far, threshold)


def identity(bench: MeasuredSet, seen: Seen, known: Mapping[str, Strangers]) -> Figures:
    """Rows id-cosine, match and tar, by each recogniser, from embeddings [N,D] at source landmarks."""
    out: Figures = {}
    for reader in bench.readers:
        name, here = reader.name, known[reader.name]
        clear, made = bench.clear[name], seen[name]
        score = paired(reader, clear, made)
        out["id-cosine", name] = bench.mean("id-cosine", cosines(clear, made))
        out["match", name] = bench.mean("match", score > reader.threshold, f"threshold {reader.threshold:.3f}")
        if here.threshold is None:
            out["tar", name] = Figure("tar", None, note=here.far.note)
        else:
            out["tar", name] = bench.mean("tar", score > here.threshold, f"threshold {here.threshold:.3f}")
    return out


def beside_strangers(known: Mapping[str, Strangers], *cosine_rows: str) -> Controls:
    """Strangers of the same kind beside id-cosine, match, tar and other rows that are cosines."""
    out: dict[Key, tuple[str, Figure]] = {}
    for name, here in known.items():
        figures = {"match": here.own, "tar": here.far, **dict.fromkeys(("id-cosine", *cosine_rows), here.cosine)}
        out |= {(row, name): ("same-group strangers", figure) for row, figure in figures.items()}
    return out


def within_kinds(bench: MeasuredSet, faces: Faces, seen: Seen) -> Figures:
    """AUC of outputs among people of the same ethnicity and gender: of the picture, and of the region, the rest grey.

    Rows within-kind and within-kind (region); none where the set does not say what kind people are of.
    """
    if bench.prepared.kinds is None:
        return {}
    who, kinds, out = bench.prepared.people[:MOST], bench.prepared.kinds[:MOST], Figures()
    alone = bench.recognised(bench.region_alone(faces))
    for row, made, clear in (("within-kind", seen, bench.clear), ("within-kind (region)", alone, bench.clear_region)):
        for reader in bench.readers:
            score = similarities(made[reader.name][:MOST], clear[reader.name][:MOST], reader.metric)
            sources = np.arange(len(who))
            figure = within_kind(score, who, kinds, who, kinds, sources=sources, bootstrap=bench.bootstrap)
            out[row, reader.name] = replace(figure, metric=row)
    return out


# -- swaps, draws and the policy --------------------------------------------------------------------------------------


def swap(bench: MeasuredSet, anonymizer: Anonymizer) -> Figures:
    """Row swap: mean cosine of each output to the clear face of the next person, its target."""
    seen = bench.recognised(bench.prepared.anonymise(anonymizer))  # All at once: the next row is the target
    wanted = {name: np.roll(clear, -1, axis=0) for name, clear in bench.clear.items()}
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


def likeness(bench: MeasuredSet, faces: Faces) -> Figures:
    """Rows detected, landmarks, yaw-r, smile-r, gender and sharpness-kept of outputs against clear faces."""
    readings = bench.judges.read(faces, against=bench.readings)
    kept = {each.metric: each for each in compare(bench.readings, readings, bootstrap=bench.bootstrap)}
    detector = readings.used.get("detector", "no detector")
    judges = dict.fromkeys(("detected", "landmarks", "yaw-r"), detector)
    judges |= {"smile-r": "attribute classifier", "gender": "age_gender", "sharpness-kept": ""}
    out = {(row, judges[row]): replace(kept[metric], metric=row) for row, metric in _KEPT.items()}
    smile, mouth = kept["smile-r"], kept["mouth-r"]
    if smile.value is None and mouth.value is not None:
        del out["smile-r", judges["smile-r"]]
        note = f"by the width of the mouth, a weak sign, for {smile.note}"
        out["smile-r", "mouth width"] = replace(mouth, metric="smile-r", note=note)
    return out


def fidelity(bench: MeasuredSet, faces: Faces) -> Figures:
    """Rows rec-mse, rec-cosine by each recogniser, and rec-lpips."""
    out: Figures = {("rec-mse", ""): bench.mean("rec-mse", squared_errors(bench.faces.images, faces.images))}
    for name, made in bench.recognised(faces).items():
        out["rec-cosine", name] = bench.mean("rec-cosine", cosines(bench.clear[name], made))
    perceived, missing = bench.judges.read(faces, against=bench.readings).perception, bench.judges.missing
    if perceived is None or perceived.distances is None:
        why = missing.get("squeezenet") or missing.get("distances", "it was not read")
        out["rec-lpips", ""] = Figure("rec-lpips", None, unit="images", note=why)
    else:
        out["rec-lpips", ""] = bench.mean("rec-lpips", perceived.distances, "not the published LPIPS")
    return out
