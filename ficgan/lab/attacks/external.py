"""Restorers of other people, such as deblurring and super-resolution networks, as attackers."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from ficgan.anonymizers import Faces, Images
from ficgan.anonymizers.programs import Program, read_pixels
from ficgan.arrays import resize
from ficgan.errors import InputError
from ficgan.lab.attacks.base import REVERSERS, Reverser, ReverserTraits

__all__ = ["ExternalRestorer"]


@REVERSERS.add
@dataclass(frozen=True)
class ExternalRestorer(Program, Reverser):
    """Guesses by a restorer that is not ours (MPRNet, Stripformer, DIC-SR, GFP-GAN), run or made before; see `Program`.

    It is given the anonymised crops and nothing else, and must write one image of each. An image of another size, as
    super-resolution gives it, is brought back to the crop's: smaller by area averages, larger by bicubic interpolation.

    Source: Fantômas, section 6.2.2 (MPRNet, Stripformer, DIC-SR); Revelio, comparison baselines (GFP-GAN).
    """

    name: ClassVar[str] = "external"
    spare: ClassVar[bool] = False
    traits: ClassVar[ReverserTraits] = ReverserTraits(
        title="External restorer", source="the program's own", knowledge=frozenset({"method"})
    )

    def guess(self, faces: Faces) -> Images:
        """Restored crops [N,S,S,3] uint8 RGB.

        Raises:
            UsageError: neither command nor folder, or no such program or folder.
            FicganError: the program failed, or ran out of time.
            InputError: an image is missing, too many, damaged, ambiguous, or not square.
        """
        return self.made_of(faces, _read_and_resize)


def _read_and_resize(file: Path, name: str, side: int) -> Images:
    pixels = read_pixels(file, name)
    height, width = pixels.shape[:2]
    if height != width:
        raise InputError(
            f"external: {file.name} for {name} is {width}×{height}, and crops are square; restore it whole"
        )
    return resize(pixels, side)
