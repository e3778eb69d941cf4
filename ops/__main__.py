"""`python -m ficgan.ops`: the back end in use, and why not a compiled one; `build` compiles."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

import torch

from ficgan.errors import FicganError

from . import backend, library


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
    except FicganError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
