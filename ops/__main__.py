"""`python -m ficgan.ops`: the back end in use, what a compiled one would need, and whether results are right."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys

import torch

from ficgan.errors import FicganError

from . import backend, bias_act, setup_filter, upfirdn2d


def nvcc() -> str | None:
    """Path of the CUDA compiler, or None."""
    home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH")
    return shutil.which("nvcc", path=os.path.join(home, "bin")) if home else shutil.which("nvcc")


def self_check() -> float:
    """Largest error of the ops against loops over single samples, relative to 1."""
    x = torch.randn(1, 2, 5, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    f = setup_filter().double()
    worst = 0.0
    for up, down, padding in ((2, 1, (2, 1, 2, 1)), (1, 2, (1, 1, 1, 1)), (3, 2, (-1, 2, 1, -1))):
        for layout in (torch.contiguous_format, torch.channels_last):
            y = upfirdn2d(x.contiguous(memory_format=layout), f, up=up, down=down, padding=padding)
            worst = max(worst, (y - _loop(x, f, up, down, padding)).abs().max().item())
    y = bias_act(x, x.new_tensor([0.5, -0.5]), act="lrelu")
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


def main() -> int:
    """Print the diagnosis; 0 when all is well, otherwise 1 or the exit code of the error."""
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "none that torch can use"
    compiler = nvcc()
    version = ""
    if compiler:
        lines = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=False).stdout.splitlines()
        version = next((f" ({line.strip()})" for line in lines if "release" in line), "")
    print(f"python         {platform.python_version()}, {platform.machine()}")
    print(f"torch          {torch.__version__}, built for CUDA {torch.version.cuda or 'no'}")
    print(f"CPU threads    {torch.get_num_threads()}")
    print(f"GPU            {gpu}")
    print(f"CUDA compiler  {compiler or 'not found (set CUDA_HOME, or put nvcc on PATH)'}{version}")
    print(f"FICGAN_OPS     {os.environ.get('FICGAN_OPS') or 'not set (auto)'}")
    try:
        print(f"back end       {backend()}")
        error = self_check()
    except FicganError as problem:
        print(problem, file=sys.stderr)
        return problem.exit_code
    good = error < 1e-12
    print(f"self-check     {'passed' if good else 'FAILED'}: largest error against a loop {error:.1e} in float64")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
