"""Matrices and configurations of attackers are checked before anything is read."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

import ficgan.deidentify
from ficgan import configs
from ficgan.errors import UsageError
from ficgan.lab.matrix_config import load_attack, load_matrix, parameter_count, parse_attack

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
        ("k=100", "k=1", "at least 2"),
        ("[clear, naive]", "[clear, naiv]", "did you mean naive"),
        ("label: weak", "label: average-face", "two methods are called"),
        ("title: T", "specialised: ['wiener:kernl=3']", "did you mean kernel"),
        ("test: 10", "test: 1", "greater than or equal to 2"),
        ('recognisers: [dlib, "onnx:models/r.onnx"]', "recognisers: []", "at least 1"),
    ],
)
def test_every_mistake_is_one_sentence(tmp_path: Path, old: str, new: str, said: str) -> None:
    assert old in GOOD
    with pytest.raises(UsageError, match=said):
        load_matrix(write(tmp_path, GOOD.replace(old, new)))


# -- attackers --------------------------------------------------------------------------------------------------------

NAMES = configs.names("attack")


def stated(name: str) -> tuple[float, float]:
    """Millions of parameters in the comment, and half of its last digit."""
    found = re.search(r"^# Parameters: (\d+(?:\.(\d+))?) M", configs.read(name, "attack"), re.M)
    assert found, f"{name} does not say how many parameters its network has"
    return float(found[1]), 0.5 * 10.0 ** -len(found[2] or "")


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_the_network_is_as_large_as_the_comment_says(name: str) -> None:
    attacker = load_attack(name).learner()
    million, near = stated(name)
    assert parameter_count(attacker) / 1e6 == pytest.approx(million, abs=near)


BASE = {"attacker": "autoencoder:size=16", "anonymizer": "gaussian-blur:kernel=9"}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"atacker": "autoencoder"}, "did you mean 'attacker'"),
        ({"set": {"split": {"atacker": 4}}}, "did you mean 'set.split.attacker'"),
        ({"attacker": {"name": "autoencodr"}}, "did you mean autoencoder"),
        ({"attacker": {"name": "autoencoder", "epoch": 1}}, "did you mean epochs"),
        ({"attacker": {"size": 16}}, "attacker.name is missing"),
        ({"attacker": 3}, "there: attacker"),
        ({"attacker": "autoencoder:size=18"}, "multiple of 4"),
        ({"attacker": "ridge"}, "ficgan-attack run ridge"),
        ({"attacker": "wiener-blind"}, "ficgan-attack run wiener-blind"),
        ({"anonymizer": "gausian-blur"}, "did you mean gaussian-blur"),
        ({"anonymizer": {"method": "gaussian-blur", "kernal": 9}}, "did you mean kernel"),
        ({"set": {"size": 8}}, "set.size"),
    ],
)
def test_mistakes_name_the_key(change: dict[str, object], said: str) -> None:
    with pytest.raises(UsageError) as found:
        parse_attack({**BASE, **change}, where="there")
    assert said in str(found.value) and "\n" not in str(found.value)


def test_overrides_reach_short_forms_and_sections(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(yaml.safe_dump(BASE))
    config = load_attack(file, ["attacker.epochs=3", "anonymizer.kernel=11", "set.split.test=4", "seed=5"])
    attacker = config.learner()
    assert (attacker.epochs, attacker.size, attacker.seed) == (3, 16, 5)
    assert config.anonymizer.parameters["kernel"] == 11 and config.set.split.test == 4
    assert load_attack(file, ["attacker.seed=9", "seed=5"]).learner().seed == 9
    for text, said in (("attacker.epochs", "key=value"), ("seed.x=1", "is a value")):
        with pytest.raises(UsageError, match=said):
            load_attack(file, [text, "seed=1"] if said == "key=value" else ["seed=1", text])


def test_what_is_shared_holds_no_key_and_no_folder() -> None:
    tree = {**BASE, "anonymizer": "block-permutation:block=8,key=hushhush", "set": {"labels": "/home/me/l.csv"}}
    shown = repr(parse_attack(tree, where="there").shareable())
    assert "hushhush" not in shown and "/home" not in shown and "block-permutation" in shown
