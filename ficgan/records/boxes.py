"""Boxes of faces for annotation tools: COCO (JSON) and CVAT 1.1 (XML), from side-cars and projects of films."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

from ficgan.errors import InputError, UsageError
from ficgan.records.sidecars import Record

if TYPE_CHECKING:
    from ficgan.video.project import Project

__all__ = ["LANDMARKS", "Drawn", "Picture", "coco", "cvat_images", "cvat_video", "of_project", "of_records"]

LANDMARKS = ("left_eye", "right_eye", "nose", "mouth_left", "mouth_right")
"""As the viewer sees them."""
_ATTRIBUTES = ("action", "origin", "person")


@dataclass(frozen=True)
class Drawn:
    """One box, in pixels whose upper left corner is (0, 0), cut at the picture's border."""

    box: tuple[float, float, float, float]
    landmarks: Sequence[tuple[float, float]] = ()
    score: float | None = None
    attributes: tuple[tuple[str, str], ...] = ()
    track: int | None = None


@dataclass(frozen=True)
class Picture:
    """A photo, or a frame of a film."""

    name: str
    size: tuple[int, int]
    boxes: tuple[Drawn, ...]
    frame: int | None = None


def _drawn(box: Sequence[float], landmarks: Any, size: tuple[int, int], **more: Any) -> Drawn | None:
    """Our pixel centres are at integers, those of the tools half a pixel further on."""
    width, height = size
    x0, y0, x1, y1 = (float(value) + 0.5 for value in box)
    x0, y0, x1, y1 = max(0.0, x0), max(0.0, y0), min(float(width), x1), min(float(height), y1)
    if x1 - x0 < 0.5 or y1 - y0 < 0.5:
        return None
    points = tuple((round(float(x) + 0.5, 2), round(float(y) + 0.5, 2)) for x, y in landmarks)
    return Drawn((round(x0, 2), round(y0, 2), round(x1, 2), round(y1, 2)), points, **more)


def of_records(records: Iterable[Record]) -> tuple[list[Picture], list[str]]:
    """The photos of side-cars, and a sentence for each record that has no boxes to give."""
    pictures, notes = [], []
    for record in records:
        if record.is_film:
            notes.append(f"{record.path}: a film's side-car holds no boxes; name its project folder")
            continue
        if (size := record.size) is None:
            notes.append(f"{record.path}: left out, because its size is unknown ({record.problem or 'unreadable'})")
            continue
        boxes = (
            _drawn(
                face["box"],
                _points(face.get("landmarks")),
                size,
                score=_score(face),
                attributes=(("action", str(face["action"])),),
            )
            for face in record.faces
        )
        pictures.append(Picture(record.path, size, tuple(box for box in boxes if box is not None)))
    return pictures, notes


def _points(value: Any) -> list[Any]:
    good = isinstance(value, list) and len(value) == len(LANDMARKS)
    good = good and all(isinstance(point, list) and len(point) == 2 for point in value)
    return value if good and all(type(x) in (int, float) for point in value for x in point) else []


def _score(face: Any) -> float | None:
    score = face.get("score")
    return float(score) if type(score) in (int, float) else None


def of_project(project: Project) -> list[Picture]:
    """Every frame of a film with its tracks; frames without a face are there, too."""
    from ficgan.video.tracks import FILLED, PADDED, TrackSet

    origins = {FILLED: "filled", PADDED: "padded"}
    size, tracks = (project.source.width, project.source.height), TrackSet(project.tracks)
    pictures = []
    for frame in range(len(project.pts)):
        boxes = []
        for track, row in tracks.at(frame):
            attributes = (("origin", origins.get(int(track.origin[row]), "seen")), ("person", str(track.person)))
            boxes.append(
                _drawn(
                    track.boxes[row],
                    track.landmarks[row],
                    size,
                    score=round(float(track.scores[row]), 4),
                    attributes=attributes,
                    track=track.id,
                )
            )
        name = f"{Path(project.source.name).stem}/frame_{frame:06d}.png"
        pictures.append(Picture(name, size, tuple(box for box in boxes if box is not None), frame))
    return pictures


def coco(pictures: Iterable[Picture]) -> bytes:
    """COCO's object detection with keypoints; `score`, `attributes` and `track_id` are what CVAT and FiftyOne add."""
    images: list[dict[str, Any]] = []
    annotations: list[dict[str, Any]] = []
    for number, picture in enumerate(pictures, 1):
        width, height = picture.size
        images.append({"id": number, "file_name": picture.name, "width": width, "height": height})
        for drawn in picture.boxes:
            x0, y0, x1, y1 = drawn.box
            sides = round(x1 - x0, 2), round(y1 - y0, 2)
            annotation: dict[str, Any] = {
                "id": len(annotations) + 1,
                "image_id": number,
                "category_id": 1,
                "iscrowd": 0,
                "segmentation": [],
                "bbox": [x0, y0, *sides],
                "area": round(sides[0] * sides[1], 2),
                "keypoints": [value for point in drawn.landmarks for value in (*point, 2)] or [0] * 15,
                "num_keypoints": len(drawn.landmarks),
                "attributes": dict(drawn.attributes),
            }
            if drawn.score is not None:
                annotation["score"] = drawn.score
            if drawn.track is not None:
                annotation["track_id"] = drawn.track
            annotations.append(annotation)
    skeleton = [[1, 3], [2, 3], [3, 4], [3, 5], [4, 5]]
    category = {"id": 1, "name": "face", "supercategory": "person", "keypoints": LANDMARKS, "skeleton": skeleton}
    tree = {
        "info": {"description": "Faces found by ficgan", "version": "1.0"},
        "licenses": [],
        "images": images,
        "annotations": annotations,
        "categories": [category],
    }
    return json.dumps(tree, separators=(",", ":")).encode() + b"\n"


def cvat_images(pictures: Iterable[Picture]) -> bytes:
    """CVAT for images 1.1."""
    root = _cvat()
    for number, picture in enumerate(pictures):
        width, height = picture.size
        image = ElementTree.SubElement(
            root, "image", id=str(number), name=_plain(picture.name), width=str(width), height=str(height)
        )
        for drawn in picture.boxes:
            _box(image, drawn)
    return _xml(root)


def cvat_video(pictures: Sequence[Picture]) -> bytes:
    """CVAT for video 1.1: a track for every track, with a box in each of its frames and `outside` after its last."""
    if not pictures:
        raise InputError("the project has no frame, so there is nothing to export")
    root = _cvat(size=pictures[0].size, frames=len(pictures))
    tracks: dict[int, list[tuple[int, Drawn]]] = {}
    for frame, picture in enumerate(pictures):
        for drawn in picture.boxes:
            tracks.setdefault(drawn.track or 0, []).append((frame, drawn))
    for number, boxes in sorted(tracks.items()):
        track = ElementTree.SubElement(root, "track", id=str(number), label="face", source="auto")
        for place, (frame, drawn) in enumerate(boxes):
            _box(track, drawn, frame=str(frame), outside="0", keyframe="1")
            gone = frame + 1 < len(pictures) and (place + 1 == len(boxes) or boxes[place + 1][0] != frame + 1)
            if gone:
                _box(track, drawn, frame=str(frame + 1), outside="1", keyframe="1")
    return _xml(root)


def _cvat(size: tuple[int, int] | None = None, frames: int = 0) -> ElementTree.Element:
    root = ElementTree.Element("annotations")
    ElementTree.SubElement(root, "version").text = "1.1"
    task = ElementTree.SubElement(ElementTree.SubElement(root, "meta"), "task")
    ElementTree.SubElement(task, "mode").text = "interpolation" if size else "annotation"
    if size:
        ElementTree.SubElement(task, "size").text = str(frames)
        original = ElementTree.SubElement(task, "original_size")
        ElementTree.SubElement(original, "width").text = str(size[0])
        ElementTree.SubElement(original, "height").text = str(size[1])
    label = ElementTree.SubElement(ElementTree.SubElement(task, "labels"), "label")
    ElementTree.SubElement(label, "name").text = "face"
    attributes = ElementTree.SubElement(label, "attributes")
    for name in _ATTRIBUTES:
        attribute = ElementTree.SubElement(attributes, "attribute")
        for key, value in (
            ("name", name),
            ("mutable", "True"),
            ("input_type", "text"),
            ("default_value", ""),
            ("values", ""),
        ):
            ElementTree.SubElement(attribute, key).text = value
    return root


def _box(parent: ElementTree.Element, drawn: Drawn, **more: str) -> None:
    x0, y0, x1, y1 = (f"{value:.2f}" for value in drawn.box)
    common = {"occluded": "0", "xtl": x0, "ytl": y0, "xbr": x1, "ybr": y1, "z_order": "0"}
    if not more:  # the tracks of a film have their label themselves
        common = {"label": "face", "source": "auto", **common}
    box = ElementTree.SubElement(parent, "box", {**common, **more})
    for name, value in drawn.attributes:
        ElementTree.SubElement(box, "attribute", name=name).text = _plain(value)


def _plain(text: str) -> str:
    """Without what XML cannot hold: control characters, halves of surrogates."""
    return "".join(c if c.isprintable() else "\ufffd" for c in text.encode("utf-8", "backslashreplace").decode())


def _xml(root: ElementTree.Element) -> bytes:
    ElementTree.indent(root, " ")
    return ElementTree.tostring(root, encoding="utf-8", xml_declaration=True) + b"\n"


def encoded(pictures: Sequence[Picture], kind: str) -> bytes:
    """All pictures in one file of a kind, "coco" or "cvat"."""
    if kind == "coco":
        return coco(pictures)
    films = {picture.name.partition("/")[0] for picture in pictures if picture.frame is not None}
    if not films:
        return cvat_images(pictures)
    if len(films) > 1 or any(picture.frame is None for picture in pictures):
        raise UsageError("a file of CVAT holds photos or one film; export each film on its own")
    return cvat_video(pictures)
