"""Revelio's parts retrieval and ood: many guesses at each face vote for a name, or say that it is nobody's."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ficgan.anonymizers import Faces
from ficgan.lab.attacks.retrieval import choose_threshold, ood_curve, retrieve
from ficgan.lab.papers.revelio_base import Outcome
from ficgan.lab.papers.revelio_lab import Lab
from ficgan.lab.papers.revelio_published import BLURS, OUT_OF_DISTRIBUTION
from ficgan.lab.papers.transfer import Attack, by_people, read_trials
from ficgan.lab.readers import Reader
from ficgan.lab.results import Figure, Trial
from ficgan.lab.reversal import Read, stranger_figures

__all__ = ["AT_PAPER", "OPEN", "STRANGERS", "VOTED", "elected", "ood", "retrieval"]

Rows = NDArray[np.int64]
VOTED = "closed world, many guesses"
OPEN = "open world"
"""Scenarios of these trials."""
STRANGERS, AT_PAPER = "strangers detected", "strangers detected at the paper's distance"
"""Attackers of the trials that tell strangers."""


def elected(lab: Lab, attack: Attack, seen: Faces, rows: Rows) -> dict[str, NDArray[np.int64]]:
    """The person of the reference whom most guesses are nearest to: judge → [N]."""
    return {name: one.names() for name, one in _read(lab, attack, seen, rows).items()}


def retrieval(lab: Lab) -> Outcome:
    """Table 1, the attack as the paper has it: n guesses at each face of the closed world."""
    out, rows, n = Outcome(), lab.world.closed, lab.paper.candidates
    for level in BLURS:
        how = lab.blur(level)
        attack, seen = lab.restorer(how), lab.seen(how, rows)
        for name, one in _read(lab, attack, seen, rows).items():
            told = (
                ("IRA", one.names(), f"majority of {n} guesses"),
                ("IRA, one guess", one.names(guesses=1), ""),
                ("IRA, nearest of all guesses", one.names("shortest"), ""),
            )
            figures = tuple(
                by_people(metric, found == one.people, one.people, lab.bootstrap, note) for metric, found, note in told
            )
            out.trials.append(Trial(lab.bench.name, level, VOTED, name, lab.paper.restorer[0], figures))
    out.facts = {"candidates": n, "enrolled images": len(lab.world.reference)}
    return out


def ood(lab: Lab) -> Outcome:
    """Figure 7 and Table 5: strangers told from people of the reference by the smallest distance, heavy blur."""
    out, how = Outcome(), lab.blur("heavy")
    attack = lab.restorer(how)
    inside, outside = lab.world.closed, lab.world.outside
    shown = {name: lab.seen(how, rows) for name, rows in (("inside", inside), ("outside", outside))}
    near, far = (_read(lab, attack, shown[name], rows) for name, rows in (("inside", inside), ("outside", outside)))
    curves: dict[str, Any] = {}
    for reader in lab.bench.readers:
        trials, curves[reader.name] = _strangers(lab, reader, near[reader.name], far[reader.name])
        out.trials += trials
    judge = lab.bench.readers[0].name
    detected = np.array(curves[judge]["outside"]) > curves[judge]["threshold"]
    groups = (
        ("out of distribution, detected", outside[detected], shown["outside"].take(np.flatnonzero(detected))),
        ("out of distribution, missed", outside[~detected], shown["outside"].take(np.flatnonzero(~detected))),
        ("in distribution", inside, shown["inside"]),
    )
    for name, rows, seen in groups:
        if not len(rows):
            note = Figure("PSNR", None, unit="images", note="there is no such face here")
            out.trials.append(Trial(lab.bench.name, "heavy", OPEN, judge, name, (note,)))
            continue
        guesses = attack.guess(seen, rows)
        out.trials += read_trials(lab.bench, guesses, rows, method="heavy", attacker=name, scenario=OPEN)
    out.facts = {"curves": curves, "judge": judge}
    return out


def _read(lab: Lab, attack: Attack, seen: Faces, rows: Rows) -> dict[str, Read]:
    """What each judge reads in many guesses, before the whole reference."""
    bench, people = lab.bench, lab.bench.people
    reference = bench.prepared.faces.take(lab.world.reference)
    codes = attack.codes(seen, rows, lab.paper.candidates)
    return {
        reader.name: Read(
            codes[reader.name], people[rows], bench.embed(reader, reference), people[lab.world.reference], reader.metric
        )
        for reader in bench.readers
    }


def _strangers(lab: Lab, reader: Reader, near: Read, far: Read) -> tuple[list[Trial], dict[str, Any]]:
    """Trials of a judge, and its curve, JSON-ready, with the threshold that Table 5 goes by."""
    both = replace(
        near,
        candidates=np.concatenate([near.candidates, far.candidates]),
        people=np.concatenate([near.people, far.people]),
    )
    least = retrieve(both.candidates, both.gallery, both.enrolled, both.metric).lowest
    mine, theirs = least[: len(near.people)], least[len(near.people) :]
    curve = ood_curve(mine, theirs)
    found, _ = stranger_figures(both, np.unique(both.enrolled), lab.bootstrap)
    figures = {one.metric.removeprefix("stranger "): one for one in found}
    figures["AUC"] = Figure("AUC", curve.auc, n=len(least), unit="images")
    told = [Trial(lab.bench.name, "heavy", OPEN, reader.name, STRANGERS,
                  tuple(replace(one, metric=name) for name, one in figures.items()))]  # fmt: skip
    limit = figures.get("threshold")
    threshold, note = (None, "") if limit is None else (limit.value, "chosen on the other half of the people")
    if threshold is None:
        threshold, note = choose_threshold(mine, theirs), "threshold chosen on these very faces: too good"
    if reader.name == "dlib":  # the paper's distance is one of dlib's embeddings, and of no others
        threshold, note = OUT_OF_DISTRIBUTION["threshold"], "the paper's threshold"
        told.append(Trial(lab.bench.name, "heavy", OPEN, reader.name, AT_PAPER, (
            Figure("threshold", threshold, note=note),
            by_people("TPR", theirs > threshold, far.people, lab.bootstrap, note),
            by_people("FPR", mine > threshold, near.people, lab.bootstrap, note),
            by_people("accuracy", (least > threshold) == (np.arange(len(least)) >= len(mine)), both.people,
                      lab.bootstrap, note),
            figures["AUC"],
        )))  # fmt: skip
    return told, {
        "TPR": curve.tpr.tolist(), "FPR": curve.fpr.tolist(), "AUC": curve.auc, "threshold": threshold, "note": note,
        "inside": mine.tolist(), "outside": theirs.tolist(),
    }  # fmt: skip
