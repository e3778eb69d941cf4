"""Export encoder and generator as ONNX files, checked in onnxruntime against torch.

    python tools/export_onnx.py --checkpoint FILE -o FOLDER [--precision fp32 fp16]

writes encoder.onnx (image [B,3,R,R] → z_id, z_non, w) and generator.onnx (w [B,L,w_dim], z_non → image), and
encoder-fp16.onnx and so on. Nothing is written if a float32 file is more than 1e-3 away from torch (exit 1).
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import onnx
import torch
from numpy.typing import NDArray
from torch import Tensor

from ficgan.cli._console import handle_errors
from ficgan.errors import FicganError
from ficgan.faces.models import onnx_session
from ficgan.files import atomic_write
from ficgan.models import FICGAN, CheckpointHeader, Encoder, load_checkpoint
from ficgan.models.io import file_digest
from ficgan.models.layers import normalise_rms
from ficgan.models.onnx import Graph, stage

PRECISIONS = ("fp32", "fp16")
KINDS = ("encoder", "generator")
LIMIT = 1e-3  # Most that a float32 file may be away from torch
MEASURE_ON, SEED = 64, 1

Array = NDArray[np.float32]
Exported = dict[str, dict[str, onnx.ModelProto]]  # precision → "encoder" and "generator" → model


@torch.inference_mode()
def drawn_faces(model: FICGAN, number: int) -> Tensor:
    """Faces that the generator draws from random codes: float32 [number,3,R,R] in [−1, 1]."""
    config, generator = model.config, torch.Generator().manual_seed(SEED)
    w = model.map(torch.randn(number, config.id_dim, generator=generator))
    z_non = normalise_rms(torch.randn(number, config.spatial_channels, 4, 4, generator=generator))
    return model.generate(w, z_non).clamp(-1, 1)


def metadata_of(header: CheckpointHeader, digest: str) -> dict[str, str]:
    """What a stranger needs to use the files of both networks; `digest` is the sha256 of the checkpoint file."""
    return {
        "checkpoint_sha256": digest,
        "alignment": json.dumps(header.alignment, sort_keys=True),
        "resolution": str(header.model.resolution),
        "num_layers": str(header.model.num_layers),
        "training_data": json.dumps(header.data, sort_keys=True, ensure_ascii=False),
        "training_data_licence": str(header.data.get("licence", "not stated")),
        "images": "RGB, float32 [B,3,R,R], −1 is black, 1 is white, aligned as `alignment` says",
    }


def encoder_to_onnx(model: FICGAN, metadata: Mapping[str, str], *, half: bool = False) -> onnx.ModelProto:
    """E and the mapping network: image [B,3,R,R] in [−1, 1] → z_id [B,id_dim], z_non [B,C,4,4], w [B,w_dim].

    `half` keeps weights and feature maps in float16; inputs and outputs stay float32.
    """
    encoder, config, g = model.encoder, model.config, Graph("encoder", half=half)
    x = g.conv(encoder.from_rgb, g.to_features("image", "image/half"), "from_rgb")
    for index, block in enumerate(encoder.trunk):
        x = g.down_block(block, x, f"trunk.{index}")  # type: ignore[arg-type]
    pooled = g.node("GlobalAveragePool", g.conv(encoder.identity_conv, x, "identity_conv"), name="identity/pool")
    z_id = g.linear(
        encoder.identity_head, g.node("Flatten", g.to_float(pooled, "identity/float"), name="identity"), "identity_head"
    )
    g.output(z_id, "z_id")
    g.output(_spatial_code(g, encoder, x), "z_non")
    w = g.normalise_rms("z_id", "mapping/rms")
    for index, layer in enumerate(model.mapping.layers):
        w = g.linear(layer, w, f"mapping.{index}")  # type: ignore[arg-type]
    g.output(w, "w")
    outputs = {"z_id": [config.id_dim], "z_non": [config.spatial_channels, 4, 4], "w": [config.w_dim]}
    return g.model({"image": [3, config.resolution, config.resolution]}, outputs, {**_precision(half), **metadata})


def _precision(half: bool) -> dict[str, str]:
    return {"precision": "fp16" if half else "fp32"}


def _spatial_code(g: Graph, encoder: Encoder, trunk: str) -> str:
    if encoder.spatial_conv is not None and encoder.spatial_head is not None:
        code = g.conv(encoder.spatial_head, g.conv(encoder.spatial_conv, trunk, "spatial_conv"), "spatial_head")  # type: ignore[arg-type]
        code = g.to_float(code, "spatial/float")
        return g.normalise_rms(code, "spatial/rms") if encoder.config.spatial_norm else code
    assert encoder.spatial_constant is not None
    constant = encoder.spatial_constant.detach()
    stored = g.weight(
        "spatial_constant", normalise_rms(constant) if encoder.config.spatial_norm else constant, features=False
    )
    batch = g.node("Shape", "image", name="spatial/batch", start=0, end=1)
    rest = g.constant("spatial/rest", np.array(constant.shape[1:], np.int64))
    return g.node("Expand", stored, g.node("Concat", batch, rest, name="spatial/shape", axis=0), name="spatial/Expand")


def generator_to_onnx(model: FICGAN, metadata: Mapping[str, str], *, half: bool = False) -> onnx.ModelProto:
    """G: w [B,L,w_dim] and z_non [B,C,4,4] → image [B,3,R,R], about [−1, 1]. For one w in all layers repeat it."""
    generator, config, g = model.generator, model.config, Graph("generator", half=half)
    x = g.conv(generator.start, g.to_features("z_non", "z_non/half"), "start")
    image, side = "", 4
    for index, to_rgb in enumerate(generator.to_rgb):
        x, image = stage(g, generator, index, to_rgb, x, image, side)
        side *= 2
    g.output(image, "image")
    inputs = {"w": [model.num_layers, config.w_dim], "z_non": [config.spatial_channels, 4, 4]}
    return g.model(inputs, {"image": [3, config.resolution, config.resolution]}, {**_precision(half), **metadata})


def to_onnx(
    model: FICGAN, header: CheckpointHeader, digest: str, precision: str = "fp32"
) -> dict[str, onnx.ModelProto]:
    """Export encoder and generator: "encoder" and "generator" → model, float32 at the ends in every precision.

    Args:
        header, digest: of the checkpoint.
        precision: "fp32"; "fp16": weights and feature maps in float16, meant for GPUs.
    """
    metadata, half = metadata_of(header, digest), precision == "fp16"
    return {
        "encoder": encoder_to_onnx(model, metadata, half=half),
        "generator": generator_to_onnx(model, metadata, half=half),
    }


class Runner:
    """Encoder and generator in onnxruntime on the CPU; `models`: "encoder" and "generator" → model."""

    def __init__(self, models: Mapping[str, onnx.ModelProto]) -> None:
        self.encoder, self.generator = (onnx_session(models[kind].SerializeToString()) for kind in KINDS)

    def encode(self, image: Array) -> tuple[Array, Array, Array]:
        """z_id [B,id_dim], z_non [B,C,4,4] and w [B,w_dim] of images [B,3,R,R] in [−1, 1]."""
        z_id, z_non, w = self.encoder.run(["z_id", "z_non", "w"], {"image": image})
        return z_id, z_non, w

    def generate(self, w: Array, z_non: Array) -> Array:
        """Images [B,3,R,R] from w [B,w_dim] or [B,L,w_dim] and z_non [B,C,4,4]."""
        if w.ndim == 2:
            w = np.repeat(w[:, None], self.generator.get_inputs()[0].shape[1], 1)
        image: Array = self.generator.run(["image"], {"w": w, "z_non": z_non})[0]
        return image


@torch.inference_mode()
def differences(model: FICGAN, runner: Runner, images: Tensor) -> dict[str, NDArray[np.float64]]:
    """Absolute differences of an exported pair from torch, on images [B,3,R,R] in [−1, 1].

    Of the encoder's outputs z_id, z_non and w; and of `image`, generated from torch's codes by both.
    """
    codes = model.encode(images)
    z_non, w = codes.z_non.contiguous().numpy(), model.map(codes.z_id).numpy()
    own_id, own_non, own_w = runner.encode(images.contiguous().numpy())
    pairs = {
        "z_id": (own_id, codes.z_id.numpy()),
        "z_non": (own_non, z_non),
        "w": (own_w, w),
        "image": (runner.generate(w, z_non), model.generate(torch.from_numpy(w), codes.z_non).numpy()),
    }
    return {name: np.abs(a.astype(np.float64) - b) for name, (a, b) in pairs.items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, required=True, help="folder for the files")
    parser.add_argument("--checkpoint", type=Path, required=True, help="a network's, as `ficgan train` writes it")
    parser.add_argument("--precision", nargs="+", choices=PRECISIONS, default=["fp32"], help="which files; fp32 only")
    parser.add_argument("--overwrite", action="store_true", help="replace files that exist")
    options = parser.parse_args()
    files = {
        (precision, kind): options.output / f"{kind}{'' if precision == 'fp32' else '-' + precision}.onnx"
        for precision in options.precision
        for kind in KINDS
    }
    if taken := [str(file) for file in files.values() if file.exists() and not options.overwrite]:
        raise FicganError(f"{', '.join(taken)} exist already; use --overwrite to replace them, or another folder")
    model, header = load_checkpoint(options.checkpoint)
    digest = file_digest(options.checkpoint)
    exported: Exported = {precision: to_onnx(model, header, digest, precision) for precision in options.precision}
    noise = torch.rand(3, 3, model.resolution, model.resolution, generator=torch.Generator().manual_seed(SEED)) * 2 - 1
    # An error that the faces hide shows in noise, which no photo looks like.
    if not is_near(model, exported, {"noise": noise, "drawn faces": drawn_faces(model, MEASURE_ON)}):
        print(f"a float32 file is more than {LIMIT:g} away from torch; nothing was written", file=sys.stderr)
        return 1
    options.output.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:  # no file takes its name before all of them are on disk
        for (precision, kind), file in files.items():
            stream = stack.enter_context(atomic_write(file, overwrite=options.overwrite))
            stream.write(exported[precision][kind].SerializeToString())
    for file in files.values():
        print(f"{file}  {file.stat().st_size / 2**20:.2f} MiB")
    return 0


def is_near(model: FICGAN, exported: Exported, inputs: Mapping[str, Tensor]) -> bool:
    """Print how far each precision is from torch; whether float32 is within the limit."""
    print("Largest absolute difference to torch in float32, the image's from the same codes.\n")
    print("| precision | inputs | z_id | z_non | w | image | image, mean |\n" + "|-" * 7 + "|")
    good = True
    for precision, models in exported.items():
        runner = Runner(models)
        for name, images in inputs.items():
            found = differences(model, runner, images)
            largest = " | ".join(f"{error.max():.1e}" for error in found.values())
            print(f"| {precision} | {name} ({len(images)}) | {largest} | {found['image'].mean():.1e} |")
            if precision == "fp32":  # NaN is not near
                good = good and all(error.max() <= LIMIT for error in found.values())
    return good


if __name__ == "__main__":
    sys.exit(handle_errors(main)())
