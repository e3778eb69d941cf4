"""`ficgan align`, `train`, `train-verifier`, `fit-appearance` and `bank`: from photos to networks and their banks."""

from __future__ import annotations

import json
import re
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ficgan.cli import HELP
from ficgan.cli import _shared as shared
from ficgan.cli._console import Progress, handle_errors
from ficgan.errors import stop_asked

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from ficgan.data import FaceData
    from ficgan.data.align import AlignReport
    from ficgan.face_model import ModelInfo
    from ficgan.faces import Alignment
    from ficgan.identity import IdentityBank
    from ficgan.models import FICGAN
    from ficgan.verification.sphereface import VerifierTrainer, VerifierTraining

__all__ = ["align", "bank", "fit_appearance", "save_bank", "spread", "train", "train_verifier", "write_bank"]

_OVERRIDE = re.compile(r"[A-Za-z_][\w.]*=")
# Decoded pictures in memory: 200 MB at 256².
_AT_ONCE = 1024
_STATE, _NETWORK = "state.safetensors", "verifier.safetensors"
_FACES = click.argument("data", nargs=-1, required=True, type=shared.PATH)
_ALIGNMENT = click.option(
    "--alignment",
    metavar="template[:EYE_DISTANCE,EYE_Y]|ffhq",
    default="template",
    show_default=True,
    help="How crops lie: by a template of five points, whose eyes have this distance and height as shares of the side "
    "(0.37,0.31), or as FFHQ.",
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
    "--data",
    metavar="PATH...",
    multiple=True,
    required=True,
    type=shared.PATH,
    help="Folders, zips or tars of aligned faces, one or several.",
)


@click.command(context_settings=HELP)
@click.argument("photos", nargs=-1, required=True, type=shared.PATH)
@shared.output("A new .tar, or a new folder.", kind=shared.PATH)
@click.option("--resolution", default=256, show_default=True, type=click.IntRange(8, 4096), help="Side of the crops.")
@shared.options(_ALIGNMENT, shared.DETECTOR, shared.THRESHOLD)
@click.option("--faces", "which", default="largest", show_default=True, type=click.Choice(["largest", "all"]))
@click.option("--min-size", default=40.0, show_default=True, type=click.FloatRange(0), help="Least box side, pixels.")
@click.option("--person-folders", is_flag=True, help="Each folder shows one person: the table gets a person column.")
@click.option("--format", default="webp", show_default=True, type=click.Choice(["webp", "png"]))
@shared.device(what="Where the detector computes.")
@shared.reporting("photo")
def align(
    photos: tuple[Path, ...],
    out: Path,
    alignment: str,
    detector: str,
    thresh: float | None,
    device: str,
    which: str,
    report: Progress,
    **how: Any,
) -> tuple[shared.Summary, bool]:
    """Find the faces in PHOTOS (files, folders, zips, tars), turn them upright and write them to one set.

    A CSV beside the tar (in the folder: faces.csv) names the photo, box, score and alignment of each. Photos without a
    face are counted and skipped. Damaged ones are named, and make the exit code 3.
    """
    from ficgan.data.align import align_photos, find_photos
    from ficgan.faces import get_detector

    placed = _alignment(alignment)
    found = find_photos(photos)
    finder = get_detector(detector, threshold=thresh, device=device)

    def on_photo(counts: AlignReport) -> None:
        report(counts.photos, len(found), f"{counts.written} faces, {len(counts.failed)} photos failed")

    done = align_photos(
        found, out, detector=finder, alignment=placed, every_face=which == "all", on_photo=on_photo, **how
    )
    for _, reason in done.failed:
        report.error(reason)
    summary = {
        "out": str(out),
        **{name: getattr(done, name) for name in ("photos", "written", "without_face", "too_small")},
        "failed": len(done.failed),
        "detector": finder.name,
        "alignment": placed.to_dict(),
    }
    return summary, bool(done.failed)


@click.command(cls=DataCommand, context_settings=HELP)
@click.argument("config")
@shared.KEY_VALUES
@data_option
@shared.output("Folder of the run; the same folder resumes it.")
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
@shared.output("Folder of the run; the same folder resumes it.")
@click.option("--labels", type=shared.PATH, help="CSV with file and person; else a folder per person.")
@click.option("--split", help="Use only images of this split of the labels.")
@click.option(
    "--resolution", default=128, show_default=True, type=click.IntRange(16), help="Side of the crops, pixels."
)
@shared.options(_ALIGNMENT, shared.device(what="cpu, cuda, cuda:1, …"))
@click.option(
    "--set",
    "changes",
    multiple=True,
    metavar="KEY=VALUE",
    help="Of the training: steps, batch, learning_rate, held_out (the fraction of people kept for measuring), seed, "
    "channels (of the four stages, with commas), …; repeatable.  [default: the paper's]",
)
@click.option("--save-every", default=1000, show_default=True, type=click.IntRange(1), help="Steps between saves.")
@shared.reporting("step")
def train_verifier(
    data: tuple[Path, ...],
    out: Path,
    alignment: str,
    changes: tuple[str, ...],
    device: str,
    save_every: int,
    report: Progress,
    **read: Any,
) -> shared.Summary:
    """Train SphereFace-20 with its angular-margin loss on DATA: folders, zips or tars of aligned faces.

    The people come from --labels, or from one folder per person. OUT/verifier.safetensors is the network for
    `verifier.spec=sphereface20:PATH`. The same command resumes; Ctrl-C saves and exits with 130.
    """
    import torch

    from ficgan.data import check_alignment, open_faces
    from ficgan.errors import UsageError
    from ficgan.verification.sphereface import VerifierTrainer

    if device.startswith("cuda") and not torch.cuda.is_available():
        raise UsageError(f"Device {device} was asked for, but there is no CUDA here; use --device cpu.")
    placed, config = _alignment(alignment), _training(changes)
    faces = open_faces(data, **read)
    check_alignment(faces, placed, "this command")
    trainer = VerifierTrainer(faces, alignment=placed, config=config, device=device)
    if (out / _STATE).exists():
        trainer.load_state(out / _STATE)
        report.info(f"Resumed at step {trainer.step} of {config.steps}.")
    trainer.load_images()
    first = trainer.step
    loss = _run(trainer, out, save_every, report)
    accuracy = trainer.measure()
    trainer.save_verifier(out / _NETWORK, accuracy)
    return {
        "verifier": str(out / _NETWORK),
        "steps": trainer.step,
        "trained_now": trainer.step - first,
        "loss": loss,
        "people": int(trainer.train_people.max()) + 1,
        "images": len(trainer.train_rows),
        "held_out": asdict(accuracy),
    }


def _training(changes: tuple[str, ...]) -> VerifierTraining:
    """The paper's numbers with some changed; `dimensions` are the channels of the last stage."""
    from ficgan.errors import UsageError
    from ficgan.verification.sphereface import VerifierTraining

    usual, given = VerifierTraining(), dict[str, Any]()
    for change in changes:
        key, _, text = change.partition("=")
        before = getattr(usual, key, None)
        try:
            kind: Any = type(before)
            given[key] = tuple(map(int, text.split(","))) if kind is tuple else kind(text)
        except (TypeError, ValueError):
            raise UsageError(f"--set {change}: is not KEY=VALUE of {', '.join(asdict(usual))}") from None
    if "channels" in given:
        given.setdefault("dimensions", given["channels"][-1])
    return replace(usual, **given)


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


def _alignment(text: str) -> Alignment:
    from ficgan.errors import UsageError
    from ficgan.faces import Alignment

    name, _, numbers = text.partition(":")
    try:
        return Alignment(name, *map(float, filter(None, numbers.split(","))))  # type: ignore[arg-type]
    except (TypeError, ValueError) as error:
        raise UsageError(f"--alignment {text}: is no template[:EYE_DISTANCE,EYE_Y] and not ffhq ({error})") from error


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
    data: tuple[Path, ...],
    labels: Path | None,
    split: tuple[str, ...],
    licence: str,
    size: int,
    out: Path,
    bank: Path | None,
    detail: Path | None,
    overwrite: bool,
    report: Progress,
) -> shared.Summary:
    """Fit the linear appearance model to DATA: folders, zips or tars of faces aligned by `ficgan align`, 128².

    Reading the meshes of 20,000 faces takes minutes. The labels say which people are men or women and how old they
    are, so that a new face can keep both.
    """
    from ficgan.data import check_alignment, check_size, open_faces
    from ficgan.errors import UsageError
    from ficgan.face_model import ModelInfo
    from ficgan.faces import Alignment, MediaPipeMesh
    from ficgan.frame.file import FrameConfig, load_appearance, save_appearance
    from ficgan.frame.fit import SIDE, FitConfig, learn, lend

    shared.refuse_existing(out, bank, overwrite=overwrite)
    faces = open_faces(data, resolution=SIDE, labels=labels)
    check_alignment(faces, Alignment("canonical"), "this command")
    if split:
        if faces.labels is None or faces.labels.splits is None:
            raise UsageError("--split needs --labels with a split column")
        faces = faces.subset([i for i, name in enumerate(faces.labels.splits) if name in split])
    fine = None if detail is None else open_faces([detail], resolution=2 * SIDE)
    if fine is not None:
        check_size(fine)
    began = time.monotonic()
    mesh, config = MediaPipeMesh(), FitConfig(size=size)
    learnt = learn(faces, mesh, config, lambda stage, done, total: report(done, total, stage))
    model, record = learnt.model, learnt.record
    if fine is not None:
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
        made = save_bank(bank, out, info, faces, learnt.codes(stored), licence, learnt.rows)
        done["people"] = len(show_kinds(made, bank, out, faces, report))
    return done


@click.group(context_settings=HELP)
def bank() -> None:
    """Identity banks: the codes that k-same averages."""


@bank.command(cls=DataCommand, context_settings=HELP)
@click.argument("checkpoint", type=shared.PATH)
@data_option
@click.option("--labels", type=shared.PATH, help="CSV: file, person (or identity), attributes.")
@click.option("--split", help="Use only images of this split.")
@click.option("--licence", default="", help="Licence of the data.  [default: the model's, if of its training data]")
@shared.output("Bank to write (.safetensors).", kind=shared.PATH)
@shared.options(shared.device(what="cpu, cuda or cuda:N."), shared.OVERWRITE)
@shared.reporting("face")
def build(
    checkpoint: Path,
    data: tuple[Path, ...],
    labels: Path | None,
    split: str | None,
    licence: str,
    out: Path,
    device: str,
    overwrite: bool,
    report: Progress,
) -> shared.Summary:
    """Encode the people of DATA with CHECKPOINT: one code per person, so that k counts people.

    Who is who comes from --labels; without it, and for people it does not know, each picture counts as a person.
    """
    from ficgan.data import check_alignment, open_faces
    from ficgan.face_model import ModelInfo
    from ficgan.faces import Alignment
    from ficgan.files import file_header
    from ficgan.frame.fit import SIDE

    shared.refuse_existing(out, overwrite=overwrite)
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
        made = write_bank(checkpoint, faces, out, licence, device, report)
    else:
        made = save_bank(out, checkpoint, info, faces, _encoded(network, faces, device, report), licence)
    if not made.provenance["identities_known"]:
        report.info("Without identities k counts pictures, not people; --labels can name who is who.")
    return {
        "bank": str(out),
        "people": len(made),
        "images": made.provenance["images"],
        "digest": made.digest,
        "images_of_unknown_people": made.provenance["images_of_unknown_people"],
    }


def _encoded(network: FICGAN, faces: FaceData, device: str, report: Progress) -> NDArray[np.float32]:
    import numpy as np

    from ficgan.models.io import encode_faces

    codes = np.empty((len(faces), network.config.w_dim), np.float32)
    for begin in range(0, len(faces), _AT_ONCE):
        end = min(begin + _AT_ONCE, len(faces))
        codes[begin:end] = encode_faces(network, faces.subset(range(begin, end)).resident(), device=device)
        report(end, len(faces))
    return codes


@bank.command(context_settings=HELP)
@click.argument("path", required=False, type=shared.PATH)
@handle_errors
def show(path: Path | None) -> None:
    """People, attributes and origin of the bank PATH, or of the embedded one, as JSON."""
    from ficgan import pretrained
    from ficgan.errors import FicganError
    from ficgan.identity import IdentityBank

    try:
        loaded = IdentityBank.load(path if path is not None else pretrained.path("bank"))
    except (FileNotFoundError, KeyError):
        raise FicganError("this copy of ficgan holds no embedded bank; name a file") from None
    shown = {
        "people": len(loaded),
        "digest": loaded.digest,
        "attributes": loaded.counts,
        "provenance": loaded.provenance,
    }
    click.echo(json.dumps(shown, indent=2, ensure_ascii=False))


def save_bank(
    out: Path,
    checkpoint: Path,
    info: ModelInfo,
    faces: FaceData,
    codes: NDArray[Any],
    licence: str,
    rows: NDArray[np.int64] | None = None,
) -> IdentityBank:
    """One code per person of a set, from codes float [N,D], in a file that says where they come from.

    Args:
        checkpoint, info: the model that read the codes, and what its header says.
        licence: of the set; "": the model's where the set is what it was made from.
        rows: which of the set's images were read; None: all.
    """
    from ficgan.files import file_digest
    from ficgan.identity import IdentityBank

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


def write_bank(
    checkpoint: Path, faces: FaceData, out: Path, licence: str, device: str = "cpu", report: Progress | None = None
) -> IdentityBank:
    """Encode the clear faces of a set with an appearance model and write the bank of its people."""
    from ficgan.faces import MediaPipeMesh
    from ficgan.frame.file import load_appearance
    from ficgan.frame.fit import FitConfig, codes_of

    report = report or Progress("none", quiet=True)
    model, _, info, network = load_appearance(checkpoint)
    presence = info.training.get("fit", {}).get("presence", FitConfig().presence)
    codes, rows = codes_of(
        model, faces, MediaPipeMesh(device), presence, network, lambda stage, done, total: report(done, total, stage)
    )
    if len(rows) < len(faces):
        report.info(f"{len(faces) - len(rows)} of {len(faces)} faces are not clear enough and left out.")
    made = save_bank(out, checkpoint, info, faces, codes, licence, rows)
    return show_kinds(made, out, checkpoint, faces, report)


def show_kinds(bank: IdentityBank, out: Path, checkpoint: Path, faces: FaceData, report: Progress) -> IdentityBank:
    """A bank of a model in the frame that knows how its new faces show their kind, written to `out`."""
    from ficgan.frame.file import load_appearance
    from ficgan.frame_model import FrameModel
    from ficgan.training.frame_faces import MOST_K, learn_showing

    if bank.kinds is None:
        return bank
    model, config, _, network = load_appearance(checkpoint)
    k = max(2, min(MOST_K, len(bank) // 8))
    makes = FrameModel(model, config, replace(bank, showing=None), network=network, k=k, seed=0)
    showing = learn_showing(makes, faces, lambda stage, done, total: report(done, total, stage))
    if showing is None:
        report.info("Too few clear faces to learn how new ones show their kind: they show it by their group's mean.")
        return bank
    return replace(bank, showing=showing).save(out)


if __name__ == "__main__":
    train()
