"""Films with known faces: real heads move over made backgrounds, and every pixel of a face is known in every frame."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache

import cv2
import numpy as np
import pytest
from numpy.typing import NDArray

Image = NDArray[np.uint8]
Path3 = Callable[[int], tuple[float, float, float] | None]
"""Frame → x, y of the face's middle and its height in pixels; None where the person is not there."""

LEAST = 0.3
"""Share of a face's inner ellipse that must be seen, not hidden by a bar, a nearer face or the border, to count."""


@dataclass(frozen=True, eq=False)
class Head:
    """A head cut out of a picture: soft at its edge, with the ellipse of its face."""

    image: Image
    alpha: NDArray[np.float32]
    """[h,w], 0 to 1."""
    centre: tuple[float, float]
    half: tuple[float, float]
    """Of the face's inner ellipse, brow to lip, eye to eye."""
    height: float
    """Of the face, brow to chin."""
    inner: NDArray[np.float32] | None = None
    """[h,w], 1 on the pixels of the inner ellipse of a turned head."""

    def turned(self, degrees: float) -> Head:
        """The head turned to the right of the picture, as if it were painted on an upright cylinder."""
        return _turned(self, round(degrees)) if degrees else self

    @classmethod
    def of(cls, image: Image, box: Sequence[float], reach: float = 1.55) -> Head:
        """A head around the box of its face."""
        x0, y0, x1, y1 = box
        cx, cy, w, h = (x0 + x1) / 2, (y0 + y1) / 2 - 0.06 * (y1 - y0), x1 - x0, y1 - y0
        rows, columns = np.mgrid[: image.shape[0], : image.shape[1]]
        radius = np.hypot((columns - cx) / (w / 2 * reach), (rows - cy) / (h / 2 * reach * 0.92))
        alpha = np.clip((1.0 - radius) / 0.08, 0, 1).astype(np.float32)
        return cls(image, alpha, (cx, (y0 + y1) / 2), (0.36 * w, 0.36 * h), h)


@cache
def _turned(head: Head, degrees: int) -> Head:
    rows, columns = np.mgrid[: head.image.shape[0], : head.image.shape[1]].astype(np.float32)
    radius = float(np.flatnonzero(head.alpha.max(0) > 0).size) / 2
    angle = np.arcsin(np.clip((columns - head.centre[0]) / radius, -1, 1)) - np.radians(degrees)
    seen = np.abs(angle) < np.pi / 2
    back = head.centre[0] + radius * np.sin(np.clip(angle, -1.4, 1.4)).astype(np.float32)
    image = cv2.remap(head.image, back, rows, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE)
    away = np.hypot((back - head.centre[0]) / head.half[0], (rows - head.centre[1]) / head.half[1])
    inner = (seen & (away <= 1) & (head.alpha > 0.5)).astype(np.float32)
    return Head(image, head.alpha, head.centre, head.half, head.height, inner)


def astronaut() -> Head:
    """Eileen Collins, NASA, public domain."""
    data = pytest.importorskip("skimage.data")
    return Head.of(np.ascontiguousarray(data.astronaut()[:300, 90:400]), (85, 54, 185, 180))


@dataclass(frozen=True, eq=False)
class Actor:
    """A head and its way."""

    head: Head
    path: Path3
    turn: Callable[[int], float] = field(default=lambda number: 0.0, kw_only=True)
    """Frame → degrees to the right."""
    shutter: int = 1
    """Places averaged in one frame, over half its time: motion blur."""


@dataclass(frozen=True, eq=False)
class Bar:
    """A grey bar before all faces from one frame to another: x0, y0, x1, y1 at each."""

    first: int
    last: int
    box: Callable[[int], tuple[float, float, float, float]]


@dataclass(frozen=True, eq=False)
class Area:
    """Pixels of one face that are seen in one frame."""

    actor: int
    x0: int
    y0: int
    mask: NDArray[np.bool_]
    full: int
    """How many pixels it has where nothing hides it."""

    def of(self, image: NDArray[np.generic]) -> NDArray[np.generic]:
        """The same part of a picture [n,3]."""
        height, width = self.mask.shape
        return image[self.y0 : self.y0 + height, self.x0 : self.x0 + width][self.mask]


@dataclass(frozen=True, eq=False)
class Scene:
    """A film."""

    frames: int
    actors: Sequence[Actor]
    size: tuple[int, int] = (640, 360)
    bars: Sequence[Bar] = ()
    cuts: Sequence[int] = ()
    rate: int = 25
    seed: int = 0
    grounds: dict[int, Image] = field(default_factory=dict)

    def ground(self, frame: int) -> Image:
        """The picture behind: another after each cut."""
        number = sum(cut <= frame for cut in self.cuts)
        if number not in self.grounds:
            self.grounds[number] = background(*self.size, seed=self.seed + 17 * number)
        return self.grounds[number]

    def frame(self, number: int) -> tuple[Image, list[Area]]:
        """A picture and the faces in it."""
        image = self.ground(number).copy()
        areas: list[Area] = []
        for index, actor in enumerate(self.actors):
            place = actor.path(number)
            if place is None:
                continue
            mask = _draw(image, actor, number, place)
            if mask is None:
                continue
            x0, y0, inner, head, full = mask
            areas = [_without(area, x0, y0, head) for area in areas]
            areas.append(Area(index, x0, y0, inner, full))
        for bar in self.bars:
            if bar.first <= number < bar.last:
                a, b, c, d = (int(value) for value in bar.box(number))
                a, b = max(a, 0), max(b, 0)
                image[b:d, a:c] = (
                    (np.array([96, 100, 104]) + 10 * np.sin(np.arange(max(0, c - a)) / 4)[:, None]).astype(np.uint8)
                    if a < c < image.shape[1] + 1
                    else (96, 100, 104)
                )
                areas = [_without(area, a, b, np.ones((max(0, d - b), max(0, c - a)), bool)) for area in areas]
        return image, [area for area in areas if area.mask.sum() >= LEAST * area.full]

    def play(self) -> tuple[list[Image], list[list[Area]]]:
        """All pictures, and the faces in each."""
        both = [self.frame(number) for number in range(self.frames)]
        return [image for image, _ in both], [areas for _, areas in both]


def background(width: int, height: int, seed: int = 0) -> Image:
    """Coloured clouds and boxes: structure, but no faces."""
    rng = np.random.default_rng(seed)
    image = np.zeros((height, width, 3), np.float32)
    for cells, strength in ((4, 30), (16, 16), (64, 10)):
        noise = rng.normal(size=(cells * height // width + 2, cells, 3)).astype(np.float32)
        image += cv2.resize(noise, (width, height), interpolation=cv2.INTER_CUBIC) * strength
    image += rng.uniform(80, 150, 3).astype(np.float32)
    for _ in range(6):
        x, y = int(rng.integers(width)), int(rng.integers(height))
        w, h = (int(v) for v in rng.integers(width // 16, width // 5, 2))
        image[y : y + h, x : x + w] = image[y : y + h, x : x + w] * 0.4 + rng.uniform(40, 220, 3) * 0.6
    return image.clip(0, 255).astype(np.uint8)


def _draw(
    image: Image, actor: Actor, number: int, place: tuple[float, float, float]
) -> tuple[int, int, NDArray[np.bool_], NDArray[np.bool_], int] | None:
    """Draw a head; its corner, its face's inner pixels, all its pixels, and how many the first are without border."""
    head, (x, y, size) = actor.head.turned(actor.turn(number)), place
    scale = size / head.height
    h, w = head.alpha.shape
    after = actor.path(number + 1) or place
    step = (after[0] - x, after[1] - y) if actor.shutter > 1 else (0.0, 0.0)
    margin = int(max(abs(step[0]), abs(step[1]))) + 2
    x0, y0 = int(x - head.centre[0] * scale) - margin, int(y - head.centre[1] * scale) - margin
    shape = (int(w * scale) + 2 * margin + 2, int(h * scale) + 2 * margin + 2)
    colour = np.zeros((shape[1], shape[0], 3), np.float32)
    alpha = np.zeros((shape[1], shape[0]), np.float32)
    source = head.image if scale > 0.5 else _smoothed(head.image, scale)
    for part in np.linspace(-0.25, 0.25, actor.shutter) if actor.shutter > 1 else (0.0,):
        move = np.array(
            [
                [scale, 0, x + part * step[0] - x0 - head.centre[0] * scale],
                [0, scale, y + part * step[1] - y0 - head.centre[1] * scale],
            ]
        )
        one = cv2.warpAffine(head.alpha, move, shape)
        colour += cv2.warpAffine(source, move, shape).astype(np.float32) * one[..., None]
        alpha += one
    colour, alpha = colour / actor.shutter, alpha / actor.shutter
    rows, columns = np.mgrid[: shape[1], : shape[0]]
    half = head.half[0] * scale, head.half[1] * scale
    inner = np.hypot((columns + x0 - x) / half[0], (rows + y0 - y) / half[1]) <= 1
    full = int(inner.sum())
    if head.inner is not None:
        move = np.array([[scale, 0, x - x0 - head.centre[0] * scale], [0, scale, y - y0 - head.centre[1] * scale]])
        inner = cv2.warpAffine(head.inner, move, shape) > 0.5
    left, top = max(0, -x0), max(0, -y0)
    right, bottom = min(shape[0], image.shape[1] - x0), min(shape[1], image.shape[0] - y0)
    if right <= left or bottom <= top:
        return None
    region = image[y0 + top : y0 + bottom, x0 + left : x0 + right]
    part_alpha = alpha[top:bottom, left:right, None]
    region[:] = (region * (1 - part_alpha) + colour[top:bottom, left:right]).round().clip(0, 255).astype(np.uint8)
    return x0 + left, y0 + top, inner[top:bottom, left:right], alpha[top:bottom, left:right] > 0.5, full


def _smoothed(image: Image, scale: float) -> Image:
    return np.asarray(cv2.GaussianBlur(image, (0, 0), 0.4 / scale), np.uint8)


def _without(area: Area, x0: int, y0: int, hidden: NDArray[np.bool_]) -> Area:
    """An area less what lies behind something at a place."""
    mask = area.mask.copy()
    left, top = max(x0, area.x0), max(y0, area.y0)
    right, bottom = (
        min(x0 + hidden.shape[1], area.x0 + mask.shape[1]),
        min(y0 + hidden.shape[0], area.y0 + mask.shape[0]),
    )
    if right > left and bottom > top:
        mask[top - area.y0 : bottom - area.y0, left - area.x0 : right - area.x0] &= ~hidden[
            top - y0 : bottom - y0, left - x0 : right - x0
        ]
    return replace(area, mask=mask)


def uncovered(source: Image, result: Image, area: Area) -> bool:
    """Whether most of a covered face's pixels are what they were, give or take what an encoder does."""
    near = np.abs(area.of(source).astype(int) - area.of(result)).max(-1) <= 24
    return bool(near.mean() > 0.5)


def changed(source: Image, result: Image, area: Area) -> float:
    """Share of the pixels of a face around which nothing of the source's fine detail is left as it was.

    A new face in the same light may have its colours; what tells it from the source is its detail.
    """
    height, width = area.mask.shape
    parts = [
        image[area.y0 : area.y0 + height, area.x0 : area.x0 + width].astype(np.float32).mean(2)
        for image in (source, result)
    ]
    rows = np.flatnonzero(area.mask.any(1))
    side = max(3, int(0.25 * (rows[-1] - rows[0] + 1)) | 1)

    def mean(values: NDArray[np.float32]) -> NDArray[np.float32]:
        return np.asarray(cv2.blur(values, (side, side)))

    means = [mean(part) for part in parts]
    spread = [mean(part * part) - middle * middle + 6.0 for part, middle in zip(parts, means, strict=True)]
    common = mean(parts[0] * parts[1]) - means[0] * means[1] + 6.0
    same = (common / np.sqrt(spread[0] * spread[1]) > 0.9) & (np.abs(parts[0] - parts[1]) <= 16)
    return float(1 - same[area.mask].mean())
