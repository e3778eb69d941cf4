"""What a new face wears and is made of: hair, cloth, glasses, teeth, moustaches, brows and skin."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import astuple, replace
from typing import Any

import cv2
import numpy as np
import pytest
from frame_world import other_styles
from numpy.typing import NDArray

from ficgan.arrays import LUMA, Image, luminance
from ficgan.deidentify import Deidentifier
from ficgan.faces import Face
from ficgan.faces.mesh import FACE_OVAL, LEFT_BROW
from ficgan.frame import HI, LO
from ficgan.frame.file import FrameNetwork
from ficgan.frame.lent import lender_like, lender_of, middle_of, with_middle
from ficgan.frame.render import FaceRenderer
from ficgan.frame_model import FrameModel
from ficgan.identity.kind import AGE, MALE, UNKNOWN


def test_a_dark_fringe_is_not_light(model: FrameModel, photo: Image, face: Face) -> None:
    dark, (left, right) = photo.copy(), face.landmarks[:2]
    low = round(float(left[1] - 0.42 * (right[0] - left[0])))
    dark[round(float(face.box[1])) - 20 : low, round(float(face.box[0])) : round(float(face.box[2]))] = (20, 15, 12)
    found = model.find([(photo, face)]) * 2  # the mesh does not move
    readings = model.see([(photo, face), (dark, face)], found)
    bare, fringed = (one.place.moment.light[0] for one in readings)
    np.testing.assert_allclose(fringed[:5], bare[:5], atol=0.1)  # mean colour, contrast, slope across


@pytest.mark.parametrize("colour", [(70, 120, 170), (25, 25, 30)])
def test_a_mask_over_nose_and_mouth_is_worn_again(
    make: Callable[..., Deidentifier], model: FrameModel, photo: Image, face: Face, colour: tuple[int, ...]
) -> None:
    """Eyes are new, cloth stays, and the check reads the face without it."""
    mesh, masked = model.find([(photo, face)])[0], photo.copy()
    assert mesh is not None
    oval, marks = mesh.points[FACE_OVAL, :2], mesh.points[[205, 425, 33, 133, 159, 145], :2].astype(int)
    low = cv2.convexHull(oval[oval[:, 1] > mesh.points[5, 1]])
    cv2.fillPoly(masked, [np.rint(low).astype(np.int32)], colour)
    out = make(verify=True)(masked)
    change = np.abs(out.image.astype(int) - masked).mean(2)
    cloth = np.median(change[marks[0, 1] : marks[0, 1] + 12, marks[0, 0] : marks[1, 0]])
    assert cloth < 6 < 10 < change[marks[4, 1] - 4 : marks[5, 1] + 4, marks[2, 0] : marks[3, 0]].mean()
    assert out.faces[0].note.startswith("cloth") and out.faces[0].attempts < 6 and out.faces[0].covered


def test_what_lies_over_a_face_is_drawn_over_and_said(engine: Deidentifier, photo: Image, face: Face) -> None:
    """A violet bar over the mouth; of one that is made in its place nothing is violet."""
    barred = photo.copy()
    (x0, y0), (x1, y1) = (face.landmarks[3:] + np.array([[-12, -8], [12, 8]])).astype(int)
    barred[y0:y1, x0:x1] = (200, 0, 255)
    result = engine(barred, key="a")
    (record,) = result.faces
    assert record.action == "generated" and "lies over the face" in record.note
    assert "lies over the face" in result.audit["notes"][0] and "lies over" in result.audit["faces"][0]["note"]

    def violet(image: Image) -> float:
        inside = image[y0:y1, x0:x1].astype(int)
        return float((inside[..., 2] - inside[..., 1] > 60).mean())

    assert violet(barred) == 1 and violet(result.image) < 0.05


def test_a_smile_shows_teeth_and_a_closed_mouth_none(model: FrameModel, photo: Image, face: Face) -> None:
    """The astronaut smiles. Some draws have teeth of their own, which are drawn over."""
    seen = model.see([(photo, face)])[0]
    reading = replace(seen, place=replace(seen.place, look=replace(seen.place.look, finest=1.0)))  # no photo is sharper
    bare = replace(model.model, teeth=model.model.teeth[:0])
    plain = FrameModel(bare, model.config, model.bank, network=model.network, k=3000)
    closed = replace(reading, place=replace(reading.place, mouth=reading.place.mouth * [1, 1, 1, 1, 0, 0]))
    outer = [61, 185, 40, 39, 37, 0, 267, 269, 270, 409, 291, 375, 321, 405, 314, 17, 84, 181, 91, 146]
    lips, gaps = model.model.shape.front[outer], list[float]()
    for key in "abcdef":
        styles = other_styles(model, reading, key)
        with_them, without, shut = (
            maker.render(styles, [each])[0].texture
            for maker, each in ((model, reading), (plain, reading), (model, closed))
        )
        assert (shut - without).max() < 0.1 < (with_them - shut).max()
        changed = np.abs(with_them - without).max(2) > 0.02
        assert changed.any()
        places = np.argwhere(changed) / (len(changed) - 1) * (np.subtract(HI, LO)[::-1]) + LO[::-1]
        assert (places.min(0) > lips.min(0)[::-1]).all() and (places.max(0) < lips.max(0)[::-1]).all()
        now = with_them[changed] @ LUMA
        gaps.append(np.quantile(now, 0.05) / np.quantile(now, 0.8))
        assert np.quantile(now, 0.8) == pytest.approx(float(reading.place.mouth[:3] @ LUMA), abs=0.05)
    assert 0.05 < np.mean(gaps) < 0.6, "teeth, and gaps beside them"


def test_somebody_of_the_kind_lends_who_is_unlike_the_source(model: FrameModel, photo: Image, face: Face) -> None:
    """Lenders are of the kind; wrinkles go to the old, and none to children. Of some the one least like a source."""
    appearance = model.model
    for reading in appearance.lenders[::7]:
        chosen = appearance.lenders[lender_of(appearance, reading)]
        assert abs(chosen[AGE] - reading[AGE]) < 12 + 0.2 * reading[AGE]
        assert abs(chosen[MALE] - reading[MALE]) < 0.75 or reading[AGE] < 15  # children's gender is hard to read

    def strength(years: float) -> float:
        kinds = [np.r_[reading[:-1], np.float32(years)] for reading in appearance.lenders[::7]]
        lent = [appearance.details[lender_of(appearance, kind)].astype(float) for kind in kinds]
        return float(np.mean([np.median(np.abs(one)) for one in lent]))  # of skin, not of lashes

    assert strength(70) > 1.3 * strength(25) > 1.1 * strength(5)
    (reading,) = model.see([(photo, face)])
    code, moment, kind = reading.z_id[: appearance.code_size], reading.place.moment, appearance.lenders[0]
    own = middle_of(appearance.seen(reading.place.texture[None])[0], appearance, moment).ravel()[appearance.pixels]
    likeness = np.array([np.corrcoef(own, one)[0, 1] for one in appearance.middles])
    seen = np.arange(2, dtype=np.float32)  # a gate whose second number is how like the source a lender is
    seeing = replace(appearance, gate=np.zeros((1, 2), np.float32), lent_gate=np.column_stack([likeness, likeness]))
    lots = np.linspace(0, 0.99, 40)
    unlike, random = ([lender_of(seeing, kind, of, lot) for lot in lots] for of in (seen, None))
    assert likeness[unlike].mean() + 0.05 < likeness[random].mean() < likeness[lender_like(appearance, kind, code)]
    assert len(set(random)) > 8


def test_light_and_shade_of_a_lender_are_drawn_in_the_light_of_the_source(
    model: FrameModel, photo: Image, face: Face
) -> None:
    """Its own lender changes nothing; of another's spot .45 are drawn, by the contrast, brow and nose wholly."""
    appearance, reading = model.model, model.see([(photo, face)])[0]
    moment, texture = reading.place.moment, np.full((appearance.size, appearance.size, 3), 0.5, np.float32)
    own = middle_of(texture.reshape(-1, 3)[appearance.pixels], appearance, moment)
    np.testing.assert_allclose(with_middle(texture, own, appearance, moment), texture, atol=1e-6)
    hair, beside = texture.copy(), np.rint((appearance.shape.front[70] - LO) / appearance.warp.step).astype(int)
    hair[:, : beside[0] - 4] = 0.01  # no lighter is what lies beside it
    near = middle_of(hair.reshape(-1, 3)[appearance.pixels], appearance, moment)[beside[1], beside[0] :]
    np.testing.assert_allclose(near[:9], own[beside[1], beside[0] :][:9], atol=0.1)
    y, x = np.mgrid[: appearance.size, : appearance.size]
    contrast = float(np.exp((moment.light * appearance.light_sd + appearance.light_mean)[0, 3]))
    front, step = appearance.shape.front - LO, appearance.warp.step
    brow, tip = np.rint(front[LEFT_BROW].mean(0) / step), np.rint(front[4] / step)
    for at, size, share in (((40, 70), 3.0, 0.45), (brow, 1.0, 1.0), (tip, 1.0, 1.0)):
        spot = np.exp(-np.square([x - at[0], y - at[1]]).sum(0) / (2 * size**2)).astype(np.float32)
        change = luminance(with_middle(texture, own + 0.1 * spot, appearance, moment)) - 0.5
        calm = change.ravel()[appearance.pixels] / np.maximum(appearance.calm[:, 0], 0.1)
        np.testing.assert_allclose(calm, 0.1 * share * contrast * spot.ravel()[appearance.pixels], atol=0.01 * contrast)


def with_painted_glasses(photo: Image, face: Face, colour: tuple[int, int, int]) -> tuple[Image, list[int]]:
    """A photo with round glasses and their arms, and the rows of the left and the right arm."""
    out, (left, right) = photo.copy(), face.landmarks[:2].astype(int)
    apart = int(right[0] - left[0])
    axes = int(0.4 * apart), int(0.29 * apart)
    for eye, side in ((left, -1), (right, 1)):
        rim = int(eye[0]) + side * axes[0], int(eye[1])
        cv2.ellipse(out, (int(eye[0]), int(eye[1])), axes, 0, 0, 360, colour, 2, cv2.LINE_AA)
        cv2.line(out, rim, (rim[0] + side * int(0.5 * apart), rim[1]), colour, 2, cv2.LINE_AA)
    cv2.line(out, (int(left[0]) + axes[0], int(left[1])), (int(right[0]) - axes[0], int(right[1])), colour, 2)
    return out, [int(left[1]), int(right[1])]


@pytest.mark.parametrize("colour", [(20, 20, 20), (250, 240, 200)])
def test_glasses_stay_and_their_arms_do_not_hang_in_the_air(
    engine: Deidentifier, photo: Image, face: Face, colour: tuple[int, int, int]
) -> None:
    """From an arm outside the new face to the new rim a line of its colour leads, and none without glasses."""
    worn, rows = with_painted_glasses(photo, face, colour)
    (left, right), apart = face.landmarks[:2, 0].astype(int), int(face.landmarks[1, 0] - face.landmarks[0, 0])
    results = [engine(one, key="a") for one in (photo, worn)]
    for row, begin in zip(rows, (left - 3 * apart // 4, right + apart // 2), strict=True):
        strip = np.s_[row - apart // 4 : row + apart // 4, begin : begin + apart // 4 - 1]
        away = [np.abs(one.image[strip].astype(int) - colour).mean(2).min(0) for one in results]
        assert (away[1] < 60).mean() > 0.9 and np.median(away[1]) < np.median(away[0]) / 2


def test_a_man_with_a_moustache_keeps_one_and_nobody_else_gets_one(model: FrameModel, photo: Image, face: Face) -> None:
    """A dark lip stays dark on a grown man, and becomes clean on a woman and a boy; a clean one stays clean."""
    nose, left, right = face.landmarks[2:].astype(int)
    lip = int(left[0] + right[0]) // 2, int(0.45 * nose[1] + 0.55 * (left[1] + right[1]) / 2)
    width = int(right[0] - left[0])
    wearing = photo.copy()
    cv2.ellipse(wearing, lip, (width // 2, width // 7), 0, 0, 360, (30, 22, 18), -1, cv2.LINE_AA)
    readings = [model.see([(one, face)])[0] for one in (photo, wearing)]
    assert readings[1].place.moustache < -0.9 < 0 < readings[0].place.moustache
    man, woman, boy = (UNKNOWN.copy() for _ in range(3))
    for kind, whose in zip((man, woman, boy), ((0.9, 40), (0.1, 40), (0.9, 8)), strict=True):
        kind[[MALE, AGE]] = whose

    def read(reading: Any, kind: NDArray[np.float32]) -> float:
        row = model.unpacked(other_styles(model, reading)[0])
        moment = model.renderer.moment(row, reading.place)
        made = model.renderer.plain(replace(row, kind=kind), reading.place).texture
        rest = model.model.unpredicted(made.reshape(-1, 3)[model.model.pixels], moment)
        return float(model.model.moustache[0] @ rest)

    for kind in (woman, boy):
        assert read(readings[1], man) < read(readings[1], kind) - 0.5 and read(readings[1], kind) > -0.3
    assert min(read(readings[0], kind) for kind in (man, woman, boy)) > -0.3


def test_of_plain_skin_the_network_draws_nothing_fine(model: FrameModel, photo: Image, face: Face) -> None:
    """Elsewhere it does, and in reconstructions, too."""
    noise = np.random.default_rng(3).normal(0, 0.2, (1, *[model.model.size] * 2, 3)).astype(np.float32)

    class Noise(FrameNetwork):
        def write(self, *inputs: Any) -> Any:
            added, moved = super().write(*inputs)
            return added + noise, moved

    assert model.network is not None
    noisy = FaceRenderer(model.model, model.config, Noise(*astuple(model.network)))
    (reading,) = model.see([(photo, face)])
    skin = model.model.skin_parts[:-1].sum(0) > 0.99
    for row, least, most in ((other_styles(model, reading), 0.0, 0.3), (model.own_styles([reading]), 0.7, 1.3)):
        made = [one.plain(model.unpacked(row[0]), reading.place).texture for one in (model.renderer, noisy)]
        change = np.abs(made[1] - made[0]).mean(2)
        assert least <= np.median(change[skin]) / np.median(change[model.model.lips > 0.9]) <= most


def test_brows_are_of_hairs_and_bare_skin_is_not(model: FrameModel) -> None:
    side, on_brows = 2 * model.model.size, model.model.fine_places.on_brows
    skin = np.full((side, side, 3), (0.6, 0.45, 0.35), np.float32)
    np.testing.assert_allclose(model.renderer._hairs_of(skin, 0.03), 0, atol=1e-3)
    hairs = np.abs(model.renderer._hairs_of(skin * (1 - 0.6 * on_brows[..., None]), 0.03))
    assert hairs[on_brows > 0.9].mean() > 0.01 > 1e-6 > hairs[on_brows == 0].max()


def test_spots_and_pores_are_bounded(model: FrameModel, photo: Image, face: Face) -> None:
    """A face of 2,000 pixels is no pattern of blots, and in a photo without colours nothing is coloured."""
    grey = np.repeat(cv2.cvtColor(photo, cv2.COLOR_RGB2GRAY)[..., None], 3, 2)
    for scale, least in ((3, 1.0), (12, 0.0)):
        large = np.asarray(cv2.resize(grey, None, fx=scale, fy=scale, interpolation=cv2.INTER_CUBIC), np.uint8)
        where = Face(face.box * scale, face.landmarks * scale, face.score)
        (reading,) = model.see([(large, where)])
        assert reading.place.look.pores * 255 >= least * 0.1
        (made,) = model.render(other_styles(model, reading), [reading])
        out = model.paste(large, reading, made).image.astype(int)
        assert np.ptp(out, axis=2).max() <= 2
        fine = out[..., 0] - cv2.GaussianBlur(out[..., 0].astype(np.float32), (0, 0), 2.0)
        x0, y0, x1, y1 = where.box.astype(int)
        assert fine[y0:y1, x0:x1].std() < 12
