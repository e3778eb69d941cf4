"""Who compares what with what: every experiment of the papers as a line of data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ficgan.errors import UsageError

__all__ = ["SCENARIOS", "Attacker", "Scenario", "View", "get_scenarios"]

View = Literal["clear", "anonymised", "reversed", "surroundings", "inside", "inside anonymised", "constant"]
"""What a gallery or a probe shows. surroundings: the replaced square greyed; inside: all but that square greyed."""
Attacker = Literal[
    "", "general", "specialised", "mismatched", "background", "right key", "wrong key", "compressed", "fusion",
    "average", "inference", "closed", "retrieval", "closed retrieval", "identity probe",
]  # fmt: skip


@dataclass(frozen=True)
class Scenario:
    """One experiment.

    Args:
        name: for configurations.
        title: one line for `ficgan-eval list scenarios`.
        gallery: what the attacker has enrolled.
        probe: what the attacker sees.
        attacker: what is done to probes before they are read.
        retrained: the recogniser has learnt from anonymised faces of other people.
        same_set: probes are compared with each other (linkability), not with a gallery.
        knowledge: what the attacker must have, for the reader of a table.
        control: what the trial is a control for, see `Trial`.
        source: paper and section.
    """

    name: str
    title: str
    gallery: View
    probe: View
    attacker: Attacker = ""
    retrained: bool = False
    same_set: bool = False
    knowledge: str = "nothing"
    control: str = ""
    source: str = ""


_ALL = (
    Scenario("clear", "clear probes against a clear gallery: the ceiling of every other figure", "clear", "clear",
             control="ceiling", source="Fantômas §7.2"),
    Scenario("constant", "grey probes against a clear gallery: must be at chance", "clear", "constant",
             control="negative", source="negative control"),
    Scenario("naive", "anonymised probes against a clear gallery", "clear", "anonymised", source="Newton et al. 2005"),
    Scenario("reverse-naive", "clear probes against an anonymised gallery", "anonymised", "clear",
             source="Fawkes (Shan et al. 2020)"),
    Scenario("parrot-enrol", "anonymised probes against an anonymised gallery", "anonymised", "anonymised",
             knowledge="that it was anonymised, and how to repeat it", source="Newton et al. 2005; Fantômas §2.1"),
    Scenario("parrot-train", "the same, by a recogniser retrained on anonymised faces of other people", "anonymised",
             "anonymised", retrained=True, knowledge="anonymised faces with identities",
             source="McPherson et al. 2016; Fantômas §2.1"),
    Scenario("parrot-inside", "parrot-enrol with all but the replaced square greyed", "inside anonymised",
             "inside anonymised", knowledge="that it was anonymised, and how to repeat it"),
    Scenario("background-only", "only what surrounds the replaced square, gallery and probe", "surroundings",
             "surroundings", control="surroundings", source="control for every parrot figure"),
    Scenario("reversed-general", "probes reversed by an attacker that learnt from pairs, whatever the method", "clear",
             "reversed", "general", knowledge="pairs of clear and anonymised faces", source="Fantômas §4.3"),
    Scenario("reversed-specialised", "probes reversed by attackers made for this method", "clear", "reversed",
             "specialised", knowledge="the method and its parameters", source="Fantômas §6.2"),
    Scenario("mismatched", "as reversed-general, learnt at another strength of the method", "clear", "reversed",
             "mismatched", knowledge="pairs made with other parameters", source="Fantômas E4.1"),
    Scenario("right-key", "keyed methods inverted with the right key: must be at the ceiling", "clear", "reversed",
             "right key", knowledge="the key", control="positive"),
    Scenario("wrong-key", "keyed methods inverted with a wrong key", "clear", "reversed", "wrong key",
             knowledge="the method, not its key"),
    Scenario("reversed-closed", "as reversed-general, learnt from other photos of half of the victims, too", "clear",
             "reversed", "closed", knowledge="pairs, among them the enrolled photos of half of the people",
             source="Revelio §5.1 (closed world)"),
    Scenario("compressed", "as reversed-specialised and right-key, from JPEG files of quality 75", "clear", "reversed",
             "compressed", knowledge="the method and its parameters", source="lossy files break exact inversion"),
    Scenario("background-known", "reversed by subtraction, with the background set known", "clear", "reversed",
             "background", knowledge="the background set"),
    Scenario("linkability", "all anonymised images against one another: which show one person?", "anonymised",
             "anonymised", same_set=True, source="Gomez-Barrero et al. 2018; WP216"),
    Scenario("multi-frame", "an identity's anonymised probes fused into one", "clear", "anonymised", "fusion",
             knowledge="which probes belong together, as in a film"),
    Scenario("averaged-draws", "eight anonymisations of each probe averaged", "clear", "anonymised", "average",
             knowledge="repeated draws of one image"),
    Scenario("attribute-inference", "attributes told by a classifier trained on anonymised faces of other people",
             "anonymised", "anonymised", "inference", knowledge="anonymised faces with attributes", source="WP216"),
    Scenario("retrieval", "several guesses at each of some probes vote for a name, or say that it is a stranger's",
             "clear", "reversed", "retrieval", knowledge="pairs of clear and anonymised faces", source="Revelio §4.3"),
    Scenario("retrieval-closed", "the same, learnt from other photos of half of the victims, too", "clear", "reversed",
             "closed retrieval", knowledge="pairs, among them the enrolled photos of half of the people",
             source="Revelio §5.1, §5.5"),
    Scenario("identity-probe", "what a classifier reads of the identity in a method's own code of the rest", "clear",
             "anonymised", "identity probe", knowledge="the model and its codes", source="FICGAN §4.3"),
)  # fmt: skip
SCENARIOS: dict[str, Scenario] = {scenario.name: scenario for scenario in _ALL}
"""By name, in the order in which they are run: the naive trial comes before those that are compared with it."""


def get_scenarios(names: list[str] | tuple[str, ...]) -> list[Scenario]:
    """Scenarios by name, in their own order; "all" is all of them.

    Raises:
        UsageError: an unknown name.
    """
    import difflib

    if "all" in names:
        return list(_ALL)
    for name in names:
        if name not in SCENARIOS:
            near = difflib.get_close_matches(name, SCENARIOS, n=1)
            raise UsageError(
                f"there is no scenario {name!r}; "
                + (f"did you mean {near[0]}?" if near else f"there are {', '.join(SCENARIOS)}")
            )
    return [scenario for scenario in _ALL if scenario.name in names]
