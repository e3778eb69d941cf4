"""What is left to work with after anonymisation: the networks that judge it, what they read, and the figures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ficgan.anonymizers import Faces
from ficgan.errors import InputError
from ficgan.faces import ARCFACE_POINTS, FaceDetector, crop, detector_missing, get_detector, similarity
from ficgan.lab.attributes import AttributeClassifier
from ficgan.lab.metrics import Metric, geometry, perceptual
from ficgan.lab.metrics.geometry import POSE_NAMES, Detections
from ficgan.lab.metrics.intervals import BOOTSTRAP, Bootstrap, Sample, one_each_unknown, percentiles
from ficgan.lab.metrics.perceptual import Inception, Lpips, Perception, SqueezeNet
from ficgan.lab.results import Figure

Box = tuple[int, int, int, int]
Values = NDArray[np.floating[Any]]

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

_DETECTORS = ("yunet", "insightface", "centerface", "dlib")
"""Fastest first: here the same detector looks at every method's output."""
_CODES = 2**30  # Bytes of SqueezeNet's codes that readings may keep; larger sets are looked at again
_CODE = 0.9e6
_BATCH = 32
_FEWEST = 5  # images; a correlation of fewer says nothing
_SMILES = (("smile-r", "Smiling"), ("mouth-open-r", "Mouth_Slightly_Open"))

# -- judges and what they read ----------------------------------------------------------------------------------------


@dataclass
class Readings:
    """What the judges read in N faces; None where a judge is not there."""

    faces: Faces
    sharpness: NDArray[np.float64]  # [N], see `perceptual.sharpness`
    detections: Detections | None = None
    ages: NDArray[np.float32] | None = None  # [N], years
    males: NDArray[np.float32] | None = None  # [N], probability
    attributes: NDArray[np.float32] | None = None  # [N,A], probabilities
    attribute_names: tuple[str, ...] = ()
    perception: Perception | None = None
    inception: NDArray[np.float32] | None = None  # [N,2048]
    lpips: NDArray[np.float64] | None = None  # [N], to the images these were read against
    missing: dict[str, str] = field(default_factory=dict)  # judge → a sentence that says what is missing
    used: dict[str, str] = field(default_factory=dict)  # judge → what it is

    def __len__(self) -> int:
        return len(self.faces)

    @cached_property
    def squeezenet_floor(self) -> float:
        """FD-SqueezeNet of two random halves; needs four images."""
        assert self.perception is not None
        return perceptual.frechet_floor(self.perception.features)

    @cached_property
    def inception_floor(self) -> float:
        """FID of two random halves; needs four images."""
        assert self.inception is not None
        return perceptual.frechet_floor(self.inception)


class AgeGender:
    """Age [B] in years and P(male) [B] by an ONNX network of RGB 0..255 at ArcFace's five points in 112×112."""

    def __init__(self, path: Path) -> None:
        from ficgan.faces.models import onnx_session

        self._session = onnx_session(path)
        self._input: str = self._session.get_inputs()[0].name

    def predict(self, faces: Faces) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Age in years [N] and probability of male [N]; faces are taken at the landmarks they came with."""
        ages, males = [np.zeros(0, np.float32)], [np.zeros(0, np.float32)]
        for begin in range(0, len(faces), _BATCH):
            rows = slice(begin, begin + _BATCH)
            pairs = zip(faces.images[rows], faces.landmarks[rows], strict=True)
            batch = np.stack([crop(image, similarity(marks, ARCFACE_POINTS), 112) for image, marks in pairs])
            age, male = self._session.run(None, {self._input: batch.transpose(0, 3, 1, 2).astype(np.float32)})
            ages.append(age.ravel())
            males.append(male.ravel())
        return np.concatenate(ages), np.concatenate(males)


@dataclass
class Judges:
    """Networks that judge utility; None where one is not there, and `missing` says what it would need."""

    detector: FaceDetector | None = None  # box, landmarks, pose; it looks once (`geometry.quick`)
    age_gender: AgeGender | None = None
    attributes: AttributeClassifier | None = None  # and the smile
    squeezenet: SqueezeNet | None = None  # LPIPS-like distance, FD, KD, diversity
    lpips: Lpips | None = None
    inception: Inception | None = None  # FID, KID
    missing: dict[str, str] = field(default_factory=dict)

    @classmethod
    def find(cls, folders: Sequence[Path] | None = None, *, attributes: Path | None = None) -> Judges:
        """All judges whose files are in the folders of models, or in torch's cache; nothing is downloaded."""
        from ficgan.faces.models import model_folders

        folders = model_folders() if folders is None else list(folders)
        found = cls()
        nowhere = "is in none of the model folders ($FICGAN_MODELS)"
        name = next((name for name in _DETECTORS if detector_missing(name) is None), None)
        if name is None:
            found.missing["detector"] = "no face detector is available; see `ficgan doctor`"
        else:
            found.detector = geometry.quick(get_detector(name))
        if path := _first(folders, "age_gender*.onnx"):
            found.age_gender = AgeGender(path)
        else:
            found.missing["age_gender"] = f"age_gender.onnx {nowhere}"
        if path := attributes or _first(folders, "attributes.safetensors"):
            found.attributes = AttributeClassifier.load(path)
        else:
            found.missing["attributes"] = "no attribute classifier was given; train one"
        if path := _first(folders, "squeezenet*_features.onnx"):
            found.squeezenet = SqueezeNet(path, _first(folders, "lpips_squeeze_linear.safetensors"))
            if not found.squeezenet.measures:
                found.missing["distances"] = "lpips_squeeze_linear.safetensors is in none of the model folders"
        else:
            found.missing["squeezenet"] = f"squeezenet11_features.onnx {nowhere}"
        found._find_published()
        return found

    def _find_published(self) -> None:
        try:
            if network := perceptual.lpips_backbone():
                self.lpips = Lpips(network)
            else:
                what = "no backbone of LPIPS (AlexNet, VGG-16, SqueezeNet)"
                self.missing["lpips"] = f"{what} is in torch's cache of weights"
        except ImportError:
            self.missing["lpips"] = "the package lpips is not installed; install ficgan[eval]"
        try:
            if path := perceptual.inception_file():
                self.inception = Inception(path)
            else:
                self.missing["inception"] = "torch-fidelity's Inception is not in torch's cache of weights"
        except ImportError:
            self.missing["inception"] = "the package torch-fidelity is not installed; install ficgan[eval]"

    def read(self, faces: Faces, *, against: Readings | None = None) -> Readings:
        """What the judges read in faces, at their landmarks; anonymised ones against the readings of the clear ones."""
        if not len(faces):
            raise InputError("no faces came to be judged; give at least one")
        if against is not None and faces.images.shape != against.faces.images.shape:
            raise InputError(
                f"anonymised faces {list(faces.images.shape)} are no pairs with clear ones "
                f"{list(against.faces.images.shape)}; give the same faces at one size"
            )
        out = Readings(faces, perceptual.sharpness(faces.images, faces.landmarks), missing=dict(self.missing))
        clear = None if against is None else against.faces.images
        if self.detector is not None:
            out.detections = geometry.detect_faces(self.detector, faces.images, faces.landmarks)
            out.used["detector"] = self.detector.name
        if self.age_gender is not None:
            out.ages, out.males = self.age_gender.predict(faces)
        if self.attributes is not None:
            out.attributes, out.attribute_names = self.attributes.predict(faces), self.attributes.names
        if self.squeezenet is not None:
            keep = clear is None and self.squeezenet.measures and len(faces) * _CODE <= _CODES
            known = None if against is None else against.perception
            out.perception = self.squeezenet.read(faces.images, keep=keep, clear=clear, known=known)
        if self.lpips is not None:
            out.used["lpips"] = self.lpips.network
            out.lpips = None if clear is None else self.lpips.distance(clear, faces.images)
        if self.inception is not None:
            out.inception = self.inception.features(faces.images)
        return out


def _first(folders: Sequence[Path], pattern: str) -> Path | None:
    return next((path for folder in folders if folder.is_dir() for path in sorted(folder.glob(pattern))), None)


# -- attributes -------------------------------------------------------------------------------------------------------


def agreement(clear: ArrayLike, anonymised: ArrayLike) -> NDArray[np.float64]:
    """Share of attributes decided alike (p ≥ .5) for each image, of probabilities [N,A] (FICGAN, §4.2).

    Most attributes are rare, and a reader that always says no agrees often: see `balanced_agreement`.
    """
    return ((np.asarray(clear) >= 0.5) == (np.asarray(anonymised) >= 0.5)).mean(1)


def by_attribute(
    clear: Values, anonymised: Values, weights: Values | None = None
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Shares [A] of images with, and without each attribute, that are decided so again; or [R,A] by weights."""
    before, after = np.asarray(clear) >= 0.5, np.asarray(anonymised) >= 0.5
    counted = np.ones((1, len(before))) if weights is None else weights
    out = []
    for wanted in (before, ~before):
        hits = counted @ (wanted & (before == after)).astype(counted.dtype)
        cases = counted @ wanted.astype(counted.dtype)
        share = np.divide(hits, cases, out=np.full(hits.shape, np.nan), where=cases > 0, dtype=np.float64)
        out.append(share[0] if weights is None else share)
    return out[0], out[1]


def balanced_agreement(
    clear: Values, anonymised: Values, weights: Values | None = None, *, least: int = 5
) -> NDArray[np.float64]:
    """Mean over attributes of the two shares of `by_attribute`: .5 for a reader that never changes."""
    count = (np.asarray(clear) >= 0.5).sum(0)
    used = np.minimum(count, len(clear) - count) >= least
    if not used.any():
        return np.full(() if weights is None else len(weights), np.nan)
    having, lacking = by_attribute(np.asarray(clear)[:, used], np.asarray(anonymised)[:, used], weights)
    # In a resample an attribute may have lost all its images: it then sits out.
    both = (having + lacking) / 2
    known = np.isfinite(both)
    return np.where(known, both, 0).sum(-1) / np.where(known.any(-1), known.sum(-1), np.nan)


def kept(
    clear: Values, anonymised: Values, names: tuple[str, ...]
) -> dict[str, tuple[float | None, float | None, float]]:
    """Attribute → share kept of the images with it, of those without, and of all (FICGAN, figures 4c and B)."""
    having, lacking = by_attribute(clear, anonymised)
    alike = ((np.asarray(clear) >= 0.5) == (np.asarray(anonymised) >= 0.5)).mean(0)

    def known(value: float) -> float | None:
        return float(value) if np.isfinite(value) else None

    rows = zip(names, having, lacking, alike, strict=True)
    return {name: (known(has), known(lacks), float(every)) for name, has, lacks, every in rows}


# -- figures ----------------------------------------------------------------------------------------------------------


def compare(
    clear: Readings, anonymised: Readings, *, region: Box | None = None, labels: NDArray[np.uint8] | None = None,
    bootstrap: Bootstrap = BOOTSTRAP,
) -> tuple[Figure, ...]:  # fmt: skip
    """Every utility figure that applies, in the order of `UTILITY`; value None, with the reason, if a judge is missing.

    Args:
        region: x0, y0, x1, y1: SSIM, MS-SSIM and PSNR are of this square; None: the whole crop.
        labels: [N,A], 0 or 1, in the order of the classifier's attributes.
        bootstrap: over people where they are known, else over images; its seed draws KD's subsets, too.
    """
    if clear.faces.images.shape != anonymised.faces.images.shape or clear.faces.names != anonymised.faces.names:
        raise InputError("the anonymised faces are not those of the clear set, one by one")
    people = one_each_unknown(anonymised.faces.people, len(anonymised))
    figures = _Figures(clear, anonymised, Sample(people, bootstrap))
    figures.fidelity(region)
    figures.distributions()
    figures.geometry()
    figures.semantics(labels)
    return tuple(figures.out)


class _Figures:
    def __init__(self, clear: Readings, after: Readings, sample: Sample) -> None:
        self.clear, self.after, self.sample = clear, after, sample
        self.out: list[Figure] = []

    def fidelity(self, region: Box | None) -> None:
        a, b = self.clear.faces.images, self.after.faces.images
        if region is not None:
            x0, y0, x1, y1 = region
            a, b = a[:, y0:y1, x0:x1], b[:, y0:y1, x0:x1]
        if count := perceptual.scales(a.shape[1]):
            single, multi = perceptual.structural_similarity(a, b)
            self.mean("ssim", single)
            if count == len(perceptual.SCALES):
                self.mean("ms-ssim", multi)
            else:
                self.mean("ms-ssim-short", multi, f"{count} of the five scales, their weights summing to 1")
        else:
            self.none("ssim", f"images of {a.shape[1]} pixels are smaller than its window")
        ratio = perceptual.psnr(a, b)
        equal = int(np.isposinf(ratio).sum())
        note = f"{equal} of {len(ratio)} images are equal to the clear ones (infinite) and left out" if equal else ""
        self.mean("psnr", np.where(np.isinf(ratio), np.nan, ratio), note)
        # Means of logarithms: half as sharp and twice as sharp cancel. A grey level squared keeps flat images finite.
        self.mean("sharpness", np.log((self.after.sharpness + 1) / (self.clear.sharpness + 1)), then=np.exp)
        if self.after.lpips is not None:
            self.mean("lpips", self.after.lpips, f"backbone {self.after.used['lpips']}")
        else:
            self.none("lpips", self.lack("lpips"))
        seen = self.after.perception
        if seen is not None and seen.distances is not None:
            self.mean("lpips-squeezenet", seen.distances, "no published LPIPS: do not compare with papers")
        else:
            self.none("lpips-squeezenet", self.lack("squeezenet", "distances"))

    def distributions(self) -> None:
        before, after = self.clear.perception, self.after.perception
        count = len(self.after)
        self.distances_of_sets("fid", "kid", "inception", self.clear.inception, self.after.inception)
        both = [None if seen is None else seen.features for seen in (before, after)]
        self.distances_of_sets("fd-squeezenet", "kd-squeezenet", "squeezenet", *both)
        if before is not None and after is not None and before.diversity and after.diversity is not None:
            note = f"LPIPS-like (SqueezeNet), {before.diversity:.3f} between two clear images"
            self.out.append(Figure("diversity", after.diversity / before.diversity, n=count, unit="images", note=note))
        else:
            self.none("diversity", self.lack("squeezenet", "distances", other="the clear images are all alike"))
        share, note = perceptual.distinct_share(self.after.faces.images), "compared pixel for pixel"
        self.out.append(Figure("distinct", share, n=count, unit="images", note=note))

    def distances_of_sets(self, frechet: str, kernel: str, judge: str, x: Values | None, y: Values | None) -> None:
        count = len(self.after)
        if x is None or y is None or count < 4:
            why = self.lack(judge) if x is None or y is None else f"{count} images are too few; give at least 4"
            self.none(frechet, why)
            self.none(kernel, why)
            return
        floor = self.clear.inception_floor if judge == "inception" else self.clear.squeezenet_floor
        note = f"biased upwards at small n: two halves of the clear images are {floor:.4g} apart"
        self.out.append(Figure(frechet, perceptual.frechet_distance(x, y), n=count, unit="images", note=note))
        mean, spread = perceptual.kernel_distance(x, y, seed=self.sample.bootstrap.seed)
        note = f"standard deviation over subsets {spread:.4g}"
        self.out.append(Figure(kernel, mean, n=count, unit="images", note=note))

    def geometry(self) -> None:
        before, after = self.clear.detections, self.after.detections
        if before is None or after is None:
            names = ["detected", "box-iou", "landmarks", "landmarks-px"]
            names += [f"{name}-{kind}" for kind in ("error", "r") for name in POSE_NAMES]
            for name in (*names, "mouth-r"):
                self.none(name, self.lack("detector"))
            return
        found = f"by {self.after.used['detector']}; {before.found.mean():.3f} of the clear images"
        self.share("detected", after.found, found)
        missed = int((before.found & ~after.found).sum())
        note = f"{missed} of {int(before.found.sum())} faces were lost and are left out" if missed else ""
        distance = geometry.landmark_distance(before.landmarks, after.landmarks)
        self.mean("box-iou", geometry.box_iou(before.boxes, after.boxes), note)
        self.mean("landmarks", distance / geometry.eye_distance(before.landmarks).clip(1e-9), note)
        self.mean("landmarks-px", distance, note)
        poses = geometry.head_pose(before.landmarks), geometry.head_pose(after.landmarks)
        turned = np.abs((poses[1] - poses[0] + 180) % 360 - 180)
        for axis, name in enumerate(POSE_NAMES):
            self.mean(f"{name}-error", turned[:, axis], note)
        for axis, name in enumerate(POSE_NAMES):
            more = "aligned crops have little roll left" if name == "roll" else ""
            self.correlation(f"{name}-r", poses[0][:, axis], poses[1][:, axis], "; ".join(filter(None, (note, more))))
        more = "; ".join(filter(None, (note, "a weak sign of a smile; smile-r is the better one")))
        self.correlation("mouth-r", geometry.mouth_width(before.landmarks), geometry.mouth_width(after.landmarks), more)

    def semantics(self, labels: NDArray[np.uint8] | None) -> None:
        clear, anonymised = self.clear, self.after
        before, after = clear.attributes, anonymised.attributes
        columns = {name: index for index, name in enumerate(anonymised.attribute_names)}
        for metric, name in _SMILES:
            if before is None or after is None or name not in columns:
                self.none(metric, self.lack("attributes", other=f"the classifier does not know {name}"))
            else:
                self.correlation(metric, before[:, columns[name]], after[:, columns[name]])
        if clear.ages is None or anonymised.ages is None or clear.males is None or anonymised.males is None:
            self.none("age-error", self.lack("age_gender"))
            self.none("gender-kept", self.lack("age_gender"))
        else:
            self.mean("age-error", np.abs(anonymised.ages - clear.ages), "to the age read in the clear image")
            same = (anonymised.males >= 0.5) == (clear.males >= 0.5)
            self.share("gender-kept", same, "to the gender read in the clear image")
        if before is None or after is None:
            for name in ("attributes", "attributes-balanced", *(() if labels is None else ("attributes-accuracy",))):
                self.none(name, self.lack("attributes"))
            return
        self.mean("attributes", agreement(before, after), "rare attributes flatter it; see the balanced figure")
        value = float(balanced_agreement(before, after))
        if np.isfinite(value):
            resampled = balanced_agreement(before, after, self.sample.drawn[:, self.sample.person])
            ends = percentiles(resampled, within=(0, 1))
            self.out.append(Figure("attributes-balanced", value, *ends, len(after), "images"))
        else:
            self.none("attributes-balanced", "no attribute is read in five of the clear images and not in five")
        if labels is not None:
            if labels.shape != after.shape:
                raise InputError(f"labels {list(labels.shape)} do not fit attributes {list(after.shape)}")
            base = float(agreement(labels, before).mean())
            self.mean("attributes-accuracy", agreement(labels, after), f"{base:.3f} on the clear images")

    # -- one figure ---------------------------------------------------------------------------------------------------

    def mean(self, metric: str, values: Values, note: str = "", **how: Any) -> None:
        self.out.append(self.sample.mean(metric, values, note, **how))

    def share(self, metric: str, hits: NDArray[np.bool_], note: str) -> None:
        self.out.append(self.sample.share(metric, hits, note))

    def correlation(self, metric: str, a: Values, b: Values, note: str = "") -> None:
        used = np.isfinite(a) & np.isfinite(b)
        if used.sum() < _FEWEST:
            return self.none(metric, f"{int(used.sum())} images are too few for a correlation")
        x, y = (np.asarray(values, np.float64)[used] for values in (a, b))
        if min(np.ptp(x), np.ptp(y)) < 1e-9:
            return self.none(metric, "it is the same in all images, so that nothing can correlate")
        x, y = (x - x.mean()) / x.std(), (y - y.mean()) / y.std()  # so that moments of resamples lose no digits
        moments = np.zeros((len(a), 6), np.float64)
        moments[used] = np.stack([np.ones_like(x), x, y, x * x, y * y, x * y], 1)
        sums = np.stack([self.sample.total(column) for column in moments.T], 1).astype(np.float32)
        n, sx, sy, sxx, syy, sxy = (self.sample.drawn @ sums).astype(np.float64).T
        with np.errstate(invalid="ignore", divide="ignore"):
            r = (sxy - sx * sy / n) / np.sqrt((sxx - sx * sx / n) * (syy - sy * sy / n))
        ends = percentiles(r, within=(-1, 1))
        self.out.append(Figure(metric, float(np.mean(x * y)), *ends, int(used.sum()), "images", note))

    def none(self, metric: str, why: str) -> None:
        self.out.append(self.sample.none(metric, why))

    def lack(self, *judges: str, other: str = "these faces were not read against the clear ones") -> str:
        return next((self.after.missing[judge] for judge in judges if judge in self.after.missing), other)
