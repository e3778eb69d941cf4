"""`ficgan measure` and the classifier of attributes that it can use, `ficgan train-attributes`."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import click

from ficgan.cli import HELP
from ficgan.cli import _shared as shared
from ficgan.cli._console import Progress
from ficgan.cli._shared import Parsed
from ficgan.options import parse_diversity

__all__ = ["measure", "train_attributes"]

CLIP_FRAMES = 75
"""Frames taken of a clip: three seconds of most films."""
_BARS: tuple[Any, ...] = (
    click.option("--bars", is_flag=True, help="The whole table of bars, beside the average-face sticker, into -o."),
    shared.output("With --bars: folder for bars.json and bars.md.", required=False),
    click.option(
        "--train",
        multiple=True,
        type=shared.PATH,
        help="With --bars: faces it learnt from, for memorisation and real–real distances; repeatable.",
    ),
    click.option(
        "--clip", "clips", multiple=True, type=shared.PATH, help="With --bars: a film, for stability; repeatable."
    ),
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
    photos: Path | None,
    psi: Any,
    bars: bool,
    out: Path | None,
    train: tuple[Path, ...],
    clips: tuple[Path, ...],
    attributes: Path | None,
    report: Progress,
    **common: Any,
) -> shared.Summary:
    """Reconstruction, identity similarity and detection rate, as JSON. Retries and masking are off.

    With --bars every figure a default model is held to, met or missed, in a folder; docs/model.md says how to read it.
    """
    from ficgan.errors import UsageError

    if not common["aligned"] and photos is None:
        raise UsageError("nothing to measure on; give --aligned or --photos")
    if not bars:
        if out is not None or train or clips or attributes is not None:
            raise UsageError("-o, --train, --clip and --attributes belong to the table of bars; give --bars too")
        return _first_figures(photos=photos, psi=psi, **common)
    if out is None:
        raise UsageError("the table of bars is written into a folder; give -o")
    from ficgan.lab.bars import BarsConfig, run_bars
    from ficgan.lab.bars.table import write_bars

    config = BarsConfig(
        clips=tuple(_clip(path) for path in clips),
        photos=() if photos is None else (photos,),
        psi=psi,
        train=train,
        attributes=attributes,
        **common,
    )
    table = run_bars(config, report)
    written = write_bars(table, out)
    return {
        "bars": [path.name for path in written],
        "checkpoint": table.facts["checkpoint"],
        "verdicts": table.verdicts,
        "missed": table.missed,
        "left_out": len(table.sheet.left_out),
        "seconds": table.facts["seconds"],
    }


def _clip(path: Path) -> Any:
    from ficgan.lab.bars import Clip
    from ficgan.video import open_video

    with open_video(path) as film:
        rate = float(film.info.rate or 25)
        frames = []
        for frame in film.frames():
            frames.append(frame.image)
            if len(frames) == CLIP_FRAMES:
                break
    return Clip(path.name, tuple(frames), rate)


def _first_figures(
    *,
    checkpoint: Path | None,
    bank: Path | None,
    aligned: tuple[Path, ...],
    photos: Path | None,
    judges: tuple[str, ...],
    layers: tuple[int, ...],
    detector: str,
    k: int,
    psi: float | Literal["auto"],
    limit: int | None,
    device: str,
) -> shared.Summary:
    import numpy as np

    from ficgan.data import check_alignment, open_faces
    from ficgan.deidentify import Deidentifier, refuse_trainer
    from ficgan.errors import UsageError
    from ficgan.images import read_image
    from ficgan.lab.bars.bench import LEAST_SIDE, measure_aligned, measure_photos
    from ficgan.lab.readers import get_judge

    readers = [get_judge(name) for name in judges]
    for reader in readers:  # the report names files, not the folders of this machine
        kind, colon, file = reader.name.partition(":")
        reader.name = kind + colon + Path(file).name
    if len({reader.name for reader in readers}) < len(readers):
        raise UsageError("two judges have the same name; give each one once, and onnx files different names")
    deid = Deidentifier.from_pretrained(
        checkpoint, bank, k=k, layer=0, psi=psi, detector=detector, verify=False, device=device
    )
    for name in judges:
        refuse_trainer(deid.header, name)
    chosen = layers or tuple(sorted({0, min(4, deid.model.num_layers - 1), deid.model.num_layers - 1}))
    for layer in chosen:
        deid.face_model.check_layer(layer)
    report: shared.Summary = {"checkpoint": deid.digests.get("checkpoint"), "detector": deid.detector.name}
    if aligned:
        faces = open_faces(aligned, resolution=max(deid.model.resolution, LEAST_SIDE))
        check_alignment(faces, deid.alignment)
        faces = faces.subset(range(min(limit or len(faces), len(faces))))
        crops = np.ascontiguousarray(faces.resident().permute(0, 2, 3, 1).numpy())
        report["aligned"] = measure_aligned(deid, crops, layers=chosen, judges=readers, detector=deid.detector)
    if photos is not None:
        paths = sorted(path for path in photos.rglob("*") if path.suffix.lower() in (".jpg", ".jpeg", ".png", ".webp"))
        images = [read_image(path).rgb for path in paths[:limit]]
        if len(images) < 2:
            raise UsageError(f"{photos} holds {len(images)} photos; give a folder with at least 2")
        report["photos"] = measure_photos(deid, images, layers=chosen, judges=readers)
    return report


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
    prepared = prepare(
        faces, detector=Quick(get_detector(detector)), progress=lambda done, total: report(done, total, "cutting faces")
    )
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
