"""Methods at many degrees against the methods one by one; the thesis' auto-encoder: network, loss, lessons, window."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from ficgan.anonymizers import Faces
from ficgan.errors import InputError, UsageError
from ficgan.lab.attacks import REVERSERS, Pairs, ThesisAutoEncoder, load_attacker
from ficgan.lab.attacks.networks import SquaredErrorLearner, ThesisAutoEncoderNetwork
from ficgan.lab.clouds import study, treatments
from ficgan.lab.clouds.sets import AttackConfig
from ficgan.lab.clouds.treatments import anonymiser, drawn_as, split, sweep, time_alone
from ficgan.pointcloud.cloud import Cloud
from ficgan.pointcloud.heads import made_head
from ficgan.pointcloud.projection import project
from ficgan.pointcloud.scan import segmented

DEGREES = (1, 9, 20)


@pytest.fixture(scope="module")
def faces() -> tuple[Cloud, Cloud]:
    one, other = (segmented(made_head(seed, points=1500).cloud).inner for seed in (1, 2))
    return one, other


@pytest.mark.parametrize(
    "method", ["centroid-voxel", "uniform-noise", "tapering", "merge-2-faces", "smooth-knn", "pmp"]
)
def test_a_sweep_is_the_method_degree_by_degree(method: str, faces: tuple[Cloud, Cloud]) -> None:
    cloud, other = faces
    target = other if method == "merge-2-faces" else None
    for degree, made in sweep(method, DEGREES, cloud, seed=3, target=target, name="a"):
        try:
            plain = anonymiser(method, degree, seed=3, target=target)(cloud, name="a")
        except InputError:
            assert made is None
            continue
        assert made is not None
        np.testing.assert_allclose(made.points, plain.points, atol=1e-12)
        assert made.colors is not None and plain.colors is not None
        assert np.abs(made.colors.astype(int) - plain.colors).max() <= 1
        assert (made.colors != plain.colors).mean() < 1e-3


def test_a_target_without_colours_leaves_none(faces: tuple[Cloud, Cloud]) -> None:
    bare = Cloud(faces[1].points)
    assert [made.colors for _, made in sweep("merge-2-faces", (1, 20), faces[0], target=bare) if made] == [None, None]


def test_degrees_that_cannot_work_leave_nothing(faces: tuple[Cloud, Cloud]) -> None:
    small = faces[0].take(np.arange(100))
    found = dict(sweep("smooth-knn", (35, 1), small))
    assert found[35] is None and found[1] is not None
    assert math.isnan(time_alone("smooth-knn", 35, small))
    assert dict(sweep("pmp", (1,), small))[1] is None


def test_times_are_taken_from_nothing(faces: tuple[Cloud, Cloud]) -> None:
    assert 0 < time_alone("centroid-voxel", 3, faces[0]) < 10


def test_results_are_drawn_as_the_thesis_draws_them() -> None:
    assert drawn_as("smooth-knn", 1) == {"point_size": 60.0, "order": "y"}
    assert drawn_as("pmp", 13)["order"] == "y" and drawn_as("pmp", 14)["order"] == "x"


@pytest.mark.parametrize("colours", [False, True])
def test_recovered_clouds_are_kept_whole(colours: bool) -> None:
    head = made_head(1, points=200).cloud
    cloud = head if colours else Cloud(head.points)
    back = study._unpacked(study._packed(cloud, 200))
    assert back is not None
    np.testing.assert_allclose(back.points, cloud.points, atol=1e-7)
    assert (back.colors is None) == (cloud.colors is None)
    if colours:
        np.testing.assert_array_equal(back.colors, cloud.colors)
    assert study._unpacked(study._packed(None, 5)) is None


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
    rows, columns = treatments._middle(image.shape[:2], settings.window)
    assert drawn[rows, columns].sum() > 0.99 * drawn.sum()
    seen = treatments._windows(image[None], settings)[0]
    np.testing.assert_array_equal(treatments._put_back(seen, np.zeros_like(image), settings)[rows, columns], seen)
    np.testing.assert_array_equal(treatments._put_back(seen, image, settings), image)
