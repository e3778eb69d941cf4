"""What the ops compute, by NumPy and SciPy in float64, written from the definitions and from nothing else."""

from __future__ import annotations

import numpy as np
import torch
from scipy.signal import convolve2d
from scipy.special import expit

ACTIVATIONS = {
    "linear": lambda v, alpha: v,
    "relu": lambda v, alpha: np.maximum(v, 0),
    "lrelu": lambda v, alpha: np.where(v > 0, v, alpha * v),
    "sigmoid": lambda v, alpha: expit(v),
    "tanh": lambda v, alpha: np.tanh(v),
    "swish": lambda v, alpha: v * expit(v),
    "softplus": lambda v, alpha: np.logaddexp(0, v),
}

LAYOUTS = {"contiguous": torch.contiguous_format, "channels-last": torch.channels_last}


def random(*shape, seed=0, place="cpu", dtype=torch.float64):
    """Normal numbers, at least 0.1 from 0, so that a finite difference stays on one side of a kink."""
    x = torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return (x + 0.1 * x.sign()).to(place, dtype)


def close(y, expected, tolerance=1e-12):
    np.testing.assert_allclose(numpy(y), numpy(expected), rtol=tolerance, atol=tolerance)


def numpy(tensor):
    return np.asarray(tensor.detach().double().cpu()) if hasattr(tensor, "detach") else np.asarray(tensor, np.float64)


def upfirdn2d_oracle(x, f, up=1, down=1, padding=(0, 0, 0, 0), flip_filter=False, gain=1.0):
    """x [N,C,H,W], f [n] or [h,w] → float64 [N,C,H′,W′], empty where the filter does not fit."""
    x, f = numpy(x), numpy(f)
    f = np.outer(f, f) if f.ndim == 1 else f
    (ux, uy), (dx, dy) = ((v, v) if isinstance(v, int) else v for v in (up, down))
    x0, x1, y0, y1 = padding
    n, c, h, w = x.shape
    full = np.zeros((n, c, h * uy, w * ux))
    full[:, :, ::uy, ::ux] = x
    full = np.pad(full, [(0, 0), (0, 0), *((max(a, 0), max(b, 0)) for a, b in ((y0, y1), (x0, x1)))])
    full = full[:, :, max(-y0, 0) : full.shape[2] - max(-y1, 0), max(-x0, 0) : full.shape[3] - max(-x1, 0)]
    size = (h * uy + y0 + y1 - len(f) + 1, w * ux + x0 + x1 - f.shape[1] + 1)
    if min(size) < 1:
        return np.zeros((n, c, 0, 0))
    kernel = f[::-1, ::-1] if flip_filter else f
    planes = [convolve2d(plane, kernel, "valid")[::dy, ::dx] for plane in full.reshape(n * c, *full.shape[2:])]
    return gain * np.reshape(planes, (n, c, -(-size[0] // dy), -(-size[1] // dx)))


def bias_act_oracle(x, b, dim, act, alpha, gain, clamp):
    """clamp(gain · act(x + b)) with b [x.shape[dim]] or None."""
    x = numpy(x)
    if b is not None:
        shape = [1] * x.ndim
        shape[dim] = -1
        x = x + numpy(b).reshape(shape)
    value = gain * ACTIVATIONS[act](x, alpha)
    return value if clamp is None else np.clip(value, -clamp, clamp)


def demodulate_oracle(x, scale, b, alpha, gain):
    """gain · lrelu(x · scale + b) with scale [N,C], b [C]."""
    value = numpy(x) * numpy(scale)[:, :, None, None] + numpy(b)[:, None, None]
    return gain * ACTIVATIONS["lrelu"](value, alpha)


def adain_oracle(x, b, scale, shift, alpha, gain, eps):
    """Instance normalisation of gain · lrelu(x + b), then scale and shift [N,C]."""
    a = gain * ACTIVATIONS["lrelu"](numpy(x) + numpy(b)[:, None, None], alpha)
    normal = (a - a.mean((2, 3), keepdims=True)) / np.sqrt(a.var((2, 3), keepdims=True) + eps)
    return numpy(scale)[:, :, None, None] * normal + numpy(shift)[:, :, None, None]
