"""Every format goes in and out with its own pixels and coding; only what was changed differs; what is lost is said."""

from __future__ import annotations

import io
import itertools
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from stills import ORIENTED, encoded, noise, rewrite, smooth

from ficgan.errors import InputError, UsageError
from ficgan.images import output_suffix
from ficgan.images.read import read_image
from ficgan.images.write import conversions, encode_image


@pytest.mark.parametrize("progressive", [False, True])
@pytest.mark.parametrize(("quality", "subsampling"), list(itertools.product([35, 80, 97], [0, 1, 2])))
def test_jpeg_quality_is_kept(tmp_path: Path, quality: int, subsampling: int, progressive: bool) -> None:
    image = Image.fromarray(smooth())
    image.save(tmp_path / "a.jpg", quality=quality, subsampling=subsampling, progressive=progressive)
    _, _, _, target = rewrite(tmp_path / "a.jpg")
    with Image.open(tmp_path / "a.jpg") as source, Image.open(target) as written:
        assert written.quantization == source.quantization  # type: ignore[attr-defined]
        assert written.layer == source.layer  # type: ignore[attr-defined]  # components and their sampling
        assert ("progressive" in written.info) == progressive


@pytest.mark.parametrize("turn", ORIENTED)
@pytest.mark.parametrize("suffix", [".jpg", ".png", ".webp", ".tif", ".avif"])
def test_a_turned_picture_comes_out_upright(tmp_path: Path, suffix: str, turn: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = turn
    more = {"lossless": True} if suffix == ".webp" else {} if suffix in (".png", ".tif") else {"quality": 95}
    Image.fromarray(smooth()).save(tmp_path / f"a{suffix}", exif=exif, **more)
    photo, again, mask, target = rewrite(tmp_path / f"a{suffix}", keep_metadata=True)
    upright = ORIENTED[turn](smooth())
    assert photo.rgb.shape == again.rgb.shape == upright.shape
    assert np.abs(photo.rgb.astype(int) - upright).mean() < 4
    if suffix in (".webp", ".png", ".tif"):
        assert np.array_equal(again.rgb[~mask], upright[~mask])
    with Image.open(target) as image:
        assert image.getexif().get(0x0112, 1) == 1


def test_formats_that_are_only_read_become_png(tmp_path: Path) -> None:
    for source in (".bmp", ".gif"):
        Image.fromarray(smooth()).save(tmp_path / f"a{source}")
        assert output_suffix(tmp_path / f"a{source}") == ".png"
        photo = read_image(tmp_path / f"a{source}")
        assert np.array_equal(read_image("a.png", data=encode_image("a.png", photo)).rgb, photo.rgb)
    assert output_suffix("a.JPG") == ".JPG"


def test_suffix_chooses_the_format(tmp_path: Path) -> None:
    photo = read_image("a.png", data=encoded(noise(3), "PNG"))
    for suffix, format in ((".jpg", "JPEG"), (".webp", "WEBP"), (".tif", "TIFF"), (".png", "PNG")):
        with Image.open(io.BytesIO(encode_image(f"b{suffix}", photo))) as image:
            assert image.format == format
        assert any("becomes" in note for note in conversions(f"b{suffix}", photo)) == (format != "PNG")
    with pytest.raises(UsageError, match="bmp"):
        encode_image("b.bmp", photo)
    with pytest.raises(InputError, match="transparency"):
        encode_image("a.jpg", read_image("a.png", data=encoded(noise(4), "PNG")))
    # A PNG named .jpg stays what it is.
    (tmp_path / "a.jpg").write_bytes(encoded(noise(3), "PNG"))
    photo, again, mask, _ = rewrite(tmp_path / "a.jpg")
    assert again.format == "PNG" and np.array_equal(again.pixels[~mask], photo.pixels[~mask])


@pytest.mark.parametrize("bits", [8, 10])
@pytest.mark.parametrize("chroma", [420, 444])
def test_heic(tmp_path: Path, chroma: int, bits: int) -> None:
    pillow_heif = pytest.importorskip("pillow_heif")
    pixels = smooth() if bits == 8 else smooth().astype(np.uint16) * 257
    buffer, mode = io.BytesIO(), "RGB" if bits == 8 else "RGB;16"
    pillow_heif.encode(mode, (61, 40), pixels.tobytes(), buffer, quality=95, chroma=chroma, bit_depth=bits)
    (tmp_path / "a.heic").write_bytes(buffer.getvalue())
    photo, again, mask, target = rewrite(tmp_path / "a.heic", synthetic=True)
    assert photo.depth == 8 and len(photo.notes) == (bits > 8)
    assert np.abs(photo.rgb.astype(int) - smooth()).mean() < 4
    assert np.abs(again.rgb.astype(int) - photo.rgb)[~mask].mean() < 4
    info = pillow_heif.open_heif(target.read_bytes()).info
    assert (info["chroma"], info["bit_depth"]) == (chroma, 8) and b"DigitalSourceType" in target.read_bytes()
