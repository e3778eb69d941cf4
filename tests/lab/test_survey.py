"""Surveys of human observers: who is shown whom, pictures and keys, the page, the figures, the commands."""

from __future__ import annotations

import itertools
import json
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from page_reader import EVIL, browse, stands_alone
from PIL import Image
from sklearn.metrics import accuracy_score, f1_score, recall_score
from survey_world import SIDE, hand_in, made_people, made_survey, random_answers
from texture_world import Textures, judged_by_textures

from ficgan.cli.evaluate import evaluate
from ficgan.errors import InputError, UsageError
from ficgan.lab.matrix_config import MethodConfig, SetConfig
from ficgan.lab.metrics import Bootstrap
from ficgan.lab.readers import Reader
from ficgan.lab.survey import KINDS, Survey, SurveyRules, conditions_of, draw, page_html, read_key, write_survey
from ficgan.lab.survey.score import METRICS, agreement, collect, figures, judge, score_survey, score_text, votes

BOOTSTRAP = Bootstrap(60, 3)
KIND = KINDS["same person"]


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


@pytest.fixture(scope="module")
def answered(survey: Survey, tmp_path_factory: pytest.TempPathFactory) -> Any:
    return collect(survey.key, random_answers(tmp_path_factory.mktemp("answers"), survey.key, 10))


# -- design ------------------------------------------------------------------------------------------------------------


def numbered(people: int, genders: bool = True) -> dict[str, Any]:
    """Rows of people with two photos on each side, women and men in turn."""
    who = np.repeat(np.arange(people), 4)
    rows = np.arange(len(who))
    names = [("Male", "Female")[one % 2] for one in who] if genders else None
    return {"people": who, "references": rows[rows % 4 < 2], "shown": rows[rows % 4 >= 2], "genders": names}


@given(st.integers(1, 6), st.sampled_from([4, 8, 12]), st.integers(0, 5), st.integers(0, 99))
def test_a_design_is_balanced(conditions: int, pairs: int, checks: int, seed: int) -> None:
    world, rules = numbered(140), SurveyRules(pairs, checks, None, 0, seed)
    people, genders = world["people"], world["genders"]
    drawn, checked, notes = draw(**world, conditions=conditions, rules=rules)
    assert (drawn, checked, notes) == draw(**world, conditions=conditions, rules=rules) and not notes
    everybody = [{int(people[row]) for row in (one.reference, one.shown)} for one in (*drawn, *checked)]
    assert sum(map(len, everybody)) == len(set().union(*everybody))  # nobody is seen twice
    for pair in drawn:
        assert pair.reference in world["references"] and pair.shown in world["shown"]
        assert pair.same == (people[pair.reference] == people[pair.shown])
        assert genders[pair.reference] == genders[pair.shown] == pair.gender
    cells = Counter((pair.block, pair.same, pair.gender) for pair in drawn)
    assert set(cells.values()) == {pairs // 4} and len(cells) == 4 * conditions
    for check in checked:
        same = check.reference == check.shown
        assert check.same == same and (same or {genders[check.reference], genders[check.shown]} == {"Female", "Male"})


def test_without_gender_nobody_is_matched_and_it_is_noted() -> None:
    pairs, checks, notes = draw(**numbered(40, genders=False), conditions=2, rules=SurveyRules(pairs=6, checks=3))
    assert Counter(pair.same for pair in pairs) == {True: 6, False: 6} and {check.same for check in checks} == {True}
    assert len(notes) == 2


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (lambda: SurveyRules(pairs=3), UsageError),
        (lambda: SurveyRules(checks=1, failures=2), UsageError),
        (lambda: SurveyRules(questionnaires=0), UsageError),
        (lambda: draw(**numbered(100), conditions=2, rules=SurveyRules(pairs=6)), UsageError),
        (lambda: draw(**numbered(100), conditions=2, rules=SurveyRules(questionnaires=3)), UsageError),
        (lambda: draw(**numbered(40), conditions=4, rules=SurveyRules()), InputError),
        (lambda: draw(**numbered(40), conditions=1, rules=SurveyRules(checks=200)), InputError),
        (lambda: conditions_of([], [], control=False), UsageError),
        (lambda: conditions_of([], ["solid"]), UsageError),
        (lambda: conditions_of([], ["solid@rigde"]), UsageError),
        (lambda: conditions_of([MethodConfig(method="solid")] * 2, []), UsageError),
    ],
)
def test_what_cannot_be_is_refused(make: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        make()


def test_pictures_are_what_the_key_says(survey: Survey, source: SetConfig) -> None:
    """Photos of the set under the key's names: clear ones bit by bit, pixelated ones in blocks, reversed ones not."""
    labels = [one["label"] for one in survey.key.conditions]
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


def test_every_pair_is_seen_under_every_condition_and_the_clear_photo_never_changes(survey: Survey) -> None:
    pictures, seen = survey.key.pictures, Counter[tuple[int, str]]()
    for asked in survey.key.questionnaires:
        people: list[int] = []
        for item in asked.items:
            left, right = (pictures[token] for token in item.pictures)
            assert left.token != right.token and (left.person == right.person) == (item.right == "yes")
            people += {left.person, right.person}
            if not item.check:
                assert sorted([left.condition, right.condition]) == sorted(["", item.condition])
                seen[item.number, item.condition] += 1
        assert len(people) == len(set(people))
    assert set(seen.values()) == {1} and len(seen) == 3 * 3 * 4


def test_the_same_seed_gives_the_same_survey_under_other_tokens(source: SetConfig, survey: Survey) -> None:
    def shown(one: Survey) -> set[tuple[object, ...]]:
        named = {token: (p.name, p.condition) for token, p in one.key.pictures.items()}
        return {
            (i.number, i.condition, *(named[token] for token in i.pictures))
            for q in one.key.questionnaires
            for i in q.items
        }

    again = made_survey(source)
    assert shown(again) == shown(survey) and not set(again.pixels) & set(survey.pixels)
    assert shown(made_survey(source, seed=1)) != shown(survey)


def test_a_folder_of_reversed_pictures_is_shown(source: SetConfig, tmp_path: Path) -> None:
    for path in Path(source.path).glob("*.png"):
        Image.new("RGB", (SIDE, SIDE), (1, 2, 3)).save(tmp_path / path.name)
    made = made_survey_of(source, [f"mine@external:folder={tmp_path}"], MethodConfig(method="solid", label="mine"))
    assert str(tmp_path.parent) not in json.dumps(made.key.conditions)
    shown = [made.pixels[token] for token, one in made.key.pictures.items() if "reversed" in one.condition]
    assert shown and all((pixels == (1, 2, 3)).all() for pixels in shown)


def made_survey_of(source: SetConfig, reversals: list[str], *methods: MethodConfig) -> Survey:
    from ficgan.lab.survey import make_survey

    return make_survey(source, conditions_of(methods, reversals, control=False), SurveyRules(pairs=4))


# -- page and key ------------------------------------------------------------------------------------------------------


def test_pages_and_pictures_tell_nothing_of_method_or_person(folder: Path, survey: Survey) -> None:
    secrets = {"pixelation", "ridge", "clear", "identical", "genders", "Female", "Male", "labels.csv", "000-"}
    pages = sorted((folder / "pages").iterdir())
    assert len(pages) == 3 and (folder.stat().st_mode & 0o777) == 0o700
    for file in pages:
        page = stands_alone(file.read_text(), set())
        told = json.dumps({key: one for key, one in page.data.items() if key != "pictures"})
        assert not [word for word in secrets if word.lower() in told.lower()]
        assert set(page.data["items"][0]) == {"id", "pictures"} and "PLACEHOLDER" in page.text["consent"]
    for file in (folder / "images").iterdir():
        assert file.stem in survey.pixels and re.fullmatch(r"[0-9a-f]{16}\.png", file.name)
        with Image.open(file) as picture:
            assert picture.info == {} and (np.asarray(picture) == survey.pixels[file.stem]).all()
    with pytest.raises(InputError):
        write_survey(folder, survey)


def test_no_text_can_be_injected(survey: Survey) -> None:
    asked = survey.key.questionnaires[0]
    asked = replace(asked, token=EVIL, items=tuple(replace(item, pictures=(EVIL, EVIL)) for item in asked.items))
    page = stands_alone(page_html(KIND, asked, {EVIL: b"x"}, consent=EVIL), set())
    assert page.text["consent"].rstrip("\n") == EVIL and EVIL in page.data["pictures"]


def test_the_key_is_read_as_it_was_written(folder: Path, survey: Survey, tmp_path: Path) -> None:
    assert read_key(folder / "key.json") == survey.key
    (tmp_path / "key.json").write_text('{"schema": "ficgan-survey-key/2"}')
    with pytest.raises(InputError):
        read_key(tmp_path / "key.json")


def test_somebody_answers_and_hands_in(node: str, survey: Survey, tmp_path: Path) -> None:
    """Right answers by key, the first by a button and corrected by going back; the file is accepted."""
    asked = survey.key.questionnaires[0]
    tokens = {token for item in asked.items for token in item.pictures}
    keys = {"".join(item.pictures): "y" if item.right == "yes" else "n" for item in asked.items}
    refused, bad, asks, order, count, blob, asks_saved, name = browse(
        node,
        page_html(KIND, asked, {token: token.encode() for token in tokens}),
        f"const right = {json.dumps(keys)}, order = [];"
        "const shown = () => elements.pictures.children.map(one => atob(one.src.split(',')[1])).join('');"
        "click('start'); const refused = elements.message.textContent; elements.agree.checked = true;"
        "elements.code.value = 'not a code'; click('start'); const bad = elements.message.textContent;"
        "elements.code.value = ' ada-1 '; click('start'); press('x'); press('y', {ctrlKey: true});"
        "fire(elements.answers.children[2], 'click'); press('b'); const asks = leave();"
        "while (elements.end.hidden !== false) { order.push(shown()); press(right[shown()]); }"
        "press('y'); click('save');"
        "out = [refused, bad, asks, order, elements.place.textContent, blobs[0], leave(), saved];",
    )
    assert refused and bad and asks is True and asks_saved is False and name == [f"answers-{asked.token}-ada-1.json"]
    assert sorted(order) == sorted(keys) and order != list(keys) and count.endswith(str(len(keys)))
    (tmp_path / "a.json").write_text(blob)
    (one,) = collect(survey.key, [tmp_path / "a.json"]).accepted
    assert one.code == "ada-1" and all(one.answers[item.id] == item.right for item in asked.items)
    tree = json.loads(blob)
    assert tree.keys() == json.loads(hand_in(tmp_path / "h.json", asked, "ada").read_text()).keys()
    assert tree["finished"] and all(answer["seconds"] > 0 for answer in tree["answers"])


# -- answers and figures -----------------------------------------------------------------------------------------------


def test_who_fails_checks_or_leaves_questions_open_is_refused(survey: Survey, tmp_path: Path) -> None:
    key, (first, second, _) = survey.key, survey.key.questionnaires
    check = next(item.id for item in first.items if item.check)
    plain = next(item.id for item in first.items if not item.check)
    files = [
        hand_in(tmp_path / "good.json", first, "ada"),
        hand_in(tmp_path / "unsure.json", first, "bob", {check: "unsure"}),
        hand_in(tmp_path / "open.json", first, "dee", {plain: ""}),
        hand_in(tmp_path / "again.json", second, "ada"),
        hand_in(tmp_path / "retry.json", first, "bob"),
        hand_in(tmp_path / "finished.json", first, "dee"),
    ]
    for number, change in enumerate(
        (
            {"consent": False},
            {"questionnaire": "x"},
            {"schema": 1},
            {"answers": [{"item": plain, "answer": "maybe"}]},
            {"answers": [1]},
            {"answers": [{"item": plain, "answer": "yes"}] * 2},
            {"participant": " "},
        )
    ):
        files.append(hand_in(tmp_path / f"{number}.json", first, str(number), **change))
    done = collect(key, files)
    assert [one.code for one in done.accepted] == ["ada", "dee"]
    reasons = Counter(reason for _, reason, _ in done.refused)
    assert reasons == {"checks": 1, "unfinished": 1, "repeated": 2, "damaged": 7}
    lenient = replace(key, rules=replace(key.rules, failures=1))
    assert len(collect(lenient, files[:2]).accepted) == 2


def test_figures_are_scikit_learns(survey: Survey, answered: Any) -> None:
    score = score_survey(survey.key, answered, bootstrap=BOOTSTRAP)
    for row in score["conditions"]:
        some = votes(survey.key, answered.accepted, row["label"])
        person, pair = np.nonzero(some.asked)
        truth = np.array([item.right == "yes" for item in some.items])[pair]
        yes, unsure = some.answers[person, pair] == 0, some.unsure[person, pair]
        assert unsure.any() and row["votes"] == 40 and row["pairs"] == 12
        for way, keep, said in (
            ("as wrong", np.ones_like(truth), np.where(unsure, ~truth, yes)),
            ("left out", ~unsure, yes),
        ):
            t, p = truth[keep], said[keep]
            expected = (
                f1_score(t, p),
                f1_score(t[t], p[t]),
                accuracy_score(t, p),
                recall_score(t, p),
                recall_score(t, p, pos_label=False),
            )
            assert [row[way][name]["value"] for name in METRICS] == pytest.approx(expected)
            assert [row[way][name]["n"] for name in METRICS] == [len(t), t.sum(), len(t), t.sum(), (~t).sum()]
        assert row["not sure"]["value"] == pytest.approx(unsure.mean())


def test_intervals_resample_people_and_pairs(survey: Survey, answered: Any) -> None:
    """Against a loop that lays every vote down as often as its participant and its pair are drawn."""
    some = votes(survey.key, answered.accepted, survey.key.conditions[1]["label"])
    same = np.array([item.right == "yes" for item in some.items])
    people = BOOTSTRAP.weights(len(some.answers))
    drawn = {kind: Bootstrap(60, 4 + kind).weights(int((same == kind).sum())) for kind in (True, False)}
    place = {kind: {int(row): k for k, row in enumerate(np.flatnonzero(same == kind))} for kind in (True, False)}
    values = []
    for r in range(60):
        right = total = 0.0
        for person, pair in np.argwhere(some.asked):
            kind = bool(same[pair])
            weight = people[r, person] * drawn[kind][r, place[kind][int(pair)]]
            right += weight * some.right[person, pair]
            total += weight
        values.append(right / total)
    found = figures(some.right, some.asked, same, BOOTSTRAP)["accuracy"]
    assert (found.low, found.high) == pytest.approx(tuple(np.quantile(values, [0.025, 0.975])))


@given(st.lists(st.tuples(*[st.integers(0, 3)] * 3), min_size=1, max_size=8))
def test_alpha_is_one_minus_observed_over_expected_disagreement(rows: list[tuple[int, int, int]]) -> None:
    """Krippendorff's α by its definition, over all pairs of answers (2004, ch. 11)."""
    table = np.array(rows)
    found = agreement(table, Bootstrap(5))
    units = [[k for k, count in enumerate(row) for _ in range(count)] for row in table if row.sum() > 1]
    n, everything = sum(map(len, units)), [value for unit in units for value in unit]
    if len(set(everything)) < 2:
        assert found.value is None and found.note
        return
    observed = sum(sum(a != b for a, b in itertools.permutations(one, 2)) / (len(one) - 1) for one in units) / n
    expected = sum(a != b for a, b in itertools.permutations(everything, 2)) / (n * (n - 1))
    assert found.value == pytest.approx(1 - observed / expected)


def test_judges_read_the_very_same_pictures(survey: Survey, folder: Path, answered: Any, tmp_path: Path) -> None:
    for metric, threshold in (("cosine", 0.5), ("euclidean", 300.0)):
        reader = Reader(Textures(8, metric=metric, match_threshold=threshold), "textures", "textures", "1")  # type: ignore[arg-type]
        (judged,) = judge(survey.key, folder / "images", [reader])
        assert judged.threshold == (0.5 if metric == "cosine" else -300.0)
        for item in (item for asked in survey.key.questionnaires for item in asked.items if not item.check):
            a, b = (Textures().embed(survey.pixels[t], np.zeros(0))[0].astype(float) for t in item.pictures)
            cosine = a @ b / np.linalg.norm(a) / np.linalg.norm(b)
            expected = cosine if metric == "cosine" else -np.linalg.norm(a - b)
            assert judged.similarity[item.pictures] == pytest.approx(expected, rel=1e-4)
    score = score_survey(survey.key, answered, [judged], bootstrap=BOOTSTRAP)
    json.dumps(score, allow_nan=False)
    assert score["conditions"][0]["judges"]["textures"]["F1"]["value"] == 1
    assert "10 participants" in score_text(score)
    with pytest.raises(InputError):
        judge(survey.key, tmp_path, [])


def test_perfect_people_are_not_certain_and_nobody_scores_nothing(survey: Survey, tmp_path: Path) -> None:
    files = [hand_in(tmp_path / f"{k}.json", survey.key.questionnaires[k % 3], f"p{k}") for k in range(6)]
    clear = score_survey(survey.key, collect(survey.key, files), bootstrap=BOOTSTRAP)["conditions"][0]
    assert clear["as wrong"]["accuracy"]["value"] == 1.0 and 0.5 < clear["as wrong"]["accuracy"]["low"] < 0.7
    assert clear["agreement"]["value"] == 1.0
    none = score_survey(survey.key, collect(survey.key, []), bootstrap=BOOTSTRAP)
    assert {row["as wrong"]["F1"]["value"] for row in none["conditions"]} == {None} and "–" in score_text(none)


# -- commands ----------------------------------------------------------------------------------------------------------


def call(*words: object) -> tuple[int, str, str]:
    result = CliRunner().invoke(evaluate, ["survey", *map(str, words)])
    return result.exit_code, result.stdout, result.stderr


def test_a_survey_is_made_answered_and_scored(
    source: SetConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, consent = tmp_path / "survey", tmp_path / "consent.txt"
    consent.write_text("I agree <b>freely</b>.")
    data = ("--data", source.path, "--labels", source.labels, "--aligned", "--size", SIDE)
    words = ("make", *data, "--pairs", 4, "--method", "solid", "--consent", consent, "-o", out)
    code, said, error = call(*words)
    told = json.loads(said)
    assert code == 0 and not error and told["questionnaires"] == 2 and told["questions"] == 10 and not told["notes"]
    pages = list((out / "pages").iterdir())
    assert len(pages) == 2 and all("I agree &lt;b&gt;freely&lt;/b&gt;." in page.read_text() for page in pages)
    assert call(*words)[0] != 0  # nothing is overwritten

    judged_by_textures(monkeypatch)
    good = hand_in(tmp_path / "a.json", read_key(out / "key.json").questionnaires[0], "ada")
    scored = tmp_path / "score.json"
    code, said, error = call("score", out, good, "--judge", "textures", "-o", scored, "--resamples", 50)
    assert code == 0 and not error and "1 participants count" in said
    clear, solid = json.loads(scored.read_text())["conditions"]
    assert clear["judges"]["textures"]["accuracy"]["value"] == 1 and solid["judges"]["textures"]["F1"]["value"] == 0
    bad = hand_in(tmp_path / "b.json", read_key(out / "key.json").questionnaires[0], "bob", answers=[])
    code, said, error = call("score", out, good, bad, good, "--resamples", 20)
    assert code == 3 and error.count("Error: ") == 2


def test_a_matrix_names_set_and_methods(source: SetConfig, tmp_path: Path) -> None:
    matrix = tmp_path / "m.yaml"
    matrix.write_text(
        f"sets: [{{name: made, path: {source.path}, labels: {source.labels}, size: 32, aligned: true, "
        "split: {background: 0, attacker: 20, test: 50, enrolment: 0.5}}]\n"
        "methods: [solid, {method: pixelation, size: 4, label: blocks}]\n"
    )
    few = ("--pairs", 4, "--no-control", "--questionnaires", 1, "--reversed", "blocks@ridge")
    code, said, error = call("make", matrix, "-o", tmp_path / "out", *few)
    assert code == 0 and not error
    assert json.loads(said)["conditions"] == ["solid", "blocks", "blocks, reversed by ridge"]
    code, said, _ = call("make", matrix, "-o", tmp_path / "out2", *few, "--method", "solid")
    assert json.loads(said)["conditions"] == ["solid", "blocks, reversed by ridge"]


@pytest.mark.parametrize(
    "words",
    [
        ["--method", "solid"],
        ["fantomas"],
        ["nowhere.yaml"],
        ["nowhere.yaml", "--data", "x", "--method", "solid"],
        ["--data", "x"],
        ["--data", "x", "--method", "sollid"],
        ["--data", "no-such-folder", "--method", "solid", "--aligned"],
    ],
)
def test_mistakes_are_one_sentence(words: list[str], tmp_path: Path) -> None:
    code, out, error = call("make", *words, "-o", tmp_path / "out")
    assert code in (1, 2, 3) and not out and not (tmp_path / "out").exists()
    assert error.startswith("Error: ") and error.count("\n") == 1
