"""Light and colours of a new face are spread as the photo's, wherever they lie there."""

from __future__ import annotations

import cv2
import numpy as np
import pytest

from ficgan.arrays import LUMA, luminance
from ficgan.frame import Floats, colours
from ficgan.frame.look import BLOTCHES, SPECKS, Blotches, read_blotches, with_blotches
from ficgan.identity.kind import AGE, ETHNICITIES, MALE

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
    wanted, before = colours.read_lips(painted, SKIN, LIPS), colours.read_lips(pale, SKIN, LIPS)
    after = colours.read_lips(colours.with_lips(pale, wanted, SKIN, LIPS), SKIN, LIPS)
    np.testing.assert_allclose(after, wanted, atol=0.2)  # they follow by .8
    assert np.abs(before - wanted).max() > 0.4


def test_nostrils_become_as_dark_as_the_photos_and_no_lighter() -> None:
    holes, plain = np.zeros((2, SIDE, SIDE), np.float32), np.full((SIDE, SIDE, 3), (0.6, 0.45, 0.35), np.float32)
    holes[0, 38:41, 24:29] = holes[1, 38:41, 36:41] = 1
    made = colours.with_nostrils(plain, np.float32([-0.5, 0.2]), holes)
    np.testing.assert_allclose(colours.read_nostrils(made, holes), [-0.5, 0], atol=0.08)
    assert (made[holes[0] == 0] == plain[holes[0] == 0]).all() and made[39, 26, 0] / made[39, 26, 2] > 1.75


@pytest.mark.parametrize("tint", [(0, 0, 0), (0.1, 0, -0.15)])
def test_black_and_white_and_sepia_stay_so(tint: tuple[float, float, float]) -> None:
    light = np.linspace(0, 1, SIDE * SIDE).reshape(SIDE, SIDE, 1)
    photo = np.rint(255 * np.clip(light * (1 - light) * 4 * np.array(tint) + light, 0, 1)).astype(np.uint8)
    made = face(0.15, 0.2, (1.0, 0.9, 0.8), 1)
    own = luminance(made)[..., None]
    np.testing.assert_allclose(colours.tinted(made, photo), own + own * (1 - own) * 4 * np.array(tint), atol=0.03)


def test_skin_has_the_photos_light_and_shade_beside_the_light_around() -> None:
    shade = np.random.default_rng(5).gamma(2, 0.08, (SIDE, SIDE)).astype(np.float32)  # shine is rare and strong
    light = np.linspace(0.2, 0.4, SIDE, dtype=np.float32)
    photo = np.rint(255 * (light[:, None] * np.exp(shade))[..., None] * np.ones(3)).astype(np.uint8)
    made = (light * np.exp(0.7 * shade))[..., None] * np.array([1.2, 1.0, 0.8], np.float32)
    out = colours.lit_as(made, photo, SKIN)
    before, after = (np.log(luminance(one) / light).ravel()[SKIN] for one in (made, out))
    light, shine = (np.ptp(np.quantile(one, (0.5, 0.95))) for one in (after, shade.ravel()[SKIN]))
    assert light == pytest.approx(shine, rel=0.1), "it had .7 of the photo's"
    assert abs(np.median(after - before)) < 0.02, "it is as light as it was"
    np.testing.assert_allclose(*(one / luminance(one)[..., None] for one in (out, made)), rtol=0.03)  # of its colour


def test_skin_is_not_stained_where_the_photo_is_burnt_out() -> None:
    light = np.linspace(0.4, 1.6, SIDE, dtype=np.float32)[:, None, None] * np.ones((1, SIDE, 1), np.float32)
    skin = light * np.float32([0.8, 0.6, 0.45])
    photo = np.rint(255 * np.clip(2 * skin, 0, 1)).astype(np.uint8)
    out = colours.lit_as(1.1 * skin * np.float32([0.9, 1, 1.25]) ** light, photo, SKIN)  # bluer than skin where bright
    burnt = out[(photo == 255).all(-1)]
    assert len(burnt) > 500 and (burnt[:, 0] >= burnt[:, 1]).all() and (burnt[:, 1] >= burnt[:, 2]).all()
    assert burnt[-1, 0] < 1.1 * burnt[-1, 2], "nearly white where it is brightest"


def test_skin_gets_the_relief_of_the_photos_part_by_part() -> None:
    parts = np.zeros((2, SIDE, SIDE), np.float32)
    parts[0, :32], parts[1, 32:] = 1, 1
    noise = np.random.default_rng(4).standard_normal((SIDE, SIDE, 1)).astype(np.float32)
    made = np.clip(0.5 + 0.05 * noise * np.ones(3, np.float32), 0, 1)
    want = colours.read_relief(made, parts) * np.array([[1.4], [0.8]], np.float32)
    out = colours.with_relief(made, want, parts)
    np.testing.assert_allclose(colours.read_relief(out, parts), want, rtol=0.2)  # its bands overlap
    np.testing.assert_allclose(out[:32].std() / made[:32].std(), 1.2, atol=0.2)  # its finest stays
    far = colours.with_relief(made, want * np.float32([9, 9, 9, 9, 1]), parts)
    assert colours.read_relief(far, parts)[0, 1] < 2 * colours.read_relief(made, parts)[0, 1]


def test_skin_shines_as_the_photos_where_it_is_lightest() -> None:
    parts = np.zeros((2, SIDE, SIDE), np.float32)
    parts[0, :32], parts[1, 32:] = 1, 1
    y, x = np.mgrid[:SIDE, :SIDE]
    spot = np.exp(-(np.square(y - 16) + np.square(x - 32)) / 40).astype(np.float32)
    dull, shining = (np.float32([0.6, 0.45, 0.4]) * (0.8 + share * spot[..., None]) for share in (0.1, 0.2))
    out = colours.with_relief(dull, colours.read_relief(shining, parts), parts)
    assert colours.read_relief(out, parts)[0, 4] == pytest.approx(colours.read_relief(shining, parts)[0, 4], rel=0.25)
    np.testing.assert_allclose(out[40:], dull[40:], atol=0.01)  # the other part does not
    none = np.zeros_like(parts)  # all hair
    np.testing.assert_allclose(colours.with_relief(dull, colours.read_relief(shining, none), parts), dull, atol=0.05)


def test_brows_that_meet_are_parted() -> None:
    between = np.zeros((SIDE, SIDE), np.float32)
    between[18:26, 28:38] = 1
    bare = face(0.1, 0.0, (1.4, 0.6, 0.7), 2)
    np.testing.assert_allclose(colours.parted(bare, SKIN, between), bare, atol=0.02)
    joined = bare.copy()
    joined[20:24, 28:38] *= 0.3
    out = colours.parted(joined, SKIN, between)
    assert (out[20:24, 28:38] > 0.75 * bare[20:24, 28:38]).all()
    np.testing.assert_array_equal(out[between == 0], joined[between == 0])


@pytest.mark.parametrize(("darkest", "lightest", "wanted"), [(-0.9, -0.65, -0.65), (-0.3, -0.1, -0.3)])
def test_brows_are_as_dark_as_allowed_and_of_the_photos_hue(darkest: float, lightest: float, wanted: float) -> None:
    bare, hue = face(0.0, 0.0, (1.4, 0.6, 0.7), 2), np.float32([0.08, -0.05])
    out = colours.with_brows(bare, darkest, lightest, hue, BROWS, SKIN)
    light = np.log(luminance(out) + colours.LOG_BLACK)
    assert np.median(light[BROWS > 0]) - np.median(light.ravel()[SKIN]) == pytest.approx(wanted, abs=0.04)
    np.testing.assert_array_equal(out[BROWS == 0], bare[BROWS == 0])
    np.testing.assert_allclose(colours.read_brows(out, BROWS, SKIN), 0.8 * hue, atol=0.025)
    green = colours.with_brows(bare, darkest, lightest, np.float32([-1, 1]), BROWS, SKIN)
    assert np.abs(colours.read_brows(green, BROWS, SKIN)).max() < 0.2


def test_what_is_shaved_becomes_skin_and_no_lighter() -> None:
    """A dark lip is lightened up to the skin around it, in light from one side; what is skin already stays."""
    light, everywhere = np.linspace(0.8, 0.4, SIDE, dtype=np.float32)[None, :, None], np.arange(SIDE * SIDE)
    bare = np.broadcast_to(light * np.float32([1, 0.8, 0.7]), (SIDE, SIDE, 3)).copy()
    dark, change = bare.copy(), np.zeros_like(bare)
    dark[40:44, 20:44] *= 0.4
    change[38:46, 18:46] = 2  # far too much
    np.testing.assert_allclose((dark + colours.no_lighter(dark, change, everywhere)) @ LUMA, bare @ LUMA, rtol=0.1)
    assert not colours.no_lighter(bare, np.zeros_like(bare), everywhere).any()


@pytest.mark.parametrize(("which", "size"), [(BLOTCHES, 2.0), (SPECKS, 0.7)])
def test_skin_gets_blotches_as_strong_as_the_photos(rng: np.random.Generator, which: Blotches, size: float) -> None:
    """Redder ones are darker; nothing else changes, hair counts for little, and each draw has its own."""
    side, rows = 128, np.arange(128)[:, None]
    skin = np.flatnonzero(np.broadcast_to(rows >= 30, (side, side)))
    plain = np.broadcast_to(np.float32([0.7, 0.5, 0.4]), (side, side, 3)).copy()
    red = cv2.GaussianBlur(rng.standard_normal((side, side), np.float32), (0, 0), size)[..., None]
    photo = plain * np.exp(0.05 * red / red.std() * np.float32([0.3, -0.5, -1]))
    photo[80:100, ::9] = 0.05
    read, bare = read_blotches(photo, skin, which), np.delete(photo, np.s_[80:100], 0)
    assert 0.02 < read == pytest.approx(read_blotches(bare, skin[: -20 * side], which), rel=0.3)
    out, other = (with_blotches(plain, skin, 0.008, chance, which) for chance in (0.1, 0.2))
    assert read_blotches(out, skin, which) == pytest.approx(which.share * 0.008, rel=0.15)
    assert not np.array_equal(out, other)
    assert np.array_equal(out[:25], plain[:25]) and abs(out.mean() / plain.mean() - 1) < 0.005
    change = np.log(out / plain).reshape(-1, 3)[skin]
    assert np.corrcoef(change[:, 0] - change[:, 2], luminance(out).ravel()[skin])[0, 1] < -0.9
    np.testing.assert_allclose(with_blotches(photo, skin, 0.5 * read, 0.1, which), photo, atol=1e-6)  # it has more


def test_the_bias_of_a_kind_and_an_expression_goes_and_the_rest_stays() -> None:
    rng, side, many = np.random.default_rng(4), 32, 300
    pixels = np.flatnonzero(np.pad(np.ones((24, 24), bool), 4))
    kinds = np.zeros((many, len(ETHNICITIES) + 2), np.float32)
    kinds[np.arange(many), rng.integers(len(ETHNICITIES), size=many)] = 1
    kinds[:, -2:] = np.column_stack([rng.integers(2, size=many), rng.uniform(5, 80, many)])
    stain = np.zeros((side, side, 3))
    stain[12:17, 8:14] = -0.2, 0.08, 0.0  # of one group: darker and redder
    beard, fold = np.roll(stain, 8, axis=0), np.roll(stain, 10, axis=1) / 4  # of men; made too dark by the first number
    photos = rng.uniform(0.3, 0.6, (many, 1, 1, 3)) * np.ones((side, side, 1))
    noise, (shown, own) = rng.normal(0, 0.03, photos.shape), rng.normal(size=(2, many, 6)).astype(np.float32)
    strong, male, wide, meant = (x[:, None, None, None] for x in (kinds[:, 2], kinds[:, MALE], shown[:, 0], own[:, 0]))
    logs = stain * strong + beard * (male - 0.5) + fold * (wide + 2 * (wide - meant)) + noise
    made = (photos + colours.LOG_BLACK) * np.exp(logs @ np.linalg.inv(colours.PLANES)) - colours.LOG_BLACK
    made, photos = (np.clip(np.rint(255 * one), 0, 255).astype(np.uint8) for one in (made, photos))
    weights = np.full((many, side, side), 255, np.uint8)
    brows = np.repeat(np.float32([0, 1]), side // 2)[:, None] * np.ones(side, np.float32)
    bias = colours.fit_bias(made, photos, kinds, shown, own, weights, pixels, brows)
    assert not bias[kinds.shape[1] :, pixels >= side**2 // 2].any(), "a lender's brows do not depend on expression"
    plain = np.full((side, side, 3), 0.5, np.float32)
    for kind, numbers in zip(kinds[:20], shown, strict=False):
        out = colours.without_bias(plain, bias, kind, numbers, pixels)
        change = np.log((out + colours.LOG_BLACK) / (plain + colours.LOG_BLACK)) @ colours.PLANES
        light, red, _ = np.moveaxis(change, 2, 0)
        inside, outside = np.s_[13:16, 9:13], np.s_[20:26, 18:26]
        assert (0.08 < light[inside].mean() < 0.2 and red[inside].mean() < -0.02) == bool(kind[2])
        assert max(np.abs(light[outside]).mean(), np.abs(red[inside]).mean() * (1 - kind[2])) < 0.02
        folded = np.interp(kind[AGE], (8, 30), (0, 1)) * numbers[0]
        assert abs(light[13:16, 19:23].mean() - 0.06 * folded) < 0.015
        assert np.abs(light[21:24, 9:13]).mean() < 0.03, "what shows gender stays"
        assert (out.reshape(-1, 3)[np.setdiff1d(np.arange(side**2), pixels)] == 0.5).all()
