"""What may be done to a blurred face besides: the post-processing steps of Revelio's defences, drawn or fixed."""

from __future__ import annotations

import io
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ficgan.anonymizers import BoxBlur, Faces, Images, generator
from ficgan.anonymizers.kernels import nearest_odd
from ficgan.evaluation.papers.revelio_lab import OF_256, Lab
from ficgan.evaluation.papers.treatment import Step, Treatment

__all__ = ["DEFENCES", "defended", "turned_back"]

DEFENCES = ("none", "rotation", "noise", "jpeg", "box blur", "secret")
"""The paper's, and the randomised one that its section 6 proposes."""
BOX = 31


@dataclass(frozen=True)
class Turned:
    """Turned by 180 degrees."""

    def __call__(self, faces: Faces) -> Images:
        return np.ascontiguousarray(faces.images[:, ::-1, ::-1])


@dataclass(frozen=True)
class Noisy:
    """Gaussian noise; sigma in grey levels, 25.5 is 0.1 of the range."""

    sigma: float = 25.5
    seed: int = 0

    def __call__(self, faces: Faces) -> Images:
        out = np.empty_like(faces.images)
        for index, (image, name) in enumerate(zip(faces.images, faces.names, strict=True)):
            noise = generator("defence", self.seed, name).standard_normal(image.shape) * self.sigma
            out[index] = np.clip(np.rint(image + noise), 0, 255)
        return out


@dataclass(frozen=True)
class Compressed:
    """From a JPEG file of this quality."""

    quality: int = 75

    def __call__(self, faces: Faces) -> Images:
        return np.stack([_jpeg(image, self.quality) for image in faces.images])


@dataclass(frozen=True)
class Secret:
    """One of the steps for each face, of a strength drawn with it: whoever does not know the seed cannot repeat it."""

    seed: int = 0

    def __call__(self, faces: Faces) -> Images:
        out = np.empty_like(faces.images)
        for index in range(len(faces)):
            one = faces.take([index])
            rng = generator("secret", self.seed, one.names[0])
            kind, strength = int(rng.integers(4)), float(rng.random())
            noise = Noisy(5 + 30 * strength, self.seed)
            box = BoxBlur(kernel=3 + 2 * int(4 * strength))
            out[index] = (Turned(), noise, Compressed(20 + int(70 * strength)), box)[kind](one)[0]
        return out


def defended(lab: Lab, name: str, *, seed: int = 0) -> Treatment:
    """Light blur and a defence after it; box blur takes the Gaussian's place.

    Args:
        lab: its size says how wide a box is.
        name: of `DEFENCES`.
        seed: of what is drawn.

    Source: Revelio, section 6 and appendix D.
    """
    if name == "box blur":
        return Treatment(name, (BoxBlur(kernel=max(3, nearest_odd(BOX * lab.paper.size / OF_256))),))
    after: dict[str, tuple[Step, ...]] = {
        "none": (), "rotation": (Turned(),), "noise": (Noisy(seed=seed),), "jpeg": (Compressed(),),
        "secret": (Secret(seed),),
    }  # fmt: skip
    return Treatment(name, (*lab.blur("light").steps, *after[name]))


def turned_back(guesses: Faces, name: str) -> Faces:
    """Guesses at turned faces as an attacker reads them, who sees which way is up."""
    if name != "rotation":
        return guesses
    return guesses.with_images(np.ascontiguousarray(guesses.images[:, ::-1, ::-1]))


def _jpeg(image: NDArray[np.uint8], quality: int) -> NDArray[np.uint8]:
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(image).save(file, format="JPEG", quality=quality)
    return np.asarray(Image.open(file))
