"""A small set of drawn faces and a configuration that trains in seconds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageDraw

from ficgan.config import Config, load_config

SMALL = [
    "model.resolution=16", "model.channel_base=128", "model.channel_max=8", "model.id_dim=16", "model.w_dim=16",
    "model.spatial_channels=4", "model.spatial_norm=true", "model.spatial_noise=0.1",
    "discriminator.channel_base=128", "discriminator.channel_max=8",
    "optimizer.batch=4", "loss.r1_interval=2", "swap.mean_fraction=0.5", "swap.crossover=0.3",
    "schedule.total_kimg=0.032", "schedule.tick_kimg=0.008", "schedule.snapshot_kimg=0.032",
    "schedule.checkpoint_kimg=1000",
]  # fmt: skip


def small_config(*overrides: str) -> Config:
    return load_config("tiny", [*SMALL, *overrides])


@pytest.fixture(scope="session")
def drawn_faces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """24 cartoons of different colours and places."""
    folder = tmp_path_factory.mktemp("faces")
    rng = np.random.default_rng(0)
    for index in range(24):
        image = Image.new("RGB", (32, 32), tuple(int(v) for v in rng.integers(0, 255, 3)))
        draw = ImageDraw.Draw(image)
        dx, dy = (int(v) for v in rng.integers(-3, 4, 2))
        draw.ellipse((6 + dx, 3 + dy, 26 + dx, 30 + dy), fill=tuple(int(v) for v in rng.integers(80, 255, 3)))
        for x in (11, 19):
            draw.ellipse((x + dx, 11 + dy, x + 3 + dx, 14 + dy), fill=(0, 0, 0))
        image.save(folder / f"{index:02d}.png")
    return folder
