"""Other uses of the model: swaps, exemplars, several draws of one source, the parrot, the policy's safety net."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import combinations

import numpy as np

from ficgan.anonymizers import Anonymizer, Faces
from ficgan.deidentify import Deidentifier, Ficgan
from ficgan.lab.bars.identity import cosines
from ficgan.lab.bars.lab import Lab, mean_of
from ficgan.lab.bars.lines import Control, Figures
from ficgan.lab.metrics.privacy import chance, rank
from ficgan.lab.metrics.scores import Scores
from ficgan.lab.readers import Embeddings, Reader
from ficgan.lab.sets.prepare import GREY
from ficgan.results import FaceResult

__all__ = ["DRAWS", "PSI", "drawn", "pairwise", "parrot", "policy", "surroundings", "targets", "towards"]

PSI = 0.6
"""Diversity at which draws are compared: what photos of several people and films have."""
DRAWS = 4
"""Draws of each source."""
Targets = dict[str, Embeddings]
"""Name of a recogniser → [N,D]."""


def targets(lab: Lab) -> Targets:
    """What each recogniser reads in the clear face of the next person."""
    return {reader.name: np.roll(lab.embed(reader, lab.faces), -1, axis=0) for reader in lab.eyes.readers}


def towards(lab: Lab, anonymizer: Anonymizer, row: str, wanted: Targets) -> Figures:
    """Mean cosine of each output to the clear face of the next person, its target.

    Args:
        lab: faces of different people, as of `Lab.one_each`.
        anonymizer: the model with alpha above 0, or one that knows no target.
        row: swap or exemplar.
        wanted: of `targets`.
    """
    regions = lab.prepared.regions()
    made = lab.prepared.with_regions(anonymizer(regions))  # all at once: the next row is the target
    out: Figures = {}
    for reader in lab.eyes.readers:
        out[row, reader.name] = mean_of(lab, row, cosines(lab.embed(reader, made), wanted[reader.name]))
    return out


def pairwise(lab: Lab, draw: Callable[[int], Anonymizer], count: int = DRAWS) -> Figures:
    """Row draws: mean cosine of all pairs of `count` outputs of each source.

    Args:
        lab: faces of different people.
        draw: seed → the anonymiser with it.
        count: draws, at least 2.
    """
    several = [lab.composed(draw(seed)) for seed in range(count)]
    out: Figures = {}
    for reader in lab.eyes.readers:
        seen = [lab.embed(reader, faces) for faces in several]
        pairs = np.stack([cosines(a, b) for a, b in combinations(seen, 2)])
        note = f"{count} draws of each of {len(lab.faces)} sources"
        out["draws", reader.name] = mean_of(lab, "draws", pairs.mean(0), note)
    return out


def parrot(lab: Lab, anonymizer: Anonymizer) -> Figures:
    """Row parrot: a person's first output enrolled, the others looked for, all but the pasted face greyed.

    Raises:
        InputError: fewer than two people with two images.
    """
    return _linked(lab, _greyed(lab, lab.composed(anonymizer), lab.weights < 0.999))


def surroundings(lab: Lab) -> dict[tuple[str, str], Control]:
    """The same of the clear images with all greyed that a pasted face touches: what is known without any face."""
    seen = _linked(lab, _greyed(lab, lab.faces, lab.weights > 0))
    return {key: Control("surroundings alone", figure) for key, figure in seen.items()}


def policy(lab: Lab, deid: Deidentifier, layer: int) -> tuple[Figures, Faces]:
    """Rows retried and masked, with the gate and its ladder at work, judged by the gate itself.

    A photo in which no face is found counts for neither row; it is among the pictures as it would be published.

    Args:
        lab: the set; whole crops are given as aligned ones, others as photos.
        deid: with the policy on.
        layer: i.

    Returns:
        The rows, and the published pictures.
    """
    gate = "" if deid.recognizer is None else deid.recognizer.name
    names, images = lab.faces.names, lab.faces.images
    done: list[FaceResult | None]
    if lab.prepared.whole:
        published, told = deid.aligned(images, keys=names, layer=layer)
        done = [*told]
    else:
        results = [deid(image, key=name, layer=layer) for image, name in zip(images, names, strict=True)]
        published = np.stack([one.image for one in results])
        done = [one.faces[0] if one.faces else None for one in results]
    found = np.array([one is not None for one in done])
    note = "" if found.all() else f"{int((~found).sum())} photos in which no face was found are left out"
    out: Figures = {}
    for row, actions in (("retried", ("retried", "masked")), ("masked", ("masked",))):  # who is masked was retried
        values = np.array([np.nan if one is None else float(one.action in actions) for one in done])
        shares = values.astype(bool) if found.all() else values
        out[row, f"{gate} (the gate)"] = mean_of(lab, row, shares, note)
    return out, lab.faces.with_images(published)


def drawn(model: Ficgan, layer: int) -> Callable[[int], Ficgan]:
    """Seed → the model at ψ = .6, a fresh draw for each image."""
    return lambda seed: replace(model, layer=layer, psi=PSI, seed=seed)


def _greyed(lab: Lab, faces: Faces, where: np.ndarray) -> Faces:
    images = faces.images.copy()
    images[where] = GREY
    return faces.with_images(images)


def _linked(lab: Lab, faces: Faces) -> Figures:
    gallery, probe = lab.enrolment(everybody=False)
    out: Figures = {}
    for reader in lab.eyes.readers:
        scores = _scores(lab, reader, faces, gallery, probe)
        figure = rank(scores, 1, bootstrap=lab.bootstrap)
        out["parrot", reader.name] = replace(figure, metric="parrot", note=f"chance {chance(scores):.3f}")
    return out


def _scores(lab: Lab, reader: Reader, faces: Faces, gallery: Sequence[int], probe: Sequence[int]) -> Scores:
    seen = lab.embed(reader, faces)
    people = lab.people
    return Scores.compare(seen[probe], seen[gallery], people[probe], people[gallery], metric=reader.metric)
