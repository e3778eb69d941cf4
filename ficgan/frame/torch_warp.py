"""The warp of `ficgan.frame.geometry` with gradients, for training."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ficgan.frame.geometry import LO, Warp

__all__ = ["TorchWarp"]

_LEAST = 0.15
"""Least area of a frame pixel, of its area in the mean face, that a step of Newton's method reckons with."""
_MISS = 0.5
"""Distance in upright units beyond which the frame has no pixel for a place."""


class TorchWarp(nn.Module):
    """Warp between frame and upright coordinates, batched and differentiable.

    Args:
        warp: whose matrix it takes over.
    """

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
        """Where the frame's pixels lie; as exact under autocast.

        Args:
            points: [B,468,≥2] meshes, upright units.

        Returns:
            [B,R,R,2], upright units.
        """
        with torch.autocast(points.device.type, enabled=False):
            moved = points[:, self.rows, :2] - self.front
            return self.grid + (self.matrix @ moved).unflatten(1, (self.size, self.size))

    def to_frame(self, upright: Tensor, wanted: Tensor, steps: int = 5) -> Tensor:
        """The inverse of `to_upright`, by Newton's method.

        The places are searched without gradients. One more step from there, with constant derivatives, has the
        gradients of the inverse: p = s + J⁻¹ (wanted − upright(s)), by the implicit function theorem. Where the frame
        has no such pixel they are 0, and near a fold they are bounded. Which side of a fold is seen is not asked.

        Args:
            upright: [B,R,R,2] of `to_upright`, upright units.
            wanted: [B,h,w,2], upright units.
            steps: of Newton's method.

        Returns:
            [B,h,w,2], pixels of the R×R frame, which may lie outside it.
        """
        last = self.size - 1
        with torch.no_grad():
            across, down = torch.gradient(upright, dim=(2, 1))
            field = torch.cat([upright, across, down], 3).movedim(3, 1)
            place = (wanted - self.low) / self.step
            for _ in range(steps):
                now, across, down = self.sample(field, place).movedim(1, 3).split(2, 3)
                move = self._solve(across, down, wanted - now).clamp(-12, 12)
                place = (place + move).clamp(-last, 2 * last)
            across, down = self._slopes(upright, place)
        missed = wanted - self.sample(upright.movedim(3, 1), place).movedim(1, 3)
        near = missed.detach().norm(dim=3, keepdim=True) < _MISS
        there = near & ((place >= 0) & (place <= last)).all(3, keepdim=True)
        return place + torch.where(there, self._solve(across, down, missed), torch.zeros_like(missed))

    @staticmethod
    def sample(images: Tensor, at: Tensor) -> Tensor:
        """Bilinear samples of images, whose border goes on outside.

        Args:
            images: [B,C,H,W].
            at: [B,h,w,2], pixels (x, y), centres at integers.

        Returns:
            [B,C,h,w].
        """
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
