"""The configuration of a study of clouds, and whose clouds are in it: names, gallery, probes, target."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from clouds_world import write_people

from ficgan import configs
from ficgan.errors import UsageError
from ficgan.lab.clouds.sets import CloudStudyConfig, open_clouds, people_of_names


def study(folder: Path, **more: object) -> CloudStudyConfig:
    return CloudStudyConfig.parse({"clouds": str(folder), "prepared": True, **more})


def test_the_thesis_protocol_is_packaged() -> None:
    config = CloudStudyConfig.read("pointcloud")
    assert config.synthetic is not None and config.synthetic.people == 200
    assert len(config.methods) * len(config.strengths) == 210
    assert "pointcloud-small" in configs.names("eval") and CloudStudyConfig.read("pointcloud-small").title


@pytest.mark.parametrize(
    ("tree", "key"),
    [
        ({}, "clouds"),
        ({"clouds": "a", "synthetic": {}}, "clouds"),
        ({"clouds": "a", "degres": [1]}, "strengths"),
        ({"synthetic": {"peopel": 3}}, "synthetic.people"),
        ({"clouds": "a", "strengths": [0]}, "strengths"),
        ({"clouds": "a", "strengths": [3, 3]}, "strengths"),
        ({"clouds": "a", "methods": ["smooth-kn"]}, "smooth-knn"),
        ({"clouds": "a", "strengths": [2], "attack": {"strengths": [3]}}, "attack.strengths"),
    ],
)
def test_what_cannot_work_is_one_sentence(tree: dict[str, Any], key: str) -> None:
    with pytest.raises(UsageError, match=key) as caught:
        CloudStudyConfig.parse(tree)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["f1_eyes_closed", "f2_neutral"], [("f1", "eyes_closed"), ("f2", "neutral")]),
        (["anna/neutral", "bert/smile"], [("anna", "neutral"), ("bert", "smile")]),
        (["id_000", "id_001"], [("id_000", ""), ("id_001", "")]),
        (["anna"], [("anna", "")]),
    ],
)
def test_names_tell_people_and_expressions(names: list[str], expected: list[tuple[str, str]]) -> None:
    assert people_of_names(names) == expected


def test_nobody_is_compared_with_their_own_scan(tmp_path: Path) -> None:
    clouds = open_clouds(study(write_people(tmp_path, 4, 100)))
    assert clouds.target is not None and not set(clouds.gallery) & set(clouds.probes)
    away = clouds.scans[clouds.target].person
    assert away not in clouds.people and len(clouds.people) == 3
    enrolled = [clouds.scans[row].person for row in clouds.gallery]
    assert enrolled == sorted(set(enrolled)) and all(clouds.scans[r].expression == "neutral" for r in clouds.gallery)
    assert {clouds.scans[row].person for row in clouds.probes} <= set(enrolled)


def test_the_target_is_whom_one_can_spare(tmp_path: Path) -> None:
    write_people(tmp_path, 3, 100)
    (tmp_path / "p1_smile.ply").unlink()
    clouds = open_clouds(study(tmp_path))
    assert clouds.target is not None and clouds.scans[clouds.target].person == "p1"
    assert open_clouds(study(tmp_path, methods=["pmp"])).target is None


def test_made_people_have_two_scans_each_and_one_is_to_spare() -> None:
    first, again, other = (
        open_clouds(CloudStudyConfig.parse({"synthetic": {"people": 3, "seed": seed}})) for seed in (0, 0, 1)
    )
    assert len(first.scans) == 8 and len(first.people) == 3 and len(first.probes) == 3
    assert first.facts() == again.facts() != other.facts() and first.facts()["kind"] == "made heads"
