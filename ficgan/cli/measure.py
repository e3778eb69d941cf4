"""`ficgan measure` and the classifier of attributes that it can use, `ficgan train-attributes`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ficgan.cli import HELP
from ficgan.cli import _shared as shared
from ficgan.cli._console import Progress
from ficgan.cli._shared import Parsed
from ficgan.options import parse_diversity

__all__ = ["measure", "train_attributes"]

_BARS: tuple[Any, ...] = (
    click.option("--bars", is_flag=True, help="The whole table of bars, beside the average-face sticker, into -o."),
    shared.output("With --bars: folder for bars.json and bars.md.", required=False),
    click.option("--attributes", type=shared.PATH, help="With --bars: classifier of `ficgan train-attributes`."),
)


@click.command(context_settings=HELP)
@click.option("--checkpoint", type=shared.PATH, help="Model; the embedded one if not given.")
@click.option("--bank", type=shared.PATH, help="Bank built with it.")
@click.option("--aligned", multiple=True, type=shared.PATH, help="Folder, zip or tar of aligned faces.")
@click.option("--photos", type=shared.PATH, help="Folder of photos, each of another person (--bars: anybody).")
@shared.JUDGES
@click.option("--layer", "layers", multiple=True, type=click.IntRange(0), help="i, repeatable.  [default: 0, 4, L−1]")
@shared.DETECTOR
@click.option("--k", default=3000, show_default=True, type=click.IntRange(2), help="People averaged.")
@click.option(
    "--diversity",
    "psi",
    default="auto",
    show_default=True,
    type=Parsed(parse_diversity),
    help="ψ; auto: what the model does best with for a person alone in a photo.",
)
@click.option("--limit", type=click.IntRange(2), help="Use only the first so many faces of each set.")
@shared.options(shared.device(), *_BARS)
@shared.reporting("step")
def measure(
    photos: Path | None, bars: bool, out: Path | None, attributes: Path | None, report: Progress, **common: Any
) -> shared.Summary:
    """Reconstruction, identity similarity and detection rate, as JSON. Retries and masking are off.

    With --bars every figure a default model is held to, met or missed, in a folder; docs/model.md says how to read it.
    """
    from ficgan.errors import UsageError
    from ficgan.lab.bars import BarsConfig, run_bars

    if not common["aligned"] and photos is None:
        raise UsageError("nothing to measure on; give --aligned or --photos")
    if bars != (out is not None):
        raise UsageError("the table of bars is written into a folder; give both --bars and -o, or neither")
    if not bars and attributes is not None:
        raise UsageError("--attributes belongs to the table of bars; give --bars too")
    config = BarsConfig(photos=photos, attributes=attributes, whole=bars, **common)
    sheet = run_bars(config, report)
    summary: shared.Summary = {"checkpoint": sheet.facts["checkpoint"]}
    if out is None:
        keys = ("set", "setting", "row", "judge", "value", "low", "high")
        lines = [{key: line[key] for key in keys} for line in (one.to_dict() for one in sheet.lines)]
        return {**summary, "settings": sheet.facts["settings"], "lines": lines}
    return {
        "bars": [path.name for path in sheet.write(out)],
        **summary,
        "verdicts": sheet.verdicts,
        "missed": sheet.missed,
        "left_out": len(sheet.left_out),
        "seconds": sheet.facts["seconds"],
    }


@click.command("train-attributes", context_settings=HELP)
@click.argument("data", type=shared.PATH)
@shared.output("File of the classifier (.safetensors).", kind=shared.NEW_FILE)
@shared.options(shared.LABELS, shared.layout(), shared.DETECTOR)
@click.option("--epochs", type=click.IntRange(1), default=25, show_default=True)
@shared.options(shared.seed(), shared.device(what="cpu, cuda or cuda:N."), shared.OVERWRITE)
@shared.reporting("step")
def train_attributes(
    data: Path,
    out: Path,
    labels: Path | None,
    layout: str,
    detector: str,
    epochs: int,
    seed: int,
    device: str,
    overwrite: bool,
    report: Progress,
) -> shared.Summary:
    """Train a classifier of face attributes on DATA, such as CelebA.

    DATA: folder, zip or tar of faces with people and 0/1 attributes. A fifth of the people are held out; the figures on
    them are printed as JSON. The classifier judges others' images: it goes into the `attributes:` of a matrix, or as
    attributes.safetensors into a model folder.
    """
    from ficgan.errors import UsageError
    from ficgan.faces import get_detector
    from ficgan.lab.attributes import train_attributes as train
    from ficgan.lab.sets import Quick, open_set, prepare

    shared.refuse_existing(out, overwrite=overwrite)
    faces = open_set(data, layout=layout, labels=labels)
    if not faces.attributes:
        raise UsageError(f"{data} has no attributes; give --labels with columns of 0 and 1")
    prepared = prepare(faces, detector=Quick(get_detector(detector)), progress=report)
    return train(
        prepared.faces,
        prepared.attributes,
        out,
        source={"set": faces.name, "digest": faces.digest},
        epochs=epochs,
        seed=seed,
        device=device,
        progress=report,
    )
