"""A set made ready, its split and its judges, and its faces as an attacker may see them; everything computed once."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ficgan.anonymizers import Anonymizer, Faces, Images
from ficgan.errors import FicganError, UsageError
from ficgan.lab.metrics.scores import Scores
from ficgan.lab.readers import Embeddings, Reader
from ficgan.lab.scenarios import View
from ficgan.lab.sets import Prepared, Split
from ficgan.lab.stored import Store, digest, fingerprint

__all__ = ["Bench", "NotApplicable", "Refused", "Subject", "anonymiser_for", "content", "known", "pixels_of"]


class Refused(FicganError):
    """A scenario that cannot be run here; its sentence stands in the table in place of a figure."""


class NotApplicable(FicganError):
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
        candidates: guesses at each probe, where an attacker gives several.
        retrieval_probes: at most so many probes are guessed at several times.
        reversal_metrics: whether it is measured how far guesses resemble the clear faces.
        lessons: another set from which attackers learn instead of this one's attacker part, cut alike.
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
    candidates: int = 10
    retrieval_probes: int = 60
    reversal_metrics: bool = True
    lessons: Prepared | None = None
    trainings: dict[tuple[str, str], list[Any]] = field(default_factory=dict)
    """(kind of scenario, title) of attackers that train a network here → key of the training in the store."""
    _ceiling: dict[str, Scores] = field(default_factory=dict)

    @cached_property
    def digest(self) -> str:
        """Of the set's pixels and of its split, on which backgrounds depend."""
        return digest([self.prepared.digest, self.split.digest])

    @property
    def people(self) -> NDArray[np.int64]:
        """[N] of the set."""
        return known(self.prepared.faces)

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

    def embed(self, reader: Reader, faces: Faces) -> Embeddings:
        """Embeddings [N,D], kept under the digests of the judge, of the pixels and of the landmarks."""
        return self.store.array(["embedding", reader.digest, content(faces)], lambda: reader.embed(faces))

    def ceiling(self, reader: Reader) -> Scores:
        """Clear probes against a clear gallery."""
        if reader.name not in self._ceiling:
            gallery, probe = (self.prepared.faces.take(rows) for rows in (self.split.gallery, self.split.probe))
            seen, enrolled = (self.embed(reader, faces) for faces in (probe, gallery))
            self._ceiling[reader.name] = Scores.compare(
                seen, enrolled, known(probe), known(gallery), metric=reader.metric
            )
        return self._ceiling[reader.name]

    def found(self, faces: Faces) -> NDArray[np.bool_]:
        """[N] whether the detector still finds a face in each crop."""
        if self.detector is None:
            return np.ones(len(faces), bool)

        from ficgan.lab.metrics.geometry import detect_faces

        def look() -> NDArray[np.bool_]:
            return detect_faces(self.detector, faces.images, faces.landmarks).found

        return self.store.array(["found", self.detector.name, content(faces)], look)


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


def pixels_of(bench: Bench, anonymizer: Anonymizer, rows: NDArray[np.int64]) -> Faces:
    """Rows of the set, anonymised; kept in the store."""
    return Subject(bench, anonymizer).anonymised(rows)


class Subject:
    """Views of the set under one anonymiser; the same pixels are made once.

    Args:
        bench: set and split.
        anonymizer: None: the clear images.
        say: called with what is at work, where that takes long.
    """

    def __init__(
        self, bench: Bench, anonymizer: Anonymizer | None, *, say: Callable[[str], None] | None = None
    ) -> None:
        self.bench, self.anonymizer = bench, anonymizer
        self.say = say or (lambda text: None)
        self.naive: dict[str, Scores] = {}
        self._blocks: dict[tuple[str, str], Images] = {}

    def clear(self, rows: NDArray[np.int64]) -> Faces:
        return self.bench.prepared.faces.take(rows)

    def anonymised(self, rows: NDArray[np.int64], anonymizer: Anonymizer | None = None) -> Faces:
        """Rows of the tested or of the attacker. Each of the two is anonymised in one go, whatever part of it is asked
        for: methods that look at the whole set (genuine k-same, swaps) then do the same to gallery and probe.
        """
        maker = anonymizer or self.anonymizer
        if maker is None:
            return self.clear(rows)
        split = self.bench.split
        name, block = "tested", np.sort(np.concatenate([split.gallery, split.probe]))
        if not np.isin(rows, block).all():
            name, block = "attacker", np.sort(split.attacker)
        made = self._block(maker, name, block)
        return self.clear(rows).with_images(made[np.searchsorted(block, rows)])

    def lessons(self, anonymizer: Anonymizer | None = None) -> Faces:
        """The other set that attackers learn from, anonymised; its people have numbers of their own."""
        other, maker = self.bench.lessons, anonymizer or self.anonymizer
        assert other is not None
        if maker is None:
            return other.faces
        return other.faces.with_images(self._made(maker, "lessons", other, other.digest))

    def _block(self, maker: Anonymizer, name: str, block: NDArray[np.int64]) -> Images:
        return self._made(maker, name, self.bench.part(block), self.bench.digest)

    def _made(self, maker: Anonymizer, name: str, part: Prepared, origin: str) -> Images:
        mark = fingerprint(maker)
        if mark is None:  # what a program does is its own affair: kept for this task only
            key = (maker.name, name)
            if key not in self._blocks:
                self._blocks[key] = part.anonymise(maker).images
            return self._blocks[key]
        kept = ["pixels", origin, list(part.region), mark, list(part.faces.names)]
        return self.bench.store.array(kept, lambda: part.anonymise(maker).images)

    def view(self, view: View, rows: NDArray[np.int64]) -> Faces:
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
    """Digest of what a judge sees: pixels and landmarks."""
    state = hashlib.sha256(np.ascontiguousarray(faces.images).data)
    state.update(np.ascontiguousarray(faces.landmarks).data)
    return f"{state.hexdigest()} {faces.images.shape}"


def known(faces: Faces) -> NDArray[np.int64]:
    """Who they are; sets without people are refused before."""
    assert faces.people is not None
    return faces.people
