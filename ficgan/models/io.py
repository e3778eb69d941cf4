"""Checkpoints: safetensors weights with a JSON header; never a pickle.

The header has everything needed to rebuild the model and to account for it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from torch import Tensor

from ficgan.config import ModelConfig
from ficgan.errors import FicganError, InputError
from ficgan.files import atomic_write, file_digest
from ficgan.models.ficgan import FICGAN

__all__ = [
    "SCHEMA",
    "CheckpointHeader",
    "file_digest",
    "load_checkpoint",
    "load_tensors",
    "save_checkpoint",
    "save_tensors",
    "write_safetensors",
]

SCHEMA = 1
"""Version of the checkpoint layout; raised when a reader of the old one would misread the new one."""


class CheckpointHeader(BaseModel):
    """What stands beside the weights."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())

    schema_version: int = SCHEMA
    model: ModelConfig
    alignment: dict[str, Any]
    """`Alignment.to_dict()` of the crops the model was trained on."""
    data: dict[str, Any] = Field(default_factory=dict)
    """Name, licence, fingerprint and number of images of the training data."""
    training: dict[str, Any] = Field(default_factory=dict)
    """Images seen, configuration, figures."""


def write_safetensors(path: str | Path, tensors: Mapping[str, Tensor], metadata: dict[str, str]) -> None:
    """Write tensors and texts as one safetensors file, whole or not at all; replaces `path`."""
    from safetensors.torch import save

    on_cpu = {name: tensor.detach().to("cpu").contiguous().clone() for name, tensor in tensors.items()}
    try:
        with atomic_write(path, overwrite=True) as file:  # `save_file` leaves a file of its own if killed
            file.write(save(on_cpu, metadata))
    except InputError as error:
        raise FicganError(str(error)) from None
    except OSError as error:
        raise FicganError(f"{path}: cannot be written ({error.strerror or error})") from None


def save_tensors(path: str | Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, Any], *, kind: str) -> None:
    """Write tensors and a JSON header as one safetensors file, whole or not at all.

    `kind` is what the file is ("model", "training-state", …); it is checked when it is read.
    """
    header = {"format": "ficgan", "kind": kind, "header": json.dumps(metadata, sort_keys=True)}
    write_safetensors(path, tensors, header)


def load_tensors(path: str | Path, *, kind: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors by name, and the JSON header, of a file of `save_tensors` of that kind."""
    from safetensors import SafetensorError, safe_open

    path = Path(path)
    if not path.is_file():
        raise FicganError(f"{path} does not exist or is not a file; give the path of a ficgan {kind} (.safetensors)")
    try:
        with safe_open(str(path), framework="pt") as file:
            metadata = file.metadata() or {}
            if metadata.get("format") != "ficgan":
                raise FicganError(f"{path} was not written by ficgan; give a ficgan {kind}")
            if (found := metadata.get("kind")) != kind:
                if (found, kind) == ("appearance", "model"):
                    wanted = "this needs a network: give a checkpoint of `ficgan train`"
                    raise FicganError(f"{path} holds an appearance model, and {wanted}")
                raise FicganError(f"{path} holds a ficgan {found}, not a {kind}")
            header = json.loads(metadata["header"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dictionary)
    except (SafetensorError, OSError, KeyError, json.JSONDecodeError) as error:
        raise FicganError(f"{path} is damaged or not a safetensors file ({error}); fetch or train it again") from None
    return tensors, header


def save_checkpoint(path: str | Path, model: FICGAN, header: CheckpointHeader, *, half: bool = True) -> None:
    """Write a model for use, its file replaced whole; `half` stores float16, half the size."""
    dtype = torch.float16 if half else torch.float32
    tensors = {name: tensor.to(dtype) for name, tensor in model.state_dict().items()}
    save_tensors(path, tensors, header.model_dump(mode="json"), kind="model")


def _check_weights(path: str | Path, model: FICGAN) -> None:
    """Refuse weights that draw nothing: their flat patches would pass every check of likeness."""
    for name, tensor in model.state_dict().items():
        if not bool(torch.isfinite(tensor).all()):
            raise FicganError(f"{path} is damaged: its {name} has numbers that are not finite; fetch it again")
    for part, module in model.named_children():
        weights = [tensor for tensor in module.parameters() if tensor.ndim > 1]
        if weights and not any(bool(tensor.any()) for tensor in weights):
            raise FicganError(f"the weights of {path} are all zero in its {part}, so it draws nothing; fetch it again")


def load_checkpoint(path: str | Path, device: str | torch.device = "cpu") -> tuple[FICGAN, CheckpointHeader]:
    """The model of a file of `save_checkpoint` in float32 and evaluation mode, and its header."""
    tensors, raw = load_tensors(path, kind="model")
    version = raw.get("schema_version")
    if not isinstance(version, int) or version > SCHEMA:
        raise FicganError(f"{path} has schema {version}, this ficgan reads up to {SCHEMA}; upgrade ficgan")
    try:
        header = CheckpointHeader.model_validate(raw)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise FicganError(f"the header of {path} is damaged: {where}: {first['msg']}") from None
    stored, sizes = sum(tensor.numel() for tensor in tensors.values()), header.model
    least = max(9 * sizes.channels(4) ** 2, (sizes.mapping_layers - 1) * sizes.w_dim**2)
    if least > stored:  # an absurd configuration: nothing is allocated for it
        raise FicganError(f"the weights of {path} do not fit its configuration: {stored} numbers, not {least} or more")
    with torch.random.fork_rng(devices=[]):  # a caller's random numbers do not depend on what was loaded
        model = FICGAN(header.model)
    try:
        model.load_state_dict({name: tensor.float() for name, tensor in tensors.items()}, strict=True)
    except RuntimeError as error:
        first_line = str(error).splitlines()[1].strip() if "\n" in str(error) else str(error)
        raise FicganError(f"the weights of {path} do not fit its configuration: {first_line}") from None
    _check_weights(path, model)
    return model.to(device).eval().requires_grad_(False), header
