"""What attackers learn from, how they learn it, and what they make of anonymised probes before a judge reads them."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property, partial
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from sklearn.decomposition import PCA
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from ficgan.anonymizers import Anonymizer, Faces
from ficgan.identity.ksame import k_same_layers
from ficgan.lab import Ficgan
from ficgan.lab.attacks import REVERSERS, Pairs, Reverser, reverser_of
from ficgan.lab.attacks.learned import WEIGHTS, Learned, Trained, load_attacker
from ficgan.lab.attacks.revelio import Revelio, fine_tune, retrieve
from ficgan.lab.bench import Bench, NotApplicable, Subject, content, known
from ficgan.lab.matrix_config import Attacker, Scenario, public
from ficgan.lab.metrics.privacy import Scores, auc, chance, eer, rank
from ficgan.lab.readers import Embeddings, retrain_head
from ficgan.lab.results import Figure, Trial
from ficgan.lab.run import Say, digest, fingerprint
from ficgan.lab.sets import Rows
from ficgan.registry import parse_spec

DRAWS = 8  # Anonymisations of one image that are averaged
LONGEST = 80  # Letters of an attacker's name in a table
Turn = Callable[[Faces, Rows], Faces]  # Pictures and the rows they are of → the pictures as they are read
_BLOCK = 8  # Probes whose candidates are drawn together and kept: what an interrupted run does not draw again


def unturned(faces: Faces, rows: Rows) -> Faces:
    """Pictures are read as they are."""
    return faces


@dataclass(frozen=True)
class TrainedAttacker:
    """A reverser and what it may learn from (None: nothing); trained on demand and kept, as its guesses are."""

    title: str
    reverser: Reverser
    pairs: Pairs | None
    bench: Bench
    say: Say

    @cached_property
    def fitted(self) -> Reverser:
        if self.pairs is None or not isinstance(self.reverser, Learned):
            return self.reverser if self.pairs is None else self.reverser.fit(self.pairs)
        with self.bench.store.workspace(["attacker", *self.mark]) as folder:

            def report(done: int, total: int | None, stage: str) -> None:
                self.say(f"{self.title}: {stage}, {done} of {total}")

            return self.reverser.fit(self.pairs, workspace=folder, progress=report)

    @property
    def training(self) -> str:
        """For how long it has been trained, and why that ended; "–" where no network is."""
        record = getattr(self.fitted, "record", {})
        return f"{record['epochs']} epochs, ended: {record['ended']}" if "ended" in record else "–"

    def restored(self, seen: Faces, rows: Rows) -> Faces:
        """Its one guess at each of the images at `rows` as they are `seen`, back in its place."""
        return self.bench.part(rows, seen.images).anonymise(lambda faces: self._guesses(faces, 1)[:, 0])

    def reads(self, seen: Faces, rows: Rows, gallery: Rows, count: int, turn: Turn = unturned) -> dict[str, Read]:
        """What each judge reads in `count` guesses at each image; an attacker's only guess is read as often."""
        bench = self.bench
        found: dict[str, list[Embeddings]] = {reader.name: [] for reader in bench.readers}
        for begin in range(0, len(rows), _BLOCK):
            self.say(f"{self.title}: {count} guesses at each of {len(rows)} faces, {begin} done")
            some = np.arange(begin, min(begin + _BLOCK, len(rows)))
            part = bench.part(rows[some], seen.images[some])
            guesses = self._guesses(part.regions(), count)
            shown = [turn(part.with_regions(guesses[:, n]), rows[some]) for n in range(count)]
            for reader in bench.readers:
                found[reader.name].append(np.stack([bench.embed(reader, faces) for faces in shown], axis=1))
        out, enrolled = dict[str, Read](), bench.clear(gallery)
        for reader in bench.readers:
            candidates, codes = np.concatenate(found[reader.name]), bench.embed(reader, enrolled)
            out[reader.name] = Read(candidates, bench.people[rows], codes, bench.people[gallery], reader.metric)
        return out

    def _guesses(self, faces: Faces, count: int) -> NDArray[np.uint8]:
        """[N,count,S,S,3]; those of networks are kept."""
        if not isinstance(self.reverser, (Learned, Trained)):
            return self.fitted.reverse(faces, count)
        key = ["guesses", count, *self.mark, content(faces), list(faces.names)]
        return self.bench.store.kept(key, lambda: self.fitted.reverse(faces, count))

    @cached_property
    def mark(self) -> list[Any]:
        """Of the attacker and all that it learns from."""
        return [fingerprint(self.reverser), None if self.pairs is None else mark_of(self.pairs)]


@dataclass(frozen=True)
class TunedAttacker(TrainedAttacker):
    """A trained diffusion, trained on with `pairs` (Revelio, §4.4 and §6); `tuning`: arguments of `fine_tune`."""

    base: TrainedAttacker = field(kw_only=True)
    tuning: dict[str, Any] = field(kw_only=True)

    @cached_property
    def fitted(self) -> Reverser:
        given, pairs = cast(Revelio, self.base.fitted), cast(Pairs, self.pairs)
        with self.bench.store.workspace(["tuned", *self.mark]) as folder:
            if folder is None or self.tuning["which"] == "attention":  # one for each face, and soon made again
                return fine_tune(given, pairs, **self.tuning)
            if not (folder / WEIGHTS).exists():
                fine_tune(given, pairs, **self.tuning).save(folder / WEIGHTS)
            return load_attacker(folder / WEIGHTS, device=given.device)

    @cached_property
    def mark(self) -> list[Any]:
        return ["trained on", *self.base.mark, mark_of(cast(Pairs, self.pairs)), self.tuning]


def trained_on(pairs: Callable[[], Pairs], title: str, reverser: Reverser, bench: Bench, say: Say) -> TrainedAttacker:
    """An attacker, to be trained on these pairs where it learns from some."""
    return TrainedAttacker(title, reverser, pairs() if "pairs" in reverser.traits.knowledge else None, bench, say)


def mark_of(pairs: Pairs) -> list[Any]:
    """Digests of pixels and of who is who."""
    who = hashlib.sha256(np.ascontiguousarray(known(pairs.clear)).data).hexdigest()
    return [content(pairs.anonymised), content(pairs.clear), who]


def training_pairs(subject: Subject) -> Pairs:
    """Pairs of the attacker's people, or of the other set it learns from; no probe is ever among them."""
    bench = subject.bench
    if (other := bench.training_set) is not None:  # its people have numbers of their own
        made = other.faces.with_images(subject.made(other, other.digest))
        return Pairs(dataclasses.replace(other, faces=made).regions(), other.regions())
    return bench.pairs(bench.learners, subject.anonymised(bench.learners).images)


def attacked(subject: Subject, scenario: Scenario, rows: Rows) -> dict[str, Faces]:
    """Name of each attacker of a scenario in tables → what it makes of the probes `rows`."""
    kind, method = scenario.attacker, subject.anonymizer
    if not kind:
        return {"": subject.view(scenario.probe, rows)}
    assert method is not None
    if kind == "average":
        return {f"mean of {DRAWS} draws": _averaged(subject, method, rows)}
    anonymised = subject.anonymised(rows)
    if kind == "right key":
        if not method.traits.keyed:
            raise NotApplicable(f"{method.name} has no key")
        return {kind: subject.bench.part(rows, anonymised.images).anonymise(method.invert)}
    chosen = _reversers(subject.bench, method, kind)
    if not chosen:
        raise NotApplicable(f"no {kind} attacker is made for {method.name}")
    pairs = cache(partial(training_pairs, subject))
    made = (trained_on(pairs, title, one, subject.bench, subject.say) for title, one in chosen.items())
    return {one.title: one.restored(anonymised, rows) for one in made}


def _reversers(bench: Bench, method: Anonymizer, kind: Attacker) -> dict[str, Reverser]:
    """Names in tables → attackers of a kind of scenario."""
    named = [text for text in bench.specialised if text != "auto"]
    specs = list(bench.general) if kind == "general" else named
    if kind == "specialised" and "auto" in bench.specialised:
        plain = (name for name in REVERSERS if not issubclass(REVERSERS[name], Learned))
        specs = [name for name in plain if method.name in REVERSERS[name].traits.against]
    names = titles([*bench.general, *named, *specs])
    made = {names[text]: reverser_of(text) for text in specs}
    if bench.training_set is None:
        return made
    origin = f": learnt on {bench.training_set.source['name']}"
    return {title + origin * ("pairs" in one.traits.knowledge): one for title, one in made.items()}


def _averaged(subject: Subject, method: Anonymizer, rows: Rows) -> Faces:
    if not method.traits.stochastic:
        raise NotApplicable(f"{method.name} draws nothing: all its results of one image are alike")
    total = np.zeros_like(subject.bench.clear(rows).images, dtype=np.float32)
    for draw in range(DRAWS):
        seeded: Any = method
        total += subject.anonymised(rows, dataclasses.replace(seeded, seed=seeded.seed + draw)).images
    return subject.bench.clear(rows).with_images(np.rint(total / DRAWS).astype(np.uint8))


def titles(specs: Sequence[str]) -> dict[str, str]:
    """A name for tables for each attacker NAME:KEY=VALUE,…: no two alike, without folders and secrets."""
    out: dict[str, str] = {}
    for text in dict.fromkeys(specs):
        title = shareable(text)
        if len(title) > LONGEST or title in out.values():
            title = f"{parse_spec(text)[0]}:{digest(text)[:6]}"
        out[text] = title
    return out


def shareable(text: str) -> str:
    """An attacker's specification without folders of this machine and secrets; "auto" is none."""
    if text == "auto":
        return text
    name, given = parse_spec(text)
    parameters = ",".join(f"{key}={value}" for key, value in public(REVERSERS, name, given).items())
    return f"{name}:{parameters}" if parameters else name


@dataclass(frozen=True)
class Read:
    """What a judge reads in the candidates of P probes and in the gallery."""

    candidates: Embeddings  # [P,n,D]
    people: Rows  # int64 [P]
    gallery: Embeddings  # [G,D]
    enrolled: Rows  # int64 [G]
    metric: Any

    def names(self, guesses: int | None = None) -> Rows:
        """[P] the people found, by so many guesses; None: by all."""
        return retrieve(self.candidates[:, :guesses], self.gallery, self.enrolled, self.metric).found


Blocks = tuple[NDArray[np.float32], ...]  # Codes [N,D] that are whitened apart and then stand beside one another
Probe = Callable[[Blocks], NDArray[np.float32]]  # Blocks → embeddings [N,D], compared by cosine
_WIDTH = 128  # Principal components kept of one code at most; twice as many revealed less of held-out people (AUC)
_IMAGES_EACH = 8  # Images that each kept component needs
# Name, control as in `Trial` ("codes": nobody outside sees it), and whether the attacker's, the gallery's and the
# probes' codes are read from the de-identified image.
_VIEWS = (
    ("as the generator is given it", "codes", False, False, False),
    ("read from the published image", "", False, False, True),
    ("read from published images, parrot", "", True, True, True),
)


def run_identity_probe(subject: Subject, scenario: Scenario) -> list[Trial]:
    """Identity left in the codes of FICGAN, code by code and probe by probe; trained on the attacker's people."""
    bench, method, split = subject.bench, subject.anonymizer, subject.bench.split
    if not isinstance(method, Ficgan):
        raise NotApplicable("only FICGAN has an identity code that could be averaged and a spatial code that is not")
    who, enrolled, drawn = bench.people[split.probe], bench.people[split.gallery], bench.bootstrap
    trials = []
    for view, control, *published in _VIEWS:
        ceilings = control == "codes"
        places = zip((bench.learners, split.gallery, split.probe), published, strict=True)
        learnt, gallery, seen = (_codes(subject, method, rows, out, ceilings) for rows, out in places)
        for code in learnt:
            for title, probe in fit_probes(learnt[code], bench.people[split.attacker]).items():
                scores = Scores.compare(probe(seen[code]), probe(gallery[code]), who, enrolled, metric="cosine")
                figures = [rank(scores, 1, bootstrap=drawn), auc(scores, bootstrap=drawn), eer(scores)]
                figures.append(Figure("chance", chance(scores), n=scores.enrolled))
                trials.append(subject.trial(scenario, title, figures, f"{code}, {view}", control=control))
    return trials


def _codes(subject: Subject, method: Ficgan, rows: Rows, published: bool, ceilings: bool) -> dict[str, Blocks]:
    """Name → blocks of what can carry an identity, of some rows of the set."""
    bench = subject.bench
    whole = subject.anonymised(rows) if published else bench.clear(rows)
    faces = bench.part(rows, whole.images).regions()
    model = method.face_model
    key = ["codes", model.digest(), content(faces)]
    codes = bench.store.kept(key, lambda: model.codes(method.readings(faces)))
    z_id, z_non = codes["z_id"], codes["z_non"]
    out: dict[str, Blocks] = {"z_non": (z_non,)}
    first, last = k_same_layers(model.num_layers, None if model.band else method.layer, model.band)
    spans = [(low, high) for low, high in ((1, first - 1), (last + 1, model.num_layers)) if low <= high]
    if spans:  # layers, numbered from 1, that keep the source's w: what their affine maps make of it
        w = model.layer_codes(z_id, [layer for low, high in spans for layer in range(low, high + 1)])
        shown = ", ".join(str(low) if low == high else f"{low}–{high}" for low, high in spans)
        out |= {f"w of layers {shown}": (w,), f"z_non + w of layers {shown}": (z_non, w)}
    if ceilings:
        out["z_id"] = (z_id,)
        out |= {reader.name: (bench.embed(reader, whole),) for reader in bench.readers}
    return out


def fit_probes(blocks: Blocks, people: NDArray[np.integer]) -> dict[str, Probe]:
    """Name in tables → a function of codes under which one person's are alike; "linear" is Fisher's discriminant."""
    changes = [whitening(block) for block in blocks]

    def white(given: Blocks) -> NDArray[np.float32]:
        return np.concatenate([change(block) for change, block in zip(changes, given, strict=True)], axis=1)

    head = retrain_head(white(blocks), people)
    return {"whitened cosine": white, "linear probe": lambda given: head(white(given))}


def whitening(codes: NDArray[np.floating]) -> Callable[[NDArray[np.floating]], NDArray[np.float32]]:
    """Standardises [M,D], then turns to as many whitened principal components [M,K] as the images bear."""
    count = min(codes.shape[1], max(1, min(_WIDTH, len(codes) // _IMAGES_EACH)))
    made = make_pipeline(StandardScaler(), PCA(count, svd_solver="covariance_eigh")).fit(codes.astype(np.float64))
    spread = np.sqrt(made[-1].explained_variance_)
    kept = spread > 1e-3 * spread[0]
    return lambda given: (made.transform(given)[:, kept] / spread[kept]).astype(np.float32)
