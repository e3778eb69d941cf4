"""What holds for every attacker: shapes, nothing changed in place, and nothing found where nothing is left."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from attack_faces import constant_faces, faces_of, random_faces
from hypothesis import given, settings
from hypothesis import strategies as st

from ficgan.errors import InputError, UsageError
from ficgan.lab.attacks import (
    Bicubic,
    Identity,
    InterpolateGrey,
    KSameSubtraction,
    LearnPermutation,
    Linear,
    MeanFace,
    NormSparsity,
    Pairs,
    Reverser,
    RichardsonLucy,
    Ridge,
    Wavelet,
    Wiener,
    WienerBlind,
)
from ficgan.lab.attacks.base import REVERSERS

EVERY: list[Reverser] = [
    Bicubic(),
    Identity(),
    InterpolateGrey(),
    KSameSubtraction(k=3),
    LearnPermutation(),
    Linear(),
    MeanFace(),
    NormSparsity(kernel=5),
    RichardsonLucy(),
    RichardsonLucy(blind=True),
    Ridge(),
    Wavelet(),
    Wiener(),
    WienerBlind(),
]
ids = [f"{one.name}{'-blind' if getattr(one, 'blind', False) else ''}" for one in EVERY]


def some_pairs(size: int, n: int = 8) -> Pairs:
    clear = random_faces(n, size, seed=1, per_person=2)
    rough = (clear.images.astype(int) + np.roll(clear.images, 1, axis=2)) // 2
    return Pairs(clear.with_images(rough.astype(np.uint8)), clear, background=random_faces(5, size, seed=2))


@pytest.mark.parametrize("reverser", EVERY, ids=ids)
@settings(max_examples=5, deadline=None)
@given(size=st.integers(8, 33), n=st.integers(0, 3))
def test_guesses_are_pictures_of_the_same_shape_and_the_input_stays(reverser: Reverser, size: int, n: int) -> None:
    pairs = some_pairs(size)
    faces = random_faces(n, size, seed=3)
    learnt, before = np.stack([pairs.anonymised.images, pairs.clear.images]), faces.images.copy()
    fitted = reverser.fit(pairs)
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
    blank = Pairs(pairs.clear.with_images(constant_faces(12, 24).images), pairs.clear, pairs.background)
    guess = reverser.fit(blank).guess(constant_faces(4, 24))
    assert (guess == guess[:1]).all()


@pytest.mark.parametrize("reverser", EVERY, ids=ids)
def test_fitting_gives_another_one_and_repeats(reverser: Reverser) -> None:
    pairs, faces = some_pairs(16), random_faces(3, 16, seed=5)
    before = dataclasses.astuple(reverser)
    first, second = reverser.fit(pairs).guess(faces), reverser.fit(pairs).guess(faces)
    assert np.array_equal(first, second)
    assert dataclasses.astuple(reverser) == before  # frozen: fit must not write into the unfitted one


@pytest.mark.parametrize("reverser", [Bicubic(), Linear(), MeanFace(), Ridge(), LearnPermutation(), Wiener()], ids=repr)
def test_what_must_learn_says_so(reverser: Reverser) -> None:
    assert "pairs" in reverser.traits.knowledge
    with pytest.raises(UsageError, match="fit it on pairs"):
        reverser.guess(random_faces(1, 16))


@pytest.mark.parametrize("reverser", [MeanFace(), Ridge(), LearnPermutation(), KSameSubtraction(k=3)], ids=repr)
def test_another_size_than_fitted_is_refused(reverser: Reverser) -> None:
    with pytest.raises(InputError, match=r"size|pixels"):
        reverser.fit(some_pairs(16)).guess(random_faces(1, 24))


def test_all_are_registered_by_name_and_made_from_texts() -> None:
    names = {one.name for one in EVERY} | {"keyed-inverse"}
    assert names <= set(REVERSERS)
    assert REVERSERS.make("wiener", kernel="9", k="0.01") == Wiener(kernel=9, k=0.01)
    for name in names:
        cls = REVERSERS[name]
        assert cls.traits.title and cls.traits.source and not cls.traits.several


def test_identity_and_mean_face_are_the_ends_of_the_scale() -> None:
    pairs, faces = some_pairs(16), random_faces(3, 16, seed=9)
    assert np.array_equal(Identity().guess(faces), faces.images)
    mean = MeanFace().fit(pairs).guess(faces)
    assert np.array_equal(mean[0], np.rint(pairs.clear.images.mean(axis=0)).astype(np.uint8))
    assert (mean == mean[:1]).all()
    with pytest.raises(InputError, match="no pairs"):
        MeanFace().fit(Pairs(faces_of(faces.images[:0]), faces_of(faces.images[:0])))
