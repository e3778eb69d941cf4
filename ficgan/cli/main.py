"""The console scripts, and what all commands share: options, progress, messages, errors as one sentence, exit codes."""

from __future__ import annotations

import functools
import json
import logging
import math
import os
import signal
import sys
import time
import warnings
from collections.abc import Callable
from contextlib import redirect_stdout, suppress
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, ParamSpec, Self, TypeVar

import click

from ficgan import __version__, diagnosis, errors
from ficgan.device import cpus
from ficgan.errors import INTERRUPTED, FicganError, UsageError, memory_ran_out, on_signals

if TYPE_CHECKING:
    from tqdm import tqdm

# Of `ficgan` and the commands with names of their own: help answers to -h as well.
HELP = {"help_option_names": ["-h", "--help"]}
EXIT_FAILED, EXIT_SOME_FAILED = 1, 3
P = ParamSpec("P")
R = TypeVar("R")
F = TypeVar("F", bound=Callable[..., Any])
Summary = dict[str, Any]  # What a command prints at its end, as one line of JSON
Outcome = Summary | tuple[Summary, list[str] | bool]  # Alone, or with what failed: sentences, or whether something did

# -- errors and exit codes --------------------------------------------------------------------------------------------


def printable(text: str) -> str:
    """A text for a terminal: names of files may hold line ends and escape sequences, which could forge a message."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def handle_errors(command: Callable[P, R]) -> Callable[P, R]:
    """Turn whatever a command raises into a sentence on stderr and an exit code; goes below `@click.command()`.

    `FicganError` exits with its own code (1, 2 or 3), Ctrl-C and SIGTERM with 130, a closed output pipe quietly with 1,
    anything unforeseen with 1 and its type. `FICGAN_DEBUG=1` shows the traceback of the last kind.
    """

    @functools.wraps(command)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        with suppress(ImportError, OSError, ValueError):  # Windows has no such limit
            import resource

            if not os.environ.get("FICGAN_DEBUG"):  # a crash leaves no image of the memory, which holds source faces
                resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
        try:
            with on_signals(signal.default_int_handler, signal.SIGTERM):  # the same clean-up as Ctrl-C
                return command(*args, **kwargs)
        except (click.ClickException, click.exceptions.Exit):
            raise  # click prints them and knows their exit codes
        except FicganError as error:
            _fail(f"Error: {sentence(error)}", EXIT_FAILED if memory_ran_out(error) else error.exit_code)
        except (KeyboardInterrupt, click.Abort) as error:
            advice = " ".join(str(error).split())  # how to go on; Ctrl-C itself has no text
            _fail(f"Interrupted: {advice}" if advice else "Interrupted.", INTERRUPTED)
        except BrokenPipeError:
            with suppress(OSError, ValueError, AttributeError):  # at exit Python would complain about it once more
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise SystemExit(EXIT_FAILED) from None
        except Exception as error:
            if os.environ.get("FICGAN_DEBUG"):
                raise
            _fail(f"Error: {sentence(error)}", EXIT_FAILED)

    return wrapped


def sentence(error: BaseException) -> str:
    """One line that names an error, and what to do about a library that is missing or broken."""
    if not isinstance(error, ImportError) or memory_ran_out(error):
        return errors.sentence(error)
    return f"{errors.sentence(error)} ({diagnosis.import_remedy(error)})"


def _fail(message: str, code: int) -> NoReturn:
    with suppress(OSError):  # stderr itself may be gone
        click.echo(printable(message), err=True)
    raise SystemExit(code) from None


def refuse_existing(*paths: Path | None, overwrite: bool) -> None:
    """Check output files before any work."""
    for path in filter(None, paths):
        if path.exists() and not overwrite:
            raise UsageError(f"{path} exists; give another name, or --overwrite")
        if not path.parent.is_dir():
            raise UsageError(f"{path.parent} is no folder; make it first")


# -- progress ---------------------------------------------------------------------------------------------------------

# Seconds between two JSON lines about the frames of a film, and between two lines where nobody watches a terminal.
_OFTEN, _SELDOM = 0.5, 60.0


class Console:
    """Reports how far a command is; call it as `progress(done, total, stage)`.

    The mode `auto` is a bar on a terminal, else a line a minute; `jsonl` a JSON object per step and per message; `none`
    messages only. `unit` is what is counted, in the singular. `quiet` leaves errors alone.
    """

    def __init__(self, mode: str = "auto", *, unit: str = "image", quiet: bool = False) -> None:
        self._mode, self._unit, self._quiet = "none" if quiet else mode, unit, quiet
        self._watched = self._mode == "auto" and sys.stderr.isatty()
        self._bar: tqdm[Any] | None = None
        self._label, self._spoken = "", time.monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.close()

    def __call__(self, done: int, total: int | None, stage: str = "", *, film: str = "") -> None:
        """Step `done` of `total` (None: unknown) is reached, or that frame of a film; `stage`: what is worked on."""
        of, label = f"{done}" if total is None else f"{done} of {total}", f"{film}: {stage}" if film else stage
        text = printable(f"{label}, frame {of}" if film else f"{of} done, {stage}".rstrip(", "))
        if self._mode == "jsonl":
            if not film or done == total or label != self._label or self._is_due(_OFTEN):
                unit = "frame" if film else self._unit
                _say_json({"done": done, "total": total, "unit": unit, "stage": label})
        elif self._watched:
            if self._bar is None:
                from tqdm import tqdm

                self._bar = tqdm(unit=self._unit, file=sys.stderr, dynamic_ncols=True)
            if not film:
                self._bar.total = total
                self._bar.update(done - self._bar.n)
            self._bar.set_postfix_str(text if film else "", refresh=not film)
            self._bar.update(0)
        elif self._mode == "auto" and done != total and self._is_due(_SELDOM):
            click.echo(text, err=True)
        self._label = label

    def begin(self, total: int) -> None:
        """Show the bar before the first step: loading may take a while."""
        if self._watched:
            self(0, total)

    def info(self, message: str) -> None:
        if not self._quiet:
            self._say("info", message)

    def error(self, message: str) -> None:
        self._say("error", message)

    def _is_due(self, seconds: float) -> bool:
        """Whether something may be said again after so many seconds; it counts as said."""
        due = time.monotonic() - self._spoken >= seconds
        self._spoken = time.monotonic() if due else self._spoken
        return due

    def _say(self, level: str, message: str) -> None:
        text = printable(f"Error: {message}" if level == "error" else message)
        if self._mode == "jsonl":
            _say_json({"level": level, "message": message})
        elif self._bar is None:
            click.echo(text, err=True)
        else:
            self._bar.write(text, file=sys.stderr)  # above the bar


def _say_json(event: dict[str, Any]) -> None:
    click.echo(json.dumps(event, ensure_ascii=False), err=True)


# -- options ----------------------------------------------------------------------------------------------------------


class Finite(click.FloatRange):
    """A range of numbers to which NaN and infinity do not belong."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number = float(super().convert(value, param, ctx))
        return number if math.isfinite(number) else self.fail(f"{value!r} is not a finite number", param, ctx)


class Parsed(click.ParamType):
    """A text that a function turns into a value, or only checks; the message of its ValueError follows the text."""

    name = "text"

    def __init__(self, parse: Callable[[str], Any], *, stays: bool = False) -> None:
        self._parse, self._stays = parse, stays

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            made = self._parse(value) if isinstance(value, str) else value
        except ValueError as error:
            self.fail(f"{value!r}{': ' if isinstance(error, UsageError) else ' '}{error}", param, ctx)
        return value if self._stays else made


PATH = click.Path(path_type=Path)
FILE = click.Path(path_type=Path, exists=True, dir_okay=False)
FOLDER = click.Path(path_type=Path, file_okay=False)
NEW_FILE = click.Path(path_type=Path, dir_okay=False)


def flag(name: str, help: str, *more: str) -> Any:
    """An option that is there or not."""
    return click.option(name, *more, is_flag=True, help=help)


def named(name: str, help: str, *more: str, **settings: Any) -> Any:
    """An option with a value; its default is shown."""
    shown = settings.get("default") not in (None, (), "")
    return click.option(name, *more, help=help, **{"show_default": shown, **settings})


def count(name: str, default: int | None, help: str, *more: str, low: int = 1) -> Any:
    """An option with a whole number from `low` on."""
    return named(name, help, *more, default=default, type=click.IntRange(low))


def path(name: str, help: str, *more: str, **settings: Any) -> Any:
    """An option that names a file or folder."""
    return click.option(name, *more, help=help, **{"type": PATH, **settings})


def many(name: str, help: str, *more: str, **settings: Any) -> Any:
    """An option that may be repeated."""
    return named(name, f"{help}; repeatable.", *more, multiple=True, **settings)


KEY_VALUES = click.argument("overrides", metavar="[KEY=VALUE]...", nargs=-1)
LABELS = path("--labels", "Labels (CSV, or the set's own file or folder), where they do not lie beside the data.")
SPLIT = named("--split", "Use only images of this split of the labels.")
LICENCE = named("--licence", "Name and terms of the data; kept in what is made of it.", default="")
DATA = path("--data", "Folder, zip or tar of faces, as it was downloaded.", required=True)
LAYOUT = named("--layout", "How the data lies: celeba, ffhq, csv, folders, …", default="auto")
ALIGNED = flag("--aligned", "The images are aligned as ficgan's own crops; nothing is detected.")
SIZE = count("--size", None, "Side of the pictures, px.  [default: the paper's]", low=32)
PEOPLE = count("--people", None, "At most so many people of the data; a split shrinks with them.", low=4)
LIMIT = count("--limit", None, "At most so many images.", low=2)
LAYERS = many("--layer", "Layer index i", "layers", type=click.IntRange(0))
ATTRIBUTES = path("--attributes", "Classifier of `ficgan train-attributes`.")
FAST_DEVICE = named("--device", "cpu, cuda, cuda:N or auto.", default="auto")
SEED = count("--seed", 0, "Seed of everything random.", low=0)
JUDGES = many("--judge", "Untrained-on recogniser: dlib, insightface, shape, onnx:PATH", "judges", default=("dlib",))
OTHER_JUDGES = many("--judge", "dlib, insightface, shape or onnx:PATH  [default: CONFIG's, if any]", "judges")
JOBS = count("--jobs", min(8, cpus()), "Processes.")
CLUSTER = named("--cluster", "Work with --jobs workers of a Ray cluster: ray://HOST:PORT, or local for one here.")
RESAMPLES = count("--resamples", 1000, "Samples of the bootstrap.")
PAGES = click.option("--report/--no-report", "pages", default=True, show_default=True, help="Make pages and plots.")
SKIP_EXISTING = flag("--skip-existing", "Leave results of an earlier run with the same options alone, and do the rest.")
OVERWRITE = flag("--overwrite", "Replace existing files.")
DRY_RUN = flag("--dry-run", "Check everything and say what would be done; do nothing.")
SET = many("--set", "Another value of the configuration", "overrides", metavar="KEY=VALUE")
QUIET = flag("--quiet", "Nothing on stderr but errors.")
_MODES = click.Choice(["auto", "jsonl", "none"])
TALK = (named("--progress", "On stderr; auto: a bar, or a line a minute.", type=_MODES, default="auto"), QUIET)


def options(*added: Any) -> Callable[[F], F]:
    """A decorator that adds options, or groups of them, in the order given."""

    def add(command: F) -> F:
        for group in reversed(added):
            command = options(*group)(command) if isinstance(group, tuple) else group(command)
        return command

    return add


def output(help: str, *, kind: click.Path = FOLDER, required: bool = True) -> Any:
    return click.option("-o", "--output", "--out", "out", required=required, type=kind, help=help)


def reporting(unit: str) -> Callable[[Callable[..., Any]], Callable[..., None]]:
    """Add --progress and --quiet, and give the command `report`, a `Console`; errors as `handle_errors`.

    The command returns its summary, which is printed, as are sentences about what failed (exit code 3).
    """

    def decorate(command: Callable[..., Any]) -> Callable[..., None]:
        @functools.wraps(command)
        def run(*args: Any, progress: Any, quiet: bool, **values: Any) -> None:
            started = time.monotonic()
            with Console(progress, unit=unit, quiet=quiet) as report:
                done = command(*args, report=report, **values)
                summary, failed = done if isinstance(done, tuple) else (done, False)
                for problem in failed if isinstance(failed, list) else ():
                    report.error(problem)
            seconds = summary.pop("seconds", round(time.monotonic() - started, 2))
            click.echo(json.dumps({**summary, "seconds": seconds}))
            if failed:
                raise SystemExit(EXIT_SOME_FAILED)

        return options(TALK)(handle_errors(run))

    return decorate


# -- the commands ------------------------------------------------------------------------------------------------------

# Where each command is, and its line in the list of commands.
COMMANDS = {
    "deid": ("deid:deid", "Replace the faces in photos and films by k-anonymous ones."),
    "analyse": ("review:analyse", "Find the faces of a film and write a project to review."),
    "render": ("review:render", "Apply a reviewed project to its film."),
    "ui": ("serve:ui", "Review and redact photos and films in the browser."),
    "purge": ("review:purge", "Remove project folders and remains of interrupted films."),
    "report": ("review:report", "Make one page for a data protection officer from side-cars."),
    "export": ("review:export", "Write the boxes of faces as COCO."),
    "serve": ("serve:serve", "Answer requests over HTTP: photo in, photo and JSON out."),
    "train": ("train:train", "Train the model."),
    "align": ("train:align", "Turn raw photos into an aligned training set."),
    "fit-appearance": ("train:fit_appearance", "Fit the linear appearance model to an aligned set."),
    "bank": ("train:bank", "Build an identity bank from an aligned set."),
    "train-verifier": ("train:train_verifier", "Train a face-verification network V."),
    "train-attributes": ("train:train_attributes", "Train the classifier that judges attributes."),
    "measure": ("evaluate:measure", "Measure a model: first figures, or all its bars."),
    "eval": ("evaluate:evaluate", "Compare anonymisers: attackers, metrics, one report."),
    "attack": ("attack:attack", "Train attackers on one's own anonymisation, and try them."),
    "pointcloud": ("pointcloud:pointcloud", "Anonymise faces in 3D scans, draw and measure them."),
    "doctor": ("main:doctor", "Show what is installed, what works, and what is missing."),
}


@handle_errors
def load(name: str) -> click.Command:
    """The command called `name`, imported now.

    What the library logs goes to stderr: warnings, of training also its progress; FICGAN_LOG changes how much.
    """
    level = os.environ.get("FICGAN_LOG", "").upper()
    logging.basicConfig(format="%(levelname)s %(name)s: %(message)s" if level else "%(message)s")
    logging.getLogger("ficgan").setLevel(level if level in ("DEBUG", "INFO", "WARNING", "ERROR") else "WARNING")
    logging.getLogger("ficgan.training").setLevel("DEBUG" if level == "DEBUG" else "INFO")
    module, _, attribute = COMMANDS[name][0].partition(":")
    try:
        command: click.Command = getattr(import_module(f"ficgan.cli.{module}"), attribute)
    except ImportError as error:
        raise FicganError(f"`ficgan {name}` cannot start: {sentence(error)}") from error
    return command


class LazyGroup(click.Group):
    """A group that knows its commands by name and help line, and imports only the one that is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return load(cmd_name) if cmd_name in COMMANDS else None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, help) for name, (_, help) in COMMANDS.items()])


@click.group(cls=LazyGroup, context_settings=HELP)
@click.version_option(__version__, prog_name="ficgan")
def main() -> None:
    """Replace the identities in photos and films by k-anonymous ones, train the model, measure what was achieved."""


def _alias(name: str) -> Callable[[], None]:
    return lambda: load(name).main(prog_name=f"ficgan-{name}")


deid_main, train_main, eval_main, attack_main = map(_alias, ("deid", "train", "eval", "attack"))


@click.command()
@flag("--json", "Print the findings as JSON.", "as_json")
@handle_errors
def doctor(as_json: bool) -> None:
    """Show what is installed and what to do about what is missing; exit code 0 when `ficgan deid` can run here."""
    with redirect_stdout(sys.stderr), warnings.catch_warnings():  # some libraries print on import
        warnings.simplefilter("ignore")
        sections = diagnosis.diagnose()
    blockers = [found.name for section in sections.values() for found in section if found.required and not found.ok]
    if as_json:
        shown = {title: [vars(found) for found in findings] for title, findings in sections.items()}
        tree = {"ok": not blockers, "blockers": blockers, "sections": shown}
        click.echo(json.dumps(tree, indent=2, ensure_ascii=False))
    else:
        for title, findings in sections.items():
            click.echo(title)
            for found in findings:
                mark = "ok" if found.ok else "MISSING" if found.required else "optional"
                advice = f" → {found.remedy}" if found.remedy and not found.ok else ""
                click.echo(f"  {mark:<10}{found.name:<24}  {found.detail}{advice}")
        cannot = f"cannot run here until this is repaired: {', '.join(blockers)}"
        click.echo(f"ficgan deid {cannot if blockers else 'can run here, on photos and on films'}.")
    if blockers:
        raise SystemExit(EXIT_FAILED)


if __name__ == "__main__":
    from ficgan.cli.main import main as command  # the commands import this module, not __main__

    command()
