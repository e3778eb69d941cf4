"""What methods, attackers and controls are called in the results of a study of clouds."""

from __future__ import annotations

from ficgan.lab.clouds.inverses import INVERSES
from ficgan.lab.results import Trial

__all__ = ["CLEAR", "CLOUD", "CONSTANT", "IN_SPACE", "SURROUNDINGS", "label", "needs_cloud", "parrot_of"]

CLEAR, CONSTANT, SURROUNDINGS = "clear", "constant", "what lies around the face"
IN_SPACE = " (3D)"
"""What the names of recognisers of shape end with, who need the cloud itself."""
CLOUD = " (cloud)"
"""What the names of figures end with that hold where the cloud itself is given away, not its projection alone."""


def label(method: str, degree: int) -> str:
    """Of a method at a degree."""
    return f"{method} {degree}"


def parrot_of(attacker: str) -> dict[str, str]:
    """Scenario and attacker of a trial in which the gallery was anonymised, and treated as the probes were."""
    return {"scenario": "parrot", "attacker": f"parrot, {attacker}" if attacker else "parrot"}


def needs_cloud(one: Trial) -> bool:
    """Whether an attacker must have the cloud itself, and not its projection alone."""
    return one.recogniser.endswith(IN_SPACE) or one.attacker.rpartition(", ")[2] in INVERSES
