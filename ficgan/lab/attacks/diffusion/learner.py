"""How the diffusion's U-Net is trained: the loss of the paper, and a running average of the weights."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ficgan.lab.attacks.diffusion.schedule import Predicts, Schedule, noised, target
from ficgan.lab.attacks.learned.trainer import Learner

__all__ = ["DiffusionLearner"]


class DiffusionLearner(Learner):
    """E‖f(x, y_t, √γ) − ε‖² under Adam; what is used in the end is the running average of the weights.

    Args:
        network: a U-Net; of its parameters those are trained that require gradients.
        lr: of Adam.
        schedule: of the noise.
        predicts: what the network answers.
        keep: share of the average that a step keeps, less at first.
        dropped: probability that a face is shown no condition, for guidance.
        flip: pairs are mirrored half of the time.
        dtype: in which convolutions and products are computed; weights and sums stay float32.

    Source:
        Revelio, eq. 4; Palette, §3 (mean squared error, average of weights with 0.9999).
    """

    def __init__(
        self,
        network: nn.Module,
        lr: float,
        schedule: Schedule,
        predicts: Predicts,
        *,
        keep: float = 0.9999,
        dropped: float = 0.0,
        flip: bool = False,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.network, self.average = network, copy.deepcopy(network).eval().requires_grad_(False)
        self.learnt = [name for name, weights in network.named_parameters() if weights.requires_grad]
        chosen = [weights for weights in network.parameters() if weights.requires_grad]
        adam = torch.optim.Adam(chosen, lr, fused=True)
        super().__init__({"network": network, "average": self.average}, {"adam": adam})
        self.schedule, self.predicts, self.keep, self.dropped, self.flip = schedule, predicts, keep, dropped, flip
        self.precision = str(dtype).removeprefix("torch.")

    @property
    def result(self) -> nn.Module:
        return self.average

    def step(self, seen: Tensor, clear: Tensor, images: int) -> dict[str, Tensor]:
        self.network.train()
        batch = len(seen)
        if self.flip:
            turned = (torch.rand(batch, device=seen.device) < 0.5)[:, None, None, None]
            seen, clear = (torch.where(turned, x.flip(3), x) for x in (seen, clear))
        if self.dropped:
            # In [0, 1] the middle is what zero is to the network.
            hidden = (torch.rand(batch, device=seen.device) < self.dropped)[:, None, None, None]
            seen = seen.masked_fill(hidden, 0.5)
        loss = self._loss(self.network, seen, clear, _spread(batch, seen.device))
        adam = self.optimizers["adam"]
        adam.zero_grad(set_to_none=True)
        loss.backward()
        adam.step()
        self._fold(images // batch)
        return {"loss": loss.detach()}

    def loss(self, seen: Tensor, clear: Tensor) -> Tensor:
        """Of the average."""
        return self._loss(self.average, seen, clear, _spread(len(seen), seen.device))

    def _loss(self, network: nn.Module, seen: Tensor, clear: Tensor, spots: Tensor) -> Tensor:
        seen, clear = 2 * seen - 1, 2 * clear - 1
        noise, root = torch.randn_like(clear), self.schedule.levels(spots)
        noisy = noised(clear, root, noise)
        dtype = getattr(torch, self.precision)
        with torch.autocast(seen.device.type, dtype, enabled=dtype != torch.float32):
            answer = network(noisy, seen, root)
        return F.mse_loss(answer.float(), target(self.predicts, clear, noise, root))

    @torch.no_grad()
    def _fold(self, steps: int) -> None:
        """The weights as they are into their average, of which the beginning is forgotten faster."""
        keep = min(self.keep, (1 + steps) / (10 + steps))
        own, now = (_chosen(module, self.learnt) for module in (self.average, self.network))
        torch._foreach_lerp_(own, now, 1 - keep)


def _chosen(module: nn.Module, names: Sequence[str]) -> list[Tensor]:
    found = dict(module.named_parameters())
    return [found[name].detach() for name in names]


def _spread(count: int, device: torch.device) -> Tensor:
    """[count] uniform on [0, 1), one in each of as many equal parts: each is uniform, their mean varies less."""
    return (torch.arange(count, device=device) + torch.rand(count, device=device)) / count
