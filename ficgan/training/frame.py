"""Training in the canonical frame: the losses of what would be published, and the figures of snapshots."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Generator, Tensor

from ficgan import losses
from ficgan.arrays import blocks, ridge, to_pixels
from ficgan.config import Config
from ficgan.data import check_alignment, open_faces
from ficgan.errors import Progress, UsageError, unheard
from ficgan.faces import Alignment, get_recognizer
from ficgan.frame.appearance import SMALL, look_features
from ficgan.frame.file import FrameNetwork, load_appearance, save_appearance
from ficgan.frame.fit import ridge_map, telling_map
from ficgan.frame.learn import SIDE
from ficgan.identity.kind import AGES, ETHNICITIES, GENDERS, YEARS, KindCodes, kind_reader
from ficgan.models import FrameDiscriminator, FrameFICGAN
from ficgan.models.ficgan import Linear
from ficgan.models.frame import even_look
from ficgan.models.onnx import frame_to_onnx
from ficgan.training import task
from ficgan.training.frame_faces import PRESENCE, CodeMemory, Composite, FrameBatch, FrameFaces, Mixes, Rows
from ficgan.training.state import TrainingState, save_grid
from ficgan.training.task import Judged, Paths, Swap, TrainingTask, Weights
from ficgan.verification import Verifier

Floats = NDArray[np.float32]
HELD_OUT = 32  # every so-many-th face is never trained on
JUDGED = 192  # of them a snapshot is judged on so many
_RIDGE = 0.01  # penalty of regressions on embeddings and on small textures, of the mean square of what they read
# Terms of the total loss beside those of λ1 to λ3, by the names of their factors.
_FACTORS = ("perceptual", "structure", "keep", "kind", "shape", "colour", "anchor", "manifold", "beside", "excess")
_PLACES = 16  # side of the grid of places whose fine detail is compared


class FrameLosses:
    """Losses from fixed linear probes (expression, attributes, kind, V's principal axes), fitted once.

    What must stay of a source is read from the mix. Gender and age are read twice: from the texture, which can be
    fooled by a few wrinkles, and with the ethnic group from V's embedding. E is taught the `code_size` components in
    which V's embeddings differ most.
    """

    def __init__(self, faces: FrameFaces, code_size: int, gain: float = 1.0, device: Any = "cpu") -> None:
        def tensor(value: NDArray[Any]) -> Tensor:
            return torch.tensor(value, dtype=torch.float32, device=device)

        rows = np.linspace(0, len(faces) - 1, min(6000, len(faces))).astype(int)
        textures = faces.textures[rows]
        x = look_features(textures, faces.read.take(rows))
        pixels = 3 * SMALL * SMALL
        seen = x[:, :pixels].astype(np.float64)
        numbers = np.clip(faces.read.numbers[rows], -2.5, 2.5).astype(np.float64)
        half = np.arange(len(rows)) % 2 == 0
        maps = [ridge(seen[p], numbers[p], 300) for p in (half, half | ~half)]
        left = np.square(numbers[~half] - seen[~half] @ maps[0]).sum(0)
        trust = np.clip(1 - left / np.square(numbers[~half]).sum(0), 0, 1)
        looks = faces.model.looks
        known = faces.identity / np.linalg.norm(faces.identity, axis=1, keepdims=True).astype(np.float64)
        middle = known.mean(0)
        known = known - middle
        variance, axes = np.linalg.eigh(known.T @ known / len(known))
        variance, axes = variance[::-1][:code_size], axes[:, ::-1][:, :code_size]
        axes = np.pad(axes / np.sqrt(variance.mean()), ((0, 0), (0, code_size - axes.shape[1])))
        labelled = faces.cell >= 0
        sides = np.zeros((known.shape[1], len(_cell_signs()[0])))
        if labelled.any():
            sides = ridge_map(known[labelled], _cell_signs()[faces.cell[labelled]], _RIDGE)
        shown = KindCodes(known @ sides, faces.cell).means
        kinds = shown.mean(0) + gain * (shown - shown.mean(0))
        self.axes, self.sides, self.middle = tensor(axes), tensor(sides), tensor(middle)
        self.kinds = tensor(np.vstack([kinds, np.zeros_like(kinds[:1])]))  # the last of an unknown cell
        self.readers, self.looks = tensor(np.vstack([maps[1].T, looks[:, :pixels]])), tensor(looks[:, pixels:])
        self.trust = tensor(np.r_[trust, np.ones(len(looks))])

    def keep(self, textures: Tensor, shape: Tensor, wanted: Tensor) -> Tensor:
        """Squared error [B] of expression and attributes, `wanted` [B,6+A], as textures [B,3,R,R] in [−1, 1] show them.

        `shape` [B,I] are coefficients of the published shape.
        """
        found = even_look(textures) @ self.readers.t()
        numbers = wanted.shape[1] - len(self.looks)
        rest = torch.cat([0.3 * shape, 0.3 * wanted[:, :numbers], torch.ones_like(wanted[:, :1])], 1)
        attributes = found[:, numbers:] + rest @ self.looks.t()
        found = torch.cat([found[:, :numbers], attributes], 1)
        return ((found - wanted).square().clamp_max(4) * self.trust).mean(1)

    def seen(self, embeddings: Tensor) -> Tensor:
        """What V's embeddings [B,E] say of a person, [B,code_size]; its mean square is 1."""
        return (F.normalize(embeddings, dim=1) - self.middle) @ self.axes

    def kind(self, mix: Tensor, target: Tensor, cell: Tensor, to_mean: Tensor) -> Tensor:
        """Squared difference [B] of the kinds that V's embeddings of mixes [B,E] show from those that they shall show.

        Args:
            target: embeddings [B,E] of those whose identity is taken.
            cell: int64 [B], kind that a k-same draw is of; −1 where it is unknown.
            to_mean: bool [B], which mixes take a draw.
        """
        shown, theirs = ((F.normalize(one, dim=1) - self.middle) @ self.sides for one in (mix, target))
        wanted = torch.where(to_mean[:, None], self.kinds[cell], theirs)
        apart = (shown - wanted).square().mean(1)
        return apart * (~to_mean | (cell >= 0))


@lru_cache(maxsize=1)
def _cell_signs() -> NDArray[np.float64]:
    """[126,9]: ethnic group, gender and age of each cell, each of unit spread."""
    ethnicity, gender, age = (part.ravel() for part in np.indices((len(ETHNICITIES), len(GENDERS), len(AGES))))
    signs = np.concatenate([np.eye(len(ETHNICITIES))[ethnicity], gender[:, None], YEARS[age, None] / 16], 1)
    signs = signs - signs.mean(0)
    signs[:, :-1] /= signs[:, :-1].std(0)
    return np.asarray(signs)


class FrameTask(TrainingTask):
    """A run in the canonical frame, on the linear model that `config.model.frame` names.

    D judges V's maps of what is published, finest first. V reads mixes with small changes of the picture,
    reconstructions without, and sources both ways: they stand twice.
    """

    verify: Verifier

    def open(self, data: Paths, labels: Path | str | None, split: str | None) -> None:
        wanted, frame = self.config.model, self.config.model.frame
        assert frame is not None
        self.path = appearance_file(frame.appearance)
        model, self.frame, self.info, _ = load_appearance(self.path)
        self.model = model.with_layers(wanted.num_layers)
        needed = {
            "resolution": (wanted.resolution, model.size),
            "frame.code_dim": (frame.code_dim, model.code_size - model.lights + len(model.names)),
            "frame.shape_dim": (frame.shape_dim, len(model.shape.basis)),
            "frame.moment_dim": (frame.moment_dim, model.moment_size),
        }
        for key, (asked, has) in needed.items():
            if asked != has:
                raise UsageError(f"model.{key} is {asked}, and {self.path} needs {has}: set it so")
        self.verify = task.make_verify(self.config, Alignment(), self.device, SIDE)
        self.faces = open_faces(data, resolution=SIDE, labels=labels, split=split)
        check_alignment(self.faces, Alignment("canonical"))

    @staticmethod
    def networks(config: Config) -> tuple[FrameFICGAN, FrameDiscriminator]:
        return FrameFICGAN(config.model), FrameDiscriminator(config.discriminator)

    def prepare(self, out: Path, models: Sequence[FrameFICGAN], progress: Progress = unheard) -> None:
        """As of `TrainingTask`; an untrained E gets its linear part fitted, and the last model says the codes."""
        read = hashlib.sha256()  # of what reads faces: another network or other draws in the same file change nothing
        for name, array in sorted(self.model.to_arrays().items()):
            if not name.startswith(("teeth", "telling", "bias", "gate", "lent_gate")):
                read.update(f"{name} {array.dtype} {array.shape} ".encode() + array.tobytes())
        key = f"{read.hexdigest()}/{self.verify.name}/{PRESENCE}"
        self.set = FrameFaces.prepare(self.faces, self.model, self.verify, out / "faces", key, progress)
        every = np.arange(len(self.set))
        held_out = every % HELD_OUT == HELD_OUT - 1  # never trained on: snapshots are judged on them
        self.rows, self.held_out = every[~held_out], every[held_out]
        self.require_batch(len(self.rows))
        assert self.config.model.frame is not None
        if gain := self.config.model.frame.telling:
            codes, identity = self.set.codes[self.rows], self.set.identity[self.rows]
            shapes = len(self.model.shape.basis)
            free = np.s_[shapes : shapes + self.model.lights]
            self.model = replace(self.model, telling=telling_map(codes, identity, free, gain))
        self.mixes = Mixes(self.set, self.frame, self.device)
        self.losses = FrameLosses(self.set, self.config.model.id_dim, self.config.loss.kind_gain, self.device)
        self.composite = Composite(self.model.warp, self.model.mask, SIDE, self.device)
        written = self.model.written.reshape(len(self.model.written), -1, 3).transpose(0, 2, 1)  # channels first
        self.components = torch.from_numpy(written.reshape(len(written), -1).copy()).to(self.device)
        self.coefficients = torch.linalg.pinv(self.components)
        self.pixels = torch.from_numpy(self.model.pixels).to(self.device)
        self.memory = CodeMemory()
        untrained = [one.encoder.reader for one in models if not one.encoder.reader.weight.any()]
        if self.config.loss.code and untrained:
            self._fit(untrained, progress)
        with torch.no_grad():
            for part in blocks(min(self.memory.size, len(self.rows)), 64):
                rows = self.rows[part]
                z_id = models[-1].encode(self.mixes.picture(self.set.textures[rows]), self.mixes.identity(rows))
                self._remember(rows, models[-1].mapping(z_id))

    @torch.no_grad()
    def _fit(self, readers: Sequence[Linear], progress: Progress) -> None:
        """Ridge regression of what V sees on small copies of the textures: E's part of the code at the start."""
        size = readers[0].weight.shape[1] + 1
        both = torch.zeros(size, size + len(readers[0].bias), dtype=torch.float64)
        for part in blocks(len(self.rows), 256):
            rows = self.rows[part]
            look = even_look(self.mixes.picture(self.set.textures[rows])).cpu()
            look = F.pad(look, (0, 1), value=1.0)  # a column for the bias
            wanted = self.losses.seen(torch.from_numpy(self.set.identity[rows]).to(self.device)).cpu()
            both += look.T.double() @ torch.cat([look, wanted], 1).double()
            progress(part.stop, len(self.rows), "fitting the encoder's linear part")
        square, product = both.split([size, both.shape[1] - size], 1)
        penalty = _RIDGE * square.diagonal().mean() * torch.eye(size, dtype=torch.float64)
        found = torch.linalg.solve(square + penalty, product).T.float().to(self.device)
        for reader in readers:
            reader.weight.copy_(found[:, :-1] / reader.weight_gain)
            reader.bias.copy_(found[:, -1] / reader.bias_gain)

    def _remember(self, rows: Rows, w: Tensor) -> None:
        codes = [self.set.model.bank_codes(self.set.codes[rows]), self.set.moment.kept[rows], w.float().cpu().numpy()]
        self.memory.add(np.concatenate(codes, 1), self.set.cell[rows])

    def generator_loss(
        self, state: TrainingState, indices: Tensor, weights: Weights, rng: Generator
    ) -> tuple[Judged, dict[str, Tensor]]:
        """As `TrainingTask.generator_loss` says. Source: FICGAN, "Total Loss", on composites."""
        config, model, rows = self.config, state.model, self.rows[indices.numpy()]
        plan = task.plan_swap(len(rows), model.num_layers, config.swap, rng)
        drawn = np.random.default_rng(int(torch.randint(2**62, (), generator=rng)))
        batch, w_mean = self._mix(rows, plan, drawn)
        z_id = model.encode(batch.texture, batch.code)
        w = model.mapping(z_id)
        model.mapping.track_mean(w)
        self._remember(rows, w.detach())
        new = torch.where(plan.to_mean[:, None].to(w.device), w_mean.to(w.dtype), w[plan.target.to(w.device)])
        per_layer = task.with_reconstructions(w, task.in_layers(w, new, plan, model.num_layers))
        fakes, textures, shape, fine = self._published(model, batch, per_layer)
        terms, maps_rec, maps_mix, maps_real = self._terms(rows, batch, plan, textures, shape, fakes, rng)
        fine_rec, fine_mix = fine.chunk(2)
        learned = z_id[:, batch.code.shape[1] :].float()
        terms["code"] = (learned - self.losses.seen(batch.identity)).square().mean()
        terms["excess"] = losses.excess_detail(fine_rec, fine_mix, _PLACES).mean()
        factors = config.loss
        total = weights.reconstruction * terms["rec"]
        for name in (*_FACTORS, "code"):
            total = total + getattr(factors, name) * terms[name]
        total = total + weights.verification * (factors.positive * terms["pos"] + factors.negative * terms["neg"])
        if weights.adversarial > 0:
            terms["adv_rec"] = losses.local_adversarial(state.judge(maps_rec), real=True)
            terms["adv_mix"] = losses.local_adversarial(state.judge(maps_mix), real=True)
            adversarial = factors.adversarial_rec * terms["adv_rec"] + factors.adversarial_mix * terms["adv_mix"]
            total = total + weights.adversarial * adversarial
        terms["total"] = total
        rec_maps, mix_maps = ([part.detach() for part in maps] for maps in (maps_rec, maps_mix))
        return Judged(maps_real, rec_maps, mix_maps), terms

    def discriminator_loss(self, state: TrainingState, made: Judged) -> dict[str, Tensor]:
        real, mix, rec = state.judge(made.real), state.judge(made.mix), state.judge(made.rec)
        loss = losses.local_adversarial(real, real=True)
        for fake in (mix, rec):
            loss = loss + losses.local_adversarial(fake, real=False) / 2
        terms = {"d": loss, "r_t": torch.stack([logit.sign().mean() for logit in real]).mean()}
        for number, (a, b) in enumerate(zip(real, mix, strict=True)):
            terms[f"d_{number}"] = ((a > 0).float().mean() + (b < 0).float().mean()) / 2
        return terms

    def _mix(self, rows: Rows, plan: Swap, rng: np.random.Generator) -> tuple[FrameBatch, Tensor]:
        """The batch as the linear model has it, and w of those that go towards a mean [B,w_dim]."""
        others = rows[plan.target.numpy()]
        new, given = self.set.codes[others], self.set.moment.kept[others]
        w = np.zeros((len(rows), self.config.model.w_dim), np.float32)
        for row in np.flatnonzero(plan.to_mean.numpy()):
            new[row], given[row], w[row] = self._split(self.memory.draw(rng, int(self.set.cell[rows[row]])))
        batch = self.mixes.batch(rows, new, given, plan.kept.numpy() + 1, rng)
        return batch, torch.from_numpy(w).to(self.device)

    def _split(self, codes: Floats) -> list[Floats]:
        """The linear model's code, attributes and w of what the memory holds."""
        size = self.model.code_size
        return np.split(codes, [size, size + len(self.model.names)], -1)

    def _published(self, model: FrameFICGAN, batch: FrameBatch, w: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Composites [2B,3,S,S], textures [2B,3,R,R], moves of the shape [2B,I], and the fine detail [2B,3,R,R]."""
        out = model.generator(w, batch.moment, batch.linear)
        added = torch.lerp(out.texture, out.texture.mean(1, keepdim=True), batch.grey)
        side = self.config.loss.coarse or self.config.model.resolution
        coarse = F.interpolate(F.adaptive_avg_pool2d(added, side), added.shape[2:], mode="bilinear")
        fine = (added - coarse) * self.composite.mask
        if self.config.loss.coarse:
            (rec, mix), coarse_mix = added.chunk(2), coarse.chunk(2)[1]
            added = torch.cat([rec, coarse_mix + (mix - coarse_mix).detach()])
        textures = batch.linear + batch.contrast * added
        points = batch.points + torch.einsum("bi,binj->bnj", out.shape, batch.moves)
        return self._pasted(batch, textures, points), textures, out.shape, fine

    def _terms(
        self, rows: Rows, batch: FrameBatch, plan: Swap, textures: Tensor, shape: Tensor, fakes: Tensor, rng: Generator
    ) -> tuple[dict[str, Tensor], list[Tensor], list[Tensor], list[Tensor]]:
        factors, (x_rec, x_mix), count = self.config.loss, fakes.chunk(2), len(rows)
        mask = self.composite.mask
        rec, mix = textures.chunk(2)
        apart = (rec - batch.texture).abs() * mask
        terms = {"rec": apart.mean((1, 2, 3)).mean() / mask.mean()}
        terms["structure"] = losses.structure(batch.source, x_mix, factors.structure_size).mean()
        terms["keep"] = self.losses.keep(mix, batch.shape + shape[count:], batch.wanted).mean()
        added = (mix - batch.linear[count:]) * mask
        beside = (textures - batch.linear) / batch.contrast * (1 - mask)
        terms["beside"] = beside.abs().mean()
        chroma = F.avg_pool2d(added - added.mean(1, keepdim=True), 4)
        written = ((mix - batch.linear[count:]) / batch.contrast[count:]).flatten(2)[:, :, self.pixels].flatten(1)
        beyond, rest = losses.manifold(written, self.components, self.coefficients)
        apart = rest.unflatten(1, (3, -1)) * mask.flatten(2)[..., self.pixels] * batch.contrast[count:, :, 0]
        terms["anchor"], terms["manifold"] = apart.abs().mean(), beyond.mean()
        terms["colour"] = chroma.square().mean() / mask.mean()
        terms["shape"] = shape[count:].square().mean()
        vary = rng if self.config.verifier.augment else None
        with torch.no_grad():
            _, seen = self.verify.read((batch.source, None), (batch.source, vary))
        embedding, made = self.verify.read((x_rec, None), (x_mix, vary))
        v_rec, v_mix = embedding.chunk(2)
        maps = [one[:count] for one in seen]
        maps_rec, maps_mix = ([one[part] for one in made] for part in (slice(count), slice(count, None)))
        terms["perceptual"] = losses.feature_distance(maps, maps_rec)
        terms["same"] = F.cosine_similarity(v_rec.detach(), batch.identity, dim=1).mean()
        target = batch.identity[plan.target.to(self.device)]
        owed = 1 - plan.kept.to(self.device, torch.float32) / self.model.num_layers
        swapped = (~plan.to_mean).to(self.device)
        margin = factors.negative_margin
        cell = torch.from_numpy(self.set.cell[rows]).to(self.device)
        kind = self.losses.kind(v_mix, target, cell, plan.to_mean.to(self.device))
        terms["kind"] = (kind * owed).mean()
        terms["neg"] = (losses.negative_hinge(batch.identity, target, v_mix, margin, swapped) * owed).mean()
        terms["pos"] = (losses.positive(target, v_mix) * owed * swapped.float()).mean()
        return terms, maps_rec, maps_mix, seen

    def save(self, path: Path, model: FrameFICGAN, training: dict[str, Any]) -> None:
        data = {"licence": self.config.data_licence, "fingerprint": self.faces.fingerprint, "images": len(self.set)}
        info = replace(self.info, data=data, training={**self.info.training, "network": training})
        reader, writer = (part.SerializeToString() for part in frame_to_onnx(model))
        size = self.config.model
        network = FrameNetwork(reader, writer, size.w_dim, size.num_layers)
        save_appearance(path, self.model, self.frame, info, overwrite=True, network=network)

    @torch.no_grad()
    def snapshot(self, model: FrameFICGAN, path: Path) -> None:
        """Write a sheet of held-out faces.

        Rows: source, linear reconstruction, reconstruction, linear mix, mix (i = 0), mix (i = L/2), another draw.
        """
        rows = self.held_out[:: max(1, len(self.held_out) // 12)][:12]
        sheet: list[Tensor] = []
        for number, kept in ((0, 0), (0, self.model.num_layers // 2), (1, 0)):
            batch, network, linear = self._held_out(model, rows, kept, np.random.default_rng(number))
            (plain, plain_mix), (rec, mix) = linear.pictures.chunk(2), network.pictures.chunk(2)
            if not sheet:
                sheet += [batch.source, plain, rec, plain_mix]
            sheet.append(mix)
        save_grid(torch.stack(sheet), path)

    @torch.no_grad()
    def judge(self, model: FrameFICGAN) -> dict[str, float]:
        """Figures of the averaged model on held-out faces, by a recogniser that no loss knows.

        `match`: share of mixes (i = 0) that are taken for their source; `distance`, `distance_rec`: of mixes and
        reconstructions to it; `sharpness`: variance of the mixes' Laplacian, of the sources'; `mse`: of
        reconstructions; `keep`: see `FrameLosses.keep`. Of faces that take another one's identity: `swap_match`, share
        that is taken for that one, `swap_source`, for its source. `ethnicity`, `gender`: share of mixes that are read
        as their sources, `age`: mean difference in years. The linear model's end in `_linear`.
        """
        recogniser, mask = get_recognizer("dlib"), self.composite.mask
        points = Alignment().points(SIDE).astype(np.float32)[None]

        def embedded(pictures: Tensor) -> Floats:
            return np.concatenate([recogniser.embed(one, points) for one in to_pixels(pictures)])

        rows = self.held_out[:: max(1, len(self.held_out) // JUDGED)][:JUDGED]
        figures_of: dict[str, list[Floats]] = {}
        groups, threshold = len(ETHNICITIES), recogniser.match_threshold
        for begin in range(0, len(rows), 16):
            part = rows[begin : begin + 16]
            batch, *drawn = self._held_out(model, part, 0, np.random.default_rng(begin))
            _, *swapped = self._held_out(model, part, 0, np.random.default_rng(begin), swap=True)
            source = embedded(batch.source)
            for end, made, other in zip(("", "_linear"), drawn, swapped, strict=True):
                (rec, mix), swap = np.split(embedded(made.pictures), 2), embedded(other.pictures.chunk(2)[1])
                rec_texture, mix_texture = made.textures.chunk(2)
                apart = np.linalg.norm(mix - source, axis=1)
                before, after = (kind_reader().read(one) for one in (source, mix))
                figures = {
                    "swap_match": np.linalg.norm(swap - np.roll(source, 1, 0), axis=1) < threshold,
                    "swap_source": np.linalg.norm(swap - source, axis=1) < threshold,
                    "ethnicity": before[:, :groups].argmax(1) == after[:, :groups].argmax(1),
                    "gender": (before[:, groups] > 0.5) == (after[:, groups] > 0.5),
                    "age": abs(before - after)[:, -1],
                    "match": apart < threshold,
                    "distance": apart,
                    "mse": ((rec_texture - batch.texture).square() * mask).mean((1, 2, 3)) / mask.mean(),
                    "keep": self.losses.keep(mix_texture, made.shape, batch.wanted),
                    "distance_rec": np.linalg.norm(rec - source, axis=1),
                    "sharpness": (sharpness_under(mix_texture, mask) / sharpness_under(batch.texture, mask)).log(),
                }
                for name, values in figures.items():
                    figures_of.setdefault(name + end, []).append(np.asarray(values, np.float32))
        means = {name: float(np.concatenate(parts).mean()) for name, parts in figures_of.items()}
        return {name: float(np.exp(mean)) if name.startswith("sharp") else mean for name, mean in means.items()}

    def _held_out(
        self, model: FrameFICGAN, rows: Rows, kept: int, rng: np.random.Generator, *, swap: bool = False
    ) -> tuple[FrameBatch, _HeldOutFaces, _HeldOutFaces]:
        """What network and linear model make with a k-same draw (`swap`: the row before) from layer `kept` + 1 on."""
        new, given_new, w_new = self._split(np.stack([self.memory.draw(rng, int(self.set.cell[row])) for row in rows]))
        if swap:
            new, given_new = self.set.codes[np.roll(rows, 1)], self.set.moment.kept[np.roll(rows, 1)]
        batch = self.mixes.batch(rows, new, given_new, np.full(len(rows), kept + 1), rng)
        w = model.mapping(model.encode(batch.texture, batch.code))
        given = w.roll(1, 0) if swap else torch.from_numpy(w_new).to(w)
        own, mixed = (one[:, None].repeat(1, model.num_layers, 1) for one in (w, given))
        mixed[:, :kept] = own[:, :kept]
        pictures, textures, shape, _ = self._published(model, batch, torch.cat([own, mixed]))
        plain = self._pasted(batch, batch.linear, batch.points)
        network = _HeldOutFaces(pictures, textures, batch.shape + shape[len(rows) :])
        return batch, network, _HeldOutFaces(plain, batch.linear, batch.shape)

    def _pasted(self, batch: FrameBatch, textures: Tensor, points: Tensor) -> Tensor:
        """Textures [2B,3,R,R] with meshes [2B,468,2] in the place of the sources: [2B,3,S,S]."""
        return self.composite(batch.source.repeat(2, 1, 1, 1), textures, points, batch.upright.repeat(2, 1, 1))

    def first(self, count: int) -> Tensor:
        return self.mixes.picture(np.array(self.set.images[:count]))


class _HeldOutFaces(NamedTuple):
    """Reconstructions, then mixes: pictures and textures [2B,3,…], and the mixes' coefficients of shape [B,I]."""

    pictures: Tensor
    textures: Tensor
    shape: Tensor


def sharpness_under(textures: Tensor, mask: Tensor) -> Tensor:
    """Variance of the Laplacian of the luminance under a mask [B], as `ficgan measure` takes it."""
    grey = textures.float().mean(1, keepdim=True)
    kernel = grey.new_tensor([[0, 1, 0], [1, -4, 1], [0, 1, 0]])[None, None]
    return (F.conv2d(grey, kernel, padding=1).square() * mask).mean((1, 2, 3))


def appearance_file(name: str) -> Path:
    if name != "embedded":
        return Path(name)
    from ficgan import pretrained

    return pretrained.path("model")
