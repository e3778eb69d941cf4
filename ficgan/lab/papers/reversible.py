"""Is a method reversible? One rule for all, decided only where the controls have held."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ficgan.lab.report.tables import controls, figure
from ficgan.lab.results import Figure, Results, Trial

__all__ = ["RULE", "Verdict", "verdicts"]

POSITIVE = "block-permutation"
"""The anonymiser that every competent attacker reverses (Fantômas §6.1.1)."""
RULE = (
    "A method counts as reversible where, for one judge, the lower end of the 95 % interval of rank-1 on the best "
    "reversed probes lies above the upper end of that on anonymised probes; it is decided only where clear probes are "
    "recognised, constant ones are at chance and block permutation, the positive control, is itself reversible by this "
    "rule. The best of several attackers is taken without correction; intervals that do not overlap are stricter than "
    "a test at 5 %, which covers a handful. “No” means: not by these attackers."
)
REVERSED = ("reversed-general", "reversed-specialised")
_CONTROLS = ("clear", "constant")


@dataclass(frozen=True)
class Verdict:
    """A method on a set, by one judge; figures are rank-1, None where they were not measured or refused.

    Args:
        set, method, judge: which.
        clear, naive, parrot: of the scenarios clear, naive and parrot-enrol.
        best: of the strongest reversal that knows no background set.
        attacker: who that was.
        gain: reversibility of that attack, (best − naive) / clear, its interval of the same people in all three.
        known: of the subtraction of a known background set.
        reversible: by `RULE`; None where it is undecided.
        reversible_known: the same of `known`; None also where there is no such attack.
        why: why it is undecided.
    """

    set: str
    method: str
    judge: str
    clear: Figure | None = None
    naive: Figure | None = None
    parrot: Figure | None = None
    best: Figure | None = None
    attacker: str = ""
    gain: Figure | None = None
    known: Figure | None = None
    reversible: bool | None = None
    reversible_known: bool | None = None
    why: str = ""


def verdicts(results: Results) -> list[Verdict]:
    """One for each set, method and judge.

    Args:
        results: of a matrix with the scenarios clear, constant, naive, parrot-enrol, reversed-… and background-known.
    """
    out = []
    for name in results.sets:
        here = [trial for trial in results.trials if trial.set == name]
        for judge in dict.fromkeys(trial.recogniser for trial in here if trial.recogniser):
            mine = [trial for trial in here if trial.recogniser == judge]
            lacking = _uncontrolled(results, name, judge, mine)
            out += [_decided(name, method, judge, mine, lacking) for method in results.methods]
    return out


def above(reversed_: Figure | None, naive: Figure | None) -> bool | None:
    """Whether the first interval lies above the second; None where one is missing."""
    if reversed_ is None or naive is None or reversed_.low is None or naive.high is None:
        return None
    return reversed_.low > naive.high


def _decided(name: str, method: str, judge: str, trials: list[Trial], lacking: str) -> Verdict:
    own = [trial for trial in trials if trial.method == method]
    naive, parrot = (_best(own, (scenario,))[0] for scenario in ("naive", "parrot-enrol"))
    best, attacker = _best(own, REVERSED)
    known, _ = _best(own, ("background-known",))
    reversed_ = [trial for trial in own if trial.scenario in REVERSED]
    gain = next((figure(one.figures, "reversibility") for one in reversed_ if best in one.figures), None)
    found, found_known = above(best, naive), above(known, naive)
    why = lacking
    if not lacking and found is None:
        why = "no reversal was measured" if best is None else "too few people for an interval"
    return Verdict(
        name, method, judge,
        clear=_best(trials, ("clear",))[0], naive=naive, parrot=parrot, best=best, attacker=attacker,
        gain=gain, known=known,
        reversible=None if lacking else found, reversible_known=None if lacking else found_known, why=why,
    )  # fmt: skip


def _uncontrolled(results: Results, name: str, judge: str, trials: list[Trial]) -> str:
    """Why nothing can be decided by this judge; "" where all controls hold."""
    held = {one.name: one for one in controls(results) if (one.set, one.judge) == (name, judge)}
    for control in _CONTROLS:
        if control not in held:
            return f"the control {control!r} was not run"
        if not held[control].holds:
            return f"the control {control!r} does not hold: {held[control].value:.3f} is not {held[control].expected}"
    for method, facts in results.methods.items():
        if facts["name"] == POSITIVE:
            own = [trial for trial in trials if trial.method == method]
            best, _ = _best(own, REVERSED)
            naive, _ = _best(own, ("naive",))
            if above(best, naive):
                return ""
            return f"the positive control, {method}, was not reversed: these attackers prove nothing here"
    return "the positive control, block permutation, was not run"


def _best(trials: Iterable[Trial], scenarios: tuple[str, ...]) -> tuple[Figure | None, str]:
    """The highest rank-1 of these scenarios, and who achieved it."""
    found: Figure | None = None
    attacker = ""
    for trial in trials:
        one = figure(trial.figures, "rank-1") if trial.scenario in scenarios else None
        if one is not None and one.value is not None and (found is None or one.value > (found.value or 0.0)):
            found, attacker = one, trial.attacker
    return found, attacker
