"""The losses of the paper, one pure function per equation, and the regularisers the paper leaves out.

All take and return float tensors; nothing here knows a network, a weight or a schedule.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor


def _cosine(a: Tensor, b: Tensor) -> Tensor:
    return F.cosine_similarity(a.float(), b.float(), dim=1)


def negative(v_source: Tensor, v_mix: Tensor) -> Tensor:
    """⟨V(x_s), V(x_mix)⟩ [B] of embeddings [B,D]: drives the mix away from its source (FICGAN, eq. 1)."""
    return _cosine(v_source, v_mix)


def negative_hinge(
    v_source: Tensor, v_target: Tensor, v_mix: Tensor, margin: float, has_target: Tensor | None = None
) -> Tensor:
    """Eq. 1 with a floor: max(0, cos(s, mix) − max(margin, cos(s, t))), [B] of embeddings [B,D].

    Strangers have a cosine near 0; below that eq. 1 contradicts eq. 2 when source and target look alike. Where
    `has_target` [B] is False (a mix towards a mean of codes) the floor is `margin`.
    """
    floor = _cosine(v_source, v_target).clamp_min(margin).detach()
    if has_target is not None:
        floor = floor.where(has_target, torch.full_like(floor, margin))
    return (_cosine(v_source, v_mix) - floor).clamp_min(0)


def positive(v_target: Tensor, v_mix: Tensor) -> Tensor:
    """1 − ⟨V(x_t), V(x_mix)⟩ [B] of embeddings [B,D]: draws the mix to its target (FICGAN, eq. 2)."""
    return 1 - _cosine(v_target, v_mix)


def reconstruction(x: Tensor, x_rec: Tensor, norm: str = "l2-mean") -> Tensor:
    """Distance [B] of images [B,3,H,W] in [−1, 1] to their reconstructions (FICGAN, eq. 3).

    "l2-mean" and "l1-mean" are means over the n pixels and channels. "l2-norm" is ‖x − x_rec‖₂ of the whole image, as
    eq. 3 is written. Its gradient has the norm 1 however small the error e is, that of the mean 2·‖e‖/n; beside 1, the
    paper's λ2 = .01 for V is nothing.
    """
    difference = (x.float() - x_rec.float()).flatten(1)
    if norm == "l2-norm":
        return difference.square().sum(1).add(1e-12).sqrt()
    if norm == "l2-mean":
        return difference.square().mean(1)
    if norm == "l1-mean":
        return difference.abs().mean(1)
    raise ValueError(f"norm must be l2-norm, l2-mean or l1-mean, not {norm!r}")


def adversarial_generator(logits_fake: Tensor) -> Tensor:
    """−log σ(D(x̂)) = softplus(−D(x̂)) of logits of any shape, for the reconstruction or the mix (FICGAN, eq. 4)."""
    return F.softplus(-logits_fake.float())


def local_adversarial(logits: Sequence[Tensor], *, real: bool, mask: Tensor | None = None) -> Tensor:
    """Eqs. 4 and 5 on maps of logits [B,1,h,w], one per judge, under a mask [B,1,H,W] of any size: their mean."""
    means = []
    for one in logits:
        weight = torch.ones_like(one[:1]) if mask is None else F.adaptive_avg_pool2d(mask, one.shape[2:])  # type: ignore
        lost = F.softplus((-1.0 if real else 1.0) * one.float()) * weight
        means.append(lost.sum((1, 2, 3)) / weight.sum((1, 2, 3)))
    return torch.stack(means).mean(0).mean()


def adversarial_discriminator(logits_real: Tensor, logits_rec: Tensor, logits_mix: Tensor) -> Tensor:
    """−log σ(D(x)) − ½·log(1 − σ(D(x_rec))) − ½·log(1 − σ(D(x_mix))): the halves balance real and generated images."""
    real = F.softplus(-logits_real.float()).mean()
    rec = F.softplus(logits_rec.float()).mean()
    mix = F.softplus(logits_mix.float()).mean()
    return real + 0.5 * rec + 0.5 * mix


def r1_penalty(logits_real: Tensor, x_real: Tensor) -> Tensor:
    """R1, ½·‖∇ₓ D(x)‖² [B], of images [B,3,H,W] that require gradients (Mescheder et al. 2018, eq. 9)."""
    (gradient,) = torch.autograd.grad(logits_real.sum(), x_real, create_graph=True)
    return 0.5 * gradient.square().flatten(1).sum(1)


def feature_distance(features: list[Tensor], features_rec: list[Tensor]) -> Tensor:
    """Mean absolute difference of feature maps [B,C,H,W], averaged over layers; gradients reach the second."""
    terms = [F.l1_loss(b.float(), a.detach().float()) for a, b in zip(features, features_rec, strict=True)]
    return torch.stack(terms).mean()


def structure(x_source: Tensor, x_mix: Tensor, size: int) -> Tensor:
    """Mean absolute difference [B] of images [B,3,H,W] averaged to size×size: pose, light, surroundings."""
    small = [F.adaptive_avg_pool2d(x.float(), size) for x in (x_source, x_mix)]
    return (small[0] - small[1]).abs().flatten(1).mean(1)


def manifold(change: Tensor, components: Tensor, coefficients: Tensor) -> tuple[Tensor, Tensor]:
    """Split a change of textures [B,P] into what a linear model can express and the rest.

    `components` [T,P] are what a standard deviation of each adds, `coefficients` [P,T] their pseudo-inverse. Returns
    [B], the mean square over the components of what is beyond one standard deviation, and the rest [B,P].
    """
    steps = change @ coefficients  # in standard deviations
    return (steps.abs() - 1).relu().square().mean(1), change - steps @ components


def excess_detail(fine_rec: Tensor, fine_mix: Tensor, size: int) -> Tensor:
    """How much stronger the fine detail of a mix is than that of its reconstruction at the same place [B].

    A reconstruction is taught which detail a place has; nothing else teaches a mix. Strengths are means over the
    channels of [B,C,H,W] and over the places of a grid of size×size.
    """
    rec, mix = (F.adaptive_avg_pool2d(x.float().abs().mean(1, keepdim=True), size) for x in (fine_rec, fine_mix))
    return (mix - rec.detach()).relu().mean((1, 2, 3))
