"""`ficgan measure`: every row of `bars.yaml` for one model on given sets, as a table of met and missed bars."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache, cached_property, partial
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
from ficgan.lab.metrics.privacy import similarities, within_kind
from ficgan.lab.metrics.utility import LEAST_IMAGES, Judges, UtilityReadings, compare
from ficgan.lab.readers import Embeddings, Reader, cosines, get_readers, paired
from ficgan.lab.report import to_csv
from ficgan.lab.results import Figure, write_json
from ficgan.lab.run import write_file
from ficgan.lab.sets import Prepared, Quick, open_set, prepare

Figures = dict[tuple[str, str], Figure]  # (row, judge) → its figure
Controls = dict[tuple[str, str], tuple[str, Figure]]  # The same → what it is to be read beside: name and figure
Seen = Mapping[str, Embeddings]  # Name of a recogniser → [N,D]

FAR = 1e-3
LEAST = 10  # Pairs of strangers that must lie above a threshold
MOST = 3000  # Clear faces whose pairs stand for strangers; more take memory and change nothing
LEAST_SIDE = 128  # Of aligned crops that judges see, px; models of more see and are judged at their own size
_PHOTO = 384  # Side of crops cut from photos, px; the replaced square is half of it
_FEW = 64  # Sources of swaps and of several draws
_DRAWS, _PSI = 4, 0.6  # Draws of each source, and their diversity: that of photos of several people and of films
_GATE = "gate: decides about retries, and may tune"
_JUDGE = "judge: no part in gating; not the trainer that the checkpoint names, if it names one"
_STRANGERS = "same-group strangers"

# Row → its title, and perhaps limits, see `bars.yaml`
BARS: dict[str, dict[str, Any]] = yaml.safe_load(files("ficgan.lab.bars").joinpath("bars.yaml").read_text("utf-8"))


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
    def bar(self) -> dict[str, Any]:
        """Least, most, and what the paper prints; a measured bar whose control was not measured allows anything."""
        bar = BARS[self.row]
        limits = {**bar, **bar.get("photos", {})} if self.photos else bar
        most = limits.get("most")
        if "measured" in bar and self.control is not None:
            most = self.control[1].value
        return {"least": limits.get("least"), "most": most, "paper": bar.get("paper", "")}

    @property
    def verdict(self) -> str:
        """ "met" or "missed" by the value alone, "no bar", or "not measured"."""
        least, most, _ = self.bar.values()
        value = self.value.value
        if value is None or ("measured" in BARS[self.row] and most is None):
            return "not measured"
        if least is None and most is None:
            return "no bar"
        return "missed" if (least is not None and value < least) or (most is not None and value > most) else "met"

    def to_dict(self) -> dict[str, Any]:
        return {
            **{key: getattr(self, key) for key in ("set", "row", "setting", "judge", "verdict", "bar")},
            **asdict(self.value),
            "sticker": self.sticker and asdict(self.sticker),
            "control": self.control and {"what": self.control[0], **asdict(self.control[1])},
        }

    def cells(self) -> dict[str, Any]:
        """The line of a table."""
        tree = self.to_dict()
        bar, sticker, control = (tree.pop(key) or {} for key in ("bar", "sticker", "control"))
        beside = {"sticker": sticker.get("value"), "control": control.get("value"), "control is": control.get("what")}
        return {"what": BARS[self.row]["title"], **tree, **bar, **beside}


@dataclass(frozen=True)
class Sheet:
    """What was found: lines by set and in the order of the rows, and facts."""

    lines: Sequence[Line]
    facts: Mapping[str, Any]

    @property
    def verdicts(self) -> dict[str, int]:
        return dict(Counter(line.verdict for line in self.lines))

    @property
    def missed(self) -> list[str]:
        parts = ((line.set, line.setting, line.row, line.judge) for line in self.lines if line.verdict == "missed")
        return [", ".join(filter(None, part)) for part in parts]

    def write(self, folder: Path) -> list[Path]:
        """Write `bars.json` with all facts, and the table, `bars.csv`."""
        tree = {**self.facts, "verdicts": self.verdicts, "lines": [line.to_dict() for line in self.lines]}
        write_json(folder / "bars.json", tree)
        return [folder / "bars.json", write_file(folder / "bars.csv", to_csv([line.cells() for line in self.lines]))]


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
        return self.prepared.anonymise(partial(anonymised, anonymizer))

    def recognised(self, faces: Faces) -> dict[str, Embeddings]:
        """Embeddings [N,D] by recogniser of pixels of the same faces, at their landmarks."""
        return {reader.name: reader.embed(faces) for reader in self.readers}

    def region_alone(self, faces: Faces) -> Seen:
        """The same with all grey but the replaced square."""
        return self.recognised(replace(self.prepared, faces=faces).inside())

    @cached_property
    def clear(self) -> Seen:
        return self.recognised(self.faces)

    @cached_property
    def clear_region(self) -> Seen:
        return self.region_alone(self.faces)

    @cached_property
    def readings(self) -> UtilityReadings:
        return self.judges.read(self.faces)

    @cached_property
    def strangers(self) -> dict[str, Strangers]:
        return {reader.name: strangers(self, reader) for reader in self.readers}


# A recogniser's threshold at FAR 1e-3, and how alike strangers of one kind are: figures of id-cosine, match, and tar
Strangers = tuple[float | None, dict[str, Figure]]


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
    pool, counts, sample = score[np.triu(others, 1)], alike.sum(1), Sample(people, bench.bootstrap)
    pairs = f"{int(counts.sum()) // 2} pairs"

    def mean(values: NDArray[Any], note: str = pairs) -> Figure:
        means = np.where(alike, values, 0).sum(1) / np.where(counts, counts, np.nan)
        return sample.mean("strangers", means, note)

    if (threshold := threshold_of(pool)) is None:
        few = f"{len(pool)} pairs of strangers are too few for a FAR of {FAR:g}; {LEAST / FAR:.0f} are needed"
        tar = Figure("strangers", None, note=few)
    else:
        tar = mean(score > threshold, f"{pairs}; threshold {threshold:.3f}")
    cosine = mean(similarities(seen, seen, "cosine"))
    return threshold, {"id-cosine": cosine, "match": mean(score > reader.threshold), "tar": tar}


def identity(bench: MeasuredSet, seen: Seen) -> Figures:
    """Rows id-cosine, match and tar, by each recogniser, from embeddings [N,D] at source landmarks."""
    out: Figures = {}
    for reader in bench.readers:
        name, (threshold, known) = reader.name, bench.strangers[reader.name]
        score = paired(reader, bench.clear[name], seen[name])
        out["id-cosine", name] = bench.mean("id-cosine", cosines(bench.clear[name], seen[name]))
        out["match", name] = bench.mean("match", score > reader.threshold, f"threshold {reader.threshold:.3f}")
        out["tar", name] = Figure("tar", None, note=known["tar"].note)
        if threshold is not None:
            out["tar", name] = bench.mean("tar", score > threshold, f"threshold {threshold:.3f}")
    return out


def beside_strangers(bench: MeasuredSet, *cosine_rows: str) -> Controls:
    """Strangers of the same kind beside id-cosine, match, tar and other rows that are cosines."""
    return {
        (row, name): (_STRANGERS, figure)
        for name, (_, known) in bench.strangers.items()
        for row, figure in {**known, **dict.fromkeys(cosine_rows, known["id-cosine"])}.items()
    }


def within_kinds(bench: MeasuredSet, faces: Faces, seen: Seen) -> Figures:
    """AUC of outputs among people of the same ethnicity and gender: of the picture, and of the square, the rest grey.

    Rows within-kind, and linked, of two outputs of one person; none where the set does not say what kind people are of.
    """
    if bench.prepared.kinds is None:
        return {}
    who, kinds, out = bench.prepared.people[:MOST], bench.prepared.kinds[:MOST], Figures()
    square, again = bench.region_alone(faces), np.flatnonzero((who[:, None] == who).sum(1) > 1)
    parts = {"within-kind": (seen, bench.clear), "within-kind (square)": (square, bench.clear_region)}
    parts |= {"linked": (seen, seen), "linked (square)": (square, square)} if len(again) else {}
    for row, (made, others) in parts.items():
        rows = again if made is others else np.arange(len(who))
        for reader in bench.readers:
            score = similarities(made[reader.name][rows], others[reader.name][:MOST], reader.metric)
            found = within_kind(score, who[rows], kinds[rows], who, kinds, sources=rows, bootstrap=bench.bootstrap)
            out[row, reader.name] = replace(found, metric=row)
    return out


def swap(bench: MeasuredSet, anonymizer: Anonymizer) -> Figures:
    """Row swap: mean cosine of each output to the clear face of the next person, its target."""
    seen = bench.recognised(bench.prepared.anonymise(anonymizer))  # All at once: the next row is the target
    wanted = {name: np.roll(clear, -1, axis=0) for name, clear in bench.clear.items()}
    return {("swap", name): bench.mean("swap", cosines(made, wanted[name])) for name, made in seen.items()}


def draws(bench: MeasuredSet, drawn: Sequence[Anonymizer]) -> Figures:
    """Row draws: mean cosine of all pairs of outputs of each source; `drawn` are anonymisers of different seeds."""
    seen = [bench.recognised(bench.composed(anonymizer)) for anonymizer in drawn]
    note = f"{len(drawn)} draws of each of {len(bench.faces)} sources"
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
        values = [np.nan if action is None else action in counted for action in actions]
        out[row, f"{gate} (the gate)"] = bench.mean(row, np.array(values), note)
    return out, bench.faces.with_images(published)


def likeness(bench: MeasuredSet, faces: Faces) -> Figures:
    """Rows detected, landmarks, yaw-r, smile-r, gender, sharpness-kept and fd of outputs against clear faces."""
    readings = bench.judges.read(faces, against=bench.readings)
    kept = {figure.metric: figure for figure in compare(bench.readings, readings, bootstrap=bench.bootstrap)}
    detector, out = readings.used.get("detector", "no detector"), Figures()
    for row, bar in BARS.items():
        if "metric" not in bar:
            continue
        found, judge = kept[bar["metric"]], bar.get("by", detector)
        if row == "smile-r" and found.value is None and kept["mouth-r"].value is not None:
            note = f"by the width of the mouth, a weak sign, for {found.note}"
            found, judge = replace(kept["mouth-r"], note=note), "mouth width"
        out[row, judge] = replace(found, metric=row)
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
    out["rec-lpips", ""] = Figure("rec-lpips", None, unit="images", note=bench.judges.missing.get("squeezenet", ""))
    network = bench.judges.squeezenet
    distances = None if network is None else network.read(faces.images, clear=bench.faces.images)[1]
    if distances is not None:
        out["rec-lpips", ""] = bench.mean("rec-lpips", distances, "not the published LPIPS")
    return out


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

    def engine(self, *, verify: bool) -> Deidentifier:
        """The model that is measured."""
        same = {key: getattr(self, key) for key in ("checkpoint", "bank", "k", "psi", "seed", "detector", "device")}
        return Deidentifier.from_pretrained(layer=0, verify=verify, **same)

    def output(self, layer: int, **more: Any) -> Ficgan:
        """The model as an anonymiser of crops."""
        files = {"checkpoint": str(self.checkpoint or ""), "bank": str(self.bank or "")}
        given = {"k": self.k, "psi": self.psi, "seed": self.seed, "device": self.device, **files}
        return Ficgan(layer=layer, **{**given, **more})


def run_bars(config: BarsConfig, progress: Progress = unheard) -> Sheet:
    """Measure every row; the sheet says why where a row cannot be measured."""
    began, deid = time.monotonic(), config.engine(verify=False)
    for name in config.judges:
        refuse_trainer(deid.header, name)
    last = deid.face_model.num_layers - 1
    layers = tuple(sorted(set(config.layers or (0, min(4, last), last))))
    for layer in layers:
        deid.face_model.check_layer(layer)
    psi = deid.face_model.auto_psi(1) if config.psi == "auto" else config.psi
    config = replace(config, layers=layers, psi=psi)
    progress(0, 1, "preparing faces")
    sets = _sets(config, deid)
    sticker = AverageFace().fit(sets[0].inner.faces)
    total = len(sets) * (2 + 3 * len(layers) if config.whole else 1 + len(layers))
    steps, lines = iter(range(total)), list[Line]()
    guarded = cache(lambda: config.engine(verify=True))
    for bench in sets:
        lines += _lines(config, deid, guarded, bench, sticker, lambda text: progress(next(steps), total, text))
    progress(total, total, "")
    names, rows = [bench.name for bench in sets], list(BARS)
    lines.sort(key=lambda line: (names.index(line.set), rows.index(line.row)))
    gate = next((name for name in RECOGNIZERS if recognizer_missing(name) is None), "")
    settings = {key: getattr(config, key) for key in ("k", "limit", "seed", "resamples", "psi")}
    facts = {
        "ficgan": __version__,
        "checkpoint": deid.digests.get("checkpoint"),
        "bank": deid.face_model.bank.digest,
        "data_licence": None if deid.header is None else deid.header.data.get("licence"),
        "settings": {**settings, "layers": list(layers), "detector": deid.detector.name},
        "judges": {one.name: _GATE if one.recognizer.name == gate else _JUDGE for one in sets[0].readers},
        "sets": {bench.name: bench.prepared.facts() for bench in sets},
        "seconds": round(time.monotonic() - began, 1),
    }
    return Sheet(lines, facts)


def _sets(config: BarsConfig, deid: Deidentifier) -> list[MeasuredSet]:
    """The sets with their faces cut, aligned ones first."""
    readers, judges = get_readers(config.judges, config.device), Judges.find(attributes=config.attributes)
    judges.lpips = judges.inception = None  # The bars are set for SqueezeNet's
    side = max(LEAST_SIDE, deid.face_model.resolution)
    places: list[tuple[Path, dict[str, Any]]] = [(path, {"size": side, "aligned": True}) for path in config.aligned]
    if config.photos is not None:
        how: dict[str, Any] = {"size": max(_PHOTO, 2 * side), "context": 2, "detector": Quick(deid.detector)}
        places.append((config.photos, how))
    sets = []
    for path, how in places:
        faces = open_set(path)
        prepared = prepare(faces.take(range(len(faces))[: config.limit]), alignment=deid.alignment, **how)
        if len(prepared) < 2:
            raise InputError(f"{faces.name} gives {len(prepared)} faces to measure on; give at least 2")
        sets.append(MeasuredSet(prepared, readers, judges, Bootstrap(config.resamples, config.seed)))
    return sets


def _lines(
    config: BarsConfig,
    deid: Deidentifier,
    guarded: Callable[[], Deidentifier],
    bench: MeasuredSet,
    sticker: AverageFace,
    say: Callable[[str], None],
) -> Iterator[Line]:
    """All lines of one set; `guarded` gives the model with its check, `say` is told what is measured next."""
    few = bench.one_each(_FEW)

    def every_row(faces: Faces) -> Figures:
        seen = bench.recognised(faces)
        return identity(bench, seen) | within_kinds(bench, faces, seen) | likeness(bench, faces)

    def lines(setting: str, figures: Figures, controls: Controls, pasted: Figures | None = None) -> Iterator[Line]:
        for key, value in figures.items():
            beside = (pasted or {}).get(key), controls.get(key), not bench.prepared.whole
            yield Line(bench.name, key[0], setting, key[1], value, *beside)

    of_sticker: Figures = {}
    controls: Controls = {}
    if config.whole:
        say(f"{bench.name}: clear faces and sticker")
        controls = {key: ("clear", figure) for key, figure in every_row(bench.faces).items()}
        controls |= beside_strangers(bench, "swap", "draws")
        of_sticker = every_row(bench.composed(sticker))
    say(f"{bench.name}: reconstruction")
    inner = bench.inner  # Lies as the model's own crops do; nothing is blended
    rebuilt = fidelity(inner, inner.faces.with_images(reconstruct(deid, inner.faces.images)))
    pasted = fidelity(inner, inner.composed(sticker)) if config.whole else {}
    yield from lines("reconstruction", rebuilt, beside_strangers(inner, "rec-cosine"), pasted)
    for layer in config.layers:
        setting = f"i = {layer}"
        say(f"{bench.name}: {setting}")
        yield from lines(setting, every_row(bench.composed(config.output(layer))), controls, of_sticker)
        if not config.whole:
            continue
        say(f"{bench.name}: {setting}, swap and draws")
        figures = swap(few, config.output(layer, alpha=1.0))
        figures |= draws(few, [config.output(layer, psi=_PSI, seed=seed) for seed in range(_DRAWS)])
        yield from lines(setting, figures, controls)
        say(f"{bench.name}: {setting}, policy")
        try:
            shares, published = policy(bench, guarded(), layer)
        except (InputError, UsageError) as error:
            nothing = {(row, ""): Figure(row, None, note=str(error)) for row in ("retried", "masked")}
            yield from lines(setting, nothing, controls)
            continue
        seen = bench.recognised(published)
        figures = identity(bench, seen) | within_kinds(bench, published, seen)
        yield from lines(setting, shares, controls)
        left = {key: each for key, each in figures.items() if key[0] != "match"}
        yield from lines(f"{setting}, policy on", left, controls)
