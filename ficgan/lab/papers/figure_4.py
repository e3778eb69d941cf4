"""FICGAN's Figure 4: ID similarity and attributes over the layer index."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

from ficgan.images import atomic_write
from ficgan.lab.papers.ficgan import Run
from ficgan.lab.results import Figure

__all__ = ["draw_figure_4"]

_CODES = (("w_m", "o-", "k-same, w_m"), ("w_t", "s--", "another person, w_t"))
_SINGLE = ("Eyeglasses", "Bangs", "Smiling", "Male", "Wearing_Hat", "Young")
"""Attributes of (c): the first two are the paper's example in the text."""


def draw_figure_4(run: Run, folder: Path) -> list[Path]:
    """As PNG and SVG: (a) ID similarity, (b) all attributes, (c) single attributes; what was not measured is left out.

    Args:
        run: of `run_ficgan`, with two layers at least.
        folder: made where missing.

    Returns:
        Files written, the PNG first; none with a single layer.
    """
    if len(run.layers) < 2:
        return []
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib.figure import Figure as Canvas

    panels = [_identity] if run.classifier is None else [_identity, _all_attributes, _single_attributes]
    canvas = Canvas(figsize=(4.6 * len(panels), 4), layout="constrained")
    for axes, draw in zip(canvas.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        draw(run, axes)
        axes.set(xlabel="i: layers 1…i keep the source's code", xticks=run.layers)
        axes.grid(alpha=0.3)
        if axes.lines:
            axes.legend(fontsize=6)
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for suffix in ("png", "svg"):
        data = io.BytesIO()
        fixed: dict[str, Any] = {"metadata": {"Date": None}} if suffix == "svg" else {"dpi": 130}
        canvas.savefig(data, format=suffix, **fixed)
        path = folder / f"figure-4.{suffix}"
        with atomic_write(path, overwrite=True) as file:
            file.write(data.getvalue())
        written.append(path)
    return written


def _identity(run: Run, axes: Any) -> None:
    for code, style, title in _CODES:
        for number, judge in enumerate(run.strangers.judges):
            points = {i: one.judges[judge][0] for i, one in run.by_layer(code).items()}
            _curve(axes, points, style, f"{title} ({judge})", f"C{number}")
    for number, (judge, figures) in enumerate(run.strangers.judges.items()):
        axes.axhline(figures[0].value, color=f"C{number}", linewidth=1, linestyle=":", label=f"strangers ({judge})")
    axes.set(ylabel="ID similarity of source and output", title="(a)")


def _all_attributes(run: Run, axes: Any) -> None:
    for code, style, title in _CODES:
        for number, (metric, what) in enumerate((("attributes", "as read"), ("attributes-accuracy", "as labelled"))):
            points = {i: found for i, one in run.by_layer(code).items() if (found := one.figure(metric)) is not None}
            _curve(axes, points, style, f"{title}, {what}", f"C{number}")
    axes.set(ylabel="share of attributes kept", title="(b)")


def _single_attributes(run: Run, axes: Any) -> None:
    """Curves of images that have the attribute, for the k-same code."""
    for number, name in enumerate(_SINGLE):
        shares = {i: one.attributes[name].there for i, one in run.by_layer("w_m").items() if name in one.attributes}
        points = {i: Figure(name, share) for i, share in shares.items() if share is not None}
        _curve(axes, points, "o-", name, f"C{number}")
    axes.set(ylabel="share kept of the images that have it", title="(c) k-same, w_m", ylim=(-0.02, 1.02))


def _curve(axes: Any, points: dict[int, Figure], style: str, label: str, colour: str) -> None:
    layers = sorted(points)
    if not layers:
        return
    axes.plot(layers, [points[i].value for i in layers], style, color=colour, label=label, markersize=4)
    low, high = [points[i].low for i in layers], [points[i].high for i in layers]
    if None not in (*low, *high):
        axes.fill_between(layers, low, high, color=colour, alpha=0.12, linewidth=0)
