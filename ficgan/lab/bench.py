"""A divided set with its judges and attackers, and the manifest of whom a trained attacker learnt from."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Sequence, Set
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ficgan.anonymizers import Anonymizer, Faces, Images
from ficgan.arrays import content_key
from ficgan.errors import FicganError, InputError, UsageError
from ficgan.faces import FaceDetector, get_detector
from ficgan.lab import readers
from ficgan.lab.attacks import REVERSERS
from ficgan.lab.attacks.learned import Trained, read_header
from ficgan.lab.matrix_config import MatrixConfig, SetConfig, SplitConfig, View
from ficgan.lab.metrics import Bootstrap, Sample, one_each_unknown
from ficgan.lab.metrics.pictures import detect_faces, quick
from ficgan.lab.metrics.scores import Scores
from ficgan.lab.pages import read_checked, write_json
from ficgan.lab.readers import Embeddings, Reader
from ficgan.lab.results import Figure
from ficgan.lab.run import Say, Store, digest, fingerprint
from ficgan.lab.sets import FaceSet, Prepared, Quick, Split, open_set, prepare, split, without_repeats
from ficgan.registry import parse_spec

MANIFEST = "manifest.json"
SCHEMA = 2
_WITHOUT_PHOTOS = 1  # Manifests of this version know crops only, which differ where the faces are cut in another way


@dataclass(frozen=True)
class Manifest:
    """Whom an attacker learnt from (hashes of crops and photos), and how the set was divided."""

    config: dict[str, Any]
    data: dict[str, Any]
    split: dict[str, Any]
    learnt: tuple[str, ...]
    photos: tuple[str, ...] = ()
    withheld: tuple[str, ...] = ()
    version: str = ""

    def write(self, path: Path) -> None:
        write_json(path, {"schema": SCHEMA, **dataclasses.asdict(self)})

    @classmethod
    def read(cls, path: Path) -> Manifest:
        """The manifest in a file."""
        if not path.is_file():
            raise UsageError(
                f"there is no {path}: it says from whom the attacker learnt; put back that of its training, "
                "or train again with `ficgan-attack train`"
            )
        return read_checked(path, cls, (SCHEMA, _WITHOUT_PHOTOS), "train the attacker again")


def photo_keys(one: SetConfig, names: Set[str]) -> tuple[str, ...]:
    """Hashes of the image files of a set, sorted: of their bytes, so that folders, archives and crops do not matter."""
    faces = _all_of(one)
    return tuple(sorted(_keys(faces, [row for row, name in enumerate(faces.names) if name in names])))


def refuse_the_known(specs: Sequence[str], one: SetConfig, prepared: Prepared, split: Split) -> None:
    """Refuse trained attackers that learnt from any photo of a person who is to be tested."""
    files = [Path(given["file"]) for text in specs for given in [_trained(text)] if given.get("file")]
    if not files:
        return
    manifests = [_manifest_of(file) for file in files]
    tested = np.concatenate([split.gallery, split.probe])
    people = prepared.faces.people
    assert people is not None
    found = {
        content_key(prepared.faces.images[row]): prepared.faces.names[row]
        for row in np.flatnonzero(np.isin(people, people[tested]))
    }
    faces = _all_of(one)
    mine = {prepared.faces.names[row] for row in tested}
    who = faces.people[[row for row, name in enumerate(faces.names) if name in mine]]
    found |= _keys(faces, np.flatnonzero(np.isin(faces.people, who)).tolist())
    person = dict(zip(faces.names, faces.people.tolist(), strict=True))
    for file, manifest in zip(files, manifests, strict=True):
        known = sorted(name for key, name in found.items() if key in {*manifest.learnt, *manifest.photos})
        if known:
            count = len({person[name] for name in known})
            raise UsageError(
                f"{file.name} learnt from {count} of the {len(np.unique(who))} people it would be tested on, such as "
                f"from {known[0]} of {one.name}; give the set, the options and the split it was trained with, or other "
                "people"
            )


def _trained(spec: str) -> dict[str, str]:
    name, given = parse_spec(spec)
    return given if name in REVERSERS and issubclass(REVERSERS[name], Trained) else {}


def _manifest_of(file: Path) -> Manifest:
    path = file.parent / MANIFEST
    manifest, header = Manifest.read(path), read_header(file)
    if header["about"].get("split_sha256") != manifest.split.get("sha256"):
        raise UsageError(f"{path} is of another training than {file.name} beside it; put back its own")
    if not manifest.photos:
        raise UsageError(
            f"{path} does not say from which photos was learnt; give the same `ficgan-attack train` command once more, "
            "which trains nothing again and writes it down"
        )
    return manifest


def _all_of(one: SetConfig) -> FaceSet:
    return open_set(one.path, layout=one.layout, labels=one.labels, identity=one.identity, name=one.name)


def _keys(faces: FaceSet, rows: Sequence[int]) -> dict[str, str]:
    """Hash of the bytes → name; unreadable files are neither learnt from nor tested."""
    out = {}
    for row in rows:
        try:
            out[hashlib.blake2b(faces.blobs[row].read(), digest_size=16).hexdigest()] = faces.names[row]
        except InputError:
            continue
    return out


Rows = NDArray[np.int64]
_CHUNK = 256  # faces that are anonymised together
_TOLD = 100  # faces that are cut between two reports


class Refused(FicganError):
    """A scenario that cannot be run here; its sentence stands in the table in place of a figure."""


class NotApplicable(FicganError):
    """A scenario that has no meaning for a method, such as a key for one without."""


@dataclass
class FaceBench:
    """Prepared faces whose figures have intervals by people."""

    prepared: Prepared
    _: KW_ONLY
    seed: int = 0
    resamples: int = 1000

    @property
    def name(self) -> str:
        return str(self.prepared.source["name"])

    @cached_property
    def people(self) -> Rows:
        """int64 [N] who is in each crop; every image of somebody unknown is a person of its own."""
        return one_each_unknown(self.prepared.faces.people, len(self.prepared))

    @property
    def bootstrap(self) -> Bootstrap:
        return Bootstrap(max(1, self.resamples), self.seed)

    def sample(self, rows: Rows | None = None) -> Sample:
        return Sample(self.people if rows is None else self.people[rows], self.bootstrap)

    def mean(self, metric: str, values: NDArray[Any], note: str = "") -> Figure:
        """The mean of the finite values [N] of the images, with an interval over people."""
        return self.sample().mean(metric, values, note)

    def part(self, rows: Sequence[int] | NDArray[np.integer], images: Images | None = None) -> Prepared:
        """Some rows of the set with their labels, perhaps in other pixels."""
        index, whole = np.asarray(rows, np.int64), self.prepared
        faces = whole.faces.take(index)
        return replace(
            whole,
            faces=faces if images is None else faces.with_images(images),
            rows=whole.rows[index],
            attributes={name: values[index] for name, values in whole.attributes.items()},
            groups={name: tuple(values[row] for row in index) for name, values in whole.groups.items()},
        )


@dataclass
class Bench(FaceBench):
    """A divided set, its judges, and the attackers tried on it; `lessons` is another set that these learn from."""

    split: Split
    readers: Sequence[Reader]
    detector: Any
    store: Store
    general: Sequence[str] = ("ridge",)
    specialised: Sequence[str] = ("auto",)
    retrain: str = "head"
    columns: Sequence[str] = ()
    candidates: int = 10
    retrieval_probes: int = 60
    reversal_metrics: bool = True
    lessons: Prepared | None = None
    trainings: dict[tuple[str, str], list[Any]] = field(default_factory=dict)
    """(kind of scenario, title) of attackers that train a network here → key of the training in the store."""

    @cached_property
    def digest(self) -> str:
        """Depends on the set's pixels and on its split, from which backgrounds come."""
        return digest([self.prepared.digest, self.split.digest])

    @cached_property
    def background(self) -> Faces:
        return self.part(self.split.background).regions()

    def embed(self, reader: Reader, faces: Faces) -> Embeddings:
        """Embeddings [N,D], kept under the digests of the judge, of the pixels and of the landmarks."""
        return self.store.array(["embedding", reader.digest, content(faces)], lambda: reader.embed(faces))

    @cached_property
    def _ceilings(self) -> dict[str, Scores]:
        return {}

    def ceiling(self, reader: Reader) -> Scores:
        if reader.name not in self._ceilings:
            gallery, probe = (self.prepared.faces.take(rows) for rows in (self.split.gallery, self.split.probe))
            seen, enrolled = (self.embed(reader, faces) for faces in (probe, gallery))
            self._ceilings[reader.name] = Scores.compare(
                seen, enrolled, known(probe), known(gallery), metric=reader.metric
            )
        return self._ceilings[reader.name]

    def found(self, faces: Faces) -> NDArray[np.bool_]:
        """[N] whether the detector still finds a face in each crop."""
        if self.detector is None:
            return np.ones(len(faces), bool)
        return self.store.array(
            ["found", self.detector.name, content(faces)],
            lambda: detect_faces(self.detector, faces.images, faces.landmarks).found,
        )


def anonymiser_for(bench: Bench, anonymizer: Anonymizer) -> Anonymizer:
    """The anonymiser with its background set, where it needs one."""
    if "background" not in anonymizer.traits.needs:
        return anonymizer
    if not len(bench.split.background):
        raise UsageError(f"{anonymizer.name} needs a background set, and this split has none; set split.background")
    return anonymizer.fit(bench.background)


def pixels_of(bench: Bench, anonymizer: Anonymizer, rows: Rows) -> Faces:
    """Rows of the set, anonymised; kept in the store."""
    return Subject(bench, anonymizer).anonymised(rows)


class Subject:
    """Views of the set under one anonymiser (None: the clear images); the same pixels are made once."""

    def __init__(
        self, bench: Bench, anonymizer: Anonymizer | None, *, say: Callable[[str], None] | None = None
    ) -> None:
        self.bench, self.anonymizer = bench, anonymizer
        self.say = say or (lambda text: None)
        self.naive: dict[str, Scores] = {}
        self._blocks: dict[tuple[str, str], Images] = {}

    def clear(self, rows: Rows) -> Faces:
        return self.bench.prepared.faces.take(rows)

    def anonymised(self, rows: Rows, anonymizer: Anonymizer | None = None) -> Faces:
        """Rows of the tested people or of the attacker's, anonymised.

        Each group is anonymised at once, so that methods that look at the whole set treat gallery and probe alike.
        """
        maker = anonymizer or self.anonymizer
        if maker is None:
            return self.clear(rows)
        split = self.bench.split
        name, block = "tested", np.sort(np.concatenate([split.gallery, split.probe]))
        if not np.isin(rows, block).all():
            name, block = "attacker", np.sort(split.attacker)
        made = self._made(maker, name, self.bench.part(block), self.bench.digest)
        return self.clear(rows).with_images(made[np.searchsorted(block, rows)])

    def lessons(self, anonymizer: Anonymizer | None = None) -> Faces:
        """The other set that attackers learn from, anonymised; its people have numbers of their own."""
        other, maker = self.bench.lessons, anonymizer or self.anonymizer
        assert other is not None
        if maker is None:
            return other.faces
        return other.faces.with_images(self._made(maker, "lessons", other, other.digest))

    def _made(self, maker: Anonymizer, name: str, part: Prepared, origin: str) -> Images:
        mark = fingerprint(maker)
        if mark is None:  # what a program does is its own affair: kept for this task only
            key = (maker.name, name)
            if key not in self._blocks:
                self._blocks[key] = part.anonymise(maker).images
            return self._blocks[key]
        kept = ["pixels", origin, list(part.region), mark, list(part.faces.names)]

        def make() -> Images:
            self.say(f"{len(part)} faces are anonymised")
            return part.anonymise(maker).images

        return self.bench.store.array(kept, make)

    def view(self, view: View, rows: Rows) -> Faces:
        if view in ("surroundings", "inside", "inside anonymised") and self.bench.prepared.whole:
            whole = "the crops of this set are replaced as a whole and have no surroundings; set context above 1"
            raise Refused(whole) if self.anonymizer is None else NotApplicable(whole)
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


# -- sets of a configuration ------------------------------------------------------------------------------------------


def opened(config: SetConfig) -> FaceSet:
    """The people and photos of a set that are asked for; nothing is decoded."""
    return open_set(
        config.path,
        layout=config.layout,
        labels=config.labels,
        name=config.name,
        identity=config.identity,
        limit_people=config.limit_people,
        images_per_person=config.images_per_person,
    )


def prepared_set(
    config: SetConfig, detector: FaceDetector | None, store: Path | None, say: Say | None = None
) -> Prepared:
    """A set with its faces cut, from the store where it is there."""
    finder = None if config.aligned or detector is None else Quick(detector)

    def tell(done: int, total: int) -> None:
        if say is not None and done % _TOLD == 0:
            say(f"preparing {config.name}: {done} of {total} faces are cut")

    return prepare(
        opened(config),
        size=config.size,
        context=config.context,
        detector=finder,
        cache=store,
        aligned=config.aligned,
        progress=tell,
    )


def divide(prepared: Prepared, sizes: SplitConfig) -> Split:
    """Who of a set is background, teaches attackers, and is tested; pictures that two parts share are left out."""
    people, names = known(prepared.faces), prepared.faces.names
    parts = split(
        people,
        background=sizes.background,
        attacker=sizes.attacker,
        test=sizes.test,
        enrolment=sizes.enrolment,
        seed=sizes.seed,
        names=names,
    )
    return without_repeats(parts, people, names, prepared.digests())


def divided_set(config: SetConfig, detector: str, out: Path, say: Say | None = None) -> tuple[Prepared, Split]:
    """A set with its faces cut, and its split; `out/store` keeps the crops."""
    prepared = _prepared(config, detector, out, say)
    return prepared, divide(prepared, config.split)


def describe(config: MatrixConfig, one: SetConfig, out: Path, say: Say | None = None) -> dict[str, Any]:
    """What a report says of a set of a matrix, with the digest of all in it that a trial depends on."""
    prepared, parts, other = _checked(config, one, out, say)
    facts = prepared.facts()
    lessons: dict[str, Any] = {}
    if other is not None and one.learn_from is not None:
        of = other.facts()
        lessons = {
            "learn_from": {
                **{key: of[key] for key in ("name", "faces", "people", "pixels")},
                "licence": one.learn_from.licence or of["licence"],
            }
        }
    attributes = {name: values.tolist() for name, values in prepared.attributes.items()}
    labels = digest([attributes, {name: list(values) for name, values in prepared.groups.items()}])
    return {
        **facts,
        **lessons,
        "digest": digest([facts["pixels"], parts.digest, labels, lessons]),
        "licence": one.licence or facts["licence"],
        "size": one.size,
        "context": one.context,
        "split": parts.manifest,
    }


def open_bench(config: MatrixConfig, one: SetConfig, out: Path) -> Bench:
    """A set of a matrix with all that its trials need; `out/store` keeps crops, pixels and embeddings."""
    return _cached_bench(config.model_dump_json(), one.name, out)


@lru_cache(maxsize=2)
def _cached_bench(text: str, name: str, out: Path) -> Bench:
    config = MatrixConfig.model_validate_json(text)
    one = next(one for one in config.sets if one.name == name)
    prepared, parts, lessons = _checked(config, one, out)
    return Bench(
        prepared,
        parts,
        readers.get_readers(tuple(config.recognisers)),
        quick(_detector(config.detector)),
        Store(out / "store"),
        seed=config.seed,
        resamples=config.resamples,
        general=config.general,
        specialised=config.specialised,
        retrain=config.retrain,
        columns=config.groups,
        candidates=config.candidates,
        retrieval_probes=config.retrieval_probes,
        reversal_metrics=config.reversal_metrics,
        lessons=lessons,
    )


def _checked(
    config: MatrixConfig, one: SetConfig, out: Path, say: Say | None = None
) -> tuple[Prepared, Split, Prepared | None]:
    prepared, parts = divided_set(one, config.detector, out, say)
    refuse_the_known(config.named_attackers, one, prepared, parts)
    return prepared, parts, _lessons(one, prepared, config.detector, out, say)


@lru_cache(maxsize=1)
def _detector(name: str) -> FaceDetector:
    return get_detector(name)


def _prepared(config: SetConfig, detector: str, out: Path, say: Say | None = None) -> Prepared:
    return prepared_set(config, None if config.aligned else _detector(detector), out / "store", say)


def _lessons(one: SetConfig, prepared: Prepared, detector: str, out: Path, say: Say | None = None) -> Prepared | None:
    if one.learn_from is None:
        return None
    other = _prepared(one.learn_from, detector, out, say)
    if other.faces.people is None or (other.faces.people < 0).any():
        raise InputError(f"the set {one.learn_from.name} does not say who everybody is; attackers cannot learn from it")
    here = set(prepared.digests())
    rows = np.flatnonzero([mark not in here for mark in other.digests()])
    if not len(rows):
        raise InputError(f"every picture of {one.learn_from.name} is in {one.name}, too; learn from another set")
    return FaceBench(other).part(rows)
