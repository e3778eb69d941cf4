"""Participants' answers: read, checked against the key, refused where attention checks failed or questions are open."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ficgan.errors import InputError
from ficgan.lab.annotation.records import read_json
from ficgan.lab.survey.key import Item, Key, Questionnaire
from ficgan.lab.survey.page import ANSWERS_SCHEMA

__all__ = ["ANSWERS", "Collected", "Participant", "Votes", "collect", "read_answers", "votes"]

ANSWERS = ("yes", "no", "unsure")
Reason = Literal["damaged", "repeated", "unfinished", "checks"]


@dataclass(frozen=True)
class Participant:
    """One person's answers.

    Args:
        file: where they were read.
        code: who it is.
        questionnaire: which questions.
        answers: item → one of `ANSWERS`.
        seconds: item → seconds, as the page says.
    """

    file: str
    code: str
    questionnaire: Questionnaire
    answers: dict[str, str]
    seconds: dict[str, float]

    @property
    def finished(self) -> bool:
        """Whether every question has an answer."""
        return len(self.answers) == len(self.questionnaire.items)

    @property
    def failures(self) -> list[str]:
        """Kinds of the attention checks that were answered wrongly; "not sure" is wrong."""
        checks = [item for item in self.questionnaire.items if item.check]
        right = {True: "yes", False: "no"}
        return [item.check for item in checks if self.answers.get(item.id) not in (None, right[item.same])]


@dataclass(frozen=True)
class Refused:
    """A file that does not count, why in a word and in a sentence."""

    file: str
    reason: Reason
    sentence: str


@dataclass
class Collected:
    """What came of all files: participants who count, and files that do not."""

    accepted: list[Participant] = field(default_factory=list)
    refused: list[Refused] = field(default_factory=list)

    def summary(self) -> dict[str, Any]:
        """Who counts and who does not, JSON-ready."""
        told = Counter(one.reason for one in self.refused)
        asked = Counter(one.questionnaire.token for one in self.accepted)
        return {
            "accepted": len(self.accepted),
            "refused": {reason: told[reason] for reason in ("checks", "unfinished", "repeated", "damaged")},
            "by_questionnaire": dict(sorted(asked.items())),
            "refusals": [{"file": Path(one.file).name, "reason": one.sentence} for one in self.refused],
        }


def collect(key: Key, files: Sequence[Path]) -> Collected:
    """Read answers, in the order in which they came in: of two by one code the first finished one counts.

    Args:
        key: of the survey.
        files: what pages have saved.
    """
    out, seen = Collected(), dict[str, str]()
    for path in files:
        try:
            one = read_answers(key, path)
        except InputError as error:
            out.refused.append(Refused(str(path), "damaged", str(error)))
            continue
        reason, why = _fault(one, key, seen)
        if reason is not None:
            out.refused.append(Refused(one.file, reason, f"{path} {why}"))
        else:
            out.accepted.append(one)
        if reason is None or reason == "checks":  # nobody tries again until the checks are passed
            seen.setdefault(one.code, one.file)
    return out


def read_answers(key: Key, path: Path) -> Participant:
    """One file of answers, checked against the key.

    Raises:
        InputError: no such file, of another survey, without consent, or with answers that the page does not write.
    """
    raw = read_json(path)
    if not isinstance(raw, dict) or raw.get("schema") != ANSWERS_SCHEMA:
        raise InputError(f"{path} holds no answers ({ANSWERS_SCHEMA}); hand in what the page saved")
    asked = next((one for one in key.questionnaires if one.token == raw.get("questionnaire")), None)
    if asked is None:
        raise InputError(f"{path} is of questionnaire {raw.get('questionnaire')!r}, which is not of this survey")
    code, rows = raw.get("participant"), raw.get("answers")
    if not isinstance(code, str) or not code.strip() or raw.get("consent") is not True:
        raise InputError(f"{path} says not who answered, or not that they agreed; leave it out")
    known, given, seconds = {item.id for item in asked.items}, dict[str, str](), dict[str, float]()
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise InputError(f"{path} has no list of answers; hand in what the page saved")
    for row in rows:
        item, word, time = row.get("item"), row.get("answer"), row.get("seconds", 0)
        if not isinstance(item, str) or item not in known or item in given or word not in ANSWERS:
            raise InputError(f"{path} answers {item!r} with {word!r}, which the page cannot; leave it out")
        given[item] = word
        seconds[item] = float(time) if isinstance(time, int | float) and 0 <= time < float("inf") else 0.0
    return Participant(str(path), code.strip(), asked, given, seconds)


def _fault(one: Participant, key: Key, seen: dict[str, str]) -> tuple[Reason | None, str]:
    if one.code in seen:
        return "repeated", f"is by {one.code}, whose answers are in {Path(seen[one.code]).name}; nobody counts twice"
    if len(one.failures) > key.rules.failures:
        checks = sum(bool(item.check) for item in one.questionnaire.items)
        return "checks", f"fails {len(one.failures)} of {checks} attention checks; {key.rules.failures} may be failed"
    if not one.finished:
        return "unfinished", f"answers {len(one.answers)} of {len(one.questionnaire.items)} questions; it is left out"
    return None, ""


@dataclass(frozen=True)
class Votes:
    """V answers to the pairs of one condition.

    Args:
        participant: int64 [V], from 0 among all who count.
        pair: int64 [V], rows of `items`.
        answer: int64 [V], indices of `ANSWERS`.
        items: the M pairs as they are shown; one question stands for those of all questionnaires.
        participants: how many count in the whole survey.
    """

    participant: NDArray[np.int64]
    pair: NDArray[np.int64]
    answer: NDArray[np.int64]
    items: tuple[Item, ...]
    participants: int

    def __len__(self) -> int:
        return len(self.answer)

    @property
    def same(self) -> NDArray[np.bool_]:
        """[M] whether a pair shows one person."""
        return np.array([item.same for item in self.items], bool)


def votes(key: Key, people: Sequence[Participant], label: str) -> Votes:
    """The answers to the pairs of a condition; pairs that nobody answered are not among them."""
    items: dict[int, tuple[int, Item]] = {}
    rows: list[tuple[int, int, int]] = []
    for number, one in enumerate(people):
        for item in one.questionnaire.items:
            if item.condition == label and not item.check and item.id in one.answers:
                row, _ = items.setdefault(item.pair, (len(items), item))
                rows.append((number, row, ANSWERS.index(one.answers[item.id])))
    table = np.array(rows, np.int64).reshape(-1, 3)
    return Votes(table[:, 0], table[:, 1], table[:, 2], tuple(item for _, item in items.values()), len(people))
