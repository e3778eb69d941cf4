"""The way from noise to images with the exact answer for Gaussian data, where its outcome is known."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch
from torch import Tensor

from ficgan.errors import UsageError
from ficgan.lab.attacks.diffusion import sampling
from ficgan.lab.attacks.diffusion.sampling import Sampler, sample
from ficgan.lab.attacks.diffusion.schedule import PREDICTIONS, SCHEDULES, Schedule

MEAN, DEVIATION = 0.3, 0.2
FULL = SCHEDULES["small"]
SEEN = torch.zeros(1, 3, 32, 32)


def exact(predicts: str) -> Callable[[Tensor, Tensor | None, Tensor], Tensor]:
    """What a perfect network answers where every pixel is N(MEAN, DEVIATION²), apart from what it is shown."""

    def answer(noisy: Tensor, seen: Tensor | None, root: Tensor) -> Tensor:
        root = root.reshape(-1, 1, 1, 1).double()
        gamma = root**2
        variance = gamma * DEVIATION**2 + 1 - gamma
        clear = MEAN + root * DEVIATION**2 / variance * (noisy - root * MEAN)
        noise = (noisy - root * clear) / (1 - gamma).sqrt()
        found = {"clear": clear, "noise": noise, "velocity": root * noise - (1 - gamma).sqrt() * clear}[predicts]
        return found.float()

    return answer


def drawn(sampler: Sampler, n: int = 4) -> Tensor:
    return sample(exact(sampler.predicts), SEEN, sampler, n=n, seeds=range(n))


@pytest.mark.parametrize("predicts", PREDICTIONS)
@pytest.mark.parametrize("eta", [0.0, 0.5, 1.0])
def test_ddim_arrives_at_the_distribution(predicts: str, eta: float) -> None:
    fine = FULL.shrunk(1000 if eta else 200)  # with noise on the way it takes more steps
    images = drawn(Sampler(fine, "ddim", fine.steps, eta, predicts, clip=False))  # type: ignore[arg-type]
    assert float(images.mean()) == pytest.approx(MEAN, abs=0.01)
    assert float(images.std()) == pytest.approx(DEVIATION, rel=0.04)


def test_more_steps_of_ddim_come_nearer() -> None:
    errors = []
    for count in (5, 20, 200):
        images = drawn(Sampler(FULL, "ddim", count, predicts="clear", clip=False), n=2)
        errors.append(abs(float(images.std()) - DEVIATION))
    assert errors[2] < errors[1] < errors[0]
    assert errors[2] < 0.01


def test_ddim_without_noise_keeps_the_order_of_pixels() -> None:
    """For one Gaussian the flow is affine and rising: an image is its noise, scaled and shifted."""
    images = drawn(Sampler(FULL, "ddim", 50, predicts="velocity", clip=False), n=1)[0, 0]
    noise = torch.randn(images.shape, generator=torch.Generator().manual_seed(0))
    correlation = np.corrcoef(images.flatten(), noise.flatten())[0, 1]
    assert correlation == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("kind", ["ancestral", "ancestral-beta"])
def test_ancestral_sampling_arrives_there_too(kind: str) -> None:
    images = drawn(Sampler(FULL, kind, FULL.steps, predicts="noise", clip=False))  # type: ignore[arg-type]
    assert float(images.mean()) == pytest.approx(MEAN, abs=0.02)
    assert float(images.std()) == pytest.approx(DEVIATION, rel=0.15)


def test_the_larger_variance_gives_more_varied_images() -> None:
    few = {
        kind: drawn(Sampler(FULL, kind, 40, predicts="noise", clip=False)).std()
        for kind in ("ancestral", "ancestral-beta")
    }  # type: ignore[arg-type]
    assert few["ancestral-beta"] > few["ancestral"]


def test_ddim_with_eta_1_is_ancestral_sampling() -> None:
    for count in (7, FULL.steps):
        left, right = (Sampler(FULL, kind, count, eta=1.0).steps() for kind in ("ddim", "ancestral"))  # type: ignore[arg-type]
        for one, other in zip(left, right, strict=True):
            assert (one.clear, one.noisy, one.fresh) == pytest.approx((other.clear, other.noisy, other.fresh), abs=1e-9)


def test_eq_5_as_printed() -> None:
    """The mean by way of ŷ_0 is eq. 5's, its noise √(1 − α_t), and none at the last step."""
    schedule, rng = Schedule(30, 1e-3, 0.3), np.random.default_rng(0)
    steps = Sampler(schedule, "ancestral-beta", 30).steps()
    for t, step in zip(range(30, 0, -1), steps, strict=True):
        y, noise = rng.normal(size=2)
        alpha, gamma = 1 - schedule.betas[t - 1], schedule.gammas[t]
        printed = (y - (1 - alpha) / math.sqrt(1 - gamma) * noise) / math.sqrt(alpha)
        clear = (y - math.sqrt(1 - gamma) * noise) / math.sqrt(gamma)
        assert step.clear * clear + step.noisy * y == pytest.approx(printed)
        assert step.fresh == pytest.approx(math.sqrt(1 - alpha) if t > 1 else 0)


def of_its_input(noisy: Tensor, seen: Tensor | None, root: Tensor) -> Tensor:
    """A stand-in for a network: depends on everything, image by image."""
    assert seen is not None
    return torch.tanh(noisy.roll(1, 3) * root + seen - 0.3 * noisy.mean((1, 2, 3), keepdim=True))


@pytest.mark.parametrize("kind", ["ddim", "ancestral-beta"])
def test_a_candidate_depends_on_its_seed_alone(kind: str) -> None:
    sampler = Sampler(FULL, kind, 6, eta=0.4, predicts="clear", guidance=1.5)  # type: ignore[arg-type]
    seen = torch.rand(3, 3, 8, 8) * 2 - 1
    seeds = [11, 12, 21, 22, 31, 32]
    whole = sample(of_its_input, seen, sampler, n=2, seeds=seeds, batch=64)
    for batch in (1, 4):
        assert torch.equal(sample(of_its_input, seen, sampler, n=2, seeds=seeds, batch=batch), whole)
    alone = sample(of_its_input, seen[1:2], sampler, n=1, seeds=[22])
    assert torch.equal(alone[0, 0], whole[1, 1])
    assert not torch.equal(whole[1, 0], whole[1, 1])


@pytest.mark.parametrize(("kind", "eta", "draws"), [("ddim", 0.0, 1), ("ddim", 0.5, 6), ("ancestral", 0.0, 6)])
def test_noise_is_drawn_only_where_it_is_needed(
    monkeypatch: pytest.MonkeyPatch, kind: str, eta: float, draws: int
) -> None:
    """Once for the beginning, and again on the way but for the last step; all where the faces are."""
    seen: list[int] = []
    draw = sampling._draw

    def counted(like: Tensor, streams: Sequence[torch.Generator]) -> Tensor:
        assert all(stream.device == like.device for stream in streams)
        seen.append(len(streams))
        return draw(like, streams)

    monkeypatch.setattr(sampling, "_draw", counted)
    sampler = Sampler(FULL, kind, 6, eta=eta, predicts="clear")  # type: ignore[arg-type]
    sample(of_its_input, torch.zeros(3, 3, 8, 8), sampler, seeds=[1, 2, 3])
    assert seen == [3] * draws


def test_guidance_leads_away_from_the_unconditional_answer() -> None:
    def answer(noisy: Tensor, seen: Tensor | None, root: Tensor) -> Tensor:
        assert seen is not None
        return 0.1 + 0.2 * seen

    seen, results = torch.ones(1, 3, 4, 4), []
    for guidance in (0.0, 1.0, 2.0):
        sampler = Sampler(FULL, "ddim", 5, predicts="clear", guidance=guidance)
        results.append(float(sample(answer, seen, sampler, seeds=[0]).mean()))
    assert results == pytest.approx([0.1, 0.3, 0.5], abs=1e-5)


def test_clipped_images_stay_in_range() -> None:
    def far(noisy: Tensor, seen: Tensor | None, root: Tensor) -> Tensor:
        return 3 * noisy

    clipped = sample(far, SEEN, Sampler(FULL, "ddim", 10, predicts="clear"), seeds=[0])
    assert float(clipped.abs().max()) <= 1
    assert float(sample(far, SEEN, Sampler(FULL, "ddim", 10, predicts="clear", clip=False), seeds=[0]).abs().max()) > 1


def test_another_number_of_seeds_is_refused() -> None:
    with pytest.raises(UsageError, match="2 candidates were asked for with 3 seeds"):
        sample(of_its_input, SEEN, Sampler(FULL), n=2, seeds=[1, 2, 3])
