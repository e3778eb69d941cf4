"""Faces made in the canonical frame, with the user's controls; needs no torch."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import astuple, replace
from functools import cached_property
from itertools import groupby
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from ficgan.arrays import carried, luminance
from ficgan.face_model import NO_FACE, FaceModel, FaceReading, Floats, Image
from ficgan.faces import Alignment, Face, MediaPipeMesh, Mesh, Paste, find_meshes, five_points
from ficgan.faces.mesh import GOOD_PRESENCE, SmoothConfig, smooth_middle, with_blinks
from ficgan.frame import LO, NUMBERS, Readings, colours, compose
from ficgan.frame.appearance import COVERED, SHAVED, AppearanceModel, Moment
from ficgan.frame.beards import Beard, read_beard
from ficgan.frame.drawn import read_gaze, read_teeth, read_whites
from ficgan.frame.file import FrameConfig, FrameNetwork
from ficgan.frame.glasses import UNSURE, read_glasses, rims_beside
from ficgan.frame.lent import ASKED, fineness, lender_like, lender_of
from ficgan.frame.look import (
    SKIN_LIGHT,
    SPECKS,
    Look,
    cloth_over,
    hair_over,
    read_blotches,
    read_look,
    read_pores,
    sharpness_of,
)
from ficgan.frame.render import CLEAN, FaceRenderer, Place, Row
from ficgan.identity import IdentityBank, KSameCode
from ficgan.identity.kind import READING, UNKNOWN
from ficgan.identity.ksame import k_same_layers, keyed_generator
from ficgan.policy import Attempt

# Presence of a large mesh under which a find may be no person: a dog's portrait reaches 13, people's 22 to 26. Some
# turned heads lie below it, too, so it only warns. Small faces of people have 4 to 16, so it holds from so many pixels.
DOUBTFUL_PRESENCE, DOUBTFUL_SIDE = 15.0, 96.0
# How far the light of a frame of a film may be moved towards its neighbours', in standard deviations: flashes stay.
LIGHT_BOUND = 0.5

# Of `AppearanceModel.moustache`: up to this there is one, from `SHAVED` on none. Evidence of a beard up to which it is
# but a shadow, and from which on it is hair.
_MOUSTACHE, _HAIRY_LIP = -0.9, (-1.6, -1.1)
# Blur of the skin that goes on below cloth, of the side.
_UNDER = 0.12
# Share of a pixel that is hair from which on a face has some before its forehead.
_SOME_HAIR = 0.5
# Share of a part of skin, or of the brows, below which what hair leaves of it tells nothing; redness and yellowness of
# usual brows, of 113 portraits.
_SHOWN, _USUAL_BROWS = 0.6, np.array([0.04, 0.04], np.float32)
# How often the light below the brows is read with what it makes of the forehead; what is hair in that light. Below dark
# glasses a forehead is expected too dark, so nothing lighter is.
_PASSES, _DARK_HAIR = 2, (*SKIN_LIGHT[:2], 99.0, 100.0)
# Photo pixels a pixel of the frame from which on a face has fine detail: without, faces of 50 to 130 px are soft.
_FINE_FROM = 0.4
# What the likeness that the gate sees weighs beside that of codes.
_SEEN = 2.0


class FrameModel(FaceModel):
    """The linear appearance model, and the network that adds to it where there is one; a mesh reads the faces.

    z_id and the intermediate latent are the linear model's code, the attributes that stay, and the network's w.
    """

    AUTO_PSI = (1.0, 1.0)
    precision = "float32"

    def __init__(
        self,
        model: AppearanceModel,
        config: FrameConfig,
        bank: IdentityBank,
        *,
        network: FrameNetwork | None = None,
        mesh: MediaPipeMesh | None = None,
        sha256: str = "",
        device: str = "cpu",
        **controls: Any,
    ) -> None:
        self.model, self.config, self.network, self.device = model, config, network, device
        self._w_dim = 0 if network is None else network.w_dim
        # Of z_id and of the intermediate latent: the model's code, the attributes that stay, and w.
        self.code_size = model.code_size + len(model.names) + self._w_dim
        super().__init__(bank, model.num_layers, self.code_size, **controls)
        # With --device cuda the mesh takes the best provider that onnxruntime has, as the detector does.
        self.mesh: MediaPipeMesh = mesh or MediaPipeMesh(device="cpu" if device == "cpu" else "auto")
        self.resolution, self.alignment = model.size, Alignment("canonical")
        self._sha256, self.renderer = sha256, FaceRenderer(model, config, network, device)

    def digest(self) -> str:
        return hashlib.sha256(f"{self._sha256} {self.config}".encode()).hexdigest()[:16]

    def see(self, pairs: Sequence[tuple[Image, Face]], found: Sequence[Mesh | None] | None = None) -> list[FaceReading]:
        meshes = self.find(pairs) if found is None else found
        return [self._reading(photo, mesh) for (photo, _), mesh in zip(pairs, meshes, strict=True)]

    def find(self, pairs: Sequence[tuple[Image, Face]]) -> list[Mesh | None]:
        meshes: dict[int, Mesh] = {}
        readable = [n for n, (_, face) in enumerate(pairs) if self.alignment.fits(face.landmarks)]
        for _, group in groupby(readable, lambda n: id(pairs[n][0])):  # neighbours of one photo together
            rows = list(group)
            found = find_meshes(self.mesh, pairs[rows[0]][0], [pairs[n][1].landmarks for n in rows])
            meshes |= zip(rows, found, strict=True)
        return [meshes.get(n) for n in range(len(pairs))]

    def smoothed(self, found: Sequence[Mesh | None], at: int) -> Mesh | None:
        mesh = found[at]
        if mesh is None or not mesh.presence >= self.config.presence:
            return mesh
        window = _unbroken([mesh if mesh and mesh.presence >= self.config.presence else None for mesh in found], at)
        points = np.stack([mesh.points for mesh in window])
        eyes = five_points(mesh.points[:, :2])
        limit = SmoothConfig().bound * float(np.linalg.norm(eyes[1] - eyes[0]))
        smooth = smooth_middle(points, window.index(mesh), limit)
        return replace(mesh, points=with_blinks(mesh.points, smooth).astype(np.float32))

    def steadied(self, readings: Sequence[FaceReading], at: int) -> FaceReading:
        reading = readings[at]
        if reading.problem:
            return reading
        window = _unbroken([None if reading.problem else reading for reading in readings], at)
        row, places = window.index(reading), _dressed([near.place for near in window])
        light = smooth_middle([place.moment.light[0] for place in places], row, LIGHT_BOUND).astype(np.float32)
        place: Place = places[row]
        means = {
            name: np.mean([getattr(near, name) for near in places], 0).astype(np.float32)
            for name in ("mouth", "lips", "brows", "nostrils", "relief", "whites")
        }
        means["beard"] = Beard(*(np.mean(part, 0) for part in zip(*(near.beard for near in places), strict=True)))
        place = replace(
            place,
            moment=replace(place.moment, light=light[None]),
            look=Look(*np.mean([astuple(near.look) for near in places], 0).tolist()),
            glasses=np.median([near.glasses for near in places], 0).astype(np.float32),
            moustache=float(np.mean([near.moustache for near in places])),
            forehead=compose.steadied([near.forehead for near in places], row),
            cloth=None,
            still=False,
            **means,
        )
        return replace(reading, place=place)

    def row(self, found: Mesh | None) -> Floats | None:
        return None if found is None else np.append(found.points.ravel(), np.float32(found.presence))

    def of_row(self, row: Floats) -> Mesh:
        return Mesh(row[:-1].reshape(-1, 3), float(row[-1]))

    def problem(self, face: Face, found: Mesh | None) -> str:
        return self._place(found)[2]

    def is_sure(self, found: Mesh | None) -> bool:
        return found is not None and found.presence >= GOOD_PRESENCE

    def between(self, before: Mesh, after: Mesh, share: float, moves: NDArray[Any]) -> Mesh:
        points = (1 - share) * before.points + share * after.points
        points[:, :2] += (1 - share) * moves[0] + share * moves[1]
        return Mesh(points.astype(np.float32), min(before.presence, after.presence))

    def bridged(self, reading: FaceReading, found: Mesh) -> FaceReading:
        read, _, problem = self._place(found)
        if read is None or reading.problem:
            return replace(reading, problem=reading.problem or problem)
        place = reading.place
        moment = self._limited(replace(place.moment, read=read, numbers=read.numbers))
        place = replace(place, moment=moment, forehead=place.forehead.at(read.upright[0]))
        return FaceReading(reading.z_id, place, "", "", "", *_outlined(found)[:2])

    def _place(self, mesh: Mesh | None) -> tuple[Readings | None, Floats | None, str]:
        """The shape of a mesh and its grid in upright units, or why no face can be put there."""
        model, config = self.model, self.config
        if mesh is None:
            return None, None, NO_FACE
        if not mesh.presence >= config.presence:
            return None, None, "its shape cannot be read reliably"
        read = model.shape.read(mesh.points[None])
        if abs(float(read.pose.yaw[0])) > config.most_yaw:
            return None, None, "the head is turned too far"
        grid = model.warp.to_upright(read.points)[0]
        if model.warp.folded(grid, model.mask) > config.most_folded:
            return None, None, "too much of the face is turned away"
        return read, grid, ""

    def _reading(self, photo: Image, mesh: Mesh | None) -> FaceReading:
        model = self.model
        nothing = np.zeros(self.code_size, np.float32)
        read, grid, problem = self._place(mesh)
        if mesh is None or read is None or grid is None:
            return FaceReading(nothing, problem=problem)
        texture = compose.read_texture(photo, read.upright[0], read.points[0], model.warp, grid=grid)
        cloth = cloth_over(texture, model)
        seen = self._skin_below(texture, cloth) if cloth.any() else texture
        bare, covered, (code, moment) = model.uncovered(seen, read)
        moment = self._limited(moment)
        hair, plain = self._hair(seen, bare, moment)
        over_skin = np.maximum(hair, cloth)
        if over_skin.max() > _SOME_HAIR:  # neither dark hair nor a mask is light
            over = 1 - colours.free_of_hair(over_skin)[..., None]
            bare = np.rint(bare + over * (255 * plain - bare)).astype(np.uint8)
            moment = model.relit(moment, bare[None])
        look = read_look(photo, read.upright[0], bare, model.mask)
        pixels = bare.astype(np.float32) / np.float32(255)
        look = replace(look, blotches=read_blotches(pixels, self.renderer.skin))
        lips = colours.read_lips(pixels, self.renderer.skin, model.lips)
        nostrils = colours.read_nostrils(pixels, model.nostrils)
        shown = model.skin_parts * colours.free_of_hair(over_skin)
        relief = colours.read_relief(pixels, shown)
        relief[shown.sum((1, 2)) < _SHOWN * model.skin_parts.sum((1, 2))] = 0
        inside, double = bare, texture
        if len(model.details) and float(read.pose.scale[0]) * float(model.warp.step.min()) > _FINE_FROM:
            double = compose.read_texture(photo, read.upright[0], read.points[0], model.warp, finer=2, grid=grid)
            fine = fineness(luminance(double) / np.float32(255), model.fine_places)
            exact = double.astype(np.float32) / np.float32(255)
            look = replace(look, fine=fine.skin, lashes=fine.eyes, forehead=fine.forehead)
            look = replace(look, finest=sharpness_of(exact, model.fine_mask), pores=read_pores(photo, mesh.points))
            look = replace(look, specks=read_blotches(exact, self.renderer.fine_skin, SPECKS))
            inside = np.clip(np.rint(double + compose.stretched(pixels * 255 - texture, 2)), 0, 255).astype(np.uint8)
        glasses = read_glasses(double, model.warp)
        z_id = np.concatenate([code[0], moment.kept[0]])
        if self.network is not None:
            z_id = np.append(z_id, self.network.read(bare[None], model.identity_code(code, moment.kept))[0])
        note = "something lies over the face, and the new one is drawn over it" if covered > COVERED else ""
        note = "cloth lies over nose and mouth" if cloth.any() else note
        weak = mesh.presence < DOUBTFUL_PRESENCE and np.ptp(mesh.points[:, :2], axis=0).min() >= DOUBTFUL_SIDE
        doubt = f"its shape is hardly that of a person ({mesh.presence:.0f} of usually 22 to 26)" if weak else ""
        mouth = read_teeth(inside, read.points[0], model.mask, model.warp)
        forehead = compose.read_forehead(photo, read.upright[0], read.points[0])
        lip = float(model.moustache[0] @ model.unpredicted(model.seen(bare[None])[0], moment))
        moustache = min(lip, _MOUSTACHE) + float(np.interp(lip, (_MOUSTACHE, SHAVED), (0, CLEAN - _MOUSTACHE)))
        beard = read_beard(seen, model.shape.front)
        moustache = CLEAN + float(np.interp(beard.evidence, _HAIRY_LIP, (0, 1))) * (moustache - CLEAN)
        dress = mouth, glasses, moustache, beard
        whites = read_whites(inside, model.warp, inside is not bare and glasses[0] < UNSURE)
        brows = self._brows(pixels, over_skin, glasses[0] > UNSURE)
        place = Place(
            moment, bare, look, read_gaze(mesh.points), whites, *dress, lips, brows, nostrils, relief, forehead, hair
        )
        if cloth.any():
            share = compose.stretched(cloth, len(double) // model.size)
            place = replace(place, cloth=np.dstack([double / np.float32(255), share]))
        return FaceReading(z_id, place, "", note, doubt, *_outlined(mesh))

    def _brows(self, pixels: Floats, hair: Floats, glasses: bool) -> Floats:
        """`read_brows` of a texture [R,R,3]; usual ones where hair or a frame of glasses lies over them."""
        free = colours.free_of_hair(hair)
        seen, skin = self.model.on_brows * free, self.renderer.skin
        skin = skin[free.ravel()[skin] > 0.5]
        if glasses or seen.sum() < _SHOWN * self.model.on_brows.sum() or not len(skin):
            return _USUAL_BROWS
        return colours.read_brows(pixels, seen, skin)

    def _skin_below(self, texture: Image, cloth: Floats) -> Image:
        """A texture [R,R,3] whose skin goes on below cloth."""
        skin = (cloth == 0) & (self.model.not_skin < 0.5) & (self.model.mask > 0.9)
        under = carried(texture.astype(np.float32), skin.astype(np.float32), _UNDER * self.model.size)
        return np.rint(texture + cloth[..., None] * (under - texture)).astype(np.uint8)

    def _limited(self, moment: Moment) -> Moment:
        return replace(moment, numbers=moment.numbers.clip(-self.config.limit, self.config.limit))

    def _hair(self, texture: Image, bare: Image, moment: Moment) -> tuple[Floats, Floats]:
        """Hair before the forehead [R,R], and an average face in the light that is below the brows [R,R,3]."""
        model = self.model
        brow = float(model.shape.front[[105, 334], 1].min())
        row, mask = int((brow - LO[1]) / model.warp.step[1]), self.renderer.mask(1.0)
        plain = self._usual(texture, moment)
        found = hair_over(texture, plain, mask, row)
        for _ in range(_PASSES):
            below = bare.copy()
            below[:row] = np.rint(255 * plain[:row])
            plain = self._usual(texture, model.relit(moment, below[None]))
        return np.maximum(found, hair_over(texture, plain, mask, row, _DARK_HAIR)), plain

    def _usual(self, texture: Image, moment: Moment) -> Floats:
        """An average face in the light of a moment, in the surroundings of a texture: float32 [R,R,3]."""
        out = texture.astype(np.float32) / np.float32(255)
        out.reshape(-1, 3)[self.model.pixels] = np.clip(self.model.expected(moment), 0, 1)
        return out

    def latent(self, z_id: Floats) -> Floats:
        return z_id

    def draw(
        self, key: str, attempt: Attempt, psi: float, z_id: Floats | None = None, kind: Floats | None = None
    ) -> KSameCode:
        config, group = self.config, self.kind_of(kind, attempt)
        count = 1 if z_id is None else config.choices * (config.again if attempt.draw else 1)
        drawn = self._draws([f"{key}/{n}" if n else key for n in range(count)], attempt, psi, group)
        code = drawn[0]
        seen = None if z_id is None or kind is None or len(kind) == READING else kind[READING:]
        if z_id is not None:  # what they have in common, the kind, is no likeness
            usual = 0.0 if group is None or self.bank.kinds is None else self.bank.usual(group)
            size = self.model.code_size
            own: Floats = np.concatenate([self.model.bank_codes(z_id[None, :size])[0], z_id[size:]])
            code = drawn[np.argmin(self._likeness(np.stack([made.w for made in drawn]) - usual, own - usual, seen))]
        w, kept = code.w.copy(), slice(self.model.code_size, self.model.code_size + len(self.model.names))
        if group is not None and self.bank.kinds is not None:  # the same for everybody of the group
            asked = self.shift[kept]  # `wanted` adds it
            w[kept] = config.shown_attributes(self.bank.kinds.usual(group)[kept].astype(np.float32) + asked) - asked
        # Keyed as the draw is: who does not know the seed cannot take the noise off.
        rng = keyed_generator(self.seed, self.bank.digest, self.key(key, attempt), self.k, "numbers")
        noise = rng.standard_normal(len(NUMBERS)) * self.config.jitter
        bits = 0.0 if z_id is None else math.log2(count * ASKED)
        record = None if code.kind is None else {**code.kind, "choices_bits": round(bits, 1)}
        shown = UNKNOWN if group is None else group.reading
        lot = rng.random()
        lender = lender_of(self.model, shown, seen, lot) if len(self.model.lenders) else 0
        return replace(code, w=np.concatenate([w, noise, shown, [lot, lender]]).astype(np.float32), kind=record)

    def account(self, *, layer: int, psi: Sequence[float]) -> dict[str, Any]:
        record = super().account(layer=layer, psi=psi)
        record["choices"] = self.config.choices
        stay = f", and of its kind, as a group, {' and '.join(record['keep_kind'])}" if record["keep_kind"] else ""
        record["not_covered"] = record["not_covered"].replace("the spatial code z_non", "z_non") + (
            " z_non holds expression (six numbers), head pose, gaze, light and, coarsely, colours, the colour of the "
            "lips, how red and yellow the brows are, how much light and redness of skin vary, sharpness, how strong "
            "the relief of the face's parts, its shine, wrinkles, lashes, pores, blotches and specks are, where, how "
            "clearly and in which colour glasses meet the face, whether and in which colour they are dark, whether "
            "there is a moustache and how dark it is, whether there is a beard, coarsely where and of which colours, "
            "and how clear its hairs are, how bright and of "
            f"which colour the inside of the mouth is, and part of the outline of the head{stay}. The forehead keeps "
            "its smooth colours. Hair before it, and cloth over nose and mouth, stay. "
            f"Of {self.config.choices} k-same draws, and of {self.config.again} times as many where a face was drawn "
            "again, the one least like the source was taken, and of some synthetic faces of the kind the one that "
            "lends light and shade. That tells whoever knows the seed a little about it."
        )
        return record

    def _likeness(self, drawn: Floats, source: Floats, seen: Floats | None) -> Floats:
        """How like their source draws [N,D] are: the cosine of codes without light, and that of what the gate sees."""
        size, shape, gate = self.model.code_size, len(self.model.shape.basis), self.model.gate
        parts = np.delete(np.arange(size), np.s_[shape : shape + self.model.lights])
        likeness = _cosines(drawn[:, parts], source[parts])
        if seen is None or not gate.size:
            return likeness
        return likeness + _SEEN * _cosines(drawn[:, :size] @ gate[1:], seen - gate[0])

    def wanted(self, w: Floats) -> Floats:
        size = self.code_size
        return np.concatenate([super().wanted(w[:, :size]), w[:, size:]], 1)

    def mixed(self, z_id: Floats, w_new: Floats, attempt: Attempt) -> Floats:
        size, code_size = self.model.code_size, self.code_size
        kept = slice(size, size + len(self.model.names))
        first, last = k_same_layers(self.num_layers, None if attempt.band else attempt.layer, attempt.band)
        given = w_new[:, kept]
        own, new, take = z_id[:, :size], w_new[:, :size], self.model.taken(first, last)
        parts = {
            "code": self.model.mixed(own, new, take, given),
            "given": given,
            "own": z_id[:, kept.stop :],
            "new": w_new[:, kept.stop : code_size],
            "layers": [first, last],
            "bare": attempt.bare,
        }
        if (extra := w_new[:, code_size:]).size:  # of `draw`
            noise, shown, lot, lender = np.split(extra, np.cumsum([len(NUMBERS), READING, 1]), axis=1)
            parts |= {"noise": noise, "kind": shown, "lot": lot, "lender": lender}
        return self._packed(len(w_new), parts)

    @cached_property
    def _widths(self) -> dict[str, int]:
        """How many numbers of a row of styles each field of `Row` takes, in order."""
        widths = {"code": self.model.code_size, "given": len(self.model.names), "own": self._w_dim, "new": self._w_dim}
        return widths | {"noise": len(NUMBERS), "kind": READING, "lot": 1, "lender": 1, "layers": 2, "bare": 1}

    def _packed(self, count: int, parts: Mapping[str, Any]) -> Floats:
        """Rows of styles [count,S] of the fields of `Row`: [count,n], or the same [n] for all; 0 where not given."""
        parts = {"kind": UNKNOWN, **parts}
        columns = [np.broadcast_to(parts.get(name, 0), (count, width)) for name, width in self._widths.items()]
        return np.concatenate(columns, 1).astype(np.float32)

    def unpacked(self, row: Floats) -> Row:
        """A row of `styles`, float32 [S], taken apart."""
        fields = np.split(row, np.cumsum(list(self._widths.values()))[:-1])
        code, given, own, new, noise, kind, lot, lender, layers, bare = fields
        (first, last), number = layers.astype(int), int(lender[0])
        return Row(code, given, own, new, noise, kind, float(lot[0]), number, int(first), int(last), bool(bare[0]))

    def render(self, styles: Floats, readings: Sequence[FaceReading]) -> list[Any]:
        rows = zip(map(self.unpacked, styles), readings, strict=True)
        return [self.renderer.made(row, reading.place) for row, reading in rows]

    def undetailed(self, styles: Floats, readings: Sequence[FaceReading]) -> list[tuple[Floats, int]]:
        """Of the faces of `render` what a detail network is given: textures [R,R,3], and the number of who lends."""
        rows = zip(map(self.unpacked, styles), [reading.place for reading in readings], strict=True)
        return [(self.renderer.plain(row, place).texture, row.lender) for row, place in rows]

    def paste(self, photo: Image, reading: FaceReading, made: Any, *, mask_scale: float = 1.0) -> Paste:
        place, renderer, source = reading.place, self.renderer, reading.place.moment.read.points[0]
        seed = int.from_bytes(hashlib.blake2b(np.ascontiguousarray(made.points).tobytes(), digest_size=8).digest())
        return compose.paste_texture(
            photo,
            place.moment.read.upright[0],
            made.points,
            made.texture,
            (renderer.mask(mask_scale) * (renderer.within if made.new else 1.0) * (1 - made.hair)).astype(np.float32),
            self.model.warp,
            place.look,
            seed=seed,
            grid=made.grid,
            forehead=place.forehead if made.new else None,
            hair=made.hair,
            pores=renderer.pores if made.new and place.look.pores else None,
            source=source if made.new else None,
            rims=rims_beside(place.glasses, source, self.model.shape.front) if made.new else (),
        )

    def checked(self, made: Any) -> Any:
        return made if made.below is None else replace(made, texture=made.below)

    def reconstruct(self, readings: Sequence[FaceReading]) -> list[Any]:
        """The sources themselves as the model has them, for figures of the model: nothing is hidden."""
        return self.render(self.own_styles(readings), readings)

    def own_styles(self, readings: Sequence[FaceReading]) -> Floats:
        """Rows of styles that leave the sources as they are."""
        z_id = np.stack([reading.z_id for reading in readings])
        code, given, w = np.split(z_id, np.cumsum([self.model.code_size, len(self.model.names)]), axis=1)
        parts: dict[str, Any] = {"code": code, "given": given, "own": w, "new": w, "layers": [1, 0]}  # 1 … 0 are none
        if len(self.model.lenders):
            parts["lender"] = [[lender_like(self.model, UNKNOWN, one)] for one in code]
        return self._packed(len(readings), parts)

    def moment(self, reading: FaceReading) -> Floats:
        if reading.problem:
            return np.zeros(len(NUMBERS) + 2 + len(self.model.light_mean), np.float32)
        moment: Moment = reading.place.moment
        turn = self.model.shape.turn(moment.read.pose)
        return np.concatenate([moment.numbers[0], turn[0], moment.light[0]]).astype(np.float32)

    def layer_codes(self, z_id: Floats, layers: Sequence[int]) -> Floats:
        take = self.model.bands[[layer - 1 for layer in layers]].any(0)
        return z_id[:, : self.model.code_size][:, take]


def _outlined(mesh: Mesh) -> tuple[Floats, Floats, bool]:
    """Outline and landmarks of a mesh, and whether it is sure."""
    hull = cv2.convexHull(np.ascontiguousarray(mesh.points[:, :2], np.float32))
    return hull[:, 0], five_points(mesh.points), mesh.presence >= GOOD_PRESENCE


def _cosines(rows: Floats, other: Floats) -> Floats:
    return rows @ other / np.maximum(np.linalg.norm(rows, axis=1) * np.linalg.norm(other), 1e-9)


def _unbroken(rows: Sequence[Any], at: int) -> list[Any]:
    """The rows around one of them up to the next None on either side."""
    first = max((n + 1 for n in range(at) if rows[n] is None), default=0)
    last = min((n for n in range(at, len(rows)) if rows[n] is None), default=len(rows))
    return list(rows[first:last])


def _dressed(places: list[Place]) -> list[Place]:
    """Readings of consecutive frames. Where most have cloth over the mouth, the others are read as the nearest of them.

    Films do not show the cloth itself: their check reads what is published, and would know a face by its mask.
    """
    worn = [place for place in places if place.cloth is not None]
    if 2 * len(worn) <= len(places):
        return places
    out = []
    for n, own in enumerate(places):
        other = min(worn, key=lambda one: abs(places.index(one) - n)) if own.cloth is None else own
        moment = replace(other.moment, read=own.moment.read, numbers=own.moment.numbers)
        out.append(replace(other, moment=moment, gaze=own.gaze, forehead=own.forehead))
    return out
