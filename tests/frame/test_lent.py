"""Relief that is lent: as strong as the photo's own, in any light, and only where it fits."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from ficgan.arrays import luminance
from ficgan.frame import lent


def test_lent_detail_is_as_strong_as_the_photos_and_fits(rng: np.random.Generator) -> None:
    """At most what the lender has, in any light; a lender's hair is not lent."""
    side, rows = 256, np.arange(256)[:, None]
    eyes, above = np.zeros((2, side, side), np.float32)
    eyes[60:90], above[:40] = 1, 1
    skin = np.flatnonzero(np.broadcast_to(rows >= 60, (side, side)))
    none = np.zeros_like(eyes)
    places = lent.FinePlaces(skin, np.flatnonzero(eyes), np.flatnonzero(above), eyes, eyes, eyes, above, none, none)
    face = np.clip(0.5 + rng.normal(0, 0.08, (side, side)), 0, 1).astype(np.float32)
    strands = (rows >= 200) & (rows < 230) & (np.arange(side) % 16 < 4)
    face[strands] = 0.12
    lender = lent.Lender(lent.relief_of(face), lent.tone_of(face, side // 2), face)

    def made_with(texture: NDArray[np.float32], wanted: lent.Fineness, most: float) -> NDArray[np.float32]:
        return lent.with_detail(texture, lent.lent_detail(texture, lender, wanted, places, most))

    def made(light: float, wanted: float, most: float = 9.0) -> NDArray[np.float32]:
        plain = np.full((side, side, 3), light, np.float32)
        out = made_with(plain, lent.Fineness(wanted, 2 * wanted, wanted / 2), most)
        assert np.isfinite(out).all() and abs(out.mean() / light - 1) < 0.01
        return luminance(out)

    for light in (0.15, 0.6):
        found = lent.fineness(made(light, 0.1 * light), places)
        assert np.array(found) / light == pytest.approx(np.array([0.1, 0.2, 0.05]), rel=0.1)
    assert max(lent.fineness(made(0.6, 0.0), places)) < 1e-6
    once, twice = (lent.fineness(made(0.6, 9.0, most), places)[0] for most in (0.5, 1.0))
    assert once == pytest.approx(twice / 2, rel=0.1)
    assert abs(made(0.6, 9.0, 1.0)[strands].mean() - 0.6) < 0.05 < 0.2 < -lender.relief[strands].mean()
    lined = lender._replace(relief=lender.relief.copy(), tone=np.zeros_like(lender.tone))
    lined.relief[150], lined.relief[151] = -2, 2
    line = lent.lent_detail(np.full((side, side, 3), 0.5, np.float32), lined, lent.Fineness(*[0.02] * 3), places, 9)
    assert line[150].min() < -0.07 and line[151].max() < 0.055, "a wrinkle is a shadow, without a light rim"
    below_black = np.full((side, side, 3), -0.01, np.float32)
    assert np.isfinite(made_with(below_black, lent.Fineness(0.1, 0.1, 0.1), 1.0)).all()


def test_deep_lines_are_not_lent_where_the_head_shows_more_than_the_lender_did() -> None:
    lines, larger = np.float32([[0.2, -0.2, 0.01, 0.2]]), np.float32([[1, 3, 3, 0.5]])
    out = lent.unsmeared(lines, 0.02, larger)
    np.testing.assert_allclose(out[0, [0, 3]], lines[0, [0, 3]], rtol=1e-3)
    assert abs(out[0, 1]) < 0.02 and out[0, 2] == pytest.approx(0.01, rel=0.2)
