"""Face sets as downloaded: each layout's tree is made and compared by hand; and how their people are divided."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from media import coded, write_folder, write_tar, write_zip

from ficgan.data import CELEBA_ATTRIBUTES
from ficgan.errors import FicganError, InputError, UsageError
from ficgan.lab.sets import PARTS, FaceSet, Split, open_set, split, without_repeats


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
    options = {"enrolment": enrolment, "seed": seed}
    if several < 2:
        with pytest.raises(InputError, match="at least 2"):
            split(people, **options)  # type: ignore[arg-type]
        return
    drawn = split(people, **options)  # type: ignore[arg-type]
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
    again = split(people, **options)  # type: ignore[arg-type]
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
