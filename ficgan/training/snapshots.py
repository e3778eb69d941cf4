"""Picture grids of a run: reconstruction, swap, k-same and layer sweep, always of the same faces."""

from __future__ import annotations

import os
from pathlib import Path

import torch
from torch import Tensor

from ficgan.models import FICGAN

__all__ = ["save_grid", "snapshot"]


@torch.no_grad()
def snapshot(model: FICGAN, faces: Tensor, path: Path) -> None:
    """Write one picture; a column for each face.

    Rows: source, reconstruction, swap with the next face, then the mean code in all layers (i = 0) and i = ¼L, ½L, ¾L,
    L − 1.

    Args:
        model: averaged model in evaluation mode.
        faces: [B,3,R,R] in [−1, 1].
        path: PNG to write.
    """
    num_layers = model.num_layers
    codes = model.encode(faces)
    w = model.map(codes.z_id)
    rows = [faces, model.generate(w, codes.z_non), model.generate(w.roll(-1, 0), codes.z_non)]
    mean = model.mapping.w_mean.expand_as(w)
    for kept in sorted({0, num_layers // 4, num_layers // 2, 3 * num_layers // 4, num_layers - 1}):
        per_layer = mean[:, None].repeat(1, num_layers, 1)
        per_layer[:, :kept] = w[:, None]
        rows.append(model.generate(per_layer, codes.z_non))
    save_grid(torch.stack(rows), path)


def save_grid(images: Tensor, path: Path) -> None:
    """Write images [rows,columns,3,R,R] in [−1, 1] as one PNG, whole or not at all."""
    from PIL import Image

    rows, columns, _, height, width = images.shape
    pixels = ((images.float().clamp(-1, 1) + 1) * 127.5).round().to(torch.uint8).cpu()
    sheet = pixels.permute(0, 3, 1, 4, 2).reshape(rows * height, columns * width, 3)
    temporary = path.with_name(f".{path.name}.partial")
    Image.fromarray(sheet.numpy()).save(temporary, format="PNG")
    os.replace(temporary, path)
