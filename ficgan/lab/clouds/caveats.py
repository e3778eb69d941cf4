"""What must be read with the figures of a study of clouds."""

from __future__ import annotations

import numpy as np

from ficgan.lab.clouds.collect import Collected
from ficgan.lab.clouds.config import CloudStudyConfig
from ficgan.lab.clouds.inverses import INVERSES
from ficgan.lab.clouds.labels import IN_SPACE
from ficgan.lab.clouds.tables import TRIED
from ficgan.lab.results import Results

__all__ = ["caveats"]

_FEW = 30
"""People below which an AUC says nothing of the world."""
_THESIS_PEOPLE = 200
_SAME = 0.995
"""Cosine above which two embeddings are of one picture."""


def caveats(config: CloudStudyConfig, results: Results, found: Collected) -> list[str]:
    """Sentences that stand before every table.

    Args:
        config: what was run.
        results: of it.
        found: what was read.
    """
    facts = next(iter(results.sets.values()))
    out = []
    people = facts["probe_people"]
    if people < _FEW:
        out.append(
            f"{people} people are looked for among {facts['people']}: an AUC of so few is a smoke test of the "
            "software; nothing follows from it for the world."
        )
    elif people < _THESIS_PEOPLE:
        out.append(f"{people} people are looked for; the thesis had {_THESIS_PEOPLE}.")
    if facts["kind"] == "made heads":
        out.append(
            "The people are made by formulas: figures show how the software behaves, not how well real faces hide."
        )
    if facts["kind"] == "morphs of scans":
        out.append(
            "The people are morphs of a few scans and vary only as these do: they are more alike, and alike in other "
            "ways, than real people."
        )
    if facts["gallery_kind"] == "projections":
        out.append(
            "The gallery is the clear projection of another scan of each person, where the thesis has photos: drawing "
            "is the same on both sides, which helps the attacker."
        )
    if config.shade == "before":
        out.append(
            "Clouds that have no colours are shaded from their normals before they are anonymised, and the shades move "
            "with the points as a scanner's colours would; they know the clear surface."
        )
    else:
        out.append("Clouds that have no colours are shaded from what is left of the surface after anonymisation.")
    out += _twins(results, found)
    out += _detection(config, found)
    judges = ", ".join(results.provenance.get("recognisers", []))
    out.append(
        f"The judges ({judges}; the thesis: ArcFace) and the detector ({results.provenance.get('detector', '')}; the "
        "thesis: RetinaFace) had no part in any method."
    )
    if found.inverted:
        out.append(
            f"Recognisers read what is there, and after {_inverses(found)}. Attackers know the degree, as who tries "
            "all 35 does."
        )
    if found.enrolled:
        out.append(
            f"Parrots enrol the gallery under the same method and degree, with noise of its own, at degrees "
            f"{', '.join(map(str, config.costly_degrees))}{_icp(config)}: between them a figure may be too kind; the "
            "table of methods leaves those out."
        )
    else:
        out.append("No parrot was tried: an attacker who enrols anonymised faces too may tell more.")
    if found.reversed is None:
        out.append("No attacker was trained.")
    else:
        out.append(
            "The thesis' auto-encoder is tried on people it did not learn from, against the whole gallery; where it "
            "does not help, another attacker still may."
        )
        tried = found.reversed.record["people"]["tried on"]
        if tried < TRIED:
            out.append(
                f"It is tried on {tried} people, too few for its luck to stand in a headline; its figures are among "
                "those of every attacker."
            )
    out.append(
        "The headline of a method at a degree is its strongest attacker's figure. What nobody here reversed may still "
        "be reversed by another."
    )
    out += _apart(results)
    timed = {int(np.isfinite(record["seconds"]).any(axis=1).sum()) for record in found.made.values()} - {0}
    if timed:
        jobs = results.provenance.get("jobs", 1)
        out.append(
            f"Times are of one anonymisation alone on {_count(max(timed), 'cloud', 'clouds')}, beside "
            f"{_count(jobs - 1, 'other process', 'other processes')}, in the last run; they compare methods alone."
        )
    if any(use.method.startswith("pmp ") for use in results.utilities) and min(config.degrees) < 3:
        out.append("The thesis leaves degrees 1 and 2 of pmp out, full of holes as they are; they are shown here.")
    return out


def _inverses(found: Collected) -> str:
    return "; ".join(one.says for name, one in INVERSES.items() if name in found.inverted)


def _icp(config: CloudStudyConfig) -> str:
    return " (not icp)" if config.geometry is not None and "icp" in config.geometry.recognisers else ""


def _apart(results: Results) -> list[str]:
    """Of attackers who need the cloud, and of those who were not tried."""
    main = next(iter(results.sets), "")
    shapes = [one.set for one in results.trials if one.recogniser.endswith(IN_SPACE)]
    who = ["recognisers of shape"] if main in shapes else []
    who += ["inverses of methods"] if any(one.scenario == "inverse" for one in results.trials) else []
    out = []
    if who:
        out.append(
            f"The cloud itself is attacked by {' and '.join(who)}, some of them at some degrees only; that stands "
            "apart (“cloud”), for whoever gives clouds away. All others are of projections, as in the thesis."
        )
    if not shapes:
        out.append("No recogniser of shape attacks: what a cloud tells besides its picture is not measured here.")
    elif main not in shapes:
        out.append("Recognisers of shape know fewer people than the others: their figures are no part of any headline.")
    return out


def _count(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"


def _twins(results: Results, found: Collected) -> list[str]:
    """Clear probes that are read exactly as somebody who is enrolled: the same scan on both sides is no test."""
    alike = 0
    for name, gallery in found.gallery.items():
        both = np.concatenate([gallery, found.clear[f"by {name}"]]).astype(np.float64)
        both /= np.linalg.norm(both, axis=1, keepdims=True).clip(1e-12)
        alike = max(alike, int(((both[len(gallery) :] @ both[: len(gallery)].T).max(axis=1) > _SAME).sum()))
    if not alike:
        return []
    return [
        f"{_count(alike, 'clear probe is', 'clear probes are')} all but the picture that is enrolled: who knows a "
        "picture again need not know a person. Give the gallery another scan or photo."
    ]


def _detection(config: CloudStudyConfig, found: Collected) -> list[str]:
    lost = sum(int((~record["found"]).sum()) for record in found.made.values())
    whole = sum(record["found"].size for record in found.made.values())
    where = (
        "at the place where faces lie in clear projections (a miss of the detector is no privacy)"
        if config.undetected == "template" and found.template is not None
        else "as if the whole image were a face, as in the thesis"
    )
    out = [f"In {lost} of {whole} anonymised projections no face was found; recognisers read them {where}."]
    missed = int((~found.clear["found"]).sum())
    if missed or found.gallery_lost:
        out.append(
            f"In {missed} of {len(found.clear)} clear projections and {found.gallery_lost} gallery images no face was "
            "found; they are read likewise, and count as not detected."
        )
    failed = sum(int((~record["made"]).sum()) for record in found.made.values())
    if failed:
        out.append(f"Of {failed} clouds a method made nothing at its degree; these are not compared with anybody.")
    return out
