"""Faces as training in the frame sees them: read once, mixed as published, warped with gradients; kinds; banks."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from ficgan.arrays import ModelInfo, blocks, file_header
from ficgan.data import FaceData, check_alignment
from ficgan.errors import InputError, Progress, unheard
from ficgan.faces import Alignment, Face, MediaPipeMesh, get_recognizer
from ficgan.files import file_digest
from ficgan.frame import LO, Readings, Warp
from ficgan.frame.appearance import SLOPES, AppearanceModel, Moment
from ficgan.frame.compose import read_texture
from ficgan.frame.file import FrameConfig, load_appearance
from ficgan.frame.fit import FitConfig
from ficgan.frame.learn import codes_of, images_of, meshes_of
from ficgan.frame.look import sharpness_of
from ficgan.frame_model import FrameModel
from ficgan.identity import IdentityBank
from ficgan.identity.kind import CELLS, Kind, KindCodes, KindGroup, Showing, cells_of, kind_reader
from ficgan.identity.ksame import draw_members, restore_variance
from ficgan.models import load_checkpoint
from ficgan.policy import Attempt
from ficgan.training.task import pictures, read_once

Floats = NDArray[np.float32]
Rows = NDArray[np.int64]
PRESENCE = 8.0  # least score of a mesh that is learnt from


@dataclass(frozen=True, eq=False)
class FrameFaces:
    """A training set of N faces as the frame sees it; images and textures stay on disk."""

    model: AppearanceModel
    images: NDArray[np.uint8]  # [N,S,S,3], aligned crops
    textures: NDArray[np.uint8]  # [N,R,R,3]
    read: Readings
    codes: Floats  # [N,D] of the linear model
    moment: Moment
    sharpness: Floats  # [N] of `sharpness_of`
    identity: Floats  # [N,E], embeddings of V
    cell: NDArray[np.int64]  # [N] of `cells_of`, the kinds by the labels; −1 where they are unknown

    def __len__(self) -> int:
        return len(self.codes)

    @classmethod
    def prepare(
        cls, data: FaceData, model: AppearanceModel, verify: nn.Module, folder: Path, key: str, progress: Progress
    ) -> FrameFaces:
        """Read the clear faces of a set, or take what an earlier run with this `key` (model, mesh, V) has left."""
        digest = hashlib.sha256(f"2/{key}/{data.fingerprint}/{model.size}".encode()).hexdigest()
        found = read_once(folder, digest, lambda: _read_faces(data, model, verify, folder, progress))
        rows, labels, cell = found.pop("rows"), data.labels, None
        if labels is not None:
            cell = cells_of(labels.attributes[rows], labels.attribute_names)
        read = model.shape.read(found.pop("points"))
        moment = Moment(read, read.numbers, *(found.pop(name) for name in ("light", "kept", "grey")))
        return cls(model, read=read, moment=moment, cell=np.full(len(rows), -1) if cell is None else cell, **found)


def _read_faces(data: FaceData, model: AppearanceModel, verify: nn.Module, folder: Path, progress: Progress) -> None:
    points, presence = meshes_of(data, MediaPipeMesh(), progress)
    clear = np.flatnonzero(presence >= PRESENCE)
    side, count = data.resolution, len(clear)
    if not count:
        raise InputError(f"none of the {len(data)} faces is clear enough: give larger, sharper, frontal ones")
    images = pictures(folder / "images.npy", (count, side, side, 3))
    textures = pictures(folder / "textures.npy", (count, model.size, model.size, 3))
    kept: dict[str, list[NDArray[Any]]] = defaultdict(list)
    for row, image in enumerate(images_of(data.subset(clear))):
        read = model.shape.read(points[clear[row]][None])
        texture = read_texture(image, read.upright[0], read.points[0], model.warp)
        code, moment = model.encode(texture[None], read)
        sharpness = [sharpness_of(texture.astype(np.float32) / np.float32(255), model.mask)]
        values = {"light": moment.light, "kept": moment.kept, "grey": moment.grey, "codes": code}
        values |= {"points": points[clear[row]][None, :468], "sharpness": np.array(sharpness)}
        for name, value in values.items():
            kept[name].append(value.astype(np.float32))
        images[row], textures[row] = image, texture
        progress(row + 1, count, "reading faces")
    with torch.no_grad():
        for part in blocks(count, 64):
            x = torch.from_numpy(np.asarray(images[part])).permute(0, 3, 1, 2)
            kept["identity"].append(verify(x.float() / 127.5 - 1).numpy().astype(np.float32))
            progress(part.stop, count, "reading identities")
    for name, parts in kept.items():
        np.save(folder / f"{name}.npy", np.concatenate(parts))
    np.save(folder / "rows.npy", clear)
    images.flush()
    textures.flush()


@dataclass(frozen=True, eq=False)
class FrameBatch:
    """One batch of B sources on the device; where there are 2B, reconstructions come first, then mixes."""

    source: Tensor  # crops [B,3,S,S] in [−1, 1]
    texture: Tensor  # [B,3,R,R] in [−1, 1]
    identity: Tensor  # V of the sources [B,E]
    code: Tensor  # the linear model's identity code [B,C]
    upright: Tensor  # [B,2,3], crop → upright
    linear: Tensor  # textures of the linear model [2B,3,R,R] in [−1, 1]
    contrast: Tensor  # [2B,1,1,1], what a unit of the network's texture is worth
    grey: Tensor  # [2B,1,1,1], 1 where the photo has no colours
    moment: Tensor  # [2B,M]
    points: Tensor  # [2B,468,2], meshes that the linear model publishes
    moves: Tensor  # [2B,I,468,2], what a standard deviation of each coefficient of the shape adds to them
    wanted: Tensor  # [B,6+A], numbers of expression and attributes that the mixes shall show
    shape: Tensor  # [B,I], coefficients of the mixes' shape


class Mixes:
    """What the linear model makes of batches: its reconstructions, and mixes as `FrameModel` publishes them."""

    def __init__(self, faces: FrameFaces, config: FrameConfig, device: torch.device) -> None:
        self.faces, self.config, self.device = faces, config, device

    def batch(self, rows: Rows, new: Floats, given: Floats, first: Rows, rng: np.random.Generator) -> FrameBatch:
        """Rows [B] of the set with codes `new` [B,D] and attributes `given` [B,A] from layer `first` [B] (≥ 1) on."""
        faces, model, config = self.faces, self.faces.model, self.config
        own, moment = faces.codes[rows], faces.moment.take(rows)
        moment = replace(moment, numbers=np.clip(moment.numbers, -config.limit, config.limit))
        count, shape = len(rows), len(model.shape.basis)
        damp = rng.random((count, 1)).astype(np.float32)  # from the source's expression to the one that is published
        noise = rng.standard_normal((count, len(config.shown))) * config.jitter
        numbers = moment.numbers + damp * (config.shown_numbers(moment.numbers, noise) - moment.numbers)
        light = moment.light.copy()
        light[:, SLOPES] *= 1 + damp * (config.slopes - 1)
        mixed = replace(moment, numbers=numbers, light=light, kept=given.astype(np.float32))
        take = np.stack([model.taken(int(one), model.num_layers) for one in first])
        codes = model.mixed(own, new, take, given)
        flat = faces.textures[rows]
        linear = np.stack([flat, flat]).astype(np.float32) / np.float32(255)
        known = linear.reshape(2, count, -1, 3)
        known[0][:, model.pixels] = model.decode(own, moment)
        known[1][:, model.pixels] = model.decode(codes, mixed, take)
        bent = codes[:, :shape] * np.where(take[:, :shape], config.shapes, 1)
        published = model.shape.publish(moment.read, numbers, bent, rim=config.rim)
        raw = np.concatenate([m.light for m in (moment, mixed)]) * model.light_sd + model.light_mean
        vectors = [model.moment_vector(m, faces.sharpness[rows]) for m in (moment, mixed)]
        # The basis of the shape [B,I,468,2], posed as each source, with the rim held.
        pose, basis = moment.read.pose, model.shape.basis
        turn = (pose.scale[:, None, None] * pose.rotation)[:, :2]
        turn = np.einsum("bij,bjk->bik", moment.read.upright[:, :, :2], turn).astype(np.float32)
        posed = np.einsum("bik,snk->bsni", turn, basis) * (1 - config.rim * model.shape.rim)[None, None, :, None]
        moves = np.asarray(posed, np.float32)
        share = take[:, :shape].mean(1)[:, None, None, None]  # a reconstruction keeps the source's own shape
        source = faces.images[rows]
        return FrameBatch(
            source=self.picture(source),
            texture=self.picture(flat),
            identity=self._tensor(faces.identity[rows]),
            code=self.identity(rows),
            upright=self._tensor(moment.read.upright),
            linear=self._tensor(linear.reshape(-1, *linear.shape[2:]) * 2 - 1).permute(0, 3, 1, 2).contiguous(),
            contrast=self._tensor(2 * np.exp(raw[:, 3]))[:, None, None, None],
            grey=self._tensor(np.tile(moment.grey, 2))[:, None, None, None],
            moment=self._tensor(np.concatenate(vectors)),
            points=self._tensor(np.concatenate([moment.read.points[..., :2], published[..., :2]])),
            moves=self._tensor(np.concatenate([0 * moves, share * moves])),
            wanted=self._tensor(np.concatenate([numbers, given], 1)),
            shape=self._tensor(bent),
        )

    def identity(self, rows: Rows) -> Tensor:
        faces = self.faces
        return self._tensor(faces.model.identity_code(faces.codes[rows], faces.moment.kept[rows]))

    def _tensor(self, array: NDArray[Any]) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(array, np.float32)).to(self.device)

    def picture(self, images: NDArray[np.uint8]) -> Tensor:  # uint8 [B,H,W,3] → [B,3,H,W] in [−1, 1]
        return (torch.from_numpy(images).to(self.device).permute(0, 3, 1, 2).float() / 127.5 - 1).contiguous()


class CodeMemory:
    """The codes of the `size` faces seen last, from which k-same means are drawn, at ½ψ to ψ, as a bank draws them."""

    def __init__(self, size: int = 4096, k: int = 1024, psi: float = 1.0) -> None:
        self.size, self.k, self.psi = size, k, psi
        self._codes, self._cell = np.zeros((0, 0), np.float32), np.zeros(0, np.int64)
        self._known = KindCodes(self._codes, self._cell)
        self._groups: dict[str, KindGroup] = {}
        self._age = 0

    def add(self, codes: Floats, cell: NDArray[np.int64]) -> None:
        """Codes [B,C] of faces of these cells [B]; draws see them at the next multiple of 64 calls."""
        self._codes = np.concatenate([self._codes.reshape(-1, codes.shape[1]), codes])[-self.size :]
        self._cell = np.concatenate([self._cell, cell])[-self.size :]
        if self._age % 64 == 0:
            self._known, self._groups = KindCodes(self._codes, self._cell), {}
        self._age += 1

    def draw(self, rng: np.random.Generator, cell: int = -1) -> Floats:
        """One k-same code [C] of somebody of the kind of a cell; −1: of anybody."""
        kind = Kind.everybody() if cell < 0 else Kind.of_cell(cell)
        known = self._known
        if kind.name not in self._groups:
            k = max(2, min(self.k, len(known.codes) // 4))
            self._groups[kind.name] = known.group(kind, 2 * k)
        group = self._groups[kind.name]
        k = max(2, min(self.k, len(group.index) // 2))
        members = group.index[draw_members(len(group.index), k, rng)]
        mean = known.codes[members].mean(0, dtype=np.float64) + group.moved(members)
        psi = self.psi * float(rng.uniform(0.5, 1))
        return restore_variance(mean, group.spread[0], k, psi, group.spread[1], len(group.index))


FACES, LEAST = 600, 500  # faces of a set in whose place new ones are made, and new ones without which nothing is learnt
MOST_K = 3000  # k of the draws, at most an eighth of the bank's people
OWN, OTHERS = 3, 2  # faces that are made in, and for each of them the draws of its own kind, and of any


def learn_showing(model: FrameModel, data: FaceData, progress: Progress = unheard) -> Showing | None:
    """How a bank's new faces show their kind, by faces made in a 128² set; None: unknown kinds, or few clear faces."""
    known = model.bank.kinds
    if known is None:
        return None
    rng, first, gate, reader = np.random.default_rng(0), Attempt(0), get_recognizer("dlib"), kind_reader()
    points = Alignment().points(data.resolution).astype(np.float32)
    place = Face(np.array([0, 0, data.resolution, data.resolution], np.float32), points, 1.0)
    middle = known.means.mean(0)
    rows = np.linspace(0, len(data) - 1, min(FACES, len(data))).astype(int)
    codes, kinds, found, own_kinds, own = [], [], [], [], []
    for number, image in enumerate(images_of(data.subset(rows))):
        progress(number + 1, len(rows), "looking at new faces")
        reading = model.see([(image, place)])[0]
        if reading.problem:
            continue
        kind = reader.read(gate.embed(image, points[None]))[0]
        groups = [Kind.of(kind)] * OWN + [Kind.of_cell(int(cell)) for cell in rng.integers(CELLS, size=OTHERS)]
        draws = [model.draw(f"{number}/{n}", first, 1.0, reading.z_id, one.reading) for n, one in enumerate(groups)]
        for draw, group in zip(draws, groups, strict=True):  # from weakly to very clearly of their kind
            draw.w[: len(middle)] += rng.uniform(-1, 1) * (known.usual(group) - middle).astype(np.float32)
        made = model.render(model.styles(np.stack([reading.z_id] * len(draws)), draws, first), [reading] * len(draws))
        results = [model.paste(image, reading, one).image for one in made]
        codes += [draw.w[: model.code_size] for draw in draws]
        kinds += [group.reading for group in groups]
        found += [reader.read(gate.embed(result, points[None]))[0] for result in results]
        own_kinds.append(groups[0].reading)
        own.append(kind)
    if len(codes) < LEAST:
        return None
    free = np.ones(model.code_size, bool)
    free[model.model.code_size : model.model.code_size + len(model.model.names)] = False  # attributes are the group's
    made_faces, their_places = (np.stack(codes), np.stack(kinds), np.stack(found)), (np.stack(own_kinds), np.stack(own))
    return Showing.fit(*made_faces, *their_places, known, free)


# -- the warp, with gradients ------------------------------------------------------------------------------------------

_LEAST = 0.15  # least area of a frame pixel, of its area in the mean face, that a step of Newton's method reckons with
_MISS = 0.5  # distance in upright units beyond which the frame has no pixel for a place


class TorchWarp:
    """The warp between frame and upright coordinates, batched and differentiable."""

    def __init__(self, warp: Warp, device: Any = "cpu") -> None:
        arrays = (warp.matrix, warp.grid, warp.known, LO, warp.step)
        tensors = [torch.as_tensor(array, dtype=torch.float32, device=device) for array in arrays]
        self.matrix, self.grid, self.front, self.low, self.step = tensors
        self.size, self.rows = warp.size, torch.as_tensor(warp.rows, device=device)

    def to_upright(self, points: Tensor) -> Tensor:
        """Positions [B,R,R,2] of the frame's pixels for meshes [B,468,≥2], upright units; as exact under autocast."""
        with torch.autocast(points.device.type, enabled=False):
            moved = points[:, self.rows, :2] - self.front
            # One product for the whole batch: a batched one would copy the matrix for every face.
            flat = self.matrix @ moved.transpose(0, 1).flatten(1)
            return self.grid + flat.unflatten(1, (-1, 2)).movedim(1, 0).unflatten(1, (self.size, self.size))

    def to_frame(self, upright: Tensor, wanted: Tensor, steps: int = 5) -> Tensor:
        """The inverse of `to_upright`: pixels [B,h,w,2] of the frame, perhaps outside it, of upright places [B,h,w,2].

        The places are searched by Newton's method without gradients. One more step from there, with constant
        derivatives, has the gradients of the inverse: p = s + J⁻¹ (wanted − upright(s)), by the implicit function
        theorem. Where the frame has no such pixel they are 0, and near a fold they are bounded. Which side of a fold is
        seen is not asked.
        """
        last = self.size - 1
        with torch.no_grad():
            across, down = torch.gradient(upright, dim=(2, 1))
            field = torch.cat([upright, across, down], 3).movedim(3, 1)
            place = (wanted - self.low) / self.step
            for _ in range(steps):
                now, across, down = self.sample(field, place).movedim(1, 3).split(2, 3)
                # A mesh that is no number must not become an address: `grid_sample` on a CPU would crash.
                move = self._solve(across, down, wanted - now).nan_to_num(0).clamp(-12, 12)
                place = (place + move).clamp(-last, 2 * last)
            # The derivatives of the bilinear interpolation by column and row, exactly.
            field, cell = upright.movedim(3, 1), place.floor().clamp(0, self.size - 2)
            across = self.sample(field.diff(dim=3), torch.stack([cell[..., 0], place[..., 1]], 3)).movedim(1, 3)
            down = self.sample(field.diff(dim=2), torch.stack([place[..., 0], cell[..., 1]], 3)).movedim(1, 3)
        residual = wanted - self.sample(upright.movedim(3, 1), place).movedim(1, 3)
        near = residual.detach().norm(dim=3, keepdim=True) < _MISS
        there = near & ((place >= 0) & (place <= last)).all(3, keepdim=True)
        return place + torch.where(there, self._solve(across, down, residual), torch.zeros_like(residual))

    @staticmethod
    def sample(images: Tensor, at: Tensor) -> Tensor:
        """Bilinear samples [B,C,h,w] of images [B,C,H,W], whose border goes on outside, at pixels [B,h,w,2] (x, y)."""
        height, width = images.shape[2:]
        place = 2 * at / at.new_tensor([max(width - 1, 1), max(height - 1, 1)]) - 1
        return F.grid_sample(images, place, mode="bilinear", padding_mode="border", align_corners=True)

    def _solve(self, across: Tensor, down: Tensor, wish: Tensor) -> Tensor:
        """The step [...,2] in pixels that moves upright coordinates by a wish, by their derivatives [...,2]."""
        (a, c), (b, d), (x, y) = across.unbind(-1), down.unbind(-1), wish.unbind(-1)
        area = (a * d - b * c).clamp_min(_LEAST * float(self.step.prod()))
        return torch.stack([d * x - b * y, a * y - c * x], -1) / area[..., None]


class Composite:
    """Textures laid onto aligned crops of side S, differentiable in texture and shape.

    The warp is inverted on every second pixel, since it is smooth; `mask` [R,R] weighs the texture.
    """

    def __init__(self, warp: Warp, mask: NDArray[np.float32], side: int, device: Any) -> None:
        self.warp, self.side, self.mask = TorchWarp(warp, device), side, torch.as_tensor(mask).to(device)[None, None]
        at = torch.linspace(0, side - 1, max(2, side // 2))
        x, y = torch.meshgrid(at, at, indexing="xy")
        self.places = torch.stack([x, y, torch.ones_like(x)], 2).to(device)

    def __call__(self, source: Tensor, textures: Tensor, points: Tensor, upright: Tensor) -> Tensor:
        """Crops [B,3,S,S] with the textures [B,3,R,R] on them, in the crops' units.

        `points` [B,468,≥2] are the published meshes in upright units, `upright` [B,2,3] brings crops there.
        """
        with torch.autocast(source.device.type, enabled=False):
            there = self.warp.to_upright(points.float())
            wanted = torch.einsum("bij,hwj->bhwi", upright.float(), self.places)
            at = self.warp.to_frame(there, wanted)
            residual = (wanted - self.warp.sample(there.detach().movedim(3, 1), at.detach()).movedim(1, 3)).norm(dim=3)
            found = (2 - residual / _MISS).clamp(0, 1)[:, None]
            fine = torch.cat([at.movedim(3, 1), found], 1)
            fine = F.interpolate(fine, (self.side, self.side), mode="bilinear", align_corners=True)
            place = fine[:, :2].movedim(1, 3)
            new = self.warp.sample(textures.float(), place)
            # The mask is zero on the frame's border, so that places outside the frame keep the source.
            weight = self.warp.sample(self.mask.expand(len(source), -1, -1, -1), place) * fine[:, 2:]
            return source + weight * (new - source)


# -- identity banks ----------------------------------------------------------------------------------------------------


def build_bank(
    checkpoint: Path, data: FaceData, out: Path, *, licence: str = "", device: str = "cpu", progress: Progress = unheard
) -> IdentityBank:
    """Encode the clear faces of a set with a model and write the bank of its people.

    Args:
        data: of the model's resolution; with an appearance model 128².
        licence: of the set; "": the model's where the set is what it was made from.
    """
    info = ModelInfo.of(checkpoint)
    check_alignment(data, Alignment.from_dict(info.alignment), str(checkpoint))
    if file_header(checkpoint)[0] == "appearance":
        model, _, _, network = load_appearance(checkpoint)
        presence = info.training.get("fit", {}).get("presence", FitConfig().presence)
        codes, rows = codes_of(model, data, MediaPipeMesh(device), presence, network, progress)
        return with_showing(save_bank(out, checkpoint, data, codes, licence, rows), out, checkpoint, data, progress)
    crops, _ = load_checkpoint(checkpoint, device)
    parts = []
    with torch.inference_mode():
        for part in blocks(len(data), 64):
            x = data.subset(range(part.start, part.stop)).resident().to(device).float().div_(127.5).sub_(1)
            codes = crops.encoder(x.contiguous(memory_format=torch.channels_last))
            parts.append(crops.mapping(codes.z_id).float().cpu().numpy())
            progress(part.stop, len(data), "encoding")
    return save_bank(out, checkpoint, data, np.concatenate(parts), licence, np.arange(len(data)))


def save_bank(
    out: Path, checkpoint: Path, faces: FaceData, codes: NDArray[Any], licence: str, rows: Rows
) -> IdentityBank:
    """One code per person of a set, by `codes` [N,D] that the model `checkpoint` reads in the images at `rows` [N]."""
    info = ModelInfo.of(checkpoint)
    if not licence and faces.fingerprint == info.data.get("fingerprint"):
        licence = info.data.get("licence", "")
    data = {"licence": licence, "fingerprint": faces.fingerprint}
    provenance = {"checkpoint": file_digest(checkpoint), "data": data, "alignment": info.alignment}
    if faces.labels is None:
        made = IdentityBank.from_codes(codes, None, provenance=provenance)
    else:
        marks = faces.labels.take(rows)
        names, columns = marks.attribute_names, marks.attribute_columns
        made = IdentityBank.from_codes(codes, marks.people, marks.attributes, names, provenance, columns=columns)
    return made.save(out)


def with_showing(
    bank: IdentityBank, out: Path, checkpoint: Path, faces: FaceData, progress: Progress = unheard
) -> IdentityBank:
    """The bank with how new faces show their kind, written; the same for unknown kinds or few clear faces."""
    if bank.kinds is None:
        return bank
    model, config, _, network = load_appearance(checkpoint)
    k = max(2, min(MOST_K, len(bank) // 8))
    makes = FrameModel(model, config, replace(bank, showing=None), network=network, k=k, seed=0)
    showing = learn_showing(makes, faces, progress)
    return bank if showing is None else replace(bank, showing=showing).save(out)
