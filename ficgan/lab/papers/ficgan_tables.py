"""FICGAN's tables from what was measured, the published rows beneath one's own; and Figure 4."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ficgan.lab.papers import published
from ficgan.lab.papers.bench import Row
from ficgan.lab.papers.ficgan import Found, Kept, Run
from ficgan.lab.report.page import save_plot
from ficgan.lab.results import Figure

__all__ = ["draw_figure_4", "ficgan_tables"]

LEAST = 5  # Images with an attribute that a share of its own needs
_SHARES = {
    "attributes": "attributes as read in the source, %",
    "attributes-balanced": "the same, balanced, %",
    "attributes-accuracy": "attributes as labelled, %",
}
_CODES = (("w_m", "o-", "k-same, w_m"), ("w_t", "s--", "another person, w_t"))
_SINGLE = ("Eyeglasses", "Bangs", "Smiling", "Male", "Wearing_Hat", "Young")
"""Attributes of Figure 4c: the first two are the paper's example in the text."""


def ficgan_tables(run: Run) -> list[dict[str, Any]]:
    """Tables for a page: {"title", "note", "rows"}."""
    chosen = sorted({run.layers[0], min(run.layers, key=lambda i: abs(i - 4)), run.layers[-1]})
    tables = [_table_1(run, chosen), _table_a(run), _figure_4(run), _figure_b(run, chosen), _table_2(run)]
    return [table for table in tables if table is not None]


def _table_1(run: Run, chosen: Sequence[int]) -> Row:
    names = {"w_t": "FICGAN (w_t, another person)", "w_m": "FICGAN + manifold k-same (w_m)"}
    rows = [{"method": "another person's photo", "i": "–", "FID": "–", "FD-SqueezeNet": "–", **_scores(run.strangers)}]
    for code, name in names.items():
        rows += [
            {"method": name, "i": layer, **_distances(one), **_scores(one)}
            for layer, one in run.by_layer(code).items()
            if layer in chosen
        ]
    return _table("De-identification (Table 1)", published.FICGAN_COMPARISON, _trained(run), rows)


def _table_2(run: Run) -> Row | None:
    if len(run.main) == len(run.found):
        return None
    rows = [
        {"method": setting.model + (" + k-same" if setting.code == "w_m" else ""), "i": 0, **_scores(one)}
        for setting, one in run.found.items()
        if setting.layer == 0
    ]
    return _table("Ablations (Table 2)", published.FICGAN_ABLATIONS, "", rows)


def _table_a(run: Run) -> Row:
    titles = {"mse": "MSE", "lpips": "LPIPS", "lpips-squeezenet": "LPIPS-like (SqueezeNet)"}
    row = {title: _number(run.reconstruction.figure(metric)) for metric, title in titles.items()}
    scores = {key: value for key, value in _scores(run.reconstruction).items() if key.startswith("ID")}
    note = "MSE here is of pixels on [−1, 1]. LPIPS-like (SqueezeNet) is no published LPIPS: do not compare the two."
    rows = [{"method": "FICGAN", **row, **scores}]
    return _table("Reconstruction (Table A)", published.FICGAN_RECONSTRUCTION, note, rows)


def _figure_4(run: Run) -> Row:
    rows = [{"code": setting.code, "i": setting.layer, **_scores(one)} for setting, one in run.main.items()]
    note = f"w_m: the k-same code; w_t: another person's. i = 0 is the strongest; L = {run.num_layers}. "
    note += published.FICGAN_FIGURE_4
    return {"title": "By layer index (Figure 4)", "note": note, "rows": _pruned(rows)}


def _figure_b(run: Run, chosen: Sequence[int]) -> Row | None:
    by_layer = {layer: one for layer, one in run.by_layer("w_m").items() if layer in chosen}
    rows, named = [], published.FICGAN_CONTROLLABLE | published.FICGAN_UNCONTROLLABLE
    for name in by_layer[chosen[0]].attributes:
        others = run.strangers.attributes[name]
        row: Row = {"attribute": name, "images with it": others.images}
        row |= {f"kept where there, i = {layer}": _share(one.attributes[name]) for layer, one in by_layer.items()}
        row |= {f"kept where not, i = {layer}": _share(one.attributes[name], True) for layer, one in by_layer.items()}
        row["another person's photo has it too"] = _share(others)
        row["paper"] = named.get(name, "not named in the text")
        rows.append(row)
    if not rows:
        return None
    first = f"kept where there, i = {chosen[0]}"
    rows.sort(key=lambda row: (row[first] == "–", float(row[first]) if row[first] != "–" else 0.0))
    note = (
        "Share, per cent, of images in which the classifier still reads what it read in the source, with the k-same "
        "code w_m: low where the code decides (controllable), high where the rest of the image does (uncontrollable). "
        "As the code of an average face lacks rare attributes, only the first columns speak of control; compare them "
        f"with the column of another person's photo. Of fewer than {LEAST} images there is no share. Figure B of the "
        "paper is a picture; its text names a few of the forty."
    )
    return {"title": "Controllable attributes (Figure B)", "note": note, "rows": rows}


def _table(title: str, printed: published.Printed, note: str, rows: list[Row]) -> Row:
    published = [
        {"from": printed.paper, **{"attributes, paper" if key == "attributes" else key: row[key] for key in row}}
        for row in printed.rows
    ]
    note = f"{note} The paper ({printed.where}): {printed.protocol}".strip()
    return {"title": title, "note": note, "rows": _pruned([*({"from": "here", **row} for row in rows), *published])}


def _pruned(rows: Sequence[Row]) -> list[Row]:
    columns = dict.fromkeys(key for row in rows for key in row)
    used = [key for key in columns if any(row.get(key, "–") != "–" for row in rows)]
    return [{key: row.get(key, "–") for key in used} for row in rows]


def _scores(one: Found) -> Row:
    row: Row = {}
    for judge, (similarity, match) in one.judges.items():
        by = "" if len(one.judges) == 1 else f", {judge}"
        row |= {f"ID similarity{by}": _number(similarity), f"taken for the same person, %{by}": _number(match, 100)}
    return row | {title: _number(one.figure(metric), 100) for metric, title in _SHARES.items()}


def _distances(one: Found) -> Row:
    return {"FID": _number(one.figure("fid")), "FD-SqueezeNet": _number(one.figure("fd-squeezenet"))}


def _trained(run: Run) -> str:
    text = (
        "ID similarity and attributes have 95 % intervals by person. “Another person's photo” is what chance gives. "
        "FD-SqueezeNet is no FID: do not compare the two."
    )
    first = next(iter(run.found.values()))
    if near := first.figure("fid") or first.figure("fd-squeezenet"):
        text += f" Fréchet distances are {near.note}."
    if run.classifier is None:
        return f"{text} No attribute classifier was given."
    if labelled := first.figure("attributes-accuracy"):
        text += f" As labelled, the classifier's answers are right: {labelled.note}."
    test = run.classifier.get("test", {})
    if "accuracy" not in test:
        return text
    return (
        f"{text} The classifier is right in {100 * test['accuracy']:.1f} % of the answers on people it was not trained "
        f"on, the commoner answer in {100 * test['commoner_answer']:.1f} %; on people it was trained on the figure as "
        "labelled is flattered."
    )


def _number(one: Figure | None, factor: float = 1.0) -> str:
    if one is None or one.value is None:
        return "–"
    digits = 1 if factor == 100 else 3
    text = f"{factor * one.value:.{digits}f}"
    if one.low is not None and one.high is not None:
        text += f" [{factor * one.low:.{digits}f}, {factor * one.high:.{digits}f}]"
    return text


def _share(one: Kept, lacking: bool = False) -> str:
    value = one.lacking if lacking else one.there
    return "–" if value is None or (one.images < LEAST and not lacking) else f"{100 * value:.1f}"


def draw_figure_4(run: Run, folder: Path) -> list[Path]:
    """(a) ID similarity, (b) all attributes, (c) single attributes by layer; nothing where there is one layer."""
    if len(run.layers) < 2:
        return []
    panels = [_identity] if run.classifier is None else [_identity, _all_attributes, _single_attributes]

    def draw(canvas: Any) -> None:
        for axes, panel in zip(canvas.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
            panel(run, axes)
            axes.set(xlabel="i: layers 1…i keep the source's code", xticks=run.layers)
            axes.grid(alpha=0.3)
            if axes.lines:
                axes.legend(fontsize=6)

    return save_plot(folder / "figure-4", draw, (4.6 * len(panels), 4))


def _identity(run: Run, axes: Any) -> None:
    for number, (judge, figures) in enumerate(run.strangers.judges.items()):
        for code, style, title in _CODES:
            points = {i: one.judges[judge][0] for i, one in run.by_layer(code).items()}
            _curve(axes, points, style, f"{title} ({judge})", f"C{number}")
        axes.axhline(figures[0].value, color=f"C{number}", linewidth=1, linestyle=":", label=f"strangers ({judge})")
    axes.set(ylabel="ID similarity of source and output", title="(a)")


def _all_attributes(run: Run, axes: Any) -> None:
    for code, style, title in _CODES:
        for number, (metric, what) in enumerate((("attributes", "as read"), ("attributes-accuracy", "as labelled"))):
            points = {i: found for i, one in run.by_layer(code).items() if (found := one.figure(metric)) is not None}
            _curve(axes, points, style, f"{title}, {what}", f"C{number}")
    axes.set(ylabel="share of attributes kept", title="(b)")


def _single_attributes(run: Run, axes: Any) -> None:
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
