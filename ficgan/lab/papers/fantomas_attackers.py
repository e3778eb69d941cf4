"""Fantômas by attacker: what each one reverses (E2, E3, E4), a bar plot for each method, reversibility over utility."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from ficgan.lab.papers.reversible import REVERSED, Verdict, above
from ficgan.lab.report.tables import figure, spelled
from ficgan.lab.results import Figure, Results, Trial

__all__ = ["attacker_tables", "draw_fantomas", "elsewhere_table", "transfer_table"]

GLOBAL = ("block-permutation", "pixel-relocation")
"""Methods that move pixels through the whole image: E2.2."""
GENERAL, SPECIALISED = "reversed-general", "reversed-specialised"
_MODEL, _CONV, _PIX2PIX = "autoencoder", "autoencoder:linear=none", "pix2pix"
NAMES = {_MODEL: "auto-encoder", _CONV: "conv AE", _PIX2PIX: "Pix2Pix"}
"""What the paper calls its general attackers."""
_MISSING = {True: "not made for it", False: "not run"}
UTILITY = ("lpips", "lpips-squeezenet", "attributes-balanced", "ssim")
COLOURS = {"base": "#000000", "seen": "#0072B2", SPECIALISED: "#E69F00", GENERAL: "#D55E00"}
"""Told apart by the colour-blind, and by the words beside the bars (Okabe and Ito 2008)."""


def attacker_tables(results: Results, found: Sequence[Verdict]) -> list[dict[str, Any]]:
    """Every attacker by method, and E2.2, E3.1 and E3.2.

    Args:
        results: of a matrix with the scenarios of Fantômas.
        found: verdicts on it.
    """
    return [_every(results), _linear_layer(results), _against_parrots(found), _made_for_it(results)]


def transfer_table(trials: Iterable[Trial]) -> dict[str, Any]:
    """E4.1: attackers that have learnt other parameters or methods than those they meet.

    Args:
        trials: of `transfer`, scenario "transfer: ATTACKER".
    """
    rows = [
        {
            "attacker": trial.scenario.partition(": ")[2], "learnt": trial.attacker, "met": trial.method,
            "judge": trial.recogniser,
            **{name: spelled(figure(trial.figures, name)) for name in ("rank-1", "IDD", "SSIM")},
        }
        for trial in trials
    ]  # fmt: skip
    return {
        "title": "Learnt on one anonymisation, tried on another (Fantômas, E4.1, Figures 12 and 17)",
        "note": "The paper expects that accuracy falls as parameters get less alike, and that nothing is reversed "
        "where the method is another. It prints no numbers.",
        "rows": rows or [{"": "not run: ask for it with --transfer, and with an attacker that learns from pairs"}],
    }


def elsewhere_table(results: Results, elsewhere: Results | None) -> dict[str, Any]:
    """E4.2: general attackers that have learnt another set, beside the same that have learnt this one.

    Args:
        results: of a matrix whose attackers learnt this set.
        elsewhere: of the same matrix with `learn_from`; None where there is none.
    """
    told = ": learnt on "
    rows = []
    for other in [] if elsewhere is None else elsewhere.trials:
        attacker, learnt, origin = other.attacker.partition(told)
        if other.scenario != GENERAL or not learnt:
            continue
        wanted = replace(other, attacker=attacker, figures=(), curves={}, groups={})
        bare = ((one, replace(one, figures=(), curves={}, groups={})) for one in results.trials)
        here = next((one for one, alike in bare if alike == wanted), None)
        a, b = (None if one is None else figure(one.figures, "rank-1") for one in (here, other))
        values = [one.value for one in (a, b) if one is not None and one.value is not None]
        rows.append({
            "method": other.method, "attacker": attacker, "judge": other.recogniser,
            "learnt here": spelled(a) or "not run", "learnt elsewhere": spelled(b), "on": origin,
            "lost": f"{values[0] - values[1]:+.3f}" if len(values) == 2 else "–",
        })  # fmt: skip
    return {
        "title": "Learnt on another set of faces (Fantômas, E4.2, Figure 11)",
        "note": "rank-1. The paper trains on DigiFace-1M (computer-made faces) and expects a slightly lower accuracy "
        "that generally still works; its figure prints no numbers.",
        "rows": rows or [{"": "not run: give another set with --learn-from"}],
    }


def kind(trial: Trial) -> str:
    """A learned attacker's name without the size and length of its training; any other as it is."""
    name, _, rest = trial.attacker.partition(":")
    kept = [part for part in rest.split(",") if part.startswith("linear=") and part != "linear=full"]
    return f"{name}:{kept[0]}" if kept and name == _MODEL else name if name in NAMES else trial.attacker


def draw_fantomas(results: Results, found: Sequence[Verdict], folder: Path) -> list[Path]:
    """Figures 8 to 10 for each method, and Figure 14 where utility was measured; PNG and SVG.

    Args:
        results: of a matrix with the scenarios of Fantômas.
        found: verdicts on it.
        folder: made where missing.
    """
    import matplotlib

    matplotlib.use("Agg")
    from ficgan.lab.papers.revelio_figures import saved

    written: list[Path] = []
    for name in results.sets:
        for method in results.methods:
            bars = _bars(results, name, method)
            if bars:
                stem = folder / f"{_slug(name)}-{_slug(method)}"
                size = (0.9 * max(6, len(bars)) + 1, 4.2)
                written += saved(stem, partial(_draw_bars, bars, method), size)
        points = _points(results, found, name)
        if points:
            stem = folder / f"{_slug(name)}-reversibility-utility"
            written += saved(stem, partial(_draw_points, *points), (6.4, 4.6))
    return written


def _every(results: Results) -> dict[str, Any]:
    rows: list[dict[str, Any]] = []
    columns = list(dict.fromkeys(_column(one) for one in results.trials if one.scenario in REVERSED and one.attacker))
    for name, method, judge, own in _by_method(results):
        row: dict[str, Any] = {"set": name, "method": method, "judge": judge}
        row |= {told: _said(own, scenario) for told, scenario in (("naive", "naive"), ("parrot", "parrot-enrol"))}
        cells = {_column(one): _rank(one) for one in own if one.scenario in REVERSED}
        rows.append(row | {column: cells.get(column, _MISSING[column.startswith("(")]) for column in columns})
    return {
        "title": "Every attacker (Fantômas, Figures 8 to 10 and 18 to 30)",
        "note": "rank-1, mean over people, with 95 % intervals. General attackers know nothing of the method; "
        "specialised ones, in brackets, were made for some methods.",
        "rows": rows or [{"": "not run"}],
    }


def _linear_layer(results: Results) -> dict[str, Any]:
    """E2.2: the auto-encoder against Pix2Pix, and against itself without its linear layer."""
    rows = []
    for name, method, judge, own in _by_method(results):
        by_kind = {kind(one): figure(one.figures, "rank-1") for one in own if one.scenario == GENERAL}
        everywhere = results.methods[method]["name"] in GLOBAL
        row: dict[str, Any] = {"set": name, "method": method, "judge": judge, "moves pixels far": _yes(everywhere)}
        row |= {told: spelled(by_kind.get(one)) or "not run" for one, told in NAMES.items()}
        row |= {
            f"auto-encoder better than {NAMES[other]}?": _word(above(by_kind.get(_MODEL), by_kind.get(other)))
            for other in (_PIX2PIX, _CONV)
        }
        rows.append(row)
    return {
        "title": "Does the linear layer undo what is moved far? (Fantômas, E2.2)",
        "note": "Yes: the whole 95 % interval lies above the other's. The paper: large differences for Block "
        "Permutation and Pixel Relocation, and of the layer itself also for DP Pix, Eye Mask, k-RTIO and "
        "Pixelation (7.5.2).",
        "rows": sorted(rows, key=lambda row: row["moves pixels far"] != "yes") or [{"": "not run"}],
    }


def _against_parrots(found: Sequence[Verdict]) -> dict[str, Any]:
    """E3.1."""
    rows = [
        {
            "set": one.set, "method": one.method, "judge": one.judge, "naive": spelled(one.naive),
            "parrot": spelled(one.parrot), "best reversal": spelled(one.best), "by": one.attacker,
            "above naive?": _word(above(one.best, one.naive)), "above the parrot?": _word(above(one.best, one.parrot)),
        }
        for one in found
    ]  # fmt: skip
    return {
        "title": "Reversal against naive and parrot recognition (Fantômas, E3.1)",
        "note": "Yes: the whole 95 % interval lies above. The paper: above naive everywhere; parrots do better for Eye "
        "Mask, DeepPrivacy, CIAGAN and k-Same-Eigen (7.5.2).",
        "rows": rows or [{"": "not run"}],
    }


def _made_for_it(results: Results) -> dict[str, Any]:
    """E3.2."""
    rows = []
    for name, method, judge, own in _by_method(results):
        general, special = (
            _best(one for one in own if one.scenario == scenario) for scenario in (GENERAL, SPECIALISED)
        )
        if special is None:
            continue
        a, b = (None if one is None else figure(one.figures, "rank-1") for one in (special, general))
        rows.append({
            "set": name, "method": method, "judge": judge, "best made for it": spelled(a), "which": special.attacker,
            "best general": spelled(b) or "not run", "which general": general.attacker if general else "–",
            "made for it is better?": _word(above(a, b)), "general is better?": _word(above(b, a)),
        })  # fmt: skip
    return {
        "title": "Attackers made for a method against general ones (Fantômas, E3.2)",
        "note": "The paper: often as expected (made for it is better), with cases in which general ones match or "
        "outperform (7.5.2).",
        "rows": rows or [{"": "not run: no attacker made for a method was tried"}],
    }


def _by_method(results: Results) -> Iterable[tuple[str, str, str, list[Trial]]]:
    for name in results.sets:
        for method in results.methods:
            own = [one for one in results.trials if (one.set, one.method) == (name, method)]
            for judge in dict.fromkeys(one.recogniser for one in own if one.recogniser):
                yield name, method, judge, [one for one in own if one.recogniser == judge]


def _column(trial: Trial) -> str:
    name = NAMES.get(kind(trial), trial.attacker)
    return name if trial.scenario == GENERAL else f"({name})"


def _rank(trial: Trial) -> str:
    return spelled(figure(trial.figures, "rank-1"))


def _said(own: list[Trial], scenario: str) -> str:
    return next((_rank(one) for one in own if one.scenario == scenario), "not run")


def _best(trials: Iterable[Trial]) -> Trial | None:
    valued = [(one, found.value) for one in trials if (found := figure(one.figures, "rank-1")) is not None]
    known = [(one, value) for one, value in valued if value is not None]
    return max(known, key=lambda pair: pair[1])[0] if known else None


def _bars(results: Results, name: str, method: str) -> list[tuple[str, str, Figure]]:
    """(label, kind, rank-1) from left to right, by the first judge."""
    judge = next((one.recogniser for one in results.trials if one.set == name and one.recogniser), "")
    here = [one for one in results.trials if (one.set, one.recogniser) == (name, judge)]
    own = [one for one in here if one.method == method]
    picked = [("clear", "base", [one for one in here if one.scenario == "clear"][:1])]
    picked += [
        (label, "seen", [one for one in own if one.scenario == scenario][:1])
        for label, scenario in (("naive", "naive"), ("parrot", "parrot-enrol"))
    ]
    picked += [(_column(one).strip("()"), one.scenario, [one]) for one in own if one.scenario in (SPECIALISED, GENERAL)]
    bars = []
    for label, what, trials in picked:
        found = figure(trials[0].figures, "rank-1") if trials else None
        if found is not None and found.value is not None:
            bars.append((label, what, found))
    return bars if any(what in REVERSED for _, what, _ in bars) else []


def _draw_bars(bars: Sequence[tuple[str, str, Figure]], method: str, canvas: Any) -> None:
    axes = canvas.subplots()
    words = {"base": "clear images", "seen": "anonymised images", SPECIALISED: "made for it", GENERAL: "general"}
    told: set[str] = set()
    for at, (_, what, one) in enumerate(bars):
        value = one.value or 0.0
        low, high = (value if end is None else end for end in (one.low, one.high))
        axes.bar(
            at, value, color=COLOURS[what], yerr=[[max(0.0, value - low)], [max(0.0, high - value)]], capsize=3,
            ecolor="0.45", label=None if what in told else words[what],
        )  # fmt: skip
        told.add(what)
    axes.set_xticks(range(len(bars)), [label for label, _, _ in bars], rotation=35, ha="right", fontsize=8)
    axes.set(ylim=(0, 1.05), ylabel="rank-1, 95 % interval", title=method)
    axes.legend(fontsize=7, loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False)
    axes.grid(axis="y", alpha=0.3)


def _points(
    results: Results, found: Sequence[Verdict], name: str
) -> tuple[str, list[tuple[str, float, Figure]]] | None:
    """The utility metric, and (method, utility, reversibility) of the first judge."""
    uses = {one.method: one.figures for one in results.utilities if one.set == name}
    metric = next((m for m in UTILITY if any(_has(figures, m) for figures in uses.values())), None)
    judge = next((one.judge for one in found if one.set == name), None)
    if metric is None or judge is None:
        return None
    points = []
    for one in found:
        use = figure(uses.get(one.method, ()), metric)
        known = use is not None and use.value is not None and one.gain is not None and one.gain.value is not None
        if (one.set, one.judge) == (name, judge) and known:
            assert use is not None and use.value is not None and one.gain is not None
            points.append((one.method, use.value, one.gain))
    return (metric, points) if points else None


def _draw_points(metric: str, points: Sequence[tuple[str, float, Figure]], canvas: Any) -> None:
    axes = canvas.subplots()
    for method, use, gain in points:
        value = gain.value or 0.0
        low, high = (value if end is None else end for end in (gain.low, gain.high))
        spread = [[max(0.0, value - low)], [max(0.0, high - value)]]
        axes.errorbar(use, value, yerr=spread, fmt="o", color=COLOURS["seen"], ecolor="0.7", markersize=4)
        axes.annotate(method, (use, value), fontsize=6, xytext=(3, 3), textcoords="offset points")
    axes.axhline(0, color="0.6", linewidth=1)
    axes.set(
        xlabel=f"utility: {metric}{' (less is better)' if metric.startswith('lpips') else ''}",
        ylabel="reversibility: (best − naive) / clear", title="Fantômas, Figure 14, with a measured utility",
    )  # fmt: skip
    axes.grid(alpha=0.3)


def _has(figures: Sequence[Figure], metric: str) -> bool:
    found = figure(figures, metric)
    return found is not None and found.value is not None


def _word(value: bool | None) -> str:
    return "undecided" if value is None else _yes(value)


def _yes(value: bool) -> str:
    return "yes" if value else "no"


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
