"""Who judges utility, as far as their files are here, and what they read in a set of faces."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ficgan.anonymizers import Faces
from ficgan.errors import InputError
from ficgan.faces import FaceDetector, detector_missing, get_detector
from ficgan.lab.attributes import AttributeClassifier
from ficgan.lab.metrics.distribution import frechet_floor
from ficgan.lab.metrics.fidelity import sharpness
from ficgan.lab.metrics.geometry import Detections, detect_faces, quick
from ficgan.lab.metrics.perceptual import (
    Inception,
    Lpips,
    Perception,
    SqueezeNet,
    inception_file,
    lpips_backbone,
)
from ficgan.lab.metrics.semantics import AgeGender

__all__ = ["Judges", "Readings"]

_DETECTORS = ("yunet", "insightface", "centerface", "dlib")
"""Fastest first: here the same detector looks at every method's output."""
_CODES = 2**30
"""Bytes of SqueezeNet's codes that readings may keep; larger sets are looked at again."""
_CODE = 0.9e6


@dataclass
class Readings:
    """What the judges read in N faces; None where a judge is not there.

    Attributes:
        faces: they themselves.
        sharpness: float64 [N], see `fidelity.sharpness`.
        detections: of the detector.
        ages, males: float32 [N], years and probability.
        attributes: float32 [N,A], probabilities.
        attribute_names: A names.
        perception: of SqueezeNet.
        inception: float32 [N,2048].
        lpips: float64 [N], LPIPS to the images these were read against.
        against: the readings these were read against, the clear faces in the same order.
        missing: judge → a sentence that says what is missing.
        used: judge → what it is.
    """

    faces: Faces
    sharpness: NDArray[np.float64]
    detections: Detections | None = None
    ages: NDArray[np.float32] | None = None
    males: NDArray[np.float32] | None = None
    attributes: NDArray[np.float32] | None = None
    attribute_names: tuple[str, ...] = ()
    perception: Perception | None = None
    inception: NDArray[np.float32] | None = None
    lpips: NDArray[np.float64] | None = None
    against: Readings | None = None
    missing: dict[str, str] = field(default_factory=dict)
    used: dict[str, str] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.faces)

    @cached_property
    def squeezenet_floor(self) -> float | None:
        """FD-SqueezeNet of two random halves; None with fewer than four images."""
        return None if self.perception is None or len(self) < 4 else frechet_floor(self.perception.features)

    @cached_property
    def inception_floor(self) -> float | None:
        """FID of two random halves; None with fewer than four images."""
        return None if self.inception is None or len(self) < 4 else frechet_floor(self.inception)


@dataclass
class Judges:
    """Networks that judge utility; None where one is not there, and `missing` says what it would need.

    Args:
        detector: for detection, box, landmarks and pose, best one that looks once (`geometry.quick`).
        age_gender: for age and gender.
        attributes: for the attributes and the smile.
        squeezenet: for the LPIPS-like distance, FD, KD and diversity.
        lpips: for LPIPS.
        inception: for FID and KID.
        missing: judge → a sentence that says what is missing.
    """

    detector: FaceDetector | None = None
    age_gender: AgeGender | None = None
    attributes: AttributeClassifier | None = None
    squeezenet: SqueezeNet | None = None
    lpips: Lpips | None = None
    inception: Inception | None = None
    missing: dict[str, str] = field(default_factory=dict)

    @classmethod
    def find(cls, folders: Sequence[Path] | None = None, *, attributes: Path | None = None) -> Judges:
        """All judges whose files are on this machine; nothing is downloaded.

        Args:
            folders: where model files are; None: `ficgan.faces.models.model_folders()`. Weights of LPIPS's backbone and
                of Inception are taken from torch's cache only.
            attributes: file of a trained attribute classifier; None: `attributes.safetensors` in the folders.

        Raises:
            FicganError: a file that is there cannot be read.
        """
        from ficgan.faces.models import model_folders

        folders = model_folders() if folders is None else list(folders)
        found = cls()
        name = next((name for name in _DETECTORS if detector_missing(name) is None), None)
        if name is None:
            found._lack("detector", "no face detector is available; see `ficgan doctor`")
        else:
            found.detector = quick(get_detector(name))
        if path := _first(folders, "age_gender*.onnx"):
            found.age_gender = AgeGender(path)
        else:
            found._lack("age_gender", "age_gender.onnx is in none of the model folders ($FICGAN_MODELS)")
        if path := attributes or _first(folders, "attributes.safetensors"):
            found.attributes = AttributeClassifier.load(path)
        else:
            found._lack("attributes", "no attribute classifier was given; train one")
        if path := _first(folders, "squeezenet*_features.onnx"):
            found.squeezenet = SqueezeNet(path, _first(folders, "lpips_squeeze_linear.safetensors"))
            if not found.squeezenet.measures:
                found._lack("distances", "lpips_squeeze_linear.safetensors is in none of the model folders")
        else:
            found._lack("squeezenet", "squeezenet11_features.onnx is in none of the model folders ($FICGAN_MODELS)")
        found._find_published()
        return found

    def read(self, faces: Faces, *, against: Readings | None = None) -> Readings:
        """What the judges read in faces; read the clear ones once, and each method's against them.

        Args:
            faces: N crops; landmarks say where age, gender and attributes are read.
            against: readings of the clear faces, in the same order; None for the clear faces themselves, or where
                there are no pairs: no perceptual distances are then taken.

        Raises:
            InputError: no faces, or others than those they are read against.
        """
        if not len(faces):
            raise InputError("no faces came to be judged; give at least one")
        if against is not None and faces.images.shape != against.faces.images.shape:
            raise InputError(
                f"anonymised faces {list(faces.images.shape)} are no pairs with clear ones "
                f"{list(against.faces.images.shape)}; give the same faces at one size"
            )
        out = Readings(faces, sharpness(faces.images, faces.landmarks), missing=dict(self.missing), against=against)
        clear = None if against is None else against.faces.images
        if self.detector is not None:
            out.detections = detect_faces(self.detector, faces.images, faces.landmarks)
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

    def _find_published(self) -> None:
        """LPIPS and Inception, where their packages and weights are here."""
        try:
            network = lpips_backbone()
            if network is None:
                self._lack("lpips", "no backbone of LPIPS (AlexNet, VGG-16, SqueezeNet) is in torch's cache of weights")
            else:
                self.lpips = Lpips(network)
        except ImportError:
            self._lack("lpips", "the package lpips is not installed; install ficgan[eval]")
        try:
            path = inception_file()
            if path is None:
                self._lack("inception", "torch-fidelity's Inception is not in torch's cache of weights")
            else:
                self.inception = Inception(path)
        except ImportError:
            self._lack("inception", "the package torch-fidelity is not installed; install ficgan[eval]")

    def _lack(self, judge: str, why: str) -> None:
        self.missing[judge] = why


def _first(folders: Sequence[Path], pattern: str) -> Path | None:
    return next((path for folder in folders if folder.is_dir() for path in sorted(folder.glob(pattern))), None)
