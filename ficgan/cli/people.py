"""`ficgan eval annotate` and `survey`: people are asked where faces are, and whether two pictures show one person."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ficgan.cli import _console as shared
from ficgan.cli._console import EXIT_SOME_FAILED, Progress, Summary, count, handle_errors, many, named, path
from ficgan.errors import InputError, UsageError

__all__ = ["annotate", "survey"]


@click.group()
def annotate() -> None:
    """Annotate the faces of a set: detect, correct on review pages, collect, count errors before and after."""


@annotate.command()
@click.argument("images", type=shared.PATH)
@shared.output("JSON of boxes; an interrupted run is resumed from it.", kind=shared.NEW_FILE)
@shared.options(shared.DETECTOR, shared.THRESHOLD, shared.DEVICE)
@shared.reporting("image")
def detect(
    images: Path, out: Path, detector: str, thresh: float | None, device: str, report: Progress
) -> tuple[Summary, bool]:
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
@path("--gold", "Boxes of verified ones of the images; needed unless --gold-count 0.", type=shared.FILE)
@count("--batch", 50, "Images of a page.")
@count("--gold-count", 3, "Gold ones among them.", low=0)
@shared.reporting("image")
def page(
    images: Path, boxes: Path, out: Path, gold: Path | None, batch: int, gold_count: int, report: Progress
) -> tuple[Summary, bool]:
    """Make pages on which people correct BOXES (of `detect`, or any annotations) of IMAGES.

    Hand out what is in OUTPUT/pages; keep OUTPUT/key.json, which holds the truth. The pages judge gold images
    themselves: quality control, no security against somebody who reads their source.
    """
    from ficgan.lab.annotation import BatchRules, write_pages
    from ficgan.lab.annotation.boxes import listed, read_records

    if gold is None and gold_count:
        raise UsageError("--gold names the boxes of verified images; without quality control give --gold-count 0")
    blobs, detected = listed(images), read_records(boxes)
    if not any(detected.find(blob.name) for blob in blobs):
        raise InputError(f"no record of {boxes} names an image of {images}; are they of the same set?")
    verified = read_records(gold) if gold else None
    known = [(blob, record) for blob in blobs if verified is not None and (record := verified.find(blob.name))]
    key, failed = write_pages(out, blobs, detected, known, BatchRules(batch, gold_count), progress=report)
    work = sum(image.truth is None for batch in key.batches for image in batch.images)
    summary = {"pages": str(out / "pages"), "key": str(out / "key.json"), "batches": len(key.batches), "images": work}
    return _end({**summary, "gold": len(known), "failed": len(failed)}, failed, report)


@annotate.command()
@click.argument("key", type=shared.FILE)
@click.argument("exports", nargs=-1, required=True, type=shared.FILE)
@shared.output("JSON of corrected boxes; every change is listed in OUTPUT with .log.json.", kind=shared.NEW_FILE)
@shared.reporting("export")
def collect(key: Path, exports: tuple[Path, ...], out: Path, report: Progress) -> tuple[Summary, bool]:
    """Check EXPORTS of the pages against their KEY and merge them; of several people's boxes, those of at least half.

    Work that failed the gold images, is of another batch, or is incomplete is refused and named, and makes the exit
    code 3, as do images that nobody looked at; these keep the detector's boxes, with "workers": 0.
    """
    from ficgan.lab.annotation import read_key
    from ficgan.lab.annotation.boxes import write_records
    from ficgan.lab.annotation.collected import collect
    from ficgan.lab.pages import write_json

    log = out.with_suffix(".log.json")
    done = collect(read_key(key), exports)
    counts = done.summary()
    write_records(out, done.records)
    write_json(log, {**counts, "unseen": done.unseen, "log": done.log})
    unseen = [f"nobody looked at {name}; its boxes are the detector's" for name in done.unseen]
    summary = {"out": str(out), "log": str(log), **counts}
    summary |= {"accepted": len(done.accepted), "refused": len(done.refused)}
    return _end(summary, [reason for _, reason in done.refused] + unseen, report)


@annotate.command()
@click.argument("truth", type=shared.FILE)
@path("--before", "Boxes of the detector.", type=shared.FILE, required=True)
@path("--after", "Boxes after correction.", type=shared.FILE, required=True)
@path("--names", "JSON of category → name in the paper's table, such as a WordNet id's.", type=shared.FILE)
@shared.output("Write the counts as JSON.", kind=shared.NEW_FILE, required=False)
@handle_errors
def score(truth: Path, before: Path, after: Path, names: Path | None, out: Path | None) -> None:
    """Count false positives and negatives before and after correction, against the verified boxes of TRUTH.

    Categories are the labels of TRUTH, else the folders of its images (the paper's Table 1).
    """
    from ficgan.lab.annotation.boxes import read_records
    from ficgan.lab.annotation.collected import score_annotations, score_text
    from ficgan.lab.pages import read_json, write_json

    called = read_json(names) if names else {}
    if not isinstance(called, dict):
        raise InputError(f"{names} is no JSON object of category and name")
    lists = {"before": read_records(before), "after": read_records(after)}
    counted = score_annotations(read_records(truth), lists, names=called)
    if out is not None:
        write_json(out, counted)
    click.echo(score_text(counted))


def _end(summary: Summary, problems: list[str], report: Progress) -> tuple[Summary, bool]:
    for problem in problems:
        report.error(problem)
    return summary, bool(problems)


@click.group()
def survey() -> None:
    """Ask people whether two pictures, one of them anonymised or reversed, show the same person.

    Only with the approval of an ethics board, see docs/survey.md.
    """


@survey.command()
@click.argument("config", required=False, metavar="[CONFIG]")
@shared.output("New folder for pages, pictures and key.")
@path("--data", "Face set, where no CONFIG names one.")
@shared.options(shared.LAYOUT, shared.LABELS, shared.ALIGNED, shared.SIZE)
@many(
    "--method",
    "Show faces anonymised like this  [default: the methods of CONFIG]",
    "methods",
    metavar="NAME:KEY=VALUE,…",
)
@many(
    "--reversed",
    "Show them reversed: pixelation:size=8@ridge, or LABEL@external:folder=PATH with crops that were reversed before",
    "reversals",
    metavar="METHOD@ATTACKER",
)
@named("--control/--no-control", "Show clear pairs, too.", default=True)
@count("--pairs", 8, "For each condition and participant; a multiple of 4 if the set knows genders.", low=2)
@count("--questionnaires", None, "How many; 1 as in the paper.  [default: as many as conditions]")
@path("--consent", "Text that participants agree to.  [default: a placeholder]", type=shared.FILE)
@shared.options(shared.DETECTOR, shared.SEED)
@shared.reporting("condition")
def make(
    out: Path,
    methods: tuple[str, ...],
    reversals: tuple[str, ...],
    control: bool,
    pairs: int,
    questionnaires: int | None,
    consent: Path | None,
    detector: str,
    seed: int,
    report: Progress,
    **faces: Any,
) -> Summary:
    """Draw pairs, make their pictures, and write a page for each questionnaire.

    CONFIG: a matrix as for `ficgan eval run`, of which the first set and the methods are used; or --data and
    --method. Hand out what is in OUTPUT/pages, one page a participant, in turn; keep the rest, which says what is
    what. Prints one line of JSON.
    """
    from ficgan.faces import get_detector
    from ficgan.lab.matrix_config import MethodConfig
    from ficgan.lab.survey import CONSENT, SurveyRules, conditions_of, make_survey, write_survey

    rules = SurveyRules(pairs, questionnaires=questionnaires, seed=seed)
    source, known = _source(**faces)
    if not (methods or known or reversals):
        raise UsageError("a survey needs methods; give --method, --reversed, or a CONFIG that names some")
    by_title = {method.title: method for method in known}
    chosen = [by_title.get(text) or MethodConfig.model_validate(text) for text in methods] or known
    conditions = conditions_of(chosen, reversals, control=control, named=known)
    if out.is_dir() and any(out.iterdir()):
        raise InputError(f"{out} is not empty; two surveys must not mix: choose a new folder")
    text = consent.read_text(encoding="utf-8-sig").strip() if consent else CONSENT
    finder = None if source.aligned else get_detector(detector)
    divided = faces["data"] is None
    made = make_survey(source, conditions, rules, divided=divided, detector=finder, progress=report)
    pages = write_survey(out, made, consent=text)
    notes = [*made.key.notes, *([] if consent else ["The pages have no consent text yet: give --consent."])]
    return {
        "pages": str(out / "pages"),
        "key": str(out / "key.json"),
        "questionnaires": len(pages),
        "conditions": [condition.label for condition in conditions],
        "questions": len(made.key.questionnaires[0].items),
        "pictures": len(made.pixels),
        "people": len({picture.person for picture in made.key.pictures.values()}),
        "notes": notes,
    }


def _source(
    config: str | None, data: Path | None, layout: str, labels: Path | None, aligned: bool, size: int | None
) -> tuple[Any, list[Any]]:
    """The face set and the methods that a configuration names."""
    from ficgan import configs
    from ficgan.lab.matrix_config import MethodConfig, SetConfig, load_matrix
    from ficgan.yaml_settings import read_tree

    preset = config is not None and config in configs.names("eval")
    if config is not None and not preset:
        if data is not None:
            raise UsageError(f"{config} names its own sets; --data is for surveys without")
        matrix = load_matrix(config)
        return matrix.sets[0].model_copy(update={"size": size} if size else {}), list(matrix.methods)
    if data is None:
        raise UsageError("a survey needs faces; give --data, or a CONFIG that names a set")
    source = SetConfig(
        name=data.absolute().stem,
        path=str(data),
        layout=layout,
        labels=None if labels is None else str(labels),
        aligned=aligned,
        size=size or 224,
    )
    tree = read_tree(str(config), kind="eval") if preset else {"methods": []}
    return source, [MethodConfig.model_validate(method) for method in tree["methods"]]


@survey.command("score")
@click.argument("folder", metavar="OUT", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.argument("answers", nargs=-1, required=True, type=shared.FILE)
@shared.output("Write all figures, JSON.", kind=shared.NEW_FILE, required=False)
@many("--judge", "Recogniser on the same pictures: dlib, insightface, shape, onnx:PATH", "judges")
@shared.RESAMPLES
@handle_errors
def score_survey(
    folder: Path, answers: tuple[Path, ...], out: Path | None, judges: tuple[str, ...], resamples: int
) -> None:
    """Score ANSWERS, the files that participants saved, of the survey in OUT.

    Files that failed attention checks, are unfinished, damaged or a second try are named, count for nothing, and make
    the exit code 3.
    """
    from ficgan.lab import readers
    from ficgan.lab.metrics import Bootstrap
    from ficgan.lab.pages import write_json
    from ficgan.lab.survey import read_key
    from ficgan.lab.survey.score import collect, judge, score_survey, score_text

    if out is not None and out.exists():
        raise InputError(f"{out} exists already; choose another output")
    key = read_key(folder / "key.json")
    done = collect(key, answers)
    judged = judge(key, folder / "images", readers.get_readers(judges, "cpu")) if judges else []
    scored = score_survey(key, done, judged, bootstrap=Bootstrap(resamples, key.rules.seed))
    if out is not None:
        write_json(out, scored)
    click.echo(score_text(scored))
    for _, _, reason in done.refused:
        click.echo(f"Error: {reason}", err=True)
    if done.refused:
        raise SystemExit(EXIT_SOME_FAILED)
