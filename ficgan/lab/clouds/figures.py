"""The thesis' figures of one method at one degree, from what was read in its projections."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ficgan.lab.clouds.sampling import Sample, none
from ficgan.lab.metrics.geometry import box_iou, landmark_distance
from ficgan.lab.metrics.intervals import BOOTSTRAP, Bootstrap
from ficgan.lab.metrics.perceptual import frechet_distance, frechet_floor
from ficgan.lab.metrics.privacy import auc, cmc, eer, leak, rank
from ficgan.lab.metrics.scores import Scores
from ficgan.lab.results import Figure, Trial, Utility

__all__ = ["METRICS", "UNITS", "Rules", "mu_privacy", "mu_utility", "privacy", "trial", "utility", "value_of"]

Record = NDArray[np.void]
"""What was read in projections; see `ficgan.lab.clouds.reading`."""

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


@dataclass(frozen=True)
class Rules:
    """What counts as detected.

    Args:
        iou: least overlap with the box in the clear projection.
        miss: landmark distance of a face that is not found, pixels.
        bootstrap: over people.
    """

    iou: float = 0.5
    miss: float = 40.0
    bootstrap: Bootstrap = BOOTSTRAP


def mu_privacy(area: float, first: float) -> float:
    """Mean privacy of an AUC and a rank-1; 1 is best.

    Source: point-cloud thesis, eq. 5.1; an AUC below ½ counts as ½.
    """
    return 1 - (max(0.0, 2 * (area - 0.5)) + first) / 2


def mu_utility(detected: float, likeness: float) -> float:
    """Mean utility of a delta detection and an SSIM; 1 is best.

    Source: point-cloud thesis, eq. 5.2.
    """
    return (detected + likeness) / 2


def privacy(scores: Scores, bootstrap: Bootstrap) -> tuple[Figure, ...]:
    """AUC, EER, leak, rank-1 and their mean of eq. 5.1.

    Args:
        scores: probes against the gallery; those that were not acquired (nothing could be made of a cloud) are misses
            in "rank-1 (failures as misses)".
    """
    area, first = auc(scores, bootstrap=bootstrap), rank(scores, 1, bootstrap=bootstrap)
    out = [area, eer(scores, bootstrap=bootstrap), leak(scores, bootstrap=bootstrap), first]
    if not scores.acquired.all():
        out.append(rank(scores, 1, failures=True, bootstrap=bootstrap))
    if area.value is None or first.value is None:
        return (*out, none("mu-privacy", area.note or first.note))
    mean = mu_privacy(area.value, first.value)
    ends: list[float | None] = [None, None]
    if None not in (area.low, area.high, first.low, first.high):
        ends = [mu_privacy(a, b) for a, b in ((area.high, first.high), (area.low, first.low))]  # type: ignore[arg-type]
    return (*out, Figure("mu-privacy", mean, ends[0], ends[1], first.n, first.unit))


def trial(
    scores: Scores, found: NDArray[np.bool_] | None, bootstrap: Bootstrap, *, where: dict[str, Any], control: str = ""
) -> Trial:
    """One attacker's figures and its CMC.

    Args:
        scores: probes against the gallery.
        found: [P] whether the detector found a face; None: there is nothing to detect.
        where: set, method, scenario, recogniser and attacker of the trial.
    """
    figures = privacy(scores, bootstrap)
    if found is not None:
        figures += (Sample(scores.people, bootstrap).share("failures to acquire", ~found),)
    return Trial(**where, figures=figures, curves={"cmc": cmc(scores)}, control=control)


def utility(clear: Record, made: Record, people: NDArray[np.int64], rules: Rules, *, name: str, method: str) -> Utility:
    """What a method left at one degree.

    Args:
        clear, made: [P] records of the clear and the anonymised projections of the same clouds.
        people: [P] whose they are.
        rules: what counts as detected.
        name: of the set.
        method: label.
    """
    sample = Sample(people, rules.bootstrap)
    overlap = np.nan_to_num(box_iou(clear["box"], made["box"]), nan=0.0)
    known = clear["found"]
    base = float(known.mean())
    note = f"{base:.3f} of the clear projections" + _failed(made)
    detected = sample.share("delta-detection", known & made["found"] & (overlap >= rules.iou), note)
    assert detected.value is not None
    figures = [
        detected,
        Figure("detection-drop", base - detected.value, n=len(made), unit="clouds"),
        sample.mean("box-iou", np.where(known, overlap, np.nan)),
        sample.median("landmark-distance", distances(clear, made, rules.miss), f"{rules.miss:g} px where no face is"),
        sample.mean("ssim", made["ssim"]),
        *_distance(clear, made),
        *_times(made, sample),
    ]
    likeness = value_of(figures, "ssim")
    if likeness is None:
        figures.append(none("mu-utility", "there is no SSIM"))
    else:
        mean = mu_utility(detected.value, likeness)
        figures.append(Figure("mu-utility", mean, n=len(made), unit="clouds"))
    return Utility(name, method, tuple(figures))


def distances(clear: Record, made: Record, miss: float) -> NDArray[np.float64]:
    """[P] mean distance of five landmarks, pixels; `miss` where a face is not found, NaN where the clear one is not."""
    apart = landmark_distance(clear["marks"], made["marks"])
    return np.where(clear["found"], np.where(made["found"], apart, miss), np.nan)


def value_of(figures: Sequence[Figure], metric: str) -> float | None:
    """Of that metric; None where there is none."""
    return next((one.value for one in figures if one.metric == metric), None)


def _failed(made: Record) -> str:
    lost = int((~made["made"]).sum())
    return f"; of {lost} clouds nothing could be made, and the outer part alone was projected" if lost else ""


def _distance(clear: Record, made: Record) -> list[Figure]:
    name = "fd-squeezenet"
    if "features" not in (made.dtype.names or ()):
        return [none(name, "squeezenet11_features.onnx is in none of the model folders ($FICGAN_MODELS)")]
    if len(made) < 4:
        return [none(name, f"{len(made)} projections are too few")]
    x, y = (np.asarray(one["features"], np.float64) for one in (clear, made))
    note = f"two halves of the clear projections are {frechet_floor(x):.3g} apart"
    return [Figure(name, frechet_distance(x, y), n=len(made), unit="clouds", note=note)]


def _times(made: Record, sample: Sample) -> list[Figure]:
    seconds: Any = np.where(made["made"], made["seconds"], np.nan)
    mean = sample.mean("seconds", seconds)
    if mean.value is None:
        return [mean]
    return [mean, Figure("seconds-sd", float(np.nanstd(seconds)), n=mean.n, unit="clouds")]
