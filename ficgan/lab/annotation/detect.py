"""The first stage of annotation: what a face detector finds, image by image, going on where it was interrupted."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import IO, Any

import numpy as np

from ficgan.data.dataset import Blob, decode_rgb, list_blobs
from ficgan.errors import InputError
from ficgan.faces import FaceDetector
from ficgan.lab.annotation.records import Record, box_rows, write_records

__all__ = ["Detected", "detect_set", "listed"]


@dataclass
class Detected:
    """What became of a set.

    Attributes:
        records: one an image that could be read, in the order of their names.
        failed: sentences about images that could not be used.
        resumed: images that an interrupted run had done.
    """

    records: list[Record] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    resumed: int = 0


def listed(images: Path) -> list[Blob]:
    """The images of a folder, tar or zip in the order of their names.

    Raises:
        InputError: none, or two of one name.
    """
    blobs = sorted(list_blobs(images), key=lambda blob: blob.name)
    for first, second in pairwise(blobs):
        if first.name == second.name:
            raise InputError(f"{images} holds {first.name} twice; rename one")
    return blobs


def detect_set(
    images: Path, out: Path, detector: FaceDetector, *, progress: Callable[[int, int, str], None] | None = None
) -> Detected:
    """Detect the faces of all images and write the annotations.

    Each image's record goes to `<out>.part` at once; the same call goes on from it, and the annotations appear when all
    images are done. Damaged images get no record and are tried again by the next run.

    Args:
        images: folder, tar or zip.
        out: the JSON file; replaced if there.
        detector: its `threshold`, where it has one, is recorded.
        progress: called as progress(done, images, name).

    Raises:
        InputError: no image, `out` cannot be written, or another detector's work was begun there.
    """
    blobs = listed(images)
    made_by = {"detector": detector.name, "threshold": getattr(detector, "threshold", None)}
    part, done = out.with_name(f"{out.name}.part"), Detected()
    known = _begun(part, made_by)
    try:
        with part.open("a", encoding="utf-8") as file:
            if not known:
                file.truncate(0)
                _say(file, made_by)
            for number, blob in enumerate(blobs, 1):
                record = known.get((blob.name, blob.size))
                if record is not None:
                    done.resumed += 1
                else:
                    try:
                        record = _look(blob, detector, made_by)
                    except InputError as error:
                        done.failed.append(str(error))
                    else:
                        _say(file, {"size": blob.size, **record.to_json()})
                if record is not None:
                    done.records.append(record)
                if progress is not None:
                    progress(number, len(blobs), blob.name)
    except OSError as error:
        raise InputError(f"{part} cannot be written ({error.strerror}); choose another output") from error
    if not done.records:
        part.unlink(missing_ok=True)
        raise InputError(f"none of {len(blobs)} images of {images} could be used; the first: {done.failed[0]}")
    write_records(out, done.records)
    part.unlink()
    return done


def _look(blob: Blob, detector: FaceDetector, made_by: dict[str, Any]) -> Record:
    image = np.array(decode_rgb(blob))
    faces = detector.detect(image)
    boxes = np.array([face.box for face in faces], np.float64).reshape(-1, 4)
    more = {"width": image.shape[1], "height": image.shape[0], **made_by}
    return Record(blob.name, boxes, tuple(float(face.score) for face in faces), more)


def _begun(part: Path, made_by: dict[str, Any]) -> dict[tuple[str, int], Record]:
    """What an interrupted run left, by name and size; a last line that was cut off is dropped from the file."""
    try:
        text = part.read_bytes()
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise InputError(f"{part} cannot be read ({error.strerror}); remove it") from error
    whole = text[: text.rfind(b"\n") + 1]
    try:
        rows = [json.loads(line) for line in whole.splitlines()]
        if rows and rows[0] != made_by:
            raise InputError(f"{part} was begun with other settings ({rows[0]}); remove it, or detect as before")
        found = {}
        for row in rows[1:]:
            size, name, raw = row.pop("size"), row.pop("file"), row.pop("bboxes")
            found[name, size] = Record(name, box_rows(raw, name), tuple(box["score"] for box in raw), row)
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise InputError(f"{part} is damaged ({error}); remove it to detect anew") from error
    if len(whole) < len(text):
        part.write_bytes(whole)
    return found


def _say(file: IO[str], row: dict[str, Any]) -> None:
    file.write(json.dumps(row, ensure_ascii=False) + "\n")
    file.flush()
