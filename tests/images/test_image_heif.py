"""AVIF, HEIC and HDR: what is cut off stays off; what is said of colours and depth is kept, or its loss is told."""

from __future__ import annotations

import io
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_files import HEIF, NAMED, Case, make
from PIL import Image
from stills import SIZE, noise, png, redden, rewrite

from ficgan.deidentify.publish import new_photo
from ficgan.errors import InputError
from ficgan.images import encode_image, read_image, write_image
from ficgan.images.colour import to_uint8
from ficgan.images.write import conversions
from ficgan.policy import Result

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
        made[entry] |= 0x80 * (name == b"clap" and made[entry] & 0x7F == index)  # a reader must understand it
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


def with_names(suffix: str, names: tuple[int, int]) -> bytes:
    """A picture whose colours are named by primaries and transfer."""
    space = next(space for space, points in NAMED.items() if points == names)
    return make(Case({".avif": "AVIF", ".heic": "HEIC"}[suffix], space, 8, 1, "none"))[0]


@pytest.mark.parametrize("target", [".avif", ".png", ".jpg", ".webp", ".tif", ".heic"])
@pytest.mark.parametrize("names", NAMED.values())
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_named_colours_mean_the_same_in_another_format(
    tmp_path: Path, suffix: str, names: tuple[int, int], target: str
) -> None:
    if target == ".heic" and not HEIF:
        pytest.skip("needs pillow-heif")
    photo = read_image(f"a{suffix}", data=with_names(suffix, names))
    again = read_image(f"b{target}", data=encode_image(f"b{target}", photo, photo.rgb))
    bright = names[1] in (16, 18)
    assert again.cicp == (names if target in (".avif", ".heic", ".png") else None)
    assert np.abs(again.rgb.astype(int) - photo.rgb).mean() < 4
    told = any("white" in note for note in conversions(f"b{target}", photo))
    assert told == (bright and target in (".jpg", ".webp", ".tif"))  # the rest holds what is brighter


def test_a_png_names_its_colours(tmp_path: Path) -> None:
    light = struct.pack(">LL", 10_000_000, 4_000_000)
    for names in ((12, 13), (9, 16), (9, 18), (1, 13)):
        chunks = [(b"cICP", bytes([*names, 0, 1])), (b"cLLI", light)]
        (tmp_path / "a.png").write_bytes(png(16, 2, noise(3, bits=16).astype(">u2"), *chunks))
        photo, again, mask, _ = rewrite(tmp_path / "a.png", overwrite=True)
        assert photo.cicp == again.cicp == names and dict(again.chunks) == dict(chunks)
        assert np.array_equal(photo.pixels[~mask], again.pixels[~mask])
        assert np.abs(again.rgb[mask].astype(int) - (200, 30, 60)).max() <= 1
        assert (photo.rgb == to_uint8(noise(3, bits=16))).all() == (names == (1, 13))
        told = any("HDR10" in note for note in conversions("a.tif", photo))
        assert told and not conversions("a.png", photo)


@pytest.mark.parametrize("names", [(3, 13, 0, 1), (12, 9, 0, 1), (12, 13, 0, 0), (12, 13, 1, 1)])
def test_colours_of_an_unknown_kind_are_refused(names: tuple[int, ...]) -> None:
    with pytest.raises(InputError, match=r"convert|save"):
        read_image("a.png", data=png(8, 2, noise(3), (b"cICP", bytes(names))))


def test_an_avif_may_name_its_colours_in_its_stream_alone() -> None:
    data = make(Case("AVIF", "PQ", 10, 1, "none"))[0]
    assert data.count(b"colrnclx") == 1
    photo = read_image("a.avif", data=data.replace(b"colrnclx", b"freenclx"))
    assert photo.cicp == (9, 16)


@pytest.mark.skipif(not HEIF, reason="needs pillow-heif")
@pytest.mark.parametrize("chroma", [420, 422, 444])
@pytest.mark.parametrize("bits", [8, 10, 12])
def test_a_heic_keeps_chroma_depth_and_hdr10(chroma: int, bits: int) -> None:
    import pillow_heif  # type: ignore[import-not-found, unused-ignore]

    light = {"max_content_light_level": 1000, "max_pic_average_light_level": 400}
    pixels, buffer = noise(3, bits=16) >> 3 << 3, io.BytesIO()
    pillow_heif.encode(
        "RGB;16" if bits > 8 else "RGB",
        SIZE,
        (pixels if bits > 8 else noise(3)).tobytes(),
        buffer,
        quality=90,
        chroma=chroma,
        bit_depth=bits,
        content_light_level=light,
    )
    photo = read_image("a.heic", data=buffer.getvalue())
    assert not photo.notes and photo.depth == (8 if bits == 8 else 16)
    written = encode_image("b.heic", photo, redden(photo)[0])
    info = pillow_heif.open_heif(written).info
    assert (info["chroma"], info["bit_depth"], info["content_light_level"]) == (chroma, bits, light)
    assert written[8:12] == (b"heic" if (chroma, bits) == (420, 8) else b"heix")  # what telephones open
    assert any("HDR10" in note for note in conversions("b.avif", photo))


LOST = {
    "gain map (JPEG)": (".jpg", b"http://ns.adobe.com/hdr-gain-map/1.0/"),
    "gain map (ISO)": (".jpg", b"urn:iso:std:iso:ts:21496:-1"),
    "gain map (telephones)": (".heic", b"urn:com:apple:photo:2020:aux:hdrgainmap"),
    "gain map (AVIF)": (".avif", b"\0\0\0\x15infe\2\0\0\0\0\2\0\0tmap"),
}


@pytest.mark.parametrize("name", LOST)
def test_a_lost_gain_map_is_said(name: str) -> None:
    suffix, mark = LOST[name]
    if suffix == ".heic" and not HEIF:
        pytest.skip("needs pillow-heif")
    format = {".jpg": "JPEG", ".avif": "AVIF", ".heic": "HEIC"}[suffix]
    data = make(Case(format, "none", 8, 1, "none"))[0]
    assert not read_image(f"a{suffix}", data=data).notes
    box = struct.pack(">L4s", len(mark) + 8, b"free") + mark
    data = data[:2] + struct.pack(">HH", 0xFFE1, len(mark) + 2) + mark + data[2:] if suffix == ".jpg" else data + box
    assert "gain map" in " ".join(read_image(f"a{suffix}", data=data).notes)


@pytest.mark.parametrize(("name", "told"), [("a.jpg", True), ("a.avif", True), ("a.png", False), ("a.tif", False)])
def test_what_is_encoded_again_without_need_is_said(name: str, told: bool) -> None:
    format = {".jpg": "JPEG", ".png": "PNG", ".tif": "TIFF raw", ".avif": "AVIF"}[Path(name).suffix]
    data = make(Case(format, "none", 8, 1, "none"))[0]
    for engine in (
        lambda image, key: Result(image, [], {}, None),
        lambda image, key: Result(255 - image, [], {}, None),
    ):
        made = new_photo(engine, data, name, max_pixels=10**6)
        assert any("again" in note for note in made.notes) == told
        told = False  # nothing is to be said of what was changed
