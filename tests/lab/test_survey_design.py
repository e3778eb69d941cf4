"""Surveys of human observers: who is shown whom, under what; pictures, keys and folders."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from survey_world import SIDE, made_people, made_survey

from ficgan.errors import InputError, UsageError
from ficgan.lab.matrix_config import MethodConfig, SetConfig
from ficgan.lab.survey import Rules, Survey, changes_of, draw, make_survey, people_needed, read_key, write_survey


def numbered(people: int, photos: int = 4) -> dict[str, Any]:
    """Rows of people with two photos on each side, women and men in turn, three age bands."""
    who = np.repeat(np.arange(people), photos)
    rows = np.arange(len(who))
    return {
        "people": who,
        "references": rows[rows % photos < 2],
        "shown": rows[rows % photos >= 2],
        "groups": {
            "gender": [("Male", "Female")[one % 2] for one in who],
            "age": [("20-29", "30-39", "40-49")[one // 2 % 3] for one in who],
        },
    }


@given(
    conditions=st.integers(1, 6),
    pairs=st.sampled_from([4, 8, 12]),
    checks=st.integers(0, 5),
    seed=st.integers(0, 99),
    asked=st.integers(1, 6),
    match=st.sampled_from([(), ("age",)]),
)
def test_a_design_is_balanced(
    conditions: int, pairs: int, checks: int, seed: int, asked: int, match: tuple[str, ...]
) -> None:
    world = numbered(140)
    people, genders, ages = world["people"], world["groups"]["gender"], world["groups"]["age"]
    rules = Rules(pairs, checks, min(asked, conditions), match, 0, seed)
    design = draw(**world, conditions=conditions, rules=rules)
    assert design == draw(**world, conditions=conditions, rules=rules)
    assert len(design.questionnaires) == min(asked, conditions)
    everybody = [{int(people[row]) for row in (one.reference, one.shown)} for one in design.pairs]
    everybody += [{int(people[row]) for row in (one.first, one.second)} for one in design.checks]
    assert sum(map(len, everybody)) == len(set().union(*everybody)) == people_needed(conditions, rules)
    for pair in design.pairs:
        assert pair.reference in world["references"] and pair.shown in world["shown"]
        assert pair.same == (people[pair.reference] == people[pair.shown])
        assert genders[pair.reference] == genders[pair.shown] == pair.gender
        assert not match or ages[pair.reference] == ages[pair.shown]
    for draft in design.questionnaires:
        cells = Counter((number, pair.same, pair.gender) for pair, number in draft)
        assert set(cells.values()) == {pairs // 4} and len(cells) == 4 * conditions
        assert len({pair.number for pair, _ in draft}) == conditions * pairs
    if len(design.questionnaires) == conditions:  # a Latin square: every pair under every condition, once
        seen = Counter((pair.number, number) for draft in design.questionnaires for pair, number in draft)
        assert set(seen.values()) == {1} and len(seen) == conditions * conditions * pairs
    for check in design.checks:
        same = check.first == check.second
        assert check.same == same and (same or {genders[check.first], genders[check.second]} == {"Female", "Male"})
    assert set(Counter((pair.block, pair.same, pair.swapped) for pair in design.pairs).values()) == {pairs // 4}


def test_another_seed_asks_about_other_people() -> None:
    world = numbered(140)
    drawn = [{pair.reference for pair in draw(**world, conditions=2, rules=Rules(seed=seed)).pairs} for seed in (0, 1)]
    assert len(drawn[0] & drawn[1]) < len(drawn[0]) / 2


def test_without_gender_nobody_is_matched_and_it_is_said() -> None:
    world = numbered(40)
    world["groups"] = {}
    design = draw(**world, conditions=2, rules=Rules(pairs=6, checks=3))
    assert Counter(pair.same for pair in design.pairs) == {True: 6, False: 6}
    assert {check.kind for check in design.checks} == {"identical"}
    assert any("gender" in note for note in design.notes) and any("says yes" in note for note in design.notes)


@pytest.mark.parametrize(
    ("rules", "conditions", "people", "error", "said"),
    [
        ({"pairs": 6}, 2, 100, UsageError, "multiple of 4"),
        ({"questionnaires": 3}, 2, 100, UsageError, "not 3"),
        ({"match": ("height",)}, 2, 100, InputError, "'height'"),
        ({}, 4, 40, InputError, "needs 24 people of gender"),
        ({"checks": 200}, 1, 40, InputError, "attention checks"),
    ],
)
def test_what_cannot_be_balanced_is_refused(
    rules: dict[str, Any], conditions: int, people: int, error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said):
        draw(**numbered(people), conditions=conditions, rules=Rules(**rules))


@pytest.mark.parametrize("rules", [{"pairs": 3}, {"checks": 1, "failures": 2}, {"questionnaires": 0}, {"seed": -1}])
def test_rules_that_cannot_be_are_refused(rules: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        Rules(**rules)


@pytest.mark.parametrize(
    ("methods", "reversals", "control", "said"),
    [
        (["solid"], ["solid"], True, "METHOD@ATTACKER"),
        (["solid", "solid"], [], True, "two conditions"),
        ([], [], False, "needs a condition"),
        (["solid"], ["solid@rigde"], True, "did you mean ridge"),
        (["pixelation:sice=4"], [], True, "did you mean size"),
    ],
)
def test_conditions_that_cannot_be_are_refused(
    methods: list[str], reversals: list[str], control: bool, said: str
) -> None:
    with pytest.raises(UsageError, match=said):
        changes_of([MethodConfig.model_validate(one) for one in methods], reversals, control=control)


def test_pictures_are_what_the_key_says(survey: Survey, source: SetConfig) -> None:
    """Photos of the set under the key's names: clear ones bit by bit, pixelated ones in blocks, reversed ones not."""
    labels = [one.label for one in survey.key.conditions]
    assert labels == ["clear", "pixelation (size 4)", "pixelation (size 4), reversed by ridge"]
    errors: dict[str, list[float]] = {label: [] for label in ["", *labels]}
    for token, picture in survey.key.pictures.items():
        photo = np.asarray(Image.open(Path(source.path) / picture.name).convert("RGB"))
        errors[picture.condition].append(float(np.abs(photo.astype(float) - survey.pixels[token]).mean()))
        if picture.condition == labels[1]:
            blocks = survey.pixels[token].reshape(4, SIDE // 4, 4, SIDE // 4, 3)
            assert (blocks == blocks[:, :1, :, :1]).all()
    assert errors[""] and not np.any(errors[""] + errors["clear"])
    assert min(errors[labels[1]]) > 5 and np.mean(errors[labels[2]]) > 1


def test_pairs_are_two_photos_and_the_clear_one_never_changes(survey: Survey) -> None:
    pictures = survey.key.pictures
    for asked in survey.key.questionnaires:
        people: list[int] = []
        for item in asked.items:
            left, right = pictures[item.left], pictures[item.right]
            assert item.left != item.right and (left.person == right.person) == item.same
            people += {left.person, right.person}
            if item.check:
                assert (survey.pixels[item.left] == survey.pixels[item.right]).all() == item.same
            else:
                assert left.name != right.name
                assert sorted([left.condition, right.condition]) == sorted(["", item.condition])
        assert len(people) == len(set(people))


def test_the_same_seed_gives_the_same_survey_under_other_tokens(source: SetConfig, survey: Survey) -> None:
    again = made_survey(source)

    def told(one: Survey) -> set[tuple[object, ...]]:
        named = {token: (p.name, p.condition) for token, p in one.key.pictures.items()}
        return {(i.pair, i.condition, named[i.left], named[i.right]) for q in one.key.questionnaires for i in q.items}

    assert told(again) == told(survey) and not set(again.pixels) & set(survey.pixels)
    assert told(made_survey(source, seed=1)) != told(survey)


def test_a_folder_of_reversed_pictures_is_shown(source: SetConfig, tmp_path: Path) -> None:
    for path in Path(source.path).glob("*.png"):
        Image.new("RGB", (SIDE, SIDE), (1, 2, 3)).save(tmp_path / path.name)
    solid = [MethodConfig.model_validate({"method": "solid", "label": "mine"})]
    made = make_survey(source, changes_of(solid, [f"mine@folder:{tmp_path}"], control=False), Rules(pairs=4))
    labels = [one.label for one in made.key.conditions]
    assert labels == ["mine", f"mine, reversed by images of {tmp_path.name}"]
    assert str(tmp_path.parent) not in json.dumps(asdict(made.key))
    shown = [made.pixels[token] for token, one in made.key.pictures.items() if one.condition == labels[1]]
    assert shown and all((pixels == (1, 2, 3)).all() for pixels in shown)


def test_attackers_leave_enough_people_of_the_rarer_gender(tmp_path: Path) -> None:
    source = made_people(tmp_path / "people", every=5)
    made = make_survey(source, changes_of([], ["pixelation:size=4@ridge"]), Rules(pairs=4))
    genders = Counter(item.gender for item in made.key.questionnaires[0].items if not item.check)
    assert genders == {"Female": 4, "Male": 4}


def test_an_attacker_that_does_not_apply_is_refused(source: SetConfig) -> None:
    alone = source.model_copy(update={"split": source.split.model_copy(update={"attacker": 0})})
    with pytest.raises(UsageError, match="leaves no faces"):
        make_survey(alone, changes_of([], ["pixelation:size=4@ridge"]), Rules(pairs=4), divided=True)


@pytest.mark.slow
def test_the_order_of_questions_and_the_side_say_nothing(source: SetConfig) -> None:
    """Over many surveys: checks stand anywhere, the clear photo on either side."""
    places, sides = [], Counter[bool]()
    for seed in range(6):
        made = made_survey(source, seed=seed)
        for asked in made.key.questionnaires:
            places += [row for row, item in enumerate(asked.items) if item.check]
            for item in asked.items:
                sides[made.key.pictures[item.left].condition == ""] += not item.check
    assert len(set(places)) > 8 and 0.4 < sides[True] / sides.total() < 0.6


def test_nothing_is_overwritten(folder: Path, survey: Survey) -> None:
    with pytest.raises(InputError, match="not empty"):
        write_survey(folder, survey)


def test_the_key_is_read_as_it_was_written(folder: Path, survey: Survey, tmp_path: Path) -> None:
    assert read_key(folder / "key.json") == survey.key
    for text in ("[]", "{}", '{"schema": "ficgan-survey-key/1"}', "{"):
        (tmp_path / "key.json").write_text(text)
        with pytest.raises(InputError):
            read_key(tmp_path / "key.json")
