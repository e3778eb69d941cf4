"""`ficgan align`: turn raw photos into an aligned training set."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ficgan.cli._errors import EXIT_SOME_FAILED, handle_errors

if TYPE_CHECKING:
    from ficgan.data.align import AlignReport


@click.command("align", context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("photos", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("-o", "--out", required=True, type=click.Path(path_type=Path), help="A new .tar, or a new folder.")
@click.option("--resolution", default=256, show_default=True, type=click.IntRange(8, 4096), help="Side of the crops.")
@click.option("--alignment", default="template", show_default=True, type=click.Choice(["template", "ffhq"]))
@click.option("--eye-distance", default=0.37, show_default=True, help="Template: eye distance / side of the crop.")
@click.option("--eye-y", default=0.31, show_default=True, help="Template: height of the eyes / side of the crop.")
@click.option("--detector", default="auto", show_default=True, help="auto, insightface, yunet, centerface or dlib.")
@click.option("-t", "--thresh", type=float, help="Lowest score of a face; the detector's own if not given.")
@click.option("--faces", "which", default="largest", show_default=True, type=click.Choice(["largest", "all"]))
@click.option("--min-size", default=40.0, show_default=True, type=click.FloatRange(0), help="Least box side, pixels.")
@click.option("--person-folders", is_flag=True, help="Each folder shows one person: the table gets a person column.")
@click.option("--format", "format_", default="webp", show_default=True, type=click.Choice(["webp", "png"]))
@click.option("--device", default="cpu", show_default=True, help="Where the detector computes.")
@handle_errors
def align(
    photos: tuple[Path, ...],
    out: Path,
    resolution: int,
    alignment: str,
    eye_distance: float,
    eye_y: float,
    detector: str,
    thresh: float | None,
    which: str,
    min_size: float,
    person_folders: bool,
    format_: str,
    device: str,
) -> None:
    """Find the faces in PHOTOS (files, folders, zips, tars), turn them upright and write them to one set.

    A CSV beside the tar (in the folder: faces.csv) names the photo, box, score and alignment of each. Photos without a
    face are counted and skipped; damaged ones are named, and make the exit code 3.
    """
    from tqdm import tqdm

    from ficgan.data.align import align_photos, find_photos
    from ficgan.faces import Alignment, get_detector

    began = time.monotonic()
    placed = Alignment("ffhq") if alignment == "ffhq" else Alignment("template", eye_distance, eye_y)
    found = find_photos(photos)
    finder = get_detector(detector, threshold=thresh, device=device)
    with tqdm(total=len(found), unit="photo", file=sys.stderr, disable=not sys.stderr.isatty()) as bar:

        def on_photo(report: AlignReport) -> None:
            bar.update()
            bar.set_postfix(faces=report.written, none=report.without_face, failed=len(report.failed), refresh=False)

        report = align_photos(
            found,
            out,
            detector=finder,
            alignment=placed,
            resolution=resolution,
            every_face=which == "all",
            min_size=min_size,
            person_folders=person_folders,
            format=format_,
            on_photo=on_photo,
        )
    for _, reason in report.failed:
        click.echo(f"Error: {reason}", err=True)
    done = {"out": str(out), "photos": report.photos, "written": report.written, "without_face": report.without_face}
    rest = {"too_small": report.too_small, "failed": len(report.failed), "detector": finder.name}
    seconds = round(time.monotonic() - began, 1)
    click.echo(json.dumps({**done, **rest, "alignment": placed.to_dict(), "seconds": seconds}))
    if report.failed:
        raise SystemExit(EXIT_SOME_FAILED)
