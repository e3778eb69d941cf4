"""Every configuration of an attacker that comes along: known keys, and a network as large as its comment says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from ficgan import configs
from ficgan.errors import UsageError
from ficgan.lab.matrix_config import load_attack, parameter_count, parse_attack

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
        ({"set": {"splitt": {}}}, "did you mean 'set.split'"),
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
