"""The encoder and the generator as ONNX files for use without torch: float32, float16 or int8."""

from ficgan.export.calibration import Calibration, calibrate, drawn_faces
from ficgan.export.measure import Difference, differences, race
from ficgan.export.networks import KINDS, encoder_to_onnx, generator_to_onnx, metadata_of
from ficgan.export.runner import Runner
from ficgan.export.variants import PRECISIONS, quantise, to_onnx

__all__ = [
    "KINDS",
    "PRECISIONS",
    "Calibration",
    "Difference",
    "Runner",
    "calibrate",
    "differences",
    "drawn_faces",
    "encoder_to_onnx",
    "generator_to_onnx",
    "metadata_of",
    "quantise",
    "race",
    "to_onnx",
]
