"""Crops kept between runs: one file for each set and settings, whole or not at all, without pickles."""

from __future__ import annotations

import zipfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ficgan.errors import InputError
from ficgan.images import atomic_write

__all__ = ["Crops", "keep", "kept"]


@dataclass(frozen=True, eq=False)
class Crops:
    """What was cut from the images of a set.

    Attributes:
        images: uint8 [N,S,S,3] RGB.
        landmarks: float32 [N,5,2], pixels of the crop.
        rows: int64 [N], images of the set they come from.
        cut: bool [N], whether the border of the picture cuts the face.
        missed: int64 [M], images without a crop.
        reasons: M sentences.
    """

    images: NDArray[np.uint8]
    landmarks: NDArray[np.float32]
    rows: NDArray[np.int64]
    cut: NDArray[np.bool_]
    missed: NDArray[np.int64]
    reasons: tuple[str, ...]


def keep(folder: Path, key: str, crops: Crops) -> None:
    """Write crops under a key.

    Raises:
        InputError: the folder cannot be written to.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{folder} cannot be made ({error.strerror}); choose another folder for the cache") from error
    with atomic_write(_path(folder, key), overwrite=True) as file:
        np.savez(
            file,
            images=crops.images,
            landmarks=crops.landmarks,
            rows=crops.rows,
            cut=crops.cut,
            missed=crops.missed,
            reasons=np.array(crops.reasons, dtype=np.str_),
        )


def kept(folder: Path | None, key: str) -> Crops | None:
    """The crops under a key; None where there are none, or where the file is damaged: they are then made anew."""
    # An npz is a zip, whose checksums are compared as it is read.
    if folder is None:
        return None
    try:
        with _path(folder, key).open("rb") as file, np.load(file, allow_pickle=False) as stored:
            arrays = {name: stored[name] for name in stored.files}
            return Crops(**{**arrays, "reasons": tuple(str(reason) for reason in arrays["reasons"])})
    except (OSError, ValueError, LookupError, TypeError, AttributeError, EOFError, zipfile.BadZipFile):
        return None


def _path(folder: Path, key: str) -> Path:
    return folder / f"faces-{key}.npz"
