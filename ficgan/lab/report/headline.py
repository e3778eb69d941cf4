"""What a report says first: for each method the strongest attacker, and whether the controls hold."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ficgan.lab.results import Figure, Results, Trial, Utility

__all__ = ["Control", "Headline", "controls", "figure", "headlines", "strongest"]

IDENTIFIES = "rank-1"
"""The metric by which attackers and methods are ranked."""
LEFT_OUT = frozenset(
    {"right-key", "background-only", "clear", "constant", "attribute-inference", "linkability"}
    | {"reversed-closed", "retrieval-closed"}
)
"""Trials that are no attempts at a name (controls, what needs the key, other risks), and closed worlds, whose attackers
have learnt from other photos of the victims: their figures stand apart."""


CONTROLS = ("mean-face", "identity")
"""Attackers that are themselves controls."""


@dataclass(frozen=True)
class Headline:
    """A method on a set, judged by its strongest attacker.

    Args:
        set, method: which.
        trial: the strongest attacker's; None where every attempt was refused.
        figure: its rank-1.
        ceiling: rank-1 of clear probes, by the same judge.
        chance: rank-1 of a guess.
        surroundings: rank-1 of background-only by the same judge, where it was run; a parrot figure below it says
            nothing of the face.
        inside: rank-1 of parrot-inside by the same judge: the replaced square alone, all around it greyed.
        utility: what the method left; None where it was not measured.
    """

    set: str
    method: str
    trial: Trial | None
    figure: Figure | None
    ceiling: float | None
    chance: float | None
    surroundings: float | None
    inside: float | None
    utility: Utility | None


@dataclass(frozen=True)
class Control:
    """A trial whose outcome is known beforehand.

    Args:
        set, judge, name: which.
        value: rank-1 found.
        expected: in words.
        holds: whether it came out so.
    """

    set: str
    judge: str
    name: str
    value: float
    expected: str
    holds: bool


def figure(figures: Iterable[Figure], metric: str) -> Figure | None:
    """The figure of that name, or None."""
    return next((one for one in figures if one.metric == metric), None)


def _value(trial: Trial, metric: str = IDENTIFIES) -> float | None:
    found = figure(trial.figures, metric)
    return None if found is None else found.value


def strongest(trials: Iterable[Trial]) -> Trial | None:
    """The trial with the highest rank-1 among attempts at identification; None where there is none."""
    tried = [t for t in trials if _is_attempt(t) and _value(t) is not None]
    return max(tried, key=lambda trial: _value(trial) or 0.0, default=None)


def _is_attempt(trial: Trial) -> bool:
    """Whether it is an attempt at a name by somebody who has what an attacker in the open world has."""
    return trial.scenario not in LEFT_OUT and trial.attacker != "right key" and trial.control != "codes"


def headlines(results: Results) -> list[Headline]:
    """One per set and method, the best protected first."""
    out = []
    utilities = {(one.set, one.method): one for one in results.utilities}
    for name in results.sets:
        here = [trial for trial in results.trials if trial.set == name]
        for method in results.methods:
            if not any(one.method == method for one in here):
                continue  # a method of another evaluation that stands beside this one
            trial = strongest(trial for trial in here if trial.method == method)
            judge = None if trial is None else trial.recogniser
            by_judge = [one for one in here if one.recogniser == judge]
            ceiling, surroundings = (
                next((_value(one) for one in by_judge if one.scenario == scenario), None)
                for scenario in ("clear", "background-only")
            )
            inside = next(
                (_value(one) for one in by_judge if (one.scenario, one.method) == ("parrot-inside", method)), None
            )
            found = None if trial is None else figure(trial.figures, IDENTIFIES)
            chance = None if trial is None else _value(trial, "chance")
            utility = utilities.get((name, method))
            out.append(Headline(name, method, trial, found, ceiling, chance, surroundings, inside, utility))
    names = list(results.sets)
    worst = float("inf")
    return sorted(out, key=lambda one: (names.index(one.set), worst if one.figure is None else one.figure.value or 0.0))


def _permutes(results: Results, method: str) -> bool:
    return results.methods.get(method, {}).get("name") == "block-permutation"


def controls(results: Results) -> list[Control]:
    """Ceilings, negative controls and right keys, and whether they came out as they must."""
    out = []
    ceilings = {(t.set, t.recogniser): _value(t) for t in results.trials if t.scenario == "clear"}
    for trial in results.trials:
        value, chance = _value(trial), _value(trial, "chance")
        if value is None:
            continue
        if trial.control == "ceiling":
            low = figure(trial.figures, IDENTIFIES)
            above = low is None or low.low is None or chance is None or low.low > chance
            expected, holds = "at least ½, above chance", value >= 0.5 and above
        elif trial.control == "negative":
            low = figure(trial.figures, IDENTIFIES)
            reaches = low is not None and low.low is not None and chance is not None and low.low <= chance
            near = chance is None or abs(value - chance) < 1e-9 or reaches
            expected, holds = "chance", near
        elif trial.control == "positive":
            ceiling = ceilings.get((trial.set, trial.recogniser))
            expected, holds = "the ceiling", ceiling is not None and value >= 0.95 * ceiling
        elif trial.scenario in ("reversed-general", "reversed-specialised") and _permutes(results, trial.method):
            # An attacker that cannot undo a permutation was not competent to show that anything is irreversible.
            ceiling = ceilings.get((trial.set, trial.recogniser))
            expected, holds = "the ceiling", ceiling is not None and value >= 0.95 * ceiling
            if trial.attacker.partition(":")[0] in CONTROLS:
                continue
            out.append(
                Control(trial.set, trial.recogniser, f"{trial.attacker} on {trial.method}", value, expected, holds)
            )
            continue
        else:
            continue
        name = trial.scenario if trial.method == "clear" else f"{trial.scenario}: {trial.method}"
        out.append(Control(trial.set, trial.recogniser, name, value, expected, holds))
    return out
