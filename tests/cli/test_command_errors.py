"""What every command does with an error."""

from __future__ import annotations

import signal

import click
import pytest
from click.testing import CliRunner

from ficgan.errors import FicganError, InputError, UsageError


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (FicganError("a"), 1, "Error: a\n"),
        (UsageError("b"), 2, "Error: b\n"),
        (InputError("c\nd"), 3, "Error: c d\n"),
        (KeyboardInterrupt(), 130, "Interrupted.\n"),
        (KeyboardInterrupt("stopped at 3 kimg;\nthe same command goes on"), 130,
         "Interrupted: stopped at 3 kimg; the same command goes on\n"),
        (click.Abort(), 130, "Interrupted.\n"),
        (BrokenPipeError(), 1, ""),
        (ValueError("x\ny"), 1, "Error: ValueError: x y\n"),
        (OSError(28, "No space left on device", "/f"), 1, "Error: No space left on device: /f\n"),
    ],
)
def test_handle_errors(error: BaseException, code: int, said: str) -> None:
    from ficgan.cli._errors import handle_errors

    @click.command()
    @handle_errors
    def fails() -> None:
        raise error

    before = signal.getsignal(signal.SIGTERM)
    outcome = CliRunner().invoke(fails)
    assert (outcome.exit_code, outcome.stdout, outcome.stderr) == (code, "", said)
    assert signal.getsignal(signal.SIGTERM) == before


def test_debug_shows_the_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    from ficgan.cli._errors import handle_errors

    monkeypatch.setenv("FICGAN_DEBUG", "1")
    with pytest.raises(ZeroDivisionError):
        handle_errors(lambda: 1 / 0)()
