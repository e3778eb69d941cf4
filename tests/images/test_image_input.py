"""What cannot be read is refused in one sentence; what cannot be written leaves nothing behind."""

from __future__ import annotations

import io
import os
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, PngImagePlugin
from stills import encoded, icc, mpo, png, tags_of

from ficgan.errors import InputError
from ficgan.images.read import read_image
from ficgan.images.write import encode_image

PIXELS = np.random.default_rng(0).integers(0, 256, (24, 37, 3), dtype=np.uint8)
FILES = {
    f"a.{format.lower()[:4]}": encoded(PIXELS, format) for format in ("JPEG", "PNG", "WEBP", "TIFF", "BMP", "GIF")
} | {
    "l.webp": encoded(PIXELS, "WEBP", lossless=True),
    "z.tif": encoded(PIXELS, "TIFF", compression="tiff_adobe_deflate"),
}


def one_sentence(error: BaseException, name: object) -> None:
    text = str(error)
    assert text.startswith(str(name)) and "\n" not in text and len(text) < 300 + len(str(name))


@pytest.mark.parametrize("name", FILES)
@given(data=st.data())
def test_truncated_files_are_refused_or_complete(name: str, data: st.DataObject) -> None:
    whole = FILES[name]
    cut = data.draw(st.one_of(st.integers(1, len(whole) - 1), st.integers(len(whole) - 16, len(whole) - 1)))
    try:
        photo = read_image(name, data=whole[:cut])
    except InputError as error:
        one_sentence(error, name)
    else:  # only where nothing but a trailer is missing
        assert np.array_equal(photo.rgb, read_image(name, data=whole).rgb), f"cut at {cut} of {len(whole)}"


def test_paths_that_are_no_files(tmp_path: Path) -> None:
    (tmp_path / "empty.jpg").touch()
    (tmp_path / "text.jpg").write_text("hello")
    os.mkfifo(tmp_path / "pipe.jpg")
    for name in ("none.jpg", "empty.jpg", "text.jpg", "pipe.jpg", ".", "text.jpg/b.jpg", "x" * 300 + ".jpg", "a\0.jpg"):
        with pytest.raises(InputError) as caught:
            read_image(tmp_path / name)
        one_sentence(caught.value, tmp_path / name)


@pytest.mark.parametrize("size", [(10001, 10000), (65535, 65535), (2**31 - 1, 2)])
def test_bombs_are_refused_from_their_header(
    tmp_path: Path, size: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    data = png(8, 2, np.zeros((1, 1, 3), np.uint8))
    header = b"IHDR" + struct.pack(">LLBBBBB", *size, 8, 2, 0, 0, 0)
    data = data[:12] + header + struct.pack(">L", zlib.crc32(header)) + data[33:]
    bits = 16382 | 16382 << 14  # of a lossless WebP: 14 bits for each side
    body = b"VP8L" + struct.pack("<L", 5) + b"\x2f" + struct.pack("<L", bits) + b"\0"
    webp = b"RIFF" + struct.pack("<L", 4 + len(body)) + b"WEBP" + body
    monkeypatch.setattr(Image.Image, "load", lambda self: pytest.fail("decoded"))
    for file in (data, webp):
        with pytest.raises(InputError, match="more than 100 megapixels"):
            read_image("a", data=file)


def test_the_limit_itself_is_accepted_and_can_be_raised(tmp_path: Path) -> None:
    Image.new("L", (40, 25)).save(tmp_path / "a.png")
    assert read_image(tmp_path / "a.png", max_pixels=1000).rgb.shape == (25, 40, 3)
    with pytest.raises(InputError, match="megapixels"):
        read_image(tmp_path / "a.png", max_pixels=999)
    before = Image.MAX_IMAGE_PIXELS
    read_image(tmp_path / "a.png")
    assert before == Image.MAX_IMAGE_PIXELS


@pytest.mark.parametrize("name", ["pages.tif", "frames.gif", "frames.webp", "frames.png"])
def test_several_pictures_are_refused(tmp_path: Path, name: str) -> None:
    first, second = (Image.new("RGB", (40, 30), colour) for colour in ("red", "blue"))
    first.save(tmp_path / name, save_all=True, append_images=[second], duration=100)
    with pytest.raises(InputError, match="2 pictures"):
        read_image(tmp_path / name)


@pytest.mark.parametrize("size", [(30, 20), (60, 40), (60, 50)])
@pytest.mark.parametrize("kind", [0, 0x010001, 0x010002, 0x020001, 0x020002, 0x020003])
def test_of_a_jpeg_with_further_pictures_the_first_is_read(kind: int, size: tuple[int, int]) -> None:
    """Previews, gain maps ("undefined") and pictures that are named but not there; not those of equal rank."""
    whole, gone, broken = mpo(size, kind), mpo(size, kind, whole=False), bytearray(mpo(size, kind))
    broken[broken.index(b"\x01\xb0") + 8] = 77  # that many pictures, by its index
    for data in (whole, gone, bytes(broken)):
        if data is whole and kind >= 0x020000:
            with pytest.raises(InputError, match="2 pictures"):
                read_image("a.jpg", data=data)
            continue
        photo = read_image("a.jpg", data=data)
        assert photo.format == "JPEG" and photo.rgb.shape == (40, 60, 3) and len(photo.notes) == (data is whole)
        assert encode_image("a.jpg", photo).count(b"\xff\xd8\xff") == 1


@pytest.mark.parametrize("long", ["text", "xmp", "icc"])
def test_a_png_with_a_long_text_is_read(tmp_path: Path, long: str) -> None:
    info, more = PngImagePlugin.PngInfo(), {}
    if long == "icc":
        more = {"icc_profile": icc(b"RGB ", tags_of("Adobe") | {b"priv": bytes(3 << 20)})}
    else:
        info.add_itxt("XML:com.adobe.xmp" if long == "xmp" else "Comment", "a" * (3 << 20), zip=True)
    Image.new("RGB", (40, 30), "red").save(tmp_path / "a.png", pnginfo=info, **more)
    photo = read_image(tmp_path / "a.png")
    assert photo.rgb.shape == (30, 40, 3) and not photo.notes
    assert len(encode_image("b.png", photo, keep_metadata=True)) < 2000


def test_tiff_thumbnail_page_is_left_out_and_raw_files_refused(tmp_path: Path) -> None:
    tifffile = pytest.importorskip("tifffile")
    pixels = np.zeros((40, 60, 3), np.uint8)
    with tifffile.TiffWriter(tmp_path / "a.tif") as file:
        file.write(pixels, photometric="rgb")
        file.write(pixels[::4, ::4], photometric="rgb", subfiletype=1)
    photo = read_image(tmp_path / "a.tif")
    assert photo.rgb.shape == pixels.shape and "preview" in photo.notes[0]
    with Image.open(io.BytesIO(encode_image("b.tif", photo))) as image:
        assert image.n_frames == 1  # type: ignore[attr-defined]
    tifffile.imwrite(tmp_path / "raw.dng", pixels[::4, ::4], photometric="rgb", subfiletype=1)
    with pytest.raises(InputError, match="raw"):
        read_image(tmp_path / "raw.dng")
