"""What attackers learn from, how they learn it, and what they make of anonymised probes before a judge reads them."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ficgan.anonymizers import Anonymizer, Faces, Images, generator
from ficgan.lab.attacks import REVERSERS, Pairs, Reverser, another_key
from ficgan.lab.attacks.learned import Learned, Trained
from ficgan.lab.attacks.revelio import choose_threshold, ood_curve, retrieve
from ficgan.lab.bench import Bench, NotApplicable, Refused, Rows, Subject, content, known
from ficgan.lab.matrix_config import Attacker, Scenario, public
from ficgan.lab.metrics import Bootstrap, Sample
from ficgan.lab.readers import Embeddings
from ficgan.lab.results import Figure
from ficgan.lab.run import digest, fingerprint
from ficgan.registry import parse_spec

DRAWS = 8  # Anonymisations of one image that are averaged
WEAKER = 0.7  # Strength of the wrong key of a method whose key is its strength
LONGEST = 40  # Letters of an attacker's name in a table
_BLOCK = 8  # Probes whose candidates are drawn together and kept: what an interrupted run does not draw again

# -- learning ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TrainedAttacker:
    """A reverser and what it may learn from (None: nothing); trained on demand and kept, as its guesses are."""

    title: str
    reverser: Reverser
    lessons: Pairs | None
    bench: Bench
    say: Callable[[str], None]

    @cached_property
    def fitted(self) -> Reverser:
        if self.lessons is None:
            return self.reverser
        if not isinstance(self.reverser, Learned):
            return self.reverser.fit(self.lessons)
        waiting = f"{self.title}: waiting for another process that trains it"
        with self.bench.store.workspace(["attacker", *self.mark], waiting=lambda: self.say(waiting)) as folder:
            report = lambda done, total, stage: self.say(f"{self.title}: {stage}, {done} of {total}")  # noqa: E731
            return self.reverser.fit(self.lessons, workspace=folder, progress=report)

    @property
    def training(self) -> str:
        """For how long it has been trained, and why that ended; "–" where no network is."""
        record = getattr(self.fitted, "record", {})
        return f"{record['epochs']} epochs, ended: {record['ended']}" if "ended" in record else "–"

    def restored(self, seen: Faces, rows: Rows) -> Faces:
        """Its one guess at each of the images at `rows` as they are `seen`, back in its place."""
        kept = lambda faces: self._kept(["guess"], faces, lambda: self.fitted.guess(faces))  # noqa: E731
        return in_region(self.bench, rows, seen, kept)

    def reads(self, seen: Faces, rows: Rows, gallery: Rows, count: int) -> dict[str, Read]:
        """What each judge reads in `count` guesses at each image; an attacker's only guess is read as often."""
        bench = self.bench
        found: dict[str, list[Embeddings]] = {reader.name: [] for reader in bench.readers}
        for begin in range(0, len(rows), _BLOCK):
            self.say(f"{self.title}: {count} guesses at each of {len(rows)} faces, {begin} done")
            some = np.arange(begin, min(begin + _BLOCK, len(rows)))
            part = bench.part(rows[some], seen.images[some])
            inner = part.regions()
            make = lambda inner=inner: self.fitted.reverse(inner, count)  # [N,count,S,S,3]  # noqa: E731
            guesses = self._kept(["candidates", count], inner, make)
            for reader in bench.readers:
                shown = (part.with_regions(np.ascontiguousarray(guesses[:, n])) for n in range(count))
                found[reader.name].append(np.stack([bench.embed(reader, one) for one in shown], axis=1))
        enrolled = bench.prepared.faces.take(gallery)
        return {
            reader.name: Read(
                np.concatenate(found[reader.name]),
                bench.people[rows],
                bench.embed(reader, enrolled),
                bench.people[gallery],
                reader.metric,
            )
            for reader in bench.readers
        }

    def _kept(self, key: list[Any], faces: Faces, make: Callable[[], NDArray[np.uint8]]) -> NDArray[np.uint8]:
        if not isinstance(self.reverser, (Learned, Trained)):
            return make()
        return self.bench.store.array([*key, *self.mark, content(faces), list(faces.names)], make)

    @cached_property
    def mark(self) -> list[Any]:
        """Of the attacker and all that it learns from."""
        return [fingerprint(self.reverser), None if self.lessons is None else mark_of(self.lessons)]


def mark_of(pairs: Pairs) -> list[Any]:
    """Digests of pixels, of who is who, and of who is granted."""
    who = hashlib.sha256(np.ascontiguousarray(known(pairs.clear)).data).hexdigest()
    enrolled = [] if pairs.enrolled is None else [pairs.enrolled.tolist()]
    return [content(pairs.anonymised), content(pairs.clear), who, *enrolled]


def lessons(bench: Bench, subject: Subject, maker: Anonymizer, *, victims: bool = False) -> Pairs:
    """Pairs of the attacker's people, or of the other set it learns from; no probe is ever among them."""
    parts = []
    if bench.lessons is not None:
        people = known(bench.lessons.faces) + 1 + int(bench.people.max())  # others than those of this set
        other = dataclasses.replace(bench.lessons, faces=dataclasses.replace(bench.lessons.faces, people=people))
        parts.append((subject.lessons(maker), other))
    elif len(bench.split.attacker):
        parts.append((subject.anonymised(bench.split.attacker, maker), bench.part(bench.split.attacker)))
    enrolled = halves(bench)[0] if victims else None
    if enrolled is not None:
        rows = bench.split.gallery[np.isin(bench.people[bench.split.gallery], enrolled)]
        parts.append((subject.anonymised(rows, maker), bench.part(rows)))
    if not parts:
        raise Refused("the split leaves no faces to the attacker; set split.attacker")
    seen = joined([dataclasses.replace(part, faces=faces).regions() for faces, part in parts])
    clear = joined([part.regions() for _, part in parts])
    return Pairs(seen, clear, enrolled)


def halves(bench: Bench) -> tuple[Rows, Rows]:
    """People of the evaluation whom a closed-world attacker knows, and whom it does not; drawn by the bench's seed."""
    who = np.unique(bench.people[bench.split.probe])
    order = generator(bench.seed, "closed world").permutation(who)
    return np.sort(order[: (len(who) + 1) // 2]), np.sort(order[(len(who) + 1) // 2 :])


def joined(several: Sequence[Faces]) -> Faces:
    if len(several) == 1:
        return several[0]
    return Faces(
        np.concatenate([faces.images for faces in several]),
        tuple(name for faces in several for name in faces.names),
        np.concatenate([faces.landmarks for faces in several]),
        np.concatenate([known(faces) for faces in several]),
    )


# -- attacking --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class AttackedFaces:
    """Crops of the probes `rows` [N] as one attacker gives them back; `attacker` is its name in tables."""

    attacker: str
    rows: Rows
    faces: Faces


def attacked(bench: Bench, subject: Subject, scenario: Scenario, rows: Rows) -> list[AttackedFaces]:
    """What each attacker of a scenario makes of the probes `rows`."""
    kind, method = scenario.attacker, subject.anonymizer
    if not kind:
        return [AttackedFaces("", rows, subject.view(scenario.probe, rows))]
    assert method is not None
    if kind == "average":
        return [AttackedFaces(f"mean of {DRAWS} draws", rows, _averaged(subject, method, rows))]
    anonymised = subject.anonymised(rows)
    if kind in ("right key", "wrong key"):
        if not method.traits.keyed:
            raise NotApplicable(f"{method.name} has no key")
        holder = method if kind == "right key" else _wrong_key(method)
        return [AttackedFaces(kind, rows, in_region(bench, rows, anonymised, holder.invert))]
    out = []
    for attack in trained_attackers(bench, subject, method, kind):
        title, guess = attack.title, attack.restored(anonymised, rows)
        if kind != "closed":
            out.append(AttackedFaces(title, rows, guess))
            continue
        for name, half in zip(("known", "unknown"), halves(bench), strict=True):
            part = np.flatnonzero(np.isin(bench.people[rows], half))
            out += [AttackedFaces(f"{title} ({name})", rows[part], guess.take(part))] if len(part) else []
    return out


def trained_attackers(bench: Bench, subject: Subject, method: Anonymizer, kind: Attacker) -> list[TrainedAttacker]:
    """The attackers of a kind of scenario with the pairs that each may learn from."""
    chosen = _reversers(bench, method, kind)
    if not chosen:
        raise NotApplicable(f"no {kind} attacker is made for {method.name}")

    @cache
    def taught() -> Pairs:
        return lessons(bench, subject, method, victims=kind == "closed")

    out = []
    for title, reverser in chosen:
        learns = "pairs" in reverser.traits.knowledge
        out.append(TrainedAttacker(title, reverser, taught() if learns else None, bench, subject.say))
    return out


def in_region(bench: Bench, rows: Rows, faces: Faces, change: Callable[[Faces], Images]) -> Faces:
    part = bench.part(rows, faces.images)
    return part.with_regions(change(part.regions()))


def _reversers(bench: Bench, method: Anonymizer, kind: Attacker) -> list[tuple[str, Reverser]]:
    if kind == "specialised":
        specs = [text for text in bench.specialised if text != "auto"]
        if "auto" in bench.specialised:
            plain = (name for name in REVERSERS if not issubclass(REVERSERS[name], Learned))
            specs = [name for name in plain if method.name in REVERSERS[name].traits.against]
    else:
        specs = list(bench.general)
    names = titles([*bench.general, *(text for text in bench.specialised if text != "auto"), *specs])
    made = [(names[text], _made(text, method)) for text in dict.fromkeys(specs)]
    if kind == "closed":
        made = [(title, one) for title, one in made if "pairs" in one.traits.knowledge]
    if bench.lessons is None:
        return made
    origin = f": learnt on {bench.lessons.source['name']}"
    return [(title + origin * ("pairs" in one.traits.knowledge), one) for title, one in made]


def _made(text: str, method: Anonymizer) -> Reverser:
    name, given = parse_spec(text)
    made = REVERSERS.make(name, **given)
    if "parameters" not in made.traits.knowledge:
        return made
    shared = {field.name for field, _ in made.parameters()} & {field.name for field, _ in method.parameters()}
    return dataclasses.replace(made, **{name: getattr(method, name) for name in shared - set(given)})


def _wrong_key(method: Anonymizer) -> Anonymizer:
    """Another key; of a released variant, which has none, another strength."""
    name = method.traits.strength
    if getattr(method, "variant", "") != "as_released" or name is None:
        return another_key(method)
    value = getattr(method, name)
    other = type(value)(value * WEAKER if not isinstance(value, int) else max(1, round(value * WEAKER)))
    if other == value:
        raise Refused(f"{method.name} cannot be made at another {name} than {value}")
    changed: Any = method
    return dataclasses.replace(changed, **{name: other})


def _averaged(subject: Subject, method: Anonymizer, rows: Rows) -> Faces:
    if not method.traits.stochastic:
        raise NotApplicable(f"{method.name} draws nothing: all its results of one image are alike")
    total = np.zeros_like(subject.clear(rows).images, dtype=np.float32)
    for draw in range(DRAWS):
        seeded: Any = method
        total += subject.anonymised(rows, dataclasses.replace(seeded, seed=seeded.seed + draw)).images
    return subject.clear(rows).with_images(np.rint(total / DRAWS).astype(np.uint8))


# -- names ------------------------------------------------------------------------------------------------------------


def titles(specs: Sequence[str]) -> dict[str, str]:
    """A name for tables for each attacker NAME:KEY=VALUE,…: short, no two alike, without folders and secrets."""
    out: dict[str, str] = {}
    for text in dict.fromkeys(specs):
        name, given = _shown(text)
        title = _spelled(name, given)
        if len(title) > LONGEST:  # what tells it from the others of its name
            kin = [other for spec in specs if spec != text for kind, other in [_shown(spec)] if kind == name]
            title = _spelled(name, {k: v for k, v in given.items() if any(one.get(k) != v for one in kin)})
        if len(title) > LONGEST or title in out.values():
            title = f"{name}:{digest(text)[:6]}"
        out[text] = title
    return out


def shareable(text: str) -> str:
    """An attacker's specification without folders of this machine and secrets; "auto" is none."""
    return text if text == "auto" else _spelled(*_shown(text))


def _shown(text: str) -> tuple[str, dict[str, str]]:
    name, given = parse_spec(text)
    return name, public(REVERSERS, name, given)


def _spelled(name: str, given: dict[str, str]) -> str:
    parameters = ",".join(f"{key}={value}" for key, value in given.items())
    return f"{name}:{parameters}" if parameters else name


# -- several guesses at each probe -------------------------------------------------------------------------------------

_LEAST = 2  # People in each half, enrolled and not, by whom a threshold is chosen
_POINTS = 200  # Of a curve


@dataclass(frozen=True)
class Read:
    """What a judge reads in the candidates of P probes and in the gallery.

    Args:
        candidates: [P,n,D].
        people: int64 [P].
        gallery: [G,D].
        enrolled: int64 [G].
    """

    candidates: Embeddings
    people: Rows
    gallery: Embeddings
    enrolled: Rows
    metric: Any

    def names(self, guesses: int | None = None) -> Rows:
        """[P] the people found, by so many guesses; None: by all."""
        return retrieve(self.candidates[:, :guesses], self.gallery, self.enrolled, self.metric).found


def stranger_figures(read: Read, known: Rows, bootstrap: Bootstrap) -> tuple[tuple[Figure, ...], list[list[float]]]:
    """How well the least distance separates strangers (positive) from `known` people (Revelio, §4.3, §5.5).

    The threshold of each half of the people has the best balanced accuracy on the other half. Returns figures, and the
    curve as [FPR, TPR] points.
    """
    kept, stranger = np.isin(read.enrolled, known), ~np.isin(read.people, known)
    halves_ = _both_halves(read.people, stranger, bootstrap.seed)
    if halves_ is None or not kept.any():
        why = f"fewer than {2 * _LEAST} people are enrolled, or strangers, and no threshold can be chosen"
        return tuple(Figure(f"stranger {what}", None, note=why) for what in ("TPR", "FPR", "accuracy", "AUC")), []
    least = retrieve(read.candidates, read.gallery[kept], read.enrolled[kept], read.metric).lowest.astype(np.float64)
    flagged, thresholds = np.zeros(len(least), bool), []
    for half in (halves_, ~halves_):  # decided by the threshold of the other half
        thresholds.append(choose_threshold(least[~half & ~stranger], least[~half & stranger]))
        flagged[half] = least[half] > thresholds[-1]
    curve = ood_curve(least[~stranger], least[stranger])
    note = "thresholds are chosen on the other half of the people"
    sample = Sample(read.people, bootstrap)
    figures = (
        sample.share("stranger TPR", np.where(stranger, flagged, np.nan), note),
        sample.share("stranger FPR", np.where(stranger, np.nan, flagged), note),
        sample.share("stranger accuracy", flagged == stranger, note),
        Figure("stranger AUC", curve.auc, n=len(least), unit="images"),
        Figure(
            "stranger threshold",
            float(np.mean(thresholds)),
            n=len(least),
            unit="images",
            note=f"the mean of {min(thresholds):.4g} and {max(thresholds):.4g}",
        ),
    )
    points = [[float(f"{x:.5g}"), float(f"{y:.5g}")] for x, y in zip(curve.fpr[::-1], curve.tpr[::-1], strict=True)]
    step = max(1, -(-len(points) // _POINTS))
    return figures, [*points[:-1:step], points[-1]]


def _both_halves(people: Rows, stranger: NDArray[np.bool_], seed: int) -> NDArray[np.bool_] | None:
    """[P] probes of one half of the people; both halves hold strangers and others. None: there are too few."""
    chosen: list[Rows] = []
    for mask in (stranger, ~stranger):
        who = generator(seed, "threshold").permutation(np.unique(people[mask]))
        if len(who) < 2 * _LEAST:
            return None
        chosen.append(who[: len(who) // 2])
    return np.isin(people, np.concatenate(chosen))
