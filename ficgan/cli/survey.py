"""`ficgan eval survey`: whether people recognise anonymised and reversed faces, asked blindly."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import click

from ficgan.cli import HELP
from ficgan.cli import _shared as shared
from ficgan.cli._console import EXIT_SOME_FAILED, Progress, handle_errors

__all__ = ["survey"]


@click.group(context_settings=HELP)
def survey() -> None:
    """Ask people whether two pictures, one of them anonymised or reversed, show the same person.

    Only with the approval of an ethics board, see docs/survey.md.
    """


@survey.command()
@click.argument("config", required=False, metavar="[CONFIG]")
@shared.output("New folder for pages, pictures and key.")
@click.option("--data", type=shared.PATH, help="Face set, where no CONFIG names one.")
@shared.options(shared.layout(), shared.LABELS)
@click.option("--aligned", is_flag=True, help="--data is aligned as ficgan's own crops; nothing is detected.")
@click.option("--size", type=click.IntRange(32), help="Side of the pictures, px.  [default: 224, or CONFIG's]")
@click.option("--set", "wanted", metavar="NAME", help="Which set of CONFIG.  [default: the first]")
@click.option("--methods", "--method", "methods", multiple=True, metavar="NAME:KEY=VALUE,…",
              help="Show faces anonymised like this, repeatable.  [default: the methods of CONFIG]")  # fmt: skip
@click.option("--reversed", "reversals", multiple=True, metavar="METHOD@ATTACKER",
              help="Show them reversed, repeatable: pixelation:size=8@ridge, or LABEL@folder:PATH with crops that were "
              "reversed before.")  # fmt: skip
@click.option("--control/--no-control", default=True, show_default=True, help="Show clear pairs, too.")
@click.option("--pairs", default=8, show_default=True, type=click.IntRange(2), help="Of a condition and a participant.")
@click.option("--questionnaires", type=click.IntRange(1),
              help="How many; 1 as in the paper.  [default: as many as conditions]")  # fmt: skip
@click.option("--checks", default=2, show_default=True, type=click.IntRange(0), help="Attention checks.")
@click.option("--failures", default=0, show_default=True, type=click.IntRange(0), help="Most checks one may fail.")
@click.option("--match", multiple=True, metavar="COLUMN",
              help="In what strangers agree besides gender, such as age; repeatable.")  # fmt: skip
@click.option("--consent", type=shared.FILE, help="Text that participants agree to.  [default: a placeholder]")
@shared.DETECTOR
@click.option("--store", type=shared.FOLDER, help="Keep crops and pixels here, such as in the store of a run.")
@shared.seed("Seed of who is shown, with whom, to whom.")
@shared.reporting("condition")
def make(
    out: Path, methods: tuple[str, ...], reversals: tuple[str, ...], control: bool, pairs: int,
    questionnaires: int | None, checks: int, failures: int, match: tuple[str, ...], consent: Path | None, detector: str,
    store: Path | None, seed: int, report: Progress, **faces: Any,
) -> shared.Summary:  # fmt: skip
    """Draw pairs, make their pictures, and write a page for each questionnaire.

    CONFIG: a matrix as of `ficgan eval run`, for its set and methods; or --data and --methods. Hand out what is in
    OUTPUT/pages, one page a participant, in turn; keep the rest, which says what is what. Prints one line of JSON.
    """
    from ficgan.errors import InputError
    from ficgan.faces import get_detector
    from ficgan.lab.survey import CONSENT, Rules, changes_of, make_survey, write_survey

    rules = Rules(pairs, checks, questionnaires, match, failures, seed)
    source, known = _source(**faces)
    chosen = _methods(methods, known, reversals)
    changes = changes_of(chosen, reversals, control=control, named=known)
    if out.is_dir() and any(out.iterdir()):
        raise InputError(f"{out} is not empty; two surveys must not mix: choose a new folder")
    text = _text(consent) if consent else CONSENT
    finder = None if source.aligned else get_detector(detector)
    divided = faces["data"] is None
    made = make_survey(source, changes, rules, divided=divided, detector=finder, store=store, progress=report)
    pages = write_survey(out, made, consent=text)
    notes = [*made.key.notes, *([] if consent else ["The pages have no consent text yet: give --consent."])]
    return {
        "pages": str(out / "pages"), "key": str(out / "key.json"), "questionnaires": len(pages),
        "conditions": [condition.label for condition in made.key.conditions],
        "questions": len(made.key.questionnaires[0].items), "pictures": len(made.pixels),
        "people": len({picture.person for picture in made.key.pictures.values()}), "notes": notes,
    }  # fmt: skip


@survey.command()
@click.argument("folder", metavar="OUT", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.argument("answers", nargs=-1, required=True, type=shared.FILE)
@shared.output("Write all figures, JSON.", kind=shared.NEW_FILE, required=False)
@click.option(
    "--judge", "judges", multiple=True, help="Recogniser on the same pictures: dlib, insightface, shape, onnx:PATH."
)
@click.option("--threshold", "thresholds", multiple=True, metavar="JUDGE=SIMILARITY",
              help="Of a judge, chosen on other faces: a cosine, or minus a distance.  [default: its own]")  # fmt: skip
@shared.options(shared.RESAMPLES, shared.device(what="Where judges compute."))
@handle_errors
def score(
    folder: Path, answers: tuple[Path, ...], out: Path | None, judges: tuple[str, ...], thresholds: tuple[str, ...],
    resamples: int, device: str,
) -> None:  # fmt: skip
    """Score ANSWERS, the files that participants saved, of the survey in OUT.

    Files that failed attention checks, are unfinished, damaged or a second try are named, count for nothing, and make
    the exit code 3.
    """
    from ficgan.errors import InputError
    from ficgan.lab import readers
    from ficgan.lab.metrics import Bootstrap
    from ficgan.lab.stored import write_json
    from ficgan.lab.survey import read_key
    from ficgan.lab.survey.score import collect, judge, score_survey, score_text

    if out is not None and out.exists():
        raise InputError(f"{out} exists already; choose another output")
    key = read_key(folder / "key.json")
    done = collect(key, answers)
    judged = judge(key, folder / "images", readers.get_readers(judges, device)) if judges else []
    judged = _thresholds(judged, thresholds)
    scored = score_survey(key, done, judged, bootstrap=Bootstrap(resamples, key.rules.seed))
    if out is not None:
        write_json(out, scored)
    click.echo(score_text(scored))
    for refused in done.refused:
        click.echo(f"Error: {refused.sentence}", err=True)
    if done.refused:
        raise SystemExit(EXIT_SOME_FAILED)


def _source(
    config: str | None, data: Path | None, layout: str, labels: Path | None, aligned: bool, size: int | None,
    wanted: str | None,
) -> tuple[Any, list[Any]]:  # fmt: skip
    """The face set and the methods that a configuration names."""
    from ficgan import configs
    from ficgan.errors import UsageError
    from ficgan.lab.matrix_config import SetConfig, load_matrix

    preset = config is not None and config in configs.names("eval")
    if data is None and (config is None or preset):
        raise UsageError("a survey needs faces; give --data, or a CONFIG that names a set")
    if data is not None and config is not None and not preset:
        raise UsageError(f"{config} names its own sets; --data is for surveys without")
    if data is None:
        matrix = load_matrix(str(config))
        sets = {one.name: one for one in matrix.sets}
        if wanted is not None and wanted not in sets:
            raise UsageError(f"{config} has no set {wanted!r}; it has {', '.join(sets)}")
        chosen = sets[wanted or matrix.sets[0].name]
        return chosen.model_copy(update={"size": size} if size else {}), list(matrix.methods)
    source = SetConfig(
        name=data.absolute().stem, path=str(data), layout=layout, labels=None if labels is None else str(labels),
        aligned=aligned, size=size or 224,
    )  # fmt: skip
    return source, _preset(str(config)) if preset else []


def _preset(name: str) -> list[Any]:
    import yaml

    from ficgan import configs
    from ficgan.lab.matrix_config import MethodConfig

    return [MethodConfig.model_validate(one) for one in yaml.safe_load(configs.read(name, "eval"))["methods"]]


def _methods(given: tuple[str, ...], known: list[Any], reversals: tuple[str, ...]) -> list[Any]:
    """The methods to show: those given, by label where a configuration has them; else all of the configuration."""
    from ficgan.errors import UsageError
    from ficgan.lab.matrix_config import MethodConfig

    if not (given or known or reversals):
        raise UsageError("a survey needs methods; give --methods, --reversed, or a CONFIG that names some")
    by_title = {method.title: method for method in known}
    return [by_title.get(text) or MethodConfig.model_validate(text) for text in given] if given else known


def _text(path: Path) -> str:
    from ficgan.errors import InputError

    try:
        text = path.read_text(encoding="utf-8-sig").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read as text ({error}); save it as UTF-8") from error
    if not text:
        raise InputError(f"{path} is empty; write what participants agree to")
    return text


def _thresholds(judged: list[Any], given: tuple[str, ...]) -> list[Any]:
    from ficgan.errors import UsageError

    chosen = {}
    for text in given:
        name, _, number = text.rpartition("=")
        try:
            chosen[name] = float(number)
        except ValueError:
            raise UsageError(f"--threshold {text!r} is not of the form JUDGE=SIMILARITY, such as dlib=-0.55") from None
    for name in set(chosen) - {one.name for one in judged}:
        raise UsageError(f"--threshold names {name!r}, which is no --judge; there are {[one.name for one in judged]}")
    return [dataclasses.replace(one, threshold=chosen.get(one.name, one.threshold)) for one in judged]
