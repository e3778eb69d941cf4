"""--cover-also: what a detector of the user's finds is covered, in photos and films, and stands in the records."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from onnx import TensorProto, helper, numpy_helper
from PIL import Image

from ficgan.cli.deid import deid
from ficgan.faces.objects import ObjectDetector

RED, GREY = (250, 10, 10), (90, 100, 95)


def red_finder(
    path: Path,
    layout: str = "yolo",
    side: int | None = None,
    *,
    score: float = 1.0,
    shape: tuple[int, ...] | None = None,
    task: str = "",
    second: bool = False,
) -> Path:
    """A network that finds the pixels that are bright red, as one box: a YOLOv8 export (eight times), or end-to-end."""
    nodes: list[Any] = []

    def node(op: str, *inputs: str, **attributes: Any) -> str:
        nodes.append(helper.make_node(op, list(inputs), [f"n{len(nodes)}"], **attributes))
        return f"n{len(nodes) - 1}"

    constants: list[Any] = []

    def constant(*value: Any, dtype: Any = np.float32) -> str:
        constants.append(numpy_helper.from_array(np.array(value, dtype), f"c{len(constants)}"))
        return f"c{len(constants) - 1}"

    red, green, blue = (node("Gather", "images", constant(n, dtype=np.int64), axis=1) for n in range(3))
    is_red = node("Greater", node("Sub", node("Sub", red, green), blue), constant(0.7))
    found = node("Cast", is_red, to=TensorProto.FLOAT)  # [1,1,H,W]
    ends = []
    for axis in (2, 3):
        line = node("ReduceMax", found, constant(5 - axis, dtype=np.int64), keepdims=0)  # [1,1,H] or [1,1,W]
        first = node("Cast", node("ArgMax", line, axis=2, keepdims=1), to=TensorProto.FLOAT)
        last = node("Cast", node("ArgMax", line, axis=2, keepdims=1, select_last_index=1), to=TensorProto.FLOAT)
        ends.append((first, node("Add", last, constant(1.0))))
    (y0, y1), (x0, x1) = ends
    best = node("ReduceMax", found, constant(2, 3, dtype=np.int64), keepdims=0)
    best = node("Mul", node("Unsqueeze", best, constant(2, dtype=np.int64)), constant(score))
    if layout == "yolo":
        half = constant(0.5)
        middle = [node("Mul", node("Add", *pair), half) for pair in ((x0, x1), (y0, y1))]
        size = [node("Sub", *pair) for pair in ((x1, x0), (y1, y0))]
        row = node("Concat", *middle, *size, best, axis=1)
        made, declared = node("Expand", row, constant(1, 5, 8, dtype=np.int64)), (1, 5, 8)
    else:
        made = node("Concat", x0, y0, x1, y1, best, node("Mul", best, constant(0.0)), axis=2)
        declared = (1, 1, 6)
    if shape is not None:
        made, declared = node("Expand", constant(0.1), constant(*shape, dtype=np.int64)), shape
    outputs = [helper.make_tensor_value_info(made, TensorProto.FLOAT, declared)]
    if second:
        outputs.append(helper.make_tensor_value_info(best, TensorProto.FLOAT, None))
    picture = helper.make_tensor_value_info("images", TensorProto.FLOAT, [1, 3, *((side, side) if side else ("height", "width"))])
    graph = helper.make_graph(nodes, "red", [picture], outputs, initializer=constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    if task:
        helper.set_model_props(model, {"task": task})
    onnx.save(model, path)
    return path


def street(height: int = 240, width: int = 320, box: tuple[int, int, int, int] | None = None) -> np.ndarray:
    image = np.empty((height, width, 3), np.uint8)
    image[:] = GREY
    if box is not None:
        image[box[1] : box[3], box[0] : box[2]] = RED
    return image


def is_red(image: np.ndarray) -> np.ndarray:
    red, green, blue = image.astype(int).transpose(2, 0, 1)
    return red - green - blue > 60


def run(*words: Any) -> tuple[dict[str, Any], int]:
    result = CliRunner().invoke(deid, [*map(str, words), "--quiet"])
    assert result.exit_code != 1, result.output
    return json.loads(result.stdout.splitlines()[-1]) if result.stdout else {}, result.exit_code


# -- the detector -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", ["yolo", "end-to-end"])
@pytest.mark.parametrize("side", [64, 320, None])
@pytest.mark.parametrize(("height", "width"), [(240, 320), (331, 157), (900, 1900)])
def test_finds_are_in_pixels_of_the_photo(tmp_path: Path, layout: str, side: Any, height: int, width: int) -> None:
    finder = ObjectDetector(red_finder(tmp_path / "red.onnx", layout, side), "plates")
    box = width // 5, height // 2, width // 5 * 3, height // 2 + height // 6
    (found,) = finder.detect(street(height, width, box))
    pixel = max(height, width) / (side or 1280)  # of the network's input, in the photo's
    assert np.abs(found.box - box).max() <= max(1.0, 1.2 * pixel)
    assert (found.landmarks.min(0) == found.box[:2]).all() and (found.landmarks.max(0) == found.box[2:]).all()
    assert finder.detect(street(height, width)) == []


def test_weak_finds_do_not_count(tmp_path: Path) -> None:
    image = street(box=(40, 40, 120, 90))
    for score, number in ((0.2, 0), (0.3, 1)):
        assert len(ObjectDetector(red_finder(tmp_path / "r.onnx", score=score), "x").detect(image)) == number


def test_files_that_are_no_such_detector_are_refused(tmp_path: Path) -> None:
    photo = tmp_path / "a.png"
    Image.fromarray(street()).save(photo)
    (tmp_path / "text.onnx").write_text("no model")
    wrong = {
        "missing": tmp_path / "none.onnx",
        "text": tmp_path / "text.onnx",
        "yolov5": red_finder(tmp_path / "a.onnx", shape=(1, 200, 85)),
        "classifier": red_finder(tmp_path / "b.onnx", shape=(1, 1000)),
        "heat map": red_finder(tmp_path / "c.onnx", shape=(1, 1, 80, 80)),
        "batch of two": red_finder(tmp_path / "d.onnx", shape=(2, 5, 80)),
        "segments": red_finder(tmp_path / "e.onnx", second=True),
        "pose": red_finder(tmp_path / "f.onnx", task="pose"),
        "logits": red_finder(tmp_path / "g.onnx", shape=(1, 5, 80), score=1.0),
    }
    scores = onnx.load(wrong["logits"])
    scores.graph.initializer[-2].CopyFrom(numpy_helper.from_array(np.array([7.0], np.float32), scores.graph.initializer[-2].name))
    onnx.save(scores, wrong["logits"])
    for name, file in wrong.items():
        out = tmp_path / f"out-{name}"
        result = CliRunner().invoke(deid, [str(photo), "-o", str(out), "--mode", "plain", f"--cover-also=plates={file}"])
        assert result.exit_code == 2 and not out.exists(), (name, result.output)
        assert "plates" in result.output and "Traceback" not in result.output
    good = red_finder(tmp_path / "good.onnx")
    for words in (f"{good}", f"plates={good}:pink", f"Plates={good}", "plates=", f"plates={good},b={good}"):
        result = CliRunner().invoke(deid, [str(photo), "-o", str(tmp_path / "o"), "--cover-also", words])
        assert result.exit_code == 2, words
    assert run(photo, "-o", tmp_path / "o", "--mode=plain", f"--cover-also=a={good}", f"--cover-also=a={good}")[1] == 2


# -- photos -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("cover", "colour"), [("", None), (":black", (0, 0, 0)), (":mosaic", None)])
def test_photos(tmp_path: Path, astronaut: np.ndarray, cover: str, colour: Any) -> None:
    image, box = astronaut.copy(), (20, 400, 140, 440)
    image[box[1] : box[3], box[0] : box[2]] = RED
    Image.fromarray(image).save(tmp_path / "in.png")
    red, other = red_finder(tmp_path / "red.onnx"), red_finder(tmp_path / "other.onnx", "end-to-end", score=0.1)
    words = ["--mode=plain", f"--cover-also=plates={red}{cover}", f"--cover-also=screens={other}"]
    summary, code = run(tmp_path / "in.png", "-o", tmp_path / "out.png", *words)
    assert (code, summary["objects"], summary["faces"], summary["no_face"]) == (0, {"plates": 1}, 1, 0)
    made = np.asarray(Image.open(tmp_path / "out.png"))
    inside = made[box[1] : box[3], box[0] : box[2]]
    if colour is not None:
        assert (inside == colour).all()
    assert cover == ":mosaic" or not is_red(inside).any()
    assert (made[box[1] - 3, box[0] + 60] != image[box[1] - 3, box[0] + 60]).any()  # a margin, too
    assert (made[:380, :100] == image[:380, :100]).all()
    record = json.loads((tmp_path / "out.png.json").read_text())
    (entry,) = record["objects"]
    assert entry["name"] == "plates" and entry["action"] == (cover[1:] or "plain")
    assert np.abs(np.array(entry["box"]) - box).max() < 2 and str(tmp_path) not in json.dumps(record)
    assert len(record["faces"]) == 1 and "red.onnx" in json.dumps(record["options"])
