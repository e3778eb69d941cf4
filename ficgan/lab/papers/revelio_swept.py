"""Revelio's parts sweep and defences: a model on faces in another treatment than it has learnt."""

from __future__ import annotations

from ficgan.lab.attacks.revelio import Revelio
from ficgan.lab.papers.revelio_base import Outcome
from ficgan.lab.papers.revelio_defended import ATTACKER, DEFENCES, PUBLISHER, defended, turned_back
from ficgan.lab.papers.revelio_lab import Lab
from ficgan.lab.papers.revelio_published import SWEEP
from ficgan.lab.papers.revelio_tuned import adapted
from ficgan.lab.papers.transfer import read_trials, transfer
from ficgan.lab.papers.treatment import CLEAR, Treatment

__all__ = ["ADAPTED", "DEFENDED", "SWEPT", "TRANSFERRED", "defences", "sweep"]

SWEPT = "closed world, other kernels"
TRANSFERRED = "closed world, other rules and shapes"
DEFENDED = "closed world, defences"
ADAPTED = "closed world, adaptive attack"
"""Scenarios of these trials."""
BARE = "not restored"
BOUNDS = ("clear", "blurred")
"""Attackers of the two trials between which Figure 15 lies."""


def sweep(lab: Lab) -> Outcome:
    """Figure 15: the heavy model on kernels 71 to 91; Figure 16: the light one on other rules and a rectangle."""
    from ficgan.lab.attacks.blurs import transfers

    bench, rows = lab.bench, lab.world.closed[: lab.paper.sweep]
    _, spec = lab.paper.restorer
    out, heavy = Outcome(), lab.blur("heavy")
    kernels = range(SWEEP["from"], SWEEP["to"] + 1, 2)
    out.trials += transfer(
        bench, spec, [heavy], [lab.kernel(kernel) for kernel in kernels], probes=rows, scenario=SWEPT, told=lab.told
    )
    for bound, how in zip(BOUNDS, (CLEAR, heavy), strict=True):
        out.trials += read_trials(bench, lab.seen(how, rows), rows, method=heavy.label, attacker=bound, scenario=SWEPT)
    others = [Treatment(label, (blur,)) for label, blur in transfers(lab.paper.size).items()]
    out.trials += transfer(bench, spec, [lab.blur("light")], others, probes=rows, scenario=TRANSFERRED, told=lab.told)
    out.facts = {"kernels": list(kernels), "photos": len(rows)}
    return out


def defences(lab: Lab) -> Outcome:
    """Table 6: the light model on faces that were changed after the blur; Table 7: having learnt such faces.

    An attacker that has learnt the randomised defence has learnt other draws than those it meets.
    """
    out, rows = Outcome(), lab.world.closed
    label, spec = lab.paper.restorer
    attack = lab.restorer(lab.blur("light"))
    for number, name in enumerate(DEFENCES):
        lab.tell(number, len(DEFENCES), f"{label} against the defence {name}")
        met = defended(lab, name, key=PUBLISHER)
        seen = lab.seen(met, rows)
        guesses = turned_back(lab, attack.guess(seen, rows), rows, met)
        out.trials += read_trials(lab.bench, guesses, rows, method=name, attacker=label, scenario=DEFENDED)
        bare = turned_back(lab, seen, rows, met)
        out.trials += read_trials(lab.bench, bare, rows, method=name, attacker=BARE, scenario=DEFENDED)
        if name not in lab.paper.adapted:
            continue
        lab.tell(number, len(DEFENCES), f"{label} adapts to the defence {name}")
        learnt = defended(lab, name, key=ATTACKER)
        if isinstance(attack.opponent.reverser, Revelio):
            adaptive = adapted(lab, attack, learnt, seen, rows)
        else:
            adaptive = lab.attack(label, spec, learnt).guess(seen, rows)
        how = f"{label}, adapted" if isinstance(attack.opponent.reverser, Revelio) else f"{label}, trained anew"
        # It has learnt upright faces from turned ones: nothing is turned back.
        out.trials += read_trials(lab.bench, adaptive, rows, method=name, attacker=how, scenario=ADAPTED)
    return out
