"""What was done to faces before an attacker sees them: one anonymiser, or several steps one after another."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ficgan.anonymizers import ANONYMIZERS, Anonymizer, Faces, Images
from ficgan.errors import UsageError
from ficgan.lab.bench import Bench, anonymiser_for
from ficgan.lab.stored import digest, fingerprint
from ficgan.registry import parse_spec

__all__ = ["CLEAR", "Treatment", "treated", "treatment"]


@dataclass(frozen=True)
class Treatment:
    """Steps that follow one another.

    Args:
        label: for tables.
        steps: the first sees the clear faces; none: the faces stay clear.
    """

    label: str
    steps: tuple[Anonymizer, ...] = ()

    def __call__(self, faces: Faces) -> Images:
        """The faces [N,S,S,3] as they are seen afterwards."""
        for step in self.steps:
            faces = faces.with_images(step(faces))
        return faces.images

    @property
    def mark(self) -> str:
        """Digest of all steps and their parameters."""
        return digest([_mark(step) for step in self.steps])


CLEAR = Treatment("clear")


def treatment(text: str, label: str = "") -> Treatment:
    """A treatment from its text.

    Args:
        text: anonymisers as NAME or NAME:PARAMETER=VALUE,…, with " + " between the steps.
        label: for tables; "": the text.

    Raises:
        UsageError: an unknown anonymiser or parameter.
    """
    steps = []
    for part in text.split(" + "):
        name, parameters = parse_spec(part)
        steps.append(ANONYMIZERS.make(name, **parameters))
    return Treatment(label or text, tuple(steps))


def treated(bench: Bench, how: Treatment, rows: NDArray[np.int64]) -> Faces:
    """Rows of the set after the treatment, the square that is replaced alone; kept in the bench's store.

    Raises:
        UsageError: an anonymiser needs a background set, and the split has none.
    """
    clear = bench.prepared.faces.take(rows)
    if not how.steps:
        return clear
    part = bench.part(rows)
    needs = any("background" in step.traits.needs for step in how.steps)
    origin = bench.digest if needs else bench.prepared.digest  # the split says who the background are
    key = ["treated", origin, list(part.region), how.mark, rows.tolist()]
    ready = Treatment(how.label, tuple(anonymiser_for(bench, step) for step in how.steps))
    return clear.with_images(bench.store.array(key, lambda: part.with_regions(ready(part.regions())).images))


def _mark(step: Anonymizer) -> str:
    found = fingerprint(step)
    if found is None:
        raise UsageError(f"{step.name} runs a program, whose output cannot be kept; give it a folder of images")
    return found
