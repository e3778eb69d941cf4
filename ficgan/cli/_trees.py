"""Files named one by one or as trees, and the place of each in an output folder that mirrors them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

from ficgan.errors import UsageError

__all__ = ["mirrored"]


def mirrored(
    inputs: Sequence[Path],
    suffixes: Collection[str],
    *,
    what: str,
    advice: str,
    known: Collection[str] = (),
    twins: list[tuple[Path, Path]] | None = None,
) -> list[tuple[Path, Path]]:
    """Every file with its place below an output folder.

    Args:
        inputs: files, which are taken whatever their name, and folders, which are searched.
        suffixes: endings that count in folders, in small letters.
        what: one of them, for messages, such as "image".
        advice: end of a message about an unusable input, such as "give anonymised faces".
        known: endings of names that are other files' companions, and so are no input.
        twins: takes (file, other) for each file that is left out because a link makes it another that is taken.

    Returns:
        (file, place) in order; hidden files and folders are left out, and a file named twice counts once.

    Raises:
        UsageError: an input is not there, or a folder holds no such file.
    """
    found: list[tuple[Path, Path]] = []
    for given in inputs:
        if given.is_dir():
            inside = [
                (path, path.relative_to(given))
                for path in sorted(given.rglob("*"))
                if path.suffix.lower() in suffixes
                and path.is_file()
                and not any(part.startswith(".") for part in path.relative_to(given).parts)
                and not path.name.endswith(tuple(known))
            ]
            if not inside:
                raise UsageError(f"{given} holds no {what}; {advice}")
            found += inside
        elif given.exists():
            found.append((given, Path(given.name)))
        else:
            raise UsageError(f"{given} does not exist; {advice}")
    once: dict[Path, tuple[Path, Path]] = {}
    for path, place in found:
        first, _ = once.setdefault(path.resolve(), (path, place))
        if twins is not None and first.absolute() != path.absolute():
            twins.append((path, first))
    return list(once.values())
