"""Surveys of human observers: who is shown whom, pictures and keys, the page, the figures, the commands."""

from __future__ import annotations

import json
import re
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from page_reader import browse, stands_alone
from PIL import Image
from sklearn.metrics import accuracy_score, f1_score, recall_score
from stand_ins import cosine, invoke
from texture_world import Textures, judged_by_textures, write_people

from ficgan.cli.evaluate import evaluate
from ficgan.errors import InputError, UsageError
from ficgan.lab.matrix_config import SetConfig
from ficgan.lab.metrics import Bootstrap
from ficgan.lab.readers import Reader
from ficgan.lab.survey import (
    ANSWERS_SCHEMA,
    LIKERT,
    METRICS,
    Survey,
    SurveyKey,
    SurveyQuestion,
    agreement,
    asked,
    collect,
    conditions_of,
    draw,
    figures,
    judge,
    make_survey,
    page_html,
    pools_of,
    read_key,
    score_survey,
    write_survey,
)

BOOTSTRAP = Bootstrap(60, 3)
SIDE = 32


def made_survey(source: SetConfig, reversed_by: str = "pixelation:size=4@ridge") -> Survey:
    """Clear, pixelated, reversed."""
    return make_survey(source, conditions_of(["pixelation:size=4"], [reversed_by]), pairs=4)


def hand_in(path: Path, key: SurveyKey, code: str, said: dict[str, str] | None = None, **more: Any) -> Path:
    """Answers as the page saves them: right but for what is `said` of items; "" leaves one open."""
    answers = [{"item": item.id, "answer": (said or {}).get(item.id, item.right), "seconds": 1.5} for item in key.items]
    tree = {
        "schema": ANSWERS_SCHEMA,
        "questionnaire": key.token,
        "participant": code,
        "consent": True,
        "finished": True,
        "answers": [one for one in answers if one["answer"]],
    }
    path.write_text(json.dumps({**tree, **more}))
    return path


def random_answers(folder: Path, key: SurveyKey, people: int) -> list[Path]:
    """Files of people who pass the checks and otherwise answer as it comes, oftener right than not."""
    rng, other = np.random.default_rng(0), {"yes": "no", "no": "yes"}
    out = []
    for number in range(people):
        said = {
            item.id: rng.choice([item.right, other[item.right], "unsure"], p=[0.6, 0.25, 0.15])
            for item in key.items
            if item.condition
        }
        out.append(hand_in(folder / f"a{number}.json", key, f"p{number}", said))
    return out


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> SetConfig:
    """Seventy people, women and men in turn, three photos each."""
    folder = write_people(tmp_path_factory.mktemp("world") / "people", 70, 3, 5, noise=8, genders=True)
    return SetConfig(name="made", path=str(folder), labels=str(folder / "labels.csv"), size=SIDE, aligned=True)


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


def design(people: int, genders: bool = True, seed: int = 0, **more: int) -> list[SurveyQuestion]:
    """Of people with two photos on each side, women and men in turn."""
    who, rows = np.repeat(np.arange(people), 4), np.arange(4 * people)
    names = [("Male", "Female")[one % 2] for one in who] if genders else None
    pools = pools_of(who, rows[rows % 4 < 2], rows[rows % 4 >= 2], names, seed)
    return draw(pools, **{"conditions": 2, "pairs": 4, **more})


@given(st.integers(1, 6), st.sampled_from([4, 8, 12]), st.integers(0, 99))
def test_a_design_is_balanced(conditions: int, pairs: int, seed: int) -> None:
    drawn = design(140, conditions=conditions, pairs=pairs, seed=seed)
    assert drawn == design(140, conditions=conditions, pairs=pairs, seed=seed)
    everybody = [{row // 4 for row, _ in pair.shown} for pair in drawn]
    assert sum(map(len, everybody)) == len(set().union(*everybody))  # nobody is seen twice
    cells = Counter((pair.condition, pair.right, pair.shown[1][0] // 4 % 2) for pair in drawn if pair.condition >= 0)
    assert set(cells.values()) == {pairs // 4} and len(cells) == 4 * conditions
    for pair in drawn:
        (clear, _), (shown, changed) = pair.shown
        alike = clear // 4 == shown // 4
        assert alike == (pair.right == "yes") and changed == pair.condition
        if pair.condition < 0:
            assert clear == shown if alike else clear // 4 % 2 != shown // 4 % 2
        else:
            assert clear % 4 < 2 <= shown % 4 and clear // 4 % 2 == shown // 4 % 2
    assert Counter(pair.right for pair in drawn if pair.condition < 0) == {"yes": 1, "no": 1}


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (lambda: design(100, pairs=6), UsageError),
        (lambda: design(100, genders=False, pairs=5), UsageError),
        (lambda: design(40, conditions=4, pairs=8), InputError),
        (lambda: conditions_of([], []), UsageError),
        (lambda: conditions_of([], ["solid"]), UsageError),
        (lambda: conditions_of([], ["solid@rigde"]), UsageError),
        (lambda: conditions_of(["solid", "solid"], []), UsageError),
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


def test_pairs_are_of_a_clear_photo_and_a_changed_one(survey: Survey) -> None:
    pictures, seen, people = survey.key.pictures, Counter[str](), list[int]()
    for item in survey.key.items:
        left, right = (pictures[token] for token in item.pictures)
        assert (left.person == right.person) == (item.right == "yes")
        assert sorted([left.condition, right.condition]) == sorted(["", item.condition])
        people += {left.person, right.person}
        seen[item.condition] += 1
    assert len(people) == len(set(people)) and sorted(seen.values()) == [2, 4, 4, 4]


def test_a_folder_of_reversed_pictures_is_shown(source: SetConfig, tmp_path: Path) -> None:
    for path in Path(source.path).glob("*.png"):
        Image.new("RGB", (SIDE, SIDE), (1, 2, 3)).save(tmp_path / path.name)
    made = made_survey(source, f"solid@external:folder={tmp_path}")
    assert str(tmp_path.parent) not in json.dumps(made.key.conditions)
    shown = [made.pixels[token] for token, one in made.key.pictures.items() if "reversed" in one.condition]
    assert shown and all((pixels == (1, 2, 3)).all() for pixels in shown)


def test_page_and_pictures_tell_nothing_of_method_or_person(folder: Path, survey: Survey) -> None:
    secrets = {"pixelation", "ridge", "clear", "Female", "Male", "labels.csv", "000-"}
    page = stands_alone((folder / "page.html").read_text(), set())
    told = json.dumps({key: one for key, one in page.data.items() if key != "pictures"})
    assert not [word for word in secrets if word.lower() in told.lower()] and (folder.stat().st_mode & 0o777) == 0o700
    assert set(page.data["items"][0]) == {"id", "pictures", "question"} and "PLACEHOLDER" in page.text["consent"]
    for file in (folder / "images").iterdir():
        assert file.stem in survey.pixels and re.fullmatch(r"[0-9a-f]{16}\.png", file.name)
        with Image.open(file) as picture:
            assert picture.info == {} and (np.asarray(picture) == survey.pixels[file.stem]).all()
    with pytest.raises(InputError):
        write_survey(folder, survey)


def test_a_participant_answers_and_hands_in(node: str, survey: Survey, tmp_path: Path) -> None:
    """Right answers by key, the first by a button and corrected by going back; the file is accepted."""
    key, pictures = survey.key, {token: token.encode() for token in survey.pixels}
    keys = {"".join(item.pictures): "y" if item.right == "yes" else "n" for item in key.items}
    refused, bad, asks, order, count, blob, asks_saved, name = browse(
        node,
        page_html(key, pictures),
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
    assert refused and bad and asks is True and asks_saved is False and name == [f"answers-{key.token}-ada-1.json"]
    assert sorted(order) == sorted(keys) and order != list(keys) and count.endswith(str(len(keys)))
    (tmp_path / "a.json").write_text(blob)
    assert collect(key, [tmp_path / "a.json"]).accepted == {"ada-1": {item.id: item.right for item in key.items}}
    tree = json.loads(blob)
    assert tree.keys() == json.loads(hand_in(tmp_path / "h.json", key, "ada").read_text()).keys()
    assert tree["finished"] and all(answer["seconds"] > 0 for answer in tree["answers"])


def test_who_fails_checks_or_leaves_questions_open_is_refused(survey: Survey, tmp_path: Path) -> None:
    key = survey.key
    check = next(item.id for item in key.items if not item.condition)
    plain = next(item.id for item in key.items if item.condition)
    files = [
        hand_in(tmp_path / "good.json", key, "ada"),
        hand_in(tmp_path / "unsure.json", key, "bob", {check: "unsure"}),
        hand_in(tmp_path / "open.json", key, "dee", {plain: ""}),
        hand_in(tmp_path / "again.json", key, "ada"),
        hand_in(tmp_path / "retry.json", key, "bob"),
        hand_in(tmp_path / "finished.json", key, "dee"),
    ]
    wrong: list[dict[str, Any]] = [
        {"consent": False},
        {"questionnaire": "x"},
        {"schema": 1},
        {"answers": [{"item": plain, "answer": "maybe"}]},
        {"answers": [1]},
        {"answers": [{"item": plain, "answer": "yes"}] * 2},
        {"participant": " "},
    ]
    files += [hand_in(tmp_path / f"{number}.json", key, str(number), **one) for number, one in enumerate(wrong)]
    done = collect(key, files)
    assert list(done.accepted) == ["ada", "dee"] and len(done.refused) == len(files) - 2


def answers_of(survey: Survey, answered: Any, condition: str) -> tuple[Any, Any, Any]:
    """Truth [P,M] (one person), whether answered yes, and whether not sure."""
    items = [item for item in survey.key.items if item.condition == condition]
    said = np.array([[answers[item.id] for item in items] for answers in answered.accepted.values()])
    return np.broadcast_to([item.right == "yes" for item in items], said.shape), said == "yes", said == "unsure"


def test_figures_are_scikit_learns(survey: Survey, answered: Any) -> None:
    for row in score_survey(survey.key, answered, {}, BOOTSTRAP)["conditions"]:
        truth, yes, unsure = answers_of(survey, answered, row["label"])
        t, p = truth.ravel(), np.where(unsure, ~truth, yes).ravel()
        assert unsure.any() and row["votes"] == len(t) == 40 and row["pairs"] == 4
        expected = (
            f1_score(t, p),
            f1_score(t[t], p[t]),
            accuracy_score(t, p),
            recall_score(t, p),
            recall_score(t, p, pos_label=False),
        )
        assert [row[name]["value"] for name in METRICS] == pytest.approx(expected)
        assert [row[name]["n"] for name in METRICS] == [len(t), t.sum(), len(t), t.sum(), (~t).sum()]
        assert row["not sure"]["value"] == pytest.approx(unsure.mean())


def test_intervals_resample_people_and_pairs(survey: Survey, answered: Any) -> None:
    """Against a loop that lays every vote down as often as its participant and its pair are drawn."""
    truth, yes, unsure = answers_of(survey, answered, survey.key.conditions[1]["label"])
    same, right = truth[0], (yes == truth) & ~unsure
    people = BOOTSTRAP.weights(len(right))
    drawn = {kind: Bootstrap(60, 4 + kind).weights(int((same == kind).sum())) for kind in (True, False)}
    place = {kind: {int(row): k for k, row in enumerate(np.flatnonzero(same == kind))} for kind in (True, False)}
    values = []
    for r in range(60):
        hits = total = 0.0
        for person, pair in np.ndindex(right.shape):
            kind = bool(same[pair])
            weight = people[r, person] * drawn[kind][r, place[kind][pair]]
            hits += weight * right[person, pair]
            total += weight
        values.append(hits / total)
    found = figures(right, same, BOOTSTRAP)["accuracy"]
    assert (found.low, found.high) == pytest.approx(tuple(np.quantile(values, [0.025, 0.975])))


def test_judges_read_the_very_same_pictures(survey: Survey, folder: Path, answered: Any, tmp_path: Path) -> None:
    for metric, threshold in (("cosine", 0.5), ("euclidean", 300.0)):
        reader = Reader(Textures(8, metric=metric, match_threshold=threshold), "textures", "1")  # type: ignore[arg-type]
        judged = judge(survey.key, folder / "images", [reader])
        for item in (item for item in survey.key.items if item.condition):
            a, b = (Textures().embed(survey.pixels[t], np.zeros(0))[0].astype(float) for t in item.pictures)
            expected = cosine(a, b) if metric == "cosine" else -np.linalg.norm(a - b)
            alike = expected > (threshold if metric == "cosine" else -threshold)
            assert judged["textures"][item.id] == (alike == (item.right == "yes"))
    score = score_survey(survey.key, answered, judged, BOOTSTRAP)
    json.dumps(score, allow_nan=False)
    assert score["conditions"][0]["judges"]["textures"]["F1"]["value"] == 1
    assert score["participants"] == {"accepted": 10, "refused": 0}
    with pytest.raises(InputError):
        judge(survey.key, tmp_path, [])


@pytest.fixture(scope="module")
def rated(source: SetConfig) -> Survey:
    """Four photos, clear, as one colour and pixelated."""
    conditions = conditions_of(["Plain=solid", "pixelation:size=4"], [])
    return make_survey(source, conditions, kind=LIKERT, photos=4)


def test_everybody_rates_each_photo_once_under_another_condition(node: str, rated: Survey, tmp_path: Path) -> None:
    """Of four photos three, as there are three conditions; the page's script says 1 to pictures of one colour."""
    key = rated.key
    assert asked(key) == 3 * 3 + 2 and len(key.items) == 3 * 3 * 4 + 2
    assert Counter(picture.condition for picture in key.pictures.values()) == {
        "": 2,
        **dict.fromkeys(["clear", "Plain", "pixelation (size 4)"], 4),
    }
    plain = {token for token, pixels in rated.pixels.items() if len(np.unique(pixels.reshape(-1, 3), axis=0)) == 1}
    assert plain == {token for token, picture in key.pictures.items() if picture.condition == "Plain"}
    page = page_html(key, {token: token.encode() for token in rated.pixels})
    assert not [word for word in ("Plain", "pixelation", "clear") if word in page.partition('id="data"')[2]]
    code = (
        f"const plain = {json.dumps(sorted(plain))}; elements.agree.checked = true; elements.code.value = CODE;"
        "click('start'); const texts = [];"
        "while (elements.end.hidden !== false) { const text = elements.question.textContent; texts.push(text);"
        "const token = atob(elements.pictures.children[0].src.split(',')[1]);"
        "const check = text.includes('“Disagree”') ? '2' : text.includes('“Agree”') ? '6' : '';"
        "press(check || (plain.includes(token) ? '1' : '7')); }"
        "click('save'); out = [texts, blobs[0]];"
    )
    files, places = [], Counter[tuple[str, str]]()
    for number in range(8):
        texts, blob = browse(node, page, f"const CODE = 'p{number}';{code}")
        assert len(texts) == asked(key) and len(set(texts)) == 5
        (tmp_path / f"{number}.json").write_text(blob)
        files.append(tmp_path / f"{number}.json")
        by_id = {item.id: item for item in key.items}
        shown = [by_id[answer["item"]] for answer in json.loads(blob)["answers"]]
        pictures = list(dict.fromkeys(item.pictures[0] for item in shown if item.condition))
        assert len({key.pictures[token].name for token in pictures}) == 3 == len(pictures)
        assert len({key.pictures[token].condition for token in pictures}) == 3
        places.update((key.pictures[token].name, key.pictures[token].condition) for token in pictures)
    assert len(places) > 6  # a draw of its own for everybody
    score = score_survey(key, collect(key, files), {}, BOOTSTRAP)
    means = {
        row["label"]: [row[name]["value"] for name in ("visual appeal", "naturalness", "use")]
        for row in score["conditions"]
    }
    assert means == {"clear": [1, 1, 1], "Plain": [0, 0, 0], "pixelation (size 4)": [1, 1, 1]}
    assert all(row["votes"] == 8 for row in score["conditions"])
    with pytest.raises(UsageError):
        judge(key, tmp_path, [])


def test_ratings_that_no_page_can_hold_are_refused(rated: Survey, tmp_path: Path) -> None:
    key, own = rated.key, {}
    checks = {item.id: item.right for item in key.items if item.right}
    names = list(dict.fromkeys(one.name for one in key.pictures.values() if one.condition))
    labels = [row["label"] for row in key.conditions]

    def of(cells: list[tuple[str, str]], **more: str) -> dict[str, str]:
        said = {item.id: "4" for item in key.items if (key.pictures[item.pictures[0]].name, item.condition) in cells}
        return {**{item.id: "" for item in key.items}, **checks, **said, **more}

    good = list(zip(names, labels, strict=False))
    own["good"] = hand_in(tmp_path / "good.json", key, "ada", of(good))
    for name, said in {"unfinished": of(good[:2]), "inattentive": of(good, **{next(iter(checks)): "4"})}.items():
        own[name] = hand_in(tmp_path / f"{name}.json", key, name, said)
    done = collect(key, list(own.values()))
    assert list(done.accepted) == ["ada"] and len(done.refused) == 2


def test_agreement_resamples_people_and_photos() -> None:
    """Against a loop over every vote; who did not see a photo counts nothing."""
    values = np.array([[0.0, np.nan, 1.0], [0.5, 1.0, np.nan], [np.nan, 0.25, 0.75]])
    people, photos = BOOTSTRAP.weights(3), Bootstrap(60, BOOTSTRAP.seed + 1).weights(3)
    drawn = []
    for r in range(60):
        votes = [(people[r, p] * photos[r, m], values[p, m]) for p, m in np.ndindex(3, 3) if np.isfinite(values[p, m])]
        total = sum(weight for weight, _ in votes)
        drawn += [sum(weight * value for weight, value in votes) / total] if total else []
    found = agreement("x", values, BOOTSTRAP)
    assert (found.value, found.n) == (np.nanmean(values), 6)
    assert (found.low, found.high) == pytest.approx(tuple(np.quantile(drawn, [0.025, 0.975])))
    assert agreement("x", np.full((2, 3), np.nan), BOOTSTRAP).value is None


call = partial(invoke, evaluate, "survey")


def test_a_survey_is_made_answered_and_scored(
    source: SetConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, consent = tmp_path / "survey", tmp_path / "consent.txt"
    consent.write_text("I agree <b>freely</b>.")
    data = ("--data", source.path, "--labels", source.labels, "--aligned", "--size", SIDE)
    words = ("make", *data, "--pairs", 4, "--method", "solid", "--consent", consent, "-o", out)
    code, said, error = call(*words)
    told = json.loads(said)
    assert code == 0 and not error and told["questions"] == 10 and not told["notes"]
    assert "I agree &lt;b&gt;freely&lt;/b&gt;." in (out / "page.html").read_text()
    assert call(*words)[0] != 0  # nothing is overwritten

    judged_by_textures(monkeypatch)
    good = hand_in(tmp_path / "a.json", read_key(out / "key.json"), "ada")
    scored = tmp_path / "score.json"
    code, said, error = call("score", out, good, "--judge", "textures", "-o", scored, "--resamples", 50)
    assert code == 0 and not error and json.loads(said) == json.loads(scored.read_text())
    clear, solid = json.loads(said)["conditions"]
    assert clear["judges"]["textures"]["accuracy"]["value"] == 1 and solid["judges"]["textures"]["F1"]["value"] == 0
    bad = hand_in(tmp_path / "b.json", read_key(out / "key.json"), "bob", answers=[])
    code, said, error = call("score", out, good, bad, good, "--resamples", 20)
    assert code == 3 and error.count("Error: ") == 2
