"""The thesis' auto-encoder: its shape, and its place in a study of clouds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import clouds_world
import numpy as np
import pytest
import torch

from ficgan.anonymizers import Faces
from ficgan.errors import UsageError
from ficgan.lab.attacks import REVERSERS, Pairs, ThesisAutoEncoder, load_attacker
from ficgan.lab.attacks.networks import SquaredErrorLearner, ThesisAutoEncoderNetwork
from ficgan.lab.clouds import CloudStudyConfig, attack, run_cloud_study
from ficgan.lab.clouds.attack import split
from ficgan.lab.clouds.config import AttackConfig
from ficgan.lab.clouds.reading import Eyes
from ficgan.pointcloud.heads import made_head
from ficgan.pointcloud.projection import project
from ficgan.pointcloud.segments import segmented


def test_the_middle_has_eight_channels_and_ends_are_alike() -> None:
    network = ThesisAutoEncoderNetwork()
    x = torch.rand(2, 3, 32, 48)
    assert network.encode(x).shape == (2, 8, 4, 6)
    out = network(x)
    assert out.shape == x.shape and bool(((out >= 0) & (out <= 1)).all())
    kinds = [type(layer).__name__ for layer in (*network.down, *network.up)]
    assert kinds == ["Conv2d"] * 3 + ["ConvTranspose2d"] * 3


def test_the_loss_is_squared_error() -> None:
    network = ThesisAutoEncoderNetwork()
    learner = SquaredErrorLearner(network, 1e-3)
    seen, clear = torch.rand(2, 2, 3, 16, 16)
    expected = ((network(seen) - clear) ** 2).mean().item()
    assert float(learner.step(seen, clear, 0)["loss"]) == pytest.approx(expected, rel=1e-5)
    assert ((network(seen) - clear) ** 2).mean().item() < expected


def test_settings_are_the_thesis() -> None:
    made = REVERSERS.make("thesis-autoencoder")
    assert isinstance(made, ThesisAutoEncoder)
    assert (made.epochs, made.batch, made.lr, made.patience) == (250, 8, 1e-3, 20)
    with pytest.raises(UsageError, match="multiple of 8"):
        ThesisAutoEncoder(size=100)


def test_it_learns_and_is_read_back(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    shade = rng.integers(0, 255, (12, 1, 1, 3))
    clear = Faces(np.broadcast_to(shade, (12, 16, 16, 3)).astype(np.uint8), tuple(map(str, range(12))))
    seen = clear.with_images(255 - clear.images)
    attacker = ThesisAutoEncoder(size=16, epochs=60, lr=0.01, held=0.2, patience=0, device="cpu")
    trained = attacker.fit(Pairs(seen, clear))
    before = np.abs(seen.images.astype(int) - clear.images).mean()
    assert np.abs(trained.guess(seen).astype(int) - clear.images).mean() < 0.5 * before
    trained.save(tmp_path / "a.safetensors")
    assert (load_attacker(tmp_path / "a.safetensors").guess(seen) == trained.guess(seen)).all()


def test_nobody_is_learnt_from_and_tried() -> None:
    people = np.repeat(np.arange(200), 2)
    lessons, tried = split(people, 0)
    assert len(lessons) == 180 and len(tried) == 20 and not set(lessons) & set(tried)
    assert [list(one) for one in split(people, 0)] == [list(lessons), list(tried)]
    assert list(split(people, 1)[1]) != list(tried)
    with pytest.raises(UsageError, match="at least 3"):
        split(np.array([0, 0, 1]), 0)


def test_the_window_holds_the_face_and_goes_back_into_its_place() -> None:
    settings = AttackConfig(size=256)
    image = project(segmented(made_head(1, points=4000).cloud).inner)
    drawn = (image < 250).any(axis=2)
    rows, columns = attack._middle(image.shape[:2], settings.window)
    assert drawn[rows, columns].sum() > 0.99 * drawn.sum()
    seen = attack._windows(image[None], settings)[0]
    np.testing.assert_array_equal(attack._put_back(seen, np.zeros_like(image), settings)[rows, columns], seen)
    np.testing.assert_array_equal(attack._put_back(seen, image, settings), image)


def test_guesses_are_tried_on_the_others_against_everybody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Eyes, "open", classmethod(lambda cls, config: clouds_world.eyes(config)))
    tree: dict[str, Any] = {
        "clouds": str(clouds_world.write_people(tmp_path / "people", 4, 600)), "prepared": True,
        "methods": ["uniform-noise", "tapering"], "degrees": [5, 20], "timed": 0, "resamples": 20, "geometry": None,
        "attack": {"epochs": 2, "degrees": [20], "views": 2, "size": 16, "device": "cpu"},
    }  # fmt: skip
    config = CloudStudyConfig.parse(tree)
    results = run_cloud_study(config, tmp_path / "out")
    found = [one for one in results.trials if one.attacker == "thesis-autoencoder"]
    assert {one.method for one in found} == {"uniform-noise 20", "tapering 20"}
    told = results.provenance["thesis_autoencoder"]
    assert told["people"] == {"learnt from or watched on": 3, "tried on": 1}
    assert told["pairs"] == 3 * 2 * 2
    assert all(any(f.metric == "ssim of the guess" for f in one.figures) for one in found)
    assert any("did not learn from" in line for line in results.caveats)
    seconds = told["seconds"]
    again = run_cloud_study(config, tmp_path / "out")
    assert again.provenance["thesis_autoencoder"]["seconds"] == seconds  # read, not trained again
