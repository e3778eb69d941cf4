"""What a command is given: films, photos, folders of files, other people's faces."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ficgan.errors import FicganError, UsageError
from ficgan.images.formats import FILM_SUFFIXES, WRITABLE_FILMS, film_suffix

if TYPE_CHECKING:
    from ficgan.anonymizers import Faces

__all__ = ["FILM_SUFFIXES", "WRITABLE_FILMS", "film_suffix", "is_address", "is_film", "mirrored", "read_background"]

_ADDRESS = re.compile(r"camera:\d+|[A-Za-z][A-Za-z0-9+.-]+://.*")
_PATTERN = re.compile(r"%0?\d*d")
_ANIMATED = frozenset({".gif", ".webp", ".png", ".apng"})


def is_address(name: str) -> bool:
    """Whether an input is a camera, a stream, or a pattern of numbered images: nothing beside which a result fits."""
    return bool(_ADDRESS.fullmatch(name)) or (bool(_PATTERN.search(Path(name).name)) and not Path(name).exists())


def is_film(path: Path) -> bool:
    """Whether a file is a film rather than a photo: by its suffix, or because it is animated."""
    suffix = path.suffix.lower()
    if suffix in FILM_SUFFIXES:
        return True
    if suffix not in _ANIMATED:
        return False
    import warnings

    from PIL import Image

    try:
        with warnings.catch_warnings(), Image.open(path) as image:
            warnings.simplefilter("ignore")
            return bool(getattr(image, "is_animated", False))
    except Exception:  # what cannot be read is refused later, with the reason
        return False


def mirrored(
    inputs: Sequence[Path], suffixes: Collection[str], *, what: str, advice: str, known: Collection[str] = (),
    twins: list[tuple[Path, Path]] | None = None,
) -> list[tuple[Path, Path]]:  # fmt: skip
    """Every file with its place below an output folder.

    Args:
        inputs: files, which are taken whatever their name, and folders, which are searched.
        suffixes: endings that count in folders, in small letters.
        what: one of them, for messages, such as "image".
        advice: end of a message about an unusable input, such as "give anonymised faces".
        known: endings of names that are other files' companions, and so are no input.
        twins: takes (file, other) for each file that is left out because a link makes it another that is taken.

    Returns:
        (file, place) in order; hidden files and folders are left out, and a file named twice counts once.

    Raises:
        UsageError: an input is not there, or a folder holds no such file.
    """
    found: list[tuple[Path, Path]] = []
    for given in inputs:
        if given.is_dir():
            inside = [
                (path, path.relative_to(given))
                for path in sorted(given.rglob("*"))
                if path.suffix.lower() in suffixes
                and path.is_file()
                and not any(part.startswith(".") for part in path.relative_to(given).parts)
                and not path.name.endswith(tuple(known))
            ]
            if not inside:
                raise UsageError(f"{given} holds no {what}; {advice}")
            found += inside
        elif given.exists():
            found.append((given, Path(given.name)))
        else:
            raise UsageError(f"{given} does not exist; {advice}")
    once: dict[Path, tuple[Path, Path]] = {}
    for path, place in found:
        first, _ = once.setdefault(path.resolve(), (path, place))
        if twins is not None and first.absolute() != path.absolute():
            twins.append((path, first))
    return list(once.values())


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
