"""The answers of a survey: who counts, the figures beside independent ones, judges on the very same pictures."""

from __future__ import annotations

import itertools
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import accuracy_score, f1_score, recall_score
from survey_world import SIDE, hand_in, random_answers

from ficgan.errors import InputError
from ficgan.lab.metrics import Bootstrap
from ficgan.lab.readers import Reader
from ficgan.lab.survey import Survey
from ficgan.lab.survey.score import (
    ANSWERS,
    METRICS,
    collect,
    figures,
    judge,
    judge_figures,
    krippendorff,
    score_survey,
    score_text,
    votes,
)

BOOTSTRAP = Bootstrap(200, 3)


def test_who_fails_checks_or_leaves_questions_open_is_refused(survey: Survey, tmp_path: Path) -> None:
    key, (first, second, _) = survey.key, survey.key.questionnaires
    checks = [item.id for item in first.items if item.check]
    files = [
        hand_in(tmp_path / "good.json", first, "ada"),
        hand_in(tmp_path / "wrong.json", first, "bob", {checks[0]}),
        hand_in(tmp_path / "unsure.json", first, "cy", unsure={checks[1]}),
        hand_in(
            tmp_path / "open.json",
            replace(first, items=tuple(sorted(first.items, key=lambda i: not i.check))),
            "dee",
            leave=3,
        ),
        hand_in(tmp_path / "again.json", second, "ada"),
        hand_in(tmp_path / "retry.json", first, "bob"),
        hand_in(tmp_path / "finished.json", first, "dee"),
    ]
    for name, change in (
        ("consent", {"consent": False}),
        ("other", {"questionnaire": "x"}),
        ("schema", {"schema": 1}),
        ("word", {"answers": [{"item": first.items[0].id, "answer": "maybe"}]}),
        ("list", {"answers": [1]}),
        ("item", {"answers": [{"item": "x", "answer": "yes"}]}),
        ("who", {"participant": " "}),
    ):
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


@pytest.fixture(scope="module")
def answered(survey: Survey, tmp_path_factory: pytest.TempPathFactory) -> Any:
    return collect(survey.key, random_answers(tmp_path_factory.mktemp("answers"), survey.key, 10))


def test_figures_are_scikit_learns(survey: Survey, answered: Any) -> None:
    for condition in survey.key.conditions:
        some = votes(survey.key, answered.accepted, condition.label)
        person, pair = np.nonzero(some.answers >= 0)
        answer, truth = some.answers[person, pair], some.same[pair]
        yes, unsure = answer == ANSWERS.index("yes"), answer == ANSWERS.index("unsure")
        assert unsure.any() and len(some) == 40
        for way, keep, said in (
            ("wrong", np.ones_like(truth), np.where(unsure, ~truth, yes)),
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
            found = figures(some, BOOTSTRAP, unsure=way)
            assert [found[name].value for name in METRICS] == pytest.approx(expected)
            assert [found[name].n for name in METRICS] == [len(t), t.sum(), len(t), t.sum(), (~t).sum()]


def test_intervals_resample_people_and_pairs(survey: Survey, answered: Any) -> None:
    """Against a loop that lays every vote down as often as its participant and its pair are drawn."""
    some = votes(survey.key, answered.accepted, survey.key.conditions[1].label)
    boot = Bootstrap(60, 4)
    people = boot.weights(len(some.answers))
    drawn = {kind: Bootstrap(60, 5 + kind).weights(int((some.same == kind).sum())) for kind in (True, False)}
    place = {kind: {int(row): k for k, row in enumerate(np.flatnonzero(some.same == kind))} for kind in (True, False)}
    values = []
    for r in range(60):
        right = total = 0.0
        for person, pair in np.argwhere(some.answers >= 0):
            kind = bool(some.same[pair])
            weight = people[r, person] * drawn[kind][r, place[kind][int(pair)]]
            right += weight * (ANSWERS[some.answers[person, pair]] == ("yes" if kind else "no"))
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
    observed = sum(sum(a != b for a, b in itertools.permutations(one, 2)) / (len(one) - 1) for one in units) / n
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
    assert clear["not sure"]["value"] == pytest.approx((some.answers == 2).sum() / len(some))
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
