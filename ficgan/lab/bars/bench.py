"""A face set that a model is measured on: its judges, and what they read in its clear faces."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ficgan.anonymizers import Anonymizer, Faces
from ficgan.arrays import resize
from ficgan.deidentify import Ficgan
from ficgan.errors import InputError
from ficgan.faces import FaceDetector, detector_missing, get_detector
from ficgan.lab.bench import anonymised
from ficgan.lab.metrics import Bootstrap, Sample
from ficgan.lab.metrics.pictures import Detections, detect_faces, quick
from ficgan.lab.metrics.utility import Judges, UtilityReadings
from ficgan.lab.readers import Embeddings, ProbeData, Reader, ShapeAttack, ShapeRecognizer, Shapes, get_readers, several
from ficgan.lab.results import Figure
from ficgan.lab.sets import GREY, Prepared

DETECTORS = ("yunet", "centerface")  # Whose detection rate is measured


@dataclass(frozen=True)
class Panel:
    """Recognisers, networks that judge utility, detectors by name, and why a detector is missing."""

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
    """What the judges read in N faces: embeddings [N,D] by recogniser, and where each detector found each face."""

    faces: Faces
    readings: UtilityReadings
    embeddings: Mapping[str, Embeddings]
    detections: Mapping[str, Detections]


@dataclass
class MeasuredSet:
    """A set, its judges, and the model whose faces are pasted in.

    Args:
        train: faces that the model learnt from; None: not known.
        lessons: shapes of other people, who teach the judges of shape.
    """

    prepared: Prepared
    panel: Panel
    shapes: ShapeRecognizer
    model: Ficgan
    resolution: int = 128
    train: Faces | None = None
    lessons: ProbeData | None = None
    bootstrap: Bootstrap = field(default_factory=Bootstrap)

    @property
    def name(self) -> str:
        return str(self.prepared.source["name"])

    @property
    def faces(self) -> Faces:
        return self.prepared.faces

    @property
    def people(self) -> NDArray[np.int64]:
        return self.prepared.people

    @property
    def readers(self) -> Sequence[Reader]:
        return self.panel.readers

    @property
    def sample(self) -> Sample:
        return Sample(self.people, self.bootstrap)

    def mean(self, metric: str, values: NDArray[Any], note: str = "") -> Figure:
        """Mean of the finite values [N], with an interval over people."""
        return self.sample.mean(metric, values, note)

    def take(self, rows: Sequence[int] | NDArray[np.integer]) -> MeasuredSet:
        return replace(self, prepared=self.prepared.part(rows))

    def one_each(self, most: int) -> MeasuredSet:
        """The first image of each person, of at most so many, with nobody named: neighbours are strangers."""
        _, first = np.unique(self.people, return_index=True)
        prepared = self.prepared.part(np.sort(first)[:most])
        return replace(self, prepared=replace(prepared, faces=replace(prepared.faces, people=None)))

    def enrolment(self, *, everybody: bool = True) -> tuple[list[int], list[int]]:
        """Rows of each person's first image, and of the others; or only people with two images or more."""
        twice = set(several(self.people).tolist())
        if len(twice) < 2:
            raise InputError(f"{len(twice)} people of {self.name} have two images; at least 2 are needed")
        first: dict[int, int] = {}
        others = []
        for row, person in enumerate(self.people.tolist()):
            if (everybody or person in twice) and first.setdefault(person, row) != row:
                others.append(row)
        return list(first.values()), others

    @cached_property
    def inner(self) -> MeasuredSet:
        """The replaced squares as a set of their own, aligned as the model's crops; itself where they are all."""
        if self.prepared.whole:
            return self
        regions = self.prepared.regions()
        side = regions.images.shape[1]
        return replace(self, prepared=replace(self.prepared, faces=regions, region=(0, 0, side, side)))

    # -- outputs ------------------------------------------------------------------------------------------------------

    def composed(self, anonymizer: Anonymizer) -> Faces:
        return self.prepared.with_regions(anonymised(anonymizer, self.prepared.regions()))

    @cached_property
    def weights(self) -> NDArray[np.float32]:
        """float32 [N,S,S]: how much of each pixel a pasted face replaces."""
        x0, y0, x1, y1 = self.prepared.region
        regions = self.prepared.regions()
        out = np.zeros(self.faces.images.shape[:3], np.float32)
        chunks = np.array_split(np.arange(len(out)), len(out) // 64 + 1)
        out[:, y0:y1, x0:x1] = np.concatenate([self.model.composed(regions.take(rows))[1] for rows in chunks])
        return out

    def region_alone(self, faces: Faces) -> Faces:
        """The same faces with all grey but what a pasted face replaces."""
        return greyed(faces, self.weights < 0.999)

    # -- what judges read ---------------------------------------------------------------------------------------------

    @cached_property
    def clear(self) -> Observation:
        return self._observe(self.faces, None)

    def observe(self, faces: Faces) -> Observation:
        """What is read in other pixels of the same faces."""
        return self._observe(faces, self.clear.readings)

    @cached_property
    def softened(self) -> Observation:
        """The clear faces at the model's resolution: what its pixels allow, and how steadily the judges read."""
        regions = self.prepared.regions().images
        side = regions.shape[1]
        if self.resolution >= side:
            return self.clear
        soft = np.stack([resize(resize(image, self.resolution), side) for image in regions])
        return self._observe(self.prepared.with_regions(soft), self.clear.readings, recognise=False)

    def recognised(self, faces: Faces) -> dict[str, Embeddings]:
        """Embeddings [N,D] by recogniser of pixels of the same faces."""
        return {reader.name: reader.embed(faces) for reader in self.readers}

    @cached_property
    def clear_region(self) -> dict[str, Embeddings]:
        return self.recognised(self.region_alone(self.faces))

    def read_shapes(self, faces: Faces) -> Shapes:
        return self.clear_shapes if faces is self.faces else self.shapes.read(faces.images, faces.landmarks)

    @cached_property
    def clear_shapes(self) -> Shapes:
        return self.shapes.read(self.faces.images, self.faces.landmarks)

    @cached_property
    def shape_attack(self) -> ShapeAttack:
        """The judges of shape, taught by the lessons if these have enough people, else by the set."""
        lessons = self.lessons
        enough = lessons is not None and 2 * len(several(lessons[1])) >= len(several(self.people))
        taught, seed = lessons if enough else None, self.bootstrap.seed
        return ShapeAttack(self.clear_shapes, self.people, *self.enrolment(), lessons=taught, seed=seed)

    def _observe(self, faces: Faces, against: UtilityReadings | None, *, recognise: bool = True) -> Observation:
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
