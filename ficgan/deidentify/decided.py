"""What a person decided on photos, as a file: `ficgan ui` exports it, `ficgan-deid --decisions` applies it.

A photo's entry has the keys of a film's decisions.json (docs/video-project.md). The photo is a film of one frame, its
faces are the tracks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import Field, NonNegativeInt, PositiveInt, field_validator

from ficgan.deidentify.options import Image
from ficgan.deidentify.pipeline import Deidentifier
from ficgan.deidentify.retouch import CHOICES, Choice, Retouch
from ficgan.errors import InputError, UsageError
from ficgan.faces import Face
from ficgan.folders import Box, Strict, Text, check_schema, checked, read_json
from ficgan.identity.kind import PARTS, parse_parts
from ficgan.policy import Result
from ficgan.video.decisions import Cover, Decider, Decisions, Region
from ficgan.video.tracks import SEEN, Track

__all__ = ["SCHEMA", "Drawing", "FoundFace", "PhotoDecisions", "as_tree", "deciding", "read_decisions"]

SCHEMA = "ficgan-photo-decisions/1"


class Drawing(Strict):
    """How new faces are drawn: what `Deidentifier.with_controls` takes."""

    k: int = Field(3000, ge=2)
    layer: int = Field(0, ge=0)
    psi: float | Literal["auto"] = "auto"
    attributes: Text = Field("", max_length=200)
    keep_kind: Text = ",".join(PARTS)
    fallback: Cover = "plain"

    @field_validator("keep_kind")
    @classmethod
    def _keep_kind(cls, keep_kind: str) -> str:
        try:
            parse_parts(keep_kind)
        except UsageError as error:
            raise ValueError(str(error)) from None
        return keep_kind

    def applied(self, engine: Deidentifier) -> Deidentifier:
        """The engine with these controls; a UsageError where its model cannot do what they ask for."""
        return engine.with_controls(
            k=self.k,
            layer=self.layer,
            psi=self.psi,
            attributes=self.attributes or None,
            keep_kind=self.keep_kind,
            fallback=self.fallback,
        )


class FoundFace(Strict):
    """A face of a photo; decisions name it by its number.

    `draw` is the number of the draw. It gives the same face again only with the seed of the review.
    """

    id: PositiveInt
    box: Box
    landmarks: tuple[tuple[float, float], ...] = Field(min_length=5, max_length=5)
    score: float = Field(gt=0, le=1)
    draw: NonNegativeInt = 0


class PhotoDecisions(Decisions):
    """What was decided on one photo."""

    name: Text = ""
    """For people."""
    analysis: str = Field(pattern=r"^[0-9a-f]{32}$")
    """Hash of the photo's pixels: it tells the photo whatever its name."""
    drawing: Drawing | None = None
    """None: as the engine draws."""
    faces: tuple[FoundFace, ...] = ()
    regions: tuple[Region, ...] = ()

    def modes(self, size: tuple[int, int]) -> list[str]:  # type: ignore[override]
        """What happens to each face of a photo of this width and height."""
        decider = Decider(self, [0.0], size)
        return [
            str(
                decider.mode_of(
                    Track(
                        face.id,
                        0,
                        np.array([face.box], np.float32),
                        np.array([face.landmarks], np.float32),
                        np.array([face.score], np.float32),
                        np.array([SEEN], np.uint8),
                    ),
                    0,
                )
            )
            for face in self.faces
        ]


class _File(Strict):
    schema_: str = Field(alias="schema")
    photos: tuple[PhotoDecisions, ...]


def as_tree(photos: list[PhotoDecisions]) -> dict[str, Any]:
    """The file, JSON-ready."""
    return {"schema": SCHEMA, "photos": [photo.model_dump(mode="json", by_alias=True) for photo in photos]}


def read_decisions(path: Path) -> dict[str, PhotoDecisions]:
    """The decisions of a file, by the photos' hashes."""
    where = str(path)
    photos = checked(_File, check_schema(read_json(path), SCHEMA, where), where).photos
    found: dict[str, PhotoDecisions] = {}
    for photo in photos:
        unknown = set(photo.tracks) - {face.id for face in photo.faces}
        if unknown:
            raise InputError(f"{where}: {photo.name} has no face number {min(unknown)}")
        for mode in {photo.default, *(rule.mode for rule in (*photo.tracks.values(), *photo.boxes, *photo.spans))}:
            if mode not in CHOICES:
                raise InputError(f"{where}: a face of a photo cannot be given {mode!r}; use {', '.join(CHOICES)}")
        twin = found.setdefault(photo.analysis, photo)
        if twin.model_copy(update={"name": photo.name}) != photo:
            raise InputError(f"{where}: {twin.name} and {photo.name} are one picture with different decisions")
    return found


def deciding(engine: Deidentifier, decisions: Mapping[str, PhotoDecisions]) -> Callable[..., Result]:
    """What is called like a `Deidentifier` and does what was decided; other photos are refused."""
    engines: dict[Drawing, Deidentifier] = {}

    def decide(image: Image, *, key: str) -> Result:
        photo = decisions.get(key)
        if photo is None:
            raise InputError("nothing was decided on this photo, or its pixels changed; review it and export again")
        height, width = image.shape[:2]
        faces = [
            Face(np.array(face.box, np.float32), np.array(face.landmarks, np.float32), face.score)
            for face in photo.faces
        ]
        retouch = Retouch(engine, image, key=key, faces=faces)
        modes = photo.modes((width, height))
        choices = [Choice(mode, face.draw) for mode, face in zip(modes, photo.faces, strict=True)]
        for region in photo.regions:
            if region.first == 0:
                retouch.add(region.box, search=False)
                choices.append(Choice(region.mode))
        if photo.drawing is None:
            return retouch.render(choices)
        if photo.drawing not in engines:
            engines[photo.drawing] = photo.drawing.applied(engine)
        return retouch.render(choices, engines[photo.drawing])

    return decide
