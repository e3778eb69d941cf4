"""Pix2Pix: layers, patches and losses against hand-written ones, and a training small enough to be watched."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from attack_faces import psnr, random_faces
from hypothesis import given, settings
from hypothesis import strategies as st

from ficgan.errors import UsageError
from ficgan.lab.attacks.base import REVERSERS, Pairs
from ficgan.lab.attacks.learned import load_attacker
from ficgan.lab.attacks.learned.pix2pix import Pix2Pix
from ficgan.lab.attacks.learned.pix2pix_networks import (
    PatchGAN,
    Pix2PixLearner,
    UNet,
    discriminator_loss,
    generator_loss,
    halvings_for,
    receptive_field,
)
from ficgan.lab.attacks.learned.trainer import STATE, WEIGHTS
from ficgan.models import load_tensors


def pairs(n: int = 48, size: int = 16, seed: int = 0) -> Pairs:
    clear = random_faces(n, size, seed=seed, per_person=2)
    return Pairs(clear.with_images(255 - clear.images), clear)


def tiny(**more: object) -> Pix2Pix:
    return Pix2Pix(**{"size": 16, "base": 8, "batch": 4, "epochs": 12, "lr": 2e-3, "device": "cpu", **more})  # type: ignore[arg-type]


@settings(max_examples=8, deadline=None)
@given(
    depth=st.integers(4, 7), base=st.integers(1, 4), n=st.integers(1, 3), norm=st.sampled_from(["instance", "batch"])
)
def test_shapes_and_range(depth: int, base: int, n: int, norm: str) -> None:
    size = 2**depth
    network = UNet(size, base, norm, 0.5)
    x = torch.rand(n, 3, size, size)
    for training in (True, False):
        y = network.train(training)(x)
        assert y.shape == x.shape and y.isfinite().all() and y.min() >= 0 and y.max() <= 1
    assert len(network.down) == len(network.up) == depth
    logits = PatchGAN(base, halvings_for(size), norm).eval()(x, y)
    assert logits.shape[:2] == (n, 1) and logits.shape[2] == logits.shape[3] > 1


def test_the_papers_generator_layer_by_layer() -> None:
    with torch.device("meta"):
        network = UNet(256)
    down = [block[0] for block in network.down]  # type: ignore[index]
    up = [block[0] for block in network.up]  # type: ignore[index]
    assert [conv.out_channels for conv in down] == [64, 128, 256, 512, 512, 512, 512, 512]
    assert [conv.out_channels for conv in up] == [512, 512, 512, 512, 256, 128, 64, 3]
    assert [conv.in_channels for conv in up] == [512, 1024, 1024, 1024, 1024, 512, 256, 128]
    normed = [not isinstance(block[1], torch.nn.Identity) for block in (*network.down, *network.up)]  # type: ignore[index]
    assert normed == [False, *[True] * 6, False, *[True] * 7, False]


def test_every_input_pixel_and_skip_counts() -> None:
    torch.manual_seed(0)
    network = UNet(32, 4).eval()
    x = torch.rand(1, 3, 32, 32, requires_grad=True)
    network(x)[0, :, 0, 0].sum().backward()
    assert x.grad is not None and (x.grad.abs().sum(1) > 0).all()  # the bottleneck reaches over the whole image


@pytest.mark.parametrize(("halvings", "side"), [(1, 16), (2, 34), (3, 70)])
def test_patches_have_the_papers_sizes(halvings: int, side: int) -> None:
    """Measured: which pixels a logit in the middle has a gradient to. Without norms, which see the whole image."""
    torch.manual_seed(0)
    judge = PatchGAN(2, halvings)
    for name, module in judge.layers.named_children():
        if isinstance(module, torch.nn.InstanceNorm2d):
            judge.layers._modules[name] = torch.nn.Identity()
    x = torch.rand(1, 3, 160, 160, requires_grad=True)
    logits = judge(x, torch.zeros_like(x))
    middle = logits.shape[-1] // 2
    logits[0, 0, middle, middle].backward()
    assert x.grad is not None
    touched = x.grad.abs().sum((0, 1)).sum(0).nonzero().flatten()
    assert int(touched[-1] - touched[0]) + 1 == receptive_field(halvings) == side


def test_fewer_halvings_for_smaller_images() -> None:
    assert [halvings_for(size) for size in (16, 32, 64, 128, 256)] == [1, 1, 2, 3, 3]


def test_losses_are_the_papers(rng: np.random.Generator) -> None:
    real, fake = rng.normal(size=(2, 1, 3, 3)), rng.normal(size=(2, 1, 3, 3))
    guess, clear = rng.random((2, 3, 4, 4)), rng.random((2, 3, 4, 4))

    def sigmoid(value: float) -> float:
        return 1 / (1 + math.exp(-value))

    judged = 0.0
    for r, f in zip(real.flat, fake.flat, strict=True):
        judged -= (math.log(sigmoid(r)) + math.log(1 - sigmoid(f))) / 2 / real.size
    fools = sum(-math.log(sigmoid(f)) for f in fake.flat) / fake.size
    far = 100 * sum(abs((2 * g - 1) - (2 * c - 1)) for g, c in zip(guess.flat, clear.flat, strict=True)) / guess.size
    tensors = [torch.from_numpy(one) for one in (real, fake, guess, clear)]
    assert discriminator_loss(*tensors[:2]).item() == pytest.approx(judged)
    got = generator_loss(tensors[1], tensors[2], tensors[3], 100.0)
    assert [one.item() for one in got] == pytest.approx([fools, far])


def test_each_step_moves_each_network_down_its_own_loss() -> None:
    torch.manual_seed(0)
    network, judge = UNet(16, 4, dropout=0.0), PatchGAN(4, 1)
    learner = Pix2PixLearner(network, judge, 1e-4, 100.0)
    seen, clear = torch.rand(2, 3, 16, 16), torch.rand(2, 3, 16, 16)
    with torch.no_grad():
        guess = network(seen)
        before = discriminator_loss(judge(seen, clear), judge(seen, guess))
        far = generator_loss(judge(seen, guess), guess, clear, 100.0)[1]
    told = learner.step(seen, clear, 0)
    assert told["discriminator"].item() == pytest.approx(before.item(), rel=1e-5)
    assert told["l1"].item() == pytest.approx(far.item(), rel=1e-5)
    with torch.no_grad():
        assert discriminator_loss(judge(seen, clear), judge(seen, guess)) < before
        assert generator_loss(judge(seen, guess), network(seen), clear, 100.0)[1] < far
    assert all(one.requires_grad for one in judge.parameters())
    for optimizer in learner.optimizers.values():
        assert optimizer.param_groups[0]["betas"] == (0.5, 0.999)


def test_the_rate_falls_in_the_second_half() -> None:
    learner = Pix2PixLearner(UNet(16, 1), PatchGAN(1, 1), 1e-4, 100.0)
    assert [learner.after_epoch(1.0, done, 0) for done in (0.1, 0.5, 0.75, 1.0)] == [1.0, 1.0, 0.5, 0.0]


def test_a_tiny_training_learns_an_inversion_of_colours() -> None:
    unseen = pairs(8, seed=9)
    trained = tiny().fit(pairs())
    before = psnr(unseen.anonymised.images, unseen.clear.images)
    assert psnr(trained.guess(unseen.anonymised), unseen.clear.images) > before + 5
    assert trained.record["epochs"] == 12


def test_candidates_differ_by_dropout_and_repeat_whatever_the_batch() -> None:
    trained, faces = tiny(epochs=1).fit(pairs(8)), random_faces(3, 16, seed=3)
    several = trained.reverse(faces, 3)
    assert several.shape == (3, 3, 16, 16, 3) and not np.array_equal(several[:, 0], several[:, 1])
    assert np.array_equal(several, trained.reverse(faces, 3))
    assert np.array_equal(several[:, 0], trained.guess(faces))
    alone = trained.reverse(faces.take([2]), 3)
    assert np.abs(alone[0].astype(int) - several[2]).max() <= 1
    still = tiny(epochs=1, dropout=0.0).fit(pairs(8)).reverse(faces, 2)
    assert np.array_equal(still[:, 0], still[:, 1])


def test_the_discriminator_is_in_the_state_of_a_training_and_not_in_the_weights(tmp_path: Path) -> None:
    def interrupt(done: int, total: int, what: str) -> None:
        if done == 5:
            raise KeyboardInterrupt

    attacker, seen = tiny(epochs=2), pairs(16)
    with pytest.raises(KeyboardInterrupt):
        attacker.fit(seen, workspace=tmp_path, told=interrupt)
    state, _ = load_tensors(tmp_path / STATE, kind="attacker training state")
    wanted = {f"module.discriminator.{key}" for key in PatchGAN(8, 1).state_dict()}
    assert wanted <= set(state) and any(key.startswith("optimizer.discriminator.") for key in state)
    resumed = attacker.fit(seen, workspace=tmp_path)
    weights, _ = load_tensors(tmp_path / WEIGHTS, kind="attacker")
    assert set(weights) == set(attacker.network().state_dict())
    faces = random_faces(2, 16, seed=4)
    whole = attacker.fit(seen).guess(faces)
    assert np.array_equal(resumed.guess(faces), whole)
    assert np.array_equal(load_attacker(tmp_path / WEIGHTS, device="cpu").guess(faces), whole)


def test_settings_that_cannot_work() -> None:
    with pytest.raises(UsageError, match="power of 2"):
        Pix2Pix(size=48)
    made = REVERSERS.make("pix2pix", size="128", norm="batch")
    assert isinstance(made, Pix2Pix) and (made.weight, made.lr, made.batch) == (100.0, 2e-4, 1)
    assert made.traits.several and made.traits.knowledge == {"pairs"}
    with pytest.raises(UsageError, match="learnt nothing"):
        made.guess(random_faces(1, 16))
