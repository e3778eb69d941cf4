"""A set on the bench of the bars: its judges, and what they read in its clear faces."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ficgan.anonymizers import Anonymizer, Faces, Images
from ficgan.arrays import resize
from ficgan.deidentify import Deidentifier, Ficgan
from ficgan.errors import InputError, UsageError
from ficgan.faces import Alignment, Face, FaceDetector, Recognizer, detector_missing, get_detector, paste_back
from ficgan.lab.bench import FaceBench, anonymised
from ficgan.lab.metrics.pictures import Detections, detect_faces, quick, ssim
from ficgan.lab.metrics.utility import Judges, Readings
from ficgan.lab.probe import Lessons, ShapeAttack, several
from ficgan.lab.readers import Embeddings, Reader, ShapeRecognizer, Shapes, cosines, get_readers
from ficgan.lab.sets import GREY

DETECTORS = ("yunet", "centerface")  # Whose detection rate is measured


@dataclass(frozen=True)
class Panel:
    """The judges, the detectors by name, and what missing detectors would need."""

    readers: Sequence[Reader]
    judges: Judges
    detectors: Mapping[str, FaceDetector]
    missing: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def find(cls, readers: Sequence[str], attributes: Path | None, device: str = "cpu") -> Panel:
        """All judges whose files are here."""
        missing = {name: why for name in DETECTORS if (why := detector_missing(name)) is not None}
        detectors = {name: quick(get_detector(name)) for name in DETECTORS if name not in missing}
        judges = Judges.find(attributes=attributes)
        judges.lpips = judges.inception = None  # the bars are set for SqueezeNet's
        if detectors:
            judges.detector = next(iter(detectors.values()))
        return cls(get_readers(tuple(readers), device), judges, detectors, missing)


@dataclass(frozen=True)
class Observation:
    """What was seen in N faces.

    Args:
        embeddings: name of a recogniser → [N,D].
        detections: name of a detector → where it found each face.
    """

    faces: Faces
    readings: Readings
    embeddings: Mapping[str, Embeddings]
    detections: Mapping[str, Detections]


@dataclass
class BarsBench(FaceBench):
    """A set and its judges; `model` pastes the faces in, `lessons` are other people who teach shapes."""

    panel: Panel
    shapes: ShapeRecognizer | None = None
    alignment: Alignment = field(default_factory=Alignment)
    resolution: int = 128
    model: Ficgan | None = None
    train: Faces | None = None
    lessons: Lessons | None = None

    @property
    def faces(self) -> Faces:
        return self.prepared.faces

    @property
    def readers(self) -> Sequence[Reader]:
        return self.panel.readers

    @cached_property
    def clear(self) -> Observation:
        return self._observe(self.faces, None, recognise=True)

    @cached_property
    def softened(self) -> Observation:
        """The clear faces at the model's resolution: what its pixels allow, and how steadily the judges read."""
        regions = self.prepared.regions().images
        side = regions.shape[1]
        if self.resolution >= side:
            return self.clear
        soft = np.stack([resize(resize(image, self.resolution), side) for image in regions])
        return self.observe(self.prepared.with_regions(soft), recognise=False)

    @cached_property
    def inner(self) -> BarsBench:
        """The replaced squares as a set of their own, aligned as the model's crops; itself where they are all."""
        if self.prepared.whole:
            return self
        regions = self.prepared.regions()
        side = regions.images.shape[1]
        return replace(self, prepared=replace(self.prepared, faces=regions, region=(0, 0, side, side)))

    @cached_property
    def weights(self) -> NDArray[np.float32]:
        """float32 [N,S,S]: how much of each pixel a pasted face replaces."""
        x0, y0, x1, y1 = self.prepared.region
        regions = self.prepared.regions()
        out = np.zeros(self.faces.images.shape[:3], np.float32)
        if self.model is not None:
            chunks = np.array_split(np.arange(len(out)), len(out) // 64 + 1)
            out[:, y0:y1, x0:x1] = np.concatenate([self.model.composed(regions.take(rows))[1] for rows in chunks])
            return out
        nothing = np.zeros((self.resolution, self.resolution, 3), np.uint8)
        for weight, image, marks in zip(out, regions.images, regions.landmarks, strict=True):
            matrix = self.alignment.matrix(marks, self.resolution)
            weight[y0:y1, x0:x1] = paste_back(image, nothing, matrix, colour_match=False).mask
        return out

    def region_alone(self, faces: Faces) -> Faces:
        """Pixels of the same faces with all grey but what a pasted face replaces."""
        return greyed(faces, self.weights < 0.999)

    @cached_property
    def clear_region(self) -> dict[str, Embeddings]:
        """What each recogniser sees in the clear faces' replaced regions alone."""
        return self.recognised(self.region_alone(self.faces))

    @cached_property
    def clear_shapes(self) -> Shapes:
        return self._shapes_of(self.faces)

    @cached_property
    def shape_attack(self) -> ShapeAttack:
        """The judges of shape, taught by the lessons if these have enough people, else by the set."""
        lessons = self.lessons
        enough = lessons is not None and 2 * len(several(lessons[1])) >= len(several(self.people))
        taught = lessons if enough else None
        return ShapeAttack(self.clear_shapes, self.people, *self.enrolment(), lessons=taught, seed=self.seed)

    def read_shapes(self, faces: Faces) -> Shapes:
        return self.clear_shapes if faces is self.faces else self._shapes_of(faces)

    def _shapes_of(self, faces: Faces) -> Shapes:
        assert self.shapes is not None
        return self.shapes.read(faces.images, faces.landmarks)

    def composed(self, anonymizer: Anonymizer) -> Faces:
        return self.prepared.with_regions(anonymised(anonymizer, self.prepared.regions()))

    def recognised(self, faces: Faces) -> dict[str, Embeddings]:
        """What each recogniser sees in pixels of the same faces: its name → [N,D]."""
        return {reader.name: reader.embed(faces) for reader in self.readers}

    def observe(self, faces: Faces, *, recognise: bool = True) -> Observation:
        """What is seen in other pixels of the same faces."""
        return self._observe(faces, self.clear.readings, recognise=recognise)

    def take(self, rows: Sequence[int] | NDArray[np.integer]) -> BarsBench:
        return replace(self, prepared=self.part(rows))

    def one_each(self, most: int) -> BarsBench:
        """The first image of each person, of at most so many, with nobody named: neighbours are strangers."""
        _, first = np.unique(self.people, return_index=True)
        prepared = self.part(np.sort(first)[:most])
        return replace(self, prepared=replace(prepared, faces=replace(prepared.faces, people=None)))

    def enrolment(self, *, everybody: bool = True) -> tuple[list[int], list[int]]:
        """Rows of each person's first image, and of the others; or only people with two images or more."""
        who, counts = np.unique(self.people, return_counts=True)
        several = set(who[counts > 1].tolist())
        if len(several) < 2:
            raise InputError(f"{len(several)} people of {self.name} have two images; at least 2 are needed")
        first: dict[int, int] = {}
        others = []
        for row, person in enumerate(self.people.tolist()):
            if (everybody or person in several) and first.setdefault(person, row) != row:
                others.append(row)
        return list(first.values()), others

    def embed(self, reader: Reader, images: Images | Faces) -> Embeddings:
        """By one recogniser, at the landmarks of the clear faces."""
        return reader.embed(images if isinstance(images, Faces) else self.faces.with_images(images))

    def _observe(self, faces: Faces, against: Readings | None, *, recognise: bool) -> Observation:
        readings = self.panel.judges.read(faces, against=against)
        found: dict[str, Detections] = {}
        for name, detector in self.panel.detectors.items():
            known = readings.detections if detector is self.panel.judges.detector else None
            found[name] = known or detect_faces(detector, faces.images, faces.landmarks)
        return Observation(faces, readings, self.recognised(faces) if recognise else {}, found)


def greyed(faces: Faces, hidden: NDArray[np.bool_]) -> Faces:
    """The faces with pixels [N,S,S] hidden."""
    images = faces.images.copy()
    images[hidden] = GREY
    return faces.with_images(images)


LEAST_SIDE = 128  # Of aligned crops that judges see, px; models of more see and are judged at their own size
Image = NDArray[np.uint8]
Pictures = Sequence[Image] | Image


def measure_aligned(
    deid: Deidentifier,
    crops: Image,
    *,
    layers: Sequence[int],
    judges: Sequence[Recognizer],
    detector: FaceDetector | None = None,
) -> list[dict[str, Any]]:
    """Figures on aligned crops [N,S,S,3] uint8 RGB of different people: strangers, reconstruction, then each i."""
    if len(crops) < 2:
        raise UsageError(f"{len(crops)} faces are too few to measure with; give at least 2")
    marks = [deid.alignment.points(crops.shape[1]).astype(np.float32)] * len(crops)
    table = _FirstFigures(crops, marks, judges, detector)
    rebuilt = reconstruct(deid, crops)
    error, alike = fidelity(crops, rebuilt)
    rows = [table.strangers(), table.row("reconstruction", rebuilt, mse=round(error, 4), ssim=round(alike, 4))]
    return rows + [table.row(f"i = {layer}", deid.aligned(crops, layer=layer)[0]) for layer in layers]


def measure_photos(
    deid: Deidentifier, photos: Sequence[Image], *, layers: Sequence[int], judges: Sequence[Recognizer]
) -> list[dict[str, Any]]:
    """Figures on whole photos of different people: strangers, then each i; undetected faces are left out."""
    found = [deid.detector.detect(photo) for photo in photos]
    usable = sum(map(bool, found))
    if usable < 2:
        found_in = f"{deid.detector.name} found a face in {usable} of {len(photos)} photos"
        raise UsageError(f"{found_in}; give at least 2 with one")
    table = _FirstFigures(photos, [faces[0].landmarks if faces else None for faces in found], judges, deid.detector)
    rows = [table.strangers() | {"detected": round(usable / len(photos), 4)}]
    for layer in layers:
        published = [deid(photo, key=str(index), layer=layer).image for index, photo in enumerate(photos)]
        rows.append(table.row(f"i = {layer}", published))
    return rows


@dataclass
class _FirstFigures:
    """Rows of `ficgan measure` without the bars: outputs against the pictures they were made of, judge by judge."""

    images: Pictures
    marks: Sequence[NDArray[np.float32] | None]
    judges: Sequence[Recognizer]
    detector: FaceDetector | None

    @cached_property
    def clear(self) -> dict[str, Embeddings]:
        return self._seen(self.images)

    def strangers(self) -> dict[str, Any]:
        others = {name: np.roll(codes, 1, 0) for name, codes in self.clear.items()}
        return self.row("clear", self.images, others)

    def row(
        self, setting: str, pictures: Pictures, made: Mapping[str, Embeddings] | None = None, **more: float
    ) -> dict[str, Any]:
        codes, similarity, matched = made or self._seen(pictures), {}, {}
        if self.detector is not None:
            more["detected"] = round(float(np.mean([bool(self.detector.detect(one)) for one in pictures])), 4)
        for judge in self.judges:
            pairs = self.clear[judge.name], codes[judge.name]
            similarity[judge.name] = round(float(cosines(*pairs).mean()), 3)
            matched[judge.name] = round(float(np.mean([judge.is_match(*pair) for pair in zip(*pairs, strict=True)])), 3)
        return {"setting": setting, "images": len(self.images), **more, "similarity": similarity, "matched": matched}

    def _seen(self, pictures: Pictures) -> dict[str, Embeddings]:
        pairs = [(one, mark[None]) for one, mark in zip(pictures, self.marks, strict=True) if mark is not None]
        return {judge.name: np.stack([judge.embed(*pair)[0] for pair in pairs]) for judge in self.judges}


def reconstruct(deid: Deidentifier, crops: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """G(E(x)) of aligned crops, at their own size: [N,S,S,3] uint8 → the same; what the model cannot make is grey."""
    model, size = deid.face_model, crops.shape[1]
    face = Face(np.array([0, 0, size, size], np.float32), deid.alignment.points(size).astype(np.float32), 1.0)
    out = np.full_like(crops, 127)
    for begin in range(0, len(crops), 32):
        rows = range(begin, min(begin + 32, len(crops)))
        sights = dict(zip(rows, model.see([(crops[n], face) for n in rows]), strict=True))
        good = [n for n in rows if not sights[n].problem]
        for n, made in zip(good, model.reconstruct([sights[n] for n in good]) if good else [], strict=True):
            out[n] = model.on_crop(crops[n], sights[n], made)[0]
    return out


def squared_errors(a: Images, b: Images) -> NDArray[np.float64]:
    """[N] mean squared errors on [−1, 1] of pairs [N,S,S,3] uint8."""
    pairs = zip(a, b, strict=True)
    return np.array([np.square(x.astype(np.float32) - y).mean(dtype=np.float64) / 127.5**2 for x, y in pairs])


def fidelity(a: Images, b: Images) -> tuple[float, float]:
    """Mean squared error on [−1, 1] and mean SSIM of pairs [N,S,S,3] uint8."""
    return float(squared_errors(a, b).mean()), float(ssim(a, b).mean())
