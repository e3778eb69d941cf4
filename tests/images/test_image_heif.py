"""AVIF and HEIC: what is cut off stays off, and what the boxes say of colours and depth is kept or told."""

from __future__ import annotations

import importlib.util
import io
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from ficgan.errors import InputError
from ficgan.images import read_image, write_image

HEIF = importlib.util.find_spec("pillow_heif") is not None
SUFFIXES = [".avif", pytest.param(".heic", marks=pytest.mark.skipif(not HEIF, reason="needs pillow-heif"))]


def coded(suffix: str, pixels: np.ndarray, **options: Any) -> bytes:
    """An AVIF or HEIC of uint8 [H,W,3] with all of its colours."""
    buffer, exif = io.BytesIO(), Image.Exif()
    exif[0x0112] = options.pop("orientation", 1)
    options = {"exif": exif.tobytes(), "quality": 95, "subsampling": "4:4:4", **options}
    if suffix == ".heic":
        import pillow_heif  # type: ignore[import-not-found, unused-ignore]

        pillow_heif.encode("RGB", pixels.shape[1::-1], pixels.tobytes(), buffer, **options)
    else:
        Image.fromarray(pixels).save(buffer, "AVIF", **options)
    return buffer.getvalue()


def with_box(suffix: str, pixels: np.ndarray, name: bytes, content: bytes, **options: Any) -> bytes:
    """The same with a property of its picture more: it takes the place of a profile of the same length."""
    stand_in = bytes(range(1, len(content) - 3))
    data = coded(suffix, pixels, icc_profile=stand_in, **options)
    assert data.count(b"colrprof" + stand_in) == 1
    place, at, index = data.index(b"colrprof" + stand_in), data.index(b"ipco") + 4, 1
    while at + 4 != place:
        at, index = at + int.from_bytes(data[at : at + 4]), index + 1
    made = bytearray(data.replace(b"colrprof" + stand_in, name + content))
    entries = data.index(b"ipma") + 15  # of the first picture, a byte each
    for entry in range(entries, entries + data[entries - 1]):
        made[entry] |= 0x80 * (made[entry] & 0x7F == index)  # a reader must understand it
    return bytes(made)


def crop(width: int, height: int, x: int, y: int) -> bytes:
    """A clean aperture; x and y are of its centre, from the picture's."""
    return struct.pack(">LLLLlLlL", width, 1, height, 1, x, 1, y, 1)


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("orientation", [1, 6])
@pytest.mark.parametrize("size", [(30, 20), (31, 21)])
def test_what_a_crop_hides_stays_hidden(tmp_path: Path, suffix: str, orientation: int, size: tuple[int, int]) -> None:
    pixels = np.full((64, 96, 3), (255, 0, 0), np.uint8)  # red is hidden
    pixels[10:42, 50:90] = (0, 160, 0)
    data = with_box(suffix, pixels, b"clap", crop(*size, 22, -6), orientation=orientation)
    (tmp_path / f"a{suffix}").write_bytes(data)
    photo = read_image(tmp_path / f"a{suffix}")
    assert photo.rgb.shape[:2] == (size[::-1] if orientation == 1 else size)
    write_image(tmp_path / f"b{suffix}", photo)
    again = read_image(tmp_path / f"b{suffix}")
    assert again.rgb.shape == photo.rgb.shape
    for seen in (photo.rgb, again.rgb):
        assert np.abs(seen.astype(int) - (0, 160, 0)).max() < 40


@pytest.mark.parametrize("content", [crop(200, 20, 0, 0), crop(30, 20, 60, 0), crop(30, 0, 0, 0)])
def test_a_crop_outside_of_the_picture_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.avif").write_bytes(with_box(".avif", np.zeros((64, 96, 3), np.uint8), b"clap", content))
    with pytest.raises(InputError, match="crop"):
        read_image(tmp_path / "a.avif")
