"""Made-up scenes: noise, a "face" whose box is annotated, and a patch whose colour gives the class, inside of the face
or beside it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from media import coded, write_tar

from ficgan.lab.study.scenes import StudyConfig

FACE = (10.0, 10.0, 22.0, 22.0)
BESIDE = (1, 1, 8, 8)


def scene(rng: np.random.Generator, label: int, *, in_face: bool, side: int = 32) -> np.ndarray:
    image = rng.integers(90, 160, (side, side, 3), dtype=np.uint8)
    x0, y0, x1, y1 = (int(v) for v in FACE) if in_face else BESIDE
    image[y0:y1, x0:x1] = ((220, 40, 60), (40, 60, 220))[label]
    return image


def write_scenes(folder: Path, *, in_face: bool, count: int = 48, held: int = 24, seed: int = 5) -> tuple[Path, Path]:
    """A tar of PNGs and the JSON of its faces: two classes, splits "train" and "val"."""
    rng = np.random.default_rng(seed)
    folder.mkdir(parents=True, exist_ok=True)
    records, images = [], {}
    for number in range(count + held):
        split, label = ("train" if number < count else "val"), number % 2
        name = f"{split}{number}.png"
        images[name] = coded(scene(rng, label, in_face=in_face))
        records.append({"file": name, "split": split, "label": "ab"[label], "bboxes": [list(FACE)]})
    tar = write_tar(folder / "scenes.tar", images)
    table = folder / "scenes.json"
    table.write_text(json.dumps(records))
    return tar, table


def tiny(tar: Path, table: Path, **more: Any) -> StudyConfig:
    """A study of a few seconds."""
    sizes = {"crop": 32, "resize": 32, "min_scale": 0.6, "epochs": 3, "drop_every": 2, "batch": 16, "lr": 0.05}
    given = {"images": tar, "annotations": table, "networks": ["narrow-resnet"], "seeds": [0, 1], "device": "cpu"}
    return StudyConfig(**{**sizes, **given, **more})
