"""The answers of a survey, checked and counted, beside recognisers on the same pictures (Fantômas, appendix D).

"Not sure" is counted twice: as wrong, and left out. Intervals resample participants and pairs each by itself (the
pigeonhole bootstrap of Owen 2007); at 0 or 1 they are Wilson's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import StringConstraints

from ficgan.anonymizers import Faces
from ficgan.errors import InputError
from ficgan.lab.metrics import Bootstrap, percentiles, recentred
from ficgan.lab.pages import read_checked, text_table
from ficgan.lab.readers import Reader, paired
from ficgan.lab.results import Figure
from ficgan.lab.survey import ANSWERS_SCHEMA, KINDS, Questionnaire, SurveyItem, SurveyKey

METRICS = ("F1", "F1 (pairs of one person)", "accuracy", "sensitivity", "specificity")
NOTES = (
    "Half of the pairs show one person: who always says yes has an accuracy of .5 and an F1 of .667, who tosses a coin "
    "an F1 of .5.",
    "The F1 over pairs of one person alone knows no false alarms: who always says yes has 1.",
    "Fantômas gives its F1 scores only as a plot (Figure 15), so no published numbers stand here.",
    "A recogniser reads the very pictures that people saw, at the threshold it came with, chosen on other faces; it "
    "cannot say that it is not sure.",
)
_OPEN = -1  # Somebody was not asked
Reason = Literal["checks", "unfinished", "repeated", "damaged"]
Booleans = NDArray[np.bool_]
Floats = NDArray[np.float64]

# -- answers -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Participant:
    """The answers of the person with a code: id of the item → word."""

    code: str
    questionnaire: Questionnaire
    answers: dict[str, str]


@dataclass
class SurveyAnswers:
    """Participants who count, and (file, reason, sentence) of the files that do not."""

    accepted: list[Participant] = field(default_factory=list)
    refused: list[tuple[Path, Reason, str]] = field(default_factory=list)


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
    """Read the files that pages have saved; the first finished one by a code counts."""
    out, seen = SurveyAnswers(), dict[str, Path]()
    for path in files:
        try:
            person = _read_answers(key, path)
        except InputError as error:
            out.refused.append((path, "damaged", str(error)))
            continue
        items = person.questionnaire.items
        checks = [item for item in items if item.check and item.id in person.answers]
        failed = sum(person.answers[item.id] != item.right for item in checks)
        done = len(person.answers)
        if person.code in seen:
            reason, why = "repeated", f"is by {person.code}, as {seen[person.code].name} is; nobody counts twice"
        elif failed > key.rules.failures:
            reason, why = "checks", f"fails {failed} attention checks; {key.rules.failures} may be failed"
        elif done < len(items):
            reason, why = "unfinished", f"answers {done} of {len(items)} questions; it is left out"
        else:
            reason, why = "", ""
            out.accepted.append(person)
        if reason:
            out.refused.append((path, reason, f"{path} {why}"))  # type: ignore[arg-type]
        if reason != "unfinished":
            seen.setdefault(person.code, path)
    return out


def _read_answers(key: SurveyKey, path: Path) -> Participant:
    found = read_checked(path, _AnswersFile, (ANSWERS_SCHEMA,), "hand in what the page saved")
    asked = next((one for one in key.questionnaires if one.token == found.questionnaire), None)
    given = {one.item: one.answer for one in found.answers}
    if asked is None or not set(given) <= {item.id for item in asked.items}:
        raise InputError(f"{path} answers questions that this survey does not have; leave it out")
    if len(given) < len(found.answers) or not set(given.values()) <= set(KINDS[key.kind].words):
        raise InputError(f"{path} answers a question twice, or with a word that its page does not have; leave it out")
    return Participant(found.participant, asked, given)


@dataclass(frozen=True)
class Votes:
    """What P participants answered of the M items of one condition.

    Args:
        answers: [P,M] numbers of the words of the kind; −1 where somebody was not asked.
        items: one stands for those of all questionnaires that have its number.
        words: of the kind.
    """

    answers: NDArray[np.int64]
    items: tuple[SurveyItem, ...]
    words: Sequence[str]

    @property
    def asked(self) -> Booleans:
        return self.answers != _OPEN

    @property
    def right(self) -> Booleans:
        return self.answers == np.array([self.words.index(item.right) for item in self.items], np.int64)

    @property
    def unsure(self) -> Booleans:
        return self.answers == self.words.index("unsure")

    @property
    def table(self) -> NDArray[np.int64]:
        """[M,K] how many gave each answer to an item."""
        return np.stack([(self.answers == answer).sum(0) for answer in range(len(self.words))], 1)


def votes(key: SurveyKey, people: Sequence[Participant], label: str) -> Votes:
    """The answers to the items of a condition; those that nobody answered are not among them."""
    words, items, given = KINDS[key.kind].words, dict[int, SurveyItem](), dict[tuple[int, int], int]()
    for number, person in enumerate(people):
        for item in person.questionnaire.items:
            if item.condition == label and not item.check:
                items.setdefault(item.number, item)
                given[number, item.number] = words.index(person.answers[item.id])
    answers = [[given.get((number, one), _OPEN) for one in items] for number in range(len(people))]
    return Votes(np.array(answers, np.int64).reshape(len(people), len(items)), tuple(items.values()), words)


# -- recognisers -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SurveyJudge:
    """A recogniser's similarity of the pictures of each item, by tokens; above the threshold they show one person."""

    name: str
    metric: str
    threshold: float
    similarity: dict[tuple[str, ...], float]

    def right(self, items: Sequence[SurveyItem]) -> Booleans:
        """[M] whether it is right about each item."""
        said = np.array([self.similarity[item.pictures] > self.threshold for item in items], bool)
        return said == np.array([item.right == "yes" for item in items], bool)


def judge(key: SurveyKey, images: Path, readers: Sequence[Reader]) -> list[SurveyJudge]:
    """Have every recogniser read each picture of the folder `images` once, and compare the two of each pair."""
    from PIL import Image

    pairs = sorted(
        {item.pictures for questionnaire in key.questionnaires for item in questionnaire.items if not item.check}
    )
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
        out.append(SurveyJudge(reader.name, str(reader.metric), float(reader.threshold), by_pair))
    return out


# -- figures -----------------------------------------------------------------------------------------------------------


def score_survey(
    key: SurveyKey, done: SurveyAnswers, judged: Sequence[SurveyJudge] = (), *, bootstrap: Bootstrap | None = None
) -> dict[str, Any]:
    """All figures of a survey, JSON-ready: participants, conditions, agreement, judges, notes."""
    bootstrap = bootstrap or Bootstrap(seed=key.rules.seed)
    rows, tables = [], []
    for condition in key.conditions:
        some = votes(key, done.accepted, condition["label"])
        same = np.array([item.right == "yes" for item in some.items], bool)
        tables.append(some.table)
        judges = {one.name: one.right(some.items)[None] for one in judged}
        counted = {
            "not sure": figures(some.unsure, some.asked, same, bootstrap)["accuracy"],
            "as wrong": figures(some.right, some.asked, same, bootstrap),
            "left out": figures(some.right, some.asked & ~some.unsure, same, bootstrap),
            "agreement": agreement(some.table, bootstrap),
            "judges": {name: figures(right, np.ones_like(right), same, bootstrap) for name, right in judges.items()},
        }
        counts = {"votes": int(some.asked.sum()), "pairs": len(some.items)}
        counts["least_votes"] = min(some.table.sum(1).tolist(), default=0)
        rows.append({**condition, **counts, **_plain(counted)})
    reasons = Counter(reason for _, reason, _ in done.refused)
    participants = {
        "accepted": len(done.accepted),
        "refused": {reason: reasons[reason] for reason in ("checks", "unfinished", "repeated", "damaged")},
        "by_questionnaire": dict(sorted(Counter(person.questionnaire.token for person in done.accepted).items())),
        "refusals": [{"file": path.name, "reason": reason} for path, reason, _ in done.refused],
    }
    return {
        "participants": participants,
        "conditions": rows,
        "agreement": asdict(agreement(np.concatenate(tables), bootstrap)),
        "judges": [{"name": one.name, "threshold": one.threshold, "metric": one.metric} for one in judged],
        "resamples": bootstrap.resamples,
        "notes": [*NOTES, *key.notes],
    }


def _plain(tree: Mapping[str, Any]) -> dict[str, Any]:
    return {key: asdict(one) if isinstance(one, Figure) else _plain(one) for key, one in tree.items()}


def figures(right: Booleans, counted: Booleans, same: Booleans, bootstrap: Bootstrap) -> dict[str, Figure]:
    """`METRICS` of answers [P,M] that are right, of those that are counted, to pairs [M] of the same person or not."""
    wrong = counted & ~right
    trials = min(int(counted.any(axis).sum()) for axis in (0, 1))
    by_person = bootstrap.weights(len(right)).astype(np.float64)
    totals = np.zeros((1 + bootstrap.resamples, 4))  # the whole, then the resamples: TP, FN, FP, TN
    for kind, columns in ((True, (0, 1)), (False, (3, 2))):
        chosen = same == kind
        # Another seed, or as many pairs as people would be drawn alike.
        by_pair = Bootstrap(bootstrap.resamples, bootstrap.seed + 1 + kind).weights(int(chosen.sum()))
        for column, cells in zip(columns, (right & counted, wrong), strict=True):
            some = cells[:, chosen].astype(np.float64)
            totals[0, column], totals[1:, column] = some.sum(), ((by_person @ some) * by_pair).sum(1)
    tp, fn, fp, tn = totals.T
    values = (
        (2 * tp, 2 * tp + fp + fn, totals),
        (2 * tp, 2 * tp + fn, totals[:, :2]),
        (tp + tn, totals.sum(1), totals),
        (tp, tp + fn, totals[:, :2]),
        (tn, tn + fp, totals[:, 2:]),
    )
    out = {}
    for name, (above, below, counts) in zip(METRICS, values, strict=True):
        drawn, n = np.divide(above, below, out=np.full(len(below), np.nan), where=below > 0), int(counts[0].sum())
        value = float(drawn[0]) if n else None
        bounds = (None, None) if value is None else recentred(drawn, value, trials)
        out[name] = Figure(name, value, *bounds, n, "answers", "" if n else "There are no answers to count.")
    return out


def agreement(table: NDArray[np.int64], bootstrap: Bootstrap) -> Figure:
    """Krippendorff's α of nominal answers, counted by item and word [M,K]; its interval resamples items."""
    import krippendorff

    several = table[table.sum(1) >= 2]
    if np.count_nonzero(several.sum(0)) < 2:
        return Figure("α", None, n=len(several), unit="pairs", note="Nobody disagrees, and α is not defined.")

    def alpha(counts: NDArray[np.int64]) -> float:
        one = np.count_nonzero(counts.sum(0)) < 2
        return float("nan") if one else krippendorff.alpha(value_counts=counts, level_of_measurement="nominal")

    drawn = bootstrap.weights(len(several)).astype(np.int64)
    bounds = percentiles([alpha(several.repeat(times, 0)) for times in drawn]) if len(several) > 1 else (None, None)
    return Figure("α", alpha(several), *bounds, len(several), "pairs")


def score_text(score: Mapping[str, Any]) -> str:
    """The table to read."""
    people, names = score["participants"], [one["name"] for one in score["judges"]]
    refused = ", ".join(f"{count} {reason}" for reason, count in people["refused"].items() if count)
    head = ["condition", "votes", "F1", "F1 one", "accuracy", "sens.", "spec.", "not sure", "α"]
    lines = [[*head, *(f"{name} {metric}" for metric in ("F1", "acc.") for name in names)]]
    for row in score["conditions"]:
        own = [_cell(row["as wrong"][name], name in ("F1", "accuracy")) for name in METRICS]
        judged = [_cell(row["judges"][name][metric]) for metric in ("F1", "accuracy") for name in names]
        lines.append([row["label"], str(row["votes"]), *own, _cell(row["not sure"]), _cell(row["agreement"]), *judged])
    text = [f"{people['accepted']} participants count; refused: {refused or 'none'}", "", *text_table(lines)]
    text += ["", f"agreement over all conditions: α = {_cell(score['agreement'])}"]
    return "\n".join(
        [*text, '"Not sure" is counted as wrong here; the file has the figures without it, too.', *score["notes"]]
    )


def _cell(figure: Mapping[str, Any], interval: bool = False) -> str:
    if figure["value"] is None:
        return "–"
    bounds = interval and figure["low"] is not None
    return f"{figure['value']:.2f}" + (f" ({figure['low']:.2f}–{figure['high']:.2f})" if bounds else "")
