"""A page that needs nothing but itself, tables beside it as CSV, the results as JSON."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from ficgan.errors import InputError, UsageError
from ficgan.images import atomic_write
from ficgan.lab.report import tables
from ficgan.lab.report.account import SMALL, read_account
from ficgan.lab.report.headline import controls, figure, headlines
from ficgan.lab.report.plots import draw_all
from ficgan.lab.results import Figure, Results

__all__ = ["merge", "write_report"]

TABLES = {
    "ranking": tables.ranking, "risks": tables.risks, "privacy": tables.privacy, "utility": tables.utility,
    "groups": tables.groups, "given-back": tables.given_back, "retrieved": tables.retrieved,
}  # fmt: skip


def write_report(
    results: Results,
    out: Path,
    *,
    sidecars: Path | None = None,
    pictures: Sequence[Path] = (),
    published: Sequence[dict[str, Any]] = (),
) -> list[Path]:
    """Write `report.html`, `figures/*.png|svg`, `tables/*.csv`, `tables/ranking.md` and `report.json`.

    Args:
        results: of one or more evaluations.
        out: folder; files of these names are replaced.
        sidecars: folder of side-cars of `ficgan-deid`, whose account the page gives, too.
        pictures: folders in which the results' pictures lie; none: `out`.
        published: tables of published numbers to stand beside ours: {"title", "rows", "note"}.

    Returns:
        The files written, the page first.

    Raises:
        InputError: no side-car where there should be some.
    """
    from jinja2 import Environment, StrictUndefined

    out.mkdir(parents=True, exist_ok=True)
    account = None if sidecars is None else read_account(sidecars)
    plots = draw_all(results, out / "figures")
    rows = {name: make(results) for name, make in TABLES.items()}
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    template = environment.from_string(files(__package__).joinpath("page.html.j2").read_text(encoding="utf-8"))
    text = template.render(
        results=results,
        ranking=tables.one_per(rows["ranking"], "set"),
        risks=tables.one_per(rows["risks"], "set"),
        matrix=_matrix(results),
        given_back=rows["given-back"],
        retrieved=rows["retrieved"],
        utility=_wide(rows["utility"], ("set", "method"), "metric"),
        groups=_group_tables(results),
        controls=controls(results),
        plots={caption: _inline(path) for caption, path in plots.items()},
        sheets=_sheets(results, pictures or [out]),
        account=account,
        small=SMALL,
        published=published,
        refused=[row for row in rows["privacy"] if row["value"] is None],
    )
    written = [_write(out / "report.html", text), _write(out / "report.json", results.to_json())]
    (out / "tables").mkdir(exist_ok=True)
    written += [_write(out / "tables" / f"{name}.csv", tables.to_csv(some)) for name, some in rows.items() if some]
    if rows["ranking"]:
        written.append(_write(out / "tables" / "ranking.md", tables.to_markdown(rows["ranking"])))
    for path in plots.values():
        written += [path, path.with_suffix(".svg")]
    return written


def merge(several: Sequence[Results]) -> Results:
    """Several evaluations as one, side by side.

    Raises:
        UsageError: one name for different sets or different methods.
    """
    first, *others = several
    whole = Results(first.title, list(first.caveats), {"parts": [one.provenance for one in several]})
    if not others:
        return first
    for one in several:
        for mine, theirs, what in ((whole.sets, one.sets, "set"), (whole.methods, one.methods, "method")):
            for name, facts in theirs.items():
                if mine.setdefault(name, facts) != facts:
                    raise UsageError(f"two evaluations mean different things by the {what} {name!r}; label one anew")
        known = {(t.set, t.method, t.scenario, t.recogniser, t.attacker): t for t in whole.trials}
        for trial in one.trials:
            twin = known.get((trial.set, trial.method, trial.scenario, trial.recogniser, trial.attacker))
            if twin is None:
                whole.trials.append(trial)
            elif twin.figures != trial.figures:
                raise UsageError(f"two evaluations differ on {trial.method}, {trial.scenario}; name one set otherwise")
        used = {(use.set, use.method) for use in whole.utilities}
        whole.utilities += [use for use in one.utilities if (use.set, use.method) not in used]
        whole.caveats += [said for said in one.caveats if said not in whole.caveats]
        for label, shown in one.pictures.items():
            whole.pictures.setdefault(label, []).extend(shown)
    return whole


def _matrix(results: Results) -> dict[str, dict[str, Any]]:
    """Per set: columns (scenario, attacker, judge) and rows of rank-1 by method."""
    out: dict[str, dict[str, Any]] = {}
    for name in results.sets:
        trials = [trial for trial in results.trials if trial.set == name and trial.scenario != "attribute-inference"]
        columns = list(dict.fromkeys((t.scenario, t.attacker) for t in trials if t.recogniser))
        judges = list(dict.fromkeys(t.recogniser for t in trials if t.recogniser))
        rows: dict[str, dict[Any, str]] = {}
        for trial in trials:
            found = next((one for one in trial.figures if one.metric == "rank-1"), None)
            if found is not None and found.value is not None:
                rows.setdefault(trial.method, {})[(trial.scenario, trial.attacker, trial.recogniser)] = tables.spelled(
                    found, interval=False
                )
        out[name] = {"columns": columns, "judges": judges, "rows": rows}
    return out


def _wide(rows: Sequence[tables.Row], keys: Sequence[str], over: str) -> dict[str, Any]:
    """One row per keys, one column per value of `over`."""
    columns = list(dict.fromkeys(row[over] for row in rows))
    out: dict[tuple[Any, ...], dict[str, str]] = {}
    for row in rows:
        value = row["value"]
        text = row["note"] or "refused" if value is None else f"{value:.3g}"
        if value is not None and row["low"] is not None:
            text += f" [{row['low']:.3g}, {row['high']:.3g}]"
        out.setdefault(tuple(row[key] for key in keys), {})[row[over]] = text
    return {"keys": list(keys), "columns": columns, "rows": out}


def _group_tables(results: Results) -> list[dict[str, Any]]:
    """By set and column ("gender", …), a row per method: rank-1 under its strongest attacker, and what is detected."""
    out: dict[tuple[str, str, str], dict[str, Any]] = {}

    def add(name: str, what: str, method: str, group: str, one: Figure | None) -> None:
        column, _, value = group.partition("=")
        table = out.setdefault(
            (name, column, what), {"set": name, "column": column, "what": what, "values": [], "rows": {}}
        )
        if value not in table["values"]:
            table["values"] = sorted([*table["values"], value])
        table["rows"].setdefault(method, {})[value] = tables.spelled(one)

    for head in headlines(results):
        for group, figures in () if head.trial is None else head.trial.groups.items():
            add(head.set, "rank-1 under the strongest attacker", head.method, group, figure(figures, "rank-1"))
    for use in results.utilities:
        for group, figures in use.groups.items():
            add(use.set, "share of images in which a face is detected", use.method, group, figure(figures, "detected"))
    return list(out.values())


def _inline(path: Path) -> str:
    return "data:image/png;base64," + base64.b64encode(path.read_bytes()).decode()


def _sheets(results: Results, folders: Sequence[Path]) -> dict[str, list[str]]:
    out: dict[str, list[str]] = {}
    for label, names in results.pictures.items():
        for name in names:
            found = next((folder / name for folder in folders if (folder / name).is_file()), None)
            if found is None:
                raise InputError(f"the picture {name} of {label} is not beside the results; run the evaluation again")
            out.setdefault(label, []).append(_inline(found))
    return out


def _write(path: Path, text: str) -> Path:
    with atomic_write(path, overwrite=True) as file:
        file.write(text.encode())
    return path
