"""Faces made in the canonical frame, with the user's controls; needs no torch."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ficgan.errors import FicganError, InputError
from ficgan.face_model import FaceModel, Floats, Image, ModelInfo, Sight
from ficgan.faces import Alignment, Face, FaceMesh, MediaPipeMesh, Mesh, Paste, find_meshes
from ficgan.frame import (
    NUMBERS,
    AppearanceModel,
    Look,
    Moment,
    fine_detail,
    frame_mask,
    matched_border,
    no_sharper,
    paste_texture,
    read_look,
    read_texture,
    sharpened,
    stretched,
)
from ficgan.frame.appearance import LIGHT, SLOPES
from ficgan.identity import IdentityBank, KSameCode
from ficgan.identity.ksame import keyed_generator
from ficgan.identity.mixing import k_same_layers
from ficgan.images.files import atomic_write
from ficgan.policy import Attempt

__all__ = ["FrameConfig", "FrameModel", "load_appearance", "save_appearance"]

KIND = "appearance"
"""Of the file, as its metadata says it."""
SCHEMA = 1


@dataclass(frozen=True)
class FrameConfig:
    """Numbers of making faces in the frame; part of the model's file.

    Args:
        presence: least score of a mesh that a face is made for.
        most_yaw: radians; a head turned further gets no new face.
        most_folded: share of the mask that the source's own turn may hide.
        jitter: standard deviation of the noise on each number of expression (see NUMBERS), one draw a person. What a
            recogniser of shapes could tell people by gets more.
        shown: share of each number of expression that is published.
        slopes: share of the slopes of light that is published.
        shapes: share of a drawn shape that is published: all of it would bend faces.
        rim: how far the outline of the face stays the source's own; it meets the head, and tells people apart.
        choices: of so many k-same draws the one whose code is least like the source's is taken. Who knows the seed
            learns at most log2(choices) bits of the source from that.
        limit: numbers of expression beyond it, in standard deviations, are cut: the model has not seen them.
        kept: how clearly a new face shows each attribute that stays (gender, age); 1 is as clearly as the source.
        gains: of the bands of fine detail, see `sharpened`.
        detail: most fine detail that a large face gets, as a share of what the synthetic faces have of it.
        inset: frame units by which the mask is drawn in from the outline of the face.
        feather: width of its edge.
    """

    presence: float = 0.0
    most_yaw: float = 0.8
    most_folded: float = 0.3
    jitter: tuple[float, ...] = (0.0, 0.45, 0.45, 0.3, 0.6, 0.6)
    shown: tuple[float, ...] = (0.9, 0.65, 0.9, 0.75, 0.5, 0.4)
    slopes: float = 0.5
    shapes: float = 0.7
    rim: float = 0.3
    choices: int = 6
    limit: float = 2.5
    kept: tuple[float, ...] = (1.5, 0.8)
    gains: tuple[float, ...] = (2.0, 1.55, 1.3, 1.1)
    detail: float = 1.2
    inset: float = 0.0
    feather: float = 2.5


@dataclass(frozen=True, eq=False)
class _Place:
    """Where a face is made.

    Args:
        moment: of this one face.
        texture: uint8 [R,R,3] of the source.
        look: of the photo.
    """

    moment: Moment
    texture: Image
    look: Look


@dataclass(frozen=True, eq=False)
class _Made:
    """A face in the frame.

    Args:
        texture: float32 [R,R,3] in [0,1], or [2R,2R,3] of a large face.
        points: float64 [468,3] of the published mesh, upright units.
    """

    texture: Floats
    points: NDArray[np.float64]


class FrameModel(FaceModel):
    """The linear appearance model.

    An identity code z_id is the model's code followed by the attributes that stay; w is the same. A row of styles is
    the mixed code, the noise on the numbers of expression, which synthetic face lends its pores and lashes, and the
    first and last layer that are new: a face that keeps its row keeps all of them.

    Args:
        model: fitted appearance.
        config: numbers.
        bank: made with it.
        mesh: reads faces; None: MediaPipe's.
        sha256: of the model's file.
        device: of the mesh.
        controls: of `FaceModel`.
    """

    AUTO_PSI = (1.0, 1.0)

    def __init__(
        self, model: AppearanceModel, config: FrameConfig, bank: IdentityBank, *, mesh: FaceMesh | None = None,
        sha256: str = "", device: str = "cpu", **controls: Any,
    ) -> None:  # fmt: skip
        super().__init__(bank, model.num_layers, **controls)
        self.model, self.config, self.device = model, config, device
        self.check_bank(self.code_size)
        # With --device cuda the mesh takes the best provider that onnxruntime has, as the detector does.
        self.mesh: FaceMesh = mesh or MediaPipeMesh(device="cpu" if device == "cpu" else "auto")
        self.resolution, self.alignment = model.size, Alignment("canonical")
        self._sha256 = sha256

    @property
    def precision(self) -> str:
        return "float32"

    def digest(self) -> str:
        return self._sha256[:16]

    # -- reading ------------------------------------------------------------------------------------------------------

    def see(self, pairs: Sequence[tuple[Image, Face]]) -> list[Sight]:
        nothing = np.zeros(self.code_size, np.float32)
        sights = [Sight(nothing, problem="its landmarks span no face")] * len(pairs)
        readable = [n for n, (_, face) in enumerate(pairs) if self._spans(face)]
        for _, group in groupby(readable, lambda n: id(pairs[n][0])):  # neighbours of one photo together
            rows = list(group)
            photo = pairs[rows[0]][0]
            for n, mesh in zip(rows, find_meshes(self.mesh, photo, [pairs[n][1] for n in rows]), strict=True):
                sights[n] = self._sight(photo, mesh)
        return sights

    def _spans(self, face: Face) -> bool:
        try:
            self.alignment.matrix(face.landmarks, self.resolution)
        except InputError:  # landmarks in one point or on a line
            return False
        return True

    def _sight(self, photo: Image, mesh: Mesh) -> Sight:
        model, config = self.model, self.config
        nothing = np.zeros(self.code_size, np.float32)
        if not mesh.presence >= config.presence:
            return Sight(nothing, problem=f"its mesh is unsure (presence {mesh.presence:.1f})")
        read = model.shape.read(mesh.points[None])
        if abs(float(read.pose.yaw[0])) > config.most_yaw:
            return Sight(nothing, problem=f"the head is turned {np.degrees(abs(float(read.pose.yaw[0]))):.0f} degrees")
        grid = model.warp.to_upright(read.points)[0]
        if (folded := model.warp.folded(grid, model.mask)) > config.most_folded:
            return Sight(nothing, problem=f"{folded:.0%} of the face is turned away")
        texture = read_texture(photo, read.upright[0], read.points[0], model.warp, grid=grid)
        code, moment = model.encode(texture[None], read)
        moment = replace(moment, numbers=np.clip(moment.numbers, -config.limit, config.limit))
        look = read_look(photo, read.upright[0], texture, model.mask)
        if len(model.details) and float(read.pose.scale[0]) * float(model.warp.step.min()) > 1.1:
            double = read_texture(photo, read.upright[0], read.points[0], model.warp, finer=2, grid=grid)
            look = replace(look, fine=float(fine_detail(double).ravel()[model.fine_pixels].std()))
        return Sight(np.concatenate([code[0], moment.kept[0]]), _Place(moment, texture, look))

    @property
    def code_size(self) -> int:
        """Length of z_id and of w: the model's code and the attributes that stay."""
        return self.model.code_size + len(self.model.names)

    def latent(self, z_id: Floats) -> Floats:
        return z_id

    # -- new identities -----------------------------------------------------------------------------------------------

    def draw(self, key: str, attempt: Attempt, psi: float, z_id: Floats | None = None) -> KSameCode:
        count = 1 if z_id is None else self.config.choices
        drawn = [super(FrameModel, self).draw(f"{key}/{n}" if n else key, attempt, psi) for n in range(count)]
        code = drawn[0] if z_id is None else min(drawn, key=lambda one: self._likeness(one.w, z_id))
        # Keyed as the draw is: who does not know the seed cannot take the noise off.
        rng = keyed_generator(self.seed, self.bank.digest, self.key(key, attempt), self.k, "numbers")
        noise = rng.standard_normal(len(NUMBERS)) * self.config.jitter
        return replace(code, w=np.concatenate([code.w, noise, rng.random(1)]).astype(np.float32))

    def account(self, *, layer: int, psi: Sequence[float]) -> dict[str, Any]:
        told = super().account(layer=layer, psi=psi)
        told["choices"] = self.config.choices
        stay = ", ".join(self.model.names)
        told["not_covered"] += (
            f" z_non holds expression, head pose, light and part of the outline; {stay or 'no attribute'} stay as they "
            f"are read from the source. Of {self.config.choices} k-same draws the one least like the source was taken, "
            "which tells whoever knows the seed a little about it."
        )
        return told

    def _likeness(self, w: Floats, z_id: Floats) -> float:
        """Cosine of two codes, light left out."""
        size, shape = self.model.code_size, len(self.model.shape.basis)
        a, b = (np.delete(code[:size], np.s_[shape : shape + self.model.lights]) for code in (w, z_id))
        return float(a @ b / max(float(np.linalg.norm(a) * np.linalg.norm(b)), 1e-9))

    def wanted(self, w: Floats) -> Floats:
        size = self.code_size
        return np.concatenate([super().wanted(w[:, :size]), w[:, size:]], 1)

    def mixed(self, z_id: Floats, w_new: Floats, attempt: Attempt) -> Floats:
        size, code_size = self.model.code_size, self.code_size
        first, last = k_same_layers(self.num_layers, None if attempt.band else attempt.layer, attempt.band)
        own, stay = z_id[:, :size], z_id[:, size:]
        given = w_new[:, size:code_size]
        if self.attributes is None and self.target is None:  # the source's own, moved as was asked for
            given = np.resize(self.config.kept, stay.shape[1]) * stay + self.shift[size:]
        codes = self.model.mixed(own, w_new[:, :size], first, last, given)
        extra = w_new[:, code_size:]
        if not extra.size:  # codes that were not drawn
            extra = np.zeros((len(codes), len(NUMBERS) + 1), np.float32)
        lent = [self._lender(float(u), kept) for u, kept in zip(extra[:, -1], given, strict=True)]
        bands = np.tile([first, last], (len(codes), 1))
        return np.concatenate([codes, extra[:, :-1], np.array(lent)[:, None], bands], 1).astype(np.float32)

    def _lender(self, u: float, kept: Floats) -> int:
        """Which synthetic face lends its detail: one of the few whose gender and age fit."""
        looks = self.model.lenders
        if not len(looks):
            return 0
        apart = looks - kept
        if apart.shape[1] > 1:  # wrinkles on the young are worse than none on the old
            apart = np.column_stack([apart[:, 0], np.where(apart[:, 1] > 0, 3, 1) * apart[:, 1]])
        near = np.argsort(np.square(apart).sum(1), kind="stable")[:6]
        return int(near[int(u * len(near)) % len(near)])

    # -- pictures -----------------------------------------------------------------------------------------------------

    def render(self, styles: Floats, sights: Sequence[Sight]) -> list[Any]:
        model, size = self.model, self.model.code_size
        out: list[Any] = []
        config, shape = self.config, len(model.shape.basis)
        for row, sight in zip(styles, sights, strict=True):
            place: _Place = sight.place
            noise, lender, first, last = row[size : size + len(NUMBERS)], int(row[-3]), int(row[-2]), int(row[-1])
            damped = float(last >= first)
            taken: Any = model.bands[first - 1 : last].any(0) if damped else None
            share = 1 + damped * (np.array(config.shown) - 1)
            numbers = np.clip(share * place.moment.numbers + noise, -config.limit, config.limit).astype(np.float32)
            light = place.moment.light.copy()
            light[:, SLOPES] *= 1 + damped * (config.slopes - 1)
            moment = replace(place.moment, numbers=numbers, light=light)
            bent = row[None, :shape].copy()
            if taken is not None:
                bent[:, taken[:shape]] *= config.shapes
            rim = config.rim if taken is not None else 1.0
            points = model.shape.publish(moment.read, numbers, bent, rim=rim)[0]
            texture: Floats = place.texture.astype(np.float32) / np.float32(255)
            texture.reshape(-1, 3)[model.pixels] = model.decode(row[None, :size], moment, taken)[0]
            lends = bool(place.look.fine) and len(model.details) > 0
            # Where real detail is added, an average needs less sharpening.
            texture = sharpened(texture, np.sqrt(config.gains).tolist() if lends else config.gains)
            texture = no_sharper(texture, model.mask, 1.15 * place.look.detail)
            texture = matched_border(texture, place.texture, self._mask(1.0))
            if lends:
                texture = stretched(texture, 2)
                lent = model.detail(lender)
                strength = min(place.look.fine / max(model.detail_sd, 1e-6), config.detail)
                texture += np.float32(strength) * lent[..., None]
            out.append(_Made(texture, points))
        return out

    def paste(self, photo: Image, sight: Sight, made: Any, *, mask_scale: float = 1.0) -> Paste:
        place: _Place = sight.place
        seed = int.from_bytes(hashlib.blake2b(np.ascontiguousarray(made.points).tobytes(), digest_size=8).digest())
        return paste_texture(
            photo, place.moment.read.upright[0], made.points, made.texture, self._mask(mask_scale), self.model.warp,
            place.look, seed=seed,
        )  # fmt: skip

    def reconstruct(self, sights: Sequence[Sight]) -> list[Any]:
        """The sources themselves as the model has them, for figures of the model: nothing is hidden."""
        size = self.model.code_size
        zeros = np.zeros((len(sights), len(NUMBERS) + 3), np.float32)
        zeros[:, -2] = 1  # bands 1 … 0 are none
        return self.render(np.concatenate([np.stack([s.z_id[:size] for s in sights]), zeros], 1), sights)

    def moment(self, sight: Sight) -> Floats:
        length = len(NUMBERS) + 2 + len(self.model.light_mean)
        if sight.problem:
            return np.zeros(length, np.float32)
        moment: Moment = sight.place.moment
        turn = self.model.shape.turn(moment.read.pose)
        return np.concatenate([moment.numbers[0], turn[0], moment.light[0]]).astype(np.float32)

    def layer_codes(self, z_id: Floats, layers: Sequence[int]) -> Floats:
        take = self.model.bands[[layer - 1 for layer in layers]].any(0)
        return z_id[:, : self.model.code_size][:, take]

    def _mask(self, scale: float) -> Floats:
        return self._masks(round(max(self.config.inset + 50 * (1 - scale), 0.0), 2))

    @cached_property
    def _masks(self) -> Any:
        front, size, feather = self.model.shape.front, self.model.size, self.config.feather
        return lru_cache(maxsize=8)(lambda inset: frame_mask(front, size, inset=inset, feather=feather))


def save_appearance(
    path: str | Path, model: AppearanceModel, config: FrameConfig, info: ModelInfo, *, overwrite: bool = False
) -> None:
    """Write a model as safetensors with a JSON header, whole or not at all.

    Raises:
        InputError: the file exists, or cannot be written.
    """
    from dataclasses import asdict

    from safetensors.numpy import save

    header = {
        "schema_version": SCHEMA, "size": model.size, "names": list(model.names), "lights": model.lights,
        "config": asdict(config), "alignment": info.alignment, "data": info.data, "training": info.training,
    }  # fmt: skip
    metadata = {"format": "ficgan", "kind": KIND, "header": json.dumps(header, sort_keys=True)}
    arrays = {name: np.ascontiguousarray(array) for name, array in model.to_arrays().items()}
    with atomic_write(path, overwrite=overwrite) as file:
        file.write(save(arrays, metadata=metadata))


def load_appearance(path: str | Path) -> tuple[AppearanceModel, FrameConfig, ModelInfo]:
    """Read a file of `save_appearance`.

    Raises:
        FicganError: missing, damaged, of another kind or newer.
    """
    from safetensors import SafetensorError, safe_open

    path = Path(path)
    try:
        with safe_open(str(path), framework="numpy") as file:
            metadata = file.metadata() or {}
            if metadata.get("format") != "ficgan" or metadata.get("kind") != KIND:
                raise FicganError(f"{path} is no appearance model; make one with `ficgan fit-appearance`")
            header = json.loads(metadata["header"])
            if header["schema_version"] > SCHEMA:
                version = header["schema_version"]
                raise FicganError(f"{path} has schema {version}, this ficgan reads up to {SCHEMA}; upgrade ficgan")
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dictionary)
        if not all(np.isfinite(array).all() for array in arrays.values()):
            raise ValueError("it has numbers that are not finite")
        if not 16 <= header["size"] <= 1024:
            raise ValueError(f"its size is {header['size']}")
        model = AppearanceModel.from_arrays(arrays, header)
        _check_sizes(model)
        told: dict[str, Any] = {n: tuple(v) if isinstance(v, list) else v for n, v in header["config"].items()}
        info = ModelInfo(header["alignment"], header["data"], header["training"])
        return model, FrameConfig(**told), info
    except (OSError, SafetensorError, KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise FicganError(f"{path} is damaged or not a ficgan model ({error}); fetch or make it again") from None


def _check_sizes(model: AppearanceModel) -> None:
    """Whether the arrays of a file belong together."""
    pixels, code, kept = 3 * len(model.pixels), model.code_size, len(model.names)
    light, details = len(model.light_mean), len(model.details)
    features = model.features(np.zeros((1, len(NUMBERS))), np.zeros((1, 2)), np.zeros((1, light))).shape[1]
    wanted: dict[str, tuple[int | None, ...]] = {
        "light_mean": (LIGHT,), "light_sd": (LIGHT,), "predict": (features, pixels), "components": (None, pixels),
        "looks": (kept, None), "attributes": (kept, code), "give": (code, kept), "bands": (None, code),
    }  # fmt: skip
    if details:
        wanted |= {"details": (None, len(model.fine_pixels)), "lenders": (details, kept)}
    for name, sizes in wanted.items():
        shape = getattr(model, name).shape
        if len(shape) != len(sizes) or any(want not in (None, have) for want, have in zip(sizes, shape, strict=True)):
            raise ValueError(f"its {name} have the shape {list(shape)}")
