"""`ficgan eval`: run a matrix, repeat a paper's evaluation, make the report; and `ficgan measure`."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import click

from ficgan import __version__, configs
from ficgan.cli import _options as opts
from ficgan.cli import main as shared
from ficgan.cli.main import Console, Outcome, Parsed, Summary, count, flag, handle_errors, many, named, path
from ficgan.cli.people import annotate, survey
from ficgan.errors import UsageError
from ficgan.files import atomic_write


def catalogue(what: str, kind: str = "eval") -> Iterator[tuple[str, str]]:
    """What there is of anonymizers, scenarios, metrics, attackers or configs (of a `kind`): names, each with a line."""
    if what == "anonymizers":
        from ficgan import lab  # noqa: F401 (knows all anonymisers)
        from ficgan.anonymizers import ANONYMIZERS

        for name in ANONYMIZERS:
            traits, needs = ANONYMIZERS[name].traits, ", ".join(sorted(ANONYMIZERS[name].traits.needs))
            marks = [str(traits.family)] + ["keyed"] * traits.keyed + ["stochastic"] * traits.stochastic
            marks += [f"needs {needs}"] if needs else []
            public = [field for field, limits in ANONYMIZERS[name].parameters() if not limits["secret"]]
            defaults = ", ".join(f"{field.name}={field.default}" for field in public)
            yield name, f"{traits.title} ({'; '.join(marks)}){f' [{defaults}]' if defaults else ''}"
    elif what == "attackers":
        from ficgan.lab.attacks import REVERSERS, Learned

        for name in REVERSERS:
            reverser = REVERSERS[name].traits
            against, knows = (", ".join(sorted(words)) for words in (reverser.against, reverser.knowledge))
            trained = " [to be trained]" if issubclass(REVERSERS[name], Learned) else ""
            yield name, f"{reverser.title} (against {against or 'any method'}; knows {knows or 'nothing'}){trained}"
    elif what == "scenarios":
        from ficgan.lab.matrix_config import SCENARIOS

        for scenario in SCENARIOS.values():
            yield scenario.name, f"{scenario.title} (attacker knows {scenario.knowledge})"
    elif what == "metrics":
        from ficgan.lab.metrics import METRICS

        for group, some in METRICS.items():
            for metric in some.values():
                yield metric.name, f"{metric.title} ({group}; {metric.better} is better)"
    else:
        for name in configs.names(kind):
            yield name, configs.read(name, kind).splitlines()[0].removeprefix("#").strip()


@click.group("eval", context_settings=shared.HELP)
@click.version_option(__version__, prog_name="ficgan-eval")
def evaluate() -> None:
    """Compare anonymisers: what attackers achieve against them, and what they leave to work with."""


@evaluate.command("list")
@click.argument("what", type=click.Choice(["anonymizers", "scenarios", "metrics", "attackers", "configs"]))
@handle_errors
def list_(what: str) -> None:
    """List what there is, a line each: name, tab, title."""
    for name, title in catalogue(what):
        click.echo(f"{name}\t{title}")


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
@flag("--transfer", "Try attackers that learnt on eight anonymisations each on Gaussian Blur 29 (E4.1).")
@path("--learn-from", "Another set of faces on which general attackers are trained, too (E4.2).", "other")
@path("--survey", "Scores of people's ratings, see `ficgan eval survey` (Figures 13, 14).", "ratings", type=shared.FILE)
@shared.options(shared.SET, shared.JOBS)
@shared.reporting("task")
def fantomas(out: Path, jobs: int, overrides: tuple[str, ...], report: Console, **given: Any) -> Summary:
    """Which anonymisations are reversible.

    Todt and others 2024 (Fantômas), experiments E1–E3, and with --set utility=true appendix E: on CelebA in the paper,
    any set with identities will do.
    """
    from ficgan.lab.matrix import run_matrix
    from ficgan.lab.papers import fantomas as experiment

    ratings, transfer, other = (given.pop(name) for name in ("ratings", "transfer", "other"))
    rated = {} if ratings is None else experiment.read_ratings(ratings)
    config = experiment.fantomas_matrix(**given, **_numbers(overrides))
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
    type=Parsed(_ablation),
)
@shared.SET
@shared.reporting("setting")
def ficgan(out: Path, overrides: tuple[str, ...], report: Console, **protocol: Any) -> Summary:
    """Identity against attributes, by layer.

    Jeong and others 2021 (FICGAN), Tables 1, 2 and A, Figures 4 and B: on FFHQ and CelebA-HQ in the paper, any faces
    will do. Other numbers by --set: part=test, skip=60000 (what the paper tests on of FFHQ), k, seed or device.
    """
    from ficgan.config import check
    from ficgan.lab.papers.ficgan import FicganPaper, draw_figure_4, ficgan_tables, run_ficgan

    given = {**{name: value for name, value in protocol.items() if value is not None}, **_numbers(overrides)}
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


def _numbers(overrides: Sequence[str]) -> dict[str, Any]:
    from ficgan.config import override

    return override({}, overrides, example="seed=1")


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
