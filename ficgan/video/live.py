"""Frames as they come: covered with a bounded look-ahead, within a budget of time, never by leaving a face out."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ficgan.errors import UsageError
from ficgan.faces import DetectAt
from ficgan.faces.detection import check_image
from ficgan.video.association import AssociationConfig, Associator
from ficgan.video.cuts import CutDetector
from ficgan.video.fill import fill_track
from ficgan.video.libav import display_name
from ficgan.video.media import EncodeOptions, Frame
from ficgan.video.modes import effective_modes
from ficgan.video.read import open_video
from ficgan.video.render import Appearance, FrameJob, Renderer, VideoTools
from ficgan.video.result import VideoResult
from ficgan.video.rules import Rules
from ficgan.video.settings import VideoSettings
from ficgan.video.tracks import Sighting
from ficgan.video.write import VideoWriter

__all__ = ["Stream", "StreamResult", "record_live", "stream"]

MOST_STRIDE = 30
"""The detector looks at least at every so many frames, whatever the budget."""
WINDOW = 40
"""Sightings of a track that its place is computed from."""


@dataclass(frozen=True, eq=False)
class StreamResult:
    """One redacted frame."""

    frame: Frame
    image: NDArray[np.uint8]
    """H×W×3 uint8 RGB; the source's own array where nothing was to be hidden."""
    faces: list[Appearance]
    stride: int
    """At which the detector looks now."""
    seconds: float
    """Work that this frame took, without the wait for its look-ahead."""


@dataclass(eq=False)
class _Live:
    """A tracklet on its way through the window."""

    id: int
    sightings: deque[Sighting]
    scene_start: int
    person: str
    scene_end: int | None = None
    """Last frame of its scene, once a cut came."""


@dataclass(eq=False)
class _Known:
    """People seen in the stream so far."""

    tools: VideoTools
    linked: bool
    centroids: list[NDArray[np.float64]] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)

    def person(self, frame: Frame, face: Any, number: int) -> str:
        teller = self.tools.recognizer
        if not self.linked or teller is None or np.ptp(face.landmarks, axis=0).min() <= 0:
            return f"live/track {number}"
        reading = np.asarray(teller.embed(frame.image, face.landmarks[None])[0], np.float64)
        distances = [float(teller.distance(centroid, reading)) for centroid in self.centroids]
        best = int(np.argmin(distances)) if distances else -1
        if best >= 0 and teller.is_match(self.centroids[best], reading):
            self.counts[best] += 1
            self.centroids[best] += (reading - self.centroids[best]) / self.counts[best]
            return f"live/person {best + 1}"
        self.centroids.append(reading)
        self.counts.append(1)
        return f"live/person {len(self.centroids)}"


class Stream:
    """Redacts frames in order; iterate over it.

    A frame comes out when the look-ahead behind it has been searched, so that a face is covered before it is first
    seen. Where the work takes longer than the budget, the detector looks less often; every track stays covered by
    prediction until `patience` has passed.

    Args:
        tools: detector, recogniser, model.
        frames: in order, all of one size.
        fps: frames per second, for settings in seconds.
        settings: numbers; `link` job counts as file.
        look_ahead: frames; None: enough for the pad before a first sighting.
        budget: seconds of work a frame may take; None: no limit.
    """

    def __init__(
        self, tools: VideoTools, frames: Iterable[Frame], fps: float, *, settings: VideoSettings,
        look_ahead: int | None = None, budget: float | None = None,
    ) -> None:  # fmt: skip
        if not (np.isfinite(fps) and fps > 0):
            raise UsageError(f"fps is {fps}; give frames per second above 0")
        if budget is not None and not budget > 0:
            raise UsageError(f"the budget is {budget}; give seconds a frame may take, above 0")
        if look_ahead is not None and look_ahead < 0:
            raise UsageError(f"the look-ahead is {look_ahead}; give a number of frames, 0 or more")
        self._tools, self._frames, self._fps, self._settings = tools, frames, fps, settings
        self.look_ahead = int(np.ceil(settings.pad * fps)) if look_ahead is None else look_ahead
        self.budget, self.stride = budget, settings.stride
        self.renderer = Renderer(tools, settings)
        self.frames = self.searched = self.late = 0
        """Frames given out; frames the detector looked at; frames that took longer than the budget."""
        self.slowest = settings.stride
        """The largest stride there was."""
        self.tracks = 0
        self.seconds = 0.0
        """Work done."""

    def __iter__(self) -> Iterator[StreamResult]:
        settings = self._settings
        search = DetectAt(self._tools.detector, (settings.detect_size,) * 2, enlarge=False)
        follow = Associator(self._fps, AssociationConfig(patience=settings.patience))
        cuts, known = CutDetector(), _Known(self._tools, settings.link != "none")
        waiting: deque[Frame] = deque()
        live: dict[int, _Live] = {}
        due = scene_start = 0
        for frame in self._frames:
            began = time.perf_counter()
            cut = cuts.step(frame.image)
            if cut:
                for one in live.values():
                    one.scene_end = min(one.scene_end or frame.index - 1, frame.index - 1)
                scene_start = frame.index
            faces = None
            if cut or frame.index >= due:
                faces = search.detect(frame.image)
                due, self.searched = frame.index + self.stride, self.searched + 1
            found = follow.step(frame.index, faces, cut, frame.time)
            for face, number in zip(faces or (), found.ids, strict=True):
                if not number:
                    continue
                if number not in live:
                    self.tracks += 1
                    live[number] = _Live(
                        number, deque(maxlen=WINDOW), scene_start, known.person(frame, face, number)
                    )  # fmt: skip
                live[number].sightings.append(Sighting(frame.index, face))
            waiting.append(frame)
            if len(waiting) > self.look_ahead:
                yield self._out(waiting.popleft(), live, frame.index, began)
        while waiting:
            last = waiting[-1].index
            yield self._out(waiting.popleft(), live, last, time.perf_counter())

    def _out(self, frame: Frame, live: dict[int, _Live], newest: int, began: float) -> StreamResult:
        settings, shown = self._settings, []
        for one in list(live.values()):
            appearance = self._appearance(one, frame.index, newest)
            if appearance is not None:
                shown.append(appearance)
            elif one.sightings[-1].frame < frame.index:
                del live[one.id]
        (image,) = self.renderer([FrameJob(frame, shown)])
        spent = time.perf_counter() - began
        self.frames, self.seconds = self.frames + 1, self.seconds + spent
        if self.budget is not None:
            self.late += spent > self.budget
            mean = self.seconds / self.frames
            if mean > self.budget and self.stride < MOST_STRIDE:
                self.stride += 1
            elif mean < 0.7 * self.budget and self.stride > settings.stride:
                self.stride -= 1
            self.slowest = max(self.slowest, self.stride)
        return StreamResult(frame, image, shown, self.stride, spent)

    def _appearance(self, one: _Live, frame: int, newest: int) -> Appearance | None:
        settings, sightings = self._settings, list(one.sightings)
        before = settings.pad
        after = max(settings.patience, settings.pad)
        first, last = sightings[0].frame, sightings[-1].frame
        end = newest if one.scene_end is None else one.scene_end
        if frame < max(one.scene_start, first - int(np.ceil(before * self._fps))):
            return None
        if frame > min(end, last + int(np.ceil(after * self._fps))):
            return None
        track = fill_track(sightings, one.scene_start, end, before, after, self._fps, id=one.id)
        row = track.row(frame)
        if row is None:
            return None
        modes, _ = effective_modes(track, np.full(len(track), settings.mode, "<U6"), settings, self._fps)
        return Appearance(one.id, one.person, track.face(frame), str(modes[row]))

    def summary(self) -> dict[str, Any]:
        """What was done so far, JSON-ready."""
        return {
            "frames": self.frames,
            "searched": self.searched,
            "tracks": self.tracks,
            "look_ahead": self.look_ahead,
            "budget": self.budget,
            "late": self.late,
            "stride": self._settings.stride,
            "largest_stride": self.slowest,
            "seconds_a_frame": round(self.seconds / max(self.frames, 1), 4),
            "faces_by_action": dict(self.renderer.counts),
        }


def stream(
    tools: VideoTools, frames: Iterable[NDArray[np.uint8]], fps: float = 25.0, *, settings: VideoSettings,
    look_ahead: int | None = None, budget: float | None = None,
) -> Stream:  # fmt: skip
    """Redact frames given as arrays, H×W×3 uint8 RGB; see `Stream`.

    Raises:
        InputError: a frame is no such array.
    """

    def numbered() -> Iterator[Frame]:
        for index, image in enumerate(frames):
            yield Frame(index, index, index / fps, check_image(image))

    return Stream(tools, numbered(), fps, settings=settings, look_ahead=look_ahead, budget=budget)


def record_live(
    tools: VideoTools, path: str | os.PathLike[str], output: str | os.PathLike[str], *, settings: VideoSettings,
    rules: Rules | None = None, encode: EncodeOptions | None = None, start: float | None = None,
    end: float | None = None, project: Any = None, overwrite: bool = False,
    progress: Callable[[int, int | None, str], None] | None = None, is_cancelled: Callable[[], bool] | None = None,
) -> VideoResult:  # fmt: skip
    """Redact a camera or stream into a file until it ends, `end` is reached, or it is interrupted; the file is whole.

    The arguments are those of `process_film`; photos, boxes and projects need two passes and are refused.
    """
    if project is not None or (rules is not None and (rules.keep or rules.only or rules.boxes or rules.spans)):
        name = display_name(os.fspath(path))
        raise UsageError(f"{name}: exemptions and projects need a film that can be read twice; record it first")
    began = time.monotonic()
    with open_video(path, start=start, end=end) as source:
        rate = float(source.info.rate or Fraction(25))
        flow = Stream(tools, source.frames(), rate, settings=settings, budget=1 / rate)
        seconds, interrupted = 0.0, False
        with VideoWriter(output, source.info, encode, overwrite=overwrite) as writer:
            try:
                for result in flow:
                    writer.write(result.frame, result.image)
                    seconds = result.frame.time
                    if progress is not None:
                        progress(result.frame.index + 1, None, "recording")
                    if is_cancelled is not None and is_cancelled():
                        break
            except KeyboardInterrupt:  # the usual end of a recording
                interrupted = True
        notes = [*source.notes, *writer.notes]
        if interrupted:
            notes.append("The recording was ended by an interrupt.")
        if flow.slowest > settings.stride:
            notes.append(f"To keep up, the detector looked at every {flow.slowest}th frame only at times.")
        return VideoResult(
            Path(output), frames=flow.frames, seconds=seconds, tracks=flow.tracks,
            people=len(flow.renderer.casts), faces=flow.renderer.counts, notes=tuple(notes), damage=source.damage,
            settings={**vars(settings)}, account={"mode": settings.mode, "live": flow.summary()},
            timing={"recording": time.monotonic() - began},
        )  # fmt: skip
