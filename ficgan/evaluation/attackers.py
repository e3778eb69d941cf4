"""What attackers make of anonymised probes before a judge reads them."""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ficgan.anonymizers import Anonymizer, Faces, Images
from ficgan.attacks import REVERSERS, Pairs, Reverser, another_key
from ficgan.evaluation.bench import Bench, NotApplicable, Refused, Subject, known
from ficgan.evaluation.scenarios import Scenario
from ficgan.registry import parse_spec

__all__ = ["attacked"]

DRAWS = 8
"""Anonymisations of one image that are averaged."""
QUALITY = 75
"""Of JPEG files; the customary one, and Revelio's."""
MISMATCH = 0.7
"""Strength at which a mismatched attacker has learnt, relative to the attacked one's."""


def attacked(
    bench: Bench, subject: Subject, scenario: Scenario, rows: NDArray[np.int64]
) -> list[tuple[str, Faces]]:
    """(name of the attacker, what is read) of a scenario; several where several attackers try."""
    kind, method = scenario.attacker, subject.anonymizer
    if kind == "fusion" and len(np.unique(known(subject.clear(rows)))) == len(rows):
        raise Refused("there is one probe per identity, and nothing to fuse")
    if kind in ("", "fusion"):
        return [("fused probes" if kind else "", subject.view(scenario.probe, rows))]
    assert method is not None
    if kind == "average":
        return [(f"mean of {DRAWS} draws", _averaged(subject, method, rows))]
    anonymised = subject.anonymised(rows)
    if kind in ("right key", "wrong key"):
        if not method.traits.keyed:
            raise NotApplicable(f"{method.name} has no key")
        holder = method if kind == "right key" else _other_key(method)
        return [(kind, _in_region(bench, rows, anonymised, holder.invert))]
    if kind == "compressed":
        return _compressed(bench, subject, method, rows)
    chosen = _reversers(bench, method, kind)
    if not chosen:
        raise NotApplicable(f"no {kind} attacker is made for {method.name}")
    pairs = None
    out = []
    for name, reverser in chosen:
        if reverser.traits.knowledge & {"pairs"} and pairs is None:
            pairs = _pairs(bench, subject, method, mismatched=kind == "mismatched")
        if reverser.traits.knowledge & {"background"} and pairs is None:
            pairs = _pairs(bench, subject, method, mismatched=False)
        fitted = reverser if pairs is None else reverser.fit(pairs)
        out.append((name, _in_region(bench, rows, anonymised, fitted.guess)))
    return out


def _compressed(
    bench: Bench, subject: Subject, method: Anonymizer, rows: NDArray[np.int64]
) -> list[tuple[str, Faces]]:
    """What JPEG files leave to the attackers made for the method, who learn from JPEG files too, and to its key."""
    probes, out = _as_jpeg(subject.anonymised(rows)), []
    if method.traits.keyed:
        out.append(("right key", _in_region(bench, rows, probes, method.invert)))
    learners = [one for one in _reversers(bench, method, "specialised") if "pairs" in one[1].traits.knowledge]
    if not (out or learners):
        raise NotApplicable(f"no attacker of {method.name} learns from its files or has its key")
    taught = bench.split.attacker
    if learners and len(taught):
        seen = bench.part(taught, _as_jpeg(subject.anonymised(taught)).images).regions()
        pairs = Pairs(seen, bench.part(taught).regions(), bench.background)
        out += [(name, _in_region(bench, rows, probes, one.fit(pairs).guess)) for name, one in learners]
    return out


def _as_jpeg(faces: Faces) -> Faces:
    """The faces as they come back from JPEG files."""
    from PIL import Image

    out = np.empty_like(faces.images)
    for index, image in enumerate(faces.images):
        file = io.BytesIO()
        Image.fromarray(image).save(file, format="JPEG", quality=QUALITY)
        out[index] = np.asarray(Image.open(file))
    return faces.with_images(out)


def _reversers(bench: Bench, method: Anonymizer, kind: str) -> list[tuple[str, Reverser]]:
    def make(text: str) -> tuple[str, Reverser]:
        name, parameters = parse_spec(text)
        made = REVERSERS.make(name, **parameters)
        if "parameters" in made.traits.knowledge:  # it knows the method's own, such as k
            shared = {field.name for field, _ in made.parameters()} & {field.name for field, _ in method.parameters()}
            made = dataclasses.replace(made, **{name: getattr(method, name) for name in shared - set(parameters)})
        return text, made

    if kind in ("general", "mismatched"):
        return [make(text) for text in bench.general]
    if kind == "background":
        named = [name for name in REVERSERS if method.name in REVERSERS[name].traits.against]
        return [make(name) for name in named if "background" in REVERSERS[name].traits.knowledge]
    if "auto" not in bench.specialised:
        return [make(text) for text in bench.specialised]
    return [
        make(name)
        for name in REVERSERS
        if method.name in REVERSERS[name].traits.against
        and not REVERSERS[name].traits.knowledge & {"background", "key"}
    ]


def _pairs(bench: Bench, subject: Subject, method: Anonymizer, *, mismatched: bool) -> Pairs:
    rows = bench.split.attacker
    if not len(rows):
        raise Refused("the split leaves no faces to the attacker; set split.attacker")
    other = _weaker(method) if mismatched else method
    anonymised = bench.part(rows, subject.anonymised(rows, other).images).regions()
    return Pairs(anonymised, bench.part(rows).regions(), bench.background, same=not mismatched)


def _weaker(method: Anonymizer) -> Anonymizer:
    """The same method at another strength."""
    name = method.traits.strength
    if name is None:
        raise NotApplicable(f"{method.name} has no strength that could differ")
    value = getattr(method, name)
    other = type(value)(value * MISMATCH if not isinstance(value, int) else max(1, round(value * MISMATCH)))
    if other == value:
        raise Refused(f"{method.name} cannot be made at another {name} than {value}")
    return dataclasses.replace(method, **{name: other})


def _other_key(method: Anonymizer) -> Anonymizer:
    """With another key; where a parameter is the key, as the steps of a relocation are, with another of these."""
    if getattr(method, "variant", "") == "as_released" and method.traits.strength:
        return _weaker(method)
    return another_key(method)


def _in_region(
    bench: Bench, rows: NDArray[np.int64], faces: Faces, change: Callable[[Faces], Images]
) -> Faces:
    """Faces with the replaced square changed once more."""
    part = bench.part(rows, faces.images)
    return part.with_regions(change(part.regions()))


def _averaged(subject: Subject, method: Anonymizer, rows: NDArray[np.int64]) -> Faces:
    if not method.traits.stochastic:
        raise NotApplicable(f"{method.name} draws nothing: all its results of one image are alike")
    total = np.zeros_like(subject.clear(rows).images, dtype=np.float32)
    for draw in range(DRAWS):
        seeded: Any = method
        total += subject.anonymised(rows, dataclasses.replace(seeded, seed=seeded.seed + draw)).images
    return subject.clear(rows).with_images(np.rint(total / DRAWS).astype(np.uint8))
