"""What happens to each face of a film, the check of the result, what a job needs to resume, and its account."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel

from ficgan import __version__
from ficgan.arrays import windows
from ficgan.errors import InputError
from ficgan.faces import DetectAt, Face, FaceDetector, Recognizer, detector_missing, get_detector, matching, public_name
from ficgan.faces.alignment import SmoothConfig
from ficgan.faces.mesh import read_landmarks
from ficgan.files import atomic_write
from ficgan.video.folders import read_json
from ficgan.video.media import EncodeOptions, Frame
from ficgan.video.people import frontality
from ficgan.video.project import PROJECT_FILE, TRACKS_FILE, Project, fingerprint
from ficgan.video.render import Appearance, FrameJob, Renderer
from ficgan.video.settings import Exemption, Rules, VideoSettings
from ficgan.video.tools import VideoTools
from ficgan.video.tracks import FILLED, PADDED, SEEN, Track, TrackSet
from ficgan.video.write import finished_segments

__all__ = [
    "CheckReport",
    "Finding",
    "Plan",
    "State",
    "VideoResult",
    "analysis_in",
    "check_frames",
    "effective_modes",
    "identity_of",
    "independent_detector",
]

_ORIGINS = {SEEN: "seen", FILLED: "filled", PADDED: "padded"}
_AUDITIONS = (3, 8)
"""Fewest and most frames on which a person's new face is tried."""
_CHECKERS = ("insightface", "yunet", "centerface", "dlib")
"""Detectors for the check, the best first."""


def effective_modes(
    track: Track, decided: NDArray[np.str_], settings: VideoSettings, rate: float
) -> tuple[NDArray[np.str_], dict[str, int]]:
    """Modes [n] of a track's rows, with fallbacks where a generated face cannot stand, and reason → number of rows.

    `decided` [n] is what the rules say. The reasons are "small", "turned away" and "pad".
    """
    modes, reasons = decided.copy(), {}
    if not (decided == "ficgan").any():
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
    for reason, rows in (
        ("small", steady(sides < settings.small)),
        ("turned away", steady(turned)),
        ("pad", track.origin == PADDED),
    ):
        rows = rows & (modes == "ficgan")
        if rows.any():
            modes[rows] = settings.fallback
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
            "frame": self.frame,
            "time": round(self.time, 3),
            "box": box,
            "distance": round(self.distance, 4),
            "matched_by": list(self.matched_by),
        }


class Plan:
    """Modes and identities of all tracks of an analysed film, its decisions made."""

    def __init__(self, film: Project, settings: VideoSettings) -> None:
        self._film, self._tracks, self._settings = film, TrackSet(film.tracks), settings
        decider, self._rate = film.decider(), film.rate
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

    def auditions(self) -> dict[int, set[str]]:
        """Frames on which identities are tried before the film is rendered, with their people.

        One for each second that a person is there, 3 to 8, spread over the frames on which the detector saw it.
        """
        there: Counter[str] = Counter()
        seen: dict[str, list[int]] = {}
        for track in self._tracks:
            generated, person = self._modes[track.id] == "ficgan", self.person[track.id]
            there[person] += int(generated.sum())
            rows = np.flatnonzero(generated & (track.origin == SEEN))
            seen.setdefault(person, []).extend((track.first + rows).tolist())
        chosen: dict[int, set[str]] = {}
        for person, frames in seen.items():
            count = min(max(_AUDITIONS[0], int(there[person] / self._rate)), _AUDITIONS[1], len(frames))
            for place in np.linspace(0, len(frames) - 1, count + 2)[1:-1] if frames else ():
                chosen.setdefault(frames[round(place)], set()).add(person)
        return chosen

    def cover(self, findings: Sequence[Finding]) -> int:
        """Cover generated faces that are still recognised, and those around; returns the rows changed."""
        changed = 0
        for track, near in self._around(findings):
            modes = self._modes[track][near]  # a view
            changed += int((modes == "ficgan").sum())
            modes[modes == "ficgan"] = self._settings.fallback
        if changed:
            self.fallbacks["still recognised"] += changed
        return changed

    def lost(self, findings: Sequence[Finding]) -> set[str]:
        """Keys of the people of whose generated faces `cover` would take half or more."""
        taken: dict[int, NDArray[np.bool_]] = {}
        for track, near in self._around(findings):
            taken.setdefault(track, np.zeros(len(self._modes[track]), bool))[near] = True
        whole, covered = Counter[str](), Counter[str]()
        for number, modes in self._modes.items():
            generated = modes == "ficgan"
            whole[self.person[number]] += int(generated.sum())
            covered[self.person[number]] += int((generated & taken[number]).sum()) if number in taken else 0
        return {person for person, rows in covered.items() if 0 < whole[person] <= 2 * rows}

    def _around(self, findings: Sequence[Finding]) -> Iterator[tuple[int, slice]]:
        """Tracks and the rows of each that findings of the check touch, up to `hold` seconds before and after.

        Two findings of a track that are less than a second apart are one: the check's detector may have been blind
        between them.
        """
        reach = max(1, round(self._settings.hold * self._rate))
        found: dict[int, list[int]] = {}
        for track, row in self._generated(findings):
            found.setdefault(track.id, []).append(row)
        for number, rows in found.items():
            rows.sort()
            for row, following in zip(rows, [*rows[1:], rows[-1]], strict=True):
                last = following if following - row < self._rate else row
                yield number, slice(max(0, row - reach), last + reach + 1)

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

    def add(self, other: CheckReport) -> None:
        """Take over what a look at other frames of the film saw."""
        self.frames, self.faces = self.frames + other.frames, self.faces + other.faces
        self.exempt += other.exempt
        self.findings = sorted([*self.findings, *other.findings], key=lambda finding: finding.frame)

    def to_dict(self) -> dict[str, Any]:
        tree = {**asdict(self), "checked": not self.unchecked}
        tree["findings"] = [finding.to_dict() for finding in self.findings]
        reason = tree.pop("unchecked")
        return {**tree, "reason": reason} if reason else tree


def independent_detector(used: str, size: int) -> FaceDetector:
    """A detector of another kind than `used`, that searches at a longest side of `size` pixels; two are embedded."""
    other = next(name for name in _CHECKERS if not used.startswith(name) and detector_missing(name) is None)
    return DetectAt(get_detector(other, scale=1.0), (size, size), enlarge=False)


def check_frames(
    pairs: Iterator[tuple[Frame, Frame]],
    kept_at: Callable[[int], NDArray[np.floating]],
    detector: FaceDetector,
    recognizer: Recognizer,
    *,
    expected: bool = True,
) -> CheckReport:
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
        marks = read_landmarks(result.image, seen)
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


# -- the state of an interrupted film --------------------------------------------------------------------------------

DETECTIONS = "ficgan-detections.jsonl"
_STATE, _CASTS = "ficgan-state.json", "ficgan-casts.safetensors"


def identity_of(
    tools: VideoTools,
    path: str | os.PathLike[str],
    settings: VideoSettings,
    rules: Rules,
    encode: EncodeOptions,
    start: float | None,
    end: float | None,
    document: bytes = b"",
) -> str:
    """Hash of everything that shapes the result: only the same job resumes what an interrupted one left.

    A seed counts where the user gave it; a random one is taken over from the interrupted job.
    """
    model = tools.face_model
    facts = {
        "ficgan": __version__,
        "film": [fingerprint(path), Path(path).stat().st_mtime_ns] if Path(path).is_file() else os.fspath(path),
        "seed": model.seed if model is not None and model.seeded else None,
        "methods": tools.methods.identity(),
        "settings": asdict(settings),
        "encode": asdict(encode),
        "span": [start, end],
        "keep": _photos(rules.keep),
        "only": _photos(rules.only),
        "boxes": list(rules.boxes),
        "spans": list(rules.spans),
        "detector": tools.detector.name,
        "gate": tools.gate.name if tools.gate else None,
        "policy": asdict(tools.policy),
        "layer": tools.layer,
        "psi": tools.psi,
        "model": model and model.identity(),
    }
    text = json.dumps(facts, sort_keys=True, default=str).encode()
    return hashlib.sha256(text + b"\0" + document).hexdigest()


def _photos(photos: Mapping[str, NDArray[np.uint8]]) -> list[list[Any]]:
    return [[name, photo.shape, hashlib.sha256(photo.tobytes()).hexdigest()] for name, photo in photos.items()]


def analysis_in(folder: Path) -> str | None:
    """The name of the analysis in a folder; None where there is none to be read."""
    try:
        return str(read_json(folder / PROJECT_FILE)["analysis"])
    except (InputError, KeyError, TypeError):
        return None


class _Facts(BaseModel):
    """ficgan-state.json."""

    identity: str
    """Hash of all that shapes the result."""
    seed: int | None = None
    """Of the model's draws; None without a model."""
    methods_seed: int
    analysed: bool = False
    recasts: int = 0
    """How often people who were still recognised got another face."""
    findings: list[Finding] = []
    """What the check found before the film was rendered again, see `Plan.cover`."""


class State:
    """The state of a film in its private work folder: the seed of the job and the new identities settled so far."""

    def __init__(self, folder: Path, tools: VideoTools, identity: str) -> None:
        self.folder, model = folder, tools.face_model
        self.timing: dict[str, float] = {}
        try:
            facts = _Facts.model_validate_json((folder / _STATE).read_bytes())
        except (OSError, ValueError):
            facts = None
        if facts is not None and facts.identity == identity:
            self.facts, tools.methods.seed = facts, facts.methods_seed
            if model is not None and facts.seed is not None:
                model.seed = facts.seed
            return
        for path in folder.iterdir():
            if path.name.startswith("ficgan-") or path.name in (PROJECT_FILE, TRACKS_FILE):
                path.unlink()
        seed = None if model is None else model.seed
        self.facts = _Facts(identity=identity, seed=seed, methods_seed=tools.methods.seed)
        self.note()

    @property
    def analysed(self) -> bool:
        return self.facts.analysed and (self.folder / PROJECT_FILE).is_file()

    @contextmanager
    def timed(self, stage: str) -> Iterator[None]:
        began = time.monotonic()
        yield
        self.timing[stage] = self.timing.get(stage, 0.0) + time.monotonic() - began

    def note(self, **facts: Any) -> None:
        self.facts = self.facts.model_copy(update=facts)
        with atomic_write(self.folder / _STATE, overwrite=True, mode=0o600) as file:
            file.write(self.facts.model_dump_json().encode())

    def save_casts(self, renderer: Renderer, frames: int) -> None:
        """Save what the renderer knows when it has drawn the first `frames` frames, those of all finished segments."""
        from safetensors.numpy import save

        casts: list[dict[str, Any]] = []
        tensors: dict[str, NDArray[Any]] = {}
        for number, (person, cast) in enumerate(renderer.casts.items()):
            tensors[f"z_id.{number}"] = cast.z_id
            if cast.kind is not None:
                tensors[f"kind.{number}"] = cast.kind
            casts.append(
                {
                    "person": person,
                    "rung": cast.rung,
                    "distance": cast.distance,
                    "matched_by": cast.matched_by,
                    "settled": cast.settled,
                    "checked": list(cast.checked.items()),
                    "hidden": list(cast.hidden),
                    "watched": list(cast.watched),
                }
            )
        stills, colours = list(renderer.covers.stills), list(renderer.covers.colours.items())
        tensors |= {f"still.{number}": renderer.covers.stills[key] for number, key in enumerate(stills)}
        header = {
            "casts": json.dumps(casts),
            "stills": json.dumps(stills),
            "colours": json.dumps(colours),
            "lost": json.dumps(list(renderer.lost.items())),
            "counts": json.dumps(renderer.counts),
            "causes": json.dumps(renderer.causes),
            "frames": str(frames),
        }
        with atomic_write(self.folder / _CASTS, overwrite=True, mode=0o600) as file:
            file.write(save(tensors, metadata=header))

    def load_casts(self, renderer: Renderer) -> None:
        """Restore what the renderer of the interrupted run knew; later segments are removed and rendered again."""
        from safetensors import SafetensorError, safe_open

        frames = 0
        try:
            with safe_open(str(self.folder / _CASTS), framework="np") as file:
                header = file.metadata() or {}
                for number, saved in enumerate(json.loads(header["casts"])):
                    tracks = {name: set(saved.pop(name)) for name in ("hidden", "watched")}
                    checked, person, rung = dict(saved.pop("checked")), saved.pop("person"), saved.pop("rung")
                    kind = file.get_tensor(f"kind.{number}") if f"kind.{number}" in file.keys() else None  # noqa: SIM118
                    z_id = file.get_tensor(f"z_id.{number}")
                    renderer.cast(person, z_id, rung, kind, checked=checked, **tracks, **saved)
                for number, (mode, person) in enumerate(json.loads(header["stills"])):
                    renderer.covers.stills[mode, person] = file.get_tensor(f"still.{number}")
                colours = json.loads(header["colours"])
                renderer.covers.colours = {track: (red, green, blue) for track, (red, green, blue) in colours}
                renderer.counts = Counter(json.loads(header["counts"]))
                renderer.causes = Counter(json.loads(header["causes"]))
                renderer.lost = dict(json.loads(header["lost"]))
                frames = int(header["frames"])
        except (OSError, SafetensorError, KeyError, TypeError, ValueError):
            renderer.casts.clear()
            renderer.covers.stills.clear()
            renderer.covers.colours.clear()
            renderer.restart()
        for segment in finished_segments(self.folder):
            if segment.last >= frames:
                segment.path.unlink()


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
    """Faces of single frames by what was done to them: generated, the name of a cover or a method, region, kept."""
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
    review: Sequence[Mapping[str, Any]] = ()
    """Places a person should look at: `frame`, `time` in seconds, `box` and `reason` of each."""
    notes: tuple[str, ...] = ()
    """What was left out, damaged or worth knowing, each a sentence."""
    damage: tuple[str, ...] = ()
    """Where the source was cut or damaged."""
    settings: dict[str, Any] = field(default_factory=dict)
    account: dict[str, Any] = field(default_factory=dict)
    """Of the k-same draws and the model, as for a photo."""
    has_audio: bool = False
    """Whether sound was copied."""
    synthetic: bool = False
    """Whether the file says that it was made with a generative model."""
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
        """The check recognised nobody, no place is to be reviewed, and the source was read to its end."""
        return not (self.reidentified or self.review or self.damage)

    def to_dict(self) -> dict[str, Any]:
        return {
            **self.account,
            "frames": self.frames,
            "duration": round(self.seconds, 3),
            "tracks": self.tracks,
            "people": self.people,
            "faces_by_action": dict(self.faces),
            "fallbacks": dict(self.fallbacks),
            "masked_people": self.masked_people,
            "faces_by_origin": dict(self.origins),
            "exemptions": [exemption.to_dict() for exemption in self.exemptions],
            "edits": list(self.edits),
            "check": None if self.check is None else self.check.to_dict(),
            "review": list(self.review),
            "audio": "copied" if self.has_audio else "none",
            "synthetic_tag": self.synthetic,
            "notes": list(self.notes),
            "damage": list(self.damage),
            "settings": self.settings,
            "timing": {stage: round(value, 2) for stage, value in self.timing.items()},
        }
