"""What `ficgan-eval run` is told: sets, methods, scenarios, recognisers, checked before anything is read."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, model_validator

from ficgan.anonymizers import ANONYMIZERS, Anonymizer
from ficgan.lab.attacks import REVERSERS
from ficgan.lab.scenarios import get_scenarios
from ficgan.registry import parse_spec
from ficgan.yaml_settings import check, read_tree

__all__ = ["MatrixConfig", "MethodConfig", "SetConfig", "SplitConfig", "load_matrix", "without_folder"]

_PAGE = "docs/evaluation.md"
_FILES = ("folder", "checkpoint", "bank", "file")
"""Parameters that name a file or folder."""


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
    """One face set."""

    name: str
    path: str
    layout: str = "auto"
    labels: str | None = None
    identity: str | None = None
    """Regular expression whose group is the person, for sets that say it in file names."""
    limit_people: int | None = Field(None, ge=2)
    images_per_person: int | None = Field(None, ge=2)
    size: int = Field(128, ge=32)
    """Side of the crops, pixels."""
    context: float = Field(1.0, ge=1, le=4)
    """Side of the crop over the side of the square that is replaced; above 1 there are surroundings."""
    aligned: bool = False
    """The images are already aligned as the default template; nothing is detected."""
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
    """An anonymiser and its parameters."""

    method: str
    label: str | None = None
    parameters: dict[str, Any] = {}

    @model_validator(mode="before")
    @classmethod
    def _short(cls, given: Any) -> Any:
        if isinstance(given, str):
            name, parameters = parse_spec(given)
            return {"method": name, "parameters": parameters}
        if isinstance(given, dict) and "parameters" not in given:
            given = dict(given)
            known = {key: given.pop(key) for key in ("method", "label") if key in given}
            return {**known, "parameters": given}
        return given

    def make(self) -> Anonymizer:
        """The anonymiser.

        Raises:
            UsageError: an unknown method or parameter.
        """
        return ANONYMIZERS.make(self.method, **self.parameters)

    @property
    def shown(self) -> dict[str, Any]:
        """The parameters without keys and without folders of this machine."""
        limits = {}
        if self.method in ANONYMIZERS:
            limits = {field.name: known for field, known in ANONYMIZERS[self.method].parameters()}
        told = {key: value for key, value in self.parameters.items() if not limits.get(key, {}).get("secret")}
        if told.get("command"):  # it may hold what is nobody's business: the program's name is enough
            told["command"] = str(told["command"]).split()[0]
        return {key: without_folder(value) for key, value in told.items()}

    @property
    def title(self) -> str:
        """How tables call it."""
        if self.label:
            return self.label
        told = ", ".join(f"{key} {value}" for key, value in self.shown.items())
        return f"{self.method} ({told})" if told else self.method


class MatrixConfig(_Frozen):
    """A matrix of sets × methods × scenarios × recognisers."""

    title: str = "Evaluation"
    sets: list[SetConfig] = Field(min_length=1)
    methods: list[MethodConfig] = Field(min_length=1)
    scenarios: list[str] = ["clear", "constant", "naive", "parrot-enrol"]
    recognisers: list[str] = Field(["dlib"], min_length=1)
    """Judges: dlib, insightface, shape, onnx:PATH; none of them may have trained a model that is judged."""
    detector: str = "auto"
    general: list[str] = ["ridge"]
    """Reversers that know nothing of the method; parameters as NAME:KEY=VALUE,…"""
    specialised: list[str] = ["auto"]
    """Reversers made for a method; auto: all that were made for it and train no network."""
    reversal_metrics: bool = True
    """How far what attackers give back resembles the clear faces: PSNR, SSIM, LPIPS-like, FD-like, IDD."""
    candidates: int = Field(10, ge=1)
    """Guesses at each probe in the scenarios retrieval and retrieval-closed; 50 in the paper."""
    retrieval_probes: int = Field(60, ge=2)
    """At most so many probes are guessed at several times, spread over people."""
    retrain: str = Field("head", pattern="^(head|network)$")
    """parrot-train: a linear map on the recogniser's embeddings, or the whole network (onnx only)."""
    utility: bool = True
    attributes: str | None = None
    """A trained attribute classifier, see `ficgan train-attributes`."""
    groups: list[str] = ["gender", "age", "race", "ethnicity"]
    """Columns by which figures are broken down, where a set has them."""
    resamples: int = Field(1000, ge=1)
    pictures: int = Field(0, ge=0, le=64)
    """Examples per method written as PNG. They show real faces unless the set does not."""
    seed: int = 0

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
    """Read and check a matrix; relative paths in it count from the file's folder.

    Args:
        path: a YAML file. Configurations that come with the package have no sets: `papers.bench.with_data`.

    Raises:
        UsageError: unreadable, an unknown key, method, parameter or scenario.
    """
    config = check(MatrixConfig, read_tree(path, see=_PAGE), where=str(path), see=_PAGE)
    get_scenarios(config.scenarios)
    config = _resolved(config, Path(path).resolve().parent)
    for method in config.methods:
        method.make()
    for text in (*config.general, *(text for text in config.specialised if text != "auto")):
        name, parameters = parse_spec(text)
        REVERSERS.make(name, **parameters)
    return config


def _resolved(config: MatrixConfig, folder: Path) -> MatrixConfig:
    def at(text: str | None) -> str | None:
        return None if text is None else str(folder / Path(text).expanduser())

    def named(text: str) -> str:
        kind, colon, file = text.partition(":")
        return f"{kind}:{at(file)}" if colon and kind == "onnx" else text

    def placed(one: SetConfig) -> SetConfig:
        other = None if one.learn_from is None else placed(one.learn_from)
        return one.model_copy(update={"path": at(one.path), "labels": at(one.labels), "learn_from": other})

    sets = [placed(one) for one in config.sets]
    attackers = {key: [_attacker(text, at) for text in getattr(config, key)] for key in ("general", "specialised")}
    judges = [named(name) for name in config.recognisers]
    methods = [one.model_copy(update={"parameters": _placed(one.parameters, named, at)}) for one in config.methods]
    update = {"sets": sets, "recognisers": judges, "attributes": at(config.attributes), "methods": methods}
    update |= attackers
    return config.model_copy(update=update)


def _attacker(text: str, at: Callable[[str | None], str | None]) -> str:
    """An attacker whose parameters name files, from the folder of the matrix."""
    if ":" not in text:
        return text
    name, given = parse_spec(text)
    told = ",".join(f"{key}={at(value) if key in _FILES else value}" for key, value in given.items())
    return f"{name}:{told}"


def _placed(
    parameters: dict[str, Any], named: Callable[[str], str], at: Callable[[str | None], str | None]
) -> dict[str, Any]:
    """Parameters that name files, from the folder of the matrix."""
    out = dict(parameters)
    for key in _FILES:
        if out.get(key):
            out[key] = at(out[key])
    if isinstance(out.get("verifier"), str):
        out["verifier"] = "+".join(named(part) for part in out["verifier"].split("+"))
    return out
