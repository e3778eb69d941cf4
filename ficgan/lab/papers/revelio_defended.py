"""What is done to a blurred face besides: defences of `ficgan.anonymizers` under the names of Revelio's tables."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ficgan.anonymizers import Defended, Faces
from ficgan.lab.papers.revelio_lab import Lab
from ficgan.lab.papers.treatment import Treatment

__all__ = ["ATTACKER", "DEFENCES", "PUBLISHER", "defended", "turned_back"]

DEFENCES: dict[str, str] = {
    "none": "", "rotation": "rotation", "noise": "noise", "jpeg": "jpeg", "box blur": "box", "secret": "random",
}  # fmt: skip
"""The paper's, with its settings, and the randomised one that its section 6 proposes: in a table → of
`ficgan.anonymizers.DEFENCES`."""
PUBLISHER, ATTACKER = "the publisher's", "the attacker's"
"""Keys of what a defence draws: nobody who attacks knows the one that what is attacked was published with."""


def defended(lab: Lab, name: str, *, key: str) -> Treatment:
    """Light blur and a defence after it; box blur takes the Gaussian's place.

    Args:
        lab: of the set.
        name: of `DEFENCES`.
        key: of what is drawn: `PUBLISHER` or `ATTACKER`.

    Source: Revelio, section 6 and appendix D.
    """
    (blur,) = lab.blur("light").steps
    defence = DEFENCES[name]
    return Treatment(name, (Defended(method=blur, defence=defence, key=key) if defence else blur,))


def turned_back(lab: Lab, pictures: Faces, rows: NDArray[np.int64], how: Treatment) -> Faces:
    """Pictures of turned faces as they are read: whoever sees which way is up turns them, by whatever angle.

    Args:
        lab: of the set.
        pictures: the faces at `rows`, turned; restored or not. What has learnt turned faces gives upright ones: not
            those.
        rows: of the set.
        how: the treatment that turned them.
    """
    (step,) = how.steps
    if not isinstance(step, Defended):
        return pictures
    part = lab.bench.part(rows, pictures.images)
    inner = part.regions()
    return part.with_regions(step.upright(inner.images, inner.names))
