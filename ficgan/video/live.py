"""Frames as they come: covered with a bounded look-ahead and within a budget of time, without leaving out a face."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain, count, repeat
from statistics import fmean
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ficgan.anonymizers.modes import shown
from ficgan.arrays import windows
from ficgan.errors import UsageError
from ficgan.faces import DetectAt, Face, FaceDetector, colour_beside
from ficgan.faces.covers import ObjectDetector
from ficgan.faces.detection import check_image
from ficgan.faces.mesh import SmoothConfig
from ficgan.folders import working
from ficgan.video import HOLD, FilmTask, Pace, VideoSettings, VideoTools
from ficgan.video.association import Associator
from ficgan.video.decided import SMALL, Appearance, FrameJob
from ficgan.video.found import FieldSearch
from ficgan.video.people import People, readable
from ficgan.video.rendered import Renderer, VideoResult
from ficgan.video.source import Frame, with_cuts
from ficgan.video.tracks import FILLED, FOREVER, PADDED, Sighting, Track, fill_track
from ficgan.video.write import SegmentWriter, assemble, finished_segments

# Share of the budget that is planned with; the rest is for what varies.
SHARE = 0.9


@dataclass(frozen=True, eq=False)
class StreamResult:
    """One redacted frame; `image` may be the source's own array."""

    frame: Frame
    image: NDArray[np.uint8]
    faces: list[Appearance]


@dataclass(eq=False)
class _LiveTrack:
    """A track that grows while its frames leave the window, from its latest sightings; `number`: the person or 0.
    `kind` names what is no face, and `cover` covers it."""

    id: int
    number: int
    scene_start: int
    lead: int
    pace: Pace
    kind: str
    cover: str
    sightings: list[Sighting] = field(default_factory=list)
    scene_end: int = FOREVER
    _filled: tuple[tuple[int, bool], Track, NDArray[np.str_]] | None = None

    @property
    def person(self) -> str:
        return f"live/person {self.number}" if self.number else f"live/track {self.id}"

    def appearance(self, frame: int, looked: int, settings: VideoSettings, rate: float) -> Appearance | None:
        """The face in a frame, None where it is not there. Frames come in order; `looked` is the last one searched."""
        if frame > self.scene_end:
            return None
        state = self.sightings[-1].frame, looked > self.sightings[-1].frame
        # What lies a little before the last sighting does not change with the next one.
        settled = self._filled and frame + SmoothConfig().frames(rate) <= self._filled[0][0]
        if self._filled is None or not (settled or self._filled[0] == state):
            self._filled = state, *self._fill(frame, *state, settings, rate)
        _, track, modes = self._filled
        if not track.first <= frame <= track.last:
            return None
        row = frame - track.first
        return Appearance(self.id, self.person, track.face(row), str(modes[row]), self.kind)

    def _fill(
        self, frame: int, last: int, missed: bool, settings: VideoSettings, rate: float
    ) -> tuple[Track, NDArray[np.str_]]:
        # What a place depends on: a few sightings before it, and as far back as a fallback is held.
        past = frame - int(np.ceil(HOLD * rate))
        while len(self.sightings) > 3 and self.sightings[3].frame <= past:
            del self.sightings[0]
        before, after = max(self.pace.pad, self.lead / rate), max(self.pace.patience, self.pace.pad)
        # A pad that falls short by rounding is a frame short.
        first = max(self.scene_start, self.sightings[0].frame - int(np.ceil(before * rate - 1e-6)))
        end = min(self.scene_end, last + int(np.ceil(after * rate - 1e-6)))
        track = fill_track(self.sightings, first, np.arange(first, end + 1) / rate, id=self.id)
        if not missed:  # until the next look it is there, as between two sightings
            track.origin[last + 1 - track.first :] = FILLED
        mode, sides = self.cover or settings.mode, (track.boxes[:, 2:] - track.boxes[:, :2]).min(1)
        covered = windows(sides < SMALL, max(1, round(HOLD * rate))).any(1) | (track.origin == PADDED)
        return track, np.where(covered & (mode == "ficgan"), settings.fallback, mode)


class Stream:
    """Redacts frames in order; iterate over it, once.

    A frame comes out when the look-ahead behind it has been searched, and two more frames were seen for cuts. Between
    two looks, and until `patience` has passed, a face is covered by prediction. Frames of another size begin a scene.

    Args:
        look_ahead: frames; None: enough for the pad before a first sighting, and for the stride.
        budget: mean seconds of work per frame, beyond which the detector looks less often; None: no limit.
    """

    def __init__(
        self,
        tools: VideoTools,
        frames: Iterable[Frame],
        fps: float,
        *,
        settings: VideoSettings,
        look_ahead: int | None = None,
        budget: float | None = None,
    ) -> None:
        if not (np.isfinite(fps) and fps > 0 and (budget is None or budget > 0) and (look_ahead or 0) >= 0):
            raise UsageError(f"fps {fps} and budget {budget} must be above 0, the look-ahead {look_ahead} 0 or more")
        pace = settings.at(fps)
        self._frames, self._rate, self._settings, self._pace = frames, fps, settings, pace
        usual = max(int(np.ceil(pace.pad * fps)), pace.stride - 1)
        self.look_ahead = usual if look_ahead is None else look_ahead
        # The stride of the detector, so that frames take `budget` seconds on average; the last seconds of its looks and
        # of all other work.
        self._budget, self._stride, self._largest = budget, pace.stride, pace.stride
        self._most = max(pace.stride, min(self.look_ahead + 1, int(pace.patience * fps)))
        self._looks, self._rest = deque[float](maxlen=3), deque[float](maxlen=12)
        # By the kind of what they find: "" is a face.
        self._detectors: dict[str, FaceDetector | ObjectDetector] = {
            "": FieldSearch(DetectAt(tools.detector, (settings.detect_size,) * 2, enlarge=False)),
            **{detector.name: detector for detector in tools.objects},
        }
        self._covers = {detector.name: detector.cover for detector in tools.objects}
        ids = count(1)
        self._follow = {kind: Associator(pace.patience, ids) for kind in self._detectors}
        self._recognizer = tools.recognizer if settings.link != "none" else None
        self._known = People(self._recognizer)
        self._live: dict[int, _LiveTrack] = {}
        self._shape, self._scene_start, self._looked = (0, 0), 0, -1
        self.renderer = Renderer(tools, settings)
        # What is no face, by name: tracks, and finds of single frames.
        self.objects = {detector.name: Counter(tracks=0, covered=0, kept=0) for detector in tools.objects}
        self.people: set[str] = set()
        # Frames given out; those that took longer than the budget; tracks of faces.
        self.frames = self.late = self.tracks = 0

    def __iter__(self) -> Iterator[StreamResult]:
        waiting: deque[Frame] = deque()
        for taken in chain(with_cuts(self._frames), repeat(None)):
            began, look, result = time.perf_counter(), 0.0, None
            if taken is not None:
                frame, _, cut = taken
                look = self._take(frame, cut)
                waiting.append(frame)
            elif not waiting:
                return
            if taken is None or len(waiting) > self.look_ahead:
                shown = waiting.popleft()
                faces = self._appearances(shown.index)
                result = StreamResult(shown, self.renderer([FrameJob(shown, faces)])[0], faces)
                self.frames += 1
            self._pace_by(look, time.perf_counter() - began)
            if result is not None:
                yield result

    def _pace_by(self, look: float, spent: float) -> None:
        """Choose the stride by the seconds of a frame's look (0: there was none) and of all its work."""
        if look:
            self._looks.append(look)
        self._rest.append(spent - look)
        if self._budget is None or not self._looks:
            return
        self.late += spent > self._budget
        left = SHARE * self._budget - fmean(self._rest)
        stride = int(np.ceil(min(fmean(self._looks) / left, self._most))) if left > 0 else self._most
        self._stride = min(max(stride, self._pace.stride), self._most)
        self._largest = max(self._largest, self._stride)

    def _take(self, frame: Frame, cut: bool) -> float:
        """Take the next frame; `cut`: a scene begins with it. Returns the seconds that the detector looked, or 0."""
        if frame.time > 0 and frame.index >= 25:  # a stream faster than it says: seconds are more frames
            self._rate = max(self._rate, frame.index / frame.time)
        cut = cut or (frame.index > 0 and frame.image.shape[:2] != self._shape)
        self._shape = frame.image.shape[:2]
        if cut:
            for track in self._live.values():
                track.scene_end = min(track.scene_end, frame.index - 1)
            self._scene_start = frame.index
        found, seconds, lead = dict[str, list[Face]](), 0.0, frame.index - self._looked - 1
        if cut or self._looked < 0 or lead + 1 >= self._stride:
            began = time.perf_counter()
            found = {kind: detector.detect(frame.image) for kind, detector in self._detectors.items()}
            seconds, self._looked = time.perf_counter() - began, frame.index
        for kind, follow in self._follow.items():
            ids, _ = follow.step(frame.index, frame.time, found.get(kind), cut)
            self._see(frame, kind, dict(zip(ids, found.get(kind, ()), strict=True)), lead)
        return seconds

    def _see(self, frame: Frame, kind: str, seen: dict[int, Face], lead: int) -> None:
        """Take the finds of one kind, by their tracks."""
        present = {self._live[number].number for number in seen if number in self._live}
        for number, face in seen.items():
            if number not in self._live:
                person = 0
                if self._recognizer is not None and not kind and readable(face):
                    person = self._known.meet(self._recognizer.embed(frame.image, face.landmarks[None]), present)
                cover = self._covers.get(kind, "")
                track = _LiveTrack(number, person, self._scene_start, lead, self._pace, kind, cover)
                self._live[number] = track
                # The colour where it was first seen, which is after its pad has begun.
                self.renderer.colours[number] = colour_beside([(frame.image, face)])
                if kind:
                    self.objects[kind]["tracks"] += 1
                else:
                    present.add(person)
                    self.people.add(track.person)
                    self.tracks += 1
            self._live[number].sightings.append(Sighting(frame.index, face))

    def _appearances(self, frame: int) -> list[Appearance]:
        """The faces in a frame, not before that of the last call."""
        found = []
        for track in list(self._live.values()):
            appearance = track.appearance(frame, self._looked, self._settings, self._rate)
            if appearance is not None:
                found.append(appearance)
                if track.kind:
                    self.objects[track.kind]["covered"] += 1
            elif track.sightings[-1].frame < frame:
                del self._live[track.id]
        return found

    def summary(self) -> dict[str, Any]:
        facts = {name: getattr(self, name) for name in ("frames", "tracks", "look_ahead", "late")}
        pace = {"budget": self._budget, "stride": self._stride, "largest_stride": self._largest}
        return {**facts, **pace, "faces_by_action": dict(self.renderer.counts)}


def stream(tools: VideoTools, frames: Iterable[NDArray[np.uint8]], fps: float = 25.0, **options: Any) -> Stream:
    """Redact frames given as arrays, H×W×3 uint8 RGB; options as of `Stream`."""
    numbered = (Frame(index, index, index / fps, check_image(image)) for index, image in enumerate(frames))
    return Stream(tools, numbered, fps, **options)


def record_live(task: FilmTask) -> VideoResult:
    """Redact a camera or stream into a file, whole whatever ends it: its end, the span's or an interrupt."""
    tools, source, settings, output, encode = task.tools, task.source, task.settings, task.output, task.encode
    rate = float(source.info.rate or 25)
    budget = None if source.name.startswith("pipe:") else 1 / rate  # a pipe waits, a camera does not
    flow = Stream(tools, source.frames(), rate, settings=settings, budget=budget)
    seconds, notes = 0.0, [*source.notes]
    with working(output) as folder:
        for segment in finished_segments(folder):  # of another recording that was killed
            segment.path.unlink()
        with SegmentWriter(folder, source.info, encode, output=output) as writer:
            try:
                for result in flow:
                    writer.write(result.frame, result.image)
                    seconds = result.frame.time
                    task.progress(result.frame.index + 1, None, "recording")
            except KeyboardInterrupt:  # the usual end of a recording
                source.end_pts = None  # it was read farther than written
                notes.append("The recording was ended by an interrupt.")
        synthetic = encode.tag and flow.renderer.counts["generated"] > 0
        made = assemble(writer.segments, source, output, encode, overwrite=task.overwrite, synthetic=synthetic)
        notes += made.notes
    account = flow.summary()
    if account["largest_stride"] > settings.at(rate).stride:
        notes.append(f"To keep up, the detector looked at times only at every {account['largest_stride']}th frame.")
    return VideoResult(
        output,
        frames=flow.frames,
        seconds=seconds,
        tracks=account["tracks"],
        people=len(flow.people),
        faces=flow.renderer.counts,
        objects=flow.objects,
        notes=tuple(dict.fromkeys(notes)),
        damage=source.damage,
        settings=settings.to_dict(),
        synthetic=made.synthetic,
        account={"mode": shown(settings.mode), **tools.methods.accounts([settings.mode]), "live": account},
    )
