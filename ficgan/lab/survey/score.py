"""The answers of a survey, checked and counted, beside recognisers on the same pictures (Fantômas, appendix D).

"Not sure" is counted twice: as wrong, and left out. Intervals resample participants and pairs each by itself (the
pigeonhole bootstrap of Owen 2007); at 0 or 1 they are Wilson's. F1 is given over all pairs and over pairs of one
person.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import StringConstraints
from pydantic_core import to_jsonable_python

from ficgan.anonymizers import Faces
from ficgan.errors import InputError
from ficgan.lab.metrics import Bootstrap, percentiles, recentred
from ficgan.lab.pages import read_checked, text_table
from ficgan.lab.readers import Reader, paired
from ficgan.lab.results import Figure
from ficgan.lab.survey import ANSWERS_SCHEMA, Item, Key, Picture, Questionnaire

ANSWERS = ("yes", "no", "unsure")
YES, NO, UNSURE, OPEN = 0, 1, 2, -1
METRICS = ("F1", "F1 (pairs of one person)", "accuracy", "sensitivity", "specificity")
NOTES = (
    "Half of the pairs show one person: who always says yes has an accuracy of .5 and an F1 of .667, who tosses a coin "
    "an F1 of .5.",
    "The F1 over pairs of one person alone knows no false alarms: who always says yes has 1.",
    "Fantômas gives its F1 scores only as a plot (Figure 15), so no published numbers stand here.",
    "A recogniser reads the very pictures that people saw, at the threshold it came with, chosen on other faces; it "
    "cannot say that it is not sure.",
)
Reason = Literal["damaged", "repeated", "unfinished", "checks"]
Booleans = NDArray[np.bool_]
Floats = NDArray[np.float64]


# -- answers


@dataclass(frozen=True)
class Participant:
    """The answers of the person with a code: item → one of `ANSWERS`."""

    code: str
    questionnaire: Questionnaire
    answers: dict[str, str]

    @property
    def finished(self) -> bool:
        return len(self.answers) == len(self.questionnaire.items)

    @property
    def failures(self) -> list[str]:
        """Kinds of the attention checks that were answered wrongly; "not sure" is wrong."""
        checks = [item for item in self.questionnaire.items if item.check]
        right = {True: "yes", False: "no"}
        return [item.check for item in checks if self.answers.get(item.id) not in (None, right[item.same])]


@dataclass(frozen=True)
class RefusedFile:
    """A file that does not count, why in a word and in a sentence."""

    file: str
    reason: Reason
    sentence: str


@dataclass
class Collected:
    """What came of all files: participants who count, and files that do not."""

    accepted: list[Participant] = field(default_factory=list)
    refused: list[RefusedFile] = field(default_factory=list)

    def summary(self) -> dict[str, Any]:
        """Who counts and who does not, JSON-ready."""
        reasons = Counter(refused.reason for refused in self.refused)
        questionnaires = Counter(participant.questionnaire.token for participant in self.accepted)
        order: tuple[Reason, ...] = ("checks", "unfinished", "repeated", "damaged")
        return {
            "accepted": len(self.accepted),
            "refused": {reason: reasons[reason] for reason in order},
            "by_questionnaire": dict(sorted(questionnaires.items())),
            "refusals": [{"file": Path(one.file).name, "reason": one.sentence} for one in self.refused],
        }


def collect(key: Key, files: Sequence[Path]) -> Collected:
    """Read the files that pages have saved; the first finished one by a code counts."""
    out, seen = Collected(), dict[str, str]()
    for path in files:
        try:
            participant = _read_answers(key, path)
        except InputError as error:
            out.refused.append(RefusedFile(str(path), "damaged", str(error)))
            continue
        reason, why = _fault(participant, key, seen)
        if reason is not None:
            out.refused.append(RefusedFile(str(path), reason, f"{path} {why}"))
        else:
            out.accepted.append(participant)
        if reason is None or reason == "checks":
            seen.setdefault(participant.code, path.name)
    return out


@dataclass(frozen=True)
class _Answer:
    item: str
    answer: Literal["yes", "no", "unsure"]


@dataclass(frozen=True)
class _AnswersFile:
    questionnaire: str
    participant: Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]
    consent: Literal[True]
    answers: list[_Answer]


def _read_answers(key: Key, path: Path) -> Participant:
    """One file of answers, checked against the key; InputError where the page cannot have written it for this key."""
    found = read_checked(path, _AnswersFile, (ANSWERS_SCHEMA,), "hand in what the page saved")
    asked = next((q for q in key.questionnaires if q.token == found.questionnaire), None)
    if asked is None:
        raise InputError(f"{path} is of questionnaire {found.questionnaire!r}, which is not of this survey")
    given = {one.item: str(one.answer) for one in found.answers}
    if len(given) < len(found.answers) or not set(given) <= {item.id for item in asked.items}:
        raise InputError(f"{path} answers a question twice, or one that its page does not have; leave it out")
    return Participant(found.participant, asked, given)


def _fault(participant: Participant, key: Key, seen: dict[str, str]) -> tuple[Reason | None, str]:
    failures, items = participant.failures, participant.questionnaire.items
    if participant.code in seen:
        where = seen[participant.code]
        return "repeated", f"is by {participant.code}, whose answers are in {where}; nobody counts twice"
    if len(failures) > key.rules.failures:
        checks = sum(bool(item.check) for item in items)
        return "checks", f"fails {len(failures)} of {checks} attention checks; {key.rules.failures} may be failed"
    if len(participant.answers) < len(items):
        return "unfinished", f"answers {len(participant.answers)} of {len(items)} questions; it is left out"
    return None, ""


@dataclass(frozen=True)
class Votes:
    """The answers of P participants to the M pairs of one condition."""

    answers: NDArray[np.int64]  # [P,M], indices of `ANSWERS`; `OPEN` where somebody was not asked
    items: tuple[Item, ...]  # one question for a pair stands for those of all questionnaires

    def __len__(self) -> int:
        return int((self.answers != OPEN).sum())

    @property
    def same(self) -> Booleans:
        """[M] whether a pair shows one person."""
        return np.array([item.same for item in self.items], bool)

    @property
    def table(self) -> NDArray[np.int64]:
        """[M,K] how many gave each answer to a pair."""
        return np.stack([(self.answers == answer).sum(0) for answer in range(len(ANSWERS))], 1)


def votes(key: Key, people: Sequence[Participant], label: str) -> Votes:
    """The answers to the pairs of a condition; pairs that nobody answered are not among them."""
    items: dict[int, Item] = {}
    given: dict[tuple[int, int], int] = {}
    for number, person in enumerate(people):
        for item in person.questionnaire.items:
            if item.condition == label and not item.check and item.id in person.answers:
                items.setdefault(item.pair, item)
                given[number, item.pair] = ANSWERS.index(person.answers[item.id])
    answers = [[given.get((number, pair), OPEN) for pair in items] for number in range(len(people))]
    return Votes(np.array(answers, np.int64).reshape(len(people), len(items)), tuple(items.values()))


# -- recognisers


@dataclass(frozen=True)
class Judged:
    """A recogniser's similarities of pictures, by their (left, right) tokens."""

    name: str
    metric: str  # "cosine" or "euclidean"
    threshold: float  # similarity above which two pictures count as one person; it came with the recogniser
    similarity: dict[tuple[str, str], float]

    def matches(self, item: Item) -> bool:
        """Whether the two pictures of a question count as one person."""
        return self.similarity[item.left, item.right] > self.threshold


def judge(key: Key, images: Path, readers: Sequence[Reader]) -> list[Judged]:
    """Have every recogniser read each picture of `images` once, and compare the two of each question."""
    pairs = sorted({(i.left, i.right) for q in key.questionnaires for i in q.items if not i.check})
    shown = [key.pictures[token] for token in sorted({token for pair in pairs for token in pair})]
    row = {picture.token: index for index, picture in enumerate(shown)}
    faces = _faces(shown, images)
    left, right = (np.array([row[pair[side]] for pair in pairs], np.int64) for side in (0, 1))
    out = []
    for reader in readers:
        values = reader.embed(faces)
        by_pair = dict(zip(pairs, paired(reader, values[left], values[right]).tolist(), strict=True))
        out.append(Judged(reader.name, str(reader.metric), float(reader.threshold), by_pair))
    return out


def _faces(shown: Sequence[Picture], images: Path) -> Faces:
    from PIL import Image

    pixels = []
    for picture in shown:
        path = images / f"{picture.token}.png"
        try:
            with Image.open(path) as image:
                pixels.append(np.asarray(image.convert("RGB")))
        except OSError as error:
            raise InputError(f"{path} cannot be read ({error}); keep the survey's folder whole") from error
    if len({image.shape for image in pixels}) > 1:
        raise InputError(f"the pictures in {images} differ in size, as the survey's do not; keep its folder as it was")
    marks = np.array([picture.landmarks for picture in shown], np.float32)
    return Faces(np.stack(pixels), tuple(picture.token for picture in shown), marks)


# -- figures


def score_survey(
    key: Key, done: Collected, judged: Sequence[Judged] = (), *, bootstrap: Bootstrap | None = None
) -> dict[str, Any]:
    """All figures of a survey, JSON-ready: participants, conditions, agreement, judges, notes."""
    bootstrap = bootstrap or Bootstrap(seed=key.rules.seed)
    rows = []
    tables: list[NDArray[np.int64]] = []
    for condition in key.conditions:
        some = votes(key, done.accepted, condition.label)
        tables.append(some.table)
        row = {
            "label": condition.label,
            "method": dict(condition.method),
            "attacker": condition.attacker,
            "votes": len(some),
            "pairs": len(some.items),
            "least_votes": min(some.table.sum(1).tolist(), default=0),
            "not sure": not_sure(some, bootstrap),
            "as wrong": figures(some, bootstrap, unsure="wrong"),
            "left out": figures(some, bootstrap, unsure="left out"),
            "agreement": krippendorff(some.table, bootstrap),
            "judges": {one.name: judge_figures(one, some.items, bootstrap) for one in judged},
        }
        rows.append(row)
    judges = [{"name": one.name, "threshold": one.threshold, "metric": one.metric} for one in judged]
    tree = {
        "participants": done.summary(),
        "conditions": rows,
        "agreement": krippendorff(np.concatenate(tables), bootstrap),
        "judges": judges,
        "resamples": bootstrap.resamples,
        "notes": [*NOTES, *key.notes],
    }
    plain: dict[str, Any] = to_jsonable_python(tree)
    return plain


def figures(some: Votes, bootstrap: Bootstrap, *, unsure: str) -> dict[str, Figure]:
    """`METRICS` of one condition, with "not sure" counted as "wrong" or "left out"; None where there are no answers."""
    right = some.answers == np.where(some.same, YES, NO)
    wrong = ~right & (some.answers != OPEN)
    if unsure != "wrong":
        wrong &= some.answers != UNSURE
    counted = right | wrong
    trials = min(int(counted.any(axis).sum()) for axis in (0, 1))
    return _figures(right, wrong, some.same, bootstrap, trials)


def judge_figures(judged: Judged, items: Sequence[Item], bootstrap: Bootstrap) -> dict[str, Figure]:
    """The same figures of a recogniser, which answers each pair once; intervals resample pairs."""
    same = np.array([item.same for item in items], bool)
    right = np.array([judged.matches(item) == item.same for item in items], bool)[None]
    return _figures(right, ~right, same, bootstrap, len(items))


def not_sure(some: Votes, bootstrap: Bootstrap) -> Figure:
    """Share of the answers that are "not sure": the accuracy as if it were the right answer to every pair."""
    answered, unsure = some.answers != OPEN, some.answers == UNSURE
    trials = min(int(answered.any(1).sum()), len(some.items))
    accuracy = _figures(unsure, answered & ~unsure, some.same, bootstrap, trials)["accuracy"]
    return replace(accuracy, metric="not sure")


def krippendorff(table: NDArray[np.int64], bootstrap: Bootstrap) -> Figure:
    """Krippendorff's α (2004, ch. 11) of nominal answers [M,K]: counts by pair; None where undefined."""
    several = table[table.sum(1) >= 2].astype(np.float64)
    n = len(several)
    if not n:
        return Figure("α", None, unit="pairs", note="No pair was answered by two people.")
    size = several.sum(1)
    # What a pair adds to the coincidences: of unlike answers, and of each answer.
    unlike = (size**2 - (several**2).sum(1)) / (size - 1)
    draws = bootstrap.weights(n).astype(np.float64)
    value = float(_alpha(unlike.sum()[None], several.sum(0)[None])[0])
    if not np.isfinite(value):
        return Figure("α", None, n=n, unit="pairs", note="All gave one answer, and α is not defined.")
    low, high = percentiles(_alpha(draws @ unlike, draws @ several)) if n > 1 else (None, None)
    return Figure("α", value, low, high, n, "pairs")


def score_text(score: dict[str, Any]) -> str:
    people = score["participants"]
    refused = ", ".join(f"{count} {reason}" for reason, count in people["refused"].items() if count)
    head = ["condition", "votes", "F1", "F1 one", "accuracy", "sens.", "spec.", "not sure", "α"]
    names = [one["name"] for one in score["judges"]]
    lines = [[*head, *(f"{name} F1" for name in names), *(f"{name} acc." for name in names)]]
    for row in score["conditions"]:
        own = [_cell(row["as wrong"][name], name in ("F1", "accuracy")) for name in METRICS]
        judged = [_cell(row["judges"][name][metric]) for metric in ("F1", "accuracy") for name in names]
        lines.append([row["label"], str(row["votes"]), *own, _cell(row["not sure"]), _cell(row["agreement"]), *judged])
    text = [f"{people['accepted']} participants count; refused: {refused or 'none'}", "", *text_table(lines)]
    notes = ['"Not sure" is counted as wrong here; the file has the figures without it, too.', *score["notes"]]
    return "\n".join([*text, "", f"agreement over all conditions: α = {_cell(score['agreement'])}", *notes])


def _cell(figure: dict[str, Any], interval: bool = False) -> str:
    if figure["value"] is None:
        return "–"
    bounds = interval and figure["low"] is not None
    return f"{figure['value']:.2f}" + (f" ({figure['low']:.2f}–{figure['high']:.2f})" if bounds else "")


def _resampled(right: Booleans, wrong: Booleans, same: Booleans, bootstrap: Bootstrap) -> Floats:
    """[R,4] true positives, false negatives, false positives, true negatives of every resample of cells [P,M]."""
    by_person = bootstrap.weights(len(right)).astype(np.float64)
    out = np.zeros((bootstrap.resamples, 4))
    for kind, (first, second) in ((True, (0, 1)), (False, (3, 2))):
        chosen = np.flatnonzero(same == kind)
        # Another seed, or as many pairs as people would be drawn alike.
        by_pair = Bootstrap(bootstrap.resamples, bootstrap.seed + 1 + kind).weights(len(chosen)).astype(np.float64)
        for column, cells in ((first, right), (second, wrong)):
            out[:, column] = ((by_person @ cells[:, chosen].astype(np.float64)) * by_pair).sum(1)
    return out


def _figures(right: Booleans, wrong: Booleans, same: Booleans, bootstrap: Bootstrap, trials: int) -> dict[str, Figure]:
    r, w = right.sum(0), wrong.sum(0)
    whole = np.array([r[same].sum(), w[same].sum(), w[~same].sum(), r[~same].sum()], np.float64)
    # [1+R,4]: the whole first, then the resamples.
    counted = np.concatenate([whole[None], _resampled(right, wrong, same, bootstrap)])
    tp, fn, fp, tn = counted.T
    positive, negative = int(whole[:2].sum()), int(whole[2:].sum())
    values = (
        (_share(2 * tp, 2 * tp + fp + fn), positive + negative),
        (_share(2 * tp, 2 * tp + fn), positive),
        (_share(tp + tn, counted.sum(1)), positive + negative),
        (_share(tp, tp + fn), positive),
        (_share(tn, tn + fp), negative),
    )
    out = {}
    for name, (drawn, n) in zip(METRICS, values, strict=True):
        if np.isfinite(drawn[0]):
            low, high = recentred(drawn, float(drawn[0]), trials)
            out[name] = Figure(name, float(drawn[0]), low, high, n, "answers")
        else:
            out[name] = Figure(name, None, n=n, unit="answers", note="There are no answers to count.")
    return out


def _share(above: Floats, below: Floats) -> Floats:
    return np.divide(above, below, out=np.full(len(below), np.nan), where=below > 0)


def _alpha(unlike: Floats, totals: Floats) -> Floats:
    """[R] 1 − observed / expected disagreement, of sums [R] and totals of each answer [R,K]."""
    n = totals.sum(1)
    expected = (n**2 - (totals**2).sum(1)) / np.maximum(n - 1, 1)
    return 1 - _share(unlike, expected)
