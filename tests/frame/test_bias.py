"""What new faces of a kind have that photos have not is found, and taken away."""

from __future__ import annotations

import numpy as np

from ficgan.frame.colours import LOG_BLACK, PLANES, fit_bias, without_bias
from ficgan.identity.kind import ETHNICITIES, MALE

SIDE, MANY = 32, 300
PIXELS = np.flatnonzero(np.pad(np.ones((24, 24), bool), 4))


def test_the_bias_of_a_kind_goes_and_the_rest_stays() -> None:
    rng = np.random.default_rng(4)
    kinds = np.zeros((MANY, len(ETHNICITIES) + 2), np.float32)
    kinds[np.arange(MANY), rng.integers(len(ETHNICITIES), size=MANY)] = 1
    kinds[:, -2:] = np.column_stack([rng.integers(2, size=MANY), rng.uniform(5, 80, MANY)])
    stain = np.zeros((SIDE, SIDE, 3))
    stain[12:17, 8:14] = -0.2, 0.08, 0.0  # of one group: darker and redder
    beard = np.roll(stain, 8, axis=0)  # of men
    photos = rng.uniform(0.3, 0.6, (MANY, 1, 1, 3)) * np.ones((SIDE, SIDE, 1))
    noise = rng.normal(0, 0.05, photos.shape)
    strong, male = (kinds[:, column, None, None, None] for column in (2, MALE))
    logs = (stain * strong + beard * (male - 0.5) + noise) @ np.linalg.inv(PLANES)
    made = (photos + LOG_BLACK) * np.exp(logs) - LOG_BLACK
    made, photos = (np.clip(np.rint(255 * one), 0, 255).astype(np.uint8) for one in (made, photos))
    weights = np.full((MANY, SIDE, SIDE), 255, np.uint8)
    bias = fit_bias(made, photos, kinds, weights, PIXELS)
    plain = np.full((SIDE, SIDE, 3), 0.5, np.float32)
    for kind in kinds[:20]:
        out = without_bias(plain, bias, kind, PIXELS)
        light, red, _ = np.moveaxis(np.log((out + LOG_BLACK) / (plain + LOG_BLACK)) @ PLANES, 2, 0)
        inside, outside = np.s_[13:16, 9:13], np.s_[20:26, 18:26]
        assert (0.08 < light[inside].mean() < 0.2 and red[inside].mean() < -0.02) == bool(kind[2])
        assert max(np.abs(light[outside]).mean(), np.abs(red[inside]).mean() * (1 - kind[2])) < 0.02
        assert np.abs(light[21:24, 9:13]).mean() < 0.03, "what shows gender stays"
        assert (out.reshape(-1, 3)[np.setdiff1d(np.arange(SIDE**2), PIXELS)] == 0.5).all()
