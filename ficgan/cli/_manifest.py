"""`manifest.jsonl` in the output folder: a line of JSON for each file that a run wrote or failed at."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import IO, Any

__all__ = ["MANIFEST", "Manifest"]

MANIFEST = "manifest.jsonl"
_SCHEMA = 1
_TOOL = "ficgan-deid"


class Manifest:
    """Grows by a line a file, so that what is done stays known when a run ends early; of two lines the later counts.

    Args:
        folder: of the outputs; None: nothing is written.
        options: digest of the options that decide what a result looks like.
    """

    def __init__(self, folder: Path | None = None, options: str = "") -> None:
        self._path = None if folder is None else folder / MANIFEST
        self._options = options
        self._file: IO[bytes] | None = None
        self._held = b""
        self._made: dict[str, str] = {}
        self.foreign = False
        """Whether a file of this name is there that is none of ours; it is left alone."""
        if self._path is not None and os.path.lexists(self._path):
            self._read(self._path)

    def is_of_other_options(self, output: Path) -> bool:
        """Whether an earlier run wrote this file, with other options."""
        return self._made.get(self._name(output), self._options) != self._options

    def add(self, output: Path, **record: Any) -> None:
        """Append a line, at once; while there is no folder, since nothing could be written, it is held back."""
        if self._path is None or self.foreign:
            return
        about = {"tool": _TOOL, "schema": _SCHEMA, "output": self._name(output), "options": self._options}
        self._held += json.dumps({**about, **record}, ensure_ascii=True).encode() + b"\n"
        if not self._path.parent.is_dir():
            return
        if self._file is None:
            self._file = self._path.open("ab+", buffering=0)
            if self._file.tell() and not self._ends_with_a_line():
                self._file.write(b"\n")
        self._file.write(self._held)
        self._held = b""

    def close(self) -> None:
        """Close the file, if it was opened."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _name(self, output: Path) -> str:
        assert self._path is not None or not self._made
        folder = output.parent if self._path is None else self._path.parent
        return os.path.relpath(output, folder)

    def _ends_with_a_line(self) -> bool:
        assert self._file is not None
        self._file.seek(-1, os.SEEK_END)
        return self._file.read(1) == b"\n"

    def _read(self, path: Path) -> None:
        lines = 0
        try:
            if path.is_symlink() or not path.is_file():
                raise ValueError("it is no file")
            with path.open("rb") as file:
                for line in file:
                    try:
                        record = json.loads(line)
                    except (ValueError, RecursionError):
                        continue  # cut off when a run ended
                    if not isinstance(record, dict) or record.get("tool") != _TOOL:
                        raise ValueError("another program's")
                    lines += 1
                    if record.get("state") == "written":
                        self._made[str(record.get("output"))] = str(record.get("options"))
        except (OSError, ValueError):
            lines = 0
        self.foreign = not lines and (path.is_symlink() or not path.is_file() or path.stat().st_size > 0)
