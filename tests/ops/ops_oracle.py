"""Loop oracles in plain Python and float64, written from the definitions and from nothing else."""

from __future__ import annotations

import math

import numpy as np


def upfirdn2d_loop(x, f, up=1, down=1, padding=(0, 0, 0, 0), flip_filter=False, gain=1.0):
    """x [N,C,H,W], f [n] or [h,w] → float64 array, one output sample at a time."""
    x, f = np.asarray(x, np.float64), np.asarray(f, np.float64)
    f = np.outer(f, f) if f.ndim == 1 else f
    ux, uy = (up, up) if isinstance(up, int) else up
    dx, dy = (down, down) if isinstance(down, int) else down
    x0, x1, y0, y1 = padding
    n, c, h, w = x.shape
    fh, fw = f.shape
    padded_h, padded_w = h * uy + y0 + y1, w * ux + x0 + x1

    def sample(b, k, row, col):  # the zero-inserted, padded signal
        row, col = row - y0, col - x0
        if row % uy or col % ux or not 0 <= row // uy < h or not 0 <= col // ux < w:
            return 0.0
        return x[b, k, row // uy, col // ux]

    rows, cols = range(0, padded_h - fh + 1, dy), range(0, padded_w - fw + 1, dx)
    out = np.zeros((n, c, len(rows), len(cols)))
    for b in range(n):
        for k in range(c):
            for i, row in enumerate(rows):
                for j, col in enumerate(cols):
                    total = 0.0
                    for p in range(fh):
                        for q in range(fw):
                            tap = f[p, q] if flip_filter else f[fh - 1 - p, fw - 1 - q]
                            total += tap * sample(b, k, row + p, col + q)
                    out[b, k, i, j] = total * gain
    return out


def act_loop(value, act, alpha):
    """One activation of one number."""
    return {
        "linear": lambda v: v,
        "relu": lambda v: max(v, 0.0),
        "lrelu": lambda v: v if v > 0 else alpha * v,
        "sigmoid": lambda v: 1 / (1 + math.exp(-v)),
        "tanh": math.tanh,
        "swish": lambda v: v / (1 + math.exp(-v)),
        "softplus": lambda v: math.log1p(math.exp(v)),
    }[act](value)
