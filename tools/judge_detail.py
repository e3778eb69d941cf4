"""What a detail network adds to held-out faces, beside lent detail and none: a table, and a sheet to look at.

    python tools/judge_detail.py network.safetensors --data faces256-detail.tar [--judge onnx:recognizer.onnx]
                                 [--sheet sheet.png]

Reconstructions are compared with the photo: L1 of luminance under the mask, Laplacian (of the photo's), and LPIPS by
SqueezeNet from the folders of FICGAN_MODELS. Drawn faces are read by a recogniser: detail must not bring the photo's
identity back, so its cosine must not rise above that of the plain texture.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ficgan.config import load_config
from ficgan.errors import FicganError, UsageError
from ficgan.faces import five_points, get_recognizer
from ficgan.frame.file import DetailWriter, load_appearance
from ficgan.frame.geometry import HI, LO
from ficgan.lab.metrics.pictures import SqueezeNet
from ficgan.training.detail import DetailTask
from ficgan.training.frame import sharpness_under
from ficgan.training.stats import save_grid

CONFIG = Path(__file__).resolve().parent.parent / "configs/detail.yaml"


def judge(file: Path, data: Sequence[Path], recogniser: str | None, sheet: Path | None) -> list[str]:
    """The lines of the table."""
    network = load_appearance(file)[0].detail_network
    if not network.size:
        raise UsageError(f"{file} has no detail network; give network.safetensors of a run of configs/detail.yaml")
    task = DetailTask(load_config(CONFIG), data, None, None, torch.device("cpu"))
    task.read_faces()
    writer = DetailWriter(network.tobytes())
    rows, pictures = task.held_out, {}
    for hidden in (0.0, 1.0):
        batch, bases = task.plain(rows, hidden)
        small = ((batch.texture + 1) / 2).permute(0, 2, 3, 1).numpy()
        made = [writer.write(one, float(batch.fine[number]), number) for number, one in enumerate(small)]
        detail = {"none": torch.zeros_like(batch.base), "lent": task.lent(batch, rows),
                  "network": torch.from_numpy(np.stack(made))[:, None]}  # fmt: skip
        pictures[hidden] = {name: bases + added for name, added in detail.items()}
        if not hidden:
            photo = bases + (batch.real - batch.base)  # the photo's detail with the tone of what is compared
    perceptual = _perceptual()
    clear = _bytes(photo)
    luminance = torch.tensor([0.299, 0.587, 0.114])[:, None, None]
    sharp = sharpness_under(photo, task.mask)
    points = (five_points(task.model.shape.front) - LO) * (2 * task.model.size - 1) / (np.array(HI) - LO)
    reader = get_recognizer(recogniser) if recogniser else None
    lines = ["| detail | L1 | Laplacian, of the photo's | LPIPS-like | cosine of draws to the photo |", "|-|-|-|-|-|"]
    for name, image in pictures[0.0].items():
        apart = (((image - photo) * luminance).sum(1, keepdim=True).abs() * task.mask).mean() / task.mask.mean()
        of = float((sharpness_under(image, task.mask) / sharp).log().mean().exp())
        seen = "" if perceptual is None else f"{np.mean(perceptual.read(_bytes(image), clear=clear).distances):.3f}"
        cosine = ""
        if reader is not None:
            a, b = (
                np.concatenate([reader.embed(one, points[None].astype(np.float32)) for one in _bytes(some)])
                for some in (torch.from_numpy(task.doubles[rows]).permute(0, 3, 1, 2) / 255, pictures[1.0][name])
            )
            cosine = f"{float(((a * b).sum(1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)).mean()):.3f}"
        lines.append(f"| {name} | {float(apart):.4f} | {of:.2f} | {seen} | {cosine} |")
    if sheet is not None:
        shown = [photo, *pictures[0.0].values(), *pictures[1.0].values()]
        save_grid(torch.stack([2 * one[:12] - 1 for one in shown]), sheet)
    return lines


def _bytes(images: Tensor) -> NDArray[np.uint8]:
    pixels = (images.clamp(0, 1) * 255).round().to(torch.uint8).permute(0, 2, 3, 1)
    return np.ascontiguousarray(pixels.numpy())


def _perceptual() -> SqueezeNet | None:
    for folder in map(Path, filter(None, os.environ.get("FICGAN_MODELS", "").split(os.pathsep))):
        linear = folder / "lpips_squeeze_linear.safetensors"
        for path in folder.glob("squeezenet*_features.onnx"):
            if linear.exists():
                return SqueezeNet(path, linear)
    return None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--data", type=Path, nargs="+", required=True, help="faces of the run")
    parser.add_argument("--judge", help="recogniser that reads drawn faces, such as onnx:recognizer.onnx")
    parser.add_argument("--sheet", type=Path, help="PNG: photo; none, lent, network for it; the same for a drawn face")
    options = parser.parse_args()
    try:
        print("\n".join(judge(options.file, options.data, options.judge, options.sheet)))
    except FicganError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
