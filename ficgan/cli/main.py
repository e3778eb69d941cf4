"""The console scripts: `ficgan` with its commands, some of which are programs by name, as `ficgan-deid`."""

from __future__ import annotations

from importlib import import_module
from typing import NamedTuple

import click

from ficgan import __version__
from ficgan.cli._errors import handle_errors, sentence
from ficgan.errors import FicganError

__all__ = ["COMMANDS", "attack_main", "deid_main", "eval_main", "main", "train_main"]

_HELP = {"help_option_names": ["-h", "--help"]}


class Entry(NamedTuple):
    """Where a command is, and its help line in the list of commands."""

    target: str
    help: str


COMMANDS = {
    "deid": Entry("ficgan.cli.deid:deid", "Replace the faces in photos and films by k-anonymous ones."),
    "analyse": Entry("ficgan.cli.film:analyse", "Find the faces of a film and write a project to review."),
    "render": Entry("ficgan.cli.film:render", "Apply a reviewed project to its film."),
    "purge": Entry("ficgan.cli.purge:purge", "Remove project folders and remains of interrupted films."),
    "train": Entry("ficgan.cli.train:train", "Train the model."),
    "align": Entry("ficgan.cli.align:align", "Turn raw photos into an aligned training set."),
    "fit-appearance": Entry(
        "ficgan.cli.appearance:fit_appearance", "Fit the linear appearance model to an aligned set."
    ),
    "bank": Entry("ficgan.cli.bank:bank", "Build an identity bank from an aligned set."),
    "train-verifier": Entry("ficgan.cli.verifier:train_verifier", "Train a face-verification network V."),
    "train-attributes": Entry("ficgan.cli.attributes:train_attributes", "Train the classifier that judges attributes."),
    "measure": Entry("ficgan.cli.measure:measure", "Measure a model: first figures, or all its bars."),
    "eval": Entry("ficgan.cli.evaluate:evaluate", "Compare anonymisers: attackers, metrics, one report."),
    "attack": Entry("ficgan.cli.attack:attack", "Train attackers on one's own anonymisation, and try them."),
    "pointcloud": Entry("ficgan.cli.pointcloud:pointcloud", "Anonymise faces in 3D scans, draw and measure them."),
    "doctor": Entry("ficgan.cli.doctor:doctor", "Show what is installed, what works, and what is missing."),
}


@handle_errors
def load(name: str) -> click.Command:
    """The command called `name`, imported now; its help answers to -h as well.

    Raises:
        FicganError: a library the command needs cannot be imported; shown as one sentence, exit code 1.
    """
    module, _, attribute = COMMANDS[name].target.partition(":")
    try:
        command: click.Command = getattr(import_module(module), attribute)
    except ImportError as error:
        raise FicganError(f"`ficgan {name}` cannot start: {sentence(error)}") from error
    command.context_settings.setdefault("help_option_names", _HELP["help_option_names"])
    return command


class LazyGroup(click.Group):
    """A group that knows its commands by name and help line, and imports only the one that is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return load(cmd_name) if cmd_name in COMMANDS else None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.help) for name, entry in COMMANDS.items()])


@click.group(cls=LazyGroup, context_settings=_HELP)
@click.version_option(__version__, prog_name="ficgan")
def main() -> None:
    """Replace the identities in photos and films by k-anonymous ones, train the model, measure what was achieved."""


def deid_main() -> None:
    """Entry point of `ficgan-deid`."""
    load("deid").main(prog_name="ficgan-deid")


def train_main() -> None:
    """Entry point of `ficgan-train`."""
    load("train").main(prog_name="ficgan-train")


def eval_main() -> None:
    """Entry point of `ficgan-eval`."""
    load("eval").main(prog_name="ficgan-eval")


def attack_main() -> None:
    """Entry point of `ficgan-attack`."""
    load("attack").main(prog_name="ficgan-attack")


if __name__ == "__main__":
    main()
