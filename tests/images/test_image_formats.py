"""Every format goes in and out with its own pixels and coding; only what was changed differs."""

from __future__ import annotations

import io
import itertools
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from stills import noise, rewrite, smooth

from ficgan.errors import InputError, UsageError
from ficgan.images import output_suffix, read_image, write_image


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


def test_grey_and_rgb_coded_jpeg(tmp_path: Path) -> None:
    Image.fromarray(smooth()[..., 0]).save(tmp_path / "grey.jpg", quality=80)
    Image.fromarray(smooth()).save(tmp_path / "rgb.jpg", quality=80, keep_rgb=True)
    for name, mode in (("grey.jpg", "L"), ("rgb.jpg", "RGB")):
        _, again, _, target = rewrite(tmp_path / name, overwrite=True)
        assert again.mode == mode
        with Image.open(tmp_path / name) as source, Image.open(target) as written:
            assert written.quantization == source.quantization  # type: ignore[attr-defined]
            assert written.info.get("adobe_transform") == source.info.get("adobe_transform")


@pytest.mark.parametrize(("source", "target"), [(".bmp", ".png"), (".gif", ".png"), (".JPG", ".JPG")])
def test_formats_that_are_only_read_become_png(tmp_path: Path, source: str, target: str) -> None:
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


def test_explicit_mask_wins_over_differences(tmp_path: Path) -> None:
    Image.fromarray(noise(3)).save(tmp_path / "a.png")
    photo = read_image(tmp_path / "a.png")
    mask = np.zeros(photo.rgb.shape[:2], bool)
    mask[3, 4] = True
    merged = photo.merge(255 - photo.rgb, mask)
    assert (merged != photo.pixels).any(axis=2).sum() == 1 and (merged[3, 4] == 255 - photo.rgb[3, 4]).all()
