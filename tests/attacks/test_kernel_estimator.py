"""Blurs by all rules against SciPy's and torchvision's, and the estimator of their kernels on natural spectra."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn import metrics
from torch import Tensor, nn
from torchvision import models

from ficgan.anonymizers import GaussianBlur
from ficgan.anonymizers.basic import scaled_kernel, spread
from ficgan.errors import UsageError
from ficgan.lab.attacks import networks
from ficgan.lab.attacks.deconvolution import TRANSFERS, blurred, equivalent_kernel, scaled_blur, transfers
from ficgan.lab.attacks.networks import KernelEstimator, log_spectrum
from ficgan.lab.metrics.pictures import check_pretrained


def test_a_blur_scales_with_the_crop() -> None:
    assert scaled_kernel(81, 64) == 21 and scaled_kernel(37, 64) == 9 and scaled_kernel(81, 256) == 81
    assert scaled_blur(GaussianBlur(kernel=81), 256).axes() == GaussianBlur(kernel=81).axes()
    (across, along) = transfers(64)["rectangle"].axes()
    assert across == (9, pytest.approx(1.475)) and along == (7, pytest.approx(1.25))


def test_blurs_that_look_alike_have_one_kernel() -> None:
    for kernel in (3, 9, 37, 81):
        assert equivalent_kernel(GaussianBlur(kernel=kernel)) == kernel
    assert all(abs(equivalent_kernel(blur) - 37) <= 2 for blur in TRANSFERS.values())
    assert equivalent_kernel(GaussianBlur(kernel=37, sigma=50)) > 60
    assert spread(101, 5.0) == pytest.approx(5.0, rel=1e-3) and spread(3, 1000.0) == pytest.approx((2 / 3) ** 0.5)


KERNELS = tuple(range(1, 14, 2))


def natural(count: int, seed: int, side: int = 32) -> np.ndarray:
    """Gaussian fields whose amplitude falls as a random power of frequency, as natural pictures' does."""
    rng = np.random.default_rng(seed)
    radius = np.maximum(np.hypot(np.fft.fftfreq(side)[:, None], np.fft.fftfreq(side)[None]) * side, 1)
    falls = radius[None] ** -rng.uniform(0.9, 1.3, (count, 1, 1))
    waves = np.fft.fft2(rng.normal(size=(3, count, side, side))) * falls
    planes = np.moveaxis(np.fft.ifft2(waves).real, 0, 3)
    planes /= np.abs(planes).max(axis=(1, 2, 3), keepdims=True)
    return (planes * 127 + 128).astype(np.uint8)


@pytest.fixture(scope="module")
def estimator() -> KernelEstimator:
    return KernelEstimator.train(natural(80, 0), KERNELS, validation=natural(20, 1), epochs=12)


def every(images: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return np.concatenate([blurred(images, k) for k in KERNELS]), np.repeat(KERNELS, len(images))


@pytest.mark.slow
def test_kernel_sizes_of_unseen_pictures_are_found(estimator: KernelEstimator) -> None:
    seen, true = every(natural(20, 2))
    found = estimator.estimate(seen)
    assert found.dtype == np.int64 and set(found) <= set(KERNELS)
    error = metrics.mean_absolute_error(true, found)
    assert error < 0.5 < metrics.mean_absolute_error(true, np.full(len(true), 7))
    assert np.mean(true == found) > 0.8
    held, sizes = every(natural(20, 1))
    assert estimator.error == pytest.approx(metrics.mean_absolute_error(sizes, estimator.regress(held)))


class SmallNetwork(nn.Module):
    """Stands in for a network of torchvision: sharpness of its input, and a classifier like theirs."""

    def __init__(self) -> None:
        super().__init__()
        self.classifier = nn.Sequential(nn.Dropout(0.0), nn.Linear(4, 1000))

    def forward(self, x: Tensor) -> Tensor:
        assert x.shape[1] == 3 and x.dtype == torch.float32 and float(x.abs().max()) <= 3
        steps = [(x[..., : -(2**k)] - x[..., 2**k :]).abs().mean((1, 2, 3)) for k in range(4)]
        out: Tensor = self.classifier(torch.stack(steps, 1).clamp_min(1e-4).log())
        return out


def test_a_network_of_torchvision_learns_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(models, "get_model", lambda name, weights: asked.append((name, weights)) or SmallNetwork())
    monkeypatch.setattr(networks._EfficientNet, "rate", 0.05)
    given_ = {"validation": natural(10, 1), "network": "efficientnet_v2_l", "pretrained": True, "epochs": 15}
    made = KernelEstimator.train(natural(60, 0), KERNELS, **given_)  # type: ignore[arg-type]
    seen, true = every(natural(20, 2))
    assert asked == [("efficientnet_v2_l", "DEFAULT")] and made.module.network.classifier[-1].out_features == 1  # type: ignore[union-attr]
    assert np.abs(made.regress(seen) - true).mean() < 0.7 * np.abs(true - np.median(true)).mean()


def test_weights_that_are_not_there_are_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.hub.get_dir", lambda: str(tmp_path))
    with pytest.raises(UsageError, match=r"efficientnet_v2_l-\w+\.pth"):
        check_pretrained("efficientnet_v2_l")


def test_the_windowed_spectrum_is_a_slow_fourier_sum() -> None:
    image = natural(1, 7, 8)
    hann = np.sin(np.pi * np.arange(1, 9) / 9) ** 2
    window, places = np.outer(hann, hann), np.arange(8)
    rings: dict[int, list[float]] = {}
    for u in range(-4, 4):
        for v in range(5):
            wave = window[..., None] * np.exp(-2j * np.pi * (u * places[:, None] + v * places[None]) / 8)[..., None]
            plain = image[0] - (image[0] * window[..., None]).sum((0, 1)) / window.sum()
            power = np.abs((plain * wave).sum((0, 1))) ** 2 / (window**2).sum()
            rings.setdefault(int(np.hypot(u, v)), []).append(float(np.log(power.mean() + 1e-2)))
    assert np.allclose(log_spectrum(image)[0], [np.mean(rings[r]) for r in sorted(rings)], atol=2e-3)
