"""What an evaluation writes down: figure after figure, flat, so that tables, plots and pages are made of it alone."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ficgan.errors import InputError

__all__ = ["SCHEMA", "Figure", "Results", "Trial", "Utility", "from_json"]

SCHEMA = 1


@dataclass(frozen=True)
class Figure:
    """One number.

    Args:
        metric: name in the registry of metrics, such as "rank-1".
        value: None where it is refused or cannot be had; `note` says why.
        low, high: 95 % interval; None where there is none.
        n: of how many (identities, scores, images): `unit` says which.
        unit: what n counts.
        note: one sentence that must be read with it.
    """

    metric: str
    value: float | None
    low: float | None = None
    high: float | None = None
    n: int = 0
    unit: str = "identities"
    note: str = ""


@dataclass(frozen=True)
class Trial:
    """One attacker against one anonymiser on one set, read by one recogniser.

    Args:
        set: name of the face set.
        method: label of the anonymiser and its parameters; "clear" where nothing was done.
        scenario: name in the registry of scenarios.
        attacker: what was done before recognition: "" nothing, else the reverser or the fusion.
        recogniser: its name.
        figures: privacy metrics.
        curves: name → list of [x, y] points: "cmc", "roc", "det".
        groups: "gender=Female" → figures of the probes of this group.
        control: this trial is no attack but a control: "ceiling", "positive", "negative", "surroundings",
            "codes" (what nobody outside sees); else "".
    """

    set: str
    method: str
    scenario: str
    recogniser: str
    attacker: str = ""
    figures: tuple[Figure, ...] = ()
    curves: dict[str, list[list[float]]] = field(default_factory=dict)
    groups: dict[str, tuple[Figure, ...]] = field(default_factory=dict)
    control: str = ""


@dataclass(frozen=True)
class Utility:
    """What an anonymiser left of one set.

    Args:
        set, method: as in `Trial`.
        figures: utility metrics.
        groups: "gender=Female" → figures of the images of this group.
    """

    set: str
    method: str
    figures: tuple[Figure, ...] = ()
    groups: dict[str, tuple[Figure, ...]] = field(default_factory=dict)


@dataclass
class Results:
    """A whole evaluation.

    Attributes:
        title: of the report.
        caveats: sentences that stand before every table.
        provenance: versions, settings, digests of inputs and outputs, machine, seconds.
        sets: name → what it is: images, identities, split sizes and digest, licence, failures to acquire.
        methods: label → {"name", "title", "family", "source", "settings", "keyed", "stochastic", "domain", "strength"}.
        trials, utilities: the figures.
        pictures: label of method → PNG files relative to the results file, for contact sheets; may be empty.
    """

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
            figures = [one for t in self.trials if t.method == label for one in t.figures if one.metric == "rank-1"]
            if all(figure.value is None for figure in figures):
                out[label] = next((figure.note for figure in figures if figure.note), "no scenario applies to it")
        return out

    def to_json(self) -> str:
        """As text; numbers that are not finite are refused, they are `None` with a note."""
        tree = {"schema": SCHEMA, **asdict(self)}
        return json.dumps(tree, allow_nan=False, ensure_ascii=False, separators=(",", ":"))

    @classmethod
    def read(cls, path: Path) -> Results:
        """The results in a file.

        Raises:
            InputError: missing, damaged, or of another schema.
        """
        try:
            raw = json.loads(path.read_text(encoding="utf-8"))
            if not isinstance(raw, dict) or raw.pop("schema", None) != SCHEMA:
                raise InputError(f"{path} holds no results of schema {SCHEMA}; run the evaluation again")
            trials = [Trial(**from_json(trial)) for trial in raw.pop("trials")]
            utilities = [Utility(**from_json(one)) for one in raw.pop("utilities")]
            return cls(**raw, trials=trials, utilities=utilities)
        except FileNotFoundError:
            raise InputError(f"there is no {path}; name a finished evaluation's folder or its results.json") from None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InputError(f"{path} cannot be read as results of an evaluation ({error}); run it again") from error


def from_json(raw: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a `Trial` or a `Utility` as read from JSON."""
    figures = tuple(Figure(**figure) for figure in raw.get("figures", ()))
    groups = {name: tuple(Figure(**figure) for figure in some) for name, some in raw.get("groups", {}).items()}
    return {**raw, "figures": figures, "groups": groups}
