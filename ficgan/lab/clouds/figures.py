"""The thesis' figures of one method at one degree, with intervals by the bootstrap over people."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ficgan.lab.clouds.reading import DISTORTION, Record
from ficgan.lab.metrics.geometry import box_iou, landmark_distance
from ficgan.lab.metrics.intervals import Bootstrap, Sample
from ficgan.lab.metrics.perceptual import frechet_distance, frechet_floor
from ficgan.lab.metrics.privacy import auc, cmc, eer, leak, rank
from ficgan.lab.metrics.scores import Scores
from ficgan.lab.results import Figure, Trial, Utility

__all__ = ["METRICS", "UNITS", "mu_privacy", "mu_utility", "privacy", "trial", "utility", "value_of"]

METRICS: dict[str, str] = {
    "AUC": "probability that a genuine score is above an impostor's; ½ is chance (§5.3.1)",
    "EER": "error rate at which as many impostors pass as genuine ones fail; ½ is chance",
    "leak": "2·|AUC − ½|: below ½ a score leaks as well as above",
    "rank-1": "share of probes whose nearest person in the gallery is theirs (§5.3.1)",
    "failures to acquire": "share of probes in which the detector finds no face; recognisers read them all the same",
    "mu-privacy": "1 − (norm(AUC) + rank-1)/2 with norm(AUC) = 2·(AUC − ½), 0 below ½ (eq. 5.1); interval: of the ends "
    "of theirs",
    "delta-detection": "share of projections in which the face is detected where it is in the clear one (§4.2.3)",
    "detection-drop": "the same in the clear projections, less this",
    "box-iou": "mean overlap of the box found with that in the clear projection; 0 where none is found",
    "landmark-distance": "median over projections of the mean distance of five landmarks, pixels (§4.2.3)",
    "ssim": "mean SSIM within the box of the clear projection (§4.2.3)",
    "fd-squeezenet": "Fréchet distance of SqueezeNet's features to the clear projections; not FID, but like it",
    "seconds": "mean time of one anonymisation",
    "seconds-sd": "standard deviation of that time over people",
    "mu-utility": "(delta-detection + SSIM)/2 (eq. 5.2)",
    "chamfer": "mean distance of points to the nearest of the other cloud, both ways, mm",
    "normal-error": "mean angle between normals of nearest points, degrees",
    "curvature-error": "mean change of mean curvature at nearest points, 1/m",
}
"""Every figure and how to read it; sections and equations are the thesis'."""
UNITS: dict[str, str] = {
    "landmark-distance": "px", "seconds": "s", "seconds-sd": "s", "chamfer": "mm", "normal-error": "°",
    "curvature-error": "1/m",
}  # fmt: skip
"""Of the figures that have one."""


def mu_privacy(area: float, first: float) -> float:
    """Mean privacy of an AUC (at least ½) and a rank-1; 1 is best (point-cloud thesis, eq. 5.1)."""
    return 1 - (max(0.0, 2 * (area - 0.5)) + first) / 2


def mu_utility(detected: float, likeness: float) -> float:
    """Mean utility of a delta detection and an SSIM; 1 is best (point-cloud thesis, eq. 5.2)."""
    return (detected + likeness) / 2


def privacy(scores: Scores, bootstrap: Bootstrap) -> tuple[Figure, ...]:
    """AUC, EER, leak, rank-1 and their mean of eq. 5.1; probes not acquired count as misses in "rank-1 (failures as
    misses)".
    """
    area, first = auc(scores, bootstrap=bootstrap), rank(scores, 1, bootstrap=bootstrap)
    out = [area, eer(scores, bootstrap=bootstrap), leak(scores, bootstrap=bootstrap), first]
    if not scores.acquired.all():
        out.append(rank(scores, 1, failures=True, bootstrap=bootstrap))
    if area.value is None or first.value is None:
        return (*out, _none("mu-privacy", area.note or first.note))
    low: float | None = None
    high: float | None = None
    if area.low is not None and area.high is not None and first.low is not None and first.high is not None:
        low, high = mu_privacy(area.high, first.high), mu_privacy(area.low, first.low)
    return (*out, Figure("mu-privacy", mu_privacy(area.value, first.value), low, high, first.n, first.unit))


def trial(
    scores: Scores, found: NDArray[np.bool_] | None, bootstrap: Bootstrap, *, where: dict[str, Any], control: str = ""
) -> Trial:
    """One attacker's figures and its CMC; `found` [P]: whether the detector found a face."""
    figures = privacy(scores, bootstrap)
    if found is not None:
        figures += (Sample(scores.people, bootstrap, "clouds").share("failures to acquire", ~found),)
    return Trial(**where, figures=figures, curves={"cmc": cmc(scores)}, control=control)


def utility(clear: Record, made: Record, sample: Sample, iou: float, miss: float, *, name: str, method: str) -> Utility:
    """What a method left at one degree, of records [P] of clear and anonymised projections; `iou` and `miss` (pixels)
    set detection.
    """
    overlap = np.nan_to_num(box_iou(clear["box"], made["box"]), nan=0.0)
    known, count = clear["found"], len(made)
    base, lost = float(known.mean()), int((~made["made"]).sum())
    note = f"{base:.3f} of the clear projections"
    if lost:
        note += f"; of {lost} clouds nothing could be made, and the outer part alone was projected"
    detected = sample.share("delta-detection", known & made["found"] & (overlap >= iou), note)
    ssim, seconds = sample.mean("ssim", made["ssim"]), np.where(made["made"], made["seconds"], np.nan)
    figures = [
        detected,
        Figure("detection-drop", base - (detected.value or 0.0), n=count, unit="clouds"),
        sample.mean("box-iou", np.where(known, overlap, np.nan)),
        sample.median("landmark-distance", landmark_distances(clear, made, miss), f"{miss:g} px where no face is"),
        ssim,
        _frechet(clear, made),
        sample.mean("seconds", seconds),
    ]
    if np.isfinite(seconds).any():
        timed = int(np.isfinite(seconds).sum())
        figures.append(Figure("seconds-sd", float(np.nanstd(seconds)), n=timed, unit="clouds"))
    if ssim.value is None or detected.value is None:
        figures.append(_none("mu-utility", "there is no SSIM"))
    else:
        figures.append(Figure("mu-utility", mu_utility(detected.value, ssim.value), n=count, unit="clouds"))
    return Utility(name, method, tuple(figures))


def distortion(record: Record, sample: Sample) -> tuple[Figure, ...]:
    """Mean distortion in space of the clouds of which something could be made."""
    return tuple(sample.mean(name, np.where(record["made"], record[name], np.nan)) for name in DISTORTION)


def landmark_distances(clear: Record, made: Record, miss: float) -> NDArray[np.float64]:
    """[P] mean distance of five landmarks, pixels; `miss` where a face is not found, NaN where the clear one is not."""
    apart = landmark_distance(clear["marks"], made["marks"])
    return np.where(clear["found"], np.where(made["found"], apart, miss), np.nan)


def value_of(figures: Sequence[Figure], metric: str) -> float | None:
    """Of that metric; None where there is none."""
    return next((figure.value for figure in figures if figure.metric == metric), None)


def _frechet(clear: Record, made: Record) -> Figure:
    name = "fd-squeezenet"
    if "features" not in (made.dtype.names or ()):
        return _none(name, "squeezenet11_features.onnx is in none of the model folders ($FICGAN_MODELS)")
    if len(made) < 4:
        return _none(name, f"{len(made)} projections are too few")
    x, y = (np.asarray(record["features"], np.float64) for record in (clear, made))
    note = f"two halves of the clear projections are {frechet_floor(x):.3g} apart"
    return Figure(name, frechet_distance(x, y), n=len(made), unit="clouds", note=note)


def _none(metric: str, why: str) -> Figure:
    return Figure(metric, None, unit="clouds", note=why)
