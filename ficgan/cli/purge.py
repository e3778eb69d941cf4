"""`ficgan purge`: remove the folders in which source faces lie."""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path

import click

from ficgan.cli import HELP
from ficgan.cli._errors import EXIT_SOME_FAILED, handle_errors, printable

__all__ = ["purge"]


@click.command(context_settings=HELP)
@click.argument("folders", metavar="FOLDER...", nargs=-1, type=click.Path(path_type=Path))
@click.option("--temporary", is_flag=True, help="Also what a killed --mode external left in the temporary folder.")
@click.option("--dry-run", is_flag=True, help="Say what would be removed; remove nothing.")
@click.option("--quiet", is_flag=True, help="Nothing on stderr but errors.")
@handle_errors
def purge(folders: tuple[Path, ...], temporary: bool, dry_run: bool, quiet: bool) -> None:
    """Remove project folders, remains of interrupted films (.NAME.ficgan-work) and of killed external modes.

    Only folders that ficgan made, and in them only files that ficgan made: anything else stays and is named, and its
    folder stays. This is no secure erasure: disks, snapshots and backups may hold deleted bytes for a while, and
    overwriting would not help on solid-state disks and copy-on-write file systems. Keep projects on an encrypted disk.

    Prints one line of JSON when done. Exit codes: 0 done, 2 usage, 3 something was left or refused, 130 interrupted.
    """
    from ficgan.anonymizers.external import TEMPORARY_PREFIX
    from ficgan.errors import InputError
    from ficgan.video.folders import Removal, remove_folder

    if not folders and not temporary:
        raise click.UsageError("Name a folder, or give --temporary.")
    if temporary:
        folders = (*folders, *sorted(Path(tempfile.gettempdir()).glob(f"{TEMPORARY_PREFIX}*")))
    started = time.monotonic()
    done: list[Removal] = []
    failed = 0
    for folder in dict.fromkeys(folders):
        try:
            removal = remove_folder(folder, dry_run=dry_run)
        except InputError as error:
            failed += 1
            click.echo(printable(f"Error: {error}"), err=True)
            continue
        done.append(removal)
        for path in removal.left:
            said = f"Error: {path}: was not made by ficgan or cannot be removed; left, with its folder"
            click.echo(printable(said), err=True)
        if not quiet:
            verb = "would remove" if dry_run else "removed"
            click.echo(printable(f"{folder}: {verb} {removal.files} files, {removal.bytes} bytes"), err=True)
    left = [str(path) for removal in done for path in removal.left]
    summary = {
        "folders": len(done) + failed,
        "removed": 0 if dry_run else sum(not removal.left for removal in done),
        "failed": failed,
        "files": sum(removal.files for removal in done),
        "bytes": sum(removal.bytes for removal in done),
        "left": left,
        "dry_run": dry_run,
        "seconds": round(time.monotonic() - started, 3),
    }
    click.echo(json.dumps(summary))
    if left or failed:
        sys.exit(EXIT_SOME_FAILED)
