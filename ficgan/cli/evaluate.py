"""`ficgan eval`: run a matrix, repeat a paper's evaluation, make the report."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import click

from ficgan import __version__
from ficgan.cli import HELP
from ficgan.cli import _shared as shared
from ficgan.cli._console import Progress, handle_errors
from ficgan.cli.people import annotate, survey

__all__ = ["attackers", "configurations", "evaluate", "paper", "write_pages"]

Catalogue = Iterator[tuple[str, str]]
"""Names, each with a line."""


def anonymizers() -> Catalogue:
    from ficgan import lab  # noqa: F401 (knows all anonymisers)
    from ficgan.anonymizers import ANONYMIZERS

    for name in ANONYMIZERS:
        cls = ANONYMIZERS[name]
        marks: list[str] = [cls.traits.family]
        marks += ["keyed"] if cls.traits.keyed else []
        marks += ["stochastic"] if cls.traits.stochastic else []
        marks += [f"needs {', '.join(sorted(cls.traits.needs))}"] if cls.traits.needs else []
        public = [field for field, limits in cls.parameters() if not limits["secret"]]
        defaults = ", ".join(f"{field.name}={field.default}" for field in public)
        yield name, f"{cls.traits.title} ({'; '.join(marks)}){f' [{defaults}]' if defaults else ''}"


def attackers() -> Catalogue:
    from ficgan.lab.attacks import REVERSERS

    for name in REVERSERS:
        traits = REVERSERS[name].traits
        against = ", ".join(sorted(traits.against)) or "any method"
        yield name, f"{traits.title} (against {against}; knows {', '.join(sorted(traits.knowledge)) or 'nothing'})"


def scenarios() -> Catalogue:
    from ficgan.lab.matrix_config import SCENARIOS

    for scenario in SCENARIOS.values():
        yield scenario.name, f"{scenario.title} (attacker knows {scenario.knowledge})"


def metrics() -> Catalogue:
    from ficgan.lab.metrics import METRICS

    for kind, some in METRICS.items():
        for metric in some.values():
            yield metric.name, f"{metric.title} ({kind}; {metric.better} is better)"


def configurations(kind: str = "eval") -> Catalogue:
    from ficgan import configs

    for name in configs.names(kind):
        yield name, configs.read(name, kind).splitlines()[0].removeprefix("#").strip()


CATALOGUES: dict[str, Callable[[], Catalogue]] = {
    "anonymizers": anonymizers,
    "scenarios": scenarios,
    "metrics": metrics,
    "attackers": attackers,
    "configs": configurations,
}


@click.group("eval", context_settings=HELP)
@click.version_option(__version__, prog_name="ficgan-eval")
def evaluate() -> None:
    """Compare anonymisers: what attackers achieve against them, and what they leave to work with."""


@evaluate.command("list")
@click.argument("what", type=click.Choice(list(CATALOGUES)))
@handle_errors
def list_(what: str) -> None:
    """List what there is, a line each: name, tab, title."""
    for name, title in CATALOGUES[what]():
        click.echo(f"{name}\t{title}")


@evaluate.command()
@click.argument("config", metavar="CONFIG")
@shared.output("Folder for results.json, the report and the state of the run; an interrupted run is resumed from it.")
@shared.JOBS
@click.option("--data", type=shared.PATH, help="Face set, for a CONFIG that comes with ficgan.")
@shared.options(shared.layout(), shared.LABELS)
@click.option("--people", type=click.IntRange(2), help="At most so many people of --data.")
@shared.judges_instead("dlib, insightface, shape, onnx:PATH, installed (one of another make, if there is one)")
@click.option("--attributes", type=shared.PATH, help="Classifier of `ficgan train-attributes`.")
@shared.options(shared.REPORT, shared.dry_run("Check the matrix and print what would be run; read no image."))
@shared.reporting("task")
def run(
    out: Path, jobs: int, pages: bool, dry_run: bool, report: Progress, **chosen: Any
) -> shared.Summary | tuple[shared.Summary, bool]:
    """Run a matrix of sets, methods, scenarios and judges.

    CONFIG: a YAML file, or the name of one that comes with ficgan (`ficgan eval list configs`), which takes --data.
    Finished tasks are kept in the output folder under a digest of everything they depend on: the same command resumes
    an interrupted run. Prints one line of JSON when done.
    """
    from ficgan.lab.matrix import check_paths, run_matrix

    matrix = _matrix(**chosen)
    if dry_run:
        check_paths(matrix)
        tasks = len(matrix.sets) * (len(matrix.methods) + 1)
        return {"tasks": tasks, "scenarios": matrix.scenarios, "dry_run": True}
    results = run_matrix(matrix, out, jobs=jobs, progress=report)
    files = [str(path.relative_to(out)) for path in write_pages(results, out)] if pages else []
    nothing = results.methods_without_a_figure()
    for label, why in nothing.items():
        report.error(f"{label} has no figure at all: {why}")
    refused = sum(figure.value is None for trial in results.trials for figure in trial.figures)
    summary = {"results": "results.json", "report": files, "trials": len(results.trials), "refused_figures": refused}
    return summary, bool(nothing)


def _matrix(
    config: str,
    data: Path | None,
    layout: str,
    labels: Path | None,
    people: int | None,
    judges: tuple[str, ...],
    attributes: Path | None,
) -> Any:
    from ficgan import configs
    from ficgan.errors import UsageError
    from ficgan.lab.matrix_config import load_matrix
    from ficgan.lab.papers import with_data
    from ficgan.yaml_settings import hint

    presets = configs.names("eval")
    if config not in presets and not Path(config).exists():
        raise UsageError(f"there is no matrix named {config!r}, and no such file; {hint(config, presets)}")
    if config in presets:
        if data is None:
            raise UsageError(f"{config} comes without faces; give --data")
        return with_data(
            config, data, layout=layout, labels=labels, people=people, judges=judges, attributes=attributes
        )
    if data is not None or labels is not None or people is not None or layout != "auto":
        raise UsageError(f"{config} names its own sets; --data, --layout, --labels and --people are for others")
    matrix = load_matrix(config)
    change: dict[str, Any] = {"recognisers": list(judges)} if judges else {}
    if attributes is not None:
        change["attributes"] = str(attributes)
    return matrix.model_copy(update=change)


@evaluate.command()
@click.argument("results", nargs=-1, required=True, type=click.Path(path_type=Path, exists=True))
@shared.output("[default: beside it]", required=False)
@handle_errors
def report(results: tuple[Path, ...], out: Path | None) -> None:
    """Make the report of finished evaluations: one self-contained page, plots as PNG and SVG, tables as CSV and JSON.

    RESULTS: results.json of a run, or its folder; several are laid side by side.
    """
    from ficgan.errors import InputError
    from ficgan.lab.report import merge
    from ficgan.lab.results import Results

    files = [path / "results.json" if path.is_dir() else path for path in results]
    for folder, file in zip(results, files, strict=True):
        if not file.exists():
            raise InputError(f"{folder} holds no results.json; name the folder of an evaluation that has finished")
    read = [Results.read(path) for path in files]
    folder = out or files[0].parent
    written = write_pages(merge(read), folder, pictures=[path.parent for path in files])
    click.echo(json.dumps({"report": [str(path.relative_to(folder)) for path in written]}))


def write_pages(results: Any, out: Path, **more: Any) -> list[Path]:
    """The report of results, see `ficgan.lab.report.write_report`."""
    from ficgan.errors import FicganError

    try:
        from ficgan.lab.report import write_report
    except ImportError as error:
        raise FicganError(f"the report needs {error.name}: pip install 'ficgan[eval]'") from error
    written: list[Path] = write_report(results, out, **more)
    return written


_OUT = shared.output("Folder for paper.json, the report and the state of the run; an interrupted run is resumed.")
_SET: tuple[Any, ...] = (
    shared.DATA,
    shared.layout(),
    shared.LABELS,
    shared.ALIGNED,
    shared.DETECTOR,
    click.option("--resamples", default=1000, show_default=True, type=click.IntRange(0), help="Of the bootstrap."),
    _OUT,
    shared.JUDGES,
)


@click.group(context_settings=HELP)
def paper() -> None:
    """Repeat a paper's evaluation, its published numbers beside one's own.

    The defaults are the papers' protocols. Prints one line of JSON when done.
    """


@paper.command()
@shared.options(*_SET)
@click.option(
    "--scale",
    "people",
    type=click.IntRange(8),
    metavar="PEOPLE",
    help="Fewer people in all; the split shrinks with them.  [default: 5000, or as many as there are]",
)
@click.option("--size", type=click.IntRange(32), help="Side of the crops, px.  [default: 224]")
@click.option(
    "--only", multiple=True, metavar="METHOD", help="Only this method, repeatable; block permutation is always run."
)
@click.option(
    "--method",
    "extra",
    multiple=True,
    metavar="LABEL=NAME:KEY=VALUE,…",
    help="A further method, repeatable, such as Fawkes=fawkes:verifier=onnx:PATH, "
    "DeepPrivacy=external:folder=PATH or CIAGAN=external:folder=PATH.",
)
@click.option(
    "--config",
    "preset",
    default="fantomas",
    show_default=True,
    help="fantomas: linear attackers. fantomas64 and fantomas-full: the learned ones, at 64 and at 224 px.",
)
@click.option(
    "--general",
    multiple=True,
    metavar="REVERSER",
    help="General attacker, repeatable, such as autoencoder, autoencoder:linear=none or pix2pix.  [default: "
    "the configuration's]",
)
@click.option(
    "--transfer/--no-transfer",
    default=False,
    show_default=True,
    help="Train the learning attackers on eight anonymisations each and try them on Gaussian Blur 29 (E4.1).",
)
@click.option(
    "--learn-from",
    "other",
    type=shared.PATH,
    help="Another set of faces on which the general attackers are trained, too, for comparison (E4.2).",
)
@shared.options(shared.set_value("Another value of the matrix, such as utility=true or seed=1"), shared.JOBS)
@shared.reporting("task")
def fantomas(
    out: Path,
    transfer: bool,
    other: Path | None,
    jobs: int,
    overrides: tuple[str, ...],
    report: Progress,
    **protocol: Any,
) -> shared.Summary:
    """Which anonymisations are reversible.

    Todt and others 2024 (Fantômas), experiments E1–E3: on CelebA in the paper, any set with identities will do.
    """
    from ficgan.lab.matrix import run_matrix
    from ficgan.lab.papers import fantomas as experiment

    config = experiment.fantomas_matrix(**protocol, **_numbers(overrides))
    elsewhere = None
    if other is not None:
        elsewhere = run_matrix(experiment.learnt_on(config, other), out, jobs=jobs, progress=report)
    results = run_matrix(config, out, jobs=jobs, progress=report)
    transferred = experiment.fantomas_transfer(config, out, report) if transfer else []
    results.caveats = [*experiment.fantomas_caveats(results), *results.caveats]
    found = experiment.verdicts(results)
    e4 = [experiment.transfer_table(transferred), experiment.elsewhere_table(results, elsewhere)]
    tables = [*experiment.fantomas_tables(results), *experiment.attacker_tables(results, found), *e4]
    return _finish(results, out, tables, list)


@paper.command()
@shared.options(*_SET)
@click.option("--limit", type=click.IntRange(2), help="At most so many images, drawn with the seed.")
@click.option("--size", default=256, show_default=True, type=click.IntRange(32), help="Side of the crops, px.")
@click.option("--attributes", type=shared.PATH, help="Trained attribute classifier; else no attribute figures.")
@click.option("--checkpoint", default="", help="Model; the embedded one if not given.")
@click.option("--bank", default="", help="Bank built with it.")
@click.option(
    "--ablation",
    "ablations",
    multiple=True,
    metavar="NAME=CHECKPOINT:BANK",
    help="A model trained without one of the parts, for Table 2; repeatable.",
)
@click.option("--layer", "layers", multiple=True, type=click.IntRange(0), help="i, repeatable.  [default: 0 to L−1]")
@shared.set_value("Another number: part=test, skip=60000 (what the paper tests on of FFHQ), k, seed or device")
@shared.reporting("setting")
def ficgan(
    out: Path, ablations: tuple[str, ...], overrides: tuple[str, ...], report: Progress, **protocol: Any
) -> shared.Summary:
    """Identity against attributes, by layer.

    Jeong and others 2021 (FICGAN), Tables 1, 2 and A, Figures 4 and B: on FFHQ and CelebA-HQ in the paper, any faces
    will do.
    """
    from ficgan.lab.papers.ficgan import FicganPaper, draw_figure_4, ficgan_tables, run_ficgan
    from ficgan.yaml_settings import check

    protocol |= {"ablations": [_ablation(text) for text in ablations], **_numbers(overrides)}
    config = check(FicganPaper, protocol, where="paper ficgan")
    run = run_ficgan(config, out, report)
    return _finish(run.results, out, ficgan_tables(run), lambda: draw_figure_4(run, out / "figures"))


@paper.command()
@shared.options(*_SET)
@click.option(
    "--parts",
    default="",
    metavar="PART,…",
    help="Only these parts: base, retrieval, fine-tuning, kernel, sweep, defences, ood.  [default: all]",
)
@click.option(
    "--attacker",
    "attackers",
    multiple=True,
    metavar="LABEL=NAME:KEY=VALUE,…",
    help="An attacker, repeatable, such as Revelio=revelio:epochs=100 or GFP-GAN=external:folder=PATH; the "
    "one called Revelio is taken in all parts.  [default: autoencoder and revelio]",
)
@click.option("--config", "preset", default="revelio", show_default=True, help="Attackers and numbers: revelio64, …")
@click.option("--scale", "people", type=click.IntRange(4), metavar="PEOPLE", help="At most so many people.")
@click.option("--size", type=click.IntRange(32), help="Side of the crops, px; blurs are scaled to it.  [default: 256]")
@click.option("--probes", type=click.IntRange(1), help="Photos that are attacked, of each world.  [default: 97]")
@click.option("--candidates", type=click.IntRange(1), help="Guesses at each face.  [default: 50]")
@shared.set_value("Another number of the protocol, such as sweep=20, fine_tuned=10 or adapt_epochs=5")
@click.option(
    "--pictures",
    type=click.IntRange(0),
    help="Rows of the picture strips, which show real people; 0: none.  [default: 4]",
)
@shared.reporting("part")
def revelio(
    out: Path,
    parts: str,
    attackers: tuple[str, ...],
    preset: str,
    overrides: tuple[str, ...],
    probes: int | None,
    report: Progress,
    **protocol: Any,
) -> shared.Summary:
    """Whether blurred faces are restored and named.

    Zhai and others (Revelio), Tables 1 to 7, Figures 4 to 7, 13 and 15: on CelebA-HQ in the paper, any set with
    identities will do. For testing one's own blur, never for naming people in others' photos.
    """
    from ficgan.lab.papers.revelio import RevelioPaper, settings
    from ficgan.lab.papers.revelio_tables import draw_revelio, run_revelio

    chosen = tuple(part.strip() for part in parts.split(",") if part.strip())
    protocol |= {"probes": probes, "outside": probes, "attackers": attackers or None, "parts": chosen or None}
    given = {key: value for key, value in protocol.items() if value is not None}
    config = RevelioPaper(**{**settings(preset, overrides), **given})
    run = run_revelio(config, out, report)
    return _finish(run.results, out, run.tables, lambda: draw_revelio(run.experiment, run.outcomes, out))


@paper.command()
@click.option("--images", type=shared.PATH, help="ImageNet's folder, or a folder, zip or tar of scenes.")
@click.option("--annotations", type=shared.PATH, help="Face boxes, JSON; the paper's face_annotations_ILSVRC.json.")
@click.option("--config", "file", type=shared.PATH, help="YAML file of a study; it may name images and annotations.")
@shared.options(shared.set_value("A value of the study, such as epochs=10 or networks=[resnet18]"), _OUT)
@shared.reporting("%")
def obfuscation(
    images: Path | None,
    annotations: Path | None,
    file: Path | None,
    overrides: tuple[str, ...],
    out: Path,
    report: Progress,
) -> shared.Summary:
    """What obfuscated faces cost a classifier.

    Yang and others 2022, Tables 3, 8 and 9, Figures 3 and 4: on ImageNet in the paper, any scenes with face boxes will
    do.
    """
    from ficgan.lab.study import run_obfuscation

    config = _study(images, annotations, file, overrides)
    results, tables = run_obfuscation(config, out, report)
    return _finish(results, out, tables)


def _study(images: Path | None, annotations: Path | None, file: Path | None, overrides: Sequence[str]) -> Any:
    from ficgan.errors import UsageError
    from ficgan.lab.study import StudyConfig

    given = {key: str(path) for key, path in (("images", images), ("annotations", annotations)) if path is not None}
    if file is None and len(given) < 2:
        raise UsageError("a study needs images and boxes of their faces; give --images and --annotations, or --config")
    return StudyConfig.read(file, overrides, **given)


def _numbers(overrides: Sequence[str]) -> dict[str, Any]:
    from ficgan.yaml_settings import override

    return override({}, overrides, example="seed=1")


def _ablation(text: str) -> tuple[str, str, str]:
    from ficgan.errors import UsageError

    name, _, files = text.partition("=")
    checkpoint, _, bank = files.rpartition(":")
    if not (name.strip() and checkpoint and bank):
        raise UsageError(f"the ablation {text!r} is not of the form NAME=CHECKPOINT:BANK")
    return name.strip(), checkpoint, bank


def _finish(
    results: Any, out: Path, tables: list[dict[str, Any]], draw: Callable[[], list[Path]] | None = None
) -> shared.Summary:
    from ficgan.lab.pages import write_json

    results.write(out / "results.json")
    tree = {"title": results.title, "caveats": results.caveats, "tables": tables, "provenance": results.provenance}
    write_json(out / "paper.json", tree)
    written = write_pages(results, out, published=tables)
    written += draw() if draw is not None else []
    return {
        "paper": "paper.json",
        "results": "results.json",
        "report": [str(path.relative_to(out)) for path in written],
        "tables": [table["title"] for table in tables],
    }


for group in (annotate, paper, survey):
    evaluate.add_command(group)
