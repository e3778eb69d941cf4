"""Anonymisers around others: external programs and all they may do wrong; defences against Pillow, NumPy, SciPy."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from scipy import ndimage
from stand_ins import random_faces

from ficgan.anonymizers import ANONYMIZERS, DEFENCES, Defended, Faces, GaussianBlur
from ficgan.anonymizers.defended import BoxInstead, Jpeg
from ficgan.anonymizers.external import External
from ficgan.anonymizers.k_same import KSamePixel
from ficgan.anonymizers.keyed import BlockPermutation
from ficgan.errors import FicganError, InputError, UsageError
from ficgan.lab.attacks.base import ExternalRestorer

HEAD = """
import sys, time, pathlib, subprocess
from PIL import Image, ImageOps
source, target = map(pathlib.Path, sys.argv[1:3])
files = sorted(source.iterdir())
"""
INVERT = "for file in files: ImageOps.invert(Image.open(file)).save(target / file.name)\n"


@pytest.fixture
def faces(rng: np.random.Generator) -> Faces:
    images = rng.integers(0, 256, (4, 10, 10, 3)).astype(np.uint8)
    return Faces(images, ("a/1.png", "a/2.png", "b/1.png", "b/30.webp"))


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder for temporary files; nothing may be left in it."""
    folder = tmp_path / "temporary files"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


@pytest.fixture
def program(tmp_path: Path, temporary: Path) -> Callable[..., External]:
    """An `External` that runs a Python text; its path has a space in it."""

    def make(text: str, **settings: float) -> External:
        script = tmp_path / "the program.py"
        script.write_text(HEAD + text, encoding="utf-8")
        return External(command=f"'{sys.executable}' '{script}' {{input}} {{output}}", **settings)

    return make


def test_a_program_gets_the_crops_and_its_images_come_back(
    program: Callable[..., External], faces: Faces, temporary: Path
) -> None:
    got = program("assert [f.name for f in files] == [f'{i:06d}.png' for i in range(4)]\n" + INVERT)(faces)
    assert got.dtype == np.uint8 and np.array_equal(got, 255 - faces.images)
    assert not list(temporary.iterdir())


@pytest.mark.parametrize(
    ("text", "kind", "said"),
    [
        ("sys.exit('no GPU\\n\\nout of memory\\n')", FicganError, "failed with status 1: out of memory$"),
        ("sys.exit(3)", FicganError, "failed with status 3: it gave no reason$"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", FicganError, r"failed with status -11"),
        ("files = files[:2]\n" + INVERT, InputError, r"no image of b/1\.png, b/30\.webp;"),
        ("", InputError, r"no image of a/1\.png, a/2\.png, b/1\.png and 1 more;"),
        ("for f in files: Image.new('RGB', (12, 10)).save(target / f.name)", InputError, "12×10, not"),
        ("for f in files: Image.new('RGBA', (10, 10)).save(target / f.name)", InputError, "mode RGBA, and"),
        ("for f in files: Image.new('I;16', (10, 10)).save(target / f.name)", InputError, "mode I;16, and"),
        ("for f in files: (target / f.name).write_bytes(b'no')", InputError, r"000000\.png for a/1"),
    ],
)
def test_what_a_program_does_wrong(
    program: Callable[..., External], faces: Faces, temporary: Path, text: str, kind: type[FicganError], said: str
) -> None:
    with pytest.raises(kind, match=said):
        program(text)(faces)
    assert not list(temporary.iterdir())


def test_a_restorer_may_answer_in_larger_squares(program: Callable[..., External], faces: Faces) -> None:
    for size, kind in (((20, 20), None), ((20, 10), InputError)):
        text = f"for f in files: ImageOps.invert(Image.open(f)).resize({size}, 0).save(target / f.name)"
        restorer = ExternalRestorer(command=program(text).command)
        if kind is None:
            assert np.array_equal(restorer.guess(faces), 255 - faces.images)
        else:
            with pytest.raises(kind):
                restorer.guess(faces)


@pytest.mark.skipif(sys.platform == "win32", reason="process groups are POSIX")
def test_out_of_time_ends_the_program_and_what_it_started(
    program: Callable[..., External], faces: Faces, tmp_path: Path, temporary: Path
) -> None:
    child = tmp_path / "child"
    text = f"""
p = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])
pathlib.Path({str(child)!r}).write_text(str(p.pid))
time.sleep(60)
"""
    start = time.monotonic()
    with pytest.raises(FicganError, match=r"took more than 2 s and was ended; raise the timeout"):
        program(text, timeout=2.0)(faces)
    assert time.monotonic() - start < 20 and not list(temporary.iterdir())
    pid = int(child.read_text())
    for _ in range(100):
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            break
        if state == "Z":
            break
        time.sleep(0.05)
    else:
        os.kill(pid, 9)
        pytest.fail("the program's child still runs")


@pytest.fixture
def folder(tmp_path: Path, faces: Faces) -> Path:
    out = tmp_path / "made before"
    for image, name in zip(faces.images, ("a/1.png", "a/2.bmp", "b/1.png", "b/30.png"), strict=True):
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(255 - image).save(out / name)
    return out


def test_a_folder_is_matched_by_name(folder: Path, faces: Faces) -> None:
    method = External(folder=str(folder))
    assert np.array_equal(method(faces), 255 - faces.images)
    assert np.array_equal(method(faces.take([3, 1])), 255 - faces.images[[3, 1]])
    for names, images, said in (
        (("c/9.png",), faces.images[:1], r"has no image of c/9\.png;"),
        (("a/2",), np.zeros((1, 8, 8, 3), np.uint8), "10×10, not 8×8"),
    ):
        with pytest.raises(InputError, match=said):
            method(Faces(images, names))
    with pytest.raises(UsageError, match="there is no folder"):
        External(folder=str(folder / "none"))(faces)


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
