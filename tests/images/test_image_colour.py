"""Grey, CMYK, transparency and profiles: colours mean after what they meant before."""

from __future__ import annotations

import io
import struct
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageCms
from stills import PROFILES, SIZE, SPACES, icc, noise, png, rewrite, seen, smooth, srgb

from ficgan.errors import InputError
from ficgan.images import Photo, encode_image, read_image
from ficgan.images.colour import from_rgb, space_of, to_rgb, to_uint8
from ficgan.images.icc import clean_icc
from ficgan.images.read import as_photo


def test_transparent_colour_becomes_alpha(tmp_path: Path) -> None:
    pixels = noise(3)
    pixels[:5] = (200, 30, 60)  # the transparent colour, and the colour the face will get
    (tmp_path / "a.png").write_bytes(png(8, 2, pixels, (b"tRNS", struct.pack(">3H", 200, 30, 60))))
    photo, again, mask, _ = rewrite(tmp_path / "a.png")
    assert photo.mode == again.mode == "RGBA"
    assert (again.pixels[mask][:, 3] == 255).all()
    assert (again.pixels[:5, :, 3] == 0).all()


SECRET = b"SECRET of a display" * 20


@pytest.mark.parametrize("suffix", [".jpg", ".png", ".webp", ".tif", ".avif"])
@pytest.mark.parametrize("name", ["sRGB", "ProPhoto"])
def test_a_profile_keeps_its_colours_and_nothing_else(tmp_path: Path, suffix: str, name: str) -> None:
    kind = b"text" + bytes(4) + SECRET
    private = {b"mmod": kind, b"cprt": kind, b"dmdd": kind, b"vcgt": kind, b"gamt": kind}
    tags = {tag: content + SECRET for tag, content in SPACES[name][1].items()}  # behind what is read of them
    profile = bytearray(icc(b"RGB ", tags | private) + SECRET)
    for start, end in ((4, 8), (48, 56), (80, 100)):  # makers, model, digest
        profile[start:end] = (b"SECR" * 5)[: end - start]
    Image.fromarray(smooth()).save(tmp_path / f"a{suffix}", icc_profile=bytes(profile))
    _, again, _, target = rewrite(tmp_path / f"a{suffix}")
    assert again.icc is not None and clean_icc(again.icc) == again.icc
    assert np.array_equal(seen(noise(3), "RGB", again.icc), seen(noise(3), "RGB", PROFILES[name]))
    with Image.open(target) as written:
        assert written.info["icc_profile"] == again.icc
    assert b"SECR" not in again.icc and SECRET not in target.read_bytes()


@pytest.mark.parametrize("profile", [b"SECRET", PROFILES["P3"][:150], PROFILES["P3"].replace(b"RGB ", b"YCbr")])
def test_what_is_no_profile_is_left_out_and_said(tmp_path: Path, profile: bytes) -> None:
    Image.fromarray(smooth()).save(tmp_path / "a.png", icc_profile=profile)
    photo, again, _, _ = rewrite(tmp_path / "a.png")
    assert photo.icc is again.icc is None and len(photo.notes) == 1


@pytest.mark.parametrize("depth", [8, 16])
@pytest.mark.parametrize("name", [name for name in SPACES if name not in ("sRGB", "grey")])
def test_profiles_are_applied_and_undone_as_littlecms_does(name: str, depth: int) -> None:
    space, pixels = space_of(PROFILES[name], None, "RGB"), noise(3)
    deep = pixels if depth == 8 else pixels.astype(np.uint16) * 257
    assert space is not None
    assert np.abs(to_rgb(deep, "RGB", space).astype(int) - seen(pixels, "RGB", PROFILES[name])).max() <= 1
    back = from_rgb(pixels.reshape(-1, 3), "RGB", depth, space)
    own = ImageCms.ImageCmsProfile(io.BytesIO(PROFILES[name]))
    wanted = ImageCms.profileToProfile(Image.fromarray(pixels), srgb(), own)
    assert np.abs(to_uint8(back).astype(int) - np.asarray(wanted).reshape(-1, 3)).max() <= 2
    if depth == 16:  # which is finer than what was pasted
        again = to_rgb(back.reshape(deep.shape), "RGB", space)
        assert np.abs(again.astype(int) - pixels).max() <= 1


PRIMARIES = {"Adobe": (64000, 33000, 21000, 71000, 15000, 6000), "sRGB": (64000, 33000, 30000, 60000, 15000, 6000)}


@pytest.mark.parametrize(("name", "gamma"), [("Adobe", 45455), ("sRGB", 100000), ("sRGB", 45000), ("sRGB", 0), ("", 0)])
def test_a_png_that_tells_an_exponent_and_primaries(tmp_path: Path, name: str, gamma: int) -> None:
    chunks = [(b"gAMA", struct.pack(">L", gamma))]
    chunks += [(b"cHRM", struct.pack(">8L", *((31270, 32900, *PRIMARIES[name]) if name else [7] * 8)))]
    (tmp_path / "a.png").write_bytes(png(8, 2, noise(3), *chunks))
    photo, again, mask, _ = rewrite(tmp_path / "a.png")
    plain = name != "Adobe" and gamma != 100000  # sRGB, or nonsense
    assert dict(again.chunks) == dict(chunks) and (again.icc is None) == plain
    assert np.array_equal(again.pixels[~mask], noise(3)[~mask])
    shown = seen(noise(3), "RGB", {"Adobe": again.icc, "sRGB": None if plain else PROFILES["linear"]}.get(name))
    assert np.abs(photo.rgb.astype(int) - shown).max() <= 1
    assert (photo.rgb != noise(3)).any() == (not plain)


def test_a_profile_that_cannot_be_undone_is_refused(tmp_path: Path) -> None:
    """A scanner's tables lead from its numbers to colours, and not back."""
    ramp = bytes(range(256)) * 3
    matrix = struct.pack(">9l", *(65536 * (i % 4 == 0) for i in range(9)))
    table = bytes(np.stack(np.meshgrid([0, 255], [0, 255], [0, 255], indexing="ij"), -1).astype(np.uint8).tobytes())
    tags = {b"A2B0": b"mft1" + bytes(4) + bytes([3, 3, 2, 0]) + matrix + ramp + table + ramp}
    Image.fromarray(smooth()).save(tmp_path / "a.png", icc_profile=icc(b"RGB ", tags, b"Lab "))
    with pytest.raises(InputError, match="profile"):
        read_image(tmp_path / "a.png")


@pytest.mark.parametrize("suffix", [".webp", ".avif", ".png", ".tif"])
@pytest.mark.parametrize("mode", ["L", "LA"])
def test_grey_with_a_profile_looks_the_same_in_formats_without_grey(tmp_path: Path, mode: str, suffix: str) -> None:
    pixels = np.linspace(20, 230, 40 * 61).reshape(40, 61).astype(np.uint8)
    for depth in (8, 16):
        grey = pixels.astype(np.uint16) * 257 if depth == 16 else pixels
        if mode == "LA":
            grey = np.dstack([grey, np.full_like(grey, 0xF000 if depth == 16 else 240)])
        photo = Photo(Path("a.tif"), "TIFF", mode, grey, icc=clean_icc(PROFILES["grey"]))
        data = encode_image(f"b{suffix}", photo, photo.rgb)
        again = read_image("b" + suffix, data=data)
        assert np.abs(photo.rgb.astype(int) - seen(pixels, "L", PROFILES["grey"])).max() <= 1
        assert np.abs(again.rgb.astype(int) - photo.rgb).mean() < 2
        with Image.open(io.BytesIO(data)) as image:  # grey's profile on grey, colours' on colours
            space = image.info["icc_profile"][16:20]
            assert (space == b"GRAY") == (image.mode in ("L", "LA", "I;16")), (image.mode, space)


def test_a_picture_of_pillow_with_a_profile_is_looked_at_through_it() -> None:
    image = Image.fromarray(noise(3))
    image.info["icc_profile"] = PROFILES["ProPhoto"]
    photo = as_photo(image)
    assert np.abs(photo.rgb.astype(int) - seen(noise(3), "RGB", PROFILES["ProPhoto"])).max() <= 1
    assert np.array_equal(photo.merge(photo.rgb.copy()), noise(3))


def test_sixteen_bits_to_eight_is_exact_rounding() -> None:
    values = np.arange(65536, dtype=np.uint16)
    assert np.array_equal(to_uint8(values), np.round(values.astype(np.float64) / 257).astype(np.uint8))
    every = np.arange(256, dtype=np.uint8).repeat(3).reshape(-1, 3)
    assert np.array_equal(to_uint8(from_rgb(every, "RGB", 16, None)), every)


def cmyk_profile() -> bytes:
    """A small CMYK profile by the ICC specification: 8-bit tables between CMYK and L*a*b*, inks of no known press."""
    color = pytest.importorskip("skimage.color")

    def table(inputs: int, outputs: int, points: int, values: np.ndarray) -> bytes:
        ramp = bytes(range(256))
        identity = struct.pack(">9l", *(65536 * (i % 4 == 0) for i in range(9)))
        head = b"mft1" + bytes(4) + bytes([inputs, outputs, points, 0]) + identity
        return head + ramp * inputs + np.clip(np.rint(values), 0, 255).astype(np.uint8).tobytes() + ramp * outputs

    def encoded_lab(rgb: np.ndarray) -> np.ndarray:
        return color.rgb2lab(rgb, illuminant="D50") * (2.55, 1, 1) + (0, 128, 128)

    inks = np.stack(np.meshgrid(*[np.linspace(0, 1, 7)] * 4, indexing="ij"), -1).reshape(-1, 4)
    to_lab = table(4, 3, 7, encoded_lab(((1 - inks[:, :3]) * (1 - inks[:, 3:]))[None])[0])
    grid = np.stack(np.meshgrid(*[np.linspace(0, 255, 33)] * 3, indexing="ij"), -1).reshape(1, -1, 3)
    rgb = np.clip(color.lab2rgb((grid - (0, 128, 128)) / (2.55, 1, 1), illuminant="D50")[0], 0, 1)
    to_ink = table(3, 4, 33, np.concatenate([1 - rgb, np.zeros((len(rgb), 1))], axis=1) * 255)  # no black, unlike ours

    return icc(b"CMYK", {b"A2B0": to_lab, b"B2A0": to_ink}, b"Lab ")


@pytest.mark.filterwarnings("ignore:Conversion from CIE-LAB")
@pytest.mark.parametrize("suffix", [".jpg", ".tif"])
def test_cmyk_with_a_profile_goes_through_it(tmp_path: Path, suffix: str) -> None:
    profile = cmyk_profile()
    source = Image.frombytes("CMYK", SIZE, np.full((SIZE[1], SIZE[0], 4), (90, 60, 30, 40), np.uint8).tobytes())
    source.save(tmp_path / f"a{suffix}", icc_profile=profile, **({"quality": 98} if suffix == ".jpg" else {}))
    photo, again, mask, _ = rewrite(tmp_path / f"a{suffix}")
    assert again.mode == "CMYK" and again.icc == clean_icc(profile)
    seen = ImageCms.profileToProfile(source, ImageCms.ImageCmsProfile(io.BytesIO(profile)), srgb(), outputMode="RGB")
    assert seen is not None and np.abs(photo.rgb.astype(int) - np.asarray(seen)).max() <= 4
    assert np.abs(photo.rgb.astype(int) - to_rgb(photo.pixels, "CMYK", None)).max() > 4  # it matters which way
    inner = np.zeros_like(mask)
    inner[12:20, 20:36] = True
    assert np.abs(again.rgb[inner].astype(int) - (200, 30, 60)).max() < 20
    if suffix == ".tif":
        assert np.array_equal(again.pixels[~mask], photo.pixels[~mask])
        assert (again.pixels[mask][:, 3] <= 2).all()  # the profile's own separation, which uses no black
