"""`ficgan doctor`: what is installed, what works, what is missing, and what to do about it."""

from __future__ import annotations

import contextlib
import json
import sys
import warnings

import click

from ficgan.cli._errors import handle_errors
from ficgan.diagnosis import Diagnosis, Finding, diagnose

__all__ = ["doctor"]


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON.")
@handle_errors
def doctor(as_json: bool) -> None:
    """Show versions, devices, detectors, recognisers and the embedded model, and what to do about what is missing.

    Exit code 0 when `ficgan-deid` can run here, else 1. Downloads nothing.
    """
    with contextlib.redirect_stdout(sys.stderr), warnings.catch_warnings():  # libraries that greet on import
        warnings.simplefilter("ignore")
        diagnosis = diagnose()
    click.echo(json.dumps(diagnosis.to_dict(), indent=2, ensure_ascii=False) if as_json else report(diagnosis))
    if not diagnosis.ok:
        raise SystemExit(1)


def report(diagnosis: Diagnosis) -> str:
    """The diagnosis for people: a section each, and last what keeps `ficgan-deid` from running."""
    lines: list[str] = []
    for title, findings in diagnosis.sections.items():
        width = max((len(found.name) for found in findings), default=0)
        lines += [title, *(_line(found, width) for found in findings), ""]
    if diagnosis.ok:
        lines.append("ficgan-deid can run here.")
    else:
        names = ", ".join(found.name for found in diagnosis.blockers)
        lines.append(f"ficgan-deid cannot run here until this is repaired: {names}.")
    return "\n".join(lines)


def _line(found: Finding, width: int) -> str:
    mark = "ok" if found.ok else "MISSING" if found.required else "-"
    advice = f" → {found.remedy}" if found.remedy and not found.ok else ""
    return f"  {mark:<8}{found.name:<{width}}  {found.detail}{advice}"
