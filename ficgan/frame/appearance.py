"""Linear appearance model of faces in the canonical frame: the classical model-based k-same, done well.

A face is a texture in the frame and a shape. What belongs to the moment (pose, expression, light) predicts the texture
by a linear map; the rest is described by principal components, together with the rest of the shape: the identity
code. Attributes that shall stay, such as gender and age, are a linear map of that code, so that another code can be
given the source's own.

Source: Newton et al. 2005 (k-same); Gross et al. 2006 (model-based k-same); Cootes et al. 1998 (appearance models).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

import cv2
import numpy as np
from numpy.typing import NDArray

from ficgan.arrays import LUMA, grey_of
from ficgan.frame import LO, NUMBERS, FaceShape, Floats, Readings
from ficgan.frame.parts import FADE, FrameParts, frame_mask, model_pixels

# Mean colour (3), log of the contrast, and how luminance rises to the right and downwards in units of it (2).
LIGHT = 6
SLOPES = slice(4, 6)
# Standard deviations of light beyond which the prediction does not follow: it has not seen them.
_MOST_LIGHT = 2.5
# How far colours lie from what brightness alone tells, of the mean, in photos without colour and in others: sepia is
# .008 at most, .95 of colour portraits .017 and more.
_SEPIA, _COLOURED = 0.010, 0.016
# Share of their colour that the components of the texture keep; and of their strength at the top of the forehead.
_COLOUR, _CALM = 0.5, 0.3
# Marks of the mesh: below the nose, on the upper lip, on the cheeks.
_NOSE, _LIP, _CHEEKS = 2, (164, 165, 391, 92, 322), (50, 280, 101, 330, 117, 346)
# Of an ordinary face, see `sharpness_of`.
_USUAL_SHARPNESS = 0.02
# Steps of a lender's tone in a file, in one.
TONE_UNIT = 60
# Of `AppearanceModel.moustache`: there is none.
SHAVED = -0.6
# Of a lender's light and shade of middle size, in one of the contrast.
MIDDLE_UNIT = 30
# Side of the texture that attributes, and what covers a face, are read from.
SMALL = 32
# Times of what the model usually misses at a place; beyond that it is no face.
_ODD = 2.2
# Types of a model's arrays in a file: of those that each has, and of those that it may have.
_STORED: dict[str, Any] = {"details": np.int8, "bands": np.int32}
_STORED |= dict.fromkeys(("light_mean", "light_sd", "looks", "attributes", "give", "lenders"), np.float32)
_OPTIONAL: dict[str, Any] = {
    **dict.fromkeys(("detail_tones", "middles", "bias"), np.int8),
    **dict.fromkeys(("detail_network", "teeth"), np.uint8),
    **dict.fromkeys(("usual", "teeth_openings"), np.float32),
    **dict.fromkeys(("telling", "gate", "lent_gate"), np.float16),
}
# Share of a face beyond which something lies over it. Measured on 500 training faces: 18 % have more, and of the 40
# with most all have glasses, hands, hair, paint or another thing before them.
COVERED = 0.05


class Lender(NamedTuple):
    """A lender's `relief_of`, float32 [2R,2R], its `tone_of`, [h,h], and its `middle_of`, [R,R]."""

    relief: Floats
    tone: Floats
    middle: Floats


@dataclass(frozen=True, eq=False)
class Moment:
    """z_non: what stays of B sources because it belongs to the moment, or because it shall stay.

    Args:
        read: shape of the sources.
        numbers: float32 [B,6] of expression.
        light, kept: float32 [B,6], and [B,A] attributes that stay, in standard deviations.
        grey: float32 [B], 1 for photos in black and white or in sepia, 0 for others.
    """

    read: Readings
    numbers: Floats
    light: Floats
    kept: Floats
    grey: Floats

    def take(self, rows: Any) -> Moment:
        """The same of some faces."""
        return Moment(self.read.take(rows), self.numbers[rows], self.light[rows], self.kept[rows], self.grey[rows])


@dataclass(frozen=True, eq=False)
class AppearanceModel(FrameParts):
    """The fitted arrays; see `ficgan.frame.fit`. P pixels of the frame lie under the mask.

    Args:
        size: side R of the textures.
        light_mean, light_sd: float32 [6].
        predict: float32 [F,3P], texture less its mean colour, in units of its contrast, from the features of the
            moment.
        components: float32 [T,3P], what one standard deviation of each texture coefficient adds.
        reader: float32 [3P,T], reads these coefficients from what is not predicted.
        looks: float32 [A,3·32²+I+6+1], reads what shall stay from a small texture and the shape.
        attributes, give: float32 [A,D], reads the same from a code, less well; [D,A], what raises each by one.
        bands: int [L,D], 1 where a style layer holds a coefficient of the code; shape first.
        names: of the attributes that stay.
        lights: how many coefficients, those after the shape's, are of shadows and reflections: a new code has none.
        details: int8 [S,Q], `relief_of` faces that lend theirs, at twice the size: pores, lashes, wrinkles.
        detail_tones: int8 [S,h,h], `tone_of` them, see `TONE_UNIT`.
        lenders: float32 [S,9], readings of them by a `KindReader`, as of `as_old_as_they_look`.
        middles: int8 [S,P], `middle_of` them, see `MIDDLE_UNIT`; empty: it is not known.
        detail_network: the ONNX file of the network that fits such detail to a face; empty where there is none.
        teeth, teeth_openings: uint8 [M,rows,columns] of `teeth_of`, of synthetic faces, see `TEETH_UNIT`; float32 [M].
        bias: int8 [15,P,3] of `fit_bias`, see `BIAS_UNIT`; empty: it is not known.
        telling: float32 [D,D] of `telling_map`, makes of a code what a bank holds of it; empty: all.
        gate, lent_gate: float32 [1+D,E], [S,E] of `gate_map`, a usual embedding, and what a draw and each lender add
            to it; empty: it is not known.
        usual: float32 [32,32], how far a small texture usually is from what the model makes of it, in units of the
            contrast; what is much farther is no face: glasses, a hand, paint.
    """

    shape: FaceShape
    size: int
    light_mean: Floats
    light_sd: Floats
    predict: Floats
    components: Floats
    reader: Floats
    looks: Floats
    attributes: Floats
    give: Floats
    bands: NDArray[np.int64]
    names: tuple[str, ...] = ()
    lights: int = 0
    details: NDArray[np.int8] = field(default_factory=lambda: np.zeros((0, 0), np.int8))
    detail_tones: NDArray[np.int8] = field(default_factory=lambda: np.zeros((0, 1, 1), np.int8))
    lenders: Floats = field(default_factory=lambda: np.zeros((0, 0), np.float32))
    middles: NDArray[np.int8] = field(default_factory=lambda: np.zeros((0, 0), np.int8))
    detail_scale: float = 0.0
    detail_network: NDArray[np.uint8] = field(default_factory=lambda: np.zeros(0, np.uint8))
    usual: Floats = field(default_factory=lambda: np.zeros((0, 0), np.float32))
    teeth: NDArray[np.uint8] = field(default_factory=lambda: np.zeros((0, 1, 1), np.uint8))
    teeth_openings: Floats = field(default_factory=lambda: np.zeros(0, np.float32))
    telling: Floats = field(default_factory=lambda: np.zeros((0, 0), np.float32))
    gate: Floats = field(default_factory=lambda: np.zeros((0, 0), np.float32))
    lent_gate: Floats = field(default_factory=lambda: np.zeros((0, 0), np.float32))
    bias: NDArray[np.int8] = field(default_factory=lambda: np.zeros((0, 0, 3), np.int8))

    @property
    def num_layers(self) -> int:
        """Number L of bands, which are what style layers are to a network."""
        return len(self.bands)

    @property
    def moment_size(self) -> int:
        """Length of `moment_vector`."""
        return len(NUMBERS) + 2 + LIGHT + len(self.names) + 2

    @property
    def code_size(self) -> int:
        """Length D of an identity code: shape coefficients, then those of the texture."""
        return len(self.shape.basis) + len(self.components)

    def with_layers(self, layers: int) -> AppearanceModel:
        """The same model with its coefficients shared out over another number of layers."""
        shapes = len(self.shape.basis)
        bands = layer_bands(layers, shapes, self.lights, self.code_size - shapes - self.lights)
        return replace(self, bands=bands)

    def lent(self, number: int) -> Lender:
        """What one lender has."""
        relief, middle = (np.zeros((side, side), np.float32) for side in (2 * self.size, self.size))
        relief.ravel()[self.fine_pixels] = self.details[number].astype(np.float32) * np.float32(self.detail_scale)
        if len(self.middles):
            middle.ravel()[self.pixels] = self.middles[number] * np.float32(1 / MIDDLE_UNIT)
        return Lender(relief, self.detail_tones[number] * np.float32(1 / TONE_UNIT), middle)

    def encode(self, textures: NDArray[np.uint8], read: Readings) -> tuple[Floats, Moment]:
        """Identity codes [B,D] and the moment of faces, of textures uint8 [B,R,R,3] and readings of their meshes."""
        seen = self.seen(textures)
        raw = self.read_light(seen)
        light = (raw - self.light_mean) / self.light_sd
        features = self.features(read.numbers, self.shape.turn(read.pose), light)
        rest = self.normalised(seen, raw) - features @ self.predict
        code = np.concatenate([read.identity, rest @ self.reader], 1)
        grey = np.array([_greyness(pixels) for pixels in seen], np.float32)
        kept = np.clip(look_features(textures, read) @ self.looks.T, -2, 2).astype(np.float32)
        return code, Moment(read, read.numbers, light.astype(np.float32), kept, grey)

    def residuals(self, textures: NDArray[np.uint8], code: Floats, moment: Moment) -> tuple[Floats, Floats]:
        """Errors of the model's reconstructions on small textures, in units of the contrast, and the reconstructions.

        Returns float32 [B,32,32], root mean square over the colours, and float32 [B,R,R,3] in [0,1].
        """
        made = textures.astype(np.float32) / np.float32(255)
        apart = made.copy()
        made.reshape(len(made), -1, 3)[:, self.pixels] = self.decode(code, moment)
        contrast = np.exp(moment.light[:, 3] * self.light_sd[3] + self.light_mean[3])
        apart = (apart - made) / contrast[:, None, None, None]
        small = np.stack([cv2.resize(one, (SMALL, SMALL), interpolation=cv2.INTER_AREA) for one in apart])
        return np.sqrt(np.square(small).mean(3)), made

    def uncovered(
        self, texture: NDArray[np.uint8], read: Readings
    ) -> tuple[NDArray[np.uint8], float, tuple[Floats, Moment]]:
        """A texture [R,R,3] without what lies over the face (glasses, a hand, paint, hair), the share it covers, and
        what `encode` reads of it then.

        The model's expectation takes its place, so that the light is not read from it.
        """
        small = cv2.resize(self.mask, (SMALL, SMALL), interpolation=cv2.INTER_AREA)
        out, share, read_of = texture, 0.0, self.encode(texture[None], read)
        for number in range(2 if self.usual.size else 0):
            found, made = self.residuals(out[None], *read_of)
            if number == 0:
                times = found[0] / self.usual
                # A large thing shifts the mean colour, so that the residual of the rest of the face is larger, too.
                odd = np.float32(times > _ODD * max(1.0, float(np.median(times[small > 0.5]))))
                share = float((small * odd).sum() / small.sum())
                if share <= COVERED:
                    break
                grown = np.clip(2 * cv2.GaussianBlur(odd, (0, 0), 0.8), 0, 1)
                weight = cv2.resize(grown, texture.shape[1::-1], interpolation=cv2.INTER_LINEAR)[..., None]
            out = np.rint(texture + weight * (255 * np.clip(made[0], 0, 1) - texture)).astype(np.uint8)
            read_of = self.encode(out[None], read)
        return out, share, read_of

    def seen(self, textures: NDArray[np.uint8]) -> Floats:
        """The known pixels of textures [B,R,R,3]: float32 [B,P,3] in [0,1]."""
        flat = textures.reshape(len(textures), -1, 3)
        return flat[:, self.pixels].astype(np.float32) / np.float32(255)

    def read_light(self, seen: Floats) -> Floats:
        """float32 [B,6] of pixels [B,P,3]: mean colour, log contrast and slopes of luminance under the mask."""
        weight, across, down = self._light_weights
        bright = grey_of(seen)
        mean = np.einsum("bpc,p->bc", seen, weight)
        spread = np.sqrt(np.square(bright - mean.mean(1, keepdims=True)) @ weight).clip(0.01)[:, None]
        slopes = np.stack([bright @ across, bright @ down], 1) / spread
        return np.concatenate([mean, np.log(spread), slopes], 1).astype(np.float32)

    def relit(self, moment: Moment, textures: NDArray[np.uint8]) -> Moment:
        """A moment in the light of textures [B,R,R,3]."""
        light = (self.read_light(self.seen(textures)) - self.light_mean) / self.light_sd
        return replace(moment, light=light.astype(np.float32))

    @staticmethod
    def normalised(seen: Floats, raw: Floats) -> Floats:
        """Pixels [B,P,3] less their mean colour, in units of their contrast: [B,3P]; `raw` is of `read_light`."""
        out = seen.reshape(len(seen), -1) - np.tile(raw[:, :3], seen.shape[1])
        return np.divide(out, np.exp(raw[:, 3:4]), dtype=np.float32)

    @cached_property
    def _light_weights(self) -> tuple[Floats, Floats, Floats]:
        weight = self.mask.ravel()[self.pixels]
        weight = weight / weight.sum()
        places = [at / (self.size - 1) * 2 - 1 for at in np.divmod(self.pixels, self.size)]
        down, across = ((weight * (at - (at * weight).sum()) * 8).astype(np.float32) for at in places)
        return weight.astype(np.float32), across, down

    def contrast(self, moment: Moment) -> np.float32:
        """Contrast of the light of one moment, in [0,1]."""
        return np.exp((moment.light * self.light_sd + self.light_mean)[0, 3], dtype=np.float32)

    def moment_vector(self, moment: Moment, sharpness: NDArray[Any]) -> Floats:
        """The moment as input of a network: float32 [B,18] of about unit spread; `sharpness` [B] of `sharpness_of`."""
        sharp: NDArray[Any] = np.log(np.maximum(sharpness, 1e-3) / _USUAL_SHARPNESS) / 0.5
        turn, light = self.shape.turn(moment.read.pose), np.clip(moment.light, -_MOST_LIGHT, _MOST_LIGHT)
        columns: list[NDArray[Any]] = [moment.numbers, turn, light, moment.kept, moment.grey[:, None], sharp[:, None]]
        return np.concatenate(columns, 1).astype(np.float32)

    def identity_code(self, codes: Floats, kept: Floats) -> Floats:
        """The part of codes [B,D] and attributes [B,A] that is identity, all but the light: [B,D-lights+A]."""
        shape = len(self.shape.basis)
        return np.concatenate([codes[:, :shape], codes[:, shape + self.lights :], kept], 1).astype(np.float32)

    def bank_codes(self, codes: Floats) -> Floats:
        """Codes [B,D] as banks hold them: the part that tells people apart, where the model knows it."""
        return (codes @ self.telling.T).astype(np.float32) if self.telling.size else codes

    def predicted(self, moment: Moment) -> Floats:
        """Textures [B,P,3] that the moment alone predicts, less their mean colours, in units of their contrast."""
        features = self.features(moment.numbers, self.shape.turn(moment.read.pose), moment.light)
        return (features @ self.predict).reshape(len(features), -1, 3)

    def expected(self, moment: Moment) -> Floats:
        """An average face in the light of one moment, float32 [P,3] about [0,1]."""
        raw = (moment.light * self.light_sd + self.light_mean)[0]
        return raw[:3] + np.exp(raw[3]) * self.predicted(moment)[0]

    def decode(self, codes: Floats, moment: Moment, taken: NDArray[np.bool_] | None = None) -> Floats:
        """Textures float32 [B,P,3], about [0,1], of codes [B,D] in a moment.

        `taken`, bool [D] or [B,D]: coefficients of another face than the moment's, which are drawn attenuated.
        """
        shape = len(self.shape.basis)
        own, drawn = codes[:, shape:], codes[:, shape:]
        if taken is not None:
            own, drawn = own * ~taken[..., shape:], drawn * taken[..., shape:]
            own[:, : self.lights] += drawn[:, : self.lights]  # light is written as it is
        made = self.predicted(moment) + (own @ self.components).reshape(len(codes), -1, 3)
        if taken is not None:
            written = drawn[:, self.lights :] @ self.components[self.lights :]
            made = made + self._attenuated(written.reshape(made.shape))
        raw = moment.light * self.light_sd + self.light_mean
        made = raw[:, None, :3] + np.exp(raw[:, 3])[:, None, None] * made
        if moment.grey.any():
            made = made + moment.grey[:, None, None] * (grey_of(made)[..., None] - made)
        return made

    def neutral_texture(self, code: Floats) -> Floats:
        """The texture float32 [R,R,3] of a code [D] in ordinary light, at rest, seen from the front."""
        turn = np.zeros((1, 2), np.float32)
        features = self.features(np.zeros((1, len(NUMBERS)), np.float32), turn, np.zeros((1, LIGHT), np.float32))
        drawn = code[len(self.shape.basis) + self.lights :] @ self.components[self.lights :]
        made = (features @ self.predict).reshape(-1, 3) + self._attenuated(drawn.reshape(1, -1, 3))[0]
        out = np.tile(self.light_mean[:3], (self.size * self.size, 1)).astype(np.float32)
        out[self.pixels] += np.exp(self.light_mean[3]) * made
        return out.reshape(self.size, self.size, 3)

    def _attenuated(self, textures: Floats) -> Floats:
        """Textures [B,P,3] of components as they are written for another one: less colourful, the forehead calm."""
        grey = grey_of(textures)[..., None]
        return self.calm * (grey + np.float32(_COLOUR) * (textures - grey))

    @cached_property
    def calm(self) -> Floats:
        """float32 [P,1], 1 below the brows and less up to the top of the forehead, over which there may be hair."""
        row = np.divmod(self.pixels, self.size)[0] * self.warp.step[1] + LO[1]
        brow, top = float(self.shape.front[[105, 334], 1].min()), float(self.shape.front[:, 1].min())
        calm = np.clip((row - top) / (brow - 3 - top), 0, 1)[:, None]
        return (_CALM + (1 - _CALM) * calm).astype(np.float32)

    @cached_property
    def moustache(self) -> tuple[Floats, Floats]:
        """`_hairs` of the upper lip beside the cheeks, which the lower half of the face goes with."""
        below = np.clip((self.places[:, 1] - self.shape.front[_NOSE, 1]) / FADE + 0.5, 0, 1)
        return self._hairs(self.close_to(_LIP, 2.5), self.close_to(_CHEEKS, 3.0), below)

    def _hairs(self, place: Floats, beside: Floats, around: Floats) -> tuple[Floats, Floats]:
        """Float32 [3P], reads of `unpredicted` how light a place [P] is beside another, as hairs are dark.

        And [3P], what makes it lighter by one, with all that goes with it `around` [P] in the model's textures.
        """
        reads = ((place / place.sum() - beside / beside.sum())[:, None] * LUMA).ravel().astype(np.float32)
        components = self.components[self.lights :]
        gives = (components @ reads) @ components * np.repeat(around, 3)
        return reads, (gives / (reads @ gives)).astype(np.float32)

    def unpredicted(self, pixels: Floats, moment: Moment) -> Floats:
        """What a moment does not predict of pixels [P,3] in [0,1], in units of its contrast: float32 [3P]."""
        raw = moment.light * self.light_sd + self.light_mean
        return self.normalised(pixels[None], raw)[0] - self.predicted(moment)[0].ravel()

    @property
    def written(self) -> Floats:
        """Textures [T,3P] that tell identities apart, as they are written for another one; without light."""
        components = self.components[self.lights :]
        return self._attenuated(components.reshape(len(components), -1, 3)).reshape(len(components), -1)

    def taken(self, first: int, last: int) -> NDArray[np.bool_]:
        """Which coefficients [D] the bands first … last (numbered from 1) hold."""
        return np.asarray(self.bands[first - 1 : last].any(0))

    def mixed(self, own: Floats, new: Floats, take: NDArray[np.bool_], kept: Floats | None) -> Floats:
        """Codes [B,D] whose coefficients `take` (bool [D] or [B,D]) are of `new`, with attributes `kept` [B,A]."""
        shape = len(self.shape.basis)
        new = new.copy()
        new[:, shape : shape + self.lights] = 0
        codes = np.where(take, new, own).astype(np.float32)
        if kept is not None:
            codes = codes + ((kept - codes @ self.attributes.T) @ self.give.T) * take
            codes[:, shape : shape + self.lights] *= ~take[..., shape : shape + self.lights]
        return codes.astype(np.float32)

    @staticmethod
    def features(numbers: NDArray[Any], turn: NDArray[Any], light: NDArray[Any]) -> Floats:
        """Inputs of the prediction of the texture: [B,F] of numbers [B,6], yaw and pitch [B,2], light [B,6]."""
        light = np.clip(light, -_MOST_LIGHT, _MOST_LIGHT)
        base = np.concatenate([numbers, turn], 1)
        count = base.shape[1]
        squares = [base[:, i] * base[:, j] for i in range(count) for j in range(i + 1)]
        lit = [base[:, i] * light[:, 0] for i in range(count)]
        turned = [turn[:, 0] * light[:, j] for j in range(1, light.shape[1])]
        columns = [np.ones(len(base)), *base.T, *np.asarray(light).T, *squares, *lit, *turned]
        return np.stack(columns, 1).astype(np.float32)

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """Arrays of a file, the large ones in 8 bits a number and one scale a row."""
        out: dict[str, NDArray[Any]] = {n: array.astype(np.float32) for n, array in self.shape.to_arrays().items()}
        out |= {name: getattr(self, name).astype(kind) for name, kind in _STORED.items()}
        optional = {name: getattr(self, name).astype(kind) for name, kind in _OPTIONAL.items()}
        out |= {name: array for name, array in optional.items() if array.size}
        for name in ("predict", "components"):
            out[name], out[f"{name}.scale"] = quantised(getattr(self, name))
        out["detail_scale"] = np.array([self.detail_scale], np.float32)
        # The first row is the mean face: 8 bits would show.
        out["mean"] = self.predict[0].astype(np.float16)
        # Components are orthogonal under the mask's weight: their reader is they themselves, scaled.
        weight = np.repeat(frame_mask(self.shape.front, self.size).ravel()[self.pixels], 3)
        out["reading"] = (1 / (np.square(self.components) * weight).sum(1)).astype(np.float32)
        return out

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]], header: Mapping[str, Any]) -> AppearanceModel:
        """Read back what `to_arrays` gave."""
        shape, size = FaceShape.from_arrays(dict(arrays)), int(header["size"])
        predict, components = (arrays[n].astype(np.float32) * arrays[f"{n}.scale"] for n in ("predict", "components"))
        predict[0] = arrays["mean"]
        weight = frame_mask(shape.front, size).ravel()[model_pixels(shape.front, size)]
        reader = (components * np.repeat(weight, 3)).T * arrays["reading"]
        given = {name: arrays[name] for name in _STORED}
        given |= {name: arrays[name] for name in _OPTIONAL if name in arrays}
        given = {name: array.astype(np.float32) if array.dtype.kind == "f" else array for name, array in given.items()}
        given["bands"] = given["bands"].astype(np.int64)
        if "detail_tones" not in arrays:  # details of another form
            given |= {name: given[name][:0] for name in ("details", "lenders")}
        return cls(
            shape,
            size,
            predict=predict,
            components=components,
            reader=np.ascontiguousarray(reader, np.float32),
            names=tuple(header["names"]),
            lights=int(header["lights"]),
            detail_scale=float(arrays["detail_scale"][0]),
            **given,
        )


def _greyness(seen: Floats) -> float:
    """1 for pixels [P,3] of a photo without colour or whose colours follow from brightness, 0 for others."""
    grey = grey_of(seen)
    powers = np.stack([np.ones_like(grey), grey, grey * grey], 1)
    colours = seen - grey[:, None]
    slopes = np.linalg.lstsq(powers.T @ powers, powers.T @ colours, rcond=None)[0]
    rest = colours - powers @ slopes
    return float(np.interp(np.abs(rest).mean() / max(float(seen.mean()), 0.02), (_SEPIA, _COLOURED), (1, 0)))


def layer_bands(layers: int, shapes: int, lights: int, textures: int) -> NDArray[np.int64]:
    """[L,D]: which of L layers holds which coefficient.

    The first quarter of the layers holds the light; the others share out shape and texture, the coarse ones first, more
    of them the finer they are.
    """
    light = max(1, layers // 4)
    out = np.zeros((layers, shapes + lights + textures), np.int64)
    start = 0
    for number, first, last in ((shapes, light, layers), (lights, 0, light), (textures, light, layers)):
        steps = np.clip(np.arange(layers + 1) - first, 0, last - first) / max(last - first, 1)
        ends = np.rint(number * steps**2.2).astype(int)
        for layer in range(layers):
            out[layer, start + ends[layer] : start + ends[layer + 1]] = 1
        start += number
    return out


def look_features(textures: NDArray[np.uint8], read: Readings) -> Floats:
    """Inputs of the reader of attributes: [B,3·32²+I+6+1] of textures [B,R,R,3], of even brightness and contrast."""
    small = np.stack([cv2.resize(texture, (SMALL, SMALL), interpolation=cv2.INTER_AREA) for texture in textures])
    flat = small.reshape(len(small), -1).astype(np.float32)
    flat = (flat - flat.mean(1, keepdims=True)) / np.maximum(flat.std(1, keepdims=True), 1)
    ones = np.ones((len(flat), 1), np.float32)
    return np.concatenate([flat, 0.3 * read.identity, 0.3 * read.numbers, ones], 1)


def quantised(rows: Floats) -> tuple[NDArray[np.int8], Floats]:
    """Rows [N,M] as int8 and a float32 scale [N,1] each."""
    scale = np.abs(rows).max(1, keepdims=True).clip(1e-12) / 127
    return np.rint(rows / scale).astype(np.int8), scale.astype(np.float32)
