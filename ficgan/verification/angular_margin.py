"""The angular-margin softmax of SphereFace, as a pure function and as a head that owns the class weights."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

MARGIN = 4


def angular_margin_loss(embeddings: Tensor, weight: Tensor, people: Tensor, *, weight_of_softmax: float) -> Tensor:
    """A-Softmax: cross-entropy in which the own class is reached only at a quarter of the angle.

    L = mean −log softmax(f)_y with f_j = ‖x‖ cos θ_j for the other classes and, for the own class,
    f_y = ‖x‖ (λ cos θ_y + ψ(θ_y)) / (1 + λ), ψ(θ) = (−1)^k cos(4θ) − 2k for θ in [kπ/4, (k+1)π/4].

    Args:
        embeddings: [B, D], not normalised.
        weight: [P, D], one row per person, normalised here.
        people: int64 [B], 0..P−1.
        weight_of_softmax: λ ≥ 0; annealed from large (plain softmax) to small (the full margin).
    Returns:
        scalar.
    Source: Liu et al. 2017, SphereFace, eqs. (6)–(7), m = 4; λ as in section 4.1's annealing.
    """
    norm = embeddings.norm(dim=1, keepdim=True)
    cosine = F.linear(embeddings / norm.clamp_min(1e-12), F.normalize(weight)).clamp(-1, 1)
    own = cosine.gather(1, people[:, None])
    psi = margin(own)
    target = (weight_of_softmax * own + psi) / (1 + weight_of_softmax)
    return F.cross_entropy(norm * cosine.scatter(1, people[:, None], target), people)


def margin(cosine: Tensor) -> Tensor:
    """ψ(θ) from cos θ, for m = 4: falls from 1 to −7 as θ goes from 0 to π, smooth enough for gradients.

    cos 4θ is the Chebyshev polynomial 8c⁴ − 8c² + 1, so no arccos (infinite slope at ±1) is differentiated.
    """
    # k = number of quarter turns passed; constant between its jumps, where ψ itself is continuous.
    turn = torch.arccos(cosine.detach().clamp(-1, 1)) * (MARGIN / math.pi)
    k = turn.floor().clamp(0, MARGIN - 1)
    sign = 1 - 2 * (k % 2)
    square = cosine.square()
    return sign * (8 * square * (square - 1) + 1) - 2 * k


def annealed(step: int, *, base: float = 1000.0, gamma: float = 0.12, power: float = 1.0, least: float = 5.0) -> float:
    """λ at a step: max(least, base · (1 + gamma · step)^−power), as SphereFace was trained."""
    return max(least, base * (1 + gamma * step) ** -power)


class AngularMarginHead(nn.Module):
    """The class weights W [P, D] of the angular-margin softmax.

    Args:
        dimensions: D of the embeddings.
        people: P persons in the training set.
    """

    def __init__(self, dimensions: int, people: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(nn.init.xavier_uniform_(torch.empty(people, dimensions)))

    def forward(self, embeddings: Tensor, people: Tensor, weight_of_softmax: float) -> Tensor:
        """`angular_margin_loss` with these weights: scalar."""
        return angular_margin_loss(embeddings, self.weight, people, weight_of_softmax=weight_of_softmax)
