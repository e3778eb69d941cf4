"""Attackers who take an anonymiser back before they look, as far as it can be taken back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ficgan.lab.clouds.config import CloudStudyConfig
from ficgan.lab.clouds.sweep import anonymiser
from ficgan.pointcloud.cloud import Cloud

if TYPE_CHECKING:
    from ficgan.lab.clouds.lab import Lab

__all__ = ["INVERSES", "Inverse", "degrees_of", "inverse_key", "inverses", "taken_back"]

_FLOOR = 0.02
"""Factors of tapering below which a point is not brought back: it would fly away with its rounding."""
_OTHERS = 8
"""People whose faces tell the attacker who guesses r what a face is like."""


@dataclass(frozen=True)
class Inverse:
    """One such attacker, who has the cloud and knows the degree (as who tries all 35), unless it says otherwise.

    Args:
        method: that is taken back.
        says: what is done, for the report.
        exact: it gives the face back, wherever that is possible.
        quick: tried at every degree; else at the costly ones.
        alike: what comes back bears the method's traces: a gallery is treated alike where it can be.
    """

    method: str
    says: str
    exact: bool = False
    quick: bool = False
    alike: bool = False


INVERSES: dict[str, Inverse] = {
    "untaper": Inverse("tapering", "the inverse of tapering", exact=True, quick=True),
    "guess_taper": Inverse("tapering", "the same with r guessed from the cloud", quick=True),
    "unmerge": Inverse(
        "merge-2-faces", "that of merge-2-faces, by whoever has the target's scan and knows how it was laid",
        exact=True, quick=True,
    ),
    "unsmooth": Inverse("smooth-knn", "SmoothKNN's means undone step by step"),
    "denoise": Inverse("uniform-noise", "noise averaged over neighbours", alike=True),
}  # fmt: skip
"""Attacker → what it does."""


def inverses(config: CloudStudyConfig) -> dict[str, str]:
    """Attacker → the method that it takes back, of a study."""
    return {name: one.method for name, one in INVERSES.items() if config.inverses and one.method in config.methods}


def degrees_of(config: CloudStudyConfig, attacker: str = "") -> list[int]:
    """Degrees at which an attacker tries; none named: all."""
    quick = not attacker or INVERSES[attacker].quick
    return sorted(config.degrees) if quick else config.costly_degrees


def taken_back(lab: Lab, row: int, attacker: str, degree: int, cloud: Cloud | None) -> Cloud | None:
    """What an attacker makes of an anonymised cloud; points that do not come back stay where they are.

    Args:
        lab: of the study.
        row: of the scan.
        attacker: of `inverses`.
        degree: of the method.
        cloud: None where the method made nothing.
    """
    from ficgan.pointcloud import attack

    if cloud is None:
        return None
    if attacker == "unmerge":
        return _unmerged(lab, row, degree, cloud)
    method: Any = anonymiser(INVERSES[attacker].method, degree)
    if attacker == "unsmooth":
        return attack.unsmooth(cloud, method.k)
    if attacker == "denoise":
        return attack.denoise(cloud, method.b)
    guessed = attacker == "guess_taper"
    r = attack.guess_taper(cloud, background=lab.enrolled(_others(lab, row))) if guessed else method.r
    return attack.untaper(cloud, r, floor=_FLOOR).cloud


def _unmerged(lab: Lab, row: int, degree: int, cloud: Cloud) -> Cloud:
    """By an attacker who has the target, and finds how it was laid to a fraction of a millimetre: here it is told."""
    from ficgan.pointcloud.attack import unmerge

    target = lab.target
    assert target is not None
    method: Any = anonymiser("merge-2-faces", degree, target=target)
    return unmerge(cloud, method.weight, target, method.registered(lab.prepared(row).inner).transform).cloud


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
