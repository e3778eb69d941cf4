"""What is left to work with after anonymisation: every utility figure, from readings of clear and other faces."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from ficgan.anonymizers import Faces
from ficgan.errors import InputError
from ficgan.lab.metrics import intervals
from ficgan.lab.metrics.distribution import distinct_share, frechet_distance, kernel_distance
from ficgan.lab.metrics.fidelity import SCALES, psnr, scales, structural_similarity
from ficgan.lab.metrics.geometry import POSE_NAMES, box_iou, eye_distance, head_pose, landmark_distance
from ficgan.lab.metrics.info import Metric
from ficgan.lab.metrics.judges import Judges, Readings
from ficgan.lab.metrics.semantics import agreement, balanced_agreement, mouth
from ficgan.lab.results import Figure

__all__ = ["UTILITY", "Judges", "Readings", "compare", "utility_figures"]

Box = tuple[int, int, int, int]
Values = NDArray[np.floating]

_metric = partial(Metric, kind="utility")
_GEOMETRY = "thesis of the point clouds, chapter 5; Fantômas, section 8"
_FICGAN = "FICGAN, section 4.2"

UTILITY: tuple[Metric, ...] = (
    _metric("ssim", "SSIM to the clear image, Gaussian window", better="high", source="Wang et al. 2004, eq. 13"),
    _metric("ms-ssim", "MS-SSIM to the clear image, five scales", better="high", source="Wang et al. 2003, eq. 7"),
    _metric("ms-ssim-short", "MS-SSIM with the fewer scales that small images have room for", better="high"),
    _metric("psnr", "peak signal-to-noise ratio to the clear image, dB; equal images are left out", better="high"),
    _metric("sharpness", "variance of the Laplacian within the face, in that of the clear image", better="near"),
    _metric("lpips", "LPIPS to the clear image", better="low", source="Zhang et al. 2018, eq. 1"),
    _metric("lpips-squeezenet", "LPIPS-like distance (SqueezeNet) to the clear image", better="low"),
    _metric("fid", "Fréchet Inception distance to the clear images", better="low", source="Heusel et al. 2017, eq. 6"),
    _metric("kid", "kernel Inception distance to the clear images", better="low", source="Bińkowski et al. 2018"),
    _metric("fd-squeezenet", "Fréchet distance of SqueezeNet's features to the clear images", better="low"),
    _metric("kd-squeezenet", "kernel distance of SqueezeNet's features to the clear images", better="low"),
    _metric("diversity", "mean LPIPS-like distance between two outputs, in that of the clear images", better="near"),
    _metric("distinct", "share of outputs that differ from all others", better="high"),
    _metric("detected", "share of images in which a face is detected", better="high", source=_GEOMETRY),
    _metric("box-iou", "intersection over union of the face's box with that in the clear image", better="high"),
    _metric("landmarks", "mean distance of five landmarks to those in the clear image, eye distances", better="low"),
    _metric("landmarks-px", "the same in pixels", better="low", source=_GEOMETRY),
    *(_metric(f"{name}-error", f"mean change of {name}, degrees", better="low") for name in POSE_NAMES),
    *(_metric(f"{name}-r", f"correlation of {name} with the clear image's", better="high") for name in POSE_NAMES),
    _metric("mouth-r", "correlation of the mouth's width with that in the clear image", better="high"),
    _metric("smile-r", "correlation of P(Smiling) with that of the clear image", better="high"),
    _metric("mouth-open-r", "correlation of P(Mouth_Slightly_Open) with that of the clear image", better="high"),
    _metric("age-error", "mean change of the age that is read, years", better="low"),
    _metric("gender-kept", "share of images whose gender is read as in the clear one", better="high"),
    _metric("attributes", "share of attributes that are read as in the clear image", better="high", source=_FICGAN),
    _metric("attributes-balanced", "the same, presence and absence weighing alike; .5 is chance", better="high"),
    _metric("attributes-accuracy", "share of attributes that are read as labelled", better="high", source=_FICGAN),
)
"""Every metric of `compare`, in its order."""

_SMILES = (("smile-r", "Smiling"), ("mouth-open-r", "Mouth_Slightly_Open"))
_LEAST = 5  # images; a correlation of fewer says nothing


def utility_figures(
    clear: Faces,
    anonymised: Faces,
    judges: Judges,
    *,
    region: Box | None = None,
    pairs: bool = True,
    labels: NDArray[np.uint8] | None = None,
) -> tuple[Figure, ...]:
    """Every utility figure of one anonymiser; for several use `Judges.read` once on the clear faces and `compare`.

    Args:
        clear, anonymised: as of `compare`.
        judges: of `Judges.find`.
        region, pairs, labels: as of `compare`.
    """
    before = judges.read(clear)
    after = judges.read(anonymised, against=before if pairs else None)
    return compare(before, after, region=region, pairs=pairs, labels=labels)


def compare(
    clear: Readings,
    anonymised: Readings,
    *,
    region: Box | None = None,
    pairs: bool = True,
    labels: NDArray[np.uint8] | None = None,
    bootstrap: intervals.Bootstrap = intervals.BOOTSTRAP,
) -> tuple[Figure, ...]:
    """Every utility figure, each a mean over images with its 95 % interval, in the order of `UTILITY`.

    Args:
        clear: what was read in the clear faces.
        anonymised: what was read in the others, against `clear` where they are pairs.
        region: x0, y0, x1, y1: SSIM, MS-SSIM and PSNR are of this square; None: the whole crop.
        pairs: False where the anonymised images are not those of `clear` in their order: only figures of whole sets
            are then given.
        labels: [N,A], 0 or 1, in the order of the classifier's attributes.
        bootstrap: over people where they are known, else over images; its seed draws KD's subsets, too.

    Returns:
        One figure for each metric that applies; value None, with the reason, where a judge is missing.

    Raises:
        InputError: pairs that do not match.
    """
    people = anonymised.faces.people
    told = people is not None and bool((people >= 0).all())
    sampling = _Sampling(people if told else None, len(anonymised), bootstrap)
    if not pairs:
        return (*_distributions(clear, anonymised, bootstrap.seed), _detected(clear, anonymised, sampling))
    if clear.faces.images.shape != anonymised.faces.images.shape or clear.faces.names != anonymised.faces.names:
        raise InputError("the anonymised faces are not those of the clear set, one by one; give pairs=False for others")
    return (
        *_fidelity(clear, anonymised, region, sampling),
        *_distributions(clear, anonymised, bootstrap.seed),
        *_geometry(clear, anonymised, sampling),
        *_semantics(clear, anonymised, labels, sampling),
    )


def _fidelity(clear: Readings, anonymised: Readings, region: Box | None, sampling: _Sampling) -> list[Figure]:
    a, b = clear.faces.images, anonymised.faces.images
    if region is not None:
        x0, y0, x1, y1 = region
        a, b = a[:, y0:y1, x0:x1], b[:, y0:y1, x0:x1]
    out = []
    count = scales(a.shape[1])
    if count:
        single, multi = structural_similarity(a, b)
        note = "" if count == len(SCALES) else f"{count} of the five scales, their weights summing to 1"
        name = "ms-ssim" if count == len(SCALES) else "ms-ssim-short"
        out += [sampling.mean("ssim", single), sampling.mean(name, multi, note)]
    else:
        out.append(_none("ssim", f"images of {a.shape[1]} pixels are smaller than its window"))
    ratio = psnr(a, b)
    equal = int(np.isposinf(ratio).sum())
    note = f"{equal} of {len(ratio)} images are equal to the clear ones (infinite) and left out" if equal else ""
    out.append(sampling.mean("psnr", np.where(np.isinf(ratio), np.nan, ratio), note))
    # Means of logarithms: half as sharp and twice as sharp cancel. A grey level squared keeps flat images finite.
    out.append(sampling.mean("sharpness", np.log((anonymised.sharpness + 1) / (clear.sharpness + 1)), then=np.exp))
    if anonymised.lpips is not None:
        out.append(sampling.mean("lpips", anonymised.lpips, f"backbone {anonymised.used['lpips']}"))
    else:
        out.append(_none("lpips", _lack(anonymised, "lpips")))
    seen = anonymised.perception
    if seen is not None and seen.distances is not None:
        out.append(sampling.mean("lpips-squeezenet", seen.distances, "no published LPIPS: do not compare with papers"))
    else:
        out.append(_none("lpips-squeezenet", _lack(anonymised, "squeezenet", "distances")))
    return out


def _distributions(clear: Readings, anonymised: Readings, seed: int) -> list[Figure]:
    out = []
    count = min(len(clear), len(anonymised))
    before, after = clear.perception, anonymised.perception
    sides = (
        ("fid", "kid", clear.inception, anonymised.inception, clear.inception_floor, "inception"),
        (
            "fd-squeezenet",
            "kd-squeezenet",
            None if before is None else before.features,
            None if after is None else after.features,
            clear.squeezenet_floor,
            "squeezenet",
        ),
    )
    for frechet, kernel, x, y, floor, judge in sides:
        if x is None or y is None or count < 4:
            why = _lack(anonymised, judge) if x is None or y is None else f"{count} images are too few; give at least 4"
            out += [_none(frechet, why), _none(kernel, why)]
            continue
        value = frechet_distance(x, y)
        note = f"biased upwards at small n: two halves of the clear images are {floor:.4g} apart"
        out.append(Figure(frechet, value, n=count, unit="images", note=note))
        mean, spread = kernel_distance(x, y, seed=seed)
        out.append(Figure(kernel, mean, n=count, unit="images", note=f"standard deviation over subsets {spread:.4g}"))
    if before is not None and after is not None and before.diversity and after.diversity is not None:
        note = f"LPIPS-like (SqueezeNet), {before.diversity:.3f} between two clear images"
        ratio = after.diversity / before.diversity
        out.append(Figure("diversity", ratio, n=len(anonymised), unit="images", note=note))
    else:
        why = _lack(anonymised, "squeezenet", "distances", other="the clear images are all alike")
        out.append(_none("diversity", why))
    share = distinct_share(anonymised.faces.images)
    out.append(Figure("distinct", share, n=len(anonymised), unit="images", note="compared pixel for pixel"))
    return out


def _detected(clear: Readings, anonymised: Readings, sampling: _Sampling) -> Figure:
    if anonymised.detections is None or clear.detections is None:
        return _none("detected", _lack(anonymised, "detector"))
    base, name = float(clear.detections.found.mean()), anonymised.used["detector"]
    return sampling.share("detected", anonymised.detections.found, f"by {name}; {base:.3f} of the clear images")


def _geometry(clear: Readings, anonymised: Readings, sampling: _Sampling) -> list[Figure]:
    before, after = clear.detections, anonymised.detections
    names = ["box-iou", "landmarks", "landmarks-px"]
    names += [f"{name}-{kind}" for kind in ("error", "r") for name in POSE_NAMES]
    out = [_detected(clear, anonymised, sampling)]
    if before is None or after is None:
        return out + [_none(name, _lack(anonymised, "detector")) for name in (*names, "mouth-r")]
    missed = int((before.found & ~after.found).sum())
    note = f"{missed} of {int(before.found.sum())} faces were lost and are left out" if missed else ""
    distance = landmark_distance(before.landmarks, after.landmarks)
    out.append(sampling.mean("box-iou", box_iou(before.boxes, after.boxes), note))
    out.append(sampling.mean("landmarks", distance / eye_distance(before.landmarks).clip(1e-9), note))
    out.append(sampling.mean("landmarks-px", distance, note))
    poses = head_pose(before.landmarks), head_pose(after.landmarks)
    turned = np.abs((poses[1] - poses[0] + 180) % 360 - 180)
    out += [sampling.mean(f"{name}-error", turned[:, axis], note) for axis, name in enumerate(POSE_NAMES)]
    for axis, name in enumerate(POSE_NAMES):
        why = "; ".join(filter(None, (note, "aligned crops have little roll left" if name == "roll" else "")))
        out.append(sampling.correlation(f"{name}-r", poses[0][:, axis], poses[1][:, axis], why))
    why = "; ".join(filter(None, (note, "a weak sign of a smile; smile-r is the better one")))
    out.append(sampling.correlation("mouth-r", mouth(before.landmarks), mouth(after.landmarks), why))
    return out


def _semantics(
    clear: Readings, anonymised: Readings, labels: NDArray[np.uint8] | None, sampling: _Sampling
) -> list[Figure]:
    out = []
    before, after = clear.attributes, anonymised.attributes
    columns = {name: index for index, name in enumerate(anonymised.attribute_names)}
    for metric, name in _SMILES:
        if before is None or after is None or name not in columns:
            out.append(_none(metric, _lack(anonymised, "attributes", other=f"the classifier does not know {name}")))
        else:
            out.append(sampling.correlation(metric, before[:, columns[name]], after[:, columns[name]]))
    if clear.ages is None or anonymised.ages is None or clear.males is None or anonymised.males is None:
        out += [_none(name, _lack(anonymised, "age_gender")) for name in ("age-error", "gender-kept")]
    else:
        change = np.abs(anonymised.ages - clear.ages)
        out.append(sampling.mean("age-error", change, "to the age read in the clear image"))
        same = (anonymised.males >= 0.5) == (clear.males >= 0.5)
        out.append(sampling.share("gender-kept", same, "to the gender read in the clear image"))
    if before is None or after is None:
        names = ("attributes", "attributes-balanced", *(() if labels is None else ("attributes-accuracy",)))
        return out + [_none(name, _lack(anonymised, "attributes")) for name in names]
    note = "rare attributes flatter it; see the balanced figure"
    out.append(sampling.mean("attributes", agreement(before, after), note))
    drawn = sampling.drawn[:, sampling.cluster]
    low, high = intervals.percentiles(balanced_agreement(before, after, drawn), within=(0, 1))
    value = float(balanced_agreement(before, after))
    if np.isfinite(value):
        out.append(Figure("attributes-balanced", value, low, high, len(after), "images"))
    else:
        out.append(_none("attributes-balanced", "no attribute is read in five of the clear images and not in five"))
    if labels is not None:
        if labels.shape != after.shape:
            raise InputError(f"labels {list(labels.shape)} do not fit attributes {list(after.shape)}; give one each")
        base = float(agreement(labels, before).mean())
        out.append(sampling.mean("attributes-accuracy", agreement(labels, after), f"{base:.3f} on the clear images"))
    return out


@dataclass
class _Sampling:
    """Figures of N values with intervals by bootstrap: whole people are drawn where they are known, else images."""

    people: NDArray[np.int64] | None
    count: int
    bootstrap: intervals.Bootstrap

    def __post_init__(self) -> None:
        people = np.arange(self.count) if self.people is None else self.people
        known, self.cluster = np.unique(people, return_inverse=True)
        self.drawn = self.bootstrap.weights(len(known))

    def mean(
        self, metric: str, values: Values, note: str = "", *, then: Callable[[float], float] | None = None
    ) -> Figure:
        """The mean of the finite values; `then` is applied to it and to its interval."""
        used = np.isfinite(values)
        if not used.any():
            return _none(metric, note or "no image has it")
        sums, counts = self._sum(np.where(used, values, 0)), self._sum(used)
        low, high = intervals.percentiles(intervals.ratios(self.drawn, sums, counts))
        numbers = [float(np.mean(values[used], dtype=np.float64)), low, high]
        value, low, high = (x if x is None or then is None else float(then(x)) for x in numbers)
        return Figure(metric, value, low, high, int(used.sum()), "images", note)

    def share(self, metric: str, hits: NDArray[np.bool_], note: str = "") -> Figure:
        """The share of images that are hits."""
        low, high = intervals.proportion(self.drawn, self._sum(hits), self._sum(np.ones(self.count)))
        return Figure(metric, float(hits.mean()), low, high, self.count, "images", note)

    def correlation(self, metric: str, a: Values, b: Values, note: str = "") -> Figure:
        """Pearson's r where both are finite."""
        used = np.isfinite(a) & np.isfinite(b)
        if used.sum() < _LEAST:
            return _none(metric, f"{int(used.sum())} images are too few for a correlation")
        x, y = (np.asarray(v, np.float64)[used] for v in (a, b))
        if min(np.ptp(x), np.ptp(y)) < 1e-9:
            return _none(metric, "it is the same in all images, so that nothing can correlate")
        x, y = (x - x.mean()) / x.std(), (y - y.mean()) / y.std()  # so that moments of resamples lose no digits
        moments = []
        for values in (np.ones_like(x), x, y, x * x, y * y, x * y):
            full = np.zeros(self.count)
            full[used] = values
            moments.append(self._sum(full))
        n, sx, sy, sxx, syy, sxy = (self.drawn @ np.stack(moments, 1).astype(np.float32)).astype(np.float64).T
        with np.errstate(invalid="ignore", divide="ignore"):
            r = (sxy - sx * sy / n) / np.sqrt((sxx - sx * sx / n) * (syy - sy * sy / n))
        low, high = intervals.percentiles(r, within=(-1, 1))
        return Figure(metric, float(np.mean(x * y)), low, high, int(used.sum()), "images", note)

    def _sum(self, values: NDArray[np.generic]) -> NDArray[np.float64]:
        return np.bincount(self.cluster, np.asarray(values, np.float64), self.drawn.shape[1]).astype(np.float64)


def _none(metric: str, why: str) -> Figure:
    return Figure(metric, None, unit="images", note=why)


def _lack(readings: Readings, *judges: str, other: str = "these faces were not read against the clear ones") -> str:
    """Why a figure cannot be had: the first judge that is missing, else another reason."""
    return next((readings.missing[judge] for judge in judges if judge in readings.missing), other)
