"""Parrots: ArcFace's loss against a loop, and a network that is trained on."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from stand_ins import random_network

from ficgan.anonymizers import Faces
from ficgan.faces.crops import ARCFACE_POINTS
from ficgan.lab.attacks.networks import additive_margin_loss, retrained
from ficgan.lab.readers import get_readers


def test_the_loss_is_arcfaces() -> None:
    rng = np.random.default_rng(0)
    x, w, people = rng.normal(size=(5, 8)), rng.normal(size=(3, 8)), np.array([0, 2, 1, 1, 0])
    losses = []
    for row, person in zip(x, people, strict=True):
        cosines = [float(row @ c / np.linalg.norm(row) / np.linalg.norm(c)) for c in w]
        logits = [64 * (math.cos(math.acos(c) + 0.5) if k == person else c) for k, c in enumerate(cosines)]
        losses.append(-logits[person] + math.log(sum(math.exp(each) for each in logits)))
    found = additive_margin_loss(*(torch.from_numpy(each).float() for each in (x, w)), torch.from_numpy(people))
    assert float(found) == pytest.approx(np.mean(losses), rel=1e-4)


def test_a_network_trained_on_brings_a_persons_pictures_together(tmp_path: Path) -> None:
    """Pictures of noise, which nothing but learning can join; the nearest other picture is the person's then."""
    rng, people = np.random.default_rng(1), np.arange(5).repeat(4)
    images = rng.integers(0, 256, (20, 7, 7, 3), dtype=np.uint8).repeat(16, 1).repeat(16, 2)
    marks = np.broadcast_to(np.asarray(ARCFACE_POINTS, np.float32), (20, 5, 2))
    training = Faces(images, tuple(map(str, range(20))), marks, people)
    path, said = random_network(tmp_path / "judge.onnx"), list[str]()
    (reader,) = get_readers([f"onnx:{path}"])

    def right(codes: np.ndarray) -> float:
        units = codes / np.linalg.norm(codes, axis=1, keepdims=True)
        return float(np.mean(people[(units @ units.T - 2 * np.eye(20)).argmax(1)] == people))

    codes = retrained(path, training, training.take([3]), epochs=60, seed=0, say=said.append)
    assert codes.shape == (21, 16) and np.allclose(codes[20], codes[3], atol=1e-3) and len(said) == 60
    assert right(reader.embed(training)) < 0.5 and right(codes[:20]) > 0.9
