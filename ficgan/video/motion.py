"""How faces move: velocities that wander and die away, as a Kalman filter forwards and a smoother in both directions.

A coordinate x has a velocity v that is an Ornstein-Uhlenbeck process: standard deviation `speed`, forgotten after
`memory` seconds. The detector sees x with an error of standard deviation `noise`. Between sightings close together this
is the cubic smoothing spline; beyond the ends the velocity is damped to zero and the uncertainty grows.

Source: Uhlenbeck and Ornstein 1930; Rauch, Tung, Striebel, "Maximum likelihood estimates of linear dynamic systems",
1965.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["LOG_SIZE", "PLACE", "Motion", "State", "measured", "smooth"]

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Motion:
    """The numbers of the motion of one coordinate; lengths in units that a `scale` turns into the data's own."""

    noise: float
    """Standard deviation of a sighting."""
    speed: float
    """Standard deviation of the velocity, units per second."""
    memory: float
    """Time constant of the velocity, seconds."""

    def step(self, seconds: ArrayLike) -> tuple[Floats, Floats]:
        """Transition and covariance of (x, v) over times [...] ≥ 0: two float64 [...,2,2], for a scale of 1."""
        t, tau = np.asarray(seconds, np.float64), self.memory
        left, lost = np.exp(-t / tau), -np.expm1(-t / tau)
        gone = -np.expm1(-2 * t / tau)
        transition = np.stack([np.stack([np.ones_like(t), tau * lost], -1), np.stack([0 * t, left], -1)], -2)
        cross = tau * lost**2
        place = np.maximum(2 * tau * t - 4 * tau**2 * lost + tau**2 * gone, 0.0)
        return transition, self.speed**2 * np.stack([np.stack([place, cross], -1), np.stack([cross, gone], -1)], -2)


# Lengths in sizes of the face (√(width·height)).
PLACE = Motion(noise=0.03, speed=3.0, memory=0.5)
# Logarithms of width and height.
LOG_SIZE = Motion(noise=0.04, speed=0.4, memory=0.5)


@dataclass(eq=False)
class State:
    """What is known of D coordinates that move alike: mean [2,D] of (x, v) and their common covariance [2,2]."""

    mean: Floats
    covariance: Floats

    @classmethod
    def first(cls, motion: Motion, seen: ArrayLike, scale: float = 1.0) -> State:
        """After the first sighting [D]: at that place, with any usual velocity."""
        x = np.asarray(seen, np.float64)
        return cls(np.stack([x, 0 * x]), np.diag([(motion.noise * scale) ** 2, (motion.speed * scale) ** 2]))

    def after(self, motion: Motion, seconds: float, scale: float = 1.0) -> State:
        """Prediction."""
        transition, drift = motion.step(seconds)
        return State(transition @ self.mean, transition @ self.covariance @ transition.T + np.asarray(drift) * scale**2)

    def seeing(self, motion: Motion, seen: ArrayLike, scale: float = 1.0) -> State:
        """Update by a sighting [D]."""
        gain = self.covariance[:, :1] / (self.covariance[0, 0] + (motion.noise * scale) ** 2)  # [2,1]
        keep = np.eye(2) - gain @ np.array([[1.0, 0.0]])
        # Joseph's form: stays symmetric and positive.
        covariance = keep @ self.covariance @ keep.T + gain @ gain.T * (motion.noise * scale) ** 2
        return State(self.mean + gain * (np.asarray(seen, np.float64) - self.mean[0]), covariance)


def measured(boxes: ArrayLike) -> tuple[Floats, Floats]:
    """Centres [...,2] and logarithms of width and height [...,2] of boxes [...,4]."""
    box = np.asarray(boxes, np.float64)
    return (box[..., :2] + box[..., 2:]) / 2, np.log(np.maximum(box[..., 2:] - box[..., :2], 1e-3))


def smooth(
    motion: Motion, times: ArrayLike, seen: ArrayLike, wanted: ArrayLike, scale: ArrayLike = 1.0
) -> tuple[Floats, Floats]:
    """Coordinates at any times from sightings at some, both sides used.

    Args:
        motion: the numbers.
        times: [m] seconds of the sightings, increasing, m ≥ 1.
        seen: [m,D].
        wanted: [n] seconds, increasing; before the first sighting and after the last too.
        scale: [m] or a number, the unit of `motion` at each sighting.

    Returns:
        Means [n,D] and standard deviations [n].
    """
    at, values, ask = (np.asarray(one, np.float64) for one in (times, seen, wanted))
    unit = np.broadcast_to(np.asarray(scale, np.float64), at.shape)
    between = np.sqrt(unit[1:] * unit[:-1])
    filtered, predicted = [State.first(motion, values[0], unit[0])], []
    for k in range(1, len(at)):
        predicted.append(filtered[-1].after(motion, at[k] - at[k - 1], between[k - 1]))
        filtered.append(predicted[-1].seeing(motion, values[k], unit[k]))
    smoothed = filtered[-1:]
    for k in range(len(at) - 2, -1, -1):
        transition, _ = motion.step(at[k + 1] - at[k])
        smoothed.append(_back(filtered[k], predicted[k], smoothed[-1], transition))
    smoothed.reverse()

    mean, variance = np.empty((len(ask), values.shape[1])), np.empty(len(ask))
    place = np.searchsorted(at, ask, side="right") - 1  # the sighting at or before
    before, beyond = place < 0, place == len(at) - 1
    # Backwards the process is the same with the velocity turned round.
    turn = np.array([[1.0], [-1.0]])
    start = State(smoothed[0].mean * turn, smoothed[0].covariance * (turn @ turn.T))
    for rows, state, gaps, size in (
        (before, start, at[0] - ask, unit[0]),
        (beyond, smoothed[-1], ask - at[-1], unit[-1]),
    ):
        mean[rows], variance[rows] = _ahead(motion, state, gaps[rows], size)
    inside = ~before & ~beyond
    if inside.any():
        k = place[inside]
        mean[inside], variance[inside] = _inside(
            motion, _stacked(filtered, k), _stacked(predicted, k), _stacked(smoothed, k + 1),
            ask[inside] - at[k], at[k + 1] - ask[inside], between[k],
        )  # fmt: skip
    return mean, np.sqrt(np.maximum(variance, 0.0))


def _back(filtered: State, predicted: State, later: State, transition: Floats) -> State:
    gain = filtered.covariance @ transition.T @ np.linalg.inv(predicted.covariance)
    return State(
        filtered.mean + gain @ (later.mean - predicted.mean),
        filtered.covariance + gain @ (later.covariance - predicted.covariance) @ gain.T,
    )


def _ahead(motion: Motion, state: State, seconds: Floats, scale: float) -> tuple[Floats, Floats]:
    transition, drift = motion.step(seconds)  # [n,2,2]
    mean = (transition @ state.mean)[:, 0]
    covariance = transition @ state.covariance @ transition.transpose(0, 2, 1) + drift * scale**2
    return mean, covariance[:, 0, 0]


def _stacked(states: list[State], numbers: NDArray[np.int64]) -> State:
    """Many states as one, [n,2,D] and [n,2,2]."""
    return State(np.stack([one.mean for one in states])[numbers], np.stack([one.covariance for one in states])[numbers])


def _inside(
    motion: Motion, filtered: State, predicted: State, later: State, since: Floats, until: Floats, scale: Floats
) -> tuple[Floats, Floats]:
    """Places at times each between two sightings, `since` the one and `until` the other [n]; states stacked."""
    onto, drift = motion.step(since)
    ahead, _ = motion.step(until)
    turned = onto.transpose(0, 2, 1)
    covariance = onto @ filtered.covariance @ turned + drift * (scale**2)[:, None, None]
    gain = covariance @ ahead.transpose(0, 2, 1) @ np.linalg.inv(predicted.covariance)
    mean = onto @ filtered.mean + gain @ (later.mean - predicted.mean)
    covariance = covariance + gain @ (later.covariance - predicted.covariance) @ gain.transpose(0, 2, 1)
    return mean[:, 0], covariance[:, 0, 0]
