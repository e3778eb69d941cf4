"""The project of a film: what the analysis found and what a person decided, as files that a person can edit.

docs/video-project.md shows the folder. It holds source faces and no embeddings.
"""

from __future__ import annotations

import hashlib
import os
import secrets
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import urlsplit

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, NonNegativeInt, PositiveInt

from ficgan.errors import InputError
from ficgan.files import atomic_write
from ficgan.folders import (
    Strict,
    Text,
    check_schema,
    checked,
    kind_of,
    make_private_folder,
    read_json,
    remove_folder,
    to_text,
)
from ficgan.video.decisions import Decider, Decision, Decisions, Region
from ficgan.video.tracks import SEEN, UNSURE, BoxKey, Track

if TYPE_CHECKING:
    from ficgan.video.read import VideoSource
    from ficgan.video.source import VideoInfo

TRACKS_SCHEMA = "ficgan-video-tracks/2"
PROJECT_SCHEMA = "ficgan-video-project/1"
DECISIONS_SCHEMA = "ficgan-video-decisions/1"
PROJECT_FILE, TRACKS_FILE = "project.json", "tracks.safetensors"

Image = NDArray[np.uint8]

# -- places of faces ---------------------------------------------------------------------------------------------------

# Of the columns of a track: x0, y0, x1, y1, ten coordinates of landmarks, score.
_UNITS = np.array([10] * 14 + [1000])
# Tenths of a pixel from the origin; farther is no place of a face.
_FURTHEST = 10_000_000


def write_tracks(path: Path, tracks: Sequence[Track], pts: NDArray[np.int64], analysis: str) -> None:
    """Write rows of tracks, to 0.1 px and 0.001 of a score, without people and notes; `pts` int64 [frames] in ticks."""
    from safetensors.numpy import save

    columns = [np.column_stack([t.boxes, t.landmarks.reshape(-1, 10), t.scores]) for t in tracks]
    rows = np.rint(np.concatenate([np.zeros((0, 15)), *columns]) * _UNITS).astype(np.int32)
    rows[:, 2:4] += rows[:, 2:4] == rows[:, :2]  # clipped at the edge of the picture: a tenth of a pixel is left
    tensors: dict[str, NDArray[Any]] = {
        "pts": pts,
        "tracks": np.array([(track.id, track.first, len(track)) for track in tracks], np.int64).reshape(-1, 3),
        "rows": rows,
        "origin": np.concatenate([np.zeros(0, np.uint8), *(track.origin for track in tracks)]),
    }
    with atomic_write(path, overwrite=True, mode=0o600) as file:
        file.write(save(tensors, metadata={"schema": TRACKS_SCHEMA, "analysis": analysis}))


def read_tracks(path: Path) -> tuple[NDArray[np.int64], str, list[Track]]:
    """pts int64 [frames], the name of the analysis, and the tracks, with person 0 and without notes."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(str(path), framework="np") as file:
            analysis = str(check_schema(file.metadata(), TRACKS_SCHEMA, str(path))["analysis"])
            pts, table, rows, origin = (file.get_tensor(name) for name in ("pts", "tracks", "rows", "origin"))
        sizes, rows = table[:, 2], rows.astype(np.int64)
        whole = (table >= (1, 0, 1)).all() and sizes.sum() == len(rows) == len(origin) and rows.shape[1] == 15
        places = (rows[:, :2] < rows[:, 2:4]).all() and np.abs(rows[:, :14]).max(initial=0) <= _FURTHEST
        if not (whole and places and ((origin >= SEEN) & (origin <= UNSURE)).all()):
            raise ValueError("its parts do not belong together")
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror or 'no such file'})") from None
    except (SafetensorError, IndexError, KeyError, TypeError, ValueError) as error:
        raise InputError(f"{path}: is damaged ({error}); analyse the film again") from None
    values = (rows / _UNITS).astype(np.float32)
    columns = values[:, :4], values[:, 4:14].reshape(-1, 5, 2), values[:, 14], origin.astype(np.uint8)
    parts = zip(*(np.split(column, sizes.cumsum()[:-1]) for column in columns), strict=True)
    return pts, analysis, [Track(id, first, *part) for (id, first, _), part in zip(table.tolist(), parts, strict=False)]


# -- the project -------------------------------------------------------------------------------------------------------

_MIB = 1 << 20


def fingerprint(path: str | os.PathLike[str]) -> str:
    """SHA-256, in hexadecimal, of a file's size and its first and last MiB: cheap, and enough to tell films apart."""
    try:
        with open(path, "rb") as file:
            size = file.seek(0, os.SEEK_END)
            digest = hashlib.sha256(size.to_bytes(8, "big"))
            for begin in (0, max(0, size - _MIB)):
                file.seek(begin)
                digest.update(file.read(_MIB))
    except OSError as error:
        raise InputError(f"{os.fspath(path)}: cannot be read ({error.strerror})") from None
    return digest.hexdigest()


class Source(Strict, extra="ignore"):
    """The film a project is of: name without folder, size in bytes, fingerprint (None: no file), seconds of a tick."""

    name: Text
    size: NonNegativeInt | None = None
    fingerprint: str | None = None
    width: PositiveInt
    height: PositiveInt
    time_base: str = Field(pattern=r"^[1-9]\d*/[1-9]\d*$")
    notes: tuple[Text, ...] = ()

    @classmethod
    def of(cls, path: str | os.PathLike[str], info: VideoInfo) -> Self:
        """Describe a film by its file, or `camera:0`, or an address, of which only the kind is kept."""
        text, size, digest = os.fspath(path), None, None
        name = f"{urlsplit(text).scheme} stream" if "://" in text else Path(text).name
        if Path(text).is_file():
            size, digest = Path(text).stat().st_size, fingerprint(text)
        base = f"{info.time_base.numerator}/{info.time_base.denominator}"
        facts = {"width": info.width, "height": info.height, "time_base": base, "notes": info.notes}
        return cls(name=name, size=size, fingerprint=digest, **facts)


class _TrackEntry(Strict):
    """What of a track a person may edit, and what it is recognised by."""

    id: PositiveInt
    person: NonNegativeInt = 0
    first: NonNegativeInt
    last: NonNegativeInt
    notes: tuple[Text, ...] = ()
    kind: Text = ""
    keys: tuple[BoxKey, ...] = ()


class _Document(Strict):
    """project.json: a `Project` but for the rows of its tracks and the times."""

    schema_: str = Field(PROJECT_SCHEMA, alias="schema")
    analysis: str
    source: Source
    settings: dict[str, Any] = Field(default_factory=dict)
    cuts: tuple[NonNegativeInt, ...] = ()
    decisions: Decisions = Decisions()
    regions: tuple[Region, ...] = ()
    tracks: tuple[_TrackEntry, ...] = ()


_SHARED, _EDITED = set(_Document.model_fields) - {"schema_", "tracks"}, ("person", "notes", "kind", "keys")


class _DecisionsFile(Strict):
    """decisions.json: replaces what it names; of people, tracks, links (track → person) and keys number by number."""

    schema_: str = Field(alias="schema")
    analysis: str | None = None
    default: Any = None
    only: Any = None
    people: dict[PositiveInt, Any] = Field(default_factory=dict)
    tracks: dict[PositiveInt, Any] = Field(default_factory=dict)
    spans: Any = None
    boxes: Any = None
    regions: tuple[Region, ...] | None = None
    link: dict[PositiveInt, NonNegativeInt] = Field(default_factory=dict)
    keys: dict[PositiveInt, tuple[BoxKey, ...] | None] = Field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Project:
    """What the analysis of a film found and what shall be done.

    Args:
        pts: [frames] time of showing of each decoded frame, in ticks.
        tracks: as the analysis found them, with the `keys` of boxes that a person moved.
        cuts: numbers of the first frames of new scenes.
        analysis: random name; ties the files and the exported decisions together.
    """

    source: Source
    pts: NDArray[np.int64]
    tracks: Sequence[Track]
    settings: Mapping[str, Any] = field(default_factory=dict)
    cuts: tuple[int, ...] = ()
    decisions: Decisions = field(default_factory=Decisions)
    regions: tuple[Region, ...] = ()
    analysis: str = field(default_factory=lambda: secrets.token_hex(8))

    def __post_init__(self) -> None:
        object.__setattr__(self, "pts", np.asarray(self.pts, np.int64))
        frames, ids = len(self.pts), [track.id for track in self.tracks]
        if twice := [number for number, count in Counter(ids).items() if count > 1]:
            raise InputError(f"two tracks have the id {twice[0]}")
        ends = [(f"track {track.id}", track.last) for track in self.tracks]
        ends += [(f"region {number}", region.last) for number, region in enumerate(self.regions, start=1)]
        for what, last in ends:
            if last >= frames:
                raise InputError(f"{what} reaches frame {last} of a film of {frames} frames")
        for track in self.tracks:
            places = [key.frame for key in track.keys]
            if places != sorted(set(places)) or any(not track.first <= frame <= track.last for frame in places):
                where = f"{track.first}…{track.last}"
                raise InputError(f"the keys' frames of track {track.id} must ascend and lie in {where}")
        if list(self.cuts) != sorted(set(self.cuts)) or any(not 0 < cut < frames for cut in self.cuts):
            raise InputError(f"cuts must ascend and lie between 1 and {frames - 1}")
        rules, people = self.decisions, {track.person for track in self.tracks if track.person}
        spans = rules.spans
        _check_known("person", [*rules.people, *(rules.only or ()), *(s.person for s in spans if s.person)], people)
        _check_known("track", [*rules.tracks, *(s.track for s in spans if s.track)], set(ids))

    @cached_property
    def times(self) -> NDArray[np.float64]:
        """[frames] seconds from the first frame on."""
        base = Fraction(self.source.time_base)
        return (self.pts - self.pts[:1]).astype(np.float64) * base.numerator / base.denominator

    @property
    def rate(self) -> float:
        """Frames per second on average; 25 where that cannot be told."""
        times = self.times
        return float((len(times) - 1) / times[-1]) if len(times) > 1 and times[-1] > 0 else 25.0

    @property
    def people(self) -> dict[int, list[Track]]:
        """The tracks of each person; under 0 those of nobody known."""
        people = sorted({track.person for track in self.tracks})
        return {person: [track for track in self.tracks if track.person == person] for person in people}

    @property
    def span(self) -> dict[str, float | None]:
        """`start` and `end` of what was analysed, in seconds, as `open_video` takes them."""
        return {name: self.settings.get(name) for name in ("start", "end")}

    def decider(self) -> Decider:
        return Decider(self.decisions, self.times, (self.source.width, self.source.height), self.object_covers)

    @property
    def object_covers(self) -> Mapping[str, str]:
        """What covers the tracks that are no faces, by their kind."""
        return self.settings.get("objects", {})

    def regions_at(self, frame: int) -> list[tuple[NDArray[np.float32], str, int]]:
        """Boxes that a person added, float32 [4], with their modes and their numbers in `regions`."""
        boxes = [(region.box_at(frame), region.mode, number) for number, region in enumerate(self.regions)]
        return [(box, mode, number) for box, mode, number in boxes if box is not None]

    def check_source(self, path: str | os.PathLike[str]) -> None:
        """Refuse another film than the one that was analysed, and a camera or stream."""
        if self.source.fingerprint is None or fingerprint(path) != self.source.fingerprint:
            name = os.fspath(path)
            raise InputError(f"{name}: is not the film this project is of ({self.source.name}); analyse it again")

    def apply_decisions(self, path: str | os.PathLike[str]) -> Project:
        """The project with the decisions of a JSON file such as `ficgan ui` exports; see docs/video-project.md."""
        where = str(path)
        given = check_schema(read_json(Path(path)), DECISIONS_SCHEMA, where)
        if given.get("analysis") not in (None, self.analysis):
            raise InputError(f"{where}: was made for another project; analyse and review this one")
        return self.changed(given, where)

    def changed(self, tree: Mapping[str, Any], where: str) -> Project:
        """The project with decisions of the form of such a file; `where` names them in errors."""
        given = checked(_DecisionsFile, {"schema": DECISIONS_SCHEMA, **tree}, where)
        rules: dict[str, Any] = {name: getattr(self.decisions, name) for name in Decisions.model_fields}
        for name in {"default", "only", "spans", "boxes"} & given.model_fields_set:
            rules[name] = getattr(given, name)
        for name in ("people", "tracks"):
            merged: dict[int, Decision | Any] = {**rules[name], **getattr(given, name)}
            rules[name] = {number: choice for number, choice in merged.items() if choice is not None}
        with _naming(where):
            _check_known("track", [*given.link, *given.keys], {track.id for track in self.tracks})
            keys = {number: places or () for number, places in given.keys.items()}
            tracks = [
                replace(track, person=given.link.get(track.id, track.person), keys=keys.get(track.id, track.keys))
                for track in self.tracks
            ]
            regions = self.regions if given.regions is None else given.regions
            return replace(self, tracks=tracks, decisions=checked(Decisions, rules, where), regions=regions)

    def decisions_tree(self) -> dict[str, Any]:
        """What `apply_decisions` reads, JSON-ready: all that was decided on this analysis."""
        tree = self.decisions.model_dump(mode="json", by_alias=True)
        tree["people"] = {str(person): tree["people"].get(str(person)) for person in self.people if person}
        link = {str(track.id): track.person for track in self.tracks}
        keys = {str(track.id): [key.model_dump() for key in track.keys] for track in self.tracks if track.keys}
        regions = [region.model_dump(mode="json") for region in self.regions]
        head = {"schema": DECISIONS_SCHEMA, "analysis": self.analysis}
        return {**head, **tree, "link": link, "keys": keys, "regions": regions}

    def save(self, folder: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """Write project.json and the tracks, each whole or not at all; a new folder that fails is removed again."""
        folder = Path(folder)
        if not overwrite and os.path.lexists(folder / PROJECT_FILE):
            raise InputError(f"{folder}: holds a project already; use --overwrite, or choose another folder")
        new = make_private_folder(folder, kind_of(folder) or "project")  # in a work folder beside its other files
        try:
            write_tracks(folder / TRACKS_FILE, self.tracks, self.pts, self.analysis)
            self.save_document(folder)
        except BaseException:
            if new:
                remove_folder(folder)
            raise

    def save_document(self, folder: str | os.PathLike[str]) -> None:
        """Write project.json alone: enough after decisions, links, regions or settings changed."""
        tracks = [{name: getattr(track, name) for name in _TrackEntry.model_fields} for track in self.tracks]
        document = _Document(**{name: getattr(self, name) for name in _SHARED}, tracks=tracks)
        text = to_text(document.model_dump(mode="json", by_alias=True))
        with atomic_write(Path(folder) / PROJECT_FILE, overwrite=True, mode=0o600) as file:
            file.write(text.encode(errors="replace"))

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> Self:
        """Read a project from its folder, or from the project.json in it."""
        path = Path(folder) if Path(folder).name == PROJECT_FILE else Path(folder) / PROJECT_FILE
        where = str(path)
        document = checked(_Document, check_schema(read_json(path), PROJECT_SCHEMA, where), where)
        pts, analysis, rows = read_tracks(path.with_name(TRACKS_FILE))
        with _naming(where):
            entries = {entry.id: entry for entry in document.tracks}
            listed, held = (sorted((one.id, one.first, one.last) for one in of) for of in (document.tracks, rows))
            if analysis != document.analysis or listed != held:
                raise InputError(f"does not belong to the {TRACKS_FILE} beside it; restore it, or analyse again")
            tracks = [replace(row, **{name: getattr(entries[row.id], name) for name in _EDITED}) for row in rows]
            return cls(pts=pts, tracks=tracks, **{name: getattr(document, name) for name in _SHARED})


@contextmanager
def _naming(where: str) -> Iterator[None]:
    try:
        yield
    except InputError as error:
        raise InputError(f"{where}: {error}") from None


def _check_known(kind: str, named: Iterable[int], known: set[int]) -> None:
    for number in named:
        if number not in known:
            there = f"there are {min(known)}…{max(known)}" if known else "there are none"
            raise InputError(f"speaks of {kind} {number}, which is not in the project; {there}")


# -- strips of faces ---------------------------------------------------------------------------------------------------

THUMBNAIL_HEIGHT = 96


def thumbnail(folder: Path, track: int, after: bool) -> Path:
    """Where the strip of a track is."""
    return folder / "thumbs" / f"track-{track:04d}{'-after' if after else ''}.jpg"


def save_thumbnails(folder: Path, tracks: Iterable[Track], source: VideoSource, *, after: bool = False) -> None:
    """Write a strip of up to three faces of each track, cut from the film with a margin."""
    from PIL import Image as Picture

    wanted: dict[int, list[Track]] = {}
    for track in tracks:
        seen = np.flatnonzero(track.origin == SEEN)
        for row in seen[np.unique(np.linspace(0, len(seen) - 1, 3).round().astype(int))] if len(seen) else ():
            wanted.setdefault(track.first + int(row), []).append(track)
    strips: dict[int, list[Image]] = {}
    for frame in source.frames(wanted=wanted.__contains__) if wanted else ():
        for track in wanted[frame.index]:
            box = track.boxes[frame.index - track.first]
            margin = 0.25 * (box[2:] - box[:2])
            size = np.array(frame.image.shape[1::-1])
            x0, y0 = np.clip(np.floor(box[:2] - margin), 0, size - 1).astype(int)
            x1, y1 = np.clip(np.ceil(box[2:] + margin), (x0 + 1, y0 + 1), size).astype(int)
            face = Picture.fromarray(frame.image[y0:y1, x0:x1])
            width = max(1, min(4 * THUMBNAIL_HEIGHT, round(face.width * THUMBNAIL_HEIGHT / face.height)))
            small = face.resize((width, THUMBNAIL_HEIGHT), Picture.Resampling.LANCZOS)
            strips.setdefault(track.id, []).append(np.asarray(small))
    for number, strip in strips.items():
        path = thumbnail(folder, number, after)
        path.parent.mkdir(mode=0o700, exist_ok=True)
        path.parent.chmod(0o700)
        with atomic_write(path, overwrite=True, mode=0o600) as file:
            Picture.fromarray(np.concatenate(strip, axis=1)).save(file, "JPEG", quality=85)
