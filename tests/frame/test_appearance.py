"""The appearance model finds again what made a small world of linear faces, and mixes, keeps and files it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import cv2
import numpy as np
import pytest
from frame_world import Heads
from numpy.typing import NDArray

from ficgan.frame import FaceShape, Floats, Readings
from ficgan.frame.appearance import COVERED, LIGHT, AppearanceModel, Moment
from ficgan.frame.fit import FitConfig, fit_appearance, fit_shape, gate_map, telling_map
from ficgan.frame.parts import frame_mask, model_pixels

SIZE, SHADOWS, DETAILS, PEOPLE = 40, 2, 24, 300
CONFIG = FitConfig(size=SIZE, shapes=6, lights=SHADOWS, textures=DETAILS + 2, layers=4, ridge=0.1, trim=0.0)


@dataclass(frozen=True, eq=False)
class World:
    """Faces whose normalised textures are a known linear map of known numbers, each in a light of its own.

    Under the mask an normalised texture has mean 0 in each colour, and luminance of mean square 1.

    Args:
        lights: [PEOPLE,6], mean colour, log of the contrast, and slopes of luminance in units of it.
        codes, components: [PEOPLE,SHADOWS+DETAILS], about normal numbers; [SHADOWS+DETAILS,R,R,3], what they add.
        mean, lamps: [R,R,3], the face that all have in common; [2,R,R,3] of the slopes.
        effects: [6+2+2,R,R,3] of numbers, turn, the first number times yaw, and yaw times the slope downwards.
    """

    shape: FaceShape
    read: Readings
    lights: NDArray[np.float64]
    codes: NDArray[np.float64]
    mean: NDArray[np.float64]
    effects: NDArray[np.float64]
    lamps: NDArray[np.float64]
    components: NDArray[np.float64]

    def normalised(self, codes: NDArray[np.float64] | None = None) -> NDArray[np.float64]:
        """Evened textures [PEOPLE,R,R,3], with other codes if there are any."""
        numbers, turn, slopes = self.read.numbers, self.shape.turn(self.read.pose), self.lights[:, 4:]
        moment = np.column_stack([numbers, turn, numbers[:, 0] * turn[:, 0], turn[:, 0] * slopes[:, 1]])
        own = self.codes if codes is None else codes
        parts = (moment, self.effects), (slopes, self.lamps), (own, self.components)
        return self.mean + sum(np.tensordot(*one, 1) for one in parts)

    def exact(self, codes: NDArray[np.float64] | None = None) -> NDArray[np.float64]:
        """Textures [PEOPLE,R,R,3] in [0,1], with other codes if there are any."""
        return lit(self.normalised(codes), self.lights)

    @cached_property
    def textures(self) -> NDArray[np.uint8]:
        noise = np.random.default_rng(5).normal(0, 0.002, (PEOPLE, SIZE, SIZE, 3))
        return photographed(self.exact() + noise)

    @property
    def labels(self) -> NDArray[np.float64]:
        """[PEOPLE,2] in −1 and 1, of the code; some unknown."""
        labels = np.sign(np.stack([self.codes[:, SHADOWS], self.codes[:, SHADOWS + 1] + self.codes[:, SHADOWS]], 1))
        labels[::17, 0] = np.nan
        return labels


def lit(normalised: NDArray[np.float64], lights: NDArray[np.float64]) -> NDArray[np.float64]:
    """Evened textures [N,R,R,3] with the mean colour and contrast of lights [N,6]."""
    return lights[:, None, None, :3] + np.exp(lights[:, 3])[:, None, None, None] * normalised


def photographed(textures: NDArray[np.floating]) -> NDArray[np.uint8]:
    return np.rint(textures.clip(0, 1) * 255).astype(np.uint8)


def painted(model: AppearanceModel, made: Floats, onto: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Textures with what `decode` makes [B,P,3] on them."""
    out = onto.copy()
    out.reshape(len(out), -1, 3)[:, model.pixels] = photographed(made)
    return out


def blobs(rng: np.random.Generator, number: int, sigma: float) -> NDArray[np.float64]:
    """Random textures [number,R,R,3], as smooth as sigma says."""
    noise = [cv2.GaussianBlur(rng.normal(0, 1, (SIZE, SIZE, 3)), (0, 0), sigma) for _ in range(number)]
    return np.array([one / one.std() for one in noise])


def soft_mask(shape: FaceShape) -> NDArray[np.float64]:
    """[R,R], sum 1: what light is read under."""
    flat = np.zeros(SIZE * SIZE)
    known = model_pixels(shape.front, SIZE)
    flat[known] = frame_mask(shape.front, SIZE, inset=2.0, feather=2.5).ravel()[known]
    return flat.reshape(SIZE, SIZE) / flat.sum()


@pytest.fixture(scope="module")
def world(heads: Heads) -> World:
    rng = np.random.default_rng(3)
    meshes = heads.people(PEOPLE, rng)
    shape = fit_shape(meshes, CONFIG)
    read, mask = shape.read(meshes), soft_mask(shape)

    def inner(a: NDArray[np.float64], b: NDArray[np.float64]) -> NDArray[np.float64]:
        """Mean products [N,M] of the luminance of textures [N,R,R,3] and [M,R,R,3] under the mask."""
        return np.einsum("nyx,myx,yx->nm", a.mean(3), b.mean(3), mask, optimize=True)

    def balanced(textures: NDArray[np.float64]) -> NDArray[np.float64]:
        return textures - np.einsum("nyxc,yx->nc", textures, mask)[:, None, None]

    y, x = np.mgrid[-1 : 1 : SIZE * 1j, -1 : 1 : SIZE * 1j]
    ramps = balanced(np.repeat(np.stack([x, y])[..., None], 3, 3))
    lamps = np.tensordot(np.linalg.inv(8 * inner(ramps, ramps)), ramps, 1)  # a slope is 8 times the mean product

    def face(number: int, sigma: float) -> NDArray[np.float64]:
        """Textures whose luminance has mean square 1, and which are without light."""
        made = blobs(rng, number, sigma)
        made = balanced(made.mean(3, keepdims=True) + 0.3 * made)
        made -= np.tensordot(8 * inner(made, ramps), lamps, 1)
        return made / np.sqrt(np.diag(inner(made, made)))[:, None, None, None]

    components = np.concatenate([face(SHADOWS, 9.0), face(DETAILS, 1.0)])
    spans = np.array([0.05, 0.05, 0.05, 0.4, 0.5, 0.5])  # all within what the prediction follows
    lights = np.array([0.55, 0.5, 0.45, np.log(0.07), 0, 0]) + rng.uniform(-spans, spans, (PEOPLE, LIGHT))
    lights[:, :3] += rng.uniform(-0.1, 0.1, (PEOPLE, 1))
    world = World(
        shape,
        read,
        lights,
        np.zeros((PEOPLE, len(components))),
        0.6 * face(1, 3.0)[0],
        np.array([0.08] * 9 + [0.2])[:, None, None, None] * face(10, 3.0),
        lamps,
        0.105 * components,
    )

    # A face's code is as strong as makes its contrast 1; and codes say nothing about the moment, in this sample
    # exactly: so the prediction can be found without error.
    nobody = world.normalised()
    missing, crossed = 1 - np.einsum("nyx,yx->n", np.square(nobody.mean(3)), mask), inner(nobody, world.components)
    assert missing.min() > 0.1
    features = AppearanceModel.features(read.numbers, shape.turn(read.pose), (lights - lights.mean(0)) / lights.std(0))
    moment, _ = np.linalg.qr(features.astype(np.float64))
    codes, squares = rng.normal(0, 1, world.codes.shape), inner(world.components, world.components)
    for _ in range(30):
        codes -= moment @ (moment.T @ codes)
        a, b = np.einsum("nk,kl,nl->n", codes, squares, codes), (codes * crossed).sum(1)
        codes *= ((np.sqrt(b**2 + a * missing) - b) / a)[:, None]
    assert np.abs(moment.T @ codes).max() < 1e-4
    return replace(world, codes=codes)


def fitted(world: World, config: FitConfig = CONFIG, textures: NDArray[np.uint8] | None = None) -> AppearanceModel:
    groups = ["one", "other"] * (PEOPLE // 2)
    given = world.textures if textures is None else textures
    return fit_appearance(world.shape, world.read, given, groups, world.labels, ("first", "second"), config)


@pytest.fixture(scope="module")
def model(world: World) -> AppearanceModel:
    return fitted(world)


@pytest.fixture(scope="module")
def encoded(world: World, model: AppearanceModel) -> tuple[Floats, Moment]:
    return model.encode(world.textures[:40], world.read.take(slice(40)))


def root_mean_square(error: NDArray[np.floating]) -> float:
    return float(np.sqrt(np.square(error).mean()))


def in_deviations(model: AppearanceModel, lights: NDArray[np.floating]) -> NDArray[np.floating]:
    return (lights - model.light_mean) / model.light_sd


def seen(model: AppearanceModel, textures: NDArray[np.floating]) -> NDArray[np.floating]:
    return textures.reshape(len(textures), -1, 3)[:, model.pixels]


def test_the_world_is_found_again(world: World, model: AppearanceModel, encoded: tuple[Floats, Moment]) -> None:
    codes, moment = encoded
    exact = seen(model, world.exact())[:40]
    read = model.read_light(exact.astype(np.float32))
    np.testing.assert_allclose(read, world.lights[:40], atol=1e-5)
    even = seen(model, world.normalised())[:40].reshape(40, -1)
    np.testing.assert_allclose(model.normalised(exact.astype(np.float32), read), even, atol=1e-4)
    np.testing.assert_allclose(moment.light, in_deviations(model, world.lights[:40]), atol=0.05)
    np.testing.assert_allclose(model.light_mean, world.lights.mean(0), atol=0.002)
    np.testing.assert_allclose(model.light_sd, world.lights.std(0), rtol=0.01)
    assert root_mean_square(model.decode(codes, moment) - exact) < 0.002  # an 8-bit step is .004
    # What is predicted is the face that the same moment gives to somebody whose code is 0.
    nobody = seen(model, world.exact(np.zeros_like(world.codes)))[:40]
    assert root_mean_square(nobody - exact) > 0.05
    assert root_mean_square(model.decode(np.zeros_like(codes), moment) - nobody) < 0.002
    # The span of the components holds the true ones, each in its part.
    weight = np.sqrt(np.repeat(frame_mask(world.shape.front, SIZE).ravel()[model.pixels], 3))
    true = seen(model, world.components).reshape(SHADOWS + DETAILS, -1) * weight
    basis, _ = np.linalg.qr((model.components * weight).T)
    left = true - true @ basis @ basis.T
    assert np.linalg.norm(left, axis=1).max() < 0.05 * np.linalg.norm(true, axis=1).min()
    shadows = true[:SHADOWS] - true[:SHADOWS] @ basis[:, :SHADOWS] @ basis[:, :SHADOWS].T
    assert np.linalg.norm(shadows) < 0.55 * np.linalg.norm(true[:SHADOWS])


def test_what_lies_over_a_face_is_taken_away(world: World, model: AppearanceModel) -> None:
    """A bar over the mouth: its share is about right, the face below it is guessed, and the light is the face's own."""
    model = replace(model, usual=np.full((32, 32), 0.2, np.float32))  # real faces are not as linear as this world
    inside = model.mask > 0.5
    rows = slice(int(0.62 * SIZE), int(0.78 * SIZE))
    for n in range(5):
        read, plain = world.read.take([n]), world.textures[n]
        same, share, _ = model.uncovered(plain, read)
        assert share < COVERED and same is plain
        barred = plain.copy()
        barred[rows] = (255, 0, 255)
        clean, share, _ = model.uncovered(barred, read)
        wanted = inside[rows].sum() / inside.sum()
        assert 0.6 * wanted < share < 1.6 * wanted
        apart = [np.abs(one[rows].astype(int) - plain[rows])[inside[rows]].mean() for one in (barred, clean)]
        assert apart[1] < 0.4 * apart[0]
        light, own = (model.encode(one[None], read)[1].light for one in (clean, plain))
        assert np.abs(light - own).mean() < 0.5 * np.abs(model.encode(barred[None], read)[1].light - own).mean()


def test_what_was_decoded_is_encoded_again(
    world: World, model: AppearanceModel, encoded: tuple[Floats, Moment]
) -> None:
    codes, moment = encoded
    again, later = model.encode(painted(model, model.decode(codes, moment), world.textures[:40]), moment.read)
    assert np.abs(again - codes).max() < 0.1 and root_mean_square(again - codes) < 0.03
    np.testing.assert_allclose(later.light, moment.light, atol=0.05)
    np.testing.assert_allclose(later.kept, moment.kept, atol=0.2)
    assert not moment.grey.any() and np.array_equal(later.numbers, moment.numbers)
    few = moment.take([3, 1])
    np.testing.assert_allclose(model.decode(codes[[3, 1]], few), model.decode(codes, moment)[[3, 1]], atol=1e-6)


def test_light_is_nobodys(world: World, model: AppearanceModel, encoded: tuple[Floats, Moment]) -> None:
    """A face in another's mean colour and contrast has its own code, by which it can be told in either light."""
    lights = world.lights.copy()
    lights[:, :4] = np.roll(lights[:, :4], 1, axis=0)
    there = lit(world.normalised(), lights)[:40]
    codes, moment = model.encode(photographed(there), world.read.take(slice(40)))
    assert root_mean_square(there - world.exact()[:40]) > 0.08
    assert np.abs(codes - encoded[0]).max() < 0.2 and root_mean_square(codes - encoded[0]) < 0.02
    np.testing.assert_allclose(moment.light, in_deviations(model, lights[:40]), atol=0.05)


def test_grey_photos_stay_grey(world: World, model: AppearanceModel) -> None:
    grey = np.repeat(world.textures[:4].mean(3, keepdims=True).astype(np.uint8), 3, axis=3)
    codes, moment = model.encode(grey, world.read.take(slice(4)))
    assert (moment.grey == 1).all() and np.ptp(model.decode(codes, moment), axis=2).max() < 1e-6
    light = grey / np.float32(255)
    sepia = np.rint(255 * np.stack([light[..., 0] ** 0.8, light[..., 1], light[..., 2] ** 1.2], 3)).astype(np.uint8)
    assert (model.encode(sepia, world.read.take(slice(4)))[1].grey > 0.5).all()
    assert (model.encode(world.textures[:4], world.read.take(slice(4)))[1].grey == 0).all()


def test_mixing(model: AppearanceModel, encoded: tuple[Floats, Moment], rng: np.random.Generator) -> None:
    own = encoded[0]
    new = rng.standard_normal(own.shape).astype(np.float32)
    lights = slice(CONFIG.shapes, CONFIG.shapes + CONFIG.lights)
    plain = new.copy()
    plain[:, lights] = 0
    np.testing.assert_array_equal(model.mixed(own, new, model.taken(1, model.num_layers), None), plain)
    for first, last in ((1, 2), (2, 4), (3, 3)):
        taken = model.bands[first - 1 : last].any(0)
        for kept in (None, encoded[1].kept):
            mixed = model.mixed(own, new, model.taken(first, last), kept)
            np.testing.assert_array_equal(mixed[:, ~taken], own[:, ~taken])
            assert not mixed[:, lights][:, taken[lights]].any()
        np.testing.assert_array_equal(model.mixed(own, new, model.taken(first, last), None)[:, taken], plain[:, taken])
    kept = encoded[1].kept
    whole = model.mixed(own, new, model.taken(1, model.num_layers), kept)
    np.testing.assert_array_equal(whole[:, lights], 0)
    # What the attributes lack is the share that light had in them; with none, they are as asked.
    lacking, before_it = whole @ model.attributes.T - kept, plain @ model.attributes.T - kept
    assert np.abs(before_it).max() > 0.5 and root_mean_square(lacking) < 0.05 * root_mean_square(before_it)


def test_file(world: World, model: AppearanceModel, encoded: tuple[Floats, Moment]) -> None:
    arrays = model.to_arrays()
    big = [arrays["predict"], arrays["components"]]
    assert all(one.dtype == np.int8 for one in big)
    header = {"size": model.size, "names": list(model.names), "lights": model.lights}
    again = AppearanceModel.from_arrays({name: array.copy() for name, array in arrays.items()}, header)
    for name in ("predict", "components"):
        was, now = getattr(model, name), getattr(again, name)
        bound = np.abs(was).max(1, keepdims=True) / 254 * 1.001
        first = 1 if name == "predict" else 0  # the mean face is kept in 16 bits
        assert (np.abs(was - now)[first:] <= bound[first:]).all()
    np.testing.assert_allclose(again.predict[0], model.predict[0], rtol=2**-11, atol=1e-6)
    for name in ("light_mean", "light_sd", "looks", "attributes", "give", "bands"):
        np.testing.assert_array_equal(getattr(again, name), getattr(model, name))
    assert (again.size, again.names, again.lights) == (model.size, ("first", "second"), SHADOWS)
    for name, array in world.shape.to_arrays().items():
        np.testing.assert_array_equal(array, again.shape.to_arrays()[name])
    codes, moment = again.encode(world.textures[:40], world.read.take(slice(40)))
    assert root_mean_square(codes - encoded[0]) < 0.05
    assert root_mean_square(again.decode(codes, moment) - model.decode(*encoded)) < 0.003


def test_draws_vary_in_what_a_recogniser_sees_and_in_nothing_else() -> None:
    """Codes are of persons and of chance; the recogniser sees the persons, and other chance. Two numbers are light."""
    rng = np.random.default_rng(11)
    people, lights = rng.normal(0, 1, (20_000, 3)), np.s_[4:6]
    shows, chance = rng.normal(0, 1, (3, 10)), rng.normal(0, 1, (5, 10))
    codes = people @ shows + rng.normal(0, 1, (len(people), 5)) @ chance
    embeddings = np.c_[np.full(len(people), 30), people, rng.normal(0, 1, (len(people), 20))]
    made = telling_map(codes.astype(np.float32), embeddings.astype(np.float32), lights, 2.0, penalty=1e-6)
    drawn, kept = (codes - codes.mean(0)) @ made.T, np.r_[:4, 6:10]
    np.testing.assert_allclose(drawn[:, lights], (codes - codes.mean(0))[:, lights], rtol=1e-4)
    wanted = 4 * (shows.T @ shows)[np.ix_(kept, kept)]
    np.testing.assert_allclose(np.cov(drawn[:, kept].T), wanted, atol=0.05 * np.abs(wanted).max())
    deaf = telling_map(codes.astype(np.float32), rng.normal(0, 1, (len(people), 20)).astype(np.float32), lights, 2.0)
    assert np.square((codes @ deaf.T)[:, kept]).mean() < 0.02 * np.square(codes[:, kept]).mean()


def test_what_the_gate_sees_of_draws_is_their_own_and_no_light() -> None:
    rng = np.random.default_rng(12)
    effect, lend, lights = rng.normal(0, 1, (10, 6)), rng.normal(0, 1, (5, 6)), np.s_[4:6]
    kinds, sources, lenders = rng.normal(3, 9, (900, 1, 10)), rng.normal(0, 9, (900, 6)), rng.integers(5, size=(900, 3))
    codes = kinds + rng.normal(0, 1, (900, 3, 10))
    effect[lights] = 0
    embeddings = codes @ effect + lend[lenders] + sources[:, None] + rng.normal(0, 0.1, (900, 3, 6))
    made, lent = gate_map(codes, lenders, embeddings, sources, lights, 5)
    np.testing.assert_allclose(made, np.vstack([sources.mean(0), effect / 1.1]), atol=0.15)
    np.testing.assert_allclose(lent, (lend - lend.mean(0)) / 1.3, atol=0.3)
