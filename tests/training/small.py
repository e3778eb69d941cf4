"""A configuration that trains in seconds, and faces of one person."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from ficgan.config import Config, load_config
from ficgan.faces import Alignment, crop, get_detector

SMALL = [
    "model.resolution=16",
    "model.channel_base=128",
    "model.channel_max=8",
    "model.id_dim=16",
    "model.w_dim=16",
    "model.spatial_channels=4",
    "model.spatial_norm=true",
    "model.spatial_noise=0.1",
    "discriminator.channel_base=128",
    "discriminator.channel_max=8",
    "optimizer.batch=4",
    "loss.r1_interval=2",
    "swap.mean_fraction=0.5",
    "swap.crossover=0.3",
    "schedule.total_kimg=0.032",
    "schedule.tick_kimg=0.008",
    "schedule.snapshot_kimg=0.032",
    "schedule.checkpoint_kimg=1000",
]


def small_config(*overrides: str) -> Config:
    return load_config("tiny", [*SMALL, *overrides])


def astronauts(folder: Path, count: int, side: int) -> Path:
    """Aligned pictures of the astronaut's face, each lit and turned a little otherwise."""
    photo = pytest.importorskip("skimage.data").astronaut()
    face, rng = get_detector().detect(photo)[0], np.random.default_rng(0)
    for number in range(count):
        moved = face.landmarks + rng.normal(0, 1.5, (5, 2)).astype(np.float32)
        one = crop(photo, Alignment().matrix(moved, side), side).astype(float) * rng.uniform(0.6, 1.1)
        Image.fromarray(np.clip(one, 0, 255).astype(np.uint8)).save(folder / f"{number:02d}.png")
    return folder
