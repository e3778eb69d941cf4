"""Finding faces: the protocol of detectors, and the search by which a network for one scale finds all sizes.

The networks themselves are in `ficgan.faces.detectors`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ficgan.errors import InputError

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
# Pixels the fine pass may have: larger photos are enlarged less, or reduced, but never below the second figure, so that
# huge photos keep their small faces.
_FINE_PIXELS, _FINE_FLOOR = 8e6, 0.5
# Pixels of the thumbnail, for faces that fill the photo, and the height in it from which on a face is taken from it.
_THUMBNAIL_PIXELS, _THUMBNAIL_FACE = 0.1e6, 80.0
_X, _Y = slice(5, None, 2), slice(6, None, 2)


@dataclass(frozen=True, eq=False)
class Face:
    """A face found in a photo.

    Args:
        box: float32 [4], x0, y0, x1, y1 in pixels, inside the photo.
        landmarks: float32 [5, 2], (x, y) in pixels: eye on the viewer's left, eye on the viewer's right, nose tip,
            mouth corner left, mouth corner right. They may lie outside the photo where the face does.
        score: the detector's confidence; comparable within one detector only.
    """

    box: NDArray[np.float32]
    landmarks: NDArray[np.float32]
    score: float


@runtime_checkable
class FaceDetector(Protocol):
    """Finds the faces of an image."""

    name: str

    def detect(self, image: Image) -> list[Face]:
        """Faces of an H×W×3 uint8 RGB image, sorted by score, highest first; the image is not changed."""
        ...


def check_image(image: object) -> Image:
    """The image itself, when it is a non-empty H×W×3 uint8 array."""
    if not isinstance(image, np.ndarray) or image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3:
        what = f"{image.dtype} {image.shape}" if isinstance(image, np.ndarray) else type(image).__name__
        raise InputError(f"An image must be a uint8 array of shape H×W×3 in RGB, got {what}: convert it first.")
    if image.size == 0:
        raise InputError(f"The image is empty ({image.shape[1]}×{image.shape[0]} pixels).")
    return image


@dataclass(frozen=True)
class SearchPlan:
    """Numbers of the search: one look, and more of them where it shows a reason. The figures were chosen on 16
    photos with 429 annotated faces.

    Args:
        enlarge: largest factor of the fine pass, which finds small faces.
        coarse_pixels: pixels of the coarse pass, which finds large faces.
        coarse_face: smallest face height, in pixels of the coarse pass, that is taken from it.
        tile: longest side that is searched at once; larger passes are cut into tiles.
        overlap: of tiles in pixels; larger faces come from the coarse pass.
        refine_face: faces at least this high, in pixels of the photo, get their landmarks from a second look at a
            favourable size; infinite where the network's landmarks do not depend on size.
        faint: share of the threshold above which a weaker find is reported as a place that may be a face; 1: none is.
        film_faint: the same in films, where a weaker find counts only near a face that was seen before or after.
    """

    enlarge: float = 2.0
    coarse_pixels: float = 0.8e6
    coarse_face: float = 24.0
    tile: int = 1536
    overlap: int = 256
    refine_face: float = math.inf
    faint: float = 1.0
    film_faint: float = 1.0

    def passes(self, height: int, width: int) -> list[tuple[float, float]]:
        """(factor, smallest face height in pixels of the pass) for a photo of this size: fine, coarse, thumbnail."""
        pixels = height * width
        fine = min(self.enlarge, max(_FINE_FLOOR, math.sqrt(_FINE_PIXELS / pixels)))
        # The coarse pass is never cut: it is there for the faces that are larger than the overlap of tiles.
        coarse = min(1.0, math.sqrt(self.coarse_pixels / pixels), self.tile / max(height, width))
        thumbnail = min(1.0, math.sqrt(_THUMBNAIL_PIXELS / pixels))
        return [(fine, 0.0), (coarse, self.coarse_face), (thumbnail, _THUMBNAIL_FACE)]


class PyramidDetector:
    """A `FaceDetector` made of a search at a single scale.

    Args:
        search: finds faces in one image at its own scale; sides come as multiples of 32, coordinates go back in pixels.
        threshold: lowest score of a face.
        scale: one factor to search at, or None for the plan's.
        plan: how photos are searched.
        thorough: all looks at every photo; False: one, and the others where it shows a reason.
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

    def once(self) -> PyramidDetector:
        """The same network in one pass at the picture's own size, for films; a scale that was given stays."""
        scale, plan = self._scale or 1.0, replace(self._plan, faint=self._plan.film_faint)
        return PyramidDetector(self.name, self._search, threshold=self.threshold, scale=scale, plan=plan)

    def detect(self, image: Image) -> list[Face]:
        """Faces of an H×W×3 uint8 RGB image, sorted by score, highest first."""
        return self.detect_and_doubt(image)[0]

    def detect_and_doubt(self, image: Image) -> tuple[list[Face], list[Face]]:
        """Faces as of `detect`, and weaker finds elsewhere, which may be faces; the looks are the same."""
        image = check_image(image)
        height, width = image.shape[:2]
        if self._scale:
            rows = self._pass(image, self._scale, 0.0)
        else:
            rows = self._looks(image)
        rows[:, [0, 2]] = rows[:, [0, 2]].clip(0, width)
        rows[:, [1, 3]] = rows[:, [1, 3]].clip(0, height)
        sound = np.isfinite(rows).all(1) & (rows[:, 2] > rows[:, 0]) & (rows[:, 3] > rows[:, 1])
        rows = suppress(rows[sound & (rows[:, 4] >= self.threshold * self._plan.faint)])
        sure = int((rows[:, 4] >= self.threshold).sum())
        for i in np.flatnonzero(rows[:sure, 3] - rows[:sure, 1] >= self._plan.refine_face):
            rows[i, 5:] = self._refine(image, rows[i])
        rows = rows.astype(np.float32)
        faces = [Face(row[:4].copy(), row[5:].reshape(5, 2).copy(), float(row[4])) for row in rows]
        return faces[:sure], faces[sure:]

    def _looks(self, image: Image) -> Rows:
        plan, (height, width) = self._plan, image.shape[:2]
        fine, coarse, thumbnail = plan.passes(height, width)
        if self.thorough:
            return np.concatenate([self._pass(image, *look) for look in (fine, coarse, thumbnail)])
        factor = min(1.0, _FIRST / max(height, width))
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
        import cv2

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
        import cv2

        height, width = image.shape[:2]
        size = max(1, round(width * factor)), max(1, round(height * factor))
        how = cv2.INTER_AREA if factor < 1 else cv2.INTER_CUBIC
        resized = image if size == (width, height) else cv2.resize(image, size, interpolation=how)
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
            rows[:, [0, 2]] += x
            rows[:, [1, 3]] += y
            rows[:, _X] += x
            rows[:, _Y] += y
            found.append(rows)
        rows = np.concatenate(found)
        # Boxes are edges (continuous from 0), landmarks are pixels (centres at integers): only these shift by half.
        sx, sy = width / size[0], height / size[1]
        rows[:, [0, 2]] *= sx
        rows[:, [1, 3]] *= sy
        rows[:, _X] = (rows[:, _X] + 0.5) * sx - 0.5
        rows[:, _Y] = (rows[:, _Y] + 0.5) * sy - 0.5
        return rows


@dataclass
class DetectAt:
    """A detector that sees every picture scaled to fit `size`, width and height in px, its proportions kept.

    `enlarge`: whether a smaller picture is enlarged to it.
    """

    detector: FaceDetector
    size: tuple[int, int]
    enlarge: bool = True
    name: str = field(init=False)

    def __post_init__(self) -> None:
        self.name = self.detector.name

    def detect(self, image: Image) -> list[Face]:
        """Faces in pixels of `image` (uint8 [H,W,3] RGB), as `FaceDetector.detect` gives them."""
        return self.detect_and_doubt(image)[0]

    def detect_and_doubt(self, image: Image) -> tuple[list[Face], list[Face]]:
        """Faces as of `detect`, and the weaker finds of a detector that tells of them."""
        import cv2

        height, width = image.shape[:2]
        factor = min(self.size[0] / width, self.size[1] / height)
        if factor == 1 or (factor > 1 and not self.enlarge):
            return self._look(image)
        target = max(1, round(width * factor)), max(1, round(height * factor))
        how = cv2.INTER_AREA if factor < 1 else cv2.INTER_CUBIC
        small = np.asarray(cv2.resize(image, target, interpolation=how), np.uint8)
        ratio = np.array([width / target[0], height / target[1]], np.float32)
        # Landmarks are pixels, their centres at integers: (x + ½)·ratio − ½. Boxes are edges, continuous from 0.
        shift = (ratio - 1) / 2
        edge = np.array([width, height, width, height], np.float32)

        def enlarged(face: Face) -> Face:
            box = np.clip(face.box * np.tile(ratio, 2), 0, edge).astype(np.float32)
            return replace(face, box=box, landmarks=(face.landmarks * ratio + shift).astype(np.float32))

        sure, possible = self._look(small)
        return [enlarged(face) for face in sure], [enlarged(face) for face in possible]

    def _look(self, image: Image) -> tuple[list[Face], list[Face]]:
        doubting = getattr(self.detector, "detect_and_doubt", None)
        return (self.detector.detect(image), []) if doubting is None else doubting(image)


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

    A box goes when it overlaps a better one by IoU .4, or when .6 of the smaller of the two lies in the other: scales
    and tiles often report one face with boxes of different size.
    """
    rows = rows[np.argsort(-rows[:, 4], kind="stable")]
    area = (rows[:, 2] - rows[:, 0]) * (rows[:, 3] - rows[:, 1])
    alive = np.ones(len(rows), dtype=bool)
    for i in range(len(rows)):
        if not alive[i]:
            continue
        rest = np.flatnonzero(alive[i + 1 :]) + i + 1
        wide = np.minimum(rows[rest, 2], rows[i, 2]) - np.maximum(rows[rest, 0], rows[i, 0])
        high = np.minimum(rows[rest, 3], rows[i, 3]) - np.maximum(rows[rest, 1], rows[i, 1])
        common = wide.clip(0) * high.clip(0)
        same = common >= _OVERLAP_IOU * (area[rest] + area[i] - common)
        same |= common >= _CONTAINED * np.minimum(area[rest], area[i])
        alive[rest[same]] = False
    return rows[alive]
