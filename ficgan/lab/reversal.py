"""How far what an attacker gives back resembles the clear faces, within the replaced square."""

from __future__ import annotations

from functools import lru_cache, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ficgan.anonymizers import Faces
from ficgan.lab.bench import Bench, content
from ficgan.lab.metrics import Metric, perceptual
from ficgan.lab.metrics.intervals import Bootstrap, percentiles, ratios
from ficgan.lab.metrics.perceptual import Perception, SqueezeNet, frechet_distance, frechet_floor
from ficgan.lab.metrics.utility import Judges
from ficgan.lab.readers import Embeddings
from ficgan.lab.results import Figure

__all__ = ["REVERSAL", "fidelity_figures", "identity_distance", "mean_figure", "per_person"]

PSNR, SSIM = "PSNR", "SSIM"
LPIPS_LIKE, FD_LIKE, IDD = "LPIPS-like (SqueezeNet)", "FD-like (SqueezeNet)", "IDD"
LPIPS, FID = "LPIPS", "FID"
_REVELIO = "Revelio, §5.2"

REVERSAL: tuple[Metric, ...] = (
    Metric(PSNR, "peak signal-to-noise ratio of the guess to the clear face, dB", "privacy", "low", _REVELIO),
    Metric(SSIM, "SSIM of the guess to the clear face", "privacy", "low", _REVELIO),
    Metric(LPIPS, "LPIPS of the guess to the clear face", "privacy", "high", _REVELIO),
    Metric(LPIPS_LIKE, "a stand-in for LPIPS; do not compare with papers", "privacy", "high"),
    Metric(FID, "Fréchet Inception distance of the guesses to the clear faces", "privacy", "high", _REVELIO),
    Metric(FD_LIKE, "a stand-in for FID; do not compare with papers", "privacy", "high"),
    Metric(IDD, "angle between the judge's embeddings of guess and clear face, radians", "privacy", "high", _REVELIO),
)
"""Metrics of what is given back; "low" is better for whoever anonymises where likeness is meant."""

_LEAST = 4
"""Images for a Fréchet distance."""
CODES, CODE = 2**30, 0.9e6
"""Bytes of SqueezeNet's codes of the clear faces that are kept in memory, and of one face's."""


@lru_cache(maxsize=1)
def _judges() -> Judges:
    return Judges.find()


def fidelity_figures(bench: Bench, rows: NDArray[np.int64], faces: Faces) -> tuple[Figure, ...]:
    """Every metric of `REVERSAL` but IDD, which each judge has of its own; within the replaced square.

    Args:
        bench: its clear faces; what is computed is kept in its store.
        rows: int64 [N], which faces these are.
        faces: N crops as an attacker gives them back, or anonymised ones.

    Returns:
        Means with 95 % intervals by people; empty where the bench does not ask for them.
    """
    if not bench.reversal_metrics:
        return ()
    guess, clear = bench.part(rows, faces.images).regions(), bench.part(rows).regions()
    side, people = guess.images.shape[1], bench.people[rows]
    bootstrap = Bootstrap(bench.resamples, bench.seed)

    both = [content(guess), content(clear)]
    ratio = bench.store.array(["psnr", *both], lambda: perceptual.psnr(guess.images, clear.images))
    equal = int(np.isposinf(ratio).sum())
    note = f"{equal} of {len(ratio)} are equal to the clear faces (infinite) and left out" if equal else ""
    out = [mean_figure(PSNR, np.where(np.isinf(ratio), np.nan, ratio), people, bootstrap, note)]
    if perceptual.scales(side):
        alike = bench.store.array(["ssim", *both], lambda: perceptual.ssim(guess.images, clear.images))
        out.append(mean_figure(SSIM, alike, people, bootstrap))
    else:
        out.append(Figure(SSIM, None, unit="images", note=f"squares of {side} pixels are smaller than its window"))
    return (*out, *_perceived(bench, guess, clear, people, bootstrap))


def identity_distance(a: Embeddings, b: Embeddings, people: NDArray[np.int64], bootstrap: Bootstrap) -> Figure:
    """Mean angle in radians between embeddings [N,D] of guesses and of the clear faces, by the people [N] they show.

    Source: Revelio, §5.2 (IDD).
    """
    return mean_figure(IDD, angles(a, b), people, bootstrap)


def angles(a: Embeddings, b: Embeddings) -> NDArray[np.float64]:
    """Angles [N] in radians, 0 to π, of pairs of vectors [N,D]; exact also where they are almost parallel."""
    x, y = (one / np.linalg.norm(one, axis=1, keepdims=True).clip(1e-12) for one in map(np.float64, (a, b)))
    out: NDArray[np.float64] = 2 * np.arctan2(np.linalg.norm(x - y, axis=1), np.linalg.norm(x + y, axis=1))
    return out


def mean_figure(
    metric: str, values: NDArray[np.float64], people: NDArray[np.int64], bootstrap: Bootstrap, note: str = ""
) -> Figure:
    """The mean of the finite values [N] of images, with an interval by resampling the people [N] in them."""
    used = np.isfinite(values)
    if not used.any():
        return Figure(metric, None, unit="images", note=note or "no image has it")
    sums, counts = per_person(values[used], people[used])
    drawn = bootstrap.weights(len(sums))
    low, high = percentiles(ratios(drawn, sums, counts)) if len(sums) > 1 else (None, None)
    return Figure(metric, float(np.mean(values[used])), low, high, int(used.sum()), "images", note)


def per_person(values: NDArray[Any], people: NDArray[np.int64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Values [N] of images added up for each of the people [N] in them, and how many images each has; [I] both."""
    _, index = np.unique(people, return_inverse=True)
    sums = np.bincount(index, weights=values.astype(np.float64))
    return sums.astype(np.float64), np.bincount(index).astype(np.float64)


def _perceived(
    bench: Bench, guess: Faces, clear: Faces, people: NDArray[np.int64], bootstrap: Bootstrap
) -> list[Figure]:
    """LPIPS and FID where their networks are here, and their stand-ins."""
    judges, out = _judges(), []
    if judges.lpips is not None:
        network = judges.lpips
        key = ["lpips", network.network, content(guess), content(clear)]
        values = bench.store.array(key, lambda: network.distance(guess.images, clear.images))
        out.append(mean_figure(LPIPS, values, people, bootstrap, f"backbone {network.network}"))
    if judges.inception is not None:
        inception = judges.inception
        seen, before = (
            bench.store.array(["inception", content(one)], partial(inception.features, one.images))
            for one in (guess, clear)
        )
        out.append(_frechet(FID, seen, before))
    squeezenet = judges.squeezenet
    if squeezenet is None:
        why = judges.missing["squeezenet"]
        return [*out, *(Figure(name, None, unit="images", note=why) for name in (LPIPS_LIKE, FD_LIKE))]

    def look() -> NDArray[np.float32]:
        seen = squeezenet.read(guess.images, clear=clear.images, known=_of_clear(squeezenet, clear))
        distances = np.full(len(guess), np.nan) if seen.distances is None else seen.distances
        return np.column_stack([distances, seen.features]).astype(np.float32)

    told = [squeezenet.size, squeezenet.measures]
    seen = bench.store.array(["squeezenet", *told, content(guess), content(clear)], look)
    before = bench.store.array(["squeezenet", *told, content(clear)], lambda: _of_clear(squeezenet, clear).features)
    note = "not the published one" if squeezenet.measures else judges.missing["distances"]
    out.append(mean_figure(LPIPS_LIKE, seen[:, 0].astype(np.float64), people, bootstrap, note))
    return [*out, _frechet(FD_LIKE, seen[:, 1:], before)]


_READ: dict[str, Perception] = {}
"""What SqueezeNet saw in the clear faces of the set at work: one set at a time."""


def _of_clear(squeezenet: SqueezeNet, clear: Faces) -> Perception:
    key = content(clear)
    if key not in _READ:
        _READ.clear()
        keep = squeezenet.measures and len(clear) * CODE <= CODES
        _READ[key] = squeezenet.read(clear.images, keep=keep)
    return _READ[key]


def _frechet(metric: str, guess: NDArray[np.float32], clear: NDArray[np.float32]) -> Figure:
    if len(guess) < _LEAST:
        return Figure(metric, None, unit="images", note=f"{len(guess)} images are too few; give at least {_LEAST}")
    note = f"biased upwards at small n: two halves of the clear faces are {frechet_floor(clear):.4g} apart"
    return Figure(metric, frechet_distance(guess, clear), n=len(guess), unit="images", note=note)
