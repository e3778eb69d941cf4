"""What holds for every attacker, and restorers of other people: a little program, and all that may be wrong."""

from __future__ import annotations

import dataclasses
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from attack_faces import constant_faces, faces_of, random_faces
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from ficgan.anonymizers import Faces
from ficgan.errors import FicganError, InputError, UsageError
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
from ficgan.lab.attacks.base import REVERSERS, ExternalRestorer

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
@settings(max_examples=5)
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


HEAD = """
import sys, time, pathlib
from PIL import Image, ImageOps
source, target = map(pathlib.Path, sys.argv[1:3])
files = sorted(source.iterdir())
"""
INVERT = "for f in files: ImageOps.invert(Image.open(f)).save(target / f.name)\n"


@pytest.fixture
def faces(rng: np.random.Generator) -> Faces:
    return Faces(rng.integers(0, 256, (3, 8, 8, 3)).astype(np.uint8), ("a/1.png", "a/2.png", "b/1.png"))


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "temporary files"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


@pytest.fixture
def program(tmp_path: Path, temporary: Path) -> Callable[..., ExternalRestorer]:
    def make(text: str, **settings: float) -> ExternalRestorer:
        script = tmp_path / "the restorer.py"
        script.write_text(HEAD + text, encoding="utf-8")
        return ExternalRestorer(command=f"'{sys.executable}' '{script}' {{input}} {{output}}", **settings)

    return make


def test_a_program_restores_and_leaves_nothing_behind(
    program: Callable[..., ExternalRestorer], faces: Faces, temporary: Path
) -> None:
    restorer, before = program(INVERT), faces.images.copy()
    assert np.array_equal(restorer.guess(faces), 255 - faces.images)
    assert np.array_equal(faces.images, before) and not list(temporary.iterdir())
    both = restorer.fit(None).reverse(faces, 2)  # type: ignore[arg-type]
    assert both.shape == (3, 2, 8, 8, 3) and np.array_equal(both[:, 0], both[:, 1])


def test_super_resolution_is_averaged_back(
    program: Callable[..., ExternalRestorer], faces: Faces, tmp_path: Path, rng: np.random.Generator
) -> None:
    large = rng.integers(0, 256, (3, 32, 32, 3)).astype(np.uint8)
    for index, image in enumerate(large):
        Image.fromarray(image).save(tmp_path / f"{index}.png")
    text = f"for i, f in enumerate(files): Image.open({str(tmp_path)!r} + f'/{{i}}.png').save(target / f.name)"
    means = large.reshape(3, 8, 4, 8, 4, 3).mean((2, 4))
    assert np.abs(program(text).guess(faces) - means).max() <= 0.5 + 1e-9


def test_smaller_ones_are_enlarged(program: Callable[..., ExternalRestorer], faces: Faces) -> None:
    got = program("for f in files: Image.new('RGB', (3, 3), (9, 99, 199)).save(target / f.name)").guess(faces)
    assert np.array_equal(got, np.broadcast_to(np.array([9, 99, 199], np.uint8), got.shape))


@pytest.mark.parametrize(
    ("text", "kind", "said"),
    [
        ("sys.stderr.write('loading\\nno weights\\n'); sys.exit(4)", FicganError, "status 4: no weights$"),
        ("files = files[1:]\n" + INVERT, InputError, r"wrote no image of a/1\.png;"),
        (INVERT + "Image.new('L', (8, 8)).save(target / '000000_1.png')", InputError, r"wrote 000000_1\.png, which is"),
        (INVERT + "(target / 'x').mkdir(); Image.new('L', (8, 8)).save(target / 'x' / 'y.jpg')", InputError, "x/y.jpg"),
        ("for f in files: Image.new('RGB', (16, 8)).save(target / f.name)", InputError, r"for a/1\.png is 16×8, and"),
        (INVERT + "f = target / files[1].name\nf.write_bytes(f.read_bytes()[:60])", InputError, r"for a/2\.png is no"),
        ("for f in files: Image.new('I;16', (8, 8)).save(target / f.name)", InputError, "mode I;16, and"),
    ],
)
def test_what_a_restorer_does_wrong(
    program: Callable[..., ExternalRestorer], faces: Faces, temporary: Path, text: str, kind: type[Exception], said: str
) -> None:
    with pytest.raises(kind, match=said):
        program(text).guess(faces)
    assert not list(temporary.iterdir())


def test_what_it_says_beside_images_is_its_own_affair(program: Callable[..., ExternalRestorer], faces: Faces) -> None:
    restorer = program(INVERT + "(target / 'log.txt').write_text('done')")
    assert np.array_equal(restorer.guess(faces), 255 - faces.images)


def test_out_of_time(program: Callable[..., ExternalRestorer], faces: Faces) -> None:
    with pytest.raises(FicganError, match=r"took more than 0\.3 s and was ended"):
        program("time.sleep(60)", timeout=0.3).guess(faces)


def test_a_folder_made_before_may_hold_more_and_larger_ones(tmp_path: Path, faces: Faces) -> None:
    for image, name in zip(faces.images, faces.names, strict=True):
        file = tmp_path / "made" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image.repeat(4, 0).repeat(4, 1)).save(file)
    restorer = ExternalRestorer(folder=str(tmp_path / "made"), label="GFP-GAN")
    assert np.array_equal(restorer.guess(faces), faces.images)
    assert np.array_equal(restorer.guess(faces.take([2])), faces.images[2:])
    assert restorer.traits.title == "GFP-GAN" and ExternalRestorer.traits.title == "External restorer"
    with pytest.raises(InputError, match=r"no image of c\.png"):
        restorer.guess(Faces(faces.images[:1], ("c.png",)))


def test_by_name_and_what_is_declared(faces: Faces) -> None:
    made = REVERSERS.make("external", command="x {input} {output}", timeout="9")
    assert isinstance(made, ExternalRestorer) and made.timeout == 9
    assert made.traits.against == frozenset() and made.traits.knowledge == {"method"} and not made.traits.several
    with pytest.raises(UsageError, match="needs a program or its images"):
        ExternalRestorer().guess(faces)
    with pytest.raises(UsageError, match=r"has no \{output\}"):
        ExternalRestorer(command="x {input}")
    with pytest.raises(UsageError, match="both a command and a folder"):
        ExternalRestorer(command="x {input} {output}", folder="y")
