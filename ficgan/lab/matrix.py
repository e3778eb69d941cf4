"""A matrix: every method on every set under every scenario, read by every judge; each method on each set is a task."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from ficgan import __version__, pretrained
from ficgan.anonymizers import ANONYMIZERS
from ficgan.deidentify import refuse_trainer
from ficgan.errors import InputError, UsageError
from ficgan.files import ModelInfo
from ficgan.lab import readers
from ficgan.lab.attackers import shareable, titles
from ficgan.lab.attributes import AttributeClassifier
from ficgan.lab.bench import anonymiser_for, describe, described, open_bench
from ficgan.lab.matrix_config import MatrixConfig, MethodConfig, SetConfig, get_scenarios
from ficgan.lab.results import Results, Trial, Utility, caveats, origin
from ficgan.lab.run import Progress, Run, Say, Task, digest, files_digest
from ficgan.lab.trials import measure_utility, run_trials, write_examples
from ficgan.registry import parse_spec

CLEAR = "clear"


@dataclass(frozen=True)
class MethodOnSet:
    """One method (None: clear) on one set; `mark` is the digest of all that the result depends on."""

    config: MatrixConfig
    set: SetConfig
    method: MethodConfig | None
    out: Path
    mark: str

    @classmethod
    def of(cls, config: MatrixConfig, one: SetConfig, method: MethodConfig | None, data: str, out: Path) -> MethodOnSet:
        """`data` is the digest of the set."""
        shared = config.model_dump(mode="json", exclude={"title", "sets", "methods"})
        values = [value for given in _parameters(config, method) for value in given.values() if isinstance(value, str)]
        files = [files_digest(text) for text in (*config.recognisers, config.attributes or "", *values)]
        own = None if method is None else method.model_dump(mode="json")
        return cls(config, one, method, out, digest([__version__, shared, one.name, one.context, data, own, files]))

    @property
    def label(self) -> str:
        return CLEAR if self.method is None else self.method.title

    @property
    def task(self) -> Task:
        """What an external program gives is not kept: it may have changed."""
        program = any(given.get("command") for given in _parameters(self.config, self.method))
        key = None if program else ["matrix", self.mark]
        return Task(f"{self.label} on {self.set.name}", key, MethodOnSet.measure, (self,))

    def measure(self, say: Say) -> dict[str, Any]:
        began, config, title = time.monotonic(), self.config, self.task.title
        bench = open_bench(config, self.set, self.out)
        anonymizer = None if self.method is None else anonymiser_for(bench, self.method.make())
        scenarios = get_scenarios(config.scenarios)
        trials = run_trials(bench, anonymizer, self.label, scenarios, say=lambda text: say(f"{title}: {text}"))
        utilities = [asdict(measure_utility(config, bench, anonymizer, self.label))] if config.utility else []
        count = config.pictures
        return {
            "trials": [asdict(trial) for trial in trials],
            "utilities": utilities,
            "method": None if anonymizer is None else described(anonymizer),
            "pictures": write_examples(bench, anonymizer, self.mark, self.out, count) if count else [],
            "seconds": round(time.monotonic() - began, 2),
        }


def _parameters(config: MatrixConfig, method: MethodConfig | None) -> list[dict[str, Any]]:
    """Parameters of the method and of the attackers that may be tried on it."""
    if method is None:
        return []
    return [method.parameters, *(parse_spec(text)[1] for text in config.named_attackers)]


def run_matrix(config: MatrixConfig, out: Path, *, jobs: int = 1, progress: Progress | None = None) -> Results:
    """Run or resume an evaluation; the results are also written to `out/results.json`."""
    started = time.monotonic()
    out.mkdir(parents=True, exist_ok=True)
    _check(config)
    run = Run(out, jobs, progress, total=len(config.sets) * (len(config.methods) + 1))
    sets: dict[str, dict[str, Any]] = {}
    for one in config.sets:
        run.say(f"preparing {one.name}")
        sets[one.name] = describe(config, one, out, run.say)
    # The clear images come first: everybody compares with them, and their embeddings are then in the store.
    found: list[tuple[MethodOnSet, dict[str, Any]]] = []
    for methods in ([None], config.methods):
        works = [
            MethodOnSet.of(config, one, method, sets[one.name]["digest"], out)
            for one in config.sets
            for method in methods
        ]
        found += zip(works, run.results([work.task for work in works]), strict=True)
    run.check()
    results = _collect(config, sets, found, time.monotonic() - started)
    results.write(out / "results.json")
    return results


def _collect(
    config: MatrixConfig, sets: dict[str, Any], found: Sequence[tuple[MethodOnSet, dict[str, Any]]], seconds: float
) -> Results:
    order = list(sets)
    found = sorted(found, key=lambda pair: order.index(pair[0].set.name))
    entries = [entry for _, entry in found]
    pictures: dict[str, list[str]] = {}
    for work, entry in found:
        if entry["pictures"]:
            pictures.setdefault(work.label, []).extend(entry["pictures"])
    classifier = config.attributes
    results = Results(
        config.title,
        provenance=origin(_shown(config), seconds)
        | {
            "attackers": {title: shareable(text) for text, title in titles(config.named_attackers).items()},
            "attribute_classifier": classifier
            and AttributeClassifier.load(Path(classifier)).training.get("source", {}),
            "task_seconds": round(sum(entry["seconds"] for entry in entries), 1),
        },
        sets=sets,
        methods={work.label: entry["method"] for work, entry in found if entry["method"]},
        trials=[trial for entry in entries for trial in TypeAdapter(list[Trial]).validate_python(entry["trials"])],
        utilities=[use for entry in entries for use in TypeAdapter(list[Utility]).validate_python(entry["utilities"])],
        pictures=pictures,
    )
    results.caveats = caveats(results)
    return results


def _shown(config: MatrixConfig) -> dict[str, Any]:
    """The settings without secrets."""
    tree: dict[str, Any] = config.model_dump(mode="json")
    for key in ("general", "specialised"):
        tree[key] = [shareable(text) for text in tree[key]]
    for shown, method in zip(tree["methods"], config.methods, strict=True):
        shown["parameters"] = method.shown
    return tree


# -- checks -----------------------------------------------------------------------------------------------------------


def check_paths(config: MatrixConfig) -> None:
    """Check that the files the matrix names are there."""
    if config.attributes is not None and not Path(config.attributes).is_file():
        raise UsageError(f"there is no attribute classifier {config.attributes}; see ficgan train-attributes")
    for one in config.sets:
        for each in filter(None, (one, one.learn_from)):
            if not Path(each.path).exists():
                raise InputError(f"the set {each.name} is not at {each.path}; name a folder, zip or tar")


def _helpers(method: MethodConfig) -> set[str]:
    """Digests of the files that a method's parameters name, such as the recogniser that a cloak works against."""
    texts = [value for value in method.parameters.values() if isinstance(value, str)]
    return {digest for text in texts for digest in files_digest(text)}


def _model(method: MethodConfig) -> ModelInfo | None:
    if "model" not in ANONYMIZERS[method.method].traits.needs:
        return None
    return ModelInfo.of(method.parameters.get("checkpoint") or pretrained.path("model"))


def _check(config: MatrixConfig) -> None:
    check_paths(config)
    judges = readers.get_readers(tuple(config.recognisers))
    if config.attributes is not None:
        AttributeClassifier.load(Path(config.attributes))
    for method in config.methods:
        helpers = _helpers(method)
        for reader in judges:
            if reader.digest in helpers:
                raise UsageError(f"{reader.name} is what {method.title} works against; take another judge")
        for name in config.recognisers:
            refuse_trainer(_model(method), name)
