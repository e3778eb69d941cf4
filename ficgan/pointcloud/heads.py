"""Heads made of formulas, for tests, pictures, and runs without scans: skull and jaw with relief and paint.

Inside this file lengths are millimetres; features of the face are functions of (y, z) that move the front along x.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ficgan.anonymizers.base import generator
from ficgan.errors import UsageError
from ficgan.pointcloud.cloud import Cloud
from ficgan.pointcloud.landmarks import FaceLandmarks, landmark_frame

Array = NDArray[Any]

FEWEST = 100
"""Points of a made head."""
HEAD, EAR, NECK = 0, 1, 2
"""Parts of a made head."""
CENTRE = np.array([-95.0, 10.0, 0.0])
"""Inside the skull, before the head is shifted to its nose tip."""
GRAZING = -0.1
"""Scanners look from the front and, a little, from the sides: facets whose normal's x is below this are not seen."""
JAW = np.array([[33, 88], [10, 87], [-12, 85], [-30, 78], [-42, 68], [-53, 54], [-61, 38], [-67, 19]], float)
"""Where rays from `CENTRE` go: height at 75 mm, and degrees to the person's right; the jaw's points 0–7."""
SKINS = np.array([[92, 58, 42], [142, 92, 64], [192, 136, 102], [220, 171, 140], [240, 205, 184]], float)
HAIRS = np.array([[24, 20, 18], [54, 36, 24], [98, 66, 38], [186, 144, 84], [138, 134, 130]], float)
IRISES = np.array([[58, 34, 20], [92, 62, 30], [70, 92, 60], [66, 104, 140]], float)
LIGHT = np.array([0.86, 0.42, 0.28])
AMBIENT = 0.55


@dataclass(frozen=True)
class MadeHead:
    """A made head, as if scanned: cloud with normals and landmarks [68,3], in the canonical frame, metres.

    Landmarks: jaw 0–16 from the person's right, brows 17–26, nose 27–35 (30 is the tip), eyes 36–47, outer lips 48–59,
    inner lips 60–67.
    """

    cloud: Cloud
    landmarks: NDArray[np.float64]
    features: Features
    expression: Expression


def made_head(
    seed: int = 0,
    *,
    expression: float | str = 0.0,
    points: int = 45_000,
    colour: bool = True,
    scan: int = 0,
    noise: float = 0.0,
) -> MadeHead:
    """A parametric, cartoonish human head, its nose tip at the origin, sampled as a scanner in front of it would.

    Args:
        expression: −1 (corners of the mouth down) … 1 (a smile), or a name in `EXPRESSIONS`.
        scan: seed of the sampling: another one gives other points of the same surface.
        noise: standard deviation along the normal, metres.
    """
    if points < FEWEST or noise < 0:
        raise UsageError(f"a made head has {FEWEST} points or more and noise of 0 or more, not {points} and {noise}")
    face = Surface(Features.drawn(seed), Expression.of(expression))
    rng = generator("scan of a made head", seed, scan)
    spots, normals, parts = scanned(*mesh(face), points, rng)
    colors = painted(face, spots, normals, parts, rng) if colour else None
    spots = spots + 1000.0 * noise * rng.standard_normal((points, 1)) * normals
    marks = marked(face) / 1000.0
    upright = landmark_frame(FaceLandmarks.of_points(marks))
    cloud = Cloud(spots / 1000.0, colors, normals).moved(upright)
    return MadeHead(cloud, marks @ upright[:3, :3].T + upright[:3, 3], face.who, face.mood)


@dataclass(frozen=True)
class Expression:
    """What a face does; all 0: nothing."""

    smile: float = 0.0  # 1: corners of the mouth out and up; −1: down
    open: float = 0.0  # 1: the mouth 16 mm open, the jaw dropped
    brows: float = 0.0  # 1: raised by 6 mm; −1: drawn down and together
    lids: float = 0.0  # 1: both eyes shut; −1: wide open
    pout: float = 0.0  # 1: lips narrow and pushed out

    @classmethod
    def of(cls, given: float | str) -> Expression:
        """A smile in −1…1, or what has a name in `EXPRESSIONS`."""
        if not isinstance(given, str):
            return cls(smile=float(given))
        if given not in EXPRESSIONS:
            raise UsageError(f"there is no expression {given!r}; use one of {', '.join(EXPRESSIONS)}")
        return EXPRESSIONS[given]


EXPRESSIONS = {
    "neutral": Expression(),
    "smiling": Expression(smile=1.0, lids=0.25),
    "angry": Expression(smile=-0.6, brows=-1.0, lids=0.15),
    "surprised": Expression(open=0.9, brows=1.0, lids=-0.5),
    "eyes-closed": Expression(lids=1.0),
    "pouting": Expression(pout=1.0, brows=-0.2),
}


def _usual(mean: float, spread: float) -> float:
    return field(default=mean, metadata={"spread": spread})


def _any(mean: float) -> float:
    return field(default=mean, metadata={"spread": None})


@dataclass(frozen=True)
class Features:
    """Who somebody is. Lengths in millimetres from the middle of the skull or the nose; from `tone` on, 0…1."""

    skull: float = _usual(76.0, 2.5)
    crown: float = _usual(95.0, 4.0)
    forehead: float = _usual(78.0, 1.5)
    jaw: float = _usual(58.0, 3.5)
    jaw_length: float = _usual(59.0, 3.0)
    jaw_depth: float = _usual(57.0, 1.5)
    chin: float = _usual(9.0, 2.5)
    chin_width: float = _usual(17.0, 3.0)
    nose_length: float = _usual(45.0, 3.0)
    nose_height: float = _usual(18.5, 2.2)
    nose_width: float = _usual(14.0, 1.8)
    bridge: float = _usual(6.5, 1.0)
    tip: float = _usual(3.0, 1.2)
    eye_distance: float = _usual(32.0, 1.8)
    eye_width: float = _usual(14.5, 1.0)
    eye_opening: float = _usual(5.2, 0.8)
    eye_slant: float = _usual(1.0, 1.2)
    brow_height: float = _usual(16.0, 1.8)
    brow_thickness: float = _usual(3.2, 0.9)
    brow_arch: float = _usual(3.0, 1.4)
    cheek: float = _usual(4.0, 1.6)
    mouth: float = _usual(-35.0, 2.2)
    mouth_width: float = _usual(25.0, 2.2)
    upper_lip: float = _usual(6.0, 1.3)
    lower_lip: float = _usual(8.0, 1.5)
    hairline: float = _usual(86.0, 6.0)
    ear: float = _usual(31.0, 2.5)
    tone: float = _any(0.6)
    redness: float = _any(0.5)
    hair: float = _any(0.3)
    iris: float = _any(0.3)

    @classmethod
    def drawn(cls, seed: int) -> Features:
        """Somebody, by a seed."""
        rng, given = generator("made head", seed), {}
        for feature in fields(cls):
            spread, mean = feature.metadata["spread"], float(feature.default)  # type: ignore[arg-type]
            normal, even = float(np.clip(rng.standard_normal(), -2.0, 2.0)), float(rng.random())
            given[feature.name] = even if spread is None else mean + spread * normal
        return cls(**given)


def bump(y: Array, z: Array, at: tuple[float, float], size: tuple[float, float]) -> Array:
    """A Gaussian at (y, ±z) on the front of the face."""
    return np.asarray(np.exp(-0.5 * (((y - at[0]) / size[0]) ** 2 + ((np.abs(z) - at[1]) / size[1]) ** 2)))


def step(x: Array, width: float) -> Array:
    """0 to 1 around x = 0, smoothly."""
    return np.asarray(0.5 + 0.5 * np.tanh(x / width))


def _reach(rays: Array, middle: Array, axes: Array) -> Array:
    start, along = (CENTRE - middle) / axes, rays / axes
    square, half = (along**2).sum(axis=1), along @ start
    return np.asarray((-half + np.sqrt(half**2 - square * (start @ start - 1.0))) / square)


class Surface:
    """One head with one expression."""

    def __init__(self, who: Features, mood: Expression) -> None:
        self.who, self.mood = who, mood
        self.eye = 0.74 * who.nose_length
        self.half = who.mouth_width * (1.0 + 0.16 * mood.smile - 0.25 * mood.pout)
        self.opening = max(who.eye_opening * (1.0 - mood.lids * (0.95 if mood.lids > 0 else 0.5)), 0.2)
        self.gap = 16.0 * mood.open
        ray = np.array([[75.0, self.eye - CENTRE[1], who.eye_distance]])
        ray /= np.linalg.norm(ray)
        self.socket = float(CENTRE[0] + ray[0, 0] * self.radius(ray)[0]) - 4.0
        self.shift = np.zeros(3)
        y = np.linspace(-8.0, 8.0, 641)
        profile = self.at(np.stack([np.full_like(y, 95.0), y - CENTRE[1], np.zeros_like(y)], axis=1))
        self.shift = -profile[profile[:, 0].argmax()]

    def radius(self, rays: Array) -> Array:
        """Distance of bare skull and jaw from `CENTRE` along unit rays [N,3]."""
        who, drop = self.who, 0.3 * self.gap
        skull = _reach(rays, np.array([-95.0, 30.0, 0.0]), np.array([who.forehead, who.crown, who.skull]))
        axes = np.array([who.jaw_depth, who.jaw_length + drop, who.jaw])
        jaw = _reach(rays, np.array([-75.0, -25.0 - drop, 0.0]), axes)
        return np.asarray(5.0 * np.logaddexp(skull / 5.0, jaw / 5.0))

    def at(self, rays: Array) -> Array:
        """Points of the head [N,3] where rays [N,3] from `CENTRE` meet it, before relief moves them along x."""
        rays = rays / np.linalg.norm(rays, axis=1, keepdims=True)
        spots = np.asarray(CENTRE + rays * self.radius(rays)[:, None])
        spots[:, 0] += step(spots[:, 0] + 75.0, 9.0) * self._relief(*spots.T)
        return np.asarray(spots + rays * (3.0 * self.hair(*spots.T))[:, None] + self.shift)

    def _relief(self, x: Array, y: Array, z: Array) -> Array:
        who, mood = self.who, self.mood
        chin = who.mouth - 32.0 - 0.7 * self.gap
        raised = x + self._nose(y, z) + self._mouth(y, z)
        raised = raised + who.chin * bump(y, z, (chin, 0.0), (11.0, who.chin_width))
        raised = raised + who.cheek * bump(y, z, (8.0, 46.0), (14.0, 13.0))
        raised = raised + 2.5 * max(mood.smile, 0.0) * bump(y, z, (-6.0, 36.0), (10.0, 10.0))
        raised = raised + 3.0 * bump(y, z, (self.eye + who.brow_height - 3.0, 22.0), (6.0, 16.0))
        raised = raised - 8.0 * bump(y, z, (self.eye + 2.0, who.eye_distance - 3.0), (8.0, 13.0))
        return self._eyeballs(raised, y, z) - x  # last: they fill what the sockets leave

    def _nose(self, y: Array, z: Array) -> Array:
        who = self.who
        along = np.clip(1.0 - y / (who.nose_length + 6.0), 0.0, 1.25)
        ridge = who.nose_height * along**1.25 * step(y + 9.0, 4.0)
        width = who.bridge + 2.2 * step(8.0 - y, 8.0)
        nose = ridge * np.exp(-((np.abs(z) / width) ** 2.2) / 1.6) + who.tip * bump(y, z, (-1.0, 0.0), (6.5, 7.5))
        nose = nose + 8.0 * bump(y, z, (-6.0, who.nose_width - 2.0), (5.0, 4.2))
        return np.asarray(nose - 5.0 * bump(y, z, (-10.5, 6.2), (1.8, 3.0)))

    def lips(self, z: Array) -> tuple[Array, Array, Array, Array]:
        """y of the upper lip's top and bottom and of the lower lip's top and bottom, at z."""
        who, mood = self.who, self.mood
        inside = self._across(z)
        corner = np.minimum(np.abs(z) / self.half, 1.3) ** 2 - 0.35
        line = who.mouth + 5.0 * mood.smile * corner
        upper, lower = line + 0.25 * self.gap * inside, line - 0.75 * self.gap * inside
        thick = 1.0 - 0.25 * max(mood.smile, 0.0) + 0.3 * mood.pout
        bow = 1.0 - 0.22 * np.exp(-0.5 * (z / 2.6) ** 2)
        top = upper + thick * who.upper_lip * inside**0.75 * bow
        return top, upper, lower, lower - thick * who.lower_lip * inside**0.65

    def _across(self, z: Array) -> Array:
        return np.clip(1.0 - (z / self.half) ** 2, 0.0, 1.0)

    def mouth_open(self, y: Array, z: Array) -> Array:
        """0…1: between the lips."""
        _, upper, lower, _ = self.lips(z)
        return step(y - lower, 0.8) * step(upper - y, 0.8) * self._across(z) ** 0.5 * min(self.gap / 6.0, 1.0)

    def _mouth(self, y: Array, z: Array) -> Array:
        top, upper, lower, bottom = self.lips(z)
        full = 3.2 * (1.0 + 1.4 * self.mood.pout) * self._across(z) ** 0.6
        lips = _ridge(y, 0.5 * (top + upper), 0.6 * (top - upper) + 0.8)
        lips = lips + 1.05 * _ridge(y, 0.5 * (lower + bottom), 0.6 * (lower - bottom) + 0.8)
        crease = _ridge(y, 0.5 * (upper + lower), 0.9) * np.clip(1.15 - (z / self.half) ** 2, 0.0, 1.0)
        middle = self.who.mouth
        around = 5.0 * bump(y, z, (middle + 3.0, 0.0), (14.0, 19.0))
        around = around - 3.0 * bump(y, z, (middle - 17.0 - 0.75 * self.gap, 0.0), (4.0, 15.0))
        around = around - 1.0 * bump(y, z, (middle + 14.0, 0.0), (5.0, 2.2))
        return np.asarray(full * lips - 2.0 * crease - 7.0 * self.mouth_open(y, z) + around)

    def eye_frame(self, y: Array, z: Array) -> tuple[Array, Array]:
        """Height over an eye's axis, and distance from its middle outwards."""
        side = np.abs(z) - self.who.eye_distance
        return y - self.eye - self.who.eye_slant * side / self.who.eye_width, side

    def eye_open(self, y: Array, z: Array) -> Array:
        """0…1: between the lids."""
        up, side = self.eye_frame(y, z)
        inside = np.clip(1.0 - (side / self.who.eye_width) ** 2, 0.0, 1.0)
        lids = step(self.opening * inside**0.75 - up, 0.35) * step(up + 0.72 * self.opening * inside, 0.35)
        return np.asarray(lids * step(self.who.eye_width - np.abs(side), 0.5))

    def _eyeballs(self, x: Array, y: Array, z: Array) -> Array:
        up, side = self.eye_frame(y, z)
        ball = self.socket - 12.5 + np.sqrt(np.clip(12.5**2 - up**2 - side**2, 0.0, None))
        ball = ball + 0.9 * (1.0 - self.eye_open(y, z))
        reach = np.exp(-((np.hypot(up, side) / 12.2) ** 8))
        crease = 0.8 * _ridge(up, self.opening + 2.6, 0.9) * np.exp(-((side / 11.0) ** 4))
        return np.asarray(x + reach * (0.8 * np.logaddexp(x / 0.8, ball / 0.8) - x) - crease)

    def hair(self, x: Array, y: Array, z: Array) -> Array:
        """0…1: hair."""
        across = np.abs(z) / self.who.skull
        line = self.who.hairline - 16.0 * across**2 - 180.0 * np.clip(across - 0.72, 0.0, None)
        return np.maximum(step(y - line, 2.5), step(-88.0 - x, 4.0) * step(y + 8.0, 4.0))

    def brow_line(self, z: Array) -> Array:
        """y of the middle of a brow at z."""
        who, mood = self.who, self.mood
        side = np.abs(z) - who.eye_distance
        arch = who.brow_arch * np.cos(np.clip((side - 4.0) / 14.0, -1.6, 1.6))
        frown = 4.5 * min(mood.brows, 0.0) * (0.55 - 0.6 * np.clip(side / who.eye_width, -1.2, 1.2))
        return np.asarray(self.eye + who.brow_height - 3.0 + arch + 6.0 * max(mood.brows, 0.0) + frown)

    def brow(self, y: Array, z: Array) -> Array:
        """0…1: brow."""
        side = np.abs(z) - self.who.eye_distance
        thick = self.who.brow_thickness * np.clip(1.1 - 0.03 * (side + 8.0), 0.2, 1.1)
        ends = step(side + 17.0, 1.5) * step(18.0 - side, 2.0)
        return np.asarray(np.exp(-(((y - self.brow_line(z)) / thick) ** 4)) * ends)


def _ridge(y: Array, at: Array | float, size: Array | float) -> Array:
    return np.asarray(np.exp(-0.5 * ((y - at) / size) ** 2))


def mesh(face: Surface) -> tuple[Array, Array, Array]:
    """Vertices [V,3] in mm, triangles [T,3] whose normals point outwards, and which part each triangle is of [T]."""
    sheets = [(_head(face), HEAD), (_ear(face, 1), EAR), (_ear(face, -1), EAR), (_neck(face), NECK)]
    vertices, triangles, parts, begin = [], [], [], 0
    for (spots, facets), part in sheets:
        kept = facets if part == HEAD else facets[_outside(face, spots)[facets].all(axis=1)]
        vertices.append(spots + (0.0 if part == HEAD else face.shift))
        triangles.append(kept + begin)
        parts.append(np.full(len(kept), part))
        begin += len(spots)
    return np.concatenate(vertices), np.concatenate(triangles), np.concatenate(parts)


def scanned(
    vertices: Array, triangles: Array, parts: Array, count: int, rng: np.random.Generator
) -> tuple[Array, Array, Array]:
    """Points [N,3], unit normals [N,3] and parts [N], spread over what a scanner in front sees, somewhat unevenly."""
    corners = vertices[triangles]
    across = np.cross(corners[:, 1] - corners[:, 0], corners[:, 2] - corners[:, 0])
    area = np.linalg.norm(across, axis=1)
    normals = across / np.maximum(area, 1e-12)[:, None]
    middle = corners.mean(axis=1)
    waves = rng.normal(0.0, 1 / 30.0, (3, 4))
    weight = area * np.clip((normals[:, 0] - GRAZING) / 0.3, 0.0, 1.0)
    weight *= 1.0 + 0.08 * np.cos(middle @ waves + rng.uniform(0.0, 2 * np.pi, 4)).sum(axis=1)
    ends = np.cumsum(weight)
    chosen = np.searchsorted(ends, (np.arange(count) + rng.random(count)) * (ends[-1] / count))
    a, b = np.sort(rng.random((2, count)), axis=0)
    shares = np.stack([a, b - a, 1.0 - b], axis=1)
    spots = np.einsum("nk,nkc->nc", shares, corners[chosen])
    order = rng.permutation(count)
    return spots[order], normals[chosen[order]], parts[chosen[order]]


def _head(face: Surface) -> tuple[Array, Array]:
    even = np.linspace(-1.0, 1.0, 211)
    turn = np.radians(112.0 * (0.8 * even + 0.2 * even**3))
    lat, lon = np.meshgrid(np.radians(np.linspace(-72.0, 89.5, 240)), turn, indexing="ij")
    rays = np.stack([np.cos(lat) * np.cos(lon), np.sin(lat), np.cos(lat) * np.sin(lon)], axis=-1)
    return face.at(rays.reshape(-1, 3)), _grid(*lat.shape)


def _ear(face: Surface, side: int) -> tuple[Array, Array]:
    rim, angle = np.repeat(np.linspace(0.02, 1.0, 26), 61), np.tile(np.linspace(0.0, 2 * np.pi, 61), 26)
    up, back = rim * np.sin(angle), rim * np.cos(angle)
    flare, size = np.radians(33.0), face.who.ear
    outwards = np.array([-np.cos(flare), 0.0, side * np.sin(flare)])
    facing = np.array([np.sin(flare), 0.0, side * np.cos(flare)])
    raised = 2.5 * np.exp(-(((rim - 0.88) / 0.12) ** 2)) * (back > -0.6)
    raised = raised - 4.0 * np.exp(-(((back + 0.15) / 0.4) ** 2) - ((up + 0.1) / 0.4) ** 2)
    middle = np.array([-96.0, 0.6 * face.eye - 5.0, side * 0.985 * face.who.skull]) + 0.25 * size * outwards
    spots = middle + np.outer(size * up, [0.12, 1.0, 0.0]) + np.outer(raised, facing)
    spots = spots + np.outer(0.58 * size * (1.0 + 0.22 * up) * back, outwards)
    return spots, _grid(26, 61)[:, ::-side]


def _neck(face: Surface) -> tuple[Array, Array]:
    down, turn = np.meshgrid(np.linspace(-128.0, -30.0, 60), np.radians(np.linspace(-100, 100, 120)), indexing="ij")
    radius = 0.78 * face.who.jaw + 4.0 * ((down + 75.0) / 50.0) ** 2
    spots = np.stack([radius * np.cos(turn) - 112.0, down, 1.05 * radius * np.sin(turn)], axis=-1)
    return spots.reshape(-1, 3), _grid(*down.shape)


def _outside(face: Surface, spots: Array) -> Array:
    rays = spots - CENTRE
    away = np.linalg.norm(rays, axis=1)
    return np.asarray(away > face.radius(rays / away[:, None]) - 0.5)


def _grid(rows: int, columns: int) -> Array:
    at = np.arange(rows * columns).reshape(rows, columns)
    a, b, c, d = (part.ravel() for part in (at[:-1, :-1], at[:-1, 1:], at[1:, :-1], at[1:, 1:]))
    return np.concatenate([np.stack([a, c, b], axis=1), np.stack([b, c, d], axis=1)])


def marked(face: Surface) -> NDArray[np.float64]:
    """Landmarks [68,3] in mm, see `MadeHead`."""
    return np.concatenate([_jaw(face), _dropped(face, np.array(_front(face)))])


def _jaw(face: Surface) -> Array:
    stretch = (face.who.jaw_length + 25.0) / 84.0
    height, turn = JAW[:, 0].copy(), np.radians(JAW[:, 1])
    height[height < 0] *= stretch
    height = height - 0.6 * face.gap * np.clip(-height / 67.0, 0.0, 1.0)
    right = np.stack([75 * np.cos(turn), height - CENTRE[1], 75 * np.sin(turn)], axis=1)
    low = np.radians(np.linspace(-62.0, -35.0, 109))
    line = face.at(np.stack([np.cos(low), np.sin(low), np.zeros_like(low)], axis=1))
    chin = line[(line[:, 0] - 0.9 * line[:, 1]).argmax()]
    return np.concatenate([face.at(right), chin[None], face.at(right[::-1] * [1.0, 1.0, -1.0])])


def _front(face: Surface) -> list[tuple[float, float]]:
    who = face.who
    z = who.eye_distance + np.array([17.0, 10.0, 2.0, -6.0, -13.0])
    brow = list(zip(face.brow_line(z).tolist(), z.tolist(), strict=True))
    bridge = [(y, 0.0) for y in np.linspace(0.95 * who.nose_length, -face.shift[1], 4)]
    base = [(-10.5 - 2.0 * (1 - abs(share)), share * who.nose_width) for share in (0.95, 0.5, 0.0, -0.5, -0.95)]
    eye = []
    for side, lid in ((1.0, 0.0), (0.4, 1.0), (-0.4, 1.0), (-1.0, 0.0), (-0.4, -0.72), (0.4, -0.72)):
        lift = lid * face.opening * (1.0 - side**2) ** (0.75 if lid > 0 else 1.0)
        eye.append((face.eye + who.eye_slant * side + lift, who.eye_distance + side * who.eye_width))
    other = _mirrored([eye[k] for k in (3, 2, 1, 0, 5, 4)])
    return brow + _mirrored(brow[::-1]) + bridge + base + eye + other + _lip_marks(face)


def _mirrored(spots: list[tuple[float, float]]) -> list[tuple[float, float]]:
    return [(y, -z) for y, z in spots]


def _lip_marks(face: Surface) -> list[tuple[float, float]]:
    shares = [(0, s) for s in (1.0, 0.6, 0.2, 0.0, -0.2, -0.6, -1.0)] + [(3, s) for s in (-0.6, -0.2, 0.0, 0.2, 0.6)]
    shares += [(1, s) for s in (0.85, 0.25, 0.0, -0.25, -0.85)] + [(2, s) for s in (-0.25, 0.0, 0.25)]
    return [(float(face.lips(np.array([s * face.half]))[edge][0]), s * face.half) for edge, s in shares]


def _dropped(face: Surface, flat: Array) -> Array:
    spots = np.column_stack([np.full(len(flat), -25.0), flat])
    for _ in range(12):
        rays = spots - CENTRE
        away = np.linalg.norm(rays, axis=1)
        bare = CENTRE + rays * (face.radius(rays / away[:, None]) / away)[:, None]
        spots = np.column_stack([bare[:, 0], flat])
    return face.at(spots - CENTRE)


def painted(face: Surface, spots: Array, normals: Array, parts: Array, rng: np.random.Generator) -> NDArray[np.uint8]:
    """Colours [N,3] of points [N,3] by region, softly lit from the front, as a photographing scanner records them."""
    x, y, z = (spots - face.shift).T
    head = parts == HEAD
    front = head & (x > -70.0)
    grain = 1.0 + 0.02 * rng.standard_normal((len(spots), 1))
    colors = _skin(face, y, z, parts) * grain
    colors = _over(colors, _lip_colour(face), front * _lips(face, y, z))
    colors = _over(colors, np.array([60.0, 22.0, 22.0]), front * face.mouth_open(y, z))
    colors = _eyes(face, colors, y, z, front)
    strands = between(HAIRS, face.who.hair) * (1.0 + 5.0 * (grain - 1.0))
    colors = _over(colors, 0.85 * strands, 0.9 * front * face.brow(y, z))
    colors = _over(colors, strands, head * face.hair(x, y, z))
    lit = AMBIENT + (1.0 - AMBIENT) * np.clip(normals @ (LIGHT / np.linalg.norm(LIGHT)), 0.0, 1.0)
    return np.clip(np.rint(colors * (1.08 * lit)[:, None]), 0, 255).astype(np.uint8)


def _skin(face: Surface, y: Array, z: Array, parts: Array) -> Array:
    who = face.who
    skin = np.broadcast_to(between(SKINS, who.tone), (len(y), 3))
    red = bump(y, z, (-4.0, 40.0), (12.0, 14.0)) + 0.7 * bump(y, z, (-2.0, 0.0), (8.0, 12.0)) + 0.6 * (parts == EAR)
    skin = _over(skin, np.array([205.0, 96.0, 84.0]) * (0.5 + 0.5 * who.tone), (0.08 + 0.14 * who.redness) * red)
    dark = 0.75 * bump(y, z, (-10.5, 6.4), (1.6, 2.6)) + 0.25 * bump(y, z, (-12.0, 0.0), (1.6, 8.0))
    dark = dark + 0.12 * bump(y, z, (face.eye + 1.0, who.eye_distance - 2.0), (8.0, 13.0))
    return _over(skin, 0.25 * between(SKINS, who.tone), np.clip(dark, 0.0, 1.0))


def _lip_colour(face: Surface) -> Array:
    pale = between(SKINS, face.who.tone)
    return np.asarray((1.0 - 0.65) * pale + 0.65 * np.array([176.0, 62.0, 66.0]) * (0.6 + 0.4 * face.who.tone))


def _lips(face: Surface, y: Array, z: Array) -> Array:
    top, _, _, bottom = face.lips(z)
    return step(top - y, 0.5) * step(y - bottom, 0.5) * step(face.half - np.abs(z), 0.5)


def _eyes(face: Surface, colors: Array, y: Array, z: Array, front: Array) -> Array:
    up, side = face.eye_frame(y, z)
    shown = front * face.eye_open(y, z)
    away = np.hypot(up - 0.3, side)
    colors = _over(colors, np.array([236.0, 232.0, 226.0]), shown)
    colors = _over(colors, between(IRISES, face.who.iris), shown * step(5.6 - away, 0.4))
    colors = _over(colors, np.array([14.0, 12.0, 12.0]), shown * step(2.4 - away, 0.4))
    glint = step(0.9 - np.hypot(up - 1.8, z - np.sign(z) * face.who.eye_distance + 1.6), 0.3)
    colors = _over(colors, np.array([250.0, 250.0, 250.0]), shown * glint)
    inside = np.clip(1.0 - (side / face.who.eye_width) ** 2, 0.0, 1.0)
    lash = np.exp(-(((up - face.opening * inside**0.75 - 0.4) / 0.9) ** 2)) * (inside > 0)
    under = 0.4 * np.exp(-(((up + 0.72 * face.opening * inside + 0.3) / 0.7) ** 2)) * (inside > 0)
    return _over(colors, np.array([30.0, 22.0, 20.0]), 0.9 * front * np.maximum(lash, under))


def _over(colors: Array, paint: Array, cover: Array) -> Array:
    """Paint over colours [N,3], as far as `cover` [N] says."""
    return np.asarray(colors + (paint - colors) * np.asarray(cover, float)[:, None])


def between(stops: Array, at: float) -> Array:
    """A colour on a line of colours, at 0…1."""
    return np.array([np.interp(at, np.linspace(0.0, 1.0, len(stops)), channel) for channel in stops.T])
