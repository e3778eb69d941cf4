"""The precisions of an export, and the inputs that show the int8 quantiser which values the feature maps take."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import onnx
import torch
from numpy.typing import NDArray
from torch import Tensor

from ficgan.errors import UsageError
from ficgan.models import FICGAN, CheckpointHeader
from ficgan.models.layers import normalise_rms

from .networks import encoder_to_onnx, generator_to_onnx, metadata_of

__all__ = ["PRECISIONS", "Calibration", "calibrate", "drawn_faces", "quantise", "to_onnx"]

PRECISIONS = ("fp32", "fp16", "int8")
BATCH = 8


class Calibration(NamedTuple):
    """Inputs of both networks, float32: image [N,3,R,R] in [−1, 1], w [M,L,w_dim], z_non [M,C,4,4]."""

    image: NDArray[np.float32]
    w: NDArray[np.float32]
    z_non: NDArray[np.float32]


@torch.inference_mode()
def drawn_faces(model: FICGAN, number: int, *, seed: int, codes: NDArray[np.floating] | None = None) -> Tensor:
    """Faces that the generator draws, where there are no photos: float32 [number,3,R,R] in [−1, 1].

    Each takes one of the `codes` [N,w_dim] of a bank; without them random identity codes are mapped.
    """
    config, generator = model.config, torch.Generator().manual_seed(seed)
    if codes is None:
        w = model.map(torch.randn(number, config.id_dim, generator=generator))
    elif codes.ndim != 2 or codes.shape[1] != config.w_dim or not len(codes):
        raise UsageError(
            f"the bank's codes are {list(codes.shape)}, the model needs [N,{config.w_dim}]; give its own bank"
        )
    else:
        rows = torch.randint(len(codes), (number,), generator=generator).numpy()
        w = torch.from_numpy(codes[rows].astype(np.float32))
    z_non = normalise_rms(torch.randn(number, config.spatial_channels, 4, 4, generator=generator))
    return model.generate(w, z_non).clamp(-1, 1)


@torch.inference_mode()
def calibrate(model: FICGAN, faces: Tensor) -> Calibration:
    """What both networks get when faces [N,3,R,R] in [−1, 1] are encoded and generated."""
    side = model.resolution
    if faces.ndim != 4 or not len(faces) or tuple(faces.shape[1:]) != (3, side, side):
        raise UsageError(f"calibration got images {list(faces.shape)}; give at least one of [N,3,{side},{side}]")
    codes = [model.encode(part) for part in faces.split(32)]
    w = torch.cat([model.map(part.z_id) for part in codes])
    identities = torch.cat([w, w.roll(1, 0), w.mean(0).expand_as(w)])
    z_non = torch.cat([part.z_non for part in codes]).repeat(3, 1, 1, 1)
    per_layer = identities[:, None].repeat(1, model.num_layers, 1)
    return Calibration(faces.contiguous().numpy(), per_layer.numpy(), z_non.numpy())


def to_onnx(
    model: FICGAN, header: CheckpointHeader, digest: str, precision: str = "fp32",
    calibration: Calibration | None = None,
) -> dict[str, onnx.ModelProto]:  # fmt: skip
    """Export encoder and generator: "encoder" and "generator" → model, float32 at the ends in every precision.

    Args:
        header, digest: of the checkpoint.
        precision: "fp32"; "fp16": weights and feature maps in float16, meant for GPUs; "int8": the convolutions of the
            trunks with 8-bit weights and feature maps.
        calibration: what the networks get; needed for int8.
    """
    if precision not in PRECISIONS:
        raise UsageError(f"there is no precision {precision!r}; use one of {', '.join(PRECISIONS)}")
    metadata, half = metadata_of(header, digest), precision == "fp16"
    encoder, generator = (make(model, metadata, half=half) for make in (encoder_to_onnx, generator_to_onnx))
    if precision == "int8":
        if calibration is None:
            raise UsageError("int8 needs to see which values the feature maps take; give a calibration")
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
            inferred, path, Reader(), quant_format=QuantFormat.QDQ, op_types_to_quantize=["Conv"],
            nodes_to_exclude=[node.name for node in model.graph.node if _stays_float(node)], per_channel=True,
            activation_type=QuantType.QUInt8, weight_type=QuantType.QInt8, reduce_range=True,
        )  # fmt: skip
        quantised = onnx.load(path)
    onnx.helper.set_model_props(quantised, {**metadata, "precision": "int8"})
    return quantised


def _stays_float(node: onnx.NodeProto) -> bool:
    grouped = any(attribute.name == "group" and attribute.i > 1 for attribute in node.attribute)
    return node.op_type == "Conv" and (grouped or node.name.startswith(("from_rgb", "to_rgb")))
