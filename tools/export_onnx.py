"""Export encoder and generator as ONNX files, checked in onnxruntime against torch.

    python tools/export_onnx.py --checkpoint FILE -o FOLDER [--precision fp32 fp16 int8] [--bench]

writes encoder.onnx (image [B,3,R,R] → z_id, z_non, w) and generator.onnx (w [B,L,w_dim], z_non → image), for other
precisions encoder-fp16.onnx and so on. Nothing is written if a float32 file is more than 1e-3 away from torch (exit 1).
int8 is calibrated on the aligned faces of --calibrate, or on faces that the generator draws, from the codes of --bank
where there is one.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from operator import itemgetter
from pathlib import Path

import numpy as np
import onnx
import torch
from _onnx import PRECISIONS, Difference, Runner, calibrate, differences, drawn_faces, to_onnx
from _timing import interleaved, median
from torch import Tensor

from ficgan.arrays import to_tensor
from ficgan.data import check_alignment, open_faces
from ficgan.errors import FicganError, UsageError
from ficgan.faces import Alignment, crop, get_detector
from ficgan.files import atomic_write
from ficgan.identity import IdentityBank
from ficgan.models import FICGAN, CheckpointHeader, InferenceModel, load_checkpoint
from ficgan.models.io import file_digest

LIMIT = 1e-3
CALIBRATE_ON, MEASURE_ON = 64, 64
CALIBRATION_SEED, CHECK_SEED = 0, 1

Exported = dict[str, dict[str, onnx.ModelProto]]
"""Precision → "encoder" and "generator" → model."""


def main(arguments: list[str] | None = None) -> int:
    """Run the tool; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "-o", "--output", type=Path, required=True, help="folder for the files; made if it is not there"
    )
    parser.add_argument("--checkpoint", type=Path, required=True, help="a network's, as `ficgan train` writes it")
    parser.add_argument("--bank", type=Path, help="its identity bank, for calibration without photos")
    parser.add_argument("--precision", nargs="+", choices=PRECISIONS, default=["fp32"], help="which files; fp32 only")
    parser.add_argument("--calibrate", type=Path, nargs="+", help="folders, zips or tars of aligned faces, for int8")
    parser.add_argument("--check", action=argparse.BooleanOptionalAction, default=True, help="compare with torch first")
    parser.add_argument("--bench", action="store_true", help="measure time too; the tables are Markdown")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2], help="numbers of threads to measure with")
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8], help="faces at once to measure with")
    parser.add_argument("--seconds", type=float, default=10.0, help="time for each pair of threads and batch")
    parser.add_argument("--overwrite", action="store_true", help="replace files that exist")
    options = parser.parse_args(arguments)
    try:
        return export(options)
    except FicganError as error:
        print(error, file=sys.stderr)
        return error.exit_code


def export(options: argparse.Namespace) -> int:
    if options.calibrate and "int8" not in options.precision:
        raise UsageError("--calibrate is for int8 only; add --precision int8")
    precisions = list(dict.fromkeys(options.precision))
    files = {
        (precision, kind): options.output / f"{kind}{'' if precision == 'fp32' else '-' + precision}.onnx"
        for precision in precisions
        for kind in ("encoder", "generator")
    }
    if taken := [str(file) for file in files.values() if file.exists() and not options.overwrite]:
        raise FicganError(f"{', '.join(taken)} exist already; use --overwrite to replace them, or another folder")
    model, header = load_checkpoint(options.checkpoint)
    codes = None if options.bank is None else IdentityBank.load(options.bank).codes
    held_out = None
    calibration = None
    if "int8" in precisions:
        faces = drawn_faces(model, CALIBRATE_ON, seed=CALIBRATION_SEED, codes=codes)
        if options.calibrate:
            faces, held_out = photos(options.calibrate, model, header)
        calibration = calibrate(model, faces)
    digest = file_digest(options.checkpoint)
    exported: Exported = {p: to_onnx(model, header, digest, p, calibration) for p in precisions}

    good = True
    if options.check or options.bench:
        inputs = {"noise": noise(model), "drawn faces": drawn_faces(model, MEASURE_ON, seed=CHECK_SEED, codes=codes)}
        if (photo := astronaut(model, header)) is not None:
            inputs["a photo"] = photo
        if held_out is not None:
            inputs["photos held out"] = held_out
        good = print_differences(model, exported, inputs)
    if good:
        write(exported, files, options.overwrite)
    if options.bench:
        print_times(model, exported, options)
    return 0 if good else 1


def photos(paths: list[Path], model: FICGAN, header: CheckpointHeader) -> tuple[Tensor, Tensor | None]:
    """Aligned faces to calibrate on, and others to measure on where there are more."""
    faces = open_faces(paths, resolution=model.resolution)
    check_alignment(faces, Alignment.from_dict(header.alignment), "the model")
    images = faces.subset(range(min(len(faces), CALIBRATE_ON + MEASURE_ON))).resident().float().div_(127.5).sub_(1)
    return images[:CALIBRATE_ON], images[CALIBRATE_ON:] if len(images) > CALIBRATE_ON else None


def noise(model: FICGAN) -> Tensor:
    """Images that no photo looks like, [3,3,R,R]: an error that the faces hide shows here."""
    generator = torch.Generator().manual_seed(CHECK_SEED)
    return torch.rand(3, 3, model.resolution, model.resolution, generator=generator) * 2 - 1


def astronaut(model: FICGAN, header: CheckpointHeader) -> Tensor | None:
    """The face of scikit-image's astronaut (NASA, public domain), [1,3,R,R]; None if no detector finds it."""
    from skimage.data import astronaut as photo

    image = np.ascontiguousarray(photo())
    found = get_detector("auto").detect(image)
    if not found:
        return None
    matrix = Alignment.from_dict(header.alignment).matrix(found[0].landmarks, model.resolution)
    return to_tensor(crop(image, matrix, model.resolution)[None], "cpu")


def print_differences(model: FICGAN, exported: Exported, inputs: Mapping[str, Tensor]) -> bool:
    """Print how far each precision is from torch; whether float32 is within the limit."""
    print(
        "Largest absolute difference to torch in float32; *image* from the same codes, *both* encoded and generated.\n"
    )
    print(
        "| precision | inputs | z_id | z_non | w | image | image, mean | image, PSNR | both, PSNR |\n" + "|-" * 9 + "|"
    )
    good = True
    for precision, models in exported.items():
        runner = Runner(models)
        for name, images in inputs.items():
            found = differences(model, runner, images)
            codes = " | ".join(f"{found[code].largest:.1e}" for code in ("z_id", "z_non", "w"))
            image, both = found["image"], found["reconstruction"]
            cells = f"{image.largest:.1e} | {image.mean:.1e} | {image.psnr:.1f} dB | {both.psnr:.1f} dB"
            print(f"| {precision} | {name} ({len(images)}) | {codes} | {cells} |")
            good = good and (precision != "fp32" or within_limit(found))
    if not good:
        print(f"a float32 file is more than {LIMIT:g} away from torch; nothing was written", file=sys.stderr)
    return good


def within_limit(found: Mapping[str, Difference]) -> bool:
    return all(difference.largest <= LIMIT for difference in found.values())  # NaN is not


def write(exported: Exported, files: Mapping[tuple[str, str], Path], overwrite: bool) -> None:
    """Write the files."""
    first = next(iter(files.values()))
    try:
        first.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FicganError(f"{first.parent} cannot be made ({error.strerror}); choose another folder") from None
    with ExitStack() as stack:  # no file takes its name before all of them are on disk
        for (precision, kind), file in files.items():
            stream = stack.enter_context(atomic_write(file, overwrite=overwrite))
            stream.write(exported[precision][kind].SerializeToString())
    for file in files.values():
        print(f"{file}  {file.stat().st_size / 2**20:.2f} MiB")


def print_times(model: FICGAN, exported: Exported, options: argparse.Namespace) -> None:
    """Print the time of encode + generate beside torch's and beside the bare convolutions in torch (bench.py)."""
    import onnxruntime
    from bench import floor_of

    model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    in_torch, floor, side = "torch, InferenceModel", "bare convolutions in torch", model.resolution
    print(f"\nencode + generate at {side}², torch {torch.__version__}, onnxruntime {onnxruntime.__version__}, CPU,")
    print("median of interleaved rounds; ratios are medians of the rounds' ratios.\n")
    print("| threads | batch | what | ms/face | of torch's | of the bare convolutions' |\n|-|-|-|-|-|-|")
    for threads in options.threads:
        torch.set_num_threads(threads)
        runners = {precision: Runner(models, threads=threads) for precision, models in exported.items()}
        for batch in options.batch:
            x = torch.rand(batch, 3, side, side, generator=torch.Generator().manual_seed(0)) * 2 - 1
            nhwc = x.contiguous(memory_format=torch.channels_last)
            with torch.inference_mode():
                runs: dict[str, Callable[[], object]] = {
                    "torch, as trained": partial(model, nhwc),
                    in_torch: partial(InferenceModel(model), nhwc),
                    floor: floor_of(model, nhwc),
                    **{f"onnxruntime {name}": partial(whole, runner, x.numpy()) for name, runner in runners.items()},
                }
                rounds = interleaved(runs, torch.device("cpu"), options.seconds, warm_up=1)
            for name in runs:
                ratios = [f"{median(rounds, lambda r, a=name, b=b: r[a] / r[b]):.2f}" for b in (in_torch, floor)]
                milliseconds = median(rounds, itemgetter(name)) * 1000 / batch
                print(f"| {threads} | {batch} | {name} | {milliseconds:.2f} | {' | '.join(ratios)} |", flush=True)


def whole(runner: Runner, x: np.ndarray) -> np.ndarray:
    codes = runner.encode(x)
    return runner.generate(codes.w, codes.z_non)


if __name__ == "__main__":
    sys.exit(main())
