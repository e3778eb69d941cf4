"""What is no face and is covered in photos, too: plates, screens, whatever a detector of the user's finds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from ficgan.deidentify.found import is_inside
from ficgan.errors import UsageError
from ficgan.faces import Face, Paste, blur_face, mosaic_face, plain_mask, solid_mask
from ficgan.faces.objects import ObjectDetector
from ficgan.options import COVERS, Box, parse_cover_also
from ficgan.policy import Result

# The finds of each detector in a photo.
FoundObjects = Mapping[ObjectDetector, Sequence[Face]]
_MASKS: tuple[Callable[..., Paste], ...] = (plain_mask, solid_mask, blur_face, mosaic_face)
_COVERS = dict(zip(COVERS, _MASKS, strict=True))


def load_objects(given: Iterable[str | ObjectDetector], *, device: str = "cpu") -> tuple[ObjectDetector, ...]:
    """Detectors of objects, made of texts such as "plates=FILE.onnx:black"; a UsageError where a name stands twice."""
    made: dict[str, ObjectDetector] = {}
    for entry in given:
        if isinstance(entry, str):
            try:
                name, file, cover = parse_cover_also(entry)
            except ValueError as error:
                raise UsageError(f"cover_also {entry!r} {error}") from None
            entry = ObjectDetector(file, name, cover, device=device)
        if entry.name in made:
            raise UsageError(f"cover_also {entry.name!r} stands twice; give each detector a name of its own")
        made[entry.name] = entry
    return tuple(made.values())


def cover_objects(result: Result, found: FoundObjects, keep: Sequence[Box], *, mask_scale: float = 1.0) -> None:
    """Cover objects in a result, in place, over whatever was done there, and add them to its account.

    Args:
        found: objects, in pixels of the photo.
        keep: boxes in which they stay.
        mask_scale: as of faces; below 1 it counts as 1.
    """
    entries: list[dict[str, Any]] = []
    for detector, faces in found.items():
        for face in faces:
            kept = is_inside(face.box, keep)
            if not kept:
                paste = _COVERS[detector.cover](result.image, face, mask_scale=max(1.0, mask_scale))
                paste.onto(result.image, result.mask)
            entries.append(
                {
                    "name": detector.name,
                    "box": [round(float(value), 1) for value in face.box],
                    "score": round(face.score, 4),
                    "action": "kept" if kept else detector.cover,
                }
            )
    result.audit["objects"] = entries
