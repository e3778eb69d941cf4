"""A photo's file in, its new file and side-car out, all in memory."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ficgan.errors import InputError
from ficgan.records.sidecars import TOOL, header

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
    """The new file."""
    suffix: str
    """That its format asks for."""
    audit: Mapping[str, Any]
    size: tuple[int, int]
    notes: tuple[str, ...]
    actions: tuple[str, ...]
    reidentified: int
    """Faces that the gate still recognises."""
    input_sha256: str
    synthetic: bool
    metadata: str

    def sidecar(self, path: str, options: Mapping[str, Any], version: str) -> dict[str, Any]:
        """The record of a result at `path` below the output folder."""
        return {
            **self.audit, **header("photo", path, self.size, options), "tool": TOOL, "ficgan": version,
            "output": path.rpartition("/")[2], "sha256": hashlib.sha256(self.data).hexdigest(),
            "input_sha256": self.input_sha256, "synthetic_tag": self.synthetic, "metadata": self.metadata,
            "notes": [*self.notes, *self.audit.get("notes", ())],
        }  # fmt: skip


def new_photo(
    engine: Callable[..., Result], data: bytes, name: str = "photo", *, output: str = "", max_pixels: int,
    tag: bool = True, keep_metadata: bool = False, require_face: bool = False,
) -> NewPhoto:  # fmt: skip
    """De-identify a photo's file.

    Args:
        engine: a `Deidentifier`, or what is called like one.
        data: the file.
        name: for messages.
        output: name of the result, whose suffix may ask for another format; "": as the source was coded.
        max_pixels: larger photos are refused from their header.
        tag: mark generated photos as synthetic media.
        keep_metadata: keep cleaned EXIF and XMP.
        require_face: refuse photos without a face.

    Raises:
        InputError: the file is no photo, a face could not be covered, or there is none and one was required.
    """
    from ficgan.arrays import content_key
    from ficgan.images import encode_image, read_image

    photo = read_image(name, max_pixels=max_pixels, data=data)
    # The key is the picture itself: the same photo gets the same faces under any name.
    result = engine(photo.rgb, key=content_key(photo.rgb))
    if result.uncovered:
        faces = "1 face" if result.uncovered == 1 else f"{result.uncovered} faces"
        raise InputError(f"{name}: {faces} left uncovered, so nothing is given out")
    if require_face and not result.faces:
        raise InputError(f"{name}: no face was found, so nothing is given out")
    actions = tuple(face.action for face in result.faces)
    synthetic = tag and not SYNTHETIC_ACTIONS.isdisjoint(actions)
    path = Path(output or "photo" + _SUFFIXES.get(photo.format, ".png"))
    made = encode_image(path, photo, result.image, synthetic=synthetic, keep_metadata=keep_metadata)
    height, width = result.image.shape[:2]
    return NewPhoto(
        made, path.suffix, result.audit, (width, height), photo.notes, actions, result.reidentified,
        hashlib.sha256(data).hexdigest(), synthetic, "kept" if keep_metadata else "stripped",
    )  # fmt: skip


def as_json(tree: Mapping[str, Any], **options: Any) -> bytes:
    """JSON of an audit: NumPy's numbers as numbers, bytes of names that are no UTF-8 as escapes."""

    def plain(value: Any) -> Any:
        return value.tolist()

    text = json.dumps(tree, default=plain, ensure_ascii=False, **options)
    try:
        return text.encode() + b"\n"
    except UnicodeEncodeError:
        return json.dumps(tree, default=plain, **options).encode() + b"\n"
