"""`ficgan-eval run`: a matrix of sets and methods, one task each; finished ones stay, an interrupted run goes on."""

from __future__ import annotations

import json
import multiprocessing
import os
import platform
import time
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path
from typing import Any

from ficgan.errors import FicganError, InputError, UsageError
from ficgan.evaluation.matrix_config import MatrixConfig, MethodConfig, SetConfig, without_folder
from ficgan.evaluation.results import Results, Trial, Utility, from_json
from ficgan.evaluation.stored import VERSION, Store, digest, files_digest
from ficgan.images import atomic_write

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
        UsageError: a set, a judge or a method that cannot be used; a judge that trained a model.
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
        sets[one.name] = _describe(config, one, out)
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
    # The clear images come first: everybody compares with them, and their embeddings are then in the store.
    for group in (
        [index for index in waiting if tasks[index][1] is None],
        [index for index in waiting if tasks[index][1] is not None],
    ):
        for index, problem in _run(config, [(index, tasks[index], keys[index]) for index in group], out, jobs):
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


def _run(
    config: MatrixConfig, group: list[tuple[int, tuple[SetConfig, MethodConfig | None], str]], out: Path, jobs: int
) -> Iterator[tuple[int, str]]:
    """(task, problem or "") of each task as it ends."""
    if jobs <= 1 or len(group) <= 1:
        for index, (one, method), key in group:
            yield index, _task(config, one, method, key, out)
        return
    threads = max(1, (os.cpu_count() or 1) // jobs)
    with _threads(threads):
        pool = ProcessPoolExecutor(min(jobs, len(group)), mp_context=multiprocessing.get_context("spawn"))
        try:
            running: dict[Future[str], int] = {
                pool.submit(_task, config, one, method, key, out): index for index, (one, method), key in group
            }
            while running:
                finished, _ = wait(running, return_when=FIRST_COMPLETED)
                for future in finished:
                    yield running.pop(future), future.result()
        except BaseException:
            for process in list((pool._processes or {}).values()):
                process.terminate()
            raise
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


@contextmanager
def _threads(count: int) -> Iterator[None]:
    """Processes started meanwhile compute with so many threads."""
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
    before = {name: os.environ.get(name) for name in names}
    os.environ.update({name: str(count) for name in names})
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


def _task(config: MatrixConfig, one: SetConfig, method: MethodConfig | None, key: str, out: Path) -> str:
    """Run one task and write what it found; "" or what went wrong."""
    from ficgan.evaluation.bench import anonymiser_for
    from ficgan.evaluation.scenarios import get_scenarios
    from ficgan.evaluation.trials import run_trials

    began = time.monotonic()
    try:
        bench = _bench(config, one, out)
        label = CLEAR if method is None else method.title
        anonymizer = None if method is None else anonymiser_for(bench, method.make())
        trials = run_trials(bench, anonymizer, label, get_scenarios(config.scenarios))
        utility, pictures = _utility(config, bench, anonymizer, label, out, key)
    except FicganError as error:
        return str(error)
    entry = {
        "trials": [asdict(trial) for trial in trials],
        "utilities": [] if utility is None else [asdict(utility)],
        "method": None if anonymizer is None else _method(anonymizer),
        "pictures": pictures,
        "seconds": round(time.monotonic() - began, 2),
    }
    with atomic_write(out / "tasks" / f"{key}.json", overwrite=True) as file:
        file.write(json.dumps(entry, allow_nan=False).encode())
    return ""


@lru_cache(maxsize=2)
def _cached_bench(text: str, name: str, out: Path) -> Any:
    from ficgan.evaluation.bench import Bench
    from ficgan.evaluation.metrics.geometry import quick
    from ficgan.evaluation.readers import get_readers

    config = MatrixConfig.model_validate_json(text)
    one = next(one for one in config.sets if one.name == name)
    prepared, split = _set(one, config.detector, out)
    return Bench(
        prepared,
        split,
        get_readers(tuple(config.recognisers)),
        quick(_detector(config.detector)),
        Store(out / "store"),
        seed=config.seed,
        resamples=config.resamples,
        general=config.general,
        specialised=config.specialised,
        retrain=config.retrain,
        columns=config.groups,
    )


def _bench(config: MatrixConfig, one: SetConfig, out: Path) -> Any:
    return _cached_bench(config.model_dump_json(), one.name, out)


@lru_cache(maxsize=1)
def _detector(name: str) -> Any:
    from ficgan.faces import get_detector

    return get_detector(name)


def _set(one: SetConfig, detector: str, out: Path) -> tuple[Any, Any]:
    """A set made ready and its split, from the store where they are there."""
    from ficgan.evaluation.sets import Quick, check, open_set, prepare, split

    faces = open_set(
        one.path, layout=one.layout, labels=one.labels, name=one.name, identity=one.identity,
        limit_people=one.limit_people, images_per_person=one.images_per_person,
    )  # fmt: skip
    finder = None if one.aligned else Quick(_detector(detector))
    prepared = prepare(
        faces, size=one.size, context=one.context, detector=finder, cache=out / "store", aligned=one.aligned
    )
    sizes, people, names = one.split, prepared.faces.people, prepared.faces.names
    assert people is not None
    parts = split(
        people, background=sizes.background, attacker=sizes.attacker, test=sizes.test,
        enrolment=sizes.enrolment, seed=sizes.seed, names=names,
    )  # fmt: skip
    return prepared, check(parts, people, names=names, digests=prepared.digests(), duplicates="remove")


def _describe(config: MatrixConfig, one: SetConfig, out: Path) -> dict[str, Any]:
    prepared, parts = _set(one, config.detector, out)
    facts = prepared.facts()
    return {
        **facts,
        "digest": digest([facts["pixels"], parts.digest, _labels_digest(prepared)]),
        "licence": one.licence or facts["licence"],
        "size": one.size,
        "context": one.context,
        "split": parts.manifest,
    }


def _labels_digest(prepared: Any) -> str:
    told = {name: values.tolist() for name, values in prepared.attributes.items()}
    return digest([told, {name: list(values) for name, values in prepared.groups.items()}])


def _utility(
    config: MatrixConfig, bench: Any, anonymizer: Any, label: str, out: Path, key: str
) -> tuple[Any, list[str]]:
    """Utility figures on the probes, and pictures of the first few."""
    from ficgan.evaluation.usefulness import pictures, usefulness

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
    own = None
    if method is not None:
        own = method.model_dump(mode="json")
        named += [value for value in method.parameters.values() if isinstance(value, str)]
        if method.parameters.get("command"):  # a program of somebody else's may have changed: its task is never kept
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
        if not Path(one.path).exists():
            raise InputError(f"the set {one.name} is not at {one.path}; name a folder, zip or tar")


def _check(config: MatrixConfig) -> None:
    """What can be known before any image is read: judges and classifier can be opened, and no judge helped a method."""
    from ficgan import pretrained
    from ficgan.deidentify import refuse_trainer
    from ficgan.evaluation.attributes import AttributeClassifier
    from ficgan.evaluation.readers import get_readers
    from ficgan.models import load_checkpoint

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
        if method.method != "ficgan":
            continue
        file = method.parameters.get("checkpoint") or pretrained.path("model")
        for name in config.recognisers:
            refuse_trainer(load_checkpoint(file)[1], name)


def _collect(
    config: MatrixConfig, out: Path, sets: dict[str, dict[str, Any]], keys: list[str], seconds: float
) -> Results:
    from ficgan import __version__
    from ficgan.evaluation.caveats import caveats

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


def _learnt_from(config: MatrixConfig) -> dict[str, Any] | None:
    """On what the attribute classifier was trained."""
    from ficgan.evaluation.attributes import AttributeClassifier

    if config.attributes is None:
        return None
    source: dict[str, Any] = AttributeClassifier.load(Path(config.attributes)).training.get("source", {})
    return source


def _shareable(config: MatrixConfig) -> dict[str, Any]:
    """The configuration without folders of this machine."""
    tree: dict[str, Any] = config.model_dump(mode="json")
    for one in tree["sets"]:
        one["path"] = Path(one["path"]).name
        one["labels"] = None if one["labels"] is None else Path(one["labels"]).name
    for shown, method in zip(tree["methods"], config.methods, strict=True):
        shown["parameters"] = method.shown
    tree["recognisers"] = [f"onnx:{Path(n[5:]).name}" if n.startswith("onnx:") else n for n in tree["recognisers"]]
    tree["attributes"] = None if tree["attributes"] is None else Path(tree["attributes"]).name
    return tree
