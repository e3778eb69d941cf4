"""What obfuscated faces cost a classifier: the study of "A Study of Face Obfuscation in ImageNet" (Yang et al.)."""

from __future__ import annotations

import time
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import yaml
from numpy.typing import NDArray

from ficgan.device import resolve_device
from ficgan.lab.pages import write_json
from ficgan.lab.results import Results, notes, origin
from ficgan.lab.run import Progress, Run
from ficgan.lab.study.scenes import Scenes, StudyConfig, covered_share, open_scenes
from ficgan.lab.study.training import METRICS, Cell, Evaluation, Row, StudyGrid, spread
from ficgan.lab.study.transfer import Transfer

_FEW_CLASSES = 30

PUBLISHED: Row = yaml.safe_load(files("ficgan.lab.study").joinpath("published.yaml").read_text("utf-8"))


def run_obfuscation(config: StudyConfig, out: Path, progress: Progress | None = None) -> tuple[Results, list[Row]]:
    """Run or resume a study: its caveats and provenance, and the tables; all figures are also in `out/study.json`."""
    start, run = time.monotonic(), Run(out, progress=progress)
    run.say("reading annotations")
    whole = open_scenes(config.images, config.annotations, config.objects)
    train, judged = whole.halves(config)
    device = resolve_device(config.device)
    grid = StudyGrid(config, train, judged, run.store, device)
    # Seeds outermost: an interrupted study has whole pairs of few seeds, not all seeds of one variant.
    wanted = [(n, v, s) for s in config.seeds for n in config.networks for v in config.train_on]
    run.total, cells = len(wanted) + len(config.transfer), []
    for network, variant, seed in wanted:
        run.say(f"{network} on {variant}, seed {seed}")
        cells.append(grid.cell(network, variant, seed, run.say))
        run.done += 1
    study = {"grid": grid_rows(cells), **drops(config, cells, judged), "transfer": {}}
    for task in config.transfer:
        run.say(f"transfer to {task.name}")
        study["transfer"][task.name] = Transfer(task, config, run.store, device).rows(cells, run.say)
        run.done += 1
    write_json(out / "study.json", study)
    settings = config.model_dump(mode="json") | {"transfer": [task.name for task in config.transfer]}
    for key in ("images", "annotations", "objects", "weights"):
        settings[key] = None if settings[key] is None else Path(settings[key]).name
    sizes = {"images": len(whole), "train": len(train), "evaluation": len(judged)}
    facts = {"classes": list(whole.classes), **sizes, "fingerprint": whole.fingerprint}
    provenance = origin(settings, time.monotonic() - start) | {"set": facts}
    title = "Face obfuscation: what it costs a classifier"
    return Results(title, _caveats(config, whole, judged), provenance), [_faces_table(whole), *study_tables(study)]


def _caveats(config: StudyConfig, whole: Scenes, judged: Scenes) -> list[str]:
    classes, faced = len(whole.classes), {scene.label for scene in whole.items if len(scene.boxes)}
    few = classes < _FEW_CLASSES
    holds = {
        "seeds": True,
        "mark": len(faced) < classes and few,
        "few classes": few,
        "epochs": config.epochs < StudyConfig.model_fields["epochs"].default,
        "not ImageNet": classes != 1000,
        "transfer": config.transfer,
    }
    return notes(
        "study",
        holds,
        seeds=len(config.seeds),
        images=len(judged),
        point=100 / len(judged),
        classes=classes,
        faced=", ".join(whole.classes[label] for label in sorted(faced)) or "no class",
        epochs=config.epochs,
    )


# -- what obfuscation costs, and how sure that is ----------------------------------------------------------------------


class Side(NamedTuple):
    """A side of a comparison: trained on one variant, evaluated on one."""

    train: str
    evaluate: str


Pairs = list[tuple[Evaluation, Evaluation]]  # Before and after, seed by seed


def paired(cells: Sequence[Cell], network: str, before: Side, after: Side) -> Pairs:
    """Evaluations of both sides by the same seeds."""
    a, b = (
        {
            cell.seed: cell.evaluations[side.evaluate]
            for cell in cells
            if (cell.network, cell.variant) == (network, side.train)
        }
        for side in (before, after)
    )
    return [(a[seed], b[seed]) for seed in sorted(a)]


def grid_rows(cells: Sequence[Cell]) -> list[Row]:
    """A row for each network, training and evaluation variant: figures with standard errors over the seeds."""
    found: dict[tuple[str, str, str], list[Evaluation]] = {}
    for cell in cells:
        for variant, judged in cell.evaluations.items():
            found.setdefault((cell.network, cell.variant, variant), []).append(judged)
    rows = []
    for (network, train, evaluate), some in found.items():
        row: Row = {"network": network, "train": train, "evaluate": evaluate}
        for name in METRICS:
            row[name] = spread([float(np.nanmean(judged[name])) for judged in some]) if name in some[0] else None
        rows.append(row)
    return rows


def lost(pairs: Pairs, metric: str, rows: Any = slice(None)) -> Row | None:
    """Mean and standard error of the paired drops over some images (of "ap": classes); None: not measured."""
    if metric not in pairs[0][0]:
        return None
    sides = [(a[metric][rows], b[metric][rows]) for a, b in pairs]
    if not np.isfinite(sides[0][0].astype(float)).any():
        return None
    return spread([np.nanmean(a) - np.nanmean(b) for a, b in sides])


def drops(config: StudyConfig, cells: Sequence[Cell], judged: Scenes) -> Row:
    """What was lost: "drops" matched (Table 3, and by class), shifted (trained on original, Table 8) and deployed
    (evaluated on original, Table 9), and the "correlations" of area (and covered object) with the blurred drop.
    """
    before, rows, related = Side("original", "original"), list[Row](), dict[str, Row]()
    if "original" not in config.train_on or "original" not in config.evaluate_on:
        return {"drops": rows, "correlations": related}  # there is nothing to drop from
    shares = measure_areas(judged)
    both = [v for v in config.train_on if v in config.evaluate_on and v != "original"]
    sides = [("matched", Side(v, v)) for v in both]
    sides += [("shifted", Side("original", v)) for v in config.evaluate_on if v != "original"]
    sides += [("deployed", Side(v, "original")) for v in config.train_on if v != "original"]
    for kind, after in sides:
        for network in config.networks:
            pairs = paired(cells, network, before, after)
            row: Row = {"kind": kind, "network": network, "train": after.train, "evaluate": after.evaluate}
            row |= {metric: lost(pairs, metric) for metric in METRICS}
            if kind == "matched":
                row["classes"] = by_class(pairs, judged, shares["area"])
            rows.append(row)
    if "blurred" in both:
        every = [pair for n in config.networks for pair in paired(cells, n, before, Side("blurred", "blurred"))]
        related = {name: correlation(every, judged, of) for name, of in shares.items()}
    return {"drops": rows, "correlations": related}


def measure_areas(scenes: Scenes) -> dict[str, NDArray[np.float64]]:
    """Shares [N] of the image's "area", and of its "object" boxes' (mean; NaN: unknown) that face boxes cover.

    The boxes are as annotated: blurring reaches a tenth of a box's diagonal further on every side.
    """
    area, objects = np.zeros(len(scenes)), np.full(len(scenes), np.nan)
    for row, scene in enumerate(scenes.items):
        if len(scene.boxes):
            height, width = scene.load().shape[:2]
            area[row] = covered_share(scene.boxes, (0, 0, width, height))
        if scene.objects is not None and len(scene.objects):
            objects[row] = float(np.mean([covered_share(scene.boxes, box) for box in scene.objects]))
    return {"area": area} | ({"object": objects} if np.isfinite(objects).any() else {})


def by_class(pairs: Pairs, scenes: Scenes, areas: NDArray[np.float64]) -> list[Row]:
    """A row for each class: images, share with faces, obfuscated area, and the paired drops (Table 4)."""
    rows = []
    for label, title in enumerate(scenes.classes):
        mine = scenes.labels == label
        if mine.any():
            row = {"class": title, "images": int(mine.sum()), "with_faces": float((scenes.counts[mine] > 0).mean())}
            found = {metric: lost(pairs, metric, label if metric == "ap" else mine) for metric in METRICS}
            rows.append({**row, "area": float(areas[mine].mean()), **found})
    return rows


def correlation(pairs: Pairs, scenes: Scenes, shares: NDArray[np.float64]) -> dict[str, float | None]:
    """Pearson's r over classes of share [N] and mean drop by metric; None where one does not vary."""
    out: dict[str, float | None] = {}
    for name in METRICS[:2]:
        if name in pairs[0][0]:
            drop = np.mean([a[name].astype(float) - b[name] for a, b in pairs], axis=0)
            known = [np.isfinite(shares) & (scenes.labels == label) for label in range(len(scenes.classes))]
            out[name] = pearson(*np.array([(shares[some].mean(), drop[some].mean()) for some in known if some.any()]).T)
    return out


def pearson(x: NDArray[np.float64], y: NDArray[np.float64]) -> float | None:
    """Pearson's r; None where values differ by rounding alone."""
    if len(x) < 2 or any(np.ptp(v) <= 1e-12 * max(1.0, float(np.abs(v).max())) for v in (x, y)):
        return None
    return float(np.corrcoef(x, y)[0, 1])


# -- tables ------------------------------------------------------------------------------------------------------------


def per_cent(figure: Row | None, sign: str = "") -> str:
    """{"mean", "sem"} as shares → "69.8 ± 0.2"; a dash where nothing was measured."""
    if figure is None:
        return "–"
    return f"{100 * figure['mean']:{sign}.1f}" + ("" if figure["sem"] is None else f" ± {100 * figure['sem']:.1f}")


def _faces_table(scenes: Scenes) -> Row:
    counts = {title: scenes.counts[scenes.labels == label] for label, title in enumerate(scenes.classes)}
    known = [title for title in counts if len(counts[title])]
    known.sort(key=lambda title: (-float((counts[title] > 0).mean()), title))
    rows = [
        {
            "class": title,
            "images": len(found),
            "with faces (%)": round(100 * float((found > 0).mean()), 2),
            "faces": int(found.sum()),
        }
        for title, found in [*((title, counts[title]) for title in known), ("all", scenes.counts)]
    ]
    return {"title": "Images with faces (as Table 2)", "note": "", "rows": rows}


def study_tables(study: Row) -> list[Row]:
    """Tables 3, 8 and 9, average drops, correlations and transfer, with the published numbers beside them."""
    lost, note = study["drops"], "Per cent; ± standard error over seeds."
    tables = [_table("Accuracy, trained and evaluated on the same variant (as Table 3)", note, _accuracy(study))]
    for kind, side, title in (
        ("shifted", "evaluate", "Drop, trained on original, evaluated on a variant (as Table 8)"),
        ("deployed", "train", "Drop, trained on a variant, evaluated on original (as Table 9)"),
    ):
        rows: dict[str, Row] = {}
        for row in lost:
            if row["kind"] == kind:
                mine = rows.setdefault(row["network"], {"network": row["network"]})
                mine |= {f"{metric} Δ {row[side]}": per_cent(row[metric], "+") for metric in METRICS}
        tables.append(_table(title, note, list(rows.values())))
    averages = []
    for title, printed in PUBLISHED["drops"].items():
        kind, *rest = title.split()
        for key, value in printed.items():
            variant, metric = ("blurred", key) if kind == "deployed" else (key, rest[0])
            some = [row for row in lost if row["kind"] == kind and variant in (row["train"], row["evaluate"])]
            here = [row[metric]["mean"] for row in some if row[metric]]
            mean = f"{100 * sum(here) / len(here):.1f}" if here else "–"
            averages.append({"drop": title, "of": f"{metric}, {variant}", "here": mean, "paper": f"{value:.1f}"})
    note = "Percentage points lost against trained and evaluated on original, mean over networks (15 in the paper)."
    tables.append(_table("Average drops (Tables 3, 8 and 9)", note, averages))
    related = []
    for title, printed in PUBLISHED["correlations"].items():
        found = study["correlations"].get("area" if title.startswith("blurred area") else "object", {})
        for metric, value in printed.items():
            here_r = "–" if found.get(metric) is None else f"{found[metric]:.2f}"
            related.append({"r over classes": title, "of": metric, "here": here_r, "paper": f"{value:.2f}"})
    note = "Pearson's r between what faces cover of a class and the drop of its accuracy, blurred throughout."
    tables.append(_table("Drop against area (Figures 3 and 4)", note, related))
    note = "Fine-tuned; per cent, ± standard error over seeds (sections 5 and E)."
    for name, some in study["transfer"].items():
        tuned = [{key: row[key] for key in ("network", "pretrained")} | {row["metric"]: per_cent(row)} for row in some]
        tables.append(_table(f"Transfer to {name}", note, tuned))
    return [table for table in tables if table["rows"]]


def _accuracy(study: Row) -> list[Row]:
    matched = {(row["network"], row["train"]): row for row in study["grid"] if row["train"] == row["evaluate"]}
    lost = {(row["network"], row["train"]): row for row in study["drops"] if row["kind"] == "matched"}
    rows = []
    for network in dict.fromkeys(network for network, _ in matched):
        row: Row = {"network": network}
        for metric in METRICS:
            for variant in ("original", "blurred", "overlaid"):
                if found := matched.get((network, variant)):
                    row[f"{metric} {variant}"] = per_cent(found[metric])
                if found := lost.get((network, variant)):
                    row[f"{metric} Δ {variant}"] = per_cent(found[metric], "+")
            if printed := PUBLISHED["accuracy"].get(network, {}).get(metric):
                row[f"{metric} published"] = " / ".join(f"{value:.1f}" for value in printed)
        rows.append(row)
    return rows


def _table(title: str, note: str, rows: list[Row]) -> Row:
    columns = dict.fromkeys(key for row in rows for key in row)
    return {"title": title, "note": note, "rows": [{key: row.get(key, "–") for key in columns} for row in rows]}
