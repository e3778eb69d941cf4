"""The little of torch.distributed that training needs; one process needs none of it."""

from __future__ import annotations

import os
from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ficgan.device import resolve_device

__all__ = ["Team"]


class Team:
    """The processes that torchrun started, or just this one.

    Args:
        device: "auto", "cpu", "cuda" or "cuda:N"; with several processes each takes its own GPU.

    Raises:
        UsageError: a device that is unknown or not there.
    """

    def __init__(self, device: str = "auto") -> None:
        self.world = int(os.environ.get("WORLD_SIZE", "1"))
        self.rank = int(os.environ.get("RANK", "0"))
        local = int(os.environ.get("LOCAL_RANK", "0"))
        name = resolve_device(device)
        cuda = name != "cpu"
        if self.world > 1 and cuda:
            name = f"cuda:{local}"
        self.device = torch.device(name)
        if cuda:
            if self.device.index is None:  # set_device wants a number
                self.device = torch.device("cuda", torch.cuda.current_device())
            torch.cuda.set_device(self.device)
        self._own_group = False
        if self.world > 1 and not dist.is_initialized():
            dist.init_process_group("nccl" if cuda else "gloo")
            self._own_group = True

    @property
    def first(self) -> bool:
        """Whether this process writes files and lines."""
        return self.rank == 0

    def share(self, modules: Iterable[nn.Module]) -> None:
        """Copy the first process's parameters and buffers to all."""
        if self.world > 1:
            for module in modules:
                for tensor in [*module.parameters(), *module.buffers()]:
                    dist.broadcast(tensor.detach(), src=0)

    def average_gradients(self, parameters: Iterable[Tensor]) -> None:
        """Replace each gradient by its mean over all processes, in one reduction."""
        if self.world == 1:
            return
        with_gradient = [p for p in parameters if p.grad is not None]
        flat = torch.cat([p.grad.flatten() for p in with_gradient if p.grad is not None])
        dist.all_reduce(flat)
        flat /= self.world
        for parameter, mean in zip(with_gradient, flat.split([p.numel() for p in with_gradient]), strict=True):
            assert parameter.grad is not None
            parameter.grad.copy_(mean.view_as(parameter))

    def average(self, tensor: Tensor) -> Tensor:
        """Mean of a tensor over all processes, in place."""
        if self.world > 1:
            dist.all_reduce(tensor)
            tensor /= self.world
        return tensor

    def any(self, flag: bool) -> bool:
        """Whether any process says so (all must ask at the same step)."""
        if self.world == 1:
            return flag
        votes = torch.tensor([float(flag)], device=self.device)
        dist.all_reduce(votes, op=dist.ReduceOp.MAX)
        return bool(votes.item())

    def leave(self) -> None:
        """Close the process group if this object opened it."""
        if self._own_group and dist.is_initialized():
            dist.destroy_process_group()
