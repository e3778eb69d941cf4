"""Trained attackers as files: safetensors weights with a JSON header; and the reverser that stands for one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ficgan.anonymizers import Faces, Images
from ficgan.errors import FicganError, UsageError
from ficgan.lab.attacks.base import REVERSERS, Reverser, ReverserTraits
from ficgan.lab.attacks.learned.base import Learned
from ficgan.registry import param

__all__ = ["SCHEMA", "Trained", "load_attacker", "read_header", "save_attacker"]

SCHEMA = 1
"""Version of the layout; raised when a reader of the old one would misread the new one."""
_KIND = "attacker"


def save_attacker(attacker: Learned, path: str | Path, about: Mapping[str, Any] | None = None) -> None:
    """Write a trained attacker, whole or not at all.

    Args:
        attacker: trained.
        path: the file; its folder must exist.
        about: JSON-ready, of what was attacked and of the data: names, licences, digests; no keys, no folders.

    Raises:
        UsageError: it has learnt nothing yet.
        FicganError: the file cannot be written.
    """
    from ficgan.models import save_tensors

    weights = {key: _half(value) for key, value in attacker.trained_network().state_dict().items()}
    header = {
        "schema_version": SCHEMA, "attacker": attacker.name, "settings": attacker.settings(),
        "training": attacker.record, "about": dict(about or {}),
    }  # fmt: skip
    save_tensors(path, weights, header, kind=_KIND)


def load_attacker(path: str | Path, *, device: str = "auto") -> Learned:
    """A trained attacker from its file.

    Raises:
        FicganError: missing, damaged, not an attacker, of a later version, or of an attacker that is not known here.
    """
    import torch

    from ficgan.device import resolve_device
    from ficgan.models import load_tensors

    tensors, header = load_tensors(path, kind=_KIND)
    attacker = replace(_untrained(path, header), device=device)
    with torch.device("meta"):
        network = attacker.network()
    network = network.to_empty(device=resolve_device(device))
    try:
        network.load_state_dict({key: _single(value) for key, value in tensors.items()})
    except RuntimeError:
        raise FicganError(f"{path} holds other weights than its settings ask for; train it again") from None
    return attacker.with_network(network, header["training"])


def read_header(path: str | Path) -> dict[str, Any]:
    """What stands beside the weights: attacker, settings, training, about.

    Raises:
        FicganError: missing, damaged, or not an attacker.
    """
    from ficgan.models import load_tensors

    return load_tensors(path, kind=_KIND)[1]


def _untrained(path: str | Path, header: dict[str, Any]) -> Learned:
    if header.get("schema_version", 0) > SCHEMA:
        raise FicganError(f"{path} was written by a later version of ficgan; update it")
    try:
        attacker = REVERSERS.make(header["attacker"], **header["settings"])
    except (KeyError, UsageError) as error:
        raise FicganError(f"{path} holds an attacker that cannot be made here ({error})") from None
    if not isinstance(attacker, Learned):
        raise FicganError(f"{path} holds {attacker.name}, which has no weights; train it again")
    return attacker


def _half(value: Any) -> Any:
    return value.half() if value.is_floating_point() else value


def _single(value: Any) -> Any:
    return value.float() if value.is_floating_point() else value


@REVERSERS.add
@dataclass(frozen=True)
class Trained(Reverser):
    """An attacker that was trained before, by its file; it learns nothing more."""

    name: ClassVar[str] = "trained"
    traits: ClassVar[ReverserTraits] = ReverserTraits(title="Trained attacker, from a file", source="its file")

    file: str = param("", "attacker.safetensors of a training")
    device: str = param("auto", "where it computes: auto, cpu, cuda or cuda:N")
    attacker: Learned | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.attacker is not None:
            return
        if not self.file:
            raise UsageError(f"{self.name} needs the file of an attacker; write trained:file=PATH")
        attacker = load_attacker(self.file, device=self.device)
        object.__setattr__(self, "attacker", attacker)
        traits = attacker.traits
        object.__setattr__(self, "traits", replace(traits, knowledge=traits.knowledge - {"pairs"}))

    @property
    def _held(self) -> Learned:
        assert self.attacker is not None
        return self.attacker

    def guess(self, faces: Faces) -> Images:
        return self._held.guess(faces)

    def reverse(self, faces: Faces, n: int = 1) -> NDArray[np.uint8]:
        return self._held.reverse(faces, n)
