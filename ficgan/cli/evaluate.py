"""`ficgan-eval`: what there is, run a matrix, the papers' experiments, the report."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click

from ficgan import __version__
from ficgan.cli._errors import EXIT_SOME_FAILED, handle_errors
from ficgan.cli._options import TALK, options
from ficgan.cli._progress import Progress
from ficgan.cli.annotate import annotate
from ficgan.cli.evaluate_paper import paper
from ficgan.cli.survey import survey

__all__ = ["evaluate"]

_HELP = {"help_option_names": ["-h", "--help"]}


@click.group("eval", context_settings=_HELP)
@click.version_option(__version__, prog_name="ficgan-eval")
def evaluate() -> None:
    """Compare anonymisers: what attackers achieve against them, and what they leave to work with."""


evaluate.add_command(annotate)
evaluate.add_command(paper)
evaluate.add_command(survey)


@evaluate.command("list", context_settings=_HELP)
@click.argument("what", type=click.Choice(["anonymizers", "scenarios", "metrics", "attackers", "configs"]))
@handle_errors
def list_(what: str) -> None:
    """Say what there is, a line each: name, tab, title."""
    from ficgan.lab.catalogue import catalogue

    for name, title in catalogue(what):
        click.echo(f"{name}\t{title}")


@evaluate.command(context_settings=_HELP)
@click.argument("config", metavar="CONFIG")
@click.option(
    "-o", "--output", "out", required=True, type=click.Path(path_type=Path, file_okay=False),
    help="Folder for results.json, the report and what is kept to go on; an interrupted run goes on from it.",
)  # fmt: skip
@click.option("--jobs", type=click.IntRange(1), help="Processes.  [default: as many as there are cores, at most 8]")
@click.option("--data", type=click.Path(path_type=Path), help="Face set, for a CONFIG that comes with ficgan.")
@click.option("--layout", default="auto", show_default=True, help="How --data lies: celeba, lfw, ffhq, folders, …")
@click.option("--labels", type=click.Path(path_type=Path), help="Label file or folder, where not beside --data.")
@click.option("--people", type=click.IntRange(2), help="At most so many people of --data.")
@click.option("--judge", "judges", multiple=True, help="For CONFIG's recognisers: dlib, insightface, shape, onnx:PATH.")
@click.option("--attributes", type=click.Path(path_type=Path), help="Classifier of `ficgan train-attributes`.")
@click.option("--report/--no-report", default=True, show_default=True, help="Make pages and plots at the end.")
@click.option("--dry-run", is_flag=True, help="Check the matrix and say what would be run; read no image.")
@options(TALK)
@handle_errors
def run(
    config: str, out: Path, jobs: int | None, data: Path | None, layout: str, labels: Path | None, people: int | None,
    judges: tuple[str, ...], attributes: Path | None, report: bool, dry_run: bool, progress: Any, quiet: bool,
) -> None:  # fmt: skip
    """Run a matrix of sets, methods, scenarios and judges.

    CONFIG: a YAML file, or the name of one that comes with ficgan (`ficgan-eval list configs`), which takes --data.
    Finished tasks are kept in the output folder under a digest of everything they depend on: the same command goes on
    where it was interrupted. Prints one line of JSON when done.
    """
    import json
    import time

    from ficgan.lab.matrix import check_paths, run_matrix

    started = time.monotonic()
    matrix = _matrix(config, data, layout, labels, people, judges, attributes)
    tasks = len(matrix.sets) * (len(matrix.methods) + 1)
    if dry_run:
        check_paths(matrix)
        click.echo(json.dumps({"tasks": tasks, "scenarios": matrix.scenarios, "dry_run": True}))
        return
    jobs = jobs or min(8, os.cpu_count() or 1)
    with Progress(progress, unit="task", quiet=quiet) as told:
        results = run_matrix(matrix, out, jobs=jobs, progress=told)
        files = [str(path.relative_to(out)) for path in _report(results, out)] if report else []
        nothing = results.methods_without_a_figure()
        for label, why in nothing.items():
            told.error(f"{label} has no figure at all: {why}")
    refused = sum(figure.value is None for trial in results.trials for figure in trial.figures)
    summary = {
        "results": "results.json", "report": files, "trials": len(results.trials), "refused_figures": refused,
        "seconds": round(time.monotonic() - started, 1),
    }  # fmt: skip
    click.echo(json.dumps(summary))
    if nothing:
        raise SystemExit(EXIT_SOME_FAILED)


def _matrix(
    config: str, data: Path | None, layout: str, labels: Path | None, people: int | None, judges: tuple[str, ...],
    attributes: Path | None,
) -> Any:  # fmt: skip
    from ficgan import configs
    from ficgan.errors import UsageError
    from ficgan.lab.matrix_config import load_matrix
    from ficgan.lab.papers.preset import with_data

    if config in configs.names("eval"):
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


@evaluate.command(context_settings=_HELP)
@click.argument("results", nargs=-1, required=True, type=click.Path(path_type=Path, exists=True))
@click.option("-o", "--output", "out", type=click.Path(path_type=Path, file_okay=False), help="[default: beside it]")
@click.option("--sidecars", type=click.Path(path_type=Path, exists=True),
              help="Folder of side-car files of ficgan-deid: the report gives their account, too.")  # fmt: skip
@handle_errors
def report(results: tuple[Path, ...], out: Path | None, sidecars: Path | None) -> None:
    """Make the report of finished evaluations: one self-contained page, plots as PNG and SVG, tables as CSV and JSON.

    RESULTS: results.json of a run, or its folder; several are laid side by side.
    """
    import json

    from ficgan.lab.report import merge
    from ficgan.lab.results import Results

    files = [path / "results.json" if path.is_dir() else path for path in results]
    read = [Results.read(path) for path in files]
    folder = out or files[0].parent
    written = _report(merge(read), folder, sidecars=sidecars, pictures=[path.parent for path in files])
    click.echo(json.dumps({"report": [str(path.relative_to(folder)) for path in written]}))


def _report(results: Any, out: Path, **more: Any) -> list[Path]:
    from ficgan.errors import FicganError

    try:
        from ficgan.lab.report import write_report
    except ImportError as error:
        raise FicganError(f"the report needs {error.name}: pip install 'ficgan[eval]'") from error
    written: list[Path] = write_report(results, out, **more)
    return written
