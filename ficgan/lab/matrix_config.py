"""Settings of evaluations and of attackers' trainings: scenarios, sets, methods, judges; all of them checked."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

import torch
import yaml
from pydantic import BaseModel, Field, model_validator

from ficgan.anonymizers import ANONYMIZERS, Anonymizer
from ficgan.config import check, hint, override, read_tree
from ficgan.errors import UsageError
from ficgan.lab.attacks import REVERSERS, reverser_of
from ficgan.lab.attacks.learned import Learned
from ficgan.lab.results import without_folder
from ficgan.registry import Registry, parse_spec

_MATRIX_PAGE, _ATTACK_PAGE = "docs/evaluation.md", "docs/attacks.md"
_FILES = ("folder", "checkpoint", "bank", "file")  # Parameters that name a file or folder
_TEXTS = ("title", "name", "label", "licence", "identity", "command")  # Keys whose values name none

# What a gallery or a probe shows. surroundings: the replaced square greyed; inside: all but that square greyed.
View = Literal["clear", "anonymised", "reversed", "surroundings", "inside", "inside anonymised", "constant"]
# What is done to probes before they are read
Attacker = Literal["", "general", "specialised", "right key", "average", "inference", "identity probe"]


@dataclass(frozen=True)
class Scenario:
    """One experiment."""

    name: str
    title: str
    gallery: View
    probe: View
    attacker: Attacker = ""
    retrained: bool = False  # The recogniser has learnt from anonymised faces of other people
    same_set: bool = False  # Probes are compared with each other (linkability), not with a gallery
    knowledge: str = "nothing"
    control: str = ""  # What the trial is a control for, see `Trial`
    source: str = ""


_TEXT = files("ficgan.lab").joinpath("scenarios.yaml").read_text("utf-8")
SCENARIOS: dict[str, Scenario] = {name: Scenario(name, **given) for name, given in yaml.safe_load(_TEXT).items()}


def get_scenarios(names: Sequence[str]) -> list[Scenario]:
    """Scenarios by name, in their own order; "all" is all of them."""
    if "all" in names:
        return list(SCENARIOS.values())
    for name in names:
        if name not in SCENARIOS:
            raise UsageError(f"there is no scenario {name!r}; {hint(name, SCENARIOS)}")
    return [scenario for name, scenario in SCENARIOS.items() if name in names]


class SplitConfig(BaseModel, frozen=True, extra="forbid"):
    """Sizes in people, as in Fantômas §7.3; scaled down together where a set has fewer."""

    background: int = Field(200, ge=0)
    attacker: int = Field(4500, ge=0)
    test: int = Field(300, ge=2)
    enrolment: float = Field(0.75, gt=0, lt=1)
    seed: int = 0


class SetConfig(BaseModel, frozen=True, extra="forbid"):
    name: str
    path: str
    layout: str = "auto"
    labels: str | None = None
    identity: str | None = None  # Regular expression whose group is the person, for sets that say it in file names
    limit_people: int | None = Field(None, ge=2)
    size: int = Field(128, ge=32)  # Side of the crops, pixels
    context: float = Field(1.0, ge=1, le=4)  # Side of the crop over that of the replaced square; more: surroundings
    aligned: bool = False  # The images are already aligned as the default template; nothing is detected
    licence: str | None = None
    split: SplitConfig = SplitConfig()
    # Another set, of other people, whose faces attackers learn from instead of this one's attacker part; all of it is
    # taken, cut like this set.
    learn_from: SetConfig | None = None


def public(registry: Registry[Any], name: str, given: dict[str, Any]) -> dict[str, Any]:
    """Parameters of a method or an attacker without secrets and folders, of a command the program's name alone."""
    limits = registry[name].parameters() if name in registry else ()
    secret = {field.name for field, known in limits if known["secret"]}
    shown = {key: value for key, value in given.items() if key.replace("-", "_") not in secret}
    if shown.get("command"):
        shown["command"] = str(shown["command"]).split()[0]
    return dict(without_folder(shown))


class MethodConfig(BaseModel, frozen=True, extra="forbid"):
    """An anonymiser and its parameters; a text is NAME:PARAMETER=VALUE,… or LABEL=NAME:PARAMETER=VALUE,…"""

    method: str
    label: str | None = None
    parameters: dict[str, Any] = {}

    @model_validator(mode="before")
    @classmethod
    def _short(cls, given: Any) -> Any:
        if isinstance(given, str):
            label, equals, spec = given.partition("=")
            named = bool(equals) and ":" not in label
            name, parameters = parse_spec(spec if named else given)
            return {"method": name, "parameters": parameters, "label": label.strip() if named else None}
        if isinstance(given, dict) and "parameters" not in given:
            head = {key: given[key] for key in ("method", "label") if key in given}
            return {**head, "parameters": {key: value for key, value in given.items() if key not in head}}
        return given

    def make(self) -> Anonymizer:
        """The anonymiser."""
        return ANONYMIZERS.make(self.method, **self.parameters)

    @property
    def shown(self) -> dict[str, Any]:
        """The parameters without keys and without folders of this machine."""
        return public(ANONYMIZERS, self.method, self.parameters)

    @property
    def title(self) -> str:
        if self.label:
            return self.label
        spelled = ", ".join(f"{key} {value}" for key, value in self.shown.items())
        return f"{self.method} ({spelled})" if spelled else self.method


class MatrixConfig(BaseModel, frozen=True, extra="forbid"):
    """A matrix of sets × methods × scenarios × recognisers."""

    title: str = "Evaluation"
    sets: list[SetConfig] = Field(min_length=1)
    methods: list[MethodConfig] = Field(min_length=1)
    scenarios: list[str] = ["clear", "constant", "naive", "parrot-enrol"]
    # Judges: dlib, insightface, shape, onnx:PATH; none of them may have trained a model that is judged.
    recognisers: list[str] = Field(["dlib"], min_length=1)
    detector: str = "auto"
    general: list[str] = ["ridge"]  # Reversers that know nothing of the method; parameters as NAME:KEY=VALUE,…
    specialised: list[str] = ["auto"]  # Reversers made for a method; auto: all made for it that train no network
    reversal_metrics: bool = True  # Likeness of what attackers give back: PSNR, SSIM, LPIPS, FID, IDD
    utility: bool = True
    attributes: str | None = None  # A trained attribute classifier, see `ficgan train-attributes`
    groups: list[str] = ["gender", "age", "race", "ethnicity"]  # Columns by which figures are broken down
    resamples: int = Field(1000, ge=1)
    seed: int = 0

    @property
    def named_attackers(self) -> list[str]:
        return [text for text in (*self.general, *self.specialised) if text != "auto"]

    @model_validator(mode="after")
    def _checked(self) -> MatrixConfig:
        get_scenarios(self.scenarios)
        for method in self.methods:
            method.make()
        for text in self.named_attackers:
            reverser_of(text)
        titles = ["clear", *(method.title for method in self.methods)]  # clear: the name of the ceiling
        for what, names in (("sets", [source.name for source in self.sets]), ("methods", titles)):
            repeated = sorted({name for name in names if names.count(name) > 1})
            if repeated:
                raise ValueError(f"two {what} are called {repeated[0]!r}; give each another name or label")
        return self


def load_matrix(path: str | Path) -> MatrixConfig:
    """Read and check a matrix; relative paths in it count from the file's folder."""
    folder = Path(path).resolve().parent
    tree = _resolved(read_tree(path, see=_MATRIX_PAGE), folder)
    config = check(MatrixConfig, tree, where=str(path), see=_MATRIX_PAGE)
    if config.attributes is not None:
        config = config.model_copy(update={"attributes": str(folder / Path(config.attributes).expanduser())})
    return config


def _resolved(tree: Any, folder: Path, key: str = "") -> Any:
    """A matrix as it was read, its paths counted from the folder: keys, FILE=PATH in a short form, and onnx:PATH."""
    if isinstance(tree, dict):
        return {name: _resolved(value, folder, name) for name, value in tree.items()}
    if isinstance(tree, list):
        return [_resolved(value, folder, key) for value in tree]
    if not isinstance(tree, str) or not tree or key in _TEXTS:
        return tree

    def at(text: str) -> str:
        return str(folder / Path(text).expanduser())

    if key in ("path", "labels", *_FILES):
        return at(tree)
    text = re.sub(rf"\b({'|'.join(_FILES)})=([^,]+)", lambda found: f"{found[1]}={at(found[2])}", tree)
    return re.sub(r"\bonnx:([^+,]+)", lambda found: f"onnx:{at(found[1])}", text)


class AttackSet(SetConfig):
    """The set that is learnt from; where it lies comes from the command line."""

    name: str = ""
    path: str = ""

    def placed(self, path: Path, name: str, **more: Any) -> SetConfig:
        """The same for a folder or archive; what is None in `more` stays as it is."""
        given = {key: str(v) if isinstance(v, Path) else v for key, v in more.items() if v is not None}
        return SetConfig(**{**self.model_dump(), "path": str(path), "name": name, **given})


class AttackConfig(BaseModel, frozen=True, extra="forbid"):
    title: str = ""
    attacker: dict[str, Any]  # Name of a learned attacker and its parameters
    anonymizer: MethodConfig
    set: AttackSet = AttackSet()
    detector: str = "auto"  # Finds the faces of sets that are not aligned
    seed: int = 0  # Of the attacker, where it has none of its own

    def learner(self) -> Learned:
        """The attacker, untrained."""
        name, given = self.attacker["name"], {key: value for key, value in self.attacker.items() if key != "name"}
        made = REVERSERS.make(name, **{"seed": self.seed, **given})
        assert isinstance(made, Learned)
        return made

    def shareable(self) -> dict[str, Any]:
        """JSON-ready, without keys and without folders of this machine."""
        tree = self.model_dump(mode="json", exclude={"set", "anonymizer"})
        tree["attacker"] = without_folder(self.attacker)
        hidden = {"path", "name", "labels"}
        shown = {"method": self.anonymizer.method, "label": self.anonymizer.label, **self.anonymizer.shown}
        return {**tree, "anonymizer": shown, "set": self.set.model_dump(mode="json", exclude=hidden)}


def load_attack(name_or_path: str | Path, overrides: Sequence[str] = ()) -> AttackConfig:
    """Read a configuration, apply overrides such as attacker.epochs=5, check everything."""
    tree = read_tree(name_or_path, kind="attack", see=_ATTACK_PAGE)
    tree = override(tree, overrides, example="attacker.epochs=5", opened=_opened)
    return parse_attack(tree, where=str(name_or_path))


def parse_attack(tree: dict[str, Any], *, where: str) -> AttackConfig:
    """Check a nested dictionary; every problem is one sentence that names the key."""
    import ficgan.lab  # noqa: F401 (knows all anonymisers)

    config = check(AttackConfig, {**tree, "attacker": _opened("attacker", tree.get("attacker", {}))}, where=where)
    if "name" not in config.attacker:
        raise UsageError(f"attacker.name is missing in {where}; see {_ATTACK_PAGE}")
    name = str(config.attacker["name"])
    if not issubclass(REVERSERS[name], Learned):
        trained = ", ".join(reverser for reverser in REVERSERS if issubclass(REVERSERS[reverser], Learned))
        raise UsageError(f"{name} has no network to train, use it as it is (ficgan-attack run {name}); {trained} have")
    config.learner()
    config.anonymizer.make()
    return config


def parameter_count(attacker: Learned) -> int:
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in attacker.network().parameters())


def _opened(place: str, given: Any) -> Any:
    """A section that was given as a text, so that one of its values may be overridden."""
    if place not in ("attacker", "anonymizer") or not isinstance(given, str):
        return given
    name, parameters = parse_spec(given)
    return {"name" if place == "attacker" else "method": name, **parameters}
