"""Which style layers carry the source's code and which the new one, the exemplar, and what an audit says of them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from ficgan.errors import UsageError

from .ksame import CAP_PERCENTILE, commitment

if TYPE_CHECKING:
    import torch

    from .bank import IdentityBank

TARGETS = ("bank", "exemplar", "swap")
W = TypeVar("W", "torch.Tensor", NDArray[np.float32])


def mix_layers(
    w_s: torch.Tensor, w_m: torch.Tensor, *, num_layers: int, layer: int | None = None,
    band: tuple[int, int] | None = None,
) -> torch.Tensor:  # fmt: skip
    """Give every style layer the source's code or the k-same code: [B,L,512], entry [:, n − 1] is style layer n.

    Args:
        w_s, w_m: [B,512] codes of the source faces, and those that replace them.
        num_layers: L of the checkpoint.
        layer: i in 0 … L − 1: layers 1 … i keep w_s, i + 1 … L take w_m. 0 is the strongest.
        band: (first, last), 1 ≤ first ≤ last ≤ L: exactly these layers take w_m.

    Source: FICGAN, "Controlling Degree of De-identification" (layer) and Figure A (band).
    """
    first, last = k_same_layers(num_layers, layer, band)
    w = w_s.unsqueeze(1).repeat(1, num_layers, 1)
    w[:, first - 1 : last] = w_m.unsqueeze(1)
    return w


def k_same_layers(num_layers: int, layer: int | None, band: tuple[int, int] | None) -> tuple[int, int]:
    """First and last style layer that take w_m, numbered from 1; arguments and errors as of `mix_layers`."""
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
    """Read a band of style layers, "5-8" or "5"; a pair is checked and given back."""
    if isinstance(text, str):
        match = re.fullmatch(r"\s*(\d+)\s*(?:-\s*(\d+)\s*)?", text, re.ASCII)
        if not match:
            raise UsageError(
                f"layers {text!r} cannot be read; write first-last, such as 1-{num_layers} (L = {num_layers})"
            )
        text = int(match[1]), int(match[2] or match[1])
    return k_same_layers(num_layers, None, (text[0], text[1]))


def exemplar(w_m: W, w_t: W, alpha: float) -> W:
    """w_d = w_m + α·(w_t − w_m), the k-same code moved towards an exemplar the user supplied (FICGAN, eq. 5).

    Args:
        w_m: [B,512] k-same codes.
        w_t: [B,512] or [512] code of the exemplar, never of a bank member.
        alpha: 0 stays at w_m, 1 is the exemplar itself: an identity swap, no longer k-anonymous.
    """
    return w_m + alpha * (w_t - w_m)


def audit(
    bank: IdentityBank, *, k: int, psi: float | Sequence[float], num_layers: int, seed: int | str,
    alpha: float | None = None, layer: int | None = None, band: tuple[int, int] | None = None,
    attributes: str | None = None, directions: Sequence[str] = (), target: str = "bank",
) -> dict[str, Any]:  # fmt: skip
    """State, ready for JSON, what was drawn, which layers carry it, and what k does not cover.

    Args:
        psi: ψ of the draws, one or all that occurred.
        seed: of the draws; only its commitment is stated.
        alpha: share of the exemplar in eq. 5, None without one.
        layer, band: as of `mix_layers`.
        attributes: group drawn from.
        directions: attribute directions added, such as "Female=0.7".
        target: where the new identity comes from: "bank", "exemplar" (eq. 5) or "swap" (w_t itself).
    """
    if target not in TARGETS:
        raise UsageError(f"audit: unknown target {target!r}; use one of {', '.join(TARGETS)}")
    first, last = k_same_layers(num_layers, layer, band)
    new = list(range(first, last + 1))
    source = [n for n in range(1, num_layers + 1) if n not in new]
    swap = target == "swap"
    return {
        "k": None if swap else k,
        "psi": None if swap else psi if isinstance(psi, int | float) else list(psi),
        "psi_cap_percentile": CAP_PERCENTILE,
        "alpha": alpha if target == "exemplar" else None,
        "w_t": None if target == "bank" else "an image supplied by the user, not a member of the bank",
        "target": target,
        "attributes": attributes or None,
        "directions": list(directions),
        "layers": {
            "total": num_layers, "k_same": [] if swap else new, "exemplar": new if swap else [], "source": source,
        },
        "bank": {
            "people": len(bank),
            "k_counts": "pictures" if bank.provenance.get("identities_known") is False else "people",
            "eligible": bank.eligible(attributes),
            "digest": bank.digest,
            "digest_verified": bank.verified,
            "provenance": bank.provenance,
        },
        "seed_commitment": commitment(seed, bank.digest),
        "not_covered": _statement(new, source, target, alpha) + ("" if swap else _counted(bank)),
    }


def _statement(new: list[int], source: list[int], target: str, alpha: float | None) -> str:
    layers = f"Style layers {_span(new)} carry"
    if target == "swap":
        carried = f"{layers} one person's code, the user's exemplar: this is no k-anonymity."
    elif target == "exemplar" and alpha:
        carried = (
            f"{layers} a k-same code moved by alpha = {alpha:g} towards one person, the user's exemplar: k does not "
            "protect that person."
        )
    else:
        carried = f"{layers} a k-same code, which holds nothing of the source."
    kept = f"the spatial code z_non and style layers {_span(source)} come" if source else "the spatial code z_non comes"
    return f"{carried} Not covered by k: {kept} from the source and can leak its identity."


def _counted(bank: IdentityBank) -> str:
    if bank.provenance.get("identities_known") is False:
        return " k counts pictures, not people: the bank was built without identities."
    unknown = bank.provenance.get("images_of_unknown_people")
    return f" k counts people, but {unknown} pictures of unknown people as a person each." if unknown else ""


def _span(layers: list[int]) -> str:
    """[1, 2, 3, 7] → "1-3, 7"."""
    starts = [n for n in layers if n - 1 not in layers]
    ends = [n for n in layers if n + 1 not in layers]
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in zip(starts, ends, strict=True))
