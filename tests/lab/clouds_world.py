"""People made of formulas, and who looks at them, for the tests of the study of clouds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from ficgan.faces import Face
from ficgan.lab.clouds.study import PictureJudges
from ficgan.lab.readers import Reader
from ficgan.pointcloud import write_cloud
from ficgan.pointcloud.face import made_head

FIVE = np.array([[0.3, 0.4], [0.7, 0.4], [0.5, 0.6], [0.35, 0.75], [0.65, 0.75]])


def write_people(folder: Path, people: int = 3, points: int = 1200) -> Path:
    """Two scans of each, in the canonical frame; the last has one more, called neutral."""
    folder.mkdir(parents=True, exist_ok=True)
    for person in range(people):
        for scan, mood in enumerate(("neutral", "smile")):
            head = made_head(person, points=points, scan=scan)
            write_cloud(folder / f"p{person}_{mood}.ply", head.cloud)
    return folder


class Box:
    """Finds whatever is not white, if there is enough of it."""

    name = "box"

    def detect(self, image: NDArray[np.uint8]) -> list[Face]:
        rows, columns = np.nonzero((image < 250).any(axis=2))
        if len(rows) < 200:
            return []
        box = np.array([columns.min(), rows.min(), columns.max() + 1, rows.max() + 1], np.float32)
        size = box[2:] - box[:2]
        return [Face(box, (box[:2] + FIVE * size).astype(np.float32), 1.0)]


class Thumb:
    """Knows people by a thumbnail of the whole picture."""

    name, metric, match_threshold = "thumb", "cosine", 0.5

    def embed(self, image: NDArray[np.uint8], landmarks: Any) -> NDArray[np.float32]:
        small = cv2.resize(image, (12, 16), interpolation=cv2.INTER_AREA).astype(np.float32)
        return np.repeat((small - 200).reshape(1, -1), len(landmarks), axis=0)


def judges() -> PictureJudges:
    return PictureJudges([Reader(Thumb(), "thumb", "thumb-1")], Box())  # type: ignore[arg-type]


def install(patch: Any) -> None:
    """These judges in place of whatever a configuration names."""
    patch.setattr(PictureJudges, "open", classmethod(lambda cls, config: judges()))
