"""From a model's crop to a recogniser's crop: one similarity, sampled bilinearly with black around it."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from ficgan.errors import UsageError
from ficgan.faces.alignment import Alignment, similarity

# Luma of BT.601: the axis about which saturation turns.
_LUMA = (0.299, 0.587, 0.114)


@dataclass(frozen=True)
class VAugment:
    """How far a face is varied at random before V sees it, so that G cannot please V with one fixed pattern.

    Args:
        shift: largest shift, fraction of the crop's side.
        scale: largest relative change of scale.
        rotation: largest rotation, degrees.
        blur: largest weight of a 3×3 binomial blur, 0..1.
        noise: largest standard deviation of Gaussian noise, grey levels of 255.
        brightness, contrast, saturation: largest relative change of colour.
    """

    shift: float = 0.05
    scale: float = 0.05
    rotation: float = 5.0
    blur: float = 0.7
    noise: float = 4.0
    brightness: float = 0.1
    contrast: float = 0.1
    saturation: float = 0.1

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not (math.isfinite(value) and value >= 0):
                raise UsageError(f"VAugment {field.name} is {value!r}; give a finite number of at least 0.")
        if self.scale >= 1 or self.blur > 1:
            raise UsageError("VAugment scale must be below 1 and blur at most 1.")


class AlignedInput(nn.Module):
    """Carries crops of a checkpoint to the crops a recogniser was trained on; differentiable, always float32.

    The similarity takes the checkpoint's five template points to the recogniser's. What lies outside the checkpoint's
    crop is black: stretching the crop over the recogniser's instead makes strangers look alike (mean cosine .58).

    Args:
        alignment: where the landmarks lie in the checkpoint's crops.
        resolution: side R of those crops, pixels.
        points: [5, 2] where the recogniser expects them, pixels (x, y), centres at integers.
        size: (height, width) of the recogniser's input.
        augment: random variation, applied when `forward` is given a generator.
    """

    theta: Tensor

    def __init__(
        self,
        alignment: Alignment,
        resolution: int,
        points: ArrayLike,
        size: tuple[int, int],
        augment: VAugment | None = None,
    ) -> None:
        super().__init__()
        self.size, self.augment, self.resolution = size, augment, resolution
        matrix = similarity(alignment.points(resolution), points)
        # Reduced by averaging first where the similarity shrinks by more than 2: bilinear sampling alone would skip
        # pixels, which aliases and leaves them without a gradient.
        shrink = 1 / math.hypot(matrix[0, 0], matrix[1, 0])
        self.pool = 1
        while self.pool * 2 <= shrink * (1 + 1e-6) and resolution % (self.pool * 2) == 0:
            self.pool *= 2
        self.register_buffer("theta", torch.from_numpy(_theta(matrix, resolution, size)).float(), persistent=False)

    def forward(self, x: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Crops as the recogniser sees them.

        Args:
            x: [B, 3, R, R], RGB in [−1, 1].
            generator: draws the augmentation; without it, none is applied.
        Returns:
            float32 [B, 3, h, w], RGB in 0..255, 0 outside the crop.
        """
        x = (x.float() + 1) * 127.5
        if self.pool > 1:
            x = F.avg_pool2d(x, self.pool)
        theta = self.theta.expand(len(x), 2, 3)
        augment = self.augment if generator is not None else None
        if augment is not None and generator is not None:
            x = _jitter_colour(x, augment, generator)
            theta = self._vary(theta, augment, generator)
        grid = F.affine_grid(theta, [len(x), 3, *self.size], align_corners=False)
        y = F.grid_sample(x, grid, mode="bilinear", padding_mode="zeros", align_corners=False)
        if augment is not None and generator is not None:
            y = _blur_and_noise(y, augment, generator)
        return y

    def _vary(self, theta: Tensor, augment: VAugment, generator: torch.Generator) -> Tensor:
        """theta [B,2,3] after a random similarity about the centre of the recogniser's crop."""
        shift_x, shift_y, scale, turn = _uniform(4, len(theta), generator, theta.device)
        size = 1 + augment.scale * scale
        angle = math.radians(augment.rotation) * turn
        cos, sin = size * angle.cos(), size * angle.sin()
        # In normalised coordinates a rotation of a crop that is not square must be undone by its aspect.
        aspect = self.size[0] / self.size[1]
        zero, one = torch.zeros_like(cos), torch.ones_like(cos)
        rows = [cos, -sin * aspect, 2 * augment.shift * shift_x, sin / aspect, cos, 2 * augment.shift * shift_y]
        vary = torch.stack([*rows, zero, zero, one], 1).view(-1, 3, 3)
        return theta @ vary


def _theta(matrix: NDArray[np.float64], resolution: int, size: tuple[int, int]) -> NDArray[np.float64]:
    """`F.affine_grid`'s matrix (output → input, coordinates −1..1) of a pixel matrix (input → output)."""

    def normalise(width: int, height: int) -> NDArray[np.float64]:
        # Pixel p has its centre at (2p + 1)/n − 1 when corners are not aligned.
        return np.array([[2 / width, 0, 1 / width - 1], [0, 2 / height, 1 / height - 1], [0, 0, 1]])

    forward = np.vstack([matrix, [0, 0, 1]])
    output = normalise(size[1], size[0])
    return (normalise(resolution, resolution) @ np.linalg.inv(forward) @ np.linalg.inv(output))[:2]


def _uniform(rows: int, batch: int, generator: torch.Generator, device: torch.device) -> Tensor:
    """[rows, batch] uniform in [−1, 1], drawn where the generator lives: the same draw for every device of the data."""
    return torch.rand(rows, batch, generator=generator, device=generator.device).to(device) * 2 - 1


def _jitter_colour(x: Tensor, augment: VAugment, generator: torch.Generator) -> Tensor:
    """Brightness, contrast about mid-grey and saturation as one 3×3 matrix and one offset per image."""
    brightness, contrast, saturation = _uniform(3, len(x), generator, x.device)
    gain = (1 + augment.brightness * brightness) * (1 + augment.contrast * contrast)
    offset = -127.5 * augment.contrast * contrast
    keep = (1 + augment.saturation * saturation)[:, None, None]
    grey = x.new_tensor(_LUMA).expand(3, 3)
    matrix = gain[:, None, None] * (keep * torch.eye(3, device=x.device) + (1 - keep) * grey)
    return torch.baddbmm(offset[:, None, None].expand(-1, 3, 1), matrix, x.flatten(2)).view_as(x)


def _blur_and_noise(y: Tensor, augment: VAugment, generator: torch.Generator) -> Tensor:
    blur, noise = (_uniform(2, len(y), generator, y.device) + 1) / 2
    row = torch.tensor([1.0, 2.0, 1.0], device=y.device) / 4
    kernel = torch.outer(row, row).expand(3, 1, 3, 3)
    smooth = F.conv2d(F.pad(y, (1, 1, 1, 1), mode="replicate"), kernel, groups=3)
    y = torch.lerp(y, smooth, (augment.blur * blur)[:, None, None, None])
    grain = torch.randn(y.shape, generator=generator, device=generator.device).to(y.device)
    return y + grain * (augment.noise * noise)[:, None, None, None]
