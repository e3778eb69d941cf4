"""What things cost on this machine, each beside a floor that is timed in turn with it.

    python tools/bench.py networks --checkpoint FILE | --config NAME     encode + generate, beside the bare convolutions
    python tools/bench.py ops [--device cuda] [--compile]                ficgan.ops, beside a copy of as many bytes
    python tools/bench.py train [--config NAME] [key=value ...]          a training step, beside its arithmetic
    python tools/bench.py deface [--photos london]                       `ficgan-deid` beside deface

Works are timed in turn, round after round, so that a change of the machine's speed meets all of them: ratios are what
counts. On one thread of a CPU processor time is taken, so that other programs are left out.

`deface` (pip install deface onnx onnxruntime): first photo, a folder, a large photo, and a 720p film over which a face
wanders; each program is a process of its own, start included. "uncovered" counts frames in which the middle of the face
is as it was.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from ficgan import ops
from ficgan.cli.main import handle_errors
from ficgan.config import Config, load_config
from ficgan.device import keep_freed_memory, resolve_device
from ficgan.errors import FicganError
from ficgan.models import FICGAN, InferenceModel, load_checkpoint
from ficgan.models.ficgan import Conv2d, Linear, StyleLayer
from ficgan.training.state import peak_memory_mib

Work = Callable[[], object]
Rounds = list[dict[str, float]]
LEAST_ROUNDS = 5


def timed(work: Work, device: torch.device) -> float:
    """Seconds of one call, the GPU's work included."""
    clock = time.process_time if device.type == "cpu" and torch.get_num_threads() == 1 else time.perf_counter
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    begin = clock()
    work()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return clock() - begin


def interleaved(works: Mapping[str, Work], device: torch.device, seconds: float, warm_up: int = 2) -> Rounds:
    """Seconds of each work by name, round after round for so many seconds, at least five of them."""
    for _ in range(warm_up):
        for work in works.values():
            work()
    rounds: Rounds = []
    until = time.perf_counter() + seconds
    while len(rounds) < LEAST_ROUNDS or time.perf_counter() < until:
        rounds.append({name: timed(work, device) for name, work in works.items()})
    return rounds


def median(rounds: Rounds, of: Callable[[Mapping[str, float]], float]) -> float:
    """Median over rounds of what `of` makes of each: ratios are taken within a round."""
    return statistics.median(map(of, rounds))


def arithmetic(device: torch.device, dtype: torch.dtype = torch.float32) -> dict[str, tuple[float, Work]]:
    """FLOPs and work of a large matrix product and of a large 3×3 convolution: what reaches the best rate here."""
    n, (batch, channels, side) = (8192, (64, 512, 64)) if device.type == "cuda" else (1024, (8, 128, 32))
    a, b = (torch.rand(n, n, device=device).to(dtype) for _ in range(2))
    x = torch.rand(batch, channels, side, side, device=device).to(dtype).contiguous(memory_format=torch.channels_last)
    weight = torch.rand(channels, channels, 3, 3, device=device).to(dtype)
    flops = 2.0 * batch * side * side * channels * channels * 9
    return {"matmul": (2.0 * n**3, lambda: a @ b), "conv": (flops, lambda: F.conv2d(x, weight, padding=1))}


def machine(device: torch.device) -> str:
    where = torch.cuda.get_device_name(device) if device.type == "cuda" else f"{torch.get_num_threads()} CPU threads"
    return f"{where}, torch {torch.__version__}, ops {ops.backend()}"


def table(*columns: str) -> None:
    print(f"| {' | '.join(columns)} |\n{'|-' * len(columns)}|", flush=True)


def row(*cells: object) -> None:
    print(f"| {' | '.join(f'{cell:.3g}' if isinstance(cell, float) else str(cell) for cell in cells)} |", flush=True)


# --- networks -------------------------------------------------------------------------------------------------------


def floor_of(model: FICGAN, x: Tensor) -> Work:
    """The bare convolutions and matrix products of one reconstruction of x, on tensors of the same shapes."""
    calls: list[Work] = []

    def record(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        given = inputs[0].detach().clone(memory_format=torch.preserve_format)
        weight = module.weight.detach().to(given.dtype)
        if isinstance(module, Linear):
            calls.append(lambda: F.linear(given, weight))
            return
        if isinstance(module, Conv2d) and module.down:
            given = given[:, :, ::2, ::2].contiguous(memory_format=torch.channels_last)
        calls.append(lambda: F.conv2d(given, weight, padding=weight.shape[-1] // 2))

    layers = [m for m in model.modules() if isinstance(m, Conv2d | Linear | StyleLayer)]
    hooks = [layer.register_forward_pre_hook(record) for layer in layers]
    model(x)
    for hook in hooks:
        hook.remove()

    def bare() -> None:
        for call in calls:
            call()

    return bare


def networks(options: argparse.Namespace, device: torch.device) -> None:
    """ "new face" is encode, map, styles and synthesis; "known face" leaves out map and styles."""
    named = options.config
    model = FICGAN(load_config(named).model).eval() if named else load_checkpoint(options.checkpoint)[0]
    model = model.to(device=device, memory_format=torch.channels_last)
    print(f"{model.resolution}², L = {model.num_layers}, {machine(device)}")
    table("precision", "batch", "ms/new face", "ms/known face", "floor ms/face", "ratio", "ratio known")
    for precision in options.precision:
        dtype = getattr(torch, precision)
        fast = InferenceModel(model, device=str(device), dtype=dtype)
        for batch in options.batch:
            x = torch.rand(batch, 3, model.resolution, model.resolution, device=device) * 2 - 1
            x = x.contiguous(memory_format=torch.channels_last)
            with torch.inference_mode():
                styles = fast.styles(fast.map(fast.encode(x).z_id))

                def known(x: Tensor = x, fast: InferenceModel = fast, styles: Tensor = styles) -> Tensor:
                    return fast.synthesise(styles, fast.encode(x).z_non)

                works = {"new": lambda x=x, fast=fast: fast(x), "known": known, "floor": floor_of(model, x)}
                rounds = interleaved(works, device, options.seconds)
            ms = [median(rounds, lambda r, n=name: r[n]) * 1000 / batch for name in works]
            ratios = [median(rounds, lambda r, n=name: r[n] / r["floor"]) for name in ("new", "known")]
            row(precision, batch, *ms, *ratios)
    print(f"peak memory {peak_memory_mib():.0f} MiB")


# --- ops ------------------------------------------------------------------------------------------------------------


def op_cases(mib: float, device: torch.device, dtype: torch.dtype) -> dict[str, tuple[Callable[..., Tensor], Tensor]]:
    """Ops of one channels-last input [8,128,S,S] of so many MiB; each takes it and impl=."""
    side = max(8, int((mib * 2**20 / dtype.itemsize / 8 / 128) ** 0.5) // 2 * 2)
    x = torch.randn(8, 128, side, side, device=device).to(dtype).contiguous(memory_format=torch.channels_last)
    b, style, f = torch.randn(128, device=device), torch.randn(8, 128, device=device), ops.setup_filter(device=device)
    return {
        "bias_act": (lambda x, **how: ops.bias_act(x, b, act="lrelu", **how), x),
        "scale_bias_lrelu": (lambda x, **how: ops.scale_bias_lrelu(x, style, b, **how), x),
        "adain": (lambda x, **how: ops.adain(x, b, style, style, **how), x),
        "upfirdn2d up 2": (lambda x, **how: ops.upfirdn2d(x, f, up=2, padding=(2, 1, 2, 1), **how), x[:, :, ::2, ::2]),
        "upfirdn2d down 2": (lambda x, **how: ops.upfirdn2d(x, f, down=2, padding=(1, 1, 1, 1), **how), x),
    }


def bench_ops(options: argparse.Namespace, device: torch.device) -> None:
    """Share of the bandwidth of a copy, in percent, that an op reaches, its input read and its output written once."""
    print(machine(device))
    table("op", "dtype", "copy ms", "reference ms", "%", "native ms", "%", "torch.compile ms", "%")
    native = ops.backend() == "native" and device.type == "cuda"
    for precision in options.precision:
        dtype = getattr(torch, precision)
        for name, (op, given) in op_cases(options.size, device, dtype).items():
            x = given.contiguous(memory_format=torch.channels_last)
            y = op(x, impl="ref")
            source = torch.zeros((x.nbytes + y.nbytes) // 2, dtype=torch.uint8, device=device)
            target = torch.zeros_like(source)
            works: dict[str, Work] = {
                "copy": lambda target=target, source=source: target.copy_(source),
                "reference": lambda op=op, x=x: op(x, impl="ref"),
            }
            if native:
                torch.testing.assert_close(op(x, impl="native"), y, rtol=5e-2, atol=5e-2)
                works["native"] = lambda op=op, x=x: op(x, impl="native")
            if options.compile:
                compiled = torch.compile(lambda x, op=op: op(x, impl="ref"), dynamic=False)
                works["compiled"] = lambda compiled=compiled, x=x: compiled(x)
            with torch.no_grad():
                rounds = interleaved(works, device, options.seconds)
            cells: list[object] = [median(rounds, lambda r: r["copy"]) * 1000]
            for way in ("reference", "native", "compiled"):
                if way in works:
                    cells.append(median(rounds, lambda r, w=way: r[w]) * 1000)
                    cells.append(f"{median(rounds, lambda r, w=way: r['copy'] / r[w]):.0%}")
                else:
                    cells += ["–", "–"]
            row(name, precision, *cells)


# --- train ----------------------------------------------------------------------------------------------------------


class Everything(nullcontext[None]):
    """All modules count as one."""

    parents = frozenset({"Global"})


def training_step(config: Config, options: argparse.Namespace, folder: Path) -> tuple[Callable[[bool], None], float]:
    """The loop's own step, with or without R1, at a moment when all losses take part; the share of steps with R1."""
    from ficgan.training import Team, TrainingRun

    data = list(options.data)
    if not data:
        faces, rng, side = folder / "faces", np.random.default_rng(0), config.model.resolution
        faces.mkdir()
        for index in range(config.optimizer.batch):
            Image.fromarray(rng.integers(0, 256, (side, side, 3), np.uint8)).save(faces / f"{index:04d}.png")
        data = [faces]
    run = TrainingRun(config, data, options.run or folder / "run", Team(options.device))
    loss, state = config.loss, run.state
    begin = max(loss.adversarial_start_kimg + loss.adversarial_ramp_kimg, loss.verification_ramp_kimg[1])
    state.start_images = int(begin * 1000) + 1
    state.model.train()
    state.discriminator.train()

    def step(r1: bool) -> None:
        state.d_step = 0 if r1 else 1
        run._step()

    return step, 1 / loss.r1_interval if loss.adversarial > 0 and loss.r1_gamma > 0 else 0.0


def train(options: argparse.Namespace, device: torch.device) -> None:
    """The floor is the step's FLOPs at the best rate of a large matrix product or convolution."""
    print(machine(device))
    table("config", "R", "batch", "s/kimg", "GFLOP/image", "floor s/kimg", "step / floor", "peak MiB")
    for batch in options.batch or [None]:
        sized = [] if batch is None else [f"optimizer.batch={batch}"]
        config = load_config(options.config, [*options.overrides, *sized])
        count = config.optimizer.batch
        with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that V is untrained
            step, share = training_step(config, options, Path(folder))
            flops = 0.0
            for r1, part in ((False, 1 - share), (True, share)):
                if part and not config.compile:
                    counter = FlopCounterMode(display=False)
                    counter.mod_tracker = Everything()  # its own hooks fail where R1 asks for the gradient of a leaf
                    with counter:
                        step(r1)
                    flops += part * counter.get_total_flops()
            rates = arithmetic(device)
            works: dict[str, Work] = {"plain": lambda step=step: step(False), "r1": lambda step=step: step(True)}
            works |= {name: work for name, (_, work) in rates.items()}
            rounds = interleaved(works, device, options.seconds, warm_up=1)

        def seconds(r: Mapping[str, float], share: float = share) -> float:
            return (1 - share) * r["plain"] + share * r["r1"]

        def least(r: Mapping[str, float], flops: float = flops, rates: dict[str, tuple[float, Work]] = rates) -> float:
            return flops / max(own / r[name] for name, (own, _) in rates.items())

        cells = [median(rounds, seconds) * 1000 / count, flops / count / 1e9, median(rounds, least) * 1000 / count]
        ratio = median(rounds, lambda r: seconds(r) / least(r)) if flops else "–"
        row(config.name, config.model.resolution, count, *cells, ratio, round(peak_memory_mib()))


# --- deface ---------------------------------------------------------------------------------------------------------

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
# A small process starts what is measured: the memory of a large one would count as that of its children.
_MEASURE = """
import json, os, subprocess, sys, time
began = time.perf_counter()
with open(sys.argv[1], "wb") as log:
    process = subprocess.Popen(sys.argv[2:], stdin=subprocess.DEVNULL, stdout=log, stderr=log)
_, status, usage = os.wait4(process.pid, 0)
cost = [time.perf_counter() - began, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024]
print(json.dumps([os.waitstatus_to_exitcode(status), *cost]))
"""
DEFACE = [sys.executable, "-c", _LAUNCH]
OURS = [sys.executable, "-m", "ficgan.cli.deid", "--seed", "1", "--quiet", "--overwrite"]
OPTIONS = {
    "ficgan-deid": [],
    "ficgan-deid --verify off": ["--verify", "off"],
    "ficgan-deid --mode blur --verify off": ["--mode", "blur", "--verify", "off"],
}
INPUTS = ("first", "folder", "large", "film")
Cost = tuple[float, float, float]  # seconds, seconds of the processors, peak MiB


def make_inputs(folder: Path, photos: Path | None, count: int, frames: int) -> None:
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
    t = np.arange(frames) / 25.0
    x = (FILM[0] - 300) / 2 * (1 + np.sin(0.8 * t)) - 60
    y = (FILM[1] - 300) / 2 * (1 + np.sin(0.5 * t)) - 40
    return np.stack([x, y], axis=-1).round().astype(np.int64)


def make_film(path: Path, where: NDArray[np.int64]) -> None:
    """Write the film, H.264, 25 frames a second."""
    import av
    import cv2

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


def uncovered(source: Path, result: Path, where: NDArray[np.int64]) -> int:
    """Frames in which the face's middle differs less from the source's than the codec alone would explain."""
    import av

    count = 0
    with av.open(str(source)) as before, av.open(str(result)) as after:
        for one, other, (x, y) in zip(before.decode(video=0), after.decode(video=0), where, strict=False):
            rows, columns = (slice(at + part.start, at + part.stop) for at, part in zip((y, x), MIDDLE, strict=True))
            a, b = (frame.to_ndarray(format="rgb24")[rows, columns].astype(int) for frame in (one, other))
            count += bool(np.abs(a - b).mean() < 6.0)
    return count


def cost_of(program: str, name: str, inputs: Path) -> Cost:
    """Run a program on one kind of input."""
    with tempfile.TemporaryDirectory() as made:
        copy, log = Path(made) / "in", Path(made) / "log.txt"  # deface writes beside its inputs
        shutil.copytree(inputs / name, copy)
        given = copy if name == "folder" else next(copy.iterdir())
        words = DEFACE if program == "deface" else [*OURS, *OPTIONS[program], "-o", f"{made}/out/"]
        command = [sys.executable, "-c", _MEASURE, str(log), *words, str(given)]
        # An installed package has its bytecode; a first run that is not counted makes it for a source tree.
        environment = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
        done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
        code, *cost = json.loads(done.stdout)
        if code not in (0, 3):
            raise FicganError(f"{program} failed: {log.read_text(errors='replace')[-500:]}")
        if name == "film":  # the last of the rounds stays
            results = copy.glob("*_anonymized.mp4") if program == "deface" else Path(made, "out").glob("*.mp4")
            shutil.copy(next(results), inputs / f"{program}.mp4")
    return cost[0], cost[1], cost[2]


def deface(options: argparse.Namespace, device: torch.device) -> None:
    """The median of rounds in which the programs take turns."""
    if importlib.util.find_spec("deface") is None:
        raise FicganError("deface is not installed here: pip install deface onnx onnxruntime")
    with tempfile.TemporaryDirectory() as folder:
        inputs, programs = Path(folder) / "inputs", ("deface", *OPTIONS)
        make_inputs(inputs, options.photos, options.count, options.frames)
        for program in programs:  # not counted: bytecode is made, and files come into memory
            cost_of(program, "first", inputs)
        print(f"{len(os.sched_getaffinity(0))} core(s), load {os.getloadavg()[0]:.1f}\n")
        table("input", "program", "s", "CPU-s", "÷ deface", "CPU ÷ deface", "peak MiB")
        for name in options.only:
            rounds = [[cost_of(program, name, inputs) for program in programs] for _ in range(options.rounds)]
            medians = np.median(rounds, axis=0)  # [programs, costs], deface first
            for program, (seconds, cpu, memory) in zip(programs, medians, strict=True):
                row(name, program, seconds, cpu, seconds / medians[0, 0], cpu / medians[0, 1], round(memory))
        if "film" in options.only:
            film, where = inputs / "film" / "film.mp4", places(options.frames)
            for program in OPTIONS:
                print(f"{program}: {uncovered(film, inputs / f'{program}.mp4', where)} uncovered frames")


# --- command line ---------------------------------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    works = {"networks": networks, "ops": bench_ops, "train": train, "deface": deface}
    for name, work in works.items():
        command = commands.add_parser(name, help=work.__doc__)
        command.add_argument("--device", default="cpu", help="cpu, cuda or auto")
        command.add_argument("--threads", type=int, help="torch threads on a CPU; all cores if not given")
        command.add_argument("--seconds", type=float, default=3.0, help="time for each row")
        command.add_argument("--compile", action="store_true", help="also by torch.compile")
        command.add_argument("--precision", nargs="+", default=["float32"], help="float32, bfloat16, float16")
        command.add_argument("--batch", type=int, nargs="+", default=[] if name == "train" else [1, 8])
        if name == "networks":
            which = command.add_mutually_exclusive_group(required=True)
            which.add_argument("--checkpoint", type=Path, help="a network's, as `ficgan train` writes it")
            which.add_argument("--config", help="this configuration's networks with random weights instead")
        elif name == "ops":
            command.add_argument("--size", type=float, default=32.0, help="MiB of the input")
        elif name == "train":
            command.add_argument("--config", default="tiny", help="name or YAML file")
            command.add_argument("--data", type=Path, nargs="+", default=[], help="aligned faces; noise if not given")
            command.add_argument("--run", type=Path, help="folder of a run: what it has read is not read again")
            command.add_argument("overrides", nargs="*", metavar="key=value", help="of the configuration")
        else:
            command.add_argument("--photos", type=Path, help="folder of photos with faces")
            command.add_argument("--count", type=int, default=204, help="photos of the folder; all of London's are 204")
            command.add_argument("--frames", type=int, default=200, help="of the film")
            command.add_argument("--rounds", type=int, default=3)
            command.add_argument("--only", nargs="+", choices=INPUTS, default=INPUTS, help="kinds of input")
    options = parser.parse_args(arguments)
    device = torch.device(resolve_device(options.device))
    keep_freed_memory()
    if options.threads:
        torch.set_num_threads(options.threads)
    works[options.command](options, device)


if __name__ == "__main__":
    handle_errors(main)()
