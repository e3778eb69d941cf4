"""How well attackers give faces back: likeness to the clear faces, and strangers told from people known."""

from __future__ import annotations

from functools import lru_cache, partial

import numpy as np
from numpy.typing import NDArray

from ficgan.anonymizers import Faces, generator
from ficgan.lab.attackers import Read
from ficgan.lab.attacks.revelio import choose_threshold, ood_curve, retrieve
from ficgan.lab.bench import Bench, content
from ficgan.lab.metrics import Bootstrap, Sample, pictures
from ficgan.lab.metrics.pictures import Perception, SqueezeNet, frechet_floor
from ficgan.lab.metrics.utility import LEAST_IMAGES, Judges, frechet_figure, psnr_figure
from ficgan.lab.readers import Embeddings
from ficgan.lab.results import Figure

PSNR, SSIM = "PSNR", "SSIM"
LPIPS_LIKE, FD_LIKE, IDD = "LPIPS-like (SqueezeNet)", "FD-like (SqueezeNet)", "IDD"
LPIPS, FID = "LPIPS", "FID"
CODES, CODE = 2**30, 0.9e6  # Bytes of SqueezeNet's codes of the clear faces that are kept in memory, and of one face's


@lru_cache(maxsize=1)
def _judges() -> Judges:
    return Judges.find()


def fidelity_figures(bench: Bench, rows: NDArray[np.int64], faces: Faces) -> tuple[Figure, ...]:
    """Likeness to the clear faces within the replaced square, without IDD, of rows int64 [N]; intervals by people."""
    if not bench.reversal_metrics:
        return ()
    guess, clear = bench.part(rows, faces.images).regions(), bench.part(rows).regions()
    side, sample = guess.images.shape[1], bench.sample(rows)
    both = [content(guess), content(clear)]
    ratio = bench.store.array(["psnr", *both], lambda: pictures.psnr(guess.images, clear.images))
    out = [psnr_figure(PSNR, ratio, sample)]
    if pictures.scales(side):
        alike = bench.store.array(["ssim", *both], lambda: pictures.ssim(guess.images, clear.images))
        out.append(sample.mean(SSIM, alike))
    else:
        out.append(sample.none(SSIM, f"squares of {side} pixels are smaller than its window"))
    return (*out, *_perceived(bench, guess, clear, sample))


def identity_distance(a: Embeddings, b: Embeddings, sample: Sample) -> Figure:
    """Mean angle in radians between embeddings [N,D] of guesses and of the clear faces (IDD; Revelio, §5.2)."""
    return sample.mean(IDD, angles(a, b))


def angles(a: Embeddings, b: Embeddings) -> NDArray[np.float64]:
    """Angles [N] in radians, 0 to π, of pairs of vectors [N,D]; exact also where they are almost parallel."""
    x, y = (one / np.linalg.norm(one, axis=1, keepdims=True).clip(1e-12) for one in map(np.float64, (a, b)))
    out: NDArray[np.float64] = 2 * np.arctan2(np.linalg.norm(x - y, axis=1), np.linalg.norm(x + y, axis=1))
    return out


def _perceived(bench: Bench, guess: Faces, clear: Faces, sample: Sample) -> list[Figure]:
    judges, out = _judges(), []
    if judges.lpips is not None:
        network = judges.lpips
        key = ["lpips", network.network, content(guess), content(clear)]
        values = bench.store.array(key, lambda: network.distance(guess.images, clear.images))
        out.append(sample.mean(LPIPS, values, f"backbone {network.network}"))
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
        return [*out, *(sample.none(name, why) for name in (LPIPS_LIKE, FD_LIKE))]

    def look() -> NDArray[np.float32]:
        seen = squeezenet.read(guess.images, clear=clear.images, known=_of_clear(squeezenet, clear))
        distances = np.full(len(guess), np.nan) if seen.distances is None else seen.distances
        return np.column_stack([distances, seen.features]).astype(np.float32)

    prefix = ["squeezenet", squeezenet.size, squeezenet.measures]
    seen = bench.store.array([*prefix, content(guess), content(clear)], look)
    before = bench.store.array([*prefix, content(clear)], lambda: _of_clear(squeezenet, clear).features)
    note = "not the published one" if squeezenet.measures else judges.missing["distances"]
    out.append(sample.mean(LPIPS_LIKE, seen[:, 0], note))
    return [*out, _frechet(FD_LIKE, seen[:, 1:], before)]


_READ: dict[str, Perception] = {}  # What SqueezeNet saw in the clear faces of the set at work: one set at a time


def _of_clear(squeezenet: SqueezeNet, clear: Faces) -> Perception:
    key = content(clear)
    if key not in _READ:
        _READ.clear()
        keep = squeezenet.measures and len(clear) * CODE <= CODES
        _READ[key] = squeezenet.read(clear.images, keep=keep)
    return _READ[key]


def _frechet(metric: str, guess: NDArray[np.float32], clear: NDArray[np.float32]) -> Figure:
    if len(guess) < LEAST_IMAGES:
        few = f"{len(guess)} images are too few; give at least {LEAST_IMAGES}"
        return Figure(metric, None, unit="images", note=few)
    return frechet_figure(metric, clear, guess, frechet_floor(clear))


# -- strangers: people whom nobody enrolled --------------------------------------------------------------------------

_LEAST = 2  # People in each half, enrolled and not, by whom a threshold is chosen
_POINTS = 200  # Of a curve


def stranger_figures(
    read: Read, known: NDArray[np.int64], bootstrap: Bootstrap
) -> tuple[tuple[Figure, ...], list[list[float]]]:
    """How well the least distance separates strangers (positive) from `known` people (Revelio, §4.3, §5.5).

    The threshold of each half of the people has the best balanced accuracy on the other half. Returns figures, and the
    curve as [FPR, TPR] points.
    """
    kept, stranger = np.isin(read.enrolled, known), ~np.isin(read.people, known)
    halves_ = _both_halves(read.people, stranger, bootstrap.seed)
    if halves_ is None or not kept.any():
        why = f"fewer than {2 * _LEAST} people are enrolled, or strangers, and no threshold can be chosen"
        return tuple(Figure(f"stranger {what}", None, note=why) for what in ("TPR", "FPR", "accuracy", "AUC")), []
    least = retrieve(read.candidates, read.gallery[kept], read.enrolled[kept], read.metric).lowest.astype(np.float64)
    flagged, thresholds = np.zeros(len(least), bool), []
    for half in (halves_, ~halves_):  # decided by the threshold of the other half
        thresholds.append(choose_threshold(least[~half & ~stranger], least[~half & stranger]))
        flagged[half] = least[half] > thresholds[-1]
    curve = ood_curve(least[~stranger], least[stranger])
    note = "thresholds are chosen on the other half of the people"
    sample = Sample(read.people, bootstrap)
    figures = (
        sample.share("stranger TPR", np.where(stranger, flagged, np.nan), note),
        sample.share("stranger FPR", np.where(stranger, np.nan, flagged), note),
        sample.share("stranger accuracy", flagged == stranger, note),
        Figure("stranger AUC", curve.auc, n=len(least), unit="images"),
        Figure(
            "stranger threshold",
            float(np.mean(thresholds)),
            n=len(least),
            unit="images",
            note=f"the mean of {min(thresholds):.4g} and {max(thresholds):.4g}",
        ),
    )
    points = [[float(f"{x:.5g}"), float(f"{y:.5g}")] for x, y in zip(curve.fpr[::-1], curve.tpr[::-1], strict=True)]
    step = max(1, -(-len(points) // _POINTS))
    return figures, [*points[:-1:step], points[-1]]


def _both_halves(people: NDArray[np.int64], stranger: NDArray[np.bool_], seed: int) -> NDArray[np.bool_] | None:
    """[P] probes of one half of the people; both halves hold strangers and others. None: there are too few."""
    chosen: list[NDArray[np.int64]] = []
    for mask in (stranger, ~stranger):
        who = generator(seed, "threshold").permutation(np.unique(people[mask]))
        if len(who) < 2 * _LEAST:
            return None
        chosen.append(who[: len(who) // 2])
    return np.isin(people, np.concatenate(chosen))
