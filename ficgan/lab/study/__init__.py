"""What obfuscated faces cost a classifier: the study of "A Study of Face Obfuscation in ImageNet" (Yang et al.)."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from importlib.resources import files
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import yaml
from numpy.typing import NDArray

from ficgan.device import resolve_device
from ficgan.errors import UsageError
from ficgan.lab.pages import write_file
from ficgan.lab.results import Results, notes, origin
from ficgan.lab.run import Progress, Run
from ficgan.lab.study.scenes import Scenes, StudyConfig, covered_share, halves, open_scenes, with_decoys
from ficgan.lab.study.training import METRICS, Cell, Evaluation, Row, Share, StudyGrid, spread
from ficgan.lab.study.transfer import Transfer

Report = Callable[[str, float], None]  # Called as report(what is being done, share of it that is done in [0, 1])
_FEW_CLASSES = 30

PUBLISHED: Row = yaml.safe_load(files("ficgan.lab.study").joinpath("published.yaml").read_text("utf-8"))


@dataclass
class StudyResult:
    """Figures of a study; shares, except in `tables` and in what was published.

    Attributes:
        drops: paired drops "matched" (Table 3), "shifted" (trained on original, Table 8), "deployed" (evaluated on
            original, Table 9), each by class, obfuscated area and covered object.
        correlations: Pearson's r of area (and covered object) with the drop.
    """

    config: Row
    set: Row
    grid: list[Row] = field(default_factory=list)
    drops: list[Row] = field(default_factory=list)
    correlations: list[Row] = field(default_factory=list)
    tables: list[Row] = field(default_factory=list)
    transfer: dict[str, list[Row]] = field(default_factory=dict)
    published: Row = field(default_factory=dict)
    caveats: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def to_dict(self) -> Row:
        return asdict(self)


def run_study(config: StudyConfig, out: Path, progress: Progress | None = None) -> StudyResult:
    """Run or resume a study; the figures are also written to `out/study.json`."""
    start = time.monotonic()

    def report(what: str, share: float) -> None:
        if progress:
            progress(round(100 * share), 100, what)

    device = resolve_device(config.device)
    report("reading annotations", 0.0)
    whole = open_scenes(config.images, config.annotations, config.objects)
    parts = halves(whole, config.holdout, config.train_split, config.eval_split)
    train, evaluation = (with_decoys(part) if config.decoys else part for part in parts)
    run = Run(out)
    cells = _cells(config, StudyGrid(config, train, evaluation, run.store, device), report)
    result = StudyResult(config.to_dict(), _about(config, whole, train, evaluation), grid_rows(cells))
    report("areas of faces", 1.0)
    _add_drops(result, config, cells, evaluation)
    result.tables = [
        _faces_table(whole),
        _accuracy_table(result.grid, result.drops),
        _drop_table(result.drops, "shifted", "Drop, trained on original, evaluated on a variant (as Table 8)"),
        _drop_table(result.drops, "deployed", "Drop, trained on a variant, evaluated on original (as Table 9)"),
    ]
    result.published = {key: PUBLISHED[key] for key in ("drops", "correlations")}
    for task in config.transfer:
        what = f"transfer to {task.name}"
        report(what, 0.0)
        share = _within(report, what, 0, 1)
        result.transfer[task.name] = Transfer(task, config, run.store, device).rows(cells, len(whole.classes), share)
    result.caveats = _caveats(config, whole, evaluation)
    result.seconds = round(time.monotonic() - start, 1)
    write_file(out / "study.json", json.dumps(result.to_dict(), indent=1, allow_nan=False, ensure_ascii=False))
    return result


def _cells(config: StudyConfig, grid: StudyGrid, report: Report) -> list[Cell]:
    # Seeds outermost: an interrupted study has whole pairs of few seeds, not all seeds of one variant.
    wanted = [(n, v, s) for s in config.seeds for n in config.networks for v in config.train_on]
    cells = []
    for done, (network, variant, seed) in enumerate(wanted):
        what = f"{network} on {variant}, seed {seed}"
        cells.append(grid.cell(network, variant, seed, _within(report, what, done, len(wanted))))
        report(what, (done + 1) / len(wanted))
    return cells


def _within(report: Report, what: str, done: int, total: int) -> Share:
    return lambda share: report(what, (done + share) / total)


def _add_drops(result: StudyResult, config: StudyConfig, cells: list[Cell], evaluation: Scenes) -> None:
    before = Side("original", "original")
    if "original" not in config.train_on or "original" not in config.evaluate_on:
        return  # there is nothing to drop from
    areas = measure_areas(evaluation)
    shares = {"area": areas.image}
    if (areas.objects == areas.objects).any():  # some are known: not NaN
        shares["object"] = areas.objects
    both = [v for v in config.train_on if v in config.evaluate_on and v != "original"]
    sides = [("matched", Side(v, v)) for v in both]
    sides += [("shifted", Side("original", v)) for v in config.evaluate_on if v != "original"]
    sides += [("deployed", Side(v, "original")) for v in config.train_on if v != "original"]
    for kind, after in sides:
        for network in config.networks:
            row = {"kind": kind, **drop(cells, network, before, after)}
            row["classes"] = by_class(cells, evaluation, areas, network, before, after)
            row |= {"areas": None, "objects": None}
            for name, of in shares.items():
                row[f"{name}s"] = by_area(cells, of, config.area_edges, network, before, after)
            result.drops.append(row)
        row = {"kind": kind, "before": before._asdict(), "after": after._asdict(), "area": None, "object": None}
        for name, of in shares.items():
            row[name] = correlations(cells, evaluation, of, config.networks, before, after)
        result.correlations.append(row)


def _about(config: StudyConfig, whole: Scenes, train: Scenes, evaluation: Scenes) -> Row:
    return {
        "classes": list(whole.classes),
        "images": len(whole),
        "images_with_faces": int(whole.faced.sum()),
        "faces": sum(len(scene.boxes) for scene in whole.items),
        "boxes_without_area": whole.empty_boxes,
        "train": {"images": len(train), "fingerprint": train.fingerprint},
        "evaluation": {
            "images": len(evaluation),
            "fingerprint": evaluation.fingerprint,
            "per_class": {title: int((evaluation.labels == c).sum()) for c, title in enumerate(whole.classes)},
        },
        "decoys": config.decoys,
    }


def _caveats(config: StudyConfig, whole: Scenes, evaluation: Scenes) -> list[str]:
    classes, faced = len(whole.classes), {scene.label for scene in whole.items if len(scene.boxes)}
    few = classes < _FEW_CLASSES
    holds = {
        "seeds": True,
        "mark": len(faced) < classes and few and not config.decoys,
        "few classes": few,
        "decoys": config.decoys,
        "epochs": config.epochs < StudyConfig.model_fields["epochs"].default,
        "not ImageNet": classes != 1000,
        "transfer": config.transfer,
    }
    return notes(
        "study",
        holds,
        seeds=len(config.seeds),
        images=len(evaluation),
        point=100 / len(evaluation),
        classes=classes,
        faced=", ".join(whole.classes[label] for label in sorted(faced)) or "no class",
        epochs=config.epochs,
    )


def per_cent(spread: Row | None, signed: bool = False) -> str:
    """{"mean", "sem"} as shares → "69.8 ± 0.2"; a dash where nothing was measured."""
    if spread is None:
        return "–"
    mean = f"{100 * spread['mean']:+.1f}" if signed else f"{100 * spread['mean']:.1f}"
    return mean if spread["sem"] is None else f"{mean} ± {100 * spread['sem']:.1f}"


def _table(title: str, rows: list[Row]) -> Row:
    columns = dict.fromkeys(key for row in rows for key in row)
    return {"title": title, "rows": [{column: row.get(column, "–") for column in columns} for row in rows]}


def _faces_table(scenes: Scenes) -> Row:
    counts = {title: scenes.counts[scenes.labels == label] for label, title in enumerate(scenes.classes)}
    known = [title for title in counts if len(counts[title])]
    known.sort(key=lambda title: (-float((counts[title] > 0).mean()), title))
    every = {title: counts[title] for title in known} | {"all": scenes.counts}
    rows = [
        {
            "class": title,
            "images": len(found),
            "with faces (%)": round(100 * float((found > 0).mean()), 2),
            "faces": int(found.sum()),
        }
        for title, found in every.items()
        if len(found)
    ]
    return _table("Images with faces (as Table 2)", rows)


def _accuracy_table(grid: list[Row], drops: list[Row]) -> Row:
    matched = {(row["network"], row["train"]): row for row in grid if row["train"] == row["evaluate"]}
    lost = {(row["network"], row["after"]["train"]): row for row in drops if row["kind"] == "matched"}
    rows = []
    for network in dict.fromkeys(row["network"] for row in grid):
        row: Row = {"network": network}
        for metric in METRICS:
            for variant in ("original", "blurred", "overlaid"):
                if one := matched.get((network, variant)):
                    row[f"{metric} {variant}"] = per_cent(one[metric])
                if one := lost.get((network, variant)):
                    row[f"{metric} Δ {variant}"] = per_cent(one[metric], signed=True)
            if published := PUBLISHED["accuracy"].get(network, {}).get(metric):
                row[f"{metric} published"] = " / ".join(f"{value:.1f}" for value in published)
        rows.append(row)
    return _table("Accuracy, trained and evaluated on the same variant (as Table 3)", rows)


def _drop_table(drops: list[Row], kind: str, title: str) -> Row:
    rows: dict[str, Row] = {one["network"]: {"network": one["network"]} for one in drops}
    for one in drops:
        if one["kind"] == kind:
            variant = one["after"]["train" if kind == "deployed" else "evaluate"]
            rows[one["network"]] |= {f"{name} Δ {variant}": per_cent(one[name], signed=True) for name in METRICS}
    return _table(title, list(rows.values()))


def run_obfuscation(
    config: StudyConfig, out: Path, progress: Progress | None = None
) -> tuple[Results, list[dict[str, Any]]]:
    """`run_study` for a page: results without sets and methods, as no face is attacked here, and the tables."""
    study = run_study(config, out, progress)
    settings = dict(study.config)
    for key in ("images", "annotations", "objects", "weights"):
        settings[key] = None if settings[key] is None else Path(settings[key]).name
    settings["transfer"] = [task.name for task in config.transfer]
    provenance = origin(settings, study.seconds) | {"set": study.set}
    title = "Face obfuscation: what it costs a classifier"
    return Results(title, list(study.caveats), provenance), obfuscation_tables(study)


def obfuscation_tables(study: StudyResult) -> list[Row]:
    """The study's tables, then its averages and correlations with the published ones beside them."""
    tables = [{**table, "note": "Per cent; ± standard error over seeds."} for table in study.tables if table["rows"]]
    rows = []
    for title, printed in PUBLISHED["drops"].items():
        kind, *rest = title.split()
        for key, value in printed.items():
            variant, metric = ("blurred", key) if kind == "deployed" else (key, rest[0])
            here = [
                row[metric]["mean"]
                for row in study.drops
                if row["kind"] == kind and row[metric] and variant in (row["after"]["train"], row["after"]["evaluate"])
            ]
            mean = f"{100 * sum(here) / len(here):.1f}" if here else "–"
            rows.append({"drop": title, "of": f"{metric}, {variant}", "here": mean, "paper": f"{value:.1f}"})
    note = "Percentage points lost against trained and evaluated on original, mean over networks (15 in the paper)."
    tables.append({"title": "Average drops (Tables 3, 8 and 9)", "note": note, "rows": rows})
    blurred = [
        correlation
        for correlation in study.correlations
        if (correlation["kind"], correlation["after"]["train"]) == ("matched", "blurred")
    ]
    rows = []
    for title, printed in PUBLISHED["correlations"].items():
        area = "area" if title.startswith("blurred area") else "object"
        by_metric: Row = next((one[area]["classes"] for one in blurred if one[area] is not None), {})
        for metric, value in printed.items():
            r = (by_metric.get(metric) or {"r": None})["r"]
            here_r = "–" if r is None else f"{r:.2f}"
            rows.append({"r over classes": title, "of": metric, "here": here_r, "paper": f"{value:.2f}"})
    note = "Pearson's r between what faces cover of a class and the drop of its accuracy, blurred throughout."
    tables.append({"title": "Drop against area (Figures 3 and 4)", "note": note, "rows": rows})
    note = "Fine-tuned; per cent, ± standard error over seeds (sections 5 and E)."
    for name, found in study.transfer.items():
        rows = [{key: row[key] for key in ("network", "pretrained")} | {row["metric"]: per_cent(row)} for row in found]
        tables.append({"title": f"Transfer to {name}", "note": note, "rows": rows})
    return tables


# -- what obfuscation costs, and how sure that is ----------------------------------------------------------------------

_CONSTANT = 1e-12  # Relative range below which values differ by rounding alone: their correlation would be noise


def pearson(x: Sequence[float] | NDArray[Any], y: Sequence[float] | NDArray[Any]) -> Row:
    """Pearson's r with 95 % interval and p-value as {"r", "low", "high", "p", "n"}; None where undefined."""
    from scipy.stats import pearsonr

    a, b = np.asarray(x, np.float64), np.asarray(y, np.float64)
    out: Row = {"r": None, "low": None, "high": None, "p": None, "n": len(a)}
    if len(a) < 2 or any(np.ptp(v) <= _CONSTANT * max(1.0, float(np.abs(v).max())) for v in (a, b)):
        return out
    found = pearsonr(a, b)
    out["r"] = float(found.statistic)
    if len(a) >= 4:
        with np.errstate(divide="ignore"):  # r = ±1: atanh is infinite, and the interval a point
            interval = found.confidence_interval(0.95)
        out |= {"low": float(interval.low), "high": float(interval.high), "p": float(found.pvalue)}
    return out


class Side(NamedTuple):
    """One side of a comparison: trained on one variant, evaluated on one."""

    train: str
    evaluate: str


Pairs = list[tuple[Evaluation, Evaluation]]  # Before and after, seed by seed


def grid_rows(cells: Sequence[Cell]) -> list[Row]:
    """A row for each network, training and evaluation variant: figures with standard errors over the seeds."""
    found: dict[tuple[str, str, str], list[Evaluation]] = {}
    for cell in cells:
        for variant, one in cell.evaluations.items():
            found.setdefault((cell.network, cell.variant, variant), []).append(one)
    rows = []
    for (network, train, evaluate), ones in found.items():
        figures = {name: [value for one in ones if (value := of(one)) is not None] for name, of in METRICS.items()}
        row = {"network": network, "train": train, "evaluate": evaluate}
        rows.append(row | {name: spread(values) if values else None for name, values in figures.items()})
    return rows


def drop(cells: Sequence[Cell], network: str, before: Side, after: Side) -> Row:
    """Paired drop `before` − `after` of one network over the same seeds: mean and standard error, as shares."""
    row: Row = {"network": network, "before": before._asdict(), "after": after._asdict()}
    pairs = _paired(cells, network, before, after)
    for name, of in METRICS.items():
        values = [(of(a), of(b)) for a, b in pairs]
        known = [a - b for a, b in values if a is not None and b is not None]
        row[name] = spread(known) if known else None
    return row


class Areas(NamedTuple):
    """Shares [N] of the image's area, and of its object boxes' areas (mean), that face boxes cover; NaN: unknown."""

    image: NDArray[np.float64]
    objects: NDArray[np.float64]


def measure_areas(scenes: Scenes) -> Areas:
    """The boxes as annotated: blurring reaches a tenth of a box's diagonal further on every side."""
    image, objects = np.zeros(len(scenes)), np.full(len(scenes), np.nan)
    for row, scene in enumerate(scenes.items):
        if len(scene.boxes):
            height, width = scene.load().shape[:2]
            image[row] = covered_share(scene.boxes, (0, 0, width, height))
        if scene.objects is not None and len(scene.objects):
            objects[row] = float(np.mean([covered_share(scene.boxes, one) for one in scene.objects]))
    return Areas(image, objects)


def by_class(cells: Sequence[Cell], scenes: Scenes, areas: Areas, network: str, before: Side, after: Side) -> list[Row]:
    """A row for each class: images, share with faces, obfuscated area, and the paired drops (Table 4)."""
    pairs = _paired(cells, network, before, after)
    labels, faced, rows = scenes.labels, scenes.faced, []
    for label, title in enumerate(scenes.classes):
        mine = labels == label
        if not mine.any():
            continue
        row: Row = {"class": title, "images": int(mine.sum()), "with_faces": float(faced[mine].mean())}
        row["area"], covered = float(areas.image[mine].mean()), areas.objects[mine]
        row["object_covered"] = float(np.nanmean(covered)) if np.isfinite(covered).any() else None
        aps = [(a.precisions[label], b.precisions[label]) for a, b in pairs]
        row |= _lost(pairs, mine) | {"ap": spread([a - b for a, b in aps if a is not None and b is not None])}
        rows.append(row)
    return rows


def by_area(
    cells: Sequence[Cell], shares: NDArray[np.float64], edges: Sequence[float], network: str, before: Side, after: Side
) -> list[Row]:
    """Drops of images grouped by a share [N] (Figure 3, of images); NaN leaves out, 0 is a group of its own."""
    pairs = _paired(cells, network, before, after)
    groups: list[tuple[str, NDArray[np.bool_]]] = [("none", shares == 0)]
    for low, high in pairwise((*edges, np.inf)):
        title = f"{100 * low:g}–{100 * high:g} %" if np.isfinite(high) else f"≥ {100 * low:g} %"
        groups.append((title, (shares > 0) & (shares >= low) & (shares < high)))
    return [{"share": title, "images": int(mine.sum()), **_lost(pairs, mine)} for title, mine in groups]


def correlations(
    cells: Sequence[Cell],
    scenes: Scenes,
    shares: NDArray[np.float64],
    networks: Sequence[str],
    before: Side,
    after: Side,
) -> Row:
    """Pearson's r of share [N] and mean drop over "classes" (as the paper), "images" and "images_with_faces"."""
    pairs = [pair for network in networks for pair in _paired(cells, network, before, after)]
    known, labels = np.isfinite(shares), scenes.labels
    out: Row = {"classes": {}, "images": {}, "images_with_faces": {}}
    for name in ("top1", "top5"):
        if not (both := _hits(pairs, name)):
            out = {part: found | {name: None} for part, found in out.items()}
            continue
        lost = np.mean([a.astype(float) - b for a, b in both], axis=0)
        classes = [mine for label in range(len(scenes.classes)) if (mine := known & (labels == label)).any()]
        means = [shares[mine].mean() for mine in classes], [lost[mine].mean() for mine in classes]
        faces = known & (shares > 0)
        out["classes"][name] = pearson(*means)
        out["images"][name] = pearson(shares[known], lost[known])
        out["images_with_faces"][name] = pearson(shares[faces], lost[faces])
    return out


def _lost(pairs: Pairs, mine: NDArray[np.bool_]) -> Row:
    out: Row = {"top1": None, "top5": None}
    for name in out:
        if mine.any() and (both := _hits(pairs, name)):
            out[name] = spread([a[mine].mean() - b[mine].mean() for a, b in both])
    return out


def _hits(pairs: Pairs, metric: str) -> list[tuple[NDArray[np.bool_], NDArray[np.bool_]]]:
    """Before and after, [N] each; none where there is no top-5."""
    both = [(a.hits(metric), b.hits(metric)) for a, b in pairs]
    return [(a, b) for a, b in both if a is not None and b is not None]


def _paired(cells: Sequence[Cell], network: str, before: Side, after: Side) -> Pairs:
    a, b = (
        {
            cell.seed: cell.evaluations[side.evaluate]
            for cell in cells
            if (cell.network, cell.variant) == (network, side.train) and side.evaluate in cell.evaluations
        }
        for side in (before, after)
    )
    if not a or set(a) != set(b):
        raise UsageError(
            f"{network} trained on {before.train} and {after.train} was not evaluated on {before.evaluate} and "
            f"{after.evaluate} with the same seeds; drops are of pairs"
        )
    return [(a[seed], b[seed]) for seed in sorted(a)]
