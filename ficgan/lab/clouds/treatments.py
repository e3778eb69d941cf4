"""What is done to a face before it is read: anonymised at many degrees, taken back, guessed by an auto-encoder."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ficgan.arrays import resize
from ficgan.errors import InputError, UsageError
from ficgan.lab.clouds.sets import AttackConfig, CloudStudyConfig
from ficgan.pointcloud import attack
from ficgan.pointcloud.cloud import Cloud, merged, rounded_colors, search
from ficgan.pointcloud.methods import CLOUD_ANONYMIZERS, CloudAnonymizer, Drawn
from ficgan.pointcloud.projection import views

if TYPE_CHECKING:
    from ficgan.lab.attacks import Pairs
    from ficgan.lab.clouds.study import CloudStudy, Record

Images = NDArray[np.uint8]
Swept = list[tuple[int, Cloud | None]]
"""Degree, ascending, and anonymised cloud; None where the method cannot work."""


@dataclass(frozen=True)
class Treatment:
    """What is done to a face at some degrees; nothing without a method."""

    method: str = ""
    attacker: str = ""  # who takes it back, of `INVERSES`; "": nobody
    degrees: tuple[int, ...] = ()


def treatments_of(config: CloudStudyConfig, *, gallery: bool = False, costly: bool = False) -> list[Treatment]:
    """All of a study: of probes, or of a gallery that is treated as they are; `costly`: at its costly degrees alone."""
    found = []
    for method in config.methods:
        for attacker in ("", *inverses(config, method, alike=gallery)):
            few = costly or (attacker and not INVERSES[attacker].quick)
            found.append(Treatment(method, attacker, tuple(config.costly_degrees if few else sorted(config.degrees))))
    return found


# -- the methods ------------------------------------------------------------------------------------------------------


def anonymiser(method: str, degree: int, *, seed: int = 0, target: Cloud | None = None) -> CloudAnonymizer:
    made = CLOUD_ANONYMIZERS[method].of_degree(degree, seed=seed)
    return made if target is None else made.with_target(target)


def drawn_as(method: str, degree: int) -> Drawn:
    """Point size and order with which the thesis draws a method's result at a degree (§4.3.3)."""
    return anonymiser(method, degree).drawn_with()


def sweep(
    method: str, degrees: Iterable[int], cloud: Cloud, *, seed: int = 0, target: Cloud | None = None, name: str = ""
) -> Swept:
    """A cloud under one method at several degrees; neighbours and registrations are looked for once."""
    made = {degree: anonymiser(method, degree, seed=seed, target=target) for degree in sorted(degrees)}
    if method == "smooth-knn":
        return _smoothed({degree: smoother.settings()["k"] for degree, smoother in made.items()}, cloud)
    found: Swept = []
    for degree, anonymise in made.items():
        try:
            found.append((degree, anonymise(cloud, name=name)))
        except InputError:
            found.append((degree, None))
    return found


def _smoothed(sizes: dict[int, int], cloud: Cloud) -> Swept:
    known = np.array([k for k in sizes.values() if k <= len(cloud)], int)
    if not len(known):
        return [(degree, None) for degree in sizes]
    centre = cloud.points.mean(axis=0)  # about which sums of many lose fewer digits
    values = cloud.points - centre if cloud.colors is None else np.hstack([cloud.points - centre, cloud.colors])
    rows = search(cloud.points, cloud.points, int(known.max()))[1]
    means = {k: np.empty_like(values) for k in known.tolist()}
    for column, channel in enumerate(values.T):
        sums = np.cumsum(channel[rows], axis=1)
        for k, mean in means.items():
            mean[:, column] = sums[:, k - 1] / k
    found: Swept = []
    for degree, k in sizes.items():
        if k not in means:
            found.append((degree, None))
            continue
        colors = None if cloud.colors is None else rounded_colors(means[k][:, 3:])
        found.append((degree, cloud.with_points(means[k][:, :3] + centre, colors)))
    return found


def time_alone(
    method: str, degree: int, cloud: Cloud, *, seed: int = 0, target: Cloud | None = None, name: str = ""
) -> float:
    """Seconds of one anonymisation with nothing remembered; NaN where the method cannot work."""
    made = anonymiser(method, degree, seed=seed, target=target)
    fresh = cloud.take(np.roll(np.arange(len(cloud)), degree))
    begun = time.perf_counter()
    try:
        made(fresh, name=name)
    except InputError:
        return float("nan")
    return time.perf_counter() - begun


# -- inverses ---------------------------------------------------------------------------------------------------------

_FLOOR = 0.02  # Factors of tapering below which a point is not brought back: it would fly away with its rounding
_OTHERS = 8  # People whose faces tell the attacker who guesses r what a face is like
_Undo = Callable[["CloudStudy", int, Any, Cloud], Cloud]
"""Study, row, anonymiser, and what it made → what an attacker makes of it; points that do not come back stay."""


def _untapered_by_guess(study: CloudStudy, row: int, made: Any, cloud: Cloud) -> Cloud:
    r = attack.guess_taper(cloud, background=study.inner_parts(_others(study, row)))
    return attack.untaper(cloud, r, floor=_FLOOR).cloud


def _unmerged(study: CloudStudy, row: int, made: Any, cloud: Cloud) -> Cloud:
    # Who has the target finds how it was laid to a fraction of a millimetre: here the attacker is told.
    laid = made.registered(study.prepared(row).inner).transform
    return attack.unmerge(cloud, made.weight, made.target, laid).cloud


@dataclass(frozen=True)
class Inverse:
    """An attacker who has the cloud and knows the degree (as who tries all 35), unless `says` tells otherwise."""

    method: str  # that is taken back
    says: str  # what is done, for the report
    undo: _Undo
    exact: bool = False  # it gives the face back, wherever that is possible
    quick: bool = False  # tried at every degree; else at the costly ones
    alike: bool = False  # what comes back bears the method's traces: a gallery is treated alike where it can be


INVERSES: dict[str, Inverse] = {
    "untaper": Inverse(
        "tapering",
        "the inverse of tapering",
        lambda study, row, made, cloud: attack.untaper(cloud, made.r, floor=_FLOOR).cloud,
        exact=True,
        quick=True,
    ),
    "guess_taper": Inverse("tapering", "the same with r guessed from the cloud", _untapered_by_guess, quick=True),
    "unmerge": Inverse(
        "merge-2-faces",
        "that of merge-2-faces, by whoever has the target's scan and knows how it was laid",
        _unmerged,
        exact=True,
        quick=True,
    ),
    "unsmooth": Inverse(
        "smooth-knn",
        "SmoothKNN's means undone step by step",
        lambda study, row, made, cloud: attack.unsmooth(cloud, made.k),
    ),
    "denoise": Inverse(
        "uniform-noise",
        "noise averaged over neighbours",
        lambda study, row, made, cloud: attack.denoise(cloud, made.b),
        alike=True,
    ),
}
"""Attacker → what it does."""


def inverses(config: CloudStudyConfig, method: str = "", *, alike: bool = False) -> list[str]:
    """Names of a study's inverses, or of those of one method; `alike`: only those that a gallery is read after, too."""
    methods = (method,) if method else config.methods
    return [n for n, i in INVERSES.items() if config.inverses and i.method in methods and (i.alike or not alike)]


def take_back(study: CloudStudy, row: int, attacker: str, degree: int, cloud: Cloud | None) -> Cloud | None:
    """What an attacker makes of an anonymised cloud."""
    if cloud is None:
        return None
    inverse = INVERSES[attacker]
    made = anonymiser(inverse.method, degree, target=study.target if inverse.method == "merge-2-faces" else None)
    return inverse.undo(study, row, made, cloud)


def inverse_key(study: CloudStudy, row: int, attacker: str) -> list[object]:
    """JSON-ready; what `take_back` depends on besides the anonymised cloud."""
    if attacker != "guess_taper":
        return [attacker] if attacker else []
    return [attacker, [study.clouds.scans[other].digest for other in _others(study, row)]]


def _others(study: CloudStudy, row: int) -> list[int]:
    scans = study.clouds.scans
    known = {scans[other].person: other for other in (*study.clouds.probes, *study.clouds.gallery)}
    return [other for person, other in known.items() if person != scans[row].person][:_OTHERS]


# -- the thesis' auto-encoder (§4.3.5): learnt from some people, tried on others --------------------------------------

_TESTED, _WATCHED = 0.1, 0.1
"""Shares of the people that are tried on, and that training is watched on (§4.3.5.1: 80, 10, 10 %)."""
_WIDEST = 10.0  # Degrees of yaw of the outermost views


@dataclass(frozen=True)
class Guesses:
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


def lessons(study: CloudStudy, row: int) -> Images:
    """Views of a scan that the auto-encoder learns from [1 + methods·degrees, views, S, S, 3], clear ones first."""
    settings, methods, degrees = _settings(study)

    def draw() -> Images:
        parts = study.prepared(row)
        out = [_views(parts.whole, settings)]
        for method in methods:
            for degree, made in study.swept(row, method, degrees):
                if made is None:  # black, which no projection is: `_pairs` leaves it out
                    out.append(np.zeros_like(out[0]))
                else:
                    out.append(_views(merged(made, parts.outer), settings, **drawn_as(method, degree)))
        return np.stack(out)

    every = [study.method_key(row, Treatment(method, degrees=degrees)) for method in methods]
    return study.kept(["lessons", every, settings.views, settings.size, settings.window], draw)


def train_and_guess(study: CloudStudy, out: Path, say: Callable[[str], None]) -> Guesses:
    """Train (or resume) the auto-encoder and read its guesses at the people it did not learn from."""
    from ficgan.anonymizers import Faces
    from ficgan.lab.attacks import ThesisAutoEncoder
    from ficgan.lab.attacks.training import digest_of

    settings, methods, degrees = _settings(study)
    people = study.clouds.numbers(study.clouds.probes)
    learnt, tried = split(people, study.config.seed)
    pairs = _pairs(study)
    attacker = ThesisAutoEncoder(
        size=settings.size,
        epochs=settings.epochs,
        batch=settings.batch,
        minutes=settings.minutes,
        held=min(0.5, _WATCHED * (len(learnt) + len(tried)) / len(learnt)),
        seed=study.config.seed,
        device=settings.device,
    )
    workspace = out / "attacker" / digest_of(attacker, pairs)
    trained = attacker.fit(pairs, workspace=workspace, progress=lambda done, of, text: say(f"{text}: {done}/{of}"))
    probes = np.flatnonzero(np.isin(people, tried))
    records: dict[tuple[str, int], list[Record]] = {}
    for row in (study.clouds.probes[place] for place in probes):
        name = study.clouds.scans[row].name
        say(f"guessing at {name}")
        for method in methods:
            images = [study.picture_of(row, made, method, degree) for degree, made in study.swept(row, method, degrees)]
            names = tuple(f"{name} {method} {degree}" for degree in degrees)
            guesses = trained.guess(Faces(_windows(np.stack(images), settings), names))
            whole = [_put_back(guess, image, settings) for guess, image in zip(guesses, images, strict=True)]
            for degree, record in zip(degrees, study.read(row, whole, np.ones(len(whole), bool)), strict=True):
                records.setdefault((method, degree), []).append(record[None])
    record = {
        **{k: v for k, v in trained.record.items() if k != "plan"},
        **trained.settings(),
        "people": {"learnt from or watched on": len(learnt), "tried on": len(tried)},
        "views": settings.views,
        "degrees": list(degrees),
        "methods": methods,
    }
    return Guesses(probes, {key: np.concatenate(some) for key, some in records.items()}, record)


def _settings(study: CloudStudy) -> tuple[AttackConfig, list[str], tuple[int, ...]]:
    settings, config = study.config.attack, study.config
    assert settings is not None
    return settings, list(settings.methods or config.methods), tuple(sorted({*settings.degrees} & {*config.degrees}))


def _pairs(study: CloudStudy) -> Pairs:
    from ficgan.anonymizers import Faces
    from ficgan.lab.attacks import Pairs

    rows = lesson_rows(study)
    seen, clear, people = [], [], []
    for row, person in zip(rows, study.clouds.numbers(rows), strict=True):
        block = lessons(study, row)
        kept = block[1:][block[1:].reshape(len(block) - 1, -1).any(axis=1)]
        seen.append(kept.reshape(-1, *block.shape[2:]))
        clear.append(np.tile(block[0], (len(kept), 1, 1, 1)))
        people.append(np.full(len(seen[-1]), person))
    whose = np.concatenate(people)
    names = tuple(str(index) for index in range(len(whose)))
    return Pairs(Faces(np.concatenate(seen), names, people=whose), Faces(np.concatenate(clear), names, people=whose))


def _views(cloud: Cloud, settings: AttackConfig, **drawn: Any) -> Images:
    angles = np.linspace(-_WIDEST, _WIDEST, settings.views) if settings.views > 1 else [0.0]
    return _windows(np.stack(views(cloud, angles, **drawn)), settings)


def _windows(images: Images, settings: AttackConfig) -> Images:
    """[N,H,W,3] → [N,size,size,3]: the squares about the nose tip, which lies in the middle of a projection."""
    rows, columns = _middle(images.shape[1:3], settings.window)
    return np.stack([resize(image[rows, columns], settings.size) for image in images])


def _put_back(guess: Images, image: Images, settings: AttackConfig) -> Images:
    out = image.copy()
    out[_middle(image.shape[:2], settings.window)] = resize(guess, settings.window)
    return out


def _middle(shape: Sequence[int], side: int) -> tuple[slice, slice]:
    top, left = ((length - side) // 2 for length in shape)
    return slice(top, top + side), slice(left, left + side)
