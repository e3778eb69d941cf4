"""Films under review: analysed, decided on, looked at frame by frame, rendered."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ficgan.errors import FicganError, InputError
from ficgan.images import film_suffix
from ficgan.ui.items import Item
from ficgan.ui.project import free_name
from ficgan.ui.work import NOW, Queue, Workplace, hide_path, sentence

if TYPE_CHECKING:
    from ficgan.video.project import Project

__all__ = ["DeskFilms"]


@lru_cache(maxsize=2)
def _load(folder: Path, stamp: int) -> Project:
    """A project as it was at a time; that of a long film takes seconds to read."""
    from ficgan.video.project import Project

    return Project.load(folder)


class DeskFilms:
    """The films of a review. Their decisions are in their projects, as `ficgan analyse` makes them.

    `pictures` and `photos` are the queues of the workers that show frames.
    """

    def __init__(self, work: Workplace, pictures: Queue, photos: Queue) -> None:
        self.work, self.review, self._pictures, self._photos = work, work.review, pictures, photos
        self.queue = Queue("films", work.changed, work.loaded.wait)
        self._cancelled: set[str] = set()

    def analyse(self, number: str) -> Item:
        """Find the faces and people of a film."""
        folder, item = self.review.film_folder(number), self.review[number]
        if not (folder / "project.json").exists():
            self._cancelled.discard(number)
            self.review.change(number, quiet=True, state="working", error="")
            source, mode = self.review.source(item), self.review.controls.mode
            self._do("analyse", number, path=source, folder=folder, mode=mode)
        film = self.load(number)
        people = len([person for person in film.people if person])
        return self.review.change(
            number,
            state="ready",
            error="",
            people=people,
            width=film.source.width,
            height=film.source.height,
            stamp=self.work.stamp(item),
            notes=film.source.notes,
        )

    def _do(self, task: str, number: str, **given: Any) -> Any:
        def follow(done: int, total: int | None, stage: str) -> None:
            self.work.progress[number] = (done, total, stage)
            if number in self._cancelled:
                self.work.cancel("films")

        return self.work.do("films", task, progress=follow, **given)

    def cancel(self, number: str) -> None:
        """Stop the work on a film: when it reports next."""
        if number in self.work.progress:
            self._cancelled.add(number)

    def load(self, number: str) -> Project:
        """The project of a film; an InputError where it was not analysed yet, or its files are damaged."""
        document = self.review.film_folder(number) / "project.json"
        if not document.exists():
            raise InputError(f"{self.review[number].name}: was not analysed yet; wait for it")
        return _load(document.parent, document.stat().st_mtime_ns)

    def edit(
        self,
        number: str,
        *,
        default: str | None = None,
        people: Mapping[str, str | None] | None = None,
        tracks: Mapping[str, str | None] | None = None,
        link: Mapping[str, int] | None = None,
    ) -> None:
        """Change the decisions on a film, by the numbers of people and tracks: "" or None removes one."""
        from ficgan.folders import checked
        from ficgan.video.decisions import Decisions

        try:
            chosen = [("people", str(int(who)), mode) for who, mode in (people or {}).items()]
            chosen += [("tracks", str(int(who)), mode) for who, mode in (tracks or {}).items()]
            links = {int(track): int(person) for track, person in (link or {}).items()}
        except (ValueError, TypeError, AttributeError):
            raise InputError("people and tracks go by their numbers") from None
        with self.review.lock:
            film = self.load(number)
            tree = film.decisions.model_dump(mode="json", by_alias=True)
            for key, who, mode in chosen:
                tree[key].pop(who, None)
                if mode:
                    tree[key][who] = {"mode": mode, "reason": "chosen in the review"}
            if default is not None:
                tree["default"] = default
            linked = [replace(track, person=links.get(track.id, track.person)) for track in film.tracks]
            self._keep(number, replace(film, tracks=linked, decisions=checked(Decisions, tree, "the decision")))

    def _keep(self, number: str, film: Project) -> None:
        film.save_document(self.review.film_folder(number))
        self.review.change(number, changed=True)

    def add_region(self, number: str, frame: int, box: Iterable[float], start: float, end: float, mode: str) -> None:
        """Cover a box that was drawn in a frame, from one second to another."""
        from ficgan.folders import checked
        from ficgan.video.decisions import Region

        with self.review.lock:
            film, corners = self.load(number), np.asarray(list(box), np.float32)
            size = np.array([film.source.width, film.source.height] * 2, np.float32)
            corners = np.clip(corners, 0, size) if corners.shape == (4,) else np.zeros(4, np.float32)
            if not (corners[2:] - corners[:2] >= 4).all():
                raise InputError("the box lies outside of the picture or is smaller than 4 pixels; draw a larger one")
            if not 0 <= frame < len(film.pts):
                raise InputError(f"there is no frame {frame}; the film has {len(film.pts)}")
            first, last = (int(np.searchsorted(film.times, time)) for time in (start, end))
            tree = {
                "first": min(first, frame),
                "last": min(max(last, frame), len(film.pts) - 1),
                "box": [round(float(value), 1) for value in corners],
                "mode": mode,
                "reason": "drawn in the review",
            }
            region = checked(Region, tree, "the decision")
            self._keep(number, replace(film, regions=(*film.regions, region)))

    def remove_region(self, number: str, region: int) -> None:
        """Take back a box."""
        with self.review.lock:
            film = self.load(number)
            if not 0 <= region < len(film.regions):
                raise InputError(f"there is no box number {region + 1}")
            regions = film.regions[:region] + film.regions[region + 1 :]
            self._keep(number, replace(film, regions=regions))

    def save(self, number: str) -> Future[Any]:
        """Render a film into the output folder when its turn comes."""
        self._cancelled.discard(number)
        self.review.change(number, quiet=True, state="working", error="")
        self.work.progress[number] = (0, None, "waiting")
        return self.queue.put(lambda: self.work.run(number, self._render), NOW)

    def _render(self, number: str) -> Item:
        """The film as decided, into the output folder."""
        from ficgan.folders import work_folder

        item, film = self.review[number], self.load(number)
        source, controls = self.review.source(item), self.review.controls_of(item)
        numbers = {name: film.settings[name] for name in ("stride", "pad", "link") if name in film.settings}
        path = free_name(self.review.output, item.name, film_suffix(source))
        place = path.relative_to(self.review.output).as_posix()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            made = self._do(
                "film",
                number,
                path=source,
                folder=self.review.film_folder(number),
                output=path,
                place=place,
                drawing=controls.drawing.model_dump(),
                numbers={**numbers, "fallback": controls.fallback},
                audio=controls.audio,
                options=self.work.options(item),
            )
            self.work.write_sidecar(path, item, made["sidecar"])
        except (FicganError, OSError) as error:
            if number not in self._cancelled and self.work.stopping.is_set():
                raise
            with suppress(OSError):
                work_folder(path).rmdir()
            # What was decided stays; only this result is missing. The disk may be full.
            cancelled = number in self._cancelled
            why = "Rendering was cancelled." if cancelled else hide_path(sentence(error), source, item.name)
            return self.review.change(number, quiet=True, state="ready", error=why)
        notes = made["notes"]
        if made["reidentified"]:
            notes.insert(0, "A source face is still recognised; look at the result before you publish it.")
        return self.review.change(number, state="ready", error="", saved=place, changed=False, notes=tuple(notes))

    # -- for the page -------------------------------------------------------------------------------------------------

    def describe(self, number: str) -> dict[str, Any]:
        """People, boxes and cuts of a film, for the page."""
        film = self.load(number)
        times, decisions = film.times, film.decisions

        def about(track: Any) -> dict[str, Any]:
            return {
                "id": track.id,
                "first": track.first,
                "last": track.last,
                "notes": track.notes,
                "kind": track.kind,
                "from": float(times[track.first]),
                "to": float(times[track.last]),
                "score": round(float(track.scores.max()), 2),
                "after": self.strip(number, track.id, after=True).exists(),
            }

        people = []
        for person, tracks in film.people.items():
            # Somebody who is not known is decided on track by track.
            for group in [tracks] if person else [[track] for track in tracks]:
                choice = decisions.people.get(person) if person else decisions.tracks.get(group[0].id)
                mode = "" if choice is None else _shown(choice.mode or "")
                people.append({"person": person, "mode": mode, "tracks": list(map(about, group))})
        return {
            "width": film.source.width,
            "height": film.source.height,
            "frames": len(film.pts),
            "duration": float(times[-1]) if len(times) else 0.0,
            "default": _shown(decisions.default),
            "people": people,
            "regions": [
                {"from": float(times[region.first]), "to": float(times[region.last]), "mode": _shown(region.mode)}
                for region in film.regions
            ],
            "cuts": [float(times[cut]) for cut in film.cuts],
        }

    def strip(self, number: str, track: int, *, after: bool) -> Path:
        """Where the thumbnails of a track are, if they were made."""
        from ficgan.video.project import thumbnail

        return thumbnail(self.review.film_folder(number), track, after)

    def at(self, number: str, *, time: float | None = None, frame: int = 0) -> dict[str, Any]:
        """The frame that is shown at a second, or of a number, with the boxes in it."""
        from ficgan.video.tracks import TrackSet

        film = self.load(number)
        if not len(film.pts):
            raise InputError("the film has no frames")
        if time is not None:
            frame = int((film.times <= time + 1e-4).sum()) - 1
        frame = min(max(frame, 0), len(film.pts) - 1)
        decider = film.decider()
        boxes = [
            {
                "track": track.id,
                "person": track.person,
                "mode": _shown(str(decider.mode_of(track, frame))),
                "box": [float(value) for value in track.boxes[row]],
            }
            for track, row in TrackSet(film.tracks).at(frame)
        ]
        regions = [{"box": [float(v) for v in box], "mode": mode} for box, mode, _ in film.regions_at(frame)]
        return {"frame": frame, "time": float(film.times[frame]), "boxes": boxes, "regions": regions}

    def _place(self, number: str, at: int) -> dict[str, Any]:
        """Where a frame is, for a worker."""
        film = self.load(number)
        if not 0 <= at < len(film.pts):
            raise InputError(f"there is no frame {at}; the film has {len(film.pts)}")
        path, gap = self.review.source(self.review[number]), float(film.times[1]) / 2 if len(film.times) > 1 else 0.0
        start = max(0.0, float(film.times[at]) - gap) or None  # None: from the beginning
        return {"path": path, "at": at, "pts": int(film.pts[at]), "start": start}

    def frame(self, number: str, at: int) -> Future[Any]:
        """One frame of a film as it is, as JPEG."""
        place = self._place(number, at)
        return self._pictures.put(lambda: self.work.do("pictures", "frame", **place), NOW)

    def frame_of_result(self, number: str, at: int) -> Future[Any]:
        """One frame of the film as it was rendered last."""
        path = self.review.result(self.review[number])
        if path is None:
            raise InputError(f"{self.review[number].name}: there is no result; render it")
        place = self._place(number, at) | {"path": path, "pts": None}  # its clock is its own
        return self._pictures.put(lambda: self.work.do("pictures", "frame", **place), NOW)

    def frame_after(self, number: str, at: int) -> Future[Any]:
        """One frame with its faces as decided; in the film a person's new face may be another one."""
        from ficgan.video.tracks import TrackSet

        film, decider = self.load(number), self.load(number).decider()
        present = [track for track, _ in TrackSet(film.tracks).at(at)]
        faces = [track.face(at) for track in present]
        regions = film.regions_at(at)
        given: dict[str, Any] = {
            "film": self._place(number, at),
            "key": number,
            "faces": [[face.box.tolist(), face.landmarks.tolist(), float(face.score)] for face in faces],
            "names": [f"person {track.person or -track.id}" for track in present],
            "boxes": [[float(value) for value in box] for box, _, _ in regions],
            "modes": [*(str(decider.mode_of(track, at)) for track in present), *(mode for _, mode, _ in regions)],
            "drawing": self.review.controls_of(self.review[number]).drawing.model_dump(),
        }
        return self._photos.put(lambda: self.work.do("photos", "preview", **given), NOW)


def _shown(mode: str) -> str:
    """A mode of a film without the keys it may hold."""
    from ficgan.anonymizers.modes import shown

    return mode if mode == "keep" else "black" if mode == "solid" else shown(mode)
