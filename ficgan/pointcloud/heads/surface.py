"""The surface of a made head: skull and jaw along rays, and relief that moves the front along x only.

As relief keeps y and z, every feature of the face and its paint are functions of (y, z). Millimetres; the nose tip is
the origin.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ficgan.pointcloud.heads.features import Expression, Features

__all__ = ["CENTRE", "Surface", "bump", "step"]

Array = NDArray[Any]

CENTRE = np.array([-95.0, 10.0, 0.0])
"""Inside the skull, before the head is shifted to its nose tip."""


def bump(y: Array, z: Array, at: tuple[float, float], size: tuple[float, float]) -> Array:
    """A Gaussian at (y, ±z) on the front of the face."""
    return np.asarray(np.exp(-0.5 * (((y - at[0]) / size[0]) ** 2 + ((np.abs(z) - at[1]) / size[1]) ** 2)))


def step(x: Array, width: float) -> Array:
    """0 to 1 around x = 0, smoothly."""
    return np.asarray(0.5 + 0.5 * np.tanh(x / width))


def _reach(rays: Array, middle: Array, axes: Array) -> Array:
    """Distance from `CENTRE` along unit rays to an ellipsoid around it."""
    start, along = (CENTRE - middle) / axes, rays / axes
    square, half = (along**2).sum(axis=1), along @ start
    return np.asarray((-half + np.sqrt(half**2 - square * (start @ start - 1.0))) / square)


class Surface:
    """One head with one expression.

    Args:
        who: its features.
        mood: its expression.
    """

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
        return np.asarray(
            step(self.opening * inside**0.75 - up, 0.35)
            * step(up + 0.72 * self.opening * inside, 0.35)
            * step(self.who.eye_width - np.abs(side), 0.5)
        )

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
