"""Against Gaussian blur: Wiener's filter, once chosen on pairs and once blind, and Richardson and Lucy's iteration."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from ficgan.anonymizers import Faces, Images
from ficgan.errors import UsageError
from ficgan.lab.attacks.base import BLURS, NOISES, REVERSERS, Pairs, Reverser, ReverserTraits
from ficgan.lab.attacks.similarity import luminance, some, ssim, to_uint8
from ficgan.lab.attacks.spectral import blur_matrix, blur_transfer, filtered, laplacian, spectrum, weights
from ficgan.registry import param

__all__ = ["RichardsonLucy", "Wiener", "WienerBlind", "blur_between", "blur_of"]

_RELEASED_K = tuple(range(1, 40, 2))
_SMALL_K = tuple(float(10.0**e) for e in np.arange(-7, 0, 0.5))
_PRIORS = ("flat", "laplacian")


@REVERSERS.add
@dataclass(frozen=True)
class Wiener(Reverser):
    """A Gaussian blur is divided out, held back where little of it is left.

    Restored = observed · H / (H² + K·R), times 1 + K where R = 1, so that the mean brightness stays.

    The released grid has K from 1 to 39. As H is never above 1, such a filter smooths and cannot sharpen; the released
    one besides shifts the picture by half a kernel. Its kernels and K are in the grid here, with smaller K and wider
    kernels beside them.

    Source:
        Fantômas, §6.2.1; kit-ps/seba for the grid; Hunt 1973 for the Laplacian in place of a constant.
    """

    name: ClassVar[str] = "wiener"
    traits: ClassVar[ReverserTraits] = ReverserTraits(
        title="Wiener filter",
        source="Fantômas, §6.2.1",
        knowledge=frozenset({"pairs"}),
        against=BLURS | NOISES | {"pixelation"},
    )

    kernel: int = param(0, "width of the kernel in pixels, odd; 0: chosen on pairs", low=0)
    sigma: float = param(0.0, "its deviation in pixels; 0: as OpenCV gives one of that width", low=0)
    k: float = param(1e-3, "share of noise, K; chosen on pairs with the kernel", low=0)
    prior: str = param("laplacian", "what K weighs: all frequencies alike, or the high ones", choices=_PRIORS)

    def fit(self, pairs: Pairs) -> Wiener:
        """With the kernel and K of the highest SSIM on the pairs; a kernel that was given is kept."""
        if self.kernel:
            return self
        few = some(pairs, 200)
        blurred, clear = luminance(few.anonymised.images), luminance(few.clear.images)
        size = blurred.shape[1]
        seen, true = spectrum(blurred).astype(np.float64), spectrum(clear).astype(np.float64)
        area = np.outer(weights(size), weights(size))
        power, product = area * np.mean(seen**2, 0), area * np.mean(seen * true, 0)
        choices = [
            (float(np.sum(gain * (gain * power - 2 * product))), one)
            for one in _candidates(size)
            for gain in [one.gain(size)]
        ]
        choices.sort(key=lambda choice: choice[0])
        # The squared error costs next to nothing for every candidate; the SSIM that decides is taken of the best.
        best = [one for _, one in choices[:12]]
        rows = slice(None, None, max(1, len(blurred) // 48))
        scores = [np.mean(ssim(clear[rows], one._restored(blurred[rows]))) for one in best]
        return best[int(np.argmax(scores))]

    def gain(self, size: int) -> NDArray[np.float64]:
        """What each frequency is multiplied by: [S,S]."""
        axis = blur_transfer(self.kernel, size, self.sigma)
        transfer = np.outer(axis, axis)
        held = self.k * laplacian(size) ** 2 if self.prior == "laplacian" else self.k
        gain = transfer / np.maximum(transfer**2 + held, 1e-12)
        return gain / gain[0, 0]

    def guess(self, faces: Faces) -> Images:
        if not self.kernel:
            raise UsageError(f"{self.name} has no kernel yet; fit it on pairs or give kernel=WIDTH")
        return to_uint8(filtered(faces.images, self.gain(faces.images.shape[1])))

    def _restored(self, planes: NDArray[np.float32]) -> NDArray[np.float32]:
        size = planes.shape[1]
        gain = (self.gain(size) / (4 * (size - 1) ** 2)).astype(np.float32)
        return np.clip(spectrum(spectrum(planes) * gain), 0, 255)


def _candidates(size: int) -> list[Wiener]:
    """The released kernels (deviation a third of the width) and K, and all widths up to the picture's with small K."""
    released = [(width, width / 3) for width in range(3, 14, 2)]
    wide = [(width, 0.0) for width in range(3, size + 1, 2)]
    flat = [Wiener(*kernel, k=k, prior="flat") for kernel in released for k in _RELEASED_K]
    small = [Wiener(*kernel, k=k, prior=prior) for kernel in released + wide for k in _SMALL_K for prior in _PRIORS]
    return flat + small


@REVERSERS.add
@dataclass(frozen=True)
class WienerBlind(Reverser):
    """Wiener's filter whose blur and noise are estimated of each picture alone.

    A picture is taken for a Gaussian field with the spectrum of natural ones, blurred and noisy; the width of the
    blur and the share of noise are the ones under which it is most likely. The published method draws both precisions
    from their posterior for a kernel that is given; here their maximum is found on a grid, the kernel's width too.

    Source:
        Fantômas, §6.2.1; Orieux, Giovannelli and Rodet 2010 (its model: eqs. 6–9).
    """

    name: ClassVar[str] = "wiener-blind"
    traits: ClassVar[ReverserTraits] = ReverserTraits(
        title="Blind Wiener filter", source="Fantômas, §6.2.1; Orieux et al. 2010", against=BLURS
    )

    kernel: int = param(0, "width of the kernel in pixels, odd; 0: estimated for each picture", low=0)

    def guess(self, faces: Faces) -> Images:
        size = faces.images.shape[1]
        widths, noise = blur_of(faces.images, (self.kernel,) if self.kernel else ())
        out = np.empty_like(faces.images)
        # Pictures of one width and noise share a filter.
        for width, share in set(zip(widths.tolist(), noise.tolist(), strict=True)):
            rows = np.flatnonzero((widths == width) & (noise == share))
            axis = blur_transfer(width, size)
            transfer = np.outer(axis, axis)
            gain = transfer / (transfer**2 + share * laplacian(size) ** 2)
            out[rows] = to_uint8(filtered(faces.images[rows], gain))
        return out


_NOISE = tuple(float(10.0**e) for e in np.arange(-7, 1.1, 0.25))


def blur_of(images: Images, widths: tuple[int, ...] = ()) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """The most likely Gaussian blur and share of noise of each picture.

    Args:
        images: [N,S,S,3] uint8 RGB.
        widths: to choose from, in pixels; empty: from 1 to half the picture, each about an eighth above the last.

    Returns:
        widths [N] in pixels and noise [N], its power relative to the prior's where the Laplacian is 1.
    """
    size = images.shape[1]
    area = np.outer(weights(size), weights(size))
    area[0, 0] = 0  # the mean brightness has no prior
    area /= area.sum()
    rise = laplacian(size) ** 2
    rise[0, 0] = 1
    power = spectrum(luminance(images)).reshape(len(images), size * size) ** 2
    grid, costs = [], []
    for width in widths or _widths(size // 2):
        axis = blur_transfer(width, size)
        variance = np.outer(axis, axis) ** 2 / rise + np.array(_NOISE)[:, None, None]
        whitened = power @ (area / variance).reshape(len(_NOISE), -1).T.astype(np.float32)
        # Minus the likelihood at the best overall variance: log of the mean whitened power, plus mean log variance.
        fit = np.log(np.maximum(whitened, np.finfo(np.float32).tiny))
        costs.append(fit + np.sum(area * np.log(variance), axis=(1, 2)))
        grid += [(width, noise) for noise in _NOISE]
    best = np.argmin(np.concatenate(costs, axis=1), axis=1)
    return np.array([grid[b][0] for b in best], np.int64), np.array([grid[b][1] for b in best])


def _widths(most: int) -> list[int]:
    found = [1]
    while found[-1] < most:
        found.append(found[-1] + 2 * max(1, round(found[-1] / 16)))
    return found


def blur_between(pairs: Pairs) -> int:
    """Width of the Gaussian kernel that turns the clear faces into the anonymised ones with the least squared error."""
    few = some(pairs, 200)
    seen = spectrum(luminance(few.anonymised.images)).astype(np.float64)
    true = spectrum(luminance(few.clear.images)).astype(np.float64)
    size = seen.shape[1]
    area = np.outer(weights(size), weights(size))
    power, product = area * np.mean(true**2, 0), area * np.mean(seen * true, 0)
    errors = {}
    for width in range(1, size + 1, 2):
        axis = blur_transfer(width, size)
        transfer = np.outer(axis, axis)
        errors[width] = float(np.sum(transfer * (transfer * power - 2 * product)))
    return min(errors, key=errors.__getitem__)


@REVERSERS.add
@dataclass(frozen=True)
class RichardsonLucy(Reverser):
    """The picture that, blurred, gives the observed one: multiplied, again and again, by the ratio that is missing.

    Fitted, the kernel is the one between the pairs and the number of rounds that of the highest SSIM; not fitted, or
    `blind`, the kernel is estimated of each picture alone. The published attacker refines a free kernel from a
    constant one, which does not settle; here it is a Gaussian of unknown width.

    Source:
        Fantômas, §6.2.1; Richardson 1972; Lucy 1974, eq. 15; Fish et al. 1995 for the blind form.
    """

    name: ClassVar[str] = "richardson-lucy"
    traits: ClassVar[ReverserTraits] = ReverserTraits(
        title="Richardson–Lucy deconvolution",
        source="Fantômas, §6.2.1; Fish et al. 1995",
        knowledge=frozenset({"pairs"}),
        against=BLURS | NOISES,
    )

    kernel: int = param(0, "width of the kernel in pixels, odd; 0: found on pairs, or for each picture", low=0)
    rounds: int = param(30, "iterations; chosen on pairs with the kernel", low=1)
    blind: bool = param(False, "learn nothing from pairs")

    def fit(self, pairs: Pairs) -> RichardsonLucy:
        """With the kernel between the pairs and the number of rounds of the highest SSIM."""
        if self.blind or self.kernel:
            return self
        few = some(pairs, 24)
        clear, observed = luminance(few.clear.images), luminance(few.anonymised.images)
        width = blur_between(pairs)
        blur = blur_matrix(width, clear.shape[1])
        scores = {}
        restored, done = observed, 0
        for rounds in (5, 10, 20, 30, 50, 80):
            restored = _richardson_lucy(observed, blur, rounds - done, restored)
            done = rounds
            scores[rounds] = float(np.mean(ssim(clear, np.clip(restored, 0, 255))))
        return replace(self, kernel=width, rounds=max(scores, key=scores.__getitem__))

    def guess(self, faces: Faces) -> Images:
        size = faces.images.shape[1]
        widths = np.full(len(faces), self.kernel) if self.kernel else blur_of(faces.images)[0]
        out = np.empty_like(faces.images)
        for width in np.unique(widths):
            blur = blur_matrix(int(width), size)
            for row in np.flatnonzero(widths == width):
                planes = np.moveaxis(faces.images[row], 2, 0).astype(np.float32)
                out[row] = to_uint8(np.moveaxis(_richardson_lucy(planes, blur, self.rounds, planes), 0, 2))
        return out


def _richardson_lucy(
    observed: NDArray[np.float32], blur: NDArray[np.float32], rounds: int, start: NDArray[np.float32]
) -> NDArray[np.float32]:
    """Planes [P,S,S] after so many rounds; the blur's transpose, which differs at the edges, is divided by its sums."""
    back = np.ascontiguousarray(blur.T / blur.sum(axis=0)[:, None])
    estimate = np.maximum(start, 1e-3)
    for _ in range(rounds):
        ratio = observed / np.maximum(blur @ estimate @ blur.T, 1e-3)
        estimate = estimate * (back @ ratio @ back.T)
    return estimate
