"""`ficgan bank`: build and show identity banks."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ficgan.cli import HELP
from ficgan.cli._errors import handle_errors
from ficgan.cli.train import DataCommand, data_option

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from ficgan.data import FaceData
    from ficgan.face_model import ModelInfo
    from ficgan.identity import IdentityBank
    from ficgan.models import FICGAN

__all__ = ["bank", "save_bank"]

_AT_ONCE = 1024
"""Decoded pictures in memory: 200 MB at 256²."""


@click.group(context_settings=HELP)
def bank() -> None:
    """Identity banks: the codes that k-same averages."""


@bank.command(cls=DataCommand, context_settings=HELP)
@click.argument("checkpoint", type=click.Path(path_type=Path))
@data_option
@click.option("--labels", type=click.Path(path_type=Path), help="CSV: file, person (or identity), attributes.")
@click.option("--split", help="Use only images of this split.")
@click.option("--licence", default="", help="Licence of the data.  [default: the model's, if of its training data]")
@click.option("-o", "--out", required=True, type=click.Path(path_type=Path), help="Bank to write (.safetensors).")
@click.option("--device", default="cpu", show_default=True, help="cpu, cuda or cuda:N.")
@click.option("--overwrite", is_flag=True, help="Replace an existing bank.")
@handle_errors
def build(
    checkpoint: Path, data: tuple[Path, ...], labels: Path | None, split: str | None, licence: str, out: Path,
    device: str, overwrite: bool,
) -> None:  # fmt: skip
    """Encode the people of DATA with CHECKPOINT: one code per person, so that k counts people.

    Who is who comes from --labels; without it, and for people it does not know, each picture counts as a person.
    """
    from ficgan.cli.train import write_bank
    from ficgan.data import check_alignment, open_faces
    from ficgan.errors import UsageError
    from ficgan.face_model import ModelInfo
    from ficgan.faces import Alignment
    from ficgan.frame.learn import SIDE
    from ficgan.identity.file import file_header

    if out.exists() and not overwrite:
        raise UsageError(f"{out} exists; give another name or --overwrite")
    network = None
    if file_header(checkpoint)[0] == "appearance":
        resolution, info = SIDE, ModelInfo.of(checkpoint)
    else:
        from ficgan.models import load_checkpoint

        network, header = load_checkpoint(checkpoint, device)
        resolution, info = network.resolution, ModelInfo(header.alignment, header.data, header.training)
    faces = open_faces(data, resolution=resolution, labels=labels, split=split)
    check_alignment(faces, Alignment.from_dict(info.alignment), str(checkpoint))
    if network is None:
        made = write_bank(checkpoint, faces, out, licence, device)
    else:
        made = save_bank(out, checkpoint, info, faces, _encoded(network, faces, device), licence)
    if not made.provenance["identities_known"]:
        click.echo("Without identities k counts pictures, not people; --labels can name who is who.", err=True)
    done = {"bank": str(out), "people": len(made), "images": made.provenance["images"], "digest": made.digest}
    unknown = made.provenance["images_of_unknown_people"]
    click.echo(json.dumps({**done, "images_of_unknown_people": unknown}))


def _encoded(network: FICGAN, faces: FaceData, device: str) -> NDArray[np.float32]:
    """Codes [N,D] of a set, a part at a time."""
    import numpy as np
    from tqdm import tqdm

    from ficgan.identity import encode_faces

    codes = np.empty((len(faces), network.config.w_dim), np.float32)
    with tqdm(total=len(faces), unit="face", disable=not sys.stderr.isatty()) as bar:
        for begin in range(0, len(faces), _AT_ONCE):
            part = faces.subset(range(begin, min(begin + _AT_ONCE, len(faces))))
            codes[begin : begin + len(part)] = encode_faces(network, part.resident(), device=device)
            bar.update(len(part))
    return codes


@bank.command(context_settings=HELP)
@click.argument("path", required=False, type=click.Path(path_type=Path))
@click.option("--check", is_flag=True, help="Read all codes of a large bank, too, and refuse what its digest denies.")
@handle_errors
def show(path: Path | None, check: bool) -> None:
    """People, attributes and origin of the bank PATH, or of the embedded one, as JSON."""
    from ficgan import pretrained
    from ficgan.errors import FicganError
    from ficgan.identity import IdentityBank

    try:
        loaded = IdentityBank.load(path if path is not None else pretrained.path("bank"))
    except (FileNotFoundError, KeyError):
        raise FicganError("this copy of ficgan holds no embedded bank; name a file") from None
    if check:
        loaded.verify()
    shown = {
        "people": len(loaded), "digest": loaded.digest, "digest_verified": loaded.verified, "attributes": loaded.counts,
        "provenance": loaded.provenance,
    }  # fmt: skip
    click.echo(json.dumps(shown, indent=2, ensure_ascii=False))


def save_bank(
    out: Path, checkpoint: Path, info: ModelInfo, faces: FaceData, codes: NDArray[Any], licence: str,
    rows: NDArray[np.int64] | None = None,
) -> IdentityBank:  # fmt: skip
    """One code per person of a set, from codes float [N,D], in a file that says where they come from.

    Args:
        checkpoint, info: the model that read the codes, and what its header says.
        licence: of the set; "": the model's where the set is what it was made from.
        rows: which of the set's images were read; None: all.
    """
    from ficgan.identity import IdentityBank
    from ficgan.identity.file import file_digest

    marks = faces.labels
    if marks is not None and rows is not None:
        marks = marks.take(rows)
    if not licence and faces.fingerprint == info.data.get("fingerprint"):
        licence = info.data.get("licence", "")
    made = IdentityBank.from_codes(
        codes,
        None if marks is None else marks.people,
        None if marks is None else marks.attributes,
        () if marks is None else marks.attribute_names,
        {
            "checkpoint": file_digest(checkpoint),
            "data": {"licence": licence, "fingerprint": faces.fingerprint},
            "alignment": info.alignment,
        },
        columns=() if marks is None else marks.attribute_columns,
    )
    made.save(out)
    return made
