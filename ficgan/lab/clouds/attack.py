"""The thesis' auto-encoder against projections: learnt from some people, tried on others (§4.3.5)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ficgan.anonymizers import Faces
from ficgan.arrays import resize
from ficgan.errors import FicganError, UsageError
from ficgan.lab.attacks import Pairs, ThesisAutoEncoder
from ficgan.lab.clouds.config import AttackConfig, CloudStudyConfig
from ficgan.lab.clouds.lab import Lab, open_lab
from ficgan.lab.clouds.reading import Record, Template
from ficgan.lab.clouds.sweep import drawn_as
from ficgan.lab.processes import Say
from ficgan.pointcloud.cloud import Cloud, merged

__all__ = ["Reversed", "learnt_from", "lessons_of", "reverse", "split"]

Images = NDArray[np.uint8]
_TESTED, _WATCHED = 0.1, 0.1
"""Shares of the people that are tried on, and that training is watched on (§4.3.5.1: 80, 10, 10 %)."""
_WIDEST = 10.0
"""Degrees of yaw of the outermost views."""


@dataclass(frozen=True)
class Reversed:
    """What was read in the guesses.

    Args:
        probes: [T] places of the tried probes among the study's.
        records: (method, degree) → [T].
        record: of the training, with "people": how many it learnt from, and was watched on, and tried on.
    """

    probes: NDArray[np.intp]
    records: dict[tuple[str, int], Record]
    record: dict[str, Any]


def split(people: NDArray[np.int64], seed: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Who is learnt from (and watched on), and who is tried on: disjoint people.

    Args:
        people: [P] of the probes.
        seed: of who is who.

    Raises:
        UsageError: fewer than three people.
    """
    known = np.random.default_rng([seed, 80_10_10]).permutation(np.unique(people))
    if len(known) < 3:
        raise UsageError(f"{len(known)} people cannot be split into learnt from, watched on and tried; give at least 3")
    tried = max(1, round(_TESTED * len(known)))
    return np.sort(known[tried:]), np.sort(known[:tried])


def learnt_from(lab: Lab) -> tuple[int, ...]:
    """Rows of the scans that the attacker learns from: the probes of its people."""
    people = lab.clouds.numbers([lab.clouds.scans[row] for row in lab.clouds.probes])
    lessons, _ = split(people, lab.config.seed)
    return tuple(row for row, who in zip(lab.clouds.probes, people, strict=True) if who in lessons)


def lessons_of(config: CloudStudyConfig, out: Path, row: int, say: Say) -> str:
    """Task: the pairs of one scan, kept."""
    lab = open_lab(config, out)
    say(f"pairs of {lab.clouds.scans[row].name}")
    try:
        _lessons(lab, row)
    except FicganError as error:
        return str(error)
    return ""


def reverse(
    lab: Lab, rows: Sequence[int], template: Template | None, out: Path, say: Callable[[str], None]
) -> Reversed:
    """Train the auto-encoder and read its guesses at the people it did not learn from.

    Args:
        lab: of the study.
        rows: scans it learns from, of `learnt_from`.
        template: for guesses in which no face is found.
        out: the study's folder; an interrupted training goes on from what is there.
        say: progress.
    """
    settings = _settings(lab)
    clouds = lab.clouds
    people = clouds.numbers([clouds.scans[row] for row in clouds.probes])
    lessons, tried = split(people, lab.config.seed)
    pairs = _pairs(lab, rows)
    attacker = ThesisAutoEncoder(
        size=settings.size, epochs=settings.epochs, batch=settings.batch, minutes=settings.minutes,
        held=min(0.5, _WATCHED * (len(lessons) + len(tried)) / len(lessons)), seed=lab.config.seed,
        device=settings.device,
    )  # fmt: skip
    from ficgan.lab.attacks.training import digest_of

    workspace = out / "attacker" / digest_of(attacker, pairs)
    trained = attacker.fit(pairs, workspace=workspace, told=lambda done, total, text: say(f"{text}: {done}/{total}"))
    probes = np.flatnonzero(np.isin(people, tried))
    records: dict[tuple[str, int], list[Record]] = {}
    for place in probes:
        row = clouds.probes[place]
        say(f"guessing at {clouds.scans[row].name}")
        for method in _methods(lab):
            for (degree, _), record in zip(*_guessed(lab, row, method, trained, template), strict=True):
                records.setdefault((method, degree), []).append(record[None])
    told = {
        **{k: v for k, v in trained.record.items() if k != "plan"}, **trained.settings(),
        "people": {"learnt from or watched on": len(lessons), "tried on": len(tried)},
        "views": settings.views, "degrees": _degrees(lab), "methods": _methods(lab),
    }  # fmt: skip
    return Reversed(probes, {key: np.concatenate(some) for key, some in records.items()}, told)


def _guessed(
    lab: Lab, row: int, method: str, trained: ThesisAutoEncoder, template: Template | None
) -> tuple[list[tuple[int, Cloud | None]], Record]:
    settings = _settings(lab)
    made = list(lab.swept(row, method, _degrees(lab)))
    images = np.stack([lab.picture_of(row, cloud, method, degree) for degree, cloud in made])
    small = _windows(images, settings)
    names = tuple(f"{lab.clouds.scans[row].name} {method} {degree}" for degree, _ in made)
    guesses = trained.guess(Faces(small, names))
    whole = [_put_back(guess, image, settings) for guess, image in zip(guesses, images, strict=True)]
    return made, lab.guessed(row, whole, template)


def _lessons(lab: Lab, row: int) -> Images:
    """[1 + methods·degrees, views, S, S, 3]: clear projections first."""
    settings = _settings(lab)
    every = [lab.method_key(row, method, _degrees(lab)) for method in _methods(lab)]
    key = ["lessons", every, settings.views, settings.size, settings.window]
    return lab.kept(key, lambda: _drawn(lab, row, settings))


def _drawn(lab: Lab, row: int, settings: AttackConfig) -> Images:
    parts = lab.prepared(row)
    out = [_views(parts.whole, settings)]
    for method in _methods(lab):
        for degree, made in lab.swept(row, method, _degrees(lab)):
            if made is None:  # black, which no projection is: `_pairs` leaves it out
                out.append(np.zeros_like(out[0]))
            else:
                out.append(_views(merged(made, parts.outer), settings, **drawn_as(method, degree)))
    return np.stack(out)


def _views(cloud: Cloud, settings: AttackConfig, **drawn: Any) -> Images:
    from ficgan.pointcloud.projection import views

    angles = np.linspace(-_WIDEST, _WIDEST, settings.views) if settings.views > 1 else [0.0]
    return _windows(np.stack(views(cloud, angles, **drawn)), settings)


def _windows(images: Images, settings: AttackConfig) -> Images:
    """[N,H,W,3] → [N,size,size,3]: the squares about the nose tip, which lies in the middle of a projection."""
    rows, columns = _middle(images.shape[1:3], settings.window)
    return np.stack([resize(image[rows, columns], settings.size) for image in images])


def _put_back(guess: Images, image: Images, settings: AttackConfig) -> Images:
    """A guess in its place, the rest as it was published."""
    rows, columns = _middle(image.shape[:2], settings.window)
    out = image.copy()
    out[rows, columns] = resize(guess, settings.window)
    return out


def _middle(shape: tuple[int, ...], side: int) -> tuple[slice, slice]:
    top, left = ((length - side) // 2 for length in shape[:2])
    return slice(top, top + side), slice(left, left + side)


def _pairs(lab: Lab, rows: Sequence[int]) -> Pairs:
    """Anonymised and clear views; those of clouds of which nothing could be made are left out."""
    numbers = lab.clouds.numbers([lab.clouds.scans[row] for row in rows])
    seen, clear, people = [], [], []
    for row, person in zip(rows, numbers, strict=True):
        block = _lessons(lab, row)
        kept = block[1:][block[1:].reshape(len(block) - 1, -1).any(axis=1)]
        seen.append(kept.reshape(-1, *block.shape[2:]))
        clear.append(np.tile(block[0], (len(kept), 1, 1, 1)))
        people.append(np.full(len(seen[-1]), person))
    whose = np.concatenate(people)
    names = tuple(str(index) for index in range(len(whose)))
    return Pairs(Faces(np.concatenate(seen), names, people=whose), Faces(np.concatenate(clear), names, people=whose))


def _settings(lab: Lab) -> AttackConfig:
    assert lab.config.attack is not None
    return lab.config.attack


def _methods(lab: Lab) -> list[str]:
    return list(_settings(lab).methods or lab.config.methods)


def _degrees(lab: Lab) -> list[int]:
    """Of the attack, as far as the study has them."""
    return sorted(set(_settings(lab).degrees) & set(lab.config.degrees))
