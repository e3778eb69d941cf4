"""Defences against Pillow, NumPy and SciPy, and an anonymiser with a defence as an anonymiser like any other."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import ndimage
from stand_ins import random_faces

from ficgan.anonymizers import ANONYMIZERS, DEFENCES, Defended, Faces, GaussianBlur
from ficgan.anonymizers.defended import BoxInstead, Jpeg
from ficgan.anonymizers.k_same import KSamePixel
from ficgan.anonymizers.keyed import BlockPermutation


def blurred(faces: Faces) -> np.ndarray:
    return GaussianBlur(kernel=9)(faces)


def defended(defence: str, **parameters: object) -> Defended:
    made = ANONYMIZERS.make("defended", method="gaussian-blur:kernel=9", defence=defence, **parameters)
    assert isinstance(made, Defended)
    return made


def test_a_half_turn_is_a_half_turn() -> None:
    faces = random_faces(4, 64)
    assert np.array_equal(defended("rotation")(faces), blurred(faces)[:, ::-1, ::-1])
    assert np.array_equal(defended("rotation:angle=90")(faces), np.rot90(blurred(faces), axes=(1, 2)))
    tilted = defended("rotation:angle=20")(faces)
    theirs = ndimage.rotate(blurred(faces).astype(float), 20, axes=(2, 1), reshape=False, order=1, mode="mirror")
    if np.abs(tilted - theirs).mean() > 3:  # SciPy turns by the order of the axes
        theirs = ndimage.rotate(blurred(faces).astype(float), 20, axes=(1, 2), reshape=False, order=1, mode="mirror")
    assert np.abs(tilted - theirs).mean() < 1


@pytest.mark.parametrize("angle", [180, 90, -90, 35])
def test_whoever_looks_turns_a_picture_upright(angle: int) -> None:
    faces = random_faces(4, 64)
    made = defended(f"rotation:angle={angle}")
    middle = (slice(None), slice(16, 48), slice(16, 48))
    back = made.upright(made(faces), faces.names)
    assert np.abs(back[middle].astype(int) - blurred(faces)[middle]).mean() < 1
    for still in ("jpeg", "noise", "box"):
        assert np.array_equal(defended(still).upright(faces.images, faces.names), faces.images)


def test_a_box_stands_in_the_blur_s_place_or_comes_after_it() -> None:
    faces = random_faces(4, 64)
    for after, source in ((False, faces.images), (True, blurred(faces))):
        theirs = ndimage.uniform_filter(source.astype(float), (1, 7, 7, 1), mode="mirror")  # 31 at 256 px is 7 at 64
        out = defended(f"box:after={str(after).lower()}")(faces)
        assert np.abs(out - theirs).max() <= 0.51
    assert BoxInstead().kernel == 31


@pytest.mark.parametrize("defence", sorted(DEFENCES))
def test_results_depend_on_name_seed_and_key_alone(defence: str) -> None:
    faces = random_faces(5)
    before = faces.images.copy()
    faces.images.setflags(write=False)
    out = defended(defence)(faces)
    assert out.shape == before.shape and out.dtype == np.uint8 and np.array_equal(faces.images, before)
    assert np.array_equal(defended(defence)(faces.take([3, 1])), out[[3, 1]])
    stochastic = DEFENCES[defence].stochastic
    assert defended(defence).traits.stochastic == stochastic
    assert np.array_equal(defended(defence, seed=1)(faces), out) != stochastic
    assert np.array_equal(defended(defence, key="hush")(faces), out) != stochastic


def test_a_defended_method_is_declared_as_the_method_is() -> None:
    made = defended("jpeg:quality=60")
    assert made.method == GaussianBlur(kernel=9) and made.defence == Jpeg(quality=60)
    assert made.settings() == {"method": "gaussian-blur:kernel=9", "defence": "jpeg:quality=60"}
    assert ANONYMIZERS.make("defended", **made.settings()) == made
    keyed = Defended(method=BlockPermutation(key="hush"), defence="jpeg")
    assert BlockPermutation(key="hush").traits.keyed and not keyed.traits.keyed
    assert "hush" not in repr(keyed) + str(keyed.settings()) + repr(Defended(key="hush"))
    several = ANONYMIZERS.make("defended", method="gaussian-blur:kernel=9;sigma=2", defence="noise:sigma=.2")
    assert several.settings()["method"] == "gaussian-blur:kernel=9;sigma=2.0"
    needy = Defended(method="k-same-pixel:k=2")
    assert needy.traits.needs == {"background"}
    fitted = needy.fit(random_faces(12, 16))
    assert isinstance(fitted.method, KSamePixel) and fitted(random_faces(4, 16)).shape == (4, 16, 16, 3)
