"""The whole study: cells, drops, tables, transfer."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ficgan.device import resolve_device
from ficgan.lab.study.config import StudyConfig
from ficgan.lab.study.drops import (
    Side,
    by_area,
    by_class,
    correlations,
    drop,
    grid_rows,
    measure_areas,
)
from ficgan.lab.study.fit import Progress
from ficgan.lab.study.grid import Cell, Grid
from ficgan.lab.study.published import PUBLISHED_AVERAGES, PUBLISHED_CORRELATIONS
from ficgan.lab.study.scenes import Scenes, halves, open_scenes
from ficgan.lab.study.tables import accuracy_table, drop_table, faces_table
from ficgan.lab.study.transfer import Transfer
from ficgan.lab.study.variants import with_decoys

__all__ = ["StudyResult", "run_study"]

_FEW_CLASSES = 30


@dataclass
class StudyResult:
    """Figures of a study; shares, not per cent, except in `tables` and in what was published.

    Attributes:
        config: what was run.
        set: images, classes, faces, fingerprints of the training and evaluation images.
        grid: a row for each network, training variant and evaluation variant.
        drops: paired drops against trained and evaluated on original: "matched" (the same variant for both, Table 3),
            "shifted" (trained on original, Table 8), "deployed" (evaluated on original, Table 9); each with its rows
            by class, by obfuscated area and, where object boxes are known, by covered object.
        correlations: Pearson's r of area (and covered object) with the drop, for each compared pair of sides.
        tables: the paper's tables, {"title", "columns", "rows"}.
        transfer: task → rows.
        published: the paper's figures.
        caveats: what must be read with them.
        seconds: this run took.
    """

    config: dict[str, Any]
    set: dict[str, Any]
    grid: list[dict[str, Any]] = field(default_factory=list)
    drops: list[dict[str, Any]] = field(default_factory=list)
    correlations: list[dict[str, Any]] = field(default_factory=list)
    tables: list[dict[str, Any]] = field(default_factory=list)
    transfer: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    published: dict[str, Any] = field(default_factory=dict)
    caveats: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return asdict(self)


def run_study(config: StudyConfig, out: Path, progress: Progress | None = None) -> StudyResult:
    """Run a study, or go on with one that was interrupted: what lies whole in `out` is not computed again.

    Args:
        config: what to run.
        out: folder for cells, transfer figures and `study.json`; made if missing.
        progress: called as progress(what, share of the cells done in [0, 1]).

    Returns:
        The figures, also written to `out/study.json`.

    Raises:
        UsageError: a value that cannot work, or `out` holds another study.
        InputError: images or annotations that cannot be used.
    """
    start = time.monotonic()
    say: Progress = progress or (lambda what, share: None)
    device = resolve_device(config.device)
    say("reading annotations", 0.0)
    whole = open_scenes(config.images, config.annotations, config.objects)
    parts = halves(whole, config.holdout, config.train_split, config.eval_split)
    train, evaluation = (with_decoys(part) if config.decoys else part for part in parts)
    grid = Grid(config, train, evaluation, out, device)
    cells = _cells(config, grid, say)
    result = StudyResult(config.to_dict(), _about(config, whole, train, evaluation))
    result.grid = grid_rows(cells)
    say("areas of faces", 1.0)
    _add_drops(result, config, cells, evaluation)
    result.tables = [
        faces_table(whole),
        accuracy_table(result.grid, result.drops),
        drop_table(result.drops, "shifted", "Drop, trained on original, evaluated on a variant (as Table 8)"),
        drop_table(result.drops, "deployed", "Drop, trained on a variant, evaluated on original (as Table 9)"),
    ]
    result.published = {"drops": PUBLISHED_AVERAGES, "correlations": PUBLISHED_CORRELATIONS}
    for task in config.transfer:
        say(f"transfer to {task.name}", 0.0)
        said = _said(say, f"transfer to {task.name}")
        result.transfer[task.name] = Transfer(task, config, out, device).rows(cells, len(whole.classes), said)
    result.caveats = _caveats(config, whole, evaluation)
    result.seconds = round(time.monotonic() - start, 1)
    _write(out / "study.json", result.to_dict())
    return result


def _cells(config: StudyConfig, grid: Grid, say: Progress) -> list[Cell]:
    # Seeds outermost: an interrupted study has whole pairs of few seeds, not all seeds of one variant.
    wanted = [(n, v, s) for s in config.seeds for n in config.networks for v in config.train_on]
    cells = []
    for done, (network, variant, seed) in enumerate(wanted):
        what = f"{network} on {variant}, seed {seed}"
        cells.append(grid.cell(network, variant, seed, _said(say, what, done, len(wanted))))
        say(what, (done + 1) / len(wanted))
    return cells


def _said(say: Progress, what: str, done: int = 0, total: int = 1) -> Callable[[float], None]:
    return lambda share: say(what, (done + share) / total)


def _add_drops(result: StudyResult, config: StudyConfig, cells: list[Cell], evaluation: Scenes) -> None:
    before = Side("original", "original")
    if "original" not in config.train_on or "original" not in config.evaluate_on:
        return  # there is nothing to drop from
    areas = measure_areas(evaluation)
    covered = bool((areas.objects == areas.objects).any())
    for kind, after in _sides(config):
        for network in config.networks:
            row = {"kind": kind, **drop(cells, network, before, after)}
            row["classes"] = by_class(cells, evaluation, areas, network, before, after)
            row["areas"] = by_area(cells, areas.image, config.area_edges, network, before, after)
            row["objects"] = (
                by_area(cells, areas.objects, config.area_edges, network, before, after) if covered else None
            )
            result.drops.append(row)
        told: dict[str, Any] = {"kind": kind, "before": vars(before), "after": vars(after)}
        told["area"] = correlations(cells, evaluation, areas.image, config.networks, before, after)
        told["object"] = (
            correlations(cells, evaluation, areas.objects, config.networks, before, after) if covered else None
        )
        result.correlations.append(told)


def _sides(config: StudyConfig) -> list[tuple[str, Side]]:
    both = [v for v in config.train_on if v in config.evaluate_on and v != "original"]
    sides = [("matched", Side(v, v)) for v in both]
    sides += [("shifted", Side("original", v)) for v in config.evaluate_on if v != "original"]
    return sides + [("deployed", Side(v, "original")) for v in config.train_on if v != "original"]


def _about(config: StudyConfig, whole: Scenes, train: Scenes, evaluation: Scenes) -> dict[str, Any]:
    return {
        "classes": list(whole.classes),
        "images": len(whole),
        "images_with_faces": sum(len(scene.boxes) > 0 for scene in whole.items),
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
    told = [
        f"Standard errors are over {len(config.seeds)} seeds: they say how training varies, not how the choice of the "
        f"{n} evaluation images does; one image is {100 / n:.2f} percentage points."
    ]
    faced = {scene.label for scene in whole.items if len(scene.boxes)}
    if len(faced) < classes and classes < _FEW_CLASSES and not config.decoys:
        names = ", ".join(whole.classes[label] for label in sorted(faced)) or "no class"
        told.append(
            f"Annotated faces occur in {names} only, so a network trained on obfuscated images can tell the class by "
            "the mark of obfuscation; its figures on obfuscated images are not comparable with the paper's; run with "
            "decoys for a comparison that is not helped by it."
        )
    if classes < _FEW_CLASSES:
        told.append(
            f"There are {classes} classes, so r over classes means little; read the correlations over images, and with "
            "the interval."
        )
    if config.decoys:
        told.append(
            "Images without a face were obfuscated at boxes borrowed from other images, so the drops are of an "
            "obfuscation that says nothing of the class, not of faces alone; areas count borrowed boxes too."
        )
    if config.epochs < StudyConfig.model_fields["epochs"].default:
        told.append(f"Networks were trained for {config.epochs} epochs; the paper's recipe has 90.")
    if classes != 1000:
        told.append("The published figures are of ImageNet; these are not, and only say how the software behaves.")
    if config.transfer:
        told.append(
            "Transfer begins from the weights of each seed's own cell, so its standard errors hold pretraining and "
            "fine-tuning together."
        )
    return told


def _write(path: Path, tree: dict[str, Any]) -> None:
    whole = path.with_name(f".{path.name}.partial")
    whole.write_text(json.dumps(tree, indent=1, allow_nan=False, ensure_ascii=False), encoding="utf-8")
    os.replace(whole, path)
