"""A set made ready, and everything the judges see in it: clear faces once, each output once."""

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
from ficgan.deidentify import Ficgan
from ficgan.errors import InputError
from ficgan.faces import Alignment, FaceDetector, detector_missing, get_detector, paste_back
from ficgan.lab.metrics.geometry import Detections, detect_faces, quick
from ficgan.lab.metrics.intervals import Bootstrap
from ficgan.lab.metrics.utility import Judges, Readings
from ficgan.lab.papers.sweep import anonymised, mean_figure
from ficgan.lab.readers import Embeddings, Reader, get_readers
from ficgan.lab.results import Figure
from ficgan.lab.sets import Prepared

__all__ = ["DETECTORS", "Eyes", "Lab", "Look", "mean_of", "who_is_who"]

DETECTORS = ("yunet", "centerface")
"""Whose detection rate is asked for."""


@dataclass(frozen=True)
class Eyes:
    """Who looks.

    Args:
        readers: recognisers that had no part in training.
        judges: of utility; its detector is the first of `detectors`.
        detectors: by name, those of `DETECTORS` that are here.
        missing: name of a detector → what it would need.
    """

    readers: Sequence[Reader]
    judges: Judges
    detectors: Mapping[str, FaceDetector]
    missing: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def find(cls, readers: Sequence[str], attributes: Path | None, device: str = "cpu") -> Eyes:
        """All judges whose files are here.

        Raises:
            UsageError: a recogniser that is unknown or not available.
            FicganError: a file that is there cannot be read.
        """
        missing = {name: why for name in DETECTORS if (why := detector_missing(name)) is not None}
        detectors = {name: quick(get_detector(name)) for name in DETECTORS if name not in missing}
        judges = Judges.find(attributes=attributes)
        judges.lpips = judges.inception = None  # the bars are set for SqueezeNet's
        if detectors:
            judges.detector = next(iter(detectors.values()))
        return cls(get_readers(tuple(readers), device), judges, detectors, missing)


@dataclass(frozen=True)
class Look:
    """What was seen in N faces.

    Args:
        faces: they themselves.
        readings: of the judges of utility.
        embeddings: name of a recogniser → [N,D].
        detections: name of a detector → where it found each face.
    """

    faces: Faces
    readings: Readings
    embeddings: Mapping[str, Embeddings]
    detections: Mapping[str, Detections]


@dataclass
class Lab:
    """A set, who looks at it, and what was seen of its clear faces.

    Args:
        name: of the set, for the table.
        prepared: its crops.
        eyes: judges.
        bootstrap: draws people.
        alignment: of the model.
        resolution: R of the model.
        model: whose faces are pasted in; None: the average face's oval.
    """

    name: str
    prepared: Prepared
    eyes: Eyes
    bootstrap: Bootstrap
    alignment: Alignment = field(default_factory=Alignment)
    resolution: int = 128
    model: Ficgan | None = None

    @property
    def faces(self) -> Faces:
        """Clear crops."""
        return self.prepared.faces

    @property
    def people(self) -> NDArray[np.int64]:
        """int64 [N]; every image of somebody unknown is a person of its own."""
        return who_is_who(self.faces)

    @cached_property
    def clear(self) -> Look:
        """What is seen in the clear faces."""
        return self._look(self.faces, None)

    @cached_property
    def softened(self) -> Look:
        """The clear faces at the model's resolution: what its pixels allow, and how steadily the judges read."""
        regions = self.prepared.regions().images
        side = regions.shape[1]
        if self.resolution >= side:
            return self.clear
        soft = np.stack([resize(resize(image, self.resolution), side) for image in regions])
        return self.look(self.prepared.with_regions(soft), recognise=False)

    @cached_property
    def inner(self) -> Lab:
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
            parts = [self.model.composed(regions.take(rows))[1] for rows in chunks]
            out[:, y0:y1, x0:x1] = np.concatenate(parts)
            return out
        nothing = np.zeros((self.resolution, self.resolution, 3), np.uint8)
        for weight, image, marks in zip(out, regions.images, regions.landmarks, strict=True):
            matrix = self.alignment.matrix(marks, self.resolution)
            weight[y0:y1, x0:x1] = paste_back(image, nothing, matrix, colour_match=False).mask
        return out

    def composed(self, anonymizer: Anonymizer) -> Faces:
        """The crops with the inner square anonymised, in chunks."""
        return self.prepared.with_regions(anonymised(anonymizer, self.prepared.regions()))

    def recognised(self, faces: Faces) -> dict[str, Embeddings]:
        """What each recogniser sees in pixels of the same faces: its name → [N,D]."""
        return {reader.name: reader.embed(faces) for reader in self.eyes.readers}

    def look(self, faces: Faces, *, recognise: bool = True) -> Look:
        """What is seen in other pixels of the same faces."""
        return self._look(faces, self.clear, recognise=recognise)

    def take(self, rows: Sequence[int] | NDArray[np.integer]) -> Lab:
        """The same lab for some of its faces."""
        index = np.asarray(rows, np.int64)
        told = self.prepared
        part = replace(
            told,
            faces=told.faces.take(index),
            rows=told.rows[index],
            attributes={name: values[index] for name, values in told.attributes.items()},
            groups={name: tuple(values[i] for i in index) for name, values in told.groups.items()},
        )
        return replace(self, prepared=part)

    def one_each(self, most: int) -> Lab:
        """The first image of each person, of at most so many, whom nobody calls a person: neighbours are strangers."""
        _, first = np.unique(self.people, return_index=True)
        lab = self.take(np.sort(first)[:most])
        return replace(lab, prepared=replace(lab.prepared, faces=replace(lab.faces, people=None)))

    def enrolment(self, *, everybody: bool = True) -> tuple[list[int], list[int]]:
        """Rows of each person's first image, and of the other images.

        Args:
            everybody: False: only people with two images or more.

        Raises:
            InputError: fewer than two people have two images.
        """
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

    def _look(self, faces: Faces, against: Look | None, *, recognise: bool = True) -> Look:
        readings = self.eyes.judges.read(faces, against=None if against is None else against.readings)
        found: dict[str, Detections] = {}
        for name, detector in self.eyes.detectors.items():
            known = readings.detections if detector is self.eyes.judges.detector else None
            found[name] = known or detect_faces(detector, faces.images, faces.landmarks)
        return Look(faces, readings, self.recognised(faces) if recognise else {}, found)


def who_is_who(faces: Faces) -> NDArray[np.int64]:
    """int64 [N] people; every image of somebody unknown is a person of its own."""
    people = np.full(len(faces), -1, np.int64) if faces.people is None else faces.people.copy()
    unknown = people < 0
    people[unknown] = people.max(initial=-1) + 1 + np.arange(unknown.sum())
    return people


def mean_of(lab: Lab, row: str, values: NDArray[Any], note: str = "") -> Figure:
    """The mean of the finite values [N] over the images of a lab, with an interval over its people.

    A single person has none.
    """
    values = np.asarray(values)
    used = np.isfinite(values)
    if not used.any():
        return Figure(row, None, unit="images", note=note or "no image has it")
    figure = mean_figure(row, values[used], lab.people[used], lab.bootstrap, note=note)
    return figure if len(np.unique(lab.people[used])) > 1 else replace(figure, low=None, high=None)
