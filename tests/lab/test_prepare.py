"""Crops of a set: against points and pixels computed here, with a detector that finds what it is given."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from ficgan.anonymizers import Anonymizer, Faces, Traits
from ficgan.errors import InputError
from ficgan.faces import Alignment, Face, transform_points
from ficgan.lab.sets import FaceSet, Prepared, Quick, open_set, prepare

MARKS = np.array([(40, 40), (80, 42), (60, 62), (44, 84), (78, 84)], np.float32)
BOX = np.array([25, 15, 95, 105], np.float32)


class Scripted:
    """A detector that gives the same faces for each image, and counts how often it is asked."""

    def __init__(self, *faces: Face, name: str = "scripted") -> None:
        self.name, self.faces, self.asked = name, list(faces), 0

    def detect(self, image: NDArray[np.uint8]) -> list[Face]:
        self.asked += 1
        return list(self.faces)


def face(box: object = BOX, marks: NDArray[np.float32] = MARKS) -> Face:
    return Face(np.asarray(box, np.float32), np.asarray(marks, np.float32), 0.9)


@pytest.fixture
def photos(tmp_path: Path, rng: np.random.Generator) -> FaceSet:
    """Three people with two smooth photos each."""
    for person in "abc":
        (tmp_path / "set" / person).mkdir(parents=True)
        for number in range(2):
            pixels = np.asarray(Image.fromarray(rng.integers(0, 256, (3, 3, 3), np.uint8)).resize((120, 130)))
            Image.fromarray(pixels).save(tmp_path / "set" / person / f"{number}.png")
    return open_set(tmp_path / "set")


def pixels_of(faces: FaceSet, row: int) -> NDArray[np.uint8]:
    return np.asarray(Image.open(faces.blobs[row].source).convert("RGB"))


@pytest.mark.parametrize(("size", "context", "side"), [(64, 1.0, 64), (65, 2.0, 33)])
def test_landmarks_and_pixels_lie_where_the_alignment_says(
    photos: FaceSet, size: int, context: float, side: int
) -> None:
    made = prepare(photos, size=size, context=context, detector=Scripted(face()))
    x0, y0, x1, y1 = made.region
    assert (x1 - x0, y1 - y0) == (side, side) and (x0, y0) == (size - x1, size - y1)
    assert made.faces.images.shape == (6, size, size, 3) and made.faces.landmarks.dtype == np.float32
    matrix = Alignment().matrix(MARKS, side)
    matrix[:, 2] += x0, y0
    wanted = transform_points(matrix, MARKS)
    np.testing.assert_allclose(made.faces.landmarks, np.broadcast_to(wanted, (6, 5, 2)), atol=1e-3)
    # The crop's colour beside each landmark is the photo's at that point, read off it by hand: the pictures are smooth.
    for u, v in np.rint(wanted).astype(int):
        x, y = np.rint(np.linalg.solve(matrix[:, :2], (u, v) - matrix[:, 2])).astype(int)
        for row in range(6):
            assert np.abs(pixels_of(photos, row)[y, x].astype(int) - made.faces.images[row, v, u]).max() < 20
    assert made.faces.names == photos.names and made.faces.people is not None
    assert made.faces.people.tolist() == [0, 0, 1, 1, 2, 2]


def test_the_largest_face_fully_in_the_picture(photos: FaceSet) -> None:
    small = face([10, 10, 30, 30], MARKS * 0.2 + 8)
    middle = face([5, 5, 65, 65], MARKS * 0.5)
    outside = face([0, 0, 119, 120], MARKS - (45, 0))  # an eye is beyond the border
    touching = face([0, 0, 80, 90], MARKS)
    cases: list[tuple[list[Face], Face]] = [
        ([small, middle], middle),
        ([middle, touching], middle),  # The cut face is larger, but the whole one is no bystander
        ([small, touching], touching),
        ([touching], touching),
        ([outside, small], small),
    ]
    for faces, wanted in cases:
        made = prepare(photos.take([0]), size=48, detector=Scripted(*faces))
        marks = transform_points(Alignment().matrix(wanted.landmarks, 48), wanted.landmarks)
        np.testing.assert_allclose(made.faces.landmarks[0], marks, atol=1e-3)


def test_failures_to_acquire_are_listed(photos: FaceSet, tmp_path: Path) -> None:
    Image.new("RGB", (90, 90), (9, 9, 9)).save(tmp_path / "set" / "a" / "flat.png")
    (tmp_path / "set" / "c" / "words.png").write_text("no picture")
    faces = open_set(tmp_path / "set")

    class Fussy(Scripted):
        def detect(self, image: NDArray[np.uint8]) -> list[Face]:
            self.asked += 1
            return [] if self.asked == 1 else [face(BOX, MARKS - (60, 0))] if self.asked == 2 else [face()]

    seen: list[tuple[int, int]] = []
    made = prepare(faces, size=32, detector=Fussy(), progress=lambda done, total, text: seen.append((done, total)))
    missed = dict(made.missed)
    assert missed["a/0.png"] == "no face was found" and missed["a/1.png"] == "no face is fully in it"
    assert "one colour" in missed["a/flat.png"]
    assert missed["c/words.png"].startswith("c/words.png is not a readable image")
    assert not any(str(tmp_path) in why or "0x" in why for why in missed.values())
    assert len(made) == 4 and made.people.tolist() == [1, 1, 2, 2]
    assert seen[:8] == [(done, 8) for done in range(1, 9)]
    facts = made.facts()
    json.dumps(facts)
    assert facts["faces"] == 4 and facts["people"] == 2 and facts["pixels"] == made.digest


def same(one: Prepared, other: Prepared) -> bool:
    return (
        np.array_equal(one.faces.images, other.faces.images)
        and np.array_equal(one.faces.landmarks, other.faces.landmarks)
        and np.array_equal(one.rows, other.rows)
        and (one.missed, one.region, one.source, one.digest) == (other.missed, other.region, other.source, other.digest)
    )


def test_crops_are_kept_and_made_anew_when_anything_changes(photos: FaceSet, tmp_path: Path) -> None:
    cache, root = tmp_path / "cache", tmp_path / "set"
    (root / "a" / "9.png").write_text("torn")
    photos = open_set(root)
    detector = Scripted(face([0, 0, 80, 90]))
    first = prepare(photos, size=32, detector=detector, cache=cache)
    assert detector.asked == 6 and [path.suffix for path in cache.iterdir()] == [".npz"]
    seen: list[tuple[int, int]] = []
    again = prepare(photos, size=32, detector=detector, cache=cache, progress=lambda *at: seen.append(at[:2]))
    assert detector.asked == 6 and same(first, again) and seen == [(7, 7)]
    assert len(again.missed) == 1

    changes: list[dict[str, Any]] = [{"size": 34}, {"context": 1.2}, {"alignment": Alignment(eye_y=0.4)}]
    for number, change in enumerate(changes, start=2):
        prepare(photos, **{"size": 32, "detector": detector, "cache": cache, **change})
        assert len(list(cache.iterdir())) == number
    asked = detector.asked
    path = root / "a" / "0.png"
    size = path.stat().st_size
    path.write_bytes((root / "b" / "0.png").read_bytes()[:size].ljust(size, b"\0"))  # as many bytes, others
    prepare(open_set(root), size=32, detector=detector, cache=cache)
    assert detector.asked > asked


def test_aligned_sets_are_not_looked_at(photos: FaceSet) -> None:
    asked = Scripted(face())
    made = prepare(photos, size=40, detector=asked, aligned=True)
    assert asked.asked == 0 and made.source["detector"] is None and made.whole
    np.testing.assert_allclose(made.faces.landmarks[0], Alignment().points(40), atol=1e-5)
    square = Image.fromarray(pixels_of(photos, 0)).crop((0, 5, 120, 125))
    assert np.array_equal(made.faces.images[0], np.asarray(square.resize((40, 40), Image.Resampling.LANCZOS)))


@dataclass(frozen=True)
class Inverted(Anonymizer):
    """Colours inverted, and what it was given."""

    name: ClassVar[str] = "inverted"
    traits: ClassVar[Traits] = Traits("inverted", "basic", "here")
    seen: ClassVar[list[Faces]] = []

    def __call__(self, faces: Faces) -> NDArray[np.uint8]:
        self.seen.append(faces)
        return 255 - faces.images


def test_only_the_region_is_anonymised(photos: FaceSet) -> None:
    made = prepare(photos, size=64, context=1.6, detector=Scripted(face()))
    before = made.faces.images.copy()
    x0, y0, x1, y1 = made.region
    done = made.anonymise(Inverted())
    given = Inverted.seen.pop()
    np.testing.assert_allclose(given.landmarks, made.faces.landmarks - (x0, y0), atol=1e-4)
    assert given.names == made.faces.names and np.array_equal(given.images, before[:, y0:y1, x0:x1])
    inner = np.zeros((64, 64), bool)
    inner[y0:y1, x0:x1] = True
    assert np.array_equal(done.images[:, inner], 255 - before[:, inner])
    assert np.array_equal(done.images[:, ~inner], before[:, ~inner])
    around, inside = made.surroundings().images, made.inside().images
    assert (around[:, inner] == 127).all() and np.array_equal(around[:, ~inner], before[:, ~inner])
    assert (inside[:, ~inner] == 127).all() and np.array_equal(inside[:, inner], before[:, inner])
    assert np.array_equal(made.faces.images, before)
    with pytest.raises(InputError, match="replaced faces are"):
        made.with_regions(before)


def test_where_a_quick_look_finds_nothing_a_thorough_one_follows() -> None:
    class Blind(Scripted):
        def once(self) -> Scripted:
            return fast

    fast, thorough = Scripted(), Blind(face())
    large = np.zeros((1000, 500, 3), np.uint8)
    assert len(Quick(thorough).detect(large)) == 1 and (fast.asked, thorough.asked) == (1, 1)
    fast.faces = [face()]
    # Found in a copy of 240 × 480 px, told in pixels of the picture: centres at (x + ½)·(1000 / 480) − ½.
    np.testing.assert_allclose(Quick(thorough).detect(large)[0].landmarks, (MARKS + 0.5) * 1000 / 480 - 0.5, atol=1e-3)
    assert (fast.asked, thorough.asked) == (2, 1)
