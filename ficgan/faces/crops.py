"""Aligned crops: where five landmarks lie in one, cut out of photos and pasted back.

Alignment is a property of a checkpoint: a model sees every face through the `Alignment` it was trained with. Nothing
outside a paste's mask changes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

import cv2
import numpy as np
from numpy.typing import ArrayLike, NDArray

from ficgan.errors import InputError, UsageError
from ficgan.faces.detection import Image, check_image

Points = NDArray[np.float64]  # [N, 2] of (x, y), pixel centres at integers
Matrix = NDArray[np.float64]  # [2, 3] similarity, photo -> crop

AlignmentKind = Literal["template", "ffhq", "canonical"]

# The public template of ArcFace-style recognisers, in a crop of 112 x 112 pixels.
ARCFACE_POINTS: Points = np.array(
    [[38.2946, 51.6963], [73.5318, 51.5014], [56.0252, 71.7366], [41.5493, 92.3655], [70.7299, 92.2041]]
)

# A generic frontal face in units of its eye distance, origin between the eyes.
_FACE: Points = np.array([[-0.5, 0.0], [0.5, 0.0], [0.0, 0.56], [-0.415, 1.02], [0.415, 1.02]])


@dataclass(frozen=True)
class Alignment:
    """Placement of faces in the square crops of a model; eyes as fractions of the crop's side (template only).

    "template" is a least-squares similarity to five points; "ffhq" the oriented square of FFHQ (Karras et al.);
    "canonical" the frame of `ficgan.frame`: its crops are the default template's, and a mesh does the rest.
    """

    kind: AlignmentKind = "template"
    eye_distance: float = 0.37
    eye_y: float = 0.31

    def __post_init__(self) -> None:
        kinds = get_args(AlignmentKind)
        if self.kind not in kinds:
            raise UsageError(f"Unknown alignment kind {self.kind!r}: use one of {', '.join(kinds)}.")
        if not 0.0 < min(self.eye_distance, self.eye_y) <= max(self.eye_distance, self.eye_y) < 1.0:
            raise UsageError("An alignment's eye_distance and eye_y are fractions of the crop's side between 0 and 1.")

    def points(self, size: int) -> Points:
        """Landmarks of an ordinary frontal face in a crop of this side: float64 [5, 2], pixels."""
        if self.kind == "ffhq":
            return transform_points(self.matrix(_FACE, size), _FACE)
        return (_FACE * self.eye_distance + (0.5, self.eye_y)) * size - 0.5

    def matrix(self, landmarks: ArrayLike, size: int) -> Matrix:
        """The similarity float64 [2, 3] that brings landmarks [5, 2] of a photo into a crop of this side."""
        if self.kind == "ffhq":
            return _ffhq_matrix(_as_points(landmarks), size)
        return similarity(landmarks, self.points(size))

    def fits(self, landmarks: ArrayLike) -> bool:
        """Whether landmarks [5, 2] span a face: False where they lie in one point or on a line."""
        try:
            self.matrix(landmarks, 64)
        except InputError:
            return False
        return True

    def face_square(self, size: int) -> Matrix:
        """The similarity [2, 3] from a crop to the square, hairline to chin, that the default template would cut."""
        return similarity(self.points(size), Alignment().points(size))

    def to_dict(self) -> dict[str, Any]:
        """The alignment as plain JSON values, read back by `from_dict`."""
        if self.kind != "template":
            return {"kind": self.kind}
        return {"kind": self.kind, "eye_distance": self.eye_distance, "eye_y": self.eye_y}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Alignment:
        """The alignment described by `to_dict`."""
        try:
            return cls(values["kind"], **{name: value for name, value in values.items() if name != "kind"})
        except (KeyError, TypeError) as error:
            raise UsageError(f"An alignment has kind, eye_distance and eye_y ({error}).") from None


def similarity(src: ArrayLike, dst: ArrayLike) -> Matrix:
    """The least-squares similarity float64 [2, 3] (no reflection) of points [N, 2], N ≥ 2, to others (Umeyama 1991).

    In the plane it is z → a z + b over the complex numbers, where a reflection cannot arise. An InputError where points
    are not finite, coincide, or fit only mirrored.
    """
    p, q = _as_points(src), _as_points(dst)
    if p.shape != q.shape or len(p) < 2:
        raise InputError(f"A similarity needs two equal lists of at least two points, got {p.shape} and {q.shape}.")
    zp, zq = p[:, 0] + 1j * p[:, 1], q[:, 0] + 1j * q[:, 1]
    mean_p, mean_q = zp.mean(), zq.mean()
    zp, zq = zp - mean_p, zq - mean_q
    variance = float(np.vdot(zp, zp).real)
    # Relative bounds: coincident points far from the origin differ by rounding only.
    if variance <= (1e-9 * (1.0 + abs(mean_p))) ** 2 * len(p):
        raise InputError("The points to align coincide: a face needs distinct landmarks.")
    a = np.vdot(zp, zq) / variance
    if abs(a) ** 2 * variance <= 1e-12 * float(np.vdot(zq, zq).real) or a == 0:
        raise InputError("No similarity fits the points: they are mirrored or the target points coincide.")
    return _from_complex(a, mean_q - a * mean_p)


def invert(matrix: ArrayLike) -> Matrix:
    """The inverse of an affine matrix [2, 3]; an InputError where it has none."""
    m = np.asarray(matrix, dtype=np.float64)
    linear = m[:, :2]
    if not abs(np.linalg.det(linear)) > 1e-12 * np.abs(linear).max() ** 2:  # also for NaN
        raise InputError("The alignment matrix is singular: it cannot be inverted.")
    inverse = np.linalg.inv(linear)
    return np.column_stack([inverse, -inverse @ m[:, 2]])


def transform_points(matrix: ArrayLike, points: ArrayLike) -> Points:
    """Points [..., 2] carried by a 2 x 3 matrix, as float64 [..., 2]."""
    m = np.asarray(matrix, dtype=np.float64)
    return np.asarray(points, dtype=np.float64) @ m[:, :2].T + m[:, 2]


def _ffhq_matrix(landmarks: Points, size: int) -> Matrix:
    """The FFHQ square: oriented by eyes and mouth together, centred a tenth of the way from the eyes to the mouth."""
    left, right, _, mouth_left, mouth_right = landmarks
    eyes = (left + right) / 2
    e2e = right - left
    e2m = (mouth_left + mouth_right) / 2 - eyes
    # rot90(e2m) points to the viewer's left on an upright face, so the difference averages both estimates of "right".
    x = e2e - np.array([-e2m[1], e2m[0]])
    norm = math.hypot(*x)
    half = max(2.0 * math.hypot(*e2e), 1.8 * math.hypot(*e2m))
    if norm <= 1e-9 * max(1.0, half) or half <= 1e-9 * (1.0 + float(np.abs(eyes).max())):
        raise InputError("The landmarks span no face: eyes and mouth coincide or cancel.")
    axis = complex(*x) / norm
    centre = complex(*(eyes + 0.1 * e2m))
    # photo -> [-1, 1]^2 is (z - centre) / (half * axis); the crop's range 0..size sits at pixels -.5..size-.5.
    a = size / (2.0 * half * axis)
    return _from_complex(a, complex(size / 2 - 0.5, size / 2 - 0.5) - a * centre)


def _from_complex(a: complex, b: complex) -> Matrix:
    return np.array([[a.real, -a.imag, b.real], [a.imag, a.real, b.imag]], dtype=np.float64)


def _as_points(points: ArrayLike) -> Points:
    array = np.asarray(points, dtype=np.float64)
    if array.ndim != 2 or array.shape[1] != 2:
        raise InputError(f"Points must have shape [N, 2], got {array.shape}.")
    if not np.isfinite(array).all():
        raise InputError("Points must be finite numbers: drop the faces whose landmarks are not.")
    return array


# -- cut and pasted ----------------------------------------------------------------------------------------------------

Mask = NDArray[np.float32]  # [H, W] in [0, 1]

# The pasted oval is a super-ellipse that touches the crop's sides: the default template puts hairline and chin at its
# top and bottom and the cheeks .05 from its sides, so a plain ellipse would leave the temples and the jaw uncovered.
_EXPONENT = 3.5
# Width of the soft edge of the pasted oval, as a fraction of the crop's side, at least one photo pixel.
_FEATHER = 0.08
# Weight of what is around a face and moved with its outline: it is changed, and nothing is hidden by it.
MOVED = 0.02


@dataclass(frozen=True, eq=False)
class Paste:
    """The replacement of a face: a patch of a photo that begins at (x0, y0), to be put into it or into a copy.

    `weight` [h, w] in [0, 1] says how much of each pixel was replaced; where it is 0, `pixels` are the photo's own, and
    where it is `MOVED`, they are the photo's own from beside.
    """

    photo: Image
    x0: int
    y0: int
    pixels: Image
    weight: Mask

    def onto(self, image: Image, mask: Mask | None = None, *, kept: Iterable[ArrayLike] = ()) -> None:
        """Put the patch into the photo or a copy of it, and its weight into a mask [H, W], both in place.

        In `kept` boxes x0, y0, x1, y1 the surroundings of the face do not move.
        """
        pixels, weight = self.pixels, self.weight
        for box in kept:
            x0, y0, x1, y1 = np.rint(np.asarray(box) - np.tile((self.x0, self.y0), 2)).astype(int).clip(0)
            rows, columns = np.nonzero(weight[y0:y1, x0:x1] <= MOVED)
            if len(rows):
                pixels, weight = pixels.copy(), weight.copy()
                pixels[y0 + rows, x0 + columns] = self.region(image)[y0 + rows, x0 + columns]
                weight[y0 + rows, x0 + columns] = 0
        self.region(image)[:] = pixels
        if mask is not None:
            region = self.region(mask)
            np.maximum(region, weight, out=region)

    @property
    def image(self) -> Image:
        """A copy of the photo with the patch in it; where `mask` is 0 bit-identical to the photo."""
        image = self.photo.copy()
        self.onto(image)
        return image

    @property
    def mask(self) -> Mask:
        """float32 [H, W]: the weight, 0 outside the patch."""
        mask = np.zeros(self.photo.shape[:2], dtype=np.float32)
        self.region(mask)[:] = self.weight
        return mask

    def region(self, array: NDArray[Any]) -> NDArray[Any]:
        """The patch's place in an array [H,W,…], not a copy."""
        height, width = self.weight.shape
        return array[self.y0 : self.y0 + height, self.x0 : self.x0 + width]


def mix(photo: Image, x0: int, y0: int, new: Image, weight: Mask) -> Paste:
    """A patch of `new` [h, w, 3] over the photo's own pixels, as far as the weight [h, w] says."""
    height, width = weight.shape
    region = photo[y0 : y0 + height, x0 : x0 + width]
    pixels: Any = cv2.blendLinear(np.ascontiguousarray(new), np.ascontiguousarray(region), weight, 1 - weight)
    return Paste(photo, x0, y0, pixels, weight)


def crop(image: Image, matrix: ArrayLike, size: int) -> Image:
    """The square [size, size, 3] that a similarity [2, 3] brings upright, edge pixels repeated beyond the border."""
    image = check_image(image)
    inverse = invert(matrix)
    matrix = np.asarray(matrix, dtype=np.float64)
    x0, y0, x1, y1 = _bounds(inverse, size, image.shape, margin=4)
    # A crop wholly outside repeats the nearest border.
    x0, y0 = min(x0, image.shape[1] - 1), min(y0, image.shape[0] - 1)
    region = image[y0 : max(y1, y0 + 1), x0 : max(x1, x0 + 1)]
    matrix = matrix @ _translation(x0, y0)
    shrink = 1.0 / math.sqrt(abs(np.linalg.det(matrix[:, :2])))
    if shrink > 1.0:
        region, matrix = _reduced(region, matrix, shrink)
    flags = cv2.INTER_CUBIC if shrink <= 1.0 else cv2.INTER_LINEAR
    result: Any = cv2.warpAffine(region, matrix, (size, size), flags=flags, borderMode=cv2.BORDER_REPLICATE)
    return result


def paste_back(
    image: Image, crop: Image, matrix: ArrayLike, *, mask_scale: float = 1.0, face_square: ArrayLike | None = None
) -> Paste:
    """An aligned crop [S, S, 3] pasted into the photo it came from, in the photo's colours; the photo is not changed.

    `mask_scale` is the size of the pasted oval: 1 covers hairline to chin and both cheeks. It lies in the square that
    `face_square` [2, 3] brings the crop to, see `Alignment.face_square`.
    """
    image, crop = check_image(image), check_image(crop)
    size = crop.shape[0]
    if crop.shape[1] != size:
        raise InputError(f"The crop must be square, got {crop.shape[1]}×{size} pixels.")
    check_mask_scale(mask_scale)
    inverse = invert(matrix)
    x0, y0, x1, y1 = _bounds(inverse, size, image.shape, margin=1)
    if x1 <= x0 or y1 <= y0:
        return nothing(image)
    local = np.asarray(matrix, dtype=np.float64) @ _translation(x0, y0)  # region -> crop
    square = np.vstack([np.eye(2, 3) if face_square is None else np.asarray(face_square, np.float64), [0, 0, 1]])
    shape = (y1 - y0, x1 - x0)
    weight = oval((square @ np.vstack([local, [0, 0, 1]]))[:2], shape, size, mask_scale)
    target = _matched(crop, image, matrix, square[:2], mask_scale)
    grow = math.sqrt(abs(np.linalg.det(inverse[:, :2])))
    if grow < 1.0:
        target, outward = _reduced(target, invert(local), 1.0 / grow)
        local = invert(outward)
    # Lanczos rings at hard edges of a generated face; bicubic is the usual compromise when it grows.
    flags = (cv2.INTER_CUBIC if grow >= 1.0 else cv2.INTER_LINEAR) | cv2.WARP_INVERSE_MAP
    warped = cv2.warpAffine(target, local, (x1 - x0, y1 - y0), flags=flags, borderMode=cv2.BORDER_REPLICATE)
    return mix(image, x0, y0, warped, weight)


def check_mask_scale(mask_scale: float) -> None:
    """A UsageError for sizes of the replaced region that cannot be."""
    if not 0.0 < mask_scale <= 4.0:
        raise UsageError(f"The mask scale is {mask_scale}: give a factor above 0 and at most 4.")


def nothing(image: Image) -> Paste:
    """The patch of a face that lies wholly outside the photo."""
    return Paste(image, 0, 0, image[:0, :0], np.zeros((0, 0), np.float32))


def oval(matrix: ArrayLike, shape: tuple[int, int], size: int, mask_scale: float) -> Mask:
    """The weight [h, w] of a crop of side `size` in a region of the photo: 1 deep inside, exactly 0 from the border on.

    `matrix` [2, 3] brings the region to the crop; an oval of `mask_scale` 1 touches the crop's sides.
    """
    m = np.asarray(matrix, dtype=np.float64) / size
    rows, columns = np.mgrid[: shape[0], : shape[1]].astype(np.float32)
    # Position in the crop, -.5 .. .5 from side to side.
    u = (m[0, 0] * columns + m[0, 1] * rows + (m[0, 2] + 0.5 / size - 0.5)).astype(np.float32)
    v = (m[1, 0] * columns + m[1, 1] * rows + (m[1, 2] + 0.5 / size - 0.5)).astype(np.float32)
    u, v = np.abs(u), np.abs(v)
    radius = (u**_EXPONENT + v**_EXPONENT) ** (1 / _EXPONENT)
    inside = np.minimum(0.5 * mask_scale - radius, 0.5 - np.maximum(u, v))
    edge = max(_FEATHER, math.sqrt(abs(np.linalg.det(m[:, :2]))))  # at least one pixel of the photo
    ramp = (inside / edge).clip(0, 1)
    return (ramp * ramp * (3 - 2 * ramp)).astype(np.float32)


def match_colour(crop: Image, reference: Image, weight: Mask) -> Image:
    """A crop with the weighted mean and spread of another crop's colours, in CIE L*a*b*; all are [S, S, 3] and [S, S].

    Source: Reinhard et al. 2001, without the 5 % brightest and darkest pixels, the spread changed by 1.3 at most.
    """
    if not (weight > 0).any():
        return crop.copy()

    def statistics(lab: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
        low, high = np.percentile(lab[..., 0][weight > 0], (5, 95))
        counted = np.where((lab[..., 0] >= low) & (lab[..., 0] <= high), weight, 0).astype(np.float64)
        if counted.sum() <= 0:
            counted = weight.astype(np.float64)
        mean = np.average(lab.reshape(-1, 3), axis=0, weights=counted.ravel())
        variance = np.average((lab.reshape(-1, 3) - mean) ** 2, axis=0, weights=counted.ravel())
        return mean, np.sqrt(variance)

    lab = cv2.cvtColor(crop.astype(np.float32) / 255, cv2.COLOR_RGB2LAB)
    mean, spread = statistics(lab)
    wanted_mean, wanted_spread = statistics(cv2.cvtColor(reference.astype(np.float32) / 255, cv2.COLOR_RGB2LAB))
    gain = ((wanted_spread + 1.0) / (spread + 1.0)).clip(1 / 1.3, 1.3)
    lab = ((lab - mean) * gain + wanted_mean).astype(np.float32)
    return np.rint(cv2.cvtColor(lab, cv2.COLOR_LAB2RGB).clip(0, 1) * 255).astype(np.uint8)


def _matched(crop_: Image, image: Image, matrix: ArrayLike, square: ArrayLike, mask_scale: float) -> Image:
    """The crop in the colours that the photo has under the mask; pixels beyond the photo's border do not count."""
    size = crop_.shape[0]
    source = crop(image, matrix, size)
    # The middle of the oval is skin; its rim is often hair and background.
    weight = oval(square, (size, size), size, min(1.0, 0.75 * mask_scale))
    rows, columns = np.mgrid[:size, :size]
    points = transform_points(invert(matrix), np.stack([columns, rows], axis=-1))
    height, width = image.shape[:2]
    present = (points >= -0.5).all(-1) & (points[..., 0] <= width - 0.5) & (points[..., 1] <= height - 0.5)
    return match_colour(crop_, source, np.where(present, weight, 0).astype(np.float32))


def _bounds(inverse: Matrix, size: int, shape: tuple[int, ...], *, margin: int) -> tuple[int, int, int, int]:
    """x0, y0, x1, y1 of the part of a photo that a crop sees; empty where it sees none."""
    side = size - 0.5
    corners = transform_points(inverse, [(-0.5, -0.5), (side, -0.5), (side, side), (-0.5, side)])
    low, high = np.floor(corners.min(0)) - margin, np.ceil(corners.max(0)) + margin + 1
    height, width = shape[:2]
    x0, x1 = (int(value) for value in np.clip((low[0], high[0]), 0, width))
    y0, y1 = (int(value) for value in np.clip((low[1], high[1]), 0, height))
    return x0, y0, x1, y1


def _reduced(region: Image, matrix: Matrix, shrink: float) -> tuple[Image, Matrix]:
    """A region reduced by area averaging so that the rest of the matrix hardly shrinks, and the matrix from it."""
    height, width = region.shape[:2]
    small = max(1, math.ceil(width / shrink - 1e-6)), max(1, math.ceil(height / shrink - 1e-6))
    fx, fy = width / small[0], height / small[1]
    reduced: Any = cv2.resize(region, small, interpolation=cv2.INTER_AREA)
    # A reduced pixel x covers the photo's (x + .5) f - .5.
    back = np.array([[fx, 0, 0.5 * fx - 0.5], [0, fy, 0.5 * fy - 0.5], [0, 0, 1]])
    return reduced, matrix @ back


def _translation(x: float, y: float) -> NDArray[np.float64]:
    return np.array([[1.0, 0.0, x], [0.0, 1.0, y], [0.0, 0.0, 1.0]])
