"""What is measured, and on what."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ficgan.errors import UsageError

__all__ = ["BarsConfig", "Clip"]


@dataclass(frozen=True)
class Clip:
    """Frames of a film.

    Args:
        name: for the table.
        frames: H×W×3 uint8 RGB, in order.
        rate: frames per second.
    """

    name: str
    frames: Sequence[NDArray[np.uint8]]
    rate: float = 25.0


@dataclass(frozen=True)
class BarsConfig:
    """What is measured.

    Args:
        aligned: sets of faces aligned as the model's, as of `open_set`.
        photos: folders of photos; each is cut with as much around the face again.
        train: faces the model learnt from, aligned alike; for memorisation and real–real distances.
        clips: of films.
        judges: recognisers that had no part in training; the first is looked at first.
        attributes: trained attribute classifier; None: one in the model folders.
        checkpoint, bank: of the model; None: the embedded ones.
        layers: values of i; none: 0, 4 and L − 1.
        k, psi: of the draws; "auto" is the ψ that the model gives to a person alone in a photo.
        limit: only the first so many images of each set.
        detector: of the faces in photos and clips.
        device: of the model and of judges that can use it.
        resamples: of the bootstrap.
        seed: of the draws and of the bootstrap.

    Raises:
        UsageError: nothing to measure on, or a limit below 2.
    """

    aligned: tuple[Path, ...] = ()
    photos: tuple[Path, ...] = ()
    train: tuple[Path, ...] = ()
    clips: tuple[Clip, ...] = ()
    judges: tuple[str, ...] = ("dlib",)
    attributes: Path | None = None
    checkpoint: Path | None = None
    bank: Path | None = None
    layers: tuple[int, ...] = ()
    k: int = 3000
    psi: float | Literal["auto"] = "auto"
    limit: int | None = None
    detector: str = "auto"
    device: str = "cpu"
    resamples: int = 1000
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.aligned and not self.photos:
            raise UsageError("nothing to measure on; give aligned faces or photos")
        if self.limit is not None and self.limit < 2:
            raise UsageError(f"{self.limit} images are too few to measure on; give at least 2")
