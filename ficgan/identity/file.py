"""The files of ficgan, all safetensors: their header, and the identity bank.

The safetensors library copies every array it reads. A bank of a million codes has 1 GB, of which a draw needs a few MB,
so a large bank is mapped instead.
"""

from __future__ import annotations

import json
import math
import mmap
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ficgan.errors import FicganError, InputError
from ficgan.files import atomic_write, file_digest

__all__ = ["ModelInfo", "file_digest", "file_header", "read_bank", "write_bank"]


def file_header(path: str | Path) -> tuple[str, dict[str, Any]]:
    """Kind ("model", "appearance", "bank", …) and JSON header of a file of ficgan; its arrays stay unread."""
    try:
        with open(path, "rb") as file:
            size = int.from_bytes(file.read(8), "little")
            if not 0 < size < 2**26:
                raise ValueError("it has no header")
            metadata = json.loads(file.read(size)).get("__metadata__", {})
        kind, header = str(metadata.get("kind", "")), json.loads(metadata.get("header", "{}"))
    except (FileNotFoundError, IsADirectoryError):
        raise FicganError(f"{path} does not exist or is not a file; give the path of a ficgan model") from None
    except OSError as error:
        raise FicganError(f"{path} cannot be read: {error.strerror or error}; give a ficgan model") from None
    except (ValueError, AttributeError, RecursionError) as error:
        raise FicganError(f"{path} is damaged or not a safetensors file ({error}); fetch or make it again") from None
    if metadata.get("format") != "ficgan":
        raise FicganError(f"{path} was not written by ficgan; give a ficgan model")
    return kind, header


@dataclass(frozen=True)
class ModelInfo:
    """What a checkpoint's header says beside its weights: of its crops, its training data and its training."""

    alignment: dict[str, Any]
    data: dict[str, Any]
    training: dict[str, Any]

    @classmethod
    def of(cls, path: str | Path) -> ModelInfo:
        """What the header of a network or of an appearance model says."""
        kind, header = file_header(path)
        try:
            if kind in ("model", "appearance"):
                return cls(dict(header["alignment"]), dict(header["data"]), dict(header["training"]))
        except (KeyError, TypeError, ValueError) as error:
            raise FicganError(f"the header of {path} is damaged ({error}); fetch or make it again") from None
        raise FicganError(f"{path} holds a ficgan {kind or 'file'}, not a model")


IN_MEMORY = 64 * 2**20
"""Files up to this many bytes are read whole (some 60 ms with their digest); larger ones are mapped."""

KINDS = {"codes": ("F16", "<f2"), "attributes": ("U8", "u1")}
"""Name in the file → how safetensors and NumPy call its numbers; in this order, so that the codes are aligned."""


def write_bank(
    path: str | Path, codes: NDArray[np.float16], attributes: NDArray[np.uint8], header: Mapping[str, Any]
) -> None:
    """Write codes [N,D], attribute table [N,A] and JSON header as one safetensors file, whole or not at all."""
    given = {"codes": codes, "attributes": attributes}
    arrays = {name: np.ascontiguousarray(given[name], dtype) for name, (_, dtype) in KINDS.items()}
    metadata = {"format": "ficgan", "kind": "bank", "header": json.dumps(header, sort_keys=True)}
    entries: dict[str, Any] = {"__metadata__": metadata}
    end = 0
    for name, array in arrays.items():
        begin, end = end, end + array.nbytes
        entries[name] = {"dtype": KINDS[name][0], "shape": list(array.shape), "data_offsets": [begin, end]}
    start = json.dumps(entries).encode()
    start += b" " * (-len(start) % 8)  # the codes begin at a multiple of 8
    try:
        with atomic_write(path, overwrite=True) as file:
            file.write(len(start).to_bytes(8, "little") + start)
            for array in arrays.values():
                file.write(array.data)
    except InputError as error:
        raise FicganError(str(error)) from None
    except OSError as error:
        raise FicganError(f"{path} cannot be written: {error.strerror or error}") from None


def read_bank(path: str | Path) -> tuple[NDArray[np.float16], NDArray[np.uint8], dict[str, Any], bool]:
    """Codes float16 [N,D], attributes uint8 [N,A], both read-only, the header, and whether the file is mapped.

    Of a large file, which is mapped, only what is used is ever read. To replace a bank that may be in use, move the new
    file to its name, as `write_bank` does. Overwriting it in place changes it under its users, and cutting it ends
    their process.
    """
    path = Path(path)
    if not path.is_file():
        raise FicganError(f"{path} does not exist or is not a file; give the path of a ficgan bank (.safetensors)")
    try:
        with open(path, "rb") as file:
            mapped = os.fstat(file.fileno()).st_size > IN_MEMORY
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if mapped else file.read()
        start = 8 + int.from_bytes(data[:8], "little")
        if not 8 < start <= len(data):
            raise ValueError("its header is cut")
        entries = json.loads(data[8:start])
        metadata = entries.pop("__metadata__", {})
        if metadata.get("format") != "ficgan":
            raise FicganError(f"{path} was not written by ficgan; give a ficgan bank")
        if metadata.get("kind") != "bank":
            raise FicganError(f"{path} holds a ficgan {metadata.get('kind')}, not a bank")
        stated = start + max(entry["data_offsets"][1] for entry in entries.values())
        if stated != len(data):
            raise ValueError(f"it has {len(data)} bytes and states {stated}")
        codes, attributes = (_array(data, start, entries[name], *KINDS[name]) for name in KINDS)
        header = json.loads(metadata["header"])
        if not isinstance(header, dict):
            raise ValueError("its header is no JSON object")
    except (OSError, KeyError, IndexError, TypeError, AttributeError, ValueError, RecursionError) as error:
        raise FicganError(f"{path} is damaged or not a safetensors file ({error}); fetch or build it again") from None
    return codes, attributes, header, mapped


def _array(data: bytes | mmap.mmap, start: int, entry: Mapping[str, Any], kind: str, dtype: str) -> NDArray[Any]:
    shape, (begin, end) = tuple(entry["shape"]), entry["data_offsets"]
    if entry["dtype"] != kind:
        raise ValueError(f"{entry['dtype']} stands where {kind} should")
    if min(begin, *shape) < 0 or end - begin != math.prod(shape) * np.dtype(dtype).itemsize:
        raise ValueError(f"shape {list(shape)} does not fit its {end - begin} bytes")
    return np.ndarray(shape, dtype, data, start + begin)
