"""`ficgan train-attributes`: the attribute classifier that judges what a face keeps."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from ficgan.cli._errors import handle_errors
from ficgan.cli._options import TALK, options
from ficgan.cli._progress import Progress

__all__ = ["train_attributes"]


@click.command("train-attributes", context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("data", type=click.Path(path_type=Path))
@click.option(
    "-o", "--output", "out", required=True, type=click.Path(path_type=Path, dir_okay=False),
    help="File of the classifier (.safetensors).",
)  # fmt: skip
@click.option("--labels", type=click.Path(path_type=Path), help="CSV or CelebA's text files.  [default: beside DATA]")
@click.option("--layout", default="auto", show_default=True, help="As of `ficgan-eval run`.")
@click.option("--detector", default="auto", show_default=True, help="auto, insightface, yunet, centerface or dlib.")
@click.option("--epochs", type=click.IntRange(1), default=25, show_default=True)
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True)
@click.option("--device", default="cpu", show_default=True, help="cpu, cuda or cuda:N.")
@click.option("--overwrite", is_flag=True, help="Replace an existing file.")
@options(TALK)
@handle_errors
def train_attributes(
    data: Path, out: Path, labels: Path | None, layout: str, detector: str, epochs: int, seed: int, device: str,
    overwrite: bool, progress: Any, quiet: bool,
) -> None:  # fmt: skip
    """Train a classifier of face attributes on DATA, such as CelebA.

    DATA: folder, zip or tar of faces with people and 0/1 attributes. A fifth of the people are held out; the figures on
    them are printed as JSON. The classifier judges others' images: it goes into the `attributes:` of a matrix, or as
    attributes.safetensors into a model folder.
    """
    from ficgan.errors import UsageError
    from ficgan.faces import get_detector
    from ficgan.lab.attributes import train_attributes as train
    from ficgan.lab.sets import Quick, open_set, prepare

    if out.exists() and not overwrite:
        raise UsageError(f"{out} exists already; give another name, or --overwrite")
    if not out.parent.is_dir():
        raise UsageError(f"{out.parent} is no folder; make it first")
    with Progress(progress, unit="step", quiet=quiet) as told:
        faces = open_set(data, layout=layout, labels=labels)
        if not faces.attributes:
            raise UsageError(f"{data} has no attributes; give --labels with columns of 0 and 1")
        prepared = prepare(
            faces,
            detector=Quick(get_detector(detector)),
            progress=lambda done, total: told(done, total, "cutting faces"),
        )
        figures = train(
            prepared.faces, prepared.attributes, out, source={"set": faces.name, "digest": faces.digest}, epochs=epochs,
            seed=seed, device=device, progress=told,
        )  # fmt: skip
    click.echo(json.dumps(figures))
