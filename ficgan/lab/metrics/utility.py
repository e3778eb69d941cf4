"""What is left to work with after anonymisation: the networks that judge it, what they read, and the figures."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ficgan.anonymizers import Faces
from ficgan.device import model_folders, onnx_session
from ficgan.faces import ARCFACE_POINTS, FaceDetector, detector_missing, get_detector
from ficgan.lab.attacks.base import one_each_unknown, upright
from ficgan.lab.attributes import AttributeClassifier
from ficgan.lab.metrics import BOOTSTRAP, METRICS, Bootstrap, Floats, Metric, Sample, percentiles, pictures
from ficgan.lab.metrics.pictures import POSE_NAMES, Detections, Inception, Lpips, SqueezeNet
from ficgan.lab.results import Figure, note_texts

Box = tuple[int, int, int, int]

_DETECTORS = ("yunet", "insightface", "centerface")  # Fastest first: one looks at every method's output
_BATCH = 32
LEAST_IMAGES = 4  # For a Fréchet distance
_FEWEST = 5  # images; a correlation of fewer says nothing
_SMILES = (("smile-r", "Smiling"), ("mouth-open-r", "Mouth_Slightly_Open"))


@dataclass
class UtilityReadings:
    """What the judges read in N faces; None where a judge is not there."""

    faces: Faces
    sharpness: NDArray[np.float64]  # [N], see `pictures.sharpness`
    detections: Detections | None = None
    ages: NDArray[np.float32] | None = None  # [N], years
    males: NDArray[np.float32] | None = None  # [N], probability
    attributes: NDArray[np.float32] | None = None  # [N,A], probabilities
    attribute_names: tuple[str, ...] = ()
    perception: NDArray[np.float32] | None = None  # [N,512], SqueezeNet's features
    perceived: NDArray[np.float64] | None = None  # [N], LPIPS-like, to the images these were read against
    inception: NDArray[np.float32] | None = None  # [N,2048]
    lpips: NDArray[np.float64] | None = None  # [N], to the images these were read against
    missing: dict[str, str] = field(default_factory=dict)  # judge → a sentence that says what is missing
    used: dict[str, str] = field(default_factory=dict)  # judge → what it is


class AgeGender:
    """Age [B] in years and P(male) [B] by an ONNX network of RGB 0..255 at ArcFace's five points in 112×112."""

    def __init__(self, path: Path) -> None:
        self._session = onnx_session(path)
        self._input: str = self._session.get_inputs()[0].name

    def predict(self, faces: Faces) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Age in years [N] and probability of male [N]; faces are taken at the landmarks they came with."""
        found = []
        for begin in range(0, len(faces), _BATCH):
            some = faces.take(range(begin, min(begin + _BATCH, len(faces))))
            batch = upright(some, ARCFACE_POINTS, 112)
            found.append(self._session.run(None, {self._input: batch.transpose(0, 3, 1, 2).astype(np.float32)}))
        ages, males = (np.concatenate([part.ravel() for part in parts]) for parts in zip(*found, strict=True))
        return ages, males


@dataclass
class Judges:
    """Networks that judge utility; None where one is not there, and `missing` says what it would need."""

    detector: FaceDetector | None = None  # box, landmarks, pose; it looks once (`pictures.quick`)
    age_gender: AgeGender | None = None
    attributes: AttributeClassifier | None = None  # and the smile
    squeezenet: SqueezeNet | None = None  # LPIPS-like distance, FD
    lpips: Lpips | None = None
    inception: Inception | None = None  # FID
    missing: dict[str, str] = field(default_factory=dict)

    @classmethod
    def find(cls, *, attributes: Path | None = None) -> Judges:
        """All judges whose files are in the folders of models, or in torch's cache; nothing is downloaded."""
        folders, found = model_folders(), cls()
        name = next((name for name in _DETECTORS if detector_missing(name) is None), None)
        if name is not None:
            found.detector = pictures.quick(get_detector(name))
        if path := _first(folders, "age_gender*.onnx"):
            found.age_gender = AgeGender(path)
        if path := attributes or _first(folders, "attributes.safetensors"):
            found.attributes = AttributeClassifier.load(path)
        linear = _first(folders, "lpips_squeeze_linear.safetensors")
        if linear and (path := _first(folders, "squeezenet*_features.onnx")):
            found.squeezenet = SqueezeNet(path, linear)
        if network := pictures.lpips_backbone():
            found.lpips = Lpips(network)
        if path := pictures.inception_file():
            found.inception = Inception(path)
        found.missing = {judge: why for judge, why in note_texts("judges").items() if getattr(found, judge) is None}
        return found

    def read(self, faces: Faces, *, against: UtilityReadings | None = None) -> UtilityReadings:
        """What the judges read in faces, at their landmarks; anonymised ones against the readings of the clear ones."""
        out = UtilityReadings(faces, pictures.sharpness(faces.images, faces.landmarks), missing=dict(self.missing))
        clear = None if against is None else against.faces.images
        if self.detector is not None:
            out.detections = pictures.detect_faces(self.detector, faces.images, faces.landmarks)
            out.used["detector"] = self.detector.name
        if self.age_gender is not None:
            out.ages, out.males = self.age_gender.predict(faces)
        if self.attributes is not None:
            out.attributes, out.attribute_names = self.attributes.predict(faces), self.attributes.names
        if self.squeezenet is not None:
            out.perception, out.perceived = self.squeezenet.read(faces.images, clear=clear)
        if self.lpips is not None:
            out.used["lpips"] = self.lpips.network
            out.lpips = None if clear is None else self.lpips.distance(clear, faces.images)
        if self.inception is not None:
            out.inception = self.inception.features(faces.images)
        return out


def _first(folders: Sequence[Path], pattern: str) -> Path | None:
    return next((path for folder in folders if folder.is_dir() for path in sorted(folder.glob(pattern))), None)


def agreement(clear: ArrayLike, anonymised: ArrayLike) -> NDArray[np.float64]:
    """Share of attributes decided alike (p ≥ .5) for each image, of probabilities [N,A] (FICGAN, §4.2)."""
    return ((np.asarray(clear) >= 0.5) == (np.asarray(anonymised) >= 0.5)).mean(1)


def by_attribute(clear: Floats, anonymised: Floats, weights: Floats) -> list[NDArray[np.float64]]:
    """Shares [R,A] of images with, and without each attribute, that are decided so again, by R weights [R,N]."""
    before, after = np.asarray(clear) >= 0.5, np.asarray(anonymised) >= 0.5
    out = []
    for wanted in (before, ~before):
        hits, cases = (weights @ some.astype(weights.dtype) for some in (wanted & (before == after), wanted))
        out.append(np.divide(hits, cases, out=np.full(hits.shape, np.nan), where=cases > 0, dtype=np.float64))
    return out


def balanced_agreement(clear: Floats, anonymised: Floats, weights: Floats, *, least: int = 5) -> NDArray[np.float64]:
    """Mean [R] over attributes of the two shares of `by_attribute`: .5 for a reader that never changes."""
    count = (np.asarray(clear) >= 0.5).sum(0)
    used = np.minimum(count, len(clear) - count) >= least
    having, lacking = by_attribute(np.asarray(clear)[:, used], np.asarray(anonymised)[:, used], weights)
    # In a resample an attribute may have lost all its images: it then sits out.
    both = (having + lacking) / 2
    known = np.isfinite(both)
    return np.where(known, both, 0).sum(-1) / np.where(known.any(-1), known.sum(-1), np.nan)


def kept(clear: Floats, anonymised: Floats, names: tuple[str, ...]) -> dict[str, tuple[float | None, float | None]]:
    """Attribute → share kept of the images with it, and of those without (FICGAN, figures 4c and B)."""
    shares = np.concatenate(by_attribute(clear, anonymised, np.ones((1, len(clear))))).T.tolist()
    known = ([None if np.isnan(share) else share for share in both] for both in shares)
    return {name: (having, lacking) for name, (having, lacking) in zip(names, known, strict=True)}


def compare(
    clear: UtilityReadings,
    anonymised: UtilityReadings,
    *,
    region: Box | None = None,
    labels: NDArray[np.uint8] | None = None,
    bootstrap: Bootstrap = BOOTSTRAP,
) -> tuple[Figure, ...]:
    """Every utility figure that applies, in the order of the table; value None, with the reason, if a judge is missing.

    SSIM and PSNR are of the `region` x0, y0, x1, y1, or of the whole crop. `labels` are [N,A], 0 or 1. The bootstrap is
    over people where they are known, else over images.
    """
    sample = Sample(one_each_unknown(anonymised.faces.people, len(anonymised.faces)), bootstrap)
    both = (clear, anonymised, sample)
    made = (*_fidelity(*both, region), *_geometry(*both), *_semantics(*both, labels))
    found = {figure.metric: figure for figure in made}

    def lacking(metric: Metric) -> Figure:
        missing = (anonymised.missing[judge] for judge in metric.judges if judge in anonymised.missing)
        return sample.none(metric.name, next(missing, "these faces were not read against the clear ones"))

    asked = [metric for metric in METRICS["utility"].values() if metric.name in found or metric.judges]
    asked = [metric for metric in asked if labels is not None or metric.name != "attributes-accuracy"]
    return tuple(found[metric.name] if metric.name in found else lacking(metric) for metric in asked)


def psnr_figure(metric: str, ratios: NDArray[np.float64], sample: Sample) -> Figure:
    """Mean of the PSNR [N] of images to the clear ones, without those that are equal."""
    equal = int(np.isposinf(ratios).sum())
    note = f"{equal} of {len(ratios)} are equal to the clear faces (infinite) and left out" if equal else ""
    return sample.mean(metric, np.where(np.isinf(ratios), np.nan, ratios), note)


def frechet_figure(metric: str, clear: Floats, seen: Floats) -> Figure:
    """Fréchet distance of features [N,D] of images to those of the clear ones."""
    if len(seen) < LEAST_IMAGES:
        few = f"{len(seen)} images are too few; give at least {LEAST_IMAGES}"
        return Figure(metric, None, unit="images", note=few)
    apart = pictures.frechet_distance(*pictures.halves(clear))  # What noise alone gives at half the size
    note = f"biased upwards at small n: two halves of the clear faces are {apart:.4g} apart"
    return Figure(metric, pictures.frechet_distance(seen, clear), n=len(seen), unit="images", note=note)


def _fidelity(clear: UtilityReadings, after: UtilityReadings, sample: Sample, region: Box | None) -> Iterator[Figure]:
    x0, y0, x1, y1 = region or (0, 0, None, None)
    a, b = (faces.images[:, y0:y1, x0:x1] for faces in (clear.faces, after.faces))
    yield sample.mean("ssim", pictures.ssim(a, b))
    yield psnr_figure("psnr", pictures.psnr(a, b), sample)
    # Means of logarithms: half as sharp and twice as sharp cancel. A grey level squared keeps flat images finite.
    found = sample.mean("sharpness", np.log((after.sharpness + 1) / (clear.sharpness + 1)))
    value, low, high = (None if one is None else float(np.exp(one)) for one in (found.value, found.low, found.high))
    yield replace(found, value=value, low=low, high=high)
    if after.lpips is not None:
        yield sample.mean("lpips", after.lpips, f"backbone {after.used['lpips']}")
    if after.perceived is not None:
        yield sample.mean("lpips-squeezenet", after.perceived, "no published LPIPS: do not compare with papers")
    if clear.inception is not None and after.inception is not None:
        yield frechet_figure("fid", clear.inception, after.inception)
    if clear.perception is not None and after.perception is not None:
        yield frechet_figure("fd-squeezenet", clear.perception, after.perception)


def _geometry(clear: UtilityReadings, anonymised: UtilityReadings, sample: Sample) -> Iterator[Figure]:
    before, after = clear.detections, anonymised.detections
    if before is None or after is None:
        return
    found = f"by {anonymised.used['detector']}; {before.found.mean():.3f} of the clear images"
    yield sample.share("detected", after.found, found)
    missed = int((before.found & ~after.found).sum())
    note = f"{missed} of {int(before.found.sum())} faces were lost and are left out" if missed else ""
    distance = pictures.landmark_distance(before.landmarks, after.landmarks)
    yield sample.mean("box-iou", pictures.box_iou(before.boxes, after.boxes), note)
    yield sample.mean("landmarks", distance / pictures.eye_distance(before.landmarks).clip(1e-9), note)
    yield sample.mean("landmarks-px", distance, note)
    poses = pictures.head_pose(before.landmarks), pictures.head_pose(after.landmarks)
    turned = np.abs((poses[1] - poses[0] + 180) % 360 - 180)
    mouths = pictures.mouth_width(before.landmarks), pictures.mouth_width(after.landmarks)
    for axis, name in enumerate(POSE_NAMES):
        yield sample.mean(f"{name}-error", turned[:, axis], note)
        yield correlation(sample, f"{name}-r", poses[0][:, axis], poses[1][:, axis], note)
    more = "; ".join(filter(None, (note, "a weak sign of a smile; smile-r is the better one")))
    yield correlation(sample, "mouth-r", *mouths, more)


def _semantics(
    clear: UtilityReadings, anonymised: UtilityReadings, sample: Sample, labels: NDArray[np.uint8] | None
) -> Iterator[Figure]:
    if clear.ages is not None and anonymised.ages is not None:
        yield sample.mean("age-error", np.abs(anonymised.ages - clear.ages), "to the age read in the clear image")
    if clear.males is not None and anonymised.males is not None:
        same = (anonymised.males >= 0.5) == (clear.males >= 0.5)
        yield sample.share("gender-kept", same, "to the gender read in the clear image")
    before, after = clear.attributes, anonymised.attributes
    if before is None or after is None:
        return
    columns = {name: index for index, name in enumerate(anonymised.attribute_names)}
    for metric, name in _SMILES:
        if name in columns:
            yield correlation(sample, metric, before[:, columns[name]], after[:, columns[name]])
        else:
            yield sample.none(metric, f"the classifier does not know {name}")
    note = "rare attributes flatter it; see the balanced figure"
    yield sample.mean("attributes", agreement(before, after), note)
    weights = np.concatenate([np.ones((1, len(after)), np.float32), sample.drawn[:, sample.person]])
    value, *resampled = balanced_agreement(before, after, weights).tolist()
    if np.isfinite(value):
        yield Figure("attributes-balanced", value, *percentiles(resampled, within=(0, 1)), len(after), "images")
    else:
        yield sample.none("attributes-balanced", "no attribute is read in five of the clear images and not in five")
    if labels is not None:
        base = float(agreement(labels, before).mean())
        yield sample.mean("attributes-accuracy", agreement(labels, after), f"{base:.3f} on the clear images")


def correlation(sample: Sample, metric: str, a: Floats, b: Floats, note: str = "") -> Figure:
    """Pearson's r of two values [N] of each image, where both are finite."""
    used = np.isfinite(a) & np.isfinite(b)
    if used.sum() < _FEWEST:
        return sample.none(metric, f"{int(used.sum())} images are too few for a correlation")
    x, y = (np.asarray(values, np.float64)[used] for values in (a, b))
    if min(np.ptp(x), np.ptp(y)) < 1e-9:
        return sample.none(metric, "it is the same in all images, so that nothing can correlate")
    x, y = (x - x.mean()) / x.std(), (y - y.mean()) / y.std()  # so that moments of resamples lose no digits
    moments = np.zeros((len(a), 6), np.float64)
    moments[used] = np.stack([np.ones_like(x), x, y, x * x, y * y, x * y], 1)
    sums = np.stack([sample.total(column) for column in moments.T], 1).astype(np.float32)
    n, sx, sy, sxx, syy, sxy = (sample.drawn @ sums).astype(np.float64).T
    with np.errstate(invalid="ignore", divide="ignore"):
        r = (sxy - sx * sy / n) / np.sqrt((sxx - sx * sx / n) * (syy - sy * sy / n))
    return Figure(metric, float(np.mean(x * y)), *percentiles(r, within=(-1, 1)), int(used.sum()), "images", note)
