"""Aligned crops of a face set, with the square that a method may change and what stays around it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ficgan.anonymizers import Anonymizer, Faces, Images
from ficgan.arrays import content_key
from ficgan.errors import InputError

__all__ = ["GREY", "Prepared"]

GREY = 127
"""What stands where nothing may be seen."""


@dataclass(frozen=True)
class Prepared:
    """N aligned faces of a set, made by `prepare`.

    Args:
        faces: crops [N,S,S,3], landmarks in pixels of the crop, people.
        region: x0, y0, x1, y1 of the centred square that is replaced, in pixels of the crop.
        rows: int64 [N], which images of the face set these are.
        attributes: name → uint8 [N].
        groups: name → N texts.
        missed: (name, reason) of images in which no face was acquired.
        cut: names of faces whose box the border of the picture cuts; they are among `faces`.
        source: facts of the face set, and with which detector, size and alignment it was prepared, JSON-ready.
    """

    faces: Faces
    region: tuple[int, int, int, int]
    rows: NDArray[np.int64]
    attributes: dict[str, NDArray[np.uint8]] = field(default_factory=dict)
    groups: dict[str, tuple[str, ...]] = field(default_factory=dict)
    missed: tuple[tuple[str, str], ...] = ()
    cut: tuple[str, ...] = ()
    source: dict[str, Any] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.faces)

    @property
    def whole(self) -> bool:
        """Whether the region is the whole crop."""
        side = self.faces.images.shape[1]
        return self.region == (0, 0, side, side)

    @property
    def digest(self) -> str:
        """sha256 of the pixels of all crops, in their order, 64 hex digits."""
        digest = hashlib.sha256(repr(self.faces.images.shape).encode())
        for image in self.faces.images:
            digest.update(np.ascontiguousarray(image).data)
        return digest.hexdigest()

    def digests(self) -> tuple[str, ...]:
        """A hash of each crop's pixels: equal ones are the same picture."""
        return tuple(content_key(image) for image in self.faces.images)

    def regions(self) -> Faces:
        """The inner squares alone, landmarks in their pixels; not copied where they are the whole crops."""
        if self.whole:
            return self.faces
        x0, y0, x1, y1 = self.region
        inner = np.ascontiguousarray(self.faces.images[:, y0:y1, x0:x1])
        shifted = (self.faces.landmarks - np.array([x0, y0], np.float32)).astype(np.float32)
        return Faces(inner, self.faces.names, shifted, self.faces.people)

    def with_regions(self, images: Images) -> Faces:
        """The crops with other pixels [N,n,n,3] in the inner square, hard-edged: around it they are bit-identical.

        Raises:
            InputError: the images are not of the inner square's size and kind.
        """
        x0, y0, x1, y1 = self.region
        wanted = (len(self), y1 - y0, x1 - x0, 3)
        if images.shape != wanted or images.dtype != np.uint8:
            raise InputError(f"replaced faces must be uint8 {list(wanted)}, not {images.dtype} {list(images.shape)}")
        if self.whole:
            return self.faces.with_images(images)
        out = self.faces.images.copy()
        out[:, y0:y1, x0:x1] = images
        return self.faces.with_images(out)

    def anonymise(self, anonymizer: Anonymizer) -> Faces:
        """The crops with the inner square anonymised, the rest as it was."""
        return self.with_regions(anonymizer(self.regions()))

    def surroundings(self) -> Faces:
        """The crops with the inner square grey: what is left of people without their faces."""
        x0, y0, x1, y1 = self.region
        return self.with_regions(np.full((len(self), y1 - y0, x1 - x0, 3), GREY, np.uint8))

    def inside(self) -> Faces:
        """The crops with everything but the inner square grey."""
        x0, y0, x1, y1 = self.region
        out = np.full_like(self.faces.images, GREY)
        out[:, y0:y1, x0:x1] = self.faces.images[:, y0:y1, x0:x1]
        return self.faces.with_images(out)

    def facts(self) -> dict[str, Any]:
        """What a report says of the set: its source, faces, people, failures to acquire; JSON-ready."""
        people = self.faces.people
        known = np.unique(people[people >= 0]) if people is not None else np.zeros(0)
        return {
            **self.source,
            "faces": len(self),
            "people": len(known),
            "failures_to_acquire": [list(one) for one in self.missed],
            "cut_by_the_border": len(self.cut),
            "region": list(self.region),
            "pixels": self.digest,
        }
