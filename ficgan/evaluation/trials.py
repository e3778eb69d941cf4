"""One anonymiser on one set: every scenario, read by every judge."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ficgan.anonymizers import Anonymizer, Faces, Images
from ficgan.attacks import REVERSERS, Pairs, Reverser, another_key
from ficgan.errors import FicganError, InputError, UsageError
from ficgan.evaluation.inference import binary_labels, infer
from ficgan.evaluation.metrics.identification import FAILURES, failures_to_acquire, rank
from ficgan.evaluation.metrics.intervals import Bootstrap
from ficgan.evaluation.metrics.privacy import chance, privacy_curves, privacy_figures, reversibility
from ficgan.evaluation.metrics.scores import Scores
from ficgan.evaluation.readers import Embeddings, Reader
from ficgan.evaluation.results import Figure, Trial
from ficgan.evaluation.retrain import retrain_head, retrain_network
from ficgan.evaluation.scenarios import Scenario, View
from ficgan.evaluation.sets import Prepared, Split
from ficgan.evaluation.stored import Store, digest, fingerprint
from ficgan.registry import parse_spec

__all__ = ["LEAST_GROUP", "Bench", "Refused", "anonymiser_for", "pixels_of", "run_trials"]

DRAWS = 8
"""Anonymisations of one image that are averaged."""
MISMATCH = 0.7
"""Strength at which a mismatched attacker has learnt, relative to the attacked one's."""
LEAST_GROUP = 10
"""People a group needs for figures of its own."""


class Refused(FicganError):
    """A scenario that cannot be run here; its sentence stands in the table in place of a figure."""


class _NotApplicable(FicganError):
    """A scenario that has no meaning for a method, such as a key for one without."""


@dataclass
class Bench:
    """A set made ready, its split, and who reads.

    Args:
        prepared: crops of the set.
        split: rows of background, attacker, gallery and probe.
        readers: judges.
        detector: says in which anonymised crops a face is still found; None: all count as acquired.
        store: where pixels and embeddings are kept.
        seed, resamples: of the bootstrap.
        general, specialised: reversers as the configuration names them.
        retrain: "head" or "network".
        columns: by which figures are broken down.
    """

    prepared: Prepared
    split: Split
    readers: Sequence[Reader]
    detector: Any
    store: Store
    seed: int = 0
    resamples: int = 1000
    general: Sequence[str] = ("ridge",)
    specialised: Sequence[str] = ("auto",)
    retrain: str = "head"
    columns: Sequence[str] = ()
    _ceiling: dict[str, Scores] = field(default_factory=dict)

    @cached_property
    def digest(self) -> str:
        """Of the set's pixels and of its split, on which backgrounds depend."""
        return digest([self.prepared.digest, self.split.digest])

    @property
    def people(self) -> NDArray[np.int64]:
        """[N] of the set."""
        return _known(self.prepared.faces)

    @property
    def name(self) -> str:
        """Of the set."""
        return str(self.prepared.source["name"])

    def part(self, rows: NDArray[np.int64], images: Images | None = None) -> Prepared:
        """Some rows of the set, perhaps in other pixels."""
        faces = self.prepared.faces.take(rows)
        faces = faces if images is None else faces.with_images(images)
        return dataclasses.replace(self.prepared, faces=faces, rows=self.prepared.rows[rows], attributes={}, groups={})

    @cached_property
    def background(self) -> Faces:
        """The anonymisers' background set: the replaced squares alone."""
        return self.part(self.split.background).regions()

    def embed(self, reader: Reader, faces: Faces, key: list[Any]) -> Embeddings:
        """Embeddings [N,D], kept under `key` and the set's and the judge's digests."""
        return self.store.array(
            ["embedding", self.digest, reader.digest, list(faces.names), *key], lambda: reader.embed(faces)
        )

    def ceiling(self, reader: Reader) -> Scores:
        """Clear probes against a clear gallery."""
        if reader.name not in self._ceiling:
            gallery, probe = (self.prepared.faces.take(rows) for rows in (self.split.gallery, self.split.probe))
            seen, enrolled = (self.embed(reader, faces, ["clear", "clear"]) for faces in (probe, gallery))
            self._ceiling[reader.name] = Scores.compare(
                seen, enrolled, _known(probe), _known(gallery), metric=reader.metric
            )
        return self._ceiling[reader.name]

    def found(self, faces: Faces, key: list[Any]) -> NDArray[np.bool_]:
        """[N] whether the detector still finds a face in each crop."""
        if self.detector is None:
            return np.ones(len(faces), bool)

        from ficgan.evaluation.metrics.geometry import detect_faces

        def look() -> NDArray[np.bool_]:
            return detect_faces(self.detector, faces.images, faces.landmarks).found

        return self.store.array(["found", self.digest, self.detector.name, list(faces.names), *key], look)


def anonymiser_for(bench: Bench, anonymizer: Anonymizer) -> Anonymizer:
    """The anonymiser with its background set, where it needs one.

    Raises:
        UsageError: it needs one and the split has none.
    """
    if "background" not in anonymizer.traits.needs:
        return anonymizer
    if not len(bench.split.background):
        raise UsageError(f"{anonymizer.name} needs a background set, and this split has none; set split.background")
    return anonymizer.fit(bench.background)


def run_trials(
    bench: Bench,
    anonymizer: Anonymizer | None,
    label: str,
    scenarios: Sequence[Scenario],
    *,
    inference: bool = True,
    progress: Callable[[str], None] | None = None,
) -> list[Trial]:
    """Trials of one anonymiser, or of the clear images where it is None.

    Args:
        bench: set, split, judges.
        anonymizer: ready to use, see `anonymiser_for`.
        label: of the method.
        scenarios: to run; those without an anonymiser are run for the clear images only.
        inference: whether attributes are inferred, too.
        progress: called with each scenario's name before it begins.

    Returns:
        A trial per scenario, attacker and judge; none where a scenario has no meaning for the method. A scenario that
        cannot be run has one trial with a figure that says why.
    """
    subject = _Subject(bench, anonymizer)
    trials: list[Trial] = []
    for scenario in scenarios:
        if (scenario.control in ("ceiling", "negative", "surroundings")) != (anonymizer is None):
            continue
        if progress:
            progress(scenario.name)
        try:
            trials += _scenario(bench, subject, label, scenario)
        except _NotApplicable:
            continue
        except (Refused, UsageError, InputError) as error:
            refused = Figure("rank-1", None, note=str(error))
            trials.append(Trial(bench.name, label, scenario.name, "", figures=(refused,)))
    if inference and len(bench.split.attacker):
        trials += _inference(bench, subject, label)
    return trials


def pixels_of(bench: Bench, anonymizer: Anonymizer, rows: NDArray[np.int64]) -> Faces:
    """Rows of the set, anonymised; kept in the store."""
    return _Subject(bench, anonymizer).anonymised(rows)


class _Subject:
    """Views of the set under one anonymiser; the same pixels are made once."""

    def __init__(self, bench: Bench, anonymizer: Anonymizer | None) -> None:
        self.bench, self.anonymizer = bench, anonymizer
        self.naive: dict[str, Scores] = {}
        self.key = ["clear"] if anonymizer is None else [fingerprint(anonymizer)]

    def key_of(self, view: View) -> list[str]:
        """What a view's pixels depend on."""
        return ["clear"] if view == "clear" else self.key

    def clear(self, rows: NDArray[np.int64]) -> Faces:
        return self.bench.prepared.faces.take(rows)

    def anonymised(self, rows: NDArray[np.int64], anonymizer: Anonymizer | None = None) -> Faces:
        maker = anonymizer or self.anonymizer
        if maker is None:
            return self.clear(rows)
        part = self.bench.part(rows)
        key = ["pixels", self.bench.digest, list(part.region), fingerprint(maker), list(part.faces.names)]
        made = self.bench.store.array(key, lambda: part.anonymise(maker).images)
        return part.faces.with_images(made)

    def view(self, view: View, rows: NDArray[np.int64]) -> Faces:
        if view in ("surroundings", "inside", "inside anonymised") and self.bench.prepared.whole:
            whole = "the crops of this set are replaced as a whole and have no surroundings; set context above 1"
            raise Refused(whole) if self.anonymizer is None else _NotApplicable(whole)
        if view == "clear":
            return self.clear(rows)
        if view == "anonymised":
            return self.anonymised(rows)
        if view == "surroundings":
            return self.bench.part(rows).surroundings()
        if view == "inside":
            return self.bench.part(rows).inside()
        if view == "inside anonymised":
            return self.bench.part(rows, self.anonymised(rows).images).inside()
        if view == "constant":
            clear = self.clear(rows)
            return clear.with_images(np.full_like(clear.images, 127))
        raise ValueError(view)


def _scenario(bench: Bench, subject: _Subject, label: str, scenario: Scenario) -> list[Trial]:
    gallery_rows, probe_rows = bench.split.gallery, bench.split.probe
    if scenario.same_set:
        gallery_rows = probe_rows = np.sort(np.concatenate([bench.split.gallery, bench.split.probe]))
    gallery = subject.view(scenario.gallery, gallery_rows)
    trials = []
    for attacker, probe in _probes(bench, subject, scenario, probe_rows):
        for reader in bench.readers:
            embed, note = _embedder(bench, subject, scenario, reader)
            key = [*subject.key_of(scenario.probe), scenario.probe, attacker]
            found = bench.found(probe, key)
            p = embed(probe, key)
            g = p if scenario.same_set else embed(gallery, [*subject.key_of(scenario.gallery), scenario.gallery])
            people = _known(probe)
            if scenario.attacker == "fusion":
                p, people, found = _fused(p, people, found)
            metric: Any = "cosine" if scenario.retrained else reader.metric
            scores = Scores.compare(p, g, people, _known(gallery), metric=metric, exclude_same=scenario.same_set)
            threshold = None if scenario.retrained else reader.threshold
            figures = privacy_figures(scores, threshold=threshold, seed=bench.seed, resamples=bench.resamples)
            figures = tuple(
                one for one in figures if not one.metric.endswith(FAILURES) and one.metric != "failures to acquire"
            )
            if not scenario.same_set:
                figures += _without_face(bench, p, g, people, _known(gallery), metric, found)
            figures += (Figure("chance", chance(scores), n=scores.enrolled),)
            figures += _reversal(bench, subject, scenario, scores, reader)
            if note:
                figures = (dataclasses.replace(figures[0], note=f"{figures[0].note} {note}".strip()), *figures[1:])
            fusion = scenario.attacker == "fusion"
            groups = {} if fusion else _groups(bench, scores, probe_rows, threshold)
            if scenario.name == "naive":
                subject.naive[reader.name] = scores
            trials.append(
                Trial(
                    bench.name, label, scenario.name, reader.name, attacker, figures, privacy_curves(scores),
                    groups, scenario.control,
                )
            )  # fmt: skip
    return trials


def _without_face(
    bench: Bench, probe: Embeddings, gallery: Embeddings, people: NDArray[np.int64], enrolled: NDArray[np.int64],
    metric: Any, found: NDArray[np.bool_],
) -> tuple[Figure, ...]:  # fmt: skip
    """The same where an attacker must first find the face: probes without one are misses."""
    bootstrap = Bootstrap(bench.resamples, bench.seed)
    if not found.any():
        nothing = Figure(f"rank-1{FAILURES}", 0.0, n=len(np.unique(people)), note="no face is found in any probe")
        return (nothing, Figure("failures to acquire", 1.0, n=len(people), unit="images"))
    scores = Scores.compare(probe, gallery, people, enrolled, metric=metric, acquired=found)
    return rank(scores, 1, failures=True, bootstrap=bootstrap), failures_to_acquire(scores, bootstrap=bootstrap)


def _probes(
    bench: Bench, subject: _Subject, scenario: Scenario, rows: NDArray[np.int64]
) -> list[tuple[str, Faces]]:
    """(name of the attacker, what is read) of a scenario; several where several attackers try."""
    kind, method = scenario.attacker, subject.anonymizer
    if kind == "fusion" and len(np.unique(_known(subject.clear(rows)))) == len(rows):
        raise Refused("there is one probe per identity, and nothing to fuse")
    if kind in ("", "fusion"):
        return [("fused probes" if kind else "", subject.view(scenario.probe, rows))]
    assert method is not None
    if kind == "average":
        return [(f"mean of {DRAWS} draws", _averaged(subject, method, rows))]
    anonymised = subject.anonymised(rows)
    if kind in ("right key", "wrong key"):
        if not method.traits.keyed:
            raise _NotApplicable(f"{method.name} has no key")
        holder = method if kind == "right key" else _other_key(method)
        return [(kind, _in_region(bench, rows, anonymised, holder.invert))]
    chosen = _reversers(bench, method, kind)
    if not chosen:
        raise _NotApplicable(f"no {kind} attacker is made for {method.name}")
    pairs = None
    out = []
    for name, reverser in chosen:
        if reverser.traits.knowledge & {"pairs"} and pairs is None:
            pairs = _pairs(bench, subject, method, mismatched=kind == "mismatched")
        if reverser.traits.knowledge & {"background"} and pairs is None:
            pairs = _pairs(bench, subject, method, mismatched=False)
        fitted = reverser if pairs is None else reverser.fit(pairs)
        out.append((name, _in_region(bench, rows, anonymised, fitted.guess)))
    return out


def _reversers(bench: Bench, method: Anonymizer, kind: str) -> list[tuple[str, Reverser]]:
    def make(text: str) -> tuple[str, Reverser]:
        name, parameters = parse_spec(text)
        made = REVERSERS.make(name, **parameters)
        if "parameters" in made.traits.knowledge:  # it knows the method's own, such as k
            shared = {field.name for field, _ in made.parameters()} & {field.name for field, _ in method.parameters()}
            made = dataclasses.replace(made, **{name: getattr(method, name) for name in shared - set(parameters)})
        return text, made

    if kind in ("general", "mismatched"):
        return [make(text) for text in bench.general]
    if kind == "background":
        named = [name for name in REVERSERS if method.name in REVERSERS[name].traits.against]
        return [make(name) for name in named if "background" in REVERSERS[name].traits.knowledge]
    if "auto" not in bench.specialised:
        return [make(text) for text in bench.specialised]
    return [
        make(name)
        for name in REVERSERS
        if method.name in REVERSERS[name].traits.against
        and not REVERSERS[name].traits.knowledge & {"background", "key"}
    ]


def _pairs(bench: Bench, subject: _Subject, method: Anonymizer, *, mismatched: bool) -> Pairs:
    rows = bench.split.attacker
    if not len(rows):
        raise Refused("the split leaves no faces to the attacker; set split.attacker")
    other = _weaker(method) if mismatched else method
    anonymised = bench.part(rows, subject.anonymised(rows, other).images).regions()
    return Pairs(anonymised, bench.part(rows).regions(), bench.background, same=not mismatched)


def _weaker(method: Anonymizer) -> Anonymizer:
    """The same method at another strength."""
    name = method.traits.strength
    if name is None:
        raise _NotApplicable(f"{method.name} has no strength that could differ")
    value = getattr(method, name)
    other = type(value)(value * MISMATCH if not isinstance(value, int) else max(1, round(value * MISMATCH)))
    if other == value:
        raise Refused(f"{method.name} cannot be made at another {name} than {value}")
    return dataclasses.replace(method, **{name: other})


def _other_key(method: Anonymizer) -> Anonymizer:
    """With another key; where a parameter is the key, as the steps of a relocation are, with another of these."""
    if getattr(method, "variant", "") == "as_released" and method.traits.strength:
        return _weaker(method)
    return another_key(method)


def _in_region(
    bench: Bench, rows: NDArray[np.int64], faces: Faces, change: Callable[[Faces], Images]
) -> Faces:
    """Faces with the replaced square changed once more."""
    part = bench.part(rows, faces.images)
    return part.with_regions(change(part.regions()))


def _averaged(subject: _Subject, method: Anonymizer, rows: NDArray[np.int64]) -> Faces:
    if not method.traits.stochastic:
        raise _NotApplicable(f"{method.name} draws nothing: all its results of one image are alike")
    total = np.zeros_like(subject.clear(rows).images, dtype=np.float32)
    for draw in range(DRAWS):
        seeded: Any = method
        total += subject.anonymised(rows, dataclasses.replace(seeded, seed=seeded.seed + draw)).images
    return subject.clear(rows).with_images(np.rint(total / DRAWS).astype(np.uint8))


def _embedder(
    bench: Bench, subject: _Subject, scenario: Scenario, reader: Reader
) -> tuple[Callable[[Faces, list[Any]], Embeddings], str]:
    if not scenario.retrained:
        return lambda faces, key: bench.embed(reader, faces, key), ""
    if not len(bench.split.attacker):
        raise Refused("the split leaves no faces to retrain on; set split.attacker")
    taught = subject.anonymised(bench.split.attacker)
    if bench.retrain == "network":
        embed, note = retrain_network(reader, taught)
        return lambda faces, key: embed(faces), note
    seen = bench.embed(reader, taught, [*subject.key, "anonymised"])
    change, note = retrain_head(seen, _known(taught))
    return lambda faces, key: change(bench.embed(reader, faces, key)), note


def _fused(
    embeddings: Embeddings, people: NDArray[np.int64], found: NDArray[np.bool_]
) -> tuple[Embeddings, NDArray[np.int64], NDArray[np.bool_]]:
    """One mean embedding per person, of normalised ones."""
    unit = embeddings / np.linalg.norm(embeddings, axis=1, keepdims=True).clip(1e-12)
    values, index = np.unique(people, return_inverse=True)
    total = np.zeros((len(values), unit.shape[1]), np.float64)
    np.add.at(total, index, unit)
    count = np.bincount(index)[:, None]
    scale = np.linalg.norm(embeddings, axis=1).mean()
    return (total / count * scale).astype(np.float32), values, np.bincount(index, found) > 0


def _known(faces: Faces) -> NDArray[np.int64]:
    assert faces.people is not None
    return faces.people


def _reversal(
    bench: Bench, subject: _Subject, scenario: Scenario, scores: Scores, reader: Reader
) -> tuple[Figure, ...]:
    """Reversibility, where the naive trial has been run."""
    naive = subject.naive.get(reader.name)
    if scenario.probe != "reversed" or naive is None:
        return ()
    bootstrap = Bootstrap(bench.resamples, bench.seed)
    return (reversibility(bench.ceiling(reader), naive, scores, bootstrap=bootstrap),)


def _groups(
    bench: Bench, scores: Scores, rows: NDArray[np.int64], threshold: float | None
) -> dict[str, tuple[Figure, ...]]:
    out: dict[str, tuple[Figure, ...]] = {}
    for column in bench.columns:
        values = bench.prepared.groups.get(column)
        if values is None:
            continue
        told = np.array([values[row] for row in rows], dtype=object)
        for value in sorted({one for one in told if one}):
            mask = told == value
            people = len(np.unique(bench.people[rows[mask]]))
            if people < LEAST_GROUP:
                short = f"{people} people are too few for a figure of their own"
                out[f"{column}={value}"] = (Figure("rank-1", None, n=people, note=short),)
                continue
            part = scores.take(mask)
            out[f"{column}={value}"] = privacy_figures(
                part, threshold=threshold, seed=bench.seed, resamples=min(bench.resamples, 200)
            )
    return out


def _inference(bench: Bench, subject: _Subject, label: str) -> list[Trial]:
    labels = binary_labels(bench.prepared.attributes, bench.prepared.groups)
    if not labels:
        return []
    trials = []
    train, probe = bench.split.attacker, bench.split.probe
    for reader in bench.readers:
        x = bench.embed(reader, subject.anonymised(train), [*subject.key, "anonymised"])
        y = bench.embed(reader, subject.anonymised(probe), [*subject.key, "anonymised"])
        figures = infer(
            x, {name: values[train] for name, values in labels.items()},
            y, {name: values[probe] for name, values in labels.items()},
            bench.people[probe], resamples=min(bench.resamples, 200), seed=bench.seed,
        )  # fmt: skip
        if figures:
            trials.append(Trial(bench.name, label, "attribute-inference", reader.name, figures=figures))
    return trials
