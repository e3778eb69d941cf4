"""Whose clouds are in a study: names, gallery, probes, target."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from clouds_world import write_people
from PIL import Image

from ficgan.errors import InputError, UsageError
from ficgan.lab.clouds import CloudStudyConfig, open_clouds
from ficgan.lab.clouds.sets import people_of_names


def study(folder: Path, **more: object) -> CloudStudyConfig:
    return CloudStudyConfig.parse({"clouds": str(folder), "prepared": True, **more})


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
    assert clouds.target is not None
    assert not set(clouds.gallery) & set(clouds.probes)
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
    named = open_clouds(study(tmp_path, target="p0"))
    assert named.target is not None and named.scans[named.target].name == "p0/neutral"
    with pytest.raises(UsageError, match="p0"):
        open_clouds(study(tmp_path, target="nobody"))
    assert open_clouds(study(tmp_path, methods=["pmp"])).target is None


def test_photos_are_the_gallery_where_they_are(tmp_path: Path) -> None:
    folder = write_people(tmp_path / "clouds", 3, 100)
    for person in ("p0", "p1", "p2"):
        (tmp_path / "photos" / person).mkdir(parents=True)
        Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(tmp_path / "photos" / person / "a.png")
    clouds = open_clouds(study(folder, photos=str(tmp_path / "photos"), methods=["pmp"]))
    assert len(clouds.photos) == 3 and not clouds.gallery and len(clouds.probes) == 6
    assert clouds.facts()["gallery_kind"] == "photos"


def test_made_people_have_two_scans_each_and_one_is_to_spare() -> None:
    config = CloudStudyConfig.parse({"synthetic": {"people": 3}})
    clouds = open_clouds(config)
    assert len(clouds.scans) == 8 and len(clouds.people) == 3 and len(clouds.probes) == 3
    other = open_clouds(CloudStudyConfig.parse({"synthetic": {"people": 3, "seed": 1}}))
    assert (
        clouds.digest
        != other.digest
        == open_clouds(CloudStudyConfig.parse({"synthetic": {"people": 3, "seed": 1}})).digest
    )


def test_contents_change_the_digest(tmp_path: Path) -> None:
    config = study(write_people(tmp_path, 3, 100))
    before = open_clouds(config).digest
    (tmp_path / "p0_smile.ply").write_bytes((tmp_path / "p1_smile.ply").read_bytes())
    assert open_clouds(config).digest != before


def test_too_few_people_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no folder"):
        open_clouds(study(tmp_path / "none"))
    with pytest.raises(InputError, match="no point clouds"):
        open_clouds(study(tmp_path))
    write_people(tmp_path, 2, 100)
    with pytest.raises(InputError, match="at least two people"):
        open_clouds(study(tmp_path))
