"""Films under review: analysed, decided on, looked at frame by frame, rendered."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ficgan.errors import FicganError, InputError
from ficgan.files import file_digest
from ficgan.images import film_suffix
from ficgan.records.sidecars import film_record
from ficgan.ui.project import Item, free_name
from ficgan.ui.work import NOW, Queue, Stopped, Workplace, hide_path, sentence

if TYPE_CHECKING:
    from ficgan.video import Project, VideoSource

__all__ = ["Films"]

Image = NDArray[np.uint8]
STEPS = 48
"""Frames that are decoded rather than jumped over."""
KEPT = 2
"""Films whose file and project are kept open; the project of a long film takes seconds to read."""


class Films:
    """The films of a review. Their decisions are in their projects, as `ficgan analyse` makes them."""

    def __init__(self, work: Workplace, ask: Queue, draw: Queue) -> None:
        """Boxes are followed in the queue `ask`, previews drawn in the queue `draw`: neither waits for a long film."""
        self.work, self.review = work, work.review
        self.queue = Queue("films", work.changed, work.loaded.wait)
        self._ask, self._draw = ask, draw
        self._cancelled: set[str] = set()
        self._readers: OrderedDict[str, _FrameReader] = OrderedDict()
        self._projects: OrderedDict[str, tuple[int, Project]] = OrderedDict()
        self._frames, self._loading = threading.Lock(), threading.Lock()

    def close(self) -> None:
        """Let go of open films."""
        for reader in self._readers.values():
            reader.close()

    def analyse(self, number: str) -> Item:
        """Find the faces and people of a film."""
        from ficgan.video import analyse_film

        folder, item = self.review.film_folder(number), self.review[number]
        if not (folder / "project.json").exists():
            self._cancelled.discard(number)
            self.review.change(number, quiet=True, state="working", error="")
            settings = self.work.engine.video_settings(mode=self.review.controls.mode)
            analyse_film(
                self.work.engine.video_tools(settings, generate=False),
                self.review.source(item),
                folder,
                settings=settings,
                overwrite=True,
                progress=self._following(number),
                is_cancelled=lambda: self._is_cancelled(number),
            )
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

    def _following(self, number: str) -> Callable[[int, int | None, str], None]:
        def follow(done: int, total: int | None, stage: str) -> None:
            self.work.progress[number] = (done, total, stage)

        return follow

    def _is_cancelled(self, number: str) -> bool:
        if self.work.stopping.is_set():
            raise Stopped
        return number in self._cancelled

    def cancel(self, number: str) -> None:
        """Stop the work on a film."""
        if number in self.work.progress:
            self._cancelled.add(number)

    def load(self, number: str) -> Project:
        """The project of a film.

        Raises:
            InputError: it was not analysed yet, or its files are damaged.
        """
        from ficgan.video import Project

        item, folder = self.review[number], self.review.film_folder(number)
        if not (folder / "project.json").exists():
            raise InputError(f"{item.name}: was not analysed yet; wait for it")
        with self._loading:
            stamp = (folder / "project.json").stat().st_mtime_ns
            if number not in self._projects or self._projects[number][0] != stamp:
                self._projects[number] = stamp, Project.load(folder)
            self._projects.move_to_end(number)
            while len(self._projects) > KEPT:
                self._projects.popitem(last=False)
            return self._projects[number][1]

    def edit(
        self,
        number: str,
        *,
        default: str | None = None,
        people: Mapping[int, str | None] | None = None,
        tracks: Mapping[int, str | None] | None = None,
        link: Mapping[int, int] | None = None,
    ) -> Project:
        """Change the decisions on a film: "" or None removes one.

        Raises:
            InputError: a person, track or mode that is not there; nothing has changed then.
        """
        from ficgan.video.folders import checked
        from ficgan.video.settings import Decisions

        with self.review.lock:
            film = self.load(number)
            tree = film.decisions.model_dump(mode="json", by_alias=True)
            for key, given in (("people", people), ("tracks", tracks)):
                for who, mode in (given or {}).items():
                    tree[key].pop(str(who), None)
                    if mode:
                        tree[key][str(who)] = {"mode": mode, "reason": "chosen in the review"}
            if default is not None:
                tree["default"] = default
            linked = [replace(track, person=(link or {}).get(track.id, track.person)) for track in film.tracks]
            return self._keep(number, replace(film, tracks=linked, decisions=checked(Decisions, tree, "the decision")))

    def _keep(self, number: str, film: Project) -> Project:
        film.save_document(self.review.film_folder(number))
        self.review.change(number, changed=True)
        return film

    def add_region(
        self, number: str, frame: int, box: Iterable[float], start: float, end: float, mode: str
    ) -> Future[Any]:
        """Cover a box that was drawn in a frame, from one second to another.

        Raises:
            InputError: a box, frame or time that cannot be; from the future, a mode that is no cover.
        """
        from ficgan.video.folders import checked
        from ficgan.video.settings import Region

        film, corners = self.load(number), np.asarray(list(box), np.float32)
        size = np.array([film.source.width, film.source.height] * 2, np.float32)
        corners = np.clip(corners, 0, size) if corners.shape == (4,) else np.zeros(4, np.float32)
        if not (corners[2:] - corners[:2] >= 4).all():
            raise InputError("the box lies outside of the picture or is smaller than 4 pixels; draw a larger one")
        if not 0 <= frame < len(film.pts):
            raise InputError(f"there is no frame {frame}; the film has {len(film.pts)}")
        first, last = (int(np.searchsorted(film.times, time)) for time in (start, end))
        first, last = min(first, frame), min(max(last, frame), len(film.pts) - 1)

        def add() -> Project:
            tree = {"first": first, "last": last, "box": [round(float(value), 1) for value in corners]}
            region = checked(Region, {**tree, "mode": mode, "reason": "drawn in the review"}, "the decision")
            with self.review.lock:
                now = self.load(number)
                return self._keep(number, replace(now, regions=(*now.regions, region)))

        return self._ask.put(add, NOW)

    def remove_region(self, number: str, region: int) -> Project:
        """Take back a box."""
        with self.review.lock:
            film = self.load(number)
            if not 0 <= region < len(film.regions):
                raise InputError(f"there is no box number {region + 1}")
            regions = film.regions[:region] + film.regions[region + 1 :]
            return self._keep(number, replace(film, regions=regions))

    def save(self, number: str) -> Future[Any]:
        """Render a film into the output folder when its turn comes."""
        self._cancelled.discard(number)
        self.review.change(number, quiet=True, state="working", error="")
        self.work.progress[number] = (0, None, "waiting")
        return self.queue.put(lambda: self.work.run(number, self._render), NOW)

    def _render(self, number: str) -> Item:
        """The film as decided, into the output folder."""
        from ficgan.video import EncodeOptions, VideoSettings, render_film
        from ficgan.video.folders import work_folder

        item, film = self.review[number], self.load(number)
        source = self.review.source(item)
        engine, controls = self.work.engine_of(item), self.work.controls_of(item)
        analysed = {name: film.settings[name] for name in ("stride", "pad", "link") if name in film.settings}
        settings = VideoSettings(**analysed, fallback=controls.fallback)
        path = free_name(self.review.output, item.name, film_suffix(source))
        place = path.relative_to(self.review.output).as_posix()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            result = render_film(
                engine.video_tools(settings),
                self.review.film_folder(number),
                source,
                path,
                settings=settings,
                encode=EncodeOptions(audio=controls.audio),
                progress=self._following(number),
                is_cancelled=lambda: self._is_cancelled(number),
            )
            options, digest = self.work.options(item), file_digest(source)
            self.work.write_sidecar(path, item, film_record(result, path, place, options, input_sha256=digest))
        except (FicganError, OSError) as error:
            if number in self._cancelled:
                return self.review.change(number, state="ready", error="Rendering was cancelled.")
            with suppress(OSError):
                work_folder(path).rmdir()
            # What was decided stays; only this result is missing. The disk may be full.
            why = hide_path(sentence(error), source, item.name)
            return self.review.change(number, quiet=True, state="ready", error=why)
        notes = [*result.notes, *result.damage]
        if result.reidentified:
            notes.insert(0, "A source face is still recognised; look at the result before you publish it.")
        return self.review.change(number, state="ready", error="", saved=place, changed=False, notes=tuple(notes))

    # -- for the page -------------------------------------------------------------------------------------------------

    def describe(self, number: str) -> dict[str, Any]:
        """People, boxes and cuts of a film, for the page."""
        film = self.load(number)
        times, decisions = film.times, film.decisions
        people = []
        for person, tracks in film.people.items():
            # Somebody who is not known is decided on track by track.
            for group in [tracks] if person else [[track] for track in tracks]:
                choice = decisions.people.get(person) if person else decisions.tracks.get(group[0].id)
                people.append(
                    {
                        "person": person,
                        "mode": "" if choice is None else _shown(choice.mode),
                        "tracks": [
                            {
                                "id": track.id,
                                "from": float(times[track.first]),
                                "to": float(times[track.last]),
                                "first": track.first,
                                "last": track.last,
                                "notes": track.notes,
                                "score": round(float(track.scores.max()), 2),
                                "after": self.strip(number, track.id, after=True).exists(),
                            }
                            for track in group
                        ],
                    }
                )
        return {
            "width": film.source.width,
            "height": film.source.height,
            "frames": len(film.pts),
            "duration": float(times[-1]) if len(times) else 0.0,
            "default": _shown(decisions.default),
            "people": people,
            "regions": [
                {
                    "from": float(times[region.first]),
                    "to": float(times[region.last]),
                    "mode": _shown(region.mode),
                    "follows": bool(region.keys),
                }
                for region in film.regions
            ],
            "cuts": [float(times[cut]) for cut in film.cuts],
            "source": film.source.name,
        }

    def strip(self, number: str, track: int, *, after: bool) -> Path:
        """Where the thumbnails of a track are, if they were made."""
        from ficgan.video.thumbnails import thumbnail

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

    def frame(self, number: str, at: int) -> Image:
        """One frame of a film as it is."""
        film, item = self.load(number), self.review[number]
        with self._frames:
            if number not in self._readers:
                self._readers[number] = _FrameReader(self.review.source(item), film)
                while len(self._readers) > KEPT:
                    self._readers.popitem(last=False)[1].close()
            return self._readers[number](at)

    def frame_of_result(self, number: str, at: int) -> Image:
        """One frame of the film as it was rendered last."""
        from ficgan.video import open_video

        film, item = self.load(number), self.review[number]
        path = self.review.output / item.saved
        if not item.saved or not path.is_file():
            raise InputError(f"{item.name}: there is no result; render it")
        if not 0 <= at < len(film.times):
            raise InputError(f"there is no frame {at}; the film has {len(film.times)}")
        gap = float(film.times[1]) / 2 if len(film.times) > 1 else 0.0
        with self._frames, open_video(path, start=max(0.0, float(film.times[at]) - gap) or None) as source:
            for frame in source.frames():
                return frame.image
        raise InputError(f"frame {at} of the result cannot be decoded")

    def frame_after(self, number: str, at: int) -> Future[Any]:
        """One frame with its faces as decided; in the film a person's new face may be another one."""
        from ficgan.deidentify.retouch import CHOICES, Choice, Retouch
        from ficgan.video.tracks import TrackSet

        film, item = self.load(number), self.review[number]
        image = self.frame(number, at)

        def draw() -> Image:
            engine, decider = self.work.engine_of(item), film.decider()
            present = [track for track, _ in TrackSet(film.tracks).at(at)]
            retouch = Retouch(engine, image, key=number, faces=[track.face(at) for track in present])
            retouch.names = {n: f"person {track.person or -track.id}" for n, track in enumerate(present)}
            modes = [str(decider.mode_of(track, at)) for track in present]
            for box, mode, _ in film.regions_at(at):
                with suppress(InputError):  # it has left the picture
                    retouch.add(tuple(float(v) for v in box), search=False)  # type: ignore[arg-type]
                    modes.append(mode)
            choices = [Choice(mode if mode in CHOICES else "plain") for mode in modes]
            drawn: Image = retouch.render(choices).image
            return drawn

        return self._draw.put(draw, NOW)


class _FrameReader:
    """Frames of one film by number; the next ones are decoded, others are jumped to."""

    def __init__(self, path: Path, film: Project) -> None:
        self._path, self._pts, self._times = path, film.pts, film.times
        self._source: VideoSource | None = None
        self._frames: Any = None
        self._at, self._image = -1, None

    def __call__(self, at: int) -> Image:
        from ficgan.video import open_video

        if not 0 <= at < len(self._pts):
            raise InputError(f"there is no frame {at}; the film has {len(self._pts)}")
        if self._image is not None and at == self._at:
            return self._image
        if self._source is None or not self._at < at <= self._at + STEPS:
            self.close()
            gap = float(self._times[1]) / 2 if len(self._times) > 1 else 0.0
            self._source = open_video(self._path, start=max(0.0, float(self._times[at]) - gap) or None)
            self._frames = self._source.frames()
        for frame in self._frames:
            self._at, self._image = int(np.searchsorted(self._pts, frame.pts)), frame.image
            if self._at >= at:
                return frame.image
        raise InputError(f"frame {at} cannot be decoded")

    def close(self) -> None:
        """Let go of the file."""
        if self._source is not None:
            self._frames.close()
            self._source.close()
        self._source, self._image, self._at = None, None, -1


def _shown(mode: str) -> str:
    """A mode of a film without the keys it may hold."""
    from ficgan.anonymizers.modes import shown

    return mode if mode == "keep" else "black" if mode == "solid" else shown(mode)
