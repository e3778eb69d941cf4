"""A trained model with the user's controls: it reads source faces, draws new identities, and makes faces to paste.

`CropModel` is FICGAN's network on aligned crops; `ficgan.frame_model.FrameModel` works in the canonical frame. Codes
and rows of styles are NumPy arrays in both.
"""

from __future__ import annotations

import secrets
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ficgan.arrays import Image, ModelInfo, blocks, resize, to_pixels, to_tensor
from ficgan.device import resolve_device, resolve_precision
from ficgan.errors import InputError, UsageError
from ficgan.faces import Alignment, DlibRecognizer, Face, Paste, crop, paste_back
from ficgan.identity import IdentityBank, KSameCode, audit, parse_band, parse_direction
from ficgan.identity.kind import ETHNICITIES, GENDERS, PARTS, Kind, kind_reader, parse_parts
from ficgan.identity.ksame import check_psi, exemplar, k_same_layers, mix_layers
from ficgan.policy import Attempt

if TYPE_CHECKING:
    from ficgan.models import FICGAN

Floats = NDArray[np.float32]
# By how many decades on either side, and by how many neighbours of its ethnic group, a kind is loosened in later draws.
# Small children are alike to a recogniser: where no face of their own kind passes, one of a wider kind has to.
_LOOSENED = {4: (1, 0), 5: (1, 2), 6: (3, 0), 7: (4, len(ETHNICITIES) - 1)}
NO_FACE = "its landmarks are not those of a face"
# Faces computed at once: bounds the memory of a crowd.
CHUNK = 32


@dataclass(frozen=True, eq=False)
class FaceReading:
    """One source face as a model reads it.

    Args:
        place: further data of the model, to put a new face in its place.
        problem, note: why no face can be generated here; a remark for a person who looks at the result.
        doubt: why this may be no face of a person.
        outline, landmarks: [n,2] and [5,2] of a mesh, where one was found; a detector's may lie far off.
        sure: whether that mesh tells better where the face is than a box that was not seen in this frame.
    """

    z_id: Floats
    place: Any = None
    problem: str = ""
    note: str = ""
    doubt: str = ""
    outline: Floats | None = None
    landmarks: Floats | None = None
    sure: bool = False


def read_kinds(
    images: Sequence[Image], landmarks: Sequence[NDArray[Any]], known: NDArray[np.float32] | None = None
) -> list[Floats | None]:
    """Readings [9+128] of faces at landmarks [5,2], one an image: kinds, then dlib's embeddings, `known` [N,128]."""
    if not len(images):
        return []
    embeddings = _dlib().embed_each(images, np.stack(landmarks)) if known is None else known
    return list(np.concatenate([kind_reader().read(embeddings), embeddings], 1))


@lru_cache(maxsize=1)
def _dlib() -> DlibRecognizer:
    return DlibRecognizer()


class FaceModel(ABC):
    """The controls that hold for a whole job, as of `load_face_model`, and the bank whose identities are averaged.

    `AUTO_PSI` is ψ of `psi="auto"` for one person in a photo, and for several or in films, who must not be clones;
    `target` [D] the intermediate code of the exemplar, see `aim_at`.
    """

    alignment: Alignment
    resolution: int
    precision: str
    AUTO_PSI: tuple[float, float] = (0.0, 0.6)

    def __init__(
        self,
        bank: IdentityBank,
        num_layers: int,
        code_size: int,
        *,
        k: int,
        band: str | None = None,
        seed: int | None = None,
        alpha: float = 0.5,
        attributes: str | None = None,
        add: Sequence[str] = (),
        swap: bool = False,
        keep_kind: str | Sequence[str] = PARTS,
    ) -> None:
        if bank.codes.shape[1] != code_size:
            raise UsageError(
                f"the bank's codes have {bank.codes.shape[1]} numbers and the model's {code_size}: it was built with "
                "another model; build one with `ficgan bank`"
            )
        self.num_layers, self.keep_kind = num_layers, parse_parts(keep_kind)
        self.bank, self.k, self.alpha, self.attributes, self.swap = bank, k, alpha, attributes, swap
        self.add = tuple(add)
        self.seed, self.seeded = (secrets.randbits(128), False) if seed is None else (seed, True)
        self.band = parse_band(band, num_layers) if band else None
        self.shift = np.zeros(code_size, np.float32)
        for name, amount in map(parse_direction, add):
            self.shift = self.shift + (bank.direction(name) * amount).astype(np.float32)
        self.target: Floats | None = None

    @abstractmethod
    def digest(self) -> str:
        """sha256 of what computes: the same gives the same faces."""

    @abstractmethod
    def see(self, pairs: Sequence[tuple[Image, Face]], found: Sequence[Any] | None = None) -> list[FaceReading]:
        """Codes of faces in photos uint8 [H,W,3] RGB, together; `found` comes from `find` or `smoothed`."""

    def find(self, pairs: Sequence[tuple[Image, Face]]) -> list[Any]:
        """Positions of the parts of each face, which films smooth over time; None where the model finds none itself."""
        return [None] * len(pairs)

    def row(self, found: Any) -> Floats | None:
        """What `find` found as numbers float32 [n], as many of each; None where there is nothing to keep."""
        return None

    def of_row(self, row: Floats) -> Any:
        """What was found, from the numbers of `row`."""
        return None

    def problem(self, face: Face, found: Any) -> str:
        """Why no face can be generated where `find` found this, "" where one can."""
        return "" if self.alignment.fits(face.landmarks) else NO_FACE

    def is_sure(self, found: Any) -> bool:
        """Whether a finding alone says that there is a face."""
        return False

    def between(self, before: Any, after: Any, share: float, moves: NDArray[Any]) -> Any:
        """What `find` would find `share` of the way from one finding to another, moved by `moves` [2,2] px before."""
        return before

    def bridged(self, reading: FaceReading, found: Any) -> FaceReading:
        """A reading as it would look with another finding of `between`: the same light and look, another place."""
        return replace(reading, problem=reading.problem or NO_FACE)

    def smoothed(self, found: Sequence[Any], at: int) -> Any:
        """The finding of frame `at` of consecutive ones, without its tremble."""
        return found[at]

    def steadied(self, readings: Sequence[FaceReading], at: int) -> FaceReading:
        """The reading of frame `at` of consecutive ones, its light and sharpness without their flicker."""
        return readings[at]

    @abstractmethod
    def latent(self, z_id: Floats) -> Floats:
        """Intermediate latents w [B,W] of identity codes [B,D]."""

    @abstractmethod
    def mixed(self, z_id: Floats, w_new: Floats, attempt: Attempt) -> Floats:
        """Rows of styles [B,S] from the sources' identity codes [B,D] and the codes [B,W] in their place."""

    @abstractmethod
    def render(self, styles: Floats, readings: Sequence[FaceReading]) -> list[Any]:
        """New faces of rows of styles [B,S], each for the place of a reading."""

    @abstractmethod
    def paste(self, photo: Image, reading: FaceReading, made: Any, *, mask_scale: float = 1.0) -> Paste:
        """The patch that lays one face of `render` onto its photo [H,W,3], or onto a copy that others changed."""

    def checked(self, made: Any) -> Any:
        """A face of `render` as a recogniser shall read it: without cloth over it, which the source wears, too."""
        return made

    @abstractmethod
    def reconstruct(self, readings: Sequence[FaceReading]) -> list[Any]:
        """The sources themselves as the model has them, G(E(x)): nothing is hidden."""

    def on_crop(self, crop: Image, reading: FaceReading, made: Any, *, mask_scale: float = 1.0) -> tuple[Image, Floats]:
        """An aligned crop [S,S,3] with a new face, and how much of each pixel [S,S] was replaced."""
        paste = self.paste(crop, reading, made, mask_scale=mask_scale)
        return paste.image, paste.mask

    def codes(self, readings: Sequence[FaceReading]) -> dict[str, Floats]:
        """For attackers who have the model: z_id and z_non of sources, flat, [B,…]."""
        z_non = [self.moment(reading) for reading in readings]
        return {"z_id": np.stack([reading.z_id for reading in readings]), "z_non": np.stack(z_non)}

    @abstractmethod
    def moment(self, reading: FaceReading) -> Floats:
        """z_non of a reading as a row of numbers; zeros where there is a problem."""

    @abstractmethod
    def layer_codes(self, z_id: Floats, layers: Sequence[int]) -> Floats:
        """Parts [B,…] of the sources' codes [B,D] that style layers (numbered from 1) take."""

    def aim_at(self, photo: Image, face: Face) -> None:
        reading = self.see([(photo, face)])[0]
        if reading.problem:
            raise InputError(f"the exemplar's face cannot be used: {reading.problem}; give a clearer photo")
        self.target = self.latent(reading.z_id[None])[0]
        self.swap = self.swap or self.alpha >= 1  # w_m + 1·(w_t − w_m) is w_t: nothing of the bank is left

    def check_layer(self, layer: int) -> int:
        k_same_layers(self.num_layers, layer, None)
        return layer

    def auto_psi(self, faces: int) -> float:
        return self.AUTO_PSI[min(faces, 2) - 1 if faces else 0]

    def identity(self) -> list[Any]:
        """All that results depend on but the seed: jobs with the same may go on from one another."""
        band = None if self.band is None else list(self.band)
        target = None if self.target is None else float(self.target.astype(np.float64).sum())
        controls = [self.k, band, self.alpha, self.attributes, list(self.add), self.swap, target, list(self.keep_kind)]
        return [self.bank.digest, *controls, self.precision, self.digest()]

    def draw(
        self, key: str, attempt: Attempt, psi: float, z_id: Floats | None = None, kind: Floats | None = None
    ) -> KSameCode:
        """The k-same draw of one face or person; the same key gives the same draw.

        Args:
            attempt, psi: the attempt's diversity is the least.
            z_id: [D], the source's code, for models that take the least like of several draws.
            kind: [9] or [9+E], of `read_kinds`, the source's; None: nothing of its kind is kept.
        """
        return self._draws([key], attempt, psi, self.kind_of(kind, attempt))[0]

    def _draws(self, keys: Sequence[str], attempt: Attempt, psi: float, kind: Kind | None) -> list[KSameCode]:
        return self.bank.k_same_of_each(
            self.k,
            [self.key(key, attempt) for key in keys],
            seed=self.seed,
            attributes=self.attributes,
            psi=max(check_psi(psi), attempt.psi),
            kind=kind,
        )

    def kind_of(self, reading: Floats | None, attempt: Attempt | None = None) -> Kind | None:
        """The group that a source with this reading [9] is given a new identity of; None: everybody."""
        if reading is None or not self.keeps_kind:
            return None
        kind = Kind.of(reading, self.keep_kind)
        if attempt is not None:
            kind = kind.loosened(*_LOOSENED.get(attempt.draw, (0, 0)))
        return self.bank.kind_within(kind, self.attributes)

    @property
    def keeps_kind(self) -> bool:
        """Whether anything of the source's kind is kept: a bank without the labels cannot."""
        return bool(self.keep_kind) and self.bank.kinds is not None

    def is_loosest(self, attempt: Attempt) -> bool:
        """Whether an attempt keeps least of a kind that shall be kept."""
        return self.keeps_kind and attempt.draw == max(_LOOSENED)

    def key(self, key: str, attempt: Attempt) -> str:
        return key if attempt.draw == 0 else f"{key}#{attempt.draw}"

    def styles(self, z_id: Floats, draws: Sequence[KSameCode], attempt: Attempt) -> Floats:
        """Rows of styles float32 [B,S] for identity codes [B,D] and a draw for each."""
        return self.mixed(z_id, self.wanted(np.stack([draw.w for draw in draws])), attempt)

    def check_draws(self, attempt: Attempt, psi: float) -> None:
        """A UsageError where some source could not be given a new identity: too few people, or a ψ that cannot be."""
        self.draw("check", attempt, psi)
        known = self.bank.kinds
        if not self.keeps_kind or "gender" not in self.keep_kind or known is None:
            return
        eligible = self.bank.query(self.attributes or "")
        for number, gender in enumerate(GENDERS):
            kind = replace(Kind.everybody(), gender=np.arange(len(GENDERS)) == number)
            count = len(known.members(self.bank.kind_within(kind, self.attributes), eligible))
            if count < self.k:
                raise UsageError(
                    f"k is {self.k}, and of those who may be averaged {count} are {gender.lower()}: lower k, or do not "
                    "keep the gender (--keep-kind ethnicity,age)"
                )

    def wanted(self, w: Floats) -> Floats:
        """Codes [B,W] moved along the directions that were asked for and towards the exemplar."""
        w = w + self.shift
        if self.target is not None:
            target: Floats = np.broadcast_to(self.target, w.shape)
            w = target if self.swap else exemplar(w, target, self.alpha)
        return np.array(w, np.float32)

    def account(self, *, layer: int, psi: Sequence[float]) -> dict[str, Any]:
        return audit(
            self.bank,
            k=self.k,
            psi=sorted(set(psi)),
            alpha=self.alpha if self.target is not None else None,
            num_layers=self.num_layers,
            layer=None if self.band else layer,
            band=self.band,
            seed=self.seed,
            kept=self.keep_kind if self.keeps_kind and not self.swap else (),
            attributes=None if self.swap else self.attributes,
            directions=() if self.swap else self.add,
            target="swap" if self.swap else "exemplar" if self.target is not None else "bank",
        )


class CropModel(FaceModel):
    """FICGAN's encoder, mapping and generator on aligned crops; `controls` are those of `FaceModel`."""

    def __init__(
        self,
        model: FICGAN,
        info: ModelInfo,
        bank: IdentityBank,
        *,
        device: str = "cpu",
        precision: str = "auto",
        **controls: Any,
    ) -> None:
        from ficgan.models import InferenceModel

        super().__init__(bank, model.num_layers, model.config.w_dim, **controls)
        self.device = resolve_device(device)
        self.networks = InferenceModel(model, device=self.device, dtype=resolve_precision(precision, self.device))
        self.precision = str(self.networks.dtype).removeprefix("torch.")
        self.resolution, self.alignment = model.resolution, Alignment.from_dict(info.alignment)
        self._square = self.alignment.face_square(self.resolution)

    def digest(self) -> str:
        return self.networks.digest()

    def see(self, pairs: Sequence[tuple[Image, Face]], found: Sequence[Any] | None = None) -> list[FaceReading]:
        nothing = FaceReading(np.zeros(self.networks.config.id_dim, np.float32), problem=NO_FACE)
        readings = [nothing] * len(pairs)
        rows = [n for n, (_, face) in enumerate(pairs) if self.alignment.fits(face.landmarks)]
        matrices = [self.alignment.matrix(pairs[n][1].landmarks, self.resolution) for n in rows]
        if rows:
            crops = [crop(pairs[n][0], matrix, self.resolution) for n, matrix in zip(rows, matrices, strict=True)]
            for n, *place in zip(rows, *self.encode(np.stack(crops)), matrices, strict=True):
                readings[n] = FaceReading(place[0], (place[2], place[1]))
        return readings

    def encode(self, crops: Image) -> tuple[Floats, Floats]:
        """z_id [B,D] and z_non [B,C,4,4] of aligned crops [B,R,R,3]."""
        parts = [self.networks.encode(to_tensor(crops[rows], self.device)) for rows in blocks(len(crops), CHUNK)]
        z_id, z_non = (np.concatenate([part[i].float().cpu().numpy() for part in parts]) for i in range(2))
        return z_id, z_non

    def latent(self, z_id: Floats) -> Floats:
        import torch

        with torch.inference_mode():
            return self.networks.map(torch.from_numpy(z_id).to(self.device)).float().cpu().numpy()

    def mixed(self, z_id: Floats, w_new: Floats, attempt: Attempt) -> Floats:
        import torch

        where: dict[str, Any] = {"band": attempt.band} if attempt.band else {"layer": attempt.layer}
        with torch.inference_mode():
            new = torch.from_numpy(np.ascontiguousarray(w_new)).float().to(self.device)
            own = self.networks.map(torch.from_numpy(z_id).to(self.device))
            rows = self.networks.styles(mix_layers(own, new, num_layers=self.num_layers, **where))
            return rows.float().cpu().numpy()

    def render(self, styles: Floats, readings: Sequence[FaceReading]) -> list[Any]:
        import torch

        z_non = np.stack([reading.place[1] for reading in readings])
        out: list[Any] = []
        for rows in blocks(len(styles), CHUNK):
            row, code = (torch.from_numpy(part[rows]).to(self.device) for part in (styles, z_non))
            out.extend(to_pixels(self.networks.synthesise(row, code)))
        return out

    def reconstruct(self, readings: Sequence[FaceReading]) -> list[Any]:
        import torch

        with torch.inference_mode():
            w = self.networks.map(torch.from_numpy(np.stack([reading.z_id for reading in readings])).to(self.device))
            return self.render(self.networks.styles(w).float().cpu().numpy(), readings)

    def on_crop(self, crop: Image, reading: FaceReading, made: Any, *, mask_scale: float = 1.0) -> tuple[Image, Floats]:
        side = crop.shape[0]  # the network's crop is the whole picture: nothing is blended
        return resize(made, side), np.ones((side, side), np.float32)

    def moment(self, reading: FaceReading) -> Floats:
        config = self.networks.config
        return np.zeros(config.spatial_channels * 16, np.float32) if reading.problem else reading.place[1].ravel()

    def layer_codes(self, z_id: Floats, layers: Sequence[int]) -> Floats:
        import torch

        with torch.inference_mode():
            w = self.networks.map(torch.from_numpy(z_id).to(self.device))
            parts: list[Any] = [self.networks.model.generator.layers[n - 1].affine(w) for n in layers]  # type: ignore[operator]
            return torch.cat(parts, 1).float().cpu().numpy()

    def paste(self, photo: Image, reading: FaceReading, made: Any, *, mask_scale: float = 1.0) -> Paste:
        return paste_back(photo, made, reading.place[0], mask_scale=mask_scale, face_square=self._square)
