"""The console scripts: `ficgan` with its commands, and short names for four of them, such as `ficgan-deid`."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import sys
import warnings
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING

import click

from ficgan import __version__
from ficgan.cli._console import HELP, flag, handle_errors, sentence
from ficgan.errors import FicganError

if TYPE_CHECKING:
    from ficgan.diagnosis import Diagnosis, DoctorFinding

__all__ = ["COMMANDS", "attack_main", "deid_main", "doctor", "eval_main", "main", "train_main"]

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
    "attack": ("evaluate:attack", "Train attackers on one's own anonymisation, and try them."),
    "pointcloud": ("pointcloud:pointcloud", "Anonymise faces in 3D scans, draw and measure them."),
    "doctor": ("main:doctor", "Show what is installed, what works, and what is missing."),
}
# Other spellings of commands; not listed.
ALIASES = {"analyze": "analyse"}


def _log_to_stderr() -> None:
    """What the library logs under `ficgan` goes to stderr: warnings, of training also its progress.

    The variable FICGAN_LOG (debug, info or warning) says how much.
    """
    logger = logging.getLogger("ficgan")
    level = os.environ.get("FICGAN_LOG", "").upper()
    logger.setLevel(level if level in ("DEBUG", "INFO", "WARNING", "ERROR") else "WARNING")
    logging.getLogger("ficgan.training").setLevel("DEBUG" if level == "DEBUG" else "INFO")
    if not any(type(handler) is logging.StreamHandler for handler in logger.handlers):
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(message)s" if not level else "%(levelname)s %(name)s: %(message)s"))
        logger.addHandler(handler)


@handle_errors
def load(name: str) -> click.Command:
    """The command called `name`, imported now."""
    _log_to_stderr()
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
        name = ALIASES.get(cmd_name, cmd_name)
        return load(name) if name in COMMANDS else None

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
    """Show versions, devices, detectors, recognisers and the embedded model, and what to do about what is missing.

    Exit code 0 when `ficgan deid` can run here, else 1. Downloads nothing.
    """
    from ficgan.diagnosis import diagnose

    with contextlib.redirect_stdout(sys.stderr), warnings.catch_warnings():  # some libraries print on import
        warnings.simplefilter("ignore")
        diagnosis = diagnose()
    click.echo(json.dumps(diagnosis.to_dict(), indent=2, ensure_ascii=False) if as_json else describe(diagnosis))
    if not diagnosis.ok:
        raise SystemExit(1)


def describe(diagnosis: Diagnosis) -> str:
    """The diagnosis for people: a section each, and last what keeps `ficgan deid` from running."""
    lines: list[str] = []
    for title, findings in diagnosis.sections.items():
        width = max((len(found.name) for found in findings), default=0)
        lines += [title, *(_line(found, width) for found in findings), ""]
    names = ", ".join(found.name for found in diagnosis.blockers)
    verdict = f"cannot run here until this is repaired: {names}" if names else "can run here, on photos and on films"
    return "\n".join([*lines, f"ficgan deid {verdict}."])


def _line(found: DoctorFinding, width: int) -> str:
    mark = "ok" if found.ok else "MISSING" if found.required else "optional"
    advice = f" → {found.remedy}" if found.remedy and not found.ok else ""
    return f"  {mark:<10}{found.name:<{width}}  {found.detail}{advice}"


if __name__ == "__main__":
    main()
