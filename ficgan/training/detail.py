"""Training of the network that fits lent detail to large faces: the frame's textures, doubled."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import cv2
import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Generator, Tensor

from ficgan import losses, pretrained
from ficgan.arrays import luminance
from ficgan.config import Config
from ficgan.data import FaceData, check_alignment, check_size, open_faces
from ficgan.errors import InputError, Progress, UsageError, unheard
from ficgan.faces import Alignment, Face, get_recognizer
from ficgan.files import file_digest
from ficgan.frame.compose import read_texture, stretched
from ficgan.frame.file import detail_conditions, load_appearance, save_appearance
from ficgan.frame.learn import images_of
from ficgan.frame.lent import agedness, fineness, lender_like, lent_detail, most_fitted, with_detail
from ficgan.frame_model import FrameModel
from ficgan.identity import IdentityBank
from ficgan.identity.kind import AGE, UNKNOWN, kind_reader
from ficgan.models import DetailDiscriminator, DetailNetwork
from ficgan.models.frame import local_mean
from ficgan.models.onnx import detail_to_onnx
from ficgan.policy import Attempt
from ficgan.training.frame import appearance_file, sharpness_under
from ficgan.training.state import TrainingState, save_grid
from ficgan.training.task import Paths, TrainingTask, Weights, pictures, read_once

Floats = NDArray[np.float32]
PRESENCE, MOST_YAW = 8.0, 0.3  # least score of a mesh that is learnt from, and its most turn, radians
COVERED = 24  # difference in a texture, of 255, from which on something lies over the face that no new face has


class DetailFaces(NamedTuple):
    """A training set of N faces; pictures stay on disk."""

    rows: NDArray[np.int64]  # those that are clear
    photos: NDArray[np.uint8]  # [N,2R,2R,3], the faces in the frame
    made: NDArray[np.uint8]  # [N,1+D,R,R,3], its reconstruction, and D drawn faces in its place
    lenders: NDArray[np.int16]  # [N,1+D], who lends each of them detail
    seen: NDArray[np.uint8]  # [N,R,R], 255 where a new face may have what is there; not hair, nor what covers the face
    kinds: Floats  # [N,9], readings of `KindReader`


def _read_faces(data: FaceData, model: FrameModel, draws: int, folder: Path, progress: Progress) -> None:
    size, count, first = model.resolution, len(data), Attempt(0)
    shapes = {"photos": (2 * size, 2 * size, 3), "made": (1 + draws, size, size, 3), "seen": (size, size)}
    kept = {name: pictures(folder / f"{name}.npy", (count, *shape)) for name, shape in shapes.items()}
    lenders = np.zeros((count, 1 + draws), np.int16)
    points = Alignment().points(data.resolution).astype(np.float32)
    face = Face(np.array([0, 0, data.resolution, data.resolution], np.float32), points, 1.0)
    gate, embeddings, clear = get_recognizer("dlib"), [], []
    for number, image in enumerate(images_of(data)):
        progress(number + 1, count, "reading faces")
        embeddings.append(gate.embed(image, points[None])[0])
        found = model.find([(image, face)])
        reading = model.see([(image, face)], found)[0]
        if found[0] is None or not found[0].presence >= PRESENCE or reading.problem:
            continue
        moment = reading.place.moment
        if abs(float(moment.read.pose.yaw[0])) > MOST_YAW:
            continue
        kind, psi = kind_reader().read(embeddings[-1][None])[0], model.auto_psi(1)
        drawn = [model.draw(f"{number}/{n}", first, psi, reading.z_id, kind) for n in range(draws)]
        new = model.styles(np.stack([reading.z_id] * draws), drawn, first)
        rows = np.concatenate([model.own_styles([reading]), new])
        made = model.undetailed(rows, [reading] * len(rows))
        upright, mesh = moment.read.upright[0], moment.read.points[0]
        bare = np.abs(read_texture(image, upright, mesh, model.model.warp).astype(int) - reading.place.texture).max(2)
        kept["photos"][number] = read_texture(image, upright, mesh, model.model.warp, finer=2)
        kept["made"][number] = np.rint(np.clip([texture for texture, _ in made], 0, 1) * 255)
        # Styles that leave a source as it is have no kind; its lenders are those of the kind that it has.
        own = lender_like(model.model, kind, rows[0, : model.model.code_size])
        lenders[number] = [own, *(lender for _, lender in made[1:])]
        kept["seen"][number] = np.rint(255 * (1 - reading.place.hair) * (bare < COVERED))
        clear.append(number)
    if not clear:
        raise InputError(f"none of the {count} faces is clear enough: give larger, sharper, frontal ones")
    np.save(folder / "rows.npy", np.array(clear))
    np.save(folder / "lenders.npy", lenders)
    np.save(folder / "gate.npy", np.stack(embeddings).astype(np.float32))
    for array in kept.values():
        array.flush()


HELD_OUT = 8  # without labels every so-many-th face is never trained on
JUDGED, SHOWN = 48, 12  # held-out faces that a snapshot is judged on, and that its sheet shows
TONE = 17  # side in pixels of the mean that is the tone of a doubled texture; what is above it is detail
# The same of what D is shown beside detail: it is not to compare the brows of somebody drawn with those of a photo.
LIGHT = 49
EYES = 2.0  # how much more than others places around the eyes count: everybody looks there first
BANDS = (3, 5, 9, 17)  # sides in pixels of the means between which bands of detail lie
K = 3000  # identities of which each drawn face is a mean


class _DetailBatch(NamedTuple):
    """B faces as the product has them before detail is added, and what is to be learnt from."""

    texture: Tensor  # [B,3,R,R] in [−1, 1]
    light: Tensor  # [B,3,2R,2R] in [0, 1], what D sees of the texture
    lent: Tensor  # [B,1,2R,2R], luminances of the detail that is lent to it
    before: Tensor  # [B,1,2R,2R], what its luminance has above its tone without that
    detail: Tensor  # [B,1,2R,2R], the same of the photo
    most: Tensor  # [B,1,2R,2R], the most that a network may add, see `most_fitted`
    condition: Tensor  # [B,10], see `detail_conditions`
    mask: Tensor  # [B,1,2R,2R], what counts
    unsharp: Tensor  # [B], 1 where `texture` is an unsharp copy of the photo
    own: Tensor  # [B], 1 where it is the photo's reconstruction


class _DetailJudged(NamedTuple):
    real: Tensor
    fake: Tensor
    mask: Tensor
    condition: Tensor


class DetailTask(TrainingTask):
    """Photos of at least twice the frame's size; inputs of 3 kinds: unsharp copies, reconstructions and drawn faces."""

    def open(self, data: Paths, labels: Path | str | None, split: str | None) -> None:
        config = self.config
        detail = config.model.detail
        assert detail is not None
        self.detail, self.split = detail, split
        self.path = appearance_file(detail.appearance)
        self.model, self.frame, self.info, self.network = load_appearance(self.path)
        size, asked = self.model.size, config.model.resolution
        if asked != 2 * size:
            raise UsageError(f"model.resolution is {asked}, and textures of {self.path} are {size}²: give {2 * size}")
        self.bank = pretrained.path("bank") if detail.bank == "embedded" else Path(detail.bank)
        self.faces = open_faces(data, resolution=config.model.resolution, labels=labels)
        check_alignment(self.faces, Alignment("canonical"))
        check_size(self.faces)
        if not len(self.model.details):
            raise UsageError(f"{self.path} has no faces that lend detail; make it with --detail FACES")
        self.mask = torch.from_numpy(self.model.fine_mask)[None, None].to(self.device)
        self.weight = 1 + EYES * torch.from_numpy(self.model.fine_places.around_eyes)[None, None].to(self.device)

    @staticmethod
    def networks(config: Config) -> tuple[DetailNetwork, DetailDiscriminator]:
        return DetailNetwork(config.model), DetailDiscriminator(config.discriminator, config.model.resolution)

    def prepare(self, out: Path, models: Sequence[DetailNetwork], progress: Progress = unheard) -> None:
        makes = FrameModel(self.model, self.frame, IdentityBank.load(self.bank), network=self.network, k=K, seed=0)
        faces, draws, folder = self.faces, self.detail.draws, out / "faces"
        key = f"{file_digest(self.path)}/{self.frame}/{file_digest(self.bank)}/{K}/{faces.fingerprint}/{draws}"
        digest = hashlib.sha256(key.encode()).hexdigest()
        found = read_once(folder, digest, lambda: _read_faces(faces, makes, draws, folder, progress))
        self.set = DetailFaces(kinds=kind_reader().read(found.pop("gate")), **found)
        rows, labels = self.set.rows, self.faces.labels
        finest = [fineness(luminance(_floats(self.set.photos[row])), self.model.fine_places) for row in rows]
        rows = rows[[max(one.skin, one.forehead) <= self.detail.finest for one in finest]]
        if not len(rows):
            raise InputError(f"all photos have more fine detail than model.detail.finest, {self.detail.finest}")
        if self.split is not None and labels is not None and labels.splits is not None:
            held_out = np.array(labels.splits)[rows] != self.split
        else:
            held_out = np.arange(len(rows)) % HELD_OUT == HELD_OUT - 1
        self.rows, self.held_out = rows[~held_out], rows[held_out]
        self.require_batch(len(self.rows))

    def generator_loss(
        self, state: TrainingState, indices: Tensor, weights: Weights, rng: Generator
    ) -> tuple[_DetailJudged, dict[str, Tensor]]:
        chance = np.random.default_rng(int(torch.randint(2**62, (), generator=rng)))
        batch = self._batch(self.rows[indices.numpy()], chance)
        added = self._added(state.model, batch)
        made_detail, weight = batch.before + batch.lent + added, batch.mask * self.weight
        # What a pixel has is chance; what four have together an unsharp photo says.
        apart = (F.avg_pool2d((made_detail - batch.detail) * weight, 2)).abs().mean((1, 2, 3))
        strength = (_energies(made_detail, weight) - _energies(batch.detail, weight)).abs().mean((1, 2, 3))
        moved = (F.avg_pool2d(added, 4).abs() * F.avg_pool2d(batch.mask, 4)).mean((1, 2, 3))
        known, drawn = batch.unsharp + batch.own, 1 - batch.unsharp
        terms = {
            "rec": (apart * batch.unsharp).sum() / batch.unsharp.sum().clamp_min(1),
            "detail": (strength * known).sum() / known.sum().clamp_min(1),
            "structure": (moved * drawn).sum() / drawn.sum().clamp_min(1),
        }
        loss = self.config.loss
        total = weights.reconstruction * terms["rec"] + loss.detail * terms["detail"]
        total = total + loss.structure * terms["structure"]
        real, fake = (self._seen(batch.light, one) for one in (batch.detail, made_detail))
        made = _DetailJudged(real, fake, batch.mask, batch.condition)
        if weights.adversarial > 0:
            judged = state.judge(made.fake, made.mask, made.condition)
            terms["adv"] = losses.local_adversarial(judged, real=True, mask=made.mask)
            total = total + weights.adversarial * terms["adv"]
        terms["total"] = total
        return made._replace(fake=made.fake.detach()), terms

    def discriminator_loss(self, state: TrainingState, made: _DetailJudged) -> dict[str, Tensor]:
        real, fake = (state.judge(one, made.mask, made.condition) for one in (made.real, made.fake))
        loss = losses.local_adversarial(real, real=True, mask=made.mask)
        loss = loss + losses.local_adversarial(fake, real=False, mask=made.mask)
        right = ((real[0] > 0).float().mean() + (fake[0] < 0).float().mean()) / 2
        return {"d": loss, "d_right": right, "r_t": real[0].sign().mean()}

    def real_logits(self, state: TrainingState, made: _DetailJudged) -> tuple[Tensor, Tensor]:
        real = made.real.detach().requires_grad_(True)
        (logits,) = state.discriminator(real, made.mask, made.condition)
        return real, logits.mean((1, 2, 3))

    @staticmethod
    def _seen(light: Tensor, detail: Tensor) -> Tensor:
        """What D is shown [B,5,2R,2R]: light, detail, and once more the finest of it, which is small."""
        smooth = F.interpolate(F.avg_pool2d(detail, 2), scale_factor=2.0, mode="bilinear")
        return torch.cat([2 * light - 1, 4 * detail, 12 * (detail - smooth)], 1)

    def _added(self, model: DetailNetwork, batch: _DetailBatch) -> Tensor:
        added: Tensor = model(batch.texture, batch.condition, batch.lent)
        return batch.most * torch.tanh(added.float() / batch.most) * self.mask

    def _batch(self, rows: NDArray[np.int64], rng: np.random.Generator) -> _DetailBatch:
        """Rows of the set, each as an input of one kind, in changed light and mirrored by chance."""
        faces = []
        for row in rows:
            u, photo, kind = rng.random(), self.set.photos[row], self.set.kinds[row]
            if rng.random() < 0.3:  # not all photos are sharp, and the network knows
                photo = cv2.GaussianBlur(photo, (0, 0), rng.uniform(0.3, 1.5))
            if rng.random() < 0.1:
                kind = np.concatenate([UNKNOWN[:7], kind[7:]])
            unsharp, hidden = u < self.detail.degraded, u >= 1 - self.detail.hidden
            made = int(rng.integers(1, 1 + self.detail.draws)) if hidden else 0
            small = _degraded(photo, self.model.size, rng) if unsharp else self.set.made[row][made]
            pair = [_floats(photo), _floats(small)]
            if rng.random() < 0.6:
                pair = _in_other_light(pair, rng)
            maps, fine = self._maps(row, made, *pair)
            if rng.random() < 0.5:
                maps = [np.ascontiguousarray(one[:, ::-1]) for one in maps]
            faces.append((*maps, kind, fine, unsharp, not (unsharp or hidden)))
        return self._of(faces)

    def plain(self, rows: NDArray[np.int64], made: int) -> _DetailBatch:
        """Rows as they are, with their reconstructions (`made` 0) or the faces drawn in their place (1 …) as inputs."""
        faces = []
        for row in rows:
            maps, fine = self._maps(row, made, _floats(self.set.photos[row]), _floats(self.set.made[row][made]))
            faces.append((*maps, self.set.kinds[row], fine, False, False))
        return self._of(faces)

    def _maps(self, row: int, made: int, photo: Floats, small: Floats) -> tuple[list[NDArray[Any]], float]:
        """Photo [2R,2R,3], texture [R,R,3], it doubled, what is lent to it, what is seen; how much detail there is."""
        places, base = self.model.fine_places, stretched(small, 2)
        wanted = fineness(luminance(photo), places)
        lender, old = self.model.lent(int(self.set.lenders[row][made])), agedness(self.set.kinds[row, AGE])
        lent = lent_detail(base, lender, wanted, places, self.frame.detail, old)
        return [photo, small, base, lent, self.set.seen[row]], wanted.skin

    def _of(self, faces: Sequence[tuple[Any, ...]]) -> _DetailBatch:
        """Of each face: the five maps, kind, strength of detail, unsharp, own."""
        photos, small, base, lent, seen, kinds, fine, unsharp, own = zip(*faces, strict=True)

        def above_tone(pictures: Sequence[Floats]) -> NDArray[Any]:
            return np.stack([grey - cv2.blur(grey, (TONE, TONE)) for grey in map(luminance, pictures)])[:, None]

        def tensor(array: Any) -> Tensor:
            return torch.from_numpy(np.ascontiguousarray(array, np.float32)).to(self.device)

        light = np.stack([cv2.blur(one, (LIGHT, LIGHT)) for one in base])
        return _DetailBatch(
            texture=tensor((2 * np.stack(small) - 1).transpose(0, 3, 1, 2)),
            light=tensor(light.transpose(0, 3, 1, 2)),
            lent=tensor(np.stack(lent)[:, None]),
            before=tensor(above_tone(base)),
            detail=tensor(above_tone(photos)),
            most=tensor(np.stack([most_fitted(one, self.model.fine_places) for one in fine])[:, None]),
            condition=tensor(detail_conditions(np.stack(kinds), np.array(fine))),
            mask=tensor(np.stack([self.model.fine_mask * stretched(_floats(one), 2) for one in seen])[:, None]),
            unsharp=tensor(unsharp),
            own=tensor(own),
        )

    def save(self, path: Path, model: DetailNetwork, training: dict[str, Any]) -> None:
        network = np.frombuffer(detail_to_onnx(model).SerializeToString(), np.uint8)
        record = {**training, "licence": self.config.data_licence, "fingerprint": self.faces.fingerprint}
        info = replace(self.info, training={**self.info.training, "detail": record})
        made = replace(self.model, detail_network=network)
        save_appearance(path, made, self.frame, info, overwrite=True, network=self.network)

    @torch.no_grad()
    def snapshot(self, model: DetailNetwork, path: Path) -> None:
        """Write a sheet of held-out faces: photo | reconstruction, detail lent | fitted | a draw | fitted."""
        kinds = self.set.kinds[self.held_out]
        # The clearest of each ethnicity, the oldest and the youngest, and some more.
        clear = [*kinds[:, :7].argmax(0), kinds[:, 8].argmax(), kinds[:, 8].argmin()]
        more = np.linspace(0, len(kinds) - 1, SHOWN).astype(int)
        rows = self.held_out[list(dict.fromkeys([*clear, *more.tolist()]))[:SHOWN]]
        columns = [self._photos(rows)]
        for made in (0, 1):
            batch = self.plain(rows, made)
            bases = [stretched(one, 2) for one in ((batch.texture + 1) / 2).permute(0, 2, 3, 1).cpu().numpy()]
            for detail in (batch.lent, batch.lent + self._added(model, batch)):
                faces = [with_detail(base, one[0]) for base, one in zip(bases, detail.cpu().numpy(), strict=True)]
                columns.append(2 * torch.from_numpy(np.stack(faces)).permute(0, 3, 1, 2) - 1)
        save_grid(torch.stack(columns, 1), path)

    @torch.no_grad()
    def judge(self, model: DetailNetwork) -> dict[str, float]:
        """Figures of held-out faces' reconstructions, with detail as the network fits it and as it is lent (`_lent`).

        `l1`: mean difference of luminance under the mask; `energy`: difference in the logarithm of its local strength;
        `sharpness`: variance of the Laplacian, of the photo's; `sharpness_drawn` of drawn faces.
        """
        figures: dict[str, list[float]] = {}
        for begin in range(0, min(JUDGED, len(self.held_out)), 8):
            for made, end in ((0, ""), (1, "_drawn")):
                batch = self.plain(self.held_out[begin : begin + 8], made)
                lent, real, mask = batch.before + batch.lent, batch.detail, batch.mask
                for which, image in (("", lent + self._added(model, batch)), ("_lent", lent)):
                    sharper = sharpness_under(image, mask) / sharpness_under(real, mask)
                    found = {f"sharpness{which}{end}": sharper.log().mean().exp()}
                    if not made:  # of a drawn face nobody knows the detail
                        found[f"l1{which}"] = ((image - real).abs() * mask).mean() / mask.mean()
                        found[f"energy{which}"] = (_energies(image, mask) - _energies(real, mask)).abs().mean()
                    for name, value in found.items():
                        figures.setdefault(name, []).append(float(value))
        return {name: float(np.mean(values)) for name, values in figures.items()}

    def first(self, count: int) -> Tensor:
        return self._photos(self.rows[:count])

    def _photos(self, rows: NDArray[np.int64]) -> Tensor:
        return torch.from_numpy(self.set.photos[rows]).permute(0, 3, 1, 2).float() / 127.5 - 1


def _energies(image: Tensor, mask: Tensor) -> Tensor:
    """Logarithm of the local strength of the bands of luminances [B,1,n,n], under the mask: [B,4,h,w]."""
    out, sharper = [], image / 0.015
    for side in BANDS:
        softer = local_mean(sharper, side)
        out.append(F.avg_pool2d((sharper - softer).square(), 16, 8))
        sharper = softer
    return torch.cat(out, 1).add(0.01).log() * F.avg_pool2d(mask, 16, 8)


def _floats(picture: NDArray[np.uint8]) -> Floats:
    return picture.astype(np.float32) / np.float32(255)


def _degraded(photo: NDArray[np.uint8], size: int, rng: np.random.Generator) -> NDArray[np.uint8]:
    """An unsharp copy [R,R,3] of a photo [2R,2R,3], corners aligned; some have noise or are compressed."""
    at = np.linspace(0, len(photo) - 1, size, dtype=np.float32)
    soft = cv2.GaussianBlur(photo, (0, 0), rng.uniform(0.9, 3.5))
    small: Any = cv2.remap(soft, *np.meshgrid(at, at), cv2.INTER_LINEAR)
    if rng.random() < 0.3:
        noise = rng.normal(0, rng.uniform(0.5, 4), small.shape)
        small = np.rint(np.clip(small + noise, 0, 255)).astype(np.uint8)
    if rng.random() < 0.2:
        _, packed = cv2.imencode(".jpg", small, [cv2.IMWRITE_JPEG_QUALITY, int(rng.integers(50, 95))])
        small = cv2.imdecode(packed, cv2.IMREAD_COLOR)
    return small


def _in_other_light(pictures: list[Floats], rng: np.random.Generator) -> list[Floats]:
    """Pictures of one face at several sizes, brighter or darker, lit from a side, of other colours or of none."""
    level, slopes = rng.normal(0, 0.15), rng.normal(0, 0.12, 2)
    colours, grey = np.exp(rng.normal(0, 0.05, 3)).astype(np.float32), rng.random() < 0.08
    out = []
    for one in pictures:
        at = np.linspace(-1, 1, len(one), dtype=np.float32)
        field = np.exp(level + slopes[0] * at[None] + slopes[1] * at[:, None]).astype(np.float32)
        one = np.repeat(one.mean(2, keepdims=True), 3, 2) if grey else one * colours
        out.append(np.clip(one * field[..., None], 0, 1))
    return out
