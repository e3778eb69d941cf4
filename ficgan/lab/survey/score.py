"""The answers of a survey, checked and counted, beside recognisers on the same pictures (Fantômas, appendix D).

"Not sure" counts as wrong. Intervals resample participants and pairs each by itself (the pigeonhole bootstrap of Owen
2007); at 0 or 1 they are Wilson's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import StringConstraints

from ficgan.anonymizers import Faces
from ficgan.errors import InputError
from ficgan.lab.metrics import Bootstrap, recentred
from ficgan.lab.pages import read_checked, text_table
from ficgan.lab.readers import Reader, paired
from ficgan.lab.results import Figure
from ficgan.lab.survey import ANSWERS_SCHEMA, KINDS, SurveyItem, SurveyKey

METRICS = ("F1", "F1 (pairs of one person)", "accuracy", "sensitivity", "specificity")
NOTES = (
    "Half of the pairs show one person: who always says yes has an accuracy of .5 and an F1 of .667, who tosses a coin "
    "an F1 of .5.",
    "The F1 over pairs of one person alone knows no false alarms: who always says yes has 1.",
    "Fantômas gives its F1 scores only as a plot (Figure 15), so no published numbers stand here.",
    "A recogniser reads the very pictures that people saw, at the threshold it came with, chosen on other faces; it "
    "cannot say that it is not sure.",
)
Booleans = NDArray[np.bool_]


class SurveyAnswers(NamedTuple):
    """Code of each participant who counts → id of the item → word; and a sentence about each file that does not."""

    accepted: dict[str, dict[str, str]]
    refused: list[str]


@dataclass(frozen=True)
class _Answer:
    item: str
    answer: str


@dataclass(frozen=True)
class _AnswersFile:
    questionnaire: str
    participant: Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]
    consent: Literal[True]
    answers: list[_Answer]


def collect(key: SurveyKey, files: Sequence[Path]) -> SurveyAnswers:
    """Read the files that pages have saved; the first finished file of a code counts."""
    out, failed = SurveyAnswers({}, []), set[str]()
    for path in files:
        try:
            code, given = _read_answers(key, path)
            if code in out.accepted or code in failed:
                raise InputError(f"{path} is by {code}, as an earlier file is; nobody counts twice")
            if any(given.get(item.id, item.right) != item.right for item in key.items if not item.condition):
                failed.add(code)
                raise InputError(f"{path} fails an attention check")
            if len(given) < len(key.items):
                raise InputError(f"{path} answers {len(given)} of {len(key.items)} questions; it is left out")
            out.accepted[code] = given
        except InputError as error:
            out.refused.append(str(error))
    return out


def _read_answers(key: SurveyKey, path: Path) -> tuple[str, dict[str, str]]:
    found = read_checked(path, _AnswersFile, (ANSWERS_SCHEMA,), "hand in what the page saved")
    given = {answer.item: answer.answer for answer in found.answers}
    if found.questionnaire != key.token or not set(given) <= {item.id for item in key.items}:
        raise InputError(f"{path} answers questions that this survey does not have; leave it out")
    if len(given) < len(found.answers) or not set(given.values()) <= set(KINDS[key.kind].words):
        raise InputError(f"{path} answers a question twice, or with a word that its page does not have; leave it out")
    return found.participant, given


# -- recognisers -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SurveyJudge:
    """A recogniser's similarity of the pictures of each item, by tokens; above the threshold they show one person."""

    name: str
    threshold: float
    similarity: dict[tuple[str, ...], float]

    def right(self, items: Sequence[SurveyItem]) -> Booleans:
        """[M] whether it is right about each item."""
        return np.array(
            [(self.similarity[item.pictures] > self.threshold) == (item.right == "yes") for item in items], bool
        )


def judge(key: SurveyKey, images: Path, readers: Sequence[Reader]) -> list[SurveyJudge]:
    """Have every recogniser read each picture of the folder `images` once, and compare the two of each pair."""
    from PIL import Image

    pairs = [item.pictures for item in key.items if item.condition]
    tokens = sorted({token for pair in pairs for token in pair})
    pixels = []
    for token in tokens:
        path = images / f"{token}.png"
        try:
            with Image.open(path) as image:
                pixels.append(np.asarray(image.convert("RGB")))
        except OSError as error:
            raise InputError(f"{path} cannot be read ({error}); keep the survey's folder whole") from error
    marks = np.array([key.pictures[token].landmarks for token in tokens], np.float32)
    faces = Faces(np.stack(pixels), tuple(tokens), marks)
    left, right = (np.array([tokens.index(pair[side]) for pair in pairs]) for side in (0, 1))
    out = []
    for reader in readers:
        values = reader.embed(faces)
        by_pair = dict(zip(pairs, paired(reader, values[left], values[right]).tolist(), strict=True))
        out.append(SurveyJudge(reader.name, float(reader.threshold), by_pair))
    return out


# -- figures -----------------------------------------------------------------------------------------------------------


def score_survey(
    key: SurveyKey, done: SurveyAnswers, judged: Sequence[SurveyJudge], bootstrap: Bootstrap
) -> dict[str, Any]:
    """All figures of a survey, JSON-ready: participants, conditions, judges, notes."""
    words, rows = KINDS[key.kind].words, []
    for condition in key.conditions:
        items = [item for item in key.items if item.condition == condition["label"]]
        given = [[words.index(answers[item.id]) for item in items] for answers in done.accepted.values()]
        answers = np.array(given, np.int64).reshape(-1, len(items))
        same = np.array([item.right == "yes" for item in items], bool)
        right = answers == np.where(same, words.index("yes"), words.index("no"))
        found = figures(right, same, bootstrap)
        found["not sure"] = figures(answers == words.index("unsure"), same, bootstrap)["accuracy"]
        judges = {judge.name: plain(figures(judge.right(items)[None], same, bootstrap)) for judge in judged}
        rows.append({**condition, "votes": answers.size, "pairs": len(items), **plain(found), "judges": judges})
    return {
        "participants": {"accepted": len(done.accepted), "refused": len(done.refused)},
        "conditions": rows,
        "judges": [{"name": judge.name, "threshold": judge.threshold} for judge in judged],
        "resamples": bootstrap.resamples,
        "notes": [*NOTES, *key.notes],
    }


def plain(found: Mapping[str, Figure]) -> dict[str, Any]:
    return {name: asdict(figure) for name, figure in found.items()}


def figures(right: Booleans, same: Booleans, bootstrap: Bootstrap) -> dict[str, Figure]:
    """`METRICS` of right and wrong answers [P,M] to pairs [M] of the same person or not."""
    by_person = bootstrap.weights(len(right)).astype(np.float64)
    totals = np.zeros((1 + bootstrap.resamples, 4))  # the whole, then the resamples: TP, FN, TN, FP
    for kind, column in ((True, 0), (False, 2)):
        chosen = same == kind
        # Another seed, or as many pairs as people would be drawn alike.
        by_pair = Bootstrap(bootstrap.resamples, bootstrap.seed + 1 + kind).weights(int(chosen.sum()))
        for place, cells in enumerate((right, ~right)):
            some = cells[:, chosen].astype(np.float64)
            totals[0, column + place] = some.sum()
            totals[1:, column + place] = ((by_person @ some) * by_pair).sum(1)
    tp, fn, tn, fp = totals.T
    everything, same_person = tp + fn + tn + fp, tp + fn
    values = (
        (2 * tp, 2 * tp + fp + fn, everything),
        (2 * tp, 2 * tp + fn, same_person),
        (tp + tn, everything, everything),
        (tp, same_person, same_person),
        (tn, tn + fp, tn + fp),
    )
    out = {}
    for name, (above, below, counts) in zip(METRICS, values, strict=True):
        drawn, n = np.divide(above, below, out=np.full(len(below), np.nan), where=below > 0), int(counts[0])
        value = float(drawn[0]) if n else None
        bounds = (None, None) if value is None else recentred(drawn, value, min(right.shape))
        out[name] = Figure(name, value, *bounds, n, "answers", "" if n else "There are no answers to count.")
    return out


def score_text(score: Mapping[str, Any]) -> str:
    """The table to read."""
    people, names = score["participants"], [judge["name"] for judge in score["judges"]]
    head = ["condition", "votes", "F1", "F1 one", "accuracy", "sens.", "spec.", "not sure"]
    lines = [[*head, *(f"{name} {metric}" for metric in ("F1", "acc.") for name in names)]]
    for row in score["conditions"]:
        own = [_cell(row[name], name in ("F1", "accuracy")) for name in METRICS]
        judged = [_cell(row["judges"][name][metric]) for metric in ("F1", "accuracy") for name in names]
        lines.append([row["label"], str(row["votes"]), *own, _cell(row["not sure"]), *judged])
    text = [f"{people['accepted']} participants count, {people['refused']} files are refused", "", *text_table(lines)]
    return "\n".join([*text, '"Not sure" is counted as wrong.', *score["notes"]])


def _cell(figure: Mapping[str, Any], interval: bool = False) -> str:
    if figure["value"] is None:
        return "–"
    bounds = interval and figure["low"] is not None
    return f"{figure['value']:.2f}" + (f" ({figure['low']:.2f}–{figure['high']:.2f})" if bounds else "")
