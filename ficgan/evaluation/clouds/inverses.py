"""Attackers who take an anonymiser back before they look: Tapering and Merge2Faces have inverses."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ficgan.evaluation.clouds.config import CloudStudyConfig
from ficgan.evaluation.clouds.sweep import anonymiser
from ficgan.pointcloud.cloud import Cloud

if TYPE_CHECKING:
    from ficgan.evaluation.clouds.lab import Lab

__all__ = ["inverse_key", "inverses", "taken_back"]

_FLOOR = 0.02
"""Factors of tapering below which a point is not brought back: it would fly away with its rounding."""
_OTHERS = 8
"""People whose faces tell the attacker who guesses r what a face is like."""


def inverses(config: CloudStudyConfig) -> dict[str, str]:
    """Attacker → the method that it takes back, of a study.

    "untaper" knows the degree, as whoever tries all 35 would; "guess_taper" guesses r from the tapered face and faces
    of others; "unmerge" knows the degree and the target's scan, and how that was laid on the face, which
    `ficgan.pointcloud.attack` finds to a fraction of a millimetre.

    Args:
        config: of the study.
    """
    asked = {
        "untaper": ("tapering", config.untaper),
        "guess_taper": ("tapering", config.untaper),
        "unmerge": ("merge-2-faces", config.unmerge),
    }
    return {name: method for name, (method, wanted) in asked.items() if wanted and method in config.methods}


def taken_back(lab: Lab, row: int, attacker: str, degree: int, cloud: Cloud | None) -> Cloud | None:
    """What an attacker makes of an anonymised cloud; points that do not come back stay where they are.

    Args:
        lab: of the study.
        row: of the scan.
        attacker: of `inverses`.
        degree: of the method.
        cloud: None where the method made nothing.
    """
    from ficgan.pointcloud.attack import guess_taper, unmerge, untaper
    from ficgan.pointcloud.methods import Merge2Faces, Tapering

    if cloud is None:
        return None
    if attacker == "unmerge":
        target = lab.target
        assert target is not None
        method = anonymiser("merge-2-faces", degree, target=target)
        assert isinstance(method, Merge2Faces)
        where = method.registered(lab.prepared(row).inner).transform
        return unmerge(cloud, method.weight, target, where).cloud
    guessed = attacker == "guess_taper"
    r = guess_taper(cloud, background=lab.enrolled(_others(lab, row))) if guessed else Tapering.of_degree(degree).r
    return untaper(cloud, r, floor=_FLOOR).cloud


def inverse_key(lab: Lab, row: int, attacker: str) -> list[object]:
    """JSON-ready; what `taken_back` depends on besides the anonymised cloud."""
    if attacker != "guess_taper":
        return [attacker]
    return [attacker, [lab.clouds.scans[other].digest for other in _others(lab, row)]]


def _others(lab: Lab, row: int) -> list[int]:
    """Rows of other people's scans, one of each."""
    scans = lab.clouds.scans
    known = {scans[other].person: other for other in (*lab.clouds.probes, *lab.clouds.gallery)}
    return [other for person, other in known.items() if person != scans[row].person][:_OTHERS]
