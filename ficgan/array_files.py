"""Files of ficgan: arrays by name and a JSON header, in safetensors. Nothing is pickled."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ficgan.errors import FicganError, InputError, TakenError, reason
from ficgan.files import write_file


def write_arrays(
    path: str | Path,
    arrays: Mapping[str, NDArray[Any]],
    header: Mapping[str, Any],
    *,
    kind: str,
    overwrite: bool = True,
) -> None:
    """Write arrays and a header as a file of a kind ("bank", …), whole or not at all."""
    from safetensors.numpy import save

    data = save({name: np.ascontiguousarray(array) for name, array in arrays.items()}, metadata_of(kind, header))
    write_bytes(path, data, overwrite=overwrite)


def metadata_of(kind: str, header: Mapping[str, Any]) -> dict[str, str]:
    return {"format": "ficgan", "kind": kind, "header": json.dumps(header, sort_keys=True)}


def write_bytes(path: str | Path, data: bytes, *, overwrite: bool = True) -> None:
    """`write_file` for models: what cannot be written is a FicganError, as what cannot be read is."""
    try:
        write_file(Path(path), data, overwrite=overwrite)
    except TakenError:
        raise
    except InputError as error:
        raise FicganError(str(error)) from None
    except OSError as error:
        raise FicganError(f"{path}: cannot be written ({reason(error)})") from None


def read_arrays(
    path: str | Path, *, kind: str, framework: Literal["numpy", "pt"] = "numpy"
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Arrays by name, or tensors, and the header, of a file of that kind; or a FicganError."""
    from safetensors import SafetensorError, safe_open

    found, header = file_header(path)
    if found != kind:
        raise FicganError(f"{path} holds a ficgan {found!r}, not the {kind!r} that is needed here")
    try:
        with safe_open(str(path), framework=framework) as file:
            return {name: file.get_tensor(name) for name in file.keys()}, header  # noqa: SIM118 (no dictionary)
    except (SafetensorError, OSError) as error:
        raise FicganError(f"{path} is damaged ({error}); fetch or make it again") from None


def file_header(path: str | Path) -> tuple[str, dict[str, Any]]:
    """Kind ("model", "appearance", "bank", …) and JSON header of a file of ficgan; its arrays stay unread."""
    try:
        with open(path, "rb") as file:
            size = int.from_bytes(file.read(8), "little")
            if not 0 < size < 2**26:
                raise ValueError("it has no header")
            metadata = json.loads(file.read(size)).get("__metadata__", {})
        kind, header = str(metadata.get("kind", "")), dict(json.loads(metadata.get("header", "{}")))
    except OSError as error:
        raise FicganError(f"{path} cannot be read ({reason(error)}); give a file of ficgan") from None
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise FicganError(f"{path} is damaged or not a safetensors file ({error}); fetch or make it again") from None
    if metadata.get("format") != "ficgan":
        raise FicganError(f"{path} was not written by ficgan; give a file of ficgan")
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
        if kind not in ("model", "appearance"):
            raise FicganError(f"{path} holds a ficgan {kind or 'file'}, not a model")
        try:
            return cls(dict(header["alignment"]), dict(header["data"]), dict(header["training"]))
        except (KeyError, TypeError, ValueError) as error:
            raise FicganError(f"the header of {path} is damaged ({error}); fetch or make it again") from None
