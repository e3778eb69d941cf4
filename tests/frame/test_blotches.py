"""What a new face gets of a photo's look."""

from __future__ import annotations

import cv2
import numpy as np
import pytest

from ficgan.arrays import luminance
from ficgan.frame.look import read_blotches, with_blotches


def test_skin_gets_blotches_as_strong_as_the_photos(rng: np.random.Generator) -> None:
    """Redder ones are darker; nothing else changes, hair counts for little, and each draw has its own."""
    side, rows = 128, np.arange(128)[:, None]
    skin = np.flatnonzero(np.broadcast_to(rows >= 30, (side, side)))
    plain = np.broadcast_to(np.float32([0.7, 0.5, 0.4]), (side, side, 3)).copy()
    red = cv2.GaussianBlur(rng.standard_normal((side, side), np.float32), (0, 0), 2)[..., None]
    photo = plain * np.exp(0.05 * red / red.std() * np.float32([0.3, -0.5, -1]))
    photo[80:100, ::9] = 0.05
    read = read_blotches(photo, skin)
    assert 0.02 < read == pytest.approx(read_blotches(np.delete(photo, np.s_[80:100], 0), skin[: -20 * side]), rel=0.3)
    out, other = (with_blotches(plain, skin, 0.008, chance) for chance in (0.1, 0.2))
    assert read_blotches(out, skin) == pytest.approx(0.75 * 0.008, rel=0.15) and not np.array_equal(out, other)
    assert np.array_equal(out[:25], plain[:25]) and abs(out.mean() / plain.mean() - 1) < 0.005
    change = np.log(out / plain).reshape(-1, 3)[skin]
    assert np.corrcoef(change[:, 0] - change[:, 2], luminance(out).ravel()[skin])[0, 1] < -0.9
    np.testing.assert_allclose(with_blotches(photo, skin, 0.5 * read, 0.1), photo, atol=1e-6)  # it has more
