"""One anonymiser on one set: every scenario, read by every judge."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ficgan.anonymizers import Anonymizer, Faces
from ficgan.errors import InputError, UsageError
from ficgan.lab.attackers import Attempt, attacked
from ficgan.lab.bench import Bench, NotApplicable, Refused, Subject, known
from ficgan.lab.inference import binary_labels, infer
from ficgan.lab.metrics.intervals import Bootstrap
from ficgan.lab.metrics.privacy import (
    FAILURES,
    chance,
    failures_to_acquire,
    privacy_curves,
    privacy_figures,
    rank,
    reversibility,
)
from ficgan.lab.metrics.scores import Scores
from ficgan.lab.readers import Embeddings, Reader
from ficgan.lab.results import Figure, Trial
from ficgan.lab.retrain import retrain_head, retrain_network
from ficgan.lab.retrieving import run_retrieval
from ficgan.lab.reversal import fidelity_figures, identity_distance
from ficgan.lab.scenarios import Scenario

__all__ = ["LEAST_GROUP", "run_trials"]

LEAST_GROUP = 10
"""People a group needs for figures of its own."""
_OF_CLEAR = ("ceiling", "negative", "surroundings")
"""Controls that are run on the clear images alone, as all other scenarios are on the anonymised ones alone."""
_SUBJECTS = {"linkability": (True, False), "attribute-inference": (True, False)}
"""But for those that say something only beside the clear images' own: whether without an anonymiser."""


def run_trials(
    bench: Bench,
    anonymizer: Anonymizer | None,
    label: str,
    scenarios: Sequence[Scenario],
    *,
    progress: Callable[[str], object] | None = None,
) -> list[Trial]:
    """Trials of one anonymiser, or of the clear images where it is None.

    Args:
        bench: set, split, judges.
        anonymizer: ready to use, see `anonymiser_for`.
        label: of the method.
        scenarios: to run; those without an anonymiser are run for the clear images only.
        progress: called with each scenario's name before it begins, and with what takes long in it.

    Returns:
        A trial per scenario, attacker and judge; none where a scenario has no meaning for the method. A scenario that
        cannot be run has one trial with a figure that says why.
    """
    subject = Subject(bench, anonymizer)
    run = {
        "inference": _inference, "retrieval": run_retrieval, "closed retrieval": run_retrieval,
        "identity probe": _identity_probe,
    }  # fmt: skip
    trials: list[Trial] = []
    for scenario in scenarios:
        if (anonymizer is None) not in _SUBJECTS.get(scenario.name, (scenario.control in _OF_CLEAR,)):
            continue
        if progress:
            progress(scenario.name)
            subject.say = partial(_say, progress, scenario.name)
        try:
            trials += run.get(scenario.attacker, _scenario)(bench, subject, label, scenario)
        except NotApplicable:
            continue
        except (Refused, UsageError, InputError) as error:
            refused = Figure("rank-1", None, note=str(error))
            trials.append(Trial(bench.name, label, scenario.name, "", figures=(refused,)))
    return trials


def _scenario(bench: Bench, subject: Subject, label: str, scenario: Scenario) -> list[Trial]:
    gallery_rows, probe_rows = bench.split.gallery, bench.split.probe
    if scenario.same_set:
        gallery_rows = probe_rows = np.sort(np.concatenate([bench.split.gallery, bench.split.probe]))
    gallery = subject.view(scenario.gallery, gallery_rows)
    trials = []
    for attempt in attacked(bench, subject, scenario, probe_rows):
        probe, seen = attempt.faces, bench.found(attempt.faces)
        likeness = fidelity_figures(bench, attempt.rows, probe) if _restores(scenario) else ()
        for reader in bench.readers:
            embed, note = _embedder(bench, subject, scenario, reader)
            p, people, found = embed(probe), known(probe), seen
            g = p if scenario.same_set else embed(gallery)
            if scenario.attacker == "fusion":
                p, people, found = _fused(p, people, found)
            metric: Any = "cosine" if scenario.retrained else reader.metric
            scores = Scores.compare(p, g, people, known(gallery), metric=metric, exclude_same=scenario.same_set)
            threshold = None if scenario.retrained else reader.threshold
            figures = _figures(bench, scores, threshold, bench.resamples)
            if not scenario.same_set:
                figures += _without_face(bench, p, g, people, known(gallery), metric, found)
            figures += (Figure("chance", chance(scores), n=scores.enrolled),)
            figures += _reversal(bench, subject, scenario, attempt, scores, reader)
            if likeness:
                clear = embed(subject.clear(attempt.rows))
                bootstrap = Bootstrap(bench.resamples, bench.seed)
                figures += (*likeness, identity_distance(p, clear, people, bootstrap))
            if not scenario.retrained and (unread := reader.unread(p)):
                note = f"{note} {unread} of {len(p)} probes could not be read and are like nobody.".strip()
            if note:
                figures = (dataclasses.replace(figures[0], note=f"{figures[0].note} {note}".strip()), *figures[1:])
            fusion = scenario.attacker == "fusion"
            groups = {} if fusion else _groups(bench, scores, attempt.rows, threshold)
            if scenario.name == "naive":
                subject.naive[reader.name] = scores
            trials.append(
                Trial(
                    bench.name, label, scenario.name, reader.name, attempt.attacker, figures, _curves(scores), groups,
                    scenario.control,
                )
            )  # fmt: skip
    return trials


def _figures(bench: Bench, scores: Scores, threshold: float | None, resamples: int) -> tuple[Figure, ...]:
    """Read at the source's landmarks, found or not; what is lost where a face must be found is `_without_face`'s."""
    figures = privacy_figures(scores, threshold=threshold, seed=bench.seed, resamples=resamples)
    return tuple(one for one in figures if not one.metric.endswith(FAILURES) and one.metric != "failures to acquire")


def _curves(scores: Scores) -> dict[str, list[list[float]]]:
    """Curves with five digits, which is more than a plot shows."""
    return {
        name: [[float(f"{number:.5g}") for number in point] for point in points]
        for name, points in privacy_curves(scores).items()
    }


def _without_face(
    bench: Bench, probe: Embeddings, gallery: Embeddings, people: NDArray[np.int64], enrolled: NDArray[np.int64],
    metric: Any, found: NDArray[np.bool_],
) -> tuple[Figure, ...]:  # fmt: skip
    """The same where an attacker must first find the face: probes without one are misses."""
    bootstrap = Bootstrap(bench.resamples, bench.seed)
    if not found.any():
        nothing = Figure(f"rank-1{FAILURES}", 0.0, n=len(np.unique(people)), note="no face is found in any probe")
        return (nothing, Figure("failures to acquire", 1.0, n=len(people), unit="images"))
    scores = Scores.compare(probe, gallery, people, enrolled, metric=metric, acquired=found)
    return rank(scores, 1, failures=True, bootstrap=bootstrap), failures_to_acquire(scores, bootstrap=bootstrap)


def _embedder(
    bench: Bench, subject: Subject, scenario: Scenario, reader: Reader
) -> tuple[Callable[[Faces], Embeddings], str]:
    if not scenario.retrained:
        return lambda faces: bench.embed(reader, faces), ""
    if not len(bench.split.attacker):
        raise Refused("the split leaves no faces to retrain on; set split.attacker")
    taught = subject.anonymised(bench.split.attacker)
    if bench.retrain == "network":
        return retrain_network(reader, taught)
    change, note = retrain_head(bench.embed(reader, taught), known(taught))
    return lambda faces: change(bench.embed(reader, faces)), note


def _fused(
    embeddings: Embeddings, people: NDArray[np.int64], found: NDArray[np.bool_]
) -> tuple[Embeddings, NDArray[np.int64], NDArray[np.bool_]]:
    """One mean embedding per person, of normalised ones."""
    unit = embeddings / np.linalg.norm(embeddings, axis=1, keepdims=True).clip(1e-12)
    values, index = np.unique(people, return_inverse=True)
    total = np.zeros((len(values), unit.shape[1]), np.float64)
    np.add.at(total, index, unit)
    count = np.bincount(index)[:, None]
    scale = np.linalg.norm(embeddings, axis=1).mean()
    return (total / count * scale).astype(np.float32), values, np.bincount(index, found) > 0


def _restores(scenario: Scenario) -> bool:
    """Whether what is read shall resemble the clear faces; the anonymised ones are what it is compared with."""
    return scenario.probe == "reversed" or scenario.name == "naive"


def _reversal(
    bench: Bench, subject: Subject, scenario: Scenario, attempt: Attempt, scores: Scores, reader: Reader
) -> tuple[Figure, ...]:
    """Reversibility, where the naive trial has been run."""
    naive = subject.naive.get(reader.name)
    if scenario.probe != "reversed" or naive is None:
        return ()
    ceiling, bootstrap = bench.ceiling(reader), Bootstrap(bench.resamples, bench.seed)
    read = np.isin(bench.split.probe, attempt.rows)
    if not read.all():
        ceiling, naive = ceiling.take(read), naive.take(read)
    return (reversibility(ceiling, naive, scores, bootstrap=bootstrap),)


def _groups(
    bench: Bench, scores: Scores, rows: NDArray[np.int64], threshold: float | None
) -> dict[str, tuple[Figure, ...]]:
    out: dict[str, tuple[Figure, ...]] = {}
    for column in bench.columns:
        values = bench.prepared.groups.get(column)
        if values is None:
            continue
        told = np.array([values[row] for row in rows], dtype=object)
        for value in sorted({one for one in told if one}):
            mask = told == value
            people = len(np.unique(bench.people[rows[mask]]))
            if people < LEAST_GROUP:
                short = f"{people} people are too few for a figure of their own"
                out[f"{column}={value}"] = (Figure("rank-1", None, n=people, note=short),)
                continue
            part = scores.take(mask)
            out[f"{column}={value}"] = _figures(bench, part, threshold, min(bench.resamples, 200))
    return out


def _say(progress: Callable[[str], object], name: str, text: str) -> None:
    progress(f"{name}: {text}")


def _identity_probe(bench: Bench, subject: Subject, label: str, scenario: Scenario) -> list[Trial]:
    from ficgan.lab.probe import run_identity_probe

    return run_identity_probe(bench, subject, label, scenario)


def _inference(bench: Bench, subject: Subject, label: str, scenario: Scenario) -> list[Trial]:
    labels = binary_labels(bench.prepared.attributes, bench.prepared.groups)
    if not labels:
        raise NotApplicable("nothing is known of the people but who they are")
    if not len(bench.split.attacker):
        raise Refused("the split leaves no faces to learn from; set split.attacker")
    trials = []
    train, probe = bench.split.attacker, bench.split.probe
    for reader in bench.readers:
        x = bench.embed(reader, subject.anonymised(train))
        y = bench.embed(reader, subject.anonymised(probe))
        figures = infer(
            x, {name: values[train] for name, values in labels.items()},
            y, {name: values[probe] for name, values in labels.items()},
            bench.people[train], bench.people[probe], resamples=min(bench.resamples, 200), seed=bench.seed,
        )  # fmt: skip
        if figures:
            trials.append(Trial(bench.name, label, scenario.name, reader.name, figures=figures))
    return trials
