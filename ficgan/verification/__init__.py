"""Face-verification networks V: frozen, differentiable in their input, fed through the checkpoint's own alignment."""

from __future__ import annotations

from pathlib import Path

import torch

from ficgan.errors import InputError, UsageError
from ficgan.faces.crops import ARCFACE_POINTS, Alignment
from ficgan.verification.sphereface import SPHEREFACE_POINTS, SPHEREFACE_SIZE, load_sphereface
from ficgan.verification.verifier import AlignedInput, Verifier, load_onnx

__all__ = ["AlignedInput", "Verifier", "load_verifier"]


def load_verifier(spec: str, *, alignment: Alignment, resolution: int, device: str = "cpu") -> Verifier:
    """Load a verification network: "sphereface20:PATH", or "onnx:PATH" (ArcFace's template, 112×112)."""
    kind, _, file = spec.partition(":")
    if kind not in ("sphereface20", "onnx") or not file:
        raise UsageError(f"Verifier {spec!r} is not known; write sphereface20:PATH or onnx:PATH.")
    path = Path(file)
    if not path.is_file():
        raise InputError(f"Verifier file {path} does not exist; give the path of a recogniser.")
    if kind == "onnx":
        network, size, mean, scale = load_onnx(path)
        # Recognisers of another input size were trained on the same template, scaled.
        points = (ARCFACE_POINTS + 0.5) * (size[0] / 112) - 0.5
    else:
        network = load_sphereface(path)
        size, points, mean, scale = SPHEREFACE_SIZE, SPHEREFACE_POINTS, 127.5, 128.0
    aligned = AlignedInput(alignment, resolution, points, size)
    verifier = Verifier(network, aligned, mean=mean, scale=scale, name=f"{kind}:{path.name}")
    return verifier.to(device).to(memory_format=torch.channels_last)
