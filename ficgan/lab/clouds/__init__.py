"""How well anonymised face point clouds hide and what they are still good for (thesis, chapters 4.2 and 5.3)."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ficgan.errors import Progress
from ficgan.lab.clouds import report
from ficgan.lab.clouds.sets import CloudStudyConfig
from ficgan.lab.clouds.study import (
    CloudGuesses,
    CloudStudy,
    Record,
    Treatment,
    compare_shapes,
    open_study,
    train_and_guess,
    training_key,
    training_rows,
    training_views,
    treatments_of,
)
from ficgan.lab.metrics import Bootstrap, Sample
from ficgan.lab.metrics.privacy import Scores
from ficgan.lab.results import Figure, Results, Trial, Utility, origin
from ficgan.lab.run import Run, Say, Task
from ficgan.pointcloud.geometry import DESCRIPTIONS, THESIS_SIZE
from ficgan.pointcloud.methods import CLOUD_ANONYMIZERS

Step = tuple[str, int, Treatment | None]  # what is done, with which row of the scans (or of the photos), how treated
Found = dict[Step, Any]  # what was read or measured in each step


def run_cloud_study(config: CloudStudyConfig, out: Path, *, jobs: int = 1, progress: Progress | None = None) -> Results:
    """Run or resume a study; what lies in `out` is not computed again, and `results.json` is written into it."""
    begun = time.monotonic()
    run = Run(out, jobs, progress)
    run.say("looking at the clouds")
    open_study.cache_clear()  # the folder of clouds may have changed since an earlier study in this process
    study = open_study(config)
    gallery, probes = study.clouds.gallery, study.clouds.probes
    first: list[Step] = [("photo", row, None) for row in range(len(study.clouds.photos))]
    first += [("clear", row, None) for row in (*gallery, *probes)]
    steps = sorted(_steps(study), key=lambda step: step[1])  # a process remembers the last few scans
    run.total = len(first) + len(steps)
    found: Found = {}
    for some in (first, steps):
        found.update(zip(some, run.results([_task(study, step, found) for step in some]), strict=True))
        run.check()
    clear = np.concatenate([found["clear", row, None] for row in probes])
    guesses = None
    if config.attack:
        learnt = [found["training views", row, None] for row in training_rows(study)]
        guesses = train_and_guess(study, learnt, clear, out, run.say)
    run.say("figures")
    results = _results(study, found, clear, guesses, jobs)
    results.provenance["seconds"] = round(time.monotonic() - begun, 1)
    results.write(out / "results.json")
    run.say("done")
    return results


def _steps(study: CloudStudy) -> Iterator[Step]:
    config, gallery, probes = study.config, study.clouds.gallery, study.clouds.probes
    enrolled = treatments_of(config, gallery=True, costly=True)
    for row in probes:
        yield from (("pictured", row, how) for how in treatments_of(config))
        yield from (("space", row, how) for how in treatments_of(config, costly=True))
    for row in gallery:  # who are also enrolled anonymised
        yield from ((kind, row, how) for kind in ("pictured", "space") for how in enrolled)
    for row in (*gallery, *probes):
        yield from ((kind, row, None) for kind in ("surroundings", "space"))
    yield from (("seconds", row, _every(config, method)) for row in probes[: config.timed] for method in config.methods)
    if config.attack is not None:
        yield from (("training views", row, None) for row in training_rows(study))


def _every(config: CloudStudyConfig, method: str) -> Treatment:
    return Treatment(method, "", tuple(sorted(config.strengths)))


def _task(study: CloudStudy, step: Step, found: Found) -> Task:
    kind, row, how = step
    if kind == "photo":
        name = study.clouds.photos[row].name
        key: list[Any] = [study.clouds.photos[row].digest, study.judges.key]
    else:
        name = study.clouds.scans[row].name
        key = training_key(study, row) if kind == "training views" else study.key(row, how)
    return Task(f"{kind}: {name}", [kind, *key], _do, (study.config, step, found.get(("clear", row, None))))


def _do(config: CloudStudyConfig, step: Step, clear: Record, say: Say) -> NDArray[Any]:
    study = open_study(config)
    kind, row, how = step
    if kind == "photo":
        return study.photo(row)
    if kind == "clear":
        return study.judges.read([study.picture(row)])
    if kind == "surroundings":
        return study.read(row, [study.picture_of(row, None)], np.ones(1, bool), clear)
    if kind == "training views":
        return training_views(study, row)
    if kind == "space":
        return study.shaped(row, how)
    assert how is not None
    return study.seconds(row, how.method) if kind == "seconds" else study.pictured(row, how, clear)


# -- who is compared with whom ----------------------------------------------------------------------------------------


@dataclass
class _Comparison:
    """Trials of probes against a gallery: in pictures, or by the shape of the clouds."""

    study: CloudStudy
    found: Found
    in_space: bool
    known: Record  # [G] who is enrolled

    def __post_init__(self) -> None:
        clouds, config = self.study.clouds, self.study.config
        self.people, self.enrolled = clouds.numbers(clouds.probes), clouds.numbers(clouds.gallery)
        self.sample = Sample(self.people, Bootstrap(config.resamples, config.seed), "clouds")

    def records(self, rows: Sequence[int], hows: Iterable[Treatment]) -> dict[Treatment, Record]:
        """Records [rows,strengths] of treatments."""
        kind = "space" if self.in_space else "pictured"
        return {how: np.stack([self.found[kind, row, how] for row in rows]) for how in hows}

    def attacks(self, records: dict[Treatment, Record]) -> Iterator[Trial]:
        """Trials of all who attack the methods: as they are, after inverses, with a gallery treated alike."""
        parrots = {}
        if gallery := self.study.clouds.gallery:
            hows = treatments_of(self.study.config, gallery=True, costly=True)
            parrots = {how.method: (how, record) for how, record in self.records(gallery, hows).items()}
        for how, record in records.items():
            for place, strength in enumerate(how.strengths):
                what, made = report.label(how.method, strength), record[:, place]
                yield from self.trials(made, what, "inverse" if how.attacker else "naive", how.attacker)
                if how.attacker or how.method not in parrots:
                    continue
                parrot, known = parrots[how.method]
                if strength in parrot.strengths:
                    there = known[:, parrot.strengths.index(strength)]
                    yield from self.trials(made, what, "parrot", "parrot", known=there)

    def trials(
        self,
        record: Record,
        method: str,
        scenario: str,
        attacker: str = "",
        *,
        control: str = "",
        known: Record | None = None,
        probes: NDArray[np.intp] | None = None,
    ) -> Iterator[Trial]:
        """One of each recogniser; `known` is enrolled in place of the gallery."""
        people = self.people if probes is None else self.people[probes]
        compared = self._by_shape if self.in_space else self._in_pictures
        for name, scores in compared(record, people, self.known if known is None else known):
            figures = report.privacy(scores, None if self.in_space else record["found"], self.sample.bootstrap)
            where = (self.study.clouds.name, method, scenario, name, attacker)
            yield Trial(*where, figures, control=control)

    def _in_pictures(self, record: Record, people: NDArray[np.int64], gallery: Record) -> Iterator[tuple[str, Scores]]:
        kept, acquired = gallery["made"], record["made"]
        enrolled = self.enrolled[kept]
        for reader in self.study.judges.readers if kept.sum() > 1 else ():
            faces, others = record[f"by {reader.name}"], gallery[f"by {reader.name}"][kept]
            metric = reader.metric
            yield reader.name, Scores.compare(faces, others, people, enrolled, metric=metric, acquired=acquired)

    def _by_shape(self, record: Record, people: NDArray[np.int64], gallery: Record) -> Iterator[tuple[str, Scores]]:
        for name in DESCRIPTIONS:
            if gallery[f"seen {name}"].sum() > 1:
                matrix, seen = compare_shapes(name, record, gallery), record[f"seen {name}"]
                scores = Scores.from_matrix(matrix, people, self.enrolled, metric="euclidean", acquired=seen)
                yield name + report.IN_SPACE, scores


def _results(study: CloudStudy, found: Found, clear: Record, guesses: CloudGuesses | None, jobs: int) -> Results:
    clouds, config = study.clouds, study.config
    results = Results(config.title, sets={clouds.name: clouds.facts()})
    results.provenance = origin(config.to_dict(), 0) | {
        "detector": study.judges.detector.name,
        "recognisers": [reader.name for reader in study.judges.readers],
        "jobs": jobs,
    }

    def of(kind: str, rows: Sequence[int]) -> Record:
        return np.concatenate([found[kind, row, None] for row in rows]) if rows else clear[:0]

    known = of("photo", range(len(clouds.photos))) if clouds.photos else of("clear", clouds.gallery)
    pictures = _Comparison(study, found, False, known)
    results.trials += pictures.trials(clear, report.CLEAR, "clear", control="ceiling")
    grey = study.judges.read([np.full((*THESIS_SIZE[::-1], 3), 127, np.uint8)])
    results.trials += pictures.trials(np.repeat(grey, len(clear)), report.CONSTANT, "constant", control="negative")
    # What hair, neck and ears tell where the face is left out, of clear faces and among each other.
    around = of("surroundings", clouds.probes)
    for attacker, enrolled in (("", None), ("parrot", of("surroundings", clouds.gallery))):
        control = report.SURROUNDINGS, "surroundings", attacker
        results.trials += pictures.trials(around, *control, control="surroundings", known=enrolled)
    records = pictures.records(clouds.probes, treatments_of(config))
    made = {how.method: record for how, record in records.items() if not how.attacker}
    results.trials += pictures.attacks(records)
    if guesses is not None:
        results.trials += _guessed(pictures, guesses, made)
        results.provenance["thesis_autoencoder"] = guesses.record
    in_space = of("space", clouds.probes)
    shapes = _Comparison(study, found, True, of("space", clouds.gallery) if clouds.gallery else in_space[:0])
    records = shapes.records(clouds.probes, treatments_of(config, costly=True))
    results.trials += shapes.trials(in_space, report.CLEAR, "clear", control="ceiling")
    results.trials += shapes.attacks(records)
    for method, record in made.items():
        seconds = np.full(record.shape, np.nan)
        for place, row in enumerate(clouds.probes[: config.timed]):
            seconds[place] = found["seconds", row, _every(config, method)]
        for place, strength in enumerate(sorted(config.strengths)):
            name = report.label(method, strength)
            results.methods[name] = _facts(method, strength, config.seed)
            left = report.utility(clear, record[:, place], seconds[:, place], pictures.sample)
            results.utilities.append(Utility(clouds.name, name, left))
    results.caveats = report.caveats(study, results, made, guesses)
    return results


def _guessed(pictures: _Comparison, guesses: CloudGuesses, made: dict[str, Record]) -> Iterator[Trial]:
    strengths = sorted(pictures.study.config.strengths)
    for (method, strength), record in guesses.records.items():
        before = made[method][guesses.probes, strengths.index(strength)]["ssim"]
        likeness = (
            Figure("ssim of the guess", float(record["ssim"].mean()), n=len(record), unit="clouds"),
            Figure("ssim before", float(before.mean()), n=len(record), unit="clouds"),
        )
        name = report.label(method, strength)
        for trial in pictures.trials(record, name, "reversed", "thesis-autoencoder", probes=guesses.probes):
            yield replace(trial, figures=trial.figures + likeness)


def _facts(method: str, strength: int, seed: int) -> dict[str, Any]:
    traits = CLOUD_ANONYMIZERS[method].traits
    value = traits.of_strength(strength)
    return {
        "name": method,
        "title": traits.title,
        "family": traits.family,
        "source": traits.source,
        "keyed": False,
        "stochastic": traits.stochastic,
        "domain": "cloud",
        "strength": traits.parameter,
        "parameter": f"{traits.parameter} = {value:.4g}",
        "settings": {"strength": strength, traits.parameter: value, "seed": seed},
    }
