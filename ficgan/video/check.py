"""The check of a film: another detector and the gate look through source and result side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ficgan.faces import DetectAt, Face, FaceDetector, Recognizer, detector_missing, get_detector, matching, public_name
from ficgan.faces.mesh import read_landmarks
from ficgan.video.decided import FilmFinding, FilmPlan
from ficgan.video.media import Frame
from ficgan.video.read import open_video
from ficgan.video.tools import FilmTask

__all__ = ["CheckReport", "check_film", "check_frames", "independent_detector"]

# Detectors for the check, the best first.
_CHECKERS = ("insightface", "yunet", "centerface")


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
    findings: list[FilmFinding] = field(default_factory=list)
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


def check_film(task: FilmTask, plan: FilmPlan, made: Path, *, generated: bool) -> CheckReport | None:
    """Compare source and result; None where that is not wanted, or there is no recogniser.

    Where a new face is still recognised, all frames up to the next ones that were looked at are looked at, too.

    Args:
        made: the result.
        generated: whether there are generated faces in it.
    """
    settings, gate, source, film = task.settings, task.tools.gate, task.source, plan.film
    if settings.verify == "off" or gate is None:
        return None
    every = 1 if settings.verify == "full" else min(max(1, round(film.rate)), max(1, len(film.pts) // 2))
    # Between two looks of the first detector, where it was blind.
    offset = min(settings.at(source.info.rate).stride // 2, every - 1)
    step, detector = (
        task.step("checking", len(film.pts)),
        independent_detector(task.tools.detector.name, settings.detect_size),
    )

    def compared(wanted: Callable[[int], bool]) -> CheckReport:
        with open_video(made) as result:
            frames = zip(source.frames(wanted=wanted), result.frames(wanted=wanted), strict=False)
            pairs = (pair for pair in frames if step(pair[0].index) is None)
            return check_frames(pairs, plan.kept_at, detector, gate, expected=bool(film.tracks))

    report = compared(lambda frame: frame % every == offset)
    found = {finding.frame for finding in report.findings if plan.recognised([finding])}
    near = {frame for seen in found for frame in range(seen - every + 1, seen + every)} - found
    if near and every > 1:
        report.add(compared(near.__contains__))
    if report.frames < 2:
        report.unchecked = "fewer than two of its frames were looked at"
    elif not report.faces and generated:
        report.unchecked = f"{report.detector} found no face in the result, though there are generated ones"
    return report


def check_frames(
    pairs: Iterable[tuple[Frame, Frame]],
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
                report.findings.append(FilmFinding(source.index, source.time, (x0, y0, x1, y1), distance, tuple(names)))
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
