"""Everything that an anonymiser must refuse: one table of calls and kinds of errors."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from stand_ins import face, noise, photo

from ficgan.anonymizers import ANONYMIZERS, Faces
from ficgan.anonymizers.basic import EyeMask, ObfuscationBlur, Solid, obfuscate_blur, obfuscate_overlay
from ficgan.anonymizers.cloak import Fawkes
from ficgan.anonymizers.external import External
from ficgan.anonymizers.k_same import KSamePixel
from ficgan.anonymizers.keyed import KRtio
from ficgan.anonymizers.modes import cover
from ficgan.errors import InputError, UsageError

WRONG: dict[str, list[dict[str, object]]] = {
    "eye-mask": [{"scale": 0.0}],
    "gaussian-noise": [{"sigma": -1.0}, {"sigma": math.nan}],
    "gaussian-blur": [{"kernel": 28}, {"kernel": 1}, {"variant": "as_told"}, {"kernal": 3}],
    "box-blur": [{"kernel": 30}, {"kernel": 0}],
    "pixelation": [{"size": 0}, {"size": "2.5"}],
    "obfuscation-blur": [{"variant": "as_released"}, {"radius": 0}],
    "obfuscation-overlay": [{"colour": "black"}],
    "dp-pix": [{"eps": 0.0}, {"eps": math.inf}, {"block": 0}, {"m": 0}, {"block": 2.5}, {"variant": "x"}],
    "dp-snow": [{"delta": 1.01}, {"delta": -0.1}, {"d": 0.5}],
    "dp-samp": [{"eps": -1.0}, {"eps": math.nan}, {"k": 0}, {"m": 0}, {"threshold": -1.0}, {"variant": "x"}],
    "block-permutation": [{"block": 0}, {"block": "a"}, {"key": 3}],
    "pixel-relocation": [{"steps": 0}, {"variant": "secret"}],
    "k-rtio": [{"alpha": 0.0}, {"alpha": 1.5}, {"alpha": math.nan}, {"block": 0}, {"k": 0}],
    "k-same-pixel": [{"k": 1}, {"variant": "genuine"}],
    "fawkes": [{"steps": 0}],
    "external": [{"timeout": 0}, {"command": "x {input}"}, {"command": "{input} {output}"}, {"command": "x '{input}"}],
    "defended": [
        {"method": "gaussian-blurr"},
        {"method": "gaussian-blur:kernel=8"},
        {"defence": "rotate"},
        {"defence": "jpeg:quality=101"},
        {"method": "block-permutation:key=hush"},
    ],
}


@pytest.mark.parametrize(("name", "given"), [(name, given) for name, sets in WRONG.items() for given in sets])
def test_parameters(name: str, given: dict[str, object]) -> None:
    with pytest.raises(UsageError) as caught:
        ANONYMIZERS.make(name, **given)
    assert "\n" not in str(caught.value) and "hush" not in str(caught.value)


def crops(side: int = 9, count: int = 2, people: list[int] | None = None, level: int | None = None) -> Faces:
    images = np.random.default_rng(side).integers(0, 256, (count, side, side, 3), dtype=np.uint8)
    if level is not None:
        images[:] = level
    return Faces(images, tuple(map(str, range(count))), people=None if people is None else np.array(people))


def eyes(*points: tuple[float, float]) -> Faces:
    marks = np.zeros((1, 5, 2), np.float32)
    marks[0, :2] = points
    return Faces(np.zeros((1, 16, 16, 3), np.uint8), ("a",), marks)


IMAGE = photo(9, 9)
BOX = [[1, 1, 4, 4]]
OVERLAYS = np.zeros((4, 8, 8, 3), np.uint8)
CALLS: list[tuple[Callable[[], Any], type[Exception]]] = [
    (lambda: Solid(colour="#12345"), UsageError),
    (lambda: EyeMask()(eyes((5, 5), (5, 5))), InputError),
    (lambda: EyeMask()(eyes((math.nan, 5), (9, 5))), InputError),
    (lambda: EyeMask()(eyes((-90, 5), (-80, 5))), InputError),
    *(
        (lambda v=v: ANONYMIZERS.make("pixelation", variant=v)(crops(16)), UsageError)
        for v in ("as_described", "as_released")
    ),
    (lambda: ANONYMIZERS.make("block-permutation", block=32)(crops(63)), UsageError),
    (lambda: ANONYMIZERS.make("pixel-relocation", steps=25)(crops(5)), UsageError),
    *((lambda b=b: obfuscate_blur(IMAGE, b), InputError) for b in ([[1, 2, 3]], [[0, 0, math.nan, 5]], [1, 2, 3, 4])),
    *((lambda b=b: obfuscate_overlay(IMAGE, b), InputError) for b in ([[1, 2, 3]], [[0, 0, math.inf, 5]])),
    (lambda: obfuscate_blur(IMAGE.astype(float), BOX), InputError),
    (lambda: obfuscate_overlay(IMAGE[..., 0], BOX), InputError),
    (lambda: ObfuscationBlur()(Faces(IMAGE[None], ("a",), np.zeros((1, 5, 2), np.float32))), InputError),
    (lambda: KRtio(overlays=OVERLAYS[:2]), UsageError),
    (lambda: KRtio()(crops()), UsageError),
    (lambda: KRtio(overlays=OVERLAYS[:0], variant="as_released"), UsageError),
    (lambda: KRtio(variant="as_released").invert(crops()), UsageError),
    (lambda: KSamePixel(k=6).fit(crops(9, 8, [0, 0, 1, 1, 2, 2, 3, 3])), UsageError),
    (lambda: KSamePixel(k=3).fit(crops(9, 8)), InputError),
    (lambda: KSamePixel(k=3).fit(crops(9, 3, [0, -1, 2])), InputError),
    (lambda: KSamePixel(k=3).fit(crops(12, 4, [0, 1, 2, 3]))(crops(9)), InputError),
    (lambda: KSamePixel(k=2).fit(crops(9, 1, [0])), UsageError),
    (lambda: KSamePixel(k=2).fit(crops(4, 3, [0, 1, 2], level=9)), InputError),
    (lambda: KSamePixel(k=2)(crops()), UsageError),
    *((lambda t=t: Fawkes(verifier=t)(crops()), UsageError) for t in ("", " + ", "onnx:a+", "face.pt")),
    (lambda: Fawkes(verifier="onnx:no/such.onnx")(crops()), InputError),
    (lambda: External()(crops()), UsageError),
    (lambda: External(command="x {input} {output}", folder="y"), UsageError),
    (lambda: External(command="no-such-program-here {input} {output}")(crops()), UsageError),
    (lambda: cover(ANONYMIZERS.make("solid"), photo(), face(60, 40, 60), name="a", mask_scale=0), UsageError),
    (lambda: Faces(noise().images, ("a",)), InputError),
]


@pytest.mark.parametrize("number", range(len(CALLS)))
def test_calls(number: int) -> None:
    call, kind = CALLS[number]
    with pytest.raises(kind) as caught:
        call()
    assert "\n" not in str(caught.value)
