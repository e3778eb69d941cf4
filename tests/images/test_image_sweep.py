"""Every combination of format, colour space, depth, turn and metadata through the product's own path, judged apart.

The faces are boxes that a stand-in paints.
"""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Callable
from functools import cache

import av
import cv2
import numpy as np
import pytest
from made_files import HEIF, KEPT, NAMED, SECRET, Case, cases, make, picture
from PIL import Image, ImageOps
from stills import ORIENTED, PROFILES, noise, seen

from ficgan.deidentify.publish import new_photo
from ficgan.errors import InputError
from ficgan.policy import Result

BOX, COLOUR = (slice(12, 28), slice(12, 28)), (200, 140, 110)
INSIDE = (slice(17, 23), slice(17, 23))


def paint(image: np.ndarray, key: str) -> Result:
    """A stand-in for the engine."""
    out, mask = image.copy(), np.zeros(image.shape[:2], np.float32)
    mask[BOX], out[BOX] = 1, COLOUR
    return Result(out, [], {}, mask)


def read(data: bytes, case: Case) -> tuple[np.ndarray, bytes | None, tuple[int, int] | None]:
    """The numbers of a result as another reader gives them, its profile, and its code points."""
    named = None
    if case.format in ("AVIF", "HEIC"):
        with av.open(io.BytesIO(data)) as file:
            coder = file.streams.video[0].codec_context
            named = int(coder.color_primaries), int(coder.color_trc)
            if case.format == "AVIF":
                frame = next(file.decode(video=0))
                assert (frame.color_primaries, frame.color_trc) == named, "box and stream differ"
    if case.format == "HEIC":
        import pillow_heif  # type: ignore[import-not-found, unused-ignore]

        image = pillow_heif.open_heif(data, convert_hdr_to_8bit=False)
        return np.array(image), image.info.get("icc_profile"), named
    with Image.open(io.BytesIO(data)) as opened:
        assert opened.getexif().get(0x0112, 1) == 1, "still turned"
        upright = ImageOps.exif_transpose(opened)
        profile, pixels = opened.info.get("icc_profile"), np.array(upright)
    if case.depth == 16 and case.mode == "RGB" and case.format != "TIFF lzma":  # of which Pillow and OpenCV read 8 bits
        pixels = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_UNCHANGED)[..., ::-1]
    return pixels, profile, named


@cache
def light_of(space: str) -> Callable[[np.ndarray], np.ndarray]:
    """From numbers 0…1 of PQ or HLG to 8-bit sRGB, by the formulas of BT.2100; white has 203 cd/m²."""

    def shown(v: np.ndarray) -> np.ndarray:
        if space == "PQ":
            power = v ** (32 / 2523)
            light = (
                10000 / 203 * (np.maximum(power - 107 / 128, 0) / (2413 / 128 - 2392 / 128 * power)) ** (8192 / 1305)
            )
        else:
            scene = np.where(v <= 0.5, v * v / 3, (np.exp((v - 0.55991073) / 0.17883277) + 0.28466892) / 12)
            light = (scene / 0.26496256) ** 1.2
        to_709 = np.array([[1.6605, -0.5876, -0.0728], [-0.1246, 1.1329, -0.0083], [-0.0182, -0.1006, 1.1187]])
        light = np.clip(light @ to_709.T, 0, 1)
        return 255 * np.where(light <= 0.0031308, 12.92 * light, 1.055 * light ** (1 / 2.4) - 0.055)

    return shown


def faults(case: Case, data: bytes, notes: tuple[str, ...], kept: bool) -> list[str]:
    """What is wrong with a result."""
    wrong = []
    pixels, profile, named = read(data, case)
    truth = ORIENTED[case.orientation](picture(case))
    if pixels.shape != truth.shape:
        return [f"size or mode: {pixels.shape} in place of {truth.shape}"]
    if pixels.dtype != truth.dtype:
        truth = (truth >> 8).astype(np.uint8)
        if case.format not in ("AVIF", "TIFF lzma") or not any("8" in note for note in notes):
            wrong.append("lost depth")
    outside = np.ones(truth.shape[:2], bool)
    outside[BOX] = False
    levels = np.iinfo(truth.dtype).max
    if case.lossless:
        if not np.array_equal(pixels[outside], truth[outside]):
            wrong.append("pixels outside of the box")
    else:
        outside[:40, :40] = False  # blocks that the box touches
        far = np.abs(pixels.astype(float) - truth)[outside] / levels * 255
        if far.mean() > 2.5 or far.max() > 14:
            wrong.append(f"pixels outside of the box: {far.mean():.1f} {far.max():.0f}")

    # What the colours mean.
    names = NAMED.get(case.space)
    if names is not None and (named != names or profile is not None):
        wrong.append(f"colours named {named}, profile {profile is not None}")
    wanted = PROFILES.get("Adobe" if case.space == "EXIF Adobe" else "P3" if case.space == "P3 by name" else case.space)
    if names is None and (profile is None) != (wanted is None):
        wrong.append("profile" + " gained" * (wanted is None))
    elif profile is not None and wanted is not None:
        samples = noise() if case.mode == "L" else noise(3)
        if np.abs(seen(samples, case.mode, profile).astype(int) - seen(samples, case.mode, wanted)).max() > 1:
            wrong.append("another profile")
    inside = pixels[INSIDE]
    if case.space in ("PQ", "HLG"):
        shown = light_of(case.space)(inside / levels)
    else:
        eight = inside if levels == 255 else (inside // 257).astype(np.uint8)
        shown = seen(eight, case.mode, wanted)
    aim = np.array((152,) * 3 if case.mode == "L" else COLOUR)  # luminance of the colour
    # One of the 8 bits that an AVIF gets here is much light where the numbers span 10,000 cd/m².
    most = 4 if case.lossless else 18 if (case.format, case.space) == ("AVIF", "PQ") else 9
    if (off := np.abs(shown - aim.astype(float)).max()) > most:
        wrong.append(f"the box is {off:.0f} off")

    # What is left of the metadata.
    secrets = (SECRET, SECRET.decode().encode("utf-16-le"), SECRET.hex().encode())
    if any(secret in data for secret in secrets):
        wrong.append("a secret")
    if data.count(b"\xff\xd8\xff") > (case.format == "JPEG"):
        wrong.append("a second picture")
    if (KEPT in data) != (kept and case.metadata in ("EXIF", "XMP")):
        wrong.append("metadata " + ("passed" if KEPT in data else "lost"))
    return wrong


def sweep(step: int) -> Counter[str]:
    """Judge every so many files, stripped and with metadata: what became of them; the faults are in the names."""
    found: Counter[str] = Counter()
    for case in list(cases())[::step]:
        data, suffix = make(case)
        for keep in (False, True):
            try:
                made = new_photo(paint, data, f"a{suffix}", max_pixels=1_000_000, keep_metadata=keep)
                problems = faults(case, made.data, made.notes, keep)
                found["written"] += 1
            except InputError as error:
                assert "\n" not in str(error)
                found[f"refused: {case}: {error}"] += 1
                continue
            except Exception as error:
                problems = [repr(error)]
            found.update(f"wrong: {case}, kept: {keep}: {problem}" for problem in problems)
    return found


def judged(step: int) -> int:
    """How many were written; none may be refused or wrong."""
    found = sweep(step)
    others = [name for name in found if name != "written"]
    wrong, refused = (sum(name.startswith(kind) for name in others) for kind in ("wrong", "refused"))
    print(f"written {found['written']}, refused {refused}, wrong {wrong}")
    assert not others, "\n".join(others[:40])
    return found["written"]


def test_a_part_of_all_combinations() -> None:
    assert judged(47) > (250 if HEIF else 200)


@pytest.mark.slow
def test_all_combinations() -> None:
    assert judged(1) > (13000 if HEIF else 11000)
