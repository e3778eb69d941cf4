"""The judge of shapes: pose and expression taken out; pictures without a mesh are like nobody."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from safetensors.numpy import load_file
from scipy.spatial.transform import Rotation

from ficgan import pretrained
from ficgan.faces import Mesh
from ficgan.frame import FaceShape
from ficgan.lab import readers
from ficgan.lab.readers import Reader, ShapeRecognizer


@pytest.fixture
def embedded(monkeypatch: pytest.MonkeyPatch) -> Callable[[list[np.ndarray]], tuple[ShapeRecognizer, np.ndarray]]:
    def embed(meshes: list[np.ndarray]) -> tuple[ShapeRecognizer, np.ndarray]:
        """The judge and its embeddings of pictures whose meshes are these [468,3], or of no face where all is 0."""
        found = [
            Mesh(np.concatenate([points, np.zeros((10, 3))]).astype(np.float32), 20.0 if points.any() else -20.0)
            for points in meshes
        ]
        monkeypatch.setattr(readers, "find_meshes", lambda mesh, image, marks: [found[image[0, 0, 0]]])
        images = np.arange(len(found), dtype=np.uint8)[:, None, None, None].repeat(3, 3)
        judge = ShapeRecognizer()
        return judge, judge.embed_each(images, np.zeros((len(found), 5, 2)))

    return embed


def test_pose_is_taken_out_and_the_shape_stays(embedded) -> None:
    rng = np.random.default_rng(0)
    mean, spread, moving = readers._yardstick()
    first, second = (mean + rng.normal(size=mean.shape) * spread for _ in range(2))
    turned = [
        rng.uniform(0.5, 8) * shape @ Rotation.from_euler("xyz", rng.uniform(-30, 30, 3), degrees=True).as_matrix().T
        + rng.normal(size=3) * 100
        for shape in (first, first, second)
    ]
    _, seen = embedded(turned)
    assert seen.shape == (3, 1405) and np.abs(seen[:, :-1] @ moving).max() < 1e-3
    np.testing.assert_allclose(seen[0], seen[1], atol=2e-3)
    assert np.abs(seen[0] - seen[2]).mean() > 0.5
    # In standard deviations from the mean face; a seventh of the noise, the rigid part of it, was taken for pose.
    assert np.std(seen[0]) == pytest.approx(1, abs=0.1)


def test_the_judge_sees_no_expression(embedded) -> None:
    """Two people, each with two expressions and once turned: a smile would outweigh who it is."""
    shape = FaceShape.from_arrays(load_file(pretrained.path("linear")))
    rng = np.random.default_rng(1)
    who = np.einsum("pi,inj->pnj", rng.normal(size=(2, len(shape.basis))), shape.basis)
    moved = np.einsum("ei,inj->enj", rng.normal(size=(3, 10)) * 3, shape.moves[1:])
    judge, seen = embedded([shape.mean + who[person] + moved[way] for person, way in ((0, 0), (0, 1), (1, 0), (1, 2))])
    assert judge.distance(seen[0], seen[1]) < 0.1 and judge.distance(seen[2], seen[3]) < 0.1
    assert judge.distance(seen[0], seen[2]) > 0.4


def test_a_picture_without_a_mesh_is_like_nobody(embedded) -> None:
    mean, spread, _ = readers._yardstick()
    shape = mean + np.random.default_rng(2).normal(size=mean.shape) * spread
    judge, seen = embedded([shape, 0 * mean, np.full_like(mean, np.nan)])
    assert Reader(judge, "shape", "").unread(seen) == 2
    assert abs(1 - judge.distance(seen[0], seen[1])) < 1e-3 and not judge.is_match(seen[0], seen[1])
    assert judge.is_match(seen[0], seen[0])
    np.testing.assert_allclose(judge.embed(np.zeros((1, 1, 3), np.uint8), np.zeros((1, 5, 2))), seen[:1], atol=1e-5)
    assert judge.embed(np.zeros((1, 1, 3), np.uint8), np.zeros((0, 5, 2))).shape == (0, 1405)
