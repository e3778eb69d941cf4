"""The whole study of anonymised clouds: tasks, one a scan, then figures of everybody together."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ficgan.errors import FicganError
from ficgan.lab.clouds.sets import CloudStudyConfig, open_clouds
from ficgan.lab.clouds.study import CloudStudy, Record, ShapeJudges, Template, open_study
from ficgan.lab.clouds.tables import (
    CLEAR,
    CONSTANT,
    IN_SPACE,
    SURROUNDINGS,
    caveats,
    distortion,
    label,
    parrot_of,
    trial,
    utility,
)  # fmt: skip
from ficgan.lab.clouds.treatments import Guesses, inverse_degrees, inverses, lesson_rows, lessons, train_and_guess
from ficgan.lab.metrics.intervals import Bootstrap, Sample
from ficgan.lab.metrics.scores import Scores
from ficgan.lab.results import Figure, Results, Trial, origin
from ficgan.lab.stored import Progress, Say, png, run_tasks, write_file
from ficgan.pointcloud.methods import CLOUD_ANONYMIZERS
from ficgan.pointcloud.projection import THESIS_SIZE


def run_cloud_study(config: CloudStudyConfig, out: Path, *, jobs: int = 1, progress: Progress | None = None) -> Results:
    """Run or resume a study; what lies in `out` is not computed again. Returns the results of `out/results.json`."""
    begun = time.monotonic()
    out.mkdir(parents=True, exist_ok=True)
    done, total = 0, 1

    def say(text: str) -> None:
        if progress:
            progress(done, total, text)

    def run(step: str, rows: Sequence[int]) -> None:
        nonlocal done
        work = [(index, (config, out, step, row, study.template)) for index, row in enumerate(rows)]
        failures = []
        for _, problem in run_tasks(_task, work, jobs=jobs, say=say):
            done += 1
            say("")
            failures += [problem] if problem else []
        if failures:
            more = f" ({len(failures) - 1} more failed)" if len(failures) > 1 else ""
            raise FicganError(f"{failures[0]}{more}; what is finished is kept in {out}, run again after mending it")

    say("looking at the clouds")
    open_study.cache_clear()  # the folder of clouds may have changed since an earlier study in this process
    open_clouds(config, out, say)
    study = open_study(config, out)
    rows = (*study.clouds.gallery, *study.clouds.probes)
    probes, gallery = study.in_space
    steps = {
        "photo": range(len(study.clouds.photos)), "clear": rows, "anonymised": study.clouds.probes,
        "parrot": study.parrots, "lessons": lesson_rows(study) if config.attack else (),
        "space": probes + (gallery if study.parrots else ()),
    }  # fmt: skip
    total += sum(map(len, steps.values()))
    run("photo", steps["photo"])
    run("clear", rows)
    study.template = Template.of(np.concatenate([study.clear(row) for row in rows]))
    for step in ("anonymised", "parrot", "lessons"):
        run(step, steps[step])
    guesses = train_and_guess(study, out, say) if config.attack else None
    run("space", steps["space"])
    say("figures")
    results = _results(study, guesses, jobs)
    results.pictures = _pictures(study, out)
    results.provenance["seconds"] = round(time.monotonic() - begun, 1)
    results.write(out / "results.json")
    done = total
    say("done")
    return results


def _task(config: CloudStudyConfig, out: Path, step: str, row: int, template: Template | None, say: Say) -> str:
    study = open_study(config, out)
    study.template = template
    name = study.clouds.photos[row].name if step == "photo" else study.clouds.scans[row].name
    say(f"{step}: {name}")
    try:
        _STEPS[step](study, row)
    except FicganError as error:
        return str(error)
    return ""


def _anonymised(study: CloudStudy, row: int) -> None:
    for method in study.config.methods:
        study.pictured(row, method, sorted(study.config.degrees))
        if study.is_timed(row):
            study.seconds(row, method)
        for attacker in inverses(study.config, method):
            study.pictured(row, method, inverse_degrees(study.config, attacker), attacker)
    study.surroundings(row)


def _parrot(study: CloudStudy, row: int) -> None:
    for method in study.config.methods:
        for attacker in ("", *inverses(study.config, method, alike=True)):
            study.pictured(row, method, study.config.costly_degrees, attacker)
    study.surroundings(row)


def _space(study: CloudStudy, row: int) -> None:
    study.shaped(row)
    for method in study.config.methods:
        for attacker in ("", *inverses(study.config, method, alike=row not in study.clouds.probes)):
            study.shaped(row, method, study.config.costly_degrees, attacker)


_STEPS: dict[str, Callable[[CloudStudy, int], object]] = {
    "photo": CloudStudy.photo, "clear": CloudStudy.clear, "anonymised": _anonymised, "parrot": _parrot,
    "lessons": lessons, "space": _space,
}  # fmt: skip


@dataclass
class _Recognisers:
    study: CloudStudy
    in_space: bool  # recognisers of shapes
    set: str  # its name in tables
    probes: Sequence[int]  # rows of the study's scans
    gallery: Sequence[int]  # rows of the study's scans; empty where it is photos
    degrees: list[int]  # at which the methods are read
    known: Record | None  # [G] who is enrolled; None where there is nobody to compare with

    def __post_init__(self) -> None:
        clouds, config = self.study.clouds, self.study.config
        self.people = clouds.numbers(self.probes)
        self.enrolled = clouds.numbers(self.gallery) if self.gallery else clouds.numbers_of(clouds.photos)
        self.sample = Sample(self.people, Bootstrap(config.resamples, config.seed), "clouds")

    def stacked(self, rows: Sequence[int], method: str, degrees: Sequence[int], attacker: str = "") -> Record:
        read = self.study.shaped if self.in_space else self.study.pictured
        return np.stack([read(row, method, degrees, attacker) for row in rows])

    def attacks(self, method: str, made: Record) -> list[Trial]:
        """Trials of all who attack a method [P,degrees]: as it is, after its inverses, with a gallery treated alike."""
        config = self.study.config
        out: list[Trial] = []
        costly = config.costly_degrees
        back, parrots = {}, {}
        for name in inverses(config, method):
            degrees = [degree for degree in inverse_degrees(config, name) if degree in self.degrees]
            back[name] = degrees, self.stacked(self.probes, method, degrees, name)
        if self.study.parrots:
            for name in ("", *inverses(config, method, alike=True)):
                parrots[name] = self.stacked(self.gallery, method, costly, name)
        for place, degree in enumerate(self.degrees):
            what = label(method, degree)
            read = {"": made[:, place]}
            read |= {name: record[:, tried.index(degree)] for name, (tried, record) in back.items() if degree in tried}
            for name, record in read.items():
                out += self.trials(record, what, "inverse" if name else "naive", name)
            for name in parrots if degree in costly else ():
                known = parrots[name][:, costly.index(degree)]
                out += self.trials(read[name], what, "parrot", parrot_of(name), known=known)
        return out

    def trials(
        self, record: Record, method: str, scenario: str, attacker: str = "", *, control: str = "",
        known: Record | None = None, probes: NDArray[np.intp] | None = None,
    ) -> list[Trial]:  # fmt: skip
        people, out = self.people if probes is None else self.people[probes], []
        for name, scores in self._scores(record, people, known):
            where = {"set": self.set, "method": method, "scenario": scenario, "recogniser": name, "attacker": attacker}
            found = None if self.in_space else record["found"]
            out.append(trial(scores, found, self.sample.bootstrap, where=where, control=control))
        return out

    def _scores(self, record: Record, people: NDArray[np.int64], known: Record | None) -> Iterator[tuple[str, Scores]]:
        gallery, enrolled = self.known if known is None else known, self.enrolled
        assert gallery is not None
        if not self.in_space:
            kept = np.ones(len(gallery), bool) if known is None else known["made"]
            for reader in self.study.judges.readers if known is None or kept.sum() > 1 else ():
                faces, others, made = record[f"by {reader.name}"], gallery[f"by {reader.name}"][kept], record["made"]
                scores = Scores.compare(faces, others, people, enrolled[kept], metric=reader.metric, acquired=made)
                yield reader.name, scores
            return
        for name in self.study.shapes.names:
            if known is None or (name != "icp" and known[f"seen {name}"].sum() > 1):
                matrix, seen = ShapeJudges.compare(name, record, gallery), record[f"seen {name}"]
                scores = Scores.from_matrix(matrix, people, enrolled, metric="euclidean", acquired=seen)
                yield name + IN_SPACE, scores


def _results(study: CloudStudy, guesses: Guesses | None, jobs: int) -> Results:
    clouds, config = study.clouds, study.config
    results = Results(config.title, sets={clouds.name: clouds.facts()})
    results.provenance = origin(config.to_dict(), 0) | {
        "detector": study.judges.detector.name,
        "recognisers": [reader.name for reader in study.judges.readers], "jobs": jobs,
    }  # fmt: skip
    photos = [study.photo(index) for index in range(len(clouds.photos))]
    known = np.concatenate(photos or [study.clear(row) for row in clouds.gallery])
    clear = np.concatenate([study.clear(row) for row in clouds.probes])
    degrees = sorted(config.degrees)
    recognisers = _Recognisers(study, False, clouds.name, clouds.probes, clouds.gallery, degrees, known)
    results.trials += recognisers.trials(clear, CLEAR, "clear", control="ceiling")
    grey = study.judges.read([np.full((*THESIS_SIZE[::-1], 3), 127, np.uint8)], study.template)
    results.trials += recognisers.trials(np.repeat(grey, len(clear)), CONSTANT, "constant", control="negative")
    # What hair, neck and ears tell where the face is left out, of clear faces and among each other.
    around, others = ([study.surroundings(row) for row in rows] for rows in (clouds.probes, study.parrots))
    lots: list[tuple[str, Record | None]] = [("", None)]
    if others:
        lots.append((parrot_of(""), np.concatenate(others)))
    for attacker, enrolled in lots:
        results.trials += recognisers.trials(
            np.concatenate(around), SURROUNDINGS, "surroundings", attacker, control="surroundings", known=enrolled
        )
    made: dict[str, Record] = {}
    for method in config.methods:
        made[method] = recognisers.stacked(clouds.probes, method, degrees)
        made[method]["seconds"] = np.nan
        for place, row in enumerate(clouds.probes):
            if study.is_timed(row):
                made[method]["seconds"][place] = study.seconds(row, method)
        for place, degree in enumerate(degrees):
            name, record = label(method, degree), made[method][:, place]
            results.methods[name] = _facts(method, degree, config.seed)
            left = utility(clear, record, recognisers.sample, config.iou, config.miss, name=clouds.name, method=name)
            results.utilities.append(left)
        results.trials += recognisers.attacks(method, made[method])
    if guesses is not None:
        results.trials += _guessed(recognisers, guesses, made)
        results.provenance["thesis_autoencoder"] = guesses.record
    if config.geometry is not None:
        _add_space(study, results)
    results.caveats = caveats(study, results, made, clear, known, guesses)
    return results


def _guessed(recognisers: _Recognisers, guesses: Guesses, made: dict[str, Record]) -> list[Trial]:
    out = []
    for (method, degree), record in guesses.records.items():
        before = made[method][guesses.probes, recognisers.degrees.index(degree)]["ssim"]
        likeness = (
            Figure("ssim of the guess", float(record["ssim"].mean()), n=len(record), unit="clouds"),
            Figure("ssim before", float(before.mean()), n=len(record), unit="clouds"),
        )
        name = label(method, degree)
        tried = recognisers.trials(record, name, "reversed", "thesis-autoencoder", probes=guesses.probes)
        out += [replace(one, figures=one.figures + likeness) for one in tried]
    return out


def _add_space(study: CloudStudy, results: Results) -> None:
    clouds, costly = study.clouds, study.config.costly_degrees
    probes, gallery = study.in_space
    known = np.concatenate([study.shaped(row) for row in gallery]) if len(gallery) > 1 else None
    clear = np.concatenate([study.shaped(row) for row in probes])
    name = clouds.name
    if len(gallery) < len(clouds.gallery):
        # Fewer enrolled people are easier to tell apart: figures must not stand beside those of all.
        name = f"{clouds.name}, {len(gallery)} of them in space"
        facts = {**clouds.facts(), "people": len(gallery), "gallery": len(gallery), "probes": len(probes)}
        results.sets[name] = {**facts, "probe_people": len(np.unique(clouds.numbers(probes)))}
    recognisers = _Recognisers(study, True, name, probes, gallery, costly, known)
    if known is not None:
        results.trials += recognisers.trials(clear, CLEAR, "clear", control="ceiling")
    left = {use.method: place for place, use in enumerate(results.utilities)}
    for method in study.config.methods:
        made = recognisers.stacked(probes, method, costly)
        if known is not None:
            results.trials += recognisers.attacks(method, made)
        for place, degree in enumerate(costly):
            at = left[label(method, degree)]
            use = results.utilities[at]
            results.utilities[at] = replace(use, figures=use.figures + distortion(made[:, place], recognisers.sample))


def _facts(method: str, degree: int, seed: int) -> dict[str, Any]:
    traits = CLOUD_ANONYMIZERS[method].traits
    value = traits.of_degree(degree)
    return {
        "name": method, "title": traits.title, "family": traits.family, "source": traits.source, "keyed": False,
        "stochastic": traits.stochastic, "domain": "cloud", "strength": traits.strength,
        "parameter": f"{traits.strength} = {value:.4g}",
        "settings": {"degree": degree, traits.strength: value, "seed": seed},
    }  # fmt: skip


def _pictures(study: CloudStudy, out: Path) -> dict[str, list[str]]:
    from ficgan.pointcloud.projection import strip

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
