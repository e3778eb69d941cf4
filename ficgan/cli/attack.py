"""`ficgan-attack`: attackers to train against one's own anonymisation, to try on faces, and to judge."""

from __future__ import annotations

import json
import os
import shlex
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from ficgan import __version__
from ficgan.cli._errors import EXIT_SOME_FAILED, handle_errors
from ficgan.cli._options import TALK, options
from ficgan.cli._params import Box
from ficgan.cli._progress import Progress

__all__ = ["NOTICE", "attack"]

NOTICE = (
    "For testing one's own anonymisation. To process other people's faces so as to identify them may be unlawful; "
    "nothing comes trained, and weights you train may hold the faces they learnt from: docs/ethics.md."
)
EVERY = 0.5
"""Seconds between two words about a training."""
_HELP = {"help_option_names": ["-h", "--help"]}
_PATH = click.Path(path_type=Path)
_SET: tuple[Any, ...] = (
    click.option("--data", required=True, type=_PATH, help="Folder, zip or tar of faces, as it was downloaded."),
    click.option("--layout", help="How the data lies: celeba, lfw, ffhq, folders, …  [default: the configuration's]"),
    click.option("--labels", type=_PATH, help="Label file or folder, where it does not lie beside the data."),
    click.option("--people", type=click.IntRange(4), help="At most so many people of the data; the split shrinks."),
    click.option(
        "--aligned/--photos", default=None,
        help="The images are aligned as ficgan's own crops; or a face is to be found in each.  "
        "[default: the configuration's]",
    ),
)  # fmt: skip
_DEVICE = click.option("--device", default="auto", show_default=True, help="auto, cpu, cuda or cuda:N.")


@click.group("attack", context_settings=_HELP)
@click.version_option(__version__, prog_name="ficgan-attack")
def attack() -> None:
    """Train attackers on one's own anonymisation, try them on faces, judge them on people they never saw.

    Nothing comes trained. What may be attacked, and why: docs/ethics.md.
    """


@attack.command("list", context_settings=_HELP)
@click.argument("what", type=click.Choice(["attackers", "configs"]), default="attackers")
@handle_errors
def list_(what: str) -> None:
    """Say what there is, a line each: name, tab, title.

    WHAT: attackers, or configs for `ficgan-attack train`.
    """
    from ficgan.cli.evaluate import attackers, configurations
    from ficgan.lab.attacks import REVERSERS, Learned

    if what == "configs":
        for name, title in configurations("attack"):
            click.echo(f"{name}\t{title}")
        return
    for name, title in attackers():
        trained = issubclass(REVERSERS[name], Learned)
        click.echo(f"{name}\t{title}{' [to be trained]' if trained else ''}")


@attack.command(context_settings=_HELP)
@click.argument("config")
@click.argument("overrides", metavar="[KEY=VALUE]...", nargs=-1)
@options(_SET)
@click.option(
    "--out",
    "-o",
    required=True,
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder of the run; the same command goes on where it was interrupted.",
)
@click.option("--licence", help="Terms of the data, where nothing beside them says; kept in the weights.")
@_DEVICE
@click.option("--dry-run", is_flag=True, help="Check and print the configuration; read no image.")
@options(TALK)
@handle_errors
def train(
    config: str, overrides: tuple[str, ...], data: Path, layout: str | None, labels: Path | None, people: int | None,
    aligned: bool | None, out: Path, licence: str | None, device: str, dry_run: bool, progress: Any, quiet: bool,
) -> None:  # fmt: skip
    """Train an attacker on pairs of clear faces and anonymised ones.

    CONFIG: a name of `ficgan-attack list configs`, or a YAML file; KEY=VALUE changes it, such as attacker.epochs=20 or
    anonymizer.kernel=9. People are divided; those to be tested on are never trained on, and RUN/manifest.json says who
    was. Prints one line of JSON when done; RUN/attacker.safetensors is the attacker.
    """
    from ficgan.lab.matrix_config import load_attack, parameter_count

    started = time.monotonic()
    settings = load_attack(config, overrides)
    if dry_run:
        count = parameter_count(settings.learner())
        click.echo(json.dumps({**settings.shareable(), "network_parameters": count, "dry_run": True}))
        return
    from ficgan.device import resolve_device
    from ficgan.lab.attacking import WEIGHTS, make_job, train_attacker

    resolve_device(device)
    with Progress(progress, unit="step", quiet=quiet) as told:
        told.info(NOTICE)
        job = make_job(
            settings, data, layout=layout, labels=labels, limit_people=people, aligned=aligned, licence=licence
        )
        try:
            trained = train_attacker(job, out, device=device, progress=_seldom(told))
        except KeyboardInterrupt as stop:
            again = shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]])
            raise type(stop)(f"go on with: {again}") from None
    record = {key: value for key, value in trained.record.items() if key != "plan"}
    done = {"attacker": str(out / WEIGHTS), "name": trained.name, **record}
    click.echo(json.dumps({**done, "command_seconds": round(time.monotonic() - started, 1)}))


@attack.command(context_settings=_HELP)
@click.argument("attacker")
@click.argument("inputs", metavar="INPUT...", nargs=-1, required=True, type=_PATH)
@click.option(
    "-o",
    "--output",
    "out",
    required=True,
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder for the guesses, PNG; nothing in it is overwritten.",
)
@click.option("--aligned", is_flag=True, help="The inputs are square face crops as the attacker was trained on.")
@click.option("--box", type=Box(), help="The anonymised face in every input, px; nothing is detected.")
@click.option("--detector", default="auto", show_default=True, help="Finds the faces: auto, yunet, dlib, …")
@click.option(
    "--candidates",
    default=1,
    show_default=True,
    type=click.IntRange(1, 99),
    help="Guesses at each face, NAME-01.png, …; for attackers that can give several.",
)
@click.option(
    "--seed", type=click.IntRange(0), help="Of the guesses, for attackers that draw.  [default: that of the training]"
)
@_DEVICE
@options(TALK)
@handle_errors
def run(
    attacker: str, inputs: tuple[Path, ...], out: Path, aligned: bool, box: Any, detector: str, candidates: int,
    seed: int | None, device: str, progress: Any, quiet: bool,
) -> None:  # fmt: skip
    """Guess the clear faces behind anonymised ones.

    ATTACKER: attacker.safetensors of `ficgan-attack train`, or NAME:PARAMETER=VALUE,… of one that learns nothing.
    INPUT: images of anonymised faces, folders of them. Prints one line of JSON when done.
    """
    from ficgan.cli.attack_run import Finder, attacker_of, guess_all, plan_inputs

    made = attacker_of(attacker, candidates=candidates, seed=seed, device=device)
    plan = plan_inputs(inputs, out)
    finder = Finder(aligned=aligned, box=box, detector=detector, size=getattr(made, "size", 224))
    with Progress(progress, unit="image", quiet=quiet) as told:
        told.info(NOTICE)
        summary = guess_all(made, plan, out, finder, candidates, told)
    click.echo(json.dumps({"attacker": made.name, **summary}))
    if summary["failed"]:
        raise SystemExit(EXIT_SOME_FAILED)


@attack.command(context_settings=_HELP)
@click.argument("attacker", type=_PATH)
@options(_SET)
@click.option(
    "-o",
    "--output",
    "out",
    required=True,
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder for results.json and the report; other results there are not overwritten.",
)
@click.option(
    "--judge",
    "judges",
    multiple=True,
    default=("dlib",),
    show_default=True,
    help="dlib, insightface, shape or onnx:PATH, repeatable; must have had no part in training.",
)
@click.option(
    "--method",
    "methods",
    multiple=True,
    metavar="NAME:KEY=VALUE,…",
    help="Anonymiser that is attacked, repeatable.  [default: the one it was trained against]",
)
@click.option("--scenario", "scenarios", multiple=True, help="A further scenario, such as retrieval, repeatable.")
@click.option("--resamples", default=1000, show_default=True, type=click.IntRange(1), help="Of the bootstrap.")
@click.option(
    "--pictures",
    default=0,
    show_default=True,
    type=click.IntRange(0, 64),
    help="Examples in the report; they show the faces of the set.",
)
@click.option("--seed", default=0, show_default=True, type=click.IntRange(0), help="Of the bootstrap.")
@click.option("--jobs", default=1, show_default=True, type=click.IntRange(1), help="Processes; each holds the network.")
@_DEVICE
@click.option("--report/--no-report", default=True, show_default=True, help="Make pages and plots at the end.")
@options(TALK)
@handle_errors
def evaluate(
    attacker: Path, data: Path, layout: str | None, labels: Path | None, people: int | None, aligned: bool | None,
    out: Path, judges: tuple[str, ...], methods: tuple[str, ...], scenarios: tuple[str, ...], resamples: int,
    pictures: int, seed: int, jobs: int, device: str, report: bool, progress: Any, quiet: bool,
) -> None:  # fmt: skip
    """Judge a trained attacker on people it never saw.

    Beside it stand the clear faces (the ceiling), grey ones (chance), the anonymised ones as they are, and one mean
    face for everybody. The people whom the training kept out of its set are tested; where somebody would be whom the
    attacker learnt from, the command refuses. Prints one line of JSON when done.
    """
    from ficgan.cli.evaluate import write_pages
    from ficgan.device import resolve_device
    from ficgan.lab.attacking import evaluate_attacker

    started = time.monotonic()
    resolve_device(device)
    with Progress(progress, unit="task", quiet=quiet) as told:
        told.info(NOTICE)
        results = evaluate_attacker(
            attacker, data, out, methods=methods, judges=judges, scenarios=scenarios, resamples=resamples,
            pictures=pictures, jobs=min(jobs, os.cpu_count() or 1), seed=seed, device=device, progress=told,
            layout=layout, labels=labels, limit_people=people, aligned=aligned,
        )  # fmt: skip
    files = [str(path.relative_to(out)) for path in write_pages(results, out)] if report else []
    reversals = [
        {"method": trial.method, "scenario": trial.scenario, "attacker": trial.attacker, "judge": trial.recogniser,
         "rank-1": one.value, "low": one.low, "high": one.high}
        for trial in results.trials
        for one in trial.figures
        if one.metric == "rank-1"
    ]  # fmt: skip
    summary = {"results": "results.json", "report": files, "reversed": reversals}
    click.echo(json.dumps({**summary, "seconds": round(time.monotonic() - started, 1)}))


def _seldom(told: Progress) -> Callable[[int, int, str], None]:
    """Steps are many: some of them are said, and the last one."""
    said = 0.0

    def say(done: int, total: int, stage: str) -> None:
        nonlocal said
        if not 0 < done < total or time.monotonic() - said >= EVERY:
            said = time.monotonic()
            told(done, total, stage)

    return say


if __name__ == "__main__":
    attack()
