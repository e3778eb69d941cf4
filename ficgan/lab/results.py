"""What an evaluation writes down: figures, flat, of which tables, plots and pages are made; caveats; files."""

from __future__ import annotations

import base64
import hashlib
import json
import platform
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cache
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any, TypeVar

import cv2
import numpy as np
import yaml
from numpy.typing import NDArray
from pydantic import TypeAdapter, ValidationError

from ficgan import __version__
from ficgan.errors import InputError
from ficgan.folders import read_json
from ficgan.lab.run import write_file

Model = TypeVar("Model")


def read_checked(path: Path, kind: type[Model], schemas: tuple[str | int, ...], otherwise: str) -> Model:
    """A JSON object of one of the schemas as a dataclass, checked by pydantic; `otherwise` says what else to do."""
    raw = read_json(path)
    if not isinstance(raw, dict) or raw.pop("schema", None) not in schemas:
        raise InputError(f"{path} is not of the schema {schemas[0]}; {otherwise}")
    try:
        return TypeAdapter(kind).validate_python(raw)
    except ValidationError as error:
        first = error.errors()[0]
        problem = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
        raise InputError(f"{path} is damaged ({problem}); {otherwise}") from None


def write_json(path: Path, tree: Any) -> None:
    write_file(path, json.dumps(tree, indent=1, ensure_ascii=False, allow_nan=False) + "\n")


def png(pixels: NDArray[np.uint8]) -> bytes:
    """[H,W,3] uint8 RGB as PNG, nothing in it but pixels."""
    return cv2.imencode(".png", cv2.cvtColor(pixels, cv2.COLOR_RGB2BGR))[1].tobytes()


def new_folder(folder: Path, *inside: str) -> None:
    """Make a folder for source faces and right answers, which only its owner can open, with folders inside."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise InputError(f"{folder} is not empty; the files of two runs must not mix: choose a new folder")
        folder.chmod(0o700)
        for name in inside:
            (folder / name).mkdir()
    except OSError as error:
        raise InputError(f"{folder} cannot be made ({error.strerror}); choose another folder") from error


def data_url(kind: str, file: bytes) -> str:
    """A file as an address within the page, such as of kind "image/png"."""
    return f"data:{kind};base64,{base64.b64encode(file).decode()}"


def page_template(package: str) -> str:
    """The `page.html` of a package."""
    return files(package).joinpath("page.html").read_text(encoding="utf-8")


def page_script(template: str) -> str:
    """The script of a page. What stands in it above `if (typeof document …)` is pure."""
    return template.partition("<script>")[2].partition("</script>")[0]


def fill_page(template: str, data: Any, **texts: str) -> str:
    """A page with its texts escaped, a digest of its only allowed script, and data in which "<" is an escape."""
    digest = base64.b64encode(hashlib.sha256(page_script(template).encode()).digest()).decode()
    plain = json.dumps(data).replace("<", "\\u003c")
    values = {name: escape(text) for name, text in texts.items()}
    values["script"] = f"sha256-{digest}"
    values["data"] = f'<script id="data" type="application/json">{plain}</script>'
    return re.sub(r"\{\{ (\w+) \}\}", lambda match: values[match[1]], template)


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


class Measured:
    """Something with figures, which are found by their metric."""

    figures: tuple[Figure, ...]

    def figure(self, metric: str) -> Figure | None:
        return next((each for each in self.figures if each.metric == metric), None)

    def value(self, metric: str) -> float | None:
        found = self.figure(metric)
        return None if found is None else found.value


@dataclass(frozen=True)
class Trial(Measured):
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
class Utility(Measured):
    """What an anonymiser left of one set."""

    set: str
    method: str
    figures: tuple[Figure, ...] = ()


@dataclass
class Results:
    """A whole evaluation: facts of sets and methods by name, trials, utilities."""

    title: str
    caveats: list[str] = field(default_factory=list)
    provenance: dict[str, Any] = field(default_factory=dict)
    sets: dict[str, dict[str, Any]] = field(default_factory=dict)
    methods: dict[str, dict[str, Any]] = field(default_factory=dict)
    trials: list[Trial] = field(default_factory=list)
    utilities: list[Utility] = field(default_factory=list)

    def methods_without_a_figure(self) -> dict[str, str]:
        """Label → why, of methods of which no attacker's rank-1 is known: they look safe and are only unknown."""
        out = {}
        for label in self.methods:
            ranks = [trial.figure("rank-1") for trial in self.trials if trial.method == label]
            if all(rank is None or rank.value is None for rank in ranks):
                out[label] = next((rank.note for rank in ranks if rank and rank.note), "no scenario applies to it")
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


FEW_PEOPLE = 300  # People of the test set of the Fantômas protocol


def notes(kind: str, holds: Mapping[str, object], **values: Any) -> list[str]:
    """The sentences of `notes.yaml` of this kind that hold, with their gaps filled."""
    texts = note_texts(kind)
    return [texts[name].format(**values) for name, true in holds.items() if true]


@cache
def note_texts(kind: str) -> dict[str, str]:
    """All sentences of `notes.yaml` of this kind by name."""
    return dict(yaml.safe_load(files("ficgan.lab").joinpath("notes.yaml").read_text("utf-8"))[kind])


def caveats(results: Results) -> list[str]:
    """The sentences that must be read with these results, whose own caveats do not count."""
    naive = {trial.set for trial in results.trials if trial.scenario == "naive"}
    kinds = {trial.set for trial in results.trials if trial.figure("within-kind")}
    out = notes("evaluation", {"within kind": kinds})
    for name, facts in results.sets.items():
        missed, tested = facts["failures_to_acquire"], facts["split"]["parts"]["probe"]["people"]
        networks = sorted(_judges(results, name) - {"shape"})
        holds: dict[str, object] = {
            "no kind": name in naive - kinds,
            "few": tested < FEW_PEOPLE,
            "missed": missed,
            "one judge": len(networks) == 1,
        }
        reasons = "; ".join(f"{why} ({n})" for why, n in Counter(why for _, why in missed).most_common(3))
        counts = {"tested": tested, "missed": len(missed), "all": len(missed) + facts["faces"]}
        out += notes("evaluation", holds, name=name, reasons=reasons, judge="".join(networks[:1]), **counts)
    classifier = results.provenance.get("attribute_classifier") or {}
    ours, judges = {facts["name"] for facts in results.methods.values()}, _judges(results)
    measured = any(t.control == "surroundings" and any(f.value is not None for f in t.figures) for t in results.trials)
    parrots = any(trial.scenario.startswith("parrot") for trial in results.trials)
    holds = {
        "classifier": classifier,
        "ficgan": "ficgan" in ours,
        "gate judges": "dlib" in judges and ours & {"ficgan", "k-same-appearance"},
        "shape judges": "shape" in judges,
        "surroundings measured": measured,
        "surroundings unknown": parrots and not measured,
        "attackers": True,
        "only faces": True,
    }
    return out + notes("evaluation", holds, learnt=classifier.get("name") or classifier.get("set") or "an unnamed set")


def _judges(results: Results, name: str | None = None) -> set[str]:
    """The recognisers that read the clear faces, of one set or of all."""
    ceilings = (trial for trial in results.trials if trial.control == "ceiling")
    return {trial.recogniser for trial in ceilings if name in (None, trial.set)}
