"""Revelio's parts base, sweep and defences: one guess at each face of the closed world, in several treatments."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ficgan.errors import FicganError
from ficgan.lab.bench import known
from ficgan.lab.metrics.scores import Scores
from ficgan.lab.papers.revelio_controls import POSITIVE, control_trials, positive_attack
from ficgan.lab.papers.revelio_lab import NAMES, Lab
from ficgan.lab.papers.revelio_published import BLURS
from ficgan.lab.papers.transfer import identified, read_trials
from ficgan.lab.papers.treatment import Treatment
from ficgan.lab.readers import Reader, retrain_head
from ficgan.lab.results import Figure, Trial

__all__ = ["BASE", "Outcome", "base", "refused"]

BASE = "closed world, one guess"
"""Scenario of these trials."""
PARROT = "Parrot Recognition"


@dataclass
class Outcome:
    """What a part found, JSON-ready but for its trials.

    Attributes:
        trials: figures.
        facts: whatever a table or a plot needs besides.
        whole: nothing failed that may go well another time; what is not whole is not kept.
    """

    trials: list[Trial] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)
    whole: bool = True


def base(lab: Lab) -> Outcome:
    """Tables 1, 3 and 4: the blurred image itself, parrots, every attacker, and controls; light and heavy blur."""
    out = Outcome(facts={"training": {}})
    _positive(lab, out)
    rows = lab.world.closed
    for level in BLURS:
        how = lab.blur(level)
        lab.tell(0, len(lab.paper.named), f"{level} blur: the judges read the reference and the blurred faces")
        seen = lab.seen(how, rows)
        out.trials += read_trials(lab.bench, seen, rows, method=level, attacker=NAMES["identity"], scenario=BASE)
        out.trials += control_trials(lab, level, BASE)
        out.trials += [_parrot(lab, how, level, reader) for reader in lab.bench.readers]
        for number, (label, spec) in enumerate(lab.paper.named):
            lab.tell(number, len(lab.paper.named), f"{label} against {level} blur")
            try:
                attack = lab.attack(label, spec, how)
                guesses = attack.guess(seen, rows)
                out.facts["training"][f"{label}, {level}"] = attack.training
            except FicganError as error:  # the others go on: one attacker's failure is a line in the table
                out.trials += refused(lab, level, label, str(error))
                out.whole = False
                continue
            out.trials += read_trials(lab.bench, guesses, rows, method=level, attacker=label, scenario=BASE)
    return out


def _positive(lab: Lab, out: Outcome) -> None:
    """The attacker on permuted blocks, which it must be able to undo; the same beside both blurs."""
    if not lab.paper.control_epochs:
        for level in BLURS:
            out.trials += refused(lab, level, POSITIVE, "control_epochs is 0")
        return
    lab.tell(0, 1, "the positive control: permuted blocks")
    rows = lab.world.closed
    try:
        attack, images = positive_attack(lab)
        guesses = lab.bench.prepared.faces.take(rows).with_images(images)
        out.facts["training"] |= {f"{POSITIVE}, {level}": attack.training for level in BLURS}
    except FicganError as error:
        out.trials += [one for level in BLURS for one in refused(lab, level, POSITIVE, str(error))]
        out.whole = False
        return
    for level in BLURS:
        out.trials += read_trials(lab.bench, guesses, rows, method=level, attacker=POSITIVE, scenario=BASE)


def refused(lab: Lab, method: str, attacker: str, why: str, scenario: str = BASE) -> list[Trial]:
    """Trials that say why there are none."""
    return [
        Trial(lab.bench.name, method, scenario, reader.name, attacker, (Figure("IRA", None, note=why),))
        for reader in lab.bench.readers
    ]


def _parrot(lab: Lab, how: Treatment, level: str, reader: Reader) -> Trial:
    """A recogniser that has learnt blurred faces: its head is retrained on the blurred reference, which it then knows.

    Source: Revelio, section 5.2 (a classifier trained on blurred images, in its gallery's own people).
    """
    bench = lab.bench
    reference, probe = (lab.seen(how, rows) for rows in (lab.world.reference, lab.world.closed))
    enrolled, seen = (bench.embed(reader, faces) for faces in (reference, probe))
    note, metric = "blurred faces enrolled, the judge as it is", reader.metric
    try:
        change, told = retrain_head(enrolled, known(reference))
        enrolled, seen, metric = change(enrolled), change(seen), "cosine"
        note = f"blurred faces enrolled. {told}"
    except FicganError as error:
        note = f"{note}: {error}"
    scores = Scores.compare(seen, enrolled, known(probe), known(reference), metric=metric)
    return Trial(bench.name, level, BASE, reader.name, PARROT, (identified(scores, note, lab.bootstrap),))
