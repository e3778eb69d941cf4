"""Light and colours of a new face are spread as the photo's, wherever they lie there."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from ficgan.arrays import LUMA, luminance
from ficgan.frame.colours import (
    lit_as,
    no_lighter,
    parted,
    read_lips,
    read_nostrils,
    read_relief,
    tinted,
    with_lips,
    with_nostrils,
    with_relief,
)

Floats = NDArray[np.float32]
SIDE = 64
SKIN = np.flatnonzero(np.pad(np.ones((44, 44), bool), 10))
SKIN = SKIN[(SKIN // SIDE < 44) | (SKIN % SIDE < 26) | (SKIN % SIDE > 38)]  # beside the mouth
LIPS = np.zeros((SIDE, SIDE), np.float32)
LIPS[46:50, 28:37] = 1
BROWS = np.zeros((SIDE, SIDE), np.float32)
BROWS[20:24, 16:28] = BROWS[20:24, 38:50] = 1
SKIN = SKIN[BROWS.ravel()[SKIN] == 0]


def face(contrast: float, warm: float, lips: tuple[float, float, float], seed: int) -> Floats:
    """Skin in smooth light whose bright places are of a warmer colour, with a mouth."""
    rng = np.random.default_rng(seed)
    wave = np.sin(np.add.outer(np.arange(SIDE) / rng.uniform(6, 9), np.arange(SIDE) / rng.uniform(6, 9)))
    light = 0.4 * np.exp(contrast * wave)[..., None]
    out = light * np.array([1.2, 0.95, 0.8]) * np.exp(warm * wave[..., None] * np.array([0.5, 0, -0.9]))
    return np.where(LIPS[..., None] > 0, light * np.array(lips), out) * (1 - 0.4 * BROWS[..., None]).astype(np.float32)


def test_lips_become_the_photos() -> None:
    pale, painted = face(0.15, 0.0, (1.0, 0.9, 0.8), 1), face(0.25, 0.15, (1.4, 0.6, 0.7), 2)
    wanted, before = read_lips(painted, SKIN, LIPS), read_lips(pale, SKIN, LIPS)
    after = read_lips(with_lips(pale, wanted, SKIN, LIPS), SKIN, LIPS)
    np.testing.assert_allclose(after, wanted, atol=0.2)  # they follow by .8
    assert np.abs(before - wanted).max() > 0.4


def test_nostrils_become_as_dark_as_the_photos_and_no_lighter() -> None:
    holes = np.zeros((2, SIDE, SIDE), np.float32)
    holes[0, 38:41, 24:29] = holes[1, 38:41, 36:41] = 1
    plain = np.full((SIDE, SIDE, 3), (0.6, 0.45, 0.35), np.float32)
    made = with_nostrils(plain, np.float32([-0.5, 0.2]), holes)
    np.testing.assert_allclose(read_nostrils(made, holes), [-0.5, 0], atol=0.08)
    assert (made[holes[0] == 0] == plain[holes[0] == 0]).all() and made[39, 26, 0] / made[39, 26, 2] > 1.75


@pytest.mark.parametrize("tint", [(0, 0, 0), (0.1, 0, -0.15)])
def test_black_and_white_and_sepia_stay_so(tint: tuple[float, float, float]) -> None:
    light = np.linspace(0, 1, SIDE * SIDE).reshape(SIDE, SIDE, 1)
    photo = np.rint(255 * np.clip(light * (1 - light) * 4 * np.array(tint) + light, 0, 1)).astype(np.uint8)
    made = face(0.15, 0.2, (1.0, 0.9, 0.8), 1)
    own = luminance(made)[..., None]
    wanted = own + own * (1 - own) * 4 * np.array(tint)
    np.testing.assert_allclose(tinted(made, photo), wanted, atol=0.03)


def test_skin_has_the_photos_light_and_shade_beside_the_light_around() -> None:
    shade = np.random.default_rng(5).gamma(2, 0.08, (SIDE, SIDE)).astype(np.float32)  # shine is rare and strong
    light = np.linspace(0.2, 0.4, SIDE, dtype=np.float32)
    photo = np.rint(255 * (light[:, None] * np.exp(shade))[..., None] * np.ones(3)).astype(np.uint8)
    made = (light * np.exp(0.7 * shade))[..., None] * np.array([1.2, 1.0, 0.8], np.float32)
    out = lit_as(made, photo, SKIN)
    before, after = (np.log(luminance(one) / light).ravel()[SKIN] for one in (made, out))
    light, shine = (np.ptp(np.quantile(one, (0.5, 0.95))) for one in (after, shade.ravel()[SKIN]))
    assert light == pytest.approx(shine, rel=0.1), "it had .7 of the photo's"
    assert abs(np.median(after - before)) < 0.02, "it is as light as it was"
    np.testing.assert_allclose(*(one / luminance(one)[..., None] for one in (out, made)), rtol=0.03)  # of its colour


def test_skin_gets_the_relief_of_the_photos_part_by_part() -> None:
    parts = np.zeros((2, SIDE, SIDE), np.float32)
    parts[0, :32], parts[1, 32:] = 1, 1
    noise = np.random.default_rng(4).standard_normal((SIDE, SIDE, 1)).astype(np.float32)
    made = np.clip(0.5 + 0.05 * noise * np.ones(3, np.float32), 0, 1)
    want = read_relief(made, parts) * np.array([[1.4], [0.8]], np.float32)
    out = with_relief(made, want, parts)
    np.testing.assert_allclose(read_relief(out, parts), want, rtol=0.2)  # its bands overlap
    np.testing.assert_allclose(out[:32].std() / made[:32].std(), 1.2, atol=0.2)  # its finest stays
    far = with_relief(made, want * np.float32([9, 9, 9, 9, 1]), parts)
    assert read_relief(far, parts)[0, 1] < 2 * read_relief(made, parts)[0, 1]


def test_skin_shines_as_the_photos_where_it_is_lightest() -> None:
    parts = np.zeros((2, SIDE, SIDE), np.float32)
    parts[0, :32], parts[1, 32:] = 1, 1
    y, x = np.mgrid[:SIDE, :SIDE]
    spot = np.exp(-(np.square(y - 16) + np.square(x - 32)) / 40).astype(np.float32)
    dull, shining = (np.float32([0.6, 0.45, 0.4]) * (0.8 + share * spot[..., None]) for share in (0.1, 0.2))
    out = with_relief(dull, read_relief(shining, parts), parts)
    assert read_relief(out, parts)[0, 4] == pytest.approx(read_relief(shining, parts)[0, 4], rel=0.25)
    np.testing.assert_allclose(out[40:], dull[40:], atol=0.01)  # the other part does not
    none = np.zeros_like(parts)  # all hair
    np.testing.assert_allclose(with_relief(dull, read_relief(shining, none), parts), dull, atol=0.05)


def test_brows_that_meet_are_parted() -> None:
    between = np.zeros((SIDE, SIDE), np.float32)
    between[18:26, 28:38] = 1
    bare = face(0.1, 0.0, (1.4, 0.6, 0.7), 2)
    np.testing.assert_allclose(parted(bare, SKIN, between), bare, atol=0.02)
    joined = bare.copy()
    joined[20:24, 28:38] *= 0.3
    out = parted(joined, SKIN, between)
    assert (out[20:24, 28:38] > 0.75 * bare[20:24, 28:38]).all()
    np.testing.assert_array_equal(out[between == 0], joined[between == 0])


def test_what_is_shaved_becomes_skin_and_no_lighter() -> None:
    """A dark lip is lightened up to the skin around it, in light from one side; what is skin already stays."""
    light, everywhere = np.linspace(0.8, 0.4, SIDE, dtype=np.float32)[None, :, None], np.arange(SIDE * SIDE)
    bare = np.broadcast_to(light * np.float32([1, 0.8, 0.7]), (SIDE, SIDE, 3)).copy()
    dark, change = bare.copy(), np.zeros_like(bare)
    dark[40:44, 20:44] *= 0.4
    change[38:46, 18:46] = 2  # far too much
    np.testing.assert_allclose((dark + no_lighter(dark, change, everywhere)) @ LUMA, bare @ LUMA, rtol=0.1)
    assert not no_lighter(bare, np.zeros_like(bare), everywhere).any()
