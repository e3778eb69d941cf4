"""FICGAN (Jeong et al. 2021) on a face set: every layer index, for the k-same code and for swaps."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, model_validator

from ficgan import pretrained
from ficgan.anonymizers import Faces, Images, generator
from ficgan.deidentify import Deidentifier, Ficgan, refuse_trainer
from ficgan.errors import InputError, UsageError
from ficgan.faces import crop, get_detector, transform_points
from ficgan.files import ModelInfo, file_digest
from ficgan.lab.bench import anonymised, content, described, reconstruct, squared_errors
from ficgan.lab.metrics import Bootstrap, Sample
from ficgan.lab.metrics.utility import Judges, UtilityReadings, compare, kept
from ficgan.lab.papers import FICGAN, Printed, Row, shade, table, text
from ficgan.lab.readers import Embeddings, Reader, cosines, get_readers, paired
from ficgan.lab.report import save_plot
from ficgan.lab.report.tables import spelled
from ficgan.lab.results import Figure, Results, Trial, Utility, notes, origin
from ficgan.lab.run import Progress, Run, Say, Task, digest, fingerprint
from ficgan.lab.sets import Prepared, Quick, open_set, prepare

SAME_PHOTO = "same-photo"  # Name of the comparison: the output against its own source, as the paper's ID similarity
FEW = 3000  # Images of CelebA-HQ's test part; Fréchet distances of fewer are biased upwards
CODES = {"w_m": 0.0, "w_t": 1.0}  # The k-same code and an arbitrary person's: the alpha of `Ficgan` that gives them
_SHOWN = frozenset(
    {
        "attributes",
        "attributes-balanced",
        "attributes-accuracy",
        "fid",
        "fd-squeezenet",
        "lpips",
        "lpips-squeezenet",
        "ssim",
    }
)


class FicganPaper(BaseModel):
    """What is measured on which images.

    Args:
        part, skip, limit: part of the set's own division; images left out, the first by name; at most so many, drawn.
        layers: indices i; none: all.
        ablations: (name, checkpoint, bank) of models that were trained without a part.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    data: Path
    layout: str = "auto"
    labels: Path | None = None
    part: str | None = None
    skip: int = Field(0, ge=0)
    limit: int | None = Field(None, ge=2)
    size: int = Field(256, ge=32)
    aligned: bool = False
    judges: tuple[str, ...] = ("dlib",)
    attributes: Path | None = None
    checkpoint: str = ""
    bank: str = ""
    k: int = Field(3000, ge=2)
    layers: tuple[int, ...] = ()
    ablations: tuple[tuple[str, str, str], ...] = ()
    detector: str = "auto"
    device: str = "cpu"
    resamples: int = 1000
    seed: int = Field(0, ge=0)

    @model_validator(mode="after")
    def _pair(self) -> FicganPaper:
        if bool(self.checkpoint) != bool(self.bank):
            raise ValueError("a checkpoint and the bank built with it belong together; give both or neither")
        return self


@dataclass(frozen=True)
class Setting:
    """One way to run the model ("FICGAN", or an ablation): a code of `CODES` and the layer index i."""

    label: str
    code: str
    layer: int
    model: str
    anonymizer: Ficgan


@dataclass(frozen=True)
class Kept:
    """Shares of images with an attribute, and without, as read in the source, where it is still so; None: of none."""

    there: float | None
    lacking: float | None
    images: int


@dataclass(frozen=True)
class SettingFigures:
    """What was measured of one setting: figures by judge, utility figures and "mse", and how attributes fared."""

    judges: dict[str, tuple[Figure, ...]]
    figures: tuple[Figure, ...]
    attributes: dict[str, Kept] = field(default_factory=dict)

    def figure(self, metric: str) -> Figure | None:
        return next((one for one in self.figures if one.metric == metric and one.value is not None), None)


@dataclass(frozen=True)
class FicganRun:
    """What `run_ficgan` found, by setting, and of `strangers`; L is `num_layers`."""

    results: Results
    found: dict[Setting, SettingFigures]
    strangers: SettingFigures
    reconstruction: SettingFigures
    layers: tuple[int, ...]
    num_layers: int
    classifier: dict[str, Any] | None

    @property
    def main(self) -> dict[Setting, SettingFigures]:
        return {setting: one for setting, one in self.found.items() if setting.model == "FICGAN"}

    def by_layer(self, code: str) -> dict[int, SettingFigures]:
        """i → figures of the model itself with a code."""
        return {setting.layer: one for setting, one in self.main.items() if setting.code == code}


@dataclass
class Measuring:
    """Clear crops, their judges and what these read in them; `context` is what else figures depend on, JSON-ready."""

    faces: Faces
    people: NDArray[np.int64]
    readers: Sequence[Reader]
    judges: Judges
    labels: NDArray[np.uint8] | None  # [N,A], 0 or 1, in the classifier's order; None where the set has not all
    bootstrap: Bootstrap
    context: Any

    @cached_property
    def read(self) -> UtilityReadings:
        return self.judges.read(self.faces)

    @cached_property
    def codes(self) -> dict[str, Embeddings]:
        return {reader.name: reader.embed(self.faces) for reader in self.readers}

    @cached_property
    def digest(self) -> str:
        """Of the pixels, the people, the judges and the context."""
        readers = [reader.digest for reader in self.readers]
        return digest([content(self.faces), self.people.tolist(), readers, self.judges.missing, self.context])

    def found(self, images: Images) -> SettingFigures:
        """Figures of outputs [N,S,S,3] against the clear crops."""
        faces, clear, sample = self.faces.with_images(images), self.read, Sample(self.people, self.bootstrap)
        seen = self.judges.read(faces, against=clear)
        figures = compare(clear, seen, labels=self.labels, bootstrap=self.bootstrap)
        attributes = {}
        if seen.attributes is not None and clear.attributes is not None:
            having = (clear.attributes >= 0.5).sum(0)
            shares = kept(clear.attributes, seen.attributes, seen.attribute_names)
            attributes = {
                name: Kept(there, lacking, int(images))
                for (name, (there, lacking, _)), images in zip(shares.items(), having, strict=True)
            }
        mse = sample.mean("mse", squared_errors(self.faces.images, images), "of pixels on [−1, 1]")
        judges: dict[str, tuple[Figure, ...]] = {}
        for reader in self.readers:
            source, made = self.codes[reader.name], reader.embed(faces)
            note = "" if reader.metric == "cosine" else "cosine of embeddings that are compared by distance"
            judges[reader.name] = (
                sample.mean("ID cosine", cosines(source, made), note),
                sample.mean("match rate", paired(reader, source, made) > reader.threshold),
            )
        return SettingFigures(judges, (*(figure for figure in figures if figure.metric in _SHOWN), mse), attributes)

    def task(self, title: str, key: Any, make: Callable[[], Images]) -> Task:
        """Measure the output that `make` gives; `key` is all it depends on besides the faces."""
        return Task(title, ["paper ficgan", self.digest, key], _find, (self, make))


def _find(measuring: Measuring, make: Callable[[], Images], say: Say) -> dict[str, Any]:
    return asdict(measuring.found(make()))


def run_ficgan(config: FicganPaper, out: Path, progress: Progress | None = None) -> FicganRun:
    """Measure every setting, or resume."""
    began, run = time.monotonic(), Run(out, progress=progress)
    run.say("preparing faces")
    _refuse_trainers(config)
    prepared = _faces(config, out)
    judges = Judges.find(attributes=config.attributes)
    judges.detector = judges.age_gender = None  # the paper has no figures of them
    names = () if judges.attributes is None else judges.attributes.names
    mixed = prepared.part(generator(config.seed, "order").permutation(len(prepared)))
    faces, known = mixed.faces, mixed.attributes
    labels = np.stack([known[name] for name in names], 1).astype(np.uint8) if names and {*names} <= {*known} else None
    bootstrap = Bootstrap(max(1, config.resamples), config.seed)
    context = [None if config.attributes is None else file_digest(config.attributes), bool(names), asdict(bootstrap)]
    readers = get_readers(config.judges)
    measuring = Measuring(faces, mixed.people, readers, judges, labels, bootstrap, context)
    deid = Deidentifier.from_pretrained(
        config.checkpoint or None,
        config.bank or None,
        verify=False,
        k=config.k,
        layer=0,
        psi=0,
        seed=config.seed,
        detector=config.detector,
        device=config.device,
    )
    count = deid.model.num_layers
    layers = tuple(sorted(set(config.layers))) or tuple(range(count))
    if layers[-1] >= count:
        raise UsageError(f"layer {layers[-1]} cannot be i: this model has layers 1…{count}")
    settings = list(_settings(config, layers))
    aligned = _aligned(faces, deid)
    inside = replace(measuring, faces=aligned)
    tasks = [
        measuring.task("strangers", "strangers", lambda: np.roll(faces.images, 1, axis=0)),
        inside.task("reconstruction", deid.digests.get("checkpoint"), lambda: reconstruct(deid, aligned.images)),
    ]
    tasks += [
        measuring.task(setting.label, fingerprint(setting.anonymizer), partial(anonymised, setting.anonymizer, faces))
        for setting in settings
    ]
    run.total = len(tasks)
    found = run.results(tasks)
    run.check()
    strangers, rebuilt, *rest = (TypeAdapter(SettingFigures).validate_python(tree) for tree in found)
    classifier = None if judges.attributes is None else judges.attributes.training
    by_setting = dict(zip(settings, rest, strict=True))
    results = _results(config, prepared, by_setting, time.monotonic() - began)
    return FicganRun(results, by_setting, strangers, rebuilt, layers, count, classifier)


def _faces(config: FicganPaper, out: Path) -> Prepared:
    whole = open_set(config.data, layout=config.layout, labels=config.labels)
    whole = whole.only(config.part) if config.part else whole
    order = np.arange(config.skip, len(whole))
    if len(order) < 2:
        raise InputError(
            f"{config.data} has {len(whole)} such images, {config.skip} of them left out; leave at least 2"
        )
    drawn = generator(config.seed, "paper ficgan").permutation(order)[: config.limit]
    detector = None if config.aligned else Quick(get_detector(config.detector))
    prepared = prepare(
        whole.take(np.sort(drawn)), size=config.size, detector=detector, aligned=config.aligned, cache=out / "store"
    )
    if len(prepared) < 2:
        raise InputError(f"a face was acquired in {len(prepared)} images of {whole.name}; give at least 2 with one")
    return prepared


def _settings(config: FicganPaper, layers: Sequence[int]) -> Iterator[Setting]:
    base = Ficgan(
        k=config.k, seed=config.seed, device=config.device, psi=0.0, checkpoint=config.checkpoint, bank=config.bank
    )
    for code, alpha in CODES.items():
        for layer in layers:
            yield Setting(f"FICGAN {code}, i = {layer}", code, layer, "FICGAN", replace(base, layer=layer, alpha=alpha))
    for name, checkpoint, bank in config.ablations:
        for code, alpha in CODES.items():
            model = replace(base, checkpoint=checkpoint, bank=bank, layer=0, alpha=alpha)
            yield Setting(f"{name} {code}, i = 0", code, 0, name, model)


def _aligned(faces: Faces, deid: Deidentifier) -> Faces:
    """The crops aligned as the model's own."""
    size = faces.images.shape[1]
    matrices = [deid.alignment.matrix(marks, size) for marks in faces.landmarks]
    images = np.stack([crop(image, m, size) for image, m in zip(faces.images, matrices, strict=True)])
    marks = np.stack([transform_points(m, p) for m, p in zip(matrices, faces.landmarks, strict=True)])
    return Faces(images, faces.names, marks.astype(np.float32), faces.people)


def _refuse_trainers(config: FicganPaper) -> None:
    for file in (config.checkpoint or pretrained.path("model"), *(ablation[1] for ablation in config.ablations)):
        header = ModelInfo.of(file)
        for name in config.judges:
            refuse_trainer(header, name)


def _results(config: FicganPaper, prepared: Prepared, found: dict[Setting, SettingFigures], seconds: float) -> Results:
    facts, faces = prepared.facts(), prepared.faces
    name = str(facts["name"])
    nobody = {"people": 0, "images": 0}
    tested = {"people": facts["people"] or len(faces), "images": len(faces)}
    parts = {"background": nobody, "attacker": nobody, "probe": tested}
    results = Results(
        "FICGAN: tables and figures of the paper",
        sets={name: {**facts, "size": config.size, "context": 1.0, "split": {"parts": parts}}},
        provenance=origin(config.model_dump(), seconds),
    )
    for setting, one in found.items():
        results.methods[setting.label] = described(setting.anonymizer)
        results.trials += [
            Trial(name, setting.label, SAME_PHOTO, judge, figures=some) for judge, some in one.judges.items()
        ]
        results.utilities.append(Utility(name, setting.label, one.figures))
    missed = len(facts["failures_to_acquire"])
    values = {"name": name, "images": len(faces), "missed": missed, "all": missed + len(faces)}
    holds = {"few": len(faces) < FEW, "missed": missed > 0, "same": True, "crops": True}
    results.caveats += [text(FICGAN, FICGAN.caveats[key], **values) for key, said in holds.items() if said]
    results.caveats += notes("evaluation", {"ficgan": True, "only faces": True})
    return results


LEAST = 5  # Images with an attribute that a share of its own needs
_SHARES = {
    "attributes": "attributes as read in the source, %",
    "attributes-balanced": "the same, balanced, %",
    "attributes-accuracy": "attributes as labelled, %",
}
_CODES = (("w_m", "o-", "k-same, w_m"), ("w_t", "s--", "another person, w_t"))
_SINGLE = ("Eyeglasses", "Bangs", "Smiling", "Male", "Wearing_Hat", "Young")
"""Attributes of Figure 4c: the first two are the paper's example in the text."""


def ficgan_tables(run: FicganRun) -> list[dict[str, Any]]:
    """Tables for a page: {"title", "note", "rows"}."""
    chosen = sorted({run.layers[0], min(run.layers, key=lambda i: abs(i - 4)), run.layers[-1]})
    tables = [_table_1(run, chosen), _table_a(run), _figure_4(run), _figure_b(run, chosen), _table_2(run)]
    return [table for table in tables if table is not None]


def _table_1(run: FicganRun, chosen: Sequence[int]) -> Row:
    names = {"w_t": "FICGAN (w_t, another person)", "w_m": "FICGAN + manifold k-same (w_m)"}
    rows = [{"method": "another person's photo", "i": "–", "FID": "–", "FD-SqueezeNet": "–", **_scores(run.strangers)}]
    for code, name in names.items():
        rows += [
            {"method": name, "i": layer, **_distances(one), **_scores(one)}
            for layer, one in run.by_layer(code).items()
            if layer in chosen
        ]
    return table(FICGAN, "comparison", _beside(rows, FICGAN.comparison), measured=_measured(run))


def _table_2(run: FicganRun) -> Row | None:
    if len(run.main) == len(run.found):
        return None
    rows = [
        {"method": setting.model + (" + k-same" if setting.code == "w_m" else ""), "i": 0, **_scores(one)}
        for setting, one in run.found.items()
        if setting.layer == 0
    ]
    return table(FICGAN, "ablations", _beside(rows, FICGAN.ablations))


def _table_a(run: FicganRun) -> Row:
    titles = {"mse": "MSE", "lpips": "LPIPS", "lpips-squeezenet": "LPIPS-like (SqueezeNet)"}
    row = {title: _number(run.reconstruction.figure(metric)) for metric, title in titles.items()}
    scores = {key: value for key, value in _scores(run.reconstruction).items() if key.startswith("ID")}
    rows = [{"method": "FICGAN", **row, **scores}]
    return table(FICGAN, "reconstruction", _beside(rows, FICGAN.reconstruction))


def _figure_4(run: FicganRun) -> Row:
    rows = [{"code": setting.code, "i": setting.layer, **_scores(one)} for setting, one in run.main.items()]
    return table(FICGAN, "layers", _pruned(rows), count=run.num_layers)


def _figure_b(run: FicganRun, chosen: Sequence[int]) -> Row | None:
    by_layer = {layer: one for layer, one in run.by_layer("w_m").items() if layer in chosen}
    rows, named = [], FICGAN.controllable | FICGAN.uncontrollable
    for name in by_layer[chosen[0]].attributes:
        others = run.strangers.attributes[name]
        row: Row = {"attribute": name, "images with it": others.images}
        row |= {f"kept where there, i = {layer}": _share(one.attributes[name]) for layer, one in by_layer.items()}
        row |= {f"kept where not, i = {layer}": _share(one.attributes[name], True) for layer, one in by_layer.items()}
        row["another person's photo has it too"] = _share(others)
        row["paper"] = named.get(name, "not named in the text")
        rows.append(row)
    if not rows:
        return None
    first = f"kept where there, i = {chosen[0]}"
    rows.sort(key=lambda row: (row[first] == "–", float(row[first]) if row[first] != "–" else 0.0))
    return table(FICGAN, "controllable", rows, least=LEAST)


def _beside(rows: list[Row], printed: Printed) -> list[Row]:
    """Our rows, then the printed ones."""
    theirs = [
        {"from": printed.paper, **{"attributes, paper" if key == "attributes" else key: row[key] for key in row}}
        for row in printed.rows
    ]
    return _pruned([*({"from": "here", **row} for row in rows), *theirs])


def _pruned(rows: Sequence[Row]) -> list[Row]:
    columns = dict.fromkeys(key for row in rows for key in row)
    used = [key for key in columns if any(row.get(key, "–") != "–" for row in rows)]
    return [{key: row.get(key, "–") for key in used} for row in rows]


def _scores(one: SettingFigures) -> Row:
    row: Row = {}
    for judge, (similarity, match) in one.judges.items():
        by = "" if len(one.judges) == 1 else f", {judge}"
        row |= {f"ID similarity{by}": _number(similarity), f"taken for the same person, %{by}": _number(match, 100)}
    return row | {title: _number(one.figure(metric), 100) for metric, title in _SHARES.items()}


def _distances(one: SettingFigures) -> Row:
    return {"FID": _number(one.figure("fid")), "FD-SqueezeNet": _number(one.figure("fd-squeezenet"))}


def _measured(run: FicganRun) -> str:
    first, said = next(iter(run.found.values())), ""
    if near := first.figure("fid") or first.figure("fd-squeezenet"):
        said += f" Fréchet distances are {near.note}."
    if run.classifier is None:
        return f"{said} No attribute classifier was given."
    if labelled := first.figure("attributes-accuracy"):
        said += f" As labelled, the classifier's answers are right: {labelled.note}."
    test = run.classifier.get("test", {})
    if "accuracy" not in test:
        return said
    return (
        f"{said} The classifier is right in {test['accuracy']:.1%} of the answers on people it was not trained on, the "
        f"commoner answer in {test['commoner_answer']:.1%}; on people it was trained on the figure as labelled is "
        "flattered."
    )


def _number(one: Figure | None, factor: float = 1.0) -> str:
    return "–" if one is None or one.value is None else spelled(one, factor=factor, digits=1 if factor == 100 else 3)


def _share(one: Kept, lacking: bool = False) -> str:
    value = one.lacking if lacking else one.there
    return "–" if value is None or (one.images < LEAST and not lacking) else f"{100 * value:.1f}"


def draw_figure_4(run: FicganRun, folder: Path) -> list[Path]:
    """(a) ID similarity, (b) all attributes, (c) single attributes by layer; nothing where there is one layer."""
    if len(run.layers) < 2:
        return []
    panels = [_identity] if run.classifier is None else [_identity, _all_attributes, _single_attributes]

    def draw(canvas: Any) -> None:
        for axes, panel in zip(canvas.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
            panel(run, axes)
            axes.set(xlabel="i: layers 1…i keep the source's code", xticks=run.layers)
            axes.grid(alpha=0.3)
            if axes.lines:
                axes.legend(fontsize=6)

    return save_plot(folder / "figure-4", draw, (4.6 * len(panels), 4))


def _identity(run: FicganRun, axes: Any) -> None:
    for number, (judge, figures) in enumerate(run.strangers.judges.items()):
        for code, style, title in _CODES:
            points = {i: one.judges[judge][0] for i, one in run.by_layer(code).items()}
            shade(axes, points, style, f"{title} ({judge})", f"C{number}")
        axes.axhline(figures[0].value, color=f"C{number}", linewidth=1, linestyle=":", label=f"strangers ({judge})")
    axes.set(ylabel="ID similarity of source and output", title="(a)")


def _all_attributes(run: FicganRun, axes: Any) -> None:
    for code, style, title in _CODES:
        for number, (metric, what) in enumerate((("attributes", "as read"), ("attributes-accuracy", "as labelled"))):
            points = {i: found for i, one in run.by_layer(code).items() if (found := one.figure(metric)) is not None}
            shade(axes, points, style, f"{title}, {what}", f"C{number}")
    axes.set(ylabel="share of attributes kept", title="(b)")


def _single_attributes(run: FicganRun, axes: Any) -> None:
    for number, name in enumerate(_SINGLE):
        shares = {i: one.attributes[name].there for i, one in run.by_layer("w_m").items() if name in one.attributes}
        points = {i: Figure(name, share) for i, share in shares.items() if share is not None}
        shade(axes, points, "o-", name, f"C{number}")
    axes.set(ylabel="share kept of the images that have it", title="(c) k-same, w_m", ylim=(-0.02, 1.02))
