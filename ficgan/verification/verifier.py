"""V: any face recogniser as a frozen network that is differentiable in the image."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn

from ficgan.errors import InputError, UsageError
from ficgan.faces.alignment import ARCFACE_POINTS, Alignment
from ficgan.verification.sphereface import SPHEREFACE_POINTS, SPHEREFACE_SIZE
from ficgan.verification.transform import AlignedInput, VAugment


class Verifier(nn.Module):
    """A frozen recogniser behind the alignment of a checkpoint.

    Args:
        network: maps [B, 3, h, w] to (embeddings [B, D], list of feature maps).
        aligned: carries a checkpoint's crops to the network's, in grey levels 0..255.
        mean, scale: the network sees (grey level − mean) / scale.
        name: for messages and training records.
    """

    def __init__(self, network: nn.Module, aligned: AlignedInput, *, mean: float, scale: float, name: str) -> None:
        super().__init__()
        self.network, self.aligned, self.mean, self.scale, self.name = network, aligned, mean, scale, name
        self.requires_grad_(False)
        self.eval()

    def train(self, mode: bool = True) -> Verifier:
        """V stays frozen and in evaluation mode, whatever is asked of the module that holds it."""
        return super().train(False)

    def forward(
        self, x: Tensor, *, taps: bool = False, generator: torch.Generator | None = None
    ) -> Tensor | tuple[Tensor, list[Tensor]]:
        """Embeddings of faces; the gradient flows to `x` and to nothing else. Always float32, also under autocast.

        Args:
            x: [B, 3, R, R], RGB in [−1, 1], aligned as the checkpoint's crops.
            taps: also return early feature maps, from the same pass.
            generator: draws the augmentation, where V has one; without it, none is applied.
        Returns:
            float32 [B, D], not normalised; with `taps`, also up to three maps [B, C, h, w], finest first.
        """
        embedding, maps = self.read((x, generator))
        return (embedding, maps) if taps else embedding

    def read(self, *parts: tuple[Tensor, torch.Generator | None]) -> tuple[Tensor, list[Tensor]]:
        """Embeddings and early feature maps of several batches in one pass, each varied by its own generator."""
        with torch.autocast(device_type=parts[0][0].device.type, enabled=False):
            y = torch.cat([self.aligned(x, generator) for x, generator in parts])
            if (self.mean, self.scale) != (0.0, 1.0):
                y = (y - self.mean) / self.scale
            embedding, maps = self.network(y.contiguous(memory_format=torch.channels_last))
        return embedding, maps

    def features(self, x: Tensor, *, generator: torch.Generator | None = None) -> list[Tensor]:
        """The early feature maps alone: up to three, finest first."""
        return self(x, taps=True, generator=generator)[1]


def load_verifier(
    spec: str, *, alignment: Alignment, resolution: int, augment: VAugment | None = None, device: str = "cpu"
) -> Verifier:
    """Load a verification network.

    Args:
        spec: "sphereface20:PATH" (a safetensors file of `ficgan train-verifier`) or "onnx:PATH" (any face recogniser
            with one image input of fixed size; the five-point ArcFace template, 112×112, is assumed).
        alignment: where the landmarks lie in the crops V will see.
        resolution: side R of those crops, pixels.
        augment: random variation before V, applied when `forward` is given a generator.
        device: where V computes.
    Raises:
        UsageError: the spec is of no known kind.
        InputError: the file is missing, damaged, or not a face recogniser.
    """
    kind, _, file = spec.partition(":")
    if kind not in ("sphereface20", "onnx") or not file:
        raise UsageError(f"Verifier {spec!r} is not known; write sphereface20:PATH or onnx:PATH.")
    path = Path(file)
    if not path.is_file():
        raise InputError(f"Verifier file {path} does not exist; give the path of a recogniser.")
    if kind == "onnx":
        from ficgan.verification.graph import load_onnx

        network, size, mean, scale = load_onnx(path)
        # Recognisers of another input size were trained on the same template, scaled.
        points = (ARCFACE_POINTS + 0.5) * (size[0] / 112) - 0.5
    else:
        from ficgan.verification.io import load_sphereface

        network, _ = load_sphereface(path)
        size, points, mean, scale = SPHEREFACE_SIZE, SPHEREFACE_POINTS, 127.5, 128.0
    aligned = AlignedInput(alignment, resolution, points, size, augment)
    verifier = Verifier(network, aligned, mean=mean, scale=scale, name=f"{kind}:{path.name}")
    return verifier.to(device).to(memory_format=torch.channels_last)
