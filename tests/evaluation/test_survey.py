"""The survey of human observers: balance, blinding, scoring against other people's code, the page under node."""

from __future__ import annotations

import base64
import hashlib
import io
import itertools
import json
import re
import shutil
import subprocess
from collections import Counter
from dataclasses import asdict, dataclass, replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from sklearn.metrics import accuracy_score, f1_score, recall_score
from survey_world import SIDE, hand_in, made_people, made_survey, random_answers

from ficgan.errors import InputError, UsageError
from ficgan.evaluation.matrix_config import MethodConfig, SetConfig
from ficgan.evaluation.metrics.intervals import Bootstrap
from ficgan.evaluation.readers import Reader
from ficgan.evaluation.survey import (
    Rules,
    Survey,
    changes_of,
    collect,
    draw,
    judge,
    krippendorff,
    make_survey,
    page_html,
    people_needed,
    read_key,
    score_survey,
    score_text,
    write_survey,
)
from ficgan.evaluation.survey.answers import ANSWERS, votes
from ficgan.evaluation.survey.page_script import SCRIPT
from ficgan.evaluation.survey.score import METRICS, figures, judge_figures

BROWSER = (Path(__file__).parent / "survey_browser.js").read_text(encoding="utf-8")
EVIL = "</script><script>alert(1)</script>\"><img src=x onerror=alert(1)>&amp;' <!-- "
BOOTSTRAP = Bootstrap(200, 3)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> SetConfig:
    return made_people(tmp_path_factory.mktemp("world") / "people")


@pytest.fixture(scope="module")
def survey(source: SetConfig) -> Survey:
    return made_survey(source)


@pytest.fixture(scope="module")
def folder(survey: Survey, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("out") / "survey"
    write_survey(out, survey)
    return out


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


@settings(max_examples=25, deadline=None)
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
        cells = Counter((number, pair.same, pair.gender) for pair, number in draft.pairs)
        assert set(cells.values()) == {pairs // 4} and len(cells) == 4 * conditions
        assert len({pair.number for pair, _ in draft.pairs}) == conditions * pairs
    if len(design.questionnaires) == conditions:  # a Latin square: every pair under every condition, once
        seen = Counter((pair.number, number) for draft in design.questionnaires for pair, number in draft.pairs)
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


def test_an_attacker_that_does_not_apply_is_refused(source: SetConfig) -> None:
    alone = source.model_copy(update={"split": source.split.model_copy(update={"attacker": 0})})
    with pytest.raises(UsageError, match="leaves no faces"):
        make_survey(alone, changes_of([], ["pixelation:size=4@ridge"]), Rules(pairs=4), divided=True)


# Blinding


def test_pages_and_pictures_say_nothing_of_method_or_person(folder: Path, survey: Survey) -> None:
    secrets = {"zaphod", "pixelation", "ridge", "clear", "identical", "genders", "Female", "Male", "labels.csv"}
    pages = sorted((folder / "pages").iterdir())
    assert len(pages) == 3 and (folder.stat().st_mode & 0o777) == 0o700
    for page in pages:
        text = page.read_text()
        visible = re.sub(r"data:image/png;base64,[\w+/=]+", "", text)
        assert not [word for word in secrets if word.lower() in visible.replace(SCRIPT, "").lower()]
        assert set(Page(text).data["items"][0]) == {"id", "left", "right"}
    files = sorted((folder / "images").iterdir())
    assert {file.stem for file in files} == set(survey.pixels)
    for file in files:
        data = file.read_bytes()
        assert re.fullmatch(r"[0-9a-f]{16}\.png", file.name)
        assert not [word for word in secrets if word.lower().encode() in data.lower()]
        chunks = re.findall(rb"IHDR|IDAT|IEND|tEXt|zTXt|iTXt|eXIf|tIME|gAMA|iCCP|pHYs|sRGB", data)
        assert {b"IHDR", b"IDAT", b"IEND"} >= set(chunks)
        with Image.open(io.BytesIO(data)) as picture:
            assert (picture.format, picture.mode, picture.size, picture.info) == ("PNG", "RGB", (SIDE, SIDE), {})


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


class Page(HTMLParser):
    """Reads a page strictly: every element closed in order, no attribute twice."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text: dict[str, str] = {}
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert len({name for name, _ in attrs}) == len(attrs), attrs
        self.elements.append((tag, dict(attrs)))
        if tag not in {"meta", "img", "input"}:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open.pop() == tag, f"</{tag}> closes nothing"

    def handle_data(self, data: str) -> None:
        one = self.elements[-1][1] if self.elements else {}
        owner = one.get("id") or one.get("class") or ""
        self.text[owner] = self.text.get(owner, "") + data

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]

    @property
    def data(self) -> dict[str, Any]:
        return dict(json.loads(self.text["data"]))


def page_of(survey: Survey, number: int = 0) -> str:
    asked = survey.key.questionnaires[number]
    return page_html(asked, {token: b"x" for item in asked.items for token in (item.left, item.right)})


def test_the_page_stands_alone(folder: Path, survey: Survey) -> None:
    asked = survey.key.questionnaires[0]
    text = (folder / "pages" / f"{asked.token}.html").read_text()
    page = Page(text)
    assert not {"link", "iframe", "a", "form", "video"} & {tag for tag, _ in page.elements}
    assert "//" not in re.sub(r"base64,[\w+/=]+|^ *// .*$", "", text, flags=re.M)
    assert "Storage" not in text and "cookie" not in text and "fetch" not in text
    (policy,) = (one["content"] for one in page.all("meta") if one.get("http-equiv") == "Content-Security-Policy")
    digest = base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()
    assert str(policy).startswith("default-src 'none'; ") and f"script-src 'sha256-{digest}'" in str(policy)
    assert f"<script>{SCRIPT}</script>" in text
    data = page.data
    assert {one["id"] for one in data["items"]} == {item.id for item in asked.items}
    for token, address in data["pictures"].items():
        file = base64.b64decode(address.removeprefix("data:image/png;base64,"))
        assert (np.asarray(Image.open(io.BytesIO(file))) == survey.pixels[token]).all()
    assert {one["alt"] for one in page.all("img")} == {"picture on the left", "picture on the right"}
    assert {"yes", "no", "unsure", "back", "start", "save"} <= {one["id"] for one in page.all("button")}
    assert "PLACEHOLDER" in page.text["consent"]


def test_no_text_can_be_injected(survey: Survey) -> None:
    asked = replace(survey.key.questionnaires[0], token=EVIL)
    asked = replace(asked, items=tuple(replace(item, left=EVIL, right=EVIL) for item in asked.items))
    page = Page(page_html(asked, {EVIL: b"x"}, consent=EVIL))
    assert page.text["consent"].rstrip("\n") == EVIL
    assert page.data["questionnaire"] == EVIL and EVIL in page.data["pictures"]
    assert len(page.all("img")) == 2 and len(page.all("script")) == 2
    assert not any(name.startswith("on") for _, attributes in page.elements for name in attributes)
    assert "</" not in SCRIPT and "<!--" not in SCRIPT


def test_nothing_is_overwritten(folder: Path, survey: Survey) -> None:
    with pytest.raises(InputError, match="not empty"):
        write_survey(folder, survey)


def test_the_key_is_read_as_it_was_written(folder: Path, survey: Survey, tmp_path: Path) -> None:
    assert read_key(folder / "key.json") == survey.key
    for text in ("[]", "{}", '{"schema": "ficgan-survey-key/1"}', "{"):
        (tmp_path / "key.json").write_text(text)
        with pytest.raises(InputError):
            read_key(tmp_path / "key.json")


# Answers


def test_who_fails_checks_or_leaves_questions_open_is_refused(survey: Survey, tmp_path: Path) -> None:
    key, (first, second, _) = survey.key, survey.key.questionnaires
    checks = [item.id for item in first.items if item.check]
    files = [
        hand_in(tmp_path / "good.json", first, "ada"),
        hand_in(tmp_path / "wrong.json", first, "bob", {checks[0]}),
        hand_in(tmp_path / "unsure.json", first, "cy", unsure={checks[1]}),
        hand_in(tmp_path / "open.json", replace(first, items=tuple(sorted(first.items, key=lambda i: not i.check))),
                "dee", leave=3),
        hand_in(tmp_path / "again.json", second, "ada"),
        hand_in(tmp_path / "retry.json", first, "bob"),
        hand_in(tmp_path / "finished.json", first, "dee"),
    ]  # fmt: skip
    for name, change in (
        ("consent", {"consent": False}), ("other", {"questionnaire": "x"}), ("schema", {"schema": 1}),
        ("word", {"answers": [{"item": first.items[0].id, "answer": "maybe"}]}), ("list", {"answers": [1]}),
        ("item", {"answers": [{"item": "x", "answer": "yes"}]}), ("who", {"participant": " "}),
    ):  # fmt: skip
        path = hand_in(tmp_path / f"{name}.json", first, name)
        path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
        files.append(path)
    done = collect(key, files)
    assert [one.code for one in done.accepted] == ["ada", "dee"]
    told = done.summary()
    assert told["refused"] == {"checks": 2, "unfinished": 1, "repeated": 2, "damaged": 7}
    assert told["by_questionnaire"] == {first.token: 2} and str(tmp_path) not in told["refusals"][0]["file"]
    lenient = replace(key, rules=replace(key.rules, failures=1))
    assert len(collect(lenient, files[:3]).accepted) == 3


# Scores


@pytest.fixture(scope="module")
def answered(survey: Survey, tmp_path_factory: pytest.TempPathFactory) -> Any:
    return collect(survey.key, random_answers(tmp_path_factory.mktemp("answers"), survey.key, 10))


def test_figures_are_scikit_learns(survey: Survey, answered: Any) -> None:
    for condition in survey.key.conditions:
        some = votes(survey.key, answered.accepted, condition.label)
        truth = some.same[some.pair]
        yes, unsure = some.answer == ANSWERS.index("yes"), some.answer == ANSWERS.index("unsure")
        assert unsure.any() and len(some) == 40
        for way, keep, said in (
            ("wrong", np.ones_like(truth), np.where(unsure, ~truth, yes)), ("left out", ~unsure, yes),
        ):  # fmt: skip
            t, p = truth[keep], said[keep]
            expected = (
                f1_score(t, p), f1_score(t[t], p[t]), accuracy_score(t, p), recall_score(t, p),
                recall_score(t, p, pos_label=False),
            )  # fmt: skip
            found = figures(some, BOOTSTRAP, unsure=way)
            assert [found[name].value for name in METRICS] == pytest.approx(expected)
            assert [found[name].n for name in METRICS] == [len(t), t.sum(), len(t), t.sum(), (~t).sum()]


def test_intervals_resample_people_and_pairs(survey: Survey, answered: Any) -> None:
    """Against a loop that lays every vote down as often as its participant and its pair are drawn."""
    some = votes(survey.key, answered.accepted, survey.key.conditions[1].label)
    boot = Bootstrap(60, 4)
    people = boot.weights(some.participants)
    drawn = {kind: Bootstrap(60, 5 + kind).weights(int((some.same == kind).sum())) for kind in (True, False)}
    place = {kind: {int(row): k for k, row in enumerate(np.flatnonzero(some.same == kind))} for kind in (True, False)}
    values = []
    for r in range(60):
        right = total = 0.0
        for person, pair, word in zip(some.participant, some.pair, some.answer, strict=True):
            kind = bool(some.same[pair])
            weight = people[r, person] * drawn[kind][r, place[kind][int(pair)]]
            right += weight * (ANSWERS[word] == ("yes" if kind else "no"))
            total += weight
        values.append(right / total)
    found = figures(some, boot, unsure="wrong")["accuracy"]
    assert (found.low, found.high) == pytest.approx(tuple(np.quantile(values, [0.025, 0.975])))
    assert found.low < found.value < found.high  # type: ignore[operator]


def slow_alpha(table: np.ndarray) -> float:
    """Krippendorff's α by its definition: disagreement within pairs over disagreement among all answers."""
    units = [[k for k, count in enumerate(row) for _ in range(count)] for row in table]
    units = [one for one in units if len(one) > 1]
    n = sum(map(len, units))
    observed = sum(
        sum(a != b for a, b in itertools.permutations(one, 2)) / (len(one) - 1) for one in units
    ) / n  # fmt: skip
    everything = [value for one in units for value in one]
    expected = sum(a != b for a, b in itertools.permutations(everything, 2)) / (n * (n - 1))
    return 1 - observed / expected


def test_alpha_is_krippendorffs_example() -> None:
    """Computing Krippendorff's Alpha-Reliability (2011), section C: 12 units, four observers, answers missing."""
    columns = ["111-", "2223", "3333", "3333", "2222", "1234", "4444", "1121", "2222", "-555", "--11", "--3-"]
    table = np.array([[column.count(str(value)) for value in range(1, 6)] for column in columns])
    found = krippendorff(table, BOOTSTRAP)
    assert found.value == pytest.approx(0.743, abs=5e-4) and found.n == 11
    assert found.value == pytest.approx(slow_alpha(table)) and found.low < found.value  # type: ignore[operator]


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(*[st.integers(0, 4)] * 3), min_size=1, max_size=8))
def test_alpha_is_the_slow_one(rows: list[tuple[int, int, int]]) -> None:
    table = np.array(rows)
    several = table[table.sum(1) > 1]
    found = krippendorff(table, Bootstrap(5))
    if not len(several) or np.count_nonzero(several.sum(0)) == 1:
        assert found.value is None and found.note
    else:
        assert found.value == pytest.approx(slow_alpha(table))


@dataclass
class Coarse:
    """Reads the mean colours of an 8×8 grid: tells the made people apart while they are clear."""

    name: str = "coarse"
    metric: str = "cosine"
    match_threshold: float = 0.5

    def embed(self, image: np.ndarray, landmarks: np.ndarray) -> np.ndarray:
        small = image.reshape(8, SIDE // 8, 8, SIDE // 8, 3).mean((1, 3)).astype(np.float32)
        return (small - small.mean()).reshape(1, -1)


@pytest.mark.parametrize(("metric", "threshold"), [("cosine", 0.5), ("euclidean", 300.0)])
def test_judges_read_the_very_same_pictures(survey: Survey, folder: Path, metric: str, threshold: float) -> None:
    reader = Reader(Coarse(metric=metric, match_threshold=threshold), "coarse", "coarse", "1")  # type: ignore[arg-type]
    (judged,) = judge(survey.key, folder / "images", [reader])
    assert judged.threshold == (0.5 if metric == "cosine" else -300.0)
    for asked in survey.key.questionnaires:
        for item in asked.items:
            if item.check:
                continue
            pixels = survey.pixels[item.left], survey.pixels[item.right]
            a, b = (Coarse().embed(one, np.zeros(0))[0].astype(float) for one in pixels)
            cosine = a @ b / np.linalg.norm(a) / np.linalg.norm(b)
            expected = cosine if metric == "cosine" else -np.linalg.norm(a - b)
            assert judged.similarity[item.left, item.right] == pytest.approx(expected, rel=1e-5)
            if item.condition == "clear":
                assert judged.matches(item) == item.same
    items = [item for asked in survey.key.questionnaires for item in asked.items if item.condition == "clear"]
    perfect = judge_figures(judged, items, BOOTSTRAP)
    assert perfect["F1"].value == perfect["specificity"].value == 1.0
    assert 0.6 < perfect["F1"].low < 1.0  # type: ignore[operator]


def test_a_missing_picture_is_named(survey: Survey, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="keep the survey's folder whole"):
        judge(survey.key, tmp_path, [])


def test_the_score_is_whole(survey: Survey, folder: Path, answered: Any) -> None:
    reader = Reader(Coarse(), "coarse", "coarse", "1")  # type: ignore[arg-type]
    score = score_survey(survey.key, answered, judge(survey.key, folder / "images", [reader]), bootstrap=BOOTSTRAP)
    json.dumps(score, allow_nan=False)
    assert [row["label"] for row in score["conditions"]] == [one.label for one in survey.key.conditions]
    clear = score["conditions"][0]
    assert clear["votes"] == 40 and clear["pairs"] == 12 and clear["least_votes"] == 3
    assert clear["judges"]["coarse"]["F1"]["value"] == 1.0 and "published" in " ".join(score["notes"])
    some = votes(survey.key, answered.accepted, "clear")
    assert clear["not sure"]["value"] == pytest.approx((some.answer == 2).mean())
    assert 0 <= clear["not sure"]["low"] <= clear["not sure"]["value"] <= clear["not sure"]["high"]
    text = score_text(score)
    assert "10 participants" in text and f"{clear['as wrong']['F1']['value']:.2f} (" in text


def test_a_survey_without_answers_scores_nothing(survey: Survey) -> None:
    score = score_survey(survey.key, collect(survey.key, []), bootstrap=BOOTSTRAP)
    assert {row["as wrong"]["F1"]["value"] for row in score["conditions"]} == {None}
    assert "–" in score_text(score)


def test_perfect_people_are_not_certain(survey: Survey, tmp_path: Path) -> None:
    files = [hand_in(tmp_path / f"{k}.json", survey.key.questionnaires[k % 3], f"p{k}") for k in range(6)]
    clear = score_survey(survey.key, collect(survey.key, files), bootstrap=BOOTSTRAP)["conditions"][0]
    assert clear["as wrong"]["accuracy"]["value"] == 1.0 and 0.5 < clear["as wrong"]["accuracy"]["low"] < 0.7
    assert clear["agreement"]["value"] == 1.0


# The page's script


@pytest.fixture(scope="module")
def node() -> str:
    found = shutil.which("node")
    if found is None:
        pytest.skip("needs node to run the page's script")
    return found


def run(node: str, code: str) -> Any:
    """What the last line of a script prints, from JSON."""
    done = subprocess.run([node, "-"], input=code, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def browse(node: str, text: str, actions: str) -> Any:
    page = Page(text)
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    head = f"const IDS = {json.dumps(ids)}, DATA = {json.dumps(page.text['data'])};\n"
    return run(node, f"{head}{BROWSER}\n{{{SCRIPT}}}\nlet out;\n{actions}\nconsole.log(JSON.stringify(out));")


def shuffled(count: int, text: str) -> list[int]:
    """The page's order, in Python: FNV-1a, mulberry32, Fisher–Yates."""
    state = 0x811C9DC5
    for byte in text.encode():
        state = (state ^ byte) * 0x01000193 % 2**32
    out = list(range(count))
    for k in range(count - 1, 0, -1):
        state = (state + 0x6D2B79F5) % 2**32
        t = (state ^ state >> 15) * (state | 1) % 2**32
        t = (t + (t ^ t >> 7) * (t | 61)) % 2**32 ^ t
        other = (t ^ t >> 14) * (k + 1) // 2**32
        out[k], out[other] = out[other], out[k]
    return out


def test_the_order_is_drawn_from_the_code(node: str) -> None:
    codes = [f"code-{k}" for k in range(200)]
    orders = run(node, f"{SCRIPT}\nconsole.log(JSON.stringify({json.dumps(codes)}.map(c => order(9, 'qü', c))));")
    assert orders == [shuffled(9, f"qü\n{code}") for code in codes]
    places = np.array([[order.index(item) for item in range(9)] for order in orders])
    assert np.abs(places.mean(0) - 4).max() < 0.8  # four standard errors


def test_somebody_with_a_keyboard_answers_and_hands_in(node: str, survey: Survey, tmp_path: Path) -> None:
    """Right answers, one of them corrected by going back; the file is accepted with what was pressed."""
    asked = survey.key.questionnaires[0]
    sources = {item.left + item.right: "y" if item.same else "n" for item in asked.items}
    pictures = json.dumps({item.left + item.right: [item.left, item.right] for item in asked.items})
    text = page_html(asked, {t: t.encode() for item in asked.items for t in (item.left, item.right)})
    out = browse(
        node, text, f"const right = {json.dumps(sources)}, pictures = {pictures};"
        "const shown = () => elements.left.src.split(',')[1] + elements.right.src.split(',')[1];"
        "const keys = {}; for (const k in pictures) keys[pictures[k].map(t => btoa(t)).join('')] = right[k];"
        "click('start'); const refused = elements.message.textContent; elements.agree.checked = true;"
        "elements.code.value = 'not a code'; click('start'); const bad = elements.message.textContent;"
        "elements.code.value = ' ada-1 '; click('start'); const places = [];"
        "press('x'); press('y', {ctrlKey: true}); press('u'); press('b');"
        f"for (let k = 0; k < {len(asked.items)}; k++) {{"
        " places.push([elements.place.textContent, elements.progress.value]); press(keys[shown()]); }"
        "press('y'); click('save'); out = [refused, bad, places, elements.end.hidden, blobs, saved, focused];",
    )  # fmt: skip
    refused, bad, places, hidden, blobs, saved, focused = out
    assert "consent" in refused and "letters" in bad and hidden is False
    assert places == [[f"Question {k + 1} of {len(asked.items)}", k] for k in range(len(asked.items))]
    assert saved == [f"answers-{asked.token}-ada-1.json"] and focused[-1] == "thanks"
    (tmp_path / "a.json").write_text(blobs[0])
    tree = json.loads(blobs[0])
    assert [one["item"] for one in tree["answers"]] == [
        asked.items[k].id for k in shuffled(len(asked.items), f"{asked.token}\nada-1")
    ]
    assert tree["answers"][0]["seconds"] > 0
    (one,) = collect(survey.key, [tmp_path / "a.json"]).accepted
    assert one.code == "ada-1" and not one.failures
    assert json.loads(hand_in(tmp_path / "h.json", asked, "ada-1").read_text()).keys() == tree.keys()
    assert all(one.answers[item.id] == ("yes" if item.same else "no") for item in asked.items)


def test_somebody_with_a_mouse_may_stop_early(node: str, survey: Survey, tmp_path: Path) -> None:
    out = browse(
        node, page_of(survey), "elements.agree.checked = true; const code = elements.code.value; click('start');"
        "click('yes'); click('unsure'); click('no'); click('back'); const asks = []; leave(asks); click('stop');"
        "leave(asks); out = [code, blobs, asks];",
    )  # fmt: skip
    code, blobs, asks = out
    assert re.fullmatch(r"[0-9a-f]{16}", code) and asks == [True, False]
    tree = json.loads(blobs[0])
    assert tree["finished"] is False and [one["answer"] for one in tree["answers"]] == ["yes", "unsure", "no"]
    (tmp_path / "a.json").write_text(blobs[0])
    assert [one.reason for one in collect(survey.key, [tmp_path / "a.json"]).refused] in (["unfinished"], ["checks"])
