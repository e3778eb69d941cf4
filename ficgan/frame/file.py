"""The files of a model in the frame: the linear model, the networks, and the numbers of making faces with them.

The network is run by onnxruntime, so no torch is needed to use it.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from ficgan.arrays import ModelInfo, read_arrays, write_arrays
from ficgan.device import onnx_session
from ficgan.errors import FicganError, TakenError
from ficgan.files import file_digest
from ficgan.frame import LIDS, NUMBERS, Floats
from ficgan.frame.appearance import LIGHT, SMALL, AppearanceModel
from ficgan.identity.kind import READING

# Of the file, as its metadata says it.
KIND = "appearance"
SCHEMA = 2
# The first one whose detail networks fit what is lent.
DETAIL_FITS = 2
# Files beside a model's: other lenders or another network must not cost a new linear model. The lenders' arrays, and
# those that stay in the model's own file.
BESIDE = {"linear": "linear.safetensors", "lenders": "lenders.safetensors"}
_LENDERS = ("details", "detail_tones", "detail_scale", "lenders", "middles")
_OWN = ("detail_network", "bias", "gate", "lent_gate")

# Standard deviation of the detail that only a doubled texture shows, of an ordinary face.
_USUAL_FINE = 0.015
# Readings of an attribute, in standard deviations, times this: beyond one it counts as clearly on its side.
_SIDE = 8.0


@dataclass(frozen=True)
class FrameConfig:
    """Numbers of making faces in the frame; a model's file holds those that are not usual.

    Numbers of expression are in standard deviations.

    Args:
        presence: least score of a mesh that a face is made for.
        most_yaw: radians; a head turned further gets no new face.
        most_folded: share of the mask that the source's own turn may hide.
        jitter: noise on each number of expression (see NUMBERS), one draw a person; most where it tells people apart.
        shown: share of each number of expression that is published.
        rest: numbers of a relaxed face, towards which they are damped.
        closing: lids at which eyes begin to close, at which they are closed, and where closed ones are published.
        smile, smiling: what reads a smile from the numbers (1,500 faces, r = .83), and what it adds to them.
        smile_shown: share of it that is published where there is less of a smile than usual, and where there is more.
        smile_jitter: share of the numbers' noise that is put on it: together they need less.
        slopes, shapes: share of the slopes of light, and of a drawn shape, that is published: all would bend faces.
        rim: how far the outline of the face stays the source's own; it meets the head, and tells people apart.
        choices: of so many k-same draws the one least like the source's is taken.
        again: of so many times as many, where a face is recognised and drawn again.
        limit: numbers of expression beyond it are cut: the model has not seen them.
        kept: how clearly a new face shows each attribute that stays (gender, age); 1 is as clearly as the source.
        sided: how far each is pushed to the side it is read on: a mean in between looks mostly like a man.
        gains: of the bands of fine detail, see `sharpened`.
        detail: most fine detail that a face gets, as a share of what its lender has.
        inset, feather: frame units by which the mask is drawn in from the outline, and width of its edge.
    """

    presence: float = 0.0
    most_yaw: float = 0.8
    most_folded: float = 0.3
    jitter: tuple[float, ...] = (0.0, 0.5, 0.45, 0.4, 0.4, 0.4)
    shown: tuple[float, ...] = (0.9, 0.65, 0.9, 0.75, 0.5, 0.4)
    rest: tuple[float, ...] = (0.0, 0.0, 0.0, 0.25, 0.0, -0.5)
    closing: tuple[float, ...] = (-1.2, -2.2, -3.2)
    smile: tuple[float, ...] = (0.15, 1.63, 1.30, -0.18, 0.15, 0.15)
    smiling: tuple[float, ...] = (0.21, 0.33, 0.33, -0.12, -0.03, -0.06)
    smile_shown: tuple[float, float] = (1.0, 1.1)
    smile_jitter: float = 0.5
    slopes: float = 0.5
    shapes: float = 0.8
    rim: float = 0.2
    choices: int = 96
    again: int = 4
    limit: float = 2.5
    kept: tuple[float, ...] = (1.6, 2.8)
    sided: tuple[float, ...] = (1.4, 0.0)
    gains: tuple[float, ...] = (2.6, 1.8, 1.35, 1.1)
    detail: float = 1.2
    inset: float = 0.0
    feather: float = 2.5

    def shown_numbers(self, numbers: Floats, noise: NDArray[Any]) -> Floats:
        """Numbers of expression [B,6] that are published of those of the sources, with noise [B,6] or [6]."""
        own = np.clip(numbers, -self.limit, self.limit)
        rest = np.array(self.rest)
        shown = rest + np.array(self.shown) * (own - rest) + noise
        smile, smiling = np.array(self.smile), np.array(self.smiling)
        less, more = self.smile_shown
        read = own @ smile
        wanted = np.where(read > 0, more, less) * read + self.smile_jitter * noise @ smile
        shown += ((wanted - shown @ smile) / (smile @ smiling))[:, None] * smiling
        shown = np.clip(shown, -self.limit, self.limit)
        begin, end, closed = self.closing
        shut = np.clip((begin - own[:, LIDS]) / (begin - end), 0, 1)
        shown[:, LIDS] += shut * (closed - shown[:, LIDS])
        return shown.astype(np.float32)

    def shown_attributes(self, kept: Floats) -> Floats:
        """Attributes [A] or [B,A] that a new face shows, of those that its kind has."""
        far, side = (np.resize(part, kept.shape[-1]) for part in (self.kept, self.sided))
        return (far * kept + side * np.tanh(_SIDE * kept)).astype(np.float32)


@dataclass(frozen=True, eq=False)
class FrameNetwork:
    """Networks that read (texture, code → w) and write (w, moment, linear → texture, shape) faces, ONNX in memory."""

    reader: bytes
    writer: bytes
    w_dim: int
    num_layers: int
    device: str = "cpu"

    def read(self, textures: NDArray[np.uint8], codes: Floats) -> Floats:
        """w [B,w_dim] of textures uint8 [B,R,R,3] and identity codes of the linear model [B,C]."""
        x = textures.astype(np.float32).transpose(0, 3, 1, 2) / np.float32(127.5) - 1
        return self._sessions[0].run(["w"], {"texture": x, "code": codes})[0]

    def write(self, w: Floats, moment: Floats, linear: Floats) -> tuple[Floats, Floats]:
        """Texture [B,R,R,3], of the contrast, and shape [B,I], deviations, to be added to the linear model's in [0,1].

        `w` is [B,L,w_dim], `moment` [B,M] of `AppearanceModel.moment_vector`.
        """
        x = np.ascontiguousarray(linear.transpose(0, 3, 1, 2) * 2 - 1, np.float32)
        given = {"w": w, "moment": moment, "linear": x}
        texture, shape = self._sessions[1].run(["texture", "shape"], given)
        return texture.transpose(0, 2, 3, 1), shape

    @cached_property
    def _sessions(self) -> tuple[Any, Any]:
        return onnx_session(self.reader, self.device), onnx_session(self.writer, self.device)


@dataclass(frozen=True, eq=False)
class DetailWriter:
    """Fits lent detail to a face of twice the frame's size by a network, an ONNX file in memory."""

    network: bytes
    device: str = "cpu"

    def write(self, texture: Floats, lent: Floats, kind: Floats, fine: float) -> Floats:
        """Luminances [2R,2R] to be added to detail that is lent to a texture; they leave its tone as it is.

        Args:
            texture: [R,R,3] in [0,1]; lent: [2R,2R], of `lent_detail`.
            kind: a reading [9] of `KindReader`; fine: deviation of the photo's detail.
        """
        side = len(texture)
        x = np.ascontiguousarray(texture.transpose(2, 0, 1)[None] * 2 - 1, np.float32)
        condition = detail_conditions(kind[None], np.array([fine]))
        given = {"texture": x, "condition": condition, "lent": lent[None, None].astype(np.float32)}
        made = np.ascontiguousarray(self._run.run(["detail"], given)[0][0].transpose(1, 2, 0))
        # The network's own last step: in a graph these means would take a fifth of its time.
        count = np.ones((side, side), np.float32)
        sums: Any = [cv2.boxFilter(x, -1, (9, 9), None, (-1, -1), False, cv2.BORDER_CONSTANT) for x in (made, count)]
        made -= sums[0] / sums[1][..., None]
        return made.reshape(side, side, 2, 2).transpose(0, 2, 1, 3).reshape(2 * side, 2 * side)

    @cached_property
    def _run(self) -> Any:
        return onnx_session(self.network, self.device)


def detail_conditions(kinds: Floats, fine: NDArray[Any]) -> Floats:
    """Conditions of a detail network [B,10]: kinds [B,9], and the strength of detail [B] as a number in [−2.5, 2.5]."""
    sharp: NDArray[Any] = np.clip(np.log(np.maximum(fine, 1e-4) / _USUAL_FINE) / 0.5, -2.5, 2.5)
    return np.column_stack([kinds[:, :8], kinds[:, 8] / 50 - 1, sharp]).astype(np.float32)


def save_appearance(
    path: str | Path,
    model: AppearanceModel,
    config: FrameConfig,
    info: ModelInfo,
    *,
    overwrite: bool = False,
    network: FrameNetwork | None = None,
    apart: bool = False,
) -> None:
    """Write a model as safetensors with a JSON header, each file whole or not at all.

    `apart`: the linear model and the lenders get files of their own beside it, see `BESIDE`.
    """
    usual = asdict(FrameConfig())
    header: dict[str, Any] = {
        "schema_version": SCHEMA,
        "size": model.size,
        "names": list(model.names),
        "lights": model.lights,
        "config": {name: value for name, value in asdict(config).items() if value != usual[name]},
        "alignment": info.alignment,
        "data": info.data,
        "training": info.training,
    }
    arrays = model.to_arrays()
    if apart:
        folder = Path(path).parent
        taken = [each for each in (Path(path), *(folder / name for name in BESIDE.values())) if each.exists()]
        if taken and not overwrite:
            raise TakenError(f"{taken[0]} exists already; choose another name")
        own, lenders = ({n: arrays.pop(n) for n in names if n in arrays} for names in (_OWN, _LENDERS))
        header["beside"] = {}
        for (kind, name), some in zip(BESIDE.items(), (arrays, lenders), strict=True):
            write_arrays(folder / name, some, {}, kind=kind, overwrite=overwrite)
            header["beside"][kind] = file_digest(folder / name)
        arrays = own
    if network is not None:
        header["network"] = {"w_dim": network.w_dim, "num_layers": network.num_layers}
        for name in ("reader", "writer"):
            arrays[f"network.{name}"] = np.frombuffer(getattr(network, name), np.uint8)
    write_arrays(path, arrays, header, kind=KIND, overwrite=overwrite)


def load_appearance(path: str | Path) -> tuple[AppearanceModel, FrameConfig, ModelInfo, FrameNetwork | None]:
    """Read a file of `save_appearance`, or raise a FicganError; the network is None where it holds none."""
    arrays, header = read_arrays(path, kind=KIND)
    try:
        for kind, digest in header.get("beside", {}).items():
            beside = Path(path).parent / BESIDE[kind]
            if not beside.is_file():
                raise FicganError(f"{path} needs {beside.name} in the same folder; copy them together")
            arrays |= read_arrays(beside, kind=kind)[0]
            if file_digest(beside) != digest:
                raise FicganError(f"{beside} does not belong to {path}; fetch both again, or make them again")
        if header["schema_version"] < DETAIL_FITS:
            arrays.pop("detail_network", None)
        if header["schema_version"] > SCHEMA:
            version = header["schema_version"]
            raise FicganError(f"{path} has schema {version}, this ficgan reads up to {SCHEMA}; upgrade ficgan")
        if not all(np.isfinite(array).all() for array in arrays.values()):
            raise ValueError("it has numbers that are not finite")
        if not 16 <= header["size"] <= 1024:
            raise ValueError(f"its size is {header['size']}")
        model = AppearanceModel.from_arrays(arrays, header)
        _check_sizes(model)
        numbers: dict[str, Any] = {n: tuple(v) if isinstance(v, list) else v for n, v in header["config"].items()}
        info = ModelInfo(header["alignment"], header["data"], header["training"])
        network = None
        if (sizes := header.get("network")) is not None:
            if sizes.get("z_non"):
                raise FicganError(f"{path} has a network with a learnt spatial code; train it again")
            reader, writer = (arrays[f"network.{name}"].tobytes() for name in ("reader", "writer"))
            network = FrameNetwork(reader, writer, int(sizes["w_dim"]), int(sizes["num_layers"]))
            if network.num_layers != model.num_layers:
                raise ValueError(f"its network has {network.num_layers} layers, the model {model.num_layers}")
        return model, FrameConfig(**numbers), info, network
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise FicganError(f"{path} is damaged or not a ficgan model ({error}); fetch or make it again") from None


def _check_sizes(model: AppearanceModel) -> None:
    """Whether the arrays of a file belong together, and draw something."""
    for name in ("components", "predict"):
        if not getattr(model, name).any():
            raise ValueError(f"its {name} are all zero, so that it draws one flat patch")
    pixels, code, kept = 3 * len(model.pixels), model.code_size, len(model.names)
    details, light = len(model.details), np.zeros((1, len(model.light_mean)))
    features = model.features(np.zeros((1, len(NUMBERS))), np.zeros((1, 2)), light).shape[1]
    wanted: dict[str, tuple[int | None, ...]] = {
        "light_mean": (LIGHT,),
        "light_sd": (LIGHT,),
        "predict": (features, pixels),
        "components": (None, pixels),
        "looks": (kept, None),
        "attributes": (kept, code),
        "give": (code, kept),
        "bands": (None, code),
        "teeth_openings": (len(model.teeth),),
    }
    optional: dict[str, tuple[int | None, ...]] = {
        "details": (None, len(model.fine_pixels)),
        "middles": (details, len(model.pixels)),
        "teeth": (None, None, None),
        "telling": (code, code),
        "gate": (1 + code, None),
        "bias": (READING + len(NUMBERS), len(model.pixels), 3),
        "usual": (SMALL, SMALL),
    }
    if details:
        wanted |= {"lenders": (details, READING), "detail_tones": (details, None, None)}
    if model.gate.size:
        wanted["lent_gate"] = (details, model.gate.shape[1])
    wanted |= {name: sizes for name, sizes in optional.items() if getattr(model, name).size}
    for name, sizes in wanted.items():
        shape = getattr(model, name).shape
        if len(shape) != len(sizes) or any(want not in (None, have) for want, have in zip(sizes, shape, strict=True)):
            raise ValueError(f"its {name} have the shape {list(shape)}")
