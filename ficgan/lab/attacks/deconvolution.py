"""Attackers that undo a blur: its transfer function, Wiener, Richardson–Lucy, sparse gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray
from scipy import fft
from scipy.signal import fftconvolve
from scipy.sparse.linalg import LinearOperator, cg

from ficgan.anonymizers import Faces, GaussianBlur, Images
from ficgan.anonymizers.base import nearest_grey
from ficgan.anonymizers.basic import scaled_kernel, sigma_of, spread
from ficgan.arrays import blocks, luminance
from ficgan.errors import UsageError
from ficgan.lab.attacks import base
from ficgan.lab.attacks.base import BLURS, FROM_PAIRS, NOISES, REVERSERS, Float, Pairs, Reverser, ReverserTraits
from ficgan.registry import param

# Blurs at 256 px that look like K = 37: Revelio, Figure 16 a–d. Its text gives the numbers of c and d, not of b, for
# which K/6 stands here.
TRANSFERS: dict[str, GaussianBlur] = {
    "same rule": GaussianBlur(kernel=37),
    "K/6": GaussianBlur(kernel=37, sigma=37 / 6),
    "fixed deviation": GaussianBlur(kernel=27, sigma=6.0),
    "rectangle": GaussianBlur(kernel=37, sigma=5.9, kernel_y=31, sigma_y=5.0),
}


def transfers(side: int) -> dict[str, GaussianBlur]:
    """`TRANSFERS` for crops of another side: the same blurs relative to the face."""
    return {label: scaled_blur(blur, side) for label, blur in TRANSFERS.items()}


def scaled_blur(blur: GaussianBlur, side: int) -> GaussianBlur:
    """A blur of 256 px in crops of another side, relative to the face: nearest odd kernels, exact deviations."""
    (kernel, across), (kernel_y, along) = (
        (max(3, scaled_kernel(width, side)), sigma * side / 256) for width, sigma in blur.axes()
    )
    if (kernel, across) == (kernel_y, along):
        return GaussianBlur(kernel=kernel, sigma=across, seed=blur.seed)
    return GaussianBlur(kernel=kernel, sigma=across, kernel_y=kernel_y, sigma_y=along, seed=blur.seed)


def blurred(images: Images, kernel: int) -> Images:
    """Images [N,S,S,3] under a literal Gaussian kernel of odd width; of width 1 they stay as they are."""
    if kernel == 1:
        return images
    return GaussianBlur(kernel=kernel)(Faces(images, tuple(str(row) for row in range(len(images)))))


def equivalent_kernel(blur: GaussianBlur, widths: Sequence[int] = tuple(range(1, 1002, 2))) -> int:
    """Width K whose blur by OpenCV's rule spreads a point as far as `blur`: a perfect estimator's answer."""
    wanted = np.sqrt(np.mean([spread(*axis) ** 2 for axis in blur.axes()]))
    return min(widths, key=lambda width: abs(spread(width, sigma_of(width)) - wanted))


def areas(size: int) -> NDArray[np.float64]:
    """How often a pixel or frequency occurs in one period of the reflected picture: [S,S], less at the edges."""
    weights = np.full(size, 2.0)
    weights[[0, -1]] = 1.0
    return np.outer(weights, weights)


def spectrum(planes: Float) -> Float:
    """Cosine transform I of […,S,S]: a symmetric blur with OpenCV's default border is a product there."""
    return fft.dctn(planes, type=1, axes=(-2, -1))


def multiplied(planes: Float, gain: NDArray[np.floating]) -> Float:
    """Planes […,S,S] whose spectrum is multiplied by a gain per frequency [S,S]."""
    return fft.idctn(spectrum(planes) * gain.astype(np.float32), type=1, axes=(-2, -1))


def filtered(images: Images, gain: NDArray[np.floating]) -> Float:
    """Images [N,S,S,3] filtered by a gain per frequency [S,S]: [N,S,S,3] grey levels, not clipped."""
    out = np.empty(images.shape, np.float32)
    for part in blocks(len(images), 64):
        out[part] = np.moveaxis(multiplied(np.moveaxis(images[part], 3, 1).astype(np.float32), gain), 1, 3)
    return out


def blur_transfer(width: int, size: int, sigma: float = 0.0) -> NDArray[np.float64]:
    """Gain per frequency [S] of a Gaussian kernel of so many taps along one axis; σ 0: as OpenCV chooses it."""
    offsets = np.arange(width) - width // 2
    taps = np.exp(-(offsets**2) / (2 * (sigma or sigma_of(width)) ** 2))
    return (taps / taps.sum()) @ np.cos(np.pi * np.outer(offsets, np.arange(size)) / (size - 1))


def blur_gain(width: int, size: int, sigma: float = 0.0) -> NDArray[np.float64]:
    """Gain per frequency [S,S] of a square Gaussian kernel; arguments as of `blur_transfer`."""
    axis = blur_transfer(width, size, sigma)
    return np.outer(axis, axis)


def blur_matrix(width: int, size: int) -> Float:
    """The blur as a matrix [S,S] that acts on columns of pixels."""
    spectra = fft.dct(np.eye(size), type=1, axis=0) * blur_transfer(width, size)[:, None]
    return fft.idct(spectra, type=1, axis=0).astype(np.float32)


def laplacian(size: int) -> NDArray[np.float64]:
    """Gain per frequency of the five-point Laplacian: [S,S], 0 for the constant, 8 at most."""
    axis = 2 - 2 * np.cos(np.pi * np.arange(size) / (size - 1))
    return axis[:, None] + axis[None, :]


_RELEASED_K = tuple(range(1, 40, 2))  # which cannot sharpen, as H ≤ 1
_SMALL_K = tuple(float(10.0**e) for e in np.arange(-7, 0, 0.5))
_PRIORS = ("flat", "laplacian")


@REVERSERS.add
class Wiener(Reverser):
    """A Gaussian blur is divided out: observed · H / (H² + K·R), times 1 + K where R = 1 (Fantômas, §6.2.1)."""

    name = "wiener"
    traits = ReverserTraits("Wiener filter", "Fantômas, §6.2.1", FROM_PAIRS, against=BLURS | NOISES | {"pixelation"})

    kernel: int = param(0, "width of the kernel in pixels, odd; 0: chosen on pairs", low=0)
    sigma: float = param(0.0, "its deviation in pixels; 0: as OpenCV gives one of that width", low=0)
    k: float = param(1e-3, "share of noise, K; chosen on pairs with the kernel", low=0)
    prior: str = param("laplacian", "what K weighs: all frequencies alike, or the high ones", choices=_PRIORS)

    def fit(self, pairs: Pairs) -> Wiener:
        """With the kernel and K of the highest SSIM on the pairs; a kernel that was given is kept."""
        if self.kernel:
            return self
        few = pairs.at_most(200)
        observed, clear = few.luminance()
        size = clear.shape[1]
        seen, true = (spectrum(planes).astype(np.float64) for planes in (observed, clear))
        power, product = areas(size) * np.mean(seen**2, 0), areas(size) * np.mean(seen * true, 0)

        def error(candidate: Wiener) -> float:
            gain = candidate.gain(size)
            return float(np.sum(gain * (gain * power - 2 * product)))

        def likeness(candidate: Wiener) -> float:
            return base.mean_ssim(clear[rows], np.clip(multiplied(observed[rows], candidate.gain(size)), 0, 255))

        released = [(width, width / 3) for width in range(3, 14, 2)]
        wide = [(width, 0.0) for width in range(3, size + 1, 2)]
        grid = [Wiener(*kernel, k=k, prior="flat") for kernel in released for k in _RELEASED_K]
        grid += [Wiener(*kernel, k=k, prior=p) for kernel in released + wide for k in _SMALL_K for p in _PRIORS]
        # The squared error costs next to nothing for every candidate; the SSIM that decides is taken of the best.
        rows = slice(None, None, max(1, len(few.clear) // 48))
        return max(sorted(grid, key=error)[:12], key=likeness)

    def gain(self, size: int) -> NDArray[np.float64]:
        """What each frequency is multiplied by: [S,S]."""
        transfer = blur_gain(self.kernel, size, self.sigma)
        noise = self.k * laplacian(size) ** 2 if self.prior == "laplacian" else self.k
        gain = transfer / np.maximum(transfer**2 + noise, 1e-12)
        return gain / gain[0, 0]

    def guess(self, faces: Faces) -> Images:
        if not self.kernel:
            raise UsageError(f"{self.name} has no kernel yet; fit it on pairs or give kernel=WIDTH")
        return nearest_grey(filtered(faces.images, self.gain(faces.images.shape[1])))


@REVERSERS.add
class WienerBlind(Reverser):
    """Wiener's filter, blur and noise of each picture likeliest of a grid (Orieux et al. 2010; Fantômas, §6.2.1)."""

    name = "wiener-blind"
    traits = ReverserTraits(
        "Blind Wiener filter", "Fantômas, §6.2.1; Orieux et al. 2010", against=BLURS | {"gaussian-noise", "dp-snow"}
    )

    def guess(self, faces: Faces) -> Images:
        size = faces.images.shape[1]
        widths, noise = blur_of(faces.images)
        out = np.empty_like(faces.images)
        # Pictures of one width and noise share a filter.
        for width, share in set(zip(widths.tolist(), noise.tolist(), strict=True)):
            rows = np.flatnonzero((widths == width) & (noise == share))
            transfer = blur_gain(width, size)
            gain = transfer / (transfer**2 + share * laplacian(size) ** 2)
            out[rows] = nearest_grey(filtered(faces.images[rows], gain))
        return out


_NOISE = tuple(float(10.0**e) for e in np.arange(-7, 1.1, 0.25))


def blur_of(images: Images) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """The most likely Gaussian blur width [N], pixels, and share of noise [N] of each picture [N,S,S,3] uint8."""
    size = images.shape[1]
    area = areas(size)
    area[0, 0] = 0  # the mean brightness has no prior
    area /= area.sum()
    rise = laplacian(size) ** 2
    rise[0, 0] = 1
    power = spectrum(luminance(images)).reshape(len(images), size * size) ** 2
    widths = [1]
    while widths[-1] < size // 2:
        widths.append(widths[-1] + 2 * max(1, round(widths[-1] / 16)))
    grid, costs = [], []
    for width in widths:
        variance = blur_gain(width, size) ** 2 / rise + np.array(_NOISE)[:, None, None]
        whitened = power @ (area / variance).reshape(len(_NOISE), -1).T.astype(np.float32)
        # Minus the likelihood at the best overall variance: log of the mean whitened power, plus mean log variance.
        fit = np.log(np.maximum(whitened, np.finfo(np.float32).tiny))
        costs.append(fit + np.sum(area * np.log(variance), axis=(1, 2)))
        grid += [(width, noise) for noise in _NOISE]
    best = np.argmin(np.concatenate(costs, axis=1), axis=1)
    return np.array([grid[b][0] for b in best], np.int64), np.array([grid[b][1] for b in best])


@REVERSERS.add
class RichardsonLucy(Reverser):
    """The picture is multiplied by the missing ratio, again and again (Lucy 1974, eq. 15; Fantômas, §6.2.1)."""

    name = "richardson-lucy"
    traits = ReverserTraits(
        "Richardson–Lucy deconvolution", "Fantômas, §6.2.1; Fish et al. 1995", against=BLURS | NOISES
    )

    kernel: int = param(0, "width of the kernel in pixels, odd; 0: estimated of each picture", low=0)
    rounds: int = param(30, "iterations", low=1)

    def guess(self, faces: Faces) -> Images:
        widths = np.full(len(faces), self.kernel) if self.kernel else blur_of(faces.images)[0]
        out = np.empty_like(faces.images)
        for row, (image, width) in enumerate(zip(faces.images, widths.tolist(), strict=True)):
            observed = np.moveaxis(image, 2, 0).astype(np.float32)
            blur = blur_matrix(width, len(image))
            back = np.ascontiguousarray(blur.T / blur.sum(axis=0)[:, None])  # the transpose differs at the edges
            estimate = np.maximum(observed, 1e-3)
            for _ in range(self.rounds):
                ratio = observed / np.maximum(blur @ estimate @ blur.T, 1e-3)
                estimate = estimate * (back @ ratio @ back.T)
            out[row] = nearest_grey(np.moveaxis(estimate, 0, 2))
        return out


# Krishnan et al.'s values: weight of the data λ, of the kernel's sparsity ψ, rounds per scale, outer and inner steps.
_DATA, _KERNEL, _ROUNDS, _OUTER, _INNER = 100.0, 1.0, 20, 2, 2
_STEP = 1e-3
_FINAL = 3000.0  # Weight of the data in the final deconvolution with the kernel found


@REVERSERS.add
class NormSparsity(Reverser):
    """The free kernel whose sharp edges have the least ℓ1/ℓ2 ratio is undone (Krishnan et al. 2011, eqs. 2–6)."""

    name = "norm-sparsity"
    traits = ReverserTraits("Normalised sparsity", "Fantômas, §6.2.2; Krishnan et al. 2011", against=BLURS)

    kernel: int = param(0, "widest kernel looked for, pixels, odd; 0: estimated of each picture", low=0, high=99)

    def guess(self, faces: Faces) -> Images:
        size = faces.images.shape[1]
        # The published method is given the widest kernel; here it is the width of the likeliest Gaussian.
        widths = np.full(len(faces), self.kernel) if self.kernel else blur_of(faces.images)[0]
        out = np.empty_like(faces.images)
        for index, (image, widest) in enumerate(zip(faces.images, widths.tolist(), strict=True)):
            width = max(3, min(widest | 1, (size // 2 - 1) | 1))
            kernel = estimate_kernel(luminance(image[None])[0] / 255, width)
            planes = np.moveaxis(image, 2, 0).astype(np.float32) / 255
            out[index] = nearest_grey(np.moveaxis(hyper_laplacian(planes, kernel), 0, 2) * 255)
        return out


def estimate_kernel(image: Float, width: int) -> Float:
    """The blur of a picture [S,S], 0–1: a kernel [width,width], odd, none negative, sum 1."""
    widths = [width]
    while widths[-1] > 3:
        widths.append(max(3, int(widths[-1] / np.sqrt(2)) | 1) if widths[-1] > 5 else 3)
    kernel = np.zeros((3, 3), np.float32)
    kernel[1, 1:] = 0.5  # the paper's start; a single one would be a fixed point
    edges: Float | None = None
    for at in reversed(widths):
        side = max(8, round(len(image) * at / width))
        observed = _gradients(cv2.resize(image, (side, side), interpolation=cv2.INTER_AREA))
        if len(kernel) != at:
            kernel = np.maximum(cv2.resize(kernel, (at, at), interpolation=cv2.INTER_LINEAR), 0)
            kernel /= kernel.sum()
        if edges is None:
            edges = observed
        else:
            edges = np.stack([cv2.resize(e, (side, side), interpolation=cv2.INTER_LINEAR) for e in edges])
        edges *= np.linalg.norm(observed) / max(float(np.linalg.norm(edges)), 1e-6)
        for _ in range(_ROUNDS):
            edges = _sharper(edges, observed, kernel)
            kernel = _improved_kernel(edges, observed, kernel)
        # A shift of the kernel and one of the picture cancel each other: the kernel is held in its middle.
        dy, dx = np.rint(_offset(kernel)).astype(int)
        kernel, edges = np.roll(kernel, (-dy, -dx), (0, 1)), np.roll(edges, (dy, dx), (1, 2))
    kernel = np.where(kernel < kernel.max() / 20, 0, kernel)
    dy, dx = _offset(kernel)
    kernel = cv2.warpAffine(kernel, np.array([[1.0, 0, -dx], [0, 1, -dy]]), kernel.shape)
    return (kernel / kernel.sum()).astype(np.float32)


def _offset(kernel: Float) -> NDArray[np.float64]:
    """From the middle of a kernel to its centre of mass: (down, right), pixels."""
    places = np.arange(len(kernel)) - len(kernel) // 2
    return np.array([kernel.sum(1) @ places, kernel.sum(0) @ places]) / kernel.sum()


def _gradients(image: Float) -> Float:
    """[2,S,S]: differences to the right and down, faded out towards all edges because the transforms are periodic."""
    out = np.zeros((2, *image.shape), np.float32)
    out[0, :, :-1] = np.diff(image, axis=1)
    out[1, :-1] = np.diff(image, axis=0)
    fade = np.minimum(1, (np.minimum(np.arange(len(image)), np.arange(len(image))[::-1]) + 1) / (1 + len(image) / 16))
    return out * np.outer(fade, fade).astype(np.float32)


def _sharper(edges: Float, observed: Float, kernel: Float) -> Float:
    transfer = _transfer(kernel, edges.shape[-1])
    power = np.abs(transfer) ** 2
    back = np.conj(transfer) * fft.rfft2(observed)
    for _ in range(_OUTER):
        data = _DATA * float(np.linalg.norm(edges))
        step = min(_STEP, 0.5 / max(data * float(power.max()), 1e-6))
        for _ in range(_INNER):
            gradient = fft.irfft2(power * fft.rfft2(edges) - back, s=edges.shape[-2:])
            moved = edges - step * data * gradient
            edges = np.sign(moved) * np.maximum(np.abs(moved) - step, 0)
    return edges.astype(np.float32)


def _improved_kernel(edges: Float, observed: Float, kernel: Float) -> Float:
    width, size = len(kernel), edges.shape[-1]
    spectra = fft.rfft2(edges)
    power = np.sum(np.abs(spectra) ** 2, axis=0)
    correlation = np.sum(np.conj(spectra) * fft.rfft2(observed), axis=0)
    reach = np.arange(-(width // 2), width // 2 + 1) % size
    target = fft.irfft2(correlation, s=(size, size))[np.ix_(reach, reach)]
    lags = np.arange(1 - width, width) % size  # between two places of the kernel
    near = fft.irfft2(power, s=(size, size))[np.ix_(lags, lags)]
    weight = (_KERNEL / (2 * _DATA)) / np.maximum(kernel, 1e-4)

    def normal(k: NDArray[Any]) -> NDArray[Any]:
        k = k.reshape(width, width)
        return (fftconvolve(near, k, mode="valid") + weight * k).ravel()

    operator = LinearOperator((width**2, width**2), matvec=normal, dtype=np.float32)
    found, _ = cg(operator, target.ravel(), kernel.ravel(), rtol=0, atol=1e-6, maxiter=20)
    found = np.maximum(found.reshape(width, width), 0)
    total = float(found.sum())
    return (found / total).astype(np.float32) if total > 1e-6 else kernel


def _transfer(kernel: Float, size: int) -> NDArray[np.complex64]:
    half = len(kernel) // 2
    rows = np.arange(-half, half + 1) % size
    full = np.zeros((size, size), np.float32)
    np.add.at(full, np.ix_(rows, rows), kernel)
    return fft.rfft2(full)


def hyper_laplacian(planes: Float, kernel: Float) -> Float:
    """Planes [P,S,S], 0–1, less a known blur [w,w], prior Σ|∇x|^0.8 (Krishnan and Fergus 2009, algorithm 1)."""
    size, margin = planes.shape[-1], min(2 * len(kernel), planes.shape[-1] - 1)
    total = fft.next_fast_len(size + 2 * margin, real=True)
    pad = (margin, total - size - margin)
    observed = np.pad(planes, ((0, 0), pad, pad), "symmetric" if pad[1] > size - 1 else "reflect")
    transfer = _transfer(kernel, total)
    impulse = np.zeros((total, total), np.float32)
    impulse[0, 0] = 1
    across, down = (fft.rfft2(np.roll(impulse, -1, axis) - impulse) for axis in (1, 0))
    smooth = np.abs(across) ** 2 + np.abs(down) ** 2
    fit = np.conj(transfer) * fft.rfft2(observed)
    estimate, beta = observed, 1.0
    while beta < 256:
        whole = fft.rfft2(estimate)
        pulled = np.zeros_like(fit)
        for difference in (across, down):
            gradient = fft.irfft2(difference * whole, s=(total, total))
            pulled += difference.conj() * fft.rfft2(_power_shrunk(gradient, beta))
        ratio = beta / _FINAL
        bottom = np.abs(transfer) ** 2 + ratio * smooth
        estimate = fft.irfft2((fit + ratio * pulled) / bottom, s=(total, total))
        beta *= 2 * np.sqrt(2)
    return estimate[:, margin : margin + size, margin : margin + size].astype(np.float32)


def _power_shrunk(v: Float, beta: float, power: float = 0.8) -> Float:
    """Its w-step, by Newton's iteration."""
    size = np.abs(v)
    w = size.copy()
    for _ in range(4):
        safe = np.maximum(w, 1e-6)
        slope = power * safe ** (power - 1) + beta * (safe - size)
        bend = power * (power - 1) * safe ** (power - 2) + beta
        w = np.clip(safe - slope / np.where(np.abs(bend) < 1e-6, 1e-6, bend), 0, size)
    better = w**power + beta / 2 * (w - size) ** 2 < beta / 2 * size**2
    return np.sign(v) * np.where(better, w, 0)
