"""Who a made head is, and what its face does."""

from __future__ import annotations

from dataclasses import dataclass, field, fields

import numpy as np

from ficgan.anonymizers.base import generator
from ficgan.errors import UsageError

__all__ = ["EXPRESSIONS", "Expression", "Features"]


@dataclass(frozen=True)
class Expression:
    """What a face does; all 0: nothing.

    Args:
        smile: 1: corners of the mouth out and up; −1: down.
        open: 1: the mouth 16 mm open, the jaw dropped.
        brows: 1: raised by 6 mm; −1: drawn down and together.
        lids: 1: both eyes shut; −1: wide open.
        pout: 1: lips narrow and pushed out.
    """

    smile: float = 0.0
    open: float = 0.0
    brows: float = 0.0
    lids: float = 0.0
    pout: float = 0.0

    @classmethod
    def of(cls, given: float | str | Expression) -> Expression:
        """An expression from what a caller may give: a smile in −1…1, a name in `EXPRESSIONS`, or itself.

        Raises:
            UsageError: an unknown name.
        """
        if isinstance(given, Expression):
            return given
        if not isinstance(given, str):
            return cls(smile=float(given))
        if given not in EXPRESSIONS:
            raise UsageError(f"there is no expression {given!r}; use one of {', '.join(EXPRESSIONS)}")
        return EXPRESSIONS[given]


EXPRESSIONS = {
    "neutral": Expression(),
    "smiling": Expression(smile=1.0, lids=0.25),
    "angry": Expression(smile=-0.6, brows=-1.0, lids=0.15),
    "surprised": Expression(open=0.9, brows=1.0, lids=-0.5),
    "eyes-closed": Expression(lids=1.0),
    "pouting": Expression(pout=1.0, brows=-0.2),
}


def _usual(mean: float, spread: float) -> float:
    """A feature drawn from a normal distribution, cut at two spreads."""
    return field(default=mean, metadata={"spread": spread})


def _any(mean: float) -> float:
    """A feature drawn evenly from 0…1."""
    return field(default=mean, metadata={"spread": None})


@dataclass(frozen=True)
class Features:
    """Who somebody is. Lengths in millimetres from the middle of the skull or the nose; from `tone` on, 0…1."""

    skull: float = _usual(76.0, 2.5)
    crown: float = _usual(95.0, 4.0)
    forehead: float = _usual(78.0, 1.5)
    jaw: float = _usual(58.0, 3.5)
    jaw_length: float = _usual(59.0, 3.0)
    jaw_depth: float = _usual(57.0, 1.5)
    chin: float = _usual(9.0, 2.5)
    chin_width: float = _usual(17.0, 3.0)
    nose_length: float = _usual(45.0, 3.0)
    nose_height: float = _usual(18.5, 2.2)
    nose_width: float = _usual(14.0, 1.8)
    bridge: float = _usual(6.5, 1.0)
    tip: float = _usual(3.0, 1.2)
    eye_distance: float = _usual(32.0, 1.8)
    eye_width: float = _usual(14.5, 1.0)
    eye_opening: float = _usual(5.2, 0.8)
    eye_slant: float = _usual(1.0, 1.2)
    brow_height: float = _usual(16.0, 1.8)
    brow_thickness: float = _usual(3.2, 0.9)
    brow_arch: float = _usual(3.0, 1.4)
    cheek: float = _usual(4.0, 1.6)
    mouth: float = _usual(-35.0, 2.2)
    mouth_width: float = _usual(25.0, 2.2)
    upper_lip: float = _usual(6.0, 1.3)
    lower_lip: float = _usual(8.0, 1.5)
    hairline: float = _usual(86.0, 6.0)
    ear: float = _usual(31.0, 2.5)
    tone: float = _any(0.6)
    redness: float = _any(0.5)
    hair: float = _any(0.3)
    iris: float = _any(0.3)

    @classmethod
    def drawn(cls, seed: int) -> Features:
        """Somebody.

        Args:
            seed: of all features.
        """
        rng, given = generator("made head", seed), {}
        for one in fields(cls):
            spread, mean = one.metadata["spread"], float(one.default)  # type: ignore[arg-type]
            normal, even = float(np.clip(rng.standard_normal(), -2.0, 2.0)), float(rng.random())
            given[one.name] = even if spread is None else mean + spread * normal
        return cls(**given)
