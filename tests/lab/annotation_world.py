"""A small set of pictures with faces that are boxes, its pages, and people who work through them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ficgan.faces import Face
from ficgan.lab.annotation import (
    EXPORT_SCHEMA,
    AnnotationKey,
    Batch,
    BatchImage,
    ImageRecord,
    ImageRecords,
    listed,
    write_pages,
)

SIZE = (120, 90)
FACES = [[10, 10, 30, 35], [50, 20, 70, 45], [85, 50, 110, 80]]


def rows(*boxes: Any) -> NDArray[np.float64]:
    return np.array(boxes, np.float64).reshape(-1, 4)


def faces_of(name: str) -> NDArray[np.float64]:
    """The faces of image NN: 0, 1, 2, 3, 0, …"""
    return rows(*FACES[: int(Path(name).stem) % 4])


def write_images(folder: Path, count: int = 12) -> Path:
    for number in range(count):
        path = folder / "images" / ("lynx" if number % 2 else "maypole") / f"{number:02d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", SIZE, (number, 40, 80)).save(path)
    return folder / "images"


def truth_of(images: Path) -> ImageRecords:
    return ImageRecords(ImageRecord(blob.name, faces_of(blob.name)) for blob in listed(images))


def detected_of(images: Path) -> ImageRecords:
    """As the truth, but the first face is missed and there is a box too many in the images after the eighth."""
    records = []
    for name, record in truth_of(images).items():
        boxes = record.boxes[1:]
        records.append(ImageRecord(name, np.vstack([boxes, [[0, 60, 20, 80]]]) if Path(name).stem > "08" else boxes))
    return ImageRecords(records)


class RedDetector:
    """Finds in a picture what the red of its first pixel says."""

    name = "red"

    def __init__(self, stop_at: int | None = None, threshold: float = 0.5) -> None:
        self.seen, self.stop_at, self.threshold = 0, stop_at, threshold

    def detect(self, image: NDArray[np.uint8]) -> list[Face]:
        if self.seen == self.stop_at:
            raise KeyboardInterrupt
        self.seen += 1
        boxes = faces_of(str(image[0, 0, 0])).astype(np.float32) + 0.125
        return [Face(box, np.zeros((5, 2), np.float32), 0.875) for box in boxes]


def make(tmp_path: Path, **rules: int) -> tuple[Path, AnnotationKey]:
    """Pages of twelve images, three of which are gold, in batches of five."""
    images = write_images(tmp_path)
    verified = ImageRecords(list(truth_of(images).values())[:3])
    given = {"size": 5, "gold": 2, **rules}
    key, failed = write_pages(tmp_path / "out", listed(images), detected_of(images), verified, **given)
    assert failed == []
    return tmp_path / "out", key


def right(image: BatchImage) -> NDArray[np.float64]:
    return faces_of(image.name)


def hand_in(path: Path, batch: Batch, draw: Callable[[BatchImage], Any] = right, worker: str = "ada") -> Path:
    """An export as the page writes it."""
    images = [{"id": image.id, "boxes": np.asarray(draw(image)).tolist()} for image in batch.images]
    head = {"schema": EXPORT_SCHEMA, "batch": batch.id, "worker": worker, "attempt": 1, "lives": 2}
    path.write_text(json.dumps({**head, "images": images}))
    return path
