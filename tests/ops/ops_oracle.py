"""What the ops compute, by NumPy and SciPy in float64, written from the definitions and from nothing else."""

from __future__ import annotations

import numpy as np
import torch
from scipy.signal import convolve2d

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
    """x [N,C,H,W], f [n] → float64 [N,C,H′,W′], empty where the filter does not fit."""
    x, f = numpy(x), numpy(f)
    x0, x1, y0, y1 = padding
    n, c, h, w = x.shape
    full = np.zeros((n, c, h * up, w * up))
    full[:, :, ::up, ::up] = x
    full = np.pad(full, [(0, 0), (0, 0), *((max(a, 0), max(b, 0)) for a, b in ((y0, y1), (x0, x1)))])
    full = full[:, :, max(-y0, 0) : full.shape[2] - max(-y1, 0), max(-x0, 0) : full.shape[3] - max(-x1, 0)]
    size = (h * up + y0 + y1 - len(f) + 1, w * up + x0 + x1 - len(f) + 1)
    if min(size) < 1:
        return np.zeros((n, c, 0, 0))
    kernel = np.outer(f, f)[::-1, ::-1] if flip_filter else np.outer(f, f)
    planes = [convolve2d(plane, kernel, "valid")[::down, ::down] for plane in full.reshape(n * c, *full.shape[2:])]
    return gain * np.reshape(planes, (n, c, -(-size[0] // down), -(-size[1] // down)))


def lrelu(v, alpha=0.2):
    return np.where(v > 0, v, alpha * v)


def bias_act_oracle(x, b, act, gain):
    """gain · act(x + b) with b [x.shape[1]] or None."""
    x = numpy(x)
    if b is not None:
        x = x + numpy(b).reshape(-1, *[1] * (x.ndim - 2))
    return gain * (lrelu(x) if act == "lrelu" else x)


def demodulate_oracle(x, scale, b):
    """√2 · lrelu(x · scale + b) with scale [N,C], b [C]."""
    return np.sqrt(2) * lrelu(numpy(x) * numpy(scale)[:, :, None, None] + numpy(b)[:, None, None])


def adain_oracle(x, b, scale, shift):
    """Instance normalisation of √2 · lrelu(x + b), then scale and shift [N,C]."""
    a = np.sqrt(2) * lrelu(numpy(x) + numpy(b)[:, None, None])
    normal = (a - a.mean((2, 3), keepdims=True)) / np.sqrt(a.var((2, 3), keepdims=True) + 1e-5)
    return numpy(scale)[:, :, None, None] * normal + numpy(shift)[:, :, None, None]
