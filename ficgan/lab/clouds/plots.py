"""The thesis' plots of a study of clouds: by degree, pairs, correlations, trade-off, times, CMC."""

from __future__ import annotations

import io
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ficgan.images import atomic_write
from ficgan.lab.clouds.figures import UNITS
from ficgan.lab.clouds.labels import CLOUD
from ficgan.lab.clouds.tables import MAIN, Row, points, strongest, tried_whole
from ficgan.lab.results import Results

__all__ = ["correlations", "draw_all"]

_PAIRED = ("AUC", "rank-1", "delta-detection", "landmark-distance", "ssim", "fd-squeezenet")
"""Variables of the pair plot and of the correlation matrix (figures 5.13 and 5.14)."""
_CLOUD = "mu-privacy" + CLOUD
_CMC_DEGREES = 4
"""Degrees of which a method's CMC is drawn."""


def draw_all(results: Results, folder: Path) -> dict[str, Path]:
    """Every plot the results have figures for, as PNG and SVG.

    Args:
        results: of `run_cloud_study`.
        folder: made where missing; files of the same names are replaced.

    Returns:
        Caption → PNG file, in the order of a page.
    """
    import matplotlib

    matplotlib.use("Agg")
    folder.mkdir(parents=True, exist_ok=True)
    rows = points(results)
    drawn: dict[str, Path] = {}
    for stem, (caption, size, draw) in PLOTS.items():
        path = _save(folder / stem, size, partial(draw, results, rows))
        if path is not None:
            drawn[caption] = path
    return drawn


def correlations(rows: list[Row]) -> tuple[list[str], NDArray[np.float64]]:
    """Pearson's r over all methods and degrees between every two variables of the pair plot that vary."""
    names, columns = _columns(rows)
    return names, np.atleast_2d(np.corrcoef(columns)) if names else np.ones((0, 0))


def _columns(rows: list[Row]) -> tuple[list[str], NDArray[np.float64]]:
    """Variables that are known somewhere and vary, over the rows in which all of them are known."""
    table = np.array([[_number(row.get(name)) for row in rows] for name in _PAIRED]).reshape(len(_PAIRED), -1)
    kept = [i for i in range(len(_PAIRED)) if np.isfinite(table[i]).any()]
    whole = table[kept][:, np.isfinite(table[kept]).all(0)] if kept else table[:0]
    vary = [i for i in range(len(kept)) if whole.shape[1] > 2 and np.ptp(whole[i]) > 1e-12]
    return [_PAIRED[kept[i]] for i in vary], whole[vary]


def _by_degree(results: Results, rows: list[Row], canvas: Any) -> bool:
    names = [name for name in MAIN if any(row.get(name) is not None for row in rows)]
    if not names:
        return False
    grid = canvas.subplots(-(-len(names) // 2), 2, squeeze=False)
    for axes, name in zip(grid.ravel(), names, strict=False):
        for colour, (method, mine) in _methods(rows):
            known = [row for row in mine if row.get(name) is not None]
            x = [row["degree"] for row in known]
            axes.plot(x, [row[name] for row in known], ".-", color=colour, linewidth=1, markersize=3, label=method)
            if all(f"{name} low" in row for row in known) and known:
                low, high = ([row[f"{name} {end}"] for row in known] for end in ("low", "high"))
                axes.fill_between(x, low, high, color=colour, alpha=0.12, linewidth=0)
        for value, style in _lines(results, name):
            axes.axhline(value, color="0.4", linewidth=0.8, linestyle=style)
        axes.set(xlabel="degree", ylabel=_axis(name))
        axes.grid(alpha=0.3)
    for axes in grid.ravel()[len(names) :]:
        axes.set_axis_off()
    grid.ravel()[0].legend(fontsize=7)
    return True


def _lines(results: Results, name: str) -> list[tuple[float, str]]:
    """The clear ceiling, dashed, and chance, dotted."""
    styles = {"ceiling": "--", "negative": ":"}
    main = next(iter(results.sets), "")
    return [
        (one.value, styles[t.control])
        for t in results.trials if t.control in styles and t.set == main
        for one in t.figures if one.metric == name and one.value is not None
    ]  # fmt: skip


def _trade_off(results: Results, rows: list[Row], canvas: Any) -> bool:
    axes = canvas.subplots()
    drawn = crossed = False
    whole = set(tried_whole(results))
    for colour, (method, mine) in _methods(rows):
        known = [r for r in mine if r.get("mu-privacy") is not None and r.get("mu-utility") is not None]
        axes.plot(*_place([r for r in known if r["degree"] not in whole]), ".", color=colour, alpha=0.35, markersize=4)
        tried = [r for r in known if r["degree"] in whole]
        if not tried:
            continue
        x, y = _place(tried)
        axes.plot(x, y, "-", color=colour, linewidth=0.6, alpha=0.6)
        axes.scatter(x, y, s=[12 + row["degree"] for row in tried], color=colour, label=method, alpha=0.9)
        given = [row for row in tried if row.get(_CLOUD) is not None]
        axes.plot([row[_CLOUD] for row in given], [row["mu-utility"] for row in given], "x", color=colour, markersize=6)
        crossed = crossed or bool(given)
        for row in (tried[0], tried[-1]):
            place = (row["mu-privacy"], row["mu-utility"])
            axes.annotate(str(row["degree"]), place, fontsize=7, xytext=(4, 4), textcoords="offset points")
        drawn = True
    if drawn:
        if crossed:
            axes.plot([], [], "x", color="0.4", label="the cloud given away")
        axes.plot([0, 1], [1, 0], color="0.5", linewidth=0.8, linestyle="--")
        axes.set(
            xlim=(-0.03, 1.03), ylim=(-0.03, 1.03),
            xlabel="mean privacy under the strongest attacker (eq. 5.1)", ylabel="mean utility (eq. 5.2)",
        )  # fmt: skip
        axes.legend(fontsize=8)
        axes.grid(alpha=0.3)
    return drawn


def _place(rows: list[Row]) -> tuple[list[float], list[float]]:
    return [row["mu-privacy"] for row in rows], [row["mu-utility"] for row in rows]


def _pairs(results: Results, rows: list[Row], canvas: Any) -> bool:
    names, columns = _columns(rows)
    if len(names) < 2:
        return False
    complete = [row for row in rows if all(row.get(name) is not None for name in names)]
    # The layout of 36 axes takes longer than to draw them.
    canvas.subplots_adjust(0.08, 0.06, 0.99, 0.94, 0.35, 0.3)
    grid = canvas.subplots(len(names), len(names), squeeze=False)
    groups = list(_methods(complete))
    for i, below in enumerate(names):
        for j, beside in enumerate(names):
            axes = grid[i, j]
            for colour, (method, mine) in groups:
                y = [row[below] for row in mine]
                if i == j:
                    axes.hist(y, bins=12, range=(columns[i].min(), columns[i].max()), color=colour, alpha=0.4)
                else:
                    axes.scatter([row[beside] for row in mine], y, s=4, color=colour, label=method, alpha=0.7)
            axes.tick_params(labelsize=6)
            if i == len(names) - 1:
                axes.set_xlabel(_axis(beside), fontsize=8)
            if j == 0:
                axes.set_ylabel(_axis(below), fontsize=8)
    handles, labels = grid[0, 1].get_legend_handles_labels()
    canvas.legend(handles, labels, loc="upper center", ncols=6, fontsize=8)
    return True


def _correlations(results: Results, rows: list[Row], canvas: Any) -> bool:
    names, matrix = correlations(rows)
    if len(names) < 2:
        return False
    axes = canvas.subplots()
    image = axes.imshow(matrix, vmin=-1, vmax=1, cmap="RdBu_r")
    for i in range(len(names)):
        for j in range(len(names)):
            dark = abs(matrix[i, j]) > 0.6
            axes.text(j, i, f"{matrix[i, j]:.2f}", ha="center", va="center", color="white" if dark else "black")
    axes.set_xticks(range(len(names)), names, rotation=30, ha="right")
    axes.set_yticks(range(len(names)), names)
    canvas.colorbar(image, ax=axes, label="Pearson's r")
    return True


def _times(results: Results, rows: list[Row], canvas: Any) -> bool:
    groups = [(colour, method, _known(mine)) for colour, (method, mine) in _methods(rows)]
    groups = [one for one in groups if one[2]]
    if not groups:
        return False
    bars, lines = canvas.subplots(1, 2)
    for place, (colour, method, mine) in enumerate(groups):
        means = np.array([row["seconds"] for row in mine])
        # Over all runs, as the thesis has it: variance within degrees and between them.
        within = np.array([_number(row.get("seconds-sd")) for row in mine])
        spread = float(np.sqrt(np.nanmean(within**2) + means.var())) if np.isfinite(within).any() else means.std()
        bars.bar(place, means.mean(), yerr=[[min(spread, means.mean())], [spread]], color=colour, capsize=3)
        lines.plot([row["degree"] for row in mine], means, ".-", color=colour, label=method, markersize=3)
    bars.set_xticks(range(len(groups)), [method for _, method, _ in groups], rotation=30, ha="right", fontsize=8)
    bars.set_ylabel("seconds a face, mean and standard deviation")
    lines.set(xlabel="degree", ylabel="seconds a face", yscale="log")
    lines.legend(fontsize=7)
    for axes in (bars, lines):
        axes.grid(alpha=0.3)
    return True


def _cmc(results: Results, rows: list[Row], canvas: Any) -> bool:
    by_method: dict[str, list[tuple[int, list[list[float]]]]] = {}
    for label, facts in results.methods.items():
        worst = strongest(results, label)
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
            shade = {"color": (0.1, 0.3, 0.8, 0.3 + 0.7 * number / max(1, len(picked) - 1))}
            axes.plot(*zip(*curve, strict=True), label=f"degree {degree}", linewidth=1.2, **shade)
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


def _space(results: Results, rows: list[Row], canvas: Any) -> bool:
    names = [n for n in ("chamfer", "normal-error", "curvature-error") if any(r.get(n) is not None for r in rows)]
    if not names:
        return False
    grid = canvas.subplots(1, len(names), squeeze=False)[0]
    for axes, name in zip(grid, names, strict=True):
        for colour, (method, mine) in _methods(rows):
            known = [row for row in mine if row.get(name) is not None]
            axes.plot([r["degree"] for r in known], [r[name] for r in known], ".-", color=colour, label=method)
        axes.set(xlabel="degree", ylabel=_axis(name))
        axes.grid(alpha=0.3)
    grid[0].legend(fontsize=7)
    return True


def _methods(rows: list[Row]) -> list[tuple[str, tuple[str, list[Row]]]]:
    """Colour, method and its rows by degree; a method keeps its colour in every plot."""
    names = list(dict.fromkeys(row["method"] for row in rows))
    return [
        (f"C{number}", (name, sorted((r for r in rows if r["method"] == name), key=lambda r: int(r["degree"]))))
        for number, name in enumerate(names)
    ]


def _axis(name: str) -> str:
    return f"{name}, {UNITS[name]}" if name in UNITS else name


def _known(rows: list[Row]) -> list[Row]:
    return [row for row in rows if row.get("seconds") is not None]


def _number(value: Any) -> float:
    return float("nan") if value is None else float(value)


def _save(stem: Path, size: tuple[float, float], draw: Callable[[Any], bool]) -> Path | None:
    from matplotlib.figure import Figure as Canvas

    canvas = Canvas(figsize=size, layout=None if stem.name == "pairs" else "constrained")
    if not draw(canvas):
        return None
    for suffix in (".svg", ".png"):
        data = io.BytesIO()
        fixed: dict[str, Any] = {"metadata": {"Date": None}} if suffix == ".svg" else {"dpi": 110}
        canvas.savefig(data, format=suffix[1:], **fixed)
        with atomic_write(stem.with_suffix(suffix), overwrite=True) as file:
            file.write(data.getvalue())
    return stem.with_suffix(".png")


PLOTS: dict[str, tuple[str, tuple[float, float], Callable[[Results, list[Row], Any], bool]]] = {
    "trade-off": (
        "Privacy against utility (as figure 5.15): circles are degrees at which every attacker was tried, first and "
        "last numbered; dots the others, where fewer were; crosses: the cloud itself given away and attacked",
        (7.5, 6), _trade_off,
    ),
    "by-degree": (
        "Figures by degree (as figures 5.9 and 5.10), 95 % intervals shaded; dashed: clear projections, dotted: chance",
        (10, 14), _by_degree,
    ),
    "pairs": ("Pair plot of privacy and utility (as figure 5.13)", (10, 10), _pairs),
    "correlations": ("Correlations over all methods and degrees (as figure 5.14)", (6.5, 5.4), _correlations),
    "times": ("Time of one anonymisation (as figures 5.11 and 5.12)", (10, 4.4), _times),
    "cmc": ("CMC under the strongest attacker", (10, 6), _cmc),
    "space": ("Distortion in space, by degree", (10, 3.6), _space),
}  # fmt: skip
"""File → caption, size in inches, and what draws it; False where there is nothing to draw."""
