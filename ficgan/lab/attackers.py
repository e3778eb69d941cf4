"""What attackers make of anonymised probes before a judge reads them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ficgan.anonymizers import Anonymizer, Faces, Images
from ficgan.anonymizers.defended import Jpeg
from ficgan.lab.attacks import REVERSERS, Reverser, another_key
from ficgan.lab.attacks.learned import Learned, read_header
from ficgan.lab.bench import Bench, NotApplicable, Refused, Subject, known
from ficgan.lab.learning import Lessons, Opponent, halves, lessons
from ficgan.lab.matrix_config import without_folder
from ficgan.lab.results import Trial
from ficgan.lab.scenarios import Attacker, Scenario, get_scenarios
from ficgan.lab.stored import digest
from ficgan.registry import parse_spec

__all__ = [
    "Attempt",
    "attacked",
    "by_halves",
    "in_region",
    "opponents",
    "shareable",
    "titles",
    "training_of",
    "with_trainings",
]

DRAWS = 8
"""Anonymisations of one image that are averaged."""
QUALITY = 75
"""Of JPEG files; the customary one, and Revelio's."""
MISMATCH = 0.7
"""Strength at which a mismatched attacker has learnt, relative to the attacked one's."""
LONGEST = 40
"""Letters of an attacker's name in a table."""


@dataclass(frozen=True)
class Attempt:
    """What one attacker has made of some probes.

    Args:
        attacker: for tables; "" where there is none.
        rows: int64 [N], which probes.
        faces: N crops as they are read.
    """

    attacker: str
    rows: NDArray[np.int64]
    faces: Faces


def attacked(bench: Bench, subject: Subject, scenario: Scenario, rows: NDArray[np.int64]) -> list[Attempt]:
    """Attempts at the probes `rows` in a scenario; several where several attackers try.

    Raises:
        NotApplicable: the scenario has no meaning for the method.
        Refused: it cannot be run on this set.
    """
    kind, method = scenario.attacker, subject.anonymizer
    if kind == "fusion" and len(np.unique(known(subject.clear(rows)))) == len(rows):
        raise Refused("there is one probe per identity, and nothing to fuse")
    if kind in ("", "fusion"):
        return [Attempt("fused probes" if kind else "", rows, subject.view(scenario.probe, rows))]
    assert method is not None
    if kind == "average":
        return [Attempt(f"mean of {DRAWS} draws", rows, _averaged(subject, method, rows))]
    anonymised = subject.anonymised(rows)
    if kind in ("right key", "wrong key"):
        if not method.traits.keyed:
            raise NotApplicable(f"{method.name} has no key")
        holder = method if kind == "right key" else _other_key(method)
        return [Attempt(kind, rows, in_region(bench, rows, anonymised, holder.invert))]
    if kind == "compressed":
        return _compressed(bench, subject, method, rows)
    out = []
    for opponent in opponents(bench, subject, method, kind):
        guess = in_region(bench, rows, anonymised, opponent.guess)
        closed = kind == "closed"
        out += by_halves(bench, opponent.title, rows, guess) if closed else [Attempt(opponent.title, rows, guess)]
    return out


def by_halves(bench: Bench, title: str, rows: NDArray[np.int64], faces: Faces) -> list[Attempt]:
    """Probes of the people whom a closed-world attacker knows, and apart from them those of the others."""
    parts = [np.flatnonzero(np.isin(bench.people[rows], half)) for half in halves(bench)]
    named = zip(("known", "unknown"), parts, strict=True)
    return [Attempt(f"{title} ({told})", rows[part], faces.take(part)) for told, part in named if len(part)]


def opponents(bench: Bench, subject: Subject, method: Anonymizer, kind: Attacker) -> list[Opponent]:
    """The attackers of a kind of scenario, and what each may learn from.

    Raises:
        NotApplicable: there is none against this method.
        Refused: the split leaves them nothing to learn from.
    """
    chosen = _reversers(bench, method, kind)
    if not chosen:
        raise NotApplicable(f"no {kind} attacker is made for {method.name}")
    mismatched, victims = kind == "mismatched", kind in ("closed", "closed retrieval")
    taught_by = _weaker(method) if mismatched else method
    change: dict[str, Any] = {"change": _as_jpeg} if kind == "compressed" else {}

    @cache
    def taught() -> Lessons:
        return lessons(bench, subject, taught_by, same=not mismatched, victims=victims, **change)

    out = []
    for title, reverser in chosen:
        learns = reverser.traits.knowledge & {"pairs", "background"}
        opponent = Opponent(title, reverser, taught() if learns else None, bench, subject.say)
        if isinstance(reverser, Learned):
            bench.trainings[kind, title] = ["attacker", *opponent._mark]
        out.append(opponent)
    return out


def with_trainings(bench: Bench, trials: Sequence[Trial]) -> list[Trial]:
    """Trials of networks that were trained here, with a word at their rank-1 on how long and why no longer.

    Args:
        bench: on which `run_trials` made them.
        trials: in any order.
    """
    return [_annotated(trial, training_of(bench, trial)) for trial in trials]


def training_of(bench: Bench, trial: Trial) -> str:
    """For how long the attacker of a trial was trained on the bench; "" where it was not, or nothing was kept."""
    from ficgan.lab.attacks.training import WEIGHTS

    (scenario,) = get_scenarios([trial.scenario])
    # Closed worlds have two trials, of the people known and of the others.
    title = trial.attacker.removesuffix(" (known)").removesuffix(" (unknown)")
    key = bench.trainings.get((scenario.attacker, title))
    path = None if key is None else bench.store.kept_in(key, WEIGHTS)
    return "" if path is None else _told(read_header(path)["training"])


def _told(record: dict[str, Any]) -> str:
    if "epochs" not in record:
        return ""
    return f"trained {record['epochs']} epochs, ended: {record.get('ended') or 'all epochs'}"


def _annotated(trial: Trial, note: str) -> Trial:
    if not note:
        return trial
    figures = tuple(
        dataclasses.replace(one, note="; ".join(filter(None, [one.note, note]))) if one.metric == "rank-1" else one
        for one in trial.figures
    )
    return dataclasses.replace(trial, figures=figures)


def titles(specs: Sequence[str]) -> dict[str, str]:
    """A name for tables for each attacker NAME:KEY=VALUE,…: short, no two alike, without folders and secrets."""
    out: dict[str, str] = {}
    for text in dict.fromkeys(specs):
        name, given = _shown(text)
        title = _spelled(name, given)
        if len(title) > LONGEST:  # what tells it from the others of its name
            kin = [other for spec in specs if spec != text for kind, other in [_shown(spec)] if kind == name]
            title = _spelled(name, {k: v for k, v in given.items() if any(one.get(k) != v for one in kin)})
        if len(title) > LONGEST or title in out.values():
            title = f"{name}:{digest(text)[:6]}"
        out[text] = title
    return out


def shareable(text: str) -> str:
    """An attacker's specification without folders of this machine and secrets; "auto" is none."""
    return text if text == "auto" else _spelled(*_shown(text))


def in_region(bench: Bench, rows: NDArray[np.int64], faces: Faces, change: Callable[[Faces], Images]) -> Faces:
    """Faces with the replaced square changed once more."""
    part = bench.part(rows, faces.images)
    return part.with_regions(change(part.regions()))


def _shown(text: str) -> tuple[str, dict[str, str]]:
    name, given = parse_spec(text)
    secret = {field.name for field, limits in REVERSERS[name].parameters() if limits["secret"]}
    return name, {key: without_folder(value) for key, value in given.items() if key.replace("-", "_") not in secret}


def _spelled(name: str, given: dict[str, str]) -> str:
    told = ",".join(f"{key}={value}" for key, value in given.items())
    return f"{name}:{told}" if told else name


def _compressed(bench: Bench, subject: Subject, method: Anonymizer, rows: NDArray[np.int64]) -> list[Attempt]:
    """What JPEG files leave to the attackers made for the method, who learn from JPEG files too, and to its key."""
    probes, out = _as_jpeg(subject.anonymised(rows)), []
    if method.traits.keyed:
        out.append(Attempt("right key", rows, in_region(bench, rows, probes, method.invert)))
    try:
        learners = opponents(bench, subject, method, "compressed")
    except (NotApplicable, Refused):
        if not out:
            raise
        return out
    return [*out, *(Attempt(one.title, rows, in_region(bench, rows, probes, one.guess)) for one in learners)]


def _as_jpeg(faces: Faces) -> Faces:
    """The faces as they come back from JPEG files."""
    jpeg, nothing = Jpeg(quality=QUALITY), np.random.default_rng(0)
    return faces.with_images(np.stack([jpeg.apply(image, image, nothing) for image in faces.images]))


def _reversers(bench: Bench, method: Anonymizer, kind: Attacker) -> list[tuple[str, Reverser]]:
    """(name for tables, reverser) of a kind of scenario."""
    if kind == "background":
        named = [name for name in REVERSERS if method.name in REVERSERS[name].traits.against]
        specs = [name for name in named if "background" in REVERSERS[name].traits.knowledge]
    elif kind in ("specialised", "compressed"):
        specs = _specialised(bench, method)
    elif kind in ("retrieval", "closed retrieval"):
        specs = [*bench.general, *_specialised(bench, method)]
    else:
        specs = list(bench.general)
    names = titles([*bench.general, *(text for text in bench.specialised if text != "auto"), *specs])
    made = [(names[text], _made(text, method)) for text in dict.fromkeys(specs)]
    if kind in ("closed", "closed retrieval", "compressed"):
        made = [one for one in made if "pairs" in one[1].traits.knowledge]
    if kind in ("retrieval", "closed retrieval"):
        made = [one for one in made if one[1].traits.several]
    if bench.lessons is None:
        return made
    origin = bench.lessons.source["name"]
    return [(f"{title}: learnt on {origin}" if one.traits.knowledge & {"pairs"} else title, one) for title, one in made]


def _specialised(bench: Bench, method: Anonymizer) -> list[str]:
    """Attackers made for the method; those that train a network take long and come only where they are named."""
    if "auto" not in bench.specialised:
        return list(bench.specialised)
    return [
        name
        for name in REVERSERS
        if method.name in REVERSERS[name].traits.against
        and not REVERSERS[name].traits.knowledge & {"background", "key"}
        and not issubclass(REVERSERS[name], Learned)
    ]


def _made(text: str, method: Anonymizer) -> Reverser:
    """The reverser; one that knows the method's parameters, such as k, takes those it shares from it."""
    name, given = parse_spec(text)
    made = REVERSERS.make(name, **given)
    if "parameters" not in made.traits.knowledge:
        return made
    shared = {field.name for field, _ in made.parameters()} & {field.name for field, _ in method.parameters()}
    return dataclasses.replace(made, **{name: getattr(method, name) for name in shared - set(given)})


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


def _averaged(subject: Subject, method: Anonymizer, rows: NDArray[np.int64]) -> Faces:
    if not method.traits.stochastic:
        raise NotApplicable(f"{method.name} draws nothing: all its results of one image are alike")
    total = np.zeros_like(subject.clear(rows).images, dtype=np.float32)
    for draw in range(DRAWS):
        seeded: Any = method
        total += subject.anonymised(rows, dataclasses.replace(seeded, seed=seeded.seed + draw)).images
    return subject.clear(rows).with_images(np.rint(total / DRAWS).astype(np.uint8))
