"""The report of a study of clouds: the thesis' plots, and a page that needs nothing but itself, with tables as CSV."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ficgan.lab.clouds import tables
from ficgan.lab.clouds.study import DISTORTION
from ficgan.lab.clouds.tables import CLOUD, METRICS, UNITS, Row, points, short, strongest, tried_whole
from ficgan.lab.report import inlined, render, save_plot, sheets, write_pages
from ficgan.lab.results import Results

_BY_DEGREE = (
    "AUC",
    "rank-1",
    "mu-privacy",
    "mu-privacy" + CLOUD,
    "delta-detection",
    "landmark-distance",
    "ssim",
    "fd-squeezenet",
    "mu-utility",
)
_PAIRED = ("AUC", "rank-1", "delta-detection", "landmark-distance", "ssim", "fd-squeezenet")
"""Variables of the pair plot and of the correlation matrix (figures 5.13 and 5.14)."""
_CLOUD = "mu-privacy" + CLOUD
_CMC_DEGREES = 4  # Degrees of which a method's CMC is drawn


def write_cloud_report(results: Results, out: Path, *, pictures: Path | None = None) -> list[Path]:
    """Write `report.html`, `report.json`, `figures/*.png|svg` and `tables/*.csv`; returns the files, the page first."""
    shown = sheets(results, [pictures or out])
    plots = draw_all(results, out / "figures")
    rows = {
        "points": points(results),
        "summary": tables.summary(results),
        "controls": tables.controls(results),
        "attackers": tables.attackers(results),
        "space": tables.geometry(results),
        "figures": tables.every_figure(results),
    }
    page = render(
        "clouds.html.j2",
        results=results,
        metrics=METRICS,
        spelt=short,
        plots=inlined(plots),
        sheets=shown,
        data=[{"set": name, **facts, "digest": facts["digest"][:12]} for name, facts in results.sets.items()],
        points=[{k: value for k, value in row.items() if not k.endswith((" low", " high"))} for row in rows["points"]],
        whole=tried_whole(results),
        **{name: rows[name] for name in ("summary", "attackers", "space", "controls")},
    )
    return write_pages(out, page, results, rows, plots)


# -- plots ------------------------------------------------------------------------------------------------------------


def draw_all(results: Results, folder: Path) -> dict[str, list[Path]]:
    """Every plot the results have figures for: caption → PNG and SVG, in the order of a page."""
    rows, drawn = points(results), {}
    for stem, (caption, size, draw) in PLOTS.items():
        options: dict[str, Any] = {"layout": None} if stem == "pairs" else {}
        if files := save_plot(folder / stem, partial(draw, results, rows), size, **options):
            drawn[caption] = files
    return drawn


def correlations(rows: list[Row]) -> tuple[list[str], NDArray[np.float64]]:
    """Pearson's r over all methods and degrees between every two variables of the pair plot that vary."""
    names, columns = _columns(rows)
    return names, np.atleast_2d(np.corrcoef(columns)) if names else np.ones((0, 0))


def _columns(rows: list[Row]) -> tuple[list[str], NDArray[np.float64]]:
    table = np.array([[row.get(name) for row in rows] for name in _PAIRED], float).reshape(len(_PAIRED), -1)
    kept = [i for i in range(len(_PAIRED)) if np.isfinite(table[i]).any()]
    whole = table[kept][:, np.isfinite(table[kept]).all(0)] if kept else table[:0]
    vary = [i for i in range(len(kept)) if whole.shape[1] > 2 and np.ptp(whole[i]) > 1e-12]
    return [_PAIRED[kept[i]] for i in vary], whole[vary]


def _methods(rows: list[Row], *needed: str) -> Iterator[tuple[str, str, list[Row]]]:
    for number, name in enumerate(dict.fromkeys(row["method"] for row in rows)):
        mine = [row for row in rows if row["method"] == name and all(row.get(one) is not None for one in needed)]
        yield f"C{number}", name, sorted(mine, key=lambda row: int(row["degree"]))


def _lines(axes: Any, rows: list[Row], name: str, **style: Any) -> None:
    for colour, method, mine in _methods(rows, name):
        x = [row["degree"] for row in mine]
        axes.plot(x, [row[name] for row in mine], ".-", color=colour, label=method, **style)
        if mine and all(f"{name} low" in row for row in mine):
            low, high = ([row[f"{name} {end}"] for row in mine] for end in ("low", "high"))
            axes.fill_between(x, low, high, color=colour, alpha=0.12, linewidth=0)
    axes.set(xlabel="degree", ylabel=_axis(name))
    axes.grid(alpha=0.3)


def _axis(name: str) -> str:
    return f"{name}, {UNITS[name]}" if name in UNITS else name


def _by_degree(results: Results, rows: list[Row], canvas: Any) -> bool:
    names = [name for name in _BY_DEGREE if any(row.get(name) is not None for row in rows)]
    if not names:
        return False
    grid = canvas.subplots(-(-len(names) // 2), 2, squeeze=False)
    styles, main = {"ceiling": "--", "negative": ":"}, next(iter(results.sets), "")
    for axes, name in zip(grid.ravel(), names, strict=False):
        _lines(axes, rows, name, linewidth=1, markersize=3)
        for trial in results.trials:
            for figure in trial.figures if trial.control in styles and trial.set == main else ():
                if figure.metric == name and figure.value is not None:
                    axes.axhline(figure.value, color="0.4", linewidth=0.8, linestyle=styles[trial.control])
    for axes in grid.ravel()[len(names) :]:
        axes.set_axis_off()
    grid.ravel()[0].legend(fontsize=7)
    return True


def _space(results: Results, rows: list[Row], canvas: Any) -> bool:
    names = [name for name in DISTORTION if any(row.get(name) is not None for row in rows)]
    for axes, name in zip(canvas.subplots(1, len(names), squeeze=False)[0] if names else (), names, strict=True):
        _lines(axes, rows, name)
        axes.legend(fontsize=7)
    return bool(names)


def _trade_off(results: Results, rows: list[Row], canvas: Any) -> bool:
    axes, whole = canvas.subplots(), set(tried_whole(results))
    drawn = crossed = False
    for colour, method, known in _methods(rows, "mu-privacy", "mu-utility"):
        tried, others = ([row for row in known if (row["degree"] in whole) == wanted] for wanted in (True, False))
        axes.plot(*_xy(others), ".", color=colour, alpha=0.35, markersize=4)
        if not tried:
            continue
        axes.plot(*_xy(tried), "-", color=colour, linewidth=0.6, alpha=0.6)
        axes.scatter(*_xy(tried), s=[12 + row["degree"] for row in tried], color=colour, label=method, alpha=0.9)
        given = [row for row in tried if row.get(_CLOUD) is not None]
        axes.plot(*_xy(given, _CLOUD), "x", color=colour, markersize=6)
        drawn, crossed = True, crossed or bool(given)
        for row in (tried[0], tried[-1]):
            place = (row["mu-privacy"], row["mu-utility"])
            axes.annotate(str(row["degree"]), place, fontsize=7, xytext=(4, 4), textcoords="offset points")
    if drawn:
        if crossed:
            axes.plot([], [], "x", color="0.4", label="the cloud given away")
        axes.plot([0, 1], [1, 0], color="0.5", linewidth=0.8, linestyle="--")
        axes.set(
            xlim=(-0.03, 1.03),
            ylim=(-0.03, 1.03),
            xlabel="mean privacy under the strongest attacker (eq. 5.1)",
            ylabel="mean utility (eq. 5.2)",
        )
        axes.legend(fontsize=8)
        axes.grid(alpha=0.3)
    return drawn


def _xy(rows: Sequence[Row], name: str = "mu-privacy") -> tuple[list[float], list[float]]:
    return [row[name] for row in rows], [row["mu-utility"] for row in rows]


def _pairs(results: Results, rows: list[Row], canvas: Any) -> bool:
    names, columns = _columns(rows)
    if len(names) < 2:
        return False
    # The layout of 36 axes takes longer than to draw them.
    canvas.subplots_adjust(0.08, 0.06, 0.99, 0.94, 0.35, 0.3)
    grid = canvas.subplots(len(names), len(names), squeeze=False)
    for (i, j), axes in np.ndenumerate(grid):
        for colour, method, mine in _methods(rows, *names):
            y = [row[names[i]] for row in mine]
            if i == j:
                axes.hist(y, bins=12, range=(columns[i].min(), columns[i].max()), color=colour, alpha=0.4)
            else:
                axes.scatter([row[names[j]] for row in mine], y, s=4, color=colour, label=method, alpha=0.7)
        axes.tick_params(labelsize=6)
        if i == len(names) - 1:
            axes.set_xlabel(_axis(names[j]), fontsize=8)
        if j == 0:
            axes.set_ylabel(_axis(names[i]), fontsize=8)
    canvas.legend(*grid[0, 1].get_legend_handles_labels(), loc="upper center", ncols=6, fontsize=8)
    return True


def _correlations(results: Results, rows: list[Row], canvas: Any) -> bool:
    names, matrix = correlations(rows)
    if len(names) < 2:
        return False
    axes = canvas.subplots()
    image = axes.imshow(matrix, vmin=-1, vmax=1, cmap="RdBu_r")
    for (i, j), r in np.ndenumerate(matrix):
        axes.text(j, i, f"{r:.2f}", ha="center", va="center", color="white" if abs(r) > 0.6 else "black")
    axes.set_xticks(range(len(names)), names, rotation=30, ha="right")
    axes.set_yticks(range(len(names)), names)
    canvas.colorbar(image, ax=axes, label="Pearson's r")
    return True


def _times(results: Results, rows: list[Row], canvas: Any) -> bool:
    groups = [group for group in _methods(rows, "seconds") if group[2]]
    if not groups:
        return False
    bars, lines = canvas.subplots(1, 2)
    for place, (colour, _, mine) in enumerate(groups):
        means, within = (np.array([row.get(name) for row in mine], float) for name in ("seconds", "seconds-sd"))
        # Over all runs, as the thesis has it: variance within degrees and between them.
        spread = float(np.sqrt(np.nanmean(within**2) + means.var())) if np.isfinite(within).any() else means.std()
        bars.bar(place, means.mean(), yerr=[[min(spread, means.mean())], [spread]], color=colour, capsize=3)
    bars.set_xticks(range(len(groups)), [method for _, method, _ in groups], rotation=30, ha="right", fontsize=8)
    bars.set_ylabel("seconds a face, mean and standard deviation")
    bars.grid(alpha=0.3)
    _lines(lines, rows, "seconds", markersize=3)
    lines.set(ylabel="seconds a face", yscale="log")
    lines.legend(fontsize=7)
    return True


def _cmc(results: Results, rows: list[Row], canvas: Any) -> bool:
    by_method: dict[str, list[tuple[int, list[list[float]]]]] = {}
    for name, facts in results.methods.items():
        worst = strongest(results, name)
        if worst is not None and worst.curves.get("cmc"):
            by_method.setdefault(facts["name"], []).append((facts["settings"]["degree"], worst.curves["cmc"]))
    if not by_method:
        return False
    grid = canvas.subplots(-(-len(by_method) // 3), min(3, len(by_method)), squeeze=False)
    ceiling = next((t.curves.get("cmc") for t in results.trials if t.control == "ceiling"), None)
    for axes, (method, curves) in zip(grid.ravel(), by_method.items(), strict=False):
        picked = np.unique(np.linspace(0, len(curves) - 1, _CMC_DEGREES).round().astype(int))
        for number, index in enumerate(picked):
            degree, curve = curves[index]
            shade = (0.1, 0.3, 0.8, 0.3 + 0.7 * number / max(1, len(picked) - 1))
            axes.plot(*zip(*curve, strict=True), label=f"degree {degree}", linewidth=1.2, color=shade)
        if ceiling:
            axes.plot(*zip(*ceiling, strict=True), "k--", linewidth=0.8, label="clear")
        last = max(int(curve[-1][0]) for _, curve in curves)
        ticks = [rank for rank in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000) if rank <= last]
        axes.set(title=method, xlabel="rank", ylim=(-0.02, 1.02), xscale="log")
        axes.set_xticks(ticks, [str(rank) for rank in ticks])
        axes.set_xticks([], minor=True)
        axes.legend(fontsize=6)
        axes.grid(alpha=0.3)
    for axes in grid.ravel()[len(by_method) :]:
        axes.set_axis_off()
    return True


PLOTS: dict[str, tuple[str, tuple[float, float], Callable[[Results, list[Row], Any], bool]]] = {
    "trade-off": (
        "Privacy against utility (as figure 5.15): circles are degrees at which every attacker was tried, first and "
        "last numbered; dots the others, where fewer were; crosses: the cloud itself given away and attacked",
        (7.5, 6),
        _trade_off,
    ),
    "by-degree": (
        "Figures by degree (as figures 5.9 and 5.10), 95 % intervals shaded; dashed: clear projections, dotted: chance",
        (10, 14),
        _by_degree,
    ),
    "pairs": ("Pair plot of privacy and utility (as figure 5.13)", (10, 10), _pairs),
    "correlations": ("Correlations over all methods and degrees (as figure 5.14)", (6.5, 5.4), _correlations),
    "times": ("Time of one anonymisation (as figures 5.11 and 5.12)", (10, 4.4), _times),
    "cmc": ("CMC under the strongest attacker", (10, 6), _cmc),
    "space": ("Distortion in space, by degree", (10, 3.6), _space),
}
"""File → caption, size in inches, and what draws it; False where there is nothing to draw."""
