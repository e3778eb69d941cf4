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


class _Parsed(click.ParamType):
    """A text that `read` turns into a value; the message of its ValueError follows the text."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value
        try:
            return self.read(value)
        except ValueError as error:
            self.fail(f"{value!r} {error}", param, ctx)

    def read(self, text: str) -> Any:
        raise NotImplementedError


def _number(text: str) -> float:
    """A number, or NaN where it is none."""
    try:
        return float(text)
    except ValueError:
        return math.nan


class Pair(_Parsed):
    """Two whole numbers with a separator between them, such as 5-8 or 1280x720."""

    def __init__(self, name: str, separator: str) -> None:
        self.name, self._separator = name, separator

    def read(self, text: str) -> tuple[int, int]:
        first, _, second = text.lower().partition(self._separator)
        if not (first.isascii() and first.isdigit() and second.isascii() and second.isdigit()):
            raise ValueError(f"is not of the form {self.name}")
        return int(first), int(second)


class Diversity(_Parsed):
    """`auto`, or ψ."""

    name = "auto|PSI"

    def read(self, text: str) -> str | float:
        if text == "auto":
            return text
        if not 0 <= _number(text) <= 1:
            raise ValueError("is neither 'auto' nor a number between 0 and 1")
        return float(text)


class Direction(_Parsed):
    """An attribute and how much of it to add, such as Female=0.7."""

    name = "NAME=AMOUNT"

    def read(self, text: str) -> str:
        name, _, amount = text.partition("=")
        if not name or not math.isfinite(_number(amount)):
            raise ValueError("is not of the form NAME=AMOUNT, such as Female=0.7")
        return text


KIND = ("ethnicity", "gender", "age")
"""`ficgan.identity.kind.PARTS`, without loading NumPy."""


class KindParts(_Parsed):
    """Parts of a kind, such as ethnicity,gender."""

    name = "LIST"

    def read(self, text: str) -> str:
        words = text.split(",")
        if words != ["none"] and not set(words) <= set(KIND):
            raise ValueError(f"is not one or more of {','.join(KIND)}, or none")
        return text


class Mode(click.ParamType):
    """What takes a face's place, see `ficgan.anonymizers.modes.check_mode`."""

    name = "MODE"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        from ficgan.cli._options import chosen_method

        try:
            chosen_method(str(value))
            return str(value)
        except UsageError as error:
            self.fail(str(error), param, ctx)


class Seconds(_Parsed):
    """A time in seconds or [H:]M:S, or with `span` two of them with a hyphen between."""

    def __init__(self, *, span: bool = False) -> None:
        self._span = span
        self.name = "FROM-TO" if span else "TIME"

    def read(self, text: str) -> float | tuple[float | None, float | None]:
        if not self._span:
            return _seconds(text)
        first, hyphen, last = text.partition("-")
        if not hyphen or not (first or last):
            raise ValueError("is not of the form FROM-TO, such as 1:30-2:00")
        start, end = (_seconds(part) if part else None for part in (first, last))
        if start is not None and end is not None and start >= end:
            raise ValueError("ends before it begins")
        return start, end


def _seconds(text: str) -> float:
    numbers = [_number(part) for part in text.split(":")]
    if len(numbers) > 3 or not all(math.isfinite(number) and number >= 0 for number in numbers):
        raise ValueError("is not a time; write seconds or [H:]M:S, such as 90 or 1:30")
    return sum(number * 60**place for place, number in enumerate(reversed(numbers)))


class Box(_Parsed):
    """A box of the picture, X0,Y0,X1,Y1 in pixels."""

    name = "X0,Y0,X1,Y1"

    def read(self, text: str) -> tuple[float, ...]:
        numbers = tuple(map(_number, text.split(",")))
        if len(numbers) != 4 or not all(map(math.isfinite, numbers)):
            raise ValueError("is not of the form X0,Y0,X1,Y1")
        if numbers[0] >= numbers[2] or numbers[1] >= numbers[3]:
            raise ValueError("is empty: X0 < X1 and Y0 < Y1 are needed")
        return numbers


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
Summary = dict[str, Any]
"""What a command prints at its end, as one line of JSON."""


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
        help=f"How the data lies: celeba, lfw, ffhq, folders, …{'' if default else '  [default: as in CONFIG]'}",
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
