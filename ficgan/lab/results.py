"""What an evaluation writes down: figures, flat, from which tables, plots and pages are made; and its caveats."""

from __future__ import annotations

import json
import platform
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml

from ficgan import __version__
from ficgan.lab.pages import read_checked
from ficgan.lab.run import write_file

SCHEMA = 2
_TITLES = ("title", "label", "licence", "identity")  # Texts in which a / divides no folders


@dataclass(frozen=True)
class Figure:
    """One number."""

    metric: str
    value: float | None  # None where it is refused or cannot be had; `note` says why
    # low, high: 95 % interval; None where there is none
    low: float | None = None
    high: float | None = None
    n: int = 0  # Of how many (identities, scores, images): `unit` says which
    unit: str = "identities"
    note: str = ""


@dataclass(frozen=True)
class Trial:
    """One attacker against one anonymiser on one set, read by one recogniser."""

    set: str
    method: str
    scenario: str
    recogniser: str
    attacker: str = ""  # What was done before recognition: "" nothing, else the reverser
    figures: tuple[Figure, ...] = ()
    # "gender=Female" → figures of the probes of this group
    groups: dict[str, tuple[Figure, ...]] = field(default_factory=dict)
    control: str = ""  # "ceiling", "positive", "negative", "surroundings", "codes" (hidden from outsiders); "": attack


@dataclass(frozen=True)
class Utility:
    """What an anonymiser left of one set."""

    set: str
    method: str
    figures: tuple[Figure, ...] = ()


@dataclass
class Results:
    """A whole evaluation: facts of sets and methods by name, trials, utilities, and pictures beside it."""

    title: str
    caveats: list[str] = field(default_factory=list)
    provenance: dict[str, Any] = field(default_factory=dict)
    sets: dict[str, dict[str, Any]] = field(default_factory=dict)
    methods: dict[str, dict[str, Any]] = field(default_factory=dict)
    trials: list[Trial] = field(default_factory=list)
    utilities: list[Utility] = field(default_factory=list)
    pictures: dict[str, list[str]] = field(default_factory=dict)

    def methods_without_a_figure(self) -> dict[str, str]:
        """Label → why, of methods of which no attacker's rank-1 is known: they look safe and are only unknown."""
        out = {}
        for label in self.methods:
            trials = [trial for trial in self.trials if trial.method == label]
            figures = [figure for trial in trials for figure in trial.figures if figure.metric == "rank-1"]
            if all(figure.value is None for figure in figures):
                out[label] = next((figure.note for figure in figures if figure.note), "no scenario applies to it")
        return out

    def to_json(self) -> str:
        """As text; numbers that are not finite are refused, they are `None` with a note."""
        tree = {"schema": SCHEMA, **asdict(self)}
        return json.dumps(tree, allow_nan=False, ensure_ascii=False, separators=(",", ":"))

    def write(self, path: Path) -> Path:
        return write_file(path, self.to_json())

    @classmethod
    def read(cls, path: Path) -> Results:
        """The results in a file."""
        return read_checked(path, cls, (SCHEMA,), "name a finished evaluation's folder or its results.json")


def without_folder(tree: Any) -> Any:
    """JSON whose paths are cut to the names of the files: onnx:/home/me/v.onnx → onnx:v.onnx; titles stay."""
    if isinstance(tree, dict):
        return {key: value if key in _TITLES else without_folder(value) for key, value in tree.items()}
    if isinstance(tree, (list, tuple)):
        return [without_folder(value) for value in tree]
    if isinstance(tree, Path):
        return tree.name
    return re.sub(r"[^:+=,]*/", "", tree) if isinstance(tree, str) else tree


def slug(title: str) -> str:
    """A title as the name of a file, an option or an anchor: small letters, digits and hyphens."""
    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")


def origin(settings: Any, seconds: float) -> dict[str, Any]:
    """Where results come from; `settings` lose the folders of this machine."""
    return {
        "ficgan": __version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "settings": without_folder(settings),
        "seconds": round(seconds, 1),
    }


# -- what the figures of a report do not say --------------------------------------------------------------------------

FEW_PEOPLE = 300  # People of the test set of the Fantômas protocol


def notes(kind: str, holds: Mapping[str, object], **values: Any) -> list[str]:
    """The sentences of `notes.yaml` of this kind that hold, with their gaps filled."""
    texts = _texts()[kind]
    return [texts[name].format(**values) for name, true in holds.items() if true]


def note_texts(kind: str) -> dict[str, str]:
    """All sentences of `notes.yaml` of this kind by name."""
    return _texts()[kind]


@cache
def _texts() -> dict[str, dict[str, str]]:
    text: dict[str, dict[str, str]] = yaml.safe_load(files("ficgan.lab").joinpath("notes.yaml").read_text("utf-8"))
    return text


def caveats(results: Results) -> list[str]:
    """The sentences that must be read with these results, whose own caveats do not count."""
    naive = {trial.set for trial in results.trials if trial.scenario == "naive"}
    kinds = {trial.set for trial in results.trials for figure in trial.figures if figure.metric == "within-kind"}
    out = notes("evaluation", {"within kind": kinds})
    for name, facts in results.sets.items():
        split, missed = facts["split"], facts["failures_to_acquire"]
        tested, removed = split["parts"]["probe"]["people"], split.get("duplicates_removed", 0)
        networks = sorted(_judges(results, name) - {"shape"})
        out += notes(
            "evaluation",
            {
                "no kind": name in naive - kinds,
                "few": tested < FEW_PEOPLE,
                "missed": missed,
                "repeated": removed,
                "one judge": len(networks) == 1,
            },
            name=name,
            tested=tested,
            missed=len(missed),
            all=len(missed) + facts["faces"],
            reasons="; ".join(f"{why} ({n})" for why, n in Counter(why for _, why in missed).most_common(3)),
            removed=removed,
            lost=split.get("people_lost_by_it", 0),
            judge=next(iter(networks), ""),
        )
    classifier = results.provenance.get("attribute_classifier") or {}
    families = {facts["family"] for facts in results.methods.values()}
    ours, judges = {facts["name"] for facts in results.methods.values()}, _judges(results)
    measured = any(t.control == "surroundings" and any(f.value is not None for f in t.figures) for t in results.trials)
    parrots = any(trial.scenario.startswith("parrot") for trial in results.trials)
    holds: dict[str, object] = {
        "classifier": classifier,
        **{family: family in families for family in ("adversarial", "differential privacy", "k-anonymity")},
        "ficgan": "ficgan" in ours,
        "gate judges": "dlib" in judges and ours & {"ficgan", "k-same-appearance"},
        "shape judges": "shape" in judges,
        "surroundings measured": measured,
        "surroundings unknown": parrots and not measured,
        **dict.fromkeys(("attackers", "strongest", "only faces"), True),
    }
    return out + notes("evaluation", holds, learnt=classifier.get("name") or classifier.get("set") or "an unnamed set")


def _judges(results: Results, name: str | None = None) -> set[str]:
    """The recognisers that read the clear faces, of one set or of all."""
    ceilings = (trial for trial in results.trials if trial.control == "ceiling")
    return {trial.recogniser for trial in ceilings if name in (None, trial.set)}
