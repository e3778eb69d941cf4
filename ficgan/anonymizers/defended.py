"""Changes by a publisher after hiding a face, so that an attacker's model meets images it was not trained on."""

from __future__ import annotations

import io
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, TypeVar, cast

import numpy as np

from ficgan.anonymizers.base import ANONYMIZERS, Anonymizer, Faces, Images, Traits, generator, nearest_grey
from ficgan.anonymizers.basic import scaled_kernel
from ficgan.errors import UsageError
from ficgan.registry import Parametrised, Registry, param, parse_spec

P = TypeVar("P", bound=Parametrised)


@dataclass(frozen=True)
class Defence(Parametrised):
    """A step after the anonymiser's, one image at a time."""

    title: ClassVar[str]
    stochastic = False

    @abstractmethod
    def apply(self, hidden: Images, clear: Images, rng: np.random.Generator) -> Images:
        """The published image, from the anonymiser's and the clear one, [S,S,3] uint8; all is drawn from `rng`."""


# Revelio's four (§6, Appendix D) with its settings as defaults, and a random choice of them.
DEFENCES: Registry[Defence] = Registry("defence")


@DEFENCES.add
class Rotation(Defence):
    """Turned about its middle, with mirrored borders; quarter turns are exact (Revelio, appendix D, 180°)."""

    angle: float = param(180.0, "degrees, against the clock", low=-360, high=360)

    name = "rotation"
    title = "rotated"

    def apply(self, hidden: Images, clear: Images, rng: np.random.Generator) -> Images:
        if self.angle % 90 == 0:
            return np.ascontiguousarray(np.rot90(hidden, int(self.angle) // 90))
        import cv2

        side = len(hidden)
        turn = cv2.getRotationMatrix2D(((side - 1) / 2, (side - 1) / 2), self.angle, 1.0)
        return cast(Images, cv2.warpAffine(hidden, turn, (side, side), borderMode=cv2.BORDER_REFLECT_101))


@DEFENCES.add
class Noise(Defence):
    """Gaussian noise on every channel of every pixel (Revelio, appendix D: σ = .1 of images in 0…1)."""

    sigma: float = param(0.1, "standard deviation as a share of full scale", low=0.001, high=10.0)

    name = "noise"
    title = "noise added"
    stochastic = True

    def apply(self, hidden: Images, clear: Images, rng: np.random.Generator) -> Images:
        noise = rng.standard_normal(hidden.shape, np.float32) * np.float32(255 * self.sigma)
        return nearest_grey(hidden + noise)


@DEFENCES.add
class Jpeg(Defence):
    """Written as a JPEG file by Pillow and read again (Revelio, appendix D: quality 75)."""

    quality: int = param(75, "Pillow's quality", low=1, high=100)

    name = "jpeg"
    title = "JPEG"

    def apply(self, hidden: Images, clear: Images, rng: np.random.Generator) -> Images:
        from PIL import Image

        file = io.BytesIO()
        Image.fromarray(hidden).save(file, "JPEG", quality=self.quality)
        return np.asarray(Image.open(file).convert("RGB"))


@DEFENCES.add
class BoxInstead(Defence):
    """A box blur of the clear face in place of the anonymiser's image, or after it (Revelio, §6, appendix D)."""

    kernel: int = param(31, "side of the square in a crop of 256 px", low=3, high=1001)
    after: bool = param(False, "blur the anonymiser's image, not the clear one")

    name = "box"
    title = "box blur"

    def apply(self, hidden: Images, clear: Images, rng: np.random.Generator) -> Images:
        import cv2

        side = max(3, scaled_kernel(self.kernel, len(hidden)))
        return cast(Images, cv2.blur(hidden if self.after else clear, (side, side)))


@DEFENCES.add
class RandomDefence(Defence):
    """Another defence for every image (Revelio, §6; the ranges are ours); secret only with `Defended.key`."""

    name = "random"
    title = "a random defence"
    stochastic = True

    def apply(self, hidden: Images, clear: Images, rng: np.random.Generator) -> Images:
        return self.drawn(rng).apply(hidden, clear, rng)

    def drawn(self, rng: np.random.Generator) -> Defence:
        """One of the four; every one is as likely as the others."""
        choices: tuple[Defence, ...] = (
            Rotation(angle=rng.uniform(0, 360)),
            Noise(sigma=rng.uniform(0.03, 0.2)),
            Jpeg(quality=int(rng.integers(20, 91))),
            BoxInstead(kernel=int(rng.integers(8, 31)) * 2 + 1, after=bool(rng.integers(2))),
        )
        return choices[rng.integers(len(choices))]


@ANONYMIZERS.add
class Defended(Anonymizer):
    """An anonymiser, then a defence: `defended:method=gaussian-blur:kernel=37,defence=jpeg` (Revelio, §6).

    Traits are the method's, but no key undoes it.
    """

    method: str | Anonymizer = param("gaussian-blur:kernel=37", "an anonymiser; parameters parted by ;")
    defence: str | Defence = param("jpeg", "rotation, noise, jpeg, box or random; parameters parted by ;")
    key: str = param("", "secret of what the defence draws; empty: made from the seed", secret=True)
    seed: int = 0  # of the defence's random numbers; added to the method's own

    name = "defended"
    traits = Traits("Defended blur", "basic", "Revelio, §6")

    def __post_init__(self) -> None:
        super().__post_init__()
        method, defence = _made(self.method, ANONYMIZERS), _made(self.defence, DEFENCES)
        for name, value in {"method": method, "defence": defence, "traits": method.traits}.items():
            object.__setattr__(self, name, value)
        title, stochastic = f"{method.traits.title}, {defence.title}", method.traits.stochastic or defence.stochastic
        self.declare(title=title, strength=None, keyed=False, stochastic=stochastic)

    @property
    def crop_side(self) -> int | None:
        return cast(Anonymizer, self.method).crop_side

    def __call__(self, faces: Faces) -> Images:
        method, defence = cast(Anonymizer, self.method), cast(Defence, self.defence)
        if self.seed and method.traits.stochastic and hasattr(method, "seed"):
            method = replace(method, seed=method.seed + self.seed)  # type: ignore[call-arg]
        hidden = method(faces)
        pairs = zip(hidden, faces.images, faces.names, strict=True)
        made = [defence.apply(image, clear, self._rng(name)) for image, clear, name in pairs]
        return np.stack(made) if made else hidden

    def upright(self, images: Images, names: Sequence[str]) -> Images:
        """Images [N,S,S,3] of these names turned back by what they were turned: as whoever looks at them holds them."""
        out = images.copy()
        for image, name in zip(out, names, strict=True):
            rng = self._rng(name)
            defence = self.defence.drawn(rng) if isinstance(self.defence, RandomDefence) else self.defence
            if isinstance(defence, Rotation):
                image[:] = replace(defence, angle=-defence.angle).apply(image, image, rng)
        return out

    def _rng(self, name: str) -> np.random.Generator:
        return generator(self.seed, self.key, "defence", cast(Defence, self.defence).name, name)

    def fit(self, background: Faces) -> Defended:
        return replace(self, method=cast(Anonymizer, self.method).fit(background))

    def settings(self) -> dict[str, Any]:
        """The method and the defence as texts, without secrets."""
        return {"method": spec_of(cast(Anonymizer, self.method)), "defence": spec_of(cast(Defence, self.defence))}


def spec_of(made: Parametrised) -> str:
    """The text that asks for something with parameters inside another text: no defaults, no secrets."""
    default = {field.name: field.default for field, _ in made.parameters()}
    parts = [f"{key}={value}" for key, value in made.settings().items() if value != default.get(key)]
    return ":".join(filter(None, [made.name, ";".join(parts)]))


def _made(given: str | P, registry: Registry[P]) -> P:
    if not isinstance(given, str):
        return given
    name, parameters = parse_spec(given.replace(";", ","))
    secrets = {field.name for field, limits in registry[name].parameters() if limits["secret"]}
    if secrets & {key.replace("-", "_") for key in parameters}:
        raise UsageError(f"defended: a text may hold no key of {name}; make it first and give it whole")
    return registry.make(name, **parameters)
