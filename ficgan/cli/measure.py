"""`ficgan measure`: the first figures of a model, and the whole table of its bars."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

import click

from ficgan.cli._errors import handle_errors
from ficgan.cli._options import TALK, options
from ficgan.cli._params import Diversity
from ficgan.cli._progress import Progress

__all__ = ["measure"]

CLIP_FRAMES = 75
"""Of a clip, the first so many: three seconds of most films."""
_PATH = click.Path(path_type=Path)
_BARS: tuple[Any, ...] = (
    click.option("--bars", is_flag=True, help="The whole table of bars, beside the average-face sticker, into -o."),
    click.option("-o", "--output", "out", type=click.Path(path_type=Path, file_okay=False),
                 help="With --bars: folder for bars.json and bars.md."),
    click.option("--train", multiple=True, type=_PATH,
                 help="With --bars: faces it learnt from, for memorisation and real–real distances; repeatable."),
    click.option("--clip", "clips", multiple=True, type=_PATH, help="With --bars: a film, for stability; repeatable."),
    click.option("--attributes", type=_PATH, help="With --bars: classifier of `ficgan train-attributes`."),
)  # fmt: skip


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--checkpoint", type=_PATH, help="Model; the embedded one if not given.")
@click.option("--bank", type=_PATH, help="Bank built with it.")
@click.option("--aligned", multiple=True, type=_PATH, help="Folder, zip or tar of aligned faces.")
@click.option("--photos", type=_PATH, help="Folder of photos, each of one other person (with --bars: of anybody).")
@click.option(
    "--judge", "judges", multiple=True, default=("dlib",), show_default=True,
    help="dlib, insightface, shape or onnx:PATH; must have had no part in training.",
)  # fmt: skip
@click.option("--layer", "layers", multiple=True, type=click.IntRange(0), help="i, repeatable.  [default: 0, 4, L−1]")
@click.option("--detector", default="auto", show_default=True, help="auto, insightface, yunet, centerface or dlib.")
@click.option("--k", default=3000, show_default=True, type=click.IntRange(2), help="People averaged.")
@click.option("--diversity", "psi", default="auto", show_default=True, type=Diversity(),
              help="ψ; auto: what the model does best with for a person alone in a photo.")  # fmt: skip
@click.option("--limit", type=click.IntRange(2), help="Use only the first so many faces of each set.")
@click.option("--device", default="cpu", show_default=True, help="cpu, cuda, cuda:N or auto.")
@options(_BARS)
@options(TALK)
@handle_errors
def measure(
    checkpoint: Path | None, bank: Path | None, aligned: tuple[Path, ...], photos: Path | None,
    judges: tuple[str, ...], layers: tuple[int, ...], detector: str, k: int,
    psi: float | Literal["auto"], limit: int | None,
    device: str, bars: bool, out: Path | None, train: tuple[Path, ...], clips: tuple[Path, ...],
    attributes: Path | None, progress: Any, quiet: bool,
) -> None:  # fmt: skip
    """Reconstruction, identity similarity and detection rate, as JSON. Retries and masking are off.

    With --bars every figure a default model is held to, met or missed, in a folder; docs/model.md says how to read it.
    """
    from ficgan.errors import UsageError

    if not aligned and photos is None:
        raise UsageError("nothing to measure on; give --aligned or --photos")
    common: dict[str, Any] = {
        "checkpoint": checkpoint, "bank": bank, "aligned": aligned, "judges": judges, "layers": layers,
        "detector": detector, "k": k, "limit": limit, "device": device,
    }  # fmt: skip
    if not bars:
        if out is not None or train or clips or attributes is not None:
            raise UsageError("-o, --train, --clip and --attributes belong to the table of bars; give --bars too")
        click.echo(json.dumps(_first_figures(photos=photos, psi=psi, **common)))
        return
    if out is None:
        raise UsageError("the table of bars is written into a folder; give -o")
    with Progress(progress, unit="step", quiet=quiet) as reporter:
        common |= {"photos": () if photos is None else (photos,), "psi": psi, "train": train, "attributes": attributes}
        summary = _whole_table(out, clips, reporter, **common)
    click.echo(json.dumps(summary))


def _whole_table(out: Path, clips: tuple[Path, ...], reporter: Progress, **settings: Any) -> dict[str, Any]:
    from ficgan.lab.bars import BarsConfig, run_bars, write_bars

    config = BarsConfig(clips=tuple(_clip(path) for path in clips), **settings)
    report = run_bars(config, reporter)
    written = write_bars(report, out)
    return {
        "bars": [path.name for path in written],
        "checkpoint": report.facts["checkpoint"],
        "verdicts": report.verdicts,
        "missed": report.missed,
        "left_out": len(report.sheet.left_out),
        "seconds": report.facts["seconds"],
    }


def _clip(path: Path) -> Any:
    """The first frames of a film."""
    from ficgan.lab.bars import Clip
    from ficgan.video import open_video

    with open_video(path) as film:
        rate = float(film.info.rate or 25)
        frames = []
        for frame in film.frames():
            frames.append(frame.image)
            if len(frames) == CLIP_FRAMES:
                break
    return Clip(path.name, tuple(frames), rate)


def _first_figures(
    *, checkpoint: Path | None, bank: Path | None, aligned: tuple[Path, ...], photos: Path | None,
    judges: tuple[str, ...], layers: tuple[int, ...], detector: str, k: int,
    psi: float | Literal["auto"], limit: int | None,
    device: str,
) -> dict[str, object]:  # fmt: skip
    import numpy as np

    from ficgan import lab
    from ficgan.data import check_alignment, open_faces
    from ficgan.deidentify import Deidentifier, refuse_trainer
    from ficgan.errors import UsageError
    from ficgan.images import read_image
    from ficgan.lab.readers import get_judge

    readers = [get_judge(name) for name in judges]
    for reader in readers:  # the report names files, not the folders of this machine
        kind, colon, file = reader.name.partition(":")
        reader.name = kind + colon + Path(file).name
    if len({reader.name for reader in readers}) < len(readers):
        raise UsageError("two judges have the same name; give each one once, and onnx files different names")
    deid = Deidentifier.from_pretrained(
        checkpoint, bank, k=k, layer=0, psi=psi, detector=detector, verify=False, device=device
    )
    for name in judges:
        refuse_trainer(deid.header, name)
    chosen = layers or tuple(sorted({0, min(4, deid.model.num_layers - 1), deid.model.num_layers - 1}))
    for layer in chosen:
        deid.face_model.check_layer(layer)
    report: dict[str, object] = {"checkpoint": deid.digests.get("checkpoint"), "detector": deid.detector.name}
    if aligned:
        faces = open_faces(aligned, resolution=max(deid.model.resolution, lab.basics.LEAST_SIDE))
        check_alignment(faces, deid.alignment)
        faces = faces.subset(range(min(limit or len(faces), len(faces))))
        crops = np.ascontiguousarray(faces.resident().permute(0, 2, 3, 1).numpy())
        rows = lab.measure_aligned(deid, crops, layers=chosen, judges=readers, detector=deid.detector)
        report["aligned"] = [row.to_dict() for row in rows]
    if photos is not None:
        paths = sorted(path for path in photos.rglob("*") if path.suffix.lower() in (".jpg", ".jpeg", ".png", ".webp"))
        images = [read_image(path).rgb for path in paths[:limit]]
        if len(images) < 2:
            raise UsageError(f"{photos} holds {len(images)} photos; give a folder with at least 2")
        report["photos"] = [row.to_dict() for row in lab.measure_photos(deid, images, layers=chosen, judges=readers)]
    return report
