"""Keyed methods: permutations of blocks or pixels, and k-RTIO's overlays, whose blocks are permuted by a key.

All images of a size share one permutation, a single cycle, so that nothing stays in place. Pairs reveal it.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ficgan.anonymizers.base import ANONYMIZERS, Anonymizer, Faces, Images, Traits, generator, nearest_grey
from ficgan.anonymizers.basic import variant
from ficgan.arrays import resize
from ficgan.errors import UsageError
from ficgan.registry import param

Index = NDArray[np.int32]


@dataclass(frozen=True)
class _Permutation(Anonymizer):
    def __call__(self, faces: Faces) -> Images:
        return _taken(faces.images, self.sources(faces.images.shape[1]))

    def invert(self, faces: Faces) -> Images:
        return _taken(faces.images, np.argsort(self.sources(faces.images.shape[1])).astype(np.int32))

    @abstractmethod
    def sources(self, side: int) -> Index:
        """[side²] for every pixel of the result, in reading order, the pixel it shows; UsageError if none moves."""


@ANONYMIZERS.add
class BlockPermutation(_Permutation):
    """Whole square blocks change places (Fantômas, §6.1.1): n have (n − 1)! cycles, of 4 a wrong key may be right."""

    block: int = param(32, "side of a block, pixels", low=1, high=4096)
    key: str = param("", "secret of the permutation; without one it is public", secret=True)

    name = "block-permutation"
    traits = Traits("Block permutation", "basic", "Fantômas, §6.1.1", strength="block", keyed=True)

    def sources(self, side: int) -> Index:
        if side // self.block < 2:
            few = f"a crop of {side} px holds no two such blocks side by side"
            raise UsageError(f"block-permutation: block is {self.block}, and {few}; give a smaller block")
        return _block_sources(side, self.block, self.key)


@ANONYMIZERS.add
class PixelRelocation(_Permutation):
    """Every pixel goes `steps` places along a closed path through all pixels (Fantômas, §6.1.1).

    as_released: the path is fixed and public, so `key` plays no part. as_described: the key draws the order of the
    path, and `steps` does not make it stronger.
    """

    variant: str = variant()
    steps: int = param(50, "places that a pixel goes on", low=1, high=10**9)
    key: str = param("", "secret of the path, as_described; without one it is public", secret=True)

    name = "pixel-relocation"
    traits = Traits("Pixel relocation", "basic", "Fantômas, §6.1.1", strength="steps", keyed=True)

    def sources(self, side: int) -> Index:
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
    return _permuted(np.arange(side * side, dtype=np.int32).reshape(side, side), block, blocks).ravel()


@lru_cache(maxsize=16)
def _path_sources(side: int, steps: int, key: str | None) -> Index:
    row, column = np.divmod(np.arange(side * side), side)
    m = np.maximum(row, column)
    along = row + m - column
    place = side**2 - (m + 1) ** 2 + np.where((side - 1 - m) % 2 == 0, along, 2 * m - along)
    if key is not None:
        place = generator("pixel-relocation", side, key).permutation(side * side)
    return np.argsort(place)[(place - steps) % (side * side)].astype(np.int32)


_DEFAULTS = {"as_described": (0.45, 16), "as_released": (0.5, 60)}  # alpha and block of each variant


@ANONYMIZERS.add
class KRtio(Anonymizer):
    """out = α·face + (1−α)·mean of k block-permuted overlays (Rajabi et al., PETS 2021; Fantômas, §6.1.3).

    `as_described`: key and image name choose overlays and permutations; with the overlays they give the face back
    within one grey level at α = .45 (`invert`). Without a key it is made from the seed. `as_released`: a random cipher
    without an inverse; overlays may repeat, leftover pixels stay, grey levels are cut.
    Overlays are the background's images after `fit`, or given.
    """

    variant: str = variant()
    # None becomes the variant's
    alpha: float = param(None, "share of the face; .45 as described, .5 as released", low=0.02, high=1.0)
    block: int = param(None, "side of the permuted blocks in pixels; 16 as described, 60 as released", low=1)
    k: int = param(3, "overlays under one face", low=1)
    key: str = param("", "secret text; empty: made from the seed", secret=True)
    seed: int = 0  # of the draws as released, and of the key where none is given
    overlays: Images | None = field(default=None, repr=False, compare=False)  # [M,S,S,3], resized to the crops

    name = "k-rtio"
    traits = Traits(
        "k-RTIO overlays", "overlay", "Rajabi et al. 2021; Fantômas §6.1.3", "alpha", keyed=True, needs={"overlays"}
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, usual in zip(("alpha", "block"), _DEFAULTS[self.variant], strict=True):
            if getattr(self, name) is None:
                object.__setattr__(self, name, usual)
        described = self.variant == "as_described"
        least = self.k if described else 1  # as released one may be drawn again
        if self.overlays is not None and len(self.overlays) < least:
            raise UsageError(f"k-rtio: k is {self.k}, and there are {len(self.overlays)} overlays; give more of them")
        self.declare(keyed=described, stochastic=not (described and self.key))

    def fit(self, background: Faces) -> KRtio:
        """The same with the background's images as overlays, at least k; order matters to `invert`."""
        return replace(self, overlays=background.images)

    def __call__(self, faces: Faces) -> Images:
        out = np.empty_like(faces.images)
        for image, new, name in zip(faces.images, out, faces.names, strict=True):
            mixed = self.alpha * image + (1 - self.alpha) * self._cover(name, len(image))
            new[:] = np.rint(mixed) if self.variant == "as_described" else mixed
        return out

    def invert(self, faces: Faces) -> Images:
        """The source crops, by the same names, key and overlays, within ⌊.5/α + .5⌋ grey levels of lossless files."""
        if self.variant == "as_released":
            raise UsageError("k-rtio as released has no inverse: its overlays hang on a random vector that is not kept")
        out = np.empty_like(faces.images)
        for image, new, name in zip(faces.images, out, faces.names, strict=True):
            new[:] = nearest_grey((image - (1 - self.alpha) * self._cover(name, len(image))) / self.alpha)
        return out

    def _cover(self, name: str, size: int) -> NDArray[np.float64]:
        """The mean [S,S,3] of the k permuted overlays of an image."""
        overlays = self.needed(self.overlays)
        described = self.variant == "as_described"
        rng = generator((self.key or f"seed {self.seed}") if described else self.seed, self.name, name)
        count = len(overlays)
        picked = rng.choice(count, self.k, replace=False) if described else rng.integers(count, size=self.k)
        total, cells = np.zeros((size, size, 3)), -(-size // self.block) if described else size // self.block
        for which in picked:
            whole = resize(overlays[which], cells * self.block if described else size)
            total += _permuted(whole, self.block, rng.permutation(cells * cells))[:size, :size]
        return total / self.k


def _permuted(image: NDArray[Any], block: int, order: NDArray[np.int64]) -> NDArray[Any]:
    """A square [S,S,…] whose whole blocks are those of this order; what is left beside them stays."""
    cells = len(image) // block
    whole, inside = cells * block, image.shape[2:]
    out = image.copy()
    tiles = image[:whole, :whole].reshape(cells, block, cells, block, *inside).swapaxes(1, 2)
    moved = tiles.reshape(cells**2, block, block, *inside)[order].reshape(tiles.shape).swapaxes(1, 2)
    out[:whole, :whole] = moved.reshape(whole, whole, *inside)
    return out
