"""The encoder and the generator as ONNX files for use without torch: float32, float16 or int8."""

from ficgan.export.networks import KINDS, OPSET
from ficgan.export.precision import PRECISIONS, calibrate, drawn_faces, quantise, to_onnx
from ficgan.export.runner import Difference, Runner, differences, race

__all__ = [
    "KINDS", "OPSET", "PRECISIONS", "Difference", "Runner", "calibrate", "differences", "drawn_faces", "quantise",
    "race", "to_onnx",
]  # fmt: skip
