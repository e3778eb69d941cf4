"""Beards that are drawn: where the source's is and in its colours, and only where there is evidence of one."""

from __future__ import annotations

import numpy as np
import pytest

from ficgan.frame import FaceShape, Floats
from ficgan.frame.beards import CHEEKS, SMALL, SURE, UNSURE, Beard, hidden, places, read_beard, skin_of, with_beard
from ficgan.frame.look import strands

BLACK = 0.03


@pytest.fixture(scope="module")
def skin() -> Floats:
    return np.full((256, 256, 3), (0.6, 0.45, 0.35), np.float32)


def beard(evidence: float, colour: tuple[float, ...], cover: Floats | float = 1.0, lip: float = 0.0) -> Beard:
    logs = np.log(np.float32(colour) + BLACK)
    cover = np.float32(cover) * np.ones((SMALL, SMALL), np.float32)
    return Beard(evidence, 0.1, cover, np.broadcast_to(logs, (SMALL, SMALL, 3)), np.float32([lip, *logs]))


@pytest.mark.parametrize("side", [128, 256])
@pytest.mark.parametrize("colour", [(0.1, 0.07, 0.05), (0.45, 0.45, 0.47), (0.85, 0.85, 0.85)])
def test_every_beard_has_the_colour_of_the_source_and_lies_below_the_nose(
    shape: FaceShape, skin: Floats, side: int, colour: tuple[float, ...]
) -> None:
    found = set()
    for chance in (0.1, 0.5, 0.9):
        made = with_beard(skin[:side, :side], beard(SURE, colour), chance, shape.front)
        drawn = np.abs(made - skin[:side, :side]).max(2) > 0.02
        nose, chin, lip = (places([point], shape.front, side)[0, 1] for point in (2, 199, 14))
        middle = slice(side // 2 - side // 10, side // 2 + side // 10)
        assert drawn[chin - 4 : chin + 4, middle].mean() > 0.6 and not drawn[: nose - side // 40, middle].any()
        assert not drawn[lip, middle].any() and made.max() <= 1
        whole = hidden(beard(SURE, colour), shape.front, side) > 0.97
        logs = np.log((np.median(made[whole], axis=0) + BLACK) / (np.array(colour) + BLACK))
        assert logs == pytest.approx(0, abs=0.12)
        found.add(made.tobytes())
    assert len(found) == 3, "whose hairs it has is drawn"
    chin_alone = np.zeros((SMALL, SMALL))
    chin_alone[-2:, 3:5] = 1
    full, goatee = (with_beard(skin, beard(SURE, colour, cover), 0.1, shape.front) for cover in (1.0, chin_alone))
    column = places([136], shape.front, 256)[0, 0]
    assert np.abs(full - skin)[:, column].max() > 0.1 > 0.01 > np.abs(goatee - skin)[:, column].max()


def test_what_is_drawn_is_read_again_and_bare_skin_is_not(shape: FaceShape, skin: Floats) -> None:
    rng = np.random.default_rng(0)
    face = np.clip(skin[::2, ::2] + rng.normal(0, 0.01, (128, 128, 1)), 0, 1).astype(np.float32)
    colour = (0.12, 0.09, 0.07)
    made = with_beard(face, beard(SURE, colour), 0.1, shape.front)
    lip = with_beard(face, beard(SURE, colour, 0.0, 1.0), 0.1, shape.front)
    bare, worn, moustache = (read_beard(np.rint(255 * one).astype(np.uint8), shape.front) for one in (face, made, lip))
    assert bare.lip[0] < 0.1 < 0.6 < moustache.lip[0] and moustache.cover[-2:].max() < 0.1
    assert worn.evidence > bare.evidence + 0.5 and bare.evidence < SURE
    amid = hidden(beard(SURE, colour), shape.front, 128) > 0.97
    assert bare.cover.max() < 0.1 and hidden(worn, shape.front, 128)[amid].mean() > 0.8
    inside = worn.cover > 0.9
    assert np.median(worn.colours[inside], axis=0) == pytest.approx(np.log(np.array(colour) + BLACK), abs=0.25)
    assert worn.clear == pytest.approx(0.1, rel=0.35), "hairs as clear"


def test_a_few_hairs_are_clear_and_they_lie_in_about_one_direction() -> None:
    hairs = strands(256, (90, 90), np.zeros(256, np.float32))
    steps = [np.abs(np.diff(hairs, axis=axis)).mean() for axis in (0, 1)]
    assert hairs.std() == pytest.approx(1, abs=0.01) and np.square(hairs * hairs).mean() > 3.3  # noise: 3
    assert 1.2 * steps[0] < steps[1]


def test_without_evidence_there_is_none_with_some_stubble_then_a_beard(shape: FaceShape, skin: Floats) -> None:
    strength = [
        float(np.abs(with_beard(skin, beard(evidence, (0.1, 0.07, 0.05)), 0.3, shape.front) - skin).max())
        for evidence in (UNSURE - 1, UNSURE - 0.7, UNSURE, (UNSURE + SURE) / 2, SURE, SURE + 9)
    ]
    assert strength[0] < 1e-6 and strength[4] == strength[5] > 0.3
    assert np.diff(strength[:5]).min() > 0.02


def test_stubble_is_as_dark_as_the_photos(shape: FaceShape, skin: Floats) -> None:
    for share in (0.9, 1.2):
        made = with_beard(skin, beard(UNSURE - 0.2, tuple(share * skin[0, 0])), 0.3, shape.front)
        changed = np.abs(made - skin).max(2) > 0.02
        found = np.median(made[changed] / skin[0, 0], axis=0) if changed.any() else 1
        np.testing.assert_allclose(found, min(share, 1), atol=0.06)


def test_skin_goes_from_cheek_to_cheek(shape: FaceShape) -> None:
    lit = np.broadcast_to(np.linspace(-2, -1, 128, dtype=np.float32)[None, :, None], (128, 128, 3))
    found = skin_of(lit, shape.front)
    left, right = places(CHEEKS, shape.front, 128)[:, 0]
    assert found[0, left : right + 1] == pytest.approx(lit[0, left : right + 1], abs=0.02)
