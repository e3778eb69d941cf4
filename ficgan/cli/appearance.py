"""`ficgan fit-appearance`: fit the linear appearance model to aligned faces."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import click

from ficgan.cli._errors import handle_errors

__all__ = ["fit_appearance"]

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
    from ficgan.data import open_faces
    from ficgan.errors import UsageError
    from ficgan.face_model import ModelInfo
    from ficgan.faces import MediaPipeMesh
    from ficgan.frame.fit import FitConfig
    from ficgan.frame.learn import SIDE, learn, lend
    from ficgan.frame_model import FrameConfig, save_appearance

    for path in filter(None, (out, bank)):
        if path.exists() and not overwrite:
            raise UsageError(f"{path} exists; give another name or --overwrite")
        if not path.parent.is_dir():
            raise UsageError(f"{path.parent} is no folder; make it first")
    faces = open_faces(data, resolution=SIDE, labels=labels)
    if split:
        if faces.labels is None or faces.labels.splits is None:
            raise UsageError("--split needs --labels with a split column")
        faces = faces.subset([i for i, name in enumerate(faces.labels.splits) if name in split])
    began, say = time.monotonic(), _Progress()
    mesh, config = MediaPipeMesh(), FitConfig(size=size)
    model, record = learn(faces, mesh, config, say)
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
        done["people"] = write_bank(out, faces, bank, licence, config.presence, say)
    click.echo(json.dumps(done))


def write_bank(checkpoint: Path, faces: Any, out: Path, licence: str, presence: float, progress: Any) -> int:
    """Encode the people of a set with an appearance model and write their bank.

    Returns:
        How many people it holds.
    """
    from ficgan.faces import MediaPipeMesh
    from ficgan.frame.learn import codes_of
    from ficgan.frame_model import load_appearance
    from ficgan.identity import IdentityBank
    from ficgan.models.io import file_digest

    model, _, info = load_appearance(checkpoint)
    codes, rows = codes_of(model, faces, MediaPipeMesh(), presence, progress)
    marks = None if faces.labels is None else faces.labels.take([int(i) for i in rows])
    made = IdentityBank.from_codes(
        codes,
        None if marks is None else marks.people,
        None if marks is None else marks.attributes,
        () if marks is None else marks.attribute_names,
        {
            "checkpoint": file_digest(checkpoint),
            "data": {"licence": licence or info.data.get("licence", ""), "fingerprint": faces.fingerprint},
            "alignment": info.alignment,
        },
        columns=() if marks is None else marks.attribute_columns,
    )
    made.save(out)
    return len(made)


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
