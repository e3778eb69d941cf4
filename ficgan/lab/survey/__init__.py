"""A survey: what do people see in anonymised faces? Its design, its pictures under random tokens, and its pages.

Questionnaire q shows the pairs of block b under condition (b + q) mod C: nobody sees a pair twice, everybody sees every
condition equally often, half of the pairs of one person. One questionnaire is Fantômas, appendix D.
"""

from __future__ import annotations

import dataclasses
import secrets
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BeforeValidator

from ficgan.anonymizers import Faces, Images, generator
from ficgan.errors import InputError, UsageError
from ficgan.faces import FaceDetector
from ficgan.lab.attackers import attacked, shareable
from ficgan.lab.attacks import REVERSERS
from ficgan.lab.bench import Bench, NotApplicable, Refused, Subject, anonymiser_for, divide, known, prepared_set
from ficgan.lab.matrix_config import SCENARIOS, MethodConfig, SetConfig
from ficgan.lab.pages import data_url, fill_page, new_folder, page_template, png, read_checked, write_file, write_json
from ficgan.lab.run import Progress, Store
from ficgan.lab.sets.faceset import written
from ficgan.registry import parse_spec

KEY_SCHEMA = "ficgan-survey-key/2"
ANSWERS_SCHEMA = "ficgan-survey-answers/1"
CLEAR = "clear"
GENDER = "gender"
# Attention checks: the same photo twice; a woman and a man.
IDENTICAL, GENDERS = "identical", "genders"
# People for anonymisers that mix in others, and for attackers that learn, where no split is given.
_BACKGROUND, _ATTACKER = 200, 1000

CONSENT = (
    "[PLACEHOLDER: no participant may see this page before its consent text stands here. It says who asks and why, who "
    "has approved the study, what is recorded (answers, times, a code), how long it is kept, whom to ask, and that "
    "taking part is voluntary and can be ended at any time.]"
)


@dataclass(frozen=True)
class SurveyKind:
    """What a survey asks.

    Args:
        intro: what the page says first; {count} is the number of questions.
        question: what is asked of each item.
        answers: word in the file, label of the button, key that is pressed.
    """

    intro: str
    question: str
    answers: tuple[tuple[str, str, str], ...]

    @property
    def words(self) -> list[str]:
        return [word for word, _, _ in self.answers]


KINDS = {
    "same person": SurveyKind(
        "You will see {count} pairs of face pictures, some of them altered. Say of each pair whether both pictures "
        "show the same person. There is no time limit.",
        "Do both pictures show the same person?",
        (("yes", "Yes", "y"), ("no", "No", "n"), ("unsure", "Not sure", "u")),
    )
}


@dataclass(frozen=True)
class SurveyRules:
    """How a survey is drawn; the defaults are the paper's where it has any.

    Args:
        pairs: of a condition in a questionnaire: even, and a multiple of 4 where the set knows women and men.
        checks: attention checks in a questionnaire.
        questionnaires: None: as many as conditions, so that each pair is seen under each condition.
        failures: most attention checks that somebody may fail.
        seed: of who is shown, with whom, to whom.
    """

    pairs: int = 8
    checks: int = 2
    questionnaires: int | None = None
    failures: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        if self.pairs < 2 or self.pairs % 2:
            raise UsageError(f"{self.pairs} pairs cannot be half of one person, half of two; give an even number")
        if self.checks < 0 or self.seed < 0 or not 0 <= self.failures <= self.checks:
            raise UsageError("give 0 or more checks, failures from 0 to as many, and a seed of 0 or more")
        if self.questionnaires is not None and self.questionnaires < 1:
            raise UsageError(f"{self.questionnaires} questionnaires ask nobody; give at least 1")


@dataclass(frozen=True)
class SurveyPair:
    """Two photos, rows of the set: `reference` stays clear, conditions change `shown`; `check`: an attention check."""

    number: int
    block: int
    reference: int
    shown: int
    same: bool
    gender: str = ""
    swapped: bool = False
    check: str = ""


@dataclass(frozen=True)
class SurveyPicture:
    """A picture under its random token.

    Args:
        name, person: the photo's name and its person's number in the set.
        condition: "" for photos that are clear in every condition.
        landmarks: 5 points, pixels, where recognisers read it.
    """

    token: str
    name: str
    person: int
    condition: str
    landmarks: tuple[tuple[float, float], ...]


@dataclass(frozen=True)
class SurveyItem:
    """A question: its tokens from left to right and its right answer. A `check` has number −1 and no condition."""

    id: str
    number: int
    condition: str
    right: str
    pictures: tuple[str, ...]
    check: str = ""
    gender: str = ""


@dataclass(frozen=True)
class Questionnaire:
    """What one participant is asked; each page shuffles the items anew."""

    token: str
    items: tuple[SurveyItem, ...]


def _by_token(pictures: Any) -> Any:
    return {row["token"]: row for row in pictures} if isinstance(pictures, list) else pictures


@dataclass(frozen=True)
class SurveyKey:
    """What each token stands for, and the right answers; it stays with the researcher.

    Args:
        source: facts of the face set.
        conditions: {"label", "method", "attacker"}, in the order of tables; no keys and no folders.
        pictures: by token.
        notes: what must be known of how it was drawn.
    """

    kind: str
    rules: SurveyRules
    source: Mapping[str, Any]
    conditions: tuple[dict[str, Any], ...]
    pictures: Annotated[Mapping[str, SurveyPicture], BeforeValidator(_by_token)]
    questionnaires: tuple[Questionnaire, ...]
    notes: tuple[str, ...] = ()

    def write(self, path: Path) -> None:
        tree = asdict(self)
        write_json(path, {"schema": KEY_SCHEMA, **tree, "pictures": list(tree["pictures"].values())})


def read_key(path: Path) -> SurveyKey:
    """The key of `SurveyKey.write`."""
    return read_checked(path, SurveyKey, (KEY_SCHEMA,), "name the folder that `survey make` wrote, or make it again")


# -- design ------------------------------------------------------------------------------------------------------------


def draw(
    people: NDArray[np.int64],
    references: NDArray[np.int64],
    shown: NDArray[np.int64],
    genders: Sequence[str] | None,
    conditions: int,
    rules: SurveyRules,
) -> tuple[list[SurveyPair], list[SurveyPair], list[str]]:
    """Draw the pairs and the attention checks of a survey; nobody is in two of them.

    Args:
        people: [N] whose photo each row of the set is.
        references, shown: rows of photos that stay clear, and of photos that conditions change.
        genders: [N], "" where unknown; None: the set does not say.

    Returns:
        Pairs, checks, and sentences on what could not be balanced.
    """
    if (rules.questionnaires or 1) > conditions:
        raise UsageError(f"{conditions} conditions make at most {conditions} questionnaires; ask for fewer")
    pools = _pools(people, references, shown, genders, rules.seed)
    both = list(pools)
    notes = []
    if len(both) == 1:
        notes.append("The set does not say who is a woman and who a man: strangers are not matched on gender.")
        if rules.checks > 1:
            notes.append("Attention checks are identical photos only: who always says yes passes them.")
    if rules.pairs % (2 * len(both)):
        raise UsageError(f"{rules.pairs} pairs cannot be half women and half men; give a multiple of 4")
    each = conditions * rules.pairs // 2 // len(both)
    checks, pairs = [], list[SurveyPair]()
    for number in range(rules.checks):
        kind = GENDERS if len(both) == 2 and number % 2 else IDENTICAL
        chosen = both if kind == GENDERS else [both[number // 2 % len(both)]]
        rows = [pools[gender].pop()[0] for gender in chosen if pools[gender]]
        if len(rows) < len(chosen):
            raise InputError("there are too few people for the attention checks; ask for fewer pairs or methods")
        checks.append(SurveyPair(-1, -1, rows[0], rows[-1], kind == IDENTICAL, check=kind))
    for gender, pool in pools.items():
        if len(pool) < 3 * each:
            who = f"people of gender {gender!r}" if gender else "people"
            raise InputError(
                f"the survey needs {3 * each} {who} with photos on both sides, and there are {len(pool)}; give more "
                "faces, or ask for fewer pairs or conditions"
            )
        strangers = list(zip(pool[: 2 * each : 2], pool[1 : 2 * each : 2], strict=True))
        alike = [(person, person) for person in pool[2 * each : 3 * each]]
        for couples in (strangers, alike):
            for place, (first, second) in enumerate(couples):
                swapped = bool(generator(rules.seed, "survey side", len(pairs)).integers(2))
                same, block = first is second, place % conditions
                pairs.append(SurveyPair(len(pairs), block, first[0], second[1], same, gender, swapped))
    return pairs, checks, notes


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
            name, parameters = parse_spec(self.attacker)
            REVERSERS.make(name, **parameters)

    @property
    def label(self) -> str:
        if self.method is None:
            return CLEAR
        return f"{self.method.title}, reversed by {shareable(self.attacker)}" if self.attacker else self.method.title

    def row(self) -> dict[str, Any]:
        method = {} if self.method is None else {"name": self.method.method, **self.method.shown}
        return {"label": self.label, "method": method, "attacker": self.attacker and shareable(self.attacker)}


def conditions_of(
    methods: Sequence[MethodConfig],
    reversals: Sequence[str],
    *,
    control: bool = True,
    named: Sequence[MethodConfig] = (),
) -> list[SurveyCondition]:
    """The clear control, the methods, and the reversed ones, METHOD@ATTACKER; METHOD may be a label of `named`."""
    by_title = {method.title: method for method in (*named, *methods)}
    out = [SurveyCondition()] * control + [SurveyCondition(method) for method in methods]
    for text in reversals:
        name, at, attacker = (part.strip() for part in text.partition("@"))
        if not (name and at and attacker):
            raise UsageError(f"{text!r} is not of the form METHOD@ATTACKER, such as pixelation:size=8@ridge")
        out.append(SurveyCondition(by_title.get(name) or MethodConfig.model_validate(name), attacker))
    labels = [one.label for one in out]
    if not out or len(set(labels)) < len(labels):
        raise UsageError(f"a survey needs conditions of different names, not {labels}; name methods, or label them")
    return out


@dataclass(frozen=True)
class Survey:
    """The key of a survey, which stays with the researcher, and its pictures [S,S,3] uint8 RGB by token."""

    key: SurveyKey
    pixels: dict[str, Images]


def make_survey(
    source: SetConfig,
    conditions: Sequence[SurveyCondition],
    rules: SurveyRules,
    *,
    divided: bool = False,
    detector: FaceDetector | None = None,
    store: Path | None = None,
    progress: Progress | None = None,
) -> Survey:
    """Draw a survey from the tested part of a face set, and make its pictures.

    Unless `divided`, background and attackers get at most half of the people, and the survey the others.
    """
    report = progress or (lambda done, total, what: None)
    report(0, len(conditions), f"preparing {source.name}")
    prepared = prepared_set(source, detector, store)
    faces, people, sizes = prepared.faces, known(prepared.faces), source.split
    if not divided:
        sizes = sizes.model_copy(update=_sizes(len(np.unique(people[people >= 0])), conditions))
    parts = divide(prepared, sizes)
    pairs, checks, notes = draw(people, parts.gallery, parts.probe, prepared.groups.get(GENDER), len(conditions), rules)
    rows = [np.sort(np.array([getattr(pair, side) for pair in pairs], np.int64)) for side in ("reference", "shown")]
    used = dataclasses.replace(parts, gallery=rows[0], probe=rows[1])
    used = written(used, people, {"drawn from": parts.digest}, faces.names)
    bench = Bench(prepared, used, (), None, Store(store), seed=rules.seed)
    changed: list[dict[int, Images]] = []
    for done, condition in enumerate(conditions, 1):
        images = _shown(bench, condition, partial(report, done - 1, len(conditions))).images
        changed.append(dict(zip(rows[1].tolist(), images, strict=True)))
        report(done, len(conditions), condition.label)

    tokens: dict[tuple[object, ...], str] = {}
    pictures: dict[str, SurveyPicture] = {}
    pixels: dict[str, Images] = {}

    def token_of(row: int, condition: str, image: Images, place: int = 0) -> str:
        """Random, or whoever knows the seed could tell what it stands for; the same for the same picture."""
        if (row, condition, place) not in tokens:
            token = tokens[row, condition, place] = secrets.token_hex(8)
            marks = tuple((round(float(x), 2), round(float(y), 2)) for x, y in faces.landmarks[row])
            pictures[token] = SurveyPicture(token, faces.names[row], int(people[row]), condition, marks)
            pixels[token] = image
        return tokens[row, condition, place]

    def item(pair: SurveyPair, number: int) -> SurveyItem:
        if pair.check:
            label, changed_image = "", faces.images[pair.shown]
        else:
            label, changed_image = conditions[number].label, changed[number][pair.shown]
        # The two sides of a check are two files, also where they show one photo.
        sides = [
            token_of(pair.reference, "", faces.images[pair.reference]),
            token_of(pair.shown, label, changed_image, place=1),
        ]
        shown = tuple(reversed(sides) if pair.swapped else sides)
        right = "yes" if pair.same else "no"
        return SurveyItem(secrets.token_hex(6), pair.number, label, right, shown, pair.check, pair.gender)

    questionnaires = []
    for q in range(rules.questionnaires or len(conditions)):
        items = [item(pair, (pair.block + q) % len(conditions)) for pair in (*pairs, *checks)]
        items.sort(key=lambda one: one.id)  # a random order
        questionnaires.append(Questionnaire(secrets.token_hex(6), tuple(items)))
    facts = {key: value for key, value in prepared.facts().items() if key != "failures_to_acquire"}
    table = tuple(condition.row() for condition in conditions)
    key = SurveyKey("same person", rules, facts, table, pictures, tuple(questionnaires), tuple(notes))
    return Survey(key, pixels)


def _sizes(people: int, conditions: Sequence[SurveyCondition]) -> dict[str, int]:
    made = [condition.method.make() for condition in conditions if condition.method is not None]
    learners = [parse_spec(condition.attacker)[0] for condition in conditions if condition.attacker]
    attacker = _ATTACKER * any("pairs" in REVERSERS[name].traits.knowledge for name in learners)
    background = _BACKGROUND * any("background" in one.traits.needs for one in made)
    spare = min(attacker + background, people // 2)
    background = min(background, spare // 2 if attacker else spare)
    return {"background": background, "attacker": spare - background, "test": people - spare}


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
        (attempt,) = attacked(subject.bench, subject, SCENARIOS["reversed-specialised"], rows)
    except (NotApplicable, Refused) as error:
        raise UsageError(f"{condition.label}: {error}") from error
    return attempt.faces


# -- pages -------------------------------------------------------------------------------------------------------------


def write_survey(folder: Path, survey: Survey, *, consent: str = CONSENT) -> list[Path]:
    """Write `pages/TOKEN.html` to hand out, `images/TOKEN.png` and `key.json`, which stay here; returns the pages."""
    new_folder(folder, "pages", "images")
    files = {token: png(pixels) for token, pixels in sorted(survey.pixels.items())}
    for token, data in files.items():
        write_file(folder / "images" / f"{token}.png", data)
    kind = KINDS[survey.key.kind]
    pages = [
        write_file(
            folder / "pages" / f"{questionnaire.token}.html", page_html(kind, questionnaire, files, consent=consent)
        )
        for questionnaire in survey.key.questionnaires
    ]
    survey.key.write(folder / "key.json")
    return pages


def page_html(
    kind: SurveyKind, questionnaire: Questionnaire, pictures: Mapping[str, bytes], *, consent: str = CONSENT
) -> str:
    """The page of a questionnaire, of which it holds ids and tokens and nothing else; `pictures` are PNGs by token."""
    shown = sorted({token for item in questionnaire.items for token in item.pictures})
    data: dict[str, Any] = {
        "schema": ANSWERS_SCHEMA,
        "questionnaire": questionnaire.token,
        "question": kind.question,
        "answers": [dict(zip(("word", "label", "key"), answer, strict=True)) for answer in kind.answers],
        "items": [{"id": item.id, "pictures": item.pictures} for item in questionnaire.items],
        "pictures": {token: data_url("image/png", pictures[token]) for token in shown},
    }
    intro = kind.intro.format(count=len(questionnaire.items))
    return fill_page(page_template(__package__), data, intro=intro, consent=consent)
