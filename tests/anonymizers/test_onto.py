"""Anonymisers on photos: where they are cut, what comes back, and that keyed ones are undone from what was written."""

from __future__ import annotations

import io
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image as Pillow
from stand_ins import face, noise, photo

from ficgan.anonymizers import ANONYMIZERS, AverageFace, Faces, Traits
from ficgan.anonymizers.basic import obfuscate_blur, obfuscate_overlay
from ficgan.anonymizers.k_same import KSamePixel
from ficgan.anonymizers.modes import cover, cover_all, is_fitted, placement, square
from ficgan.errors import InputError, UsageError
from ficgan.faces import Face


@given(st.floats(0, 219), st.floats(0, 159), st.floats(3, 150), st.floats(0.3, 2), st.booleans())
def test_the_square_holds_what_of_the_face_is_in_the_photo(
    x: float, y: float, size: float, scale: float, stepped: bool
) -> None:
    """x, y: the middle of the face, in the photo."""
    box = np.array([x - size / 2, y - size / 2, x + size / 2, y + size / 2], np.float32)
    x0, y0, side = square(Face(box, np.zeros((5, 2), np.float32), 1), (160, 220), mask_scale=scale, stepped=stepped)
    wanted = 1.3 * scale * size
    assert wanted - 1e-2 <= side <= max(2, (1.2 if stepped else 1) * wanted + 1.01)
    for start, length, middle in zip((x0, y0), (220, 160), (x, y), strict=True):
        if side <= length:
            assert 0 <= start <= length - side
        if scale >= 1:
            assert start <= max(middle - size / 2, 0) + 0.1 and start + side >= min(middle + size / 2, length) - 0.1
        if side > length or side / 2 < middle < length - side / 2:
            assert abs(start + side / 2 - middle) <= 0.51


def test_only_the_square_changes_and_the_input_never() -> None:
    image = photo()
    before = image.copy()
    paste = cover(ANONYMIZERS.make("solid", colour="red"), image, face(60, 40, 50), name="a")
    np.testing.assert_array_equal(image, before)
    x0, y0, side = square(face(60, 40, 50), (160, 220))
    assert side == 65
    want = image.copy()
    want[y0 : y0 + side, x0 : x0 + side] = (255, 0, 0)
    np.testing.assert_array_equal(paste.image, want)
    assert set(np.unique(paste.mask)) == {0, 1} and paste.mask.sum() == side**2


def test_beyond_the_border_edge_pixels_are_repeated_and_landmarks_shift() -> None:
    """A face larger than the photo; the crop is compared with NumPy's own padding."""
    image, seen = photo(40, 50), []

    def spy(faces: Faces) -> np.ndarray:
        seen.append(faces)
        return faces.images

    spy.traits = Traits("spy", "basic", "here")  # type: ignore[attr-defined]
    each = face(-10, -20, 90)
    paste = cover(cast(Any, spy), image, each, name="n")
    np.testing.assert_array_equal(paste.image, image)
    x0, y0, side = square(each, (40, 50))
    assert side == 117
    pad = [(-y0, y0 + side - 40), (-x0, x0 + side - 50), (0, 0)]
    np.testing.assert_array_equal(seen[0].images[0], np.pad(image, pad, mode="edge"))
    np.testing.assert_allclose(seen[0].landmarks[0] + [x0, y0], each.landmarks, atol=1e-4)
    assert seen[0].names == ("n",)


@pytest.mark.parametrize(
    "method",
    [
        ("block-permutation", {"block": 8, "key": "k"}),
        ("pixel-relocation", {"key": "k"}),
        ("pixel-relocation", {"variant": "as_released"}),
    ],
)
@pytest.mark.parametrize(
    "faces", [[face(60, 40, 50)], [face(-15, -5, 40), face(190, 130, 44)], [face(40, 40, 60), face(70, 60, 60)]]
)
def test_keyed_methods_are_undone_from_the_written_file(method: tuple[str, dict[str, Any]], faces: list[Face]) -> None:
    """Also for faces at the border, and for squares that overlap, the last one first."""
    anonymizer, image = ANONYMIZERS.make(method[0], **method[1]), photo()
    out = image.copy()
    for index, each in enumerate(faces):
        cover(anonymizer, out, each, name=str(index)).onto(out)
    buffer = io.BytesIO()
    Pillow.fromarray(out).save(buffer, "PNG")
    found = np.array(Pillow.open(buffer))
    assert (found != image).any()
    for index, each in reversed(list(enumerate(faces))):
        x0, y0, side = square(each, (160, 220))
        part = found[y0 : y0 + side, x0 : x0 + side]
        part[:] = anonymizer.invert(Faces(part[None].copy(), (str(index),)))[0]
    np.testing.assert_array_equal(found, image)


def test_scenes_get_all_boxes_at_once() -> None:
    image, faces = photo(), [face(30, 40, 50), face(130, 60, 40)]
    boxes = [each.box for each in faces]
    blur = cover_all(ANONYMIZERS.make("obfuscation-blur"), image, faces)
    np.testing.assert_array_equal(blur.image, obfuscate_blur(image, boxes)[0])
    changed = (blur.image != image).any(-1)
    assert not (changed & (blur.mask == 0)).any() and (blur.mask[60, 55] > 0.9) and blur.mask[5, 215] == 0
    overlay = cover_all(ANONYMIZERS.make("obfuscation-overlay", colour="red"), image, faces)
    np.testing.assert_array_equal(overlay.image, obfuscate_overlay(image, boxes, "red"))
    assert set(np.unique(overlay.mask)) == {0, 1}


@pytest.mark.parametrize("method", [KSamePixel(k=3), AverageFace()])
def test_methods_with_a_background_are_pasted_softly(method: Any) -> None:
    with pytest.raises(UsageError, match="background"):
        cover(method, photo(), face(60, 40, 60), name="a")
    assert placement(method) == "aligned" and not is_fitted(method)
    fitted, image = method.fit(noise(12)), photo()
    assert is_fitted(fitted)
    paste = cover(fitted, image, face(60, 40, 60), name="a")
    assert ((paste.mask > 0) & (paste.mask < 1)).any() and paste.mask[70, 90] == 1
    np.testing.assert_array_equal(paste.image[paste.mask == 0], image[paste.mask == 0])
    with pytest.raises(InputError):
        cover(fitted, image, Face(face(60, 40, 60).box, np.zeros((5, 2), np.float32), 1), name="a")
