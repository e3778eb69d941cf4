"""Revelio's tables beside the printed ones; caveats; plots, and strips of what was restored."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ficgan.arrays import resize
from ficgan.errors import FicganError
from ficgan.lab.metrics import wilson
from ficgan.lab.pages import png, write_file
from ficgan.lab.papers import COLOURS, NOT_ANGULAR, REVELIO, Printed, Row, counted, shade, table, text
from ficgan.lab.papers import revelio_parts as parts
from ficgan.lab.papers.revelio import ADAPTABLE, BLURS, NAMES, PARTS, Experiment, Outcome, RevelioPaper
from ficgan.lab.papers.revelio_parts import APART, BASE, BOUNDS, CHANCE, CONTROLS, NOT_TOLD, OPEN, POSITIVE, SWEPT
from ficgan.lab.report.plots import save_plot
from ficgan.lab.report.tables import figure, spelled
from ficgan.lab.results import Figure, Trial, without_folder

Outcomes = Mapping[str, Outcome]
MEASURES = {
    "PSNR": ("PSNR", "PSNR"),
    "SSIM": ("SSIM", "SSIM"),
    "LPIPS": ("LPIPS", "LPIPS-like (SqueezeNet)"),
    "IDD": ("IDD", "IDD"),
    "FID": ("FID", "FD-like (SqueezeNet)"),
}
"""The paper's column → our metric where its network is here, and else the stand-in."""
_NOT_ASKED = "not run: part {} was not asked for"
_ADDED = (*CONTROLS, CHANCE, POSITIVE, NOT_TOLD)
_BESIDE = (*CONTROLS, *APART, POSITIVE, NOT_TOLD)  # Rows that the paper has not
_SHOWN, _GAP = 128, 4  # Side of a picture in a strip, and the space between two, pixels


def revelio_caveats(paper: RevelioPaper, facts: Row, world: Row, outcomes: Outcomes) -> list[str]:
    """What is not as in the paper: sentences that stand before the tables."""
    holds = {
        "size": True,
        "closed": True,
        "attackers": True,
        "programs": True,
        "judges": "dlib" not in paper.judges,
        "scaled": paper.size != REVELIO.size,
        "few": world["closed"]["images"] < 30,
        "tuned": "fine-tuning" in outcomes and paper.fine_tuned < world["closed"]["images"],
    }
    values = {
        "name": facts["name"],
        "px": paper.size,
        "ours": world,
        "photos": paper.fine_tuned,
        "attackers": "; ".join(f"{label} = {spec}" for label, spec in paper.named),
        "judges": ", ".join(map(without_folder, paper.judges)),
    }
    return [text(REVELIO, REVELIO.caveats[key], **values) for key, said in holds.items() if said]


def revelio_tables(paper: RevelioPaper, outcomes: Outcomes) -> list[Row]:
    """All tables, of the parts that are done: part → what it found."""
    found = _Tables(paper, outcomes)
    facts = outcomes["fine-tuning"].facts if "fine-tuning" in outcomes else {}
    right = f" The identity was right for {facts['right identity']} of {facts['photos']}." if "photos" in facts else ""
    trainings = "; ".join(f"{name}: {long}" for name, long in found.trained().items() if long != "–") or "none"
    attackers = ", ".join(label for label, _ in paper.named) or "none"
    adapted = [*REVELIO.adaptive.rows]
    adapted += [{"defence": name} for name in ADAPTABLE if name not in _names(adapted)]

    def swept(scenario: str, *columns: tuple[str, str]) -> list[Row]:
        rows = []
        for one in found.trials("sweep", scenario):
            head = {column: getattr(one, field) for column, field in columns}
            rows.append(_measured({**head, "judge": one.recogniser}, one, ira=True))
        return rows or [{"": _NOT_ASKED.format("sweep")}]

    rows = {
        "run": [{"part": part, "": "done" if part in outcomes else _NOT_ASKED.format(part)} for part in PARTS],
        "ira": found.retrieved(),
        "light": found.restored("light", REVELIO.light),
        "heavy": found.restored("heavy", REVELIO.heavy),
        "fine_tuning": found.rows("fine-tuning", parts.FINE, REVELIO.fine_tuning.rows),
        "kernel": found.kernel(),
        "sweep": swept(SWEPT, ("kernel at 256 px", "method"), ("seen by", "attacker")),
        "transfer": swept(parts.TRANSFERRED, ("blur", "method")),
        "defences": found.rows("defences", parts.DEFENDED, REVELIO.defences.rows, by_method=True)
        + [
            _measured({"defence": f"{one.method}, not restored", "judge": one.recogniser}, one, ira=True)
            for one in found.trials("defences", parts.DEFENDED)
            if one.attacker == parts.BARE
        ],
        "adaptive": found.rows("defences", parts.ADAPTED, adapted, by_method=True),
        "detection": found.detected(),
        "open_world": found.rows("ood", OPEN, REVELIO.open_world.rows),
    }
    values = {"right": right, "attackers": attackers, "trainings": trainings, "adapt_epochs": paper.adapt_epochs}
    return [table(REVELIO, key, some, **values) for key, some in rows.items()]


@dataclass(frozen=True)
class _Tables:
    paper: RevelioPaper
    outcomes: Outcomes

    def trials(self, part: str, scenario: str) -> list[Trial]:
        return [] if part not in self.outcomes else [t for t in self.outcomes[part].trials if t.scenario == scenario]

    def trial(self, part: str, scenario: str, *wanted: str) -> Trial | None:
        trials = self.trials(part, scenario)
        return next((one for one in trials if (one.method, one.attacker, one.recogniser) == wanted), None)

    def guessed_once(self, name: str, level: str, judge: str) -> tuple[Trial | None, str]:
        """The trial of an attacker's one guess, or why there is none."""
        part, scenario = ("kernel", parts.ESTIMATED) if name == NOT_TOLD else ("base", BASE)
        given = {NAMES["identity"], parts.PARROT, *(label for label, _ in self.paper.named), *_ADDED, *APART}
        if name not in given:
            return None, f"not run: no attacker called {name} was given"
        return self.trial(part, scenario, level, name, judge), _NOT_ASKED.format(part)

    def judges(self, *names: str) -> list[str]:
        trials = [one for part in names if part in self.outcomes for one in self.outcomes[part].trials]
        return list(dict.fromkeys(one.recogniser for one in trials if one.recogniser)) or ["–"]

    def trained(self) -> dict[str, str]:
        """“Attacker, blur” → how long it has learnt."""
        return {name: text for one in self.outcomes.values() for name, text in one.facts.get("training", {}).items()}

    def training(self, name: str, *levels: str) -> str:
        every = self.trained()
        found = {level: every[f"{name}, {level}"] for level in levels or BLURS if f"{name}, {level}" in every}
        if len(set(found.values())) == 1:
            return next(iter(found.values()))
        return "; ".join(f"{level} {text}" for level, text in found.items()) or "–"

    def retrieved(self) -> list[Row]:
        printed = {row["method"]: row for row in REVELIO.ira.rows}
        names = [NAMES["identity"], parts.PARROT, *(label for label, _ in self.paper.named)]
        rows: list[Row] = []
        for name in (*dict.fromkeys([*names, *printed]), *_ADDED):
            for judge in self.judges("base", "retrieval", "kernel"):
                row: Row = {"method": name, "judge": judge}
                for level in BLURS:
                    row[f"{level}: here"] = self.ira(name, level, judge)
                    row[f"{level}: paper"] = _printed_ira(printed[name][level]) if name in printed else "–"
                rows.append(row | {"training": self.training(name)})
        return rows

    def ira(self, name: str, level: str, judge: str) -> str:
        if (many := self.trial("retrieval", parts.VOTED, level, name, judge)) is not None:
            return _cell(many, "IRA", note=True)
        one, why = self.guessed_once(name, level, judge)
        return why if one is None else _cell(one, "IRA", note=name in (parts.PARROT, self.paper.restorer[0]))

    def restored(self, level: str, theirs: Printed) -> list[Row]:
        printed = {row["method"]: row for row in theirs.rows}
        labels = [NAMES["identity"], *(label for label, _ in self.paper.named)]
        rows = []
        for name in (*dict.fromkeys([*labels, *printed]), *_BESIDE):
            for judge in self.judges("base", "kernel"):
                (trial, why), training = self.guessed_once(name, level, judge), self.training(name, level)
                if level == "heavy" and name == self.paper.restorer[0]:  # the paper's Table 4 has the fine-tuned model
                    tuned = self.trial("fine-tuning", parts.FINE, level, "fine-tuned", judge)
                    if tuned is not None and len(tuned.figures) > 1:
                        head = {"method": f"{name}, base", "judge": judge}
                        rows.append(_measured(head, trial, why=why) | {"training": training})
                        trial = tuned
                row = _measured({"method": name, "judge": judge}, trial, printed.get(name), why)
                rows.append(row | {"training": training})
        return rows

    def kernel(self) -> list[Row]:
        facts = self.outcomes["kernel"].facts if "kernel" in self.outcomes else {}
        column = "mean absolute error, pixels of 256"
        empty = {column: _NOT_ASKED.format("kernel"), "photos": "–", "estimator": "–"}
        paper = {
            "": "paper",
            column: f"{REVELIO.kernel_error:g}",
            "photos": "800 to learn, 100 to choose, 100 to test",
            "estimator": "EfficientNetV2 Large, regression",
        }
        return [{"": "here", **facts.get("row", empty)}, paper, *facts.get("more", [])]

    def detected(self) -> list[Row]:
        theirs, columns = REVELIO.detection, ("TPR", "FPR", "accuracy", "AUC")
        rows: list[Row] = []
        for trial in self.trials("ood", OPEN):
            if trial.attacker in (parts.STRANGERS, parts.AT_PAPER):
                limit = figure(trial.figures, "threshold")
                threshold = "none" if limit is None or limit.value is None else f"{limit.value:.3g} ({limit.note})"
                row: Row = {"": f"here, {trial.recogniser}", "threshold": threshold}
                rows.append(row | {name: _cell(trial, name) for name in columns})
        rows = rows or [{"": "here", "threshold": _NOT_ASKED.format("ood"), **dict.fromkeys(columns, "–")}]
        paper = {name: f"{theirs[name]:.2f}" if name in theirs else "–" for name in columns}
        return [*rows, {"": "paper", "threshold": f"{theirs['threshold']:g}", **paper}]

    def rows(self, part: str, scenario: str, printed: Sequence[Row], *, by_method: bool = False) -> list[Row]:
        apart = (parts.STRANGERS, parts.AT_PAPER, parts.BARE)
        trials = [one for one in self.trials(part, scenario) if one.attacker not in apart]
        named = {id(one): one.method if by_method else one.attacker for one in trials}
        key, paper = next(iter(printed[0])), dict(zip(_names(printed), printed, strict=True))
        why = _NOT_ASKED.format(part) if part not in self.outcomes else "not run: it was not asked for"
        rows = []
        for title in dict.fromkeys([*paper, *named.values()]):
            for judge in self.judges(part):
                mine = (one for one in trials if named[id(one)] == title and one.recogniser in (judge, ""))
                head = {key: title, "judge": judge}
                rows.append(_measured(head, next(mine, None), paper.get(title), why, ira=by_method))
        return rows


def _printed_ira(share: float) -> str:
    count, exact = counted(share)
    low, high = wilson(count, REVELIO.closed["images"])
    return f"{share:.3f} [{low:.3f}, {high:.3f}]{'' if exact else ' ~'}"


def _names(rows: Sequence[Row]) -> list[str]:
    return [next(iter(row.values())) for row in rows]


def _measured(head: Row, trial: Trial | None, paper: Row | None = None, why: str = "", *, ira: bool = False) -> Row:
    if trial is not None and len(trial.figures) == 1 and trial.figures[0].value is None:
        why, trial = f"not run: {trial.figures[0].note}", None
    row = dict(head)
    for index, column in enumerate([*MEASURES, "IRA"] if ira else MEASURES):
        if trial is None:
            here = why if index == 0 else "–"
        else:
            here = _cell(trial, "IRA") if column == "IRA" else _of(trial, column)
        there = None if paper is None else paper.get(column)
        row[column] = here if there is None else f"{here} | {there:g}"
    return row


def _of(trial: Trial, column: str) -> str:
    ours, stand_in = MEASURES[column]
    one = figure(trial.figures, ours)
    if one is not None and one.value is not None:
        return f"{spelled(one)}{'*' if one.note == NOT_ANGULAR else ''}"
    if one is None and trial.attacker in APART:
        return "–"
    other = figure(trial.figures, stand_in)
    if other is None or other.value is None:
        return f"not measured: {other.note}" if other is not None else "not measured"
    return f"{spelled(other)}{'*' if stand_in != ours else ''}"


def _cell(trial: Trial, metric: str, *, note: bool = False) -> str:
    one = figure(trial.figures, metric)
    if one is None or one.value is None:
        return f"not run: {one.note}" if one is not None and one.note else "not measured"
    return f"{spelled(one)} ({one.note})" if note and one.note else spelled(one)


def draw_revelio(experiment: Experiment, outcomes: Outcomes, out: Path) -> list[Path]:
    """Every figure there is something for, in `out/figures`, and strips and their warning in `out/pictures`."""
    written: list[Path] = []
    plots: tuple[tuple[str, str, Callable[[Outcome, Any], None], tuple[float, float]], ...] = (
        ("ood", "figure-7", _detection, (5.2, 4.4)),
        ("kernel", "figure-13", _confusion, (5.4, 4.6)),
        ("sweep", "figure-15", _sweep, (13, 4.4)),
    )
    for part, stem, draw, size in plots:
        if part in outcomes:
            written += save_plot(out / "figures" / stem, partial(draw, outcomes[part]), size)
    if experiment.paper.pictures and "base" in outcomes:
        written += _strips(experiment, out / "pictures", tuned="fine-tuning" in outcomes)
    return written


def _strips(experiment: Experiment, folder: Path, *, tuned: bool) -> list[Path]:
    written = [write_file(folder / "READ-FIRST.txt", f"{REVELIO.warning}\n")]
    rows = experiment.world.closed
    for level in BLURS:
        how = experiment.blur(level)
        seen = experiment.seen(how, rows)
        columns = {"clear": experiment.clear(rows).images, "blurred": seen.images}
        for label, spec in experiment.paper.named:
            try:
                columns[label] = experiment.attack(label, spec, how).restored(seen, rows).images
            except FicganError:
                continue  # its line in the table tells why
        if tuned and level == "heavy" and (found := parts.fine_tuned_guesses(experiment)) is not None:
            columns["fine-tuned"] = found
        shown = min([experiment.paper.pictures, *map(len, columns.values())])
        written.append(write_file(folder / f"{level}.png", _strip(columns, shown)))
        written.append(write_file(folder / f"{level}.txt", f"From left to right: {', '.join(columns)}.\n"))
    return written


def _strip(columns: Mapping[str, NDArray[np.uint8]], count: int) -> bytes:
    step = _SHOWN + _GAP
    whole = np.full((count * step - _GAP, len(columns) * step - _GAP, 3), 255, np.uint8)
    for x, images in enumerate(columns.values()):
        for y in range(count):
            whole[y * step : y * step + _SHOWN, x * step : x * step + _SHOWN] = resize(images[y], _SHOWN)
    return png(whole)


def _detection(outcome: Outcome, canvas: Any) -> None:
    axes, theirs = canvas.subplots(), REVELIO.detection
    for number, (judge, curve) in enumerate(outcome.facts["curves"].items()):
        colour, label = COLOURS[number % len(COLOURS)], f"{judge}, AUC {curve['AUC']:.2f}"
        axes.step(curve["FPR"], curve["TPR"], where="post", color=colour, label=label)
    axes.plot(theirs["FPR"], theirs["TPR"], "k*", markersize=9, label=f"the paper at d = {theirs['threshold']:g}")
    axes.plot([0, 1], [0, 1], color="0.6", linewidth=1, linestyle=":")
    axes.set(
        xlabel="known people called strangers (FPR)",
        ylabel="strangers called strangers (TPR)",
        xlim=(-0.02, 1.02),
        ylim=(-0.02, 1.02),
        title="Open world: strangers detected",
    )
    axes.legend(fontsize=8)
    axes.grid(alpha=0.3)


def _confusion(outcome: Outcome, canvas: Any) -> None:
    axes = canvas.subplots()
    counts = np.array(outcome.facts["confusion"], np.float64)
    kernels, scale, error = (outcome.facts[name] for name in ("kernels", "scale", "error"))
    half = (kernels[1] - kernels[0]) / 2 if len(kernels) > 1 else 1
    extent = (kernels[0] - half, kernels[-1] + half, kernels[-1] + half, kernels[0] - half)
    image = axes.imshow(counts / counts.sum(1, keepdims=True).clip(1), cmap="cividis", vmin=0, vmax=1, extent=extent)
    canvas.colorbar(image, ax=axes, label="share of the photos")
    axes.set(
        xlabel="estimated kernel, px of the crop",
        ylabel="kernel that blurred it",
        title=f"mean absolute error {error:.2f} px ({error * scale:.2f} of 256)",
    )


def _sweep(outcome: Outcome, canvas: Any) -> None:
    trials = [one for one in outcome.trials if one.scenario == SWEPT]
    judges = list(dict.fromkeys(one.recogniser for one in trials))
    panels = ["IRA", *MEASURES]
    for axes, name in zip(canvas.subplots(1, len(panels)), panels, strict=True):
        by_judge = name in ("IRA", "IDD")
        for judge, colour in zip(judges if by_judge else judges[:1], COLOURS, strict=False):
            mine = [one for one in trials if one.recogniser == judge and one.attacker not in BOUNDS]
            points = {int(one.method.removeprefix("K ")): found for one in mine if (found := _value(one, name))}
            shade(axes, points, "o-", judge if by_judge else "restored", colour)
        for bound, style in zip(BOUNDS, ("--", ":"), strict=True):
            one = next((one for one in trials if (one.attacker, one.recogniser) == (bound, judges[0])), None)
            if one is not None and (found := _value(one, name)) is not None:
                axes.axhline(found.value, color="0.4", linewidth=1, linestyle=style, label=bound)
        axes.axvline(REVELIO.sweep["trained"], color="0.8", linewidth=1)
        axes.set(xlabel="kernel, px of 256", title=_plotted(trials, name))
        axes.grid(alpha=0.3)
        if axes.get_legend_handles_labels()[0]:
            axes.legend(fontsize=6)


def _plotted(trials: list[Trial], name: str) -> str:
    found = {one.metric for trial in trials if (one := _value(trial, name)) is not None}
    return next((metric for metric in MEASURES.get(name, ()) if metric in found), name)


def _value(trial: Trial, name: str) -> Figure | None:
    found = (figure(trial.figures, metric) for metric in MEASURES.get(name, (name,)))
    return next((one for one in found if one is not None and one.value is not None), None)
