"""What holds for every attacker."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stand_ins import faces_of, random_faces

from ficgan.lab.attacks import Pairs, Reverser, restoration
from ficgan.lab.attacks.base import MeanFace
from ficgan.lab.attacks.deconvolution import RichardsonLucy, Wiener, WienerBlind

RESTORED = ["BicubicResampling", "InterpolateGrey", "LearnPermutation", "LinearResampling", "Ridge", "Wavelet"]
EVERY: list[Reverser] = [getattr(restoration, name)() for name in RESTORED]
EVERY += [MeanFace(), RichardsonLucy(), Wiener(), WienerBlind()]
ids = [one.name for one in EVERY]


def some_pairs(size: int, n: int = 8) -> Pairs:
    clear = random_faces(n, size, seed=1, per_person=2)
    rough = (clear.images.astype(int) + np.roll(clear.images, 1, axis=2)) // 2
    return Pairs(clear.with_images(rough.astype(np.uint8)), clear)


@pytest.mark.parametrize("reverser", EVERY, ids=ids)
@settings(max_examples=3)
@given(size=st.integers(8, 24), n=st.integers(0, 2))
def test_guesses_are_pictures_of_the_same_shape_and_the_input_stays(reverser: Reverser, size: int, n: int) -> None:
    pairs = some_pairs(size)
    faces = random_faces(n, size, seed=3)
    learnt, before = np.stack([pairs.anonymised.images, pairs.clear.images]), faces.images.copy()
    unfitted = dataclasses.astuple(reverser)
    fitted = reverser.fit(pairs)
    assert dataclasses.astuple(reverser) == unfitted  # frozen: fit must not write into the unfitted one
    guess = fitted.guess(faces)
    assert guess.shape == faces.images.shape and guess.dtype == np.uint8
    assert not np.shares_memory(guess, faces.images)
    assert np.array_equal(faces.images, before)
    assert np.array_equal(np.stack([pairs.anonymised.images, pairs.clear.images]), learnt)
    many = fitted.reverse(faces, 2)
    assert many.shape == (n, 2, size, size, 3) and np.array_equal(many[:, 0], guess)


@pytest.mark.parametrize("reverser", EVERY, ids=ids)
def test_negative_control_constant_pictures_give_one_guess_for_all(reverser: Reverser) -> None:
    pairs = some_pairs(24, n=12)
    blank = np.full((12, 24, 24, 3), 90, np.uint8)
    guess = reverser.fit(Pairs(pairs.clear.with_images(blank), pairs.clear)).guess(faces_of(blank[:4]))
    assert (guess == guess[:1]).all()
