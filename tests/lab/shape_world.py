"""A mesh that follows the colours of a picture, so that made people have shapes."""

from __future__ import annotations

import numpy as np

from ficgan.lab.readers import _yardstick

POINTS = 468


class MadeMesh:
    """Moves the points of the mean face by what 4×4 blocks of the crop show; a picture of one colour is no face."""

    name = "made"

    def __init__(self, strength: float = 3.0) -> None:
        mean, spread, _ = _yardstick()
        inner = ((mean[:, :2] + 0.5) / 128 + 22 / 128) / (1 + 44 / 128) * 256 - 0.5
        self._scale = 2 / (1 + 44 / 128)
        self._mean = np.concatenate([inner, mean[:, 2:] * self._scale], 1)
        modes = np.random.default_rng(0).normal(size=(48, POINTS, 3)) * spread
        self._modes = modes * self._scale * strength / 48**0.5

    def read(self, crops: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        blocks = crops.reshape(len(crops), 4, 64, 4, 64, 3).mean((2, 4)).reshape(len(crops), 48)
        moved = np.einsum("bi,inj->bnj", (blocks - 127) / 40, self._modes)
        points = np.zeros((len(crops), POINTS + 10, 3), np.float32)
        points[:, :POINTS] = self._mean + moved
        presence = np.where(crops.std((1, 2)).max(-1) < 1, -20.0, 20.0)
        return points, presence.astype(np.float32)
