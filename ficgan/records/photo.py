"""A photo's file in, its new file and side-car out, all in memory."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ficgan.errors import InputError
from ficgan.files import file_digest
from ficgan.records.sidecars import as_json, header

if TYPE_CHECKING:
    from ficgan.results import Result

__all__ = ["SYNTHETIC_ACTIONS", "NewPhoto", "as_json", "new_photo"]

SYNTHETIC_ACTIONS = frozenset({"generated", "retried"})
"""What a generative model did to a face; only these earn the synthetic-media tag."""
_SUFFIXES = {"JPEG": ".jpg", "PNG": ".png", "WEBP": ".webp", "TIFF": ".tif", "AVIF": ".avif", "HEIF": ".heic"}


@dataclass(frozen=True, eq=False)
class NewPhoto:
    """What became of a photo."""

    data: bytes
    """The new file; empty where there is a problem."""
    suffix: str
    """That its format asks for."""
    audit: Mapping[str, Any]
    size: tuple[int, int]
    notes: tuple[str, ...]
    """About the file; those about its faces are in the audit."""
    actions: tuple[str, ...]
    """What was done to each face."""
    uncovered: int
    reidentified: int
    """Faces that the gate still recognises."""
    input_sha256: str
    synthetic: bool
    metadata: str
    problem: str = ""
    """Why there is no new file."""

    def sidecar(self, path: str, options: Mapping[str, Any]) -> dict[str, Any]:
        """The record of a result at `path` below the output folder."""
        return {
            **self.audit, **header("photo", path, self.size, options, hashlib.sha256(self.data).hexdigest()),
            "input_sha256": self.input_sha256, "synthetic_tag": self.synthetic, "metadata": self.metadata,
            "notes": [*self.notes, *self.audit.get("notes", ())],
        }  # fmt: skip


def new_photo(
    engine: Callable[..., Result], data: bytes | None, name: str = "photo", *, output: str = "", max_pixels: int,
    tag: bool = True, keep_metadata: bool = False, require_face: bool = False, refuse: bool = True,
) -> NewPhoto:  # fmt: skip
    """De-identify a photo's file.

    Args:
        engine: a `Deidentifier`, or what is called like one.
        data: the file; None: it is read from `name`.
        name: of the file; for messages.
        output: name of the result, whose suffix may ask for another format; "": as the source was coded.
        max_pixels: larger photos are refused from their header.
        tag: mark generated photos as synthetic media.
        keep_metadata: keep cleaned EXIF and XMP.
        require_face: refuse photos without a face.
        refuse: raise an error for what must not be published; False: tell it in `problem`.

    Raises:
        InputError: the file is no photo, a face could not be covered, or there is none and one was required.
    """
    from ficgan.arrays import content_key
    from ficgan.images import encode_image, read_image
    from ficgan.images.write import conversions

    photo = read_image(name, max_pixels=max_pixels, data=data)
    digest = file_digest(name) if data is None else hashlib.sha256(data).hexdigest()  # now: it may be replaced
    # The key is the picture itself: the same photo gets the same faces under any name.
    result = engine(photo.rgb, key=content_key(photo.rgb))
    actions = tuple(face.action for face in result.faces)
    synthetic = tag and not SYNTHETIC_ACTIONS.isdisjoint(actions)
    path = Path(output or "photo" + _SUFFIXES.get(photo.format, ".png"))
    problem, made, notes = "", b"", photo.notes
    if result.uncovered:
        faces = "1 face" if result.uncovered == 1 else f"{result.uncovered} faces"
        problem = f"{name}: {faces} left uncovered, so there is no result"
    elif require_face and not actions:
        problem = f"{name}: no face found, so there is no result (a face is required)"
    else:
        made = encode_image(path, photo, result.image, synthetic=synthetic, keep_metadata=keep_metadata)
        notes = (*notes, *conversions(path, photo))
    if problem and refuse:
        raise InputError(problem)
    height, width = result.image.shape[:2]
    return NewPhoto(
        made, path.suffix, result.audit, (width, height), notes, actions, result.uncovered, result.reidentified, digest,
        synthetic, "kept" if keep_metadata else "stripped", problem,
    )  # fmt: skip
