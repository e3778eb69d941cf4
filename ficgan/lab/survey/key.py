"""The key of a survey: what each token stands for, and the right answers. It stays with the researcher."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ficgan.errors import InputError
from ficgan.lab.annotation.records import read_json, write_json
from ficgan.lab.survey.design import Rules

__all__ = ["KEY_SCHEMA", "Condition", "Item", "Key", "Picture", "Questionnaire", "read_key"]

KEY_SCHEMA = "ficgan-survey-key/1"


@dataclass(frozen=True)
class Condition:
    """What is done to one photo of each pair.

    Args:
        label: as a table says it.
        method: name and settings of the anonymiser, without keys; empty for the clear control.
        attacker: who reversed it; "": nobody.
    """

    label: str
    method: Mapping[str, Any] = field(default_factory=dict)
    attacker: str = ""


@dataclass(frozen=True)
class Picture:
    """A picture that is shown.

    Args:
        token: its file's name; random, since whoever knows the seed could else tell what it stands for.
        name: of the photo in its set.
        person: number in the set.
        condition: label; "" for photos that are clear in every condition.
        landmarks: 5 points, pixels of the picture: where recognisers read it.
    """

    token: str
    name: str
    person: int
    condition: str
    landmarks: tuple[tuple[float, float], ...]


@dataclass(frozen=True)
class Item:
    """A question.

    Args:
        id: what the page calls it.
        pair: its number; the same pair has it in all questionnaires. −1 for an attention check.
        condition: label; "" for an attention check.
        same: the right answer.
        left, right: tokens of pictures.
        check: kind of an attention check, else "".
        gender: of both people, "" where unknown or where they differ.
    """

    id: str
    pair: int
    condition: str
    same: bool
    left: str
    right: str
    check: str = ""
    gender: str = ""


@dataclass(frozen=True)
class Questionnaire:
    """What one participant is asked, in no telling order: each page shuffles it anew."""

    token: str
    items: tuple[Item, ...]


@dataclass(frozen=True)
class Key:
    """A whole survey.

    Args:
        rules: how it was drawn.
        source: facts of the face set, JSON-ready.
        conditions: in the order of tables.
        pictures: by token.
        questionnaires: by which participants are divided.
        notes: sentences that must be known.
    """

    rules: Rules
    source: Mapping[str, Any]
    conditions: tuple[Condition, ...]
    pictures: Mapping[str, Picture]
    questionnaires: tuple[Questionnaire, ...]
    notes: tuple[str, ...] = ()

    def write(self, path: Path) -> None:
        """Write the key, whole or not at all."""
        tree = asdict(self)
        write_json(path, {"schema": KEY_SCHEMA, **tree, "pictures": list(tree["pictures"].values())})


def read_key(path: Path) -> Key:
    """The key of `Key.write`.

    Raises:
        InputError: missing, damaged, or something else.
    """
    raw = read_json(path)
    if not isinstance(raw, dict) or raw.get("schema") != KEY_SCHEMA:
        raise InputError(f"{path} is no key of a survey ({KEY_SCHEMA}); name the folder that `survey make` wrote")
    try:
        rules = Rules(**{**raw["rules"], "match": tuple(raw["rules"]["match"])})
        pictures = [
            Picture(**{**one, "landmarks": tuple((float(x), float(y)) for x, y in one["landmarks"])})
            for one in raw["pictures"]
        ]
        asked = tuple(
            Questionnaire(one["token"], tuple(Item(**item) for item in one["items"])) for one in raw["questionnaires"]
        )
        conditions = tuple(Condition(**one) for one in raw["conditions"])
        return Key(rules, raw["source"], conditions, {one.token: one for one in pictures}, asked, tuple(raw["notes"]))
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise InputError(f"{path} is damaged ({error!r}); make the survey again") from error
