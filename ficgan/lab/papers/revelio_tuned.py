"""Revelio's parts that train on: fine-tuning for the identity that was retrieved, adapting to a defence."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ficgan.anonymizers import Faces
from ficgan.errors import FicganError
from ficgan.lab.attacks.revelio import Revelio, Which, fine_tune
from ficgan.lab.bench import content
from ficgan.lab.papers.revelio_base import Outcome, refused
from ficgan.lab.papers.revelio_lab import Lab
from ficgan.lab.papers.revelio_open import elected
from ficgan.lab.papers.transfer import Attack, read_trials
from ficgan.lab.papers.treatment import Treatment

__all__ = ["FINE", "adapted", "fine_tuning", "tuned_guesses"]

Rows = NDArray[np.int64]
FINE = "closed world, fine-tuned"
"""Scenario of the trials of Table 2."""
_SLOWER = 0.1


def fine_tuning(lab: Lab) -> Outcome:
    """Table 2: the base model, and the same fine-tuned on the reference photos of the identity it has retrieved."""
    out = Outcome()
    how, rows = lab.blur("heavy"), lab.world.closed[: lab.paper.fine_tuned]
    attack, seen = lab.restorer(how), lab.seen(how, rows)
    label = lab.paper.restorer[0]
    if not isinstance(attack.opponent.reverser, Revelio):
        why = f"{label} is no diffusion: only the attention blocks of one are fine-tuned"
        out.trials += refused(lab, "heavy", "fine-tuned", why, FINE)
        return out
    judge = lab.bench.readers[0]
    winners = elected(lab, attack, seen, rows)[judge.name]
    base, tuned = attack.guess(seen, rows), _tuned(lab, attack, how, winners, seen)
    for name, guesses in (("base", base), ("fine-tuned", tuned)):
        out.trials += read_trials(lab.bench, guesses, rows, method="heavy", attacker=name, scenario=FINE)
    right = lab.bench.people[rows] == winners
    out.facts = {"judge": judge.name, "photos": len(rows), "right identity": int(right.sum())}
    return out


def tuned_guesses(lab: Lab) -> NDArray[np.uint8] | None:
    """The fine-tuned guesses [N,S,S,3] at the first photos of the closed world; None where there are none."""
    how, rows = lab.blur("heavy"), lab.world.closed[: lab.paper.fine_tuned]
    attack, seen = lab.restorer(how), lab.seen(how, rows)
    if not isinstance(attack.opponent.reverser, Revelio):
        return None
    winners = elected(lab, attack, seen, rows)[lab.bench.readers[0].name]
    return _tuned(lab, attack, how, winners, seen).images


def _tuned(lab: Lab, attack: Attack, how: Treatment, winners: Rows, seen: Faces) -> Faces:
    out = seen.images.copy()
    for index, person in enumerate(winners.tolist()):
        lab.tell(index, len(seen), "fine-tuning for the identities retrieved")
        out[index] = _for_person(lab, attack, how, person, seen.take([index]))
    return seen.with_images(out)


def adapted(lab: Lab, attack: Attack, how: Treatment, seen: Faces, rows: Rows) -> Faces:
    """Guesses of an attacker that was trained on with faces in another treatment; all its weights learn.

    Args:
        lab: of the set.
        attack: a diffusion.
        how: the treatment of the reference that it is trained on with.
        seen: the images at `rows` as it is shown them.
        rows: of the set.

    Raises:
        FicganError: no diffusion, which would have to be trained anew.

    Source: Revelio, section 6 (100 epochs of the base model on the defended reference).
    """
    reference = lab.world.reference
    reverser: Any = attack.opponent.reverser
    if not isinstance(reverser, Revelio):
        raise FicganError(f"{attack.label} is no diffusion, and is not trained on; train it on the defended faces")
    steps = max(1, round(lab.paper.adapt_epochs * len(reference) / min(reverser.batch, len(reference))))
    return _trained_on(lab, attack, how, reference, seen, rows, steps=steps, lr=reverser.lr, which="all")


def _for_person(lab: Lab, attack: Attack, how: Treatment, person: int, seen: Faces) -> Any:
    """One image as restored after fine-tuning on a person's reference photos."""
    own = lab.world.reference[lab.bench.people[lab.world.reference] == person]
    reverser: Any = attack.opponent.reverser
    rate = lab.paper.tune_rate or _SLOWER * reverser.lr
    at = np.array([lab.bench.prepared.faces.names.index(seen.names[0])])
    guess = _trained_on(lab, attack, how, own, seen, at, steps=lab.paper.tune_steps, lr=rate, which="attention")
    return guess.images[0]


def _trained_on(
    lab: Lab, attack: Attack, how: Treatment, learnt: Rows, seen: Faces, rows: Rows, *, steps: int, lr: float,
    which: Which,
) -> Faces:  # fmt: skip
    bench = lab.bench
    key = ["trained on", *attack.mark, how.mark, learnt.tolist(), steps, lr, which, content(seen)]

    def make() -> Any:
        shown, clear = bench.part(learnt, lab.seen(how, learnt).images), bench.part(learnt)
        base: Any = attack.opponent.fitted
        seed = lab.paper.seed
        tuned = fine_tune(base, shown.regions(), clear.regions(), steps=steps, lr=lr, which=which, seed=seed)
        part = bench.part(rows, seen.images)
        return part.with_regions(tuned.guess(part.regions())).images

    return seen.with_images(bench.store.array(key, make))
