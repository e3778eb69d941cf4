"""The configuration of a study of clouds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from ficgan import configs
from ficgan.cli.main import main
from ficgan.errors import UsageError
from ficgan.lab.clouds import CloudStudyConfig


def test_the_thesis_protocol_is_packaged() -> None:
    config = CloudStudyConfig.read("pointcloud")
    assert config.synthetic is not None and config.synthetic.people == 200
    assert len(config.methods) * len(config.degrees) == 210
    assert (config.confidence, config.iou, config.miss) == (0.9, 0.5, 40.0)
    assert "pointcloud-small" in configs.names("eval")
    assert CloudStudyConfig.read("pointcloud-small").to_dict()["title"]


@pytest.mark.parametrize(
    ("tree", "said"),
    [
        ({}, "give either clouds"),
        ({"clouds": "a", "synthetic": {}}, "give either clouds"),
        ({"clouds": "a", "degres": [1]}, "did you mean 'degrees'"),
        ({"synthetic": {"peopel": 3}}, "did you mean 'synthetic.people'"),
        ({"clouds": "a", "degrees": [0]}, "between 1 and 35"),
        ({"clouds": "a", "degrees": [3, 3]}, "twice"),
        ({"clouds": "a", "methods": ["smooth-kn"]}, "did you mean smooth-knn"),
        ({"clouds": "a", "methods": ["pmp", "pmp"]}, "twice"),
        ({"clouds": "a", "degrees": [2], "attack": {"degrees": [3]}}, "in common"),
        ({"clouds": "a", "methods": ["pmp"], "attack": {"methods": ["tapering"]}}, "attack.methods"),
        ({"clouds": "a", "confidence": 1.5}, "confidence"),
    ],
)
def test_what_cannot_work_is_one_sentence(tree: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said) as caught:
        CloudStudyConfig.parse(tree)
    assert "\n" not in str(caught.value)


def test_overrides_reach_into_parts(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text("synthetic: {people: 5}\ngeometry: null\n")
    config = CloudStudyConfig.read(file, ["synthetic.people=7", "costly=[5]", "degrees=6", "pictures=2"])
    assert config.synthetic is not None and config.synthetic.people == 7
    assert config.costly == (5,) and config.costly_degrees == [5]
    assert config.degrees == (1, 2, 3, 4, 5, 6)
    for bad in ("people", "synthetic.people.x=3", "degrees=[1"):
        with pytest.raises(UsageError):
            CloudStudyConfig.read(file, [bad])
    with pytest.raises(UsageError, match="cannot be read"):
        CloudStudyConfig.read(tmp_path / "none.yaml")


def test_no_folder_of_this_machine_is_told() -> None:
    config = CloudStudyConfig.parse({"clouds": "/secret/place/scans", "recognisers": ["onnx:/secret/a.onnx"]})
    assert "secret" not in str(config.to_dict())


def test_the_command_checks_and_prints_the_configuration(tmp_path: Path) -> None:
    words = ["pointcloud", "evaluate", "degrees=[3]", "--scans", str(tmp_path), "--morphs", "5", "--judge", "dlib"]
    done = CliRunner().invoke(main, [*words, "-o", str(tmp_path / "out"), "--dry-run"])
    printed = json.loads(done.stdout)
    assert done.exit_code == 0 and printed["dry_run"] and printed["degrees"] == [3]
    assert printed["synthetic"] == {"scans": tmp_path.name, "people": 5, "seed": 0} and printed["clouds"] is None
    done = CliRunner().invoke(main, ["pointcloud", "evaluate", "-o", str(tmp_path / "out"), "--morphs", "5"])
    assert done.exit_code == 2 and "give --scans" in done.stderr
