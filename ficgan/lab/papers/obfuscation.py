"""Face obfuscation in ImageNet (Yang et al. 2022): the task study, its tables beside the published ones."""

from __future__ import annotations

import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ficgan.lab.papers.published import PUBLISHED_AVERAGES, PUBLISHED_CORRELATIONS
from ficgan.lab.results import Results
from ficgan.lab.study import StudyConfig, StudyResult, run_study
from ficgan.lab.study.tables import per_cent

__all__ = ["obfuscation_tables", "run_obfuscation"]


def run_obfuscation(
    config: StudyConfig, out: Path, progress: Callable[[str, float], None] | None = None
) -> tuple[Results, list[dict[str, Any]]]:
    """Run the study, or go on with it.

    Args:
        config: of the study; its defaults are the paper's recipe.
        out: folder for its cells and `study.json`.
        progress: called as progress(what, share done).

    Returns:
        Results for a page, without sets and methods, as no face is attacked here; and the tables.
    """
    from ficgan import __version__

    study = run_study(config, out, progress)
    settings = {**study.config, "images": Path(config.images).name, "annotations": Path(config.annotations).name}
    for key in ("objects", "weights"):
        settings[key] = None if settings.get(key) is None else Path(settings[key]).name
    settings["transfer"] = [task.name for task in config.transfer]
    provenance = {
        "ficgan": __version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "settings": settings,
        "set": study.set,
        "seconds": study.seconds,
    }
    results = Results("Face obfuscation: what it costs a classifier", list(study.caveats), provenance)
    return results, obfuscation_tables(study)


def obfuscation_tables(study: StudyResult) -> list[dict[str, Any]]:
    """The study's tables, then its averages and correlations with the published ones beside them.

    Args:
        study: finished.
    """
    tables = [
        {"title": one["title"], "note": "Per cent; ± standard error over seeds.", "rows": _filled(one)}
        for one in study.tables
        if one["rows"]
    ]
    return [*tables, _averages(study), _correlations(study), *_transfer(study)]


def _filled(table: dict[str, Any]) -> list[dict[str, Any]]:
    return [{column: row.get(column, "–") for column in table["columns"]} for row in table["rows"]]


def _averages(study: StudyResult) -> dict[str, Any]:
    """Mean over networks of each drop beside the paper's average row."""
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
    return {"title": "Average drops (Tables 3, 8 and 9)", "note": note, "rows": rows}


def _correlations(study: StudyResult) -> dict[str, Any]:
    rows = []
    for title, printed in PUBLISHED_CORRELATIONS.items():
        area = "area" if title.startswith("blurred area") else "object"
        for metric, value in printed.items():
            rows.append(
                {"r over classes": title, "of": metric, "here": _r(study, area, metric), "paper": f"{value:.2f}"}
            )
    note = "Pearson's r between what faces cover of a class and the drop of its accuracy, blurred throughout."
    return {"title": "Drop against area (Figures 3 and 4)", "note": note, "rows": rows}


def _r(study: StudyResult, area: str, metric: str) -> str:
    for one in study.correlations:
        if one["kind"] == "matched" and one["after"]["train"] == "blurred" and one[area] is not None:
            found = one[area]["classes"][metric]
            return "–" if found is None or found["r"] is None else f"{found['r']:.2f}"
    return "–"


def _transfer(study: StudyResult) -> list[dict[str, Any]]:
    tables = []
    for name, rows in study.transfer.items():
        shown = [
            {"network": row["network"], "pretrained": row["pretrained"], row["metric"]: per_cent(row)} for row in rows
        ]
        note = "Fine-tuned; per cent, ± standard error over seeds (sections 5 and E)."
        tables.append({"title": f"Transfer to {name}", "note": note, "rows": shown})
    return tables
