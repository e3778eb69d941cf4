"""A matrix: every method on every set under every scenario, read by every judge; finished tasks are kept."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ficgan import __version__, pretrained
from ficgan.anonymizers import ANONYMIZERS, Anonymizer, Faces
from ficgan.deidentify import refuse_trainer
from ficgan.errors import InputError, UsageError
from ficgan.files import ModelInfo, file_digest
from ficgan.lab import readers
from ficgan.lab.attackers import Attempt, attacked, shareable, titles, training_of, with_trainings
from ficgan.lab.attributes import AttributeClassifier, binary_labels, infer
from ficgan.lab.bench import (
    Bench,
    NotApplicable,
    Refused,
    Rows,
    Subject,
    anonymiser_for,
    describe,
    known,
    open_bench,
    pixels_of,
)
from ficgan.lab.matrix_config import MatrixConfig, MethodConfig, Scenario, SetConfig, get_scenarios, without_folder
from ficgan.lab.metrics import wilson_share
from ficgan.lab.metrics.privacy import (
    FAILURES,
    chance,
    failures_to_acquire,
    privacy_curves,
    privacy_figures,
    rank,
    reversibility,
    within_kind,
)
from ficgan.lab.metrics.scores import Scores
from ficgan.lab.metrics.utility import Judges, Readings, compare
from ficgan.lab.pages import png, write_file
from ficgan.lab.probe import run_identity_probe
from ficgan.lab.readers import Embeddings, Reader, retrain_head, retrain_network, similarities
from ficgan.lab.results import Figure, Results, Trial, Utility, caveats, from_json, origin
from ficgan.lab.reversal import fidelity_figures, identity_distance, run_retrieval
from ficgan.lab.run import Progress, Run, Say, Task, digest, files_digest
from ficgan.registry import parse_spec

LEAST_GROUP = 10  # People a group needs for figures of its own
GROUP_RESAMPLES = 200  # Of the figures of groups and of attribute inference, at most
_OF_CLEAR = ("ceiling", "negative", "surroundings")
"""Controls that are run on the clear images alone; all other scenarios are run on the anonymised ones alone."""
_OF_BOTH = ("linkability", "attribute-inference")  # But for those that say something only beside the clear images' own


def run_trials(
    bench: Bench,
    anonymizer: Anonymizer | None,
    label: str,
    scenarios: Sequence[Scenario],
    *,
    progress: Callable[[str], object] | None = None,
) -> list[Trial]:
    """Trials of one anonymiser (None: clear), by scenario, attacker and judge, or why a scenario cannot run."""
    subject, report = Subject(bench, anonymizer), progress or (lambda text: None)
    trials: list[Trial] = []
    for scenario in scenarios:
        if scenario.name not in _OF_BOTH and (anonymizer is None) != (scenario.control in _OF_CLEAR):
            continue
        report(scenario.name)
        subject.say = partial(_prefixed, report, scenario.name)
        try:
            trials += _RUNS.get(scenario.attacker, _recognition)(bench, subject, label, scenario)
        except NotApplicable:
            continue
        except (Refused, UsageError, InputError) as error:
            refused = Figure("rank-1", None, note=str(error))
            trials.append(Trial(bench.name, label, scenario.name, "", figures=(refused,)))
    return trials


def _prefixed(report: Callable[[str], object], name: str, text: str) -> None:
    report(f"{name}: {text}")


def _recognition(bench: Bench, subject: Subject, label: str, scenario: Scenario) -> list[Trial]:
    gallery_rows, probe_rows = bench.split.gallery, bench.split.probe
    if scenario.same_set:
        gallery_rows = probe_rows = np.sort(np.concatenate([gallery_rows, probe_rows]))
    gallery = subject.view(scenario.gallery, gallery_rows)
    trials = []
    for attempt in attacked(bench, subject, scenario, probe_rows):
        found = bench.found(attempt.faces)
        # What is read shall resemble the clear faces; the anonymised ones are what it is compared with.
        restores = scenario.probe == "reversed" or scenario.name == "naive"
        likeness = fidelity_figures(bench, attempt.rows, attempt.faces) if restores else ()
        trials += [
            _read(bench, subject, label, scenario, attempt, reader, gallery_rows, gallery, found, likeness)
            for reader in bench.readers
        ]
    return trials


def _read(
    bench: Bench,
    subject: Subject,
    label: str,
    scenario: Scenario,
    attempt: Attempt,
    reader: Reader,
    gallery_rows: Rows,
    gallery: Faces,
    found: NDArray[np.bool_],
    likeness: tuple[Figure, ...],
) -> Trial:
    embed, note = _embedder(bench, subject, scenario, reader)
    probe, people, enrolled = embed(attempt.faces), known(attempt.faces), known(gallery)
    codes = probe if scenario.same_set else embed(gallery)
    fusion = scenario.attacker == "fusion"
    if fusion:
        probe, people, found = _fused(probe, people, found)
    metric: Any = "cosine" if scenario.retrained else reader.metric
    threshold = None if scenario.retrained else reader.threshold
    scores = Scores.compare(probe, codes, people, enrolled, metric=metric, exclude_same=scenario.same_set)
    figures = _figures(bench, scores, threshold, bench.resamples)
    if not scenario.same_set:
        figures += _without_face(bench, probe, codes, people, enrolled, metric, found)
    figures += (Figure("chance", chance(scores), n=scores.enrolled),)
    if scenario.probe == "reversed":
        figures += _reversal(bench, subject, attempt, scores, reader)
    if likeness:
        clear = embed(subject.clear(attempt.rows))
        figures += (*likeness, identity_distance(probe, clear, bench.sample(attempt.rows)))
    if not scenario.retrained and (unread := reader.unread(probe)):
        note = f"{note} {unread} of {len(probe)} probes could not be read and are like nobody.".strip()
    if note:
        figures = (replace(figures[0], note=f"{figures[0].note} {note}".strip()), *figures[1:])
    if (kinds := bench.prepared.kinds) is not None and scenario.gallery == "clear" and not scenario.attacker:
        alike, ours, theirs = similarities(probe, codes, metric), kinds[attempt.rows], kinds[gallery_rows]
        figures = (within_kind(alike, people, ours, enrolled, theirs, bootstrap=bench.bootstrap), *figures)
    if scenario.name == "naive":
        subject.naive[reader.name] = scores
    groups = {} if fusion else _score_groups(bench, scores, attempt.rows, threshold)
    return Trial(
        bench.name,
        label,
        scenario.name,
        reader.name,
        attempt.attacker,
        figures,
        _curves(scores),
        groups,
        scenario.control,
    )


def _figures(bench: Bench, scores: Scores, threshold: float | None, resamples: int) -> tuple[Figure, ...]:
    figures = privacy_figures(scores, threshold=threshold, seed=bench.seed, resamples=resamples)
    return tuple(one for one in figures if not one.metric.endswith(FAILURES) and one.metric != "failures to acquire")


def _curves(scores: Scores) -> dict[str, list[list[float]]]:
    return {
        name: [[float(f"{number:.5g}") for number in point] for point in points]
        for name, points in privacy_curves(scores).items()
    }


def _without_face(
    bench: Bench,
    probe: Embeddings,
    gallery: Embeddings,
    people: Rows,
    enrolled: Rows,
    metric: Any,
    found: NDArray[np.bool_],
) -> tuple[Figure, ...]:
    bootstrap = bench.bootstrap
    if not found.any():
        nothing = Figure(f"rank-1{FAILURES}", 0.0, n=len(np.unique(people)), note="no face is found in any probe")
        return (nothing, Figure("failures to acquire", 1.0, n=len(people), unit="images"))
    scores = Scores.compare(probe, gallery, people, enrolled, metric=metric, acquired=found)
    return rank(scores, 1, failures=True, bootstrap=bootstrap), failures_to_acquire(scores, bootstrap=bootstrap)


def _embedder(
    bench: Bench, subject: Subject, scenario: Scenario, reader: Reader
) -> tuple[Callable[[Faces], Embeddings], str]:
    if not scenario.retrained:
        return lambda faces: bench.embed(reader, faces), ""
    if not len(bench.split.attacker):
        raise Refused("the split leaves no faces to retrain on; set split.attacker")
    taught = subject.anonymised(bench.split.attacker)
    if bench.retrain == "network":
        return retrain_network(reader, taught)
    change, note = retrain_head(bench.embed(reader, taught), known(taught))
    return lambda faces: change(bench.embed(reader, faces)), note


def _fused(
    embeddings: Embeddings, people: Rows, found: NDArray[np.bool_]
) -> tuple[Embeddings, Rows, NDArray[np.bool_]]:
    unit = embeddings / np.linalg.norm(embeddings, axis=1, keepdims=True).clip(1e-12)
    values, index = np.unique(people, return_inverse=True)
    total = np.zeros((len(values), unit.shape[1]), np.float64)
    np.add.at(total, index, unit)
    count = np.bincount(index)[:, None]
    scale = np.linalg.norm(embeddings, axis=1).mean()
    return (total / count * scale).astype(np.float32), values, np.bincount(index, found) > 0


def _reversal(bench: Bench, subject: Subject, attempt: Attempt, scores: Scores, reader: Reader) -> tuple[Figure, ...]:
    naive = subject.naive.get(reader.name)
    if naive is None:
        return ()
    ceiling, read = bench.ceiling(reader), np.isin(bench.split.probe, attempt.rows)
    if not read.all():
        ceiling, naive = ceiling.take(read), naive.take(read)
    return (reversibility(ceiling, naive, scores, bootstrap=bench.bootstrap),)


def _members(bench: Bench, rows: Rows) -> Iterator[tuple[str, NDArray[np.bool_], int]]:
    """Each group of people among rows of the set: its name, where it is [N], and how many people it has."""
    for column in bench.columns:
        values = np.array(bench.prepared.groups.get(column, ()), dtype=object)
        labels = values[rows] if len(values) else values
        for value in sorted({label for label in labels if label}):
            mask = labels == value
            yield f"{column}={value}", mask, len(np.unique(bench.people[rows[mask]]))


def _score_groups(bench: Bench, scores: Scores, rows: Rows, threshold: float | None) -> dict[str, tuple[Figure, ...]]:
    out: dict[str, tuple[Figure, ...]] = {}
    for name, mask, people in _members(bench, rows):
        if people < LEAST_GROUP:
            note = f"{people} people are too few for a figure of their own"
            out[name] = (Figure("rank-1", None, n=people, note=note),)
        else:
            out[name] = _figures(bench, scores.take(mask), threshold, min(bench.resamples, GROUP_RESAMPLES))
    return out


def _inference(bench: Bench, subject: Subject, label: str, scenario: Scenario) -> list[Trial]:
    labels = binary_labels(bench.prepared.attributes, bench.prepared.groups)
    if not labels:
        raise NotApplicable("nothing is known of the people but who they are")
    if not len(bench.split.attacker):
        raise Refused("the split leaves no faces to learn from; set split.attacker")
    trials = []
    train, probe = bench.split.attacker, bench.split.probe
    for reader in bench.readers:
        x = bench.embed(reader, subject.anonymised(train))
        y = bench.embed(reader, subject.anonymised(probe))
        figures = infer(
            x,
            {name: values[train] for name, values in labels.items()},
            y,
            {name: values[probe] for name, values in labels.items()},
            bench.people[train],
            bench.people[probe],
            resamples=min(bench.resamples, GROUP_RESAMPLES),
            seed=bench.seed,
        )
        if figures:
            trials.append(Trial(bench.name, label, scenario.name, reader.name, figures=figures))
    return trials


_RUNS: Mapping[str, Callable[[Bench, Subject, str, Scenario], list[Trial]]] = {
    "inference": _inference,
    "retrieval": run_retrieval,
    "closed retrieval": run_retrieval,
    "identity probe": run_identity_probe,
}
"""Kinds of attackers whose trials are not recognition."""


CLEAR = "clear"


@dataclass(frozen=True)
class Work:
    """One method (None: clear) on one set; `mark` is of all that the result depends on."""

    config: MatrixConfig
    set: SetConfig
    method: MethodConfig | None
    out: Path
    mark: str

    @property
    def label(self) -> str:
        return CLEAR if self.method is None else self.method.title

    @property
    def title(self) -> str:
        return f"{self.label} on {self.set.name}"

    @property
    def task(self) -> Task:
        """What an external program gives is not kept: it may have changed."""
        attackers = [parse_spec(text)[1] for text in (*self.config.general, *self.config.specialised)]
        given = [] if self.method is None else [self.method.parameters, *attackers]
        program = any(one.get("command") for one in given)
        return Task(self.title, None if program else self.mark, Work.run, (self,))

    def run(self, say: Say) -> dict[str, Any]:
        began, config = time.monotonic(), self.config
        bench = open_bench(config, self.set, self.out)
        bench.trainings.clear()
        anonymizer = None if self.method is None else anonymiser_for(bench, self.method.make())
        trials = run_trials(
            bench,
            anonymizer,
            self.label,
            get_scenarios(config.scenarios),
            progress=lambda text: say(f"{self.title}: {text}"),
        )
        trainings = {f"{self.title}, {trial.scenario}: {trial.attacker}": training_of(bench, trial) for trial in trials}
        utilities = [asdict(_utility(config, bench, anonymizer, self.label))] if config.utility else []
        return {
            "trials": [asdict(trial) for trial in with_trainings(bench, trials)],
            "utilities": utilities,
            "method": None if anonymizer is None else _described(anonymizer),
            "pictures": _pictures(bench, anonymizer, self.mark, self.out, config.pictures) if config.pictures else [],
            "trainings": {attacker: note for attacker, note in trainings.items() if note},
            "seconds": round(time.monotonic() - began, 2),
        }


def _mark(config: MatrixConfig, one: SetConfig, method: MethodConfig | None, set_digest: str) -> str:
    shared = config.model_dump(mode="json", exclude={"title", "sets", "methods"})
    named = [*config.recognisers, config.attributes or ""]
    if method is not None:
        attackers = [parse_spec(text)[1] for text in (*config.general, *config.specialised)]
        named += [
            value for given in (method.parameters, *attackers) for value in given.values() if isinstance(value, str)
        ]
    own = None if method is None else method.model_dump(mode="json")
    return digest([__version__, shared, one.name, one.context, set_digest, own, [files_digest(text) for text in named]])


def run_matrix(config: MatrixConfig, out: Path, *, jobs: int = 1, progress: Progress | None = None) -> Results:
    """Run or resume an evaluation; the results are also written to `out/results.json`."""
    started, config = time.monotonic(), with_judges(config)
    out.mkdir(parents=True, exist_ok=True)
    _check(config)
    run = Run(out, jobs, progress, total=len(config.sets) * (len(config.methods) + 1))
    works: list[Work] = []
    sets: dict[str, dict[str, Any]] = {}
    for one in config.sets:
        run.say(f"preparing {one.name}")
        sets[one.name] = facts = describe(config, one, out, run.say)
        works += [Work(config, one, m, out, _mark(config, one, m, facts["digest"])) for m in (None, *config.methods)]
    entries: dict[str, dict[str, Any]] = {}
    # The clear images come first: everybody compares with them, and their embeddings are then in the store.
    for clear in (True, False):
        some = [work for work in works if (work.method is None) == clear]
        entries |= zip([work.title for work in some], run.results([work.task for work in some]), strict=True)
    run.check()
    results = _collect(config, sets, [(work, entries[work.title]) for work in works], time.monotonic() - started)
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


def with_judges(config: MatrixConfig) -> MatrixConfig:
    """`installed` among the judges becomes the first such recogniser that no method has to do with, or is left out."""
    names = config.recognisers
    if readers.INSTALLED not in names:
        return config
    involved = {digest for method in config.methods for digest in (*_helpers(method), _trainer(method))}
    given = {Path(name.partition(":")[2]).stem for name in names}
    usable = (path for path in readers.installed_judges() if path.stem not in given)
    found = next((f"onnx:{path}" for path in usable if file_digest(path) not in involved), None)
    judges = [found if name == readers.INSTALLED else name for name in names]
    if not any(judges):
        raise UsageError("there is no recogniser in the model folders ($FICGAN_MODELS); name one with --judge")
    return config.model_copy(update={"recognisers": [name for name in judges if name]})


def _helpers(method: MethodConfig) -> set[str]:
    """Digests of the files that a method's parameters name, such as the recogniser that a cloak works against."""
    texts = [value for value in method.parameters.values() if isinstance(value, str)]
    return {digest for text in texts for digest in files_digest(text)}


def _model(method: MethodConfig) -> ModelInfo | None:
    if "model" not in ANONYMIZERS[method.method].traits.needs:
        return None
    return ModelInfo.of(method.parameters.get("checkpoint") or pretrained.path("model"))


def _trainer(method: MethodConfig) -> str:
    """Digest of the network that a method's model was trained against."""
    model = _model(method)
    return "" if model is None else str(model.training.get("verifier_sha256") or "")


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


def _described(anonymizer: Anonymizer) -> dict[str, Any]:
    traits = asdict(anonymizer.traits)
    traits["needs"] = sorted(traits["needs"])
    settings = {key: without_folder(value) for key, value in anonymizer.settings().items()}
    if settings.get("command"):
        settings["command"] = settings["command"].split()[0]
    return {"name": anonymizer.name, **traits, "settings": settings}


def _collect(
    config: MatrixConfig, sets: dict[str, dict[str, Any]], found: Sequence[tuple[Work, dict[str, Any]]], seconds: float
) -> Results:
    entries = [entry for _, entry in found]
    pictures: dict[str, list[str]] = {}
    for work, entry in found:
        if entry["pictures"]:
            pictures.setdefault(work.label, []).extend(entry["pictures"])
    results = Results(
        config.title,
        provenance=origin(_shareable(config), seconds)
        | {
            "attackers": {title: shareable(text) for text, title in titles(config.named_attackers).items()},
            "trainings": {name: note for entry in entries for name, note in entry.get("trainings", {}).items()},
            "attribute_classifier": None
            if config.attributes is None
            else AttributeClassifier.load(Path(config.attributes)).training.get("source", {}),
            "task_seconds": round(sum(entry["seconds"] for entry in entries), 1),
        },
        sets=sets,
        methods={work.label: entry["method"] for work, entry in found if entry["method"]},
        trials=[Trial(**from_json(trial)) for entry in entries for trial in entry["trials"]],
        utilities=[Utility(**from_json(one)) for entry in entries for one in entry["utilities"]],
        pictures=pictures,
    )
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
    for name, mask, people in _members(bench, rows):
        if people < LEAST_GROUP:
            continue
        figures = []
        if seen.detections is not None:
            figures.append(wilson_share("detected", seen.detections.found[mask]))
        if seen.males is not None and clear.males is not None:
            figures.append(wilson_share("gender-kept", ((seen.males >= 0.5) == (clear.males >= 0.5))[mask]))
        if seen.attributes is not None and clear.attributes is not None:
            same = ((seen.attributes >= 0.5) == (clear.attributes >= 0.5))[mask]
            figures.append(Figure("attributes", float(same.mean()), n=int(mask.sum()), unit="images"))
        yield name, tuple(figures)


def _pictures(bench: Bench, anonymizer: Anonymizer | None, key: str, out: Path, count: int) -> list[str]:
    rows = bench.split.probe
    _, first = np.unique(bench.people[rows], return_index=True)
    rows = rows[first[:count]]
    faces = bench.prepared.faces.take(rows) if anonymizer is None else pixels_of(bench, anonymizer, rows)
    names = [f"pictures/{key[:12]}-{number:02d}.png" for number in range(len(rows))]
    for name, image in zip(names, faces.images, strict=True):
        write_file(out / name, png(image))
    return names
