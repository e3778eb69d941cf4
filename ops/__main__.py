"""`python -m ficgan.ops build` compiles the CUDA kernels; `ficgan doctor` says which back end is used."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from ficgan.errors import FicganError

from . import library


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m ficgan.ops", description=__doc__)
    parser.add_argument("action", choices=["build"], help="compile the CUDA kernels")
    parser.add_argument("--arch", metavar="LIST", help="compute capabilities to build for, such as 8.0;9.0+PTX")
    try:
        print(f"built {library.build(parser.parse_args(arguments).arch)}")
        return 0
    except FicganError as error:
        print(error, file=sys.stderr)
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main())
