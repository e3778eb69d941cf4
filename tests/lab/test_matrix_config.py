"""A matrix is checked before anything is read."""

from __future__ import annotations

from pathlib import Path

import pytest

import ficgan.deidentify
from ficgan.errors import UsageError
from ficgan.lab.matrix_config import load_matrix

assert ficgan.deidentify  # registers the generative methods

GOOD = """
title: T
sets: [{name: a, path: faces, split: {test: 10}}]
methods: [average-face, "ficgan:layer=0,k=100", {method: ficgan, label: weak, layer: 7}]
recognisers: [dlib, "onnx:models/r.onnx"]
scenarios: [clear, naive]
"""


def write(folder: Path, text: str) -> Path:
    path = folder / "m.yaml"
    path.write_text(text)
    return path


def test_short_and_long_forms(tmp_path: Path) -> None:
    config = load_matrix(write(tmp_path, GOOD))
    assert [method.title for method in config.methods] == ["average-face", "ficgan (layer 0, k 100)", "weak"]
    strong = config.methods[1].make()
    assert (strong.layer, strong.k) == (0, 100)  # type: ignore[attr-defined]
    assert config.sets[0].path == str(tmp_path / "faces")
    placed = load_matrix(write(tmp_path, GOOD.replace("average-face", '"external:folder=results,label=theirs"')))
    assert placed.methods[0].parameters["folder"] == str(tmp_path / "results")
    assert config.recognisers == ["dlib", f"onnx:{tmp_path / 'models/r.onnx'}"]
    cloak = "{method: fawkes, verifier: 'onnx:a.onnx+onnx:/b.onnx'}"
    text = GOOD.replace("average-face", cloak).replace("title: T", "general: ['external:folder=restored']")
    config = load_matrix(write(tmp_path, text))
    assert config.methods[0].parameters["verifier"] == f"onnx:{tmp_path / 'a.onnx'}+onnx:/b.onnx"
    assert config.general == [f"external:folder={tmp_path / 'restored'}"]


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("title: T", "titel: T", "did you mean 'title'"),
        ("split: {test: 10}", "splt: {test: 10}", "did you mean 'sets.split'"),
        ("average-face", "average-fase", "did you mean average-face"),
        ("layer=0", "leyer=0", "did you mean layer"),
        ("k=100", "k=1", "at least 2"),
        ("[clear, naive]", "[clear, naiv]", "did you mean naive"),
        ("label: weak", "label: average-face", "two methods are called"),
        ("title: T", "general: [rigde]", "did you mean ridge"),
        ("title: T", "specialised: ['wiener:kernl=3']", "did you mean kernel"),
        ("test: 10", "test: 1", "greater than or equal to 2"),
        ("[average-face,", "[", "cannot be read|holds no|valid"),
        ('recognisers: [dlib, "onnx:models/r.onnx"]', "recognisers: []", "at least 1"),
    ],
)
def test_every_mistake_is_one_sentence(tmp_path: Path, old: str, new: str, said: str) -> None:
    assert old in GOOD
    text = GOOD.replace(old, new)
    if new == "[":
        text = "sets: ["
    with pytest.raises(UsageError, match=said):
        load_matrix(write(tmp_path, text))
