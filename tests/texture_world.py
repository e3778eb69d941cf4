"""Made people whose identity is a texture, a recogniser that reads it, and a detector that finds nothing."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from stand_ins import Fixed, Reader

from ficgan.lab import bench, readers
from ficgan.lab.metrics.utility import Judges


@dataclass
class Textures(Reader):
    """Reads a coarse copy of the crop: what distinguishes the made people."""

    cells: int = 8
    name: str = "textures"
    metric: str = "cosine"
    match_threshold: float = 0.5

    def embed(self, image: np.ndarray, landmarks: np.ndarray) -> np.ndarray:
        cells, step = self.cells, image.shape[0] // self.cells
        small = image.reshape(cells, step, cells, step, 3).mean((1, 3)).astype(np.float32)
        return (small - small.mean()).reshape(1, -1) + 1e-3


def judged_by_textures(patch: pytest.MonkeyPatch, cells: int = 8) -> readers.Reader:
    """The only judge of every bench from now on; no face is detected."""
    judge = readers.Reader(Textures(cells), "textures", "textures-1")  # type: ignore[arg-type]
    patch.setattr(readers, "get_readers", lambda names, device="cpu": [judge])
    patch.setattr(bench, "_detector", lambda name: Fixed())
    patch.setattr(bench, "find_judges", lambda _: Judges(missing={"lpips": "not here", "inception": "not here"}))
    bench._cached_bench.cache_clear()
    return judge


def write_people(
    folder: Path,
    people: int = 30,
    each: int = 4,
    seed: int = 0,
    *,
    cells: int = 8,
    noise: float = 12,
    light: float = 0,
    genders: bool = False,
) -> Path:
    """A folder of PNG of 4·cells pixels and a CSV: a texture per person, noise (and light) per image."""
    folder.mkdir(exist_ok=True)
    rng = np.random.default_rng(seed)
    side = 4 * cells
    with (folder / "labels.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["file", "person", "gender", "race"] if genders else ["file", "person"])
        for person in range(people):
            texture = rng.normal(size=(cells, cells, 3)).repeat(4, 0).repeat(4, 1) * 40
            for index in range(each):
                pixels = 128 + texture + rng.normal(size=(side, side, 3)) * noise
                pixels += rng.normal() * light if light else 0
                name = f"{person:03d}-{index}.png"
                Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(folder / name)
                kind = ["Female" if person % 2 else "Male", "Made"]
                table.writerow([name, person, *(kind if genders else ())])
    return folder
