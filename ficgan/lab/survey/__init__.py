"""A survey: who recognises anonymised faces? Its design, its pictures under random tokens, and its pages.

Every questionnaire has every condition equally often, half of the pairs of one person; questionnaire q shows block b
under condition (b + q) mod C, so nobody sees a pair twice (Fantômas, appendix D; the square and checks are ours).
"""

from __future__ import annotations

import dataclasses
import math
import secrets
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BeforeValidator

from ficgan.anonymizers import ANONYMIZERS, Anonymizer, Faces, Images, generator
from ficgan.errors import InputError, UsageError
from ficgan.faces import FaceDetector
from ficgan.files import atomic_write
from ficgan.lab.attackers import attacked, shareable
from ficgan.lab.attacks import REVERSERS
from ficgan.lab.bench import Bench, NotApplicable, Refused, Subject, anonymiser_for, divide, known, prepared_set
from ficgan.lab.matrix_config import SCENARIOS, MethodConfig, SetConfig
from ficgan.lab.pages import data_url, fill_page, new_folder, page_template, png, read_checked, write_json
from ficgan.lab.results import without_folder
from ficgan.lab.run import Progress, Store
from ficgan.lab.sets import Prepared, Split
from ficgan.lab.sets.faceset import written
from ficgan.registry import parse_spec

KEY_SCHEMA = "ficgan-survey-key/1"
ANSWERS_SCHEMA = "ficgan-survey-answers/1"
GENDER = "gender"
CHECKS = ("identical", "genders")  # The same photo twice; a woman and a man. In this order, again and again.


@dataclass(frozen=True)
class Rules:
    """How a survey is drawn; the defaults are the paper's where it has any. UsageError for numbers that cannot be."""

    pairs: int = 8  # of a condition in a questionnaire: even, and a multiple of 4 where the set knows women and men
    checks: int = 2  # attention checks in a questionnaire
    questionnaires: int | None = None  # None: as many as conditions, the whole square; 1: one for all, as in the paper
    match: tuple[str, ...] = ()  # columns besides gender, such as "age", in which strangers of a pair agree
    failures: int = 0  # most attention checks that somebody may fail
    seed: int = 0

    def __post_init__(self) -> None:
        if self.pairs < 2 or self.pairs % 2:
            raise UsageError(f"{self.pairs} pairs cannot be half of one person, half of two; give an even number")
        if self.checks < 0 or self.seed < 0 or not 0 <= self.failures <= self.checks:
            raise UsageError("give 0 or more checks, failures from 0 to as many, and a seed of 0 or more")
        if self.questionnaires is not None and self.questionnaires < 1:
            raise UsageError(f"{self.questionnaires} questionnaires ask nobody; give at least 1")


@dataclass(frozen=True)
class Pair:
    """Two photos, rows of the set; `reference` stays clear, `shown` is what a condition changes."""

    number: int
    block: int  # of the square
    reference: int
    shown: int
    same: bool
    gender: str  # of both people; "" where the set does not know
    swapped: bool  # the reference stands on the right


@dataclass(frozen=True)
class Check:
    """An attention check: two clear photos, rows of the set, `kind` one of `CHECKS`."""

    kind: str
    first: int
    second: int

    @property
    def same(self) -> bool:
        return self.kind == CHECKS[0]


@dataclass(frozen=True)
class Design:
    pairs: tuple[Pair, ...]
    checks: tuple[Check, ...]  # the same in every questionnaire
    questionnaires: tuple[tuple[tuple[Pair, int], ...], ...]  # of each, every pair with the number of its condition
    notes: tuple[str, ...] = ()  # what must be known of how it was drawn


@dataclass(frozen=True)
class Condition:
    label: str
    method: Mapping[str, Any] = field(default_factory=dict)  # name and settings, no keys; empty for the clear control
    attacker: str = ""  # who reversed it; "": nobody


@dataclass(frozen=True)
class Picture:
    """A picture that is shown. Its token is random: else whoever knows the seed could tell what it stands for."""

    token: str  # its file's name
    name: str  # of the photo in its set
    person: int  # number in the set
    condition: str  # label; "" for photos that are clear in every condition
    landmarks: tuple[tuple[float, float], ...]  # 5 points, pixels of the picture: where recognisers read it


@dataclass(frozen=True)
class Item:
    """A question. An attention check has pair −1, no condition and no gender."""

    id: str  # its name on the page
    pair: int  # the same pair has the same number in all questionnaires
    condition: str  # label
    same: bool  # the right answer
    left: str  # token
    right: str  # token
    check: str = ""  # kind of an attention check
    gender: str = ""  # of both people, "" where unknown


@dataclass(frozen=True)
class Questionnaire:
    """What one participant is asked. The order of the items says nothing: each page shuffles it anew."""

    token: str
    items: tuple[Item, ...]


def _by_token(pictures: Any) -> Any:
    return {row["token"]: row for row in pictures} if isinstance(pictures, list) else pictures


@dataclass(frozen=True)
class Key:
    """A whole survey: what each token stands for, and the right answers. It stays with the researcher."""

    rules: Rules
    source: Mapping[str, Any]  # facts of the face set, JSON-ready
    conditions: tuple[Condition, ...]  # in the order of tables
    pictures: Annotated[Mapping[str, Picture], BeforeValidator(_by_token)]  # by token; a list in the file
    questionnaires: tuple[Questionnaire, ...]
    notes: tuple[str, ...] = ()  # sentences that must be known

    def write(self, path: Path) -> None:
        """Write the key, whole or not at all."""
        tree = asdict(self)
        write_json(path, {"schema": KEY_SCHEMA, **tree, "pictures": list(tree["pictures"].values())})


def read_key(path: Path) -> Key:
    """The key of `Key.write`."""
    return read_checked(path, Key, (KEY_SCHEMA,), "name the folder that `survey make` wrote, or make the survey again")


def people_needed(conditions: int, rules: Rules) -> int:
    """How many people a survey takes: one for each pair of one person, two for each of strangers, and the checks."""
    return conditions * rules.pairs * 3 // 2 + sum(1 + number % 2 for number in range(rules.checks))


@dataclass(frozen=True)
class _Person:
    number: int
    gender: str
    matched: tuple[str, ...]
    reference: int
    shown: int


def draw(
    people: NDArray[np.int64],
    references: NDArray[np.int64],
    shown: NDArray[np.int64],
    groups: Mapping[str, Sequence[str]],
    conditions: int,
    rules: Rules,
) -> Design:
    """Draw the pairs, blocks and checks of a survey from people [N]; nobody is in two of them."""
    count = rules.questionnaires or conditions
    if count > conditions:
        raise UsageError(f"{conditions} conditions make {conditions} questionnaires, not {count}; ask for fewer")
    for column in rules.match:
        if column not in groups:
            raise InputError(f"the set does not know {column!r} of anybody; it has {', '.join(groups) or 'no columns'}")
    everybody, notes = _people(people, references, shown, groups, rules)
    genders = _genders(everybody)
    if not genders:
        notes.append("The set does not say who is a woman and who a man: strangers are not matched on gender.")
        if rules.checks > 1:
            notes.append("Attention checks are identical photos only: who always says yes passes them.")
    strata = genders or ("",)
    if rules.pairs % (2 * len(strata)):
        raise UsageError(f"{rules.pairs} pairs cannot be half women and half men; give a multiple of 4")
    each = conditions * rules.pairs // 2 // len(strata)
    pools = {name: [person for person in everybody if not genders or person.gender == name] for name in strata}
    checks = _checks(pools, rules.checks, len(strata) > 1)
    found: dict[tuple[str, bool], list[tuple[_Person, _Person]]] = {}
    for stratum, pool in pools.items():
        strangers, left = _strangers(pool, each)
        if len(strangers) < each or len(left) < each:
            raise InputError(_too_few(stratum, len(pool), 3 * each, rules))
        found[stratum, False] = strangers
        found[stratum, True] = [(person, person) for person in left[:each]]
    pairs = _blocks(found, conditions, rules.seed)
    questionnaires = (tuple((pair, (pair.block + q) % conditions) for pair in pairs) for q in range(count))
    return Design(pairs, checks, tuple(questionnaires), tuple(notes))


def _people(
    people: NDArray[np.int64],
    references: NDArray[np.int64],
    shown: NDArray[np.int64],
    groups: Mapping[str, Sequence[str]],
    rules: Rules,
) -> tuple[list[_Person], list[str]]:
    rows: tuple[dict[int, list[int]], dict[int, list[int]]] = defaultdict(list), defaultdict(list)
    for photos, side in zip((references, shown), rows, strict=True):
        for row in sorted(photos.tolist()):
            side[int(people[row])].append(row)
    on_both_sides = sorted(set(rows[0]) & set(rows[1]) - {-1})
    out = []
    for number in on_both_sides:
        mine = rows[0][number] + rows[1][number]
        known = {name: _usual([groups[name][row] for row in mine]) for name in {GENDER, *rules.match} & set(groups)}
        rng = generator(rules.seed, "survey photos", number)
        first, second = (int(rng.choice(side[number])) for side in rows)
        matched = tuple(known[column] for column in rules.match)
        if all(matched):
            out.append(_Person(number, known.get(GENDER, ""), matched, first, second))
    missing = len(on_both_sides) - len(out)
    notes = [f"{missing} people of unknown {' or '.join(rules.match)} are left out."] if missing else []
    order = generator(rules.seed, "survey people").permutation(len(out))
    return [out[index] for index in order], notes


def _usual(values: Sequence[str]) -> str:
    counts = Counter(value for value in values if value)
    return min(counts, key=lambda value: (-counts[value], value)) if counts else ""


def _genders(everybody: Sequence[_Person]) -> tuple[str, ...]:
    counts = Counter(person.gender for person in everybody if person.gender)
    known = sorted(counts, key=lambda value: (-counts[value], value))[:2]
    return tuple(sorted(known)) if len(known) == 2 else ()


def _checks(pools: dict[str, list[_Person]], count: int, genders: bool) -> tuple[Check, ...]:
    out = []
    for number in range(count):
        kind = CHECKS[number % 2 if genders else 0]
        sides = list(pools) if kind == CHECKS[1] else [list(pools)[number // 2 % len(pools)]]
        if not all(pools[side] for side in sides):
            raise InputError("there are too few people for the attention checks; ask for fewer pairs or methods")
        taken = [pools[side].pop() for side in sides]
        out.append(Check(kind, taken[0].reference, taken[-1].reference))
    return tuple(out)


def _strangers(pool: Sequence[_Person], wanted: int) -> tuple[list[tuple[_Person, _Person]], list[_Person]]:
    waiting: dict[tuple[str, ...], _Person] = {}
    pairs: list[tuple[_Person, _Person]] = []
    for person in pool:
        if len(pairs) == wanted:
            break
        other = waiting.pop(person.matched, None)
        if other is None:
            waiting[person.matched] = person
        else:
            pairs.append((other, person))
    used = {person.number for pair in pairs for person in pair}
    return pairs, [person for person in pool if person.number not in used]


def _blocks(
    found: Mapping[tuple[str, bool], list[tuple[_Person, _Person]]], conditions: int, seed: int
) -> tuple[Pair, ...]:
    out: list[Pair] = []
    for block in range(conditions):
        for same in (True, False):
            mine = [
                (gender, pair)
                for (gender, kind), pairs in found.items()
                if kind == same
                for pair in pairs[block::conditions]
            ]
            sides = generator(seed, "survey sides", block, same).permutation(len(mine)) + block + same
            for (gender, (first, second)), side in zip(mine, sides.tolist(), strict=True):
                out.append(Pair(len(out), block, first.reference, second.shown, same, gender, bool(side % 2)))
    return tuple(out)


def _too_few(stratum: str, there: int, wanted: int, rules: Rules) -> str:
    who = f"people of gender {stratum!r}" if stratum else "people"
    alike = f", so many alike in {' and '.join(rules.match)} that strangers can be paired" if rules.match else ""
    return (
        f"the survey needs {wanted} {who} with photos on both sides{alike}, and there are {there}; give more faces, or "
        "ask for fewer pairs or conditions"
    )


# -- pictures and pages ------------------------------------------------------------------------------------------------

CLEAR = "clear"
_FOLDER = "folder:"
_BACKGROUND, _ATTACKER = 200, 1000
"""People for anonymisers that mix in others, and for attackers that learn, where no split is given."""

CONSENT = (
    "[PLACEHOLDER: no participant may see this page before its consent text stands here. It says who asks and why, who "
    "has approved the study, what is recorded (answers, times, a code), how long it is kept, whom to ask, and that "
    "taking part is voluntary and can be ended at any time.]"
)


@dataclass(frozen=True)
class Change:
    """A condition: a method (None: the clear control) and an attacker, "folder:PATH" of reversed crops, or ""."""

    method: MethodConfig | None = None
    attacker: str = ""

    def __post_init__(self) -> None:
        if self.method is not None:
            self.method.make()
        elif self.attacker:
            raise UsageError(f"{self.attacker} has nothing to reverse; name a method before it, as METHOD@ATTACKER")
        if self.attacker and not self.folder:
            name, parameters = parse_spec(self.attacker)
            REVERSERS.make(name, **parameters)

    @property
    def folder(self) -> str:
        """The folder of crops that were reversed before; "" where there is none."""
        return self.attacker.removeprefix(_FOLDER) if self.attacker.startswith(_FOLDER) else ""

    @property
    def shown(self) -> str:
        """The attacker without folders of this machine and secrets."""
        return f"images of {Path(self.folder).name}" if self.folder else self.attacker and shareable(self.attacker)

    @property
    def label(self) -> str:
        if self.method is None:
            return CLEAR
        return f"{self.method.title}, reversed by {self.shown}" if self.attacker else self.method.title


@dataclass(frozen=True)
class Survey:
    """The key of a survey, which stays with the researcher, and its pictures [S,S,3] uint8 RGB by token."""

    key: Key
    pixels: dict[str, Images]


def changes_of(
    methods: Sequence[MethodConfig],
    reversals: Sequence[str],
    *,
    control: bool = True,
    named: Sequence[MethodConfig] = (),
) -> tuple[Change, ...]:
    """The conditions of a survey: the clear control, the anonymised, the reversed (METHOD@ATTACKER)."""
    by_title = {method.title: method for method in (*named, *methods)}
    out = [Change()] if control else []
    out += [Change(method) for method in methods]
    for text in reversals:
        name, at, attacker = (part.strip() for part in text.partition("@"))
        if not (name and at and attacker):
            raise UsageError(f"{text!r} is not of the form METHOD@ATTACKER, such as pixelation:size=8@ridge")
        out.append(Change(by_title.get(name) or MethodConfig.model_validate(name), attacker))
    labels = [one.label for one in out]
    repeated = sorted({label for label in labels if labels.count(label) > 1})
    if repeated:
        raise UsageError(f"two conditions are called {repeated[0]!r}; leave one, or give a method another label")
    if not out:
        raise UsageError("a survey needs a condition; name methods or reversals, or keep the clear control")
    return tuple(out)


def make_survey(
    source: SetConfig,
    changes: Sequence[Change],
    rules: Rules,
    *,
    divided: bool = False,
    detector: FaceDetector | None = None,
    store: Path | None = None,
    progress: Progress | None = None,
) -> Survey:
    """Draw a survey from the tested part of a face set, and make its pictures.

    Unless `divided`, the survey has as many people as it can be given; background and attackers get what is left.
    """
    report = progress or (lambda done, total, what: None)
    report(0, len(changes), f"preparing {source.name}")
    prepared = prepared_set(source, detector, store)
    people, sizes = known(prepared.faces), source.split
    if not divided:
        needed = people_needed(len(changes), rules) / (2 * _rarer_share(people, prepared.groups.get(GENDER)))
        sizes = sizes.model_copy(update=_sizes(people, changes, math.ceil(needed)))
    parts = divide(prepared, sizes)
    design = draw(people, parts.gallery, parts.probe, prepared.groups, len(changes), rules)
    bench = _bench(prepared, parts, design, rules, store)
    rows = bench.split.probe
    shown: list[dict[int, Images]] = []
    conditions = []
    for done, change in enumerate(changes, 1):
        faces, method = _apply(bench, change, rows, partial(report, done - 1, len(changes)))
        shown.append(dict(zip(rows.tolist(), faces.images, strict=True)))
        conditions.append(Condition(change.label, _settings(method), change.shown))
        report(done, len(changes), change.label)
    return _with_tokens(prepared, design, tuple(conditions), shown, rules)


def _rarer_share(people: NDArray[np.int64], genders: Sequence[str] | None) -> float:
    """The share of people who have the rarer of the two genders; .5 where the set does not say."""
    rows: dict[int, list[str]] = defaultdict(list)
    for person, gender in zip(people.tolist(), genders or (), strict=False):
        rows[person].append(gender)
    counts = Counter(_usual(mine) for person, mine in rows.items() if person >= 0)
    del counts[""]
    two = [count for _, count in counts.most_common(2)]
    return two[1] / sum(two) if len(two) == 2 else 0.5


def _sizes(people: NDArray[np.int64], changes: Sequence[Change], needed: int) -> dict[str, int]:
    made = [change.method.make() for change in changes if change.method is not None]
    learners = [parse_spec(one.attacker)[0] for one in changes if one.attacker and not one.folder]
    background = _BACKGROUND * any("background" in one.traits.needs for one in made)
    attacker = _ATTACKER * any("pairs" in REVERSERS[name].traits.knowledge for name in learners)
    who, counts = np.unique(people[people >= 0], return_counts=True)
    with_two_photos = int((counts >= 2).sum())
    # Half as many again as are needed: people are drawn without regard to gender.
    test = max(2, min(with_two_photos, max(needed * 3 // 2, len(who) - background - attacker)))
    rest = max(0, len(who) - test)
    background = min(background, rest // 2 if attacker else rest)
    return {"background": background, "attacker": min(attacker, rest - background), "test": test}


def _bench(prepared: Prepared, parts: Split, design: Design, rules: Rules, store: Path | None) -> Bench:
    first = [pair.reference for pair in design.pairs]
    shown = np.sort(np.array([pair.shown for pair in design.pairs], np.int64))
    used = dataclasses.replace(parts, gallery=np.sort(np.array(first, np.int64)), probe=shown)
    used = written(used, known(prepared.faces), {"drawn from": parts.digest}, prepared.faces.names)
    return Bench(prepared, used, (), None, Store(store), seed=rules.seed)


def _apply(
    bench: Bench, change: Change, rows: NDArray[np.int64], say: Callable[[str], None]
) -> tuple[Faces, Anonymizer | None]:
    if change.method is None:
        return Subject(bench, None).clear(rows), None
    method = anonymiser_for(bench, change.method.make())
    if change.folder:
        made = ANONYMIZERS.make("external", folder=change.folder)
        return bench.part(rows).anonymise(made), method
    subject = Subject(dataclasses.replace(bench, specialised=(change.attacker,)), method, say=say)
    if not change.attacker:
        return subject.anonymised(rows), method
    try:
        (attempt,) = attacked(subject.bench, subject, SCENARIOS["reversed-specialised"], rows)
    except (NotApplicable, Refused) as error:
        raise UsageError(f"{change.label}: {error}") from error
    return attempt.faces, method


def _settings(method: Anonymizer | None) -> dict[str, Any]:
    if method is None:
        return {}
    settings = {key: without_folder(value) for key, value in method.settings().items()}
    if settings.get("command"):
        settings["command"] = str(settings["command"]).split()[0]
    return {"name": method.name, **settings}


def _with_tokens(
    prepared: Prepared,
    design: Design,
    conditions: tuple[Condition, ...],
    shown: Sequence[dict[int, Images]],
    rules: Rules,
) -> Survey:
    faces, people = prepared.faces, known(prepared.faces)
    pictures: dict[str, Picture] = {}
    pixels: dict[str, Images] = {}
    tokens: dict[tuple[object, ...], str] = {}

    def picture(row: int, condition: str, image: Images, place: int | None = None) -> str:
        if (row, condition, place) not in tokens:
            token = tokens[row, condition, place] = secrets.token_hex(8)
            marks = tuple((round(float(x), 2), round(float(y), 2)) for x, y in faces.landmarks[row])
            pictures[token] = Picture(token, faces.names[row], int(people[row]), condition, marks)
            pixels[token] = image
        return tokens[row, condition, place]

    def question(pair: Pair, number: int) -> Item:
        label = conditions[number].label
        reference = picture(pair.reference, "", faces.images[pair.reference])
        changed = picture(pair.shown, label, shown[number][pair.shown])
        left, right = (changed, reference) if pair.swapped else (reference, changed)
        return Item(secrets.token_hex(6), pair.number, label, pair.same, left, right, "", pair.gender)

    def attention(check: Check) -> Item:
        left, right = (picture(row, "", faces.images[row], n) for n, row in enumerate((check.first, check.second)))
        return Item(secrets.token_hex(6), -1, "", check.same, left, right, check.kind)

    questionnaires = []
    for pairs in design.questionnaires:
        items = [question(*pair) for pair in pairs] + [attention(check) for check in design.checks]
        items.sort(key=lambda item: item.id)  # a random order, which says nothing
        questionnaires.append(Questionnaire(secrets.token_hex(6), tuple(items)))
    facts = {key: value for key, value in prepared.facts().items() if key != "failures_to_acquire"}
    return Survey(Key(rules, facts, conditions, pictures, tuple(questionnaires), design.notes), pixels)


def write_survey(folder: Path, survey: Survey, *, consent: str = CONSENT) -> list[Path]:
    """Write `pages/TOKEN.html` to hand out, `images/TOKEN.png` and `key.json`, which stay here; returns the pages."""
    new_folder(folder, "pages", "images")
    files = {token: png(pixels) for token, pixels in sorted(survey.pixels.items())}
    for token, data in files.items():
        with atomic_write(folder / "images" / f"{token}.png") as file:
            file.write(data)
    pages = []
    for questionnaire in survey.key.questionnaires:
        pages.append(folder / "pages" / f"{questionnaire.token}.html")
        with atomic_write(pages[-1]) as file:
            file.write(page_html(questionnaire, files, consent=consent).encode())
    survey.key.write(folder / "key.json")
    return pages


def page_html(questionnaire: Questionnaire, pictures: Mapping[str, bytes], *, consent: str = CONSENT) -> str:
    """The page of a questionnaire, of which it holds ids and tokens and nothing else; `pictures` are PNGs by token."""
    shown = sorted({token for item in questionnaire.items for token in (item.left, item.right)})
    data: dict[str, Any] = {
        "schema": ANSWERS_SCHEMA,
        "questionnaire": questionnaire.token,
        "items": [{"id": item.id, "left": item.left, "right": item.right} for item in questionnaire.items],
        "pictures": {token: data_url("image/png", pictures[token]) for token in shown},
    }
    return fill_page(page_template(__package__), data, count=str(len(data["items"])), consent=consent)
