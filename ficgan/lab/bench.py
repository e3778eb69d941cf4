"""A divided set with its judges and attackers, and the manifest of whom a trained attacker learnt from."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence, Set
from contextlib import suppress
from dataclasses import KW_ONLY, asdict, dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ficgan.anonymizers import ANONYMIZERS, Anonymizer, Faces, Images
from ficgan.deidentify import Deidentifier
from ficgan.errors import FicganError, InputError, UsageError
from ficgan.faces import Face, FaceDetector, get_detector
from ficgan.files import content_key
from ficgan.lab import readers
from ficgan.lab.attacks import REVERSERS, Pairs
from ficgan.lab.attacks.learned import Trained, read_header
from ficgan.lab.matrix_config import MatrixConfig, Scenario, SetConfig, SplitConfig, View, public
from ficgan.lab.metrics import Bootstrap, Sample
from ficgan.lab.metrics.pictures import detect_faces, quick
from ficgan.lab.metrics.privacy import Scores
from ficgan.lab.metrics.utility import Judges, UtilityReadings
from ficgan.lab.readers import Embeddings, Reader
from ficgan.lab.results import Figure, Trial, read_checked
from ficgan.lab.run import Say, Store, digest, fingerprint
from ficgan.lab.sets import GREY, FaceSet, Prepared, Quick, Rows, Split, open_set, prepare, split, without_repeats
from ficgan.registry import parse_spec

MANIFEST = "manifest.json"
SCHEMA = 2
# People whose faces k-same with the usual k = 10 needs, and two who may drop out because no face is found.
LEAST_BACKGROUND = 12
TESTED = 0.25  # Share of the people that are tested where there are too few for the whole protocol
_CHUNK = 256  # Faces that are anonymised together
_BETWEEN = 100  # Faces that are cut between two reports


@dataclass(frozen=True)
class AttackerManifest:
    """Whom an attacker learnt from (hashes of crops and photos), and how the set was divided."""

    config: dict[str, Any]
    data: dict[str, Any]
    split: dict[str, Any]
    learnt: tuple[str, ...]
    photos: tuple[str, ...]
    withheld: tuple[str, ...] = ()
    version: str = ""

    @classmethod
    def read(cls, path: Path) -> AttackerManifest:
        if not path.is_file():
            raise UsageError(f"there is no {path}, which says from whom the attacker learnt; put it back")
        return read_checked(path, cls, (SCHEMA,), "train the attacker again")


def everybody(source: SetConfig) -> FaceSet:
    """The set with the people whom it leaves out."""
    return opened(source.model_copy(update={"limit_people": None}))


def photo_keys(faces: FaceSet, names: Set[str]) -> dict[str, str]:
    """Hash of the bytes of each of these files → its name; unreadable ones are neither learnt from nor tested."""
    out = {}
    for name, blob in zip(faces.names, faces.blobs, strict=True):
        if name in names:
            with suppress(InputError):
                out[hashlib.blake2b(blob.read(), digest_size=16).hexdigest()] = name
    return out


def refuse_the_known(specs: Sequence[str], source: SetConfig, bench: Bench) -> None:
    """Refuse trained attackers that learnt from any photo of a person who is to be tested."""
    given = (parameters for name, parameters in map(parse_spec, specs) if issubclass(REVERSERS[name], Trained))
    files = [Path(parameters["file"]) for parameters in given if parameters.get("file")]
    if not files:
        return
    tested, faces = np.concatenate([bench.split.gallery, bench.split.probe]), bench.prepared.faces
    whole = everybody(source)
    theirs = np.flatnonzero(np.isin(known(faces), known(faces)[tested]))
    found = {content_key(faces.images[row]): faces.names[row] for row in theirs}
    person = dict(zip(whole.names, whole.people.tolist(), strict=True))
    who = {person[faces.names[row]] for row in tested}
    found |= photo_keys(whole, {name for name, each in person.items() if each in who})
    for file in files:
        manifest, header = AttackerManifest.read(file.parent / MANIFEST), read_header(file)
        if header["about"].get("split_sha256") != manifest.split.get("sha256"):
            raise UsageError(f"{file.parent / MANIFEST} is of another training than {file.name}; put back its own")
        if met := sorted(name for key, name in found.items() if key in {*manifest.learnt, *manifest.photos}):
            raise UsageError(
                f"{file.name} learnt from {len({person[name] for name in met})} of the {len(who)} people it would be "
                f"tested on, such as from {met[0]} of {source.name}; give the set and the split of its training"
            )


class NotApplicable(FicganError):
    """A scenario that has no meaning for a method, such as a key for one without."""


@dataclass
class Bench:
    """A divided set, its judges, and the attackers tried on it; the other fields are those of `MatrixConfig`."""

    prepared: Prepared
    split: Split
    readers: Sequence[Reader]
    detector: Any
    store: Store
    _: KW_ONLY
    seed: int = 0
    resamples: int = 1000
    general: Sequence[str] = ("ridge",)
    specialised: Sequence[str] = ("auto",)
    columns: Sequence[str] = ()
    reversal_metrics: bool = True
    attributes: str | None = None
    training_set: Prepared | None = None  # Another set that attackers learn from

    @property
    def name(self) -> str:
        return str(self.prepared.source["name"])

    @property
    def people(self) -> Rows:
        return self.prepared.people

    @property
    def learners(self) -> Rows:
        """Rows of the set that attackers learn from."""
        if not len(self.split.attacker):
            raise UsageError("the split leaves nobody to learn from; set split.attacker, or give a set of more people")
        return self.split.attacker

    def part(self, rows: Rows, images: Images | None = None) -> Prepared:
        return self.prepared.part(rows, images)

    @property
    def bootstrap(self) -> Bootstrap:
        return Bootstrap(max(1, self.resamples), self.seed)

    def clear(self, rows: Rows) -> Faces:
        return self.prepared.faces.take(rows)

    def pairs(self, rows: Rows, images: Images) -> Pairs:
        """The replaced squares of rows of the set in other pixels, and clear."""
        return Pairs(self.part(rows, images).regions(), self.part(rows).regions())

    def sample(self, rows: Rows) -> Sample:
        return Sample(self.people[rows], self.bootstrap)

    @cached_property
    def digest(self) -> str:
        return digest([self.prepared.digest, self.split.digest])

    @cached_property
    def background(self) -> Faces:
        return self.part(self.split.background).regions()

    def embed(self, reader: Reader, faces: Faces) -> Embeddings:
        """Embeddings [N,D], kept under the digests of the judge, of the pixels and of the landmarks."""
        return self.store.kept(["embedding", reader.digest, content(faces)], lambda: reader.embed(faces))

    @cached_property
    def ceilings(self) -> dict[str, Scores]:
        """Clear probes against the clear gallery, by judge."""
        parts = [self.clear(rows) for rows in (self.split.probe, self.split.gallery)]
        people = [known(faces) for faces in parts]
        return {
            reader.name: Scores.compare(*(self.embed(reader, faces) for faces in parts), *people, metric=reader.metric)
            for reader in self.readers
        }

    @property
    def judges(self) -> Judges:
        return find_judges(self.attributes)

    @cached_property
    def readings(self) -> UtilityReadings:
        """What the judges read in the clear probes."""
        return self.judges.read(self.clear(self.split.probe))

    def found(self, faces: Faces) -> NDArray[np.bool_]:
        """[N] whether the detector still finds a face in each crop."""
        if self.detector is None:
            return np.ones(len(faces), bool)
        key = ["found", self.detector.name, content(faces)]
        return self.store.kept(key, lambda: detect_faces(self.detector, faces.images, faces.landmarks).found)


def about(anonymizer: Anonymizer) -> dict[str, Any]:
    """A method in a report: its traits, and its settings without secrets, folders and the arguments of a program."""
    traits = asdict(anonymizer.traits) | {"needs": sorted(anonymizer.traits.needs)}
    return {"name": anonymizer.name, **traits, "settings": public(ANONYMIZERS, anonymizer.name, anonymizer.settings())}


@lru_cache(maxsize=2)
def find_judges(attributes: str | None) -> Judges:
    """The judges of utility that are here, with an attribute classifier, if one is given."""
    return Judges.find(attributes=None if attributes is None else Path(attributes))


class Subject:
    """Views of the set under one anonymiser (None: the clear images), `label` in results; pixels are made once."""

    def __init__(self, bench: Bench, anonymizer: Anonymizer | None, label: str = "", *, say: Say | None = None) -> None:
        if anonymizer is not None and anonymizer.traits.needs & {"background", "overlays"}:
            if not len(bench.split.background):
                raise UsageError(f"{anonymizer.name} needs a background; set split.background, which is empty here")
            anonymizer = anonymizer.fit(bench.background)
        self.bench, self.anonymizer, self.label = bench, anonymizer, label
        self.say: Say = say or (lambda text: None)
        self.naive: dict[str, Scores] = {}
        self._blocks: dict[tuple[str, tuple[str, ...]], Images] = {}

    def anonymised(self, rows: Rows, anonymizer: Anonymizer | None = None) -> Faces:
        """Rows of the tested people or of the attacker's, anonymised.

        Each group is anonymised at once, so that methods that look at the whole set treat gallery and probe alike.
        """
        if self.anonymizer is None:
            return self.bench.clear(rows)
        split = self.bench.split
        block = np.sort(np.concatenate([split.gallery, split.probe]))
        if not np.isin(rows, block).all():
            block = np.sort(split.attacker)
        made = self.made(self.bench.part(block), self.bench.digest, anonymizer)
        return self.bench.clear(rows).with_images(made[np.searchsorted(block, rows)])

    def made(self, part: Prepared, origin: str, anonymizer: Anonymizer | None = None) -> Images:
        """Crops of a part, anonymised and kept under the digest `origin`; of a program, for this task alone."""
        maker = anonymizer or self.anonymizer
        assert maker is not None

        def make() -> Images:
            self.say(f"{len(part)} faces are anonymised")
            return part.anonymise(maker).images

        mark, names = fingerprint(maker), part.faces.names
        if mark is not None:
            return self.bench.store.kept(["pixels", origin, list(part.region), mark, list(names)], make)
        if (maker.name, names) not in self._blocks:
            self._blocks[maker.name, names] = make()
        return self._blocks[maker.name, names]

    def trial(
        self, scenario: Scenario, judge: str, figures: Sequence[Figure], attacker: str = "", **more: Any
    ) -> Trial:
        return Trial(self.bench.name, self.label, scenario.name, judge, attacker, tuple(figures), **more)

    def view(self, view: View, rows: Rows) -> Faces:
        if view in ("surroundings", "inside", "inside anonymised") and self.bench.prepared.whole:
            whole = "the crops of this set are replaced as a whole and have no surroundings; set context above 1"
            raise UsageError(whole) if self.anonymizer is None else NotApplicable(whole)
        part = self.bench.part(rows)
        if "anonymised" in view:
            part = self.bench.part(rows, self.anonymised(rows).images)
        if view == "constant":
            return part.faces.with_images(np.full_like(part.faces.images, GREY))
        return part.surroundings() if view == "surroundings" else part.inside() if "inside" in view else part.faces


def content(faces: Faces) -> str:
    state = hashlib.sha256(np.ascontiguousarray(faces.images).data)
    state.update(np.ascontiguousarray(faces.landmarks).data)
    return f"{state.hexdigest()} {faces.images.shape}"


def known(faces: Faces) -> NDArray[np.int64]:
    """People [N] of faces; sets without people were refused before."""
    assert faces.people is not None
    return faces.people


def anonymised(anonymizer: Anonymizer, faces: Faces) -> Images:
    """All faces in chunks, so that memory is bounded by the output; those of a chunk are each other's targets."""
    out = np.empty_like(faces.images)
    for rows in np.array_split(np.arange(len(faces)), max(1, -(-len(faces) // _CHUNK))):
        out[rows] = anonymizer(faces.take(rows))
    return out


def reconstruct(deid: Deidentifier, crops: Images) -> Images:
    """G(E(x)) of aligned crops, at their own size: [N,S,S,3] uint8 → the same; what the model cannot make is grey."""
    model, size = deid.face_model, crops.shape[1]
    face = Face(np.array([0, 0, size, size], np.float32), deid.alignment.points(size).astype(np.float32), 1.0)
    out = np.full_like(crops, GREY)
    for begin in range(0, len(crops), 32):
        rows = range(begin, min(begin + 32, len(crops)))
        read = dict(zip(rows, model.see([(crops[n], face) for n in rows]), strict=True))
        good = [n for n in rows if not read[n].problem]
        for n, made in zip(good, model.reconstruct([read[n] for n in good]) if good else [], strict=True):
            out[n] = model.on_crop(crops[n], read[n], made)[0]
    return out


def squared_errors(a: Images, b: Images) -> NDArray[np.float64]:
    """[N] mean squared errors on [−1, 1] of pairs [N,S,S,3] uint8."""
    pairs = zip(a, b, strict=True)
    return np.array([np.square(x.astype(np.float32) - y).mean(dtype=np.float64) / 127.5**2 for x, y in pairs])


def opened(config: SetConfig) -> FaceSet:
    """The people and photos of a set that are asked for; nothing is decoded."""
    return open_set(**config.model_dump(include={"path", "layout", "labels", "name", "identity", "limit_people"}))


def prepared_set(
    config: SetConfig, detector: FaceDetector | str | None, store: Path | None, say: Say | None = None
) -> Prepared:
    """A set with its faces cut, from the store where it is there; a detector may be given by name."""

    def report(done: int, total: int | None, text: str) -> None:
        if say is not None and done % _BETWEEN == 0:
            say(f"preparing {config.name}: {done} of {total} faces are cut")

    finder = None
    if detector is not None and not config.aligned:
        finder = Quick(_detector(detector) if isinstance(detector, str) else detector)
    how = config.model_dump(include={"size", "context", "aligned"})
    return prepare(opened(config), detector=finder, cache=store, progress=report, **how)


def sized(source: SetConfig) -> SetConfig:
    """The same for the people whom it has: its name, how many of them at most, and a protocol's split for these.

    Where they are too few for the split, a quarter of them are tested and k-same finds its background.
    """
    faces, sizes = everybody(source), source.split
    total = sizes.background + sizes.attacker + sizes.test
    people = max(2, min(source.limit_people or total, total, faces.identities))
    if people < total:
        test = min(sizes.test, max(2, round(TESTED * people)))
        least = min(LEAST_BACKGROUND, sizes.background, people // 3)
        background = max(least, round(sizes.background * people / total))
        parts = {"background": background, "test": test, "attacker": max(0, people - background - test)}
        sizes = sizes.model_copy(update=parts)
    return source.model_copy(update={"name": faces.name, "limit_people": people, "split": sizes})


def divide(prepared: Prepared, sizes: SplitConfig) -> Split:
    """Who of a set is background, teaches attackers, and is tested; pictures that two parts share are left out."""
    people, names = known(prepared.faces), prepared.faces.names
    return without_repeats(split(people, sizes, names), people, names, prepared.digests())


def divided(config: SetConfig, detector: str, out: Path, say: Say | None = None) -> Bench:
    """A set with its faces cut, divided, without judges; `out/store` keeps the crops."""
    prepared = prepared_set(config, detector, out / "store", say)
    return Bench(prepared, divide(prepared, config.split), (), None, Store(out / "store"))


def describe(bench: Bench, source: SetConfig) -> dict[str, Any]:
    """What a report says of a set of a matrix, with the digest of all in it that a trial depends on."""
    prepared, parts = bench.prepared, bench.split
    facts, learnt_from = prepared.facts(), dict[str, Any]()
    if bench.training_set is not None and source.learn_from is not None:
        of = bench.training_set.facts()
        of["licence"] = source.learn_from.licence or of["licence"]
        learnt_from = {"learn_from": {key: of[key] for key in ("name", "faces", "people", "pixels", "licence")}}
    attributes = {name: values.tolist() for name, values in prepared.attributes.items()}
    labels = digest([attributes, {name: list(values) for name, values in prepared.groups.items()}])
    return {
        **facts,
        **learnt_from,
        "digest": digest([facts["pixels"], parts.digest, labels, learnt_from]),
        "licence": source.licence or facts["licence"],
        "size": source.size,
        "context": source.context,
        "split": parts.manifest,
    }


def open_bench(config: MatrixConfig, source: SetConfig, out: Path) -> Bench:
    """A set of a matrix with all that its trials need; `out/store` keeps crops, pixels and embeddings."""
    return _cached_bench(config.model_dump_json(), source.name, out)


@lru_cache(maxsize=2)
def _cached_bench(text: str, name: str, out: Path) -> Bench:
    config = MatrixConfig.model_validate_json(text)
    source = next(source for source in config.sets if source.name == name)
    bench = divided(source, config.detector, out)
    refuse_the_known(config.named_attackers, source, bench)
    same = {"seed", "resamples", "general", "specialised", "reversal_metrics", "attributes"}
    return replace(
        bench,
        readers=readers.get_readers(tuple(config.recognisers)),
        detector=quick(_detector(config.detector)),
        columns=config.groups,
        training_set=_other_set(source, bench.prepared, config.detector, out),
        **config.model_dump(include=same),
    )


def _other_set(source: SetConfig, prepared: Prepared, detector: str, out: Path) -> Prepared | None:
    """The other set that attackers learn from, cut like this one, without pictures that are in both."""
    if source.learn_from is None:
        return None
    learnt = source.learn_from.model_copy(update={"size": source.size, "context": source.context})
    other = prepared_set(learnt, detector, out / "store")
    if other.faces.people is None or (other.faces.people < 0).any():
        raise InputError(f"the set {learnt.name} does not say who everybody is; attackers cannot learn from it")
    here = set(prepared.digests())
    return other.part(np.flatnonzero([mark not in here for mark in other.digests()]))


@lru_cache(maxsize=1)
def _detector(name: str) -> FaceDetector:
    return get_detector(name)
