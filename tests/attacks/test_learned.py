"""Attackers that train: the loop, its files, the auto-encoder of Fantômas, and Pix2Pix by the paper."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from stand_ins import random_faces

from ficgan.anonymizers import Faces
from ficgan.errors import FicganError, UsageError
from ficgan.lab.attacks import REVERSERS, Pairs, load_attacker, training
from ficgan.lab.attacks.base import held_out
from ficgan.lab.attacks.learned import WEIGHTS, AutoEncoder, Pix2Pix, Trained
from ficgan.lab.attacks.networks import PatchGAN, Pix2PixUNet, discriminator_loss, generator_loss, plateau
from ficgan.lab.attacks.training import STATE
from ficgan.models import load_tensors

SMALL = AutoEncoder(size=16, epochs=4, batch=8, lr=1e-2, features=4)


@pytest.fixture(autouse=True)
def _every_step_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "REPORT_EVERY", 0.0)


def negatives(count: int = 40, side: int = 16, seed: int = 0) -> Pairs:
    """Pictures and their negatives; four of each person."""
    clear = random_faces(count, side, seed, smooth=3, per_person=4)
    return Pairs(clear.with_images(255 - clear.images), clear)


def same_weights(a: Any, b: Any) -> bool:
    left, right = (one.trained_network().state_dict() for one in (a, b))
    return all(torch.equal(left[key], right[key]) for key in left)


def stop_at(step: int) -> Any:
    def progress(done: int, total: int, what: str) -> None:
        if done == step:
            raise KeyboardInterrupt

    return progress


def test_it_learns_to_undo_a_negative() -> None:
    told: list[tuple[int, int, str]] = []
    attacker = replace(SMALL, epochs=8, batch=20).fit(negatives(200), progress=lambda *step: told.append(step))
    fresh = negatives(20, seed=9)
    error = np.abs(attacker.guess(fresh.anonymised).astype(int) - fresh.clear.images).mean()
    assert error < 0.6 * np.abs(fresh.anonymised.images.astype(int) - fresh.clear.images).mean()
    assert told[-1][0] == told[-1][1] and [step[0] for step in told] == list(range(1, len(told) + 1))
    assert attacker.record["pairs"] == 200 and attacker.record["pairs_held"] == 20
    assert attacker.reverse(negatives(3, side=40).anonymised, n=2).shape == (3, 2, 40, 40, 3)


def test_it_keeps_the_best_epoch_and_ends_early() -> None:
    """Nothing can be learnt from noise: the loss on others rises, training ends, and an early epoch is kept."""
    images = np.random.default_rng(0).integers(0, 256, (2, 40, 16, 16, 3), dtype=np.uint8)
    clear = Faces(images[0], tuple(map(str, range(40))))
    record = replace(SMALL, epochs=60, patience=3).fit(Pairs(clear.with_images(images[1]), clear)).record
    assert record["epochs"] == record["best_epoch"] + 3 < 60
    short = replace(SMALL, epochs=10**6, minutes=0.01, patience=0).fit(negatives())
    assert short.record["ended"].endswith("minutes were over") and short.record["seconds"] < 20


def test_a_plateau_is_torchs() -> None:
    weight = torch.nn.Parameter(torch.zeros(1))
    torchs = torch.optim.SGD([weight], 1.0)
    schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(torchs, factor=0.75, patience=5, threshold=0)
    best, at, factor = np.inf, 0, 1.0
    falls = [1.0, 0.9, 0.8, *[0.85] * 14, 0.7, *[0.75] * 8]
    for epoch, loss in enumerate(falls, 1):
        if loss < best:
            best, at = loss, epoch
        schedule.step(loss)
        factor = plateau(factor, epoch, epoch - at)
        assert factor == pytest.approx(torchs.param_groups[0]["lr"])
    assert factor < 1


def test_an_interrupted_training_comes_to_the_same(tmp_path: Path) -> None:
    stopped, pairs = 7, negatives()
    whole = SMALL.fit(pairs)
    with pytest.raises(KeyboardInterrupt):
        SMALL.fit(pairs, workspace=tmp_path, progress=stop_at(stopped))
    assert (tmp_path / STATE).exists() and not (tmp_path / WEIGHTS).exists()
    seen: list[int] = []
    resumed = SMALL.fit(pairs, workspace=tmp_path, progress=lambda done, total, stage: seen.append(done))
    assert same_weights(whole, resumed) and seen[0] == stopped + 1 and not (tmp_path / STATE).exists()
    again = SMALL.fit(pairs, workspace=tmp_path, progress=lambda *step: pytest.fail("it trained again"))
    assert same_weights(whole, again)
    records = [json.loads(line) for line in (tmp_path / "stats.jsonl").read_text().splitlines()]
    assert "held_out" in records[-1] and list((tmp_path / "tensorboard").iterdir())
    for other, learnt in ((replace(SMALL, lr=1e-4), pairs), (SMALL, negatives(seed=5))):
        with pytest.raises(FicganError, match="use another folder"):
            other.fit(learnt, workspace=tmp_path)


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda: SMALL.guess(negatives(4).anonymised), UsageError),
        (lambda: AutoEncoder(size=66), UsageError),
        (lambda: Pix2Pix(size=48), UsageError),
        (lambda: REVERSERS.make("trained"), UsageError),
    ],
)
def test_what_cannot_work_is_refused(call: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        call()


def test_it_comes_back_from_its_file(tmp_path: Path) -> None:
    faces, file = negatives(5, seed=3).anonymised, tmp_path / "a.safetensors"
    attacker = SMALL.fit(negatives())
    attacker.save(file, {"data": {"name": "made"}})
    found = load_attacker(file)
    assert found.settings() == attacker.settings() and found.record == attacker.record
    assert (found.guess(faces) == attacker.guess(faces)).all()
    named = REVERSERS.make("trained", file=str(file))
    assert isinstance(named, Trained) and "pairs" not in named.traits.knowledge
    assert (named.fit(negatives(seed=8)).guess(faces) == attacker.guess(faces)).all()
    file.write_bytes(file.read_bytes()[:3000])
    for path in (file, tmp_path / "missing.safetensors"):
        with pytest.raises(FicganError):
            load_attacker(path)


def test_held_out_are_whole_people() -> None:
    faces = random_faces(90, 4, per_person=3)
    held, people = held_out(faces, 0.1, seed=4), np.asarray(faces.people)
    assert held.sum() == 9 and set(people[held]).isdisjoint(people[~held])
    assert not held_out(faces, 0.0, 0).any() and not held_out(faces.take([0, 1, 2]), 0.5, 0).any()


@pytest.mark.parametrize(
    ("size", "linear", "millions"), [(64, "full", 5.3), (112, "full", 49.8), (224, "full", 796.6), (64, "none", 0.0)]
)
def test_it_has_as_many_weights_as_the_paper_says(size: int, linear: str, millions: float) -> None:
    with torch.device("meta"):
        network = AutoEncoder(size=size, linear=linear).network()
    assert sum(p.numel() for p in network.parameters()) / 1e6 == pytest.approx(millions, abs=0.06)


def test_without_its_linear_layer_it_sees_neighbours_only() -> None:
    torch.manual_seed(0)
    x = torch.rand(1, 3, 32, 32, requires_grad=True)
    for linear, whole in (("none", False), ("full", True)):
        network = AutoEncoder(size=32, linear=linear).network()
        (gradient,) = torch.autograd.grad(network(x)[0, :, 0, 0].sum(), x)
        assert bool(gradient[0, :, -8:, -8:].abs().sum() > 0) is whole


def tiny(**more: object) -> Pix2Pix:
    return Pix2Pix(**{"size": 16, "base": 8, "batch": 4, "epochs": 12, "lr": 2e-3, "device": "cpu", **more})  # type: ignore[arg-type]


def test_the_papers_generator_layer_by_layer() -> None:
    with torch.device("meta"):
        network: Any = Pix2PixUNet(256)
    down, up = ([block[0] for block in some] for some in (network.down, network.up))
    assert [conv.out_channels for conv in down] == [64, 128, 256, 512, 512, 512, 512, 512]
    assert [conv.out_channels for conv in up] == [512, 512, 512, 512, 256, 128, 64, 3]
    assert [conv.in_channels for conv in up] == [512, 1024, 1024, 1024, 1024, 512, 256, 128]
    normed = [not isinstance(block[1], torch.nn.Identity) for block in (*network.down, *network.up)]
    assert normed == [False, *[True] * 6, False, *[True] * 7, False]


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
    got = generator_loss(*tensors[1:])
    assert [one.item() for one in got] == pytest.approx([fools, far])


def test_candidates_differ_by_dropout_and_repeat_whatever_the_batch() -> None:
    trained, faces = tiny(epochs=1).fit(negatives(8)), random_faces(3, 16, seed=3)
    several = trained.reverse(faces, 3)
    assert several.shape == (3, 3, 16, 16, 3) and not np.array_equal(several[:, 0], several[:, 1])
    assert np.array_equal(several, trained.reverse(faces, 3)) and np.array_equal(several[:, 0], trained.guess(faces))
    assert np.abs(trained.reverse(faces.take([2]), 3)[0].astype(int) - several[2]).max() <= 1


@pytest.mark.slow
def test_the_discriminator_is_in_the_state_of_a_training_and_not_in_the_weights(tmp_path: Path) -> None:
    attacker, pairs = tiny(epochs=2), negatives(16)
    with pytest.raises(KeyboardInterrupt):
        attacker.fit(pairs, workspace=tmp_path, progress=stop_at(5))
    state, _ = load_tensors(tmp_path / STATE, kind=training.KIND)
    assert {f"module.discriminator.{key}" for key in PatchGAN(8, 1).state_dict()} <= set(state)
    resumed = attacker.fit(pairs, workspace=tmp_path)
    assert set(load_tensors(tmp_path / WEIGHTS, kind="attacker")[0]) == set(attacker.network().state_dict())
    faces = random_faces(2, 16, seed=4)
    assert np.array_equal(resumed.guess(faces), attacker.fit(pairs).guess(faces))


@pytest.mark.slow
def test_two_processes_train_as_one(tmp_path: Path) -> None:
    """torchrun with gloo: the same weights as of one process with the same whole batch; files are written once."""
    script = tmp_path / "train.py"
    script.write_text(
        "import sys\n"
        "from pathlib import Path\n"
        "sys.path.insert(0, sys.argv[2])\n"
        "from stand_ins import random_faces\n"
        "from ficgan.lab.attacks import Pairs, reverser_of\n"
        "from ficgan.lab.run import Store\n"
        "pairs = Pairs(random_faces(18, 16, 1), random_faces(18, 16, 2))\n"
        "store = Store(Path(sys.argv[1]))\n"
        "for lr in ('0.01', '0.02'):\n"
        "    with store.workspace(['training', lr]) as folder:\n"
        "        reverser_of(f'autoencoder:size=16,epochs=3,batch=8,held=0.2,lr={lr}').fit(pairs, workspace=folder)\n"
    )
    arguments = [str(script), "OUT", str(Path(__file__).parents[1])]
    two = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    for out, launcher in (("one", list[str]()), ("two", two)):
        words = [str(tmp_path / out) if word == "OUT" else word for word in arguments]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
        subprocess.run([sys.executable, *launcher, *words], env=environment, check=True, timeout=300)
    files = [sorted((tmp_path / out / "attackers").glob("*/attacker.safetensors")) for out in ("one", "two")]
    assert len(files[0]) == len(files[1]) == 2
    for pair in zip(*files, strict=True):
        weights = [load_tensors(path, kind="attacker")[0] for path in pair]
        assert all(torch.allclose(weights[0][k], weights[1][k], rtol=0.02, atol=2e-3) for k in weights[0])
        assert len((pair[1].parent / "stats.jsonl").read_text().splitlines()) == 3
