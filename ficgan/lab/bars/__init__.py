"""`ficgan measure`: every row of `bars.yaml` for one model on given sets, as a table of met and missed bars."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, partial
from importlib.resources import files
from itertools import combinations
from pathlib import Path
from typing import Any, Literal

import numpy as np
import yaml
from numpy.typing import NDArray

from ficgan import __version__
from ficgan.anonymizers import Anonymizer, AverageFace, Faces
from ficgan.deidentify import Deidentifier, refuse_trainer
from ficgan.errors import InputError, Progress, UsageError, unheard
from ficgan.faces import RECOGNIZERS, recognizer_missing
from ficgan.lab import Ficgan
from ficgan.lab.bench import anonymised, reconstruct, squared_errors
from ficgan.lab.metrics import Bootstrap, Sample
from ficgan.lab.metrics.pictures import frechet_distance, halves
from ficgan.lab.metrics.privacy import within_kind
from ficgan.lab.metrics.utility import LEAST_IMAGES, Judges, UtilityReadings, compare
from ficgan.lab.readers import Embeddings, Reader, cosines, get_readers, paired, similarities
from ficgan.lab.report.tables import spelled, to_markdown
from ficgan.lab.results import Figure, note_texts
from ficgan.lab.run import write_file
from ficgan.lab.sets import Prepared, Quick, open_set, prepare

Key = tuple[str, str]  # Row and judge
Figures = dict[Key, Figure]
Controls = Mapping[Key, tuple[str, Figure]]  # What a figure is to be read beside: its name and its figure
Seen = Mapping[str, Embeddings]  # Name of a recogniser → [N,D]

FAR = 1e-3
LEAST = 10  # Pairs of strangers that must lie above a threshold
MOST = 3000  # Clear faces whose pairs stand for strangers; more take memory and change nothing
LEAST_SIDE = 128  # Of aligned crops that judges see, px; models of more see and are judged at their own size
_PHOTO = 384  # Side of crops cut from photos, px; the replaced square is half of it
_FEW = 64  # Sources of swaps and of several draws
_DRAWS, _PSI = 4, 0.6  # Draws of each source, and their diversity: that of photos of several people and of films
_ROLES = {
    True: "gate: decides about retries, and may tune",
    False: "judge: no part in gating; not the trainer that the checkpoint names, if it names one",
}
# Row → metric of `metrics.utility`
_KEPT = {
    "detected": "detected",
    "landmarks": "landmarks",
    "yaw-r": "yaw-r",
    "smile-r": "smile-r",
    "gender": "gender-kept",
    "sharpness-kept": "sharpness",
}

# -- the table --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Bar:
    """One row of `bars.yaml`."""

    title: str
    least: float | None = None
    most: float | None = None
    least_photos: float | None = None
    most_photos: float | None = None
    measured: bool = False
    paper: str = ""


_TEXT = files("ficgan.lab.bars").joinpath("bars.yaml").read_text("utf-8")
BARS: dict[str, Bar] = {row: Bar(**limits) for row, limits in yaml.safe_load(_TEXT).items()}


@dataclass(frozen=True)
class Line:
    """One figure of one setting on one set, with the average-face sticker's and a control: its name and figure."""

    set: str
    row: str
    setting: str
    judge: str
    value: Figure
    sticker: Figure | None = None
    control: tuple[str, Figure] | None = None
    photos: bool = False

    @property
    def limits(self) -> tuple[float | None, float | None]:
        """Least and most; a measured bar whose control was not measured allows anything."""
        bar = BARS[self.row]
        if bar.measured:
            return None, None if self.control is None else self.control[1].value
        least = bar.least_photos if self.photos and bar.least_photos is not None else bar.least
        return least, bar.most_photos if self.photos and bar.most_photos is not None else bar.most

    @property
    def verdict(self) -> str:
        """ "met" or "missed" by the value alone, "no bar", or "not measured"."""
        (least, most), value = self.limits, self.value.value
        if value is None or (BARS[self.row].measured and most is None):
            return "not measured"
        if least is None and most is None:
            return "no bar"
        return "missed" if (least is not None and value < least) or (most is not None and value > most) else "met"

    def to_dict(self) -> dict[str, Any]:
        least, most = self.limits
        return {
            **{key: getattr(self, key) for key in ("set", "row", "setting", "judge", "verdict")},
            "bar": {"least": least, "most": most, "paper": BARS[self.row].paper},
            **asdict(self.value),
            "sticker": self.sticker and asdict(self.sticker),
            "control": self.control and {"what": self.control[0], **asdict(self.control[1])},
        }

    def cells(self) -> dict[str, str]:
        """The line of a page."""
        (least, most), bar = self.limits, BARS[self.row]
        asked = [f"≥ {least:g}"] if least is not None else []
        asked += [f"≤ {most:.3g}"] if most is not None else []
        measured = self.value.value is not None
        control = f"{spelled(self.control[1], interval=False)}, {self.control[0]}" if self.control else ""
        return {
            "row": bar.title,
            "bar": ", ".join(asked) + " (same-group strangers)" * bar.measured,
            "paper": bar.paper,
            "setting": self.setting,
            "judge": self.judge,
            "value": spelled(self.value) if measured else f"not measured: {self.value.note}",
            "sticker": spelled(self.sticker, interval=False),
            "control": control if measured else "",
            "verdict": "" if self.verdict == "no bar" else self.verdict,
            "note": self.value.note if measured else "",
        }


@dataclass
class Sheet:
    """What was found: lines as they came, and facts."""

    found: list[Line] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def lines(self) -> list[Line]:
        """By set and in the order of the rows."""
        sets, order = list(dict.fromkeys(line.set for line in self.found)), list(BARS)
        return sorted(self.found, key=lambda line: (sets.index(line.set), order.index(line.row)))

    @property
    def verdicts(self) -> dict[str, int]:
        return dict(Counter(line.verdict for line in self.found))

    @property
    def missed(self) -> list[str]:
        parts = ((line.set, line.setting, line.row, line.judge) for line in self.lines if line.verdict == "missed")
        return [", ".join(filter(None, part)) for part in parts]

    def write(self, folder: Path) -> list[Path]:
        """Write `bars.json` for machines, `bars.md` for readers."""
        tree = {**self.facts, "verdicts": self.verdicts, "lines": [line.to_dict() for line in self.lines]}
        text = json.dumps(tree, indent=1, allow_nan=False, ensure_ascii=False) + "\n"
        counted = ", ".join(f"{name} {number}" for name, number in sorted(self.verdicts.items()))
        page = ["# The model against its bars", "", note_texts("bars")["how to read"], "", f"Lines: {counted}.", ""]
        page += [f"- {name}: {role}" for name, role in self.facts.get("judges", {}).items()]
        for name in dict.fromkeys(line.set for line in self.found):
            page += ["", f"## {name}", ""]
            if (about := self.facts.get("sets", {}).get(name)) is not None:
                licence = about.get("licence") or "no licence is stated beside it"
                page.append(f"{about['faces']} faces of {about['people']} people; {licence}.")
            page += ["", to_markdown([line.cells() for line in self.lines if line.set == name])]
        return [write_file(folder / "bars.json", text), write_file(folder / "bars.md", "\n".join(page).rstrip() + "\n")]


# -- the sets ---------------------------------------------------------------------------------------------------------


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

    @cached_property
    def strangers(self) -> dict[str, Strangers]:
        return {reader.name: strangers(self, reader) for reader in self.readers}


# -- rows of identity -------------------------------------------------------------------------------------------------


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
    seen, people = bench.clear[reader.name][:MOST], bench.prepared.people[:MOST]
    kinds = np.zeros(len(people)) if bench.prepared.kinds is None else bench.prepared.kinds[:MOST]
    score = similarities(seen, seen, reader.metric)
    others = people[:, None] != people
    alike = others & (kinds[:, None] == kinds)
    pool = score[np.triu(others, 1)]
    threshold = threshold_of(pool)
    pairs, sample = f"{int(alike.sum()) // 2} pairs", Sample(people, bench.bootstrap)

    def mean(values: NDArray[Any], note: str = pairs) -> Figure:
        counts = alike.sum(1)
        means = np.where(alike, values, 0).sum(1) / np.where(counts, counts, np.nan)
        return sample.mean("strangers", means, note)

    few = f"{len(pool)} pairs of strangers are too few for a FAR of {FAR:g}; {LEAST / FAR:.0f} are needed"
    far = Figure("strangers", None, note=few)
    if threshold is not None:
        far = mean(score > threshold, f"{pairs}; threshold {threshold:.3f}")
    return Strangers(mean(similarities(seen, seen, "cosine")), mean(score > reader.threshold), far, threshold)


def identity(bench: MeasuredSet, seen: Seen) -> Figures:
    """Rows id-cosine, match and tar, by each recogniser, from embeddings [N,D] at source landmarks."""
    out: Figures = {}
    for reader in bench.readers:
        name, known = reader.name, bench.strangers[reader.name]
        clear, made = bench.clear[name], seen[name]
        score = paired(reader, clear, made)
        out["id-cosine", name] = bench.mean("id-cosine", cosines(clear, made))
        out["match", name] = bench.mean("match", score > reader.threshold, f"threshold {reader.threshold:.3f}")
        if known.threshold is None:
            out["tar", name] = Figure("tar", None, note=known.far.note)
        else:
            out["tar", name] = bench.mean("tar", score > known.threshold, f"threshold {known.threshold:.3f}")
    return out


def beside_strangers(bench: MeasuredSet, *cosine_rows: str) -> Controls:
    """Strangers of the same kind beside id-cosine, match, tar and other rows that are cosines."""
    out: dict[Key, tuple[str, Figure]] = {}
    for name, known in bench.strangers.items():
        figures = {"match": known.own, "tar": known.far, **dict.fromkeys(("id-cosine", *cosine_rows), known.cosine)}
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


# -- rows of swaps, draws and the policy ------------------------------------------------------------------------------


def swap(bench: MeasuredSet, anonymizer: Anonymizer) -> Figures:
    """Row swap: mean cosine of each output to the clear face of the next person, its target."""
    seen = bench.recognised(bench.prepared.anonymise(anonymizer))  # All at once: the next row is the target
    wanted = {name: np.roll(clear, -1, axis=0) for name, clear in bench.clear.items()}
    return {("swap", name): bench.mean("swap", cosines(made, wanted[name])) for name, made in seen.items()}


def draws(bench: MeasuredSet, draw: Callable[[int], Anonymizer]) -> Figures:
    """Row draws: mean cosine of all pairs of outputs of each source; `draw` gives the anonymiser of a seed."""
    seen = [bench.recognised(bench.composed(draw(seed))) for seed in range(_DRAWS)]
    note = f"{_DRAWS} draws of each of {len(bench.faces)} sources"
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


# -- rows of what is kept ---------------------------------------------------------------------------------------------


def likeness(bench: MeasuredSet, faces: Faces) -> Figures:
    """Rows detected, landmarks, yaw-r, smile-r, gender, sharpness-kept and fd of outputs against clear faces."""
    readings = bench.judges.read(faces, against=bench.readings)
    kept = {figure.metric: figure for figure in compare(bench.readings, readings, bootstrap=bench.bootstrap)}
    judges = dict.fromkeys(("detected", "landmarks", "yaw-r"), readings.used.get("detector", "no detector"))
    judges |= {"smile-r": "attribute classifier", "gender": "age_gender", "sharpness-kept": ""}
    out = {(row, judges[row]): replace(kept[metric], metric=row) for row, metric in _KEPT.items()}
    smile, mouth = kept["smile-r"], kept["mouth-r"]
    if smile.value is None and mouth.value is not None:
        del out["smile-r", judges["smile-r"]]
        note = f"by the width of the mouth, a weak sign, for {smile.note}"
        out["smile-r", "mouth width"] = replace(mouth, metric="smile-r", note=note)
    out["fd", "SqueezeNet"] = _distance(bench, readings)
    return out


def _distance(bench: MeasuredSet, made: UtilityReadings) -> Figure:
    """Fréchet distance of half of the outputs to the other half of the clear faces, of that of the clear halves."""
    clear, count = bench.readings.perception, len(bench.faces)
    if clear is None or made.perception is None:
        return Figure("fd", None, unit="images", note=bench.judges.missing.get("squeezenet", "it was not read"))
    if count < 2 * LEAST_IMAGES:
        return Figure("fd", None, unit="images", note=f"{count} images are too few; give at least {2 * LEAST_IMAGES}")
    (half, other), (outputs, _) = halves(clear), halves(made.perception)
    apart = frechet_distance(half, other)
    note = f"two halves of the clear faces are {apart:.4g} apart"
    return Figure("fd", frechet_distance(outputs, other) / max(apart, 1e-9), n=count, unit="images", note=note)


def fidelity(bench: MeasuredSet, faces: Faces) -> Figures:
    """Rows rec-mse, rec-cosine by each recogniser, and rec-lpips."""
    out: Figures = {("rec-mse", ""): bench.mean("rec-mse", squared_errors(bench.faces.images, faces.images))}
    for name, made in bench.recognised(faces).items():
        out["rec-cosine", name] = bench.mean("rec-cosine", cosines(bench.clear[name], made))
    network = bench.judges.squeezenet
    distances = None if network is None else network.read(faces.images, clear=bench.faces.images)[1]
    if distances is None:
        out["rec-lpips", ""] = Figure("rec-lpips", None, unit="images", note=bench.judges.missing.get("squeezenet", ""))
    else:
        out["rec-lpips", ""] = bench.mean("rec-lpips", distances, "not the published LPIPS")
    return out


# -- measuring --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class BarsConfig:
    """What is measured."""

    aligned: tuple[Path, ...] = ()
    photos: Path | None = None
    judges: tuple[str, ...] = ("dlib",)  # Recognisers that had no part in training
    attributes: Path | None = None  # A trained classifier, which reads smiles
    checkpoint: Path | None = None
    bank: Path | None = None
    layers: tuple[int, ...] = ()
    k: int = 3000
    psi: float | Literal["auto"] = "auto"
    limit: int | None = None
    detector: str = "auto"
    device: str = "cpu"
    resamples: int = 1000
    seed: int = 0
    whole: bool = True  # Every row, with sticker and controls; else outputs and reconstruction alone


def run_bars(config: BarsConfig, progress: Progress | None = None) -> Sheet:
    """Measure every row; the sheet says why where a row cannot be measured."""
    began, report = time.monotonic(), progress or unheard
    model, sheet = Measured(config), Sheet()
    report(0, 1, "preparing faces")
    sets = model.sets()
    sticker = AverageFace().fit(sets[0].inner.faces)
    steps = [step for each in sets for step in model.steps(each, sticker, sheet.found)]
    for number, (what, measure) in enumerate(steps):
        report(number, len(steps), what)
        measure()
    report(len(steps), len(steps), "")
    sheet.facts = {**model.facts(sets), "seconds": round(time.monotonic() - began, 1)}
    return sheet


class Measured:
    """The model that is measured, and the judges."""

    def __init__(self, config: BarsConfig) -> None:
        self.config = config
        self.deid = self._engine(config.psi, verify=False)
        self.psi = self.deid.face_model.auto_psi(1) if config.psi == "auto" else config.psi
        for name in config.judges:
            refuse_trainer(self.deid.header, name)
        last = self.deid.model.num_layers - 1
        self.layers = tuple(sorted(set(config.layers or (0, min(4, last), last))))
        for layer in self.layers:
            self.deid.face_model.check_layer(layer)
        self.readers = get_readers(config.judges, config.device)
        self.judges = Judges.find(attributes=config.attributes)
        self.judges.lpips = self.judges.inception = None  # The bars are set for SqueezeNet's

    def _engine(self, psi: Any, *, verify: bool) -> Deidentifier:
        same = {key: getattr(self.config, key) for key in ("checkpoint", "bank", "k", "seed", "detector", "device")}
        return Deidentifier.from_pretrained(layer=0, psi=psi, verify=verify, **same)

    @cached_property
    def guarded(self) -> Deidentifier:
        return self._engine(self.psi, verify=True)

    def output(self, layer: int, **more: Any) -> Ficgan:
        """The model as an anonymiser of crops."""
        config = self.config
        files = {"checkpoint": str(config.checkpoint or ""), "bank": str(config.bank or "")}
        given = {"k": config.k, "psi": self.psi, "seed": config.seed, "device": config.device, **files}
        return Ficgan(layer=layer, **{**given, **more})

    def sets(self) -> list[MeasuredSet]:
        """The sets with their faces cut, aligned ones first."""
        config, side = self.config, max(LEAST_SIDE, self.deid.model.resolution)
        how: dict[str, Any] = {"alignment": self.deid.alignment}
        out = [self._set(path, size=side, aligned=True, **how) for path in config.aligned]
        if config.photos is not None:
            how |= {"size": max(_PHOTO, 2 * side), "context": 2, "detector": Quick(self.deid.detector)}
            out.append(self._set(config.photos, **how))
        return out

    def _set(self, path: Path, **how: Any) -> MeasuredSet:
        faces, limit = open_set(path), self.config.limit
        prepared = prepare(faces if limit is None else faces.take(range(min(limit, len(faces)))), **how)
        if len(prepared) < 2:
            raise InputError(f"{faces.name} gives {len(prepared)} faces to measure on; give at least 2")
        return MeasuredSet(prepared, self.readers, self.judges, Bootstrap(self.config.resamples, self.config.seed))

    def steps(
        self, bench: MeasuredSet, sticker: AverageFace, found: list[Line]
    ) -> Iterator[tuple[str, Callable[[], None]]]:
        """What is measured on a set, and the function that adds its lines to `found`."""
        whole, few = self.config.whole, bench.one_each(_FEW)
        of_sticker: Figures = {}
        controls: dict[Key, tuple[str, Figure]] = {}

        def put(setting: str, figures: Figures, beside: Figures | None = None, known: Controls = controls) -> None:
            for key, value in figures.items():
                more = (beside or {}).get(key), known.get(key), not bench.prepared.whole
                found.append(Line(bench.name, key[0], setting, key[1], value, *more))

        def every_row(faces: Faces) -> Figures:
            seen = bench.recognised(faces)
            return identity(bench, seen) | within_kinds(bench, faces, seen) | likeness(bench, faces)

        def measure_controls() -> None:
            controls.update({key: ("clear", figure) for key, figure in every_row(bench.faces).items()})
            controls.update(beside_strangers(bench, "swap", "draws"))
            of_sticker.update(every_row(bench.composed(sticker)))

        def measure_reconstruction() -> None:
            """G(E(x)) of the inner squares, which lie as the model's own crops do; nothing is blended."""
            inner = bench.inner
            rebuilt = inner.faces.with_images(reconstruct(self.deid, inner.faces.images))
            pasted = fidelity(inner, inner.composed(sticker)) if whole else {}
            put("reconstruction", fidelity(inner, rebuilt), pasted, beside_strangers(inner, "rec-cosine"))

        def measure_outputs(layer: int) -> None:
            put(f"i = {layer}", every_row(bench.composed(self.output(layer))), of_sticker)

        def measure_draws(layer: int) -> None:
            figures = swap(few, self.output(layer, alpha=1.0))
            put(f"i = {layer}", figures | draws(few, lambda seed: self.output(layer, psi=_PSI, seed=seed)))

        def measure_policy(layer: int) -> None:
            """What leaves the program: shares retried and masked, and the rows of identity that stay."""
            try:
                shares, published = policy(bench, self.guarded, layer)
            except (InputError, UsageError) as error:
                put(f"i = {layer}", {(row, ""): Figure(row, None, note=str(error)) for row in ("retried", "masked")})
                return
            seen = bench.recognised(published)
            figures = identity(bench, seen) | within_kinds(bench, published, seen)
            put(f"i = {layer}", shares)
            put(f"i = {layer}, policy on", {key: each for key, each in figures.items() if key[0] != "match"})

        if whole:
            yield f"{bench.name}: clear faces and sticker", measure_controls
        yield f"{bench.name}: reconstruction", measure_reconstruction
        for layer in self.layers:
            yield f"{bench.name}: i = {layer}", partial(measure_outputs, layer)
            if whole:
                yield f"{bench.name}: i = {layer}, swap and draws", partial(measure_draws, layer)
                yield f"{bench.name}: i = {layer}, policy", partial(measure_policy, layer)

    def facts(self, sets: Sequence[MeasuredSet]) -> dict[str, Any]:
        gate = next((name for name in RECOGNIZERS if recognizer_missing(name) is None), "")
        config, deid = self.config, self.deid
        return {
            "ficgan": __version__,
            "checkpoint": deid.digests.get("checkpoint"),
            "bank": deid.face_model.bank.digest,
            "data_licence": None if deid.header is None else deid.header.data.get("licence"),
            "settings": {
                **{key: getattr(config, key) for key in ("k", "limit", "seed", "resamples")},
                "psi": self.psi,
                "layers": list(self.layers),
                "detector": deid.detector.name,
            },
            "judges": {reader.name: _ROLES[reader.recognizer.name == gate] for reader in self.readers},
            "sets": {each.name: each.prepared.facts() for each in sets},
        }
