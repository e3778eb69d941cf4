"""Detecting each face once, on the clear image, and cutting it upright: what every method and attacker is given."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ficgan.anonymizers import Faces
from ficgan.data import alignment_name
from ficgan.data.dataset import Blob, decode, decode_rgb
from ficgan.errors import InputError, UsageError
from ficgan.faces import Alignment, DetectAt, Face, FaceDetector, crop, get_detector, transform_points
from ficgan.lab.sets.faceset import FaceSet
from ficgan.lab.sets.kept import Crops, keep, kept
from ficgan.lab.sets.prepared import Prepared

__all__ = ["Quick", "default_detector", "prepare"]

Image = NDArray[np.uint8]
Progress = Callable[[int, int], None]

# On 567 CelebA crops one pass recognises as well as the pyramid of sizes (rank-1 .963 and .965, of both judges); on
# the 720 px portraits of the London set it is a twelfth of the time.
_LOOK_AT = 480
_BYSTANDER = 0.25
_CHUNK = 64


@dataclass
class Quick:
    """A detector that looks once at a reduced picture, and thoroughly where that finds nothing.

    Args:
        detector: what detects; one with a method `once` is asked for a single pass.
        size: pixels of the longest side that is looked at first.
    """

    detector: FaceDetector
    size: int = _LOOK_AT

    def __post_init__(self) -> None:
        once = getattr(self.detector, "once", None)
        self._fast = DetectAt(once() if once else self.detector, (self.size, self.size), enlarge=False)
        self.name = f"{self.detector.name}, one pass at {self.size} px"

    def detect(self, image: Image) -> list[Face]:
        """Faces of a uint8 [H,W,3] RGB image, sorted by score, highest first."""
        return self._fast.detect(image) or self.detector.detect(image)


def default_detector() -> FaceDetector:
    """The best detector that is available here, in one pass at a reduced size, thorough where that finds nothing.

    Raises:
        UsageError: none is available.
    """
    return Quick(get_detector())


def prepare(
    faceset: FaceSet,
    *,
    size: int = 128,
    context: float = 1.0,
    detector: FaceDetector | None = None,
    alignment: Alignment | None = None,
    aligned: bool = False,
    cache: Path | None = None,
    progress: Progress | None = None,
    jobs: int = 1,
) -> Prepared:
    """Aligned crops of a set; images in which no face is acquired are listed, none is dropped in silence.

    Args:
        faceset: of `open_set`.
        size: side S of the crops, pixels.
        context: side of the crop in sides of the face square, from 1 to 4; the face square is then the crop's middle.
            Beyond the photo its edge pixels are repeated.
        detector: None: `default_detector()`; of another one `Quick(get_detector(…))` is the fast form. Two of the same
            name and threshold share a cache.
        alignment: where landmarks lie in the face square; None: the default one.
        aligned: the images are aligned squares already (by `alignment`): they are resized, nothing is detected.
        cache: folder that keeps the crops; the same set, detector and settings are then read from there.
        progress: called as progress(done, total) after each image.
        jobs: threads that read and decode.

    Raises:
        UsageError: a setting that cannot work, or a set that was aligned otherwise.
        InputError: no face was acquired in any image.

    Source: Fantômas, section 7.3: one detection on the clear image, the largest face that is fully in it, upright.
    """
    alignment = alignment or Alignment()
    _check(faceset, size, context, aligned, alignment, jobs)
    region = _region(size, context)
    if not aligned and detector is None:
        detector = default_detector()
    how = {
        "size": size,
        "region": list(region),
        "alignment": alignment_name(alignment),
        "detector": None if detector is None or aligned else detector.name,
    }
    key = _key(faceset, {**how, "threshold": _threshold(detector), "placed": asdict(alignment)})
    crops = kept(cache, key)
    if crops is None:
        crops = _cut(faceset, size, region, None if aligned else detector, alignment, progress, jobs)
        if cache is not None and len(crops.rows):
            keep(cache, key, crops)
    elif progress is not None:
        progress(len(faceset), len(faceset))
    missed = tuple((faceset.names[row], why) for row, why in zip(crops.missed, crops.reasons, strict=True))
    if not len(crops.rows):
        raise InputError(f"no face was acquired in {len(faceset)} images of {faceset.name}; the first: {missed[0][1]}")
    found = faceset.take(crops.rows)
    return Prepared(
        Faces(crops.images, found.names, crops.landmarks, found.people),
        region,
        crops.rows,
        found.attributes,
        found.groups,
        missed,
        tuple(faceset.names[row] for row in crops.rows[crops.cut]),
        {**faceset.facts(), **how},
    )


def _check(faceset: FaceSet, size: int, context: float, aligned: bool, alignment: Alignment, jobs: int) -> None:
    if size < 16:
        raise UsageError(f"size is {size}; give the side of the crops in pixels, at least 16")
    if not 1 <= context <= 4:
        raise UsageError(f"context is {context}; give sides of the face square from 1 to 4")
    if jobs < 1:
        raise UsageError(f"jobs is {jobs}; give at least 1")
    if not len(faceset):
        raise InputError(f"{faceset.name} holds no image; choose less narrowly")
    if aligned and context != 1:
        raise UsageError("aligned images have nothing around the face square; leave out context, or give photos")
    said = alignment_name(alignment)
    if aligned and faceset.alignment not in (None, said):
        raise UsageError(f"{faceset.name} is aligned as {faceset.alignment}, not as {said}; name its own alignment")


def _region(size: int, context: float) -> tuple[int, int, int, int]:
    """The face square in the middle of a crop, as much on one side as on the other."""
    margin = round((size - size / context) / 2)
    return margin, margin, size - margin, size - margin


def _key(faceset: FaceSet, how: dict[str, Any]) -> str:
    """Hash of everything the crops depend on; a file that was written anew counts as another."""
    digest = hashlib.sha256(json.dumps(how, sort_keys=True, default=str).encode())
    digest.update(faceset.digest.encode())
    times = {source: source.stat().st_mtime_ns for source in {blob.source for blob in faceset.blobs} if source.exists()}
    for blob in faceset.blobs:
        digest.update(f"{times.get(blob.source)}\n".encode())
    return digest.hexdigest()


def _threshold(detector: FaceDetector | None) -> object:
    inner = getattr(detector, "detector", detector)
    return getattr(inner, "threshold", None)


def _cut(
    faceset: FaceSet,
    size: int,
    region: tuple[int, int, int, int],
    detector: FaceDetector | None,
    alignment: Alignment,
    progress: Progress | None,
    jobs: int,
) -> Crops:
    """All crops; only reading and decoding are spread over threads, as a detector answers one call at a time."""
    images = np.empty((len(faceset), size, size, 3), np.uint8)
    landmarks = np.empty((len(faceset), 5, 2), np.float32)
    rows: list[int] = []
    cut: list[bool] = []
    missed: list[int] = []
    reasons: list[str] = []
    place = None if detector is not None else alignment.points(size)
    for row, image in enumerate(_decoded(faceset.blobs, None if detector is not None else size, jobs)):
        at = len(rows)
        try:
            if isinstance(image, InputError):
                raise image
            if not np.ptp(image.reshape(-1, 3), axis=0).any():
                raise InputError("all its pixels are of one colour")
            if detector is None:
                images[at], landmarks[at] = image, place
                cut.append(False)
            else:
                face, touches = _main_face(detector.detect(image), image.shape)
                inner = region[2] - region[0]
                matrix = alignment.matrix(face.landmarks, inner)
                matrix[:, 2] += region[:2]
                images[at] = crop(image, matrix, size)
                landmarks[at] = transform_points(matrix, face.landmarks)
                cut.append(touches)
            rows.append(row)
        except InputError as error:
            missed.append(row)
            reasons.append(str(error))
        if progress is not None:
            progress(row + 1, len(faceset))
    found = len(rows)
    return Crops(
        images[:found],
        landmarks[:found],
        np.array(rows, np.int64),
        np.array(cut, bool),
        np.array(missed, np.int64),
        tuple(reasons),
    )


def _main_face(faces: list[Face], shape: tuple[int, ...]) -> tuple[Face, bool]:
    """The largest face fully in the picture, and whether the border cuts it.

    Where the border cuts a face, its landmarks all inside, and every whole one is much smaller, the cut one is taken:
    a bystander in the background is not whom the label names.
    """
    height, width = shape[:2]
    whole: list[Face] = []
    cut: list[Face] = []
    for face in faces:
        x0, y0, x1, y1 = face.box
        inside = (face.landmarks >= -0.5).all() and (face.landmarks <= (width - 0.5, height - 0.5)).all()
        if inside:
            (whole if x0 > 0 and y0 > 0 and x1 < width and y1 < height else cut).append(face)
    if not whole and not cut:
        raise InputError("no face is fully in it" if faces else "no face was found")
    largest, largest_cut = (max(some, key=_area, default=None) for some in (whole, cut))
    if largest is None or (largest_cut is not None and _area(largest) < _BYSTANDER * _area(largest_cut)):
        assert largest_cut is not None
        return largest_cut, True
    return largest, False


def _area(face: Face) -> float:
    x0, y0, x1, y1 = (float(value) for value in face.box)
    return (x1 - x0) * (y1 - y0)


def _decoded(blobs: tuple[Blob, ...], square: int | None, jobs: int) -> Iterator[Image | InputError]:
    """Pixels in order, or why there are none; squares of that side where one is given. Few are held at once."""

    def read(blob: Blob) -> Image | InputError:
        try:
            return np.array(decode_rgb(blob)) if square is None else decode(blob, square)
        except InputError as error:  # said with the image's name in the set: reports are read on other machines
            return InputError(re.sub(r"<_io\.BytesIO[^>]*>", "its content", str(error).replace(blob.where, blob.name)))

    with ThreadPoolExecutor(jobs, thread_name_prefix="decode") as pool:
        for start in range(0, len(blobs), _CHUNK):
            yield from pool.map(read, blobs[start : start + _CHUNK])
