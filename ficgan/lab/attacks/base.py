"""What an attacker is: something that may learn from pairs of clear and anonymised faces and then gives faces back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from ficgan.anonymizers import Faces, Images
from ficgan.registry import Parametrised, Registry

__all__ = ["BLURS", "NOISES", "REVERSERS", "Knowledge", "Pairs", "Reverser", "ReverserTraits"]

Knowledge = Literal["method", "parameters", "pairs", "background", "key"]


@dataclass(frozen=True)
class Pairs:
    """What an attacker may learn from: faces of people who are in no gallery and no probe.

    Args:
        anonymised, clear: the same faces in the same order.
        background: the anonymiser's background set, where the attacker is granted it.
        same: False where the anonymised images were drawn with other parameters than the attacked ones.
        enrolled: [K] numbers of the people whom the attacker is granted; they are learnt from, never watched on.
    """

    anonymised: Faces
    clear: Faces
    background: Faces | None = None
    same: bool = True
    enrolled: NDArray[np.int64] | None = None


@dataclass(frozen=True)
class ReverserTraits:
    """What is declared of an attacker.

    Args:
        title: as a table says it.
        source: paper and section.
        knowledge: what it must know; "pairs" where it learns.
        against: names of the anonymisers it was made for; empty: any (a general attacker).
        several: whether `reverse` can give several different candidates.
    """

    title: str
    source: str
    knowledge: frozenset[Knowledge] = frozenset()
    against: frozenset[str] = frozenset()
    several: bool = False


@dataclass(frozen=True)
class Reverser(Parametrised):
    """Anonymised faces in, guesses at the clear ones out; `fit` gives a new, fitted one."""

    traits: ClassVar[ReverserTraits]

    def fit(self, pairs: Pairs) -> Reverser:
        """A reverser that has learnt from pairs; those that learn nothing return themselves."""
        return self

    def reverse(self, faces: Faces, n: int = 1) -> NDArray[np.uint8]:
        """Guesses [N,n,S,S,3] uint8 RGB; n > 1 only where `several` is declared, else the one guess repeated."""
        one = self.guess(faces)
        return np.repeat(one[:, None], n, axis=1)

    def guess(self, faces: Faces) -> Images:
        """The one best guess for each face: [N,S,S,3] uint8 RGB."""
        raise NotImplementedError


BLURS = frozenset({"gaussian-blur", "box-blur", "obfuscation-blur"})
NOISES = frozenset({"gaussian-noise", "fawkes", "dp-pix", "dp-snow"})
"""Families of methods by what was done to the pixels; who attacks which: Fantômas, Table 4, and the further blurs."""

REVERSERS: Registry[Reverser] = Registry("reverser")
"""By name; `ficgan.lab.attacks` fills it."""
