"""Inputs that show the int8 quantiser which values the feature maps take."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ficgan.errors import UsageError
from ficgan.models import FICGAN
from ficgan.models.layers import normalise_rms

__all__ = ["Calibration", "calibrate", "drawn_faces"]


class Calibration(NamedTuple):
    """Inputs of both networks, float32 NumPy arrays."""

    image: NDArray[np.float32]
    """[N,3,R,R] in [−1, 1]."""
    w: NDArray[np.float32]
    """[M,L,w_dim]."""
    z_non: NDArray[np.float32]
    """[M,C,4,4]."""


@torch.inference_mode()
def drawn_faces(model: FICGAN, number: int, *, seed: int, codes: NDArray[np.floating] | None = None) -> Tensor:
    """Faces that the generator draws, for want of photos.

    Args:
        model: in evaluation mode, on the CPU.
        number: how many.
        seed: of the draw.
        codes: [N,w_dim] of a bank, of which each face takes one; without them random identity codes are mapped.

    Returns:
        float32 [number,3,R,R] in [−1, 1].

    Raises:
        UsageError: the codes are of another size than the model's.
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
    """What both networks get when faces are encoded, and generated with their own, another's and the mean identity.

    Args:
        model: in evaluation mode, on the CPU.
        faces: [N,3,R,R] in [−1, 1].

    Raises:
        UsageError: no faces, or of another size than the model's.
    """
    side = model.resolution
    if faces.ndim != 4 or not len(faces) or tuple(faces.shape[1:]) != (3, side, side):
        raise UsageError(f"calibration got images {list(faces.shape)}; give at least one of [N,3,{side},{side}]")
    codes = [model.encode(part) for part in faces.split(32)]
    w = torch.cat([model.map(part.z_id) for part in codes])
    identities = torch.cat([w, w.roll(1, 0), w.mean(0).expand_as(w)])
    z_non = torch.cat([part.z_non for part in codes]).repeat(3, 1, 1, 1)
    per_layer = identities[:, None].repeat(1, model.num_layers, 1)
    return Calibration(faces.contiguous().numpy(), per_layer.numpy(), z_non.numpy())
