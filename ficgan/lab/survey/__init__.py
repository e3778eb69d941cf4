"""A survey: what do people see in anonymised faces? Its pictures under random tokens, its pages, answers and scores."""

from __future__ import annotations

import dataclasses
import itertools
import secrets
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
import yaml
from pydantic import StringConstraints, TypeAdapter

from ficgan.anonymizers import Faces, Images, generator
from ficgan.errors import InputError, Progress, UsageError, unheard
from ficgan.faces import FaceDetector
from ficgan.images.read import read_image
from ficgan.lab.attackers import attacked, shareable
from ficgan.lab.attacks import reverser_of
from ficgan.lab.bench import Bench, NotApplicable, Refused, Subject, divide, known, prepared_set
from ficgan.lab.matrix_config import SCENARIOS, MethodConfig, SetConfig
from ficgan.lab.metrics import Bootstrap
from ficgan.lab.readers import Reader, paired
from ficgan.lab.results import data_url, fill_page, new_folder, page_template, png, read_checked, write_json
from ficgan.lab.run import Store, write_file
from ficgan.lab.sets import written
from ficgan.lab.survey.design import SurveyPair, agreement, draw, draw_rated, figures, plain, pools_of

KEY_SCHEMA = "ficgan-survey-key/3"
ANSWERS_SCHEMA = "ficgan-survey-answers/1"
CLEAR = "clear"
PAIRS, LIKERT = "same person", "likert"
CHECK = "check"  # Question of an attention check that is asked otherwise than the rest
# Most people for anonymisers that mix in others, and for attackers that learn.
_BACKGROUND, _ATTACKER = 200, 1000


@dataclass(frozen=True)
class SurveyKind:
    """What a survey asks."""

    intro: str  # What the page says first; {count} is the number of questions
    questions: dict[str, str]  # By name, in order: what is asked of each picture or pair, and of attention checks
    answers: tuple[tuple[str, str, str], ...]  # Word in the file, label of the button, key that is pressed
    notes: tuple[str, ...]  # What must be read with its figures

    @property
    def words(self) -> list[str]:
        return [word for word, _, _ in self.answers]


_TEXTS = yaml.safe_load(files("ficgan.lab.survey").joinpath("survey.yaml").read_text("utf-8"))
KINDS: dict[str, SurveyKind] = TypeAdapter(dict[str, SurveyKind]).validate_python(_TEXTS["kinds"])
CONSENT = str(_TEXTS["consent"])


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
    right: str  # "": none is
    pictures: tuple[str, ...]
    question: str = ""


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


def conditions_of(methods: Sequence[str | MethodConfig], reversals: Sequence[str]) -> list[SurveyCondition]:
    """The clear control, methods NAME:PARAMETER=VALUE,…, and reversed ones, METHOD@ATTACKER."""
    out = [SurveyCondition(), *(SurveyCondition(MethodConfig.model_validate(each)) for each in methods)]
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
    kind: str = PAIRS,
    pairs: int = 8,
    photos: int = 10,
    seed: int = 0,
    detector: FaceDetector | None = None,
    progress: Progress | None = None,
) -> Survey:
    """Draw a survey from a face set, and make its pictures: `pairs` of each condition, or `photos` under all of them.

    An eighth of the people are for anonymisers that mix in others, a quarter for attackers that learn.
    """
    report = progress or unheard
    report(0, len(conditions), f"preparing {source.name}")
    prepared = prepared_set(source, detector, None)
    faces, people = prepared.faces, known(prepared.faces)
    total = len(np.unique(people[people >= 0]))
    background, attacker = min(_BACKGROUND, total // 8), min(_ATTACKER, total // 4)
    sizes = {"background": background, "attacker": attacker, "test": total - background - attacker}
    parts = divide(prepared, source.split.model_copy(update=sizes))
    pools = pools_of(people, parts.gallery, parts.probe, prepared.groups.get("gender"), seed)
    if kind == LIKERT:
        rated, checks, notes = draw_rated(pools, photos)
        references = changing = np.array(rated, np.int64)
    else:
        drawn, notes = draw(pools, conditions=len(conditions), pairs=pairs)
        asked = [pair for pair in drawn if pair.condition >= 0]
        references, changing = np.array([[pair.reference, pair.shown] for pair in asked], np.int64).T
    used = dataclasses.replace(parts, gallery=np.sort(references), probe=np.sort(changing))
    used = written(used, people, {"drawn from": parts.digest}, faces.names)
    bench = Bench(prepared, used, (), None, Store(None), seed=seed)
    changed: list[dict[int, Images]] = []
    for done, condition in enumerate(conditions, 1):
        images = _shown(bench, condition, partial(report, done - 1, len(conditions))).images
        changed.append(dict(zip(used.probe.tolist(), images, strict=True)))
        report(done, len(conditions), condition.label)

    pictures: dict[str, SurveyPicture] = {}
    pixels: dict[str, Images] = {}
    labels = [*(condition.label for condition in conditions), ""]  # the last one, -1, of what stays clear

    def token_of(row: int, number: int) -> str:
        token = secrets.token_hex(8)  # or whoever knows the seed could tell what it stands for
        marks = tuple((round(float(x), 2), round(float(y), 2)) for x, y in faces.landmarks[row])
        pictures[token] = SurveyPicture(faces.names[row], int(people[row]), labels[number], marks)
        pixels[token] = faces.images[row] if number < 0 else changed[number][row]
        return token

    items = _rated(rated, checks, labels, token_of) if kind == LIKERT else _paired(drawn, labels, seed, token_of)
    items.sort(key=lambda item: item.pictures)  # a random order, in which questions at one picture stay together
    facts = {key: value for key, value in prepared.facts().items() if key != "failures_to_acquire"}
    table, token = tuple(condition.row() for condition in conditions), secrets.token_hex(6)
    return Survey(SurveyKey(kind, seed, token, facts, table, pictures, tuple(items), tuple(notes)), pixels)


Token = Callable[[int, int], str]  # Row of a photo and number of a condition (−1: clear) → token of a new picture


def _rated(rated: Sequence[int], checks: Sequence[int], labels: Sequence[str], token_of: Token) -> list[SurveyItem]:
    """Each photo under each condition with every statement, and attention checks at clear photos."""
    kind, items = KINDS[LIKERT], []
    for row, number in itertools.product(rated, range(len(labels) - 1)):
        given = labels[number], "", (token_of(row, number),)
        items += [SurveyItem(secrets.token_hex(6), *given, name) for name in kind.questions if name != CHECK]
    for row, word in zip(checks, (kind.words[1], kind.words[-2]), strict=True):
        items.append(SurveyItem(secrets.token_hex(6), "", word, (token_of(row, -1),), CHECK))
    return items


def _paired(pairs: Sequence[SurveyPair], labels: Sequence[str], seed: int, token_of: Token) -> list[SurveyItem]:
    items = []
    for number, pair in enumerate(pairs):
        tokens = [token_of(pair.reference, -1), token_of(pair.shown, pair.condition)]
        if generator(seed, "survey side", number).integers(2):
            tokens.reverse()
        right = "yes" if pair.same else "no"
        items.append(SurveyItem(secrets.token_hex(6), labels[pair.condition], right, tuple(tokens)))
    return items


def _shown(bench: Bench, condition: SurveyCondition, say: Callable[[str], None]) -> Faces:
    """The probes of a bench under a condition."""
    rows = bench.split.probe
    if condition.method is None:
        return bench.clear(rows)
    tried = dataclasses.replace(bench, specialised=(condition.attacker,))
    subject = Subject(tried, condition.method.make(), say=say)
    if not condition.attacker:
        return subject.anonymised(rows)
    try:
        (faces,) = attacked(subject, SCENARIOS["reversed-specialised"], rows).values()
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
    kind, cells = KINDS[key.kind], defaultdict[str, str](partial(secrets.token_hex, 4))
    data: dict[str, Any] = {
        "schema": ANSWERS_SCHEMA,
        "questionnaire": key.token,
        "answers": [dict(zip(("word", "label", "key"), answer, strict=True)) for answer in kind.answers],
        "items": [_page_item(key, item, cells) for item in key.items],
        "pictures": {token: data_url("image/png", data) for token, data in sorted(pictures.items())},
    }
    return fill_page(page_template(__package__), data, intro=kind.intro.format(count=asked(key)), consent=consent)


def _page_item(key: SurveyKey, item: SurveyItem, cells: dict[str, str]) -> dict[str, Any]:
    """A question as the page has it; of ratings the page asks one `variant` of each `photo`, and no variant twice."""
    kind = KINDS[key.kind]
    label = {word: label for word, label, _ in kind.answers}.get(item.right, "")
    out = {"id": item.id, "pictures": item.pictures, "question": kind.questions[item.question].format(label=label)}
    if not item.right:
        (token,) = item.pictures
        out |= {"photo": cells[key.pictures[token].name], "variant": cells[f"variant {item.condition}"]}
    return out


def asked(key: SurveyKey) -> int:
    """How many questions a page asks."""
    rated = [item for item in key.items if not item.right]
    names = {key.pictures[item.pictures[0]].name for item in rated}
    each = len({item.question for item in rated}) * min(len(names), len(key.conditions))
    return len(key.items) - len(rated) + each


# -- answers -----------------------------------------------------------------------------------------------------------


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
            if len(given) < asked(key):
                raise InputError(f"{path} answers {len(given)} of {asked(key)} questions; it is left out")
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


Judgements = Mapping[str, Mapping[str, bool]]  # As of `judge`


def judge(key: SurveyKey, images: Path, readers: Sequence[Reader]) -> dict[str, dict[str, bool]]:
    """Name of each recogniser → id of each item → whether it is right about its two pictures in the folder `images`."""
    if key.kind == LIKERT:
        raise UsageError("recognisers do not rate pictures; leave out --judge")
    items = [item for item in key.items if item.condition]
    tokens = sorted({token for item in items for token in item.pictures})
    pixels = [read_image(images / f"{token}.png").rgb for token in tokens]
    marks = np.array([key.pictures[token].landmarks for token in tokens], np.float32)
    faces = Faces(np.stack(pixels), tuple(tokens), marks)
    left, right = (np.array([tokens.index(item.pictures[side]) for item in items]) for side in (0, 1))
    out = {}
    for reader in readers:
        values = reader.embed(faces)
        alike = paired(reader, values[left], values[right]) > reader.threshold
        out[reader.name] = {item.id: bool(one) == (item.right == "yes") for item, one in zip(items, alike, strict=True)}
    return out


# -- figures -----------------------------------------------------------------------------------------------------------


def score_survey(key: SurveyKey, done: SurveyAnswers, judged: Judgements, bootstrap: Bootstrap) -> dict[str, Any]:
    """All figures of a survey, JSON-ready: participants, conditions, judges, notes."""
    score = _ratings if key.kind == LIKERT else _verifications
    return {
        "kind": key.kind,
        "participants": {"accepted": len(done.accepted), "refused": len(done.refused)},
        "conditions": [
            {**condition, **score(key, condition["label"], done, judged, bootstrap)} for condition in key.conditions
        ],
        "judges": list(judged),
        "resamples": bootstrap.resamples,
        "notes": [*KINDS[key.kind].notes, *key.notes],
    }


def _verifications(
    key: SurveyKey, label: str, done: SurveyAnswers, judged: Judgements, bootstrap: Bootstrap
) -> dict[str, Any]:
    words, items = KINDS[key.kind].words, [item for item in key.items if item.condition == label]
    given = [[words.index(answers[item.id]) for item in items] for answers in done.accepted.values()]
    answers = np.array(given, np.int64).reshape(-1, len(items))
    same = np.array([item.right == "yes" for item in items], bool)
    right = answers == np.where(same, words.index("yes"), words.index("no"))
    found = figures(right, same, bootstrap)
    found["not sure"] = figures(answers == words.index("unsure"), same, bootstrap)["accuracy"]
    judges = {
        name: plain(figures(np.array([[told[item.id] for item in items]], bool), same, bootstrap))
        for name, told in judged.items()
    }
    return {"votes": answers.size, "pairs": len(items), **plain(found), "judges": judges}


def _ratings(
    key: SurveyKey, label: str, done: SurveyAnswers, judged: Judgements, bootstrap: Bootstrap
) -> dict[str, Any]:
    """Agreement with each statement, from 0 (the first answer) to 1 (the last)."""
    scale, found = KINDS[key.kind].words, {}
    for name in statements(key.kind):
        items = [item for item in key.items if (item.condition, item.question) == (label, name)]
        rows = [[answers.get(item.id) for item in items] for answers in done.accepted.values()]
        values = [[np.nan if word is None else scale.index(word) / (len(scale) - 1) for word in row] for row in rows]
        found[name] = agreement(name, np.array(values, np.float64).reshape(-1, len(items)), bootstrap)
    return {"votes": next(iter(found.values())).n, **plain(found)}


def statements(kind: str) -> list[str]:
    """Names of what is rated; none of pairs."""
    return [name for name in KINDS[kind].questions if name not in ("", CHECK)]
