"""How well anonymised face point clouds hide and what they are still good for (thesis, chapters 4.2 and 5.3)."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ficgan.errors import Progress
from ficgan.lab.clouds import report
from ficgan.lab.clouds.sets import CloudStudyConfig
from ficgan.lab.clouds.study import (
    IN_SPACE,
    CloudGuesses,
    CloudStudy,
    Record,
    open_study,
    read_photo,
    read_scan,
    train_and_guess,
    treatments_of,
)
from ficgan.lab.metrics import Bootstrap, Sample
from ficgan.lab.metrics.privacy import Scores, similarities
from ficgan.lab.results import Figure, Results, Trial, Utility, origin
from ficgan.lab.run import Run, Task
from ficgan.pointcloud.geometry import DESCRIPTIONS, THESIS_SIZE
from ficgan.pointcloud.methods import CLOUD_ANONYMIZERS

Scans = Mapping[int, Mapping[str, Record]]  # what `read_scan` has found, by row


def run_cloud_study(config: CloudStudyConfig, out: Path, *, jobs: int = 1, progress: Progress | None = None) -> Results:
    """Run or resume a study; what lies in `out` is not computed again, and `results.json` is written into it."""
    begun = time.monotonic()
    run = Run(out, jobs, progress)
    run.say("looking at the clouds")
    open_study.cache_clear()  # the folder of clouds may have changed since an earlier study in this process
    study = open_study(config)
    clouds = study.clouds
    rows = (*clouds.gallery, *clouds.probes)
    tasks = [
        Task(f"photo: {photo.name}", ["photo", photo.digest, study.judges.key], read_photo, (config, place))
        for place, photo in enumerate(clouds.photos)
    ]
    tasks += [Task(clouds.scans[row].name, study.key(row), read_scan, (config, row)) for row in rows]
    run.total = len(tasks)
    found = run.results(tasks)
    run.check()
    photos, scans = found[: len(clouds.photos)], dict(zip(rows, found[len(clouds.photos) :], strict=True))
    guesses = train_and_guess(study, scans, out, run.say) if config.attack else None
    run.say("figures")
    results = _results(study, photos, scans, guesses)
    results.provenance = origin(config.model_dump(), time.monotonic() - begun) | results.provenance | {"jobs": jobs}
    results.write(out / "results.json")
    run.say("done")
    return results


# -- who is compared with whom ----------------------------------------------------------------------------------------


_CONTROLS = {"clear": "ceiling", "constant": "negative", "surroundings": "surroundings"}  # by scenario


@dataclass(frozen=True)
class _Comparison:
    """Trials of probes against a gallery: in pictures, or by the shape of the clouds."""

    study: CloudStudy
    scans: Scans
    in_space: bool
    known: Record  # [G], of the gallery
    people: NDArray[np.int64]  # [P], who the probes are
    enrolled: NDArray[np.int64]  # [G], who the gallery are
    bootstrap: Bootstrap

    def attacks(self) -> Iterator[Trial]:
        """Trials of all who attack the methods: as they are, after inverses, with a gallery treated alike."""
        clouds, costly = self.study.clouds, self.study.config.costly_strengths
        for how in treatments_of(self.study.config, costly=self.in_space):
            name = how.name + IN_SPACE * self.in_space
            record = np.stack([self.scans[row][name] for row in clouds.probes])
            parrot = None
            if clouds.gallery and not how.attacker:
                parrot = np.stack([self.scans[row][name] for row in clouds.gallery])
            for place, strength in enumerate(how.strengths):
                what, made = f"{how.method} {strength}", record[:, place]
                yield from self.trials(made, what, "inverse" if how.attacker else "naive", how.attacker)
                if parrot is not None and strength in costly:
                    yield from self.trials(made, what, "parrot", "parrot", parrot[:, costly.index(strength)])

    def trials(
        self, record: Record, method: str, scenario: str, attacker: str = "", known: Record | None = None
    ) -> Iterator[Trial]:
        """One of each recogniser; `known` is enrolled in place of the gallery."""
        gallery, found = self.known if known is None else known, None if self.in_space else record["found"]
        for name, scores in self._scores(record, gallery):
            figures, control = report.privacy(scores, found, self.bootstrap), _CONTROLS.get(scenario, "")
            yield Trial(self.study.clouds.name, method, scenario, name, attacker, figures, control=control)

    def _scores(self, record: Record, gallery: Record) -> Iterator[tuple[str, Scores]]:
        """Those of each recogniser that sees two who are enrolled."""
        if self.in_space:
            for name in DESCRIPTIONS:
                seen = gallery[f"seen {name}"]
                if seen.sum() > 1:
                    known, probes = (some[f"by {name}"].astype(np.float32) for some in (gallery[seen], record))
                    middle = known.mean(axis=0)
                    # Without an upper face one is unlike everybody, and no part of the mean face.
                    matrix = np.full((len(record), len(gallery)), -1e9)
                    matrix[:, seen] = similarities(probes - middle, known - middle, "cosine")
                    seen_too = record[f"seen {name}"]
                    yield name + IN_SPACE, Scores.from_matrix(matrix, self.people, self.enrolled, acquired=seen_too)
            return
        kept = gallery["made"]
        for reader in self.study.judges.readers if kept.sum() > 1 else ():
            faces, others = record[f"by {reader.name}"], gallery[f"by {reader.name}"][kept]
            how: Any = {"metric": reader.metric, "acquired": record["made"]}
            yield reader.name, Scores.compare(faces, others, self.people, self.enrolled[kept], **how)


def _results(study: CloudStudy, photos: list[Record], scans: Scans, guesses: CloudGuesses | None) -> Results:
    clouds, config = study.clouds, study.config
    results = Results(config.title, sets={clouds.name: clouds.facts()})
    judges = study.judges
    results.provenance |= {"detector": judges.detector.name, "recognisers": [one.name for one in judges.readers]}

    def both(name: str) -> tuple[Record, Record]:
        """Of the probes, and of the gallery, which may be empty."""
        probes = np.concatenate([scans[row][name] for row in clouds.probes])
        return probes, np.concatenate([probes[:0], *(scans[row][name] for row in clouds.gallery)])

    clear, known = both("clear")
    who = clouds.numbers(clouds.probes), clouds.numbers(clouds.gallery), Bootstrap(config.resamples, config.seed)
    pictures = _Comparison(study, scans, False, np.concatenate(photos) if photos else known, *who)
    results.trials += pictures.trials(clear, report.CLEAR, "clear")
    grey = judges.read([np.full((*THESIS_SIZE[::-1], 3), 127, np.uint8)])
    results.trials += pictures.trials(np.repeat(grey, len(clear)), report.CONSTANT, "constant")
    # What hair, neck and ears tell where the face is left out, of clear faces and among each other.
    around, enrolled = both("surroundings")
    results.trials += pictures.trials(around, report.SURROUNDINGS, "surroundings")
    results.trials += pictures.trials(around, report.SURROUNDINGS, "surroundings", "parrot", enrolled)
    results.trials += pictures.attacks()
    made = {
        how.method: np.stack([scans[row][how.name] for row in clouds.probes])
        for how in treatments_of(config)
        if not how.attacker
    }
    if guesses is not None:
        results.trials += _guessed(pictures, guesses, made)
        results.provenance["thesis_autoencoder"] = guesses.record
    in_space, known = both("clear" + IN_SPACE)
    shapes = _Comparison(study, scans, True, known, *who)
    results.trials += shapes.trials(in_space, report.CLEAR, "clear")
    results.trials += shapes.attacks()
    sample = Sample(pictures.people, pictures.bootstrap, "clouds")
    for method, record in made.items():
        seconds = np.full(record.shape, np.nan)
        for place, row in enumerate(clouds.probes[: config.timed]):
            seconds[place] = scans[row][f"seconds {method}"]
        for place, strength in enumerate(sorted(config.strengths)):
            name = f"{method} {strength}"
            results.methods[name] = _facts(method, strength, config.seed)
            left = report.utility(clear, record[:, place], seconds[:, place], sample)
            results.utilities.append(Utility(clouds.name, name, left))
    results.caveats = report.caveats(study, results, made, guesses)
    return results


def _guessed(pictures: _Comparison, guesses: CloudGuesses, made: dict[str, Record]) -> Iterator[Trial]:
    strengths = sorted(pictures.study.config.strengths)
    tried = replace(pictures, people=pictures.people[guesses.probes])
    for (method, strength), record in guesses.records.items():
        before = made[method][guesses.probes, strengths.index(strength)]["ssim"]
        likeness = (
            Figure("ssim of the guess", float(record["ssim"].mean()), n=len(record), unit="clouds"),
            Figure("ssim before", float(before.mean()), n=len(record), unit="clouds"),
        )
        name = f"{method} {strength}"
        for trial in tried.trials(record, name, "reversed", "thesis-autoencoder"):
            yield replace(trial, figures=trial.figures + likeness)


def _facts(method: str, strength: int, seed: int) -> dict[str, Any]:
    traits = CLOUD_ANONYMIZERS[method].traits
    value = traits.of_strength(strength)
    return {
        "name": method,
        **{key: getattr(traits, key) for key in ("title", "family", "source", "stochastic")},
        "keyed": False,
        "domain": "cloud",
        "strength": traits.parameter,
        "parameter": f"{traits.parameter} = {value:.4g}",
        "settings": {"strength": strength, traits.parameter: value, "seed": seed},
    }
