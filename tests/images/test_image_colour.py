"""Grey, transparency, profiles and 16 bits: colours mean after what they meant before."""

from __future__ import annotations

import importlib.util
import io
import struct
import tracemalloc
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from stills import GREY, ORIENTED, PROFILES, SIZE, SPACES, encoded, icc, noise, png, rewrite, shown, smooth, tags_of

from ficgan.errors import InputError
from ficgan.images.photo import Photo, clean_icc, from_rgb, space_of, to_uint8
from ficgan.images.read import as_photo, read_image
from ficgan.images.write import encode_image

HEIF = importlib.util.find_spec("pillow_heif") is not None


def test_transparent_colour_becomes_alpha(tmp_path: Path) -> None:
    pixels = noise(3)
    pixels[:5] = (200, 30, 60)  # the transparent colour, and the colour the face will get
    (tmp_path / "a.png").write_bytes(png(8, 2, pixels, (b"tRNS", struct.pack(">3H", 200, 30, 60))))
    photo, again, mask, _ = rewrite(tmp_path / "a.png")
    assert photo.mode == again.mode == "RGBA"
    assert (again.pixels[mask][:, 3] == 255).all() and (again.pixels[:5, :, 3] == 0).all()


SECRET = b"SECRET of a display" * 20


@pytest.mark.parametrize("suffix", [".jpg", ".png", ".webp", ".tif", ".avif", *[".heic"] * HEIF])
@pytest.mark.parametrize("name", ["sRGB", "P3"])
def test_a_profile_keeps_its_colours_and_nothing_else(tmp_path: Path, suffix: str, name: str) -> None:
    kind = b"text" + bytes(4) + SECRET
    private = {b"mmod": kind, b"cprt": kind, b"dmdd": kind, b"vcgt": kind, b"gamt": kind}
    tags = {tag: content + SECRET for tag, content in tags_of(name).items()}  # behind what is read of them
    profile = bytearray(icc(b"RGB ", tags | private) + SECRET)
    for start, end in ((4, 8), (48, 56), (80, 100)):  # makers, model, digest
        profile[start:end] = (b"SECR" * 5)[: end - start]
    photo = Photo(Path("a.bmp"), "BMP", "RGB", smooth(), icc=bytes(profile))
    (tmp_path / f"a{suffix}").write_bytes(encode_image(tmp_path / f"a{suffix}", photo))
    assert SECRET in (tmp_path / f"a{suffix}").read_bytes() or suffix == ".png"
    _, again, _, target = rewrite(tmp_path / f"a{suffix}")
    assert again.icc is not None and clean_icc(again.icc) == again.icc and SECRET not in target.read_bytes()
    assert np.abs(again.rgb[12:20, 20:36].astype(int) - (200, 30, 60)).max() < 30
    assert np.abs(again.rgb.astype(int) - shown(again.pixels, name)).max() <= 2


@pytest.mark.parametrize("name", list(SPACES)[1:])
def test_profiles_are_applied_and_undone(name: str) -> None:
    photo = Photo(Path("a.tif"), "TIFF", "RGB", noise(3), icc=PROFILES[name])
    assert np.abs(photo.rgb.astype(int) - shown(noise(3), name)).max() <= 2
    assert np.array_equal(photo.merge(photo.rgb.copy()), noise(3))
    for depth in (8, 16):  # inside of the space every colour of sRGB comes back
        back = to_uint8(from_rgb(noise(3).reshape(-1, 3), "RGB", depth, space_of(PROFILES[name])))
        off = np.abs(shown(back.reshape(noise(3).shape), name) - noise(3))
        assert off.mean() < 1 and (off[noise(3).min(2) > 60] <= 3).all()


@pytest.mark.parametrize("profile", [b"SECRET", PROFILES["P3"][:150], PROFILES["P3"].replace(b"RGB ", b"YCbr")])
def test_what_is_no_profile_is_left_out_and_said(tmp_path: Path, profile: bytes) -> None:
    Image.fromarray(smooth()).save(tmp_path / "a.png", icc_profile=profile)
    photo, again, _, _ = rewrite(tmp_path / "a.png")
    assert photo.icc is again.icc is None and len(photo.notes) == 1


def test_colours_without_a_way_back_become_srgb(tmp_path: Path) -> None:
    """A scanner's tables lead from its numbers to colours, and not back; CMYK."""
    ramp = bytes(range(256)) * 3
    matrix = struct.pack(">9l", *(65536 * (i % 4 == 0) for i in range(9)))
    table = bytes(np.stack(np.meshgrid([0, 255], [0, 255], [0, 255], indexing="ij"), -1).astype(np.uint8).tobytes())
    tags = {b"A2B0": b"mft1" + bytes(4) + bytes([3, 3, 2, 0]) + matrix + ramp + table + ramp}
    inks = Image.frombytes("CMYK", SIZE, np.full((SIZE[1], SIZE[0], 4), (90, 60, 30, 40), np.uint8).tobytes())
    tables = encoded(smooth(), "PNG", icc_profile=icc(b"RGB ", tags, b"Lab "))
    buffer = io.BytesIO()
    inks.save(buffer, "TIFF")
    for data, name in ((tables, "a.png"), (buffer.getvalue(), "b.tif")):
        (tmp_path / name).write_bytes(data)
        photo, again, mask, _ = rewrite(tmp_path / name)
        assert photo.mode == "RGB" and photo.icc is None and "become sRGB" in photo.notes[0]
        assert np.array_equal(again.rgb[~mask], photo.rgb[~mask]) and (again.rgb[mask] == (200, 30, 60)).all()
    assert np.abs(read_image("b.tif", data=buffer.getvalue()).rgb.astype(int) - (139, 164, 190)).max() < 3


@pytest.mark.parametrize("names", [(3, 13, 0, 1), (12, 9, 0, 1), (9, 16, 0, 1)])
def test_colours_of_an_unknown_kind_are_refused(names: tuple[int, ...]) -> None:
    with pytest.raises(InputError, match=r"convert|save"):
        read_image("a.png", data=png(8, 2, noise(3), (b"cICP", bytes(names))))


@pytest.mark.parametrize("suffix", [".png", ".avif", *[".heic"] * HEIF])
def test_colours_named_by_numbers_get_a_profile(suffix: str) -> None:
    if suffix == ".png":
        data = png(8, 2, smooth(), (b"cICP", bytes([12, 13, 0, 1])))
    elif suffix == ".avif":
        data = encoded(smooth(), "AVIF", quality=95, subsampling="4:4:4")
        place = data.index(b"colrnclx") + 8
        data = data[:place] + struct.pack(">HH", 12, 13) + data[place + 4 :]
    else:
        import pillow_heif  # type: ignore[import-not-found, unused-ignore]

        buffer = io.BytesIO()
        names = {"color_primaries": 12, "transfer_characteristics": 13, "matrix_coefficients": 6, "full_range_flag": 1}
        pillow_heif.encode("RGB", SIZE, smooth().tobytes(), buffer, quality=95, nclx_profile=names)
        data = buffer.getvalue()
    photo = read_image(f"a{suffix}", data=data)
    assert photo.icc is not None and b"D\0i\0s\0p\0l\0a\0y\0 \0P\x003" in photo.icc
    assert np.abs(photo.rgb.astype(int) - shown(photo.pixels, "P3")).max() <= 2
    again = read_image(f"b{suffix}", data=encode_image(f"b{suffix}", photo))
    assert np.abs(again.rgb.astype(int) - photo.rgb).mean() < 3


@pytest.mark.parametrize("suffix", [".webp", ".avif", ".png", ".tif", ".jpg"])
@pytest.mark.parametrize("mode", ["L", "LA"])
def test_grey_with_a_profile_looks_the_same_in_every_format(mode: str, suffix: str) -> None:
    pixels = np.linspace(20, 230, 40 * 61).reshape(40, 61).astype(np.uint8)
    for depth in (8, 16):
        grey = pixels.astype(np.uint16) * 257 if depth == 16 else pixels
        if mode == "LA":
            grey = np.dstack([grey, np.full_like(grey, 0xF000 if depth == 16 else 240)])
        photo = Photo(Path("a.tif"), "TIFF", mode, grey, icc=clean_icc(GREY))
        if mode == "LA" and suffix == ".jpg":
            with pytest.raises(InputError, match="transparency"):
                encode_image("b.jpg", photo)
            continue
        again = read_image("b" + suffix, data=encode_image(f"b{suffix}", photo, photo.rgb))
        linear = (pixels / 255.0) ** 1.8
        wanted = np.where(linear <= 0.0031308, 12.92 * linear, 1.055 * linear ** (1 / 2.4) - 0.055) * 255
        assert np.abs(photo.rgb - wanted[..., None]).max() <= 2
        assert np.abs(again.rgb.astype(int) - photo.rgb).mean() < 2


def test_a_camera_may_tell_adobe_rgb_in_exif_alone(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x010F], exif.get_ifd(0x8769)[0xA001] = "Camera", 2
    Image.fromarray(noise(3)).save(tmp_path / "a.png", exif=exif)
    photo, again, mask, _ = rewrite(tmp_path / "a.png")
    assert np.abs(photo.rgb.astype(int) - shown(noise(3), "Adobe")).max() <= 2
    assert again.icc == photo.icc and np.array_equal(again.pixels[~mask], noise(3)[~mask])


def test_a_picture_of_pillow_with_a_profile_is_looked_at_through_it() -> None:
    image = Image.fromarray(noise(3))
    image.info["icc_profile"] = PROFILES["ProPhoto"]
    photo = as_photo(image)
    assert np.abs(photo.rgb.astype(int) - shown(noise(3), "ProPhoto")).max() <= 2
    assert np.array_equal(photo.merge(photo.rgb.copy()), noise(3))


def test_sixteen_bits_to_eight_is_exact_rounding() -> None:
    values = np.arange(65536, dtype=np.uint16)
    assert np.array_equal(to_uint8(values), np.round(values.astype(np.float64) / 257).astype(np.uint8))
    tracemalloc.start()
    to_uint8(np.repeat(values, 16))
    assert tracemalloc.get_traced_memory()[1] < 8 << 20  # 2 MiB given, 4 of a copy of 32 bits, 1 of the result
    tracemalloc.stop()
    every = np.arange(256, dtype=np.uint8).repeat(3).reshape(-1, 3)
    assert np.array_equal(to_uint8(from_rgb(every, "RGB", 16, None)), every)


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
    with Image.open(target) as image:  # the file is sound to another reader too
        image.load()
        assert b"DigitalSourceType" in image.info["xmp"]


@pytest.mark.parametrize("colour", [2, 4])
def test_transparency_of_sixteen_bits(tmp_path: Path, colour: int) -> None:
    pixels = noise(*{2: [3], 4: [2]}[colour], bits=16)
    pixels[:5] = 300  # 299 looks the same in 8 bits
    pixels[5:7] = 299
    key = [(b"tRNS", b"\1\x2c" * (1 + colour))] * (colour < 4)
    (tmp_path / "a.png").write_bytes(png(16, colour, pixels.astype(">u2"), *key))
    _, again, mask, _ = rewrite(tmp_path / "a.png")
    flat = pixels.reshape(40, 61, -1)
    alpha = flat[..., 1] if colour == 4 else np.where((flat == 300).all(axis=2), 0, 65535)
    colours = flat[..., :1] if colour == 4 else flat
    assert np.array_equal(again.pixels[..., -1], alpha)
    assert np.array_equal(again.pixels[~mask][:, :3], np.broadcast_to(colours, (40, 61, 3))[~mask])


@pytest.mark.parametrize("layout", [{"byteorder": ">"}, {"compression": "zlib"}, {"tile": (16, 16)}])
@pytest.mark.parametrize("turn", [1, 3, 6])
def test_sixteen_bit_tiff_layouts(tmp_path: Path, layout: dict[str, Any], turn: int) -> None:
    tifffile = pytest.importorskip("tifffile")
    pixels = noise(3, bits=16)
    turned = [(0x0112, "H", 1, turn, True)]
    tifffile.imwrite(tmp_path / "a.tif", pixels, photometric="rgb", extratags=turned, **layout)
    photo = read_image(tmp_path / "a.tif")
    assert photo.depth == 16 and np.array_equal(photo.pixels, ORIENTED[turn](pixels))


@given(
    width=st.integers(1, 9),
    height=st.integers(1, 9),
    mode=st.sampled_from(["L", "LA", "RGB", "RGBA"]),
    deep=st.booleans(),
)
def test_any_size_survives_png_and_tiff(width: int, height: int, mode: str, deep: bool) -> None:
    kind = np.uint16 if deep else np.uint8
    shape = (height, width) if mode == "L" else (height, width, len(mode))
    pixels = np.random.default_rng(width * 16 + height).integers(0, np.iinfo(kind).max + 1, shape, dtype=kind)
    for suffix, format in ((".png", "PNG"), (".tif", "TIFF")):
        photo = Photo(Path(f"a{suffix}"), format, mode, pixels)
        again = read_image("a", data=encode_image(f"a{suffix}", photo, synthetic=True))
        expected = pixels[..., [0, 0, 0, 1]] if mode == "LA" and deep else pixels
        assert again.pixels.dtype == kind and np.array_equal(again.pixels, expected)
