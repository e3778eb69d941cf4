"""The judge of shapes: pose and expression taken out; pictures without a mesh are like nobody."""

from __future__ import annotations

import numpy as np
import pytest
from bars_world import people
from safetensors.numpy import load_file
from scipy.spatial.transform import Rotation
from shape_world import MadeMesh

from ficgan import pretrained
from ficgan.faces import Mesh
from ficgan.frame.geometry import FaceShape
from ficgan.lab import readers
from ficgan.lab.metrics import Bootstrap
from ficgan.lab.readers import ShapeRecognizer

DRAWN = Bootstrap(50)


# Reading


def test_pose_is_taken_out_and_the_shape_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    mean, spread, _ = readers._yardstick()
    first, second = (mean + rng.normal(size=mean.shape) * spread for _ in range(2))
    turned = [
        rng.uniform(0.5, 8) * one @ Rotation.from_euler("xyz", rng.uniform(-30, 30, 3), degrees=True).as_matrix().T
        + rng.normal(size=3) * 100
        for one in (first, first, second)
    ]
    found = [Mesh(np.concatenate([points, np.zeros((10, 3))]).astype(np.float32), 20.0) for points in turned]
    monkeypatch.setattr(readers, "find_meshes", lambda mesh, image, marks: [found[image[0, 0, 0]]])
    images = np.arange(3, dtype=np.uint8)[:, None, None, None].repeat(8, 1).repeat(8, 2).repeat(3, 3)
    read = ShapeRecognizer(MadeMesh()).read(images, np.zeros((3, 5, 2)))
    assert read.readable.all() and read.points.shape == (3, 1404)
    np.testing.assert_allclose(read.points[0], read.points[1], atol=2e-3)
    assert np.abs(read.points[0] - read.points[2]).mean() > 0.5
    # In standard deviations from the mean face; a seventh of the noise, the rigid part of it, was taken for pose.
    assert np.std(read.points[0]) == pytest.approx(1, abs=0.1)


def test_the_judge_sees_no_expression(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two people, each with two expressions and once turned: a smile would outweigh who it is."""
    shape = FaceShape.from_arrays(load_file(pretrained.path("model")))
    rng = np.random.default_rng(1)
    who = np.einsum("pi,inj->pnj", rng.normal(size=(2, len(shape.basis))), shape.basis)
    moved = np.einsum("ei,inj->enj", rng.normal(size=(3, 10)) * 3, shape.moves[1:])
    found = [
        Mesh(np.concatenate([shape.mean + who[person] + moved[way], np.zeros((10, 3))]).astype(np.float32), 20.0)
        for person, way in ((0, 0), (0, 1), (1, 0), (1, 2))
    ]
    monkeypatch.setattr(readers, "find_meshes", lambda mesh, image, marks: [found[image[0, 0, 0]]])
    images = np.arange(4, dtype=np.uint8)[:, None, None, None].repeat(8, 1).repeat(8, 2).repeat(3, 3)
    judge, marks = ShapeRecognizer(MadeMesh()), np.zeros((4, 5, 2))
    seen, points = judge.embed_each(images, marks), judge.read(images, marks).points
    assert judge.distance(seen[0], seen[1]) < 0.1 and judge.distance(seen[2], seen[3]) < 0.1
    assert judge.distance(seen[0], seen[2]) > 0.4
    assert judge.distance(points[0], points[2]) < judge.distance(points[0], points[1])  # which is what it undoes


def test_a_picture_without_a_mesh_is_the_mean_face_and_like_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    faces = people(3, 1)
    images = faces.images.copy()
    images[1] = 90
    marks = np.array(faces.landmarks)
    marks[2] = marks[2, :1]  # all five in one point
    judge = ShapeRecognizer(MadeMesh())
    assert judge.read(images, marks).readable.tolist() == [True, False, False]
    seen = judge.embed_each(images, marks)
    assert seen.shape == (3, 1405) and judge.unread(seen) == 2 and judge.unread(seen[:0]) == 0
    assert abs(1 - judge.distance(seen[0], seen[1])) < 1e-3 and not judge.is_match(seen[0], seen[1])
    assert judge.is_match(seen[0], seen[0])
    np.testing.assert_allclose(judge.embed(images[0], marks[:1]), seen[:1], atol=1e-5)
    assert judge.embed(images[0], np.zeros((0, 5, 2))).shape == (0, 0)
    broken = Mesh(np.full((478, 3), np.nan, np.float32), 30.0)
    monkeypatch.setattr(readers, "find_meshes", lambda *_: [broken])
    assert not judge.read(images[:1], marks[:1]).readable.any()
