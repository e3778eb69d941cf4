"""`ficgan bank`: build and show identity banks."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click
import numpy as np

from ficgan.cli._data import DataCommand, data_option
from ficgan.cli._errors import handle_errors

__all__ = ["bank"]


@click.group()
def bank() -> None:
    """Identity banks: the codes that k-same averages."""


@bank.command(cls=DataCommand)
@click.argument("checkpoint", type=click.Path(path_type=Path))
@data_option
@click.option("--labels", type=click.Path(path_type=Path), help="CSV: file, person or identity, attributes.")
@click.option("--split", help="Use only images of this split.")
@click.option("--licence", default="", help="Name and licence of the data, for the audit.")
@click.option("-o", "--out", required=True, type=click.Path(path_type=Path), help="Bank to write (.safetensors).")
@click.option("--device", default="cpu", show_default=True)
@click.option("--overwrite", is_flag=True, help="Replace an existing bank.")
@handle_errors
def build(
    checkpoint: Path, data: tuple[Path, ...], labels: Path | None, split: str | None, licence: str, out: Path,
    device: str, overwrite: bool,
) -> None:  # fmt: skip
    """Encode the people of DATA with CHECKPOINT: one code per person, so that k counts people."""
    from tqdm import tqdm

    from ficgan.data import open_faces
    from ficgan.errors import UsageError
    from ficgan.identity import IdentityBank, encode_faces
    from ficgan.models import load_checkpoint
    from ficgan.models.io import file_digest

    if out.exists() and not overwrite:
        raise UsageError(f"{out} exists; give another name or --overwrite")
    model, header = load_checkpoint(checkpoint, device)
    faces = open_faces(data, resolution=model.resolution, labels=labels, split=split)
    hidden = not sys.stderr.isatty()
    with tqdm(total=len(faces), unit="face", disable=hidden) as bar:

        def advance(done: int, _: int) -> None:
            bar.update(done - bar.n)

        codes = encode_faces(model, faces.resident(), device=device, progress=advance)
    marks = faces.labels
    people = marks.people if marks is not None and marks.people is not None else np.arange(len(codes))
    made = IdentityBank.from_codes(
        codes,
        people,
        None if marks is None else marks.attributes,
        () if marks is None else marks.attribute_names,
        {
            "checkpoint": file_digest(checkpoint),
            "data": {"licence": licence or header.data.get("licence", ""), "fingerprint": faces.fingerprint},
            "images": len(codes),
            "identities_known": marks is not None and marks.people is not None,
        },
    )
    made.save(out)
    click.echo(json.dumps({"bank": str(out), "people": len(made), "images": len(codes), "digest": made.digest}))


@bank.command()
@click.argument("path", type=click.Path(path_type=Path))
@handle_errors
def show(path: Path) -> None:
    """People, attributes and origin of a bank, as JSON."""
    from ficgan.identity import IdentityBank

    loaded = IdentityBank.load(path)
    counts = {
        name: int(count) for name, count in zip(loaded.names, loaded.attributes.sum(0, dtype=np.int64), strict=True)
    }
    click.echo(
        json.dumps(
            {"people": len(loaded), "digest": loaded.digest, "attributes": counts, "provenance": loaded.provenance},
            indent=2,
        )
    )
