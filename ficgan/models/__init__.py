"""The networks of FICGAN and their checkpoints: safetensors weights with a JSON header that rebuilds the model."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from torch import Tensor, nn

from ficgan.arrays import read_arrays, write_arrays
from ficgan.config import ModelConfig
from ficgan.errors import FicganError
from ficgan.models.ficgan import FICGAN, Codes, Conv2d, Discriminator, Linear, MappingNetwork, StyleLayer
from ficgan.models.frame import DetailDiscriminator, DetailNetwork, FrameDiscriminator, FrameFICGAN

__all__ = ["FICGAN", "DetailDiscriminator", "DetailNetwork", "Discriminator", "FrameDiscriminator", "FrameFICGAN"]
__all__ += ["CheckpointHeader", "InferenceModel", "MappingNetwork", "load_checkpoint", "load_tensors"]
__all__ += ["save_checkpoint", "save_tensors"]


SCHEMA = 1  # version of the checkpoint layout; raised when a reader of the old one would misread the new one


class CheckpointHeader(BaseModel):
    """What stands beside the weights."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())

    schema_version: int = SCHEMA
    model: ModelConfig
    alignment: dict[str, Any]  # `Alignment.to_dict()` of the crops the model was trained on
    data: dict[str, Any] = Field(default_factory=dict)  # licence, fingerprint and number of images of the training data
    training: dict[str, Any] = Field(default_factory=dict)  # images seen, configuration, figures


def save_tensors(path: str | Path, tensors: Mapping[str, Tensor], header: Mapping[str, Any], *, kind: str) -> None:
    """Write tensors and a header as a file of a kind ("model", …), whole or not at all; replaces `path`."""
    write_arrays(path, {name: tensor.detach().cpu().numpy() for name, tensor in tensors.items()}, header, kind=kind)


def load_tensors(path: str | Path, *, kind: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors by name, and the header, of a file of `save_tensors` of that kind."""
    return read_arrays(path, kind=kind, framework="pt")


def save_checkpoint(path: str | Path, model: FICGAN, header: CheckpointHeader) -> None:
    """Write a model for use in float16, its file replaced whole."""
    tensors = {name: tensor.half() for name, tensor in model.state_dict().items()}
    save_tensors(path, tensors, header.model_dump(mode="json"), kind="model")


def load_checkpoint(path: str | Path, device: str | torch.device = "cpu") -> tuple[FICGAN, CheckpointHeader]:
    """The model of a file of `save_checkpoint` in float32 and evaluation mode, and its header."""
    tensors, raw = load_tensors(path, kind="model")
    version = raw.get("schema_version")
    if not isinstance(version, int) or version > SCHEMA:
        raise FicganError(f"{path} has schema {version}, this ficgan reads up to {SCHEMA}; upgrade ficgan")
    try:
        header = CheckpointHeader.model_validate(raw)
    except ValidationError as error:
        where = ".".join(map(str, error.errors()[0]["loc"]))
        raise FicganError(f"the header of {path} is damaged: {where}: {error.errors()[0]['msg']}") from None
    stored, sizes = sum(tensor.numel() for tensor in tensors.values()), header.model
    if max(9 * sizes.channels(4) ** 2, (sizes.mapping_layers - 1) * sizes.w_dim**2) > stored:  # nothing is allocated
        raise FicganError(f"the weights of {path} do not fit its configuration")
    with torch.random.fork_rng(devices=[]):  # a caller's random numbers do not depend on what was loaded
        model = FICGAN(header.model)
    try:
        model.load_state_dict({name: tensor.float() for name, tensor in tensors.items()})
    except RuntimeError:
        raise FicganError(f"the weights of {path} do not fit its configuration") from None
    for name, tensor in model.state_dict().items():
        if not bool(torch.isfinite(tensor).all()):
            raise FicganError(f"{path} is damaged: its {name} has numbers that are not finite; fetch it again")
    for part, module in model.named_children():  # what draws nothing makes flat patches, which pass every check
        if not any(bool(tensor.any()) for tensor in module.parameters() if tensor.ndim > 1):
            raise FicganError(f"the weights of {path} are all zero in its {part}, so it draws nothing; fetch it again")
    return model.to(device).eval().requires_grad_(False), header


class InferenceModel(nn.Module):
    """A trained model for use only: no gradients, no training state.

    Gains and kernel norms are computed once. What depends on w alone (`styles`) is apart from what depends on the
    picture (`synthesise`): a face that keeps its w over a film has its styles computed once. `dtype` is of features and
    convolution weights; the mapping network and the styles stay in float32.
    """

    def __init__(self, model: FICGAN, *, device: str = "cpu", dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.config, self.device, self.dtype = model.config, device, dtype
        self.num_layers, self.resolution = model.num_layers, model.resolution
        self.model = copy.deepcopy(model).eval().requires_grad_(False)
        with torch.no_grad():
            for module in self.model.modules():
                if isinstance(module, Conv2d | StyleLayer):
                    module.fold(dtype)
                elif isinstance(module, Linear):
                    module.fold()
        self.to(device)
        layers = [layer for layer in self.model.generator.layers if isinstance(layer, StyleLayer)]
        self._widths = [layer.affine.bias.numel() for layer in layers]

    @torch.inference_mode()
    def encode(self, x: Tensor) -> Codes:
        """Codes of images [B,3,R,R] in [−1, 1], any floating type; z_id is float32, z_non of the model's type."""
        x = x.to(device=self.device, dtype=self.dtype).contiguous(memory_format=torch.channels_last)
        return self.model.encoder(x)

    @torch.inference_mode()
    def map(self, z_id: Tensor) -> Tensor:
        """Intermediate latent w [B,w_dim], float32, of identity codes [B,id_dim]."""
        return self.model.mapping(z_id.float())

    @torch.inference_mode()
    def styles(self, w: Tensor) -> Tensor:
        """All that the style layers need of w, [B,w_dim] or [B,L,w_dim]: [B,S] float32, one row a face."""
        w = w if w.ndim == 3 else w.unsqueeze(1).expand(-1, self.num_layers, -1)
        w = w.to(device=self.device, dtype=torch.float32).contiguous()
        return torch.cat(self.model.generator.styles(w), dim=1)

    @torch.inference_mode()
    def synthesise(self, styles: Tensor, z_non: Tensor) -> Tensor:
        """Images [B,3,R,R] in about [−1, 1] from rows of `styles` [B,S] and spatial codes [B,C,4,4]."""
        return self.model.generator.synthesise(list(styles.split(self._widths, dim=1)), z_non.to(self.dtype))

    def forward(self, x: Tensor) -> Tensor:
        """Reconstruction G(E(x)) of images [B,3,R,R]."""
        codes = self.encode(x)
        return self.synthesise(self.styles(self.map(codes.z_id)), codes.z_non)

    def digest(self) -> str:
        """Short hash of the weights."""
        total = hashlib.sha256()
        for name, value in self.model.named_parameters():
            total.update(f"{name} {value.double().sum().item()!r} {value.double().square().sum().item()!r}".encode())
        return total.hexdigest()[:16]
