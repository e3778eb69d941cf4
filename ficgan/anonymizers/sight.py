"""Recognisers that an anonymiser works against: named by a text, and differentiable in crops with any landmarks."""

from __future__ import annotations

import functools
import os
from typing import TYPE_CHECKING

import numpy as np

from ficgan.anonymizers.base import Faces
from ficgan.errors import InputError, UsageError
from ficgan.faces.alignment import Alignment, similarity

if TYPE_CHECKING:
    from torch import Tensor

    from ficgan.verification import Verifier

__all__ = ["Sight", "load_verifiers", "verifier_specs"]


class Sight:
    """Faces as a verifier sees them: placed by their landmarks as the default alignment would, then by V's own way.

    Args:
        verifier: loaded for the default alignment and crops of this size.
        faces: whose landmarks count.
    """

    def __init__(self, verifier: Verifier, faces: Faces) -> None:
        import torch

        side = faces.images.shape[1]
        # Pixel p has its centre at (2p + 1)/side − 1, the unit of `grid_sample`.
        unit = np.array([[2 / side, 0, 1 / side - 1], [0, 2 / side, 1 / side - 1], [0, 0, 1]])
        own = np.vstack([verifier.aligned.theta.cpu().double().numpy(), [0, 0, 1]])
        template = Alignment().points(side)
        theta = [
            (unit @ np.linalg.inv(np.vstack([similarity(marks, template), [0, 0, 1]])) @ np.linalg.inv(unit) @ own)[:2]
            for marks in faces.landmarks
        ]
        self._verifier = verifier
        self._theta = torch.from_numpy(np.stack(theta)).float().to(verifier.aligned.theta.device)

    def __call__(self, x: Tensor) -> Tensor:
        """Features [B,D] of crops [B,3,S,S] in grey levels.

        Raises:
            InputError: a feature is not finite.
        """
        import torch
        from torch.nn import functional as F

        v = self._verifier
        if v.aligned.pool > 1:
            x = F.avg_pool2d(x, v.aligned.pool)
        with torch.autocast(device_type=x.device.type, enabled=False):
            where = F.affine_grid(self._theta, [len(x), 3, *v.aligned.size], align_corners=False)
            seen = F.grid_sample(x, where, mode="bilinear", padding_mode="zeros", align_corners=False)
            seen = ((seen - v.mean) / v.scale).contiguous(memory_format=torch.channels_last)
            features: Tensor = v.network(seen)[0]
        if not torch.isfinite(features).all():
            raise InputError(f"{v.name} gives features that are not finite; give another verifier")
        return features


def load_verifiers(text: str, side: int, device: str) -> list[Verifier]:
    """The verifiers of a text such as "onnx:PATH+onnx:PATH", for crops of a side in the default alignment.

    They are kept between calls, until their files change.

    Raises:
        UsageError: none is named, or one of no known kind.
        InputError: a file is missing, damaged, or no face recogniser.
    """
    return [_read(spec, side, device, _stamp(spec)) for spec in verifier_specs(text)]


def verifier_specs(text: str) -> list[str]:
    """ "a.onnx+sphereface20:b" → what `load_verifier` takes.

    Raises:
        UsageError: nothing is named, or a bare path whose ending says nothing.
    """
    specs = []
    for part in text.split("+"):
        one = part.strip()
        kinds = {".onnx": "onnx", ".safetensors": "sphereface20"}
        if not one:
            raise UsageError("fawkes needs a recogniser to mislead; give verifier=onnx:PATH, several joined by +")
        if not one.startswith(("onnx:", "sphereface20:")):
            kind = kinds.get(os.path.splitext(one)[1])
            if kind is None:
                raise UsageError(f"fawkes: verifier {one!r} is of no known kind; write onnx:PATH or sphereface20:PATH")
            one = f"{kind}:{one}"
        specs.append(one)
    return specs


def _stamp(spec: str) -> tuple[int, int]:
    """Time and size of the file, so that a new one is read again; (0, 0) where there is none."""
    try:
        status = os.stat(spec.partition(":")[2])
    except OSError:
        return (0, 0)
    return (status.st_mtime_ns, status.st_size)


@functools.lru_cache(maxsize=4)
def _read(spec: str, side: int, device: str, stamp: tuple[int, int]) -> Verifier:
    import torch

    from ficgan.verification import load_verifier

    with torch.inference_mode(False):
        return load_verifier(spec, alignment=Alignment(), resolution=side, device=device)
