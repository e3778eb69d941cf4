"""Manifold k-same: the mean of k identity codes, plain or with its variance restored, and which style layers carry it.

Sums of codes are exact. Every float16 is a whole multiple of 2⁻²⁴, and float64 holds such multiples exactly below 2²⁹.
So a mean does not depend on the order, the pieces, the threads or the machine, as long as the absolute values add up
to less than 2²⁹: for codes of usual size (below 10) that is 50 million people.
"""

from __future__ import annotations

import hashlib
import hmac
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from ficgan.arrays import blocks
from ficgan.errors import UsageError

if TYPE_CHECKING:
    from torch import Tensor


Doubles = NDArray[np.float64]
CAP_PERCENTILE = 95.0  # no restored code lies farther from the centre than this percentage of the real ones

# Rows converted at a time, so that a memory-mapped bank stays on disk and a piece stays in the processor's cache.
CHUNK = 512


@dataclass(frozen=True, eq=False)
class KSameCode:
    """One k-same draw and what an audit needs to know of it."""

    w: NDArray[np.float32]  # [D], the code w_m, or the one with its variance restored to the share `psi`
    k: int
    psi: float
    commitment: str | None  # hash that binds the seed, see `commitment`; None for a short seed
    members_digest: str  # sha256 of the bank's digest and the members' indices
    attributes: str | None
    kind: dict[str, Any] | None = None  # of the source's, see `KindGroup.record`; None where nothing of it was kept


def mean_of(codes: NDArray[np.floating], index: NDArray[np.int64]) -> Doubles:
    """Mean of the chosen rows of codes [N,D], accumulated in float64: float64 [D]."""
    return np.asarray(means_of(codes, [index])[0])


def means_of(codes: NDArray[np.floating], draws: Sequence[NDArray[np.int64]]) -> Doubles:
    """Mean of the rows of codes [N,D] that each of n draws has chosen, in float64: [n,D]; shared rows are read once."""
    member = np.zeros((len(draws), len(codes)), bool)
    for number, index in enumerate(draws):
        member[number, index] = True
    total = np.zeros((len(draws), codes.shape[1]), np.float64)
    drawn = np.flatnonzero(member.any(0))
    for part in blocks(len(drawn), CHUNK):
        total += member[:, drawn[part]].astype(np.float64) @ codes[drawn[part]].astype(np.float64)
    return total / np.array([[len(index)] for index in draws])


def distances_to(centre: Doubles, codes: NDArray[np.floating], index: NDArray[np.int64]) -> Doubles:
    """Euclidean distance of the chosen rows of codes [N,D] from a centre [D], computed in float64: float64 [M]."""
    parts = (codes[index[part]].astype(np.float32, copy=False) for part in blocks(len(index), CHUNK))
    return np.concatenate([np.linalg.norm(part - centre, axis=1) for part in parts])


def check_k(k: int, eligible: int, total: int, attributes: str | None) -> None:
    if isinstance(k, bool) or int(k) != k or k < 2:
        raise UsageError(f"k is {k}; k-anonymity needs a whole number of at least 2")
    if k > total:
        raise UsageError(f"k is {k}, but the bank has {total} people; lower k or use a larger bank")
    if k > eligible:
        remedy = "lower k or loosen the attributes" if eligible >= 2 else "loosen the attributes"
        raise UsageError(f"k is {k}, but only {eligible} of the bank's {total} people have {attributes!r}; {remedy}")


def check_psi(psi: float) -> float:
    if not (math.isfinite(psi) and psi >= 0):
        raise UsageError(f"psi is {psi}; give a number from 0 (the plain mean) to 1 (the spread of real people)")
    return float(psi)


def draw_members(n: int, k: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """k different numbers of 0 … n − 1, ascending, every set equally likely; time and memory of order k.

    It uses only the bit generator's raw output, whose stream NumPy keeps across versions, so a draw can be repeated.
    """
    if k > n // 2:
        keep = np.ones(n, bool)
        if k < n:
            keep[draw_members(n, n - k, rng)] = False
        return np.flatnonzero(keep).astype(np.int64)
    picks = np.zeros(0, np.int64)
    while True:  # the first k different ones of a sequence of independent draws are a draw without replacement
        fresh = rng.bit_generator.random_raw(k + k // 2 + 16) % np.uint64(n)
        picks = np.concatenate([picks, fresh.astype(np.int64)])
        place, first = np.arange(len(picks)), np.empty(n, np.int64)
        first[picks[::-1]] = place[::-1]  # of a number that was picked twice the last one written stays: the earlier
        different = picks[first[picks] == place]
        if len(different) >= k:
            return np.sort(different[:k])


def restore_variance(w_m: Doubles, centre: Doubles, k: int, psi: float, cap: float, people: int) -> NDArray[np.float32]:
    """w̄ + ψ·√(k·(N − 1)/(N − k))·(w_m − w̄), its distance from w̄ at most `cap`; ψ = 0 is w_m itself, untouched.

    w_m is the mean of the k codes drawn, the centre w̄ that of the group they were drawn from. The mean of k codes has
    1/k of their variance, so that all plain means look alike, and drawing them without replacement from N people leaves
    (N − k)/(N − 1) of that. Undoing both gives it ψ² of the variance, and every one of the k the same small weight. No
    more than half of what drawing takes is undone: beyond k = N/2 the few who were not drawn would show.
    """
    if psi == 0:
        return w_m.astype(np.float32)
    left = max((people - k) / max(people - 1, 1), 0.5)
    deviation = psi * math.sqrt(k / left) * (w_m - centre)
    length = float(np.linalg.norm(deviation))
    if length > cap:
        deviation *= cap / length
    return (centre + deviation).astype(np.float32)


@lru_cache(maxsize=64)
def _stretch(seed: str, bank_digest: str) -> bytes:
    # Slow on purpose (about 50 ms): every guess at the seed, against the commitment or against a draw, costs as much.
    salt = b"ficgan k-same seed/" + bank_digest.encode()
    return hashlib.scrypt(seed.encode(), salt=salt, n=2**14, r=8, p=1, dklen=32)


SHORT_SEED = 56  # bits of a seed that could be guessed


def commitment(seed: int | str, bank_digest: str) -> str | None:
    """Hash that binds the seed of the draws without stating it; None for a short seed.

    The hash must repeat, so it has no random salt, and a short seed could be found by trying (each trial costs some 50
    ms): below 56 bits, or 16 characters where it is no number, none is stated.
    """
    text = str(seed).strip()
    if int(text).bit_length() <= SHORT_SEED if text.lstrip("+-").isdecimal() else len(text) < 16:
        return None
    return hmac.new(_stretch(str(seed), bank_digest), b"commitment", hashlib.sha256).hexdigest()


def keyed_generator(seed: int | str, bank_digest: str, key: str, k: int, group: str) -> np.random.Generator:
    """Generator for one person's draw: the same arguments give the same draw, others an independent one."""
    message = "\0".join(("draw", key, str(k), group)).encode()
    mac = hmac.new(_stretch(str(seed), bank_digest), message, hashlib.sha256).digest()
    return np.random.Generator(np.random.Philox(key=int.from_bytes(mac[:16], "little")))


def members_digest(bank_digest: str, index: NDArray[np.int64]) -> str:
    """sha256 over the bank's digest and the ascending members of a draw."""
    return hashlib.sha256(bank_digest.encode() + np.sort(index).astype("<i8").tobytes()).hexdigest()


W = TypeVar("W", "Tensor", NDArray[np.float32])


def mix_layers(
    w_s: Tensor, w_m: Tensor, *, num_layers: int, layer: int | None = None, band: tuple[int, int] | None = None
) -> Tensor:
    """Give every style layer the source's code or the k-same code [B,D]: [B,L,D], entry [:, n − 1] is style layer n.

    Args:
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
            raise UsageError(f"layers {first}-{last} do not exist: L = {num_layers} here; use 1-{num_layers}")
        return first, last
    assert layer is not None
    if not 0 <= layer < num_layers:
        raise UsageError(f"layer {layer} is out of range: L = {num_layers}; use 0 (strongest) to {num_layers - 1}")
    return layer + 1, num_layers


def parse_band(text: str | tuple[int, int], num_layers: int) -> tuple[int, int]:
    """Read a band of style layers, "5-8" or "5"; a pair is checked and given back."""
    if isinstance(text, str):
        match = re.fullmatch(r"\s*(\d+)\s*(?:-\s*(\d+)\s*)?", text, re.ASCII)
        if not match:
            raise UsageError(f"layers {text!r} cannot be read; write first-last, such as 1-{num_layers}")
        text = int(match[1]), int(match[2] or match[1])
    return k_same_layers(num_layers, None, (text[0], text[1]))


def exemplar(w_m: W, w_t: W, alpha: float) -> W:
    """w_d = w_m + α·(w_t − w_m): codes [B,D] moved towards an exemplar's (FICGAN, eq. 5); α = 1 is its own."""
    return w_m + alpha * (w_t - w_m)
