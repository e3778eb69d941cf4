"""How different images look: LPIPS with its own weights where they are, else with SqueezeNet's, and named so."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ficgan.arrays import resize
from ficgan.errors import InputError
from ficgan.lab.metrics.distribution import mean_pairwise_square

__all__ = ["Inception", "Lpips", "Perception", "SqueezeNet", "hub_file", "inception_file", "lpips_backbone"]

Images = NDArray[np.uint8]
_BATCH = 32
_SCALE = 0.1
"""Of SqueezeNet's features: as large as Inception's, for which the kernel of KID, a sum of powers, was chosen."""
_FEW = 4  # images that SqueezeNet sees at once: larger batches leave the cache

_BACKBONES = {"alex": "AlexNet_Weights", "vgg": "VGG16_Weights", "squeeze": "SqueezeNet1_1_Weights"}
"""Of LPIPS, in order of preference: the weights of torchvision that each begins from."""


@dataclass(frozen=True)
class Perception:
    """What SqueezeNet sees in N images.

    Args:
        features: float32 [N,512], means over positions of the last layer, scaled.
        codes: float16 [N,D]: the LPIPS-like distance of two images is ‖u − v‖². None where they were not kept.
        diversity: mean LPIPS-like distance over all pairs of the N images; None without linear layers.
        distances: float64 [N], LPIPS-like, to the images they were read against; None where there were none.
    """

    features: NDArray[np.float32]
    codes: NDArray[np.float16] | None = None
    diversity: float | None = None
    distances: NDArray[np.float64] | None = None


class SqueezeNet:
    """SqueezeNet 1.1 as an ONNX file with seven taps, and LPIPS's linear layers for them.

    LPIPS is Σ_taps mean_positions Σ_channels w_c (â_c − b̂_c)² with unit vectors â, b̂ at every position. So the values
    √(w_c/positions)·â_c of all taps, laid end to end, are a vector (a code) whose squared distances are LPIPS; channels
    of weight 0 are left out.

    Args:
        backbone: ONNX file, RGB 0..1 → seven taps [B,C,h,w].
        linear: safetensors file with seven weights [1,C,1,1]; None: no distances, features only.

    Raises:
        InputError: a file that cannot be read, or that does not fit the other.

    Source: Zhang et al. 2018, eq. 1 (LPIPS, version 0.1).
    """

    def __init__(self, backbone: Path, linear: Path | None = None) -> None:
        from ficgan.faces.models import onnx_session

        self._session = onnx_session(backbone)
        self._input = self._session.get_inputs()[0]
        side = self._input.shape[2]
        self.size: int = side if isinstance(side, int) else 128
        channels = [tap.shape[1] for tap in self._session.get_outputs()]
        self._weights = None if linear is None else _linear(linear, channels)

    def read(
        self, images: Images, *, keep: bool = False, clear: Images | None = None, known: Perception | None = None
    ) -> Perception:
        """What is seen in images [N,S,S,3] uint8 RGB, N at least 1.

        Args:
            keep: whether codes are kept: about 0.9 MB an image.
            clear: [N,S,S,3], to which distances are taken; None: no distances.
            known: what was seen in `clear`; it is looked at again where the codes were not kept.
        """
        features, codes, distances = [], [], []
        total: Any = 0.0
        squares = 0.0
        for begin in range(0, len(images), _FEW):
            rows = slice(begin, begin + _FEW)
            seen, code = self._look(images[rows])
            features.append(seen)
            if code is None:
                continue
            total = total + code.sum(0, dtype=np.float64)
            squares += float(np.vdot(code, code))
            codes += [_halved(code)] if keep else []
            if clear is not None:
                held = None if known is None else known.codes
                other: Any = self._look(clear[rows])[1] if held is None else _widened(held[rows])
                code -= other
                distances.append(np.einsum("nd,nd->n", code, code))
        return Perception(
            np.concatenate(features),
            np.concatenate(codes) if codes else None,
            mean_pairwise_square(total, squares, len(images)) if self.measures else None,
            np.concatenate(distances).astype(np.float64) if distances else None,
        )

    @property
    def measures(self) -> bool:
        """Whether there are linear layers, hence distances."""
        return self._weights is not None

    def _look(self, images: Images) -> tuple[NDArray[np.float32], NDArray[np.float32] | None]:
        small = np.stack([resize(image, self.size) for image in images])
        batch = np.ascontiguousarray(small.transpose(0, 3, 1, 2), np.float32) / 255
        taps = self._session.run(None, {self._input.name: batch})
        features = taps[-1].mean((2, 3)) * _SCALE
        return features, None if self._weights is None else _code(taps, self._weights)


class Lpips:
    """LPIPS by the package `lpips`, from a backbone that is already on the disk.

    Args:
        network: "alex", "vgg" or "squeeze", of `lpips_backbone`.
    """

    def __init__(self, network: str) -> None:
        import lpips

        self.network = network
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torchvision's about the argument by which lpips asks for weights
            self._net: Any = lpips.LPIPS(net=network, verbose=False).eval()

    def distance(self, a: Images, b: Images) -> NDArray[np.float64]:
        """Distances [N] of pairs [N,S,S,3] uint8 RGB."""
        import torch

        from ficgan.arrays import to_tensor

        out = []
        with torch.inference_mode():
            for begin in range(0, len(a), _BATCH):
                rows = slice(begin, begin + _BATCH)
                pair = to_tensor(np.ascontiguousarray(a[rows]), "cpu"), to_tensor(np.ascontiguousarray(b[rows]), "cpu")
                out.append(self._net(*pair).flatten().double().numpy())
        return np.concatenate(out)


class Inception:
    """Inception's 2048 features, of which FID and KID are made, by the package `torch-fidelity`.

    Args:
        weights: its file, of `inception_file`.
    """

    def __init__(self, weights: Path) -> None:
        from torch_fidelity.feature_extractor_inceptionv3 import FeatureExtractorInceptionV3

        self._net: Any = FeatureExtractorInceptionV3("inception-v3-compat", ["2048"], str(weights)).eval()

    def features(self, images: Images) -> NDArray[np.float32]:
        """float32 [N,2048] of images [N,S,S,3] uint8 RGB."""
        import torch

        out = []
        with torch.inference_mode():
            for begin in range(0, len(images), _BATCH):
                batch = torch.from_numpy(np.ascontiguousarray(images[begin : begin + _BATCH].transpose(0, 3, 1, 2)))
                out.append(self._net(batch)[0].float().numpy())
        return np.concatenate(out)


def lpips_backbone() -> str | None:
    """The backbone of LPIPS whose weights torchvision has on the disk, or None; nothing is downloaded."""
    import torchvision.models

    for network, weights in _BACKBONES.items():
        if hub_file(getattr(torchvision.models, weights).IMAGENET1K_V1.url.rpartition("/")[2]):
            return network
    return None


def inception_file() -> Path | None:
    """Inception's weights as torch-fidelity has them on the disk, or None; nothing is downloaded.

    Raises:
        ImportError: torch-fidelity is not installed.
    """
    from torch_fidelity.feature_extractor_inceptionv3 import URL_INCEPTION_V3

    return hub_file(URL_INCEPTION_V3.rpartition("/")[2])


def hub_file(name: str) -> Path | None:
    """A file of torch's own cache of weights, or None.

    These files are pickles, which their packages open. So they are looked for only where the packages themselves would
    take them from, never in a folder of the user's.
    """
    import torch

    path = Path(torch.hub.get_dir()) / "checkpoints" / name
    return path if path.is_file() else None


def _linear(path: Path, channels: list[int]) -> list[NDArray[np.float32]]:
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    try:
        stored = load_file(path)
    except (OSError, SafetensorError) as error:
        raise InputError(f"{path} cannot be read as LPIPS's linear layers ({error}); copy it again") from error
    weights = [stored[name].ravel() for name in sorted(stored)]
    if [len(weight) for weight in weights] != channels or any((weight < 0).any() for weight in weights):
        raise InputError(f"{path} does not fit taps of {channels} channels; give the linear layers of SqueezeNet")
    return weights


def _code(taps: list[NDArray[np.float32]], weights: list[NDArray[np.float32]]) -> NDArray[np.float32]:
    """[B,D]: squared distances of these are LPIPS."""
    parts = []
    for tap, weight in zip(taps, weights, strict=True):
        count, channels, height, width = tap.shape
        flat = tap.reshape(count, channels, height * width)
        norm = np.sqrt(np.einsum("ncp,ncp->np", flat, flat)) + 1e-10
        used = np.flatnonzero(weight)
        scale = np.sqrt(weight[used] / (height * width))[:, None]
        parts.append((flat[:, used] * (scale / norm[:, None, :])).reshape(count, -1))
    return np.concatenate(parts, axis=1)


def _halved(code: NDArray[np.float32]) -> NDArray[np.float16]:
    """By torch, which is thirty times faster at this than NumPy."""
    import torch

    return torch.from_numpy(code).half().numpy()


def _widened(code: NDArray[np.float16]) -> NDArray[np.float32]:
    import torch

    return torch.from_numpy(code).float().numpy()
