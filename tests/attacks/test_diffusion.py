"""The noise of the diffusion, its U-Net and its sampling, against loops, brute-force Bayes and exact answers."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from ficgan.errors import UsageError
from ficgan.lab.attacks import diffusion
from ficgan.lab.attacks.diffusion import (
    PRESETS,
    Architecture,
    Attention,
    NoiseLevel,
    Norm,
    Pointwise,
    Sampler,
    UNet,
    Up,
    clear_of,
    levels,
    noised,
    posterior,
    sample,
    target,
)
from ficgan.lab.attacks.revelio import PREDICTIONS, SCHEDULES, Schedule

LINEAR = Schedule(50, 1e-3, 0.2)


def test_gamma_is_the_product_of_alphas() -> None:
    product = 1.0
    for t in range(1, LINEAR.steps + 1):
        beta = LINEAR.first + (t - 1) / (LINEAR.steps - 1) * (LINEAR.last - LINEAR.first)
        product *= 1 - beta
        assert LINEAR.gammas[t] == pytest.approx(product, rel=1e-12)
    assert LINEAR.gammas[0] == 1


def test_presets_are_those_of_the_papers() -> None:
    assert SCHEDULES["sr3"] == Schedule(2000, 1e-6, 1e-2)
    assert SCHEDULES["palette-test"] == Schedule(1000, 1e-4, 0.09)
    for name in ("sr3", "palette", "small"):
        assert SCHEDULES[name].betas.sum() == pytest.approx(10, rel=1e-3)
    assert SCHEDULES["small"].steps == 200


def test_fewer_steps_leave_as_little_of_the_image() -> None:
    whole = SCHEDULES["sr3"]
    for steps in (1000, 100, 30):
        assert whole.shrunk(steps).betas.sum() == pytest.approx(whole.betas.sum())
    with pytest.raises(UsageError, match="at least 21"):
        whole.shrunk(20)
    whole.shrunk(21)


@pytest.mark.parametrize("bad", [(0, 0.1, 0.2), (5, 0.0, 0.2), (5, 0.1, 1.0)])
def test_what_is_no_schedule_is_refused(bad: tuple[int, float, float]) -> None:
    with pytest.raises(UsageError, match="schedule"):
        Schedule(*bad)


def test_the_noisy_image_is_where_the_steps_lead() -> None:
    """Eq. 2 run one step at a time, against the closed form's mean and variance."""
    rng, y0 = np.random.default_rng(1), 0.7
    y = np.full(200_000, y0)
    for beta in LINEAR.betas[:20]:
        y = math.sqrt(1 - beta) * y + math.sqrt(beta) * rng.normal(size=y.shape)
    root = torch.tensor([LINEAR.gammas[20] ** 0.5])
    mean = float(noised(torch.full((1, 1, 1, 1), y0, dtype=torch.float64), root, torch.zeros(1, 1, 1, 1)))
    scale = float(noised(torch.zeros(1, 1, 1, 1), root, torch.ones(1, 1, 1, 1, dtype=torch.float64)))
    assert y.mean() == pytest.approx(mean, abs=0.01)
    assert y.std() == pytest.approx(scale, rel=0.01)


@given(t=st.integers(2, 50), back=st.integers(1, 49), y0=st.floats(-1, 1), yt=st.floats(-2, 2))
def test_posterior_is_bayes(t: int, back: int, y0: float, yt: float) -> None:
    """q(y_s | y_0, y_t) ∝ q(y_t | y_s)·q(y_s | y_0) on a grid."""
    s = max(t - back, 1)
    before, gamma = LINEAR.gammas[s], LINEAR.gammas[t]
    alpha = gamma / before
    grid = np.linspace(-8, 8, 200_001)
    log = -((grid - math.sqrt(before) * y0) ** 2) / (2 * (1 - before))
    log -= (yt - math.sqrt(alpha) * grid) ** 2 / (2 * (1 - alpha))
    weights = np.exp(log - log.max())
    weights /= weights.sum()
    mean = float(weights @ grid)
    q = posterior(float(gamma), float(before))
    assert q.clear * y0 + q.noisy * yt == pytest.approx(mean, abs=1e-5)
    assert q.variance == pytest.approx(float(weights @ (grid - mean) ** 2), rel=1e-4)


def test_the_first_step_has_no_choice() -> None:
    q = posterior(0.9, 1.0)
    assert (q.clear, q.noisy, q.variance) == pytest.approx((1, 0, 0))


def test_levels_lie_within_their_steps_and_cover_all() -> None:
    spots = torch.rand(20_000, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    roots = np.sqrt(LINEAR.gammas)
    found = levels(LINEAR, spots).numpy()
    # Every step is as likely, and within it √γ is uniform: its distribution function is linear between the steps.
    for t in range(1, LINEAR.steps + 1):
        middle = (roots[t] + roots[t - 1]) / 2
        assert (found >= roots[t]).mean() == pytest.approx(t / LINEAR.steps, abs=0.015)
        assert (found >= middle).mean() == pytest.approx((t - 0.5) / LINEAR.steps, abs=0.015)
    ends = levels(LINEAR, torch.tensor([0.0, 1.0]))
    assert ends.tolist() == pytest.approx([1.0, roots[-1]])


@pytest.mark.slow
def test_levels_never_leave_their_device() -> None:
    """On a device that holds no numbers every copy to the processor is an error."""
    found = levels(LINEAR, torch.empty(5, device="meta"))
    assert found.device.type == "meta" and found.shape == (5,) and found.dtype == torch.float32


@given(count=st.integers(1, 80))
def test_times_fall_from_the_end_to_zero(count: int) -> None:
    times = LINEAR.times(count)
    assert times[0] == LINEAR.steps and times[-1] == 0
    assert (np.diff(times) < 0).all()
    assert len(times) == min(count, LINEAR.steps) + 1
    assert np.ptp(np.diff(times)) <= 1


@pytest.mark.parametrize("predicts", PREDICTIONS)
def test_every_answer_leads_back_to_the_clear_image(predicts: str) -> None:
    generator = torch.Generator().manual_seed(3)
    clear, noise = torch.randn(2, 4, 3, 5, 5, generator=generator, dtype=torch.float64)
    for gamma in (0.99, 0.5, 1e-3):
        root = torch.full((4,), gamma**0.5, dtype=torch.float64)
        answer = target(predicts, clear, noise, root)  # type: ignore[arg-type]
        found = clear_of(predicts, answer, noised(clear, root, noise), gamma)  # type: ignore[arg-type]
        torch.testing.assert_close(found, clear, atol=1e-9, rtol=1e-9)


TINY = Architecture(8, (1, 2), blocks=1, attention=(4,))


def awake(network: torch.nn.Module, seed: int = 0) -> torch.nn.Module:
    """With random weights in the layers that begin at zero."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weights in network.parameters():
            if not weights.any():
                weights.normal_(0, 0.2, generator=generator)
    return network.eval()


@settings(max_examples=6)
@given(
    batch=st.integers(1, 3),
    levels=st.integers(1, 3),
    base=st.sampled_from([4, 6, 12]),
    patch=st.sampled_from([1, 2]),
    blocks=st.integers(1, 2),
    head=st.sampled_from([0, 4]),
    times=st.integers(1, 2),
)
def test_an_answer_has_the_shape_of_its_image(
    batch: int, levels: int, base: int, patch: int, blocks: int, head: int, times: int
) -> None:
    size = 4 * times * patch * 2 ** (levels - 1)
    network = UNet(Architecture(base, (1, 2, 3)[:levels], blocks, (8,), head, patch=patch), size)
    noisy, seen = torch.randn(2, batch, 3, size, size)
    assert network(noisy, seen, torch.rand(batch)).shape == noisy.shape


def test_sizes_that_cannot_be_halved_are_refused() -> None:
    with pytest.raises(UsageError, match="multiple of 16"):
        PRESETS["sr3"].sides(40)
    assert PRESETS["sr3"].sides(256) == [256, 128, 64, 32, 16]
    assert PRESETS["patched"].sides(64) == [32, 16, 8]


def test_sr3_has_the_layers_of_the_paper() -> None:
    with torch.device("meta"):
        network = UNet(PRESETS["sr3"], 256)
    with_attention = [name for name, module in network.named_modules() if isinstance(module, Attention)]
    assert network.first.in_channels == 6 and network.last.out_channels == 3
    assert max(m.in_channels for m in network.modules() if isinstance(m, torch.nn.Conv2d)) == 1024
    assert len(with_attention) == 2 + 1 + 3  # at 16, on the way down, in the middle, on the way up
    assert 90e6 < sum(weights.numel() for weights in network.parameters()) < 110e6


def test_untrained_it_answers_zero_and_then_depends_on_all_it_is_given() -> None:
    network, generator = UNet(TINY, 8), torch.Generator().manual_seed(0)
    noisy, seen = torch.randn(2, 2, 3, 8, 8, generator=generator)
    root = torch.tensor([0.5, 0.5])
    with torch.no_grad():
        assert not network(noisy, seen, root).any()
        awake(network)
        answer = network(noisy, seen, root)
        assert not torch.allclose(answer, network(noisy, seen + 1, root), atol=1e-3)
        assert not torch.allclose(answer, network(noisy + 1, seen, root), atol=1e-3)
        assert not torch.allclose(answer, network(noisy, seen, root * 0.9), atol=1e-3)
        # Image by image; one level for all is the level of each; no condition is a condition of zeros.
        torch.testing.assert_close(network(noisy[1:], seen[1:], root[1:]), answer[1:], atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(network(noisy, seen, root[:1]), answer)
        torch.testing.assert_close(network(noisy, None, root), network(noisy, torch.zeros_like(seen), root))


def test_every_weight_is_used() -> None:
    network = awake(UNet(TINY, 8)).train()
    noisy, seen = torch.randn(2, 2, 3, 8, 8)
    network(noisy, seen, torch.rand(2)).square().mean().backward()
    idle = [name for name, weights in network.named_parameters() if weights.grad is None or not weights.grad.any()]
    assert not idle


@pytest.mark.parametrize("head", [0, 4])
def test_attention_against_a_loop(head: int) -> None:
    layer = awake(Attention(8, head)).double()
    x = torch.randn(2, 8, 3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        found, normed = layer(x).numpy(), layer.norm(x).numpy()
    w, b, wo, bo = (p.detach().numpy() for p in (layer.qkv.weight, layer.qkv.bias, layer.out.weight, layer.out.bias))
    width = head or 8
    for image in range(2):
        spots = [normed[image, :, i, j] for i in range(3) for j in range(4)]
        q, k, v = (np.array([(w @ spot + b)[part * 8 : part * 8 + 8] for spot in spots]) for part in range(3))
        for here in range(12):
            mixed = np.zeros(8)
            for start in range(0, 8, width):
                part = slice(start, start + width)
                likes = [math.exp(q[here, part] @ k[there, part] / math.sqrt(width)) for there in range(12)]
                for there in range(12):
                    mixed[part] += likes[there] / sum(likes) * v[there, part]
            expected = x[image, :, here // 4, here % 4].numpy() + wo @ mixed + bo
            np.testing.assert_allclose(found[image, :, here // 4, here % 4], expected, atol=1e-9)


def test_norm_against_a_loop() -> None:
    layer = Norm(12).double()
    x, affine = torch.randn(2, 12, 3, 3, dtype=torch.float64), torch.randn(2, 24, dtype=torch.float64)
    found, per = layer(x, affine).detach().numpy(), 12 // layer.num_groups
    assert per >= 4
    for image in range(2):
        for channel in range(12):
            group = x[image, channel // per * per : channel // per * per + per].numpy()
            normed = (x[image, channel].numpy() - group.mean()) / math.sqrt(group.var() + layer.eps)
            expected = normed * (1 + float(affine[image, channel])) + float(affine[image, 12 + channel])
            np.testing.assert_allclose(found[image, channel], expected, atol=1e-9)


def test_norm_in_bfloat16_learns_as_in_float32() -> None:
    """By another way on a CPU, which its derivatives must not show."""
    layer, x, affine = Norm(8), torch.randn(2, 8, 4, 4), torch.randn(2, 16)
    gradients = []
    for dtype in (torch.float32, torch.bfloat16):
        leaf = x.clone().requires_grad_()
        layer(leaf.to(dtype), affine.to(dtype)).float().pow(3).sum().backward()
        assert leaf.grad is not None
        gradients.append(leaf.grad)
    assert float((gradients[0] - gradients[1]).norm() / gradients[0].norm()) < 0.05
    with torch.no_grad():
        torch.testing.assert_close(layer(x.bfloat16()).float(), layer(x), atol=0.05, rtol=0.02)


def test_pointwise_is_a_convolution() -> None:
    layer, x = Pointwise(5, 7), torch.randn(2, 5, 4, 3)
    expected = torch.nn.functional.conv2d(x, layer.weight[:, :, None, None], layer.bias)
    torch.testing.assert_close(layer(x), expected)


def test_up_is_a_convolution_of_the_enlarged_image() -> None:
    layer, x = Up(4).double(), torch.randn(2, 4, 5, 3, dtype=torch.float64)
    large = x.repeat_interleave(2, 2).repeat_interleave(2, 3)
    torch.testing.assert_close(
        layer(x), torch.nn.functional.conv2d(large, layer.conv.weight, layer.conv.bias, padding=1)
    )


def test_the_level_is_told_by_sines_of_5000_times_it() -> None:
    layer, root = NoiseLevel(8), torch.tensor([0.25, 0.9])
    told: list[torch.Tensor] = []
    layer.enter.register_forward_pre_hook(lambda module, inputs: told.append(inputs[0]))
    layer(root)
    for row, level in enumerate(root.tolist()):
        angles = [5000 * level * 1e4 ** (-i / 4) for i in range(4)]
        expected = [math.sin(a) for a in angles] + [math.cos(a) for a in angles]
        np.testing.assert_allclose(told[0][row], expected, atol=2e-3)


def test_dropout_acts_in_training_alone() -> None:
    network = awake(UNet(Architecture(8, (1, 2), 1, (), dropout=0.5), 8))
    noisy, seen, root = torch.randn(1, 3, 8, 8), torch.randn(1, 3, 8, 8), torch.tensor([0.5])
    with torch.no_grad():
        assert torch.equal(network(noisy, seen, root), network(noisy, seen, root))
        network.train()
        assert not torch.equal(network(noisy, seen, root), network(noisy, seen, root))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
def test_on_a_gpu_the_answer_is_the_same() -> None:
    network, noisy, seen = awake(UNet(TINY, 8)), torch.randn(2, 3, 8, 8), torch.randn(2, 3, 8, 8)
    root = torch.rand(2)
    with torch.no_grad():
        expected = network(noisy, seen, root)
        found = network.cuda()(noisy.cuda(), seen.cuda(), root.cuda()).cpu()
    torch.testing.assert_close(found, expected, atol=2e-2, rtol=2e-2)


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
    draw = diffusion._draw

    def counted(like: Tensor, streams: Sequence[torch.Generator]) -> Tensor:
        assert all(stream.device == like.device for stream in streams)
        seen.append(len(streams))
        return draw(like, streams)

    monkeypatch.setattr(diffusion, "_draw", counted)
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
