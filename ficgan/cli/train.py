"""`ficgan align`, `train`, `train-verifier`, `train-attributes`, `fit-appearance` and `bank`: from photos to networks
and their banks.
"""

from __future__ import annotations

import json
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ficgan import pretrained
from ficgan.cli import _options as opts
from ficgan.cli import main as shared
from ficgan.cli.main import Console, Outcome, Summary, count, flag, handle_errors, many, named, path, refuse_existing
from ficgan.device import resolve_device
from ficgan.errors import UsageError, stop_asked

if TYPE_CHECKING:
    from ficgan.faces import Alignment
    from ficgan.verification.sphereface import VerifierTraining

_FACES = click.argument("data", nargs=-1, required=True, type=shared.PATH)
_DATA = path("--data", "Folder, zip or tar of aligned faces; repeatable.", multiple=True, required=True)
_HOW = "How crops lie: by a template, its eyes' distance and height as shares of the side (0.37,0.31), or as FFHQ."
_ALIGNMENT = named("--alignment", _HOW, metavar="template[:EYE_DISTANCE,EYE_Y]|ffhq", default="template")
_STATE, _NETWORK = "state.safetensors", "verifier.safetensors"


@click.command()
@click.argument("photos", nargs=-1, required=True, type=shared.PATH)
@shared.output("A new .tar, or a new folder.", kind=shared.PATH)
@count("--resolution", 256, "Side of the crops.", low=8)
@shared.options(_ALIGNMENT, opts.DETECTOR, opts.THRESHOLD)
@named("--faces", "Of each photo.", "which", default="largest", type=click.Choice(["largest", "all"]))
@named("--min-size", "Least box side, pixels.", default=40.0, type=click.FloatRange(0))
@flag("--person-folders", "Each folder shows one person: the table gets a person column.")
@named("--format", "Of the crops.", default="webp", type=click.Choice(["webp", "png"]))
@opts.DEVICE
@shared.reporting("photo")
def align(photos: tuple[Path, ...], out: Path, which: str, report: Console, **how: Any) -> Outcome:
    """Find the faces in PHOTOS (files, folders, zips, tars), turn them upright and write them to one set.

    A CSV beside the tar (in the folder: faces.csv) names the photo, box, score and alignment of each. Exit code 3: some
    photo is damaged.
    """
    from ficgan.data.align import AlignReport, align_photos, find_photos
    from ficgan.faces import get_detector

    placed, found = _alignment(how.pop("alignment")), find_photos(photos)
    finder = get_detector(how.pop("detector"), threshold=how.pop("threshold"), device=how.pop("device"))

    def on_photo(counts: AlignReport) -> None:
        report(counts.photos, len(found), f"{counts.written} faces, {len(counts.failed)} photos failed")

    how |= {"every_face": which == "all", "on_photo": on_photo}
    done = align_photos(found, out, detector=finder, alignment=placed, **how)
    counts = {name: getattr(done, name) for name in ("photos", "written", "without_face", "too_small")}
    made = {"out": str(out), **counts, "failed": len(done.failed), "detector": finder.name}
    return {**made, "alignment": placed.to_dict()}, [why for _, why in done.failed]


def _alignment(text: str) -> Alignment:
    from ficgan.faces import Alignment

    name, _, numbers = text.partition(":")
    try:
        return Alignment(name, *map(float, filter(None, numbers.split(","))))  # type: ignore[arg-type]
    except (TypeError, ValueError) as error:
        raise UsageError(f"--alignment {text}: is no template[:EYE_DISTANCE,EYE_Y] and not ffhq ({error})") from error


@click.command(context_settings=shared.HELP)
@click.argument("config")
@shared.KEY_VALUES
@shared.options(_DATA, shared.output("Folder of the run; the same folder resumes it."), shared.FAST_DEVICE)
@path("--start", "State of another run whose weights to begin from.")
@shared.options(shared.LABELS, shared.SPLIT)
@named("--progress", "How the log is shown.", type=click.Choice(["auto", "text", "none"]), default="auto")
@shared.DRY_RUN
@handle_errors
def train(config: str, overrides: tuple[str, ...], data: tuple[Path, ...], out: Path, **settings: Any) -> None:
    """Train FICGAN with CONFIG (a name in configs/, such as tiny, or a YAML path) and OVERRIDES (key=value).

    The same command resumes an interrupted run. Several GPUs: torchrun --nproc-per-node N -m ficgan.cli.train …
    """
    from ficgan.config import load_config

    loaded = load_config(config, overrides)
    if settings.pop("dry_run"):
        click.echo(loaded.model_dump_json(indent=2))
        return
    from ficgan.training import train as run

    click.echo(str(run(loaded, data, out, **settings)))


@click.command()
@_FACES
@shared.output("Folder of the run; the same folder resumes it.")
@shared.options(shared.LABELS, shared.SPLIT, count("--resolution", 128, "Side of the crops, pixels.", low=16))
@shared.options(_ALIGNMENT, opts.DEVICE)
@many("--set", "Of the training: steps, batch, learning_rate, held_out, seed, channels", "changes", metavar="KEY=VALUE")
@count("--save-every", 1000, "Steps between saves.")
@shared.reporting("step")
def train_verifier(data: tuple[Path, ...], out: Path, report: Console, **read: Any) -> Summary:
    """Train SphereFace-20 with its angular-margin loss on DATA: folders, zips or tars of aligned faces.

    The people come from --labels, or from one folder per person. OUT/verifier.safetensors is the network for
    `verifier.spec=sphereface20:PATH`. The same command resumes.
    """
    from ficgan.data import check_alignment, open_faces
    from ficgan.verification.sphereface import VerifierTrainer

    placed, config = _alignment(read.pop("alignment")), _training(read.pop("changes"))
    device, save_every = resolve_device(read.pop("device")), read.pop("save_every")
    faces = open_faces(data, **read)
    check_alignment(faces, placed, "this command")
    trainer = VerifierTrainer(faces, alignment=placed, config=config, device=device)
    if (out / _STATE).exists():
        trainer.load_state(out / _STATE)
        report.info(f"Resumed at step {trainer.step} of {config.steps}.")
    first, loss = trainer.step, None
    with stop_asked() as stop:
        while trainer.step < config.steps and not stop.is_set():
            loss = trainer.advance()
            report(trainer.step, config.steps, f"loss {loss:.3f}")
            if trainer.step % save_every == 0 or trainer.step == config.steps or stop.is_set():
                trainer.save_state(out / _STATE)
    if stop.is_set():
        raise KeyboardInterrupt
    accuracy = trainer.measure()
    trainer.save_verifier(out / _NETWORK, accuracy)
    trained = {"verifier": str(out / _NETWORK), "steps": trainer.step, "trained_now": trainer.step - first}
    learnt = {"loss": loss, "people": int(trainer.train_people.max()) + 1, "images": len(trainer.train_rows)}
    return {**trained, **learnt, "held_out": asdict(accuracy)}


def _training(changes: tuple[str, ...]) -> VerifierTraining:
    """The paper's numbers with some changed; `dimensions` are the channels of the last stage."""
    from ficgan.verification.sphereface import VerifierTraining

    usual, given = VerifierTraining(), dict[str, Any]()
    for change in changes:
        key, _, text = change.partition("=")
        try:
            kind: Any = type(getattr(usual, key, None))
            given[key] = tuple(map(int, text.split(","))) if kind is tuple else kind(text)
        except (TypeError, ValueError):
            raise UsageError(f"--set {change}: is not KEY=VALUE of {', '.join(asdict(usual))}") from None
    if "channels" in given:
        given.setdefault("dimensions", given["channels"][-1])
    return replace(usual, **given)


@click.command("train-attributes")
@click.argument("data", type=shared.PATH)
@shared.output("File of the classifier (.safetensors).", kind=shared.NEW_FILE)
@shared.options(shared.LABELS, shared.LAYOUT, opts.DETECTOR)
@shared.options(shared.SEED, opts.DEVICE, shared.OVERWRITE)
@shared.reporting("step")
def train_attributes(data: Path, out: Path, overwrite: bool, report: Console, **how: Any) -> Summary:
    """Train a classifier of face attributes on DATA, such as CelebA: a judge of others' images.

    DATA: folder, zip or tar of faces with people and 0/1 attributes. A fifth of the people are held out; the figures on
    them are printed as JSON. It goes into the `attributes:` of a matrix, or as attributes.safetensors into a folder.
    """
    from ficgan.faces import get_detector
    from ficgan.lab.attributes import train_attributes as train
    from ficgan.lab.sets import Quick, open_set, prepare

    refuse_existing(out, overwrite=overwrite)
    faces = open_set(data, layout=how.pop("layout"), labels=how.pop("labels"))
    if not faces.attributes:
        raise UsageError(f"{data} has no attributes; give --labels with columns of 0 and 1")
    prepared = prepare(faces, detector=Quick(get_detector(how.pop("detector"))), progress=report)
    source = {"set": faces.name, "digest": faces.digest}
    return train(prepared.faces, prepared.attributes, out, source=source, progress=report, **how)


@click.command("fit-appearance")
@_FACES
@shared.options(shared.LABELS, shared.SPLIT, shared.LICENCE)
@count("--size", 128, "Side of the frame, pixels.", low=32)
@shared.output("Model to write (.safetensors).", kind=shared.NEW_FILE)
@path("--bank", "Write an identity bank of the same faces, too.")
@path("--detail", "Synthetic faces, 256², that lend pores and lashes.")
@shared.OVERWRITE
@shared.reporting("face")
def fit_appearance(data: tuple[Path, ...], out: Path, bank: Path | None, report: Console, **given: Any) -> Summary:
    """Fit the linear appearance model to DATA: folders, zips or tars of faces aligned by `ficgan align`, 128².

    The labels say which people are men or women and how old they are, so that a new face can keep both.
    """
    from ficgan.arrays import ModelInfo
    from ficgan.data import check_alignment, check_size, open_faces
    from ficgan.faces import Alignment, MediaPipeMesh
    from ficgan.frame.file import FrameConfig, load_appearance, save_appearance
    from ficgan.frame.fit import FitConfig
    from ficgan.frame.learn import SIDE, learn, lend

    refuse_existing(out, bank, overwrite=given["overwrite"])
    faces = open_faces(data, resolution=SIDE, labels=given["labels"], split=given["split"])
    check_alignment(faces, Alignment("canonical"), "this command")
    fine = None if given["detail"] is None else open_faces([given["detail"]], resolution=2 * SIDE)
    if fine is not None:
        check_size(fine)
    began = time.monotonic()
    mesh, config = MediaPipeMesh(), FitConfig(size=given["size"])
    learnt = learn(faces, mesh, config, report)
    model, record = learnt.model, learnt.record
    if fine is not None:
        model, record["lenders"] = lend(model, fine, mesh)
        record["detail_fingerprint"] = fine.fingerprint
    about = {"licence": given["licence"], "fingerprint": record["fingerprint"], "images": record["images"]}
    training = {**record, "seconds": round(time.monotonic() - began, 1), "fit": vars(config)}
    info = ModelInfo({"kind": "canonical"}, about, training)
    save_appearance(out, model, FrameConfig(), info, overwrite=given["overwrite"])
    done: Summary = {"model": str(out), **record}
    if bank is not None:
        from ficgan.training.frame_faces import save_bank, with_showing

        stored = load_appearance(out)[0]  # its numbers are rounded: the bank's codes are what it reads
        made = save_bank(bank, out, faces, learnt.codes(stored), given["licence"], learnt.rows)
        done["people"] = len(with_showing(made, bank, out, faces, report))
    return done


@click.group()
def bank() -> None:
    """Identity banks: the codes that k-same averages."""


@bank.command()
@click.argument("checkpoint", type=shared.PATH)
@shared.options(_DATA, shared.LABELS, shared.SPLIT, shared.LICENCE)
@shared.output("Bank to write (.safetensors).", kind=shared.NEW_FILE)
@shared.options(opts.DEVICE, shared.OVERWRITE)
@shared.reporting("face")
def build(checkpoint: Path, data: tuple[Path, ...], out: Path, overwrite: bool, report: Console, **how: Any) -> Summary:
    """Encode the people of DATA with CHECKPOINT: one code per person, so that k counts people.

    Who is who comes from --labels; without it, and for people it does not know, each picture counts as a person.
    """
    from ficgan.arrays import file_header
    from ficgan.data import open_faces
    from ficgan.frame.learn import SIDE
    from ficgan.training.frame_faces import build_bank

    refuse_existing(out, overwrite=overwrite)
    kind, header = file_header(checkpoint)
    resolution = header["model"]["resolution"] if kind == "model" else SIDE
    faces = open_faces(data, resolution=resolution, labels=how.pop("labels"), split=how.pop("split"))
    made = build_bank(checkpoint, faces, out, progress=report, **how)
    facts = made.provenance
    if facts["images"] < len(faces):
        report.info(f"{len(faces) - facts['images']} of {len(faces)} faces are not clear enough and left out.")
    if made.kinds is not None and made.showing is None:
        report.info("Too few clear faces to learn how new ones show their kind: they show it by their group's mean.")
    if not facts["identities_known"]:
        report.info("Without identities k counts pictures, not people; --labels can name who is who.")
    counts = {name: facts[name] for name in ("images", "images_of_unknown_people")}
    return {"bank": str(out), "people": len(made), "digest": made.digest, **counts}


@bank.command()
@click.argument("file", required=False, type=shared.PATH)
@handle_errors
def show(file: Path | None) -> None:
    """People, attributes and origin of the bank FILE, or of the embedded one, as JSON."""
    from ficgan.identity import IdentityBank

    loaded = IdentityBank.load(file or pretrained.path("bank"))
    shown = {"people": len(loaded), "digest": loaded.digest}
    shown |= {"attributes": loaded.counts, "provenance": loaded.provenance}
    click.echo(json.dumps(shown, indent=2, ensure_ascii=False))


if __name__ == "__main__":
    train()
