"""Against blur of any form: blind deconvolution with the normalised sparsity of edges."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from ficgan.anonymizers import Faces, Images
from ficgan.lab.attacks.base import BLURS, REVERSERS, Reverser, ReverserTraits
from ficgan.lab.attacks.deconvolution import blur_of
from ficgan.lab.attacks.similarity import luminance, to_uint8
from ficgan.registry import param

__all__ = ["NormSparsity", "estimate_kernel", "hyper_laplacian"]

Float = NDArray[np.float32]

# The paper's values: weight of the data λ, of the kernel's sparsity ψ, rounds per scale, outer and inner steps on x.
_DATA, _KERNEL, _ROUNDS, _OUTER, _INNER = 100.0, 1.0, 20, 2, 2
_STEP = 1e-3
_FINAL = 3000.0
"""Weight of the data in the final deconvolution with the kernel found."""


@REVERSERS.add
@dataclass(frozen=True)
class NormSparsity(Reverser):
    """The kernel, of free form, under which the edges of the sharp picture have the least ratio of ℓ1 to ℓ2 norm.

    From coarse to fine, edges x and kernel are improved in turns; then the picture is deconvolved with the kernel and a
    hyper-Laplacian prior. Nothing is learnt from pairs.

    Source:
        Krishnan, Tay and Fergus 2011 (eqs. 2–6, algorithms 1–3); Krishnan and Fergus 2009 for the last step.
    """

    name: ClassVar[str] = "norm-sparsity"
    traits: ClassVar[ReverserTraits] = ReverserTraits(
        title="Normalised sparsity",
        source="Fantômas, §6.2.2; Krishnan et al. 2011",
        against=BLURS,
    )

    kernel: int = param(0, "widest kernel looked for, pixels, odd; 0: estimated of each picture", low=0, high=99)

    def guess(self, faces: Faces) -> Images:
        size = faces.images.shape[1]
        # The published method is told how wide a kernel may be; here the width of the likeliest Gaussian tells.
        widths = np.full(len(faces), self.kernel) if self.kernel else blur_of(faces.images)[0]
        out = np.empty_like(faces.images)
        for index, (image, widest) in enumerate(zip(faces.images, widths.tolist(), strict=True)):
            width = max(3, min(widest | 1, (size // 2 - 1) | 1))
            kernel = estimate_kernel(luminance(image[None])[0] / 255, width)
            planes = np.moveaxis(image, 2, 0).astype(np.float32) / 255
            out[index] = to_uint8(np.moveaxis(hyper_laplacian(planes, kernel), 0, 2) * 255)
        return out


def estimate_kernel(image: Float, width: int) -> Float:
    """The blur of a picture.

    Args:
        image: [S,S], 0–1.
        width: of the kernel, odd.

    Returns:
        [width,width], none negative, sum 1; x is turned round as in a convolution.
    """
    import cv2

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
            kernel = _kernel(edges, observed, kernel)
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
    """Steps on λ‖k∗x − y‖² + ‖x‖₁/‖x‖₂ with the norm below held fixed for `_INNER` steps (algorithm 2, ISTA)."""
    from scipy import fft

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


def _kernel(edges: Float, observed: Float, kernel: Float) -> Float:
    """Least squares on λ‖x∗k − y‖² + ψ‖k‖₁ by one reweighting and conjugate gradients; none negative, sum 1."""
    from scipy import fft

    width, size = len(kernel), edges.shape[-1]
    spectra = fft.rfft2(edges)
    power = np.sum(np.abs(spectra) ** 2, axis=0)
    correlation = np.sum(np.conj(spectra) * fft.rfft2(observed), axis=0)
    reach = np.arange(-(width // 2), width // 2 + 1) % size
    target = fft.irfft2(correlation, s=(size, size))[np.ix_(reach, reach)]
    # Between places of the kernel only lags up to its width occur: a transform of twice its width holds them all.
    short = fft.next_fast_len(2 * width - 1, real=True)
    lags = np.arange(1 - width, width)
    wrapped = np.zeros((short, short), np.float32)
    wrapped[np.ix_(lags % short, lags % short)] = fft.irfft2(power, s=(size, size))[np.ix_(lags % size, lags % size)]
    gain = fft.rfft2(wrapped)

    def normal(k: Float) -> Float:
        return fft.irfft2(gain * fft.rfft2(k, s=(short, short)), s=(short, short))[:width, :width] + weight * k

    weight = (_KERNEL / (2 * _DATA)) / np.maximum(kernel, 1e-4)
    found = kernel.copy()
    residual = target - normal(found)
    direction, energy = residual, float(np.sum(residual**2))
    for _ in range(20):
        if energy < 1e-12:
            break
        applied = normal(direction)
        step = energy / max(float(np.sum(direction * applied)), 1e-20)
        found = found + step * direction
        residual = residual - step * applied
        energy, last = float(np.sum(residual**2)), energy
        direction = residual + energy / last * direction
    found = np.maximum(found, 0)
    total = float(found.sum())
    return (found / total).astype(np.float32) if total > 1e-6 else kernel


def _transfer(kernel: Float, size: int) -> NDArray[np.complex64]:
    """Spectrum of a kernel whose middle lies at the origin of a square of `size`."""
    from scipy import fft

    half = len(kernel) // 2
    rows = np.arange(-half, half + 1) % size
    full = np.zeros((size, size), np.float32)
    np.add.at(full, np.ix_(rows, rows), kernel)
    return fft.rfft2(full)


def hyper_laplacian(planes: Float, kernel: Float, data: float = _FINAL, power: float = 0.8) -> Float:
    """Deconvolution with a known kernel and the prior Σ|∇x|^0.8, edges reflected.

    Args:
        planes: [P,S,S], 0–1.
        kernel: [w,w], w odd, sum 1.
        data: weight of the data against the prior.
        power: of the gradients, below 1.

    Returns:
        [P,S,S].

    Source:
        Krishnan and Fergus 2009, algorithm 1; its w-step by Newton's iteration.
    """
    from scipy import fft

    size, margin = planes.shape[-1], min(2 * len(kernel), planes.shape[-1] - 1)
    total = fft.next_fast_len(size + 2 * margin, real=True)
    pad = (margin, total - size - margin)
    observed = np.pad(planes, ((0, 0), pad, pad), "symmetric" if pad[1] > size - 1 else "reflect")
    transfer = _transfer(kernel, total)
    across = fft.rfft2(_impulse_difference(total, 1))
    down = fft.rfft2(_impulse_difference(total, 0))
    smooth = np.abs(across) ** 2 + np.abs(down) ** 2
    fit = np.conj(transfer) * fft.rfft2(observed)
    estimate, beta = observed, 1.0
    while beta < 256:
        spectrum = fft.rfft2(estimate)
        pulled = np.zeros_like(fit)
        for difference in (across, down):
            gradient = fft.irfft2(difference * spectrum, s=(total, total))
            pulled += difference.conj() * fft.rfft2(_shrunk(gradient, beta, power))
        ratio = beta / data
        bottom = np.abs(transfer) ** 2 + ratio * smooth
        estimate = fft.irfft2((fit + ratio * pulled) / bottom, s=(total, total))
        beta *= 2 * np.sqrt(2)
    return estimate[:, margin : margin + size, margin : margin + size].astype(np.float32)


def _impulse_difference(size: int, axis: int) -> Float:
    out = np.zeros((size, size), np.float32)
    out[0, 0] = -1
    out[(0, -1) if axis else (-1, 0)] = 1
    return out


def _shrunk(v: Float, beta: float, power: float) -> Float:
    """argmin over w of |w|^power + β/2·(w − v)², elementwise: Newton's from |v|, or zero where that is less."""
    size = np.abs(v)
    w = size.copy()
    for _ in range(4):
        safe = np.maximum(w, 1e-6)
        slope = power * safe ** (power - 1) + beta * (safe - size)
        bend = power * (power - 1) * safe ** (power - 2) + beta
        w = np.clip(safe - slope / np.where(np.abs(bend) < 1e-6, 1e-6, bend), 0, size)
    better = w**power + beta / 2 * (w - size) ** 2 < beta / 2 * size**2
    return np.sign(v) * np.where(better, w, 0)
