"""`ficgan train-verifier`: train the face-verification network V from data alone."""

from __future__ import annotations

import json
import signal
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ficgan.cli._errors import handle_errors

if TYPE_CHECKING:
    from ficgan.verification.train import VerifierTrainer

_STATE, _NETWORK = "state.safetensors", "verifier.safetensors"


@click.command("train-verifier", context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("data", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "-o", "--out", required=True, type=click.Path(path_type=Path), help="Folder of the run; resumed if there."
)
@click.option("--labels", type=click.Path(path_type=Path), help="CSV with file and person; else a folder per person.")
@click.option("--split", help="Use only images of this split of the labels.")
@click.option(
    "--resolution", default=128, show_default=True, type=click.IntRange(16), help="Side of the crops, pixels."
)
@click.option("--alignment", default="template", show_default=True, type=click.Choice(["template", "ffhq"]))
@click.option("--eye-distance", default=0.37, show_default=True, help="Template: eye distance / side of the crops.")
@click.option("--eye-y", default=0.31, show_default=True, help="Template: height of the eyes / side of the crops.")
@click.option("--steps", default=28_000, show_default=True, type=click.IntRange(1))
@click.option("--batch", default=128, show_default=True, type=click.IntRange(1), help="Images per step.")
@click.option("--lr", default=0.1, show_default=True, help="Learning rate of SGD at the start.")
@click.option("--held-out", default=0.1, show_default=True, help="Fraction of the people kept for measuring.")
@click.option("--width", default=64, show_default=True, type=click.IntRange(1), help="Channels of the first stage.")
@click.option("--seed", default=0, show_default=True, type=click.IntRange(0))
@click.option("--device", default="cpu", show_default=True, help="cpu, cuda, cuda:1, …")
@click.option("--save-every", default=1000, show_default=True, type=click.IntRange(1), help="Steps between saves.")
@click.option("--skip-damaged", is_flag=True, help="Leave damaged images out, and count them, instead of stopping.")
@handle_errors
def train_verifier(
    data: tuple[Path, ...],
    out: Path,
    labels: Path | None,
    split: str | None,
    resolution: int,
    alignment: str,
    eye_distance: float,
    eye_y: float,
    steps: int,
    batch: int,
    lr: float,
    held_out: float,
    width: int,
    seed: int,
    device: str,
    save_every: int,
    skip_damaged: bool,
) -> None:
    """Train SphereFace-20 with its angular-margin loss on DATA: folders, zips or tars of aligned faces.

    The people come from --labels, or from one folder per person. OUT/verifier.safetensors is the network for
    `verifier.spec=sphereface20:PATH`; the same command again resumes. Ctrl-C saves and exits 130.
    """
    import torch

    from ficgan.data import check_alignment, open_faces
    from ficgan.errors import UsageError
    from ficgan.faces.alignment import Alignment
    from ficgan.verification.train import VerifierTrainer, VerifierTraining

    if device.startswith("cuda") and not torch.cuda.is_available():
        raise UsageError(f"Device {device} was asked for, but there is no CUDA here; use --device cpu.")
    placed = Alignment("ffhq") if alignment == "ffhq" else Alignment("template", eye_distance, eye_y)
    channels = (width, 2 * width, 4 * width, 8 * width)
    config = VerifierTraining(
        steps=steps,
        batch=batch,
        learning_rate=lr,
        held_out=held_out,
        seed=seed,
        channels=channels,
        dimensions=8 * width,
    )
    faces = open_faces(data, resolution=resolution, labels=labels, split=split, skip_damaged=skip_damaged)
    check_alignment(faces, placed, "this command")
    trainer = VerifierTrainer(faces, alignment=placed, config=config, device=device)
    if (out / _STATE).exists():
        trainer.load_state(out / _STATE)
        click.echo(f"Resumed at step {trainer.step} of {steps}.", err=True)
    trainer.load_images()
    began, first = time.monotonic(), trainer.step
    loss = _run(trainer, out, save_every)
    accuracy = trainer.measure()
    trainer.save_verifier(out / _NETWORK, accuracy)
    seconds = time.monotonic() - began
    done = {"verifier": str(out / _NETWORK), "steps": trainer.step, "trained_now": trainer.step - first, "loss": loss}
    people = int(trainer.train_people.max()) + 1
    counts = {"people": people, "images": len(trainer.train_rows), "skipped": len(faces.skipped)}
    click.echo(json.dumps({**done, **counts, "held_out": asdict(accuracy), "seconds": round(seconds, 1)}))


def _run(trainer: VerifierTrainer, out: Path, save_every: int) -> float | None:
    """Train to the end, saving on the way; on Ctrl-C or SIGTERM finish the step, save, and pass the interrupt on."""
    from tqdm import tqdm

    stop = False

    def ask_to_stop(signum: int, frame: object) -> None:
        nonlocal stop
        stop = True

    loss, steps = None, trainer.config.steps
    previous = {number: signal.signal(number, ask_to_stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        bar = tqdm(total=steps, initial=trainer.step, unit="step", file=sys.stderr, disable=not sys.stderr.isatty())
        with bar:
            while trainer.step < steps and not stop:
                loss = trainer.advance()
                bar.update()
                bar.set_postfix(loss=f"{loss:.3f}", refresh=False)
                if trainer.step % save_every == 0 or trainer.step == steps or stop:
                    trainer.save_state(out / _STATE)
                if trainer.step % save_every == 0 and not stop:
                    reached = trainer.measure()
                    bar.write(
                        f"step {trainer.step} loss {loss:.3f} "
                        f"held-out accuracy {reached.accuracy:.3f} auc {reached.auc:.3f}",
                        file=sys.stderr,
                    )
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
    if stop:
        trainer.save_state(out / _STATE)
        raise KeyboardInterrupt
    return loss
