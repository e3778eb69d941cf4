"""A survey: what do people see in anonymised faces? Its pictures under random tokens, its pages, answers and scores."""

from __future__ import annotations

import dataclasses
import itertools
import secrets
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache, partial
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
import yaml
from numpy.typing import NDArray
from pydantic import StringConstraints, TypeAdapter

from ficgan.anonymizers import Faces, Images, generator
from ficgan.errors import InputError, Progress, UsageError, unheard
from ficgan.faces import FaceDetector
from ficgan.images.read import read_image
from ficgan.lab.attackers import attacked, shareable
from ficgan.lab.attacks import reverser_of
from ficgan.lab.bench import Bench, NotApplicable, Subject, divide, known, prepared_set
from ficgan.lab.matrix_config import SCENARIOS, MethodConfig, SetConfig
from ficgan.lab.metrics import Bootstrap, Floats, recentred
from ficgan.lab.readers import Reader, paired
from ficgan.lab.results import Figure, data_url, fill_page, new_folder, page_template, png, read_checked, write_json
from ficgan.lab.run import Store, write_file
from ficgan.lab.sets import written

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
    unbalanced: str  # The same where the set knows no gender

    @property
    def words(self) -> list[str]:
        return [word for word, _, _ in self.answers]


_TEXTS = yaml.safe_load(files("ficgan.lab.survey").joinpath("survey.yaml").read_text("utf-8"))
KINDS: dict[str, SurveyKind] = TypeAdapter(dict[str, SurveyKind]).validate_python(_TEXTS["kinds"])
CONSENT = str(_TEXTS["consent"])


def statements(kind: str) -> list[str]:
    """Names of what is rated; none of pairs."""
    return [name for name in KINDS[kind].questions if name not in ("", CHECK)]


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


# -- who is shown (Fantômas, appendix D and section 8) -----------------------------------------------------------------

# Attention checks in a questionnaire: the same photo twice; a woman and a man, where the set knows them.
CHECKS = 2
Rows = NDArray[np.int64]
Pools = dict[str, list[tuple[int, int]]]  # By gender, rows of a clear and of a changed photo of each person


class SurveyQuestion(NamedTuple):
    """A question about a condition (its number; −1: an attention check)."""

    condition: int
    right: str  # As of `SurveyItem`
    shown: tuple[tuple[int, int], ...]  # Row of each photo, and the number of the condition that changes it; −1: none
    question: str = ""


def draw(pools: Pools, *, conditions: int, pairs: int) -> list[SurveyQuestion]:
    """Pairs of each condition and attention checks, nobody in two of them."""
    if pairs < 2 or pairs % (2 * len(pools)):
        raise UsageError(f"{pairs} pairs cannot be half of one person, half of each gender; give a multiple of 4")
    each = conditions * pairs // 2 // len(pools)
    needed = 3 * each + CHECKS
    if (least := min(map(len, pools.values()))) < needed:
        raise InputError(f"of {needed} people of each gender with photos on both sides there are {least}; give more")
    drawn = []
    for number in range(CHECKS):
        chosen = [pool.pop()[0] for pool in list(pools.values())[: 1 + number % 2]]
        drawn.append(SurveyQuestion(-1, "yes" if len(chosen) == 1 else "no", ((chosen[0], -1), (chosen[-1], -1))))
    for pool in pools.values():
        strangers = list(zip(pool[: 2 * each : 2], pool[1 : 2 * each : 2], strict=True))
        for couples in (strangers, [(person, person) for person in pool[2 * each : 3 * each]]):
            for place, (first, second) in enumerate(couples):
                number, right = place % conditions, "yes" if first is second else "no"
                drawn.append(SurveyQuestion(number, right, ((first[0], -1), (second[1], number))))
    return drawn


def pools_of(people: Rows, references: Rows, shown: Rows, genders: Sequence[str] | None, seed: int) -> Pools:
    """A clear and a changed photo of everybody who has both, in random order, by gender; "" where it is unknown.

    `people` [N] and `genders` [N] ("" where unknown) are of the rows of the set; `references` are rows of photos that
    stay clear, `shown` of photos that conditions change.
    """
    everybody = []
    for person in np.setdiff1d(np.intersect1d(people[references], people[shown]), -1).tolist():
        rng = generator(seed, "survey photos", person)
        clear, changed = (np.sort(rows[people[rows] == person]) for rows in (references, shown))
        names = Counter(genders[row] for row in (*clear, *changed) if genders and genders[row])
        gender = max(sorted(names), key=names.__getitem__, default="")
        everybody.append((gender, (int(rng.choice(clear)), int(rng.choice(changed)))))
    counts = Counter(gender for gender, _ in everybody if gender).most_common(2)
    two = sorted(gender for gender, _ in counts) if len(counts) == 2 else [""]
    order = generator(seed, "survey people").permutation(len(everybody)).tolist()
    return {name: [everybody[row][1] for row in order if name in ("", everybody[row][0])] for name in two}


def draw_rated(pools: Pools, *, conditions: int, photos: int) -> list[SurveyQuestion]:
    """Photos, half of them of each gender, under each condition with every statement, and attention checks."""
    each = photos // len(pools)
    if photos % len(pools):
        raise UsageError(f"{photos} photos cannot be half of each gender; give an even number")
    if (least := min(map(len, pools.values()))) < each + CHECKS:
        raise InputError(f"of {each + CHECKS} people of each gender there are {least}; give more faces")
    rows, words = [[shown for _, shown in pool] for pool in pools.values()], KINDS[LIKERT].words
    every = itertools.product((row for some in rows for row in some[:each]), range(conditions), statements(LIKERT))
    drawn = [SurveyQuestion(number, "", ((row, number),), name) for row, number, name in every]
    others = (row for some in rows for row in some[each:])
    for word, row in zip((words[1], words[-2]), others, strict=False):
        drawn.append(SurveyQuestion(-1, word, ((row, -1),), CHECK))
    return drawn


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
    progress: Progress = unheard,
) -> Survey:
    """Draw a survey from a face set, and make its pictures: `pairs` of each condition, or `photos` under all of them.

    An eighth of the people are for anonymisers that mix in others, a quarter for attackers that learn.
    """
    progress(0, len(conditions), f"preparing {source.name}")
    prepared = prepared_set(source, detector, None)
    faces, people = prepared.faces, known(prepared.faces)
    total = len(np.unique(people[people >= 0]))
    background, attacker = min(_BACKGROUND, total // 8), min(_ATTACKER, total // 4)
    sizes = {"background": background, "attacker": attacker, "test": total - background - attacker}
    parts = divide(prepared, source.split.model_copy(update=sizes))
    pools = pools_of(people, parts.gallery, parts.probe, prepared.groups.get("gender"), seed)
    if kind == LIKERT:
        drawn = draw_rated(pools, conditions=len(conditions), photos=photos)
    else:
        drawn = draw(pools, conditions=len(conditions), pairs=pairs)
    shown = [photo for one in drawn if one.condition >= 0 for photo in one.shown]
    changing = sorted({row for row, number in shown if number >= 0})
    staying = sorted({row for row, number in shown if number < 0}) or changing
    used = dataclasses.replace(parts, gallery=np.array(staying, np.int64), probe=np.array(changing, np.int64))
    used = written(used, people, {"drawn from": parts.digest}, faces.names)
    bench = Bench(prepared, used, (), None, Store(None), seed=seed)
    changed: list[dict[int, Images]] = []
    for done, condition in enumerate(conditions, 1):
        images = _shown(bench, condition, partial(progress, done - 1, len(conditions))).images
        changed.append(dict(zip(changing, images, strict=True)))
        progress(done, len(conditions), condition.label)

    pictures: dict[str, SurveyPicture] = {}
    pixels: dict[str, Images] = {}
    labels = [*(condition.label for condition in conditions), ""]  # the last one, -1, of what stays clear

    @cache
    def token_of(row: int, number: int) -> str:
        token = secrets.token_hex(8)  # or whoever knows the seed could tell what it stands for
        marks = tuple((round(float(x), 2), round(float(y), 2)) for x, y in faces.landmarks[row])
        pictures[token] = SurveyPicture(faces.names[row], int(people[row]), labels[number], marks)
        pixels[token] = faces.images[row] if number < 0 else changed[number][row]
        return token

    items = []
    for place, one in enumerate(drawn):
        tokens = [token_of(*photo) for photo in one.shown]
        if generator(seed, "survey side", place).integers(2):
            tokens.reverse()
        items.append(SurveyItem(secrets.token_hex(6), labels[one.condition], one.right, tuple(tokens), one.question))
    items.sort(key=lambda item: item.pictures)  # a random order, in which questions at one picture stay together
    facts = {key: value for key, value in prepared.facts().items() if key != "failures_to_acquire"}
    table, token = tuple(condition.row() for condition in conditions), secrets.token_hex(6)
    notes = (KINDS[kind].unbalanced,) if len(pools) == 1 else ()
    return Survey(SurveyKey(kind, seed, token, facts, table, pictures, tuple(items), notes), pixels)


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
    except (NotApplicable, UsageError) as error:
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
    kind, cells, items = KINDS[key.kind], defaultdict[str, str](partial(secrets.token_hex, 4)), []
    labels = {word: label for word, label, _ in kind.answers}
    for item in key.items:
        question = kind.questions[item.question].format(label=labels.get(item.right))
        items.append({"id": item.id, "pictures": item.pictures, "question": question})
        if not item.right:  # of ratings the page asks one `variant` of each `photo`, and no variant twice
            photo = key.pictures[item.pictures[0]].name
            items[-1] |= {"photo": cells[photo], "variant": cells[f"variant {item.condition}"]}
    data: dict[str, Any] = {
        "schema": ANSWERS_SCHEMA,
        "questionnaire": key.token,
        "answers": [dict(zip(("word", "label", "key"), answer, strict=True)) for answer in kind.answers],
        "items": items,
        "pictures": {token: data_url("image/png", data) for token, data in sorted(pictures.items())},
    }
    return fill_page(page_template(__package__), data, intro=kind.intro.format(count=asked(key)), consent=consent)


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
    numbers: dict[str | None, int] = {word: number for number, word in enumerate(KINDS[key.kind].words)}
    conditions = []
    for condition in key.conditions:
        items = [item for item in key.items if item.condition == condition["label"]]
        said = [[numbers.get(answers.get(item.id), -1) for item in items] for answers in done.accepted.values()]
        found = score(items, np.array(said, np.int64).reshape(-1, len(items)), judged, bootstrap)
        conditions.append(condition | found)
    return {
        "kind": key.kind,
        "participants": {"accepted": len(done.accepted), "refused": len(done.refused)},
        "conditions": conditions,
        "judges": list(judged),
        "resamples": bootstrap.resamples,
        "notes": [*KINDS[key.kind].notes, *key.notes],
    }


def _verifications(items: list[SurveyItem], answers: Rows, judged: Judgements, bootstrap: Bootstrap) -> dict[str, Any]:
    """Of answers [P,M], numbers of words."""
    words = KINDS[PAIRS].words
    same = np.array([item.right == "yes" for item in items], bool)
    right = answers == np.where(same, words.index("yes"), words.index("no"))
    found = figures(right, same, bootstrap)
    found["not sure"] = figures(answers == words.index("unsure"), same, bootstrap)["accuracy"]
    judges = {
        name: plain(figures(np.array([[told[item.id] for item in items]], bool), same, bootstrap))
        for name, told in judged.items()
    }
    return {"votes": answers.size, "pairs": len(items), **plain(found), "judges": judges}


def _ratings(items: list[SurveyItem], answers: Rows, judged: Judgements, bootstrap: Bootstrap) -> dict[str, Any]:
    """Agreement with each statement, from 0 (the first answer) to 1 (the last), of answers [P,M]; −1: not asked."""
    values = np.where(answers < 0, np.nan, answers / (len(KINDS[LIKERT].words) - 1))
    about = np.array([item.question for item in items])
    found = {name: agreement(name, values[:, about == name], bootstrap) for name in statements(LIKERT)}
    return {"votes": next(iter(found.values())).n, **plain(found)}


METRICS = ("F1", "F1 (pairs of one person)", "accuracy", "sensitivity", "specificity")
Booleans = NDArray[np.bool_]


def plain(found: Mapping[str, Figure]) -> dict[str, Any]:
    return {name: asdict(figure) for name, figure in found.items()}


def figures(right: Booleans, same: Booleans, bootstrap: Bootstrap) -> dict[str, Figure]:
    """`METRICS` of right and wrong answers [P,M] to pairs [M] of the same person or not."""
    # Pairs of one person and of two are drawn apart; by another seed, or as many pairs as people would be drawn alike.
    by_pair = np.empty((bootstrap.resamples, len(same)))
    for kind in (True, False):
        apart = Bootstrap(bootstrap.resamples, bootstrap.seed + 1 + kind)
        by_pair[:, same == kind] = apart.weights((same == kind).sum())
    hit, one = right.astype(np.float64), np.broadcast_to(same, right.shape).astype(np.float64)
    tp, every = hit * one, np.ones_like(hit)
    values = (  # above, below, and what is counted
        (2 * tp, 2 * tp + 1 - hit, every),
        (2 * tp, tp + one, one),
        (hit, every, every),
        (tp, one, one),
        (hit - tp, 1 - one, 1 - one),
    )
    return {
        name: _two_way(name, above, below, int(counted.sum()), by_pair, bootstrap, "answers")
        for name, (above, below, counted) in zip(METRICS, values, strict=True)
    }


def agreement(name: str, values: NDArray[np.float64], bootstrap: Bootstrap) -> Figure:
    """Mean of ratings [P,M] of photos under a condition, NaN where a participant did not see it (Fantômas, §8)."""
    seen = np.isfinite(values)
    by_photo = Bootstrap(bootstrap.resamples, bootstrap.seed + 1).weights(values.shape[1])  # drawn apart from people
    return _two_way(name, np.nan_to_num(values), seen.astype(float), int(seen.sum()), by_photo, bootstrap, "votes")


def _two_way(
    name: str, above: Floats, below: Floats, count: int, by_column: Floats, bootstrap: Bootstrap, unit: str
) -> Figure:
    """Σ above / Σ below of [P,M], with an interval by resampling the people and, as drawn, the columns [R,M]."""
    if not count:
        return Figure(name, None, unit=unit, note="There are no answers to count.")
    by_person = bootstrap.weights(len(above)).astype(np.float64)
    tops, bottoms = (((by_person @ part) * by_column).sum(1) for part in (above, below))
    drawn = np.divide(tops, bottoms, out=np.full(len(bottoms), np.nan), where=bottoms > 0)
    value = float(above.sum() / below.sum())
    trials = min(below.any(1).sum(), below.any(0).sum())
    return Figure(name, value, *recentred(np.append(value, drawn), value, int(trials)), count, unit)


def draw_agreement(conditions: Sequence[Mapping[str, Any]], statements: Sequence[str], canvas: Any) -> None:
    """Bars of the agreement with each statement by condition, with 95 % intervals (Fantômas, Figure 13)."""
    axes, places = canvas.subplots(), np.arange(len(conditions))
    width = 0.8 / len(statements)
    for number, name in enumerate(statements):
        # Where there is no interval, its ends are the value.
        rows = [[row[name][end] for end in ("value", "low", "high")] for row in conditions]
        value, low, high = np.array([[np.nan if x is None else x for x in row] for row in rows]).T
        away = np.nan_to_num(np.abs([value - low, high - value]))
        axes.bar(places + (number - (len(statements) - 1) / 2) * width, value, width, yerr=away, capsize=2, label=name)
    axes.set_xticks(places, [row["label"] for row in conditions], rotation=35, ha="right")
    axes.set(ylabel="agreement: 0 strongly disagree, 1 strongly agree", ylim=(0, 1))
    axes.legend(ncols=len(statements), loc="lower left", bbox_to_anchor=(0, 1), frameon=False)
    axes.grid(axis="y", alpha=0.3)
