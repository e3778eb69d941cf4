"""`ficgan attack`: attackers to train against one's own anonymisation, to try on faces, and to judge."""

from __future__ import annotations

import dataclasses
import os
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click

from ficgan import __version__
from ficgan.cli import HELP
from ficgan.cli import _shared as shared
from ficgan.cli._console import Progress, handle_errors
from ficgan.cli._plan import mirrored
from ficgan.cli._shared import Parsed
from ficgan.errors import FicganError, InputError, UsageError
from ficgan.options import parse_box

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from ficgan.faces import FaceDetector
    from ficgan.lab.attacks import Reverser

    Image = NDArray[np.uint8]

__all__ = ["NOTICE", "attack"]

NOTICE = (
    "For testing one's own anonymisation. To process other people's faces so as to identify them may be unlawful; "
    "nothing comes trained, and weights you train may hold the faces they learnt from: docs/ethics.md."
)
_SET: tuple[Any, ...] = (
    shared.DATA,
    shared.layout(None),
    shared.LABELS,
    click.option("--people", type=click.IntRange(4), help="At most so many people of the data; the split shrinks."),
    click.option(
        "--aligned/--photos",
        default=None,
        help="The images are aligned as ficgan's own crops; or a face is to be found in each.  [default: as in CONFIG]",
    ),
)
_DEVICE = shared.device("auto", "auto, cpu, cuda or cuda:N.")


@click.group("attack", context_settings=HELP)
@click.version_option(__version__, prog_name="ficgan-attack")
def attack() -> None:
    """Train attackers on one's own anonymisation, try them on faces, judge them on people they never saw.

    Nothing comes trained. What may be attacked, and why: docs/ethics.md.
    """


@attack.command("list")
@click.argument("what", type=click.Choice(["attackers", "configs"]), default="attackers")
@handle_errors
def list_(what: str) -> None:
    """List what there is, a line each: name, tab, title.

    WHAT: attackers, or configs for `ficgan attack train`.
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


@attack.command()
@click.argument("config")
@shared.options(shared.KEY_VALUES, *_SET)
@shared.output("Folder of the run; the same command resumes an interrupted run.")
@click.option("--licence", help="Terms of the data, where nothing beside them says; kept in the weights.")
@shared.options(_DEVICE, shared.dry_run("Check and print the configuration; read no image."))
@shared.reporting("step")
def train(
    config: str,
    overrides: tuple[str, ...],
    data: Path,
    people: int | None,
    out: Path,
    device: str,
    dry_run: bool,
    report: Progress,
    **given: Any,
) -> shared.Summary:
    """Train an attacker on pairs of clear faces and anonymised ones.

    CONFIG: a name of `ficgan attack list configs`, or a YAML file; KEY=VALUE changes it, such as attacker.epochs=20 or
    anonymizer.kernel=9. People are divided; those to be tested on are never trained on, and RUN/manifest.json says who
    was. Prints one line of JSON when done; RUN/attacker.safetensors is the attacker.
    """
    from ficgan.lab.matrix_config import load_attack, parameter_count

    started = time.monotonic()
    settings = load_attack(config, overrides)
    if dry_run:
        count = parameter_count(settings.learner())
        return {**settings.shareable(), "network_parameters": count, "dry_run": True}
    from ficgan.device import resolve_device
    from ficgan.lab.attacking import WEIGHTS, train_attacker

    resolve_device(device)
    report.info(NOTICE)
    try:
        trained = train_attacker(settings, data, out, device=device, progress=report, limit_people=people, **given)
    except KeyboardInterrupt as stop:
        again = shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]])
        raise type(stop)(f"go on with: {again}") from None
    record = {key: value for key, value in trained.record.items() if key != "plan"}
    done = {"attacker": str(out / WEIGHTS), "name": trained.name, **record}
    return {**done, "command_seconds": round(time.monotonic() - started, 1)}


@attack.command()
@click.argument("attacker")
@click.argument("inputs", metavar="INPUT...", nargs=-1, required=True, type=shared.PATH)
@shared.output("Folder for the guesses, PNG; nothing in it is overwritten.")
@click.option("--aligned", is_flag=True, help="The inputs are square face crops as the attacker was trained on.")
@click.option("--box", type=Parsed(parse_box), help="The anonymised face in every input, px; nothing is detected.")
@shared.DETECTOR
@click.option(
    "--candidates",
    default=1,
    show_default=True,
    type=click.IntRange(1, 99),
    help="Guesses at each face, NAME-01.png, …; for attackers that can give several.",
)
@click.option(
    "--seed", type=click.IntRange(0), help="Of attackers that draw their guesses.  [default: that of the training]"
)
@_DEVICE
@shared.reporting("image")
def run(
    attacker: str,
    inputs: tuple[Path, ...],
    out: Path,
    aligned: bool,
    box: Any,
    detector: str,
    candidates: int,
    seed: int | None,
    device: str,
    report: Progress,
) -> tuple[shared.Summary, bool]:
    """Guess the clear faces behind anonymised ones.

    ATTACKER: attacker.safetensors of `ficgan attack train`, or NAME:PARAMETER=VALUE,… of one that learns nothing.
    INPUT: images of anonymised faces, folders of them. Prints one line of JSON when done.
    """
    made = attacker_of(attacker, candidates=candidates, seed=seed, device=device)
    if aligned and box is not None:
        raise UsageError("--aligned and --box contradict each other; give one of them")
    plan = plan_inputs(inputs, out)
    crops = partial(crops_of, aligned=aligned, box=box, detector=detector, size=getattr(made, "size", 224))
    report.info(NOTICE)
    summary = guess_all(made, plan, out, crops, candidates, report)
    return {"attacker": made.name, **summary}, bool(summary["failed"])


@attack.command()
@click.argument("attacker", type=shared.PATH)
@shared.options(*_SET)
@shared.output("Folder for results.json and the report; other results there are not overwritten.")
@shared.JUDGES
@click.option(
    "--method",
    "methods",
    multiple=True,
    metavar="NAME:KEY=VALUE,…",
    help="Anonymiser that is attacked, repeatable.  [default: the one it was trained against]",
)
@click.option("--scenario", "scenarios", multiple=True, help="A further scenario, such as linkability, repeatable.")
@shared.RESAMPLES
@click.option(
    "--pictures",
    default=0,
    show_default=True,
    type=click.IntRange(0, 64),
    help="Examples in the report; they show the faces of the set.",
)
@shared.seed("Seed of the bootstrap.")
@click.option("--jobs", default=1, show_default=True, type=click.IntRange(1), help="Processes; each holds the network.")
@shared.options(_DEVICE, shared.REPORT)
@shared.reporting("task")
def evaluate(
    attacker: Path,
    data: Path,
    people: int | None,
    out: Path,
    jobs: int,
    device: str,
    pages: bool,
    report: Progress,
    **given: Any,
) -> shared.Summary:
    """Judge a trained attacker on people it never saw.

    Beside it stand the clear faces (the ceiling), grey ones (chance), the anonymised ones as they are, and one mean
    face for everybody. The people whom the training kept out of its set are tested. If one of them is a person whom
    the attacker learnt from, the command refuses. Prints one line of JSON when done.
    """
    from ficgan.cli.evaluate import write_pages
    from ficgan.device import resolve_device
    from ficgan.lab.attacking import evaluate_attacker

    resolve_device(device)
    report.info(NOTICE)
    results = evaluate_attacker(
        attacker,
        data,
        out,
        jobs=min(jobs, os.cpu_count() or 1),
        device=device,
        progress=report,
        limit_people=people,
        **given,
    )
    files = [str(path.relative_to(out)) for path in write_pages(results, out)] if pages else []
    reversals = [
        {
            "method": trial.method,
            "scenario": trial.scenario,
            "attacker": trial.attacker,
            "judge": trial.recogniser,
            "rank-1": figure.value,
            "low": figure.low,
            "high": figure.high,
        }
        for trial in results.trials
        for figure in trial.figures
        if figure.metric == "rank-1"
    ]
    return {"results": "results.json", "report": files, "reversed": reversals}


# -- the work of `run` ------------------------------------------------------------------------------------------------

Planned = list[tuple[Path, Path]]
"""(input, name of its guesses below the output folder, without suffix)."""


def attacker_of(text: str, *, candidates: int = 1, seed: int | None = None, device: str = "auto") -> Reverser:
    """A trained attacker from its file, or one that learns nothing by name."""
    from ficgan.lab.attacks import REVERSERS, Learned, load_attacker
    from ficgan.registry import parse_spec

    made: Reverser
    if text.endswith(".safetensors") or Path(text).is_file():
        made = load_attacker(text, device=device)
    else:
        name, parameters = parse_spec(text)
        made = REVERSERS.make(name, **parameters)
        if isinstance(made, Learned):
            raise UsageError(f"{name} must be trained: `ficgan attack train`, then give its attacker.safetensors")
        if "pairs" in made.traits.knowledge:
            raise UsageError(f"{name} needs pairs and keeps no file; it is put to work by `ficgan eval run`")
    if candidates > 1 and not made.traits.several:
        raise UsageError(f"{made.name} has one guess at a face; leave out --candidates")
    if seed is None:
        return made
    if not made.traits.several:
        raise UsageError(f"{made.name} draws nothing; leave out --seed")
    drawing: Any = made
    return cast("Reverser", dataclasses.replace(drawing, seed=seed))


def plan_inputs(inputs: Sequence[Path], out: Path) -> Planned:
    """Every image with the name of its guesses; trees are mirrored."""
    from ficgan.images import READABLE_SUFFIXES

    files = mirrored(inputs, READABLE_SUFFIXES, what="image", advice="give anonymised faces, or folders of them")
    found = [(path, place.with_suffix("")) for path, place in files]
    names: dict[Path, Path] = {}
    for path, name in found:
        if name in names:
            raise UsageError(f"the guesses at {path} and {names[name]} would have one name; give them in two commands")
        names[name] = path
        marks = ("", "-01", "-f1", "-f1-01")
        taken = [here for mark in marks if (here := out / name.parent / f"{name.name}{mark}.png").exists()]
        if taken:
            raise UsageError(f"{taken[0]} exists; choose another output folder")
    return found


def crops_of(image: Image, *, aligned: bool, box: Any, detector: str, size: int) -> list[Image]:
    """Square crops [S,S,3] of the anonymised faces in an image; `box`: x0, y0, x1, y1; None: a detector finds them."""
    from ficgan.faces import Alignment, crop

    if aligned:
        if image.shape[0] != image.shape[1]:
            raise InputError(f"it has {image.shape[1]}×{image.shape[0]} pixels, and an aligned crop is square")
        return [image]
    if box is not None:
        return [_square(image, box)]
    faces = _detector(detector).detect(image)
    if not faces:
        raise InputError("no face was found in it; give --aligned for face crops, or --box where the face is")
    return [crop(image, Alignment().matrix(face.landmarks, size), size) for face in faces]


@lru_cache(maxsize=1)
def _detector(name: str) -> FaceDetector:
    from ficgan.faces import get_detector

    return get_detector(name)


def _square(image: Image, box: tuple[float, float, float, float]) -> Image:
    """The square around a box, at the image's own resolution; beyond the image its edge pixels are repeated."""
    import numpy as np

    x0, y0, x1, y1 = box
    height, width = image.shape[:2]
    if x0 >= width or y0 >= height or x1 <= 0 or y1 <= 0:
        raise InputError(f"the box lies outside its {width}×{height} pixels; give another --box")
    side = max(2, round(max(x1 - x0, y1 - y0)))
    left, top = round((x0 + x1 - side) / 2), round((y0 + y1 - side) / 2)
    rows, columns = (np.arange(start, start + side) for start in (top, left))
    return np.ascontiguousarray(image[rows.clip(0, height - 1)[:, None], columns.clip(0, width - 1)])


def guess_all(
    attacker: Reverser,
    plan: Planned,
    out: Path,
    crops: Callable[[Image], list[Image]],
    candidates: int,
    progress: Progress,
) -> dict[str, Any]:
    """Guess at every face of every image; an unusable image is reported, and the others go on. Returns counts."""
    from ficgan.anonymizers import Faces
    from ficgan.files import atomic_write
    from ficgan.images import read_image
    from ficgan.lab.pages import png

    faces = written = failed = 0
    for number, (path, name) in enumerate(plan):
        progress(number, len(plan), str(path))
        try:
            found = crops(read_image(path).rgb)
            for index, crop in enumerate(found):
                label = name if len(found) == 1 else name.with_name(f"{name.name}-f{index + 1}")
                guesses = attacker.reverse(Faces(crop[None], (str(label),)), candidates)[0]
                (out / label).parent.mkdir(parents=True, exist_ok=True)
                for place, guess in enumerate(guesses):
                    mark = "" if len(guesses) == 1 else f"-{place + 1:02d}"
                    with atomic_write(out / label.with_name(f"{label.name}{mark}.png")) as file:
                        file.write(png(guess))
                written += len(guesses)
                faces += 1
        except UsageError:
            raise
        except OSError as error:
            raise FicganError(f"{out} cannot be made ({error.strerror}); choose another output folder") from None
        except FicganError as error:
            failed += 1
            text = str(error)
            progress.error(text if str(path) in text else f"{path}: {text}")
    progress(len(plan), len(plan), "")
    return {"inputs": len(plan), "faces": faces, "written": written, "failed": failed, "output": str(out)}


if __name__ == "__main__":
    attack()
