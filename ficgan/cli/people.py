"""`ficgan eval annotate` and `survey`: people are asked where faces are, and whether two pictures show one person."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import click

from ficgan.cli import _options as opts
from ficgan.cli import main as shared
from ficgan.cli.main import EXIT_SOME_FAILED, Console, Outcome, Summary, count, handle_errors, many, named, path
from ficgan.errors import InputError, UsageError


@click.group()
def annotate() -> None:
    """Annotate the faces of a set: detect, correct on review pages, collect, count errors before and after."""


@annotate.command()
@click.argument("images", type=shared.PATH)
@shared.output("JSON of boxes; an interrupted run is resumed from it.", kind=shared.NEW_FILE)
@shared.options(opts.DETECTOR, opts.THRESHOLD, opts.DEVICE)
@shared.reporting("image")
def detect(images: Path, out: Path, detector: str, report: Console, **given: Any) -> Outcome:
    """Detect the faces in IMAGES (folder, tar or zip).

    Boxes are in pixels of the upright image, in records like the released ImageNet annotations. Damaged images make the
    exit code 3.
    """
    from ficgan.faces import get_detector
    from ficgan.lab.annotation import detect_set

    finder = get_detector(detector, threshold=given["threshold"], device=given["device"])
    records, failed = detect_set(images, out, finder, progress=report)
    counts = {"images": len(records), "faces": sum(len(record.boxes) for record in records), "failed": len(failed)}
    return {"out": str(out), **counts, "detector": finder.name}, failed


@annotate.command()
@click.argument("images", type=shared.PATH)
@click.argument("boxes", type=shared.FILE)
@shared.output("New folder.")
@path("--gold", "Boxes of verified ones of the images; needed unless --gold-count 0.", type=shared.FILE)
@count("--batch", 50, "Images of a page.")
@count("--gold-count", 3, "Gold ones among them.", low=0)
@shared.reporting("image")
def page(images: Path, boxes: Path, out: Path, gold: Path | None, report: Console, **numbers: int) -> Outcome:
    """Make pages on which people correct BOXES (of `detect`, or any annotations) of IMAGES.

    Hand out what is in OUTPUT/pages; keep OUTPUT/key.json, which holds the truth. The pages judge gold images
    themselves: quality control, no security against somebody who reads their source.
    """
    from ficgan.lab.annotation import ImageRecords, listed, read_records, write_pages

    if gold is None and numbers["gold_count"]:
        raise UsageError("--gold names the boxes of verified images; without quality control give --gold-count 0")
    blobs, detected = listed(images), read_records(boxes)
    if not any(detected.find(blob.name) for blob in blobs):
        raise InputError(f"no record of {boxes} names an image of {images}; are they of the same set?")
    verified = read_records(gold) if gold else ImageRecords([])
    sizes = {"size": numbers["batch"], "gold": numbers["gold_count"]}
    key, failed = write_pages(out, blobs, detected, verified, progress=report, **sizes)
    work = sum(image.truth is None for batch in key.batches for image in batch.images)
    summary = {"pages": str(out / "pages"), "key": str(out / "key.json"), "batches": len(key.batches), "images": work}
    return {**summary, "gold": len(key.verified), "failed": len(failed)}, failed


@annotate.command()
@click.argument("key", type=shared.FILE)
@click.argument("exports", nargs=-1, required=True, type=shared.FILE)
@shared.output("JSON of corrected boxes.", kind=shared.NEW_FILE)
@shared.reporting("export")
def collect(key: Path, exports: tuple[Path, ...], out: Path, report: Console) -> Outcome:
    """Check EXPORTS of the pages, one of each, against their KEY.

    Work that failed the gold images, is of another batch, or is incomplete is refused and named, and makes the exit
    code 3, as do images that nobody looked at; these keep the detector's boxes, with "reviewed": false.
    """
    from ficgan.lab.annotation import collect, read_key, write_records

    done = collect(read_key(key), exports)
    write_records(out, done.records)
    counts = {name: len(some) for name, some in done._asdict().items()}
    unseen = [f"nobody looked at {name}; its boxes are the detector's" for name in done.unseen]
    return {"out": str(out), "images": counts.pop("records"), **counts}, [*done.refused, *unseen]


@annotate.command()
@click.argument("truth", type=shared.FILE)
@path("--before", "Boxes of the detector.", type=shared.FILE, required=True)
@path("--after", "Boxes after correction.", type=shared.FILE, required=True)
@shared.output("Write the counts as JSON.", kind=shared.NEW_FILE, required=False)
@handle_errors
def score(truth: Path, before: Path, after: Path, out: Path | None) -> None:
    """Count false positives and negatives before and after correction, against the verified boxes of TRUTH.

    Categories are the labels of TRUTH, else the folders of its images (the paper's Table 1). Prints the counts as JSON.
    """
    from ficgan.lab.annotation import read_records, score_annotations
    from ficgan.lab.results import write_json

    lists = {"before": read_records(before), "after": read_records(after)}
    counted = score_annotations(read_records(truth), lists)
    if out is not None:
        write_json(out, counted)
    click.echo(json.dumps(counted))


@click.group()
def survey() -> None:
    """Ask people whether two pictures show the same person, or how anonymised faces appeal to them.

    Only with the approval of an ethics board, see docs/survey.md.
    """


@survey.command()
@shared.output("New folder for the page, pictures and key.")
@shared.options(shared.DATA, shared.LAYOUT, shared.LABELS, shared.ALIGNED, shared.SIZE)
@many("--method", "Show faces anonymised like this", "methods", metavar="NAME:KEY=VALUE,…")
@many("--reversed", "Show them reversed: pixelation:size=8@ridge", "reversals", metavar="METHOD@ATTACKER")
@named("--config", "Show all methods of a configuration, such as fantomas, too.", "preset", default="")
@named("--kind", "What is asked.", default="same person", type=click.Choice(["same person", "likert"]))
@count("--pairs", 8, "For each condition; a multiple of 4 if the set knows genders.", low=2)
@count("--photos", 10, "Photos that are rated (likert), each under every condition.", low=2)
@path("--consent", "Text that participants agree to.  [default: a placeholder]", type=shared.FILE)
@shared.options(opts.DETECTOR, shared.SEED)
@shared.reporting("condition")
def make(out: Path, consent: Path | None, preset: str | None, detector: str, report: Console, **given: Any) -> Summary:
    """Draw pairs (or photos to be rated), make their pictures, and write the page.

    Kinds: "same person" is Fantômas's appendix D; "likert" its section 8, agreement with three statements: the picture
    is appealing, it shows a natural human being, I would use this. Hand out OUTPUT/page.html; keep the rest, which says
    what is what. Prints one line of JSON.
    """
    from ficgan.faces import get_detector
    from ficgan.lab.matrix_config import SetConfig
    from ficgan.lab.survey import CONSENT, asked, conditions_of, make_survey, write_survey

    drawn = {name: given.pop(name) for name in ("kind", "pairs", "photos", "seed")}
    data, labels, size = given.pop("data"), given.pop("labels"), given.pop("size") or 224
    methods: list[Any] = list(given.pop("methods"))
    if preset:
        from ficgan.lab.papers.fantomas import fantomas_matrix

        methods = [*fantomas_matrix(data, preset=preset, size=size).methods, *methods]
    conditions = conditions_of(methods, given.pop("reversals"))
    if out.is_dir() and any(out.iterdir()):
        raise InputError(f"{out} is not empty; two surveys must not mix: choose a new folder")
    text = consent.read_text("utf-8-sig").strip() if consent else CONSENT
    if not text:
        raise InputError(f"{consent} is empty; write what participants agree to")
    given["labels"] = None if labels is None else str(labels)
    source = SetConfig(name=data.absolute().stem, path=str(data), size=size, **given)
    finder = None if given["aligned"] else get_detector(detector)
    made = make_survey(source, conditions, detector=finder, progress=report, **drawn)
    write_survey(out, made, consent=text)
    notes = [*made.key.notes, *([] if consent else ["The page has no consent text yet: give --consent."])]
    people = len({picture.person for picture in made.key.pictures.values()})
    summary = {"page": str(out / "page.html"), "key": str(out / "key.json"), "questions": asked(made.key)}
    return {**summary, "conditions": [condition.label for condition in conditions], "people": people, "notes": notes}


@survey.command("score")
@click.argument("folder", metavar="OUT", type=shared.FOLDER)
@click.argument("answers", nargs=-1, required=True, type=shared.FILE)
@shared.output("Write all figures, JSON; of ratings a plot beside it, too.", kind=shared.NEW_FILE, required=False)
@shared.options(shared.OTHER_JUDGES, shared.RESAMPLES)
@handle_errors
def score_survey(folder: Path, answers: tuple[Path, ...], out: Path | None, **given: Any) -> None:
    """Score ANSWERS, the files that participants saved, of the survey in OUT.

    Files that failed attention checks, are unfinished, damaged or a second try are named, count for nothing, and make
    the exit code 3. Prints all figures as JSON.
    """
    from ficgan.lab.metrics import Bootstrap
    from ficgan.lab.readers import get_readers
    from ficgan.lab.report import save_plot
    from ficgan.lab.results import write_json
    from ficgan.lab.survey import collect, draw_agreement, judge, read_key, score_survey, statements

    if out is not None and out.exists():
        raise InputError(f"{out} exists already; choose another output")
    key = read_key(folder / "key.json")
    done = collect(key, answers)
    judged = judge(key, folder / "images", get_readers(given["judges"], "cpu")) if given["judges"] else {}
    scored = score_survey(key, done, judged, Bootstrap(given["resamples"], key.seed))
    if out is not None:
        write_json(out, scored)
        if rated := statements(key.kind):
            draw = partial(draw_agreement, scored["conditions"], rated)
            save_plot(out.with_suffix(""), draw, (2 + 0.8 * len(key.conditions), 4.5))
    click.echo(json.dumps(scored))
    for reason in done.refused:
        click.echo(f"Error: {reason}", err=True)
    if done.refused:
        raise SystemExit(EXIT_SOME_FAILED)
