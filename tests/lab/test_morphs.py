"""Morphs: the template lands on the scans, synthetic people differ more than their scans, fields have their kernel."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy.spatial import cKDTree

from ficgan.errors import InputError, UsageError
from ficgan.lab.clouds.morphs import (
    MorphModel,
    Sheet,
    Variety,
    _inside,
    basis,
    build_morphs,
    fitted,
    mirrored_bases,
    morphs_of_folder,
)
from ficgan.pointcloud.cloud import Cloud
from ficgan.pointcloud.heads import MadeHead, made_head
from ficgan.pointcloud.landmarks import FaceLandmarks, landmark_frame

POINTS = 4000
SHOWN = [(0, "neutral"), (0, "smiling"), (1, "neutral"), (1, "pouting"), (2, "neutral")]


@pytest.fixture(scope="module")
def heads() -> list[MadeHead]:
    return [made_head(seed, expression=shown, points=POINTS, colour=False, scan=7) for seed, shown in SHOWN]


@pytest.fixture(scope="module")
def model(heads: list[MadeHead]) -> MorphModel:
    return build_morphs(
        [head.cloud for head in heads],
        [FaceLandmarks.of_points(head.landmarks) for head in heads],
        [str(seed) for seed, _ in SHOWN],
        [shown for _, shown in SHOWN],
    )


def _inner(points: np.ndarray) -> np.ndarray:
    return points[(np.linalg.norm(points, axis=1) < 0.085) & (points[:, 0] > -0.05)]


def test_template_lands_on_scans_and_their_landmarks(heads: list[MadeHead]) -> None:
    template, scan = Sheet.of(heads[0].cloud.points), Sheet.of(heads[2].cloud.points)
    moved = fitted(template, heads[0].landmarks, scan, heads[2].landmarks)
    surface = cKDTree(made_head(2 - 1, points=60_000, colour=False).cloud.points)
    before = np.median(surface.query(_inner(template.points))[0])
    after = np.median(surface.query(_inner(moved))[0])
    assert after < 0.0007 < 0.0015 < before
    named = cKDTree(template.points).query(heads[0].landmarks[17:])[1]
    off = np.linalg.norm(moved[named] - heads[2].landmarks[17:], axis=1)
    assert np.median(off) < 0.0025, "the points of the template at landmarks go to landmarks, up to their spacing"


def test_landmarks_alone_carry_an_affine_map() -> None:
    head = made_head(0, points=1500, colour=False)
    bend = np.array([[1.04, 0.0, 0.02], [0.01, 0.97, 0.0], [0.0, 0.03, 1.05]])
    sheet, goal = Sheet.of(head.cloud.points), Sheet.of(head.cloud.points @ bend.T)
    moved = fitted(sheet, head.landmarks, goal, head.landmarks @ bend.T)
    np.testing.assert_allclose(moved, head.cloud.points @ bend.T, atol=2e-5)


def test_one_person_twice_is_nearer_than_two(model: MorphModel) -> None:
    people = range(6)
    gallery = [cKDTree(model.scanned(person).cloud.points[:2500]) for person in people]
    probes = [_inner(model.scanned(person, scan=1).cloud.points[:2500]) for person in people]
    apart = np.array([[tree.query(probe)[0].mean() for tree in gallery] for probe in probes])
    assert (apart.argmin(axis=1) == np.arange(len(people))).all()


def test_people_are_mixtures_and_mirrored(model: MorphModel) -> None:
    plain = replace(model, variety=Variety(beyond=0.0, fields=(), stretch=0.0))
    shape = plain.identity(3).reshape(-1)
    shares = np.linalg.lstsq(plain.people.reshape(len(plain.people), -1).T, shape, rcond=None)[0]
    assert shares.sum() == pytest.approx(1.0, abs=1e-4) and shares.min() > -1e-4
    np.testing.assert_allclose(shares @ plain.people.reshape(len(shares), -1), shape, atol=1e-6)


@pytest.mark.parametrize(("skewness", "mirrored"), [(0.0, True), (0.5, False)])
def test_deformations_mirror(model: MorphModel, skewness: float, mirrored: bool) -> None:
    half = model.mean[:500]
    both = np.concatenate([half, half * np.float32([1, 1, -1])])
    variety = Variety(fields=((0.03, 0.002),), stretch=0.0, skewness=skewness)
    flat = MorphModel(
        np.stack([both, both]), np.zeros((0, 1000, 3), np.float32), (), np.zeros(68, int), both, None, variety
    )
    moved = flat.identity(1) - both
    error = np.abs(moved[:500] * [1, 1, -1] - moved[500:]).max()
    assert (error < 1e-5) == mirrored
    assert 0.0005 < moved.std() < 0.005


def test_field_has_its_kernel(rng: np.random.Generator) -> None:
    points = made_head(0, points=800, colour=False).cloud.points
    functions = basis(points, 0.04).astype(float)
    kernel = np.exp(-0.5 * ((points[:, None] - points[None]) ** 2).sum(-1) / 0.04**2)
    error = np.abs(functions @ functions.T - kernel)
    assert error.mean() < 0.003 and np.diag(error).mean() < 0.02 and error.max() < 0.5
    same, opposite = mirrored_bases(np.concatenate([points, points * [1, 1, -1]]), 0.04)
    np.testing.assert_allclose(same[:800], same[800:], atol=1e-4)
    np.testing.assert_allclose(opposite[:800], -opposite[800:], atol=1e-4)


def test_expressions_are_the_scans_and_leave_the_rest(model: MorphModel) -> None:
    assert model.expressions == ("neutral", "pouting", "smiling")
    still = replace(model, variety=replace(model.variety, mood=0.0, strength=0.0, tilt=0.0, noise=0.0))
    rest = still.scanned(5).landmarks
    smile = still.scanned(5, expression="smiling").landmarks
    assert np.ptp(smile[[48, 54], 2]) > np.ptp(rest[[48, 54], 2]) + 0.002
    assert np.abs(smile[[0, 16]] - rest[[0, 16]]).max() < 0.003
    np.testing.assert_allclose(rest[30], 0.0, atol=1e-6)


def test_scans_repeat_with_their_seeds(model: MorphModel) -> None:
    one, again = model.scanned(2, scan=3).cloud, model.scanned(2, scan=3).cloud
    np.testing.assert_array_equal(one.points, again.points)
    np.testing.assert_array_equal(one.colors, again.colors)
    assert len(one) == POINTS and not np.array_equal(one.points, model.scanned(2, scan=4).cloud.points)


def test_file_round_trip_without_pickle(model: MorphModel, tmp_path: Path) -> None:
    model.save(tmp_path / "model.npz")
    back = MorphModel.load(tmp_path / "model.npz")
    assert back.variety == model.variety and back.names == model.names
    np.testing.assert_array_equal(back.scanned(1).cloud.points, model.scanned(1).cloud.points)
    with np.load(tmp_path / "model.npz", allow_pickle=False) as held:
        assert all(held[name].dtype != object for name in held.files)
    for spoil in (b"", b"PK\x03\x04 no"):
        (tmp_path / "bad.npz").write_bytes(spoil)
        with pytest.raises(InputError, match="not a model"):
            MorphModel.load(tmp_path / "bad.npz")


def test_colours_come_from_the_scans_where_they_have_some() -> None:
    heads = [made_head(seed, points=1500) for seed in range(2)]
    plain = [replace(h.cloud, colors=np.full((1500, 3), (10, 200, 30), np.uint8)) for h in heads]
    model = build_morphs(plain, [FaceLandmarks.of_points(h.landmarks) for h in heads], ["a", "b"], ["neutral"] * 2)
    colors = model.scanned(0).cloud.colors
    assert colors is not None
    assert np.abs(np.median(colors, axis=0) - [10, 200, 30]).max() < 20


def test_inside_a_polygon() -> None:
    ring = np.array([[0.0, 0.0], [0.04, 0.0], [0.04, 0.02], [0.0, 0.02]])
    spots = np.array([[0.02, 0.01], [0.02, 0.03], [-0.01, 0.01], [0.0, 0.01]])
    np.testing.assert_allclose(_inside(spots, ring), [1.0, 0.0, 0.0, 0.5], atol=0.06)


Wrong = Callable[[list[MadeHead]], object]
FIVE = [36, 45, 30, 48, 54]


def marks(heads: list[MadeHead]) -> FaceLandmarks:
    return FaceLandmarks.of_points(heads[0].landmarks)


def twice(cloud: Cloud, landmarks: FaceLandmarks) -> object:
    return build_morphs([cloud] * 2, [landmarks] * 2, ["a", "b"], ["neutral"] * 2)


@pytest.mark.parametrize(
    ("wrong", "error", "words"),
    [
        (lambda h: build_morphs([h[0].cloud], [], ["a"], ["neutral"]), UsageError, "one length"),
        (lambda h: build_morphs([h[0].cloud], [marks(h)], ["a"], ["neutral"]), UsageError, "two people"),
        (lambda h: twice(h[0].cloud, FaceLandmarks.of_points(h[0].landmarks[FIVE])), InputError, "landmarks"),
        (lambda h: twice(Cloud(h[0].cloud.points + 0.5), marks(h)), InputError, "landmarks"),
    ],
)
def test_refuses_what_cannot_be_morphed(
    heads: list[MadeHead], wrong: Wrong, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        wrong(heads)


def test_refuses_what_cannot_be_sampled(model: MorphModel, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="neutral, pouting, smiling"):
        model.scanned(0, expression="sneezing")
    with pytest.raises(InputError, match="has no scans"):
        morphs_of_folder(tmp_path)


@pytest.mark.slow
def test_real_scans(shared_data: Path) -> None:
    folder = shared_data / "clouds"
    if not folder.is_dir():
        pytest.skip(f"needs scans; there are none at {folder}")
    model = morphs_of_folder(folder)
    assert model.people.shape == (3, 45_000, 3)
    assert {"angry", "smiling", "pouting"} <= set(model.expressions)
    gallery = [cKDTree(_inner(_framed(model, person, 0))) for person in range(8)]
    probes = [_inner(_framed(model, person, 1))[:1500] for person in range(8)]
    apart = np.array([[tree.query(probe)[0].mean() for tree in gallery] for probe in probes])
    assert (apart.argmin(axis=1) == np.arange(8)).all()


def _framed(model: MorphModel, person: int, scan: int) -> np.ndarray:
    """Points of a scan, its small turn undone by its landmarks."""
    scanned = model.scanned(person, scan=scan)
    return scanned.cloud.moved(landmark_frame(FaceLandmarks.of_points(scanned.landmarks))).points
