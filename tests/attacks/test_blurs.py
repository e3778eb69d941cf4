"""Blurs by all rules against SciPy's and torchvision's, and blurs that look alike."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import ndimage

from ficgan.anonymizers import ANONYMIZERS, Faces, GaussianBlur
from ficgan.anonymizers.kernels import SIGMA_RULES, nearest_odd, scaled_kernel, scaled_sigma, sigma_of, spread
from ficgan.errors import UsageError
from ficgan.lab.attacks.blurs import TRANSFERS, blurred, equivalent_kernel, scaled_blur, transfers
from ficgan.registry import parse_spec


def faces_of(side: int, count: int = 2) -> Faces:
    rng = np.random.default_rng(side)
    return Faces(rng.integers(0, 256, (count, side, side, 3), dtype=np.uint8), tuple(map(str, range(count))))


def scipy_blur(images: np.ndarray, x: tuple[int, float], y: tuple[int, float]) -> np.ndarray:
    """In float64; its "mirror" is the border …2 1 0 1 2…"""
    out = images.astype(np.float64)
    for axis, (kernel, sigma) in ((2, x), (1, y)):
        offsets = np.arange(kernel) - kernel // 2
        taps = np.exp(-(offsets**2) / (2 * sigma**2))
        out = ndimage.correlate1d(out, taps / taps.sum(), axis=axis, mode="mirror")
    return out


@pytest.mark.parametrize(
    ("spec", "x", "y"),
    [
        ("gaussian-blur:kernel=81", (81, 12.5), (81, 12.5)),
        ("gaussian-blur:kernel=37", (37, 5.9), (37, 5.9)),
        ("gaussian-blur:kernel=37,rule=sixth", (37, 37 / 6), (37, 37 / 6)),
        ("gaussian-blur:kernel=27,sigma=6", (27, 6.0), (27, 6.0)),
        ("gaussian-blur:kernel=37,sigma=5.9,kernel-y=31,sigma-y=5", (37, 5.9), (31, 5.0)),
        ("gaussian-blur:kernel=9,kernel-y=1", (9, 1.7), (1, 0.5)),
        ("gaussian-blur:kernel=9,sigma-y=0.5", (9, 1.7), (9, 0.5)),
    ],
)
def test_a_blur_is_the_convolution_with_its_kernels(spec: str, x: tuple[int, float], y: tuple[int, float]) -> None:
    name, given_parameters = parse_spec(spec)
    faces = faces_of(96)
    out = ANONYMIZERS.make(name, **given_parameters)(faces)
    assert np.abs(out - scipy_blur(faces.images, x, y)).max() <= 0.5 + 1e-3


@pytest.mark.parametrize("sides", [(37, 37), (81, 81), (37, 31)])
def test_a_literal_kernel_is_pytorch_s_blur(sides: tuple[int, int]) -> None:
    import torch
    from torchvision.transforms.v2 import functional

    faces, (width, height) = faces_of(128, 1), sides
    pixels = torch.from_numpy(faces.images).permute(0, 3, 1, 2).double()
    theirs = functional.gaussian_blur(pixels, [width, height]).permute(0, 2, 3, 1).numpy()
    ours = GaussianBlur(kernel=width, kernel_y=height)(faces)
    assert np.abs(ours - theirs).max() <= 0.5 + 1e-3


@pytest.mark.parametrize(
    "parameters",
    [
        {"rule": "half"},
        {"kernel_y": 4},
        {"variant": "as_released", "sigma": 3.0},
        {"variant": "as_released", "rule": "sixth"},
        {"sigma": 0.0},
    ],
)
def test_parameters_that_cannot_be_are_refused(parameters: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        GaussianBlur(**parameters)  # type: ignore[arg-type]


def test_the_rules_give_the_papers_deviations() -> None:
    assert sigma_of(37) == pytest.approx(5.9) and sigma_of(81) == pytest.approx(12.5)
    assert sigma_of(36, "sixth") == 6 and set(SIGMA_RULES) >= {"opencv", "sixth"}
    with pytest.raises(UsageError, match="rule"):
        sigma_of(3, "half")


@given(st.floats(0, 500))
@settings(max_examples=200)
def test_the_nearest_odd_width_is_the_nearest(width: float) -> None:
    odd = nearest_odd(width)
    assert odd % 2 == 1 and abs(odd - width) == min(abs(k - width) for k in range(1, 503, 2))


def test_a_blur_scales_with_the_crop() -> None:
    assert scaled_kernel(81, 64) == 21 and scaled_kernel(37, 64) == 9 and scaled_kernel(81, 256) == 81
    assert scaled_sigma(81, 64) == pytest.approx(3.125)
    assert scaled_blur(GaussianBlur(kernel=81), 256).axes() == GaussianBlur(kernel=81).axes()
    (across, along) = transfers(64)["rectangle"].axes()
    assert across == (9, pytest.approx(1.475)) and along == (7, pytest.approx(1.25))
    # A picture twice as large, blurred and shrunk, is the small one under the scaled blur.
    rng = np.random.default_rng(0)
    smooth = ndimage.gaussian_filter(rng.normal(size=(128, 128)), 2)
    large = np.repeat(((smooth / np.abs(smooth).max() + 1) * 127)[..., None], 3, 2).astype(np.uint8)[None]
    small = large.reshape(1, 64, 2, 64, 2, 3).mean((2, 4)).round().astype(np.uint8)
    blur = GaussianBlur(kernel=21)
    shrunk = blur(Faces(large, ("a",))).reshape(1, 64, 2, 64, 2, 3).mean((2, 4))
    apart = np.abs(shrunk - scaled_blur(blur, 64, 128)(Faces(small, ("a",))))[:, 8:-8, 8:-8].max()
    assert apart < 2 < np.abs(shrunk - blur(Faces(small, ("a",))))[:, 8:-8, 8:-8].max()


def test_blurs_that_look_alike_have_one_kernel() -> None:
    for kernel in (3, 9, 37, 81):
        assert equivalent_kernel(GaussianBlur(kernel=kernel)) == kernel
    assert all(abs(equivalent_kernel(blur) - 37) <= 2 for blur in TRANSFERS.values())
    assert equivalent_kernel(GaussianBlur(kernel=37, sigma=50)) > 60
    assert spread(101, 5.0) == pytest.approx(5.0, rel=1e-3) and spread(3, 1000.0) == pytest.approx((2 / 3) ** 0.5)


def test_a_kernel_of_one_pixel_changes_nothing() -> None:
    images = faces_of(24).images
    assert np.array_equal(blurred(images, 1), images) and not np.array_equal(blurred(images, 3), images)
    assert np.array_equal(blurred(images, 9, "sixth"), GaussianBlur(kernel=9, sigma=1.5)(faces_of(24)))
