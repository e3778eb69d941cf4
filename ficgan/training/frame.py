"""Training in the canonical frame: faces that are read once and kept, and the losses of what would be published."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from ficgan import losses
from ficgan.config import Config
from ficgan.data import FaceData, check_alignment, open_faces
from ficgan.errors import InputError, UsageError
from ficgan.export.networks import frame_to_onnx
from ficgan.faces import Alignment, FaceMesh, MediaPipeMesh, find_meshes
from ficgan.frame import AppearanceModel, Moment, Readings, detail_of, read_texture
from ficgan.frame.appearance import SLOPES, look_features
from ficgan.frame.file import FrameConfig, load_appearance, save_appearance
from ficgan.frame.network import FrameNetwork
from ficgan.frame.torch_warp import Composite
from ficgan.identity.ksame import draw_members, restore_variance
from ficgan.models import FICGAN, FrameDiscriminator, FrameFICGAN
from ficgan.models.io import file_digest
from ficgan.training.snapshots import save_grid
from ficgan.training.state import TrainingState
from ficgan.training.step import Weights
from ficgan.training.swap import Swap, plan_swap
from ficgan.training.verify import make_verify

__all__ = ["FrameBatch", "FrameFaces", "FrameLosses", "FrameTask", "Mixes"]

Floats = NDArray[np.float32]
PRESENCE = 8.0
"""Least score of a mesh that is learnt from."""
HELD_OUT = 32
"""Every so-many-th face is never trained on."""
SMALL = 32
"""Side of the texture that attributes are read from."""


@dataclass(frozen=True, eq=False)
class FrameFaces:
    """A training set as the frame sees it; images and textures stay on disk.

    Args:
        model: linear model that read them.
        images: uint8 [N,S,S,3], aligned crops.
        textures: uint8 [N,R,R,3].
        read: of their meshes.
        codes: float32 [N,D] of the linear model.
        moment: of the sources.
        detail: float32 [N] of `detail_of`.
        identity: float32 [N,E], embeddings of V.
    """

    model: AppearanceModel
    images: NDArray[np.uint8]
    textures: NDArray[np.uint8]
    read: Readings
    codes: Floats
    moment: Moment
    detail: Floats
    identity: Floats

    def __len__(self) -> int:
        return len(self.codes)

    @classmethod
    def prepare(
        cls, data: FaceData, model: AppearanceModel, mesh: FaceMesh, verify: nn.Module, folder: Path, key: str,
        say: Any = lambda stage, done, total: None,
    ) -> FrameFaces:  # fmt: skip
        """Read the clear faces of a set, or take what an earlier run has left in `folder`.

        Args:
            data: aligned faces.
            model: linear model.
            mesh: reads them.
            verify: V, on crops in [−1, 1].
            folder: where arrays are kept.
            key: of model, mesh and V; with it the arrays of others are not taken.
            say: called as say(stage, done, total).
        """
        digest = hashlib.sha256(f"{key}/{data.fingerprint}/{model.size}".encode()).hexdigest()
        said = folder / "faces.json"
        if not (said.exists() and json.loads(said.read_text()).get("digest") == digest):
            folder.mkdir(parents=True, exist_ok=True)
            count = _read_faces(data, model, mesh, verify, folder, say)
            said.write_text(json.dumps({"digest": digest, "faces": count}))

        def array(name: str) -> NDArray[Any]:
            return np.load(folder / f"{name}.npy", mmap_mode="r")

        read = model.shape.read(array("points"))
        numbers, light = read.numbers, np.array(array("light"))
        moment = Moment(read, numbers, light, np.array(array("kept")), np.array(array("grey")))
        rest = (np.array(array(name)) for name in ("codes", "detail", "identity"))
        codes, detail, identity = rest
        return cls(model, array("images"), array("textures"), read, codes, moment, detail, identity)


def _read_faces(
    data: FaceData, model: AppearanceModel, mesh: FaceMesh, verify: nn.Module, folder: Path, say: Any
) -> int:
    side, count = data.resolution, len(data)
    images = _array(folder / "images.npy", (count, side, side, 3))
    textures = _array(folder / "textures.npy", (count, model.size, model.size, 3))
    kept: dict[str, list[NDArray[Any]]] = {n: [] for n in ("points", "codes", "light", "kept", "grey", "detail")}
    template, clear = Alignment().points(side)[None], 0
    for done, image in enumerate(_images(data)):
        found = find_meshes(mesh, image, template)[0]
        if found.presence >= PRESENCE:
            read = model.shape.read(found.points[None])
            texture = read_texture(image, read.upright[0], read.points[0], model.warp)
            code, moment = model.encode(texture[None], read)
            detail = [detail_of(texture.astype(np.float32) / np.float32(255), model.mask)]
            row = (found.points[None, :468], code, moment.light, moment.kept, moment.grey, np.array(detail))
            for name, value in zip(kept, row, strict=True):
                kept[name].append(np.asarray(value, np.float32))
            images[clear], textures[clear] = image, texture
            clear += 1
        if done % 100 == 99 or done == count - 1:
            say("reading faces", done + 1, count)
    if not clear:
        raise InputError(f"none of the {count} faces is clear enough: give larger, sharper, frontal ones")
    for name, parts in kept.items():
        np.save(folder / f"{name}.npy", np.concatenate(parts))
    identity = []
    with torch.no_grad():
        for begin in range(0, clear, 64):
            x = torch.from_numpy(np.asarray(images[begin : min(begin + 64, clear)])).permute(0, 3, 1, 2)
            identity.append(verify(x.float() / 127.5 - 1).numpy())
            say("reading identities", min(begin + 64, clear), clear)
    np.save(folder / "identity.npy", np.concatenate(identity).astype(np.float32))
    images.flush()
    textures.flush()
    return clear


def _array(path: Path, shape: tuple[int, ...]) -> Any:
    return np.lib.format.open_memmap(path, mode="w+", dtype=np.uint8, shape=shape)


def _images(data: FaceData) -> Iterator[NDArray[np.uint8]]:
    for begin in range(0, len(data), 256):
        part = data.subset(range(begin, min(begin + 256, len(data))))
        yield from np.ascontiguousarray(part.resident().numpy().transpose(0, 2, 3, 1))


@dataclass(frozen=True, eq=False)
class FrameBatch:
    """One batch on the device; rec and mix are what the linear model makes of it.

    Args:
        source: crops [B,3,S,S] in [−1, 1].
        texture: of the sources [B,3,R,R] in [−1, 1].
        identity: V of the sources [B,E].
        code: identity code of the linear model [B,C].
        upright: [B,2,3], crop → upright.
        linear: textures of the linear model [2B,3,R,R] in [−1, 1]: reconstructions, then mixes.
        contrast: [2B,1,1,1], what a unit of the network's texture is worth.
        grey: [2B,1,1,1], 1 where the photo has no colours.
        moment: [2B,M].
        points: [2B,468,2], meshes that the linear model publishes.
        moves: [2B,I,468,2], what a standard deviation of each coefficient of the shape adds to them.
        wanted: [B,6+A], numbers of expression and attributes that the mixes shall show.
        shape: [B,I], coefficients of the mixes' shape.
    """

    source: Tensor
    texture: Tensor
    identity: Tensor
    code: Tensor
    upright: Tensor
    linear: Tensor
    contrast: Tensor
    grey: Tensor
    moment: Tensor
    points: Tensor
    moves: Tensor
    wanted: Tensor
    shape: Tensor


class Mixes:
    """What the linear model makes of batches: its reconstructions, and mixes as `FrameModel` publishes them.

    Args:
        faces: training set.
        config: of the published face.
        device: where batches go.
    """

    def __init__(self, faces: FrameFaces, config: FrameConfig, device: torch.device) -> None:
        self.faces, self.config, self.device = faces, config, device

    def batch(
        self, rows: NDArray[np.int64], new: Floats, first: NDArray[np.int64], rng: np.random.Generator
    ) -> FrameBatch:
        """Rows of the set, each of which takes another code from layer `first` on.

        Args:
            rows: [B].
            new: float32 [B,D], the other codes.
            first: [B], first layer (from 1) that is new.
            rng: draws the noise on expressions.
        """
        faces, model, config = self.faces, self.faces.model, self.config
        own, moment = faces.codes[rows], faces.moment.take(rows)
        moment = replace(moment, numbers=np.clip(moment.numbers, -config.limit, config.limit))
        count, shape = len(rows), len(model.shape.basis)
        damp = rng.random((count, 1)).astype(np.float32)  # from the source's expression to the one that is published
        noise = rng.standard_normal((count, len(config.shown))) * config.jitter
        numbers = (1 + damp * (np.array(config.shown) - 1)) * moment.numbers + damp * noise
        numbers = np.clip(numbers, -config.limit, config.limit).astype(np.float32)
        light = moment.light.copy()
        light[:, SLOPES] *= 1 + damp * (config.slopes - 1)
        given = moment.kept * np.resize(config.kept, moment.kept.shape[1])
        mixed = replace(moment, numbers=numbers, light=light, kept=given.astype(np.float32))
        take = np.stack([model.taken(int(one), model.num_layers) for one in first])
        codes = model.mixed(own, new, take, given)
        flat = _rows(faces.textures, rows)
        linear = np.stack([flat, flat]).astype(np.float32) / np.float32(255)
        known = linear.reshape(2, count, -1, 3)
        known[0][:, model.pixels] = model.decode(own, moment)
        known[1][:, model.pixels] = model.decode(codes, mixed, take)
        bent = codes[:, :shape] * np.where(take[:, :shape], config.shapes, 1)
        published = model.shape.publish(moment.read, numbers, bent, rim=config.rim)
        raw = np.concatenate([m.light for m in (moment, mixed)]) * model.light_sd + model.light_mean
        vectors = [model.moment_vector(m, faces.detail[rows]) for m in (moment, mixed)]
        moves = self._moves(moment.read)
        share = take[:, :shape].mean(1)[:, None, None, None]  # a reconstruction keeps the source's own shape
        source = _rows(faces.images, rows)
        return FrameBatch(
            source=self.picture(source), texture=self.picture(flat), identity=self._tensor(faces.identity[rows]),
            code=self.identity(rows),
            upright=self._tensor(moment.read.upright),
            linear=self._tensor(linear.reshape(-1, *linear.shape[2:]) * 2 - 1).permute(0, 3, 1, 2).contiguous(),
            contrast=self._tensor(2 * np.exp(raw[:, 3]))[:, None, None, None],
            grey=self._tensor(np.tile(moment.grey, 2))[:, None, None, None],
            moment=self._tensor(np.concatenate(vectors)),
            points=self._tensor(np.concatenate([moment.read.points[..., :2], published[..., :2]])),
            moves=self._tensor(np.concatenate([0 * moves, share * moves])),
            wanted=self._tensor(np.concatenate([numbers, given], 1)), shape=self._tensor(bent),
        )  # fmt: skip

    def textures(self, rows: NDArray[np.int64]) -> Tensor:
        """Textures [B,3,R,R] of rows in [−1, 1]."""
        return self.picture(_rows(self.faces.textures, rows))

    def identity(self, rows: NDArray[np.int64]) -> Tensor:
        """Identity codes of the linear model [B,C]."""
        faces = self.faces
        return self._tensor(faces.model.identity_code(faces.codes[rows], faces.moment.kept[rows]))

    def _moves(self, read: Readings) -> Floats:
        """[B,I,468,2]: the basis of the shape, posed as each source, with the rim held."""
        shape, pose = self.faces.model.shape, read.pose
        turn = np.einsum("bij,bjk->bik", read.upright[:, :, :2], (pose.scale[:, None, None] * pose.rotation)[:, :2])
        posed = np.einsum("bik,snk->bsni", turn.astype(np.float32), shape.basis)
        return np.asarray(posed * (1 - self.config.rim * shape.rim)[None, None, :, None], np.float32)

    def _tensor(self, array: NDArray[Any]) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(array, np.float32)).to(self.device)

    def picture(self, images: NDArray[np.uint8]) -> Tensor:  # uint8 [B,H,W,3] → [B,3,H,W] in [−1, 1]
        return (torch.from_numpy(images).to(self.device).permute(0, 3, 1, 2).float() / 127.5 - 1).contiguous()


class CodeMemory:
    """The codes of faces seen lately, from which k-same means are drawn as a bank draws them.

    Args:
        size: faces remembered.
        k: people of a mean, which are averaged and given `psi` of their variance back.
        psi: most of it.
    """

    def __init__(self, size: int = 4096, k: int = 1024, psi: float = 1.0) -> None:
        self.size, self.k, self.psi = size, k, psi
        self.codes = np.zeros((0, 0), np.float32)
        self._cap, self._age = np.inf, 0

    def add(self, codes: Floats) -> None:
        """Remember codes [B,C]; the oldest are forgotten."""
        self.codes = np.concatenate([self.codes.reshape(-1, codes.shape[1]), codes])[-self.size :]
        if self._age % 64 == 0:
            self._cap = float(np.percentile(np.linalg.norm(self.codes - self.codes.mean(0), axis=1), 95))
        self._age += 1

    def draw(self, rng: np.random.Generator) -> Floats:
        """One k-same code [C]."""
        k = max(2, min(self.k, len(self.codes) // 4))
        members = draw_members(len(self.codes), k, rng)
        mean = self.codes[members].mean(0, dtype=np.float64)
        psi = self.psi * float(rng.random())
        return restore_variance(mean, self.codes.mean(0, dtype=np.float64), k, psi, self._cap)


class FrameLosses(nn.Module):
    """What must stay of a source is read from the mix by linear maps, fitted to the training set once.

    Args:
        faces: training set.
    """

    readers: Tensor
    looks: Tensor
    trust: Tensor

    def __init__(self, faces: FrameFaces, sample: int = 6000) -> None:
        super().__init__()
        rows = np.linspace(0, len(faces) - 1, min(sample, len(faces))).astype(int)
        textures = _rows(faces.textures, rows)
        x = look_features(textures, faces.read.take(rows))
        pixels = 3 * SMALL * SMALL
        seen = x[:, :pixels].astype(np.float64)
        numbers = np.clip(faces.read.numbers[rows], -2.5, 2.5).astype(np.float64)
        half = np.arange(len(rows)) % 2 == 0
        penalty = 300 * np.eye(pixels)
        maps = [np.linalg.solve(seen[p].T @ seen[p] + penalty, seen[p].T @ numbers[p]) for p in (half, half | ~half)]
        left = np.square(numbers[~half] - seen[~half] @ maps[0]).sum(0)
        trust = np.clip(1 - left / np.square(numbers[~half]).sum(0), 0, 1)
        looks = faces.model.looks
        self.register_buffer("readers", torch.tensor(np.vstack([maps[1].T, looks[:, :pixels]]), dtype=torch.float32))
        self.register_buffer("looks", torch.tensor(looks[:, pixels:], dtype=torch.float32))
        self.register_buffer("trust", torch.tensor(np.r_[trust, np.ones(len(looks))], dtype=torch.float32))

    def keep(self, textures: Tensor, shape: Tensor, wanted: Tensor) -> Tensor:
        """Squared error [B] of expression and attributes as the textures show them.

        Args:
            textures: [B,3,R,R] in [−1, 1].
            shape: [B,I], coefficients of the published shape.
            wanted: [B,6+A].
        """
        small = F.interpolate(textures, (SMALL, SMALL), mode="area").movedim(1, 3).flatten(1)
        small = (small - small.mean(1, keepdim=True)) / small.std(1, keepdim=True).clamp_min(2 / 255)
        found = small @ self.readers.t()
        numbers = wanted.shape[1] - len(self.looks)
        rest = torch.cat([0.3 * shape, 0.3 * wanted[:, :numbers], torch.ones_like(wanted[:, :1])], 1)
        attributes = found[:, numbers:] + rest @ self.looks.t()
        found = torch.cat([found[:, :numbers], attributes], 1)
        return ((found - wanted).square().clamp_max(4) * self.trust).mean(1)


class Judged(NamedTuple):
    """What D judges after a generator step, without graphs: textures [B,3,R,R], and V's maps of what is published."""

    real: Tensor
    real_maps: list[Tensor]
    rec: Tensor
    mix: Tensor
    mix_maps: list[Tensor]


class FrameTask:
    """Data, V and pictures of a run in the canonical frame.

    Args:
        config: of the run; `config.model.frame` says which linear model the network refines.
        data: folders, zips or tars of faces aligned by the default template.
        labels, split: use only images whose row in the label file has this split.
        device: where batches and V live.

    Raises:
        UsageError, InputError: with one sentence.
    """

    def __init__(
        self, config: Config, data: Sequence[Path | str], labels: Path | str | None, split: str | None,
        device: torch.device,
    ) -> None:  # fmt: skip
        assert config.model.frame is not None
        self.config, self.device = config, device
        self.path = _appearance_file(config.model.frame.appearance)
        model, self.frame, self.info, _ = load_appearance(self.path)
        self.model = model.with_layers(config.model.num_layers)
        self._check_sizes()
        self.alignment = Alignment()
        self.verify = make_verify(config, self.alignment, device)
        self.faces = open_faces(data, resolution=config.model.resolution, labels=labels, split=split)
        check_alignment(self.faces, Alignment("canonical"))

    def _check_sizes(self) -> None:
        told, model = self.config.model, self.model
        assert told.frame is not None
        for key, asked, has in (
            ("resolution", told.resolution, model.size),
            ("frame.code_dim", told.frame.code_dim, model.code_size - model.lights + len(model.names)),
            ("frame.shape_dim", told.frame.shape_dim, len(model.shape.basis)),
            ("frame.moment_dim", told.frame.moment_dim, model.moment_size),
        ):
            if asked != has:
                raise UsageError(f"model.{key} is {asked}, and {self.path} needs {has}: set it so")

    def __len__(self) -> int:
        return len(self.rows)

    def prepare(self, out: Path, model: FICGAN | FrameFICGAN) -> None:
        """Read the faces, or take what an earlier run in `out` has read."""
        key = f"{file_digest(self.path)}/{self.verify.name}/{PRESENCE}"
        mesh = MediaPipeMesh(device="cpu")
        self.set = FrameFaces.prepare(self.faces, self.model, mesh, self.verify, out / "faces", key, _say)
        every = np.arange(len(self.set))
        held_out = every % HELD_OUT == HELD_OUT - 1  # never trained on: snapshots are judged on them
        self.rows, self.held_out = every[~held_out], every[held_out]
        if len(self.rows) < self.config.optimizer.batch:
            raise UsageError(f"{len(self.rows)} clear faces are fewer than one batch of {self.config.optimizer.batch}")
        self.mixes = Mixes(self.set, self.frame, self.device)
        self.losses = FrameLosses(self.set).to(self.device)
        self.composite = Composite(self.model.warp, self.model.mask, self.config.model.resolution).to(self.device)
        self.memory = CodeMemory()
        assert isinstance(model, FrameFICGAN)
        with torch.no_grad():
            for begin in range(0, min(self.memory.size, len(self.rows)), 64):
                self._remember(model, self.rows[begin : begin + 64])

    @torch.no_grad()
    def _remember(self, model: FrameFICGAN, rows: NDArray[np.int64]) -> None:
        w = model.map(model.encode(self.mixes.textures(rows), self.mixes.identity(rows)).z_id)
        self.memory.add(np.concatenate([self.set.codes[rows], w.float().cpu().numpy()], 1))

    def generator_step(
        self, state: TrainingState, judge: FrameDiscriminator, indices: Tensor, weights: Weights, share: float,
        rng: torch.Generator,
    ) -> tuple[Judged, dict[str, Tensor]]:  # fmt: skip
        """Accumulate gradients for one round; returns what D will judge, and the terms of the loss.

        Source: FICGAN, "Total Loss", on composites.
        """
        config, model, rows = self.config, state.model, self.rows[indices.numpy()]
        assert isinstance(model, FrameFICGAN)
        plan = plan_swap(len(rows), model.num_layers, config.swap, rng)
        drawn = np.random.default_rng(int(torch.randint(2**62, (), generator=rng)))
        batch, w_mean = self._mix(rows, plan, drawn)
        codes = model.encode(batch.texture, batch.code)
        z_non = codes.z_non
        if config.model.spatial_noise > 0:
            z_non = z_non + config.model.spatial_noise * torch.randn_like(z_non)
        w = model.map(codes.z_id)
        model.mapping.track_mean(w)
        self.memory.add(np.concatenate([self.set.codes[rows], w.detach().float().cpu().numpy()], 1))
        new = torch.where(plan.to_mean[:, None].to(w.device), w_mean.to(w.dtype), w[plan.target.to(w.device)])
        per_layer = _layered(w, new, plan, model.num_layers)
        fakes, textures, shape = self._published(model, batch, per_layer, z_non)
        x_rec, x_mix = fakes.chunk(2)
        terms, maps, maps_real = self._terms(batch, plan, textures, shape, x_rec, x_mix, weights, rng)
        rec_texture, mix_texture = textures.chunk(2)
        told = config.loss
        total = (
            weights.reconstruction * terms["rec"] + told.perceptual * terms["perceptual"]
            + told.structure * terms["structure"] + told.keep * terms["keep"] + told.shape * terms["shape"]
            + weights.verification * (told.positive * terms["pos"] + told.negative * terms["neg"])
        )  # fmt: skip
        if weights.adversarial > 0:
            for name, texture, seen in (("adv_rec", rec_texture, []), ("adv_mix", mix_texture, maps)):
                logits = judge(texture, self.composite.mask, seen)
                terms[name] = losses.local_adversarial(logits, self.weight(logits), real=True).mean()
            adversarial = told.adversarial_rec * terms["adv_rec"] + told.adversarial_mix * terms["adv_mix"]
            total = total + weights.adversarial * adversarial
        terms["total"] = total
        (total * share).backward()
        told_terms = {name: term.detach() for name, term in terms.items()}
        detached = [one.detach() for one in maps]
        made = Judged(batch.texture, maps_real, rec_texture.detach(), mix_texture.detach(), detached)
        return made, told_terms

    def discriminator_step(
        self, state: TrainingState, judge: FrameDiscriminator, made: Judged, share: float
    ) -> dict[str, Tensor]:
        """Accumulate D's gradients for one round of `generator_step`."""
        mask = self.composite.mask
        real = judge(made.real, mask, made.real_maps)
        mix, rec = judge(made.mix, mask, made.mix_maps), judge(made.rec, mask)
        weight = self.weight(real)
        loss = losses.local_adversarial(real, weight, real=True)
        loss = loss + 0.5 * losses.local_adversarial(mix, weight, real=False)
        loss = (loss + 0.5 * losses.local_adversarial(rec, weight, real=False)).mean()
        (loss * share).backward()
        told = {"d": loss.detach(), "r_t": torch.stack([one.detach().sign().mean() for one in real]).mean()}
        for number, (a, b) in enumerate(zip(real, mix, strict=True)):
            told[f"d_{number}"] = ((a > 0).float().mean() + (b < 0).float().mean()).detach() / 2
        return told

    def r1_step(self, state: TrainingState, made: Judged, weight: float, share: float) -> dict[str, Tensor]:
        """Accumulate the gradients of R1 on patches for one round."""
        with torch.autocast(self.device.type, enabled=False):
            real = made.real.detach().requires_grad_(True)
            logits = state.discriminator(real, self.composite.mask)
            assert isinstance(logits, list)
            weights = self.weight(logits)
            mean = (logits[0] * weights).sum((1, 2, 3)) / weights.sum()
            penalty = losses.r1_penalty(mean, real).mean()
            (penalty * (weight * share)).backward()
        return {"r1": penalty.detach()}

    def weight(self, logits: Sequence[Tensor]) -> Tensor:
        """How much each of D's patches counts, [1,1,h,w]."""
        height, width = logits[0].shape[2:]
        return F.adaptive_avg_pool2d(self.composite.mask, (height, width))

    def _mix(self, rows: NDArray[np.int64], plan: Swap, rng: np.random.Generator) -> tuple[FrameBatch, Tensor]:
        """The batch as the linear model has it, and w of those that go towards a mean [B,w_dim]."""
        size = self.model.code_size
        new = self.set.codes[rows[plan.target.numpy()]]
        w = np.zeros((len(rows), self.config.model.w_dim), np.float32)
        for row in np.flatnonzero(plan.to_mean.numpy()):
            code = self.memory.draw(rng)
            new[row], w[row] = code[:size], code[size:]
        return self.mixes.batch(rows, new, plan.kept.numpy() + 1, rng), torch.from_numpy(w).to(self.device)

    def _published(
        self, model: FrameFICGAN, batch: FrameBatch, w: Tensor, z_non: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Composites [2B,3,S,S], textures [2B,3,R,R] and what moves the shape [2B,I]."""
        out = model.generate(w, batch.moment, torch.cat([z_non, z_non]), batch.linear)
        added = torch.lerp(out.texture, out.texture.mean(1, keepdim=True), batch.grey)
        textures = batch.linear + batch.contrast * added
        points = batch.points + torch.einsum("bi,binj->bnj", out.shape, batch.moves)
        source, upright = torch.cat([batch.source] * 2), torch.cat([batch.upright] * 2)
        return self.composite(source, textures, points, upright), textures, out.shape

    def _terms(
        self, batch: FrameBatch, plan: Swap, textures: Tensor, shape: Tensor, x_rec: Tensor, x_mix: Tensor,
        weights: Weights, rng: torch.Generator,
    ) -> tuple[dict[str, Tensor], list[Tensor], list[Tensor]]:  # fmt: skip
        """Terms of the loss, and V's feature maps of the mixes and of varied sources, for D."""
        told, count = self.config.loss, len(x_rec)
        mask = self.composite.mask
        rec, mix = textures.chunk(2)
        apart = (rec - batch.texture).abs() * mask
        terms = {"rec": apart.mean((1, 2, 3)).mean() / mask.mean()}
        terms["structure"] = losses.structure(batch.source, x_mix, told.structure_size).mean()
        terms["keep"] = self.losses.keep(mix, batch.shape + shape[count:], batch.wanted).mean()
        terms["shape"] = shape[count:].square().mean()
        vary = rng if self.config.verifier.augment else None
        with torch.no_grad():
            _, seen = self.verify.read((batch.source, None), (batch.source, vary))
        embedding, made = self.verify.read((x_rec, None), (x_mix, vary))
        v_rec, v_mix = embedding.chunk(2)
        maps, maps_real = ([one[part] for one in seen] for part in (slice(count), slice(count, None)))
        maps_rec, maps_mix = ([one[part] for one in made] for part in (slice(count), slice(count, None)))
        terms["perceptual"] = losses.feature_distance(maps, maps_rec)
        terms["same"] = F.cosine_similarity(v_rec.detach(), batch.identity, dim=1).mean()
        target = batch.identity[plan.target.to(self.device)]
        owed = 1 - plan.kept.to(self.device, torch.float32) / self.model.num_layers
        swapped = (~plan.to_mean).to(self.device)
        margin = told.negative_margin
        terms["neg"] = (losses.negative_hinge(batch.identity, target, v_mix, margin, swapped) * owed).mean()
        terms["pos"] = (losses.positive(target, v_mix) * owed * swapped.float()).mean()
        return terms, maps_mix, maps_real

    def save(self, path: Path, model: FICGAN | FrameFICGAN, training: dict[str, Any]) -> None:
        """Write linear model and averaged network for use, as one file."""
        assert isinstance(model, FrameFICGAN)
        data = {"licence": self.config.data_licence, "fingerprint": self.faces.fingerprint, "images": len(self.set)}
        info = replace(self.info, data=data, training={**self.info.training, "network": training})
        reader, writer = (part.SerializeToString() for part in frame_to_onnx(model))
        size = self.config.model
        network = FrameNetwork(reader, writer, size.w_dim, size.num_layers, size.spatial_channels * 16)
        save_appearance(path, self.model, self.frame, info, overwrite=True, network=network)

    @torch.no_grad()
    def snapshot(self, model: FICGAN | FrameFICGAN, path: Path) -> None:
        """Write a sheet of held-out faces.

        Rows: source, linear reconstruction, reconstruction, linear mix, mix (i = 0), mix (i = L/2), another draw.
        """
        assert isinstance(model, FrameFICGAN)
        rows = self.held_out[:: max(1, len(self.held_out) // 12)][:12]
        sheet: list[Tensor] = []
        for number, kept in ((0, 0), (0, self.model.num_layers // 2), (1, 0)):
            rng = np.random.default_rng(number)
            made = [self.memory.draw(rng) for _ in rows]
            new, w_new = np.split(np.stack(made), [self.model.code_size], 1)
            batch = self.mixes.batch(rows, new, np.full(len(rows), kept + 1), rng)
            codes = model.encode(batch.texture, batch.code)
            w = model.map(codes.z_id)
            layered = torch.from_numpy(w_new).to(w)[:, None].repeat(1, model.num_layers, 1)
            layered[:, :kept] = w[:, None]
            own = w[:, None].expand(-1, model.num_layers, -1)
            made_of, _, _ = self._published(model, batch, torch.cat([own, layered]), codes.z_non)
            source, upright = torch.cat([batch.source] * 2), torch.cat([batch.upright] * 2)
            plain = self.composite(source, batch.linear, batch.points, upright)
            if not sheet:
                sheet += [batch.source, plain[: len(rows)], made_of[: len(rows)], plain[len(rows) :]]
            sheet.append(made_of[len(rows) :])
        save_grid(torch.stack(sheet), path)

    def reals(self) -> Tensor:
        """The first faces of the set as a square grid [r,r,3,S,S]."""
        side = min(8, int(len(self.set) ** 0.5))
        return self.mixes.picture(np.array(self.set.images[: side * side])).unflatten(0, (side, side))


def _rows(array: NDArray[np.uint8], rows: NDArray[np.int64]) -> NDArray[np.uint8]:
    """Rows of an array on disk; one at a time, as fancy indexing of a mapped file is slower."""
    return np.stack([array[row] for row in rows])


def _layered(w: Tensor, new: Tensor, plan: Swap, layers: int) -> Tensor:
    """w of reconstructions and mixes: [2B,w_dim], or [2B,L,w_dim] where some layers keep the source's."""
    if not bool(plan.kept.any()):
        return torch.cat([w, new])
    keeps = (torch.arange(layers)[None] < plan.kept[:, None]).to(w.device)
    mixed = torch.where(keeps[:, :, None], w[:, None], new[:, None])
    return torch.cat([w[:, None].expand(-1, layers, -1), mixed])


def _appearance_file(name: str) -> Path:
    if name != "embedded":
        return Path(name)
    from ficgan import pretrained

    return pretrained.path("model")


def _say(stage: str, done: int, total: int) -> None:
    if done == total or done % 2000 < 100:
        print(f"{stage}: {done} of {total}", flush=True)
