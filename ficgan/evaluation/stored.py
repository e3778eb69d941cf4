"""Arrays that are computed once: kept in a folder under the digest of everything they depend on."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ficgan.anonymizers import Anonymizer
from ficgan.images import atomic_write

__all__ = ["Store", "digest", "fingerprint"]

VERSION = 1
"""Raised where code that makes what is stored changes its results."""


class Store:
    """A folder of .npy files.

    Args:
        folder: made where it is missing; None: nothing is kept.
    """

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)

    def array(self, key: list[Any], make: Callable[[], NDArray[Any]]) -> NDArray[Any]:
        """The array of that key; made, and written whole, where it is not there or damaged.

        Args:
            key: JSON-ready; everything the array depends on.
            make: computes it.
        """
        if self.folder is None:
            return make()
        path = self.folder / f"{digest([VERSION, *key])}.npy"
        try:
            found: NDArray[Any] = np.load(path, allow_pickle=False)
            return found
        except (OSError, ValueError, EOFError):
            made = make()
        with atomic_write(path, overwrite=True) as file:
            np.save(file, made, allow_pickle=False)
        return made


def digest(key: Any) -> str:
    """sha256 of something JSON-ready, 32 hex digits."""
    return hashlib.sha256(json.dumps(key, sort_keys=True, default=str).encode()).hexdigest()[:32]


def fingerprint(anonymizer: Anonymizer) -> str:
    """What an anonymiser's output depends on besides its input: name, all fields (keys too), fitted arrays, models."""
    fields: dict[str, Any] = {}
    for field in dataclasses.fields(anonymizer):
        value = getattr(anonymizer, field.name)
        if isinstance(value, np.ndarray):
            value = hashlib.sha256(np.ascontiguousarray(value).tobytes()).hexdigest()
        # Anything else a fitted one carries came of its background, whose digest is in the keys it is used in.
        plain = value is None or isinstance(value, (str, int, float, bool))
        fields[field.name] = value if plain else type(value).__name__
    return digest([anonymizer.name, fields, anonymizer.settings()])
