"""Judges: of shapes, retrained."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from safetensors.numpy import load_file
from scipy.linalg import eigh
from scipy.spatial.transform import Rotation

from ficgan import pretrained
from ficgan.faces import Mesh
from ficgan.frame import FaceShape
from ficgan.lab import readers
from ficgan.lab.readers import Reader, ShapeRecognizer, discriminant


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


# The linear head

EACH, WIDTH = 6, 24
TURN = np.linalg.qr(np.random.default_rng(99).normal(size=(WIDTH, WIDTH)))[0]


def codes(seed: int, people: int = 80, signal: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    """Four weak coordinates tell people apart, the others are loud noise; all of it turned by one rotation."""
    rng = np.random.default_rng(seed)
    index = np.repeat(np.arange(people), EACH)
    own = signal * rng.normal(size=(people, WIDTH)) * (np.arange(WIDTH) < 4)
    x = own[index] + rng.normal(size=(len(index), WIDTH)) * np.where(np.arange(WIDTH) < 4, 0.2, 2.0)
    return (x @ TURN).astype(np.float32), index


def nearest(x: np.ndarray, people: np.ndarray) -> float:
    unit = x / np.linalg.norm(x, axis=1, keepdims=True)
    score = unit @ unit.T
    np.fill_diagonal(score, -np.inf)
    return float((people[score.argmax(1)] == people).mean())


def test_the_head_finds_what_tells_other_people_apart() -> None:
    x, people = codes(0)
    unseen, others = codes(1)
    matrix = discriminant(x, people)
    best = nearest((unseen @ TURN.T)[:, :4], others)
    assert nearest(unseen, others) < 0.2 * best
    assert nearest((unseen - x.mean(0)) @ matrix, others) > 0.8 * best


def test_fewer_images_than_numbers_change_nothing() -> None:
    """The same map, in the span of the images, as from the whole covariance."""
    x, people = codes(4)
    wide = (x[:60] @ np.random.default_rng(5).normal(size=(WIDTH, 90))) + np.random.default_rng(6).normal(size=(60, 90))
    people = people[:60]
    ours = discriminant(wide, people)
    means = np.stack([wide[people == one].mean(0) for one in range(10)])
    inside, spread = wide - means[people], means - means.mean(0)
    within = inside.T @ inside / 50
    within += 0.1 * np.trace(within) / 90 * np.eye(90)
    between = spread.T @ spread / 9 - within / EACH
    values, vectors = eigh(between, within)
    whole = vectors * np.sqrt((values / (1 + values)).clip(0))
    assert ours.shape[0] == 90 and ours.shape[1] < 60
    np.testing.assert_allclose(ours @ ours.T, whole @ whole.T, rtol=1e-6, atol=1e-9 * np.abs(whole @ whole.T).max())
