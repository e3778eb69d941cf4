"""What is said of a film that was made: its account for the side-car, and the notes for its user."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ficgan.anonymizers.modes import shown
from ficgan.faces import public_name
from ficgan.video.check import CheckReport
from ficgan.video.decided import SMALL, FilmPlan
from ficgan.video.render import Renderer
from ficgan.video.rendered import Rendered
from ficgan.video.settings import Exemption, VideoSettings

__all__ = ["VideoResult", "film_account", "film_notes"]

# Why a face of a film gets no generated one, in words for the user.
_FALLBACKS = {
    "small": f"they are below {SMALL:g} pixels",
    "turned away": "the head is turned too far",
    "unread": "the model could not read them, or the head was turned too far",
    "known": "a recogniser still knew the person there or nearby",
    "still recognised": "the check still recognised somebody",
}
_LINKABLE = {
    "none": "nothing links the tracks of one person",
    "file": "one person has one new face throughout this film",
    "job": "one person has one new face in all films of this job",
}


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


def film_notes(plan: FilmPlan, renderer: Renderer, rendered: Rendered, report: CheckReport | None) -> tuple[str, ...]:
    """What is worth knowing of a film, each a sentence."""
    notes, fallback, total = list(rendered.notes), renderer.settings.fallback, len(plan.film.pts)
    for reason, rows in {**plan.fallbacks, **renderer.causes}.items():
        if rows and reason in _FALLBACKS:
            notes.append(f"{rows} sightings of faces got the fallback, {fallback}: {_FALLBACKS[reason]}.")
    if rows := renderer.causes["roughly placed"]:
        notes.append(f"New faces that lie over a cover, as their places are known only roughly: {rows}.")
    if report is not None and report.unchecked:
        notes.append(f"The result was not checked: {report.unchecked}.")
    if rendered.file.frames != total:
        notes.append(f"The film gave {rendered.file.frames} frames when rendered and {total} when analysed.")
    return tuple(dict.fromkeys(notes))


def film_account(plan: FilmPlan, renderer: Renderer, settings: VideoSettings) -> dict[str, Any]:
    """Who drew the new faces, and how, for the side-car."""
    tools, people = renderer.tools, renderer.identities.people
    account: dict[str, Any] = {
        "mode": shown(settings.mode),
        **tools.methods.accounts(plan.film.decisions.modes),
        "detector": tools.detector.name,
        "gate": public_name(tools.gate) if tools.gate is not None and tools.verifies else None,
        "linkable": _LINKABLE[settings.link],
    }
    if tools.face_model is not None and people:
        psi = [person.draw["psi"] for person in people.values() if "psi" in person.draw]
        account |= tools.face_model.account(layer=tools.layer, psi=psi)
        account["draws"] = [
            {
                "person": key.rpartition("/")[2],
                **one.draw,
                "distance": None if one.distance is None else round(one.distance, 4),
                **({"matched_by": one.matched_by} if one.matched_by else {}),
            }
            for key, one in sorted(people.items())
        ]
    return account
