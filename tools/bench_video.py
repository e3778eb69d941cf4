"""Frames a second and peak memory of film redaction, beside `deface` on the same film in the same run.

    python tools/bench_video.py [--frames 200] [--size 1280x720] [--faces 1] [--rounds 2] [--film FILE]

The film is made here: a public-domain portrait (scikit-image's astronaut) moves over a textured background, so that it
is known where each face is. Every program is a process of its own, start included; programs take turns. "uncovered"
counts frames in which the middle of a face is as it was in the source.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import av
import numpy as np
from numpy.typing import NDArray

FACE = (slice(60, 200), slice(160, 290))  # of the astronaut
MIDDLE = (slice(95, 160), slice(195, 255))


def places(frames: int, size: tuple[int, int], faces: int) -> NDArray[np.int64]:
    """[frames,faces,2] top left corners of the portrait, on smooth ways that stay in the picture."""
    width, height = size
    t = np.arange(frames)[:, None] / 25.0
    phase = np.arange(faces) * 2 * np.pi / max(faces, 1)
    x = (width - 300) / 2 * (1 + np.sin(0.8 * t + phase)) - 60
    y = (height - 300) / 2 * (1 + np.sin(0.5 * t + 1.3 * phase)) - 40
    return np.stack([x, y], axis=-1).round().astype(np.int64)


def make_film(path: Path, where: NDArray[np.int64], size: tuple[int, int]) -> None:
    """Write the film, H.264, 25 frames a second."""
    from skimage.data import astronaut

    portrait = astronaut()[:300, 100:350]
    width, height = size
    rng = np.random.default_rng(0)
    texture = rng.integers(60, 190, (height // 16 + 1, width // 16 + 1, 3)).astype(np.float32)
    background = np.asarray(_enlarged(texture, width, height), np.uint8)
    with av.open(str(path), "w") as out:
        stream = out.add_stream("libx264", rate=25, options={"crf": "18", "preset": "veryfast"})
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        for corners in where:
            picture = background.copy()
            for x, y in corners:
                x0, y0, x1, y1 = max(x, 0), max(y, 0), min(x + 250, width), min(y + 300, height)
                picture[y0:y1, x0:x1] = portrait[y0 - y : y1 - y, x0 - x : x1 - x]
            out.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        out.mux(stream.encode())


def _enlarged(texture: NDArray[np.float32], width: int, height: int) -> NDArray[np.float32]:
    import cv2

    return np.asarray(cv2.resize(texture, (width, height), interpolation=cv2.INTER_CUBIC)).clip(0, 255)


def pictures(path: Path) -> Iterator[NDArray[np.uint8]]:
    with av.open(str(path)) as film:
        for frame in film.decode(video=0):
            yield frame.to_ndarray(format="rgb24")


def uncovered(source: Path, result: Path, where: NDArray[np.int64]) -> int:
    """Frames in which a face's middle differs less from the source's than the codec alone would explain."""
    count = 0
    for a, b, corners in zip(pictures(source), pictures(result), where, strict=False):
        for x, y in corners:
            rows = slice(y + MIDDLE[0].start, y + MIDDLE[0].stop)
            columns = slice(x + MIDDLE[1].start - 100, x + MIDDLE[1].stop - 100)
            change = np.abs(a[rows, columns].astype(int) - b[rows, columns]).mean()
            count += bool(change < 6.0)
    return count


def run(command: list[str]) -> tuple[float, float]:
    """Seconds, and peak memory in MiB, of a process."""
    began = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - began
    if os.waitstatus_to_exitcode(status) not in (0, 3):
        said = process.stderr.read().decode()[-500:] if process.stderr else ""
        raise SystemExit(f"{' '.join(command)} failed: {said}")
    return seconds, usage.ru_maxrss / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--frames", type=int, default=200)
    parser.add_argument("--size", default="1280x720")
    parser.add_argument("--faces", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=2, help="how often each program runs; the median counts")
    parser.add_argument("--film", type=Path, help="a film of yours instead; coverage is not counted then")
    options = parser.parse_args()
    width, _, height = options.size.partition("x")
    size = int(width), int(height)
    here = Path(sys.executable).parent
    with tempfile.TemporaryDirectory() as folder:
        film, where = options.film or Path(folder) / "film.mp4", None
        if options.film is None:
            where = places(options.frames, size, options.faces)
            make_film(film, where, size)
        frames = sum(1 for _ in pictures(film))
        ours = [str(here / "ficgan-deid"), str(film), "--overwrite", "--quiet", "--seed", "1"]
        theirs = [str(here / "deface"), str(film)]
        programs = {
            "ficgan blur, no second look": [*ours, "--mode", "blur", "--verify", "off"],
            "ficgan blur": [*ours, "--mode", "blur"],
            "ficgan ficgan, no second look": [*ours, "--verify", "off"],
            "ficgan ficgan": ours,
            "deface, onnxruntime": [*theirs, "--backend", "onnxrt"],
            "deface, OpenCV": [*theirs, "--backend", "opencv"],
        }
        times: dict[str, list[tuple[float, float]]] = {name: [] for name in programs}
        missed: dict[str, str] = dict.fromkeys(programs, "–")
        for _ in range(options.rounds):
            for name, command in programs.items():
                result = Path(folder) / f"{name.replace(' ', '-')}.mp4"
                times[name].append(run([*command, "-o", str(result)]))
                if where is not None:
                    missed[name] = str(uncovered(film, result, where))
        print(f"{size[0]}×{size[1]}, {frames} frames, {options.faces} face(s), {os.cpu_count()} cores")
        print("| program | frames/s | peak MiB | uncovered frames |\n|-|-|-|-|")
        for name, rows in times.items():
            seconds, memory = (statistics.median(column) for column in zip(*rows, strict=True))
            print(f"| {name} | {frames / seconds:.1f} | {memory:.0f} | {missed[name]} |")


if __name__ == "__main__":
    main()
