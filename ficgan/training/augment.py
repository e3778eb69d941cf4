"""Augmentation of what the discriminator sees, with a probability that adapts to its overfitting."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ficgan.config import AugmentConfig

__all__ = ["Augment", "flip"]


def flip(x: Tensor, rng: torch.Generator) -> Tensor:
    """Mirror each image of x [B,3,H,W] with probability ½; `rng` is a CPU generator."""
    chosen = torch.rand(x.shape[0], generator=rng) < 0.5
    return torch.where(chosen.to(x.device)[:, None, None, None], x.flip(3), x)


class Augment:
    """Random geometry and colour (kornia), each with probability p; p follows the discriminator's r_t.

    Without `config.adaptive` it hands images through. Its random numbers come from torch's own generator, which the
    loop seeds at every step.

    Args:
        config: target, speed and limits.

    Source: Karras et al. 2020, "Training GANs with limited data", section 3.2, with a kornia pipeline.
    """

    def __init__(self, config: AugmentConfig) -> None:
        self.config = config
        self.p = 0.0
        self.sign_sum = torch.zeros(())
        """Sum of r_t since p last moved, on the device; with `sign_steps` part of what a run resumes from."""
        self.sign_steps = 0
        self._pipeline: tuple[float, nn.Module] | None = None

    @property
    def active(self) -> bool:
        """Whether images are changed at all at this moment."""
        return self.config.adaptive and self.p > 0

    def observe(self, r_t: Tensor, batch: int, kimg: float) -> None:
        """Count one discriminator step; every `interval` of them p moves towards the point where r_t meets the target.

        Args:
            r_t: scalar, mean sign of the discriminator's logits for the step's real images.
            batch: images of the step.
            kimg: images seen in all, thousands.
        """
        if not self.config.adaptive or kimg < self.config.start_kimg:
            return
        self.sign_sum, self.sign_steps = self.sign_sum.to(r_t.device) + r_t, self.sign_steps + 1
        if self.sign_steps < self.config.interval:
            return
        direction = 1 if self.sign_sum.item() / self.sign_steps > self.config.target else -1
        step = direction * self.sign_steps * batch / (self.config.speed_kimg * 1000)
        self.p = min(max(self.p + step, 0.0), self.config.max_p)
        self.sign_sum, self.sign_steps = torch.zeros_like(self.sign_sum), 0

    def __call__(self, x: Tensor) -> Tensor:  # [B,3,H,W] in [−1, 1] → the same, augmented
        if not self.active:
            return x
        p = round(self.p, 2)
        if self._pipeline is None or self._pipeline[0] != p:
            self._pipeline = (p, _pipeline(p))
        return self._pipeline[1](x.float() * 0.5 + 0.5) * 2 - 1


def _pipeline(p: float) -> nn.Module:
    from kornia import augmentation as K

    return K.AugmentationSequential(
        K.RandomHorizontalFlip(p=p / 2),
        K.RandomAffine(degrees=10, translate=(0.1, 0.1), scale=(0.85, 1.15), padding_mode="reflection", p=p),
        K.RandomBrightness((0.8, 1.2), p=p),
        K.RandomContrast((0.7, 1.3), p=p),
        K.RandomSaturation((0.5, 1.5), p=p),
        K.RandomHue((-0.05, 0.05), p=p),
        data_keys=["input"],
    )
