"""What Revelio's figures are read against: clear faces, pictures of nobody, chance, and a solvable task."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ficgan.anonymizers import generator
from ficgan.lab.attacks import REVERSERS
from ficgan.lab.attacks.learned import Learned
from ficgan.lab.papers.revelio_lab import Lab
from ficgan.lab.papers.transfer import Attack, distance, read_trials
from ficgan.lab.papers.treatment import treatment
from ficgan.lab.results import Figure, Trial
from ficgan.registry import parse_spec

__all__ = ["APART", "CHANCE", "CONTROLS", "POSITIVE", "control_trials", "positive_attack"]

CHANCE = "Chance"
CONTROLS = ("Clear", "Constant grey", "Mean face")
"""Attackers that give back the clear face, and twice the same picture of nobody for everybody."""
APART = ("Same person, another photo", "Strangers")
"""Attackers that give back a photo of the reference: between their IDD lies every judge's scale."""
POSITIVE = "Block permutation, undone"
"""The attacker against what it must be able to undo."""
_BLOCK = 256


def control_trials(lab: Lab, level: str, scenario: str) -> list[Trial]:
    """Trials of `CONTROLS`, `CHANCE` and `APART` on the closed world.

    Args:
        lab: of the set.
        level: the blur beside which they stand; nothing here depends on it.
        scenario: as of `Trial`.
    """
    bench, rows = lab.bench, lab.world.closed
    clear = bench.prepared.faces.take(rows)
    grey = np.full_like(clear.images, 127)
    enrolled, people = bench.people[lab.world.reference], bench.people[rows]
    share, note = float(np.mean(enrolled[:, None] == people)), "any photo of the reference"
    pictures = (clear.images, grey, np.broadcast_to(_mean(lab), grey.shape).copy())
    kinds = ("ceiling", "negative", "negative")
    out: list[Trial] = []
    for name, kind, images in zip(CONTROLS, kinds, pictures, strict=True):
        found = read_trials(bench, clear.with_images(images), rows, method=level, attacker=name, scenario=scenario)
        chance = Figure("chance", share, n=len(rows), unit="images", note=note)
        out += [replace(one, control=kind, figures=(*one.figures, chance)) for one in found]
    chance = Figure("IRA", share, n=len(rows), unit="images", note=note)
    partners = _partners(lab)
    for reader in bench.readers:
        out.append(Trial(bench.name, level, scenario, reader.name, CHANCE, (chance,), control="negative"))
        for name, photos in zip(APART, partners, strict=True):
            idd = distance(bench, reader, bench.prepared.faces.take(photos), rows, lab.bootstrap)
            out.append(Trial(bench.name, level, scenario, reader.name, name, (idd,), control="codes"))
    return out


def positive_attack(lab: Lab) -> tuple[Attack, NDArray[np.uint8]]:
    """The paper's attacker, trained for `control_epochs` on permuted blocks, and its guesses at the closed world."""
    label, spec = lab.paper.restorer
    name, given = parse_spec(spec)
    if issubclass(REVERSERS[name], Learned):
        given = {key: value for key, value in given.items() if key != "minutes"}
        given["epochs"] = str(lab.paper.control_epochs)
    spec = ":".join(filter(None, [name, ",".join(f"{key}={value}" for key, value in given.items())]))
    how = treatment(f"block-permutation:block={lab.paper.size // 8}")
    attack = lab.attack(f"{label}, {POSITIVE}", spec, how)
    return attack, attack.guess(lab.seen(how, lab.world.closed), lab.world.closed).images


def _mean(lab: Lab) -> NDArray[np.uint8]:
    """The mean of the reference's photos."""
    faces, rows = lab.bench.prepared.faces, lab.world.reference
    total = np.zeros(faces.images.shape[1:], np.float64)
    for begin in range(0, len(rows), _BLOCK):
        total += faces.take(rows[begin : begin + _BLOCK]).images.sum(0, dtype=np.float64)
    return np.rint(total / len(rows)).astype(np.uint8)


def _partners(lab: Lab) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """For each photo of the closed world one of the reference: of the same person, and of somebody else."""
    rng, reference = generator(lab.paper.seed, "apart"), lab.world.reference
    whose = lab.bench.people[reference]
    people = lab.bench.people[lab.world.closed]
    same = [rng.choice(reference[whose == person]) for person in people]
    other = [rng.choice(reference[whose != person]) for person in people]
    return np.array(same, np.int64), np.array(other, np.int64)
