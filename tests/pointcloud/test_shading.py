"""Light on clouds without colour: closed forms on a sphere, cavities, and a detector on real scans."""

import numpy as np
import pytest

from ficgan.errors import InputError
from ficgan.pointcloud import Cloud
from ficgan.pointcloud.projection import AMBIENT, LAMP, project, shaded


def dome(draw, count=6000):
    """The front half of a sphere of 10 cm, and its exact normals."""
    way = draw.normal(size=(count, 3))
    way /= np.linalg.norm(way, axis=1, keepdims=True)
    way[:, 0] = np.abs(way[:, 0])
    return Cloud(way * 0.1), way


def relief(height):
    """A plate of 12 cm, 1.6 mm between points, with a Gaussian bump of that height in metres, or a pit."""
    y, z = np.meshgrid(*[np.arange(-0.06, 0.06, 0.0016)] * 2)
    x = height * np.exp(-(y**2 + z**2) / (2 * 0.006**2))
    return Cloud(np.column_stack([x.ravel(), y.ravel(), z.ravel()]))


def test_a_sphere_is_lit_by_the_cosine(rng):
    cloud, normals = dome(rng)
    tone = (200, 100, 50)
    assert np.linalg.norm(LAMP) == pytest.approx(1)
    wanted = (AMBIENT + (1 - AMBIENT) * np.clip(normals @ LAMP, 0, 1))[:, None] * tone
    got = shaded(cloud, tone, cavity=0.0)
    rim = cloud.points[:, 0] < 0.015  # there, the other half is missing
    assert np.abs(got.colors.astype(float) - wanted)[~rim].max() < 8
    assert np.abs(got.colors.astype(float) - wanted)[~rim].mean() < 1
    exact = shaded(Cloud(cloud.points, normals=normals), tone, cavity=0.0)
    assert np.abs(exact.colors - wanted).max() <= 0.5 + 1e-9


def test_cavities_are_darker_than_bumps():
    middle = np.linalg.norm(relief(0).points[:, 1:], axis=1) < 0.002
    flat, pit, bump = (shaded(relief(h)).colors[middle].mean() for h in (0, -0.006, 0.006))
    assert pit < 0.9 * flat and bump >= flat
    deep, even = (shaded(relief(h), cavity=0.0).colors[middle].mean() for h in (-0.006, 0))
    assert deep > 0.97 * even


def test_colours_of_ones_own_are_darkened(rng):
    cloud, normals = dome(rng, 400)
    colors = rng.integers(0, 256, (400, 3), np.uint8)
    got = shaded(Cloud(cloud.points, colors, normals), tone=None)
    assert (got.colors <= colors).all()
    light = shaded(Cloud(cloud.points, None, normals), (255, 255, 255)).colors / 255
    assert np.abs(got.colors - light * colors).max() <= 1.01
    with pytest.raises(InputError, match="no colours"):
        shaded(cloud, tone=None)


def test_a_cloud_without_a_surface_is_refused():
    with pytest.raises(InputError, match="normals"):
        project(Cloud([[0.0, 0, 0], [0.0, 0.1, 0]]))


def scan(path):
    """A scan in the canonical frame by its 68 landmarks, 30 the nose tip."""
    text = path.read_bytes()
    start = text.index(b"end_header\n") + len(b"end_header\n")
    points = np.frombuffer(text[start:], "<f4").reshape(-1, 3).astype(np.float64)
    marks = np.loadtxt(path.with_name(path.stem + "_landmarks_mm.txt")) / 1000
    z = marks[36:42].mean(axis=0) - marks[42:48].mean(axis=0)
    z /= np.linalg.norm(z)
    y = marks[36:48].mean(axis=0) - marks[48:60].mean(axis=0)
    y -= z * (y @ z)
    y /= np.linalg.norm(y)
    axes = np.stack([np.cross(y, z), y, z])
    return Cloud((points - marks[30]) @ axes.T), (marks - marks[30]) @ axes.T


@pytest.mark.parametrize("name", ["f0001_neutral", "f0002_surprised", "m0002_smiling"])
def test_a_detector_finds_the_shaded_scans(shared_data, shared_models, monkeypatch, name):
    path = shared_data / "clouds" / f"{name}.ply"
    if not path.is_file():
        pytest.skip(f"needs {path}")
    monkeypatch.setenv("FICGAN_MODELS", str(shared_models))
    from ficgan.faces import detector_missing, get_detector

    if detector_missing("yunet"):
        pytest.skip(str(detector_missing("yunet")))
    cloud, marks = scan(path)
    faces = get_detector("yunet").detect(project(cloud))
    assert len(faces) == 1 and faces[0].score >= 0.9
    eyes = np.array([marks[36:42].mean(axis=0), marks[42:48].mean(axis=0), marks[30]])
    wanted = np.array([193.7, 256.5]) - eyes[:, [2, 1]] * [369.6 / 0.36, 496 / 0.5]
    assert np.abs(faces[0].landmarks[:3] - wanted).max() < 12


def test_strays_far_away_are_refused_and_not_allocated_for(rng):
    points = np.vstack([rng.uniform(-0.1, 0.1, (100, 3)), [[0, 1e6, 0]]])
    with pytest.raises(InputError, match="1e\\+06 m wide"):
        shaded(Cloud(points))
