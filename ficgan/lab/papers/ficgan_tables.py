"""FICGAN's tables from what was measured, the published rows beneath one's own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ficgan.lab.papers.ficgan import Run, Setting
from ficgan.lab.papers.published import (
    FICGAN_ABLATIONS,
    FICGAN_COMPARISON,
    FICGAN_CONTROLLABLE,
    FICGAN_FIGURE_4,
    FICGAN_RECONSTRUCTION,
    FICGAN_UNCONTROLLABLE,
    Printed,
)
from ficgan.lab.papers.sweep import Found, Kept
from ficgan.lab.results import Figure

__all__ = ["ficgan_tables"]

Row = dict[str, Any]
LEAST = 5
"""Images with an attribute that a share of its own needs."""
_SHARES = {
    "attributes": "attributes as read in the source, %",
    "attributes-balanced": "the same, balanced, %",
    "attributes-accuracy": "attributes as labelled, %",
}


def ficgan_tables(run: Run) -> list[dict[str, Any]]:
    """Tables for a page: {"title", "note", "rows"}.

    Args:
        run: of `run_ficgan`.
    """
    chosen = sorted({run.layers[0], min(run.layers, key=lambda i: abs(i - 4)), run.layers[-1]})
    main = {setting: one for setting, one in run.found.items() if setting.model == "FICGAN"}
    tables = [
        _table_1(run, main, chosen), _table_a(run), _figure_4(run, main), _figure_b(run, main, chosen), _table_2(run),
    ]  # fmt: skip
    return [table for table in tables if table is not None]


def _table_1(run: Run, main: dict[Setting, Found], chosen: Sequence[int]) -> dict[str, Any]:
    names = {"w_t": "FICGAN (w_t, another person)", "w_m": "FICGAN + manifold k-same (w_m)"}
    rows = [
        {"from": "here", "method": "another person's photo", "i": "–", **_distances(None), **_scores(run.strangers)}
    ]
    for code, name in names.items():
        rows += [
            {"from": "here", "method": name, "i": setting.layer, **_distances(one), **_scores(one)}
            for setting, one in main.items()
            if setting.code == code and setting.layer in chosen
        ]
    return _table("De-identification (Table 1)", FICGAN_COMPARISON, _trained(run), rows)


def _table_2(run: Run) -> dict[str, Any] | None:
    if not any(setting.model != "FICGAN" for setting in run.found):
        return None
    rows = [
        {
            "from": "here",
            "method": setting.model + (" + k-same" if setting.code == "w_m" else ""),
            "i": 0,
            **_scores(one),
        }
        for setting, one in run.found.items()
        if setting.layer == 0
    ]
    return _table("Ablations (Table 2)", FICGAN_ABLATIONS, "", rows)


def _table_a(run: Run) -> dict[str, Any]:
    row = {"from": "here", "method": "FICGAN"}
    for metric, title in (("mse", "MSE"), ("lpips", "LPIPS"), ("lpips-squeezenet", "LPIPS-like (SqueezeNet)")):
        row[title] = _number(run.reconstruction.figure(metric))
    scores = {key: value for key, value in _scores(run.reconstruction).items() if key.startswith("ID")}
    note = "MSE here is of pixels on [−1, 1]. LPIPS-like (SqueezeNet) is no published LPIPS: do not compare the two."
    return _table("Reconstruction (Table A)", FICGAN_RECONSTRUCTION, note, [{**row, **scores}])


def _figure_4(run: Run, main: dict[Setting, Found]) -> dict[str, Any]:
    rows = _pruned([{"code": setting.code, "i": setting.layer, **_scores(one)} for setting, one in main.items()])
    note = (
        f"w_m: the k-same code; w_t: another person's. i = 0 is the strongest; L = {run.num_layers}. {FICGAN_FIGURE_4}"
    )
    return {"title": "By layer index (Figure 4)", "note": note, "rows": rows}


def _figure_b(run: Run, main: dict[Setting, Found], chosen: Sequence[int]) -> dict[str, Any] | None:
    """Per attribute, the share of images in which the k-same code leaves it as it was."""
    by_layer = {
        setting.layer: one for setting, one in main.items() if setting.code == "w_m" and setting.layer in chosen
    }
    names = list(by_layer[chosen[0]].attributes)
    if not names:
        return None
    rows = []
    for name in names:
        row: Row = {"attribute": name, "images with it": run.strangers.attributes[name].images}
        for layer in chosen:
            row[f"kept where there, i = {layer}"] = _share(by_layer[layer].attributes[name])
        for layer in chosen:
            row[f"kept where not, i = {layer}"] = _share(by_layer[layer].attributes[name], lacking=True)
        row["another person's photo has it too"] = _share(run.strangers.attributes[name])
        row["paper"] = FICGAN_CONTROLLABLE.get(name) or FICGAN_UNCONTROLLABLE.get(name) or "not named in the text"
        rows.append(row)
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


def _table(title: str, printed: Printed, note: str, rows: list[Row]) -> dict[str, Any]:
    """One's own rows, then the published; the paper's attributes stand apart, as it leaves open which they are."""
    published = [
        {"from": printed.paper, **{"attributes, paper" if key == "attributes" else key: row[key] for key in row}}
        for row in printed.rows
    ]
    note = f"{note} The paper ({printed.where}): {printed.protocol}".strip()
    return {"title": title, "note": note, "rows": _pruned([*rows, *published])}


def _pruned(rows: Sequence[Row]) -> list[Row]:
    """The same columns in all rows, none of them empty throughout."""
    columns = dict.fromkeys(key for row in rows for key in row)
    used = [key for key in columns if any(row.get(key, "–") != "–" for row in rows)]
    return [{key: row.get(key, "–") for key in used} for row in rows]


def _scores(one: Found) -> Row:
    row: Row = {}
    single = len(one.judges) == 1
    for judge, figures in one.judges.items():
        row["ID similarity" if single else f"ID similarity, {judge}"] = _number(figures[0])
        row[f"taken for the same person, %{'' if single else f', {judge}'}"] = _number(figures[1], 100)
    for metric, title in _SHARES.items():
        row[title] = _number(one.figure(metric), 100)
    return row


def _distances(one: Found | None) -> Row:
    names = (("fid", "FID"), ("fd-squeezenet", "FD-SqueezeNet"))
    return {title: _number(None if one is None else one.figure(metric)) for metric, title in names}


def _trained(run: Run) -> str:
    said = (
        "ID similarity and attributes have 95 % intervals by person. “Another person's photo” is what chance gives. "
        "FD-SqueezeNet is no FID: do not compare the two."
    )
    near = next(iter(run.found.values())).figure("fid") or next(iter(run.found.values())).figure("fd-squeezenet")
    said += "" if near is None else f" Fréchet distances are {near.note}."
    if run.classifier is None:
        return f"{said} No attribute classifier was given."
    labelled = next(iter(run.found.values())).figure("attributes-accuracy")
    said += "" if labelled is None else f" As labelled, the classifier's answers are right: {labelled.note}."
    test = run.classifier.get("test", {})
    if "accuracy" not in test:
        return said
    return (
        f"{said} The classifier is right in {100 * test['accuracy']:.1f} % of the answers on people it was not trained "
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


def _share(one: Kept, *, lacking: bool = False) -> str:
    value = one.lacking if lacking else one.there
    return "–" if value is None or (one.images < LEAST and not lacking) else f"{100 * value:.1f}"
