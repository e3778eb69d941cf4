"""Is the source still known in the output: by cosine, by name, by the shape of the face, and over several draws."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ficgan.anonymizers import Anonymizer, Faces
from ficgan.deidentify import Deidentifier, Ficgan
from ficgan.errors import InputError, UsageError
from ficgan.lab.bars.bench import MeasuredSet, greyed
from ficgan.lab.bars.table import BarControl, Controls, Figures
from ficgan.lab.metrics import Sample, from_half
from ficgan.lab.metrics import privacy as metrics
from ficgan.lab.metrics.privacy import chance, rank
from ficgan.lab.metrics.scores import Scores
from ficgan.lab.readers import Embeddings, Reader, ShapeAttack, cosines, paired, similarities
from ficgan.lab.results import Figure
from ficgan.lab.sets import KIND

FAR = 1e-3
ENOUGH, LEAST = 30, 10  # Pairs of strangers that should lie above a threshold, and that must
MOST = 3000  # Clear faces whose pairs stand for strangers; more take memory and change nothing
PSI = 0.6  # Diversity at which draws are compared: what photos of several people and films have
DRAWS = 4  # Draws of each source
Targets = dict[str, Embeddings]  # Name of a recogniser → [N,D]


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
    group = groups_of(part)
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
    return Strangers(
        mean(cosine, alike, pairs),
        mean(score > reader.threshold, alike, pairs),
        far,
        mean(cosine, others, "all strangers"),
        threshold,
    )


def identity(bench: MeasuredSet, seen: Mapping[str, Embeddings], known: Mapping[str, Strangers]) -> Figures:
    """Rows id-cosine, match, tar and auc-gap, by each recogniser, from embeddings [N,D] at source landmarks."""
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
        out["auc-gap", name] = _gap(bench, reader, made)
    return out


def identity_controls(known: Mapping[str, Strangers]) -> Controls:
    """Strangers beside each row; match rates and AUC are measured against those of the same group."""
    out = {}
    for name, here in known.items():
        everybody = "" if here.everybody.value is None else f" (all strangers {here.everybody.value:.3f})"
        out["id-cosine", name] = BarControl(f"same-group strangers{everybody}", here.cosine)
        out["match", name] = BarControl("same-group strangers", here.own)
        out["tar", name] = BarControl("same-group strangers", here.far)
        out["auc-gap", name] = BarControl("match rate of same-group strangers", here.own)
    return out


def strangers_beside(known: Mapping[str, Strangers], *rows: str) -> Controls:
    """The cosine of all strangers beside these rows of each recogniser."""
    return {(row, name): BarControl("all strangers", one.everybody) for row in rows for name, one in known.items()}


def groups_of(bench: MeasuredSet) -> NDArray[np.int64]:
    """int64 [N]: who shares gender and race, as far as these are known; all one group where nothing is."""
    columns = [bench.prepared.groups[name] for name in KIND if name in bench.prepared.groups]
    if not columns:
        return np.zeros(len(bench.faces), np.int64)
    _, number = np.unique(["/".join(values) for values in zip(*columns, strict=True)], return_inverse=True)
    return number.reshape(-1).astype(np.int64)


def _gap(bench: MeasuredSet, reader: Reader, made: Embeddings) -> Figure:
    """Distance of the AUC from ½, of sources themselves against strangers of the same group as far as it is known."""
    clear, people, group = bench.clear.embeddings[reader.name][:MOST], bench.people[:MOST], groups_of(bench)[:MOST]
    score = similarities(made[:MOST], clear, reader.metric)
    alike = (people[:, None] != people) & (group[:, None] == group)
    areas = [
        metrics.nearer(one[[row]], one[some]) if some.any() else np.nan
        for row, (one, some) in enumerate(zip(score, alike, strict=True))
    ]
    area = Sample(people, bench.bootstrap).share("auc-gap", areas)
    if area.value is None:
        return replace(area, note="no face has a stranger of its group")
    low, high = from_half(area.low, area.high)
    return replace(area, value=abs(area.value - 0.5), low=low, high=high, note=f"AUC {area.value:.3f}")


# -- within kind ------------------------------------------------------------------------------------------------------


def within_kind(bench: MeasuredSet, seen: Mapping[str, Embeddings]) -> Figures:
    """Row within-kind: AUC of outputs at source landmarks among people of the same ethnicity and gender."""
    return _within_kind(bench, "within-kind", seen, bench.clear.embeddings)


def within_kind_of_region(bench: MeasuredSet, faces: Faces) -> Figures:
    """Row within-kind (region): the same where all but the replaced region is grey, in outputs and clear photos."""
    return _within_kind(bench, "within-kind (region)", bench.recognised(bench.region_alone(faces)), bench.clear_region)


def within_kinds(bench: MeasuredSet, faces: Faces, seen: Mapping[str, Embeddings]) -> Figures:
    """Both rows."""
    return within_kind(bench, seen) | within_kind_of_region(bench, faces)


def _within_kind(
    bench: MeasuredSet, row: str, seen: Mapping[str, Embeddings], clear: Mapping[str, Embeddings]
) -> Figures:
    kinds, out = bench.prepared.kinds, Figures()
    if kinds is None:
        raise InputError(f"{bench.name} does not say of what ethnicity and gender people are")
    who, kinds = bench.people[:MOST], kinds[:MOST]
    for reader in bench.readers:
        score = similarities(seen[reader.name][:MOST], clear[reader.name][:MOST], reader.metric)
        sources = np.arange(len(who))
        figure = metrics.within_kind(score, who, kinds, who, kinds, sources=sources, bootstrap=bench.bootstrap)
        out[row, reader.name] = replace(figure, metric=row)
    return out


# -- named, with a clear photo of everybody enrolled ------------------------------------------------------------------


def naive(bench: MeasuredSet, seen: Mapping[str, Embeddings]) -> Figures:
    """Row naive: each person's first clear image enrolled, outputs of the other images looked for."""
    gallery, probe = bench.enrolment()
    return _linked(bench, "naive", bench.clear.embeddings, seen, gallery, probe, f"; {len(gallery)} people enrolled")


def parrot(bench: MeasuredSet, anonymizer: Anonymizer) -> Figures:
    """Row parrot: a person's first output enrolled, the others looked for, all but the pasted face greyed."""
    return _parrot(bench, bench.region_alone(bench.composed(anonymizer)))


def surroundings(bench: MeasuredSet) -> Controls:
    """The same of the clear images with all greyed that a pasted face touches: what is known without any face."""
    figures = _parrot(bench, greyed(bench.faces, bench.weights > 0))
    return {key: BarControl("surroundings alone", figure) for key, figure in figures.items()}


def shape(bench: MeasuredSet, faces: Faces) -> Figures:
    """Rows shape, by each judge, and shape-informed of finished crops."""
    published, row = bench.read_shapes(faces), "shape-informed"
    figures = bench.shape_attack.ranks(published, bench.bootstrap)
    out: Figures = {("shape", judge): replace(one, metric="shape") for judge, one in figures.items()}
    try:
        informed = ShapeAttack(
            bench.clear_shapes,
            bench.people,
            *bench.enrolment(),
            also=published,
            judges=("LDA",),
            seed=bench.bootstrap.seed,
        ).ranks(published, bench.bootstrap)
    except (InputError, UsageError) as error:  # with lessons from elsewhere the set may be too small to teach
        return out | {(row, "LDA"): Figure(row, None, note=str(error))}
    return out | {(row, judge): replace(one, metric=row) for judge, one in informed.items()}


def _parrot(bench: MeasuredSet, faces: Faces) -> Figures:
    seen = bench.recognised(faces)
    return _linked(bench, "parrot", seen, seen, *bench.enrolment(everybody=False))


def _linked(
    bench: MeasuredSet,
    row: str,
    enrolled: Mapping[str, Embeddings],
    seen: Mapping[str, Embeddings],
    gallery: list[int],
    probe: list[int],
    note: str = "",
) -> Figures:
    out: Figures = {}
    for reader in bench.readers:
        a, b = seen[reader.name][probe], enrolled[reader.name][gallery]
        scores = Scores.compare(a, b, bench.people[probe], bench.people[gallery], metric=reader.metric)
        figure = rank(scores, 1, bootstrap=bench.bootstrap)
        out[row, reader.name] = replace(figure, metric=row, note=f"chance {chance(scores):.3f}{note}")
    return out


# -- several outputs of one source, targets, the policy, training faces -----------------------------------------------


def targets(bench: MeasuredSet) -> Targets:
    """What each recogniser reads in the clear face of the next person."""
    return {name: np.roll(seen, -1, axis=0) for name, seen in bench.recognised(bench.faces).items()}


def towards(bench: MeasuredSet, anonymizer: Anonymizer, row: str, wanted: Targets) -> Figures:
    """Mean cosine of each output to the clear face of the next person, its target."""
    made = bench.prepared.anonymise(anonymizer)  # all at once: the next row is the target
    seen = bench.recognised(made)
    return {(row, name): bench.mean(row, cosines(seen[name], wanted[name])) for name in seen}


def draws(bench: MeasuredSet, draw: Callable[[int], Anonymizer], count: int = DRAWS) -> Figures:
    """Row draws: mean cosine of all pairs of `count` outputs of each source; `draw` gives the anonymiser of a seed."""
    seen = [bench.recognised(bench.composed(draw(seed))) for seed in range(count)]
    note = f"{count} draws of each of {len(bench.faces)} sources"
    out: Figures = {}
    for reader in bench.readers:
        pairs = np.stack([cosines(a[reader.name], b[reader.name]) for a, b in combinations(seen, 2)])
        out["draws", reader.name] = bench.mean("draws", pairs.mean(0), note)
    return out


def drawn(model: Ficgan, layer: int) -> Callable[[int], Ficgan]:
    """Seed → the model at ψ = .6, a fresh draw for each image."""
    return lambda seed: replace(model, layer=layer, psi=PSI, seed=seed)


def policy(bench: MeasuredSet, deid: Deidentifier, layer: int) -> tuple[Figures, Faces]:
    """Rows retried and masked, with the gate at work and judged by it, and the published pictures."""
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
    for row, counted in (("retried", ("retried", "masked")), ("masked", ("masked",))):  # who is masked was retried
        values = np.array([np.nan if action is None else action in counted for action in actions])
        out[row, f"{gate} (the gate)"] = bench.mean(row, values, note)
    return out, bench.faces.with_images(published)


def nearest(
    bench: MeasuredSet, train: Embeddings, reader: Reader, outputs: Anonymizer, sticker: Anonymizer
) -> tuple[Figures, Figures, Controls]:
    """Row memorised: how like its nearest training face each output is, the sticker's, and that of clear faces."""
    key = ("memorised", reader.name)

    def figure(faces: Faces) -> Figure:
        best = similarities(reader.embed(faces), train, "cosine").max(1)
        return bench.mean("memorised", best, f"to {len(train)} training faces; the nearest of all {best.max():.3f}")

    control = BarControl("held-out clear faces", figure(bench.faces))
    return {key: figure(bench.composed(outputs))}, {key: figure(bench.composed(sticker))}, {key: control}
