"""Is the source named, with a clear photo of everybody enrolled: by recognisers, and by the shape of the face alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ficgan.anonymizers import Faces
from ficgan.errors import InputError, UsageError
from ficgan.lab.bars.lab import Lab
from ficgan.lab.bars.lines import Figures
from ficgan.lab.metrics.privacy import chance, rank
from ficgan.lab.metrics.scores import Scores
from ficgan.lab.readers import Embeddings
from ficgan.lab.results import Figure
from ficgan.lab.shape import ShapeRecognizer, Shapes
from ficgan.lab.shape_attack import ShapeAttack, several

__all__ = ["ByShape", "Lessons", "naive"]

Lessons = tuple[Shapes, NDArray[np.int64]]
"""Clear photos of other people, and who they are."""


def naive(lab: Lab, seen: Mapping[str, Embeddings]) -> Figures:
    """Row naive: each person's first clear image enrolled, outputs of the other images looked for.

    Args:
        lab: the set.
        seen: name of a recogniser → embeddings [N,D] of the outputs.

    Raises:
        InputError: fewer than two people with two images.
    """
    gallery, probe = lab.enrolment()
    out: Figures = {}
    for reader in lab.eyes.readers:
        clear, made = lab.clear.embeddings[reader.name], seen[reader.name]
        people = lab.people
        scores = Scores.compare(made[probe], clear[gallery], people[probe], people[gallery], metric=reader.metric)
        note = f"chance {chance(scores):.3f}; {len(gallery)} people enrolled"
        out["naive", reader.name] = replace(rank(scores, 1, bootstrap=lab.bootstrap), metric="naive", note=note)
    return out


class ByShape:
    """Rows shape and shape-informed of a set.

    Args:
        lab: the set.
        recogniser: reads shapes.
        lessons: of other people; taken where these are at least as many as half of the set's would be.
        seed: of the halves and of the network.

    Raises:
        InputError: fewer than two people with two images.
        UsageError: too few people to learn from.
    """

    def __init__(self, lab: Lab, recogniser: ShapeRecognizer, lessons: Lessons | None = None, seed: int = 0) -> None:
        self.lab, self.recogniser, self.seed = lab, recogniser, seed
        self.clear = self._read(lab.faces)
        enough = lessons is not None and 2 * len(several(lessons[1])) >= len(several(lab.people))
        self.attack = ShapeAttack(
            self.clear, lab.people, *lab.enrolment(), lessons=lessons if enough else None, seed=seed
        )

    def figures(self, faces: Faces) -> Figures:
        """Rows shape, by each judge, and shape-informed of finished crops."""
        published = self.clear if faces is self.lab.faces else self._read(faces)
        told = self.attack.ranks(published, self.lab.bootstrap)
        out: Figures = {("shape", judge): replace(one, metric="shape") for judge, one in told.items()}
        row = "shape-informed"
        try:
            informed = ShapeAttack(
                self.clear, self.lab.people, *self.lab.enrolment(), also=published, judges=("LDA",), seed=self.seed
            ).ranks(published, self.lab.bootstrap)
        except (InputError, UsageError) as error:  # with lessons from elsewhere the set may be too small to teach
            return out | {(row, "LDA"): Figure(row, None, note=str(error))}
        return out | {(row, judge): replace(one, metric=row) for judge, one in informed.items()}

    def _read(self, faces: Faces) -> Shapes:
        return self.recogniser.read(faces.images, faces.landmarks)
