"""Options that many commands share, kinds of values that click lacks, and `reporting`, which ends a command."""

from __future__ import annotations

import functools
import json
import math
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from ficgan.cli._console import EXIT_SOME_FAILED, MODES, Progress, handle_errors
from ficgan.device import cpus
from ficgan.errors import UsageError


class Finite(click.FloatRange):
    """A range of numbers to which NaN and infinity do not belong."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"{value!r} is not a finite number", param, ctx)
        return number


class Parsed(click.ParamType):
    """A text that a function turns into a value; the message of its ValueError follows the text, or is the `whole`."""

    name = "text"

    def __init__(self, parse: Callable[[str], Any], *, whole: bool = False) -> None:
        self._parse, self._whole = parse, whole

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value
        try:
            return self._parse(value)
        except ValueError as error:
            self.fail(str(error) if self._whole else f"{value!r} {error}", param, ctx)


def share_processors(photos: int = 1, *, mode: str = "ficgan") -> None:
    """Divide the processors among the photos that are worked on at once. To be called before NumPy is loaded.

    A photo that is alone has all of them for its networks. Several have a share each, since the threads of one would
    only be in the way of another's. NumPy's own threads help in no case: its products are thin here, and OpenBLAS's
    threads wait for the next one in a busy loop, which took two fifths of all processor time on two cores.

    Args:
        photos: worked on at once.
        mode: an external one runs a program of the user's, which finds the environment as it was.
    """
    if mode.startswith("external"):
        return
    threads = {"OPENBLAS_NUM_THREADS": 1}
    if photos > 1:
        share = max(1, cpus() // photos)
        threads |= {"OMP_NUM_THREADS": share, "OPENCV_FOR_THREADS_NUM": share}  # the first: of `onnx_session`
    for name, number in threads.items():
        os.environ.setdefault(name, str(number))


F = TypeVar("F", bound=Callable[..., Any])
# What a command prints at its end, as one line of JSON.
Summary = dict[str, Any]


PATH = click.Path(path_type=Path)
FILE = click.Path(path_type=Path, exists=True, dir_okay=False)
FOLDER = click.Path(path_type=Path, file_okay=False)
NEW_FILE = click.Path(path_type=Path, dir_okay=False)

KEY_VALUES = click.argument("overrides", metavar="[KEY=VALUE]...", nargs=-1)
LABELS = click.option("--labels", type=PATH, help="Label file or folder, where it does not lie beside the data.")
DATA = click.option("--data", required=True, type=PATH, help="Folder, zip or tar of faces, as it was downloaded.")
ALIGNED = click.option(
    "--aligned", is_flag=True, help="The images are aligned as ficgan's own crops; nothing is detected."
)
DETECTOR = click.option(
    "--detector",
    default="auto",
    show_default=True,
    help="What finds the faces: auto, insightface, yunet, centerface or dlib.",
)
THRESHOLD = click.option("-t", "--thresh", type=float, help="Lowest score of a face.  [default: the detector's]")
JUDGES = click.option(
    "--judge",
    "judges",
    multiple=True,
    default=("dlib",),
    show_default=True,
    help="Recogniser that had no part in training: dlib, insightface, shape or onnx:PATH; repeatable.",
)
JOBS = click.option(
    "--jobs",
    type=click.IntRange(1),
    callback=lambda ctx, param, value: value or min(8, cpus()),
    help="Processes.  [default: as many as there are cores, at most 8]",
)
RESAMPLES = click.option(
    "--resamples", default=1000, show_default=True, type=click.IntRange(1), help="Samples of the bootstrap."
)
REPORT = click.option("--report/--no-report", "pages", default=True, show_default=True, help="Make pages and plots.")
OVERWRITE = click.option("--overwrite", is_flag=True, help="Replace existing files.")
TALK: tuple[Any, ...] = (
    click.option(
        "--progress",
        type=click.Choice(MODES),
        default="auto",
        show_default=True,
        help="On stderr; auto: a bar on a terminal, else a line a minute.",
    ),
    click.option("--quiet", is_flag=True, help="Nothing on stderr but errors."),
)


def options(*added: Any) -> Callable[[F], F]:
    """A decorator that adds options, or groups of them, in the order given."""

    def add(command: F) -> F:
        flat = [option for item in added for option in (item if isinstance(item, tuple) else (item,))]
        for option in reversed(flat):
            command = option(command)
        return command

    return add


def output(what: str, *, kind: click.Path = FOLDER, required: bool = True) -> Callable[[F], F]:
    return click.option("-o", "--output", "--out", "out", required=required, type=kind, help=what)


def seed(what: str = "Seed of everything random.") -> Callable[[F], F]:
    return click.option("--seed", default=0, show_default=True, type=click.IntRange(0), help=what)


def device(default: str = "cpu", what: str = "cpu, cuda, cuda:N or auto.") -> Callable[[F], F]:
    return click.option("--device", default=default, show_default=True, help=what)


def layout(default: str | None = "auto") -> Callable[[F], F]:
    """How a set of faces lies; None: as a configuration says."""
    return click.option(
        "--layout",
        default=default,
        show_default=default is not None,
        help=f"How the data lies: celeba, ffhq, csv, folders, …{'' if default else '  [default: as in CONFIG]'}",
    )


def dry_run(what: str) -> Callable[[F], F]:
    return click.option("--dry-run", is_flag=True, help=what)


def judges_instead(kinds: str) -> Callable[[F], F]:
    return click.option("--judge", "judges", multiple=True, help=f"Replaces the recognisers of CONFIG: {kinds}.")


def set_value(what: str) -> Callable[[F], F]:
    return click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help=f"{what}; repeatable.")


def reporting(unit: str) -> Callable[[Callable[..., Any]], Callable[..., None]]:
    """Add --progress and --quiet, and give the command `report`, a `Progress`, in their place.

    The command returns its summary, or (summary, whether something failed): it is printed with its seconds when the
    bar is closed, and a failure makes the exit code 3. Errors are handled as `handle_errors` does.
    """

    def decorate(command: Callable[..., Any]) -> Callable[..., None]:
        @functools.wraps(command)
        def run(*args: Any, progress: Any, quiet: bool, **values: Any) -> None:
            started = time.monotonic()
            with Progress(progress, unit=unit, quiet=quiet) as report:
                done = command(*args, report=report, **values)
            summary, failed = done if isinstance(done, tuple) else (done, False)
            seconds = summary.pop("seconds", round(time.monotonic() - started, 2))
            click.echo(json.dumps({**summary, "seconds": seconds}))
            if failed:
                raise SystemExit(EXIT_SOME_FAILED)

        return options(TALK)(handle_errors(run))

    return decorate


def refuse_existing(*paths: Path | None, overwrite: bool) -> None:
    """Check output files before any work."""
    for path in filter(None, paths):
        if path.exists() and not overwrite:
            raise UsageError(f"{path} exists; give another name, or --overwrite")
        if not path.parent.is_dir():
            raise UsageError(f"{path.parent} is no folder; make it first")
