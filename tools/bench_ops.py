"""The ops of ficgan.ops beside their reference, torch.compile of it, and the time memory alone would take.

    python tools/bench_ops.py [--device cuda] [--size 256] [--dtype float16 float32] [--layout contiguous channels_last]
                              [--op NAME ...] [--compile | --no-compile] [--seconds 3]

`--size` is that of the input, MiB. The floor of an op is a copy that moves as many bytes as the op must: its inputs
read once, its outputs written once; of a backward pass, the gradient and what the derivative depends on. "%" is that
floor over the op's time, the share of copy bandwidth it reaches. Op, variants and copy are timed in turn; every result
is compared with the reference before. On a GPU with inputs of 256 MiB or more the bars of the project are judged: 70 %
of copy bandwidth; bias_act at most 5 % slower than torch.compile; upfirdn2d faster than it.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil

import torch
from _timing import copy_of, extra_memory, interleaved, machine, median
from torch import Tensor

from ficgan import ops
from ficgan.device import resolve_device
from ficgan.errors import FicganError, UsageError
from ficgan.ops import library

LAYOUTS = {"contiguous": torch.contiguous_format, "channels_last": torch.channels_last}
TOLERANCE = {torch.float64: 1e-10, torch.float32: 2e-3, torch.float16: 1e-2, torch.bfloat16: 5e-2}
"""Difference from the reference as a share of it, root mean squares: single elements differ more at the kink of lrelu.
That of float32 lets the reference's convolutions compute in TF32."""
SHARE_OF_COPY, BESIDE_COMPILE, BARS_FROM_MIB = 0.7, 1.05, 256
NATIVE, REFERENCE, COMPILED, FLOOR = "native", "reference", "compiled", "copy"

Op = Callable[..., Tensor]


@dataclass(frozen=True)
class Case:
    """One op on one input."""

    name: str
    op: Op
    """Of the differentiable inputs; takes impl=."""
    inputs: tuple[Tensor, ...]
    backward: bool
    bytes: float
    """What it must move."""


NAMES = (
    "bias_act",
    "bias_act forward+backward",
    "upfirdn2d up 2",
    "upfirdn2d down 2",
    "upfirdn2d filter",
    "scale_bias_lrelu",
    "scale_bias_lrelu forward+backward",
    "adain",
    "adain forward+backward",
)


def make(name: str, mib: float, dtype: torch.dtype, layout: str, device: torch.device) -> Case:
    """The case of an op on an input of at least `mib` MiB: 64 channels at 256², smaller where one image is too much."""
    item, channels, side = dtype.itemsize, 64, 256
    while channels * side * side * item > mib * 2**20 and side > 8:
        side //= 2
    batch = max(1, ceil(mib * 2**20 / (channels * side * side * item)))
    torch.manual_seed(0)
    shape = (batch, channels, side, side)
    x = torch.randn(shape, device=device, dtype=dtype).contiguous(memory_format=LAYOUTS[layout])
    b, scale, shift = (torch.randn(s, device=device, dtype=dtype) for s in ((channels,), *[(batch, channels)] * 2))
    size, small, backward = float(x.nbytes), float(b.nbytes), name.endswith("backward")
    op, _, detail = name.partition(" ")
    if op == "upfirdn2d":
        taps = ops.setup_filter(device=device)
        up, down = {"up 2": (2, 1), "down 2": (1, 2), "filter": (1, 1)}[detail]
        padding = (1, 1, 1, 1) if down == 2 else (2, 1, 2, 1)
        gain = float(up * up)

        def resample(x: Tensor, impl: str) -> Tensor:
            return ops.upfirdn2d(x, taps, up=up, down=down, padding=padding, gain=gain, impl=impl)

        return Case(name, resample, (x,), False, size + size * up * up / (down * down) + taps.nbytes)
    if op == "bias_act":
        # Backward reads the gradient and the output, whose sign is the slope, and writes the gradient of the input.
        moved = (5 * size if backward else 2 * size) + (2 if backward else 1) * small
        return Case(name, lambda x, b, impl: ops.bias_act(x, b, act="lrelu", impl=impl), (x, b), backward, moved)
    fused = op == "scale_bias_lrelu"
    styles = (scale,) if fused else (scale, shift)
    # Backward reads the gradient and the input, of which the styles' gradients are made, and writes the input's.
    moved = (5 * size if backward else 2 * size) + (small + sum(s.nbytes for s in styles)) * (2 if backward else 1)
    if fused:
        inputs = (x, scale, b)
        return Case(name, lambda x, s, b, impl: ops.scale_bias_lrelu(x, s, b, impl=impl), inputs, backward, moved)
    return Case(name, lambda x, b, s, t, impl: ops.adain(x, b, s, t, impl=impl), (x, b, scale, shift), backward, moved)


def works_of(case: Case, compile: bool, device: torch.device) -> dict[str, Callable[[], Sequence[Tensor]]]:
    """The variants of a case that exist here, by name; each returns the output, and the gradients where there are."""
    variants: dict[str, Op] = {REFERENCE: lambda *inputs: case.op(*inputs, impl="ref")}
    if device.type == "cuda" and library.search().library and library.covers(device.index or 0):
        variants[NATIVE] = lambda *inputs: case.op(*inputs, impl="native")
    if compile:
        torch.compiler.reset()  # each case is compiled for its own shapes
        variants[COMPILED] = torch.compile(variants[REFERENCE], dynamic=False)
    if not case.backward:
        return {name: lambda f=f: _forward(f, case.inputs) for name, f in variants.items()}  # type: ignore[misc]
    inputs = tuple(t.detach().requires_grad_() for t in case.inputs)
    gradient = torch.randn_like(case.inputs[0])
    return {name: lambda f=f: _both(f, inputs, gradient) for name, f in variants.items()}  # type: ignore[misc]


def _forward(op: Op, inputs: tuple[Tensor, ...]) -> Sequence[Tensor]:
    with torch.no_grad():
        return [op(*inputs)]


def _both(op: Op, inputs: tuple[Tensor, ...], gradient: Tensor) -> Sequence[Tensor]:
    y = op(*inputs)
    return [y.detach(), *torch.autograd.grad(y, inputs, gradient)]


def check(case: Case, works: Mapping[str, Callable[[], Sequence[Tensor]]]) -> None:
    """Refuse to time a variant that computes something else than the reference."""
    wanted = works[REFERENCE]()
    for name, work in works.items():
        for got, expected in zip(work(), wanted, strict=True):
            # Gradients of biases and styles are sums, whose error follows the number of their terms.
            terms = case.inputs[0].numel() / got.numel() if got.ndim < 4 else 1.0
            size = max(_rms(expected), terms**0.5)
            difference = _rms(got - expected) / size
            if not difference <= TOLERANCE[got.dtype]:
                raise FicganError(
                    f"{case.name}: {name} differs from the reference by {difference:.1e} of it; not timed"
                )


def _rms(x: Tensor) -> float:
    return float(torch.linalg.vector_norm(x, dtype=torch.promote_types(x.dtype, torch.float32))) / x.numel() ** 0.5


@dataclass(frozen=True)
class Result:
    """Medians of one case: seconds and shares of copy bandwidth by variant."""

    name: str
    seconds: dict[str, float]
    share: dict[str, float]
    beside_compile: float | None
    """Time of the op as it is used here (native where there, else the reference) over torch.compile's."""
    memory: dict[str, float | None]

    @property
    def used(self) -> str:
        return NATIVE if NATIVE in self.seconds else REFERENCE


def measure(case: Case, compile: bool, device: torch.device, seconds: float) -> Result:
    """Check and time one case."""
    works = works_of(case, compile, device)
    check(case, works)
    memory = {name: extra_memory(work, device) for name, work in works.items()}
    rounds = interleaved({FLOOR: copy_of(case.bytes, device), **works}, device, seconds)
    used = NATIVE if NATIVE in works else REFERENCE
    return Result(
        case.name,
        {name: median(rounds, lambda r, n=name: r[n]) for name in (FLOOR, *works)},  # type: ignore[misc]
        {name: median(rounds, lambda r, n=name: r[FLOOR] / r[n]) for name in works},  # type: ignore[misc]
        median(rounds, lambda r: r[used] / r[COMPILED]) if compile else None,
        memory,
    )


def verdict(result: Result, on_gpu: bool, mib: float) -> str:
    """The bars that apply to a result: "pass", or which of them it misses; "–" where none is judged."""
    if not on_gpu or mib < BARS_FROM_MIB:
        return "–"
    missed = [] if result.share[result.used] >= SHARE_OF_COPY else [f"< {SHARE_OF_COPY:.0%} of copy"]
    ratio = result.beside_compile
    limit = BESIDE_COMPILE if result.name.startswith("bias_act") else 1.0
    if result.name.startswith(("bias_act", "upfirdn2d")):
        if ratio is None:
            missed.append("not compared with compile")
        elif ratio > limit or (limit == 1.0 and ratio == 1.0):
            missed.append(f"{ratio:.2f}× compile")
    return "pass" if not missed else "FAIL: " + ", ".join(missed)


def row(result: Result, dtype: str, layout: str, verdict: str) -> str:
    """A line of the table."""
    cells = [result.name, dtype, layout, f"{result.seconds[FLOOR] * 1000:.3f}"]
    for name in (NATIVE, REFERENCE, COMPILED):
        there = name in result.seconds
        cells.append(f"{result.seconds[name] * 1000:.3f} ({result.share[name]:.0%})" if there else "–")
    peaks = [f"{mib:.0f}" for name in (NATIVE, REFERENCE, COMPILED) if (mib := result.memory.get(name)) is not None]
    ratio = "–" if result.beside_compile is None else f"{result.beside_compile:.2f}"
    return f"| {' | '.join([*cells, ratio, ' / '.join(peaks) or '–', verdict])} |"


HEAD = (
    "| op | dtype | layout | copy floor ms | native ms (% of copy) | reference ms (%) | torch.compile ms (%) "
    "| used / compile | extra MiB, in that order | bars |\n|-|-|-|-|-|-|-|-|-|-|"
)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="auto", help="cpu, cuda or auto")
    parser.add_argument("--size", type=float, help="MiB of the input (default 256 on a GPU, 32 on a CPU)")
    parser.add_argument("--dtype", nargs="+", help="default: float16, bfloat16 and float32 on a GPU, float32 on a CPU")
    parser.add_argument("--layout", nargs="+", choices=LAYOUTS, default=list(LAYOUTS))
    parser.add_argument("--op", nargs="+", default=list(NAMES), metavar="NAME", help=f"of {'; '.join(NAMES)}")
    parser.add_argument("--compile", action=argparse.BooleanOptionalAction, help="default: on a GPU only")
    parser.add_argument("--seconds", type=float, default=2.0, help="time for each row")
    parser.add_argument("--threads", type=int, help="torch threads on a CPU; all cores if not given")
    options = parser.parse_args(arguments)
    try:
        bench(options)
    except FicganError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


def bench(options: argparse.Namespace) -> None:
    device = torch.device(resolve_device(options.device))
    on_gpu = device.type == "cuda"
    ops.keep_freed_memory()
    if options.threads:
        torch.set_num_threads(options.threads)
    mib = options.size if options.size is not None else (256.0 if on_gpu else 32.0)
    compile = on_gpu if options.compile is None else options.compile
    dtypes = [_dtype(name) for name in options.dtype or (["float16", "bfloat16", "float32"] if on_gpu else ["float32"])]
    unknown = [name for name in options.op if name not in NAMES]
    if unknown or mib <= 0:
        raise UsageError(
            f"there is no op {unknown[0]!r} here; name some of {'; '.join(NAMES)}"
            if unknown
            else f"--size {mib:g} is no size; give MiB above 0"
        )
    print(f"Inputs of {mib:g} MiB; {machine(device)}\n\n{HEAD}", flush=True)
    for dtype in dtypes:
        for layout in options.layout:
            for name in options.op:
                case = make(name, mib, dtype, layout, device)
                result = measure(case, compile, device, options.seconds)
                print(row(result, str(dtype).removeprefix("torch."), layout, verdict(result, on_gpu, mib)), flush=True)
                del case
                if on_gpu:
                    torch.cuda.empty_cache()


def _dtype(name: str) -> torch.dtype:
    dtype = getattr(torch, name, None)
    if dtype not in TOLERANCE:
        raise UsageError(f"--dtype {name} is unknown; use float16, bfloat16, float32 or float64")
    return dtype


if __name__ == "__main__":
    sys.exit(main())
