"""Which style layers carry the source's code and which the new one, and the step towards an exemplar."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from numpy.typing import NDArray

from ficgan.errors import UsageError

if TYPE_CHECKING:
    import torch

W = TypeVar("W", "torch.Tensor", NDArray[np.float32])


def mix_layers(
    w_s: torch.Tensor,
    w_m: torch.Tensor,
    *,
    num_layers: int,
    layer: int | None = None,
    band: tuple[int, int] | None = None,
) -> torch.Tensor:
    """Give every style layer the source's code or the k-same code.

    Args:
        w_s: [B,512] codes of the source faces.
        w_m: [B,512] codes that replace them.
        num_layers: L of the checkpoint.
        layer: i in 0 … L − 1: layers 1 … i keep w_s, i + 1 … L take w_m. 0 is the strongest.
        band: (first, last), 1 ≤ first ≤ last ≤ L: exactly these layers take w_m.

    Returns:
        [B,L,512]; entry [:, n − 1] is style layer n.

    Raises:
        UsageError: a layer out of range, or not exactly one of `layer` and `band`.

    Source:
        FICGAN, "Controlling Degree of De-identification" (layer) and Figure A (band).
    """
    first, last = k_same_layers(num_layers, layer, band)
    w = w_s.unsqueeze(1).repeat(1, num_layers, 1)
    w[:, first - 1 : last] = w_m.unsqueeze(1)
    return w


def k_same_layers(num_layers: int, layer: int | None, band: tuple[int, int] | None) -> tuple[int, int]:
    """First and last style layer that take w_m, numbered from 1.

    Raises:
        UsageError: as of `mix_layers`.
    """
    if (layer is None) == (band is None):
        raise UsageError("give either a layer or a band of layers, and not both")
    if band is not None:
        first, last = band
        if not 1 <= first <= last <= num_layers:
            raise UsageError(
                f"layers {first}-{last} do not exist: this checkpoint has L = {num_layers}; use 1-{num_layers}"
            )
        return first, last
    assert layer is not None
    if not 0 <= layer < num_layers:
        raise UsageError(
            f"layer {layer} is out of range: this checkpoint has L = {num_layers} style layers; "
            f"use 0 (strongest) to {num_layers - 1}"
        )
    return layer + 1, num_layers


def parse_band(text: str | tuple[int, int], num_layers: int) -> tuple[int, int]:
    """Read a band of style layers, "5-8" or "5".

    Args:
        text: as above; a pair is checked and given back.
        num_layers: L of the checkpoint.

    Returns:
        (first, last), 1 ≤ first ≤ last ≤ L.

    Raises:
        UsageError: another form, or layers the checkpoint does not have.
    """
    if isinstance(text, str):
        match = re.fullmatch(r"\s*(\d+)\s*(?:-\s*(\d+)\s*)?", text, re.ASCII)
        if not match:
            raise UsageError(
                f"layers {text!r} cannot be read; write first-last, such as 1-{num_layers} (L = {num_layers})"
            )
        text = int(match[1]), int(match[2] or match[1])
    return k_same_layers(num_layers, None, (text[0], text[1]))


def exemplar(w_m: W, w_t: W, alpha: float) -> W:
    """w_d = w_m + α·(w_t − w_m), the k-same code moved towards an exemplar the user supplied.

    Args:
        w_m: [B,512] k-same codes.
        w_t: [B,512] or [512] code of the exemplar, never of a bank member.
        alpha: 0 stays at w_m, 1 is the exemplar itself, which is an identity swap and no longer k-anonymous.

    Returns:
        [B,512].

    Source:
        FICGAN, eq. 5.
    """
    return w_m + alpha * (w_t - w_m)
