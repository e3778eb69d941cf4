"""The whole study of anonymised clouds: tasks, one a scan, then figures of everybody together."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ficgan.errors import FicganError
from ficgan.images import atomic_write
from ficgan.lab.clouds.caveats import caveats
from ficgan.lab.clouds.collect import Collected, collect
from ficgan.lab.clouds.config import CloudStudyConfig
from ficgan.lab.clouds.inverses import INVERSES, inverses
from ficgan.lab.clouds.lab import Lab, open_lab
from ficgan.lab.clouds.reading import Template
from ficgan.lab.clouds.sets import open_clouds
from ficgan.lab.clouds.space import compare_one, compared_in, looked_for
from ficgan.lab.results import Results
from ficgan.lab.stored import Say, run_tasks

__all__ = ["Told", "run_cloud_study"]

Told = Callable[[int, int, str], None]
"""Progress: (tasks done, tasks in all, what is being done)."""


def run_cloud_study(config: CloudStudyConfig, out: Path, *, jobs: int = 1, told: Told | None = None) -> Results:
    """Run a study, or go on with one that was interrupted: what lies in `out` is not computed again.

    Args:
        config: what to run.
        out: folder for `results.json` and the store of what was read; made if missing.
        jobs: processes; each computes with an equal share of the cores.
        told: called in this process.

    Returns:
        The results, also written to `out/results.json`; `write_cloud_report` makes a page of them.

    Raises:
        UsageError: a recogniser, detector or target that is not there.
        InputError: clouds or photos that cannot be used.
        FicganError: a task failed; what is finished is kept.
    """
    begun = time.monotonic()
    out.mkdir(parents=True, exist_ok=True)
    say = _Progress(told)
    say("looking at the clouds")
    open_lab.cache_clear()  # the folder of clouds may have changed since an earlier study in this process
    open_clouds(config, out, say)
    lab = open_lab(config, out)
    rows = (*lab.clouds.gallery, *lab.clouds.probes)
    attack = () if config.attack is None else _attack_rows(lab)
    space = () if config.geometry is None else looked_for(lab)
    compared = compared_in(lab) if space else ()
    tasks = (lab.clouds.photos, rows, lab.clouds.probes, lab.parrots, attack, compared)
    say.total = sum(map(len, tasks)) + 1

    _each(_photo, [(config, out, index) for index in range(len(lab.clouds.photos))], out, jobs, say)
    _each(_clear, [(config, out, row, None) for row in rows], out, jobs, say)
    template = Template.of(np.concatenate([lab.clear(row) for row in rows]))
    for row in rows:
        if template is not None and not lab.clear(row)["found"][0]:
            lab.clear(row, template)
    timed = set(lab.clouds.probes[: config.timed])
    work = [(config, out, row, template, row in timed) for row in lab.clouds.probes]
    _each(_subject, work, out, jobs, say)
    _each(_enrolled, [(config, out, row, template) for row in lab.parrots], out, jobs, say)
    found = Collected.read(lab, template, sorted(timed))
    if attack:
        from ficgan.lab.clouds.attack import lessons_of, reverse

        _each(lessons_of, [(config, out, row) for row in attack], out, jobs, say)
        found.reversed = reverse(lab, attack, template, out, say)
    if space:
        _each(compare_one, [(config, out, row) for row in compared], out, jobs, say)
        found.space = space
    say("figures")
    results = collect(lab, found)
    results.pictures = _pictures(lab, out)
    results.provenance |= _provenance(config, lab, jobs, time.monotonic() - begun)
    results.caveats = caveats(config, results, found)
    with atomic_write(out / "results.json", overwrite=True) as file:
        file.write(results.to_json().encode())
    say.done = say.total
    say("done")
    return results


class _Progress:
    """Tasks done so far; called with what is at work."""

    def __init__(self, told: Told | None) -> None:
        self.told, self.done, self.total = told, 0, 1

    def __call__(self, text: str) -> None:
        if self.told:
            self.told(self.done, self.total, text)


def _each(task: Callable[..., str], work: Sequence[tuple[Any, ...]], out: Path, jobs: int, say: _Progress) -> None:
    """Run tasks to the end, and only then say what failed.

    Raises:
        FicganError: some did.
    """
    failures = []
    for _, problem in run_tasks(task, list(enumerate(work)), jobs=jobs, say=say):
        say.done += 1
        say("")
        failures += [problem] if problem else []
    if failures:
        more = f" ({len(failures) - 1} more failed)" if len(failures) > 1 else ""
        raise FicganError(f"{failures[0]}{more}; what is finished is kept in {out}, run again after mending it")


def _photo(config: CloudStudyConfig, out: Path, index: int, say: Say) -> str:
    return _tried(lambda: open_lab(config, out).photo(index))


def _clear(config: CloudStudyConfig, out: Path, row: int, template: Template | None, say: Say) -> str:
    lab = open_lab(config, out)
    say(f"clear {lab.clouds.scans[row].name}")
    return _tried(lambda: lab.clear(row, template))


def _subject(config: CloudStudyConfig, out: Path, row: int, template: Template | None, timed: bool, say: Say) -> str:
    """Every method at every degree on one probe."""
    lab = open_lab(config, out)

    def work() -> None:
        for method in config.methods:
            say(f"{method} on {lab.clouds.scans[row].name}")
            lab.anonymised(row, method, template)
            if timed:
                lab.seconds(row, method)
        for attacker in inverses(config):
            say(f"{attacker} on {lab.clouds.scans[row].name}")
            lab.inverted(row, attacker, template)
        lab.surroundings(row, template)

    return _tried(work)


def _enrolled(config: CloudStudyConfig, out: Path, row: int, template: Template | None, say: Say) -> str:
    """Every method on one scan of the gallery, as a parrot enrols it."""
    lab = open_lab(config, out)

    def work() -> None:
        say(f"parrot of {lab.clouds.scans[row].name}")
        for method in config.methods:
            lab.anonymised(row, method, template, config.costly_degrees)
        for attacker in inverses(config):
            if INVERSES[attacker].alike:
                lab.inverted(row, attacker, template)
        lab.surroundings(row, template)

    return _tried(work)


def _tried(work: Callable[[], object]) -> str:
    try:
        work()
    except FicganError as error:
        return str(error)
    return ""


def _attack_rows(lab: Lab) -> tuple[int, ...]:
    from ficgan.lab.clouds.attack import learnt_from

    return learnt_from(lab)


def _pictures(lab: Lab, out: Path) -> dict[str, list[str]]:
    """Strips of projections, a row for each method: clear, then five degrees; none unless they are asked for."""
    from PIL import Image as Pictures

    from ficgan.pointcloud.projection import strip

    config = lab.config
    shown: dict[str, list[str]] = {}
    degrees = sorted(config.degrees)
    picked = [degrees[i] for i in np.unique(np.linspace(0, len(degrees) - 1, 5).round().astype(int))]
    for row in lab.clouds.probes[: config.pictures]:
        for method in config.methods:
            images: list[NDArray[np.uint8]] = [lab.picture(row)]
            images += [lab.picture_of(row, made, method, degree) for degree, made in lab.swept(row, method, picked)]
            name = f"pictures/{method}-{row:04d}.png"
            (out / "pictures").mkdir(exist_ok=True)
            with atomic_write(out / name, overwrite=True) as file:
                Pictures.fromarray(strip(images)[::2, ::2]).save(file, format="PNG")
            shown.setdefault(f"{method}: clear, degrees {', '.join(map(str, picked))}", []).append(name)
    return shown


def _provenance(config: CloudStudyConfig, lab: Lab, jobs: int, seconds: float) -> dict[str, Any]:
    from ficgan import __version__

    return {
        "ficgan": __version__, "python": platform.python_version(), "machine": platform.machine(),
        "settings": config.to_dict(), "detector": lab.eyes.detector.name,
        "recognisers": [reader.name for reader in lab.eyes.readers], "jobs": jobs, "seconds": round(seconds, 1),
    }  # fmt: skip
