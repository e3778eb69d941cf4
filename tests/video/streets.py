"""Made films of several people with known truth: streets, calls whose tiles change places, dissolves, shots."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import cv2
import numpy as np
from compositor import Actor, Area, Bar, Head, Image, Scene

SIZE = (640, 360)


@dataclass(frozen=True, eq=False)
class Played:
    """The faces of each frame of a film, whose `Area.actor` numbers people throughout; and first frames of shots."""

    images: list[Image]
    areas: list[list[Area]]
    rate: int
    cuts: list[int] = field(default_factory=list)


def street(people: Sequence[Head], rng: np.random.Generator, frames: int, rate: int) -> Played:
    """Some stand, some walk through or to and fro, all turn now and then; who is nearer hides who is farther."""
    return Played(*_street(people, rng, frames, rate).play(), rate)


def _street(people: Sequence[Head], rng: np.random.Generator, frames: int, rate: int) -> Scene:
    sizes = np.sort(np.exp(rng.uniform(np.log(30), np.log(130), len(people))))
    actors = [
        Actor(head, _walk(rng, size, frames, rate), turn=_turns(rng, rate))
        for head, size in zip(people, sizes.tolist(), strict=True)
    ]
    bars = []
    if rng.random() < 0.5:  # a passer-by without a face, nearer than all
        begin, speed = int(rng.integers(frames)), float(rng.uniform(150, 400)) / rate
        width = float(rng.uniform(60, 150))

        def passer(n: int) -> tuple[float, float, float, float]:
            x = (n - begin) * speed - width
            return x, 0.0, x + width, float(SIZE[1])

        bars = [Bar(begin, begin + int((SIZE[0] + 2 * width) / speed), passer)]
    return Scene(frames, actors, size=SIZE, bars=bars, rate=rate, seed=int(rng.integers(1 << 30)))


def _walk(
    rng: np.random.Generator, size: float, frames: int, rate: int
) -> Callable[[int], tuple[float, float, float] | None]:
    y = float(rng.uniform(0.2, 0.45) * SIZE[1] + 0.4 * size)
    sway, step = float(rng.uniform(0.02, 0.06)) * size, float(rng.uniform(0.8, 2.0)) * 2 * np.pi / rate
    phase = rng.uniform(0, 2 * np.pi, 3)
    if rng.random() < 0.5:  # stands
        x = float(rng.uniform(0.12, 0.88) * SIZE[0])
        drift = float(rng.uniform(0, 0.3)) * size

        def standing(n: int) -> tuple[float, float, float]:
            return x + drift * np.sin(0.3 * step * n + phase[0]), y + sway * np.sin(step * n + phase[1]), size

        return standing
    speed = float(rng.choice([-1, 1]) * rng.uniform(0.4, 1.6)) * size / rate
    begin = float(rng.uniform(-0.2, 0.7)) * SIZE[0]
    begin, growth = (begin if speed > 0 else SIZE[0] - begin), float(rng.uniform(-0.15, 0.25))

    def walking(n: int) -> tuple[float, float, float] | None:
        x = begin + speed * n
        inside = -0.6 * size < x < SIZE[0] + 0.6 * size
        grown = size * (1 + growth * n / frames)
        return (x, y + sway * np.sin(step * n + phase[1]), grown) if inside else None

    return walking


def _turns(rng: np.random.Generator, rate: int) -> Callable[[int], float]:
    """To the left and right by some degrees, now and then so far that the face is hardly seen."""
    usual, far = float(rng.uniform(5, 25)), float(rng.uniform(50, 100)) * (rng.random() < 0.3)
    speed, phase = float(rng.uniform(0.5, 1.5)) / rate, float(rng.uniform(0, 6.28))
    moment, length = float(rng.uniform(0.5, 5)) * rate, float(rng.uniform(0.4, 1.2)) * rate
    side = float(rng.choice([-1, 1]))

    def turn(n: int) -> float:
        glance = far * np.exp(-(((n - moment) / length) ** 2))
        return float(usual * np.sin(speed * n + phase) * (1 - min(1.0, glance / 50)) + side * glance)

    return turn


def shots(people: Sequence[Head], rng: np.random.Generator, frames: int, rate: int) -> Played:
    """Hard cuts between streets with some of the same people."""
    return _joined(people, rng, frames, rate, 0)


def dissolve(people: Sequence[Head], rng: np.random.Generator, frames: int, rate: int) -> Played:
    """One person fades into another in about the same place, or a street into another."""
    return _joined(people, rng, frames, rate, round(rng.uniform(0.3, 1.2) * rate))


def _joined(people: Sequence[Head], rng: np.random.Generator, frames: int, rate: int, fade: int) -> Played:
    count = 2 if fade else 3
    length = -(-frames // count) + fade
    parts, numbers = [], []
    for part in range(count):
        if fade and rng.random() < 0.6:
            chosen = [part]
            x, y, size = rng.uniform(250, 390), rng.uniform(150, 200), rng.uniform(70, 120)
            actors = [Actor(people[part], lambda n, x=x, y=y, size=size: (x, y + np.sin(n / 9), size))]
            scene = Scene(length, actors, size=SIZE, rate=rate, seed=int(rng.integers(1 << 30)))
        else:
            chosen = [int(n) for n in rng.permutation(len(people))[: int(rng.integers(1, 4))]]
            scene = _street([people[n] for n in chosen], rng, length, rate)
        parts.append(Played(*scene.play(), rate))
        numbers.append(chosen)
    images, areas, cuts = list(parts[0].images), _numbered(parts[0], numbers[0]), list[int]()
    for part, chosen in zip(parts[1:], numbers[1:], strict=True):
        more = _numbered(part, chosen)
        for step in range(fade):
            share, at = (step + 1) / (fade + 1), len(images) - fade + step
            images[at] = cv2.addWeighted(images[at], 1 - share, part.images[step], share, 0)
            areas[at] = areas[at] if share < 0.5 else more[step]
        if not fade:
            cuts.append(len(images))
        images += part.images[fade:]
        areas += more[fade:]
    return Played(images[:frames], areas[:frames], rate, cuts)


def _numbered(part: Played, people: Sequence[int]) -> list[list[Area]]:
    return [[_as_actor(area, people[area.actor]) for area in shown] for shown in part.areas]


def _as_actor(area: Area, actor: int, x: int = 0, y: int = 0) -> Area:
    return replace(area, actor=actor, x0=area.x0 + x, y0=area.y0 + y)


def call(people: Sequence[Head], rng: np.random.Generator, frames: int, rate: int) -> Played:
    """Tiles of a call, two by two or side by side; now and then two change places from one frame to the next."""
    columns, lines = (2, 2) if len(people) >= 4 else (2, 1)
    count = columns * lines
    width, height = SIZE[0] // columns, SIZE[1] // lines
    tiles = []
    for head in people[:count]:
        size = float(rng.uniform(0.3, 0.5)) * min(width, height)
        x, y, phase = width / 2 + rng.uniform(-20, 20), height / 2 + rng.uniform(-10, 10), rng.uniform(0, 6)

        def path(
            n: int, x: float = x, y: float = y, size: float = size, phase: float = phase
        ) -> tuple[float, float, float]:
            return x + 0.1 * size * np.sin(n / rate + phase), y + 0.05 * size * np.sin(2.1 * n / rate + phase), size

        actor = Actor(head, path, turn=_turns(rng, rate))
        tiles.append(Scene(frames, [actor], size=(width, height), rate=rate, seed=int(rng.integers(1 << 30))).play())
    order, swaps = list(range(count)), {int(n) for n in rng.choice(np.arange(8, frames - 8), 2, replace=False)}
    images, areas = [], []
    for n in range(frames):
        if n in swaps:
            a, b = rng.choice(count, 2, replace=False)
            order[a], order[b] = order[b], order[a]
        image, shown = np.full((SIZE[1], SIZE[0], 3), 30, np.uint8), list[Area]()
        for place, person in enumerate(order):
            x, y = place % columns * width, place // columns * height
            image[y : y + height, x : x + width] = tiles[person][0][n]
            shown += [_as_actor(area, person, x, y) for area in tiles[person][1][n]]
        images.append(image)
        areas.append(shown)
    return Played(images, areas, rate, sorted(swaps))


STREETS: dict[str, Callable[[Sequence[Head], np.random.Generator, int, int], Played]] = {
    "street": street,
    "call": call,
    "dissolve": dissolve,
    "shots": shots,
}
