"""The third stage of a film, *rendered*: faces covered, frames drawn in segments and put together with the sound.

One `Renderer` serves files, cameras and streams. `JobState` is what a film leaves in its work folder, to go on from.
"""

from __future__ import annotations

import json
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, Field

from ficgan.anonymizers.modes import aligned_crop, cover, paste_aligned, placement
from ficgan.errors import InputError, UsageError
from ficgan.face_model import Floats
from ficgan.faces import Face, Paste, colour_beside, cover_face
from ficgan.faces.covers import Colour
from ficgan.faces.detection import overlaps
from ficgan.files import atomic_write
from ficgan.options import HIDING
from ficgan.policy import covered
from ficgan.video import CHUNK, FilmTask, VideoSettings, VideoTools
from ficgan.video.decided import Appearance, CheckReport, FilmFinding, FilmPlan, FrameJob, fallback_of
from ficgan.video.decisions import Drawing
from ficgan.video.identities import FaceKey, FaceReader, FilmFace, Identities
from ficgan.video.project import PROJECT_FILE, TRACKS_FILE
from ficgan.video.source import Frame
from ficgan.video.write import Assembled, SegmentWriter, assemble, finished_segments

# Share of a track's box that is the face. It holds the smoothed and the seen place and a margin: in three films it was
# 1.07 to 1.2 times the detector's own. Judged by its whole size, good faces turned black for a few frames.
LEAST_FACE = 0.9
# Standard deviation of the blur as a fraction of the face's longer side.
BLUR = 0.15
# Area of a detector's box over the square of its landmarks' larger extent.
BOX_OVER_LANDMARKS = 5.0
# Weight of a new face from which on nothing of the source is left.
_WHOLE = 0.99
# Overlap of a mesh with the box of its track from which on it is this face's.
NEARBY = 0.3
# Overlap of a new face with the box of its track from which on it is shown, with a cover below for what it leaves bare.
THERE = 0.38
Image = NDArray[np.uint8]


def bring_back(out: Image, paste: Paste, before: Image, other: Face | None) -> None:
    """Take a cover off a new face that it was drawn over, in place, where the new face leaves nothing of the source.
    `before` is the paste's region [h,w,3] without the cover; the ellipse in the box of `other` stays covered."""
    clear = paste.weight >= _WHOLE
    if other is not None:
        (x0, y0), (x1, y1) = other.box[:2], other.box[2:]
        y, x = np.ogrid[: clear.shape[0], : clear.shape[1]]
        across = (2 * (x + paste.x0) - x0 - x1) / (x1 - x0)
        down = (2 * (y + paste.y0) - y0 - y1) / (y1 - y0)
        clear &= across**2 + down**2 > 1
    paste.region(out)[clear] = before[clear]


def hides(mask: Floats, face: Face, coverage: float, outline: Floats | None = None) -> bool:
    """Whether a mask [H,W] hides a face of a track; `outline` [n,2] is that of the face's mesh in this frame."""
    centre = np.tile((face.box[:2] + face.box[2:]) / 2, 2)
    box = centre + LEAST_FACE * (face.box - centre)
    return covered(mask, face.landmarks, box, coverage, outline)


# Finds frames that show a face.
Views = Callable[[], Sequence[tuple[Image, Face]]]


def colour_views(jobs: Sequence[FrameJob], frame: int, track: int) -> list[tuple[Image, Face]]:
    """A track's face in a frame and the later ones at hand; of earlier ones an interrupted film has others at hand."""
    shown = [(job.frame.image, one) for job in jobs if job.frame.index >= frame for one in job.appearances]
    return [(image, one.face) for image, one in shown if one.track == track]


def without_landmarks(box: Floats) -> Face:
    return Face(box, np.full((5, 2), np.nan, np.float32), 0.0)


def face_area(face: Face) -> float:
    """Of a face by its landmarks: a box between two finds is larger than the face. Of one without landmarks its box."""
    extent = float(np.ptp(face.landmarks, axis=0).max())
    return BOX_OVER_LANDMARKS * extent**2 if np.isfinite(extent) else float(np.prod(face.box[2:] - face.box[:2]))


def hides_source(made: FilmFace, coverage: float) -> bool:
    """Whether a new face that was drawn hides the source's."""
    assert made.paste is not None
    face, reading, mask = made.appearance.face, made.reading, made.paste.mask
    outline = None if made.appearance.bridged is not None else reading.outline
    if hides(mask, face, coverage, outline):
        return True
    if face.score or not reading.sure or outline is None or reading.landmarks is None:
        return False
    # Where nobody saw the face in this frame, a sure mesh knows its place better than a box between two sightings.
    own = Face(np.concatenate([outline.min(0), outline.max(0)]), reading.landmarks, 0.0)
    return overlaps(own.box, face.box)[0, 0] >= NEARBY and hides(mask, own, coverage, outline)


def _is_there(made: FilmFace) -> bool:
    """Whether a new face lies where its own is, though it may leave a part of that bare."""
    paste = made.paste
    assert paste is not None
    x, y, width, height = cv2.boundingRect((paste.weight > 0.5).astype(np.uint8))
    left, top = paste.x0 + x, paste.y0 + y
    box = np.array([left, top, left + width - 1, top + height - 1], np.float32)
    return width > 0 and bool(overlaps(box, made.appearance.face.box)[0, 0] >= THERE)


def stands(made: FilmFace, coverage: float) -> bool:
    """Whether a new face that was drawn is shown, if need be with a cover below it."""
    return hides_source(made, coverage) or _is_there(made)


class Renderer:
    """Redacts frames, a chunk at a time, in order; faces are smoothed over `reach` frames on either side, and those of
    the people in `drawings` are drawn as these say."""

    def __init__(
        self, tools: VideoTools, settings: VideoSettings, reach: int = 0, drawings: Mapping[str, Drawing] | None = None
    ) -> None:
        self.tools, self.settings, self._drawings = tools, settings, drawings or {}
        # Faces of single frames by what was done to them, and by why they are not generated: "unread" and "known", see
        # `Identities`; "beside its place": the new face does not lie where the source's does.
        self.counts: Counter[str] = Counter()
        self.causes: Counter[str] = Counter()
        self.identities = Identities(tools, settings.mask_scale, self.causes, self._drawings)
        # Mode and person → the crop that stands for the person: fresh noise would average out over the film.
        self.stills: dict[tuple[str, str], Image] = {}
        # Track → the one colour of its plain covers; −1 − n for the n-th of the boxes that a person added.
        self.colours: dict[int, Colour] = {}
        self._reader = None if tools.face_model is None else FaceReader(tools.face_model, reach)

    def __call__(self, jobs: Sequence[FrameJob], around: Sequence[FrameJob] = ()) -> list[Image]:
        """The new images of consecutive frames; a frame without faces is the source's own array.

        `around` are frames before and after, as far as they were not in the last call: with twice the reach on each
        side every frame is smoothed in the same way, wherever a chunk begins.
        """
        new = {} if self._reader is None else self.identities.draw(self._reader.read(jobs, around))
        return [self._compose(job, new, [*jobs, *around]) for job in jobs]

    def restart(self) -> None:
        """Forget what was drawn, but not who is whom: the film is drawn again from its beginning."""
        self.counts.clear()
        self.causes.clear()
        if self._reader is not None:
            self._reader = FaceReader(self._reader.model, self._reader.reach)
        for one in self.identities.people.values():
            one.checked, one.hidden, one.watched, one.distance = {}, set(), set(), None

    def _compose(self, job: FrameJob, new: Mapping[FaceKey, FilmFace], near: Sequence[FrameJob]) -> Image:
        index, source, coverage = job.frame.index, job.frame.image, self.tools.policy.coverage
        kept = [one for one in job.appearances if one.mode == "keep" and not one.kind]
        for one in kept:
            self.note(index, one, "kept")
        changed = [one for one in job.appearances if one.mode != "keep"]
        if not changed and not job.regions:
            return source
        out, drawn, boxes = source.copy(), list[Paste](), [one.face.box for one in kept]
        # Largest last: the nearer face hides the farther one. Covers yield to new faces, see `bring_back`.
        for one in sorted(changed, key=lambda one: face_area(one.face)):
            face, made = one.face, new.get((one.track, index))
            views = partial(colour_views, near, index, one.track)
            if one.kind:  # the cover is to hold the whole box, and not only its corners as seen
                self._cover(out, without_landmarks(face.box), one.mode, one.track, views)
                continue
            done = "generated"
            if made is None or not hides_source(made, coverage):
                fallback = fallback_of(self._drawings.get(one.person), self.settings.fallback)
                mode = fallback if one.mode == "ficgan" else one.mode
                below = [(other, other.region(out).copy()) for other in drawn]
                done = self._cover(out, face, mode, one.track, views, one.person)
                for other, before in below:
                    bring_back(out, other, before, None if one.hidden else face)
                if made is not None and _is_there(made):  # what it leaves bare the cover hides
                    done = "generated"
                elif made is not None:
                    self.causes["beside its place"] += 1
                    made = None
            if made is not None:
                drawn.append(self.identities.paste_onto(made, out, boxes))
            self.note(index, one, done, made)
        for box, mode, number in job.regions:
            face = without_landmarks(box)
            self._cover(out, face, mode, -1 - number, partial(list, [(source, face)]))
            self.counts["region"] += 1
        return out

    def _cover(self, out: Image, face: Face, mode: str, track: int, views: Views, person: str = "") -> str:
        """Cover a face in a frame [H,W,3], in place, by any mode but "ficgan" and "keep"; returns the mode used.
        `views` finds frames with the face, for its colour."""
        settings, methods = self.settings, self.tools.methods
        scale = max(1.0, settings.mask_scale)
        if mode in HIDING:
            if mode == "plain" and track not in self.colours:
                self.colours[track] = colour_beside(views() or [(out, face)])
            colour = self.colours.get(track)
            cover_face(out, face, mode, colour=colour, blur=BLUR, mask_scale=scale).onto(out)
            return mode
        method, name = methods(mode), methods.name(person)
        try:
            if placement(method) != "aligned":
                paste = cover(method, out, face, name=name, mask_scale=scale, stepped=True)
            else:
                if (mode, person) not in self.stills:
                    self.stills[mode, person] = aligned_crop(method, out, face, name=name)
                paste = paste_aligned(out, self.stills[mode, person], face, mask_scale=settings.mask_scale)
        except (InputError, UsageError):
            if method.traits.family == "external":
                raise
        else:
            if hides(paste.mask, face, self.tools.policy.coverage):
                paste.onto(out)
                return method.name
        return self._cover(out, face, settings.fallback, track, views)

    def note(self, frame: int, appearance: Appearance, done: str, made: FilmFace | None = None) -> None:
        """Count what was done to a face in a frame; `made` is its new one. Tools that measure films listen here."""
        self.counts[done] += 1


# -- what an interrupted film resumes from ----------------------------------------------------------------------------

_STATE = "ficgan-state.json"


class JobState(BaseModel):
    """What an interrupted film resumes from: ficgan-state.json in its private work folder.

    `identity` is a hash of all that shapes the result; `chosen`: no other new face is tried for anybody; `findings` are
    the check's; `drawn` is what the renderer knew after the last finished segment.
    """

    folder: Path = Field(exclude=True)
    identity: str
    seed: int | None = None
    methods_seed: int
    analysed: bool = False
    chosen: bool = False
    findings: list[FilmFinding] = []
    drawn: dict[str, Any] | None = None

    @classmethod
    def of(cls, folder: Path, tools: VideoTools, identity: str) -> JobState:
        """The state of this job, whose seeds the tools get; the files of any other job are removed."""
        model = tools.face_model
        try:
            state = cls(folder=folder, **json.loads((folder / _STATE).read_bytes()))
        except (OSError, ValueError, TypeError):
            state = None
        if state is None or state.identity != identity:
            for path in folder.iterdir():
                if path.name.startswith("ficgan-") or path.name in (PROJECT_FILE, TRACKS_FILE):
                    path.unlink()
            seed = None if model is None else model.seed
            state = cls(folder=folder, identity=identity, seed=seed, methods_seed=tools.methods.seed)
            state.note()
        tools.methods.seed = state.methods_seed
        if model is not None and state.seed is not None:
            model.seed = state.seed
        state.analysed &= (folder / PROJECT_FILE).is_file()
        return state

    def note(self, **facts: Any) -> None:
        for name, value in facts.items():
            setattr(self, name, value)
        with atomic_write(self.folder / _STATE, overwrite=True, mode=0o600) as file:
            file.write(self.model_dump_json().encode())

    def save(self, renderer: Renderer, frames: int, **facts: Any) -> None:
        """Save what the renderer knows when it has drawn the first `frames` frames, those of all finished segments."""
        drawn = {
            "frames": frames,
            "people": {person: identity.to_dict() for person, identity in renderer.identities.people.items()},
            "stills": [(*key, still.tolist()) for key, still in renderer.stills.items()],
            "colours": list(renderer.colours.items()),
            "counts": dict(renderer.counts),
            "causes": dict(renderer.causes),
        }
        self.note(drawn=drawn, **facts)

    def load(self, renderer: Renderer) -> None:
        """Restore what the renderer of the interrupted run knew; later segments are removed and rendered again."""
        drawn, identities = self.drawn, renderer.identities
        if drawn is not None:
            identities.people = {person: identities.restored(person, tree) for person, tree in drawn["people"].items()}
            renderer.stills = {(mode, person): np.array(still, np.uint8) for mode, person, still in drawn["stills"]}
            renderer.colours = {track: tuple(colour) for track, colour in drawn["colours"]}
            renderer.counts.update(drawn["counts"])
            renderer.causes.update(drawn["causes"])
        for segment in finished_segments(self.folder):
            if drawn is None or segment.last >= drawn["frames"]:
                segment.path.unlink()


# -- the film ----------------------------------------------------------------------------------------------------------


def choose_faces(task: FilmTask, plan: FilmPlan, renderer: Renderer, state: JobState) -> None:
    """Try the new faces of all people on a few frames, where neither an interrupted run nor the job has done so."""
    tools, settings, identities = task.tools, task.settings, renderer.identities
    if tools.face_model is None or identities.people or settings.verify == "off" or not tools.verifies:
        return
    wanted = plan.auditions()
    known = tools.job_identities if settings.link == "job" else {}
    for person in set().union(*wanted.values()) & set(known):
        identities.people[person] = replace(identities.identity(person, *known[person]), settled=True)
    audition(task, plan, identities, {frame: people - set(identities.people) for frame, people in wanted.items()})
    known |= {person: (one.z_id, one.attempt, one.kind) for person, one in identities.people.items()}
    state.save(renderer, 0)


def audition(task: FilmTask, plan: FilmPlan, identities: Identities, wanted: Mapping[int, set[str]]) -> None:
    """Choose the identities of people on single frames, by frame."""

    def jobs(people: Collection[str]) -> Iterator[FrameJob]:
        frames = {frame: wanted[frame] & set(people) for frame in wanted if wanted[frame] & set(people)}
        for frame in to_choose_on(task, plan, frames.__contains__) if frames else ():
            yield plan.job(frame, frames[frame.index])
            if frame.index == max(frames):
                return

    identities.choose(jobs, set().union(*wanted.values()))


def to_choose_on(task: FilmTask, plan: FilmPlan, wanted: Callable[[int], bool]) -> Iterator[Frame]:
    """The frames that are wanted to choose faces on; progress counts all."""
    step = task.step("choosing faces", len(plan.film.pts))
    return as_analysed(task, plan, task.source.frames(wanted=lambda frame: step(frame) is None and wanted(frame)))


def render_segments(task: FilmTask, plan: FilmPlan, renderer: Renderer, state: JobState) -> Assembled:
    """Draw what is in no finished segment yet, and put all segments together with the sound, in the work folder."""
    source, encode, output, seconds = task.source, task.encode, task.output, task.settings.segment
    writer = SegmentWriter(state.folder, source.info, encode, output=output, seconds=seconds, may_end=plan.may_begin)
    begin, step = writer.next_frame, task.step("rendering", len(plan.film.pts))
    with writer:
        frames = as_analysed(task, plan, source.frames(lambda frame: frame >= begin - 2 * plan.reach))
        for now, around in chunks(plan, frames, begin):
            if writer.ends_before(now[0].frame):
                writer.close()
                state.save(renderer, writer.next_frame)
            for job, image in zip(now, renderer(now, around), strict=True):
                writer.write(job.frame, image)
                step(job.frame.index)
    state.save(renderer, writer.next_frame)
    made, synthetic = state.folder / f"ficgan-result{output.suffix}", renderer.counts["generated"] > 0
    file = assemble(writer.segments, source, made, encode, overwrite=True, synthetic=encode.tag and synthetic)
    return replace(file, notes=source.notes + file.notes, damage=source.damage + file.damage)


def chunks(plan: FilmPlan, frames: Iterable[Frame], begin: int) -> Iterator[tuple[list[FrameJob], list[FrameJob]]]:
    """The frames from `begin` on, a chunk at a time, each with frames around it, as a `Renderer` takes them.

    `frames` begin twice the reach before `begin`, where there are as many: so a film that is drawn from its middle on
    becomes the same one.
    """
    ahead = 2 * plan.reach
    jobs: deque[FrameJob] = deque()
    start = begin
    for frame in chain(frames, [None]):
        if frame is not None:
            jobs.append(plan.job(frame))
        while jobs and (frame is None or frame.index + 1 >= start + CHUNK + ahead):
            before = [jobs.popleft() for _ in range(len(jobs)) if jobs[0].frame.index < begin]
            now = [jobs.popleft() for _ in range(min(CHUNK, len(jobs)))]
            start += CHUNK
            if now:
                yield now, [*before, *jobs]


def as_analysed(task: FilmTask, plan: FilmPlan, frames: Iterable[Frame]) -> Iterator[Frame]:
    """The frames, as long as they are those of the analysis: with others every later face were in a wrong place."""
    times, pts, base = plan.film.times, plan.film.pts, task.source.info.time_base
    tolerance = max(0.002, 0.5 * float(np.median(np.diff(times)))) if len(times) > 1 else 0.002
    for frame in frames:
        if frame.index >= len(pts) or abs(frame.pts - int(pts[frame.index])) * base > tolerance:
            raise InputError(
                f"{task.source.name}: is not as it was analysed, from frame {frame.index} on; is it still being "
                "written, or has `start` of the project been edited? Analyse it again"
            )
        yield frame


@dataclass
class VideoResult:
    """What was done to a film, ready for its side-car.

    Args:
        faces: faces of single frames by what was done to them: generated, a cover's or method's name, region, kept.
        fallbacks: why faces were not generated although asked for: reason → faces of single frames.
        masked_people: people who were recognised with every setting, and so were covered.
        exemptions: see `Decider.exemptions`.
        edits: what the project of a reviewed film says beyond its default, a sentence each.
        review: places a person should look at: `frame`, `time` in seconds, `box` and `reason` of each.
        dropped: finds that nothing confirmed and that stay as they are: `first` and `last` frame, `time` in seconds,
            `box` and `score` of the best sighting of each.
        objects: of what is no face, by name: `tracks` that are covered, finds of single frames `covered` and `kept`.
        notes, damage: what is worth knowing; where the source was cut or damaged; each a sentence.
        account: of the k-same draws and the model, as for a photo.
        synthetic: whether the file says that it was made with a generative model.
    """

    output: Path | None
    frames: int
    seconds: float
    tracks: int
    people: int
    faces: Mapping[str, int]
    fallbacks: Mapping[str, int] = field(default_factory=dict)
    masked_people: int = 0
    exemptions: list[dict[str, Any]] = field(default_factory=list)
    edits: tuple[str, ...] = ()
    check: CheckReport | None = None
    review: Sequence[Mapping[str, Any]] = ()
    dropped: Sequence[Mapping[str, Any]] = ()
    objects: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    has_audio: bool = False
    synthetic: bool = False
    notes: tuple[str, ...] = ()
    damage: tuple[str, ...] = ()
    settings: dict[str, Any] = field(default_factory=dict)
    account: dict[str, Any] = field(default_factory=dict)

    @property
    def reidentified(self) -> int | None:
        """Faces that the check still recognises; None where there was no check, or nothing follows from it."""
        if self.check is None or (self.check.unchecked and not self.check.findings):
            return None
        return len(self.check.findings)

    @property
    def ok(self) -> bool:
        """The check recognised nobody, no place is to be reviewed, and the source was read to its end."""
        return not (self.reidentified or self.review or self.damage)

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready; what was dropped and objects are left out where there are none."""
        names = {"seconds": "duration", "faces": "faces_by_action", "has_audio": "audio", "synthetic": "synthetic_tag"}
        facts = {entry.name: getattr(self, entry.name) for entry in fields(self)[1:-1]}
        facts |= {"seconds": round(self.seconds, 3), "has_audio": "copied" if self.has_audio else "none"}
        facts["check"] = None if self.check is None else self.check.to_dict()
        tree = {
            names.get(name, name): list(fact) if isinstance(fact, tuple) else fact
            for name, fact in facts.items()
            if fact or name not in ("dropped", "objects")
        }
        return {**self.account, **tree}
