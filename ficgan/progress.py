"""How long-running work reports its progress."""

from __future__ import annotations

from collections.abc import Callable

# Told how far a long work is: what is done, how much there is in all (None: unknown), and what is being done. What it
# raises ends the work.
Progress = Callable[[int, int | None, str], None]


def unheard(done: int, total: int | None, stage: str) -> None:
    """Progress that nobody listens to."""
