"""`ficgan report` and `ficgan export`: what the side-cars of a folder say, as a page, and as boxes for annotators."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ficgan import __version__
from ficgan.cli import HELP
from ficgan.cli._shared import NEW_FILE, OVERWRITE, Summary, options, output, refuse_existing, reporting

if TYPE_CHECKING:
    from ficgan.cli._progress import Progress

__all__ = ["export", "report"]


@click.command(context_settings=HELP)
@click.argument("folder", metavar="OUT", type=click.Path(path_type=Path))
@click.option("-o", "--output", "out", type=NEW_FILE, help="The page.  [default: OUT/report.html]")
@click.option("--title", help="Heading of the page.  [default: the folder's name]")
@click.option(
    "--check/--no-check", default=True, show_default=True, help="Compare each result with the sha256 of its side-car."
)
@options(OVERWRITE)
@reporting("file")
def report(
    folder: Path, out: Path | None, title: str | None, check: bool, overwrite: bool, report: Progress
) -> tuple[Summary, bool]:
    """One page for a data protection officer, made from the side-cars in OUT: to read, to print and to sign.

    It shows counts, the method in plain words, faces at risk with pictures of the results, what was not looked at, and
    limits. The exit code is 3 where the page says that something is not ready to be published.
    """
    from ficgan.files import atomic_write
    from ficgan.records import read_folder
    from ficgan.records.report import GRAVE, at_risk, page

    place = folder / "report.html" if out is None else out
    found = read_folder(folder, check=check)
    refuse_existing(place, overwrite=overwrite)
    html = page(
        found, title=title or folder.resolve().name, made=datetime.now().astimezone(), version=__version__
    )  # fmt: skip
    with atomic_write(place, overwrite=overwrite) as file:
        file.write(html.encode())
    faces = at_risk(found.records)
    report.info(f"{place}: print it with a browser; it may show recognisable faces, so keep it with the results.")
    grave = sum(face.why in GRAVE for face in faces)
    changed = sum(bool(record.problem) for record in found.records)
    summary: dict[str, Any] = {
        "report": str(place), "records": len(found.records),
        "faces": sum(len(record.faces) for record in found.records),
        "at_risk": len(faces), "unsafe": grave, "changed": changed, "unrecorded": len(found.unrecorded),
        "undone": len(found.undone), "damaged": len(found.damaged),
    }  # fmt: skip
    return summary, bool(grave or changed or found.unrecorded or found.undone or found.damaged)


@click.command(context_settings=HELP)
@click.argument("folders", metavar="FOLDER...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--format", "kind", type=click.Choice(["coco", "cvat"]), required=True, help="COCO (JSON) or CVAT (XML).")
@output("The file to write.", kind=NEW_FILE)
@options(OVERWRITE)
@reporting("file")
def export(
    folders: tuple[Path, ...], kind: str, out: Path, overwrite: bool, report: Progress
) -> tuple[Summary, bool]:
    """Boxes of faces for annotation tools.

    FOLDER: results of `ficgan-deid` with their side-cars, or the project of a film. Photos have their five landmarks
    and what was done to each face; films a track for each person's appearance. CVAT takes photos or one film in a file.
    """
    from ficgan.errors import UsageError
    from ficgan.files import atomic_write
    from ficgan.records import read_folder
    from ficgan.records.boxes import Picture, encoded, of_project, of_records
    from ficgan.video.project import PROJECT_FILE, Project

    refuse_existing(out, overwrite=overwrite)
    pictures: list[Picture] = []
    left_out: list[str] = []
    for folder in folders:
        if (folder / PROJECT_FILE).is_file():
            pictures += of_project(Project.load(folder))
            continue
        read = read_folder(folder, check=False)
        photos, notes = of_records(read.records)
        pictures += photos
        left_out += [*notes, *(f"{name}: cannot be read ({why})" for name, why in read.damaged)]
    for note in left_out:
        report.info(note)
    if not pictures:
        raise UsageError(f"{', '.join(map(str, folders))}: holds no photo's side-car and no project of a film")
    with atomic_write(out, overwrite=overwrite) as file:
        file.write(encoded(pictures, kind))
    boxes = sum(len(picture.boxes) for picture in pictures)
    return {"file": str(out), "images": len(pictures), "boxes": boxes, "left_out": len(left_out)}, bool(left_out)
