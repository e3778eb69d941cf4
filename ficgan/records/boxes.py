"""Boxes of faces for annotation tools, as COCO (JSON), from side-cars and projects of films."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ficgan.records.sidecars import Record

if TYPE_CHECKING:
    from ficgan.video.project import Project

# As the viewer sees them.
LANDMARKS = ("left_eye", "right_eye", "nose", "mouth_left", "mouth_right")


class Picture(NamedTuple):
    """A photo or a frame of a film: its name, width and height (px), and annotations of COCO without their numbers."""

    name: str
    size: tuple[int, int]
    boxes: list[dict[str, Any]]


def _annotation(
    box: Sequence[float], landmarks: Any, size: tuple[int, int], attributes: dict[str, str], **more: Any
) -> dict[str, Any] | None:
    """A box cut at the picture's border; None: it lies outside.

    Our pixel centres are at integers, those of the tools half a pixel further on.
    """
    width, height = size
    x0, y0, x1, y1 = (float(value) + 0.5 for value in box)
    x0, y0, x1, y1 = max(0.0, x0), max(0.0, y0), min(float(width), x1), min(float(height), y1)
    if x1 - x0 < 0.5 or y1 - y0 < 0.5:
        return None
    sides = round(x1 - x0, 2), round(y1 - y0, 2)
    return {
        "category_id": 1,
        "iscrowd": 0,
        "segmentation": [],
        "bbox": [round(x0, 2), round(y0, 2), *sides],
        "area": round(sides[0] * sides[1], 2),
        "keypoints": [v for x, y in landmarks for v in (round(x + 0.5, 2), round(y + 0.5, 2), 2)] or [0] * 15,
        "num_keypoints": len(landmarks),
        "attributes": attributes,
        **more,
    }


def of_records(records: Iterable[Record]) -> tuple[list[Picture], list[str]]:
    """The photos of side-cars, and a sentence for each record that has no boxes to give."""
    pictures, notes = [], []
    for record in records:
        if record.is_film:
            notes.append(f"{record.path}: a film's side-car holds no boxes; name its project folder")
            continue
        size = record.data["size"]
        boxes = [
            _annotation(face["box"], face["landmarks"], size, {"action": face["action"]}, score=float(face["score"]))
            for face in record.faces
        ]
        pictures.append(Picture(record.path, size, list(filter(None, boxes))))
    return pictures, notes


def of_project(project: Project) -> list[Picture]:
    """Every frame of a film with its tracks; frames without a face are there, too."""
    from ficgan.video.tracks import FILLED, PADDED, UNSURE, TrackSet

    origins = {FILLED: "filled", PADDED: "padded", UNSURE: "padded"}
    size, tracks = (project.source.width, project.source.height), TrackSet(project.tracks)
    pictures = []
    for frame in range(len(project.pts)):
        boxes = []
        for track, row in tracks.at(frame):
            if track.kind:
                continue
            attributes = {"origin": origins.get(int(track.origin[row]), "seen"), "person": str(track.person)}
            score, points = round(float(track.scores[row]), 4), track.landmarks[row].tolist()
            boxes.append(_annotation(track.boxes[row], points, size, attributes, score=score, track_id=track.id))
        name = f"{Path(project.source.name).stem}/frame_{frame:06d}.png"
        pictures.append(Picture(name, size, list(filter(None, boxes))))
    return pictures


def coco(pictures: Iterable[Picture]) -> bytes:
    """COCO's object detection with keypoints; `score`, `attributes` and `track_id` are what FiftyOne adds."""
    images: list[dict[str, Any]] = []
    annotations: list[dict[str, Any]] = []
    for number, picture in enumerate(pictures, 1):
        width, height = picture.size
        images.append({"id": number, "file_name": picture.name, "width": width, "height": height})
        for box in picture.boxes:
            annotations.append({"id": len(annotations) + 1, "image_id": number, **box})
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
