"""What a detail network adds to faces it has not seen, beside lent detail and none: a table, and a sheet to look at.

    python tools/judge_detail.py network.safetensors --data faces256-crisp-val.tar [--judge onnx:recognizer.onnx]
                                 [--bank bank.safetensors] [--sheet sheet.png]

Faces are made as the product makes them. Reconstructions are compared with the photo: L1 under the mask, Laplacian (of
the photo's), and LPIPS by SqueezeNet from the folders of FICGAN_MODELS. Drawn faces are read by a recogniser: detail
must not bring the photo's identity back, so its cosine must not rise above that of the plain texture.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ficgan import pretrained
from ficgan.cli._console import handle_errors
from ficgan.data import FaceData, open_faces
from ficgan.errors import UsageError
from ficgan.faces import Alignment, Face, five_points, get_recognizer
from ficgan.frame.compose import read_texture, stretched
from ficgan.frame.file import load_appearance
from ficgan.frame.fit import images_of
from ficgan.frame.geometry import HI, LO
from ficgan.frame_model import FrameModel
from ficgan.identity import IdentityBank
from ficgan.lab.metrics.pictures import SqueezeNet
from ficgan.policy import Attempt
from ficgan.training.detail import TONE, K
from ficgan.training.frame import sharpness_under
from ficgan.training.stats import save_grid

SHOWN = 12
"""Faces on the sheet."""


def judge(file: Path, data: Sequence[Path], recogniser: str | None, sheet: Path | None, bank: Path | None) -> list[str]:
    """The lines of the table."""
    model, config, _, network = load_appearance(file)
    if not model.detail_network.size:
        raise UsageError(f"{file} has no detail network; give network.safetensors of a run of configs/detail.yaml")
    people = IdentityBank.load(bank or pretrained.path("bank"))
    plain = replace(model, detail_network=np.zeros(0, np.uint8))
    makers = {
        name: FrameModel(one, config, people, network=network, k=K, seed=0)
        for name, one in (("lent", plain), ("network", model))
    }
    photos, made = _made(makers, open_faces(data, resolution=2 * model.size))
    weight = torch.from_numpy(stretched(model.mask, 2))[None, None]
    tone, own = (_tensor(np.stack([cv2.blur(one, (TONE, TONE)) for one in part])) for part in (made["none"][0], photos))
    true = _tensor(photos) - own + tone  # the photo's detail with the tone of what is compared
    sharp, perceptual, clear = sharpness_under(true, weight), _perceptual(), _bytes(true)
    points = (five_points(model.shape.front) - LO) * (2 * model.size - 1) / (np.array(HI) - LO)
    reader = get_recognizer(recogniser) if recogniser else None
    lines = ["| detail | L1 | Laplacian, of the photo's | LPIPS-like | cosine of draws to the photo |", "|-|-|-|-|-|"]
    for name, (mine, drawn) in made.items():
        image = _tensor(mine)
        apart = float(((image - true).abs() * weight).mean() / weight.mean())
        of = float((sharpness_under(image, weight) / sharp).log().mean().exp())
        seen = "" if perceptual is None else f"{np.mean(perceptual.read(_bytes(image), clear=clear).distances):.3f}"
        cosine = ""
        if reader is not None:
            a, b = (
                np.concatenate([reader.embed(one, points[None].astype(np.float32)) for one in _bytes(_tensor(some))])
                for some in (photos, drawn)
            )
            cosine = f"{float(((a * b).sum(1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)).mean()):.3f}"
        lines.append(f"| {name} | {apart:.4f} | {of:.2f} | {seen} | {cosine} |")
    if sheet is not None:
        shown = [photos, *(part[0] for part in made.values()), *(part[1] for part in made.values())]
        save_grid(torch.stack([2 * _tensor(one[:SHOWN]) - 1 for one in shown], 1), sheet)
    return lines


def _made(
    makers: dict[str, FrameModel], faces: FaceData
) -> tuple[NDArray[np.float32], dict[str, tuple[NDArray[np.float32], NDArray[np.float32]]]]:
    """Photos [N,2R,2R,3] in the frame, and by the way of adding detail what is made of and in the place of them."""
    first, lent = Attempt(0), makers["lent"]
    side = 2 * lent.resolution
    face = Face(np.array([0, 0, side, side], np.float32), Alignment().points(side).astype(np.float32), 1.0)
    photos, found = [], {name: ([], []) for name in ("none", *makers)}  # type: ignore[var-annotated]
    for number, image in enumerate(images_of(faces)):
        sight = lent.see([(image, face)])[0]
        if sight.problem or not sight.place.look.fine:
            continue
        read = sight.place.moment.read
        photos.append(read_texture(image, read.upright[0], read.points[0], lent.model.warp, finer=2))
        draw = lent.draw(str(number), first, lent.auto_psi(1), sight.z_id)
        for way, (own, drawn) in found.items():
            maker = makers.get(way, lent)
            rows = np.concatenate([maker.own_styles([sight]), maker.styles(sight.z_id[None], [draw], first)])
            pair = (maker.render if way in makers else maker.undetailed)(rows, [sight] * 2)
            for into, one in zip((own, drawn), pair, strict=True):
                into.append(stretched(one.texture, side // len(one.texture)))
    if not photos:
        raise UsageError("no face is clear and large enough; give faces of 256² that are crisp")
    stacked = {way: (np.stack(own), np.stack(drawn)) for way, (own, drawn) in found.items()}
    return np.stack(photos).astype(np.float32) / np.float32(255), stacked


def _tensor(images: NDArray[np.float32]) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(images.transpose(0, 3, 1, 2), np.float32))


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--data", type=Path, nargs="+", required=True, help="faces of 256² that were held out")
    parser.add_argument("--judge", help="recogniser that reads drawn faces, such as onnx:recognizer.onnx")
    parser.add_argument("--bank", type=Path, help="of the model; default: the one in the package")
    parser.add_argument("--sheet", type=Path, help="PNG: photo; none, lent, network for it; the same for a drawn face")
    options = parser.parse_args()
    print("\n".join(judge(options.file, options.data, options.judge, options.sheet, options.bank)))


if __name__ == "__main__":
    handle_errors(main)()
