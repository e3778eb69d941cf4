"""Ridge against its closed form in pixels, on mixings it must undo and on pictures that hold nothing."""

from __future__ import annotations

import numpy as np
import pytest
from attack_faces import constant_faces, faces_of, psnr, random_faces

from ficgan.anonymizers import Faces
from ficgan.errors import InputError
from ficgan.lab.attacks import MeanFace, Pairs, Ridge


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
    assert min(fitted.inputs, fitted.outputs) >= 8


def test_the_map_is_ridge_regression_between_principal_components() -> None:
    from sklearn.decomposition import PCA
    from sklearn.linear_model import Ridge as Theirs

    attacker, victim = low_rank(40, 8, 6, seed=1), low_rank(5, 8, 6, seed=2)
    hidden = mixed(attacker)
    ours = Ridge().fit(Pairs(hidden, attacker))
    x, y = (f.images.reshape(40, -1).astype(float) for f in (hidden, attacker))
    seen, clear = PCA(ours.inputs, svd_solver="full").fit(x), PCA(ours.outputs, svd_solver="full").fit(y)
    values = np.linalg.svd(x - x.mean(0), compute_uv=False) ** 2
    penalty = ours.ridge * np.mean(values[values > 1e-6 * values[0]])
    theirs = Theirs(alpha=penalty, fit_intercept=False).fit(seen.transform(x), clear.transform(y))
    probe = mixed(victim)
    codes = theirs.predict(seen.transform(probe.images.reshape(5, -1).astype(float))).reshape(5, -1)
    want = np.clip(clear.inverse_transform(codes), 0, 255).reshape(probe.images.shape)
    assert np.abs(ours.guess(probe) - want).max() < 0.6


def test_the_choice_is_made_on_people_held_out() -> None:
    """Pairs with no relation: whoever chose on the pairs learnt from would believe in many components."""
    clear, other = random_faces(60, 12, 1, per_person=3), random_faces(60, 12, 2, per_person=3)
    fitted = Ridge().fit(Pairs(clear.with_images(other.images), clear))
    probe = random_faces(30, 12, 3)
    guess = fitted.guess(probe).astype(float)
    mean = clear.images.mean(axis=0)
    assert np.mean((guess - mean) ** 2) < 0.1 * np.mean((clear.images - mean) ** 2)


def test_people_without_a_number_and_too_few_people() -> None:
    attacker = low_rank(20, 12, 4, seed=1)
    unknown = Faces(attacker.images, attacker.names)
    assert Ridge().fit(Pairs(unknown, unknown)).outputs >= 1
    stranger = Faces(attacker.images, attacker.names, people=np.full(20, -1))
    assert Ridge().fit(Pairs(stranger, stranger)).outputs >= 1
    one = Faces(attacker.images, attacker.names, people=np.zeros(20, np.int64))
    with pytest.raises(InputError, match="two people"):
        Ridge().fit(Pairs(one, one))


def test_negative_control_constant_pictures_give_the_mean_face() -> None:
    clear = random_faces(20, 12, 1)
    fitted = Ridge().fit(Pairs(clear.with_images(constant_faces(20, 12).images), clear))
    guess = fitted.guess(constant_faces(3, 12))
    assert np.abs(guess.astype(float) - clear.images.mean(axis=0)).max() <= 0.51


def test_most_pairs_and_components_are_bounds() -> None:
    attacker = low_rank(60, 12, 10, seed=1)
    fitted = Ridge(components=3, pairs=30).fit(Pairs(mixed(attacker), attacker))
    assert fitted.inputs <= 3 and fitted.outputs <= 3
