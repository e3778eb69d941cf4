"""`--background FACES`: other people's aligned faces, for the methods that need some."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ficgan.errors import FicganError, UsageError

if TYPE_CHECKING:
    from ficgan.anonymizers import Faces

__all__ = ["read_background"]

_LARGEST = 224
"""Side of the crops that are kept, px; the papers' size."""


def read_background(path: str, labels: str | None) -> Faces:
    """A folder, zip or tar of aligned faces as one set in memory, at most 224 px; an UsageError where that fails.

    People come from the labels; else from folders, one per person; else every image is a person.
    """
    import numpy as np

    from ficgan.anonymizers import Faces
    from ficgan.data import open_faces
    from ficgan.data.dataset import check_alignment, decode_rgb
    from ficgan.data.labels import Labels
    from ficgan.faces import Alignment

    try:
        data = open_faces([path], resolution=_LARGEST, labels=labels)
        check_alignment(data, Alignment(), "a background")
        size = min(_LARGEST, *decode_rgb(data.blobs[0]).size)
        data = open_faces([path], resolution=size, labels=labels)
        people = None if data.labels is None else data.labels.people
        if labels is None and all("/" in name for name in data.names):
            people = Labels.from_folders(data.names).people
        images = np.ascontiguousarray(data.resident().permute(0, 2, 3, 1).numpy())
    except FicganError as error:
        raise UsageError(f"--background {Path(path).name}: {error}") from error
    people = np.arange(len(images)) if people is None else people
    known = people >= 0
    return Faces(images[known], tuple(np.array(data.names)[known].tolist()), people=people[known].astype(np.int64))
