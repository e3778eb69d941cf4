"""Reading films: times, orientation, colours, damage, and what is no film."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import suppress
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from clips import corners_of, ffmpeg, make_clip, number_of, picture
from PIL import Image

from ficgan.errors import InputError, UsageError
from ficgan.video.read import VideoSource, _Clock, open_video
from ficgan.video.source import Frame, VideoInfo

UPRIGHT = ["red", "green", "blue", "white"]


def read(path: Path | str, **options: object) -> tuple[VideoSource, list[Frame]]:
    """All frames of a film, and the source after reading."""
    with open_video(path, **options) as source:  # type: ignore[arg-type]
        return source, list(source.frames())


def test_constant_rate(tmp_path: Path) -> None:
    path = tmp_path / "a.mp4"
    make_clip(path, 40)
    source, frames = read(path)
    assert [number_of(frame.image) for frame in frames] == list(range(40))
    assert [frame.index for frame in frames] == list(range(40))
    assert [frame.pts * source.info.time_base for frame in frames] == [Fraction(i, 30) for i in range(40)]
    assert [frame.time for frame in frames] == pytest.approx([i / 30 for i in range(40)])
    info = source.info
    assert (info.width, info.height, info.rate, info.frames) == (96, 64, 30, 40)
    assert info.duration == pytest.approx(40 / 30, abs=1e-3)
    assert source.end_pts is not None and source.end_pts * info.time_base == Fraction(40, 30)
    assert not source.damage and not source.notes
    assert frames[0].image.flags.c_contiguous and frames[0].image.dtype == np.uint8


@pytest.mark.parametrize(
    ("degrees", "mirrored", "upended"),
    [(90, False, False), (180, False, False), (270, False, False), (0, True, False), (90, False, True)],
)
def test_the_display_matrix_is_applied(tmp_path: Path, degrees: int, mirrored: bool, upended: bool) -> None:
    """Against FFmpeg's own autorotation, in another build."""
    path = tmp_path / "a.mp4"
    make_clip(path, 2, turn=(degrees, mirrored, upended))
    source, frames = read(path)
    ffmpeg("-i", str(path), "-frames:v", "1", str(tmp_path / "shown.png"))
    shown = np.asarray(Image.open(tmp_path / "shown.png").convert("RGB"))
    image = frames[0].image
    assert image.shape == shown.shape == (source.info.height, source.info.width, 3)
    assert corners_of(image) == corners_of(shown)
    if not mirrored and not upended:
        assert corners_of(np.rot90(image, -degrees // 90)) == UPRIGHT


@pytest.mark.parametrize(
    ("codec", "pixel_format", "suffix", "size"),
    [
        ("ffv1", "yuv444p", ".mkv", (321, 241)),
        pytest.param("libx264", "yuv444p", ".mp4", (97, 63), marks=pytest.mark.slow),
        ("libx264", "yuv420p10le", ".mp4", (96, 64)),
        pytest.param("ffv1", "yuva444p", ".mkv", (96, 64), marks=pytest.mark.slow),
        pytest.param("libvpx-vp9", "yuva420p", ".webm", (96, 64), marks=pytest.mark.slow),
        pytest.param("ffv1", "gray", ".mkv", (96, 64), marks=pytest.mark.slow),
        pytest.param("ffv1", "gbrp16le", ".mkv", (96, 64), marks=pytest.mark.slow),
        ("mjpeg", "yuvj420p", ".mov", (96, 64)),
        ("rawvideo", "rgb24", ".nut", (97, 63)),
    ],
)
def test_pixel_formats(tmp_path: Path, codec: str, pixel_format: str, suffix: str, size: tuple[int, int]) -> None:
    path = tmp_path / f"a{suffix}"
    make_clip(path, 5, codec=codec, pixel_format=pixel_format, size=size)
    source, frames = read(path)
    assert [number_of(frame.image) for frame in frames] == list(range(5))
    assert frames[0].image.shape == (size[1], size[0], 3)
    wanted = picture(4, *size)
    if pixel_format == "gray":
        wanted = np.repeat((wanted @ [0.299, 0.587, 0.114])[..., None], 3, axis=2)
    assert np.abs(frames[4].image.astype(float) - wanted).mean() < 4
    assert bool([n for n in source.notes if "8 bits" in n]) == any(depth in pixel_format for depth in ("10", "16"))


@pytest.mark.parametrize("size", [(96, 64), (96, 640)])
@pytest.mark.parametrize(
    "colours", [(1, 1), (2, 0), *(pytest.param(c, marks=pytest.mark.slow) for c in ((1, 2), (5, 1), (6, 2)))]
)
def test_colours_are_converted_as_stated(tmp_path: Path, colours: tuple[int, int], size: tuple[int, int]) -> None:
    """Y'CbCr made in float64 from the standards' formulas; unspecified is BT.601 up to 576 lines, BT.709 above."""
    space, full = colours[0], colours[1] == 2
    matrix_709 = space == 1 or (space == 2 and size[1] > 576)
    kr, kb = (0.2126, 0.0722) if matrix_709 else (0.299, 0.114)
    rgb = np.random.default_rng(3).integers(0, 256, (size[1] // 8, size[0] // 8, 3)).repeat(8, 0).repeat(8, 1)
    share = rgb / 255
    luma = share @ [kr, 1 - kr - kb, kb]
    blue, red = (share[..., 2] - luma) / (2 - 2 * kb), (share[..., 0] - luma) / (2 - 2 * kr)
    scales = [(0, 255), (128, 255), (128, 255)] if full else [(16, 219), (128, 224), (128, 224)]
    planes = [np.clip(np.rint(o + s * p), 0, 255) for (o, s), p in zip(scales, (luma, blue, red), strict=True)]
    path = tmp_path / "a.mkv"
    with av.open(str(path), "w") as out:
        stream = out.add_stream("ffv1", rate=25, width=size[0], height=size[1], pix_fmt="yuv444p")
        stream.codec_context.colorspace, stream.codec_context.color_range = colours
        frame = av.VideoFrame.from_ndarray(np.stack(planes).astype(np.uint8), format="yuv444p")
        out.mux(stream.encode(frame))
        out.mux(stream.encode(None))
    _, frames = read(path)
    assert np.abs(frames[0].image.astype(int) - rgb).max() <= 3


def test_the_best_of_several_streams_is_read_and_the_others_are_named(tmp_path: Path) -> None:
    path = tmp_path / "a.mkv"
    make_clip(path, 6, size=(48, 32), second=(96, 64), subtitles=True, audio="libopus")
    source, frames = read(path)
    assert frames[0].image.shape == (64, 96, 3) and len(frames) == 6 and source.info.audio_streams == 1
    make_clip(tmp_path / "b.mp4", 6, cover=True)
    source, frames = read(tmp_path / "b.mp4")
    assert len(frames) == 6


def cut_header(path: Path) -> None:
    make_clip(path, 30)
    path.write_bytes(path.read_bytes()[:-400])


@pytest.mark.parametrize(
    "make",
    [
        lambda path: path.touch(),
        lambda path: path.write_text("This is a diary, not a film.\n" * 200),
        lambda path: ffmpeg("-f", "lavfi", "-i", "sine=duration=0.5", str(path)),
        lambda path: None,
        cut_header,
        lambda path: Image.fromarray(picture(0)).save(path, "PNG"),
    ],
)
def test_what_is_no_film(tmp_path: Path, make: Callable[[Path], Any]) -> None:
    path = tmp_path / "a.mp4"
    make(path)
    with pytest.raises(InputError) as caught:
        open_video(path)
    assert str(caught.value).startswith(f"{path}: ") and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "options", "error"),
    [
        ("a.mp4", {"start": -1.0}, UsageError),
        ("a.mp4", {"end": float("nan")}, UsageError),
        ("a.mp4", {"start": 3.0, "end": 2.0}, UsageError),
        ("camera:97", {}, InputError),
    ],
)
def test_what_cannot_be_opened(name: str, options: dict[str, float], error: type[Exception]) -> None:
    with pytest.raises(error):
        open_video(name, **options)


@pytest.mark.parametrize("suffix", [".mkv", ".mp4", ".ts", pytest.param(".avi", marks=pytest.mark.slow)])
def test_truncated_files_are_read_to_the_cut(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"a{suffix}"
    options = {"movflags": "+faststart"} if suffix == ".mp4" else {}
    make_clip(path, 120, options=options)
    data = path.read_bytes()
    path.write_bytes(data[: len(data) * 6 // 10])
    source, frames = read(path)
    numbers = [number_of(frame.image) for frame in frames if frame.index < len(frames) - 3]
    assert 40 < len(frames) < 100 and numbers == list(range(len(frames) - 3))
    if suffix != ".ts":  # a transport stream says nowhere how long it is
        assert len(source.damage) >= 1
        assert "cut off at" in source.damage[0] and source.damage[0].startswith(str(path))


@pytest.mark.slow
@pytest.mark.parametrize("options", [{"movflags": "+faststart"}, {"movflags": "+frag_keyframe+empty_moov"}])
@pytest.mark.parametrize("share", [0.35, 0.65])
def test_a_cut_costs_no_picture_that_is_whole(tmp_path: Path, options: dict[str, str], share: float) -> None:
    """Threads decode several pictures at a time; after the one that is cut some wait. On one core there are none."""
    path = tmp_path / "a.mp4"
    make_clip(path, 120, options=options)
    data = path.read_bytes()
    path.write_bytes(data[: round(len(data) * share)])
    whole = 0
    with av.open(str(path)) as file:
        file.streams.video[0].codec_context.thread_count = 1
        for packet in file.demux(video=0):
            with suppress(av.InvalidDataError):
                whole += len(packet.decode())
    source, frames = read(path)
    assert len(frames) == whole > 3 and source.damage
    assert len({frame.pts for frame in frames}) == whole


def test_interlaced_pictures_are_made_whole(tmp_path: Path) -> None:
    path = tmp_path / "fields.mpg"
    with av.open(str(path), "w") as file:
        stream = file.add_stream("mpeg2video", rate=25, width=320, height=240)
        stream.pix_fmt, stream.bit_rate, stream.options = "yuv420p", 4_000_000, {"flags": "+ildct+ilme"}
        for number in range(12):
            image = np.full((240, 320, 3), 60, np.uint8)
            for field in (0, 1):  # a bar that goes on between the fields
                left = 20 + 16 * number + 8 * field
                image[field::2, left : left + 40] = 220
            for packet in stream.encode(av.VideoFrame.from_ndarray(image, format="rgb24")):
                file.mux(packet)
        for packet in stream.encode():
            file.mux(packet)

    def combed(image: np.ndarray) -> float:
        rows = image[:, :, 1].astype(int)
        return float((np.minimum(abs(rows[1:-1] - rows[:-2]), abs(rows[1:-1] - rows[2:])) > 60).mean())

    with av.open(str(path)) as file:
        stored = [(frame.pts, frame.to_ndarray(format="rgb24")) for frame in file.decode(video=0)]
    source = open_video(path)
    read = list(source.frames())
    assert [frame.pts for frame in read] == [pts for pts, _ in stored] and len(read) == 12
    assert min(combed(image) for _, image in stored[1:-1]) > 0.03
    assert max(combed(frame.image) for frame in read[1:-1]) < 0.005
    assert any("interlaced" in note for note in source.info.notes)
    again = [frame.image for frame in open_video(path, start=read[6].time).frames()]
    np.testing.assert_array_equal(again[2], read[8].image)


@pytest.mark.parametrize(("suffix", "audio_at"), [(".mkv", 0.0), (".mp4", None), (".ts", 5.0)])
def test_a_late_start_is_no_damage(tmp_path: Path, suffix: str, audio_at: float | None) -> None:
    path = tmp_path / f"a{suffix}"
    sound = {} if audio_at is None else {"audio": "libopus", "audio_at": (audio_at,), "audio_seconds": 8 - audio_at}
    make_clip(path, range(5000, 8000, 40), time_base=Fraction(1, 1000), **sound)  # type: ignore[arg-type]
    source, frames = read(path)
    assert len(frames) == 75 and not source.damage
    if audio_at != 0:
        assert source.info.duration == pytest.approx(3, abs=0.1)


def test_the_size_changes_midway(tmp_path: Path) -> None:
    raw = b""
    for number, size in enumerate([(96, 64), (64, 96), (96, 64)]):
        part = tmp_path / f"{number}.h264"
        make_clip(part, 10, size=size, container="h264")
        raw += part.read_bytes()
    path = tmp_path / "a.h264"
    path.write_bytes(raw)
    source, frames = read(path)
    assert len(frames) == 30 and {frame.image.shape for frame in frames} == {(64, 96, 3)}
    tall = frames[15].image
    assert tall[:, :20].max() < 20 and tall[:, -20:].max() < 20  # a tall picture lies between two bars
    assert number_of(tall[:, 26:69]) == 5
    assert any("scaled into the first size" in note for note in source.notes)
    pts = [frame.pts for frame in frames]
    assert pts == sorted(set(pts))


def test_times_that_fall_back_or_repeat_are_mended() -> None:
    clock = _Clock(VideoInfo(96, 64, Fraction(1, 1000), Fraction(25), None, None))
    pts = [clock(pts) for pts in (0, 40, 40, 30, 120, None, 5000, 100, 140)]
    assert pts == [0, 40, 41, 42, 120, 160, 5000, 5040, 5080]


@pytest.mark.parametrize("suffix", [".mp4", *(pytest.param(s, marks=pytest.mark.slow) for s in (".mkv", ".ts"))])
def test_spans(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"a{suffix}"
    make_clip(path, 200)
    for start, end in ((None, 0.7), (5.05, 6.0), (0.5, 0.9)):
        source, frames = read(path, start=start, end=end)
        wanted = [i for i in range(200) if (start or 0) - 1e-9 <= i / 30 and (end is None or i / 30 < end - 1e-9)]
        assert [number_of(frame.image) for frame in frames] == wanted
        assert frames[0].index == 0 and frames[0].time == 0.0
        assert source.info.duration == pytest.approx(len(wanted) / 30, abs=0.1)


@pytest.mark.parametrize("suffix", [".gif", ".png"])
def test_animations_keep_their_durations(tmp_path: Path, suffix: str) -> None:
    path, durations = tmp_path / f"a{suffix}", [40, 120, 40, 500, 70, 200]
    images = [Image.fromarray(picture(i)) for i in range(6)]
    images[0].save(path, save_all=True, append_images=images[1:], duration=durations, loop=0)
    source, frames = read(path)
    assert [number_of(frame.image) for frame in frames] == list(range(6))
    base, starts = source.info.time_base * 1000, np.cumsum([0, *durations])
    assert [frame.pts * base for frame in frames] == starts[:-1].tolist() and source.end_pts is not None
    assert source.end_pts * base == starts[-1] and [(frame.duration or 0) * base for frame in frames] == durations
    assert not source.damage


def test_an_address_that_does_not_answer() -> None:
    with pytest.raises(InputError) as caught:
        open_video("http://user:secret@127.0.0.1:1/film.mp4?token=abc")
    assert str(caught.value).startswith("http://127.0.0.1:1/film.mp4: cannot be opened")
    assert "secret" not in str(caught.value) and "abc" not in str(caught.value)


def test_a_stream_is_read_once_as_it_comes(tmp_path: Path) -> None:
    """A pipe stands for a network stream."""
    make_clip(tmp_path / "a.ts", 50)
    outlet, inlet = os.pipe()
    data = (tmp_path / "a.ts").read_bytes()

    def send() -> None:
        with os.fdopen(inlet, "wb") as file:
            file.write(data)

    sender = threading.Thread(target=send)
    sender.start()
    try:
        with open_video(f"pipe:{outlet}", end=1.0) as source:
            assert source.live and source.path is None
            frames = list(source.frames())
            with pytest.raises(InputError, match="only once"):
                next(source.frames())
            assert [number_of(frame.image) for frame in frames] == list(range(30))
    finally:
        os.close(outlet)
        sender.join()


@pytest.mark.slow
def test_damage_that_the_decoder_conceals_is_named(tmp_path: Path) -> None:
    """Flipped bits of one picture of a film with a key frame every half second; a later start does not ask for it."""
    path = tmp_path / "a.mp4"
    make_clip(path, 240)
    with av.open(str(path)) as film:
        packets = [packet for packet in film.demux(video=0) if packet.size]
    assert not read(path)[0].damage
    data = bytearray(path.read_bytes())
    whole = bytes(packets[120])  # a key frame
    at = data.index(whole) + len(whole) // 2
    for place in range(at, at + 12):
        data[place] ^= 0x55
    path.write_bytes(data)
    source, frames = read(path)
    assert len(frames) == 240 and len(source.damage) == 1, source.damage
    source, frames = read(path, start=6.0)
    assert len(frames) == 60 and not source.damage
