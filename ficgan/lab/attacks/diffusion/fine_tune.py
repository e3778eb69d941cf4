"""A trained diffusion, trained on: for one person's faces, or for a defence it has not seen."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from ficgan.anonymizers import Faces
from ficgan.errors import FicganError, UsageError
from ficgan.lab.attacks.base import Pairs
from ficgan.lab.attacks.diffusion.revelio import Revelio
from ficgan.lab.attacks.learned.base import check_pairs, resized, to_tensor

if TYPE_CHECKING:
    from torch import nn

__all__ = ["Which", "fine_tune"]

Which = Literal["attention", "all"]


def fine_tune(
    attacker: Revelio,
    anonymised: Faces,
    clear: Faces,
    *,
    steps: int,
    lr: float,
    which: Which = "attention",
    seed: int = 0,
) -> Revelio:
    """The same attacker, trained on; the one given is left as it is.

    Args:
        attacker: trained.
        anonymised, clear: the same faces in the same order: for fidelity the reference images of the identity that
            was retrieved; for the adaptive attack, faces with the defence applied.
        steps: of the optimiser, of at most the attacker's batch each.
        lr: its learning rate.
        which: "attention": all but the attention blocks is frozen (§4.4); "all": nothing is (the adaptive attack, §6).
        seed: of order and noise.

    Raises:
        UsageError: the attacker has learnt nothing yet, or a setting that cannot work.
        InputError: no pairs, or pairs that do not fit together.
        FicganError: the loss is not finite.

    Source:
        Revelio, §4.4 and §6; attention-only tuning after Moon et al. 2022.
    """
    import torch

    if steps < 1 or which not in ("attention", "all"):
        raise UsageError(f"fine-tuning {which!r} for {steps} steps: give attention or all, and at least one step")
    check_pairs(Pairs(anonymised, clear), attacker.name)
    network = copy.deepcopy(attacker.trained_network())
    freeze(network, which)
    device = next(network.parameters()).device
    learner = replace(attacker, lr=lr).learner(network, device)
    pictures = [resized(faces.images, attacker.size) for faces in (anonymised, clear)]
    batch = min(attacker.batch, len(clear))
    losses = []
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        for step, rows in enumerate(_batches(len(clear), batch, steps, seed)):
            seen, wanted = (to_tensor(images[rows], device) for images in pictures)
            losses.append(learner.step(seen, wanted, step * batch)["loss"])
    if not bool(torch.stack(losses).isfinite().all()):
        raise FicganError(f"fine-tuning of {attacker.name} ran into a loss that is not finite; lower lr")
    told: dict[str, Any] = {"which": which, "steps": steps, "lr": lr, "pairs": len(clear), "seed": seed}
    record = {**attacker.record, "fine_tuned": [*attacker.record.get("fine_tuned", []), told]}
    return attacker.with_network(learner.result, record)


def freeze(network: nn.Module, which: Which) -> None:
    """Only the attention blocks, or everything, is left to be learnt."""
    from ficgan.lab.attacks.diffusion.unet import Attention

    network.requires_grad_(which == "all")
    for module in network.modules():
        if isinstance(module, Attention):
            module.requires_grad_(True)


def _batches(count: int, batch: int, steps: int, seed: int) -> Iterator[NDArray[np.int64]]:
    """Rows of every step: each row once before any comes again."""
    rng, rows = np.random.default_rng(seed), np.empty(0, np.int64)
    for _ in range(steps):
        if len(rows) < batch:
            rows = np.concatenate([rows, rng.permutation(count)])
        yield rows[:batch]
        rows = rows[batch:]
