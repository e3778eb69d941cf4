"""An interrupted film goes on where it stopped, and becomes the film it would have been."""

from __future__ import annotations

import json
import os
import shutil
import stat
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from clips import frames_of, make_clip
from numpy.typing import ArrayLike, NDArray
from stand_ins import Reader
from worlds import crop_model

from ficgan.errors import InputError
from ficgan.face_model import CropModel, FaceModel, FaceReading
from ficgan.faces import Alignment, Face
from ficgan.folders import hold, remove_folder, work_folder, working
from ficgan.policy import Policy
from ficgan.video import EncodeOptions, Rules, VideoSettings, VideoTools, identities, treatment
from ficgan.video import film as module
from ficgan.video.film import process_film
from ficgan.video.people import People
from ficgan.video.rendered import JobState, VideoResult

Image = NDArray[np.uint8]
FRAMES, SIDE = 48, 48
SEEDS = {"ficgan": 7, "solid": None}


@dataclass
class Square:
    """Finds the bright square of a frame."""

    name: str = "square"
    looks: int = 0

    def detect(self, image: Image) -> list[Face]:
        self.looks += 1
        y, x = np.nonzero(image[..., 0] > 180)
        if len(x) < SIDE:
            return []
        corner = np.array([x.min(), y.min()], np.float32)
        box = np.array([*corner, x.max(), y.max()], np.float32)
        return [Face(box, (Alignment().points(SIDE) + corner).astype(np.float32), 0.9)]


@dataclass
class Gate(Reader):
    """Takes nothing for its source, but for the first few readings."""

    stubborn: int = 0

    def distance(self, a: ArrayLike, b: ArrayLike) -> float:
        return 1.0

    def is_match(self, a: ArrayLike, b: ArrayLike) -> bool:
        self.stubborn -= 1
        return self.stubborn >= 0


@pytest.fixture
def film(tmp_path: Path, made: Path) -> Path:
    return Path(shutil.copy2(made / "film.mp4", tmp_path))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a film."""
    folder = tmp_path_factory.mktemp("made")
    pictures = []
    for n in range(FRAMES):
        image = np.full((96, 160, 3), 90, np.uint8)
        image[20 : 20 + SIDE, 10 + n : 10 + n + SIDE] = np.linspace(200, 250, SIDE, dtype=np.uint8)[None, :, None]
        pictures.append(image)
    make_clip(folder / "film.mp4", FRAMES, size=(160, 96), pictures=pictures)
    return folder


@pytest.fixture(scope="module")
def whole(made: Path) -> Callable[[str], VideoResult]:
    """What an uninterrupted run makes of it, in a mode."""

    @cache
    def result(mode: str) -> VideoResult:
        return process(made / "film.mp4", made / f"{mode}.mp4", seed=SEEDS[mode], mode=mode)

    return result


def process(
    film: Path,
    out: Path,
    *,
    seed: int | None = None,
    until: tuple[str, int] | None = None,
    mode: str = "ficgan",
    detector: Square | None = None,
    gate: Gate | None = None,
    model: FaceModel | None = None,
    told: dict[str, list[int]] | None = None,
    **options: Any,
) -> VideoResult:
    """Redact the film; Ctrl-C comes at a frame of a stage."""
    told = {} if told is None else told

    def progress(done: int, total: int | None, stage: str) -> None:
        told.setdefault(stage, []).append(done)
        if until is not None and (stage, done) == until:
            raise KeyboardInterrupt

    changes = {"mode": mode, "segment": 0.25, **options.pop("settings", {})}
    drawn = (model or crop_model(seed)) if mode == "ficgan" else None
    tools = VideoTools(detector or Square(), gate or Gate(), drawn, Policy(), layer=2)
    return process_film(
        tools,
        film,
        out,
        settings=VideoSettings(**changes),
        encode=EncodeOptions(options={"threads": "1"}),
        progress=progress,
        **options,
    )


@pytest.fixture(autouse=True)
def second_detector(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another detector, and few frames at a time."""
    for room in ("decided", "rendered"):
        monkeypatch.setattr(f"ficgan.video.{room}.CHUNK", 4)
    monkeypatch.setattr(module, "independent_detector", lambda *_: Square("other"))


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def frames(path: Path) -> NDArray[np.int16]:
    return np.stack(frames_of(path)).astype(np.int16)


def _draws(result: VideoResult) -> Any:
    """The new identities."""
    return result.account.get("draws")


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


@pytest.mark.parametrize(
    ("mode", "until"),
    [
        ("solid", ("analysing", 30)),
        *(
            pytest.param(mode, until, marks=pytest.mark.slow)
            for mode, until in (
                ("ficgan", ("rendering", 30)),
                ("ficgan", ("rendering", 2)),
                ("solid", ("checking", 3)),
                ("ficgan", ("analysing", 30)),
                ("ficgan", ("rendering", FRAMES)),
                ("ficgan", ("checking", 3)),
            )
        ),
    ],
)
def test_an_interrupted_film_becomes_the_same_film(
    film: Path, tmp_path: Path, whole: Callable[[str], VideoResult], until: Any, mode: str
) -> None:
    seed, expected = SEEDS[mode], whole(mode)
    folder = tmp_path / "out"
    folder.mkdir()
    out, once, again = folder / "film.mp4", Square(), Square()
    with pytest.raises(KeyboardInterrupt):
        process(film, out, seed=seed, mode=mode, until=until, detector=once)
    assert names(folder) == {work_folder(out).name}
    told: dict[str, list[int]] = {}
    result = process(film, out, seed=seed, mode=mode, detector=again, told=told)
    assert names(folder) == {"film.mp4"}
    assert expected.output is not None and np.abs(frames(out) - frames(expected.output)).max() <= 2
    assert result.faces == expected.faces and result.faces[{"ficgan": "generated"}.get(mode, mode)] == FRAMES
    assert result.frames == FRAMES and result.tracks == expected.tracks == 1
    assert _draws(result) == _draws(expected)
    assert again.looks < once.looks  # what had been found was not looked for again
    if until[0] != "analysing":
        assert again.looks == 0 and "analysing" not in told
        first = told.get("rendering", [FRAMES + 1])[0]
        assert until[1] - 12 < first or until[0] == "checking"  # at most a segment and a chunk are done again
        assert (until == ("rendering", 2)) == (first == 1)


@pytest.mark.slow
@pytest.mark.parametrize("stop", [9, 20, 44])
def test_what_is_covered_does_not_depend_on_where_a_film_was_interrupted(
    film: Path, tmp_path: Path, stop: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Segments of 0.2 s are no whole number of chunks, and a cover that lingers goes on in the next segment."""

    class Lingering(Gate):
        """Takes the person for itself on frames 4 to 7 and 40 to 43, and is near to it on 8 to 15."""

        def embed(self, image: Image, landmarks: ArrayLike) -> NDArray[np.float32]:
            return np.asarray(landmarks, np.float32).mean(1)

        def distance(self, a: ArrayLike, b: ArrayLike) -> float:
            frame = float(np.ravel(a)[0]) - 10 - SIDE / 2
            return 0.1 if 4 <= frame < 8 or 40 <= frame < 44 else 0.51 if 8 <= frame < 16 else 1.0

        def is_match(self, a: ArrayLike, b: ArrayLike) -> bool:
            return self.distance(a, b) < self.match_threshold

    monkeypatch.setattr(identities, "CHECK", 0.0)
    monkeypatch.setattr(treatment, "TRIED", 100.0)  # only rendering shows these moments
    how = {"settings": {"segment": 0.2}, "seed": 7, "gate": Lingering()}
    expected = process(film, tmp_path / "whole.mp4", **how)
    assert expected.faces == {"generated": FRAMES - 16, "plain": 16}
    with pytest.raises(KeyboardInterrupt):
        process(film, tmp_path / "out.mp4", until=("rendering", stop), **how)
    result = process(film, tmp_path / "out.mp4", **how)
    assert np.abs(frames(tmp_path / "out.mp4") - frames(tmp_path / "whole.mp4")).max() <= 2
    assert result.to_dict() == expected.to_dict()


class Meshed(CropModel):
    """Finds the middle of the square, and cannot read the face while that is in `gap`; counts the faces it looks for.

    A bridged face stays as it was read, in another place.
    """

    gap = range(0)
    looks = 0

    def find(self, pairs: Sequence[tuple[Image, Face]]) -> list[Any]:
        self.looks += len(pairs)
        return [float(face.landmarks[:, 0].mean()) for _, face in pairs]

    def row(self, found: Any) -> NDArray[np.float32]:
        return np.array([found], np.float32)

    def of_row(self, row: NDArray[np.float32]) -> float:
        return float(row[0])

    def problem(self, face: Face, found: Any) -> str:
        return "not now" if round(float(face.landmarks[:, 0].mean())) in self.gap else ""

    def see(self, pairs: Sequence[tuple[Image, Face]], found: Sequence[Any] | None = None) -> list[FaceReading]:
        return [
            replace(one, landmarks=face.landmarks) for one, (_, face) in zip(super().see(pairs), pairs, strict=True)
        ]

    def between(self, before: float, after: float, share: float, moves: NDArray[Any]) -> float:
        return float((1 - share) * (before + moves[0, 0]) + share * (after + moves[1, 0]))

    def bridged(self, reading: FaceReading, found: Any) -> FaceReading:
        assert reading.landmarks is not None
        matrix, z_non = reading.place
        move = np.array([found - float(reading.landmarks[:, 0].mean()), 0])
        moved = np.column_stack([matrix[:, :2], matrix[:, 2] - matrix[:, :2] @ move])
        return replace(reading, place=(moved, z_non), landmarks=(reading.landmarks + move).astype(np.float32))


def meshed(gap: range = range(0)) -> Meshed:
    """A model that cannot read the faces of some frames."""
    model: Any = crop_model(7)
    model.__class__ = Meshed
    model.gap = range(10 + SIDE // 2 + gap.start, 10 + SIDE // 2 + gap.stop)
    return model  # type: ignore[no-any-return]


def test_a_face_is_looked_for_once(film: Path, tmp_path: Path) -> None:
    """Where the survey found it rendering does not look again; three frames more are those that it is tried on."""
    model = meshed()
    result = process(film, tmp_path / "out.mp4", model=model)
    assert result.faces == {"generated": FRAMES} and model.looks == FRAMES + 3


def test_a_film_that_was_interrupted_within_a_bridge(made: Path, tmp_path: Path) -> None:
    """On frames 12 to 35 the face of before goes on, and what lies over the source then is never read."""
    gap, film = range(12, 36), tmp_path / "film.mp4"
    pictures = list(frames(made / "film.mp4").astype(np.uint8))
    for n in gap:
        pictures[n][30 : 20 + SIDE, 10 + n : 10 + n + SIDE] = (250, 20, 20)
    make_clip(film, FRAMES, size=(160, 96), pictures=pictures)
    how = {"model": meshed(gap), "settings": {"segment": 0.16}}
    expected = process(film, tmp_path / "whole.mp4", **how)
    assert expected.faces == {"generated": FRAMES} and not expected.fallbacks
    with pytest.raises(KeyboardInterrupt):
        process(film, tmp_path / "out.mp4", until=("rendering", 30), **how)
    told: dict[str, list[int]] = {}
    result = process(film, tmp_path / "out.mp4", told=told, **how)
    assert 1 < told["rendering"][0] <= gap.start + 1 and result.faces == expected.faces
    assert np.abs(frames(tmp_path / "out.mp4") - frames(tmp_path / "whole.mp4")).max() <= 2


@pytest.mark.slow
def test_films_of_a_job_keep_the_faces_that_were_chosen_first(film: Path, tmp_path: Path) -> None:
    people, casts, seen = People(Gate(), "job"), {}, []  # type: ignore[var-annotated]
    for number in range(2):
        tools = VideoTools(
            Square(), Gate(stubborn=5 if number else 0), crop_model(7), Policy(), 2, job_identities=casts
        )
        result = process_film(
            tools,
            film,
            tmp_path / f"{number}.mp4",
            settings=VideoSettings(link="job"),
            people=people,
            encode=EncodeOptions(options={"threads": "1"}),
        )
        seen.append([(draw["attempts"], draw["members_digest"]) for draw in _draws(result)])
    assert seen[0] == seen[1] and len(casts) == 1


@pytest.mark.slow
def test_without_a_seed_the_second_half_has_the_same_identities(film: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.mp4"
    with pytest.raises(KeyboardInterrupt):
        process(film, out, until=("rendering", 30))
    state = json.loads((work_folder(out) / "ficgan-state.json").read_bytes())
    result = process(film, out)
    process(film, tmp_path / "seeded.mp4", seed=state["seed"])
    assert np.abs(frames(out) - frames(tmp_path / "seeded.mp4")).max() <= 2
    process(film, tmp_path / "other.mp4")  # another random seed: the comparison could have failed
    assert np.abs(frames(out) - frames(tmp_path / "other.mp4")).max() > 2
    assert str(state["seed"]) not in json.dumps(result.to_dict())


@pytest.mark.slow
@pytest.mark.parametrize(
    "changed",
    [
        {"settings": {"stride": 4}, "mode": "solid"},
        {"seed": 8},
        {"seed": None},
        {"start": 0.2},
        {"mode": "solid"},  # after a run in another
        {"rules": Rules(boxes=[(0, 0, 9, 9)])},
        {"touched": True},  # an edit in the middle of a large file would not show in its first and last bytes
    ],
    ids=lambda changed: next(iter(changed)),
)
def test_another_job_begins_anew(film: Path, tmp_path: Path, changed: dict[str, Any]) -> None:
    out, told = tmp_path / "out.mp4", {}  # type: ignore[var-annotated]
    with pytest.raises(KeyboardInterrupt):
        process(film, out, seed=7, until=("rendering", 30), mode=changed["mode"] if "settings" in changed else "ficgan")
    if changed.get("touched"):
        os.utime(film, (1, 1))
    given = {"seed": 7, **{name: value for name, value in changed.items() if name != "touched"}}
    with pytest.raises(KeyboardInterrupt):  # what it does first says enough
        process(film, out, told=told, until=("rendering", 2), **given)
    assert told["analysing"][0] == told["rendering"][0] == 1


@pytest.mark.slow
def test_killed_between_a_segment_and_its_account(
    film: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: Callable[[str], VideoResult]
) -> None:
    expected = whole("ficgan")
    save, calls = JobState.save, []

    def killed(self: JobState, *arguments: Any, **options: Any) -> None:
        calls.append(arguments)
        if len(calls) == 3:
            raise KeyboardInterrupt
        save(self, *arguments, **options)

    monkeypatch.setattr(JobState, "save", killed)
    with pytest.raises(KeyboardInterrupt):
        process(film, tmp_path / "out.mp4", seed=7)
    monkeypatch.setattr(JobState, "save", save)
    result = process(film, tmp_path / "out.mp4", seed=7)
    assert expected.output is not None and result.faces == expected.faces
    assert np.abs(frames(tmp_path / "out.mp4") - frames(expected.output)).max() <= 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("ficgan-state.json", b"[]"),
        pytest.param("ficgan-state.json", b"\xff", marks=pytest.mark.slow),
        *(
            ("ficgan-detections.jsonl", b'[0, {"faces": [], "weak": []}]\n' + line)
            for line in (b"x", b"5\n", b"[1, []]\n")
        ),
    ],
)
def test_damaged_leftovers_are_made_again(film: Path, tmp_path: Path, name: str, content: bytes) -> None:
    out = tmp_path / "out.mp4"
    with pytest.raises(KeyboardInterrupt):
        process(film, out, mode="solid", until=("rendering", 30))
    (work_folder(out) / name).write_bytes(content)
    result = process(film, out, mode="solid")
    assert result.faces == {"solid": FRAMES}


@pytest.mark.slow
def test_what_a_work_folder_holds_is_private_and_purge_removes_it(film: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.mp4"
    with pytest.raises(KeyboardInterrupt):
        process(film, out, until=("checking", 3))
    work = work_folder(out)
    assert stat.S_IMODE(work.stat().st_mode) == 0o700
    assert {"ficgan-state.json", "project.json", "tracks.safetensors"} < names(work)
    for name in ("ficgan-state.json", "ficgan-detections.jsonl", "project.json"):
        assert stat.S_IMODE((work / name).stat().st_mode) == 0o600
    assert not list(work.rglob("*.jpg"))  # no source faces
    assert remove_folder(work).left == [] and names(tmp_path) == {"film.mp4"}


def test_two_at_once(film: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.mp4"
    with pytest.raises(KeyboardInterrupt):
        process(film, out, mode="solid", until=("rendering", 30))
    before = names(work_folder(out))
    with hold(work_folder(out)), pytest.raises(InputError, match="in use by another"):
        process(film, out, mode="solid")
    assert names(work_folder(out)) == before


@pytest.mark.parametrize(
    ("error", "stays"),
    [
        (InputError("no"), False),
        (OSError(28, "No space left on device"), False),
        (KeyboardInterrupt(), True),
        (BrokenPipeError(), True),
        (RuntimeError("a fault"), True),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_leaves_a_work_folder(tmp_path: Path, error: BaseException, stays: bool) -> None:
    kind = InputError if isinstance(error, OSError) and not stays else type(error)
    with pytest.raises(kind) as told, working(tmp_path / "a.mp4") as work:
        (work / "ficgan-x").write_bytes(b"x")
        raise error
    assert work.exists() == stays
    assert not isinstance(error, OSError) or stays or "a.mp4: cannot be written (No space left" in str(told.value)
