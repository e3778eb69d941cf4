"""The report: a page that needs nothing but itself, plots and tables beside it, the results as JSON."""

from __future__ import annotations

import io
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

from ficgan.errors import InputError, UsageError
from ficgan.lab.metrics import rule_of_three
from ficgan.lab.pages import data_url, write_file
from ficgan.lab.report import tables
from ficgan.lab.report.tables import IDENTIFIES, Row, controls, figure, headlines, spelled, value_of
from ficgan.lab.results import Figure, Results
from ficgan.records.sidecars import Record, read_folder

TABLES = {
    "ranking": tables.ranking,
    "risks": tables.risks,
    "privacy": tables.privacy,
    "utility": tables.utility,
    "groups": tables.groups,
    "given-back": tables.given_back,
    "retrieved": tables.retrieved,
}
SMALL = 20  # Shorter side of a face's box, pixels, below which detectors miss many: the measured limit of recall .93.
COLUMNS = 8  # Of a table of attackers: so many fit a laptop's width.
TRADED = ("attributes-balanced", "smile-r", "ssim")
"""Utility metrics of the trade-off plot: the first that was measured is drawn."""


def write_report(
    results: Results,
    out: Path,
    *,
    sidecars: Path | None = None,
    pictures: Sequence[Path] = (),
    published: Sequence[dict[str, Any]] = (),
) -> list[Path]:
    """Write the page, its plots, tables and JSON; returns the files, `report.html` first.

    `sidecars` of `ficgan deid` are summed up, too; `published` tables are {"title", "rows", "note"}.
    """
    account = None if sidecars is None else read_account(sidecars)
    shown = sheets(results, pictures or [out])
    plots = draw_all(results, out / "figures")
    rows = {name: make(results) for name, make in TABLES.items()}
    ranking = {name: tables.ranking_to_read(some) for name, some in _by_set(rows["ranking"]).items()}
    page = render(
        "page.html.j2",
        results=results,
        ranking=ranking,
        risks=_by_set(rows["risks"]),
        matrix=_matrix(results),
        given_back=rows["given-back"],
        retrieved=rows["retrieved"],
        utility=_by_metric(rows["utility"]),
        groups=_group_tables(results),
        controls=_controls(results),
        data=_sets(results),
        methods=_methods(results),
        plots=inlined(plots),
        sheets=shown,
        account=account,
        small=SMALL,
        published=published,
        spelt=lambda value: "" if value is None else value,
        refused=[row for row in rows["privacy"] if row["value"] is None],
        kinds_known=any("within kind" in row for row in rows["ranking"]),
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


def save_plot(
    stem: Path,
    draw: Callable[[Any], bool | None],
    size: tuple[float, float],
    *,
    layout: Literal["constrained"] | None = "constrained",
) -> list[Path]:
    """A plot as PNG and SVG at `stem`; no files where `draw` returns False."""
    from matplotlib.figure import Figure as Canvas

    canvas = Canvas(figsize=size, layout=layout)
    if draw(canvas) is False:
        return []
    written = []
    fixed: dict[str, dict[str, Any]] = {".png": {"dpi": 130}, ".svg": {"metadata": {"Date": None}}}
    for suffix, options in fixed.items():
        data = io.BytesIO()
        canvas.savefig(data, format=suffix[1:], **options)
        written.append(write_file(stem.with_name(stem.name + suffix), data.getvalue()))
    return written


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
            "set": one.set,
            "judge": one.judge,
            "control": one.name,
            "rank-1": f"{one.value:.3f}",
            "must be at": one.expected,
            "holds": one.holds,
        }
        for one in controls(results)
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


# -- plots ------------------------------------------------------------------------------------------------------------


def draw_all(results: Results, folder: Path) -> dict[str, list[Path]]:
    """Draw every plot that the results have figures for: caption → PNG and SVG, in the order of the page."""
    drawn: dict[str, list[Path]] = {}
    for name in results.sets:
        slug = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
        for stem, (caption, draw) in PLOTS.items():
            on = partial(_on_axes, draw, results, name)
            if files := save_plot(folder / f"{slug}-{stem}", on, (9, 5.4)):
                drawn[f"{name}: {caption}"] = files
    return drawn


def _on_axes(draw: Callable[[Results, str, Any], bool], results: Results, name: str, canvas: Any) -> bool:
    return draw(results, name, canvas.subplots())


def _legend(axes: Any, grid: str = "both") -> None:
    if axes.get_legend_handles_labels()[0]:  # of an empty plot, which nobody gets to see, matplotlib would complain
        axes.legend(fontsize=6, loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False)
    axes.grid(axis=grid, alpha=0.3)


def _attackers(results: Results, name: str, axes: Any) -> bool:
    order = [head.method for head in headlines(results) if head.set == name]
    trials = [(trial, value_of(trial.figures, IDENTIFIES)) for trial in results.trials if trial.set == name]
    known = [(trial, value) for trial, value in trials if value is not None]
    points = [(trial, value) for trial, value in known if trial.method in order and not trial.control]
    scenarios = list(dict.fromkeys(trial.scenario for trial, _ in points))
    shapes = "osD^v<>pPX*h8d"
    style = {s: {"marker": shapes[i % len(shapes)], "color": f"C{i % 10}"} for i, s in enumerate(scenarios)}
    for trial, value in points:
        row = order.index(trial.method)
        axes.plot(value, row, linestyle="", markersize=5, alpha=0.8, **style[trial.scenario])
    for scenario in scenarios:
        axes.plot([], [], linestyle="", label=scenario, **style[scenario])
    for trial, value in known:
        if trial.control in ("ceiling", "negative"):
            axes.axvline(value, color="0.5", linewidth=1, linestyle="--")
    axes.set_yticks(range(len(order)), order, fontsize=7)
    axes.invert_yaxis()
    axes.set(xlim=(-0.02, 1.02), xlabel="rank-1 (all judges)")
    _legend(axes, "x")
    return bool(points)


def _trade_off(results: Results, name: str, axes: Any) -> bool:
    shown = [
        (head.method, head.utility.figures, head.region.value)
        for head in headlines(results)
        if head.set == name and head.utility is not None and head.region is not None
    ]
    metric = next((m for m in TRADED if any(value_of(figures, m) is not None for _, figures, _ in shown)), None)
    if metric is None:
        return False
    for number, (method, figures, found) in enumerate(shown):
        x = value_of(figures, metric)
        if x is None or found is None:
            continue
        axes.plot(x, 1 - found, "o", color=f"C{number % 10}", markersize=4, label=f"{number + 1}  {method}")
        axes.annotate(str(number + 1), (x, 1 - found), fontsize=6, xytext=(3, 3), textcoords="offset points")
    axes.set(xlabel=f"utility: {metric}", ylabel="privacy: 1 − rank-1 from the replaced region", ylim=(-0.03, 1.05))
    _legend(axes)
    return True


def _curves(kind: str, **axis: Any) -> Callable[[Results, str, Any], bool]:
    def draw(results: Results, name: str, axes: Any) -> bool:
        clear = [("clear", trial) for trial in results.trials if (trial.set, trial.scenario) == (name, "clear")][:1]
        here = [head for head in headlines(results) if head.set == name]
        shown = clear + [(f"{head.method} ({head.trial.scenario})", head.trial) for head in here if head.trial]
        lines = [(number, label, trial.curves.get(kind)) for number, (label, trial) in enumerate(shown)]
        lines = [line for line in lines if line[2]]
        for number, label, points in lines:
            style: dict[str, Any] = {"color": f"C{number % 10}", "linestyle": "-" if number <= 10 else ":"}
            style = {"color": "black", "linestyle": "--"} if label == "clear" else style
            axes.plot(*zip(*points or (), strict=True), linewidth=1, label=label, **style)
        axes.set(**axis)
        if lines:
            _legend(axes)
        return bool(lines)

    return draw


def _layers(results: Results, name: str, axes: Any) -> bool:
    drawn = False
    for target, style in (("w_m (k-same)", "-"), ("w_t (another person)", "--")):
        points: dict[str, list[tuple[int, float]]] = {}
        for method, facts in results.methods.items():
            settings = facts["settings"]
            if facts["name"] != "ficgan" or settings["band"] or (settings["alpha"] >= 1) != target.startswith("w_t"):
                continue
            found = [
                (f"ID cosine, {trial.recogniser}", value_of(trial.figures, "ID cosine"))
                for trial in results.trials
                if (trial.set, trial.method, trial.scenario) == (name, method, "naive")
            ]
            found += [
                ("attribute agreement", value_of(use.figures, "attributes"))
                for use in results.utilities
                if (use.set, use.method) == (name, method)
            ]
            for label, value in found:
                if value is not None:
                    points.setdefault(label, []).append((settings["layer"], value))
        for number, (label, some) in enumerate(points.items()):
            if len(some) > 1:
                axes.plot(*zip(*sorted(some), strict=True), f"o{style}", color=f"C{number}", label=f"{label}, {target}")
                drawn = True
    axes.set(xlabel="i: style layers 1…i keep the source's code (0 strongest)", ylabel="value")
    if drawn:
        axes.legend(fontsize=7)
        axes.grid(alpha=0.3)
    return drawn


_CMC = {"xscale": "log", "xlabel": "rank", "ylabel": "share of probes found within the rank", "ylim": (0, 1.02)}
_DET = {"xscale": "log", "yscale": "log", "xlabel": "false match rate", "ylabel": "false non-match rate"}
PLOTS: dict[str, tuple[str, Callable[[Results, str, Any], bool]]] = {
    "attackers": ("rank-1 of every attacker, by method; lines: clear ceiling and chance", _attackers),
    "trade-off": ("what the replaced region gives away against utility", _trade_off),
    "cmc": ("CMC of each method's strongest attacker", _curves("cmc", **_CMC)),
    "det": ("DET of each method's strongest attacker", _curves("det", **_DET)),
    "layers": ("FICGAN by the layer index i (as the paper's Figure 4)", _layers),
}
"""File → caption and what draws it on axes; False where there is nothing to draw."""


# -- account ----------------------------------------------------------------------------------------------------------


@dataclass
class Account:
    """What was done to real files: the side-cars of `ficgan deid` added up."""

    files: list[Row] = field(default_factory=list)
    faces: Counter[str] = field(default_factory=Counter)  # by what was done to them
    exemptions: list[Row] = field(default_factory=list)
    edits: list[str] = field(default_factory=list)  # what a person changed by hand
    small: int = 0  # faces whose box is below `SMALL` pixels
    gate_read: int = 0  # faces the gate read again
    gate_matched: int = 0  # of these it still took for the source or found uncovered
    checked: int = 0  # faces that a second look by another detector read (films)
    found: int = 0  # of these still recognised or uncovered
    bound: float | None = None  # upper 95 % bound of that share, where the second look found nothing
    settings: Counter[str] = field(default_factory=Counter)  # different settings → files
    notes: list[str] = field(default_factory=list)
    unreadable: list[str] = field(default_factory=list)


def read_account(folder: Path) -> Account:
    """Add up all side-cars below a folder with results of `ficgan-deid`."""
    found, account = read_folder(folder, check=False), Account()
    account.unreadable = [name for name, _ in found.damaged]
    for record in found.records:
        one = Account()
        try:
            _add(one, record)
            sums = {name: getattr(account, name) + value for name, value in vars(one).items() if name != "bound"}
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):  # edited, or of another program
            account.unreadable.append(f"{record.path}.json")
            continue
        account = Account(**sums)
    if account.checked and not account.found:
        account.bound = rule_of_three(account.checked)
    return account


def _add(account: Account, sidecar: Record) -> None:
    record, name = sidecar.data, sidecar.data.get("output", "?")
    by_action = record.get("faces_by_action", {})
    account.files.append(
        {
            "file": name,
            "input sha256": record.get("input_sha256", ""),
            "output sha256": record.get("sha256", ""),
            "ficgan": record.get("ficgan", ""),
            "mode": record.get("mode", ""),
            "faces": sum(by_action.values()) if sidecar.is_film else len(sidecar.faces),
            "detector": record.get("detector", ""),
            "gate": record.get("gate") or "none",
        }
    )
    for face in sidecar.faces:
        account.faces[face["action"]] += 1
        x0, y0, x1, y1 = face["box"]
        account.small += min(x1 - x0, y1 - y0) < SMALL
        if face.get("matched") is not None:
            account.gate_read += 1
            account.gate_matched += bool(face["matched"]) or not face.get("covered", True)
    account.faces.update(by_action)
    account.small += record.get("fallbacks", {}).get("small", 0)
    account.exemptions += [{"file": name, **exemption} for exemption in record.get("exemptions", ())]
    account.edits += [f"{name}: {edit}" for edit in record.get("edits", ())]
    check = record.get("check")
    if isinstance(check, dict):
        account.checked += int(check.get("faces", 0))
        account.found += len(check.get("findings", ()))
    wanted = ("mode", "methods", "background", "k", "psi", "alpha", "layers", "attributes", "directions")
    settings = {key: record[key] for key in wanted if record.get(key)}
    account.settings[json.dumps(settings, sort_keys=True)] += 1
    account.notes += [f"{name}: {note}" for note in record.get("notes", ())]
