"""The pictures of a survey under random tokens, and its self-contained pages; only the key holds who is who."""

from __future__ import annotations

import dataclasses
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ficgan.anonymizers import ANONYMIZERS, Anonymizer, Faces, Images
from ficgan.errors import UsageError
from ficgan.faces import FaceDetector
from ficgan.files import atomic_write
from ficgan.lab.attackers import attacked, shareable
from ficgan.lab.attacks import REVERSERS
from ficgan.lab.bench import Bench, NotApplicable, Refused, Subject, anonymiser_for, divide, known, prepared_set
from ficgan.lab.matrix_config import SCENARIOS, MethodConfig, SetConfig, without_folder
from ficgan.lab.sets import Prepared, Split
from ficgan.lab.sets.faceset import written
from ficgan.lab.stored import Progress, Store, data_url, fill_page, new_folder, page_template, png
from ficgan.lab.survey.design import (
    ANSWERS_SCHEMA,
    Check,
    Condition,
    Design,
    Item,
    Key,
    Pair,
    Picture,
    Questionnaire,
    Rules,
    draw,
    people_needed,
)  # fmt: skip
from ficgan.registry import parse_spec

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
    methods: Sequence[MethodConfig], reversals: Sequence[str], *, control: bool = True,
    named: Sequence[MethodConfig] = (),
) -> tuple[Change, ...]:  # fmt: skip
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
    source: SetConfig, changes: Sequence[Change], rules: Rules, *, divided: bool = False,
    detector: FaceDetector | None = None, store: Path | None = None,
    progress: Progress | None = None,
) -> Survey:  # fmt: skip
    """Draw a survey from the tested part of a face set, and make its pictures.

    Unless `divided`, the survey has as many people as it can be given; background and attackers get what is left.
    """
    report = progress or (lambda done, total, what: None)
    report(0, len(changes), f"preparing {source.name}")
    prepared = prepared_set(source, detector, store)
    people, sizes = known(prepared.faces), source.split
    if not divided:
        sizes = sizes.model_copy(update=_sizes(people, changes, people_needed(len(changes), rules)))
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


def _sizes(people: NDArray[np.int64], changes: Sequence[Change], needed: int) -> dict[str, int]:
    made = [change.method.make() for change in changes if change.method is not None]
    learners = [parse_spec(one.attacker)[0] for one in changes if one.attacker and not one.folder]
    background = _BACKGROUND * any("background" in one.traits.needs for one in made)
    attacker = _ATTACKER * any("pairs" in REVERSERS[name].traits.knowledge for name in learners)
    who, counts = np.unique(people[people >= 0], return_counts=True)
    with_two_photos = int((counts >= 2).sum())
    # Half as many again as are needed: women and men are not drawn in equal numbers.
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
    prepared: Prepared, design: Design, conditions: tuple[Condition, ...], shown: Sequence[dict[int, Images]],
    rules: Rules,
) -> Survey:  # fmt: skip
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
