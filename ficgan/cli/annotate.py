"""`ficgan eval annotate`: face boxes by a detector, corrected by people, with gold images for quality control."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ficgan.cli import HELP
from ficgan.cli import _shared as shared
from ficgan.cli._console import Progress, handle_errors

__all__ = ["annotate"]

_OVERLAP = click.option(
    "--overlap", type=click.FloatRange(0, 1, min_open=True), default=0.5, show_default=True,
    help="Least IoU at which a box is a face's.",
)  # fmt: skip


@click.group(context_settings=HELP)
def annotate() -> None:
    """Annotate the faces of a set: detect, correct on review pages, collect, count errors before and after."""


@annotate.command()
@click.argument("images", type=shared.PATH)
@shared.output("JSON of boxes; an interrupted run is resumed from it.", kind=shared.NEW_FILE)
@shared.options(shared.DETECTOR, shared.THRESHOLD, shared.device(what="Where the detector computes."))
@shared.reporting("image")
def detect(
    images: Path, out: Path, detector: str, thresh: float | None, device: str, report: Progress
) -> tuple[shared.Summary, bool]:
    """Detect the faces in IMAGES (folder, tar or zip).

    Boxes are in pixels of the upright image, in the records of the released ImageNet annotations. Damaged images are
    named, get no record, and make the exit code 3.
    """
    from ficgan.faces import get_detector
    from ficgan.lab.annotation.boxes import detect_set

    finder = get_detector(detector, threshold=thresh, device=device)
    done = detect_set(images, out, finder, progress=report)
    faces = sum(len(record.boxes) for record in done.records)
    counts = {"out": str(out), "images": len(done.records), "faces": faces, "failed": len(done.failed)}
    return _end({**counts, "resumed": done.resumed, "detector": finder.name}, done.failed, report)


@annotate.command()
@click.argument("images", type=shared.PATH)
@click.argument("boxes", type=shared.FILE)
@shared.output("New folder.")
@click.option("--gold", type=shared.FILE, help="Boxes of verified images; needed unless --gold-count 0.")
@click.option("--gold-images", type=shared.PATH, help="Where these images are.  [default: among IMAGES]")
@click.option("--batch", default=50, show_default=True, type=click.IntRange(1), help="Images of a page.")
@click.option("--gold-count", default=3, show_default=True, type=click.IntRange(0), help="Gold ones among them.")
@click.option("--gold-faces", default=12, show_default=True, type=click.IntRange(0), help="Most faces of a gold image.")
@click.option("--lives", default=2, show_default=True, type=click.IntRange(1), help="Mistakes on gold that end it.")
@shared.options(_OVERLAP, shared.seed("Seed of which gold images are shown, where, and how wrong."))
@click.option("--linked", is_flag=True, help="Pictures as files beside the pages, not within them.")
@click.option("--side", default=1600, show_default=True, type=click.IntRange(64), help="Longer side shown, pixels.")
@click.option("--note", default="", help="A sentence for the workers.")
@shared.reporting("image")
def page(
    images: Path, boxes: Path, out: Path, gold: Path | None, gold_images: Path | None, batch: int, gold_count: int,
    gold_faces: int, lives: int, overlap: float, seed: int, report: Progress, **pages: Any,
) -> tuple[shared.Summary, bool]:  # fmt: skip
    """Make pages on which people correct BOXES (of `detect`, or any annotations) of IMAGES.

    Hand out what is in OUTPUT/pages; keep OUTPUT/key.json, which holds the truth. The pages judge gold images
    themselves: quality control, no security against somebody who reads their source.
    """
    from ficgan.errors import InputError, UsageError
    from ficgan.lab.annotation import Rules, write_pages
    from ficgan.lab.annotation.boxes import listed, read_records

    if gold is None and gold_count:
        raise UsageError("--gold names the boxes of verified images; without quality control give --gold-count 0")
    rules = Rules(batch, gold_count, lives, overlap, gold_faces, seed)
    blobs, detected = listed(images), read_records(boxes)
    if not any(detected.find(blob.name) for blob in blobs):
        raise InputError(f"no record of {boxes} names an image of {images}; are they of the same set?")
    verified = read_records(gold) if gold else None
    pool = blobs if gold_images is None else listed(gold_images)
    known = [(blob, record) for blob in pool if verified is not None and (record := verified.find(blob.name))]
    key, failed = write_pages(
        out, blobs, detected, known, rules, own_gold=gold_images is None, progress=report, **pages
    )
    work = sum(item.truth is None for batch in key.batches for item in batch.items)
    summary = {"pages": str(out / "pages"), "key": str(out / "key.json"), "batches": len(key.batches), "images": work}
    return _end({**summary, "gold": len(known), "failed": len(failed)}, failed, report)


@annotate.command()
@click.argument("key", type=shared.FILE)
@click.argument("exports", nargs=-1, required=True, type=shared.FILE)
@shared.output("JSON of corrected boxes.", kind=shared.NEW_FILE)
@click.option("--log", type=shared.NEW_FILE, help="JSON of every change.  [default: OUTPUT with .log.json]")
@click.option("--keep", type=click.Choice(["half", "any"]), default="half", show_default=True,
              help="Of several people's boxes: those of at least half of them, or all.")  # fmt: skip
@shared.reporting("export")
def collect(
    key: Path, exports: tuple[Path, ...], out: Path, log: Path | None, keep: str, report: Progress
) -> tuple[shared.Summary, bool]:
    """Check EXPORTS of the pages against their KEY and merge them.

    Work that failed the gold images, is of another batch, or is incomplete is refused and named, and makes the exit
    code 3, as do images that nobody looked at; these keep the detector's boxes, with "workers": 0.
    """
    from ficgan.errors import UsageError
    from ficgan.lab.annotation import collect, read_key
    from ficgan.lab.annotation import summary as summarised
    from ficgan.lab.annotation.boxes import write_records
    from ficgan.lab.stored import write_json

    log = log or out.with_suffix(".log.json")
    if log == out:
        raise UsageError(f"--log and --output are both {out}; give them two names")
    done = collect(read_key(key), exports, union=keep == "any")
    summary = summarised(done)
    write_records(out, done.records)
    write_json(log, {**summary, "unseen": done.unseen, "log": done.log})
    unseen = [f"nobody looked at {name}; its boxes are the detector's" for name in done.unseen]
    summary = {"out": str(out), "log": str(log), **summary}
    summary |= {"accepted": len(done.accepted), "refused": len(done.refused)}
    return _end(summary, [reason for _, reason in done.refused] + unseen, report)


@annotate.command()
@click.argument("truth", type=shared.FILE)
@click.option("--before", required=True, type=shared.FILE, help="Boxes of the detector.")
@click.option("--after", required=True, type=shared.FILE, help="Boxes after correction.")
@_OVERLAP
@click.option("--names", type=shared.FILE, help="JSON of category → name in the paper's table, such as a WordNet id's.")
@shared.output("Write the counts as JSON.", kind=shared.NEW_FILE, required=False)
@handle_errors
def score(truth: Path, before: Path, after: Path, overlap: float, names: Path | None, out: Path | None) -> None:
    """Count false positives and negatives before and after correction, against the verified boxes of TRUTH.

    Categories are the labels of TRUTH, else the folders of its images (the paper's Table 1).
    """
    from ficgan.errors import InputError
    from ficgan.lab.annotation import score_annotations, score_text
    from ficgan.lab.annotation.boxes import read_records
    from ficgan.lab.stored import read_json, write_json

    called = read_json(names) if names else {}
    if not isinstance(called, dict):
        raise InputError(f"{names} is no JSON object of category and name")
    lists = {"before": read_records(before), "after": read_records(after)}
    counted = score_annotations(read_records(truth), lists, overlap=overlap, names=called)
    if out is not None:
        write_json(out, counted)
    click.echo(score_text(counted))


def _end(summary: shared.Summary, problems: list[str], report: Progress) -> tuple[shared.Summary, bool]:
    for sentence in problems:
        report.error(sentence)
    return summary, bool(problems)
