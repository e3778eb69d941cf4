"""Revelio's tables, ours beside the printed ones; what was not run says so in its own cells."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ficgan.lab.metrics.intervals import wilson
from ficgan.lab.papers import revelio_published as printed
from ficgan.lab.papers.published import Printed
from ficgan.lab.papers.revelio_base import BASE, PARROT, Outcome
from ficgan.lab.papers.revelio_controls import APART, CHANCE, CONTROLS, POSITIVE
from ficgan.lab.papers.revelio_kernel import ESTIMATED, NOT_TOLD
from ficgan.lab.papers.revelio_lab import ADAPTABLE, NAMES, PARTS, RevelioPaper
from ficgan.lab.papers.revelio_open import AT_PAPER, OPEN, STRANGERS, VOTED
from ficgan.lab.papers.revelio_swept import ADAPTED, BARE, DEFENDED, SWEPT, TRANSFERRED
from ficgan.lab.papers.revelio_tuned import FINE
from ficgan.lab.papers.transfer import NOT_ANGULAR
from ficgan.lab.report.tables import figure, spelled
from ficgan.lab.results import Trial

__all__ = ["revelio_tables"]

Outcomes = Mapping[str, Outcome]
Row = dict[str, Any]
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
_BESIDE = (*CONTROLS, *APART, POSITIVE, NOT_TOLD)
"""Rows that the paper has not."""
_CONTROLLED = (
    f"{CONTROLS[0]} is the ceiling. {CHANCE}: any photo of the reference is taken. {POSITIVE}: the attacker trained on "
    "permuted blocks and not on the blur, which it must be able to undo if it is trained well at all."
)


def revelio_tables(paper: RevelioPaper, outcomes: Outcomes) -> list[dict[str, Any]]:
    """All tables.

    Args:
        paper: settings.
        outcomes: part → what it found, of the parts that are done.
    """
    return [
        _run(paper, outcomes),
        _retrieval(paper, outcomes),
        *(_restoration(paper, outcomes, level, table) for level, table in _LEVELS),
        _fine_tuning(outcomes),
        _kernel(outcomes),
        _swept(outcomes),
        _transferred(outcomes),
        _defences(outcomes),
        _adaptive(paper, outcomes),
        _detected(outcomes),
        _open(outcomes),
    ]


_LEVELS = (("light", printed.LIGHT), ("heavy", printed.HEAVY))


def _run(paper: RevelioPaper, outcomes: Outcomes) -> dict[str, Any]:
    rows = [{"part": part, "": "done" if part in outcomes else _NOT_ASKED.format(part)} for part in PARTS]
    return {
        "title": "What was run",
        "note": f"Closed world: the attacker is trained on other photos of the very people it attacks, and looks them "
        f"up there (Revelio, section 5.1). Open world: it has none of theirs. The two stand apart in all tables. "
        f"Attackers: {', '.join(label for label, _ in paper.named) or 'none'}. Trainings: {_trainings(outcomes)}.",
        "rows": rows,
    }


def _trainings(outcomes: Outcomes) -> str:
    return "; ".join(f"{name}: {found}" for name, found in _trained(outcomes).items() if found != "–") or "none"


def _trained(outcomes: Outcomes) -> dict[str, str]:
    """“Attacker, blur” → how long it has learnt."""
    return {name: found for one in outcomes.values() for name, found in one.facts.get("training", {}).items()}


def _retrieval(paper: RevelioPaper, outcomes: Outcomes) -> dict[str, Any]:
    """Table 1."""
    names = list(dict.fromkeys([*_given(paper), *(row["method"] for row in printed.IRA.rows)]))
    names = [*(name for name in names if name not in _ADDED), *_ADDED]
    rows: list[Row] = []
    for name in names:
        for judge in _judges(outcomes, "base", "retrieval", "kernel"):
            row: Row = {"method": name, "judge": judge}
            for level in printed.BLURS:
                row[f"{level}: here"] = _ira(outcomes, name, level, judge, paper)
                row[f"{level}: paper"] = _printed_ira(name, level)
            rows.append(row | {"training": _training(outcomes, name)})
    return {
        "title": "Closed world: who is it? (Revelio, Table 1)",
        "note": f"Share of photos whose person is retrieved; our 95 % intervals by people, and Wilson's that the "
        f"paper's counts out of {printed.PROBES} would have. {printed.IRA.protocol} Other methods than Revelio have "
        f"one guess at each photo. ~: no count of 97 gives the printed share; the nearest is taken. {_CONTROLLED}",
        "rows": rows,
    }


def _ira(outcomes: Outcomes, name: str, level: str, judge: str, paper: RevelioPaper) -> str:
    many = _trial(outcomes, "retrieval", VOTED, level, name, judge)
    if many is not None:
        return _cell(many, "IRA", note=True)
    if name == NOT_TOLD:
        told = _trial(outcomes, "kernel", ESTIMATED, level, name, judge)
        return _NOT_ASKED.format("kernel") if told is None else _cell(told, "IRA")
    if name not in _given(paper):
        return f"not run: no attacker called {name} was given"
    one = _trial(outcomes, "base", BASE, level, name, judge)
    if one is None:
        return _NOT_ASKED.format("base")
    return _cell(one, "IRA", note=name == PARROT or name == paper.restorer[0])


def _given(paper: RevelioPaper) -> list[str]:
    """Attackers of the part base."""
    return [NAMES["identity"], PARROT, *(label for label, _ in paper.named), *CONTROLS, CHANCE, POSITIVE]


def _training(outcomes: Outcomes, name: str, *levels: str) -> str:
    """How long it has learnt each blur, and why that ended."""
    every = _trained(outcomes)
    told = {level: every[f"{name}, {level}"] for level in levels or printed.BLURS if f"{name}, {level}" in every}
    if len(set(told.values())) == 1:
        return next(iter(told.values()))
    return "; ".join(f"{level} {found}" for level, found in told.items()) or "–"


def _printed_ira(name: str, level: str) -> str:
    row = next((row for row in printed.IRA.rows if row["method"] == name), None)
    if row is None:
        return "–"
    count, exact = printed.counted(row[level])
    low, high = wilson(count, printed.PROBES)
    return f"{row[level]:.3f} [{low:.3f}, {high:.3f}]{'' if exact else ' ~'}"


def _restoration(paper: RevelioPaper, outcomes: Outcomes, level: str, table: Printed) -> dict[str, Any]:
    """Tables 3 and 4."""
    labels = [NAMES["identity"], *(label for label, _ in paper.named), *_BESIDE]
    names = list(dict.fromkeys([*labels, *(row["method"] for row in table.rows)]))
    names = [*(name for name in names if name not in _BESIDE), *_BESIDE]
    rows = []
    for name in names:
        for judge in _judges(outcomes, "base", "kernel"):
            trial, why = _trial(outcomes, "base", BASE, level, name, judge), _NOT_ASKED.format("base")
            if level == "heavy" and name == paper.restorer[0]:  # the paper's Table 4 has the fine-tuned model
                tuned = _trial(outcomes, "fine-tuning", FINE, level, "fine-tuned", judge)
                usable = tuned is not None and len(tuned.figures) > 1
                if usable:
                    head = {"method": f"{name}, base", "judge": judge}
                    rows.append(_measured(head, trial, None, why) | {"training": _training(outcomes, name, level)})
                trial = tuned if usable else trial
            if name not in labels:
                why = f"not run: no attacker called {name} was given"
            here = next((row for row in table.rows if row["method"] == name), None)
            if name == NOT_TOLD:
                trial = _trial(outcomes, "kernel", ESTIMATED, level, name, judge)
                why = _NOT_ASKED.format("kernel")
            row = _measured({"method": name, "judge": judge}, trial, here, why)
            rows.append(row | {"training": _training(outcomes, name, level)})
    number = "3" if level == "light" else "4"
    return {
        "title": f"Closed world: how well is it restored? {level} blur (Revelio, Table {number})",
        "note": f"One guess at each photo; here, and behind the bar as printed. {table.protocol} The paper trains for "
        f"{printed.PROTOCOL['epochs']} epochs. {_STAND_IN} {_CONTROLLED}",
        "rows": rows,
    }


def _fine_tuning(outcomes: Outcomes) -> dict[str, Any]:
    facts = outcomes["fine-tuning"].facts if "fine-tuning" in outcomes else {}
    told = f" The identity was right for {facts['right identity']} of {facts['photos']}." if "photos" in facts else ""
    return {
        "title": "Closed world: fine-tuned on the identity that was retrieved (Revelio, Table 2)",
        "note": f"{printed.FINE_TUNING.protocol}{told} {_STAND_IN}",
        "rows": _rows(outcomes, "fine-tuning", FINE, "heavy", "model", printed.FINE_TUNING.rows),
    }


def _swept(outcomes: Outcomes) -> dict[str, Any]:
    rows: list[Row] = []
    for trial in _trials(outcomes, "sweep", SWEPT):
        head = {"kernel at 256 px": trial.method, "seen by": trial.attacker, "judge": trial.recogniser}
        rows.append(_measured(head, trial, None, "", with_ira=True))
    return {
        "title": "Closed world: kernels that were not learnt (Revelio, Figure 15)",
        "note": "The heavy model on other kernels; “clear” and “blurred” are the bounds of the figure. The paper "
        f"prints no numbers: it says that an offset of {printed.SWEEP['tolerated offset']} is tolerated. {_STAND_IN}",
        "rows": rows or [{"": _NOT_ASKED.format("sweep")}],
    }


def _transferred(outcomes: Outcomes) -> dict[str, Any]:
    rows = [
        _measured({"blur": trial.method, "judge": trial.recogniser}, trial, None, "", with_ira=True)
        for trial in _trials(outcomes, "sweep", TRANSFERRED)
    ]
    return {
        "title": "Closed world: other rules of σ, and a rectangle (Revelio, Figure 16)",
        "note": f"The light model on blurs that look like its own; the paper shows pictures alone. {_STAND_IN}",
        "rows": rows or [{"": _NOT_ASKED.format("sweep")}],
    }


def _defences(outcomes: Outcomes) -> dict[str, Any]:
    return {
        "title": "Closed world: defences against a model that does not know them (Revelio, Table 6)",
        "note": f"{printed.DEFENCES.protocol} IRA of one guess. Faces that were turned, restored or not, are "
        f"turned upright by that very angle before they are read, as whoever sees them would. {_STAND_IN}",
        "rows": _rows(outcomes, "defences", DEFENDED, None, "defence", printed.DEFENCES.rows, with_ira=True, but=BARE)
        + [
            _measured({"defence": f"{one.method}, not restored", "judge": one.recogniser}, one, None, "", with_ira=True)
            for one in _trials(outcomes, "defences", DEFENDED)
            if one.attacker == BARE
        ],
    }


def _adaptive(paper: RevelioPaper, outcomes: Outcomes) -> dict[str, Any]:
    others = [{"defence": name} for name in ADAPTABLE if name not in (row["defence"] for row in printed.ADAPTIVE.rows)]
    rows = _rows(outcomes, "defences", ADAPTED, None, "defence", [*printed.ADAPTIVE.rows, *others], with_ira=True)
    return {
        "title": "Closed world: the same defences against a model that has learnt them (Revelio, Table 7)",
        "note": f"{printed.ADAPTIVE.protocol} Here {paper.adapt_epochs:g} epochs. “secret”: method and strength of the "
        "post-processing are drawn anew for every photo, and the attacker learns from draws of its own, as section 6 "
        f"proposes without numbers. {_STAND_IN}",
        "rows": rows,
    }


def _kernel(outcomes: Outcomes) -> dict[str, Any]:
    error, images = printed.KERNEL["mean absolute error"], printed.KERNEL["images"]
    facts = outcomes["kernel"].facts if "kernel" in outcomes else {}
    rows: list[Row] = [
        {"": "here", **(facts.get("row") or {"mean absolute error, pixels of 256": _NOT_ASKED.format("kernel"),
                                             "photos": "–", "estimator": "–"})},
        {"": "paper", "mean absolute error, pixels of 256": f"{error:g}",
         "photos": "800 to learn, 100 to choose, 100 to test", "estimator": "EfficientNetV2 Large, regression"},
    ]  # fmt: skip
    return {
        "title": "The kernel, estimated (Revelio, section 5.4 and Figure 13)",
        "note": f"Odd kernels from 1 to 81, {images} photos in the paper. People of the three parts differ here.",
        "rows": rows + facts.get("more", []),
    }


def _detected(outcomes: Outcomes) -> dict[str, Any]:
    told = printed.OUT_OF_DISTRIBUTION
    trials = [one for one in _trials(outcomes, "ood", OPEN) if one.attacker in (STRANGERS, AT_PAPER)]
    columns = ("TPR", "FPR", "accuracy", "AUC")
    rows: list[Row] = []
    for trial in trials:
        limit = figure(trial.figures, "threshold")
        told_by = "none" if limit is None or limit.value is None else f"{limit.value:.3g} ({limit.note})"
        row: Row = {"": f"here, {trial.recogniser}", "threshold": told_by}
        rows.append(row | {name: _cell(trial, name) for name in columns})
    empty: Row = {"": "here", "threshold": _NOT_ASKED.format("ood"), **dict.fromkeys(columns, "–")}
    paper = {name: f"{told[name]:.2f}" if name in told else "–" for name in columns}
    return {
        "title": "Open world: is it anybody whom the attacker knows? (Revelio, Figure 7)",
        "note": "A stranger is called one where the smallest distance of all guesses to the reference is above the "
        "threshold, which is chosen on the other half of the people, or the paper's, one of dlib's embeddings; "
        "intervals by people.",
        "rows": [*(rows or [empty]), {"": "paper", "threshold": f"{told['threshold']:g}", **paper}],
    }


def _open(outcomes: Outcomes) -> dict[str, Any]:
    return {
        "title": "Open world: how well are strangers restored? (Revelio, Table 5)",
        "note": f"{printed.OPEN_WORLD.protocol} {_STAND_IN}",
        "rows": _rows(outcomes, "ood", OPEN, "heavy", "faces", printed.OPEN_WORLD.rows),
    }


def _rows(
    outcomes: Outcomes, part: str, scenario: str, method: str | None, key: str, paper: Sequence[Row], *,
    with_ira: bool = False, but: str = "",
) -> list[Row]:  # fmt: skip
    """A row for each that the paper prints or that was run, for each judge. `method` None: it is what differs."""
    found = [one for one in _trials(outcomes, part, scenario) if one.attacker not in (STRANGERS, AT_PAPER, but)]
    name: Callable[[Trial], str] = (lambda one: one.method) if method is None else (lambda one: one.attacker)
    names = list(dict.fromkeys([*(row[key] for row in paper), *map(name, found)]))
    why = _NOT_ASKED.format(part) if part not in outcomes else "not run: it was not asked for"
    rows = []
    for title in names:
        here = next((row for row in paper if row[key] == title), None)
        for judge in _judges(outcomes, part):
            trial = next((one for one in found if name(one) == title and one.recogniser in (judge, "")), None)
            rows.append(_measured({key: title, "judge": judge}, trial, here, why, with_ira=with_ira))
    return rows


def _measured(head: Row, trial: Trial | None, paper: Row | None, why: str, *, with_ira: bool = False) -> Row:
    """Our figures, and behind a bar the printed ones."""
    row = dict(head)
    columns = [*MEASURES, "IRA"] if with_ira else list(MEASURES)
    if trial is not None and len(trial.figures) == 1 and trial.figures[0].value is None:
        why, trial = f"not run: {trial.figures[0].note}", None
    for index, column in enumerate(columns):
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


def _trial(outcomes: Outcomes, part: str, scenario: str, method: str, attacker: str, judge: str) -> Trial | None:
    wanted = (method, attacker, judge)
    return next(
        (one for one in _trials(outcomes, part, scenario) if (one.method, one.attacker, one.recogniser) == wanted), None
    )


def _judges(outcomes: Outcomes, *parts: str) -> list[str]:
    found = [one.recogniser for part in parts if part in outcomes for one in outcomes[part].trials if one.recogniser]
    return list(dict.fromkeys(found)) or ["–"]
