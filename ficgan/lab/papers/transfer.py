"""An attacker that has learnt one treatment of faces, tried on others: other kernels, other methods, defences."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ficgan.anonymizers import Faces
from ficgan.errors import UsageError
from ficgan.lab.attacks import REVERSERS, Pairs
from ficgan.lab.bench import Bench, known
from ficgan.lab.learning import Lessons, Opponent
from ficgan.lab.metrics.intervals import BOOTSTRAP, Bootstrap, proportion
from ficgan.lab.metrics.privacy import hits, rank
from ficgan.lab.metrics.scores import Scores
from ficgan.lab.papers.treatment import Treatment, treated
from ficgan.lab.readers import Embeddings, Reader
from ficgan.lab.results import Figure, Trial
from ficgan.lab.reversal import fidelity_figures, identity_distance, per_person
from ficgan.lab.stored import fingerprint
from ficgan.registry import parse_spec

__all__ = ["NOT_ANGULAR", "Attack", "attack_on", "by_people", "distance", "identified", "read_trials", "transfer"]

Rows = NDArray[np.int64]
Told = Callable[[int, int, str], None]
NOT_ANGULAR = "the judge was not trained by angles"
"""Note of an IDD that cannot be compared with ArcFace's."""
TOGETHER = 8
"""Faces whose guesses are held at once."""


@dataclass(frozen=True)
class Attack:
    """An attacker of a bench; it is trained when a guess is asked for that is not kept already.

    Args:
        label: for tables.
        opponent: it, and what it learns from.
    """

    label: str
    opponent: Opponent

    @property
    def mark(self) -> list[Any]:
        """What its guesses depend on besides what it sees, JSON-ready."""
        learnt = self.opponent.lessons
        return [fingerprint(self.opponent.reverser), None if learnt is None else learnt.digest]

    @property
    def training(self) -> str:
        """How long it has been trained, and why that ended; "–" where no network is."""
        made: Any = self.opponent.fitted
        record = getattr(made, "record", None)
        if not record or "epochs" not in record:
            return "–"
        ended = record.get("ended", "all epochs")
        return f"{record['epochs']} epochs" + ("" if ended == "all epochs" else f" of {made.epochs}: {ended}")

    def guess(self, seen: Faces, rows: Rows) -> Faces:
        """Its one guess at each of the images at `rows` as they are `seen`."""
        part = self.opponent.bench.part(rows, seen.images)
        return part.with_regions(self.opponent.guess(part.regions()))

    def codes(self, seen: Faces, rows: Rows, n: int) -> dict[str, Embeddings]:
        """What the bench's readers read in n guesses at each image: reader → [N,n,D].

        Args:
            seen: N faces, the images at `rows` as the attacker sees them.
            rows: of the set.
            n: guesses of each; where the attacker has only one it is read n times.
        """
        bench = self.opponent.bench
        found: dict[str, list[Embeddings]] = {reader.name: [] for reader in bench.readers}
        for begin in range(0, len(rows), TOGETHER):
            some = np.arange(begin, min(begin + TOGETHER, len(rows)))
            part = bench.part(rows[some], seen.images[some])
            several = self.opponent.candidates(part.regions(), n)
            restored = [part.with_regions(several[:, index]) for index in range(n)]
            for reader in bench.readers:
                found[reader.name].append(np.stack([bench.embed(reader, one) for one in restored], axis=1))
        return {name: np.concatenate(parts) for name, parts in found.items()}


def attack_on(
    bench: Bench, spec: str, how: Treatment, rows: Rows, *, label: str = "", told: Told | None = None
) -> Attack:
    """An attacker by name, to be trained on some rows in one treatment.

    Args:
        bench: of the set.
        spec: NAME or NAME:PARAMETER=VALUE,…, a reverser.
        how: the treatment of the images it learns from.
        rows: of the set; what it learns from.
        label: for tables; "": the specification.
        told: progress of its training.

    Raises:
        UsageError: no such reverser or parameter.
    """
    name, parameters = parse_spec(spec)
    reverser, title = REVERSERS.make(name, **parameters), label or spec
    learnt = None
    if reverser.traits.knowledge & {"pairs", "background"}:
        seen = bench.part(rows, treated(bench, how, rows).images)
        learnt = Lessons(Pairs(seen.regions(), bench.part(rows).regions()), bench.background)
    say = (lambda text: None) if told is None else (lambda text: told(0, 1, text))
    return Attack(title, Opponent(title, reverser, learnt, bench, say))


def transfer(
    bench: Bench,
    attacker: str,
    trained_on: Sequence[Treatment],
    tested_on: Sequence[Treatment],
    *,
    probes: Rows | None = None,
    scenario: str = "transfer",
    told: Told | None = None,
) -> list[Trial]:
    """An attacker that learnt each of some treatments, on each of others.

    Args:
        bench: whose attacker's rows it learns from, and whose gallery the judges know.
        attacker: NAME or NAME:PARAMETER=VALUE,…, a reverser that learns from pairs.
        trained_on: a network for each.
        tested_on: every network sees every one.
        probes: rows that are attacked; None: the bench's.
        scenario: as of `Trial`.
        told: called with each training and each test.

    Returns:
        A trial for each pair and judge: method is the label of what is seen, attacker that of what was learnt; rank-1
        (mean over people), the share of images identified, fidelity of the guesses.

    Raises:
        UsageError: no faces to learn from.

    Source: Fantômas, E4.1 (Figures 12 and 17); Revelio, appendix C and section 6.
    """
    rows = bench.split.probe if probes is None else probes
    if not len(bench.split.attacker):
        raise UsageError("the split leaves no faces to the attacker; set split.attacker")
    out: list[Trial] = []
    total, done = len(trained_on) * len(tested_on), 0
    for learnt in trained_on:
        attack = attack_on(
            bench, attacker, learnt, bench.split.attacker, label=f"{attacker} on {learnt.label}", told=told
        )
        for shown in tested_on:
            if told:
                told(done, total, f"{attack.label} against {shown.label}")
            guesses = attack.guess(treated(bench, shown, rows), rows)
            out += read_trials(bench, guesses, rows, method=shown.label, attacker=learnt.label, scenario=scenario)
            done += 1
    return out


def read_trials(
    bench: Bench, guesses: Faces, rows: Rows, *, method: str, attacker: str, scenario: str = "transfer"
) -> list[Trial]:
    """A trial for each judge of guesses at the images at `rows`, identified against the clear gallery.

    Args:
        bench: of the set.
        guesses: the faces of `rows` as they were restored.
        rows: of the set.
        method, attacker, scenario: as of `Trial`.
    """
    pixels = fidelity_figures(bench, rows, guesses)
    return [
        Trial(bench.name, method, scenario, reader.name, attacker, (*_identity(bench, guesses, rows, reader), *pixels))
        for reader in bench.readers
    ]


def _identity(bench: Bench, guesses: Faces, rows: Rows, reader: Reader) -> tuple[Figure, ...]:
    bootstrap = Bootstrap(max(1, bench.resamples), bench.seed)
    gallery, people = bench.prepared.faces.take(bench.split.gallery), bench.people[rows]
    seen, enrolled = (bench.embed(reader, faces) for faces in (guesses, gallery))
    idd = distance(bench, reader, guesses, rows, bootstrap)
    if not np.isin(people, known(gallery)).any():
        return (Figure("IRA", None, unit="images", note="none of these people is enrolled"), idd)
    scores = Scores.compare(seen, enrolled, people, known(gallery), metric=reader.metric)
    return rank(scores, 1, bootstrap=bootstrap), identified(scores, "one guess, nearest image", bootstrap), idd


def distance(bench: Bench, reader: Reader, guesses: Faces, rows: Rows, bootstrap: Bootstrap) -> Figure:
    """IDD of guesses at the images at `rows`; its note tells judges whose angles mean something else than ArcFace's."""
    seen, source = (bench.embed(reader, faces) for faces in (guesses, bench.prepared.faces.take(rows)))
    idd = identity_distance(seen, source, bench.people[rows], bootstrap)
    return idd if reader.metric == "cosine" else replace(idd, note=NOT_ANGULAR)


def identified(scores: Scores, note: str = "", bootstrap: Bootstrap = BOOTSTRAP) -> Figure:
    """Identity retrieval accuracy: the share of images whose nearest person is the right one; its interval by people.

    Source: Revelio, section 5.2.
    """
    return by_people("IRA", hits(scores, 1), scores.people, bootstrap, note)


def by_people(metric: str, right: NDArray[Any], people: Rows, bootstrap: Bootstrap, note: str = "") -> Figure:
    """The share of images [N] that are right, its interval by resampling the people [N] in them.

    Photos of one person are no independent trials. Where all or none are right, Wilson's interval of the people.
    """
    if not len(right):
        return Figure(metric, None, unit="images", note="there is no such face here")
    sums, counts = per_person(right, people)
    low, high = proportion(bootstrap.weights(len(sums)), sums, counts)
    return Figure(metric, float(np.mean(right)), low, high, len(right), "images", note)
