"""The embedded networks: default model and bank, two face detectors, face mesh, gate, readers of kinds and of glasses.

`manifest.json` lists the files: `{"files": {"NAME": {"role": ROLE, "sha256": HEX, …}}, …}`, and
states the licence, the data, the training record and the measured figures beside them.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

__all__ = ["FOLDER", "check", "manifest", "path"]

FOLDER = Path(__file__).resolve().parent


def manifest() -> dict[str, Any]:
    """The manifest of the embedded files.

    Raises:
        FileNotFoundError: this copy of the package holds no embedded model.
    """
    return json.loads((FOLDER / "manifest.json").read_text(encoding="utf-8"))


def path(role: str) -> Path:
    """Path of an embedded file by its role, such as `model`, `bank` or `gate`.

    Raises:
        FileNotFoundError: this copy of the package holds no embedded model.
        KeyError: the manifest names no file with that role.
    """
    for name, entry in manifest()["files"].items():
        if entry["role"] == role:
            return FOLDER / name
    raise KeyError(role)


def check(name: str) -> str | None:
    """What is wrong with one embedded file: `missing`, `damaged` (its sha256 is not the manifest's), or None."""
    file = FOLDER / name
    if not file.is_file():
        return "missing"
    with file.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    return None if digest == manifest()["files"][name]["sha256"] else "damaged"
