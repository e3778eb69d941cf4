"""Recognisers of shape: made heads and the shared scans, also voxelised; the matrix product against a loop."""

from __future__ import annotations

import numpy as np
import pytest

from ficgan.errors import InputError
from ficgan.pointcloud.cloud import Cloud
from ficgan.pointcloud.geometry import GEOMETRIC_RECOGNISERS, DepthRecogniser, IcpRecogniser
from ficgan.pointcloud.heads import made_head

NAMES = sorted(GEOMETRIC_RECOGNISERS)


def rank_1(scores: np.ndarray, people: list[str]) -> float:
    """Of the clouds that have another of the same person, the share whose best match other than itself is one."""
    best = np.where(np.eye(len(people), dtype=bool), -np.inf, scores).argmax(axis=1)
    return float(np.mean([people[j] == who for j, who in zip(best, people, strict=True) if people.count(who) > 1]))


def coarse(cloud: Cloud, side: float = 0.00875) -> Cloud:
    return Cloud(np.unique((np.floor(cloud.points / side) + 0.5) * side, axis=0))


@pytest.fixture(scope="module")
def heads() -> list[Cloud]:
    """Two scans each of six made people, the second smiling."""
    return [
        made_head(seed, expression=mood, points=6000, colour=False, scan=scan).cloud
        for seed in range(6)
        for scan, mood in enumerate((0.0, 0.7))
    ]


PEOPLE = [str(seed) for seed in range(6) for _ in range(2)]


@pytest.fixture(scope="module")
def scans(shared_data) -> tuple[list[Cloud], list[str]]:
    """The shared scans, every fourth point, brought to the canonical frame by their landmarks."""
    from ficgan.pointcloud.files import read_cloud
    from ficgan.pointcloud.frame import canonical
    from ficgan.pointcloud.landmarks import landmark_file_beside, read_landmarks

    paths = sorted((shared_data / "clouds").glob("*.ply"))
    if not paths:
        pytest.skip("there are no scans in the shared data")
    clouds = []
    for path in paths:
        beside = landmark_file_beside(path)
        assert beside is not None
        clouds.append(canonical(read_cloud(path).take(np.arange(0, 45_000, 4)), read_landmarks(beside)).cloud)
    return clouds, [path.stem.split("_")[0] for path in paths]


@pytest.mark.parametrize("name", NAMES)
def test_made_heads_are_known_again(heads, name):
    recogniser = GEOMETRIC_RECOGNISERS[name]()
    vectors = np.stack([recogniser.describe(head) for head in heads])
    assert vectors.dtype == np.float32 and np.isfinite(vectors).all()
    scores = recogniser.compare(vectors, vectors)
    assert rank_1(scores, PEOPLE) >= 10 / 12
    apart = vectors - vectors.mean(axis=0)
    want = [[np.dot(a, b) / np.sqrt(np.dot(a, a) * np.dot(b, b)) for b in apart] for a in apart]
    np.testing.assert_allclose(scores, want, atol=1e-4)


def test_probes_are_rows_and_the_gallery_columns(heads):
    recogniser = DepthRecogniser()
    vectors = np.stack([recogniser.describe(head) for head in heads[:5]])
    scores = recogniser.compare(vectors, vectors[:2])
    assert scores.shape == (2, 5) and scores[0].argmax() == 0 and scores[1].argmax() == 1


def test_a_shift_and_a_small_turn_are_no_identity(heads):
    recogniser = DepthRecogniser()
    tilted = heads[0].points + np.column_stack([0.003 + 0.03 * heads[0].points[:, 1], np.zeros((len(heads[0]), 2))])
    np.testing.assert_allclose(recogniser.describe(Cloud(tilted)), recogniser.describe(heads[0]), atol=0.2)


def test_what_an_anonymiser_does_to_all_is_taken_out(heads):
    recogniser = DepthRecogniser()
    gallery = np.stack([recogniser.describe(head) for head in heads[::2]])
    probes = np.stack([recogniser.describe(coarse(head)) for head in heads[1::2]])
    scores = recogniser.compare(gallery, probes, probe_middle=probes.mean(axis=0))
    own = np.diag(scores)
    assert (own[:, None] > scores[~np.eye(6, dtype=bool)]).mean() > 0.7  # area under the curve; a guess: 0.5
    shifted = recogniser.compare(gallery, probes + 3, probe_middle=probes.mean(axis=0) + 3)
    np.testing.assert_allclose(shifted, scores, atol=1e-4)


def test_a_noisy_cloud_is_described_and_a_gallery_of_one_refused(heads, rng):
    for recogniser in (one() for one in GEOMETRIC_RECOGNISERS.values()):
        noisy = recogniser.describe(Cloud(heads[0].points + rng.uniform(-0.02, 0.02, heads[0].points.shape)))
        assert np.isfinite(noisy).all() and noisy.shape == recogniser.describe(coarse(heads[0])).shape
        with pytest.raises(InputError, match="two different faces"):
            recogniser.compare(noisy[None], noisy[None])


def test_icp_residuals_know_heads_again_and_are_symmetric(heads):
    recogniser = IcpRecogniser()
    scores = recogniser.compare(heads[:6:2], heads[1:6:2])
    assert (scores.argmax(axis=1) == np.arange(3)).all() and (scores < 0).all()
    assert recogniser.score(heads[0], heads[3]) == pytest.approx(recogniser.score(heads[3], heads[0]))
    assert recogniser.score(heads[0], heads[3]) == pytest.approx(float(scores[1, 0]), abs=1e-4)


def test_scans_are_known_again(scans):
    clouds, people = scans
    for name in NAMES:
        recogniser = GEOMETRIC_RECOGNISERS[name]()
        vectors = np.stack([recogniser.describe(cloud) for cloud in clouds])
        assert rank_1(recogniser.compare(vectors, vectors), people) >= 10 / 11, name


@pytest.mark.parametrize("recogniser", [*(one() for one in GEOMETRIC_RECOGNISERS.values()), IcpRecogniser()])
def test_a_cloud_elsewhere_is_refused(recogniser, heads):
    elsewhere = Cloud(heads[0].points + 1)
    with pytest.raises(InputError, match="canonical frame"):
        recogniser.score(elsewhere, elsewhere) if isinstance(recogniser, IcpRecogniser) else recogniser.describe(
            elsewhere
        )
