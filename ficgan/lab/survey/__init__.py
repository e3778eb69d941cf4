"""A survey: what do people see in anonymised faces? Its design, its pictures under random tokens, and its pages.

Everybody gets the same questionnaire, each page in its own order: as many pairs of every condition, half of them of one
person, and nobody in two of them (Fantômas, appendix D). `KINDS` holds what can be asked.
"""

from __future__ import annotations

import dataclasses
import secrets
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
import yaml
from numpy.typing import NDArray
from pydantic import StringConstraints, TypeAdapter

from ficgan.anonymizers import Faces, Images, generator
from ficgan.errors import InputError, UsageError
from ficgan.faces import FaceDetector
from ficgan.lab.attackers import attacked, shareable
from ficgan.lab.attacks import reverser_of
from ficgan.lab.bench import Bench, NotApplicable, Refused, Subject, anonymiser_for, divide, known, prepared_set
from ficgan.lab.matrix_config import SCENARIOS, MethodConfig, SetConfig
from ficgan.lab.metrics import Bootstrap, recentred
from ficgan.lab.pages import (
    data_url,
    fill_page,
    new_folder,
    page_template,
    png,
    read_checked,
    text_table,
    write_file,
    write_json,
)
from ficgan.lab.readers import Reader, paired
from ficgan.lab.results import Figure
from ficgan.lab.run import Progress, Store
from ficgan.lab.sets.parts import written

KEY_SCHEMA = "ficgan-survey-key/3"
ANSWERS_SCHEMA = "ficgan-survey-answers/1"
CLEAR = "clear"
# Attention checks in a questionnaire: the same photo twice; a woman and a man, where the set knows them.
CHECKS = 2
# Most people for anonymisers that mix in others, and for attackers that learn.
_BACKGROUND, _ATTACKER = 200, 1000


@dataclass(frozen=True)
class SurveyKind:
    """What a survey asks."""

    intro: str  # What the page says first; {count} is the number of questions
    question: str  # What is asked of each item
    answers: tuple[tuple[str, str, str], ...]  # Word in the file, label of the button, key that is pressed

    @property
    def words(self) -> list[str]:
        return [word for word, _, _ in self.answers]


_TEXTS = yaml.safe_load(files("ficgan.lab.survey").joinpath("survey.yaml").read_text("utf-8"))
KINDS: dict[str, SurveyKind] = TypeAdapter(dict[str, SurveyKind]).validate_python(_TEXTS["kinds"])
CONSENT, NOTES = str(_TEXTS["consent"]), tuple(_TEXTS["notes"])


@dataclass(frozen=True)
class SurveyPicture:
    """A photo of a person (a number of the set); `condition` is "" where it stays clear; 5 landmarks, pixels."""

    name: str
    person: int
    condition: str
    landmarks: tuple[tuple[float, float], ...]


@dataclass(frozen=True)
class SurveyItem:
    """A question: its tokens from left to right and its right answer. An attention check has no condition."""

    id: str
    condition: str
    right: str
    pictures: tuple[str, ...]


@dataclass(frozen=True)
class SurveyKey:
    """What each token stands for, and the right answers; it stays with the researcher."""

    kind: str
    seed: int
    token: str  # Of the questionnaire and its pages
    source: dict[str, Any]  # Facts of the face set
    # {"label", "method", "attacker"}, in the order of tables; no keys and no folders
    conditions: tuple[dict[str, Any], ...]
    pictures: dict[str, SurveyPicture]  # By token
    items: tuple[SurveyItem, ...]
    notes: tuple[str, ...] = ()  # What must be known of how it was drawn


def read_key(path: Path) -> SurveyKey:
    """The key of `write_survey`."""
    return read_checked(path, SurveyKey, (KEY_SCHEMA,), "name the folder that `survey make` wrote, or make it again")


# -- design ------------------------------------------------------------------------------------------------------------


class SurveyPair(NamedTuple):
    """Rows of two photos: `reference` stays clear, a condition (its number; −1: attention check) changes `shown`."""

    condition: int
    reference: int
    shown: int
    same: bool


def draw(
    people: NDArray[np.int64],
    references: NDArray[np.int64],
    shown: NDArray[np.int64],
    genders: Sequence[str] | None,
    *,
    conditions: int,
    pairs: int,
    seed: int,
) -> tuple[list[SurveyPair], list[str]]:
    """Draw the pairs of each condition and the attention checks of a survey; nobody is in two of them.

    `people` [N] and `genders` [N] ("" where unknown) are of the rows of the set; `references` are rows of photos that
    stay clear, `shown` of photos that conditions change. Returns pairs and checks, and sentences on what could not be
    balanced.
    """
    pools, notes = _pools(people, references, shown, genders, seed), []
    if len(pools) == 1:
        notes.append(
            "The set does not say who is a woman and who a man: strangers are not matched on gender, and attention "
            "checks are identical photos only, so who always says yes passes them."
        )
    if pairs < 2 or pairs % (2 * len(pools)):
        raise UsageError(f"{pairs} pairs cannot be half of one person, half of each gender; give a multiple of 4")
    each = conditions * pairs // 2 // len(pools)
    for gender, pool in pools.items():
        if len(pool) < 3 * each + CHECKS:
            raise InputError(
                f"the survey needs {3 * each + CHECKS} people {gender and f'of gender {gender!r} '}with photos on both "
                f"sides, and there are {len(pool)}; give more faces, or ask for fewer pairs or conditions"
            )
    drawn = []
    for number in range(CHECKS):
        chosen = [pool.pop()[0] for pool in list(pools.values())[: 1 + number % 2]]
        drawn.append(SurveyPair(-1, chosen[0], chosen[-1], len(chosen) == 1))
    for pool in pools.values():
        strangers = list(zip(pool[: 2 * each : 2], pool[1 : 2 * each : 2], strict=True))
        for couples in (strangers, [(person, person) for person in pool[2 * each : 3 * each]]):
            for place, (first, second) in enumerate(couples):
                drawn.append(SurveyPair(place % conditions, first[0], second[1], first is second))
    return drawn, notes


def _pools(
    people: NDArray[np.int64],
    references: NDArray[np.int64],
    shown: NDArray[np.int64],
    genders: Sequence[str] | None,
    seed: int,
) -> dict[str, list[tuple[int, int]]]:
    """A clear and a changed photo of everybody who has both, in random order, by gender; "" where it is unknown."""
    rows: tuple[dict[int, list[int]], dict[int, list[int]]] = defaultdict(list), defaultdict(list)
    for side, photos in zip(rows, (references, shown), strict=True):
        for row in sorted(photos.tolist()):
            side[int(people[row])].append(row)
    everybody = []
    for person in sorted(rows[0].keys() & rows[1].keys() - {-1}):
        rng = generator(seed, "survey photos", person)
        names = Counter(name for row in rows[0][person] + rows[1][person] if genders and (name := genders[row]))
        gender = max(sorted(names), key=names.__getitem__, default="")
        everybody.append((gender, (int(rng.choice(rows[0][person])), int(rng.choice(rows[1][person])))))
    counts = Counter(gender for gender, _ in everybody if gender).most_common(2)
    two = sorted(gender for gender, _ in counts) if len(counts) == 2 else [""]
    order = generator(seed, "survey people").permutation(len(everybody)).tolist()
    return {name: [everybody[row][1] for row in order if name in ("", everybody[row][0])] for name in two}


# -- pictures ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SurveyCondition:
    """A method (None: the clear control), and the attacker, NAME or NAME:PARAMETER=VALUE,…, that reversed it, or ""."""

    method: MethodConfig | None = None
    attacker: str = ""

    def __post_init__(self) -> None:
        if self.method is not None:
            self.method.make()
        if self.attacker:
            reverser_of(self.attacker)

    @property
    def label(self) -> str:
        if self.method is None:
            return CLEAR
        return f"{self.method.title}, reversed by {shareable(self.attacker)}" if self.attacker else self.method.title

    def row(self) -> dict[str, Any]:
        method = {} if self.method is None else {"name": self.method.method, **self.method.shown}
        return {"label": self.label, "method": method, "attacker": self.attacker and shareable(self.attacker)}


def conditions_of(methods: Sequence[str], reversals: Sequence[str]) -> list[SurveyCondition]:
    """The clear control, methods NAME:PARAMETER=VALUE,…, and reversed ones, METHOD@ATTACKER."""
    out = [SurveyCondition(), *(SurveyCondition(MethodConfig.model_validate(text)) for text in methods)]
    for text in reversals:
        name, at, attacker = (part.strip() for part in text.partition("@"))
        if not (name and at and attacker):
            raise UsageError(f"{text!r} is not of the form METHOD@ATTACKER, such as pixelation:size=8@ridge")
        out.append(SurveyCondition(MethodConfig.model_validate(name), attacker))
    labels = [condition.label for condition in out]
    if len(out) < 2 or len(set(labels)) < len(labels):
        raise UsageError(f"a survey needs methods, each once, not {labels}; give --method or --reversed")
    return out


class Survey(NamedTuple):
    """The key of a survey, which stays with the researcher, and its pictures [S,S,3] uint8 RGB by token."""

    key: SurveyKey
    pixels: dict[str, Images]


def make_survey(
    source: SetConfig,
    conditions: Sequence[SurveyCondition],
    *,
    pairs: int = 8,
    seed: int = 0,
    detector: FaceDetector | None = None,
    progress: Progress | None = None,
) -> Survey:
    """Draw a survey from a face set, and make its pictures.

    An eighth of the people are for anonymisers that mix in others, a quarter for attackers that learn.
    """
    report = progress or (lambda done, total, what: None)
    report(0, len(conditions), f"preparing {source.name}")
    prepared = prepared_set(source, detector, None)
    faces, people = prepared.faces, known(prepared.faces)
    total = len(np.unique(people[people >= 0]))
    background, attacker = min(_BACKGROUND, total // 8), min(_ATTACKER, total // 4)
    sizes = {"background": background, "attacker": attacker, "test": total - background - attacker}
    parts = divide(prepared, source.split.model_copy(update=sizes))
    genders = prepared.groups.get("gender")
    drawn, notes = draw(people, parts.gallery, parts.probe, genders, conditions=len(conditions), pairs=pairs, seed=seed)
    asked = [pair for pair in drawn if pair.condition >= 0]
    rows = [np.sort(np.array([getattr(pair, side) for pair in asked], np.int64)) for side in ("reference", "shown")]
    used = dataclasses.replace(parts, gallery=rows[0], probe=rows[1])
    used = written(used, people, {"drawn from": parts.digest}, faces.names)
    bench = Bench(prepared, used, (), None, Store(None), seed=seed)
    changed: list[dict[int, Images]] = []
    for done, condition in enumerate(conditions, 1):
        images = _shown(bench, condition, partial(report, done - 1, len(conditions))).images
        changed.append(dict(zip(rows[1].tolist(), images, strict=True)))
        report(done, len(conditions), condition.label)

    pictures: dict[str, SurveyPicture] = {}
    pixels: dict[str, Images] = {}

    def token_of(row: int, condition: str, image: Images) -> str:
        token = secrets.token_hex(8)  # or whoever knows the seed could tell what it stands for
        marks = tuple((round(float(x), 2), round(float(y), 2)) for x, y in faces.landmarks[row])
        pictures[token], pixels[token] = SurveyPicture(faces.names[row], int(people[row]), condition, marks), image
        return token

    items = []
    for number, pair in enumerate(drawn):
        label, image = "", faces.images[pair.shown]
        if pair.condition >= 0:
            label, image = conditions[pair.condition].label, changed[pair.condition][pair.shown]
        sides = [token_of(pair.reference, "", faces.images[pair.reference]), token_of(pair.shown, label, image)]
        if generator(seed, "survey side", number).integers(2):
            sides.reverse()
        items.append(SurveyItem(secrets.token_hex(6), label, "yes" if pair.same else "no", tuple(sides)))
    items.sort(key=lambda item: item.id)  # a random order
    facts = {key: value for key, value in prepared.facts().items() if key != "failures_to_acquire"}
    table, token = tuple(condition.row() for condition in conditions), secrets.token_hex(6)
    return Survey(SurveyKey("same person", seed, token, facts, table, pictures, tuple(items), tuple(notes)), pixels)


def _shown(bench: Bench, condition: SurveyCondition, say: Callable[[str], None]) -> Faces:
    """The probes of a bench under a condition."""
    rows = bench.split.probe
    if condition.method is None:
        return Subject(bench, None).clear(rows)
    method = anonymiser_for(bench, condition.method.make())
    subject = Subject(dataclasses.replace(bench, specialised=(condition.attacker,)), method, say=say)
    if not condition.attacker:
        return subject.anonymised(rows)
    try:
        (faces,) = attacked(subject.bench, subject, SCENARIOS["reversed-specialised"], rows).values()
    except (NotApplicable, Refused) as error:
        raise UsageError(f"{condition.label}: {error}") from error
    return faces


# -- pages -------------------------------------------------------------------------------------------------------------


def write_survey(folder: Path, survey: Survey, *, consent: str = CONSENT) -> None:
    """Write `page.html` to hand out, `images/TOKEN.png` and `key.json`, which stay here."""
    new_folder(folder, "images")
    files = {token: png(pixels) for token, pixels in survey.pixels.items()}
    for token, data in files.items():
        write_file(folder / "images" / f"{token}.png", data)
    write_file(folder / "page.html", page_html(survey.key, files, consent=consent))
    write_json(folder / "key.json", {"schema": KEY_SCHEMA, **asdict(survey.key)})


def page_html(key: SurveyKey, pictures: Mapping[str, bytes], *, consent: str = CONSENT) -> str:
    """The page, which holds ids and tokens and nothing else of the key; `pictures` are PNGs by token."""
    kind = KINDS[key.kind]
    data: dict[str, Any] = {
        "schema": ANSWERS_SCHEMA,
        "questionnaire": key.token,
        "question": kind.question,
        "answers": [dict(zip(("word", "label", "key"), answer, strict=True)) for answer in kind.answers],
        "items": [{"id": item.id, "pictures": item.pictures} for item in key.items],
        "pictures": {token: data_url("image/png", data) for token, data in sorted(pictures.items())},
    }
    return fill_page(page_template(__package__), data, intro=kind.intro.format(count=len(key.items)), consent=consent)


# -- answers -----------------------------------------------------------------------------------------------------------

METRICS = ("F1", "F1 (pairs of one person)", "accuracy", "sensitivity", "specificity")
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
