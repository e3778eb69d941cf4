"""Keyed permutations: whoever holds the key has the image back, and whoever has pairs learns the permutation.

One permutation for all images of a size, as in the paper. It is always one cycle, so nothing stays where it was.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from ficgan.anonymizers.base import ANONYMIZERS, Anonymizer, Faces, Images, Traits, generator
from ficgan.anonymizers.basic import variant
from ficgan.errors import UsageError
from ficgan.registry import param

__all__ = ["BlockPermutation", "PixelRelocation"]

Index = NDArray[np.int32]


@dataclass(frozen=True)
class _Permutation(Anonymizer):
    """Pixels change places; a subclass says from where each place takes its pixel."""

    def __call__(self, faces: Faces) -> Images:
        return _taken(faces.images, self.sources(faces.images.shape[1]))

    def invert(self, faces: Faces) -> Images:
        """The source crops, if this is the key they were permuted with; else another permutation of them."""
        return _taken(faces.images, np.argsort(self.sources(faces.images.shape[1])).astype(np.int32))

    def sources(self, side: int) -> Index:
        """[side²] for every pixel of the result, in reading order, the pixel it shows.

        Raises:
            UsageError: nothing would move in crops of this size.
        """
        raise NotImplementedError


@ANONYMIZERS.add
@dataclass(frozen=True)
class BlockPermutation(_Permutation):
    """Square blocks of the crop change places; what is left beside the last whole block stays.

    Few blocks are few permutations: n of them have (n − 1)! cycles, so 4 blocks have 6, and a wrong key may be right.

    Source: Fantômas, §6.1.1, where it is the trivially reversible method that tests the attackers.
    """

    block: int = param(32, "side of a block, pixels", low=1, high=4096)
    key: str = param("", "secret of the permutation; without one it is public", secret=True)

    name: ClassVar[str] = "block-permutation"
    traits: ClassVar[Traits] = Traits(
        "Block permutation", "basic", "Fantômas, §6.1.1", strength="block", stronger="down", keyed=True
    )

    def sources(self, side: int) -> Index:
        """See `_Permutation`."""
        if side // self.block < 2:
            few = f"a crop of {side} px holds no two such blocks side by side"
            raise UsageError(f"block-permutation: block is {self.block}, and {few}; give a smaller block")
        return _block_sources(side, self.block, self.key)


@ANONYMIZERS.add
@dataclass(frozen=True)
class PixelRelocation(_Permutation):
    """Every pixel goes `steps` places on along a closed path through all pixels.

    as_released: the path is fixed and public, Ls around the lower right corner, there and back, from neighbour to
    neighbour; the number of steps is all there is to know, so `key` plays no part. as_described: the order of the
    pixels on the path is drawn from the key, so they land anywhere, and `steps` does not make it stronger.

    Source: Fantômas, §6.1.1 and its reference [7], which says that a secret key inverts it but not how.
    """

    variant: str = variant()
    steps: int = param(50, "places that a pixel goes on", low=1, high=10**9)
    key: str = param("", "secret of the path, as_described; without one it is public", secret=True)

    name: ClassVar[str] = "pixel-relocation"
    traits: ClassVar[Traits] = Traits("Pixel relocation", "basic", "Fantômas, §6.1.1", strength="steps", keyed=True)

    def sources(self, side: int) -> Index:
        """See `_Permutation`."""
        if self.steps % side**2 == 0:
            round_trip = f"a path through {side}×{side} px brings every pixel back after as many"
            raise UsageError(f"pixel-relocation: steps is {self.steps}, and {round_trip}; give another number")
        return _path_sources(side, self.steps, None if self.variant == "as_released" else self.key)


def _taken(images: Images, sources: Index) -> Images:
    count, side = images.shape[:2]
    pixels = np.ascontiguousarray(images).reshape(count, side * side, 3)
    return np.take(pixels, sources, axis=1).reshape(images.shape)


@lru_cache(maxsize=16)
def _block_sources(side: int, block: int, key: str) -> Index:
    n = side // block
    order = generator("block-permutation", n, key).permutation(n * n)
    blocks = np.empty(n * n, np.int64)
    blocks[order] = np.roll(order, 1)  # one cycle through all blocks in the order drawn
    whole = n * block
    grid = np.arange(side * side, dtype=np.int32).reshape(side, side)
    tiles = grid[:whole, :whole].reshape(n, block, n, block).transpose(0, 2, 1, 3).reshape(n * n, block, block)
    moved = tiles[blocks].reshape(n, n, block, block).transpose(0, 2, 1, 3).reshape(whole, whole)
    grid[:whole, :whole] = moved
    return _kept(grid.ravel())


@lru_cache(maxsize=16)
def _path_sources(side: int, steps: int, key: str | None) -> Index:
    place = _path(side) if key is None else generator("pixel-relocation", side, key).permutation(side * side)
    pixel_at = np.argsort(place)
    return _kept(pixel_at[(place - steps) % (side * side)])


def _path(side: int) -> NDArray[np.int64]:
    """[side²] place of each pixel, in reading order, on the released program's path.

    The L through the pixels with max(row, column) = m has 2m + 1 of them; it is walked from the top, every second one
    backwards, and the outermost comes first.
    """
    row, column = np.divmod(np.arange(side * side), side)
    m = np.maximum(row, column)
    along = row + m - column
    return side**2 - (m + 1) ** 2 + np.where((side - 1 - m) % 2 == 0, along, 2 * m - along)


def _kept(sources: NDArray[np.integer]) -> Index:
    """As it is cached: small, and safe from being written to."""
    out = sources.astype(np.int32)
    out.setflags(write=False)
    return out
