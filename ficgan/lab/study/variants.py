"""Original, blurred and overlaid pictures, obfuscated at full resolution and kept in memory; and what of them a network
sees: random crops when it learns, the central crop when it is measured.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ficgan.anonymizers import generator
from ficgan.lab.study.config import Variant
from ficgan.lab.study.scenes import Boxes, Image, Scene, Scenes

__all__ = ["Pictures", "central_view", "obfuscate", "random_view", "with_decoys"]


def obfuscate(image: Image, boxes: Boxes, variant: Variant, blur: Literal["paper", "released"] = "paper") -> Image:
    """One picture of a variant.

    Args:
        image: [H,W,3] uint8 RGB; not changed.
        boxes: [M,4] faces, pixels.
        variant: one of `VARIANTS`.
        blur: see `obfuscate_blur`.
    """
    from ficgan.anonymizers.basic import obfuscate_blur, obfuscate_overlay

    if variant == "original" or not len(boxes):
        return image
    if variant == "blurred":
        return obfuscate_blur(image, boxes, blur)
    return obfuscate_overlay(image, boxes, "mean" if variant == "overlaid" else variant)


class Pictures:
    """The pictures of a set in one variant; made when asked for, kept while there is room.

    Args:
        scenes: the set.
        variant: how faces are obfuscated.
        room: bytes to keep at most.
        blur: see `obfuscate_blur`.
    """

    def __init__(
        self,
        scenes: Scenes,
        variant: Variant,
        room: float = math.inf,
        blur: Literal["paper", "released"] = "paper",
    ) -> None:
        self.scenes, self.variant, self._blur = scenes, variant, blur
        self._kept: dict[int, Image] = {}
        self._room = room

    def __len__(self) -> int:
        return len(self.scenes)

    def __getitem__(self, index: int) -> Image:
        """Picture [H,W,3] uint8 RGB at full resolution."""
        if index in self._kept:
            return self._kept[index]
        scene = self.scenes.items[index]
        picture = obfuscate(scene.load(), scene.boxes, self.variant, self._blur)
        if picture.nbytes <= self._room:
            self._room -= picture.nbytes
            self._kept[index] = picture
        return picture

    def fill(self) -> None:
        """Make all pictures for which there is room, so that processes forked after this share them."""
        for index in range(len(self)):
            self[index]
            if index not in self._kept:
                return


def with_decoys(scenes: Scenes, seed: int = 0) -> Scenes:
    """The same images, where those without a face have the boxes of an image with faces, drawn once.

    Where faces are in some classes only, the mark of obfuscation tells the class; with decoys it does not. Boxes are
    carried over as shares of the image's sides.
    """
    donors = [scene for scene in scenes.items if len(scene.boxes)]
    if not donors:
        return scenes
    items = []
    for scene in scenes.items:
        if not len(scene.boxes):
            donor = donors[int(generator(seed, "decoy", scene.name).integers(len(donors)))]
            (w, h), (dw, dh) = _size(scene), _size(donor)
            scale = np.array([w / dw, h / dh] * 2, np.float32)
            scene = replace(scene, boxes=donor.boxes * scale)
        items.append(scene)
    return replace(scenes, items=tuple(items))


def random_view(picture: Image, crop: int, rng: np.random.Generator, min_scale: float = 0.08) -> Image:
    """A random crop, resized with antialiasing and mirrored half of the time: [crop,crop,3] uint8.

    The crop has `min_scale` to all of the picture's area and sides in a ratio of 3:4 to 4:3; where ten draws do not
    fit into the picture, it is the largest central one.
    """
    height, width = picture.shape[:2]
    for _ in range(10):
        area = height * width * rng.uniform(min_scale, 1.0)
        ratio = math.exp(rng.uniform(math.log(3 / 4), math.log(4 / 3)))
        w, h = max(1, round(math.sqrt(area * ratio))), max(1, round(math.sqrt(area / ratio)))
        if w <= width and h <= height:
            left, top = int(rng.integers(width - w + 1)), int(rng.integers(height - h + 1))
            break
    else:
        w, h = min(width, round(height * 4 / 3)), min(height, round(width * 4 / 3))
        left, top = (width - w) // 2, (height - h) // 2
    view = _resized(picture, (left, top, left + w, top + h), (crop, crop))
    return view[:, ::-1] if rng.random() < 0.5 else view


def central_view(picture: Image, crop: int, resize: int) -> Image:
    """The picture with its shorter side at `resize`, then its central square: [crop,crop,3] uint8."""
    height, width = picture.shape[:2]
    scale = resize / min(height, width)
    # The box of the source that ends up in the central crop: one resampling instead of two.
    w, h = crop / scale, crop / scale
    left, top = (width - w) / 2, (height - h) / 2
    box = (max(left, 0.0), max(top, 0.0), min(left + w, float(width)), min(top + h, float(height)))
    return _resized(picture, box, (crop, crop))


def _resized(picture: Image, box: tuple[float, float, float, float], size: tuple[int, int]) -> NDArray[np.uint8]:
    from PIL import Image as Pillow

    return np.asarray(Pillow.fromarray(picture).resize(size, Pillow.Resampling.BILINEAR, box=box))


def _size(scene: Scene) -> tuple[int, int]:
    height, width = scene.load().shape[:2]
    return width, height
