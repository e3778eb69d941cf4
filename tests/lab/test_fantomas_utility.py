"""Fantômas on utility: people's ratings beside reversibility, and the three similarities of appendix E."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from PIL import Image
from texture_world import Textures, write_people

from ficgan.anonymizers import Faces
from ficgan.errors import InputError
from ficgan.faces import get_detector
from ficgan.faces.crops import Alignment, crop
from ficgan.lab.papers import fantomas_utility as use
from ficgan.lab.papers import with_data
from ficgan.lab.papers.fantomas import MethodVerdict
from ficgan.lab.readers import Reader
from ficgan.lab.results import Figure

ASTRONAUT = Path(__file__).parents[2] / "docs" / "astronaut.jpg"


def score(**more: Any) -> dict[str, Any]:
    figure = vars(Figure("naturalness", 0.4, 0.3, 0.5, 9, "votes"))
    rows = [{"label": label, **dict.fromkeys(use.STATEMENTS, figure)} for label in ("clear", "Pixelation")]
    return {"kind": "likert", "conditions": rows, **more}


def test_ratings_stand_beside_reversibility(tmp_path: Path) -> None:
    (tmp_path / "s.json").write_text(json.dumps(score()))
    rated = use.read_ratings(tmp_path / "s.json")
    found = [
        MethodVerdict("s", name, "judge", gain=Figure("reversibility", 0.7, 0.6, 0.8))
        for name in ("Pixelation", "Other")
    ]
    rows = use.ratings_table(found, rated)["rows"]
    assert [row["method"] for row in rows] == ["clear", "Pixelation"]
    assert rows[1]["reversibility"].startswith("0.700") and rows[1]["naturalness"].startswith("0.400")
    assert [path.suffix for path in use.draw_figure_14(found, rated, tmp_path)] == [".png", ".svg"]
    assert use.draw_figure_14(found, {}, tmp_path) == [] and len(use.ratings_table(found, {})["rows"]) == 1


@pytest.mark.parametrize(
    "tree", [[], {"kind": "same person"}, {"kind": "likert"}, score(conditions=[{"label": "x"}]), {}], ids=str
)
def test_other_files_are_no_ratings(tree: Any, tmp_path: Path) -> None:
    (tmp_path / "s.json").write_text(json.dumps(tree))
    with pytest.raises(InputError):
        use.read_ratings(tmp_path / "s.json")


def test_similarities_are_scaled_over_all_methods(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """1 − (d − least)/(most − least) of distances that the test makes up: the mean grey level under each method."""

    class Levels:
        description, reader = "made up", Reader(Textures(), "levels", "1")  # type: ignore[arg-type]

        def distances(self, clear: Faces, shown: Faces) -> dict[str, Any]:
            level = shown.images.mean(axis=(1, 2, 3))
            return {"perceptual": level, "attributes": 2 * level, "landmarks": np.full(len(level), np.nan)}

    monkeypatch.setattr(use, "AppearanceReader", Levels)
    people = write_people(tmp_path / "people", 16, 4, cells=8)
    config = with_data("fantomas", people, aligned=True, size=32, judges=["dlib"])
    config = config.model_copy(update={"methods": [m for m in config.methods if m.label in ("Eye Mask", "Pixelation")]})
    alike, description = use.similarities(config, tmp_path / "out")
    means = {title: row["perceptual"].value for title, row in alike.items()}
    assert all(row["attributes"].value == pytest.approx(row["perceptual"].value) for row in alike.values())
    assert 0 < means["Pixelation"] < means["Eye Mask"] < 1  # a black bar is darker: "nearer" here
    assert all(row["landmarks"].value is None for row in alike.values())
    shown = use.similarity_table(alike, description)
    assert [row["method"] for row in shown["rows"]] == ["Eye Mask", "Pixelation"] and "made up" in shown["note"]


def test_points_and_attributes_of_a_face(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Moved by (4, 3) pixels its six points are 5 away; a user's reader of emotions joins the other attributes."""
    ones = onnx.numpy_helper.from_array(np.eye(64, 7, dtype=np.float32), "w")
    info = [onnx.helper.make_tensor_value_info(n, 1, s) for n, s in (("x", [1, 1, 8, 8]), ("y", [1, 7]))]
    nodes = [onnx.helper.make_node("Flatten", ["x"], ["f"]), onnx.helper.make_node("MatMul", ["f", "w"], ["y"])]
    graph = onnx.helper.make_graph(nodes, "g", info[:1], info[1:], [ones])
    opset = [onnx.helper.make_opsetid("", 17)]
    onnx.save(onnx.helper.make_model(graph, opset_imports=opset, ir_version=9), str(tmp_path / "emotion.onnx"))
    photo = np.asarray(Image.open(ASTRONAUT).convert("RGB"))
    face = get_detector("auto").detect(photo)[0]
    placed = Alignment()
    image = crop(photo, placed.matrix(face.landmarks, 160), 160)
    marks = placed.points(160).astype(np.float32)[None]
    clear = Faces(image[None], ("a",), marks)
    moved = clear.with_images(np.roll(image, (3, 4), (0, 1))[None])
    plain = use.AppearanceReader()
    monkeypatch.setenv("FICGAN_MODELS", str(tmp_path))
    read = use.AppearanceReader()
    assert read.distances(clear, clear)["landmarks"] == 0 == read.distances(clear, clear)["attributes"]
    assert read.distances(clear, moved)["landmarks"] == pytest.approx(5, abs=0.5)
    assert read.description != plain.description
    ethnic, sex, age, emotion = read.attributes(clear)
    assert ethnic.shape == (1, 7) and emotion.shape == (1, 7) and age.shape == (1, 1)
    assert ethnic.sum() == pytest.approx(100, abs=0.1) and (sex.sum(), emotion.sum()) == pytest.approx((100, 100))
