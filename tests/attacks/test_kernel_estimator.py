"""The kernel-size estimator on pictures with the spectrum of natural ones, and its parts against slow forms."""

from __future__ import annotations

import weakref
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import fft
from sklearn import metrics

from ficgan.errors import FicganError, InputError, UsageError
from ficgan.lab.attacks import kernel
from ficgan.lab.attacks.blurs import blurred
from ficgan.lab.attacks.kernel import KernelEstimator, confusion, log_spectrum, mean_absolute_error

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


@pytest.fixture(scope="module", params=["windowed", "cosine"])
def estimator(request: pytest.FixtureRequest) -> KernelEstimator:
    faces, held = natural(120, 0), natural(20, 1)
    return KernelEstimator.train(faces, KERNELS, validation=held, network=request.param, epochs=20, device="cpu")


def every(images: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return np.concatenate([blurred(images, k) for k in KERNELS]), np.repeat(KERNELS, len(images))


def test_kernel_sizes_of_unseen_pictures_are_found(estimator: KernelEstimator) -> None:
    seen, true = every(natural(20, 2))
    found = estimator.estimate(seen)
    assert found.dtype == np.int64 and set(found) <= set(KERNELS)
    error = mean_absolute_error(true, found)
    assert error < 0.5 < metrics.mean_absolute_error(true, np.full(len(true), 7))
    assert error == pytest.approx(metrics.mean_absolute_error(true, found))
    table = confusion(true, found, KERNELS)
    assert np.array_equal(table, metrics.confusion_matrix(true, found, labels=KERNELS))
    assert np.trace(table) > 0.8 * len(true)
    turned = estimator.estimate(np.ascontiguousarray(seen[:, ::-1, ::-1]))
    assert np.mean(turned == found) > 0.95  # a half turn leaves the spectrum as it is


def test_sizes_are_rounded_to_the_nearest_odd(estimator: KernelEstimator) -> None:
    seen, _ = every(natural(3, 5))
    raw, found = estimator.regress(seen), estimator.estimate(seen)
    assert np.array_equal(found, [min(KERNELS, key=lambda k: abs(k - value)) for value in raw])


def test_training_repeats_with_its_seed() -> None:
    images = natural(10, 4)
    first, again = (KernelEstimator.train(images, (1, 5, 9), epochs=2, device="cpu") for _ in range(2))
    other = KernelEstimator.train(images, (1, 5, 9), epochs=2, seed=1, device="cpu")
    assert np.array_equal(first.regress(images), again.regress(images))
    assert not np.array_equal(first.regress(images), other.regress(images))
    assert first.trained["validation_mae"] is None


def test_what_comes_after_the_blur_is_learnt_with_it() -> None:
    rng = np.random.default_rng(0)
    noisy = lambda images: np.clip(images + rng.normal(0, 6, images.shape), 0, 255).astype(np.uint8)  # noqa: E731
    clear, (seen, true) = natural(100, 0), every(natural(20, 2))
    plain = KernelEstimator.train(clear, KERNELS, epochs=8, device="cpu")
    adapted = KernelEstimator.train(clear, KERNELS, epochs=8, after=noisy, device="cpu")
    errors = [mean_absolute_error(true, one.estimate(noisy(seen))) for one in (plain, adapted)]
    assert errors[1] < 0.5 * errors[0]


def test_saved_and_loaded_it_is_the_same(estimator: KernelEstimator, tmp_path: Path) -> None:
    estimator.save(tmp_path / "k.safetensors")
    loaded = KernelEstimator.load(tmp_path / "k.safetensors", device="cpu")
    seen, _ = every(natural(2, 3))
    assert loaded == estimator and np.array_equal(loaded.regress(seen), estimator.regress(seen))
    (tmp_path / "bad.safetensors").write_bytes((tmp_path / "k.safetensors").read_bytes()[:100])
    for path in ("bad.safetensors", "none.safetensors"):
        with pytest.raises(FicganError):
            KernelEstimator.load(tmp_path / path)


def test_the_spectrum_is_scipy_s_cosine_transform() -> None:
    images = natural(3, 7, 16)
    ours = log_spectrum(images)
    radius = np.hypot(*np.indices((16, 16))).astype(int)
    for image, row in zip(images, ours, strict=True):
        waves = fft.dctn(image.astype(np.float64), type=1, axes=(0, 1)) / 30
        power = np.log((waves**2).mean(axis=2) + 1e-2)
        assert np.allclose(row, [power[radius == ring].mean() for ring in range(radius.max() + 1)], atol=2e-3)


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
    assert np.allclose(log_spectrum(image, windowed=True)[0], [np.mean(rings[r]) for r in sorted(rings)], atol=2e-3)


def test_a_windowed_estimator_reads_crops_out_of_blurred_photos() -> None:
    clear, photos = natural(120, 0), natural(20, 2, 64)
    seen = np.concatenate([np.ascontiguousarray(blurred(photos, k)[:, 16:48, 16:48]) for k in KERNELS])
    true = np.repeat(KERNELS, len(photos))
    errors = [
        mean_absolute_error(
            true, KernelEstimator.train(clear, KERNELS, network=network, epochs=12, device="cpu").estimate(seen)
        )
        for network in ("windowed", "cosine")
    ]
    assert errors[0] < 1 and errors[0] < errors[1]


def test_pictures_held_back_are_there_part_by_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is blurred for the watching is given back before more is."""
    alive: list[weakref.ref[torch.Tensor]] = []
    most = 0
    at = kernel._Examples.at

    def watched(self: kernel._Examples, rows: torch.Tensor) -> torch.Tensor:
        nonlocal most
        most = max(most, sum(one() is not None for one in alive))
        made = at(self, rows)
        alive.append(weakref.ref(made))
        return made

    monkeypatch.setattr(kernel, "_ROWS", 4)
    monkeypatch.setattr(kernel._Examples, "at", watched)
    KernelEstimator.train(natural(2, 0), (1, 9), validation=natural(12, 1), epochs=1, batch=8, device="cpu")
    assert len(alive) == 1 + 6 and most <= 1


@pytest.mark.slow
def test_a_convolutional_network_trains_and_takes_given_weights(tmp_path: Path) -> None:
    import torchvision
    from safetensors.torch import save_file

    torch.manual_seed(0)
    path = tmp_path / "imagenet.safetensors"
    save_file(torchvision.models.efficientnet_v2_s(weights=None).state_dict(), path)
    made = KernelEstimator.train(
        natural(2, 0), (1, 9), network="efficientnet-v2-s", weights=path, epochs=1, batch=4, device="cpu"
    )
    assert set(made.estimate(natural(2, 1))) <= set(range(1, 10, 2))
    made.save(tmp_path / "own.safetensors")
    again = KernelEstimator.load(tmp_path / "own.safetensors", device="cpu")
    assert np.allclose(again.regress(natural(2, 1)), made.regress(natural(2, 1)), atol=1e-4)
    given = {"network": "efficientnet-v2-s", "weights": tmp_path / "own.safetensors", "device": "cpu"}
    with pytest.raises(InputError, match="torchvision"):
        KernelEstimator.train(natural(2, 0), (1, 9), **given)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "call",
    [
        lambda e: e.estimate(natural(1, 0, 16)),
        lambda e: KernelEstimator.train(natural(2, 0), (1, 4)),
        lambda e: KernelEstimator.train(natural(2, 0), (3,)),
        lambda e: KernelEstimator.train(natural(2, 0)[:0], (1, 3)),
        lambda e: KernelEstimator.train(natural(2, 0), (1, 3), network="resnet"),
        lambda e: KernelEstimator.train(natural(2, 0), (1, 3), weights="w.safetensors"),
        lambda e: confusion(np.array([1, 5]), np.array([1, 3]), (1, 3)),
    ],
)
def test_what_cannot_be_is_refused(estimator: KernelEstimator, call: object) -> None:
    with pytest.raises((InputError, UsageError)):
        call(estimator)  # type: ignore[operator]
