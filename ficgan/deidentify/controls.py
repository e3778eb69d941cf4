"""How new faces are drawn, as files hold it: the review's, and decisions on photos."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field, field_validator

from ficgan.deidentify.options import FALLBACKS
from ficgan.video.folders import Strict, Text

if TYPE_CHECKING:
    from ficgan.deidentify.pipeline import Deidentifier

__all__ = ["Drawing"]


class Drawing(Strict):
    """What `Deidentifier.with_controls` takes."""

    k: int = Field(3000, ge=2)
    layer: int = Field(0, ge=0)
    psi: float | Literal["auto"] = "auto"
    attributes: Text = Field("", max_length=200)
    fallback: str = "solid"

    @field_validator("fallback")
    @classmethod
    def _fallback(cls, fallback: str) -> str:
        if fallback not in FALLBACKS:
            raise ValueError(f"a fallback is one of {', '.join(FALLBACKS)}")
        return fallback

    def applied(self, engine: Deidentifier) -> Deidentifier:
        """The engine with these controls; a UsageError where its model cannot do what they ask for."""
        return engine.with_controls(
            k=self.k, layer=self.layer, psi=self.psi, attributes=self.attributes or None, fallback=self.fallback
        )
