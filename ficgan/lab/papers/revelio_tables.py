"""Revelio's tables beside the printed ones; caveats; plots, and strips of what was restored."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ficgan.arrays import resize
from ficgan.errors import FicganError
from ficgan.lab.matrix_config import without_folder
from ficgan.lab.metrics.intervals import wilson
from ficgan.lab.papers import published
from ficgan.lab.papers import revelio_parts as parts
from ficgan.lab.papers.bench import COLOURS, NOT_ANGULAR, Row, shade
from ficgan.lab.papers.published import BLURS, Printed
from ficgan.lab.papers.revelio import ADAPTABLE, NAMES, PARTS, Experiment, Outcome, RevelioPaper
from ficgan.lab.papers.revelio_parts import APART, BASE, BOUNDS, CHANCE, CONTROLS, NOT_TOLD, OPEN, POSITIVE, SWEPT
from ficgan.lab.report.page import save_plot
from ficgan.lab.report.tables import figure, spelled
from ficgan.lab.results import Figure, Trial
from ficgan.lab.stored import png, write_file

Outcomes = Mapping[str, Outcome]
MEASURES = {
    "PSNR": ("PSNR", "PSNR"), "SSIM": ("SSIM", "SSIM"), "LPIPS": ("LPIPS", "LPIPS-like (SqueezeNet)"),
    "IDD": ("IDD", "IDD"), "FID": ("FID", "FD-like (SqueezeNet)"),
}  # fmt: skip
"""The paper's column → our metric where its network is here, and else the stand-in."""
_NOT_ASKED = "not run: part {} was not asked for"
_STAND_IN = (
    "LPIPS and FID are the published ones only where their networks are here; * there marks those of SqueezeNet, "
    "which cannot be compared with the paper's. FID and its stand-in are biased upwards on so few images. "
    "IDD is ArcFace's angle in the paper; * marks that of judges that were not trained by angles, to be compared with "
    "what the same judge finds of the same person and of strangers (Tables 3 and 4) and with nothing else."
)
_ADDED = (*CONTROLS, CHANCE, POSITIVE, NOT_TOLD)
_BESIDE = (*CONTROLS, *APART, POSITIVE, NOT_TOLD)  # Rows that the paper has not
_CONTROLLED = (
    f"{CONTROLS[0]} is the ceiling. {CHANCE}: any photo of the reference is taken. {POSITIVE}: the attacker trained on "
    "permuted blocks and not on the blur, which it must be able to undo if it is trained well at all."
)
WARNING = (
    "These strips show real people as they are and as an attacker restores them. Do not publish or pass them on, and "
    "delete them when you have looked."
)
_SHOWN, _GAP = 128, 4  # Side of a picture in a strip, and the space between two, pixels


def revelio_caveats(paper: RevelioPaper, facts: Row, world: Row, outcomes: Outcomes) -> list[str]:
    """What is not as in the paper: sentences that stand before the tables."""
    reference, closed, outside = (world[name] for name in ("reference", "closed", "outside"))
    theirs, attackers = published.REVELIO_REFERENCE, "; ".join(f"{label} = {spec}" for label, spec in paper.named)
    out = [
        f"{facts['name']}, {paper.size} px: the attacker's reference is {reference['images']} photos of "
        f"{reference['people']} people; {closed['images']} photos of {closed['people']} of these people are attacked, "
        f"and {outside['images']} of {outside['people']} strangers. The paper: CelebA-HQ at {published.REVELIO_SIZE} "
        f"px, {theirs['images']} photos of {theirs['people']} people, 97 photos of 50 people and 97 of 91 strangers, "
        "two fifths of them from FFHQ. A reference with fewer photos teaches and remembers less; one with fewer people "
        "is easier to be right in.",
        "Closed-world figures grant the attacker other photos of its victims, in training and for looking them up. "
        "They say nothing about people of whom it has none: that is the open world, whose figures stand apart.",
        f"Crops are aligned to five points here. Attackers: {attackers}. The paper trains for "
        f"{published.REVELIO_EPOCHS} epochs, and a model that was trained for less restores less: figures of a short "
        "training bound the attack from below.",
        "GFP-GAN, PULSE and DiffFace are other people's programs: give them as attackers of their name, such as "
        "GFP-GAN=external:command=… or GFP-GAN=external:folder=….",
    ]
    if "dlib" not in paper.judges:
        judges = ", ".join(map(without_folder, paper.judges))
        out.append(f"The paper retrieves by {published.REVELIO_RECOGNISER}; here {judges} judged.")
    if paper.size != published.REVELIO_SIZE:
        out.append(
            f"Blurs and boxes are as wide in the face of {paper.size} px as the paper's in one of "
            f"{published.REVELIO_SIZE}; noise by pixel and JPEG's blocks of 8 px are not scaled, and cover more of a "
            "smaller face."
        )
    if closed["images"] < 30:
        out.append(
            f"{closed['images']} photos are too few for any statement about an attacker: this checks the software."
        )
    if "fine-tuning" in outcomes and paper.fine_tuned < closed["images"]:
        out.append(f"Fine-tuned for the first {paper.fine_tuned} photos only.")
    return out


def revelio_tables(paper: RevelioPaper, outcomes: Outcomes) -> list[dict[str, Any]]:
    """All tables, of the parts that are done: part → what it found."""
    facts = outcomes["fine-tuning"].facts if "fine-tuning" in outcomes else {}
    right = f" The identity was right for {facts['right identity']} of {facts['photos']}." if "photos" in facts else ""
    missing = [{"defence": name} for name in ADAPTABLE if name not in _names(published.REVELIO_ADAPTIVE.rows)]
    sweep = {"": _NOT_ASKED.format("sweep")}
    return [
        _run(paper, outcomes),
        _retrieval(paper, outcomes),
        _restoration(paper, outcomes, "light", published.REVELIO_LIGHT),
        _restoration(paper, outcomes, "heavy", published.REVELIO_HEAVY),
        {
            "title": "Closed world: fine-tuned on the identity that was retrieved (Revelio, Table 2)",
            "note": f"{published.REVELIO_FINE_TUNING.protocol}{right} {_STAND_IN}",
            "rows": _rows(outcomes, "fine-tuning", parts.FINE, published.REVELIO_FINE_TUNING.rows),
        },
        _kernel(outcomes),
        {
            "title": "Closed world: kernels that were not learnt (Revelio, Figure 15)",
            "note": "The heavy model on other kernels; “clear” and “blurred” are the bounds of the figure. The paper "
            f"prints no numbers: it says that an offset of {published.REVELIO_SWEEP['tolerated offset']} is tolerated. "
            f"{_STAND_IN}",
            "rows": [
                _measured({"kernel at 256 px": one.method, "seen by": one.attacker, "judge": one.recogniser}, one,
                          ira=True) for one in _trials(outcomes, "sweep", SWEPT)
            ] or [sweep],
        },
        {
            "title": "Closed world: other rules of σ, and a rectangle (Revelio, Figure 16)",
            "note": f"The light model on blurs that look like its own; the paper shows pictures alone. {_STAND_IN}",
            "rows": [
                _measured({"blur": one.method, "judge": one.recogniser}, one, ira=True)
                for one in _trials(outcomes, "sweep", parts.TRANSFERRED)
            ] or [sweep],
        },
        {
            "title": "Closed world: defences against a model that does not know them (Revelio, Table 6)",
            "note": f"{published.REVELIO_DEFENCES.protocol} IRA of one guess. Faces that were turned, restored or not, "
            f"are turned upright by that very angle before they are read, as whoever sees them would. {_STAND_IN}",
            "rows": _rows(outcomes, "defences", parts.DEFENDED, published.REVELIO_DEFENCES.rows, by_method=True) + [
                _measured({"defence": f"{one.method}, not restored", "judge": one.recogniser}, one, ira=True)
                for one in _trials(outcomes, "defences", parts.DEFENDED) if one.attacker == parts.BARE
            ],
        },
        {
            "title": "Closed world: the same defences against a model that has learnt them (Revelio, Table 7)",
            "note": f"{published.REVELIO_ADAPTIVE.protocol} Here {paper.adapt_epochs:g} epochs. “secret”: method and "
            "strength of the post-processing are drawn anew for every photo, and the attacker learns from draws of its "
            f"own, as section 6 proposes without numbers. {_STAND_IN}",
            "rows": _rows(
                outcomes, "defences", parts.ADAPTED, [*published.REVELIO_ADAPTIVE.rows, *missing], by_method=True
            ),
        },
        _detected(outcomes),
        {
            "title": "Open world: how well are strangers restored? (Revelio, Table 5)",
            "note": f"{published.REVELIO_OPEN_WORLD.protocol} {_STAND_IN}",
            "rows": _rows(outcomes, "ood", OPEN, published.REVELIO_OPEN_WORLD.rows),
        },
    ]  # fmt: skip


def _run(paper: RevelioPaper, outcomes: Outcomes) -> Row:
    trainings = "; ".join(f"{name}: {found}" for name, found in _trained(outcomes).items() if found != "–") or "none"
    return {
        "title": "What was run",
        "note": f"Closed world: the attacker is trained on other photos of the very people it attacks, and looks them "
        f"up there (Revelio, section 5.1). Open world: it has none of theirs. The two stand apart in all tables. "
        f"Attackers: {', '.join(label for label, _ in paper.named) or 'none'}. Trainings: {trainings}.",
        "rows": [{"part": part, "": "done" if part in outcomes else _NOT_ASKED.format(part)} for part in PARTS],
    }


def _trained(outcomes: Outcomes) -> dict[str, str]:
    """“Attacker, blur” → how long it has learnt."""
    return {name: found for one in outcomes.values() for name, found in one.facts.get("training", {}).items()}


def _training(outcomes: Outcomes, name: str, *levels: str) -> str:
    every = _trained(outcomes)
    found = {level: every[f"{name}, {level}"] for level in levels or BLURS if f"{name}, {level}" in every}
    if len(set(found.values())) == 1:
        return next(iter(found.values()))
    return "; ".join(f"{level} {text}" for level, text in found.items()) or "–"


def _retrieval(paper: RevelioPaper, outcomes: Outcomes) -> Row:
    printed = {row["method"]: row for row in published.REVELIO_IRA.rows}
    given = [NAMES["identity"], parts.PARROT, *(label for label, _ in paper.named)]
    rows: list[Row] = []
    for name in (*dict.fromkeys([*given, *printed]), *_ADDED):
        for judge in _judges(outcomes, "base", "retrieval", "kernel"):
            row: Row = {"method": name, "judge": judge}
            for level in BLURS:
                row[f"{level}: here"] = _ira(outcomes, name, level, judge, paper.restorer[0], (*given, *_ADDED))
                row[f"{level}: paper"] = _printed_ira(printed[name][level]) if name in printed else "–"
            rows.append(row | {"training": _training(outcomes, name)})
    return {
        "title": "Closed world: who is it? (Revelio, Table 1)",
        "note": "Share of photos whose person is retrieved; our 95 % intervals by people, and Wilson's that the "
        f"paper's counts out of {published.REVELIO_CLOSED['images']} would have. {published.REVELIO_IRA.protocol} "
        "Other methods than Revelio have one guess at each photo. ~: no count of 97 gives the printed share; the "
        f"nearest is taken. {_CONTROLLED}",
        "rows": rows,
    }


def _ira(outcomes: Outcomes, name: str, level: str, judge: str, restorer: str, given: Sequence[str]) -> str:
    wanted = (level, name, judge)
    if (many := _trial(outcomes, "retrieval", parts.VOTED, *wanted)) is not None:
        return _cell(many, "IRA", note=True)
    if name not in given:
        return f"not run: no attacker called {name} was given"
    part, scenario = ("kernel", parts.ESTIMATED) if name == NOT_TOLD else ("base", BASE)
    one = _trial(outcomes, part, scenario, *wanted)
    return _NOT_ASKED.format(part) if one is None else _cell(one, "IRA", note=name in (parts.PARROT, restorer))


def _printed_ira(share: float) -> str:
    count, exact = published.counted(share)
    low, high = wilson(count, published.REVELIO_CLOSED["images"])
    return f"{share:.3f} [{low:.3f}, {high:.3f}]{'' if exact else ' ~'}"


def _restoration(paper: RevelioPaper, outcomes: Outcomes, level: str, table: Printed) -> Row:
    printed = {row["method"]: row for row in table.rows}
    labels = [NAMES["identity"], *(label for label, _ in paper.named)]
    rows = []
    for name in (*dict.fromkeys([*labels, *printed]), *_BESIDE):
        part, scenario = ("kernel", parts.ESTIMATED) if name == NOT_TOLD else ("base", BASE)
        known = name in labels or name in _BESIDE
        why = _NOT_ASKED.format(part) if known else f"not run: no attacker called {name} was given"
        for judge in _judges(outcomes, "base", "kernel"):
            trial, training = _trial(outcomes, part, scenario, level, name, judge), _training(outcomes, name, level)
            if level == "heavy" and name == paper.restorer[0]:  # the paper's Table 4 has the fine-tuned model
                tuned = _trial(outcomes, "fine-tuning", parts.FINE, level, "fine-tuned", judge)
                if tuned is not None and len(tuned.figures) > 1:
                    head = {"method": f"{name}, base", "judge": judge}
                    rows.append(_measured(head, trial, why=why) | {"training": training})
                    trial = tuned
            row = _measured({"method": name, "judge": judge}, trial, printed.get(name), why)
            rows.append(row | {"training": training})
    number = "3" if level == "light" else "4"
    return {
        "title": f"Closed world: how well is it restored? {level} blur (Revelio, Table {number})",
        "note": f"One guess at each photo; here, and behind the bar as printed. {table.protocol} The paper trains for "
        f"{published.REVELIO_EPOCHS} epochs. {_STAND_IN} {_CONTROLLED}",
        "rows": rows,
    }


def _kernel(outcomes: Outcomes) -> Row:
    facts = outcomes["kernel"].facts if "kernel" in outcomes else {}
    images, column = published.REVELIO_KERNEL_IMAGES, "mean absolute error, pixels of 256"
    empty = {column: _NOT_ASKED.format("kernel"), "photos": "–", "estimator": "–"}
    paper = {
        "": "paper", column: f"{published.REVELIO_KERNEL_ERROR:g}",
        "photos": "800 to learn, 100 to choose, 100 to test", "estimator": "EfficientNetV2 Large, regression",
    }  # fmt: skip
    return {
        "title": "The kernel, estimated (Revelio, section 5.4 and Figure 13)",
        "note": f"Odd kernels from 1 to 81, {images} photos in the paper. People of the three parts differ here.",
        "rows": [{"": "here", **facts.get("row", empty)}, paper, *facts.get("more", [])],
    }


def _detected(outcomes: Outcomes) -> Row:
    theirs, columns = published.REVELIO_DETECTION, ("TPR", "FPR", "accuracy", "AUC")
    rows: list[Row] = []
    for trial in _trials(outcomes, "ood", OPEN):
        if trial.attacker in (parts.STRANGERS, parts.AT_PAPER):
            limit = figure(trial.figures, "threshold")
            threshold = "none" if limit is None or limit.value is None else f"{limit.value:.3g} ({limit.note})"
            row: Row = {"": f"here, {trial.recogniser}", "threshold": threshold}
            rows.append(row | {name: _cell(trial, name) for name in columns})
    empty: Row = {"": "here", "threshold": _NOT_ASKED.format("ood"), **dict.fromkeys(columns, "–")}
    paper = {name: f"{theirs[name]:.2f}" if name in theirs else "–" for name in columns}
    return {
        "title": "Open world: is it anybody whom the attacker knows? (Revelio, Figure 7)",
        "note": "A stranger is called one where the smallest distance of all guesses to the reference is above the "
        "threshold, which is chosen on the other half of the people, or the paper's, one of dlib's embeddings; "
        "intervals by people.",
        "rows": [*(rows or [empty]), {"": "paper", "threshold": f"{theirs['threshold']:g}", **paper}],
    }


def _names(rows: Sequence[Row]) -> list[str]:
    return [next(iter(row.values())) for row in rows]


def _rows(
    outcomes: Outcomes, part: str, scenario: str, printed: Sequence[Row], *, by_method: bool = False
) -> list[Row]:
    apart = (parts.STRANGERS, parts.AT_PAPER, parts.BARE)
    trials = [one for one in _trials(outcomes, part, scenario) if one.attacker not in apart]
    name: Callable[[Trial], str] = (lambda one: one.method) if by_method else (lambda one: one.attacker)
    key, paper = next(iter(printed[0])), dict(zip(_names(printed), printed, strict=True))
    why = _NOT_ASKED.format(part) if part not in outcomes else "not run: it was not asked for"
    rows = []
    for title in dict.fromkeys([*paper, *map(name, trials)]):
        for judge in _judges(outcomes, part):
            trial = next((one for one in trials if name(one) == title and one.recogniser in (judge, "")), None)
            rows.append(_measured({key: title, "judge": judge}, trial, paper.get(title), why, ira=by_method))
    return rows


def _measured(head: Row, trial: Trial | None, paper: Row | None = None, why: str = "", *, ira: bool = False) -> Row:
    row = dict(head)
    if trial is not None and len(trial.figures) == 1 and trial.figures[0].value is None:
        why, trial = f"not run: {trial.figures[0].note}", None
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


def _trials(outcomes: Outcomes, part: str, scenario: str) -> list[Trial]:
    return [] if part not in outcomes else [one for one in outcomes[part].trials if one.scenario == scenario]


def _trial(outcomes: Outcomes, part: str, scenario: str, *wanted: str) -> Trial | None:
    trials = _trials(outcomes, part, scenario)
    return next((one for one in trials if (one.method, one.attacker, one.recogniser) == wanted), None)


def _judges(outcomes: Outcomes, *names: str) -> list[str]:
    found = [one.recogniser for part in names if part in outcomes for one in outcomes[part].trials if one.recogniser]
    return list(dict.fromkeys(found)) or ["–"]


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
    written = [write_file(folder / "READ-FIRST.txt", f"{WARNING}\n")]
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
    axes, theirs = canvas.subplots(), published.REVELIO_DETECTION
    for number, (judge, curve) in enumerate(outcome.facts["curves"].items()):
        colour, label = COLOURS[number % len(COLOURS)], f"{judge}, AUC {curve['AUC']:.2f}"
        axes.step(curve["FPR"], curve["TPR"], where="post", color=colour, label=label)
    axes.plot(theirs["FPR"], theirs["TPR"], "k*", markersize=9, label=f"the paper at d = {theirs['threshold']:g}")
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
    kernels, scale, error = (outcome.facts[name] for name in ("kernels", "scale", "error"))
    half = (kernels[1] - kernels[0]) / 2 if len(kernels) > 1 else 1
    extent = (kernels[0] - half, kernels[-1] + half, kernels[-1] + half, kernels[0] - half)
    image = axes.imshow(counts / counts.sum(1, keepdims=True).clip(1), cmap="cividis", vmin=0, vmax=1, extent=extent)
    canvas.colorbar(image, ax=axes, label="share of the photos")
    axes.set(
        xlabel="estimated kernel, px of the crop", ylabel="kernel that blurred it",
        title=f"mean absolute error {error:.2f} px ({error * scale:.2f} of 256)",
    )  # fmt: skip


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
        axes.axvline(published.REVELIO_SWEEP["trained"], color="0.8", linewidth=1)
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
