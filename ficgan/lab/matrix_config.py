"""Settings of evaluations and of attackers' trainings: scenarios, sets, methods, judges; all of them checked."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from ficgan.anonymizers import ANONYMIZERS, Anonymizer
from ficgan.errors import UsageError
from ficgan.lab.attacks import REVERSERS
from ficgan.lab.attacks.learned import Learned
from ficgan.registry import parse_spec
from ficgan.yaml_settings import check, hint, override, read_tree

_MATRIX_PAGE, _ATTACK_PAGE = "docs/evaluation.md", "docs/attacks.md"
_FILES = ("folder", "checkpoint", "bank", "file")  # Parameters that name a file or folder

# -- scenarios --------------------------------------------------------------------------------------------------------

View = Literal["clear", "anonymised", "reversed", "surroundings", "inside", "inside anonymised", "constant"]
"""What a gallery or a probe shows. surroundings: the replaced square greyed; inside: all but that square greyed."""
Attacker = Literal[
    "",
    "general",
    "specialised",
    "mismatched",
    "background",
    "right key",
    "wrong key",
    "compressed",
    "fusion",
    "average",
    "inference",
    "closed",
    "retrieval",
    "closed retrieval",
    "identity probe",
]


@dataclass(frozen=True)
class Scenario:
    """One experiment.

    Args:
        attacker: what is done to probes before they are read.
        retrained: the recogniser has learnt from anonymised faces of other people.
        same_set: probes are compared with each other (linkability), not with a gallery.
        control: what the trial is a control for, see `Trial`.
    """

    name: str
    title: str
    gallery: View
    probe: View
    attacker: Attacker = ""
    retrained: bool = False
    same_set: bool = False
    knowledge: str = "nothing"
    control: str = ""
    source: str = ""


_ALL = (
    Scenario(
        "clear",
        "clear probes against a clear gallery: the ceiling of every other figure",
        "clear",
        "clear",
        control="ceiling",
        source="Fantômas §7.2",
    ),
    Scenario(
        "constant",
        "grey probes against a clear gallery: must be at chance",
        "clear",
        "constant",
        control="negative",
        source="negative control",
    ),
    Scenario("naive", "anonymised probes against a clear gallery", "clear", "anonymised", source="Newton et al. 2005"),
    Scenario(
        "reverse-naive",
        "clear probes against an anonymised gallery",
        "anonymised",
        "clear",
        source="Fawkes (Shan et al. 2020)",
    ),
    Scenario(
        "parrot-enrol",
        "anonymised probes against an anonymised gallery",
        "anonymised",
        "anonymised",
        knowledge="that it was anonymised, and how to repeat it",
        source="Newton et al. 2005; Fantômas §2.1",
    ),
    Scenario(
        "parrot-train",
        "the same, by a recogniser retrained on anonymised faces of other people",
        "anonymised",
        "anonymised",
        retrained=True,
        knowledge="anonymised faces with identities",
        source="McPherson et al. 2016; Fantômas §2.1",
    ),
    Scenario(
        "parrot-inside",
        "parrot-enrol with all but the replaced square greyed",
        "inside anonymised",
        "inside anonymised",
        knowledge="that it was anonymised, and how to repeat it",
    ),
    Scenario(
        "background-only",
        "only what surrounds the replaced square, gallery and probe",
        "surroundings",
        "surroundings",
        control="surroundings",
        source="control for every parrot figure",
    ),
    Scenario(
        "reversed-general",
        "probes reversed by an attacker that learnt from pairs, whatever the method",
        "clear",
        "reversed",
        "general",
        knowledge="pairs of clear and anonymised faces",
        source="Fantômas §4.3",
    ),
    Scenario(
        "reversed-specialised",
        "probes reversed by attackers made for this method",
        "clear",
        "reversed",
        "specialised",
        knowledge="the method and its parameters",
        source="Fantômas §6.2",
    ),
    Scenario(
        "mismatched",
        "as reversed-general, learnt at another strength of the method",
        "clear",
        "reversed",
        "mismatched",
        knowledge="pairs made with other parameters",
        source="Fantômas E4.1",
    ),
    Scenario(
        "right-key",
        "keyed methods inverted with the right key: must be at the ceiling",
        "clear",
        "reversed",
        "right key",
        knowledge="the key",
        control="positive",
    ),
    Scenario(
        "wrong-key",
        "keyed methods inverted with a wrong key",
        "clear",
        "reversed",
        "wrong key",
        knowledge="the method, not its key",
    ),
    Scenario(
        "reversed-closed",
        "as reversed-general, learnt from other photos of half of the victims, too",
        "clear",
        "reversed",
        "closed",
        knowledge="pairs, among them the enrolled photos of half of the people",
        source="Revelio §5.1 (closed world)",
    ),
    Scenario(
        "compressed",
        "as reversed-specialised and right-key, from JPEG files of quality 75",
        "clear",
        "reversed",
        "compressed",
        knowledge="the method and its parameters",
        source="lossy files break exact inversion",
    ),
    Scenario(
        "background-known",
        "reversed by subtraction, with the background set known",
        "clear",
        "reversed",
        "background",
        knowledge="the background set",
    ),
    Scenario(
        "linkability",
        "all anonymised images against one another: which show one person?",
        "anonymised",
        "anonymised",
        same_set=True,
        source="Gomez-Barrero et al. 2018; WP216",
    ),
    Scenario(
        "multi-frame",
        "an identity's anonymised probes fused into one",
        "clear",
        "anonymised",
        "fusion",
        knowledge="which probes belong together, as in a film",
    ),
    Scenario(
        "averaged-draws",
        "eight anonymisations of each probe averaged",
        "clear",
        "anonymised",
        "average",
        knowledge="repeated draws of one image",
    ),
    Scenario(
        "attribute-inference",
        "attributes read by a classifier trained on anonymised faces of other people",
        "anonymised",
        "anonymised",
        "inference",
        knowledge="anonymised faces with attributes",
        source="WP216",
    ),
    Scenario(
        "retrieval",
        "several guesses at each of some probes vote for a name, or say that it is a stranger's",
        "clear",
        "reversed",
        "retrieval",
        knowledge="pairs of clear and anonymised faces",
        source="Revelio §4.3",
    ),
    Scenario(
        "retrieval-closed",
        "the same, learnt from other photos of half of the victims, too",
        "clear",
        "reversed",
        "closed retrieval",
        knowledge="pairs, among them the enrolled photos of half of the people",
        source="Revelio §5.1, §5.5",
    ),
    Scenario(
        "identity-probe",
        "what a classifier reads of the identity in a method's own code of the rest",
        "clear",
        "anonymised",
        "identity probe",
        knowledge="the model and its codes",
        source="FICGAN §4.3",
    ),
)
SCENARIOS: dict[str, Scenario] = {scenario.name: scenario for scenario in _ALL}
"""By name, in the order in which they are run: the naive trial comes before those that are compared with it."""


def get_scenarios(names: Sequence[str]) -> list[Scenario]:
    """Scenarios by name, in their own order; "all" is all of them."""
    if "all" in names:
        return list(_ALL)
    for name in names:
        if name not in SCENARIOS:
            raise UsageError(f"there is no scenario {name!r}; {hint(name, SCENARIOS)}")
    return [scenario for scenario in _ALL if scenario.name in names]


# -- evaluations ------------------------------------------------------------------------------------------------------


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class SplitConfig(_Frozen):
    """Sizes in people, as in Fantômas §7.3; scaled down together where a set has fewer."""

    background: int = Field(200, ge=0)
    attacker: int = Field(4500, ge=0)
    test: int = Field(300, ge=2)
    enrolment: float = Field(0.75, gt=0, lt=1)
    seed: int = 0


class SetConfig(_Frozen):
    name: str
    path: str
    layout: str = "auto"
    labels: str | None = None
    identity: str | None = None  # Regular expression whose group is the person, for sets that say it in file names
    limit_people: int | None = Field(None, ge=2)
    images_per_person: int | None = Field(None, ge=2)
    size: int = Field(128, ge=32)  # Side of the crops, pixels
    context: float = Field(1.0, ge=1, le=4)
    """Side of the crop over the side of the square that is replaced; above 1 there are surroundings."""
    aligned: bool = False  # The images are already aligned as the default template; nothing is detected
    licence: str | None = None
    split: SplitConfig = SplitConfig()
    learn_from: SetConfig | None = None
    """Another set, of other people, whose faces attackers learn from instead of this one's attacker part; all of it is
    taken, cut like this set."""

    @model_validator(mode="after")
    def _cut_alike(self) -> SetConfig:
        other = self.learn_from
        if other is None:
            return self
        if other.learn_from is not None:
            raise ValueError("learn_from has a learn_from of its own; one is enough")
        for key in ("size", "context"):
            if key in other.model_fields_set and getattr(other, key) != getattr(self, key):
                raise ValueError(f"learn_from has another {key} than the set it is learnt for; leave it out")
        alike = other.model_copy(update={"size": self.size, "context": self.context})
        object.__setattr__(self, "learn_from", alike)
        return self


def without_folder(value: Any) -> Any:
    """A parameter that may name files, without their folders: onnx:/home/me/v.onnx → onnx:v.onnx."""
    return re.sub(r"[^\s:+=]*/", "", value) if isinstance(value, str) else value


class MethodConfig(_Frozen):
    method: str
    label: str | None = None
    parameters: dict[str, Any] = {}

    @model_validator(mode="before")
    @classmethod
    def _short(cls, given: Any) -> Any:
        return _sectioned(given, "method", "label")

    def make(self) -> Anonymizer:
        """The anonymiser."""
        return ANONYMIZERS.make(self.method, **self.parameters)

    @property
    def shown(self) -> dict[str, Any]:
        """The parameters without keys and without folders of this machine."""
        limits = {}
        if self.method in ANONYMIZERS:
            limits = {field.name: known for field, known in ANONYMIZERS[self.method].parameters()}
        public = {key: value for key, value in self.parameters.items() if not limits.get(key, {}).get("secret")}
        if public.get("command"):  # its arguments may be private: the program's name is enough
            public["command"] = str(public["command"]).split()[0]
        return {key: without_folder(value) for key, value in public.items()}

    @property
    def title(self) -> str:
        if self.label:
            return self.label
        spelled = ", ".join(f"{key} {value}" for key, value in self.shown.items())
        return f"{self.method} ({spelled})" if spelled else self.method


class MatrixConfig(_Frozen):
    """A matrix of sets × methods × scenarios × recognisers."""

    title: str = "Evaluation"
    sets: list[SetConfig] = Field(min_length=1)
    methods: list[MethodConfig] = Field(min_length=1)
    scenarios: list[str] = ["clear", "constant", "naive", "parrot-enrol"]
    recognisers: list[str] = Field(["dlib"], min_length=1)
    """Judges: dlib, insightface, shape, onnx:PATH, and `installed`, one of another make than dlib if the model folders
    hold one; none of them may have trained a model that is judged."""
    detector: str = "auto"
    general: list[str] = ["ridge"]  # Reversers that know nothing of the method; parameters as NAME:KEY=VALUE,…
    specialised: list[str] = ["auto"]
    """Reversers made for a method; auto: all that were made for it and train no network."""
    reversal_metrics: bool = True
    """How far what attackers give back resembles the clear faces: PSNR, SSIM, LPIPS-like, FD-like, IDD."""
    candidates: int = Field(10, ge=1)
    """Guesses at each probe in the scenarios retrieval and retrieval-closed; 50 in the paper."""
    retrieval_probes: int = Field(60, ge=2)  # At most so many probes are guessed at several times, spread over people
    retrain: str = Field("head", pattern="^(head|network)$")
    """parrot-train: a linear map on the recogniser's embeddings, or the whole network (onnx only)."""
    utility: bool = True
    attributes: str | None = None  # A trained attribute classifier, see `ficgan train-attributes`
    groups: list[str] = ["gender", "age", "race", "ethnicity"]
    """Columns by which figures are broken down, where a set has them."""
    resamples: int = Field(1000, ge=1)
    pictures: int = Field(0, ge=0, le=64)
    """Examples per method written as PNG. They show real faces unless the set does not."""
    seed: int = 0

    @property
    def named_attackers(self) -> list[str]:
        return [text for text in (*self.general, *self.specialised) if text != "auto"]

    @model_validator(mode="after")
    def _unique(self) -> MatrixConfig:
        for what, names in (("sets", [s.name for s in self.sets]), ("methods", [m.title for m in self.methods])):
            repeated = sorted({name for name in names if names.count(name) > 1})
            if repeated:
                raise ValueError(f"two {what} are called {repeated[0]!r}; give each another name or label")
        if "clear" in [method.title for method in self.methods]:
            raise ValueError("'clear' is the ceiling's name; label the method otherwise")
        return self


def load_matrix(path: str | Path) -> MatrixConfig:
    """Read and check a matrix; relative paths in it count from the file's folder."""
    config = check(MatrixConfig, read_tree(path, see=_MATRIX_PAGE), where=str(path), see=_MATRIX_PAGE)
    get_scenarios(config.scenarios)
    config = _resolved(config, Path(path).resolve().parent)
    for method in config.methods:
        method.make()
    for text in config.named_attackers:
        name, parameters = parse_spec(text)
        REVERSERS.make(name, **parameters)
    return config


def _sectioned(given: Any, name: str, *known: str) -> Any:
    if isinstance(given, str):
        kind, parameters = parse_spec(given)
        return {name: kind, "parameters": parameters}
    if isinstance(given, dict) and "parameters" not in given:
        head = {key: given[key] for key in (name, *known) if key in given}
        return {**head, "parameters": {key: value for key, value in given.items() if key not in head}}
    return given


def _resolved(config: MatrixConfig, folder: Path) -> MatrixConfig:
    def at(text: str | None) -> str | None:
        return None if text is None else str(folder / Path(text).expanduser())

    def judge(text: str) -> str:
        kind, colon, file = text.partition(":")
        return f"{kind}:{at(file)}" if colon and kind == "onnx" else text

    def attacker(text: str) -> str:
        if ":" not in text:
            return text
        name, given = parse_spec(text)
        return f"{name}:" + ",".join(f"{key}={at(value) if key in _FILES else value}" for key, value in given.items())

    def parameters(given: dict[str, Any]) -> dict[str, Any]:
        out: dict[str, Any] = {key: at(value) if key in _FILES and value else value for key, value in given.items()}
        if isinstance(out.get("verifier"), str):
            out["verifier"] = "+".join(judge(part) for part in out["verifier"].split("+"))
        return out

    def placed(one: SetConfig) -> SetConfig:
        other = None if one.learn_from is None else placed(one.learn_from)
        return one.model_copy(update={"path": at(one.path), "labels": at(one.labels), "learn_from": other})

    return config.model_copy(
        update={
            "sets": [placed(one) for one in config.sets],
            "methods": [m.model_copy(update={"parameters": parameters(m.parameters)}) for m in config.methods],
            "recognisers": [judge(name) for name in config.recognisers],
            "attributes": at(config.attributes),
            "general": [attacker(text) for text in config.general],
            "specialised": [attacker(text) for text in config.specialised],
        }
    )


# -- trainings of attackers -------------------------------------------------------------------------------------------


class AttackerConfig(_Frozen):
    """A learned attacker and its parameters; a text is NAME:PARAMETER=VALUE,…"""

    name: str
    parameters: dict[str, Any] = {}

    @model_validator(mode="before")
    @classmethod
    def _short(cls, given: Any) -> Any:
        return _sectioned(given, "name")


class AttackSet(SetConfig):
    """The set that is learnt from; where it lies comes from the command line."""

    name: str = ""
    path: str = ""

    @model_validator(mode="after")
    def _alone(self) -> AttackSet:
        if getattr(self, "learn_from", None) is not None:
            raise ValueError("learn_from is of evaluations; an attacker is trained on one set")
        return self

    def placed(self, path: Path, name: str, **more: Any) -> SetConfig:
        """The same for a folder or archive; what is None in `more` stays as it is."""
        given = {key: value for key, value in more.items() if value is not None}
        return SetConfig(**{**self.model_dump(), "path": str(path), "name": name, **given})


class AttackConfig(_Frozen):
    title: str = ""
    attacker: AttackerConfig
    anonymizer: MethodConfig
    set: AttackSet = AttackSet()
    detector: str = "auto"  # Finds the faces of sets that are not aligned
    seed: int = 0  # Of the attacker, where it has none of its own

    @field_validator("attacker", "anonymizer", mode="before")
    @classmethod
    def _something(cls, given: Any) -> Any:
        if not isinstance(given, (str, dict, AttackerConfig, MethodConfig)):
            raise ValueError("give a NAME, NAME:PARAMETER=VALUE,… or a section of them")
        return given

    def learner(self) -> Learned:
        """The attacker, untrained."""
        name = self.attacker.name
        cls = REVERSERS[name]
        if not issubclass(cls, Learned):
            raise UsageError(_needs_none(name, cls.traits.knowledge))
        made = REVERSERS.make(name, **{"seed": self.seed, **self.attacker.parameters})
        assert isinstance(made, Learned)
        return made

    def shareable(self) -> dict[str, Any]:
        """JSON-ready, without keys and without folders of this machine."""
        tree = self.model_dump(mode="json", exclude={"set", "anonymizer"})
        tree["attacker"]["parameters"] = {k: without_folder(v) for k, v in self.attacker.parameters.items()}
        hidden = {"path", "name", "labels", "identity"}
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

    config = check(AttackConfig, tree, where=where, see=_ATTACK_PAGE)
    config.learner()
    config.anonymizer.make()
    return config


def parameter_count(attacker: Learned) -> int:
    import torch

    with torch.device("meta"):
        return sum(parameter.numel() for parameter in attacker.network().parameters())


def _needs_none(name: str, knowledge: frozenset[Any]) -> str:
    trained = ", ".join(one for one in REVERSERS if issubclass(REVERSERS[one], Learned))
    how = (
        f"it learns within an evaluation, in a moment (`ficgan-eval run` with {name})"
        if knowledge & {"pairs", "background", "key"}
        else f"use it as it is (`ficgan-attack run {name} …`)"
    )
    return f"{name} has no network to train: {how}; what is trained is {trained}"


def _opened(place: str, given: Any) -> Any:
    if place not in ("attacker", "anonymizer") or not isinstance(given, str):
        return given
    name, parameters = parse_spec(given)
    return {"name" if place == "attacker" else "method": name, **parameters}
