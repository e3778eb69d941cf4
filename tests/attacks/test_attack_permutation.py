"""Permutations are recovered pixel by pixel from lossless pairs, and what cannot be told is reported."""

from __future__ import annotations

import cv2
import numpy as np
import pytest
from attack_faces import faces_of, psnr, random_faces
from hypothesis import given, settings
from hypothesis import strategies as st

from ficgan.anonymizers import Faces
from ficgan.errors import InputError
from ficgan.lab.attacks import LearnPermutation, Pairs


def permuted(faces: Faces, order: np.ndarray) -> Faces:
    flat = faces.images.reshape(len(faces), -1, 3)
    return faces.with_images(flat[:, order].reshape(faces.images.shape))


def block_order(size: int, block: int, seed: int) -> np.ndarray:
    """Whole blocks change places; the rest at the right and below stays."""
    per_side = size // block
    moved = np.random.default_rng(seed).permutation(per_side**2)
    order = np.arange(size * size).reshape(size, size)
    out = order.copy()
    for to, source in enumerate(moved):
        (y, x), (v, u) = divmod(to, per_side), divmod(int(source), per_side)
        into = (slice(y * block, (y + 1) * block), slice(x * block, (x + 1) * block))
        out[into] = order[v * block : (v + 1) * block, u * block : (u + 1) * block]
    return out.ravel()


@settings(max_examples=20, deadline=None)
@given(size=st.integers(8, 30), seed=st.integers(0, 99))
def test_positive_control_any_permutation_of_pixels_is_undone_exactly(size: int, seed: int) -> None:
    attacker, victim = random_faces(8, size, seed, smooth=1), random_faces(3, size, seed + 1000, smooth=1)
    order = np.random.default_rng(seed).permutation(size * size)
    fitted = LearnPermutation().fit(Pairs(permuted(attacker, order), attacker))
    assert fitted.ambiguous == fitted.unmatched == 0
    assert np.array_equal(fitted.guess(permuted(victim, order)), victim.images)
    assert fitted.source is not None
    assert np.array_equal(order[fitted.source.ravel()], np.arange(size * size))


@pytest.mark.parametrize("block", [3, 5, 8])
def test_positive_control_block_permutation_is_undone_exactly(block: int) -> None:
    attacker, victim = random_faces(8, 35, 1), random_faces(3, 35, 2)
    order = block_order(35, block, seed=3)
    fitted = LearnPermutation().fit(Pairs(permuted(attacker, order), attacker))
    assert np.array_equal(fitted.guess(permuted(victim, order)), victim.images)


def test_places_that_always_look_alike_are_counted_and_the_rest_is_right() -> None:
    attacker, victim = random_faces(8, 20, 1), random_faces(3, 20, 2)
    for faces in (attacker, victim):
        faces.images[:, :2] = 0  # a black bar in every picture
    order = np.random.default_rng(0).permutation(400)
    fitted = LearnPermutation().fit(Pairs(permuted(attacker, order), attacker))
    assert fitted.ambiguous == 40 and fitted.unmatched == 0
    assert np.array_equal(fitted.guess(permuted(victim, order)), victim.images)  # black for black


def test_one_pair_of_few_colours_is_not_enough() -> None:
    attacker = random_faces(1, 20, 1)
    attacker.images[:] = attacker.images // 64 * 64
    order = np.random.default_rng(0).permutation(400)
    fitted = LearnPermutation().fit(Pairs(permuted(attacker, order), attacker))
    assert fitted.ambiguous > 300 and fitted.unmatched == 0
    assert np.array_equal(fitted.guess(permuted(attacker, order)), attacker.images)  # the pair itself fits
    victim = random_faces(1, 20, 2)
    assert psnr(fitted.guess(permuted(victim, order)), victim.images) < 30


def test_lossy_pairs_are_not_matched_and_reported() -> None:
    attacker = random_faces(8, 24, 1)
    order = block_order(24, 8, seed=3)
    hidden = permuted(attacker, order)
    jpeg = [cv2.imdecode(cv2.imencode(".jpg", i, [cv2.IMWRITE_JPEG_QUALITY, 75])[1], 1) for i in hidden.images]
    fitted = LearnPermutation().fit(Pairs(faces_of(np.stack(jpeg)), attacker))
    assert fitted.unmatched > 0.9 * 24 * 24
    with pytest.raises(InputError, match="no pairs"):
        LearnPermutation().fit(Pairs(faces_of(attacker.images[:0]), faces_of(attacker.images[:0])))
