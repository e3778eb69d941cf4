"""The project of a film: what the analysis found and what a person decided, as files that a person can edit.

    FOLDER/                  mode 0700; everything in it 0600
      .ficgan-folder         says that the folder is ours (see `folders`)
      project.json           the film, settings, cuts, who is who, decisions, regions: to be edited
      tracks.jsonl           places of the faces, frame by frame: not meant for editing
      thumbs/, review.html   the review page (see `review`)

It holds source faces and no embeddings.
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
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, NonNegativeInt, PositiveInt

from ficgan.errors import InputError
from ficgan.video.decisions import Decider, Decision, Decisions
from ficgan.video.folders import kind_of, make_private_folder, remove_folder, write_private
from ficgan.video.media import VideoInfo
from ficgan.video.regions import Region
from ficgan.video.schema import Strict, Text, check_schema, checked, read_json, to_text
from ficgan.video.track_file import read_tracks, rounded, write_tracks
from ficgan.video.tracks import Track

__all__ = ["DECISIONS_SCHEMA", "PROJECT_SCHEMA", "Project", "Source", "fingerprint"]

PROJECT_SCHEMA = "ficgan-video-project/1"
DECISIONS_SCHEMA = "ficgan-video-decisions/1"
PROJECT_FILE, TRACKS_FILE = "project.json", "tracks.jsonl"
_MIB = 1 << 20


def fingerprint(path: str | os.PathLike[str]) -> str:
    """SHA-256, in hexadecimal, of a file's size and its first and last MiB: cheap, and enough to tell films apart.

    Raises:
        InputError: The file cannot be read.
    """
    try:
        with open(path, "rb") as file:
            size = file.seek(0, os.SEEK_END)
            digest = hashlib.sha256(size.to_bytes(8, "big"))
            file.seek(0)
            digest.update(file.read(_MIB))
            file.seek(max(0, size - _MIB))
            digest.update(file.read(_MIB))
    except OSError as error:
        raise InputError(f"{os.fspath(path)}: cannot be read ({error.strerror})") from None
    return digest.hexdigest()


class Source(Strict):
    """The film a project is of."""

    name: Text
    """Of the file, without its folder."""
    size: NonNegativeInt | None = None
    """Bytes; None for a camera or a stream."""
    fingerprint: str | None = None
    width: PositiveInt
    height: PositiveInt
    time_base: str = Field(pattern=r"^[1-9]\d*/[1-9]\d*$")
    """Seconds of a tick, as a fraction."""
    rate: str | None = None
    duration: float | None = None
    codec: str = ""
    pixel_format: str = ""
    rotation: int = 0
    audio_streams: NonNegativeInt = 0
    notes: tuple[Text, ...] = ()

    @classmethod
    def of(cls, path: str | os.PathLike[str], info: VideoInfo) -> Self:
        """What identifies a film, from its file (or `camera:0`, or an address, of which only the kind is kept)."""
        text, size, digest = os.fspath(path), None, None
        name = f"{urlsplit(text).scheme} stream" if "://" in text else Path(text).name
        if Path(text).is_file():
            size, digest = Path(text).stat().st_size, fingerprint(text)
        return cls(
            name=name, size=size, fingerprint=digest, width=info.width, height=info.height,
            time_base=f"{info.time_base.numerator}/{info.time_base.denominator}",
            rate=None if info.rate is None else f"{info.rate.numerator}/{info.rate.denominator}",
            duration=info.duration, codec=info.codec, pixel_format=info.pixel_format, rotation=info.rotation,
            audio_streams=info.audio_streams, notes=info.notes,
        )  # fmt: skip


class _TrackEntry(Strict):
    """What of a track a person may edit, and what it is recognised by."""

    id: PositiveInt
    person: NonNegativeInt = 0
    first: NonNegativeInt
    last: NonNegativeInt
    notes: tuple[Text, ...] = ()


class _Document(Strict):
    """project.json."""

    schema_: str = Field(alias="schema")
    analysis: str
    source: Source
    settings: dict[str, Any] = Field(default_factory=dict)
    cuts: tuple[NonNegativeInt, ...] = ()
    decisions: Decisions = Decisions()
    regions: tuple[Region, ...] = ()
    tracks: tuple[_TrackEntry, ...] = ()


class _DecisionsFile(Strict):
    """decisions.json: what it names replaces what the project has, what it leaves out stays.

    `people`, `tracks` and `link` are taken number by number; null removes a decision.
    """

    schema_: str = Field(alias="schema")
    analysis: str | None = None
    default: Any = None
    only: Any = None
    people: dict[PositiveInt, Any] = Field(default_factory=dict)
    tracks: dict[PositiveInt, Any] = Field(default_factory=dict)
    spans: Any = None
    boxes: Any = None
    link: dict[PositiveInt, NonNegativeInt] = Field(default_factory=dict)
    """Track → the person it shows."""


@dataclass(frozen=True, eq=False)
class Project:
    """What the analysis of a film found and what shall be done. Numbers are rounded as the files hold them."""

    source: Source
    pts: NDArray[np.int64]
    """[frames] time of showing of each decoded frame, in ticks."""
    tracks: Sequence[Track]
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Of the analysis: detector, threshold, stride …"""
    cuts: tuple[int, ...] = ()
    """Numbers of the first frames of new scenes."""
    decisions: Decisions = field(default_factory=Decisions)
    regions: tuple[Region, ...] = ()
    analysis: str = field(default_factory=lambda: secrets.token_hex(8))
    """Random name of the analysis; ties the files and the exported decisions together."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "pts", np.asarray(self.pts, np.int64))
        object.__setattr__(self, "tracks", tuple(rounded(track) for track in self.tracks))
        self._check()

    @property
    def times(self) -> NDArray[np.float64]:
        """[frames] seconds from the first frame on."""
        base = Fraction(self.source.time_base)
        return (self.pts - self.pts[:1]).astype(np.float64) * base.numerator / base.denominator

    @property
    def people(self) -> dict[int, list[Track]]:
        """The tracks of each person; under 0 those of nobody known."""
        found: dict[int, list[Track]] = {}
        for track in self.tracks:
            found.setdefault(track.person, []).append(track)
        return dict(sorted(found.items()))

    def decider(self) -> Decider:
        """What shall happen to each face (see `decisions`)."""
        return Decider(self.decisions, self.times, (self.source.width, self.source.height))

    def regions_at(self, frame: int) -> list[tuple[NDArray[np.float32], str]]:
        """Boxes that a person added, float32 [4], with their modes."""
        places = ((region.box_at(frame), region.mode) for region in self.regions)
        return [(box, mode) for box, mode in places if box is not None]

    def check_source(self, path: str | os.PathLike[str], *, force: bool = False) -> None:
        """Refuse another film than the one that was analysed.

        Args:
            path: The film to render.
            force: Take it all the same.

        Raises:
            InputError: Another film, or a camera or stream, which cannot be seen twice.
        """
        if force:
            return
        if self.source.fingerprint is None:
            raise InputError(f"{os.fspath(path)}: the project is of a {self.source.name}, which cannot be told apart")
        if fingerprint(path) != self.source.fingerprint:
            raise InputError(
                f"{os.fspath(path)}: is not the film this project is of ({self.source.name}, {self.source.size} bytes);"
                " analyse it again"
            )

    def apply_decisions(self, path: str | os.PathLike[str]) -> Project:
        """The project with the decisions of a file, such as the review page exports.

        Args:
            path: JSON; see docs/video-project.md. Keys it leaves out change nothing.

        Raises:
            InputError: The file is damaged, for another project, or speaks of what is not there.
        """
        where = str(path)
        given = checked(_DecisionsFile, check_schema(read_json(Path(path)), DECISIONS_SCHEMA, where), where)
        if given.analysis not in (None, self.analysis):
            raise InputError(f"{where}: was made for another project; analyse and review this one")
        named = given.model_fields_set
        tree: dict[str, Any] = {name: getattr(self.decisions, name) for name in Decisions.model_fields}
        for name in {"default", "only", "spans", "boxes"} & named:
            tree[name] = getattr(given, name)
        for name in ("people", "tracks"):
            merged: dict[int, Decision | Any] = {**tree[name], **getattr(given, name)}
            tree[name] = {number: choice for number, choice in merged.items() if choice is not None}
        with _naming(where):
            _check_known("track", given.link, {track.id for track in self.tracks})
            tracks = [replace(track, person=given.link.get(track.id, track.person)) for track in self.tracks]
            return replace(self, tracks=tracks, decisions=checked(Decisions, tree, where))

    def save(self, folder: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """Write project.json and tracks.jsonl, each whole or not at all; a new folder that fails disappears again.

        Args:
            folder: New, empty, or one of ours; made with mode 0700, files with 0600.
            overwrite: Replace the project in it.

        Raises:
            InputError: The folder holds something else, or cannot be written.
        """
        folder = Path(folder)
        if not overwrite and os.path.lexists(folder / PROJECT_FILE):
            raise InputError(f"{folder}: holds a project already; use --overwrite, or choose another folder")
        new = make_private_folder(folder, kind_of(folder) or "project")  # in a work folder beside its other files
        try:
            with write_private(folder / TRACKS_FILE, overwrite=True) as file:
                write_tracks(file, self.tracks, self.pts, self.analysis)
            self.save_document(folder)
        except BaseException:
            if new:
                remove_folder(folder)
            raise

    def save_document(self, folder: str | os.PathLike[str]) -> None:
        """Write project.json alone: enough after decisions, links, regions or settings changed."""
        document = _Document(
            schema_=PROJECT_SCHEMA, analysis=self.analysis, source=self.source, settings=dict(self.settings),
            cuts=self.cuts, decisions=self.decisions, regions=self.regions,
            tracks=tuple(
                _TrackEntry(id=t.id, person=t.person, first=t.first, last=t.last, notes=tuple(t.notes))
                for t in self.tracks
            ),
        )  # fmt: skip
        text = to_text(document.model_dump(mode="json", by_alias=True))
        with write_private(Path(folder) / PROJECT_FILE, overwrite=True) as file:
            file.write(text.encode(errors="replace"))

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> Self:
        """Read a project.

        Args:
            folder: The folder, or the project.json in it.

        Raises:
            InputError: Missing, damaged, of a newer version, or not in itself consistent.
        """
        place = Path(folder)
        path = place if place.name == PROJECT_FILE else place / PROJECT_FILE
        where = str(path)
        document = checked(_Document, check_schema(read_json(path), PROJECT_SCHEMA, where), where)
        pts, analysis, rows = read_tracks(path.with_name(TRACKS_FILE))
        if analysis != document.analysis:
            raise InputError(f"{where}: does not belong to the {TRACKS_FILE} beside it; analyse the film again")
        entries = {entry.id: entry for entry in document.tracks}
        if len(entries) < len(document.tracks):
            raise InputError(f"{where}: the track {_repeated(t.id for t in document.tracks)} is listed twice")
        tracks: list[Track] = []
        for track in rows:
            entry = entries.get(track.id)
            if entry is None or (entry.first, entry.last) != (track.first, track.last):
                raise InputError(
                    f"{where}: track {track.id} is not in frames {track.first}…{track.last} here, as {TRACKS_FILE} says"
                )
            tracks.append(replace(track, person=entry.person, notes=list(entry.notes)))
        missing = sorted(set(entries) - {track.id for track in tracks})
        if missing:
            raise InputError(f"{where}: track {missing[0]} has no rows in {TRACKS_FILE}; analyse the film again")
        with _naming(where):
            return cls(
                document.source, pts, tracks, document.settings, document.cuts, document.decisions, document.regions,
                document.analysis,
            )  # fmt: skip

    def _check(self) -> None:
        """Everything refers to frames, tracks and people that are there."""
        frames, ids = len(self.pts), {track.id for track in self.tracks}
        if len(ids) < len(self.tracks):
            raise _Inconsistent(f"two tracks have the id {_repeated(track.id for track in self.tracks)}")
        for track in self.tracks:
            if track.last >= frames:
                raise _Inconsistent(f"track {track.id} reaches frame {track.last} of a film of {frames} frames")
        if list(self.cuts) != sorted(set(self.cuts)) or any(not 0 < cut < frames for cut in self.cuts):
            raise _Inconsistent(f"cuts must ascend and lie between 1 and {frames - 1}")
        for number, region in enumerate(self.regions, start=1):
            if region.last >= frames:
                raise _Inconsistent(f"region {number} reaches frame {region.last} of a film of {frames} frames")
        rules, people = self.decisions, {track.person for track in self.tracks if track.person}
        spans = rules.spans
        _check_known("person", [*rules.people, *(rules.only or ()), *(s.person for s in spans if s.person)], people)
        _check_known("track", [*rules.tracks, *(s.track for s in spans if s.track)], ids)


class _Inconsistent(InputError):
    """Something in a project does not fit the rest of it."""

    def __init__(self, problem: str) -> None:
        super().__init__(f"the project: {problem}")
        self.problem = problem


@contextmanager
def _naming(where: str) -> Iterator[None]:
    """Say which file a project that does not fit together comes from."""
    try:
        yield
    except _Inconsistent as error:
        raise InputError(f"{where}: {error.problem}") from None


def _check_known(kind: str, named: Iterable[int], known: set[int]) -> None:
    for number in named:
        if number not in known:
            there = f"there are {min(known)}…{max(known)}" if known else "there are none"
            raise _Inconsistent(f"speaks of {kind} {number}, which is not in the project; {there}")


def _repeated(numbers: Iterable[int]) -> int:
    return Counter(numbers).most_common(1)[0][0]
