"""How well anonymised face point clouds hide and what they are still good for (thesis, chapters 4.2 and 5.3)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ficgan.lab.clouds.sets import CloudStudyConfig, open_clouds
from ficgan.lab.clouds.study import CloudStudy, Record, Template, compare_shapes, open_study
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
from ficgan.lab.clouds.treatments import Guesses, Treatment, lesson_rows, lessons, train_and_guess, treatments_of
from ficgan.lab.metrics import Bootstrap, Sample
from ficgan.lab.metrics.privacy import cmc
from ficgan.lab.metrics.scores import Scores
from ficgan.lab.pages import png, write_file
from ficgan.lab.results import Figure, Results, Trial, origin
from ficgan.lab.run import Progress, Run, Say, Task
from ficgan.pointcloud.methods import CLOUD_ANONYMIZERS
from ficgan.pointcloud.projection import THESIS_SIZE, strip


def run_cloud_study(config: CloudStudyConfig, out: Path, *, jobs: int = 1, progress: Progress | None = None) -> Results:
    """Run or resume a study; what lies in `out` is not computed again. Returns the results of `out/results.json`."""
    begun = time.monotonic()
    out.mkdir(parents=True, exist_ok=True)
    tasks = Run(out, jobs, progress, total=1)

    def run(step: str) -> None:
        rows = [(study.clouds.photos if step == "photo" else study.clouds.scans)[row].name for row in steps[step]]
        work = [(config, out, step, row, name, study.template) for row, name in zip(steps[step], rows, strict=True)]
        tasks.results([Task(name, None, _task, one) for name, one in zip(rows, work, strict=True)])
        tasks.check()

    tasks.say("looking at the clouds")
    open_study.cache_clear()  # the folder of clouds may have changed since an earlier study in this process
    open_clouds(config, out, tasks.say)
    study = open_study(config, out)
    clear = (*study.clouds.gallery, *study.clouds.probes)
    steps: dict[str, Sequence[int]] = {
        "photo": range(len(study.clouds.photos)),
        "clear": clear,
        "anonymised": study.clouds.probes,
        "parrot": study.parrots,
        "lessons": lesson_rows(study) if config.attack else (),
        "space": study.clouds.probes + study.parrots if config.geometry else (),
    }
    tasks.total += sum(map(len, steps.values()))
    run("photo")
    run("clear")
    study.template = Template.of(np.concatenate([study.clear(row) for row in clear]))
    for step in ("anonymised", "parrot", "lessons", "space"):
        run(step)
    guesses = train_and_guess(study, out, tasks.say) if config.attack else None
    tasks.say("figures")
    results = _results(study, guesses, jobs)
    results.pictures = _pictures(study, out)
    results.provenance["seconds"] = round(time.monotonic() - begun, 1)
    results.write(out / "results.json")
    tasks.done = tasks.total
    tasks.say("done")
    return results


def _task(
    config: CloudStudyConfig, out: Path, step: str, row: int, name: str, template: Template | None, say: Say
) -> None:
    study = open_study(config, out)
    study.template = template
    say(f"{step}: {name}")
    _STEPS[step](study, row)


def _anonymised(study: CloudStudy, row: int) -> None:
    for how in treatments_of(study.config):
        study.pictured(row, how)
        if study.is_timed(row) and not how.attacker:
            study.seconds(row, how.method)
    study.surroundings(row)


def _parrot(study: CloudStudy, row: int) -> None:
    for how in treatments_of(study.config, gallery=True, costly=True):
        study.pictured(row, how)
    study.surroundings(row)


def _space(study: CloudStudy, row: int) -> None:
    study.shaped(row)
    for how in treatments_of(study.config, gallery=row not in study.clouds.probes, costly=True):
        study.shaped(row, how)


_STEPS: dict[str, Callable[[CloudStudy, int], object]] = {
    "photo": CloudStudy.photo,
    "clear": CloudStudy.clear,
    "anonymised": _anonymised,
    "parrot": _parrot,
    "lessons": lessons,
    "space": _space,
}


@dataclass
class _Recognisers:
    """Who is compared with whom: in pictures, or by the shape of the clouds."""

    study: CloudStudy
    in_space: bool
    known: Record | None  # [G] who is enrolled; None where there is nobody to compare with

    def __post_init__(self) -> None:
        clouds, config = self.study.clouds, self.study.config
        self.people, self.enrolled = clouds.numbers(clouds.probes), clouds.numbers(clouds.gallery)
        self.sample = Sample(self.people, Bootstrap(config.resamples, config.seed), "clouds")

    def read(self, rows: Sequence[int], *, gallery: bool, costly: bool) -> dict[Treatment, Record]:
        """Records [rows,degrees] of all treatments."""
        look = self.study.shaped if self.in_space else self.study.pictured
        hows = treatments_of(self.study.config, gallery=gallery, costly=costly)
        return {how: np.stack([look(row, how) for row in rows]) for how in hows}

    def attacks(self, read: dict[Treatment, Record]) -> list[Trial]:
        """Trials of all who attack the methods: as they are, after inverses, with a gallery treated alike."""
        out: list[Trial] = []
        parrots = {}
        if self.study.parrots:
            found = self.read(self.study.clouds.gallery, gallery=True, costly=True)
            parrots = {(how.method, how.attacker): (how.degrees, record) for how, record in found.items()}
        for how, record in read.items():
            degrees, known = parrots.get((how.method, how.attacker), ((), None))
            for place, degree in enumerate(how.degrees):
                what, made = label(how.method, degree), record[:, place]
                out += self.trials(made, what, "inverse" if how.attacker else "naive", how.attacker)
                if degree in degrees and known is not None:
                    there = known[:, degrees.index(degree)]
                    out += self.trials(made, what, "parrot", parrot_of(how.attacker), known=there)
        return out

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
    ) -> list[Trial]:
        people, out = self.people if probes is None else self.people[probes], []
        for name, scores in self._scores(record, people, known):
            found = None if self.in_space else record["found"]
            figures = privacy(scores, found, self.sample.bootstrap)
            where = (self.study.clouds.name, method, scenario, name, attacker)
            out.append(Trial(*where, figures, {"cmc": cmc(scores)}, control=control))
        return out

    def _scores(self, record: Record, people: NDArray[np.int64], known: Record | None) -> Iterator[tuple[str, Scores]]:
        gallery = self.known if known is None else known
        if gallery is None:
            return
        if not self.in_space:
            kept = np.ones(len(gallery), bool) if known is None else gallery["made"]
            for reader in self.study.judges.readers if known is None or kept.sum() > 1 else ():
                faces, others = record[f"by {reader.name}"], gallery[f"by {reader.name}"][kept]
                yield (
                    reader.name,
                    Scores.compare(
                        faces, others, people, self.enrolled[kept], metric=reader.metric, acquired=record["made"]
                    ),
                )
            return
        assert self.study.config.geometry is not None
        for name in self.study.config.geometry.recognisers:
            if known is None or gallery[f"seen {name}"].sum() > 1:
                matrix, seen = compare_shapes(name, record, gallery), record[f"seen {name}"]
                scores = Scores.from_matrix(matrix, people, self.enrolled, metric="euclidean", acquired=seen)
                yield name + IN_SPACE, scores


def _results(study: CloudStudy, guesses: Guesses | None, jobs: int) -> Results:
    clouds, config = study.clouds, study.config
    results = Results(config.title, sets={clouds.name: clouds.facts()})
    results.provenance = origin(config.to_dict(), 0) | {
        "detector": study.judges.detector.name,
        "recognisers": [reader.name for reader in study.judges.readers],
        "jobs": jobs,
    }
    photos = [study.photo(index) for index in range(len(clouds.photos))]
    known = np.concatenate(photos or [study.clear(row) for row in clouds.gallery])
    clear = np.concatenate([study.clear(row) for row in clouds.probes])
    recognisers = _Recognisers(study, False, known)
    results.trials += recognisers.trials(clear, CLEAR, "clear", control="ceiling")
    grey = study.judges.read([np.full((*THESIS_SIZE[::-1], 3), 127, np.uint8)], study.template)
    results.trials += recognisers.trials(np.repeat(grey, len(clear)), CONSTANT, "constant", control="negative")
    # What hair, neck and ears tell where the face is left out, of clear faces and among each other.
    around, others = ([study.surroundings(row) for row in rows] for rows in (clouds.probes, study.parrots))
    for attacker, enrolled in {"": [], parrot_of(""): others}.items():
        if enrolled or not attacker:
            results.trials += recognisers.trials(
                np.concatenate(around),
                SURROUNDINGS,
                "surroundings",
                attacker,
                control="surroundings",
                known=np.concatenate(enrolled) if enrolled else None,
            )
    read = recognisers.read(clouds.probes, gallery=False, costly=False)
    made = {how.method: record for how, record in read.items() if not how.attacker}
    for method, record in made.items():
        record["seconds"] = np.nan
        for place, row in enumerate(clouds.probes):
            if study.is_timed(row):
                record["seconds"][place] = study.seconds(row, method)
        for degree, there in zip(sorted(config.degrees), record.T, strict=True):
            name = label(method, degree)
            results.methods[name] = _facts(method, degree, config.seed)
            left = utility(clear, there, recognisers.sample, config.iou, config.miss, name=clouds.name, method=name)
            results.utilities.append(left)
    results.trials += recognisers.attacks(read)
    if guesses is not None:
        results.trials += _guessed(recognisers, guesses, made)
        results.provenance["thesis_autoencoder"] = guesses.record
    if config.geometry is not None:
        _add_space(study, results)
    results.caveats = caveats(study, results, made, clear, known, guesses)
    return results


def _guessed(recognisers: _Recognisers, guesses: Guesses, made: dict[str, Record]) -> list[Trial]:
    out = []
    degrees = sorted(recognisers.study.config.degrees)
    for (method, degree), record in guesses.records.items():
        before = made[method][guesses.probes, degrees.index(degree)]["ssim"]
        likeness = (
            Figure("ssim of the guess", float(record["ssim"].mean()), n=len(record), unit="clouds"),
            Figure("ssim before", float(before.mean()), n=len(record), unit="clouds"),
        )
        name = label(method, degree)
        tried = recognisers.trials(record, name, "reversed", "thesis-autoencoder", probes=guesses.probes)
        out += [replace(one, figures=one.figures + likeness) for one in tried]
    return out


def _add_space(study: CloudStudy, results: Results) -> None:
    clouds = study.clouds
    known = np.concatenate([study.shaped(row) for row in clouds.gallery]) if len(clouds.gallery) > 1 else None
    recognisers = _Recognisers(study, True, known)
    read = recognisers.read(clouds.probes, gallery=False, costly=True)
    if known is not None:
        clear = np.concatenate([study.shaped(row) for row in clouds.probes])
        results.trials += recognisers.trials(clear, CLEAR, "clear", control="ceiling")
        results.trials += recognisers.attacks(read)
    distorted = {
        label(how.method, degree): distortion(there, recognisers.sample)
        for how, record in read.items()
        if not how.attacker
        for degree, there in zip(how.degrees, record.T, strict=True)
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
