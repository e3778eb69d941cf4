"""How well anonymised face point clouds hide and what they are still good for (thesis, chapters 4.2 and 5.3)."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ficgan.lab.clouds.autoencoder import CloudGuesses, lesson_key, lesson_rows, lessons, train_and_guess
from ficgan.lab.clouds.sets import CloudStudyConfig
from ficgan.lab.clouds.study import (
    CloudStudy,
    FaceTemplate,
    Record,
    Treatment,
    compare_shapes,
    open_study,
    treatments_of,
)
from ficgan.lab.clouds.tables import (
    CLEAR,
    CONSTANT,
    IN_SPACE,
    SURROUNDINGS,
    caveats,
    distortion,
    label,
    parrot_of,
    privacy,
    utility,
)
from ficgan.lab.metrics import Bootstrap, Sample
from ficgan.lab.metrics.privacy import cmc
from ficgan.lab.metrics.scores import Scores
from ficgan.lab.pages import png, write_file
from ficgan.lab.results import Figure, Results, Trial, origin
from ficgan.lab.run import Progress, Run, Say, Task
from ficgan.pointcloud.methods import CLOUD_ANONYMIZERS
from ficgan.pointcloud.projection import THESIS_SIZE, strip

Step = tuple[str, int, Treatment | None]  # what is done, with which row of the scans (or of the photos), how treated
Found = dict[Step, Any]  # what was read or measured in each step


def run_cloud_study(config: CloudStudyConfig, out: Path, *, jobs: int = 1, progress: Progress | None = None) -> Results:
    """Run or resume a study.

    Args:
        config: of the study.
        out: folder of the run; what lies there is not computed again. `results.json` is written into it.
        jobs: processes.
        progress: called as progress(done, total, text).
    """
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

    def do(some: Sequence[Step]) -> None:
        tasks = [_task(study, step, found) for step in some]
        found.update(zip(some, run.results(tasks), strict=True))
        run.check()

    do(first)
    study.template = FaceTemplate.of(np.concatenate([found["clear", row, None] for row in (*gallery, *probes)]))
    lost = [step for step in first if step[0] == "clear" and not found[step]["found"][0]]
    run.total += len(lost)
    do(lost)  # again, at the place where faces lie in the others
    do(steps)
    clear = np.concatenate([found["clear", row, None] for row in probes])
    guesses = None
    if config.attack:
        learnt = [found["lessons", row, None] for row in lesson_rows(study)]
        guesses = train_and_guess(study, learnt, clear, out, run.say)
    run.say("figures")
    results = _results(study, found, clear, guesses, jobs)
    results.pictures = _pictures(study, out)
    results.provenance["seconds"] = round(time.monotonic() - begun, 1)
    results.write(out / "results.json")
    run.say("done")
    return results


def _steps(study: CloudStudy) -> Iterator[Step]:
    config, probes, parrots = study.config, study.clouds.probes, _parrots(study)
    enrolled = treatments_of(config, gallery=True, costly=True)
    for row in probes:
        yield from (("pictured", row, how) for how in treatments_of(config))
        yield ("surroundings", row, None)
    for row in parrots:
        yield from (("pictured", row, how) for how in enrolled)
        yield ("surroundings", row, None)
    yield from (("seconds", row, _every(config, method)) for row in probes[: config.timed] for method in config.methods)
    if config.attack is not None:
        yield from (("lessons", row, None) for row in lesson_rows(study))
    if config.geometry is not None:
        yield from (("space", row, None) for row in (*study.clouds.gallery, *probes))
        yield from (("space", row, how) for row in probes for how in treatments_of(config, costly=True))
        yield from (("space", row, how) for row in parrots for how in enrolled)


def _parrots(study: CloudStudy) -> tuple[int, ...]:
    """Rows of the gallery that are also enrolled anonymised."""
    return study.clouds.gallery if study.config.parrot else ()


def _every(config: CloudStudyConfig, method: str) -> Treatment:
    return Treatment(method, "", tuple(sorted(config.degrees)))


def _task(study: CloudStudy, step: Step, found: Found) -> Task:
    kind, row, how = step
    template = None if study.template is None else study.template.key
    if kind == "photo":
        name = study.clouds.photos[row].name
        key: list[Any] = [study.clouds.photos[row].digest, study.judges.key]
    else:
        name = study.clouds.scans[row].name
        key = lesson_key(study, row) if kind == "lessons" else [template, *study.key(row, how)]
    if kind == "space":
        assert study.config.geometry is not None
        key += [study.config.geometry.recognisers, row in study.clouds.gallery]
    arguments = (study.config, step, study.template, found.get(("clear", row, None)))
    return Task(f"{kind}: {name}", [kind, *key], _do, arguments)


def _do(config: CloudStudyConfig, step: Step, template: FaceTemplate | None, clear: Record, say: Say) -> NDArray[Any]:
    study = open_study(config)
    study.template = template
    kind, row, how = step
    if how is None:
        if kind == "photo":
            return study.photo(row)
        if kind == "clear":
            return study.judges.read([study.picture(row)], template)
        if kind == "surroundings":
            return study.read(row, [study.picture_of(row, None)], np.ones(1, bool), clear)
        return lessons(study, row) if kind == "lessons" else study.shaped(row)
    if kind == "seconds":
        return study.seconds(row, how.method)
    return study.shaped(row, how) if kind == "space" else study.pictured(row, how, clear)


# -- who is compared with whom ----------------------------------------------------------------------------------------


@dataclass
class _Comparison:
    """Trials of probes against a gallery: in pictures, or by the shape of the clouds."""

    study: CloudStudy
    found: Found
    in_space: bool
    known: Record | None  # [G] who is enrolled; None where there is nobody to compare with

    def __post_init__(self) -> None:
        clouds, config = self.study.clouds, self.study.config
        self.people, self.enrolled = clouds.numbers(clouds.probes), clouds.numbers(clouds.gallery)
        self.sample = Sample(self.people, Bootstrap(config.resamples, config.seed), "clouds")

    def records(self, rows: Sequence[int], hows: Iterable[Treatment]) -> dict[Treatment, Record]:
        """Records [rows,degrees] of treatments."""
        kind = "space" if self.in_space else "pictured"
        return {how: np.stack([self.found[kind, row, how] for row in rows]) for how in hows}

    def attacks(self, records: dict[Treatment, Record]) -> Iterator[Trial]:
        """Trials of all who attack the methods: as they are, after inverses, with a gallery treated alike."""
        parrots = {}
        if _parrots(self.study):
            hows = treatments_of(self.study.config, gallery=True, costly=True)
            parrots = {how.method: (how, record) for how, record in self.records(_parrots(self.study), hows).items()}
        for how, record in records.items():
            for place, degree in enumerate(how.degrees):
                what, made = label(how.method, degree), record[:, place]
                yield from self.trials(made, what, "inverse" if how.attacker else "naive", how.attacker)
                if how.attacker or how.method not in parrots:
                    continue
                parrot, known = parrots[how.method]
                if degree in parrot.degrees:
                    there = known[:, parrot.degrees.index(degree)]
                    yield from self.trials(made, what, "parrot", parrot_of(""), known=there)

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
        for name, scores in self._scores(record, people, known):
            found = None if self.in_space else record["found"]
            figures = privacy(scores, found, self.sample.bootstrap)
            where = (self.study.clouds.name, method, scenario, name, attacker)
            yield Trial(*where, figures, {"cmc": cmc(scores)}, control=control)

    def _scores(self, record: Record, people: NDArray[np.int64], known: Record | None) -> Iterator[tuple[str, Scores]]:
        gallery = self.known if known is None else known
        if gallery is None:
            return
        if not self.in_space:
            kept = np.ones(len(gallery), bool) if known is None else gallery["made"]
            for reader in self.study.judges.readers if known is None or kept.sum() > 1 else ():
                faces, others = record[f"by {reader.name}"], gallery[f"by {reader.name}"][kept]
                acquired = record["made"]
                yield (
                    reader.name,
                    Scores.compare(faces, others, people, self.enrolled[kept], metric=reader.metric, acquired=acquired),
                )
            return
        assert self.study.config.geometry is not None
        for name in self.study.config.geometry.recognisers:
            if known is None or gallery[f"seen {name}"].sum() > 1:
                matrix, seen = compare_shapes(name, record, gallery), record[f"seen {name}"]
                scores = Scores.from_matrix(matrix, people, self.enrolled, metric="euclidean", acquired=seen)
                yield name + IN_SPACE, scores


def _results(study: CloudStudy, found: Found, clear: Record, guesses: CloudGuesses | None, jobs: int) -> Results:
    clouds, config = study.clouds, study.config
    results = Results(config.title, sets={clouds.name: clouds.facts()})
    results.provenance = origin(config.to_dict(), 0) | {
        "detector": study.judges.detector.name,
        "recognisers": [reader.name for reader in study.judges.readers],
        "jobs": jobs,
    }
    photos = [found["photo", row, None] for row in range(len(clouds.photos))]
    known = np.concatenate(photos or [found["clear", row, None] for row in clouds.gallery])
    pictures = _Comparison(study, found, False, known)
    results.trials += pictures.trials(clear, CLEAR, "clear", control="ceiling")
    grey = study.judges.read([np.full((*THESIS_SIZE[::-1], 3), 127, np.uint8)], study.template)
    results.trials += pictures.trials(np.repeat(grey, len(clear)), CONSTANT, "constant", control="negative")
    # What hair, neck and ears tell where the face is left out, of clear faces and among each other.
    around, others = ([found["surroundings", row, None] for row in rows] for rows in (clouds.probes, _parrots(study)))
    for attacker, enrolled in {"": None, parrot_of(""): np.concatenate(others) if others else None}.items():
        if enrolled is not None or not attacker:
            results.trials += pictures.trials(
                np.concatenate(around), SURROUNDINGS, "surroundings", attacker, control="surroundings", known=enrolled
            )
    records = pictures.records(clouds.probes, treatments_of(config))
    made = {how.method: record for how, record in records.items() if not how.attacker}
    for method, record in made.items():
        seconds = np.full(record.shape, np.nan)
        for place, row in enumerate(clouds.probes[: config.timed]):
            seconds[place] = found["seconds", row, _every(config, method)]
        for place, degree in enumerate(sorted(config.degrees)):
            name, there = label(method, degree), record[:, place]
            results.methods[name] = _facts(method, degree, config.seed)
            left = utility(clear, there, seconds[:, place], pictures.sample, config, name=clouds.name, method=name)
            results.utilities.append(left)
    results.trials += pictures.attacks(records)
    if guesses is not None:
        results.trials += _guessed(pictures, guesses, made)
        results.provenance["thesis_autoencoder"] = guesses.record
    if config.geometry is not None:
        _add_space(study, found, results)
    results.caveats = caveats(study, results, made, clear, known, guesses)
    return results


def _guessed(pictures: _Comparison, guesses: CloudGuesses, made: dict[str, Record]) -> Iterator[Trial]:
    degrees = sorted(pictures.study.config.degrees)
    for (method, degree), record in guesses.records.items():
        before = made[method][guesses.probes, degrees.index(degree)]["ssim"]
        likeness = (
            Figure("ssim of the guess", float(record["ssim"].mean()), n=len(record), unit="clouds"),
            Figure("ssim before", float(before.mean()), n=len(record), unit="clouds"),
        )
        name = label(method, degree)
        for trial in pictures.trials(record, name, "reversed", "thesis-autoencoder", probes=guesses.probes):
            yield replace(trial, figures=trial.figures + likeness)


def _add_space(study: CloudStudy, found: Found, results: Results) -> None:
    gallery, probes = study.clouds.gallery, study.clouds.probes
    known = np.concatenate([found["space", row, None] for row in gallery]) if len(gallery) > 1 else None
    shapes = _Comparison(study, found, True, known)
    records = shapes.records(probes, treatments_of(study.config, costly=True))
    if known is not None:
        clear = np.concatenate([found["space", row, None] for row in probes])
        results.trials += shapes.trials(clear, CLEAR, "clear", control="ceiling")
        results.trials += shapes.attacks(records)
    distorted = {
        label(how.method, degree): distortion(record[:, place], shapes.sample)
        for how, record in records.items()
        if not how.attacker
        for place, degree in enumerate(how.degrees)
    }
    results.utilities = [replace(use, figures=use.figures + distorted.get(use.method, ())) for use in results.utilities]


def _facts(method: str, degree: int, seed: int) -> dict[str, Any]:
    traits = CLOUD_ANONYMIZERS[method].traits
    value = traits.of_degree(degree)
    return {
        "name": method,
        "title": traits.title,
        "family": traits.family,
        "source": traits.source,
        "keyed": False,
        "stochastic": traits.stochastic,
        "domain": "cloud",
        "strength": traits.strength,
        "parameter": f"{traits.strength} = {value:.4g}",
        "settings": {"degree": degree, traits.strength: value, "seed": seed},
    }


def _pictures(study: CloudStudy, out: Path) -> dict[str, list[str]]:
    """Strips of projections by what they show, written below `out`."""
    shown: dict[str, list[str]] = {}
    degrees = sorted(study.config.degrees)
    picked = [degrees[i] for i in np.unique(np.linspace(0, len(degrees) - 1, 5).round().astype(int))]
    for row in study.clouds.probes[: study.config.pictures]:
        for method in study.config.methods:
            swept = study.swept(row, method, picked)
            images = [study.picture(row), *(study.picture_of(row, made, method, degree) for degree, made in swept)]
            name = f"pictures/{method}-{row:04d}.png"
            write_file(out / name, png(strip(images)[::2, ::2]))
            shown.setdefault(f"{method}: clear, degrees {', '.join(map(str, picked))}", []).append(name)
    return shown
