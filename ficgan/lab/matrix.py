"""`ficgan-eval run`: a matrix of sets and methods, one task each; finished ones stay, an interrupted run goes on."""

from __future__ import annotations

import json
import platform
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ficgan.errors import FicganError, InputError, UsageError
from ficgan.images import atomic_write
from ficgan.lab.matrix_config import MatrixConfig, MethodConfig, SetConfig, without_folder
from ficgan.lab.matrix_sets import describe, named_attackers, open_bench
from ficgan.lab.processes import Say, run_tasks
from ficgan.lab.results import Results, Trial, Utility, from_json
from ficgan.lab.stored import VERSION, digest, files_digest
from ficgan.registry import parse_spec

__all__ = ["Progress", "check_paths", "run_matrix"]

Progress = Callable[[int, int, str], None]
"""Called as progress(done, total, what): a task is finished, or `what` has begun."""
CLEAR = "clear"


def run_matrix(config: MatrixConfig, out: Path, *, jobs: int = 1, progress: Progress | None = None) -> Results:
    """Run, or go on with, an evaluation.

    Args:
        config: checked matrix.
        out: folder for `results.json`, the finished tasks and the store of pixels and embeddings.
        jobs: processes; each computes with an equal share of the cores.
        progress: called in this process.

    Returns:
        The results, also written to `out/results.json`.

    Raises:
        UsageError: a set, a judge or a method that cannot be used; a judge that trained a model; an attacker that was
            trained on people who would be tested.
        FicganError: a task failed; the finished ones are kept.
    """
    started = time.monotonic()
    out.mkdir(parents=True, exist_ok=True)
    (out / "tasks").mkdir(exist_ok=True)
    _check(config)
    tasks: list[tuple[SetConfig, MethodConfig | None]] = []
    sets: dict[str, dict[str, Any]] = {}
    for one in config.sets:
        if progress:
            progress(0, len(config.sets) * (len(config.methods) + 1), f"preparing {one.name}")
        sets[one.name] = describe(config, one, out)
        tasks += [(one, None), *((one, method) for method in config.methods)]
    total, done = len(tasks), 0
    keys = [_key(config, one, method, sets[one.name]["digest"]) for one, method in tasks]
    waiting = []
    for index, key in enumerate(keys):
        if _read(out, key) is None:
            waiting.append(index)
        else:
            done += 1
    if progress:
        progress(done, total, f"{done} of {total} were done before" if done else "")
    failures: list[str] = []

    def say(text: str) -> None:
        if progress:
            progress(done, total, text)

    # The clear images come first: everybody compares with them, and their embeddings are then in the store.
    for group in (
        [index for index in waiting if tasks[index][1] is None],
        [index for index in waiting if tasks[index][1] is not None],
    ):
        work = [(index, (config, *tasks[index], keys[index], out)) for index in group]
        for index, problem in run_tasks(_task, work, jobs=jobs, say=say):
            done += 1
            one, method = tasks[index]
            if problem:
                failures.append(f"{method.title if method else CLEAR} on {one.name}: {problem}")
            if progress:
                progress(done, total, f"{method.title if method else CLEAR} on {one.name}")
    if failures:
        more = f" ({len(failures) - 1} more tasks failed)" if len(failures) > 1 else ""
        raise FicganError(f"{failures[0]}{more}; what is finished is kept in {out}, run again after mending it")
    results = _collect(config, out, sets, keys, time.monotonic() - started)
    with atomic_write(out / "results.json", overwrite=True) as file:
        file.write(results.to_json().encode())
    return results


def _task(config: MatrixConfig, one: SetConfig, method: MethodConfig | None, key: str, out: Path, say: Say) -> str:
    """Run one task and write what it found; "" or what went wrong."""
    from ficgan.lab.attackers import training_of, with_trainings
    from ficgan.lab.bench import anonymiser_for
    from ficgan.lab.scenarios import get_scenarios
    from ficgan.lab.trials import run_trials

    began = time.monotonic()
    try:
        bench = open_bench(config, one, out)
        label = CLEAR if method is None else method.title
        bench.trainings.clear()
        anonymizer = None if method is None else anonymiser_for(bench, method.make())
        trials = run_trials(
            bench, anonymizer, label, get_scenarios(config.scenarios),
            progress=lambda text: say(f"{label} on {one.name}: {text}"),
        )  # fmt: skip
        told = {f"{label} on {one.name}, {t.scenario}: {t.attacker}": training_of(bench, t) for t in trials}
        trials = with_trainings(bench, trials)
        utility, pictures = _utility(config, bench, anonymizer, label, out, key)
    except FicganError as error:
        return str(error)
    entry = {
        "trials": [asdict(trial) for trial in trials],
        "utilities": [] if utility is None else [asdict(utility)],
        "method": None if anonymizer is None else _method(anonymizer),
        "pictures": pictures,
        "trainings": {attacker: note for attacker, note in told.items() if note},
        "seconds": round(time.monotonic() - began, 2),
    }
    with atomic_write(out / "tasks" / f"{key}.json", overwrite=True) as file:
        file.write(json.dumps(entry, allow_nan=False).encode())
    return ""


def _utility(
    config: MatrixConfig, bench: Any, anonymizer: Any, label: str, out: Path, key: str
) -> tuple[Any, list[str]]:
    """Utility figures on the probes, and pictures of the first few."""
    from ficgan.lab.usefulness import pictures, usefulness

    utility = usefulness(config, bench, anonymizer, label) if config.utility else None
    shown = pictures(bench, anonymizer, key, out, config.pictures) if config.pictures else []
    return utility, shown


def _method(anonymizer: Any) -> dict[str, Any]:
    traits = asdict(anonymizer.traits)
    traits["needs"] = sorted(traits["needs"])
    settings = {key: without_folder(value) for key, value in anonymizer.settings().items()}
    if settings.get("command"):
        settings["command"] = settings["command"].split()[0]
    return {"name": anonymizer.name, **traits, "settings": settings}


def _key(config: MatrixConfig, one: SetConfig, method: MethodConfig | None, set_digest: str) -> str:
    """Of everything a task's outcome depends on: settings, pixels, labels, and the contents of the files they name."""
    from ficgan import __version__

    shared = config.model_dump(mode="json", exclude={"title", "sets", "methods"})
    named = [*config.recognisers, config.attributes or ""]
    attackers = [parse_spec(text)[1] for text in (*config.general, *config.specialised)]
    own: dict[str, Any] | None = None
    if method is not None:
        own = method.model_dump(mode="json")
        for given in (method.parameters, *attackers):
            named += [value for value in given.values() if isinstance(value, str)]
            if given.get("command"):  # a program of somebody else's may have changed: its task is never kept
                own["asked"] = time.time_ns()
    files = [files_digest(text) for text in named]
    return digest([VERSION, __version__, shared, one.name, one.context, set_digest, own, files])


def _read(out: Path, key: str) -> dict[str, Any] | None:
    try:
        entry: dict[str, Any] = json.loads((out / "tasks" / f"{key}.json").read_text(encoding="utf-8"))
        return entry
    except (OSError, ValueError):
        return None


def check_paths(config: MatrixConfig) -> None:
    """Whether what the matrix names is there.

    Raises:
        UsageError: no attribute classifier at the path given.
        InputError: no set at the path given.
    """
    if config.attributes is not None and not Path(config.attributes).is_file():
        raise UsageError(f"there is no attribute classifier {config.attributes}; see ficgan train-attributes")
    for one in config.sets:
        for some in (one, one.learn_from):
            if some is not None and not Path(some.path).exists():
                raise InputError(f"the set {some.name} is not at {some.path}; name a folder, zip or tar")


def _check(config: MatrixConfig) -> None:
    """What can be known before any image is read: judges and classifier can be opened, and no judge helped a method."""
    from ficgan import pretrained
    from ficgan.anonymizers import ANONYMIZERS
    from ficgan.deidentify import refuse_trainer
    from ficgan.face_model import ModelInfo
    from ficgan.lab.attributes import AttributeClassifier
    from ficgan.lab.readers import get_readers

    check_paths(config)
    readers = get_readers(tuple(config.recognisers))
    if config.attributes is not None:
        AttributeClassifier.load(Path(config.attributes))
    for method in config.methods:
        texts = [value for value in method.parameters.values() if isinstance(value, str)]
        helpers = {digest for text in texts for digest in files_digest(text)}
        for reader in readers:
            if reader.digest in helpers:
                raise UsageError(f"{reader.name} is what {method.title} works against; take another judge")
        if "model" not in ANONYMIZERS[method.method].traits.needs:
            continue
        file = method.parameters.get("checkpoint") or pretrained.path("model")
        for name in config.recognisers:
            refuse_trainer(ModelInfo.of(file), name)


def _collect(
    config: MatrixConfig, out: Path, sets: dict[str, dict[str, Any]], keys: list[str], seconds: float
) -> Results:
    from ficgan import __version__
    from ficgan.lab.caveats import caveats

    entries = [entry for key in keys if (entry := _read(out, key)) is not None]
    if len(entries) != len(keys):
        raise UsageError(f"{out} lost finished tasks while the evaluation ran; run it again")
    trials = [Trial(**from_json(trial)) for entry in entries for trial in entry["trials"]]
    utilities = [Utility(**from_json(one)) for entry in entries for one in entry["utilities"]]
    labels = [label for _ in config.sets for label in (None, *(method.title for method in config.methods))]
    methods = {
        label: entry["method"] for label, entry in zip(labels, entries, strict=True) if label and entry["method"]
    }
    shown: dict[str, list[str]] = {}
    for label, entry in zip(labels, entries, strict=True):
        shown.setdefault(label or CLEAR, []).extend(entry["pictures"])
    results = Results(
        config.title,
        provenance={
            "ficgan": __version__,
            "python": platform.python_version(),
            "machine": platform.machine(),
            "settings": _shareable(config),
            "attackers": _attackers(config),
            "trainings": {name: note for entry in entries for name, note in entry.get("trainings", {}).items()},
            "attribute_classifier": _learnt_from(config),
            "seconds": round(seconds, 1),
            "task_seconds": round(sum(entry["seconds"] for entry in entries), 1),
        },
        sets=sets,
        methods=methods,
        trials=trials,
        utilities=utilities,
        pictures={label: files for label, files in shown.items() if files},
    )
    results.caveats = caveats(results)
    return results


def _attackers(config: MatrixConfig) -> dict[str, str]:
    """What the attackers are called in tables → how they are asked for."""
    from ficgan.lab.attackers import shareable, titles

    return {title: shareable(text) for text, title in titles(named_attackers(config)).items()}


def _learnt_from(config: MatrixConfig) -> dict[str, Any] | None:
    """On what the attribute classifier was trained."""
    from ficgan.lab.attributes import AttributeClassifier

    if config.attributes is None:
        return None
    source: dict[str, Any] = AttributeClassifier.load(Path(config.attributes)).training.get("source", {})
    return source


def _shareable(config: MatrixConfig) -> dict[str, Any]:
    """The configuration without folders of this machine."""
    from ficgan.lab.attackers import shareable

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
