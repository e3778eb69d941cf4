"""`ficgan-eval run`: a matrix of sets and methods, a task each; finished tasks are kept, an interrupted run resumes."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ficgan import __version__, pretrained
from ficgan.anonymizers import ANONYMIZERS, Anonymizer
from ficgan.deidentify import refuse_trainer
from ficgan.errors import FicganError, InputError, UsageError
from ficgan.face_model import ModelInfo
from ficgan.lab import readers
from ficgan.lab.attackers import shareable, titles, training_of, with_trainings
from ficgan.lab.attributes import AttributeClassifier
from ficgan.lab.bench import Bench, anonymiser_for, describe, open_bench, pixels_of
from ficgan.lab.matrix_config import MatrixConfig, MethodConfig, SetConfig, get_scenarios, without_folder
from ficgan.lab.metrics.intervals import wilson_share
from ficgan.lab.metrics.utility import Judges, Readings, compare
from ficgan.lab.pages import png, write_file
from ficgan.lab.results import Figure, Results, Trial, Utility, caveats, from_json, origin
from ficgan.lab.stored import VERSION, Progress, Say, digest, files_digest, run_tasks
from ficgan.lab.trials import LEAST_GROUP, run_trials
from ficgan.registry import parse_spec

__all__ = ["Task", "check_paths", "run_matrix"]

CLEAR = "clear"


@dataclass(frozen=True)
class Task:
    """One method (None: the clear images) on one set; its result lies in a file named after `key`, the digest of all it
    depends on.
    """

    config: MatrixConfig
    set: SetConfig
    method: MethodConfig | None
    out: Path
    key: str

    @classmethod
    def of(cls, config: MatrixConfig, one: SetConfig, method: MethodConfig | None, set_digest: str, out: Path) -> Task:
        """The task with its key, which is new each time where an external command runs: it may have changed."""
        shared = config.model_dump(mode="json", exclude={"title", "sets", "methods"})
        named = [*config.recognisers, config.attributes or ""]
        attackers = [parse_spec(text)[1] for text in (*config.general, *config.specialised)]
        own: dict[str, Any] | None = None
        if method is not None:
            own = method.model_dump(mode="json")
            for given in (method.parameters, *attackers):
                named += [value for value in given.values() if isinstance(value, str)]
                if given.get("command"):
                    own["asked"] = time.time_ns()
        files = [files_digest(text) for text in named]
        key = digest([VERSION, __version__, shared, one.name, one.context, set_digest, own, files])
        return cls(config, one, method, out, key)

    @property
    def label(self) -> str:
        return CLEAR if self.method is None else self.method.title

    @property
    def title(self) -> str:
        return f"{self.label} on {self.set.name}"

    @property
    def file(self) -> Path:
        return self.out / "tasks" / f"{self.key}.json"

    def read(self) -> dict[str, Any] | None:
        """What it found; None where it is not finished."""
        try:
            entry: dict[str, Any] = json.loads(self.file.read_text(encoding="utf-8"))
            return entry
        except (OSError, ValueError):
            return None

    def run(self, say: Say) -> None:
        began, config = time.monotonic(), self.config
        bench = open_bench(config, self.set, self.out)
        bench.trainings.clear()
        anonymizer = None if self.method is None else anonymiser_for(bench, self.method.make())
        trials = run_trials(
            bench, anonymizer, self.label, get_scenarios(config.scenarios),
            progress=lambda text: say(f"{self.title}: {text}"),
        )  # fmt: skip
        trainings = {f"{self.title}, {trial.scenario}: {trial.attacker}": training_of(bench, trial) for trial in trials}
        utilities = [asdict(_utility(config, bench, anonymizer, self.label))] if config.utility else []
        entry = {
            "trials": [asdict(trial) for trial in with_trainings(bench, trials)],
            "utilities": utilities,
            "method": None if anonymizer is None else _described(anonymizer),
            "pictures": _pictures(bench, anonymizer, self.key, self.out, config.pictures) if config.pictures else [],
            "trainings": {attacker: note for attacker, note in trainings.items() if note},
            "seconds": round(time.monotonic() - began, 2),
        }
        write_file(self.file, json.dumps(entry, allow_nan=False))


def run_matrix(config: MatrixConfig, out: Path, *, jobs: int = 1, progress: Progress | None = None) -> Results:
    """Run or resume an evaluation; the results are also written to `out/results.json`."""
    started = time.monotonic()
    report = progress or (lambda done, total, what: None)
    (out / "tasks").mkdir(parents=True, exist_ok=True)
    _check(config)
    total = len(config.sets) * (len(config.methods) + 1)
    tasks: list[Task] = []
    sets: dict[str, dict[str, Any]] = {}
    for one in config.sets:
        report(0, total, f"preparing {one.name}")
        sets[one.name] = facts = describe(config, one, out)
        tasks += [Task.of(config, one, method, facts["digest"], out) for method in (None, *config.methods)]
    waiting = [task for task in tasks if task.read() is None]
    done = total - len(waiting)
    report(done, total, f"{done} of {total} were done before" if done else "")
    failures: list[str] = []

    def say(text: str) -> None:
        report(done, total, text)

    # The clear images come first: everybody compares with them, and their embeddings are then in the store.
    for clear in (True, False):
        group = [task for task in waiting if (task.method is None) == clear]
        work = [(number, (task,)) for number, task in enumerate(group)]
        for number, problem in run_tasks(_run, work, jobs=jobs, say=say):
            done += 1
            failures += [f"{group[number].title}: {problem}"] if problem else []
            report(done, total, group[number].title)
    if failures:
        more = f" ({len(failures) - 1} more tasks failed)" if len(failures) > 1 else ""
        raise FicganError(f"{failures[0]}{more}; what is finished is kept in {out}, run again after mending it")
    results = _collect(config, out, sets, tasks, time.monotonic() - started)
    results.write(out / "results.json")
    return results


def check_paths(config: MatrixConfig) -> None:
    """Check that the files the matrix names are there."""
    if config.attributes is not None and not Path(config.attributes).is_file():
        raise UsageError(f"there is no attribute classifier {config.attributes}; see ficgan train-attributes")
    for one in config.sets:
        for some in (one, one.learn_from):
            if some is not None and not Path(some.path).exists():
                raise InputError(f"the set {some.name} is not at {some.path}; name a folder, zip or tar")


def _run(task: Task, say: Say) -> str:
    try:
        task.run(say)
    except FicganError as error:
        return str(error)
    return ""


def _check(config: MatrixConfig) -> None:
    check_paths(config)
    judges = readers.get_readers(tuple(config.recognisers))
    if config.attributes is not None:
        AttributeClassifier.load(Path(config.attributes))
    for method in config.methods:
        texts = [value for value in method.parameters.values() if isinstance(value, str)]
        helpers = {digest for text in texts for digest in files_digest(text)}
        for reader in judges:
            if reader.digest in helpers:
                raise UsageError(f"{reader.name} is what {method.title} works against; take another judge")
        if "model" in ANONYMIZERS[method.method].traits.needs:
            file = method.parameters.get("checkpoint") or pretrained.path("model")
            for name in config.recognisers:
                refuse_trainer(ModelInfo.of(file), name)


def _described(anonymizer: Anonymizer) -> dict[str, Any]:
    traits = asdict(anonymizer.traits)
    traits["needs"] = sorted(traits["needs"])
    settings = {key: without_folder(value) for key, value in anonymizer.settings().items()}
    if settings.get("command"):
        settings["command"] = settings["command"].split()[0]
    return {"name": anonymizer.name, **traits, "settings": settings}


def _collect(
    config: MatrixConfig, out: Path, sets: dict[str, dict[str, Any]], tasks: list[Task], seconds: float
) -> Results:
    found = [(task, entry) for task in tasks if (entry := task.read()) is not None]
    if len(found) != len(tasks):
        raise UsageError(f"{out} lost finished tasks while the evaluation ran; run it again")
    entries = [entry for _, entry in found]
    pictures: dict[str, list[str]] = {}
    for task, entry in found:
        if entry["pictures"]:
            pictures.setdefault(task.label, []).extend(entry["pictures"])
    results = Results(
        config.title,
        provenance=origin(_shareable(config), seconds) | {
            "attackers": {title: shareable(text) for text, title in titles(config.named_attackers).items()},
            "trainings": {name: note for entry in entries for name, note in entry.get("trainings", {}).items()},
            "attribute_classifier": None if config.attributes is None else AttributeClassifier.load(
                Path(config.attributes)
            ).training.get("source", {}),
            "task_seconds": round(sum(entry["seconds"] for entry in entries), 1),
        },
        sets=sets,
        methods={task.label: entry["method"] for task, entry in found if entry["method"]},
        trials=[Trial(**from_json(trial)) for entry in entries for trial in entry["trials"]],
        utilities=[Utility(**from_json(one)) for entry in entries for one in entry["utilities"]],
        pictures=pictures,
    )  # fmt: skip
    results.caveats = caveats(results)
    return results


def _shareable(config: MatrixConfig) -> dict[str, Any]:
    tree: dict[str, Any] = config.model_dump(mode="json")
    for one in (some for both in tree["sets"] for some in (both, both["learn_from"]) if some is not None):
        one["path"] = Path(one["path"]).name
        one["labels"] = None if one["labels"] is None else Path(one["labels"]).name
    for key in ("general", "specialised"):
        tree[key] = [shareable(text) for text in tree[key]]
    for shown, method in zip(tree["methods"], config.methods, strict=True):
        shown["parameters"] = method.shown
    tree["recognisers"] = [f"onnx:{Path(n[5:]).name}" if n.startswith("onnx:") else n for n in tree["recognisers"]]
    tree["attributes"] = None if tree["attributes"] is None else Path(tree["attributes"]).name
    return tree


# -- utility ----------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=1)
def _judges(attributes: str | None) -> Judges:
    return Judges.find(attributes=None if attributes is None else Path(attributes))


_READ: dict[tuple[str, str | None], Readings] = {}
"""What was read in the clear probes of the set at work: one set at a time."""


def _clear(bench: Bench, attributes: str | None) -> Readings:
    key = (bench.digest, attributes)
    if key not in _READ:
        _READ.clear()
        _READ[key] = _judges(attributes).read(bench.prepared.faces.take(bench.split.probe))
    return _READ[key]


def _utility(config: MatrixConfig, bench: Bench, anonymizer: Anonymizer | None, label: str) -> Utility:
    clear, rows = _clear(bench, config.attributes), bench.split.probe
    faces = clear.faces if anonymizer is None else pixels_of(bench, anonymizer, rows)
    seen = _judges(config.attributes).read(faces, against=clear)
    names, known_ones = clear.attribute_names, bench.prepared.attributes
    labels = None
    if names and all(name in known_ones for name in names):
        labels = np.stack([known_ones[name][rows] for name in names], 1).astype(np.uint8)
    figures = compare(clear, seen, region=bench.prepared.region, labels=labels, bootstrap=bench.bootstrap)
    return Utility(bench.name, label, figures, dict(_groups(bench, clear, seen, rows)))


def _groups(
    bench: Bench, clear: Readings, seen: Readings, rows: NDArray[np.int64]
) -> Iterator[tuple[str, tuple[Figure, ...]]]:
    for column in bench.columns:
        values = np.array(bench.prepared.groups.get(column, ()), dtype=object)
        labels = values[rows] if len(values) else values
        for value in sorted({one for one in labels if one}):
            mask = labels == value
            if len(np.unique(bench.people[rows[mask]])) < LEAST_GROUP:
                continue
            figures = []
            if seen.detections is not None:
                figures.append(wilson_share("detected", seen.detections.found[mask]))
            if seen.males is not None and clear.males is not None:
                figures.append(wilson_share("gender-kept", ((seen.males >= 0.5) == (clear.males >= 0.5))[mask]))
            if seen.attributes is not None and clear.attributes is not None:
                same = ((seen.attributes >= 0.5) == (clear.attributes >= 0.5))[mask]
                figures.append(Figure("attributes", float(same.mean()), n=int(mask.sum()), unit="images"))
            yield f"{column}={value}", tuple(figures)


def _pictures(bench: Bench, anonymizer: Anonymizer | None, key: str, out: Path, count: int) -> list[str]:
    rows = bench.split.probe
    _, first = np.unique(bench.people[rows], return_index=True)
    rows = rows[first[:count]]
    faces = bench.prepared.faces.take(rows) if anonymizer is None else pixels_of(bench, anonymizer, rows)
    names = [f"pictures/{key[:12]}-{number:02d}.png" for number in range(len(rows))]
    for name, image in zip(names, faces.images, strict=True):
        write_file(out / name, png(image))
    return names
