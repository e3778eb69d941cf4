"""The renderer: every face that shall not be seen is covered, one identity a person, retries, fallbacks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import ArrayLike, NDArray
from stand_ins import Fixed, Reader, face
from worlds import box_at, crop_model, face_at

from ficgan.face_model import FaceModel, FaceReading
from ficgan.faces import Alignment, Face, Paste
from ficgan.policy import Policy
from ficgan.video import VideoSettings, VideoTools
from ficgan.video import identities as module
from ficgan.video.decided import Appearance, FrameJob
from ficgan.video.identities import FilmFace, Identities
from ficgan.video.rendered import Renderer, face_area
from ficgan.video.source import Frame

Image = NDArray[np.uint8]


@dataclass
class Gate(Reader):
    """Takes the first `stubborn` results it reads for their source."""

    stubborn: int = 0
    read: int = 0
    """Results compared with their source."""

    def distance(self, a: ArrayLike, b: ArrayLike) -> float:
        self.read += 1
        return self.between(a)

    def is_match(self, a: ArrayLike, b: ArrayLike) -> bool:
        return self.between(a) < self.match_threshold

    def between(self, a: ArrayLike) -> float:
        return 0.0 if self.read <= self.stubborn else 1.0


@pytest.fixture(scope="module")
def face_model() -> FaceModel:
    return crop_model()


def job(index: int, *appearances: tuple[int, str, float, str], regions: Sequence = ()) -> FrameJob:  # type: ignore[type-arg]
    image = np.random.default_rng(9).integers(0, 256, (120, 320, 3), dtype=np.uint8)
    shown = [Appearance(track, person, face(x, 30, 60), mode) for track, person, x, mode in appearances]
    return FrameJob(Frame(index, index, index / 25, image), shown, regions)


def renderer(face_model: FaceModel | None, gate: Gate | None = None, **changes: object) -> Renderer:
    tools = VideoTools(Fixed(), gate, face_model, Policy(verify=gate is not None), layer=2)
    return Renderer(tools, VideoSettings(**changes))  # type: ignore[arg-type]


def counted(render: Renderer, jobs: Sequence[FrameJob]) -> list[dict[str, int]]:
    """Faces by what was done to them, of each frame drawn alone."""
    tallies = []
    for shown in jobs:
        before = dict(render.counts)
        render([shown])
        tallies.append({name: count - before.get(name, 0) for name, count in render.counts.items()})
    return [{name: count for name, count in tally.items() if count} for tally in tallies]


def by_chunks(render: Renderer, frames: range, size: int = 4) -> list[int]:
    """First frames of the chunks in which something was covered."""
    covered = []
    for begin in frames[::size]:
        before = render.counts["plain"]
        render([numbered(index) for index in range(begin, begin + size)])
        if render.counts["plain"] > before:
            covered.append(begin)
    return covered


def one_colour(region: Image) -> bool:
    return bool(np.ptp(region.reshape(-1, 3), axis=0).max() == 0)


def changed(job: FrameJob, image: Image) -> NDArray[np.bool_]:
    return (image != job.frame.image).any(-1)


@pytest.mark.parametrize("mode", ["ficgan", "plain", "black", "blur", "mosaic", "solid"])
def test_the_face_changes_and_nothing_else_does(face_model: FaceModel, mode: str) -> None:
    frame = job(0, (1, "a", 100, mode))
    before = frame.frame.image.copy()
    (out,) = renderer(face_model)([frame])
    assert np.array_equal(frame.frame.image, before)
    where = changed(frame, out)
    assert where[40:80, 110:150].mean() > 0.95
    assert not where[:, :80].any() and not where[:, 200:].any()


def test_one_person_keeps_one_identity_and_is_cast_once(face_model: FaceModel) -> None:
    render = renderer(face_model)
    render([job(0, (1, "a", 100, "ficgan")), job(1, (1, "a", 104, "ficgan"))])
    styles = render.identities.people["a"].styles
    render([job(2, (1, "a", 108, "ficgan"), (2, "b", 210, "ficgan"))])
    assert render.identities.people["a"].styles is styles
    assert not np.array_equal(render.identities.people["b"].styles, styles)  # type: ignore[arg-type]
    assert render.counts == {"generated": 4}


@pytest.mark.parametrize("near", [pytest.param("track", marks=pytest.mark.slow), "model"])
def test_the_gate_reads_where_the_track_and_where_the_model_has_the_face(
    face_model: FaceModel, monkeypatch: pytest.MonkeyPatch, near: str
) -> None:
    """A face must pass at both: choosing it and drawing it."""
    frames, see = [job(n, (1, "a", 100, "ficgan")) for n in range(2)], face_model.see
    own = frames[0].appearances[0].face.landmarks
    found = own + np.float32(5)
    monkeypatch.setattr(
        face_model, "see", lambda pairs, known=None: [replace(one, landmarks=found) for one in see(pairs, known)]
    )

    class Picky(Gate):
        """Takes whatever it reads at one of the two places for the source."""

        def embed(self, image: Image, landmarks: ArrayLike) -> NDArray[np.float32]:
            return np.asarray(landmarks)[:, 0]

        def between(self, a: ArrayLike) -> float:
            return 0.0 if np.array_equal(a, own[0] if near == "track" else found[0]) else 1.0

    for audited in (False, True):
        render = renderer(face_model, Picky())
        if audited:
            audition(render, *frames)
        render(frames)
        assert render.counts == {"plain": 2}, "nothing passes"


@dataclass
class FrameGate(Gate):
    """Takes the results of some frames for their source, and is near to it on others; the first pixel says which."""

    known: tuple[int, ...] = ()
    near: tuple[int, ...] = ()

    def embed(self, image: Image, landmarks: ArrayLike) -> NDArray[np.float32]:
        return np.full((len(np.asarray(landmarks)), 2), float(image[0, 0, 0]), np.float32)

    def between(self, a: ArrayLike) -> float:
        frame = int(np.ravel(a)[0])
        return 0.0 if frame in self.known else 0.53 if frame in self.near else 1.0


def numbered(index: int, person: str = "a") -> FrameJob:
    made = job(index, (1, person, 100, "ficgan"))
    made.frame.image[0, 0] = index
    return made


def audition(render: Renderer, *jobs: FrameJob) -> None:
    render.identities.choose(lambda people: list(jobs) if "a" in people else [], {"a"})


def test_an_audition_chooses_an_attempt_that_is_not_recognised(face_model: FaceModel) -> None:
    render = renderer(face_model, Gate(stubborn=2))
    audition(render, job(0, (1, "a", 100, "ficgan")), job(30, (1, "a", 104, "ficgan")))
    cast = render.identities.people["a"]
    assert cast.settled and cast.attempt >= 1 and cast.draw["attempts"] == cast.attempt + 1 and cast.distance is None
    styles = cast.styles
    render([job(n, (1, "a", 100, "ficgan")) for n in range(3)])
    assert render.identities.people["a"].styles is styles and render.counts == {"generated": 3} and cast.distance == 1.0


def test_who_is_recognised_with_every_attempt_is_masked_from_the_start(face_model: FaceModel) -> None:
    render = renderer(face_model, Gate(stubborn=99))
    audition(render, job(0, (1, "a", 100, "ficgan")))
    render([job(n, (1, "a", 100, "ficgan")) for n in range(2)])
    assert render.identities.people["a"].styles is None and render.counts == {"plain": 2}


def test_who_is_only_near_with_every_attempt_is_drawn_and_watched(face_model: FaceModel) -> None:
    gate = FrameGate(near=tuple(range(20)))
    render = renderer(face_model, gate)
    audition(render, numbered(0), numbered(1))
    gate.known = (6,)
    shown = ["generated" in tally for tally in counted(render, [numbered(index) for index in range(12)])]
    assert render.identities.people["a"].settled and shown[:6] == [True] * 6 and not shown[6]


def test_a_chosen_face_that_is_recognised_is_covered_for_a_moment(
    face_model: FaceModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CHECK", 0.3)
    gate = FrameGate()
    render = renderer(face_model, gate)
    audition(render, numbered(0))
    styles, gate.known = render.identities.people["a"].styles, (10, 14)
    gate.near = (9,)
    # 8 is far and the next to be read; 9 and 10 are not read. 16 is far, too, so nothing is covered.
    assert by_chunks(render, range(32)) == []
    gate.near, gate.known = (40,), (42, 46)  # 40 comes near, so all are read
    assert by_chunks(render, range(32, 60)) == [40, 44]
    assert render.causes == {"known": 8}
    assert render.identities.people["a"].styles is styles and render.identities.people["a"].distance == 1.0


@pytest.mark.slow
def test_doubtful_readings_are_followed_by_one_of_each_frame(
    face_model: FaceModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CHECK", 0.12)
    gate = FrameGate(near=(3, 4), known=(5,))
    render = renderer(face_model, gate)  # three frames
    audition(render, numbered(0))
    gate.read = 0
    shown = ["generated" in tally for tally in counted(render, [numbered(index) for index in range(9)])]
    assert shown == [True] * 5 + [False] + [True] * 3  # 3 and 4 are no match, but near the limit
    assert gate.read == 5  # frames 0, 3, 4, 5 and 6


def test_a_face_lost_for_a_moment_does_not_flicker(face_model: FaceModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "HOLD", 0.1)
    see = face_model.see

    def turned(pairs: Sequence[tuple[Image, Face]], found=None) -> list[FaceReading]:
        sights = see(pairs)
        return [replace(one, problem="turned") if n == 3 else one for n, one in enumerate(sights)]

    monkeypatch.setattr(face_model, "see", turned)
    render = renderer(face_model)
    render([job(n, (1, "a", 100, "ficgan")) for n in range(8)])
    assert render.counts == {"generated": 5, "plain": 3} and render.causes == {"unread": 3}  # 25 frames a second
    monkeypatch.setattr(face_model, "see", see)
    assert counted(render, [job(8, (1, "a", 100, "ficgan"))]) == [{"generated": 1}]
    both = job(5, (1, "a", 100, "ficgan"), (2, "b", 210, "ficgan"))  # the other one was never lost
    assert counted(render, [both]) == [{"plain": 1, "generated": 1}]


def test_regions_are_covered_whatever_the_faces(face_model: FaceModel) -> None:
    frame = job(0, (1, "a", 100, "keep"), regions=[(np.array([220, 40, 260, 80], np.float32), "solid", 0)])
    (out,) = renderer(face_model)([frame])
    assert (out[42:78, 222:258] == 0).all()
    assert not changed(frame, out)[:, :190].any()


SKIN, WALL = (200, 150, 120), (40, 90, 60)


def walking(index: int, there: bool, mode: str = "plain", regions: Sequence = ()) -> FrameJob:  # type: ignore[type-arg]
    """A face of noise over a neck, before a wall whose light changes; the wall alone where it is not there yet."""
    rng, x = np.random.default_rng(index), 40 + 5 * index
    image = np.full((120, 320, 3), WALL, np.uint8) + np.uint8(3 * index)
    if there:
        image[30:90, x : x + 60] = rng.integers(0, 256, (60, 60, 3))
        image[90:110, x + 10 : x + 50] = np.array(SKIN, np.uint8) + np.uint8(index)
    return FrameJob(Frame(index, index, index / 25, image), [Appearance(1, "a", face(x, 30, 60), mode)], regions)


def test_plain_covers_of_a_track_have_one_colour_that_is_found_where_the_face_is_seen() -> None:
    """The first frames are a pad: there is no neck in them yet."""
    render, box = renderer(None), np.array([250, 20, 290, 60], np.float32)
    chunks = [[walking(n, n >= 3, regions=[(box, "plain", 0)]) for n in range(k, k + 8)] for k in (0, 8)]
    outs = render(chunks[0], chunks[1][:4]) + render(chunks[1])
    for index, out in enumerate(outs):
        x = 40 + 5 * index
        assert one_colour(out[35:85, x + 5 : x + 55]) and np.abs(out[60, x + 30].astype(int) - SKIN).max() <= 11
        assert np.array_equal(out[60, x + 30], outs[0][60, 70]) and np.array_equal(out[40, 270], outs[0][40, 270])
    assert render.counts == {"plain": 16, "region": 16}
    again = renderer(None)  # goes on where another one stopped
    again.colours = dict(render.colours)
    assert np.array_equal(again(chunks[1])[0], outs[8])


@pytest.mark.parametrize("hidden", [False, True])
def test_a_cover_leaves_the_new_face_beside_it(face_model: FaceModel, hidden: bool) -> None:
    """Where nothing of the source is left its margin yields to the new face; a hidden head's cover does wholly."""
    alone = job(0, (1, "a", 100, "ficgan"))
    image, seen = alone.frame.image, alone.appearances[0].face
    beside = Appearance(
        2, "b", Face(seen.box + np.array([35, -10, 55, 10], np.float32), seen.landmarks + 45, 0.9), "black"
    )
    both = FrameJob(alone.frame, [*alone.appearances, replace(beside, hidden=hidden)])
    (new,), (out,), (black,) = (renderer(face_model)([one]) for one in (alone, both, FrameJob(alone.frame, [beside])))
    covered = (black == 0).all(-1) & (image != black).any(-1)
    y, x = np.ogrid[: image.shape[0], : image.shape[1]]
    (x0, y0), (x1, y1) = beside.face.box[:2], beside.face.box[2:]
    core = ((2 * x - x0 - x1) / (x1 - x0)) ** 2 + ((2 * y - y0 - y1) / (y1 - y0)) ** 2 <= 1
    shown = (out == new).all(-1) & changed(alone, new) & covered
    assert shown.any() and (out[covered & ~shown] == 0).all()
    assert (shown & core).any() == hidden


def test_a_new_face_that_would_not_hide_the_box_is_a_cover_alone(face_model: FaceModel) -> None:
    """Where the place is so uncertain that the box is much wider."""
    plain = job(0, (1, "a", 100, "ficgan"))
    seen = plain.appearances[0].face
    wide = Face(seen.box + np.array([-40, -30, 40, 30], np.float32), seen.landmarks, 0.0)
    frame = FrameJob(plain.frame, [Appearance(1, "a", wide, "ficgan")])
    render = renderer(face_model)
    (out,) = render([frame])
    assert render.counts == {"plain": 1} and render.causes == {"beside its place": 1}
    assert one_colour(out[30:90, 80:180])
    # One that is nearly there gets both: what the face leaves bare the cover below hides.
    near = Face(seen.box + np.array([2, -10, 22, 10], np.float32), seen.landmarks, 0.0)
    (cover,), (out,) = (
        renderer(face_model)([FrameJob(plain.frame, [Appearance(1, "a", near, mode)])]) for mode in ("plain", "ficgan")
    )
    there = changed(plain, cover)
    assert not one_colour(out[45:75, 115:145]) and changed(plain, out)[there].mean() > 0.99
    assert (out[there] == cover[there]).all(-1).mean() > 0.3
    far = Face(seen.box + np.array([60, 0, 60, 0], np.float32), seen.landmarks, 0.0)
    (out,) = render([FrameJob(plain.frame, [Appearance(1, "a", far, "ficgan")])])
    assert one_colour(out[45:75, 175:205])


@pytest.mark.parametrize("tilt", [0, 40])
def test_a_tilted_face_is_judged_by_its_own_outline(
    face_model: FaceModel, monkeypatch: pytest.MonkeyPatch, tilt: float
) -> None:
    """A narrow face that fills its upright box, tilted: the box grows round it, and its corners are no face."""
    size, middle = 70, np.array([160, 60], np.float32)
    angle = np.radians(tilt)
    turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]], np.float32)
    marks = ((Alignment().points(size) - size / 2) @ turn.T + middle).astype(np.float32)
    round_ = np.linspace(0, 2 * np.pi, 60, endpoint=False)
    outline = (np.stack([0.3 * size * np.cos(round_), 0.4 * size * np.sin(round_)], 1) @ turn.T + middle).astype("f4")
    reach = 3.2 * np.ptp(outline, axis=0) / 2  # as a detector that was unsure, or a track over a gap
    box = np.concatenate([middle - reach, middle + reach]).astype(np.float32)
    face, image, see = Face(box, marks, 0.9), job(0).frame.image, face_model.see
    frame = FrameJob(job(0).frame, [Appearance(1, "a", face, "ficgan")])

    def cover(moved: float | None) -> tuple[NDArray[np.bool_], Image]:
        known = [replace(one, outline=None if moved is None else outline + moved) for one in see([(image, face)])]
        monkeypatch.setattr(face_model, "see", lambda pairs, found=None: known)
        (out,) = renderer(face_model)([frame])
        return changed(frame, out), out

    alone, out = cover(0.0)
    assert alone[45:75, 145:175].mean() > 0.95 and out[50:70, 150:170].mean() > 30, "a new face, nothing black"
    for loose in (cover(None)[0], cover(60.0)[0]):  # by the box; by the outline of a face elsewhere
        assert (alone & ~loose).sum() == 0 and loose.sum() > 1.2 * alone.sum(), "more than the face is covered"


@pytest.mark.parametrize("chunk", [1, 3])
def test_every_frame_is_smoothed_over_the_same_neighbours(
    face_model: FaceModel, monkeypatch: pytest.MonkeyPatch, chunk: int
) -> None:
    """Wherever a chunk begins: places over two frames on either side, light over two more; not over gaps and ends."""
    windows: dict[str, dict[int, tuple[int, ...]]] = {"place": {}, "light": {}}
    finds: list[int] = []

    def find(pairs: Sequence[tuple[Image, Face]]) -> list[int]:
        numbers = [round(float(one.box[0])) for _, one in pairs]  # the frame's number is where its face lies
        finds.extend(numbers)
        return numbers

    def see(pairs: Sequence[tuple[Image, Face]], found: Sequence[int] | None = None) -> list[FaceReading]:
        assert found == [round(float(one.box[0])) for _, one in pairs]
        return [FaceReading(np.full(512, number, np.float32)) for number in found]

    def smoothed(found: Sequence[int], at: int) -> int:
        windows["place"][found[at]] = tuple(found)
        return found[at]

    def steadied(sights: Sequence[FaceReading], at: int) -> FaceReading:
        windows["light"][int(sights[at].z_id[0])] = tuple(int(one.z_id[0]) for one in sights)
        return replace(sights[at], problem="no picture is needed here")

    for made in (find, see, smoothed, steadied):
        monkeypatch.setattr(face_model, made.__name__, made)
    gone = {9, 10}  # the face is not there
    jobs = [job(n, *([] if n in gone else [(1, "a", float(n), "ficgan")])) for n in range(20)]
    render = renderer(face_model)
    render = Renderer(render.tools, render.settings, reach=2)
    for begin in range(0, 20, chunk):
        render(jobs[begin : begin + chunk], jobs[begin + chunk : begin + chunk + 4])
    runs = [range(9), range(11, 20)]
    wanted = {n: tuple(m for m in run if abs(m - n) <= 2) for run in runs for n in run}
    assert windows == {"place": wanted, "light": wanted}
    assert sorted(finds) == sorted(wanted), "no face is looked for twice"


def test_a_new_face_takes_nothing_of_the_source_from_under_a_neighbours_cover() -> None:
    """Its surroundings move, and what is there by then is a cover, not the source."""
    source = np.full((40, 60, 3), 50, np.uint8)
    source[:, 30:] = np.random.default_rng(0).integers(150, 255, (40, 30, 3))  # the neighbour

    class Moving:
        """A model whose faces move what is beside them by three pixels."""

        def paste(self, photo: Any, sight: Any, made: Any, *, mask_scale: float) -> Paste:
            pixels = np.roll(photo[:, :45], -3, axis=1)
            pixels[10:30, 5:20] = 100
            return Paste(photo, 0, 0, pixels, np.full((40, 45), 0.02, np.float32))

    frame = Frame(0, 0, 0.0, source)
    face = FilmFace(frame, None, None, Moving().paste(source, None, None, mask_scale=1.0))  # type: ignore[arg-type]
    out = source.copy()
    out[:, 27:] = 0
    Identities.paste_onto(SimpleNamespace(_model=Moving(), _mask_scale=1.0), face, out)  # type: ignore[arg-type]
    assert out.max() == 100 and (out[10:30, 5:20] == 100).all()
    alone = source.copy()
    Identities.paste_onto(SimpleNamespace(_model=None, _mask_scale=1.0), face, alone)  # type: ignore[arg-type]
    assert np.array_equal(alone, face.paste.image)  # type: ignore[union-attr]


def test_a_box_that_is_wider_between_two_finds_does_not_lift_a_farther_face_above_a_nearer_one() -> None:
    near, far = face_at(box_at(200, 200, 90)), face_at(box_at(200, 200, 70))
    wide = box_at(200, 200, 160).astype(np.float32)
    assert face_area(far) == face_area(replace(far, box=wide)) < face_area(near)
    unread = Face(wide, np.full((5, 2), np.nan, np.float32), 0.0)
    assert face_area(near) < face_area(unread) == pytest.approx(0.88 * 1.12 * 160**2, rel=1e-5)
    boxes = np.prod(near.box[2:] - near.box[:2])
    assert 0.5 < face_area(near) / boxes < 2
