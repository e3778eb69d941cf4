"""Permutations and linear maps: what must come back comes back, and nothing else."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from skimage.metrics import peak_signal_noise_ratio as psnr
from stand_ins import faces_of, random_faces

from ficgan.anonymizers import Faces
from ficgan.errors import InputError, UsageError
from ficgan.lab.attacks import Pairs
from ficgan.lab.attacks.base import MeanFace, held_out
from ficgan.lab.attacks.restoration import LearnPermutation, Ridge


def permuted(faces: Faces, order: np.ndarray) -> Faces:
    flat = faces.images.reshape(len(faces), -1, 3)
    return faces.with_images(flat[:, order].reshape(faces.images.shape))


@given(size=st.integers(8, 30), seed=st.integers(0, 99))
def test_positive_control_any_permutation_of_pixels_is_undone_exactly(size: int, seed: int) -> None:
    attacker, victim = random_faces(8, size, seed, smooth=1), random_faces(3, size, seed + 1000, smooth=1)
    order = np.random.default_rng(seed).permutation(size * size)
    fitted = LearnPermutation().fit(Pairs(permuted(attacker, order), attacker))
    assert np.array_equal(fitted.guess(permuted(victim, order)), victim.images)
    assert fitted.source is not None
    assert np.array_equal(order[fitted.source.ravel()], np.arange(size * size))


def low_rank(n: int, size: int, rank: int, seed: int, per_person: int = 2) -> Faces:
    """Pictures in a space of few dimensions, the same space for every seed."""
    basis = random_faces(rank, size, seed=77, smooth=1).images.reshape(rank, -1).astype(float) - 128
    codes = np.random.default_rng(seed).normal(size=(n, rank)) / np.sqrt(rank)
    images = np.clip(np.rint(128 + codes @ basis), 0, 255).astype(np.uint8)
    return faces_of(images.reshape(n, size, size, 3), per_person)


def mixed(faces: Faces) -> Faces:
    """A random rotation of all pixel values, about the middle grey."""
    flat = faces.images.reshape(len(faces), -1).astype(float) - 128
    rotation = np.linalg.qr(np.random.default_rng(5).normal(size=(flat.shape[1], flat.shape[1])))[0]
    turned = np.clip(np.rint(128 + flat @ rotation), 0, 255).astype(np.uint8)
    return faces.with_images(turned.reshape(faces.images.shape))


def test_positive_control_a_random_orthogonal_mixing_is_undone() -> None:
    attacker, victim = low_rank(80, 12, 10, seed=1), low_rank(20, 12, 10, seed=2)
    fitted = Ridge().fit(Pairs(mixed(attacker), attacker))
    assert psnr(fitted.guess(mixed(victim)), victim.images) > 38
    nothing = MeanFace().fit(Pairs(attacker, attacker)).guess(victim)
    assert psnr(nothing, victim.images) < 24


def test_the_map_is_scikit_learns_ridge_regression_of_the_best_penalty() -> None:
    from sklearn.linear_model import Ridge as Theirs

    attacker, victim = low_rank(40, 8, 6, seed=1), low_rank(5, 8, 6, seed=2)
    hidden, probe = mixed(attacker), mixed(victim)
    ours = Ridge().fit(Pairs(hidden, attacker))
    x, y = (faces.images.reshape(40, -1).astype(float) for faces in (hidden, attacker))
    scale = float(np.mean(np.sum((x - x.mean(0)) ** 2, axis=1)))
    theirs = Theirs(alpha=ours.ridge * scale).fit(x, y)
    want = np.clip(theirs.predict(probe.images.reshape(5, -1).astype(float)), 0, 255).reshape(probe.images.shape)
    assert np.abs(ours.guess(probe) - want).max() < 1
    held = held_out(attacker.people, 0.2, 0)  # type: ignore[arg-type]
    errors = {}
    for share in (10.0 ** np.arange(-6, 4.1, 0.5)).tolist():
        centred = x - x.mean(0), y - y.mean(0)
        one = Theirs(alpha=share * scale, fit_intercept=False).fit(*(part[~held] for part in centred))
        errors[share] = np.sum((one.predict(centred[0][held]) - centred[1][held]) ** 2)
    chosen = min(errors, key=lambda share: abs(share - ours.ridge))  # powers of ten may differ in the last digit
    assert errors[chosen] <= 1.001 * min(errors.values())


def test_the_choice_is_made_on_people_held_out() -> None:
    """Pairs with no relation: whoever chose on the pairs learnt from would believe in many components."""
    clear, other = random_faces(60, 12, 1, per_person=3), random_faces(60, 12, 2, per_person=3)
    fitted = Ridge().fit(Pairs(clear.with_images(other.images), clear))
    probe = random_faces(30, 12, 3)
    guess = fitted.guess(probe).astype(float)
    mean = clear.images.mean(axis=0)
    assert np.mean((guess - mean) ** 2) < 0.1 * np.mean((clear.images - mean) ** 2)


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda f: LearnPermutation().fit(Pairs(f.take([]), f.take([]))), InputError),
        (lambda f: LearnPermutation().fit(Pairs(f, f)).guess(random_faces(1, 24)), InputError),
        (lambda f: Ridge().fit(Pairs(f.take([0, 1]), f.take([0, 1]))).guess(random_faces(1, 24)), InputError),
        (lambda f: Ridge().guess(f), UsageError),
    ],
)
def test_what_cannot_be_is_refused(call: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        call(random_faces(4, 16))
