"""Codes of a whole set of faces."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import torch

    from ficgan.models import FICGAN

__all__ = ["encode_faces"]


def encode_faces(
    model: FICGAN,
    images: torch.Tensor,
    *,
    batch: int = 64,
    device: str = "cpu",
    progress: Callable[[int, int], None] | None = None,
) -> NDArray[np.float32]:
    """Intermediate latents w of aligned faces.

    Args:
        model: in evaluation mode, on `device`.
        images: uint8 [N,3,R,R] at the model's resolution.
        batch: faces at once.
        device: where the model is.
        progress: called as progress(done, N).

    Returns:
        float32 [N,w_dim].
    """
    import torch

    found = np.empty((len(images), model.config.w_dim), np.float32)
    with torch.inference_mode():
        for begin in range(0, len(images), batch):
            x = images[begin : begin + batch].to(device).float().div_(127.5).sub_(1)
            codes = model.encode(x.contiguous(memory_format=torch.channels_last))
            found[begin : begin + batch] = model.map(codes.z_id).float().cpu().numpy()
            if progress:
                progress(min(begin + batch, len(images)), len(images))
    return found
