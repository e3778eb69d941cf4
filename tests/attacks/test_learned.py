"""Attackers that train: the loop, its files, the auto-encoder of Fantômas, and Pix2Pix by the paper."""

from __future__ import annotations

import json
import math
import signal
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from attack_faces import psnr, random_faces
from hypothesis import given, settings
from hypothesis import strategies as st

from ficgan.anonymizers import Faces
from ficgan.errors import FicganError, InputError, UsageError
from ficgan.lab.attacks import REVERSERS, AutoEncoder, Pairs, Trained, load_attacker, training
from ficgan.lab.attacks.learned import Pix2Pix, held_out, seed_of
from ficgan.lab.attacks.networks import (
    PatchGAN,
    Pix2PixLearner,
    Pix2PixUNet,
    SsimLearner,
    discriminator_loss,
    generator_loss,
    halvings_for,
)
from ficgan.lab.attacks.training import STATE, WEIGHTS
from ficgan.models import load_tensors


@pytest.fixture(autouse=True)
def _every_step_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "REPORT_EVERY", 0.0)


SMALL = AutoEncoder(size=16, epochs=4, batch=8, lr=1e-2, features=4)


def smooth_pairs(count: int = 40, side: int = 16, seed: int = 0) -> Pairs:
    """Smooth pictures and their negatives; four of each person."""
    import cv2

    rng = np.random.default_rng(seed)
    coarse = rng.integers(0, 256, (count, 4, 4, 3), dtype=np.uint8)
    images = np.stack([cv2.resize(one, (side, side), interpolation=cv2.INTER_LINEAR) for one in coarse])
    clear = Faces(images, tuple(map(str, range(count))), people=np.arange(count) // 4)
    return Pairs(clear.with_images(255 - images), clear)


def same_weights(a: AutoEncoder, b: AutoEncoder) -> bool:
    left, right = (one.trained_network().state_dict() for one in (a, b))
    return all(torch.equal(left[key], right[key]) for key in left)


class TestSsim:
    def test_equals_scikit_image_inside_and_has_a_gradient(self) -> None:
        from skimage.metrics import structural_similarity

        from ficgan.anonymizers.cloak import ssim

        rng = torch.Generator().manual_seed(1)
        x = torch.rand(2, 3, 40, 40, generator=rng)
        y = (x + 0.3 * torch.rand(2, 3, 40, 40, generator=rng)).clamp(0, 1).requires_grad_()
        mine = ssim(x, y)
        for index in range(2):
            _, field = structural_similarity(
                x[index].numpy(),
                y[index].detach().numpy(),
                channel_axis=0,
                data_range=1.0,
                full=True,
                gaussian_weights=True,
                sigma=1.5,
                use_sample_covariance=False,
            )
            assert float(mine[index].detach()) == pytest.approx(field[:, 5:-5, 5:-5].mean(), abs=1e-5)
        mine.sum().backward()
        assert y.grad is not None and float(y.grad.abs().sum()) > 0

    def test_of_an_image_smaller_than_the_window(self) -> None:
        from ficgan.anonymizers.cloak import ssim

        x = torch.rand(1, 3, 8, 8)
        assert float(ssim(x, x)) == pytest.approx(1, abs=1e-5)


class TestNetwork:
    @pytest.mark.parametrize(
        ("size", "linear", "millions"),
        [(64, "full", 5.3), (112, "full", 49.8), (224, "full", 796.6), (64, "none", 0.0), (224, "factorised", 57.8)],
    )
    def test_has_as_many_weights_as_the_paper_says(self, size: int, linear: str, millions: float) -> None:
        with torch.device("meta"):
            network = AutoEncoder(size=size, linear=linear).network()
        count = sum(p.numel() for p in network.parameters()) / 1e6
        assert count == pytest.approx(millions, abs=0.06)

    def test_without_its_linear_layer_it_sees_neighbours_only(self) -> None:
        torch.manual_seed(0)
        x = torch.rand(1, 3, 32, 32, requires_grad=True)
        for linear, whole in (("none", False), ("full", True), ("factorised", True)):
            network = AutoEncoder(size=32, linear=linear).network()
            (gradient,) = torch.autograd.grad(network(x)[0, :, 0, 0].sum(), x)
            assert bool(gradient[0, :, -8:, -8:].abs().sum() > 0) is whole

    def test_a_size_that_cannot_be_halved_twice(self) -> None:
        with pytest.raises(UsageError, match="multiple of 4"):
            AutoEncoder(size=66)


class TestTraining:
    def test_learns_to_undo_a_negative(self) -> None:
        pairs = smooth_pairs(200)
        told: list[tuple[int, int, str]] = []
        attacker = replace(SMALL, epochs=15, batch=20).fit(pairs, progress=lambda *step: told.append(step))
        fresh = smooth_pairs(20, seed=9)
        error = np.abs(attacker.guess(fresh.anonymised).astype(int) - fresh.clear.images).mean()
        naive = np.abs(fresh.anonymised.images.astype(int) - fresh.clear.images).mean()
        assert error < 0.6 * naive
        assert told[-1][0] == told[-1][1] and [step[0] for step in told] == list(range(1, len(told) + 1))
        assert attacker.record["pairs"] == 200 and attacker.record["pairs_held"] == 20

    def test_untrained_says_so(self) -> None:
        with pytest.raises(UsageError, match="has learnt nothing yet"):
            SMALL.guess(smooth_pairs(4).anonymised)

    def test_repeats(self) -> None:
        assert same_weights(SMALL.fit(smooth_pairs()), SMALL.fit(smooth_pairs()))
        assert not same_weights(SMALL.fit(smooth_pairs()), replace(SMALL, seed=1).fit(smooth_pairs()))

    def test_keeps_the_best_epoch_and_ends_early(self) -> None:
        """Nothing can be learnt from noise: the loss on others rises, training ends, and an early epoch is kept."""
        rng = np.random.default_rng(0)
        images = rng.integers(0, 256, (2, 40, 16, 16, 3), dtype=np.uint8)
        clear = Faces(images[0], tuple(map(str, range(40))))
        attacker = replace(SMALL, epochs=60, patience=3).fit(Pairs(clear.with_images(images[1]), clear))
        record = attacker.record
        assert record["epochs"] == record["best_epoch"] + 3 < 60
        assert record["ended"] == "no better loss for 3 epochs"

    def test_ends_when_its_minutes_are_over(self) -> None:
        attacker = replace(SMALL, epochs=10**6, minutes=0.01, patience=0).fit(smooth_pairs())
        assert attacker.record["ended"].endswith("minutes were over") and attacker.record["seconds"] < 20

    def test_works_at_its_own_size_and_gives_back_the_faces_own(self) -> None:
        attacker = SMALL.fit(smooth_pairs(side=24))
        assert attacker.reverse(smooth_pairs(3, side=40).anonymised, n=2).shape == (3, 2, 40, 40, 3)

    def test_no_pairs_or_uneven_ones(self) -> None:
        pairs = smooth_pairs(4)
        with pytest.raises(InputError, match="no pairs"):
            SMALL.fit(Pairs(pairs.anonymised.take([]), pairs.clear.take([])))
        with pytest.raises(InputError, match="pairs of one size"):
            SMALL.fit(Pairs(smooth_pairs(4, side=24).anonymised, pairs.clear))

    @pytest.mark.parametrize("patience", [0, 1, 5])
    def test_a_plateau_is_torchs(self, patience: int) -> None:
        weight = torch.nn.Parameter(torch.zeros(1))
        torchs = torch.optim.SGD([weight], 1.0)
        schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(torchs, factor=0.75, patience=patience, threshold=0)
        learner = SsimLearner(torch.nn.Linear(1, 1), 1.0, patience)
        best, at, factor = np.inf, 0, 1.0
        falls = [1.0, 0.9, 0.8, *[0.85] * 14, 0.7, *[0.75] * 8]
        for epoch, loss in enumerate(falls, 1):
            if loss < best:
                best, at = loss, epoch
            schedule.step(loss)
            factor = learner.after_epoch(factor, epoch / len(falls), epoch - at)
            assert factor == pytest.approx(torchs.param_groups[0]["lr"])
        assert factor < 1

    @pytest.mark.parametrize("name", ["autoencoder", "pix2pix", "revelio"])
    @pytest.mark.parametrize("rate", [0, -1e-4])
    def test_a_rate_at_which_nothing_is_learnt(self, name: str, rate: float) -> None:
        with pytest.raises(UsageError, match="lr is"):
            REVERSERS.make(name, lr=rate)

    def test_a_loss_that_is_not_finite_is_an_error(self) -> None:
        with pytest.raises(FicganError, match="not finite"):
            replace(SMALL, lr=1e30, epochs=20).fit(smooth_pairs())


class TestWorkspace:
    def test_an_interrupted_training_comes_to_the_same(self, tmp_path: Path) -> None:
        pairs = smooth_pairs()
        whole = SMALL.fit(pairs)

        def stop(done: int, total: int, stage: str) -> None:
            if done == total // 2 + 1:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            SMALL.fit(pairs, workspace=tmp_path, progress=stop)
        assert (tmp_path / "state.safetensors").exists() and not (tmp_path / "attacker.safetensors").exists()
        seen: list[int] = []
        resumed = SMALL.fit(pairs, workspace=tmp_path, progress=lambda done, total, stage: seen.append(done))
        assert same_weights(whole, resumed) and seen[0] > 1
        assert not (tmp_path / "state.safetensors").exists()

    @pytest.mark.parametrize("spoilt", ["loss", "weights"])
    def test_a_state_that_is_not_finite_is_not_kept(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spoilt: str
    ) -> None:
        """Told at the step at which it would be saved, not at the end of the epoch; the state before stays."""
        bad, steps = 7, 0
        step = SsimLearner.step

        def spoil(self: SsimLearner, seen: torch.Tensor, clear: torch.Tensor, images: int) -> dict[str, torch.Tensor]:
            nonlocal steps
            steps += 1
            losses = step(self, seen, clear, images)
            if steps == bad and spoilt == "loss":
                return {"loss": losses["loss"] * float("nan")}
            if steps == bad:
                next(self.network.parameters()).data.fill_(float("inf"))
            return losses

        monkeypatch.setattr(SsimLearner, "step", spoil)
        monkeypatch.setattr(training, "_SAVE_EVERY", -1.0)
        monkeypatch.setattr(training, "_SAVE_SHARE", 0)
        with pytest.raises(FicganError, match=r"not finite; lower lr; the last good state is .*state\.safetensors"):
            SMALL.fit(smooth_pairs(80), workspace=tmp_path)  # nine steps an epoch
        assert steps == bad
        tensors, header = load_tensors(tmp_path / "state.safetensors", kind="attacker training state")
        assert header["counters"]["step"] == bad - 1
        assert all(bool(tensor.isfinite().all()) for tensor in tensors.values())

    def test_a_stop_saves_once_and_states_take_a_twentieth_of_the_time(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        clock, saved = [0.0], []
        monkeypatch.setattr(training.time, "monotonic", lambda: clock[0])

        def save(self: object) -> None:
            clock[0] += 10  # so slow a disk
            saved.append(clock[0])

        def told(done: int, total: int, stage: str) -> None:
            clock[0] += 10
            if done == 100:
                signal.raise_signal(signal.SIGINT)

        monkeypatch.setattr(training._Run, "_save", save)
        with pytest.raises(KeyboardInterrupt):
            replace(SMALL, epochs=100).fit(smooth_pairs(), workspace=tmp_path, progress=told)
        assert [round(time) for time in saved[:3]] == [80, 300, 520]
        assert len(saved) == 6 and clock[0] == 1060  # five on the way, one at the stop

    def test_a_finished_training_is_read_not_repeated(self, tmp_path: Path) -> None:
        pairs = smooth_pairs()
        first = SMALL.fit(pairs, workspace=tmp_path)
        again = SMALL.fit(pairs, workspace=tmp_path, progress=lambda *step: pytest.fail("it trained again"))
        assert same_weights(first, again)
        records = [json.loads(line) for line in (tmp_path / "stats.jsonl").read_text().splitlines()]
        assert len(records) == first.record["epochs"] and "held_out" in records[-1]
        assert list((tmp_path / "tensorboard").iterdir())

    def test_another_training_may_not_use_it(self, tmp_path: Path) -> None:
        SMALL.fit(smooth_pairs(), workspace=tmp_path)
        for other in (replace(SMALL, lr=1e-4), replace(SMALL, linear="none")):
            with pytest.raises(FicganError, match="use another folder"):
                other.fit(smooth_pairs(), workspace=tmp_path)
        with pytest.raises(FicganError, match="use another folder"):
            SMALL.fit(smooth_pairs(seed=5), workspace=tmp_path)


class TestFiles:
    def test_comes_back_from_its_file(self, tmp_path: Path) -> None:
        faces = smooth_pairs(5, seed=3).anonymised
        attacker = SMALL.fit(smooth_pairs())
        attacker.save(tmp_path / "a.safetensors", {"data": {"name": "made"}})
        found = load_attacker(tmp_path / "a.safetensors")
        assert found.settings() == attacker.settings() and found.record == attacker.record
        assert (found.guess(faces) == attacker.guess(faces)).all()
        named = REVERSERS.make("trained", file=str(tmp_path / "a.safetensors"))
        assert isinstance(named, Trained) and "pairs" not in named.traits.knowledge
        assert (named.fit(smooth_pairs(seed=8)).guess(faces) == attacker.guess(faces)).all()

    @pytest.mark.parametrize(
        ("spoil", "told"),
        [
            ("missing", "does not exist"),
            ("cut", "damaged|cannot be read|incomplete"),
            ("foreign", "not written by ficgan"),
            ("model", "not a"),
        ],
    )
    def test_a_file_that_is_no_attacker(self, tmp_path: Path, spoil: str, told: str) -> None:
        from safetensors.torch import save_file

        path = tmp_path / "a.safetensors"
        if spoil == "cut":
            SMALL.fit(smooth_pairs()).save(path)
            path.write_bytes(path.read_bytes()[:3000])
        elif spoil == "foreign":
            save_file({"x": torch.zeros(1)}, path)
        elif spoil == "model":
            save_file({"x": torch.zeros(1)}, path, metadata={"format": "ficgan", "kind": "model", "header": "{}"})
        with pytest.raises(FicganError, match=told):
            load_attacker(path)


def test_held_out_are_whole_people() -> None:
    people = np.repeat(np.arange(30), 3)
    held = held_out(people, 90, 0.1, seed=4)
    assert held.sum() == 9 and set(people[held]).isdisjoint(people[~held])
    assert not held_out(people, 90, 0.0, 0).any() and not held_out(np.zeros(9, int), 9, 0.5, 0).any()
    assert held_out(None, 10, 0.2, 0).sum() == 2 and held_out(np.full(10, -1), 10, 0.2, 0).sum() == 2


def test_enrolled_people_are_never_held_out() -> None:
    people = np.repeat(np.arange(30), 3)
    for seed in range(20):
        held = held_out(people, 90, 0.2, seed, enrolled=np.arange(10, 30))
        assert held.sum() == 6 and set(people[held]) <= set(range(10))  # two of the ten who are left
    assert not held_out(people, 90, 0.2, 0, enrolled=np.arange(40)).any()
    assert held_out(people, 90, 0.5, 0, enrolled=np.arange(29)).sum() == 3
    assert np.array_equal(held_out(people, 90, 0.2, 0, np.empty(0, int)), held_out(people, 90, 0.2, 0))


def test_who_is_enrolled_makes_another_training(tmp_path: Path) -> None:
    """Nobody is held out where all are enrolled, and the plan says so."""
    pairs = smooth_pairs()
    granted = replace(pairs, enrolled=np.arange(10))
    assert SMALL.fit(pairs, workspace=tmp_path).record["pairs_held"] == 4
    assert SMALL.fit(granted).record["pairs_held"] == 0
    with pytest.raises(FicganError, match="use another folder"):
        SMALL.fit(granted, workspace=tmp_path)


def test_seeds_are_of_the_face_not_of_its_place() -> None:
    assert seed_of(0, "a", 1) == seed_of(0, "a", 1)
    assert len({seed_of(s, name, n) for s in range(3) for name in "abc" for n in range(3)}) == 27


def inverted_pairs(n: int = 48, size: int = 16, seed: int = 0) -> Pairs:
    clear = random_faces(n, size, seed=seed, per_person=2)
    return Pairs(clear.with_images(255 - clear.images), clear)


def tiny(**more: object) -> Pix2Pix:
    return Pix2Pix(**{"size": 16, "base": 8, "batch": 4, "epochs": 12, "lr": 2e-3, "device": "cpu", **more})  # type: ignore[arg-type]


@settings(max_examples=8)
@given(
    depth=st.integers(4, 7), base=st.integers(1, 4), n=st.integers(1, 3), norm=st.sampled_from(["instance", "batch"])
)
def test_shapes_and_range(depth: int, base: int, n: int, norm: str) -> None:
    size = 2**depth
    network = Pix2PixUNet(size, base, norm, 0.5)
    x = torch.rand(n, 3, size, size)
    for learning in (True, False):
        y = network.train(learning)(x)
        assert y.shape == x.shape and y.isfinite().all() and y.min() >= 0 and y.max() <= 1
    assert len(network.down) == len(network.up) == depth
    logits = PatchGAN(base, halvings_for(size), norm).eval()(x, y)
    assert logits.shape[:2] == (n, 1) and logits.shape[2] == logits.shape[3] > 1


def test_the_papers_generator_layer_by_layer() -> None:
    with torch.device("meta"):
        network = Pix2PixUNet(256)
    down = [block[0] for block in network.down]  # type: ignore[index]
    up = [block[0] for block in network.up]  # type: ignore[index]
    assert [conv.out_channels for conv in down] == [64, 128, 256, 512, 512, 512, 512, 512]
    assert [conv.out_channels for conv in up] == [512, 512, 512, 512, 256, 128, 64, 3]
    assert [conv.in_channels for conv in up] == [512, 1024, 1024, 1024, 1024, 512, 256, 128]
    normed = [not isinstance(block[1], torch.nn.Identity) for block in (*network.down, *network.up)]  # type: ignore[index]
    assert normed == [False, *[True] * 6, False, *[True] * 7, False]


def test_every_input_pixel_and_skip_counts() -> None:
    torch.manual_seed(0)
    network = Pix2PixUNet(32, 4).eval()
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
    assert int(touched[-1] - touched[0]) + 1 == side


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
    network, judge = Pix2PixUNet(16, 4, dropout=0.0), PatchGAN(4, 1)
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
    learner = Pix2PixLearner(Pix2PixUNet(16, 1), PatchGAN(1, 1), 1e-4, 100.0)
    assert [learner.after_epoch(1.0, done, 0) for done in (0.1, 0.5, 0.75, 1.0)] == [1.0, 1.0, 0.5, 0.0]


@pytest.mark.slow
def test_a_tiny_training_learns_an_inversion_of_colours() -> None:
    unseen = inverted_pairs(8, seed=9)
    trained = tiny().fit(inverted_pairs())
    before = psnr(unseen.anonymised.images, unseen.clear.images)
    assert psnr(trained.guess(unseen.anonymised), unseen.clear.images) > before + 5
    assert trained.record["epochs"] == 12


def test_candidates_differ_by_dropout_and_repeat_whatever_the_batch() -> None:
    trained, faces = tiny(epochs=1).fit(inverted_pairs(8)), random_faces(3, 16, seed=3)
    several = trained.reverse(faces, 3)
    assert several.shape == (3, 3, 16, 16, 3) and not np.array_equal(several[:, 0], several[:, 1])
    assert np.array_equal(several, trained.reverse(faces, 3))
    assert np.array_equal(several[:, 0], trained.guess(faces))
    alone = trained.reverse(faces.take([2]), 3)
    assert np.abs(alone[0].astype(int) - several[2]).max() <= 1
    still = tiny(epochs=1, dropout=0.0).fit(inverted_pairs(8)).reverse(faces, 2)
    assert np.array_equal(still[:, 0], still[:, 1])


def test_the_discriminator_is_in_the_state_of_a_training_and_not_in_the_weights(tmp_path: Path) -> None:
    def interrupt(done: int, total: int, what: str) -> None:
        if done == 5:
            raise KeyboardInterrupt

    attacker, seen = tiny(epochs=2), inverted_pairs(16)
    with pytest.raises(KeyboardInterrupt):
        attacker.fit(seen, workspace=tmp_path, progress=interrupt)
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
