"""Anonymisers of face crops put to work on photos: which part of the photo they get, and how the result goes back."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import numpy as np

from ficgan.anonymizers.average_face import AverageFace
from ficgan.anonymizers.base import Anonymizer, Faces, Images
from ficgan.anonymizers.k_same import KSameEigen, KSamePixel
from ficgan.anonymizers.obfuscation import (
    ObfuscationBlur,
    ObfuscationOverlay,
    blur_weight,
    obfuscate_blur,
    obfuscate_overlay,
)
from ficgan.errors import UsageError
from ficgan.faces.alignment import Alignment
from ficgan.faces.blend import Paste, crop, nothing, paste_back
from ficgan.faces.detection import Face, check_image

__all__ = ["Square", "aligned_crop", "cover", "cover_all", "is_fitted", "paste_aligned", "placement", "square"]

Square = tuple[int, int, int]
"""x0, y0, side in whole pixels of the photo; it may reach beyond the photo."""

_MARGIN = 1.3
"""Detectors' boxes end at the brow and the chin; this brings hairline and ears into the square."""
_STEP = 2**0.25
"""In films sides are one of these powers: what is drawn for a crop changes with its size, and must not do so often."""


def placement(anonymizer: Anonymizer) -> Literal["square", "aligned", "scene"]:
    """How an anonymiser is put onto a photo.

    Returns:
        "square": an upright square around the face, hard-edged, so that keyed methods can be inverted. "aligned": an
        aligned crop of the background's size, pasted back with a soft edge as generated faces are. "scene": the photo
        itself, its boxes given.
    """
    if isinstance(anonymizer, ObfuscationBlur | ObfuscationOverlay):
        return "scene"
    return "aligned" if isinstance(anonymizer, AverageFace | KSamePixel | KSameEigen) else "square"


def is_fitted(anonymizer: Anonymizer) -> bool:
    """Whether an anonymiser has a background, or needs none."""
    kept = (getattr(anonymizer, name, None) for name in ("background", "mean", "centroids"))
    return "background" not in anonymizer.traits.needs or any(one is not None for one in kept)


def cover(
    anonymizer: Anonymizer, image: Images, face: Face, *, name: str, mask_scale: float = 1.0, stepped: bool = False
) -> Paste:
    """A photo with one face anonymised.

    Args:
        anonymizer: fitted to its background, where it needs one.
        image: uint8 [H,W,3] RGB; not changed.
        face: Its box counts; its landmarks do where the method uses some.
        name: Of the face; what is drawn depends on it.
        mask_scale: Size of the part that is replaced, 1 the usual one.
        stepped: Choose the square's side from a few, see `square`.

    Returns:
        A `Paste`; where its mask is 0 the image is bit-identical to the input.

    Raises:
        UsageError: No background was given, or the face is too small for the method's parameters.
        InputError: The method cannot use these landmarks.
    """
    kind = placement(anonymizer)
    if kind == "scene":
        return cover_all(anonymizer, image, [face], mask_scale=mask_scale)
    if kind == "aligned":
        new = aligned_crop(anonymizer, image, face, name=name)
        return paste_aligned(image, new, face, mask_scale=mask_scale)
    image = check_image(image)
    height, width = image.shape[:2]
    x0, y0, side = square(face, (height, width), mask_scale=mask_scale, stepped=stepped)
    left, top, right, bottom = max(x0, 0), max(y0, 0), min(x0 + side, width), min(y0 + side, height)
    if right <= left or bottom <= top:
        return nothing(image)
    rows, columns = (np.arange(start, start + side) for start in (y0, x0))
    cut = image[rows.clip(0, height - 1)[:, None], columns.clip(0, width - 1)]
    marks = (face.landmarks - np.array([x0, y0])).astype(np.float32)
    new = anonymizer(Faces(cut[None], (name,), marks[None]))[0]
    pixels = np.ascontiguousarray(new[top - y0 : bottom - y0, left - x0 : right - x0])
    return Paste(image, left, top, pixels, np.ones(pixels.shape[:2], np.float32))


def square(face: Face, shape: tuple[int, int], *, mask_scale: float = 1.0, stepped: bool = False) -> Square:
    """The square around a face that is cut at the photo's own resolution.

    It is moved into the photo where it fits: pixels that a keyed method carries beyond the border would be lost.

    Args:
        face: Its box counts.
        shape: Height and width of the photo.
        mask_scale: 1 is 1.3 times the box's longer side.
        stepped: Round the side up to the next power of 2^¼, as for films.
    """
    if not 0.0 < mask_scale <= 4.0:
        raise UsageError(f"The mask scale is {mask_scale}: give a factor above 0 and at most 4.")
    box = np.asarray(face.box, np.float64)
    wanted = _MARGIN * mask_scale * max(float((box[2:] - box[:2]).max()), 1.0)
    if stepped:
        wanted = _STEP ** math.ceil(math.log(wanted, _STEP) - 1e-9)
    side = max(2, math.ceil(wanted - 1e-6))
    corner = np.rint((box[:2] + box[2:]) / 2 - side / 2)
    inside = [
        int(start if side > length or start + side <= 0 or start >= length else min(max(start, 0), length - side))
        for start, length in zip(corner, (shape[1], shape[0]), strict=True)
    ]
    return inside[0], inside[1], side


def aligned_crop(anonymizer: Anonymizer, image: Images, face: Face, *, name: str) -> Images:
    """The anonymised crop [S,S,3] of a face, aligned and of the background's size, for `paste_aligned`.

    Raises:
        UsageError: No background was given.
        InputError: The landmarks are not five distinct points.
    """
    size = _size(anonymizer)
    if size is None:
        raise UsageError(f"{anonymizer.name} needs a background set of other people's faces; call fit first")
    cut = crop(image, Alignment().matrix(face.landmarks, size), size)
    return anonymizer(Faces(cut[None], (name,)))[0]


def paste_aligned(image: Images, new: Images, face: Face, *, mask_scale: float = 1.0) -> Paste:
    """An aligned crop [S,S,3] in the place of a face, with the soft oval of generated faces."""
    return paste_back(image, new, Alignment().matrix(face.landmarks, len(new)), mask_scale=mask_scale)


def cover_all(anonymizer: Anonymizer, image: Images, faces: Sequence[Face], *, mask_scale: float = 1.0) -> Paste:
    """A photo with all its faces obfuscated at once, as the methods made for photos define it.

    The blur is as wide as the largest face wants it, and so is its soft edge: of a face many times smaller much may
    shine through, which the mask says.

    Args:
        anonymizer: One whose `placement` is "scene".
        image: uint8 [H,W,3] RGB; not changed.
        faces: Their boxes count.
        mask_scale: Factor of the boxes' sides.
    """
    image = check_image(image)
    boxes = np.array([face.box for face in faces], np.float64).reshape(-1, 4)
    centres, halves = (boxes[:, :2] + boxes[:, 2:]) / 2, (boxes[:, 2:] - boxes[:, :2]) / 2 * mask_scale
    boxes = np.hstack([centres - halves, centres + halves])
    if isinstance(anonymizer, ObfuscationBlur):
        pixels = obfuscate_blur(image, boxes, anonymizer.variant, anonymizer.radius)
        weight = blur_weight(image.shape[:2], boxes, anonymizer.variant, anonymizer.radius)
    else:
        assert isinstance(anonymizer, ObfuscationOverlay)
        pixels = obfuscate_overlay(image, boxes, anonymizer.colour)
        white = obfuscate_overlay(np.zeros_like(image), boxes, "white")[..., 0]
        weight = np.divide(white, 255, dtype=np.float32)
    return Paste(image, 0, 0, pixels, weight)


def _size(anonymizer: Anonymizer) -> int | None:
    """Side of the background's crops; None where no background was given."""
    if isinstance(anonymizer, AverageFace):
        return None if anonymizer.mean is None else len(anonymizer.mean)
    assert isinstance(anonymizer, KSamePixel | KSameEigen)
    return None if anonymizer.background is None else anonymizer.background.shape[0]
