"""One anonymiser on one set: every scenario, read by every judge."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ficgan.anonymizers import Anonymizer, Faces
from ficgan.errors import InputError, UsageError
from ficgan.lab.attackers import Attempt, attacked
from ficgan.lab.attributes import binary_labels, infer
from ficgan.lab.bench import Bench, NotApplicable, Refused, Rows, Subject, known
from ficgan.lab.matrix_config import Scenario
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
from ficgan.lab.probe import run_identity_probe
from ficgan.lab.readers import Embeddings, Reader, retrain_head, retrain_network
from ficgan.lab.results import Figure, Trial
from ficgan.lab.reversal import fidelity_figures, identity_distance, run_retrieval

__all__ = ["LEAST_GROUP", "run_trials"]

LEAST_GROUP = 10  # People a group needs for figures of its own
GROUP_RESAMPLES = 200  # Of the figures of groups and of attribute inference, at most
_OF_CLEAR = ("ceiling", "negative", "surroundings")
"""Controls that are run on the clear images alone; all other scenarios are run on the anonymised ones alone."""
_OF_BOTH = ("linkability", "attribute-inference")  # But for those that say something only beside the clear images' own


def run_trials(
    bench: Bench,
    anonymizer: Anonymizer | None,
    label: str,
    scenarios: Sequence[Scenario],
    *,
    progress: Callable[[str], object] | None = None,
) -> list[Trial]:
    """Trials of one anonymiser (None: the clear images), by scenario, attacker and judge; a scenario that cannot be run
    says why.
    """
    subject, report = Subject(bench, anonymizer), progress or (lambda text: None)
    trials: list[Trial] = []
    for scenario in scenarios:
        if scenario.name not in _OF_BOTH and (anonymizer is None) != (scenario.control in _OF_CLEAR):
            continue
        report(scenario.name)
        subject.say = partial(_prefixed, report, scenario.name)
        try:
            trials += _RUNS.get(scenario.attacker, _recognition)(bench, subject, label, scenario)
        except NotApplicable:
            continue
        except (Refused, UsageError, InputError) as error:
            refused = Figure("rank-1", None, note=str(error))
            trials.append(Trial(bench.name, label, scenario.name, "", figures=(refused,)))
    return trials


def _prefixed(report: Callable[[str], object], name: str, text: str) -> None:
    report(f"{name}: {text}")


def _recognition(bench: Bench, subject: Subject, label: str, scenario: Scenario) -> list[Trial]:
    gallery_rows, probe_rows = bench.split.gallery, bench.split.probe
    if scenario.same_set:
        gallery_rows = probe_rows = np.sort(np.concatenate([gallery_rows, probe_rows]))
    gallery = subject.view(scenario.gallery, gallery_rows)
    trials = []
    for attempt in attacked(bench, subject, scenario, probe_rows):
        found = bench.found(attempt.faces)
        # What is read shall resemble the clear faces; the anonymised ones are what it is compared with.
        restores = scenario.probe == "reversed" or scenario.name == "naive"
        likeness = fidelity_figures(bench, attempt.rows, attempt.faces) if restores else ()
        trials += [_read(bench, subject, label, scenario, attempt, reader, gallery, found, likeness)
                   for reader in bench.readers]  # fmt: skip
    return trials


def _read(
    bench: Bench, subject: Subject, label: str, scenario: Scenario, attempt: Attempt, reader: Reader, gallery: Faces,
    found: NDArray[np.bool_], likeness: tuple[Figure, ...],
) -> Trial:  # fmt: skip
    embed, note = _embedder(bench, subject, scenario, reader)
    probe, people, enrolled = embed(attempt.faces), known(attempt.faces), known(gallery)
    codes = probe if scenario.same_set else embed(gallery)
    fusion = scenario.attacker == "fusion"
    if fusion:
        probe, people, found = _fused(probe, people, found)
    metric: Any = "cosine" if scenario.retrained else reader.metric
    threshold = None if scenario.retrained else reader.threshold
    scores = Scores.compare(probe, codes, people, enrolled, metric=metric, exclude_same=scenario.same_set)
    figures = _figures(bench, scores, threshold, bench.resamples)
    if not scenario.same_set:
        figures += _without_face(bench, probe, codes, people, enrolled, metric, found)
    figures += (Figure("chance", chance(scores), n=scores.enrolled),)
    if scenario.probe == "reversed":
        figures += _reversal(bench, subject, attempt, scores, reader)
    if likeness:
        clear = embed(subject.clear(attempt.rows))
        figures += (*likeness, identity_distance(probe, clear, bench.sample(attempt.rows)))
    if not scenario.retrained and (unread := reader.unread(probe)):
        note = f"{note} {unread} of {len(probe)} probes could not be read and are like nobody.".strip()
    if note:
        figures = (replace(figures[0], note=f"{figures[0].note} {note}".strip()), *figures[1:])
    if scenario.name == "naive":
        subject.naive[reader.name] = scores
    groups = {} if fusion else _groups(bench, scores, attempt.rows, threshold)
    return Trial(
        bench.name, label, scenario.name, reader.name, attempt.attacker, figures, _curves(scores), groups,
        scenario.control,
    )  # fmt: skip


def _figures(bench: Bench, scores: Scores, threshold: float | None, resamples: int) -> tuple[Figure, ...]:
    figures = privacy_figures(scores, threshold=threshold, seed=bench.seed, resamples=resamples)
    return tuple(one for one in figures if not one.metric.endswith(FAILURES) and one.metric != "failures to acquire")


def _curves(scores: Scores) -> dict[str, list[list[float]]]:
    return {
        name: [[float(f"{number:.5g}") for number in point] for point in points]
        for name, points in privacy_curves(scores).items()
    }


def _without_face(
    bench: Bench, probe: Embeddings, gallery: Embeddings, people: Rows, enrolled: Rows,
    metric: Any, found: NDArray[np.bool_],
) -> tuple[Figure, ...]:  # fmt: skip
    bootstrap = bench.bootstrap
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
    embeddings: Embeddings, people: Rows, found: NDArray[np.bool_]
) -> tuple[Embeddings, Rows, NDArray[np.bool_]]:
    unit = embeddings / np.linalg.norm(embeddings, axis=1, keepdims=True).clip(1e-12)
    values, index = np.unique(people, return_inverse=True)
    total = np.zeros((len(values), unit.shape[1]), np.float64)
    np.add.at(total, index, unit)
    count = np.bincount(index)[:, None]
    scale = np.linalg.norm(embeddings, axis=1).mean()
    return (total / count * scale).astype(np.float32), values, np.bincount(index, found) > 0


def _reversal(
    bench: Bench, subject: Subject, attempt: Attempt, scores: Scores, reader: Reader
) -> tuple[Figure, ...]:
    naive = subject.naive.get(reader.name)
    if naive is None:
        return ()
    ceiling, read = bench.ceiling(reader), np.isin(bench.split.probe, attempt.rows)
    if not read.all():
        ceiling, naive = ceiling.take(read), naive.take(read)
    return (reversibility(ceiling, naive, scores, bootstrap=bench.bootstrap),)


def _groups(
    bench: Bench, scores: Scores, rows: Rows, threshold: float | None
) -> dict[str, tuple[Figure, ...]]:
    out: dict[str, tuple[Figure, ...]] = {}
    for column in bench.columns:
        values = bench.prepared.groups.get(column)
        if values is None:
            continue
        labels = np.array([values[row] for row in rows], dtype=object)
        for value in sorted({label for label in labels if label}):
            mask = labels == value
            people = len(np.unique(bench.people[rows[mask]]))
            if people < LEAST_GROUP:
                short = f"{people} people are too few for a figure of their own"
                out[f"{column}={value}"] = (Figure("rank-1", None, n=people, note=short),)
                continue
            part = scores.take(mask)
            out[f"{column}={value}"] = _figures(bench, part, threshold, min(bench.resamples, GROUP_RESAMPLES))
    return out


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
            bench.people[train], bench.people[probe], resamples=min(bench.resamples, GROUP_RESAMPLES), seed=bench.seed,
        )  # fmt: skip
        if figures:
            trials.append(Trial(bench.name, label, scenario.name, reader.name, figures=figures))
    return trials


_RUNS: Mapping[str, Callable[[Bench, Subject, str, Scenario], list[Trial]]] = {
    "inference": _inference,
    "retrieval": run_retrieval,
    "closed retrieval": run_retrieval,
    "identity probe": run_identity_probe,
}
"""Kinds of attackers whose trials are not recognition."""
