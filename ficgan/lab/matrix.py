"""A matrix: every method on every set under every scenario, read by every judge; each method on each set is a task."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter

from ficgan import __version__, pretrained
from ficgan.anonymizers import ANONYMIZERS, Faces
from ficgan.arrays import ModelInfo
from ficgan.deidentify import refuse_trainer
from ficgan.errors import InputError, Progress, UsageError
from ficgan.lab import readers
from ficgan.lab.attackers import attacked, run_identity_probe, shareable, titles
from ficgan.lab.attributes import Answered, AttributeClassifier, binary_labels, infer, label_matrix
from ficgan.lab.bench import Bench, NotApplicable, Subject, about, content, describe, known, open_bench, prepared_set
from ficgan.lab.matrix_config import MatrixConfig, MethodConfig, Scenario, SetConfig, get_scenarios
from ficgan.lab.metrics import Bootstrap, pictures, privacy
from ficgan.lab.metrics.privacy import Scores
from ficgan.lab.metrics.utility import compare, frechet_figure, psnr_figure
from ficgan.lab.readers import RETRAINED, Embeddings, Reader, retrain_head, unit
from ficgan.lab.results import Figure, Results, Trial, Utility, caveats, origin
from ficgan.lab.run import Run, Say, Task, files_digest
from ficgan.lab.sets import Rows
from ficgan.registry import parse_spec

CLEAR = "clear"


def run_matrix(config: MatrixConfig, out: Path, *, jobs: int = 1, progress: Progress | None = None) -> Results:
    """Run or resume an evaluation; the results are also written to `out/results.json`."""
    started = time.monotonic()
    out.mkdir(parents=True, exist_ok=True)
    _check(config)
    classifier = config.attributes and AttributeClassifier.load(Path(config.attributes)).training.get("source", {})
    run = Run(out, jobs, progress, total=len(config.sets) * (len(config.methods) + 1))
    sets: dict[str, dict[str, Any]] = {}
    for source in config.sets:
        run.say(f"preparing {source.name}")
        prepared_set(source, config.detector, out / "store", run.say)  # says how far it is, and keeps the crops
        sets[source.name] = describe(open_bench(config, source, out), source)
    # The clear images come first: everybody compares with them, and their embeddings are then in the store.
    entries: list[dict[str, Any]] = []
    for methods in ([None], config.methods):
        some = [_task(config, source, method, sets, out) for source in config.sets for method in methods]
        entries += run.results(some)
    run.check()
    entries.sort(key=lambda entry: list(sets).index(entry["set"]))
    results = Results(
        config.title,
        provenance={
            **origin(_shown(config), time.monotonic() - started),
            "attackers": {title: shareable(text) for text, title in titles(config.named_attackers).items()},
            "attribute_classifier": classifier,
            "task_seconds": round(sum(entry["seconds"] for entry in entries), 1),
        },
        sets=sets,
        methods={entry["label"]: entry["method"] for entry in entries if entry["method"]},
        trials=[trial for entry in entries for trial in TypeAdapter(list[Trial]).validate_python(entry["trials"])],
        utilities=[use for entry in entries for use in TypeAdapter(list[Utility]).validate_python(entry["utilities"])],
    )
    results.caveats = caveats(results)
    results.write(out / "results.json")
    return results


def _task(
    config: MatrixConfig, source: SetConfig, method: MethodConfig | None, sets: Mapping[str, Any], out: Path
) -> Task:
    """One method (None: clear) on one set; `sets` has the digest of the set."""
    title = f"{CLEAR if method is None else method.title} on {source.name}"
    attackers = [parse_spec(text)[1] for text in config.named_attackers]
    given = [] if method is None else [method.parameters, *attackers]
    values = [value for parameters in given for value in parameters.values() if isinstance(value, str)]
    files = [files_digest(text) for text in (*config.recognisers, config.attributes or "", *values)]
    shared = config.model_dump(mode="json", exclude={"title", "sets", "methods"})
    own = None if method is None else method.model_dump(mode="json")
    key = [__version__, shared, source.name, source.context, sets[source.name]["digest"], own, files]
    # What an external program gives is not kept: it may have changed.
    program = any(parameters.get("command") for parameters in given)
    return Task(title, None if program else ["matrix", key], _measure, (config, source, method, out, title))


def _measure(
    config: MatrixConfig, source: SetConfig, method: MethodConfig | None, out: Path, title: str, say: Say
) -> dict[str, Any]:
    began, label = time.monotonic(), CLEAR if method is None else method.title
    subject = Subject(open_bench(config, source, out), None if method is None else method.make(), label)
    trials = run_trials(subject, get_scenarios(config.scenarios), lambda text: say(f"{title}: {text}"))
    return {
        "set": source.name,
        "label": label,
        "trials": [asdict(trial) for trial in trials],
        "utilities": [asdict(_utility(subject))] if config.utility else [],
        "method": None if subject.anonymizer is None else about(subject.anonymizer),
        "seconds": round(time.monotonic() - began, 2),
    }


def _utility(subject: Subject) -> Utility:
    bench, rows = subject.bench, subject.bench.split.probe
    seen = bench.judges.read(subject.anonymised(rows), against=bench.readings)
    labels = label_matrix(bench.readings.attribute_names, bench.prepared.attributes)
    labels = None if labels is None else labels[rows]
    figures = compare(bench.readings, seen, region=bench.prepared.region, labels=labels, bootstrap=bench.bootstrap)
    return Utility(bench.name, subject.label, figures)


def _shown(config: MatrixConfig) -> dict[str, Any]:
    """The settings without secrets."""
    tree: dict[str, Any] = config.model_dump(mode="json")
    for key in ("general", "specialised"):
        tree[key] = [shareable(text) for text in tree[key]]
    for shown, method in zip(tree["methods"], config.methods, strict=True):
        shown["parameters"] = method.shown
    return tree


def check_paths(config: MatrixConfig) -> None:
    """Check that the files the matrix names are there."""
    if config.attributes is not None and not Path(config.attributes).is_file():
        raise UsageError(f"there is no attribute classifier {config.attributes}; see ficgan train-attributes")
    for source in config.sets:
        for each in filter(None, (source, source.learn_from)):
            if not Path(each.path).exists():
                raise InputError(f"the set {each.name} is not at {each.path}; name a folder, zip or tar")


def _check(config: MatrixConfig) -> None:
    check_paths(config)
    judges = readers.get_readers(tuple(config.recognisers))
    for method in config.methods:
        texts = [value for value in method.parameters.values() if isinstance(value, str)]
        named = [digest for text in texts for digest in files_digest(text)]
        for reader in judges:
            if reader.digest in named:  # such as the recogniser that a cloak works against
                raise UsageError(f"{reader.name} is what {method.title} works against; take another judge")
        if "model" in ANONYMIZERS[method.method].traits.needs:
            model = ModelInfo.of(method.parameters.get("checkpoint") or pretrained.path("model"))
            for name in config.recognisers:
                refuse_trainer(model, name)


LEAST_GROUP = 10  # People a group needs for figures of its own
GROUP_RESAMPLES = 200  # Of the figures of groups and of attribute inference, at most
# Controls that are run on the clear images alone. All other scenarios are run on the anonymised ones alone, but for two
# that say something only beside the clear images' own figure.
_OF_CLEAR = ("ceiling", "negative", "surroundings")
_OF_BOTH = ("linkability", "attribute-inference")


def run_trials(subject: Subject, scenarios: Sequence[Scenario], say: Say) -> list[Trial]:
    """Trials of one anonymiser by scenario, attacker and judge, or why a scenario cannot run."""
    trials: list[Trial] = []
    for scenario in scenarios:
        if scenario.name not in _OF_BOTH and (subject.anonymizer is None) != (scenario.control in _OF_CLEAR):
            continue
        say(scenario.name)
        subject.say = lambda text, name=scenario.name: say(f"{name}: {text}")  # type: ignore[misc]
        try:
            trials += _KINDS.get(scenario.attacker, _recognition)(subject, scenario)
        except NotApplicable:
            continue
        except (UsageError, InputError) as error:
            trials.append(subject.trial(scenario, "", [Figure("rank-1", None, note=str(error))]))
    return trials


def _recognition(subject: Subject, scenario: Scenario) -> list[Trial]:
    bench = subject.bench
    gallery_rows, probe_rows = bench.split.gallery, bench.split.probe
    if scenario.same_set:
        gallery_rows = probe_rows = np.sort(np.concatenate([gallery_rows, probe_rows]))
    gallery = subject.view(scenario.gallery, gallery_rows)
    # What attackers give back shall resemble the clear faces; the anonymised ones are what it is compared with.
    restores = scenario.probe == "reversed" or scenario.name == "naive"
    trials = []
    for attacker, faces in attacked(subject, scenario, probe_rows).items():
        found = bench.found(faces)
        likeness = fidelity_figures(bench, probe_rows, faces) if restores else ()
        for reader in bench.readers:
            embed, note = _embedder(subject, scenario, reader)
            probe = embed(faces)
            metric, threshold = ("cosine", None) if scenario.retrained else (reader.metric, reader.threshold)
            how: dict[str, Any] = {"metric": metric, "exclude_same": scenario.same_set}
            enrolled = probe if scenario.same_set else embed(gallery)
            scores = Scores.compare(probe, enrolled, known(faces), known(gallery), **how)
            figures = list(privacy.privacy_figures(scores, threshold, bench.bootstrap))
            if not scenario.retrained and (unread := reader.unread(probe)):
                note = f"{unread} of {len(probe)} probes could not be read and are like nobody."
            if note:
                figures[0] = replace(figures[0], note=f"{figures[0].note} {note}".strip())
            if not scenario.same_set:
                figures += _without_face(scores, found, bench.bootstrap)
            figures.append(Figure("chance", privacy.chance(scores), n=scores.enrolled))
            if scenario.probe == "reversed" and (naive := subject.naive.get(reader.name)) is not None:
                three = bench.ceilings[reader.name], naive, scores
                figures.append(privacy.reversibility(*three, bootstrap=bench.bootstrap))
            if restores:
                clear, sample = embed(bench.clear(probe_rows)), bench.sample(probe_rows)
                figures += (*likeness, sample.mean("IDD", angles(probe, clear))) if likeness else ()
            kinds = bench.prepared.kinds
            if kinds is not None and scenario.gallery == "clear" and not scenario.attacker:
                order = np.argsort(known(gallery), kind="stable")  # that of the scores
                who = (known(faces), kinds[probe_rows], scores.gallery, kinds[gallery_rows][order])
                figures.insert(0, privacy.within_kind(scores.similarity, *who, bootstrap=bench.bootstrap))
            if scenario.name == "naive":
                subject.naive[reader.name] = scores
            groups = _score_groups(bench, scores, probe_rows, threshold)
            trials.append(
                subject.trial(scenario, reader.name, figures, attacker, groups=groups, control=scenario.control)
            )
    return trials


def _without_face(scores: Scores, found: NDArray[np.bool_], draw: Bootstrap) -> tuple[Figure, ...]:
    """rank-1 and the share of probes where a probe without a found face is a miss."""
    if not found.any():
        people = len(np.unique(scores.people))
        nothing = Figure(f"rank-1{privacy.FAILURES}", 0.0, n=people, note="no face is found in any probe")
        return (nothing, Figure("failures to acquire", 1.0, n=len(scores), unit="images"))
    seen = replace(scores, similarity=np.where(found[:, None], scores.similarity, np.nan), acquired=found)
    return privacy.rank(seen, 1, failures=True, bootstrap=draw), privacy.failures_to_acquire(seen, bootstrap=draw)


def _embedder(subject: Subject, scenario: Scenario, reader: Reader) -> tuple[Callable[[Faces], Embeddings], str]:
    bench = subject.bench
    if not scenario.retrained:
        return lambda faces: bench.embed(reader, faces), ""
    learnt = subject.anonymised(bench.learners)
    change = retrain_head(bench.embed(reader, learnt), known(learnt))
    return lambda faces: change(bench.embed(reader, faces)), RETRAINED


def _score_groups(bench: Bench, scores: Scores, rows: Rows, threshold: float | None) -> dict[str, tuple[Figure, ...]]:
    """Figures of each group of people among rows of the set, such as "gender=Female"."""
    out: dict[str, tuple[Figure, ...]] = {}
    fewer = Bootstrap(min(bench.resamples, GROUP_RESAMPLES), bench.seed)
    for column in bench.columns:
        values = np.array(bench.prepared.groups.get(column, ()), dtype=object)
        labels = values[rows] if len(values) else values
        for value in sorted({label for label in labels if label}):
            mask, name = labels == value, f"{column}={value}"
            people = len(np.unique(bench.people[rows[mask]]))
            if people < LEAST_GROUP:
                note = f"{people} people are too few for a figure of their own"
                out[name] = (Figure("rank-1", None, n=people, note=note),)
            else:
                out[name] = privacy.privacy_figures(scores.take(mask), threshold, fewer)
    return out


def fidelity_figures(bench: Bench, rows: Rows, faces: Faces) -> tuple[Figure, ...]:
    """Likeness to the clear faces within the replaced square, without IDD, of rows int64 [N]; intervals by people."""
    if not bench.reversal_metrics:
        return ()
    guess, clear = bench.part(rows, faces.images).regions(), bench.part(rows).regions()
    judges, sample, pair = bench.judges, bench.sample(rows), (guess.images, clear.images)
    marks = [content(guess), content(clear)]
    out = [
        psnr_figure("PSNR", pictures.psnr(*pair), sample),
        sample.mean("SSIM", pictures.ssim(*pair)),
        sample.none("LPIPS", judges.missing.get("lpips", "")),
        sample.none("FID", judges.missing.get("inception", "")),
    ]
    if lpips := judges.lpips:
        values = bench.store.kept(["lpips", lpips.network, *marks], lambda: lpips.distance(*pair))
        out[2] = sample.mean("LPIPS", values, f"backbone {lpips.network}")
    if inception := judges.inception:
        features = (partial(inception.features, images) for images in pair)
        seen, before = map(bench.store.kept, (["inception", mark] for mark in marks), features)
        out[3] = frechet_figure("FID", before, seen)
    return tuple(out)


def angles(a: Embeddings, b: Embeddings) -> NDArray[np.float64]:
    """Angles [N], 0 to π, of pairs [N,D], exact if almost parallel: IDD of guesses and clear faces (Revelio, §5.2)."""
    x, y = unit(a), unit(b)
    return np.asarray(2 * np.arctan2(np.linalg.norm(x - y, axis=1), np.linalg.norm(x + y, axis=1)))


def _inference(subject: Subject, scenario: Scenario) -> list[Trial]:
    bench = subject.bench
    labels = binary_labels(bench.prepared.attributes, bench.prepared.groups)
    if not labels:
        raise NotApplicable("nothing is known of the people but who they are")
    bootstrap, trials = Bootstrap(min(bench.resamples, GROUP_RESAMPLES), bench.seed), []

    def read(reader: Reader, rows: Rows) -> Answered:
        known = {name: values[rows] for name, values in labels.items()}
        return bench.embed(reader, subject.anonymised(rows)), known, bench.people[rows]

    for reader in bench.readers:
        if figures := infer(read(reader, bench.learners), read(reader, bench.split.probe), bootstrap):
            trials.append(subject.trial(scenario, reader.name, figures))
    return trials


# Attackers whose trials are not recognition
_KINDS: dict[str, Any] = {"inference": _inference, "identity probe": run_identity_probe}
