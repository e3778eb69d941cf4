"""16 bits per channel come in and go out whole, in every layout and orientation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from stills import noise, png, rewrite

from ficgan.errors import InputError
from ficgan.images import Photo, read_image, write_image


@pytest.mark.parametrize("channels", [3, 4])
@pytest.mark.parametrize("suffix", [".png", ".tif"])
def test_sixteen_bit_colour(tmp_path: Path, suffix: str, channels: int) -> None:
    pixels = noise(channels, bits=16)
    cv2.imwrite(str(tmp_path / f"deep{suffix}"), pixels)  # OpenCV's order is BGR(A)
    photo, _, mask, target = rewrite(tmp_path / f"deep{suffix}", synthetic=True)
    after = cv2.imread(str(target), cv2.IMREAD_UNCHANGED)
    assert photo.depth == 16 and after.shape == pixels.shape and after.dtype == np.uint16
    assert np.array_equal(after[~mask], pixels[~mask])
    assert (after[mask][:, :3] == np.array([60, 30, 200]) * 257).all()
    assert channels == 3 or np.array_equal(after[..., 3], pixels[..., 3])
    with Image.open(target) as image:  # the spliced file is sound to another reader too
        image.load()
        assert b"DigitalSourceType" in image.info["xmp"]


def test_sixteen_bit_grey_with_alpha_png(tmp_path: Path) -> None:
    pixels = noise(2, bits=16)
    (tmp_path / "a.png").write_bytes(png(16, 4, pixels.astype(">u2")))
    photo, again, mask, _ = rewrite(tmp_path / "a.png")
    assert photo.mode == "RGBA" and np.array_equal(photo.pixels, pixels[..., [0, 0, 0, 1]])
    assert np.array_equal(again.pixels[..., 3], pixels[..., 1])
    assert np.array_equal(again.pixels[~mask], photo.pixels[~mask])


@pytest.mark.parametrize("colour", [0, 2])
def test_a_transparent_number_of_sixteen_bits_becomes_alpha(tmp_path: Path, colour: int) -> None:
    pixels = noise(*[3] * (colour == 2), bits=16)
    pixels[:5] = 300  # 299 looks the same in 8 bits
    pixels[5:7] = 299
    (tmp_path / "a.png").write_bytes(png(16, colour, pixels.astype(">u2"), (b"tRNS", b"\1\x2c" * (1 + colour))))
    _, again, mask, _ = rewrite(tmp_path / "a.png")
    wanted = np.where((pixels == 300).reshape(40, 61, -1).all(axis=2), 0, 65535)
    assert np.array_equal(again.pixels[..., -1], wanted)
    assert np.array_equal(again.pixels[~mask][:, :3], np.broadcast_to(pixels.reshape(40, 61, -1), (40, 61, 3))[~mask])


@pytest.mark.parametrize("layout", [{"byteorder": ">"}, {"compression": "zlib"}, {"tile": (16, 16)}])
def test_sixteen_bit_tiff_layouts(tmp_path: Path, layout: dict[str, Any]) -> None:
    tifffile = pytest.importorskip("tifffile")
    pixels = noise(3, bits=16)
    tifffile.imwrite(tmp_path / "a.tif", pixels, photometric="rgb", **layout)
    photo = read_image(tmp_path / "a.tif")
    assert photo.depth == 16 and np.array_equal(photo.pixels, pixels)


def test_sixteen_bit_planes_are_refused_because_they_decode_to_noise(tmp_path: Path) -> None:
    tifffile = pytest.importorskip("tifffile")
    planes = np.moveaxis(noise(3, bits=16), 2, 0).copy()
    tifffile.imwrite(tmp_path / "a.tif", planes, photometric="rgb", planarconfig="separate")
    with pytest.raises(InputError, match="planes"):
        read_image(tmp_path / "a.tif")


def test_white_is_zero_and_one_bit(tmp_path: Path) -> None:
    tifffile = pytest.importorskip("tifffile")
    pixels = noise(bits=16)
    tifffile.imwrite(tmp_path / "a.tif", pixels, photometric="miniswhite")
    assert np.array_equal(read_image(tmp_path / "a.tif").pixels, 65535 - pixels)
    Image.fromarray(noise()).convert("1").save(tmp_path / "b.tif", compression="group4")
    photo, again, mask, _ = rewrite(tmp_path / "b.tif")
    assert np.array_equal(again.pixels[~mask], photo.pixels[~mask]) and set(np.unique(photo.pixels)) == {0, 255}


@given(
    width=st.integers(1, 9),
    height=st.integers(1, 9),
    mode=st.sampled_from(["L", "LA", "RGB", "RGBA"]),
    deep=st.booleans(),
)
def test_any_size_survives_png_and_tiff(tmp_path: Path, width: int, height: int, mode: str, deep: bool) -> None:
    kind = np.uint16 if deep else np.uint8
    shape = (height, width) if mode == "L" else (height, width, len(mode))
    pixels = np.random.default_rng(width * 16 + height).integers(0, np.iinfo(kind).max + 1, shape, dtype=kind)
    for suffix, format in ((".png", "PNG"), (".tif", "TIFF")):
        path = tmp_path / f"a{suffix}"
        write_image(path, Photo(path, format, mode, pixels), overwrite=True, synthetic=True)
        again = read_image(path)
        expected = pixels[..., [0, 0, 0, 1]] if mode == "LA" and deep else pixels
        assert again.pixels.dtype == kind and np.array_equal(again.pixels, expected)
