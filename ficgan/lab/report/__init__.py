"""The report: a page that needs nothing but itself, plots and tables beside it, the results as JSON."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

from ficgan.lab.report import tables
from ficgan.lab.report.tables import IDENTIFIES, Headline, Row, attacker, controls, headlines, spelled
from ficgan.lab.results import Results, Trial, data_url, slug
from ficgan.lab.run import write_file

COLUMNS = 8  # Of a table of attackers: so many fit a laptop's width
LONG = 40  # Rows above which a table is folded
TRADED = ("attributes-balanced", "smile-r", "ssim")  # Of the trade-off plot: the first that was measured is drawn


def write_report(results: Results, out: Path, *, published: Sequence[dict[str, Any]] = ()) -> list[Path]:
    """Write the page, its plots, tables and JSON; returns the files, `report.html` first."""
    heads = headlines(results)
    plots = draw_all(results, heads, out / "figures")
    rows = {
        "ranking": tables.ranking(heads),
        "risks": tables.risks(results),
        **tables.every_figure(results),
        "given-back": tables.given_back(results),
    }
    page = render(
        "page.html.j2",
        results=results,
        ranking=_by_set(rows["ranking"]),
        risks=_by_set(rows["risks"]),
        matrix=_pivoted(_attacked_cells(results), "method"),
        given_back=rows["given-back"],
        utility=_pivoted(_utility_cells(results), "metric"),
        groups=_pivoted(_group_cells(heads), "method"),
        controls=[{**each._asdict(), "value": f"{each.value:.3f}"} for each in controls(results)],
        data=_sets(results),
        methods=_methods(results),
        plots=inlined(plots),
        published=published,
        spelt=lambda value: "" if value is None else value,
        refused=[row for row in rows["privacy"] if row["value"] is None],
        kinds_known=any(head.within_kind for head in heads),
    )
    return write_pages(out, page, results, rows, plots)


def write_pages(
    out: Path, page: str, results: Results, rows: Mapping[str, Sequence[Row]], plots: Mapping[str, Sequence[Path]]
) -> list[Path]:
    """Write page, results and tables; returns all files of a report with its plots, the page first."""
    texts = {"report.html": page, "report.json": results.to_json()}
    texts |= {f"tables/{name}.csv": tables.to_csv(some) for name, some in rows.items() if some}
    written = [write_file(out / name, text) for name, text in texts.items()]
    return written + [path for both in plots.values() for path in both]


Plots = Mapping[str, tuple[str, tuple[float, float], Callable[[Any], bool | None]]]  # File → caption, inches, drawing


def write_tables(results: Results, out: Path, tables: Sequence[Row], plots: Plots) -> list[Path]:
    """A page of tables {"title", "note", "rows", "plots" (their files)}, which are written, too; the page first."""
    drawn = {
        stem: {caption: files}
        for stem, (caption, size, draw) in plots.items()
        if (files := save_plot(out / "figures" / stem, draw, size))
    }
    page = render(
        "tables.html.j2",
        results=results,
        tables=tables,
        figures={stem: inlined(one) for stem, one in drawn.items()},
        long=LONG,
        spelt=lambda value: "" if value is None else f"{value:.3g}" if isinstance(value, float) else value,
    )
    rows = {slug(table["title"]): table["rows"] for table in tables}
    return write_pages(out, page, results, rows, {key: one for plot in drawn.values() for key, one in plot.items()})


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


def _by_set(rows: Iterable[Row]) -> dict[str, list[Row]]:
    return {name: list(some) for name, some in groupby(rows, key=itemgetter("set"))}


def _sets(results: Results) -> list[Row]:
    return [
        {
            "set": name,
            "images": facts["faces"],
            "people": facts["people"],
            "not acquired in the source": len(facts["failures_to_acquire"]),
            "people in background, attacker, test": ", ".join(
                str(facts["split"]["parts"][part]["people"]) for part in ("background", "attacker", "probe")
            ),
            "crop, px": facts["size"],
            "context": facts["context"],
            "terms": facts["licence"] or "not stated",
            "pixels, sha256": f"{facts['pixels'][:16]}…",
        }
        for name, facts in results.sets.items()
    ]


def _methods(results: Results) -> list[Row]:
    names = ("family", "source", "keyed", "stochastic", "domain")
    return [
        {"method": label, **{name: facts[name] for name in names}, "settings": json.dumps(facts["settings"])}
        for label, facts in results.methods.items()
    ]


Cell = tuple[str, str, str, str]  # Title of its table, row, column, text


def _pivoted(cells: Iterable[Cell], first: str) -> list[dict[str, Any]]:
    """Tables that fit a laptop's width; `first` heads the rows' names."""
    tables: dict[str, dict[str, dict[str, str]]] = {}
    for title, row, column, text in cells:
        tables.setdefault(title, {}).setdefault(row, {})[column] = text
    out = []
    for title, rows in tables.items():
        columns = list(dict.fromkeys(column for texts in rows.values() for column in texts))
        for at in range(0, len(columns), COLUMNS):
            some = columns[at : at + COLUMNS]
            shown = [{first: row, **{column: texts.get(column, "") for column in some}} for row, texts in rows.items()]
            out.append({"title": title, "rows": shown})
    return out


def _attacked_cells(results: Results) -> Iterator[Cell]:
    for trial in results.trials:
        if trial.value(IDENTIFIES) is not None:
            text = spelled(trial.figure(IDENTIFIES), interval=False)
            yield trial.set, trial.method, f"{attacker(trial)}, {trial.recogniser}", text


def _utility_cells(results: Results) -> Iterator[Cell]:
    for use in results.utilities:
        for each in use.figures:
            yield use.set, each.metric, use.method, each.note if each.value is None else spelled(each)


def _group_cells(heads: Sequence[Headline]) -> Iterator[Cell]:
    for head in heads:
        for group, figures in sorted(head.trial.groups.items()) if head.trial else ():
            column, _, value = group.partition("=")
            text = spelled(next((each for each in figures if each.metric == IDENTIFIES), None))
            yield f"{head.set}, by {column}: rank-1 under the strongest attacker", head.method, value, text


def save_plot(stem: Path, draw: Callable[[Any], bool | None], size: tuple[float, float]) -> list[Path]:
    """A plot as PNG and SVG at `stem`; no files where `draw` returns False."""
    from matplotlib.figure import Figure as Canvas

    canvas = Canvas(figsize=size, layout="constrained")
    if draw(canvas) is False:
        return []
    written = []
    fixed: dict[str, dict[str, Any]] = {".png": {"dpi": 130}, ".svg": {"metadata": {"Date": None}}}
    for suffix, options in fixed.items():
        data = io.BytesIO()
        canvas.savefig(data, format=suffix[1:], **options)
        written.append(write_file(stem.with_name(stem.name + suffix), data.getvalue()))
    return written


def draw_all(results: Results, heads: Sequence[Headline], folder: Path) -> dict[str, list[Path]]:
    """Every plot that the results have figures for: caption → PNG and SVG, in the order of the page."""
    drawn: dict[str, list[Path]] = {}
    for name in results.sets:
        trials, mine = [t for t in results.trials if t.set == name], [head for head in heads if head.set == name]
        for stem, (caption, draw) in PLOTS.items():
            if files := save_plot(folder / f"{slug(name)}-{stem}", partial(draw, trials, mine), (9, 5.4)):
                drawn[f"{name}: {caption}"] = files
    return drawn


def _legend(axes: Any, grid: str = "both") -> None:
    axes.legend(fontsize=6, loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False)
    axes.grid(axis=grid, alpha=0.3)


def _attackers(trials: Sequence[Trial], heads: Sequence[Headline], canvas: Any) -> bool:
    order = [head.method for head in heads]
    known = [(trial, value) for trial in trials if (value := trial.value(IDENTIFIES)) is not None]
    points = [(trial, value) for trial, value in known if trial.method in order and not trial.control]
    if not points:
        return False
    axes = canvas.subplots()
    for number, scenario in enumerate(dict.fromkeys(trial.scenario for trial, _ in points)):
        mine = [(value, order.index(trial.method)) for trial, value in points if trial.scenario == scenario]
        marker = {"marker": "osD^v<>pPX*h8d"[number % 14], "color": f"C{number % 10}"}
        axes.plot(*zip(*mine, strict=True), linestyle="", markersize=5, alpha=0.8, label=scenario, **marker)
    for trial, value in known:
        if trial.control in ("ceiling", "negative"):
            axes.axvline(value, color="0.5", linewidth=1, linestyle="--")
    axes.set_yticks(range(len(order)), order, fontsize=7)
    axes.invert_yaxis()
    axes.set(xlim=(-0.02, 1.02), xlabel="rank-1 (all judges)")
    _legend(axes, "x")
    return True


def _trade_off(trials: Sequence[Trial], heads: Sequence[Headline], canvas: Any) -> bool:
    known = [(h.method, h.utility, h.region.value) for h in heads if h.utility and h.region]
    metric = next((m for m in TRADED if any(use.value(m) is not None for _, use, _ in known)), "")
    points = [
        (method, x, found) for method, use, found in known if (x := use.value(metric)) is not None and found is not None
    ]
    if not points:
        return False
    axes = canvas.subplots()
    for number, (method, x, found) in enumerate(points):
        axes.plot(x, 1 - found, "o", color=f"C{number % 10}", markersize=4, label=f"{number + 1}  {method}")
        axes.annotate(str(number + 1), (x, 1 - found), fontsize=6, xytext=(3, 3), textcoords="offset points")
    axes.set(xlabel=f"utility: {metric}", ylabel="privacy: 1 − rank-1 from the replaced region", ylim=(-0.03, 1.05))
    _legend(axes)
    return True


# File → caption and what draws it on a canvas; False where there is nothing to draw
PLOTS: dict[str, tuple[str, Callable[[Sequence[Trial], Sequence[Headline], Any], bool]]] = {
    "attackers": ("rank-1 of every attacker, by method; lines: clear ceiling and chance", _attackers),
    "trade-off": ("what the replaced region gives away against utility", _trade_off),
}
