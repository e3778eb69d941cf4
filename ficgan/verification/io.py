"""SphereFace weights on disk: safetensors with a JSON header, never a pickle."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from ficgan.errors import InputError
from ficgan.verification.sphereface import SphereFace20

SCHEMA = 1
_KIND = "ficgan.verification.sphereface20"


def save_sphereface(path: Path, network: SphereFace20, training: Mapping[str, Any]) -> None:
    """Write a network and its header, whole or not at all.

    Args:
        path: the .safetensors file; replaced if there.
        network: the weights.
        training: how it was made (data fingerprint, people, steps, accuracy), as JSON values.
    """
    shape = {"channels": network.channels, "units": network.units, "dimensions": network.dimensions}
    header = {"kind": _KIND, "schema": SCHEMA, "network": shape, "training": dict(training)}
    state = {name: value.detach().cpu().contiguous() for name, value in network.state_dict().items()}
    save_whole(path, state, header)


def save_whole(path: Path, tensors: Mapping[str, torch.Tensor], header: Mapping[str, Any]) -> None:
    """Write tensors and a JSON header as safetensors, whole or not at all; replaces `path`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        save_file(dict(tensors), temporary, metadata={"ficgan": json.dumps(header)})
        temporary.chmod(0o644)  # safetensors makes it for its owner alone
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def load_sphereface(path: Path) -> tuple[SphereFace20, dict[str, Any]]:
    """Read a network and its header.

    Raises:
        InputError: the file is missing, damaged, foreign, or of a newer schema.
    """
    try:
        with safe_open(str(path), framework="pt") as file:
            header = json.loads((file.metadata() or {}).get("ficgan", "{}"))
            state = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
    except (OSError, SafetensorError, ValueError) as error:
        raise InputError(f"{path} is not a readable safetensors file ({error}); copy or train it again.") from error
    if header.get("kind") != _KIND:
        raise InputError(f"{path} holds no SphereFace-20; give a file made by `ficgan train-verifier`.")
    if header.get("schema") != SCHEMA:
        raise InputError(f"{path} has schema {header.get('schema')}, this version reads {SCHEMA}; update ficgan.")
    try:
        shape = header["network"]
        network = SphereFace20(tuple(shape["channels"]), tuple(shape["units"]), int(shape["dimensions"]))
        network.load_state_dict(state)
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"{path} is damaged: its weights do not fit its header; train it again.") from error
    if not all(torch.isfinite(value).all() for value in state.values()):
        raise InputError(f"{path} holds weights that are not finite; train it again.")
    return network.eval(), header
