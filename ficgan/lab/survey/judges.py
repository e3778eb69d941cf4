"""What recognisers say of the very pictures that people saw."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ficgan.anonymizers import Faces
from ficgan.errors import InputError
from ficgan.lab.readers import Reader
from ficgan.lab.survey.key import Item, Key, Picture

__all__ = ["Judged", "judge"]


@dataclass(frozen=True)
class Judged:
    """A recogniser's similarities.

    Args:
        name: of the recogniser.
        metric: "cosine" or "euclidean".
        threshold: similarity above which two pictures count as one person; it came with the recogniser.
        similarity: by (left, right) tokens.
    """

    name: str
    metric: str
    threshold: float
    similarity: dict[tuple[str, str], float]

    def matches(self, item: Item) -> bool:
        """Whether the two pictures of a question count as one person."""
        return self.similarity[item.left, item.right] > self.threshold


def judge(key: Key, images: Path, readers: Sequence[Reader]) -> list[Judged]:
    """Read every picture once and compare the two of each question.

    Args:
        key: of the survey.
        images: its folder of pictures.
        readers: recognisers.

    Raises:
        InputError: a picture is missing or damaged.
    """
    pairs = sorted({(i.left, i.right) for one in key.questionnaires for i in one.items if not i.check})
    shown = [key.pictures[token] for token in sorted({token for pair in pairs for token in pair})]
    row = {picture.token: index for index, picture in enumerate(shown)}
    faces = _faces(shown, images)
    left, right = (np.array([row[pair[side]] for pair in pairs], np.int64) for side in (0, 1))
    out = []
    for reader in readers:
        values = _similarity(reader, reader.embed(faces), left, right)
        told = {pair: float(value) for pair, value in zip(pairs, values, strict=True)}
        out.append(Judged(reader.name, str(reader.metric), float(reader.threshold), told))
    return out


def _faces(shown: Sequence[Picture], images: Path) -> Faces:
    from PIL import Image

    pixels = []
    for picture in shown:
        path = images / f"{picture.token}.png"
        try:
            with Image.open(path) as image:
                pixels.append(np.asarray(image.convert("RGB")))
        except OSError as error:
            raise InputError(f"{path} cannot be read ({error}); keep the survey's folder whole") from error
    if len({image.shape for image in pixels}) > 1:
        raise InputError(f"the pictures in {images} differ in size, as the survey's do not; keep its folder as it was")
    marks = np.array([picture.landmarks for picture in shown], np.float32)
    return Faces(np.stack(pixels), tuple(picture.token for picture in shown), marks)


def _similarity(
    reader: Reader, embeddings: NDArray[np.float32], left: NDArray[np.int64], right: NDArray[np.int64]
) -> NDArray[np.float64]:
    """[M] cosine, or minus the Euclidean distance."""
    values = embeddings.astype(np.float64)
    if reader.metric == "cosine":
        values /= np.linalg.norm(values, axis=1, keepdims=True).clip(1e-12)
        return np.asarray((values[left] * values[right]).sum(1), np.float64)
    return -np.asarray(np.linalg.norm(values[left] - values[right], axis=1), np.float64)
