"""Face sets as downloaded, each tree made by hand; how their people are divided; crops, by points computed here."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from media import coded, write_folder, write_tar, write_zip
from numpy.typing import NDArray
from PIL import Image
from stand_ins import Fixed

from ficgan.anonymizers import Anonymizer, Faces, Traits
from ficgan.data import CELEBA_ATTRIBUTES
from ficgan.errors import FicganError, InputError, UsageError
from ficgan.faces import Alignment, Face, transform_points
from ficgan.lab.matrix_config import SplitConfig
from ficgan.lab.sets import PARTS, FaceSet, Prepared, Quick, Split, open_set, prepare, split, without_repeats


def picture(number: int, format: str = "PNG") -> bytes:
    """A small picture that differs from every other number's."""
    pixels = np.full((8, 8, 3), 40, np.uint8)
    pixels[0, 0] = (number % 256, number // 256, 0)
    return coded(pixels[..., 0] if format == "PPM" else pixels, format)


def pictures(*names: str) -> dict[str, bytes]:
    """Pictures of these names."""
    kinds = {".jpg": "JPEG", ".pgm": "PPM"}
    return {name: picture(number, kinds.get(Path(name).suffix, "PNG")) for number, name in enumerate(names)}


def tree(root: Path, *names: str) -> Path:
    return write_folder(root, pictures(*names))


def by_name(faces: FaceSet) -> dict[str, int]:
    return dict(zip(faces.names, faces.people.tolist(), strict=True))


def test_a_folder_per_person(tmp_path: Path) -> None:
    faces = open_set(tree(tmp_path / "own", "bea/1.png", "ann/2.png", "ann/1.png"))
    assert (faces.name, faces.layout, faces.licence) == ("own", "folders", None)
    assert by_name(faces) == {"ann/1.png": 0, "ann/2.png": 0, "bea/1.png": 1}
    assert faces.identities == 2 and faces.people.dtype == np.int64


def test_a_folder_of_archives_is_one_set(tmp_path: Path) -> None:
    write_zip(tmp_path / "subjects_0-1999.zip", pictures("0/0.png", "0/1.png", "7/0.png"))
    write_zip(tmp_path / "subjects_2000-3999.zip", pictures("0/0.png"))
    assert open_set(tmp_path).identities == 3


def celeba_texts(folder: Path) -> None:
    """The three texts, for the images 000001 to 000003, of which 2 and 3 show one person."""
    (folder / "Anno").mkdir(parents=True)
    (folder / "Eval").mkdir()
    (folder / "Anno" / "identity_CelebA.txt").write_text("000001.jpg 2880\n000002.jpg 17\n000003.jpg 17\n")
    signs = {"000001.jpg": {"Male", "Young"}, "000002.jpg": {"Smiling"}, "000003.jpg": {"Smiling", "Young"}}
    rows = [f"{file} " + " ".join(" 1" if a in on else "-1" for a in CELEBA_ATTRIBUTES) for file, on in signs.items()]
    (folder / "Anno" / "list_attr_celeba.txt").write_text("\n".join(["3", " ".join(CELEBA_ATTRIBUTES), *rows]))
    (folder / "Eval" / "list_eval_partition.txt").write_text("000001.jpg 0\n000002.jpg 1\n000003.jpg 2\n")


def check_celeba(faces: FaceSet) -> None:
    assert faces.layout == "celeba" and "non-commercial" in str(faces.licence)
    assert faces.people.tolist() == [2880, 17, 17]
    assert tuple(faces.attributes) == CELEBA_ATTRIBUTES
    assert faces.attributes["Smiling"].tolist() == [0, 1, 1] and faces.attributes["Bald"].sum() == 0
    assert faces.groups == {"gender": ("Male", "Female", "Female"), "age": ("young", "not young", "young")}
    assert faces.splits == ("train", "val", "test")
    assert faces.only("test").names == faces.names[2:]


CELEBA = [f"img_align_celeba/00000{i}.jpg" for i in (1, 2, 3)]


def test_celeba_as_its_page_gives_it(tmp_path: Path) -> None:
    celeba_texts(tmp_path)
    (tmp_path / "Img").mkdir()
    write_zip(tmp_path / "Img" / "img_align_celeba.zip", pictures(*CELEBA))
    faces = open_set(tmp_path)
    check_celeba(faces)
    # The archive alone, with the folder of texts named.
    check_celeba(open_set(tmp_path / "Img" / "img_align_celeba.zip", labels=tmp_path))


def test_celeba_hq_knows_people_through_its_mapping(tmp_path: Path) -> None:
    celeba_texts(tmp_path / "celeba")
    files = ("CelebA-HQ-img/0.jpg", "CelebA-HQ-img/1.jpg", "CelebAMask-HQ-mask-anno/0/00000_skin.png")
    root = tree(tmp_path / "CelebAMask-HQ", *files)
    names = " ".join(CELEBA_ATTRIBUTES)
    rows = [f"{i}.jpg  " + " ".join(["1"] * 40 if i else ["-1"] * 40) for i in (0, 1)]
    (root / "CelebAMask-HQ-attribute-anno.txt").write_text("\n".join(["2", names, *rows]))
    (root / "CelebA-HQ-to-CelebA-mapping.txt").write_text(
        "idx     orig_idx    orig_file\n0   2   000003.jpg\n1   0   000001.jpg\n"
    )
    faces = open_set(root)
    assert faces.layout == "celeba-hq" and faces.names == ("CelebA-HQ-img/0.jpg", "CelebA-HQ-img/1.jpg")
    assert faces.people.tolist() == [-1, -1]
    assert faces.attributes["Bald"].tolist() == [0, 1] and faces.groups["gender"] == ("Female", "Male")
    known = open_set(root, labels=tmp_path / "celeba")
    assert known.people.tolist() == [17, 2880] and known.splits == ("test", "train")
    assert known.attributes["Bald"].tolist() == [0, 1]
    (root / "CelebA-HQ-to-CelebA-mapping.txt").write_text("idx orig_idx orig_file\n0 2 000003.jpg\n")
    with pytest.raises(InputError, match="not the mapping of all"):
        open_set(root, labels=tmp_path / "celeba")


def test_ffhq_counts_each_image_as_a_person(tmp_path: Path) -> None:
    numbers, folders = ("00000/00000", "00000/00001", "01000/01000"), ("images1024x1024", "thumbnails128x128")
    root = tree(tmp_path / "ffhq", *(f"{folder}/{number}.png" for folder in folders for number in numbers))
    faces = open_set(root)
    assert faces.layout == "ffhq" and faces.people.tolist() == [0, 1, 2]
    assert all(name.startswith("images1024x1024/") for name in faces.names)
    assert open_set(root / "thumbnails128x128").layout == "ffhq"


def test_london_and_any_other_pattern(tmp_path: Path) -> None:
    root = tree(tmp_path / "set", "001_03.jpg", "001_08.jpg", "017_03.jpg")
    table = "face_id,face_age,face_gender,face_eth\n001,24,female,west_asian\n017,NA,male,white\n099,50,male,white\n"
    (root / "london_faces_info.csv").write_text(table)
    faces = open_set(root)
    assert faces.layout == "london" and "CC BY 4.0" in str(faces.licence)
    assert faces.people.tolist() == [1, 1, 17]
    assert faces.groups == {
        "age": ("20-29", "20-29", ""),
        "gender": ("Female", "Female", "Male"),
        "race": ("West Asian", "West Asian", "White"),
    }
    other = open_set(root, identity=r"^(\d\d)")
    assert other.layout == "pattern" and other.people.tolist() == [0, 0, 1]
    (tmp_path / "own.csv").write_text("who,tall,Note\nann,1,x\nbea,0,y\n")
    pictures = tree(tmp_path / "own", "a/ann-1.png", "b/bea-1.png", "b/x.png")
    own = open_set(pictures, identity=r"([a-z]+)-\d", labels=tmp_path / "own.csv")
    assert by_name(own) == {"a/ann-1.png": 0, "b/bea-1.png": 1, "b/x.png": -1}
    assert own.attributes["tall"].tolist() == [1, 0, 0] and own.groups == {"note": ("x", "y", "")}


def test_a_tar_and_its_table(tmp_path: Path) -> None:
    write_tar(tmp_path / "faces-val.tar", pictures("a.png", "b.png", "c.png"))
    (tmp_path / "other.csv").write_text("file,person\nz.png,1\n")
    (tmp_path / "faces.csv").write_text(
        "file,split,person,age,gender,race,Glasses\n"
        "a.png,val,ann,41,Male,Latino_Hispanic,1\nb.png,val,ann,,Male,Black,0\n"
        "c.png,val,,9,f,Black,1\nd.png,train,cy,1,f,Black,1\n"
    )
    faces = open_set(tmp_path / "faces-val.tar")
    assert faces.layout == "csv" and faces.people.tolist() == [0, 0, -1] and faces.splits == ("val",) * 3
    assert faces.groups == {
        "gender": ("Male", "Male", "Female"),
        "race": ("Latino Hispanic", "Black", "Black"),
        "age": ("40-49", "", "3-9"),
    }
    assert faces.attributes["Glasses"].tolist() == [1, 0, 1]
    assert faces.facts()["groups"]["age"] == {"unknown": 1, "3-9": 1, "40-49": 1}
    with pytest.raises(InputError, match="no part 'test'; it has val"):
        faces.only("test")
    with pytest.raises(InputError, match="no single row"):
        open_set(tmp_path / "faces-val.tar", labels=tmp_path / "other.csv")


@pytest.mark.parametrize(
    ("make", "options", "error", "sentence"),
    [
        (lambda p: p / "none", {}, InputError, "cannot be opened"),
        (lambda p: tree(p / "x", "1.png", "2.png"), {}, InputError, "no known layout"),
        (lambda p: tree(p / "x", "a/1.png", "2.png"), {"layout": "folders"}, InputError, "no person's folder"),
        (lambda p: tree(p / "x", "1.png"), {"layout": "csv"}, InputError, "no table"),
        (lambda p: tree(p / "x", "1.png"), {"layout": "pattern"}, UsageError, "needs an identity"),
        (lambda p: tree(p / "x", "1.png"), {"identity": "("}, UsageError, "no regular expression"),
        (lambda p: tree(p / "x", "1.png"), {"identity": "1"}, UsageError, "no group"),
        (lambda p: tree(p / "x", "1.png"), {"identity": "(z)"}, InputError, "in no name"),
        (lambda p: tree(p / "x", "a/1.png"), {"layout": "lwf"}, UsageError, "no layout 'lwf'"),
        (lambda p: tree(p / "x", "a/1.png"), {"labels": "/nowhere/x.csv"}, InputError, "not there"),
        (lambda p: tree(p / "x", "CelebAMask-HQ-mask-anno/1.png"), {"layout": "celeba-hq"}, InputError, "no image of"),
    ],
)
def test_what_cannot_be_opened_is_said(
    tmp_path: Path, make: Callable[[Path], Path], options: dict[str, object], error: type[FicganError], sentence: str
) -> None:
    with pytest.raises(error, match=sentence):
        open_set(make(tmp_path), **options)  # type: ignore[arg-type]


def test_only_the_people_with_the_most_images(tmp_path: Path) -> None:
    names = [f"{who}/{i}.png" for who, count in (("a", 1), ("b", 3), ("c", 2)) for i in range(count)]
    root = tree(tmp_path / "set", *names)
    assert open_set(root, limit_people=2).names == ("b/0.png", "b/1.png", "b/2.png", "c/0.png", "c/1.png")
    assert len(open_set(root, limit_people=99)) == 6


@pytest.mark.slow
def test_the_shared_sets(shared_data: Path) -> None:
    london = open_set(shared_data / "london")
    assert (london.layout, len(london), london.identities) == ("london", 204, 102)
    assert set(london.groups) == {"age", "gender", "race"}
    celeba = open_set(shared_data / "celeba_crops.tar", limit_people=200)
    assert (celeba.layout, celeba.identities, len(celeba.attributes)) == ("csv", 200, 40)
    att = open_set(shared_data / "att.tar")
    assert (att.layout, len(att), att.identities) == ("folders", 400, 40)
    fairface = open_set(shared_data / "faces128-val.tar")
    assert (fairface.layout, len(fairface), len(set(fairface.groups["race"]))) == ("csv", 1194, 7)


# -- divisions of people -----------------------------------------------------------------------------------------------


@given(
    counts=st.lists(st.integers(1, 9), min_size=6, max_size=40),
    unknown=st.integers(0, 5),
    enrolment=st.floats(0.05, 0.95),
    seed=st.integers(0, 99),
    shuffle=st.randoms(use_true_random=False),
)
def test_invariants(counts: list[int], unknown: int, enrolment: float, seed: int, shuffle: object) -> None:
    rows = [who * 3 + 1 for who, count in enumerate(counts) for _ in range(count)] + [-1] * unknown
    shuffle.shuffle(rows)  # type: ignore[attr-defined]
    people = np.array(rows)
    images = Counter(rows)
    several = sum(images[who * 3 + 1] >= 2 for who in range(len(counts)))
    options = SplitConfig(enrolment=enrolment, seed=seed)
    if several < 2:
        with pytest.raises(InputError, match="at least 2"):
            split(people, options)
        return
    drawn = split(people, options)
    every = np.concatenate([getattr(drawn, part) for part in PARTS])
    assert sorted(every.tolist()) == list(range(len(people)))
    who = {part: set(people[getattr(drawn, part)].tolist()) for part in PARTS}
    assert who["gallery"] == who["probe"] and len(who["gallery"]) >= 2
    for one, other in (("background", "attacker"), ("background", "gallery"), ("attacker", "gallery")):
        assert not who[one] & who[other]
    assert who["unused"] & (who["background"] | who["attacker"] | who["gallery"]) == set()
    for person in who["gallery"]:
        enrolled = int((people[drawn.gallery] == person).sum())
        wanted = enrolment * images[person]
        assert 1 <= enrolled <= images[person] - 1
        assert abs(enrolled - wanted) <= 0.5 + 1e-9 or enrolled in (1, images[person] - 1)
    for part in PARTS:
        assert drawn.manifest["parts"][part]["images"] == len(getattr(drawn, part))
    again = split(people, options)
    assert again.manifest == drawn.manifest
    assert all(np.array_equal(getattr(again, part), getattr(drawn, part)) for part in PARTS)


def rows(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


#             0  1  2  3  4  5  6  7  8   9
FACES = rows(1, 1, 1, 2, 2, 3, 3, 4, 4, -1)
GOOD = Split(rows(5, 6), rows(7, 8), rows(0, 1, 3), rows(2, 4), rows(9), {"seed": 0})


def test_the_same_picture_in_two_parts_is_removed() -> None:
    assert without_repeats(GOOD, FACES, None, list("abcdefghij")) is GOOD
    # The probe 2 is the gallery's 0, and the attacker's 7 the probe's 4; what repeats in the background may stay.
    digests = list("abadeffehe")
    digests[5:7] = "ff"
    cleaned = without_repeats(GOOD, FACES, None, digests)
    # Person 1 has lost the only probe: the enrolled images leave too. Of person 2 one pair stays.
    assert [getattr(cleaned, part).tolist() for part in PARTS] == [[5, 6], [8], [3], [4], [0, 1, 2, 7, 9]]
    assert cleaned.manifest["duplicates_removed"] == 2 and cleaned.manifest["people_lost_by_it"] == 1
    assert cleaned.manifest["seed"] == 0 and cleaned.manifest["parts"]["gallery"]["people"] == 1
    assert without_repeats(cleaned, FACES, None, digests) is cleaned


# -- crops -------------------------------------------------------------------------------------------------------------


MARKS = np.array([(40, 40), (80, 42), (60, 62), (44, 84), (78, 84)], np.float32)
BOX = np.array([25, 15, 95, 105], np.float32)


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
    made = prepare(photos, size=size, context=context, detector=Fixed([face()]))
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
        made = prepare(photos.take([0]), size=48, detector=Fixed(faces))
        marks = transform_points(Alignment().matrix(wanted.landmarks, 48), wanted.landmarks)
        np.testing.assert_allclose(made.faces.landmarks[0], marks, atol=1e-3)


def test_failures_to_acquire_are_listed(photos: FaceSet, tmp_path: Path) -> None:
    Image.new("RGB", (90, 90), (9, 9, 9)).save(tmp_path / "set" / "a" / "flat.png")
    (tmp_path / "set" / "c" / "words.png").write_text("no picture")
    faces = open_set(tmp_path / "set")

    class Fussy(Fixed):
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
        and one.faces.names == other.faces.names
        and (one.missed, one.region, one.source, one.digest) == (other.missed, other.region, other.source, other.digest)
    )


def test_crops_are_kept_and_made_anew_when_anything_changes(photos: FaceSet, tmp_path: Path) -> None:
    cache, root = tmp_path / "cache", tmp_path / "set"
    (root / "a" / "9.png").write_text("torn")
    photos = open_set(root)
    detector = Fixed([face([0, 0, 80, 90])])
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
    asked = Fixed([face()])
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
    made = prepare(photos, size=64, context=1.6, detector=Fixed([face()]))
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


def test_where_a_quick_look_finds_nothing_a_thorough_one_follows() -> None:
    class Blind(Fixed):
        def once(self) -> Fixed:
            return fast

    fast, thorough = Fixed(), Blind([face()])
    large = np.zeros((1000, 500, 3), np.uint8)
    assert len(Quick(thorough).detect(large)) == 1 and (fast.asked, thorough.asked) == (1, 1)
    fast.faces = [face()]
    # Found in a copy of 240 × 480 px, told in pixels of the picture: centres at (x + ½)·(1000 / 480) − ½.
    np.testing.assert_allclose(Quick(thorough).detect(large)[0].landmarks, (MARKS + 0.5) * 1000 / 480 - 0.5, atol=1e-3)
    assert (fast.asked, thorough.asked) == (2, 1)
