"""The report: a page that needs nothing but itself, plots and tables beside it, the results as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ficgan.errors import InputError, UsageError
from ficgan.lab.pages import data_url, write_file
from ficgan.lab.report import tables
from ficgan.lab.report.plots import draw_all
from ficgan.lab.report.tables import IDENTIFIES, Row, controls, figure, headlines, spelled
from ficgan.lab.results import Figure, Results

TABLES = {
    "ranking": tables.ranking,
    "risks": tables.risks,
    "privacy": tables.privacy,
    "utility": tables.utility,
    "groups": tables.groups,
    "given-back": tables.given_back,
}
COLUMNS = 8  # Of a table of attackers: so many fit a laptop's width.


def write_report(
    results: Results, out: Path, *, pictures: Sequence[Path] = (), published: Sequence[dict[str, Any]] = ()
) -> list[Path]:
    """Write the page, its plots, tables and JSON; returns the files, `report.html` first.

    `published` tables are {"title", "rows", "note"}.
    """
    shown = sheets(results, pictures or [out])
    plots = draw_all(results, out / "figures")
    rows = {name: make(results) for name, make in TABLES.items()}
    heads = headlines(results)
    ranking = {name: tables.ranking_to_read([one for one in heads if one.set == name]) for name in results.sets}
    page = render(
        "page.html.j2",
        results=results,
        ranking=ranking,
        risks=_by_set(rows["risks"]),
        matrix=_matrix(results),
        given_back=rows["given-back"],
        utility=_by_metric(rows["utility"]),
        groups=_group_tables(results),
        controls=_controls(results),
        data=_sets(results),
        methods=_methods(results),
        plots=inlined(plots),
        sheets=shown,
        published=published,
        spelt=lambda value: "" if value is None else value,
        refused=[row for row in rows["privacy"] if row["value"] is None],
        kinds_known=any(head.within_kind for head in heads),
    )
    more = {"tables/ranking.md": tables.to_markdown(rows["ranking"])} if rows["ranking"] else {}
    return write_pages(out, page, results, rows, plots, more)


def write_pages(
    out: Path,
    page: str,
    results: Results,
    rows: Mapping[str, Sequence[Row]],
    plots: Mapping[str, Sequence[Path]],
    more: Mapping[str, str] | None = None,
) -> list[Path]:
    """Write page, results and tables; returns all files of a report with its plots, the page first."""
    texts = {"report.html": page, "report.json": results.to_json()}
    texts |= {f"tables/{name}.csv": tables.to_csv(some) for name, some in rows.items() if some}
    written = [write_file(out / name, text) for name, text in (texts | dict(more or {})).items()]
    return written + [path for both in plots.values() for path in both]


def render(template: str, **values: Any) -> str:
    """A page from a template of this folder; the values are escaped."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("ficgan.lab.report", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(template).render(**values)


def inlined(plots: Mapping[str, Sequence[Path]]) -> dict[str, str]:
    """Caption → the PNG of each plot as a data URL."""
    return {caption: data_url("image/png", paths[0].read_bytes()) for caption, paths in plots.items()}


def sheets(results: Results, folders: Sequence[Path]) -> dict[str, list[str]]:
    """Label → the results' pictures as data URLs."""
    out: dict[str, list[str]] = {}
    for label, names in results.pictures.items():
        for name in names:
            found = next((folder / name for folder in folders if (folder / name).is_file()), None)
            if found is None:
                raise InputError(f"the picture {name} of {label} is not beside the results; run the evaluation again")
            out.setdefault(label, []).append(data_url("image/png", found.read_bytes()))
    return out


def merge(several: Sequence[Results]) -> Results:
    """Several evaluations as one, side by side; refused where one name means different sets or methods."""
    first, *others = several
    if not others:
        return first
    whole = Results(first.title, list(first.caveats), {"parts": [part.provenance for part in several]})
    for part in several:
        for mine, theirs, what in ((whole.sets, part.sets, "set"), (whole.methods, part.methods, "method")):
            for name, facts in theirs.items():
                if mine.setdefault(name, facts) != facts:
                    raise UsageError(f"two evaluations mean different things by the {what} {name!r}; rename one")
        known = {(t.set, t.method, t.scenario, t.recogniser, t.attacker): t for t in whole.trials}
        for trial in part.trials:
            twin = known.get((trial.set, trial.method, trial.scenario, trial.recogniser, trial.attacker))
            if twin is None:
                whole.trials.append(trial)
            elif twin.figures != trial.figures:
                raise UsageError(f"two evaluations differ on {trial.method}, {trial.scenario}; rename one set")
        used = {(use.set, use.method) for use in whole.utilities}
        whole.utilities += [use for use in part.utilities if (use.set, use.method) not in used]
        whole.caveats += [caveat for caveat in part.caveats if caveat not in whole.caveats]
        for label, shown in part.pictures.items():
            whole.pictures.setdefault(label, []).extend(shown)
    return whole


def _by_set(rows: Iterable[Row]) -> dict[str, list[Row]]:
    out: dict[str, list[Row]] = {}
    for row in rows:
        out.setdefault(row["set"], []).append(row)
    return out


def _matrix(results: Results) -> dict[str, dict[str, Any]]:
    out: dict[str, dict[str, Any]] = {}
    for name in results.sets:
        trials = [trial for trial in results.trials if trial.set == name and trial.scenario != "attribute-inference"]
        rows: dict[str, dict[Any, str]] = {}
        columns, counts = dict[tuple[str, str, str], None](), set[int]()
        for trial in trials:
            found = figure(trial.figures, IDENTIFIES)
            if found is not None and found.value is not None:
                cell = (trial.scenario, trial.attacker, trial.recogniser)
                columns[cell] = None
                counts.add(found.n)
                rows.setdefault(trial.method, {})[cell] = spelled(found, interval=False)
        parts = [list(columns)[at : at + COLUMNS] for at in range(0, len(columns), COLUMNS)]
        n = " to ".join(str(count) for count in sorted({min(counts), max(counts)})) if counts else ""
        out[name] = {"parts": parts, "rows": rows, "n": n}
    return out


def _sets(results: Results) -> list[Row]:
    rows = []
    for name, facts in results.sets.items():
        split = (str(facts["split"]["parts"][part]["people"]) for part in ("background", "attacker", "probe"))
        rows.append(
            {
                "set": name,
                "images": facts["faces"],
                "people": facts["people"],
                "not acquired in the source": len(facts["failures_to_acquire"]),
                "split (people: background / attacker / tested)": " / ".join(split),
                "crop, px": facts["size"],
                "context": facts["context"],
                "terms": facts["licence"] or "not stated",
                "pixels, sha256": f"{facts['pixels'][:16]}…",
            }
        )
    return rows


def _controls(results: Results) -> list[Row]:
    return [
        {
            "set": control.set,
            "judge": control.judge,
            "control": control.name,
            "rank-1": f"{control.value:.3f}",
            "must be at": control.expected,
            "holds": control.holds,
        }
        for control in controls(results)
    ]


def _methods(results: Results) -> list[Row]:
    names = ("family", "source", "keyed", "stochastic", "domain")
    return [
        {"method": label, **{name: facts[name] for name in names}, "settings": json.dumps(facts["settings"])}
        for label, facts in results.methods.items()
    ]


def _by_metric(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Tables that fit a laptop's width: a row for each metric, a column for each of some methods."""
    by_set: dict[str, dict[str, dict[str, str]]] = {}  # set → method → metric → text
    for row in rows:
        value = row["value"]
        text = row["note"] or "refused" if value is None else f"{value:.3g}"
        if value is not None and row["low"] is not None:
            text += f" [{row['low']:.3g}, {row['high']:.3g}]"
        by_set.setdefault(row["set"], {}).setdefault(row["method"], {})[row["metric"]] = text
    out = []
    for name, methods in by_set.items():
        metrics = list(dict.fromkeys(metric for cells in methods.values() for metric in cells))
        for at in range(0, len(methods), COLUMNS):
            some = {method: methods[method] for method in list(methods)[at : at + COLUMNS]}
            table = [{"metric": m} | {method: cells.get(m, "") for method, cells in some.items()} for m in metrics]
            out.append({"title": name, "rows": table})
    return out


def _group_tables(results: Results) -> list[dict[str, Any]]:
    cells: dict[str, dict[str, dict[str, str]]] = {}

    def add(name: str, what: str, method: str, group: str, found: Figure | None) -> None:
        column, _, value = group.partition("=")
        cells.setdefault(f"{name}, by {column}: {what}", {}).setdefault(method, {})[value] = spelled(found)

    for head in headlines(results):
        for group, figures in () if head.trial is None else head.trial.groups.items():
            add(head.set, "rank-1 under the strongest attacker", head.method, group, figure(figures, IDENTIFIES))
    for use in results.utilities:
        for group, figures in use.groups.items():
            add(use.set, "share of images in which a face is detected", use.method, group, figure(figures, "detected"))
    tables = []
    for title, by_method in cells.items():
        values = sorted({value for row in by_method.values() for value in row})
        rows = [{"method": name, **{v: row.get(v, "") for v in values}} for name, row in by_method.items()]
        tables.append({"title": title, "rows": rows})
    return tables
