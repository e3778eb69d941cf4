"""What must be read with the figures of a study of clouds."""

from __future__ import annotations

from ficgan.evaluation.clouds.collect import Collected
from ficgan.evaluation.clouds.config import CloudStudyConfig
from ficgan.evaluation.clouds.tables import TRIED
from ficgan.evaluation.results import Results

__all__ = ["caveats"]

_FEW = 30
"""People below which an AUC says nothing of the world."""
_THESIS_PEOPLE = 200


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
            "Clouds without colours are shaded from their normals before they are anonymised, and the shades move with "
            "the points as a scanner's colours would; they know the clear surface."
        )
    else:
        out.append("Clouds without colours are shaded from what is left of the surface after anonymisation.")
    out += _detection(config, found)
    judges = ", ".join(results.provenance.get("recognisers", []))
    out.append(
        f"The judges ({judges}; the thesis: ArcFace) and the detector ({results.provenance.get('detector', '')}; the "
        "thesis: RetinaFace) had no part in any method."
    )
    if found.reversed is None:
        out.append(
            "No attacker was trained: privacy is under recognisers that read what is there"
            + (f", and after {_inverses(found)}." if found.inverted else ".")
        )
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
    if found.space:
        out.append(
            "Recognisers of shape attack the clouds themselves, at some degrees: their figures stand apart (“cloud”), "
            "for whoever gives clouds away; all others are of projections, as in the thesis."
        )
    out.append(
        f"Times are of one anonymisation alone on {config.timed} people, while {results.provenance.get('jobs', 1)} "
        "processes computed; they compare methods, not machines."
    )
    if any(use.method.startswith("pmp ") for use in results.utilities) and min(config.degrees) < 3:
        out.append("The thesis leaves degrees 1 and 2 of pmp out, full of holes as they are; they are shown here.")
    return out


def _inverses(found: Collected) -> str:
    said = {"untaper": "the inverse of tapering", "unmerge": "that of merge-2-faces by whoever has the target's scan"}
    return " and ".join(text for name, text in said.items() if name in found.inverted)


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
