"""`ficgan-deid --mode NAME:…`, `--background`, and what side-cars say of inputs."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from standin import StandIn, call, film, photo

from ficgan.cli._options import read_background
from ficgan.errors import UsageError


def faces(folder: Path, people: int = 3, each: int = 2, size: int = 40) -> Path:
    rng = np.random.default_rng(0)
    for person in range(people):
        (folder / f"p{person}").mkdir(parents=True)
        for number in range(each):
            pixels = rng.integers(0, 256, (size, size + 4, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / f"p{person}" / f"{number}.png")
    return folder


def test_modes_go_through_with_their_parameters(tmp_path: Path, engine: StandIn) -> None:
    _, said = call(photo(tmp_path / "a.png"), "-o", tmp_path / "out", "--mode", "dp-pix:eps=1")
    assert engine.settings["mode"] == "dp-pix:eps=1" and "background" not in engine.settings
    assert "Warning: faces stay recognisable under dp-pix" in said
    call(film(tmp_path / "a.mp4"), "-o", tmp_path / "out", "--mode", "eye-mask")
    assert engine.films[0]["settings"].mode == "eye-mask"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--mode", "dp-pxi"], "did you mean dp-pix?"),
        (["--mode", "dp-pix:esp=1"], "did you mean eps?"),
        (["--mode", "k-same-pixel"], "give --background FACES"),
        (["--mode", "average-face", "--background", "/nowhere"], "does not exist"),
        (["--mode", "blur", "--background", "."], "has no use for --background"),
        (["--mode", "solid", "--k", "30", "--attributes", "Female"], "--k, --attributes would do nothing"),
        (["--mode", "dp-pix:eps=1", "--layer", "0"], "--layer would do nothing"),
        (["--mode", "blur", "--exemplar", "x.png"], "--exemplar would do nothing"),
    ],
)
def test_usage_errors_come_before_any_photo(tmp_path: Path, engine: StandIn, words: list[str], said: str) -> None:
    _, heard = call(photo(tmp_path / "a.png"), "-o", tmp_path / "out", *words, code=2)
    assert said in heard and engine.loaded == 0 and not (tmp_path / "out").exists()


def test_the_background_is_read_as_aligned_faces(tmp_path: Path, engine: StandIn) -> None:
    place = faces(tmp_path / "bg")
    call(photo(tmp_path / "a.png"), "-o", tmp_path / "out", "--mode", "k-same-pixel:k=3", "--background", place)
    given = engine.settings["background"]
    assert given.images.shape == (6, 40, 40, 3) and given.people.tolist() == [0, 0, 1, 1, 2, 2]
    with Image.open(place / "p1" / "0.png") as source:
        want = np.asarray(source.crop((2, 0, 42, 40)))
    np.testing.assert_array_equal(given.images[2], want)


def test_labels_say_whose_a_background_face_is(tmp_path: Path) -> None:
    place = faces(tmp_path / "bg", people=2)
    rows = ["file,person", "p0/0.png,7", "p0/1.png,8", "p1/0.png,7", "p1/1.png,"]
    (place / "labels.csv").write_text("\n".join(rows) + "\n")
    given = read_background(str(place))
    assert len(given) == 3 and given.people is not None and given.people[0] == given.people[2] != given.people[1]
    flat = tmp_path / "flat"
    for number in range(3):
        photo(flat / f"{number}.png")
    assert np.unique(read_background(str(flat)).people).size == 3
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match="--background empty"):
        read_background(str(tmp_path / "empty"))


def test_the_input_is_hashed_before_the_result_takes_its_place(tmp_path: Path, engine: StandIn) -> None:
    source = photo(tmp_path / "a.png")
    before = hashlib.sha256(source.read_bytes()).hexdigest()
    call(source, "-o", source, "--overwrite")
    told = json.loads((tmp_path / "a.png.json").read_text())
    assert told["input_sha256"] == before != told["sha256"]
