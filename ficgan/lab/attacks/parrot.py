"""Parrots: a recogniser's network trained on with anonymised faces (Revelio, §5.2: ArcFace on blurred images)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from ficgan.anonymizers import Faces
from ficgan.device import resolve_device
from ficgan.faces import ARCFACE_POINTS, crop, similarity
from ficgan.lab.attacks.base import people_of
from ficgan.lab.attacks.training import minimise
from ficgan.verification.verifier import load_onnx

_SCALE, _MARGIN = 64.0, 0.5  # of ArcFace (Deng et al. 2019, eq. 3)
_BATCH, _RATE = 64, 1e-3  # Ours: the paper does not say


def additive_margin_loss(embeddings: Tensor, weight: Tensor, people: Tensor) -> Tensor:
    """Cross-entropy of s·cos(θ + m) for the own class and s·cos θ for others (Deng et al. 2019, eq. 3).

    Embeddings are [B,D], `weight` [P,D] has a row for each person, `people` [B] are numbers of rows.
    """
    cosine = F.linear(F.normalize(embeddings), F.normalize(weight)).clamp(-1 + 1e-6, 1 - 1e-6)
    own = F.one_hot(people, len(weight)).bool()
    return F.cross_entropy(_SCALE * torch.where(own, torch.cos(torch.arccos(cosine) + _MARGIN), cosine), people)


def retrained(
    path: Path, training: Faces, others: Faces, *, epochs: int, seed: int, say: Callable[[str], object]
) -> NDArray[np.float32]:
    """Embeddings [N+M,D] of `training`, faces of known people, and of others, by the network trained on with these."""
    device, (network, size, mean, scale) = torch.device(resolve_device("auto")), load_onnx(path)
    module = network.requires_grad_(True).to(device)

    def inputs(faces: Faces) -> Tensor:
        pairs = zip(faces.images, faces.landmarks, strict=True)
        crops = np.stack([crop(image, similarity(marks, ARCFACE_POINTS), size[0]) for image, marks in pairs])
        return torch.from_numpy(crops.transpose(0, 3, 1, 2).copy())

    def embed(crops: Tensor) -> Tensor:
        return module((crops.to(device).float() - mean) / scale)[0]

    @torch.no_grad()
    def every(crops: Tensor) -> Tensor:
        return torch.cat([embed(some) for some in crops.split(_BATCH)])

    torch.manual_seed(seed)
    crops, people = inputs(training), torch.from_numpy(np.unique(people_of(training), return_inverse=True)[1].ravel())
    begun, people = F.normalize(every(crops)), people.to(device)
    # A person's weights begin as the mean of their embeddings.
    head = nn.Parameter(begun.new_zeros(int(people.max()) + 1, begun.shape[1]).index_add(0, people, begun))
    optimiser = torch.optim.AdamW([*module.parameters(), head], _RATE)
    steps = epochs * -(-len(crops) // _BATCH)
    minimise(
        module,
        lambda rows: additive_margin_loss(embed(crops[rows]), head, people[rows.to(device)]),
        lambda: torch.randperm(len(crops)).split(_BATCH),
        optimiser,
        torch.optim.lr_scheduler.OneCycleLR(optimiser, _RATE, total_steps=steps),
        epochs=epochs,
        error=lambda: None,
        progress=lambda done, total, text: say(f"{text}, epoch {done} of {total}"),
        title=f"the parrot {path.stem}",
    )
    return every(torch.cat([crops, inputs(others)])).cpu().numpy()
