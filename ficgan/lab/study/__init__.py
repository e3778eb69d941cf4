"""What obfuscated faces cost a classifier: the study of "A Study of Face Obfuscation in ImageNet" (Yang et al.)."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ficgan.device import resolve_device
from ficgan.lab.results import Results, origin
from ficgan.lab.stored import Progress, write_file
from ficgan.lab.study import scores
from ficgan.lab.study.scenes import Scenes, StudyConfig, halves, open_scenes, with_decoys
from ficgan.lab.study.scores import METRICS, Cell, Side
from ficgan.lab.study.training import Grid, Share
from ficgan.lab.study.transfer import Transfer

Report = Callable[[str, float], None]  # Called as report(what is being done, share of it that is done in [0, 1])
Row = dict[str, Any]
_FEW_CLASSES = 30

PUBLISHED: dict[str, dict[str, tuple[float, float, float]]] = {
    "alexnet": {"top1": (56.0, 55.8, 55.5), "top5": (78.8, 78.6, 78.2)},
    "squeezenet1_0": {"top1": (56.0, 55.3, 55.0), "top5": (78.6, 78.1, 77.6)},
    "shufflenet_v2_x1_0": {"top1": (64.7, 64.0, 63.7), "top5": (85.9, 85.5, 85.2)},
    "vgg11": {"top1": (68.9, 68.2, 67.8), "top5": (88.7, 88.3, 87.9)},
    "vgg13": {"top1": (69.9, 69.3, 68.8), "top5": (89.3, 88.9, 88.5)},
    "vgg16": {"top1": (71.7, 70.8, 70.6), "top5": (90.5, 89.9, 89.6)},
    "vgg19": {"top1": (72.4, 71.5, 71.2), "top5": (90.9, 90.3, 90.1)},
    "mobilenet_v2": {"top1": (65.4, 64.4, 64.3), "top5": (86.7, 86.0, 85.7)},
    "densenet121": {"top1": (75.0, 74.2, 74.1), "top5": (92.4, 92.0, 91.7)},
    "densenet201": {"top1": (77.0, 76.6, 76.1), "top5": (93.5, 93.2, 92.9)},
    "resnet18": {"top1": (69.8, 69.0, 68.9), "top5": (89.2, 88.7, 88.7)},
    "resnet34": {"top1": (73.1, 72.3, 72.4), "top5": (91.3, 90.8, 90.7)},
    "resnet50": {"top1": (75.5, 75.0, 74.9), "top5": (92.5, 92.4, 92.2)},
    "resnet101": {"top1": (77.3, 76.7, 76.7), "top5": (93.6, 93.3, 93.1)},
    "resnet152": {"top1": (77.9, 77.3, 77.0), "top5": (93.9, 93.7, 93.3)},
}
"""Table 3, per cent on ImageNet's validation images: trained and evaluated on original, blurred, overlaid."""
PUBLISHED_AVERAGES: dict[str, dict[str, float]] = {
    "matched top1 drop (Table 3)": {"blurred": 0.7, "overlaid": 0.9},
    "matched top5 drop (Table 3)": {"blurred": 0.4, "overlaid": 0.7},
    # The average row of Table 8: 90.7 original; 89.9 blurred is printed with a difference of 0.7, of unrounded numbers.
    "shifted top5 drop (Table 8)": {"red": 1.4, "green": 1.3, "blue": 1.5, "mean": 1.1, "blurred": 0.7},
    "deployed drop (Table 9)": {"top1": 0.9, "top5": 0.7},
}
"""Average drops in percentage points. "deployed" is trained on blurred, evaluated on original."""
PUBLISHED_CORRELATIONS: dict[str, dict[str, float]] = {
    "blurred area (Figure 3)": {"top1": 0.28, "top5": 0.44},
    "object covered (Figure 4)": {"top1": 0.32, "top5": 0.46},
}
"""Pearson's r over the 1,000 classes, blurring."""


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
    cells = _cells(config, Grid(config, train, evaluation, out, device), report)
    result = StudyResult(config.to_dict(), _about(config, whole, train, evaluation), scores.grid_rows(cells))
    report("areas of faces", 1.0)
    _add_drops(result, config, cells, evaluation)
    result.tables = [
        _faces_table(whole),
        _accuracy_table(result.grid, result.drops),
        _drop_table(result.drops, "shifted", "Drop, trained on original, evaluated on a variant (as Table 8)"),
        _drop_table(result.drops, "deployed", "Drop, trained on a variant, evaluated on original (as Table 9)"),
    ]
    result.published = {"drops": PUBLISHED_AVERAGES, "correlations": PUBLISHED_CORRELATIONS}
    for task in config.transfer:
        what = f"transfer to {task.name}"
        report(what, 0.0)
        share = _within(report, what, 0, 1)
        result.transfer[task.name] = Transfer(task, config, out, device).rows(cells, len(whole.classes), share)
    result.caveats = _caveats(config, whole, evaluation)
    result.seconds = round(time.monotonic() - start, 1)
    write_file(out / "study.json", json.dumps(result.to_dict(), indent=1, allow_nan=False, ensure_ascii=False))
    return result


def _cells(config: StudyConfig, grid: Grid, report: Report) -> list[Cell]:
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
    areas = scores.measure_areas(evaluation)
    shares = {"area": areas.image}
    if (areas.objects == areas.objects).any():  # some are known: not NaN
        shares["object"] = areas.objects
    both = [v for v in config.train_on if v in config.evaluate_on and v != "original"]
    sides = [("matched", Side(v, v)) for v in both]
    sides += [("shifted", Side("original", v)) for v in config.evaluate_on if v != "original"]
    sides += [("deployed", Side(v, "original")) for v in config.train_on if v != "original"]
    for kind, after in sides:
        for network in config.networks:
            row = {"kind": kind, **scores.drop(cells, network, before, after)}
            row["classes"] = scores.by_class(cells, evaluation, areas, network, before, after)
            row |= {"areas": None, "objects": None}
            for name, of in shares.items():
                row[f"{name}s"] = scores.by_area(cells, of, config.area_edges, network, before, after)
            result.drops.append(row)
        row = {"kind": kind, "before": before._asdict(), "after": after._asdict(), "area": None, "object": None}
        for name, of in shares.items():
            row[name] = scores.correlations(cells, evaluation, of, config.networks, before, after)
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
    n, classes = len(evaluation), len(whole.classes)
    out = [
        f"Standard errors are over {len(config.seeds)} seeds: they say how training varies, not how the choice of the "
        f"{n} evaluation images does; one image is {100 / n:.2f} percentage points."
    ]
    faced = {scene.label for scene in whole.items if len(scene.boxes)}
    if len(faced) < classes and classes < _FEW_CLASSES and not config.decoys:
        names = ", ".join(whole.classes[label] for label in sorted(faced)) or "no class"
        out.append(
            f"Annotated faces occur in {names} only, so a network trained on obfuscated images can tell the class by "
            "the mark of obfuscation; its figures on obfuscated images are not comparable with the paper's; run with "
            "decoys for a comparison that is not helped by it."
        )
    if classes < _FEW_CLASSES:
        out.append(
            f"There are {classes} classes, so r over classes means little; read the correlations over images, and with "
            "the interval."
        )
    if config.decoys:
        out.append(
            "Images without a face were obfuscated at boxes borrowed from other images, so the drops are of an "
            "obfuscation that says nothing of the class, not of faces alone; areas count borrowed boxes too."
        )
    if config.epochs < StudyConfig.model_fields["epochs"].default:
        out.append(f"Networks were trained for {config.epochs} epochs; the paper's recipe has 90.")
    if classes != 1000:
        out.append("The published figures are of ImageNet; these are not, and only say how the software behaves.")
    if config.transfer:
        out.append(
            "Transfer begins from the weights of each seed's own cell, so its standard errors hold pretraining and "
            "fine-tuning together."
        )
    return out


def per_cent(spread: Row | None, signed: bool = False) -> str:
    """{"mean", "sem"} as shares → "69.8 ± 0.2"; a dash where nothing was measured."""
    if spread is None:
        return "–"
    mean = f"{100 * spread['mean']:+.1f}" if signed else f"{100 * spread['mean']:.1f}"
    return mean if spread["sem"] is None else f"{mean} ± {100 * spread['sem']:.1f}"


def _table(title: str, rows: list[Row]) -> Row:
    return {"title": title, "columns": list(dict.fromkeys(key for row in rows for key in row)), "rows": rows}


def _faces_table(scenes: Scenes) -> Row:
    counts: dict[str, list[int]] = {}
    for scene in scenes.items:
        counts.setdefault(scenes.classes[scene.label], []).append(len(scene.boxes))
    share = {title: sum(count > 0 for count in found) / len(found) for title, found in counts.items()}
    counts = {title: counts[title] for title in sorted(counts, key=lambda title: (-share[title], title))}
    counts["all"] = [count for found in counts.values() for count in found]
    return _table("Images with faces (as Table 2)", [
        {"class": title, "images": len(found),
         "with faces (%)": round(100 * sum(count > 0 for count in found) / len(found), 2), "faces": sum(found)}
        for title, found in counts.items() if found
    ])  # fmt: skip


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
            if published := PUBLISHED.get(network, {}).get(metric):
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
    tables = [
        {"title": one["title"], "note": "Per cent; ± standard error over seeds.",
         "rows": [{column: row.get(column, "–") for column in one["columns"]} for row in one["rows"]]}
        for one in study.tables if one["rows"]
    ]  # fmt: skip
    rows = []
    for title, printed in PUBLISHED_AVERAGES.items():
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
    blurred = [one for one in study.correlations if (one["kind"], one["after"]["train"]) == ("matched", "blurred")]
    rows = []
    for title, printed in PUBLISHED_CORRELATIONS.items():
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
