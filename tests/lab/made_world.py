"""A few made people and judges that look at pixels alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from stand_ins import Reader as Recogniser

from ficgan.anonymizers import Faces
from ficgan.lab.bars import MeasuredSet
from ficgan.lab.metrics import Bootstrap
from ficgan.lab.metrics.utility import Judges
from ficgan.lab.readers import Reader
from ficgan.lab.sets import Prepared

SIDE = 64


@dataclass
class Blocks(Recogniser):
    """Reads 4×4 means of the whole picture, wherever the face is."""

    name: str = "blocks"
    metric: str = "cosine"
    match_threshold: float = 0.5

    def embed(self, image: np.ndarray, landmarks: np.ndarray) -> np.ndarray:
        step = image.shape[0] // 4
        rows = image[: 4 * step, : 4 * step].reshape(4, step, 4, step, 3).mean((1, 3)).astype(np.float32) - 127
        return np.repeat(rows.reshape(1, -1) + 1e-3, len(landmarks), 0)


class Means:
    """A stand-in for LPIPS, Inception and SqueezeNet: features are channel means, the distance is a mean difference."""

    network = "means"

    def distance(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return np.abs(a.astype(float) - b).mean((1, 2, 3))

    def features(self, images: np.ndarray) -> np.ndarray:
        return images.mean((1, 2)).astype(np.float32)

    def read(self, images: np.ndarray, *, clear: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray | None]:
        return self.features(images), None if clear is None else self.distance(images, clear)


def reader(**settings: Any) -> Reader:
    return Reader(Blocks(**settings), settings.get("name", "blocks"), "blocks-1")


def people(count: int = 6, each: int = 2, side: int = SIDE, spread: float = 40, blocks: int = 4) -> Faces:
    """`each` images of `count` people: a texture of blocks × blocks per person, noise per image."""
    rng, step = np.random.default_rng(0), side // blocks
    who = np.arange(count).repeat(each)
    texture = rng.normal(size=(count, blocks, blocks, 3)).repeat(step, 1).repeat(step, 2)[who] * spread
    images = (127 + texture + rng.normal(size=texture.shape) * 10).clip(0, 255).astype(np.uint8)
    return Faces(images, tuple(f"{n}.png" for n in range(len(who))), people=who)


def prepared(faces: Faces, region: tuple[int, int, int, int] | None = None, **more: Any) -> Prepared:
    side = faces.images.shape[1]
    return Prepared(faces, region or (0, 0, side, side), source={"name": "made"}, **more)


def bench(
    faces: Faces | None = None,
    *,
    judges: Judges | None = None,
    readers: tuple[Reader, ...] | None = None,
    groups: dict[str, tuple[str, ...]] | None = None,
) -> MeasuredSet:
    """Faces, and who judges them."""
    some = prepared(people() if faces is None else faces, groups=groups or {})
    return MeasuredSet(some, (reader(),) if readers is None else readers, judges or Judges(), Bootstrap(200))


def seen(image: np.ndarray) -> np.ndarray:
    """What `Blocks` reads."""
    return Blocks().embed(image, np.zeros((1, 5, 2)))[0]
