"""Against keyed methods: their own inverse, with the right key or with another one."""

from __future__ import annotations

import dataclasses
import hashlib
from dataclasses import dataclass, field
from typing import Any, ClassVar

from ficgan.anonymizers import Anonymizer, Faces, Images
from ficgan.errors import UsageError
from ficgan.lab.attacks.base import REVERSERS, Reverser, ReverserTraits
from ficgan.registry import param

__all__ = ["KeyedInverse", "another_key"]


@REVERSERS.add
@dataclass(frozen=True)
class KeyedInverse(Reverser):
    """The inverse that comes with a keyed anonymiser.

    Args:
        key: "right": the anonymiser's own; "wrong": another one of the same kind (`another_key`).
        anonymizer: keyed, as it was used on the faces; it does the work.

    Raises:
        UsageError: the anonymiser is not keyed.
    """

    name: ClassVar[str] = "keyed-inverse"
    traits: ClassVar[ReverserTraits] = ReverserTraits(
        title="The method's own inverse",
        source="Fantômas, §6.1",
        knowledge=frozenset({"method", "parameters", "key"}),
        against=frozenset({"block-permutation", "pixel-relocation", "k-rtio"}),
    )

    key: str = param("right", "whose key: the anonymiser's own, or another", choices=("right", "wrong"))
    anonymizer: Anonymizer | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.anonymizer is not None and not self.anonymizer.traits.keyed:
            raise UsageError(f"{self.anonymizer.name} is not keyed: it has no inverse to try")

    def guess(self, faces: Faces) -> Images:
        if self.anonymizer is None:
            raise UsageError(f"{self.name} has no anonymiser; make it with KeyedInverse(anonymizer=…)")
        owner = self.anonymizer if self.key == "right" else another_key(self.anonymizer)
        return owner.invert(faces)


def another_key(anonymizer: Anonymizer) -> Anonymizer:
    """The same anonymiser with other values in all its secret parameters: texts, whole numbers or bytes.

    Raises:
        UsageError: it has no secret parameter.
    """
    secrets = [field.name for field, limits in anonymizer.parameters() if limits["secret"]]
    if not secrets:
        raise UsageError(f"{anonymizer.name} has no secret parameter, so there is no wrong key to try")
    return dataclasses.replace(anonymizer, **{name: _other(getattr(anonymizer, name)) for name in secrets})


def _other(key: Any) -> Any:
    if isinstance(key, int):
        return key + 1
    digest = hashlib.blake2b(b"another" + (key if isinstance(key, bytes) else str(key).encode())).digest()
    if isinstance(key, bytes):
        return (digest * (len(key) // len(digest) + 1))[: len(key)]
    return (digest.hex() * (len(key) // 128 + 1))[: len(key) or 32]
