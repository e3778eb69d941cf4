"""LPIPS-like distances against the formula in loops, LPIPS against its package fed by hand, nothing downloaded."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from safetensors.numpy import load_file, save_file

from ficgan.errors import InputError
from ficgan.lab.metrics import perceptual
from ficgan.lab.metrics.perceptual import Lpips, SqueezeNet, hub_file, inception_file, lpips_backbone


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
    taps = [
        session.run(None, {"image": (x.transpose(2, 0, 1)[None] / 255).astype(np.float32)}) for x in (a, b)
    ]
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
    network = SqueezeNet(*files)
    known = network.read(a, keep=True)
    fresh = network.read(b, clear=a).distances
    np.testing.assert_allclose(fresh, expected, rtol=1e-4, atol=1e-9)
    kept = network.read(b, clear=a, known=known).distances
    np.testing.assert_allclose(kept, expected, rtol=2e-3, atol=2e-6)  # codes are kept in half precision
    assert fresh is not None and fresh[3] == 0 and known.codes is not None and known.codes.dtype == np.float16
    assert known.codes.shape == (9, 3 * 49 + 7 * 9)  # two channels weigh nothing


def test_diversity_is_the_mean_over_all_pairs(rng, tmp_path):
    files = small_network(tmp_path, rng)
    images = rng.integers(0, 256, (6, 16, 16, 3), dtype=np.uint8)
    expected = np.mean([by_loops(*files, x, y) for x, y in combinations(images, 2)])
    assert SqueezeNet(*files).read(images).diversity == pytest.approx(expected, rel=1e-4)
    assert SqueezeNet(*files).read(images[[0, 0, 0]]).diversity == pytest.approx(0, abs=1e-6)


def test_images_of_another_size_are_resized_and_features_are_means(rng, tmp_path):
    files = small_network(tmp_path, rng)
    large = np.repeat(np.repeat(rng.integers(0, 256, (3, 16, 16, 3), dtype=np.uint8), 2, 1), 2, 2)
    seen = SqueezeNet(files[0]).read(large)
    session = onnxruntime.InferenceSession(str(files[0]))
    last = session.run(["tap1"], {"image": (large[:, ::2, ::2].transpose(0, 3, 1, 2) / 255).astype(np.float32)})[0]
    np.testing.assert_allclose(seen.features, last.mean((2, 3)) / 10, rtol=1e-5)
    assert seen.distances is None and seen.diversity is None and seen.codes is None


def test_linear_layers_that_do_not_fit_are_refused(rng, tmp_path):
    network, linear = small_network(tmp_path, rng)
    wrong = {"lin0": np.ones((1, 4), np.float32), "lin1": np.ones((1, 7), np.float32)}
    save_file(wrong, tmp_path / "other.safetensors")
    with pytest.raises(InputError, match="does not fit"):
        SqueezeNet(network, tmp_path / "other.safetensors")
    (tmp_path / "broken.safetensors").write_bytes(b"no tensors")
    with pytest.raises(InputError, match="cannot be read"):
        SqueezeNet(network, tmp_path / "broken.safetensors")
    with pytest.raises(InputError, match="ONNX"):
        SqueezeNet(linear)


def test_published_squeezenet_orders_distortions(shared_models, rng):
    """Real weights: the formula in loops once, and a stronger blur is farther."""
    import cv2

    files = shared_models / "squeezenet11_features.onnx", shared_models / "lpips_squeeze_linear.safetensors"
    image = cv2.GaussianBlur(rng.integers(0, 256, (128, 128, 3), dtype=np.uint8), (0, 0), 2.0)
    image = cv2.normalize(image, None, 0, 255, cv2.NORM_MINMAX)
    blurred = np.stack([cv2.GaussianBlur(image, (0, 0), sigma) for sigma in (0.5, 1.0, 2.0, 4.0)])
    distances = SqueezeNet(*files).read(blurred, clear=np.stack([image] * 4)).distances
    assert distances is not None and (np.diff(distances) > 0).all()
    assert distances[2] == pytest.approx(by_loops(*files, image, blurred[2]), rel=1e-3)


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


@pytest.mark.slow
def test_inception_runs_with_weights_of_its_shape(tmp_path, rng):
    """Random weights of the published shape: 2048 finite features that differ between images."""
    import torch

    extractor = pytest.importorskip("torch_fidelity.feature_extractor_inceptionv3")
    original = extractor.load_state_dict_from_url
    extractor.load_state_dict_from_url = lambda *_, **__: _Stop.stop()
    try:
        with pytest.raises(_Stop):
            extractor.FeatureExtractorInceptionV3("inception-v3-compat", ["2048"])
    finally:
        extractor.load_state_dict_from_url = original
    torch.manual_seed(0)
    torch.save(_Stop.states[0], tmp_path / "weights.pth")
    images = rng.integers(0, 256, (2, 64, 64, 3), dtype=np.uint8)
    features = perceptual.Inception(tmp_path / "weights.pth").features(images)
    assert features.shape == (2, 2048) and np.isfinite(features).all() and np.abs(features[0] - features[1]).max() > 0


class _Stop(Exception):
    """Takes the freshly initialised weights out of a constructor that is about to download others."""

    states: list[dict] = []  # noqa: RUF012

    @classmethod
    def stop(cls) -> None:
        import sys

        frame = sys._getframe(2)
        cls.states.append({name: value.clone() for name, value in frame.f_locals["self"].state_dict().items()})
        raise cls
