"""Plots of results: privacy against utility, CMC, DET, per-layer curves, attackers by method."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from ficgan.images import atomic_write
from ficgan.lab.report.headline import figure, headlines
from ficgan.lab.results import Results, Trial

__all__ = ["draw_all"]

UTILITY = ("attributes-balanced", "smile-r", "ssim")
"""Utility metrics of the trade-off plots, the first that was measured."""


def draw_all(results: Results, folder: Path) -> dict[str, Path]:
    """Draw every plot the results have figures for, as PNG and SVG.

    Args:
        results: of an evaluation.
        folder: made where missing; files of the same names are replaced.

    Returns:
        Caption → PNG file, in the order of a page.
    """
    import matplotlib

    matplotlib.use("Agg")
    folder.mkdir(parents=True, exist_ok=True)
    drawn: dict[str, Path] = {}
    for name in results.sets:
        slug = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
        for stem, (caption, draw) in PLOTS.items():
            path = _save(folder / f"{slug}-{stem}", partial(draw, results, name))
            if path is not None:
                drawn[f"{name}: {caption}"] = path
    return drawn


def _save(stem: Path, draw: Callable[[Any], bool]) -> Path | None:
    from matplotlib.figure import Figure as Canvas

    canvas = Canvas(figsize=(9, 5.4), layout="constrained")
    if not draw(canvas.subplots()):
        return None
    for suffix in (".svg", ".png"):
        data = io.BytesIO()
        fixed: dict[str, Any] = {"metadata": {"Date": None}} if suffix == ".svg" else {"dpi": 130}
        canvas.savefig(data, format=suffix[1:], **fixed)
        with atomic_write(stem.with_suffix(suffix), overwrite=True) as file:
            file.write(data.getvalue())
    return stem.with_suffix(".png")


def _attackers(results: Results, name: str, axes: Any) -> bool:
    """Points of every trial, a row per method, the best protected on top."""
    order = [one.method for one in headlines(results) if one.set == name]
    marks: dict[str, str] = {}
    shapes = "osD^v<>pPX*h8d"
    for trial in results.trials:
        found = figure(trial.figures, "rank-1")
        if trial.set != name or trial.method not in order or found is None or found.value is None or trial.control:
            continue
        if trial.scenario not in marks:
            marks[trial.scenario] = shapes[len(marks) % len(shapes)]
        row = order.index(trial.method)
        colour = f"C{list(marks).index(trial.scenario) % 10}"
        axes.plot(found.value, row, marks[trial.scenario], color=colour, markersize=5, alpha=0.8)
    if not marks:
        return False
    for label, shape in marks.items():
        axes.plot([], [], shape, color=f"C{list(marks).index(label) % 10}", label=label)
    for trial in results.trials:
        if trial.set == name and trial.control in ("ceiling", "negative"):
            found = figure(trial.figures, "rank-1")
            if found is not None and found.value is not None:
                axes.axvline(found.value, color="0.5", linewidth=1, linestyle="--")
    axes.set_yticks(range(len(order)), order, fontsize=7)
    axes.invert_yaxis()
    axes.set(xlim=(-0.02, 1.02), xlabel="rank-1 (all judges)")
    axes.legend(fontsize=6, loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False)
    axes.grid(axis="x", alpha=0.3)
    return True


def _trade_off(results: Results, name: str, axes: Any) -> bool:
    shown = [one for one in headlines(results) if one.set == name and one.utility and one.figure]
    metric = next(
        (m for m in UTILITY if any(one.utility and _of(one.utility.figures, m) is not None for one in shown)), None
    )
    if metric is None:
        return False
    for number, one in enumerate(shown):
        assert one.utility is not None and one.figure is not None
        x, y = _of(one.utility.figures, metric), one.figure.value
        if x is None or y is None:
            continue
        # Numbers at the points, names beside the plot: names would cover each other where many methods fail alike.
        axes.plot(x, 1 - y, "o", color=f"C{number % 10}", markersize=4, label=f"{number + 1}  {one.method}")
        axes.annotate(str(number + 1), (x, 1 - y), fontsize=6, xytext=(3, 3), textcoords="offset points")
    axes.legend(fontsize=6, loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False)
    axes.set(xlabel=f"utility: {metric}", ylabel="privacy: 1 − rank-1 of the strongest attacker", ylim=(-0.03, 1.05))
    axes.grid(alpha=0.3)
    return True


def _cmc(results: Results, name: str, axes: Any) -> bool:
    if not _curves(results, name, axes, "cmc"):
        return False
    axes.set(xscale="log", xlabel="rank", ylabel="share of probes found within the rank", ylim=(0, 1.02))
    return True


def _det(results: Results, name: str, axes: Any) -> bool:
    if not _curves(results, name, axes, "det"):
        return False
    axes.set(xscale="log", yscale="log", xlabel="false match rate", ylabel="false non-match rate")
    return True


def _curves(results: Results, name: str, axes: Any, kind: str) -> bool:
    ceiling: list[tuple[str, Trial]] = [
        ("clear", trial) for trial in results.trials if trial.set == name and trial.scenario == "clear"
    ][:1]
    here = [one for one in headlines(results) if one.set == name]
    shown = ceiling + [(f"{one.method} ({one.trial.scenario})", one.trial) for one in here if one.trial]
    drawn = False
    for number, (label, trial) in enumerate(shown):
        points = trial.curves.get(kind)
        if points:
            style = "k--" if label == "clear" else "-" if number <= 10 else ":"
            colour = {} if label == "clear" else {"color": f"C{number % 10}"}
            axes.plot(*zip(*points, strict=True), style, linewidth=1, label=label, **colour)
            drawn = True
    if drawn:
        axes.legend(fontsize=6, loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False)
        axes.grid(alpha=0.3)
    return drawn


def _layers(results: Results, name: str, axes: Any) -> bool:
    """ID similarity and attribute agreement over i, for the k-same code and for another person's."""
    drawn = False
    for target, style in (("w_m (k-same)", "-"), ("w_t (another person)", "--")):
        points: dict[str, list[tuple[int, float]]] = {}
        for method, facts in results.methods.items():
            settings = facts["settings"]
            if facts["name"] != "ficgan" or settings["band"] or (settings["alpha"] >= 1) != target.startswith("w_t"):
                continue
            for trial in results.trials:
                if (trial.set, trial.method, trial.scenario) == (name, method, "naive"):
                    value = _of(trial.figures, "ID cosine")
                    if value is not None:
                        points.setdefault(f"ID cosine, {trial.recogniser}", []).append((settings["layer"], value))
            for use in results.utilities:
                if (use.set, use.method) == (name, method):
                    value = _of(use.figures, "attributes")
                    if value is not None:
                        points.setdefault("attribute agreement", []).append((settings["layer"], value))
        for number, (label, some) in enumerate(points.items()):
            if len(some) > 1:
                axes.plot(*zip(*sorted(some), strict=True), f"o{style}", color=f"C{number}", label=f"{label}, {target}")
                drawn = True
    if drawn:
        axes.set(xlabel="i: style layers 1…i keep the source's code (0 strongest)", ylabel="value")
        axes.legend(fontsize=7)
        axes.grid(alpha=0.3)
    return drawn


def _of(figures: Any, metric: str) -> float | None:
    found = figure(figures, metric)
    return None if found is None else found.value


PLOTS: dict[str, tuple[str, Callable[[Results, str, Any], bool]]] = {
    "attackers": ("rank-1 of every attacker, by method; lines: clear ceiling and chance", _attackers),
    "trade-off": ("the strongest attacker's rank-1 against utility", _trade_off),
    "cmc": ("CMC of each method's strongest attacker", _cmc),
    "det": ("DET of each method's strongest attacker", _det),
    "layers": ("FICGAN by the layer index i (as the paper's Figure 4)", _layers),
}
"""File → caption and what draws it on axes; False where there is nothing to draw."""
