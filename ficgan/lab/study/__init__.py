"""What obfuscated faces cost a classifier: the study of "A Study of Face Obfuscation in ImageNet" (Yang et al.).

Its tables and figures, with the published numbers beside them, and its page.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from importlib.resources import files
from itertools import pairwise
from pathlib import Path
from typing import Any, get_args

import numpy as np
import yaml
from numpy.typing import NDArray

from ficgan.errors import Progress
from ficgan.lab.report import filled, write_tables
from ficgan.lab.results import Results, notes, origin, write_json
from ficgan.lab.run import Run, Say, Task
from ficgan.lab.study.scenes import Begun, Scenes, StudyConfig, Variant, covered_share
from ficgan.lab.study.training import (
    METRICS,
    Cell,
    Evaluation,
    Gaze,
    Row,
    Study,
    by_label,
    check_network,
    lost_images,
    spread,
)
from ficgan.lab.study.transfer import Transfer

PUBLISHED: Row = yaml.safe_load(files("ficgan.lab.study").joinpath("published.yaml").read_text("utf-8"))
_FEW_CLASSES = 30
_FULL_EPOCHS = 90  # Section 4


# A process opens a study and its downstream tasks once. The settings are JSON, which any process can read.
@lru_cache(maxsize=1)
def _opened(settings: str, out: Path) -> Study:
    return Study(StudyConfig.model_validate_json(settings), out)


@lru_cache
def _transfer(settings: str, out: Path, name: str) -> Transfer:
    study = _opened(settings, out)
    return Transfer(name, study.config.tasks[name], study.config, study.store, study.device)


def _train(settings: str, out: Path, network: str, variant: Variant, seed: int, say: Say) -> None:
    _opened(settings, out).cell(network, variant, seed, lambda text: say(f"{network} on {variant}: {text}"))


def _tune(
    settings: str, out: Path, name: str, network: str, seed: int, weights: Path | None, say: Say
) -> dict[str, float]:
    return _transfer(settings, out, name).figures(network, seed, weights, say)


def run_obfuscation(
    config: StudyConfig, out: Path, progress: Progress | None = None, *, jobs: int = 1, cluster: str | None = None
) -> StudyRun:
    """Run or resume a study; all figures are also in `out/study.json`.

    So many jobs train networks at the same time: processes, or workers of a Ray cluster, which need the same paths.
    """
    start, run = time.monotonic(), Run(out, jobs=jobs, cluster=cluster, progress=progress)
    for network in config.networks:
        check_network(network)
        config.weights_of(network)
    run.say("reading annotations")
    here = config.model_dump_json(), out.resolve()
    _opened.cache_clear()  # files may have changed since another run in this process
    _transfer.cache_clear()
    study = _opened(*here)
    # Seeds outermost: an interrupted study has whole pairs of few seeds, not all seeds of one variant.
    wanted = [(n, v, s) for s in config.seeds for n in config.networks for v in config.train_on]
    begun = [
        (name, network, pretrained, seed)
        for seed in config.seeds
        for name, task in config.tasks.items()
        for network in task.networks or config.networks
        for pretrained in task.pretrained
    ]
    run.total = len(wanted) + len(begun)
    run.results([Task(f"{n} on {v}, seed {s}", None, _train, (*here, n, v, s)) for n, v, s in wanted])
    run.check()
    cells = [study.cell(*one, run.say) for one in wanted]  # from the store, as another process may have trained them
    found = {
        "faces": faces(study.whole, config),
        "grid": grid_rows(cells),
        **by_category(cells, study.judged),
        "transfer": _transferred(begun, cells, run, here),
    }
    write_json(out / "study.json", found)
    return StudyRun(_results(study, start), found, study_tables(found), lost_images(cells, study))


def _transferred(
    begun: Sequence[tuple[str, str, str, int]], cells: Sequence[Cell], run: Run, here: tuple[str, Path]
) -> dict[str, list[Row]]:
    """By task, a row for each network, pretraining and metric."""
    place, tasks = {(cell.network, cell.variant, cell.seed): cell.path for cell in cells}, []
    for name, network, pretrained, seed in begun:
        title = f"{network} for {name}, begun {pretrained}, seed {seed}"
        weights = place.get((network, pretrained, seed))
        tasks.append(Task(title, None, _tune, (*here, name, network, seed, weights)))
    made = run.results(tasks)
    run.check()
    values = defaultdict[tuple[str, str, str, str], list[float]](list)
    for (name, network, pretrained, _), figures in zip(begun, made, strict=True):
        for metric, value in figures.items():
            values[name, network, pretrained, metric].append(value)
    out: dict[str, list[Row]] = {name: [] for name in _opened(*here).config.transfer}
    for (name, network, pretrained, metric), some in values.items():
        row = {"network": network, "pretrained": pretrained, "metric": metric, **spread(some)}
        out[name].append({**row, "evaluated": len(_transfer(*here, name).judged.targets)})
    return out


def faces(scenes: Scenes, config: StudyConfig) -> Row:
    """Where faces are: "classes" and "supercategories" (Table 2), "images" by their number of faces (Figure 2)."""

    def row(labels: Sequence[int]) -> Row:
        found = counts[np.isin(of, labels)]
        return {"images": len(found), "with_faces": float((found > 0).mean()), "faces": int(found.sum())}

    counts, of = scenes.counts, scenes.labels
    groups = scenes.below(config.supercategories, config.hierarchy)
    return {
        "all": row(range(len(scenes.classes))),
        "classes": {title: row([label]) for label, title in enumerate(scenes.classes)},
        "supercategories": {k: {"categories": len(some), **row(some)} if some else None for k, some in groups.items()},
        "images": {int(n): int(count) for n, count in zip(*np.unique(counts, return_counts=True), strict=True)},
    }


# -- what obfuscation costs --------------------------------------------------------------------------------------------

# Least shares of the five groups of categories in Figures 3 and 4. The text names 0 to 1 %, 4 % and 8 % of Figure 3.
EDGES = (0.0, 0.01, 0.02, 0.04, 0.08)

# The sides of a comparison: trained on one variant, evaluated on one.
Side = tuple[str, str]
CLEAR: Side = ("original", "original")
BLURRED: Side = ("blurred", "blurred")


def grid_rows(cells: Sequence[Cell]) -> list[Row]:
    """A row for each network, training and evaluation variant: each metric with its standard error over the seeds.

    "drop" is what was lost against training and evaluation on original images, paired by seed, where these are there.
    """
    found: dict[tuple[str, Side], dict[int, Evaluation]] = {}
    for cell in cells:
        for variant, judged in cell.evaluations.items():
            found.setdefault((cell.network, (cell.variant, variant)), {})[cell.seed] = judged
    rows = []
    for (network, side), some in found.items():
        row: Row = {"network": network, "train": side[0], "evaluate": side[1], "drop": {}}
        base = found.get((network, CLEAR)) if side != CLEAR else None
        for name in METRICS:
            known = {seed: float(np.nanmean(judged[name])) for seed, judged in sorted(some.items()) if name in judged}
            row[name] = spread([*known.values()]) if known else None
            if base and known:
                row["drop"][name] = spread([float(np.nanmean(base[seed][name])) - mean for seed, mean in known.items()])
        rows.append(row)
    return rows


def by_category(cells: Sequence[Cell], judged: Scenes) -> Row:
    """What blurring costs each category, mean over the networks; empty where nothing was blurred or left original.

    Returns:
        "correlations" of a category's drop with the "area" that faces cover of its images and with what they cover of
        its "object", "groups" of categories by these (Figures 3 and 4), "pairs" of categories (Table 4), and all.
    """
    found: Row = {"correlations": {}, "groups": {}, "pairs": [], "categories": []}
    clear, blurred = (category_scores(cells, side, judged) for side in (CLEAR, BLURRED))
    if not (clear and blurred):
        return found
    lack = {metric: (clear[metric] - blurred[metric]).mean(0) for metric in clear}
    shares = {name: by_label(some, judged) for name, some in measure_areas(judged).items()}
    for name, share in shares.items():
        found["correlations"][name] = {metric: correlation(share, lack[metric]) for metric in lack}
        found["groups"][name] = area_groups(share, lack)

    def row(label: int) -> Row:
        known = [metric for metric, some in clear.items() if np.isfinite(some[:, label]).all()]
        figures = {metric: [spread(side[metric][:, label]) for side in (clear, blurred)] for metric in known}
        covered = {name: float(share[label]) for name, share in shares.items() if np.isfinite(share[label])}
        return {"category": judged.classes[label], **covered, **figures}

    found["pairs"] = [row(judged.classes.index(name)) for name in PUBLISHED["pairs"] if name in judged.classes]
    return found | {"categories": [row(label) for label in np.unique(judged.labels).tolist()]}


def measure_areas(scenes: Scenes) -> dict[str, NDArray[np.float64]]:
    """Shares [N] of the image's "area", and of its "object" boxes' (mean; NaN: unknown) that face boxes cover."""
    area, objects = np.zeros(len(scenes)), np.full(len(scenes), np.nan)
    for row, scene in enumerate(scenes.items):
        if len(scene.boxes):
            area[row] = covered_share(scene.boxes, (0, 0, *scene.load().shape[1::-1]))
        if len(scene.objects):
            objects[row] = np.mean([covered_share(scene.boxes, box) for box in scene.objects])
    return {"area": area} | ({"object": objects} if np.isfinite(objects).any() else {})


def category_scores(cells: Sequence[Cell], side: Side, scenes: Scenes) -> dict[str, NDArray[np.float64]]:
    """By metric, what each category scored with each seed [S,C], mean over the networks (section 4)."""
    train, evaluate = side
    mine = [(cell.seed, cell.evaluations.get(evaluate, {})) for cell in cells if cell.variant == train]
    out = {}
    for metric in METRICS:
        found: dict[int, list[NDArray[np.float64]]] = {}
        for seed, judged in mine:
            if metric in judged:
                values = judged[metric] if metric == "ap" else by_label(judged[metric], scenes)
                found.setdefault(seed, []).append(values)
        if found:
            out[metric] = np.array([np.mean(found[seed], 0) for seed in sorted(found)])
    return out


def correlation(shares: NDArray[np.float64], drop: NDArray[np.float64]) -> Row | None:
    """Pearson's r of shares and drops of categories [C] and its "p"; None where one does not vary but by rounding."""
    from scipy.stats import pearsonr

    known = np.isfinite(shares) & np.isfinite(drop)
    x, y = shares[known], drop[known]
    if len(x) < 2 or any(np.ptp(v) <= 1e-12 * max(1.0, np.abs(v).max()) for v in (x, y)):
        return None
    found = pearsonr(x, y)
    return {"r": float(found.statistic), "p": float(found.pvalue), "n": len(x)}


def area_groups(shares: NDArray[np.float64], drop: dict[str, NDArray[np.float64]]) -> list[Row]:
    """A row for each group of categories of `EDGES`: "from", "to" of its shares, "categories", mean drops (or None)."""
    rows = []
    for low, high in pairwise((*EDGES, 1.0)):
        mine = (shares >= low) & ((shares < high) | (high == 1.0))
        known = {metric: values[mine & np.isfinite(values)] for metric, values in drop.items()}
        means = {metric: float(some.mean()) if len(some) else None for metric, some in known.items()}
        rows.append({"from": low, "to": high, "categories": int(mine.sum()), **means})
    return rows


def _results(study: Study, start: float) -> Results:
    config, whole, judged = study.config, study.whole, study.judged
    classes, faced = len(whole.classes), {scene.label for scene in whole.items if len(scene.boxes)}
    few = classes < _FEW_CLASSES
    holds = {
        "seeds": len(config.seeds) > 1,
        "one seed": len(config.seeds) == 1,
        "mark": len(faced) < classes and few,
        "few classes": few,
        "epochs": 0 < config.epochs < _FULL_EPOCHS,
        "precision": config.precision != "float32",
        "not ImageNet": classes != 1000,
        "transfer": config.tasks,
    }
    values = {
        "seeds": len(config.seeds),
        "images": len(judged),
        "point": 100 / len(judged),
        "classes": classes,
        "faced": ", ".join(whole.classes[label] for label in sorted(faced)),
    }
    facts = {"classes": list(whole.classes), "images": len(whole), "fingerprint": whole.fingerprint}
    facts |= {"train": len(study.train), "evaluation": len(judged)}
    settings = config.model_dump() | {"transfer": list(config.tasks)}
    provenance = origin(settings, time.monotonic() - start) | {"set": facts}
    caveats = notes("study", holds, config=config, **values)
    return Results("Face obfuscation: what it costs a classifier", caveats, provenance)


# -- tables, figures and the page --------------------------------------------------------------------------------------

_NAMES = {"top1": "Top-1 accuracy", "top5": "Top-5 accuracy", "ap": "Average precision"}
# Where the paper has a downstream task.
_PLACES = {"cifar10": " (Table 5)", "sun": " (Table 6)", "celeba": " (Table 7)", "voc": " (section 5)"}
# Sides of the tables of networks, trained on and evaluated on, the first one without obfuscation.
_ALIKE = {variant: (variant, variant) for variant in ("original", "blurred", "overlaid")}
_SHIFTED = {variant: ("original", variant) for variant in ("original", "red", "green", "blue", "mean", "blurred")}
_DEPLOYED = {variant: (variant, "original") for variant in ("original", "blurred", "overlaid")}
_PARTS = slice(3), slice(0, 4, 3)  # Of a printed row: Table 3, Table 9


def per_cent(*figures: Row, sign: str = "") -> str:
    """{"mean", "sem"} as shares → "69.8 ± 0.2"; of several figures the mean, without an error."""
    mean, error = np.mean([figure["mean"] for figure in figures]), figures[0]["sem"] if len(figures) == 1 else None
    return f"{100 * mean:{sign}.1f}" + ("" if error is None else f" ± {100 * error:.1f}")


def study_tables(study: Row) -> list[Row]:
    """Tables 2 to 9 and what Figures 2 to 4 show, {"title", "note", "rows", "plots"}, the published numbers beside."""
    note = "Per cent; ± standard error over seeds. Paper: as printed, in the same order."
    metrics = [name for name in METRICS[:2] if any(row[name] for row in study["grid"])]
    tables = _faces(study["faces"])
    for metric in metrics:
        alike, deployed = ({k: v[metric][part] for k, v in PUBLISHED["accuracy"].items()} for part in _PARTS)
        rows = _networks(study, metric, _ALIKE, alike)
        tables.append(_table(f"{_NAMES[metric]}, trained and evaluated alike (Table 3)", note, rows))
        rows = _networks(study, metric, _DEPLOYED, deployed)
        tables.append(_table(f"{_NAMES[metric]} on original images (Table 9)", note, rows))
    rows = _networks(study, metrics[-1], _SHIFTED, PUBLISHED["shifted"] if metrics[-1] == "top5" else {})
    tables.append(_table(f"{_NAMES[metrics[-1]]} after training on original images (Table 8)", note, rows))
    tables += _areas(study)
    beside = "Original, blurred and their difference: mean over networks, per cent, ± standard error over seeds."
    tables.append(_table("Pairs of categories (Table 4)", beside, _pairs(study["pairs"])))
    for name, some in study["transfer"].items():
        tables.append(_table(f"Transfer to {name}{_PLACES.get(name, '')}", f"Fine-tuned. {note}", _tuned(name, some)))
    return [table for table in tables if table["rows"]]


def _table(title: str, note: str, rows: Iterable[Row], *plots: str) -> Row:
    return {"title": title, "note": note, "rows": filled(rows), "plots": list(plots)}


def _printed(values: Sequence[float | None] | None) -> str:
    return "–" if values is None else " / ".join("–" if value is None else f"{value:.1f}" for value in values)


def _faces(found: Row) -> list[Row]:
    def row(name: str, title: str, one: Row | None) -> Row:
        here = {} if one is None else {**one, "with faces (%)": f"{100 * one['with_faces']:.2f}"}
        columns = ("categories", "images", "with faces (%)", "faces")
        return {name: title} | {key: here[key] for key in columns if key in here}

    classes = sorted(found["classes"].items(), key=lambda item: (-item[1]["with_faces"], item[0]))
    groups = [
        row("supercategory", title, one) | {"paper": " / ".join(map(str, PUBLISHED["supercategories"].get(title, "–")))}
        for title, one in found["supercategories"].items()
    ]
    images = found["images"]
    few, faced = (sum(count for number, count in images.items() if 0 < number < most) for most in (5, 1e9))
    half, quarter = (sum(one["with_faces"] > share for _, one in classes) for share in (0.5, 0.25))
    note = (
        f"{100 * found['all']['with_faces']:.1f} % of the images have faces (the paper: 17 %), in {half} categories "
        f"more than half (106), in {quarter} more than a quarter (216). Of those with faces "
        f"{100 * few / max(1, faced):.1f} % have fewer than 5 (90.1 %), and {max(images)} is the most (100)."
    )
    every = [row("category", *one) for one in (*classes, ("all", found["all"]))]
    return [
        _table("Images with faces, by category (Figure 2)", note, every, "figure-2"),
        _table("Images with faces, by supercategory (Table 2)", "A dash: no category is below it.", groups),
    ]


def _networks(
    study: Row, metric: str, sides: Mapping[str, Side], printed: Mapping[str, Sequence[float]]
) -> Iterable[Row]:
    """A row for each network that has more than the first side: the metric there, and what was lost."""
    found: dict[str, dict[Side, Row]] = {}
    for row in study["grid"]:
        found.setdefault(row["network"], {})[row["train"], row["evaluate"]] = row
    for network, mine in [*((name, [one]) for name, one in found.items()), ("average", [*found.values()])]:
        cells: Row = {"network": network}
        for title, side in sides.items():
            if some := [one[side] for one in mine if side in one]:
                cells[title] = per_cent(*(one[metric] for one in some))
                if metric in some[0]["drop"]:
                    cells[f"Δ {title}"] = per_cent(*(one["drop"][metric] for one in some), sign="+")
        if len(cells) > 2:
            yield cells | {"paper": _printed(printed.get(network))}


def _areas(study: Row) -> Iterable[Row]:
    parts = zip(PUBLISHED["correlations"].items(), (("area", 3), ("object", 4)), strict=True)
    for (title, printed), (name, number) in parts:
        rows = []
        for group in study["groups"].get(name, []):
            row: Row = {"covered (%)": _range(group), "categories": group["categories"]}
            for metric in METRICS[:2]:
                row[f"Δ {metric}"] = "–" if group.get(metric) is None else f"{100 * group[metric]:+.2f}"
                if (paper := PUBLISHED["groups"].get(name, {}).get(metric, {}).get(group["from"])) is not None:
                    row[f"Δ {metric}, paper"] = f"{paper:+.2f}"
            rows.append(row)
        note = "Mean drop by blurring, percentage points, of categories by what faces cover on average."
        for metric, value in printed.items():
            found = study["correlations"].get(name, {}).get(metric)
            here = f"{found['r']:.2f} (p = {found['p']:.2g}, {found['n']} categories)" if found else "not measured"
            note += f" r of {metric}: {here}; paper {value:.2f}."
        yield _table(f"Drop of categories by {title}", note, rows, f"figure-{number}")


def _range(group: Row) -> str:
    return f"{100 * group['from']:g}–{100 * group['to']:g}" if group["to"] < 1 else f"≥ {100 * group['from']:g}"


def _pairs(found: list[Row]) -> Iterable[Row]:
    for one in found:
        printed = PUBLISHED["pairs"][one["category"]]
        row: Row = {"category": f"{one['category']} {printed['name']}"}
        for metric in [metric for metric in METRICS if metric in one]:
            before, after = one[metric]
            drop = f"{100 * (before['mean'] - after['mean']):+.1f}"
            row[_NAMES[metric]] = f"{per_cent(before)} / {per_cent(after)} / {drop}"
            row[f"{metric}, paper"] = _printed(printed[metric])
        yield row


def _tuned(name: str, found: list[Row]) -> Iterable[Row]:
    printed = PUBLISHED["transfer"].get(name, {})
    rows: dict[tuple[str, str], Row] = {(network, metric): {} for metric, some in printed.items() for network in some}
    for one in found:
        rows.setdefault((one["network"], one["metric"]), {})[one["pretrained"]] = per_cent(one)
    for (network, metric), values in rows.items():
        here = {f"begun {begun}": values.get(begun, "–") for begun in get_args(Begun)}
        yield {"network": network, "metric": metric, **here, "paper": _printed(printed.get(metric, {}).get(network))}


@dataclass(frozen=True)
class StudyRun:
    """What a study found: caveats and provenance, everything that is in study.json, tables, images of Figure 5."""

    results: Results
    study: Row
    tables: list[Row]
    looks: list[tuple[str, Gaze, Gaze]]


def write_study(run: StudyRun, out: Path) -> list[Path]:
    """The page with its figures, tables as CSV, and the results as JSON; returns the files, the page first."""
    plots = {stem: (caption, (9, 3.2), partial(draw, run)) for stem, (caption, draw) in _FIGURES.items()}
    tables = [*run.tables, _table("Grad-CAM (Figure 5)", _SHOWN, (), "figure-5")] if run.looks else run.tables
    return write_tables(run.results, out, tables, plots)


def _draw_faces(run: StudyRun, canvas: Any) -> None:
    left, right = canvas.subplots(1, 2)
    shares = sorted((100 * one["with_faces"] for one in run.study["faces"]["classes"].values()), reverse=True)
    left.bar(range(1, len(shares) + 1), shares, width=1.0)
    left.set(xlabel="categories, in this order", ylabel="images with faces (%)", ylim=(0, 100))
    images = {number: count for number, count in run.study["faces"]["images"].items() if number}
    right.bar(list(images), list(images.values()), width=1.0, log=max(images.values()) > 100)
    right.set(xlabel="faces in an image", ylabel="images, of those with faces")


def _draw_groups(name: str, label: str, run: StudyRun, canvas: Any) -> bool:
    groups = [group for group in run.study["groups"].get(name, []) if group["categories"]]
    metrics = [m for m in METRICS[:2] if groups and all(group.get(m) is not None for group in groups)]
    for axes, metric in zip(np.atleast_1d(canvas.subplots(1, max(1, len(metrics)))), metrics, strict=False):
        axes.bar([f"{_range(g)}\n{g['categories']} cat." for g in groups], [100 * g[metric] for g in groups])
        axes.axhline(0, color="0.3", linewidth=0.8)
        axes.set(xlabel=f"area of faces in the {label} (%)", ylabel=f"drop of {_NAMES[metric].lower()} (points)")
    return bool(metrics)


def _draw_looks(run: StudyRun, canvas: Any) -> bool:
    if not run.looks:
        return False
    canvas.set_size_inches(9, 2.4 * len(run.looks))
    for row, (title, *looks) in zip(canvas.subplots(len(run.looks), 4, squeeze=False), run.looks, strict=True):
        for name, look, plain, hot in zip(("original", "blurred"), looks, row[::2], row[1::2], strict=True):
            edges = (-0.5, len(look.seen) - 0.5, len(look.seen) - 0.5, -0.5)
            for axes, text in ((plain, f"{title}, {name}"), (hot, f"called {look.called}")):
                axes.imshow(look.seen)
                axes.set_title(text, fontsize=8)
                axes.set_axis_off()
            hot.imshow(look.heat, "jet", alpha=0.45, vmin=0, vmax=1, extent=edges, interpolation="bilinear")
    return True


_SHOWN = (
    "Images with faces that the last network, trained and evaluated on original ones, classifies right, and wrong when "
    "trained and evaluated on blurred ones, of the categories that lose most. They show people: do not publish them."
)
# File → caption, and what draws it; False where there is nothing to draw.
_FIGURES: dict[str, tuple[str, Callable[[StudyRun, Any], bool | None]]] = {
    "figure-2": ("Images with faces by category, and faces by image (Figure 2)", _draw_faces),
    "figure-3": ("Drop of categories by blurred area (Figure 3)", partial(_draw_groups, "area", "image")),
    "figure-4": ("Drop of categories by object covered (Figure 4)", partial(_draw_groups, "object", "object's box")),
    "figure-5": ("Grad-CAM for the right category (Figure 5)", _draw_looks),
}
