"""`ficgan measure`: the first figures of a model."""

from __future__ import annotations

import json
from pathlib import Path

import click

from ficgan.cli._errors import handle_errors
from ficgan.cli._params import Diversity

__all__ = ["measure"]

LEAST_SIDE = 128
"""Of the crops that judges see, px; models of more see and are judged at their own size."""


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--checkpoint", type=click.Path(path_type=Path), help="Model; the embedded one if not given.")
@click.option("--bank", type=click.Path(path_type=Path), help="Bank built with it.")
@click.option("--aligned", multiple=True, type=click.Path(path_type=Path), help="Folder, zip or tar of aligned faces.")
@click.option("--photos", type=click.Path(path_type=Path), help="Folder of photos, each of one other person.")
@click.option(
    "--judge",
    "judges",
    multiple=True,
    default=("dlib",),
    show_default=True,
    help="dlib, insightface or onnx:PATH; must have had no part in training.",
)
@click.option("--layer", "layers", multiple=True, type=click.IntRange(0), help="i, repeatable.  [default: 0, 4, L−1]")
@click.option("--detector", default="auto", show_default=True, help="auto, insightface, yunet, centerface or dlib.")
@click.option("--k", default=3000, show_default=True, type=click.IntRange(2), help="People averaged.")
@click.option("--diversity", "psi", default="0", show_default=True, type=Diversity(), help="ψ.")
@click.option("--limit", type=click.IntRange(2), help="Use only the first so many faces of each set.")
@click.option("--device", default="cpu", show_default=True, help="cpu, cuda, cuda:N or auto.")
@handle_errors
def measure(
    checkpoint: Path | None, bank: Path | None, aligned: tuple[Path, ...], photos: Path | None,
    judges: tuple[str, ...], layers: tuple[int, ...], detector: str, k: int, psi: str | float, limit: int | None,
    device: str,
) -> None:  # fmt: skip
    """Reconstruction, identity similarity and detection rate, as JSON. Retries and masking are off."""
    import numpy as np

    from ficgan.data import check_alignment, open_faces
    from ficgan.deidentify import Deidentifier, refuse_trainer
    from ficgan.errors import UsageError
    from ficgan.evaluation import measure_aligned, measure_photos
    from ficgan.faces import get_recognizer
    from ficgan.images import read_image

    if not aligned and photos is None:
        raise UsageError("nothing to measure on; give --aligned or --photos")
    readers = [get_recognizer(name) for name in judges]
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
    report: dict[str, object] = {"checkpoint": deid.digests.get("checkpoint"), "detector": deid.detector.name}
    if aligned:
        faces = open_faces(aligned, resolution=max(deid.model.resolution, LEAST_SIDE))
        check_alignment(faces, deid.alignment)
        faces = faces.subset(range(min(limit or len(faces), len(faces))))
        crops = np.ascontiguousarray(faces.resident().permute(0, 2, 3, 1).numpy())
        rows = measure_aligned(deid, crops, layers=chosen, judges=readers, detector=deid.detector)
        report["aligned"] = [row.to_dict() for row in rows]
    if photos is not None:
        paths = sorted(path for path in photos.rglob("*") if path.suffix.lower() in (".jpg", ".jpeg", ".png", ".webp"))
        images = [read_image(path).rgb for path in paths[:limit]]
        if len(images) < 2:
            raise UsageError(f"{photos} holds {len(images)} photos; give a folder with at least 2")
        report["photos"] = [row.to_dict() for row in measure_photos(deid, images, layers=chosen, judges=readers)]
    click.echo(json.dumps(report))
