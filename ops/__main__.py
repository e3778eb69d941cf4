"""`python -m ficgan.ops`: the back end in use, why not a compiled one, whether results are right; `build` compiles."""

from __future__ import annotations

import argparse
import os
import platform
import sys
from collections.abc import Sequence

import torch

from ficgan.errors import INTERRUPTED, FicganError

from . import adain, backend, bias_act, build, library, scale_bias_lrelu, setup_filter, upfirdn2d


def self_check() -> float:
    """Largest error of the reference against loops over single samples, relative to 1."""
    x = torch.randn(1, 2, 5, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    f = setup_filter().double()
    worst = 0.0
    for up, down, padding in ((2, 1, (2, 1, 2, 1)), (1, 2, (1, 1, 1, 1)), (3, 2, (-1, 2, 1, -1))):
        for layout in (torch.contiguous_format, torch.channels_last):
            y = upfirdn2d(x.contiguous(memory_format=layout), f, up=up, down=down, padding=padding, impl="ref")
            worst = max(worst, (y - _loop(x, f, up, down, padding)).abs().max().item())
    y = bias_act(x, x.new_tensor([0.5, -0.5]), act="lrelu", impl="ref")
    for (_, c, i, j), value in zip(
        torch.cartesian_prod(*map(torch.arange, x.shape)).tolist(), y.flatten(), strict=True
    ):
        shifted = x[0, c, i, j].item() + (0.5, -0.5)[c]
        worst = max(worst, abs(value.item() - 2**0.5 * (shifted if shifted > 0 else 0.2 * shifted)))
    return worst


def _loop(x: torch.Tensor, f: torch.Tensor, up: int, down: int, padding: tuple[int, int, int, int]) -> torch.Tensor:
    x0, x1, y0, y1 = padding
    n, c, h, w = x.shape
    taps = len(f)
    rows, cols = (range(0, s * up + a + b - taps + 1, down) for s, a, b in ((h, y0, y1), (w, x0, x1)))
    out = x.new_zeros(n, c, len(rows), len(cols))
    for i, row in enumerate(rows):
        for j, col in enumerate(cols):
            for p in range(taps):
                for q in range(taps):
                    r, s = row + p - y0, col + q - x0
                    if r % up == s % up == 0 and 0 <= r // up < h and 0 <= s // up < w:
                        out[:, :, i, j] += f[taps - 1 - p] * f[taps - 1 - q] * x[:, :, r // up, s // up]
    return out


def native_check(device: str = "cuda") -> float:
    """Largest difference of the compiled ops, values and gradients, from the reference; float64, relative to 1."""
    worst = 0.0
    for layout in (torch.contiguous_format, torch.channels_last):
        made = torch.Generator().manual_seed(1)
        x = torch.randn(2, 5, 9, 7, generator=made, dtype=torch.float64).contiguous(memory_format=layout)
        b, scale, shift = (torch.randn(s, generator=made, dtype=torch.float64) for s in ((5,), (2, 5), (2, 5)))
        results = []
        for place, impl in (("cpu", "ref"), (device, "native")):
            inputs = [t.to(place).requires_grad_() for t in (x, b, scale, shift)]
            u, c, s, t = inputs
            y = bias_act(u, c, act="swish", clamp=1.0, impl=impl) + bias_act(u, c, act="lrelu", impl=impl)
            y = y + scale_bias_lrelu(u, s, c, impl=impl) + adain(u, c, s, t, impl=impl)
            y = upfirdn2d(y, setup_filter(device=place), up=3, down=2, padding=(-1, 2, 1, -1), impl=impl)
            gradients = torch.autograd.grad(y.square().sum(), inputs)
            results.append([y.detach().cpu(), *(g.cpu() for g in gradients)])
        for expected, actual in zip(*results, strict=True):
            worst = max(worst, ((expected - actual).abs().max() / expected.abs().max()).item())
    return worst


def diagnose() -> int:
    """Print the diagnosis; 0 when all is well, otherwise 1 or the exit code of the error."""
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    capabilities = [".".join(map(str, torch.cuda.get_device_capability(i))) for i in range(gpus)]
    named = [f"{torch.cuda.get_device_name(i)} (compute capability {c})" for i, c in enumerate(capabilities)]
    compiler = build.nvcc()
    release = f" (release {build.nvcc_release(compiler)})" if compiler else ""
    print(f"python         {platform.python_version()}, {platform.machine()}")
    print(f"torch          {torch.__version__}, built for CUDA {torch.version.cuda or 'no'}")
    print(f"CPU threads    {torch.get_num_threads()}")
    print(f"GPU            {', '.join(named) or 'none that torch can use'}")
    print(f"CUDA compiler  {compiler or 'not found (set CUDA_HOME, or put nvcc on PATH)'}{release}")
    print(f"FICGAN_OPS     {os.environ.get('FICGAN_OPS') or 'not set (auto)'}")
    found = library.search()
    if found.library:
        print(f"library        {found.library.path}, for compute capabilities {', '.join(found.library.archs)}")
    else:
        print(f"library        none: {'; '.join(found.problems) or found.why_not()}; {library.BUILD_HINT}")
    try:
        name = backend()
        print(f"back end       {name}{_explain(name, gpus, found)}")
        good = _report("self-check", self_check(), "a loop")
        if name == "native" and gpus and library.covers(torch.cuda.current_device()):
            good &= _report("GPU check", native_check(), "the reference")
    except FicganError as problem:
        print(problem, file=sys.stderr)
        return problem.exit_code
    return 0 if good else 1


def _explain(name: str, gpus: int, found: library.Search) -> str:
    if name == "native":
        return "" if gpus else " (but there is no GPU, and tensors on the CPU get the reference)"
    if os.environ.get("FICGAN_OPS") == "ref":
        return " (FICGAN_OPS asks for it)"
    return f" ({found.why_not()})" if gpus else " (no GPU)"


def _report(what: str, error: float, oracle: str) -> bool:
    good = error < 1e-11
    print(f"{what:14} {'passed' if good else 'FAILED'}: largest error against {oracle} {error:.1e} in float64")
    return good


def compile_ops(arch: Sequence[str]) -> int:
    """Compile the library into the user's cache folder, and load it in order to see that it works."""
    try:
        archs = build.parse_archs(" ".join(arch)) if arch else build.default_archs()
        print(f"compiling for compute capabilities {', '.join(archs)}; this takes a minute or two", flush=True)
        path = build.build(library.cache_path(), archs, say=lambda line: print(line, flush=True))
    except (FicganError, OSError) as problem:
        print(problem, file=sys.stderr)
        return 1
    problem_found = library.load(path)
    if problem_found:
        print(f"The library was built, but {problem_found}.", file=sys.stderr)
        return 1
    print(path)
    return 0


def main(arguments: Sequence[str] = ()) -> int:
    """The command line; returns the exit code, 130 after Ctrl-C."""
    parser = argparse.ArgumentParser(prog="python -m ficgan.ops", description=__doc__)
    commands = parser.add_subparsers(dest="command")
    maker = commands.add_parser("build", help="compile the CUDA kernels into the user's cache folder")
    maker.add_argument(
        "--arch",
        action="append",
        default=[],
        help="compute capabilities, as in 8.0 or '8.0;9.0+PTX' (default: $TORCH_CUDA_ARCH_LIST, else 8.0;9.0+PTX)",
    )
    given = parser.parse_args(arguments)
    try:
        return compile_ops(given.arch) if given.command == "build" else diagnose()
    except KeyboardInterrupt:
        print("Interrupted.", file=sys.stderr)
        return INTERRUPTED


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
