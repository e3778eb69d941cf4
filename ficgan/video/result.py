"""What was done to a film, ready for its side-car."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ficgan.video.check import CheckReport
from ficgan.video.decisions import Exemption

__all__ = ["VideoResult"]


@dataclass
class VideoResult:
    """Account of one film."""

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
    """People whom no setting hid from the gate, so that they were covered."""
    origins: Mapping[str, int] = field(default_factory=dict)
    """Faces of single frames by how their place is known: seen, filled, padded."""
    exemptions: list[Exemption] = field(default_factory=list)
    edits: tuple[str, ...] = ()
    """What the project of a reviewed film says beyond its default, a sentence each."""
    check: CheckReport | None = None
    """The second look; None where it was not asked for."""
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
        """Faces that the second look still recognises; None where it was not asked for."""
        return None if self.check is None else len(self.check.findings)

    @property
    def ok(self) -> bool:
        """No check was unmet and the source was read to its end."""
        return not (self.reidentified or self.damage)

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready, without embeddings."""
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
            "audio": "copied" if self.has_audio else "none",
            "notes": list(self.notes),
            "damage": list(self.damage),
            "settings": self.settings,
            "timing": {stage: round(value, 2) for stage, value in self.timing.items()},
        }
