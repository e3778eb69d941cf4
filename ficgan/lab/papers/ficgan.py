"""FICGAN (Jeong et al. 2021) on a face set: every layer, k-same codes and swaps; sheets of its controls."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, TypeAdapter

from ficgan import pretrained
from ficgan.anonymizers import Faces, Images, generator
from ficgan.arrays import ModelInfo
from ficgan.deidentify import Deidentifier, refuse_trainer
from ficgan.errors import InputError, Progress, UsageError, unheard
from ficgan.faces import crop, get_detector, transform_points
from ficgan.files import file_digest
from ficgan.images.read import as_photo
from ficgan.lab import Ficgan
from ficgan.lab.attributes import label_matrix
from ficgan.lab.bars import MeasuredSet
from ficgan.lab.bench import about, anonymised, content, reconstruct, squared_errors
from ficgan.lab.metrics import Bootstrap
from ficgan.lab.metrics.utility import Judges, compare, kept
from ficgan.lab.papers import FICGAN, FacesSettings, shade, table, text, titled_columns
from ficgan.lab.readers import cosines, get_readers, paired
from ficgan.lab.report import Row, filled, save_plot, spelled
from ficgan.lab.results import Figure, Measured, Results, Trial, Utility, notes, origin
from ficgan.lab.run import Run, Say, Task, digest, fingerprint
from ficgan.lab.sets import Prepared, Quick, open_set, prepare

SAME_PHOTO = "same-photo"  # Name of the comparison: the output against its own source, as the paper's ID similarity
FEW = 3000  # Images of CelebA-HQ's test part; Fréchet distances of fewer are biased upwards
CODES: dict[str, dict[str, Any]] = FICGAN.codes
_SHARES = {
    "attributes": "attributes as read in the source, %",
    "attributes-balanced": "the same, balanced, %",
    "attributes-accuracy": "attributes as labelled, %",
}
_SHOWN = frozenset({*_SHARES, "fid", "lpips", "ssim"})


class FicganPaper(FacesSettings):
    """What is measured on which images."""

    # part, skip, limit: part of the set's own division; images left out, the first by name; at most so many, drawn
    part: str | None = None
    skip: int = Field(0, ge=0)
    limit: int | None = Field(None, ge=2)
    attributes: Path | None = None
    checkpoint: str = ""
    bank: str = ""
    k: int = Field(3000, ge=2)
    layers: tuple[int, ...] = ()  # Indices i; none: all
    # (name, checkpoint, bank) of models that were trained without a part
    ablations: tuple[tuple[str, str, str], ...] = ()
    device: str = "cpu"


class Setting(NamedTuple):
    """One way to run the model ("FICGAN", or an ablation): a code of `CODES` and the layer index i."""

    model: str
    code: str
    layer: int

    @property
    def label(self) -> str:
        return f"{self.model} {self.code}, i = {self.layer}"


class Kept(NamedTuple):
    """Shares of images with an attribute, and without, as read in the source, where it is still so; None: of none."""

    there: float | None
    lacking: float | None
    images: int


@dataclass(frozen=True)
class SettingFigures(Measured):
    """What was measured of a setting: figures by judge, utility figures and "mse", and how attributes fared."""

    judges: dict[str, tuple[Figure, Figure]]
    figures: tuple[Figure, ...]
    attributes: dict[str, Kept]


@dataclass(frozen=True)
class FicganRun:
    """What `run_ficgan` found, by setting, and of `strangers`; L is `num_layers`."""

    results: Results
    found: dict[Setting, SettingFigures]
    strangers: SettingFigures
    reconstruction: SettingFigures
    layers: tuple[int, ...]
    num_layers: int

    def by_layer(self, code: str) -> dict[int, SettingFigures]:
        """i → figures of the model itself with a code."""
        return {one.layer: measured for one, measured in self.found.items() if one[:2] == ("FICGAN", code)}


def setting_figures(
    bench: MeasuredSet, labels: NDArray[np.uint8] | None, make: Callable[[], Images], say: Say
) -> dict[str, Any]:
    """`SettingFigures`, JSON-ready, of the outputs [N,S,S,3] that `make` gives against the clear crops of a set.

    `labels` are [N,A], 0 or 1, in the classifier's order; None where the set has not all of its attributes.
    """
    clear, faces = bench.readings, bench.faces.with_images(make())
    seen = bench.judges.read(faces, against=clear)
    figures = compare(clear, seen, labels=labels, bootstrap=bench.bootstrap)
    attributes = {}
    if seen.attributes is not None and clear.attributes is not None:
        having = (clear.attributes >= 0.5).sum(0).tolist()
        shares = kept(clear.attributes, seen.attributes, seen.attribute_names).items()
        attributes = {name: Kept(*some, count) for (name, some), count in zip(shares, having, strict=True)}
    judges = {}
    for reader in bench.readers:
        source, made = bench.clear[reader.name], reader.embed(faces)
        note = "" if reader.metric == "cosine" else "cosine of embeddings that are compared by distance"
        matched = bench.mean("match rate", paired(reader, source, made) > reader.threshold)
        judges[reader.name] = bench.mean("ID cosine", cosines(source, made), note), matched
    mse = bench.mean("mse", squared_errors(bench.faces.images, faces.images), "of pixels on [−1, 1]")
    shown = (*(figure for figure in figures if figure.metric in _SHOWN), mse)
    return asdict(SettingFigures(judges, shown, attributes))


def run_ficgan(config: FicganPaper, out: Path, progress: Progress | None = None) -> FicganRun:
    """Measure every setting, or resume."""
    began, run = time.monotonic(), Run(out, progress=progress)
    run.say("preparing faces")
    for file in (config.checkpoint or pretrained.path("model"), *(ablation[1] for ablation in config.ablations)):
        for name in config.judges:
            refuse_trainer(ModelInfo.of(file), name)
    prepared = _faces(config, out)
    judges = Judges.find(attributes=config.attributes)
    judges.detector = judges.age_gender = None  # the paper has no figures of them
    names = () if judges.attributes is None else judges.attributes.names
    mixed = prepared.part(generator(config.seed, "order").permutation(len(prepared)))
    faces, bootstrap = mixed.faces, Bootstrap(max(1, config.resamples), config.seed)
    bench = MeasuredSet(mixed, get_readers(config.judges), judges, bootstrap)
    same = {key: getattr(config, key) for key in ("k", "seed", "device")}
    deid = Deidentifier.from_pretrained(
        config.checkpoint or None, config.bank or None, layer=0, psi=0, verify=False, detector=config.detector, **same
    )
    every = deid.face_model.num_layers
    layers = tuple(sorted(set(config.layers))) or tuple(range(every))
    deid.face_model.check_layer(layers[-1])
    settings: dict[Setting, Ficgan] = {}
    models = [("FICGAN", config.checkpoint, config.bank, layers), *((*ablation, (0,)) for ablation in config.ablations)]
    for model, checkpoint, bank, shown in models:
        for code, layer in itertools.product(CODES, shown):
            made = Ficgan(layer=layer, **CODES[code]["given"], checkpoint=checkpoint, bank=bank, **same)
            settings[Setting(model, code, layer)] = made

    readers = [reader.digest for reader in bench.readers]
    context = [config.attributes and file_digest(config.attributes), bool(names), asdict(bootstrap)]
    mark = digest([content(faces), mixed.people.tolist(), readers, judges.missing, context])
    labels, inside = label_matrix(names, mixed.attributes), _aligned(bench, deid)

    def task(title: str, depends: Any, beside: MeasuredSet, make: Callable[[], Images]) -> Task:
        """`depends`: what the outputs depend on besides the faces; `beside`: what they are compared with."""
        return Task(title, ["paper ficgan", mark, title, depends], setting_figures, (beside, labels, make))

    weights = deid.digests.get("checkpoint")
    tasks = [
        task("strangers", None, bench, lambda: np.roll(faces.images, 1, axis=0)),
        task("reconstruction", weights, inside, lambda: reconstruct(deid, inside.faces.images)),
        *(
            task(one.label, fingerprint(made), bench, partial(anonymised, made, faces))
            for one, made in settings.items()
        ),
    ]
    run.total = len(tasks)
    found = run.results(tasks)
    run.check()
    strangers, rebuilt, *rest = (TypeAdapter(SettingFigures).validate_python(tree) for tree in found)
    results = _results(config, prepared, settings, rest)
    results.provenance = origin(config.model_dump(), time.monotonic() - began)
    return FicganRun(results, dict(zip(settings, rest, strict=True)), strangers, rebuilt, layers, every)


def _faces(config: FicganPaper, out: Path) -> Prepared:
    whole = open_set(config.data, layout=config.layout, labels=config.labels)
    whole = whole.only(config.part) if config.part else whole
    order = np.arange(config.skip, len(whole))
    drawn = generator(config.seed, "paper ficgan").permutation(order)[: config.limit]
    detector = None if config.aligned else Quick(get_detector(config.detector))
    prepared = prepare(
        whole.take(np.sort(drawn)), size=config.size, detector=detector, aligned=config.aligned, cache=out / "store"
    )
    if len(prepared) < 2:
        raise InputError(f"a face was acquired in {len(prepared)} images of {whole.name}; give at least 2 with one")
    return prepared


def _aligned(bench: MeasuredSet, deid: Deidentifier) -> MeasuredSet:
    """The crops aligned as the model's own."""
    faces, size = bench.faces, bench.faces.images.shape[1]
    matrices = [deid.alignment.matrix(marks, size) for marks in faces.landmarks]
    images = np.stack([crop(image, m, size) for image, m in zip(faces.images, matrices, strict=True)])
    marks = np.stack([transform_points(m, p) for m, p in zip(matrices, faces.landmarks, strict=True)])
    aligned = Faces(images, faces.names, marks.astype(np.float32), faces.people)
    return replace(bench, prepared=replace(bench.prepared, faces=aligned))


def _results(
    config: FicganPaper, prepared: Prepared, settings: dict[Setting, Ficgan], found: Sequence[SettingFigures]
) -> Results:
    facts, count = prepared.facts(), len(prepared)
    name, missed = str(facts["name"]), len(facts["failures_to_acquire"])
    nobody, tested = {"people": 0, "images": 0}, {"people": facts["people"] or count, "images": count}
    facts["split"] = {"parts": {"background": nobody, "attacker": nobody, "probe": tested}}
    facts |= {"size": config.size, "context": 1.0}
    results = Results("FICGAN: tables and figures of the paper", sets={name: facts})
    for (setting, made), measured in zip(settings.items(), found, strict=True):
        results.methods[setting.label] = about(made)
        for judge, some in measured.judges.items():
            results.trials.append(Trial(name, setting.label, SAME_PHOTO, judge, figures=some))
        results.utilities.append(Utility(name, setting.label, measured.figures))
    values = {"name": name, "images": count, "missed": missed, "all": missed + count}
    holds = {"few": count < FEW, "missed": missed > 0, "same": True, "crops": True}
    results.caveats += [text(FICGAN, FICGAN.caveats[key], **values) for key, true in holds.items() if true]
    results.caveats += notes("evaluation", {"ficgan": True, "only faces": True})
    return results


# -- tables ------------------------------------------------------------------------------------------------------------

# Attributes of Figure 4c: the first two are the paper's example in the text.
_SINGLE = ("Eyeglasses", "Bangs", "Smiling", "Male", "Wearing_Hat", "Young")


def ficgan_tables(run: FicganRun) -> list[dict[str, Any]]:
    """Tables for a page: {"title", "note", "rows"}."""
    chosen = sorted({run.layers[0], min(run.layers, key=lambda i: abs(i - 4)), run.layers[-1]})
    scores_of = partial(_scores, strangers=run.strangers)
    compared = [{"method": "another person's photo", "i": "–", "FID": "–", **scores_of(run.strangers)}]
    for code in ("w_t", "w_m", "w_ψ"):
        compared += [
            {"method": CODES[code]["method"], "i": layer, **_numbers(measured, {"fid": "FID"}), **scores_of(measured)}
            for layer, measured in run.by_layer(code).items()
            if layer in chosen
        ]
    scores = {key: value for key, value in scores_of(run.reconstruction).items() if key.startswith("ID")}
    rebuilt = [{"method": "FICGAN", **_numbers(run.reconstruction, {"mse": "MSE", "lpips": "LPIPS"}), **scores}]
    main = {setting: measured for setting, measured in run.found.items() if setting.model == "FICGAN"}
    layers = [{"code": setting.code, "i": setting.layer, **scores_of(measured)} for setting, measured in main.items()]
    tables = [
        table(FICGAN, "comparison", _beside(compared, FICGAN.comparison.rows)),
        table(FICGAN, "reconstruction", _beside(rebuilt, FICGAN.reconstruction.rows)),
        table(FICGAN, "layers", _pruned(layers), count=run.num_layers),
    ]
    if controllable := _controllable(run, chosen):
        tables.append(table(FICGAN, "controllable", controllable))
    if len(main) < len(run.found):
        ablated = [
            {"method": setting.model + CODES[setting.code]["ablated"], "i": 0, **scores_of(measured)}
            for setting, measured in run.found.items()
            if setting.layer == 0
        ]
        tables.append(table(FICGAN, "ablations", _beside(ablated, FICGAN.ablations.rows)))
    return tables


def _controllable(run: FicganRun, chosen: Sequence[int]) -> list[Row]:
    by_layer = {layer: measured.attributes for layer, measured in run.by_layer("w_m").items() if layer in chosen}
    rows, printed = [], FICGAN.controllable | FICGAN.uncontrollable
    share = lambda value: "–" if value is None else f"{100 * value:.1f}"  # noqa: E731
    for name, other in run.strangers.attributes.items():
        row: Row = {"attribute": name, "images with it": other.images}
        row |= {f"kept where there, i = {layer}": share(found[name].there) for layer, found in by_layer.items()}
        row |= {f"kept where not, i = {layer}": share(found[name].lacking) for layer, found in by_layer.items()}
        row["another person's photo has it too"] = share(other.there)
        row["paper"] = printed.get(name, "not named in the text")
        rows.append(row)
    strongest = by_layer[chosen[0]]
    return sorted(rows, key=lambda row: strongest[row["attribute"]].there or 0.0)


def _beside(rows: list[Row], printed: list[Row]) -> list[Row]:
    """Our rows, then the printed ones."""
    return _pruned([{"from": "here", **row} for row in rows] + [{"from": FICGAN.paper, **row} for row in printed])


def _pruned(rows: Sequence[Row]) -> list[Row]:
    rows = filled(rows)
    used = [key for key in rows[0] if any(row[key] != "–" for row in rows)]
    return [{key: row[key] for key in used} for row in rows]


def _scores(measured: SettingFigures, strangers: SettingFigures) -> Row:
    row: Row = {}
    for judge, (similarity, match) in measured.judges.items():
        by = "" if len(measured.judges) == 1 else f", {judge}"
        row |= {f"ID similarity{by}": spelled(similarity, digits=3)}
        row |= {f"the same, strangers at 0{by}": spelled(_calibrated(similarity, strangers.judges[judge][0]), digits=3)}
        row |= {f"taken for the same person, %{by}": spelled(match, factor=100, digits=1)}
    return row | _numbers(measured, _SHARES, 100)


def _calibrated(similarity: Figure, strangers: Figure) -> Figure:
    """A similarity on a scale where strangers have 0 and the photo itself 1: judges differ in where strangers lie."""
    zero, ends = strangers.value, (similarity.value, similarity.low, similarity.high)
    value, low, high = (None if zero is None or end is None else (end - zero) / (1 - zero) for end in ends)
    return replace(similarity, value=value, low=low, high=high)


def _numbers(measured: SettingFigures, titles: dict[str, str], factor: float = 1.0) -> Row:
    known = {figure.metric: figure for figure in measured.figures if figure.value is not None}
    digits = 3 if factor == 1 else 1
    return {title: spelled(known.get(metric), factor=factor, digits=digits) or "–" for metric, title in titles.items()}


def draw_figure_4(run: FicganRun, folder: Path) -> list[Path]:
    """(a) ID similarity, (b) all attributes, (c) single attributes by layer; nothing where there is one layer."""
    if len(run.layers) < 2:
        return []
    known = bool(run.strangers.attributes)

    def draw(canvas: Any) -> None:
        every = canvas.subplots(1, 3 if known else 1, squeeze=False)[0]
        for number, (judge, figures) in enumerate(run.strangers.judges.items()):
            colour = f"C{number}"
            for code, how in CODES.items():
                points = {i: measured.judges[judge][0] for i, measured in run.by_layer(code).items()}
                shade(every[0], points, how["style"], f"{how['title']} ({judge})", colour)
            every[0].axhline(figures[0].value, color=colour, linewidth=1, ls=":", label=f"strangers ({judge})")
        every[0].set(ylabel="ID similarity of source and output", title="(a)")
        if known:
            _attributes(run, *every[1:])
        for axes in every:
            axes.set(xlabel="i: layers 1…i keep the source's code", xticks=run.layers)
            axes.grid(alpha=0.3)
            axes.legend(fontsize=6)

    return save_plot(folder / "figure-4", draw, (4.6 * (3 if known else 1), 4))


def _attributes(run: FicganRun, every: Any, single: Any) -> None:
    for code, how in CODES.items():
        for number, (metric, what) in enumerate((("attributes", "as read"), ("attributes-accuracy", "as labelled"))):
            points = {i: measured.figure(metric) for i, measured in run.by_layer(code).items()}
            shade(every, points, how["style"], f"{how['title']}, {what}", f"C{number}")
    every.set(ylabel="share of attributes kept", title="(b)")
    for number, name in enumerate(name for name in _SINGLE if name in run.strangers.attributes):
        shares = {i: Figure(name, measured.attributes[name].there) for i, measured in run.by_layer("w_m").items()}
        shade(single, shares, "o-", name, f"C{number}")
    single.set(ylabel="share kept of the images that have it", title="(c) k-same, w_m", ylim=(-0.02, 1.02))


SIDE = 256  # Of a picture of the sheet, pixels
# Side of what is shown of a photo, of the longer side of the face's box.
CONTEXT = 1.6
# Values of α in eq. 5, as in Figure 5.
ALPHAS = (0.0, 0.25, 0.5, 0.75, 1.0)


# A photo, and the square of it that the sheet shows: rows and columns
_Shown = tuple[Images, tuple[slice, slice]]
# One column of a sheet: its title, the layer index, and controls of the model; None: what the controls say.
Column = tuple[str, int | None, dict[str, Any]]
# Name → title of the column of other people, for sheets that show some
OTHERS = {"exemplar": "w_t", "swaps": "x_t"}


def control_sheet(
    name: str,
    photos: Sequence[Path],
    *,
    exemplars: Sequence[Path] = (),
    attributes: Sequence[str] = (),
    model: Mapping[str, Any],
    progress: Progress = unheard,
) -> Images:
    """A sheet, uint8 [H,W,3]: a row for each photo, the source first; first attempts, that nothing has checked.

    Args:
        name: as of `ficgan-eval sheet`.
        exemplars: photos of the people whose codes are w_t; none: the next of the photos.
        attributes: groups of the bank, as `--attributes` of `ficgan-deid` takes them.
        model: arguments of `Deidentifier.from_pretrained`.
    """
    if name in OTHERS and not exemplars and len(photos) < 2:
        raise UsageError(f"the sheet {name} shows two people; give a second photo, or --exemplar")
    if name == "attributes" and not attributes:
        raise UsageError("name the groups of the sheet, such as --group Male; `ficgan bank show` lists them")
    make, detector = partial(Deidentifier.from_pretrained, verify=False, **model), get_detector("auto")
    sources = [_shown(path, detector) for path in photos]
    given = [_shown(path, detector) for path in exemplars] or [*sources[1:], sources[0]]
    others = [given[row % len(given)] for row in range(len(sources))]
    progress(0, len(sources), f"the sheet {name}")
    plain = None if name in OTHERS else make()
    layers = 0 if plain is None else plain.face_model.num_layers
    columns = {"source": [_cut(photo, square) for photo, square in sources]}
    if name in OTHERS:
        columns[OTHERS[name]] = [_cut(photo, square) for photo, square in others]
    for title, layer, controls in _columns(name, attributes, layers):
        made = make(**controls) if plain and controls else plain
        columns[title] = []
        for (photo, square), (other, _) in zip(sources, others, strict=True):
            deid = made or make(**controls, exemplar=other)
            columns[title].append(_cut(deid(photo, layer=layer).image, square))
    return titled_columns(columns)


def _columns(name: str, attributes: Sequence[str], layers: int) -> list[Column]:
    """Of Figures 3, 5, 6, 9 and A of the paper, for a model of so many layers."""
    if name == "degrees":
        return [(f"i = {layer}", layer, {}) for layer in reversed(range(layers))]
    if name == "exemplar":
        return [(f"alpha = {alpha:g}", None, {"alpha": alpha}) for alpha in ALPHAS]
    if name == "attributes":
        return [("any", None, {}), *((group, None, {"attributes": group}) for group in attributes)]
    if name == "swaps":
        return [("swap", None, {"swap": True})]
    ends = [round(part * layers / 3) for part in range(4)]
    bands = [f"{a + 1}-{b}" for a, b in itertools.pairwise(ends)]
    return [(f"layers 1-{layers}", None, {}), *((f"layers {band}", None, {"band": band}) for band in bands)]


def _shown(path: Path, detector: Any) -> _Shown:
    photo = as_photo(path).rgb
    faces = detector.detect(photo)
    if not faces:
        raise InputError(f"no face was found in {path}; leave it out, or give a clearer photo")
    box = max((np.asarray(face.box) for face in faces), key=lambda box: float(np.prod(box[2:] - box[:2])))
    side = min(int(CONTEXT * (box[2:] - box[:2]).max()), *photo.shape[:2])
    x, y = np.clip((box[:2] + box[2:]) / 2 - side / 2, 0, np.array(photo.shape[1::-1]) - side).astype(int)
    return photo, (slice(y, y + side), slice(x, x + side))


def _cut(photo: Images, square: tuple[slice, slice]) -> Images:
    import cv2

    return np.asarray(cv2.resize(photo[square], (SIDE, SIDE), interpolation=cv2.INTER_AREA))
