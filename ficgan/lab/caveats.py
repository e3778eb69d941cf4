"""The sentences that stand before every table: what the figures of a report do not say."""

from __future__ import annotations

from collections import Counter

from ficgan.lab.results import Results

__all__ = ["NOT_HANDLED", "caveats"]

FEW_PEOPLE = 300
"""People of the test set of the Fantômas protocol."""

NOT_HANDLED = (
    "Only faces are replaced: body, gait, clothes, text, number plates, voice and surroundings can identify a person, "
    "and are as they were."
)
ATTACKERS = (
    'What no attacker here reversed may still be reversed by another: "not reversed" means by these attackers, with '
    "the knowledge stated beside each."
)
STRONGEST = "The headline of a method is the strongest attacker's figure, never the mean over attackers."
CLOAKS = (
    "A cloak is made against one recogniser and holds against its kin at best: a judge of the same family flatters it, "
    "and another judge may not see it at all."
)
PIXEL_DP = (
    "Differential privacy here is of pixels, not of people: two images are neighbours when they differ in m pixels, "
    "and colour costs three times the stated ε."
)
K_SAME_KNOWN = (
    "k-same with a public background set is a subtraction: whoever has the set gets the source back; see "
    "background-known."
)
FICGAN_LEAK = (
    "In FICGAN the k-same code itself carries nothing of the source; the spatial code and style layers 1…i do come "
    "from it."
)


def caveats(results: Results) -> list[str]:
    """What must be read with these results.

    Args:
        results: sets, methods and trials; its own caveats do not count.
    """
    out = []
    for name, facts in results.sets.items():
        tested = facts["split"]["parts"]["probe"]["people"]
        if tested < FEW_PEOPLE:
            out.append(
                f"{name}: {tested} people are tested; figures on so few show how the software behaves, not what holds "
                "in the world."
            )
        if missed := facts["failures_to_acquire"]:
            reasons = Counter(why for _, why in missed).most_common(3)
            told = "; ".join(f"{why} ({count})" for why, count in reasons)
            out.append(f"{name}: {len(missed)} of {len(missed) + facts['faces']} images are left out: {told}.")
        if removed := facts["split"].get("duplicates_removed"):
            lost = facts["split"].get("people_lost_by_it", 0)
            out.append(f"{name}: {removed} pictures stood in several places and are left out, {lost} people with them.")
    if judge := results.provenance.get("attribute_classifier"):
        learnt = judge.get("name") or judge.get("set") or "an unnamed set"
        out.append(
            f"The attribute classifier learnt on {learnt}: where a set shares its people, attribute figures flatter."
        )
    families = {facts["family"] for facts in results.methods.values()}
    names = {facts["name"] for facts in results.methods.values()}
    if "adversarial" in families:
        out.append(CLOAKS)
    if "differential privacy" in families:
        out.append(PIXEL_DP)
    if "k-anonymity" in families:
        out.append(K_SAME_KNOWN)
    if "ficgan" in names:
        out.append(FICGAN_LEAK)
    scenarios = {trial.scenario for trial in results.trials}
    parrots = any(name.startswith("parrot") for name in scenarios)
    measured = any(t.control == "surroundings" and any(f.value is not None for f in t.figures) for t in results.trials)
    if parrots and not measured:
        out.append(
            "Parrot figures may speak of hair, clothes and background as much as of faces: no control of the "
            "surroundings was run (scenario background-only, context above 1)."
        )
    if measured:
        out.append(
            "Parrot figures speak of the surroundings, too: read them beside background-only, which shows nothing of "
            "the face."
        )
    return [*out, ATTACKERS, STRONGEST, NOT_HANDLED]
