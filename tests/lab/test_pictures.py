"""SSIM against scikit-image, LPIPS and boxes against loops, Fréchet distance against SciPy; poses of known heads."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import scipy.linalg
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from safetensors.numpy import load_file, save_file
from skimage.metrics import peak_signal_noise_ratio
from skimage.metrics import structural_similarity as skimage_ssim

from ficgan.faces import Alignment, Face
from ficgan.lab.metrics import pictures as geometry
from ficgan.lab.metrics import pictures as perceptual
from ficgan.lab.metrics.pictures import (
    Lpips,
    SqueezeNet,
    box_iou,
    detect_faces,
    frechet_distance,
    head_pose,
    hub_file,
    inception_file,
    landmark_distance,
    lpips_backbone,
    psnr,
    sharpness,
    ssim,
)

# -- pixels -----------------------------------------------------------------------------------------------------------


def pictures(rng: np.random.Generator, count: int, side: int) -> tuple[np.ndarray, np.ndarray]:
    """Smooth pictures and the same with noise, a shift of brightness and less contrast."""
    grid = np.linspace(0, 3, side)
    waves = rng.uniform(0.5, 2, (count, 3, 2))
    a = np.stack([[np.outer(np.sin(grid * w[0]), np.cos(grid * w[1])) for w in three] for three in waves]).transpose(
        0, 2, 3, 1
    )
    a = a * 90 + 128 + rng.normal(0, 8, a.shape)
    b = (a - 128) * rng.uniform(0.4, 1.2, (count, 1, 1, 1)) + 120 + rng.normal(0, 15, a.shape)
    return a.clip(0, 255).astype(np.uint8), b.clip(0, 255).astype(np.uint8)


@pytest.mark.parametrize("side", [11, 64, 129])
def test_ssim_is_that_of_scikit_image(rng, side):
    a, b = pictures(rng, 3, side)
    options = {"channel_axis": 2, "gaussian_weights": True, "sigma": 1.5, "use_sample_covariance": False}
    expected = [skimage_ssim(x, y, data_range=255, **options) for x, y in zip(a, b, strict=True)]
    np.testing.assert_allclose(ssim(a, b), expected, atol=2e-5)
    assert np.isnan(ssim(a[:, :9, :9], b[:, :9, :9])).all()


def test_psnr_is_that_of_scikit_image_and_infinite_for_equals(rng):
    a, b = pictures(rng, 3, 32)
    b[2] = a[2]
    expected = [peak_signal_noise_ratio(x, y, data_range=255) for x, y in zip(a[:2], b[:2], strict=True)]
    found = psnr(a, b)
    np.testing.assert_allclose(found[:2], expected, rtol=1e-6)
    assert math.isinf(found[2]) and found[2] > 0


def test_sharpness_is_the_variance_of_the_laplacian_in_the_face(rng):
    image = np.repeat(rng.integers(0, 256, (1, 64, 64, 1), dtype=np.uint8), 3, axis=3)
    marks = np.array([[[24, 26], [40, 26], [32, 34], [26, 42], [38, 42]]], np.float32)
    # middle (32, 34), eye distance 16: columns 16…47, rows 18…49
    grey = np.pad(image[0, 18:50, 16:48, 0].astype(np.float64), 1, mode="reflect")
    laplacian = grey[:-2, 1:-1] + grey[2:, 1:-1] + grey[1:-1, :-2] + grey[1:-1, 2:] - 4 * grey[1:-1, 1:-1]
    assert sharpness(image, marks)[0] == pytest.approx(laplacian.var(), rel=1e-5)
    image[:, :10] = 0  # outside the face
    assert sharpness(image, marks)[0] == pytest.approx(laplacian.var(), rel=1e-5)


# -- networks ----------------------------------------------------------------------------------------------------------


def small_network(folder: Path, rng: np.random.Generator) -> tuple[Path, Path]:
    """A network of two taps, strided convolutions with ReLU, and linear layers of which some weights are zero."""
    nodes, weights, channels, source = [], [], 3, "image"
    for tap, wide in enumerate((5, 7)):
        kernel = rng.normal(size=(wide, channels, 3, 3)).astype(np.float32)
        weights.append(numpy_helper.from_array(kernel, f"w{tap}"))
        nodes.append(helper.make_node("Conv", [source, f"w{tap}"], [f"c{tap}"], strides=[2, 2]))
        nodes.append(helper.make_node("Relu", [f"c{tap}"], [f"tap{tap}"]))
        channels, source = wide, f"tap{tap}"
    image = helper.make_tensor_value_info("image", TensorProto.FLOAT, ["batch", 3, 16, 16])
    shapes = (["batch", 5, 7, 7], ["batch", 7, 3, 3])
    taps = [helper.make_tensor_value_info(f"tap{i}", TensorProto.FLOAT, shape) for i, shape in enumerate(shapes)]
    graph = helper.make_graph(nodes, "small", [image], taps, weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    onnx.save(model, folder / "small.onnx")
    linear = {f"lin{i}.model.1.weight": rng.random((1, c, 1, 1)).astype(np.float32) for i, c in enumerate((5, 7))}
    linear["lin0.model.1.weight"][0, :2] = 0
    save_file(linear, folder / "linear.safetensors")
    return folder / "small.onnx", folder / "linear.safetensors"


def by_loops(network: Path, linear: Path, a: np.ndarray, b: np.ndarray) -> float:
    """Zhang et al. 2018, eq. 1, position by position in float64; a, b [S,S,3] at the network's size."""
    session = onnxruntime.InferenceSession(str(network))
    taps = [session.run(None, {"image": (x.transpose(2, 0, 1)[None] / 255).astype(np.float32)}) for x in (a, b)]
    weights = [value.ravel().astype(np.float64) for _, value in sorted(load_file(linear).items())]
    total = 0.0
    for p, q, w in zip(*taps, weights, strict=True):
        height, width = p.shape[2:]
        for y in range(height):
            for x in range(width):
                u, v = p[0, :, y, x].astype(np.float64), q[0, :, y, x].astype(np.float64)
                u, v = u / (np.sqrt((u**2).sum()) + 1e-10), v / (np.sqrt((v**2).sum()) + 1e-10)
                total += (w * (u - v) ** 2).sum() / (height * width)
    return float(total)


def test_distances_equal_the_formula_in_loops(rng, tmp_path):
    files = small_network(tmp_path, rng)
    a, b = rng.integers(0, 256, (2, 9, 16, 16, 3), dtype=np.uint8)
    b[3] = a[3]
    expected = [by_loops(*files, x, y) for x, y in zip(a, b, strict=True)]
    features, found = SqueezeNet(*files).read(b, clear=a)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-9)
    assert features.shape == (9, 7) and found is not None and found[3] == 0


def test_weights_are_only_taken_from_the_disk(monkeypatch, tmp_path):
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    assert lpips_backbone() is None and inception_file() is None and hub_file("any.pth") is None
    folder = tmp_path / "hub" / "checkpoints"
    folder.mkdir(parents=True)
    (folder / "alexnet-owt-4df8aa71.pth").touch()  # an older release, which torchvision would not take
    assert lpips_backbone() is None
    (folder / "vgg16-397923af.pth").touch()
    assert lpips_backbone() == "vgg"
    (folder / "alexnet-owt-7be5be79.pth").touch()
    assert lpips_backbone() == "alex"
    (folder / "weights-inception-2015-12-05-6726825d.pth").touch()
    assert inception_file() == folder / "weights-inception-2015-12-05-6726825d.pth"


@pytest.mark.filterwarnings("ignore::UserWarning:torchvision")
def test_lpips_is_that_of_its_package(monkeypatch, tmp_path, rng):
    """With random weights in place of the published ones; equal images are 0 apart."""
    import torch
    import torchvision

    lpips = pytest.importorskip("lpips")
    torch.manual_seed(0)
    backbone = torchvision.models.squeezenet1_1()
    folder = tmp_path / "hub" / "checkpoints"
    folder.mkdir(parents=True)
    torch.save(backbone.state_dict(), folder / "squeezenet1_1-b8a52dc0.pth")
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    assert lpips_backbone() == "squeeze"
    a, b = rng.integers(0, 256, (2, 3, 64, 64, 3), dtype=np.uint8)
    b[1] = a[1]
    monkeypatch.setattr(perceptual, "_BATCH", 2)
    found = Lpips("squeeze").distance(a, b)
    net = lpips.LPIPS(net="squeeze", pnet_rand=True, verbose=False).eval()
    own = {f"features.{name}": value for name, value in backbone.features.state_dict().items()}
    slices = net.net.state_dict()
    assert net.net.load_state_dict({name: own["features." + name.split(".", 1)[1]] for name in slices})
    with torch.no_grad():
        x, y = (torch.from_numpy(z.transpose(0, 3, 1, 2) / 127.5 - 1).float() for z in (a, b))
        expected = net(x, y).flatten().numpy()
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-7)
    assert found[1] == 0 and found[0] > 0


# -- sets of images ----------------------------------------------------------------------------------------------------


def by_sqrtm(a: np.ndarray, b: np.ndarray) -> float:
    """The formula as it is printed, with a matrix square root."""
    ca, cb = np.cov(a, rowvar=False), np.cov(b, rowvar=False)
    root = scipy.linalg.sqrtm(ca @ cb)
    return float(((a.mean(0) - b.mean(0)) ** 2).sum() + np.trace(ca + cb - 2 * root.real))


@pytest.mark.parametrize(("n", "m", "d"), [(60, 80, 12), (300, 40, 25), (40, 300, 25)])
def test_frechet_distance_equals_the_printed_formula(rng, n, m, d):
    a = rng.normal(size=(n, d)) @ rng.normal(size=(d, d))
    b = rng.normal(size=(m, d)) @ rng.normal(size=(d, d)) + 0.5
    assert frechet_distance(a, b) == pytest.approx(by_sqrtm(a, b), rel=1e-8)


# -- poses, boxes and landmarks ----------------------------------------------------------------------------------------


def turned(yaw: float, pitch: float, roll: float) -> np.ndarray:
    """The generic head turned by roll, pitch, yaw (degrees) about fixed axes, one after another: [5,3]."""
    a, b, c = np.radians([yaw, pitch, roll])
    clockwise = np.array([[np.cos(c), -np.sin(c), 0], [np.sin(c), np.cos(c), 0], [0, 0, 1]])  # y is down
    up = np.array([[1, 0, 0], [0, np.cos(b), -np.sin(b)], [0, np.sin(b), np.cos(b)]])  # the nose, +z, towards −y
    right = np.array([[np.cos(a), 0, np.sin(a)], [0, 1, 0], [-np.sin(a), 0, np.cos(a)]])  # the nose towards +x
    return geometry._HEAD @ clockwise.T @ up.T @ right.T


@settings(derandomize=True)
@given(yaw=st.floats(-70, 70), pitch=st.floats(-60, 60), roll=st.floats(-170, 170), scale=st.floats(1, 200))
def test_known_poses_are_recovered(yaw, pitch, roll, scale):
    marks = turned(yaw, pitch, roll)[:, :2] * scale + [37, -12]
    np.testing.assert_allclose(head_pose(marks[None])[0], [yaw, pitch, roll], atol=1e-6)


def test_iou_against_counted_pixels(rng):
    low = rng.integers(0, 20, (2, 50, 2))
    boxes = np.concatenate([low, low + rng.integers(0, 15, (2, 50, 2))], axis=2).astype(np.float32)
    found = box_iou(*boxes)
    for a, b, value in zip(*boxes.astype(int), found, strict=True):
        grids = np.zeros((2, 40, 40), bool)
        for grid, (x0, y0, x1, y1) in zip(grids, (a, b), strict=True):
            grid[y0:y1, x0:x1] = True
        union = (grids[0] | grids[1]).sum()
        assert value == pytest.approx((grids[0] & grids[1]).sum() / union if union else 0)
    boxes[1, 4] = np.nan
    assert np.isnan(box_iou(*boxes)[4])


class TwoFaces:
    """Finds a bystander, with the better score, and the face itself, or nothing in black images."""

    name = "two"

    def detect(self, image: np.ndarray) -> list[Face]:
        if not image.any():
            return []
        middle = Alignment().points(image.shape[0]).astype(np.float32)
        box = np.array([1, 2, 30, 40], np.float32)
        return [Face(box + 5, middle - 20, 0.9), Face(box, middle + 1, 0.8)]


def test_the_face_of_the_crop_is_taken_and_misses_are_nan():
    images = np.stack([np.zeros((64, 64, 3), np.uint8), np.full((64, 64, 3), 9, np.uint8)])
    marks = np.tile(Alignment().points(64), (2, 1, 1))
    found = detect_faces(TwoFaces(), images, marks)
    assert found.found.tolist() == [False, True]
    assert np.isnan(found.boxes[0]).all() and np.isnan(found.landmarks[0]).all()
    np.testing.assert_array_equal(found.boxes[1], [1, 2, 30, 40])
    np.testing.assert_allclose(landmark_distance(found.landmarks, marks)[1], np.sqrt(2), rtol=1e-4)
