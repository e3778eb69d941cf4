"""Plots of a report, as PNG and SVG."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Literal

from ficgan.lab.pages import write_file
from ficgan.lab.report.tables import IDENTIFIES, headlines, value_of
from ficgan.lab.results import Results

TRADED = ("attributes-balanced", "smile-r", "ssim")  # Of the trade-off plot: the first that was measured is drawn


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
