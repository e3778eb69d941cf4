"""Writing films: times, pixel formats, colours, errors that leave nothing, pieces to go on from."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import av
import cv2
import numpy as np
import pytest
from clips import make_clip, number_of, picture, variable_times

from ficgan.errors import UsageError
from ficgan.video import EncodeOptions
from ficgan.video.encode import VideoWriter, container_of, plan_encoding
from ficgan.video.read import open_video
from ficgan.video.source import Frame, VideoInfo
from ficgan.video.write import SegmentWriter, finished_segments

INFO = VideoInfo(96, 64, Fraction(1, 90_000), Fraction(30), None, None)


def frames(times: list[int], info: VideoInfo = INFO) -> Iterator[Frame]:
    """Pictures with their numbers at these ticks."""
    for number, pts in enumerate(times):
        time = float((pts - times[0]) * info.time_base)
        yield Frame(number, pts, time, picture(number, info.width, info.height), 3000)


def writer_of(
    path: Path, info: VideoInfo = INFO, options: EncodeOptions | None = None, container: str | None = None
) -> VideoWriter:
    container = container or container_of(path)
    return VideoWriter(path, info, plan_encoding(info, options or EncodeOptions(), container), container)


def write(path: Path, times: list[int], info: VideoInfo = INFO, **options: object) -> VideoWriter:
    """Write a film of pictures with their numbers."""
    with writer_of(path, info, EncodeOptions(**options)) as writer:  # type: ignore[arg-type]
        for frame in frames(times, info):
            writer.write(frame)
    return writer


def read(path: Path) -> tuple[VideoInfo, list[Frame]]:
    """The film as read back."""
    with open_video(path) as source:
        return source.info, list(source.frames())


@contextmanager
def files_limited_to(size: int) -> Iterator[None]:
    """Let every write beyond `size` bytes of a file fail, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize(("suffix", "origin"), [(".mp4", 90_000), (".mov", 0), (".nut", 0), (".mkv", 0), (".webm", 0)])
def test_times_are_exact(tmp_path: Path, suffix: str, origin: int) -> None:
    path, times = tmp_path / f"a{suffix}", variable_times(40, origin=origin)
    container = "nut" if suffix == ".nut" else None
    with writer_of(path, container=container) as writer:
        for frame in frames(times):
            writer.write(frame)
    with av.open(str(path)) as file:
        base = file.streams.video[0].time_base
        found = [(number_of(one.to_ndarray(format="rgb24")), one.pts * base) for one in file.decode(video=0)]  # type: ignore[operator]
    assert [number for number, _ in found] == list(range(40))
    rounding = Fraction(1, 2000) if suffix in (".mkv", ".webm") else 0
    assert max(abs(at - tick * INFO.time_base) for (_, at), tick in zip(found, times, strict=True)) <= rounding


@pytest.mark.parametrize(
    ("codec", "source", "size", "wanted"),
    [
        ("h264", "yuv420p", (96, 64), "yuv420p"),
        ("h264", "yuvj420p", (96, 64), "yuv420p"),
        pytest.param("h264", "yuv420p10le", (96, 64), "yuv420p10le", marks=pytest.mark.slow),
        pytest.param("h264", "yuv444p", (97, 63), "yuv444p", marks=pytest.mark.slow),
        ("h264", "yuv420p", (97, 63), "yuv444p"),
        pytest.param("h264", "yuv422p10le", (97, 64), "yuv444p10le", marks=pytest.mark.slow),
        ("h264", "rgb24", (96, 64), "yuv444p"),
        pytest.param("h264", "gray", (96, 64), "gray", marks=pytest.mark.slow),
        pytest.param("h264", "yuv420p12le", (96, 64), "yuv420p10le", marks=pytest.mark.slow),
        pytest.param("hevc", "yuv420p12le", (96, 64), "yuv420p12le", marks=pytest.mark.slow),
        ("vp9", "yuv420p", (97, 63), "yuv420p"),
        pytest.param("ffv1", "yuv422p10le", (97, 63), "yuv422p10le", marks=pytest.mark.slow),
        ("ffv1", "gbrp", (96, 64), "bgr0"),
    ],
)
def test_pixel_formats_and_codecs(tmp_path: Path, codec: str, source: str, size: tuple[int, int], wanted: str) -> None:
    path = tmp_path / "a.mkv"
    info = replace(INFO, width=size[0], height=size[1], pixel_format=source, time_base=Fraction(1, 1000))
    writer = write(path, [0, 33, 70, 100, 133], info, codec=codec)
    found, pictures = read(path)
    assert writer.encoding.pixel_format == wanted
    decoded = "yuv420p" if (codec, wanted) == ("h264", "gray") else wanted  # FFmpeg's decoder adds the chroma
    assert found.pixel_format == decoded and (found.width, found.height) == size
    assert [number_of(frame.image) for frame in pictures] == list(range(5))
    assert [frame.pts for frame in pictures] == [0, 33, 70, 100, 133]


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("space", [1, 5, *(pytest.param(n, marks=pytest.mark.slow) for n in (6, 9, 2))])
@pytest.mark.parametrize(
    "options",
    [
        EncodeOptions("ffv1"),
        EncodeOptions("h264", crf=1),
        pytest.param(EncodeOptions("h264", crf=0), marks=pytest.mark.slow),
    ],
)
def test_colours_come_back(tmp_path: Path, space: int, full: bool, options: EncodeOptions) -> None:
    """Once through the writer and FFmpeg's tags, within 3 of 255 where nothing is lost."""
    path = tmp_path / "a.mkv"
    info = replace(INFO, pixel_format="yuv444p", colour_space=space, colour_range=2 if full else 1, colour_primaries=1)
    rgb = np.random.default_rng(5).integers(0, 256, (4, 6, 3), np.uint8).repeat(16, 0).repeat(16, 1)
    with writer_of(path, info, options) as writer:
        writer.write(Frame(0, 0, 0.0, rgb, 3000))
    found, pictures = read(path)
    error = np.abs(pictures[0].image.astype(int) - rgb)
    assert error.max() <= (3 if options.crf != 1 else 8)
    assert found.colour_range == (2 if full else 1) and found.colour_space == space
    assert found.colour_primaries == 1


@pytest.mark.parametrize(
    "pixel_format", ["yuv420p", *(pytest.param(p, marks=pytest.mark.slow) for p in ("yuv444p", "yuv420p10le"))]
)
def test_a_film_gets_no_darker(tmp_path: Path, pixel_format: str) -> None:
    """Its planes come back as they were: on average, and but for what 8 bits of RGB cannot hold."""
    first, second = tmp_path / "a.mkv", tmp_path / "b.mkv"
    ramp = np.linspace(20, 230, 96).astype(np.uint8)
    image = np.stack([np.tile(np.roll(ramp, 30 * n), (64, 1)) for n in range(3)], -1)
    make_clip(first, 2, codec="ffv1", pixel_format=pixel_format, pictures=[image, image[:, ::-1]])
    with open_video(first) as source, writer_of(second, source.info, EncodeOptions(codec="ffv1")) as writer:
        for frame in source.frames():
            writer.write(frame)
    planes = []
    for path in (first, second):
        with av.open(str(path)) as file:
            pictures = [picture.to_ndarray() for picture in file.decode(video=0)]
            height = file.streams.video[0].height
            planes.append(np.stack([p[0] if pixel_format == "yuv444p" else p[:height] for p in pictures]).astype(int))
    error = planes[1] - planes[0]
    assert abs(error.mean()) < (0.5 if "10" in pixel_format else 0.1)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("a.mp4", {"codec": "h265x"}),
        ("a.mp4", {"pixel_format": "yuv410p"}),
        ("a.mp4", {"crf": 400}),
        ("a.mkv", {"codec": "ffv1", "crf": 3}),
        ("a.mp4", {"options": {"preset": "warp"}}),
        ("a.webm", {"codec": "ffv1"}),
        ("a.avi", {}),
    ],
)
def test_options_that_cannot_work(tmp_path: Path, name: str, options: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        writer_of(tmp_path / name, INFO, EncodeOptions(**options))  # type: ignore[arg-type]
    with pytest.raises(UsageError):
        writer_of(tmp_path / "b.mp4", replace(INFO, width=97), EncodeOptions(pixel_format="yuv420p"))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("aspect", "size"), [(Fraction(2), (192, 64)), (Fraction(1, 2), (96, 128)), (Fraction(10, 11), (96, 64))]
)
def test_faces_are_seen_and_written_unsqueezed(tmp_path: Path, aspect: Fraction, size: tuple[int, int]) -> None:
    from test_mux import redo

    source, output = tmp_path / "a.mp4", tmp_path / "b.mkv"
    write(source, [0, 3000, 6000], replace(INFO, sample_aspect_ratio=aspect))
    redo(source, output)
    info, found = read(output)
    assert (info.width, info.height) == size and [number_of(frame.image) for frame in found] == [0, 1, 2]
    assert np.abs(found[0].image.astype(int) - cv2.resize(picture(0), size)).mean() < 8
    assert info.sample_aspect_ratio == (aspect if size == (96, 64) else 1)


def test_options_of_the_encoder_are_passed_through(tmp_path: Path) -> None:
    write(tmp_path / "a.mp4", [3000 * n for n in range(30)], options={"preset": "slow", "x264-params": "keyint=2"})
    with av.open(str(tmp_path / "a.mp4")) as file:
        assert sum(packet.is_keyframe for packet in file.demux(video=0) if packet.size) == 15


def test_pieces_and_going_on(tmp_path: Path) -> None:
    times = variable_times(80)
    pictures = list(frames(times))
    with (
        pytest.raises(KeyboardInterrupt),
        SegmentWriter(tmp_path, INFO, EncodeOptions(), output="a.mp4", seconds=1.0) as writer,
    ):
        for frame in pictures[:50]:
            writer.write(frame)
        raise KeyboardInterrupt
    kept = finished_segments(tmp_path)
    assert kept and kept == writer.segments and [path for _, _, path in kept] == sorted(tmp_path.iterdir())
    (tmp_path / "ficgan-segment-00000078-00000079.nut").write_bytes(b"no predecessor")
    writer = SegmentWriter(tmp_path, INFO, EncodeOptions(), output="a.mp4", seconds=1.0)
    assert writer.next_frame == kept[-1].last + 1 < 50
    with writer:
        for frame in pictures[writer.next_frame :]:
            writer.write(frame)
    assert not list(tmp_path.glob(".ficgan-*"))
    assert [piece.first for piece in writer.segments[1:]] == [piece.last + 1 for piece in writer.segments[:-1]]
    found = []
    for piece in writer.segments:
        _, inside = read(piece.path)
        assert [number_of(frame.image) for frame in inside] == list(range(piece.first, piece.last + 1))
        with av.open(str(piece.path)) as file:
            base = file.streams.video[0].time_base
        assert base is not None
        found += [frame.pts * base for frame in inside]
    assert found == [tick * INFO.time_base for tick in times]
