"""`ficgan measure`: the first figures of a model."""

from __future__ import annotations

import json
from pathlib import Path

import click

from ficgan.cli._errors import handle_errors

__all__ = ["measure"]


@click.command()
@click.option("--checkpoint", type=click.Path(path_type=Path), help="Model; the embedded one if not given.")
@click.option("--bank", type=click.Path(path_type=Path), help="Bank built with it.")
@click.option("--aligned", multiple=True, type=click.Path(path_type=Path), help="Folder, zip or tar of aligned faces.")
@click.option("--photos", type=click.Path(path_type=Path), help="Folder of photos of one person each.")
@click.option(
    "--judge",
    "judges",
    multiple=True,
    default=("dlib",),
    show_default=True,
    help="dlib, insightface or onnx:PATH; must have had no part in training.",
)
@click.option("--layer", "layers", multiple=True, type=int, help="i; repeat for several. Default: 0, 4, L−1.")
@click.option("--detector", default="auto", show_default=True)
@click.option("--k", default=3000, show_default=True)
@click.option("--diversity", default="0", show_default=True, help="ψ, or auto.")
@click.option("--limit", type=int, help="Use only the first so many faces of each set.")
@click.option("--device", default="cpu", show_default=True)
@handle_errors
def measure(
    checkpoint: Path | None, bank: Path | None, aligned: tuple[Path, ...], photos: Path | None,
    judges: tuple[str, ...], layers: tuple[int, ...], detector: str, k: int, diversity: str, limit: int | None,
    device: str,
) -> None:  # fmt: skip
    """Reconstruction, identity similarity and detection rate, as JSON. Retries and masking are off."""
    import numpy as np

    from ficgan.data import open_faces
    from ficgan.deidentify import Deidentifier
    from ficgan.errors import UsageError
    from ficgan.evaluation import measure_aligned, measure_photos
    from ficgan.faces import get_recognizer
    from ficgan.images import read_image

    if not aligned and photos is None:
        raise UsageError("nothing to measure on; give --aligned or --photos")
    readers = [get_recognizer(name) for name in judges]
    psi = "auto" if diversity == "auto" else float(diversity)
    deid = Deidentifier.from_pretrained(
        checkpoint, bank, k=k, layer=0, psi=psi, detector=detector, verify=False, device=device
    )
    chosen = layers or tuple(sorted({0, min(4, deid.model.num_layers - 1), deid.model.num_layers - 1}))
    report: dict[str, object] = {"checkpoint": deid.digests.get("checkpoint"), "detector": deid.detector.name}
    if aligned:
        faces = open_faces(aligned, resolution=128)
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
