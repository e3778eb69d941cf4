"""Tracks without gaps: every frame from the first sighting to the last has a box, and some before and after."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.ndimage import maximum_filter1d, uniform_filter1d

from ficgan.errors import UsageError
from ficgan.faces.smooth import SmoothConfig, smooth_landmarks
from ficgan.video.motion import LOG_SIZE, PLACE, Motion, measured, smooth
from ficgan.video.tracks import FILLED, PADDED, SEEN, Sighting, Track, Tracklet

__all__ = ["FillConfig", "fill_track", "fill_tracks", "scene_bounds"]

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class FillConfig:
    """Numbers of gap filling.

    Args:
        growth: standard deviations of the interpolated place by which a box grows on each side.
        most: the most a box grows on each side between two sightings, in sizes of the face.
        most_padded: the same before the first and after the last sighting.
        steady: seconds on either side over which the growth is the largest one, so that boxes do not pulsate between
            seen and filled frames.
        calm: share of the growth that is left for a face whose sightings lie on a straight, even way.
        certain: seconds; in longer gaps, and in those of more than two usual ones, the growth is whole, however calm
            the face was before.
        place: motion of the centre, lengths in sizes of the face.
        log_size: motion of the logarithms of width and height.
        smooth: smoothing of the landmarks; None leaves them.
    """

    growth: float = 1.5
    most: float = 0.5
    most_padded: float = 0.2
    steady: float = 0.16
    calm: float = 0.3
    certain: float = 0.7
    place: Motion = PLACE
    log_size: Motion = LOG_SIZE
    smooth: SmoothConfig | None = field(default_factory=SmoothConfig)


def scene_bounds(cuts: Sequence[int], frames: int, frame: int) -> tuple[int, int]:
    """First and last frame of the scene a frame lies in.

    Args:
        cuts: the frames that begin a new scene, increasing.
        frames: number of frames of the film.
        frame: any frame of the scene.
    """
    place = int(np.searchsorted(np.asarray(cuts, np.int64), frame, side="right"))
    return (cuts[place - 1] if place else 0), (cuts[place] if place < len(cuts) else frames) - 1


def fill_tracks(
    tracklets: Sequence[Tracklet], cuts: Sequence[int], times: ArrayLike, pad: float, config: FillConfig | None = None
) -> list[Track]:
    """Tracks of a film, numbered from 1 in the order of their first sightings.

    Args:
        tracklets: what was seen.
        cuts: the frames that begin a new scene, increasing.
        times: [frames] seconds at which each frame is shown.
        pad: seconds covered before the first and after the last sighting, inside the scene.
        config: numbers.
    """
    clock = np.asarray(times, np.float64)
    ordered = sorted(tracklets, key=lambda one: (one.first, one.id))
    return [
        fill_track(
            one.sightings, *scene_bounds(cuts, len(clock), one.first), pad, pad, clock,
            id=number, person=one.person, notes=one.notes, config=config,
        )
        for number, one in enumerate(ordered, start=1)
    ]  # fmt: skip


def fill_track(
    sightings: Sequence[Sighting], first_frame: int, last_frame: int, pad_before: float, pad_after: float,
    times: ArrayLike | float = 25.0, *, id: int = 1, person: int = 0, notes: Sequence[str] = (),
    config: FillConfig | None = None,
) -> Track:  # fmt: skip
    """A track with a row for every frame, from sightings of one face.

    Between sightings the centre follows the smoothed motion and the box holds the straight way too; it grows with the
    uncertainty. A seen box is never made smaller. Before and after, the motion dies away and the box holds the place of
    the last sighting. Boxes may reach beyond the picture, as faces do.

    Args:
        sightings: in the order of frames, one a frame, within one scene.
        first_frame, last_frame: of the scene or the film; no row lies beyond.
        pad_before, pad_after: seconds covered before the first and after the last sighting.
        times: [frames] seconds at which each frame of the film is shown, or frames per second.
        id, person, notes: of the track.
        config: numbers.

    Returns:
        A `Track`.

    Raises:
        UsageError: No sightings, not in order, or outside the scene.
    """
    numbers = np.array([one.frame for one in sightings], np.int64)
    if not len(numbers) or (np.diff(numbers) <= 0).any() or numbers[0] < first_frame or numbers[-1] > last_frame:
        raise UsageError(
            f"A track needs sightings in increasing frames from {first_frame} to {last_frame}, not {numbers[:9]}."
        )
    config = config or FillConfig()
    frames, clock = _span(numbers, first_frame, last_frame, pad_before, pad_after, times)
    start = frames[0]
    boxes = np.stack([one.face.box for one in sightings]).astype(np.float64)
    centre, log_size = measured(boxes)
    size = np.exp(log_size.mean(1))
    at = clock[numbers - start]
    middle, loose = smooth(config.place, at, centre, clock, size)
    logs, vague = smooth(config.log_size, at, log_size, clock)
    # The smoothed size never falls below what was seen on both sides.
    between = _interpolated(clock, at, log_size)
    half = np.exp(np.maximum(logs, between)) / 2
    straight = _interpolated(clock, at, centre)

    origin = np.full(len(frames), FILLED, np.uint8)
    origin[(frames < numbers[0]) | (frames > numbers[-1])] = PADDED
    origin[numbers - start] = SEEN
    unit = np.exp(_interpolated(clock, at, np.log(size)[:, None]))[:, 0]
    cap = np.where(origin == PADDED, config.most_padded, config.most) * unit
    spread = (loose + vague * unit / 2) * _liveliness(config, clock, at, centre, size)
    margin = np.minimum(config.growth * spread, cap)
    margin[origin == SEEN] = 0.0
    margin = _held(margin, clock, config.steady)
    grown = half + margin[:, None]
    filled = np.concatenate([np.minimum(middle, straight) - grown, np.maximum(middle, straight) + grown], 1)
    # In a seen frame the straight way is the sighting itself: the box holds it and the smoothed one.
    marks = np.stack([one.face.landmarks for one in sightings]).astype(np.float64)
    landmarks = _carried(clock, at, (marks - centre[:, None]) / np.exp(log_size)[:, None], middle, np.exp(logs))
    landmarks[numbers - start] = marks
    if config.smooth is not None:
        rate = (len(clock) - 1) / (clock[-1] - clock[0]) if len(clock) > 1 else 25.0
        landmarks = smooth_landmarks(landmarks, rate, config.smooth)
    scores = np.zeros(len(frames), np.float32)
    scores[numbers - start] = [one.face.score for one in sightings]
    return Track(
        id, int(start), filled.astype(np.float32), landmarks.astype(np.float32), scores, origin, person, list(notes)
    )


def _span(
    numbers: NDArray[np.int64], first: int, last: int, before: float, after: float, times: ArrayLike | float
) -> tuple[NDArray[np.int64], Floats]:
    """The frames of a track and their seconds."""
    if np.ndim(times) == 0:
        rate = float(np.asarray(times))
        # A pad that falls short by rounding is a frame short.
        start = max(first, numbers[0] - int(np.ceil(before * rate - 1e-6)))
        stop = min(last, numbers[-1] + int(np.ceil(after * rate - 1e-6)))
        frames = np.arange(start, stop + 1)
        return frames, frames / rate
    clock = np.asarray(times, np.float64)
    start = max(first, int(np.searchsorted(clock, clock[numbers[0]] - before - 1e-6)))
    stop = min(last, int(np.searchsorted(clock, clock[numbers[-1]] + after + 1e-6, side="right")) - 1)
    frames = np.arange(min(start, numbers[0]), max(stop, numbers[-1]) + 1)
    return frames, clock[frames]


def _interpolated(clock: Floats, at: Floats, values: Floats) -> Floats:
    """Linear between sightings, the end's value beyond: [n,D]."""
    return np.stack([np.interp(clock, at, column) for column in values.T], 1)


def _carried(clock: Floats, at: Floats, shape: Floats, middle: Floats, size: Floats) -> Floats:
    """Landmarks [n,5,2] that move with the box: the places inside the seen boxes [m,5,2], linear between."""
    inside = _interpolated(clock, at, shape.reshape(len(at), 10)).reshape(-1, 5, 2)
    return middle[:, None] + inside * size[:, None]


def _held(margin: Floats, clock: Floats, reach: float) -> Floats:
    """The largest margin within `reach` seconds, then without corners; nowhere below what it was: [n]."""
    if len(clock) < 3 or reach <= 0:
        return margin
    step = float(np.median(np.diff(clock)))
    width = 2 * max(0, round(reach / step)) + 1
    return np.maximum(margin, uniform_filter1d(maximum_filter1d(margin, width, mode="nearest"), width, mode="nearest"))


def _liveliness(config: FillConfig, clock: Floats, at: Floats, centre: Floats, size: Floats) -> Floats:
    """Share of the growth that each frame needs [n], from how far the sightings around it lie off an even way.

    Under `config.place` a sighting lies off the chord of its neighbours, h and H seconds away, with the variance
    2·speed²/memory·h²·H²/(3·(h + H)), besides the detector's own errors.
    """
    if len(at) < 4:
        return np.ones(len(clock))
    before, after = np.diff(at)[:-1], np.diff(at)[1:]
    share = (before / (before + after))[:, None]
    off = (centre[1:-1] - centre[:-2] * (1 - share) - centre[2:] * share) / size[1:-1, None]
    usual = 2 * config.place.speed**2 / config.place.memory * (before * after) ** 2 / (3 * (before + after))
    error = config.place.noise**2 * (1 + share[:, 0] ** 2 + (1 - share[:, 0]) ** 2)
    ratio = np.sqrt(np.maximum((off**2).mean(1) - error, 0) / usual)  # [m-2]
    # A gap asks the two sightings at its ends and one more on each side.
    padded = np.pad(ratio, 2, mode="edge")  # of the sightings -1 … m
    gaps = np.lib.stride_tricks.sliding_window_view(padded, 4).max(1)  # [m-1]
    gaps = np.clip(gaps, config.calm, 1.0)
    gaps[np.diff(at) > min(config.certain, 2.5 * float(np.median(np.diff(at))))] = 1.0
    place = np.searchsorted(at, clock, side="right") - 1
    return np.where((place < 0) | (place >= len(gaps)), 1.0, gaps[np.clip(place, 0, len(gaps) - 1)])
