"""Export encoder and generator as ONNX files, checked in onnxruntime against torch.

    python tools/export_onnx.py --checkpoint FILE -o FOLDER [--precision fp32 fp16 int8]

writes encoder.onnx (image [B,3,R,R] → z_id, z_non, w) and generator.onnx (w [B,L,w_dim], z_non → image), for other
precisions encoder-fp16.onnx and so on. Nothing is written if a float32 file is more than 1e-3 away from torch (exit 1).
int8 is calibrated on the aligned faces of --calibrate, or on faces that the generator draws, from the codes of --bank
where there is one.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import numpy as np
import onnx
import onnxruntime
import torch
from numpy.typing import NDArray
from torch import Tensor

from ficgan.cli._console import handle_errors
from ficgan.data import check_alignment, open_faces
from ficgan.errors import FicganError, UsageError
from ficgan.faces import Alignment
from ficgan.files import atomic_write, file_digest
from ficgan.identity import IdentityBank
from ficgan.models import FICGAN, CheckpointHeader, Encoder, load_checkpoint
from ficgan.models.layers import normalise_rms
from ficgan.models.onnx import Graph, stage

PRECISIONS = ("fp32", "fp16", "int8")
KINDS = ("encoder", "generator")
BATCH = 8
# Most that a float32 file may be away from torch.
LIMIT = 1e-3
CALIBRATE_ON, MEASURE_ON = 64, 64
CALIBRATION_SEED, CHECK_SEED = 0, 1

Array = NDArray[np.float32]
Exported = dict[str, dict[str, onnx.ModelProto]]  # precision → "encoder" and "generator" → model


class Calibration(NamedTuple):
    """Inputs of both networks, float32: image [N,3,R,R] in [−1, 1], w [M,L,w_dim], z_non [M,C,4,4]."""

    image: Array
    w: Array
    z_non: Array


@torch.inference_mode()
def drawn_faces(model: FICGAN, number: int, *, seed: int, codes: NDArray[np.floating] | None = None) -> Tensor:
    """Faces that the generator draws, where there are no photos: float32 [number,3,R,R] in [−1, 1].

    Each takes one of the `codes` [N,w_dim] of a bank; without them random identity codes are mapped.
    """
    config, generator = model.config, torch.Generator().manual_seed(seed)
    if codes is None:
        w = model.map(torch.randn(number, config.id_dim, generator=generator))
    elif codes.shape[1:] != (config.w_dim,):
        raise UsageError(f"the bank's codes are {list(codes.shape)}, not [N,{config.w_dim}]; give the model's own bank")
    else:
        rows = torch.randint(len(codes), (number,), generator=generator).numpy()
        w = torch.from_numpy(codes[rows].astype(np.float32))
    z_non = normalise_rms(torch.randn(number, config.spatial_channels, 4, 4, generator=generator))
    return model.generate(w, z_non).clamp(-1, 1)


@torch.inference_mode()
def calibrate(model: FICGAN, faces: Tensor) -> Calibration:
    """What both networks get when faces [N,3,R,R] in [−1, 1] are encoded and generated."""
    codes = [model.encode(part) for part in faces.split(32)]
    w = torch.cat([model.map(part.z_id) for part in codes])
    identities = torch.cat([w, w.roll(1, 0), w.mean(0).expand_as(w)])
    z_non = torch.cat([part.z_non for part in codes]).repeat(3, 1, 1, 1)
    per_layer = identities[:, None].repeat(1, model.num_layers, 1)
    return Calibration(faces.contiguous().numpy(), per_layer.numpy(), z_non.numpy())


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
    model: FICGAN,
    header: CheckpointHeader,
    digest: str,
    precision: str = "fp32",
    calibration: Calibration | None = None,
) -> dict[str, onnx.ModelProto]:
    """Export encoder and generator: "encoder" and "generator" → model, float32 at the ends in every precision.

    Args:
        header, digest: of the checkpoint.
        precision: "fp32"; "fp16": weights and feature maps in float16, meant for GPUs; "int8": the convolutions of the
            trunks with 8-bit weights and feature maps.
        calibration: what the networks get; needed for int8.
    """
    metadata, half = metadata_of(header, digest), precision == "fp16"
    encoder, generator = (make(model, metadata, half=half) for make in (encoder_to_onnx, generator_to_onnx))
    if precision == "int8":
        assert calibration is not None
        encoder = quantise(encoder, {"image": calibration.image})
        generator = quantise(generator, {"w": calibration.w, "z_non": calibration.z_non})
    return {"encoder": encoder, "generator": generator}


def quantise(model: onnx.ModelProto, feeds: Mapping[str, NDArray[np.float32]]) -> onnx.ModelProto:
    """Quantise the convolutions of a float32 export: weights to int8 for each channel, feature maps to uint8.

    The first convolution of the encoder, the resampling filters, the RGB outputs and all matrix products stay float:
    8-bit ones made the error of w eight times larger. The weights use 7 of the 8 bits: CPUs without VNNI add pairs of
    products in 16 bits, which would overflow with 8.

    `feeds` has N inputs for each input; feature maps beyond what these give are clipped.
    """
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

    class Reader(CalibrationDataReader):
        def __init__(self) -> None:
            begins = range(0, len(next(iter(feeds.values()))), BATCH)
            self.batches = iter({name: array[at : at + BATCH] for name, array in feeds.items()} for at in begins)

        def get_next(self) -> dict[str, NDArray[np.float32]] | None:
            return next(self.batches, None)

    metadata = {entry.key: entry.value for entry in model.metadata_props}
    # With shapes known there is nothing left for onnxruntime's own preprocessing, and the mark keeps it from warning.
    inferred = onnx.shape_inference.infer_shapes(model)
    onnx.helper.set_model_props(inferred, {**metadata, "onnx.quant.pre_process": "onnxruntime.quant"})
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "int8.onnx"
        quantize_static(
            inferred,
            path,
            Reader(),
            quant_format=QuantFormat.QDQ,
            op_types_to_quantize=["Conv"],
            nodes_to_exclude=[node.name for node in model.graph.node if _stays_float(node)],
            per_channel=True,
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
            reduce_range=True,
        )
        quantised = onnx.load(path)
    onnx.helper.set_model_props(quantised, {**metadata, "precision": "int8"})
    return quantised


def _stays_float(node: onnx.NodeProto) -> bool:
    grouped = any(attribute.name == "group" and attribute.i > 1 for attribute in node.attribute)
    return node.op_type == "Conv" and (grouped or node.name.startswith(("from_rgb", "to_rgb")))


class Runner:
    """Encoder and generator in onnxruntime on the CPU.

    Args:
        models: "encoder" and "generator" → model.
        threads: of onnxruntime; 0 takes all cores.
    """

    def __init__(self, models: Mapping[str, onnx.ModelProto], *, threads: int = 0) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.log_severity_level = threads, 3
        self.encoder, self.generator = (
            onnxruntime.InferenceSession(models[kind].SerializeToString(), options, providers=["CPUExecutionProvider"])
            for kind in KINDS
        )

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

    Of the encoder's outputs z_id, z_non and w; of `image`, generated from torch's codes by both; and of `both`, encoded
    and generated by each.
    """
    codes = model.encode(images)
    z_non, w = codes.z_non.contiguous().numpy(), model.map(codes.z_id).numpy()
    image = model.generate(torch.from_numpy(w), codes.z_non).numpy()
    own_id, own_non, own_w = runner.encode(images.contiguous().numpy())
    pairs = {
        "z_id": (own_id, codes.z_id.numpy()),
        "z_non": (own_non, z_non),
        "w": (own_w, w),
        "image": (runner.generate(w, z_non), image),
        "both": (runner.generate(own_w, own_non), image),
    }
    return {name: np.abs(a.astype(np.float64) - b) for name, (a, b) in pairs.items()}


def psnr(error: NDArray[np.float64]) -> float:
    """In dB, of images in [−1, 1]."""
    square = float(np.mean(error**2))
    return float("inf") if square == 0 else 10 * float(np.log10(4 / square))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, required=True, help="folder for the files")
    parser.add_argument("--checkpoint", type=Path, required=True, help="a network's, as `ficgan train` writes it")
    parser.add_argument("--bank", type=Path, help="its identity bank, for calibration without photos")
    parser.add_argument("--precision", nargs="+", choices=PRECISIONS, default=["fp32"], help="which files; fp32 only")
    parser.add_argument("--calibrate", type=Path, nargs="+", help="folders, zips or tars of aligned faces, for int8")
    parser.add_argument("--check", action=argparse.BooleanOptionalAction, default=True, help="compare with torch first")
    parser.add_argument("--overwrite", action="store_true", help="replace files that exist")
    options = parser.parse_args()
    precisions = list(dict.fromkeys(options.precision))
    if options.calibrate and "int8" not in precisions:
        raise UsageError("--calibrate is for int8 only; add --precision int8")
    files = {
        (precision, kind): options.output / f"{kind}{'' if precision == 'fp32' else '-' + precision}.onnx"
        for precision in precisions
        for kind in KINDS
    }
    if taken := [str(file) for file in files.values() if file.exists() and not options.overwrite]:
        raise FicganError(f"{', '.join(taken)} exist already; use --overwrite to replace them, or another folder")
    model, header = load_checkpoint(options.checkpoint)
    codes = None if options.bank is None else IdentityBank.load(options.bank).codes
    inputs = {"noise": noise(model), "drawn faces": drawn_faces(model, MEASURE_ON, seed=CHECK_SEED, codes=codes)}
    calibration = None
    if "int8" in precisions:
        faces = drawn_faces(model, CALIBRATE_ON, seed=CALIBRATION_SEED, codes=codes)
        if options.calibrate:
            faces, held_out = photos(options.calibrate, model, header).tensor_split([CALIBRATE_ON])
            inputs |= {"photos held out": held_out} if len(held_out) else {}
        calibration = calibrate(model, faces)
    digest = file_digest(options.checkpoint)
    exported: Exported = {p: to_onnx(model, header, digest, p, calibration) for p in precisions}
    if options.check and not is_near(model, exported, inputs):
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


def photos(paths: list[Path], model: FICGAN, header: CheckpointHeader) -> Tensor:
    """Aligned faces to calibrate on, then others to measure on where there are more."""
    faces = open_faces(paths, resolution=model.resolution)
    check_alignment(faces, Alignment.from_dict(header.alignment), "the model")
    return faces.subset(range(min(len(faces), CALIBRATE_ON + MEASURE_ON))).resident().float().div_(127.5).sub_(1)


def noise(model: FICGAN) -> Tensor:
    """Images that no photo looks like, [3,3,R,R]: an error that the faces hide shows here."""
    generator = torch.Generator().manual_seed(CHECK_SEED)
    return torch.rand(3, 3, model.resolution, model.resolution, generator=generator) * 2 - 1


def is_near(model: FICGAN, exported: Exported, inputs: Mapping[str, Tensor]) -> bool:
    """Print how far each precision is from torch; whether float32 is within the limit."""
    print("Largest absolute difference to torch in float32; *image* from the same codes, *both* encoded and generated.")
    print(
        "\n| precision | inputs | z_id | z_non | w | image | image, mean | image, PSNR | both, PSNR |\n"
        + "|-" * 9
        + "|"
    )
    good = True
    for precision, models in exported.items():
        runner = Runner(models)
        for name, images in inputs.items():
            found = differences(model, runner, images)
            largest = " | ".join(f"{found[part].max():.1e}" for part in ("z_id", "z_non", "w", "image"))
            rest = f"{found['image'].mean():.1e} | {psnr(found['image']):.1f} dB | {psnr(found['both']):.1f} dB"
            print(f"| {precision} | {name} ({len(images)}) | {largest} | {rest} |")
            if precision == "fp32":  # NaN is not near
                good = good and all(error.max() <= LIMIT for error in found.values())
    return good


if __name__ == "__main__":
    sys.exit(handle_errors(main)())
