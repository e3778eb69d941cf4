"""Fawkes: a cloak that hardly shows and misleads given recognisers; people, and other recognisers, know the face."""

from __future__ import annotations

import functools
import os
from typing import TYPE_CHECKING

import numpy as np

from ficgan.anonymizers.base import ANONYMIZERS, Anonymizer, Faces, Images, Traits
from ficgan.arrays import blocks
from ficgan.device import resolve_device
from ficgan.errors import InputError, UsageError
from ficgan.faces.crops import Alignment, similarity
from ficgan.registry import param

if TYPE_CHECKING:
    from torch import Tensor

    from ficgan.verification import Verifier

_SOURCE = "Shan et al. 2020, section 4; mode high, as released with Fantômas, section 6.1.2"
_BATCH = 16  # faces that are cloaked at a time
_OPEN = 0.999999  # black and white are drawn in by this factor, so that their tanh coordinates are finite
_START = 0.01  # first cloak, everywhere: the distance from oneself has no gradient at 0
# Weight of the gain: the ‖feature‖ of a MobileFaceNet, so that Adadelta's ε is small beside the gradients of any V.
_GAIN = 18.0
_OVER = 1e4  # weight of DSSIM over the budget: about twice the gain of a unit of it, so that none is worth it
_HALVINGS = 8  # steps of the search for the largest share of the cloak that keeps the budget in whole grey levels


@ANONYMIZERS.add
class Fawkes(Anonymizer):
    """Perturbation of least visibility and largest effect on recognisers, found by gradient descent for every face.

    The loss, a mean over the extractors, is weight·max(DSSIM − budget, 0) − gain, DSSIM = (1 − SSIM)/2; pixels are
    (tanh(atanh(x) + cloak) + 1)/2. The gain is ‖Δfeature‖²/‖feature‖², as in the program released with Fantômas.
    """

    verifier: str = param("", "recognisers to be misled, onnx:PATH or sphereface20:PATH, several joined by +")
    budget: float = param(0.017, "largest (1 − SSIM)/2 from the source", low=0.0, high=1.0)
    steps: int = param(150, "steps of the descent", low=1)
    rate: float = param(15.0, "learning rate of Adadelta", low=0.0)
    size: int = param(112, "largest side of the cloak, pixels; larger crops have it enlarged", low=8)
    device: str = param("auto", "auto, cpu, cuda or cuda:N")

    name = "fawkes"
    traits = Traits("Fawkes-style cloak", "adversarial", _SOURCE, strength="budget", needs={"verifier"})

    def __call__(self, faces: Faces) -> Images:
        import torch

        verifiers = load_verifiers(self.verifier, faces.images.shape[1], resolve_device(self.device))
        out = np.empty_like(faces.images)
        for part in blocks(len(faces), _BATCH):
            with torch.inference_mode(False), torch.enable_grad():
                out[part] = self._cloaked(faces.take(np.arange(len(faces))[part]), verifiers)
        return out

    def _cloaked(self, faces: Faces, verifiers: list[Verifier]) -> Images:
        import torch

        side = faces.images.shape[1]
        x = torch.from_numpy(np.array(faces.images)).to(resolve_device(self.device))
        x = x.permute(0, 3, 1, 2).float().contiguous()
        views = [VerifierView(verifier, faces) for verifier in verifiers]
        with torch.no_grad():
            own = [view(x) for view in views]
        flat = torch.atanh((x / 127.5 - 1) * _OPEN)
        grid = min(self.size, side)
        cloak = torch.full((len(x), 3, grid, grid), _START, device=x.device, requires_grad=True)
        best, best_score = cloak.detach().clone(), torch.full((len(x),), -torch.inf, device=x.device)
        optimiser = torch.optim.Adadelta([cloak], lr=self.rate, rho=0.95, eps=1e-7)
        for _ in range(self.steps + 1):
            y = _worn(flat, cloak)
            change = _dissimilarity(x, y)
            gain = _gain([view(y) for view in views], own)
            with torch.no_grad():
                # Gain and DSSIM both grow with the square of a small cloak: this is the gain once it is weakened.
                score = gain * (self.budget / change.clamp_min(1e-12)).clamp_max(1)
                better = score > best_score
                best[better], best_score[better] = cloak[better], score[better]
            loss = _OVER * torch.relu(change - self.budget) - _GAIN * gain
            (cloak.grad,) = torch.autograd.grad(loss.sum(), cloak)
            optimiser.step()
        return _weakened(flat, best, x, self.budget)


def ssim(x: Tensor, y: Tensor, full_scale: float = 1.0) -> Tensor:
    """Mean structural similarity [B] of batches [B,C,S,S]; differentiable (Wang et al. 2004, §III-C, eq. 13)."""
    import torch

    band = _windows(x.shape[-1]).to(x)
    # Products with a banded matrix: on a CPU they take half the time of depthwise convolutions.
    mx, my, mxx, myy, mxy = band @ torch.stack([x, y, x * x, y * y, x * y]) @ band.T
    c1, c2 = (0.01 * full_scale) ** 2, (0.03 * full_scale) ** 2
    vx, vy, vxy = mxx - mx * mx, myy - my * my, mxy - mx * my
    top = (2 * mx * my + c1) * (2 * vxy + c2)
    return (top / ((mx * mx + my * my + c1) * (vx + vy + c2))).mean((1, 2, 3))


@functools.lru_cache(maxsize=8)
def _windows(side: int) -> Tensor:
    import torch

    width = min(11, (side - 1) // 2 * 2 + 1)
    window = torch.exp(-((torch.arange(width, dtype=torch.float64) - width // 2) ** 2) / (2 * 1.5**2))
    band = torch.zeros(side - width + 1, side, dtype=torch.float64)
    for row in range(len(band)):
        band[row, row : row + width] = window / window.sum()
    return band


def _dissimilarity(x: Tensor, y: Tensor) -> Tensor:
    """(1 − SSIM)/2 of each image [B], both [B,3,S,S] in grey levels."""
    return (1 - ssim(x, y, 255)) / 2


def _gain(features: list[Tensor], own: list[Tensor]) -> Tensor:
    """[B]: mean over the extractors of the squared way from the own feature, in units of ‖feature‖²."""
    import torch

    pairs = zip(features, own, strict=True)
    ways = [(now - old).square().sum(1) / old.square().sum(1).clamp_min(1e-12) for now, old in pairs]
    return torch.stack(ways).mean(0)


def _worn(flat: Tensor, cloak: Tensor) -> Tensor:
    from torch.nn import functional as F

    if cloak.shape[-1] != flat.shape[-1]:
        cloak = F.interpolate(cloak, size=flat.shape[-2:], mode="bilinear", align_corners=False)
    return ((flat + cloak).tanh() + 1) * 127.5


def _weakened(flat: Tensor, cloak: Tensor, x: Tensor, budget: float) -> Images:
    import torch

    low = torch.zeros(len(x), 1, 1, 1, device=x.device)
    high = torch.ones_like(low)
    share, out = high, x
    with torch.no_grad():
        for _ in range(1 + _HALVINGS):  # the whole cloak first
            y = _worn(flat, share * cloak).round().clamp(0, 255)
            kept = (_dissimilarity(x.double(), y.double()) <= budget)[:, None, None, None]
            out = torch.where(kept, y, out)
            low, high = torch.where(kept, share, low), torch.where(kept, high, share)
            share = (low + high) / 2
    return out.to(torch.uint8).permute(0, 2, 3, 1).cpu().numpy()


class VerifierView:
    """Faces as input of a verifier: placed by their landmarks in the default alignment, then in the verifier's own."""

    def __init__(self, verifier: Verifier, faces: Faces) -> None:
        import torch

        side = faces.images.shape[1]
        # Pixel p has its centre at (2p + 1)/side − 1, the unit of `grid_sample`.
        unit = np.array([[2 / side, 0, 1 / side - 1], [0, 2 / side, 1 / side - 1], [0, 0, 1]])
        own = np.vstack([verifier.aligned.theta.cpu().double().numpy(), [0, 0, 1]])
        template = Alignment().points(side)
        placed = np.stack([np.vstack([similarity(marks, template), [0, 0, 1]]) for marks in faces.landmarks])
        theta = (unit @ np.linalg.inv(placed) @ np.linalg.inv(unit) @ own)[:, :2]
        self._verifier = verifier
        self._theta = torch.from_numpy(theta).float().to(verifier.aligned.theta.device)

    def __call__(self, x: Tensor) -> Tensor:
        """Features [B,D] of crops [B,3,S,S] in grey levels; InputError where one is not finite."""
        import torch
        from torch.nn import functional as F

        v = self._verifier
        if v.aligned.pool > 1:
            x = F.avg_pool2d(x, v.aligned.pool)
        with torch.autocast(device_type=x.device.type, enabled=False):
            where = F.affine_grid(self._theta, [len(x), 3, *v.aligned.size], align_corners=False)
            seen = F.grid_sample(x, where, mode="bilinear", padding_mode="zeros", align_corners=False)
            seen = ((seen - v.mean) / v.scale).contiguous(memory_format=torch.channels_last)
            features: Tensor = v.network(seen)[0]
        if not torch.isfinite(features).all():
            raise InputError(f"{v.name} gives features that are not finite; give another verifier")
        return features


def load_verifiers(text: str, side: int, device: str) -> list[Verifier]:
    """The verifiers of "onnx:PATH+sphereface20:PATH" for crops of a side; a path alone is of its suffix's kind."""
    kinds = {".onnx": "onnx:", ".safetensors": "sphereface20:"}
    specs = []
    for spec in map(str.strip, text.split("+")):
        kind = "" if spec.startswith(("onnx:", "sphereface20:")) else kinds.get(os.path.splitext(spec)[1])
        if kind is None:
            raise UsageError(f"fawkes: verifier {spec!r} is of no known kind; give onnx:PATH or sphereface20:PATH")
        specs.append(kind + spec)
    return [_read(spec, side, device) for spec in specs]


@functools.lru_cache(maxsize=4)
def _read(spec: str, side: int, device: str) -> Verifier:
    import torch

    from ficgan.verification.sphereface import load_verifier

    with torch.inference_mode(False):
        return load_verifier(spec, alignment=Alignment(), resolution=side, device=device)
