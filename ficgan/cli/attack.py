"""`ficgan attack`: train attackers on one's own anonymisation, try them on faces, judge them."""

from __future__ import annotations

import shlex
import sys
import time
from pathlib import Path
from typing import Any

import click

from ficgan import __version__
from ficgan.cli import main as shared
from ficgan.cli._files import mirrored
from ficgan.cli.evaluate import print_catalogue, write_pages
from ficgan.cli.main import Console, Outcome, Summary, count, handle_errors, many
from ficgan.device import resolve_device
from ficgan.errors import UsageError
from ficgan.images import READABLE_SUFFIXES

NOTICE = (
    "For testing one's own anonymisation. To process other people's faces so as to identify them may be unlawful; "
    "nothing comes trained, and weights you train may hold the faces they learnt from: docs/ethics.md."
)
_ATTACKED = (shared.DATA, shared.LAYOUT, shared.LABELS, shared.PEOPLE, shared.ALIGNED)


def _of_set(given: dict[str, Any]) -> dict[str, Any]:
    """The options of a set as the library takes them; what is not given stays as in the configuration.

    A device that is not there is refused.
    """
    resolve_device(given["device"])
    layout, licence = None if given["layout"] == "auto" else given["layout"], given.get("licence") or None
    changed = {"layout": layout, "aligned": given["aligned"] or None, "limit_people": given.pop("people")}
    return {**given, **changed, "licence": licence}


@click.group("attack", context_settings=shared.HELP)
@click.version_option(__version__, prog_name="ficgan-attack")
def attack() -> None:
    """Train attackers on one's own anonymisation, try them, judge them; what may be attacked: docs/ethics.md."""


@attack.command("list")
@click.argument("what", type=click.Choice(["attackers", "configs"]), default="attackers")
@handle_errors
def list_attackers(what: str) -> None:
    """List attackers, or configs for `ficgan attack train`, a line each: name, tab, title."""
    print_catalogue(what, "attack")


@attack.command("train")
@click.argument("config")
@shared.options(shared.KEY_VALUES, _ATTACKED)
@shared.output("Folder of the run; the same command resumes an interrupted run.")
@shared.options(shared.LICENCE, shared.FAST_DEVICE, shared.DRY_RUN)
@shared.reporting("step")
def attack_train(config: str, overrides: tuple[str, ...], out: Path, report: Console, **given: Any) -> Summary:
    """Train an attacker on pairs of clear faces and anonymised ones.

    CONFIG: a name of `ficgan attack list configs`, or a YAML file; KEY=VALUE changes it, such as attacker.epochs=20 or
    anonymizer.kernel=9. OUT/manifest.json says who was learnt from, and who was left for tests.
    """
    from ficgan.lab.matrix_config import load_attack, parameter_count

    started = time.monotonic()
    settings = load_attack(config, overrides)
    if given.pop("dry_run"):
        parameters = parameter_count(settings.learner())
        return {**settings.shareable(), "network_parameters": parameters, "dry_run": True}
    from ficgan.lab.attacking import WEIGHTS, train_attacker

    report.info(NOTICE)
    try:
        trained = train_attacker(settings, out=out, progress=report, **_of_set(given))
    except KeyboardInterrupt as stop:
        again = shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]])
        raise type(stop)(f"go on with: {again}") from None
    record = {key: value for key, value in trained.record.items() if key != "plan"}
    done = {"attacker": str(out / WEIGHTS), "name": trained.name, **record}
    return {**done, "command_seconds": round(time.monotonic() - started, 1)}


@attack.command("run")
@click.argument("attacker")
@click.argument("inputs", metavar="INPUT...", nargs=-1, required=True, type=shared.PATH)
@shared.output("Folder for the guesses, PNG; nothing in it is overwritten.")
@count("--candidates", 1, "Guesses at each face, NAME-01.png, …; for attackers that can give several.")
@shared.FAST_DEVICE
@shared.reporting("image")
def attack_run(
    attacker: str, inputs: tuple[Path, ...], out: Path, candidates: int, device: str, report: Console
) -> Outcome:
    """Guess the clear faces behind anonymised ones.

    ATTACKER: attacker.safetensors of `ficgan attack train`, or NAME:PARAMETER=VALUE,… of one that learns nothing.
    INPUT: square crops of anonymised faces, as `ficgan align` makes them, or folders of them.
    """
    from ficgan.lab.attacking import attacker_of, guess_all

    made = attacker_of(attacker, device=device)
    if candidates > 1 and not made.traits.several:
        raise UsageError(f"{made.name} has one guess at a face; leave out --candidates")
    files = mirrored(inputs, READABLE_SUFFIXES, what="image")
    report.info(NOTICE)
    written, failed = guess_all(made, files, out, candidates, report)
    counts = {"inputs": len(files), "written": written, "failed": len(failed)}
    return {"attacker": made.name, **counts, "output": str(out)}, failed


@attack.command("evaluate")
@click.argument("attacker", type=shared.PATH)
@shared.options(_ATTACKED, shared.output("Folder for results.json and the report; other results there are kept."))
@shared.options(shared.JUDGES, shared.RESAMPLES)
@many("--method", "Anonymiser that is attacked  [default: the one it was trained against]", "methods")
@count("--jobs", 1, "Processes; each holds the network.")
@shared.options(shared.FAST_DEVICE, shared.PAGES)
@shared.reporting("task")
def attack_evaluate(attacker: Path, data: Path, out: Path, pages: bool, report: Console, **given: Any) -> Summary:
    """Judge a trained attacker on people it never saw.

    Beside it stand the clear faces (the ceiling), grey ones (chance), the anonymised ones as they are, and one mean
    face for everybody. The people whom the training kept out of its set are tested.
    """
    from ficgan.lab.attacking import evaluate_attacker

    report.info(NOTICE)
    results = evaluate_attacker(attacker, data, out, progress=report, **_of_set(given))
    files = write_pages(results, out) if pages else []
    reversals = []
    for trial in results.trials:
        about = {"method": trial.method, "scenario": trial.scenario, "attacker": trial.attacker}
        for figure in trial.figures:
            if figure.metric == "rank-1":
                shown = {"rank-1": figure.value, "low": figure.low, "high": figure.high}
                reversals.append({**about, "judge": trial.recogniser, **shown})
    return {"results": "results.json", "report": files, "reversed": reversals}
