"""From a face set to the pictures of a survey: opened, divided, anonymised, reversed, under tokens that say nothing."""

from __future__ import annotations

import dataclasses
import io
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ficgan.anonymizers import ANONYMIZERS, Anonymizer, Faces, Images
from ficgan.errors import UsageError
from ficgan.faces import FaceDetector
from ficgan.lab.attackers import attacked, shareable
from ficgan.lab.attacks import REVERSERS
from ficgan.lab.bench import Bench, NotApplicable, Refused, Subject, anonymiser_for, divide, known, prepared_set
from ficgan.lab.matrix_config import SCENARIOS, MethodConfig, SetConfig, without_folder
from ficgan.lab.sets import Prepared, Split
from ficgan.lab.sets.split import written
from ficgan.lab.stored import Store
from ficgan.lab.survey.design import Check, Design, Pair, Rules, draw, people_needed
from ficgan.lab.survey.key import Condition, Item, Key, Picture, Questionnaire
from ficgan.registry import parse_spec

__all__ = ["CLEAR", "Change", "Survey", "changes_of", "make_survey", "png"]

CLEAR = "clear"
_FOLDER = "folder:"
_BACKGROUND, _ATTACKER = 200, 1000
"""People for anonymisers that mix in others, and for attackers that learn, where no split is given."""
Told = Callable[[int, int, str], None]


@dataclass(frozen=True)
class Change:
    """A condition to be made.

    Args:
        method: the anonymiser; None: the clear control.
        attacker: a reverser and its parameters, "folder:PATH" of reversed crops by the photos' names, or "": nobody.

    Raises:
        UsageError: an attacker without anything to reverse, or an unknown method or attacker.
    """

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
        """Of crops that somebody reversed before; "" where there is none."""
        return self.attacker.removeprefix(_FOLDER) if self.attacker.startswith(_FOLDER) else ""

    @property
    def shown(self) -> str:
        """The attacker without folders of this machine and secrets."""
        return f"images of {Path(self.folder).name}" if self.folder else self.attacker and shareable(self.attacker)

    @property
    def label(self) -> str:
        """As tables say it."""
        if self.method is None:
            return CLEAR
        return f"{self.method.title}, reversed by {self.shown}" if self.attacker else self.method.title


@dataclass(frozen=True)
class Survey:
    """All that is shown, and what it is.

    Attributes:
        key: stays with the researcher.
        pixels: [S,S,3] uint8 RGB by token.
    """

    key: Key
    pixels: dict[str, Images]


def changes_of(
    methods: Sequence[MethodConfig], reversals: Sequence[str], *, control: bool = True,
    named: Sequence[MethodConfig] = (),
) -> tuple[Change, ...]:  # fmt: skip
    """The conditions of a survey: the clear control, the anonymised, the reversed.

    Args:
        methods: shown anonymised.
        reversals: METHOD@ATTACKER, where METHOD is a method's label or a method with its parameters.
        control: whether clear pairs are shown, which say how well people can do at all.
        named: further methods whose labels a reversal may use.

    Raises:
        UsageError: a reversal of another form, two conditions of one label, or none.
    """
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
    detector: FaceDetector | None = None, store: Path | None = None, progress: Told | None = None,
) -> Survey:  # fmt: skip
    """Draw a survey and make its pictures.

    Args:
        source: the face set; people of a survey come from the tested part of its split.
        changes: conditions, of `changes_of`.
        rules: sizes and seed.
        divided: the split is as `source` says; else the survey has as many people as it can be given, and background
            and attackers get what is left, where a condition needs them.
        detector: finds the faces of sets that are not aligned; None: the best one here.
        store: folder that keeps crops and pixels; None: nothing is kept.
        progress: called as progress(done, conditions, what).

    Raises:
        UsageError: a setting that cannot work, or an attacker that does not apply.
        InputError: the set cannot be read, or has too few people.
    """
    told = progress or (lambda done, total, what: None)
    told(0, len(changes), f"preparing {source.name}")
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
        faces, method = _apply(bench, change, rows, partial(told, done - 1, len(changes)))
        shown.append(dict(zip(rows.tolist(), faces.images, strict=True)))
        conditions.append(Condition(change.label, _settings(method), change.shown))
        told(done, len(changes), change.label)
    return _tokens(prepared, design, tuple(conditions), shown, rules)


def png(pixels: Images) -> bytes:
    """A picture as PNG: always RGB of 8 bits, nothing in it but pixels."""
    buffer = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(pixels), "RGB").save(buffer, "PNG", optimize=False)
    return buffer.getvalue()


def _sizes(people: NDArray[np.int64], changes: Sequence[Change], needed: int) -> dict[str, int]:
    """People of each part: as many as there are to choose from, less what conditions mix in or learn from."""
    made = [change.method.make() for change in changes if change.method is not None]
    learners = [parse_spec(one.attacker)[0] for one in changes if one.attacker and not one.folder]
    background = _BACKGROUND * any("background" in one.traits.needs for one in made)
    attacker = _ATTACKER * any("pairs" in REVERSERS[name].traits.knowledge for name in learners)
    who, counts = np.unique(people[people >= 0], return_counts=True)
    several = int((counts >= 2).sum())
    # Half as many again as are needed: women and men are not drawn in equal numbers.
    test = max(2, min(several, max(needed * 3 // 2, len(who) - background - attacker)))
    rest = max(0, len(who) - test)
    background = min(background, rest // 2 if attacker else rest)
    return {"background": background, "attacker": min(attacker, rest - background), "test": test}


def _bench(prepared: Prepared, parts: Split, design: Design, rules: Rules, store: Path | None) -> Bench:
    """The set with no more of its tested people's photos than are shown, so that no others need be anonymised."""
    first = [pair.reference for pair in design.pairs]
    shown = np.sort(np.array([pair.shown for pair in design.pairs], np.int64))
    used = dataclasses.replace(parts, gallery=np.sort(np.array(first, np.int64)), probe=shown)
    used = written(used, known(prepared.faces), {"drawn from": parts.digest}, prepared.faces.names)
    return Bench(prepared, used, (), None, Store(store), seed=rules.seed)


def _apply(
    bench: Bench, change: Change, rows: NDArray[np.int64], say: Callable[[str], None]
) -> tuple[Faces, Anonymizer | None]:
    """Rows of the set as a condition shows them, and the anonymiser."""
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
    told = {key: without_folder(value) for key, value in method.settings().items()}
    if told.get("command"):
        told["command"] = str(told["command"]).split()[0]
    return {"name": method.name, **told}


class _Named:
    """Gives pictures their tokens: one for each photo, condition and place it is needed in."""

    def __init__(self, prepared: Prepared) -> None:
        self.prepared = prepared
        self.pictures: dict[str, Picture] = {}
        self.pixels: dict[str, Images] = {}
        self._known: dict[tuple[object, ...], str] = {}

    def __call__(self, row: int, condition: str, pixels: Images, use: object = "") -> str:
        key = row, condition, use
        if key not in self._known:
            token = self._known[key] = secrets.token_hex(8)
            faces = self.prepared.faces
            marks = tuple((round(float(x), 2), round(float(y), 2)) for x, y in faces.landmarks[row])
            self.pictures[token] = Picture(token, faces.names[row], int(known(faces)[row]), condition, marks)
            self.pixels[token] = pixels
        return self._known[key]


def _tokens(
    prepared: Prepared, design: Design, conditions: tuple[Condition, ...], shown: Sequence[dict[int, Images]],
    rules: Rules,
) -> Survey:  # fmt: skip
    named, clear = _Named(prepared), prepared.faces.images

    def question(pair: Pair, number: int) -> Item:
        label = conditions[number].label
        reference = named(pair.reference, "", clear[pair.reference])
        changed = named(pair.shown, label, shown[number][pair.shown])
        left, right = (changed, reference) if pair.swapped else (reference, changed)
        return Item(secrets.token_hex(6), pair.number, label, pair.same, left, right, "", pair.gender)

    def attention(check: Check) -> Item:
        left, right = (named(row, "", clear[row], side) for side, row in enumerate((check.first, check.second)))
        return Item(secrets.token_hex(6), -1, "", check.same, left, right, check.kind)

    asked = []
    for draft in design.questionnaires:
        items = [question(*one) for one in draft.pairs] + [attention(one) for one in draft.checks]
        items.sort(key=lambda item: item.id)  # an order that is drawn with the tokens, and says nothing
        asked.append(Questionnaire(secrets.token_hex(6), tuple(items)))
    facts = {key: value for key, value in prepared.facts().items() if key != "failures_to_acquire"}
    key = Key(rules, facts, conditions, named.pictures, tuple(asked), design.notes)
    return Survey(key, named.pixels)
