"""A matrix: every method on every set under every scenario, read by every judge; each method on each set is a task."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter

from ficgan import __version__, pretrained
from ficgan.anonymizers import ANONYMIZERS, Anonymizer, Faces
from ficgan.arrays import ModelInfo
from ficgan.deidentify import refuse_trainer
from ficgan.errors import InputError, Progress, UsageError
from ficgan.lab import readers
from ficgan.lab.attackers import attacked, shareable, titles
from ficgan.lab.attributes import AttributeClassifier, binary_labels, infer, label_matrix
from ficgan.lab.bench import (
    Bench,
    NotApplicable,
    Refused,
    Rows,
    Subject,
    anonymiser_for,
    content,
    describe,
    described,
    known,
    open_bench,
    pixels_of,
)
from ficgan.lab.matrix_config import MatrixConfig, MethodConfig, Scenario, SetConfig, get_scenarios
from ficgan.lab.metrics import Sample, pictures
from ficgan.lab.metrics.privacy import (
    FAILURES,
    Scores,
    chance,
    failures_to_acquire,
    privacy_figures,
    rank,
    reversibility,
    within_kind,
)
from ficgan.lab.metrics.utility import Judges, UtilityReadings, compare, frechet_figure, psnr_figure
from ficgan.lab.probe import run_identity_probe
from ficgan.lab.readers import Embeddings, Reader, retrain_head, similarities
from ficgan.lab.results import Figure, Results, Trial, Utility, caveats, origin
from ficgan.lab.run import Run, Say, Task, digest, files_digest
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
    def of(
        cls, config: MatrixConfig, source: SetConfig, method: MethodConfig | None, data: str, out: Path
    ) -> MethodOnSet:
        """`data` is the digest of the set."""
        shared = config.model_dump(mode="json", exclude={"title", "sets", "methods"})
        values = [value for given in _parameters(config, method) for value in given.values() if isinstance(value, str)]
        files = [files_digest(text) for text in (*config.recognisers, config.attributes or "", *values)]
        own = None if method is None else method.model_dump(mode="json")
        return cls(
            config, source, method, out, digest([__version__, shared, source.name, source.context, data, own, files])
        )

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
        return {
            "trials": [asdict(trial) for trial in trials],
            "utilities": utilities,
            "method": None if anonymizer is None else described(anonymizer),
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
    for source in config.sets:
        run.say(f"preparing {source.name}")
        sets[source.name] = describe(config, source, out, run.say)
    # The clear images come first: everybody compares with them, and their embeddings are then in the store.
    found: list[tuple[MethodOnSet, dict[str, Any]]] = []
    for methods in ([None], config.methods):
        works = [
            MethodOnSet.of(config, source, method, sets[source.name]["digest"], out)
            for source in config.sets
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
    for source in config.sets:
        for each in filter(None, (source, source.learn_from)):
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


# -- one method on one set ---------------------------------------------------------------------------------------------

LEAST_GROUP = 10  # People a group needs for figures of its own
GROUP_RESAMPLES = 200  # Of the figures of groups and of attribute inference, at most
# Controls that are run on the clear images alone. All other scenarios are run on the anonymised ones alone, but for two
# that say something only beside the clear images' own figure.
_OF_CLEAR = ("ceiling", "negative", "surroundings")
_OF_BOTH = ("linkability", "attribute-inference")


def run_trials(
    bench: Bench, anonymizer: Anonymizer | None, label: str, scenarios: Sequence[Scenario], *, say: Say | None = None
) -> list[Trial]:
    """Trials of one anonymiser (None: clear), by scenario, attacker and judge, or why a scenario cannot run."""
    subject, report = Subject(bench, anonymizer), say or (lambda text: None)
    trials: list[Trial] = []
    for scenario in scenarios:
        if scenario.name not in _OF_BOTH and (anonymizer is None) != (scenario.control in _OF_CLEAR):
            continue
        report(scenario.name)
        subject.say = partial(lambda name, text: report(f"{name}: {text}"), scenario.name)
        try:
            trials += _KINDS.get(scenario.attacker, _recognition)(bench, subject, label, scenario)
        except NotApplicable:
            continue
        except (Refused, UsageError, InputError) as error:
            refused = Figure("rank-1", None, note=str(error))
            trials.append(Trial(bench.name, label, scenario.name, "", figures=(refused,)))
    return trials


# -- recognition ------------------------------------------------------------------------------------------------------


def _recognition(bench: Bench, subject: Subject, label: str, scenario: Scenario) -> list[Trial]:
    gallery_rows, probe_rows = bench.split.gallery, bench.split.probe
    if scenario.same_set:
        gallery_rows = probe_rows = np.sort(np.concatenate([gallery_rows, probe_rows]))
    gallery = subject.view(scenario.gallery, gallery_rows)
    # What attackers give back shall resemble the clear faces; the anonymised ones are what it is compared with.
    restores = scenario.probe == "reversed" or scenario.name == "naive"
    trials = []
    for attacker, faces in attacked(bench, subject, scenario, probe_rows).items():
        found = bench.found(faces)
        likeness = fidelity_figures(bench, probe_rows, faces) if restores else ()
        for reader in bench.readers:
            embed, note = _embedder(bench, subject, scenario, reader)
            probe = embed(faces)
            compared: dict[str, Any] = {
                "gallery": probe if scenario.same_set else embed(gallery),
                "probe_people": known(faces),
                "gallery_people": known(gallery),
                "metric": "cosine" if scenario.retrained else reader.metric,
            }
            scores = Scores.compare(probe, **compared, exclude_same=scenario.same_set)
            threshold = None if scenario.retrained else reader.threshold
            figures = list(privacy_figures(scores, threshold=threshold, seed=bench.seed, resamples=bench.resamples))
            if not scenario.retrained and (unread := reader.unread(probe)):
                note = f"{unread} of {len(probe)} probes could not be read and are like nobody."
            if note:
                figures[0] = replace(figures[0], note=f"{figures[0].note} {note}".strip())
            if not scenario.same_set:
                figures += _without_face(bench, probe, compared, found)
            figures.append(Figure("chance", chance(scores), n=scores.enrolled))
            naive = subject.naive.get(reader.name)
            if scenario.probe == "reversed" and naive is not None:
                figures.append(reversibility(bench.ceiling(reader), naive, scores, bootstrap=bench.bootstrap))
            if restores:
                clear, sample = embed(subject.clear(probe_rows)), bench.sample(probe_rows)
                figures += (*likeness, identity_distance(probe, clear, sample)) if likeness else ()
            kinds = bench.prepared.kinds
            if kinds is not None and scenario.gallery == "clear" and not scenario.attacker:
                alike = similarities(probe, compared["gallery"], compared["metric"])
                who = (known(faces), kinds[probe_rows], known(gallery), kinds[gallery_rows])
                figures.insert(0, within_kind(alike, *who, bootstrap=bench.bootstrap))
            if scenario.name == "naive":
                subject.naive[reader.name] = scores
            groups = _score_groups(bench, scores, probe_rows, threshold)
            whose = (bench.name, label, scenario.name, reader.name, attacker)
            trials.append(Trial(*whose, tuple(figures), groups, scenario.control))
    return trials


def _without_face(
    bench: Bench, probe: Embeddings, compared: dict[str, Any], found: NDArray[np.bool_]
) -> tuple[Figure, ...]:
    """rank-1 and the share of probes where a probe without a found face is a miss."""
    if not found.any():
        people = len(np.unique(compared["probe_people"]))
        nothing = Figure(f"rank-1{FAILURES}", 0.0, n=people, note="no face is found in any probe")
        return (nothing, Figure("failures to acquire", 1.0, n=len(probe), unit="images"))
    scores, draw = Scores.compare(probe, **compared, acquired=found), bench.bootstrap
    return rank(scores, 1, failures=True, bootstrap=draw), failures_to_acquire(scores, bootstrap=draw)


def _embedder(
    bench: Bench, subject: Subject, scenario: Scenario, reader: Reader
) -> tuple[Callable[[Faces], Embeddings], str]:
    if not scenario.retrained:
        return lambda faces: bench.embed(reader, faces), ""
    if not len(bench.split.attacker):
        raise Refused("the split leaves no faces to retrain on; set split.attacker")
    learnt = subject.anonymised(bench.split.attacker)
    change, note = retrain_head(bench.embed(reader, learnt), known(learnt))
    return lambda faces: change(bench.embed(reader, faces)), note


def _score_groups(bench: Bench, scores: Scores, rows: Rows, threshold: float | None) -> dict[str, tuple[Figure, ...]]:
    """Figures of each group of people among rows of the set, such as "gender=Female"."""
    out: dict[str, tuple[Figure, ...]] = {}
    resamples = min(bench.resamples, GROUP_RESAMPLES)
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
                group = scores.take(mask)
                out[name] = privacy_figures(group, threshold=threshold, seed=bench.seed, resamples=resamples)
    return out


# -- likeness of what attackers give back -----------------------------------------------------------------------------

IDD = "IDD"


@lru_cache(maxsize=2)
def _judges(attributes: str | None = None) -> Judges:
    return Judges.find(attributes=None if attributes is None else Path(attributes))


def fidelity_figures(bench: Bench, rows: Rows, faces: Faces) -> tuple[Figure, ...]:
    """Likeness to the clear faces within the replaced square, without IDD, of rows int64 [N]; intervals by people."""
    if not bench.reversal_metrics:
        return ()
    guess, clear = bench.part(rows, faces.images).regions(), bench.part(rows).regions()
    judges, sample, of_clear = _judges(), bench.sample(rows), content(clear)
    both, pair = [content(guess), of_clear], (guess.images, clear.images)
    out = [
        psnr_figure("PSNR", bench.store.array(["psnr", *both], lambda: pictures.psnr(*pair)), sample),
        sample.mean("SSIM", bench.store.array(["ssim", *both], lambda: pictures.ssim(*pair))),
    ]
    if (lpips := judges.lpips) is None:
        out.append(sample.none("LPIPS", judges.missing["lpips"]))
    else:
        values = bench.store.array(["lpips", lpips.network, *both], lambda: lpips.distance(*pair))
        out.append(sample.mean("LPIPS", values, f"backbone {lpips.network}"))
    if (inception := judges.inception) is None:
        return (*out, sample.none("FID", judges.missing["inception"]))
    seen, before = (
        bench.store.array(["inception", mark], partial(inception.features, images))
        for mark, images in zip(both, pair, strict=True)
    )
    return (*out, frechet_figure("FID", before, seen))


def identity_distance(a: Embeddings, b: Embeddings, sample: Sample) -> Figure:
    """Mean angle in radians between embeddings [N,D] of guesses and of the clear faces (IDD; Revelio, §5.2)."""
    return sample.mean(IDD, angles(a, b))


def angles(a: Embeddings, b: Embeddings) -> NDArray[np.float64]:
    """Angles [N] in radians, 0 to π, of pairs of vectors [N,D]; exact also where they are almost parallel."""
    x, y = (rows / np.linalg.norm(rows, axis=1, keepdims=True).clip(1e-12) for rows in map(np.float64, (a, b)))
    out: NDArray[np.float64] = 2 * np.arctan2(np.linalg.norm(x - y, axis=1), np.linalg.norm(x + y, axis=1))
    return out


# -- attribute inference ----------------------------------------------------------------------------------------------


def _inference(bench: Bench, subject: Subject, label: str, scenario: Scenario) -> list[Trial]:
    labels = binary_labels(bench.prepared.attributes, bench.prepared.groups)
    if not labels:
        raise NotApplicable("nothing is known of the people but who they are")
    if not len(bench.split.attacker):
        raise Refused("the split leaves no faces to learn from; set split.attacker")
    trials = []
    parts = [bench.split.attacker, bench.split.probe]
    answers = [{name: values[rows] for name, values in labels.items()} for rows in parts]
    resamples = min(bench.resamples, GROUP_RESAMPLES)
    for reader in bench.readers:
        x, y = (bench.embed(reader, subject.anonymised(rows)) for rows in parts)
        who = (bench.people[rows] for rows in parts)
        figures = infer(x, answers[0], y, answers[1], *who, resamples=resamples, seed=bench.seed)
        if figures:
            trials.append(Trial(bench.name, label, scenario.name, reader.name, figures=figures))
    return trials


# Attackers whose trials are not recognition.
_KINDS: Mapping[str, Callable[[Bench, Subject, str, Scenario], list[Trial]]] = {
    "inference": _inference,
    "identity probe": run_identity_probe,
}

# -- utility and examples ---------------------------------------------------------------------------------------------

# What was read in the clear probes of the set at work: one set at a time.
_READ: dict[tuple[str, str | None], UtilityReadings] = {}


def _clear(bench: Bench, attributes: str | None) -> UtilityReadings:
    key = (bench.digest, attributes)
    if key not in _READ:
        _READ.clear()
        _READ[key] = _judges(attributes).read(bench.prepared.faces.take(bench.split.probe))
    return _READ[key]


def measure_utility(config: MatrixConfig, bench: Bench, anonymizer: Anonymizer | None, label: str) -> Utility:
    """What an anonymiser (None: clear) leaves of the probes."""
    clear, rows = _clear(bench, config.attributes), bench.split.probe
    faces = clear.faces if anonymizer is None else pixels_of(bench, anonymizer, rows)
    seen = _judges(config.attributes).read(faces, against=clear)
    labels = label_matrix(clear.attribute_names, bench.prepared.attributes)
    labels = None if labels is None else labels[rows]
    figures = compare(clear, seen, region=bench.prepared.region, labels=labels, bootstrap=bench.bootstrap)
    return Utility(bench.name, label, figures)
