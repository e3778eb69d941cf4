"""Every format goes in and out with its own pixels, depth and coding; only what was changed differs."""

from __future__ import annotations

import io
import itertools
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image, ImageCms

from ficgan.errors import InputError, UsageError
from ficgan.images import Photo, output_suffix, read_image, write_image
from ficgan.images.colour import from_rgb, to_rgb, to_uint8, to_uint16

SIZE = (61, 40)  # width, height: odd, and not square
BOX = (slice(8, 24), slice(16, 40))


def noise(*shape: int, bits: int = 8, seed: int = 0) -> np.ndarray:
    kind = np.uint8 if bits == 8 else np.uint16
    return np.random.default_rng(seed).integers(0, 1 << bits, (SIZE[1], SIZE[0], *shape), dtype=kind)


def smooth() -> np.ndarray:
    """A picture that JPEG and WebP keep well."""
    y, x = np.mgrid[: SIZE[1], : SIZE[0]]
    return np.stack([x * 4, y * 6, 255 - x * 2 - y], axis=2).astype(np.uint8)


def redden(photo: Photo) -> tuple[np.ndarray, np.ndarray]:
    """The photo with a box of another colour in it, and the mask of that box."""
    result, mask = photo.rgb.copy(), np.zeros(photo.rgb.shape[:2], bool)
    mask[BOX] = True
    result[mask] = (200, 30, 60)
    return result, mask


def rewrite(source: Path, **options: Any) -> tuple[Photo, Photo, np.ndarray, Path]:
    photo = read_image(source)
    result, mask = redden(photo)
    target = source.with_name("out" + source.suffix)
    write_image(target, photo, result, **options)
    return photo, read_image(target), mask, target


PILLOW_LOSSLESS: dict[str, tuple[Callable[[], Image.Image], dict[str, Any]]] = {
    "rgb.png": (lambda: Image.fromarray(noise(3)), {}),
    "rgba.png": (lambda: Image.fromarray(noise(4)), {}),
    "rgb.webp": (lambda: Image.fromarray(noise(3)), {"lossless": True}),
    "rgba.webp": (lambda: Image.fromarray(noise(4)), {"lossless": True, "exact": True}),
    "raw.tif": (lambda: Image.fromarray(noise(3)), {}),
    "lzw.tif": (lambda: Image.fromarray(noise(3)), {"compression": "tiff_lzw"}),
    "zip.tiff": (lambda: Image.fromarray(noise(4)), {"compression": "tiff_adobe_deflate"}),
    "bits.tif": (lambda: Image.fromarray(noise(3)), {"compression": "packbits"}),
    "cmyk.tif": (lambda: Image.frombytes("CMYK", SIZE, noise(4).tobytes()), {"compression": "tiff_lzw"}),
    "palette.png": (lambda: Image.fromarray(noise(3)).quantize(32), {}),
}


@pytest.mark.parametrize("name", PILLOW_LOSSLESS)
def test_lossless_files_change_only_inside_the_mask(tmp_path: Path, name: str) -> None:
    make, options = PILLOW_LOSSLESS[name]
    make().save(tmp_path / name, **options)
    photo, again, mask, target = rewrite(tmp_path / name)
    with Image.open(tmp_path / name) as source, Image.open(target) as written:
        assert written.format == source.format
        if source.format == "TIFF":
            assert written.info["compression"] == source.info["compression"]
        before = np.asarray(source.convert(photo.mode) if source.mode == "P" else source)
        after = np.asarray(written)
    assert np.array_equal(before[~mask], after[~mask])
    if photo.mode != "CMYK":
        assert (after[mask][:, :3] == (200, 30, 60)).all()
    else:
        assert np.abs(again.rgb[mask].astype(int) - (200, 30, 60)).max() <= 1
    if photo.mode == "RGBA":
        assert np.array_equal(before[..., 3], after[..., 3])


@pytest.mark.parametrize("suffix", [".png", ".tif"])
@pytest.mark.parametrize("mode", ["L", "LA"])
def test_grey_takes_luminance(tmp_path: Path, suffix: str, mode: str) -> None:
    pixels = noise() if mode == "L" else noise(2)
    Image.frombytes(mode, SIZE, pixels.tobytes()).save(tmp_path / f"grey{suffix}")
    _, _, mask, target = rewrite(tmp_path / f"grey{suffix}")
    with Image.open(target) as written:
        assert written.mode == mode
        after = np.asarray(written)
    grey = Image.new("RGB", (1, 1), (200, 30, 60)).convert("L").getpixel((0, 0))
    values = after if mode == "L" else after[..., 0]
    assert np.array_equal(after[~mask], pixels[~mask])
    assert (values[mask] == grey).all()
    if mode == "LA":
        assert np.array_equal(after[..., 1], pixels[..., 1])


@pytest.mark.parametrize("suffix", [".png", ".tif"])
def test_sixteen_bit_grey(tmp_path: Path, suffix: str) -> None:
    pixels = noise(bits=16)
    Image.fromarray(pixels).save(tmp_path / f"deep{suffix}")
    photo, _, mask, target = rewrite(tmp_path / f"deep{suffix}")
    after = cv2.imread(str(target), cv2.IMREAD_UNCHANGED)
    assert photo.depth == 16 and after.dtype == np.uint16
    assert np.array_equal(after[~mask], pixels[~mask])
    grey = Image.new("RGB", (1, 1), (200, 30, 60)).convert("L").getpixel((0, 0))
    assert isinstance(grey, int) and (after[mask] == grey * 257).all()


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


@pytest.mark.parametrize("code", [1, 5, 8, 32773])
def test_sixteen_bit_tiff_keeps_its_compression(tmp_path: Path, code: int) -> None:
    pixels = np.repeat(noise(bits=16)[..., None], 3, axis=2)
    cv2.imwrite(str(tmp_path / "a.tif"), pixels, [cv2.IMWRITE_TIFF_COMPRESSION, code])
    photo = read_image(tmp_path / "a.tif")
    write_image(tmp_path / "b.tif", photo)
    with Image.open(tmp_path / "b.tif") as image:
        assert image.tag_v2[259] == code  # type: ignore[attr-defined]
    assert np.array_equal(cv2.imread(str(tmp_path / "b.tif"), cv2.IMREAD_UNCHANGED), pixels)


def test_sixteen_bit_tiff_of_many_strips(tmp_path: Path) -> None:
    pixels = np.random.default_rng(1).integers(0, 65536, (700, 90, 3), dtype=np.uint16)
    cv2.imwrite(str(tmp_path / "a.tif"), pixels, [cv2.IMWRITE_TIFF_COMPRESSION, 1, cv2.IMWRITE_TIFF_ROWSPERSTRIP, 7])
    write_image(tmp_path / "b.tif", read_image(tmp_path / "a.tif"), synthetic=True)
    assert np.array_equal(cv2.imread(str(tmp_path / "b.tif"), cv2.IMREAD_UNCHANGED), pixels)
    tifffile = pytest.importorskip("tifffile")
    assert np.array_equal(tifffile.imread(tmp_path / "b.tif"), pixels[..., ::-1])


def test_sixteen_bit_grey_with_alpha_png(tmp_path: Path) -> None:
    pixels = noise(2, bits=16)
    (tmp_path / "a.png").write_bytes(png(16, 4, pixels.astype(">u2")))
    photo, again, mask, _ = rewrite(tmp_path / "a.png")
    assert photo.mode == "RGBA" and np.array_equal(photo.pixels, pixels[..., [0, 0, 0, 1]])
    assert np.array_equal(again.pixels[..., 3], pixels[..., 1])
    assert np.array_equal(again.pixels[~mask], photo.pixels[~mask])


def png(depth: int, colour: int, pixels: np.ndarray, *extra: tuple[bytes, bytes]) -> bytes:
    """A PNG written by hand from its specification, as an oracle that shares no code with what is tested."""

    def chunk(name: bytes, content: bytes) -> bytes:
        return struct.pack(">L", len(content)) + name + content + struct.pack(">L", zlib.crc32(name + content))

    height, width = pixels.shape[:2]
    header = struct.pack(">LLBBBBB", width, height, depth, colour, 0, 0, 0)
    rows = b"".join(b"\0" + row.tobytes() for row in pixels)
    middle = b"".join(chunk(*pair) for pair in extra)
    image = chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + middle + image


@pytest.mark.parametrize("depth", [8, 16])
def test_png_says_the_same_about_its_colours(tmp_path: Path, depth: int) -> None:
    gamma = struct.pack(">L", 45455)
    primaries = struct.pack(">8L", 31270, 32900, 64000, 33000, 30000, 60000, 15000, 6000)
    pixels = noise(3, bits=depth)
    data = png(depth, 2, pixels.astype(">u2" if depth == 16 else "u1"), (b"gAMA", gamma), (b"cHRM", primaries))
    (tmp_path / "a.png").write_bytes(data)
    photo, again, mask, _ = rewrite(tmp_path / "a.png")
    assert dict(photo.chunks) == dict(again.chunks) == {b"gAMA": gamma, b"cHRM": primaries}
    assert np.array_equal(again.pixels[~mask], pixels[~mask])


def test_transparent_colour_becomes_alpha(tmp_path: Path) -> None:
    pixels = noise(3)
    pixels[:5] = (200, 30, 60)  # the transparent colour, and the colour the face will get
    (tmp_path / "a.png").write_bytes(png(8, 2, pixels, (b"tRNS", struct.pack(">3H", 200, 30, 60))))
    photo, again, mask, _ = rewrite(tmp_path / "a.png")
    assert photo.mode == again.mode == "RGBA"
    assert (again.pixels[mask][:, 3] == 255).all()
    assert (again.pixels[:5, :, 3] == 0).all()


@pytest.mark.parametrize("progressive", [False, True])
@pytest.mark.parametrize(("quality", "subsampling"), list(itertools.product([35, 80, 97], [0, 1, 2])))
def test_jpeg_quality_is_kept(tmp_path: Path, quality: int, subsampling: int, progressive: bool) -> None:
    image = Image.fromarray(smooth())
    image.save(tmp_path / "a.jpg", quality=quality, subsampling=subsampling, progressive=progressive)
    photo, again, mask, target = rewrite(tmp_path / "a.jpg")
    with Image.open(tmp_path / "a.jpg") as source, Image.open(target) as written:
        assert written.quantization == source.quantization  # type: ignore[attr-defined]
        assert written.layer == source.layer  # type: ignore[attr-defined]  # components and their sampling
        assert ("progressive" in written.info) == progressive
    far = np.ones_like(mask)
    far[:40, :64] = False  # 16×16 blocks that the box does not touch
    if far.any():
        assert np.abs(again.rgb.astype(int) - photo.rgb.astype(int))[far].mean() < 3


def test_jpeg_unchanged_is_close_to_its_source(tmp_path: Path) -> None:
    Image.fromarray(smooth()).save(tmp_path / "a.jpg", quality=85)
    photo = read_image(tmp_path / "a.jpg")
    write_image(tmp_path / "b.jpg", photo)
    assert np.abs(read_image(tmp_path / "b.jpg").rgb.astype(int) - photo.rgb.astype(int)).mean() < 0.5


def test_noise_of_the_best_quality_is_written(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 2, (300, 400, 3), dtype=np.uint8) * 255
    Image.fromarray(pixels).save(tmp_path / "a.jpg", quality=100, subsampling=0)
    photo = read_image(tmp_path / "a.jpg")
    demanding = Photo(photo.path, "JPEG", "RGB", photo.pixels, {**photo.options, "progressive": True})
    write_image(tmp_path / "b.jpg", demanding)
    assert np.abs(read_image(tmp_path / "b.jpg").rgb.astype(int) - photo.rgb).mean() < 1


@pytest.mark.parametrize("name", ["crowds", "groups"])
def test_real_jpegs_keep_their_look_and_size(shared_data: Path, tmp_path: Path, name: str) -> None:
    sources = sorted((shared_data / "photos" / name).glob("*.jpg"))[:4]
    assert sources
    for source in sources:
        photo = read_image(source)
        data = write_image(tmp_path / source.name, photo)
        assert np.abs(read_image(tmp_path / source.name).rgb.astype(int) - photo.rgb).mean() < 1
        assert 0.85 < len(data) / source.stat().st_size < 1.15


def test_grey_and_rgb_coded_jpeg(tmp_path: Path) -> None:
    Image.fromarray(smooth()[..., 0]).save(tmp_path / "grey.jpg", quality=80)
    Image.fromarray(smooth()).save(tmp_path / "rgb.jpg", quality=80, keep_rgb=True)
    for name, mode in (("grey.jpg", "L"), ("rgb.jpg", "RGB")):
        _, again, _, target = rewrite(tmp_path / name, overwrite=True)
        assert again.mode == mode
        with Image.open(tmp_path / name) as source, Image.open(target) as written:
            assert written.quantization == source.quantization  # type: ignore[attr-defined]
            assert written.info.get("adobe_transform") == source.info.get("adobe_transform")


def test_cmyk_jpeg_stays_cmyk(tmp_path: Path) -> None:
    Image.fromarray(smooth()).convert("CMYK").save(tmp_path / "a.jpg", quality=95)
    photo, again, mask, target = rewrite(tmp_path / "a.jpg")
    with Image.open(target) as written:
        assert written.mode == "CMYK"
        seen = np.asarray(written.convert("RGB"))
    inner = np.zeros_like(mask)
    inner[10:22, 20:36] = True
    assert np.abs(seen[inner].astype(int) - (200, 30, 60)).max() < 25
    assert np.abs(again.rgb.astype(int) - photo.rgb.astype(int))[~mask].mean() < 4


def test_webp_lossy_stays_lossy_and_lossless_lossless(tmp_path: Path) -> None:
    image = Image.fromarray(smooth())
    for lossless in (False, True):
        image.save(tmp_path / "a.webp", lossless=lossless, icc_profile=ImageCms.ImageCmsProfile(srgb()).tobytes())
        write_image(tmp_path / "b.webp", read_image(tmp_path / "a.webp"), overwrite=True)
        assert (b"VP8L" in (tmp_path / "b.webp").read_bytes()) == lossless


def srgb() -> Any:
    return ImageCms.createProfile("sRGB")


@pytest.mark.parametrize("suffix", [".jpg", ".png", ".webp", ".tif"])
def test_icc_is_kept(tmp_path: Path, suffix: str) -> None:
    profile = ImageCms.ImageCmsProfile(srgb()).tobytes()
    Image.fromarray(smooth()).save(tmp_path / f"a{suffix}", icc_profile=profile)
    _, again, _, target = rewrite(tmp_path / f"a{suffix}")
    assert again.icc == profile
    with Image.open(target) as written:
        assert written.info["icc_profile"] == profile


@pytest.mark.parametrize("suffix", [".png", ".tif"])
def test_icc_and_resolution_of_sixteen_bits(tmp_path: Path, suffix: str) -> None:
    profile = ImageCms.ImageCmsProfile(srgb()).tobytes()
    cv2.imwrite(str(tmp_path / f"a{suffix}"), noise(3, bits=16))
    base = read_image(tmp_path / f"a{suffix}")
    photo = Photo(base.path, base.format, base.mode, base.pixels, {**base.options, "dpi": (300.0, 300.0)}, icc=profile)
    write_image(tmp_path / f"b{suffix}", photo)
    again = read_image(tmp_path / f"b{suffix}")
    assert again.icc == profile and np.array_equal(again.pixels, base.pixels)
    assert again.options["dpi"] == pytest.approx((300, 300), abs=0.01)


ORIENTED = {  # what a viewer does with the stored array, from the EXIF specification
    1: lambda a: a,
    2: lambda a: a[:, ::-1],
    3: lambda a: a[::-1, ::-1],
    4: lambda a: a[::-1],
    5: lambda a: np.swapaxes(a, 0, 1),
    6: lambda a: np.rot90(a, -1),
    7: lambda a: np.swapaxes(a[::-1, ::-1], 0, 1),
    8: lambda a: np.rot90(a, 1),
}


@pytest.mark.parametrize("orientation", ORIENTED)
@pytest.mark.parametrize("suffix", [".jpg", ".png", ".webp", ".tif"])
def test_orientation_is_applied_and_forgotten(tmp_path: Path, suffix: str, orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    Image.fromarray(smooth()).save(
        tmp_path / f"a{suffix}", exif=exif, **({"lossless": True} if suffix == ".webp" else {})
    )
    with Image.open(tmp_path / f"a{suffix}") as image:
        stored = smooth() if suffix != ".jpg" else np.asarray(image)
    photo = read_image(tmp_path / f"a{suffix}")
    assert np.array_equal(photo.rgb, ORIENTED[orientation](stored))
    for keep in (False, True):
        write_image(tmp_path / f"b{suffix}", photo, keep_metadata=keep, overwrite=True)
        with Image.open(tmp_path / f"b{suffix}") as written:
            assert written.size == photo.rgb.shape[1::-1]
            assert written.getexif().get(0x0112, 1) == 1


@pytest.mark.parametrize("orientation", ORIENTED)
@pytest.mark.parametrize("suffix", [".png", ".tif"])
def test_orientation_of_sixteen_bits(tmp_path: Path, suffix: str, orientation: int) -> None:
    pixels = noise(3, bits=16)
    if suffix == ".png":
        exif = Image.Exif()
        exif[0x0112] = orientation
        block = exif.tobytes().removeprefix(b"Exif\0\0")
        (tmp_path / "a.png").write_bytes(png(16, 2, pixels.astype(">u2"), (b"eXIf", block)))
    else:
        tifffile = pytest.importorskip("tifffile")
        tifffile.imwrite(tmp_path / "a.tif", pixels, photometric="rgb", extratags=[(274, "H", 1, orientation, True)])
    photo = read_image(tmp_path / f"a{suffix}")
    assert photo.depth == 16 and not photo.notes
    assert np.array_equal(photo.pixels, ORIENTED[orientation](pixels))


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


@pytest.mark.parametrize(
    ("source", "target"), [(".bmp", ".png"), (".gif", ".png"), (".avif", ".png"), (".JPG", ".JPG")]
)
def test_formats_that_are_only_read_become_png(tmp_path: Path, source: str, target: str) -> None:
    if source == ".avif":
        pytest.importorskip("PIL._avif")
    Image.fromarray(smooth()).save(tmp_path / f"a{source}")
    assert output_suffix(tmp_path / f"a{source}") == target
    if target == ".png":
        photo = read_image(tmp_path / f"a{source}")
        write_image(tmp_path / "a.png", photo)
        assert np.array_equal(read_image(tmp_path / "a.png").rgb, photo.rgb)


def test_suffix_chooses_the_format(tmp_path: Path) -> None:
    Image.fromarray(noise(3)).save(tmp_path / "a.png")
    photo = read_image(tmp_path / "a.png")
    for suffix, format in ((".jpg", "JPEG"), (".webp", "WEBP"), (".tif", "TIFF"), (".png", "PNG")):
        write_image(tmp_path / f"b{suffix}", photo)
        with Image.open(tmp_path / f"b{suffix}") as image:
            assert image.format == format
    with pytest.raises(UsageError, match="bmp"):
        write_image(tmp_path / "b.bmp", photo)
    Image.fromarray(noise(4)).save(tmp_path / "alpha.png")
    with pytest.raises(InputError, match="transparency"):
        write_image(tmp_path / "alpha.jpg", read_image(tmp_path / "alpha.png"))
    assert not (tmp_path / "alpha.jpg").exists()


def test_a_png_named_jpg_stays_what_it_is(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    Image.fromarray(noise(3)).save(buffer, "PNG")
    (tmp_path / "a.jpg").write_bytes(buffer.getvalue())
    photo, again, mask, _ = rewrite(tmp_path / "a.jpg")
    assert again.format == "PNG" and np.array_equal(again.pixels[~mask], photo.pixels[~mask])


def test_rgb_view_cannot_be_changed_in_place(tmp_path: Path) -> None:
    Image.fromarray(noise(3)).save(tmp_path / "a.png")
    with pytest.raises(ValueError, match="read-only"):
        read_image(tmp_path / "a.png").rgb[0, 0] = 0


def test_merge_refuses_what_does_not_fit(tmp_path: Path) -> None:
    Image.fromarray(noise(3)).save(tmp_path / "a.png")
    photo = read_image(tmp_path / "a.png")
    with pytest.raises(ValueError, match="result"):
        photo.merge(photo.rgb[:-1])
    with pytest.raises(ValueError, match="result"):
        photo.merge(photo.rgb.astype(np.float32))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="mask"):
        photo.merge(photo.rgb, np.ones((3, 3), bool))


def test_explicit_mask_wins_over_differences(tmp_path: Path) -> None:
    Image.fromarray(noise(3)).save(tmp_path / "a.png")
    photo = read_image(tmp_path / "a.png")
    mask = np.zeros(photo.rgb.shape[:2], bool)
    mask[3, 4] = True
    merged = photo.merge(255 - photo.rgb, mask)
    assert (merged != photo.pixels).any(axis=2).sum() == 1 and (merged[3, 4] == 255 - photo.rgb[3, 4]).all()


def test_sixteen_bits_to_eight_is_exact_rounding() -> None:
    values = np.arange(65536, dtype=np.uint16)
    assert np.array_equal(to_uint8(values), np.round(values.astype(np.float64) / 257).astype(np.uint8))
    assert np.array_equal(to_uint8(to_uint16(np.arange(256, dtype=np.uint8))), np.arange(256))


def test_luminance_is_pillows() -> None:
    values = np.random.default_rng(0).integers(0, 256, (5000, 3), dtype=np.uint8)
    expected = np.asarray(Image.fromarray(values[None]).convert("L"))[0]
    assert np.array_equal(from_rgb(values, "L", 8, None)[:, 0], expected)


@given(st.integers(0, 2**32 - 1))
@settings(max_examples=20, deadline=None)
def test_cmyk_there_and_back_within_a_grey_level(seed: int) -> None:
    values = np.random.default_rng(seed).integers(0, 256, (500, 3), dtype=np.uint8)
    inks = from_rgb(values, "CMYK", 8, None)
    back = to_rgb(inks[None], "CMYK", None)[0]
    assert np.abs(back.astype(int) - values.astype(int)).max() <= 1


@given(
    width=st.integers(1, 9),
    height=st.integers(1, 9),
    mode=st.sampled_from(["L", "LA", "RGB", "RGBA"]),
    deep=st.booleans(),
)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
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
