"""The precisions of an export."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray

from ficgan.errors import UsageError
from ficgan.models import FICGAN, CheckpointHeader

from .calibration import Calibration
from .networks import encoder_to_onnx, generator_to_onnx, metadata_of

__all__ = ["PRECISIONS", "quantise", "to_onnx"]

PRECISIONS = ("fp32", "fp16", "int8")
BATCH = 8


def to_onnx(
    model: FICGAN,
    header: CheckpointHeader,
    digest: str,
    precision: str = "fp32",
    calibration: Calibration | None = None,
) -> dict[str, onnx.ModelProto]:
    """Export encoder and generator.

    Args:
        model: its weights are copied.
        header: of its checkpoint.
        digest: sha256 of its checkpoint.
        precision: "fp32"; "fp16", weights and feature maps in float16, meant for GPUs: a CPU without float16 arithmetic
            converts forth and back; "int8", the 3×3 and 1×1 convolutions of the trunks with 8-bit weights and feature
            maps.
        calibration: what the networks get; needed for int8.

    Returns:
        "encoder" and "generator" → model, float32 at the ends in every precision.

    Raises:
        UsageError: unknown precision, or int8 without calibration.
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

    Float stay: the first convolution of the encoder (its input is the image), the resampling filters, the RGB outputs,
    and all matrix products, which make the codes (8-bit ones made the error of w eight times larger). The weights use 7
    of the 8 bits: CPUs without VNNI add pairs of products in 16 bits, which 8 would overflow.

    Args:
        model: of `encoder_to_onnx` or `generator_to_onnx`; left as it is.
        feeds: an array of N inputs for each input of the model; feature maps beyond what these give are clipped.
    """
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

    class Reader(CalibrationDataReader):
        def __init__(self) -> None:
            number = len(next(iter(feeds.values())))
            self.batches: Iterator[dict[str, NDArray[np.float32]]] = iter(
                {name: array[begin : begin + BATCH] for name, array in feeds.items()}
                for begin in range(0, number, BATCH)
            )

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
