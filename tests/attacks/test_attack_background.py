"""A public background is subtracted; a keyed method opens with its key and with no other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
from attack_faces import faces_of, psnr, random_faces
from hypothesis import given, settings
from hypothesis import strategies as st

from ficgan.anonymizers import Anonymizer, Faces, Images, Traits, generator
from ficgan.errors import InputError, UsageError
from ficgan.lab.attacks import Identity, KeyedInverse, KSameSubtraction, Pairs, another_key
from ficgan.registry import param


def k_same(faces: Faces, background: Faces, k: int, seed: int = 0) -> tuple[Faces, list[set[int]]]:
    """The mean of each face and k − 1 of the background, one image a person."""
    rng = np.random.default_rng(seed)
    assert background.people is not None
    out, used = [], []
    for image in faces.images:
        people = rng.permutation(np.unique(background.people))[: k - 1]
        rows = [int(rng.choice(np.flatnonzero(background.people == person))) for person in people]
        out.append(np.rint((image.astype(float) + background.images[rows].astype(float).sum(axis=0)) / k))
        used.append(set(rows))
    return faces.with_images(np.array(out, np.uint8)), used


@settings(max_examples=10, deadline=None)
@given(k=st.integers(2, 10), seed=st.integers(0, 99), size=st.integers(24, 40))
def test_positive_control_the_others_are_found_and_the_face_comes_back(k: int, seed: int, size: int) -> None:
    background = random_faces(40, size, seed=11, smooth=1, per_person=2)
    faces = random_faces(4, size, seed=12, smooth=1)
    hidden, used = k_same(faces, background, k, seed)
    fitted = KSameSubtraction(k=k).fit(Pairs(hidden, hidden, background=background))
    assert [set(rows.tolist()) for rows in fitted.chosen(hidden)] == used
    error = np.abs(fitted.guess(hidden).astype(int) - faces.images)
    assert error.max() <= (k + 1) // 2


def test_negative_control_another_background_brings_nothing_back() -> None:
    background, other = random_faces(40, 32, seed=11, smooth=1), random_faces(40, 32, seed=13, smooth=1)
    faces = random_faces(4, 32, seed=12, smooth=1)
    hidden, _ = k_same(faces, background, 10)
    right = KSameSubtraction().fit(Pairs(hidden, hidden, background=background)).guess(hidden)
    wrong = KSameSubtraction().fit(Pairs(hidden, hidden, background=other)).guess(hidden)
    assert psnr(right, faces.images) > 35
    assert psnr(wrong, faces.images) < psnr(hidden.images, faces.images)


def test_it_is_refused_what_it_needs() -> None:
    faces = random_faces(4, 16)
    with pytest.raises(UsageError, match="background"):
        KSameSubtraction().fit(Pairs(faces, faces))
    with pytest.raises(UsageError, match="4 people"):
        KSameSubtraction(k=10).fit(Pairs(faces, faces, background=faces))
    with pytest.raises(UsageError, match="fit it on pairs"):
        KSameSubtraction().guess(faces)
    with pytest.raises(InputError, match="another size"):
        KSameSubtraction(k=3).fit(Pairs(faces, faces, background=faces)).guess(random_faces(1, 24))
    unknown = Faces(faces.images, faces.names)
    assert KSameSubtraction(k=3).fit(Pairs(faces, faces, background=unknown)).guess(faces).shape == faces.images.shape


@dataclass(frozen=True)
class Xor(Anonymizer):
    """Every byte with a keyed stream: a toy."""

    name: ClassVar[str] = "xor"
    traits: ClassVar[Traits] = Traits(title="XOR", family="basic", source="test", keyed=True)
    key: str = param("", "secret text", secret=True)

    def __call__(self, faces: Faces) -> Images:
        return faces.images ^ generator(self.key).integers(0, 256, faces.images.shape[1:], dtype=np.uint8)

    def invert(self, faces: Faces) -> Images:
        return self(faces)


@dataclass(frozen=True)
class Open(Anonymizer):
    name: ClassVar[str] = "open"
    traits: ClassVar[Traits] = Traits(title="Open", family="basic", source="test")


@dataclass(frozen=True)
class Keyless(Xor):
    name: ClassVar[str] = "keyless"
    key: str = ""


@pytest.mark.parametrize("key", ["", "swordfish", "é"])
def test_the_right_key_opens_and_the_wrong_one_does_not(key: str) -> None:
    faces = random_faces(3, 16)
    method = Xor(key=key)
    hidden = faces.with_images(method(faces))
    assert np.array_equal(KeyedInverse(anonymizer=method).guess(hidden), faces.images)
    wrong = KeyedInverse(key="wrong", anonymizer=method)
    assert psnr(wrong.guess(hidden), faces.images) < 12
    assert wrong.fit(Pairs(hidden, faces)) is wrong


def test_another_key_is_another_and_stays_secret() -> None:
    method = Xor(key="swordfish")
    other = another_key(method)
    assert other != method and another_key(method) == other
    assert "swordfish" not in repr(KeyedInverse(anonymizer=method))
    assert KeyedInverse(anonymizer=method).settings() == {"key": "right"}


def test_keys_are_asked_for_only_where_there_are_any() -> None:
    faces = faces_of(random_faces(1, 16).images)
    with pytest.raises(UsageError, match="not keyed"):
        KeyedInverse(anonymizer=Open())
    with pytest.raises(UsageError, match="no anonymiser"):
        KeyedInverse().guess(faces)
    with pytest.raises(UsageError, match="no secret parameter"):
        KeyedInverse(key="wrong", anonymizer=Keyless()).guess(faces)
    with pytest.raises(UsageError, match="right, wrong"):
        KeyedInverse(key="left")
    assert Identity().guess(faces).shape == faces.images.shape
