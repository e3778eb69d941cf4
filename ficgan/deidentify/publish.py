"""The core verb: a photo's file is read, its faces are replaced, and a new file is encoded."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ficgan.errors import InputError
from ficgan.files import content_key, file_digest
from ficgan.images.read import read_image
from ficgan.images.write import conversions, encode_image
from ficgan.policy import Result

# What a generative model did to a face; only these earn the synthetic-media tag.
SYNTHETIC_ACTIONS = frozenset({"generated", "retried"})
_SUFFIXES = {"JPEG": ".jpg", "PNG": ".png", "WEBP": ".webp", "TIFF": ".tif", "AVIF": ".avif", "HEIF": ".heic"}


@dataclass(frozen=True, eq=False)
class NewPhoto:
    """The outcome for a photo. Plain data: it may come from another process.

    Args:
        data: the new file; empty where there is a problem.
        suffix: of a file of its format.
        audit: the account of the engine, with a record of every face.
        size: width and height, pixels.
        notes: about the file; those about its faces are in the audit.
        actions: of each face, as in its record.
        synthetic: whether the file is marked as synthetic media.
        metadata: "kept" or "stripped".
        problem: why there is no new file; "" where there is one.
    """

    data: bytes
    suffix: str
    audit: Mapping[str, Any]
    size: tuple[int, int]
    notes: tuple[str, ...]
    actions: tuple[str, ...]
    uncovered: int
    reidentified: int
    input_sha256: str
    synthetic: bool
    metadata: str
    problem: str = ""

    @property
    def objects(self) -> dict[str, int]:
        """How many objects that are no faces were covered, by the name of their detector."""
        return dict(Counter(entry["name"] for entry in self.audit.get("objects", ()) if entry["action"] != "kept"))

    @property
    def all_notes(self) -> list[str]:
        """Notes about the file and its faces."""
        return [*self.notes, *self.audit.get("notes", ())]


def new_photo(
    engine: Callable[..., Result],
    data: bytes | None,
    name: str = "photo",
    *,
    output: str = "",
    max_pixels: int,
    tag: bool = True,
    keep_metadata: bool = False,
    require_face: bool = False,
    refuse: bool = True,
) -> NewPhoto:
    """De-identify a photo's file.

    Args:
        engine: a `Deidentifier`, or a function with its signature.
        data: the file; None: it is read from `name`.
        output: name of the result, whose suffix may ask for another format; "": as the source was coded.
        max_pixels: larger photos are refused from their header.
        tag: mark generated photos as synthetic media.
        refuse: raise an error for what must not be published; False: state it in `problem`.

    Raises:
        InputError: the file is no photo, a face could not be covered, or there is none and one was required.
    """
    photo = read_image(name, max_pixels=max_pixels, data=data)
    digest = file_digest(name) if data is None else hashlib.sha256(data).hexdigest()  # now: it may be replaced
    # The key is the picture itself: the same photo gets the same faces under any name.
    result = engine(photo.rgb, key=content_key(photo.rgb))
    actions = tuple(face.action for face in result.faces)
    synthetic = tag and not SYNTHETIC_ACTIONS.isdisjoint(actions)
    path = Path(output or "photo" + _SUFFIXES.get(photo.format, ".png"))
    problem, made, notes = "", b"", photo.notes
    if result.uncovered:
        problem = f"{name}: {result.uncovered} of {len(actions)} faces left uncovered, so there is no result"
    elif require_face and not actions:
        problem = f"{name}: no face found, so there is no result (a face is required)"
    else:
        made = encode_image(path, photo, result.image, synthetic=synthetic, keep_metadata=keep_metadata)
        notes = (*notes, *conversions(path, photo, unchanged=np.array_equal(result.image, photo.rgb)))
    if problem and refuse:
        raise InputError(problem)
    return NewPhoto(
        made,
        path.suffix,
        result.audit,
        (result.image.shape[1], result.image.shape[0]),
        notes,
        actions,
        result.uncovered,
        result.reidentified,
        digest,
        synthetic,
        "kept" if keep_metadata else "stripped",
        problem,
    )
