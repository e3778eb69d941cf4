"""The way from a checkpoint's crop to V's, against OpenCV."""

from __future__ import annotations

import cv2
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ficgan.errors import UsageError
from ficgan.faces.alignment import ARCFACE_POINTS, Alignment, similarity, transform_points
from ficgan.verification import SPHEREFACE_POINTS, AlignedInput, VAugment

TARGETS = [(ARCFACE_POINTS, (112, 112)), (SPHEREFACE_POINTS, (112, 96))]
ALIGNMENTS = [Alignment(), Alignment("ffhq"), Alignment(eye_distance=0.5, eye_y=0.4)]


def smooth(rng: np.random.Generator, side: int) -> np.ndarray:
    """Random image whose neighbours are alike: OpenCV rounds sampling positions to 1/32 pixel."""
    return cv2.resize(rng.integers(0, 256, (8, 8, 3), np.uint8), (side, side), interpolation=cv2.INTER_CUBIC)


def to_tensor(image: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(image).permute(2, 0, 1)[None].float() / 127.5 - 1


@pytest.mark.parametrize(("points", "size"), TARGETS)
@pytest.mark.parametrize("alignment", ALIGNMENTS)
@pytest.mark.parametrize("side", [64, 100, 128])
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


def test_outside_is_black_and_inside_is_not() -> None:
    """The embedded alignment is tighter than ArcFace's: the recogniser's crop must be framed, not stretched."""
    got = AlignedInput(Alignment(), 128, ARCFACE_POINTS, (112, 112))(torch.ones(1, 3, 128, 128))[0]
    assert (got[:, :, 0] == 0).all() and (got[:, 60, 40:70] > 254.99).all()
    inside = float((got[0] > 254.99).float().mean())
    matrix = similarity(Alignment().points(128), ARCFACE_POINTS)
    corners = transform_points(matrix, np.array([[-0.5, -0.5], [127.5, 127.5]]))
    width, height = np.clip(corners[1], -0.5, 111.5) - np.clip(corners[0], -0.5, 111.5)
    assert inside == pytest.approx(width * height / 112**2, abs=0.03)


@pytest.mark.parametrize("alignment", ALIGNMENTS)
@pytest.mark.parametrize("side", [64, 128, 256, 512])
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


def test_every_pixel_gets_a_gradient_when_shrinking() -> None:
    x = torch.zeros(1, 3, 256, 256, requires_grad=True)
    aligned = AlignedInput(Alignment(), 256, ARCFACE_POINTS, (112, 112))
    aligned(x).sum().backward()
    assert aligned.pool == 2 and x.grad is not None
    assert (x.grad[:, :, 20:215, 20:236] != 0).float().mean() > 0.99


def test_half_precision_and_autocast_compute_in_float32() -> None:
    aligned = AlignedInput(Alignment(), 64, ARCFACE_POINTS, (112, 112))
    assert aligned(torch.zeros(1, 3, 64, 64, dtype=torch.bfloat16)).dtype == torch.float32


@settings(deadline=None, max_examples=15)
@given(side=st.sampled_from([32, 64, 96]), batch=st.integers(1, 3), seed=st.integers(0, 2**31))
def test_augmentation_is_bounded_repeatable_and_per_image(side: int, batch: int, seed: int) -> None:
    aligned = AlignedInput(Alignment(), side, ARCFACE_POINTS, (112, 112), VAugment())
    x = torch.rand(batch, 3, side, side) * 2 - 1
    one, two = (aligned(x, torch.Generator().manual_seed(seed)) for _ in range(2))
    assert torch.equal(one, two) and torch.isfinite(one).all() and one.shape == (batch, 3, 112, 112)
    assert not torch.equal(one, aligned(x)) and torch.equal(aligned(x), aligned(x))
    if batch > 1:
        same = aligned(x[:1].expand(batch, -1, -1, -1), torch.Generator().manual_seed(seed))
        assert not torch.equal(same[0], same[1])


@pytest.mark.parametrize(("points", "size"), TARGETS)
def test_geometric_augmentation_is_a_similarity_within_its_bounds(points: np.ndarray, size: tuple[int, int]) -> None:
    only = VAugment(blur=0, noise=0, brightness=0, contrast=0, saturation=0)
    aligned = AlignedInput(Alignment(), 128, points, size, only)
    theta = aligned._vary(aligned.theta.expand(500, 2, 3), only, torch.Generator().manual_seed(0)).double()
    height, width = size
    to_pixels = torch.tensor([[128 / 2, 0, 127 / 2], [0, 128 / 2, 127 / 2], [0, 0, 1]]).double()
    from_pixels = torch.tensor([[2 / width, 0, 1 / width - 1], [0, 2 / height, 1 / height - 1], [0, 0, 1]]).double()
    bottom = torch.tensor([[[0.0, 0, 1]]]).double().expand(500, 1, 3)
    back = to_pixels @ torch.cat([theta, bottom], 1) @ from_pixels  # V's pixels → crop's pixels
    base = torch.from_numpy(np.vstack([similarity(Alignment().points(128), points), [0, 0, 1]]))
    vary = base @ back  # V's pixels → V's pixels
    a, b = vary[:, 0, 0], vary[:, 1, 0]
    torch.testing.assert_close(vary[:, 1, 1], a, atol=1e-5, rtol=0)
    torch.testing.assert_close(vary[:, 0, 1], -b, atol=1e-5, rtol=0)
    scale, angle = torch.hypot(a, b), torch.rad2deg(torch.atan2(b, a))
    assert 0.95 <= scale.min() < 0.96 and 1.04 < scale.max() <= 1.05
    assert -5 <= angle.min() < -4.5 and 4.5 < angle.max() <= 5
    centre = torch.tensor([(width - 1) / 2, (height - 1) / 2, 1]).double()
    moved = (vary @ centre - centre)[:, :2].abs() / torch.tensor([width, height])
    assert (moved <= 0.05 + 1e-6).all() and moved.max() > 0.045


def test_colour_jitter_against_a_loop() -> None:
    from ficgan.verification.transform import _jitter_colour

    augment = VAugment(brightness=0.2, contrast=0.3, saturation=0.4)
    x = torch.rand(4, 3, 5, 6).double() * 255
    got = _jitter_colour(x.float(), augment, torch.Generator().manual_seed(5))
    draws = torch.rand(3, 4, generator=torch.Generator().manual_seed(5)) * 2 - 1
    for image, out, (b, c, s) in zip(x, got, draws.T.tolist(), strict=True):
        grey = 0.299 * image[0] + 0.587 * image[1] + 0.114 * image[2]
        saturated = grey + (1 + 0.4 * s) * (image - grey)
        contrasted = 127.5 + (1 + 0.3 * c) * (saturated * (1 + 0.2 * b) - 127.5)
        torch.testing.assert_close(out.double(), contrasted, atol=1e-3, rtol=1e-5)


@pytest.mark.parametrize("wrong", [{"scale": 1.0}, {"blur": 1.5}, {"shift": -0.1}, {"noise": float("nan")}])
def test_augmentation_out_of_range(wrong: dict[str, float]) -> None:
    with pytest.raises(UsageError, match=next(iter(wrong))):
        VAugment(**wrong)
