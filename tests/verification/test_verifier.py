"""V against onnxruntime, warpAffine and loops: the same function, differentiable, frozen, well aligned."""

from __future__ import annotations

import warnings
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from ficgan.errors import FicganError, UsageError
from ficgan.faces.crops import ARCFACE_POINTS, Alignment, similarity, transform_points
from ficgan.verification import AlignedInput, Verifier, load_onnx
from ficgan.verification.sphereface import SPHEREFACE_POINTS, SphereFace20, load_verifier, save_sphereface


class Recogniser(nn.Module):
    """A little of everything the rewriting touches: batch norm, scales, sums, clipping, PReLU, a residual."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Conv2d(3, 4, 3, stride=2, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.two = nn.Conv2d(4, 8, 3, stride=2, padding=1, bias=False)
        self.slope = nn.PReLU(8)
        self.three = nn.Conv2d(8, 8, 3, padding=1, groups=8)
        self.four = nn.Conv2d(8, 6, 3, stride=2, padding=1)
        self.last = nn.Linear(6 * 14 * 14, 5)
        self.scale, self.offset = nn.Parameter(torch.rand(8, 1, 1) + 0.5), nn.Parameter(torch.full((8, 1, 1), 0.25))
        for buffer in (self.norm.running_mean, self.norm.running_var):
            nn.init.uniform_(buffer, 0.5, 1.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = (x - 127.5) / 128
        x = torch.clamp(self.norm(self.one(x)), 0, 6)
        x = self.slope(self.two(x) * self.scale + self.offset)
        x = x + torch.relu(self.three(x))
        return self.last(self.four(x).flatten(1))


@pytest.fixture(scope="module")
def recogniser(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    return export(Recogniser(), tmp_path_factory.mktemp("onnx") / "small.onnx")


def export(module: nn.Module, path: Path, side: int = 112) -> Path:
    """In "preserve" mode, so that batch norm reaches the file as such."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            module.eval(),
            (torch.rand(2, 3, side, side) * 255,),
            str(path),
            dynamo=False,
            do_constant_folding=True,
            training=torch.onnx.TrainingMode.PRESERVE,
            input_names=["image"],
            dynamic_axes={"image": {0: "batch"}},
            opset_version=16,
        )
    return path


def runtime(path: Path, x: torch.Tensor) -> np.ndarray:
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return session.run(None, {session.get_inputs()[0].name: x.numpy()})[0]


def assert_equals_runtime(path: Path) -> None:
    network, size, _, _ = load_onnx(path)
    x = torch.rand(3, 3, *size) * 255
    expected = runtime(path, x)
    with torch.no_grad():
        got = network.to(memory_format=torch.channels_last)(x)[0].numpy()
    assert np.abs(got - expected).max() < 1e-4 * np.abs(expected).max()


def test_rewritten_onnx_equals_onnxruntime(recogniser: Path) -> None:
    assert_equals_runtime(recogniser)


@pytest.mark.parametrize("name", ["recognizer_a.onnx", pytest.param("recognizer_b.onnx", marks=pytest.mark.slow)])
def test_shared_recognisers_equal_onnxruntime(shared_models: Path, name: str) -> None:
    assert_equals_runtime(shared_models / name)


def test_rewriting_folds_and_taps(recogniser: Path) -> None:
    import onnx

    kinds = {node.op_type for node in onnx.load(str(recogniser)).graph.node}
    assert {"BatchNormalization", "Mul", "Clip", "PRelu"} <= kinds  # or there is nothing to test
    network = load_onnx(recogniser)[0]
    assert not any(isinstance(module, nn.BatchNorm2d) for module in network.modules())
    left = sum(hasattr(module, "math_op_function") for module in network.modules())
    assert left == 3  # minus and divided by at the input, the residual sum; the scale and the offset are folded
    maps = network(torch.rand(2, 3, 112, 112))[1]
    assert [tuple(m.shape[1:]) for m in maps] == [(4, 56, 56), (8, 28, 28), (6, 14, 14)]


def test_gradient_equals_that_of_the_module_itself(recogniser: Path) -> None:
    torch.manual_seed(0)
    plain = Recogniser().eval()
    network = load_onnx(recogniser)[0]
    x = (torch.rand(2, 3, 112, 112) * 255).requires_grad_()
    (expected,) = torch.autograd.grad(plain(x).square().sum(), x)
    (got,) = torch.autograd.grad(network(x)[0].square().sum(), x)
    torch.testing.assert_close(got, expected, rtol=1e-3, atol=1e-4 * float(expected.abs().max()))


def test_taps_carry_gradients(recogniser: Path) -> None:
    v = load_verifier(f"onnx:{recogniser}", alignment=Alignment(), resolution=64)
    x = torch.rand(2, 3, 64, 64).requires_grad_()
    for tap in v.read((x, None))[1]:
        (gradient,) = torch.autograd.grad(tap.square().sum(), x, retain_graph=True)
        assert gradient.abs().sum() > 0


@pytest.fixture(scope="module")
def sphereface(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("v") / "v.safetensors"
    save_sphereface(path, SphereFace20((4, 6, 8, 8), dimensions=16), {"steps": 3})
    return path


@pytest.fixture(params=["onnx", "sphereface20"])
def verifier(request: pytest.FixtureRequest, recogniser: Path, sphereface: Path) -> Verifier:
    path = recogniser if request.param == "onnx" else sphereface
    return load_verifier(f"{request.param}:{path}", alignment=Alignment(), resolution=64)


def test_gradient_reaches_the_image_and_no_weight(verifier: Verifier) -> None:
    verifier.train()
    assert not any(module.training for module in verifier.modules())
    x = torch.rand(2, 3, 64, 64).requires_grad_()
    verifier(x, generator=torch.Generator().manual_seed(0)).square().sum().backward()
    assert x.grad is not None and torch.isfinite(x.grad).all() and x.grad.abs().sum() > 0
    assert all(p.grad is None and not p.requires_grad for p in verifier.parameters())


def test_sphereface_is_twenty_layers_of_the_paper() -> None:
    network = SphereFace20()
    assert sum(isinstance(m, nn.Conv2d) for m in network.modules()) == 20  # the paper counts the convolutions
    assert network.embed.weight.shape == (512, 512 * 7 * 6)
    embedding, maps = network(torch.zeros(1, 3, 112, 96))
    assert embedding.shape == (1, 512)
    assert [tuple(m.shape[1:]) for m in maps] == [(64, 56, 48), (128, 28, 24), (256, 14, 12)]


def test_specs_and_files_that_cannot_be_used(tmp_path: Path, sphereface: Path) -> None:
    from safetensors.torch import save_file

    for name in ("text.onnx", "text.safetensors"):
        (tmp_path / name).write_text("hello")
    (tmp_path / "cut.safetensors").write_bytes(sphereface.read_bytes()[:5000])
    save_file({"a": torch.zeros(1)}, tmp_path / "foreign.safetensors")
    export(nn.Sequential(nn.Conv2d(3, 2, 3), nn.ReLU()), tmp_path / "map.onnx", side=32)
    files = ["onnx:none.onnx", "onnx:text.onnx", "onnx:map.onnx"]
    files += [f"sphereface20:{name}.safetensors" for name in ("text", "cut", "foreign")]
    specs = [spec.replace(":", f":{tmp_path}/") for spec in files]
    for spec, error in [*((spec, UsageError) for spec in ("resnet:x", "onnx", "")), *((s, FicganError) for s in specs)]:
        with pytest.raises(error):
            load_verifier(spec, alignment=Alignment(), resolution=64)


TARGETS = [(ARCFACE_POINTS, (112, 112)), (SPHEREFACE_POINTS, (112, 96))]
ALIGNMENTS = [Alignment(), Alignment("ffhq"), Alignment(eye_distance=0.5, eye_y=0.4)]


def smooth(rng: np.random.Generator, side: int) -> np.ndarray:
    """Random image whose neighbours are alike: OpenCV rounds sampling positions to 1/32 pixel."""
    return cv2.resize(rng.integers(0, 256, (8, 8, 3), np.uint8), (side, side), interpolation=cv2.INTER_CUBIC)


def to_tensor(image: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(image).permute(2, 0, 1)[None].float() / 127.5 - 1


@pytest.mark.parametrize(("points", "size"), TARGETS)
@pytest.mark.parametrize("alignment", ALIGNMENTS)
@pytest.mark.parametrize("side", [100, 128])
def test_equals_warp_affine_with_zero_padding(rng, alignment, points, size, side) -> None:  # type: ignore[no-untyped-def]
    image = smooth(rng, side)
    aligned = AlignedInput(alignment, side, points, size)
    got = aligned(to_tensor(image))[0].permute(1, 2, 0).numpy()
    reduced, centre = image.astype(np.float32), np.eye(3)
    if aligned.pool > 1:
        shape = (side // aligned.pool, aligned.pool) * 2
        reduced = reduced.reshape(*shape, 3).mean((1, 3))
        centre[:2, 2] = (aligned.pool - 1) / 2  # pixel p of the reduced image has its centre there in the full one
        centre[0, 0] = centre[1, 1] = aligned.pool
    matrix = similarity(alignment.points(side), points) @ centre
    expected = cv2.warpAffine(reduced, matrix, (size[1], size[0]), flags=cv2.INTER_LINEAR, borderValue=0)
    error = np.abs(got - expected)
    # Where the crop ends, OpenCV's rounded positions decide between image and black.
    assert np.quantile(error, 0.98) < 4 and error.mean() < 1


@pytest.mark.parametrize("alignment", ALIGNMENTS)
@pytest.mark.parametrize("side", [64, 512])
def test_template_points_meet(alignment: Alignment, side: int) -> None:
    """A spot at a landmark of the crop arrives where the similarity says, at any size (so also through pooling)."""
    aligned = AlignedInput(alignment, side, ARCFACE_POINTS, (112, 112))
    y, x = np.mgrid[:side, :side]
    matrix = similarity(alignment.points(side), ARCFACE_POINTS)
    spread = 2.5 / np.hypot(*matrix[:, 0])
    for point in alignment.points(side):
        spot = np.exp(-((x - point[0]) ** 2 + (y - point[1]) ** 2) / (2 * spread**2))
        got = aligned(torch.from_numpy(spot * 2 - 1).expand(1, 3, side, side))[0, 0].double().numpy()
        v, u = np.mgrid[:112, :112]
        centre = np.array([(got * u).sum(), (got * v).sum()]) / got.sum()
        np.testing.assert_allclose(centre, transform_points(matrix, point[None])[0], atol=0.05)


@given(side=st.sampled_from([32, 64, 96]), batch=st.integers(1, 3), seed=st.integers(0, 2**31))
def test_augmentation_is_bounded_repeatable_and_per_image(side: int, batch: int, seed: int) -> None:
    aligned = AlignedInput(Alignment(), side, ARCFACE_POINTS, (112, 112))
    x = torch.rand(batch, 3, side, side) * 2 - 1
    one, two = (aligned(x, torch.Generator().manual_seed(seed)) for _ in range(2))
    assert torch.equal(one, two) and torch.isfinite(one).all() and one.shape == (batch, 3, 112, 112)
    assert not torch.equal(one, aligned(x)) and torch.equal(aligned(x), aligned(x))
    if batch > 1:
        same = aligned(x[:1].expand(batch, -1, -1, -1), torch.Generator().manual_seed(seed))
        assert not torch.equal(same[0], same[1])


def test_geometric_augmentation_is_a_similarity_within_its_bounds() -> None:
    aligned = AlignedInput(Alignment(), 128, ARCFACE_POINTS, (112, 112))
    theta = aligned._vary(aligned.theta.expand(500, 2, 3), torch.Generator().manual_seed(0)).double()
    bottom = torch.tensor([[[0.0, 0, 1]]]).double().expand(500, 1, 3)
    base = torch.cat([aligned.theta[None].double(), bottom[:1]], 1)
    vary = torch.linalg.inv(base) @ torch.cat([theta, bottom], 1)  # V's crop → V's crop, from −1 to 1
    a, b = vary[:, 0, 0], vary[:, 1, 0]
    torch.testing.assert_close(vary[:, 1, 1], a, atol=1e-5, rtol=0)
    torch.testing.assert_close(vary[:, 0, 1], -b, atol=1e-5, rtol=0)
    scale, angle = torch.hypot(a, b), torch.rad2deg(torch.atan2(b, a))
    assert 0.95 <= scale.min() < 0.96 and 1.04 < scale.max() <= 1.05 + 1e-6
    assert -5 <= angle.min() < -4.5 and 4.5 < angle.max() <= 5
    moved = vary[:, :2, 2].abs() / 2
    assert (moved <= 0.05 + 1e-6).all() and moved.max() > 0.045
