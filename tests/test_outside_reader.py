"""What options of identity do to faces, by networks that the model has never met: age, gender, expression of London."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from ficgan.deidentify import Deidentifier
from ficgan.device import onnx_session
from ficgan.faces import crop, get_detector, similarity

pytestmark = pytest.mark.slow
TEMPLATE = np.float32([[38.3, 51.7], [73.5, 51.5], [56.0, 71.7], [41.5, 92.4], [70.7, 92.2]])
PEOPLE = 16

Reading = tuple[NDArray[np.float64], NDArray[np.float64]]


@pytest.fixture(scope="module")
def people(shared_data: Path) -> list[NDArray[np.uint8]]:
    paths = sorted((shared_data / "london").glob("*_neutral.jpg"))[::6][:PEOPLE]
    return [np.asarray(Image.open(path).convert("RGB")) for path in paths]


@pytest.fixture(scope="module")
def read(people: list[NDArray[np.uint8]], shared_models: Path) -> Callable[..., Reading]:
    """Ages [N] and P(male) [N], of the photos or of what options make of them."""
    session = onnx_session(shared_models / "age_gender.onnx", "cpu")
    faces = [get_detector("auto").detect(image)[0] for image in people]

    def of(**options: Any) -> Reading:
        images = people
        if options:
            deid = Deidentifier.from_pretrained(**{"k": 3000, "layer": 0, "seed": 5, "verify": False, **options})
            images = [deid(image, key=str(n)).image for n, image in enumerate(people)]
        crops = [crop(x, similarity(face.landmarks, TEMPLATE), 112) for x, face in zip(images, faces, strict=True)]
        batch = np.stack(crops).transpose(0, 3, 1, 2).astype(np.float32)
        age, male = session.run(["age", "male"], {session.get_inputs()[0].name: batch})
        return np.ravel(age).astype(float), np.ravel(male).astype(float)

    return of


@pytest.fixture(scope="module")
def source(read: Callable[..., Reading]) -> Reading:
    return read()


@pytest.fixture(scope="module")
def plain(read: Callable[..., Reading]) -> Reading:
    return read(k=1000)


def alike(one: Reading, other: Reading) -> float:
    return float(((one[1] > 0.5) == (other[1] > 0.5)).mean())


def test_the_kind_stays(source: Reading, plain: Reading) -> None:
    assert alike(source, plain) >= 0.8 and abs(source[0].mean() - plain[0].mean()) < 6


def test_an_age_changes_the_age_and_not_the_gender(read: Callable[..., Reading], plain: Reading) -> None:
    old = read(k=100, attributes="60-69")
    assert old[0].mean() > plain[0].mean() + 10
    assert alike(old, plain) >= 0.85


@pytest.mark.parametrize(("wish", "male", "least"), [("Male", True, 0.9), ("Female", False, 0.65)])
def test_a_gender_changes_the_gender(
    read: Callable[..., Reading], plain: Reading, wish: str, male: bool, least: float
) -> None:
    """A man's hair, jaw and stubble stay around a woman's face, and this reader sees them."""
    ages, men = read(attributes=wish)
    assert ((men > 0.5) == male).mean() >= least
    assert abs(ages.mean() - plain[0].mean()) < 6


@pytest.mark.parametrize(("wish", "sign"), [("Male=2", 1), ("Female=2", -1)])
def test_a_direction_goes_where_it_says(read: Callable[..., Reading], plain: Reading, wish: str, sign: int) -> None:
    _, men = read(k=1000, add=[wish])
    assert sign * (men.mean() - plain[1].mean()) > 0.05


def test_an_exemplar_of_no_weight_changes_nothing(people: list[NDArray[np.uint8]]) -> None:
    options = {"k": 1000, "layer": 0, "seed": 5, "verify": False}
    plain = Deidentifier.from_pretrained(**options)(people[0], key="a")
    none = Deidentifier.from_pretrained(**options, exemplar=people[1], alpha=0.0)(people[0], key="a")
    np.testing.assert_array_equal(plain.image, none.image)
