"""Assembling: pieces and sound in one file; times, frame count, duration and audio bytes as in the source."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from xml.etree import ElementTree as ET

import av
import numpy as np
import pytest
from clips import audio_hash, ffmpeg, make_clip, number_of, variable_times
from numpy.typing import NDArray
from test_write import files_limited_to

from ficgan.errors import InputError, UsageError
from ficgan.images.photo import DIGITAL_SOURCE_TYPE
from ficgan.video import EncodeOptions
from ficgan.video.read import open_video
from ficgan.video.write import Assembled, SegmentWriter, assemble, check_output


def redo(path: Path, output: Path, *, seconds: float = 0.4, **options: object) -> Assembled:
    """Read a film, write it in pieces, assemble it."""
    settings = EncodeOptions(**{k: v for k, v in options.items() if k in ("codec", "audio")})  # type: ignore[arg-type]
    span = {k: v for k, v in options.items() if k in ("start", "end")}
    folder = output.with_name(f"{output.name}.pieces")
    folder.mkdir()
    with open_video(path, **span) as source:  # type: ignore[arg-type]
        with SegmentWriter(folder, source.info, settings, output=output, seconds=seconds) as writer:
            for frame in source.frames():
                writer.write(frame)
        result = assemble(writer.segments, source, output, settings, synthetic=bool(options.get("synthetic")))
    shutil.rmtree(folder)
    return result


def seen(path: Path) -> tuple[list[int], list[Fraction], Fraction]:
    """Numbers shown, times and end of a film."""
    with open_video(path) as source:
        found = list(source.frames())
        assert source.end_pts is not None and not source.damage
        base = source.info.time_base
    return [number_of(f.image) for f in found], [f.pts * base for f in found], source.end_pts * base


def first_sound(path: Path, stream: int = 0) -> Fraction:
    """When the first packet of sound is played, the encoder's lead-in included."""
    with av.open(str(path)) as file:
        packet = next(file.demux(file.streams.audio[stream]))
        assert packet.pts is not None
        return packet.pts * packet.time_base


@pytest.mark.parametrize(
    ("suffix", "variable"),
    [(".mp4", True), *(pytest.param(*p, marks=pytest.mark.slow) for p in ((".mov", False), (".mkv", True)))],
)
def test_frames_duration_and_sound_are_the_sources(tmp_path: Path, suffix: str, variable: bool) -> None:
    source, output = tmp_path / "a.mp4", tmp_path / f"b{suffix}"
    times: Sequence[int] | int = variable_times(40) if variable else [3000 * i for i in range(40)]
    make_clip(source, times, time_base=Fraction(1, 90_000), audio="aac", audio_seconds=1.5)
    result = redo(source, output)
    numbers, ticks, end = seen(source)
    got_numbers, got_ticks, got_end = seen(output)
    assert got_numbers == numbers == list(range(40)) and result.frames == 40
    late = got_ticks[0] - ticks[0]  # Matroska moves the whole film by the sound's priming, which lies before 0
    rounding = Fraction(1, 1000) if suffix == ".mkv" else 0
    assert 0 <= late <= (Fraction(25, 1000) if suffix == ".mkv" else 0)
    assert max(abs(b - late - a) for a, b in zip(ticks, got_ticks, strict=True)) <= rounding
    assert abs(got_end - late - end) <= Fraction(2, 1000)
    assert result.duration == pytest.approx(float(end - ticks[0]), abs=1e-3)
    assert audio_hash(output) == audio_hash(source)
    assert abs(first_sound(output) - late - first_sound(source)) <= Fraction(2, 1000)
    assert result.audio_streams == 1 and result.notes == ()


@pytest.mark.parametrize(
    ("before", "codec", "after"),
    [
        pytest.param(".mkv", "vorbis", ".mp4", marks=pytest.mark.slow),
        (".mkv", "libopus", ".mp4"),
        pytest.param(".mkv", "libopus", ".webm", marks=pytest.mark.slow),
        pytest.param(".mov", "pcm_s16le", ".mov", marks=pytest.mark.slow),
        pytest.param(".mkv", "flac", ".mkv", marks=pytest.mark.slow),
        pytest.param(".avi", "libmp3lame", ".mp4", marks=pytest.mark.slow),
        (".ts", "aac", ".mp4"),
    ],
)
def test_sound_codecs(tmp_path: Path, before: str, codec: str, after: str) -> None:
    source, output = tmp_path / f"a{before}", tmp_path / f"b{after}"
    if codec == "vorbis":  # PyAV's FFmpeg cannot write it, the other build can
        make_clip(tmp_path / "silent.mkv", 20)
        tone = ("-f", "lavfi", "-i", "sine=duration=0.6", "-i", str(tmp_path / "silent.mkv"))
        ffmpeg(*tone, "-map", "1:v", "-map", "0:a", "-c:v", "copy", "-c:a", "libvorbis", str(source))
    else:
        make_clip(source, 20, audio=codec, audio_seconds=0.6)
    result = redo(source, output)
    assert result.audio_streams == 1 and seen(output)[0] == list(range(20))
    if ".ts" not in (before, after):  # there AAC carries a header of its own in every packet
        assert audio_hash(output) == audio_hash(source)
    apart = [first_sound(path) - seen(path)[1][0] for path in (source, output)]
    assert abs(apart[0] - apart[1]) <= Fraction(2, 1000)


@pytest.mark.parametrize(("starts", "origin", "suffix"), [((0.3,), 0, ".mkv"), ((0.25, 0.1), 18_000, ".mp4")])
def test_sound_that_begins_elsewhere_stays_in_step(
    tmp_path: Path, starts: tuple[float, ...], origin: int, suffix: str
) -> None:
    source, output = tmp_path / f"a{suffix}", tmp_path / f"b{suffix}"
    make_clip(
        source, [origin + 3000 * i for i in range(30)], time_base=Fraction(1, 90_000), audio="aac", audio_at=starts
    )
    redo(source, output)
    for stream in range(len(starts)):
        before = first_sound(source, stream) - seen(source)[1][0]
        after = first_sound(output, stream) - seen(output)[1][0]
        assert abs(before - after) <= Fraction(2, 1000)
        assert audio_hash(output, stream) == audio_hash(source, stream)


def test_spans_cut_the_sound_too(tmp_path: Path) -> None:
    source, output = tmp_path / "a.mp4", tmp_path / "b.mp4"
    make_clip(source, 90, audio="aac", audio_seconds=3.0)
    redo(source, output, start=1.0, end=2.0)
    numbers, ticks, end = seen(output)
    assert numbers == list(range(30, 60)) and ticks[0] == 0 and end == 1
    with av.open(str(output)) as file:
        stream = file.streams.audio[0]
        times = [p.pts * p.time_base for p in file.demux(stream) if p.size and p.pts is not None]
    assert -0.03 < times[0] <= 0 and 0.95 < times[-1] < 1.0


def test_nothing_of_the_source_but_picture_and_sound(tmp_path: Path) -> None:
    tags = {"title": "My street", "location": "+48.8577+002.2950/", "artist": "Jane", "comment": "home"}
    for name, audio in (("a.mov", "aac"), ("a.mkv", "libopus")):
        source = tmp_path / name
        options = {"movflags": "use_metadata_tags"} if name == "a.mov" else {}
        make_clip(source, 20, tags=tags, options=options, audio=audio, subtitles=name == "a.mkv", cover=name == "a.mov")
        assert b"Jane" in source.read_bytes() and b"48.8577" in source.read_bytes()
        output = source.with_name(f"out-{name}")
        redo(source, output)
        data = output.read_bytes()
        for secret in (b"48.8577", b"Jane", b"My street", b"At home", b"Hello", b"home", b"creation"):
            assert secret not in data, secret
        with av.open(str(output)) as file:
            assert [stream.type for stream in file.streams] == ["video", "audio"] and not file.chapters()


def test_films_become_animations_and_animations_films(tmp_path: Path) -> None:
    make_clip(tmp_path / "a.mp4", 20, audio="aac", time_base=Fraction(1, 25))
    result = redo(tmp_path / "a.mp4", tmp_path / "b.gif")
    numbers, ticks, end = seen(tmp_path / "b.gif")
    assert numbers == list(range(20)) and ticks == [Fraction(i, 25) for i in range(20)]
    assert len(result.notes) == 1 and "sound is dropped" in result.notes[0]
    redo(tmp_path / "b.gif", tmp_path / "c.mp4", seconds=0.2)
    assert seen(tmp_path / "c.mp4") == (numbers, ticks, end)


@pytest.mark.parametrize(
    ("before", "codec", "after", "now"),
    [
        (".avi", "pcm_mulaw", ".mp4", "aac"),
        pytest.param(".mp4", "aac", ".webm", "opus", marks=pytest.mark.slow),
        pytest.param(".3gp", "libopencore_amrnb", ".mkv", "aac", marks=pytest.mark.slow),
    ],
)
def test_sound_that_the_container_cannot_hold_is_recoded(
    tmp_path: Path, before: str, codec: str, after: str, now: str
) -> None:
    source, output = tmp_path / f"a{before}", tmp_path / f"b{after}"
    if codec == "libopencore_amrnb":
        make_clip(tmp_path / "a.mkv", 45, audio="pcm_s16le", audio_seconds=1.5)
        ffmpeg("-i", str(tmp_path / "a.mkv"), "-c:v", "copy", "-c:a", codec, "-ar", "8000", "-ab", "12.2k", str(source))
    else:
        make_clip(source, 45, audio=codec, audio_seconds=1.5)
    with open_video(source) as film:
        check_output(film, output, EncodeOptions())
    result = redo(source, output)
    assert len(result.notes) == 1 and result.damage == ()

    def heard(path: Path) -> tuple[str, int, float, NDArray[np.float64]]:
        """Codec, rate, seconds before the picture, samples."""
        with av.open(str(path)) as file:
            frames = list(file.decode(audio=0))
            tone = np.concatenate([frame.to_ndarray()[0] for frame in frames]).astype(float)
            late = float(frames[0].pts * frames[0].time_base - seen(path)[1][0])
            return file.streams.audio[0].codec_context.name, frames[0].sample_rate, late, tone

    name, rate, late, tone = heard(output)
    assert name == now and late == pytest.approx(heard(source)[2], abs=0.05)
    assert len(tone) / rate == pytest.approx(1.5, abs=0.12)
    spectrum = np.abs(np.fft.rfft(tone))
    assert spectrum.argmax() * rate / len(tone) == pytest.approx(440, abs=3)


def test_the_output_is_checked_before_the_work(tmp_path: Path) -> None:
    path, options = tmp_path / "a.mkv", EncodeOptions()
    make_clip(path, 10, audio="aac")
    (tmp_path / "link.mkv").symlink_to(path)
    (tmp_path / "there.mkv").touch()
    with open_video(path) as source:
        for name in ("a.mkv", "link.mkv", "none/b.mkv"):
            with pytest.raises(InputError):
                check_output(source, tmp_path / name, options, overwrite=True)
        with pytest.raises(InputError, match="exists already"):
            check_output(source, tmp_path / "there.mkv", options)
        check_output(source, tmp_path / "b.webm", EncodeOptions(audio="drop"))
        check_output(source, tmp_path / "there.mkv", options, overwrite=True)
        with pytest.raises(UsageError, match="copy or drop"):
            check_output(source, tmp_path / "b.mkv", EncodeOptions(audio="keep"))
        with pytest.raises(UsageError, match="cannot hold"):
            check_output(source, tmp_path / "b.webm", EncodeOptions(codec="hevc"))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.mkv", "link.mkv", "there.mkv"]


@pytest.mark.parametrize(("space", "full"), [(1, True), (5, False)])
def test_a_result_says_which_colours_it_has(tmp_path: Path, space: int, full: bool) -> None:
    make_clip(tmp_path / "a.mkv", 2, codec="ffv1", pixel_format="yuv444p", colours=(space, 2 if full else 1))
    redo(tmp_path / "a.mkv", tmp_path / "b.mkv", codec="ffv1")
    with open_video(tmp_path / "b.mkv") as source:
        assert (source.info.colour_space, source.info.colour_range) == (space, 2 if full else 1)


def test_damaged_segments_and_a_full_disk_leave_nothing(tmp_path: Path) -> None:
    path, output, options = tmp_path / "a.mp4", tmp_path / "b.mp4", EncodeOptions()
    make_clip(path, 40, audio="aac", audio_seconds=1.5)
    (tmp_path / "segments").mkdir()
    with open_video(path) as source:
        with SegmentWriter(tmp_path / "segments", source.info, options, output=output) as writer:
            for frame in source.frames():
                writer.write(frame)
        segments = writer.segments
        with files_limited_to(4_000), pytest.raises(InputError, match=r"cannot be written .*make room"):
            assemble(segments, source, output, options)
        with pytest.raises(InputError, match="nothing to assemble"):
            assemble([], source, output, options)
        output.write_bytes(b"mine")
        with pytest.raises(InputError, match="exists already"):
            assemble(segments, source, output, options)
        assert output.read_bytes() == b"mine"
        whole = segments[0].path.read_bytes()
        for content in (whole[: len(whole) // 2], b"damaged"):
            segments[0].path.write_bytes(content)
            with pytest.raises(InputError, match="is damaged"):
                assemble(segments, source, output, options)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.mp4", "b.mp4", "segments"]


def boxes(data: bytes) -> list[tuple[bytes, bytes]]:
    """Names and contents of the boxes at the top of an MP4."""
    found, place = [], 0
    while place < len(data):
        size = int.from_bytes(data[place : place + 4])
        found.append((data[place + 4 : place + 8], data[place + 8 : place + size]))
        place += size
    return found


def source_type(path: Path) -> str | None:
    """What a file says that its picture is made of, as other programs find it."""
    if path.suffix in (".mp4", ".mov"):
        name = bytes.fromhex("BE7ACFCB97A942E89C71999491E3AFAC")
        packets = [content[16:] for kind, content in boxes(path.read_bytes()) if kind + content[:16] == b"uuid" + name]
    elif path.suffix == ".gif":
        data, packets = path.read_bytes(), []
        if (begin := data.find(b"!\xff\x0bXMP DataXMP") + 14) > 14:
            packets, place = [data[begin : data.index(b"\x01\xff\xfe", begin)]], begin
            while data[place]:  # as readers go on that know nothing of XMP
                place += data[place] + 1
            assert data[place + 1 :] == b";"
    else:
        with av.open(str(path)) as file:
            return {key.upper(): value for key, value in file.metadata.items()}.get("DIGITAL_SOURCE_TYPE")
    if not packets:
        return None
    (root,) = [ET.fromstring(packet) for packet in packets]
    return root.findtext(".//{http://iptc.org/std/Iptc4xmpExt/2008-02-29/}DigitalSourceType")


@pytest.mark.parametrize(
    ("suffix", "synthetic"),
    [
        (".mp4", True),
        *(pytest.param(suffix, True, marks=pytest.mark.slow) for suffix in (".mov", ".mkv", ".webm", ".gif")),
        *(pytest.param(suffix, False, marks=pytest.mark.slow) for suffix in (".mp4", ".mkv")),
    ],
)
def test_films_say_that_a_model_drew_in_them(tmp_path: Path, suffix: str, synthetic: bool) -> None:
    source, output = tmp_path / "a.mp4", tmp_path / f"b{suffix}"
    make_clip(source, 20, audio=None, time_base=Fraction(1, 25))
    result = redo(source, output, synthetic=synthetic)
    assert result.synthetic == synthetic and not result.notes
    assert source_type(output) == (DIGITAL_SOURCE_TYPE if synthetic else None)
    assert seen(output)[0] == list(range(20))
    assert len(ffmpeg("-xerror", "-i", str(output), "-f", "framemd5", "-").splitlines()) > 20
