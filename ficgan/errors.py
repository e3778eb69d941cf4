"""The errors a user may meet: each is one sentence that says what was wrong, where, and what to do."""

from __future__ import annotations


class FicganError(Exception):
    """Base of every error ficgan raises on purpose; the command line prints it and exits with `exit_code`."""

    exit_code = 1


class UsageError(FicganError, ValueError):
    """An option or argument has a value that cannot work (exit code 2)."""

    exit_code = 2


class InputError(FicganError):
    """One input could not be used, others may go on (exit code 3)."""

    exit_code = 3


class TakenError(InputError):
    """The output exists already, or another run is making it; it is left alone."""
