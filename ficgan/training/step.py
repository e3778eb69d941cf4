"""One training step's losses: reconstruct and swap in one batch, then judge the two with the discriminator.

The functions here accumulate gradients and return numbers; optimisers, schedules and files belong to the loop.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from ficgan import losses
from ficgan.config import Config, LossConfig
from ficgan.models import FICGAN, Discriminator
from ficgan.training.augment import Augment
from ficgan.training.swap import Swap, mixed_code

__all__ = ["Fakes", "Verify", "Weights", "discriminator_step", "generator_step", "r1_step", "weights_at"]


class Verify(Protocol):
    """The frozen verification network V, on images [B,3,R,R] in [−1, 1]."""

    def __call__(
        self, x: Tensor, *, taps: bool = False, generator: torch.Generator | None = None
    ) -> Tensor | tuple[Tensor, list[Tensor]]: ...


@dataclass(frozen=True)
class Weights:
    """Loss weights at a moment of the training."""

    reconstruction: float
    verification: float
    adversarial: float


@dataclass(frozen=True)
class Fakes:
    """Generated images of a step, without their graph."""

    rec: Tensor
    mix: Tensor


def weights_at(config: LossConfig, kimg: float) -> Weights:
    """λ1, λ2, λ3 after `kimg` thousand images."""
    start, end = config.verification_ramp_kimg
    adversarial = 0.0
    if kimg >= config.adversarial_start_kimg:
        adversarial = config.adversarial * _ramp(
            kimg, config.adversarial_start_kimg, config.adversarial_start_kimg + config.adversarial_ramp_kimg
        )
    return Weights(config.reconstruction, config.verification * _ramp(kimg, start, end), adversarial)


def _ramp(x: float, start: float, end: float) -> float:
    return 1.0 if x >= end else max(0.0, (x - start) / (end - start))


def generator_step(
    model: FICGAN,
    discriminator: Discriminator,
    verify: Verify,
    x: Tensor,
    plan: Swap,
    config: Config,
    weights: Weights,
    augment: Augment,
    share: float,
    rng: torch.Generator | None = None,
) -> tuple[Fakes, dict[str, Tensor]]:
    """Accumulate the gradients of the total loss in E, mapping and G.

    Args:
        model: in training mode.
        discriminator: judged with, not changed (its parameters must not require gradients).
        verify: V.
        x: source images [B,3,R,R] in [−1, 1].
        plan: whose identity goes where.
        config: of the run.
        weights: λ at this moment.
        augment: applied to whatever the discriminator sees.
        share: factor on the loss, 1/rounds when gradients are accumulated.
        rng: varies what V sees of the mixes; None: V sees them as they are.

    Returns:
        The generated images and the batch means of all loss terms.

    Source: FICGAN, "Total Loss".
    """
    loss_config = config.loss
    batch = x.shape[0]
    codes = model.encode(x)
    w = model.map(codes.z_id)
    model.mapping.track_mean(w)
    z_non = codes.z_non
    if config.model.spatial_noise > 0:
        z_non = z_non + config.model.spatial_noise * torch.randn_like(z_non)
    w_mix = mixed_code(w, model.mapping.w_mean, plan, model.num_layers)
    w_rec = w if w_mix.ndim == 2 else w[:, None].expand(-1, model.num_layers, -1)
    # One pass makes both: reconstructions in the first half, mixes in the second.
    images = model.generate(torch.cat([w_rec, w_mix]), torch.cat([z_non, z_non])).float()
    x_rec, x_mix = images.chunk(2)

    terms: dict[str, Tensor] = {}
    total = x.new_zeros(())

    if weights.reconstruction:
        terms["rec"] = losses.reconstruction(x, x_rec, loss_config.reconstruction_norm).mean()
        total = total + weights.reconstruction * terms["rec"]
    if loss_config.structure:
        terms["structure"] = losses.structure(x, x_mix, loss_config.structure_size).mean()
        total = total + loss_config.structure * terms["structure"]

    needs_v = weights.verification > 0 and (loss_config.positive > 0 or loss_config.negative > 0)
    if needs_v or loss_config.perceptual:
        total = total + _verification(
            verify, x, x_rec, x_mix, plan, loss_config, weights, needs_v, model.num_layers, rng, terms
        )

    if weights.adversarial > 0:
        judged = discriminator(augment(images), features=bool(loss_config.feature_matching), parts=2)
        logits, maps = judged if isinstance(judged, tuple) else (judged, [])
        logits_rec, logits_mix = logits.split(batch)
        terms["adv_rec"] = losses.adversarial_generator(logits_rec).mean()
        terms["adv_mix"] = losses.adversarial_generator(logits_mix).mean()
        adversarial = loss_config.adversarial_rec * terms["adv_rec"] + loss_config.adversarial_mix * terms["adv_mix"]
        total = total + weights.adversarial * adversarial
        if maps and not augment.active:  # an augmented pair is not a pair any more
            with torch.no_grad():
                _, maps_real = discriminator(x, features=True)
            maps_rec = [m[:batch] for m in maps]
            terms["feature_matching"] = losses.feature_distance(maps_real, maps_rec)
            total = total + loss_config.feature_matching * terms["feature_matching"]

    terms["total"] = total
    (total * share).backward()
    return Fakes(x_rec.detach(), x_mix.detach()), {name: term.detach() for name, term in terms.items()}


def _verification(
    verify: Verify,
    x: Tensor,
    x_rec: Tensor,
    x_mix: Tensor,
    plan: Swap,
    config: LossConfig,
    weights: Weights,
    needs_v: bool,
    num_layers: int,
    rng: torch.Generator | None,
    terms: dict[str, Tensor],
) -> Tensor:
    """The part of the total loss that V supplies; fills `terms`."""
    total = x.new_zeros(())
    taps = config.perceptual > 0
    with torch.no_grad():
        out = verify(x, taps=taps)
    v_source, maps = out if isinstance(out, tuple) else (out, [])
    if needs_v:
        mixed = verify(x_mix, generator=rng)  # varied, or G would learn textures that only V sees
        v_mix = mixed[0] if isinstance(mixed, tuple) else mixed
        v_target = v_source[plan.target.to(x.device)]
        # Layers that keep the source's code owe the target only what is left.
        owed = 1 - plan.kept.to(x.device, torch.float32) / num_layers
        if config.negative:
            if config.negative_form == "hinge":
                swapped = (~plan.to_mean).to(x.device)
                negative = losses.negative_hinge(v_source, v_target, v_mix, config.negative_margin, swapped)
            else:
                negative = losses.negative(v_source, v_mix)
            terms["neg"] = (negative * owed).mean()
            total = total + weights.verification * config.negative * terms["neg"]
        if config.positive:
            aimed = owed * (~plan.to_mean).to(x.device, torch.float32)
            positive = losses.positive(v_target, v_mix)
            if not bool(plan.to_mean.all()):  # known on the CPU: no wait for the GPU
                terms["pos"] = (positive * aimed).sum() / aimed.sum()
            total = total + weights.verification * config.positive * (positive * aimed).mean()
    if taps:
        rec = verify(x_rec, taps=True)
        assert isinstance(rec, tuple)
        terms["perceptual"] = losses.feature_distance(maps, rec[1])
        total = total + config.perceptual * terms["perceptual"]
    return total


def discriminator_step(
    discriminator: Discriminator, x: Tensor, fakes: Fakes, augment: Augment, share: float
) -> dict[str, Tensor]:
    """Accumulate the gradients of the logistic loss in D.

    Args:
        discriminator: being trained.
        x: real images [B,3,R,R].
        fakes: of the generator step on the same batch.
        augment: applied to real and generated alike.
        share: factor on the loss.

    Returns:
        Batch means: the loss, mean logits, and r_t = mean sign of the real logits.
    """
    logits = discriminator(augment(torch.cat([x, fakes.rec, fakes.mix])), parts=3)
    assert isinstance(logits, Tensor)
    real, rec, mix = logits.chunk(3)
    loss = losses.adversarial_discriminator(real, rec, mix)
    (loss * share).backward()
    return {
        "d": loss.detach(),
        "d_real": real.detach().mean(),
        "d_rec": rec.detach().mean(),
        "d_mix": mix.detach().mean(),
        "r_t": real.detach().sign().mean(),
    }


def r1_step(
    discriminator: Discriminator, x: Tensor, augment: Augment, weight: float, share: float
) -> dict[str, Tensor]:
    """Accumulate the gradients of the R1 penalty in D, in float32 and outside of any compilation.

    Args:
        discriminator: being trained.
        x: real images [B,3,R,R].
        augment: applied first.
        weight: γ times the interval of lazy regularisation.
        share: factor on the loss.

    Returns:
        The mean penalty, unweighted.
    """
    with torch.autocast(x.device.type, enabled=False):
        real = augment(x).detach().requires_grad_(True)
        logits = discriminator(real)
        assert isinstance(logits, Tensor)
        penalty = losses.r1_penalty(logits, real).mean()
        # The logits at weight 0 give every parameter a gradient, so that all processes reduce the same list.
        (penalty * (weight * share) + 0.0 * logits.sum()).backward()
    return {"r1": penalty.detach()}
