"""Boxes that a person adds where the detector was blind."""

from __future__ import annotations

from typing import Annotated, Any, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import AfterValidator, NonNegativeInt, model_serializer, model_validator

from ficgan.anonymizers.modes import COVERS
from ficgan.video.schema import Box, Strict, Text

__all__ = ["Region"]


def _cover(mode: str) -> str:
    if mode == "keep":
        raise ValueError("a region covers; to keep the faces inside a box write it under decisions.boxes")
    if mode not in COVERS:
        raise ValueError(f"a region has no landmarks to place a new face by; use {', '.join(COVERS)}")
    return mode


class _Key(Strict):
    frame: NonNegativeInt
    box: Box


class Region(Strict):
    """A box that a person adds: covered from one frame to another, whatever the tracks and decisions say."""

    first: NonNegativeInt
    last: NonNegativeInt
    mode: Annotated[str, AfterValidator(_cover)] = "solid"
    box: Box | None = None
    """Where it does not move."""
    keys: tuple[_Key, ...] = ()
    """Where it moves: linearly between these, resting before the first and after the last."""
    reason: Text = ""

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        frames = [key.frame for key in self.keys]
        if (self.box is None) == (not frames):
            raise ValueError("a region needs either `box` or `keys`")
        if self.first > self.last:
            raise ValueError(f"a region from frame {self.first} to {self.last} is empty")
        if frames != sorted(set(frames)) or (frames and not self.first <= frames[0] <= frames[-1] <= self.last):
            raise ValueError(f"the keys' frames must ascend and lie between {self.first} and {self.last}")
        return self

    @model_serializer(mode="wrap")
    def _without_gaps(self, handler: Any) -> dict[str, Any]:
        return {name: value for name, value in handler(self).items() if value not in (None, "", ())}

    def box_at(self, frame: int) -> NDArray[np.float32] | None:
        """x0, y0, x1, y1 in a frame, float32 [4]; None outside of the span."""
        if not self.first <= frame <= self.last:
            return None
        if self.box is not None:
            return np.asarray(self.box, np.float32)
        frames = [key.frame for key in self.keys]
        corners = np.array([key.box for key in self.keys])
        return np.array([np.interp(frame, frames, column) for column in corners.T], np.float32)
