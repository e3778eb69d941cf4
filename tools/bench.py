"""What things cost on this machine, each beside a floor that is timed in turn with it.

    python tools/bench.py networks --checkpoint FILE | --config NAME     encode + generate, beside the bare convolutions
    python tools/bench.py ops [--device cuda] [--compile]                ficgan.ops, beside a copy of as many bytes
    python tools/bench.py train [--config NAME] [key=value ...]          a training step, beside its arithmetic
    python tools/bench.py bank [--codes 1000000]                         a large identity bank, beside bare reading
    python tools/bench.py deface …                                       `ficgan-deid` beside deface

Works are timed in turn, round after round, so that a change of the machine's speed meets all of them: ratios are what
counts. On one thread of a CPU processor time is taken, so that other programs are left out.
"""

from __future__ import annotations

import argparse
import resource
import statistics
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
from PIL import Image
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from ficgan import ops
from ficgan.cli._console import handle_errors
from ficgan.config import Config, load_config
from ficgan.device import resolve_device
from ficgan.models import FICGAN, InferenceModel, load_checkpoint
from ficgan.models.ficgan import Conv2d, Linear, StyleLayer

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


def peak_mib(device: torch.device) -> float:
    """Most MiB in use so far: allocated on the GPU, or resident in this process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**20
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


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
    print(f"peak memory {peak_mib(device):.0f} MiB")


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
        "upfirdn2d down 2": (lambda x, **how: ops.upfirdn2d(x, f, down=2, padding=1, **how), x),
    }


def bench_ops(options: argparse.Namespace, device: torch.device) -> None:
    """Share of the bandwidth of a copy (%) that an op reaches, its input read and its output written once."""
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
    """No modules are told apart."""

    parents = frozenset({"Global"})


def training_step(config: Config, options: argparse.Namespace, folder: Path) -> tuple[Callable[[bool], None], float]:
    """The loop's own step, with or without R1, at a moment when all losses take part; the share of steps with R1."""
    from ficgan.training.loop import Team, TrainingRun

    data = list(options.data)
    if not data:
        faces, rng, side = folder / "faces", np.random.default_rng(0), config.model.resolution
        faces.mkdir()
        for index in range(config.optimizer.batch):
            Image.fromarray(rng.integers(0, 256, (side, side, 3), np.uint8)).save(faces / f"{index:04d}.png")
        data = [faces]
    run = TrainingRun(config, data, options.run or folder / "run", Team(options.device), None, None, None, "none")
    loss, state = config.loss, run.state
    begin = loss.adversarial_start_kimg + loss.adversarial_ramp_kimg, loss.verification_ramp_kimg[1]
    state.start_images = int(max(*begin, config.augment.start_kimg) * 1000) + 1
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
        row(config.name, config.model.resolution, count, *cells, ratio, round(peak_mib(device)))


# --- bank -----------------------------------------------------------------------------------------------------------


def bank(options: argparse.Namespace, device: torch.device) -> None:
    """A bank of made-up codes of 512 numbers with 40 attributes; the floor reads as many rows and does no more."""
    from ficgan.identity import IdentityBank

    rng, count = np.random.default_rng(0), options.codes
    codes = np.empty((count, 512), np.float16)
    for begin in range(0, count, 10_000):
        codes[begin : begin + 10_000] = rng.standard_normal(codes[begin : begin + 10_000].shape, np.float32)
    attributes = (rng.random((count, 40), np.float32) < 0.3).astype(np.uint8)
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        path = Path(folder) / "bank.safetensors"
        IdentityBank(codes, attributes, tuple(f"A{i}" for i in range(40))).save(path)
        del codes
        begin = time.perf_counter()
        people = IdentityBank.load(path)
        print(f"{count:,} codes, {path.stat().st_size / 1e6:.0f} MB, opened in {time.perf_counter() - begin:.3f} s")
        table("work", "ms", "floor ms", "ratio")
        for text in ("A0", "A0,-A1", "A0,-A1,-A2,A3,-A4"):
            rounds = interleaved({"query": lambda text=text: people.query(text)}, device, options.seconds)
            row(f"query {text}", median(rounds, lambda r: r["query"]) * 1000, "", "")
        people.k_same(2, "the seed is stretched once", seed=0)
        drawn = iter(range(10**9))
        for named in (None, "-A0"):
            group = np.arange(count) if named is None else people.query(named)
            k = min(options.k, len(group))
            works: dict[str, Work] = {
                "draw": lambda named=named, k=k: people.k_same(k, f"{next(drawn)}", attributes=named),
                "floor": lambda group=group, k=k: np.take(people.codes, np.sort(rng.choice(group, k)), axis=0),
            }
            rounds = interleaved(works, device, options.seconds)
            both = [median(rounds, lambda r, n=name: r[n]) * 1000 for name in works]
            row(f"draw {k} of {len(group):,}", *both, median(rounds, lambda r: r["draw"] / r["floor"]))


# --- command line ---------------------------------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> None:
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given[:1] == ["deface"]:
        import bench_deface

        bench_deface.main(given[1:])
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    works = {"networks": networks, "ops": bench_ops, "train": train, "bank": bank}
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
            command.add_argument("--codes", type=int, default=1_000_000)
            command.add_argument("--k", type=int, default=3000)
            command.add_argument("--folder", type=Path, help="where the temporary folder is made")
    options = parser.parse_args(given)
    device = torch.device(resolve_device(options.device))
    ops.keep_freed_memory()
    if options.threads:
        torch.set_num_threads(options.threads)
    works[options.command](options, device)


if __name__ == "__main__":
    handle_errors(main)()
