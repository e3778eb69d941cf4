"""--cover-also: what a detector of the user's finds is covered, in photos and films, and stands in the records."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from clips import frames_of, make_clip
from onnx import TensorProto, helper, numpy_helper
from PIL import Image

from ficgan.cli.deid import deid
from ficgan.cli.review import analyse, render, report
from ficgan.deidentify import Deidentifier
from ficgan.errors import UsageError
from ficgan.faces.covers import ObjectDetector
from ficgan.video.project import Project

RED, GREY = (250, 10, 10), (90, 100, 95)


def red_finder(
    path: Path,
    layout: str = "yolo",
    side: int | None = None,
    *,
    score: float = 1.0,
    shape: tuple[int, ...] | None = None,
    filled: float = 0.1,
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
        made, declared = node("Expand", constant(filled), constant(*shape, dtype=np.int64)), shape
    outputs = [helper.make_tensor_value_info(made, TensorProto.FLOAT, declared)]
    if second:
        outputs.append(helper.make_tensor_value_info(best, TensorProto.FLOAT, None))
    picture = helper.make_tensor_value_info(
        "images", TensorProto.FLOAT, [1, 3, *((side, side) if side else ("height", "width"))]
    )
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


def other_network(path: Path, case: str) -> Path:
    """Something that is no detector of either kind."""
    shapes = {"yolov5": (1, 200, 85), "classifier": (1, 1000), "map": (1, 1, 80, 80), "batch": (2, 5, 80)}
    if case == "text":
        path.write_text("no model")
    elif case == "segments":
        red_finder(path, second=True)
    elif case == "pose":
        red_finder(path, task="pose")
    elif case == "logits":
        red_finder(path, shape=(1, 5, 80), filled=7.0)
    elif case != "missing":
        red_finder(path, shape=shapes[case])
    return path


@pytest.mark.parametrize(
    "case", ["missing", "text", "yolov5", "classifier", "map", "batch", "segments", "pose", "logits"]
)
def test_files_that_are_no_such_detector_are_refused(tmp_path: Path, case: str) -> None:
    with pytest.raises(UsageError, match="plates"):
        ObjectDetector(other_network(tmp_path / "other.onnx", case), "plates")


def test_wrong_options_are_refused_before_any_photo_is_read(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(b"not a photo at all")
    good, other = red_finder(tmp_path / "good.onnx"), other_network(tmp_path / "other.onnx", "yolov5")
    lists = [[f"{good}"], [f"plates={good}:pink"], [f"Plates={good}"], ["plates="], [f"a={good}", f"a={good}"]]
    for words in [*lists, [f"plates={other}"]]:
        options = [f"--cover-also={word}" for word in words]
        summary, code = run(tmp_path / "a.png", "-o", tmp_path / "o.png", "--mode=plain", *options)
        assert code == 2 and not summary.get("failed"), words
    assert list(tmp_path.glob("o*.png")) == []


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


FRAMES, BLIND = 60, range(24, 38)
# The plate is there from one frame to another; the finder does not see its dark red.
THERE = range(10, 52)
DARK = (120, 10, 10)


def place(frame: int) -> tuple[int, int, int, int]:
    return 20 + 4 * frame, 100, 76 + 4 * frame, 124


def drive(path: Path) -> list[np.ndarray]:
    """A film in which a plate crosses the picture and is seen badly for a while."""
    pictures = []
    for frame in range(FRAMES):
        image = street(box=place(frame) if frame in THERE else None)
        if frame in BLIND:
            image[is_red(image)] = DARK
        pictures.append(image)
    make_clip(path, FRAMES, size=(320, 240), pictures=pictures)
    return pictures


@pytest.mark.slow
def test_a_film_is_covered_where_the_detector_was_blind(tmp_path: Path) -> None:
    drive(tmp_path / "in.mp4")
    finder = red_finder(tmp_path / "red.onnx", "end-to-end")
    seen = [bool(ObjectDetector(finder, "x").detect(image)) for image in frames_of(tmp_path / "in.mp4")]
    assert not any(seen[frame] for frame in BLIND) and seen[BLIND.start - 1] and seen[BLIND.stop]
    words = ["--mode=plain", "--verify=off", f"--cover-also=plates={finder}:black"]
    summary, code = run(tmp_path / "in.mp4", "-o", tmp_path / "out.mp4", *words)
    assert (code, summary["objects"], summary["faces"], summary["masked"]) == (0, {"plates": 1}, 0, 0)
    made = frames_of(tmp_path / "out.mp4")
    assert len(made) == FRAMES
    for frame, image in enumerate(made):
        x0, y0, x1, y1 = place(frame)
        if frame in THERE:
            assert not is_red(image).any() and image[y0:y1, x0:x1].max() < 30, frame
        assert np.abs(image[:60].astype(int) - GREY).max() < 12
    record = json.loads((tmp_path / "out.mp4.json").read_text())
    assert record["objects"]["plates"]["tracks"] == 1 and record["objects"]["plates"]["kept"] == 0
    assert record["objects"]["plates"]["covered"] >= len(THERE)
    assert record["tracks"] == record["people"] == 0 and record["faces_by_action"] == {}
    Image.fromarray(street(box=(40, 40, 120, 90))).save(tmp_path / "p.png")
    run(tmp_path / "p.png", "-o", tmp_path / "q.png", "--keep-box=0,0,200,200", *words)
    (tmp_path / "results").mkdir()
    for name in ("out.mp4", "q.png"):
        for file in (name, f"{name}.json"):
            (tmp_path / file).rename(tmp_path / "results" / file)
    assert CliRunner().invoke(report, [str(tmp_path / "results")]).exit_code == 0
    page = (tmp_path / "results/report.html").read_text()
    assert "plates, covered" in page and "plates, left as found" in page and "1 × plates left as found" in page


@pytest.mark.slow
@pytest.mark.parametrize(
    ("option", "kept"), [("--keep-box=0,60,320,200", range(FRAMES)), ("--keep-span=0-0.9", range(27))]
)
def test_what_is_kept_holds_for_objects(tmp_path: Path, option: str, kept: range) -> None:
    drive(tmp_path / "in.mp4")
    words = ["--mode=plain", "--verify=off", f"--cover-also=plates={red_finder(tmp_path / 'red.onnx')}", option]
    assert run(tmp_path / "in.mp4", "-o", tmp_path / "out.mp4", *words)[1] == 0
    shown = [bool(is_red(image).any()) for image in frames_of(tmp_path / "out.mp4")]
    assert shown == [frame in THERE and frame in kept for frame in range(FRAMES)]


@pytest.mark.slow
def test_a_project_holds_what_is_covered(tmp_path: Path) -> None:
    drive(tmp_path / "in.mp4")
    words = ["-o", str(tmp_path / "p"), f"--cover-also=plates={red_finder(tmp_path / 'red.onnx')}:black"]
    assert CliRunner().invoke(analyse, [str(tmp_path / "in.mp4"), *words]).exit_code == 0
    tracks = Project.load(tmp_path / "p").tracks
    assert [track.kind for track in tracks] == ["plates"]
    done = CliRunner().invoke(render, [str(tmp_path / "p"), str(tmp_path / "in.mp4"), "-o", str(tmp_path / "out.mp4")])
    assert json.loads(done.stdout.splitlines()[-1])["objects"] == {"plates": 1}, done.output
    for frame, image in enumerate(frames_of(tmp_path / "out.mp4")):
        assert frame not in THERE or image[100:124, place(frame)[0] : place(frame)[2]].max() < 30


def test_a_plain_cover_holds_the_whole_box_in_every_frame_of_a_film(tmp_path: Path) -> None:
    pictures = drive(tmp_path / "in.mp4")[14:30]
    engine = Deidentifier.from_pretrained(
        mode="plain", verify=False, cover_also=[f"plates={red_finder(tmp_path / 'red.onnx')}"]
    )
    stream = engine.stream(pictures, fps=30.0)
    for result in stream:
        shown = np.abs(result.image.astype(int) - GREY).max(-1) > 6  # plain is the grey beside it
        assert not shown.any(), result.frame.index
    assert stream.objects["plates"]["tracks"] == 1
