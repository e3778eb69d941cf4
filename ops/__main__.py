"""`python -m ficgan.ops`: the back end in use, why not a compiled one, whether results are right; `build` compiles."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

import torch

from ficgan.errors import FicganError

from . import adain, backend, bias_act, library, scale_bias_lrelu, setup_filter, upfirdn2d


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
            y = bias_act(u, impl=impl) + bias_act(u, c, act="lrelu", impl=impl)
            y = y + scale_bias_lrelu(u, s, c, impl=impl) + adain(u, c, s, t, impl=impl)
            y = upfirdn2d(y, setup_filter(device=place), up=2, padding=(-1, 2, 1, -1), impl=impl)
            gradients = torch.autograd.grad(y.square().sum(), inputs)
            results.append([y.detach().cpu(), *(g.cpu() for g in gradients)])
        for expected, actual in zip(*results, strict=True):
            worst = max(worst, ((expected - actual).abs().max() / expected.abs().max()).item())
    return worst


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m ficgan.ops", description=__doc__)
    parser.add_argument("action", nargs="?", choices=["build"], help="compile the CUDA kernels")
    parser.add_argument("--arch", metavar="LIST", help="compute capabilities to build for, such as 8.0;9.0+PTX")
    given = parser.parse_args(arguments)
    try:
        if given.action == "build":
            print(f"built {library.build(given.arch)}")
            return 0
        gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
        print(f"torch       {torch.__version__}, built for CUDA {torch.version.cuda or 'no'}")
        print(f"GPU         {', '.join(gpus) or 'none that torch can use'}")
        print(f"FICGAN_OPS  {os.environ.get('FICGAN_OPS') or 'not set (auto)'}")
        problem = library.load()
        print(f"library     {f'none: {problem}; {library.HINT}' if problem else library.folder()}")
        print(f"back end    {backend()}")
        if backend() == "native" and gpus:
            error = native_check()
            print(f"GPU check   {'right' if error < 1e-9 else 'WRONG'}: {error:.1e} from the reference")
            return int(error >= 1e-9)
    except FicganError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
