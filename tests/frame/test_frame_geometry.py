"""Geometry of the frame: against SciPy, slow loops and brute force, and unmoved by how a photo lies."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from frame_world import SIZE, Heads, turned
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.interpolate import RBFInterpolator, RegularGridInterpolator
from scipy.ndimage import map_coordinates
from scipy.optimize import root
from scipy.spatial import cKDTree
from scipy.spatial.transform import Rotation

from ficgan.faces.mesh import FACE_OVAL
from ficgan.frame import HI, LO, FaceShape, Floats, Warp, rigid_fit
from ficgan.frame.parts import frame_mask
from ficgan.training.frame_faces import TorchWarp

NOSE = 4


@pytest.fixture(scope="module")
def mask(shape: FaceShape) -> Floats:
    return frame_mask(shape.front, SIZE)


@pytest.fixture(scope="module")
def smooth(heads: Heads, shape: FaceShape) -> NDArray[np.float64]:
    """Upright meshes [4,468,3] that are deformed but nowhere folded."""
    return shape.read(heads.people(4, np.random.default_rng(3), turn=0.05)).points


def lattice(side: int = 64) -> Floats:
    """Places [side,side,2] all over the frame, upright units, on a regular grid."""
    x, y = np.meshgrid(np.linspace(LO[0] + 2, HI[0] - 2, side), np.linspace(LO[1] + 2, HI[1] - 2, side))
    return np.stack([x, y], -1).astype(np.float32)


def at_pixels(field: NDArray[np.float32], at: NDArray[np.float32]) -> NDArray[np.float32]:
    """Bilinear samples of a field [R,R(,C)] at pixels [...,2]."""
    planes = field.reshape(*field.shape[:2], -1)
    found = [
        map_coordinates(planes[..., c], (at[..., 1], at[..., 0]), order=1, mode="nearest")
        for c in range(planes.shape[2])
    ]
    return np.stack(found, -1).reshape(*at.shape[:-1], *field.shape[2:])


@given(st.integers(0, 2**32 - 1))
def test_rigid_fit_recovers_similarities(seed: int) -> None:
    rng = np.random.default_rng(seed)
    mean = rng.normal(0, 30, (50, 3))
    rotation = Rotation.random(3, rng=rng).as_matrix()
    scale, shift = rng.uniform(0.1, 20, 3), rng.normal(0, 100, (3, 3))
    meshes = scale[:, None, None] * np.einsum("bij,nj->bni", rotation, mean) + shift[:, None]
    pose = rigid_fit(mean, meshes)
    np.testing.assert_allclose(pose.rotation, rotation, atol=1e-9)
    np.testing.assert_allclose(pose.scale, scale)
    np.testing.assert_allclose(pose.shift, shift, atol=1e-7)
    np.testing.assert_allclose(pose.unposed(meshes), np.broadcast_to(mean, meshes.shape), atol=1e-7)
    np.testing.assert_allclose(pose.posed(pose.unposed(meshes)), meshes, atol=1e-7)


@given(st.floats(-1.3, 1.3), st.floats(-1.3, 1.3), st.floats(-3.1, 3.1))
def test_angles_of_known_turns(yaw: float, pitch: float, roll: float) -> None:
    mean = np.random.default_rng(0).normal(0, 30, (20, 3))
    pose = rigid_fit(mean, turned(mean, yaw, pitch, roll)[None])
    np.testing.assert_allclose([pose.yaw[0], pose.pitch[0], pose.roll[0]], [yaw, pitch, roll], atol=1e-8)


@given(st.floats(-3.1, 3.1), st.floats(0.1, 20), st.floats(-900, 900), st.floats(-900, 900), st.integers(0, 4))
def test_how_the_photo_lies_changes_nothing(
    shape: FaceShape, heads: Heads, roll: float, scale: float, x: float, y: float, row: int
) -> None:
    mesh = heads.people(5, np.random.default_rng(11), turn=0.35)
    mesh[3], mesh[4] = turned(heads.own, 0.5, 0.3), turned(heads.own, -0.6, -0.3)
    here = shape.read(mesh[row : row + 1])
    there = shape.read(turned(mesh[row : row + 1], roll=roll) * scale + (x, y, 0))
    np.testing.assert_allclose(there.numbers, here.numbers, atol=1e-4)
    np.testing.assert_allclose(there.identity, here.identity, atol=1e-4)
    np.testing.assert_allclose(there.points, here.points, atol=1e-6)
    np.testing.assert_allclose(shape.turn(there.pose), shape.turn(here.pose), atol=1e-6)
    difference = there.pose.roll - here.pose.roll - roll
    assert abs(np.exp(1j * difference) - 1)[0] < 1e-6 and there.pose.scale / here.pose.scale == pytest.approx(scale)


def test_publishing_what_was_read_gives_the_source(shape: FaceShape, heads: Heads, rng: np.random.Generator) -> None:
    read = shape.read(turned(heads.people(6, rng), roll=0.7) * 2.5 + (300, 20, 5))
    for rim in (0.0, 0.4, 1.0):
        np.testing.assert_allclose(shape.publish(read, read.numbers, read.identity, rim=rim), read.points, atol=0.05)
    nobody = np.zeros_like(read.identity)
    bare, kept = (shape.publish(read, read.numbers, nobody, rim=rim) for rim in (0.0, 1.0))
    assert np.abs(bare - read.points).max() > 0.5
    np.testing.assert_allclose(kept[:, FACE_OVAL], read.points[:, FACE_OVAL], atol=1e-6)
    np.testing.assert_allclose(kept[:, NOSE], bare[:, NOSE], atol=1e-3)
    assert shape.rim[FACE_OVAL].min() == 1 and shape.rim[NOSE] < 1e-3 and shape.rim.min() >= 0


def spline(shape: FaceShape, warp: Warp, points: NDArray[np.float64]) -> RBFInterpolator:
    """The displacement at places of the frame. SciPy's kernel is r² log r, half of ours, and so is its smoothing."""
    side = np.linspace(-24, 151, 11)
    anchors = [(x, y) for x in side for y in side if abs(x - 63.5) > 87 or abs(y - 63.5) > 87]
    assert len(anchors) == 40
    centres = np.concatenate([np.asarray(shape.front, np.float64)[warp.rows], anchors])
    moved = np.concatenate([(points - shape.front)[warp.rows], np.zeros((len(anchors), 2))])
    return RBFInterpolator(centres, moved, kernel="thin_plate_spline", smoothing=5.0, degree=1)


def test_matrix_is_the_spline(shape: FaceShape, warp: Warp, rng: np.random.Generator) -> None:
    assert set(FACE_OVAL) <= set(warp.rows) and np.array_equal(warp.rows, np.unique(warp.rows))
    points = shape.front + rng.normal(0, 3, (468, 2))
    frame = warp.grid.reshape(-1, 2)[::31]
    there = warp.to_upright(points[None])[0].reshape(-1, 2)[::31]
    np.testing.assert_allclose(there - frame, spline(shape, warp, points)(frame), atol=2e-3)


def test_to_upright_in_numpy_and_torch(warp: Warp, smooth: NDArray[np.float64]) -> None:
    fast = warp.to_upright(smooth)
    network = TorchWarp(warp)
    given_ = torch.as_tensor(smooth, dtype=torch.float32)
    np.testing.assert_allclose(network.to_upright(given_).numpy(), fast, atol=1e-4)
    with torch.autocast("cpu", torch.bfloat16):  # bf16 would move pixels
        np.testing.assert_allclose(network.to_upright(given_).numpy(), fast, atol=1e-4)


def test_to_frame_inverts_to_upright(
    shape: FaceShape, warp: Warp, mask: Floats, smooth: NDArray[np.float64], rng: np.random.Generator
) -> None:
    """The oracle is the spline itself between the pixels of the frame."""
    for points in smooth[:2]:
        upright = warp.to_upright(points[None])[0]
        assert warp.folded(upright, mask) == 0
        at, found = warp.to_frame(upright, lattice())
        face = at_pixels(mask, at) > 0.05
        assert face.mean() > 0.4 and (found[face] == 1).all()
        some = rng.choice(face.sum(), 400, replace=False)
        frame = LO + at[face][some] * warp.step
        missed = frame + spline(shape, warp, points[:, :2])(frame) - lattice()[face][some]
        assert np.linalg.norm(missed / warp.step, axis=-1).max() < 0.3


def test_to_frame_in_numpy_torch_and_a_loop(warp: Warp, mask: Floats, smooth: NDArray[np.float64]) -> None:
    upright, places = warp.to_upright(smooth), lattice(40)
    fast = np.stack([warp.to_frame(one, places)[0] for one in upright])
    wanted = torch.as_tensor(places).expand(len(upright), -1, -1, -1)
    network = TorchWarp(warp).to_frame(torch.as_tensor(upright), wanted).numpy()
    face = np.stack([at_pixels(mask, one) for one in fast]) > 0.05
    assert np.abs(network - fast)[face].max() < 0.05
    lines = np.arange(SIZE)
    for index in np.argwhere(face)[:: face.sum() // 25]:
        field = RegularGridInterpolator((lines, lines), upright[index[0]].astype(np.float64))
        goal = places[index[1], index[2]]
        slow = root(lambda p, field=field, goal=goal: field(p[::-1])[0] - goal, fast[tuple(index)], tol=1e-10)
        assert slow.success
        np.testing.assert_allclose(network[tuple(index)], slow.x, atol=2e-3)
        np.testing.assert_allclose(fast[tuple(index)], slow.x, atol=0.03)  # OpenCV reckons in 32nds of a pixel


@pytest.mark.parametrize(("yaw", "roll"), [(0.6, 1.5), (-0.6, -0.8)])
def test_of_what_covers_itself_the_nearer_is_seen(
    shape: FaceShape, heads: Heads, warp: Warp, mask: Floats, yaw: float, roll: float
) -> None:
    """Brute force: of all places of the face in the frame that fall upon a place of the photo, the nearest one."""
    read = shape.read(turned(heads.own, yaw, 0.1, roll)[None])
    upright, depth = warp.to_upright(read.points)[0], warp.depth(read.points[0])
    (a, b, tx), (c, d, ty) = read.upright[0]
    x, y = np.meshgrid(np.linspace(-6, 134, 72), np.linspace(-6, 134, 72))  # the photo's pixels: turned, if upright
    places = np.stack([a * x + b * y + tx, c * x + d * y + ty], -1).astype(np.float32)
    fine = np.linspace(0, SIZE - 1, 5 * (SIZE - 1) + 1, dtype=np.float32)
    pixels = np.stack(np.meshgrid(fine, fine), -1)
    pixels = pixels[at_pixels(mask, pixels) > 0.3]
    where, how_far = at_pixels(upright, pixels), at_pixels(depth, pixels)
    hits = cKDTree(where).query_ball_point(places.reshape(-1, 2), 0.35)
    face = np.array([bool(hit) for hit in hits]).reshape(x.shape)
    covered = np.array([bool(hit) and np.ptp(pixels[hit], axis=0).max() > 6 for hit in hits]).reshape(x.shape)
    assert face.sum() > 1500 and covered.sum() > 100

    def wrong(mesh: NDArray[np.float64] | None) -> NDArray[np.bool_]:
        at, found = warp.to_frame(upright, places, mesh)
        assert np.isfinite(at).all() and found.min() >= 0 and found.max() <= 1
        seen = np.array([pixels[hit[np.argmin(how_far[hit])]] if hit else (0, 0) for hit in hits])
        off = np.linalg.norm(at - seen.reshape(at.shape), axis=-1) > 3
        return np.array((off | (found < 0.5)) & face)

    hidden = wrong(read.points[0])
    assert hidden.sum() < 0.01 * face.sum() and hidden[covered].mean() < 0.03
    assert wrong(None)[covered].mean() > 2 * hidden[covered].mean()


@pytest.mark.slow
def test_gradients_are_those_of_the_inverse(shape: FaceShape, smooth: NDArray[np.float64]) -> None:
    """Against differences of the converged inverse: 25 steps, not one."""
    network = TorchWarp(Warp(shape.front, 9))
    for name in ("matrix", "grid", "front", "low", "step"):
        setattr(network, name, getattr(network, name).double())
    upright = network.to_upright(torch.tensor(smooth[:1, :, :2])).requires_grad_()
    wanted = torch.tensor(np.random.default_rng(0).uniform(20, 105, (1, 3, 3, 2)), requires_grad=True)
    assert torch.autograd.gradcheck(lambda u, w: network.to_frame(u, w, 25), (upright, wanted), atol=1e-5)


def test_a_mesh_that_is_no_number_gives_places_that_are(warp: Warp, smooth: NDArray[np.float64]) -> None:
    """Else `grid_sample` reads and writes at such addresses, and the process dies."""
    net = TorchWarp(warp)
    points = torch.tensor(smooth[:3], dtype=torch.float32)
    points[1] = torch.nan
    points[2, 0] = torch.inf
    upright = net.to_upright(points.requires_grad_())
    places = net.to_frame(upright, torch.from_numpy(lattice(16)).expand(3, -1, -1, -1))
    assert places.isfinite().all()
    net.sample(torch.ones(3, 1, SIZE, SIZE), places).sum().backward()
