"""What `ficgan-attack train` is told: the attacker, what it attacks, on what kind of set; all of it checked."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, field_validator, model_validator

from ficgan.errors import UsageError
from ficgan.lab.attacks import REVERSERS
from ficgan.lab.attacks.learned import Learned
from ficgan.lab.matrix_config import MethodConfig, SetConfig, without_folder
from ficgan.registry import parse_spec
from ficgan.yaml_settings import check, override, read_tree

__all__ = ["AttackConfig", "AttackSet", "AttackerConfig", "load_attack", "parameter_count", "parse_attack"]

_PAGE = "docs/attacks.md"


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class AttackerConfig(_Frozen):
    """A learned attacker and its parameters; a text is NAME:PARAMETER=VALUE,…"""

    name: str
    parameters: dict[str, Any] = {}

    @model_validator(mode="before")
    @classmethod
    def _short(cls, given: Any) -> Any:
        if isinstance(given, str):
            name, parameters = parse_spec(given)
            return {"name": name, "parameters": parameters}
        if isinstance(given, dict) and "parameters" not in given:
            rest = {key: value for key, value in given.items() if key != "name"}
            return {**({"name": given["name"]} if "name" in given else {}), "parameters": rest}
        return given


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
    """One attacker, trained against one anonymiser."""

    title: str = ""
    attacker: AttackerConfig
    anonymizer: MethodConfig
    set: AttackSet = AttackSet()
    detector: str = "auto"
    """Finds the faces of sets that are not aligned."""
    seed: int = 0
    """Of the attacker, where it has none of its own."""

    @field_validator("attacker", "anonymizer", mode="before")
    @classmethod
    def _something(cls, given: Any) -> Any:
        if not isinstance(given, (str, dict, AttackerConfig, MethodConfig)):
            raise ValueError("give a NAME, NAME:PARAMETER=VALUE,… or a section of them")
        return given

    def learner(self) -> Learned:
        """The attacker, untrained.

        Raises:
            UsageError: unknown, a wrong parameter, or one that trains no network.
        """
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
    """Read a configuration, apply dotted overrides, check everything.

    Args:
        name_or_path: a name in `configs/attack/` or the path of a YAML file.
        overrides: "dotted.key=value" texts such as attacker.epochs=5; values are read as YAML.

    Raises:
        UsageError: no such file, unreadable, an unknown key, attacker, anonymiser or parameter.
    """
    tree = read_tree(name_or_path, kind="attack", see=_PAGE)
    tree = override(tree, overrides, example="attacker.epochs=5", opened=_opened)
    return parse_attack(tree, where=str(name_or_path))


def parse_attack(tree: dict[str, Any], *, where: str) -> AttackConfig:
    """Check a nested dictionary; every problem is one sentence that names the key.

    Raises:
        UsageError: an unknown key, attacker, anonymiser or parameter, or a value that cannot work.
    """
    import ficgan.lab  # noqa: F401 (knows all anonymisers)

    config = check(AttackConfig, tree, where=where, see=_PAGE)
    config.learner()
    config.anonymizer.make()
    return config


def parameter_count(attacker: Learned) -> int:
    """Weights of its network; none is allocated."""
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
    """A short form as a section, so that there is room for more."""
    if place not in ("attacker", "anonymizer") or not isinstance(given, str):
        return given
    name, parameters = parse_spec(given)
    return {"name" if place == "attacker" else "method": name, **parameters}
