"""What happens to each face of a film, the check of the result, and the account of both."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ficgan.arrays import windows
from ficgan.faces import DetectAt, Face, FaceDetector, Recognizer, detector_missing, get_detector, matching, public_name
from ficgan.faces.smooth import SmoothConfig
from ficgan.video.decisions import Exemption
from ficgan.video.media import Frame
from ficgan.video.people import frontality
from ficgan.video.project import Project
from ficgan.video.render import Appearance, FrameJob
from ficgan.video.settings import VideoSettings
from ficgan.video.tracks import FILLED, PADDED, SEEN, Track, TrackSet

__all__ = [
    "CheckReport", "Finding", "Plan", "VideoResult", "check_frames", "effective_modes", "independent_detector",
]  # fmt: skip

_ORIGINS = {SEEN: "seen", FILLED: "filled", PADDED: "padded"}
_CHECKERS = ("insightface", "yunet", "centerface", "dlib")
"""Detectors for the check, the best first."""


def effective_modes(
    track: Track, decided: NDArray[np.str_], settings: VideoSettings, rate: float
) -> tuple[NDArray[np.str_], dict[str, int]]:
    """Modes [n] of a track's rows, with fallbacks where a generated face cannot stand, and reason → number of rows.

    `decided` [n] is what the rules say. The reasons are "small", "turned away" and "pad".
    """
    modes, reasons = decided.copy(), {}
    generated = decided == "ficgan"
    if not generated.any():
        return modes, {}
    hold = max(1, round(settings.hold * rate))

    def steady(flags: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Held on both sides and short pauses closed: a mode that flips from frame to frame is unwatchable."""
        beyond = 2 * hold + 1
        held = np.pad(np.asarray(windows(flags, hold).any(1)), beyond, mode="edge")
        closed = np.asarray(windows(np.asarray(windows(held, hold).any(1)), hold).all(1))
        return closed[beyond:-beyond]

    sides = (track.boxes[:, 2:] - track.boxes[:, :2]).min(1)
    ratio = frontality(track.landmarks)
    turned = (ratio < settings.turned) | (ratio > 1 / max(settings.turned, 1e-6))
    for reason, rows, mode in (
        ("small", steady(sides < settings.small), settings.fallback),
        ("turned away", steady(turned), settings.fallback),
        ("pad", track.origin == PADDED, settings.pad_mode),
    ):
        rows = rows & generated & (modes == "ficgan")
        if rows.any() and mode != "ficgan":
            modes[rows] = mode
            reasons[reason] = int(rows.sum())
    return modes, reasons


@dataclass(frozen=True)
class Finding:
    """A source face that a viewer of the result can still recognise."""

    frame: int
    time: float
    box: tuple[float, float, float, float]
    distance: float
    """Between source and result, by the gate; near 0 where the face was not covered at all."""
    matched_by: tuple[str, ...] = ()
    """Recognisers that take the two for one person."""

    def to_dict(self) -> dict[str, Any]:
        box = [round(value, 1) for value in self.box]
        return {
            "frame": self.frame, "time": round(self.time, 3), "box": box, "distance": round(self.distance, 4),
            "matched_by": list(self.matched_by),
        }  # fmt: skip


class Plan:
    """Modes and identities of all tracks of an analysed film, its decisions made."""

    def __init__(self, film: Project, settings: VideoSettings) -> None:
        self._film, self._tracks, self._settings = film, TrackSet(film.tracks), settings
        decider, times = film.decider(), film.times
        self._rate = (len(times) - 1) / times[-1] if len(times) > 1 and times[-1] > 0 else 25.0
        self.reach = SmoothConfig().frames(self._rate)
        """Frames on either side over which generated faces are smoothed."""
        self.person: dict[int, str] = {}
        """Track → key of its person in the k-same draw."""
        self.fallbacks: Counter[str] = Counter()
        """Why faces fall back → rows."""
        self.origins: Counter[str] = Counter()
        """How places are known → rows."""
        self._modes: dict[int, NDArray[np.str_]] = {}
        scope = film.source.fingerprint or "film"
        for track in film.tracks:
            self._modes[track.id], reasons = effective_modes(track, decider.decide(track), settings, self._rate)
            self.fallbacks.update(reasons)
            self.origins.update({name: int((track.origin == origin).sum()) for origin, name in _ORIGINS.items()})
            linked = settings.link != "none" and track.person > 0
            where = "job" if settings.link == "job" and linked else scope
            self.person[track.id] = f"{where}/person {track.person}" if linked else f"{where}/track {track.id}"

    def job(self, frame: Frame) -> FrameJob:
        faces = [
            Appearance(track.id, self.person[track.id], track.face(frame.index), str(self._modes[track.id][row]))
            for track, row in self._tracks.at(frame.index)
        ]
        return FrameJob(frame, faces, self._film.regions_at(frame.index))

    def cover(self, findings: Sequence[Finding], reach: int) -> int:
        """Cover generated faces that are still recognised.

        Args:
            findings: of the check.
            reach: frames before and after a finding that were not checked.

        Returns:
            Number of rows changed; findings on no generated face change nothing.
        """
        changed = 0
        reach = max(reach, round(self._settings.hold * self._rate))
        for track, row in self._generated(findings):
            near = self._modes[track.id][max(0, row - reach) : row + reach + 1]  # a view
            changed += int((near == "ficgan").sum())
            near[near == "ficgan"] = self._settings.fallback
        if changed:
            self.fallbacks["still recognised"] += changed
        return changed

    def recognised(self, findings: Sequence[Finding]) -> set[str]:
        """Keys of the people whose generated face a finding of the check lies on."""
        return {self.person[track.id] for track, _ in self._generated(findings)}

    def _generated(self, findings: Sequence[Finding]) -> Iterator[tuple[Track, int]]:
        for finding in findings:
            x, y = (finding.box[0] + finding.box[2]) / 2, (finding.box[1] + finding.box[3]) / 2
            for track, row in self._tracks.at(finding.frame):
                x0, y0, x1, y1 = track.boxes[row]
                if self._modes[track.id][row] == "ficgan" and x0 <= x <= x1 and y0 <= y <= y1:
                    yield track, row

    def kept_at(self, frame: int) -> NDArray[np.floating]:
        """Boxes [n,4] of the faces that stay as they are in a frame."""
        rows = [track.boxes[row] for track, row in self._tracks.at(frame) if self._modes[track.id][row] == "keep"]
        return np.array(rows, np.float32).reshape(-1, 4)


# -- the check ---------------------------------------------------------------------------------------------------------


@dataclass
class CheckReport:
    """What the check saw."""

    detector: str
    recognizer: str
    frames: int = 0
    """Frames looked at."""
    faces: int = 0
    """Faces that the detector found in the result."""
    exempt: int = 0
    """Of them, those a rule keeps."""
    findings: list[Finding] = field(default_factory=list)
    unchecked: str = ""
    """Why nothing follows from this check, where that is so."""

    def to_dict(self) -> dict[str, Any]:
        tree = {**asdict(self), "checked": not self.unchecked}
        tree["findings"] = [finding.to_dict() for finding in self.findings]
        reason = tree.pop("unchecked")
        return {**tree, "reason": reason} if reason else tree


def independent_detector(used: str, size: int) -> FaceDetector:
    """A detector of another kind than `used`, if there is one, that searches at a longest side of `size` pixels."""
    others = [name for name in _CHECKERS if not used.startswith(name) and detector_missing(name) is None]
    return DetectAt(get_detector(others[0] if others else "auto", scale=1.0), (size, size), enlarge=False)


def check_frames(
    pairs: Iterator[tuple[Frame, Frame]], kept_at: Callable[[int], NDArray[np.floating]], detector: FaceDetector,
    recognizer: Recognizer, *, expected: bool = True,
) -> CheckReport:  # fmt: skip
    """Look for source faces in a result.

    A face counts where the detector finds it in the result and the recogniser takes the same place in the source for
    the same person. A missed face is the same in both, so it is found, too.

    Args:
        pairs: the same frame of source and result.
        kept_at: boxes [n,4] of the faces that rules keep in a frame.
        detector: should not be the one that found the faces.
        expected: whether the film has faces. A detector that then finds none, even in the source, proves nothing.
    """
    report, sighted = CheckReport(detector.name, public_name(recognizer)), not expected
    for source, result in pairs:
        report.frames += 1
        faces = detector.detect(result.image)
        sighted = sighted or bool(faces) or bool(detector.detect(source.image))
        kept = kept_at(source.index)
        seen = [face for face in faces if not _is_exempt(face, kept)]
        report.faces += len(faces)
        report.exempt += len(faces) - len(seen)
        if not seen:
            continue
        marks = np.stack([face.landmarks for face in seen])
        before, after = recognizer.embed(source.image, marks), recognizer.embed(result.image, marks)
        for face, a, b in zip(seen, before, after, strict=True):
            if names := matching(recognizer, a, b):
                x0, y0, x1, y1 = (float(value) for value in face.box)
                distance = float(recognizer.distance(a, b))
                report.findings.append(Finding(source.index, source.time, (x0, y0, x1, y1), distance, tuple(names)))
    if not sighted:
        report.unchecked = f"{detector.name} found no face, not even in the source"
    return report


def _is_exempt(face: Face, kept: NDArray[np.floating]) -> bool:
    """Whether a rule keeps a face: its centre lies in such a box, and the sizes agree within a factor of 2."""
    if not len(kept):
        return False
    centre, size = (face.box[:2] + face.box[2:]) / 2, float((face.box[2:] - face.box[:2]).max())
    sizes = (kept[:, 2:] - kept[:, :2]).max(1).clip(1e-6)
    inside = (kept[:, :2] <= centre).all(1) & (centre <= kept[:, 2:]).all(1)
    return bool((inside & (sizes / 2 <= size) & (size <= 2 * sizes)).any())


# -- the account -------------------------------------------------------------------------------------------------------


@dataclass
class VideoResult:
    """What was done to a film, ready for its side-car."""

    output: Path | None
    frames: int
    """Frames read, each of which was written."""
    seconds: float
    """Length of the film."""
    tracks: int
    people: int
    faces: Mapping[str, int]
    """Faces of single frames by what was done to them: generated, solid, blur, mosaic, a method, region, kept."""
    fallbacks: Mapping[str, int] = field(default_factory=dict)
    """Why faces were not generated although asked for: reason → faces of single frames."""
    masked_people: int = 0
    """People who were recognised with every setting, and so were covered."""
    origins: Mapping[str, int] = field(default_factory=dict)
    """Faces of single frames by how their place is known: seen, filled, padded."""
    exemptions: list[Exemption] = field(default_factory=list)
    edits: tuple[str, ...] = ()
    """What the project of a reviewed film says beyond its default, a sentence each."""
    check: CheckReport | None = None
    """None where no check was asked for."""
    notes: tuple[str, ...] = ()
    """What was left out, damaged or worth knowing, each a sentence."""
    damage: tuple[str, ...] = ()
    """Where the source was cut or damaged."""
    settings: dict[str, Any] = field(default_factory=dict)
    account: dict[str, Any] = field(default_factory=dict)
    """Of the k-same draws and the model, as for a photo."""
    has_audio: bool = False
    """Whether sound was copied."""
    timing: dict[str, float] = field(default_factory=dict)
    """Seconds by stage."""

    @property
    def reidentified(self) -> int | None:
        """Faces that the check still recognises; None where there was no check, or nothing follows from it."""
        if self.check is None or (self.check.unchecked and not self.check.findings):
            return None
        return len(self.check.findings)

    @property
    def ok(self) -> bool:
        """The check recognised nobody and the source was read to its end."""
        return not (self.reidentified or self.damage)

    def to_dict(self) -> dict[str, Any]:
        return {
            **self.account, "frames": self.frames, "duration": round(self.seconds, 3), "tracks": self.tracks,
            "people": self.people, "faces_by_action": dict(self.faces), "fallbacks": dict(self.fallbacks),
            "masked_people": self.masked_people, "faces_by_origin": dict(self.origins),
            "exemptions": [exemption.to_dict() for exemption in self.exemptions], "edits": list(self.edits),
            "check": None if self.check is None else self.check.to_dict(),
            "audio": "copied" if self.has_audio else "none", "notes": list(self.notes), "damage": list(self.damage),
            "settings": self.settings, "timing": {stage: round(value, 2) for stage, value in self.timing.items()},
        }  # fmt: skip
