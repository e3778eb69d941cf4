"""`ficgan eval`: what there is, run a matrix, the papers' experiments, the report."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click

from ficgan import __version__
from ficgan.cli import HELP
from ficgan.cli import _shared as shared
from ficgan.cli._errors import handle_errors
from ficgan.cli._progress import Progress
from ficgan.cli.annotate import annotate
from ficgan.cli.evaluate_paper import paper
from ficgan.cli.survey import survey

__all__ = ["attackers", "configurations", "evaluate", "write_pages"]

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
    from ficgan.lab.metrics.privacy import PRIVACY
    from ficgan.lab.metrics.utility import UTILITY
    from ficgan.lab.reversal import RETRIEVAL, REVERSAL

    for metric in (*PRIVACY, *REVERSAL, *RETRIEVAL, *UTILITY):
        yield metric.name, f"{metric.title} ({metric.kind}; {metric.better} is better)"


def configurations(kind: str = "eval") -> Catalogue:
    from ficgan import configs

    for name in configs.names(kind):
        yield name, configs.read(name, kind).splitlines()[0].removeprefix("#").strip()


CATALOGUES: dict[str, Callable[[], Catalogue]] = {
    "anonymizers": anonymizers, "scenarios": scenarios, "metrics": metrics, "attackers": attackers,
    "configs": configurations,
}  # fmt: skip


@click.group("eval", context_settings=HELP)
@click.version_option(__version__, prog_name="ficgan-eval")
def evaluate() -> None:
    """Compare anonymisers: what attackers achieve against them, and what they leave to work with."""


for group in (annotate, paper, survey):
    evaluate.add_command(group)


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
@shared.judges_instead("dlib, insightface, shape, onnx:PATH")
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
    summary = {
        "results": "results.json", "report": files, "trials": len(results.trials), "refused_figures": refused,
    }  # fmt: skip
    return summary, bool(nothing)


def _matrix(
    config: str, data: Path | None, layout: str, labels: Path | None, people: int | None, judges: tuple[str, ...],
    attributes: Path | None,
) -> Any:  # fmt: skip
    from ficgan import configs
    from ficgan.errors import UsageError
    from ficgan.lab.matrix_config import load_matrix
    from ficgan.lab.papers.bench import with_data

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


@evaluate.command()
@click.argument("results", nargs=-1, required=True, type=click.Path(path_type=Path, exists=True))
@shared.output("[default: beside it]", required=False)
@click.option("--sidecars", type=click.Path(path_type=Path, exists=True),
              help="Folder of side-car files of ficgan deid: the report gives their account, too.")  # fmt: skip
@handle_errors
def report(results: tuple[Path, ...], out: Path | None, sidecars: Path | None) -> None:
    """Make the report of finished evaluations: one self-contained page, plots as PNG and SVG, tables as CSV and JSON.

    RESULTS: results.json of a run, or its folder; several are laid side by side.
    """
    from ficgan.lab.report import merge
    from ficgan.lab.results import Results

    files = [path / "results.json" if path.is_dir() else path for path in results]
    read = [Results.read(path) for path in files]
    folder = out or files[0].parent
    written = write_pages(merge(read), folder, sidecars=sidecars, pictures=[path.parent for path in files])
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
