"""Revelio's parts retrieval and ood: many guesses at each face vote for a name, or say that it is nobody's."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ficgan.anonymizers import Faces
from ficgan.attacks.retrieval import Retrieved, choose_threshold, ood_curve, retrieve
from ficgan.evaluation.bench import known
from ficgan.evaluation.metrics.intervals import wilson
from ficgan.evaluation.papers.revelio_base import Outcome
from ficgan.evaluation.papers.revelio_lab import Lab
from ficgan.evaluation.papers.revelio_published import BLURS, OUT_OF_DISTRIBUTION
from ficgan.evaluation.papers.transfer import Attack, read_trials
from ficgan.evaluation.readers import Reader
from ficgan.evaluation.results import Figure, Trial

__all__ = ["OPEN", "VOTED", "elected", "ood", "retrieval"]

Rows = NDArray[np.int64]
VOTED = "closed world, many guesses"
OPEN = "open world"
"""Scenarios of these trials."""


def elected(lab: Lab, attack: Attack, seen: Faces, rows: Rows) -> dict[str, NDArray[np.int64]]:
    """The person of the reference whom most guesses are nearest to: judge → [N]."""
    return {name: one.found for name, one in _voted(lab, attack, seen, rows).items()}


def retrieval(lab: Lab) -> Outcome:
    """Table 1, the attack as the paper has it: n guesses at each face of the closed world."""
    out, rows, n = Outcome(), lab.world.closed, lab.paper.candidates
    label, who = lab.paper.restorer[0], known(lab.bench.prepared.faces.take(lab.world.closed))
    for level in BLURS:
        how = lab.blur(level)
        attack, seen = lab.restorer(how), lab.seen(how, rows)
        for name, one in _voted(lab, attack, seen, rows).items():
            figures = (
                _share("IRA", one.found == who, f"majority of {n} guesses"),
                _share("IRA, one guess", one.winners[:, 0] == who),
                _share("IRA, nearest of all guesses", _shortest(one) == who),
            )
            out.trials.append(Trial(lab.bench.name, level, VOTED, name, label, figures))
    out.facts = {"candidates": n, "enrolled images": len(lab.world.reference)}
    return out


def ood(lab: Lab) -> Outcome:
    """Figure 7 and Table 5: strangers told from people of the reference by the smallest distance, heavy blur."""
    out, how = Outcome(), lab.blur("heavy")
    attack = lab.restorer(how)
    inside, outside = lab.world.closed, lab.world.outside
    shown = {name: lab.seen(how, rows) for name, rows in (("inside", inside), ("outside", outside))}
    near = _voted(lab, attack, shown["inside"], inside)
    far = _voted(lab, attack, shown["outside"], outside)
    curves: dict[str, Any] = {}
    for reader in lab.bench.readers:
        mine, theirs = near[reader.name].lowest, far[reader.name].lowest
        curve = _curve(mine, theirs, _paper_threshold(reader))
        curves[reader.name] = curve
        limit, note = curve["threshold"], curve["note"]
        figures = (
            Figure("AUC", curve["AUC"], n=len(mine) + len(theirs), unit="images"),
            _share("TPR", theirs > limit, note),
            _share("FPR", mine > limit, note),
            _share("accuracy", np.concatenate([theirs > limit, mine <= limit]), note),
        )
        out.trials.append(Trial(lab.bench.name, "heavy", OPEN, reader.name, "strangers detected", figures))
    judge = lab.bench.readers[0].name
    detected = far[judge].lowest > curves[judge]["threshold"]
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


def _voted(lab: Lab, attack: Attack, seen: Faces, rows: Rows) -> dict[str, Retrieved]:
    bench = lab.bench
    reference = bench.prepared.faces.take(lab.world.reference)
    codes = attack.codes(seen, rows, lab.paper.candidates)
    return {
        reader.name: retrieve(codes[reader.name], bench.embed(reader, reference), known(reference), reader.metric)
        for reader in bench.readers
    }


def _shortest(one: Retrieved) -> NDArray[np.int64]:
    best: NDArray[np.int64] = np.take_along_axis(one.winners, one.distances.argmin(1)[:, None], 1)[:, 0]
    return best


def _share(metric: str, hits: NDArray[np.bool_], note: str = "") -> Figure:
    if not len(hits):
        return Figure(metric, None, unit="images", note="there is no such face here")
    low, high = wilson(int(hits.sum()), len(hits))
    return Figure(metric, float(hits.mean()), low, high, len(hits), "images", note)


def _paper_threshold(reader: Reader) -> float | None:
    """The paper's distance is one of dlib's embeddings, and of no others."""
    return OUT_OF_DISTRIBUTION["threshold"] if reader.name == "dlib" else None


def _curve(inside: NDArray[np.float32], outside: NDArray[np.float32], threshold: float | None) -> dict[str, Any]:
    """TPR and FPR over all thresholds, JSON-ready, and the threshold that is used."""
    curve = ood_curve(inside, outside)
    note = "the paper's threshold"
    if threshold is None:
        threshold, note = choose_threshold(inside, outside), "threshold chosen on these very faces: too good"
    return {
        "TPR": curve.tpr.tolist(), "FPR": curve.fpr.tolist(), "AUC": curve.auc, "threshold": threshold, "note": note,
        "inside": inside.tolist(), "outside": outside.tolist(),
    }  # fmt: skip
