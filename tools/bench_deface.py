"""Time, memory and disk of `ficgan-deid` beside `deface`, on the same inputs in the same run, and which bars are met.

    python tools/bench_deface.py [--photos FOLDER] [--count 204] [--frames 200] [--rounds 3] [--only folder film]

Needs `pip install deface onnx onnxruntime` in this environment (without onnx, deface takes OpenCV, which it is then
measured with). Inputs: the first photo alone; COUNT photos of a folder (without --photos, the astronaut beside this
file in several sizes); a photo enlarged to 16 megapixels; a 720p film over which a face wanders. Each program is a
process of its own, start included, and they take turns; the median of the rounds counts. Every input gets one round,
and more as long as they end within --minutes. Processor time includes child processes. On a busy machine look at the
ratios of processor time. "uncovered" counts frames of the film in which the middle of the face is as it was in the
source. The bars are meant for two idle cores and the 204 photos of the London set.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

ASTRONAUT = Path(__file__).resolve().parent / "astronaut.jpg"
# Rows and columns of the astronaut that are pasted into the film, and of the middle of the face in these.
PORTRAIT, MIDDLE = (slice(0, 300), slice(100, 350)), (slice(95, 160), slice(95, 155))
FILM = (1280, 720)
# onnxruntime counts the processors of the machine, not those that this process may use; more threads than processors
# would be in each other's way and spoil the comparison.
_LAUNCH = """
import os, onnxruntime
from deface.deface import main
class Session(onnxruntime.InferenceSession):
    def __init__(self, model, **options):
        threads = onnxruntime.SessionOptions()
        threads.intra_op_num_threads = len(os.sched_getaffinity(0))
        super().__init__(model, threads, **options)
onnxruntime.InferenceSession = Session
main()
"""
DEFACE = [sys.executable, "-c", _LAUNCH]
OURS = [sys.executable, "-m", "ficgan.cli.deid", "--seed", "1", "--quiet", "--overwrite"]
OPTIONS = {
    "ficgan-deid": [],
    "ficgan-deid --verify off": ["--verify", "off"],
    "ficgan-deid --mode blur --verify off": ["--mode", "blur", "--verify", "off"],
}
INPUTS = {"first": "first photo", "folder": "folder", "large": "16 megapixels", "film": "720p film"}
# An installed package has its bytecode; a first run that is not counted makes it for a source tree.
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
MB = 1e6
Cost = tuple[float, float, float]  # seconds, seconds of the processors, peak MiB
Costs = dict[str, list[Cost]]  # by program, one a round
Bar = tuple[str, float, float]  # what is measured, its value, and the most it may be


def make_inputs(folder: Path, photos: Path | None, count: int, frames: int) -> None:
    """Write all inputs. A process of its own does this: what it needs would count as memory of those it starts."""
    from PIL import Image

    for name in INPUTS:
        (folder / name).mkdir(parents=True)
    if photos is None:
        with Image.open(ASTRONAUT) as astronaut:
            for number in range(count):
                photo = astronaut.resize((640 + 16 * (number % 8),) * 2)
                photo.save(folder / "folder" / f"{number:03}.jpg", quality=92)
    else:
        for path in sorted(path for path in photos.iterdir() if path.suffix.lower() in (".jpg", ".png"))[:count]:
            shutil.copy(path, folder / "folder")
    first = min((folder / "folder").iterdir())
    shutil.copy(first, folder / "first")
    with Image.open(first) as small:
        factor = (16e6 / (small.width * small.height)) ** 0.5
        size = round(small.width * factor), round(small.height * factor)
        small.convert("RGB").resize(size, Image.Resampling.BICUBIC).save(folder / "large" / "large.jpg", quality=92)
    make_film(folder / "film" / "film.mp4", places(frames))


def places(frames: int) -> NDArray[np.int64]:
    """[frames,2] top left corners of the portrait, on a smooth way that stays in the picture."""
    import numpy as np

    t = np.arange(frames) / 25.0
    x = (FILM[0] - 300) / 2 * (1 + np.sin(0.8 * t)) - 60
    y = (FILM[1] - 300) / 2 * (1 + np.sin(0.5 * t)) - 40
    return np.stack([x, y], axis=-1).round().astype(np.int64)


def make_film(path: Path, where: NDArray[np.int64]) -> None:
    """Write the film, H.264, 25 frames a second."""
    import av
    import cv2
    import numpy as np
    from PIL import Image

    portrait = np.asarray(Image.open(ASTRONAUT).convert("RGB"))[PORTRAIT]
    width, height = FILM
    texture = np.random.default_rng(0).integers(60, 190, (height // 16 + 1, width // 16 + 1, 3)).astype(np.float32)
    background = cv2.resize(texture, FILM, interpolation=cv2.INTER_CUBIC).clip(0, 255).astype(np.uint8)
    with av.open(str(path), "w") as out:
        stream = out.add_stream("libx264", rate=25, options={"crf": "18", "preset": "veryfast"})
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        for x, y in where:
            picture = background.copy()
            x0, y0, x1, y1 = max(x, 0), max(y, 0), min(x + 250, width), min(y + 300, height)
            picture[y0:y1, x0:x1] = portrait[y0 - y : y1 - y, x0 - x : x1 - x]
            out.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        out.mux(stream.encode())


def pictures(path: Path) -> Iterator[NDArray[np.uint8]]:
    """Frames of a film, uint8 [H,W,3] RGB."""
    import av

    with av.open(str(path)) as film:
        for frame in film.decode(video=0):
            yield frame.to_ndarray(format="rgb24")


def uncovered(source: Path, result: Path, where: NDArray[np.int64]) -> int:
    """Frames in which the face's middle differs less from the source's than the codec alone would explain."""
    import numpy as np

    count = 0
    for before, after, (x, y) in zip(pictures(source), pictures(result), where, strict=False):
        middle = (slice(y + MIDDLE[0].start, y + MIDDLE[0].stop), slice(x + MIDDLE[1].start, x + MIDDLE[1].stop))
        count += bool(np.abs(before[middle].astype(int) - after[middle]).mean() < 6.0)
    return count


def run(command: list[str], folder: Path) -> Cost:
    """What a process and its children cost."""
    log = folder / "log.txt"
    began = time.perf_counter()
    with log.open("wb") as said:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=said, stderr=said, env=ENVIRONMENT)
        _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - began
    if os.waitstatus_to_exitcode(status) not in (0, 3):
        raise SystemExit(f"{' '.join(command)} failed: {log.read_text(errors='replace')[-500:]}")
    return seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


def compare(name: str, inputs: Path, costs: Costs) -> None:
    """Run every program once on one kind of input, and add what it costs."""
    for program in ("deface", *OPTIONS):
        with tempfile.TemporaryDirectory() as made:
            copy = Path(made) / "in"  # deface writes beside its inputs
            shutil.copytree(inputs / name, copy)
            given = copy if name == "folder" else next(copy.iterdir())
            options = DEFACE if program == "deface" else [*OURS, *OPTIONS[program], "-o", f"{made}/out/"]
            costs.setdefault(program, []).append(run([*options, str(given)], Path(made)))
            if name == "film":  # the last of the rounds stays
                results = copy.glob("*_anonymized.mp4") if program == "deface" else Path(made, "out").glob("*.mp4")
                shutil.copy(next(results), inputs / f"{program}.mp4")


def medians(costs: Costs) -> dict[str, Cost]:
    """The median round of each program."""
    return {
        program: (statistics.median(seconds), statistics.median(cpu), statistics.median(memory))
        for program, rows in costs.items()
        for seconds, cpu, memory in [tuple(zip(*rows, strict=True))]
    }


def table(middle: Mapping[str, Cost], what: str) -> str:
    """Rows of the Markdown table."""
    lines = []
    for program, (seconds, cpu, memory) in middle.items():
        wall, busy = (middle["deface"][n] for n in range(2))
        ratios = "– | –" if program == "deface" else f"{seconds / wall:.2f} | {cpu / busy:.2f}"
        lines.append(f"| {what} | {program} | {seconds:.1f} | {cpu:.1f} | {ratios} | {memory:.0f} |")
    return "\n".join(lines)


def install_size(name: str) -> dict[str, int]:
    """Bytes on disk of a distribution and of all that it requires without extras, by name."""
    from packaging.requirements import Requirement

    sizes: dict[str, int] = {}
    waiting = [name]
    while waiting:
        name = waiting.pop()
        try:
            found = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            found = importlib.metadata.distribution("opencv-python")
        if found.name in sizes:
            continue
        files = [Path(str(found.locate_file(path))) for path in found.files or ()]
        if found.name == "ficgan":  # perhaps editable, and then it has no list of its files
            packages = ("ficgan", "ficgan.configs", "ficgan.ops", "ficgan.pretrained")
            folders = {Path(importlib.import_module(name).__file__ or "").parent for name in packages}
            files = list({path for folder in folders for path in folder.rglob("*")})
        sizes[found.name] = sum(path.stat().st_blocks * 512 for path in files if path.is_file())
        needs = [Requirement(text) for text in found.requires or ()]
        waiting += [need.name for need in needs if need.marker is None or need.marker.evaluate({"extra": ""})]
    return sizes


def bars(middle: Mapping[str, Mapping[str, Cost]], installed: int, uncovered: Mapping[str, int]) -> list[Bar]:
    """The bars of what was measured: median costs by kind of input and program, bytes installed, frames by program."""

    def ratio(name: str, program: str) -> float:
        return middle[name][program][0] / middle[name]["deface"][0]

    def memory(name: str) -> float:
        return max(cost[2] for program, cost in middle[name].items() if program != "deface") * 2**20 / MB

    found: list[Bar] = []
    if "folder" in middle:
        found += [
            ("folder, verified: time ÷ deface's", ratio("folder", "ficgan-deid"), 1.5),
            ("folder, --verify off: time ÷ deface's", ratio("folder", "ficgan-deid --verify off"), 1.0),
            ("folder: memory, MB", memory("folder"), 500),
        ]
    if "first" in middle:
        found.append(("first photo: seconds of the processors", middle["first"]["ficgan-deid"][1], 3.0))
        found.append(("first photo: memory, MB", memory("first"), 500))
    if "large" in middle:
        found.append(("16 megapixels: time ÷ deface's", ratio("large", "ficgan-deid"), 1.5))
    if "film" in middle:
        found.append(("720p film: time ÷ deface's (2.5 times its frames a second)", ratio("film", "ficgan-deid"), 0.4))
        found.append(("720p film: memory, MB", memory("film"), 700))
    found += [(f"720p film, {program}: uncovered frames", count, 0) for program, count in uncovered.items()]
    return [*found, ("light install: MB on disk", installed / MB, 400)]


def verdicts(found: list[Bar]) -> str:
    """A Markdown table of bars, met or missed."""
    rows = ["| bar | measured | at most | |", "|-|-|-|-|"]
    for what, value, most in found:
        rows.append(f"| {what} | {value:.2f} | {most:g} | {'met' if value <= most else 'missed'} |")
    return "\n".join(rows)


def main(arguments: Sequence[str] | None = None) -> None:
    """Make the inputs, run all programs, print the table."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--photos", type=Path, help="folder of photos with faces")
    parser.add_argument("--count", type=int, default=204, help="photos of the folder; all of London's are 204")
    parser.add_argument("--frames", type=int, default=200, help="of the film")
    parser.add_argument("--rounds", type=int, default=3, help="how often each program runs at most")
    parser.add_argument("--minutes", type=float, default=7.0, help="in which further rounds must end")
    parser.add_argument("--only", nargs="+", choices=list(INPUTS), default=list(INPUTS), help="kinds of input")
    parser.add_argument("--make", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args(given)
    if options.make:
        make_inputs(options.make, options.photos, options.count, options.frames)
        return
    began = time.perf_counter()
    if importlib.util.find_spec("deface") is None:
        raise SystemExit("deface is not installed here: pip install deface onnx onnxruntime")
    with tempfile.TemporaryDirectory() as folder:
        inputs = Path(folder) / "inputs"
        subprocess.run([sys.executable, __file__, *given, "--make", str(inputs)], check=True)
        count = len(list((inputs / "folder").iterdir()))
        compare("first", inputs, {})  # not counted: bytecode is made, and files come into memory
        costs: dict[str, Costs] = {name: {} for name in options.only}
        lasted: dict[str, float] = {}
        for _ in range(options.rounds):
            for name in options.only:
                if time.perf_counter() - began + lasted.get(name, 0.0) > 60 * options.minutes and name in lasted:
                    continue
                start = time.perf_counter()
                compare(name, inputs, costs[name])
                lasted[name] = time.perf_counter() - start
        cores = len(os.sched_getaffinity(0))
        print(f"{cores} core(s), load {os.getloadavg()[0]:.1f}\n")
        print("| input | program | s | CPU-s | ÷ deface | CPU ÷ deface | peak MiB |\n|-|-|-|-|-|-|-|")
        middle = {name: medians(rows) for name, rows in costs.items()}
        for name in options.only:
            what = {"folder": f"{count} photos", "film": f"720p film, {options.frames} frames"}.get(name, INPUTS[name])
            rounds = len(costs[name]["deface"])
            print(table(middle[name], f"{what} ({rounds} round{'s' * (rounds > 1)})"))
        shown = {}
        if "film" in options.only:
            source, where = inputs / "film" / "film.mp4", places(options.frames)
            shown = {program: uncovered(source, inputs / f"{program}.mp4", where) for program in ("deface", *OPTIONS)}
            print("\nUncovered frames: " + ", ".join(f"{program} {number}" for program, number in shown.items()))
    sizes = {name: install_size(name) for name in ("ficgan", "deface")}
    print("\nOn disk, MB, without pip:")
    for name, parts in sizes.items():
        most = sorted(parts.items(), key=lambda pair: -pair[1])
        print(f"{name} {sum(parts.values()) / MB:.0f}: " + ", ".join(f"{part} {size / MB:.0f}" for part, size in most))
    shown.pop("deface", None)
    print("\n" + verdicts(bars(middle, sum(sizes["ficgan"].values()), shown)))


if __name__ == "__main__":
    main()
