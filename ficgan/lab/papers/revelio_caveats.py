"""What must be read with Revelio's tables: in what our protocol is not the paper's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ficgan.lab.matrix_config import without_folder
from ficgan.lab.papers.revelio_base import Outcome
from ficgan.lab.papers.revelio_lab import RevelioPaper
from ficgan.lab.papers.revelio_published import PROTOCOL

__all__ = ["revelio_caveats"]


def revelio_caveats(
    paper: RevelioPaper, facts: dict[str, Any], world: dict[str, Any], outcomes: Mapping[str, Outcome]
) -> list[str]:
    """Sentences that stand before the tables.

    Args:
        paper: settings.
        facts: of the set as it was prepared.
        world: images and people of its parts.
        outcomes: part → what it found.
    """
    reference, closed, outside = (world[name] for name in ("reference", "closed", "outside"))
    out = [
        f"{facts['name']}, {paper.size} px: the attacker's reference is {reference['images']} photos of "
        f"{reference['people']} people; {closed['images']} photos of {closed['people']} of these people are attacked, "
        f"and {outside['images']} of {outside['people']} strangers. The paper: CelebA-HQ at {PROTOCOL['size']} px, "
        f"{PROTOCOL['reference images']} photos of {PROTOCOL['reference people']} people, 97 photos of 50 people and "
        "97 of 91 strangers, two fifths of them from FFHQ. A reference with fewer photos teaches and remembers less; "
        "one with fewer people is easier to be right in.",
        "Closed-world figures grant the attacker other photos of its victims, in training and for looking them up. "
        "They say nothing about people of whom it has none: that is the open world, whose figures stand apart.",
        f"Crops are aligned to five points here. Attackers: "
        f"{'; '.join(f'{label} = {spec}' for label, spec in paper.named)}. The paper trains for "
        f"{PROTOCOL['epochs']} epochs, and a model that was trained for less restores less: figures of a short "
        "training bound the attack from below.",
        "GFP-GAN, PULSE and DiffFace are other people's programs: give them as attackers of their name, such as "
        "GFP-GAN=external:command=… or GFP-GAN=external:folder=….",
    ]
    if "dlib" not in paper.judges:
        judges = ", ".join(map(without_folder, paper.judges))
        out.append(f"The paper retrieves by {PROTOCOL['recogniser']}; here {judges} judged.")
    if paper.size != PROTOCOL["size"]:
        out.append(
            f"Blurs and boxes are as wide in the face of {paper.size} px as the paper's in one of {PROTOCOL['size']}; "
            "noise by pixel and JPEG's blocks of 8 px are not scaled, and cover more of a smaller face."
        )
    if closed["images"] < 30:
        out.append(
            f"{closed['images']} photos are too few for any statement about an attacker: this checks the software."
        )
    if "fine-tuning" in outcomes and paper.fine_tuned < closed["images"]:
        out.append(f"Fine-tuned for the first {paper.fine_tuned} photos only.")
    return out
