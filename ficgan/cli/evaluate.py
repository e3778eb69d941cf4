"""`ficgan eval`: run a matrix, repeat a paper's evaluation, make the report, ask people; and `ficgan measure`."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import click

from ficgan import __version__, configs
from ficgan.cli import _options as opts
from ficgan.cli import main as shared
from ficgan.cli.main import Console, Outcome, Summary, count, handle_errors, many, named, path
from ficgan.errors import InputError, UsageError
from ficgan.files import atomic_write


def print_catalogue(what: str, kind: str = "eval") -> None:
    """Print what there is of anonymizers, scenarios, metrics, attackers or configs (of a `kind`), a line each."""
    if what == "anonymizers":
        from ficgan import lab  # noqa: F401 (knows all anonymisers)
        from ficgan.anonymizers import ANONYMIZERS

        for name in ANONYMIZERS:
            traits, needs = ANONYMIZERS[name].traits, ", ".join(sorted(ANONYMIZERS[name].traits.needs))
            marks = [str(traits.family)] + ["keyed"] * traits.keyed + ["stochastic"] * traits.stochastic
            marks += [f"needs {needs}"] if needs else []
            public = [field for field, limits in ANONYMIZERS[name].parameters() if not limits["secret"]]
            defaults = ", ".join(f"{field.name}={field.default}" for field in public)
            click.echo(f"{name}\t{traits.title} ({'; '.join(marks)}){f' [{defaults}]' if defaults else ''}")
    elif what == "attackers":
        from ficgan.lab.attacks import REVERSERS, Learned

        for name in REVERSERS:
            reverser = REVERSERS[name].traits
            against, knows = (", ".join(sorted(words)) for words in (reverser.against, reverser.knowledge))
            about = f"(against {against or 'any method'}; knows {knows or 'nothing'})"
            trained = " [to be trained]" if issubclass(REVERSERS[name], Learned) else ""
            click.echo(f"{name}\t{reverser.title} {about}{trained}")
    elif what == "scenarios":
        from ficgan.lab.matrix_config import SCENARIOS

        for scenario in SCENARIOS.values():
            click.echo(f"{scenario.name}\t{scenario.title} (attacker knows {scenario.knowledge})")
    elif what == "metrics":
        from ficgan.lab.metrics import METRICS

        for group, some in METRICS.items():
            for metric in some.values():
                click.echo(f"{metric.name}\t{metric.title} ({group}; {metric.better} is better)")
    else:
        for name in configs.names(kind):
            click.echo(f"{name}\t{configs.read(name, kind).splitlines()[0].removeprefix('#').strip()}")


@click.group("eval", context_settings=shared.HELP)
@click.version_option(__version__, prog_name="ficgan-eval")
def evaluate() -> None:
    """Compare anonymisers: what attackers achieve against them, and what they leave to work with."""


@evaluate.command("list")
@click.argument("what", type=click.Choice(["anonymizers", "scenarios", "metrics", "attackers", "configs"]))
@handle_errors
def list_(what: str) -> None:
    """List what there is, a line each: name, tab, title."""
    print_catalogue(what)


@evaluate.command()
@click.argument("config", metavar="CONFIG")
@shared.output("Folder for results.json, the report and the state of the run; an interrupted run is resumed from it.")
@path("--data", "Face set, for a CONFIG that comes with ficgan.")
@shared.options(shared.LAYOUT, shared.LABELS, shared.PEOPLE, shared.OTHER_JUDGES, shared.ATTRIBUTES)
@shared.options(shared.JOBS, shared.PAGES, shared.DRY_RUN)
@shared.reporting("task")
def run(config: str, out: Path, jobs: int, pages: bool, dry_run: bool, report: Console, **given: Any) -> Outcome:
    """Run a matrix of sets, methods, scenarios and judges.

    CONFIG: a YAML file, or the name of one that comes with ficgan (`ficgan eval list configs`), which takes --data.
    """
    from ficgan.lab.matrix import check_paths, run_matrix
    from ficgan.lab.matrix_config import load_matrix
    from ficgan.lab.papers import with_data

    if config in configs.names("eval"):
        if given["data"] is None:
            raise UsageError(f"{config} comes without faces; give --data")
        matrix = with_data(config, **given)
    elif any(given[name] is not None for name in ("data", "labels", "people")) or given["layout"] != "auto":
        raise UsageError(f"{config} names its own sets; --data, --layout, --labels and --people are for others")
    else:
        change = {"recognisers": list(given["judges"]), "attributes": given["attributes"] and str(given["attributes"])}
        matrix = load_matrix(config).model_copy(update={key: value for key, value in change.items() if value})
    if dry_run:
        check_paths(matrix)
        tasks = len(matrix.sets) * (len(matrix.methods) + 1)
        return {"tasks": tasks, "scenarios": matrix.scenarios, "dry_run": True}
    results = run_matrix(matrix, out, jobs=jobs, progress=report)
    files = write_pages(results, out) if pages else []
    nothing = [f"{label} has no figure at all: {why}" for label, why in results.methods_without_a_figure().items()]
    refused = sum(figure.value is None for trial in results.trials for figure in trial.figures)
    summary = {"results": "results.json", "report": files, "trials": len(results.trials), "refused_figures": refused}
    return summary, nothing


@evaluate.command()
@click.argument("results", type=click.Path(path_type=Path, exists=True))
@shared.output("[default: beside it]", required=False)
@handle_errors
def report(results: Path, out: Path | None) -> None:
    """Make the report (page, plots, tables) of RESULTS: results.json of a finished evaluation, or its folder."""
    from ficgan.lab.results import Results

    file = results / "results.json" if results.is_dir() else results
    click.echo(json.dumps({"report": write_pages(Results.read(file), out or file.parent)}))


@evaluate.command()
@click.argument("name", metavar="NAME", type=click.Choice(["degrees", "exemplar", "attributes", "swaps", "bands"]))
@click.argument("photos", nargs=-1, required=True, type=shared.FILE)
@shared.output("Picture to write (.png).", kind=shared.NEW_FILE)
@many("--exemplar", "Photo of the other person [default: the next photo]", "exemplars", type=shared.FILE)
@many("--group", "Group of the bank, such as Male or 'East Asian,-Male'", "attributes")
@shared.options(opts.CHECKPOINT, opts.BANK, opts.DEVICE, opts.K, opts.PSI, shared.SEED, shared.OVERWRITE)
@shared.reporting("sheet")
def sheet(name: str, photos: tuple[Path, ...], out: Path, overwrite: bool, report: Console, **model: Any) -> Summary:
    """Draw a sheet of FICGAN's controls on PHOTOS, as in the paper.

    NAME: degrees (Figure 3, every layer index), exemplar (Figure 5, α of another person), attributes (Figure 6, the
    --group of people averaged), swaps (Figure 9, another person's code), bands (Figure A, low, middle or high layers).
    Sheets show first attempts that nothing has checked, and the sources: do not publish them.
    """
    from PIL import Image

    from ficgan.lab.papers.ficgan import control_sheet

    shared.refuse_existing(out, overwrite=overwrite)
    others = {key: model.pop(key) for key in ("exemplars", "attributes")}
    image = Image.fromarray(control_sheet(name, photos, **others, model=model, progress=report))
    with atomic_write(out, overwrite=overwrite) as file:
        image.save(file, format="PNG")
    return {"sheet": str(out), "width": image.width, "height": image.height}


def write_pages(results: Any, out: Path, **more: Any) -> list[str]:
    """The report of results, see `ficgan.lab.report.write_report`; its files as names in `out`."""
    from ficgan.lab.report import write_report

    return [str(path.relative_to(out)) for path in write_report(results, out, **more)]


# -- papers -----------------------------------------------------------------------------------------------------------

_OUT = shared.output("Folder for paper.json, the report and the state of the run; an interrupted run is resumed.")
_FACES: tuple[Any, ...] = (shared.DATA, shared.LAYOUT, shared.LABELS, shared.ALIGNED, shared.SIZE)
_FACES += (opts.DETECTOR, shared.RESAMPLES, _OUT, shared.JUDGES)


@click.group()
def paper() -> None:
    """Repeat a paper's evaluation, its published numbers beside one's own. Prints one line of JSON when done."""


@paper.command()
@shared.options(_FACES, shared.PEOPLE)
@many("--method", "A further method, such as CIAGAN=external:folder=PATH", "extra", metavar="LABEL=NAME:KEY=VALUE,…")
@named("--config", "fantomas: linear attackers; fantomas64, fantomas-full: learned ones.", "preset", default="fantomas")
@many("--general", "General attacker in place of the configuration's, such as pix2pix", metavar="REVERSER")
@shared.flag("--transfer", "Try attackers that learnt on eight anonymisations each on Gaussian Blur 29 (E4.1).")
@path("--learn-from", "Another set of faces on which general attackers are trained, too (E4.2).", "other")
@path("--survey", "Scores of people's ratings, see `ficgan eval survey` (Figures 13, 14).", "ratings", type=shared.FILE)
@shared.options(shared.SET, shared.JOBS)
@shared.reporting("task")
def fantomas(out: Path, jobs: int, overrides: tuple[str, ...], report: Console, **given: Any) -> Summary:
    """Which anonymisations are reversible.

    Todt and others 2024 (Fantômas), experiments E1–E3, and with --set utility=true appendix E: on CelebA in the paper,
    any set with identities will do.
    """
    from ficgan.config import override
    from ficgan.lab.matrix import run_matrix
    from ficgan.lab.papers import fantomas as experiment

    ratings, transfer, other = (given.pop(name) for name in ("ratings", "transfer", "other"))
    rated = {} if ratings is None else experiment.read_ratings(ratings)
    config = experiment.fantomas_matrix(**given, **override({}, overrides, example="seed=1"))
    running = partial(run_matrix, out=out, jobs=jobs, progress=report)
    elsewhere = None if other is None else running(experiment.learnt_on(config, other))
    results = running(config)
    transferred = experiment.fantomas_transfer(config, out, report) if transfer else []
    results.caveats = [*experiment.fantomas_caveats(results), *results.caveats]
    found = experiment.verdicts(results)
    alike = experiment.similarities(config, out, report) if config.utility else ({}, "")
    tables = [
        *experiment.fantomas_tables(results),
        *experiment.attacker_tables(results, found),
        experiment.transfer_table(transferred),
        experiment.elsewhere_table(results, elsewhere),
        experiment.ratings_table(found, rated),
        experiment.similarity_table(*alike),
    ]
    return _finish(results, out, tables, lambda: experiment.draw_figure_14(found, rated, out / "figures"))


def _ablation(text: str) -> tuple[str, str, str]:
    found = re.fullmatch(r"\s*([^=]*\S)\s*=(.+):([^:]+)", text)
    if found is None:
        raise ValueError("is not of the form NAME=CHECKPOINT:BANK")
    return found[1], found[2], found[3]


@paper.command()
@shared.options(_FACES, shared.LIMIT, shared.ATTRIBUTES, opts.CHECKPOINT, opts.BANK, shared.LAYERS)
@many(
    "--ablation",
    "A model without one of the parts, for Table 2",
    "ablations",
    metavar="NAME=CHECKPOINT:BANK",
    type=shared.Parsed(_ablation),
)
@shared.SET
@shared.reporting("setting")
def ficgan(out: Path, overrides: tuple[str, ...], report: Console, **protocol: Any) -> Summary:
    """Identity against attributes, by layer.

    Jeong and others 2021 (FICGAN), Tables 1, 2 and A, Figures 4 and B: on FFHQ and CelebA-HQ in the paper, any faces
    will do. Other numbers by --set: part=test, skip=60000 (what the paper tests on of FFHQ), k, seed or device.
    """
    from ficgan.config import check, override
    from ficgan.lab.papers.ficgan import FicganPaper, draw_figure_4, ficgan_tables, run_ficgan

    given = {name: value for name, value in protocol.items() if value is not None}
    given |= override({}, overrides, example="seed=1")
    run = run_ficgan(check(FicganPaper, given, where="paper ficgan"), out, report)
    return _finish(run.results, out, ficgan_tables(run), lambda: draw_figure_4(run, out / "figures"))


@paper.command()
@shared.options(_FACES, shared.PEOPLE)
@named("--parts", "Of base, retrieval, fine-tuning, kernel, sweep, defences, ood.", default="", metavar="PART,…")
@many("--attacker", "Such as Revelio=revelio:epochs=100, taken in all parts", "attackers", metavar="LABEL=NAME:…")
@named("--config", "Attackers and numbers: revelio64, …", "preset", default="revelio")
@shared.SET
@shared.reporting("part")
def revelio(out: Path, parts: str, preset: str, report: Console, **protocol: Any) -> Summary:
    """Whether blurred faces are restored and named.

    Zhai and others (Revelio), Tables 1 to 7, Figures 4 to 7, 13 and 15: on CelebA-HQ in the paper, any set with
    identities will do. For testing one's own blur, never for naming people in others' photos. Other numbers of the
    protocol by --set, such as probes=20, candidates=5, sweep=20, adapt_epochs=5, or pictures=0 (these show people).
    """
    from ficgan.lab.papers.revelio import RevelioPaper
    from ficgan.lab.papers.revelio_tables import draw_revelio, run_revelio

    protocol |= {"parts": tuple(part.strip() for part in parts.split(",") if part.strip())}
    overrides = protocol.pop("overrides")
    given = {key: value for key, value in protocol.items() if value not in (None, ())}
    run = run_revelio(RevelioPaper.of(preset, overrides, **given), out, report)
    return _finish(run.results, out, run.tables, lambda: draw_revelio(run.experiment, run.outcomes, out))


@paper.command()
@path("--images", "ImageNet's folder, or a folder, zip or tar of scenes.")
@path("--annotations", "Face boxes, JSON; the paper's face_annotations_ILSVRC.json.")
@named("--config", "Or obfuscation-pretrained, obfuscation-small, a YAML file.", "source", default="obfuscation")
@shared.options(shared.SET, _OUT)
@count("--jobs", 1, "Networks trained at the same time: processes, or workers of --cluster.")
@shared.CLUSTER
@shared.reporting("network")
def obfuscation(out: Path, source: str, overrides: tuple[str, ...], report: Console, **given: Any) -> Summary:
    """What obfuscated faces cost a classifier.

    Yang and others 2022, Tables 2 to 9, Figures 2 to 5: on ImageNet in the paper, any scenes with face boxes will do.
    The default is the paper's protocol, 135 trainings of 1 to 7 days; obfuscation-pretrained is Table 8,
    obfuscation-small for a CPU. Other numbers by --set, such as epochs=10 or networks=[resnet18].
    """
    from ficgan.lab.study import run_obfuscation, write_study
    from ficgan.lab.study.scenes import StudyConfig

    workers = {key: given.pop(key) for key in ("jobs", "cluster")}
    places = {key: str(place) for key, place in given.items() if place is not None}
    config = StudyConfig.read(source, overrides, **places)
    run = run_obfuscation(config, out, report, **workers)
    return _finish(run.results, out, run.tables, lambda: write_study(run, out), page=False)


def _finish(
    results: Any, out: Path, tables: list[dict[str, Any]], draw: Callable[[], list[Path]], *, page: bool = True
) -> Summary:
    """Write results and tables, the page unless `draw` makes that, too, and the drawings."""
    from ficgan.lab.results import write_json

    results.write(out / "results.json")
    tree = {"title": results.title, "caveats": results.caveats, "tables": tables, "provenance": results.provenance}
    write_json(out / "paper.json", tree)
    pages = write_pages(results, out, published=tables) if page else []
    pages += [str(drawn.relative_to(out)) for drawn in draw()]
    files = {"paper": "paper.json", "results": "results.json", "report": pages}
    return {**files, "tables": [table["title"] for table in tables]}


# -- people are asked --------------------------------------------------------------------------------------------------


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
        raise SystemExit(shared.EXIT_SOME_FAILED)


for group in (annotate, paper, survey):
    evaluate.add_command(group)


# -- measure ----------------------------------------------------------------------------------------------------------


@click.command()
@shared.options(opts.CHECKPOINT, opts.BANK)
@path("--aligned", "Folder, zip or tar of aligned faces; repeatable.", multiple=True)
@path("--photos", "Folder of photos; without -o each of another person.")
@shared.options(shared.JUDGES, shared.LAYERS, opts.DETECTOR)
@shared.options(opts.K, opts.PSI, shared.LIMIT, opts.DEVICE)
@shared.output("Folder for bars.json and bars.csv: the whole table, beside the average-face sticker.", required=False)
@shared.ATTRIBUTES
@shared.reporting("step")
def measure(photos: Path | None, out: Path | None, report: Console, **given: Any) -> Summary:
    """Reconstruction, identity similarity and detection rate, as JSON. Retries and masking are off.

    With -o every figure a default model is held to, met or missed, in a folder; docs/model.md says how to read it.
    """
    from ficgan.lab.bars import BarsConfig, run_bars

    if not given["aligned"] and photos is None:
        raise UsageError("nothing to measure on; give --aligned or --photos")
    if out is None and given["attributes"] is not None:
        raise UsageError("--attributes belongs to the whole table; give -o, too")
    sheet = run_bars(BarsConfig(photos=photos, whole=out is not None, **given), report)
    checkpoint = sheet.facts["checkpoint"]
    if out is None:
        keys = ("set", "setting", "row", "judge", "value", "low", "high")
        lines = [{key: line[key] for key in keys} for line in (row.to_dict() for row in sheet.lines)]
        return {"checkpoint": checkpoint, "settings": sheet.facts["settings"], "lines": lines}
    verdicts = {"checkpoint": checkpoint, "verdicts": sheet.verdicts, "missed": sheet.missed}
    return {"bars": [path.name for path in sheet.write(out)], **verdicts, "seconds": sheet.facts["seconds"]}
