"""Films under review: analysed, decided on, looked at frame by frame, rendered."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ficgan.anonymizers.modes import shown
from ficgan.errors import FicganError, InputError
from ficgan.folders import work_folder
from ficgan.images import film_suffix
from ficgan.records import own_sidecar
from ficgan.ui import free_name
from ficgan.ui.tasks import DecidedFilm
from ficgan.ui.work import NOW, Queue, Workplace, hide_path, sentence
from ficgan.video import VideoSettings
from ficgan.video.decided import FilmPlan, decide
from ficgan.video.decisions import Decision, Region
from ficgan.video.project import Project
from ficgan.video.tracks import Track

# Films that are kept in memory; that of a long one takes seconds to read.
FILMS_KEPT = 2


class DeskFilms:
    """The films of a review. Their decisions are in their projects, as `ficgan analyse` makes them."""

    def __init__(self, work: Workplace, pictures: Queue, photos: Queue) -> None:
        self.work, self.review, self.queue = work, work.review, Queue("films")
        self._pictures, self._photos = pictures, photos  # queues of the workers that show frames
        self._cancelled: set[str] = set()
        self._loaded: dict[str, tuple[Any, Project]] = {}  # with the stamps of their documents, the last one last
        self._decided = lru_cache(maxsize=FILMS_KEPT)(decide)
        self._asked: dict[str, int] = {}  # the frame of a film that was asked for last, drawn
        self.review.change_film = self._change

    def analyse(self, number: str) -> None:
        """Find the faces and people of a film."""
        folder, item = self.review.film_folder(number), self.review[number]
        if not (folder / "project.json").exists():
            self._cancelled.discard(number)
            self.review.change(number, quiet=True, state="working", error="")
            source, mode = self.review.source(item), self.review.settings.controls.mode
            self._do("films", "analyse", number, path=source, folder=folder, mode=mode)
        film = self.load(number)
        people = sum(not tracks[0].kind for _, tracks in _groups(film))
        about = {name: getattr(film.source, name) for name in ("width", "height", "notes")}
        stamp = self.review.stamp(item)
        self.review.change(number, state="ready", error="", people=people, stamp=stamp, **about)

    def _do(self, where: str, task: str, number: str, **given: Any) -> Any:
        """A task of a worker; the page hears how far it is."""

        def follow(done: int, total: int | None, stage: str) -> None:
            self.work.progress[number] = (done, total, stage)
            self.review.touch(number)
            if where == "films" and number in self._cancelled:
                self.work.cancel(where)

        return self.work.do(where, task, progress=follow, **given)

    def cancel(self, number: str) -> bool:
        """Stop the work on a film, if there is any, when it reports next."""
        if number in self.work.progress:
            self._cancelled.add(number)
        return number in self._cancelled

    def load(self, number: str) -> Project:
        """The project of a film; an InputError where it was not analysed yet, or its files are damaged."""
        document = self.review.film_folder(number) / "project.json"
        if not document.exists():
            raise InputError(f"{self.review[number].name}: was not analysed yet; wait for it")
        with self.review.lock:
            if self._loaded.get(number, (None,))[0] != _stamp(document):
                self._remember(number, Project.load(document.parent))
            return self._loaded[number][1]

    def _remember(self, number: str, film: Project) -> None:
        self._loaded.pop(number, None)
        self._loaded[number] = _stamp(self.review.film_folder(number) / "project.json"), film
        for old in [*self._loaded][:-FILMS_KEPT]:
            del self._loaded[old]

    def _settings(self, number: str) -> VideoSettings:
        """The numbers of the analysis, with the fallback of the controls."""
        found = self.load(number).settings
        numbers = {name: found[name] for name in ("stride", "pad", "link") if name in found}
        return VideoSettings(**numbers, fallback=self.review.controls_of(self.review[number]).fallback)

    def _plan(self, number: str) -> FilmPlan:
        """What happens to each face of a film when it is rendered, the check left out."""
        return self._decided(self.load(number), self._settings(number))

    def _task(self, number: str) -> DecidedFilm:
        """A film as decided, for a worker."""
        source, folder = self.review.source(self.review[number]), self.review.film_folder(number)
        return DecidedFilm(source, folder, self._settings(number), self.review.controls_of(self.review[number]))

    # -- decisions ----------------------------------------------------------------------------------------------------

    def edit(self, number: str, given: Mapping[str, Any], step: int | None = None) -> None:
        """Change what was decided on a film, in the form of its decisions.json; an InputError changes nothing."""
        with self.review.lock:
            film, item = self.load(number), self.review[number]
            change = _completed(film, given)
            new = film.changed(change, "the decision")
            if new.decisions_tree() == film.decisions_tree():
                return
            draws = dict(item.draws)
            for name, sign in (("people", ""), ("tracks", "-")):
                for who in change.get(name, {}):
                    choice = getattr(new.decisions, name).get(int(who))
                    shown = 0 if choice is None else choice.draw or 0
                    draws[sign + who] = tuple(dict.fromkeys((*draws.get(sign + who, (0,)), shown)))
            self.review.decide(number, step, film=_before(film, change), draws=draws)
            try:
                self._write(number, new)
            except (OSError, InputError):
                values = {name: getattr(item, name) for name in ("past", "future", "draws", "changed")}
                self.review.change(number, quiet=True, **values)
                raise

    def _change(self, number: str, change: Mapping[str, Any]) -> dict[str, Any]:
        """Change a project as a step of undo says; returns what leads back."""
        film = self.load(number)
        self._write(number, film.changed(change, "the step"))
        return _before(film, change)

    def _write(self, number: str, film: Project) -> None:
        film.save_document(self.review.film_folder(number))
        self._remember(number, film)

    def save(self, number: str) -> None:
        """Render a film into the output folder when its turn comes."""
        self._cancelled.discard(number)
        self.review.change(number, quiet=True, state="working", error="")
        self.work.progress[number] = (0, None, "waiting")
        self.queue.put(lambda: self.work.run(number, "preparing to render", self._render), NOW)

    def _render(self, number: str) -> None:
        """The film as decided, into the output folder."""
        item = self.review[number]
        source = self.review.source(item)
        path = free_name(self.review.output, item.name, film_suffix(source))
        place = path.relative_to(self.review.output).as_posix()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            given = {"film": self._task(number), "output": path, "place": place, "options": self.work.options(item)}
            made = self._do("films", "film", number, **given)
            self.work.write_sidecar(path, item, made["sidecar"])
        except (FicganError, OSError) as error:
            if number not in self._cancelled and self.work.is_closing:
                raise
            with suppress(OSError):
                work_folder(path).rmdir()
            # What was decided stays; only this result is missing. The disk may be full.
            cancelled = number in self._cancelled
            why = "Rendering was cancelled." if cancelled else hide_path(sentence(error), source, item.name)
            self.review.change(number, quiet=True, state="ready", error=why)
            return
        notes = made["notes"]
        if made["reidentified"]:
            notes.insert(0, "A source face is still recognised; look at the result before you publish it.")
        self.review.change(number, state="ready", error="", saved=place, changed=False, notes=tuple(notes))

    # -- for the page -------------------------------------------------------------------------------------------------

    def describe(self, number: str) -> dict[str, Any]:
        """People, boxes, cuts and findings of a film, for the page; times are in seconds."""
        film, plan = self.load(number), self._plan(number)
        times, ends = film.times, _ends(film)
        return {
            "width": film.source.width,
            "height": film.source.height,
            "frames": len(film.pts),
            "rate": film.rate,
            "duration": float(ends[-1]) if len(ends) else 0.0,
            "default": _shown(film.decisions.default),
            "people": [self._person(number, film, plan, person, tracks) for person, tracks in _groups(film)],
            "regions": [region.model_dump(mode="json") | _when(film, region) for region in film.regions],
            "cuts": times[list(film.cuts)].tolist(),
            "findings": sorted(self._findings(number), key=lambda finding: float(finding["time"])),
        }

    def _person(
        self, number: str, film: Project, plan: FilmPlan, person: int, tracks: Sequence[Track]
    ) -> dict[str, Any]:
        """One person, or (0) one track of nobody known."""
        key = str(person or -tracks[0].id)
        choice = film.decisions.people.get(person) if person else film.decisions.tracks.get(tracks[0].id)
        choice = choice or Decision()
        draw = choice.draw or 0
        draws = self.review[number].draws.get(key, (draw,))
        return {
            "person": person,
            "key": key,
            "mode": _shown(choice.mode or ""),
            "draw": draw,
            "draws": draws,
            "pictures": [n for n in draws if self._cut(number, tracks[0], n).exists()],
            "drawing": None if choice.drawing is None else choice.drawing.model_dump(),
            "tracks": [
                {name: getattr(track, name) for name in ("id", "first", "last", "notes", "kind")}
                | _when(film, track)
                | {
                    "score": round(float(track.scores.max()), 2),
                    "best": track.first + int(track.scores.argmax()),
                    "keys": [key.model_dump() for key in track.keys],
                }
                for track in tracks
            ],
            "spans": [span for track in tracks for span in _spans(film, plan, track)],
        }

    def _findings(self, number: str) -> Iterator[dict[str, Any]]:
        """Places that a person should look at: of the analysis, and of the check of the last result."""
        for place in self.load(number).settings.get("review", ()):
            yield {name: place[name] for name in ("time", "reason")}
        path = self.review.result(self.review[number])
        record: Any = own_sidecar(path) if path is not None else None
        with suppress(KeyError, TypeError):  # there is none, or it is damaged
            for finding in record["check"]["findings"]:
                with suppress(KeyError, TypeError, ValueError, OverflowError):
                    if math.isfinite(time := float(finding["time"])):
                        yield {"time": time, "reason": "the source is still recognised in the result"}

    def at(self, number: str, place: int | float) -> dict[str, Any]:
        """The frame of a number (int), or that is shown at a second (float), with the boxes in it."""
        film, plan = self.load(number), self._plan(number)
        at = place if isinstance(place, int) else int((film.times <= place + 1e-4).sum()) - 1
        at = min(max(at, 0), len(film.pts) - 1)
        boxes = [
            {
                "track": track.id,
                "person": track.person,
                "mode": _shown(str(plan.modes[track.id][row])),
                "box": track.boxes[row].tolist(),
                "marks": [] if track.kind else track.landmarks[row].tolist(),
                "key": any(key.frame == at for key in track.keys),
            }
            for track, row in plan.tracks.at(at)
        ]
        regions = [{"number": n, "box": box.tolist(), "mode": mode} for box, mode, n in film.regions_at(at)]
        return {"frame": at, "time": float(film.times[at]), "boxes": boxes, "regions": regions}

    def frame(self, number: str, at: int, *, result: bool = False) -> Future[Any]:
        """One frame of a film as it is, or as it was rendered last, as JPEG."""
        film, item = self._having(number, at), self.review[number]
        gap = float(film.times[1]) / 2 if len(film.times) > 1 else 0.0
        start = max(0.0, float(film.times[at]) - gap) or None  # None: from the beginning
        path, pts = (self.review.result(item), None) if result else (self.review.source(item), int(film.pts[at]))
        if path is None:  # the clock of a result is its own
            raise InputError(f"{item.name}: there is no result; render it")
        place: dict[str, Any] = {"path": path, "at": at, "pts": pts, "start": start}
        return self._pictures.put(lambda: self.work.do("pictures", "frame", **place), NOW)

    def _having(self, number: str, at: int) -> Project:
        """A film that has this frame."""
        film = self.load(number)
        if not 0 <= at < len(film.pts):
            raise InputError(f"there is no frame {at}; the film has {len(film.pts)}")
        return film

    def frame_after(self, number: str, at: int) -> Future[Any]:
        """One frame as it will be rendered, as JPEG; the faces in it are kept, to go back to."""
        self._having(number, at)
        self._asked[number] = at

        def draw() -> bytes:
            if self._asked[number] != at:
                raise InputError("another frame was asked for meanwhile")
            self.load(number)
            present = [(track, self._cut(number, track)) for track, _ in self._plan(number).tracks.at(at)]
            cuts = [track.id for track, cut in present if not cut.exists()]
            given = {"film": self._task(number), "stamp": self._loaded[number][0], "at": at, "cuts": cuts}
            if number in self.work.progress:  # it is being rendered, and the page shows how far that is
                made = self.work.do("photos", "preview", **given)
            else:
                with self.work.stage(number, "drawing this frame"):
                    made = self._do("photos", "preview", number, **given)
            for track, cut in present:
                if picture := made["cuts"].get(str(track.id)):
                    self.review.write_file(cut.name, picture)
            return bytes(made["picture"])

        return self._photos.put(draw, NOW)

    def cut(self, number: str, key: str, draw: int) -> Path | None:
        """Where the picture of a person's new face is as it was drawn once; None: nobody has this key."""
        wanted = [track for track in self.load(number).tracks if key in (str(track.person), str(-track.id))]
        return self._cut(number, wanted[0], draw) if wanted else None

    def _cut(self, number: str, track: Track, draw: int | None = None) -> Path:
        choice, usual = self.load(number).decisions.of_face(track), self.review.controls_of(self.review[number])
        draw = (choice.draw or 0) if draw is None else draw
        return self.review.draw_file(number, (track.person or -track.id, draw, choice.drawing or usual.drawing))


def _stamp(path: Path) -> tuple[int, ...]:
    status = path.stat()
    return status.st_mtime_ns, status.st_ino, status.st_size


def _ends(film: Project) -> NDArray[np.float64]:
    """Second at which each frame ends."""
    return np.append(film.times[1:], film.times[-1:] + 1 / film.rate)


def _when(film: Project, place: Track | Region) -> dict[str, float]:
    """The seconds in which a track or region is there."""
    return {"from": float(film.times[place.first]), "to": float(_ends(film)[place.last])}


def _groups(film: Project) -> list[tuple[int, list[Track]]]:
    """People and their tracks; 0 with one track for each that is nobody known: it is decided on alone."""
    return [
        (person, group)
        for person, tracks in film.people.items()
        for group in ([tracks] if person else [[track] for track in tracks])
    ]


def _completed(film: Project, given: Mapping[str, Any]) -> dict[str, Any]:
    """A change of decisions, with what it takes from people whom it leaves without a track."""
    change = dict(given)
    if link := given.get("link"):
        gone = set(film.people) - {*({str(track.id): track.person for track in film.tracks} | link).values()}
        rules = map(str, gone & set(film.decisions.people))
        change["people"] = {**given.get("people", {}), **dict.fromkeys(rules)}
        spans = film.decisions.spans
        if any(span.person in gone for span in spans):
            change["spans"] = [span.model_dump(by_alias=True) for span in spans if span.person not in gone]
    return change


def _before(film: Project, change: Mapping[str, Any]) -> dict[str, Any]:
    """What gives back what a change of decisions takes away."""
    tree = film.decisions_tree()
    return {
        name: {who: tree[name].get(who) for who in value} if isinstance(value, dict) else tree[name]
        for name, value in change.items()
    }


def _shown(mode: str) -> str:
    """A mode of a film without the keys it may hold."""
    return mode if mode in ("", "keep") else "black" if mode == "solid" else shown(mode)


def _spans(film: Project, plan: FilmPlan, track: Track) -> Iterator[list[Any]]:
    """Begin, end and mode of each run of frames that a track has one mode in."""
    modes, ends = plan.modes[track.id], _ends(film)
    starts = [0, *(np.flatnonzero(modes[1:] != modes[:-1]) + 1).tolist(), len(modes)]
    for first, after in pairwise(starts):
        begin, end = film.times[track.first + first], ends[track.first + after - 1]
        yield [float(begin), float(end), _shown(str(modes[first]))]
