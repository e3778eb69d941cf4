"""Synthetic people: mixtures of a few scanned ones, deformed smoothly, with expressions of the scanned ones."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.transform import Rotation

from ficgan.anonymizers.base import generator
from ficgan.errors import InputError, UsageError
from ficgan.pointcloud.cloud import Cloud
from ficgan.pointcloud.morphs.fields import mirrored_bases
from ficgan.pointcloud.morphs.paint import albedo
from ficgan.pointcloud.neighbours import search

__all__ = ["NEUTRAL", "MorphModel", "MorphScan", "Variety"]

Array = NDArray[Any]
NEUTRAL = "neutral"
NOSE_TIP = 30
NEAR = 6


@dataclass(frozen=True)
class Variety:
    """How different synthetic people and their scans are.

    Args:
        beyond: how far a mixture may leave the scanned people: a share of one of them may be as low as minus this.
        fields: (length scale, amplitude) of the deformations of a person, metres.
        skewness: share of a deformation's variance that is not mirrored about the symmetry plane.
        stretch: standard deviation of a person's width, height and depth.
        mood: a scan of an expression has so much of another, at random.
        strength: standard deviation of an expression's strength around 1.
        tilt: degrees, the largest turn of a scan about each axis.
        noise: standard deviation of a point, metres.
    """

    beyond: float = 0.3
    fields: tuple[tuple[float, float], ...] = ((0.04, 0.0012), (0.02, 0.0006))
    skewness: float = 0.05
    stretch: float = 0.015
    mood: float = 0.12
    strength: float = 0.12
    tilt: float = 2.0
    noise: float = 0.00015


@dataclass(frozen=True)
class MorphScan:
    """A scan of somebody synthetic.

    Args:
        cloud: in the canonical frame, but for the small turn that a scan has.
        landmarks: [68,3] metres, in the cloud's frame.
    """

    cloud: Cloud
    landmarks: NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class MorphModel:
    """People that never were, from a few that were scanned; `ficgan.pointcloud.morphs.build_morphs` makes it.

    The scans are personal data, and so is this model: mixtures show features of those scanned.

    Args:
        people: [P,N,3] float32 metres: each person at rest, point i at the same place of the face; canonical frame.
        moods: [E,N,3] float32: expressions as differences from their own person at rest.
        names: [E] what each of `moods` is called.
        marks: [68] which points are the landmarks.
        covers: [N,6], as of `ficgan.pointcloud.morphs.paint.regions`.
        tones: [P,N,3] uint8 colours of the people, or None: colours are made up.
        variety: how different the synthetic ones are.
    """

    people: NDArray[np.float32]
    moods: NDArray[np.float32]
    names: tuple[str, ...]
    marks: NDArray[np.int64]
    covers: NDArray[np.float32]
    tones: NDArray[np.uint8] | None = None
    variety: Variety = field(default_factory=Variety)

    @property
    def expressions(self) -> tuple[str, ...]:
        """What `sample` can be asked for."""
        return (NEUTRAL, *sorted(set(self.names)))

    @cached_property
    def mean(self) -> NDArray[np.float32]:
        """The mean person [N,3]."""
        return np.asarray(self.people.mean(axis=0))

    @cached_property
    def _bases(self) -> list[tuple[Array, Array]]:
        return [mirrored_bases(self.mean.astype(float), scale) for scale, _ in self.variety.fields]

    @cached_property
    def _near(self) -> Array:
        return np.asarray(search(self.mean, self.mean, NEAR + 1)[1][:, 1:])

    def sample(
        self, person: int, *, expression: str = NEUTRAL, scan: int = 0, points: int | None = None, colour: bool = True
    ) -> Cloud:
        """A scan of somebody synthetic; see `scanned`, of which it is the cloud."""
        return self.scanned(person, expression=expression, scan=scan, points=points, colour=colour).cloud

    def scanned(
        self, person: int, *, expression: str = NEUTRAL, scan: int = 0, points: int | None = None, colour: bool = True
    ) -> MorphScan:
        """A scan of somebody synthetic, with its landmarks.

        Args:
            person: seed of who it is.
            expression: one of `expressions`.
            scan: seed of what differs from one scan of a person to the next: strength of the expression, pose, which
                places of the surface are sampled, noise.
            points: how many; None: as many as the template has.
            colour: with colours (without light); otherwise none.

        Raises:
            UsageError: an unknown expression, or more points than the template has.
        """
        whole = self.people.shape[1]
        if expression not in self.expressions:
            raise UsageError(f"no scan shows {expression!r}; use one of {', '.join(self.expressions)}")
        if points is not None and not 1 <= points <= whole:
            raise UsageError(f"a morph has 1 to {whole} points, not {points}")
        rng = generator("scan of a morph", person, expression, scan)
        shape = self.identity(person) + self._mood(expression, rng)
        shape -= shape[self.marks[NOSE_TIP]]
        turn = Rotation.from_euler(
            "xyz", rng.uniform(-self.variety.tilt, self.variety.tilt, 3), degrees=True
        ).as_matrix()
        shape = shape @ turn.T.astype(np.float32)
        rows = rng.permutation(whole)[: points or whole]
        # Other places of the same surface: with the same ones, scans of anybody would differ in noise alone.
        other = self._near[rows, rng.integers(NEAR, size=len(rows))]
        share = np.float32(0.5) * rng.random((len(rows), 1), dtype=np.float32)
        spots = shape[rows] + share * (shape[other] - shape[rows])
        spots += self.variety.noise * rng.standard_normal(spots.shape, dtype=np.float32)
        colors = self.colors(person)[rows] if colour else None
        return MorphScan(Cloud(spots, colors), shape[self.marks].astype(float))

    def identity(self, person: int) -> NDArray[np.float32]:
        """Somebody at rest [N,3] float32.

        Args:
            person: seed.
        """
        rng, variety = generator("morph", person), self.variety
        shape = np.tensordot(self._shares(rng), self.people, axes=1)
        share = np.sqrt([1.0 - variety.skewness, variety.skewness])
        for (_, amplitude), (same, opposite) in zip(variety.fields, self._bases, strict=True):
            even, odd = amplitude * share[:, None, None] * rng.standard_normal((2, same.shape[1], 3))
            # Mirroring keeps x and y and turns z round: of what is mirrored, x and y are the same on both sides.
            shape += same @ np.column_stack([even[:, :2], odd[:, 2]]).astype(np.float32)
            shape += opposite @ np.column_stack([odd[:, :2], even[:, 2]]).astype(np.float32)
        return np.asarray(shape * (1.0 + variety.stretch * rng.standard_normal(3)).astype(np.float32))

    def _shares(self, rng: np.random.Generator) -> NDArray[np.float32]:
        """Of the scanned people in a mixture; they sum to 1."""
        count, beyond = len(self.people), self.variety.beyond
        return np.asarray(rng.dirichlet(np.ones(count)) * (1.0 + count * beyond) - beyond, np.float32)

    def _mood(self, expression: str, rng: np.random.Generator) -> NDArray[np.float32]:
        weights = np.zeros(len(self.names))
        shown = [index for index, name in enumerate(self.names) if name == expression]
        strength = 1.0 + self.variety.strength * float(np.clip(rng.standard_normal(), -2.0, 2.0))
        weights[shown] = strength * rng.dirichlet(np.ones(len(shown))) if shown else 0.0
        if len(weights):
            weights[rng.integers(len(weights))] += self.variety.mood * float(rng.uniform(-0.5, 1.0))
        return np.asarray(np.tensordot(weights.astype(np.float32), self.moods, axes=1))

    def colors(self, person: int) -> NDArray[np.uint8]:
        """Somebody's colours [N,3], without light.

        Args:
            person: seed.
        """
        rng = generator("colours of a morph", person)
        same, _ = self._bases[0]
        pattern = same @ rng.standard_normal((same.shape[1], 2)).astype(np.float32)
        if self.tones is None:
            return albedo(self.covers, pattern, rng)
        shares = np.clip(self._shares(generator("morph", person)), 0.0, None)
        mixed = np.tensordot(shares / shares.sum(), self.tones.astype(np.float32), axes=1)
        return np.clip(np.rint(mixed * (1.0 + 0.03 * pattern[:, :1])), 0, 255).astype(np.uint8)

    def save(self, path: Path | str) -> None:
        """Write the model to an npz file, in the user's folder: it is made of people's scans.

        Args:
            path: ends in .npz.
        """
        held: dict[str, Any] = {name: getattr(self, name) for name in ("people", "moods", "marks", "covers")}
        held |= {"names": np.array(self.names, np.str_)} | ({} if self.tones is None else {"tones": self.tones})
        held |= {f"variety_{name}": np.array(value) for name, value in vars(self.variety).items()}
        with Path(path).open("wb") as file:
            np.savez_compressed(file, **held)

    @classmethod
    def load(cls, path: Path | str) -> MorphModel:
        """A model from its file.

        Raises:
            InputError: the file is not one.
        """
        try:
            with Path(path).open("rb") as file, np.load(file, allow_pickle=False) as held:
                found = {name: held[name] for name in held.files}
            given = {name[8:]: found.pop(name).tolist() for name in list(found) if name.startswith("variety_")}
            given["fields"] = tuple((scale, amplitude) for scale, amplitude in given["fields"])
            names = tuple(str(name) for name in found.pop("names"))
            return cls(**found, names=names, variety=Variety(**given))
        except (OSError, ValueError, KeyError, TypeError, EOFError, BadZipFile) as error:
            raise InputError(f"{path} is not a model of morphs ({error}); make it with build_morphs") from None
