"""`ficgan-deid`: replace the faces in photos by k-anonymous ones."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import click
import numpy as np
from numpy.typing import NDArray

from ficgan import __version__
from ficgan.cli._deid_run import Run, RunOptions
from ficgan.cli._errors import EXIT_SOME_FAILED, handle_errors
from ficgan.cli._params import Direction, Diversity, Finite, Pair
from ficgan.cli._plan import DEFAULT_SUFFIX, make_plan
from ficgan.cli._progress import MODES, Mode, Progress
from ficgan.errors import UsageError
from ficgan.images import MAX_PIXELS, read_image
from ficgan.precision import PRECISIONS

__all__ = ["Engine", "deid", "make_engine"]

REVERSIBLE = ("blur", "mosaic")


class Engine(Protocol):
    """What the command needs of a `Deidentifier`."""

    def __call__(self, image: NDArray[np.uint8], *, key: str = "") -> Any: ...


def make_engine(**settings: Any) -> Engine:
    """The one place where the command meets the model; everything heavy is imported here."""
    from ficgan.deidentify import Deidentifier

    return Deidentifier.from_pretrained(**settings)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("inputs", metavar="INPUT...", nargs=-1, required=True, type=click.Path())
@click.option(
    "-o",
    "--output",
    "out",
    metavar="OUT",
    type=click.Path(),
    help="Folder for the results (trees are mirrored, names stay), or a file for a single input.  "
    f"[default: <stem>{DEFAULT_SUFFIX}<ext> beside each input]",
)
@click.option(
    "--k",
    type=click.IntRange(min=2),
    default=3000,
    show_default=True,
    help="Number of people whose identity codes are averaged; small groups of --attributes need a smaller k.",
)
@click.option(
    "--layer",
    metavar="I",
    type=click.IntRange(min=0),
    default=None,
    help="Style layers 1…I keep the source's code, I+1…L take the k-same code: 0 strongest, L−1 weakest. "
    "L = 8 for the embedded model, so that 4 keeps half of the layers; 10 and 12 for 128 and 256 px.  [default: 4]",
)
@click.option(
    "--layers",
    "band",
    metavar="FIRST-LAST",
    type=Pair("FIRST-LAST", "-"),
    help="Put the k-same code into these style layers only, in place of --layer.",
)
@click.option(
    "--alpha",
    type=Finite(min=0),
    default=0.5,
    show_default=True,
    help="Share of the exemplar: 0 the k-same face; 1 the exemplar itself, which is a swap and not anonymous.",
)
@click.option(
    "--diversity",
    "psi",
    type=Diversity(),
    default="auto",
    show_default=True,
    help="ψ of the variance-restored mean: 0 the plain mean; auto: 0 for a person alone, 0.6 in groups.",
)
@click.option(
    "--seed",
    type=click.IntRange(min=0),
    help="Same seed, same photo, same faces; stated in the audit only as a commitment.  [default: random, not kept]",
)
@click.option(
    "--attributes",
    metavar="LIST",
    help="Average only people with these attributes (-NAME: without), such as 'Female' or, with --k 500, "
    "'East Asian,-Male'. `ficgan bank show` lists them with their counts; k = 3000 fits large groups only.",
)
@click.option(
    "--add",
    "directions",
    type=Direction(),
    multiple=True,
    help="Add an attribute's direction, such as Female=0.7 or 60-69=1; may be repeated.",
)
@click.option(
    "--exemplar", metavar="FILE", type=click.Path(), help="A face photo of yours to move the identity towards."
)
@click.option("--swap", is_flag=True, help="Use the exemplar's identity in place of the k-same one.")
@click.option(
    "--mode",
    type=click.Choice(["ficgan", "blur", "mosaic", "solid"]),
    default="ficgan",
    show_default=True,
    help="What takes a face's place; blur and mosaic can be reversed.",
)
@click.option("-t", "--thresh", type=Finite(0, 1), help="Detection threshold, 0 to 1.  [default: the detector's]")
@click.option(
    "--mask-scale",
    type=Finite(min=0, min_open=True),
    default=1.0,
    show_default=True,
    help="Size of the replaced region, as a multiple of the face crop.",
)
@click.option(
    "--scale", metavar="WxH", type=Pair("WxH", "x"), help="Detect faces on a copy that fits this size, in px."
)
@click.option("--detector", default="auto", show_default=True, help="auto, insightface, yunet, centerface or dlib.")
@click.option(
    "--recognizer", default="auto", show_default=True, help="Checks the result: auto, dlib, insightface or onnx:PATH."
)
@click.option(
    "--verify/--no-verify",
    default=True,
    show_default=True,
    help="Re-read each new face; one that still matches its source is retried, then masked.",
)
@click.option("--require-face", is_flag=True, help="An image without a face is a failure and is not written.")
@click.option(
    "-m",
    "--keep-metadata",
    is_flag=True,
    help="Keep EXIF and XMP, with camera, time, place, captions and copyright. Previews, names of people, authors and "
    "owners, keywords and serial numbers are left out as far as their tags are known.",
)
@click.option(
    "--tag/--no-tag", default=True, show_default=True, help="Mark results as synthetic media (XMP DigitalSourceType)."
)
@click.option(
    "--sidecar/--no-sidecar",
    default=True,
    show_default=True,
    help="Write <result>.json with the audit beside each result.",
)
@click.option("--recursive/--no-recursive", default=True, show_default=True, help="Descend into subfolders.")
@click.option("--suffix", help=f"Added to the stem of each result.  [default: {DEFAULT_SUFFIX}; none with -o]")
@click.option("--overwrite", is_flag=True, help="Replace existing results, or the inputs themselves.")
@click.option("--dry-run", is_flag=True, help="Say what would be written; load no model, write nothing.")
@click.option("--device", default="cpu", show_default=True, help="cpu, cuda, cuda:N or auto.")
@click.option(
    "--precision",
    type=click.Choice(PRECISIONS),
    default="auto",
    show_default=True,
    help="Of the networks; auto: bfloat16 where this machine is faster in it.",
)
@click.option(
    "--compile", "compile_", is_flag=True, help="Compile the networks first (a minute or more); pays over many faces."
)
@click.option("--checkpoint", metavar="FILE", type=click.Path(), help="Model.  [default: the embedded one]")
@click.option("--bank", metavar="FILE", type=click.Path(), help="Identity bank.  [default: the embedded one]")
@click.option(
    "--max-megapixels",
    type=Finite(min=0, min_open=True),
    default=MAX_PIXELS / 1e6,
    show_default=True,
    help="Larger images are refused without being decoded.",
)
@click.option(
    "--progress",
    type=click.Choice(MODES),
    default="auto",
    show_default=True,
    help="On stderr; auto: a bar on a terminal, else nothing.",
)
@click.option("--quiet", is_flag=True, help="Nothing on stderr but errors.")
@click.version_option(__version__, prog_name="ficgan-deid")
@handle_errors
def deid(
    inputs: tuple[str, ...],
    out: str | None,
    k: int,
    layer: int | None,
    band: tuple[int, int] | None,
    alpha: float,
    psi: str | float,
    seed: int | None,
    attributes: str | None,
    directions: tuple[str, ...],
    exemplar: str | None,
    swap: bool,
    mode: str,
    thresh: float | None,
    mask_scale: float,
    scale: tuple[int, int] | None,
    detector: str,
    recognizer: str,
    verify: bool,
    require_face: bool,
    keep_metadata: bool,
    tag: bool,
    sidecar: bool,
    recursive: bool,
    suffix: str | None,
    overwrite: bool,
    dry_run: bool,
    device: str,
    precision: str,
    compile_: bool,
    checkpoint: str | None,
    bank: str | None,
    max_megapixels: float,
    progress: Mode,
    quiet: bool,
) -> None:
    """Replace the faces in photos by k-anonymous ones.

    INPUT: image files (JPEG, PNG, WebP, TIFF, BMP; HEIC and AVIF where readable) and folders of them.
    A face that the detector does not find stays as it is.

    Prints one line of JSON when done. Exit codes: 0 done, 1 failed, 2 usage, 3 some input failed or a check is unmet,
    130 interrupted.
    """
    started = time.monotonic()
    if layer is not None and band is not None:
        raise UsageError("--layer and --layers exclude each other; give one of the two")
    if band is not None and not 1 <= band[0] <= band[1]:
        raise UsageError(f"--layers {band[0]}-{band[1]}: must be FIRST-LAST with 1 ≤ FIRST ≤ LAST")
    if scale is not None and min(scale) < 1:
        raise UsageError(f"--scale {scale[0]}x{scale[1]}: both sides must be 1 px or more")
    if swap and exemplar is None:
        raise UsageError("--swap needs --exemplar FILE, the face to swap in")
    max_pixels = max(1, int(max_megapixels * 1e6))
    plan = make_plan(inputs, out, suffix=suffix, recursive=recursive, overwrite=overwrite)

    def engine() -> Engine:
        found: Any = detector
        if scale is not None:
            from ficgan.faces import DetectAt, get_detector

            found = DetectAt(get_detector(detector, threshold=thresh, scale=1.0, device=device), scale)
        return make_engine(
            checkpoint=checkpoint,
            bank=bank,
            k=k,
            layer=4 if layer is None else layer,
            band=None if band is None else f"{band[0]}-{band[1]}",
            seed=seed,
            alpha=alpha,
            psi=psi,
            attributes=attributes,
            add=directions,
            exemplar=_exemplar(exemplar, max_pixels),
            swap=swap,
            detector=found,
            recognizer=recognizer,
            threshold=thresh,
            mask_scale=mask_scale,
            verify=verify,
            mode=mode,
            device=device,
            precision=precision,
            compile=compile_,
        )

    options = RunOptions(
        max_pixels=max_pixels, require_face=require_face, keep_metadata=keep_metadata, tag=tag, sidecar=sidecar,
        overwrite=overwrite, dry_run=dry_run,
    )  # fmt: skip
    with Progress(progress, quiet=quiet) as report:
        if mode in REVERSIBLE:
            report.info(f"Warning: {mode} can be reversed; use it only where recognition would do no harm.")
        run = Run(options, report)
        code = _execute(run, plan, engine, started)
    if code:
        raise SystemExit(code)


def _execute(run: Run, plan: Any, engine: Callable[[], Engine], started: float) -> int:
    """Run, and print the final JSON also when interrupted; returns the exit code."""

    def finish(**extra: Any) -> None:
        summary = {**run.summary(), "seconds": round(time.monotonic() - started, 3), **extra}
        click.echo(json.dumps(summary))

    try:
        with contextlib.redirect_stdout(sys.stderr):  # what libraries print must not mix with the final JSON
            run(plan, engine)
    except KeyboardInterrupt:
        finish(interrupted=True)
        raise
    finish(**({"dry_run": True} if run.options.dry_run else {}))
    return 0 if run.ok else EXIT_SOME_FAILED


def _exemplar(path: str | None, max_pixels: int) -> NDArray[np.uint8] | None:
    if path is None:
        return None
    from ficgan.errors import InputError

    try:
        return read_image(Path(path), max_pixels=max_pixels).rgb
    except InputError as error:
        raise UsageError(f"--exemplar {error}") from error


if __name__ == "__main__":
    deid()
