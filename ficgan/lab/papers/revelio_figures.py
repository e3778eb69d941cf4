"""Revelio's figures: detection of strangers, confusion of kernels, the sweep, and strips of what was restored."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ficgan.arrays import resize
from ficgan.errors import FicganError
from ficgan.images import atomic_write
from ficgan.lab.papers.revelio_base import Outcome
from ficgan.lab.papers.revelio_lab import Lab
from ficgan.lab.papers.revelio_published import BLURS, OUT_OF_DISTRIBUTION, SWEEP
from ficgan.lab.papers.revelio_swept import BOUNDS, SWEPT
from ficgan.lab.papers.revelio_tables import MEASURES
from ficgan.lab.papers.revelio_tuned import tuned_guesses
from ficgan.lab.report.tables import figure
from ficgan.lab.results import Trial

__all__ = ["COLOURS", "WARNING", "draw_revelio", "draw_strips", "saved"]

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#F0E442", "#000000")
"""Told apart by the colour-blind (Okabe and Ito 2008)."""
WARNING = (
    "These strips show real people as they are and as an attacker restores them. Do not publish or pass them on, and "
    "delete them when you have looked."
)
_SHOWN = 128
_GAP = 4


def draw_revelio(lab: Lab, outcomes: Mapping[str, Outcome], out: Path) -> list[Path]:
    """Every figure there is something for.

    Args:
        lab: set and attackers.
        outcomes: part → what it found.
        out: plots come into `figures`, strips and their warning into `pictures`.

    Returns:
        The files written.
    """
    import matplotlib

    matplotlib.use("Agg")
    written: list[Path] = []
    plots: tuple[tuple[str, str, Callable[[Outcome, Any], None], tuple[float, float]], ...] = (
        ("ood", "figure-7", _detection, (5.2, 4.4)),
        ("kernel", "figure-13", _confusion, (5.4, 4.6)),
        ("sweep", "figure-15", _sweep, (13, 4.4)),
    )
    for part, stem, draw, size in plots:
        if part in outcomes:
            written += saved(out / "figures" / stem, partial(draw, outcomes[part]), size)
    if lab.paper.pictures and "base" in outcomes:
        written += draw_strips(lab, out / "pictures", tuned="fine-tuning" in outcomes)
    return written


def saved(stem: Path, draw: Callable[[Any], None], size: tuple[float, float]) -> list[Path]:
    """A plot as PNG and SVG.

    Args:
        stem: files without suffix; their folder is made.
        draw: given the canvas, a matplotlib Figure.
        size: inches.
    """
    from matplotlib.figure import Figure as Canvas

    canvas = Canvas(figsize=size, layout="constrained")
    draw(canvas)
    stem.parent.mkdir(parents=True, exist_ok=True)
    written = []
    for suffix in (".png", ".svg"):
        data = io.BytesIO()
        fixed: dict[str, Any] = {"metadata": {"Date": None}} if suffix == ".svg" else {"dpi": 130}
        canvas.savefig(data, format=suffix[1:], **fixed)
        written.append(_write(stem.with_suffix(suffix), data.getvalue()))
    return written


def draw_strips(lab: Lab, folder: Path, *, tuned: bool = False) -> list[Path]:
    """Figures 4 to 6: a row for each face: clear, blurred, each attacker's guess, fine-tuned; one PNG for each blur.

    Args:
        lab: set and attackers; their guesses are in its store.
        folder: made where missing; holds the warning, too.
        tuned: whether the fine-tuned guesses are shown.
    """
    folder.mkdir(parents=True, exist_ok=True)
    written = [_write(folder / "READ-FIRST.txt", f"{WARNING}\n".encode())]
    rows = lab.world.closed
    for level in BLURS:
        how = lab.blur(level)
        seen = lab.seen(how, rows)
        columns: dict[str, NDArray[np.uint8]] = {"clear": lab.bench.prepared.faces.take(rows).images}
        columns["blurred"] = seen.images
        for label, spec in lab.paper.named:
            try:
                columns[label] = lab.attack(label, spec, how).guess(seen, rows).images
            except FicganError:
                continue  # its line in the table says why
        if tuned and level == "heavy" and (found := tuned_guesses(lab)) is not None:
            columns["fine-tuned"] = found
        shown = min([lab.paper.pictures, *(len(images) for images in columns.values())])
        written.append(_write(folder / f"{level}.png", _strip(columns, shown)))
        written.append(_write(folder / f"{level}.txt", f"From left to right: {', '.join(columns)}.\n".encode()))
    return written


def _strip(columns: Mapping[str, NDArray[np.uint8]], count: int) -> bytes:
    from PIL import Image

    step = _SHOWN + _GAP
    whole = np.full((count * step - _GAP, len(columns) * step - _GAP, 3), 255, np.uint8)
    for x, images in enumerate(columns.values()):
        for y in range(count):
            whole[y * step : y * step + _SHOWN, x * step : x * step + _SHOWN] = resize(images[y], _SHOWN)
    data = io.BytesIO()
    Image.fromarray(whole).save(data, format="PNG")
    return data.getvalue()


def _detection(outcome: Outcome, canvas: Any) -> None:
    axes = canvas.subplots()
    for number, (judge, curve) in enumerate(outcome.facts["curves"].items()):
        axes.step(
            curve["FPR"], curve["TPR"], where="post", color=COLOURS[number % len(COLOURS)],
            label=f"{judge}, AUC {curve['AUC']:.2f}",
        )  # fmt: skip
    told = OUT_OF_DISTRIBUTION
    axes.plot(told["FPR"], told["TPR"], "k*", markersize=9, label=f"the paper at d = {told['threshold']:g}")
    axes.plot([0, 1], [0, 1], color="0.6", linewidth=1, linestyle=":")
    axes.set(
        xlabel="known people called strangers (FPR)", ylabel="strangers called strangers (TPR)", xlim=(-0.02, 1.02),
        ylim=(-0.02, 1.02), title="Open world: strangers detected",
    )  # fmt: skip
    axes.legend(fontsize=8)
    axes.grid(alpha=0.3)


def _confusion(outcome: Outcome, canvas: Any) -> None:
    axes = canvas.subplots()
    counts = np.array(outcome.facts["confusion"], np.float64)
    kernels, scale = outcome.facts["kernels"], outcome.facts["scale"]
    half = (kernels[1] - kernels[0]) / 2 if len(kernels) > 1 else 1
    extent = (kernels[0] - half, kernels[-1] + half, kernels[-1] + half, kernels[0] - half)
    shares = counts / counts.sum(1, keepdims=True).clip(1)
    image = axes.imshow(shares, cmap="cividis", vmin=0, vmax=1, extent=extent)
    canvas.colorbar(image, ax=axes, label="share of the photos")
    error = outcome.facts["error"]
    axes.set(
        xlabel="estimated kernel, px of the crop", ylabel="kernel that blurred it",
        title=f"mean absolute error {error:.2f} px ({error * scale:.2f} of 256)",
    )  # fmt: skip


def _sweep(outcome: Outcome, canvas: Any) -> None:
    trials = [one for one in outcome.trials if one.scenario == SWEPT]
    judges = list(dict.fromkeys(one.recogniser for one in trials))
    panels = ["IRA", *MEASURES]
    for axes, name in zip(canvas.subplots(1, len(panels)), panels, strict=True):
        for number, judge in enumerate(judges if name in ("IRA", "IDD") else judges[:1]):
            mine = [one for one in trials if one.recogniser == judge]
            label = judge if name in ("IRA", "IDD") else "restored"
            _line(axes, [one for one in mine if one.attacker not in BOUNDS], name, label, COLOURS[number])
        for bound, style in zip(BOUNDS, ("--", ":"), strict=True):
            one = next((one for one in trials if one.attacker == bound and one.recogniser == judges[0]), None)
            value = None if one is None else _value(one, name)
            if value is not None:
                axes.axhline(value[0], color="0.4", linewidth=1, linestyle=style, label=bound)
        axes.axvline(SWEEP["trained"], color="0.8", linewidth=1)
        axes.set(xlabel="kernel, px of 256", title=_measured(trials, name))
        axes.grid(alpha=0.3)
        if axes.get_legend_handles_labels()[0]:
            axes.legend(fontsize=6)


def _measured(trials: list[Trial], name: str) -> str:
    """What a column of the paper is here: the published measure, or its stand-in by the stand-in's name."""
    known = {one.metric for trial in trials for one in trial.figures if one.value is not None}
    return next((metric for metric in MEASURES.get(name, (name,)) if metric in known), name)


def _line(axes: Any, trials: list[Trial], name: str, judge: str, colour: str) -> None:
    points = {int(one.method.removeprefix("K ")): found for one in trials if (found := _value(one, name)) is not None}
    if not points:
        return
    at = sorted(points)
    axes.plot(at, [points[k][0] for k in at], "o-", color=colour, markersize=3, label=judge)
    low, high = ([points[k][end] for k in at] for end in (1, 2))
    if None not in (*low, *high):
        axes.fill_between(at, low, high, color=colour, alpha=0.15, linewidth=0)


def _value(trial: Trial, name: str) -> tuple[float, float | None, float | None] | None:
    for metric in MEASURES.get(name, (name,)):
        found = figure(trial.figures, metric)
        if found is not None and found.value is not None:
            return found.value, found.low, found.high
    return None


def _write(path: Path, data: bytes) -> Path:
    with atomic_write(path, overwrite=True) as file:
        file.write(data)
    return path
