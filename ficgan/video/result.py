"""What was done to a film, for the user and for its side-car."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ficgan.anonymizers.modes import shown
from ficgan.faces import public_name
from ficgan.video.decided import CheckReport, FilmPlan
from ficgan.video.rendered import Renderer
from ficgan.video.write import Assembled

# Most dropped finds whose frames a note names.
NAMED = 8


@dataclass
class VideoResult:
    """What was done to a film, ready for its side-car.

    Args:
        faces: faces of single frames by what was done to them: generated, a cover's or method's name, region, kept.
        fallbacks: why faces were not generated although asked for: reason → faces of single frames.
        masked_people: people who were recognised with every setting, and so were covered.
        exemptions: see `Decider.exemptions`.
        edits: what the project of a reviewed film says beyond its default, a sentence each.
        review: places a person should look at: `frame`, `time` in seconds, `box` and `reason` of each.
        dropped: finds that nothing confirmed and that stay as they are: `first` and `last` frame, `time` in seconds,
            `box` and `score` of the best sighting of each.
        objects: of what is no face, by name: `tracks` that are covered, finds of single frames `covered` and `kept`.
        notes, damage: what is worth knowing; where the source was cut or damaged; each a sentence.
        account: of the k-same draws and the model, as for a photo.
        synthetic: whether the file says that it was made with a generative model.
    """

    output: Path | None
    frames: int
    seconds: float
    tracks: int
    people: int
    faces: Mapping[str, int]
    fallbacks: Mapping[str, int] = field(default_factory=dict)
    masked_people: int = 0
    exemptions: list[dict[str, Any]] = field(default_factory=list)
    edits: tuple[str, ...] = ()
    check: CheckReport | None = None
    review: Sequence[Mapping[str, Any]] = ()
    dropped: Sequence[Mapping[str, Any]] = ()
    objects: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    damage: tuple[str, ...] = ()
    settings: dict[str, Any] = field(default_factory=dict)
    account: dict[str, Any] = field(default_factory=dict)
    has_audio: bool = False
    synthetic: bool = False

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
            "exemptions": self.exemptions,
            "edits": list(self.edits),
            "check": None if self.check is None else self.check.to_dict(),
            "review": list(self.review),
            **({"dropped": list(self.dropped)} if self.dropped else {}),
            **({"objects": {name: dict(found) for name, found in self.objects.items()}} if self.objects else {}),
            "audio": "copied" if self.has_audio else "none",
            "synthetic_tag": self.synthetic,
            "notes": list(self.notes),
            "damage": list(self.damage),
            "settings": self.settings,
        }


def film_notes(plan: FilmPlan, renderer: Renderer, file: Assembled, report: CheckReport | None) -> tuple[str, ...]:
    """What is worth knowing of a film, each a sentence."""
    notes, total = list(file.notes), len(plan.film.pts)
    causes = Counter(plan.fallbacks) + renderer.causes
    if rows := causes.total() - causes["pad"]:
        notes.append(f"{rows} sightings of faces got the fallback, {renderer.settings.fallback}: see `fallbacks`.")
    if dropped := plan.film.settings.get("dropped", ()):
        frames = ", ".join(f"{find['first']}–{find['last']}" for find in dropped[:NAMED])
        more = f" and {len(dropped) - NAMED} more" if len(dropped) > NAMED else ""
        notes.append(f"{len(dropped)} finds that nothing confirmed were left as they are: frames {frames}{more}.")
    if report is not None and report.unchecked:
        notes.append(f"The result was not checked: {report.unchecked}.")
    if file.frames != total:
        notes.append(f"The film gave {file.frames} frames when rendered and {total} when analysed.")
    return tuple(dict.fromkeys(notes))


def film_account(plan: FilmPlan, renderer: Renderer) -> dict[str, Any]:
    """Who drew the new faces, and how, for the side-car."""
    tools, settings, people = renderer.tools, renderer.settings, renderer.identities.people
    account: dict[str, Any] = {
        "mode": shown(settings.mode),
        **tools.methods.accounts(plan.film.decisions.modes),
        "detector": tools.detector.name,
        "gate": public_name(tools.gate) if tools.gate is not None and tools.verifies else None,
    }
    if tools.face_model is not None and people:
        psi = [person.draw["psi"] for person in people.values() if "psi" in person.draw]
        account |= tools.face_model.account(layer=tools.layer, psi=psi)
        account["draws"] = [
            {
                "person": key.rpartition("/")[2],
                **identity.draw,
                "distance": None if identity.distance is None else round(identity.distance, 4),
                **({"matched_by": identity.matched_by} if identity.matched_by else {}),
            }
            for key, identity in sorted(people.items())
        ]
    return account
