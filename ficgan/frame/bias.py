"""The bias of new faces: what those of a kind have on average that photos of such people have not.

Strengthened means have brows that are too high and dark, stains beside the mouth, and noses without redness. No single
face shows it; the mean difference to many photos does, and it is taken away. Nothing of a source takes part in that.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ficgan.arrays import carried
from ficgan.frame.colours import LOG_BLACK, PLANES
from ficgan.identity.kind import AGE, MALE

Floats = NDArray[np.float32]
# Of the numbers in a model's file: 1 in logarithms of light, redness and yellowness.
BIAS_UNIT = 500
# What is coarser than this follows the photo, and what is finer would draw lines, of the side.
_COARSE, _FINEST = 0.125, 0.012
# Most of a difference that counts; what holds a rare kind to the mean, in faces; share that is taken away; years
# between which it changes.
_MOST, _RIDGE, _TAKEN, _AGES = 0.6, 20.0, 0.8, (18, 75)


def bias_terms(kinds: Floats) -> Floats:
    """Inputs [N,9] of the bias, of readings [N,9] by a `KindReader`: 1, ethnic groups, age."""
    ones = np.ones((len(kinds), 1), np.float32)
    years = np.clip(kinds[:, AGE], *_AGES)  # there are few portraits of others
    return np.column_stack([ones, kinds[:, :MALE], years / 40 - 1]).astype(np.float32)


def fit_bias(
    made: NDArray[np.uint8], photos: NDArray[np.uint8], kinds: Floats, weights: NDArray[np.uint8], pixels: Any
) -> NDArray[np.int8]:
    """The bias of new faces in the place of those of photos: int8 [9,P,3], see `BIAS_UNIT`.

    Args:
        made, photos: uint8 [N,R,R,3], textures in the frame.
        kinds: float32 [N,9], readings of the new faces.
        weights: uint8 [N,R,R], where 255 the skin, brows and lips of both show; 0 elsewhere.
        pixels: int [P], flat indices that are stored.
    """
    import cv2

    # Gender is shown more clearly on purpose: what men and women have too much of each stays.
    terms = np.column_stack([bias_terms(kinds), kinds[:, MALE] - 0.5])
    found = np.zeros((len(made), len(pixels), 3), np.float32)
    for row, (new, old, weight) in enumerate(zip(made, photos, weights, strict=True)):
        logs = [np.log(one.astype(np.float32) / 255 + LOG_BLACK) @ PLANES for one in (new, old)]
        difference, seen = logs[0] - logs[1], weight.astype(np.float32) / 255
        difference -= carried(difference, seen, _COARSE * len(weight))
        found[row] = (np.clip(difference, -_MOST, _MOST) * seen[..., None]).reshape(-1, 3)[pixels]
    held = np.full(terms.shape[1], _RIDGE, np.float32)
    held[0] = 1e-3
    bias = np.linalg.solve(terms.T @ terms + np.diag(held), terms.T @ found.reshape(len(found), -1))[:-1]
    whole = np.zeros((len(bias), *made.shape[1:]), np.float32)
    whole.reshape(len(bias), -1, 3)[:, pixels] = bias.reshape(len(bias), -1, 3)
    smooth = np.stack([cv2.GaussianBlur(one, (0, 0), _FINEST * len(one)) for one in whole])
    steps = _TAKEN * BIAS_UNIT * smooth.reshape(len(bias), -1, 3)[:, pixels]
    return np.clip(np.rint(steps), -127, 127).astype(np.int8)


def without_bias(texture: Floats, bias: NDArray[np.int8], kind: Floats, pixels: Any, share: float = 1.0) -> Floats:
    """A texture [R,R,3] in [0,1] without the bias of its kind [9]; `share` is how much of it is new."""
    change = np.tensordot(bias_terms(kind[None])[0], bias.astype(np.float32), 1) * np.float32(-share / BIAS_UNIT)
    out = texture.copy()
    flat = out.reshape(-1, 3)
    gains = np.exp(change @ np.linalg.inv(PLANES)).astype(np.float32)
    flat[pixels] = (flat[pixels] + LOG_BLACK) * gains - LOG_BLACK
    return out
