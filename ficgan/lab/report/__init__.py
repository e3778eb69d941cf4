"""The report: results as flat tables (the strongest attackers, whether the controls hold), a page, plots, JSON."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

from ficgan.lab.metrics import METRICS
from ficgan.lab.metrics.privacy import WITHIN_KIND
from ficgan.lab.results import Figure, Results, Trial, Utility, data_url, slug
from ficgan.lab.run import write_file

Row = dict[str, Any]  # Column → number or text, or a tuple of lines

IDENTIFIES = "rank-1"  # The metric by which attackers and methods are ranked
# Trials that do not attempt a name: controls, what needs the key, other risks.
LEFT_OUT = frozenset({"right-key", "background-only", "clear", "constant", "attribute-inference", "linkability"})
CONTROL = "mean-face"  # An attacker that is itself a control
# The three risks of WP216 → the metric that measures each, or what its name begins with
RISKS = {"singling out": "singling-out", "linkability": "D_sys", "inference": "inference of"}
SHOWN = ("detected", "attributes-balanced", "smile-r")  # Utility figures beside the ranking; the utility table has all


@dataclass(frozen=True)
class Headline:
    """A method on a set, judged by its strongest attackers; figures are rank-1, and AUC within kind.

    What the replaced region gives away comes first. An attacker counts for it that sees nothing else (parrot-inside),
    or whose figure on the whole picture is clearly above what the surroundings alone give its judge. Where nobody
    looked at the region alone, the whole picture's figure is its bound from above.
    """

    set: str
    method: str
    trial: Trial | None  # The strongest attacker's on the whole picture; None where every attempt was refused
    region_trial: Trial | None  # The strongest attacker's on the region
    bound: bool  # The region's figure is that of the whole picture
    surroundings: Figure | None  # background-only, by the judge of the region's figure
    within_kind: Trial | None  # naive, by the judge of the highest AUC within kind
    utility: Utility | None  # None where it was not measured
    rank: int | None = None  # Methods that the intervals do not tell from the first of a rank share it

    @property
    def figure(self) -> Figure | None:
        return rank_of(self.trial)

    @property
    def region(self) -> Figure | None:
        return rank_of(self.region_trial)


class Control(NamedTuple):
    """A trial whose outcome is known beforehand: the rank-1 found, the expected one in words, whether it holds."""

    set: str
    judge: str
    name: str
    value: float
    expected: str
    holds: bool


def headlines(results: Results) -> list[Headline]:
    """Of every method on every set, the best protected first."""
    return [head for name in results.sets for head in _ranked([_headline(results, name, m) for m in results.methods])]


def _headline(results: Results, name: str, method: str) -> Headline:
    surroundings = {t.recogniser: t for t in results.trials if (t.set, t.scenario) == (name, "background-only")}
    # Crops without surroundings
    whole = bool(surroundings) and all(trial.value(IDENTIFIES) is None for trial in surroundings.values())
    mine = [trial for trial in results.trials if (trial.set, trial.method) == (name, method)]
    attempts = [trial for trial in mine if _attempts(trial)]
    seeing = [trial for trial in mine if _sees_region(trial, surroundings.get(trial.recogniser))]
    region = strongest(seeing or attempts)
    return Headline(
        name,
        method,
        strongest(attempts),
        region,
        not seeing and not whole,
        None if region is None else rank_of(surroundings.get(region.recogniser)),
        strongest([trial for trial in mine if trial.scenario == "naive"], WITHIN_KIND),
        next((use for use in results.utilities if (use.set, use.method) == (name, method)), None),
    )


def _ranked(heads: Sequence[Headline]) -> list[Headline]:
    """Methods on one set with their ranks, the best first; who overlaps the first of a rank shares it."""
    rank, reach, out = 0, -1.0, list[Headline]()  # The present rank, and up to where its first one's interval goes
    for place, head in enumerate(sorted(heads, key=lambda head: (_known(head.region), _known(head.figure))), 1):
        found = head.region
        if found is not None and found.value is not None:
            if (found.value if found.low is None else found.low) > reach:
                rank, reach = place, found.value if found.high is None else found.high
            head = replace(head, rank=rank)
        out.append(head)
    # Within a rank by the AUC within kind; where it is not known, a method comes last.
    return sorted(out, key=lambda head: (head.rank or len(out) + 1, _known(rank_of(head.within_kind, WITHIN_KIND))))


def rank_of(trial: Trial | None, metric: str = IDENTIFIES) -> Figure | None:
    """Its rank-1, or its figure of another metric."""
    return None if trial is None else trial.figure(metric)


def _known(found: Figure | None) -> float:
    """What methods are sorted by; unknown is not safe."""
    return float("inf") if found is None else found.value or 0.0


def strongest(trials: Iterable[Trial], metric: str = IDENTIFIES) -> Trial | None:
    """The trial whose figure is the highest; None where none has one."""
    return max((t for t in trials if t.value(metric) is not None), key=lambda t: t.value(metric) or 0.0, default=None)


def _attempts(trial: Trial) -> bool:
    open_world = trial.scenario not in LEFT_OUT and trial.attacker != "right key" and trial.control != "codes"
    return open_world and trial.value(IDENTIFIES) is not None


def _sees_region(trial: Trial, surroundings: Trial | None) -> bool:
    """Whether it looks at nothing but the region, or finds clearly more than the surroundings give its judge."""
    if trial.scenario == "parrot-inside":
        return trial.value(IDENTIFIES) is not None
    return _attempts(trial) and bool(above(rank_of(trial), rank_of(surroundings)))


def above(a: Figure | None, b: Figure | None) -> bool | None:
    """Whether the whole interval of a lies above b's; None where one has none."""
    return None if a is None or b is None or a.low is None or b.high is None else a.low > b.high


def controls(results: Results) -> list[Control]:
    """Ceilings, negative controls and right keys, and whether they came out as they must."""
    out = []
    ceilings = {(t.set, t.recogniser): t.value(IDENTIFIES) for t in results.trials if t.scenario == "clear"}
    for trial in results.trials:
        found, chance = rank_of(trial), trial.value("chance")
        if found is None or found.value is None:
            continue
        value, low = found.value, found.low
        name = trial.scenario if trial.method == "clear" else f"{trial.scenario}: {trial.method}"
        ceiling = ceilings.get((trial.set, trial.recogniser))
        expected, holds = "the ceiling", ceiling is not None and value >= 0.95 * ceiling
        if trial.control == "ceiling":
            expected = "at least ½, above chance"
            holds = value >= 0.5 and (low is None or chance is None or low > chance)
        elif trial.control == "negative":
            expected = "chance"
            holds = chance is None or abs(value - chance) < 1e-9 or (low is not None and low <= chance)
        elif trial.control != "positive":
            # An attacker that cannot undo a permutation was not competent to show that anything is irreversible.
            permutes = results.methods.get(trial.method, {}).get("name") == "block-permutation"
            reverses = trial.scenario in ("reversed-general", "reversed-specialised")
            if not (permutes and reverses) or trial.attacker.partition(":")[0] == CONTROL:
                continue
            name = f"{trial.attacker} on {trial.method}"
        out.append(Control(trial.set, trial.recogniser, name, value, expected, holds))
    return out


def ranking(heads: Sequence[Headline]) -> list[Row]:
    """Methods by what the replaced region gives away, of one rank by the AUC within kind, with what they leave."""
    useful = [m for m in SHOWN if any(head.utility and head.utility.value(m) is not None for head in heads)]
    rows = []
    for head in heads:
        region, kin = head.region_trial, head.within_kind
        if region is None and kin is None and head.trial is None:  # nobody attacked it
            continue
        row: Row = {"set": head.set, "rank": str(head.rank or ""), "method": head.method}
        if kin is not None and (found := kin.figure(WITHIN_KIND)) is not None:
            naive = f"naive rank-1: {spelled(rank_of(kin))}".replace(" ", "\N{NO-BREAK SPACE}")
            row["within kind"] = (spelled(found), f"{kin.recogniser}, n = {found.n} images", naive)
        value = ("≤ " if head.bound and head.region else "") + spelled(head.region)
        row["replaced region"] = (value, _by(region), "" if head.region is None else f"n = {head.region.n}")
        row["surroundings alone"] = spelled(head.surroundings)
        row["whole picture"] = (spelled(head.figure), _by(head.trial))
        left = {} if head.utility is None else {metric: head.utility.figure(metric) for metric in useful}
        rows.append(row | {metric: spelled(each, interval=False) for metric, each in left.items() if each})
    return rows


def _by(trial: Trial | None) -> str:
    """Who attacked, and who judged."""
    return "" if trial is None else f"{attacker(trial)}, {trial.recogniser}"


def attacker(trial: Trial) -> str:
    """The scenario of a trial, and who attacked in it."""
    return ": ".join(filter(None, (trial.scenario, trial.attacker)))


def every_figure(results: Results) -> dict[str, list[Row]]:
    """Tables with a row for each figure: privacy, utility, and privacy by group of people."""
    privacy: list[Row] = []
    groups: list[Row] = []
    for trial in results.trials:
        cells = _trial_cells(trial)
        privacy += [{**cells, "control": trial.control, **vars(each)} for each in trial.figures]
        groups += [{**cells, "group": name, **vars(each)} for name, some in trial.groups.items() for each in some]
    utility = [{"set": use.set, "method": use.method, **vars(one)} for use in results.utilities for one in use.figures]
    return {"privacy": privacy, "utility": utility, "groups": groups}


def given_back(results: Results) -> list[Row]:
    """How alike guesses and clear faces are, by attacker and judge; faces not attacked come first."""
    rows = []
    for trial in results.trials:
        likeness = {name: spelled(found) for name in METRICS["reversal"] if (found := trial.figure(name))}
        rows += [{**_trial_cells(trial), **likeness}] if likeness else []
    return rows


def risks(results: Results) -> list[Row]:
    """The three risks of WP216 by method, the worst over attackers and judges; clear images on top."""
    rows = []
    for name in results.sets:
        for method in ("clear", *results.methods):
            # What needs the key is no risk of the method; of the clear images the ceiling is what there is.
            allowed = ("", "ceiling") if method == "clear" else ("",)
            mine = [trial for trial in results.trials if (trial.set, trial.method) == (name, method)]
            trials = [trial for trial in mine if trial.attacker != "right key" and trial.control in allowed]
            row: Row = {"set": name, "method": method}
            for risk, metric in RISKS.items():
                found = [
                    each
                    for trial in trials
                    if risk != "linkability" or trial.scenario == "linkability"
                    for each in trial.figures
                    if each.value is not None and (each.metric == metric or each.metric.startswith(f"{metric} "))
                ]
                row[risk] = _worst(found, risk)
            rows.append(row)
    return rows


def _worst(found: Sequence[Figure], risk: str) -> str:
    if not found:
        return "not measured"
    if risk != "inference":
        return spelled(max(found, key=lambda each: each.value or 0.0))
    worst = max(found, key=lambda each: abs((each.value or 0.5) - 0.5))  # Below ½ gives away as much
    return f"{spelled(worst)} ({worst.metric.removeprefix('inference of ')})"


def _trial_cells(trial: Trial) -> Row:
    names = ("set", "method", "scenario", "attacker")
    return {**{name: getattr(trial, name) for name in names}, "judge": trial.recogniser}


def spelled(each: Figure | None, *, interval: bool = True, factor: float = 1.0, digits: int | None = None) -> str:
    """A figure in a table, times `factor`: value and 95 % interval, or why there is none."""
    if each is None:
        return ""
    if each.value is None:
        return f"refused: {each.note}" if each.note else "refused"
    text = _short(factor * each.value, digits)
    if interval and each.low is not None and each.high is not None:
        text += f" [{_short(factor * each.low, digits)}, {_short(factor * each.high, digits)}]"
    return text


def _short(value: float, digits: int | None) -> str:
    """A number of so many decimals; None: three, and fewer from 10 on."""
    few = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 3
    return f"{value:.{few if digits is None else digits}f}"


def to_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows as CSV; columns in the order in which they first appear, lines of a cell after semicolons."""
    out = io.StringIO()
    writer = csv.DictWriter(out, _columns(rows), lineterminator="\n")
    writer.writeheader()
    for row in rows:
        cells = {key: "; ".join(filter(None, v)) if isinstance(v, tuple) else v for key, v in row.items()}
        writer.writerow(cells)
    return out.getvalue()


def filled(rows: Iterable[Row]) -> list[Row]:
    """Rows of one table, each with the columns of all; a dash where it has nothing."""
    rows = list(rows)
    return [{column: row.get(column, "–") for column in _columns(rows)} for row in rows]


def _columns(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    return list(dict.fromkeys(column for row in rows for column in row))


# -- the page ----------------------------------------------------------------------------------------------------------

COLUMNS = 8  # Of a table of attackers: so many fit a laptop's width
LONG = 40  # Rows above which a table is folded
TRADED = ("attributes-balanced", "smile-r", "ssim")  # Of the trade-off plot: the first that was measured is drawn


def write_report(results: Results, out: Path, *, published: Sequence[dict[str, Any]] = ()) -> list[Path]:
    """Write the page, its plots, tables and JSON; returns the files, `report.html` first."""
    heads = headlines(results)
    plots = draw_all(results, heads, out / "figures")
    rows = {
        "ranking": ranking(heads),
        "risks": risks(results),
        **every_figure(results),
        "given-back": given_back(results),
    }
    named = (trial for trial in results.trials if trial.value(IDENTIFIES) is not None)
    attacked = ((t.set, t.method, _by(t), spelled(rank_of(t), interval=False)) for t in named)
    measured = ((use, each) for use in results.utilities for each in use.figures)
    left = ((u.set, f.metric, u.method, f.note if f.value is None else spelled(f)) for u, f in measured)
    page = render(
        "page.html.j2",
        results=results,
        ranking=_by_set(rows["ranking"]),
        risks=_by_set(rows["risks"]),
        matrix=_pivoted(attacked, "method"),
        given_back=rows["given-back"],
        utility=_pivoted(left, "metric"),
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
    texts |= {f"tables/{name}.csv": to_csv(some) for name, some in rows.items() if some}
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
