"""What happens to every face of every frame of a film, settled before the first is drawn."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ficgan.faces.smooth import SmoothConfig
from ficgan.video.check import Finding
from ficgan.video.media import Frame
from ficgan.video.modes import effective_modes
from ficgan.video.project import Project
from ficgan.video.render import Appearance, FrameJob
from ficgan.video.settings import VideoSettings
from ficgan.video.tracks import FILLED, PADDED, SEEN, TrackSet

__all__ = ["Plan"]

_ORIGINS = {SEEN: "seen", FILLED: "filled", PADDED: "padded"}


class Plan:
    """Modes and identities of all tracks.

    Args:
        film: the analysed film, its decisions made.
        settings: limits, fallbacks, linking.
    """

    def __init__(self, film: Project, settings: VideoSettings) -> None:
        self._film, self._tracks = film, TrackSet(film.tracks)
        decider, times = film.decider(), film.times
        rate = (len(times) - 1) / times[-1] if len(times) > 1 and times[-1] > 0 else 25.0
        self._settings, self._rate = settings, rate
        scope = film.source.fingerprint or "film"
        self.reach = SmoothConfig().frames(rate)
        """Frames on either side over which generated faces are smoothed."""
        self.person: dict[int, str] = {}
        self.fallbacks: dict[str, int] = {}
        self.origins: dict[str, int] = {}
        self._modes: dict[int, NDArray[np.str_]] = {}
        for track in film.tracks:
            self._modes[track.id], reasons = effective_modes(track, decider.decide(track), settings, rate)
            for reason, rows in reasons.items():
                self.fallbacks[reason] = self.fallbacks.get(reason, 0) + rows
            for origin, name in _ORIGINS.items():
                rows = int((track.origin == origin).sum())
                self.origins[name] = self.origins.get(name, 0) + rows
            linked = settings.link != "none" and track.person > 0
            where = "job" if settings.link == "job" and linked else scope
            self.person[track.id] = f"{where}/person {track.person}" if linked else f"{where}/track {track.id}"

    def job(self, frame: Frame) -> FrameJob:
        """A frame with everything that shall not be seen in it."""
        faces = [
            Appearance(track.id, self.person[track.id], track.face(frame.index), str(self._modes[track.id][row]))
            for track, row in self._tracks.at(frame.index)
        ]
        return FrameJob(frame, faces, self._film.regions_at(frame.index))

    def cover(self, findings: Sequence[Finding], reach: int) -> int:
        """Let the fallback take the place of generated faces that are still recognised.

        Args:
            findings: of the second look.
            reach: frames before and after a finding about which it says nothing.

        Returns:
            Number of rows changed; findings on no generated face change nothing.
        """
        changed = 0
        reach = max(reach, round(self._settings.hold * self._rate))
        for finding in findings:
            x, y = (finding.box[0] + finding.box[2]) / 2, (finding.box[1] + finding.box[3]) / 2
            for track, row in self._tracks.at(finding.frame):
                x0, y0, x1, y1 = track.boxes[row]
                modes = self._modes[track.id]
                if modes[row] == "ficgan" and x0 <= x <= x1 and y0 <= y <= y1:
                    near = modes[max(0, row - reach) : row + reach + 1]  # a view
                    generated = near == "ficgan"
                    near[generated] = self._settings.fallback
                    changed += int(generated.sum())
        if changed:
            self.fallbacks["still recognised"] = self.fallbacks.get("still recognised", 0) + changed
        return changed

    def recognised(self, findings: Sequence[Finding]) -> set[str]:
        """Keys of the people whose generated face a finding of the second look lies on."""
        people = set()
        for finding in findings:
            x, y = (finding.box[0] + finding.box[2]) / 2, (finding.box[1] + finding.box[3]) / 2
            for track, row in self._tracks.at(finding.frame):
                x0, y0, x1, y1 = track.boxes[row]
                if self._modes[track.id][row] == "ficgan" and x0 <= x <= x1 and y0 <= y <= y1:
                    people.add(self.person[track.id])
        return people

    def kept_at(self, frame: int) -> NDArray[np.floating]:
        """Boxes [n,4] of the faces that stay as they are in a frame."""
        rows = [track.boxes[row] for track, row in self._tracks.at(frame) if self._modes[track.id][row] == "keep"]
        return np.array(rows, np.float32).reshape(-1, 4)
