"""Morphs: synthetic people from a few scans, for evaluations that need hundreds.

People are mixtures of the scanned ones, deformed smoothly. The scans are personal data, and so is the model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray
from scipy.interpolate import RBFInterpolator
from scipy.linalg import solve_triangular
from scipy.sparse import csr_array
from scipy.spatial import cKDTree
from scipy.spatial.distance import cdist
from scipy.spatial.transform import Rotation
from skimage.measure import points_in_poly

from ficgan.anonymizers.base import generator
from ficgan.errors import InputError, UsageError
from ficgan.pointcloud.cloud import Cloud, closest, moved, search
from ficgan.pointcloud.files import read_cloud
from ficgan.pointcloud.geometry import rigid_fit
from ficgan.pointcloud.heads import between
from ficgan.pointcloud.landmarks import (
    FaceLandmarks,
    landmark_file_beside,
    landmark_frame,
    need_on_cloud,
    read_landmarks,
)

Array = NDArray[Any]

NEUTRAL = "neutral"
MARKS = 68
NOSE_TIP = 30
STILL = [0, 1, 15, 16, 27, 28, 29, 36, 39, 42, 45]
"""Landmarks that expressions hardly move: before the ears, the bridge of the nose, corners of the eyes."""
REACH = 0.028  # Metres from the landmarks in which expressions move a face
NEAR = 6  # Neighbours towards which a scan samples other places of the surface
NEIGHBOURS = 10  # Points of a patch: its normal, and what displacements are averaged over
INSIDE = np.array([-0.10, 0.01, 0.0])  # Within a head in the canonical frame; normals point away from here
ROUNDS = (160, 80, 40, 20, 10, 6)
"""For each round of the fit, how often displacements are averaged over neighbours: from stiff to soft."""
PULL = 0.012  # Metres; nearest points farther than this in the first round, and half of it in the last, do not pull
SLANT = 0.6  # Cosine between normals below which nearest points do not pull
MIRROR = np.array([1.0, 1.0, -1.0])
JITTER = 1e-4
SPACING = 0.9
SKINS = np.array([[98, 64, 48], [148, 98, 70], [192, 138, 106], [220, 173, 143], [238, 204, 184]], float)
HAIRS = np.array([[24, 20, 18], [54, 36, 24], [110, 78, 48], [150, 146, 140]], float)
IRISES = np.array([[46, 28, 18], [92, 62, 30], [70, 92, 70], [66, 104, 140]], float)
EDGE = 0.0006  # Metres over which a painted region fades


@dataclass(frozen=True)
class Variety:
    beyond: float = 0.3  # a share of a scanned person in a mixture may be as low as minus this
    fields: tuple[tuple[float, float], ...] = ((0.04, 0.0012), (0.02, 0.0006))  # metres: length scale, amplitude
    skewness: float = 0.05  # share of a deformation's variance that is not mirrored about the symmetry plane
    stretch: float = 0.015  # standard deviation of a person's width, height and depth
    mood: float = 0.12  # a scan of an expression has so much of another, at random
    strength: float = 0.12  # standard deviation of an expression's strength around 1
    tilt: float = 2.0  # degrees, the largest turn of a scan about each axis
    noise: float = 0.00015  # metres, standard deviation of a point


@dataclass(frozen=True)
class MorphScan:
    """A scan of somebody synthetic: cloud and landmarks [68,3] in one frame, canonical but for a small turn; metres."""

    cloud: Cloud
    landmarks: NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class MorphModel:
    """People that never were, from a few that were scanned."""

    people: NDArray[np.float32]  # [P,N,3] metres: each person at rest, point i at the same place; canonical frame
    moods: NDArray[np.float32]  # [E,N,3] expressions as differences from their own person at rest
    names: tuple[str, ...]  # [E]
    marks: NDArray[np.int64]  # [68] which points are the landmarks
    covers: NDArray[np.float32]  # [N,6], as of `regions`
    tones: NDArray[np.uint8] | None = None  # [P,N,3] colours of the people; None: colours are made up
    variety: Variety = field(default_factory=Variety)

    @property
    def expressions(self) -> tuple[str, ...]:
        """What `scanned` can be asked for."""
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

    def scanned(self, person: int, *, expression: str = NEUTRAL, scan: int = 0) -> MorphScan:
        """A scan of somebody synthetic; `person` seeds who it is, `scan` what differs between scans of a person."""
        if expression not in self.expressions:
            raise UsageError(f"no scan shows {expression!r}; use one of {', '.join(self.expressions)}")
        rng = generator("scan of a morph", person, expression, scan)
        shape = self.identity(person) + self._mood(expression, rng)
        shape -= shape[self.marks[NOSE_TIP]]
        angles = rng.uniform(-self.variety.tilt, self.variety.tilt, 3)
        shape = shape @ Rotation.from_euler("xyz", angles, degrees=True).as_matrix().T.astype(np.float32)
        rows = rng.permutation(len(shape))
        # Other places of the same surface: with the same ones, scans of anybody would differ in noise alone.
        other = self._near[rows, rng.integers(NEAR, size=len(rows))]
        share = np.float32(0.5) * rng.random((len(rows), 1), dtype=np.float32)
        spots = shape[rows] + share * (shape[other] - shape[rows])
        spots += self.variety.noise * rng.standard_normal(spots.shape, dtype=np.float32)
        return MorphScan(Cloud(spots, self.colors(person)[rows]), shape[self.marks].astype(float))

    def identity(self, person: int) -> NDArray[np.float32]:
        """Somebody at rest [N,3], by a seed."""
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
        """Somebody's colours [N,3], without light, by a seed."""
        rng = generator("colours of a morph", person)
        same, _ = self._bases[0]
        pattern = same @ rng.standard_normal((same.shape[1], 2)).astype(np.float32)
        if self.tones is None:
            return albedo(self.covers, pattern, rng)
        shares = np.clip(self._shares(generator("morph", person)), 0.0, None)
        mixed = np.tensordot(shares / shares.sum(), self.tones.astype(np.float32), axes=1)
        return np.clip(np.rint(mixed * (1.0 + 0.03 * pattern[:, :1])), 0, 255).astype(np.uint8)

    def save(self, path: Path | str) -> None:
        """Write the model to an npz file, in the user's folder: it is made of people's scans."""
        held: dict[str, Any] = {name: getattr(self, name) for name in ("people", "moods", "marks", "covers")}
        held |= {"names": np.array(self.names, np.str_)} | ({} if self.tones is None else {"tones": self.tones})
        held |= {f"variety_{name}": np.array(value) for name, value in vars(self.variety).items()}
        with Path(path).open("wb") as file:
            np.savez_compressed(file, **held)

    @classmethod
    def load(cls, path: Path | str) -> MorphModel:
        """A model from its file."""
        try:
            with Path(path).open("rb") as file, np.load(file, allow_pickle=False) as held:
                found = {name: held[name] for name in held.files}
            given = {name[8:]: found.pop(name).tolist() for name in list(found) if name.startswith("variety_")}
            given["fields"] = tuple((scale, amplitude) for scale, amplitude in given["fields"])
            names = tuple(str(name) for name in found.pop("names"))
            return cls(**found, names=names, variety=Variety(**given))
        except (OSError, ValueError, KeyError, TypeError, EOFError, BadZipFile) as error:
            raise InputError(f"{path} is not a model of morphs ({error}); make it with build_morphs") from None


# -- building a model -------------------------------------------------------------------------------------------------


def morphs_of_folder(folder: Path | str, progress: Callable[[int, int], object] | None = None) -> MorphModel:
    """A model from a folder of scans PERSON_EXPRESSION.ply (or another kind), each with landmarks beside it."""
    found = [path for path in sorted(Path(folder).iterdir()) if landmark_file_beside(path) and "_" in path.stem]
    scans = [path for path in found if path.suffix.lower() in (".ply", ".obj", ".xyz", ".asc", ".pcd")]
    if not scans:
        raise InputError(f"{folder} has no scans PERSON_EXPRESSION.ply with a file of landmarks beside them")
    people, _, expressions = zip(*(path.stem.partition("_") for path in scans), strict=True)
    marks = [read_landmarks(str(landmark_file_beside(path))) for path in scans]
    return build_morphs([read_cloud(path) for path in scans], marks, people, expressions, progress=progress)


def build_morphs(
    clouds: Sequence[Cloud],
    landmarks: Sequence[FaceLandmarks],
    people: Sequence[str],
    expressions: Sequence[str],
    *,
    progress: Callable[[int, int], object] | None = None,
) -> MorphModel:
    """A model of synthetic people from scans of a few, metres, each with 68 landmarks."""
    if not len(clouds) == len(landmarks) == len(people) == len(expressions):
        raise UsageError("clouds, landmarks, people and expressions must be lists of one length")
    if len(set(people)) < 2:
        raise UsageError("morphs need scans of two people or more")
    placed = [_placed(cloud, marks) for cloud, marks in zip(clouds, landmarks, strict=True)]
    first = list(expressions).index(NEUTRAL) if NEUTRAL in expressions else 0
    points, marks = placed[first]
    base, shapes = Sheet.of(points), []
    for number, (scan, goals) in enumerate(placed):
        shapes.append(points if number == first else fitted(base, marks, Sheet.of(scan), goals))
        if progress:
            progress(number + 1, len(placed))
    rest = {}
    for person in dict.fromkeys(people):
        own = [number for number, name in enumerate(people) if name == person]
        rest[person] = next((number for number in own if expressions[number] == NEUTRAL), own[0])
    moods = [number for number in range(len(shapes)) if number != rest[people[number]]]
    at = np.asarray(closest(points, marks)[1], np.int64)
    moving = _moving(points, marks)
    differences = [moving * _difference(shapes[number], shapes[rest[people[number]]], at) for number in moods]
    tones = [
        colors[closest(placed[number][0], shapes[number])[1]]
        for number in rest.values()
        if (colors := clouds[number].colors) is not None
    ]
    return MorphModel(
        np.stack([shapes[number] for number in rest.values()]).astype(np.float32),
        np.array(differences, np.float32).reshape(len(moods), len(points), 3),
        tuple(expressions[number] for number in moods),
        at,
        regions(points, marks),
        np.stack(tones) if len(tones) == len(rest) else None,
    )


def _placed(cloud: Cloud, marks: FaceLandmarks) -> tuple[Array, Array]:
    if len(marks.points) < MARKS:
        raise InputError(f"morphs need {MARKS} landmarks of each scan, not {len(marks.points)}")
    need_on_cloud(marks, cloud)
    frame = landmark_frame(marks)
    return cloud.moved(frame).points, moved(marks.points[:MARKS], frame)


def _difference(shown: Array, rest: Array, at: NDArray[np.int64]) -> Array:
    """What an expression moves [N,3], after the landmarks that hardly move have been laid on each other."""
    still = at[STILL]
    return moved(shown, rigid_fit(shown[still], rest[still])) - rest


def _moving(points: Array, marks: Array) -> Array:
    """1 where expressions move a face, 0 far from its features [N,1]: there scans differ by noise alone."""
    away = closest(marks[[*range(5, 12), *range(17, MARKS)]], points)[0]
    return np.asarray(0.5 - 0.5 * np.tanh((away - REACH) / (0.3 * REACH)))[:, None]


@dataclass(frozen=True)
class Sheet:
    """A cloud with what is needed to smooth over it."""

    points: Array  # [N,3] metres
    normals: Array  # [N,3] unit, away from `INSIDE`
    average: csr_array  # [N,N], rows sum to 1: the mean over a point's neighbours
    neighbours: Array  # [N,k] indices

    @classmethod
    def of(cls, points: Array) -> Sheet:
        """Of points [N,3] of a head in the canonical frame."""
        _, near = search(points, points, NEIGHBOURS)
        count = len(points)
        places = (np.repeat(np.arange(count), NEIGHBOURS), near.ravel())
        named = csr_array((np.ones(count * NEIGHBOURS, np.float32), places), shape=(count, count))
        both = named + named.T  # else points that nobody names would not take part
        share = csr_array((1.0 / both.sum(axis=1), (np.arange(count), np.arange(count))), shape=(count, count))
        return cls(points, _normals(points, near), (share @ both).astype(np.float32), near[:, 1:])


def _normals(points: Array, near: Array) -> Array:
    """Unit normals [N,3] of the planes through points' neighbours [N,k], away from `INSIDE`."""
    patch = points[near] - points[near].mean(axis=1, keepdims=True)
    normals = np.linalg.eigh(np.einsum("nki,nkj->nij", patch, patch))[1][:, :, 0]
    return np.asarray(normals * np.where(np.einsum("nc,nc->n", normals, points - INSIDE) < 0, -1.0, 1.0)[:, None])


def fitted(template: Sheet, marks: Array, scan: Sheet, goals: Array) -> Array:
    """The template's points [N,3] moved onto a scan; where it has no surface nearby, they follow their neighbours.

    Thin plate (Bookstein 1989) on landmarks [L,3], then rounds of a light non-rigid ICP (after Amberg et al. 2007).
    """
    warp = RBFInterpolator(marks, goals - marks, kernel="thin_plate_spline", smoothing=1e-6)
    points = template.points + warp(template.points)
    tree = cKDTree(scan.points)
    for number, steps in enumerate(ROUNDS):
        reach = PULL * (1.0 - 0.5 * number / (len(ROUNDS) - 1))
        away, near = tree.query(points, distance_upper_bound=reach)
        pulled = np.flatnonzero(np.isfinite(away))
        at = near[pulled]
        faces = _normals(points, np.column_stack([np.arange(len(points)), template.neighbours]))
        alike = np.einsum("nc,nc->n", faces[pulled], scan.normals[at]) > SLANT
        pulled, at = pulled[alike], at[alike]
        pull = np.zeros((len(points), 4), np.float32)
        off = np.einsum("nc,nc->n", scan.points[at] - points[pulled], scan.normals[at])
        pull[pulled] = np.column_stack([off[:, None] * scan.normals[at], np.ones(len(at))])
        for _ in range(steps):
            pull = template.average @ pull
        points = points + pull[:, :3] / np.maximum(pull[:, 3:], 0.05)
    return points


# -- smooth random fields ---------------------------------------------------------------------------------------------


def basis(points: Array, scale: float) -> Array:
    """Functions [N,K] whose sums with standard normal weights are a Gaussian process on points [N,3].

    basis @ basisᵀ is the kernel exp(−d²/2·scale²), by Nyström's method (Rasmussen and Williams 2006, §8.1).
    """
    gap = SPACING * scale  # the middlemost point of each cell of a cubic grid
    cells = np.floor(points / gap).astype(np.int64)
    order = np.argsort(np.linalg.norm(points / gap - cells - 0.5, axis=1), kind="stable")
    centres = points[order[np.unique(cells[order], axis=0, return_index=True)[1]]]
    root = np.linalg.cholesky(_kernel(centres, centres, scale) + JITTER * np.eye(len(centres)))
    return np.asarray(solve_triangular(root, _kernel(points, centres, scale).T, lower=True).T.astype(np.float32))


def mirrored_bases(points: Array, scale: float) -> tuple[Array, Array]:
    """Bases [N,K] of the two halves of a Gaussian process: the same on both sides of z = 0, and opposite."""
    both = basis(np.concatenate([points, points * MIRROR]), scale)
    here, there = both[: len(points)], both[len(points) :]
    return (here + there) / np.float32(np.sqrt(2.0)), (here - there) / np.float32(np.sqrt(2.0))


def _kernel(a: Array, b: Array, scale: float) -> Array:
    return np.asarray(np.exp(-0.5 * cdist(a, b, "sqeuclidean") / scale**2))


# -- colours of people whose scans have none --------------------------------------------------------------------------


def regions(points: Array, marks: Array) -> NDArray[np.float32]:
    """How much of each point of the template is lip, brow, white of an eye, iris, pupil, lash [N,6], 0…1."""
    flat, lines = points[:, 1:], marks[:, 1:]
    lip = np.clip(_inside(flat, lines[48:60]) - _inside(flat, lines[60:68]), 0.0, 1.0)
    brow = np.maximum(*(_near_line(flat, lines[part], 0.0028) for part in (slice(17, 22), slice(22, 27))))
    eyes = np.zeros((4, len(points)))
    for ring in (lines[36:42], lines[42:48]):
        middle, width = ring.mean(axis=0), np.linalg.norm(ring[0] - ring[3])
        white = _inside(flat, ring)
        away = np.linalg.norm(flat - middle, axis=1)
        iris, pupil = _fade(0.21 * width - away), _fade(0.09 * width - away)
        lash = 0.7 * _near_line(flat, ring[:4], 0.0008)
        eyes = np.maximum(eyes, np.stack([white, white * iris, white * pupil, lash]))
    shown = points[:, 0] > marks[[0, 16], 0].mean()
    return np.asarray((np.column_stack([lip, brow, *eyes]) * shown[:, None]).astype(np.float32))


def albedo(covers: Array, pattern: Array, rng: np.random.Generator) -> NDArray[np.uint8]:
    """Colours [N,3], without light, of `regions` [N,6] under a smooth pattern [N,2] of variance 1."""
    tone, hair, iris = rng.random(3)
    skin, dark = between(SKINS, tone), between(HAIRS, hair)
    lips = skin * (0.55 - 0.2 * rng.random()) + np.array([150.0, 58.0, 62.0]) * (0.5 + 0.2 * tone)
    colors = skin * (1.0 + 0.03 * pattern[:, :1]) + pattern[:, 1:] * np.array([[1.0, -1.5, -1.5]])
    paints = [
        (0.8, lips),
        (0.4 + 0.5 * rng.random(), dark),
        (1.0, np.array([226.0, 222.0, 216.0])),
        (1.0, between(IRISES, iris)),
        (1.0, np.array([14.0, 12.0, 12.0])),
        (0.9, 0.6 * dark),
    ]
    for (share, paint), cover in zip(paints, covers.T, strict=True):
        colors = colors + (paint - colors) * (share * cover)[:, None]
    return np.clip(np.rint(colors), 0, 255).astype(np.uint8)


def _fade(depth: Array) -> Array:
    return np.asarray(0.5 + 0.5 * np.tanh(depth / EDGE))


def _inside(flat: Array, ring: Array) -> Array:
    edge = _distance(flat, np.concatenate([ring, ring[:1]]))
    return _fade(np.where(points_in_poly(flat, ring), edge, -edge))


def _near_line(flat: Array, line: Array, width: float) -> Array:
    return _fade(width - _distance(flat, line))


def _distance(flat: Array, line: Array) -> Array:
    steps = np.linspace(0.0, 1.0, 200)[:, None]
    dense = np.concatenate([a + steps * (b - a) for a, b in pairwise(line)])
    return closest(dense, flat)[0]
