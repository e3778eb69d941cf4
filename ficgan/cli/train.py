"""`ficgan align`, `train`, `train-verifier` and `fit-appearance`: from photos to the networks."""

from __future__ import annotations

import re
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ficgan.cli import HELP
from ficgan.cli import _shared as shared
from ficgan.cli._errors import handle_errors
from ficgan.cli._progress import Progress
from ficgan.interrupts import stop_asked

if TYPE_CHECKING:
    from ficgan.data import FaceData
    from ficgan.data.align import AlignReport
    from ficgan.faces import Alignment
    from ficgan.identity import IdentityBank
    from ficgan.verification.train import VerifierTrainer

__all__ = ["DataCommand", "align", "data_option", "fit_appearance", "spread", "train", "train_verifier", "write_bank"]

_OVERRIDE = re.compile(r"[A-Za-z_][\w.]*=")
_STATE, _NETWORK = "state.safetensors", "verifier.safetensors"
_FACES = click.argument("data", nargs=-1, required=True, type=shared.PATH)
_PLACEMENT: tuple[Any, ...] = (
    click.option("--alignment", default="template", show_default=True, type=click.Choice(["template", "ffhq"])),
    click.option("--eye-distance", default=0.37, show_default=True, help="Template: eye distance / side of the crop."),
    click.option("--eye-y", default=0.31, show_default=True, help="Template: height of the eyes / side of the crop."),
)


class DataCommand(click.Command):
    """A command whose --data takes every argument up to the next option or key=value."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, spread(args))


def spread(args: list[str]) -> list[str]:
    """`--data a b -o c` as `--data a --data b -o c`."""
    out: list[str] = []
    following = False
    for arg in args:
        if arg.startswith("-") or _OVERRIDE.match(arg):
            following = False
        elif following and out[-2:-1] == ["--data"]:
            out.append("--data")
        out.append(arg)
        following = following or arg == "--data"
    return out


data_option = click.option(
    "--data", metavar="PATH...", multiple=True, required=True, type=shared.PATH,
    help="Folders, zips or tars of aligned faces, one or several.",
)  # fmt: skip


@click.command(context_settings=HELP)
@click.argument("photos", nargs=-1, required=True, type=shared.PATH)
@shared.output("A new .tar, or a new folder.", kind=shared.PATH)
@click.option("--resolution", default=256, show_default=True, type=click.IntRange(8, 4096), help="Side of the crops.")
@shared.options(*_PLACEMENT, shared.DETECTOR, shared.THRESHOLD)
@click.option("--faces", "which", default="largest", show_default=True, type=click.Choice(["largest", "all"]))
@click.option("--min-size", default=40.0, show_default=True, type=click.FloatRange(0), help="Least box side, pixels.")
@click.option("--person-folders", is_flag=True, help="Each folder shows one person: the table gets a person column.")
@click.option("--format", "format_", default="webp", show_default=True, type=click.Choice(["webp", "png"]))
@shared.device(what="Where the detector computes.")
@shared.reporting("photo")
def align(
    photos: tuple[Path, ...], out: Path, resolution: int, alignment: str, eye_distance: float, eye_y: float,
    detector: str, thresh: float | None, which: str, min_size: float, person_folders: bool, format_: str, device: str,
    report: Progress,
) -> tuple[shared.Summary, bool]:  # fmt: skip
    """Find the faces in PHOTOS (files, folders, zips, tars), turn them upright and write them to one set.

    A CSV beside the tar (in the folder: faces.csv) names the photo, box, score and alignment of each. Photos without a
    face are counted and skipped. Damaged ones are named, and make the exit code 3.
    """
    from ficgan.data.align import align_photos, find_photos
    from ficgan.faces import get_detector

    placed = _alignment(alignment, eye_distance, eye_y)
    found = find_photos(photos)
    finder = get_detector(detector, threshold=thresh, device=device)

    def on_photo(counts: AlignReport) -> None:
        report(counts.photos, len(found), f"{counts.written} faces, {len(counts.failed)} photos failed")

    done = align_photos(
        found, out, detector=finder, alignment=placed, resolution=resolution, every_face=which == "all",
        min_size=min_size, person_folders=person_folders, format=format_, on_photo=on_photo,
    )  # fmt: skip
    for _, reason in done.failed:
        report.error(reason)
    summary = {
        "out": str(out), "photos": done.photos, "written": done.written, "without_face": done.without_face,
        "too_small": done.too_small, "failed": len(done.failed), "detector": finder.name,
        "alignment": placed.to_dict(),
    }  # fmt: skip
    return summary, bool(done.failed)


@click.command(cls=DataCommand, context_settings=HELP)
@click.argument("config")
@shared.KEY_VALUES
@data_option
@shared.output("Folder of the run; the same folder resumes it.", kind=shared.PATH)
@shared.device("auto", "auto, cpu or cuda.")
@click.option("--start", type=shared.PATH, help="State of another run whose weights to begin from.")
@click.option("--labels", type=shared.PATH, help="Label CSV with a `split` column.")
@click.option("--split", help="Use only images of this split.")
@click.option("--max-seconds", type=float, help="Save and stop after so many seconds; the same command resumes.")
@click.option("--progress", type=click.Choice(["auto", "text", "none"]), default="auto", show_default=True)
@shared.dry_run("Check the configuration, print it and stop.")
@handle_errors
def train(
    config: str, overrides: tuple[str, ...], data: tuple[Path, ...], out: Path, dry_run: bool, **settings: Any
) -> None:
    """Train FICGAN with CONFIG (a name in configs/, such as tiny, or a YAML path) and OVERRIDES (key=value).

    The same command resumes an interrupted run. Several GPUs: torchrun --nproc-per-node N -m ficgan.cli.train …
    """
    from ficgan.config import load_config

    loaded = load_config(config, overrides)
    if dry_run:
        click.echo(loaded.model_dump_json(indent=2))
        return
    from ficgan.training import train as run

    click.echo(str(run(loaded, data, out, **settings)))


@click.command("train-verifier", context_settings=HELP)
@_FACES
@shared.output("Folder of the run; the same folder resumes it.", kind=shared.PATH)
@click.option("--labels", type=shared.PATH, help="CSV with file and person; else a folder per person.")
@click.option("--split", help="Use only images of this split of the labels.")
@click.option(
    "--resolution", default=128, show_default=True, type=click.IntRange(16), help="Side of the crops, pixels."
)
@shared.options(*_PLACEMENT)
@click.option("--steps", default=28_000, show_default=True, type=click.IntRange(1))
@click.option("--batch", default=128, show_default=True, type=click.IntRange(1), help="Images per step.")
@click.option("--lr", default=0.1, show_default=True, help="Learning rate of SGD at the start.")
@click.option("--held-out", default=0.1, show_default=True, help="Fraction of the people kept for measuring.")
@click.option("--width", default=64, show_default=True, type=click.IntRange(1), help="Channels of the first stage.")
@shared.options(shared.seed(), shared.device(what="cpu, cuda, cuda:1, …"))
@click.option("--save-every", default=1000, show_default=True, type=click.IntRange(1), help="Steps between saves.")
@click.option("--skip-damaged", is_flag=True, help="Leave damaged images out, and count them, instead of stopping.")
@shared.reporting("step")
def train_verifier(
    data: tuple[Path, ...], out: Path, labels: Path | None, split: str | None, resolution: int, alignment: str,
    eye_distance: float, eye_y: float, steps: int, batch: int, lr: float, held_out: float, width: int, seed: int,
    device: str, save_every: int, skip_damaged: bool, report: Progress,
) -> shared.Summary:  # fmt: skip
    """Train SphereFace-20 with its angular-margin loss on DATA: folders, zips or tars of aligned faces.

    The people come from --labels, or from one folder per person. OUT/verifier.safetensors is the network for
    `verifier.spec=sphereface20:PATH`. The same command resumes; Ctrl-C saves and exits with 130.
    """
    import torch

    from ficgan.data import check_alignment, open_faces
    from ficgan.errors import UsageError
    from ficgan.verification.train import VerifierTrainer, VerifierTraining

    if device.startswith("cuda") and not torch.cuda.is_available():
        raise UsageError(f"Device {device} was asked for, but there is no CUDA here; use --device cpu.")
    placed = _alignment(alignment, eye_distance, eye_y)
    channels = (width, 2 * width, 4 * width, 8 * width)
    config = VerifierTraining(
        steps=steps, batch=batch, learning_rate=lr, held_out=held_out, seed=seed, channels=channels,
        dimensions=8 * width,
    )  # fmt: skip
    faces = open_faces(data, resolution=resolution, labels=labels, split=split, skip_damaged=skip_damaged)
    check_alignment(faces, placed, "this command")
    trainer = VerifierTrainer(faces, alignment=placed, config=config, device=device)
    if (out / _STATE).exists():
        trainer.load_state(out / _STATE)
        report.info(f"Resumed at step {trainer.step} of {steps}.")
    trainer.load_images()
    first = trainer.step
    loss = _run(trainer, out, save_every, report)
    accuracy = trainer.measure()
    trainer.save_verifier(out / _NETWORK, accuracy)
    return {
        "verifier": str(out / _NETWORK), "steps": trainer.step, "trained_now": trainer.step - first, "loss": loss,
        "people": int(trainer.train_people.max()) + 1, "images": len(trainer.train_rows),
        "skipped": len(faces.skipped), "held_out": asdict(accuracy),
    }  # fmt: skip


def _run(trainer: VerifierTrainer, out: Path, save_every: int, report: Progress) -> float | None:
    loss, steps = None, trainer.config.steps
    with stop_asked() as stop:
        while trainer.step < steps and not stop.is_set():
            loss = trainer.advance()
            report(trainer.step, steps, f"loss {loss:.3f}")
            if trainer.step % save_every == 0 or trainer.step == steps or stop.is_set():
                trainer.save_state(out / _STATE)
            if trainer.step % save_every == 0 and not stop.is_set():
                reached = trainer.measure()
                report.info(
                    f"step {trainer.step} loss {loss:.3f} "
                    f"held-out accuracy {reached.accuracy:.3f} auc {reached.auc:.3f}"
                )
    if stop.is_set():
        trainer.save_state(out / _STATE)
        raise KeyboardInterrupt
    return loss


def _alignment(name: str, eye_distance: float, eye_y: float) -> Alignment:
    from ficgan.faces import Alignment

    return Alignment("ffhq") if name == "ffhq" else Alignment("template", eye_distance, eye_y)


@click.command("fit-appearance", context_settings=HELP)
@_FACES
@click.option("--labels", type=shared.PATH, help="CSV: file, person, gender, age, race.")
@click.option("--split", multiple=True, help="Use only images of this split; may be repeated.")
@click.option("--licence", default="", help="Name and licence of the data; stands in the model and in every audit.")
@click.option("--size", default=128, show_default=True, help="Side of the frame, pixels.")
@shared.output("Model to write (.safetensors).", kind=shared.PATH)
@click.option("--bank", type=shared.PATH, help="Write an identity bank of the same faces, too.")
@click.option("--detail", type=shared.PATH, help="Synthetic faces, 256², that lend pores and lashes to large faces.")
@shared.OVERWRITE
@shared.reporting("face")
def fit_appearance(
    data: tuple[Path, ...], labels: Path | None, split: tuple[str, ...], licence: str, size: int, out: Path,
    bank: Path | None, detail: Path | None, overwrite: bool, report: Progress,
) -> shared.Summary:  # fmt: skip
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

    shared.refuse_existing(out, bank, overwrite=overwrite)
    faces = open_faces(data, resolution=SIDE, labels=labels)
    check_alignment(faces, Alignment("canonical"), "this command")
    if split:
        if faces.labels is None or faces.labels.splits is None:
            raise UsageError("--split needs --labels with a split column")
        faces = faces.subset([i for i, name in enumerate(faces.labels.splits) if name in split])
    began = time.monotonic()
    mesh, config = MediaPipeMesh(), FitConfig(size=size)
    learnt = learn(faces, mesh, config, lambda stage, done, total: report(done, total, stage))
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
    done: shared.Summary = {"model": str(out), **record}
    if bank is not None:
        stored, _, info, _ = load_appearance(out)  # its numbers are rounded: the bank's codes are what it reads
        done["people"] = len(save_bank(bank, out, info, faces, learnt.codes(stored), licence, learnt.rows))
    return done


def write_bank(checkpoint: Path, faces: FaceData, out: Path, licence: str, device: str = "cpu") -> IdentityBank:
    """Encode the clear faces of a set with an appearance model and write the bank of its people."""
    from ficgan.cli.bank import save_bank
    from ficgan.faces import MediaPipeMesh
    from ficgan.frame.file import load_appearance
    from ficgan.frame.fit import FitConfig
    from ficgan.frame.learn import codes_of

    model, _, info, network = load_appearance(checkpoint)
    presence = info.training.get("fit", {}).get("presence", FitConfig().presence)
    with Progress(unit="face") as report:
        codes, rows = codes_of(
            model, faces, MediaPipeMesh(device), presence, network,
            lambda stage, done, total: report(done, total, stage),
        )  # fmt: skip
        if len(rows) < len(faces):
            report.info(f"{len(faces) - len(rows)} of {len(faces)} faces are not clear enough and left out.")
    return save_bank(out, checkpoint, info, faces, codes, licence, rows)


if __name__ == "__main__":
    train()
