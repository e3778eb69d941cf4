"""A new face in the frame, drawn with the light, the expression and the surroundings of a source."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, partial

import cv2
import numpy as np
from numpy.typing import NDArray

from ficgan.arrays import LUMA, Image, carried, grey_of, luminance
from ficgan.frame import Doubles, Floats, colours, compose, lent
from ficgan.frame.appearance import SLOPES, AppearanceModel, Moment
from ficgan.frame.beards import Beard, hidden, with_beard, worn
from ficgan.frame.compose import Forehead
from ficgan.frame.drawn import iris_colour, with_eyes, with_shut_eyes, with_teeth, with_touching_lips
from ficgan.frame.file import DetailWriter, FrameConfig, FrameNetwork
from ficgan.frame.glasses import Trace, glasses_reader, with_glasses
from ficgan.frame.look import SPECKS, Look, brow_hairs, no_sharper, sharpness_of, skin_pattern, with_blotches
from ficgan.frame.parts import frame_mask
from ficgan.identity.kind import AGE, ETHNICITIES, MALE

# How strong hairs of brows are, of how much darker than skin brows are, where the photo's lashes are as clear as this.
_HAIRY, _CLEAR_LASHES = 0.35, 0.03
# Of `AppearanceModel.moustache`: a clean lip.
CLEAN = 0.3
# Age from which on men have a moustache, years; most that it is changed by.
_GROWN, _MOST_SHAVED = 16.0, 1.5
# Of `colours.with_brows`, at ages: the darkest and the lightest brows that are drawn; .8 of 1,123 people lie between.
_AGES = (1, 6, 15, 30, 50, 70)
_DARKEST_BROWS, _LIGHTEST_BROWS = (-0.40, -0.66, -0.78, -0.90, -0.85, -0.70), (-0.10, -0.17, -0.25, -0.28, -0.25, -0.15)
# Most contrast of a new face, of its light: what a photo has more is shadows, which would blacken eyes and brows.
_MOST_CONTRAST = 0.45
# How much sharper than the source a new face may be.
_SHARPER = 1.15
# Share of a pixel from which on it is hair or a beard, and not compared as skin, or is replaced.
_SOME = 0.3
# Units inside the outline at which half of a new face is seen.
_INSIDE = 1.5


@dataclass(frozen=True, eq=False)
class Place:
    """What a new face is made with in the place of a source.

    Args:
        texture: uint8 [R,R,3] of the source.
        gaze, whites, mouth: float32 [2] of `read_gaze` and `read_whites`, [6] of `read_teeth`.
        glasses: float32 [13] of `read_glasses`.
        moustache: of `AppearanceModel.moustache`; shadows on a lip count for nothing.
        lips, brows: float32 [3] of `read_lips`, [2] of `read_brows`.
        nostrils, relief: float32 [2] of `read_nostrils`, [6,5] of `read_relief`.
        hair: float32 [R,R], how much of each pixel is hair before the forehead and stays.
        cloth: float32 [n,n,4], colours in [0,1] and shares of a mask or a scarf over nose and mouth, which is worn
            again; None: there is none.
        still: whether a network fits lent detail; films hardly show it.
    """

    moment: Moment
    texture: Image
    look: Look
    gaze: Floats
    whites: Floats
    mouth: Floats
    glasses: Floats
    moustache: float
    beard: Beard
    lips: Floats
    brows: Floats
    nostrils: Floats
    relief: Floats
    forehead: Forehead
    hair: Floats | float = 0.0
    cloth: Floats | None = None
    still: bool = True


@dataclass(frozen=True, eq=False)
class Row:
    """A row of styles, taken apart: a face that keeps its row keeps its identity.

    Args:
        code, given: float32 [D] of the linear model, mixed; [A], attributes that the new face shall have.
        own, new: float32 [W], the network's w of the source and of the draw.
        noise, kind: float32 [6] on the numbers of expression; [9], the group of the new face, as a reading.
        lot: in [0,1), by which eyes, beards, spots and frames of glasses are drawn.
        lender: number of the face that lends to the new one.
        first, last: layers that are new; none where last < first.
        bare: whether hair before the forehead, and cloth, are drawn over.
    """

    code: Floats
    given: Floats
    own: Floats
    new: Floats
    noise: Floats
    kind: Floats
    lot: float
    lender: int
    first: int
    last: int
    bare: bool


@dataclass(frozen=True, eq=False)
class NewFace:
    """A face in the frame: texture [R,R,3] in [0,1], or [2R,2R,3] of a large one, and its mesh in upright units.

    `hair` [R,R] is how much of the source stays; `new`, whether it is another face than the source's; `below`, the
    texture below cloth that is worn again.
    """

    texture: Floats
    points: Doubles
    grid: Floats
    hair: Floats | float = 0.0
    new: bool = True
    below: Floats | None = None


class FaceRenderer:
    """The linear model, and the networks that add to it where there are some.

    Args:
        config: numbers of making faces.
        network: of the frame; None: there is none.
        device: of the detail network.
    """

    def __init__(
        self, model: AppearanceModel, config: FrameConfig, network: FrameNetwork | None = None, device: str = "cpu"
    ) -> None:
        self.model, self.config, self.network, self._device = model, config, network, device
        self._masks: dict[float, Floats] = {}

    def made(self, row: Row, place: Place) -> NewFace:
        """A face of the linear model and the network, with the sharpness and the colours of its surroundings."""
        made, model, look = self.plain(row, place), self.model, place.look
        if not look.fine:
            return self._clothed(row, place, self._drawn(row, place, made))
        lender, texture = model.lent(row.lender), compose.stretched(made.texture, 2)
        wanted = lent.Fineness(look.fine, look.lashes, look.forehead)
        detail = lent.lent_detail(
            texture, lender, wanted, model.fine_places, self.config.detail, lent.agedness(row.kind[AGE])
        )
        if self.detail_writer is not None and place.still:
            fitted = self.detail_writer.write(made.texture, detail, row.kind, look.fine)
            most = lent.most_fitted(look.fine, model.fine_places)
            detail += model.fine_mask * most * np.tanh(fitted / most)
        area = model.warp.area(made.grid)
        larger = compose.stretched(area / np.median(area[model.mask > _SOME]), 2)
        texture = lent.with_detail(texture, lent.unsmeared(detail, look.fine, larger))
        hairy = colours.shaded(texture, self._hairs_of(texture, look.lashes))
        texture = texture + self._share(row) * (hairy - texture)
        spots = lent.with_spots(texture, model.plain_skin, float(row.kind[AGE]), row.lot) - texture
        spots += with_blotches(texture, self.fine_skin, look.specks, row.lot, SPECKS) - texture
        texture = texture + self._share(row) * _greyed(spots, place.moment)
        drawn = self._drawn(row, place, replace(made, texture=texture))
        soft = no_sharper(drawn.texture, _SHARPER * look.finest, partial(sharpness_of, mask=model.fine_mask))
        return self._clothed(row, place, replace(drawn, texture=soft))

    def plain(self, row: Row, place: Place) -> NewFace:
        """A face at the frame's size, before eyes and teeth are drawn and detail is added."""
        model, config, shape = self.model, self.config, len(self.model.shape.basis)
        taken, moment = self._taken(row), self.moment(row, place)
        drawn, moved = self._decoded(row, place, moment)
        bent, rim = row.code[:shape].copy(), 1.0
        if taken is not None:
            bent[taken[:shape]] *= config.shapes
            bent, rim = bent + taken[:shape].mean(dtype=np.float32) * moved, config.rim
        points = model.shape.publish(moment.read, moment.numbers, bent[None], rim=rim)[0]
        # A mean of many people needs sharpening, but less where a network draws, and where real detail is added.
        power = 0.5 ** (bool(place.look.fine) + (self.network is not None))
        gains, share = np.power(config.gains, power).tolist(), self._share(row)
        texture, most = drawn, _SHARPER * place.look.sharpness
        if share < 1:
            own = no_sharper(colours.sharpened(drawn, gains), most, partial(sharpness_of, mask=model.mask))
            texture = colours.matched_border(own, place.texture, self.mask(1.0), place.hair, model.not_skin)
        if share:
            sharp = colours.sharpened(self._groomed(drawn, row, place, moment), gains)
            new = self._new_skin(sharp, row, place, moment, most)
            texture = new if share == 1 else texture + share * (new - texture)
        hair = 0.0 if row.bare else place.hair
        return NewFace(texture, points, model.warp.to_upright(points[None])[0], hair, taken is not None)

    def _decoded(self, row: Row, place: Place, moment: Moment) -> tuple[Floats, Floats]:
        """What the linear model and the network draw: a texture [R,R,3], and a change [I] of the shape."""
        model, taken = self.model, self._taken(row)
        texture: Floats = place.texture.astype(np.float32) / np.float32(255)
        texture.reshape(-1, 3)[model.pixels] = model.decode(row.code[None], moment, taken)[0]
        if self.network is None:
            return texture, np.zeros(len(model.shape.basis), np.float32)
        layers = np.arange(1, model.num_layers + 1)
        new = ((layers >= row.first) & (layers <= row.last))[:, None]
        w = np.where(new, row.new, row.own)[None].astype(np.float32)
        vector = model.moment_vector(moment, np.array([place.look.sharpness]))
        added, moved = self.network.write(w, vector, texture[None])
        added = _greyed(added[0], moment)
        # On skin a network draws blotches, and wrinkles of the old. The old keep what it draws there, the young do not.
        share = self._share(row) * np.float32(1 - lent.agedness(row.kind[AGE]))
        added = added + share * model.skin_parts[:-1].sum(0)[..., None] * (colours.smoothed(added) - added)
        # Beside the face nothing holds the network, and what it draws there must not be blurred into the face.
        texture.reshape(-1, 3)[model.pixels] += model.contrast(moment) * added.reshape(-1, 3)[model.pixels]
        return texture, moved[0]

    def _new_skin(self, texture: Floats, row: Row, place: Place, moment: Moment, most: float) -> Floats:
        """A draw [R,R,3] with what is lent, in the light and colours of the source; `most` is how sharp it may be."""
        model = self.model
        if len(model.middles):
            texture = lent.with_middle(texture, model.lent(row.lender).middle, model, moment)
        texture = no_sharper(texture, most, partial(sharpness_of, mask=model.mask))
        texture = colours.lifted(texture, texture.reshape(-1, 3)[self.skin].mean(0))
        texture = colours.with_relief(texture, place.relief, model.skin_parts)
        blotchy = with_blotches(texture, self.skin, place.look.blotches, row.lot)
        texture = texture + (1 - moment.grey[0]) * (blotchy - texture)
        texture = colours.parted(texture, self.skin, model.between_brows)
        # A beard's colours are no light: a man's is drawn later, and whoever becomes a woman has none.
        other = np.maximum(model.not_skin, hidden(place.beard, model.shape.front, model.size))
        texture = colours.matched_border(texture, place.texture, self.mask(1.0), place.hair, other)
        bare = self.skin[np.maximum(other, place.hair).ravel()[self.skin] < _SOME]
        texture = colours.lit_as(texture, place.texture, bare, 1 - place.glasses[7])
        texture = colours.with_lips(texture, place.lips, self.skin, model.lips)
        if model.bias.size:
            texture = colours.without_bias(texture, model.bias, row.kind, moment.numbers[0], model.pixels)
        age = float(row.kind[AGE])
        darkest, lightest = (float(np.interp(age, _AGES, ends)) for ends in (_DARKEST_BROWS, _LIGHTEST_BROWS))
        texture = colours.with_brows(texture, darkest, lightest, place.brows, model.on_brows, bare)
        texture = colours.with_nostrils(texture, place.nostrils, model.nostrils)
        if moment.grey[0]:
            texture = texture + moment.grey[0] * (colours.tinted(texture, place.texture) - texture)
        return texture

    def _groomed(self, texture: Floats, row: Row, place: Place, moment: Moment) -> Floats:
        """A draw [R,R,3] without spots of colour and traces of glasses, with a moustache as the source's."""
        model, out = self.model, self._plainer(texture, moment)
        # Shadows under the noses of women and children look like moustaches.
        own = 1 - worn(place.beard) if _is_grown_man(row) else 0.0
        rest = model.unpredicted(out.reshape(-1, 3)[model.pixels], moment)
        reads, gives = model.moustache
        wanted = CLEAN + own * (place.moustache - CLEAN) - reads @ rest
        change = np.zeros_like(out)
        change.reshape(-1, 3)[model.pixels] = model.contrast(moment) * gives.reshape(-1, 3)
        change *= np.clip(wanted, -_MOST_SHAVED, _MOST_SHAVED)
        if wanted > 0:
            change = colours.no_lighter(out, change, self.skin)
        out += _greyed(change, moment)
        out.reshape(-1, 3)[model.pixels] += model.contrast(moment) * self._trace.taken_from(rest)[:, None]
        return out

    def _hairs_of(self, texture: Floats, lashes: float) -> Floats:
        """Hairs of the brows of a texture [2R,2R,3], shares of its light: as far as they are darker than skin."""
        light = np.maximum(luminance(texture), np.float32(0.02))
        skin = carried(light[..., None], 1 - self.model.fine_places.on_brows, 16.0)[..., 0]
        darker = np.divide(np.maximum(skin - light, 0), skin, dtype=np.float32)
        return np.float32(_HAIRY * min(lashes / _CLEAR_LASHES, 1)) * self._hairs * darker

    @cached_property
    def _hairs(self) -> Floats:
        return brow_hairs(self.model, 2 * self.model.size)

    @cached_property
    def _trace(self) -> Trace:
        return Trace.of(self.model, glasses_reader().trace)

    def _plainer(self, texture: Floats, moment: Moment) -> Floats:
        """A new face [R,R,3] without the spots of colour that a draw has."""
        model, drawn, out = self.model, np.zeros_like(texture), texture.copy()
        drawn.reshape(-1, 3)[model.pixels] = texture.reshape(-1, 3)[model.pixels] - model.expected(moment)
        change = (colours.plainer(drawn) - drawn).reshape(-1, 3)[model.pixels]
        out.reshape(-1, 3)[model.pixels] += _greyed(change, moment)
        return out

    def _taken(self, row: Row) -> NDArray[np.bool_] | None:
        return self.model.taken(row.first, row.last) if row.last >= row.first else None

    def _share(self, row: Row) -> np.float32:
        """How much of the texture is new."""
        taken = self._taken(row)
        identity = np.s_[len(self.model.shape.basis) + self.model.lights :]
        return np.float32(0) if taken is None else taken[identity].mean(dtype=np.float32)

    def moment(self, row: Row, place: Place) -> Moment:
        """The source's moment as it is published: damped and with noise."""
        if row.last < row.first:
            return place.moment
        config, light = self.config, place.moment.light.copy()
        light[:, SLOPES] *= config.slopes
        model = self.model
        raw = light[0] * model.light_sd + model.light_mean
        most = np.log(_MOST_CONTRAST * max(float(raw[:3] @ LUMA), 0.05))
        light[0, 3] = (min(raw[3], most) - model.light_mean[3]) / model.light_sd[3]
        numbers = config.shown_numbers(place.moment.numbers, row.noise)
        return replace(place.moment, numbers=numbers, light=light, kept=row.given[None])

    def _drawn(self, row: Row, place: Place, made: NewFace) -> NewFace:
        """A face with eyes and teeth as far as they are new, and with glasses where the source wears some."""
        model, taken, moment = self.model, self._taken(row), place.moment
        if taken is None:
            return made
        yaw, age = float(moment.read.pose.yaw[0]), float(row.kind[AGE])
        iris = iris_colour(row.kind[: len(ETHNICITIES)], 1e3 * row.lot % 1)
        drawn = made.texture
        if _is_grown_man(row):
            drawn = with_beard(drawn, place.beard, 1e5 * row.lot % 1, model.shape.front)
        slope = float(moment.light[0, SLOPES.start])
        drawn = with_eyes(drawn, made.points, place.gaze, place.whites, yaw, slope, iris, age, model.warp, made.grid)
        drawn = with_shut_eyes(drawn, made.points, moment.read.points[0], model.warp, made.grid)
        drawn = with_touching_lips(drawn, made.points, place.mouth, model.warp, made.grid)
        if len(model.teeth):
            number = int(1e4 * np.abs(row.noise).sum()) % len(model.teeth)  # whose teeth: by the draw
            teeth, opening = model.teeth[number], float(model.teeth_openings[number])
            drawn = with_teeth(drawn, made.points, place.mouth, teeth, opening, model.warp, made.grid)
        drawn = _greyed(drawn - made.texture, moment)
        texture = made.texture + self._share(row) * drawn
        return replace(made, texture=with_glasses(texture, place.glasses, row.lot, model.warp, made.grid))

    def _clothed(self, row: Row, place: Place, made: NewFace) -> NewFace:
        """A face with the source's own cloth over nose and mouth, where there is some."""
        if self._taken(row) is None or place.cloth is None or row.bare:
            return made
        texture = made.texture
        cloth = cv2.resize(place.cloth, texture.shape[1::-1], interpolation=cv2.INTER_LINEAR)
        return replace(made, texture=texture + cloth[..., 3:] * (cloth[..., :3] - texture), below=texture)

    @cached_property
    def detail_writer(self) -> DetailWriter | None:
        """The network that fits lent detail to faces, where the model's file has one."""
        network = self.model.detail_network
        return DetailWriter(network.tobytes(), self._device) if network.size else None

    @cached_property
    def pores(self) -> Floats:
        return skin_pattern(self.model, self.mask(1.0))

    @cached_property
    def skin(self) -> NDArray[np.int64]:
        """Flat indices of the frame's pixels that are skin."""
        return np.flatnonzero((self.mask(1.0) > 0.9) & (self.model.not_skin < 0.1))

    @cached_property
    def fine_skin(self) -> NDArray[np.int64]:
        """Flat indices of the doubled frame's pixels that are skin."""
        whole = np.zeros((self.model.size, self.model.size), np.uint8)
        whole.ravel()[self.skin] = 1
        return np.flatnonzero(cv2.resize(whole, None, fx=2, fy=2, interpolation=cv2.INTER_NEAREST))

    @cached_property
    def within(self) -> Floats:
        """Weights [R,R] that end at the outline of the face, where its surroundings begin."""
        return frame_mask(self.model.shape.front, self.model.size, inset=_INSIDE, feather=_INSIDE / 2)

    def mask(self, scale: float) -> Floats:
        inset = round(max(self.config.inset + 50 * (1 - scale), 0.0), 2)
        if inset not in self._masks:
            front, size = self.model.shape.front, self.model.size
            self._masks[inset] = frame_mask(front, size, inset=inset, feather=self.config.feather)
        return self._masks[inset]


def _is_grown_man(row: Row) -> bool:
    return bool(row.kind[MALE] > 0.5 and row.kind[AGE] >= _GROWN)


def _greyed(colours: Floats, moment: Moment) -> Floats:
    """Colours [...,3] of a photo of a moment: less or none where that has none."""
    if not moment.grey[0]:
        return colours
    return colours + moment.grey[0] * (grey_of(colours)[..., None] - colours)
