"""A small set of drawn faces."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageDraw


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
