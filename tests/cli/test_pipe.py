"""`ficgan pipe`: between two FFmpegs, with the frames' bytes counted and compared; cut streams and closed pipes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import imageio_ffmpeg
import numpy as np
import pytest
from click.testing import CliRunner
from PIL import Image

from ficgan.cli.pipe import RawFormat, pipe
from ficgan.errors import UsageError

ROOT = Path(__file__).resolve().parents[2]
PIPE = [sys.executable, "-m", "ficgan.cli.main", "pipe"]
RAW = ["-hide_banner", "-loglevel", "error", "-f", "rawvideo"]
WIDTH, HEIGHT, FRAMES = 320, 240, 12
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}


def moving(frames: int = FRAMES) -> np.ndarray:
    """The astronaut, moved by two pixels a frame: uint8 [n,240,320,3]."""
    photo = np.asarray(Image.open(ROOT / "tools" / "astronaut.jpg").convert("RGB"))
    return np.stack([photo[:HEIGHT, 40 + 2 * number : 40 + 2 * number + WIDTH] for number in range(frames)])


def ficgan(data: bytes, *options: str, size: tuple[int, int] = (WIDTH, HEIGHT)) -> subprocess.CompletedProcess[bytes]:
    command = [*PIPE, "--size", f"{size[0]}x{size[1]}", "--mode", "solid", "--no-verify", *options]
    return subprocess.run(command, input=data, capture_output=True, env=ENVIRONMENT, check=False)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["solid", "ficgan"])
def test_between_two_ffmpegs(tmp_path: Path, mode: str) -> None:
    """Lossless on both sides: the faces change in every frame, everything else stays bit by bit."""
    ffmpeg, source, out = imageio_ffmpeg.get_ffmpeg_exe(), tmp_path / "in.mkv", tmp_path / "out.mkv"
    raw = [*RAW, "-pix_fmt", "rgb24", "-s", f"{WIDTH}x{HEIGHT}", "-r", "25"]
    frames = moving()
    subprocess.run(
        [ffmpeg, *raw, "-i", "-", "-c:v", "ffv1", "-pix_fmt", "bgr0", str(source)], input=frames.tobytes(), check=True
    )
    reader = subprocess.Popen(
        [ffmpeg, "-loglevel", "error", "-i", str(source), "-f", "rawvideo", "-pix_fmt", "rgb24", "-"],
        stdout=subprocess.PIPE,
    )
    middle = subprocess.Popen(
        [*PIPE, "--size", f"{WIDTH}x{HEIGHT}", "--fps", "25", "--mode", mode, "--seed", "3"],
        stdin=reader.stdout,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=ENVIRONMENT,
    )
    writer = subprocess.Popen(
        [ffmpeg, *raw, "-i", "-", "-c:v", "ffv1", "-pix_fmt", "bgr0", str(out)], stdin=middle.stdout
    )
    for process in (reader, middle):
        assert process.stdout is not None
        process.stdout.close()
    _, said = middle.communicate()
    assert (reader.wait(), middle.returncode, writer.wait()) == (0, 0, 0), said.decode()
    account = json.loads(said.splitlines()[-1])
    assert account["frames"] == FRAMES and account["tracks"] == 1 and account["look_ahead"] == 10
    done = subprocess.run(
        [ffmpeg, "-loglevel", "error", "-i", str(out), "-f", "rawvideo", "-pix_fmt", "rgb24", "-"],
        capture_output=True,
        check=True,
    ).stdout
    result = np.frombuffer(done, np.uint8).reshape(frames.shape)
    for number, (before, after) in enumerate(zip(frames, result, strict=True)):
        nose = slice(105, 130), slice(170 - 2 * number, 195 - 2 * number)
        assert (before[nose] != after[nose]).any(-1).mean() > 0.9, number
        assert np.array_equal(before[:, 280:], after[:, 280:]) and np.array_equal(before[230:], after[230:])


@pytest.fixture(scope="module")
def solid() -> bytes:
    """What becomes of the frames in rgb24."""
    done = ficgan(moving().tobytes())
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_frames_come_out_as_many_as_went_in_and_a_cut_end_is_told(solid: bytes) -> None:
    data = moving().tobytes()
    assert len(solid) == len(data) and solid != data
    cut = ficgan(data + data[:1000])
    assert cut.returncode == 3 and cut.stdout == solid  # what was whole is all there
    told = cut.stderr.decode()
    assert "1,000 bytes are left after 12 whole frames" in told and "230,400 bytes a frame" in told
    assert "--size" in told and "Traceback" not in told


@pytest.mark.slow
def test_bgr_is_rgb_turned_round(solid: bytes) -> None:
    turned = ficgan(np.ascontiguousarray(moving()[..., ::-1]).tobytes(), "--pixel-format", "bgr24", "--quiet")
    assert turned.returncode == 0 and turned.stderr == b""
    assert np.frombuffer(turned.stdout, np.uint8).reshape(-1, 3)[:, ::-1].tobytes() == solid


@pytest.mark.slow
def test_a_closed_pipe_ends_with_a_sentence() -> None:
    process = subprocess.Popen(
        [*PIPE, "--size", f"{WIDTH}x{HEIGHT}", "--mode", "solid", "--no-verify"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=ENVIRONMENT,
    )
    assert process.stdin and process.stdout and process.stderr
    process.stdout.close()
    process.stdin.write(moving(4).tobytes())
    process.stdin.close()
    with process.stderr as stderr:
        told = stderr.read().decode()
    assert process.wait() == 1
    assert told == "Error: the program after the pipe took 0 frames and then closed it; see what it says\n"


class Source:
    """A stream that counts what was read of it."""

    def __init__(self, frames: np.ndarray) -> None:
        self.frames, self.taken = frames, 0

    def __iter__(self) -> Iterator[np.ndarray]:
        for frame in self.frames:
            self.taken += 1
            yield frame


def test_the_delay_is_bounded_by_the_look_ahead() -> None:
    """The library's own stream: a frame is given out as soon as the look-ahead behind it was read."""
    from ficgan import Deidentifier

    engine = Deidentifier.from_pretrained(mode="solid", verify=False)
    source = Source(moving(9))
    for number, _ in enumerate(engine.stream(source, 25.0, look_ahead=3)):
        assert source.taken == min(number + 4, 9)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--size", "0x240"], "1 px or more"),
        (["--size", "99999x99999"], "megapixels"),
        (["--size", "321x240", "--pixel-format", "yuv420p"], "must be even"),
        (["--size", "wide"], "not of the form WxH"),
        (["--size", "320x240", "--fps", "0"], "fps"),
        (["--size", "320x240", "--pixel-format", "nv12"], "nv12"),
    ],
)
def test_what_cannot_be_is_told_before_anything_is_loaded(options: Sequence[str], said: str) -> None:
    outcome = CliRunner().invoke(pipe, list(options))
    assert outcome.exit_code == 2 and said in outcome.stderr and "Traceback" not in outcome.stderr


def test_an_empty_stream_is_told() -> None:
    done = ficgan(b"", "--quiet")
    assert done.returncode == 3 and b"stdin held no frame" in done.stderr and done.stdout == b""


@pytest.mark.parametrize("matrix", ["bt601", "bt709"])
@pytest.mark.parametrize("full", [False, True])
def test_yuv_changes_only_where_the_picture_does(matrix: str, full: bool, rng: np.random.Generator) -> None:
    raw = RawFormat(32, 16, "yuv420p", matrix, full)
    grey = Image.effect_noise((32, 16), 40).convert("RGB")
    data = raw._yuv.encode(np.asarray(grey)).tobytes()
    assert len(data) == raw.length == 32 * 16 * 3 // 2
    source = raw.decode(data)
    assert np.abs(source.astype(int) - np.asarray(grey)).max() <= 4
    changed = source.copy()
    changed[4:7, 8:13] = (200, 30, 60)
    again = np.frombuffer(raw.encode(changed, source, data), np.uint8)
    before = np.frombuffer(data, np.uint8)
    luma, kept = again[:512].reshape(16, 32), before[:512].reshape(16, 32)
    outside = np.ones((16, 32), bool)
    outside[4:8, 8:14] = False
    assert np.array_equal(luma[outside], kept[outside])
    chroma = (again[512:] != before[512:]).reshape(2, 8, 16)
    assert chroma[:, 2:4, 4:7].any() and chroma.sum() == chroma[:, 2:4, 4:7].sum()
    # The equations of BT.601 and BT.709 for the new colour.
    weights = {"bt601": (0.299, 0.587, 0.114), "bt709": (0.2126, 0.7152, 0.0722)}[matrix]
    expected = float(np.dot(weights, (200, 30, 60)))
    expected = expected if full else 16 + expected * 219 / 255
    assert abs(int(luma[5, 10]) - expected) <= 2
    assert raw.encode(source, source, data) == data


def test_sizes_that_cannot_be() -> None:
    with pytest.raises(UsageError, match="1 px or more"):
        RawFormat(0, 4)
