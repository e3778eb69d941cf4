"""What is measured in pictures: how alike they are, one by one and as sets, and where the face is."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch
import torchvision.models
from numpy.typing import ArrayLike, NDArray
from safetensors.numpy import load_file

from ficgan.arrays import blocks, resize, to_tensor
from ficgan.device import onnx_session
from ficgan.errors import UsageError
from ficgan.faces import DetectAt, FaceDetector
from ficgan.lab.metrics import Floats

Images = NDArray[np.uint8]
Matrix = NDArray[np.float64]

_WINDOW, _SIGMA = 11, 1.5
_C1, _C2 = (0.01 * 255) ** 2, (0.03 * 255) ** 2
_BATCH = 32
_SCALE = 0.1  # Of SqueezeNet's features: as large as Inception's
_FEW = 4  # Images that SqueezeNet sees at once: larger batches leave the cache
# Backbones of LPIPS, in order of preference: the weights of torchvision that each begins from
_BACKBONES = {"alex": "AlexNet_Weights", "vgg": "VGG16_Weights", "squeeze": "SqueezeNet1_1_Weights"}


def ssim(a: Images, b: Images) -> Matrix:
    """SSIM [N] of pairs [N,S,S,3] uint8 RGB in Gaussian windows of 11×11, σ 1.5 (Wang et al. 2004, eqs. 13–16).

    Mean over channels and whole windows; NaN where S is below 11.
    """
    out = np.full(len(a), np.nan)
    if a.shape[1] < _WINDOW:
        return out
    for index, (left, right) in enumerate(zip(a, b, strict=True)):
        x, y = left.astype(np.float32) - 127.5, right.astype(np.float32) - 127.5
        mx, my = _window(x), _window(y)
        both = 2 * (_window(x * y) - mx * my) + _C2
        spread = _window(x * x) + _window(y * y) - mx * mx - my * my + _C2
        structure = both / spread
        mx += 127.5
        my += 127.5
        out[index] = (structure * (2 * mx * my + _C1) / (mx * mx + my * my + _C1)).mean(dtype=np.float64)
    return out


def psnr(a: Images, b: Images) -> Matrix:
    """Peak signal-to-noise ratio of pairs [N,S,S,3] uint8: float64 [N], dB; infinite where the pixels are equal."""
    error = [np.mean(np.square(x.astype(np.float32) - y), dtype=np.float64) for x, y in zip(a, b, strict=True)]
    with np.errstate(divide="ignore"):
        return 10 * np.log10(255.0**2 / np.array(error))


def sharpness(images: Images, landmarks: NDArray[np.floating]) -> Matrix:
    """Variance of the grey Laplacian about the face: float64 [N] (LAPV, Pech-Pacheco et al. 2000)."""
    side = images.shape[1]
    centres = (landmarks.min(1) + landmarks.max(1)) / 2
    reach = np.linalg.norm(landmarks[:, 1] - landmarks[:, 0], axis=1)[:, None]
    low = np.floor(centres - reach).clip(0, side - 2).astype(int)
    high = np.maximum(np.ceil(centres + reach).clip(0, side).astype(int), low + 2)
    out = np.empty(len(images))
    for index, (image, (left, top), (right, bottom)) in enumerate(zip(images, low, high, strict=True)):
        grey = cv2.cvtColor(np.ascontiguousarray(image[top:bottom, left:right]), cv2.COLOR_RGB2GRAY)
        out[index] = cv2.Laplacian(grey, cv2.CV_32F).var(dtype=np.float64)
    return out


def _window(image: NDArray[np.float32]) -> NDArray[np.float32]:
    edge = _WINDOW // 2
    blurred: Any = cv2.GaussianBlur(image, (_WINDOW, _WINDOW), _SIGMA)
    return blurred[edge:-edge, edge:-edge]


class SqueezeNet:
    """SqueezeNet 1.1 as an ONNX file with seven taps, and LPIPS's linear layers for them (Zhang et al. 2018, eq. 1).

    LPIPS is Σ_taps mean_positions Σ_channels w_c (â_c − b̂_c)² with unit vectors â, b̂ at every position.
    """

    def __init__(self, backbone: Path, linear: Path) -> None:
        self._session, stored = onnx_session(backbone), load_file(linear)
        self._weights = [stored[name].ravel() for name in sorted(stored)]

    def read(self, images: Images, *, clear: Images | None = None) -> tuple[NDArray[np.float32], Matrix | None]:
        """Features [N,512] of images [N,S,S,3] uint8 RGB, and their LPIPS-like distances [N] to the `clear` ones."""
        features, distances = [], []
        for begin in range(0, len(images), _FEW):
            rows = slice(begin, begin + _FEW)
            taps = self._look(images[rows])
            features.append(taps[-1].mean((2, 3)) * _SCALE)
            if clear is not None:
                parts = zip(taps, self._look(clear[rows]), self._weights, strict=True)
                distances.append(np.sum([_tap_distance(*part) for part in parts], axis=0))
        return np.concatenate(features), np.concatenate(distances) if distances else None

    def features(self, images: Images) -> NDArray[np.float32]:
        return self.read(images)[0]

    def _look(self, images: Images) -> list[NDArray[np.float32]]:
        image = self._session.get_inputs()[0]
        side = image.shape[2] if isinstance(image.shape[2], int) else 128
        batch = np.stack([resize(each, side) for each in images]).transpose(0, 3, 1, 2)
        return self._session.run(None, {image.name: batch.astype(np.float32, "C") / 255})


def _tap_distance(x: NDArray[np.float32], y: NDArray[np.float32], weight: NDArray[np.float32]) -> Matrix:
    units = [tap / (np.sqrt(np.einsum("nchw,nchw->nhw", tap, tap))[:, None] + 1e-10) for tap in (x, y)]
    return np.einsum("nchw,c->n", (units[0] - units[1]) ** 2, weight, dtype=np.float64) / (x.shape[2] * x.shape[3])


class Lpips:
    """LPIPS by the package `lpips`, from a backbone ("alex", "vgg" or "squeeze") that is already on the disk."""

    def __init__(self, network: str) -> None:
        import lpips

        self.network = network
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torchvision's about the argument by which lpips asks for weights
            self._net: Any = lpips.LPIPS(net=network, verbose=False).eval()

    def distance(self, a: Images, b: Images) -> Matrix:
        """Distances [N] of pairs [N,S,S,3] uint8 RGB."""
        out = []
        with torch.inference_mode():
            for rows in blocks(len(a), _BATCH):
                pair = (to_tensor(np.ascontiguousarray(some[rows]), "cpu") for some in (a, b))
                out.append(self._net(*pair).flatten().double().numpy())
        return np.concatenate(out)


class Inception:
    """Inception's 2048 features, of which FID and KID are made, by the package `torch-fidelity`."""

    def __init__(self, weights: Path) -> None:
        from torch_fidelity.feature_extractor_inceptionv3 import FeatureExtractorInceptionV3

        self._net: Any = FeatureExtractorInceptionV3("inception-v3-compat", ["2048"], str(weights)).eval()

    def features(self, images: Images) -> NDArray[np.float32]:
        """float32 [N,2048] of images [N,S,S,3] uint8 RGB."""
        planes = torch.from_numpy(np.ascontiguousarray(images.transpose(0, 3, 1, 2)))
        with torch.inference_mode():
            return np.concatenate([self._net(planes[rows])[0].float().numpy() for rows in blocks(len(images), _BATCH)])


def lpips_backbone() -> str | None:
    """The backbone of LPIPS whose weights torchvision has on the disk, or None; nothing is downloaded."""
    urls = {name: getattr(torchvision.models, weights).IMAGENET1K_V1.url for name, weights in _BACKBONES.items()}
    return next((name for name, url in urls.items() if hub_file(url.rpartition("/")[2])), None)


def check_pretrained(network: str) -> None:
    """`UsageError` where ImageNet's weights of a network of torchvision are not on the disk; nothing is downloaded."""
    name = torchvision.models.get_model_weights(network).DEFAULT.url.rpartition("/")[2]
    if hub_file(name) is None:
        raise UsageError(f"{network} begins from ImageNet's weights; put {name} into torch's cache of weights")


def inception_file() -> Path | None:
    """Inception's weights as torch-fidelity has them on the disk, or None; nothing is downloaded."""
    from torch_fidelity.feature_extractor_inceptionv3 import URL_INCEPTION_V3

    return hub_file(URL_INCEPTION_V3.rpartition("/")[2])


def hub_file(name: str) -> Path | None:
    """A file of torch's own cache of weights, or None. They are pickles, so they are never looked for elsewhere."""
    path = Path(torch.hub.get_dir()) / "checkpoints" / name
    return path if path.is_file() else None


def frechet_distance(a: ArrayLike, b: ArrayLike) -> float:
    """Fréchet distance of Gaussians fitted to features [N,D] and [M,D], biased upwards where few; FID for Inception's.

    ‖μa − μb‖² + tr(Σa + Σb − 2(Σa Σb)^½) (Heusel et al. 2017, eq. 6); the trace of the root is the sum of the singular
    values of Ca Cbᵀ, with C the centred features over √(N−1): exact also for few images.
    """
    x, y = np.asarray(a, np.float64), np.asarray(b, np.float64)
    mean = x.mean(0) - y.mean(0)
    x, y = (x - x.mean(0)) / np.sqrt(len(x) - 1), (y - y.mean(0)) / np.sqrt(len(y) - 1)
    # A root R of XᵀX (RᵀR = XᵀX) has at most D rows, and the same singular values in such products as X itself.
    left, right = (np.asarray(np.linalg.qr(z, mode="r")) if len(z) > z.shape[1] else z for z in (x, y))
    shared = np.linalg.svd(left @ right.T, compute_uv=False).sum()
    return max(float(mean @ mean + np.square(x).sum() + np.square(y).sum() - 2 * shared), 0.0)


def halves(x: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Two random halves of the rows of an array; of arrays of one length they are the same rows."""
    order = np.random.default_rng(0).permutation(len(x))
    return x[order[: len(x) // 2]], x[order[len(x) // 2 :]]


POSE_NAMES = ("yaw", "pitch", "roll")
_LOOK_AT = 160  # Side at which crops are searched: one pass there finds as many faces of CelebA as the pyramid of sizes

# A generic head in units of its eye distance: x to the viewer's right, y down, z towards the viewer, pupils at z = 0.
# Depths: a nose tip stands 26 mm, corners of the mouth 4 mm before the pupils, at a distance of 63 mm between these.
_HEAD: NDArray[np.float64] = np.array(
    [[-0.5, 0.0, 0.0], [0.5, 0.0, 0.0], [0.0, 0.56, 0.42], [-0.4, 1.02, 0.06], [0.4, 1.02, 0.06]]
)


@dataclass(frozen=True)
class Detections:
    """The face found in each of N crops; NaN where none was found."""

    boxes: NDArray[np.float32]  # float32 [N,4], x0, y0, x1, y1 in pixels
    landmarks: NDArray[np.float32]  # float32 [N,5,2], pixels

    @property
    def found(self) -> NDArray[np.bool_]:
        """bool [N]."""
        return np.isfinite(self.boxes[:, 0])


def quick(detector: FaceDetector, side: int = _LOOK_AT, *, enlarge: bool = True) -> FaceDetector:
    """The detector in one pass at a longer side, pixels; one without a method `once` as it is at that size."""
    once = getattr(detector, "once", None)
    return DetectAt(once() if once else detector, (side, side), enlarge)


def detect_faces(detector: FaceDetector, images: NDArray[np.uint8], landmarks: Floats) -> Detections:
    """The face of each crop [N,S,S,3] uint8 RGB; of several faces the one nearest to the crop's landmarks [N,5,2]."""
    boxes = np.full((len(images), 4), np.nan, np.float32)
    points = np.full((len(images), 5, 2), np.nan, np.float32)
    for index, (image, marks) in enumerate(zip(images, landmarks, strict=True)):
        faces = detector.detect(image)
        if faces:
            face = min(faces, key=lambda each: float(np.linalg.norm(each.landmarks.mean(0) - marks.mean(0))))
            boxes[index], points[index] = face.box, face.landmarks
    return Detections(boxes, points)


def box_iou(a: Floats, b: Floats) -> NDArray[np.float64]:
    """Intersection over union of boxes [N,4] (x0, y0, x1, y1) one by one: [N]; NaN where one is missing."""
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    sides = np.minimum(a[:, 2:], b[:, 2:]) - np.maximum(a[:, :2], b[:, :2])
    common = sides.clip(0).prod(1)
    union = (a[:, 2:] - a[:, :2]).prod(1) + (b[:, 2:] - b[:, :2]).prod(1) - common
    return np.divide(common, union, out=np.where(np.isnan(union), np.nan, 0.0), where=union > 0)


def eye_distance(landmarks: Floats) -> NDArray[np.float64]:
    """Distance of the eyes, pixels: landmarks [N,5,2] → [N]."""
    return np.linalg.norm(np.asarray(landmarks, np.float64)[:, 1] - landmarks[:, 0], axis=1)


def landmark_distance(a: Floats, b: Floats) -> NDArray[np.float64]:
    """Mean distance of the five landmarks [N,5,2] to the same of the other, pixels: [N]; NaN where one is missing."""
    return np.linalg.norm(np.asarray(a, np.float64) - b, axis=2).mean(1)


def mouth_width(landmarks: Floats) -> NDArray[np.float64]:
    """Width of the mouth in eye distances, which a smile widens: landmarks [N,5,2] → [N]; NaN where there are none."""
    marks = np.asarray(landmarks, np.float64)
    return np.linalg.norm(marks[:, 4] - marks[:, 3], axis=1) / eye_distance(marks).clip(1e-9)


def head_pose(landmarks: Floats) -> NDArray[np.float64]:
    """Pose [N,3], degrees, of landmarks [N,5,2]: yaw (positive: to the viewer's right), pitch (up), roll (clockwise).

    The nearest rotation (Higham 1986) to the best affine map of a generic head (Tomasi and Kanade 1992). NaN without a
    face.
    """
    points = np.asarray(landmarks, np.float64)
    out = np.full((len(points), 3), np.nan)
    seen = np.isfinite(points).all((1, 2))
    head = _HEAD - _HEAD.mean(0)
    rows = np.swapaxes(np.linalg.pinv(head) @ (points[seen] - points[seen].mean(1, keepdims=True)), 1, 2)  # [M,2,3]
    u, _, v = np.linalg.svd(rows, full_matrices=False)
    x, y = np.moveaxis(u @ v, 1, 0)  # the picture's axes in the head's frame, each [M,3]
    z = np.cross(x, y)
    # [x, y, z] = Ry(yaw) Rx(pitch) Rz(roll): its last column is where the face looks, its second row knows no yaw.
    out[seen] = np.degrees(
        np.stack([np.arctan2(x[:, 2], z[:, 2]), np.arcsin(-y[:, 2].clip(-1, 1)), np.arctan2(y[:, 0], y[:, 1])], 1)
    )
    return out
