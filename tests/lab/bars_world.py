"""A few made people and judges that look at pixels alone, shared by the tests of the bars."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ficgan.anonymizers import Faces
from ficgan.lab.bars import MeasuredSet
from ficgan.lab.metrics import Bootstrap
from ficgan.lab.metrics.utility import Judges
from ficgan.lab.readers import Reader
from ficgan.lab.sets import Prepared

SIDE = 64


@dataclass
class Blocks:
    """Reads 4×4 means of the whole picture, wherever the face is."""

    name: str = "blocks"
    metric: str = "cosine"
    match_threshold: float = 0.5

    def embed(self, image: np.ndarray, landmarks: np.ndarray) -> np.ndarray:
        step = image.shape[0] // 4
        rows = image[: 4 * step, : 4 * step].reshape(4, step, 4, step, 3).mean((1, 3)).astype(np.float32) - 127
        return np.repeat(rows.reshape(1, -1) + 1e-3, len(landmarks), 0)

    def distance(self, a: np.ndarray, b: np.ndarray) -> float:
        return 1 - cosine(a, b)

    def is_match(self, a: np.ndarray, b: np.ndarray) -> bool:
        return not self.distance(a, b) >= self.match_threshold


def reader(**settings: Any) -> Reader:
    return Reader(Blocks(**settings), settings.get("name", "blocks"), "blocks-1")


def people(count: int = 6, each: int = 2, seed: int = 0, side: int = SIDE, spread: float = 40) -> Faces:
    """`each` images of `count` people: a texture of 4×4 blocks per person, noise per image."""
    rng = np.random.default_rng(seed)
    images, names, who = [], [], []
    for person in range(count):
        texture = rng.normal(size=(4, 4, 3)).repeat(side // 4, 0).repeat(side // 4, 1) * spread
        for index in range(each):
            pixels = 127 + texture + rng.normal(size=(side, side, 3)) * 10
            images.append(pixels.clip(0, 255).astype(np.uint8))
            names.append(f"{person}-{index}.png")
            who.append(person)
    return Faces(np.stack(images), tuple(names), people=np.array(who))


def bench(
    faces: Faces | None = None,
    *,
    judges: Judges | None = None,
    readers: tuple[Reader, ...] | None = None,
    groups: dict[str, tuple[str, ...]] | None = None,
    region: tuple[int, int, int, int] = (0, 0, SIDE, SIDE),
) -> MeasuredSet:
    """Faces, and who judges them."""
    faces = people() if faces is None else faces
    prepared = Prepared(faces, region, np.arange(len(faces)), groups=groups or {}, source={"name": "made"})
    return MeasuredSet(prepared, (reader(),) if readers is None else readers, judges or Judges(), Bootstrap(200))


def cosine(a: np.ndarray, b: np.ndarray) -> float:
    """Of two vectors, by the schoolbook."""
    x, y = a.astype(np.float64), b.astype(np.float64)
    return float(sum(x * y) / (sum(x * x) ** 0.5 * sum(y * y) ** 0.5))


def seen(image: np.ndarray) -> np.ndarray:
    """What `Blocks` reads."""
    return Blocks().embed(image, np.zeros((1, 5, 2)))[0]
