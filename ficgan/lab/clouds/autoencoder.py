"""The thesis' auto-encoder (§4.3.5) in a study of clouds: learnt from some people, tried on others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ficgan.arrays import resize
from ficgan.errors import UsageError
from ficgan.lab.clouds.sets import AutoEncoderConfig
from ficgan.lab.clouds.study import CloudStudy, Record, Treatment, anonymiser
from ficgan.pointcloud.cloud import Cloud, merged
from ficgan.pointcloud.projection import THESIS_SIZE, project

if TYPE_CHECKING:
    from ficgan.lab.attacks import Pairs

Images = NDArray[np.uint8]

# Shares of the people that are tried on, and that training is watched on (§4.3.5.1: 80, 10, 10 %).
_TESTED, _WATCHED = 0.1, 0.1
_WIDEST = 10.0  # degrees of yaw of the outermost views
# Side of the square about the nose tip that the network sees, pixels; the thesis has the whole picture.
_WINDOW = 256
# Rows and columns of that square in a projection, in whose middle the nose tip lies.
_MIDDLE = tuple(slice((length - _WINDOW) // 2, (length + _WINDOW) // 2) for length in THESIS_SIZE[::-1])


@dataclass(frozen=True)
class CloudGuesses:
    """What the auto-encoder's guesses are read as."""

    probes: NDArray[np.intp]  # [T] places of the tried probes among the study's
    records: dict[tuple[str, int], Record]  # (method, degree) → [T]
    record: dict[str, Any]  # of the training, with "people": how many it learnt from, and was tried on


def split(people: NDArray[np.int64], seed: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Who is learnt from (and watched on), and who is tried on: disjoint people of the probes' [P]."""
    known = np.random.default_rng([seed, 80_10_10]).permutation(np.unique(people))
    if len(known) < 3:
        raise UsageError(f"{len(known)} people cannot be split into learnt from, watched on and tried; give at least 3")
    tried = max(1, round(_TESTED * len(known)))
    return np.sort(known[tried:]), np.sort(known[:tried])


def lesson_rows(study: CloudStudy) -> tuple[int, ...]:
    """Rows of the scans that the auto-encoder learns from: the probes of its people."""
    people = study.clouds.numbers(study.clouds.probes)
    learnt, _ = split(people, study.config.seed)
    return tuple(row for row, who in zip(study.clouds.probes, people, strict=True) if who in learnt)


def lesson_key(study: CloudStudy, row: int) -> list[Any]:
    """JSON-ready: what `lessons` depends on."""
    settings, degrees = _settings(study)
    every = [study.key(row, Treatment(method, "", degrees)) for method in study.config.methods]
    return ["lessons", every, settings.views, settings.size]


def lessons(study: CloudStudy, row: int) -> Images:
    """Views of a scan that the auto-encoder learns from [1 + methods·degrees, views, S, S, 3], clear ones first."""
    settings, degrees = _settings(study)
    parts = study.prepared(row)
    out = [_views(merged(parts.inner, parts.outer), settings)]
    for method in study.config.methods:
        for degree, made in study.swept(row, method, degrees):
            if made is None:  # black, which no projection is: `_pairs` leaves it out
                out.append(np.zeros_like(out[0]))
            else:
                out.append(_views(merged(made, parts.outer), settings, **anonymiser(method, degree).drawn_with()))
    return np.stack(out)


def train_and_guess(
    study: CloudStudy, learnt: Sequence[Images], clear: Record, out: Path, say: Callable[[str], None]
) -> CloudGuesses:
    """Train (or resume) the auto-encoder and read its guesses at the people it did not learn from.

    Args:
        study: whose probes are split.
        learnt: `lessons` of each of `lesson_rows`.
        clear: records [P] of the clear projections of the probes.
        out: folder of the run.
        say: progress.
    """
    from ficgan.anonymizers import Faces
    from ficgan.lab.attacks import ThesisAutoEncoder
    from ficgan.lab.attacks.learned import digest_of

    settings, degrees = _settings(study)
    people = study.clouds.numbers(study.clouds.probes)
    taught, tried = split(people, study.config.seed)
    pairs = _pairs(study, learnt)
    attacker = ThesisAutoEncoder(
        size=settings.size,
        epochs=settings.epochs,
        batch=8,
        minutes=settings.minutes,
        held=min(0.5, _WATCHED * (len(taught) + len(tried)) / len(taught)),
        seed=study.config.seed,
        device=settings.device,
    )
    workspace = out / "attacker" / digest_of(attacker, pairs)
    trained = attacker.fit(pairs, workspace=workspace, progress=lambda done, of, text: say(f"{text}: {done}/{of}"))
    probes = np.flatnonzero(np.isin(people, tried))
    records: dict[tuple[str, int], list[Record]] = {}
    for place in probes:
        row = study.clouds.probes[place]
        name = study.clouds.scans[row].name
        say(f"guessing at {name}")
        for method in study.config.methods:
            images = [study.picture_of(row, made, method, degree) for degree, made in study.swept(row, method, degrees)]
            names = tuple(f"{name} {method} {degree}" for degree in degrees)
            guesses = trained.guess(Faces(_windows(np.stack(images), settings.size), names))
            for image, guess in zip(images, guesses, strict=True):
                image[_MIDDLE] = resize(guess, _WINDOW)
            read = study.read(row, images, np.ones(len(images), bool), clear[[place]])
            for degree, record in zip(degrees, read, strict=True):
                records.setdefault((method, degree), []).append(record[None])
    record = {
        **{k: v for k, v in trained.record.items() if k != "plan"},
        **trained.settings(),
        "people": {"learnt from or watched on": len(taught), "tried on": len(tried)},
        "views": settings.views,
        "degrees": list(degrees),
    }
    return CloudGuesses(probes, {key: np.concatenate(some) for key, some in records.items()}, record)


def _settings(study: CloudStudy) -> tuple[AutoEncoderConfig, tuple[int, ...]]:
    settings = study.config.attack
    assert settings is not None
    return settings, tuple(sorted({*settings.degrees} & {*study.config.degrees}))


def _pairs(study: CloudStudy, learnt: Sequence[Images]) -> Pairs:
    from ficgan.anonymizers import Faces
    from ficgan.lab.attacks import Pairs

    seen, clear, people = [], [], []
    for block, person in zip(learnt, study.clouds.numbers(lesson_rows(study)), strict=True):
        kept = block[1:][block[1:].reshape(len(block) - 1, -1).any(axis=1)]
        seen.append(kept.reshape(-1, *block.shape[2:]))
        clear.append(np.tile(block[0], (len(kept), 1, 1, 1)))
        people.append(np.full(len(seen[-1]), person))
    whose = np.concatenate(people)
    names = tuple(str(index) for index in range(len(whose)))
    return Pairs(Faces(np.concatenate(seen), names, people=whose), Faces(np.concatenate(clear), names, people=whose))


def _views(cloud: Cloud, settings: AutoEncoderConfig, **drawn: Any) -> Images:
    angles = np.linspace(-_WIDEST, _WIDEST, settings.views) if settings.views > 1 else [0.0]
    return _windows(np.stack([project(cloud, yaw=float(angle), **drawn) for angle in angles]), settings.size)


def _windows(images: Images, size: int) -> Images:
    """[N,H,W,3] → [N,size,size,3]: the squares about the nose tip."""
    return np.stack([resize(image[_MIDDLE], size) for image in images])
