"""`ficgan fit-appearance`: fit the linear appearance model to aligned faces."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ficgan.cli._errors import handle_errors

if TYPE_CHECKING:
    from ficgan.data import FaceData
    from ficgan.identity import IdentityBank

__all__ = ["fit_appearance", "write_bank"]

_PATH = click.Path(path_type=Path)


@click.command("fit-appearance", context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("data", nargs=-1, required=True, type=_PATH)
@click.option("--labels", type=_PATH, help="CSV: file, person, gender, age, race.")
@click.option("--split", multiple=True, help="Use only images of this split; may be repeated.")
@click.option("--licence", default="", help="Name and licence of the data; stands in the model and in every audit.")
@click.option("--size", default=128, show_default=True, help="Side of the frame, pixels.")
@click.option("-o", "--out", required=True, type=_PATH, help="Model to write (.safetensors).")
@click.option("--bank", type=_PATH, help="Write an identity bank of the same faces, too.")
@click.option("--detail", type=_PATH, help="Synthetic faces, 256², that lend pores and lashes to large faces.")
@click.option("--overwrite", is_flag=True, help="Replace existing files.")
@handle_errors
def fit_appearance(
    data: tuple[Path, ...], labels: Path | None, split: tuple[str, ...], licence: str, size: int, out: Path,
    bank: Path | None, detail: Path | None, overwrite: bool,
) -> None:  # fmt: skip
    """Fit the linear appearance model to DATA: folders, zips or tars of faces aligned by `ficgan align`, 128².

    It takes a few minutes for 20,000 faces. The labels say which people are men or women and how old they are, so that
    a new face can keep both.
    """
    from ficgan.cli.bank import save_bank
    from ficgan.data import check_alignment, open_faces
    from ficgan.errors import UsageError
    from ficgan.face_model import ModelInfo
    from ficgan.faces import Alignment, MediaPipeMesh
    from ficgan.frame.file import FrameConfig, load_appearance, save_appearance
    from ficgan.frame.fit import FitConfig
    from ficgan.frame.learn import SIDE, learn, lend

    for path in filter(None, (out, bank)):
        if path.exists() and not overwrite:
            raise UsageError(f"{path} exists; give another name or --overwrite")
        if not path.parent.is_dir():
            raise UsageError(f"{path.parent} is no folder; make it first")
    faces = open_faces(data, resolution=SIDE, labels=labels)
    check_alignment(faces, Alignment("canonical"), "this command")
    if split:
        if faces.labels is None or faces.labels.splits is None:
            raise UsageError("--split needs --labels with a split column")
        faces = faces.subset([i for i, name in enumerate(faces.labels.splits) if name in split])
    began, say = time.monotonic(), _Progress()
    mesh, config = MediaPipeMesh(), FitConfig(size=size)
    learnt = learn(faces, mesh, config, say)
    model, record = learnt.model, learnt.record
    if detail is not None:
        fine = open_faces([detail], resolution=2 * SIDE)
        model = lend(model, fine, mesh)
        record |= {"detail_faces": len(model.details), "detail_fingerprint": fine.fingerprint}
    info = ModelInfo(
        {"kind": "canonical"},
        {"licence": licence, "fingerprint": record["fingerprint"], "images": record["images"]},
        {**record, "seconds": round(time.monotonic() - began, 1), "fit": vars(config)},
    )
    save_appearance(out, model, FrameConfig(), info, overwrite=overwrite)
    done: dict[str, Any] = {"model": str(out), **record, "seconds": round(time.monotonic() - began, 1)}
    if bank is not None:
        stored, _, info, _ = load_appearance(out)  # its numbers are rounded: the bank's codes are what it reads
        done["people"] = len(save_bank(bank, out, info, faces, learnt.codes(stored), licence, learnt.rows))
    click.echo(json.dumps(done))


def write_bank(checkpoint: Path, faces: FaceData, out: Path, licence: str, device: str = "cpu") -> IdentityBank:
    """Encode the people of a set with an appearance model and write their bank; faces that are not clear are left out.

    Args:
        checkpoint: appearance model.
        faces: aligned as it needs them.
        out: bank to write.
        licence: of the set.
        device: of the mesh.
    """
    from ficgan.cli.bank import save_bank
    from ficgan.faces import MediaPipeMesh
    from ficgan.frame.file import load_appearance
    from ficgan.frame.fit import FitConfig
    from ficgan.frame.learn import codes_of

    model, _, info, network = load_appearance(checkpoint)
    presence = info.training.get("fit", {}).get("presence", FitConfig().presence)
    codes, rows = codes_of(model, faces, MediaPipeMesh(device), presence, network, _Progress())
    if len(rows) < len(faces):
        click.echo(f"{len(faces) - len(rows)} of {len(faces)} faces are not clear enough and left out.", err=True)
    return save_bank(out, checkpoint, info, faces, codes, licence, rows)


class _Progress:
    """One bar a stage on a terminal, a line a minute elsewhere."""

    def __init__(self) -> None:
        self.stage, self.told = "", time.monotonic()

    def __call__(self, stage: str, done: int, total: int) -> None:
        now = time.monotonic()
        terminal = sys.stderr.isatty()
        if terminal:
            end = "\n" if done >= total else ""
            click.echo(f"\r{stage}: {done} of {total}   {end}", nl=False, err=True)
        elif stage != self.stage or now - self.told >= 60:
            click.echo(f"{stage}: {done} of {total}", err=True)
            self.told = now
        self.stage = stage
