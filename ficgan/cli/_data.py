"""`--data PATH…`: an option that takes all paths that follow it."""

from __future__ import annotations

import re
from pathlib import Path

import click

__all__ = ["DataCommand", "data_option"]

_OVERRIDE = re.compile(r"[A-Za-z_][\w.]*=")


class DataCommand(click.Command):
    """A command whose --data takes every argument up to the next option or key=value."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, spread(args))


def spread(args: list[str]) -> list[str]:
    """`--data a b -o c` as `--data a --data b -o c`."""
    out: list[str] = []
    following = False
    for arg in args:
        if arg.startswith("-") or _OVERRIDE.match(arg):
            following = False
        elif following and out[-2:-1] == ["--data"]:
            out.append("--data")
        out.append(arg)
        following = following or arg == "--data"
    return out


data_option = click.option(
    "--data",
    metavar="PATH...",
    multiple=True,
    required=True,
    type=click.Path(path_type=Path),
    help="Folders, zips or tars of aligned faces, one or several.",
)
