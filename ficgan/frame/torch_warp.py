"""The warp of `ficgan.frame.geometry` and the paste of its textures with gradients, for training."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from ficgan.frame.geometry import LO, Warp

# Least area of a frame pixel, of its area in the mean face, that a step of Newton's method reckons with.
_LEAST = 0.15
# Distance in upright units beyond which the frame has no pixel for a place.
_MISS = 0.5


class TorchWarp(nn.Module):
    """The warp between frame and upright coordinates, batched and differentiable."""

    matrix: Tensor
    grid: Tensor
    front: Tensor
    rows: Tensor
    low: Tensor
    step: Tensor

    def __init__(self, warp: Warp) -> None:
        super().__init__()
        self.size = warp.size
        arrays = {"matrix": warp.matrix, "grid": warp.grid, "front": warp.front, "low": LO, "step": warp.step}
        for name, array in arrays.items():
            self.register_buffer(name, torch.as_tensor(array, dtype=torch.float32), persistent=False)
        self.register_buffer("rows", torch.as_tensor(warp.rows), persistent=False)

    def to_upright(self, points: Tensor) -> Tensor:
        """Positions [B,R,R,2] of the frame's pixels for meshes [B,468,≥2], upright units; as exact under autocast."""
        with torch.autocast(points.device.type, enabled=False):
            moved = points[:, self.rows, :2] - self.front
            # One product for the whole batch: a batched one would copy the matrix for every face.
            flat = self.matrix @ moved.transpose(0, 1).flatten(1)
            return self.grid + flat.unflatten(1, (-1, 2)).movedim(1, 0).unflatten(1, (self.size, self.size))

    def to_frame(self, upright: Tensor, wanted: Tensor, steps: int = 5) -> Tensor:
        """The inverse of `to_upright`: pixels [B,h,w,2] of the frame, perhaps outside it, of upright places [B,h,w,2].

        The places are searched by Newton's method without gradients. One more step from there, with constant
        derivatives, has the gradients of the inverse: p = s + J⁻¹ (wanted − upright(s)), by the implicit function
        theorem. Where the frame has no such pixel they are 0, and near a fold they are bounded. Which side of a fold is
        seen is not asked.
        """
        last = self.size - 1
        with torch.no_grad():
            across, down = torch.gradient(upright, dim=(2, 1))
            field = torch.cat([upright, across, down], 3).movedim(3, 1)
            place = (wanted - self.low) / self.step
            for _ in range(steps):
                now, across, down = self.sample(field, place).movedim(1, 3).split(2, 3)
                # A mesh that is no number must not become an address: `grid_sample` on a CPU would crash.
                move = self._solve(across, down, wanted - now).nan_to_num(0).clamp(-12, 12)
                place = (place + move).clamp(-last, 2 * last)
            across, down = self._slopes(upright, place)
        residual = wanted - self.sample(upright.movedim(3, 1), place).movedim(1, 3)
        near = residual.detach().norm(dim=3, keepdim=True) < _MISS
        there = near & ((place >= 0) & (place <= last)).all(3, keepdim=True)
        return place + torch.where(there, self._solve(across, down, residual), torch.zeros_like(residual))

    @staticmethod
    def sample(images: Tensor, at: Tensor) -> Tensor:
        """Bilinear samples [B,C,h,w] of images [B,C,H,W], whose border goes on outside, at pixels [B,h,w,2] (x, y)."""
        height, width = images.shape[2:]
        place = 2 * at / at.new_tensor([max(width - 1, 1), max(height - 1, 1)]) - 1
        return F.grid_sample(images, place, mode="bilinear", padding_mode="border", align_corners=True)

    def _solve(self, across: Tensor, down: Tensor, wish: Tensor) -> Tensor:
        """The step [...,2] in pixels that moves upright coordinates by a wish, by their derivatives [...,2]."""
        (a, c), (b, d), (x, y) = across.unbind(-1), down.unbind(-1), wish.unbind(-1)
        area = (a * d - b * c).clamp_min(_LEAST * float(self.step.prod()))
        return torch.stack([d * x - b * y, a * y - c * x], -1) / area[..., None]

    def _slopes(self, upright: Tensor, place: Tensor) -> tuple[Tensor, Tensor]:
        """Derivatives [B,h,w,2] of the bilinear interpolation of [B,R,R,2] by column and row, exactly."""
        field, cell = upright.movedim(3, 1), place.floor().clamp(0, self.size - 2)
        across = self.sample(field.diff(dim=3), torch.stack([cell[..., 0], place[..., 1]], 3))
        down = self.sample(field.diff(dim=2), torch.stack([place[..., 0], cell[..., 1]], 3))
        return across.movedim(1, 3), down.movedim(1, 3)


class Composite(nn.Module):
    """Textures laid onto aligned crops of side S, differentiable in texture and shape.

    The warp is inverted on every `coarse`-th pixel, since it is smooth; `mask` [R,R] weighs the texture.
    """

    mask: Tensor
    places: Tensor

    def __init__(self, warp: Warp, mask: NDArray[np.float32], side: int, *, coarse: int = 2) -> None:
        super().__init__()
        self.warp, self.side = TorchWarp(warp), side
        at = torch.linspace(0, side - 1, max(2, side // coarse))
        x, y = torch.meshgrid(at, at, indexing="xy")
        self.register_buffer("mask", torch.as_tensor(mask)[None, None], persistent=False)
        self.register_buffer("places", torch.stack([x, y, torch.ones_like(x)], 2), persistent=False)

    def forward(self, source: Tensor, textures: Tensor, points: Tensor, upright: Tensor) -> Tensor:
        """Crops [B,3,S,S] with the textures [B,3,R,R] on them, in the crops' units.

        `points` [B,468,≥2] are the published meshes in upright units, `upright` [B,2,3] brings crops there.
        """
        with torch.autocast(source.device.type, enabled=False):
            there = self.warp.to_upright(points.float())
            wanted = torch.einsum("bij,hwj->bhwi", upright.float(), self.places)
            at = self.warp.to_frame(there, wanted)
            residual = (wanted - self.warp.sample(there.detach().movedim(3, 1), at.detach()).movedim(1, 3)).norm(dim=3)
            found = (2 - residual / _MISS).clamp(0, 1)[:, None]
            fine = torch.cat([at.movedim(3, 1), found], 1)
            fine = F.interpolate(fine, (self.side, self.side), mode="bilinear", align_corners=True)
            place = fine[:, :2].movedim(1, 3)
            new = self.warp.sample(textures.float(), place)
            # The mask is zero on the frame's border, so that places outside the frame keep the source.
            weight = self.warp.sample(self.mask.expand(len(source), -1, -1, -1), place) * fine[:, 2:]
            return source + weight * (new - source)
