"""Bars: each row against slow loops, known pictures and other libraries."""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from bars_world import SIDE, bench, cosine, disc, people, reader, seen, unknown
from hypothesis import given
from hypothesis import strategies as st
from scipy import ndimage
from scipy.linalg import sqrtm
from sklearn.metrics import roc_auc_score

from ficgan.anonymizers import Anonymizer, Faces, Images, Solid
from ficgan.errors import InputError
from ficgan.lab.bars import privacy
from ficgan.lab.bars.privacy import identity, identity_controls, strangers, threshold_of
from ficgan.lab.bars.utility import RealFaces, appearance, fidelity, likeness, likeness_controls, sharpness_at
from ficgan.lab.metrics.utility import Judges


@dataclass(frozen=True)
class Does(Anonymizer):
    """Whatever a function does to images."""

    what: Any = None

    def __call__(self, faces: Faces) -> Images:
        return self.what(faces.images)


KEEP = Does(what=lambda images: images.copy())


# Identity


@given(st.integers(31, 200), st.integers(0, 5), st.booleans())
def test_the_threshold_is_what_a_slow_search_finds(count: int, seed: int, ties: bool) -> None:
    scores = np.random.default_rng(seed).normal(size=count)
    scores = np.round(scores, 1) if ties else scores
    far = 30 / count
    found = threshold_of(scores, far=far)
    allowed = [one for one in scores if np.mean(scores > one) <= far + 1e-12]
    assert found == min(allowed)


def test_too_few_strangers_have_no_threshold() -> None:
    assert threshold_of(np.zeros(9_999)) is None
    assert threshold_of(np.arange(30_000.0)) == 29_969  # thirty lie above it
    one = strangers(bench(), reader())
    assert one.threshold is None and one.far.value is None and "10000 are needed" in one.far.note


@pytest.mark.parametrize("metric", ["cosine", "euclidean"])
def test_strangers_are_other_people_of_the_same_group(metric: str) -> None:
    groups = {"gender": ("Female",) * 6 + ("Male",) * 6, "race": ("a", "a", "b", "b") * 3}
    judge = reader(metric=metric, match_threshold=0.9 if metric == "cosine" else 300.0)
    made = bench(groups=groups, readers=(judge,))
    codes = [seen(image) for image in made.faces.images]
    who = made.faces.people
    assert who is not None
    near, matched, everybody = [], [], []
    for i, a in enumerate(codes):
        alike = [
            j for j in range(len(codes)) if who[j] != who[i] and all(told[i] == told[j] for told in groups.values())
        ]
        if alike:
            near.append(np.mean([cosine(a, codes[j]) for j in alike]))
            distance = [1 - cosine(a, codes[j]) if metric == "cosine" else np.linalg.norm(a - codes[j]) for j in alike]
            matched.append(np.mean(np.array(distance) < judge.recognizer.match_threshold))
        everybody.append(np.mean([cosine(a, b) for j, b in enumerate(codes) if who[j] != who[i]]))
    found = strangers(made, judge)
    assert found.cosine.value == pytest.approx(np.mean(near), abs=1e-6)
    assert found.own.value == pytest.approx(np.mean(matched))
    assert found.everybody.value == pytest.approx(np.mean(everybody), abs=1e-6)


def test_identity_rows_by_loops() -> None:
    rng = np.random.default_rng(3)
    made = bench(groups={"gender": ("Female",) * 6 + ("Male",) * 6})
    mixed = (0.5 * made.faces.images + 0.5 * rng.integers(0, 256, made.faces.images.shape)).astype(np.uint8)
    look = made.observe(made.faces.with_images(mixed))
    known = {"blocks": strangers(made, reader())}
    rows = identity(made, look.embeddings, known)
    before, after = ([seen(image) for image in images] for images in (made.faces.images, mixed))
    told = [cosine(a, b) for a, b in zip(before, after, strict=True)]
    assert rows["id-cosine", "blocks"].value == pytest.approx(np.mean(told), abs=1e-6)
    assert rows["match", "blocks"].value == np.mean(np.array(told) > 0.5)
    assert rows["tar", "blocks"].value is None
    areas = []
    for i, output in enumerate(after):
        others = [j for j in range(12) if j // 2 != i // 2 and (j < 6) == (i < 6)]
        scores = [cosine(output, before[i]), *(cosine(output, before[j]) for j in others)]
        areas.append(roc_auc_score([1] + [0] * len(others), scores))
    gap = rows["auc-gap", "blocks"]
    assert gap.value == pytest.approx(abs(np.mean(areas) - 0.5)) and gap.note == f"AUC {np.mean(areas):.3f}"
    control = identity_controls(known)["auc-gap", "blocks"]
    assert control.figure.value == known["blocks"].own.value


KINDS = {"gender": ("Female",) * 8 + ("Male",) * 8, "race": ("a",) * 16}


def test_within_kind_by_loops() -> None:
    """Own is the person's other photo; the region's figure does not know what stands outside it."""
    rng = np.random.default_rng(4)
    made = bench(people(8), groups=KINDS)
    mixed = (0.3 * made.faces.images + 0.7 * rng.integers(0, 256, made.faces.images.shape)).astype(np.uint8)
    hidden = made.weights < 0.999

    def by_hand(images: np.ndarray, clear: np.ndarray) -> float:
        after, before = ([seen(image) for image in some] for some in (images, clear))
        areas = []
        for i, output in enumerate(after):
            others = [j for j in range(16) if j // 2 != i // 2 and (j < 8) == (i < 8)]
            areas.append(roc_auc_score([1] + [0] * len(others), [cosine(output, before[j]) for j in (i ^ 1, *others)]))
        return float(np.mean(areas))

    figure = privacy.within_kind(made, made.recognised(made.faces.with_images(mixed)))["within-kind", "blocks"]
    assert figure.value == pytest.approx(by_hand(mixed, made.faces.images)) and figure.n == 16
    assert figure.note == "own: another photo of the person"
    key = ("within-kind (region)", "blocks")
    region = privacy.within_kind_of_region(made, made.faces.with_images(mixed))[key]
    grey = [np.where(hidden[..., None], np.uint8(127), images) for images in (mixed, made.faces.images)]
    assert region.value == pytest.approx(by_hand(*grey))
    around = np.where(hidden[..., None], made.faces.images, mixed)
    assert privacy.within_kind_of_region(made, made.faces.with_images(around))[key] == region
    assert privacy.within_kind(made, made.clear.embeddings)["within-kind", "blocks"].value == 1
    with pytest.raises(InputError, match="ethnicity and gender"):
        privacy.within_kind(bench(groups={"gender": ("Female",) * 12}), made.clear.embeddings)


# Likeness


@dataclass
class Clock:
    """Age from red, male where green is above 127."""

    def predict(self, faces: Faces) -> tuple[np.ndarray, np.ndarray]:
        means = faces.images.mean((1, 2))
        return (means[:, 0] / 3).astype(np.float32), (means[:, 1] / 254).astype(np.float32)


@dataclass
class Wardrobe:
    """Attributes from colours: glasses where blue is high, race by the larger of red and green."""

    names: tuple[str, ...] = ("Eyeglasses", "a", "b")
    training: Any = None

    def __post_init__(self) -> None:
        self.training = {"source": {"name": "made"}}

    def predict(self, faces: Faces) -> np.ndarray:
        means = faces.images.mean((1, 2)) / 254
        return means[:, [2, 0, 1]].astype(np.float32)


def test_likeness_by_loops() -> None:
    labels = {"race": tuple("ab" * 6), "gender": ("Male", "Female") * 6, "age": ("40-49",) * 12}
    judges = Judges(age_gender=Clock(), attributes=Wardrobe())  # type: ignore[arg-type]
    made = bench(people(spread=120), judges=judges, groups=labels)
    other = np.random.default_rng(5).permutation(made.faces.images)
    rows = {row: figure for (row, _), figure in likeness(made, made.observe(made.faces.with_images(other))).items()}

    def band(years: float) -> int:
        return sum(years >= start for start in (0, 3, 10, 20, 30, 40, 50, 60, 70))

    a, b = (images.astype(np.float64).mean((1, 2)) for images in (made.faces.images, other))
    pairs = list(zip(a, b, strict=True))
    assert rows["age-band"].value == np.mean([band(x[0] / 3) == band(y[0] / 3) for x, y in pairs])
    assert rows["gender"].value == np.mean([(x[1] >= 127) == (y[1] >= 127) for x, y in pairs])
    assert rows["glasses"].value == np.mean([(x[2] >= 127) == (y[2] >= 127) for x, y in pairs])
    assert rows["race"].value == np.mean([(x[0] >= x[1]) == (y[0] >= y[1]) for x, y in pairs])
    control = likeness_controls(made)["gender", "age_gender"]
    right = np.mean([(x[1] >= 127) == (told == "Male") for x, told in zip(a, labels["gender"], strict=True)])
    assert control.figure.value == 1 and f"label {right:.3f}, majority 0.500" in control.what


# Appearance


def test_sharpness_is_of_the_two_sides_alone() -> None:
    rng = np.random.default_rng(0)
    weight = disc()
    grey = np.where(weight > 0, rng.normal(127, 5, weight.shape), rng.normal(127, 20, weight.shape)).astype(np.uint8)
    image = grey[..., None].repeat(3, 2)
    inside, around = sharpness_at(image[None], weight[None], 9)
    laplacian = ndimage.laplace(grey.astype(np.float64), mode="mirror")
    deep = ndimage.binary_erosion(weight >= 0.999, np.ones((3, 3)), border_value=1)
    touched = weight > 0
    ring = ndimage.binary_dilation(touched, np.ones((19, 19))) & ~ndimage.binary_dilation(touched, np.ones((3, 3)))
    assert inside[0] == pytest.approx(laplacian[deep].var(), rel=1e-5)
    assert around[0] == pytest.approx(laplacian[ring].var(), rel=1e-5)
    assert 10 < around[0] / inside[0] < 25  # four times the noise, sixteen times its variance
    assert np.isnan(sharpness_at(image[None], np.ones_like(weight)[None], 9)[1][0])


def test_a_seam_and_a_blur_show() -> None:
    made = bench()
    real = RealFaces(made)
    blurred = np.stack([ndimage.uniform_filter(image, (9, 9, 1)) for image in made.faces.images])
    pasted = np.where(made.weights[..., None] > 0, blurred, made.faces.images)
    rows = appearance(made, made.faces.with_images(pasted), real)
    assert rows["sharpness-kept", ""].value < 0.1 and rows["sharpness", ""].value < 0.1  # type: ignore[operator]
    seam = np.where(made.weights[..., None] > 0.5, 255, 0).astype(np.uint8).repeat(3, 3)
    rows = appearance(made, made.faces.with_images(seam), real)
    assert rows["border", ""].value > 1.2  # type: ignore[operator]
    assert rows["fd", ""].value is None and rows["fd", ""].note
    same = appearance(made, made.faces, real)
    assert same["border", ""].value == same["sharpness-kept", ""].value == pytest.approx(1)


@dataclass
class Colours:
    """A network whose features are four colours of the picture."""

    def read(self, images: np.ndarray, **_: Any) -> Any:
        half = images.shape[1] // 2
        wide = images.astype(np.float64) / 50
        features = np.concatenate([wide.mean((1, 2)), wide[:, :half].mean((1, 2, 3))[:, None]], 1)
        return SimpleNamespace(features=features, distances=None, codes=None, diversity=None)


def _frechet(x: np.ndarray, y: np.ndarray) -> float:
    a, b = np.cov(x.T), np.cov(y.T)
    return float(((x.mean(0) - y.mean(0)) ** 2).sum() + np.trace(a + b - 2 * np.real(sqrtm(a @ b))))


def test_distance_to_real_faces_over_that_of_real_ones() -> None:
    judges = Judges(squeezenet=Colours())  # type: ignore[arg-type]
    train = people(30, 1, seed=9)
    made = bench(people(20, 1), judges=judges, train=train)
    output = people(20, 1, seed=4, spread=80)
    read = Colours().read
    found = RealFaces(made).ratio(made.faces.with_images(output.images))
    to, clear = (
        _frechet(read(one).features, read(train.images[:20]).features) for one in (output.images, made.faces.images)
    )
    assert found.value == pytest.approx(to / clear, rel=1e-4) and "training faces" in found.note
    twice = bench(people(10, 2), judges=judges)
    halves = RealFaces(twice)
    assert halves.ratio(twice.faces).value == pytest.approx(1)
    rest = np.setdiff1d(np.arange(20), halves.rows)
    assert len(halves.rows) == 10 and not set(twice.people[halves.rows]) & set(twice.people[rest])
    assert "3 people are too few" in RealFaces(bench(people(3, 3), judges=judges)).ratio(people(3, 3)).note


def test_fidelity_of_a_known_change() -> None:
    made = bench(Faces(np.full((3, SIDE, SIDE, 3), 100, np.uint8), ("a", "b", "c")))
    rows = fidelity(made, made.observe(made.faces.with_images(np.full((3, SIDE, SIDE, 3), 151, np.uint8))))
    assert rows["rec-mse", ""].value == pytest.approx(0.16)  # 51 of 127.5, squared
    assert rows["rec-lpips", ""].value is None and rows["rec-lpips", ""].note
    assert rows["rec-cosine", "blocks"].value == pytest.approx(-1, abs=1e-3)  # 27 below and 24 above the middle


# Other uses


def test_a_swap_is_compared_with_its_target() -> None:
    made = bench(people(5, 1)).one_each(4)
    assert made.faces.people is None and len(made.faces) == 4
    wanted = privacy.targets(made)
    perfect = privacy.towards(made, Does(what=lambda images: np.roll(images, -1, 0)), "swap", wanted)
    assert perfect["swap", "blocks"].value == pytest.approx(1)
    none = privacy.towards(made, KEEP, "swap", wanted)["swap", "blocks"]
    codes = [seen(image) for image in made.faces.images]
    assert none.value == pytest.approx(np.mean([cosine(codes[i], codes[(i + 1) % 4]) for i in range(4)]), abs=1e-6)


def test_draws_are_compared_in_all_pairs() -> None:
    made = bench(people(3, 1))

    def noise(seed: int) -> Anonymizer:
        return Does(what=lambda images: np.random.default_rng(seed).integers(0, 256, images.shape).astype(np.uint8))

    found = privacy.draws(made, noise, 3)["draws", "blocks"]
    several = [noise(seed)(made.faces) for seed in range(3)]
    told = [cosine(seen(several[a][i]), seen(several[b][i])) for i in range(3) for a, b in ((0, 1), (0, 2), (1, 2))]
    assert found.value == pytest.approx(np.mean(told), abs=1e-6)
    assert privacy.draws(made, lambda seed: KEEP)["draws", "blocks"].value == pytest.approx(1)


def test_the_parrot_sees_the_face_alone() -> None:
    made = bench(people(8, 3))
    assert privacy.parrot(made, KEEP)["parrot", "blocks"].value == 1
    solid = privacy.parrot(made, Solid())["parrot", "blocks"]
    assert solid.value == pytest.approx(1 / 8) and solid.note == "chance 0.125"  # all alike: a lot is drawn
    whole = {key: one.figure for key, one in privacy.surroundings(made).items()}
    assert whole["parrot", "blocks"].value > 0.5  # type: ignore[operator]  # corners tell these people apart
    with pytest.raises(InputError, match="0 people of made have two images"):
        privacy.parrot(bench(unknown(people())), KEEP)


def test_the_policy_is_counted_face_by_face() -> None:
    made = bench(people(4, 1))

    class Engine:
        recognizer = SimpleNamespace(name="gate")

        def aligned(self, images: np.ndarray, *, keys: Any, layer: int) -> Any:
            return 255 - images, [SimpleNamespace(action=one) for one in ("generated", "retried", "masked", "retried")]

        def __call__(self, image: np.ndarray, *, key: str, layer: int) -> Any:
            faces = [] if key.startswith("0") else [SimpleNamespace(action="masked")]
            return SimpleNamespace(faces=faces, image=image if not faces else image // 2)

    rows, published = privacy.policy(made, Engine(), 4)  # type: ignore[arg-type]
    np.testing.assert_array_equal(published.images, 255 - made.faces.images)
    assert rows["retried", "gate (the gate)"].value == 0.75 and rows["masked", "gate (the gate)"].value == 0.25
    photos = replace(made, prepared=replace(made.prepared, region=(8, 8, 56, 56)))
    rows, published = privacy.policy(photos, Engine(), 4)  # type: ignore[arg-type]
    assert published.names == photos.faces.names
    for row, image in enumerate(photos.faces.images):  # what was not found leaves as it came
        np.testing.assert_array_equal(published.images[row], image if row == 0 else image // 2)
    masked = rows["masked", "gate (the gate)"]
    assert (masked.value, masked.n) == (1, 3) and "1 photos in which no face" in masked.note


def test_a_training_face_that_comes_back_is_found() -> None:
    made, train = bench(people(4, 1)), people(9, 1, seed=7)
    copied = Does(what=lambda images: train.images[: len(images)])
    model, sticker, control = privacy.nearest(made, reader().embed(train), reader(), copied, KEEP)
    assert model["memorised", "blocks"].value == pytest.approx(1)
    codes = [seen(image) for image in train.images]
    best = [max(cosine(seen(image), code) for code in codes) for image in made.faces.images]
    assert sticker["memorised", "blocks"].value == pytest.approx(np.mean(best), abs=1e-6)
    assert control["memorised", "blocks"].figure.value == pytest.approx(np.mean(best), abs=1e-6)
